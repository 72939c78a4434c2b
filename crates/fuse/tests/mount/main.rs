//! Real mounts of pools whose servers run in this process.

mod common;
mod corners;
mod history;
mod lanes;
mod locks;
mod pool;
mod posix;
