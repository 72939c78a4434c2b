//! What every byte of a file must be: stamped with file, offset and generation, and checked.

use std::collections::BTreeMap;
use weir_core::layout::Extent;

/// Compared at once: bytes.
const BLOCK_BYTES: usize = 4096;

fn seed(file: u32, generation: u32) -> u64 {
    // The finaliser of splitmix64: any two stamps are far apart.
    let mut x = (u64::from(file) << 32 | u64::from(generation)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn word(seed: u64, index: u64) -> [u8; 8] {
    let x = index.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).to_le_bytes()
}

/// Fills memory with what `file` holds from `offset` on in this generation.
pub(crate) fn stamp(memory: &mut [u8], file: u32, generation: u32, offset: u64) {
    let seed = seed(file, generation);
    let phase = (offset % 8) as usize;
    let first = if phase == 0 { 0 } else { (8 - phase).min(memory.len()) };
    let (head, rest) = memory.split_at_mut(first);
    head.copy_from_slice(&word(seed, offset / 8)[phase..][..head.len()]);
    let mut index = (offset + first as u64) / 8;
    let mut words = rest.chunks_exact_mut(8);
    for bytes in &mut words {
        bytes.copy_from_slice(&word(seed, index));
        index += 1;
    }
    let tail = words.into_remainder();
    let length = tail.len();
    tail.copy_from_slice(&word(seed, index)[..length]);
}

/// A byte that is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// File offset.
    pub(crate) offset: u64,
    pub(crate) generation: u32,
    pub(crate) expected: u8,
    pub(crate) found: u8,
}

/// Which generation was written last, for each byte of a file.
pub(crate) struct History {
    file: u32,
    /// Start of a range, its end, its generation. Covers the file without gaps.
    ranges: BTreeMap<u64, (u64, u32)>,
    generation: u32,
    /// Written since the last [`History::take_written`].
    written: Vec<Extent>,
}

impl History {
    /// A file that is to hold generation 0 everywhere.
    pub(crate) fn new(file: u32, size: u64) -> History {
        let ranges = BTreeMap::from([(0, (size, 0))]);
        History { file, ranges, generation: 0, written: Vec::new() }
    }

    /// Fills memory with what the file's bytes from `offset` on must be.
    pub(crate) fn expect(&self, mut memory: &mut [u8], mut offset: u64) {
        while !memory.is_empty() {
            let (end, generation) =
                self.ranges.range(..=offset).next_back().map_or((u64::MAX, 0), |(_, &range)| range);
            let length = memory.len().min((end - offset) as usize);
            let (now, later) = memory.split_at_mut(length);
            stamp(now, self.file, generation, offset);
            memory = later;
            offset += length as u64;
        }
    }

    /// Stamps memory for writes to these extents, one behind the other, with a new generation, and
    /// counts them as written.
    pub(crate) fn begin_write(&mut self, mut memory: &mut [u8], extents: &[Extent]) {
        self.generation += 1;
        for extent in extents {
            let (now, later) = memory.split_at_mut(extent.length as usize);
            stamp(now, self.file, self.generation, extent.offset);
            memory = later;
            self.record(*extent);
            match self.written.last_mut() {
                Some(last) if last.end() == extent.offset => last.length += extent.length,
                _ => self.written.push(*extent),
            }
        }
    }

    fn record(&mut self, extent: Extent) {
        let (start, end, new) = (extent.offset, extent.end(), self.generation);
        let mut cut = Vec::new();
        if let Some((&first, &(last, generation))) = self.ranges.range(..start).next_back()
            && last > start
        {
            self.ranges.insert(first, (start, generation));
            cut.push((last, generation));
        }
        let within: Vec<u64> = self.ranges.range(start..end).map(|(&first, _)| first).collect();
        cut.extend(within.iter().filter_map(|first| self.ranges.remove(first)));
        // At most one of them reaches beyond the new range.
        for (last, generation) in cut {
            if last > end {
                self.ranges.insert(end, (last, generation));
            }
        }
        match self.ranges.range_mut(..start).next_back() {
            Some((_, (last, generation))) if *last == start && *generation == new => *last = end,
            _ => {
                self.ranges.insert(start, (end, new));
            }
        }
    }

    /// What was written since the last call, without overlaps, in order.
    pub(crate) fn take_written(&mut self) -> Vec<Extent> {
        let mut written = std::mem::take(&mut self.written);
        written.sort_by_key(|extent| extent.offset);
        written.dedup_by(|next, last| {
            let joined = next.offset <= last.end();
            if joined {
                last.length = last.end().max(next.end()) - last.offset;
            }
            joined
        });
        written
    }

    /// Compares what was read from `offset` on with what was written last.
    pub(crate) fn check(&self, memory: &[u8], offset: u64) -> Result<(), Mismatch> {
        let mut expected = [0; BLOCK_BYTES];
        for (index, found) in memory.chunks(BLOCK_BYTES).enumerate() {
            let offset = offset + (index * BLOCK_BYTES) as u64;
            let expected = &mut expected[..found.len()];
            self.expect(expected, offset);
            if *expected == *found {
                continue;
            }
            let different = expected.iter().zip(found).position(|(left, right)| left != right);
            let at = different.unwrap_or(0);
            let offset = offset + at as u64;
            let generation =
                self.ranges.range(..=offset).next_back().map_or(0, |(_, range)| range.1);
            return Err(Mismatch { offset, generation, expected: expected[at], found: found[at] });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stamped(length: usize, file: u32, generation: u32, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; length];
        stamp(&mut bytes, file, generation, offset);
        bytes
    }

    #[test]
    fn a_stamp_is_the_same_however_it_is_cut() {
        let whole = stamped(100, 1, 2, 0);
        for start in 0..40 {
            for length in 0..50 {
                assert_eq!(stamped(length, 1, 2, start as u64), whole[start..start + length]);
            }
        }
    }

    #[test]
    fn another_file_offset_or_generation_is_another_stamp() {
        let one = stamped(4096, 1, 2, 8192);
        for other in [stamped(4096, 2, 2, 8192), stamped(4096, 1, 3, 8192), stamped(4096, 1, 2, 0)]
        {
            let same = one.iter().zip(&other).filter(|(left, right)| left == right).count();
            assert!(same < 100, "{same} of 4096 bytes alike");
        }
    }

    #[test]
    fn every_single_corrupted_byte_is_found() {
        let mut history = History::new(7, 20_000);
        let mut memory = vec![0; 5000];
        history.begin_write(&mut memory, &[Extent { offset: 3001, length: 5000 }]);
        assert_eq!(history.check(&memory, 3001), Ok(()));
        for at in 0..memory.len() {
            memory[at] ^= 0x10;
            let mismatch = history.check(&memory, 3001).expect_err("a byte is wrong");
            assert_eq!(mismatch.offset, 3001 + at as u64);
            assert_eq!((mismatch.generation, mismatch.found), (1, memory[at]));
            memory[at] ^= 0x10;
        }
        // Bytes of a write that never arrived are those of the generation before.
        let mut stale = vec![0; 5000];
        stamp(&mut stale, 7, 0, 3001);
        assert!(history.check(&stale, 3001).is_err());
    }

    proptest! {
        #[test]
        fn history_is_as_a_plain_array(
            writes in proptest::collection::vec((0usize..500, 1usize..80), 1..40),
        ) {
            let mut history = History::new(3, 600);
            let mut file = stamped(600, 3, 0, 0);
            let mut touched = vec![false; 600];
            for (offset, length) in writes {
                let extent = Extent { offset: offset as u64, length: length as u64 };
                history.begin_write(&mut file[offset..offset + length], &[extent]);
                touched[offset..offset + length].fill(true);
            }
            prop_assert_eq!(history.check(&file, 0), Ok(()));
            let mut seen = vec![false; 600];
            for extent in history.take_written() {
                for flag in &mut seen[extent.offset as usize..extent.end() as usize] {
                    prop_assert!(!std::mem::replace(flag, true), "read back twice");
                }
            }
            prop_assert_eq!(seen, touched);
        }
    }
}
