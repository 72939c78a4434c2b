//! Memory for payload, aligned to pages: so copies between it and a program's pages go page by page,
//! not by pieces of two.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a page, or a multiple of it.
pub(crate) const PAGE_BYTES: usize = 4096;

/// A run of pages of its own, zeroed at first.
#[derive(Debug)]
pub(crate) struct Buffer {
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: it owns its memory, which nothing else refers to.
unsafe impl Send for Buffer {}

impl Buffer {
    pub(crate) fn new(length: usize) -> io::Result<Buffer> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: asks for fresh memory.
        let pointer = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if pointer == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pointer = NonNull::new(pointer.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Buffer { pointer, length })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nobody has it any more.
        unsafe { libc::munmap(self.pointer.as_ptr().cast(), self.length) };
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped, and zeroed or written.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}
