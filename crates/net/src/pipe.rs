//! Pipes, by which the kernel hands pages on instead of copying what is in them.

use crate::descriptors::moved;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Both ends of a pipe; nothing waits at either.
#[derive(Debug)]
pub struct Pipe {
    /// Where it is read.
    pub exit: OwnedFd,
    /// Where it is written.
    pub entrance: OwnedFd,
}

impl Pipe {
    /// A pipe with room for so many bytes. What counts are places: one for each page of that, of
    /// which a run of pages takes one too. More than 1 MiB is not everybody's to ask for, nor more
    /// than 64 MiB in all of a user's pipes.
    pub fn new(room: usize) -> io::Result<Pipe> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us these descriptors.
        let [exit, entrance] = ends.map(|end| moved(unsafe { OwnedFd::from_raw_fd(end) }));
        let room = libc::c_int::try_from(room).map_err(io::Error::other)?;
        // SAFETY: no pointers.
        if unsafe { libc::fcntl(entrance.as_raw_fd(), libc::F_SETPIPE_SZ, room) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Pipe { exit, entrance })
    }
}

/// Moves at most `length` bytes between two descriptors, of which one is a pipe's, without waiting.
/// `more`: others follow at once.
pub fn splice(from: RawFd, to: RawFd, length: usize, more: bool) -> io::Result<usize> {
    let none = std::ptr::null_mut();
    let flags = libc::SPLICE_F_NONBLOCK | if more { libc::SPLICE_F_MORE } else { 0 };
    loop {
        // SAFETY: no offsets; the kernel checks the descriptors.
        let count = unsafe { libc::splice(from, none, to, none, length, flags) };
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
