//! Whether memory that a program names is there. Where it is not, a system call answers EFAULT; we
//! would kill the program.

use crate::process;
use crate::real::kernel;
use crate::transfer::Way;
use libc::c_int;
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use weir_core::slice::Slice;

/// Whether the kernel can be asked (from Linux 5.14 on): 0 is not known yet.
static CAN_ASK: AtomicU8 = AtomicU8::new(0);
const YES: u8 = 1;
const NO: u8 = 2;

/// Pages of which each is asked about. Of more it would take twice as long as to copy them.
const NEAR: usize = 4;

/// Counts calls of the program's that may have taken memory away.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Spans of memory that a thread remembers.
const KNOWN_MAX: usize = 4;

/// Spans of pages that were there when this thread last asked, and for what. Programs use a buffer again
/// and again, and to ask takes a tenth of a small request.
#[derive(Clone, Copy)]
struct Known {
    /// What [`CHANGES`] was then.
    changes: u32,
    spans: [(usize, usize, c_int); KNOWN_MAX],
    oldest: usize,
}

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known::NOTHING) };
}

impl Known {
    const NOTHING: Known = Known { changes: 0, spans: [(0, 0, 0); KNOWN_MAX], oldest: 0 };

    fn holds(&self, start: usize, end: usize, advice: c_int) -> bool {
        self.changes == CHANGES.load(Ordering::Relaxed)
            && self.spans.iter().any(|(from, to, known)| {
                // What can be written can be read.
                let enough = *known == advice || *known == libc::MADV_POPULATE_WRITE;
                enough && *from <= start && end <= *to
            })
    }

    fn add(&mut self, changes: u32, span: (usize, usize, c_int)) {
        if self.changes != changes {
            *self = Known { changes, ..Known::NOTHING };
        }
        self.spans[self.oldest] = span;
        self.oldest = (self.oldest + 1) % KNOWN_MAX;
    }
}

/// Does what may take memory away from the program. What the C library does behind its own functions is not
/// seen: memory that was given back by `free` and is named all the same may be believed to be there.
#[inline]
pub(crate) fn changes<T>(change: impl FnOnce() -> T) -> T {
    let result = change();
    CHANGES.fetch_add(1, Ordering::Relaxed);
    result
}

/// Whether all slices may be used in this way. Slices whose pages follow on each other are asked about
/// together; of many pages it is the first, the last, and that there is no hole between them: a program that
/// errs names memory that is not there, or runs over the end of what is.
pub(crate) fn is_there(slices: &[Slice], way: Way) -> bool {
    let advice = match way {
        Way::Read => libc::MADV_POPULATE_WRITE,
        Way::Write => libc::MADV_POPULATE_READ,
    };
    let page = page_bytes();
    let mut run: Option<(usize, usize)> = None;
    for slice in slices.iter().filter(|slice| slice.length > 0) {
        let start = slice.pointer.addr();
        let end =
            start.checked_add(slice.length).and_then(|end| end.checked_next_multiple_of(page));
        let Some(end) = end else { return false };
        let start = start & !(page - 1);
        match &mut run {
            Some((from, to)) if (*from..=*to).contains(&start) => *to = end.max(*to),
            _ => {
                if let Some((from, to)) = run.replace((start, end))
                    && !are_there(from, to, advice)
                {
                    return false;
                }
            }
        }
    }
    run.is_none_or(|(from, to)| are_there(from, to, advice))
}

/// Whether there is something to read at an address.
pub(crate) fn is_readable<T>(pointer: *const T) -> bool {
    let page = page_bytes();
    populated(pointer.addr() & !(page - 1), page, libc::MADV_POPULATE_READ)
}

/// Whether pages from one address to another could be used: they are mapped, with leave to do so.
fn are_there(start: usize, end: usize, advice: c_int) -> bool {
    let mut known = KNOWN.get();
    if known.holds(start, end, advice) {
        return true;
    }
    let changes = CHANGES.load(Ordering::Relaxed);
    let (page, length) = (page_bytes(), end - start);
    let there = if length <= NEAR * page {
        // One question is cheaper than three.
        populated(start, length, advice)
    } else {
        populated(start, page, advice)
            && populated(end - page, page, advice)
            && has_no_hole(start, length)
    };
    if there {
        known.add(changes, (start, end, advice));
        KNOWN.set(known);
    }
    there
}

fn has_no_hole(start: usize, length: usize) -> bool {
    // To begin to write what nobody has to write: it only looks for what is mapped.
    let asked: c_int = kernel!(SYS_msync, start, length, libc::MS_ASYNC);
    asked == 0 || process::errno() != libc::ENOMEM
}

fn populated(start: usize, length: usize, advice: c_int) -> bool {
    loop {
        let asked: c_int = kernel!(SYS_madvise, start, length, advice);
        let again = asked != 0 && matches!(process::errno(), libc::EINTR | libc::EAGAIN);
        if !again {
            return asked == 0 || !can_ask();
        }
    }
}

/// Whether the kernel can say so. Where it cannot, everything counts as there.
pub(crate) fn can_ask() -> bool {
    match CAN_ASK.load(Ordering::Relaxed) {
        0 => {
            let here = 0u8;
            let address = (&raw const here).addr() & !(page_bytes() - 1);
            let asked: c_int =
                kernel!(SYS_madvise, address, page_bytes(), libc::MADV_POPULATE_READ);
            CAN_ASK.store(if asked == 0 { YES } else { NO }, Ordering::Relaxed);
            asked == 0
        }
        known => known == YES,
    }
}

/// Of memory.
fn page_bytes() -> usize {
    // SAFETY: a plain question, answered without the kernel.
    unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(count: usize, protection: c_int) -> *mut u8 {
        // SAFETY: asks the kernel for fresh memory.
        let start = unsafe {
            let (length, flags) = (count * page_bytes(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        start.cast()
    }

    fn unmap(start: *mut u8, at: usize, length: usize) {
        // SAFETY: what a test has mapped, and nobody uses.
        let done = changes(|| unsafe { libc::munmap(start.wrapping_add(at).cast(), length) });
        assert_eq!(done, 0);
    }

    const BOTH: c_int = libc::PROT_READ | libc::PROT_WRITE;

    #[test]
    fn memory_is_there_as_far_as_it_is_mapped_and_permitted() {
        if !can_ask() {
            return;
        }
        let there = |start: *mut u8, offset: usize, length, way| {
            is_there(&[Slice { pointer: start.wrapping_add(offset), length }], way)
        };
        let page = page_bytes();
        for (both, constant) in [(mapped(48, BOTH), mapped(48, libc::PROT_READ))] {
            for way in [Way::Read, Way::Write] {
                assert!(there(both, 5, 32 * page, way));
                assert!(!there(std::ptr::null_mut(), 8, 100, way));
                assert!(there(std::ptr::null_mut(), 8, 0, way));
            }
            assert!(there(constant, 0, 10, Way::Write));
            assert!(!there(constant, 0, 10, Way::Read), "what cannot be written to");
            unmap(both, 32 * page, 16 * page);
            assert!(there(both, 5, 32 * page - 5, Way::Read));
            assert!(!there(both, 5, 32 * page - 4, Way::Read), "a byte over the end");
        }
    }

    #[test]
    fn pieces_of_memory_are_there_as_far_as_they_are_mapped() {
        if !can_ask() {
            return;
        }
        let page = page_bytes();
        let (count, hole) = (64, 40);
        let start = mapped(count, libc::PROT_READ);
        unmap(start, hole * page, page);
        let slice = |at, length| Slice { pointer: start.wrapping_add(at), length };
        let read = |slices: &[Slice]| is_there(slices, Way::Write);
        let pieces = |from: usize, to: usize, step: usize| {
            (from..to).step_by(step).map(|at| slice(at, 100)).collect::<Vec<_>>()
        };
        assert!(read(&[]));
        assert!(read(&[slice(0, hole * page)]));
        assert!(read(&[slice(5, 0), slice(hole * page, 0)]), "nothing of what is not there");
        assert!(read(&pieces(0, hole * page, 512)));
        assert!(!read(&pieces(page / 2, count * page, 8 * page)), "one piece in the hole");
        assert!(read(&pieces(page, count * page, 2 * page)), "none of them in the hole");
        for slices in [
            vec![slice(0, count * page)],
            vec![slice(0, hole * page + 1)],
            vec![slice(hole * page - 1, 2)],
            pieces(0, count * page, 512),
            vec![slice((hole + 1) * page, page), slice(hole * page, 1), slice(0, page)],
            vec![Slice { pointer: std::ptr::without_provenance_mut(usize::MAX - 5), length: 100 }],
        ] {
            assert!(!read(&slices), "{slices:?}");
        }
    }

    /// What is remembered is a shortcut, not another answer.
    #[test]
    fn what_was_taken_away_is_no_longer_there() {
        if !can_ask() {
            return;
        }
        let page = page_bytes();
        let buffers: Vec<_> = (0..KNOWN_MAX + 2).map(|_| mapped(8, BOTH)).collect();
        let there = |start: *mut u8, pages: usize, way| {
            is_there(&[Slice { pointer: start, length: pages * page }], way)
        };
        for _ in 0..3 {
            for start in &buffers {
                assert!(there(*start, 2, Way::Write));
                assert!(there(*start, 8, Way::Read));
                assert!(there(*start, 8, Way::Write));
            }
        }
        for start in &buffers {
            unmap(*start, page, page);
            assert!(there(*start, 1, Way::Read));
            assert!(!there(*start, 2, Way::Read));
            assert!(!there(*start, 8, Way::Write));
        }
        let start = mapped(2, BOTH);
        assert!(there(start, 2, Way::Write));
        // SAFETY: as above.
        let done = changes(|| unsafe { libc::mprotect(start.cast(), page, libc::PROT_READ) });
        assert_eq!(done, 0);
        assert!(there(start, 2, Way::Write));
        assert!(!there(start, 2, Way::Read), "known to be readable only");
    }
}
