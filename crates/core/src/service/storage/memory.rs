//! The memory under a target, and how parts of it are handed to the driver.

use std::ptr::NonNull;

/// A run of memory that belongs to one target alone: an anonymous mapping in the real server, a
/// heap allocation in tests and in the simulator.
///
/// # Safety
/// `base` and `length` never change while the value lives, the bytes are initialised, valid for
/// reads and writes from any thread, and touched by nobody but the target that owns the value and
/// those to whom it hands tickets.
pub unsafe trait Memory: Send + Sync {
    /// Its first byte.
    fn base(&self) -> *mut u8;

    /// How many bytes it has.
    fn length(&self) -> usize;

    /// The target will not use these bytes for long, and cares no more for what is in them (they
    /// stay valid and initialised): a mapping may give the pages back. Called rarely, while the
    /// target is locked.
    fn discard(&self, _offset: usize, _length: usize) {}
}

/// Memory from the heap, zeroed.
#[derive(Debug)]
pub struct HeapMemory {
    bytes: NonNull<[u8]>,
}

impl HeapMemory {
    /// `length` bytes of zeros.
    pub fn new(length: usize) -> HeapMemory {
        let bytes = Box::into_raw(vec![0; length].into_boxed_slice());
        HeapMemory { bytes: NonNull::new(bytes).expect("a box is never null") }
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::into_raw` in `new` and is given back only here.
        drop(unsafe { Box::from_raw(self.bytes.as_ptr()) });
    }
}

// SAFETY: it owns plain bytes; all access is through raw pointers under the rules of `Memory`.
unsafe impl Send for HeapMemory {}
// SAFETY: as above; `&HeapMemory` gives out nothing but the pointer.
unsafe impl Sync for HeapMemory {}

// SAFETY: a boxed slice of initialised bytes that neither moves nor shrinks before `drop`.
unsafe impl Memory for HeapMemory {
    fn base(&self) -> *mut u8 {
        self.bytes.as_ptr().cast()
    }

    fn length(&self) -> usize {
        self.bytes.len()
    }
}
