//! Memory named by address: how buffers are handed between layers without copies or lifetimes.

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
