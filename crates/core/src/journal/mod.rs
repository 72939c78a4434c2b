//! A journal: what makes a map in memory outlive its process and a power cut.
//!
//! Its owner keeps a map (names and inodes; or which part of a disk holds which chunk), and for each
//! change *appends* a record. Records are written together and synced together, by whoever drives
//! the [`Writer`]; who must know that his is safe waits for [`Journal::synced`]. When the log has
//! grown beyond what the map itself would take, a *checkpoint* writes the map whole, in small steps
//! between which records go on to be written, and the log before it is given up: so the space taken,
//! and the time to come back, stay in proportion to the map.
//!
//! Nothing that was synced is ever overwritten: frames begin at blocks of their own, segments are
//! used again only when a newer superblock, synced, no longer needs them. Opening replays what is
//! whole and ends where the last crash ended it; a hole in what had been synced is told apart from
//! such an end, and refused. The format is in docs/journal.md.
//!
//! No I/O here: [`Medium`] is a file or a part of a device in the server, and in tests a
//! [`twin::Recorder`], from which every image that a crash can leave is made.

mod format;
mod open;
#[cfg(test)]
mod tests;
pub mod twin;
mod writer;

pub use open::{check, check_until, create, open};
pub use writer::Writer;

use crate::error::{Code, Error, Result};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

/// All is read and written in whole blocks at multiples of this: bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Records that wait to be written; who appends more waits for [`Journal::room`]: bytes.
pub const PENDING_BYTES_MAX: usize = 8 << 20;

/// Says whose journal it is: drawn at random.
pub type Identity = [u8; 16];

/// How to keep a journal.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whose it is.
    pub identity: Identity,
    /// What is given out and freed as one, a power of two from 16 KiB to 64 MiB. Asked for when it
    /// is made; later that stays: bytes.
    pub segment_bytes: u64,
    /// A log shorter than this is not worth a checkpoint: bytes.
    pub log_bytes_min: u64,
    /// Of a checkpoint so much is written before records get their turn: bytes.
    pub step_bytes: usize,
}

impl Options {
    /// For real disks.
    pub fn new(identity: Identity) -> Options {
        Options { identity, segment_bytes: 4 << 20, log_bytes_min: 16 << 20, step_bytes: 1 << 20 }
    }
}

fn check_segment_bytes(bytes: u64) -> Result<()> {
    match bytes.is_power_of_two() && (16 << 10..=64 << 20).contains(&bytes) {
        true => Ok(()),
        false => Err(Error::because(Code::Invalid, format!("journal segments of {bytes} bytes"))),
    }
}

/// Where a journal lies. Offsets and lengths are whole blocks.
pub trait Medium: Send {
    /// Fills `into` from `offset` on, with zeros beyond the end.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Writes; beyond the end it grows. After a crash any part of what was not synced may be there.
    ///
    /// # Errors
    /// If not all of it could be written.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Returns when everything written is where a power cut leaves it.
    ///
    /// # Errors
    /// If that cannot be said; then nothing written since the last success counts.
    fn sync(&mut self) -> Result<()>;

    /// How much there is to read: bytes.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn length(&mut self) -> Result<u64>;

    /// Records that are written next may name what lies elsewhere, and was written there before they
    /// were appended: returns when that is where a power cut leaves it.
    ///
    /// # Errors
    /// If that cannot be said; the records are not written then.
    fn settle_named(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether room for what may have to be written of what the map has already could not be set aside:
    /// then nothing should be added to the map, so that all that was can be made safe.
    fn is_tight(&mut self) -> bool {
        false
    }
}

/// Takes what a journal held: the records of the last snapshot, then those of the log, in order.
/// These may repeat what the snapshot has already, and be older than it.
pub trait Sink {
    /// Whether it wants to see the log's records before all others, too.
    fn foresees(&self) -> bool {
        false
    }

    /// A record of the log that will come later.
    ///
    /// # Errors
    /// If it makes no sense; the journal is not opened then.
    fn foresee(&mut self, _record: &[u8]) -> Result<()> {
        Ok(())
    }

    /// A record of the snapshot.
    ///
    /// # Errors
    /// If it makes no sense; the journal is not opened then.
    fn snapshot(&mut self, record: &[u8]) -> Result<()> {
        self.record(record)
    }

    /// A record of the log.
    ///
    /// # Errors
    /// If it makes no sense; the journal is not opened then.
    fn record(&mut self, record: &[u8]) -> Result<()>;

    /// How far it is: of so many bytes so many have been read.
    fn progress(&mut self, _done: u64, _all: u64) {}
}

/// Gives the map as records, for a checkpoint. They may show changes made since it began, or not:
/// those are in the log too, and replayed over it. So a record must say what *is*, not what to add.
pub trait Source: Send {
    /// The next record; none: that was all.
    fn next(&mut self) -> Option<Vec<u8>>;
}

/// Where records are appended. Share it in an [`Arc`].
pub struct Journal {
    record_bytes_max: usize,
    /// How often it was opened, this time included; 0 while it is being opened.
    life: AtomicU64,
    tight: AtomicBool,
    /// A checkpoint is asked for.
    renewed: AtomicBool,
    state: Mutex<State>,
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// What of a journal is safe, in its own count: what [`check_until`] finds, or something is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The superblock that counts.
    pub(in crate::journal) generation: u64,
    /// Frames of the log, from the first one ever.
    pub(in crate::journal) frames: u64,
}

impl Mark {
    /// Whether the same superblock counts.
    pub fn is_of_superblock(self, other: Mark) -> bool {
        self.generation == other.generation
    }
}

#[derive(Default)]
struct State {
    /// What the writer has synced.
    mark: Mark,
    /// Records, each with its length in front, to be written.
    pending: Vec<u8>,
    /// Records appended, and of those how many are safe.
    appended: u64,
    durable: u64,
    /// Somebody waits.
    wanted: bool,
    /// A record names what lies elsewhere.
    names: bool,
    failed: Option<Error>,
    wakers: Vec<Waker>,
}

/// What is to be written.
struct Pending {
    records: Vec<u8>,
    /// How many have been appended with them.
    position: u64,
    names: bool,
}

impl Journal {
    fn new(segment_bytes: u64) -> Arc<Journal> {
        let record_bytes_max =
            segment_bytes as usize - BLOCK_BYTES - format::FRAME_HEAD_BYTES - size_of::<u32>();
        let (life, tight, renewed) = Default::default();
        let (state, bell) = (Mutex::default(), OnceLock::new());
        Arc::new(Journal { record_bytes_max, life, tight, renewed, state, bell })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing below panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how to call whoever drives the writer. Once.
    pub fn set_bell(&self, bell: Box<dyn Fn() + Send + Sync>) {
        let _ = self.bell.set(bell);
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell();
        }
    }

    /// Longest record: bytes.
    pub fn record_bytes_max(&self) -> usize {
        self.record_bytes_max
    }

    /// Appends a record, to be safe some time later: see [`Journal::synced`]. The caller keeps the
    /// order of records that of the changes, by a lock of his own.
    ///
    /// # Errors
    /// If it is too long, or the journal has failed; then nothing is ever safe any more.
    pub fn append(&self, record: &[u8]) -> Result<()> {
        if record.len() > self.record_bytes_max {
            let cause = format!("a change of {} bytes at once", record.len());
            return Err(Error::because(Code::TooMany, cause));
        }
        let mut state = self.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        state.pending.extend_from_slice(&(record.len() as u32).to_le_bytes());
        state.pending.extend_from_slice(record);
        state.appended += 1;
        // Once, when the line is crossed: the driver then writes without being asked.
        let before = state.pending.len() - record.len() - size_of::<u32>();
        let full = PENDING_BYTES_MAX / 4;
        let crossed = before < full && state.pending.len() >= full;
        drop(state);
        if crossed {
            self.ring();
        }
        Ok(())
    }

    /// Appends a record that names what lies elsewhere and has been written there:
    /// [`Medium::settle_named`] comes before it.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn append_naming(&self, record: &[u8]) -> Result<()> {
        // Before the record: whoever takes that takes this, too.
        self.lock().names = true;
        self.append(record)
    }

    /// How often it was opened, this time included.
    pub fn life(&self) -> u64 {
        self.life.load(Ordering::Relaxed)
    }

    /// Whether nothing should be added to the map: see [`Medium::is_tight`].
    pub fn is_tight(&self) -> bool {
        self.tight.load(Ordering::Relaxed)
    }

    /// Whether all that was appended is safe.
    pub fn is_settled(&self) -> bool {
        let state = self.lock();
        state.durable >= state.appended && state.failed.is_none()
    }

    /// How many records have been appended since it was opened.
    pub fn appended(&self) -> u64 {
        self.lock().appended
    }

    /// How many of those, the first ones, are safe.
    pub fn durable(&self) -> u64 {
        self.lock().durable
    }

    /// How far it is safe. Nothing below the mark is written over before there is one of another
    /// superblock.
    pub fn mark(&self) -> Mark {
        self.lock().mark
    }

    fn set_mark(&self, mark: Mark) {
        self.lock().mark = mark;
    }

    /// Has a checkpoint made, due or not: what there is on the medium now is then needed no more.
    pub fn renew(&self) {
        self.renewed.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Whether [`Journal::renew`] was called, once.
    fn take_renewal(&self) -> bool {
        self.renewed.swap(false, Ordering::Relaxed)
    }

    /// Has what waits written soon, though nobody waits for it.
    pub fn hurry(&self) {
        self.lock().wanted = true;
        self.ring();
    }

    /// Waits until everything appended before this call is safe. Of a journal that has failed nothing
    /// is, even if all that could be appended had been safe before: what its owner would have appended
    /// since then is not.
    pub fn synced(self: &Arc<Journal>) -> Wait {
        let state = self.lock();
        let until = if state.failed.is_some() { u64::MAX } else { state.appended };
        drop(state);
        Wait { journal: Arc::clone(self), until: Until::Durable(until) }
    }

    /// Waits until there is room for more records.
    pub fn room(self: &Arc<Journal>) -> Wait {
        Wait { journal: Arc::clone(self), until: Until::Room }
    }

    /// Whether there is room for more records now.
    pub fn has_room(&self) -> bool {
        self.lock().pending.len() < PENDING_BYTES_MAX
    }

    /// Whether somebody waits for what is not yet written.
    pub fn is_wanted(&self) -> bool {
        let state = self.lock();
        state.wanted || state.pending.len() >= PENDING_BYTES_MAX / 4
    }

    /// Why nothing is safe any more, if so.
    pub fn failure(&self) -> Option<Error> {
        self.lock().failed.clone()
    }

    fn take(&self) -> Pending {
        let mut state = self.lock();
        state.wanted = false;
        Pending {
            records: std::mem::take(&mut state.pending),
            position: state.appended,
            names: std::mem::take(&mut state.names),
        }
    }

    fn settle(&self, result: Result<u64>) {
        let mut state = self.lock();
        match result {
            Ok(durable) => state.durable = durable,
            Err(error) => {
                state.pending = Vec::new();
                // It does not get better, whatever it was: a full file system is a disk that failed.
                state.failed.get_or_insert(Error { code: Code::Disk, ..error });
            }
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

enum Until {
    Durable(u64),
    Room,
}

/// A wait for the disk.
pub struct Wait {
    journal: Arc<Journal>,
    until: Until,
}

impl Future for Wait {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut state = self.journal.lock();
        let there = match self.until {
            Until::Durable(until) => state.durable >= until,
            Until::Room => state.pending.len() < PENDING_BYTES_MAX,
        };
        if there {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = &state.failed {
            return Poll::Ready(Err(error.clone()));
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        let first = !std::mem::replace(&mut state.wanted, true);
        drop(state);
        if first {
            self.journal.ring();
        }
        Poll::Pending
    }
}
