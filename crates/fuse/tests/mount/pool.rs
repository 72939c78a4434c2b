//! Several mounts of one pool, and the pool's end.

use crate::common::{Mounted, TestPool, fuse_works, is_root, pattern};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use weir_fuse::MountOptions;

fn caching(caching: bool) -> MountOptions {
    MountOptions { caching, ..MountOptions::default() }
}

#[test]
fn without_caching_a_write_is_seen_by_every_mount_at_once() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(2, 64 << 20);
    let (a, b) = (pool.mount(&caching(false)), pool.mount(&caching(false)));
    let writer =
        OpenOptions::new().read(true).write(true).create_new(true).open(a.join("f")).unwrap();
    let mut reader = File::open(b.join("f")).unwrap();
    let mut model = Vec::new();
    for round in 0..20u64 {
        let bytes = pattern(round, 0, 70_001);
        writer.write_all_at(&bytes, model.len() as u64).unwrap();
        model.extend_from_slice(&bytes);
        // Size and bytes, by name and through a descriptor opened long ago.
        assert_eq!(fs::metadata(b.join("f")).unwrap().len(), model.len() as u64);
        assert_eq!(reader.metadata().unwrap().len(), model.len() as u64);
        let mut got = vec![0; bytes.len()];
        reader.read_exact(&mut got).unwrap();
        assert!(got == bytes, "round {round}");
    }
    writer.set_len(5).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 5);
    fs::rename(a.join("f"), a.join("g")).unwrap();
    assert!(!b.join("f").exists());
    assert_eq!(fs::read(b.join("g")).unwrap(), model[..5]);
    fs::remove_file(b.join("g")).unwrap();
    assert!(!a.join("g").exists());
    assert_eq!(writer.metadata().unwrap().len(), 5);
    drop((writer, reader));
    a.end();
    b.end();
}

/// A mount's kernel may believe for a moment where directories' names lead, also of many asked for at once;
/// when another mount has moved or removed one, or closed the one above it, it does no more.
#[test]
fn directories_that_others_move_are_not_walked_by_their_old_names() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(1, 64 << 20);
    let (a, b) = (pool.mount(&caching(false)), pool.mount(&caching(false)));
    let deep = "d/e/f/g/h";
    fs::create_dir_all(a.join(deep)).unwrap();
    fs::create_dir_all(a.join("spare/f/g/h")).unwrap();
    for (path, text) in [("d/e/f/g/h/file", "first"), ("spare/f/g/h/file", "second")] {
        fs::write(a.join(path), text).unwrap();
    }
    // What a lookup brings, which a caching kernel believes, is what is told when asked for.
    let cached = pool.mount(&caching(true));
    fs::metadata(cached.join("d/e/f")).unwrap();
    assert_eq!(fs::metadata(cached.join("d/e")).unwrap().blocks(), 8);
    cached.end();
    let walk = |mount: &Path| {
        (0..200).for_each(|_| drop(fs::metadata(mount.join("d/e/f/g/h/file"))));
        fs::read_to_string(mount.join("d/e/f/g/h/file"))
    };
    let lookups = |mount: &Mounted| {
        let looked_up =
            || mount.session().statistics().operations.get("lookup").map_or(0, |it| it.count);
        let before = looked_up();
        assert_eq!(walk(mount).unwrap(), "first");
        (looked_up() - before) as f64 / 200.0
    };
    let each = lookups(&a);
    assert!(each < 4.0, "{each} lookups for each walk of six names");
    // Where only their owner may walk, so may he who has the mount for himself; where others may be, too, the
    // kernel has to ask for whom.
    let close = |mode| {
        for path in Path::new(deep).ancestors().filter(|path| *path != Path::new("")) {
            fs::set_permissions(a.join(path), Permissions::from_mode(mode)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(weir_core::config::WAYS_SHUT_MS));
    };
    close(0o700);
    let each = lookups(&a);
    assert!(each < 4.0, "{each} lookups for each walk of six names");
    if is_root() {
        let open = pool.mount(&MountOptions { allow_other: true, ..caching(false) });
        let each = lookups(&open);
        assert!(each > 4.0, "{each} lookups for each walk of six names");
        open.end();
    }
    close(0o755);

    for round in 0..6 {
        // Both know the way, one changes it.
        let (one, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (now, then) = if round % 2 == 0 { ("first", "second") } else { ("second", "first") };
        assert_eq!((walk(one).unwrap(), walk(other).unwrap()), (now.into(), now.into()));
        for (from, to) in [("d/e", "aside"), ("spare", "d/e"), ("aside", "spare")] {
            fs::rename(one.join(from), one.join(to)).unwrap();
        }
        assert_eq!(fs::read_to_string(other.join("d/e/f/g/h/file")).unwrap(), then);
        assert_eq!(fs::read_to_string(one.join("d/e/f/g/h/file")).unwrap(), then);
        std::thread::sleep(Duration::from_millis(weir_core::config::WAYS_SHUT_MS));
    }
    assert_eq!((walk(&a).unwrap(), walk(&b).unwrap()), ("first".into(), "first".into()));
    fs::remove_dir_all(a.join("d/e")).unwrap();
    assert_eq!(walk(&b).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert!(fs::write(b.join("d/e/f/new"), "lost").is_err());
    a.end();
    b.end();
}

/// A directory that another mount has moved can be moved on, and replaced, by whoever has not looked at it where it
/// is now: the kernel must not be in the way with where it was.
#[test]
fn directories_that_others_have_moved_are_moved_on() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(1, 64 << 20);
    let (a, b) = (pool.mount(&caching(false)), pool.mount(&caching(false)));
    for directory in ["one", "two", "three"] {
        fs::create_dir(a.join(directory)).unwrap();
    }
    for round in 0..30 {
        // Into the directory where the kernel has it, or into another one.
        let to = ["one", "three"][round % 2];
        let [was, is, will_be] =
            ["one/d", "two/d", &format!("{to}/e")].map(|name| format!("{name}{round}"));
        fs::create_dir(a.join(&was)).unwrap();
        fs::write(a.join(&was).join("file"), &was).unwrap();
        fs::rename(b.join(&was), b.join(&is)).unwrap();
        fs::rename(a.join(&is), a.join(&will_be)).unwrap();
        for mount in [&a, &b] {
            assert_eq!(fs::read_to_string(mount.join(&will_be).join("file")).unwrap(), was);
            assert!(!mount.join(&was).exists() && !mount.join(&is).exists());
        }
        // Onto one that was moved.
        fs::create_dir(a.join(&was)).unwrap();
        fs::create_dir(a.join("one/new")).unwrap();
        fs::rename(b.join(&was), b.join(&is)).unwrap();
        fs::rename(a.join("one/new"), a.join(&is)).unwrap();
        assert!(b.join(&is).exists() && !b.join("one/new").exists());
    }
    a.end();
    b.end();
}

/// How a mount changes something, and how another one sees that it was changed.
type Change = (&'static str, fn(&Path), fn(&Path) -> bool);

/// Where nobody else changes anything a mount's kernel may believe for a moment all that it was told; when
/// another mount has changed it, it does no more.
#[test]
fn what_one_mount_alone_looks_at_it_need_not_ask_for_until_others_change_it() {
    if !fuse_works() {
        return;
    }
    let stat = |path: &Path| fs::symlink_metadata(path);
    let size = |mount: &Path| fs::symlink_metadata(mount.join("d/f")).unwrap().len();
    const CHANGES: &[Change] = &[
        ("write", |b| fs::write(b.join("d/f"), "longer").unwrap(), |a| text(a) == "longer"),
        ("append", |b| add(&b.join("d/f"), "more"), |a| text(a) == "fmore"),
        ("truncate", |b| cut(&b.join("d/f")), |a| text(a).is_empty()),
        ("chmod", |b| chmod(&b.join("d/f"), 0o600), |a| mode(&a.join("d/f")) == 0o600),
        ("chmod of a directory", |b| chmod(&b.join("d"), 0o700), |a| mode(&a.join("d")) == 0o700),
        ("link", |b| fs::hard_link(b.join("d/f"), b.join("l")).unwrap(), |a| links(a) == 2),
        ("unlink", |b| fs::remove_file(b.join("d/f")).unwrap(), |a| !there(a, "d/f")),
        (
            "rename",
            |b| fs::rename(b.join("d/f"), b.join("d/none")).unwrap(),
            |a| !there(a, "d/f") && there(a, "d/none"),
        ),
        ("rename over", |b| fs::rename(b.join("g"), b.join("d/f")).unwrap(), |a| text(a) == "gg"),
        ("create", |b| fs::write(b.join("d/none"), "").unwrap(), |a| there(a, "d/none")),
        ("mkdir", |b| fs::create_dir(b.join("d/none")).unwrap(), |a| there(a, "d/none")),
        ("symlink", |b| symlink("f", b.join("d/none")).unwrap(), |a| text_of(a, "d/none") == "f"),
        (
            "move of a directory",
            |b| fs::rename(b.join("d"), b.join("e")).unwrap(),
            |a| !there(a, "d/f") && there(a, "e/f") && !there(a, "d"),
        ),
    ];
    fn text_of(mount: &Path, name: &str) -> String {
        fs::read_to_string(mount.join(name)).unwrap()
    }
    fn text(mount: &Path) -> String {
        let length = fs::symlink_metadata(mount.join("d/f")).unwrap().len();
        let text = text_of(mount, "d/f");
        assert_eq!(text.len() as u64, length);
        text
    }
    fn add(path: &Path, text: &str) {
        OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }
    fn cut(path: &Path) {
        OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
    }
    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }
    fn links(mount: &Path) -> u64 {
        fs::symlink_metadata(mount.join("d/f")).unwrap().nlink()
    }
    fn there(mount: &Path, name: &str) -> bool {
        fs::symlink_metadata(mount.join(name)).is_ok()
    }
    let scene = |&(name, change, changed): &Change| {
        let pool = TestPool::new(1, 16 << 20);
        let (a, b) = (pool.mount(&caching(false)), pool.mount(&caching(false)));
        fs::create_dir(a.join("d")).unwrap();
        fs::write(a.join("d/f"), "f").unwrap();
        fs::write(a.join("g"), "gg").unwrap();
        let asked = || {
            let operations = a.session().statistics().operations;
            operations["lookup"].count + operations.get("getattr").map_or(0, |asked| asked.count)
        };
        let look = || {
            for _ in 0..500 {
                assert_eq!(size(&a), 1);
                assert!(stat(&a.join("d")).unwrap().is_dir() && stat(&a.join("d/none")).is_err());
            }
        };
        look();
        let before = asked();
        look();
        let each = (asked() - before) as f64 / 500.0;
        assert!(each < 1.0, "{name}: {each} questions for three stats");
        change(&b);
        assert!(changed(&a), "{name} was not seen by the other mount");
        a.end();
        b.end();
    };
    std::thread::scope(|scope| {
        let scenes: Vec<_> =
            CHANGES.iter().map(|change| scope.spawn(move || scene(change))).collect();
        scenes.into_iter().for_each(|scene| scene.join().unwrap());
    });
}

/// The numbers that the next entries of a directory are called, in few bytes; none at its end.
fn some_entries(directory: &File) -> Vec<usize> {
    let mut buffer = [0u8; 4096];
    // SAFETY: a buffer of that length.
    let length = unsafe {
        let buffer = buffer.as_mut_ptr();
        libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), buffer, 4096)
    };
    let mut rest = &buffer[..usize::try_from(length).expect("directory can be read")];
    let mut names = Vec::new();
    while rest.len() > 19 {
        let (entry, behind) = rest.split_at(usize::from(u16::from_ne_bytes([rest[16], rest[17]])));
        let name = entry[19..].split(|byte| *byte == 0).next().expect("a name");
        names.extend(std::str::from_utf8(name).expect("text").parse::<usize>());
        rest = behind;
    }
    // The dots may come by themselves.
    if names.is_empty() && length > 0 { some_entries(directory) } else { names }
}

/// Attributes that come with a listing are fetched before the kernel wants them: what has been changed since then,
/// here or by another mount, is not told as it was.
#[test]
fn a_listing_brings_attributes_as_they_are() {
    if !fuse_works() {
        return;
    }
    const FILES: usize = 3_000;
    let pool = TestPool::new(1, 64 << 20);
    let (a, b) = (pool.mount(&caching(false)), pool.mount(&caching(false)));
    fs::create_dir(a.join("d")).unwrap();
    for i in 0..FILES {
        let mut file = File::create(a.join(format!("d/{i:05}"))).unwrap();
        file.write_all(&vec![1; i % 7]).unwrap();
        if i % 3 == 0 {
            // As touch and tar do: how large such files are the targets have to be asked once more.
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
    }
    // They are closed a moment later.
    std::thread::sleep(Duration::from_millis(200));
    let mut model: Vec<Option<u64>> = (0..FILES).map(|i| Some(i as u64 % 7)).collect();
    let asked = || {
        let operations = a.session().statistics().operations;
        operations["lookup"].count + operations.get("getattr").map_or(0, |asked| asked.count)
    };
    let before = asked();
    let listed = fs::read_dir(a.join("d")).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    assert!(listed.map(|found| found.len()).eq(model.iter().flatten().copied()));
    let each = (asked() - before) as f64 / FILES as f64;
    assert!(each < 0.5, "{each} questions for each entry");

    for (round, changer) in [(0, &a), (1, &a), (2, &b), (3, &a)] {
        if round == 3 {
            std::thread::sleep(Duration::from_millis(weir_core::config::CALM_MS));
        }
        let mut seen = 0;
        let change = |model: &mut Vec<Option<u64>>, i: usize| {
            if i >= FILES || model[i].is_none() {
                return;
            }
            let path = changer.join(format!("d/{i:05}"));
            let size = (i % 90 + round) as u64;
            match i % 4 {
                0 => fs::write(path, vec![2; size as usize]).unwrap(),
                1 => OpenOptions::new().write(true).open(path).unwrap().set_len(size).unwrap(),
                2 => {
                    fs::remove_file(&path).unwrap();
                    fs::write(path, vec![2; size as usize]).unwrap();
                }
                _ => fs::remove_file(path).unwrap(),
            }
            model[i] = (i % 4 != 3).then_some(size);
        };
        let directory = File::open(a.join("d")).unwrap();
        // What came with the opening is old by now.
        (0..8).for_each(|i| change(&mut model, i));
        loop {
            let names = some_entries(&directory);
            if names.is_empty() {
                break;
            }
            for i in names {
                // It may have been listed before it was removed.
                let found = fs::symlink_metadata(a.join(format!("d/{i:05}"))).ok();
                let size = found.map(|found| found.len());
                assert_eq!(size, model[i], "file {i} in round {round}");
                seen += 1;
                // Just ahead, and in the next parts of the listing.
                if seen % 20 == 0 {
                    [1, 27, 260].iter().for_each(|ahead| change(&mut model, i + ahead));
                }
            }
        }
        assert!(seen >= model.iter().flatten().count(), "round {round}");
    }
    a.end();
    b.end();
}

#[test]
fn what_was_read_ahead_is_not_given_to_a_program_once_it_has_changed() {
    if !fuse_works() {
        return;
    }
    const STEP: usize = 256 << 10;
    let pool = TestPool::new(2, 64 << 20);
    let (a, b) = (pool.mount(&caching(false)), pool.mount(&caching(false)));
    let mut model = pattern(0, 0, 24 * STEP);
    fs::write(a.join("f"), &model).unwrap();
    let writer = OpenOptions::new().write(true).open(a.join("f")).unwrap();
    let reader = File::open(b.join("f")).unwrap();
    for at in 0..26 {
        // Of all but the first three some has been fetched by now.
        std::thread::sleep(Duration::from_millis(10));
        let start = at * STEP;
        match at {
            5..=8 | 18 => {
                let bytes = pattern(at as u64, 0, 1000);
                writer.write_all_at(&bytes, (start + at * 10_000) as u64).unwrap();
                model[start + at * 10_000..][..1000].copy_from_slice(&bytes);
            }
            10 => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let offset = start as i64 + 100;
                // SAFETY: a valid descriptor.
                let result = unsafe { libc::fallocate(writer.as_raw_fd(), mode, offset, 70_000) };
                assert_eq!(result, 0);
                model[start + 100..][..70_000].fill(0);
            }
            // What was cut off and came back is zeros.
            12 => {
                writer.set_len(start as u64 + 5).unwrap();
                writer.set_len(model.len() as u64).unwrap();
                model[start + 5..].fill(0);
            }
            22 => {
                model.truncate(start + 70_001);
                writer.set_len(model.len() as u64).unwrap();
            }
            _ => {}
        }
        let mut got = vec![0xEE; STEP];
        let count = reader.read_at(&mut got, start as u64).unwrap();
        let end = (start + STEP).min(model.len());
        assert!(got[..count] == model[start.min(end)..end], "step {at}: {count} bytes");
    }
    drop((writer, reader));
    a.end();
    b.end();
}

#[test]
fn appends_of_two_mounts_never_overlap() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(2, 64 << 20);
    let (a, b) = (pool.mount(&caching(false)), pool.mount(&caching(true)));
    fs::write(a.join("log"), b"").unwrap();
    std::thread::scope(|scope| {
        for (mount, letter) in [(&a, b'a'), (&b, b'b')] {
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(mount.join("log")).unwrap();
                for _ in 0..100 {
                    file.write_all(&[letter; 1000]).unwrap();
                }
            });
        }
    });
    let log = fs::read(a.join("log")).unwrap();
    assert_eq!(log.len(), 200_000);
    for record in log.chunks(1000) {
        assert!(record.iter().all(|byte| *byte == record[0]));
    }
    assert_eq!(fs::read(b.join("log")).unwrap(), log);
    a.end();
    b.end();
}

#[test]
fn what_is_appended_lies_behind_what_was_written_by_any_other_way() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(3, 64 << 20);
    let (a, b) = (pool.mount(&caching(false)), pool.mount(&caching(false)));
    let (path, other) = (a.join("log"), b.join("log"));
    fs::write(&path, b"").unwrap();
    let mut expected = Vec::new();
    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
    // So often that the handle knows the end by itself.
    let append = |log: &mut File, expected: &mut Vec<u8>, letter: u8| {
        for length in [10, 3000, 1, 70_000] {
            log.write_all(&vec![letter; length]).unwrap();
            expected.resize(expected.len() + length, letter);
            assert_eq!(fs::metadata(&other).unwrap().len(), expected.len() as u64);
        }
    };
    let write = |file: &File, expected: &mut Vec<u8>, letter: u8| {
        let at = expected.len() + 500;
        expected.resize(at, 0);
        expected.resize(at + 2000, letter);
        file.write_all_at(&[letter; 2000], at as u64).unwrap();
    };
    append(&mut log, &mut expected, b'a');
    for path in [&other, &path] {
        // Opened, written and closed; open all the while; by path.
        write(&File::options().write(true).open(path).unwrap(), &mut expected, b'b');
        append(&mut log, &mut expected, b'c');
        let open = File::options().write(true).open(path).unwrap();
        append(&mut log, &mut expected, b'd');
        write(&open, &mut expected, b'e');
        append(&mut log, &mut expected, b'f');
        write(&open, &mut expected, b'g');
        drop(open);
        append(&mut log, &mut expected, b'h');
        let length = expected.len() / 2;
        expected.resize(length, 0);
        File::options().write(true).open(path).unwrap().set_len(length as u64).unwrap();
        append(&mut log, &mut expected, b'i');
        append(&mut OpenOptions::new().append(true).open(path).unwrap(), &mut expected, b'j');
        append(&mut log, &mut expected, b'k');
        // By this very opening.
        expected.resize(expected.len() + 100, 0);
        log.set_len(expected.len() as u64).unwrap();
        append(&mut log, &mut expected, b'l');
        // SAFETY: the descriptor is open.
        let longer = unsafe { libc::fallocate(log.as_raw_fd(), 0, expected.len() as i64, 50) };
        assert_eq!(longer, 0);
        expected.resize(expected.len() + 50, 0);
        append(&mut log, &mut expected, b'm');
    }
    assert!(fs::read(&other).unwrap() == expected);
    drop(log);
    a.end();
    b.end();
}

#[test]
fn what_there_was_no_room_for_leaves_no_hole_in_a_log() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(1, 32 << 20);
    let mount = pool.mount(&caching(false));
    fs::write(mount.join("log"), b"begin ").unwrap();
    let mut log = OpenOptions::new().append(true).open(mount.join("log")).unwrap();
    log.write_all(b"more ").unwrap();
    let filler = File::create(mount.join("filler")).unwrap();
    let full = (0..).map(|at| filler.write_all_at(&[1; 1 << 20], at << 20)).find_map(Result::err);
    assert_eq!(full.unwrap().raw_os_error(), Some(libc::ENOSPC));
    let refused = log.write(&[2; 1 << 20]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    filler.set_len(0).unwrap();
    log.write_all(b"end").unwrap();
    assert_eq!(fs::read(mount.join("log")).unwrap(), b"begin more end");
    drop((log, filler));
    mount.end();
}

#[test]
fn with_caching_a_file_is_as_it_was_last_closed_anywhere() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(2, 64 << 20);
    let (a, b) = (pool.mount(&caching(true)), pool.mount(&caching(true)));
    for round in 0..20u64 {
        // The same length each time: only the time of the write tells.
        let bytes = pattern(round, 0, 100_000);
        fs::write(a.join("f"), &bytes).unwrap();
        assert!(fs::read(b.join("f")).unwrap() == bytes, "round {round}");
        let back = pattern(1000 + round, 0, 100_000);
        fs::write(b.join("f"), &back).unwrap();
        assert!(fs::read(a.join("f")).unwrap() == back, "round {round}");
        // As programs replace files.
        fs::write(a.join("tmp"), &bytes).unwrap();
        fs::rename(a.join("tmp"), a.join("f")).unwrap();
        assert!(fs::read(b.join("f")).unwrap() == bytes, "round {round}");
    }
    // Nor does a time that is set back hide a change.
    let time = fs::metadata(b.join("f")).unwrap().modified().unwrap();
    let hidden = pattern(5000, 0, 100_000);
    let file = OpenOptions::new().write(true).open(a.join("f")).unwrap();
    file.write_all_at(&hidden, 0).unwrap();
    file.set_modified(time).unwrap();
    drop(file);
    assert_eq!(fs::metadata(b.join("f")).unwrap().modified().unwrap(), time);
    assert!(fs::read(b.join("f")).unwrap() == hidden);
    // What nobody has changed is read from the pool once.
    let read = || b.session().statistics().files["/f"].bytes_read;
    fs::read(b.join("f")).unwrap();
    let before = read();
    for _ in 0..5 {
        assert_eq!(fs::read(b.join("f")).unwrap().len(), 100_000);
    }
    assert_eq!(read(), before);
    a.end();
    b.end();
}

#[test]
fn many_threads_use_one_mount() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(2, 256 << 20);
    let mount = pool.mount(&caching(false));
    std::thread::scope(|scope| {
        for index in 0..8u64 {
            let path = mount.join(format!("f{index}"));
            scope.spawn(move || {
                for round in 0..3 {
                    let bytes = pattern(index * 100 + round, 0, 3_000_000 + index as usize);
                    fs::write(&path, &bytes).unwrap();
                    assert!(fs::read(&path).unwrap() == bytes);
                }
            });
        }
    });
    // And one file, each thread its own part.
    let shared = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.join("shared"))
        .unwrap();
    std::thread::scope(|scope| {
        for index in 0..8u64 {
            let shared = &shared;
            scope.spawn(move || {
                for block in 0..10 {
                    let offset = (block * 8 + index) * 100_000;
                    shared.write_all_at(&pattern(7, offset, 100_000), offset).unwrap();
                }
            });
        }
    });
    assert!(fs::read(mount.join("shared")).unwrap() == pattern(7, 0, 8_000_000));
    drop(shared);
    mount.end();
}

#[test]
fn a_dead_server_is_an_error_and_the_mount_can_be_taken_away() {
    if !fuse_works() {
        return;
    }
    let mut pool = TestPool::new(3, 64 << 20);
    let mount = pool.mount(&caching(false));
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).open(mount.join("f")).unwrap();
    let bytes = pattern(1, 0, 1 << 20);
    file.write_all_at(&bytes, 0).unwrap();
    // Not the first one, which holds the metadata.
    drop(pool.servers.pop());
    let begun = Instant::now();
    let mut buffer = vec![0; 1 << 20];
    for result in [file.read_exact_at(&mut buffer, 0), file.write_all_at(&bytes, 0)] {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // What needs that server for nothing still works.
    fs::create_dir(mount.join("d")).unwrap();
    assert!(fs::read_dir(&*mount).unwrap().count() >= 2);
    pool.servers.clear();
    let begun = Instant::now();
    assert_eq!(fs::metadata(mount.join("f")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(file);
    let begun = Instant::now();
    mount.end();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn a_mount_in_use_is_not_unmounted_but_dropped_it_goes() {
    if !fuse_works() {
        return;
    }
    let pool = TestPool::new(1, 64 << 20);
    let mut mount = pool.mount(&caching(false));
    let file = File::create(mount.join("f")).unwrap();
    let error = mount.session().unmount().unwrap_err();
    assert_eq!(error.errno(), libc::EBUSY, "{error}");
    assert!(error.to_string().starts_with("unmount "), "{error}");
    drop(mount.session.take());
    assert!(!mount.join("f").exists());
    // A descriptor that is still open works on.
    (&file).write_all(b"x").unwrap();
}

#[test]
fn a_mount_that_the_caller_made_is_served() {
    if !fuse_works() {
        return;
    }
    // SAFETY: does nothing but answer.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: mount(2) needs root");
        return;
    }
    let pool = TestPool::new(1, 64 << 20);
    let directory = tempfile::tempdir().unwrap();
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,max_read=1048576\0",
        device.as_raw_fd()
    );
    let path = std::ffi::CString::new(directory.path().as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: all strings end with a NUL.
    let result = unsafe {
        let (source, kind) = (c"weir".as_ptr(), c"fuse.weir".as_ptr());
        libc::mount(source, path.as_ptr(), kind, libc::MS_NOSUID, options.as_ptr().cast())
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    let options = MountOptions { allow_other: true, ..caching(false) };
    let session = weir_fuse::serve(pool.connect(), OwnedFd::from(device), &options).unwrap();
    fs::write(directory.path().join("f"), b"served").unwrap();
    assert_eq!(fs::read(directory.path().join("f")).unwrap(), b"served");
    assert!(!session.is_over());
    assert_eq!(session.unmount().unwrap_err().errno(), libc::EINVAL);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::umount2(path.as_ptr(), 0) }, 0);
    session.join().unwrap();
}
