//! The buffer that a user may ask for (`weir run --io-buffer`): small sequential writes are put
//! together, small sequential reads are read ahead. For programs that do I/O in small pieces and
//! cannot be changed; off unless asked for.
//!
//! There is one for each file, whatever descriptors lead to it, so that the process always sees what
//! it has written; its children do, because what is buffered is written before they are made, and
//! nothing is buffered from then on. Other processes see it after fsync, close, unlocking or exit.
//! What was read ahead is forgotten when the process opens any file or gets a lock: so processes
//! learn that others have written.

use crate::files::{self, Description};
use crate::process::{self, Inside};
use crate::real::kernel;
use crate::transfer::Way;
use libc::{c_int, ssize_t};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_core::slice::Slice;

/// What the first of a row of sequential reads reads ahead, in bytes; each further one reads
/// [`AHEAD_GROWTH`] times as much as the one before, up to the buffer's size. A program that reads two
/// records here and two there would otherwise move a whole buffer for each pair.
const AHEAD_BYTES_MIN: usize = 64 << 10;
const AHEAD_GROWTH: usize = 4;

static ON: AtomicBool = AtomicBool::new(false);
/// Buffers that hold bytes not yet written.
static DIRTY: AtomicUsize = AtomicUsize::new(0);
/// Counts calls that may have changed what a descriptor is, or how it is open.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// No descriptor's number.
const UNKNOWN: u64 = u64::MAX;
/// Children may be at work beside this process: nothing is buffered any more.
static ENDED: AtomicBool = AtomicBool::new(false);
static BUFFERS: Mutex<BTreeMap<u64, Weak<Buffer>>> = Mutex::new(BTreeMap::new());

/// The buffer of one file.
pub(crate) struct Buffer {
    /// Bytes that are put together, and read ahead.
    size: usize,
    /// The descriptor that may read, and write, as far as was looked at since it was last settled, and
    /// what [`CALLS`] was then: to ask the kernel at each of many small calls would cost more than the
    /// calls.
    allowed: [AtomicU64; 2],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Written by the program and not yet to the pool.
    dirty: Vec<u8>,
    dirty_at: u64,
    /// Through which descriptor.
    through: Option<(c_int, Arc<Description>)>,
    /// Read and not yet asked for.
    ahead: Vec<u8>,
    ahead_at: u64,
    /// The last read. The next one is sequential if it begins within it or where it ended: some
    /// libraries read far more than they take, and go back.
    read_at: u64,
    read_end: u64,
    /// Bytes that were read ahead last in this row of sequential reads; 0: none yet.
    window: usize,
    /// Of a write that failed after the program was told that it was done.
    error: c_int,
}

/// Whether this process has ever had a buffer.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Something that can be held still while a child is made.
pub(crate) type Held = MutexGuard<'static, BTreeMap<u64, Weak<Buffer>>>;

fn buffers() -> Held {
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The buffer of the file with this number, of this size if it is a new one.
pub(crate) fn of(ino: u64, size: u64) -> Option<Arc<Buffer>> {
    let size = usize::try_from(size).ok().filter(|size| *size > 0)?;
    if ENDED.load(Ordering::Relaxed) {
        return None;
    }
    let mut buffers = buffers();
    if let Some(buffer) = buffers.get(&ino).and_then(Weak::upgrade) {
        return Some(buffer);
    }
    buffers.retain(|_, buffer| buffer.strong_count() > 0);
    let buffer = Arc::new(Buffer {
        size,
        allowed: [const { AtomicU64::new(UNKNOWN) }; 2],
        state: Mutex::default(),
    });
    buffers.insert(ino, Arc::downgrade(&buffer));
    ON.store(true, Ordering::Relaxed);
    Some(buffer)
}

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the descriptor may be read or written, as [`Description::allows`] says.
    pub(crate) fn allows(&self, fd: c_int, way: Way, description: &Description) -> bool {
        let known = &self.allowed[way as usize];
        let calls = CALLS.load(Ordering::Relaxed);
        let here = u64::from(calls) << 32 | u64::from(fd as u32);
        if known.load(Ordering::Relaxed) == here {
            return true;
        }
        let allowed = description.allows(fd, way);
        known.store(if allowed { here } else { UNKNOWN }, Ordering::Relaxed);
        allowed
    }

    fn look_again(&self) {
        for known in &self.allowed {
            known.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    /// Whether it is to be used for this descriptor.
    pub(crate) fn applies(description: &Description) -> bool {
        !ENDED.load(Ordering::Relaxed) && !description.shared.load(Ordering::Relaxed)
    }

    /// Writes, sooner or later. None: it was not buffered, and everything before it is written.
    ///
    /// # Safety
    /// The slices must be readable and `length` long in all.
    pub(crate) unsafe fn write(
        &self,
        fd: c_int,
        description: &Arc<Description>,
        slices: &[Slice],
        length: usize,
        at: u64,
    ) -> Option<usize> {
        let mut state = self.lock();
        // Bytes read ahead would be older than these.
        let end = at + length as u64;
        if at < state.ahead_at + state.ahead.len() as u64 && end > state.ahead_at {
            state.ahead.clear();
        }
        if length > self.size / 2 || state.error != 0 || ENDED.load(Ordering::Relaxed) {
            state.flush();
            return None;
        }
        let within = (at.checked_sub(state.dirty_at))
            .filter(|from| *from <= state.dirty.len() as u64)
            .map(|from| from as usize)
            .filter(|from| !state.dirty.is_empty() && from + length <= self.size);
        let from = match within {
            Some(from) => from,
            None => {
                state.flush();
                if state.error != 0 {
                    return None;
                }
                state.dirty_at = at;
                state.through = Some((fd, description.clone()));
                state.dirty.reserve_exact(self.size);
                DIRTY.fetch_add(1, Ordering::Relaxed);
                0
            }
        };
        let over = state.dirty.len().min(from + length);
        let mut to = from;
        for slice in slices {
            // SAFETY: the caller promises that the memory can be read.
            let bytes = unsafe { std::slice::from_raw_parts(slice.pointer, slice.length) };
            let replaced = over.saturating_sub(to).min(bytes.len());
            state.dirty[to..to + replaced].copy_from_slice(&bytes[..replaced]);
            state.dirty.extend_from_slice(&bytes[replaced..]);
            to += bytes.len();
        }
        if state.dirty.len() == self.size {
            state.flush();
            self.look_again();
        }
        Some(length)
    }

    /// Reads what is buffered, and ahead where reads are sequential. None: to be read from the pool.
    ///
    /// # Safety
    /// The slices must be writable and `length` long in all.
    pub(crate) unsafe fn read(
        &self,
        slices: &[Slice],
        length: usize,
        at: u64,
        fill: impl FnOnce(&mut [u8], u64) -> Option<usize>,
    ) -> Option<usize> {
        let mut state = self.lock();
        let end = at + length as u64;
        // What is dirty further on says that the file does not end before.
        let dirty_end = state.dirty_at + state.dirty.len() as u64;
        if at < dirty_end && (end > state.dirty_at || !state.holds(at, end)) {
            state.flush();
        }
        let sequential =
            (state.read_at..=state.read_end).contains(&at) && !ENDED.load(Ordering::Relaxed);
        (state.read_at, state.read_end) = (at, end);
        if length > self.size / 2 {
            return None;
        }
        if !state.holds(at, end) {
            if !sequential {
                state.window = 0;
                return None;
            }
            let window = state.window.saturating_mul(AHEAD_GROWTH);
            state.window = window.max(AHEAD_BYTES_MIN).max(2 * length).min(self.size);
            let mut ahead = std::mem::take(&mut state.ahead);
            self.look_again();
            ahead.resize(state.window, 0);
            let got = fill(&mut ahead, at).unwrap_or(0);
            ahead.truncate(got);
            state.ahead = ahead;
            state.ahead_at = at;
            // The file's end is never taken for granted: somebody may be writing on.
            if !state.holds(at, end) {
                return None;
            }
        }
        let mut from = (at - state.ahead_at) as usize;
        for slice in slices {
            let bytes = &state.ahead[from..from + slice.length];
            // SAFETY: the caller promises that the memory can be written.
            unsafe { slice.pointer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            from += slice.length;
        }
        Some(length)
    }

    /// Writes what is buffered and forgets what was read ahead. Gives the error number of what could
    /// not be written since the last time, or 0.
    pub(crate) fn settle(&self) -> c_int {
        self.look_again();
        let mut state = self.lock();
        state.flush();
        state.ahead.clear();
        std::mem::take(&mut state.error)
    }

    /// As [`Buffer::settle`]; an error stays for who asks for it.
    pub(crate) fn yield_to_others(&self) {
        self.look_again();
        let mut state = self.lock();
        state.flush();
        state.ahead.clear();
        // Who does this at each record must not move a whole buffer for it.
        state.window = 0;
    }
}

impl State {
    fn holds(&self, from: u64, to: u64) -> bool {
        from >= self.ahead_at && to <= self.ahead_at + self.ahead.len() as u64
    }

    fn flush(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        DIRTY.fetch_sub(1, Ordering::Relaxed);
        if let Some((fd, description)) = self.through.take() {
            let slice = Slice { pointer: self.dirty.as_mut_ptr(), length: self.dirty.len() };
            // SAFETY: our own memory, which nobody else touches while we have the lock.
            let stored = unsafe {
                crate::transfer::store(fd, &description, &[slice], self.dirty.len(), self.dirty_at)
            };
            if stored.is_none() && self.error == 0 {
                self.error = store_by_kernel(fd, &description, &self.dirty, self.dirty_at);
            }
        }
        self.dirty.clear();
    }
}

/// Has the kernel write; gives the error number, or 0.
fn store_by_kernel(fd: c_int, description: &Description, bytes: &[u8], at: u64) -> c_int {
    if !files::leads_to(fd, description) {
        return libc::EIO;
    }
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let moved: ssize_t = kernel!(SYS_pwrite64, fd, rest.as_ptr(), rest.len(), at + done as u64);
        match moved {
            ..0 if process::errno() == libc::EINTR => {}
            ..=0 => return process::errno(),
            moved => done += moved as usize,
        }
    }
    0
}

/// Writes all that is buffered, so that the next call sees it. Descriptors are looked at again: it may
/// be a call that changes them.
#[inline]
pub(crate) fn settle() {
    if is_on() {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
    if DIRTY.load(Ordering::Relaxed) > 0 && process::attends() {
        let _inside = Inside::enter();
        settle_all();
    }
}

/// As [`settle`]; also forgets what was read ahead, which somebody may have changed, or is about to.
pub(crate) fn forget() {
    if is_on() {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
    if is_on() && process::attends() {
        let _inside = Inside::enter();
        settle_all();
    }
}

#[cold]
fn settle_all() {
    let all: Vec<_> = buffers().values().filter_map(Weak::upgrade).collect();
    for buffer in all {
        buffer.yield_to_others();
    }
}

/// A child is about to be made: from now on nothing is buffered. To be called inside.
pub(crate) fn end() {
    if !ENDED.swap(true, Ordering::Relaxed) {
        settle_all();
    }
}

/// The process ends.
pub(crate) fn finish() {
    if process::attends() {
        let _inside = Inside::enter();
        end();
    }
}

/// Nobody looks for buffers until the guard is dropped or [`abandon`]ed.
pub(crate) fn hold() -> Held {
    buffers()
}

/// As [`hold`], without waiting.
pub(crate) fn try_hold() -> Option<Held> {
    BUFFERS.try_lock().ok()
}

/// In a child: the parent writes what is in them.
pub(crate) fn abandon(mut held: Held) {
    std::mem::forget(std::mem::take(&mut *held));
    DIRTY.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: usize = 4096;
    const SIZE: usize = 4 << 20;

    /// Reads a record at each offset of a file that says of each byte where it lies; gives the bytes
    /// that were fetched for it.
    fn fetched(offsets: impl Iterator<Item = u64>) -> usize {
        let byte = |at: u64| (at / 7) as u8;
        let buffer =
            Buffer { size: SIZE, allowed: Default::default(), state: Mutex::new(State::default()) };
        let mut bytes = 0;
        for at in offsets {
            let mut record = [0; RECORD];
            let slice = Slice { pointer: record.as_mut_ptr(), length: RECORD };
            let fill = |ahead: &mut [u8], from: u64| {
                bytes += ahead.len();
                (from..).zip(ahead.iter_mut()).for_each(|(at, to)| *to = byte(at));
                Some(ahead.len())
            };
            // SAFETY: the slice is all of `record`.
            match unsafe { buffer.read(&[slice], RECORD, at, fill) } {
                Some(got) => {
                    assert_eq!(got, RECORD);
                    assert!((at..).zip(record).all(|(at, got)| got == byte(at)), "wrong at {at}");
                }
                None => bytes += RECORD,
            }
        }
        bytes
    }

    #[test]
    fn long_rows_are_read_in_few_pieces() {
        let file = 64 << 20;
        let all = fetched((0..file).step_by(RECORD));
        assert!(all <= file as usize + 2 * SIZE, "{all} bytes for {file}");
    }

    /// Pairs of neighbours all over a file once moved a whole buffer each.
    #[test]
    fn short_rows_move_little() {
        let record = RECORD as u64;
        let pairs = 1000;
        let all = fetched((0..pairs).flat_map(|pair| {
            let at = pair * 7919 % 4096 * (1 << 20);
            [at, at + record]
        }));
        let most = pairs as usize * (RECORD + AHEAD_BYTES_MIN);
        assert!(all <= most, "{all} bytes for {pairs} pairs of records");
    }
}
