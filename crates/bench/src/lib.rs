//! Benchmarks that anyone can run: `weir bench`. Each measures the machine's own limit in the same
//! run and in the same pattern, and gives every figure also as a share of that limit.
#![warn(missing_docs)]

mod machine;
mod memory;
pub mod metadata;
pub mod netpipe;
mod process;
mod progress;
mod size;
mod spread;
