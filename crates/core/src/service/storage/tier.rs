//! What a target with a disk knows of each chunk beside its memory: the copy on disk, whether memory
//! is ahead of it, and which chunk leaves memory next.
//!
//! A chunk with a disk under it has a *record*. Its *base* is the copy on disk. Memory over the base
//! wins: *dirty* chunks have bytes in memory that the base has not, *clean* ones none, so that their
//! memory can go at any time. A chunk that memory covers wholly and that is dirty has no base any
//! more: its blocks were given back.
//!
//! **Clean chunks leave by S3-FIFO** (two queues and the memory of what left lately): what is read
//! once, as by a scan, leaves from the small queue without touching the large one, and a hit costs a
//! counter under the lock and no movement in a list, as it would with LRU, 2Q or ARC. CLOCK-Pro is as
//! good against scans but needs its own hands over the ghosts; here the ghosts are free, since a
//! chunk on disk has its record anyway.

use super::arena::{Arena, CHUNK_BYTES, Slot};
use super::chunk::Key;
use super::disk::BLOCK_BYTES;
use super::space::Space;
use crate::types::Ino;

/// Bytes of a chunk that share a checksum, and the least that is read of it.
pub(super) const QUARTER_BYTES: usize = CHUNK_BYTES / QUARTERS;
pub(super) const QUARTERS: usize = 4;
/// Heap for a record: bytes.
pub(super) const RECORD_COST: u64 = size_of::<Record>() as u64;
/// Records made at once: charged together, and never given back.
const PAGE_RECORDS: usize = 256;
/// How often a hit is counted.
const FREQUENCY_MAX: u8 = 3;
/// The small queue's share of clean memory: 1 in so many.
const SMALL_SHARE: u64 = 10;
const NONE: u32 = 0;

/// A chunk's copy on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    /// First block; never 0.
    pub(super) block: u32,
    /// Bytes written there.
    pub(super) length: u32,
    /// Bytes of those that still count: a truncation may have cut some off.
    pub(super) visible: u32,
    /// Checksums of the quarters.
    pub(super) sums: [u32; QUARTERS],
}

impl Base {
    pub(super) fn blocks(&self) -> usize {
        blocks_of(self.length)
    }
}

/// Blocks that so many bytes take on disk.
pub(super) fn blocks_of(length: u32) -> usize {
    (length as usize).div_ceil(BLOCK_BYTES)
}

/// Which queue a record is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Queue {
    /// None: nothing in memory, or being written.
    #[default]
    None,
    /// Memory is ahead of the disk, oldest first.
    Dirty,
    /// The same, but part of the chunk is on disk only: it must be read before it can be written, or
    /// be overwritten too.
    Overlay,
    /// Clean, and not long there.
    Small,
    /// Clean, and read again since.
    Main,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) key: Key,
    base: Base,
    previous: u32,
    next: u32,
    /// Memory that the chunk holds: bytes.
    held: u32,
    /// The count of evictions when it left memory; 0: it did not lately.
    left: u32,
    queue: Queue,
    frequency: u8,
    pub(super) dirty: bool,
    /// What is on disk cannot be read: no use trying to write the rest beside it.
    pub(super) stuck: bool,
}

const FRESH: Record = Record {
    key: (Ino(0), 0),
    base: Base { block: 0, length: 0, visible: 0, sums: [0; QUARTERS] },
    previous: NONE,
    next: NONE,
    held: 0,
    left: 0,
    queue: Queue::None,
    frequency: 0,
    dirty: false,
    stuck: false,
};

#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    first: u32,
    last: u32,
    count: u64,
    bytes: u64,
}

/// The books of a target's disk.
pub(super) struct Tier {
    pages: Vec<Box<[Record; PAGE_RECORDS]>>,
    /// Unused records, linked by `next`.
    unused: u32,
    queues: [Ends; 5],
    pub(super) space: Space,
    /// A slot of zeros, for holes over what is on disk.
    pub(super) zeros: Slot,
    dirty_bytes: u64,
    evictions: u32,
}

impl std::fmt::Debug for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tier")
            .field("queues", &self.queues)
            .field("dirty_bytes", &self.dirty_bytes)
            .finish_non_exhaustive()
    }
}

impl Tier {
    /// Takes a block of the arena; none: there is none.
    pub(super) fn new(arena: &mut Arena, blocks: u64) -> Option<Tier> {
        let space = Space::new(blocks);
        arena.charge(space.cost());
        let zeros = arena.allocate(super::arena::WHOLE)?;
        arena.zero(zeros, 0, CHUNK_BYTES);
        let queues = [Ends::default(); 5];
        Some(Tier {
            pages: Vec::new(),
            unused: NONE,
            queues,
            space,
            zeros,
            dirty_bytes: 0,
            evictions: 0,
        })
    }

    pub(super) fn record(&self, id: u32) -> &Record {
        let at = id as usize - 1;
        &self.pages[at / PAGE_RECORDS][at % PAGE_RECORDS]
    }

    fn entry(&mut self, id: u32) -> &mut Record {
        let at = id as usize - 1;
        &mut self.pages[at / PAGE_RECORDS][at % PAGE_RECORDS]
    }

    pub(super) fn set_stuck(&mut self, id: u32) {
        self.entry(id).stuck = true;
    }

    /// A record for a chunk that begins.
    pub(super) fn add(&mut self, arena: &mut Arena, key: Key) -> u32 {
        if self.unused == NONE {
            let first = (self.pages.len() * PAGE_RECORDS) as u32 + 1;
            self.pages.push(Box::new([FRESH; PAGE_RECORDS]));
            arena.charge(PAGE_RECORDS as u64 * RECORD_COST);
            for id in (first..first + PAGE_RECORDS as u32).rev() {
                self.entry(id).next = self.unused;
                self.unused = id;
            }
        }
        let id = self.unused;
        self.unused = self.record(id).next;
        *self.entry(id) = Record { key, ..FRESH };
        id
    }

    /// Heap for all records: bytes.
    #[cfg(test)]
    pub(super) fn pages_cost(&self) -> u64 {
        (self.pages.len() * PAGE_RECORDS) as u64 * RECORD_COST
    }

    /// A chunk has ended.
    pub(super) fn remove(&mut self, id: u32) {
        self.drop_base(id);
        self.unlink(id);
        self.clear_dirty(id);
        let unused = self.unused;
        *self.entry(id) = Record { next: unused, ..FRESH };
        self.unused = id;
    }

    pub(super) fn base(&self, id: u32) -> Option<Base> {
        let base = self.record(id).base;
        (base.block != 0).then_some(base)
    }

    /// Bytes of the chunk that are on disk.
    pub(super) fn visible(&self, id: u32) -> u32 {
        if id == NONE { 0 } else { self.record(id).base.visible }
    }

    /// What is on disk does not count any more.
    pub(super) fn drop_base(&mut self, id: u32) {
        if let Some(base) = self.base(id) {
            self.space.release(base.block, base.blocks());
            self.entry(id).base = FRESH.base;
        }
    }

    /// Bytes from `length` on do not count any more.
    pub(super) fn cut(&mut self, id: u32, length: u32) {
        if length == 0 {
            return self.drop_base(id);
        }
        let base = &mut self.entry(id).base;
        base.visible = base.visible.min(length);
    }

    /// The chunk was written to disk as it is.
    pub(super) fn written(&mut self, id: u32, base: Base) {
        self.drop_base(id);
        self.clear_dirty(id);
        let record = self.entry(id);
        record.base = base;
        record.stuck = false;
        let queue = if record.frequency > 1 { Queue::Main } else { Queue::Small };
        self.put(id, queue);
    }

    fn clear_dirty(&mut self, id: u32) {
        let record = *self.record(id);
        if record.dirty {
            self.dirty_bytes -= u64::from(record.held);
            self.entry(id).dirty = false;
        }
    }

    /// Memory is ahead of the disk from now on.
    pub(super) fn set_dirty(&mut self, id: u32, covered: bool) {
        let record = *self.record(id);
        if !record.dirty {
            self.dirty_bytes += u64::from(record.held);
            self.entry(id).dirty = true;
        }
        let queue = if covered { Queue::Dirty } else { Queue::Overlay };
        if record.queue != queue {
            self.put(id, queue);
        }
    }

    /// What was missing has come in.
    pub(super) fn set_covered(&mut self, id: u32, covered: bool) {
        let record = *self.record(id);
        if !covered || !record.dirty {
            return;
        }
        // The disk's copy is of no more use: its room is.
        self.drop_base(id);
        if record.queue == Queue::Overlay {
            self.put(id, Queue::Dirty);
        }
    }

    /// The chunk holds so much memory now.
    pub(super) fn set_held(&mut self, id: u32, held: u32) {
        let record = *self.record(id);
        if record.dirty {
            self.dirty_bytes = self.dirty_bytes - u64::from(record.held) + u64::from(held);
        }
        let ends = &mut self.queues[record.queue as usize];
        if record.queue != Queue::None {
            ends.bytes = ends.bytes - u64::from(record.held) + u64::from(held);
        }
        self.entry(id).held = held;
    }

    /// Bytes in memory that the disk has not.
    pub(super) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Bytes in memory that may go.
    pub(super) fn clean_bytes(&self) -> u64 {
        self.queues[Queue::Small as usize].bytes + self.queues[Queue::Main as usize].bytes
    }

    /// The oldest chunk that must be read before it can be written.
    pub(super) fn oldest_overlay(&self) -> Option<u32> {
        Some(self.queues[Queue::Overlay as usize].first).filter(|&id| id != NONE)
    }

    /// Chunks that must be read before they can be written, and the memory that they hold: bytes.
    pub(super) fn overlays(&self) -> (u64, u64) {
        let ends = self.queues[Queue::Overlay as usize];
        (ends.count, ends.bytes)
    }

    /// Memory of chunks that wait to be written: bytes.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.queues[Queue::Dirty as usize].bytes
    }

    /// Chunks that wait to be written.
    pub(super) fn waiting(&self) -> u64 {
        self.queues[Queue::Dirty as usize].count
    }

    /// A reader has found the chunk in memory.
    pub(super) fn touch(&mut self, id: u32) {
        let record = self.entry(id);
        record.frequency = (record.frequency + 1).min(FREQUENCY_MAX);
    }

    /// Bytes came in from disk: in which queue the chunk waits for its end.
    pub(super) fn fetched(&mut self, id: u32) {
        let record = *self.record(id);
        if record.dirty || record.queue != Queue::None {
            return;
        }
        // Ghosts are remembered for as long as memory takes to be renewed once.
        let memory =
            self.queues[Queue::Small as usize].count + self.queues[Queue::Main as usize].count;
        let ghost =
            record.left != 0 && u64::from(self.evictions.wrapping_sub(record.left)) < memory;
        self.put(id, if ghost { Queue::Main } else { Queue::Small });
    }

    /// Moves a record to the end of a queue.
    pub(super) fn put(&mut self, id: u32, queue: Queue) {
        self.unlink(id);
        if queue == Queue::None {
            return;
        }
        let ends = self.queues[queue as usize];
        let record = self.entry(id);
        (record.queue, record.previous, record.next) = (queue, ends.last, NONE);
        let held = u64::from(record.held);
        match ends.last {
            NONE => self.queues[queue as usize].first = id,
            last => self.entry(last).next = id,
        }
        let ends = &mut self.queues[queue as usize];
        ends.last = id;
        ends.count += 1;
        ends.bytes += held;
    }

    /// The oldest chunk that waits to be written.
    pub(super) fn oldest_dirty(&self) -> Option<u32> {
        Some(self.queues[Queue::Dirty as usize].first).filter(|&id| id != NONE)
    }

    /// Whether it waits to be written.
    pub(super) fn waits(&self, id: u32) -> bool {
        self.record(id).queue == Queue::Dirty
    }

    fn unlink(&mut self, id: u32) {
        let Record { queue, previous, next, held, .. } = *self.record(id);
        if queue == Queue::None {
            return;
        }
        match previous {
            NONE => self.queues[queue as usize].first = next,
            previous => self.entry(previous).next = next,
        }
        match next {
            NONE => self.queues[queue as usize].last = previous,
            next => self.entry(next).previous = previous,
        }
        let ends = &mut self.queues[queue as usize];
        ends.count -= 1;
        ends.bytes -= u64::from(held);
        let record = self.entry(id);
        (record.queue, record.previous, record.next) = (Queue::None, NONE, NONE);
    }

    /// The clean chunk that leaves memory next, unless `kept` says otherwise; it is in no queue then.
    pub(super) fn victim(&mut self, mut kept: impl FnMut(&Tier, u32) -> bool) -> Option<u32> {
        let (small, main) = (Queue::Small as usize, Queue::Main as usize);
        let turns =
            self.queues[small].count + self.queues[main].count * (u64::from(FREQUENCY_MAX) + 1) + 1;
        for _ in 0..turns {
            let small_bytes = self.queues[small].bytes;
            let much = small_bytes * SMALL_SHARE > self.clean_bytes();
            let from_small = self.queues[small].count > 0 && (much || self.queues[main].count == 0);
            let id = self.queues[if from_small { small } else { main }].first;
            if id == NONE {
                return None;
            }
            let frequency = self.record(id).frequency;
            if kept(self, id) || (from_small && frequency > 1) {
                self.entry(id).frequency = if from_small { 0 } else { frequency };
                self.put(id, Queue::Main);
            } else if !from_small && frequency > 0 {
                self.entry(id).frequency -= 1;
                self.put(id, Queue::Main);
            } else {
                self.unlink(id);
                self.evictions = self.evictions.wrapping_add(1).max(1);
                let left = self.evictions;
                let record = self.entry(id);
                (record.left, record.frequency) = (left, 0);
                return Some(id);
            }
        }
        None
    }
}
