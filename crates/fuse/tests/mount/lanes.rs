//! Requests by io_uring, and without it.

use crate::common::{Mounted, TestPool, c_path, check, fuse_works, is_root};
use crate::locks::flock;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_fuse::{MountOptions, Requests};

const ALLOWED: &str = "/sys/module/fuse/parameters/enable_uring";

/// What the machine's switch says while no mount has set it for itself.
fn allowed() -> Option<String> {
    let file = File::open(ALLOWED).ok()?;
    file.lock().unwrap();
    Some(io::read_to_string(&file).unwrap())
}

fn by_io_uring(by_io_uring: bool) -> MountOptions {
    MountOptions { by_io_uring, ..MountOptions::default() }
}

/// A bit of everything that puts bytes into a request, or into its answer.
fn use_it(mount: &Path) {
    let name = "n".repeat(255);
    let bytes: Vec<u8> = (0..3_000_000).map(|i| (i * 31 % 251) as u8).collect();
    fs::write(mount.join(&name), &bytes).unwrap();
    assert!(fs::read(mount.join(&name)).unwrap() == bytes);
    let file = File::options().read(true).write(true).open(mount.join(&name)).unwrap();
    for (at, length) in [(0, 1), (1, 4095), (4097, 65_536), (999, 1 << 20), (2_999_999, 1)] {
        let mut part = vec![0; length];
        file.read_exact_at(&mut part, at as u64).unwrap();
        assert!(part == bytes[at..at + length], "{length} at {at}");
        part.reverse();
        file.write_all_at(&part, at as u64).unwrap();
        file.read_exact_at(&mut part, at as u64).unwrap();
        assert!(part.iter().rev().eq(&bytes[at..at + length]), "{length} at {at}");
        file.write_all_at(&bytes[at..at + length], at as u64).unwrap();
    }
    assert_eq!(file.read_at(&mut [0; 100], 3_000_000).unwrap(), 0);
    fs::rename(mount.join(&name), mount.join("short")).unwrap();
    std::os::unix::fs::symlink("x".repeat(4000), mount.join("link")).unwrap();
    assert_eq!(fs::read_link(mount.join("link")).unwrap().as_os_str().len(), 4000);
    fs::create_dir(mount.join("many")).unwrap();
    (0..700).for_each(|i| fs::write(mount.join(format!("many/{i}")), "").unwrap());
    assert_eq!(fs::read_dir(mount.join("many")).unwrap().count(), 700);
    let missing = fs::metadata(mount.join("missing")).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    assert!(fs::read(mount.join("short")).unwrap() == bytes);
}

#[test]
fn requests_come_by_io_uring_where_that_is_to_be_had() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(2, 64 << 20);
    let before = allowed();
    let mount = pool.mount(&by_io_uring(true));
    assert_eq!(mount.session().by_io_uring(), Requests::here() == Requests::ByIoUring);
    // The machine is as it was.
    assert_eq!(allowed(), before);
    use_it(&mount);
    mount.end();
}

/// Each sets what the kernel looks at, and takes it back, while others do.
#[test]
fn many_mounts_can_begin_at_a_time() {
    if !fuse_works() {
        return;
    }
    let before = allowed();
    let pool = TestPool::new(1, 64 << 20);
    for _ in 0..5 {
        let mounts = std::thread::scope(|scope| {
            let begin = |_| scope.spawn(|| pool.mount(&by_io_uring(true)));
            let beginning: Vec<_> = (0..6).map(begin).collect();
            beginning.into_iter().map(|mount| mount.join().unwrap()).collect::<Vec<_>>()
        });
        for (number, mount) in mounts.into_iter().enumerate() {
            assert_eq!(mount.session().by_io_uring(), Requests::here() == Requests::ByIoUring);
            fs::write(mount.join(number.to_string()), "x").unwrap();
            mount.end();
        }
    }
    assert_eq!(allowed(), before);
}

#[test]
fn all_works_by_the_descriptor_as_well() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(2, 64 << 20);
    let mount = pool.mount(&by_io_uring(false));
    assert!(!mount.session().by_io_uring());
    use_it(&mount);
    mount.end();
}

/// Programs that wait for a lock on `f`, more of them than a mount has lanes; and how many have it or
/// were refused.
fn waiters(mount: &Mounted, count: usize) -> (Vec<JoinHandle<bool>>, Arc<AtomicUsize>) {
    let ended = Arc::new(AtomicUsize::new(0));
    let wait = |_| {
        let (file, ended) = (File::open(mount.join("f")).unwrap(), ended.clone());
        std::thread::spawn(move || {
            let got = flock(&file, libc::LOCK_EX);
            ended.fetch_add(1, Ordering::Relaxed);
            got.is_ok()
        })
    };
    ((0..count).map(wait).collect(), ended)
}

/// Ends a mount by force if it does not answer any more, so that a test fails rather than wait for ever.
struct Bound(Option<mpsc::Sender<()>>, Option<JoinHandle<()>>);

impl Bound {
    fn new(mount: &Mounted) -> Bound {
        let (end, ended) = mpsc::channel();
        let path = mount.to_path_buf();
        let watch = move || {
            if ended.recv_timeout(Duration::from_secs(30)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{} does not answer", path.display());
                _ = by_force(&path);
            }
        };
        Bound(Some(end), Some(std::thread::spawn(watch)))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        drop(self.0.take());
        _ = self.1.take().map(JoinHandle::join);
    }
}

/// Has all requests of a mount fail, and takes it away.
fn by_force(mount: &Path) -> io::Result<()> {
    let path = c_path(mount);
    // SAFETY: a string ended by a NUL.
    check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) }).map(drop)
}

fn locked(mount: &Mounted) -> File {
    let file = File::create(mount.join("f")).unwrap();
    flock(&file, libc::LOCK_EX).unwrap();
    file
}

#[test]
fn programs_that_wait_for_a_lock_leave_others_their_turn() {
    leave_others_their_turn(false);
}

#[test]
fn programs_that_wait_for_a_lock_leave_others_their_turn_by_io_uring() {
    leave_others_their_turn(true);
}

fn leave_others_their_turn(lanes: bool) {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(1, 64 << 20);
    {
        let mount = pool.mount(&by_io_uring(lanes));
        let _bound = Bound::new(&mount);
        let holder = locked(&mount);
        let (waiters, ended) = waiters(&mount, 60);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            // From whatever processor this is asked.
            fs::write(mount.join("other"), "x").unwrap();
        }
        assert_eq!(ended.load(Ordering::Relaxed), 0);
        // Whoever has the lock lets it go with the last descriptor, one after the other.
        drop(holder);
        assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap()));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        fs::write(mount.join("other"), "x").unwrap();
        mount.end();
    }
}

fn stay_on_processor(number: usize) {
    // SAFETY: all zeros is a set, and it stays one; it is about this thread.
    unsafe {
        let mut one = std::mem::zeroed();
        libc::CPU_SET(number, &mut one);
        check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one)).unwrap();
    }
}

#[test]
fn what_comes_while_all_lanes_of_a_processor_are_taken_gets_its_turn() {
    whoever_writes_gets_his_turn(|mount| File::open(mount.join("f")).unwrap());
}

#[test]
fn what_comes_while_all_wait_for_a_directorys_lock_gets_its_turn() {
    whoever_writes_gets_his_turn(|mount| File::open(mount).unwrap());
}

/// Where the kernel is not called to what is queued, somebody is left waiting in the first round.
fn whoever_writes_gets_his_turn(locked: impl Fn(&Path) -> File) {
    const WAITING: usize = 6;
    const WRITING: usize = 3;
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(1, 64 << 20);
    {
        let mount = pool.mount(&MountOptions { threads: 2, ..by_io_uring(true) });
        let _bound = Bound::new(&mount);
        File::create(mount.join("f")).unwrap();
        for round in 0..10 {
            let holder = locked(&mount);
            flock(&holder, libc::LOCK_EX).unwrap();
            let together = Arc::new(Barrier::new(WAITING + WRITING));
            let (done, written) = mpsc::channel();
            let start = |number: usize| {
                let file = match number < WAITING {
                    true => locked(&mount),
                    false => File::create(mount.join(number.to_string())).unwrap(),
                };
                let (together, done) = (together.clone(), done.clone());
                std::thread::spawn(move || {
                    stay_on_processor(0);
                    together.wait();
                    if number < WAITING {
                        // A program may have to ask once more.
                        while let Err(error) = flock(&file, libc::LOCK_EX) {
                            assert_eq!(error.raw_os_error(), Some(libc::EINTR));
                        }
                    } else {
                        file.write_all_at(b"x", 0).unwrap();
                        done.send(()).unwrap();
                    }
                })
            };
            let threads: Vec<_> = (0..WAITING + WRITING).map(start).collect();
            for _ in 0..WRITING {
                if written.recv_timeout(Duration::from_secs(5)).is_err() {
                    by_force(&mount).unwrap();
                    panic!("round {round}: somebody's write waits for others' locks");
                }
            }
            drop(holder);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
        mount.end();
    }
}

#[test]
fn a_mount_that_is_taken_away_by_force_ends_with_programs_that_wait() {
    ends_with_programs_that_wait(false);
}

#[test]
fn a_mount_that_is_taken_away_by_force_ends_with_programs_that_wait_by_io_uring() {
    ends_with_programs_that_wait(true);
}

fn ends_with_programs_that_wait(lanes: bool) {
    if !fuse_works() || !is_root() {
        return;
    }
    let pool = TestPool::new(1, 64 << 20);
    {
        let mount = pool.mount(&by_io_uring(lanes));
        let begun = Instant::now();
        let _holder = locked(&mount);
        assert!(begun.elapsed() < Duration::from_secs(5), "the pool keeps locks for who is gone");
        let (waiters, ended) = waiters(&mount, 30);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(ended.load(Ordering::Relaxed), 0);
        by_force(&mount).unwrap();
        assert!(waiters.into_iter().all(|waiter| !waiter.join().unwrap()));
        let begun = Instant::now();
        while !mount.session().is_over() {
            assert!(begun.elapsed() < Duration::from_secs(10), "the mount does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
