//! Real mounts of pools whose servers run in this process.

mod common;
mod history;
mod pool;
mod posix;
