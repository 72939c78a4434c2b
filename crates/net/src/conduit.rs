//! Sending memory from where it is: the kernel is lent its pages by way of a pipe, so that nothing is
//! copied on this side, and no memory of the kernel's is needed for what is under way.

use crate::descriptors::moved;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use weir_core::slice::Slice;

/// Room in a pipe, in bytes: places, one for each page of that, of which a run of pages takes one
/// too. More than 1 MiB is not everybody's to ask for.
const PIPE_BYTES: usize = 256 * 1024;
/// Conduits of a process; whoever finds no room for his copies. An ordinary user may have 64 MiB of
/// room in all of his pipes, and new ones become tiny beyond that: this is an eighth of it.
const CONDUITS_MAX: usize = 32;

static CONDUITS: AtomicUsize = AtomicUsize::new(0);

/// A pipe on the way to one socket.
#[derive(Debug)]
pub(crate) struct Conduit {
    /// Where the pipe is read; nothing waits at either end.
    exit: OwnedFd,
    /// Where it is written.
    entrance: OwnedFd,
    /// Bytes in the pipe.
    held: usize,
    _share: Share,
}

/// One of [`CONDUITS_MAX`].
#[derive(Debug)]
struct Share;

impl Share {
    fn new() -> Option<Share> {
        // Counted first, so that it is given back if there are too many.
        let share = Share;
        (CONDUITS.fetch_add(1, Ordering::Relaxed) < CONDUITS_MAX).then_some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        CONDUITS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Conduit {
    /// None: there are enough of them, or pipes of this size cannot be had.
    pub(crate) fn new() -> Option<Conduit> {
        let _share = Share::new()?;
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
            return None;
        }
        // SAFETY: the kernel just gave us these descriptors.
        let [exit, entrance] = ends.map(|end| moved(unsafe { OwnedFd::from_raw_fd(end) }));
        let room = PIPE_BYTES as libc::c_int;
        // SAFETY: no pointers.
        let set = unsafe { libc::fcntl(entrance.as_raw_fd(), libc::F_SETPIPE_SZ, room) };
        (set >= 0).then_some(Conduit { exit, entrance, held: 0, _share })
    }

    /// Bytes that were lent and have not gone on yet.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Lends the kernel the beginning of a slice: as much as there is room for. EFAULT: it cannot be
    /// read.
    ///
    /// # Safety
    /// The slice names memory that whoever made it keeps valid until this returns.
    pub(crate) unsafe fn lend(&mut self, slice: Slice) -> io::Result<()> {
        let vector = libc::iovec { iov_base: slice.pointer.cast(), iov_len: slice.length };
        let entrance = self.entrance.as_raw_fd();
        // SAFETY: one vector, of memory that is there by the caller's promise.
        let count =
            unsafe { libc::vmsplice(entrance, &raw const vector, 1, libc::SPLICE_F_NONBLOCK) };
        self.held += usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        Ok(())
    }

    /// Moves what is held on to a socket, as far as that takes it; gives how much. `more`: the rest of
    /// the frame follows.
    pub(crate) fn drain(&mut self, socket: RawFd, more: bool) -> io::Result<usize> {
        let none = std::ptr::null_mut();
        let flags = libc::SPLICE_F_NONBLOCK | if more { libc::SPLICE_F_MORE } else { 0 };
        let exit = self.exit.as_raw_fd();
        // SAFETY: no offsets; the kernel checks the descriptors.
        let count = unsafe { libc::splice(exit, none, socket, none, self.held, flags) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        self.held -= count;
        Ok(count)
    }
}
