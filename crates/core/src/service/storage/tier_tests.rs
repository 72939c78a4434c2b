//! A target with a disk under it, against plain vectors of bytes: memory far smaller than the data, a
//! disk that answers in any order, and fails.

use super::disk::{BLOCK_BYTES, DiskError, MemoryDisk};
use super::space::FIRST_BLOCK;
use super::*;
use crate::types::{ClientId, Incarnation, TargetId};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const MEMBER: Member = Member { target: TargetId(3), incarnation: Incarnation(0xabc) };
const CHUNK: u64 = CHUNK_BYTES as u64;

struct Bed {
    target: Arc<Target>,
    disk: Arc<MemoryDisk>,
    random: u64,
}

fn now() -> Now {
    Now { mono_ms: 0, wall: WallTime(1) }
}

fn one(ino: u64, offset: u64, length: u64) -> Io {
    let runs = Runs::One(Extent { offset, length });
    Io { ino: Ino(ino), member: MEMBER, map_epoch: 5, generation: 1, epoch: 0, runs }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| ((i * 31 + i / 251 + seed * 97) % 255 + 1) as u8).collect()
}

impl Bed {
    /// Of so many chunks of memory and of disk.
    fn new(memory: usize, disk: u64) -> Bed {
        let disk = Arc::new(MemoryDisk::new(FIRST_BLOCK + disk * CHUNK / BLOCK_BYTES as u64));
        let memory = Box::new(HeapMemory::new(memory * CHUNK_BYTES));
        let target = Target::with(MEMBER, 5, memory, Some(disk.clone()));
        Bed { target, disk, random: 1 }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// The disk ends one request, if it has any.
    fn step(&mut self) -> bool {
        let pending = self.disk.pending() as u64;
        if pending == 0 {
            return false;
        }
        let at = self.random(pending) as usize;
        let done = self.disk.step(at).expect("pending");
        self.target.disk_done(now(), vec![done]);
        true
    }

    fn settle(&mut self) {
        while self.step() {}
    }

    fn write(&mut self, ino: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        loop {
            match self.target.begin_write(now(), &one(ino, offset, bytes.len() as u64)) {
                Ok(mut ticket) => {
                    ticket.fill(bytes);
                    return ticket.commit(now()).map(|_| ());
                }
                Err(error) if error.code == Code::Busy => {
                    assert!(self.step(), "busy, and nothing goes on: {error}");
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(value) => return value,
                Poll::Pending => assert!(self.step(), "waits, and nothing goes on"),
            }
        }
    }

    fn read(&mut self, ino: u64, offset: u64, length: u64) -> Result<Vec<u8>> {
        let io = one(ino, offset, length);
        match self.target.read_for(ClientId(9), &io) {
            Ok(ticket) => return Ok(ticket.slices().concat()),
            Err(error) if error.code != Code::WouldBlock => return Err(error),
            Err(_) => (),
        }
        let reading = self.target.reading(io);
        self.run(reading).map(|ticket| ticket.slices().concat())
    }

    fn audit(&self) {
        let state = self.target.lock();
        let tier = state.chunks.tier.as_ref().expect("a disk");
        let (mut charged, mut blocks) = (tier.space.cost() + tier.pages_cost(), 0);
        let (mut dirty, mut allocated) = (0, 0);
        for (&ino, object) in &state.objects {
            charged += OBJECT_COST + CHUNK_COST * object.chunks.len() as u64;
            allocated = 0;
            for (&index, &chunk) in &object.chunks {
                let key = (ino, index);
                allocated += state.chunks.bytes(key, Some(chunk));
                let record = tier.record(chunk.record);
                assert_eq!(record.key, key);
                blocks += tier.base(chunk.record).map_or(0, |base| base.blocks());
                assert!(!tier.waits(chunk.record) || state.chunks.covered(key, chunk));
                if record.dirty {
                    dirty += state.chunks.held(key, chunk);
                } else {
                    assert_eq!(tier.visible(chunk.record), chunk.length);
                }
                if chunk.in_pieces() {
                    let mut pieces = 0;
                    state.chunks.each(key, chunk, |_| pieces += 1);
                    charged += super::chunk::PIECES_COST + super::chunk::PIECE_COST * pieces;
                }
            }
            assert_eq!(allocated, object.allocated);
        }
        let _ = allocated;
        assert_eq!(state.chunks.arena.used() % CHUNK, charged % CHUNK);
        assert_eq!(tier.dirty_bytes(), dirty);
        let status = state.disk_status().expect("a disk");
        if status.queued == 0 && status.counters.errors == 0 {
            assert_eq!(tier.space.used(), blocks as u64);
        }
    }
}

#[test]
fn three_times_the_memory_comes_back() {
    let mut bed = Bed::new(256, 1600);
    let bytes = pattern(1, 768 * CHUNK_BYTES);
    for (at, part) in bytes.chunks(CHUNK_BYTES * 4).enumerate() {
        bed.write(1, at as u64 * CHUNK * 4, part).unwrap();
    }
    bed.audit();
    for (at, part) in bytes.chunks(100_000).enumerate() {
        assert!(bed.read(1, at as u64 * 100_000, 100_000).unwrap() == part, "at {at}");
    }
    bed.settle();
    bed.audit();
    let status = bed.target.disk_status().unwrap();
    assert!(status.counters.bytes_written >= 512 * CHUNK);
    // Written in large requests.
    assert!(status.counters.bytes_written / status.counters.writes >= 512 << 10);
    assert_eq!(bed.target.remove(&[Ino(1)]), 1);
    bed.settle();
    assert_eq!(bed.target.disk_status().unwrap().used, 0);
    bed.audit();
}

#[test]
fn full_is_told_before_anything_is_acknowledged() {
    let mut bed = Bed::new(64, 100);
    let mut stored = 0;
    let error = loop {
        match bed.write(1, stored * CHUNK, &pattern(stored, CHUNK_BYTES)) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code, Code::NoSpace);
    assert!(stored > 140, "{stored} chunks");
    for index in 0..stored {
        let bytes = bed.read(1, index * CHUNK, CHUNK).unwrap();
        assert!(bytes == pattern(index, CHUNK_BYTES), "chunk {index}");
    }
    // What is there can be overwritten, wherever it is.
    for index in 0..stored {
        bed.write(1, index * CHUNK + 5, &pattern(index + 1, 3000)).unwrap();
    }
    for index in 0..stored {
        let mut expected = pattern(index, CHUNK_BYTES);
        expected[5..3005].copy_from_slice(&pattern(index + 1, 3000));
        assert!(bed.read(1, index * CHUNK, CHUNK).unwrap() == expected, "chunk {index}");
    }
    bed.audit();
}

#[test]
fn overwriting_all_of_a_chunk_on_disk_reads_nothing() {
    let mut bed = Bed::new(64, 400);
    for index in 0..150 {
        bed.write(1, index * CHUNK, &pattern(index, CHUNK_BYTES)).unwrap();
    }
    bed.settle();
    let (_, reads, _) = bed.disk.counts();
    for part in 0..16 {
        bed.write(1, part * 4096, &pattern(part + 7, 4096)).unwrap();
    }
    for part in 0..16 {
        assert!(bed.read(1, part * 4096, 4096).unwrap() == pattern(part + 7, 4096));
    }
    bed.settle();
    assert_eq!(bed.disk.counts().1, reads);
    bed.audit();
}

#[test]
fn what_fits_into_memory_is_read_from_there() {
    let mut bed = Bed::new(400, 800);
    let chunks = 360;
    for index in 0..chunks {
        bed.write(1, index * CHUNK, &pattern(index, CHUNK_BYTES)).unwrap();
    }
    for _ in 0..3 {
        for index in 0..chunks {
            assert!(bed.read(1, index * CHUNK, CHUNK).unwrap() == pattern(index, CHUNK_BYTES));
        }
    }
    bed.settle();
    assert_eq!(bed.disk.counts().1, 0, "reads");
}

#[test]
fn a_scan_leaves_what_is_read_again_and_again_in_memory() {
    let mut bed = Bed::new(256, 2000);
    for index in 0..1000 {
        bed.write(1, index * CHUNK, &[7; CHUNK_BYTES]).unwrap();
    }
    for index in 0..100 {
        bed.write(2, index * CHUNK, &[8; CHUNK_BYTES]).unwrap();
    }
    for _ in 0..4 {
        for index in 0..100 {
            bed.read(2, index * CHUNK, CHUNK).unwrap();
        }
    }
    for index in 0..1000 {
        bed.read(1, index * CHUNK, CHUNK).unwrap();
    }
    bed.settle();
    let (_, before, _) = bed.disk.counts();
    for index in 0..100 {
        bed.read(2, index * CHUNK, CHUNK).unwrap();
    }
    bed.settle();
    let (_, after, _) = bed.disk.counts();
    assert!(after - before < 10, "{} reads of a hot set of 100", after - before);
}

#[test]
fn sequential_readers_are_read_ahead_and_random_ones_are_not() {
    let mut bed = Bed::new(512, 4000);
    for index in 0..2000 {
        bed.write(1, index * CHUNK, &[index as u8; CHUNK_BYTES]).unwrap();
    }
    bed.settle();
    let count = |bed: &Bed| bed.target.disk_status().unwrap().counters;
    let before = count(&bed);
    for at in 0..400 {
        let offset = at * 16384;
        assert!(bed.read(1, offset, 16384).unwrap() == [(offset / CHUNK) as u8; 16384]);
    }
    let after = count(&bed);
    assert!(after.reads - before.reads < 40, "{} requests", after.reads - before.reads);
    bed.settle();
    let before = count(&bed);
    for _ in 0..200 {
        let offset = bed.random(7999) * 16384 / 16384 * 16384;
        assert!(bed.read(1, offset, 16384).unwrap() == [(offset / CHUNK) as u8; 16384]);
    }
    let after = count(&bed);
    assert!(after.bytes_read - before.bytes_read <= 200 * 16384);
}

#[test]
fn wrong_bytes_are_an_error_that_names_the_place() {
    let mut bed = Bed::new(64, 400);
    for index in 0..200 {
        bed.write(5, index * CHUNK, &pattern(index, CHUNK_BYTES)).unwrap();
    }
    bed.settle();
    for block in bed.disk.written() {
        bed.disk.corrupt(block, 77);
    }
    let mut wrong = 0;
    for index in 0..200 {
        match bed.read(5, index * CHUNK, CHUNK) {
            Ok(bytes) => assert!(bytes == pattern(index, CHUNK_BYTES), "wrong bytes given"),
            Err(error) => {
                assert_eq!(error.code, Code::Disk);
                let place = format!("inode 5, object offset {}", index * CHUNK);
                assert!(error.to_string().contains(&place), "{error}");
                wrong += 1;
            }
        }
    }
    assert!(wrong > 100, "{wrong}");
    // Written anew they are good.
    for index in 0..200 {
        bed.write(5, index * CHUNK, &pattern(index + 3, CHUNK_BYTES)).unwrap();
    }
    for index in 0..200 {
        assert!(bed.read(5, index * CHUNK, CHUNK).unwrap() == pattern(index + 3, CHUNK_BYTES));
    }
}

#[test]
fn a_disk_that_went_read_only_loses_nothing_and_says_so() {
    let mut bed = Bed::new(64, 400);
    for index in 0..100 {
        bed.write(5, index * CHUNK, &pattern(index, CHUNK_BYTES)).unwrap();
    }
    bed.settle();
    bed.disk.set_read_only(true);
    let mut stored = 100;
    let error = loop {
        match bed.write(5, stored * CHUNK, &pattern(stored, CHUNK_BYTES)) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code, Code::Disk);
    assert!(bed.target.disk_status().unwrap().failed);
    assert!(bed.target.turn(ClientId(1), 1).is_none());
    let flush = bed.target.call(now(), &TargetRequest::Flush { ino: Ino(5) });
    assert_eq!(flush.unwrap_err().code, Code::Disk);
    for index in 0..stored {
        assert!(bed.read(5, index * CHUNK, CHUNK).unwrap() == pattern(index, CHUNK_BYTES));
    }
}

#[test]
fn writers_ahead_of_the_disk_wait_in_turns() {
    let mut bed = Bed::new(128, 1000);
    let mut turns = Vec::new();
    for index in 0..100 {
        bed.write(1, index * CHUNK, &pattern(index, CHUNK_BYTES)).unwrap();
        turns.extend(bed.target.turn(ClientId(index % 2), CHUNK));
    }
    assert!(turns.len() > 20, "{} wait", turns.len());
    while let Some(turn) = turns.pop() {
        bed.run(turn);
    }
    bed.settle();
    bed.audit();
}

/// Writers used to be told "busy" and to ask again and again; who came at the right moment was served.
#[test]
fn writers_that_find_no_memory_wait_in_the_order_of_asking() {
    let bed = Bed::new(64, 400);
    let waits = |room: &mut Room| {
        let mut context = Context::from_waker(Waker::noop());
        std::pin::Pin::new(room).poll(&mut context).is_pending()
    };
    let begin = |at: u64| bed.target.begin_write(now(), &one(1, at * CHUNK, 4 * CHUNK));
    // Payloads under way take all memory.
    let mut tickets = Vec::new();
    let error = loop {
        match begin(tickets.len() as u64 * 4) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
    };
    // Nothing of it is there yet: whether it will be is not known.
    assert!(matches!(error.code, Code::Busy | Code::NoSpace), "{error}");
    let io = |at: u64| one(1, at * CHUNK, 4 * CHUNK);
    let mut first = bed.target.room(ClientId(1), io(100)).expect("a disk");
    let mut second = bed.target.room(ClientId(2), io(200)).expect("a disk");
    assert!(waits(&mut first) && waits(&mut second));
    drop(tickets.pop());
    assert!(waits(&mut second), "it was not first");
    assert!(!waits(&mut first));
    // Somebody else is quicker than the first, who comes back and waits in front of the second.
    tickets.push(begin(300).expect("memory came back"));
    let mut again = bed.target.room(ClientId(1), io(100)).expect("a disk");
    assert!(waits(&mut again) && waits(&mut second));
    drop(tickets.pop());
    assert!(waits(&mut second));
    assert!(!waits(&mut again));
    let taken = begin(100).expect("it was told so");
    assert!(waits(&mut second));
    // Who gives up is in nobody's way, and what can never be is not waited for.
    let mut third = bed.target.room(ClientId(3), io(400)).expect("a disk");
    assert!(waits(&mut third));
    drop(second);
    drop(taken);
    assert!(!waits(&mut third));
    let mut large = bed.target.room(ClientId(4), one(1, 0, 100 * CHUNK)).expect("a disk");
    assert!(!waits(&mut large));
    drop(tickets);
    assert_eq!(bed.target.disk_status().unwrap().waiting, 0);
    bed.audit();
}

/// A chunk was written to disk twice, and the newer copy arrived first; by the time that the older one
/// failed, most of the chunk was on disk only, with a new write over it in memory. It then waited to be
/// written as if memory had all of it, and zeros were.
#[test]
fn a_late_failure_of_an_old_copy_does_not_touch_what_is_newer() {
    let mut bed = Bed::new(16, 200);
    let send = |bed: &Bed| {
        bed.target.lock().flow.as_mut().expect("a disk").urged = true;
        bed.target.pump();
    };
    let mut content = pattern(2, CHUNK_BYTES);
    bed.write(1, 0, &pattern(1, CHUNK_BYTES)).expect("room");
    send(&bed);
    bed.write(1, 0, &content).expect("room");
    send(&bed);
    assert_eq!(bed.disk.pending(), 2);
    bed.target.disk_done(now(), vec![bed.disk.step(1).expect("the newer one")]);
    {
        let mut state = bed.target.lock();
        let State { objects, chunks, .. } = &mut *state;
        let chunk = objects.get_mut(&Ino(1)).and_then(|object| object.chunks.get_mut(&0));
        let chunk = chunk.expect("it was written");
        assert!(chunks.tier.as_ref().is_some_and(|tier| !tier.record(chunk.record).dirty));
        *chunk = chunks.evict((Ino(1), 0), *chunk);
    }
    bed.write(1, 1000, &[7; 500]).expect("room");
    content[1000..1500].fill(7);
    bed.disk.fail(bed.disk.counts().0, DiskError::Os(5));
    bed.target.disk_done(now(), vec![bed.disk.step(0).expect("the older one")]);
    bed.audit();
    send(&bed);
    bed.settle();
    assert!(bed.read(1, 0, CHUNK).expect("all of it is there") == content);
    bed.audit();
}

/// Random operations against a vector, on one object. Gives the number of requests to the disk.
fn drill(seed: u64, operations: usize, fault: Option<u64>) -> u64 {
    let mut bed = Bed::new(24, 200);
    bed.random = seed * 2 + 1;
    if let Some(at) = fault {
        let error = if seed.is_multiple_of(2) { DiskError::Os(5) } else { DiskError::Short(512) };
        bed.disk.fail(at, error);
    }
    let most = 70 * CHUNK;
    let mut model: Vec<u8> = Vec::new();
    let mut epoch = 0;
    for operation in 0..operations {
        let kind = bed.random(100);
        let offset =
            if kind.is_multiple_of(2) { bed.random(most / 4096) * 4096 } else { bed.random(most) };
        let longest = [1000, 5000, 70_000, 400_000][bed.random(4) as usize];
        let length = (1 + bed.random(longest)).min(most - offset).max(1);
        match kind {
            0..55 => {
                let bytes = pattern(operation as u64, length as usize);
                match bed.write(1, offset, &bytes) {
                    Ok(()) => {
                        let end = (offset + length) as usize;
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].copy_from_slice(&bytes);
                    }
                    Err(error) => assert!(fault.is_some(), "seed {seed}: {error}"),
                }
            }
            55..85 => match bed.read(1, offset, length) {
                Ok(bytes) => {
                    let start = (offset as usize).min(model.len());
                    let end = ((offset + length) as usize).min(model.len());
                    assert!(bytes == model[start..end], "seed {seed}, operation {operation}");
                }
                Err(error) => {
                    assert!(fault.is_some() && error.code == Code::Disk, "seed {seed}: {error}");
                }
            },
            85..92 => {
                let extents = vec![Extent { offset, length }];
                let request = TargetRequest::Punch { ino: Ino(1), extents };
                bed.target.call(now(), &request).unwrap();
                let end = ((offset + length) as usize).min(model.len());
                model[(offset as usize).min(end)..end].fill(0);
            }
            92..95 => {
                epoch += 1;
                let (cut, size) = (offset, offset);
                let request = TargetRequest::Truncate { ino: Ino(1), cut, size, epoch };
                bed.target.call(now(), &request).unwrap();
                model.resize(size as usize, 0);
            }
            _ => (0..bed.random(6)).for_each(|_| {
                bed.step();
            }),
        }
        if operation % 16 == 0 {
            bed.audit();
        }
    }
    bed.settle();
    bed.audit();
    let size = model.len() as u64;
    for at in (0..size).step_by(100_000) {
        match bed.read(1, at, 100_000) {
            Ok(bytes) => {
                let end = (at as usize + 100_000).min(model.len());
                assert!(bytes == model[at as usize..end], "seed {seed}, at the end, at {at}");
            }
            Err(error) => assert!(fault.is_some() && error.code == Code::Disk, "{error}"),
        }
    }
    bed.disk.counts().0
}

#[test]
fn a_target_with_a_disk_is_a_vector_of_bytes() {
    for seed in 0..60 {
        drill(seed, 250, None);
    }
}

#[test]
fn whichever_request_fails_no_wrong_byte_is_given() {
    for seed in 0..2 {
        let count = drill(seed, 60, None);
        assert!(count > 20, "{count} requests");
        for fault in 0..count {
            drill(seed, 60, Some(fault));
        }
    }
}
