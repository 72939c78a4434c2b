//! stdio's streams of pool files: larger buffers, and descriptors that are the library's.
//!
//! The C library reads and writes its streams' descriptors by itself, where nobody can step in, and 8 KiB at a time,
//! however large the pieces are that the file system asks for. But it takes memory for a stream, if it is given some
//! before the first use. Records of 4 KiB then go four to five times as fast (docs/posix.md).
//!
//! C++'s streams open theirs as stdio's, and read and write the descriptor by functions that the library sees.

use crate::alone;
use crate::files;
use crate::process::{self, Inside};
use libc::{FILE, c_char, c_int};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use weir_client::mounts::{Mount, mounts};
use weir_core::copying::{PAGE_BYTES, PLACE_IN_PAGE};

/// For a stream that is only written: bytes, as many as the file system asks for.
const WRITTEN_BYTES: usize = 128 << 10;
/// For one that is only read: bytes. Whoever reads here and there throws most of them away.
const READ_BYTES: usize = 64 << 10;
/// Streams that have such buffers at a time: 32 MiB at most. Others keep their own.
const GIVEN_MAX: usize = 256;
/// Buffers that are kept for the next stream: many programs open one file after the other.
const SPARE_MAX: usize = 4;

/// Streams of pool files, by their address; and memory of some that are closed.
pub(crate) struct Streams {
    open: BTreeMap<usize, Stream>,
    spare: Vec<Vec<u8>>,
}

/// Its descriptor, and the memory that it was given.
pub(crate) struct Stream {
    fd: c_int,
    memory: Option<Vec<u8>>,
}

static STREAMS: Mutex<Streams> = Mutex::new(Streams { open: BTreeMap::new(), spare: Vec::new() });

/// Something that can be held still while a child is made.
pub(crate) type Held = MutexGuard<'static, Streams>;

/// Nobody opens or closes such a stream until the guard is dropped.
pub(crate) fn hold() -> Held {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream was just opened, by this path (null: for a descriptor) and in this mode.
///
/// # Safety
/// The stream is open and nobody has used it; path and mode end.
pub(crate) unsafe fn opened(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    if stream.is_null() || !applies() {
        return stream;
    }
    // SAFETY: the caller's promise.
    let (path, mode, fd) = unsafe {
        let path = (!path.is_null()).then(|| CStr::from_ptr(path).to_bytes());
        (path, CStr::from_ptr(mode).to_bytes(), libc::fileno(stream))
    };
    let inside = Inside::enter();
    if !is_mounted(path, fd) {
        return stream;
    }
    let mut streams = hold();
    // SAFETY: the caller's promise.
    let memory = length(mode).and_then(|length| unsafe { streams.give(stream, length) });
    // What was left of a stream that the C library closed by itself is nobody's any more.
    streams.open.insert(stream as usize, Stream { fd, memory });
    drop((streams, inside));
    if path.is_some() {
        files::opened(fd);
    }
    stream
}

unsafe extern "C" {
    static stdin: *mut FILE;
    static stdout: *mut FILE;
    static stderr: *mut FILE;
}

/// The descriptor is what the program begins with, and a pool's file that nobody else has open: if it is that of a
/// standard stream, this is as good as just opened. Only what is written for long gets a buffer. To be called before the
/// program runs.
pub(crate) fn begins_with(fd: c_int) {
    // SAFETY: the C library's streams, which nobody has used yet.
    unsafe {
        match fd {
            libc::STDIN_FILENO => opened(std::ptr::null(), c"r+".as_ptr(), stdin),
            libc::STDOUT_FILENO => opened(std::ptr::null(), c"w".as_ptr(), stdout),
            libc::STDERR_FILENO => opened(std::ptr::null(), c"r+".as_ptr(), stderr),
            _ => return,
        };
    }
}

/// Whether a stream has this descriptor: it moves bytes behind the library's back, which then must not keep any.
pub(crate) fn has(fd: c_int) -> bool {
    hold().open.values().any(|stream| stream.fd == fd)
}

/// How large a buffer a stream of this mode is given. What is read and written in turns goes to and fro, and keeps
/// its own; mappings have none.
fn length(mode: &[u8]) -> Option<usize> {
    let mode = mode.split(|byte| *byte == b',').next()?;
    if mode.iter().any(|byte| b"+m".contains(byte)) {
        return None;
    }
    match mode.first()? {
        b'r' => Some(READ_BYTES),
        b'w' | b'a' => Some(WRITTEN_BYTES),
        _ => None,
    }
}

/// Whether it lies in a mounted pool.
fn is_mounted(path: Option<&[u8]>, fd: c_int) -> bool {
    /// Those that there were when the first stream was opened.
    static POOLS: OnceLock<Vec<Mount>> = OnceLock::new();
    let pools = POOLS.get_or_init(|| mounts().into_iter().filter(Mount::is_pool).collect());
    let below = |path: &[u8]| {
        let within = |pool: &Mount| path.starts_with(pool.at.as_os_str().as_bytes());
        path.first() != Some(&b'/') || pools.iter().any(within)
    };
    // Where a path leads away from is not asked: most streams are of other files.
    if pools.is_empty() || !path.is_none_or(below) {
        return false;
    }
    let device = files::device(fd);
    pools.iter().any(|pool| Some(pool.device) == device)
}

impl Streams {
    /// Gives a stream a buffer of so many bytes: memory that must stay until it is closed.
    ///
    /// # Safety
    /// The stream is open and nobody has used it.
    unsafe fn give(&mut self, stream: *mut FILE, length: usize) -> Option<Vec<u8>> {
        if self.open.len() >= GIVEN_MAX {
            return None;
        }
        let mut memory =
            self.spare.pop().unwrap_or_else(|| Vec::with_capacity(PAGE_BYTES + WRITTEN_BYTES));
        // The first place of this kind: less than a page from the beginning.
        let start = memory.as_mut_ptr();
        let place = (start as usize).wrapping_sub(PLACE_IN_PAGE).next_multiple_of(PAGE_BYTES);
        let place = start.wrapping_add(place + PLACE_IN_PAGE - start as usize).cast();
        // SAFETY: an open stream, and so much memory.
        let set = unsafe { libc::setvbuf(stream, place, libc::_IOFBF, length) };
        (set == 0).then_some(memory)
    }
}

/// What a stream that is about to be closed had; to be given to [`closed`] when that is done. The stream may be opened
/// again at the same address meanwhile. Nothing is dropped if the thread is cancelled in between.
pub(crate) fn closing(stream: *mut FILE) -> ManuallyDrop<Option<Stream>> {
    if !applies() {
        return ManuallyDrop::new(None);
    }
    let _inside = Inside::enter();
    ManuallyDrop::new(hold().open.remove(&(stream as usize)))
}

/// See [`closing`].
pub(crate) fn closed(stream: ManuallyDrop<Option<Stream>>) {
    let Some(Stream { memory: Some(memory), .. }) = ManuallyDrop::into_inner(stream) else {
        return;
    };
    let _inside = Inside::enter();
    let mut streams = hold();
    if streams.spare.len() < SPARE_MAX {
        streams.spare.push(memory);
    }
}

/// Not where another thread of a parent may have been at it for ever.
fn applies() -> bool {
    process::attends() && !process::inherited() && !alone::is_on()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_go_one_way_are_given_buffers() {
        let lengths = ["r", "rb", "we", "ab", "r,ccs=UTF-8"].map(|mode| length(mode.as_bytes()));
        let (read, written) = (Some(READ_BYTES), Some(WRITTEN_BYTES));
        assert_eq!(lengths, [read, read, written, written, read]);
        for mode in ["r+", "wb+", "a+e", "rm", "", "x"] {
            assert_eq!(length(mode.as_bytes()), None, "{mode}");
        }
    }
}
