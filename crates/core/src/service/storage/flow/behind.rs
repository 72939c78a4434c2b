//! Write-behind: which dirty chunks go to disk together, and what becomes of them.

use super::super::State;
use super::super::arena::{CHUNK_BYTES, Move, Slot, class_of};
use super::super::chunk::Key;
use super::super::disk::{BLOCK_BYTES, DiskError};
use super::super::tier::{Base, QUARTERS, Queue, Tier, blocks_of};
use super::{
    BUFFERS_MAX, FAILURES_ON_END_MAX, LOOKED_AT_MAX, OVERLAYS_MAX, READS_AHEAD_MAX,
    WRITE_BYTES_MAX, WRITES_MAX, chunk_of,
};
use crate::error::{Code, Error};
use std::ops::Bound;

/// A chunk on its way to disk.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) key: Key,
    /// Its content, pinned. As long as the chunk is still this slot, what is written is the chunk.
    pub(super) source: Slot,
    /// What is written: the source, or a copy where that is too small for the disk.
    pub(super) from: Slot,
    pub(super) length: u32,
    pub(super) sums: [u32; QUARTERS],
}

/// A request of write-behind.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    pub(super) block: u32,
    pub(super) blocks: usize,
}

impl State {
    /// Reads what is missing of chunks that were written in part, oldest first: where somebody waits
    /// and nothing else can be written, or where they hold much memory. Until then they may yet be
    /// overwritten wholly.
    fn complete_overlays(&mut self) {
        let (Some(flow), Some(tier)) = (&self.flow, &self.chunks.tier) else { return };
        let (count, bytes) = tier.overlays();
        let urged = flow.urged || !flow.queue.is_empty() || !flow.turns.is_empty();
        let alone = tier.waiting() == 0 || !tier.has_room();
        let much = bytes > flow.background_bytes || (urged && alone);
        if count == 0 || !much || flow.reads.len() >= READS_AHEAD_MAX || flow.failed.is_some() {
            return;
        }
        for _ in 0..count.min(OVERLAYS_MAX) {
            let Some(tier) = &mut self.chunks.tier else { return };
            let Some(id) = tier.oldest_overlay() else { return };
            let (key, stuck) = (tier.record(id).key, tier.record(id).stuck);
            // Others are looked at first next time; one whose rest cannot be read stays in memory
            // until it is written again.
            tier.put(id, if stuck { Queue::None } else { Queue::Overlay });
            let Some(chunk) = chunk_of(&mut self.objects, key, id).copied() else {
                self.chunks.tier.as_mut().expect("a target with a disk").put(id, Queue::None);
                continue;
            };
            let under_way = self.flow.as_ref().and_then(|flow| flow.fetching.get(&key));
            let mask =
                self.lacks(key, chunk, 0, CHUNK_BYTES as u32) & !under_way.copied().unwrap_or(0);
            if !stuck && mask != 0 && !self.fetch(&[(key, mask)], 0) {
                return;
            }
        }
    }

    /// Takes dirty chunks for one request, and pins them. Until it is under way it counts as being summed
    /// up.
    pub(super) fn draft(&mut self) -> Option<Batch> {
        if self.quiet {
            return None;
        }
        self.complete_overlays();
        let State { flow, chunks, .. } = self;
        let (flow, tier) = (flow.as_mut()?, chunks.tier.as_ref()?);
        if flow.failed.is_some() || !tier.has_room() {
            flow.give_up_wanted();
        }
        flow.sweep = flow.sweep.min(tier.waiting());
        let urged =
            flow.urged || !flow.queue.is_empty() || !flow.turns.is_empty() || flow.sweep > 0;
        // Large requests, unless somebody waits.
        let much = tier.dirty_bytes() > flow.background_bytes
            && tier.waiting_bytes() >= flow.background_bytes.min(WRITE_BYTES_MAX as u64);
        if flow.failed.is_some()
            || flow.writes.len() >= WRITES_MAX
            || (tier.waiting() == 0 && flow.wanted.is_empty())
            || !(urged || much || !flow.wanted.is_empty())
            || !tier.has_room()
        {
            return None;
        }
        let mut items: Vec<Item> = Vec::new();
        let mut bytes = 0;
        let mut looked_at = (tier.waiting() + flow.wanted.len() as u64).min(LOOKED_AT_MAX as u64);
        while bytes < WRITE_BYTES_MAX && items.len() < BUFFERS_MAX && looked_at > 0 {
            looked_at -= 1;
            let wanted = self.next_wanted();
            let tier = self.chunks.tier.as_ref().expect("a target with a disk");
            let oldest = tier.oldest_dirty().filter(|_| urged || much);
            let Some(mut id) = wanted.or(oldest) else { break };
            let (ino, mut index) = tier.record(id).key;
            let (first, before) = ((ino, index), items.len());
            // The chunk, and those behind it in its object.
            while let Some(item) = self.take_dirty((ino, index), id) {
                bytes += blocks_of(item.length) * BLOCK_BYTES;
                items.push(item);
                if bytes + CHUNK_BYTES > WRITE_BYTES_MAX || items.len() == BUFFERS_MAX {
                    looked_at = 0;
                    break;
                }
                index += 1;
                let object = self.objects.get(&ino);
                let next = object.and_then(|object| object.chunks.get(&index));
                let tier = self.chunks.tier.as_ref().expect("a target with a disk");
                match next {
                    Some(chunk) if tier.waits(chunk.record) => id = chunk.record,
                    _ => break,
                }
            }
            if items.len() == before {
                self.flow.as_mut().expect("a target with a disk").landed(first);
            }
        }
        let wanted = items.iter().map(|item| blocks_of(item.length)).sum();
        let tier = self.chunks.tier.as_mut().expect("a target with a disk");
        let kept = tier.ledger.is_some();
        let (block, blocks) = tier.space.allocate(wanted, kept).unwrap_or((0, 0));
        let mut used = 0;
        let mut fit = 0;
        while let Some(item) = items.get(fit)
            && used + blocks_of(item.length) <= blocks
        {
            used += blocks_of(item.length);
            fit += 1;
        }
        if used == 0 && !items.is_empty() {
            tier.space.set_scattered();
        }
        if used < blocks {
            tier.space.trim(block + used as u32, blocks - used);
        }
        for item in items.split_off(fit) {
            let flow = self.flow.as_mut().expect("a target with a disk");
            if fit > 0 && flow.flying.remove(&item.key) {
                flow.wanted.insert(item.key);
            }
            self.give_back(item);
        }
        let flow = self.flow.as_mut().expect("a target with a disk");
        flow.sweep = flow.sweep.saturating_sub(items.len() as u64);
        for item in &items {
            if flow.wanted.remove(&item.key) {
                flow.flying.insert(item.key);
            }
        }
        if items.is_empty() {
            return None;
        }
        flow.summing += 1;
        Some(Batch { items, block, blocks: used })
    }

    /// The record of a chunk that somebody wants on disk and that can be written now. Those that
    /// cannot are not wanted any more.
    fn next_wanted(&mut self) -> Option<u32> {
        let State { chunks: store, objects, flow, .. } = self;
        let (flow, tier) = (flow.as_mut()?, store.tier.as_ref()?);
        loop {
            let behind = (Bound::Excluded(flow.taken), Bound::Unbounded);
            let key = flow.wanted.range(behind).next().or(flow.wanted.first()).copied()?;
            flow.taken = key;
            let chunk = objects.get(&key.0).and_then(|object| object.chunks.get(&key.1));
            match chunk.map(|chunk| (chunk.record, tier.record(chunk.record))) {
                // Wanted until it is on its way; should it not get there, it is looked at again.
                Some((id, _)) if tier.waits(id) => {
                    flow.wanted.remove(&key);
                    flow.flying.insert(key);
                    return Some(id);
                }
                Some((_, record)) if record.is_under_way() => {
                    flow.wanted.remove(&key);
                    flow.flying.insert(key);
                }
                _ => {
                    flow.wanted.remove(&key);
                    flow.wakers.append(&mut flow.savers);
                }
            }
        }
    }

    /// Pins a dirty chunk's content for writing. None: it cannot be written now, or is no more.
    fn take_dirty(&mut self, key: Key, id: u32) -> Option<Item> {
        let State { chunks: store, objects, .. } = self;
        let Some(chunk) = chunk_of(objects, key, id) else {
            store.tier.as_mut()?.put(id, Queue::None);
            return None;
        };
        // Whatever happens now, others are looked at first next time.
        store.tier.as_mut()?.put(id, Queue::Dirty);
        *chunk = store.compact(key, *chunk)?;
        let source = chunk.slot()?;
        let length = chunk.length;
        let from = if store.arena.size(source) >= BLOCK_BYTES {
            source
        } else {
            // Disks take whole blocks.
            let from = store.arena.allocate(class_of(BLOCK_BYTES))?;
            let n = length as usize;
            store.arena.copy(Move { from: source, from_at: 0, to: from, to_at: 0, n });
            from
        };
        store.arena.retain(source);
        store.tier.as_mut()?.put(id, Queue::None);
        Some(Item { key, source, from, length, sums: [0; QUARTERS] })
    }

    /// Lets go of a chunk that was to be written: it is dirty as before, and the next one again. One
    /// that was changed meanwhile has its place among the others already.
    fn give_back(&mut self, item: Item) {
        let State { chunks: store, objects, flow, .. } = self;
        flow.iter_mut().for_each(|flow| flow.landed(item.key));
        let chunk = objects.get(&item.key.0).and_then(|object| object.chunks.get(&item.key.1));
        if let Some(&chunk) = chunk.filter(|chunk| chunk.record != 0) {
            let covered = store.covered(item.key, chunk);
            let tier = store.tier.as_mut().expect("a target with a disk");
            if tier.record(chunk.record).is_under_way() {
                tier.set_dirty(chunk.record, covered);
            }
        }
        self.unpin(&item);
    }

    fn unpin(&mut self, item: &Item) {
        self.chunks.arena.release(item.source);
        if item.from != item.source {
            self.chunks.arena.release(item.from);
        }
    }

    /// A request of write-behind has ended.
    pub(super) fn written(&mut self, batch: Batch, result: Result<(), DiskError>) {
        if let Err(error) = result {
            return self.not_written(batch, error);
        }
        self.flow.as_mut().expect("a target with a disk").failures_on_end = 0;
        let mut block = batch.block;
        for item in batch.items {
            let blocks = blocks_of(item.length);
            let State { chunks: store, objects, flow, .. } = self;
            flow.iter_mut().for_each(|flow| flow.landed(item.key));
            let tier = store.tier.as_mut().expect("a target with a disk");
            let chunk = objects.get(&item.key.0).and_then(|object| object.chunks.get(&item.key.1));
            match chunk {
                // The slot is pinned: as long as it is the chunk, nobody has written to it. What was
                // cut off meanwhile does not count.
                Some(chunk)
                    if chunk.slot() == Some(item.source)
                        && chunk.length <= item.length
                        && tier.record(chunk.record).dirty =>
                {
                    let (length, visible) = (item.length, chunk.length);
                    let base = Base { block, length, visible, sums: item.sums };
                    tier.written(chunk.record, base);
                }
                _ => tier.space.release(block, blocks),
            }
            block += blocks as u32;
            self.unpin(&item);
        }
        let flow = self.flow.as_mut().expect("a target with a disk");
        flow.urged = false;
        flow.wake_first();
        let bytes = (batch.blocks * BLOCK_BYTES) as u64;
        let dirty = self.chunks.tier.as_ref().map_or(0, Tier::dirty_bytes);
        let room = flow.dirty_bytes_max.checked_sub(dirty);
        flow.turns.pass(bytes, room, &mut flow.wakers);
    }

    fn not_written(&mut self, batch: Batch, error: DiskError) {
        let flow = self.flow.as_mut().expect("a target with a disk");
        flow.counters.errors += 1;
        flow.failures_on_end += 1;
        // EROFS, ENODEV, ENXIO: it will not get better.
        let for_good = matches!(error, DiskError::Os(30 | 19 | 6));
        if for_good || flow.failures_on_end >= FAILURES_ON_END_MAX {
            flow.failed = Some(error.clone());
        }
        let tier = self.chunks.tier.as_mut().expect("a target with a disk");
        tier.space.condemn(batch.blocks);
        for item in batch.items {
            if let Some(object) = self.objects.get_mut(&item.key.0) {
                let cause = format!(
                    "writing {} bytes of inode {} at object offset {}: {error}; they are in memory only",
                    item.length,
                    item.key.0.0,
                    item.key.1 * CHUNK_BYTES as u64
                );
                object.trouble = Some(Box::new(Error::because(Code::Disk, cause)));
            }
            self.give_back(item);
        }
        let flow = self.flow.as_mut().expect("a target with a disk");
        if flow.failed.is_some() {
            flow.turns.pass(u64::MAX, None, &mut flow.wakers);
        }
        flow.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::disk::MemoryDisk;
    use super::super::super::{HeapMemory, Target};
    use super::*;
    use crate::layout::{Extent, Member};
    use crate::types::{Incarnation, Ino, Now, TargetId};
    use crate::wire::data::{Io, Runs};
    use std::sync::Arc;

    /// While one event loop summed up all that was dirty, another found nothing under way, and told a
    /// writer that there is no room.
    #[test]
    fn what_is_being_summed_up_gives_its_memory_back_by_itself() {
        let member = Member { target: TargetId(3), incarnation: Incarnation(7) };
        let memory = Box::new(HeapMemory::new(64 * CHUNK_BYTES));
        let target = Target::with(member, 1, memory, Some(Arc::new(MemoryDisk::new(4096))));
        let runs = Runs::One(Extent { offset: 0, length: 4 * CHUNK_BYTES as u64 });
        let io = Io { ino: Ino(1), member, map_epoch: 1, generation: 1, epoch: 0, runs };
        let mut ticket = target.begin_write(Now::default(), &io).expect("room");
        ticket.fill(&vec![1; 4 * CHUNK_BYTES]);
        ticket.commit(Now::default()).expect("stored");
        let mut state = target.state.lock().expect("nobody panicked");
        assert!(state.room_comes(), "it is dirty, and can be written");
        let batch = state.draft().expect("somebody wants memory");
        assert_eq!(
            (batch.items.len(), state.chunks.tier.as_ref().map(Tier::waiting)),
            (4, Some(0))
        );
        assert!(state.room_comes(), "it is on its way");
        state.flow.as_mut().expect("a disk").summing -= 1;
        state.written(batch, Ok(()));
        assert!(!state.room_comes(), "nothing is dirty any more");
    }
}
