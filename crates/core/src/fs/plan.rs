//! Cuts reads and writes into requests: which extents of which object, from or to which memory.

use crate::config::{LIST_EXTENTS_MAX, PAYLOAD_BYTES_MAX};
use crate::layout::{Extent, Layout};
use crate::slice::Slice;
use crate::wire::data::{Folding, Runs};

/// One request to one column's target.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) column: usize,
    /// Object extents, in the order of the memory.
    pub(super) runs: Runs,
    pub(super) memory: Vec<Slice>,
    /// Spreads requests over streams.
    pub(super) lane: u64,
}

#[derive(Default)]
struct Building {
    /// Where the first byte lies in the object.
    start: u64,
    runs: Folding,
    memory: Vec<Slice>,
    length: usize,
}

impl Building {
    fn push(&mut self, extent: Extent, memory: Slice) {
        if self.length == 0 {
            self.start = extent.offset;
        }
        self.runs.push(extent);
        match self.memory.last_mut() {
            Some(last) if last.pointer.wrapping_add(last.length) == memory.pointer => {
                last.length += memory.length;
            }
            _ => self.memory.push(memory),
        }
        self.length += memory.length;
    }

    fn finish(&mut self, column: usize, transfer_size: usize, parts: &mut Vec<Part>) {
        let Building { start, runs, memory, length } = std::mem::take(self);
        if length > 0 {
            let lane = start / transfer_size as u64;
            parts.push(Part { column, runs: runs.finish(), memory, lane });
        }
    }
}

/// Cuts `file` extents, whose bytes lie one behind the other in `memory`, into requests. A
/// contiguous extent is cut into requests of `transfer_size`, so that several are under way at
/// once; a list goes to each target in one request as long as the limits allow it.
///
/// # Panics
/// If the memory is shorter than the extents.
pub(super) fn plan(
    layout: &Layout,
    file: &[Extent],
    memory: &[Slice],
    transfer_size: usize,
) -> Vec<Part> {
    let limit = if file.len() == 1 { transfer_size } else { PAYLOAD_BYTES_MAX };
    let mut parts = Vec::new();
    let mut columns: Vec<Building> = Vec::new();
    columns.resize_with(layout.stripe_count(), Building::default);
    let mut memory = memory.iter().copied();
    let mut current = Slice { pointer: std::ptr::null_mut(), length: 0 };
    let mut pieces = layout.pieces(0, 0);
    for extent in file {
        for piece in pieces.of(extent.offset, extent.length as usize) {
            let column = &mut columns[piece.column];
            let mut object_offset = piece.object_offset;
            let mut left = piece.length;
            while left > 0 {
                while current.length == 0 {
                    current = memory.next().expect("memory is as long as the extents");
                }
                if column.length == limit || column.runs.extents() == LIST_EXTENTS_MAX {
                    column.finish(piece.column, transfer_size, &mut parts);
                }
                let length = left.min(current.length).min(limit - column.length);
                let extent = Extent { offset: object_offset, length: length as u64 };
                column.push(extent, current.part(0, length));
                current = current.part(length, current.length - length);
                object_offset += length as u64;
                left -= length;
            }
        }
    }
    for (index, column) in columns.iter_mut().enumerate() {
        column.finish(index, transfer_size, &mut parts);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Member;
    use crate::types::{Incarnation, TargetId};
    use proptest::prelude::*;

    fn layout(stripe_size: u64, count: u32) -> Layout {
        Layout::striped(
            stripe_size,
            (0..count).map(|i| Member { target: TargetId(i), incarnation: Incarnation(1) }),
        )
    }

    #[test]
    fn a_contiguous_extent_is_cut_at_the_transfer_size() {
        let mut bytes = vec![0; 100];
        let memory = [Slice::to_write(&mut bytes)];
        let parts = plan(&layout(1000, 1), &[Extent { offset: 5, length: 100 }], &memory, 40);
        let lengths: Vec<_> = parts.iter().map(|part| part.runs.length()).collect();
        assert_eq!(lengths, [40, 40, 20]);
    }

    proptest! {
        /// Every byte of the list goes to its own place, from its own memory, in order.
        #[test]
        fn bytes_and_memory_stay_together(
            extents in proptest::collection::vec((0u64..300, 1u64..40), 1..20),
            cuts in proptest::collection::vec(1usize..30, 1..10),
            stripe_size in 1u64..20, count in 1u32..5, transfer_size in 1usize..50,
        ) {
            let layout = layout(stripe_size, count);
            let file: Vec<_> =
                extents.into_iter().map(|(offset, length)| Extent { offset, length }).collect();
            let total: usize = file.iter().map(|extent| extent.length as usize).sum();
            let mut bytes = vec![0u8; total];
            let base = bytes.as_mut_ptr() as usize;
            let whole = Slice::to_write(&mut bytes);
            let mut memory = Vec::new();
            let mut at = 0;
            for cut in cuts.into_iter().cycle() {
                if at == total { break; }
                let length = cut.min(total - at);
                memory.push(whole.part(at, length));
                at += length;
            }
            let mut places: Vec<Option<(usize, u64)>> = vec![None; total];
            for part in plan(&layout, &file, &memory, transfer_size) {
                let object: Vec<u64> =
                    part.runs.extents().flat_map(|e| e.offset..e.end()).collect();
                let addresses: Vec<usize> = part.memory.iter()
                    .flat_map(|s| { let p = s.pointer as usize - base; p..p + s.length }).collect();
                prop_assert_eq!(object.len(), addresses.len());
                for (object_offset, address) in object.into_iter().zip(addresses) {
                    prop_assert!(places[address].replace((part.column, object_offset)).is_none());
                }
            }
            let expected: Vec<_> = file.iter()
                .flat_map(|e| e.offset..e.end()).map(|o| Some(layout.locate(o))).collect();
            prop_assert_eq!(places, expected);
        }
    }
}
