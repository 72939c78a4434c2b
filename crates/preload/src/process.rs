//! What is ours in this process, and what becomes of it when the process divides.

use crate::fork;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

thread_local! {
    /// This thread is inside of this library: whatever it calls goes to the real functions. Also a
    /// signal handler that interrupted it there, which thus never waits for what it interrupted.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The process that called `vfork` on this thread: in its child nothing of ours may be touched,
    /// for the child has the parent's memory.
    static VFORKED: Cell<libc::pid_t> = const { Cell::new(0) };
}

static READY: AtomicBool = AtomicBool::new(false);
/// A byte that is zero in every child that has memory of its own, however it was made.
static WITNESS: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the library ready for work.
pub(crate) fn begin() -> bool {
    // SAFETY: asks the kernel for fresh memory.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    // SAFETY: a page of ours.
    if page == libc::MAP_FAILED || unsafe { libc::madvise(page, 4096, libc::MADV_WIPEONFORK) } != 0
    {
        return false;
    }
    WITNESS.store(page.cast(), Ordering::Release);
    claim();
    READY.store(true, Ordering::Release);
    true
}

/// From now on nothing is looked at any more.
pub(crate) fn end() {
    READY.store(false, Ordering::Release);
}

/// Says that all there is now belongs to this process.
pub(crate) fn claim() {
    let witness = WITNESS.load(Ordering::Acquire);
    if !witness.is_null() {
        // SAFETY: a page that stays mapped.
        unsafe { (*witness).store(1, Ordering::Release) };
    }
}

/// Whether what there is was made by a parent of this process, which nobody has told us of (it was
/// made by a bare `clone`).
pub(crate) fn inherited() -> bool {
    let witness = WITNESS.load(Ordering::Acquire);
    // SAFETY: a page that stays mapped.
    !witness.is_null() && unsafe { (*witness).load(Ordering::Acquire) } == 0
}

/// Whether calls are to be looked at: the library is ready, and neither are we inside of it nor in
/// the child of a `vfork`.
#[inline]
pub(crate) fn attends() -> bool {
    READY.load(Ordering::Acquire) && !INSIDE.get() && !is_guest()
}

#[cold]
fn still_parent() -> bool {
    // SAFETY: a system call that does nothing but answer.
    if unsafe { libc::getpid() } != VFORKED.get() {
        return false;
    }
    // The child has ended or executed a program: this is the parent again.
    VFORKED.set(0);
    fork::made();
    true
}

/// Whether this is the child of a `vfork`, which has its parent's memory and leaves it alone.
#[inline]
pub(crate) fn is_guest() -> bool {
    VFORKED.get() != 0 && !still_parent()
}

/// Whether the library is at work on this thread, and perhaps in the middle of changing something.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// This thread, which is no guest, is about to `vfork`: [`fork::made`] is called once it has.
pub(crate) fn vforks() {
    // SAFETY: a system call that does nothing but answer.
    VFORKED.set(unsafe { libc::getpid() });
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Ends the thread if another one has cancelled it: `read` and `write` are where that may happen.
/// It unwinds the stack of its callers, none of which may have anything to drop.
pub(crate) fn may_be_cancelled() {
    // SAFETY: has no conditions but that.
    unsafe { pthread_testcancel() };
}

/// Marks the thread as inside of this library, and keeps errno as it was. Meanwhile the thread is not
/// cancelled: it would leave locks behind.
pub(crate) struct Inside {
    /// The thread's, and what it was.
    errno: (*mut libc::c_int, libc::c_int),
    cancelling: libc::c_int,
}

impl Inside {
    /// To be called only where [`attends`].
    pub(crate) fn enter() -> Inside {
        const PTHREAD_CANCEL_DISABLE: libc::c_int = 1;
        INSIDE.set(true);
        // SAFETY: a thread always has an errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let mut inside = Inside { errno: (errno, unsafe { *errno }), cancelling: 0 };
        // SAFETY: `cancelling` is there to be written.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut inside.cancelling) };
        inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: the state is as it was, and nobody asks for the one before.
        unsafe { pthread_setcancelstate(self.cancelling, std::ptr::null_mut()) };
        // SAFETY: the thread's still, which alone drops this.
        unsafe { *self.errno.0 = self.errno.1 };
        INSIDE.set(false);
    }
}

pub(crate) fn errno() -> libc::c_int {
    // SAFETY: a thread always has an errno.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: libc::c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

/// What this process is held to of a resource.
pub(crate) fn limit(resource: libc::__rlimit_resource_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is there to be written.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    limit.rlim_cur
}
