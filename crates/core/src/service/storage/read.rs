//! Reads: pinned slots, and zeros for holes.

use super::arena::{CHUNK_BYTES, Slot};
use super::chunk::{Chunk, Content, Key, Piece};
use super::{State, Target};
use crate::error::{Code, Result};
use crate::layout::Extent;
use crate::slice::{Row, Slice};
use crate::types::{ClientId, Ino};
use crate::wire::data::{Io, Run, Runs, Witness};
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
    /// Parts of slots that are pinned, or of `ZEROS`.
    rows: Vec<Row>,
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
        let mut gather = Gather::default();
        let mut walk = Walk::new(state, io.ino);
        let single;
        let runs = match &io.runs {
            Runs::One(extent) => {
                single = [Run::single(extent.offset, extent.length as u32)];
                &single[..]
            }
            Runs::List { runs, .. } => &runs[..],
        };
        let last = runs.iter().rposition(|run| starts_below(run, witness.size) > 0);
        if let Some(last) = last {
            runs[..last].iter().for_each(|run| gather.add_run(&mut walk, run));
            let run = runs[last];
            let count = starts_below(&run, witness.size);
            let offset = run.offset + u64::from(count - 1) * run.stride;
            // Of all extents only this one is cut.
            let cut = offset + u64::from(run.length) > witness.size;
            gather.add_run(&mut walk, &Run { count: count - u32::from(cut), ..run });
            if cut {
                gather.add(&mut walk, Extent { offset, length: witness.size - offset });
            }
        }
        for pin in &gather.pins {
            state.chunks.arena.retain(pin.slot);
        }
        state.tickets += 1;
        ReadTicket {
            target: Arc::clone(self),
            ino: io.ino,
            witness,
            length: gather.rows.iter().map(Row::length).sum(),
            rows: gather.rows,
            pins: gather.pins,
        }
    }
}

/// How many extents of a run begin below the object's size.
fn starts_below(run: &Run, size: u64) -> u32 {
    match size.checked_sub(run.offset) {
        None | Some(0) => 0,
        Some(_) if run.length == 0 => 0,
        Some(_) if run.count == 1 => 1,
        Some(rest) => ((rest - 1) / run.stride.max(1) + 1).min(run.count.into()) as u32,
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
    /// The payload, in order. Its memory stays as it is as long as the ticket is there.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The payload piece by piece.
    pub fn slices(&self) -> Vec<&[u8]> {
        let slices = self.rows.iter().flat_map(|row| row.slices());
        // SAFETY: rows are made of parts of slots, all of them pinned, or of `ZEROS`. A slot to which
        // others refer is written by nobody, so the bytes stay as they are until the ticket is
        // dropped; it keeps the target, hence the memory, and lends the slices for no longer than
        // itself.
        slices.map(|one| unsafe { std::slice::from_raw_parts(one.pointer, one.length) }).collect()
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
        // From here on the slots can be written again.
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

#[derive(Default)]
struct Gather {
    rows: Vec<Row>,
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
    /// Adds a run: what of it lies in one piece of a chunk all at once.
    fn add_run(&mut self, walk: &mut Walk<'_>, run: &Run) {
        let size = CHUNK_BYTES as u64;
        let mut next = 0;
        while next < run.count {
            let offset = run.offset + u64::from(next) * run.stride;
            let extent = Extent { offset, length: run.length.into() };
            next += 1;
            let (index, base) = (offset / size, offset / size * size);
            let arena = &walk.state.chunks.arena;
            let start = (offset - base) as u32;
            let pieces = walk.pieces(index);
            let piece = pieces.get(pieces.partition_point(|piece| piece.end <= start)).copied();
            let whole =
                |piece: &Piece| piece.start <= start && extent.end() <= base + u64::from(piece.end);
            let Some(piece) = piece.filter(whole) else {
                self.add(walk, extent);
                continue;
            };
            let more = (base + u64::from(piece.end) - extent.end()) / run.stride.max(1);
            let more = more.min(u64::from(run.count - next)) as u32;
            next += more;
            let pointer = arena.pointer(piece.slot, (piece.at + (start - piece.start)) as usize);
            let first = Slice { pointer, length: run.length as usize };
            self.push(Row { first, count: more as usize + 1, stride: run.stride as usize });
            self.pin(Held { slot: piece.slot, chunk: index });
        }
    }

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
                self.zeros((piece.start - start) as usize);
                let pointer = arena.pointer(piece.slot, piece.at as usize);
                self.push(Slice { pointer, length: piece.length() }.into());
                self.pin(Held { slot: piece.slot, chunk: index });
                start = piece.end;
            }
            self.zeros((end - start) as usize);
            at = base + u64::from(end);
        }
    }

    fn pin(&mut self, pin: Held) {
        if self.pins.last() != Some(&pin) {
            self.pins.push(pin);
        }
    }

    fn zeros(&mut self, mut length: usize) {
        let is_zeros = |last: &mut Row| std::ptr::eq(last.first.pointer, ZEROS.as_ptr());
        if length > 0
            && let Some(before) = self.rows.pop_if(is_zeros)
        {
            length += before.length();
        }
        while length > 0 {
            let part = length.min(ZEROS.len());
            self.rows.push(Slice::to_read(&ZEROS[..part]).into());
            length -= part;
        }
    }

    /// Adds a row; joins it to the last one if it goes on where that ends.
    fn push(&mut self, row: Row) {
        let row = if row.stride == row.first.length {
            // Side by side.
            Slice { length: row.length(), ..row.first }.into()
        } else {
            row
        };
        if row.length() > 0 && !self.rows.last_mut().is_some_and(|last| last.join(row)) {
            self.rows.push(row);
        }
    }
}
