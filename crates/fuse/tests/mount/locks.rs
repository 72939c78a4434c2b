//! Locks between mounts of one pool, and what ends them.

use crate::common::{Mounted, TestPool, check, errno, fuse_works, timing};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_core::config::Timing;
use weir_fuse::MountOptions;

const SHARED: libc::c_int = libc::F_RDLCK;
const EXCLUSIVE: libc::c_int = libc::F_WRLCK;
const FREE: libc::c_int = libc::F_UNLCK;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn range(kind: libc::c_int, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

/// fcntl with a lock; gives what it left in it.
fn lock(file: &File, command: libc::c_int, lock: libc::flock) -> io::Result<libc::flock> {
    let mut lock = lock;
    // SAFETY: `lock` lives and is of the type that these commands take.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) })?;
    Ok(lock)
}

fn set(file: &File, kind: libc::c_int, start: i64, length: i64) -> io::Result<()> {
    lock(file, libc::F_SETLK, range(kind, start, length)).map(drop)
}

fn wait(file: &File, kind: libc::c_int, start: i64, length: i64) -> io::Result<()> {
    lock(file, libc::F_SETLKW, range(kind, start, length)).map(drop)
}

fn find(file: &File, kind: libc::c_int, start: i64, length: i64) -> Option<(i32, i64, i64, i32)> {
    let found = lock(file, libc::F_GETLK, range(kind, start, length)).unwrap();
    let kind = libc::c_int::from(found.l_type);
    (kind != FREE).then_some((kind, found.l_start, found.l_len, found.l_pid))
}

pub(crate) fn flock(file: &File, how: libc::c_int) -> io::Result<()> {
    // SAFETY: does nothing to memory.
    check(unsafe { libc::flock(file.as_raw_fd(), how) }).map(drop)
}

/// Tries until it works or 5 seconds have passed: the kernel tells the mount of a last close later.
fn soon(what: &str, limit: Duration, mut work: impl FnMut() -> io::Result<()>) -> Duration {
    let begun = Instant::now();
    while let Err(error) = work() {
        assert!(begun.elapsed() < limit, "{what}: {error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    begun.elapsed()
}

const SOON: Duration = Duration::from_secs(5);

/// A pool with a file `f` and two mounts of it.
fn two_mounts(caching: bool) -> (TestPool, Mounted, Mounted) {
    let pool = TestPool::new(1, 64 << 20);
    let options = MountOptions { caching, ..MountOptions::default() };
    let (a, b) = (pool.mount(&options), pool.mount(&options));
    fs::write(a.join("f"), b"0123456789").unwrap();
    (pool, a, b)
}

// ---- another process ----

/// This program once more, as a process that does one thing. `work` names it, for [`helper`].
struct Helper {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Helper {
    fn start(work: &str, path: &Path, more: &[(&str, &str)]) -> Helper {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "locks::helper", "--nocapture", "--test-threads=1"])
            .env("WEIR_TEST_LOCKS", work)
            .env("WEIR_TEST_PATH", path)
            .envs(more.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Helper { child, says }
    }

    /// The next word that it says to us.
    fn word(&mut self) -> String {
        let mut line = String::new();
        while self.says.read_line(&mut line).unwrap() > 0 {
            if let Some(word) = line.trim().strip_prefix("helper: ") {
                return word.to_owned();
            }
            line.clear();
        }
        panic!("the helper has ended");
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for: its number is its own.
        check(unsafe { libc::kill(self.pid(), signal) }).unwrap();
    }

    /// Waits for its end; it must come soon.
    fn ends(&mut self) {
        soon("helper ends", SOON, || match self.child.try_wait()? {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::WouldBlock.into()),
        });
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// Not a test: what [`Helper`] runs.
#[test]
fn helper() {
    let Ok(work) = std::env::var("WEIR_TEST_LOCKS") else { return };
    let path = std::env::var_os("WEIR_TEST_PATH").expect("is given");
    let path = Path::new(&path);
    let say = |word: &str| println!("\nhelper: {word}");
    let told = |result: io::Result<()>| match result {
        Ok(()) => "locked".to_owned(),
        Err(error) => format!("errno {}", error.raw_os_error().unwrap()),
    };
    let hold = || std::thread::sleep(Duration::from_secs(60));
    match work.as_str() {
        "range" => {
            let file = open(path);
            say(&told(set(&file, EXCLUSIVE, 2, 3)));
            hold();
        }
        "flock" => {
            let file = open(path);
            say(&told(flock(&file, libc::LOCK_EX | libc::LOCK_NB)));
            hold();
        }
        "wait" => {
            let file = open(path);
            say("waits");
            say(&told(wait(&file, EXCLUSIVE, 0, 0)));
            hold();
        }
        "wait for flock" => {
            let file = open(path);
            say("waits");
            say(&told(flock(&file, libc::LOCK_EX)));
            hold();
        }
        "alarm" => {
            // SAFETY: a handler that does nothing, without SA_RESTART; this thread outlives the
            // other one's use of its number.
            let this = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = ignore as *const () as usize;
                libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
                libc::pthread_self()
            };
            let file = open(path);
            say("waits");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(500));
                    // SAFETY: as above.
                    unsafe { libc::pthread_kill(this, libc::SIGALRM) }
                });
                say(&told(wait(&file, EXCLUSIVE, 0, 0)));
            });
            hold();
        }
        "mount" => {
            let address = std::env::var("WEIR_TEST_POOL").unwrap();
            let pool = TestPool::connect_to(vec![address], lapsing());
            let options = MountOptions::default();
            let _session = weir_fuse::mount(pool, path, &options).unwrap();
            say("mounted");
            hold();
        }
        other => panic!("{other}"),
    }
}

/// A lease that a test can wait for.
fn lapsing() -> Timing {
    Timing { lease_ms: 3_000, renew_ms: 500, ..timing() }
}

// ---- tests ----

#[test]
fn a_range_locked_on_one_mount_is_locked_on_the_other() {
    if !fuse_works() {
        return;
    }
    let (_pool, a, b) = two_mounts(false);
    let (on_a, on_b) = (open(&a.join("f")), open(&b.join("f")));
    set(&on_a, EXCLUSIVE, 0, 10).unwrap();
    assert_eq!(errno(set(&on_b, SHARED, 9, 1)), libc::EAGAIN);
    set(&on_b, EXCLUSIVE, 10, 0).unwrap();
    // Another mount's processes have no numbers here.
    assert_eq!(find(&on_b, SHARED, 0, 0), Some((EXCLUSIVE, 0, 10, 0)));
    assert_eq!(find(&on_a, SHARED, 5, 100), Some((EXCLUSIVE, 10, 0, 0)));
    // The middle is shared, then free: the rest stays.
    set(&on_a, SHARED, 3, 4).unwrap();
    set(&on_b, SHARED, 4, 2).unwrap();
    assert_eq!(errno(set(&on_b, EXCLUSIVE, 4, 2)), libc::EAGAIN);
    assert_eq!(errno(set(&on_a, EXCLUSIVE, 3, 4)), libc::EAGAIN);
    set(&on_a, FREE, 4, 2).unwrap();
    set(&on_b, EXCLUSIVE, 4, 2).unwrap();
    assert_eq!(errno(set(&on_b, SHARED, 0, 3)), libc::EAGAIN);
    assert_eq!(find(&on_b, EXCLUSIVE, 3, 1), Some((SHARED, 3, 1, 0)));
    // Any descriptor of the file that is closed ends them all, as POSIX has it.
    drop(File::open(a.join("f")).unwrap());
    set(&on_b, EXCLUSIVE, 0, 0).unwrap();
    drop(on_b);
    set(&on_a, EXCLUSIVE, 0, 0).unwrap();
    drop(on_a);
    a.end();
    b.end();
}

#[test]
fn flock_and_fcntl_do_not_see_each_other() {
    if !fuse_works() {
        return;
    }
    let (_pool, a, b) = two_mounts(false);
    let (on_a, on_b) = (open(&a.join("f")), open(&b.join("f")));
    set(&on_a, EXCLUSIVE, 0, 0).unwrap();
    flock(&on_b, libc::LOCK_EX | libc::LOCK_NB).unwrap();
    assert_eq!(errno(flock(&on_a, libc::LOCK_SH | libc::LOCK_NB)), libc::EWOULDBLOCK);
    assert_eq!(errno(set(&on_b, SHARED, 0, 0)), libc::EAGAIN);
    flock(&on_b, libc::LOCK_UN).unwrap();
    flock(&on_a, libc::LOCK_SH | libc::LOCK_NB).unwrap();
    flock(&on_b, libc::LOCK_SH | libc::LOCK_NB).unwrap();
    assert_eq!(errno(flock(&on_a, libc::LOCK_EX | libc::LOCK_NB)), libc::EWOULDBLOCK);
    // It goes with the last descriptor of its opening; range locks go with any descriptor.
    flock(&on_a, libc::LOCK_UN).unwrap();
    flock(&on_b, libc::LOCK_EX | libc::LOCK_NB).unwrap();
    let twin = on_b.try_clone().unwrap();
    drop(on_b);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(errno(flock(&on_a, libc::LOCK_EX | libc::LOCK_NB)), libc::EWOULDBLOCK);
    // Another opening in the same process is another owner.
    let other = open(&b.join("f"));
    assert_eq!(errno(flock(&other, libc::LOCK_EX | libc::LOCK_NB)), libc::EWOULDBLOCK);
    drop(twin);
    soon("flock ends", SOON, || flock(&on_a, libc::LOCK_EX | libc::LOCK_NB));
    drop((on_a, other));
    a.end();
    b.end();
}

#[test]
fn locks_of_an_open_file_description_go_with_its_last_descriptor() {
    if !fuse_works() {
        return;
    }
    let (_pool, a, b) = two_mounts(false);
    let (first, second, on_b) = (open(&a.join("f")), open(&a.join("f")), open(&b.join("f")));
    let take = |file: &File| lock(file, libc::F_OFD_SETLK, range(EXCLUSIVE, 0, 5)).map(drop);
    take(&first).unwrap();
    assert_eq!(errno(take(&second)), libc::EAGAIN);
    assert_eq!(errno(take(&on_b)), libc::EAGAIN);
    drop(second);
    assert_eq!(errno(take(&on_b)), libc::EAGAIN);
    drop(first);
    soon("it ends", SOON, || take(&on_b));
    drop(on_b);
    a.end();
    b.end();
}

#[test]
fn who_waits_is_woken_at_once_and_deadlocks_are_told() {
    if !fuse_works() {
        return;
    }
    let (_pool, a, b) = two_mounts(false);
    let (on_a, on_b) = (open(&a.join("f")), open(&b.join("f")));
    set(&on_a, EXCLUSIVE, 0, 1).unwrap();
    set(&on_b, EXCLUSIVE, 1, 1).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            wait(&on_b, EXCLUSIVE, 0, 1).unwrap();
            Instant::now()
        });
        std::thread::sleep(Duration::from_millis(700));
        assert!(!waiter.is_finished());
        assert_eq!(errno(wait(&on_a, SHARED, 1, 1)), libc::EDEADLK);
        let freed = Instant::now();
        set(&on_a, FREE, 0, 1).unwrap();
        let late = waiter.join().unwrap().saturating_duration_since(freed);
        assert!(late < Duration::from_secs(2), "woken after {late:?}");
    });
    assert_eq!(errno(set(&on_a, SHARED, 0, 1)), libc::EAGAIN);
    drop((on_a, on_b));
    a.end();
    b.end();
}

#[test]
fn locks_of_a_killed_process_are_gone() {
    if !fuse_works() {
        return;
    }
    for caching in [false, true] {
        let (_pool, a, b) = two_mounts(caching);
        let (on_a, on_b) = (open(&a.join("f")), open(&b.join("f")));
        let mut holder = Helper::start("range", &a.join("f"), &[]);
        assert_eq!(holder.word(), "locked");
        assert_eq!(find(&on_a, SHARED, 0, 0), Some((EXCLUSIVE, 2, 3, holder.pid())));
        assert_eq!(errno(set(&on_b, SHARED, 4, 1)), libc::EAGAIN);
        holder.signal(libc::SIGKILL);
        holder.ends();
        soon("range is free", SOON, || set(&on_b, EXCLUSIVE, 0, 0));
        let mut holder = Helper::start("flock", &a.join("f"), &[]);
        assert_eq!(holder.word(), "locked");
        assert_eq!(errno(flock(&on_b, libc::LOCK_SH | libc::LOCK_NB)), libc::EWOULDBLOCK);
        holder.signal(libc::SIGKILL);
        holder.ends();
        soon("file is free", SOON, || flock(&on_b, libc::LOCK_EX | libc::LOCK_NB));
        drop((on_a, on_b));
        a.end();
        b.end();
    }
}

#[test]
fn a_signal_ends_a_wait_and_nothing_is_locked_by_it_later() {
    if !fuse_works() {
        return;
    }
    let (_pool, a, b) = two_mounts(false);
    let (on_a, on_b) = (open(&a.join("f")), open(&b.join("f")));
    for round in 0..2 {
        set(&on_a, EXCLUSIVE, 0, 0).unwrap();
        flock(&on_a, libc::LOCK_EX).unwrap();
        let begun = Instant::now();
        let mut interrupted = Helper::start("alarm", &b.join("f"), &[]);
        assert_eq!(interrupted.word(), "waits");
        let word = interrupted.word();
        assert_eq!(word, format!("errno {}", libc::EINTR), "round {round}");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        for work in ["wait", "wait for flock"] {
            let mut killed = Helper::start(work, &b.join("f"), &[]);
            assert_eq!(killed.word(), "waits");
            std::thread::sleep(Duration::from_millis(300));
            killed.signal(libc::SIGKILL);
            killed.ends();
        }
        // The interrupted one lives on, and must not have got it.
        set(&on_a, FREE, 0, 0).unwrap();
        set(&on_b, EXCLUSIVE, 0, 0).unwrap();
        flock(&on_a, libc::LOCK_UN).unwrap();
        flock(&on_b, libc::LOCK_EX | libc::LOCK_NB).unwrap();
        flock(&on_b, libc::LOCK_UN).unwrap();
        set(&on_b, FREE, 0, 0).unwrap();
    }
    drop((on_a, on_b));
    a.end();
    b.end();
}

#[test]
fn a_stopped_waiter_goes_on_waiting() {
    if !fuse_works() {
        return;
    }
    let (_pool, a, b) = two_mounts(false);
    let on_a = open(&a.join("f"));
    set(&on_a, EXCLUSIVE, 0, 0).unwrap();
    let mut waiter = Helper::start("wait", &b.join("f"), &[]);
    assert_eq!(waiter.word(), "waits");
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(300));
        waiter.signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(600));
        waiter.signal(libc::SIGCONT);
    }
    set(&on_a, FREE, 0, 0).unwrap();
    assert_eq!(waiter.word(), "locked");
    drop((waiter, on_a));
    a.end();
    b.end();
}

#[test]
fn many_who_wait_do_not_hang_the_mount() {
    if !fuse_works() {
        return;
    }
    const WAITERS: usize = 100;
    let (_pool, a, b) = two_mounts(false);
    let on_a = open(&a.join("f"));
    flock(&on_a, libc::LOCK_EX).unwrap();
    let got = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WAITERS {
            let file = open(&b.join("f"));
            let got = &got;
            scope.spawn(move || {
                flock(&file, libc::LOCK_EX).unwrap();
                // Alone: nobody counts meanwhile.
                let before = got.load(Ordering::Relaxed);
                std::thread::yield_now();
                got.store(before + 1, Ordering::Relaxed);
                flock(&file, libc::LOCK_UN).unwrap();
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        let begun = Instant::now();
        for round in 0..20 {
            fs::write(b.join("g"), format!("{round}")).unwrap();
            assert_eq!(fs::read_to_string(a.join("g")).unwrap(), format!("{round}"));
        }
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        flock(&on_a, libc::LOCK_UN).unwrap();
    });
    assert_eq!(got.into_inner(), WAITERS);
    drop(on_a);
    a.end();
    b.end();
}

#[test]
fn locks_of_a_killed_mount_end_with_its_lease() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::with(1, 64 << 20, lapsing(), str::to_owned);
    let a = pool.mount(&MountOptions::default());
    fs::write(a.join("f"), b"").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let address = pool.servers[0].address().to_string();
    let mut mount =
        Helper::start("mount", directory.path(), &[("WEIR_TEST_POOL", address.as_str())]);
    assert_eq!(mount.word(), "mounted");
    let (on_a, on_killed) = (open(&a.join("f")), open(&directory.path().join("f")));
    set(&on_killed, EXCLUSIVE, 0, 0).unwrap();
    flock(&on_killed, libc::LOCK_EX).unwrap();
    // As long as it lives its lease is kept.
    std::thread::sleep(Duration::from_millis(4_000));
    assert_eq!(errno(set(&on_a, SHARED, 0, 0)), libc::EAGAIN);
    assert_eq!(errno(flock(&on_a, libc::LOCK_SH | libc::LOCK_NB)), libc::EWOULDBLOCK);
    let killed = Instant::now();
    mount.signal(libc::SIGKILL);
    mount.ends();
    drop(on_killed);
    wait(&on_a, EXCLUSIVE, 0, 0).unwrap();
    flock(&on_a, libc::LOCK_EX).unwrap();
    assert!(killed.elapsed() > Duration::from_millis(1_500), "{:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_millis(8_000), "{:?}", killed.elapsed());
    let path = crate::common::c_path(directory.path());
    // SAFETY: `path` is a string ended by a NUL.
    if unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) } != 0 {
        let taken = Command::new("fusermount3").arg("-uz").arg(directory.path()).status();
        assert!(taken.is_ok_and(|status| status.success()));
    }
    drop(on_a);
    a.end();
}

#[test]
fn who_has_a_lock_sees_what_was_written_under_it() {
    if !fuse_works() {
        return;
    }
    for kind in [true, false] {
        let (_pool, a, b) = two_mounts(true);
        let files = [open(&a.join("f")), open(&b.join("f"))];
        let take = |file: &File| match kind {
            true => wait(file, EXCLUSIVE, 0, 0).unwrap(),
            false => flock(file, libc::LOCK_EX).unwrap(),
        };
        let free = |file: &File| match kind {
            true => set(file, FREE, 0, 0).unwrap(),
            false => flock(file, libc::LOCK_UN).unwrap(),
        };
        for round in 0..50u64 {
            let file = &files[(round % 2) as usize];
            take(file);
            let mut bytes = vec![0; 8 * (round as usize + 2)];
            let length = file.metadata().unwrap().len();
            let read = file.read_at(&mut bytes, 0).unwrap() as u64;
            if round > 0 {
                assert_eq!((length, read), (8 * round, 8 * round));
                assert_eq!(bytes[..8], (round - 1).to_le_bytes());
            }
            file.write_all_at(&round.to_le_bytes(), 0).unwrap();
            file.set_len(8 * (round + 1)).unwrap();
            free(file);
        }
        drop(files);
        a.end();
        b.end();
    }
}

/// A wire to a server that can be held, or cut.
struct Wire {
    held: Arc<AtomicBool>,
    ends: Arc<Mutex<Vec<TcpStream>>>,
    address: String,
}

impl Wire {
    fn to(server: &str) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let held = Arc::new(AtomicBool::new(false));
        let all = Arc::new(Mutex::new(Vec::new()));
        let (server, wire, cut) = (server.to_owned(), held.clone(), all.clone());
        // Ends with the test's process: it only waits.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&server) else { return };
                cut.lock().unwrap().push(client.try_clone().unwrap());
                let ends =
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
                for (mut from, mut to) in ends {
                    let wire = wire.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 64 << 10];
                        while let Ok(length @ 1..) = from.read(&mut bytes) {
                            while wire.load(Ordering::Relaxed) {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            if to.write_all(&bytes[..length]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Wire { held, ends: all, address }
    }

    /// A pool of one server that is reached by such a wire.
    fn pool() -> (Wire, TestPool) {
        let wires = Mutex::new(Vec::new());
        let pool = TestPool::with(1, 64 << 20, timing(), |server| {
            let wire = Wire::to(server);
            let address = wire.address.clone();
            wires.lock().unwrap().push(wire);
            address
        });
        let wire = wires.into_inner().unwrap().remove(0);
        (wire, pool)
    }

    fn cut(&self) {
        for end in self.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn locks_and_waits_outlive_connections() {
    if !fuse_works() {
        return;
    }
    let (wire, pool) = Wire::pool();
    let (a, b) = (pool.mount(&MountOptions::default()), pool.mount(&MountOptions::default()));
    fs::write(a.join("f"), b"").unwrap();
    let (on_a, on_b) = (open(&a.join("f")), open(&b.join("f")));
    for _ in 0..10 {
        set(&on_a, EXCLUSIVE, 0, 0).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| wait(&on_b, EXCLUSIVE, 0, 0).unwrap());
            std::thread::sleep(Duration::from_millis(100));
            wire.cut();
            std::thread::sleep(Duration::from_millis(100));
            assert!(!waits.is_finished());
            let begun = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| set(&on_a, FREE, 0, 0).unwrap());
                wire.cut();
            });
            waits.join().unwrap();
            // Not only when the next request for news is due.
            assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        });
        assert_eq!(errno(set(&on_a, SHARED, 0, 1)), libc::EAGAIN);
        wire.cut();
        set(&on_b, FREE, 0, 0).unwrap();
    }
    drop((on_a, on_b));
    a.end();
    b.end();
}

#[test]
fn a_lock_is_let_go_also_if_the_pool_did_not_answer() {
    if !fuse_works() {
        return;
    }
    let (wire, pool) = Wire::pool();
    let held = &wire.held;
    let (a, b) = (pool.mount(&MountOptions::default()), pool.mount(&MountOptions::default()));
    fs::write(a.join("f"), b"").unwrap();
    fs::write(a.join("g"), b"").unwrap();
    let (g_on_a, refused) = (open(&a.join("g")), open(&b.join("g")));
    let (on_a, on_b) = (open(&a.join("f")), open(&b.join("f")));
    set(&on_a, EXCLUSIVE, 0, 5).unwrap();
    flock(&on_a, libc::LOCK_EX).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait(&on_b, SHARED, 0, 1));
        std::thread::sleep(Duration::from_millis(300));
        held.store(true, Ordering::Relaxed);
        // A dead server is an error in seconds, for him who waits too.
        assert_eq!(errno(waits.join().unwrap()), libc::EIO);
        // These are free, but it is not heard, and may come to be locked by what is on its way.
        assert_eq!(errno(flock(&refused, libc::LOCK_EX | libc::LOCK_NB)), libc::EIO);
        assert_eq!(errno(wait(&refused, EXCLUSIVE, 0, 0)), libc::EIO);
        set(&on_a, FREE, 0, 5).unwrap();
        assert_eq!(errno(set(&on_a, EXCLUSIVE, 0, 5)), libc::EIO);
        drop(on_a);
    });
    held.store(false, Ordering::Relaxed);
    // Neither is the holder's lock left, nor did those get one who were told of an error.
    soon("range is free", SOON, || set(&on_b, EXCLUSIVE, 0, 0));
    soon("file is free", SOON, || flock(&on_b, libc::LOCK_EX | libc::LOCK_NB));
    soon("file is free", SOON, || flock(&g_on_a, libc::LOCK_EX | libc::LOCK_NB));
    soon("range is free", SOON, || set(&g_on_a, EXCLUSIVE, 0, 0));
    let on_a = open(&a.join("f"));
    set(&on_b, FREE, 0, 0).unwrap();
    flock(&on_b, libc::LOCK_UN).unwrap();
    soon("range is free", SOON, || set(&on_a, EXCLUSIVE, 0, 0));
    soon("file is free", SOON, || flock(&on_a, libc::LOCK_EX | libc::LOCK_NB));
    drop((on_a, on_b, g_on_a, refused));
    a.end();
    b.end();
}
