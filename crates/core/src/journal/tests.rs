//! The journal against a model: a map of numbers, whose records say what is.

use super::twin::{Image, Recorder};
use super::*;
use std::collections::BTreeMap;

const IDENTITY: Identity = *b"a test's journal";

fn options() -> Options {
    Options {
        identity: IDENTITY,
        segment_bytes: 16 << 10,
        log_bytes_min: 24 << 10,
        step_bytes: 6 << 10,
    }
}

fn generator(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        // SplitMix64 by its published constants.
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

type Map = BTreeMap<u32, Vec<u8>>;

#[derive(Clone, Default)]
struct Owner(Arc<Mutex<Map>>);

fn encode(key: u32, value: &[u8]) -> Vec<u8> {
    [&key.to_le_bytes()[..], value].concat()
}

impl Owner {
    fn put(&self, journal: &Journal, key: u32, value: Vec<u8>) -> Result<()> {
        let mut map = self.0.lock().expect("unpoisoned");
        journal.append(&encode(key, &value))?;
        map.insert(key, value);
        Ok(())
    }

    fn source(&self) -> Box<dyn Source> {
        struct Walk(Owner, Option<u32>);
        impl Source for Walk {
            fn next(&mut self) -> Option<Vec<u8>> {
                let map = self.0.0.lock().expect("unpoisoned");
                let (&key, value) = map.range(self.1?..).next()?;
                self.1 = key.checked_add(1);
                Some(encode(key, value))
            }
        }
        Box::new(Walk(self.clone(), Some(0)))
    }
}

impl Sink for Map {
    fn record(&mut self, record: &[u8]) -> Result<()> {
        let (key, value) = record.split_first_chunk().expect("a record has its key");
        self.insert(u32::from_le_bytes(*key), value.to_vec());
        Ok(())
    }
}

fn reopen(bytes: Vec<u8>) -> Result<(Map, Writer<Recorder>)> {
    let mut map = Map::new();
    let writer = open(Recorder::new(bytes), &options(), &mut map)?;
    Ok((map, writer))
}

fn is_durable(journal: &Arc<Journal>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(Pin::new(&mut journal.synced()).poll(&mut context), Poll::Ready(Ok(())))
}

/// Every state the map went through, and at which deed which of them was safe.
struct History {
    states: Vec<Map>,
    safe: Vec<(usize, usize)>,
}

impl History {
    /// What comes back must be one of the states, and none older than what was safe.
    fn check(&self, image: Image) {
        let (deeds, bytes) = (image.deeds, image.first());
        let safe = self.safe.iter().rev().find(|(at, _)| *at <= deeds).map_or(0, |(_, s)| *s);
        let (found, mut writer) = reopen(bytes).unwrap_or_else(|error| panic!("{deeds}: {error}"));
        let which = self.states.iter().skip(safe).position(|state| *state == found);
        assert!(which.is_some(), "after deed {deeds}: neither state {safe} nor a later one");
        // And it goes on from there: what comes next is safe too, whatever a crash left behind.
        let owner = Owner(Arc::new(Mutex::new(found.clone())));
        owner.put(&writer.journal().clone(), 7, b"after the crash".to_vec()).expect("goes on");
        writer.flush().expect("writes");
        let (again, _) = reopen(writer.medium().bytes()).expect("opens again");
        // Not `assert_eq`: nobody wants to see the maps.
        assert!(again == *owner.0.lock().expect("unpoisoned"), "after deed {deeds}, gone on");
    }
}

/// A few dozen changes, synced now and then, with checkpoints among them.
fn workload(seed: u64, disk: &Recorder, mut bytes: usize) -> Result<History> {
    let mut random = generator(seed);
    let mut writer = create(disk.clone(), &options())?;
    let journal = writer.journal().clone();
    let owner = Owner::default();
    let mut history = History { states: vec![Map::new()], safe: vec![(disk.deeds(), 0)] };
    while bytes > 0 {
        for _ in 0..random() % 6 {
            let length = (random() % if random().is_multiple_of(8) { 9000 } else { 600 }) as usize;
            let value = vec![random() as u8; length];
            owner.put(&journal, (random() % 24) as u32, value)?;
            bytes = bytes.saturating_sub(length + 40);
            history.states.push(owner.0.lock().expect("unpoisoned").clone());
        }
        writer.pump(|| owner.source())?;
        assert!(is_durable(&journal));
        history.safe.push((disk.deeds(), history.states.len() - 1));
    }
    Ok(history)
}

#[test]
fn what_was_synced_is_there_whatever_a_crash_leaves() {
    let mut images = 0;
    for seed in 0..6 {
        let disk = Recorder::default();
        let history = workload(seed, &disk, 150_000).expect("no faults here");
        let mut random = generator(!seed);
        disk.each_image(history.safe[0].0, 6, &mut random, &mut |image| {
            images += 1;
            history.check(image);
        });
    }
    assert!(images > 1000, "only {images} images");
}

#[test]
fn a_crash_after_a_crash_is_no_worse() {
    for seed in 0..4 {
        let first = Recorder::default();
        let history = workload(seed, &first, 60_000).expect("no faults here");
        let mut random = generator(seed ^ 0x5555);
        let mut images = Vec::new();
        first.each_image(history.safe[0].0, 2, &mut random, &mut |image| images.push(image));
        for image in images.into_iter().step_by(17) {
            let Ok((state, _)) = reopen(image.clone().first()) else { panic!("opens") };
            // Its recorder knows the deeds of coming back and of what is done then.
            let second = Recorder::new(image.first());
            let mut map = Map::new();
            let mut writer = open(second.clone(), &options(), &mut map).expect("opens");
            let owner = Owner(Arc::new(Mutex::new(map)));
            let mut history = History { states: vec![state], safe: vec![(0, 0)] };
            for round in 0..12 {
                owner.put(&writer.journal().clone(), round, vec![9; 2000]).expect("appends");
                history.states.push(owner.0.lock().expect("unpoisoned").clone());
                writer.pump(|| owner.source()).expect("writes");
                history.safe.push((second.deeds(), history.states.len() - 1));
            }
            second.each_image(0, 2, &mut random, &mut |image| history.check(image));
        }
    }
}

#[test]
fn whichever_operation_fails_nothing_safe_is_lost() {
    let whole = Recorder::default();
    workload(3, &whole, 100_000).expect("no faults here");
    for n in 0..whole.operations() {
        let disk = Recorder::default();
        disk.fail_at(n);
        let mut random = generator(3);
        let Ok(mut writer) = create(disk.clone(), &options()) else { continue };
        let (journal, owner) = (writer.journal().clone(), Owner::default());
        let mut history = History { states: vec![Map::new()], safe: vec![(disk.deeds(), 0)] };
        let failed = loop {
            for _ in 0..random() % 6 {
                let value = vec![random() as u8; (random() % 3000) as usize];
                owner.put(&journal, (random() % 24) as u32, value).expect("not failed yet");
                history.states.push(owner.0.lock().expect("unpoisoned").clone());
            }
            match writer.pump(|| owner.source()) {
                Ok(_) => history.safe.push((disk.deeds(), history.states.len() - 1)),
                Err(error) => break error,
            }
        };
        assert_eq!(failed.code, Code::Disk);
        // Whoever waits is told, and nobody is told that something is safe any more.
        assert!(journal.append(b"more").is_err() && journal.failure().is_some());
        assert!(writer.pump(|| owner.source()).is_err());
        let from = history.safe.last().expect("one").0;
        disk.each_image(from, 4, &mut random, &mut |image| history.check(image));
    }
}

#[test]
fn space_is_bounded_and_used_again() {
    let disk = Recorder::default();
    let mut writer = create(disk.clone(), &options()).expect("made");
    let (journal, owner) = (writer.journal().clone(), Owner::default());
    for round in 0..3000u32 {
        owner.put(&journal, round % 20, vec![round as u8; 500]).expect("appends");
        while writer.pump(|| owner.source()).expect("writes") {}
    }
    // 12 MB of frames went through; the map takes 10 KB.
    assert!(writer.bytes() < 160 << 10, "{} bytes", writer.bytes());
    assert!(reopen(disk.bytes()).expect("opens").0 == *owner.0.lock().expect("unpoisoned"));
}

#[test]
fn a_spoilt_byte_in_what_was_synced_is_never_passed_over() {
    let disk = Recorder::default();
    let history = workload(1, &disk, 120_000).expect("no faults here");
    let state = history.states.last().expect("one");
    let bytes = disk.bytes();
    let mut refused = 0;
    for offset in (0..bytes.len()).step_by(1021) {
        let mut spoilt = bytes.clone();
        spoilt[offset] ^= 0x10;
        match reopen(spoilt) {
            Err(error) => {
                assert_eq!(error.code, Code::Damaged, "{error}");
                refused += 1;
            }
            // In what is free, or padding. Or the last flush: as good as never synced.
            Ok((found, _)) => {
                let all = history.states.len() - 1;
                let before = history.safe.iter().rev().find(|(_, safe)| *safe < all);
                let recent = &history.states[before.expect("several").1..];
                assert!(found == *state || recent.contains(&found), "byte {offset}: wrong state");
            }
        }
    }
    assert!(refused > 10, "only {refused} noticed");
}

fn check_at(bytes: Vec<u8>, mark: Mark) -> Result<()> {
    check_until(Recorder::new(bytes), &options(), mark, &mut Map::new())
}

#[test]
fn a_journal_is_verified_while_it_is_written() {
    let mut random = generator(5);
    let disk = Recorder::default();
    let mut writer = create(disk.clone(), &options()).expect("made");
    let (journal, owner) = (writer.journal().clone(), Owner::default());
    let (mut superblocks, mut kept_up) = (0, 0);
    for _ in 0..300 {
        let before = journal.mark();
        for _ in 0..random() % 6 {
            let value = vec![random() as u8; (random() % 3000) as usize];
            owner.put(&journal, (random() % 24) as u32, value).expect("appends");
        }
        let image = disk.bytes();
        writer.pump(|| owner.source()).expect("writes");
        check_at(disk.bytes(), journal.mark()).expect("all of it is there");
        // Half of what was being written, seen by somebody who asked before.
        let (written, mark) = (disk.bytes(), journal.mark());
        let torn = written.iter().enumerate().map(|(at, byte)| {
            if at % (2 * BLOCK_BYTES) < BLOCK_BYTES { *image.get(at).unwrap_or(&0) } else { *byte }
        });
        if mark.is_of_superblock(before) {
            check_at(torn.collect(), before).expect("what was safe is there still");
            kept_up += 1;
        } else {
            superblocks += 1;
        }
    }
    assert!(superblocks > 5 && kept_up > 100, "{superblocks}, {kept_up}");
    // A spoilt byte is seen wherever coming back would stumble over it, and in the last flush too.
    owner.put(&journal, 3, vec![9; 10_000]).expect("appends");
    writer.flush().expect("writes");
    let (bytes, mark) = (disk.bytes(), journal.mark());
    let (mut refused, mut more) = (0, 0);
    for offset in (0..bytes.len()).step_by(509) {
        let mut spoilt = bytes.clone();
        spoilt[offset] ^= 0x10;
        let seen = check_at(spoilt.clone(), mark).map_err(|error| {
            assert_eq!(error.code, Code::Damaged, "{error}");
        });
        match reopen(spoilt) {
            Err(_) => {
                assert!(seen.is_err(), "byte {offset}");
                refused += 1;
            }
            Ok(_) => more += usize::from(seen.is_err()),
        }
    }
    assert!(refused > 10 && more > 10_000 / 509 / 2, "{refused}, {more}");
}

#[test]
fn other_formats_and_owners_are_refused() {
    let disk = Recorder::default();
    workload(2, &disk, 1000).expect("no faults here");
    let foreign = Options { identity: *b"somebody else's.", ..options() };
    let error = open(Recorder::new(disk.bytes()), &foreign, &mut Map::new()).err().expect("no");
    assert_eq!(error.code, Code::Invalid);
    for empty in [0, 100, 1 << 20] {
        let error = open(Recorder::new(vec![0; empty]), &foreign, &mut Map::new()).err();
        assert_eq!(error.expect("nothing there").code, Code::Damaged);
    }
}

#[test]
fn records_are_bounded() {
    let writer = create(Recorder::default(), &options()).expect("made");
    let journal = writer.journal();
    let most = journal.record_bytes_max();
    assert_eq!(journal.append(&vec![0; most + 1]).expect_err("too long").code, Code::TooMany);
    journal.append(&vec![0; most]).expect("fits");
}
