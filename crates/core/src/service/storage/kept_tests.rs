//! Targets whose content outlives them: on twins of a disk and of a journal's file, from which every image
//! that a crash can leave is made.

mod crashes;

use super::disk::{BLOCK_BYTES, TwinDisk};
use super::space::FIRST_BLOCK;
use super::*;
use crate::journal::twin::{Fault, Recorder};
use crate::journal::{self, Options, Writer};
use crate::types::ClientId;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const MEMBER: Member = Member { target: TargetId(0), incarnation: Incarnation(7) };
/// Memory: blocks.
const BLOCKS: usize = 40;
/// Disk: chunks.
const CHUNKS: u64 = 160;

fn options() -> Options {
    let real = Options::new(*b"a target's bytes");
    Options { segment_bytes: 1 << 20, log_bytes_min: 256 << 10, step_bytes: 32 << 10, ..real }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
        self.0 >> 33
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

struct Bed {
    target: Arc<Target>,
    disk: Arc<TwinDisk>,
    writer: Writer<Recorder>,
    files: Vec<Recorder>,
    random: Random,
}

impl Bed {
    fn parts(files: &[Recorder], memory: usize, chunks: u64) -> (Arc<Target>, Arc<TwinDisk>) {
        let blocks = FIRST_BLOCK + chunks * (CHUNK_BYTES / BLOCK_BYTES) as u64;
        let disk = Arc::new(TwinDisk::new(files[1].clone(), blocks));
        let memory = Box::new(HeapMemory::new(memory * CHUNK_BYTES));
        (Target::with(MEMBER, 1, memory, Some(disk.clone())), disk)
    }

    fn new(seed: u64) -> Bed {
        Bed::sized(seed, BLOCKS, CHUNKS)
    }

    fn sized(seed: u64, memory: usize, chunks: u64) -> Bed {
        let files = Recorder::files(vec![Vec::new(), Vec::new()]);
        let (target, disk) = Bed::parts(&files, memory, chunks);
        let medium = files[0].clone().naming(&files[1]);
        let writer = journal::create(medium, &options()).expect("made");
        target.keep(writer.journal());
        Bed { target, disk, writer, files, random: Random(seed) }
    }

    /// What comes back from what the files hold.
    fn back(files: Vec<Vec<u8>>, memory: usize, chunks: u64) -> Result<Bed> {
        let files = Recorder::files(files);
        let (target, disk) = Bed::parts(&files, memory, chunks);
        let progress = &mut |_, _| ();
        let mut restore = target.restoring(progress);
        let medium = files[0].clone().naming(&files[1]);
        let writer = journal::open(medium, &options(), &mut restore);
        drop(restore);
        let writer = writer?;
        target.keep(writer.journal());
        target.assign(TargetId(0), 1);
        target.journal_advanced();
        assert_eq!(disk.pending(), 0, "nobody looks after the disk yet");
        target.begin();
        Ok(Bed { target, disk, writer, files, random: Random(99) })
    }

    fn again(&self) -> Bed {
        let files = self.files.iter().map(Recorder::bytes).collect();
        let blocks = self.target.capacity() as usize / CHUNK_BYTES;
        Bed::back(files, blocks, CHUNKS).unwrap_or_else(|error| panic!("comes back: {error}"))
    }

    /// The disk, or else the journal, does something. False: there is nothing to do.
    fn step(&mut self) -> bool {
        let pick = self.random.next() % self.disk.pending().max(1) as u64;
        if let Some(done) = self.disk.step(pick as usize) {
            self.target.disk_done(Now::default(), vec![done]);
            return true;
        }
        let before = self.files[0].operations();
        // If it fails, whoever waits for it is told.
        let _ = self.writer.pump(self.target.sources());
        self.target.journal_advanced();
        self.files[0].operations() != before
    }

    fn settle(&mut self) {
        while self.step() {}
    }

    fn drive<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut idle = 0;
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            idle = if self.step() { 0 } else { idle + 1 };
            assert!(idle < 4, "it waits, and nothing goes on");
        }
    }

    fn io(ino: u64, offset: u64, length: u64) -> Io {
        let runs = Runs::One(Extent { offset, length });
        Io { ino: Ino(ino), member: MEMBER, map_epoch: 1, generation: 0, epoch: 0, runs }
    }

    fn try_write(&mut self, ino: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut idle = 0;
        loop {
            let io = Bed::io(ino, offset, bytes.len() as u64);
            match self.target.begin_write(Now::default(), &io) {
                Ok(mut ticket) => {
                    ticket.fill(bytes);
                    return ticket.commit(Now::default()).map(drop);
                }
                Err(error) if error.code == Code::Busy => {
                    idle = if self.step() { 0 } else { idle + 1 };
                    assert!(idle < 4, "busy, and nothing goes on: {error}");
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn write(&mut self, ino: u64, offset: u64, bytes: &[u8]) {
        self.try_write(ino, offset, bytes).expect("stored");
    }

    fn read_part(&mut self, ino: u64, offset: u64, length: u64) -> Result<Vec<u8>> {
        let target = self.target.clone();
        let io = Bed::io(ino, offset, length);
        match target.read_for(ClientId(9), &io) {
            Err(error) if error.code == Code::WouldBlock => {}
            other => return other.map(|ticket| ticket.slices().concat()),
        }
        self.drive(target.reading(io)).map(|ticket| ticket.slices().concat())
    }

    /// All of an object.
    fn try_read(&mut self, ino: u64) -> Result<Vec<u8>> {
        let size = self.target.lock().witness(Ino(ino)).size;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let at = bytes.len() as u64;
            let part = self.read_part(ino, at, (size - at).min(1 << 20))?;
            bytes.extend(part);
        }
        Ok(bytes)
    }

    fn read(&mut self, ino: u64) -> Vec<u8> {
        self.try_read(ino).expect("reads")
    }

    fn try_flush(&mut self, ino: u64) -> Result<()> {
        let target = self.target.clone();
        self.drive(target.save(Some(Ino(ino))))?;
        target.call(Now::default(), &TargetRequest::Flush { ino: Ino(ino) }).map(drop)
    }

    fn flush(&mut self, ino: u64) {
        self.try_flush(ino).expect("safe");
    }

    fn settled(&mut self) -> Result<()> {
        let target = self.target.clone();
        self.drive(target.settled())
    }

    fn cut(&mut self, ino: u64, size: u64, epoch: u32) -> Result<()> {
        let request = TargetRequest::Truncate { ino: Ino(ino), cut: size, size, epoch };
        self.target.call(Now::default(), &request)?;
        self.settled()
    }

    fn punch(&mut self, ino: u64, offset: u64, length: u64) {
        let extents = vec![Extent { offset, length }];
        let punch = TargetRequest::Punch { ino: Ino(ino), extents };
        self.target.call(Now::default(), &punch).expect("punches");
    }

    /// The books agree with each other, and no block is used twice or lost.
    fn audit(&self) {
        let state = self.target.lock();
        let tier = state.chunks.tier.as_ref().expect("a disk");
        let ledger = tier.ledger.as_ref().expect("kept");
        let mut used = std::collections::BTreeSet::new();
        for object in state.objects.values() {
            for chunk in object.chunks.values() {
                let said = ledger.said(chunk.record).run;
                let base = tier.base(chunk.record).filter(|base| base.block != said.block);
                for run in base.into_iter().chain((said.block != 0).then_some(said)) {
                    for block in run.block..run.block + run.blocks() as u32 {
                        assert!(used.insert(block), "block {block} is used twice");
                    }
                }
            }
        }
        for (block, blocks) in ledger.held() {
            for block in block..block + blocks {
                assert!(used.insert(block), "block {block} is used twice");
            }
        }
        // What is on its way to disk is nobody's yet.
        if self.disk.pending() == 0 {
            assert_eq!(used.len() as u64, tier.space.used(), "blocks in use");
        }
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| ((i * 31 + i / 251 + seed * 97) % 255 + 1) as u8).collect()
}

#[test]
fn what_was_flushed_comes_back_and_what_was_removed_does_not() {
    let mut bed = Bed::new(1);
    bed.write(1, 0, &[1; 100_000]);
    bed.write(1, 300_000, &[2; 5]);
    bed.write(2, 7, b"small");
    bed.write(3, 0, &[3; 200_000]);
    bed.write(4, 0, &[4; 70_000]);
    for ino in 1..=4 {
        bed.flush(ino);
    }
    bed.target.remove(&[Ino(3)]);
    bed.cut(4, 66_000, 2).expect("safe");
    bed.punch(1, 10, 99_000);
    let target = bed.target.clone();
    bed.drive(target.save(None)).expect("safe");
    bed.write(5, 0, b"never flushed");
    bed.audit();

    let mut again = bed.again();
    again.audit();
    for ino in [1, 2, 4] {
        assert!(again.read(ino) == bed.read(ino), "object {ino}");
        let witness = |bed: &Bed| bed.target.lock().witness(Ino(ino));
        assert_eq!((witness(&bed).life, witness(&again).life), (1, 2));
        // It has not changed since it came back.
        assert_eq!(witness(&again).changes, 0);
        let before = Witness { changes: 0, life: 2, ..witness(&bed) };
        assert_eq!(witness(&again), before);
    }
    assert_eq!(again.target.objects(), 3);
    // What was cut off does not come back when the object grows.
    let grow = TargetRequest::Extend { ino: Ino(4), size: 70_000, epoch: 2 };
    again.target.call(Now::default(), &grow).expect("grows");
    assert!(again.read(4)[66_000..] == [0; 4000]);
    // Nor is an older truncation carried out again.
    again.cut(4, 66_000, 2).expect("is seen already");
    assert_eq!(again.read(4).len(), 70_000);
}

#[test]
fn a_journal_that_is_tight_takes_nothing_new_and_makes_safe_what_was_taken() {
    let mut bed = Bed::new(3);
    bed.write(1, 0, &[1; 200_000]);
    bed.files[0].set_tight(true);
    bed.settle();
    for (ino, offset) in [(1, 200_000), (2, 0)] {
        let error = bed.try_write(ino, offset, &[9; 5000]).expect_err("refused");
        assert_eq!(error.code, Code::NoSpace, "{error}");
    }
    let grow = TargetRequest::Extend { ino: Ino(3), size: 7, epoch: 0 };
    assert_eq!(bed.target.call(Now::default(), &grow).expect_err("refused").code, Code::NoSpace);
    // What is there can be changed, cut and removed, and all of it be made safe.
    bed.write(1, 100_000, &[2; 50_000]);
    bed.flush(1);
    assert!(bed.again().read(1) == bed.read(1));
    bed.cut(1, 1000, 2).expect("cut");
    bed.files[0].set_tight(false);
    bed.settle();
    bed.write(2, 0, &[9; 5000]);
    bed.flush(2);
    assert!(bed.again().read(2) == [9; 5000]);
}

#[test]
fn data_beyond_memory_comes_back() {
    let mut bed = Bed::sized(2, 32, CHUNKS);
    let files: Vec<Vec<u8>> = (0..3).map(|seed| pattern(seed, 45 * CHUNK_BYTES + 777)).collect();
    for (ino, bytes) in (1..).zip(&files) {
        for (at, part) in bytes.chunks(300_000).enumerate() {
            bed.write(ino, at as u64 * 300_000, part);
        }
        bed.flush(ino);
    }
    bed.audit();
    for round in 0..3 {
        let mut again = bed.again();
        again.audit();
        for (ino, bytes) in (1..).zip(&files) {
            assert!(again.read(ino) == *bytes, "round {round}: object {ino}");
        }
        bed = again;
    }
    // What is beyond memory is told from the records alone: nothing of it is read.
    assert!(bed.files[0].bytes().len() < 12 << 20, "the journal holds no data");
}

/// Files come and go on a disk that is nearly full: blocks are used again, but not before the
/// journal says that they are free.
#[test]
fn a_full_disk_goes_on() {
    let mut bed = Bed::sized(3, 32, 96);
    let most = 70 * CHUNK_BYTES;
    for round in 1..=8u64 {
        let bytes = pattern(round, most);
        for (at, part) in bytes.chunks(500_000).enumerate() {
            bed.write(round, at as u64 * 500_000, part);
        }
        bed.flush(round);
        // Over itself, too.
        for index in 0..70 {
            bed.write(round, index * 65_536 + 5, &bytes[5..60_000]);
        }
        bed.flush(round);
        let expected: Vec<u8> = (0..70)
            .flat_map(|index| {
                let mut chunk = bytes[index * 65_536..(index + 1) * 65_536].to_vec();
                chunk[5..60_000].copy_from_slice(&bytes[5..60_000]);
                chunk
            })
            .collect();
        let mut again =
            Bed::back(bed.files.iter().map(Recorder::bytes).collect(), 32, 96).expect("back");
        again.audit();
        assert!(again.read(round) == expected, "round {round}");
        bed.settle();
        bed.audit();
        bed.target.remove(&[Ino(round)]);
    }
    // More than there is is refused, and what is there stays.
    bed.settle();
    let mut stored = 0;
    let error = loop {
        match bed.try_write(50, stored, &[7; 65_536]) {
            Ok(()) => stored += 65_536,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code, Code::NoSpace);
    assert!(stored > 70 * 65_536, "{stored}");
    bed.flush(50);
    // It can still be overwritten.
    for index in 0..stored / 65_536 {
        bed.write(50, index * 65_536, &[8; 65_536]);
    }
    bed.flush(50);
    let mut again =
        Bed::back(bed.files.iter().map(Recorder::bytes).collect(), 32, 96).expect("back");
    assert!(again.read(50) == vec![8; stored as usize]);
}

/// Small changes go into the journal: a flush of them neither reads nor writes the disk.
#[test]
fn small_flushes_leave_the_disk_alone() {
    let mut bed = Bed::new(4);
    let mut expected = pattern(1, 20 * CHUNK_BYTES);
    bed.write(1, 0, &expected);
    bed.flush(1);
    let before = bed.target.disk_status().expect("a disk").counters;
    for step in 0..50u64 {
        let at = step * 7919 % 1_000_000;
        bed.write(1, at, &[step as u8 + 1; 3000]);
        expected[at as usize..at as usize + 3000].fill(step as u8 + 1);
        bed.flush(1);
    }
    let after = bed.target.disk_status().expect("a disk").counters;
    assert!(after.writes - before.writes < 10, "{before:?} {after:?}");
    let mut again = bed.again();
    assert!(again.read(1) == expected);
    again.audit();
    // The next life knows what is on disk and what is not.
    let target = again.target.clone();
    again.write(1, 5, b"more");
    expected[5..9].copy_from_slice(b"more");
    again.drive(target.save(None)).expect("safe");
    let mut third = again.again();
    assert!(third.read(1) == expected);
}

/// Bytes that a crash cut off, because the head behind them was not safe, do not come back after the
/// next crash, when the object has grown again.
#[test]
fn what_one_crash_took_the_next_does_not_bring_back() {
    let mut bed = Bed::new(5);
    bed.write(1, 0, &[1; 1000]);
    bed.flush(1);
    bed.write(1, 1000, &[2; 60_000]);
    bed.write(1, 65_536, &[2; 100_000]);
    // The chunks are recorded, the head is not.
    let mut waits = Vec::new();
    let all = ((Ino(1), 0), (Ino(1), u64::MAX));
    bed.target.lock().save_some(all.0, all.1, &mut waits).expect("appended");
    bed.target.lock().save_late(&waits).expect("appended");
    bed.settled().expect("safe");
    let mut again = bed.again();
    assert!(again.read(1) == [1; 1000]);
    again.write(1, 200_000, b"far");
    again.flush(1);
    let mut third = again.again();
    let mut expected = vec![0; 200_003];
    expected[..1000].fill(1);
    expected[200_000..].copy_from_slice(b"far");
    assert!(third.read(1) == expected);
}

#[test]
fn spoilt_blocks_are_errors_that_name_them() {
    let mut bed = Bed::new(6);
    bed.write(3, 0, &pattern(3, 10 * CHUNK_BYTES));
    bed.flush(3);
    let target = bed.target.clone();
    let survey = || {
        let mut survey = Survey::default();
        let medium = Recorder::new(bed.files[0].bytes());
        journal::check(medium, &options(), &mut survey).expect("whole");
        survey.placed()
    };
    let check = || -> Vec<Error> {
        let disk = bed.files[1].bytes();
        let verify = |placed: &Placed| {
            let (offset, length) = placed.place();
            placed
                .verify(MEMBER.incarnation, &disk[offset as usize..offset as usize + length])
                .err()
        };
        survey().iter().filter_map(verify).collect()
    };
    assert_eq!(survey().len(), 10);
    assert!(check().is_empty());
    let (offset, _) = survey()[4].place();
    bed.files[1].spoil(offset + 20_000, 8);
    let errors = check();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].cause.contains("inode 3, object offset 278528"), "{}", errors[0]);
    drop(target);
    let mut again = bed.again();
    let error = again.read_part(3, 4 * 65_536, 65_536).expect_err("spoilt");
    assert!(error.cause.contains("inode 3, object offset 262144"), "{error}");
    assert!(again.read_part(3, 0, 4 * 65_536).is_ok());
}
