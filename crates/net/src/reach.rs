//! Whether memory that a program names is there, for those who promise it EFAULT: where servers are reached by
//! shared memory it is copied in user space, and a copy of what is not there would end the program.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use weir_core::slice::Slice;

/// Pages of which each is asked about. Of more it would take twice as long as to copy them.
const NEAR: usize = 4;

/// Makes sure that memory is there and may be used so, as `how` of madvise says. EFAULT: it is not.
pub fn touch(slices: impl Iterator<Item = Slice>, how: libc::c_int) -> io::Result<()> {
    spans(slices, |start, end| ask(start, end, how))
}

/// Gives the pages of slices from one address to another; those that follow on each other together.
pub fn spans(
    slices: impl Iterator<Item = Slice>,
    mut each: impl FnMut(usize, usize) -> io::Result<()>,
) -> io::Result<()> {
    let page = page_bytes();
    let mut run: Option<(usize, usize)> = None;
    for slice in slices.filter(|slice| slice.length > 0) {
        let (start, length) = (slice.pointer.addr(), slice.length);
        let end = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(page));
        let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        let start = start & !(page - 1);
        match &mut run {
            Some((from, to)) if (*from..=*to).contains(&start) => *to = end.max(*to),
            _ => {
                if let Some((from, to)) = run.replace((start, end)) {
                    each(from, to)?;
                }
            }
        }
    }
    run.map_or(Ok(()), |(from, to)| each(from, to))
}

/// As [`touch`], of the pages from one address to another. Of many it is the first, the last, and that there is
/// no hole between them. Where the kernel cannot say so, they count as there.
pub fn ask(start: usize, end: usize, how: libc::c_int) -> io::Result<()> {
    populate(start, end, how).or_else(|error| if can_ask() { Err(error) } else { Ok(()) })
}

fn populate(start: usize, end: usize, how: libc::c_int) -> io::Result<()> {
    let (page, length) = (page_bytes(), end - start);
    if length <= NEAR * page {
        // One question is cheaper than three.
        return asked(start, length, |start, length| {
            // SAFETY: it changes nothing that can be seen, whatever the address.
            unsafe { libc::madvise(start, length, how) }
        });
    }
    populate_page(start, how)?;
    populate_page(start + length - page, how)?;
    asked(start, length, |start, length| {
        // SAFETY: it tells whether there is a hole, and does nothing.
        unsafe { libc::msync(start, length, libc::MS_ASYNC) }
    })
}

fn populate_page(start: usize, how: libc::c_int) -> io::Result<()> {
    asked(start, page_bytes(), |start, length| {
        // SAFETY: as above.
        unsafe { libc::madvise(start, length, how) }
    })
}

/// Asks the kernel about memory, until it answers.
fn asked(
    start: usize,
    length: usize,
    ask: impl Fn(*mut libc::c_void, usize) -> libc::c_int,
) -> io::Result<()> {
    loop {
        if ask(std::ptr::without_provenance_mut(start), length) == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // What it says of memory that is not there, cannot be read, or lies behind a file's end.
            Some(libc::ENOMEM | libc::EFAULT | libc::EINVAL) => {
                return Err(io::Error::from_raw_os_error(libc::EFAULT));
            }
            _ => return Err(error),
        }
    }
}

/// Of memory.
#[inline]
pub fn page_bytes() -> usize {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    match PAGE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: a plain question, answered without the kernel.
            let bytes = unsafe { libc::getauxval(libc::AT_PAGESZ) as usize };
            PAGE.store(bytes, Ordering::Relaxed);
            bytes
        }
        bytes => bytes,
    }
}

/// Whether the kernel can say so at all (Linux 5.14).
pub fn can_ask() -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    // Nobody waits for who finds it out: a child of fork could do so for ever.
    static CAN: AtomicU8 = AtomicU8::new(UNKNOWN);
    if CAN.load(Ordering::Relaxed) == UNKNOWN {
        let here = 0u8;
        let start = (&raw const here).addr() & !(page_bytes() - 1);
        let can = populate_page(start, libc::MADV_POPULATE_READ).is_ok();
        CAN.store(if can { YES } else { NO }, Ordering::Relaxed);
    }
    CAN.load(Ordering::Relaxed) == YES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_memory_are_there_as_far_as_they_are_mapped() {
        let page = page_bytes();
        let (count, hole) = (64, 40);
        // SAFETY: fresh memory, and a page of it that nobody uses.
        let start = unsafe {
            let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(std::ptr::null_mut(), count * page, access, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::munmap(start.wrapping_byte_add(hole * page), page), 0);
            start.cast::<u8>()
        };
        let slice = |at, length| Slice { pointer: start.wrapping_add(at), length };
        let read = |slices: &[Slice]| touch(slices.iter().copied(), libc::MADV_POPULATE_READ);
        let pieces = |from: usize, to: usize, step: usize| {
            (from..to).step_by(step).map(|at| slice(at, 100)).collect::<Vec<_>>()
        };
        assert!(read(&[]).is_ok());
        assert!(read(&[slice(0, hole * page)]).is_ok());
        assert!(
            read(&[slice(5, 0), slice(hole * page, 0)]).is_ok(),
            "nothing of what is not there"
        );
        assert!(read(&pieces(0, hole * page, 512)).is_ok());
        assert!(read(&pieces(page / 2, count * page, 8 * page)).is_err(), "one piece in the hole");
        assert!(read(&pieces(page, count * page, 2 * page)).is_ok(), "none of them in the hole");
        for slices in [
            vec![slice(0, count * page)],
            vec![slice(0, hole * page + 1)],
            vec![slice(hole * page - 1, 2)],
            pieces(0, count * page, 512),
            vec![slice((hole + 1) * page, page), slice(hole * page, 1), slice(0, page)],
            vec![Slice { pointer: std::ptr::without_provenance_mut(usize::MAX - 5), length: 100 }],
        ] {
            let error = read(&slices).expect_err("a hole");
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{slices:?}");
        }
        let written = touch([slice(0, 1)].into_iter(), libc::MADV_POPULATE_WRITE);
        assert_eq!(written.expect_err("read-only").raw_os_error(), Some(libc::EFAULT));
    }
}
