//! A sign that a descriptor has in the kernel, by which it is known again.
//!
//! Where it may have changed the kernel is asked what a descriptor is now (see [`files`](crate::files)). To ask
//! which file it is takes 0.5 us, a fifth of a request of 4 KiB; to ask for one small number that belongs to what
//! was opened takes 0.1, and 0.3 where there are other threads. There is one that nobody uses of regular files: the
//! signal that a program wants where the descriptor can be read again, or loses a lease. It is 0 of whatever is
//! opened anew.

use crate::real::kernel;
use libc::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

pub(crate) const F_SETSIG: c_int = 10;
pub(crate) const F_GETSIG: c_int = 11;
/// Commands of fcntl's by which a program uses that number itself, or has it used.
const USES: [c_int; 6] =
    [libc::F_SETOWN, F_SETSIG, F_GETSIG, F_SETOWN_EX, libc::F_SETLEASE, libc::F_NOTIFY];
const F_SETOWN_EX: c_int = 15;

/// Signals that a descriptor of this process is marked with, by bits: 1 is bit 0. A child of fork has its
/// parent's descriptors, and leaves these numbers alone.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Is on what was opened, not on a descriptor's number: duplicates have the same. No two marks of a process
/// are alike.
pub(crate) struct Mark(AtomicI32);

impl Mark {
    pub(crate) const fn none() -> Mark {
        Mark(AtomicI32::new(0))
    }

    /// Marks what a descriptor is open on, if nothing speaks against it. To be called only where no other
    /// process has it.
    pub(crate) fn put(fd: c_int) -> Mark {
        let mark = Mark::none();
        let there: c_int = kernel!(SYS_fcntl, fd, F_GETSIG);
        if there == 0
            && let Some(signal) = take()
        {
            // Given back at the end, whatever the kernel says.
            mark.0.store(signal, Ordering::Relaxed);
            let set: c_int = kernel!(SYS_fcntl, fd, F_SETSIG, signal);
            if set != 0 {
                return Mark::none();
            }
        }
        mark
    }

    /// Whether the descriptor is open on what was marked. None: there is no mark, ask otherwise.
    #[inline]
    pub(crate) fn is_on(&self, fd: c_int) -> Option<bool> {
        let signal = self.0.load(Ordering::Relaxed);
        (signal != 0).then(|| {
            let there: c_int = kernel!(SYS_fcntl, fd, F_GETSIG);
            there == signal
        })
    }

    /// The program is about to use what the mark is made of: it is as if there had never been one.
    pub(crate) fn remove(&self, fd: c_int) {
        if self.is_on(fd) == Some(true) {
            let _: c_int = kernel!(SYS_fcntl, fd, F_SETSIG, 0);
        }
        give_back(self.0.swap(0, Ordering::Relaxed));
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        give_back(*self.0.get_mut());
    }
}

/// Whether a program that calls fcntl so must not find a mark.
pub(crate) fn is_in_the_way_of(command: c_int) -> bool {
    USES.contains(&command)
}

/// A number that no other mark has; none: all are in use.
fn take() -> Option<c_int> {
    let free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
    let before = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok()?;
    Some(before.trailing_ones() as c_int + 1)
}

fn give_back(signal: c_int) {
    if signal != 0 {
        TAKEN.fetch_and(!(1 << (signal - 1)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn signal_of(file: &File) -> c_int {
        kernel!(SYS_fcntl, file.as_raw_fd(), F_GETSIG)
    }

    fn open() -> File {
        File::open("/proc/self/exe").expect("a file")
    }

    #[test]
    fn what_is_marked_is_known_again() {
        let files: Vec<_> = (0..70).map(|_| open()).collect();
        let marks: Vec<_> = files.iter().map(|file| Mark::put(file.as_raw_fd())).collect();
        let unmarked = marks.iter().filter(|mark| mark.is_on(0).is_none()).count();
        assert_eq!(unmarked, 70 - 64, "no two are alike");
        for (mark, file) in marks.iter().zip(&files).take(64) {
            let on = |file: &File| mark.is_on(file.as_raw_fd()).expect("a mark");
            assert!(on(file) && on(&file.try_clone().expect("a duplicate")));
            assert_eq!(files.iter().filter(|other| on(other)).count(), 1);
            assert!(!on(&open()));
            assert_eq!(mark.is_on(-1), Some(false));
        }
        marks[5].remove(files[5].as_raw_fd());
        assert_eq!((marks[5].is_on(files[5].as_raw_fd()), signal_of(&files[5])), (None, 0));
        // What has the program's own signal is left alone.
        let fd = files[5].as_raw_fd();
        let _: c_int = kernel!(SYS_fcntl, fd, F_SETSIG, libc::SIGURG);
        assert_eq!((Mark::put(fd).is_on(fd), signal_of(&files[5])), (None, libc::SIGURG));
        drop(marks);
        let one = open();
        assert_eq!(
            Mark::put(one.as_raw_fd()).is_on(one.as_raw_fd()),
            Some(true),
            "there is room again"
        );
    }
}
