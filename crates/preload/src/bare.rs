//! The C library's `syscall`: what a program asks of the kernel by number is not to be missed by what
//! is buffered (Node.js asks so for attributes).

use crate::before::jumping;
use crate::real::look_up;
use crate::{buffer, process};
use libc::{c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up what stands behind us.
pub(crate) fn find() {
    look_up(&REAL, "syscall\0");
}

/// What is done before the call; gives the function that does it. This library's own calls, and those
/// of the language's library in it, come here too.
extern "C" fn before(number: c_long) -> *mut c_void {
    if buffer::is_on() && !is_harmless(number) {
        let errno = process::errno();
        // It may read, and it may write.
        buffer::forget();
        process::set_errno(errno);
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
    let result: isize;
    // SAFETY: the caller's promises are those of the system call; it keeps all but these registers.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    // SAFETY: as on the other machine.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
        );
    }
    match result {
        -4095..0 => {
            process::set_errno(-result as libc::c_int);
            -1
        }
        result => result as c_long,
    }
}
