//! `libweir_preload.so`: loaded into an unmodified program by `LD_PRELOAD`, it reads and writes files
//! of a mounted pool by connections of its own, at the speed of the native library.
//!
//! The kernel still opens every file, and its descriptor stays behind: names, locks, mappings and
//! everything that is not caught here go the kernel's way. A descriptor's position is always the
//! kernel's. So whatever this library does not do, or fails to do, is right all the same, and slower.
//!
//! What it must never be is in the way: of files that are not the pool's (a call costs a few loads
//! more), of other libraries that stand in front of the same functions, of allocators that start
//! before it, of signal handlers, of children.

mod engine;
mod exports;
mod files;
mod fork;
mod process;
mod real;
mod transfer;

/// Runs when the library is loaded. Functions called before go straight to the kernel.
#[cfg(not(test))]
extern "C" fn begin() {
    exports::begin();
    if process::begin() {
        fork::begin();
    }
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
