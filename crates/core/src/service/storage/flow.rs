//! What moves between a target's memory and its disk, and who waits for it.
//!
//! Nothing here blocks and no disk is touched under the lock: what is to be submitted is collected
//! ([`Flow::outbox`]) and goes out after it; completions come in by [`Target::disk_done`]; checksums
//! are computed between two holds of the lock, of slots that are pinned.
//!
//! **Written behind**: dirty chunks, oldest first, with their dirty neighbours, in requests of up to
//! [`WRITE_BYTES_MAX`] to one run of fresh blocks. **Fetched**: what a reader lacks, all of it at once
//! or nothing, so that readers that wait for memory hold none. What they lack stays in memory until
//! they have seen it. **Memory is handed out in the order of asking.**
//!
//! A failed write loses nothing: the chunk stays in memory, dirty, and goes elsewhere; fsync says so.
//! A disk that fails again and again is given up: what is in memory stays there, what needs room fails.

mod behind;

use behind::Batch;

use super::arena::{CHUNK_BYTES, CLASSES, Slot, WHOLE, class_of};
use super::chunk::{Chunk, Key};
use super::disk::{BLOCK_BYTES, DiskDone, DiskError, DiskOp, DiskRequest};
use super::fair::{LEAD_BYTES_MAX, Turns};
use super::tier::{Base, QUARTER_BYTES, QUARTERS, Tier, blocks_of};
use super::{State, Target};
use crate::checksum;
use crate::error::{Code, Error};
use crate::slice::Slice;
use crate::types::{ClientId, Ino, Now};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Waker;

/// Largest request to a disk: bytes.
pub(super) const WRITE_BYTES_MAX: usize = 1 << 20;
/// Most buffers in one request.
const BUFFERS_MAX: usize = 256;
/// Requests of write-behind under way on one disk.
const WRITES_MAX: usize = 8;
/// Requests to read under way on one disk, beyond which nothing is read ahead.
const READS_AHEAD_MAX: usize = 64;
/// Writes that fail one after the other, beyond which the disk is given up.
const FAILURES_ON_END_MAX: u32 = 4;
/// Chunks read at a time to be written.
const OVERLAYS_MAX: u64 = 16;
/// Dirty chunks looked at for one request.
const LOOKED_AT_MAX: usize = 256;

/// A part of a chunk on its way from disk into a slot of its own.
#[derive(Debug)]
struct Part {
    key: Key,
    /// First byte within the chunk: a multiple of a quarter.
    start: u32,
    /// Whole blocks.
    bytes: u32,
    slot: Slot,
    /// What was on disk when it was asked for.
    base: Base,
    /// It was read twice because the checksum was wrong.
    again: bool,
}

impl Part {
    fn block(&self) -> u64 {
        u64::from(self.base.block) + u64::from(self.start) / BLOCK_BYTES as u64
    }

    fn quarters(&self) -> u8 {
        let first = self.start as usize / QUARTER_BYTES;
        let last = (self.start as usize + self.bytes as usize).div_ceil(QUARTER_BYTES);
        (first..last).fold(0, |mask, quarter| mask | 1 << quarter)
    }
}

#[derive(Debug)]
struct Reader {
    waker: Waker,
    keys: Vec<Key>,
    /// What it waits for is asked for, and may not leave memory.
    holds: bool,
    error: Option<Error>,
}

/// What a disk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Requests to read.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Requests to write.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Requests that failed, and checksums that were wrong.
    pub errors: u64,
}

/// A target's disk at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStatus {
    /// Room for payload: bytes.
    pub capacity: u64,
    /// Of that in use: bytes.
    pub used: u64,
    /// Bytes in memory that are not on disk yet.
    pub dirty: u64,
    /// Requests under way.
    pub queued: u64,
    /// Requests of clients that wait for the disk.
    pub waiting: u64,
    /// Whether it was given up after errors, or (of a kept target) its journal was.
    pub failed: bool,
    /// What it has done.
    pub counters: DiskCounters,
}

/// Traffic between memory and disk.
pub(super) struct Flow {
    next: u64,
    outbox: Vec<DiskRequest>,
    wakers: Vec<Waker>,
    reads: BTreeMap<u64, Vec<Part>>,
    writes: BTreeMap<u64, Batch>,
    /// Requests before or behind these whose checksums somebody computes, without the lock.
    summing: u32,
    /// Quarters that are being read.
    fetching: BTreeMap<Key, u8>,
    /// Chunks that readers wait for, and which readers.
    held: BTreeSet<(Key, u64)>,
    readers: BTreeMap<u64, Reader>,
    /// Who waits for memory, in the order of asking.
    queue: VecDeque<u64>,
    /// Writers that were told that there is memory, and have not come back for it.
    returning: BTreeSet<ClientId>,
    pub(super) turns: Turns,
    failed: Option<DiskError>,
    failures_on_end: u32,
    counters: DiskCounters,
    /// Somebody was refused memory: write even what could stay.
    pub(super) urged: bool,
    /// Chunks that somebody wants to be on disk, and those of them that are on their way.
    wanted: BTreeSet<Key>,
    flying: BTreeSet<Key>,
    /// Which of them was taken last: the next is behind it, so that all get their turn.
    taken: Key,
    savers: Vec<Waker>,
    /// So many of the oldest dirty chunks are written though nobody asks.
    pub(super) sweep: u64,
    /// How often it was asked to write behind.
    pub(super) calls: u32,
    dirty_bytes_max: u64,
    background_bytes: u64,
}

impl std::fmt::Debug for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flow")
            .field("reads", &self.reads.len())
            .field("writes", &self.writes.len())
            .field("readers", &self.readers.len())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Flow {
    pub(super) fn new(memory: u64) -> Flow {
        Flow {
            next: 1,
            outbox: Vec::new(),
            wakers: Vec::new(),
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            summing: 0,
            fetching: BTreeMap::new(),
            held: BTreeSet::new(),
            readers: BTreeMap::new(),
            queue: VecDeque::new(),
            returning: BTreeSet::new(),
            turns: Turns::default(),
            failed: None,
            failures_on_end: 0,
            counters: DiskCounters::default(),
            urged: false,
            wanted: BTreeSet::new(),
            flying: BTreeSet::new(),
            taken: (Ino(0), 0),
            savers: Vec::new(),
            sweep: 0,
            calls: 0,
            // Half of memory is left for what is read, and for what clients have under way.
            dirty_bytes_max: memory / 2,
            background_bytes: memory / 8,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn submit(&mut self, tag: u64, op: DiskOp, block: u64, buffers: Vec<Slice>) {
        let request = DiskRequest { tag, op, block, buffers };
        let length = request.length() as u64;
        match op {
            DiskOp::Read => {
                self.counters.reads += 1;
                self.counters.bytes_read += length;
            }
            DiskOp::Write => {
                self.counters.writes += 1;
                self.counters.bytes_written += length;
            }
            DiskOp::Sync => (),
        }
        self.outbox.push(request);
    }

    /// Whoever has waited longest for memory looks again.
    pub(super) fn wake_first(&mut self) {
        if let Some(reader) = self.queue.front().and_then(|id| self.readers.get(id)) {
            self.wakers.push(reader.waker.clone());
        }
    }

    fn hold(&mut self, id: u64) {
        let Some(reader) = self.readers.get_mut(&id) else { return };
        if !std::mem::replace(&mut reader.holds, true) {
            self.held.extend(reader.keys.iter().map(|&key| (key, id)));
        }
    }

    /// The readers that hold a chunk.
    fn holders(&self, key: Key) -> impl Iterator<Item = u64> {
        self.held.range((key, 0)..=(key, u64::MAX)).map(|&(_, id)| id)
    }

    /// Has chunks written to disk.
    pub(super) fn want(&mut self, keys: &[Key]) {
        self.wanted.extend(keys);
    }

    /// Whether a chunk is still wanted on disk.
    pub(super) fn is_wanted(&self, key: Key) -> bool {
        self.wanted.contains(&key) || self.flying.contains(&key)
    }

    /// Somebody waits for chunks to be on disk.
    pub(super) fn wait_saved(&mut self, waker: &Waker) {
        if !self.savers.iter().any(|other| other.will_wake(waker)) {
            self.savers.push(waker.clone());
        }
    }

    /// Why the disk was given up, if it was.
    pub(super) fn failure(&self) -> Option<&DiskError> {
        self.failed.as_ref()
    }

    /// A chunk's way to disk has ended.
    fn landed(&mut self, key: Key) {
        if self.flying.remove(&key) {
            self.wakers.append(&mut self.savers);
        }
    }

    /// Nothing that is wanted can be written now: whoever waits must help himself.
    fn give_up_wanted(&mut self) {
        if !self.wanted.is_empty() {
            self.wanted.clear();
            self.wakers.append(&mut self.savers);
        }
    }

    /// A reader has what it wanted, or gave up.
    pub(super) fn leave(&mut self, id: u64) {
        let Some(reader) = self.readers.remove(&id) else { return };
        if reader.holds {
            for &key in &reader.keys {
                self.held.remove(&(key, id));
            }
        }
        self.queue.retain(|&other| other != id);
        self.wake_first();
    }
}

/// What keeps a checksum from being right in another place: which chunk of which file in which life
/// of which target it is.
pub(super) fn salt(life: u64, (ino, index): Key, quarter: usize) -> u32 {
    let mut bytes = [0; 25];
    bytes[0..8].copy_from_slice(&life.to_le_bytes());
    bytes[8..16].copy_from_slice(&ino.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&index.to_le_bytes());
    bytes[24] = quarter as u8;
    checksum::crc32c(&bytes)
}

impl State {
    /// Takes clean chunks out of memory until so many blocks can be had. Says whether that is so.
    pub(super) fn make_room(&mut self, blocks: isize) -> bool {
        let State { chunks: store, objects, flow, .. } = self;
        let Some(flow) = flow else { return store.arena.available() >= blocks };
        while store.arena.available() < blocks {
            let Some(tier) = &mut store.tier else { return false };
            let arena = &store.arena;
            let kept = |tier: &Tier, id: u32| {
                let key = tier.record(id).key;
                if !flow.held.is_empty() && flow.holders(key).next().is_some() {
                    return true;
                }
                // What somebody is reading gives no memory back yet.
                let chunk = objects.get(&key.0).and_then(|object| object.chunks.get(&key.1));
                chunk.and_then(|chunk| chunk.slot()).is_some_and(|slot| arena.references(slot) > 1)
            };
            let Some(id) = tier.victim(kept) else { return false };
            let key = tier.record(id).key;
            if let Some(chunk) = chunk_of(objects, key, id) {
                let evicted = store.evict(key, *chunk);
                *chunk = evicted;
            }
        }
        true
    }

    /// Whether memory will come back by itself.
    pub(super) fn room_comes(&mut self) -> bool {
        let State { chunks: store, flow, .. } = self;
        let (Some(flow), Some(tier)) = (flow, &store.tier) else { return false };
        flow.urged = true;
        !flow.writes.is_empty()
            || !flow.reads.is_empty()
            || flow.summing > 0
            || (flow.failed.is_none()
                && tier.waiting() > 0
                && (tier.has_room() || tier.blocks_come()))
            // What is read to be written gives its blocks back.
            || (flow.failed.is_none() && tier.overlays().0 > 0)
    }

    /// Why a target with a disk has no room.
    pub(super) fn no_room(&self) -> Error {
        match self.flow.as_ref().and_then(|flow| flow.failed.clone()) {
            Some(error) => {
                let cause = format!("memory is full, and the disk under it has failed: {error}");
                Error::because(Code::Disk, cause)
            }
            None => Code::NoSpace.into(),
        }
    }

    /// Blocks that only reading from disk and writing to it may use.
    pub(super) fn floor(&self, overwrites: bool) -> isize {
        let reserve = self.chunks.reserve as isize;
        match (self.flow.is_some(), overwrites) {
            (true, true) => reserve / 2,
            (false, true) => 0,
            (_, false) => reserve,
        }
    }

    /// Begins to read quarters of chunks into fresh memory: all or, for lack of it, none.
    pub(super) fn fetch(&mut self, wanted: &[(Key, u8)], floor: isize) -> bool {
        let mut drafts: Vec<(Key, Base, usize, usize, u8)> = Vec::new();
        for &(key, mask) in wanted {
            let Some(base) = self.base(key) else { continue };
            let mut quarter = 0;
            while quarter < QUARTERS {
                if mask >> quarter & 1 == 0 {
                    quarter += 1;
                    continue;
                }
                let first = quarter;
                while quarter < QUARTERS && mask >> quarter & 1 == 1 {
                    quarter += 1;
                }
                let start = first * QUARTER_BYTES;
                let end = (quarter * QUARTER_BYTES).min(base.blocks() * BLOCK_BYTES);
                if start < end {
                    drafts.push((key, base, start, end - start, class_of(end - start)));
                }
            }
        }
        let mut counts = [0; CLASSES];
        drafts.iter().for_each(|draft| counts[usize::from(draft.4)] += 1);
        let charge = drafts.len() as u64 * super::chunk::cost_max(2);
        let needed = self.chunks.arena.needed(&counts, charge) as isize;
        if !self.make_room(needed + floor) {
            return false;
        }
        let arena = &mut self.chunks.arena;
        let Some(whole) = arena.allocate_blocks(counts[usize::from(WHOLE)]) else { return false };
        let mut whole = whole.into_iter();
        let flow = self.flow.as_mut().expect("a target with a disk");
        let mut parts: Vec<Part> = Vec::new();
        for (key, base, start, bytes, class) in drafts {
            let slot = match class {
                WHOLE => whole.next(),
                class => arena.allocate(class),
            };
            let slot = slot.expect("room was made");
            let part =
                Part { key, start: start as u32, bytes: bytes as u32, slot, base, again: false };
            *flow.fetching.entry(key).or_default() |= part.quarters();
            parts.push(part);
        }
        // What lies side by side on disk is one request.
        let mut rest = parts.into_iter().peekable();
        while let Some(part) = rest.next() {
            let (mut end, mut sum) = (part.block(), 0);
            let mut group = vec![part];
            loop {
                let last = &group[group.len() - 1];
                end += blocks_of(last.bytes) as u64;
                sum += last.bytes as usize;
                let joins = |next: &Part| {
                    next.block() == end && sum + next.bytes as usize <= WRITE_BYTES_MAX
                };
                match rest.next_if(joins) {
                    Some(next) if group.len() < BUFFERS_MAX => group.push(next),
                    Some(next) => {
                        self.read(std::mem::replace(&mut group, vec![next]));
                        sum = 0;
                    }
                    None => break,
                }
            }
            self.read(group);
        }
        true
    }

    /// Submits a request to read parts that lie side by side.
    fn read(&mut self, parts: Vec<Part>) {
        let arena = &self.chunks.arena;
        let buffers = join(parts.iter().map(|part| arena.slice(part.slot, part.bytes)));
        let block = parts[0].block();
        let flow = self.flow.as_mut().expect("a target with a disk");
        let tag = flow.number();
        flow.reads.insert(tag, parts);
        flow.submit(tag, DiskOp::Read, block, buffers);
    }

    fn base(&self, key: Key) -> Option<Base> {
        let chunk = self.objects.get(&key.0)?.chunks.get(&key.1)?;
        self.chunks.tier.as_ref().filter(|_| chunk.record != 0)?.base(chunk.record)
    }

    /// Quarters of a chunk of which something between the two is on disk only.
    fn lacks(&self, key: Key, chunk: Chunk, from: u32, to: u32) -> u8 {
        let mut mask = 0;
        self.chunks.missing(key, chunk, (from, to), |from, to| {
            let last = (to as usize).div_ceil(QUARTER_BYTES);
            (from as usize / QUARTER_BYTES..last).for_each(|quarter| mask |= 1u8 << quarter);
        });
        mask
    }

    /// Quarters of chunks that a reader lacks, and of those the ones that nobody reads yet.
    pub(super) fn lacking(
        &self,
        ino: Ino,
        extents: impl Iterator<Item = (u64, u64)>,
        whole: bool,
    ) -> (Vec<Key>, Vec<(Key, u8)>) {
        let size = CHUNK_BYTES as u64;
        let (mut keys, mut wanted): (Vec<Key>, Vec<(Key, u8)>) = (Vec::new(), Vec::new());
        let (Some(flow), Some(object)) = (&self.flow, self.objects.get(&ino)) else {
            return (keys, wanted);
        };
        for (start, end) in extents.filter(|(start, end)| start < end) {
            for (&index, &chunk) in object.chunks.range(start / size..end.div_ceil(size)) {
                let from = start.max(index * size) - index * size;
                let to = end.min((index + 1) * size) - index * size;
                let key = (ino, index);
                let mut mask = self.lacks(key, chunk, from as u32, to as u32);
                if mask == 0 {
                    continue;
                }
                if whole {
                    mask = self.lacks(key, chunk, 0, CHUNK_BYTES as u32);
                }
                keys.push(key);
                let under_way = flow.fetching.get(&key).copied().unwrap_or(0);
                if mask & !under_way != 0 {
                    match wanted.last_mut() {
                        Some(last) if last.0 == key => last.1 |= mask & !under_way,
                        _ => wanted.push((key, mask & !under_way)),
                    }
                }
            }
        }
        if wanted.len() > 1 && !wanted.is_sorted_by_key(|want| want.0) {
            wanted.sort_unstable_by_key(|want| want.0);
            wanted.dedup_by(|next, kept| {
                let same = next.0 == kept.0;
                kept.1 |= if same { next.1 } else { 0 };
                same
            });
        }
        (keys, wanted)
    }

    /// A reader that lacks something asks for it, and waits. Fails where no memory will ever come.
    pub(super) fn wait_for(
        &mut self,
        id: &mut Option<u64>,
        waker: &Waker,
        keys: Vec<Key>,
        wanted: &[(Key, u8)],
        all: impl FnOnce(&State) -> Vec<Key>,
    ) -> Result<(), Error> {
        let flow = self.flow.as_mut().expect("a target with a disk");
        let number = *id.get_or_insert_with(|| flow.number());
        let reader = flow.readers.entry(number).or_insert_with(|| Reader {
            waker: waker.clone(),
            keys,
            holds: false,
            error: None,
        });
        reader.waker.clone_from(waker);
        let holds = reader.holds;
        let first = flow.queue.front().is_none_or(|&front| front == number) || holds;
        if first && (wanted.is_empty() || self.fetch(wanted, self.floor(false) / 4)) {
            let all = all(self);
            let flow = self.flow.as_mut().expect("a target with a disk");
            if !holds && let Some(reader) = flow.readers.get_mut(&number) {
                // All that it names stays from now on, also what is there already.
                reader.keys = all;
            }
            flow.hold(number);
            if flow.queue.front() == Some(&number) {
                flow.queue.pop_front();
                flow.wake_first();
            }
            return Ok(());
        }
        if first && !self.room_comes() && self.tickets == 0 {
            let error = self.no_room();
            self.flow.as_mut().expect("a target with a disk").leave(number);
            *id = None;
            return Err(error);
        }
        let flow = self.flow.as_mut().expect("a target with a disk");
        if !flow.queue.contains(&number) {
            flow.queue.push_back(number);
        }
        Ok(())
    }

    /// A writer waits for memory: behind the others, unless it has waited already. Gives its number.
    pub(super) fn queue_up(&mut self, client: ClientId, waker: &Waker) -> u64 {
        let flow = self.flow.as_mut().expect("a target with a disk");
        let number = flow.number();
        let waker = waker.clone();
        flow.readers.insert(number, Reader { waker, keys: Vec::new(), holds: false, error: None });
        match flow.returning.remove(&client) {
            true => flow.queue.push_front(number),
            false => flow.queue.push_back(number),
        }
        number
    }

    /// Whether it is somebody's turn who waits for memory; else the waker is called then.
    pub(super) fn is_first(&mut self, number: u64, waker: &Waker) -> bool {
        let flow = self.flow.as_mut().expect("a target with a disk");
        if let Some(reader) = flow.readers.get_mut(&number) {
            reader.waker.clone_from(waker);
        }
        flow.queue.front() == Some(&number)
    }

    /// A writer is told that there is memory now.
    pub(super) fn leave_queue(&mut self, number: u64, client: ClientId) {
        let flow = self.flow.as_mut().expect("a target with a disk");
        flow.leave(number);
        flow.returning.insert(client);
        if flow.queue.is_empty() {
            // Nobody is in the way of those who come back.
            flow.returning.clear();
        }
    }

    /// What went wrong for a reader, if anything did.
    pub(super) fn reader_error(&mut self, id: u64) -> Option<Error> {
        self.flow.as_mut()?.readers.get_mut(&id)?.error.take()
    }

    /// Readers in the queue look again: memory may have come back.
    pub(super) fn memory_came_back(&mut self) {
        if let Some(flow) = &mut self.flow
            && !flow.queue.is_empty()
        {
            flow.wake_first();
        }
    }

    /// Parts of chunks have come from disk, or have not.
    fn fetched(&mut self, parts: Vec<Part>, wrong: &[usize], result: &Result<(), DiskError>) {
        let mut failed: Vec<(Key, Error)> = Vec::new();
        for (at, mut part) in parts.into_iter().enumerate() {
            let key = part.key;
            let current = self
                .base(key)
                .filter(|base| Base { visible: part.base.visible, ..*base } == part.base);
            let bad = wrong.contains(&at);
            if current.is_some() && result.is_ok() && bad && !part.again {
                // Once more: what was read may have been on its way to somewhere else.
                part.again = true;
                self.read(vec![part]);
                continue;
            }
            let flow = self.flow.as_mut().expect("a target with a disk");
            if let Some(mask) = flow.fetching.get_mut(&key) {
                *mask &= !part.quarters();
                if *mask == 0 {
                    flow.fetching.remove(&key);
                }
            }
            // Those that hold nothing are in the queue.
            let wakers = flow.holders(key).filter_map(|id| flow.readers.get(&id));
            let wakers: Vec<Waker> = wakers.map(|reader| reader.waker.clone()).collect();
            flow.wakers.extend(wakers);
            let State { chunks: store, objects, .. } = self;
            let chunk = objects.get_mut(&key.0).and_then(|object| object.chunks.get_mut(&key.1));
            let (Some(_), Some(chunk)) = (current, chunk) else {
                store.arena.release(part.slot);
                continue;
            };
            if result.is_ok() && !bad {
                let new =
                    store.install(key, *chunk, (part.start, part.start + part.bytes), part.slot);
                *chunk = new;
                continue;
            }
            store.arena.release(part.slot);
            let tier = store.tier.as_mut().expect("a target with a disk");
            tier.set_stuck(chunk.record);
            let place = format!(
                "inode {}, object offset {}",
                key.0.0,
                key.1 * CHUNK_BYTES as u64 + u64::from(part.start)
            );
            let cause = match result {
                Err(error) => format!("{place}: {error}"),
                Ok(()) => format!("{place}: wrong checksum on disk; the bytes are lost"),
            };
            let error = Error::because(Code::Disk, cause);
            if tier.record(chunk.record).dirty
                && let Some(object) = objects.get_mut(&key.0)
            {
                object.trouble = Some(Box::new(error.clone()));
            }
            failed.push((key, error));
        }
        let flow = self.flow.as_mut().expect("a target with a disk");
        if !failed.is_empty() {
            flow.counters.errors += 1;
        }
        for (key, error) in failed {
            let holders: Vec<u64> = flow.holders(key).collect();
            for id in holders {
                if let Some(reader) = flow.readers.get_mut(&id) {
                    reader.error.get_or_insert_with(|| error.clone());
                }
            }
        }
        flow.wake_first();
    }

    pub(super) fn disk_status(&self) -> Option<DiskStatus> {
        let (flow, tier) = (self.flow.as_ref()?, self.chunks.tier.as_ref()?);
        let journal = tier.ledger.as_ref().and_then(|ledger| ledger.journal.as_ref());
        let journal_failed = journal.is_some_and(|journal| journal.failure().is_some());
        let mut counters = flow.counters;
        counters.errors += u64::from(journal_failed);
        Some(DiskStatus {
            capacity: tier.space.blocks() * BLOCK_BYTES as u64,
            used: tier.space.used() * BLOCK_BYTES as u64,
            dirty: tier.dirty_bytes(),
            queued: (flow.reads.len() + flow.writes.len()) as u64,
            waiting: (flow.readers.len() + flow.turns.len()) as u64,
            failed: flow.failed.is_some() || journal_failed,
            counters,
        })
    }

    /// Whether the disk is not so busy that reading ahead would only make others wait, and nobody
    /// waits for memory.
    pub(super) fn disk_reads_room(&self) -> bool {
        self.flow.as_ref().is_some_and(|flow| {
            flow.reads.len() < READS_AHEAD_MAX && flow.queue.is_empty() && flow.failed.is_none()
        })
    }

    /// Whether writers are ahead of the disk: those that are so many bytes ahead of other writers are it
    /// sooner.
    pub(super) fn ahead(&self, lead: u64) -> bool {
        let (Some(flow), Some(tier)) = (&self.flow, &self.chunks.tier) else { return false };
        let dirty = tier.dirty_bytes() + lead.min(LEAD_BYTES_MAX);
        flow.failed.is_none() && dirty > flow.dirty_bytes_max && tier.has_room()
    }
}

impl Target {
    /// A disk has ended requests. To be called with every completion, from any thread; also with none,
    /// where the disk was to be looked after ([`super::disk::Disk::call_again`]).
    pub fn disk_done(&self, _now: Now, done: Vec<DiskDone>) {
        let mut read = Vec::with_capacity(done.len());
        if !done.is_empty() {
            let mut state = self.lock();
            for DiskDone { tag, result } in done {
                let State { chunks: store, flow, .. } = &mut *state;
                let Some(flow) = flow else { return };
                if let Some(parts) = flow.reads.remove(&tag) {
                    flow.summing += 1;
                    let places = parts.iter().map(|part| store.arena.slice(part.slot, part.bytes));
                    let places: Vec<Slice> = places.collect();
                    read.push((parts, places, result));
                } else if let Some(batch) = flow.writes.remove(&tag) {
                    state.written(batch, result);
                }
            }
        }
        if !read.is_empty() {
            // The slots are these parts' own until they are put into the map.
            let wrong: Vec<Vec<usize>> = (read.iter())
                .map(|(parts, places, result)| match result {
                    Ok(()) => self.spoilt(parts, places),
                    Err(_) => Vec::new(),
                })
                .collect();
            let mut state = self.lock();
            for ((parts, _, result), wrong) in read.into_iter().zip(wrong) {
                state.flow.iter_mut().for_each(|flow| flow.summing -= 1);
                state.fetched(parts, &wrong, &result);
            }
        }
        self.pump();
    }

    /// Which parts have not come from disk as they were written there.
    fn spoilt(&self, parts: &[Part], places: &[Slice]) -> Vec<usize> {
        let mut wrong = Vec::new();
        for (at, (part, place)) in parts.iter().zip(places).enumerate() {
            // SAFETY: the slot holds all of the part, which the disk has filled, and nobody else
            // knows the slot. The target, hence the memory, outlives this call.
            let bytes =
                unsafe { std::slice::from_raw_parts(place.pointer.cast_const(), place.length) };
            if !self.intact(part, bytes) {
                wrong.push(at);
            }
        }
        wrong
    }

    /// Whoever waits for memory or the disk, if he does, is dropped.
    pub(super) fn give_up(&self, number: Option<u64>) {
        let Some(number) = number else { return };
        // A poisoned lock means that somebody panicked and said so: no second panic here.
        let Ok(mut state) = self.state.lock() else { return };
        state.flow.iter_mut().for_each(|flow| flow.leave(number));
        drop(state);
        self.pump();
    }

    /// Whether what has come from disk is what was written there.
    fn intact(&self, part: &Part, bytes: &[u8]) -> bool {
        // What was written ends before its last block does.
        let written = part.base.length.saturating_sub(part.start).min(part.bytes) as usize;
        let first = part.start as usize / QUARTER_BYTES;
        bytes[..written].chunks(QUARTER_BYTES).zip(first..).all(|(bytes, quarter)| {
            let salt = salt(self.life(), part.key, quarter);
            checksum::append(salt, bytes) == part.base.sums[quarter]
        })
    }

    fn life(&self) -> u64 {
        self.incarnation.0
    }

    /// Writes behind, submits what is to be submitted, wakes who is to be woken. To be called after
    /// whatever may have changed that, without the lock. Costs a branch where there is no disk.
    pub(super) fn pump(&self) {
        if self.disk.is_some() {
            self.pump_disk();
        }
    }

    fn pump_disk(&self) {
        loop {
            let (batch, out, wakers, pointers) = {
                let mut state = self.lock();
                state.keep_up();
                let batch = state.draft();
                let pointers: Vec<_> = batch
                    .iter()
                    .flat_map(|batch| &batch.items)
                    .map(|item| state.chunks.arena.slice(item.from, item.length))
                    .collect();
                let ahead = state.ahead(0);
                let flow = state.flow.as_mut().expect("a target with a disk");
                let (writes, reads) = (!flow.writes.is_empty(), !flow.reads.is_empty());
                if batch.is_none() && flow.summing == 0 && !writes && (!ahead || !reads) {
                    // No write will end and let them pass.
                    flow.turns.pass(u64::MAX, None, &mut flow.wakers);
                }
                let out = std::mem::take(&mut flow.outbox);
                (batch, out, std::mem::take(&mut flow.wakers), pointers)
            };
            self.send(out);
            wakers.into_iter().for_each(Waker::wake);
            let Some(mut batch) = batch else { return };
            for (item, slice) in batch.items.iter_mut().zip(&pointers) {
                // SAFETY: the slot is pinned, so that nobody writes to it, and holds as many bytes.
                let bytes = unsafe { std::slice::from_raw_parts(slice.pointer, slice.length) };
                for (quarter, part) in bytes.chunks(QUARTER_BYTES).enumerate() {
                    let salt = salt(self.life(), item.key, quarter);
                    item.sums[quarter] = checksum::append(salt, part);
                }
            }
            let whole = |slice: Slice| Slice {
                length: slice.length.next_multiple_of(BLOCK_BYTES),
                ..slice
            };
            let buffers = join(pointers.into_iter().map(whole));
            let out = {
                let mut state = self.lock();
                let flow = state.flow.as_mut().expect("a target with a disk");
                let tag = flow.number();
                let block = u64::from(batch.block);
                flow.summing -= 1;
                flow.writes.insert(tag, batch);
                flow.submit(tag, DiskOp::Write, block, buffers);
                std::mem::take(&mut flow.outbox)
            };
            self.send(out);
            // To sum up what is written takes its time, in which nobody else is served.
            if self.disk.as_ref().is_some_and(|disk| disk.call_again()) {
                return;
            }
        }
    }

    fn send(&self, requests: Vec<DiskRequest>) {
        if let Some(disk) = &self.disk {
            requests.into_iter().for_each(|request| disk.submit(request));
        }
    }
}

/// The chunk that a record is of, if it still is.
fn chunk_of(objects: &mut BTreeMap<Ino, super::Object>, key: Key, id: u32) -> Option<&mut Chunk> {
    let chunk = objects.get_mut(&key.0)?.chunks.get_mut(&key.1)?;
    (chunk.record == id).then_some(chunk)
}

/// Slices in order, neighbours joined.
fn join(slices: impl Iterator<Item = Slice>) -> Vec<Slice> {
    let mut joined: Vec<Slice> = Vec::new();
    for slice in slices {
        match joined.last_mut() {
            Some(last) if last.pointer.wrapping_add(last.length) == slice.pointer => {
                last.length += slice.length;
            }
            _ => joined.push(slice),
        }
    }
    joined
}
