//! Metadata stores that keep their data.

mod journal;
mod lmdb;

pub use journal::{DELAY, FileMedium, JournalThread};
pub use lmdb::{LmdbOptions, LmdbStore};
