//! Pools that last: down and up again, and servers that are killed under a writer who remembers.

mod common;

use common::native::{connect, me};
use common::{Place, noise, signal};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_client::Pool;
use weir_core::error::{Code, Result};
use weir_core::types::Ino;
use weir_core::wire::meta::{LayoutWish, OpenMode, Place as At};

/// Rounds of killing; `WEIR_KEPT_ROUNDS` asks for more.
const ROUNDS: u32 = 3;

fn up(place: &Place, more: &[&str]) -> String {
    let mut words = vec!["up", "k", "--servers", "2", "--memory", "32M", "--kept"];
    let directory = format!("{}:160M", place.path("disk").display());
    words.push(&directory);
    words.extend(more);
    place.good(&words)
}

#[test]
fn a_kept_pool_comes_back_with_all_that_it_held() {
    let place = Place::new();
    assert!(up(&place, &["--stripe-size", "64K"]).contains("'weir up k' brings it back"));
    let bytes = noise(3_000_000);
    place.write("tree/large", &bytes);
    place.write("tree/below/small", "small");
    std::os::unix::fs::symlink("below/small", place.path("tree/link")).expect("linked");
    place.good(&["cp", "-r", "tree", "weir:/"]);
    place.good(&["cp", "tree/large", "weir:/gone"]);
    place.good(&["rm", "weir:/gone"]);
    let before = place.good(&["ls", "-l", "weir:/tree"]);

    assert!(place.good(&["down", "k"]).contains("brings it back"));
    assert!(place.servers().is_empty());
    assert_eq!(place.json(&["status", "--json"])["pools"][0]["state"], "down");
    place.bad(&["ls", "--pool", "k", "weir:/"], 1, &["it is down", "weir up k"]);
    assert!(place.good(&["down", "k"]).contains("was down already"));

    assert!(place.good(&["up", "k"]).contains("pool k is back: 2 servers"));
    assert_eq!(place.good(&["ls", "-l", "weir:/tree"]), before);
    place.good(&["cp", "-r", "weir:/tree", "back"]);
    assert!(std::fs::read(place.path("back/large")).expect("copied") == bytes);
    assert_eq!(std::fs::read(place.path("back/link")).expect("followed"), b"small");
    place.bad(&["stat", "weir:/gone"], 1, &["gone"]);
    place.bad(&["up", "k"], 1, &["up already"]);

    assert!(place.good(&["down", "--destroy", "k"]).contains("are gone"));
    assert_eq!(std::fs::read_dir(place.path("disk")).expect("there").count(), 0);
    place.nothing_left();
}

#[test]
fn missing_foreign_and_spoilt_disks_are_refused() {
    let place = Place::new();
    up(&place, &[]);
    place.write("file", noise(100_000));
    place.good(&["cp", "file", "weir:/"]);
    // Another pool must not take the same directory.
    let disk = place.path("disk").display().to_string();
    let more = ["up", "other", "--servers", "2", "--memory", "64M", "--kept", &disk];
    place.bad(&more, 69, &["target", "a kept pool has this directory"]);
    place.good(&["down", "k"]);
    place.bad(&["up", "k", "--kept", &disk], 2, &["--destroy"]);

    let one = place.path("disk/server-1");
    let away = place.path("away");
    std::fs::rename(&one, &away).expect("moved");
    place.bad(&["up", "k"], 69, &["server-1/target", "missing, empty or another one"]);
    // One server's disk in place of the other's.
    std::fs::create_dir(&one).expect("made");
    for name in ["target", "data", "blocks"] {
        std::fs::copy(place.path("disk/server-0").join(name), one.join(name)).expect("copied");
    }
    place.bad(&["up", "k"], 1, &["not those that this server of the pool had"]);
    std::fs::remove_dir_all(&one).expect("removed");
    std::fs::rename(&away, &one).expect("moved back");

    // A byte of what was synced first is another.
    let bad_scrub = |words: &[&str]| {
        let scrubbed = place.weir(&["scrub", "k"]);
        assert_eq!(scrubbed.status, 1, "{}{}", scrubbed.stdout, scrubbed.stderr);
        for word in words {
            assert!(scrubbed.stdout.contains(word), "{word}: {}", scrubbed.stdout);
        }
    };
    let names = place.path("disk/server-0/metadata");
    let whole = std::fs::read(&names).expect("read");
    let first = whole.windows(4).position(|bytes| bytes == b"wfrm").expect("a frame");
    spoil_at(&names, first as u64 + 60);
    bad_scrub(&["server-0/metadata: "]);
    place.bad(&["up", "k"], 69, &["server-0/metadata", "checksum", "does not come up"]);
    spoil_at(&names, first as u64 + 60);
    let scrubbed = place.json(&["scrub", "k", "--json"]);
    assert!(scrubbed["servers"][0]["bytes"].as_u64() > Some(1000), "{scrubbed}");
    assert_eq!(scrubbed["servers"][1]["errors"], serde_json::json!([]));
    // A bit of the data.
    let blocks = place.path("disk/server-0/blocks");
    let spoil = || spoil_at(&blocks, (1 << 20) + 20_000);
    spoil();
    bad_scrub(&["server-0/blocks: ", "inode ", "object offset ", "wrong checksum"]);
    // The pool comes up; who reads those bytes is told.
    place.good(&["up", "k"]);
    place.bad(&["cp", "weir:/file", "again"], 1, &["wrong checksum on disk"]);
    place.good(&["down", "k"]);
    spoil();
    place.good(&["up", "k"]);
    assert!(place.good(&["scrub", "k"]).contains("0 errors"));
    // What goes bad while the pool is up is found, too, and counted.
    spoil();
    bad_scrub(&["inode ", "object offset ", "wrong checksum"]);
    let status = place.json(&["status", "k", "--json"]);
    assert_eq!(status["pools"][0]["servers"][0]["targets"][0]["scrub_errors"], 1, "{status}");
    spoil();
    // So is what goes bad in a journal, up to what was synced last, which nothing that follows shows.
    let found = place.json(&["scrub", "k", "--json"]);
    assert!(found["servers"][0]["records"].as_u64() > Some(1), "{found}");
    let whole = std::fs::read(&names).expect("read");
    let last = whole.windows(4).rposition(|bytes| bytes == b"wfrm").expect("a frame");
    spoil_at(&names, last as u64 + 60);
    bad_scrub(&["server-0/metadata", "frame ", "checksum", "written anew"]);
    // What it said was in memory: it is written anew, and the pool comes back.
    let until = Instant::now() + Duration::from_secs(20);
    while place.weir(&["scrub", "k"]).status != 0 {
        assert!(Instant::now() < until, "the journal stays as it was");
        std::thread::sleep(Duration::from_millis(100));
    }
    place.good(&["down", "k"]);
    place.good(&["up", "k"]);
    place.good(&["cp", "weir:/file", "again"]);
    assert!(std::fs::read(place.path("again")).expect("read") == noise(100_000));
    place.good(&["down", "--destroy", "k"]);
    place.nothing_left();
}

/// A bit of a file is another; the second time it is as it was.
fn spoil_at(path: &Path, offset: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("read");
    file.write_all_at(&[byte[0] ^ 4], offset).expect("written");
    file.sync_all().expect("synced");
}

fn at(name: &str) -> At {
    At::new(Ino::ROOT, name.as_bytes())
}

#[test]
fn a_pool_is_verified_while_it_is_written_to() {
    let place = Place::new();
    up(&place, &["--stripe-size", "64K"]);
    let pool = connect(&place);
    let who = me();
    let mode = OpenMode { read: true, write: true, truncate: false };
    let create = pool.fs().create(&who, at("busy"), 0o600, false, mode, LayoutWish::default());
    let file = pool.run(create).expect("made").0;
    // More than memory holds, and blocks that are given up and used again all the time.
    let bytes = noise(96 << 20);
    pool.run(file.write_at(&bytes, 0)).expect("written");
    pool.run(file.sync()).expect("synced");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut turns = 0;
            while !stop.load(Ordering::Relaxed) {
                let offset = (turns * 7 % 90) << 20;
                let part = &bytes[turns % 1000..][..4 << 20];
                pool.run(file.write_at(part, offset as u64)).expect("written");
                pool.run(file.sync()).expect("synced");
                turns += 1;
            }
            turns
        });
        let mut chunks = 0;
        for _ in 0..4 {
            let found = place.json(&["scrub", "k", "--rate", "4G", "--json"]);
            for server in found["servers"].as_array().expect("servers") {
                assert_eq!(server["errors"], serde_json::json!([]), "{found}");
                chunks += server["chunks"].as_u64().expect("a number");
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().expect("the writer") > 4, "nothing was written meanwhile");
        assert!(chunks >= 4 * (90 << 20) / (64 << 10), "{chunks} chunks");
    });
    // Slowly is slowly.
    let begin = Instant::now();
    place.good(&["scrub", "k", "--rate", "20M"]);
    assert!(begin.elapsed() > Duration::from_secs(2), "{:?}", begin.elapsed());
    drop(pool);
    place.good(&["down", "--destroy", "k"]);
    place.nothing_left();
}

const RECORD: usize = 40_000;
const RECORDS: usize = 12;

/// What a writer knows of a file: of each record the version that was synced, and the last begun.
#[derive(Clone, Default)]
struct Known {
    /// Whether the name is there for sure, gone for sure, or nobody can say.
    there: Option<bool>,
    records: BTreeMap<usize, (u32, u32)>,
}

/// Every byte of a record says its version.
fn record(version: u32, index: usize) -> Vec<u8> {
    let word = (version << 8 | index as u32).to_le_bytes();
    word.iter().copied().cycle().take(RECORD).collect()
}

/// Writes, syncs, makes, renames and removes files until the pool is gone; what it knows then.
fn writer(
    pool: &Pool,
    who: usize,
    round: u32,
    stop: &AtomicBool,
    known: &mut BTreeMap<String, Known>,
) {
    let who_am_i = me();
    let mut step = round * 100_000;
    let mut work = || -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            step += 1;
            let name = format!("w{who}-{}", step % 5);
            let entry = known.entry(name.clone()).or_default();
            let open = OpenMode { read: true, write: true, truncate: false };
            entry.there = entry.there.filter(|there| *there);
            let create =
                pool.fs().create(&who_am_i, at(&name), 0o600, false, open, LayoutWish::default());
            let (file, ..) = pool.run(create)?;
            entry.there = Some(true);
            for turn in 0..4 {
                let index = (step as usize * 7 + turn * 5) % RECORDS;
                let slot = entry.records.entry(index).or_default();
                slot.1 = step;
                pool.run(file.write_at(&record(step, index), (index * RECORD) as u64))?;
            }
            if !step.is_multiple_of(3) {
                pool.run(file.sync())?;
                entry.records.values_mut().for_each(|slot| slot.0 = slot.1);
            }
            pool.run(file.close())?;
            if step.is_multiple_of(11) {
                entry.there = None;
                pool.run(pool.fs().unlink(&who_am_i, at(&name)))?;
                *entry = Known { there: Some(false), ..Known::default() };
            }
        }
        Ok(())
    };
    match work() {
        Ok(()) => {}
        Err(error) => assert!(
            matches!(error.code, Code::ServerLost | Code::Lost | Code::TimedOut | Code::Stale),
            "an unexpected end: {error}"
        ),
    }
}

fn verify(pool: &Pool, known: &mut BTreeMap<String, Known>) {
    for (name, known) in known {
        let found = match pool.run(pool.fs().lookup(&me(), at(name), true)) {
            Ok(found) => found,
            Err(error) if error.code == Code::NotFound => {
                assert_ne!(known.there, Some(true), "{name} was made, and is gone");
                *known = Known { there: Some(false), ..Known::default() };
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert_ne!(known.there, Some(false), "{name} was removed, and is back");
        let (file, ..) = pool.run(pool.fs().open(&me(), found.ino, OpenMode::READ)).expect("opens");
        for (&index, slot) in &mut known.records {
            let mut bytes = vec![0; RECORD];
            let length =
                pool.run(file.read_at(&mut bytes, (index * RECORD) as u64)).expect("reads");
            // Of what was not synced any part may be there, in pieces that are written as one.
            bytes[length..].fill(0);
            for (at, word) in bytes.chunks_exact(4).enumerate() {
                let word = u32::from_le_bytes(word.try_into().expect("4 bytes"));
                let version = word >> 8;
                let fits = version >= slot.0 && version <= slot.1;
                let whose = word == 0 || word & 0xff == index as u32;
                assert!(
                    fits && whose,
                    "{name} record {index} word {at}: version {version} of {}, synced {}, written {}",
                    word & 0xff,
                    slot.0,
                    slot.1
                );
            }
            // From here on what was found counts: it stays, and what was lost does not come back.
            let versions = || {
                bytes
                    .chunks_exact(4)
                    .map(|word| u32::from_le_bytes(word.try_into().expect("4")) >> 8)
            };
            *slot = (versions().min().unwrap_or(0), versions().max().unwrap_or(0));
        }
        pool.run(file.close()).expect("closes");
        known.there = Some(true);
    }
}

/// What was written once and synced stays as it is.
fn verify_ballast(pool: &Pool, ballast: &[u8]) {
    let found = pool.run(pool.fs().lookup(&me(), at("ballast"), true)).expect("there");
    let (file, ..) = pool.run(pool.fs().open(&me(), found.ino, OpenMode::READ)).expect("opens");
    let mut bytes = vec![0; 4 << 20];
    for (index, part) in ballast.chunks(bytes.len()).enumerate() {
        let offset = (index * bytes.len()) as u64;
        let length = pool.run(file.read_at(&mut bytes, offset)).expect("reads");
        assert!(bytes[..length] == *part, "ballast at {offset}");
    }
    pool.run(file.close()).expect("closes");
}

#[test]
fn servers_killed_under_a_verifying_writer_lose_nothing_that_was_synced() {
    let place = Place::new();
    up(&place, &["--stripe-size", "64K", "--silence", "1s", "--heartbeat", "200ms"]);
    // Three times what memory holds.
    let ballast = noise(192 << 20);
    place.write("ballast", &ballast);
    place.good(&["cp", "ballast", "weir:/"]);
    let rounds = std::env::var("WEIR_KEPT_ROUNDS").ok().and_then(|it| it.parse().ok());
    let mut known: Vec<BTreeMap<String, Known>> = vec![BTreeMap::new(); 2];
    for round in 1..=rounds.unwrap_or(ROUNDS) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (who, known) in known.iter_mut().enumerate() {
                let (place, stop) = (&place, &stop);
                scope.spawn(move || writer(&connect(place), who, round, stop, known));
            }
            std::thread::sleep(Duration::from_millis(400 + u64::from(round) * 217 % 500));
            // All at once, and whoever keeps them.
            for (pid, line) in place.processes() {
                if line.contains(" server --tether") || line.contains(" keep-pool") {
                    signal(pid, libc::SIGKILL);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        let until = Instant::now() + Duration::from_secs(10);
        while !place.servers().is_empty() {
            assert!(Instant::now() < until, "killed servers are still there");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(place.good(&["up", "k"]).contains("is back"));
        let pool = connect(&place);
        verify_ballast(&pool, &ballast);
        known.iter_mut().for_each(|known| verify(&pool, known));
        let synced: usize =
            known.iter().flat_map(BTreeMap::values).map(|it| it.records.len()).sum();
        assert!(synced > 0, "the writers got somewhere");
    }
    place.good(&["down", "--destroy", "k"]);
    place.nothing_left();
}
