//! The store of kept pools: the map in memory, and a journal from which it comes back.
//!
//! A commit is answered when it is in the map and its record on its way; it is durable when the
//! journal says so ([`MetaStore::sync`]). Others may see it earlier: what must not happen before it
//! is durable (freeing the objects of a file that is gone, say) is held back by the service.
//!
//! A record: the commit's number (8 bytes), how many puts (4), each a key and a value with their
//! lengths in front (4 each), how many deletes (4), each a key with its length. Little-endian.

use super::memory::{MemoryStore, Pair};
use super::store::{Answer, Batch, Item, MetaStore, Outcome, Usage, Versioned};
use crate::error::{Code, Error, Result};
use crate::journal::{self, Journal, Medium, Options, Sink, Source, Writer};
use std::sync::Arc;

/// Entries in one record of a snapshot: bytes.
const PAGE_BYTES: usize = 64 * 1024;
/// A record without its entries: bytes.
const RECORD_HEAD_BYTES: usize = 16;

/// A [`MetaStore`] that survives its process, and a power cut.
pub struct JournaledStore {
    map: Arc<MemoryStore>,
    journal: Arc<Journal>,
}

impl JournaledStore {
    /// Makes an empty one of at most `limit` bytes, and what writes its journal.
    ///
    /// # Errors
    /// As [`journal::create`].
    pub fn create<M: Medium>(
        medium: M,
        options: &Options,
        limit: u64,
    ) -> Result<(JournaledStore, Writer<M>)> {
        let writer = journal::create(medium, options)?;
        let map = Arc::new(MemoryStore::new(limit));
        Ok((JournaledStore { map, journal: writer.journal().clone() }, writer))
    }

    /// Comes back to one; `progress` is told of how many bytes how many have been read.
    ///
    /// # Errors
    /// As [`journal::open`].
    pub fn open<M: Medium>(
        medium: M,
        options: &Options,
        limit: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(JournaledStore, Writer<M>)> {
        let map = Arc::new(MemoryStore::new(limit));
        let mut restore = Restore { map: &map, progress };
        let writer = journal::open(medium, options, &mut restore)?;
        Ok((JournaledStore { map, journal: writer.journal().clone() }, writer))
    }

    /// What makes the sources of checkpoints, for [`Writer::pump`].
    pub fn sources(&self) -> impl Fn() -> Box<dyn Source> + Send + use<> {
        let map = self.map.clone();
        let bytes = PAGE_BYTES.min(self.journal.record_bytes_max() - RECORD_HEAD_BYTES);
        move || Box::new(Pages { map: map.clone(), bytes, next: Some(Vec::new()) })
    }

    /// Its journal.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    fn commit_now(&self, batch: Batch) -> Result<Outcome> {
        let adds = batch.conditions.iter().any(|(_, version)| version.is_none());
        if adds && !batch.reserve && self.journal.is_tight() {
            let cause = "the file system that holds the journal of names is full";
            return Err(Error::because(Code::NoMetadataSpace, cause));
        }
        self.map.commit_logged(batch, |commit, batch| {
            self.journal.append(&encode(commit, &batch.puts, &batch.deletes))
        })
    }
}

impl MetaStore for JournaledStore {
    fn get<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Option<Versioned>> {
        self.map.get(key)
    }

    fn range<'a>(&'a self, start: &'a [u8], end: &'a [u8], limit: usize) -> Answer<'a, Vec<Item>> {
        self.map.range(start, end, limit)
    }

    fn commit(&self, batch: Batch) -> Answer<'_, Outcome> {
        if self.journal.has_room() {
            return Answer::ready(self.commit_now(batch));
        }
        Answer::Later(Box::pin(async move {
            self.journal.room().await?;
            self.commit_now(batch)
        }))
    }

    fn moment(&self) -> Option<u64> {
        self.map.moment()
    }

    fn sync(&self) -> Answer<'_, ()> {
        Answer::Later(Box::pin(self.journal.synced()))
    }

    fn usage(&self) -> Usage {
        self.map.usage()
    }
}

fn encode(commit: u64, puts: &[(Vec<u8>, Vec<u8>)], deletes: &[Vec<u8>]) -> Vec<u8> {
    let mut record = Vec::with_capacity(128);
    let put = |record: &mut Vec<u8>, bytes: &[u8]| {
        record.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        record.extend_from_slice(bytes);
    };
    record.extend_from_slice(&commit.to_le_bytes());
    record.extend_from_slice(&(puts.len() as u32).to_le_bytes());
    for (key, value) in puts {
        put(&mut record, key);
        put(&mut record, value);
    }
    record.extend_from_slice(&(deletes.len() as u32).to_le_bytes());
    for key in deletes {
        put(&mut record, key);
    }
    record
}

struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length).ok_or_else(|| {
            Error::because(Code::Damaged, "a record of the metadata journal does not parse")
        })?;
        self.0 = rest;
        Ok(head)
    }

    fn count(&mut self) -> Result<usize> {
        let bytes = self.take(4)?.try_into().expect("4 bytes");
        Ok(u32::from_le_bytes(bytes) as usize)
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        let length = self.count()?;
        Ok(self.take(length)?.to_vec())
    }
}

struct Restore<'a> {
    map: &'a MemoryStore,
    progress: &'a mut dyn FnMut(u64, u64),
}

/// A commit's number, puts and deletes.
type Record = (u64, Vec<Pair>, Vec<Vec<u8>>);

fn parse(record: &[u8]) -> Result<Record> {
    let mut parser = Parser(record);
    let commit = u64::from_le_bytes(parser.take(8)?.try_into().expect("8 bytes"));
    let mut puts = Vec::new();
    for _ in 0..parser.count()? {
        puts.push((parser.bytes()?, parser.bytes()?));
    }
    let mut deletes = Vec::new();
    for _ in 0..parser.count()? {
        deletes.push(parser.bytes()?);
    }
    Ok((commit, puts, deletes))
}

/// Whether a record of the metadata's journal makes sense.
///
/// # Errors
/// If it does not.
pub fn check_record(record: &[u8]) -> Result<()> {
    parse(record).map(drop)
}

impl Sink for Restore<'_> {
    fn record(&mut self, record: &[u8]) -> Result<()> {
        let (commit, puts, deletes) = parse(record)?;
        self.map.restore(commit, puts, &deletes);
        Ok(())
    }

    fn progress(&mut self, done: u64, all: u64) {
        (self.progress)(done, all);
    }
}

/// The map, page by page.
struct Pages {
    map: Arc<MemoryStore>,
    bytes: usize,
    next: Option<Vec<u8>>,
}

impl Source for Pages {
    fn next(&mut self) -> Option<Vec<u8>> {
        let start = self.next.take()?;
        let (commits, entries) = self.map.page(&start, self.bytes);
        let (last, _) = entries.last()?;
        self.next = Some([last, &[0][..]].concat());
        Some(encode(commits, &entries, &[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::twin::Recorder;
    use crate::service::meta::conformance::store_conformance;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const LIMIT: u64 = 1 << 20;

    fn options() -> Options {
        let small = Options::new(*b"names and inodes");
        Options { segment_bytes: 16 << 10, log_bytes_min: 32 << 10, step_bytes: 4 << 10, ..small }
    }

    /// Nothing below waits for more than the writer, which is called where it must be.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn all(store: &JournaledStore) -> Vec<Item> {
        now(store.range(&[], &[255; 8], usize::MAX)).expect("reads")
    }

    #[test]
    fn conforms() {
        now(store_conformance(|limit| {
            JournaledStore::create(Recorder::default(), &options(), limit).expect("made").0
        }));
    }

    #[test]
    fn a_journal_that_is_tight_takes_no_more_names_and_lets_them_go() {
        let disk = Recorder::default();
        let (store, mut writer) =
            JournaledStore::create(disk.clone(), &options(), LIMIT).expect("made");
        let sources = store.sources();
        let add = |key: &[u8]| Batch {
            conditions: vec![(key.to_vec(), None)],
            puts: vec![(key.to_vec(), b"value".to_vec())],
            ..Batch::default()
        };
        now(store.commit(add(b"a"))).expect("added");
        disk.set_tight(true);
        writer.pump(&sources).expect("written");
        let error = now(store.commit(add(b"b"))).expect_err("refused");
        assert_eq!(error.code, Code::NoMetadataSpace);
        let puts = vec![(b"a".to_vec(), b"another".to_vec())];
        now(store.commit(Batch { puts, ..Batch::default() })).expect("changed");
        let deletes = vec![b"a".to_vec()];
        now(store.commit(Batch { deletes, ..Batch::default() })).expect("removed");
        disk.set_tight(false);
        writer.pump(&sources).expect("written");
        now(store.commit(add(b"b"))).expect("added");
    }

    /// Many batches over few keys; then whatever a crash leaves is a state between the last that was
    /// synced and the last there was: a batch whole or not at all.
    #[test]
    fn batches_are_whole_after_any_crash() {
        let disk = Recorder::default();
        let (store, mut writer) =
            JournaledStore::create(disk.clone(), &options(), LIMIT).expect("made");
        let sources = store.sources();
        let mut states = vec![Vec::new()];
        let mut safe = vec![(disk.deeds(), 0)];
        let mut seed = 5u32;
        let mut random = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 16
        };
        let bare = |store: &JournaledStore| -> Vec<_> {
            all(store).into_iter().map(|item| (item.key, item.value)).collect()
        };
        for _ in 0..120 {
            for _ in 0..random() % 4 {
                let first = (random() % 40) as u8;
                let value = vec![random() as u8; (random() % 900) as usize];
                let batch = Batch {
                    puts: vec![(vec![first, 0], value.clone()), (vec![first, 1], value)],
                    deletes: vec![vec![(first + 1) % 40, 0], vec![(first + 1) % 40, 1]],
                    ..Batch::default()
                };
                assert_eq!(now(store.commit(batch)), Ok(Outcome::Done));
                states.push(bare(&store));
            }
            writer.pump(&sources).expect("no faults here");
            now(store.sync()).expect("synced");
            safe.push((disk.deeds(), states.len() - 1));
        }
        let mut images = 0;
        let mut seed = 9u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33
        };
        disk.each_image(safe[0].0, 3, &mut random, &mut |image| {
            images += 1;
            let deeds = image.deeds;
            let disk = Recorder::new(image.first());
            let (found, _) =
                JournaledStore::open(disk, &options(), LIMIT, &mut |_, _| ()).expect("comes back");
            let found = bare(&found);
            let from = safe.iter().rev().find(|(at, _)| *at <= deeds).map_or(0, |it| it.1);
            assert!(states[from..].contains(&found), "after deed {}", deeds);
        });
        assert!(images > 500, "only {images} images");
    }

    #[test]
    fn versions_and_usage_go_on() {
        let disk = Recorder::default();
        let (store, mut writer) =
            JournaledStore::create(disk.clone(), &options(), LIMIT).expect("made");
        let put =
            |value: u8| Batch { puts: vec![(b"key".to_vec(), vec![value])], ..Batch::default() };
        for value in 0..5 {
            assert_eq!(now(store.commit(put(value))), Ok(Outcome::Done));
        }
        writer.checkpoint(store.sources()).expect("written");
        assert_eq!(now(store.commit(put(5))), Ok(Outcome::Done));
        writer.flush().expect("written");
        let (again, _) =
            JournaledStore::open(Recorder::new(disk.bytes()), &options(), LIMIT, &mut |_, _| ())
                .expect("comes back");
        assert_eq!(again.usage(), store.usage());
        let before = now(again.get(b"key")).expect("reads").expect("there");
        assert_eq!(before.value, [5]);
        let stale = Batch { conditions: vec![(b"key".to_vec(), Some(before.version))], ..put(6) };
        assert_eq!(now(again.commit(stale.clone())), Ok(Outcome::Done));
        assert_eq!(now(again.commit(stale)), Ok(Outcome::Conflict), "versions go on");
    }

    #[test]
    fn whoever_commits_more_than_the_disk_takes_waits() {
        let (store, mut writer) =
            JournaledStore::create(Recorder::default(), &Options::new([1; 16]), 1 << 30)
                .expect("made");
        let value = vec![1; 1 << 20];
        let put = |i: u8| Batch { puts: vec![(vec![i], value.clone())], ..Batch::default() };
        for i in 0..8 {
            assert_eq!(now(store.commit(put(i))), Ok(Outcome::Done));
        }
        let mut waits = pin!(store.commit(put(99)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        writer.flush().expect("written");
        assert_eq!(waits.as_mut().poll(&mut context), Poll::Ready(Ok(Outcome::Done)));
    }
}
