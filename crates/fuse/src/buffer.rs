//! Memory for payload: at the beginning of a page for what the kernel brings, so that it goes page by page
//! and not by pieces of two, and a little behind it for what the kernel takes.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use weir_core::copying::PLACE_IN_PAGE;

/// Bytes of a huge page, as most machines have them.
const HUGE_BYTES: usize = 2 << 20;

/// A run of pages of its own, zeroed at first.
#[derive(Debug)]
pub(crate) struct Buffer {
    pointer: NonNull<u8>,
    length: usize,
    /// What was asked of the kernel: address and bytes.
    mapped: (*mut libc::c_void, usize),
}

// SAFETY: it owns its memory, which nothing else refers to.
unsafe impl Send for Buffer {}

impl Buffer {
    /// What follows the first `head` bytes, up to 2 MiB, lies in one huge page where the kernel has
    /// one to give: who copies there, or lends the pages, has fewer to look up.
    pub(crate) fn new(head: usize, length: usize) -> io::Result<Buffer> {
        Buffer::huge(head, 0, length)
    }

    /// For what the kernel copies into a program's memory: see [`PLACE_IN_PAGE`].
    pub(crate) fn to_answer(length: usize) -> io::Result<Buffer> {
        Buffer::huge(0, PLACE_IN_PAGE, length)
    }

    /// It begins so many bytes before a huge page, or behind.
    fn huge(before: usize, behind: usize, length: usize) -> io::Result<Buffer> {
        debug_assert!(before <= length && behind <= HUGE_BYTES);
        // Somewhere in there a huge page begins behind a head, and ends.
        let whole = length + behind + 2 * HUGE_BYTES;
        let base = map(whole)?;
        let page = base.wrapping_byte_add(before);
        let page =
            page.wrapping_byte_add((page as usize).next_multiple_of(HUGE_BYTES) - page as usize);
        // SAFETY: the page was mapped with the rest. If there is none to be had, all works as well.
        unsafe { libc::madvise(page, HUGE_BYTES, libc::MADV_HUGEPAGE) };
        let start = page.wrapping_byte_sub(before).wrapping_byte_add(behind);
        let pointer = NonNull::new(start.cast()).expect("mapped memory has an address");
        Ok(Buffer { pointer, length, mapped: (base, whole) })
    }

    /// In pages that the kernel gives one by one, as they are used.
    pub(crate) fn small(length: usize) -> io::Result<Buffer> {
        let base = map(length)?;
        let pointer = NonNull::new(base.cast()).expect("mapped memory has an address");
        Ok(Buffer { pointer, length, mapped: (base, length) })
    }

    /// Where it begins. It stays there.
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }
}

fn map(length: usize) -> io::Result<*mut libc::c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: asks for fresh memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base) }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (base, length) = self.mapped;
        // SAFETY: mapped with this length; nobody has it any more.
        unsafe { libc::munmap(base, length) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::copying::PAGE_BYTES;

    #[test]
    fn answers_begin_behind_a_page() {
        let mut buffer = Buffer::to_answer(100_000).unwrap();
        assert_eq!(buffer.as_ptr() as usize % PAGE_BYTES, PLACE_IN_PAGE);
        buffer.fill(1);
        assert_eq!(buffer.len(), 100_000);
    }

    #[test]
    fn what_follows_the_head_begins_at_a_huge_page() {
        for head in [0, PAGE_BYTES, HUGE_BYTES] {
            let mut buffer = Buffer::new(head, head + 100_000).unwrap();
            assert_eq!(buffer[head..].as_ptr() as usize % HUGE_BYTES, 0);
            assert_eq!(buffer.len(), head + 100_000);
            // All of it, and all of the huge page, is there.
            buffer.fill(1);
            let page = buffer.pointer.as_ptr().wrapping_add(head);
            // SAFETY: mapped with the buffer.
            unsafe { page.write_bytes(2, HUGE_BYTES) };
            assert!(buffer[..head].iter().all(|byte| *byte == 1));
        }
    }
}
