//! Bytes of files that this process has opened in the pool itself.

use super::{answer, file, handle, told};
use crate::files::Description;
use crate::process;
use crate::reach;
use crate::real::kernel;
use crate::transfer::{Way, count, exchange};
use libc::{c_int, c_void, off_t, size_t};
use std::time::Instant;
use weir_core::error::{Code, Error, Result};
use weir_core::layout::Extent;
use weir_core::slice::Slice;

/// Moves bytes, at `offset` or (none) at the descriptor's position. Gives what the call returns, and
/// the error number. The kernel has nothing to say in this. To be called inside.
///
/// # Safety
/// As the functions': the slices are the program's memory, `length` long in all.
pub(crate) unsafe fn transfer(
    fd: c_int,
    description: &Description,
    way: Way,
    slices: &[Slice],
    length: usize,
    offset: Option<off_t>,
) -> std::result::Result<usize, c_int> {
    let mode = description.file.mode();
    let allowed = match way {
        Way::Read => mode.read,
        Way::Write => mode.write,
    };
    if !allowed {
        return Err(libc::EBADF);
    }
    if length == 0 {
        return Ok(0);
    }
    if !reach::is_there(slices, way) {
        return Err(libc::EFAULT);
    }
    let flags: c_int = kernel!(SYS_fcntl, fd, libc::F_GETFL);
    let moved = match (way, offset) {
        (Way::Write, _) if flags & libc::O_APPEND != 0 => {
            // SAFETY: passed on.
            unsafe { append(fd, description, slices, length, offset.is_none()) }
        }
        (_, Some(offset)) => {
            let at = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
            // SAFETY: passed on.
            unsafe { move_bytes(description, way, slices, length, at) }
        }
        (_, None) => {
            let _turn = crate::transfer::lock(&description.position);
            // One call says where we are and moves on; what is not done of it is taken back.
            let end: off_t = kernel!(SYS_lseek, fd, length, libc::SEEK_CUR);
            let end = u64::try_from(end).map_err(|_| match way {
                Way::Read => libc::EINVAL,
                Way::Write => libc::EFBIG,
            })?;
            let at = end - length as u64;
            // SAFETY: passed on.
            let moved = unsafe { move_bytes(description, way, slices, length, at) };
            let left = length - *moved.as_ref().unwrap_or(&0);
            if left > 0 {
                let _: off_t = kernel!(SYS_lseek, fd, -(left as isize), libc::SEEK_CUR);
            }
            moved
        }
    };
    let durable = way == Way::Write && flags & (libc::O_SYNC | libc::O_DSYNC) != 0;
    let stored = moved.and_then(|moved| {
        if durable {
            description.engine.pool.run(description.file.sync())?;
        }
        Ok(moved)
    });
    stored.map_err(|error| error.errno())
}

/// # Safety
/// As [`transfer`].
unsafe fn append(
    fd: c_int,
    description: &Description,
    slices: &[Slice],
    length: usize,
    moves: bool,
) -> Result<usize> {
    let begun = Instant::now();
    let mut bytes = Vec::with_capacity(length);
    for slice in slices {
        // SAFETY: the caller promises that the memory can be read.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(slice.pointer, slice.length) });
    }
    let appended = description.engine.pool.run(description.file.append(&bytes));
    let moved = appended.map(|at| {
        if moves {
            let _: off_t = kernel!(SYS_lseek, fd, at + length as u64, libc::SEEK_SET);
        }
        length
    });
    count(description.cell(), Way::Write, begun.elapsed(), &moved);
    moved
}

/// # Safety
/// As [`transfer`].
unsafe fn move_bytes(
    description: &Description,
    way: Way,
    slices: &[Slice],
    length: usize,
    at: u64,
) -> Result<usize> {
    let begun = Instant::now();
    // SAFETY: passed on; the future is run to its end here.
    let run = unsafe { exchange(&description.file, way, slices, length, at) };
    let moved = description.engine.pool.run(run);
    count(description.cell(), way, begun.elapsed(), &moved);
    moved
}

/// A mapping of a file of ours: private ones are memory that holds what the file holds now.
pub(crate) fn map(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Option<*mut c_void> {
    if flags & libc::MAP_ANONYMOUS != 0 || handle(fd)?.directory {
        return None;
    }
    let mapped = answer(|engine| {
        let file = file(fd)?;
        if flags & libc::MAP_TYPE != libc::MAP_PRIVATE {
            return Err(Error::new(Code::Unsupported));
        }
        if !file.mode().read {
            return Err(Error::new(Code::AccessDenied));
        }
        let at = u64::try_from(offset).map_err(|_| Error::new(Code::Invalid))?;
        let (writable, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_ANONYMOUS);
        let memory: isize = kernel!(SYS_mmap, address, length, writable, flags, usize::MAX, 0);
        if memory < 0 {
            let code = match process::errno() {
                libc::EINVAL => Code::Invalid,
                libc::EEXIST => Code::Exists,
                _ => Code::NoSpace,
            };
            return Err(Error::new(code));
        }
        let slices = [Slice { pointer: memory as *mut u8, length }];
        let extents = [Extent { offset: at, length: length as u64 }];
        // SAFETY: fresh memory that nobody knows of.
        let read = engine.pool.run(async { unsafe { file.read_slices(&extents, &slices) }.await });
        let protected: c_int = kernel!(SYS_mprotect, memory, length, protection);
        match read {
            Ok(_) if protected == 0 => Ok(memory),
            read => {
                let _: c_int = kernel!(SYS_munmap, memory, length);
                read.and(Err(Error::new(Code::AccessDenied)))
            }
        }
    });
    Some(told(mapped) as *mut c_void)
}
