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

    /// Makes another slice part of it, if that lies right behind it. False: it does not.
    pub fn join(&mut self, next: Slice) -> bool {
        let behind = self.pointer.wrapping_add(self.length) == next.pointer;
        if behind {
            self.length += next.length;
        }
        behind
    }
}

/// Slices of one length at equal distances: one by itself, or what a regular stride names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The first of them.
    pub first: Slice,
    /// How many there are.
    pub count: usize,
    /// From the start of one to the start of the next: bytes.
    pub stride: usize,
}

impl From<Slice> for Row {
    fn from(slice: Slice) -> Row {
        Row { first: slice, count: 1, stride: slice.length }
    }
}

impl Row {
    /// One of them. None: there are not so many.
    pub fn get(&self, index: usize) -> Option<Slice> {
        let pointer = || self.first.pointer.wrapping_add(index * self.stride);
        (index < self.count).then(|| Slice { pointer: pointer(), ..self.first })
    }

    /// Makes another row part of it, if that goes on where this ends: a slice right behind a slice, or
    /// slices of the same length at the same distance. False: it does not.
    pub fn join(&mut self, next: Row) -> bool {
        if self.count == 1 && self.stride == self.first.length && next.count == 1 {
            let joined = self.first.join(next.first);
            self.stride = self.first.length;
            return joined;
        }
        let behind = self.first.pointer.wrapping_add(self.count * self.stride);
        let goes_on = behind == next.first.pointer
            && (self.first.length, self.stride) == (next.first.length, next.stride);
        if goes_on {
            self.count += next.count;
        }
        goes_on
    }

    /// All of them, in order.
    pub fn slices(self) -> impl Iterator<Item = Slice> + Clone {
        (0..self.count).filter_map(move |index| self.get(index))
    }

    /// Bytes in all.
    pub fn length(&self) -> usize {
        self.first.length * self.count
    }
}
