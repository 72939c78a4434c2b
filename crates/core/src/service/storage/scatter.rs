//! Copies into memory that is not in the processor's caches.

/// Copies like [`std::ptr::copy_nonoverlapping`], but whole lines go past the caches where the
/// processor can do that: to write a part of a line, or a line in the ordinary way, it first fetches
/// what will be overwritten. For short runs in memory that was not touched lately, such as a strided
/// write's, that is most of the time. Others see the bytes only after [`settle`].
///
/// # Safety
/// As for `copy_nonoverlapping`.
pub(super) unsafe fn copy_past_caches(from: *const u8, to: *mut u8, length: usize) {
    let head = to.align_offset(LINE_BYTES).min(length);
    let lines = (length - head) / LINE_BYTES;
    let tail = head + lines * LINE_BYTES;
    // SAFETY: three ranges that make up the caller's; the lines are aligned.
    unsafe {
        if head > 0 {
            std::ptr::copy_nonoverlapping(from, to, head);
        }
        copy_lines(from.add(head), to.add(head), lines);
        if tail < length {
            std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), length - tail);
        }
    }
}

const LINE_BYTES: usize = 64;

/// Copies whole lines to an address that is a multiple of their length.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines(from: *const u8, to: *mut u8, lines: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
    for i in 0..lines {
        // SAFETY: within both ranges; `to` is aligned. All of a line at once, so that it goes to
        // memory as one.
        unsafe {
            let (from, to) = (from.add(4 * i), to.add(4 * i));
            let line = [0, 1, 2, 3].map(|k| _mm_loadu_si128(from.add(k)));
            for (k, part) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(k), part);
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_lines(from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, lines * LINE_BYTES) };
}

/// Orders what was copied past the caches before whatever this thread does next, as ordinary writes
/// are by themselves: to be called before anybody else may look.
pub(super) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_at_any_place_and_length() {
        let from: Vec<u8> = (0..1000).map(|i| (i * 7 % 251) as u8 + 1).collect();
        for start in [0, 1, 15, 16, 63, 64, 65] {
            for at in [0, 1, 15, 16, 63, 64, 65, 100] {
                for length in [0, 1, 15, 63, 64, 65, 127, 128, 200, 256, 700] {
                    let mut to = vec![0u8; 1000];
                    // SAFETY: both ranges lie within their vectors.
                    unsafe {
                        copy_past_caches(from[start..].as_ptr(), to[at..].as_mut_ptr(), length)
                    };
                    settle();
                    assert_eq!(to[at..at + length], from[start..start + length]);
                    assert!(to[..at].iter().chain(&to[at + length..]).all(|&byte| byte == 0));
                }
            }
        }
    }
}
