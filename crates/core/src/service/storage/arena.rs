//! A target's memory, cut into blocks of 64 KiB and slots of a few sizes.
//!
//! A block is free, withdrawn (its share of the budget is spent on bookkeeping in the heap), or
//! dedicated to one class of slots while any of them is used. Slots are reference counted: one count
//! for each place in an object's map that names the slot, for each reader, for the ticket that
//! fills it. **Whoever writes into a slot holds all its counts**; that is what makes the bytes behind
//! a reader's pin immutable.
//!
//! The tables here (52 bytes a block, 4 bytes a slot: under 1 % of the memory) are not charged: they
//! are within the tolerance of 5 % that a stated memory has.

use super::memory::Memory;
use crate::copying::{copy, copy_past_caches, settle};
use crate::slice::Slice;
use std::fmt;

/// Size of a block and of the largest slot; objects are cut into chunks of this size.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Sizes of slots: bytes.
pub(super) const SLOT_BYTES: [usize; CLASSES] = [512, 4096, 16 * 1024, CHUNK_BYTES];
pub(super) const CLASSES: usize = 4;
/// The class of slots that are whole blocks.
pub(super) const WHOLE: u8 = 3;
/// Free runs that are looked at for one that is long enough.
const RUNS_PROBED_MAX: usize = 32;
/// Blocks freed last that are remembered because they may still be in the processor's cache.
const RECENT_MAX: usize = 32;
/// Most blocks: a slot's number counts units of 512 bytes in 32 bits (2 TiB).
const BLOCKS_MAX: usize = (u32::MAX / UNITS) as usize;
const UNITS: u32 = (CHUNK_BYTES / SLOT_BYTES[0]) as u32;
const NONE: u32 = u32::MAX;
/// What was allocated so many blocks ago is in no processor's cache any more. Measured with files of 2 to 512 MiB
/// that are written over and over (AMD EPYC with 32 MiB of cache, Intel Xeon with 2 a core and 300 for all): up to
/// 4 MiB caches pay, from 16 on they do not.
const CACHED_BLOCKS: u32 = (8 * 1024 * 1024 / CHUNK_BYTES) as u32;
/// Less than this is copied in the ordinary way: it may be wanted again soon, and is quickly done.
const SCATTERED_BYTES_MIN: usize = 8 * 1024;

/// The smallest class whose slots hold `length` bytes.
pub(super) fn class_of(length: usize) -> u8 {
    debug_assert!(length <= CHUNK_BYTES);
    SLOT_BYTES.iter().position(|&size| length <= size).unwrap_or(CLASSES - 1) as u8
}

/// A slot's name: its first byte's offset in units of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(u32);

impl Slot {
    fn block(self) -> u32 {
        self.0 / UNITS
    }
}

/// A part of one slot that goes to another: from byte `from_at` to byte `to_at`, `n` bytes.
#[derive(Clone, Copy)]
pub(super) struct Move {
    pub(super) from: Slot,
    pub(super) from_at: usize,
    pub(super) to: Slot,
    pub(super) to_at: usize,
    pub(super) n: usize,
}

struct Block {
    /// Which slots are free.
    free: u128,
    /// References to slots 1 and up.
    more: Box<[u32]>,
    /// References to slot 0.
    first: u32,
    /// Neighbours in its class's list of blocks with both free and used slots.
    previous: u32,
    next: u32,
    class: u8,
    /// It had not been allocated for long when it was allocated last.
    cold: bool,
}

impl Block {
    fn slots(&self) -> u32 {
        self.more.len() as u32 + 1
    }

    fn all_free(&self) -> u128 {
        mask(self.slots())
    }
}

fn mask(slots: u32) -> u128 {
    u128::MAX >> (128 - slots)
}

pub(super) struct Arena {
    memory: Box<dyn Memory>,
    blocks: Vec<Block>,
    /// When each block was allocated last, by a clock that counts such blocks.
    allocated: Vec<u32>,
    clock: u32,
    free: FreeMap,
    /// Blocks freed last, latest at the end; some may be in use again.
    recent: Vec<u32>,
    /// Blocks that make room for bookkeeping.
    withdrawn: Vec<u32>,
    /// Bytes of bookkeeping in the heap.
    charged: u64,
    /// Heads of the lists of blocks with both free and used slots.
    partial: [u32; CLASSES],
    /// Free slots in dedicated blocks.
    free_slots: [usize; CLASSES],
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("blocks", &self.blocks.len())
            .field("free", &self.free.count)
            .field("charged", &self.charged)
            .finish_non_exhaustive()
    }
}

impl Arena {
    pub(super) fn new(memory: Box<dyn Memory>) -> Arena {
        let count = (memory.length() / CHUNK_BYTES).min(BLOCKS_MAX);
        let block = || Block {
            free: 0,
            more: Box::default(),
            first: 0,
            previous: NONE,
            next: NONE,
            class: WHOLE,
            cold: false,
        };
        Arena {
            memory,
            allocated: vec![0; count],
            clock: CACHED_BLOCKS + 1,
            blocks: std::iter::repeat_with(block).take(count).collect(),
            free: FreeMap::full(count),
            recent: Vec::with_capacity(RECENT_MAX),
            withdrawn: Vec::new(),
            charged: 0,
            partial: [NONE; CLASSES],
            free_slots: [0; CLASSES],
        }
    }

    /// All blocks.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of dedicated blocks and of bookkeeping.
    pub(super) fn used(&self) -> u64 {
        let blocks = self.blocks.len() - self.free.count - self.withdrawn.len();
        (blocks * CHUNK_BYTES) as u64 + self.charged
    }

    /// Blocks that can be had; less than none if bookkeeping is in debt.
    pub(super) fn available(&self) -> isize {
        (self.free.count + self.withdrawn.len()) as isize - self.wanted(0) as isize
    }

    /// Blocks that must be had for so many slots of each class and so much more bookkeeping.
    pub(super) fn needed(&self, slots: &[usize; CLASSES], charge: u64) -> usize {
        let mut blocks = self.wanted(charge) - self.wanted(0);
        for (class, &count) in slots.iter().enumerate() {
            let fresh = count.saturating_sub(self.free_slots[class]);
            blocks += fresh.div_ceil(CHUNK_BYTES / SLOT_BYTES[class]);
        }
        blocks
    }

    /// Blocks to be withdrawn for the bookkeeping that there is and `more` bytes of it.
    fn wanted(&self, more: u64) -> usize {
        (self.charged + more).div_ceil(CHUNK_BYTES as u64) as usize
    }

    /// Counts bookkeeping that begins.
    pub(super) fn charge(&mut self, bytes: u64) {
        self.charged += bytes;
        self.withdraw();
    }

    /// Counts bookkeeping that ends. Blocks come back when they are needed, so that a sum that
    /// swings does not discard pages each time.
    pub(super) fn discharge(&mut self, bytes: u64) {
        self.charged -= bytes;
    }

    fn withdraw(&mut self) {
        while self.withdrawn.len() < self.wanted(0) {
            // Without a free block the debt stays until one is freed; `needed` keeps it from
            // happening but for the few bytes of a hole punched under a reader.
            let Some(block) = self.free.last() else { return };
            self.free.clear(block);
            self.memory.discard(block * CHUNK_BYTES, CHUNK_BYTES);
            self.withdrawn.push(block as u32);
        }
    }

    fn reclaim(&mut self, count: usize) {
        while self.free.count < count && self.withdrawn.len() > self.wanted(0) {
            let block = self.withdrawn.pop().expect("more than are wanted");
            self.free.set(block as usize);
        }
    }

    /// A slot with one reference; a warm one if there is.
    pub(super) fn allocate(&mut self, class: u8) -> Option<Slot> {
        if class == WHOLE {
            return self.allocate_block(WHOLE).map(|block| Slot(block * UNITS));
        }
        let at = match self.partial[usize::from(class)] {
            NONE => {
                let at = self.allocate_block(class)?;
                self.link(at);
                self.free_slots[usize::from(class)] += self.blocks[at as usize].slots() as usize;
                at
            }
            at => at,
        };
        let block = &mut self.blocks[at as usize];
        let index = block.free.trailing_zeros();
        block.free &= !(1 << index);
        let full = block.free == 0;
        if full {
            self.unlink(at);
        }
        self.free_slots[usize::from(class)] -= 1;
        let slot = Slot(at * UNITS + index * (UNITS / self.blocks[at as usize].slots()));
        *self.count(slot) = 1;
        Some(slot)
    }

    /// Whole blocks with one reference each, as many side by side as can be found quickly.
    pub(super) fn allocate_blocks(&mut self, mut count: usize) -> Option<Vec<Slot>> {
        self.reclaim(count);
        if self.free.count < count {
            return None;
        }
        let mut slots = Vec::with_capacity(count);
        if count == 1 {
            slots.push(self.allocate(WHOLE)?);
            return Some(slots);
        }
        while count > 0 {
            let (start, length) = self.free.run(0, count, RUNS_PROBED_MAX);
            for block in start..start + length {
                self.dedicate(block, WHOLE);
                slots.push(Slot(block as u32 * UNITS));
            }
            count -= length;
        }
        Some(slots)
    }

    fn allocate_block(&mut self, class: u8) -> Option<u32> {
        self.reclaim(1);
        while let Some(block) = self.recent.pop() {
            if self.free.has(block as usize) {
                self.dedicate(block as usize, class);
                return Some(block);
            }
        }
        let block = self.free.next(0)?;
        self.dedicate(block, class);
        Some(block as u32)
    }

    /// Turns a free block into one of a class; a whole one is referred to at once.
    fn dedicate(&mut self, at: usize, class: u8) {
        self.free.clear(at);
        let block = &mut self.blocks[at];
        block.class = class;
        block.cold = self.clock.wrapping_sub(self.allocated[at]) > CACHED_BLOCKS;
        self.clock = self.clock.wrapping_add(1);
        self.allocated[at] = self.clock;
        let slots = CHUNK_BYTES / SLOT_BYTES[usize::from(class)];
        block.more = vec![0; slots - 1].into_boxed_slice();
        (block.first, block.free) = if class == WHOLE { (1, 0) } else { (0, mask(slots as u32)) };
    }

    /// Whether the block in which a slot lies was probably in no processor's cache when it was allocated.
    pub(super) fn was_cold(&self, slot: Slot) -> bool {
        self.blocks[slot.block() as usize].cold
    }

    /// How many refer to a slot.
    pub(super) fn references(&self, slot: Slot) -> u32 {
        let block = &self.blocks[slot.block() as usize];
        match self.index(slot) {
            0 => block.first,
            index => block.more[index - 1],
        }
    }

    fn index(&self, slot: Slot) -> usize {
        let block = &self.blocks[slot.block() as usize];
        (slot.0 % UNITS / (UNITS / block.slots())) as usize
    }

    fn count(&mut self, slot: Slot) -> &mut u32 {
        let index = self.index(slot);
        let block = &mut self.blocks[slot.block() as usize];
        if index == 0 { &mut block.first } else { &mut block.more[index - 1] }
    }

    /// One more refers to the slot.
    pub(super) fn retain(&mut self, slot: Slot) {
        let count = self.count(slot);
        *count = count.checked_add(1).expect("fewer readers than 2^32");
    }

    /// One less refers to the slot; the last one frees it.
    pub(super) fn release(&mut self, slot: Slot) {
        let count = self.count(slot);
        *count = count.checked_sub(1).expect("a slot is released as often as it was retained");
        if *count > 0 {
            return;
        }
        let (at, index) = (slot.block(), self.index(slot));
        let block = &mut self.blocks[at as usize];
        let class = usize::from(block.class);
        let was_full = block.free == 0;
        block.free |= 1 << index;
        let empty = block.free == block.all_free();
        if block.class != WHOLE {
            self.free_slots[class] += 1;
            match (was_full, empty) {
                (true, false) => self.link(at),
                (false, true) => self.unlink(at),
                _ => (),
            }
            if empty {
                self.free_slots[class] -= self.blocks[at as usize].slots() as usize;
            }
        }
        if empty {
            self.blocks[at as usize].more = Box::default();
            self.free.set(at as usize);
            if self.recent.len() == RECENT_MAX {
                self.recent.drain(..RECENT_MAX / 2);
            }
            self.recent.push(at);
            self.withdraw();
        }
    }

    fn link(&mut self, at: u32) {
        let class = usize::from(self.blocks[at as usize].class);
        let head = std::mem::replace(&mut self.partial[class], at);
        self.blocks[at as usize].previous = NONE;
        self.blocks[at as usize].next = head;
        if head != NONE {
            self.blocks[head as usize].previous = at;
        }
    }

    fn unlink(&mut self, at: u32) {
        let Block { previous, next, class, .. } = self.blocks[at as usize];
        match previous {
            NONE => self.partial[usize::from(class)] = next,
            previous => self.blocks[previous as usize].next = next,
        }
        if next != NONE {
            self.blocks[next as usize].previous = previous;
        }
    }

    /// How many bytes a slot holds.
    pub(super) fn size(&self, slot: Slot) -> usize {
        SLOT_BYTES[usize::from(self.blocks[slot.block() as usize].class)]
    }

    /// A slot's byte at `at`, with the provenance of the whole memory, so that neighbouring slots
    /// can be named by one slice.
    pub(super) fn pointer(&self, slot: Slot, at: usize) -> *mut u8 {
        debug_assert!(at < self.size(slot));
        // SAFETY: slots lie within the blocks, and those within the memory.
        unsafe { self.memory.base().add(slot.0 as usize * SLOT_BYTES[0] + at) }
    }

    /// A slot's first `length` bytes, as [`Arena::pointer`] gives them.
    pub(super) fn slice(&self, slot: Slot, length: u32) -> Slice {
        debug_assert!(length as usize <= self.size(slot));
        Slice { pointer: self.pointer(slot, 0), length: length as usize }
    }

    /// Copies between two slots. The caller holds all references to the second.
    pub(super) fn copy(&mut self, one: Move) {
        let (from, to) = self.ends(one);
        // SAFETY: both ranges lie within their own slots, which do not overlap. Nobody reads or writes
        // `to` meanwhile: its only references are the caller's. Nobody writes `from`: it is in a map
        // or belongs to a ticket that is being committed.
        unsafe { copy(from, to, one.n) };
    }

    /// The same for many parts, of so many bytes in all, that go to memory which was probably not
    /// touched lately.
    pub(super) fn scatter(&mut self, n: usize, moves: impl Iterator<Item = Move>) {
        if n < SCATTERED_BYTES_MIN {
            return moves.for_each(|one| self.copy(one));
        }
        for one in moves {
            let (from, to) = self.ends(one);
            // SAFETY: as for `copy`.
            unsafe { copy_past_caches(from, to, one.n) };
        }
        settle();
    }

    /// Checked addresses. An empty part may lie behind the end.
    fn ends(&self, one: Move) -> (*const u8, *mut u8) {
        let Move { from, from_at, to, to_at, n } = one;
        assert!(from != to && from_at + n <= self.size(from) && to_at + n <= self.size(to));
        (self.pointer(from, 0).wrapping_add(from_at), self.pointer(to, 0).wrapping_add(to_at))
    }

    /// Zeroes a part of a slot. The caller holds all references to it.
    pub(super) fn zero(&mut self, slot: Slot, start: usize, end: usize) {
        assert!(end <= self.size(slot));
        if start < end {
            // SAFETY: the range lies within the slot (asserted), to which the caller holds all
            // references: nobody reads or writes it meanwhile.
            unsafe { std::ptr::write_bytes(self.pointer(slot, start), 0, end - start) };
        }
    }
}

/// Which blocks are free: a bit each, and a bit for each word of them that is not zero.
pub(super) struct FreeMap {
    words: Vec<u64>,
    summary: Vec<u64>,
    count: usize,
}

impl FreeMap {
    pub(super) fn full(count: usize) -> FreeMap {
        let words = count.div_ceil(64);
        let mut map =
            FreeMap { words: vec![0; words], summary: vec![0; words.div_ceil(64)], count: 0 };
        for block in 0..count {
            map.set(block);
        }
        map
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn has(&self, block: usize) -> bool {
        self.words.get(block / 64).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    pub(super) fn set(&mut self, block: usize) {
        debug_assert!(!self.has(block));
        let word = block / 64;
        self.words[word] |= 1 << (block % 64);
        self.summary[word / 64] |= 1 << (word % 64);
        self.count += 1;
    }

    pub(super) fn clear(&mut self, block: usize) {
        debug_assert!(self.has(block));
        let word = block / 64;
        self.words[word] &= !(1 << (block % 64));
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
        self.count -= 1;
    }

    /// First free block at or behind `from`.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let here = self.words.get(word)? & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        if (word + 1) / 64 >= self.summary.len() {
            return None;
        }
        let word = next_bit(&self.summary, word + 1)?;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// Last free block.
    fn last(&self) -> Option<usize> {
        let at = self.summary.iter().rposition(|&word| word != 0)?;
        let word = at * 64 + 63 - self.summary[at].leading_zeros() as usize;
        Some(word * 64 + 63 - self.words[word].leading_zeros() as usize)
    }

    /// A run of up to `count` free blocks: the first that is long enough among the `probes` first
    /// from `cursor` on (and, behind the end, from the start on), else the longest of those. From 0
    /// on the lowest addresses come first, so that memory that was never touched stays so while
    /// there is other.
    pub(super) fn run(&self, cursor: usize, count: usize, probes: usize) -> (usize, usize) {
        let (mut best, mut from, mut wrapped) = ((0, 0), cursor, cursor == 0);
        for _ in 0..probes {
            let Some(start) = self.next(from) else {
                if std::mem::replace(&mut wrapped, true) {
                    break;
                }
                from = 0;
                continue;
            };
            let mut end = start + 1;
            while end - start < count && self.has(end) {
                end += 1;
            }
            if end - start > best.1 {
                best = (start, end - start);
            }
            if best.1 == count {
                break;
            }
            from = end;
        }
        best
    }
}

/// First bit that is set at or behind `from`.
fn next_bit(words: &[u64], from: usize) -> Option<usize> {
    let here = words.get(from / 64)? & (u64::MAX << (from % 64));
    if here != 0 {
        return Some(from / 64 * 64 + here.trailing_zeros() as usize);
    }
    let word = from / 64 + 1 + words[from / 64 + 1..].iter().position(|&word| word != 0)?;
    Some(word * 64 + words[word].trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::super::memory::HeapMemory;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn arena(blocks: usize) -> Arena {
        Arena::new(Box::new(HeapMemory::new(blocks * CHUNK_BYTES)))
    }

    #[test]
    fn large_allocations_are_contiguous_and_reuse_low_addresses() {
        let mut arena = arena(200);
        let slots = arena.allocate_blocks(128).unwrap();
        assert!(slots.windows(2).all(|pair| pair[1].0 - pair[0].0 == UNITS));
        for &slot in &slots[10..42] {
            arena.release(slot);
        }
        assert_eq!(arena.allocate_blocks(32).unwrap()[0], slots[10]);
        assert!(arena.allocate_blocks(73).is_none());
        assert_eq!(arena.allocate_blocks(72).unwrap().len(), 72);
        assert_eq!(arena.available(), 0);
    }

    #[test]
    fn fragments_serve_when_no_run_is_long_enough() {
        let mut arena = arena(256);
        let slots = arena.allocate_blocks(256).unwrap();
        for slot in slots.iter().step_by(2) {
            arena.release(*slot);
        }
        let mut again = arena.allocate_blocks(128).unwrap();
        again.sort();
        assert_eq!(again, slots.iter().step_by(2).copied().collect::<Vec<_>>());
    }

    #[test]
    fn what_was_freed_last_is_used_first() {
        let mut arena = arena(8);
        let slots = arena.allocate_blocks(4).unwrap();
        arena.release(slots[1]);
        arena.release(slots[3]);
        assert_eq!(arena.allocate(WHOLE), Some(slots[3]));
        assert_eq!(arena.allocate(WHOLE), Some(slots[1]));
    }

    #[test]
    fn what_was_not_allocated_for_long_is_cold() {
        let cached = CACHED_BLOCKS as usize;
        let mut arena = arena(cached + 8);
        let mut write = |count: usize| {
            let slots = arena.allocate_blocks(count).unwrap();
            let cold = slots.iter().filter(|&&slot| arena.was_cold(slot)).count();
            slots.into_iter().for_each(|slot| arena.release(slot));
            cold
        };
        assert_eq!(write(cached), cached, "nobody has had them");
        assert_eq!(write(cached), 0);
        // Eight of them were never used; then as many come back after more than caches hold.
        assert_eq!(write(cached + 8), 8);
        assert_eq!(write(cached + 8), cached + 8);
        assert_eq!(write(4), 4);
        assert_eq!(write(4), 0);
    }

    #[test]
    fn bookkeeping_takes_blocks_and_gives_them_back() {
        let mut arena = arena(4);
        arena.charge(CHUNK_BYTES as u64 + 1);
        assert_eq!(arena.available(), 2);
        let slots = arena.allocate_blocks(2).unwrap();
        assert!(arena.allocate(WHOLE).is_none());
        arena.discharge(CHUNK_BYTES as u64);
        assert!(arena.allocate(0).is_some());
        // In debt: what is freed next goes to bookkeeping.
        arena.charge(CHUNK_BYTES as u64);
        assert_eq!(arena.available(), -1);
        arena.release(slots[0]);
        assert_eq!(arena.available(), 0);
        assert!(arena.allocate(WHOLE).is_none());
    }

    /// Pages of blocks that bookkeeping replaces go back: else both would be resident.
    #[test]
    fn withdrawn_blocks_are_discarded() {
        struct Discarding(HeapMemory, Arc<AtomicUsize>);
        // SAFETY: the inner memory keeps the rules.
        unsafe impl Memory for Discarding {
            fn base(&self) -> *mut u8 {
                self.0.base()
            }
            fn length(&self) -> usize {
                self.0.length()
            }
            fn discard(&self, offset: usize, length: usize) {
                assert!(offset + length <= self.0.length());
                self.1.fetch_add(length, Ordering::Relaxed);
            }
        }
        let discarded = Arc::new(AtomicUsize::new(0));
        let memory = Discarding(HeapMemory::new(8 * CHUNK_BYTES), Arc::clone(&discarded));
        let mut arena = Arena::new(Box::new(memory));
        let all = arena.allocate_blocks(8).unwrap();
        arena.charge(3 * CHUNK_BYTES as u64);
        assert_eq!(discarded.load(Ordering::Relaxed), 0);
        all.into_iter().for_each(|slot| arena.release(slot));
        assert_eq!(discarded.load(Ordering::Relaxed), 3 * CHUNK_BYTES);
        // A sum that swings about a block's border discards nothing anew.
        arena.discharge(1);
        arena.discharge(CHUNK_BYTES as u64);
        arena.charge(CHUNK_BYTES as u64);
        assert_eq!(discarded.load(Ordering::Relaxed), 3 * CHUNK_BYTES);
    }

    proptest! {
        /// Slots never overlap, counts add up, and everything comes back.
        #[test]
        fn slots_are_disjoint(ops in proptest::collection::vec((0u8..6, 0usize..1000), 1..400)) {
            let mut arena = arena(70);
            let mut held: BTreeMap<u32, (Slot, u32)> = BTreeMap::new();
            for (op, pick) in ops {
                match op {
                    0..4 => {
                        let mut slots = [0; CLASSES];
                        slots[usize::from(op)] = 1;
                        let fits = arena.needed(&slots, 0) as isize <= arena.available();
                        let slot = arena.allocate(op);
                        prop_assert_eq!(slot.is_some(), fits);
                        if let Some(slot) = slot {
                            let units = (arena.size(slot) / SLOT_BYTES[0]) as u32;
                            let before = held.range(..slot.0 + units).next_back();
                            prop_assert!(before.is_none_or(|(_, b)| b.0.0 + b.1 <= slot.0));
                            held.insert(slot.0, (slot, units));
                        }
                    }
                    4 => for slot in arena.allocate_blocks(pick % 9).unwrap_or_default() {
                        prop_assert!(held.range(slot.0..slot.0 + UNITS).next().is_none());
                        held.insert(slot.0, (slot, UNITS));
                    },
                    _ => if !held.is_empty() {
                        let key = *held.keys().nth(pick % held.len()).unwrap();
                        arena.release(held.remove(&key).unwrap().0);
                    },
                }
            }
            for (slot, _) in held.into_values() {
                arena.release(slot);
            }
            prop_assert_eq!(arena.used(), 0);
            prop_assert_eq!(arena.available(), 70);
            prop_assert_eq!(arena.free_slots, [0; CLASSES]);
        }
    }
}
