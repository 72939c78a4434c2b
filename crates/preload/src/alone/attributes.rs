//! What the pool says of its files: sizes, times, modes; and what changes them.

use super::names::named;
use super::{answer, handle, is_path, told, who};
use crate::buffer;
use crate::engine::Engine;
use crate::reach;
use crate::real::interpose;
use libc::{c_char, c_int, c_uint, gid_t, mode_t, off_t, timespec, timeval, uid_t, utimbuf};
use std::sync::Arc;
use weir_core::error::{Code, Error, Result};
use weir_core::types::{Attributes, FileKind, Ino, WallTime};
use weir_core::wire::meta::{Changes, SetTime};

/// Number of a device that the kernel gives to nobody, as which programs see the pool.
const DEVICE: (u32, u32) = (0, 0x7_7e1e);
const BLOCK_BYTES: u64 = 512;
const IO_BYTES: u32 = 1 << 20;
const SECOND_NS: i64 = 1_000_000_000;

fn seconds(time: WallTime) -> (i64, i64) {
    (time.0.div_euclid(SECOND_NS), time.0.rem_euclid(SECOND_NS))
}

fn blocks(found: &Attributes) -> u64 {
    found.allocated.div_ceil(BLOCK_BYTES)
}

/// Writes as `stat` does.
///
/// # Safety
/// There must be room for it.
unsafe fn fill(out: *mut libc::stat, found: &Attributes) {
    // SAFETY: zeros are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = libc::makedev(DEVICE.0, DEVICE.1);
    stat.st_ino = found.ino.0;
    stat.st_mode = found.kind.mode_bits() | found.mode;
    stat.st_nlink = found.nlink.into();
    stat.st_uid = found.uid;
    stat.st_gid = found.gid;
    stat.st_rdev = found.rdev;
    stat.st_size = found.size as off_t;
    stat.st_blksize = IO_BYTES.into();
    stat.st_blocks = blocks(found) as i64;
    (stat.st_atime, stat.st_atime_nsec) = seconds(found.atime);
    (stat.st_mtime, stat.st_mtime_nsec) = seconds(found.mtime);
    (stat.st_ctime, stat.st_ctime_nsec) = seconds(found.ctime);
    // SAFETY: the caller promises the room.
    unsafe { out.write(stat) };
}

/// Writes as `statx` does.
///
/// # Safety
/// There must be room for it.
unsafe fn fill_extended(out: *mut libc::statx, found: &Attributes) {
    // SAFETY: zeros are valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    stat.stx_mask = libc::STATX_BASIC_STATS;
    (stat.stx_dev_major, stat.stx_dev_minor) = DEVICE;
    stat.stx_ino = found.ino.0;
    stat.stx_mode = (found.kind.mode_bits() | found.mode) as u16;
    stat.stx_nlink = found.nlink;
    stat.stx_uid = found.uid;
    stat.stx_gid = found.gid;
    stat.stx_rdev_major = libc::major(found.rdev);
    stat.stx_rdev_minor = libc::minor(found.rdev);
    stat.stx_size = found.size;
    stat.stx_blksize = IO_BYTES;
    stat.stx_blocks = blocks(found);
    for (to, time) in [
        (&mut stat.stx_atime, found.atime),
        (&mut stat.stx_mtime, found.mtime),
        (&mut stat.stx_ctime, found.ctime),
    ] {
        let (second, nanosecond) = seconds(time);
        to.tv_sec = second;
        to.tv_nsec = nanosecond as u32;
    }
    // SAFETY: the caller promises the room.
    unsafe { out.write(stat) };
}

fn follows(flags: c_int) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW == 0
}

/// Does something with the inode that a path names.
fn inode(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    next: impl FnOnce() -> c_int,
    work: impl FnOnce(&Arc<Engine>, Attributes) -> Result<c_int>,
) -> c_int {
    named(at, path, next, |engine, place| {
        let found = engine.pool.run(engine.pool.fs().lookup(&who(), place, follows(flags)))?;
        work(engine, found)
    })
}

/// Does something with the inode that a descriptor stands for.
fn held(
    fd: c_int,
    next: impl FnOnce() -> c_int,
    work: impl FnOnce(&Arc<Engine>, Ino) -> Result<c_int>,
) -> c_int {
    buffer::settle();
    match handle(fd) {
        None => next(),
        Some(handle) => told(answer(|engine| work(engine, handle.ino))),
    }
}

/// Changes the inode that a descriptor stands for: not by one that was opened for its path alone.
fn change_held(
    fd: c_int,
    next: impl FnOnce() -> c_int,
    changes: impl FnOnce() -> Result<Changes>,
) -> c_int {
    held(fd, next, |engine, ino| match is_path(fd) {
        false => change(engine, ino, changes()?),
        true => Err(Error::new(Code::BadHandle)),
    })
}

fn looked(
    at: c_int,
    path: *const c_char,
    out: *mut libc::stat,
    flags: c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    inode(at, path, flags, next, |_, found| {
        // SAFETY: the program gives the room.
        unsafe { fill(out, &found) };
        Ok(0)
    })
}

fn looked_at_held(fd: c_int, out: *mut libc::stat, next: impl FnOnce() -> c_int) -> c_int {
    held(fd, next, |engine, ino| {
        let found = engine.pool.run(engine.pool.fs().attributes(&who(), ino))?;
        // SAFETY: the program gives the room.
        unsafe { fill(out, &found) };
        Ok(0)
    })
}

fn permitted(found: &Attributes, mode: c_int) -> Result<c_int> {
    match found.allow(&who(), mode as u32 & 7) {
        true => Ok(0),
        false => Err(Error::new(Code::AccessDenied)),
    }
}

fn accessible(
    at: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    inode(at, path, flags, next, |_, found| permitted(&found, mode))
}

fn change(engine: &Engine, ino: Ino, changes: Changes) -> Result<c_int> {
    engine.pool.run(engine.pool.fs().change(&who(), ino, changes)).map(|_| 0)
}

fn modes(mode: mode_t) -> Changes {
    Changes { mode: Some(mode & 0o7777), ..Changes::default() }
}

fn mode_changed(
    at: c_int,
    path: *const c_char,
    mode: mode_t,
    flags: c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    inode(at, path, flags, next, |engine, found| match found.kind {
        // They have none that could be changed.
        FileKind::Symlink => Err(Error::new(Code::Unsupported)),
        _ => change(engine, found.ino, modes(mode)),
    })
}

fn owners(uid: uid_t, gid: gid_t) -> Changes {
    let named = |id: u32| (id != u32::MAX).then_some(id);
    Changes { uid: named(uid), gid: named(gid), ..Changes::default() }
}

/// Times to set, as `utimensat` has them.
fn times(given: *const timespec) -> Result<Changes> {
    if given.is_null() {
        let (atime, mtime) = (Some(SetTime::Now), Some(SetTime::Now));
        return Ok(Changes { atime, mtime, ..Changes::default() });
    }
    let time = |index: usize| {
        // SAFETY: the program gives two of them.
        let time = unsafe { *given.add(index) };
        Ok(match time.tv_nsec {
            libc::UTIME_NOW => Some(SetTime::Now),
            libc::UTIME_OMIT => None,
            0..SECOND_NS => {
                let seconds = time.tv_sec.saturating_mul(SECOND_NS);
                Some(SetTime::To(WallTime(seconds.saturating_add(time.tv_nsec))))
            }
            _ => return Err(Error::new(Code::Invalid)),
        })
    };
    Ok(Changes { atime: time(0)?, mtime: time(1)?, ..Changes::default() })
}

/// The same of microseconds.
fn coarse_times(given: *const timeval) -> Result<Changes> {
    if given.is_null() {
        return times(std::ptr::null());
    }
    let fine = |index: usize| {
        // SAFETY: the program gives two of them.
        let time = unsafe { *given.add(index) };
        // What is no time stays none: neither of the numbers that mean something else.
        let nanoseconds =
            if (0..1_000_000).contains(&time.tv_usec) { time.tv_usec * 1000 } else { -1 };
        timespec { tv_sec: time.tv_sec, tv_nsec: nanoseconds }
    };
    times([fine(0), fine(1)].as_ptr())
}

fn cut(engine: &Engine, ino: Ino, size: off_t) -> Result<c_int> {
    let size = u64::try_from(size).map_err(|_| Error::new(Code::Invalid))?;
    engine.pool.run(engine.pool.fs().truncate(&who(), ino, size)).map(|()| 0)
}

fn cut_held(fd: c_int, size: off_t, next: impl FnOnce() -> c_int) -> c_int {
    held(fd, next, |engine, _| {
        let file = match super::file(fd) {
            _ if is_path(fd) => return Err(Error::new(Code::BadHandle)),
            Ok(file) if file.mode().write => file,
            Ok(_) | Err(Error { code: Code::IsDirectory, .. }) => {
                return Err(Error::new(Code::Invalid));
            }
            Err(error) => return Err(error),
        };
        let size = u64::try_from(size).map_err(|_| Error::new(Code::Invalid))?;
        engine.pool.run(file.truncate(size)).map(|()| 0)
    })
}

const HERE: c_int = libc::AT_FDCWD;
const ITSELF: c_int = libc::AT_SYMLINK_NOFOLLOW;

interpose! {
    fn stat | stat64(path: *const c_char, out: *mut libc::stat) -> c_int,
        |next| looked(HERE, path, out, 0, next);
    fn lstat | lstat64(path: *const c_char, out: *mut libc::stat) -> c_int,
        |next| looked(HERE, path, out, ITSELF, next);
    fn fstat | fstat64(fd: c_int, out: *mut libc::stat) -> c_int,
        |next| looked_at_held(fd, out, next);
    fn fstatat | fstatat64(at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int,
        |next| looked(at, path, out, flags, next);
    fn __xstat | __xstat64(version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int,
        |next| looked(HERE, path, out, 0, next);
    fn __lxstat | __lxstat64(version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int,
        |next| looked(HERE, path, out, ITSELF, next);
    fn __fxstat | __fxstat64(version: c_int, fd: c_int, out: *mut libc::stat) -> c_int,
        |next| looked_at_held(fd, out, next);
    fn __fxstatat | __fxstatat64(version: c_int, at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int,
        |next| looked(at, path, out, flags, next);
    fn statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int,
        |next| inode(at, path, flags, next, |_, found| {
            // SAFETY: the program gives the room.
            unsafe { fill_extended(out, &found) };
            Ok(0)
        });

    fn access | euidaccess | eaccess(path: *const c_char, mode: c_int) -> c_int,
        |next| accessible(HERE, path, mode, 0, next);
    fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int,
        |next| accessible(at, path, mode, flags, next);

    fn chmod(path: *const c_char, mode: mode_t) -> c_int,
        |next| mode_changed(HERE, path, mode, 0, next);
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int,
        |next| mode_changed(HERE, path, mode, ITSELF, next);
    fn fchmod(fd: c_int, mode: mode_t) -> c_int,
        |next| change_held(fd, next, || Ok(modes(mode)));
    fn fchmodat(at: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int,
        |next| mode_changed(at, path, mode, flags, next);
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int,
        |next| inode(HERE, path, 0, next, |engine, found| change(engine, found.ino, owners(uid, gid)));
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int,
        |next| inode(HERE, path, ITSELF, next, |engine, found| change(engine, found.ino, owners(uid, gid)));
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int,
        |next| change_held(fd, next, || Ok(owners(uid, gid)));
    fn fchownat(at: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int,
        |next| inode(at, path, flags, next, |engine, found| change(engine, found.ino, owners(uid, gid)));

    fn utimensat(at: c_int, path: *const c_char, given: *const timespec, flags: c_int) -> c_int,
        // Without a path it is about the descriptor.
        |next| match path.is_null() {
            true => change_held(at, next, || times(given)),
            false => inode(at, path, flags, next, |engine, found| change(engine, found.ino, times(given)?)),
        };
    fn futimens(fd: c_int, given: *const timespec) -> c_int,
        |next| change_held(fd, next, || times(given));
    fn futimes(fd: c_int, given: *const timeval) -> c_int,
        |next| change_held(fd, next, || coarse_times(given));
    fn utimes(path: *const c_char, given: *const timeval) -> c_int,
        |next| inode(HERE, path, 0, next, |engine, found| change(engine, found.ino, coarse_times(given)?));
    fn lutimes(path: *const c_char, given: *const timeval) -> c_int,
        |next| inode(HERE, path, ITSELF, next, |engine, found| change(engine, found.ino, coarse_times(given)?));
    fn futimesat(at: c_int, path: *const c_char, given: *const timeval) -> c_int,
        |next| inode(at, path, 0, next, |engine, found| change(engine, found.ino, coarse_times(given)?));
    fn utime(path: *const c_char, given: *const utimbuf) -> c_int,
        |next| inode(HERE, path, 0, next, |engine, found| {
            if given.is_null() {
                return change(engine, found.ino, times(std::ptr::null())?);
            }
            // SAFETY: the program gives them.
            let given = unsafe { *given };
            let second = |tv_sec| timespec { tv_sec, tv_nsec: 0 };
            let pair = [second(given.actime), second(given.modtime)];
            change(engine, found.ino, times(pair.as_ptr())?)
        });

    fn truncate | truncate64(path: *const c_char, size: off_t) -> c_int,
        |next| {
            buffer::forget();
            let next = || reach::changes(next);
            inode(HERE, path, 0, next, |engine, found| cut(engine, found.ino, size))
        };
    fn ftruncate | ftruncate64(fd: c_int, size: off_t) -> c_int,
        |next| {
            buffer::forget();
            cut_held(fd, size, || reach::changes(next))
        };
}
