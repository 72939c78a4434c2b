//! The seam under the metadata service: an ordered map of byte keys to byte values.
//!
//! Small enough for an embedded B-tree and for a distributed engine alike: versioned reads, and one
//! bounded batch that takes effect as a whole or, if what it was based on has changed, not at all.

use crate::error::{Code, Error, Result};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Most conditions, puts and deletes, taken together, in one [`Batch`].
pub const BATCH_OPERATIONS_MAX: usize = 4096;

/// What an entry costs beside its key and value, by this crate's own accounting: bytes.
pub const ENTRY_OVERHEAD_BYTES: u64 = 112;

/// Of the stated memory, one part in so many is kept for what must work when it is full: removing.
pub const RESERVE_DIVISOR: u64 = 32;

/// Changes with every write of its key, and is never used again for the same key.
pub type Version = u64;

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub value: Vec<u8>,
    /// Its version.
    pub version: Version,
}

/// One entry of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The value's version.
    pub version: Version,
}

/// Changes that take effect together, if all conditions hold. No key is put or deleted twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Keys and the version that each must have; `None`: it must be absent.
    pub conditions: Vec<(Vec<u8>, Option<Version>)>,
    /// What [`MetaStore::moment`] said before anything was read on which the conditions rest.
    pub moment: Option<u64>,
    /// Half-open ranges in which there must be no key.
    pub empty: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys and their new values.
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys that go; they may be absent.
    pub deletes: Vec<Vec<u8>>,
    /// Whether it may use the reserve: it removes something, or keeps what exists in order.
    pub reserve: bool,
}

impl Batch {
    /// Refuses a batch beyond [`BATCH_OPERATIONS_MAX`].
    pub fn check(&self) -> Result<()> {
        let count = self.conditions.len() + self.empty.len() + self.puts.len() + self.deletes.len();
        if count > BATCH_OPERATIONS_MAX {
            return Err(Error::because(
                Code::TooMany,
                format!("{count} operations in one metadata batch"),
            ));
        }
        Ok(())
    }
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect; see [`MetaStore::sync`] for when it is durable.
    Done,
    /// A condition did not hold; nothing changed.
    Conflict,
}

/// Memory stated and used: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// In use.
    pub used: u64,
    /// Stated.
    pub limit: u64,
}

impl Usage {
    /// Whether growth by `growth` bytes keeps to what was stated.
    pub fn admits(self, growth: i64, reserve: bool) -> bool {
        let kept = if reserve { 0 } else { self.limit / RESERVE_DIVISOR };
        let after = self.used.saturating_add_signed(growth);
        growth <= 0 || after <= self.limit - kept
    }

    /// Refuses growth by `growth` bytes if that would pass what was stated.
    pub fn admit(self, growth: i64, reserve: bool) -> Result<()> {
        if !self.admits(growth, reserve) {
            return Err(Error::because(
                Code::NoMetadataSpace,
                format!("metadata memory is full: {} of {} bytes in use", self.used, self.limit),
            ));
        }
        Ok(())
    }
}

/// What an entry counts for in [`Usage`]: bytes.
pub fn footprint(key: &[u8], value: &[u8]) -> u64 {
    key.len() as u64 + value.len() as u64 + ENTRY_OVERHEAD_BYTES
}

/// A store's answer: there at once (no allocation), or later.
#[must_use = "a store does nothing until its answer is awaited"]
pub enum Answer<'a, T> {
    /// There; `None` once taken.
    Ready(Option<Result<T>>),
    /// To be waited for.
    Later(Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>),
}

impl<T> Answer<'_, T> {
    /// An answer that is there at once.
    pub fn ready(result: Result<T>) -> Self {
        Answer::Ready(Some(result))
    }
}

impl<T: Unpin> Future for Answer<'_, T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        match self.get_mut() {
            Answer::Ready(result) => {
                Poll::Ready(result.take().expect("an answer is not polled after it was given"))
            }
            Answer::Later(future) => future.as_mut().poll(context),
        }
    }
}

/// An ordered map of byte keys to byte values.
///
/// Each read sees what was committed before it began. Reads of one transaction need not be of one
/// moment: its commit names, as conditions, the versions it read. A batch of conditions alone tells
/// whether they hold, and costs no more than reading.
pub trait MetaStore: Send + Sync {
    /// A key's value.
    fn get<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Option<Versioned>>;

    /// The first `limit` entries of the half-open range `start..end`, in the order of keys.
    fn range<'a>(&'a self, start: &'a [u8], end: &'a [u8], limit: usize) -> Answer<'a, Vec<Item>>;

    /// Carries a batch out, or answers that it conflicts. [`Code::NoMetadataSpace`] if it would
    /// pass the stated memory; then nothing changed.
    fn commit(&self, batch: Batch) -> Answer<'_, Outcome>;

    /// A number that changes with every commit, where there is one at hand. A batch that names it,
    /// and finds it unchanged, need not have its conditions looked up again.
    fn moment(&self) -> Option<u64> {
        None
    }

    /// Waits until all that was committed before this call is as durable as the store promises.
    /// Stores that answer commits no earlier have nothing to wait for.
    fn sync(&self) -> Answer<'_, ()> {
        Answer::ready(Ok(()))
    }

    /// Memory stated and used.
    fn usage(&self) -> Usage;
}
