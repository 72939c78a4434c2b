//! Filling an empty target from its journal: what records say, and which of them count.

use super::super::Target;
use super::super::arena::CHUNK_BYTES;
use super::super::chunk::{Chunk, Key};
use super::super::ledger::Ahead;
use super::super::space::FIRST_BLOCK;
use super::super::tier::{Base, QUARTERS};
use super::{CHUNK, CUT, HEAD, REMOVED, inlined_memory};
use crate::error::{Code, Error, Result};
use crate::journal::Sink;
use crate::layout::Extent;
use crate::types::{Ino, Now, WallTime};
use crate::wire::data::{Io, Run, Runs, Witness};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(in super::super) enum Entry<'a> {
    Head { ino: Ino, witness: Witness, cut_epoch: u32 },
    Chunk { key: Key, run: Base, ranges: Vec<(u32, u32)>, bytes: &'a [u8] },
    Cut { ino: Ino, index: u64 },
    Removed { ino: Ino },
}

struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(head)
    }

    fn word(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes")))
    }

    fn half(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes")))
    }

    fn run(&mut self) -> Result<Base> {
        let (block, length, visible) = (self.half()?, self.half()?, self.half()?);
        let mut sums = [0; QUARTERS];
        for sum in &mut sums {
            *sum = self.half()?;
        }
        let none = block == 0 && length == 0 && visible == 0;
        let some = u64::from(block) >= FIRST_BLOCK
            && (1..=CHUNK_BYTES as u32).contains(&length)
            && (1..=length).contains(&visible);
        if !none && !some {
            return Err(damaged());
        }
        Ok(Base { block, length, visible, sums })
    }

    fn entry(&mut self) -> Result<Option<Entry<'a>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.take(1)?[0];
        let ino = Ino(self.word()?);
        Ok(Some(match tag {
            HEAD => {
                let size = self.word()?;
                let (epoch, cut_epoch) = (self.half()?, self.half()?);
                let mtime = WallTime(self.word()? as i64);
                let witness = Witness { size, mtime, epoch, ..Witness::default() };
                Entry::Head { ino, witness, cut_epoch }
            }
            CHUNK => {
                let key = (ino, self.word()?);
                let run = self.run()?;
                let mut ranges = Vec::new();
                let (mut length, mut at) = (0, 0);
                for _ in 0..self.half()? {
                    let (start, bytes) = (self.half()?, self.half()?);
                    let end = start.checked_add(bytes).ok_or_else(damaged)?;
                    if start < at || bytes == 0 || end as usize > CHUNK_BYTES {
                        return Err(damaged());
                    }
                    at = end;
                    length += bytes as usize;
                    ranges.push((start, bytes));
                }
                Entry::Chunk { key, run, ranges, bytes: self.take(length)? }
            }
            CUT => Entry::Cut { ino, index: self.word()? },
            REMOVED => Entry::Removed { ino },
            _ => return Err(damaged()),
        }))
    }
}

fn damaged() -> Error {
    Error::because(Code::Damaged, "a record of the target's journal does not parse")
}

/// Where a record that is read stands.
#[derive(Clone, Copy)]
pub(in super::super) enum Origin {
    Snapshot,
    Log,
}

/// Where the log last says what something is. Positions count its records from 1; the snapshot's are
/// before them all.
#[derive(Default)]
pub(in super::super) struct Last {
    foreseen: u64,
    replayed: u64,
    chunks: BTreeMap<Key, u64>,
    /// Cuts: from which chunk on, and where.
    cuts: BTreeMap<Ino, Vec<(u64, u64)>>,
    removed: BTreeMap<Ino, u64>,
}

impl Last {
    pub(in super::super) fn foresee(&mut self, record: &[u8]) -> Result<()> {
        self.foreseen += 1;
        let position = self.foreseen;
        let mut parser = Parser(record);
        while let Some(entry) = parser.entry()? {
            match entry {
                Entry::Chunk { key, .. } => drop(self.chunks.insert(key, position)),
                Entry::Cut { ino, index } => {
                    let cuts = self.cuts.entry(ino).or_default();
                    // An earlier one of less or the same says nothing more.
                    cuts.retain(|&(first, _)| first < index);
                    cuts.push((index, position));
                }
                Entry::Removed { ino } => {
                    self.removed.insert(ino, position);
                    self.cuts.remove(&ino);
                }
                Entry::Head { .. } => {}
            }
        }
        Ok(())
    }

    /// Hands on what counts of the next record: heads of objects, and chunks.
    pub(in super::super) fn replay<'r>(
        &mut self,
        record: &'r [u8],
        origin: Origin,
        mut take: impl FnMut(Entry<'r>) -> Result<()>,
    ) -> Result<()> {
        let position = match origin {
            Origin::Snapshot => 0,
            Origin::Log => {
                self.replayed += 1;
                self.replayed
            }
        };
        let mut parser = Parser(record);
        while let Some(entry) = parser.entry()? {
            let counts = match entry {
                Entry::Head { ino, .. } => self.exists(ino, position),
                Entry::Chunk { key, .. } => self.counts(key, position),
                Entry::Cut { .. } | Entry::Removed { .. } => false,
            };
            if counts {
                take(entry)?;
            }
        }
        Ok(())
    }

    /// Whether what is said of a chunk is the last that is.
    fn counts(&self, (ino, index): Key, position: u64) -> bool {
        let cut = |&(first, at): &(u64, u64)| first <= index && at > position;
        self.chunks.get(&(ino, index)).is_none_or(|&last| last == position)
            && self.exists(ino, position)
            && !self.cuts.get(&ino).is_some_and(|cuts| cuts.iter().any(cut))
    }

    /// Whether an object was not removed later.
    fn exists(&self, ino: Ino, position: u64) -> bool {
        self.removed.get(&ino).is_none_or(|&at| at < position)
    }
}

/// Fills an empty target from its journal.
pub struct Restore<'a> {
    target: &'a Arc<Target>,
    progress: &'a mut dyn FnMut(u64, u64),
    last: Last,
    heads: BTreeMap<Ino, (Witness, u32)>,
}

impl<'a> Restore<'a> {
    pub(super) fn new(
        target: &'a Arc<Target>,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Restore<'a> {
        Restore { target, progress, last: Last::default(), heads: BTreeMap::new() }
    }

    fn apply(&mut self, record: &[u8], origin: Origin) -> Result<()> {
        let Restore { target, last, heads, .. } = self;
        last.replay(record, origin, |entry| match entry {
            Entry::Head { ino, witness, cut_epoch } => {
                heads.insert(ino, (witness, cut_epoch));
                Ok(())
            }
            Entry::Chunk { key, run, ranges, bytes } => target.restore(key, run, &ranges, bytes),
            Entry::Cut { .. } | Entry::Removed { .. } => Ok(()),
        })
    }
}

impl Target {
    /// A chunk comes back.
    fn restore(
        self: &Arc<Target>,
        key: Key,
        run: Base,
        ranges: &[(u32, u32)],
        bytes: &[u8],
    ) -> Result<()> {
        let (ino, index) = key;
        if index > crate::layout::FILE_SIZE_MAX / CHUNK_BYTES as u64 {
            return Err(damaged());
        }
        if run.block != 0 {
            self.adopt(key, run)?;
        }
        if ranges.is_empty() {
            return Ok(());
        }
        let offset = index * CHUNK_BYTES as u64;
        let extent = |&(start, length): &(u32, u32)| Run::single(offset + u64::from(start), length);
        let runs = match ranges {
            [(start, length)] => {
                Runs::One(Extent { offset: offset + u64::from(*start), length: u64::from(*length) })
            }
            _ => Runs::List { runs: ranges.iter().map(extent).collect(), length: bytes.len() },
        };
        let member = self.member();
        let io = Io { ino, member, map_epoch: u32::MAX, generation: 0, epoch: 0, runs };
        let mut ticket = self.begin_write(Now::default(), &io)?;
        ticket.fill(bytes);
        ticket.commit(Now::default())?;
        let mut state = self.lock();
        let id = state.chunk(key).map_or(0, |chunk| chunk.record);
        let with = |ahead: Ahead, &(start, length): &(u32, u32)| ahead.with(start, start + length);
        let ahead = ranges.iter().fold(Ahead::NONE, with);
        let ledger = state.ledger_mut().expect("a kept target");
        ledger.restore(id, run, inlined_memory(bytes.len() as u32), ahead);
        Ok(())
    }

    /// The chunk is on disk.
    fn adopt(&self, key: Key, run: Base) -> Result<()> {
        let mut state = self.lock();
        let (object, store) = state.object(key.0);
        let mut free = true;
        object.change(store, key, |store, old| {
            if old.is_some() {
                free = false;
                return old;
            }
            let tier = store.tier.as_mut().expect("a kept target has a disk");
            let id = tier.add(&mut store.arena, key);
            free = tier.adopt(id, run);
            let ledger = tier.ledger.as_mut().expect("a kept target");
            ledger.restore(id, run, 0, Ahead::NONE);
            Some(Chunk::on_disk(run.visible, id))
        });
        if !free {
            let cause = format!(
                "chunk {} of inode {} is said to be in blocks {} to {} of the disk, which are another chunk's or not there",
                key.1,
                key.0.0,
                run.block,
                u64::from(run.block) + run.blocks() as u64 - 1
            );
            return Err(Error::because(Code::Damaged, cause));
        }
        if state.chunks.arena.available() < 0 {
            return Err(Error::because(
                Code::NoSpace,
                "memory is too small for the map of the disk",
            ));
        }
        Ok(())
    }
}

impl Sink for Restore<'_> {
    fn foresees(&self) -> bool {
        true
    }

    fn foresee(&mut self, record: &[u8]) -> Result<()> {
        self.last.foresee(record)
    }

    fn snapshot(&mut self, record: &[u8]) -> Result<()> {
        self.apply(record, Origin::Snapshot)
    }

    fn record(&mut self, record: &[u8]) -> Result<()> {
        self.apply(record, Origin::Log)
    }

    fn progress(&mut self, done: u64, all: u64) {
        (self.progress)(done, all);
    }
}

impl Drop for Restore<'_> {
    /// Gives the objects their heads. Bytes behind an object's end, whose head was not safe yet, are
    /// cut off: nobody may find them when it grows. The journal will hear of that.
    fn drop(&mut self) {
        let headless: Vec<Ino> = {
            let state = self.target.lock();
            let all = state.objects.keys().copied();
            all.filter(|ino| !self.heads.contains_key(ino)).collect()
        };
        self.target.remove(&headless);
        let size = CHUNK_BYTES as u64;
        for (ino, (witness, cut_epoch)) in std::mem::take(&mut self.heads) {
            let freed = {
                let mut state = self.target.lock();
                let (object, _) = state.object(ino);
                (object.witness, object.cut_epoch) = (witness, cut_epoch);
                let behind = object.chunks.range(witness.size / size..);
                let behind = behind.filter(|&(&index, chunk)| {
                    index * size + u64::from(chunk.length) > witness.size
                });
                let behind: Vec<_> = behind.map(|(&index, _)| (index, 0, 0)).collect();
                for &(index, ..) in &behind {
                    state.ledger_mut().expect("a kept target").mark((ino, index), false);
                }
                let (object, store) = state.object(ino);
                let freed = object.cut(store, ino, witness.size, crate::layout::FILE_SIZE_MAX);
                state.sort_unsaved(ino, &behind);
                freed
            };
            self.target.free(freed);
        }
        self.target.lock().restoring = false;
    }
}
