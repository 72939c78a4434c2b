//! Memory of this library's own.
//!
//! A signal handler may read and write files, also when it has interrupted the program's allocator:
//! so nothing here may enter that one. Ours is entered inside of the library alone, where a handler
//! that interrupts leaves everything to the kernel.

use libc::c_char;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Blocks have sizes from 16 bytes to 1 MiB, each twice the one before; what is larger is the
/// kernel's to give and take.
const SIZES: usize = 17;
const SMALLEST: usize = 16;
/// Bytes that are asked of the kernel at once, for blocks that are smaller.
const CHUNK: usize = 64 << 10;
/// Nothing here wants more.
const ALIGNMENT_MAX: usize = 4096;

/// A block that nobody has.
struct Free {
    next: *mut Free,
}

pub(crate) struct Memory {
    locked: AtomicBool,
    /// Free blocks by size; whoever has the lock may touch them.
    free: UnsafeCell<[*mut Free; SIZES]>,
}

// SAFETY: everything in it is used under its lock.
unsafe impl Sync for Memory {}

#[cfg_attr(not(test), global_allocator)]
static MEMORY: Memory = Memory::new();

/// Where the C library says that this thread is the only one. Null: it does not say.
static SINGLE_THREADED: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up what the C library says of threads (glibc, from 2.32 on).
pub(crate) fn begin() {
    // Not what stands behind us, as functions are looked up: the program may have the variable itself, copied
    // from the C library's when it was linked, and that one is kept up to date.
    // SAFETY: a symbol's name that ends.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE_THREADED.store(found.cast(), Ordering::Relaxed);
}

/// Whether nobody else can want the lock, now and until this thread makes another: a request of 4 KiB
/// locks some thirty times, and the processor then waits for all stores before.
#[inline]
fn is_single_threaded() -> bool {
    let says = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: the C library's own variable, there for as long as it is; it changes while this is the only
    // thread, and by it alone.
    !says.is_null() && unsafe { says.read_volatile() } != 0
}

fn pages(size: usize) -> *mut u8 {
    // SAFETY: asks the kernel for fresh memory.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED { std::ptr::null_mut() } else { start.cast() }
}

/// Which of the sizes holds this, if any; all blocks are aligned to their size, or to a page.
fn index(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST).checked_next_power_of_two()?;
    let index = (size / SMALLEST).trailing_zeros() as usize;
    (index < SIZES).then_some(index)
}

impl Memory {
    const fn new() -> Memory {
        let free = UnsafeCell::new([std::ptr::null_mut(); SIZES]);
        Memory { locked: AtomicBool::new(false), free }
    }

    fn try_lock(&self) -> bool {
        !self.locked.swap(true, Ordering::Acquire)
    }

    fn lock(&self) {
        if is_single_threaded() {
            self.locked.store(true, Ordering::Relaxed);
            return;
        }
        while !self.try_lock() {
            // Held for a few instructions, or for one `mmap`.
            // SAFETY: has no conditions.
            unsafe { libc::sched_yield() };
        }
    }

    fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }

    /// A block of this size. To be called with the lock.
    fn take(&self, index: usize) -> *mut u8 {
        // SAFETY: the lock is ours.
        let free = unsafe { &mut *self.free.get() };
        let size = SMALLEST << index;
        if free[index].is_null() {
            let start = pages(size.max(CHUNK));
            if start.is_null() {
                return start;
            }
            for offset in (0..size.max(CHUNK)).step_by(size) {
                // SAFETY: within what was just mapped, and aligned to its own size of 16 or more.
                unsafe {
                    let block = start.add(offset).cast::<Free>();
                    (*block).next = free[index];
                    free[index] = block;
                }
            }
        }
        let block = free[index];
        // SAFETY: free blocks are ours, and say where the next one is.
        free[index] = unsafe { (*block).next };
        block.cast()
    }
}

// SAFETY: blocks are disjoint, at least as large and as aligned as is asked for, and stay mapped until
// they are given back.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > ALIGNMENT_MAX {
            return std::ptr::null_mut();
        }
        let Some(index) = index(layout) else {
            return pages(layout.size());
        };
        self.lock();
        let block = self.take(index);
        self.unlock();
        block
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let Some(index) = index(layout) else {
            // SAFETY: mapped by `alloc` with this size.
            unsafe { libc::munmap(pointer.cast(), layout.size()) };
            return;
        };
        self.lock();
        // SAFETY: the block was handed out by `take` for this size, and the lock is ours.
        unsafe {
            let free = &mut *self.free.get();
            let block = pointer.cast::<Free>();
            (*block).next = free[index];
            free[index] = block;
        }
        self.unlock();
    }
}

/// Nobody allocates until [`let_go`], not even the caller.
pub(crate) fn hold() {
    MEMORY.lock();
}

/// As [`hold`], without waiting; says whether it was done.
pub(crate) fn try_hold() -> bool {
    MEMORY.try_lock()
}

/// Ends what [`hold`] began, also in a child that was made meanwhile.
pub(crate) fn let_go() {
    MEMORY.unlock();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_disjoint_and_as_they_were_asked_for() {
        let memory = Memory::new();
        let mut blocks = Vec::new();
        for round in 0..3 {
            for size in (1..200).chain([4096, 5000, 65536, 65537, 1 << 20, (1 << 20) + 1]) {
                let layout = Layout::from_size_align(size, 1 << (size % 13)).expect("layout");
                // SAFETY: the size is not 0, and the memory is written within its bounds.
                let pointer = unsafe { memory.alloc(layout) };
                assert!(!pointer.is_null() && (pointer as usize).is_multiple_of(layout.align()));
                // SAFETY: as above.
                unsafe { pointer.write_bytes(size as u8 ^ round, size) };
                blocks.push((pointer, layout, size as u8 ^ round));
            }
            // A third is given back, and used again in the next round.
            for _ in 0..60 {
                let (pointer, layout, value) = blocks.swap_remove(blocks.len() / 2);
                check(pointer, layout, value);
                // SAFETY: allocated above with this layout.
                unsafe { memory.dealloc(pointer, layout) };
            }
        }
        for (pointer, layout, value) in blocks {
            check(pointer, layout, value);
            // SAFETY: as above.
            unsafe { memory.dealloc(pointer, layout) };
        }
    }

    fn check(pointer: *mut u8, layout: Layout, value: u8) {
        // SAFETY: allocated with this size and filled.
        let bytes = unsafe { std::slice::from_raw_parts(pointer, layout.size()) };
        assert!(bytes.iter().all(|byte| *byte == value));
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        let memory = Memory::new();
        let too_aligned = Layout::from_size_align(16, 8192).expect("layout");
        // SAFETY: the sizes are not 0.
        assert!(unsafe { memory.alloc(too_aligned) }.is_null());
        let too_large = Layout::from_size_align(1 << 62, 16).expect("layout");
        // SAFETY: as above.
        assert!(unsafe { memory.alloc(too_large) }.is_null());
    }
}
