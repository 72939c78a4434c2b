//! Whether memory that a program names is there. Where it is not, a system call answers EFAULT; we
//! would kill the program.

use crate::real::kernel;
use crate::transfer::Way;
use libc::c_int;
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};
use weir_core::slice::Slice;
use weir_net::reach::{Known, page_bytes};

/// Whether the kernel can be asked (from Linux 5.14 on): 0 is not known yet.
static CAN_ASK: AtomicU8 = AtomicU8::new(0);
const YES: u8 = 1;
const NO: u8 = 2;

/// Pages from the first to the last that are asked for at once.
const NEAR: usize = 4;

thread_local! {
    /// First and last page that were there the last time, and for what. Programs use a buffer again
    /// and again, and asking each time would take as long as a small request that is buffered.
    static LAST: Cell<(usize, usize, c_int)> = const { Cell::new((0, 0, 0)) };
}

/// Whether all slices may be used in this way. Of each the first and the last page are looked at:
/// a program that errs names memory that is not there, or runs over the end of what is. With `again`,
/// what was there the last time is believed to be: only where bytes are copied here and now.
pub(crate) fn is_there(slices: &[Slice], way: Way, again: bool) -> bool {
    slices.iter().filter(|slice| slice.length > 0).all(|slice| {
        let pages @ (first, last, advice) = pages(*slice, way);
        if again && LAST.get() == pages {
            return true;
        }
        let page = page_bytes();
        let there = match (last - first) / page {
            // One question is cheaper than two.
            pages @ 0..=NEAR => populated(first, (pages + 1) * page, advice),
            _ => populated(first, page, advice) && populated(last, page, advice),
        };
        if there {
            LAST.set(pages);
        }
        there
    })
}

/// The same of all memory of a single slice, where links ask about that: as long as what this gives lives, they
/// need not. None: it may not be used so.
pub(crate) fn is_all_there(slices: &[Slice], way: Way) -> Option<Option<Known>> {
    match slices {
        [slice] if slice.length > 0 && weir_net::reach::is_asked_about() => {
            Known::ask(*slice, advice(way)).map(Some)
        }
        _ => is_there(slices, way, false).then_some(None),
    }
}

/// What is to be asked of the kernel about memory.
fn advice(way: Way) -> c_int {
    match way {
        Way::Read => libc::MADV_POPULATE_WRITE,
        Way::Write => libc::MADV_POPULATE_READ,
    }
}

/// The first and the last page of a slice, and what is to be asked of them.
fn pages(slice: Slice, way: Way) -> (usize, usize, c_int) {
    let (start, mask) = (slice.pointer as usize, !(page_bytes() - 1));
    (start & mask, start.saturating_add(slice.length - 1) & mask, advice(way))
}

/// Whether there is something to read at an address.
pub(crate) fn is_readable<T>(pointer: *const T) -> bool {
    populated(pointer as usize & !(page_bytes() - 1), page_bytes(), libc::MADV_POPULATE_READ)
}

/// Whether pages from an address on could be used: they are mapped, with leave to do so.
fn populated(address: usize, length: usize, advice: c_int) -> bool {
    let asked: c_int = kernel!(SYS_madvise, address, length, advice);
    asked == 0 || !can_ask()
}

fn can_ask() -> bool {
    match CAN_ASK.load(Ordering::Relaxed) {
        0 => {
            let known = 0u8;
            let address = (&raw const known) as usize & !(page_bytes() - 1);
            let asked: c_int =
                kernel!(SYS_madvise, address, page_bytes(), libc::MADV_POPULATE_READ);
            CAN_ASK.store(if asked == 0 { YES } else { NO }, Ordering::Relaxed);
            asked == 0
        }
        known => known == YES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_there_as_far_as_it_is_mapped_and_permitted() {
        let pages = |protection| {
            // SAFETY: asks the kernel for fresh memory.
            let start = unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                libc::mmap(std::ptr::null_mut(), 3 * 65536, protection, flags, -1, 0)
            };
            assert_ne!(start, libc::MAP_FAILED);
            start.cast::<u8>()
        };
        if !can_ask() {
            return;
        }
        let there = |start: *mut u8, offset: usize, length, way| {
            is_there(&[Slice { pointer: start.wrapping_add(offset), length }], way, false)
        };
        let (both, constant) = (pages(libc::PROT_READ | libc::PROT_WRITE), pages(libc::PROT_READ));
        for way in [Way::Read, Way::Write] {
            assert!(there(both, 5, 2 * 65536, way));
            assert!(!there(std::ptr::null_mut(), 8, 100, way));
            assert!(there(std::ptr::null_mut(), 8, 0, way));
        }
        assert!(there(constant, 0, 10, Way::Write));
        assert!(!there(constant, 0, 10, Way::Read), "what cannot be written to");
        // SAFETY: the last third of what was mapped above.
        assert_eq!(unsafe { libc::munmap(both.add(2 * 65536).cast(), 65536) }, 0);
        assert!(there(both, 5, 2 * 65536 - 5, Way::Read));
        assert!(!there(both, 5, 2 * 65536 - 4, Way::Read), "a byte over the end");
    }
}
