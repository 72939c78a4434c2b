//! Which blocks of a disk are free.
//!
//! Blocks are given out in runs, each behind the last, so that what is written together lies together
//! and nothing that was written is overwritten before the whole disk has been gone through.

use super::arena::FreeMap;

/// Blocks at the start of a disk that hold no payload: what describes the disk (docs/disk.md).
pub(super) const FIRST_BLOCK: u64 = 256;
/// Blocks that only chunks which have blocks already may take: so that a full disk can still be
/// overwritten.
pub(super) const OVERWRITE_BLOCKS: usize = 256;
/// Free runs that are looked at for one that is long enough.
const RUNS_PROBED_MAX: usize = 64;

pub(super) struct Space {
    free: FreeMap,
    /// Where to look next.
    cursor: usize,
    payload_blocks: usize,
    /// Blocks that a write failed on: never used again.
    bad: usize,
    /// What is free lies in runs too short for what was to be placed.
    scattered: bool,
}

impl Space {
    pub(super) fn new(blocks: u64) -> Space {
        // A block's number is kept in 32 bits: 16 TiB.
        let blocks = blocks.min(u64::from(u32::MAX)) as usize;
        let mut free = FreeMap::full(blocks);
        for block in 0..blocks.min(FIRST_BLOCK as usize) {
            free.clear(block);
        }
        let payload_blocks = blocks.saturating_sub(FIRST_BLOCK as usize);
        Space { free, cursor: FIRST_BLOCK as usize, payload_blocks, bad: 0, scattered: false }
    }

    /// Heap that it takes: bytes.
    pub(super) fn cost(&self) -> u64 {
        (self.payload_blocks / 8 + self.payload_blocks / 512) as u64
    }

    /// Blocks that can hold payload.
    pub(super) fn blocks(&self) -> u64 {
        self.payload_blocks as u64
    }

    /// Blocks in use, those counted that failed.
    pub(super) fn used(&self) -> u64 {
        (self.payload_blocks - self.free.count()) as u64
    }

    /// Whether new data finds room.
    pub(super) fn has_room(&self, overwrites: bool) -> bool {
        !self.scattered && self.free.count() > self.kept_back(overwrites)
    }

    /// A chunk found no run that is long enough: until some are freed, there is no room.
    pub(super) fn set_scattered(&mut self) {
        self.scattered = true;
    }

    fn kept_back(&self, overwrites: bool) -> usize {
        if overwrites { 0 } else { OVERWRITE_BLOCKS.min(self.payload_blocks / 8) }
    }

    /// A run of up to `count` blocks: the first that is long enough among the next few, else the
    /// longest of those.
    pub(super) fn allocate(&mut self, count: usize, overwrites: bool) -> Option<(u32, usize)> {
        let count = count.min(self.free.count().saturating_sub(self.kept_back(overwrites)));
        if count == 0 {
            return None;
        }
        let (start, length) = self.free.run(self.cursor, count, RUNS_PROBED_MAX);
        (start..start + length).for_each(|block| self.free.clear(block));
        self.cursor = start + length;
        (length > 0).then_some((start as u32, length))
    }

    /// Takes blocks that a journal names. False: they are not free, or not there.
    pub(super) fn take(&mut self, start: u32, count: usize) -> bool {
        let blocks = start as usize..start as usize + count;
        let there = FIRST_BLOCK as usize..FIRST_BLOCK as usize + self.payload_blocks;
        if count == 0 || !there.contains(&blocks.start) || blocks.end > there.end {
            return false;
        }
        if !blocks.clone().all(|block| self.free.has(block)) {
            return false;
        }
        // What is written next goes behind.
        self.cursor = self.cursor.max(blocks.end);
        blocks.for_each(|block| self.free.clear(block));
        true
    }

    /// Free blocks, less those that only overwriting may take.
    pub(super) fn free(&self, overwrites: bool) -> usize {
        self.free.count().saturating_sub(self.kept_back(overwrites))
    }

    /// Gives back what was allocated too much.
    pub(super) fn trim(&mut self, start: u32, count: usize) {
        (start as usize..start as usize + count).for_each(|block| self.free.set(block));
        self.cursor = start as usize;
    }

    pub(super) fn release(&mut self, start: u32, count: usize) {
        self.scattered = false;
        (start as usize..start as usize + count).for_each(|block| self.free.set(block));
    }

    /// Gives blocks up: they stay in use for ever.
    pub(super) fn condemn(&mut self, count: usize) {
        self.bad += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_follow_each_other_and_wrap() {
        let mut space = Space::new(FIRST_BLOCK + 1000);
        let first = space.allocate(100, true).unwrap();
        assert_eq!(first, (FIRST_BLOCK as u32, 100));
        assert_eq!(space.allocate(100, true).unwrap().0, first.0 + 100);
        space.release(first.0, 100);
        assert_eq!(space.allocate(800, true).unwrap(), (first.0 + 200, 800));
        assert_eq!(space.allocate(100, true).unwrap(), first);
        assert!(space.allocate(1, true).is_none());
        assert_eq!(space.used(), 1000);
    }

    #[test]
    fn the_last_blocks_are_for_overwriting() {
        let mut space = Space::new(FIRST_BLOCK + 800);
        let mut taken = 0;
        while let Some((_, count)) = space.allocate(64, false) {
            taken += count;
        }
        assert_eq!(taken, 700);
        assert!(!space.has_room(false) && space.has_room(true));
        assert_eq!(space.allocate(200, true).unwrap().1, 100);
        assert!(!space.has_room(true));
    }

    #[test]
    fn fragments_serve_when_nothing_else_is_left() {
        let mut space = Space::new(FIRST_BLOCK + 64);
        let (start, _) = space.allocate(64, true).unwrap();
        (0..64).step_by(2).for_each(|at| space.release(start + at, 1));
        let mut got = 0;
        while let Some((_, count)) = space.allocate(8, true) {
            assert_eq!(count, 1);
            got += 1;
        }
        assert_eq!(got, 32);
    }
}
