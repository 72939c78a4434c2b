//! The C library's `syscall`: what a program asks of the kernel by number is not to be missed by what
//! is buffered (Node.js asks so for attributes). Where there is no mount, the kernel knows nothing of the pool.

use crate::before::jumping;
use crate::real::{self, look_up};
use crate::{alone, buffer, process};
use libc::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up what stands behind us.
pub(crate) fn find() {
    look_up(&REAL, "syscall\0");
}

/// What is done before the call; gives the function that does it. Some calls of the language's library
/// in this one come here too, and must not pass for the program's.
extern "C" fn before(
    number: c_long,
    first: c_int,
    second: *const c_char,
    third: c_int,
) -> *mut c_void {
    if !process::is_inside() && !is_harmless(number) {
        let errno = process::errno();
        // It may read, and it may write.
        buffer::forget();
        let is_pools = match number {
            libc::SYS_copy_file_range => alone::is_handle(first) || alone::is_handle(third),
            number => takes_place(number) && alone::is_pools(first, second),
        };
        process::set_errno(errno);
        if is_pools {
            return refused as *mut c_void;
        }
    }
    let real = REAL.load(Ordering::Acquire);
    if real.is_null() { call as *mut c_void } else { real }
}

/// Calls that have nothing to do with files, and are made often.
fn is_harmless(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_futex
            | libc::SYS_gettid
            | libc::SYS_getpid
            | libc::SYS_getrandom
            | libc::SYS_getcpu
            | libc::SYS_membarrier
            | libc::SYS_sched_yield
            | libc::SYS_clock_gettime
    )
}

jumping!(syscall, before);

/// Calls whose first two arguments are a directory's descriptor and a path. For new ones there is an older
/// function, which programs call where there is no new one.
fn takes_place(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_openat
            | libc::SYS_openat2
            | libc::SYS_statx
            | libc::SYS_newfstatat
            | libc::SYS_faccessat
            | libc::SYS_faccessat2
            | libc::SYS_renameat2
            | libc::SYS_mkdirat
            | libc::SYS_unlinkat
    )
}

extern "C" fn refused() -> c_long {
    process::set_errno(libc::ENOSYS);
    -1
}

/// Makes the call, before this library has begun, when the real function is not known yet.
extern "C" fn call(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the caller's promises are those of the system call.
    unsafe { real::call(number, [a, b, c, d, e, f]) }
}
