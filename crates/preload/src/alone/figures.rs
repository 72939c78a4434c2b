//! How much a pool holds, and its limits.

use super::names::named;
use super::{answer, handle, told};
use crate::engine::Engine;
use crate::process;
use crate::real::interpose;
use libc::{c_char, c_int, c_long};
use weir_core::error::Result;

const BLOCK_BYTES: u64 = 4096;
const NAME_BYTES_MAX: u64 = 255;
const PATH_BYTES_MAX: c_long = 4096;
/// As of the file system for the kernel.
const FUSE_MAGIC: libc::__fsword_t = 0x6573_5546;

/// Blocks in all and free, inodes in use.
struct Fill {
    blocks: u64,
    free: u64,
    inodes: u64,
}

fn fill(engine: &Engine) -> Result<Fill> {
    let usage = engine.pool.run(engine.pool.fs().usage())?;
    let free = usage.capacity.saturating_sub(usage.used);
    Ok(Fill {
        blocks: usage.capacity / BLOCK_BYTES,
        free: free / BLOCK_BYTES,
        inodes: usage.inodes,
    })
}

/// # Safety
/// There must be room for it.
unsafe fn tell(engine: &Engine, out: *mut libc::statfs) -> Result<c_int> {
    let fill = fill(engine)?;
    // SAFETY: zeros are valid.
    let mut told: libc::statfs = unsafe { std::mem::zeroed() };
    told.f_type = FUSE_MAGIC;
    told.f_bsize = BLOCK_BYTES as _;
    told.f_frsize = BLOCK_BYTES as _;
    (told.f_blocks, told.f_bfree, told.f_bavail) = (fill.blocks, fill.free, fill.free);
    (told.f_files, told.f_ffree) = (fill.inodes + fill.free, fill.free);
    told.f_namelen = NAME_BYTES_MAX as _;
    // SAFETY: the caller promises the room.
    unsafe { out.write(told) };
    Ok(0)
}

/// # Safety
/// There must be room for it.
unsafe fn tell_portably(engine: &Engine, out: *mut libc::statvfs) -> Result<c_int> {
    let fill = fill(engine)?;
    // SAFETY: zeros are valid.
    let mut told: libc::statvfs = unsafe { std::mem::zeroed() };
    (told.f_bsize, told.f_frsize) = (BLOCK_BYTES, BLOCK_BYTES);
    (told.f_blocks, told.f_bfree, told.f_bavail) = (fill.blocks, fill.free, fill.free);
    (told.f_files, told.f_ffree, told.f_favail) = (fill.inodes + fill.free, fill.free, fill.free);
    told.f_namemax = NAME_BYTES_MAX;
    // SAFETY: the caller promises the room.
    unsafe { out.write(told) };
    Ok(0)
}

fn limit(name: c_int) -> c_long {
    match name {
        libc::_PC_NAME_MAX => NAME_BYTES_MAX as c_long,
        libc::_PC_PATH_MAX => PATH_BYTES_MAX,
        libc::_PC_NO_TRUNC | libc::_PC_CHOWN_RESTRICTED => 1,
        libc::_PC_FILESIZEBITS => 64,
        libc::_PC_PIPE_BUF => libc::PIPE_BUF as c_long,
        _ => {
            process::set_errno(libc::EINVAL);
            -1
        }
    }
}

fn by_path(
    path: *const c_char,
    next: impl FnOnce() -> c_int,
    work: impl FnOnce(&Engine) -> Result<c_int>,
) -> c_int {
    named(libc::AT_FDCWD, path, next, |engine, place| {
        let who = super::who();
        engine.pool.run(engine.pool.fs().lookup(&who, place, true))?;
        work(engine)
    })
}

fn by_descriptor(
    fd: c_int,
    next: impl FnOnce() -> c_int,
    work: impl FnOnce(&Engine) -> Result<c_int>,
) -> c_int {
    match handle(fd) {
        None => next(),
        Some(_) => told(answer(|engine| work(engine))),
    }
}

interpose! {
    fn statfs | statfs64(path: *const c_char, out: *mut libc::statfs) -> c_int,
        |next| by_path(path, next, |engine| {
            // SAFETY: the program gives the room.
            unsafe { tell(engine, out) }
        });
    fn fstatfs | fstatfs64(fd: c_int, out: *mut libc::statfs) -> c_int,
        |next| by_descriptor(fd, next, |engine| {
            // SAFETY: the program gives the room.
            unsafe { tell(engine, out) }
        });
    fn statvfs | statvfs64(path: *const c_char, out: *mut libc::statvfs) -> c_int,
        |next| by_path(path, next, |engine| {
            // SAFETY: the program gives the room.
            unsafe { tell_portably(engine, out) }
        });
    fn fstatvfs | fstatvfs64(fd: c_int, out: *mut libc::statvfs) -> c_int,
        |next| by_descriptor(fd, next, |engine| {
            // SAFETY: the program gives the room.
            unsafe { tell_portably(engine, out) }
        });
    fn pathconf(path: *const c_char, name: c_int) -> c_long,
        |next| if super::named(libc::AT_FDCWD, path).is_some() { limit(name) } else { next() };
    fn fpathconf(fd: c_int, name: c_int) -> c_long,
        |next| if handle(fd).is_some() { limit(name) } else { next() };
}
