//! The store of scratch pools: a B-tree in memory. Its answers never wait.

use super::store::{Answer, Batch, Item, MetaStore, Outcome, Usage, Version, Versioned, footprint};
use crate::error::Result;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A [`MetaStore`] that lives and dies with its process.
pub struct MemoryStore {
    limit: u64,
    inner: Mutex<Inner>,
    /// Of `inner`, to be read without its lock.
    commits: AtomicU64,
}

type Stored = (Box<[u8]>, Version);

/// A key and its value.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// Bytes of a key that are compared at once, without following a pointer: all of an inode's.
const HEAD_BYTES: usize = 15;

/// A key. Its order is that of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Its first bytes, filled up with zeros, and behind them how many they are: what ends here is
    /// less than what goes on with zeros.
    head: u128,
    tail: Box<[u8]>,
}

impl Key {
    fn new(bytes: &[u8]) -> Key {
        let mut head = [0; HEAD_BYTES + 1];
        let (start, tail) = bytes.split_at(bytes.len().min(HEAD_BYTES));
        head[..start.len()].copy_from_slice(start);
        head[HEAD_BYTES] = start.len() as u8;
        Key { head: u128::from_be_bytes(head), tail: tail.into() }
    }

    fn bytes(&self) -> Vec<u8> {
        let head = self.head.to_be_bytes();
        [&head[..usize::from(head[HEAD_BYTES])], &self.tail].concat()
    }
}

#[derive(Default)]
struct Inner {
    map: BTreeMap<Key, Stored>,
    /// Counts commits; the version of all that a commit writes.
    commits: u64,
    used: u64,
}

impl MemoryStore {
    /// An empty store of at most `limit` bytes.
    pub fn new(limit: u64) -> MemoryStore {
        MemoryStore { limit, inner: Mutex::default(), commits: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing below panics between two changes that belong together.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits; before anything changes, `log` is told the commit's number, in the order of commits.
    pub(super) fn commit_logged(
        &self,
        batch: Batch,
        log: impl FnOnce(u64, &Batch) -> Result<()>,
    ) -> Result<Outcome> {
        let mut inner = self.lock();
        let outcome = inner.commit(batch, self.limit, log);
        self.commits.store(inner.commits, Ordering::Release);
        outcome
    }

    /// Takes over what an earlier life had committed as number `commit` or before.
    pub(super) fn restore(&self, commit: u64, puts: Vec<Pair>, deletes: &[Vec<u8>]) {
        let mut inner = self.lock();
        inner.commits = inner.commits.max(commit);
        inner.apply(puts, deletes);
        self.commits.store(inner.commits, Ordering::Release);
    }

    /// Entries from `start` on, one at least if there is one, and not more than `bytes` of them with
    /// 8 for each beside its key and value; and how many commits there were.
    pub(super) fn page(&self, start: &[u8], bytes: usize) -> (u64, Vec<Pair>) {
        let inner = self.lock();
        let mut total = 0;
        let mut entries = Vec::new();
        for (key, (value, _)) in inner.map.range(Key::new(start)..) {
            let key = key.bytes();
            total += key.len() + value.len() + 8;
            if total > bytes && !entries.is_empty() {
                break;
            }
            entries.push((key, value.to_vec()));
        }
        (inner.commits, entries)
    }
}

impl Inner {
    fn holds(&self, batch: &Batch) -> bool {
        let version = |key: &[u8]| self.map.get(&Key::new(key)).map(|(_, version)| *version);
        batch.conditions.iter().all(|(key, expected)| version(key) == *expected)
            && batch.empty.iter().all(|(start, end)| self.range(start, end).next().is_none())
    }

    fn range(&self, start: &[u8], end: &[u8]) -> impl Iterator<Item = (&Key, &Stored)> {
        // An empty or inverted range has nothing in it; BTreeMap would panic.
        let end = if start < end { end } else { start };
        self.map.range(Key::new(start)..Key::new(end))
    }

    fn footprint_of(&self, key: &[u8]) -> u64 {
        self.map.get(&Key::new(key)).map_or(0, |(value, _)| footprint(key, value))
    }

    /// `log` is called with the commit's number when nothing can stop it any more but `log` itself.
    fn commit(
        &mut self,
        batch: Batch,
        limit: u64,
        log: impl FnOnce(u64, &Batch) -> Result<()>,
    ) -> Result<Outcome> {
        batch.check()?;
        if batch.moment != Some(self.commits) && !self.holds(&batch) {
            return Ok(Outcome::Conflict);
        }
        if batch.puts.is_empty() && batch.deletes.is_empty() {
            return Ok(Outcome::Done);
        }
        let put: u64 = batch.puts.iter().map(|(key, value)| footprint(key, value)).sum();
        let usage = Usage { used: self.used, limit };
        // What it replaces and deletes need be found beforehand only where memory is short.
        if !usage.admits(put as i64, batch.reserve) {
            let replaced: u64 = batch.puts.iter().map(|(key, _)| self.footprint_of(key)).sum();
            let deleted: u64 = batch.deletes.iter().map(|key| self.footprint_of(key)).sum();
            usage.admit(put as i64 - replaced as i64 - deleted as i64, batch.reserve)?;
        }
        log(self.commits + 1, &batch)?;
        self.commits += 1;
        self.apply(batch.puts, &batch.deletes);
        Ok(Outcome::Done)
    }

    fn apply(&mut self, puts: Vec<Pair>, deletes: &[Vec<u8>]) {
        for key in deletes {
            if let Some((value, _)) = self.map.remove(&Key::new(key)) {
                self.used -= footprint(key, &value);
            }
        }
        for (key, value) in puts {
            let value = value.into_boxed_slice();
            self.used += footprint(&key, &value);
            match self.map.entry(Key::new(&key)) {
                Entry::Vacant(vacant) => {
                    vacant.insert((value, self.commits));
                }
                Entry::Occupied(mut occupied) => {
                    self.used -= footprint(&key, &occupied.get().0);
                    occupied.insert((value, self.commits));
                }
            }
        }
    }
}

impl MetaStore for MemoryStore {
    fn get<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Option<Versioned>> {
        let inner = self.lock();
        let found = inner.map.get(&Key::new(key));
        Answer::ready(Ok(
            found.map(|(value, version)| Versioned { value: value.to_vec(), version: *version })
        ))
    }

    fn range<'a>(&'a self, start: &'a [u8], end: &'a [u8], limit: usize) -> Answer<'a, Vec<Item>> {
        let inner = self.lock();
        let items = inner.range(start, end).take(limit).map(|(key, (value, version))| Item {
            key: key.bytes(),
            value: value.to_vec(),
            version: *version,
        });
        Answer::ready(Ok(items.collect()))
    }

    fn commit(&self, batch: Batch) -> Answer<'_, Outcome> {
        Answer::ready(self.commit_logged(batch, |_, _| Ok(())))
    }

    fn moment(&self) -> Option<u64> {
        Some(self.commits.load(Ordering::Acquire))
    }

    fn usage(&self) -> Usage {
        Usage { used: self.lock().used, limit: self.limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        // Few values and many lengths: what differs is often late, or only the length.
        proptest::collection::vec(0..3u8, 0..2 * HEAD_BYTES)
    }

    proptest! {
        #[test]
        fn keys_are_ordered_as_their_bytes(one in bytes(), other in bytes()) {
            prop_assert_eq!(Key::new(&one).cmp(&Key::new(&other)), one.cmp(&other));
            prop_assert_eq!(Key::new(&one).bytes(), one);
        }
    }
}
