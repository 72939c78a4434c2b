//! What programs seldom do, and what goes wrong seldom: each test but the last few tells of
//! something that a local file system does and this one once did not.

use crate::common::{TestPool, c_path, check, errno, fuse_works, is_root, on_mount, pattern};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_fuse::MountOptions;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Runs a shell's script there as another user.
fn as_other(directory: &Path, script: &str) -> bool {
    Command::new("setpriv")
        .args(["--reuid", "54321", "--regid", "54321", "--clear-groups", "sh", "-ec", script])
        .current_dir(directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("setpriv runs")
        .success()
}

fn copy_range(from: &File, offset_in: i64, to: &File, offset_out: i64, length: usize) -> usize {
    let (mut offset_in, mut offset_out, mut copied) = (offset_in, offset_out, 0);
    while copied < length {
        // SAFETY: both descriptors are open, and the offsets are valid for the call.
        let count = unsafe {
            let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
            let left = length - copied;
            libc::copy_file_range(from, &raw mut offset_in, to, &raw mut offset_out, left, 0)
        };
        assert!(count >= 0, "{}", io::Error::last_os_error());
        if count == 0 {
            break;
        }
        copied += count as usize;
    }
    copied
}

/// Reads by way of the kernel's pages, which sendfile fills even where reads pass them by.
fn read_through_pages(file: &File, length: usize) -> Vec<u8> {
    let (mut end, start) = io::pipe().unwrap();
    let mut got = Vec::new();
    while got.len() < length {
        let mut offset = got.len() as i64;
        let left = (length - got.len()).min(16 * 1024);
        // SAFETY: both descriptors are open, and the offset is valid for the call.
        let count =
            unsafe { libc::sendfile(start.as_raw_fd(), file.as_raw_fd(), &raw mut offset, left) };
        assert!(count > 0, "{}", io::Error::last_os_error());
        let mut part = vec![0; count as usize];
        end.read_exact(&mut part).unwrap();
        got.extend_from_slice(&part);
    }
    got
}

#[test]
fn every_way_of_changing_content_ends_privileges() {
    if !is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    on_mount(|mount| {
        fs::set_permissions(mount.parent().unwrap(), Permissions::from_mode(0o1777)).unwrap();
        fs::set_permissions(&**mount, Permissions::from_mode(0o1777)).unwrap();
        let path = mount.join("program");
        for script in [
            "echo x >>program",
            "echo x 1<>program",
            "truncate -s 10 program",
            "fallocate -l 100000 program",
            "fallocate -p -o 0 -l 4096 program",
            "fallocate -z -o 100 -l 5000 program",
            "python3 -c 'import os; os.copy_file_range(os.open(\"source\", 0), os.open(\"program\", 1), 9)'",
            // Open for writing before it became what it was.
            "chmod 755 program; exec 3>>program; chmod 6755 program; echo x >&3",
        ] {
            fs::write(&path, pattern(1, 0, 10_000)).unwrap();
            fs::write(mount.join("source"), b"something").unwrap();
            std::os::unix::fs::chown(&path, Some(54321), Some(54321)).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
            assert!(as_other(mount, script), "{script}");
            let mode = fs::metadata(&path).unwrap().mode();
            assert_eq!(mode & 0o6000, 0, "after {script}");
            fs::remove_file(&path).unwrap();
        }
    });
}

#[test]
fn what_has_no_names_is_still_there_for_who_has_it_open() {
    on_mount(|mount| {
        let fifo = mount.join("fifo");
        // SAFETY: the path ends with a NUL.
        check(unsafe { libc::mkfifo(c_path(&fifo).as_ptr(), 0o640) }).unwrap();
        let end = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        let ino = end.metadata().unwrap().ino();
        fs::remove_file(&fifo).unwrap();
        // As cat does with what it reads from.
        let metadata = end.metadata().unwrap();
        assert_eq!((metadata.ino(), metadata.nlink()), (ino, 0));

        fs::create_dir(mount.join("d")).unwrap();
        let directory = File::open(mount.join("d")).unwrap();
        fs::remove_dir(mount.join("d")).unwrap();
        assert_eq!(directory.metadata().unwrap().nlink(), 0);
        let inside = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
        assert_eq!(errno(File::create(inside.join("f"))), libc::ENOENT);
        let (fd, mut in_it) = (directory.as_raw_fd(), Command::new("/bin/true"));
        // SAFETY: a system call, between fork and execution.
        unsafe { in_it.pre_exec(move || check(libc::fchdir(fd)).map(drop)) };
        assert!(in_it.status().unwrap().success());

        fs::write(mount.join("f"), b"12345").unwrap();
        let handle =
            OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(mount.join("f")).unwrap();
        fs::remove_file(mount.join("f")).unwrap();
        let metadata = handle.metadata().unwrap();
        assert_eq!((metadata.nlink(), metadata.len()), (0, 5));
    });
}

/// How many entries an open directory has, read anew.
fn count_entries(directory: &File) -> usize {
    let again = directory.try_clone().unwrap();
    // SAFETY: the descriptor is the stream's from here on; the entries stay until it is closed.
    unsafe {
        let stream = libc::fdopendir(again.into_raw_fd());
        libc::rewinddir(stream);
        let count = std::iter::from_fn(|| libc::readdir(stream).as_ref()).count();
        libc::closedir(stream);
        count - 2
    }
}

/// Whoever has a directory open lists it again and again, as `find` and Python do.
#[test]
fn a_directory_that_is_open_lists_what_is_there_now() {
    on_mount(|mount| {
        let directory = File::open(mount.join(".")).unwrap();
        for count in 0..3 {
            assert_eq!(count_entries(&directory), count);
            fs::write(mount.join(count.to_string()), b"").unwrap();
        }
        fs::remove_file(mount.join("0")).unwrap();
        assert_eq!(count_entries(&directory), 2);
    });
}

/// Permission is asked when it is opened, as for any file.
#[test]
fn an_open_directory_is_listed_also_by_who_may_no_longer_open_it() {
    on_mount(|mount| {
        if !is_root() {
            return;
        }
        let path = mount.join("d");
        fs::create_dir(&path).unwrap();
        (0..100).for_each(|i| fs::write(path.join(i.to_string()), b"").unwrap());
        // SAFETY: takes a number; it is of this thread alone.
        let become_user = |user| unsafe { libc::setfsuid(user) };
        become_user(54321);
        let directory = File::open(&path).unwrap();
        become_user(0);
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        become_user(54321);
        let (opened, count) = (File::open(&path), count_entries(&directory));
        become_user(0);
        assert_eq!((errno(opened), count), (libc::EACCES, 100));
    });
}

#[test]
fn ranges_are_copied_within_and_between_files() {
    on_mount(|mount| {
        let length = 3_000_000;
        let from = open(&mount.join("from"));
        from.write_all_at(&pattern(1, 0, length), 0).unwrap();
        let to = open(&mount.join("to"));
        assert_eq!(copy_range(&from, 0, &to, 0, length), length);
        assert!(fs::read(mount.join("to")).unwrap() == pattern(1, 0, length));
        // To where it ends, and behind the end of the target.
        assert_eq!(copy_range(&from, length as i64 - 10, &to, 4_000_000, 1000), 10);
        let mut model = pattern(1, 0, length);
        model.resize(4_000_000, 0);
        model.extend_from_slice(&pattern(1, length as u64 - 10, 10));
        assert!(fs::read(mount.join("to")).unwrap() == model);
        assert_eq!(to.metadata().unwrap().len(), 4_000_010);
        // Within a file; overlapping it is refused.
        assert_eq!(copy_range(&to, 7, &to, 1_000_000, 70_000), 70_000);
        model.copy_within(7..70_007, 1_000_000);
        assert!(fs::read(mount.join("to")).unwrap() == model);
        // SAFETY: both descriptors are open; no offset is the file's own position, which is 0.
        let overlapping = check(unsafe {
            let (none, descriptor) = (std::ptr::null_mut(), to.as_raw_fd());
            libc::copy_file_range(descriptor, none, descriptor, none, 100, 0) as libc::c_int
        });
        assert_eq!(errno(overlapping), libc::EINVAL);
        // The kernel's pages of the target are not older than the copy.
        assert!(read_through_pages(&to, 100_000) == model[..100_000]);
        assert_eq!(copy_range(&from, 1_000_000, &to, 5, 60_000), 60_000);
        model[5..60_005].copy_from_slice(&pattern(1, 1_000_000, 60_000));
        assert!(read_through_pages(&to, 100_000) == model[..100_000]);
        // From another file system, by the kernel's own way.
        let elsewhere = tempfile::tempfile().unwrap();
        elsewhere.write_all_at(&pattern(2, 0, 200_000), 0).unwrap();
        let there = open(&mount.join("there"));
        assert_eq!(io::copy(&mut &elsewhere, &mut &there).unwrap(), 200_000);
        assert!(fs::read(mount.join("there")).unwrap() == pattern(2, 0, 200_000));
    });
}

#[test]
fn a_copy_is_of_what_the_pool_holds_whatever_pages_the_kernel_has() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(2, 64 << 20);
    let options = MountOptions::default();
    let (a, b) = (pool.mount(&options), pool.mount(&options));
    let length = 200_000;
    fs::write(a.join("from"), pattern(1, 0, length)).unwrap();
    let from = open(&b.join("from"));
    assert!(read_through_pages(&from, length) == pattern(1, 0, length));
    open(&a.join("from")).write_all_at(&pattern(2, 0, length), 0).unwrap();
    let to = open(&b.join("to"));
    assert_eq!(copy_range(&from, 0, &to, 0, length), length);
    assert!(fs::read(a.join("to")).unwrap() == pattern(2, 0, length));
    drop((from, to));
    a.end();
    b.end();
}

fn allocate(file: &File, mode: i32, offset: i64, length: i64) -> io::Result<i32> {
    // SAFETY: the descriptor is open.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) })
}

fn seek(file: &File, offset: i64, whence: i32) -> Option<i64> {
    // SAFETY: the descriptor is open.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    (found >= 0).then_some(found)
}

#[test]
fn allocating_at_one_mount_cuts_nothing_that_another_appends() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(3, 64 << 20);
    let options = MountOptions::default();
    let (a, b) = (pool.mount(&options), pool.mount(&options));
    fs::write(a.join("f"), b"").unwrap();
    let rounds = 200;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = OpenOptions::new().append(true).open(b.join("f")).unwrap();
            for _ in 0..rounds {
                file.write_all(&[7; 1000]).unwrap();
            }
        });
        let file = open(&a.join("f"));
        for _ in 0..rounds {
            let size = file.metadata().unwrap().len() as i64;
            allocate(&file, 0, size, 500).unwrap();
        }
    });
    let content = fs::read(a.join("f")).unwrap();
    assert_eq!(content.iter().filter(|byte| **byte == 7).count(), rounds * 1000);
    a.end();
    b.end();
}

#[test]
fn what_cannot_fit_is_not_allocated() {
    on_mount(|mount| {
        let file = open(&mount.join("f"));
        assert_eq!(errno(allocate(&file, 0, 0, 1 << 40)), libc::ENOSPC);
        assert_eq!(errno(allocate(&file, libc::FALLOC_FL_KEEP_SIZE, 0, 1 << 40)), libc::ENOSPC);
        assert_eq!(file.metadata().unwrap().len(), 0);
        allocate(&file, 0, 0, 100 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 100 << 20);
        assert_eq!(errno(allocate(&file, 0, i64::MAX - 10, 100)), libc::EFBIG);
    });
}

#[test]
fn data_and_holes_are_found_stripe_by_stripe_and_far_apart() {
    on_mount(|mount| {
        // Stripes of 64 KiB on three servers.
        let stripe = 64 * 1024;
        for pattern in [0b1u32, 0b10110, 0b1101_0011_1000_0001, 0b0101_0101, 0b1111_1111_0000] {
            let file = open(&mount.join("f"));
            for index in (0..16).filter(|index| pattern >> index & 1 == 1) {
                file.write_all_at(&vec![1; stripe as usize], index * stripe as u64).unwrap();
            }
            file.set_len(16 * stripe as u64).unwrap();
            for start in 0..16i64 {
                let next = |data: u32| (start..16).find(|index| pattern >> index & 1 == data);
                let at = start * stripe + 77;
                let found = |index: Option<i64>| index.map(|index| at.max(index * stripe));
                assert_eq!(seek(&file, at, libc::SEEK_DATA), found(next(1)), "{pattern:b} {start}");
                let hole = found(next(0)).or(Some(16 * stripe));
                assert_eq!(seek(&file, at, libc::SEEK_HOLE), hole, "{pattern:b} {start}");
            }
            fs::remove_file(mount.join("f")).unwrap();
        }
        // 8 TiB of nothing are not walked through.
        let far = 8i64 << 40;
        let file = open(&mount.join("far"));
        file.write_all_at(b"x", far as u64).unwrap();
        let begun = Instant::now();
        assert_eq!(seek(&file, 0, libc::SEEK_DATA), Some(far));
        assert_eq!(seek(&file, 5, libc::SEEK_HOLE), Some(5));
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        allocate(&file, mode, 0, far).unwrap();
        assert_eq!(seek(&file, 0, libc::SEEK_DATA), Some(far));
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), far as u64 + 1);
        assert!(metadata.blocks() <= 128, "{} blocks", metadata.blocks());
    });
}

#[test]
fn a_name_that_others_keep_replacing_can_always_be_opened() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(1, 64 << 20);
    let options = MountOptions::default();
    let mounts = [pool.mount(&options), pool.mount(&options)];
    fs::write(mounts[0].join("current"), b"0").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for index in 0..3 {
            let (mounts, over) = (&mounts, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let new = mounts[1].join(format!("new{index}"));
                    fs::write(&new, b"1").unwrap();
                    fs::rename(&new, mounts[1].join("current")).unwrap();
                }
            });
        }
        let begun = Instant::now();
        let mut failure = None;
        let path = mounts[0].join("current");
        while begun.elapsed() < Duration::from_secs(3) && failure.is_none() {
            let changed = || fs::set_permissions(&path, Permissions::from_mode(0o600));
            failure = fs::read(&path).map(drop).and_then(|()| changed()).err();
        }
        over.store(true, Ordering::Relaxed);
        assert!(failure.is_none(), "{failure:?}");
    });
    for mount in mounts {
        mount.end();
    }
    // What was held open for the sake of it is gone.
    let pool = pool.connect();
    assert_eq!(pool.run(pool.fs().usage()).unwrap().inodes, 2);
}
