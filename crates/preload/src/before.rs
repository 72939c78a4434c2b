//! Functions before which what is buffered must be written, whatever their arguments are: they may
//! look at a file, lock it, hand it on or end the process.

use crate::buffer;
use crate::real::look_up;
use libc::c_void;

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

        /// Looks up what stands behind us.
        pub(crate) fn find() {
            $(
                look_up(&found::$name, concat!(stringify!($name), "\0"));
            )*
        }

        $(
            /// # Safety
            /// As the function of this name behind it.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name() {
                extern "C" fn settle() -> *mut c_void {
                    buffer::settle();
                    look_up(&found::$name, concat!(stringify!($name), "\0"))
                }
                #[cfg(target_arch = "x86_64")]
                std::arch::naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "call {settle}",
                    "mov r11, rax",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    settle = sym settle,
                );
                #[cfg(target_arch = "aarch64")]
                std::arch::naked_asm!(
                    "stp x29, x30, [sp, #-96]!",
                    "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]", "str x8, [sp, #80]",
                    "bl {settle}",
                    "mov x16, x0",
                    "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]",
                    "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]", "ldr x8, [sp, #80]",
                    "ldp x29, x30, [sp], #96",
                    "br x16",
                    settle = sym settle,
                );
            }
        )*
    };
}

before! {
    sync syncfs
    execve execv execvp execvpe execl execlp execle fexecve execveat
    _exit _Exit quick_exit abort
}
