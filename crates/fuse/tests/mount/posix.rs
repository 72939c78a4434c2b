//! Programs' everyday calls on a mounted pool, without and with kernel caching.

use crate::common::{c_path, check, errno, is_root, on_mount, pattern};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MIB: usize = 1 << 20;

#[test]
fn files_are_created_written_read_and_appended() {
    on_mount(|mount| {
        let path = mount.join("file");
        fs::write(&path, b"hello").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"hello");
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.len(), metadata.nlink()), (5, 1));
        // SAFETY: do nothing but answer.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        assert_eq!((metadata.uid(), metadata.gid()), (uid, gid));

        let mut appender = OpenOptions::new().append(true).open(&path).unwrap();
        appender.write_all(b" world").unwrap();
        fs::write(mount.join("other"), b"x").unwrap();
        appender.write_all(b"!").unwrap();
        assert_eq!(appender.metadata().unwrap().len(), 12);
        assert_eq!(fs::read(&path).unwrap(), b"hello world!");

        let exclusive = OpenOptions::new().write(true).create_new(true).open(&path);
        assert_eq!(exclusive.unwrap_err().kind(), ErrorKind::AlreadyExists);
        fs::write(&path, b"short").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"short");
        assert_eq!(File::open(mount.join("none")).unwrap_err().kind(), ErrorKind::NotFound);
        let mode =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(mount.join("m"));
        assert_eq!(mode.unwrap().metadata().unwrap().mode(), 0o100_600);
    });
}

#[test]
fn two_appenders_never_overlap() {
    on_mount(|mount| {
        let path = mount.join("log");
        fs::write(&path, b"").unwrap();
        let writer = |letter: u8| {
            let path = &path;
            move || {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                for _ in 0..50 {
                    file.write_all(&[letter; 100]).unwrap();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(writer(b'a'));
            scope.spawn(writer(b'b'));
        });
        let log = fs::read(&path).unwrap();
        assert_eq!(log.len(), 10_000);
        for record in log.chunks(100) {
            assert!(record.iter().all(|byte| *byte == record[0]));
        }
        assert_eq!(log.iter().filter(|byte| **byte == b'a').count(), 5_000);
    });
}

#[test]
fn large_and_odd_sizes_come_back_as_written() {
    on_mount(|mount| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mount.join("big"))
            .unwrap();
        let size = 9 * MIB + 12_345;
        let mut model = vec![0; size];
        let mut at = 0;
        for (seed, length) in
            [MIB, 2 * MIB, MIB + 1, 4095, 1, 65_537, 3 * MIB - 7, 512 * 1024].iter().enumerate()
        {
            let bytes = pattern(seed as u64, at as u64, *length);
            file.write_all_at(&bytes, at as u64).unwrap();
            model[at..at + length].copy_from_slice(&bytes);
            at += length;
        }
        // Overwrites across stripes, and something at the far end.
        for (offset, length) in [(65_535, 2), (131_000, 300_000), (size - 1000, 1000)] {
            let bytes = pattern(99, offset as u64, length);
            file.write_all_at(&bytes, offset as u64).unwrap();
            model[offset..offset + length].copy_from_slice(&bytes);
        }
        assert_eq!(file.metadata().unwrap().len(), size as u64);
        for step in [MIB, 1_000_003, 333_333] {
            let mut reader = File::open(mount.join("big")).unwrap();
            let mut got = Vec::new();
            let mut buffer = vec![0; step];
            loop {
                let length = reader.read(&mut buffer).unwrap();
                if length == 0 {
                    break;
                }
                got.extend_from_slice(&buffer[..length]);
            }
            assert!(got == model, "read by {step} differs");
        }
        // Large requests over holes, and over the end.
        let end = file.metadata().unwrap().len();
        for hole in [0, 700_000, 3 * MIB] {
            file.set_len(end + hole as u64).unwrap();
            model.resize(size + hole, 0);
            for offset in [0, 1, MIB - 1, size - 5, size - 200_000, size - MIB, size] {
                let mut buffer = vec![7; MIB];
                let length = file.read_at(&mut buffer, offset as u64).unwrap();
                let left = (size + hole).saturating_sub(offset).min(MIB);
                assert_eq!(length, left, "at {offset} of {}", size + hole);
                assert!(buffer[..length] == model[offset..offset + length], "at {offset}");
            }
        }
        file.set_len(end).unwrap();
        model.truncate(size);
        // Reading over the end is short, not wrong.
        let mut tail = [1; 100];
        assert_eq!(file.read_at(&mut tail, size as u64 - 10).unwrap(), 10);
        assert_eq!(tail[..10], model[size - 10..]);
        assert_eq!(file.read_at(&mut tail, size as u64).unwrap(), 0);
    });
}

#[test]
fn truncation_cuts_and_grows_with_zeros() {
    on_mount(|mount| {
        let path = mount.join("t");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(&pattern(1, 0, 300_000), 0).unwrap();
        file.set_len(100_001).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 100_001);
        file.set_len(400_000).unwrap();
        let got = fs::read(&path).unwrap();
        assert!(got[..100_001] == pattern(1, 0, 100_001)[..]);
        assert!(got[100_001..].iter().all(|byte| *byte == 0));
        assert_eq!(got.len(), 400_000);
        // By path, while it is open.
        check(unsafe_truncate(&path, 10)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 10);
        assert_eq!(fs::read(&path).unwrap(), pattern(1, 0, 10));
        drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
        assert_eq!(file.metadata().unwrap().len(), 0);
        file.write_all_at(b"z", 5).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"\0\0\0\0\0z");
    });
}

fn unsafe_truncate(path: &Path, size: i64) -> libc::c_int {
    let path = c_path(path);
    // SAFETY: `path` is a string ended by a NUL.
    unsafe { libc::truncate(path.as_ptr(), size) }
}

#[test]
fn holes_read_as_zeros_and_can_be_found_and_made() {
    on_mount(|mount| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mount.join("sparse"))
            .unwrap();
        let far = 40 * MIB as u64;
        file.write_all_at(b"start", 0).unwrap();
        file.write_all_at(b"end", far).unwrap();
        assert_eq!(file.metadata().unwrap().len(), far + 3);
        let mut middle = [1; 1000];
        file.read_exact_at(&mut middle, far / 2).unwrap();
        assert_eq!(middle, [0; 1000]);
        let seek = |offset: u64, whence| {
            // SAFETY: the descriptor is open.
            unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) }
        };
        assert_eq!(seek(0, libc::SEEK_DATA), 0);
        let hole = seek(0, libc::SEEK_HOLE);
        assert!(hole >= 5 && (hole as u64) < far, "{hole}");
        let data = seek(hole as u64, libc::SEEK_DATA);
        assert!(data as u64 <= far && data > hole, "{data}");
        assert_eq!(seek(far + 3, libc::SEEK_DATA), -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENXIO));
        assert!(file.metadata().unwrap().blocks() * 512 < far);

        let allocate = |mode, offset: i64, length: i64| {
            // SAFETY: the descriptor is open.
            check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) })
        };
        file.write_all_at(&pattern(2, 0, MIB), 0).unwrap();
        allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 1000, 500_000).unwrap();
        let mut got = vec![1; MIB];
        file.read_exact_at(&mut got, 0).unwrap();
        let mut model = pattern(2, 0, MIB);
        model[1000..501_000].fill(0);
        assert!(got == model);
        allocate(0, 0, far as i64 + 1000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), far + 1000);
        allocate(libc::FALLOC_FL_KEEP_SIZE, 0, 2 * far as i64).unwrap();
        assert_eq!(file.metadata().unwrap().len(), far + 1000);
        // A hole reaching far behind the end costs nothing and changes no size.
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        allocate(mode, far as i64, i64::MAX - far as i64).unwrap();
        assert_eq!(file.metadata().unwrap().len(), far + 1000);
        assert_eq!(errno(allocate(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), libc::EOPNOTSUPP);
    });
}

/// cp and tar look for holes only where a file has fewer blocks than its size wants.
#[test]
fn blocks_tell_of_holes_also_when_nobody_has_the_file_open() {
    on_mount(|mount| {
        let blocks = |name: &str| fs::metadata(mount.join(name)).unwrap().blocks();
        let written = |name: &str, parts: &[(u64, usize)]| {
            let file = File::create(mount.join(name)).unwrap();
            for &(place, length) in parts {
                file.write_all_at(&pattern(3, place, length), place).unwrap();
            }
            file
        };
        const FAR: u64 = 40 * MIB as u64;
        drop(written("sparse", &[(0, 5), (FAR, 5)]));
        drop(written("dense", &[(MIB as u64, MIB), (0, MIB)]));
        written("longer", &[(0, 1000)]).set_len(FAR).unwrap();
        drop(written("grown", &[(0, 1000)]));
        let path = c_path(&mount.join("grown"));
        // SAFETY: a string ended by a NUL.
        check(unsafe { libc::truncate(path.as_ptr(), FAR as i64) }).unwrap();
        written("shorter", &[(0, 1000), (FAR, 5)]).set_len(1000).unwrap();
        let punched = written("punched", &[(0, 4 * MIB)]);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is open.
        check(unsafe { libc::fallocate(punched.as_raw_fd(), mode, 0, 3 * MIB as i64) }).unwrap();
        drop(punched);
        drop(written("empty", &[]));
        written("void", &[]).set_len(FAR).unwrap();
        // Asked again, as answers may be kept.
        for _ in 0..2 {
            assert!((1..1000).contains(&blocks("sparse")), "{}", blocks("sparse"));
            assert_eq!(blocks("dense"), 2 * MIB as u64 / 512);
            assert!((2..1000).contains(&blocks("longer")), "{}", blocks("longer"));
            assert!((2..1000).contains(&blocks("grown")), "{}", blocks("grown"));
            assert!((2..1000).contains(&blocks("shorter")), "{}", blocks("shorter"));
            assert_eq!(blocks("punched"), MIB as u64 / 512);
            assert_eq!((blocks("empty"), blocks("void")), (0, 0));
        }
        // Filled up, it has none any more.
        let file = OpenOptions::new().write(true).open(mount.join("punched")).unwrap();
        file.write_all_at(&pattern(4, 0, 3 * MIB), 0).unwrap();
        drop(file);
        assert_eq!(blocks("punched"), 4 * MIB as u64 / 512);
    });
}

/// GNU tar writes wrong archives where holes begin or end in the middle of its 512 bytes.
#[test]
fn holes_are_whole_blocks() {
    on_mount(|mount| {
        // For writing only: who may not read may ask all the same.
        let file = File::create(mount.join("file")).unwrap();
        const BLOCK: u64 = 4096;
        let (stripe, size) = (MIB as u64, 5 * MIB as u64 + 77);
        // Within a block, over two blocks, over two stripes, two in one block, at the very end.
        let written = [
            (5000, 5),
            (20_000, 500),
            (stripe - 3, 7),
            (3_000_001, 1),
            (3_000_099, 9),
            (size - 4, 4),
        ];
        for (place, length) in written {
            file.write_all_at(&pattern(1, place, length), place).unwrap();
        }
        let seek = |offset: u64, whence| {
            // SAFETY: the descriptor is open.
            let found = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
            u64::try_from(found).map_err(|_| io::Error::last_os_error())
        };
        let mut extents = Vec::new();
        let mut at = 0;
        while let Ok(data) = seek(at, libc::SEEK_DATA) {
            at = seek(data, libc::SEEK_HOLE).unwrap();
            assert!(at > data, "{data} to {at}");
            assert!(data % BLOCK == 0 && (at % BLOCK == 0 || at == size), "{data} to {at}");
            extents.push((data, at));
        }
        for (place, length) in written {
            let within =
                |&(data, hole): &(u64, u64)| data <= place && place + length as u64 <= hole;
            assert!(extents.iter().any(within), "{place} is not in {extents:?}");
        }
        assert!(extents.iter().map(|(data, hole)| hole - data).sum::<u64>() < size / 10);
        // What is told of one place is told of its whole block.
        assert_eq!(seek(20_490, libc::SEEK_DATA).unwrap(), 20_490);
        assert_eq!(seek(20_490, libc::SEEK_HOLE).unwrap(), 6 * BLOCK);
        assert_eq!(seek(6 * BLOCK - 1, libc::SEEK_HOLE).unwrap(), 6 * BLOCK);
        assert_eq!(seek(6 * BLOCK + 1, libc::SEEK_HOLE).unwrap(), 6 * BLOCK + 1);
        assert_eq!(seek(size - 1, libc::SEEK_HOLE).unwrap(), size);
    });
}

#[test]
fn names_move_link_and_vanish() {
    on_mount(|mount| {
        let at = |name: &str| mount.join(name);
        fs::write(at("a"), b"a").unwrap();
        fs::write(at("b"), b"b").unwrap();
        fs::rename(at("a"), at("b")).unwrap();
        assert_eq!(fs::read(at("b")).unwrap(), b"a");
        assert!(!at("a").exists());

        fs::create_dir(at("d")).unwrap();
        fs::create_dir_all(at("d/e/f")).unwrap();
        assert_eq!(fs::metadata(at("d/e")).unwrap().nlink(), 3);
        fs::rename(at("b"), at("d/e/f/b")).unwrap();
        assert_eq!(fs::read(at("d/e/f/b")).unwrap(), b"a");
        assert_eq!(errno(fs::rename(at("d"), at("d/e/d"))), libc::EINVAL);
        assert_eq!(errno(fs::remove_dir(at("d"))), libc::ENOTEMPTY);
        assert_eq!(errno(fs::remove_file(at("d"))), libc::EISDIR);

        let renameat2 = |from: &str, to: &str, flags| {
            let (from, to) = (c_path(&at(from)), c_path(&at(to)));
            let cwd = libc::AT_FDCWD;
            // SAFETY: both are strings ended by a NUL.
            check(unsafe { libc::renameat2(cwd, from.as_ptr(), cwd, to.as_ptr(), flags) })
        };
        fs::write(at("x"), b"x").unwrap();
        fs::write(at("y"), b"y").unwrap();
        assert_eq!(errno(renameat2("x", "y", libc::RENAME_NOREPLACE)), libc::EEXIST);
        renameat2("x", "y", libc::RENAME_EXCHANGE).unwrap();
        assert_eq!(fs::read(at("x")).unwrap(), b"y");
        assert_eq!(fs::read(at("y")).unwrap(), b"x");

        fs::hard_link(at("x"), at("z")).unwrap();
        assert_eq!(fs::metadata(at("x")).unwrap().nlink(), 2);
        assert_eq!(fs::metadata(at("x")).unwrap().ino(), fs::metadata(at("z")).unwrap().ino());
        fs::remove_file(at("x")).unwrap();
        assert_eq!(fs::read(at("z")).unwrap(), b"y");

        symlink("d/e/f/b", at("link")).unwrap();
        assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("d/e/f/b"));
        assert_eq!(fs::read(at("link")).unwrap(), b"a");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        symlink("nowhere", at("dangling")).unwrap();
        assert_eq!(errno(fs::read(at("dangling"))), libc::ENOENT);
        fs::remove_dir_all(at("d")).unwrap();
        assert_eq!(errno(fs::read(at("link"))), libc::ENOENT);
        assert_eq!(errno(fs::write(at(&"n".repeat(256)), b"")), libc::ENAMETOOLONG);
        fs::write(at(&"n".repeat(255)), b"").unwrap();
    });
}

#[test]
fn an_unlinked_file_works_as_long_as_it_is_open() {
    on_mount(|mount| {
        let path = mount.join("gone");
        let mut file =
            OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(b"before").unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(b" and after").unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.len(), metadata.nlink()), (16, 0));
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before and after");
        file.set_len(3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
        // A new file of that name is another one.
        fs::write(&path, b"new").unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), metadata.ino());
        assert_eq!(file.metadata().unwrap().nlink(), 0);
    });
}

#[test]
fn files_without_names_are_given_one_or_vanish() {
    on_mount(|mount| {
        let unnamed = |flags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).mode(0o640).custom_flags(libc::O_TMPFILE | flags);
            options.open(&**mount)
        };
        let give_name = |file: &File, path: &Path| {
            let from = c_path(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
            let (to, flags) = (c_path(path), libc::AT_SYMLINK_FOLLOW);
            // SAFETY: both paths end.
            check(unsafe {
                libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)
            })
        };
        let bytes = pattern(3, 0, 3 * MIB);
        let file = unnamed(0).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let metadata = file.metadata().unwrap();
        let mode = 0o100_640 & !umask();
        assert_eq!(
            (metadata.nlink(), metadata.len(), metadata.mode()),
            (0, bytes.len() as u64, mode)
        );
        assert_eq!(fs::read_dir(&**mount).unwrap().count(), 0);
        let path = mount.join("given");
        give_name(&file, &path).unwrap();
        assert_eq!(errno(give_name(&file, &path)), libc::EEXIST);
        give_name(&file, &mount.join("another")).unwrap();
        file.write_all_at(b"new", 5).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 2);
        drop(file);
        let found = fs::read(&path).unwrap();
        assert!(found[..5] == bytes[..5] && found[5..8] == *b"new" && found[8..] == bytes[8..]);

        // What is to stay without a name is given none, nor is what has lost its own.
        let hidden = unnamed(libc::O_EXCL).unwrap();
        assert_eq!(errno(give_name(&hidden, &mount.join("hidden"))), libc::ENOENT);
        let lost = unnamed(0).unwrap();
        give_name(&lost, &mount.join("lost")).unwrap();
        fs::remove_file(mount.join("lost")).unwrap();
        assert_eq!(errno(give_name(&lost, &mount.join("again"))), libc::ENOENT);
        lost.write_all_at(b"still", 0).unwrap();
        assert_eq!(lost.metadata().unwrap().len(), 5);
    });
}

#[test]
fn a_large_directory_is_listed_whole_while_it_shrinks() {
    on_mount(|mount| {
        let directory = mount.join("many");
        fs::create_dir(&directory).unwrap();
        let expected: BTreeSet<String> = (0..2000).map(|i| format!("file-{i}")).collect();
        for name in &expected {
            File::create(directory.join(name)).unwrap();
        }
        let list = || -> BTreeSet<String> {
            let names: Vec<_> = fs::read_dir(&directory)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            let set: BTreeSet<_> = names.iter().cloned().collect();
            assert_eq!(set.len(), names.len(), "a name came twice");
            set
        };
        assert!(list() == expected);
        // Remove each as it comes: none is skipped.
        let mut removed = 0;
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            assert!(entry.file_type().unwrap().is_file());
            fs::remove_file(entry.path()).unwrap();
            removed += 1;
        }
        assert_eq!(removed, 2000);
        assert!(list().is_empty());
        fs::remove_dir(&directory).unwrap();
    });
}

#[test]
fn special_files_times_and_modes_are_kept() {
    on_mount(|mount| {
        let fifo = c_path(&mount.join("fifo"));
        // SAFETY: `fifo` is a string ended by a NUL.
        check(unsafe { libc::mkfifo(fifo.as_ptr(), 0o640) }).unwrap();
        let metadata = fs::metadata(mount.join("fifo")).unwrap();
        assert!(metadata.file_type().is_fifo());
        assert_eq!(metadata.mode() & 0o777, 0o640 & !umask());
        // It is a working one: both ends are this kernel's.
        let reader = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(mount.join("fifo"))
            .unwrap();
        OpenOptions::new().write(true).open(mount.join("fifo")).unwrap().write_all(b"!").unwrap();
        let mut byte = [0];
        (&reader).read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"!");

        let path = mount.join("dated");
        let file = File::create(&path).unwrap();
        let old = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        let older = UNIX_EPOCH - Duration::new(86_400, 500_000_000);
        file.set_times(fs::FileTimes::new().set_modified(old).set_accessed(older)).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.modified().unwrap(), old);
        assert_eq!(metadata.accessed().unwrap(), older);
        // A write makes it new again, through the handle that was open all along.
        (&file).write_all(b"x").unwrap();
        let age = SystemTime::now().duration_since(file.metadata().unwrap().modified().unwrap());
        assert!(age.unwrap_or_default() < Duration::from_secs(60));
        drop(file);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(old).unwrap();
        drop(file);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), old);

        fs::set_permissions(&path, Permissions::from_mode(0o4711)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o4711);
        if is_root() {
            std::os::unix::fs::chown(&path, Some(1234), Some(5678)).unwrap();
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (1234, 5678));
        }
    });
}

fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

#[test]
fn extended_attributes_are_kept() {
    on_mount(|mount| {
        fs::write(mount.join("f"), b"").unwrap();
        let path = c_path(&mount.join("f"));
        let name = c"user.colour";
        let set = |value: &[u8], flags| {
            // SAFETY: strings end with a NUL, and the value is as long as is said.
            check(unsafe {
                let (data, length) = (value.as_ptr().cast(), value.len());
                libc::setxattr(path.as_ptr(), name.as_ptr(), data, length, flags)
            })
        };
        let get = |room: usize| {
            let mut value = vec![0u8; room];
            // SAFETY: as above; the value may be as long as `room`.
            let length = unsafe {
                let data = value.as_mut_ptr().cast();
                libc::getxattr(path.as_ptr(), name.as_ptr(), data, room)
            };
            check(length as libc::c_int).map(|length| (length as usize, value))
        };
        assert_eq!(errno(get(10)), libc::ENODATA);
        assert_eq!(errno(set(b"x", libc::XATTR_REPLACE)), libc::ENODATA);
        set(b"blue", libc::XATTR_CREATE).unwrap();
        assert_eq!(errno(set(b"red", libc::XATTR_CREATE)), libc::EEXIST);
        assert_eq!(get(0).unwrap().0, 4);
        assert_eq!(errno(get(3)), libc::ERANGE);
        assert_eq!(get(4).unwrap().1, b"blue");
        set(b"", 0).unwrap();
        assert_eq!(get(10).unwrap().0, 0);
        let mut names = vec![0u8; 1000];
        // SAFETY: as above.
        let length =
            unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
        assert_eq!(&names[..length as usize], b"user.colour\0");
        // SAFETY: as above.
        check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).unwrap();
        assert_eq!(errno(get(10)), libc::ENODATA);
    });
}

/// `ls -l` asks for SELinux's label of each entry, until it hears that there is no such thing here.
#[test]
fn what_is_never_kept_is_said_so() {
    on_mount(|mount| {
        fs::write(mount.join("f"), b"").unwrap();
        let path = c_path(&mount.join("f"));
        for name in [c"security.selinux", c"system.nfs4_acl", c"system.posix_acl_access"] {
            let mut value = [0u8; 64];
            // SAFETY: strings end with a NUL, and there is room for as much as is said.
            let got = unsafe {
                let data = value.as_mut_ptr().cast();
                libc::getxattr(path.as_ptr(), name.as_ptr(), data, value.len())
            };
            assert_eq!(errno(check(got as libc::c_int)), libc::EOPNOTSUPP, "{name:?}");
            if name == c"system.posix_acl_access" {
                // The kernel looks itself at what is to be set.
                continue;
            }
            // SAFETY: as above.
            let set =
                unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), c"x".as_ptr().cast(), 1, 0) };
            assert_eq!(errno(check(set)), libc::EOPNOTSUPP, "{name:?}");
        }
    });
}

#[test]
fn statfs_tells_what_fits() {
    on_mount(|mount| {
        let statvfs = || {
            let path = c_path(mount);
            // SAFETY: all zeros is a valid statvfs.
            let mut figures: libc::statvfs = unsafe { std::mem::zeroed() };
            // SAFETY: the path ends with a NUL, and the figures are valid for the call.
            check(unsafe { libc::statvfs(path.as_ptr(), &raw mut figures) }).unwrap();
            figures
        };
        let empty = statvfs();
        assert_eq!(empty.f_bsize, empty.f_frsize);
        let total = empty.f_blocks * empty.f_frsize;
        assert!((180 << 20..=192 << 20).contains(&total), "{total}");
        assert!(empty.f_bavail <= empty.f_bfree && empty.f_bfree <= empty.f_blocks);
        assert!(empty.f_ffree > 1000);
        fs::write(mount.join("f"), vec![1; 30 * MIB]).unwrap();
        let filled = statvfs();
        let taken = (empty.f_bavail - filled.f_bavail) * filled.f_frsize;
        assert!((30 << 20..33 << 20).contains(&taken), "{taken}");
        assert_eq!(filled.f_files - filled.f_ffree, empty.f_files - empty.f_ffree + 1);
        // Full is told as such, and what was stored before stays readable.
        let error = fs::write(mount.join("too-much"), vec![2; 200 * MIB]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert!(fs::read(mount.join("f")).unwrap().iter().all(|byte| *byte == 1));
        fs::remove_file(mount.join("too-much")).unwrap();
        fs::write(mount.join("again"), vec![3; 100 * MIB]).unwrap();
    });
}

#[test]
fn other_users_get_what_modes_allow() {
    if !is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    on_mount(|mount| {
        // The directory above is the test's own, which nobody else may walk.
        fs::set_permissions(mount.parent().unwrap(), fs::metadata("/tmp").unwrap().permissions())
            .unwrap();
        let shell = |groups: &str, script: &str| {
            let status = Command::new("setpriv")
                .args(["--reuid", "54321", "--regid", "54321", groups, "sh", "-c", script])
                .current_dir(&**mount)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .expect("setpriv runs");
            status.success()
        };
        let none = "--clear-groups";
        fs::set_permissions(&**mount, Permissions::from_mode(0o755)).unwrap();
        fs::write(mount.join("private"), b"p").unwrap();
        fs::set_permissions(mount.join("private"), Permissions::from_mode(0o600)).unwrap();
        fs::write(mount.join("public"), b"p").unwrap();
        fs::set_permissions(mount.join("public"), Permissions::from_mode(0o644)).unwrap();
        fs::create_dir(mount.join("closed")).unwrap();
        fs::write(mount.join("closed/f"), b"f").unwrap();
        fs::set_permissions(mount.join("closed/f"), Permissions::from_mode(0o666)).unwrap();
        fs::set_permissions(mount.join("closed"), Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(mount.join("open")).unwrap();
        fs::set_permissions(mount.join("open"), Permissions::from_mode(0o1777)).unwrap();
        fs::write(mount.join("open/root"), b"r").unwrap();

        assert!(!shell(none, "cat private"));
        assert!(!shell(none, "test -r private"));
        assert!(shell(none, "cat public && test -r public && ! test -w public"));
        assert!(!shell(none, "echo x >> public"));
        assert!(!shell(none, "echo x > new"));
        assert!(!shell(none, "chmod 666 public"));
        // The kernel has just walked there for root: that opens nothing to others.
        assert!(fs::read(mount.join("closed/f")).is_ok());
        assert!(!shell(none, "cat closed/f"));
        assert!(!shell(none, "ls closed"));
        assert!(!shell(none, "cd closed"));
        // Nor does it to somebody that he has just been there himself.
        fs::create_dir_all(mount.join("way/in/deep")).unwrap();
        for _ in 0..2 {
            fs::set_permissions(mount.join("way"), Permissions::from_mode(0o755)).unwrap();
            assert!(shell(none, "for i in 1 2 3 4 5 6 7 8 9; do test -d way/in/deep; done"));
            fs::set_permissions(mount.join("way"), Permissions::from_mode(0o750)).unwrap();
            assert!(!shell(none, "test -d way/in/deep"));
            std::thread::sleep(Duration::from_millis(weir_core::config::WAYS_SHUT_MS));
        }
        assert!(shell(none, "echo mine > open/mine && cat open/mine && chmod 600 open/mine"));
        let mine = fs::metadata(mount.join("open/mine")).unwrap();
        assert_eq!((mine.uid(), mine.gid(), mine.mode()), (54321, 54321, 0o100_600));
        // Sticky: not the owner's, not to be removed.
        assert!(!shell(none, "rm -f open/root"));
        assert!(!shell(none, "mv open/root open/x"));

        fs::write(mount.join("team"), b"t").unwrap();
        std::os::unix::fs::chown(mount.join("team"), None, Some(777)).unwrap();
        fs::set_permissions(mount.join("team"), Permissions::from_mode(0o640)).unwrap();
        assert!(!shell(none, "cat team"));
        assert!(shell("--groups=777", "cat team && test -r team"));

        // To run a program one need not read it; to read it one must.
        fs::copy("/bin/true", mount.join("program")).unwrap();
        fs::set_permissions(mount.join("program"), Permissions::from_mode(0o711)).unwrap();
        assert!(shell(none, "./program"));
        assert!(!shell(none, "cat program"));
        fs::set_permissions(mount.join("program"), Permissions::from_mode(0o644)).unwrap();
        assert!(!shell("--groups=0", "./program"));

        // A write by somebody else ends set-user-id.
        fs::write(mount.join("suid"), b"s").unwrap();
        for script in ["echo x >> suid", "echo x > suid", "truncate -s 5 suid"] {
            fs::set_permissions(mount.join("suid"), Permissions::from_mode(0o4777)).unwrap();
            assert!(shell(none, script));
            let mode = fs::metadata(mount.join("suid")).unwrap().mode();
            assert_eq!(mode & 0o7777, 0o777, "after {script}");
        }
    });
}

#[test]
fn programs_run_from_and_map_files() {
    on_mount(|mount| {
        fs::copy("/bin/cat", mount.join("cat")).unwrap();
        fs::write(mount.join("text"), b"through a copy").unwrap();
        let output = Command::new(mount.join("cat")).arg(mount.join("text")).output().unwrap();
        assert_eq!(output.stdout, b"through a copy");
        // What is executed is not truncated, not even by who opens it to read: he fails, but the kernel asks
        // us first.
        let mut running = Command::new(mount.join("cat")).stdin(Stdio::piped()).spawn().unwrap();
        let length = fs::metadata(mount.join("cat")).unwrap().len();
        for access in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR] {
            let mut options = OpenOptions::new();
            options.read(access != libc::O_WRONLY).write(access != libc::O_RDONLY);
            let opened = options.custom_flags(libc::O_TRUNC).open(mount.join("cat"));
            assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::ETXTBSY));
            assert_eq!(fs::metadata(mount.join("cat")).unwrap().len(), length);
        }
        drop(running.stdin.take());
        assert!(running.wait().unwrap().success());
        // Mapped in a process of its own: a fault of ours might wait for ourselves.
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "posix::child_that_maps", "--include-ignored"])
            .env("WEIR_TEST_MAP", mount.join("map"))
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        let got = fs::read(mount.join("map")).unwrap();
        assert_eq!(got.len(), 200_000);
        assert!(got.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8));
    });
}

#[test]
#[ignore = "is run as a child by programs_run_from_and_map_files"]
fn child_that_maps() {
    let Some(path) = std::env::var_os("WEIR_TEST_MAP") else { return };
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    let length = 200_000;
    file.set_len(length as u64).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of an open file, of its length.
    let map = unsafe {
        let descriptor = file.as_raw_fd();
        libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, descriptor, 0)
    };
    assert_ne!(map, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    // SAFETY: the mapping is that long, and ours alone.
    let bytes = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), length) };
    assert!(bytes.iter().all(|byte| *byte == 0));
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (i % 251) as u8;
    }
    // SAFETY: as it was mapped; `bytes` is not used any more.
    check(unsafe { libc::munmap(map, length) }).unwrap();
}

#[test]
fn what_was_done_is_counted_by_path() {
    on_mount(|mount| {
        fs::create_dir(mount.join("d")).unwrap();
        fs::write(mount.join("d/f"), vec![5; 2 * MIB]).unwrap();
        let mut file = File::open(mount.join("d/f")).unwrap();
        let mut buffer = vec![0; MIB];
        file.read_exact(&mut buffer).unwrap();
        drop(file);
        let statistics = mount.session().statistics();
        let file = &statistics.files["/d/f"];
        assert_eq!(file.opens, 2);
        assert_eq!(file.bytes_written, 2 * MIB as u64);
        assert!(file.bytes_read >= MIB as u64);
        assert!(file.writes >= 2 && file.reads >= 1);
        assert!(file.open_ns > 0 && file.read_ns > 0 && file.write_ns > 0);
        assert_eq!(statistics.total.bytes_written, 2 * MIB as u64);
        assert_eq!(statistics.operations["mkdir"].count, 1);
        // Requests are as large as the kernel makes them.
        assert!(file.writes <= 4, "{} requests for 2 MiB", file.writes);
        let text = serde_json::to_string(&statistics).unwrap();
        assert_eq!(serde_json::from_str::<weir_fuse::Statistics>(&text).unwrap(), statistics);
    });
}

/// The kernel believes the names of directories for a moment, and then does not ask where they have gone.
#[test]
fn a_file_is_counted_where_it_is_when_a_directory_above_has_just_moved() {
    on_mount(|mount| {
        fs::create_dir_all(mount.join("d/in")).unwrap();
        fs::create_dir_all(mount.join("other/in")).unwrap();
        let walk = |path: &str| (0..3).for_each(|_| drop(fs::metadata(mount.join(path))));
        walk("d/in/x");
        walk("other/in/x");
        fs::rename(mount.join("d"), mount.join("e")).unwrap();
        fs::write(mount.join("e/in/first"), b"1").unwrap();
        let (e, other) = (c_path(&mount.join("e")), c_path(&mount.join("other")));
        let (at, how) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
        // SAFETY: both are texts that end.
        let exchanged = unsafe { libc::renameat2(at, e.as_ptr(), at, other.as_ptr(), how) };
        assert_eq!(exchanged, 0, "{}", io::Error::last_os_error());
        fs::write(mount.join("e/in/second"), b"2").unwrap();
        fs::write(mount.join("other/in/third"), b"3").unwrap();
        let files = mount.session().statistics().files;
        let written: Vec<_> = files.keys().map(String::as_str).collect();
        assert_eq!(written, ["/e/in/first", "/e/in/second", "/other/in/third"]);
    });
}
