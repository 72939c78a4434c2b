//! What makes a target's content outlive its process: data on its disk, and a journal of what is where.
//!
//! What the journal has not heard of a chunk or of an object's head is *unsaved* (see
//! [`super::ledger`]). A flush has the dirty chunks written to disk, in fresh blocks, and appends
//! records that name them. Small changes go into the record itself, *inline*, over the run that the
//! journal named before: one sync instead of two, and nothing to be read of a chunk that is on disk.
//! Inline is also the way out where a chunk cannot be written, for lack of memory or of a run that is
//! long enough, or because it is changed again and again. Removals and truncations are appended when
//! they happen, so that nothing that was cut off comes back.
//!
//! Records say what is, not what to do, and when a target comes back only the last one of each chunk
//! counts. A record is a row of entries, little-endian:
//!
//! ```text
//! 1 head      ino u64, size u64, data epoch u32, cut epoch u32, time of last write i64 (ns)
//! 2 chunk     ino u64, index u64, block u32, length u32, visible u32, sums 4 × u32,
//!             count u32, count × { start u32, length u32 }, the inline bytes
//! 3 cut       ino u64, index u64: all chunks from this one on are gone
//! 4 removed   ino u64
//! ```
//! A chunk with block 0 has no run; without ranges, too, it is gone.

mod restore;

pub use restore::Restore;
pub(super) use restore::{Entry, Last, Origin};

use super::arena::{CHUNK_BYTES, SLOT_BYTES};
use super::chunk::{Chunk, Key};
use super::ledger::{Ahead, Ledger, Said};
use super::tier::{Base, NOTHING};
use super::{Object, State, Target};
use crate::error::{Code, Error, Result};
use crate::journal::{Journal, Source};
use crate::types::Ino;
use crate::wire::data::Witness;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Entries are put together into records of some so many bytes.
const RECORD_BYTES: usize = 512 * 1024;
/// Changes of a chunk that are not worth a write and a sync of their own: bytes.
const INLINE_BYTES_MAX: u32 = 16 << 10;
/// Inline bytes may take one part in so many of memory when the target comes back.
pub const INLINE_SHARE: u64 = 8;
/// What can be recorded is recorded by the way when there are so many chunks of it.
const READY_MAX: usize = 4096;
/// What is dirty is written to disk at the latest by the second in so many calls of
/// [`Target::write_behind`].
const SWEEP_CALLS: u32 = 5;

/// Why nothing is added to a target whose journal is tight.
pub(super) const TIGHT: &str = "the file system that holds the journal is full";

const HEAD: u8 = 1;
const CHUNK: u8 = 2;
const CUT: u8 = 3;
const REMOVED: u8 = 4;

#[derive(Default)]
struct Entries(Vec<u8>);

impl Entries {
    fn put(&mut self, tag: u8, words: &[u64]) {
        self.0.push(tag);
        for word in words {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn halves(&mut self, halves: &[u32]) {
        for half in halves {
            self.0.extend_from_slice(&half.to_le_bytes());
        }
    }

    fn head(&mut self, ino: Ino, object: &Object) {
        let Witness { size, mtime, epoch, .. } = object.witness;
        self.put(HEAD, &[ino.0, size]);
        self.halves(&[epoch, object.cut_epoch]);
        self.0.extend_from_slice(&mtime.0.to_le_bytes());
    }

    /// A chunk without inline bytes.
    fn run(&mut self, (ino, index): Key, run: Base) {
        self.put(CHUNK, &[ino.0, index]);
        self.halves(&[run.block, run.length, run.visible]);
        self.halves(&run.sums);
        self.halves(&[0]);
    }

    /// A chunk with what memory has of it, as far as that may differ from the run. Gives the bytes.
    fn inline(&mut self, state: &State, key: Key, chunk: Chunk, run: Base, ahead: Ahead) -> u32 {
        self.run(key, run);
        let count_at = self.0.len() - 4;
        // Where memory has nothing, and the run does not count any more, there are zeros.
        let zeros_end = if state.covers(key, chunk) { run.visible } else { 0 };
        let mut pieces: Vec<(u32, u32, *const u8)> = Vec::new();
        for (from, to) in ahead.ranges() {
            let mut at = from;
            let zeros_end = zeros_end.min(to);
            state.chunks.each(key, chunk, |piece| {
                let (start, end) = (piece.start.max(from), piece.end.min(to));
                if start < end {
                    if at < start.min(zeros_end) {
                        pieces.push((at, start.min(zeros_end), std::ptr::null()));
                    }
                    let pointer = state.chunks.arena.pointer(piece.slot, piece.at as usize);
                    let skipped = (start - piece.start) as usize;
                    pieces.push((start, end, pointer.wrapping_add(skipped).cast_const()));
                    at = end;
                }
            });
            if at < zeros_end {
                pieces.push((at, zeros_end, std::ptr::null()));
            }
        }
        self.0[count_at..].copy_from_slice(&(pieces.len() as u32).to_le_bytes());
        for &(start, end, _) in &pieces {
            self.halves(&[start, end - start]);
        }
        for &(start, end, from) in &pieces {
            let length = (end - start) as usize;
            if from.is_null() {
                self.0.resize(self.0.len() + length, 0);
                continue;
            }
            // SAFETY: the piece's bytes are in the target's memory, which is locked: whoever could
            // write there holds the only reference to a slot that is in no chunk yet.
            self.0.extend_from_slice(unsafe { std::slice::from_raw_parts(from, length) });
        }
        pieces.iter().map(|(start, end, _)| end - start).sum()
    }
}

/// Memory that so many inline bytes take when they come back.
fn inlined_memory(bytes: u32) -> u32 {
    match bytes {
        0 => 0,
        bytes => (bytes.next_power_of_two()).max(SLOT_BYTES[0] as u32),
    }
}

impl State {
    pub(super) fn is_kept(&self) -> bool {
        !self.restoring && self.ledger().is_some()
    }

    fn ledger(&self) -> Option<&Ledger> {
        self.chunks.tier.as_ref()?.ledger.as_ref()
    }

    fn ledger_mut(&mut self) -> Option<&mut Ledger> {
        self.chunks.tier.as_mut()?.ledger.as_mut()
    }

    fn chunk(&self, key: Key) -> Option<Chunk> {
        self.objects.get(&key.0)?.chunks.get(&key.1).copied()
    }

    /// Whether memory alone says what a chunk is.
    fn covers(&self, key: Key, chunk: Chunk) -> bool {
        let tier = self.chunks.tier.as_ref().expect("a kept target has a disk");
        tier.base(chunk.record).is_none() || self.chunks.covered(key, chunk)
    }

    fn is_dirty(&self, chunk: Chunk) -> bool {
        self.chunks.tier.as_ref().is_some_and(|tier| tier.record(chunk.record).dirty)
    }

    /// Whether nothing of an object is left for a flush to do.
    pub(super) fn is_safe(&self, ino: Ino) -> bool {
        let Some(ledger) = self.ledger() else { return true };
        // Where the journal has not gone on, nobody knows whose records it has yet to write.
        let settled = ledger.journal.as_ref().is_some_and(|journal| journal.is_settled());
        settled && !ledger.heads.contains(&ino) && ledger.is_quiet(ino)
    }

    /// An object's head has changed.
    pub(super) fn unsaved_head(&mut self, ino: Ino) {
        if self.is_kept()
            && let Some(ledger) = self.ledger_mut()
        {
            ledger.heads.insert(ino);
        }
    }

    /// Bytes of chunks of an object have changed, or will now, and its head.
    pub(super) fn unsaved(&mut self, ino: Ino, changed: &[(u64, u32, u32)]) {
        if !self.is_kept() {
            return;
        }
        for &(index, start, end) in changed {
            let id = self.chunk((ino, index)).map(|chunk| chunk.record);
            let Some(ledger) = self.ledger_mut() else { return };
            ledger.mark((ino, index), false);
            id.into_iter().for_each(|id| ledger.changed(id, start, end));
        }
        self.unsaved_head(ino);
    }

    /// Some chunks that have changed may be gone now, or be on disk as they are.
    pub(super) fn sort_unsaved(&mut self, ino: Ino, changed: &[(u64, u32, u32)]) {
        for &(index, ..) in changed {
            let ready = self.chunk((ino, index)).is_none_or(|chunk| !self.is_dirty(chunk));
            if ready && let Some(ledger) = self.ledger_mut() {
                ledger.mark((ino, index), true);
            }
        }
    }

    /// Makes the entry of a chunk as it is, with what memory is ahead by, and notes that the journal
    /// knows it.
    fn record(&mut self, entries: &mut Entries, key: Key) {
        let Some(chunk) = self.chunk(key) else {
            entries.run(key, NOTHING);
            self.ledger_mut().expect("a kept target").say(key, None);
            return;
        };
        let id = chunk.record;
        let (run, ahead) = self.newest(id);
        let inlined = match self.is_dirty(chunk) {
            true => inlined_memory(entries.inline(self, key, chunk, run, ahead)),
            false => {
                entries.run(key, run);
                0
            }
        };
        self.ledger_mut().expect("a kept target").say(key, Some((id, run, inlined)));
    }

    /// The newest copy of a chunk on disk, and the bytes that may differ from it.
    fn newest(&self, id: u32) -> (Base, Ahead) {
        let tier = self.chunks.tier.as_ref().expect("a kept target has a disk");
        let said = self.ledger().expect("a kept target").said(id);
        match tier.base(id).unwrap_or(said.run) {
            run if run.block == 0 => (NOTHING, Ahead::ALL),
            run => (run, said.ahead),
        }
    }

    /// Makes the entry of a chunk as the journal may know it without waiting for the disk.
    fn record_known(&mut self, entries: &mut Entries, key: Key) {
        let known = self.chunk(key).map(|chunk| {
            let ledger = self.ledger().expect("a kept target");
            (*ledger.said(chunk.record), ledger.is_unsaid(key), self.is_dirty(chunk))
        });
        match known {
            // It was never told anything but a run, and shall not be told more now.
            Some((Said { run, inlined: 0, .. }, true, true)) => {
                if run.block != 0 {
                    entries.run(key, run);
                }
            }
            _ => self.record(entries, key),
        }
    }

    fn append(&mut self, entries: &Entries) -> Result<()> {
        let Some(ledger) = self.ledger_mut() else { return Ok(()) };
        if entries.0.is_empty() {
            return Ok(());
        }
        let Some(journal) = ledger.journal.clone() else { return Ok(()) };
        let result = journal.append_naming(&entries.0);
        ledger.date();
        result
    }

    /// The object was cut at byte `cut`: that is appended now.
    pub(super) fn save_cut(&mut self, ino: Ino, cut: u64) -> Result<()> {
        if !self.is_kept() {
            return Ok(());
        }
        let size = CHUNK_BYTES as u64;
        let mut entries = Entries::default();
        entries.put(CUT, &[ino.0, cut / size]);
        let ledger = self.ledger_mut().expect("a kept target");
        ledger.heads.remove(&ino);
        ledger.forget(ino, cut.div_ceil(size));
        // What is left of the chunk that was cut through.
        if !cut.is_multiple_of(size) {
            let key = (ino, cut / size);
            match self.chunk(key) {
                Some(_) => self.record_known(&mut entries, key),
                None => self.ledger_mut().expect("a kept target").forget(ino, cut / size),
            }
        }
        entries.head(ino, &self.objects[&ino]);
        self.append(&entries)
    }

    /// The object is gone: that is appended now.
    pub(super) fn save_removal(&mut self, ino: Ino) {
        let Some(ledger) = self.ledger_mut() else { return };
        ledger.heads.remove(&ino);
        ledger.forget(ino, 0);
        if ledger.journal.is_none() {
            ledger.headless.push(ino);
            return;
        }
        let mut entries = Entries::default();
        entries.put(REMOVED, &[ino.0]);
        // If the journal has failed, whoever waits for it is told.
        let _ = self.append(&entries);
    }

    /// How many bytes an inline record of a chunk would have, at most.
    fn inline_bytes(&self, chunk: Chunk) -> u32 {
        self.newest(chunk.record).1.bytes().min(chunk.length)
    }

    /// Appends what can be appended of the chunks from `from` to `to`; those that should be on disk
    /// first are added to `waits`. Gives where to go on, if there is more.
    pub(super) fn save_some(
        &mut self,
        mut from: Key,
        to: Key,
        waits: &mut Vec<Key>,
    ) -> Result<Option<Key>> {
        let mut entries = Entries::default();
        let budget = self.chunks.arena.blocks() as u64 * CHUNK_BYTES as u64 / INLINE_SHARE;
        let next = loop {
            let Some(ledger) = self.ledger() else { break None };
            let Some(key) = ledger.next(from, to) else { break None };
            if entries.0.len() >= RECORD_BYTES {
                break Some(key);
            }
            let spent = ledger.inlined_bytes() > budget;
            let first = self.chunk(key).is_some_and(|chunk| {
                self.is_dirty(chunk)
                    && self.chunks.covered(key, chunk)
                    && (spent || self.inline_bytes(chunk) > INLINE_BYTES_MAX)
            });
            match first {
                true => waits.push(key),
                false => self.record(&mut entries, key),
            }
            from = (key.0, key.1 + 1);
        };
        self.append(&entries)?;
        Ok(next)
    }

    /// Appends chunks that have been written to disk meanwhile, or could not be. Says how many.
    pub(super) fn save_late(&mut self, keys: &[Key]) -> Result<usize> {
        let mut entries = Entries::default();
        let mut count = 0;
        for &key in keys {
            if entries.0.len() >= RECORD_BYTES {
                break;
            }
            count += 1;
            if self.ledger().is_some_and(|ledger| ledger.is_unsaid(key)) {
                self.record(&mut entries, key);
            }
        }
        self.append(&entries).map(|()| count)
    }

    /// Appends heads that have changed.
    fn save_heads(&mut self, inos: &[Ino]) -> Result<()> {
        let mut entries = Entries::default();
        for &ino in inos {
            let changed = self.ledger_mut().is_some_and(|ledger| ledger.heads.remove(&ino));
            if changed && let Some(object) = self.objects.get(&ino) {
                entries.head(ino, object);
            }
        }
        self.append(&entries)
    }

    /// Appends what is on disk already, and heads of objects of which all else is. Says whether there
    /// is more.
    fn save_ready(&mut self) -> Result<bool> {
        let mut entries = Entries::default();
        while entries.0.len() < RECORD_BYTES
            && let Some(key) = self.ledger().and_then(Ledger::first_ready)
        {
            self.record(&mut entries, key);
        }
        self.append(&entries)?;
        Ok(self.ledger().is_some_and(|ledger| ledger.ready() > 0))
    }

    /// Gives back what has become safe, and has the journal told what is ready where that is much, or
    /// where room on disk is wanted.
    pub(super) fn keep_up(&mut self) {
        if !self.is_kept() {
            return;
        }
        let tier = self.chunks.tier.as_mut().expect("a kept target has a disk");
        let Some(ledger) = &mut tier.ledger else { return };
        let settled = ledger.settle(&mut tier.space);
        let Some(journal) = ledger.journal.clone() else { return };
        if settled || ledger.fails_now() {
            // There is room on disk again, or never will be. That is told once: whoever were called each
            // time that he looks would look for ever.
            self.memory_came_back();
        }
        let tier = self.chunks.tier.as_ref().expect("a kept target has a disk");
        let ledger = tier.ledger.as_ref().expect("a kept target");
        let short = tier.space.free(true) < (tier.space.blocks() / 16) as usize;
        if journal.has_room() && (ledger.ready() > READY_MAX || (short && ledger.ready() > 0)) {
            // If it has failed, whoever waits for it is told.
            let _ = self.save_ready();
        }
        if short && self.ledger().is_some_and(Ledger::blocks_come) {
            journal.hurry();
        }
        let tier = self.chunks.tier.as_mut().expect("a kept target has a disk");
        let Some(ledger) = &mut tier.ledger else { return };
        let (cost, charged) = (ledger.cost(), ledger.charged);
        ledger.charged = cost;
        match cost > charged {
            true => self.chunks.arena.charge(cost - charged),
            false => self.chunks.arena.discharge(charged - cost),
        }
    }

    /// Whether the journal wants nothing added.
    pub(super) fn is_tight(&self) -> bool {
        let journal = self.ledger().and_then(|ledger| ledger.journal.as_ref());
        !self.restoring && journal.is_some_and(|journal| journal.is_tight())
    }

    /// Refuses a write to a kept target which could not be written to disk when that is wanted.
    /// Everything dirty, or about to be, has room there, and what it replaces keeps its own.
    pub(super) fn room_on_disk(&mut self, parts: usize, overwrites: bool) -> Result<()> {
        if !self.is_kept() {
            return Ok(());
        }
        self.keep_up();
        if !overwrites && self.is_tight() {
            return Err(Error::because(Code::NoSpace, TIGHT));
        }
        let tier = self.chunks.tier.as_ref().expect("a kept target has a disk");
        let chunks = tier.dirty() as usize + self.parts + parts;
        if chunks * super::tier::blocks_of(CHUNK_BYTES as u32) <= tier.space.free(overwrites) {
            return Ok(());
        }
        let comes = tier.blocks_come() || tier.dirty() > 0 || self.parts > 0;
        let journal = self.ledger().and_then(|ledger| ledger.journal.clone());
        if let Some(error) = journal.as_ref().and_then(|journal| journal.failure()) {
            return Err(error);
        }
        let flow = self.flow.as_mut().expect("a target with a disk");
        if comes && flow.failure().is_none() {
            flow.urged = true;
            // Runs that have been replaced are free when the journal says so.
            let _ = self.save_ready();
            journal.iter().for_each(|journal| journal.hurry());
            return Err(Error::because(Code::Busy, "the disk's room waits for the journal"));
        }
        Err(self.no_room())
    }
}

impl Target {
    /// Keeps account of what a journal does not know. Before there is anything to know.
    fn account(&self) {
        let mut state = self.lock();
        let tier = state.chunks.tier.as_mut().expect("a kept target has a disk");
        tier.ledger.get_or_insert_with(Ledger::new);
    }

    /// From now on the target's content goes into this journal. Call it before the target serves.
    ///
    /// # Panics
    /// If the target has no disk.
    pub fn keep(&self, journal: &Arc<Journal>) {
        self.account();
        let mut state = self.lock();
        let ledger = state.ledger_mut().expect("made just now");
        ledger.journal = Some(journal.clone());
        let headless = std::mem::take(&mut ledger.headless);
        // Nobody lives through so many deaths that it would not fit.
        state.life = journal.life() as u32;
        for ino in headless {
            state.save_removal(ino);
        }
    }

    fn journal(&self) -> Option<Arc<Journal>> {
        self.lock().ledger()?.journal.clone()
    }

    /// Whether its content outlives its process.
    pub fn is_kept(&self) -> bool {
        self.lock().is_kept()
    }

    /// Waits until an object, or (none) all that is here now, is safe, if this target's content is
    /// to outlive its process.
    ///
    /// # Errors
    /// If the disk or the journal failed.
    pub async fn save(&self, ino: Option<Ino>) -> Result<()> {
        let Some(journal) = self.journal() else { return Ok(()) };
        let (first, last) = ino.map_or((Ino(0), Ino(u64::MAX)), |ino| (ino, ino));
        // What changes from here on need not be there.
        let heads: Vec<Ino> = match ino {
            Some(ino) => vec![ino],
            None => {
                let state = self.lock();
                state
                    .ledger()
                    .map(|ledger| ledger.heads.iter().copied().collect())
                    .unwrap_or_default()
            }
        };
        let (mut from, mut waits) = (Some((first, 0)), Vec::new());
        while let Some(next) = from {
            journal.room().await?;
            from = self.lock().save_some(next, (last, u64::MAX), &mut waits)?;
        }
        if !waits.is_empty() {
            self.lock().flow.as_mut().expect("a kept target has a disk").want(&waits);
            self.pump();
            OnDisk { target: self, keys: &waits, done: 0 }.await?;
            let mut rest = &waits[..];
            while !rest.is_empty() {
                journal.room().await?;
                let count = self.lock().save_late(rest)?;
                rest = &rest[count..];
            }
        }
        // Heads come last: a size that says more than there is would read as zeros.
        self.lock().save_heads(&heads)?;
        journal.synced().await?;
        self.pump();
        Ok(())
    }

    /// Waits until all that was appended is safe: truncations and removals.
    ///
    /// # Errors
    /// If the journal failed.
    pub async fn settled(&self) -> Result<()> {
        match self.journal() {
            Some(journal) => journal.synced().await,
            None => Ok(()),
        }
    }

    /// Appends what is on disk, as long as the journal has room, and now and then has what is dirty
    /// written: so that a flush finds little left. To be called about once a second.
    pub fn write_behind(&self) {
        let Some(journal) = self.journal() else { return };
        {
            let mut state = self.lock();
            let waiting = state.chunks.tier.as_ref().map_or(0, |tier| tier.waiting());
            let flow = state.flow.as_mut().expect("a kept target has a disk");
            flow.calls = flow.calls.wrapping_add(1);
            if flow.calls.is_multiple_of(SWEEP_CALLS) {
                flow.sweep = waiting;
            }
        }
        self.pump();
        // If it has failed, whoever waits for it is told.
        while journal.has_room() && self.lock().save_ready().unwrap_or(false) {}
        let mut state = self.lock();
        let Some(ledger) = state.ledger() else { return };
        let quiet = ledger.heads.iter().copied().filter(|&ino| ledger.is_quiet(ino));
        let quiet: Vec<Ino> = quiet.take(READY_MAX).collect();
        let _ = state.save_heads(&quiet);
    }

    /// The journal has gone on, or failed: what that made free can be used, or nothing ever will be.
    pub fn journal_advanced(&self) {
        self.pump();
    }

    /// What makes the sources of the journal's checkpoints.
    pub fn sources(self: &Arc<Target>) -> impl Fn() -> Box<dyn Source> + Send + use<> {
        let target = self.clone();
        move || Box::new(Walk { target: target.clone(), next: Some((Ino(0), 0)) })
    }

    /// What fills an empty target from its journal.
    ///
    /// # Panics
    /// If the target has no disk.
    pub fn restoring<'a>(
        self: &'a Arc<Target>,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Restore<'a> {
        self.account();
        let mut state = self.lock();
        (state.restoring, state.quiet) = (true, true);
        drop(state);
        Restore::new(self, progress)
    }
}

/// A wait until chunks are on disk, or cannot be written now.
struct OnDisk<'a> {
    target: &'a Target,
    keys: &'a [Key],
    done: usize,
}

impl Future for OnDisk<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut state = self.target.lock();
        let flow = state.flow.as_mut().expect("a kept target has a disk");
        if let Some(error) = flow.failure() {
            return Poll::Ready(Err(error.clone().into()));
        }
        let keys = self.keys;
        let done = keys[self.done..].iter().take_while(|&&key| !flow.is_wanted(key)).count();
        self.done += done;
        if self.done == keys.len() {
            return Poll::Ready(Ok(()));
        }
        flow.wait_saved(context.waker());
        Poll::Pending
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
        let mut state = self.target.lock();
        let mut entries = Entries::default();
        // What the journal does not know yet is told to the log, too: a snapshot says nothing that
        // the log has not said, or blocks that it names might be used for something else.
        let mut news = Entries::default();
        'objects: while let Some((&found, object)) = state.objects.range(ino..).next() {
            if found != ino {
                (ino, index) = (found, 0);
            }
            if index == 0 {
                entries.head(ino, object);
            }
            while let Some(chunk) =
                state.objects[&ino].chunks.range(index..).next().map(|(&index, _)| index)
            {
                let unsaid = state.ledger().is_some_and(|ledger| ledger.is_unsaid((ino, chunk)));
                let before = entries.0.len();
                state.record_known(&mut entries, (ino, chunk));
                if unsaid {
                    news.0.extend_from_slice(&entries.0[before..]);
                }
                index = chunk + 1;
                if entries.0.len() >= RECORD_BYTES {
                    self.next = Some((ino, index));
                    break 'objects;
                }
            }
            (ino, index) = (Ino(ino.0 + 1), 0);
        }
        // If the journal has failed, the checkpoint fails, too.
        let _ = state.append(&news);
        (!entries.0.is_empty()).then_some(entries.0)
    }
}
