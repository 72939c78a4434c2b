//! The pool as a directory: a FUSE file system over the native client.
//!
//! Every request of the kernel becomes one call of the client's [`Fs`](weir_core::fs::Fs), made on
//! the thread that received it. Nothing is kept for each inode but what makes reports readable and
//! caching safe, and that is bounded and may be forgotten at any time.
#![warn(missing_docs)]

mod ahead;
mod attributes;
mod buffer;
mod cache;
mod credentials;
mod device;
mod directory;
mod displaced;
mod filesystem;
mod handles;
mod ioctl;
mod kernel;
mod lanes;
mod locks;
pub mod mounting;
mod names;
mod pins;
mod reply;
mod session;
mod shared;
mod statistics;
mod tuning;
mod workers;
mod yardstick;

pub use lanes::Requests;
pub use session::{MountOptions, Session, mount, serve};
pub use statistics::{FileStatistics, OperationStatistics, PATHS_MAX, Statistics};
pub use tuning::Rule;
pub use yardstick::Yardstick;
