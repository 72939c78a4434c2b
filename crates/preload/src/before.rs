//! Functions before which what is buffered must be written, whatever their arguments are: they may
//! look at a file, lock it, hand it on, end the process, or change what it may do.

use crate::real::look_up;

/// Defines a function that calls another one, with its first argument, and then jumps to what this has
/// given, with all arguments as they came.
macro_rules! jumping {
    ($name:ident, $first:path) => {
        /// # Safety
        /// As the function of this name behind it.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "call {first}",
                "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                first = sym $first,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-96]!",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]", "str x8, [sp, #80]",
                "bl {first}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]", "ldr x8, [sp, #80]",
                "ldp x29, x30, [sp], #96",
                "br x16",
                first = sym $first,
            );
        }
    };
}
pub(crate) use jumping;

/// Defines functions that write what is buffered and then jump to the real ones, with all arguments
/// as they came; some have any number of them.
macro_rules! before {
    ($($name:ident)*) => {
        #[allow(non_upper_case_globals)]
        mod found {
            use std::sync::atomic::AtomicPtr;
            $(pub(super) static $name: AtomicPtr<libc::c_void> =
                AtomicPtr::new(std::ptr::null_mut());)*
        }

        /// What each does first.
        #[allow(non_snake_case)]
        mod settle {
            $(pub(super) extern "C" fn $name() -> *mut libc::c_void {
                crate::buffer::settle();
                crate::real::look_up(&super::found::$name, concat!(stringify!($name), "\0"))
            })*
        }

        /// Looks up what stands behind us.
        pub(crate) fn find() {
            $(
                look_up(&found::$name, concat!(stringify!($name), "\0"));
            )*
        }

        $(
            $crate::before::jumping!($name, settle::$name);
        )*
    };
}

before! {
    sync syncfs
    _exit _Exit quick_exit abort
    setrlimit setrlimit64 prlimit prlimit64
}
