//! The functions that programs call.

use crate::real::{interpose, kernel, same};
use crate::transfer::{Memory, Way, transfer};
use crate::{alone, buffer, children, files, fork, process, reach, stdio};
use libc::{c_char, c_int, c_void, iovec, mode_t, off_t, pid_t, size_t, ssize_t};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Passes a descriptor on that the kernel has just given to this process for an opening.
pub(crate) fn opened(fd: c_int) -> c_int {
    if fd >= 0 && !process::is_guest() {
        files::opened(fd);
    }
    fd
}

/// What `creat` means.
const CREATES: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

fn opens(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    next: impl FnOnce() -> c_int,
) -> c_int {
    buffer::forget();
    alone::open(at, path, flags, mode).unwrap_or_else(|| opened(next()))
}

/// The program has another name for a descriptor, which executing may not close.
fn named(old: c_int, new: c_int) -> c_int {
    if new >= 0 && !process::is_guest() {
        children::hand_on(old);
    }
    duplicated(old, new)
}

fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && process::is_guest() {
        fork::gives(old);
    } else if new >= 0 {
        files::duplicated(old, new);
        alone::streams::stands(new);
    }
    new
}

fn refused<T: From<i8>>(errno: c_int) -> T {
    process::set_errno(errno);
    T::from(-1)
}

/// Closes a descriptor. What was buffered and could not be written is its error.
fn ends(fd: c_int, close: impl FnOnce() -> c_int) -> c_int {
    if protects(fd) {
        return refused(libc::EBADF);
    }
    let failed = settled(fd);
    if !process::is_guest() {
        files::closed(fd);
    }
    let result = close();
    if result == 0 && failed != 0 { refused(failed) } else { result }
}

/// Writes what is buffered of the descriptor's file; gives an error number, or 0.
fn settled(fd: c_int) -> c_int {
    if files::is_foreign(fd) || !process::attends() {
        return 0;
    }
    let _inside = process::Inside::enter();
    files::settle(fd)
}

/// Has the kernel sync the descriptor's file, and with it the mount, which knows of what was written past
/// it. What is lost is told by that, and known here to have been told.
fn synced(fd: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if files::is_foreign(fd) || !process::attends() {
        return next();
    }
    let begun = {
        let _inside = process::Inside::enter();
        files::begin_sync(fd)
    };
    let result = next();
    let errno = process::errno();
    if let Some(begun) = begun
        && (result == 0 || errno == libc::EIO)
    {
        let _inside = process::Inside::enter();
        files::synced(fd, &begun);
        process::set_errno(errno);
    }
    result
}

/// Whether a program would take away, unknowing, what this library needs.
fn protects(fd: c_int) -> bool {
    files::ours(fd) && process::attends()
}

/// The kernel is about to work with what has been written, and with what it believes to be the
/// file's length; perhaps to change it.
fn refresh(fd: c_int) {
    buffer::forget();
    if !files::is_foreign(fd) && process::attends() {
        let _inside = process::Inside::enter();
        files::refresh(fd);
    }
}

/// Closes a stream's descriptor in our books, before the C library does it behind its own functions.
fn stream_ends(stream: *mut libc::FILE) -> c_int {
    if stream.is_null() || process::is_guest() {
        return -1;
    }
    // What the stream still has it writes now.
    buffer::forget();
    let errno = process::errno();
    // SAFETY: the caller of `fclose` or `freopen` has a stream. It gives -1 where it has no
    // descriptor.
    let fd = unsafe { libc::fileno(stream) };
    process::set_errno(errno);
    files::closed(fd);
    fd
}

fn reads(
    fd: c_int,
    memory: Memory,
    offset: Option<off_t>,
    next: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // SAFETY: the program says that the memory is there to be written.
    unsafe { transfer(fd, Way::Read, memory, offset, next) }
}

fn writes(
    fd: c_int,
    memory: Memory,
    offset: Option<off_t>,
    next: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // SAFETY: the program says that the memory is there to be read.
    unsafe { transfer(fd, Way::Write, memory, offset, next) }
}

interpose! {
    fn open | open64 | __open | __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        early kernel!(SYS_openat, libc::AT_FDCWD, path, flags, mode),
        |next| opens(libc::AT_FDCWD, path, flags, mode, next);
    fn __open_2 | __open64_2(path: *const c_char, flags: c_int) -> c_int,
        early kernel!(SYS_openat, libc::AT_FDCWD, path, flags, 0),
        |next| opens(libc::AT_FDCWD, path, flags, 0, next);
    fn openat | openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
        early kernel!(SYS_openat, at, path, flags, mode),
        |next| opens(at, path, flags, mode, next);
    fn __openat_2 | __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int,
        early kernel!(SYS_openat, at, path, flags, 0),
        |next| opens(at, path, flags, 0, next);
    fn creat | creat64(path: *const c_char, mode: mode_t) -> c_int,
        early kernel!(SYS_openat, libc::AT_FDCWD, path, CREATES, mode),
        |next| opens(libc::AT_FDCWD, path, CREATES, mode, next);

    fn read | __read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t,
        early kernel!(SYS_read, fd, buffer, length),
        |next| reads(fd, Memory::One(buffer, length), None, next);
    fn __read_chk(fd: c_int, buffer: *mut c_void, length: size_t, room: size_t) -> ssize_t,
        early kernel!(SYS_read, fd, buffer, length.min(room)),
        |next| match length <= room {
            true => reads(fd, Memory::One(buffer, length), None, next),
            false => next(),
        };
    fn write | __write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t,
        early kernel!(SYS_write, fd, buffer, length),
        |next| writes(fd, Memory::One(buffer.cast_mut(), length), None, next);
    fn pread | pread64 | __pread64(fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t) -> ssize_t,
        early kernel!(SYS_pread64, fd, buffer, length, offset),
        |next| reads(fd, Memory::One(buffer, length), Some(offset), next);
    fn __pread_chk | __pread64_chk(fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t, room: size_t) -> ssize_t,
        early kernel!(SYS_pread64, fd, buffer, length.min(room), offset),
        |next| match length <= room {
            true => reads(fd, Memory::One(buffer, length), Some(offset), next),
            false => next(),
        };
    fn pwrite | pwrite64 | __pwrite64(fd: c_int, buffer: *const c_void, length: size_t, offset: off_t) -> ssize_t,
        early kernel!(SYS_pwrite64, fd, buffer, length, offset),
        |next| writes(fd, Memory::One(buffer.cast_mut(), length), Some(offset), next);
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t,
        early kernel!(SYS_readv, fd, list, count),
        |next| reads(fd, Memory::List(list, count), None, next);
    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t,
        early kernel!(SYS_writev, fd, list, count),
        |next| writes(fd, Memory::List(list, count), None, next);
    fn preadv | preadv64(fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t,
        early kernel!(SYS_preadv, fd, list, count, offset, 0),
        |next| reads(fd, Memory::List(list, count), Some(offset), next);
    fn pwritev | pwritev64(fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t,
        early kernel!(SYS_pwritev, fd, list, count, offset, 0),
        |next| writes(fd, Memory::List(list, count), Some(offset), next);
    fn preadv2 | preadv64v2(fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t,
        early kernel!(SYS_preadv2, fd, list, count, offset, 0, flags),
        |next| match flags {
            // Without flags it is the older function, but for what -1 means.
            0 => reads(fd, Memory::List(list, count), (offset != -1).then_some(offset), next),
            _ => {
                refresh(fd);
                next()
            }
        };
    fn pwritev2 | pwritev64v2(fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t,
        early kernel!(SYS_pwritev2, fd, list, count, offset, 0, flags),
        |next| match flags {
            // Without flags it is the older function, but for what -1 means.
            0 => writes(fd, Memory::List(list, count), (offset != -1).then_some(offset), next),
            _ => {
                refresh(fd);
                next()
            }
        };

    fn close | __close(fd: c_int) -> c_int,
        early kernel!(SYS_close, fd),
        |next| ends(fd, next);
    fn fsync(fd: c_int) -> c_int,
        early kernel!(SYS_fsync, fd),
        |next| match settled(fd) {
            0 => alone::sync(fd).unwrap_or_else(|| synced(fd, next)),
            errno => refused(errno),
        };
    fn fdatasync(fd: c_int) -> c_int,
        early kernel!(SYS_fdatasync, fd),
        |next| match settled(fd) {
            0 => alone::sync(fd).unwrap_or_else(|| synced(fd, next)),
            errno => refused(errno),
        };
    fn lseek | lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t,
        early kernel!(SYS_lseek, fd, offset, whence),
        |next| sought(fd, offset, whence, next);
    fn dup(fd: c_int) -> c_int,
        early kernel!(SYS_dup, fd),
        |next| named(fd, next());
    fn dup2(old: c_int, new: c_int) -> c_int,
        early if old == new { same(old) } else { kernel!(SYS_dup3, old, new, 0) },
        |next| {
            buffer::settle();
            match protects(new) {
                true => refused(libc::EBUSY),
                false => named(old, next()),
            }
        };
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int,
        early kernel!(SYS_dup3, old, new, flags),
        |next| {
            buffer::settle();
            match protects(new) {
                true => refused(libc::EBUSY),
                false if flags & libc::O_CLOEXEC != 0 => duplicated(old, next()),
                false => named(old, next()),
            }
        };
    fn fcntl | fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int,
        early kernel!(SYS_fcntl, fd, command, argument),
        |next| {
            buffer::settle();
            controls(fd, command);
            if command == libc::F_SETFD && argument & libc::FD_CLOEXEC as usize == 0 {
                match process::is_guest() {
                    true => fork::gives(fd),
                    false => children::hand_on(fd),
                }
            }
            controlled(fd, command, alone::control(fd, command, next))
        };
    fn unshare(flags: c_int) -> c_int,
        early kernel!(SYS_unshare, flags),
        |next| {
            if flags & libc::CLONE_FILES != 0 {
                files::divide();
            }
            next()
        };
    fn flock(fd: c_int, operation: c_int) -> c_int,
        early kernel!(SYS_flock, fd, operation),
        |next| {
            buffer::settle();
            // As file systems without such locks say it. HDF5 then goes on without, at other words
            // it does not.
            locked(alone::refuse(fd, libc::ENOSYS, next))
        };
    fn lockf | lockf64(fd: c_int, command: c_int, length: off_t) -> c_int,
        early {
            process::set_errno(libc::ENOLCK);
            -1
        },
        |next| {
            buffer::settle();
            locked(alone::refuse(fd, libc::ENOLCK, next))
        };
    fn fclose(stream: *mut libc::FILE) -> c_int,
        |next| {
            if !alone::streams::ends(stream) {
                stream_ends(stream);
            }
            let closing = stdio::closing(stream);
            let result = next();
            stdio::closed(closing);
            result
        };
    fn freopen | freopen64(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE,
        |next| {
            alone::streams::reopen(path, stream, || {
                stream_ends(stream);
                let closing = stdio::closing(stream);
                let reopened = next();
                stdio::closed(closing);
                stream_ends(reopened);
                // SAFETY: the program's, and just opened.
                unsafe { stdio::opened(path, mode, reopened) }
            })
        };

    fn mmap | mmap64(address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void,
        early kernel!(SYS_mmap, address, length, protection, flags, fd, offset),
        |next| mapped((address, length), protection, flags, (fd, offset), next);
    fn munmap(address: *mut c_void, length: size_t) -> c_int,
        early kernel!(SYS_munmap, address, length),
        |next| reach::changes(next);
    fn mprotect(address: *mut c_void, length: size_t, protection: c_int) -> c_int,
        early kernel!(SYS_mprotect, address, length, protection),
        |next| reach::changes(next);
    fn mremap(address: *mut c_void, length: size_t, wanted: size_t, flags: c_int, to: *mut c_void) -> *mut c_void,
        early kernel!(SYS_mremap, address, length, wanted, flags, to),
        |next| reach::changes(next);
    fn shmdt(address: *const c_void) -> c_int,
        early kernel!(SYS_shmdt, address),
        |next| reach::changes(next);
    fn sendfile | sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t,
        early kernel!(SYS_sendfile, to, from, offset, count),
        |next| {
            refresh(from);
            alone::refuse(from, libc::EINVAL, || alone::refuse(to, libc::EINVAL, next))
        };
    fn copy_file_range(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, length: size_t, flags: u32) -> ssize_t,
        early kernel!(SYS_copy_file_range, from, from_offset, to, to_offset, length, flags),
        |next| {
            // What is copied to may be of any length.
            refresh(from);
            alone::refuse(from, libc::EINVAL, || alone::refuse(to, libc::EINVAL, next))
        };
    fn splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, length: size_t, flags: u32) -> ssize_t,
        early kernel!(SYS_splice, from, from_offset, to, to_offset, length, flags),
        |next| {
            refresh(from);
            refresh(to);
            alone::refuse(from, libc::EINVAL, || alone::refuse(to, libc::EINVAL, next))
        };

    fn sendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t,
        early kernel!(SYS_sendmsg, socket, message, flags),
        |next| {
            // SAFETY: the caller has a message.
            unsafe { sends(message) };
            next()
        };
    fn system(command: *const c_char) -> c_int,
        |next| fork::waits_for(next);
    fn popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE,
        |next| fork::spawns(next);
    fn posix_spawn | posix_spawnp(pid: *mut pid_t, path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t, attributes: *const libc::posix_spawnattr_t,
        arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int,
        |next| fork::spawns(next);
    fn posix_spawn_file_actions_adddup2(actions: *mut libc::posix_spawn_file_actions_t, fd: c_int, new: c_int) -> c_int,
        |next| {
            fork::gives(fd);
            next()
        };
}

/// Descriptors in a message are somebody else's, too, from now on.
///
/// # Safety
/// It is a message, or null.
unsafe fn sends(message: *const libc::msghdr) {
    // SAFETY: the caller's promise; what it says of its length holds.
    unsafe {
        if message.is_null() || (*message).msg_controllen == 0 {
            return;
        }
        let mut part = libc::CMSG_FIRSTHDR(message);
        while !part.is_null() {
            let libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type, .. } = *part;
            if (cmsg_level, cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let descriptors = libc::CMSG_DATA(part).cast::<c_int>();
                let length = cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                for index in 0..length / size_of::<c_int>() {
                    fork::gives(descriptors.add(index).read_unaligned());
                }
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}

/// Where the end of the file matters, what is buffered must be in it.
fn sought(fd: c_int, offset: off_t, whence: c_int, seek: impl FnOnce() -> off_t) -> off_t {
    if matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) {
        return seek();
    }
    buffer::settle();
    alone::seek(fd, offset, whence).unwrap_or_else(seek)
}

/// Whoever has a lock now sees what others have written while they had it.
fn locked(result: c_int) -> c_int {
    if result == 0 {
        buffer::forget();
    }
    result
}

fn mapped(
    (address, length): (*mut c_void, size_t),
    protection: c_int,
    flags: c_int,
    (fd, offset): (c_int, off_t),
    next: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let map = || {
        if flags & libc::MAP_ANONYMOUS != 0 {
            return next();
        }
        refresh(fd);
        alone::map(address, length, protection, flags, fd, offset).unwrap_or_else(next)
    };
    match flags & libc::MAP_FIXED {
        0 => map(),
        _ => reach::changes(map),
    }
}

fn controls(fd: c_int, command: c_int) {
    if !files::is_foreign(fd) && process::attends() {
        let _inside = process::Inside::enter();
        files::controlled(fd, command);
    }
}

fn controlled(fd: c_int, command: c_int, result: c_int) -> c_int {
    // Another thread may have asked how it is open before it changed.
    files::may_have_changed();
    match command {
        libc::F_DUPFD => named(fd, result),
        libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => locked(result),
        _ => result,
    }
}

static CLOSE_RANGE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static VFORK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static FORK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up what stands behind us.
pub(crate) fn begin() {
    find();
    let functions = [(&CLOSE_RANGE, c"close_range"), (&VFORK, c"vfork"), (&FORK, c"fork")];
    for (found, name) in functions {
        // SAFETY: a symbol's name, ended by a NUL.
        found.store(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }, Ordering::Release);
    }
}

fn real_close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let function = CLOSE_RANGE.load(Ordering::Acquire);
    if function.is_null() {
        return kernel!(SYS_close_range, first, last, flags);
    }
    // SAFETY: the symbol of this name has this type.
    let function: unsafe extern "C" fn(u32, u32, c_int) -> c_int =
        unsafe { std::mem::transmute(function) };
    // SAFETY: takes numbers.
    unsafe { function(first, last, flags) }
}

/// # Safety
/// As the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    const CLOSE_RANGE_UNSHARE: c_int = 2;
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    buffer::settle();
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        files::divide();
    }
    if process::is_guest() || !process::attends() || first > last {
        return real_close_range(first, last, flags);
    }
    let number = |fd: u32| c_int::try_from(fd).unwrap_or(c_int::MAX);
    if flags & CLOSE_RANGE_CLOEXEC == 0 {
        files::closed_range(number(first), number(last));
    }
    // Around our own.
    let mut from = first;
    for ours in files::ours_within(number(first), number(last)) {
        let ours = ours as u32;
        if ours > from && real_close_range(from, ours - 1, flags) != 0 {
            return -1;
        }
        from = ours + 1;
    }
    if from <= last { real_close_range(from, last, flags) } else { 0 }
}

/// # Safety
/// As the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: takes numbers.
    unsafe { close_range(first.max(0) as u32, u32::MAX, 0) };
}

/// What [`vfork`] does before it jumps to the real one, whose address this gives.
extern "C" fn before_vfork() -> *mut c_void {
    // Where there is no mount, the kernel cannot stand in for us: then the child gets its own memory,
    // as POSIX permits.
    if alone::is_on() {
        return FORK.load(Ordering::Acquire);
    }
    fork::vforks();
    VFORK.load(Ordering::Acquire)
}

/// The real `vfork` must find the stack as its caller left it, since the child returns on it first:
/// so that this is no call but a jump.
///
/// # Safety
/// As the C library's function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "jmp rax",
        before = sym before_vfork,
    )
}

/// As on the other machine.
///
/// # Safety
/// As the C library's function.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "bl {before}",
        "ldp x29, x30, [sp], #16",
        "br x0",
        before = sym before_vfork,
    )
}
