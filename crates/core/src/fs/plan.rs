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
        self.append(memory);
    }

    fn append(&mut self, memory: Slice) {
        if !self.memory.last_mut().is_some_and(|last| last.join(memory)) {
            self.memory.push(memory);
        }
        self.length += memory.length;
    }

    /// How many more extents of so many bytes there is room for.
    fn room(&self, limit: usize, length: usize) -> usize {
        ((limit - self.length) / length).min(LIST_EXTENTS_MAX - self.runs.extents())
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
    let mut next = 0;
    while let Some(extent) = file.get(next) {
        next += 1;
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
        // What goes on in the same stripe at the same distance is added all at once.
        let (column, stripe) = pieces.stripe();
        let column = &mut columns[column];
        let before = next.checked_sub(2).and_then(|before| file.get(before));
        let Some(stride) = before.and_then(|before| extent.offset.checked_sub(before.offset))
        else {
            continue;
        };
        if extent.offset < stripe.start || !column.runs.is_regular(extent.length, stride) {
            continue;
        }
        let length = extent.length as usize;
        let room = column.room(limit, length).min(current.length / length);
        let mut expected = *extent;
        let alike = |extent: &&Extent| {
            expected.offset += stride;
            **extent == expected && extent.end() <= stripe.end
        };
        let count = file[next..].iter().take(room).take_while(alike).count();
        if count == 0 {
            continue;
        }
        column.runs.repeat(count);
        column.append(current.part(0, count * length));
        current = current.part(count * length, current.length - count * length);
        next += count;
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

    #[test]
    fn a_list_is_cut_at_its_limits() {
        let count = 2 * LIST_EXTENTS_MAX + 5;
        let mut bytes = vec![0; count * 8];
        let extent = |i: usize| Extent { offset: i as u64 * 16, length: 8 };
        let file: Vec<_> = (0..count).map(extent).collect();
        let parts = plan(&layout(1 << 30, 1), &file, &[Slice::to_write(&mut bytes)], 40);
        let extents: Vec<_> = parts.iter().map(|part| part.runs.extents().count()).collect();
        assert_eq!(extents, [LIST_EXTENTS_MAX, LIST_EXTENTS_MAX, 5]);
        let mut bytes = vec![0; PAYLOAD_BYTES_MAX + 2048];
        let extent = |i: usize| Extent { offset: i as u64 * 4096, length: 2048 };
        let file: Vec<_> = (0..bytes.len() / 2048).map(extent).collect();
        let parts = plan(&layout(1 << 30, 1), &file, &[Slice::to_write(&mut bytes)], 40);
        let lengths: Vec<_> = parts.iter().map(|part| part.runs.length()).collect();
        assert_eq!(lengths, [PAYLOAD_BYTES_MAX, 2048]);
        assert!(parts.iter().all(|part| part.memory.len() == 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

        /// Every byte of the list goes to its own place, from its own memory, in order.
        #[test]
        fn bytes_and_memory_stay_together(
            runs in proptest::collection::vec((0u64..300, 1u64..40, 0u64..20, 1u64..20), 1..10),
            cuts in proptest::collection::vec(prop_oneof![1usize..30, 1usize..2000], 1..10),
            stripe_size in prop_oneof![1u64..20, 1u64..500], count in 1u32..5,
            transfer_size in 1usize..50,
        ) {
            // Several at a regular distance, and single ones.
            let extents = runs.into_iter().flat_map(|(offset, length, gap, count)| {
                (0..count).map(move |i| (offset + i * (length + gap), length))
            });
            let layout = layout(stripe_size, count);
            let file: Vec<_> =
                extents.map(|(offset, length)| Extent { offset, length }).collect();
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
