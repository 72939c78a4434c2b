//! What there is not without a mount. It is refused: the kernel would do it with the empty directory,
//! or with the memory file that a descriptor of ours is.

use super::{is_handle, named, refuse, told};
use crate::buffer;
use crate::real::interpose;
use libc::{c_char, c_int, c_uint, c_void, dev_t, mode_t, off_t, size_t, ssize_t};

fn path<T: From<i8>>(at: c_int, path: *const c_char, errno: c_int, next: impl FnOnce() -> T) -> T {
    if named(at, path).is_some() { told(Err(errno)) } else { next() }
}

fn descriptor<T: From<i8>>(fd: c_int, errno: c_int, next: impl FnOnce() -> T) -> T {
    buffer::settle();
    refuse(fd, errno, next)
}

/// Functions that change a file's bytes or its end.
fn changes<T: From<i8>>(fd: c_int, errno: c_int, next: impl FnOnce() -> T) -> T {
    buffer::forget();
    refuse(fd, errno, next)
}

/// As [`changes`], of functions that give an error number.
fn number(fd: c_int, errno: c_int, next: impl FnOnce() -> c_int) -> c_int {
    buffer::forget();
    if is_handle(fd) { errno } else { next() }
}

const HERE: c_int = libc::AT_FDCWD;
/// As on a file system without extended attributes.
const NONE: c_int = libc::EOPNOTSUPP;

interpose! {
    fn chroot(name: *const c_char) -> c_int,
        |next| path(HERE, name, libc::ENOSYS, next);
    fn mknod(name: *const c_char, mode: mode_t, device: dev_t) -> c_int,
        |next| path(HERE, name, libc::ENOSYS, next);
    fn mknodat(at: c_int, name: *const c_char, mode: mode_t, device: dev_t) -> c_int,
        |next| path(at, name, libc::ENOSYS, next);
    fn mkfifo(name: *const c_char, mode: mode_t) -> c_int,
        |next| path(HERE, name, libc::ENOSYS, next);
    fn mkfifoat(at: c_int, name: *const c_char, mode: mode_t) -> c_int,
        |next| path(at, name, libc::ENOSYS, next);
    fn ftw | ftw64(name: *const c_char, each: *mut c_void, descriptors: c_int) -> c_int,
        |next| path(HERE, name, libc::ENOSYS, next);
    fn nftw | nftw64(name: *const c_char, each: *mut c_void, descriptors: c_int, flags: c_int) -> c_int,
        |next| path(HERE, name, libc::ENOSYS, next);
    fn glob | glob64(pattern: *const c_char, flags: c_int, failed: *mut c_void, found: *mut c_void) -> c_int,
        |next| if named(HERE, pattern).is_some() { libc::GLOB_ABORTED } else { next() };

    fn getxattr | lgetxattr(name: *const c_char, key: *const c_char, value: *mut c_void, room: size_t) -> ssize_t,
        |next| path(HERE, name, NONE, next);
    fn fgetxattr(fd: c_int, key: *const c_char, value: *mut c_void, room: size_t) -> ssize_t,
        |next| descriptor(fd, NONE, next);
    fn listxattr | llistxattr(name: *const c_char, list: *mut c_char, room: size_t) -> ssize_t,
        |next| path(HERE, name, NONE, next);
    fn flistxattr(fd: c_int, list: *mut c_char, room: size_t) -> ssize_t,
        |next| descriptor(fd, NONE, next);
    fn setxattr | lsetxattr(name: *const c_char, key: *const c_char, value: *const c_void, length: size_t, flags: c_int) -> c_int,
        |next| path(HERE, name, NONE, next);
    fn fsetxattr(fd: c_int, key: *const c_char, value: *const c_void, length: size_t, flags: c_int) -> c_int,
        |next| descriptor(fd, NONE, next);
    fn removexattr | lremovexattr(name: *const c_char, key: *const c_char) -> c_int,
        |next| path(HERE, name, NONE, next);
    fn fremovexattr(fd: c_int, key: *const c_char) -> c_int,
        |next| descriptor(fd, NONE, next);

    fn fallocate | fallocate64(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int,
        |next| changes(fd, NONE, next);
    fn posix_fallocate | posix_fallocate64(fd: c_int, offset: off_t, length: off_t) -> c_int,
        |next| number(fd, NONE, next);
    fn sync_file_range(fd: c_int, offset: off_t, length: off_t, flags: c_uint) -> c_int,
        |next| descriptor(fd, libc::ENOSYS, next);
}
