//! Tests of the target as a whole, against plain vectors of bytes.

use super::chunk::{PIECE_COST, PIECES_COST};
use super::*;
use crate::types::{Incarnation, TargetId};
use crate::wire::data::Run;
use proptest::prelude::*;
use std::collections::BTreeMap;

const MEMBER: Member = Member { target: TargetId(3), incarnation: Incarnation(0xabc) };
const CHUNK: u64 = CHUNK_BYTES as u64;

fn target(blocks: usize) -> Arc<Target> {
    Target::new(MEMBER, 5, Box::new(HeapMemory::new(blocks * CHUNK_BYTES)))
}

fn now(wall: i64) -> Now {
    Now { mono_ms: 0, wall: WallTime(wall) }
}

fn io(ino: u64, runs: Runs) -> Io {
    Io { ino: Ino(ino), member: MEMBER, map_epoch: 5, generation: 1, epoch: 0, runs }
}

fn one(ino: u64, offset: u64, length: u64) -> Io {
    io(ino, Runs::One(Extent { offset, length }))
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| ((i * 31 + i / 251 + seed * 97) % 255 + 1) as u8).collect()
}

fn write(target: &Arc<Target>, ino: u64, offset: u64, bytes: &[u8]) -> Result<Witness> {
    let mut ticket = target.begin_write(now(1), &one(ino, offset, bytes.len() as u64))?;
    ticket.fill(bytes);
    ticket.commit(now(1))
}

fn read(target: &Arc<Target>, ino: u64, offset: u64, length: u64) -> Vec<u8> {
    target.read(&one(ino, offset, length)).unwrap().slices().concat()
}

fn call(target: &Target, request: TargetRequest) -> (Witness, u64) {
    match target.call(now(1), &request).unwrap() {
        TargetReply::Object { witness, allocated, .. } => (witness, allocated),
        reply => panic!("{reply:?}"),
    }
}

fn truncate(target: &Target, ino: u64, cut: u64, size: u64, epoch: u32) -> (Witness, u64) {
    call(target, TargetRequest::Truncate { ino: Ino(ino), cut, size, epoch })
}

fn punch(target: &Target, ino: u64, offset: u64, length: u64) -> (Witness, u64) {
    let extents = vec![Extent { offset, length }];
    call(target, TargetRequest::Punch { ino: Ino(ino), extents })
}

fn seek(target: &Target, ino: u64, offset: u64, data: bool) -> Option<u64> {
    match target.call(now(1), &TargetRequest::Seek { ino: Ino(ino), offset, data }).unwrap() {
        TargetReply::Seek { offset } => offset,
        reply => panic!("{reply:?}"),
    }
}

fn pieces(target: &Target, ino: u64) -> usize {
    let state = target.lock();
    let object = &state.objects[&Ino(ino)];
    let mut count = 0;
    for (&index, &chunk) in &object.chunks {
        state.chunks.each((Ino(ino), index), chunk, |_| count += 1);
    }
    count
}

/// The books agree with what is there; `held` is what open tickets have set aside.
fn audit(target: &Target, held: u64) {
    let state = target.lock();
    let mut charged = held;
    for (&ino, object) in &state.objects {
        charged += OBJECT_COST + CHUNK_COST * object.chunks.len() as u64;
        let mut allocated = 0;
        for (&index, &chunk) in &object.chunks {
            allocated += state.chunks.bytes((ino, index), Some(chunk));
            let (mut at, mut count) = (0, 0);
            state.chunks.each((ino, index), chunk, |piece| {
                assert!(piece.start >= at && piece.start < piece.end, "{piece:?}");
                assert!(piece.at as usize + piece.length() <= state.chunks.arena.size(piece.slot));
                assert!(state.chunks.arena.references(piece.slot) > 0);
                (at, count) = (piece.end, count + 1);
            });
            assert_eq!(at, chunk.length);
            if chunk.in_pieces() {
                charged += PIECES_COST + PIECE_COST * count;
            }
        }
        assert_eq!(object.allocated, allocated);
    }
    let blocks = state.chunks.arena.used() - charged;
    assert_eq!(blocks % CHUNK, 0, "bookkeeping is charged exactly");
}

fn assert_empty(target: &Target) {
    let state = target.lock();
    assert_eq!(state.chunks.arena.used(), 0);
    assert_eq!(state.chunks.arena.available() as usize, state.chunks.arena.blocks());
    assert_eq!((state.tickets, state.overwrite_blocks), (0, 0));
    assert!(!state.chunks.any_pieces());
}

#[test]
fn a_large_write_is_one_slice_and_reads_as_one() {
    let target = target(256);
    let bytes = pattern(1, 1 << 20);
    let mut ticket = target.begin_write(now(7), &one(1, 0, 1 << 20)).unwrap();
    assert_eq!(ticket.buffers().len(), 1);
    assert_eq!(ticket.length(), 1 << 20);
    ticket.fill(&bytes);
    let witness = ticket.commit(now(9)).unwrap();
    assert_eq!(
        witness,
        Witness { size: 1 << 20, mtime: WallTime(9), epoch: 0, life: 0, changes: 1 }
    );
    let ticket = target.read(&one(1, 0, 2 << 20)).unwrap();
    assert_eq!((ticket.slices().len(), ticket.length()), (1, 1 << 20));
    assert_eq!(ticket.slices()[0], bytes);
    assert_eq!(ticket.witness(), witness);
}

#[test]
fn requests_for_another_life_map_or_target_are_refused() {
    let target = target(16);
    write(&target, 1, 0, b"here").unwrap();
    let code = |io: &Io| {
        let error = target.read(io).unwrap_err();
        assert_eq!(target.begin_write(now(1), io).unwrap_err(), error);
        error
    };
    let mut other = one(1, 0, 4);
    other.member.incarnation = Incarnation(0xdef);
    let lost = code(&other);
    assert_eq!(lost.code, Code::Lost);
    assert!(lost.cause.contains("0000000000000def"), "{lost}");
    assert_eq!(code(&Io { map_epoch: 4, ..one(1, 0, 4) }).code, Code::Stale);
    let elsewhere = Member { target: TargetId(4), ..MEMBER };
    assert_eq!(code(&Io { member: elsewhere, ..one(1, 0, 4) }).code, Code::Invalid);
    assert_eq!(code(&one(1, FILE_SIZE_MAX, 1)).code, Code::TooLarge);
    assert_eq!(code(&one(1, u64::MAX, 1)).code, Code::TooLarge);
    assert_eq!(code(&one(1, 0, PAYLOAD_BYTES_MAX as u64 + 1)).code, Code::TooMany);
    target.raise_map_epoch(9);
    assert_eq!(code(&one(1, 0, 4)).code, Code::Stale);
    assert!(target.read(&Io { map_epoch: 9, ..one(1, 0, 4) }).is_ok());
}

#[test]
fn a_dropped_ticket_changes_nothing() {
    let target = target(16);
    write(&target, 1, 0, &pattern(1, 1000)).unwrap();
    let used = target.used();
    let mut ticket = target.begin_write(now(2), &one(1, 0, 300_000)).unwrap();
    assert!(target.used() > used);
    ticket.fill(&pattern(2, 300_000));
    drop(ticket);
    drop(target.begin_write(now(2), &one(2, 0, 10)).unwrap());
    drop(target.begin_write(now(2), &one(2, 0, 0)).unwrap());
    assert_eq!((target.used(), target.objects()), (used, 1));
    assert_eq!(read(&target, 1, 0, 2000), pattern(1, 1000));
}

#[test]
fn tickets_to_one_chunk_are_both_there_whatever_their_order() {
    for first in [0, 1] {
        let target = target(16);
        let mut tickets: Vec<_> = [(0, 3000), (3000, 50_000)]
            .map(|(offset, length)| {
                let mut ticket = target.begin_write(now(1), &one(1, offset, length)).unwrap();
                ticket.fill(&pattern(offset, length as usize));
                ticket
            })
            .into();
        tickets.remove(first).commit(now(1)).unwrap();
        tickets.remove(0).commit(now(1)).unwrap();
        let expected = [pattern(0, 3000), pattern(3000, 50_000)].concat();
        assert_eq!(read(&target, 1, 0, CHUNK), expected);
        assert_eq!(pieces(&target, 1), 1);
    }
}

#[test]
fn a_reader_sees_what_was_there_when_it_asked() {
    let target = target(32);
    let old = pattern(1, 3 * CHUNK_BYTES);
    write(&target, 1, 0, &old).unwrap();
    let ticket = target.read(&one(1, 0, 3 * CHUNK)).unwrap();
    write(&target, 1, 100, &pattern(2, 10)).unwrap();
    write(&target, 1, CHUNK, &pattern(3, CHUNK_BYTES)).unwrap();
    punch(&target, 1, 2 * CHUNK + 5, 5);
    assert_eq!(ticket.slices().concat(), old);
    target.remove(&[Ino(1)]);
    assert_eq!(ticket.slices().concat(), old);
    drop(ticket);
    assert_empty(&target);
}

#[test]
fn pieces_made_under_a_reader_are_folded_when_it_is_done() {
    let target = target(16);
    let mut model = pattern(1, CHUNK_BYTES);
    write(&target, 1, 0, &model).unwrap();
    let ticket = target.read(&one(1, 0, CHUNK)).unwrap();
    punch(&target, 1, 1000, 1000);
    model[1000..2000].fill(0);
    assert_eq!(read(&target, 1, 0, CHUNK), model);
    drop(ticket);
    assert_eq!(pieces(&target, 1), 1);
    assert_eq!(read(&target, 1, 0, CHUNK), model);
    assert_eq!(call(&target, TargetRequest::Witness { ino: Ino(1) }).1, CHUNK);
}

#[test]
fn lists_are_written_in_order_and_later_extents_win() {
    let target = target(64);
    let runs = |list: &[(u64, u64)]| {
        let extents = list.iter().map(|&(offset, length)| Extent { offset, length });
        let runs: Vec<_> =
            extents.map(|e| crate::wire::data::Run::single(e.offset, e.length as u32)).collect();
        let length = list.iter().map(|extent| extent.1 as usize).sum();
        Runs::List { runs, length }
    };
    let list = [(70_000, 5000), (10, 20), (72_000, 100), (0, 30), (71_000, 2000), (200_000, 1)];
    let mut model = vec![0; 200_001];
    let mut payload = Vec::new();
    for (i, &(offset, length)) in list.iter().enumerate() {
        let bytes = pattern(i as u64, length as usize);
        model[offset as usize..(offset + length) as usize].copy_from_slice(&bytes);
        payload.extend_from_slice(&bytes);
    }
    let mut ticket = target.begin_write(now(1), &io(1, runs(&list))).unwrap();
    ticket.fill(&payload);
    ticket.commit(now(1)).unwrap();
    assert_eq!(read(&target, 1, 0, 1 << 20), model);
    // Reads: the end cuts only what lies behind the last byte that is there.
    let list = [(199_990, 100), (5, 10), (300_000, 10)];
    let ticket = target.read(&io(1, runs(&list))).unwrap();
    let mut expected = model[199_990..].to_vec();
    expected.resize(100, 0);
    expected.extend_from_slice(&model[5..15]);
    assert_eq!(ticket.slices().concat(), expected);
    let ticket = target.read(&io(1, runs(&[(200_001, 1), (1 << 40, 4)]))).unwrap();
    assert_eq!((ticket.length(), ticket.slices().len()), (0, 0));
}

/// 8 MiB in 16 Ki extents, each in a chunk of its own: costs what it writes, not 64 KiB each.
#[test]
fn sparse_lists_cost_what_they_write() {
    let target = target(1024);
    let count = LIST_EXTENTS_MAX as u32;
    let run = crate::wire::data::Run { offset: 7, length: 512, count, stride: CHUNK };
    let io = io(1, Runs::List { runs: vec![run], length: 512 * count as usize });
    let bytes = pattern(3, 512 * count as usize);
    for seed in [3, 4] {
        let bytes = pattern(seed, bytes.len());
        let mut ticket = target.begin_write(now(1), &io).unwrap();
        ticket.fill(&bytes);
        ticket.commit(now(1)).unwrap();
        assert_eq!(target.read(&io).unwrap().slices().concat(), bytes);
    }
    assert!(target.used() < 16 << 20, "{}", target.used());
    target.remove(&[Ino(1)]);
    assert_empty(&target);
}

#[test]
fn small_objects_are_cheap_and_used_counts_them() {
    let target = target(1024);
    for ino in 0..10_000 {
        write(&target, ino, 0, &pattern(ino, 100)).unwrap();
    }
    assert!(target.used() < 10_000 * 1024, "{}", target.used());
    assert_eq!(target.objects(), 10_000);
    for ino in 0..10_000 {
        assert_eq!(read(&target, ino, 0, 1000), pattern(ino, 100));
    }
    let inos: Vec<_> = (0..10_010).map(Ino).collect();
    assert_eq!(target.remove(&inos), 10_000);
    assert_empty(&target);
}

/// A client hears of a truncation (from another target's witness, or by a change of times after it)
/// and writes before the truncation itself arrives here: it must still cut what was there before.
#[test]
fn a_truncation_cuts_though_its_epoch_was_heard_of_before() {
    let target = target(16);
    write(&target, 1, 0, &pattern(1, 1000)).unwrap();
    let mut ticket = target.begin_write(now(8), &Io { epoch: 5, ..one(1, 0, 10) }).unwrap();
    ticket.fill(&pattern(2, 10));
    let witness = ticket.commit(now(8)).unwrap();
    assert_eq!(witness, Witness { size: 1000, mtime: WallTime(8), epoch: 5, life: 0, changes: 2 });
    call(&target, TargetRequest::Stamp { ino: Ino(1), epoch: 6 });
    write(&target, 1, 0, &pattern(3, 10)).unwrap();
    let (witness, _) = truncate(&target, 1, 5, 5, 5);
    assert_eq!(witness, Witness { size: 5, mtime: WallTime(1), epoch: 6, life: 0, changes: 4 });
    assert_eq!(read(&target, 1, 0, 100), pattern(3, 10)[..5]);
    assert_eq!(truncate(&target, 1, 0, 0, 5).0, witness);
}

/// Objects without a byte of payload: the budget holds for the heap, too.
#[test]
fn bookkeeping_alone_fills_a_target() {
    let target = target(16);
    let mut made = 0;
    while let Ok(TargetReply::Object { .. }) =
        target.call(now(1), &TargetRequest::Stamp { ino: Ino(made), epoch: 1 })
    {
        made += 1;
        assert!(made * OBJECT_COST <= target.capacity());
    }
    assert!(made * OBJECT_COST > target.capacity() * 9 / 10, "{made}");
    assert_eq!(write(&target, 0, 0, b"x").unwrap_err().code, Code::NoSpace);
    assert_eq!(target.remove(&(0..made).map(Ino).collect::<Vec<_>>()), made as u32);
    assert_empty(&target);
}

#[test]
fn small_appends_stay_in_one_slot_of_a_fitting_size() {
    let target = target(64);
    let mut model = Vec::new();
    for i in 0..2000 {
        let bytes = pattern(i, 97);
        write(&target, 1, model.len() as u64, &bytes).unwrap();
        model.extend_from_slice(&bytes);
        let (_, allocated) = call(&target, TargetRequest::Witness { ino: Ino(1) });
        assert!(allocated <= 8 * (model.len() as u64).max(512), "{allocated} {}", model.len());
    }
    assert_eq!(read(&target, 1, 0, 1 << 20), model);
    assert_eq!(pieces(&target, 1), model.len().div_ceil(CHUNK_BYTES));
}

/// Fills a pool to the brim in several ways; nothing of it is lost, it can be overwritten, and it
/// takes the same amount again after it was emptied.
#[test]
fn a_full_pool_keeps_what_it_has_and_can_be_overwritten() {
    for (blocks, length) in [(64, 100), (64, 3000), (512, 70_000), (512, 1 << 20), (24, 65_536)] {
        let target = target(blocks);
        let fill = || {
            let mut count = 0;
            loop {
                match write(&target, count, 0, &pattern(count, length)) {
                    Ok(_) => count += 1,
                    Err(error) => {
                        assert_eq!(error.code, Code::NoSpace);
                        return count;
                    }
                }
            }
        };
        let count = fill();
        let stored = count * length as u64;
        assert!(count > 0 && target.used() <= target.capacity());
        if length >= 65_536 {
            let share = stored as f64 / (target.capacity() - target.reserve()) as f64;
            assert!(share > 0.84, "{share} with {length}");
        }
        audit(&target, 0);
        for round in 1..4 {
            for ino in 0..count {
                assert_eq!(read(&target, ino, 0, 2 << 20), pattern(ino + round - 1, length));
                // Whole and in parts, with a reader looking on.
                let bytes = pattern(ino + round, length);
                let reader = target.read(&one(ino, 0, length as u64)).unwrap();
                let middle = length / 3;
                write(&target, ino, 0, &bytes[..middle]).unwrap();
                drop(reader);
                write(&target, ino, middle as u64, &bytes[middle..]).unwrap();
                write(&target, ino, 0, &bytes).unwrap();
                assert_eq!(write(&target, u64::MAX, 0, &bytes).unwrap_err().code, Code::NoSpace);
            }
            audit(&target, 0);
        }
        assert_eq!(target.remove(&(0..count).map(Ino).collect::<Vec<_>>()), count as u32);
        assert_empty(&target);
        assert_eq!(fill(), count);
    }
}

#[test]
fn an_exhausted_reserve_is_busy_and_memory_never_had_is_no_space() {
    let target = target(64);
    let mut size = 0;
    while write(&target, 1, size, &pattern(size, CHUNK_BYTES)).is_ok() {
        size += CHUNK;
    }
    let mut held = Vec::new();
    let busy = loop {
        match target.begin_write(now(1), &one(1, held.len() as u64 * CHUNK, CHUNK)) {
            Ok(ticket) => held.push(ticket),
            Err(error) => break error,
        }
    };
    assert_eq!(busy.code, Code::Busy);
    assert!(held.len() >= 2);
    // New data would not fit either way.
    assert_eq!(write(&target, 1, size, &pattern(0, 2 << 20)).unwrap_err().code, Code::NoSpace);
    held.pop();
    assert!(write(&target, 1, 0, &pattern(9, CHUNK_BYTES)).is_ok());
    held.clear();
    let too_much = one(1, 0, 10 * CHUNK);
    assert_eq!(target.begin_write(now(1), &too_much).unwrap_err().code, Code::NoSpace);
    assert!(punch(&target, 1, 10, 10).1 > 0, "a hole needs no memory");
    target.remove(&[Ino(1)]);
    assert_empty(&target);
}

#[test]
fn truncations_go_by_their_epochs() {
    let target = target(32);
    write(&target, 1, 0, &pattern(1, 200_000)).unwrap();
    let (witness, allocated) = truncate(&target, 1, 100_000, 150_000, 4);
    assert_eq!(
        witness,
        Witness { size: 150_000, mtime: WallTime(0), epoch: 4, life: 0, changes: 2 }
    );
    assert_eq!(allocated, 2 * CHUNK);
    let mut model = pattern(1, 100_000);
    model.resize(150_000, 0);
    assert_eq!(read(&target, 1, 0, 1 << 20), model);
    for epoch in [0, 3, 4] {
        assert_eq!(truncate(&target, 1, 0, 0, epoch).0, witness);
    }
    assert_eq!(write(&target, 1, 0, b"x").unwrap().epoch, 4);
    let nothing = Witness { epoch: 5, changes: 4, ..Witness::default() };
    assert_eq!(truncate(&target, 1, 0, 0, 5), (nothing, 0));
    // Objects that are not there yet: sizes and epochs are remembered, nothing else is.
    assert_eq!(truncate(&target, 2, 0, 70_000, 1).0.size, 70_000);
    assert_eq!(read(&target, 2, 0, 1 << 20), vec![0; 70_000]);
    assert_eq!(truncate(&target, 3, 0, 0, 2).0.epoch, 2);
    assert_eq!(truncate(&target, 3, 0, 9, 1).0.size, 0);
    truncate(&target, 4, 0, 0, 0);
    assert_eq!(target.objects(), 3);
    let error = target
        .call(now(1), &TargetRequest::Truncate { ino: Ino(1), cut: 0, size: u64::MAX, epoch: 9 });
    assert_eq!(error.unwrap_err().code, Code::TooLarge);
}

#[test]
fn a_stamp_makes_older_writes_count_no_more() {
    let target = target(16);
    assert_eq!(write(&target, 1, 0, b"x").unwrap().mtime, WallTime(1));
    let stamp = |epoch| call(&target, TargetRequest::Stamp { ino: Ino(1), epoch }).0;
    assert_eq!(stamp(3), Witness { size: 1, mtime: WallTime(0), epoch: 3, life: 0, changes: 1 });
    assert_eq!(write(&target, 1, 0, b"y").unwrap().mtime, WallTime(1));
    assert_eq!(stamp(2).mtime, WallTime(1));
    assert_eq!(call(&target, TargetRequest::Flush { ino: Ino(7) }).0, Witness::default());
}

#[test]
fn writes_land_though_their_object_was_cut_or_removed_meanwhile() {
    for (offset, length) in [(0, 300), (CHUNK - 100, 300), (500, 2 * CHUNK), (60_000, 10)] {
        for remove in [false, true] {
            let target = target(32);
            write(&target, 1, 0, &pattern(1, 3 * CHUNK_BYTES)).unwrap();
            let mut ticket = target.begin_write(now(1), &one(1, offset, length)).unwrap();
            ticket.fill(&pattern(2, length as usize));
            if remove {
                target.remove(&[Ino(1)]);
            } else {
                truncate(&target, 1, 70, 70, 1);
            }
            assert_eq!(ticket.commit(now(1)).unwrap().size, offset + length);
            let mut model = if remove { vec![] } else { pattern(1, 70) };
            model.resize(offset as usize, 0);
            model.extend_from_slice(&pattern(2, length as usize));
            assert_eq!(read(&target, 1, 0, 1 << 20), model[..(offset + length) as usize]);
            audit(&target, 0);
            target.remove(&[Ino(1)]);
            assert_empty(&target);
        }
    }
}

#[test]
fn holes_are_found_and_free_their_memory() {
    let target = target(32);
    write(&target, 1, CHUNK, &pattern(1, 2 * CHUNK_BYTES)).unwrap();
    write(&target, 1, 5 * CHUNK, &pattern(1, 100)).unwrap();
    assert_eq!(seek(&target, 1, 0, true), Some(CHUNK));
    assert_eq!(seek(&target, 1, CHUNK + 5, true), Some(CHUNK + 5));
    assert_eq!(seek(&target, 1, CHUNK + 5, false), Some(3 * CHUNK));
    assert_eq!(seek(&target, 1, 3 * CHUNK, true), Some(5 * CHUNK));
    assert_eq!(seek(&target, 1, 5 * CHUNK, false), Some(5 * CHUNK + 100));
    assert_eq!(seek(&target, 1, 5 * CHUNK + 100, true), None);
    assert_eq!(seek(&target, 1, 6 * CHUNK, false), Some(6 * CHUNK));
    assert_eq!((seek(&target, 9, 3, true), seek(&target, 9, 3, false)), (None, Some(3)));
    let (witness, allocated) = punch(&target, 1, CHUNK + 10, 2 * CHUNK);
    assert_eq!((witness.size, allocated), (5 * CHUNK + 100, CHUNK + 512));
    assert_eq!(seek(&target, 1, CHUNK, false), Some(CHUNK + 10));
    assert_eq!(punch(&target, 1, 0, FILE_SIZE_MAX).1, 0);
    assert_eq!(read(&target, 1, 0, 1 << 20), vec![0; 5 * CHUNK_BYTES + 100]);
    assert_eq!(punch(&target, 9, 0, 10), (Witness::default(), 0));
    target.remove(&[Ino(1)]);
    assert_empty(&target);
}

#[test]
fn extending_makes_an_object_longer_and_never_shorter() {
    let target = target(32);
    let extend = |size, epoch| call(&target, TargetRequest::Extend { ino: Ino(1), size, epoch });
    assert_eq!(
        extend(70_000, 0),
        (Witness { size: 70_000, mtime: WallTime(1), epoch: 0, life: 0, changes: 1 }, 0)
    );
    write(&target, 1, 80_000, b"behind").unwrap();
    assert_eq!(extend(75_000, 0).0.size, 80_006);
    assert_eq!(read(&target, 1, 79_999, 100), b"\0behind");
    // As with a write, a truncation that is known of began another epoch.
    assert_eq!(
        extend(90_000, 4).0,
        Witness { size: 90_000, mtime: WallTime(1), epoch: 4, life: 0, changes: 4 }
    );
    let far = TargetRequest::Extend { ino: Ino(1), size: FILE_SIZE_MAX + 1, epoch: 4 };
    assert!(target.call(now(1), &far).is_err());
    audit(&target, 0);
    target.remove(&[Ino(1)]);
    assert_empty(&target);
}

/// Writers and readers of one object in threads: every read sees each write whole or not at all.
#[test]
fn threads_see_writes_whole() {
    const PART: u64 = 40_000;
    let target = target(64);
    write(&target, 1, 0, &vec![1; 4 * PART as usize]).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let target = &target;
            scope.spawn(move || {
                for round in 0..500u64 {
                    let bytes = vec![(round % 200 + 1) as u8; PART as usize];
                    let part = writer * 2 + round % 2;
                    match write(target, 1, part * PART, &bytes) {
                        Ok(_) => (),
                        Err(error) => assert_eq!(error.code, Code::Busy),
                    }
                    if round % 50 == 49 {
                        write(target, 2 + writer, 0, &bytes).unwrap();
                        target.remove(&[Ino(2 + writer)]);
                    }
                }
            });
        }
        for _ in 0..2 {
            let target = &target;
            scope.spawn(move || {
                for _ in 0..500 {
                    let bytes = read(target, 1, 0, 4 * PART);
                    for part in bytes.chunks(PART as usize) {
                        assert!(part.iter().all(|&byte| byte == part[0] && byte != 0));
                    }
                }
            });
        }
    });
    audit(&target, 0);
    target.remove(&[Ino(1)]);
    assert_empty(&target);
}

/// What may happen to a target, with numbers that are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Begin { ino: u64, extents: Vec<(u64, u64)>, seed: u64 },
    Commit { pick: usize },
    Abandon { pick: usize },
    Read { ino: u64, offset: u64, length: u64 },
    Unread { pick: usize },
    Truncate { ino: u64, cut: u64, size: u64, newer: bool },
    Punch { ino: u64, offset: u64, length: u64 },
    Stamp { ino: u64 },
    Remove { ino: u64 },
}

/// Lengths and offsets of all magnitudes, and often at the borders of slots and chunks.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => 0..600u64,
        2 => 0..20_000u64,
        2 => 0..5 * CHUNK,
        2 => (0..4u64, prop_oneof![Just(0), Just(512), Just(4096), Just(16384)])
            .prop_map(|(chunk, at)| chunk * CHUNK + at),
        1 => (1..4u64).prop_map(|chunk| chunk * CHUNK - 1),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let ino = 0..3u64;
    let extents = prop_oneof![
        3 => proptest::collection::vec((number(), number()), 1),
        1 => proptest::collection::vec((number(), 1..3000u64), 2..12),
    ];
    prop_oneof![
        6 => (ino.clone(), extents, 0..200u64)
            .prop_map(|(ino, extents, seed)| Op::Begin { ino, extents, seed }),
        5 => (0..8usize).prop_map(|pick| Op::Commit { pick }),
        1 => (0..8usize).prop_map(|pick| Op::Abandon { pick }),
        3 => (ino.clone(), number(), number())
            .prop_map(|(ino, offset, length)| Op::Read { ino, offset, length }),
        2 => (0..8usize).prop_map(|pick| Op::Unread { pick }),
        1 => (ino.clone(), number(), number(), any::<bool>())
            .prop_map(|(ino, cut, size, newer)| Op::Truncate { ino, cut, size, newer }),
        2 => (ino.clone(), number(), number())
            .prop_map(|(ino, offset, length)| Op::Punch { ino, offset, length }),
        1 => ino.clone().prop_map(|ino| Op::Stamp { ino }),
        1 => ino.prop_map(|ino| Op::Remove { ino }),
    ]
}

#[derive(Clone, Debug, Default)]
struct Model {
    bytes: Vec<u8>,
    epoch: u32,
    cut_epoch: u32,
    mtime: i64,
    changes: u64,
}

impl Model {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        if !bytes.is_empty() {
            self.bytes.resize(self.bytes.len().max(end), 0);
            self.bytes[offset as usize..end].copy_from_slice(bytes);
        }
    }

    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let size = self.bytes.len();
        self.bytes[size.min(offset as usize)..size.min((offset + length) as usize)].to_vec()
    }

    fn witness(&self) -> Witness {
        let size = self.bytes.len() as u64;
        let (mtime, epoch, changes) = (WallTime(self.mtime), self.epoch, self.changes);
        Witness { size, mtime, epoch, life: 0, changes }
    }
}

/// Runs the operations on a target and on the model, and compares.
fn run(blocks: usize, ample: bool, ops: Vec<Op>) {
    let target = target(blocks);
    let mut models: BTreeMap<u64, Model> = BTreeMap::new();
    let mut writes = Vec::new();
    let mut reads: Vec<(ReadTicket, Vec<u8>)> = Vec::new();
    for (wall, op) in ops.into_iter().enumerate() {
        let wall = wall as i64 + 1;
        let pick_of = |pick: usize, length: usize| (length > 0).then(|| pick % length);
        match op {
            Op::Begin { ino, extents, seed } => {
                let list: Vec<_> = extents
                    .iter()
                    .map(|&(offset, length)| Extent { offset, length })
                    .filter(|extent| extent.length > 0)
                    .collect();
                let length: u64 = list.iter().map(|extent| extent.length).sum();
                let request = io(ino, Runs::compact(list.iter().copied()));
                match target.begin_write(now(wall), &request) {
                    Ok(mut ticket) => {
                        let payload = pattern(seed, length as usize);
                        ticket.fill(&payload);
                        writes.push((ticket, ino, list, payload));
                    }
                    Err(error) => {
                        assert!(!ample, "{error}");
                        assert!(matches!(error.code, Code::NoSpace | Code::Busy), "{error}");
                    }
                }
            }
            Op::Commit { pick } => {
                let Some(pick) = pick_of(pick, writes.len()) else { continue };
                let (ticket, ino, list, payload) = writes.remove(pick);
                let witness = ticket.commit(now(wall)).unwrap();
                let mut payload = &payload[..];
                if !payload.is_empty() {
                    let model = models.entry(ino).or_default();
                    (model.mtime, model.changes) = (wall, model.changes + 1);
                }
                for extent in list {
                    let (part, rest) = payload.split_at(extent.length as usize);
                    models.get_mut(&ino).unwrap().write(extent.offset, part);
                    payload = rest;
                }
                let expected = models.get(&ino).map(Model::witness).unwrap_or_default();
                assert_eq!(witness, expected);
            }
            Op::Abandon { pick } => {
                if let Some(pick) = pick_of(pick, writes.len()) {
                    drop(writes.remove(pick));
                }
            }
            Op::Read { ino, offset, length } => {
                let ticket = target.read(&one(ino, offset, length)).unwrap();
                let model = models.get(&ino).cloned().unwrap_or_default();
                let expected = model.read(offset, length);
                assert_eq!(ticket.witness(), model.witness());
                assert_eq!(ticket.length(), expected.len());
                reads.push((ticket, expected));
            }
            Op::Unread { pick } => {
                let Some(pick) = pick_of(pick, reads.len()) else { continue };
                let (ticket, expected) = reads.remove(pick);
                assert!(ticket.slices().concat() == expected, "a pinned read changed");
            }
            Op::Truncate { ino, cut, size, newer } => {
                let epoch = models.get(&ino).map_or(0, |model| model.cut_epoch) + u32::from(newer);
                let request = TargetRequest::Truncate { ino: Ino(ino), cut, size, epoch };
                let exists = models.contains_key(&ino);
                if target.call(now(wall), &request).is_err() {
                    assert!(!ample && !exists);
                } else if newer || (!exists && size > 0) {
                    let model = models.entry(ino).or_default();
                    model.bytes.truncate(cut as usize);
                    model.bytes.resize(size as usize, 0);
                    (model.cut_epoch, model.changes) = (epoch, model.changes + 1);
                    if epoch > model.epoch {
                        (model.epoch, model.mtime) = (epoch, 0);
                    }
                }
            }
            Op::Punch { ino, offset, length } => {
                let extents = vec![Extent { offset, length }];
                let request = TargetRequest::Punch { ino: Ino(ino), extents };
                target.call(now(wall), &request).unwrap();
                if let Some(model) = models.get_mut(&ino) {
                    let size = model.bytes.len();
                    let range = size.min(offset as usize)..size.min((offset + length) as usize);
                    model.bytes[range].fill(0);
                    (model.mtime, model.changes) = (wall, model.changes + 1);
                }
            }
            Op::Stamp { ino } => {
                let epoch = models.get(&ino).map_or(0, |model| model.epoch) + 1;
                let request = TargetRequest::Stamp { ino: Ino(ino), epoch };
                if target.call(now(wall), &request).is_ok() {
                    let model = models.entry(ino).or_default();
                    (model.epoch, model.mtime) = (epoch, 0);
                }
            }
            Op::Remove { ino } => {
                let there = models.remove(&ino).is_some();
                assert_eq!(target.remove(&[Ino(ino)]), u32::from(there));
            }
        }
        audit(&target, writes.iter().map(|(ticket, ..)| ticket.cost()).sum());
    }
    for (ticket, expected) in reads.drain(..) {
        assert!(ticket.slices().concat() == expected, "a pinned read changed");
    }
    for (&ino, model) in &models {
        assert!(read(&target, ino, 0, 16 * CHUNK) == model.bytes, "object {ino} differs");
        for offset in [0, 1, CHUNK, CHUNK + 1, 2 * CHUNK] {
            // Bytes of the pattern are never zero: data that lies in what is told a hole is lost.
            let data = seek(&target, ino, offset, true).unwrap_or(u64::MAX) as usize;
            let end = data.min(model.bytes.len());
            let skipped = model.bytes.get(offset as usize..end).unwrap_or_default();
            assert!(skipped.iter().all(|&byte| byte == 0));
            let hole = seek(&target, ino, offset, false).unwrap();
            assert!(hole >= offset);
            assert_eq!(model.bytes.get(hole as usize).copied().unwrap_or(0), 0);
        }
    }
    writes.clear();
    target.remove(&[Ino(0), Ino(1), Ino(2)]);
    assert_empty(&target);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn histories_agree_with_a_plain_model(ops in proptest::collection::vec(op(), 1..80)) {
        run(2048, true, ops);
    }

    #[test]
    fn histories_in_a_small_pool_agree_too(
        blocks in 4usize..24,
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        run(blocks, false, ops);
    }
}

/// Two writers of every other piece of 256 B: what will be copied to its place in the end is received
/// without gaps, one slice for each chunk.
#[test]
fn what_is_merged_is_received_without_gaps() {
    let target = target(256);
    let pieces = 16 * CHUNK / 512;
    let mut model = vec![0; 16 * CHUNK_BYTES];
    let mut buffers = Vec::new();
    for turn in 0..3 {
        for rank in 0..2 {
            let places = (0..pieces).map(|i| i * 512 + rank * 256);
            let runs = Runs::compact(places.clone().map(|offset| Extent { offset, length: 256 }));
            let bytes = pattern(turn * 2 + rank, 256 * pieces as usize);
            let mut ticket = target.begin_write(now(1), &io(1, runs)).unwrap();
            buffers.push(ticket.buffers().len());
            ticket.fill(&bytes);
            ticket.commit(now(1)).unwrap();
            for (place, piece) in places.zip(bytes.chunks(256)) {
                model[place as usize..][..256].copy_from_slice(piece);
            }
        }
        assert!(read(&target, 1, 0, 1 << 20) == model, "turn {turn}");
    }
    // The first of all goes straight to where it belongs.
    assert_eq!(buffers, [pieces as usize, 16, 16, 16, 16, 16]);
    audit(&target, 0);
}

fn run_of() -> impl Strategy<Value = Run> {
    let number = |limit: u64| prop_oneof![0..limit, (0..limit / 64).prop_map(|n| n * 64)];
    (number(3 * CHUNK), 1u32..3000, 1u32..300, 0u64..3000).prop_map(
        |(offset, length, count, gap)| Run {
            offset,
            length,
            count,
            stride: u64::from(length) + gap,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever lies there in whatever pieces: each extent's bytes, zeros for holes and behind the
    /// object's end, up to the last byte that lies below it.
    #[test]
    fn lists_are_read_as_from_a_plain_model(
        writes in proptest::collection::vec((0..4 * CHUNK, 1..20_000u64), 0..12),
        runs in proptest::collection::vec(run_of(), 1..5),
        pinned in any::<bool>(),
    ) {
        let target = target(512);
        let mut model = Model::default();
        let mut pins = Vec::new();
        for (seed, (offset, length)) in writes.into_iter().enumerate() {
            let bytes = pattern(seed as u64, length as usize);
            write(&target, 1, offset, &bytes).unwrap();
            model.write(offset, &bytes);
            if pinned {
                // Who reads meanwhile keeps chunks in pieces.
                pins.push(target.read(&one(1, 0, 8 * CHUNK)).unwrap());
            }
        }
        let size = model.bytes.len() as u64;
        let length = runs.iter().map(|run| run.length as usize * run.count as usize).sum();
        let extents: Vec<Extent> = runs.iter().flat_map(|run| run.extents()).collect();
        let mut expected = Vec::new();
        let mut end = 0;
        for extent in extents {
            let mut bytes = model.read(extent.offset, extent.length);
            let stored = bytes.len();
            bytes.resize(extent.length as usize, 0);
            if extent.offset < size {
                end = expected.len() + stored;
            }
            expected.extend(bytes);
        }
        expected.truncate(end);
        let ticket = target.read(&io(1, Runs::List { runs, length })).unwrap();
        prop_assert_eq!(ticket.length(), expected.len());
        prop_assert!(ticket.slices().concat() == expected);
        drop((ticket, pins));
        audit(&target, 0);
    }
}

#[test]
fn a_regular_stride_stays_one() {
    let target = target(512);
    write(&target, 1, 0, &pattern(1, 4 * CHUNK_BYTES)).unwrap();
    let runs = vec![Run { offset: 256, length: 256, count: 512, stride: 512 }];
    let ticket = target.read(&io(1, Runs::List { runs, length: 512 * 256 })).unwrap();
    assert_eq!(ticket.rows().len(), 1);
    assert_eq!(ticket.slices().len(), 512);
}

#[test]
fn a_lists_hole_is_told_in_one_for_each_chunk_of_zeros() {
    let target = target(512);
    write(&target, 1, 4 * CHUNK, b"behind the hole").unwrap();
    let list = |run: Run| {
        let length = run.length as usize * run.count as usize;
        target.read(&io(1, Runs::List { runs: vec![run], length })).unwrap()
    };
    let ticket = list(Run { offset: 0, length: 256, count: 512, stride: 512 });
    assert_eq!(ticket.length(), 2 * CHUNK_BYTES);
    assert_eq!(ticket.slices().concat(), vec![0; 2 * CHUNK_BYTES]);
    assert_eq!(ticket.rows().len(), 2);
    // Data between holes.
    write(&target, 1, 1000, &[7; 100]).unwrap();
    let ticket = list(Run { offset: 0, length: 256, count: 512, stride: 512 });
    assert!(ticket.rows().len() <= 6, "{}", ticket.rows().len());
    assert_eq!(ticket.slices().concat().iter().filter(|&&byte| byte == 7).count(), 76);
}
