//! What a kept target's journal says of each chunk, and what it has yet to be told.
//!
//! A record of the journal names the *run* of blocks that holds a chunk, and may have bytes *inline*
//! that are newer than the run's. Blocks of a run that the journal names are not used for anything
//! else until a record that replaces it is safe: so whatever a crash leaves of the journal's end, each
//! run that it names is as it was written.

use super::arena::CHUNK_BYTES;
use super::chunk::Key;
use super::space::Space;
use super::tier::{Base, NOTHING, PAGE_RECORDS};
use crate::journal::Journal;
use crate::types::Ino;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// Heap for an entry of a set or a queue here: bytes.
pub(super) const ENTRY_COST: u64 = 64;

/// What the journal says of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// The run that it names, as it names it.
    pub(super) run: Base,
    /// Where the chunk may differ from the copy on disk that is newest: the base, or the run named
    /// where there is no base any more.
    pub(super) ahead: Ahead,
    /// Memory that its inline bytes will take when the target comes back; 0: there are none.
    pub(super) inlined: u32,
}

/// Parts of a chunk, by the 64th.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ahead(u64);

const PART_BYTES: u32 = CHUNK_BYTES as u32 / u64::BITS;

impl Ahead {
    pub(super) const NONE: Ahead = Ahead(0);
    pub(super) const ALL: Ahead = Ahead(u64::MAX);

    /// With bytes from `start` to `end`.
    pub(super) fn with(self, start: u32, end: u32) -> Ahead {
        let (first, last) = (start / PART_BYTES, end.div_ceil(PART_BYTES));
        match last.checked_sub(first) {
            None | Some(0) => self,
            Some(count) => Ahead(self.0 | u64::MAX >> (u64::BITS - count) << first),
        }
    }

    /// Without the parts from `length` on.
    fn cut(self, length: u32) -> Ahead {
        Ahead(self.0 & Ahead::NONE.with(0, length).0)
    }

    /// At most so many bytes.
    pub(super) fn bytes(self) -> u32 {
        self.0.count_ones() * PART_BYTES
    }

    /// Its parts, ascending, neighbours as one.
    pub(super) fn ranges(self) -> impl Iterator<Item = (u32, u32)> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let first = left.trailing_zeros();
            let count = left.checked_shr(first)?.trailing_ones();
            left &= !(u64::MAX >> (u64::BITS - count) << first);
            Some((first * PART_BYTES, (first + count) * PART_BYTES))
        })
    }
}

const FRESH: Said = Said { run: NOTHING, ahead: Ahead::NONE, inlined: 0 };

/// What can be used again when something has become safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loose {
    block: u32,
    blocks: u32,
    inlined: u32,
}

/// See above. Chunks go by their records in the tier.
pub(super) struct Ledger {
    /// None: the target is just coming back.
    pub(super) journal: Option<Arc<Journal>>,
    /// Whoever waits has been told that the journal has failed.
    failure_told: bool,
    pages: Vec<Box<[Said; PAGE_RECORDS]>>,
    /// Chunks that have changed since they were recorded: memory is ahead of the disk.
    dirty: BTreeSet<Key>,
    /// The same, but what is to be recorded is on disk, or that they are gone.
    ready: BTreeSet<Key>,
    /// Objects whose heads have changed.
    pub(super) heads: BTreeSet<Ino>,
    /// What the journal still names of chunks that are gone, which it has not been told.
    orphans: BTreeMap<Key, Vec<Loose>>,
    /// What can be used again when all that has been appended is safe, and when what was appended up
    /// to some position is.
    loose: Vec<Loose>,
    due: VecDeque<(u64, Loose)>,
    inlined_bytes: u64,
    /// Objects that came back without a head: the journal is to hear that they are gone.
    pub(super) headless: Vec<Ino>,
    /// What of its heap was charged to memory.
    pub(super) charged: u64,
}

impl Ledger {
    pub(super) fn new() -> Ledger {
        Ledger {
            journal: None,
            failure_told: false,
            pages: Vec::new(),
            dirty: BTreeSet::new(),
            ready: BTreeSet::new(),
            heads: BTreeSet::new(),
            orphans: BTreeMap::new(),
            loose: Vec::new(),
            due: VecDeque::new(),
            inlined_bytes: 0,
            headless: Vec::new(),
            charged: 0,
        }
    }

    /// Heap that it takes: bytes.
    pub(super) fn cost(&self) -> u64 {
        let entries = self.dirty.len()
            + self.ready.len()
            + self.heads.len()
            + self.orphans.len()
            + self.loose.len()
            + self.due.len();
        let pages = self.pages.len() * size_of::<[Said; PAGE_RECORDS]>();
        pages as u64 + entries as u64 * ENTRY_COST
    }

    /// A record begins.
    pub(super) fn add(&mut self, id: u32) {
        let at = id as usize - 1;
        while self.pages.len() <= at / PAGE_RECORDS {
            self.pages.push(Box::new([FRESH; PAGE_RECORDS]));
        }
        *self.entry(id) = FRESH;
    }

    pub(super) fn said(&self, id: u32) -> &Said {
        let at = id as usize - 1;
        &self.pages[at / PAGE_RECORDS][at % PAGE_RECORDS]
    }

    fn entry(&mut self, id: u32) -> &mut Said {
        let at = id as usize - 1;
        &mut self.pages[at / PAGE_RECORDS][at % PAGE_RECORDS]
    }

    /// Whether the journal names this run of a chunk.
    pub(super) fn names(&self, id: u32, base: &Base) -> bool {
        self.said(id).run.block == base.block
    }

    /// A copy on disk that the journal does not name is of no more use.
    pub(super) fn base_dropped(&mut self, id: u32) {
        // What differs was told relative to it.
        self.entry(id).ahead = Ahead::ALL;
    }

    /// Bytes of a chunk have changed.
    pub(super) fn changed(&mut self, id: u32, start: u32, end: u32) {
        let said = self.entry(id);
        said.ahead = said.ahead.with(start, end);
    }

    /// A chunk ends at byte `length` now, whatever was behind.
    pub(super) fn trim(&mut self, id: u32, length: u32) {
        let said = self.entry(id);
        said.run.visible = said.run.visible.min(length);
        said.ahead = said.ahead.cut(length);
    }

    /// A chunk was written to disk as it is.
    pub(super) fn written(&mut self, id: u32, key: Key) {
        self.entry(id).ahead = Ahead::NONE;
        self.dirty.remove(&key);
        self.ready.insert(key);
    }

    /// A chunk has changed; `ready`: it can be recorded without writing anything to disk first.
    pub(super) fn mark(&mut self, key: Key, ready: bool) {
        let (to, from) = match ready {
            true => (&mut self.ready, &mut self.dirty),
            false => (&mut self.dirty, &mut self.ready),
        };
        from.remove(&key);
        to.insert(key);
    }

    /// Whether a chunk has changed since it was recorded.
    pub(super) fn is_unsaid(&self, key: Key) -> bool {
        self.dirty.contains(&key) || self.ready.contains(&key)
    }

    /// A chunk has ended.
    pub(super) fn remove(&mut self, id: u32, key: Key) {
        let Said { run, inlined, .. } = std::mem::replace(self.entry(id), FRESH);
        let loose = Loose { block: run.block, blocks: run.blocks() as u32, inlined };
        if run.block == 0 && inlined == 0 {
            return;
        }
        match self.is_unsaid(key) {
            true => self.orphans.entry(key).or_default().push(loose),
            false => self.loose.push(loose),
        }
    }

    /// The journal is being told of a chunk; `id` and what is said of it, if there is one.
    pub(super) fn say(&mut self, key: Key, said: Option<(u32, Base, u32)>) {
        self.dirty.remove(&key);
        self.ready.remove(&key);
        let orphans = self.orphans.remove(&key).unwrap_or_default();
        self.loose.extend(orphans);
        let Some((id, run, inlined)) = said else { return };
        let old = *self.said(id);
        if old.run.block != 0 && old.run.block != run.block {
            let blocks = old.run.blocks() as u32;
            self.loose.push(Loose { block: old.run.block, blocks, inlined: 0 });
        }
        if old.inlined > 0 {
            self.loose.push(Loose { block: 0, blocks: 0, inlined: old.inlined });
        }
        self.restore(id, run, inlined, old.ahead);
    }

    /// What the journal said of a chunk that comes back.
    pub(super) fn restore(&mut self, id: u32, run: Base, inlined: u32, ahead: Ahead) {
        self.inlined_bytes += u64::from(inlined);
        *self.entry(id) = Said { run, ahead, inlined };
    }

    /// The journal is being told that an object's chunks from `index` on are gone.
    pub(super) fn forget(&mut self, ino: Ino, index: u64) {
        let behind = (Bound::Included((ino, index)), Bound::Included((ino, u64::MAX)));
        for set in [&mut self.dirty, &mut self.ready] {
            while let Some(&key) = set.range(behind).next() {
                set.remove(&key);
            }
        }
        while let Some((&key, _)) = self.orphans.range(behind).next() {
            let orphans = self.orphans.remove(&key).unwrap_or_default();
            self.loose.extend(orphans);
        }
    }

    /// What is loose can be used again when all that has been appended is safe. To be called before
    /// the books are changed again, or after the record that made it loose was appended.
    pub(super) fn date(&mut self) {
        let Some(journal) = self.journal.as_ref().filter(|_| !self.loose.is_empty()) else {
            return;
        };
        let position = journal.appended();
        self.due.extend(self.loose.drain(..).map(|loose| (position, loose)));
    }

    /// Gives back what has become safe. Says whether there was something.
    pub(super) fn settle(&mut self, space: &mut Space) -> bool {
        self.date();
        let journal = self.journal.as_ref().filter(|_| !self.due.is_empty());
        let Some(journal) = journal else { return false };
        let (durable, before) = (journal.durable(), self.due.len());
        while let Some((_, loose)) = self.due.pop_front_if(|(position, _)| *position <= durable) {
            if loose.block != 0 {
                space.release(loose.block, loose.blocks as usize);
            }
            self.inlined_bytes -= u64::from(loose.inlined);
        }
        self.due.len() < before
    }

    /// Memory that all inline bytes would take, should the target come back now: bytes.
    pub(super) fn inlined_bytes(&self) -> u64 {
        self.inlined_bytes
    }

    /// Whether blocks will come back when the journal has gone on.
    pub(super) fn blocks_come(&self) -> bool {
        let some = !self.due.is_empty() || !self.ready.is_empty() || !self.loose.is_empty();
        some && !self.has_failed()
    }

    /// Whether nothing becomes safe any more.
    fn has_failed(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.failure().is_some())
    }

    /// Whether the journal has failed, once.
    pub(super) fn fails_now(&mut self) -> bool {
        self.has_failed() && !std::mem::replace(&mut self.failure_told, true)
    }

    /// Chunks that can be recorded at once.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The first chunk that can be recorded at once.
    pub(super) fn first_ready(&self) -> Option<Key> {
        self.ready.first().copied()
    }

    /// The first chunk between two (inclusive) that is to be recorded.
    pub(super) fn next(&self, from: Key, to: Key) -> Option<Key> {
        let range = (Bound::Included(from), Bound::Included(to));
        let firsts = [&self.ready, &self.dirty].map(|set| set.range(range).next().copied());
        firsts.into_iter().flatten().min()
    }

    /// Whether all changes of an object's chunks are recorded.
    pub(super) fn is_quiet(&self, ino: Ino) -> bool {
        self.next((ino, 0), (ino, u64::MAX)).is_none()
    }

    /// Runs that the journal may still name, of no chunk that is there.
    #[cfg(test)]
    pub(super) fn held(&self) -> Vec<(u32, u32)> {
        let orphans = self.orphans.values().flatten();
        let due = self.due.iter().map(|(_, loose)| loose);
        let all = orphans.chain(&self.loose).chain(due);
        all.filter(|loose| loose.block != 0).map(|loose| (loose.block, loose.blocks)).collect()
    }
}
