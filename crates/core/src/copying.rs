//! Copies of payload, where those of the C library are slow.
//!
//! What is measured here is an AMD EPYC of the third generation (Milan), one core, 64 KiB at a time:
//!
//! - From 2 KiB on the library leaves a copy to the processor's own instruction (`rep movsb`). Where the
//!   destination lies 1 to 31 bytes behind the source, but for whole pages, that moves 1.7 to 2.8 GB/s, and
//!   30 to 80 everywhere else. It is no rare place: what the library gives out for 128 KiB and more begins 16
//!   bytes behind a page.
//! - Into memory that no cache has, a MiB takes 132 us, and past the caches 57.

/// Smaller copies the library does in its own way.
const INSTRUCTED_BYTES_MIN: usize = 1024;
/// So far behind the source, but for whole pages, a destination is avoided.
const TOO_CLOSE_BYTES: usize = 64;
/// Addresses that are equal but for whole pages of this size a processor may take for the same at first: bytes.
pub const PAGE_BYTES: usize = 4096;
/// So many bytes behind a page begins what the kernel or the C library copies into a program's memory, or
/// takes from it: nobody can tell these how to copy. Programs' memory begins at a page, or 16 or 32 bytes
/// behind one (what is allocated, and what is aligned for vectors), or at a line.
pub const PLACE_IN_PAGE: usize = 64;
const LINE_BYTES: usize = 64;

/// Copies as [`std::ptr::copy_nonoverlapping`] does, and as fast wherever the two places lie.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    let apart = (to as usize).wrapping_sub(from as usize) % PAGE_BYTES;
    if length < INSTRUCTED_BYTES_MIN || !(1..TOO_CLOSE_BYTES).contains(&apart) {
        // SAFETY: the caller's promise.
        return unsafe { to.copy_from_nonoverlapping(from, length) };
    }
    // SAFETY: the caller's promise.
    unsafe { in_lines(from, to, length, copy_line::<false>) };
}

/// Writes bytes from `at` on, over what is there and behind its end.
///
/// # Panics
/// If they would begin behind the end.
pub fn write_over(into: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    assert!(at <= into.len(), "no gap is left");
    let end = at + bytes.len();
    into.reserve(end.saturating_sub(into.len()));
    // SAFETY: there is room for them, and no reference to what is written there; what counts as written
    // is, up to the end.
    unsafe {
        copy(bytes.as_ptr(), into.as_mut_ptr().add(at), bytes.len());
        into.set_len(end.max(into.len()));
    }
}

/// Copies as `copy_nonoverlapping` does, but whole lines go past the caches where the processor can do
/// that: to write a part of a line, or a line in the ordinary way, it first fetches what will be
/// overwritten. In memory that was not touched lately that is most of the time. Others see the bytes only
/// after [`settle`].
///
/// # Safety
/// As for `copy_nonoverlapping`.
pub unsafe fn copy_past_caches(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if PASSES_CACHES {
            in_lines(from, to, length, copy_line::<true>);
        } else {
            copy(from, to, length);
        }
    }
}

/// Whether [`copy_past_caches`] does anything of its own here.
pub const PASSES_CACHES: bool = cfg!(target_arch = "x86_64");

/// Orders what was copied past the caches before whatever this thread does next, as ordinary writes
/// are by themselves: to be called before anybody else may look.
pub fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies what lies in whole lines of the destination line by line.
///
/// # Safety
/// As for `copy_nonoverlapping`; `line` copies one to an address that is a multiple of its length.
#[inline(always)]
unsafe fn in_lines(
    from: *const u8,
    to: *mut u8,
    length: usize,
    line: unsafe fn(*const u8, *mut u8),
) {
    let head = to.align_offset(LINE_BYTES).min(length);
    let tail = head + (length - head) / LINE_BYTES * LINE_BYTES;
    // SAFETY: three ranges that make up the caller's; the lines are aligned.
    unsafe {
        to.copy_from_nonoverlapping(from, head);
        for at in (head..tail).step_by(LINE_BYTES) {
            line(from.add(at), to.add(at));
        }
        to.add(tail).copy_from_nonoverlapping(from.add(tail), length - tail);
    }
}

/// Copies a line, all of it at once, so that it goes to memory as one: past the caches, or not.
///
/// # Safety
/// As for `copy_nonoverlapping` of a line; `to` is a multiple of its length.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_line<const PAST_CACHES: bool>(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_store_si128, _mm_stream_si128};
    let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
    // SAFETY: the caller's promise; all of the line is read before any of it is written.
    unsafe {
        let parts = [0, 1, 2, 3].map(|k| _mm_loadu_si128(from.add(k)));
        for (k, part) in parts.into_iter().enumerate() {
            match PAST_CACHES {
                true => _mm_stream_si128(to.add(k), part),
                false => _mm_store_si128(to.add(k), part),
            }
        }
    }
}

/// # Safety
/// As for `copy_nonoverlapping` of a line.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_line<const PAST_CACHES: bool>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from, LINE_BYTES) };
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    #[test]
    fn copies_at_any_place_and_length() {
        let from: Vec<u8> = (0..3 * PAGE_BYTES).map(|i| (i * 7 % 251) as u8 + 1).collect();
        for copy in [copy as Copy, copy_past_caches as Copy] {
            for start in [0, 1, 15, 16, 63, 64, 65] {
                for at in [0, 1, 15, 16, 63, 64, 65, 100] {
                    for length in [0, 1, 15, 63, 64, 65, 127, 128, 200, 256, 700, 1500, 5000] {
                        let mut to = vec![0u8; 6000];
                        // Whatever the two lie apart, once in a while they lie too close.
                        // SAFETY: both ranges lie within their vectors.
                        unsafe { copy(from[start..].as_ptr(), to[at..].as_mut_ptr(), length) };
                        settle();
                        assert_eq!(to[at..at + length], from[start..start + length]);
                        assert!(to[..at].iter().chain(&to[at + length..]).all(|&byte| byte == 0));
                    }
                }
            }
        }
    }

    #[test]
    fn writes_over_and_behind() {
        let bytes: Vec<u8> = (0..3000).map(|i| (i % 241) as u8 + 1).collect();
        for (before, at, count) in
            [(0, 0, 0), (0, 0, 3000), (10, 10, 5), (50, 20, 10), (50, 20, 2500)]
        {
            let mut into = vec![0; before];
            write_over(&mut into, at, &bytes[..count]);
            assert_eq!(into.len(), before.max(at + count));
            assert_eq!(into[at..at + count], bytes[..count]);
            assert!(into[..at].iter().all(|&byte| byte == 0));
            assert!(into.iter().skip(at + count).all(|&byte| byte == 0));
        }
    }

    /// Every distance within a page, so that both ways of [`copy`] are taken on any machine.
    #[test]
    fn copies_at_any_distance() {
        let length = INSTRUCTED_BYTES_MIN + 3;
        let from: Vec<u8> = (0..length + 1).map(|i| (i * 11 % 253) as u8 + 1).collect();
        let mut to = vec![0u8; length + PAGE_BYTES];
        for at in 0..PAGE_BYTES {
            let start = at % 2;
            // SAFETY: both ranges lie within their vectors.
            unsafe { copy(from[start..].as_ptr(), to[at..].as_mut_ptr(), length) };
            assert_eq!(to[at..at + length], from[start..start + length], "at {at}");
            to[at..at + length].fill(0);
            assert!(to.iter().all(|&byte| byte == 0), "around {at}");
        }
    }
}
