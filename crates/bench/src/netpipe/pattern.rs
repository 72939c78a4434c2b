//! Which sizes are transferred, and where in the file.

use std::collections::BTreeSet;
use weir_core::layout::Extent;

/// What the odd sizes differ by from the powers of two: bytes (as NetPIPE's perturbation).
const ODD_BYTES: u64 = 3;
/// Stamped, transferred and verified in one go, if more than one transfer fits: bytes.
const BATCH_BYTES: usize = 4 << 20;
/// Transfers in one go.
pub(super) const BATCH_OPERATIONS_MAX: usize = 1024;
/// Places of the cache-invalidate mode: bytes.
const PLACE_BYTES: u64 = 4096;

/// The sizes to measure, in order: those that are wanted, or powers of two with their neighbours.
pub(super) fn sizes(wanted: &[u64], max: u64, quick: bool) -> Vec<u64> {
    if !wanted.is_empty() {
        return wanted.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    }
    let mut sizes = BTreeSet::new();
    for shift in 0..63 {
        let power = 1u64 << shift;
        if quick {
            if shift % 4 == 0 || [10, 14, 18, 22, 26].contains(&shift) {
                sizes.insert(power);
            }
        } else {
            let neighbours = [power.saturating_sub(ODD_BYTES), power, power + ODD_BYTES];
            sizes.extend(neighbours.into_iter().filter(|&size| size > 0));
        }
    }
    sizes.into_iter().take_while(|&size| size <= max).collect()
}

fn batch_operations(size: u64, window: usize) -> usize {
    let fit = BATCH_BYTES / size.min(BATCH_BYTES as u64) as usize;
    // Whole windows only.
    fit.clamp(1, BATCH_OPERATIONS_MAX).next_multiple_of(window)
}

/// Largest memory that a batch of one of these sizes needs: bytes.
pub(super) fn batch_bytes_max(sizes: &[u64], window: usize) -> usize {
    let bytes = sizes.iter().map(|&size| batch_operations(size, window) * size as usize);
    bytes.max().unwrap_or(0).max(BATCH_BYTES)
}

/// Walks over a file: one transfer behind the other, or each at the next 4 KiB-aligned place.
pub(super) struct Cursor {
    file_size: u64,
    at: u64,
}

impl Cursor {
    pub(super) fn new(file_size: u64) -> Cursor {
        Cursor { file_size, at: 0 }
    }

    /// Begins with another size: at a place where a transfer of that size does not straddle
    /// stripes for want of alignment.
    pub(super) fn align(&mut self, size: u64) {
        // Sizes beside a power of two begin where that one does.
        let power = 1u64 << (size + ODD_BYTES).ilog2();
        self.at = self.at.next_multiple_of(power.max(PLACE_BYTES));
    }

    /// The extents of the next batch. At the file's end the walk begins anew.
    pub(super) fn batch(&mut self, size: u64, window: usize, invalidate: bool) -> Vec<Extent> {
        let count = batch_operations(size, window);
        let step = if invalidate { size.next_multiple_of(PLACE_BYTES) } else { size };
        if self.at + step * count as u64 > self.file_size {
            self.at = 0;
        }
        let start = self.at;
        self.at += step * count as u64;
        (0..count as u64).map(|i| Extent { offset: start + i * step, length: size }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_and_their_neighbours() {
        let all = sizes(&[], 64 << 20, false);
        assert_eq!(all[..9], [1, 2, 4, 5, 7, 8, 11, 13, 16]);
        assert_eq!(all[all.len() - 2..], [(64 << 20) - 3, 64 << 20]);
        for shift in 2..26 {
            for size in [(1 << shift) - 3, 1 << shift, (1 << shift) + 3] {
                assert!(all.contains(&size), "{size}");
            }
        }
        let quick = sizes(&[], 64 << 20, true);
        assert!(quick.len() < 14, "{quick:?}");
        for size in [1, 4096, 65_536, 1 << 20, 64 << 20] {
            assert!(quick.contains(&size), "{size}");
        }
        assert_eq!(sizes(&[8, 4, 8], 2, false), [4, 8]);
        assert_eq!(sizes(&[], 4, false), [1, 2, 4]);
    }

    #[test]
    fn batches_stay_within_file_and_memory() {
        let sizes = sizes(&[100_003], 0, false).into_iter().chain(sizes(&[], 4 << 20, false));
        let sizes: Vec<u64> = sizes.collect();
        for window in [1, 2, 3, 64] {
            for &size in &sizes {
                for invalidate in [false, true] {
                    let file_size = 1 << 30;
                    let mut cursor = Cursor { file_size, at: 12_345 };
                    cursor.align(size);
                    assert_eq!(cursor.at % 4096, 0);
                    let mut end_before = cursor.at;
                    for _ in 0..3 {
                        let batch = cursor.batch(size, window, invalidate);
                        assert_eq!(batch.len() % window, 0);
                        let bytes: u64 = batch.iter().map(|extent| extent.length).sum();
                        assert!(bytes as usize <= batch_bytes_max(&sizes, window));
                        for extent in batch {
                            let expected = if invalidate {
                                end_before.next_multiple_of(4096)
                            } else {
                                end_before
                            };
                            assert!(extent.offset == expected || extent.offset == 0);
                            assert!(extent.end() <= file_size);
                            end_before = extent.end();
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_power_of_two_begins_at_its_own_multiple() {
        for (size, aligned) in [(1 << 20, 1 << 20), ((1 << 20) + 3, 1 << 20), (1, 4096)] {
            let mut cursor = Cursor { file_size: 1 << 30, at: 5 };
            cursor.align(size);
            assert_eq!(cursor.at, aligned, "{size}");
        }
    }
}
