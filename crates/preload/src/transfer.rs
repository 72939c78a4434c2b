//! Reads and writes of pool files.
//!
//! Whatever cannot be done here, or fails here, is left to the kernel, which then does it, or says
//! what is wrong: a read or write of bytes at a place may be done twice.

use crate::alone;
use crate::buffer::Buffer;
use crate::files::{self, Description};
use crate::process::{self, Inside};
use crate::reach;
use crate::real::kernel;
use libc::{c_int, c_void, iovec, off_t, ssize_t};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_client::Net;
use weir_client::lending::Cell;
use weir_core::error::{Code, Error};
use weir_core::fs::File;
use weir_core::layout::Extent;
use weir_core::slice::Slice;

/// Most bytes that the kernel moves in one call.
const LENGTH_MAX: usize = 0x7fff_f000;
/// Most pieces of memory in one call.
const PIECES_MAX: usize = 1024;

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

/// Memory of a call, as the program named it.
pub(crate) enum Memory {
    One(*mut c_void, usize),
    List(*const iovec, c_int),
}

/// The pieces of a call's memory; a single one needs no allocation.
enum Slices {
    One([Slice; 1]),
    Many(Vec<Slice>),
}

impl Slices {
    fn as_slice(&self) -> &[Slice] {
        match self {
            Slices::One(one) => one,
            Slices::Many(many) => many,
        }
    }
}

impl Memory {
    /// As slices and their length in all; none where the kernel would refuse.
    ///
    /// # Safety
    /// A list must be readable.
    unsafe fn slices(&self) -> Option<(Slices, usize)> {
        let slice = |base: *mut c_void, length| Slice { pointer: base.cast(), length };
        match *self {
            Memory::One(base, length) => {
                let length = isize::try_from(length).ok()?.min(LENGTH_MAX as isize) as usize;
                Some((Slices::One([slice(base, length)]), length))
            }
            Memory::List(list, count) => {
                let count = usize::try_from(count).ok().filter(|count| *count <= PIECES_MAX)?;
                let mut slices = Vec::with_capacity(count);
                let mut left = LENGTH_MAX;
                for index in 0..count {
                    // SAFETY: the caller promises a list of that many.
                    let piece = unsafe { *list.add(index) };
                    if isize::try_from(piece.iov_len).is_err() {
                        return None;
                    }
                    let length = piece.iov_len.min(left);
                    if length > 0 {
                        slices.push(slice(piece.iov_base, length));
                    }
                    left -= length;
                }
                Some((Slices::Many(slices), LENGTH_MAX - left))
            }
        }
    }
}

/// Moves bytes between memory and a file, at `offset` or (none) at the descriptor's position; by the
/// kernel, where this is not a file of the pool's or not for us to do.
///
/// # Safety
/// The memory must be the program's to use in this way.
#[inline]
pub(crate) unsafe fn transfer(
    fd: c_int,
    way: Way,
    memory: Memory,
    offset: Option<off_t>,
    kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if files::is_foreign(fd) || !process::attends() {
        return alone::judged(fd, way, kernel());
    }
    process::may_be_cancelled();
    // SAFETY: passed on.
    match unsafe { attempt(fd, way, memory, offset, kernel) } {
        Ok((result, errno)) => {
            if result < 0 {
                process::set_errno(errno);
            }
            result
        }
        Err(kernel) => alone::judged(fd, way, kernel()),
    }
}

/// As [`transfer`]; gives the error number besides. The kernel's function comes back where it is to
/// be called without anything held.
///
/// # Safety
/// As [`transfer`].
unsafe fn attempt<K: FnOnce() -> ssize_t>(
    fd: c_int,
    way: Way,
    memory: Memory,
    offset: Option<off_t>,
    kernel: K,
) -> Result<(ssize_t, c_int), K> {
    let _inside = Inside::enter();
    if process::inherited() {
        crate::fork::adopted_by_stranger();
    }
    files::end_doubts(fd);
    let turn = files::turn(fd);
    let mut waiting = turn.as_deref().map(lock);
    // SAFETY: passed on.
    let memory = unsafe { memory.slices() };
    // A panic is a bug here and below; the program still gets what it asked for.
    let wanted = catch_unwind(|| files::wanted(fd, way, memory.as_ref()?.1)).unwrap_or(None);
    // Reading what is no file may take for ever.
    if offset.is_some() || files::is_foreign(fd) {
        waiting = None;
    }
    let (Some(description), Some((slices, length))) = (wanted, memory) else {
        if way == Way::Write {
            files::left_to_kernel(fd);
        }
        return match waiting {
            Some(_) => Ok((kernel(), process::errno())),
            None => Err(kernel),
        };
    };
    if description.is_own() {
        let moved = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: passed on.
            unsafe { alone::transfer(fd, &description, way, slices.as_slice(), length, offset) }
        }));
        return Ok(match moved.unwrap_or(Err(libc::EIO)) {
            Ok(moved) => (moved as ssize_t, 0),
            Err(errno) => (-1, errno),
        });
    }
    let is_shared = description.is_shared();
    let unshared = offset.is_none() && !is_shared;
    let position = unshared.then(|| lock(&description.position));
    let moved = catch_unwind(AssertUnwindSafe(|| {
        let allowed = description.allows(fd, way) && (offset.is_some() || unshared);
        let appends = way == Way::Write && description.appends();
        let slices = slices.as_slice();
        let left = length == 0 || !allowed || description.mapped() || appends && is_shared;
        if left || !reach::is_there(slices, way) {
            // The kernel must find what other descriptors of the file have buffered.
            if let Some(buffer) = &description.buffer {
                buffer.yield_to_others();
            }
            return None;
        }
        if appends {
            // SAFETY: passed on.
            return unsafe { append(fd, &description, slices, length, unshared) };
        }
        let Some(offset) = offset else {
            // One call says where we are and moves on; what is not done of it is taken back. The
            // kernel refuses what lies behind the last offset.
            let end: off_t = kernel!(SYS_lseek, fd, length, libc::SEEK_CUR);
            let at = u64::try_from(end).ok()?.checked_sub(length as u64)?;
            // SAFETY: passed on.
            let moved = unsafe { serve(fd, &description, way, slices, length, at) };
            let left = length - moved.unwrap_or(0);
            if left > 0 {
                let _: off_t = kernel!(SYS_lseek, fd, -(left as isize), libc::SEEK_CUR);
            }
            return moved;
        };
        // The kernel knows what to say of what lies behind the last offset.
        offset.checked_add(length as off_t)?;
        let at = u64::try_from(offset).ok()?;
        // SAFETY: passed on.
        unsafe { serve(fd, &description, way, slices, length, at) }
    }))
    .unwrap_or(None);
    if moved.is_none() && way == Way::Write {
        description.left_to_kernel(fd);
    }
    match moved {
        Some(moved) => Ok((moved as ssize_t, 0)),
        None if position.is_some() || waiting.is_some() => Ok((kernel(), process::errno())),
        None => Err(kernel),
    }
}

/// Writes to the end of the file, and moves the position there if it is to be moved. None: the kernel has to do it.
///
/// # Safety
/// As [`transfer`].
unsafe fn append(
    fd: c_int,
    description: &Arc<Description>,
    slices: &[Slice],
    length: usize,
    moves: bool,
) -> Option<usize> {
    if let Some(buffer) = &description.buffer {
        buffer.yield_to_others();
    }
    if !files::is_current(fd, description) {
        return None;
    }
    let (file, pool) = (&description.file, &description.engine.pool);
    let bytes = length as u64;
    let at = match pool.run(file.reserve(bytes)) {
        Err(Error { code: Code::NoCapability, .. }) if description.extend(fd) => {
            pool.run(file.reserve(bytes)).ok()?
        }
        reserved => reserved.ok()?,
    };
    // SAFETY: passed on.
    match unsafe { ask(fd, description, Way::Write, slices, length, at) } {
        // The kernel may have pages from before. Where it cannot, the bytes are there all the same: not to be appended twice.
        // SAFETY: passed on.
        Ok(_) if description.mapped() => _ = unsafe { write_by_kernel(fd, slices, at) },
        Ok(_) => {}
        // SAFETY: passed on.
        Err(error) if unsafe { write_by_kernel(fd, slices, at) }.is_none() => {
            pool.run(file.give_back(at, bytes, &error));
            return None;
        }
        Err(_) => {}
    }
    if moves {
        let _: off_t = kernel!(SYS_lseek, fd, at + bytes, libc::SEEK_SET);
    }
    Some(length)
}

/// Has the kernel write at a place of a file that is open to be appended to, where by itself it would write to the end.
/// None: it cannot.
///
/// # Safety
/// As [`transfer`].
unsafe fn write_by_kernel(fd: c_int, slices: &[Slice], mut at: u64) -> Option<()> {
    let anew = std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}")).ok()?;
    for slice in slices {
        // SAFETY: passed on.
        let bytes = unsafe { std::slice::from_raw_parts(slice.pointer, slice.length) };
        anew.write_all_at(bytes, at).ok()?;
        at += slice.length as u64;
    }
    Some(())
}

pub(crate) fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Through the buffer, if there is one.
///
/// # Safety
/// As [`transfer`].
unsafe fn serve(
    fd: c_int,
    description: &Arc<Description>,
    way: Way,
    slices: &[Slice],
    length: usize,
    at: u64,
) -> Option<usize> {
    let Some(buffer) = &description.buffer else {
        // SAFETY: passed on.
        return unsafe { move_bytes(fd, description, way, slices, length, at) };
    };
    if Buffer::applies(description) {
        let buffered = match way {
            Way::Read => {
                // SAFETY: passed on.
                unsafe { buffer.read(fd, description, slices, length, at) }
            }
            // SAFETY: passed on.
            Way::Write => unsafe { buffer.write(fd, description, slices, length, at) },
        };
        if buffered.is_some() {
            return buffered;
        }
    } else {
        // What others of its descriptors have buffered must be found, and what they have read be forgotten.
        buffer.yield_to_others();
    }
    if !files::is_current(fd, description) {
        return None;
    }
    // SAFETY: passed on.
    unsafe { move_bytes(fd, description, way, slices, length, at) }
}

/// Reads or writes past the buffer. None: the kernel has to do it.
///
/// # Safety
/// As [`transfer`].
pub(crate) unsafe fn move_bytes(
    fd: c_int,
    description: &Description,
    way: Way,
    slices: &[Slice],
    length: usize,
    at: u64,
) -> Option<usize> {
    // SAFETY: passed on.
    let result = unsafe { ask(fd, description, way, slices, length, at) };
    // Pages that the kernel read meanwhile may be from before or after: it writes once more.
    if way == Way::Write && description.mapped() {
        return None;
    }
    result.ok()
}

/// Asks the pool for it, by a fresh loan where this one has expired, and counts it.
///
/// # Safety
/// As [`transfer`].
unsafe fn ask(
    fd: c_int,
    description: &Description,
    way: Way,
    slices: &[Slice],
    length: usize,
    at: u64,
) -> Result<usize, Error> {
    let begun = Instant::now();
    let work = || {
        // SAFETY: passed on; the future is run to its end here.
        let run = unsafe { exchange(&description.file, way, slices, length, at) };
        description.engine.pool.run(run)
    };
    begins(description, way);
    let result = match work() {
        Err(Error { code: Code::NoCapability, .. }) if description.extend(fd) => work(),
        result => result,
    };
    ends(description, way, begun.elapsed(), &result);
    result
}

/// Reads or writes at one place of a file; gives how many bytes.
///
/// # Safety
/// As [`transfer`], until the future has ended or is dropped.
pub(crate) async unsafe fn exchange(
    file: &File<Net>,
    way: Way,
    slices: &[Slice],
    length: usize,
    at: u64,
) -> Result<usize, Error> {
    let extents = [Extent { offset: at, length: length as u64 }];
    match way {
        // SAFETY: passed on.
        Way::Read => unsafe { file.read_slices(&extents, slices) }.await,
        // SAFETY: as above.
        Way::Write => unsafe { file.write_slices(&extents, slices) }.await.map(|()| length),
    }
}

/// To be called before requests for this are made.
pub(crate) fn begins(description: &Description, way: Way) {
    // Should this process die now, or not learn what becomes of its bytes, the mount must know.
    if way == Way::Write {
        description.cell().writes_open.fetch_add(1, Ordering::SeqCst);
    }
}

/// To be called once the requests for this have ended so, which took that long.
pub(crate) fn ends(
    description: &Description,
    way: Way,
    spent: Duration,
    result: &Result<usize, Error>,
) {
    // First: a mount that finds nothing under way reckons with what was counted.
    count(description.cell(), way, spent, result);
    if way == Way::Write && (result.is_ok() || !description.file.in_doubt()) {
        description.cell().writes_open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts a request, which took that long and has ended so.
pub(crate) fn count(cell: &Cell, way: Way, spent: Duration, moved: &Result<usize, Error>) {
    let ns = spent.as_nanos() as u64;
    let (calls, bytes, time, errors) = match way {
        Way::Read => (&cell.reads, &cell.bytes_read, &cell.read_ns, &cell.read_errors),
        Way::Write => (&cell.writes, &cell.bytes_written, &cell.write_ns, &cell.write_errors),
    };
    calls.fetch_add(1, Ordering::Relaxed);
    time.fetch_add(ns, Ordering::Relaxed);
    match moved {
        Ok(moved) => bytes.fetch_add(*moved as u64, Ordering::Relaxed),
        Err(_) => errors.fetch_add(1, Ordering::Relaxed),
    };
}
