//! `libweir_preload.so`: loaded into an unmodified program by `LD_PRELOAD`, it reads and writes files
//! of a mounted pool by connections of its own, at the speed of the native library.
//!
//! The kernel still opens every file, and its descriptor stays behind: names, locks, mappings and
//! everything that is not caught here go the kernel's way. A descriptor's position is always the
//! kernel's. So whatever this library does not do, or fails to do, is right all the same, and slower.
//! Where nothing can be mounted, there is but this library (`alone`): then it refuses what it cannot do.
//!
//! What it must never be is in the way: of files that are not the pool's (a call costs a few loads
//! more), of other libraries that stand in front of the same functions, of allocators that start
//! before it, of signal handlers, of children.

mod alone;
mod bare;
mod before;
mod bequest;
mod buffer;
mod children;
mod engine;
mod exports;
mod files;
mod flight;
mod fork;
mod mark;
mod memory;
mod process;
mod reach;
mod real;
mod stdio;
mod transfer;

/// Runs when the library is loaded. Functions called before go straight to the kernel.
#[cfg_attr(test, allow(dead_code))]
extern "C" fn begin() {
    memory::begin();
    exports::begin();
    before::find();
    bequest::find();
    bare::find();
    alone::find();
    // SAFETY: a name ended by a NUL; nobody changes the environment this early.
    if !unsafe { libc::getenv(c"WEIR_IO_BUFFER".as_ptr()) }.is_null() {
        files::EAGER.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    if process::begin() {
        fork::begin();
        alone::begin();
        bequest::take_over();
    }
}

/// Runs when the process ends in an orderly way.
#[cfg_attr(test, allow(dead_code))]
extern "C" fn end() {
    buffer::finish();
    alone::finish();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
