//! Writes: fresh memory first, the map last.

use super::arena::{CHUNK_BYTES, CLASSES, SLOT_BYTES, Slot, WHOLE, class_of};
use super::chunk::{Piece, SPARSE, cost_max, cost_max_on_disk};
use super::{OBJECT_COST, State, Target};
use crate::copying::copy;
use crate::error::{Code, Error, Result};
use crate::slice::Slice;
use crate::types::{ClientId, Ino, Now};
use crate::wire::data::{Io, Witness};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Consecutive ranges of a payload that fall into one chunk, ascending and disjoint there. They
/// share one slot. (A list that comes back to a chunk makes another part, stored after this one.)
#[derive(Debug)]
struct Part {
    chunk: u64,
    /// Its ranges: `Draft::ranges[first..last]`.
    first: usize,
    last: usize,
    class: u8,
    /// The payload lies in the slot where it lies in the chunk, so that the slot can become the
    /// chunk; otherwise it lies there without gaps.
    straight: bool,
}

/// A payload cut up at the chunks' borders.
#[derive(Debug, Default)]
pub(super) struct Draft {
    ranges: Vec<(u32, u32)>,
    parts: Vec<Part>,
    /// One past the last byte.
    end: u64,
}

impl Draft {
    fn new(io: &Io) -> Draft {
        let size = CHUNK_BYTES as u64;
        let mut draft = Draft::default();
        for extent in io.runs.extents() {
            let mut offset = extent.offset;
            while offset < extent.end() {
                let chunk = offset / size;
                let end = extent.end().min((chunk + 1) * size);
                draft.push(chunk, (offset - chunk * size) as u32, (end - chunk * size) as u32);
                offset = end;
            }
            if extent.length > 0 {
                draft.end = draft.end.max(extent.end());
            }
        }
        draft
    }

    /// Blocks that must be free for a write to be let in, at the least. None: it waits for room on
    /// disk as yet.
    pub(super) fn needed(state: &mut State, io: &Io) -> Option<isize> {
        let mut draft = Draft::new(io);
        draft.plan(state, io.ino, true);
        let overwrites = draft.overwrites(state, io.ino);
        let room = state.room_on_disk(draft.parts.len(), overwrites);
        if room.is_err_and(|error| error.code == Code::Busy) {
            return None;
        }
        let floor = state.floor(overwrites);
        let needed = state.chunks.arena.needed(&draft.slots(), draft.cost(state)) as isize + floor;
        Some(needed)
    }

    fn push(&mut self, chunk: u64, start: u32, end: u32) {
        let behind = self.ranges.last().is_some_and(|range| range.1 <= start);
        self.ranges.push((start, end));
        let last = self.ranges.len();
        match self.parts.last_mut() {
            Some(part) if part.chunk == chunk && behind => part.last = last,
            _ => {
                let (first, straight) = (last - 1, false);
                self.parts.push(Part { chunk, first, last, class: WHOLE, straight });
            }
        }
    }

    /// Chooses each part's slot. `tight`: the smallest that holds it.
    fn plan(&mut self, state: &State, ino: Ino, tight: bool) {
        let object = state.objects.get(&ino);
        let ranges = &self.ranges;
        for part in &mut self.parts {
            let ranges = &ranges[part.first..part.last];
            let payload: usize = ranges.iter().map(|range| (range.1 - range.0) as usize).sum();
            let end = ranges[ranges.len() - 1].1 as usize;
            let old = object.and_then(|object| object.chunks.get(&part.chunk));
            let length = old.map_or(0, |chunk| chunk.length as usize);
            // What is only on disk is not merged with: it need not be read if all of it is written.
            let resident = old.is_none_or(|&chunk| state.chunks.covered((ino, part.chunk), chunk));
            let present = if resident { length } else { 0 };
            let room = old.and_then(|&chunk| state.chunks.own_slot_bytes(chunk)).unwrap_or(0);
            let compact = class_of(payload);
            // A write over all that is there needs no room for the rest of it.
            let whole = ranges[0].0 == 0 && ranges.len() == 1 && end >= length;
            let full = class_of(if whole { end } else { present.max(end) });
            let merges = end <= room && payload * 2 <= present.max(end);
            let dense = (present + payload) * SPARSE >= SLOT_BYTES[usize::from(full)];
            // What is merged is copied to its place in the end: until then it is received faster, and
            // not copied, where it lies without gaps.
            part.straight = !merges && (full == compact || (!tight && dense));
            part.class = if part.straight { full } else { compact };
        }
    }

    fn slots(&self) -> [usize; CLASSES] {
        let mut slots = [0; CLASSES];
        for part in &self.parts {
            slots[usize::from(part.class)] += 1;
        }
        slots
    }

    /// Bookkeeping that storing it can add: bytes.
    fn cost(&self, state: &State) -> u64 {
        if self.parts.is_empty() {
            return 0;
        }
        let cost_max = if state.flow.is_some() { cost_max_on_disk } else { cost_max };
        let parts = self.parts.iter().map(|part| cost_max(part.last - part.first));
        OBJECT_COST + parts.sum::<u64>()
    }

    /// Whether every byte of it is stored already.
    fn overwrites(&self, state: &State, ino: Ino) -> bool {
        let Some(object) = state.objects.get(&ino) else { return false };
        self.parts.iter().all(|part| {
            object.chunks.get(&part.chunk).is_some_and(|&chunk| {
                let ranges = &self.ranges[part.first..part.last];
                state.chunks.stored((ino, part.chunk), chunk, ranges)
            })
        })
    }
}

impl State {
    /// Whether the drafted slots can be had.
    fn admit(&mut self, draft: &Draft, overwrites: bool) -> Result<()> {
        let cost = draft.cost(self);
        let floor = self.floor(overwrites);
        let needed = self.chunks.arena.needed(&draft.slots(), cost) as isize;
        if self.flow.is_some() {
            self.room_on_disk(draft.parts.len(), overwrites)?;
            if self.make_room(needed + floor) {
                return Ok(());
            }
            if needed + floor >= self.chunks.arena.blocks() as isize {
                return Err(Code::NoSpace.into());
            }
            if self.room_comes() || (overwrites && self.tickets > 0) {
                return Err(Error::because(Code::Busy, "memory waits for the disk"));
            }
            return Err(self.no_room());
        }
        let arena = &self.chunks.arena;
        let reserve = self.chunks.reserve;
        let short = needed - (arena.available() - floor);
        if short <= 0 {
            return Ok(());
        }
        // What overwriting holds comes back: worth waiting for. What is stored does not.
        let comes_back = if overwrites {
            self.tickets > 0 && needed <= reserve as isize
        } else {
            short <= self.overwrite_blocks as isize
        };
        if comes_back {
            return Err(Error::because(Code::Busy, "all free memory is in use by other requests"));
        }
        Err(Code::NoSpace.into())
    }
}

/// Memory reserved for a write. Receive the payload into [`WriteTicket::buffers`], then
/// [`WriteTicket::commit`]; dropping it instead changes nothing.
#[derive(Debug)]
#[must_use = "a write that is not committed changes nothing"]
pub struct WriteTicket {
    target: Arc<Target>,
    ino: Ino,
    /// Newest data epoch that the client knows.
    epoch: u32,
    buffers: Vec<Slice>,
    cold: bool,
    draft: Draft,
    /// A slot for each part; empty once they are given away.
    slots: Vec<Slot>,
    cost: u64,
    overwrite_blocks: usize,
    /// Neither committed nor dropped.
    open: bool,
}

impl Target {
    /// Reserves fresh memory for the whole payload of a write and room for what committing it may
    /// need. Fails with [`Code::Lost`], [`Code::Stale`], [`Code::NoSpace`], [`Code::Busy`], or for
    /// extents out of bounds; nothing has changed then.
    pub fn begin_write(self: &Arc<Target>, _now: Now, io: &Io) -> Result<WriteTicket> {
        self.check_io(io)?;
        let ino = io.ino;
        let mut draft = Draft::new(io);
        let mut state = self.lock();
        draft.plan(&state, ino, false);
        let overwrites = state.restoring || draft.overwrites(&state, ino);
        if state.admit(&draft, overwrites).is_err() {
            draft.plan(&state, ino, true);
            if let Err(error) = state.admit(&draft, overwrites) {
                drop(state);
                self.pump();
                return Err(error);
            }
        }
        let counts = draft.slots();
        let cost = draft.cost(&state);
        let overwrite_blocks =
            if overwrites { state.chunks.arena.needed(&counts, cost) } else { 0 };
        let arena = &mut state.chunks.arena;
        arena.charge(cost);
        let granted = "what was admitted is there";
        let mut whole =
            arena.allocate_blocks(counts[usize::from(WHOLE)]).expect(granted).into_iter();
        let slots: Vec<Slot> = draft
            .parts
            .iter()
            .map(|part| match part.class {
                WHOLE => whole.next().expect(granted),
                class => arena.allocate(class).expect(granted),
            })
            .collect();
        let mut buffers: Vec<Slice> = Vec::new();
        for (part, &slot) in draft.parts.iter().zip(&slots) {
            for piece in draft.pieces(part, slot) {
                let pointer = arena.pointer(slot, piece.at as usize);
                let slice = Slice { pointer, length: piece.length() };
                if !buffers.last_mut().is_some_and(|last| last.join(slice)) {
                    buffers.push(slice);
                }
            }
        }
        let is_whole = |(part, _): &(&Part, &Slot)| part.class == WHOLE;
        let mut whole = draft.parts.iter().zip(&slots).filter(is_whole);
        let cold = io.runs.length() >= CHUNK_BYTES
            && counts[usize::from(WHOLE)] > 0
            && whole.all(|(_, &slot)| arena.was_cold(slot));
        state.tickets += 1;
        state.parts += draft.parts.len();
        state.overwrite_blocks += overwrite_blocks;
        drop(state);
        let target = Arc::clone(self);
        let epoch = io.epoch;
        Ok(WriteTicket {
            target,
            ino,
            epoch,
            buffers,
            cold,
            draft,
            slots,
            cost,
            overwrite_blocks,
            open: true,
        })
    }
}

impl Draft {
    fn pieces(&self, part: &Part, slot: Slot) -> impl Iterator<Item = Piece> {
        let mut at = 0;
        self.ranges[part.first..part.last].iter().map(move |&(start, end)| {
            let from = if part.straight { start } else { at };
            at += end - start;
            Piece { start, end, slot, at: from }
        })
    }
}

impl WriteTicket {
    /// Where the payload goes, in its order. The slices do not overlap, and are this ticket's alone
    /// until it is committed or dropped: whoever writes into them must have finished by then.
    pub fn buffers(&self) -> &[Slice] {
        &self.buffers
    }

    /// Whether it is much, for memory that probably no processor has in its cache: then it is better copied past
    /// the caches.
    pub fn is_cold(&self) -> bool {
        self.cold
    }

    /// Length of the payload: bytes.
    pub fn length(&self) -> usize {
        self.buffers.iter().map(|slice| slice.length).sum()
    }

    #[cfg(test)]
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// Fills the buffers by copying: for drivers that have the payload in memory already.
    pub fn fill(&mut self, mut payload: &[u8]) {
        assert_eq!(payload.len(), self.length(), "a payload fills its buffers");
        for slice in &self.buffers {
            let (part, rest) = payload.split_at(slice.length);
            payload = rest;
            // SAFETY: the slice lies within slots to which only this ticket refers, and `&mut self`
            // keeps other safe code from writing there; `part` is as long and lies elsewhere.
            unsafe { copy(part.as_ptr(), slice.pointer, slice.length) };
        }
    }

    /// Puts what was received into the map; call it only when all buffers are filled. Answers with
    /// the object's state afterwards.
    pub fn commit(mut self, now: Now) -> Result<Witness> {
        let slots = std::mem::take(&mut self.slots);
        let target = Arc::clone(&self.target);
        let mut state = target.lock();
        self.settle(&mut state);
        if slots.is_empty() {
            return Ok(state.witness(self.ino));
        }
        let life = state.life;
        let (object, store) = state.object(self.ino);
        let mut pieces = Vec::new();
        for (part, slot) in self.draft.parts.iter().zip(slots) {
            pieces.clear();
            pieces.extend(self.draft.pieces(part, slot));
            let key = (self.ino, part.chunk);
            object.change(store, key, |store, old| store.write(key, old, slot, &pieces));
        }
        object.begin_epoch(self.epoch);
        object.witness.size = object.witness.size.max(self.draft.end);
        object.touch(now);
        let witness = Witness { life, ..object.witness };
        if state.is_kept() {
            let ranges = |part: &Part| {
                let ranges = &self.draft.ranges[part.first..part.last];
                (part.chunk, ranges[0].0, ranges[ranges.len() - 1].1)
            };
            let changed: Vec<_> = self.draft.parts.iter().map(ranges).collect();
            state.unsaved(self.ino, &changed);
        }
        state.memory_came_back();
        drop(state);
        target.pump();
        Ok(witness)
    }

    /// Where it goes.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Closes the ticket and gives back what was set aside beside the slots.
    fn settle(&mut self, state: &mut State) {
        self.open = false;
        state.chunks.arena.discharge(self.cost);
        state.overwrite_blocks -= self.overwrite_blocks;
        state.tickets -= 1;
        state.parts -= self.draft.parts.len();
    }
}

/// A wait for a writer's turn. See [`Target::turn`].
#[derive(Debug)]
pub struct Turn {
    target: Arc<Target>,
    number: u64,
}

impl Target {
    /// Whether the answer to a write of so many bytes should wait, because writers are ahead of the
    /// disk: until it is this client's turn.
    pub fn turn(self: &Arc<Target>, client: ClientId, bytes: u64) -> Option<Turn> {
        self.disk.as_ref()?;
        let mut state = self.lock();
        let lead = state.flow.as_ref()?.turns.lead(client);
        let ahead = state.ahead(lead);
        let turns = &mut state.flow.as_mut()?.turns;
        if !ahead {
            turns.count(client, bytes);
            return None;
        }
        let number = turns.join(client, bytes);
        drop(state);
        self.pump();
        Some(Turn { target: Arc::clone(self), number })
    }
}

impl Future for Turn {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.target.lock();
        let passed = match &mut state.flow {
            Some(flow) => flow.turns.passed(self.number, context.waker()),
            None => true,
        };
        if passed { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A poisoned lock means that somebody panicked and said so: no second panic here.
        let Ok(mut state) = self.target.state.lock() else { return };
        state.flow.iter_mut().for_each(|flow| flow.turns.leave(self.number));
    }
}

impl Drop for WriteTicket {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let target = Arc::clone(&self.target);
        // A poisoned lock means that somebody panicked and said so: no second panic here.
        let Ok(mut state) = target.state.lock() else { return };
        for slot in std::mem::take(&mut self.slots) {
            state.chunks.arena.release(slot);
        }
        self.settle(&mut state);
        state.memory_came_back();
        drop(state);
        target.pump();
    }
}
