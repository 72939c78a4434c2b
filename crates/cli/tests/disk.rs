//! A pool larger than its memory: everything comes back as it was written, memory stays what was
//! stated, full is ENOSPC, and nothing is left on the disk.

mod common;

use common::{Place, resident};
use std::fs::File;
use std::os::unix::fs::FileExt;
use weir_client::{ConnectOptions, Pool, PoolAddress};
use weir_core::error::{Code, Error};
use weir_core::types::{Credentials, Ino};
use weir_core::wire::meta::{LayoutWish, OpenMode, Place as Where};

const MEMORY: u64 = 64 << 20;
const METADATA_MEMORY: u64 = 16 << 20;
const PIECE: usize = 1 << 20;

/// Bytes that tell where they belong.
fn piece(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(PIECE);
    while bytes.len() < PIECE {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

#[test]
fn three_times_the_memory_comes_back_and_full_is_said() {
    let place = Place::new();
    let disk = place.path("disk");
    std::fs::create_dir(&disk).expect("made");
    let option = format!("{}:192M", disk.display());
    place.good(&[
        "up",
        "d",
        "--servers",
        "1",
        "--memory",
        "64M",
        "--metadata-memory",
        "16M",
        "--disk",
        &option,
    ]);
    assert_eq!(std::fs::read_dir(&disk).expect("listed").count(), 0, "a file without a name");
    let pid = place.servers()[0];
    let check = |when: &str| {
        let limit = (MEMORY + METADATA_MEMORY) / 100 * 105 + (64 << 20);
        let resident = resident(pid);
        assert!(resident <= limit, "{when}: {resident} bytes resident, {limit} allowed");
    };
    let address = PoolAddress::load(&place.home().join("pools/d")).expect("pool files");
    let pool = Pool::connect(&address, &ConnectOptions::default()).expect("connects");
    let me = Credentials { uid: 0, gid: 0, groups: vec![] };
    let make = async |name: &str| {
        let (at, open) = (Where::new(Ino::ROOT, name), OpenMode::READ_WRITE);
        let made = pool.fs().create(&me, at, 0o644, false, open, LayoutWish::default()).await;
        made.expect("created").0
    };
    let (stored, error) = pool.run(async {
        let file = make("large").await;
        let mut stored = 0;
        let error: Error = loop {
            match file.write_at(&piece(stored), stored * PIECE as u64).await {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
            check("writing");
        };
        file.sync().await.expect("nothing went wrong behind");
        file.close().await.expect("closed");
        (stored, error)
    });
    assert_eq!(error.code, Code::NoSpace, "{error}");
    assert!(stored as usize * PIECE > 3 * MEMORY as usize, "{stored} MiB");
    pool.run(async {
        let found =
            pool.fs().lookup(&me, Where::new(Ino::ROOT, "large"), true).await.expect("found");
        let (file, _) = pool.fs().open(&me, found.ino, OpenMode::READ_WRITE).await.expect("opened");
        let mut bytes = vec![0; PIECE];
        for index in (0..stored).chain((0..stored).rev().step_by(7)) {
            let count = file.read_at(&mut bytes, index * PIECE as u64).await.expect("read");
            assert!(count == PIECE && bytes == piece(index), "MiB {index}");
        }
        check("reading");
        // Full or not, what is there can be overwritten, in small pieces, too.
        for index in (0..stored).step_by(5) {
            file.write_at(&piece(index + 1)[..5000], index * PIECE as u64 + 77)
                .await
                .expect("written");
        }
        for index in (0..stored).step_by(5) {
            let mut expected = piece(index);
            expected[77..5077].copy_from_slice(&piece(index + 1)[..5000]);
            file.read_at(&mut bytes, index * PIECE as u64).await.expect("read");
            assert!(bytes == expected, "MiB {index}");
        }
        file.close().await.expect("closed");
    });
    check("overwritten");
    let status = place.json(&["status", "d", "--json"]);
    let target = &status["pools"][0]["servers"][0]["targets"][0];
    assert!(target["disk_bytes_written"].as_u64() > Some(128 << 20), "{target}");
    assert!(target["disk_bytes_read"].as_u64() > Some(128 << 20), "{target}");
    assert_eq!(target["disk_errors"].as_u64(), Some(0), "{target}");
    assert_eq!(target["disk_failed"].as_bool(), Some(false), "{target}");
    drop(pool);
    place.good(&["down", "d"]);
    place.nothing_left();
}

/// Through the mount, by a program that knows nothing of it, on two disks.
#[test]
fn a_program_does_not_notice() {
    let place = Place::new();
    let disks = [place.path("one"), place.path("two")];
    disks.iter().for_each(|disk| std::fs::create_dir(disk).expect("made"));
    let source = File::create(place.path("source")).expect("made");
    for index in 0..160 {
        source.write_all_at(&piece(index), index * PIECE as u64).expect("written");
    }
    let options: Vec<String> =
        disks.iter().map(|disk| format!("{}:128M", disk.display())).collect();
    place.good(&[
        "run",
        "--servers",
        "1",
        "--memory",
        "80M",
        "--disk",
        &options[0],
        "--disk",
        &options[1],
        "--no-preload",
        "--",
        "sh",
        "-c",
        "cp source $WEIR_MOUNT/copy && sync $WEIR_MOUNT/copy && cmp source $WEIR_MOUNT/copy",
    ]);
    for disk in &disks {
        assert_eq!(std::fs::read_dir(disk).expect("listed").count(), 0);
    }
    place.nothing_left();
}

#[test]
fn what_cannot_be_a_disk_is_said_before_anything_starts() {
    let place = Place::new();
    place.bad(&["up", "x", "--disk", "./none:1G"], 1, &["use as a disk", "none"]);
    place.bad(&["up", "x", "--disk", "/tmp:1M"], 2, &["at least"]);
    let tiny = ["up", "x", "--servers", "1", "--memory", "16M", "--disk", ".:64M"];
    place.bad(&tiny, 1, &["memory", "too little"]);
    place.bad(&["up", "x", "--servers", "2", "--disk", ".:900T"], 1, &["free there"]);
    place.nothing_left();
}
