//! What makes a target's content outlive its process: a journal of what its chunks are.
//!
//! Changes make chunks and heads of objects *unsaved*; a flush appends records of what they are now.
//! Removals and truncations are appended when they happen, so that nothing that was cut off comes
//! back. Records say what is, not what to do, and when a target comes back only the last one of each
//! chunk is put into its memory: so what comes back never takes more room than what there was.
//!
//! A record is a row of entries, little-endian:
//!
//! ```text
//! 1 head      ino u64, size u64, data epoch u32, cut epoch u32, time of last write i64 (ns)
//! 2 chunk     ino u64, index u64, count u32, count × { start u32, length u32 }, the bytes
//! 3 cut       ino u64, index u64: all chunks from this one on are gone
//! 4 removed   ino u64
//! ```
//! A chunk without ranges is gone.

use super::arena::CHUNK_BYTES;
use super::chunk::Key;
use super::{Object, State, Target};
use crate::error::{Code, Error, Result};
use crate::journal::{Journal, Sink, Source};
use crate::layout::Extent;
use crate::types::{Ino, Now, WallTime};
use crate::wire::data::{Io, Run, Runs, Witness};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Entries are put together into records of some so many bytes.
const RECORD_BYTES: usize = 512 * 1024;

const HEAD: u8 = 1;
const CHUNK: u8 = 2;
const CUT: u8 = 3;
const REMOVED: u8 = 4;

/// What has changed since it was last appended.
pub(super) struct Unsaved {
    journal: Arc<Journal>,
    chunks: BTreeSet<Key>,
    heads: BTreeSet<Ino>,
}

impl Unsaved {
    /// An object's chunks from `index` on, and its head, need not be appended any more.
    fn forget(&mut self, ino: Ino, index: u64) {
        let behind = (Bound::Included((ino, index)), Bound::Included((ino, u64::MAX)));
        while let Some(&key) = self.chunks.range(behind).next() {
            self.chunks.remove(&key);
        }
        self.heads.remove(&ino);
    }
}

#[derive(Default)]
struct Entries(Vec<u8>);

impl Entries {
    fn put(&mut self, tag: u8, words: &[u64]) {
        self.0.push(tag);
        for word in words {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn head(&mut self, ino: Ino, object: &Object) {
        let Witness { size, mtime, epoch } = object.witness;
        self.put(HEAD, &[ino.0, size]);
        self.0.extend_from_slice(&epoch.to_le_bytes());
        self.0.extend_from_slice(&object.cut_epoch.to_le_bytes());
        self.0.extend_from_slice(&mtime.0.to_le_bytes());
    }

    fn chunk(&mut self, state: &State, (ino, index): Key) {
        self.put(CHUNK, &[ino.0, index]);
        let count_at = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        let chunk = state.objects.get(&ino).and_then(|object| object.chunks.get(&index));
        let Some(&chunk) = chunk else { return };
        let mut count = 0u32;
        state.chunks.each((ino, index), chunk, |piece| {
            count += 1;
            self.0.extend_from_slice(&piece.start.to_le_bytes());
            self.0.extend_from_slice(&(piece.end - piece.start).to_le_bytes());
        });
        self.0[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
        state.chunks.each((ino, index), chunk, |piece| {
            let from = state.chunks.arena.pointer(piece.slot, piece.at as usize);
            // SAFETY: the piece's bytes are in the target's memory, which is locked: whoever could
            // write there holds the only reference to a slot that is in no chunk yet.
            let bytes = unsafe { std::slice::from_raw_parts(from, piece.length()) };
            self.0.extend_from_slice(bytes);
        });
    }
}

impl State {
    /// Chunks `indices` of an object have changed, or its head.
    pub(super) fn unsaved(&mut self, ino: Ino, indices: impl IntoIterator<Item = u64>) {
        if let Some(unsaved) = &mut self.unsaved {
            unsaved.heads.insert(ino);
            unsaved.chunks.extend(indices.into_iter().map(|index| (ino, index)));
        }
    }

    /// The object was cut at byte `cut`: that is appended now.
    pub(super) fn save_cut(&mut self, ino: Ino, cut: u64) -> Result<()> {
        let Some(mut unsaved) = self.unsaved.take() else { return Ok(()) };
        let size = CHUNK_BYTES as u64;
        let mut entries = Entries::default();
        entries.put(CUT, &[ino.0, cut / size]);
        // What is left of the chunk that was cut through.
        if !cut.is_multiple_of(size) {
            entries.chunk(self, (ino, cut / size));
        }
        entries.head(ino, &self.objects[&ino]);
        unsaved.forget(ino, cut / size);
        let result = unsaved.journal.append(&entries.0);
        self.unsaved = Some(unsaved);
        result
    }

    /// The object is gone: that is appended now.
    pub(super) fn save_removal(&mut self, ino: Ino) {
        let Some(unsaved) = &mut self.unsaved else { return };
        let mut entries = Entries::default();
        entries.put(REMOVED, &[ino.0]);
        // If the journal has failed, whoever waits for it is told.
        let _ = unsaved.journal.append(&entries.0);
        unsaved.forget(ino, 0);
    }

    /// Appends some of what is unsaved: of one object, or of whichever comes first. Says whether
    /// there is more.
    fn save_some(&mut self, only: Option<Ino>) -> Result<bool> {
        let Some(mut unsaved) = self.unsaved.take() else { return Ok(false) };
        let first = match only {
            Some(ino) => Some(ino),
            None => {
                let chunk = unsaved.chunks.first().map(|key| key.0);
                chunk.or_else(|| unsaved.heads.first().copied())
            }
        };
        let mut entries = Entries::default();
        if let Some(ino) = first {
            let all = (Bound::Included((ino, 0)), Bound::Included((ino, u64::MAX)));
            while entries.0.len() < RECORD_BYTES
                && let Some(&key) = unsaved.chunks.range(all).next()
            {
                entries.chunk(self, key);
                unsaved.chunks.remove(&key);
            }
            // The head comes last: a size that says more than there is would read as zeros.
            if unsaved.chunks.range(all).next().is_none()
                && unsaved.heads.remove(&ino)
                && let Some(object) = self.objects.get(&ino)
            {
                entries.head(ino, object);
            }
        }
        let more = match only {
            Some(ino) => unsaved.heads.contains(&ino),
            None => !unsaved.heads.is_empty() || !unsaved.chunks.is_empty(),
        };
        let result = match entries.0.is_empty() {
            true => Ok(()),
            false => unsaved.journal.append(&entries.0),
        };
        self.unsaved = Some(unsaved);
        result.map(|()| more)
    }
}

impl Target {
    /// From now on the target's content goes into this journal. Call it before the target serves.
    pub fn keep(&self, journal: &Arc<Journal>) {
        self.lock().unsaved = Some(Unsaved {
            journal: journal.clone(),
            chunks: BTreeSet::new(),
            heads: BTreeSet::new(),
        });
    }

    fn journal(&self) -> Option<Arc<Journal>> {
        self.lock().unsaved.as_ref().map(|unsaved| unsaved.journal.clone())
    }

    /// Whether its content outlives its process.
    pub fn is_kept(&self) -> bool {
        self.lock().unsaved.is_some()
    }

    /// Waits until an object, or (none) all that is here now, is safe, if this target's content is
    /// to outlive its process.
    ///
    /// # Errors
    /// If the disk failed.
    pub async fn save(&self, ino: Option<Ino>) -> Result<()> {
        let Some(journal) = self.journal() else { return Ok(()) };
        loop {
            journal.room().await?;
            if !self.lock().save_some(ino)? {
                break;
            }
        }
        journal.synced().await
    }

    /// Waits until all that was appended is safe: truncations and removals.
    ///
    /// # Errors
    /// If the disk failed.
    pub async fn settled(&self) -> Result<()> {
        match self.journal() {
            Some(journal) => journal.synced().await,
            None => Ok(()),
        }
    }

    /// Appends what is unsaved, as long as the journal has room: so that a flush finds little left.
    pub fn write_behind(&self) {
        while let Some(journal) = self.journal() {
            // If it has failed, whoever waits for it is told.
            if !journal.has_room() || !self.lock().save_some(None).unwrap_or(false) {
                return;
            }
        }
    }

    /// What makes the sources of the journal's checkpoints.
    pub fn sources(self: &Arc<Target>) -> impl Fn() -> Box<dyn Source> + Send + use<> {
        let target = self.clone();
        move || Box::new(Walk { target: target.clone(), next: Some((Ino(0), 0)) })
    }

    /// What fills an empty target from its journal.
    pub fn restoring<'a>(
        self: &'a Arc<Target>,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Restore<'a> {
        self.lock().restoring = true;
        Restore {
            target: self,
            progress,
            foreseen: 0,
            replayed: 0,
            chunks: BTreeMap::new(),
            cuts: BTreeMap::new(),
            removed: BTreeMap::new(),
            heads: BTreeMap::new(),
        }
    }
}

/// All objects, record by record.
struct Walk {
    target: Arc<Target>,
    next: Option<Key>,
}

impl Source for Walk {
    fn next(&mut self) -> Option<Vec<u8>> {
        let (mut ino, mut index) = self.next.take()?;
        let state = self.target.lock();
        let mut entries = Entries::default();
        while let Some((&found, object)) = state.objects.range(ino..).next() {
            if found != ino {
                (ino, index) = (found, 0);
            }
            if index == 0 {
                entries.head(ino, object);
            }
            let mut chunks = object.chunks.range(index..).map(|(&index, _)| index);
            let last = loop {
                let Some(chunk) = chunks.next() else { break None };
                entries.chunk(&state, (ino, chunk));
                if entries.0.len() >= RECORD_BYTES {
                    break Some(chunk);
                }
            };
            (ino, index) = match last {
                Some(chunk) => (ino, chunk + 1),
                None => (Ino(ino.0 + 1), 0),
            };
            if entries.0.len() >= RECORD_BYTES {
                self.next = Some((ino, index));
                break;
            }
        }
        (!entries.0.is_empty()).then_some(entries.0)
    }
}

enum Entry<'a> {
    Head { ino: Ino, witness: Witness, cut_epoch: u32 },
    Chunk { key: Key, ranges: Vec<(u32, u32)>, bytes: &'a [u8] },
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
                Entry::Head { ino, witness: Witness { size, mtime, epoch }, cut_epoch }
            }
            CHUNK => {
                let key = (ino, self.word()?);
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
                Entry::Chunk { key, ranges, bytes: self.take(length)? }
            }
            CUT => Entry::Cut { ino, index: self.word()? },
            REMOVED => Entry::Removed { ino },
            _ => return Err(damaged()),
        }))
    }
}

/// Whether a record of a target's journal makes sense: how many chunks and bytes are in it.
///
/// # Errors
/// If it does not.
pub fn check_record(record: &[u8]) -> Result<(u64, u64)> {
    let (mut chunks, mut length) = (0, 0);
    let mut parser = Parser(record);
    while let Some(entry) = parser.entry()? {
        if let Entry::Chunk { bytes, .. } = entry {
            chunks += 1;
            length += bytes.len() as u64;
        }
    }
    Ok((chunks, length))
}

fn damaged() -> Error {
    Error::because(Code::Damaged, "a record of the target's journal does not parse")
}

/// Fills an empty target from its journal. Positions count the log's records from 1; the snapshot's
/// are before them all.
pub struct Restore<'a> {
    target: &'a Arc<Target>,
    progress: &'a mut dyn FnMut(u64, u64),
    foreseen: u64,
    replayed: u64,
    /// Where the log last says what a chunk is.
    chunks: BTreeMap<Key, u64>,
    /// Cuts in the log: from which chunk on, and where.
    cuts: BTreeMap<Ino, Vec<(u64, u64)>>,
    /// Where the log last says that an object is gone.
    removed: BTreeMap<Ino, u64>,
    heads: BTreeMap<Ino, (Witness, u32)>,
}

impl Restore<'_> {
    fn counts(&self, (ino, index): Key, position: u64) -> bool {
        let cut = |&(first, at): &(u64, u64)| first <= index && at > position;
        self.chunks.get(&(ino, index)).is_none_or(|&last| last == position)
            && self.removed.get(&ino).is_none_or(|&at| at < position)
            && !self.cuts.get(&ino).is_some_and(|cuts| cuts.iter().any(cut))
    }

    fn apply(&mut self, record: &[u8], position: u64) -> Result<()> {
        let mut parser = Parser(record);
        while let Some(entry) = parser.entry()? {
            match entry {
                Entry::Head { ino, witness, cut_epoch }
                    if self.removed.get(&ino).is_none_or(|&at| at < position) =>
                {
                    self.heads.insert(ino, (witness, cut_epoch));
                }
                Entry::Chunk { key, ranges, bytes }
                    if !bytes.is_empty() && self.counts(key, position) =>
                {
                    self.fill(key, &ranges, bytes)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn fill(&self, (ino, index): Key, ranges: &[(u32, u32)], bytes: &[u8]) -> Result<()> {
        let offset = index.checked_mul(CHUNK_BYTES as u64).ok_or_else(damaged)?;
        let run = |&(start, length): &(u32, u32)| Run::single(offset + u64::from(start), length);
        let runs = match ranges {
            [(start, length)] => {
                Runs::One(Extent { offset: offset + u64::from(*start), length: u64::from(*length) })
            }
            _ => Runs::List { runs: ranges.iter().map(run).collect(), length: bytes.len() },
        };
        let member = self.target.member();
        let io = Io { ino, member, map_epoch: u32::MAX, generation: 0, epoch: 0, runs };
        let mut ticket = self.target.begin_write(Now::default(), &io)?;
        ticket.fill(bytes);
        ticket.commit(Now::default())?;
        Ok(())
    }
}

impl Sink for Restore<'_> {
    fn foresees(&self) -> bool {
        true
    }

    fn foresee(&mut self, record: &[u8]) -> Result<()> {
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

    fn snapshot(&mut self, record: &[u8]) -> Result<()> {
        self.apply(record, 0)
    }

    fn record(&mut self, record: &[u8]) -> Result<()> {
        self.replayed += 1;
        self.apply(record, self.replayed)
    }

    fn progress(&mut self, done: u64, all: u64) {
        (self.progress)(done, all);
    }
}

impl Drop for Restore<'_> {
    /// Gives the objects their heads. Bytes behind an object's end, whose head was not safe yet, are
    /// cut off: nobody may find them when it grows.
    fn drop(&mut self) {
        let headless: Vec<Ino> = {
            let mut state = self.target.lock();
            state.restoring = false;
            let all = state.objects.keys().copied();
            all.filter(|ino| !self.heads.contains_key(ino)).collect()
        };
        self.target.remove(&headless);
        for (ino, (witness, cut_epoch)) in std::mem::take(&mut self.heads) {
            let freed = {
                let mut state = self.target.lock();
                let (object, store) = state.object(ino);
                (object.witness, object.cut_epoch) = (witness, cut_epoch);
                object.cut(store, ino, witness.size, crate::layout::FILE_SIZE_MAX)
            };
            self.target.free(freed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::HeapMemory;
    use super::*;
    use crate::journal::twin::{Image, Recorder};
    use crate::journal::{self, Options, Writer};
    use crate::layout::Member;
    use crate::types::{Incarnation, TargetId};
    use crate::wire::data::TargetRequest;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const MEMBER: Member = Member { target: TargetId(0), incarnation: Incarnation(7) };
    const BLOCKS: usize = 40;

    fn options() -> Options {
        let real = Options::new(*b"a target's bytes");
        Options { segment_bytes: 1 << 20, log_bytes_min: 1 << 20, step_bytes: 32 << 10, ..real }
    }

    fn target() -> Arc<Target> {
        Target::new(MEMBER, 1, Box::new(HeapMemory::new(BLOCKS * CHUNK_BYTES)))
    }

    fn come_back(bytes: Vec<u8>) -> (Arc<Target>, Writer<Recorder>) {
        let target = target();
        let progress = &mut |_, _| ();
        let mut restore = target.restoring(progress);
        let writer = journal::open(Recorder::new(bytes), &options(), &mut restore);
        drop(restore);
        let writer = writer.unwrap_or_else(|error| panic!("comes back: {error}"));
        target.keep(writer.journal());
        (target, writer)
    }

    fn io(ino: u64, offset: u64, length: u64) -> Io {
        let runs = Runs::One(Extent { offset, length });
        Io { ino: Ino(ino), member: MEMBER, map_epoch: 1, generation: 0, epoch: 0, runs }
    }

    fn write(target: &Arc<Target>, ino: u64, offset: u64, bytes: &[u8]) {
        let mut ticket = target
            .begin_write(Now::default(), &io(ino, offset, bytes.len() as u64))
            .expect("has room");
        ticket.fill(bytes);
        ticket.commit(Now::default()).expect("stored");
    }

    fn read(target: &Arc<Target>, ino: u64) -> Vec<u8> {
        target.read(&io(ino, 0, 1 << 22)).expect("reads").slices().concat()
    }

    /// Runs a future, driving the journal while it waits.
    fn drive<T>(
        writer: &mut Writer<Recorder>,
        target: &Arc<Target>,
        future: impl Future<Output = T>,
    ) -> T {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            writer.pump(target.sources()).expect("writes");
        }
    }

    fn flush(writer: &mut Writer<Recorder>, target: &Arc<Target>, ino: u64) {
        drive(writer, target, target.save(Some(Ino(ino)))).expect("safe");
    }

    #[test]
    fn what_was_flushed_comes_back_and_what_was_removed_does_not() {
        let disk = Recorder::default();
        let mut writer = journal::create(disk.clone(), &options()).expect("made");
        let target = target();
        target.keep(writer.journal());
        write(&target, 1, 0, &[1; 100_000]);
        write(&target, 1, 300_000, &[2; 5]);
        write(&target, 2, 7, b"small");
        write(&target, 3, 0, &[3; 200_000]);
        write(&target, 4, 0, &[4; 70_000]);
        for ino in 1..=4 {
            flush(&mut writer, &target, ino);
        }
        target.remove(&[Ino(3)]);
        let cut = TargetRequest::Truncate { ino: Ino(4), cut: 66_000, size: 66_000, epoch: 2 };
        target.call(Now::default(), &cut).expect("cuts");
        let hole = Extent { offset: 10, length: 99_000 };
        let punch = TargetRequest::Punch { ino: Ino(1), extents: vec![hole] };
        target.call(Now::default(), &punch).expect("punches");
        drive(&mut writer, &target, target.save(None)).expect("safe");
        write(&target, 5, 0, b"never flushed");

        let (again, _) = come_back(disk.bytes());
        for ino in [1, 2, 4] {
            assert!(read(&again, ino) == read(&target, ino), "object {ino}");
            assert_eq!(again.lock().witness(Ino(ino)), target.lock().witness(Ino(ino)));
        }
        assert_eq!(again.objects(), 3);
        // What was cut off does not come back when the object grows.
        let grow = TargetRequest::Extend { ino: Ino(4), size: 70_000, epoch: 2 };
        again.call(Now::default(), &grow).expect("grows");
        assert!(read(&again, 4)[66_000..] == [0; 4000]);
        // Nor is an older truncation carried out again.
        again.call(Now::default(), &cut).expect("is seen already");
        assert_eq!(read(&again, 4).len(), 70_000);
    }

    /// A pool that is always nearly full, whose files come and go: a replay of what was there in
    /// turn would need several times the memory.
    #[test]
    fn coming_back_needs_no_more_room_than_there_was() {
        let disk = Recorder::default();
        let mut writer = journal::create(disk.clone(), &options()).expect("made");
        let target = target();
        target.keep(writer.journal());
        let most = (BLOCKS - 8) * CHUNK_BYTES;
        for round in 1..=6u8 {
            write(&target, u64::from(round), 0, &vec![round; most]);
            flush(&mut writer, &target, u64::from(round));
            let (again, _) = come_back(disk.bytes());
            assert!(read(&again, u64::from(round)) == vec![round; most]);
            if round < 6 {
                target.remove(&[Ino(u64::from(round))]);
            }
        }
    }

    /// Writes, cuts, holes, removals and flushes at random. A crash leaves of each object at least
    /// what was flushed last, byte by byte either that or something written since.
    #[test]
    fn whatever_a_crash_leaves_nothing_flushed_is_lost_or_stale() {
        let mut images = 0;
        for seed in 1..=4u64 {
            images += crash(seed);
        }
        assert!(images > 300, "only {images} images");
    }

    const OBJECTS: u64 = 5;

    /// Of each byte of an object: the values that it may have after a crash, a bit each.
    type Allowed = Vec<u64>;

    fn crash(seed: u64) -> usize {
        let mut state = seed;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
            state >> 33
        };
        let disk = Recorder::default();
        let mut writer = journal::create(disk.clone(), &options()).expect("made");
        let target = target();
        target.keep(writer.journal());
        // What each object may look like after a crash at some deed or later.
        let mut allowed: Vec<Allowed> = vec![Vec::new(); OBJECTS as usize];
        let mut history = vec![(disk.deeds(), allowed.clone())];
        for step in 0..60u64 {
            let ino = random() % OBJECTS;
            let bytes = &mut allowed[ino as usize];
            let value = step as u8 + 1;
            match random() % 8 {
                0..=3 => {
                    let (offset, length) = (random() % 150_000, 1 + random() % 90_000);
                    write(&target, ino, offset, &vec![value; length as usize]);
                    let end = (offset + length) as usize;
                    if bytes.len() < end {
                        bytes.resize(end, 1);
                    }
                    bytes[offset as usize..end].iter_mut().for_each(|byte| *byte |= 1 << value);
                }
                4 => {
                    let size = random() % 120_000;
                    let request = TargetRequest::Truncate {
                        ino: Ino(ino),
                        cut: size,
                        size,
                        epoch: value.into(),
                    };
                    target.call(Now::default(), &request).expect("cuts");
                    drive(&mut writer, &target, target.settled()).expect("safe");
                    bytes.resize(size as usize, 1);
                }
                5 if random().is_multiple_of(3) => {
                    target.remove(&[Ino(ino)]);
                    drive(&mut writer, &target, target.settled()).expect("safe");
                    bytes.clear();
                }
                6 => {
                    target.write_behind();
                    writer.pump(target.sources()).expect("writes");
                }
                _ => {
                    flush(&mut writer, &target, ino);
                    let now = read(&target, ino);
                    *bytes = now.into_iter().map(|byte| 1 << byte).collect();
                }
            }
            history.push((disk.deeds(), allowed.clone()));
        }
        let mut count = 0;
        disk.each_image(history[0].0, 3, &mut random, &mut |Image { bytes, deeds }| {
            count += 1;
            let (again, _) = come_back(bytes);
            // Between what was safe by then and what was under way.
            let at = history.iter().rposition(|(at, _)| *at <= deeds).unwrap_or(0);
            for ino in 0..OBJECTS {
                let found = read(&again, ino);
                let near = &history[at..(at + 2).min(history.len())];
                let fits = near.iter().any(|(_, allowed)| {
                    let allowed = &allowed[ino as usize];
                    found.len() <= allowed.len()
                        && found.iter().zip(allowed).all(|(byte, values)| values >> byte & 1 == 1)
                        && allowed[found.len()..].iter().all(|values| values & 1 == 1)
                });
                assert!(fits, "seed {seed}, after deed {deeds} (step {at}): object {ino}");
            }
        });
        count
    }
}
