//! What a chunk of an object consists of, and how writes, truncations and holes change it.
//!
//! Usually a chunk is one slot. While readers hold that slot, or while little of the chunk is
//! there, it may be several *pieces* of slots with zeros between them: so whatever was received can
//! always be stored without further memory, whatever happened to the chunk meanwhile. Pieces are
//! *folded* into one slot as soon as that is possible and worth it.

use super::arena::{Arena, CHUNK_BYTES, CLASSES, Move, SLOT_BYTES, Slot, WHOLE, class_of};
use super::disk::BLOCK_BYTES;
use super::tier::{RECORD_COST, Tier};
use crate::types::Ino;
use std::collections::BTreeMap;

/// Heap for an entry in an object's map of chunks, in a tree of half-full nodes: bytes.
pub(super) const CHUNK_COST: u64 = 64;
/// Heap for a list of pieces without the pieces: bytes.
pub(super) const PIECES_COST: u64 = 128;
/// Heap for a piece, in a vector that may be half empty: bytes.
pub(super) const PIECE_COST: u64 = 32;
/// More pieces than this are folded wherever memory allows.
const PIECES_MAX: usize = 8;
/// Pieces are not folded into a slot of more than so many times their bytes.
pub(super) const SPARSE: usize = 4;

/// Where the bytes of a chunk are. Only this module looks inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In one slot, from its first byte on.
    Slot(Slot),
    /// In several slots, or not from the first byte on: see [`Chunks::pieces`]. Between them is what
    /// is on disk, or zeros.
    Pieces,
    /// Not in memory: all of it is on disk.
    Disk,
}

/// A part of an object that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    place: Place,
    /// Bytes up to the last one that is there; zeros behind.
    pub(super) length: u32,
    /// What a target with a disk knows of it; 0: nothing.
    pub(super) record: u32,
}

impl Chunk {
    /// One that is on disk and nowhere else.
    pub(super) fn on_disk(length: u32, record: u32) -> Chunk {
        Chunk { place: Place::Disk, length, record }
    }

    /// The one slot that it is, if it is.
    pub(super) fn slot(self) -> Option<Slot> {
        match self.place {
            Place::Slot(slot) => Some(slot),
            _ => None,
        }
    }

    /// Whether its content is a list of pieces.
    pub(super) fn in_pieces(self) -> bool {
        self.place == Place::Pieces
    }
}

/// Which chunk: of which file, which one of it.
pub(super) type Key = (Ino, u64);

/// Bytes `start..end` of a chunk, from byte `at` of a slot on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) slot: Slot,
    pub(super) at: u32,
}

impl Piece {
    pub(super) fn length(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// How it is copied to byte `at` of a slot.
    fn move_to(&self, to: Slot, at: u32) -> Move {
        Move {
            from: self.slot,
            from_at: self.at as usize,
            to,
            to_at: at as usize,
            n: self.length(),
        }
    }

    /// The part of it within `start..end`.
    pub(super) fn clip(self, start: u32, end: u32) -> Piece {
        let from = self.start.max(start);
        Piece { start: from, end: self.end.min(end), at: self.at + (from - self.start), ..self }
    }
}

/// A chunk's pieces as they are now.
pub(super) enum Content<'a> {
    One(Piece),
    Many(&'a [Piece]),
}

impl Content<'_> {
    /// Ascending and disjoint.
    pub(super) fn pieces(&self) -> &[Piece] {
        match self {
            Content::One(piece) => std::slice::from_ref(piece),
            Content::Many(pieces) => pieces,
        }
    }
}

/// All chunks' contents: the memory, and the lists of pieces.
#[derive(Debug)]
pub(super) struct Chunks {
    pub(super) arena: Arena,
    /// Blocks that only overwriting may use.
    pub(super) reserve: usize,
    /// Contents of the chunks whose place is [`Place::Pieces`]: ascending and disjoint.
    pieces: BTreeMap<Key, Vec<Piece>>,
    /// The books of the disk, if there is one.
    pub(super) tier: Option<Tier>,
}

impl Chunks {
    pub(super) fn new(arena: Arena) -> Chunks {
        let blocks = arena.blocks();
        let reserve = (blocks / 16).clamp(4, 256).min(blocks / 2);
        Chunks { arena, reserve, pieces: BTreeMap::new(), tier: None }
    }

    /// Where the bytes of a chunk are in memory.
    pub(super) fn content(&self, key: Key, chunk: Chunk) -> Content<'_> {
        match chunk.place {
            Place::Slot(slot) => Content::One(Piece { start: 0, end: chunk.length, slot, at: 0 }),
            Place::Pieces => Content::Many(&self.pieces[&key]),
            Place::Disk => Content::Many(&[]),
        }
    }

    /// Calls `f` with each piece of a chunk, ascending.
    pub(super) fn each(&self, key: Key, chunk: Chunk, f: impl FnMut(Piece)) {
        self.content(key, chunk).pieces().iter().copied().for_each(f);
    }

    /// Bytes that a chunk holds, as its owner is told: slots, or where there is a disk what it would
    /// take there, so that it does not change when the chunk moves.
    pub(super) fn bytes(&self, key: Key, chunk: Option<Chunk>) -> u64 {
        match chunk {
            None => 0,
            Some(chunk) if chunk.record != 0 => {
                (chunk.length as usize).next_multiple_of(BLOCK_BYTES) as u64
            }
            Some(chunk) => self.held(key, chunk),
        }
    }

    /// Slot bytes that a chunk holds.
    pub(super) fn held(&self, key: Key, chunk: Chunk) -> u64 {
        match chunk.place {
            Place::Slot(slot) => self.arena.size(slot) as u64,
            Place::Disk => 0,
            Place::Pieces => {
                let zeros = self.tier.as_ref().map(|tier| tier.zeros);
                let mut slots: Vec<Slot> = self.pieces[&key].iter().map(|p| p.slot).collect();
                slots.sort_unstable();
                slots.dedup();
                let slots = slots.iter().filter(|&&slot| Some(slot) != zeros);
                slots.map(|&slot| self.arena.size(slot) as u64).sum()
            }
        }
    }

    /// Bytes of a chunk that are on disk, and count.
    fn visible(&self, record: u32) -> u32 {
        self.tier.as_ref().map_or(0, |tier| tier.visible(record))
    }

    /// Whether what is on disk is not needed to know the chunk.
    pub(super) fn covered(&self, key: Key, chunk: Chunk) -> bool {
        match chunk.place {
            Place::Slot(_) => true,
            Place::Pieces => covers(&self.pieces[&key], self.visible(chunk.record)),
            Place::Disk => false,
        }
    }

    /// Calls `f` with each part of `start..end` that only the disk has.
    pub(super) fn missing(
        &self,
        key: Key,
        chunk: Chunk,
        (start, end): (u32, u32),
        mut f: impl FnMut(u32, u32),
    ) {
        if chunk.record == 0 || matches!(chunk.place, Place::Slot(_)) {
            return;
        }
        let end = end.min(self.visible(chunk.record));
        let mut at = start;
        self.each(key, chunk, |piece| {
            if at < piece.start.min(end) {
                f(at, piece.start.min(end));
            }
            at = at.max(piece.end);
        });
        if at < end {
            f(at, end);
        }
    }

    /// Keeps the disk's books after a change of a chunk; `wrote`: memory is ahead of the disk now.
    fn changed(&mut self, key: Key, chunk: Option<Chunk>, wrote: bool) {
        let Some(chunk) = chunk.filter(|chunk| chunk.record != 0) else { return };
        let held = self.held(key, chunk) as u32;
        let covered = self.covered(key, chunk);
        let tier = self.tier.as_mut().expect("records are the tier's");
        tier.set_held(chunk.record, held);
        if wrote {
            if covered {
                tier.drop_base(chunk.record);
            }
            tier.set_dirty(chunk.record, covered);
        } else {
            tier.set_covered(chunk.record, covered);
        }
    }

    /// Takes a clean chunk out of memory.
    pub(super) fn evict(&mut self, key: Key, chunk: Chunk) -> Chunk {
        for piece in self.take(key, chunk) {
            self.arena.release(piece.slot);
        }
        let chunk = Chunk { place: Place::Disk, ..chunk };
        self.changed(key, Some(chunk), false);
        chunk
    }

    /// Puts bytes `start..end` of a chunk, read from disk into a fresh slot, where memory has none.
    /// Takes over the reference to the slot.
    pub(super) fn install(
        &mut self,
        key: Key,
        chunk: Chunk,
        (start, end): (u32, u32),
        slot: Slot,
    ) -> Chunk {
        let visible = self.visible(chunk.record);
        let end = end.min(visible);
        let mut gaps = Vec::new();
        self.missing(key, chunk, (start, end), |from, to| gaps.push((from, to)));
        let new = if gaps == [(0, chunk.length)] {
            Chunk { place: Place::Slot(slot), ..chunk }
        } else {
            let mut pieces = self.take(key, chunk);
            for (from, to) in gaps {
                self.arena.retain(slot);
                pieces.push(Piece { start: from, end: to, slot, at: from - start });
            }
            self.arena.release(slot);
            pieces.sort_unstable_by_key(|piece| piece.start);
            let pieces = self.join(pieces);
            let pieces = self.fold(pieces, visible);
            self.put(key, pieces, chunk.record).expect("what is on disk is there")
        };
        self.changed(key, Some(new), false);
        let tier = self.tier.as_mut().expect("records are the tier's");
        tier.fetched(chunk.record);
        new
    }

    /// The size of a chunk's slot, if nobody else refers to it.
    pub(super) fn own_slot_bytes(&self, chunk: Chunk) -> Option<usize> {
        match chunk.place {
            Place::Slot(slot) if self.arena.references(slot) == 1 => Some(self.arena.size(slot)),
            _ => None,
        }
    }

    /// Whether all these bytes are there (ascending, disjoint ranges).
    pub(super) fn stored(&self, key: Key, chunk: Chunk, ranges: &[(u32, u32)]) -> bool {
        match chunk.place {
            Place::Slot(_) => ranges.last().is_none_or(|range| range.1 <= chunk.length),
            Place::Disk | Place::Pieces if chunk.record != 0 => {
                ranges.last().is_none_or(|range| range.1 <= chunk.length)
            }
            Place::Disk => unreachable!("what is on disk has a record"),
            Place::Pieces => {
                let pieces = &self.pieces[&key];
                ranges.iter().all(|&(start, end)| {
                    let mut at = start;
                    for piece in &pieces[pieces.partition_point(|piece| piece.end <= start)..] {
                        if piece.start > at || at >= end {
                            break;
                        }
                        at = piece.end;
                    }
                    at >= end
                })
            }
        }
    }

    /// Stores pieces of one fresh slot (ascending, disjoint) over what is there. Takes over the
    /// caller's reference to the slot. Needs no memory but the bookkeeping that
    /// [`cost_max`] gives.
    pub(super) fn write(
        &mut self,
        key: Key,
        old: Option<Chunk>,
        slot: Slot,
        fresh: &[Piece],
    ) -> Option<Chunk> {
        let record = match (old, &mut self.tier) {
            (Some(old), _) => old.record,
            (None, Some(tier)) => tier.add(&mut self.arena, key),
            (None, None) => 0,
        };
        let new = self.write_memory(key, old, slot, fresh, record);
        self.changed(key, new, true);
        new
    }

    fn write_memory(
        &mut self,
        key: Key,
        old: Option<Chunk>,
        slot: Slot,
        fresh: &[Piece],
        record: u32,
    ) -> Option<Chunk> {
        if let Some(old) = old
            && self.write_in_place(key, old, slot, fresh)
        {
            return Some(old);
        }
        if let [Piece { start: 0, end, at: 0, .. }] = *fresh {
            let new = Some(Chunk { place: Place::Slot(slot), length: end, record });
            match old {
                Some(Chunk { place: Place::Slot(old_slot), length, .. }) if length <= end => {
                    self.arena.release(old_slot);
                    return new;
                }
                Some(Chunk { place: Place::Disk, length, .. }) if length <= end => return new,
                None => return new,
                _ => (),
            }
        }
        if let Some(Chunk { place: Place::Slot(_), .. }) = old
            && let Some(tier) = &mut self.tier
        {
            // The slot has all that the disk has.
            tier.drop_base(record);
        }
        let ranges: Vec<_> = fresh.iter().map(|piece| (piece.start, piece.end)).collect();
        let mut pieces = match old {
            None => Vec::with_capacity(fresh.len()),
            Some(old) => {
                let pieces = self.take(key, old);
                self.carve(pieces, &ranges)
            }
        };
        for piece in fresh {
            self.arena.retain(piece.slot);
        }
        self.arena.release(slot);
        pieces.extend_from_slice(fresh);
        pieces.sort_unstable_by_key(|piece| piece.start);
        let pieces = self.join(pieces);
        let pieces = self.fold(pieces, self.visible(record));
        self.put(key, pieces, record)
    }

    /// Copies into the slots that are there where nobody else refers to them and that is the
    /// cheaper way, or the one that keeps the reserve.
    fn write_in_place(&mut self, key: Key, old: Chunk, slot: Slot, fresh: &[Piece]) -> bool {
        let length: usize = fresh.iter().map(Piece::length).sum();
        let tight = self.arena.size(slot) < SLOT_BYTES[usize::from(WHOLE)]
            && self.arena.available() < self.reserve as isize;
        if let Place::Slot(old_slot) = old.place {
            let within = fresh.last().is_none_or(|piece| piece.end <= old.length);
            let cheap = length * 2 <= old.length as usize;
            if !within || !(cheap || tight) || self.arena.references(old_slot) > 1 {
                return false;
            }
            let moves = fresh.iter().map(|piece| piece.move_to(old_slot, piece.start));
            self.arena.scatter(length, moves);
        } else if old.place == Place::Disk {
            return false;
        } else {
            let pieces = &self.pieces[&key];
            let home = |piece: &Piece| {
                let at = pieces.partition_point(|other| other.end <= piece.start);
                pieces.get(at).filter(|p| p.start <= piece.start && piece.end <= p.end).copied()
            };
            let Some(homes) = fresh.iter().map(home).collect::<Option<Vec<_>>>() else {
                return false;
            };
            let shared: Vec<Slot> = shares(pieces)
                .filter(|share| self.arena.references(share.slot) > share.pieces)
                .map(|share| share.slot)
                .collect();
            if homes.iter().any(|home| shared.contains(&home.slot)) {
                return false;
            }
            let moves = fresh.iter().zip(homes).map(|(piece, home)| {
                piece.move_to(home.slot, home.at + (piece.start - home.start))
            });
            self.arena.scatter(length, moves);
        }
        self.arena.release(slot);
        true
    }

    /// Cuts `start..end` out of a chunk.
    pub(super) fn punch(&mut self, key: Key, chunk: Chunk, start: u32, end: u32) -> Option<Chunk> {
        if start >= chunk.length {
            return Some(chunk);
        }
        if chunk.record == 0 {
            return self.punch_memory(key, chunk, start, end);
        }
        let tail = end >= chunk.length;
        if tail && start == 0 {
            self.free(key, chunk);
            return None;
        }
        let record = chunk.record;
        let tier = self.tier.as_mut().expect("records are the tier's");
        if tail || end >= tier.visible(record) {
            tier.cut(record, start);
        }
        if tail && let Some(ledger) = &mut tier.ledger {
            ledger.trim(record, start);
        }
        if !tail && chunk.slot().is_some() {
            // The slot has all that the disk has.
            tier.drop_base(record);
        }
        let visible = tier.visible(record);
        let zeros = tier.zeros;
        let new = if chunk.slot().is_some() {
            self.punch_memory(key, chunk, start, end)
        } else {
            let pieces = self.take(key, chunk);
            let mut pieces = self.carve(pieces, &[(start, end)]);
            if start < visible {
                // Zeros over what is on disk.
                self.arena.retain(zeros);
                pieces.push(Piece { start, end: end.min(visible), slot: zeros, at: start });
                pieces.sort_unstable_by_key(|piece| piece.start);
            }
            let pieces = self.fold(pieces, visible);
            self.put(key, pieces, record)
        };
        match new {
            // What is left at the front is as clean as it was.
            Some(_) => self.changed(key, new, !tail),
            None => self.tier.as_mut().expect("records are the tier's").remove(record),
        }
        new
    }

    fn punch_memory(&mut self, key: Key, chunk: Chunk, start: u32, end: u32) -> Option<Chunk> {
        if let Place::Slot(slot) = chunk.place
            && start > 0
        {
            if end >= chunk.length {
                return Some(Chunk { length: start, ..chunk });
            }
            if self.arena.references(slot) == 1 {
                self.arena.zero(slot, start as usize, end as usize);
                return Some(chunk);
            }
        }
        let pieces = self.take(key, chunk);
        let pieces = self.carve(pieces, &[(start, end)]);
        let pieces = self.fold(pieces, 0);
        self.put(key, pieces, chunk.record)
    }

    /// Frees a chunk.
    pub(super) fn free(&mut self, key: Key, chunk: Chunk) {
        for piece in self.take(key, chunk) {
            self.arena.release(piece.slot);
        }
        self.forget(chunk);
    }

    /// Frees a chunk that is not in pieces.
    pub(super) fn free_slot(&mut self, chunk: Chunk) {
        match chunk.place {
            Place::Slot(slot) => self.arena.release(slot),
            Place::Disk => (),
            Place::Pieces => unreachable!("chunks in pieces are freed by their key"),
        }
        self.forget(chunk);
    }

    fn forget(&mut self, chunk: Chunk) {
        if chunk.record != 0 {
            self.tier.as_mut().expect("records are the tier's").remove(chunk.record);
        }
    }

    /// Tries again to make one slot of a chunk: after a reader let go of it.
    pub(super) fn tidy(&mut self, key: Key, chunk: Chunk) -> Option<Chunk> {
        if chunk.place != Place::Pieces {
            return Some(chunk);
        }
        let pieces = self.take(key, chunk);
        let pieces = self.fold(pieces, self.visible(chunk.record));
        let new = self.put(key, pieces, chunk.record);
        self.changed(key, new, false);
        new
    }

    /// Makes one slot of a chunk that memory covers, for the disk. None: there is no memory for it.
    pub(super) fn compact(&mut self, key: Key, chunk: Chunk) -> Option<Chunk> {
        let chunk = self.tidy(key, chunk)?;
        if chunk.slot().is_some() {
            return Some(chunk);
        }
        let slot = self.arena.allocate(class_of(chunk.length as usize))?;
        let pieces = self.take(key, chunk);
        self.compose(&pieces, slot);
        let new = Chunk { place: Place::Slot(slot), ..chunk };
        self.changed(key, Some(new), false);
        Some(new)
    }

    /// Whether there are chunks in pieces at all.
    pub(super) fn any_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// A chunk's pieces, with their references; the chunk is void until `put`.
    fn take(&mut self, key: Key, chunk: Chunk) -> Vec<Piece> {
        match chunk.place {
            Place::Slot(slot) => vec![Piece { start: 0, end: chunk.length, slot, at: 0 }],
            Place::Disk => Vec::new(),
            Place::Pieces => {
                let pieces = self.pieces.remove(&key).expect("a chunk in pieces has a list");
                self.arena.discharge(PIECES_COST + PIECE_COST * pieces.len() as u64);
                pieces
            }
        }
    }

    fn put(&mut self, key: Key, pieces: Vec<Piece>, record: u32) -> Option<Chunk> {
        let visible = self.visible(record);
        let length = pieces.last().map_or(0, |piece| piece.end).max(visible);
        if pieces.is_empty() {
            return (visible > 0).then_some(Chunk { place: Place::Disk, length, record });
        }
        if let [Piece { start: 0, slot, at: 0, end }] = pieces[..]
            && end >= visible
        {
            return Some(Chunk { place: Place::Slot(slot), length, record });
        }
        self.arena.charge(PIECES_COST + PIECE_COST * pieces.len() as u64);
        self.pieces.insert(key, pieces);
        Some(Chunk { place: Place::Pieces, length, record })
    }

    /// What is left of pieces outside of ranges (both ascending and disjoint).
    fn carve(&mut self, pieces: Vec<Piece>, ranges: &[(u32, u32)]) -> Vec<Piece> {
        let mut left = Vec::with_capacity(pieces.len() + 1);
        for piece in pieces {
            let before = left.len();
            let first = ranges.partition_point(|range| range.1 <= piece.start);
            let mut at = piece.start;
            for &(start, end) in ranges[first..].iter().take_while(|range| range.0 < piece.end) {
                if at < start {
                    left.push(piece.clip(at, start));
                }
                at = end;
            }
            if at < piece.end {
                left.push(piece.clip(at, piece.end));
            }
            match left.len() - before {
                0 => self.arena.release(piece.slot),
                more => (1..more).for_each(|_| self.arena.retain(piece.slot)),
            }
        }
        left
    }

    /// Makes one of neighbours that lie side by side in one slot, too.
    fn join(&mut self, pieces: Vec<Piece>) -> Vec<Piece> {
        let mut joined: Vec<Piece> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match joined.last_mut() {
                Some(last)
                    if last.slot == piece.slot
                        && last.end == piece.start
                        && last.at + (last.end - last.start) == piece.at =>
                {
                    last.end = piece.end;
                    self.arena.release(piece.slot);
                }
                _ => joined.push(piece),
            }
        }
        joined
    }

    /// Makes one slot of pieces: in one of their own slots if nobody else refers to it, else in a
    /// fresh one if that is worth it and memory is not short. Not as long as any of the `visible`
    /// bytes on disk is needed.
    fn fold(&mut self, pieces: Vec<Piece>, visible: u32) -> Vec<Piece> {
        let Some(length) = pieces.last().map(|piece| piece.end) else { return pieces };
        if !covers(&pieces, visible) {
            return pieces;
        }
        if pieces.len() == 1 && (pieces[0].start, pieces[0].at) == (0, 0) {
            return pieces;
        }
        let length_bytes = length as usize;
        let own = shares(&pieces)
            .filter(|share| {
                share.straight
                    && self.arena.size(share.slot) >= length_bytes
                    && self.arena.references(share.slot) == share.pieces
            })
            .max_by_key(|share| share.bytes);
        let into = match own {
            Some(share) => {
                self.arena.retain(share.slot);
                share.slot
            }
            None => {
                let class = class_of(length_bytes);
                let stored: usize = pieces.iter().map(Piece::length).sum();
                let worth =
                    pieces.len() > PIECES_MAX || stored * SPARSE >= SLOT_BYTES[usize::from(class)];
                let mut slots = [0; CLASSES];
                slots[usize::from(class)] = 1;
                let needed = self.arena.needed(&slots, 0) + self.reserve;
                if !worth || self.arena.available() < needed as isize {
                    return pieces;
                }
                let Some(slot) = self.arena.allocate(class) else { return pieces };
                slot
            }
        };
        self.compose(&pieces, into);
        vec![Piece { start: 0, end: length, slot: into, at: 0 }]
    }

    /// Fills a slot from pieces, those that lie in it apart, with zeros between them; releases all
    /// the pieces.
    fn compose(&mut self, pieces: &[Piece], into: Slot) {
        let mut at = 0;
        for piece in pieces {
            self.arena.zero(into, at, piece.start as usize);
            at = piece.end as usize;
        }
        debug_assert!(at <= CHUNK_BYTES);
        let others = pieces.iter().filter(|piece| piece.slot != into);
        let length = others.clone().map(Piece::length).sum();
        self.arena.scatter(length, others.map(|piece| piece.move_to(into, piece.start)));
        for piece in pieces {
            self.arena.release(piece.slot);
        }
    }
}

/// Whether pieces leave no gap before `visible`.
fn covers(pieces: &[Piece], visible: u32) -> bool {
    let mut at = 0;
    for piece in pieces {
        if piece.start > at || at >= visible {
            break;
        }
        at = piece.end;
    }
    at >= visible
}

/// What one slot contributes to a chunk's pieces.
struct Share {
    slot: Slot,
    pieces: u32,
    bytes: usize,
    /// Its pieces lie in the slot where they lie in the chunk.
    straight: bool,
}

/// Pieces summed up by their slots.
fn shares(pieces: &[Piece]) -> impl Iterator<Item = Share> + use<> {
    let mut pieces = pieces.to_vec();
    pieces.sort_unstable_by_key(|piece| piece.slot);
    let mut shares: Vec<Share> = Vec::new();
    for piece in pieces {
        let straight = piece.at == piece.start;
        match shares.last_mut() {
            Some(share) if share.slot == piece.slot => {
                share.pieces += 1;
                share.bytes += piece.length();
                share.straight &= straight;
            }
            _ => {
                shares.push(Share { slot: piece.slot, pieces: 1, bytes: piece.length(), straight })
            }
        }
    }
    shares.into_iter()
}

/// Most bookkeeping that storing so many pieces in one chunk can add: bytes.
pub(super) fn cost_max(pieces: usize) -> u64 {
    CHUNK_COST + PIECES_COST + PIECE_COST * (2 * pieces as u64 + 1)
}

/// The same where there is a disk, which wants a record too.
pub(super) fn cost_max_on_disk(pieces: usize) -> u64 {
    cost_max(pieces) + RECORD_COST + super::ledger::ENTRY_COST
}
