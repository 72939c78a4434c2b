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
//!
//! **Of what is read in a cycle that is longer than memory, a part stays** ([`Tier::admits`]). Queues
//! alone keep nothing of it: each chunk leaves just before it is wanted again. So what comes back, after
//! however long, fills the large queue as far as that has room; from then on it must take the place of
//! the chunk there whose turn it is to leave, and each attempt only takes a hit from that one's count.
//! Chunks of a cycle that stay are hit once a cycle; attempts are made as seldom as it takes for them
//! to stay, whatever the cycle's length. What nobody reads any more runs out of hits.

use super::arena::{Arena, CHUNK_BYTES, Slot};
use super::chunk::Key;
use super::disk::BLOCK_BYTES;
use super::ledger::Ledger;
use super::space::Space;
use crate::types::Ino;

/// Bytes of a chunk that share a checksum, and the least that is read of it.
pub(super) const QUARTER_BYTES: usize = CHUNK_BYTES / QUARTERS;
pub(super) const QUARTERS: usize = 4;
/// Heap for a record: bytes.
pub(super) const RECORD_COST: u64 = size_of::<Record>() as u64;
/// Records made at once: charged together, and never given back.
pub(super) const PAGE_RECORDS: usize = 256;
/// How often a hit is counted.
const FREQUENCY_MAX: u8 = 2;
/// The small queue's share of clean memory: 1 in so many.
const SMALL_SHARE: u64 = 10;
/// Below this share the large queue gives what has no hits, one try at a time.
const SMALL_SHARE_LOW: u64 = 20;
/// Below this share the large queue gives in any case.
const SMALL_SHARE_MIN: u64 = 50;
/// One attempt to get into the large queue, in the fractions that make one.
const ATTEMPT: u64 = 1 << 16;
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

/// No copy on disk.
pub(super) const NOTHING: Base = Base { block: 0, length: 0, visible: 0, sums: [0; QUARTERS] };

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

impl Record {
    /// Whether it is being written.
    pub(super) fn is_under_way(&self) -> bool {
        self.dirty && self.queue == Queue::None && !self.stuck
    }
}

const FRESH: Record = Record {
    key: (Ino(0), 0),
    base: NOTHING,
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
    dirty: u64,
    evictions: u32,
    /// Attempts to get into the large queue that have added up to this, in [`ATTEMPT`]s.
    attempts: u64,
    /// What the journal says, if there is one.
    pub(super) ledger: Option<Ledger>,
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
            dirty: 0,
            evictions: 0,
            attempts: 0,
            ledger: None,
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
        if let Some(ledger) = &mut self.ledger {
            ledger.add(id);
        }
        id
    }

    /// Heap for all records: bytes.
    #[cfg(test)]
    pub(super) fn pages_cost(&self) -> u64 {
        (self.pages.len() * PAGE_RECORDS) as u64 * RECORD_COST
    }

    /// A chunk has ended.
    pub(super) fn remove(&mut self, id: u32) {
        let key = self.record(id).key;
        self.drop_base(id);
        if let Some(ledger) = &mut self.ledger {
            ledger.remove(id, key);
        }
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
        let Some(base) = self.base(id) else { return };
        match &mut self.ledger {
            // Until it is told otherwise.
            Some(ledger) if ledger.names(id, &base) => (),
            ledger => {
                ledger.iter_mut().for_each(|ledger| ledger.base_dropped(id));
                self.space.release(base.block, base.blocks());
            }
        }
        self.entry(id).base = NOTHING;
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
        let key = record.key;
        if let Some(ledger) = &mut self.ledger {
            ledger.written(id, key);
        }
        let record = self.record(id);
        let queue = if record.frequency > 1 { Queue::Main } else { Queue::Small };
        self.put(id, queue);
    }

    fn clear_dirty(&mut self, id: u32) {
        let record = *self.record(id);
        if record.dirty {
            self.dirty_bytes -= u64::from(record.held);
            self.dirty -= 1;
            self.entry(id).dirty = false;
        }
    }

    /// Memory is ahead of the disk from now on.
    pub(super) fn set_dirty(&mut self, id: u32, covered: bool) {
        let record = *self.record(id);
        if !record.dirty {
            self.dirty_bytes += u64::from(record.held);
            self.dirty += 1;
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

    /// Chunks of which memory has something that the disk has not.
    pub(super) fn dirty(&self) -> u64 {
        self.dirty
    }

    /// A chunk comes back from a journal as it is on disk. Says whether those blocks were free.
    pub(super) fn adopt(&mut self, id: u32, base: Base) -> bool {
        let free = self.space.take(base.block, base.blocks());
        if free {
            self.entry(id).base = base;
        }
        free
    }

    /// Whether what is dirty finds room on disk. What is written to a kept target has its room from
    /// the beginning.
    pub(super) fn has_room(&self) -> bool {
        self.space.has_room(self.ledger.is_some())
    }

    /// Whether room on disk comes back by itself.
    pub(super) fn blocks_come(&self) -> bool {
        self.ledger.as_ref().is_some_and(Ledger::blocks_come)
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
        let queue = if self.admits(record.left) { Queue::Main } else { Queue::Small };
        self.put(id, queue);
    }

    /// Whether a chunk that has come in goes to the large queue at once. `left`: when it left memory, if
    /// it ever did.
    fn admits(&mut self, left: u32) -> bool {
        if left == 0 {
            return false;
        }
        let main = self.queues[Queue::Main as usize];
        if main.bytes * SMALL_SHARE < self.clean_bytes() * (SMALL_SHARE - 1) {
            return true;
        }
        // In a cycle of L chunks over a memory of M, L - M chunks come in and have been gone for L - M
        // evictions, while M are hit: M / 2 attempts leave these half of their hits.
        let memory = main.count + self.queues[Queue::Small as usize].count;
        let gone = u64::from(self.evictions.wrapping_sub(left)).max(1);
        self.attempts += (memory * ATTEMPT / (2 * gone)).min(ATTEMPT);
        if self.attempts < ATTEMPT {
            return false;
        }
        self.attempts -= ATTEMPT;
        let id = main.first;
        let frequency = self.record(id).frequency;
        if frequency > 0 {
            self.entry(id).frequency = frequency - 1;
            self.put(id, Queue::Main);
        }
        frequency == 0
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
        let mut asked_main = false;
        for _ in 0..turns {
            let (small_bytes, clean) = (self.queues[small].bytes, self.clean_bytes());
            // What is read ahead in large steps takes from the small queue first. Were the large one to
            // give as soon as that is below its share, it would take others in afterwards, and keep none.
            let much = small_bytes * SMALL_SHARE_LOW > clean
                || (asked_main && small_bytes * SMALL_SHARE_MIN > clean);
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
                asked_main = true;
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

#[cfg(test)]
mod tests {
    use super::super::memory::HeapMemory;
    use super::*;
    use std::collections::BTreeMap;

    /// Chunks of memory.
    const MEMORY: u64 = 1000;

    /// A tier under an endless disk, and a trace of reads of whole chunks.
    struct Bed {
        tier: Tier,
        arena: Arena,
        ids: BTreeMap<u64, u32>,
        resident: u64,
        random: u64,
    }

    impl Bed {
        fn new() -> Bed {
            let mut arena = Arena::new(Box::new(HeapMemory::new(4 * CHUNK_BYTES)));
            let tier = Tier::new(&mut arena, 1 << 20).expect("a block for zeros");
            Bed { tier, arena, ids: BTreeMap::new(), resident: 0, random: 88_172_645_463_325_252 }
        }

        fn random(&mut self) -> f64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 11) as f64 / (1u64 << 53) as f64
        }

        fn make_room(&mut self) {
            self.make_room_for(1);
        }

        fn make_room_for(&mut self, count: u64) {
            while self.resident + count > MEMORY {
                let id = self.tier.victim(|_, _| false).expect("something to evict");
                self.tier.set_held(id, 0);
                self.resident -= 1;
            }
        }

        fn write(&mut self, chunk: u64) {
            self.make_room();
            let id = self.tier.add(&mut self.arena, (Ino(1), chunk));
            self.ids.insert(chunk, id);
            self.resident += 1;
            self.tier.set_held(id, CHUNK_BYTES as u32);
            self.tier.set_dirty(id, true);
            let block = 256 + id * 16;
            let length = CHUNK_BYTES as u32;
            self.tier.written(id, Base { block, length, visible: length, sums: [0; QUARTERS] });
        }

        /// Says whether it was in memory.
        fn read(&mut self, chunk: u64) -> bool {
            if !self.ids.contains_key(&chunk) {
                self.write(chunk);
                self.tier.touch(self.ids[&chunk]);
                return false;
            }
            let id = self.ids[&chunk];
            let hit = self.tier.record(id).queue != Queue::None;
            if !hit {
                if self.resident >= MEMORY {
                    // As readers ahead do: room for many at once.
                    self.make_room_for(40);
                }
                self.resident += 1;
                self.tier.set_held(id, CHUNK_BYTES as u32);
                self.tier.fetched(id);
            }
            self.tier.touch(id);
            hit
        }

        /// The share of hits of a trace.
        fn hits(&mut self, trace: impl IntoIterator<Item = u64>) -> f64 {
            let (mut hits, mut count) = (0, 0);
            for chunk in trace {
                hits += u64::from(self.read(chunk));
                count += 1;
            }
            hits as f64 / count as f64
        }

        /// Chunk numbers by Zipf's law with exponent 0.9 over `count` chunks.
        fn zipf(&mut self, count: u64, length: usize) -> Vec<u64> {
            let mut sums = Vec::new();
            let mut sum = 0.0;
            for rank in 1..=count {
                sum += (rank as f64).powf(-0.9);
                sums.push(sum);
            }
            let draw = |bed: &mut Bed| {
                let at = bed.random() * sum;
                let rank = sums.partition_point(|&sum| sum < at) as u64;
                // Popular chunks do not lie side by side.
                1_000_000 + rank * 7919 % count
            };
            (0..length).map(|_| draw(self)).collect()
        }
    }

    fn cycles(length: u64, times: u64) -> impl Iterator<Item = u64> {
        (0..times).flat_map(move |_| 0..length)
    }

    #[test]
    fn a_share_of_a_cycle_longer_than_memory_stays() {
        for tenths in [11, 15, 22, 30, 100] {
            let length = MEMORY * tenths / 10;
            let mut bed = Bed::new();
            (0..length).for_each(|chunk| bed.write(chunk));
            let early = bed.hits(cycles(length, 3));
            let late = bed.hits(cycles(length, 20));
            // The best that can be, by whoever knows what will come.
            let best = MEMORY as f64 / length as f64;
            println!("cycle of {tenths}/10: {early:.3}, then {late:.3}; at best {best:.3}");
            assert!(late > best * 0.8, "{tenths}: {late} of {best}");
        }
    }

    #[test]
    fn a_working_set_that_fits_stays() {
        let mut bed = Bed::new();
        (0..900).for_each(|chunk| bed.write(chunk));
        assert_eq!(bed.hits(cycles(900, 5)), 1.0);
    }

    #[test]
    fn a_hot_set_stays_beside_scans() {
        // Of a file that is read once, and of one that is read again and again.
        for cyclic in [false, true] {
            let mut bed = Bed::new();
            (0..500).for_each(|chunk| bed.write(500_000 + chunk));
            let mut hot = 0;
            let count = 20_000;
            for at in 0..count {
                bed.read(if cyclic { at % 3000 } else { at });
                let chunk = 500_000 + (bed.random() * 500.0) as u64;
                hot += u64::from(bed.read(chunk));
            }
            let share = hot as f64 / count as f64;
            println!("hot set beside a scan (cyclic: {cyclic}): {share:.3}");
            assert!(share > 0.93, "{share}");
        }
    }

    #[test]
    fn popular_chunks_stay() {
        let mut bed = Bed::new();
        let trace = bed.zipf(10_000, 200_000);
        let mut counts = BTreeMap::new();
        trace.iter().for_each(|chunk| *counts.entry(*chunk).or_insert(0u64) += 1);
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // Whoever keeps the most popular ones and nothing else.
        let best = counts[..MEMORY as usize].iter().sum::<u64>() as f64 / trace.len() as f64;
        let share = bed.hits(trace);
        println!("zipf: {share:.3}; the most popular ones alone {best:.3}");
        assert!(share > best * 0.9, "{share} of {best}");
    }

    #[test]
    fn what_nobody_reads_any_more_makes_room() {
        let mut bed = Bed::new();
        bed.hits(cycles(2000, 20));
        // Another cycle, and another set that fits.
        let other = bed.hits(cycles(2000, 20).map(|chunk| chunk + 100_000));
        let late = bed.hits(cycles(2000, 5).map(|chunk| chunk + 100_000));
        println!("another cycle: {other:.3}, then {late:.3}");
        assert!(late > 0.4, "{late}");
        let fits = bed.hits(cycles(800, 20).map(|chunk| chunk + 200_000));
        let late = bed.hits(cycles(800, 5).map(|chunk| chunk + 200_000));
        println!("another set that fits: {fits:.3}, then {late:.3}");
        assert!(late > 0.97, "{late}");
    }
}
