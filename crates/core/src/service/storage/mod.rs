//! Storage targets: one pool of memory each, and the objects in it.
//!
//! **A write** reserves fresh memory for its whole payload ([`Target::begin_write`]), the driver
//! receives the payload straight into it, and a short [`WriteTicket::commit`] puts it into the map.
//! A ticket that is dropped instead frees everything: a client that stops in mid-payload tears
//! nothing and holds nothing. **A read** pins the slots that it names ([`Target::read`]); what is
//! written meanwhile goes elsewhere, so that the reader sends what was there when it asked.
//!
//! These two are the only doors to payload: a tier that must first fetch a chunk from somewhere
//! waits there. One lock guards a target's books; payload never moves under it, but for parts of
//! chunks that are merged (at most four times the bytes that were written, or 64 KiB a chunk).
//!
//! Room for what committing can need is set aside at the beginning, so that it never fails. A small
//! reserve serves only writes over what is stored already, so that overwriting works in a full pool.

mod ahead;
mod arena;
mod chunk;
pub mod disk;
mod fair;
mod flow;
mod kept;
#[cfg(test)]
mod kept_tests;
mod ledger;
mod memory;
mod read;
mod room;
mod space;
mod survey;
#[cfg(test)]
mod tests;
mod tier;
#[cfg(test)]
mod tier_tests;
mod write;

pub use arena::CHUNK_BYTES;
pub use flow::{DiskCounters, DiskStatus};
pub use kept::{INLINE_SHARE, Restore};
pub use memory::{HeapMemory, Memory};
pub use read::{ReadTicket, Reading};
pub use room::Room;
pub use survey::{PLACED_BATCH, Place, Placed, Survey};
pub use write::{Turn, WriteTicket};

use crate::config::{LIST_EXTENTS_MAX, PAYLOAD_BYTES_MAX};
use crate::error::{Code, Error, Result};
use crate::layout::{Extent, FILE_SIZE_MAX, Member};
use crate::types::{Incarnation, Ino, Now, TargetId, WallTime};
use crate::wire::control::TargetStatus;
use crate::wire::data::{Io, Runs, TargetReply, TargetRequest, Witness};
use arena::Arena;
use chunk::{CHUNK_COST, Chunk, Chunks, Key};
use disk::Disk;
use flow::Flow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tier::Tier;

/// Heap for an object and the first leaf of its map of chunks, in trees of half-full nodes: bytes.
const OBJECT_COST: u64 = 440;
/// Chunks freed before others get the lock again.
const FREE_BATCH: usize = 1024;

/// One storage target. Share it in an [`Arc`]; every method is called from any thread.
pub struct Target {
    /// Its name; one that came back from its journal is told it later ([`Target::assign`]).
    id: AtomicU32,
    incarnation: Incarnation,
    map_epoch: AtomicU32,
    capacity: u64,
    disk: Option<Arc<dyn Disk>>,
    state: Mutex<State>,
}

struct State {
    chunks: Chunks,
    objects: BTreeMap<Ino, Object>,
    /// Tickets under way, to write and to read: some of the memory that they hold comes back.
    tickets: usize,
    /// Blocks that tickets hold only until they have overwritten what is stored.
    overwrite_blocks: usize,
    /// Traffic with the disk, if there is one.
    flow: Option<Flow>,
    ahead: ahead::Streams,
    /// Chunks that open writes have begun.
    parts: usize,
    /// How often it came to life, if it is kept; else 0.
    life: u32,
    /// It is being filled from its journal: what there was has room, to the last block.
    restoring: bool,
    /// Nothing is asked of the disk yet: not all that is in use there is known, and nobody looks after
    /// its completions.
    quiet: bool,
}

#[derive(Debug, Default)]
struct Object {
    chunks: BTreeMap<u64, Chunk>,
    witness: Witness,
    /// Epoch of the newest truncation seen. Apart from the witness's, which writes and stamps raise
    /// too: those may come from clients that know of a truncation that has not arrived here yet, and
    /// must not keep it from cutting.
    cut_epoch: u32,
    /// Slot bytes that its chunks hold.
    allocated: u64,
    /// What went wrong when it was written behind: for the next one who asks whether it is safe.
    trouble: Option<Box<Error>>,
}

impl Object {
    /// Times of writes of older epochs count no more.
    fn begin_epoch(&mut self, epoch: u32) {
        if epoch > self.witness.epoch {
            self.witness.epoch = epoch;
            self.witness.mtime = WallTime(0);
        }
    }

    /// It was written, or made longer, or got a hole.
    fn touch(&mut self, now: Now) {
        self.witness.mtime = self.witness.mtime.max(now.wall);
        self.witness.changes += 1;
    }

    /// Changes one chunk and keeps the books.
    fn change(
        &mut self,
        store: &mut Chunks,
        key: Key,
        change: impl FnOnce(&mut Chunks, Option<Chunk>) -> Option<Chunk>,
    ) {
        let old = self.chunks.get(&key.1).copied();
        let bytes = store.bytes(key, old);
        let new = change(store, old);
        self.allocated = self.allocated - bytes + store.bytes(key, new);
        match (old, new) {
            (None, None) => (),
            (Some(old), Some(new)) if old == new => (),
            (_, Some(new)) => {
                if self.chunks.insert(key.1, new).is_none() {
                    store.arena.charge(CHUNK_COST);
                }
            }
            (Some(_), None) => {
                self.chunks.remove(&key.1);
                store.arena.discharge(CHUNK_COST);
            }
        }
    }

    /// Cuts `start..end` out of every chunk but those that lie wholly within, which it returns.
    fn cut(&mut self, store: &mut Chunks, ino: Ino, start: u64, end: u64) -> Freed {
        let size = CHUNK_BYTES as u64;
        if start >= end {
            return Freed::default();
        }
        let (whole_start, whole_end) = (start.div_ceil(size), end / size);
        // Head and tail, which are one chunk if the range begins and ends in the same.
        for index in [start / size, end / size] {
            let from = start.max(index * size) - index * size;
            let to = end.min((index + 1) * size).saturating_sub(index * size);
            let whole = (whole_start..whole_end).contains(&index);
            if whole || from >= to || !self.chunks.contains_key(&index) {
                continue;
            }
            self.change(store, (ino, index), |store, chunk| {
                store.punch((ino, index), chunk?, from as u32, to as u32)
            });
        }
        if whole_start >= whole_end {
            return Freed::default();
        }
        let freed: Vec<(u64, Chunk)> = match self.chunks.range(whole_end..).next() {
            None => self.chunks.split_off(&whole_start).into_iter().collect(),
            Some(_) => {
                let range = self.chunks.range(whole_start..whole_end);
                let freed: Vec<_> = range.map(|(&index, &chunk)| (index, chunk)).collect();
                for (index, _) in &freed {
                    self.chunks.remove(index);
                }
                freed
            }
        };
        for &(index, chunk) in &freed {
            self.allocated -= store.bytes((ino, index), Some(chunk));
        }
        Freed::new(store, ino, freed)
    }
}

/// Slots of chunks that left their object, to be freed bit by bit.
#[derive(Debug, Default)]
#[must_use]
struct Freed(Vec<Chunk>);

impl Freed {
    fn new(store: &mut Chunks, ino: Ino, chunks: impl IntoIterator<Item = (u64, Chunk)>) -> Freed {
        // Lists of pieces go by the chunk's name, which may be in use again before long.
        let chunks = chunks.into_iter().filter(|&(index, chunk)| {
            let pieces = chunk.in_pieces();
            if pieces {
                store.free((ino, index), chunk);
                store.arena.discharge(CHUNK_COST);
            }
            !pieces
        });
        Freed(chunks.map(|(_, chunk)| chunk).collect())
    }

    fn append(&mut self, mut other: Freed) {
        self.0.append(&mut other.0);
    }
}

impl State {
    /// The object, made if it is not there.
    fn object(&mut self, ino: Ino) -> (&mut Object, &mut Chunks) {
        let object = self.objects.entry(ino).or_insert_with(|| {
            self.chunks.arena.charge(OBJECT_COST);
            Object::default()
        });
        (object, &mut self.chunks)
    }

    fn witness(&self, ino: Ino) -> Witness {
        let witness = self.objects.get(&ino).map(|object| object.witness).unwrap_or_default();
        Witness { life: self.life, ..witness }
    }

    fn reply(&self, ino: Ino) -> TargetReply {
        let allocated = self.objects.get(&ino).map_or(0, |object| object.allocated);
        TargetReply::Object { witness: self.witness(ino), allocated, safe: self.is_safe(ino) }
    }
}

impl Target {
    /// A target with nothing in it. Of `memory` it uses whole blocks of [`CHUNK_BYTES`], for
    /// payload and in place of its bookkeeping in the heap.
    pub fn new(member: Member, map_epoch: u32, memory: Box<dyn Memory>) -> Arc<Target> {
        Target::with(member, map_epoch, memory, None)
    }

    /// A target with a disk under its memory, if it has one: what memory has no room for goes there.
    /// Whoever drives it hands back the disk's completions ([`Target::disk_done`]).
    pub fn with(
        member: Member,
        map_epoch: u32,
        memory: Box<dyn Memory>,
        disk: Option<Arc<dyn Disk>>,
    ) -> Arc<Target> {
        let arena = Arena::new(memory);
        let capacity = (arena.blocks() * CHUNK_BYTES) as u64;
        let mut chunks = Chunks::new(arena);
        let disk = disk.filter(|disk| {
            chunks.tier = Tier::new(&mut chunks.arena, disk.blocks());
            chunks.tier.is_some()
        });
        Arc::new(Target {
            id: AtomicU32::new(member.target.0),
            incarnation: member.incarnation,
            map_epoch: AtomicU32::new(map_epoch),
            capacity,
            state: Mutex::new(State {
                chunks,
                objects: BTreeMap::new(),
                tickets: 0,
                overwrite_blocks: 0,
                flow: disk.is_some().then(|| Flow::new(capacity)),
                ahead: ahead::Streams::new(capacity),
                parts: 0,
                life: 0,
                restoring: false,
                quiet: false,
            }),
            disk,
        })
    }

    /// What it holds and has done.
    pub fn status(&self) -> TargetStatus {
        let state = self.lock();
        let disk = state.disk_status().unwrap_or_default();
        TargetStatus {
            id: self.member().target.0,
            memory: self.capacity,
            memory_used: state.chunks.arena.used(),
            objects: state.objects.len() as u64,
            disk: disk.capacity,
            disk_used: disk.used,
            dirty: disk.dirty,
            disk_queued: disk.queued,
            disk_waiting: disk.waiting,
            disk_reads: disk.counters.reads,
            disk_bytes_read: disk.counters.bytes_read,
            disk_writes: disk.counters.writes,
            disk_bytes_written: disk.counters.bytes_written,
            disk_errors: disk.counters.errors,
            disk_failed: disk.failed,
            ..TargetStatus::default()
        }
    }

    /// Its disk, if it has one, and what is going on there.
    pub fn disk_status(&self) -> Option<DiskStatus> {
        self.lock().disk_status()
    }

    /// Its name and life.
    pub fn member(&self) -> Member {
        let target = TargetId(self.id.load(Ordering::Relaxed));
        Member { target, incarnation: self.incarnation }
    }

    /// Tells it its name, and the epoch of the map from which it has it. Before it serves.
    pub fn assign(&self, id: TargetId, map_epoch: u32) {
        self.id.store(id.0, Ordering::Relaxed);
        self.raise_map_epoch(map_epoch);
    }

    /// From now on its disk is used: somebody hands back what it has done.
    pub fn begin(&self) {
        self.lock().quiet = false;
        self.pump();
    }

    /// From now on, requests that go by an older pool map are refused as stale.
    pub fn raise_map_epoch(&self, epoch: u32) {
        self.map_epoch.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Memory stated: bytes. A part of it ([`Target::reserve`]) is for overwriting alone.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Memory that only writes over stored bytes may use: bytes.
    pub fn reserve(&self) -> u64 {
        (self.lock().chunks.reserve * CHUNK_BYTES) as u64
    }

    /// Memory in use: bytes, bookkeeping included.
    pub fn used(&self) -> u64 {
        self.lock().chunks.arena.used()
    }

    /// Objects held.
    pub fn objects(&self) -> u64 {
        self.lock().objects.len() as u64
    }

    /// Refuses requests for another target, for another life of this one, and by an old pool map.
    pub fn check(&self, member: Member, map_epoch: u32) -> Result<()> {
        let own_member = self.member();
        let target = own_member.target.0;
        if member.target != own_member.target {
            let cause = format!("request for target {} reached target {target}", member.target.0);
            return Err(Error::because(Code::Invalid, cause));
        }
        if member.incarnation != self.incarnation {
            let cause = format!(
                "target {target} restarted: it lives as incarnation {:016x}, the data was in {:016x}",
                self.incarnation.0, member.incarnation.0
            );
            return Err(Error::because(Code::Lost, cause));
        }
        let own = self.map_epoch.load(Ordering::Relaxed);
        if map_epoch < own {
            let cause = format!("pool map of epoch {map_epoch} used, target {target} is at {own}");
            return Err(Error::because(Code::Stale, cause));
        }
        Ok(())
    }

    fn check_io(&self, io: &Io) -> Result<()> {
        self.check(io.member, io.map_epoch)?;
        let mut extents = 0u64;
        let mut length = 0u64;
        match &io.runs {
            Runs::One(extent) => {
                check_end(Some(extent.offset), extent.length)?;
                (extents, length) = (1, extent.length);
            }
            Runs::List { runs, .. } => {
                for run in runs {
                    let steps = u64::from(run.count.saturating_sub(1));
                    let last =
                        steps.checked_mul(run.stride).and_then(|s| s.checked_add(run.offset));
                    check_end(last, u64::from(run.length))?;
                    extents += u64::from(run.count);
                    length = length.saturating_add(u64::from(run.count) * u64::from(run.length));
                }
            }
        }
        if extents > LIST_EXTENTS_MAX as u64 || length > PAYLOAD_BYTES_MAX as u64 {
            let cause = format!("{length} bytes in {extents} extents in one request");
            return Err(Error::because(Code::TooMany, cause));
        }
        if length != io.runs.length() as u64 {
            return Err(Error::because(Code::Invalid, "a list whose sum is not its length"));
        }
        Ok(())
    }

    /// Serves everything but payload and removals ([`Target::remove`]: who orders one is the
    /// caller's to check, as are member and epoch: [`Target::check`]).
    pub fn call(&self, now: Now, request: &TargetRequest) -> Result<TargetReply> {
        match *request {
            TargetRequest::Witness { ino } => Ok(self.lock().reply(ino)),
            TargetRequest::Flush { ino } => {
                let mut state = self.lock();
                let failed = state.disk_status().is_some_and(|status| status.failed);
                if let Some(object) = state.objects.get_mut(&ino)
                    && let Some(error) = &object.trouble
                {
                    let error = Error::clone(error);
                    // Told once, unless it is to stay so.
                    object.trouble = object.trouble.take().filter(|_| failed);
                    return Err(error);
                }
                Ok(state.reply(ino))
            }
            TargetRequest::Truncate { ino, cut, size, epoch } => {
                self.truncate(ino, cut, size, epoch)
            }
            TargetRequest::Stamp { ino, epoch } => {
                let mut state = self.lock();
                if epoch > state.witness(ino).epoch {
                    state.room_for_object(ino)?;
                    state.object(ino).0.begin_epoch(epoch);
                    state.unsaved_head(ino);
                }
                Ok(state.reply(ino))
            }
            TargetRequest::Punch { ino, ref extents } => self.punch(now, ino, extents),
            TargetRequest::Extend { ino, size, epoch } => {
                check_end(Some(size), 0)?;
                let mut state = self.lock();
                state.room_for_object(ino)?;
                let object = state.object(ino).0;
                object.begin_epoch(epoch);
                object.witness.size = object.witness.size.max(size);
                object.touch(now);
                state.unsaved_head(ino);
                Ok(state.reply(ino))
            }
            TargetRequest::Seek { ino, offset, data } => {
                let offset = match self.lock().objects.get(&ino) {
                    Some(object) if data => object.next_data(offset),
                    Some(object) => Some(object.next_hole(offset)),
                    None => (!data).then_some(offset),
                };
                Ok(TargetReply::Seek { offset })
            }
            TargetRequest::Remove { .. } => {
                Err(Error::because(Code::Internal, "an order to remove that nobody verified"))
            }
        }
    }

    fn truncate(&self, ino: Ino, cut: u64, size: u64, epoch: u32) -> Result<TargetReply> {
        check_end(Some(size), 0)?;
        let (result, freed) = {
            let mut state = self.lock();
            let seen = match state.objects.get(&ino) {
                Some(object) => object.cut_epoch >= epoch,
                None => epoch == 0 && size == 0,
            };
            if seen {
                return Ok(state.reply(ino));
            }
            state.room_for_object(ino)?;
            let (object, store) = state.object(ino);
            let freed = object.cut(store, ino, cut.min(size), FILE_SIZE_MAX);
            object.cut_epoch = epoch;
            object.witness.size = size;
            object.witness.changes += 1;
            object.begin_epoch(epoch);
            let saved = state.save_cut(ino, cut.min(size));
            (saved.map(|()| state.reply(ino)), freed)
        };
        // It was cut, whether that is safe or not.
        self.free(freed);
        self.pump();
        result
    }

    fn punch(&self, now: Now, ino: Ino, extents: &[Extent]) -> Result<TargetReply> {
        if extents.len() > LIST_EXTENTS_MAX {
            let cause = format!("{} holes in one request", extents.len());
            return Err(Error::because(Code::TooMany, cause));
        }
        for extent in extents {
            check_end(Some(extent.offset), extent.length)?;
        }
        let mut freed = Freed::default();
        let reply = {
            let mut state = self.lock();
            let changed = state.chunks_within(ino, extents);
            state.unsaved(ino, &changed);
            let State { chunks: store, objects, .. } = &mut *state;
            if let Some(object) = objects.get_mut(&ino) {
                for extent in extents {
                    freed.append(object.cut(store, ino, extent.offset, extent.end()));
                }
                object.touch(now);
            }
            state.sort_unsaved(ino, &changed);
            state.reply(ino)
        };
        self.free(freed);
        self.pump();
        Ok(reply)
    }

    /// Frees objects; says how many of them were there. The caller has verified the order.
    pub fn remove(&self, inos: &[Ino]) -> u32 {
        let mut count = 0;
        for &ino in inos {
            let freed = {
                let mut state = self.lock();
                let Some(object) = state.objects.remove(&ino) else { continue };
                state.save_removal(ino);
                state.chunks.arena.discharge(OBJECT_COST);
                Freed::new(&mut state.chunks, ino, object.chunks)
            };
            self.free(freed);
            count += 1;
        }
        self.lock().memory_came_back();
        self.pump();
        count
    }

    fn free(&self, freed: Freed) {
        for batch in freed.0.chunks(FREE_BATCH) {
            let mut state = self.lock();
            for &chunk in batch {
                state.chunks.free_slot(chunk);
                state.chunks.arena.discharge(CHUNK_COST);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the books were open: they would be wrong")
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("member", &self.member()).finish_non_exhaustive()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Requests under way name the memory, which goes next.
        if let Some(disk) = &self.disk {
            disk.close();
        }
    }
}

impl State {
    /// The chunks of an object that these extents touch, and where; none if nobody keeps account of
    /// changes.
    fn chunks_within(&self, ino: Ino, extents: &[Extent]) -> Vec<(u64, u32, u32)> {
        let Some(object) = self.objects.get(&ino).filter(|_| self.is_kept()) else {
            return Vec::new();
        };
        let size = CHUNK_BYTES as u64;
        let touched = extents.iter().flat_map(|extent| {
            let range = extent.offset / size..extent.end().div_ceil(size);
            object.chunks.range(range).map(|(&index, _)| {
                let from = extent.offset.saturating_sub(index * size);
                let to = (extent.end() - index * size).min(size);
                (index, from as u32, to as u32)
            })
        });
        touched.collect()
    }

    /// Refuses to make an object for which not even the reserve has room.
    fn room_for_object(&mut self, ino: Ino) -> Result<()> {
        if !self.objects.contains_key(&ino) && self.is_tight() {
            return Err(Error::because(Code::NoSpace, kept::TIGHT));
        }
        let needed = self.chunks.arena.needed(&[0; arena::CLASSES], OBJECT_COST) as isize;
        if self.objects.contains_key(&ino) || self.make_room(needed) {
            return Ok(());
        }
        if self.room_comes() {
            return Err(Error::because(Code::Busy, "memory waits for the disk"));
        }
        Err(self.no_room())
    }
}

impl Object {
    fn next_data(&self, offset: u64) -> Option<u64> {
        let size = CHUNK_BYTES as u64;
        self.chunks.range(offset / size..).find_map(|(&index, chunk)| {
            let at = offset.max(index * size);
            (at < index * size + u64::from(chunk.length)).then_some(at)
        })
    }

    /// Everything behind the object's end is a hole.
    fn next_hole(&self, offset: u64) -> u64 {
        let size = CHUNK_BYTES as u64;
        let mut at = offset;
        for (&index, chunk) in self.chunks.range(offset / size..) {
            let end = index * size + u64::from(chunk.length);
            if index * size > at || end <= at {
                break;
            }
            at = end;
        }
        at
    }
}

fn check_end(offset: Option<u64>, length: u64) -> Result<()> {
    match offset.and_then(|offset| offset.checked_add(length)) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(()),
        _ => Err(Code::TooLarge.into()),
    }
}
