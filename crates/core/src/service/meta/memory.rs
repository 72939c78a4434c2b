//! The store of scratch pools: a B-tree in memory. Its answers never wait.

use super::store::{Answer, Batch, Item, MetaStore, Outcome, Usage, Version, Versioned, footprint};
use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A [`MetaStore`] that lives and dies with its process.
pub struct MemoryStore {
    limit: u64,
    inner: Mutex<Inner>,
}

type Stored = (Box<[u8]>, Version);

#[derive(Default)]
struct Inner {
    map: BTreeMap<Box<[u8]>, Stored>,
    /// Counts commits; the version of all that a commit writes.
    commits: u64,
    used: u64,
}

impl MemoryStore {
    /// An empty store of at most `limit` bytes.
    pub fn new(limit: u64) -> MemoryStore {
        MemoryStore { limit, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing below panics between two changes that belong together.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn holds(&self, batch: &Batch) -> bool {
        let version = |key: &[u8]| self.map.get(key).map(|(_, version)| *version);
        batch.conditions.iter().all(|(key, expected)| version(key) == *expected)
            && batch.empty.iter().all(|(start, end)| self.range(start, end).next().is_none())
    }

    fn range(&self, start: &[u8], end: &[u8]) -> impl Iterator<Item = (&Box<[u8]>, &Stored)> {
        // An empty or inverted range has nothing in it; BTreeMap would panic.
        let end = if start < end { end } else { start };
        let bounds = match start == end {
            true => (Bound::Included(start), Bound::Excluded(start)),
            false => (Bound::Included(start), Bound::Excluded(end)),
        };
        self.map.range::<[u8], _>(bounds)
    }

    fn footprint_of(&self, key: &[u8]) -> u64 {
        self.map.get(key).map_or(0, |(value, _)| footprint(key, value))
    }

    fn commit(&mut self, batch: Batch, limit: u64) -> Result<Outcome> {
        batch.check()?;
        if !self.holds(&batch) {
            return Ok(Outcome::Conflict);
        }
        let put: u64 = batch.puts.iter().map(|(key, value)| footprint(key, value)).sum();
        let replaced: u64 = batch.puts.iter().map(|(key, _)| self.footprint_of(key)).sum();
        let deleted: u64 = batch.deletes.iter().map(|key| self.footprint_of(key)).sum();
        let growth = put as i64 - replaced as i64 - deleted as i64;
        Usage { used: self.used, limit }.admit(growth, batch.reserve)?;
        self.commits += 1;
        for key in &batch.deletes {
            if let Some((value, _)) = self.map.remove(&key[..]) {
                self.used -= footprint(key, &value);
            }
        }
        for (key, value) in batch.puts {
            let value = value.into_boxed_slice();
            self.used += footprint(&key, &value);
            if let Some(slot) = self.map.get_mut(&key[..]) {
                self.used -= footprint(&key, &slot.0);
                *slot = (value, self.commits);
            } else {
                self.map.insert(key.into_boxed_slice(), (value, self.commits));
            }
        }
        Ok(Outcome::Done)
    }
}

impl MetaStore for MemoryStore {
    fn get<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Option<Versioned>> {
        let inner = self.lock();
        let found = inner.map.get(key);
        Answer::ready(Ok(
            found.map(|(value, version)| Versioned { value: value.to_vec(), version: *version })
        ))
    }

    fn range<'a>(&'a self, start: &'a [u8], end: &'a [u8], limit: usize) -> Answer<'a, Vec<Item>> {
        let inner = self.lock();
        let items = inner.range(start, end).take(limit).map(|(key, (value, version))| Item {
            key: key.to_vec(),
            value: value.to_vec(),
            version: *version,
        });
        Answer::ready(Ok(items.collect()))
    }

    fn commit(&self, batch: Batch) -> Answer<'_, Outcome> {
        Answer::ready(self.lock().commit(batch, self.limit))
    }

    fn usage(&self) -> Usage {
        Usage { used: self.lock().used, limit: self.limit }
    }
}
