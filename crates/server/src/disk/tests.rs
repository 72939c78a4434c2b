//! Both engines, on a real directory.

use super::*;
use std::time::{Duration, Instant};
use weir_core::service::storage::disk::{DiskError, DiskOp};
use weir_core::slice::Slice;

/// Memory at an address that direct I/O takes.
fn aligned(length: usize) -> (Vec<u8>, Slice) {
    let mut bytes = vec![0; length + BLOCK_BYTES];
    let skip = bytes.as_ptr().align_offset(BLOCK_BYTES);
    let slice = Slice::to_write(&mut bytes).part(skip, length);
    (bytes, slice)
}

fn wait(disk: &dyn Driven, count: usize) -> Vec<DiskDone> {
    let until = Instant::now() + Duration::from_secs(30);
    let mut done = Vec::new();
    while done.len() < count {
        assert!(Instant::now() < until, "{} of {count} completions", done.len());
        let mut poll = libc::pollfd { fd: disk.descriptor(0), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, 1000) };
        done.extend(disk.reap(0));
    }
    done
}

fn exercise(engine: Engine) {
    let directory = tempfile::tempdir().expect("a directory");
    let options = DiskOptions { path: directory.path().to_owned(), size: Some(64 << 20) };
    let disk = Backing::open(&options).expect("opened").start(engine, 1).expect("started");
    assert_eq!(disk.blocks(), (64 << 20) / BLOCK_BYTES as u64);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "no name is left");
    let count = 400;
    let mut memory: Vec<(Vec<u8>, Slice)> = (0..count).map(|_| aligned(2 * BLOCK_BYTES)).collect();
    for (at, (_, slice)) in memory.iter_mut().enumerate() {
        // SAFETY: the slice is this test's own memory.
        unsafe { slice.pointer.write_bytes((at % 251) as u8, slice.length) };
        let (block, tag) = (at as u64 * 2 + 7, at as u64);
        // In two pieces, the second one first.
        let buffers = vec![slice.part(BLOCK_BYTES, BLOCK_BYTES), slice.part(0, BLOCK_BYTES)];
        disk.submit(DiskRequest { tag, op: DiskOp::Write, block, buffers });
    }
    let mut tags: Vec<u64> = wait(&*disk, count)
        .iter()
        .map(|done| {
            assert_eq!(done.result, Ok(()));
            done.tag
        })
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..count as u64).collect::<Vec<_>>());
    disk.submit(DiskRequest { tag: 0, op: DiskOp::Sync, block: 0, buffers: Vec::new() });
    assert_eq!(wait(&*disk, 1)[0].result, Ok(()));
    for (at, (_, slice)) in memory.iter().enumerate() {
        // SAFETY: as above.
        unsafe { slice.pointer.write_bytes(0, slice.length) };
        let (block, tag) = (at as u64 * 2 + 7, at as u64);
        disk.submit(DiskRequest { tag, op: DiskOp::Read, block, buffers: vec![*slice] });
    }
    assert!(wait(&*disk, count).iter().all(|done| done.result == Ok(())));
    for (at, (_, slice)) in memory.iter().enumerate() {
        // SAFETY: as above; the reads have ended.
        let bytes = unsafe { std::slice::from_raw_parts(slice.pointer, slice.length) };
        assert!(bytes.iter().all(|&byte| byte == (at % 251) as u8), "at {at}");
    }
    // Behind the end there is nothing.
    let buffers = vec![memory[0].1];
    disk.submit(DiskRequest { tag: 9, op: DiskOp::Read, block: disk.blocks() - 1, buffers });
    assert_eq!(wait(&*disk, 1)[0].result, Err(DiskError::Short(BLOCK_BYTES)));
    disk.close();
}

#[test]
fn io_uring_or_what_there_is_instead() {
    exercise(Engine::Auto);
}

#[test]
fn threads() {
    exercise(Engine::Threads);
}

#[test]
fn what_a_loop_submits_ends_in_its_lane() {
    for engine in [Engine::Auto, Engine::Threads] {
        let directory = tempfile::tempdir().expect("a directory");
        let options = DiskOptions { path: directory.path().to_owned(), size: Some(64 << 20) };
        let disk = Backing::open(&options).expect("opened").start(engine, 3).expect("started");
        let ended = |lane: usize| {
            let disk = disk.clone();
            let work = move || {
                take_lane(lane);
                let (_memory, slice) = aligned(BLOCK_BYTES);
                let (tag, op, block, buffers) = (lane as u64, DiskOp::Write, 7, vec![slice]);
                disk.submit(DiskRequest { tag, op, block, buffers });
                let until = Instant::now() + Duration::from_secs(30);
                loop {
                    for other in (0..3).filter(|&other| other != lane) {
                        assert!(disk.reap(other).is_empty(), "{engine:?}: lane {other}");
                    }
                    let done = disk.reap(lane);
                    if !done.is_empty() {
                        return done;
                    }
                    assert!(Instant::now() < until, "{engine:?}: nothing in lane {lane}");
                    std::thread::yield_now();
                }
            };
            std::thread::spawn(work).join().expect("its lane")
        };
        for lane in 0..3 {
            let done = ended(lane);
            assert_eq!((done.len(), done[0].tag), (1, lane as u64), "{engine:?}");
            assert_eq!(done[0].result, Ok(()), "{engine:?}");
        }
    }
}

#[test]
fn what_cannot_be_a_disk_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = |path: &Path, size| Backing::open(&DiskOptions { path: path.to_owned(), size });
    assert!(open(directory.path(), Some(1 << 20)).is_err(), "too small");
    assert!(open(directory.path(), Some(1 << 60)).is_err(), "larger than the file system");
    assert!(open(&directory.path().join("none"), None).is_err(), "not there");
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(open(&file, None).is_err(), "a plain file");
}
