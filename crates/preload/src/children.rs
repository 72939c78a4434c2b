//! Children that were made by fork, and which may be at work with what this process has open.
//!
//! What executing closes they have until they execute a program or end. Then the kernel closes one end of a pair of
//! sockets that each child holds, and its own children, too; this process has the other end. A child that hands
//! something on, so that it may outlive all this, says so there: then it is shared for good.

use crate::files::{self, Sharers};
use crate::real::kernel;
use crate::{alone, process};
use libc::c_int;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Children that are told apart; further ones are as strangers.
pub(crate) const COUNT_MAX: usize = 63;
/// Ancestors that a process tells of what it does; one of more generations has none.
const ANCESTORS_MAX: usize = 16;

/// A child's number, and the end that is closed with it.
type Child = (u32, OwnedFd);

static CHILDREN: Mutex<Vec<Child>> = Mutex::new(Vec::new());
/// There are some.
static ANY: AtomicBool = AtomicBool::new(false);
/// The ends that this process holds for its ancestors, the first so many.
static HELD: [AtomicI32; ANCESTORS_MAX] = [const { AtomicI32::new(-1) }; ANCESTORS_MAX];
static ANCESTORS: AtomicUsize = AtomicUsize::new(0);

/// A child that is being made: this process's end and its own, if it is to be told of.
pub(crate) struct Making {
    children: MutexGuard<'static, Vec<Child>>,
    child: Option<(Child, OwnedFd)>,
}

fn children() -> MutexGuard<'static, Vec<Child>> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether there may be any.
#[inline]
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// A child is about to be made. To be called inside.
pub(crate) fn make() -> Making {
    let mut children = children();
    look(&mut children, u64::MAX);
    let free = (0..COUNT_MAX as u32).find(|number| children.iter().all(|(it, _)| it != number));
    let is_told_of = ANCESTORS.load(Ordering::Relaxed) < ANCESTORS_MAX
        && !alone::is_on()
        && files::any_to_share();
    let child = free.filter(|_| is_told_of).and_then(|number| {
        let (ours, theirs) = UnixStream::pair().ok()?;
        let [ours, theirs] = [ours, theirs].map(|end| crate::engine::mover(end.into()));
        files::is_ours_and_childrens(theirs.as_raw_fd());
        Some(((number, ours), theirs))
    });
    Making { children, child }
}

/// As [`make`], for a child that nobody told us of, without waiting.
pub(crate) fn try_make() -> Option<Making> {
    CHILDREN.try_lock().ok().map(|children| Making { children, child: None })
}

impl Making {
    /// In the parent, once the child has been made, or not. To be called inside.
    pub(crate) fn made(mut self) {
        let Some((child, theirs)) = self.child.take() else {
            return files::share(Sharers::Anybody);
        };
        files::share(Sharers::Child(child.0));
        self.children.push(child);
        ANY.store(true, Ordering::Relaxed);
        drop(theirs);
    }

    /// In the child, whose parent's children are no business of its own. Before descriptors are closed that are the
    /// parent's alone.
    pub(crate) fn abandon(mut self) {
        std::mem::forget(std::mem::take(&mut *self.children));
        ANY.store(false, Ordering::Relaxed);
        if let Some((parents, own)) = self.child.take() {
            std::mem::forget(parents);
            let place = ANCESTORS.fetch_add(1, Ordering::Relaxed);
            HELD[place].store(own.into_raw_fd(), Ordering::Relaxed);
        }
    }
}

/// Looks whether these children have ended. To be called inside.
pub(crate) fn look_at(wanted: u64) {
    look(&mut children(), wanted);
}

fn look(children: &mut Vec<Child>, wanted: u64) {
    let (mut ended, mut handed_on) = (0, 0);
    children.retain(|(number, end)| {
        let bit = 1 << number;
        if wanted & bit == 0 {
            return true;
        }
        let mut byte = 0u8;
        let options = libc::MSG_DONTWAIT;
        let came: c_int = kernel!(SYS_recvfrom, end.as_raw_fd(), &raw mut byte, 1, options, 0, 0);
        match came {
            0 => ended |= bit,
            1 => handed_on |= bit,
            _ if matches!(process::errno(), libc::EAGAIN | libc::EINTR) => return true,
            _ => handed_on |= bit,
        }
        false
    });
    ANY.store(!children.is_empty(), Ordering::Relaxed);
    for (these, handed_on) in [(ended, false), (handed_on, true)] {
        if these != 0 {
            files::ended(these, handed_on);
        }
    }
}

/// This process, or a child of its `vfork`, makes it possible that a descriptor outlives it, and what it executes.
pub(crate) fn hand_on(fd: c_int) {
    let ancestors = ANCESTORS.load(Ordering::Relaxed);
    if ancestors == 0 || process::is_inside() || !files::is_inherited(fd) {
        return;
    }
    let errno = process::errno();
    for end in &HELD[..ancestors] {
        let options = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let _: c_int =
            kernel!(SYS_sendto, end.load(Ordering::Relaxed), b"x".as_ptr(), 1, options, 0, 0);
    }
    process::set_errno(errno);
}
