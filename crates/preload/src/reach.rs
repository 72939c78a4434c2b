//! Whether memory that a program names is there. Where it is not, a system call answers EFAULT; we
//! would kill the program.

use crate::transfer::Way;
use libc::c_int;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_core::slice::Slice;
use weir_net::reach;
pub(crate) use weir_net::reach::can_ask;

/// Counts calls of the program's that may have taken memory away.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Spans of memory that a thread remembers.
const KNOWN_MAX: usize = 4;

/// Spans of pages that were there when this thread last asked, and for what. Programs use a buffer again
/// and again, and to ask takes a seventh of a small request.
struct Known {
    /// What [`CHANGES`] was then.
    changes: Cell<u32>,
    spans: [Cell<(usize, usize, c_int)>; KNOWN_MAX],
    oldest: Cell<usize>,
}

thread_local! {
    static KNOWN: Known = const {
        let spans = [const { Cell::new(NOTHING) }; KNOWN_MAX];
        Known { changes: Cell::new(0), spans, oldest: Cell::new(0) }
    };
}

const NOTHING: (usize, usize, c_int) = (0, 0, 0);

impl Known {
    fn holds(&self, start: usize, end: usize, advice: c_int) -> bool {
        self.changes.get() == CHANGES.load(Ordering::Relaxed)
            && self.spans.iter().any(|span| {
                let (from, to, known) = span.get();
                // What can be written can be read.
                let enough = known == advice || known == libc::MADV_POPULATE_WRITE;
                enough && from <= start && end <= to
            })
    }

    fn add(&self, changes: u32, span: (usize, usize, c_int)) {
        if self.changes.replace(changes) != changes {
            self.spans.iter().for_each(|span| span.set(NOTHING));
        }
        let oldest = self.oldest.get();
        self.spans[oldest].set(span);
        self.oldest.set((oldest + 1) % KNOWN_MAX);
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
    reach::spans(slices.iter().copied(), |start, end| ask(start, end, advice)).is_ok()
}

/// Whether there is something to read at an address.
pub(crate) fn is_readable<T>(pointer: *const T) -> bool {
    let start = pointer.addr() & !(reach::page_bytes() - 1);
    let end = start.saturating_add(reach::page_bytes());
    reach::ask(start, end, libc::MADV_POPULATE_READ).is_ok()
}

/// As [`reach::ask`], and remembers what is there.
fn ask(start: usize, end: usize, advice: c_int) -> io::Result<()> {
    KNOWN.with(|known| {
        if !known.holds(start, end, advice) {
            let changes = CHANGES.load(Ordering::Relaxed);
            reach::ask(start, end, advice)?;
            known.add(changes, (start, end, advice));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_net::reach::page_bytes;

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
        let (both, constant) = (mapped(48, BOTH), mapped(48, libc::PROT_READ));
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
