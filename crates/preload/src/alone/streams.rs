//! stdio without a mount. The C library reads and writes its streams' descriptors by itself, where
//! nobody can step in: files of the pool get streams that call the functions which we stand before.

use super::{handle, is_on, open};
use crate::process::{self, Inside};
use crate::real::interpose;
use crate::{buffer, exports, stdio};
use libc::{FILE, c_char, c_int, c_void, off_t, size_t, ssize_t};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Descriptors of streams of ours, by their address.
type Streams = BTreeMap<usize, c_int>;

static STREAMS: Mutex<Streams> = Mutex::new(BTreeMap::new());
/// What standard streams were before they were redirected to the pool, and what they are meanwhile.
static STANDARD: Mutex<[Option<Pair>; 3]> = Mutex::new([None; 3]);

#[derive(Clone, Copy)]
pub(crate) struct Pair {
    theirs: usize,
    ours: usize,
}

/// Something that can be held still while a child is made.
pub(crate) type Held = (MutexGuard<'static, Streams>, MutexGuard<'static, [Option<Pair>; 3]>);

fn streams() -> MutexGuard<'static, Streams> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn standard() -> MutexGuard<'static, [Option<Pair>; 3]> {
    STANDARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nobody opens or looks for streams until the guard is dropped.
pub(crate) fn hold() -> Held {
    (streams(), standard())
}

type Move = unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t;

#[repr(C)]
struct Functions {
    read: Move,
    write: Move,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

fn number(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C-unwind" fn read(
    cookie: *mut c_void,
    memory: *mut c_char,
    length: size_t,
) -> ssize_t {
    // SAFETY: the C library gives memory of that length.
    unsafe { exports::read(number(cookie), memory.cast(), length) }
}

unsafe extern "C-unwind" fn write(
    cookie: *mut c_void,
    memory: *mut c_char,
    length: size_t,
) -> ssize_t {
    let mut done = 0;
    while done < length {
        // SAFETY: as above.
        let moved =
            unsafe { exports::write(number(cookie), memory.add(done).cast(), length - done) };
        match moved {
            ..0 if process::errno() == libc::EINTR => {}
            // A cookie's function says 0 where it fails.
            ..=0 => return done as ssize_t,
            moved => done += moved as usize,
        }
    }
    done as ssize_t
}

unsafe extern "C-unwind" fn seek(cookie: *mut c_void, offset: *mut off_t, whence: c_int) -> c_int {
    // SAFETY: the C library says where to begin, and wants to know where that is.
    unsafe {
        let found = exports::lseek(number(cookie), *offset, whence);
        if found < 0 {
            return -1;
        }
        *offset = found;
    }
    0
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: takes a number.
    unsafe { exports::close(number(cookie)) }
}

/// A stream for a descriptor.
fn stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read, write, seek, close };
    // SAFETY: a mode ended by a NUL, which the C library checks; the functions stay.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        let _inside = process::attends().then(Inside::enter);
        streams().insert(stream as usize, fd);
    }
    stream
}

/// The descriptor of a stream of ours.
pub(crate) fn descriptor(stream: *mut FILE) -> Option<c_int> {
    if !is_on() || process::is_guest() || process::is_inside() {
        return None;
    }
    let _inside = Inside::enter();
    streams().get(&(stream as usize)).copied()
}

/// The stream is about to be closed.
pub(crate) fn ends(stream: *mut FILE) -> bool {
    if descriptor(stream).is_none() {
        return false;
    }
    let _inside = Inside::enter();
    streams().remove(&(stream as usize));
    true
}

/// Writes what streams of ours have buffered, but for those that another thread is at: it may be
/// waiting for ever.
pub(crate) fn flush() {
    let mut last = 0;
    while let Some(address) = next_behind(last) {
        last = address;
        let stream = address as *mut FILE;
        // SAFETY: a stream that was not closed yet; closing goes through us.
        unsafe {
            if ftrylockfile(stream) == 0 {
                libc::fflush(stream);
                funlockfile(stream);
            }
        }
    }
}

fn next_behind(last: usize) -> Option<usize> {
    let _inside = process::attends().then(Inside::enter);
    streams().range(last + 1..).next().map(|(address, _)| *address)
}

/// A descriptor is something else now. If it is a standard one, its stream follows: programs and the
/// C library ask for the streams by name each time.
pub(crate) fn stands(fd: c_int) {
    if !is_on() || !(0..=2).contains(&fd) || !process::attends() {
        return;
    }
    let _inside = Inside::enter();
    let place = match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    };
    let pool = handle(fd).is_some();
    let mut standard = standard();
    // SAFETY: what the streams' names mean may be changed, says the C library's manual; who changes
    // its standard descriptors does not use the streams meanwhile.
    let now = unsafe { *place } as usize;
    let next = match (standard[fd as usize], pool) {
        (Some(pair), true) if pair.theirs == now => pair.ours,
        (Some(pair), false) if pair.ours == now => pair.theirs,
        (None, true) => {
            let ours = stream(fd, if fd == 0 { c"r".as_ptr() } else { c"w".as_ptr() });
            if ours.is_null() {
                return;
            }
            if fd == 2 {
                // SAFETY: a stream that nobody has used yet.
                unsafe { libc::setvbuf(ours, std::ptr::null_mut(), libc::_IONBF, 0) };
            }
            standard[fd as usize] = Some(Pair { theirs: now, ours: ours as usize });
            ours as usize
        }
        _ => return,
    };
    // SAFETY: as above.
    unsafe { *place = next as *mut FILE };
}

/// Flags of `open` that a mode of `fopen` means.
fn flags(mode: *const c_char) -> Option<c_int> {
    // SAFETY: the program gives a mode, ended by a NUL.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let mode = mode.split(|byte| *byte == b',').next()?;
    let both = mode.contains(&b'+');
    let access = |alone| if both { libc::O_RDWR } else { alone };
    let mut flags = match mode.first()? {
        b'r' => access(libc::O_RDONLY),
        b'w' => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        b'a' => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    if mode.contains(&b'e') {
        flags |= libc::O_CLOEXEC;
    }
    if mode.contains(&b'x') {
        flags |= libc::O_EXCL;
    }
    Some(flags)
}

fn opened(path: *const c_char, mode: *const c_char, next: impl FnOnce() -> *mut FILE) -> *mut FILE {
    buffer::forget();
    if super::named(libc::AT_FDCWD, path).is_none() {
        return next();
    }
    let nothing = std::ptr::null_mut();
    let Some(flags) = flags(mode) else {
        process::set_errno(libc::EINVAL);
        return nothing;
    };
    match open(libc::AT_FDCWD, path, flags, 0o666) {
        Some(fd @ 0..) => stream(fd, mode),
        _ => nothing,
    }
}

fn reopened(path: *const c_char, stream: *mut FILE, next: impl FnOnce() -> *mut FILE) -> *mut FILE {
    match descriptor(stream).is_some() || super::named(libc::AT_FDCWD, path).is_some() {
        false => next(),
        true => {
            process::set_errno(libc::ENOSYS);
            std::ptr::null_mut()
        }
    }
}

/// What `freopen` does where neither the stream nor the path is the pool's; it is refused else.
pub(crate) fn reopen(
    path: *const c_char,
    stream: *mut FILE,
    next: impl FnOnce() -> *mut FILE,
) -> *mut FILE {
    if is_on() { reopened(path, stream, next) } else { next() }
}

interpose! {
    fn fopen | fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE,
        // SAFETY: the program's path and mode, and what was just opened by them.
        |next| opened(path, mode, || unsafe { stdio::opened(path, mode, next()) });
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE,
        |next| {
            buffer::settle();
            match handle(fd).is_some() {
                true => stream(fd, mode),
                // SAFETY: as above.
                false => unsafe { stdio::opened(std::ptr::null(), mode, next()) },
            }
        };
    fn fileno | fileno_unlocked(file: *mut FILE) -> c_int,
        |next| descriptor(file).unwrap_or_else(next);
}
