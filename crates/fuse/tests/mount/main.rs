//! Real mounts of pools whose servers run in this process.

mod common;
mod corners;
mod history;
mod pool;
mod posix;
