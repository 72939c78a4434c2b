//! Memory of targets: anonymous pages, huge where the kernel gives them.

use std::io;
use std::ptr::NonNull;
use weir_core::error::{Code, Error, Result};
use weir_core::service::storage::Memory;

/// Anonymous memory of a stated size; pages are taken from the machine as they are first used.
#[derive(Debug)]
pub(crate) struct MappedMemory {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone; who uses it synchronises (see `Memory`).
unsafe impl Send for MappedMemory {}
// SAFETY: as above.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Maps `length` bytes.
    ///
    /// # Errors
    /// If the machine does not give them.
    pub(crate) fn new(length: u64) -> Result<MappedMemory> {
        MappedMemory::map(length as usize).map_err(|error| {
            Error::because(Code::NoSpace, error.to_string())
                .on("reserve memory", format!("{length} bytes"))
        })
    }

    fn map(length: usize) -> io::Result<MappedMemory> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping; no existing memory is touched.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Fewer page faults and a smaller page table; where the kernel has none, nothing is lost.
        // SAFETY: exactly the mapping just made.
        unsafe {
            libc::madvise(base, length, libc::MADV_HUGEPAGE);
            // File contents have no business in a core dump of the server.
            libc::madvise(base, length, libc::MADV_DONTDUMP);
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(MappedMemory { base, length })
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nobody holds slices of it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

// SAFETY: `base` is valid for `length` bytes, reads and writes, as long as this value lives, and
// the kernel gives zeroed pages.
unsafe impl Memory for MappedMemory {
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn length(&self) -> usize {
        self.length
    }

    fn discard(&self, offset: usize, length: usize) {
        assert!(offset + length <= self.length);
        // SAFETY: within the mapping; the caller says that nothing there is in use, and what is used
        // again later is written first.
        unsafe {
            libc::madvise(self.base.as_ptr().add(offset).cast(), length, libc::MADV_DONTNEED)
        };
    }
}
