//! The server's services: storage targets and metadata, without I/O.

pub mod meta;
pub mod storage;
