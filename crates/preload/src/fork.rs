//! What happens when the process divides.
//!
//! After `fork` the child makes its own connections; the parent's stay sound. Descriptors are then
//! shared, and the kernel, which keeps their position, must be the one to move it.

use crate::alone::{directories, streams};
use crate::process::{self, Inside};
use crate::{buffer, engine, files, memory, stdio};
use std::cell::UnsafeCell;

/// What [`prepare`] holds until the child has been made. Touched by the thread that forks alone,
/// while it has the locks.
struct Held(UnsafeCell<Option<(All, Inside)>>);

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
    buffer::end();
    let buffers = buffer::hold();
    let engines = engine::hold();
    let streams = (streams::hold(), directories::hold(), stdio::hold());
    let held = ((files::hold(), engines, buffers, streams), inside);
    // SAFETY: the locks are ours now.
    unsafe { *HELD.0.get() = Some(held) };
    memory::hold();
}

extern "C" fn parent() {
    // SAFETY: the locks are ours still, or there is nothing.
    if let Some((held, _inside)) = unsafe { (*HELD.0.get()).take() } {
        memory::let_go();
        drop(held);
        // Also what another thread opened a moment ago.
        files::share(true);
    }
}

extern "C" fn child() {
    // SAFETY: as above; this thread is the only one here.
    let Some(((files, engines, buffers, streams), _inside)) = (unsafe { (*HELD.0.get()).take() })
    else {
        return;
    };
    memory::let_go();
    drop(streams);
    abandon(files, engines, buffers);
}

fn abandon(files: files::Held, engines: engine::Held, buffers: buffer::Held) {
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
    match (files::try_hold(), engine::try_hold(), buffer::try_hold()) {
        (Some(files), Some(engines), Some(buffers)) => abandon(files, engines, buffers),
        _ => process::end(),
    }
}

/// Before a program is started without our seeing the child: descriptors are shared from now on, and
/// nothing is buffered any more.
pub(crate) fn spawns() {
    if process::attends() {
        let _inside = Inside::enter();
        buffer::end();
        // Also those that are closed by executing: the child may duplicate them first.
        files::share(true);
    }
}

/// As [`spawns`], for a program whose end is waited for: what it finds is written before, and what
/// it may have changed is read anew.
pub(crate) fn waits_for<T>(program: impl FnOnce() -> T) -> T {
    buffer::settle();
    if process::attends() {
        let _inside = Inside::enter();
        files::share(false);
    }
    let result = program();
    buffer::forget();
    result
}
