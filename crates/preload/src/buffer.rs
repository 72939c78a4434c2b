//! The buffer that a user may ask for (`weir run --io-buffer`): small sequential writes are put
//! together, small sequential reads are read ahead, and what is read to and fro stays for a moment. For
//! programs that do I/O in small pieces and cannot be changed; off unless asked for.
//!
//! There is one for each file, whatever descriptors lead to it, so that the process always sees what
//! it has written; its children do, because what is buffered is written before they are made, and
//! nothing is buffered as long as there are any. Other processes see it after fsync, close, unlocking or exit.
//! What was read is forgotten when the process opens any file or gets a lock: so processes learn that
//! others have written.

mod ahead;
mod behind;
mod recent;

use crate::files::{self, Description};
use crate::flight::Flight;
use crate::fork;
use crate::process::{self, Inside};
use crate::real::kernel;
use crate::transfer::{Way, move_bytes};
use ahead::{Ahead, Fetch};
use behind::Behind;
use libc::c_int;
use recent::Recent;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_core::copying::copy;
use weir_core::slice::Slice;

static ON: AtomicBool = AtomicBool::new(false);
/// Buffers that hold bytes not yet written.
static DIRTY: AtomicUsize = AtomicUsize::new(0);
/// How many children were made since nothing is buffered, as they may be at work beside this process; 0: it is
/// buffered.
static STOPS: AtomicU32 = AtomicU32::new(0);
/// Of [`STOPS`]: for good. It is not counted on from there.
const FOR_GOOD: u32 = u32::MAX;
/// Requests that found nothing buffered.
static UNBUFFERED: AtomicU32 = AtomicU32::new(0);
/// One of so many of these looks whether there are children still: a fifth of a microsecond.
const LOOKS_EVERY: u32 = 8;
static BUFFERS: Mutex<BTreeMap<u64, Weak<Buffer>>> = Mutex::new(BTreeMap::new());

/// The buffer of one file.
pub(crate) struct Buffer {
    /// Bytes that are put together, that are read ahead, and that stay of what is read to and fro.
    size: usize,
    state: Mutex<State>,
}

/// What was read is as the program last wrote it, also where that is not stored yet.
struct State {
    ahead: Ahead<Flight>,
    recent: Recent,
    behind: Behind,
    /// Memory to read into.
    scratch: Vec<u8>,
}

impl State {
    fn new(size: usize) -> State {
        State {
            ahead: Ahead::default(),
            recent: Recent::new(size),
            behind: Behind::default(),
            scratch: Vec::new(),
        }
    }

    /// Forgets what was read.
    fn forget(&mut self) {
        self.ahead.forget();
        self.recent.forget();
    }

    /// Reads these bytes and those around them, which stay for the next reads. None: to be read from the
    /// pool.
    ///
    /// # Safety
    /// The slices must be writable and `length` long in all.
    unsafe fn read_around(
        &mut self,
        (fd, description): (c_int, &Arc<Description>),
        slices: &[Slice],
        length: usize,
        at: u64,
    ) -> Option<usize> {
        let (from, to) = Recent::around(at, length);
        self.behind.flush_beyond(from);
        description.look_again();
        if !files::is_current(fd, description) {
            return None;
        }
        let mut memory = std::mem::take(&mut self.scratch);
        memory.resize((to - from) as usize, 0);
        let room = [Slice::to_write(&mut memory)];
        // SAFETY: memory of our own.
        let got = unsafe { move_bytes(fd, description, Way::Read, &room, memory.len(), from) };
        let bytes = &memory[..got.unwrap_or(0)];
        self.recent.came(from, bytes);
        // As far as the file goes at this moment.
        let mut rest = bytes.get((at - from) as usize..).unwrap_or_default();
        rest = &rest[..rest.len().min(length)];
        let copied = rest.len();
        for slice in slices {
            let (now, after) = rest.split_at(rest.len().min(slice.length));
            // SAFETY: the caller promises that the memory can be written.
            unsafe { copy(now.as_ptr(), slice.pointer, now.len()) };
            rest = after;
        }
        self.scratch = memory;
        got.map(|_| copied)
    }
}

impl Fetch for Flight {
    fn end(self) -> (Vec<u8>, Option<usize>) {
        Flight::end(self)
    }
}

/// Whether this process has ever had a buffer.
#[inline]
fn is_on() -> bool {
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
    let mut buffers = buffers();
    if let Some(buffer) = buffers.get(&ino).and_then(Weak::upgrade) {
        return Some(buffer);
    }
    buffers.retain(|_, buffer| buffer.strong_count() > 0);
    let buffer = Arc::new(Buffer { size, state: Mutex::new(State::new(size)) });
    buffers.insert(ino, Arc::downgrade(&buffer));
    ON.store(true, Ordering::Relaxed);
    Some(buffer)
}

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is to be used for this descriptor.
    pub(crate) fn applies(description: &Description) -> bool {
        !description.streamed && !description.is_shared() && (!is_stopped() || goes_on())
    }

    /// Whether requests of this length are buffered as a rule.
    pub(crate) fn takes(&self, length: usize) -> bool {
        length <= self.half()
    }

    /// Half of it is filled, or taken, while the other half is under way.
    fn half(&self) -> usize {
        self.size / 2
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
        let state = &mut *self.lock();
        let stopped = is_stopped();
        if !self.takes(length) || state.behind.has_failed() || stopped {
            state.ahead.overwritten(at, at + length as u64);
            state.recent.overwritten(at, at + length as u64);
            state.behind.flush();
            return None;
        }
        // SAFETY: passed on.
        unsafe {
            state.ahead.written(slices, length, at);
            state.recent.written(slices, at);
            if state.behind.write(self.half(), (fd, description), slices, at) {
                description.look_again();
            }
        }
        Some(length)
    }

    /// Reads what is buffered, and ahead where reads are sequential. None: to be read from the pool.
    ///
    /// # Safety
    /// The slices must be writable and `length` long in all.
    pub(crate) unsafe fn read(
        &self,
        fd: c_int,
        description: &Arc<Description>,
        slices: &[Slice],
        length: usize,
        at: u64,
    ) -> Option<usize> {
        let state = &mut *self.lock();
        let stopped = is_stopped();
        if state.behind.has_failed() {
            state.forget();
        }
        // SAFETY: passed on.
        if !stopped && unsafe { state.recent.read(slices, length, at) } {
            state.ahead.noticed(at, length);
            return Some(length);
        }
        let taken = self.takes(length) && !stopped;
        let State { ahead, behind, .. } = state;
        if taken {
            let begin = |memory, at| {
                behind.flush_beyond(at);
                description.look_again();
                files::is_current(fd, description)
                    .then(|| Flight::begin(fd, description, Way::Read, memory, at))
            };
            // SAFETY: passed on.
            if let Some(read) = unsafe { ahead.read(self.half(), slices, length, at, begin) } {
                return Some(read);
            }
        }
        // From the pool, then: there must be what the program has written.
        behind.flush_beyond(at);
        if !taken || !state.recent.wants(length) {
            return None;
        }
        // SAFETY: passed on.
        unsafe { state.read_around((fd, description), slices, length, at) }
    }

    /// Writes what is buffered and forgets what was read ahead. Gives the error number of what could
    /// not be written since the last time, or 0.
    pub(crate) fn settle(&self) -> c_int {
        let mut state = self.lock();
        state.behind.flush();
        state.forget();
        state.behind.failure()
    }

    /// As [`Buffer::settle`]; an error stays for who asks for it.
    pub(crate) fn yield_to_others(&self) {
        let mut state = self.lock();
        state.behind.flush();
        // Who does this at each record must not move a whole buffer for it.
        state.ahead.begin_anew();
        state.recent.forget();
    }
}

/// Writes all that is buffered, so that the next call sees it. Descriptors are looked at again: it may
/// be a call that changes them.
#[inline]
pub(crate) fn settle() {
    files::may_have_changed();
    if DIRTY.load(Ordering::Relaxed) > 0 && process::attends() {
        let _inside = Inside::enter();
        settle_all();
    }
}

/// As [`settle`]; also forgets what was read ahead, which somebody may have changed, or is about to.
pub(crate) fn forget() {
    files::may_have_changed();
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

fn is_stopped() -> bool {
    STOPS.load(Ordering::SeqCst) != 0
}

/// A child is about to be made: nothing is buffered until all children have ended. To be called inside.
pub(crate) fn stop() {
    let more = |stops: u32| stops.checked_add(1);
    if STOPS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more) == Ok(0) {
        settle_all();
    }
}

/// Looks, now and then, whether children that were made have all ended, and whether this process knows it:
/// then buffering goes on.
#[cold]
fn goes_on() -> bool {
    if !UNBUFFERED.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS_EVERY) {
        return false;
    }
    // In this order: a child that is not found in the end was made before, or is counted after.
    let stops = STOPS.load(Ordering::SeqCst);
    if stops == FOR_GOOD || fork::is_making() || has_children() {
        return false;
    }
    settle_all();
    STOPS.compare_exchange(stops, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// Whether there are children that this process has not yet been told the end of.
fn has_children() -> bool {
    let (nobody, nothing) = (std::ptr::null_mut::<libc::siginfo_t>(), std::ptr::null_mut::<u8>());
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let found: c_int = kernel!(SYS_waitid, libc::P_ALL, 0, nobody, options, nothing);
    found >= 0 || process::errno() != libc::ECHILD
}

/// The process ends.
pub(crate) fn finish() {
    if process::attends() {
        let _inside = Inside::enter();
        stop_for_good();
        settle_all();
    }
}

fn stop_for_good() {
    STOPS.store(FOR_GOOD, Ordering::SeqCst);
}

/// Nobody looks for buffers until the guard is dropped or [`abandon`]ed.
pub(crate) fn hold() -> Held {
    buffers()
}

/// As [`hold`], without waiting.
pub(crate) fn try_hold() -> Option<Held> {
    BUFFERS.try_lock().ok()
}

/// In a child: the parent writes what is in them, and sees what this one writes.
pub(crate) fn abandon(mut held: Held) {
    std::mem::forget(std::mem::take(&mut *held));
    DIRTY.store(0, Ordering::Relaxed);
    stop_for_good();
}
