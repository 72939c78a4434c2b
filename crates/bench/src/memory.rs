//! Page-aligned memory of a stated size.

use std::io;
use std::ptr::NonNull;

/// Anonymous memory, on huge pages where the kernel gives them, as a server's own.
pub(crate) struct Region {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Region {}
// SAFETY: it is changed through `&mut` only, or by address, by who promises to synchronise.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `length` bytes, all zero.
    pub(crate) fn new(length: usize) -> io::Result<Region> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping; no existing memory is touched.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: exactly the mapping just made.
        unsafe { libc::madvise(base, length, libc::MADV_HUGEPAGE) };
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Region { base, length })
    }

    /// Its first byte.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How many bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// All of it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is valid and initialised, and `&mut self` makes this the only use.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no reference into it outlives this value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
