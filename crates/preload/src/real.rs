//! Standing in front of functions of the C library (or of the next library that stands there).
//!
//! The real functions are looked up once, when the library is initialised, and never in the middle of
//! a call: an allocator that reads a file while it starts would come back to us, and `dlsym`
//! allocates. Until then the kernel is called directly.

use crate::process;
use libc::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Defines functions that stand in front of others of the same name: their names (those that do the
/// same have one entry), arguments and result; what is done before the real one is known (none: it is
/// looked up then, because no allocator calls that while it starts); and the body, in which the named
/// closure calls the real one with the same arguments.
macro_rules! interpose {
    ($(fn $($name:ident)|+ ($($arguments:tt)*) -> $result:ty, $(early $early:expr,)?
        |$next:ident| $body:expr;)*) => {
        #[allow(non_upper_case_globals)]
        mod found {
            use std::sync::atomic::AtomicPtr;
            $($(pub(super) static $name: AtomicPtr<libc::c_void> =
                AtomicPtr::new(std::ptr::null_mut());)+)*
        }

        /// Looks up what stands behind us.
        pub(crate) fn find() {
            $($(
                $crate::real::look_up(&found::$name, concat!(stringify!($name), "\0"));
            )+)*
        }

        $($crate::real::each! {
            [$($name)+] ($($arguments)*) -> $result, [$($early)?], |$next| $body
        })*
    };
}
pub(crate) use interpose;

/// One function of [`interpose`] for each of the names.
macro_rules! each {
    ([] $($rest:tt)*) => {};
    ([$name:ident $($names:ident)*] $($rest:tt)*) => {
        $crate::real::function! { $name $($rest)* }
        $crate::real::each! { [$($names)*] $($rest)* }
    };
}
pub(crate) use each;

/// One function of [`interpose`].
///
/// A thread that is cancelled while it waits in a real function unwinds its stack through ours: they
/// let it (`C-unwind`), and have nothing to drop at that moment.
macro_rules! function {
    ($name:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty, [$($early:expr)?],
        |$next:ident| $body:expr) => {
        /// # Safety
        /// As the function of this name behind it.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            let $next = || {
                let function = found::$name.load(std::sync::atomic::Ordering::Acquire);
                $(if function.is_null() {
                    return $early;
                })?
                let function = match function.is_null() {
                    true => $crate::real::look_up(
                        &found::$name, concat!(stringify!($name), "\0")),
                    false => function,
                };
                // Integers and pointers behind the named arguments of `open` and `fcntl` go where
                // these go, on all machines that we build for.
                type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
                // SAFETY: the symbol of this name has this type.
                let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(function) };
                // SAFETY: the caller's promises are those of the function.
                unsafe { function($($argument),*) }
            };
            $body
        }
    };
}
pub(crate) use function;

/// The function of this name (ended by a NUL) behind us, which is looked up once.
pub(crate) fn look_up(found: &AtomicPtr<c_void>, name: &str) -> *mut c_void {
    let function = found.load(Ordering::Acquire);
    if !function.is_null() {
        return function;
    }
    // SAFETY: a symbol's name, ended by a NUL.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
    found.store(function, Ordering::Release);
    function
}

/// Makes a system call. Sets errno where it fails. Not by the C library's `syscall`, which others stand
/// in front of, and we ourselves.
///
/// # Safety
/// As the system call's.
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
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
            process::set_errno(-result as c_int);
            -1
        }
        result => result as c_long,
    }
}

/// Makes a system call by name, of arguments that are cast to words (sign-extended).
macro_rules! kernel {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let mut arguments = [0usize; 6];
        let given = [$($argument as usize),*];
        arguments[..given.len()].copy_from_slice(&given);
        // SAFETY: the promises of this function's caller are those of the system call.
        unsafe { $crate::real::call(libc::$number, arguments) as _ }
    }};
}
pub(crate) use kernel;

/// The descriptor's number if it is open: what dup2 to itself gives.
pub(crate) fn same(fd: c_int) -> c_int {
    let flags: c_int = kernel!(SYS_fcntl, fd, libc::F_GETFD);
    if flags < 0 { -1 } else { fd }
}
