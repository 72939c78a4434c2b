//! What happens when the process divides.
//!
//! After `fork` the child makes its own connections; the parent's stay sound. Descriptors are then
//! shared, and the kernel, which keeps their position, must be the one to move it.

use crate::alone::{directories, streams};
use crate::children::Making;
use crate::files::Sharers;
use crate::process::{self, Inside};
use crate::real::kernel;
use crate::{buffer, children, engine, files, memory, stdio};
use libc::c_int;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Children that are being made: whoever looks for children may not find these yet, and these may still
/// hand descriptors on.
static MAKING: AtomicUsize = AtomicUsize::new(0);
/// A descriptor was to be given to children before it was opened.
static GIVEN_EARLY: AtomicBool = AtomicBool::new(false);

/// What [`prepare`] holds until the child has been made. Touched by the thread that forks alone,
/// while it has the locks.
struct Held(UnsafeCell<Option<(Making, All, Inside)>>);

/// What is held still. Streams and directories are as good in the child.
type All =
    (files::Held, engine::Held, buffer::Held, (streams::Held, directories::Held, stdio::Held));

// SAFETY: see above.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Registers what is to be done at every `fork`.
pub(crate) fn begin() {
    // SAFETY: the functions stay: the library is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

extern "C" fn prepare() {
    if !process::attends() {
        return;
    }
    let inside = Inside::enter();
    MAKING.fetch_add(1, Ordering::SeqCst);
    buffer::stop();
    let making = children::make();
    let buffers = buffer::hold();
    let engines = engine::hold();
    let streams = (streams::hold(), directories::hold(), stdio::hold());
    let held = (making, (files::hold(), engines, buffers, streams), inside);
    // SAFETY: the locks are ours now.
    unsafe { *HELD.0.get() = Some(held) };
    memory::hold();
}

extern "C" fn parent() {
    // SAFETY: the locks are ours still, or there is nothing.
    if let Some((making, held, _inside)) = unsafe { (*HELD.0.get()).take() } {
        memory::let_go();
        drop(held);
        // Also what another thread opened a moment ago.
        making.made();
        made();
    }
}

extern "C" fn child() {
    // SAFETY: as above; this thread is the only one here.
    let Some((making, (files, engines, buffers, streams), _inside)) =
        (unsafe { (*HELD.0.get()).take() })
    else {
        return;
    };
    memory::let_go();
    drop(streams);
    abandon(making, files, engines, buffers);
}

fn abandon(making: Making, files: files::Held, engines: engine::Held, buffers: buffer::Held) {
    MAKING.store(0, Ordering::SeqCst);
    making.abandon();
    files::abandon(files);
    engine::abandon(engines);
    buffer::abandon(buffers);
    process::claim();
}

/// This is the child of a bare `clone`, and finds out only now. Another thread of the parent may
/// have held a lock at that moment: then there is nobody here to give it back, and everything is
/// left to the kernel.
pub(crate) fn adopted_by_stranger() {
    if !memory::try_hold() {
        return process::end();
    }
    memory::let_go();
    match (children::try_make(), files::try_hold(), engine::try_hold(), buffer::try_hold()) {
        (Some(making), Some(files), Some(engines), Some(buffers)) => {
            abandon(making, files, engines, buffers);
        }
        _ => process::end(),
    }
}

/// Starts a program without our seeing the child: it has the descriptors that it inherits, and those that it
/// is given, and nothing is buffered as long as there are children.
pub(crate) fn spawns<T>(program: impl FnOnce() -> T) -> T {
    if !process::attends() {
        return program();
    }
    MAKING.fetch_add(1, Ordering::SeqCst);
    parts();
    let result = program();
    made();
    result
}

/// This thread is about to `vfork`. Its child is this process in all but its descriptors until it executes a
/// program, and may hand on to that also what executing would close (see [`gives`]).
pub(crate) fn vforks() {
    // The child of one has the first one's memory too.
    if process::is_guest() {
        return;
    }
    MAKING.fetch_add(1, Ordering::SeqCst);
    if process::attends() {
        parts();
    }
    process::vforks();
}

fn parts() {
    let _inside = Inside::enter();
    buffer::stop();
    files::share(match GIVEN_EARLY.load(Ordering::Relaxed) {
        true => Sharers::Anybody,
        false => Sharers::Program,
    });
}

/// A child has been made.
pub(crate) fn made() {
    MAKING.fetch_sub(1, Ordering::SeqCst);
}

/// Whether children are being made.
pub(crate) fn is_making() -> bool {
    MAKING.load(Ordering::SeqCst) > 0
}

/// A child gets this descriptor, whether it inherits it or not.
pub(crate) fn gives(fd: c_int) {
    children::hand_on(fd);
    if process::is_guest() {
        return files::given(fd);
    }
    if !process::attends() {
        return;
    }
    let _inside = Inside::enter();
    let flags: c_int = kernel!(SYS_fcntl, fd, libc::F_GETFD);
    match flags {
        ..0 => GIVEN_EARLY.store(true, Ordering::Relaxed),
        _ => files::share_one(fd),
    }
}

/// As [`spawns`], for a program whose end is waited for: what it finds is written before, and what
/// it may have changed is read anew.
pub(crate) fn waits_for<T>(program: impl FnOnce() -> T) -> T {
    buffer::settle();
    if process::attends() {
        let _inside = Inside::enter();
        files::share(Sharers::Program);
    }
    let result = program();
    buffer::forget();
    result
}
