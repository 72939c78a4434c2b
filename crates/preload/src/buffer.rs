//! The buffer that a user may ask for (`weir run --io-buffer`): small sequential writes are put
//! together, small sequential reads are read ahead. For programs that do I/O in small pieces and
//! cannot be changed; off unless asked for.
//!
//! There is one for each file, whatever descriptors lead to it, so that the process always sees what
//! it has written; its children do, because what is buffered is written before they are made, and
//! nothing is buffered from then on. Other processes see it after fsync, close, unlocking or exit.
//! What was read ahead is forgotten when the process opens any file or gets a lock: so processes
//! learn that others have written.

mod ahead;
mod behind;

use crate::files::{self, Description};
use crate::flight::Flight;
use crate::process::{self, Inside};
use crate::transfer::Way;
use ahead::{Ahead, Fetch};
use behind::Behind;
use libc::c_int;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_core::slice::Slice;

static ON: AtomicBool = AtomicBool::new(false);
/// Buffers that hold bytes not yet written.
static DIRTY: AtomicUsize = AtomicUsize::new(0);
/// Children may be at work beside this process: nothing is buffered any more.
static ENDED: AtomicBool = AtomicBool::new(false);
static BUFFERS: Mutex<BTreeMap<u64, Weak<Buffer>>> = Mutex::new(BTreeMap::new());

/// The buffer of one file.
pub(crate) struct Buffer {
    /// Bytes that are put together, and read ahead.
    size: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ahead: Ahead<Flight>,
    behind: Behind,
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
    if ENDED.load(Ordering::Relaxed) {
        return None;
    }
    let mut buffers = buffers();
    if let Some(buffer) = buffers.get(&ino).and_then(Weak::upgrade) {
        return Some(buffer);
    }
    buffers.retain(|_, buffer| buffer.strong_count() > 0);
    let buffer = Arc::new(Buffer { size, state: Mutex::default() });
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
        !ENDED.load(Ordering::Relaxed) && !description.shared.load(Ordering::Relaxed)
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
        // Bytes read ahead would be older than these.
        state.ahead.overwritten(at, at + length as u64);
        let ended = ENDED.load(Ordering::Relaxed);
        if !self.takes(length) || state.behind.has_failed() || ended {
            state.behind.flush();
            return None;
        }
        // SAFETY: passed on.
        if unsafe { state.behind.write(self.half(), (fd, description), slices, at) } {
            description.look_again();
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
        let end = at + length as u64;
        let clean = state.behind.range().is_none_or(|(from, _)| end <= from);
        if !clean || !state.ahead.holds(at, end) {
            state.behind.flush_beyond(at);
        }
        if !self.takes(length) || ENDED.load(Ordering::Relaxed) {
            return None;
        }
        let State { ahead, behind } = state;
        let begin = |memory, at| {
            behind.flush_beyond(at);
            description.look_again();
            files::is_current(fd, description)
                .then(|| Flight::begin(fd, description, Way::Read, memory, at))
        };
        // SAFETY: passed on.
        unsafe { ahead.read(self.half(), slices, length, at, begin) }
    }

    /// Writes what is buffered and forgets what was read ahead. Gives the error number of what could
    /// not be written since the last time, or 0.
    pub(crate) fn settle(&self) -> c_int {
        let mut state = self.lock();
        state.behind.flush();
        state.ahead.forget();
        state.behind.failure()
    }

    /// As [`Buffer::settle`]; an error stays for who asks for it.
    pub(crate) fn yield_to_others(&self) {
        let mut state = self.lock();
        state.behind.flush();
        // Who does this at each record must not move a whole buffer for it.
        state.ahead.begin_anew();
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
