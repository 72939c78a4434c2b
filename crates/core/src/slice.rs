//! Memory named by address: how buffers are handed between layers without copies or lifetimes; and
//! what payload can go to that is no memory.

use std::fmt::Debug;
use std::io;

/// A run of bytes somewhere in memory. It does not keep that memory alive and does not say whether
/// it may be written: whoever makes one says for how long, and for what, it is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// First byte.
    pub pointer: *mut u8,
    /// How many bytes.
    pub length: usize,
}

// SAFETY: a slice is an address and a length; using what it names needs its maker's promise.
unsafe impl Send for Slice {}
// SAFETY: as above.
unsafe impl Sync for Slice {}

impl Slice {
    /// The bytes of `bytes`, to be read only.
    pub fn to_read(bytes: &[u8]) -> Slice {
        Slice { pointer: bytes.as_ptr().cast_mut(), length: bytes.len() }
    }

    /// The bytes of `bytes`, to be written.
    pub fn to_write(bytes: &mut [u8]) -> Slice {
        Slice { pointer: bytes.as_mut_ptr(), length: bytes.len() }
    }

    /// `length` bytes of it, from `offset`.
    ///
    /// # Panics
    /// If it is not that long.
    pub fn part(self, offset: usize, length: usize) -> Slice {
        assert!(offset + length <= self.length, "part of a slice beyond its end");
        Slice { pointer: self.pointer.wrapping_add(offset), length }
    }
}

/// A place for a payload that is no memory of ours: a pipe, into which the transport has the kernel
/// move what was received. One payload at a time.
pub trait Basin: Debug + Send + Sync {
    /// A payload begins. What is left of an earlier one, whose connection broke, is thrown away.
    fn begin(&self) -> io::Result<()>;

    /// Takes the next bytes of it, which came with something else.
    fn pour(&self, bytes: &[u8]) -> io::Result<()>;

    /// Takes at most `length` of the next bytes from a stream's descriptor. Like read(2), it gives
    /// how many; 0: the stream has ended; `WouldBlock`: there are none yet.
    fn fill(&self, descriptor: i32, length: usize) -> io::Result<usize>;
}
