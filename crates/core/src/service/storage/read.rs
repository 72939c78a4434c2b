//! Reads: pinned slots, and zeros for holes.

use super::arena::{CHUNK_BYTES, Slot};
use super::chunk::{Chunk, Content, Key, Piece};
use super::{State, Target};
use crate::error::{Code, Result};
use crate::layout::Extent;
use crate::types::{ClientId, Ino};
use crate::wire::data::{Io, Witness};
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// What holes are sent from.
static ZEROS: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

/// Bytes of an object as they were when they were asked for. They stay so, and take up memory,
/// until the ticket is dropped.
pub struct ReadTicket {
    target: Arc<Target>,
    ino: Ino,
    witness: Witness,
    length: usize,
    /// In truth they live as long as the pins; lent out for no longer than `self`.
    slices: Vec<&'static [u8]>,
    pins: Vec<Held>,
}

/// A reference to a slot, and the index of the chunk to which it belonged.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Held {
    slot: Slot,
    chunk: u64,
}

impl Target {
    /// Pins what the extents name. The payload ends behind the last byte asked for that lies below
    /// the object's size; holes before that are zeros. An object that is not there is empty.
    /// Fails with [`crate::error::Code::Lost`], [`crate::error::Code::Stale`], or for extents out of
    /// bounds.
    ///
    /// Where a disk must be waited for, [`crate::error::Code::WouldBlock`]: see [`Target::reading`].
    pub fn read(self: &Arc<Target>, io: &Io) -> Result<ReadTicket> {
        self.read_for(ClientId(0), io)
    }

    /// The same for a client whose reading is looked at, to read ahead of it.
    pub fn read_for(self: &Arc<Target>, client: ClientId, io: &Io) -> Result<ReadTicket> {
        self.check_io(io)?;
        if self.disk.is_none() {
            return Ok(self.gather(&mut self.lock(), io));
        }
        let result = {
            let mut state = self.lock();
            let read_on = state.look_ahead(client, io);
            let (keys, _) = state.lacking(io.ino, spans(io), false);
            if keys.is_empty() {
                state.touch(io, read_on);
                // Pinned first: reading ahead may take other chunks out of memory.
                let ticket = self.gather(&mut state, io);
                state.read_ahead(io.ino);
                Ok(ticket)
            } else {
                // Whoever goes on to wait for it looks after the disk.
                return Err(Code::WouldBlock.into());
            }
        };
        self.pump();
        result
    }

    /// A read that waits for the disk where it must: all that is missing is asked for at once, and
    /// stays in memory until it was seen. Fails as [`Target::read`] does, or with
    /// [`crate::error::Code::Disk`].
    pub fn reading(self: &Arc<Target>, io: Io) -> Reading {
        Reading { target: Arc::clone(self), io, id: None }
    }

    fn gather(self: &Arc<Target>, state: &mut State, io: &Io) -> ReadTicket {
        let witness = state.witness(io.ino);
        let extents = io.runs.extents();
        let below = |extent: &Extent| extent.length > 0 && extent.offset < witness.size;
        let count = extents.clone().enumerate().filter(|(_, extent)| below(extent)).last();
        let count = count.map_or(0, |(last, _)| last + 1);
        let mut gather = Gather::default();
        let mut walk = Walk::new(state, io.ino);
        for (i, mut extent) in extents.take(count).enumerate() {
            if i + 1 == count {
                extent.length = extent.length.min(witness.size - extent.offset);
            }
            gather.add(&mut walk, extent);
        }
        for pin in &gather.pins {
            state.chunks.arena.retain(pin.slot);
        }
        state.tickets += 1;
        ReadTicket {
            target: Arc::clone(self),
            ino: io.ino,
            witness,
            length: gather.spans.iter().map(|span| span.length).sum(),
            slices: gather.slices(),
            pins: gather.pins,
        }
    }
}

fn spans(io: &Io) -> impl Iterator<Item = (u64, u64)> + '_ {
    io.runs.extents().map(|extent| (extent.offset, extent.end()))
}

/// A read under way. See [`Target::reading`].
pub struct Reading {
    target: Arc<Target>,
    io: Io,
    /// Its number among those that wait.
    id: Option<u64>,
}

impl Future for Reading {
    type Output = Result<ReadTicket>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<ReadTicket>> {
        let Reading { target, io, id } = &mut *self;
        let result = target.poll_read(io, id, context.waker());
        target.pump();
        result
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.target.give_up(self.id);
    }
}

impl Target {
    fn poll_read(
        self: &Arc<Target>,
        io: &Io,
        id: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<ReadTicket>> {
        self.check_io(io)?;
        let mut state = self.lock();
        if state.flow.is_none() {
            return Poll::Ready(Ok(self.gather(&mut state, io)));
        }
        if let Some(number) = *id
            && let Some(error) = state.reader_error(number)
        {
            return Poll::Ready(Err(error));
        }
        let (keys, wanted) = state.lacking(io.ino, spans(io), false);
        if keys.is_empty() {
            state.touch(io, false);
            let ticket = self.gather(&mut state, io);
            if let Some(number) = id.take() {
                state.flow.iter_mut().for_each(|flow| flow.leave(number));
            }
            state.read_ahead(io.ino);
            return Poll::Ready(Ok(ticket));
        }
        let all = |state: &State| state.named(io);
        match state.wait_for(id, waker, keys, &wanted, all) {
            Ok(()) => {
                state.read_ahead(io.ino);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl State {
    /// The chunks that are there of what a request names.
    fn named(&self, io: &Io) -> Vec<Key> {
        let size = CHUNK_BYTES as u64;
        let Some(object) = self.objects.get(&io.ino) else { return Vec::new() };
        let mut keys = Vec::new();
        for (start, end) in spans(io).filter(|(start, end)| start < end) {
            let range = object.chunks.range(start / size..end.div_ceil(size));
            for (&index, _) in range {
                if keys.last() != Some(&(io.ino, index)) {
                    keys.push((io.ino, index));
                }
            }
        }
        keys
    }

    /// Counts a hit of each chunk. Who reads on in small steps hits each only once.
    fn touch(&mut self, io: &Io, reads_on: bool) {
        let size = CHUNK_BYTES as u64;
        let State { chunks: store, objects, .. } = self;
        let (Some(tier), Some(object)) = (&mut store.tier, objects.get(&io.ino)) else { return };
        for (start, end) in spans(io).filter(|(start, end)| start < end) {
            let first = if reads_on { start.div_ceil(size) } else { start / size };
            for (_, chunk) in object.chunks.range(first..end.div_ceil(size).max(first)) {
                if chunk.record != 0 {
                    tier.touch(chunk.record);
                }
            }
        }
    }
}

impl ReadTicket {
    /// The payload, in order.
    pub fn slices(&self) -> &[&[u8]] {
        &self.slices
    }

    /// Length of the payload: bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// State of the object when it was read.
    pub fn witness(&self) -> Witness {
        self.witness
    }
}

impl fmt::Debug for ReadTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadTicket")
            .field("ino", &self.ino)
            .field("witness", &self.witness)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Drop for ReadTicket {
    fn drop(&mut self) {
        // From here on nobody may look: the slots can be written again.
        self.slices.clear();
        // A poisoned lock means that somebody panicked and said so: no second panic here.
        let Ok(mut state) = self.target.state.lock() else { return };
        state.tickets -= 1;
        for pin in &self.pins {
            state.chunks.arena.release(pin.slot);
        }
        state.memory_came_back();
        if !state.chunks.any_pieces() {
            drop(state);
            return self.target.pump();
        }
        // Chunks that were written meanwhile may be in pieces because of these pins.
        let State { chunks: store, objects, .. } = &mut *state;
        let Some(object) = objects.get_mut(&self.ino) else { return };
        for pin in &self.pins {
            let key = (self.ino, pin.chunk);
            if object.chunks.get(&pin.chunk).is_some_and(|chunk| chunk.in_pieces()) {
                object.change(store, key, |store, chunk| store.tidy(key, chunk?));
            }
        }
        drop(state);
        self.target.pump();
    }
}

/// Bytes side by side in memory, or (no pointer) zeros.
struct Span {
    from: Option<*const u8>,
    length: usize,
}

#[derive(Default)]
struct Gather {
    spans: Vec<Span>,
    pins: Vec<Held>,
}

/// Goes from chunk to chunk of an object, and looks each up once, however many extents lie in it.
struct Walk<'a> {
    state: &'a State,
    ino: Ino,
    map: Option<&'a BTreeMap<u64, Chunk>>,
    /// The chunks behind `index`.
    rest: btree_map::Range<'a, u64, Chunk>,
    index: u64,
    content: Content<'a>,
}

impl<'a> Walk<'a> {
    fn new(state: &'a State, ino: Ino) -> Walk<'a> {
        let map = state.objects.get(&ino).map(|object| &object.chunks);
        let (rest, content) = (btree_map::Range::default(), Content::Many(&[]));
        Walk { state, ino, map, rest, index: u64::MAX, content }
    }

    /// Goes to a chunk; its pieces, none where there is nothing.
    fn pieces(&mut self, index: u64) -> &[Piece] {
        if index != self.index {
            let mut found = self.rest.next();
            if found.is_none_or(|(&next, _)| next != index)
                && let Some(map) = self.map
            {
                self.rest = map.range(index..);
                found = self.rest.next();
            }
            self.index = index;
            self.content = match found {
                Some((&next, &chunk)) if next == index => {
                    self.state.chunks.content((self.ino, index), chunk)
                }
                _ => Content::Many(&[]),
            };
        }
        self.content.pieces()
    }
}

impl Gather {
    fn add(&mut self, walk: &mut Walk<'_>, extent: Extent) {
        let size = CHUNK_BYTES as u64;
        let arena = &walk.state.chunks.arena;
        let mut at = extent.offset;
        while at < extent.end() {
            let index = at / size;
            let base = index * size;
            let end = (extent.end().min(base + size) - base) as u32;
            let mut start = (at - base) as u32;
            let pieces = walk.pieces(index);
            let first = pieces.partition_point(|piece| piece.end <= start);
            for piece in pieces[first..].iter().take_while(|piece| piece.start < end) {
                let piece = piece.clip(start, end);
                self.push(None, (piece.start - start) as usize);
                self.push(Some(arena.pointer(piece.slot, piece.at as usize)), piece.length());
                let pin = Held { slot: piece.slot, chunk: index };
                if self.pins.last() != Some(&pin) {
                    self.pins.push(pin);
                }
                start = piece.end;
            }
            self.push(None, (end - start) as usize);
            at = base + u64::from(end);
        }
    }

    fn push(&mut self, from: Option<*const u8>, length: usize) {
        if length == 0 {
            return;
        }
        match (self.spans.last_mut(), from) {
            (Some(Span { from: None, length: last }), None) => *last += length,
            (Some(Span { from: Some(last), length: bytes }), Some(from))
                if last.wrapping_add(*bytes) == from =>
            {
                *bytes += length;
            }
            _ => self.spans.push(Span { from, length }),
        }
    }

    fn slices(&self) -> Vec<&'static [u8]> {
        let mut slices = Vec::with_capacity(self.spans.len());
        for span in &self.spans {
            match span.from {
                Some(from) => {
                    // SAFETY: the span consists of parts of slots that lie side by side in the
                    // target's memory (whose provenance the pointer has), all of them pinned. A slot
                    // to which others refer is written by nobody, so the bytes stay as they are
                    // until `ReadTicket::drop`; the ticket keeps the target, hence the memory, and
                    // lends the slices for no longer than itself.
                    let bytes = unsafe { std::slice::from_raw_parts(from, span.length) };
                    slices.push(bytes);
                }
                None => {
                    let mut left = span.length;
                    while left > 0 {
                        let length = left.min(ZEROS.len());
                        slices.push(&ZEROS[..length]);
                        left -= length;
                    }
                }
            }
        }
        slices
    }
}
