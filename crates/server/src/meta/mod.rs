//! Metadata stores that keep their data.

mod lmdb;

pub use lmdb::{LmdbOptions, LmdbStore};
