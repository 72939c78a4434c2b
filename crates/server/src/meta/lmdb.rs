//! Metadata in LMDB: what was committed survives the server.
//!
//! Reads are snapshots of the memory map and never wait for writers. Commits go to one thread, which
//! carries out all that wait in one transaction: one fsync for many callers. Each answer is given
//! when its transaction is durable.

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, MdbError, RoTxn, RwTxn, WithoutTls};
use std::future::Future;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use weir_core::error::{Code, Error, Result};
use weir_core::service::meta::store::{
    Answer, Batch, Item, MetaStore, Outcome, Usage, Versioned, footprint,
};

/// Commits that wait for the writer; more are answered "busy".
const WAITING_MAX: usize = 4096;
/// Commits carried out in one transaction.
const GROUP_MAX: usize = 512;
/// Threads that read at once.
const READERS_MAX: u32 = 1024;
/// Length of the version in front of each value: bytes.
const VERSION_BYTES: usize = 8;
/// Pages are not full, and changed ones are copied: the file may be so much larger than its entries.
const FILE_FACTOR: u64 = 4;
/// And so much in any case: bytes.
const FILE_BYTES_MIN: u64 = 64 << 20;

const COMMITS: &[u8] = b"commits";
const USED: &[u8] = b"used";

/// How to open an [`LmdbStore`].
#[derive(Clone, Debug)]
pub struct LmdbOptions {
    /// The directory of its files; made if it is not there.
    pub path: PathBuf,
    /// Bytes of entries that it may hold, as `weir_core::service::meta::store::footprint` counts.
    /// Its file is sparse and may become several times as large.
    pub limit: u64,
    /// Whether a commit is answered only when it is on the disk. Without, a crash of the machine may
    /// lose or damage what was stored; a crash of the server does not.
    pub sync: bool,
}

/// A [`MetaStore`] in LMDB.
pub struct LmdbStore {
    tables: Arc<Tables>,
    /// `None` once it is being dropped.
    queue: Option<SyncSender<Job>>,
    writer: Option<JoinHandle<()>>,
}

struct Tables {
    env: Env<WithoutTls>,
    /// Key → version, value.
    entries: Database<Bytes, Bytes>,
    /// Counts commits and bytes.
    about: Database<Bytes, Bytes>,
    /// As last committed.
    used: AtomicU64,
    limit: u64,
    path: PathBuf,
}

struct Job {
    batch: Batch,
    ticket: Arc<Ticket>,
}

/// Where a commit's outcome is left for who waits for it.
#[derive(Default)]
struct Ticket(Mutex<(Option<Result<Outcome>>, Option<Waker>)>);

impl Ticket {
    fn lock(&self) -> MutexGuard<'_, (Option<Result<Outcome>>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, result: Result<Outcome>) {
        let mut slot = self.lock();
        slot.0 = Some(result);
        let waker = slot.1.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A job that is dropped unanswered (the writer ended) is an error, not a wait without end.
impl Drop for Job {
    fn drop(&mut self) {
        let unanswered = self.ticket.lock().0.is_none() && Arc::strong_count(&self.ticket) > 1;
        if unanswered {
            self.ticket
                .answer(Err(Error::because(Code::Internal, "the metadata store was closed")));
        }
    }
}

struct Wait(Arc<Ticket>);

impl Future for Wait {
    type Output = Result<Outcome>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Outcome>> {
        let mut slot = self.0.lock();
        if let Some(result) = slot.0.clone() {
            return Poll::Ready(result);
        }
        slot.1 = Some(context.waker().clone());
        Poll::Pending
    }
}

fn trouble(path: &Path, error: heed::Error) -> Error {
    let code = match &error {
        heed::Error::Mdb(MdbError::MapFull) => Code::NoMetadataSpace,
        heed::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            Code::NoMetadataSpace
        }
        heed::Error::EnvAlreadyOpened => Code::InUse,
        _ => Code::Internal,
    };
    Error::because(code, format!("metadata store {}: {error}", path.display()))
}

impl LmdbStore {
    /// Opens a store, or makes an empty one.
    ///
    /// # Errors
    ///
    /// If the directory cannot be made or LMDB cannot use it; [`Code::InUse`] if this process has
    /// it open already.
    pub fn open(options: &LmdbOptions) -> Result<LmdbStore> {
        let path = &options.path;
        std::fs::create_dir_all(path).map_err(|error| trouble(path, heed::Error::Io(error)))?;
        let tables = Tables::open(options).map_err(|error| trouble(path, error))?;
        let tables = Arc::new(tables);
        let (queue, jobs) = sync_channel(WAITING_MAX);
        let writer = std::thread::Builder::new().name("weir-lmdb".into()).spawn({
            let tables = tables.clone();
            move || tables.write(&jobs)
        });
        let writer = writer.map_err(|error| trouble(path, heed::Error::Io(error)))?;
        Ok(LmdbStore { tables, queue: Some(queue), writer: Some(writer) })
    }
}

impl Drop for LmdbStore {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl MetaStore for LmdbStore {
    fn get<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Option<Versioned>> {
        Answer::ready(self.tables.get(key).map_err(|error| trouble(&self.tables.path, error)))
    }

    fn range<'a>(&'a self, start: &'a [u8], end: &'a [u8], limit: usize) -> Answer<'a, Vec<Item>> {
        let items = self.tables.range(start, end, limit);
        Answer::ready(items.map_err(|error| trouble(&self.tables.path, error)))
    }

    fn commit(&self, batch: Batch) -> Answer<'_, Outcome> {
        if let Err(error) = batch.check() {
            return Answer::ready(Err(error));
        }
        let ticket = Arc::new(Ticket::default());
        let job = Job { batch, ticket: ticket.clone() };
        let queue = self.queue.as_ref().expect("only dropping takes it");
        match queue.try_send(job) {
            Ok(()) => Answer::Later(Box::pin(Wait(ticket))),
            Err(TrySendError::Full(_)) => Answer::ready(Err(Error::because(
                Code::Busy,
                format!("{WAITING_MAX} changes of metadata wait for the disk"),
            ))),
            Err(TrySendError::Disconnected(_)) => Answer::ready(Err(Error::because(
                Code::Internal,
                format!("metadata store {}: its writer ended", self.tables.path.display()),
            ))),
        }
    }

    fn usage(&self) -> Usage {
        Usage { used: self.tables.used.load(Ordering::Relaxed), limit: self.tables.limit }
    }
}

impl Tables {
    fn open(options: &LmdbOptions) -> heed::Result<Tables> {
        let file_bytes = options.limit.saturating_mul(FILE_FACTOR).saturating_add(FILE_BYTES_MIN);
        // LMDB wants whole pages; 64 KiB are that everywhere.
        let file_bytes = file_bytes.next_multiple_of(64 * 1024).min(1 << 46);
        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(usize::try_from(file_bytes).unwrap_or(usize::MAX & !0xffff));
        open.max_dbs(2).max_readers(READERS_MAX);
        if !options.sync {
            // SAFETY: NO_SYNC gives up durability, as was asked for; nothing else changes.
            unsafe { open.flags(EnvFlags::NO_SYNC) };
        }
        // SAFETY: the file is LMDB's own, in a directory that nobody else is told of; nobody maps
        // or truncates it while it is open here.
        let env = unsafe { open.open(&options.path)? };
        let mut txn = env.write_txn()?;
        let entries = env.create_database(&mut txn, Some("entries"))?;
        let about = env.create_database(&mut txn, Some("about"))?;
        txn.commit()?;
        let mut tables = Tables {
            env,
            entries,
            about,
            used: AtomicU64::new(0),
            limit: options.limit,
            path: options.path.clone(),
        };
        let txn = tables.env.read_txn()?;
        let used = tables.count(&txn, USED)?;
        drop(txn);
        *tables.used.get_mut() = used;
        Ok(tables)
    }

    fn count(&self, txn: &RoTxn<'_, WithoutTls>, name: &[u8]) -> heed::Result<u64> {
        let bytes = self.about.get(txn, name)?.and_then(|bytes| bytes.try_into().ok());
        Ok(bytes.map_or(0, u64::from_le_bytes))
    }

    fn get(&self, key: &[u8]) -> heed::Result<Option<Versioned>> {
        let txn = self.env.read_txn()?;
        let found = self.entries.get(&txn, key)?;
        found.map(parse).transpose()
    }

    fn range(&self, start: &[u8], end: &[u8], limit: usize) -> heed::Result<Vec<Item>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let txn = self.env.read_txn()?;
        let bounds = (Bound::Included(start), Bound::Excluded(end));
        let items = self.entries.range(&txn, &bounds)?.take(limit).map(|item| {
            let (key, bytes) = item?;
            let Versioned { value, version } = parse(bytes)?;
            Ok(Item { key: key.to_vec(), value, version })
        });
        items.collect()
    }

    /// The writer's thread: carries out what waits, together, until nobody can ask any more.
    fn write(&self, jobs: &Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let mut group = vec![first];
            group.extend(jobs.try_iter().take(GROUP_MAX - 1));
            match self.write_group(&group) {
                Ok(results) => {
                    for (job, result) in group.iter().zip(results) {
                        job.ticket.answer(result);
                    }
                }
                // One of them may be to blame: each on its own, then.
                Err(_) if group.len() > 1 => {
                    for job in &group {
                        let alone = self.write_group(std::slice::from_ref(job));
                        let result = alone.map_err(|error| trouble(&self.path, error));
                        job.ticket.answer(result.and_then(|mut results| results.remove(0)));
                    }
                }
                Err(error) => group[0].ticket.answer(Err(trouble(&self.path, error))),
            }
        }
    }

    fn write_group(&self, group: &[Job]) -> heed::Result<Vec<Result<Outcome>>> {
        let mut txn = self.env.write_txn()?;
        let mut commits = self.count(&txn, COMMITS)?;
        let mut used = self.count(&txn, USED)?;
        let before = commits;
        let mut results = Vec::with_capacity(group.len());
        for job in group {
            let result = self.apply(&mut txn, &job.batch, commits + 1, &mut used)?;
            // One that only asks whether its conditions hold leaves the disk alone.
            let changes = !(job.batch.puts.is_empty() && job.batch.deletes.is_empty());
            commits += u64::from(changes && result == Ok(Outcome::Done));
            results.push(result);
        }
        if commits > before {
            self.about.put(&mut txn, COMMITS, &commits.to_le_bytes())?;
            self.about.put(&mut txn, USED, &used.to_le_bytes())?;
            txn.commit()?;
            self.used.store(used, Ordering::Relaxed);
        }
        Ok(results)
    }

    /// Carries one batch out within a transaction; changes nothing unless it is `Done`.
    fn apply(
        &self,
        txn: &mut RwTxn<'_>,
        batch: &Batch,
        version: u64,
        used: &mut u64,
    ) -> heed::Result<Result<Outcome>> {
        for (key, expected) in &batch.conditions {
            let there = self.entries.get(txn, key)?.map(parse_version).transpose()?;
            if there != *expected {
                return Ok(Ok(Outcome::Conflict));
            }
        }
        for (start, end) in &batch.empty {
            let bounds = (Bound::Included(&start[..]), Bound::Excluded(&end[..]));
            if start < end && self.entries.range(txn, &bounds)?.next().transpose()?.is_some() {
                return Ok(Ok(Outcome::Conflict));
            }
        }
        let mut growth = 0i64;
        for (key, value) in &batch.puts {
            growth += footprint(key, value) as i64 - self.footprint_of(txn, key)? as i64;
        }
        for key in &batch.deletes {
            growth -= self.footprint_of(txn, key)? as i64;
        }
        if let Err(error) = (Usage { used: *used, limit: self.limit }).admit(growth, batch.reserve)
        {
            return Ok(Err(error));
        }
        for key in &batch.deletes {
            self.entries.delete(txn, key)?;
        }
        let mut bytes = Vec::new();
        for (key, value) in &batch.puts {
            bytes.clear();
            bytes.extend_from_slice(&version.to_le_bytes());
            bytes.extend_from_slice(value);
            self.entries.put(txn, key, &bytes)?;
        }
        *used = used.saturating_add_signed(growth);
        Ok(Ok(Outcome::Done))
    }

    fn footprint_of(&self, txn: &RwTxn<'_>, key: &[u8]) -> heed::Result<u64> {
        let found = self.entries.get(txn, key)?.map(parse).transpose()?;
        Ok(found.map_or(0, |found| footprint(key, &found.value)))
    }
}

fn damaged() -> heed::Error {
    heed::Error::Decoding("an entry is shorter than its version".into())
}

fn parse_version(bytes: &[u8]) -> heed::Result<u64> {
    let version = bytes.first_chunk::<VERSION_BYTES>().ok_or_else(damaged)?;
    Ok(u64::from_le_bytes(*version))
}

fn parse(bytes: &[u8]) -> heed::Result<Versioned> {
    let version = parse_version(bytes)?;
    Ok(Versioned { value: bytes[VERSION_BYTES..].to_vec(), version })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait_for;
    use weir_core::service::meta::conformance::store_conformance;

    fn store(path: &Path, limit: u64, sync: bool) -> LmdbStore {
        LmdbStore::open(&LmdbOptions { path: path.to_owned(), limit, sync }).expect("opens")
    }

    fn put(key: &[u8], value: &[u8]) -> Batch {
        Batch { puts: vec![(key.to_vec(), value.to_vec())], ..Batch::default() }
    }

    #[test]
    fn conforms() {
        for sync in [false, true] {
            let directory = tempfile::tempdir().expect("a directory");
            let mut count = 0;
            wait_for(store_conformance(|limit| {
                count += 1;
                store(&directory.path().join(count.to_string()), limit, sync)
            }));
        }
    }

    #[test]
    fn what_was_committed_is_there_after_reopening() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = store(directory.path(), 1 << 20, true);
        let options = LmdbOptions { path: directory.path().to_owned(), limit: 1 << 20, sync: true };
        let twice = LmdbStore::open(&options).err().expect("one at a time");
        assert_eq!(twice.code, Code::InUse);
        assert_eq!(wait_for(first.commit(put(b"key", b"value"))), Ok(Outcome::Done));
        let before = wait_for(first.get(b"key")).expect("get works");
        let usage = first.usage();
        drop(first);
        let again = store(directory.path(), 1 << 20, true);
        assert_eq!(wait_for(again.get(b"key")), Ok(before.clone()));
        assert_eq!(again.usage(), usage);
        assert_eq!(wait_for(again.commit(put(b"key", b"value"))), Ok(Outcome::Done));
        let after = wait_for(again.get(b"key")).expect("get works");
        assert_ne!(after.map(|it| it.version), before.map(|it| it.version), "versions go on");
    }

    /// Many threads add one to the same number, each on condition that it has not changed.
    #[test]
    fn commits_at_once_are_grouped_and_none_is_lost() {
        const THREADS: u64 = 8;
        const EACH: u64 = 25;
        let directory = tempfile::tempdir().expect("a directory");
        let store = store(directory.path(), 1 << 20, false);
        let add = |thread: u64| {
            for i in 0..EACH {
                loop {
                    let found = wait_for(store.get(b"sum")).expect("get works");
                    let sum = found.as_ref().map_or(0, |found| {
                        u64::from_le_bytes(found.value[..].try_into().expect("8 bytes"))
                    });
                    let own = (thread << 8 | i).to_be_bytes().to_vec();
                    let batch = Batch {
                        conditions: vec![(b"sum".to_vec(), found.map(|found| found.version))],
                        puts: vec![
                            (b"sum".to_vec(), (sum + 1).to_le_bytes().to_vec()),
                            (own, vec![]),
                        ],
                        ..Batch::default()
                    };
                    if wait_for(store.commit(batch)).expect("commit works") == Outcome::Done {
                        break;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let add = &add;
                scope.spawn(move || add(thread));
            }
        });
        let sum = wait_for(store.get(b"sum")).expect("get works").expect("there").value;
        assert_eq!(sum, (THREADS * EACH).to_le_bytes());
        let items = wait_for(store.range(&[0], b"sum", usize::MAX)).expect("range works");
        assert_eq!(items.len() as u64, THREADS * EACH, "the other half of each batch");
    }

    #[test]
    fn a_bad_batch_in_a_group_spoils_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = store(directory.path(), 1 << 20, false);
        // LMDB refuses empty and overlong keys; those beside them are carried out.
        let answers: Vec<_> = [&b""[..], b"good", &[7; 600], b"fine"]
            .into_iter()
            .map(|key| store.commit(put(key, b"v")))
            .collect();
        let results: Vec<_> = answers.into_iter().map(wait_for).collect();
        assert!(results[0].is_err() && results[2].is_err());
        assert_eq!(results[1], Ok(Outcome::Done));
        assert_eq!(results[3], Ok(Outcome::Done));
        assert!(wait_for(store.get(b"fine")).expect("get works").is_some());
        assert_eq!(store.usage().used, footprint(b"good", b"v") + footprint(b"fine", b"v"));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let path = Path::new("/proc/nothing/here");
        let options = LmdbOptions { path: path.to_owned(), limit: 1, sync: false };
        let error = LmdbStore::open(&options).err().expect("refused");
        assert!(error.to_string().contains("/proc/nothing/here"), "{error}");
    }
}
