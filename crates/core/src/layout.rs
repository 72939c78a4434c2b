//! Where every byte of a file lies: pure arithmetic, no server asked.
//!
//! A file is dealt out in stripes of `stripe_size` bytes, round robin, to the layout's *columns*
//! (one group of targets each). What one column holds of a file is its *object*, and stripes lie in
//! it one behind the other, so that a contiguous file extent is one contiguous object extent in
//! every column.

use crate::error::{Code, Error, Result};
use crate::types::{Incarnation, TargetId};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Smallest stripe size: bytes.
pub const STRIPE_SIZE_MIN: u64 = 4096;
/// Largest stripe size: bytes.
pub const STRIPE_SIZE_MAX: u64 = 1 << 30;
/// Most columns of a layout.
pub const STRIPE_COUNT_MAX: usize = 1024;
/// Largest file: bytes. Leaves room for arithmetic without overflow.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64 - STRIPE_SIZE_MAX;

/// How each group protects its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Redundancy {
    /// One target in each group; losing it loses the column.
    None,
    /// The same bytes on every target of the group.
    Replicas,
    /// Reed-Solomon over the group's targets: `data` + `parity` of them.
    Erasure {
        /// Targets with data.
        data: u8,
        /// Targets with parity.
        parity: u8,
    },
}

/// A target as a layout names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which target.
    pub target: TargetId,
    /// In which life: what an older one held is lost.
    pub incarnation: Incarnation,
}

/// The targets that hold one column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its targets.
    pub members: Vec<Member>,
    /// Index into `members` of the one that orders overlapping and partial-stripe writes.
    pub ordering: u8,
}

/// Where a file's bytes lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes on one column before the next.
    pub stripe_size: u64,
    /// How each group protects its column.
    pub redundancy: Redundancy,
    /// Counts changes of this layout; requests carry it.
    pub generation: u32,
    /// Columns, in round-robin order.
    pub groups: Vec<Group>,
}

/// A half-open range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

impl Extent {
    /// One past the last byte.
    pub fn end(self) -> u64 {
        self.offset + self.length
    }
}

/// A part of a file extent that is contiguous in the file, in one object and in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which column.
    pub column: usize,
    /// Where in its object.
    pub object_offset: u64,
    /// Where in the caller's buffer.
    pub buffer_offset: usize,
    /// How many bytes.
    pub length: usize,
}

impl Layout {
    /// A layout without redundancy: one target a column.
    pub fn striped(stripe_size: u64, members: impl IntoIterator<Item = Member>) -> Layout {
        Layout {
            stripe_size,
            redundancy: Redundancy::None,
            generation: 1,
            groups: members
                .into_iter()
                .map(|member| Group { members: vec![member], ordering: 0 })
                .collect(),
        }
    }

    /// Refuses a layout that the arithmetic below could not serve.
    pub fn check(&self) -> Result<()> {
        let bad = |cause: &str| Err(Error::because(Code::Invalid, cause));
        if !(STRIPE_SIZE_MIN..=STRIPE_SIZE_MAX).contains(&self.stripe_size) {
            return bad("stripe size is not between 4 KiB and 1 GiB");
        }
        if self.groups.is_empty() || self.groups.len() > STRIPE_COUNT_MAX {
            return bad("stripe count is not between 1 and 1024");
        }
        if self.groups.iter().any(|group| usize::from(group.ordering) >= group.members.len()) {
            return bad("a group without its ordering target");
        }
        Ok(())
    }

    /// Number of columns.
    pub fn stripe_count(&self) -> usize {
        self.groups.len()
    }

    /// The ordering member of a column: the one target of it where there is no redundancy.
    pub fn member(&self, column: usize) -> Member {
        let group = &self.groups[column];
        group.members[usize::from(group.ordering)]
    }

    /// Column and object offset of a file offset.
    pub fn locate(&self, file_offset: u64) -> (usize, u64) {
        let count = self.groups.len() as u64;
        let stripe = file_offset / self.stripe_size;
        let within = file_offset % self.stripe_size;
        ((stripe % count) as usize, stripe / count * self.stripe_size + within)
    }

    /// The file offset of an object's byte.
    pub fn file_offset(&self, column: usize, object_offset: u64) -> u64 {
        let count = self.groups.len() as u64;
        let stripe = object_offset / self.stripe_size * count + column as u64;
        stripe * self.stripe_size + object_offset % self.stripe_size
    }

    /// The file size that an object of this size bears witness to (0 for an empty object).
    pub fn file_size_seen(&self, column: usize, object_size: u64) -> u64 {
        match object_size {
            0 => 0,
            size => self.file_offset(column, size - 1) + 1,
        }
    }

    /// How long the object of `column` is when the file is `file_size` long and has no holes.
    pub fn object_size(&self, column: usize, file_size: u64) -> u64 {
        let round = self.stripe_size * self.groups.len() as u64;
        let before = column as u64 * self.stripe_size;
        let rest = (file_size % round).saturating_sub(before).min(self.stripe_size);
        file_size / round * self.stripe_size + rest
    }

    /// What of the file lies side by side in one object, around `file_offset`.
    fn stripe(&self, file_offset: u64) -> Stripe {
        if self.groups.len() == 1 {
            return Stripe { file: 0..u64::MAX, column: 0, object_offset: 0 };
        }
        let start = file_offset / self.stripe_size * self.stripe_size;
        let (column, object_offset) = self.locate(start);
        let file = start..start.saturating_add(self.stripe_size);
        Stripe { file, column, object_offset }
    }

    /// Deals a contiguous file extent out in pieces, in file order.
    pub fn pieces(&self, file_offset: u64, length: usize) -> Pieces<'_> {
        let stripe = Stripe { file: 0..0, column: 0, object_offset: 0 };
        Pieces { layout: self, file_offset, buffer_offset: 0, left: length, stripe }
    }
}

/// A range of the file and the place where it begins.
#[derive(Clone, Debug)]
struct Stripe {
    file: Range<u64>,
    column: usize,
    object_offset: u64,
}

/// Iterator over the pieces of a contiguous file extent.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    layout: &'a Layout,
    file_offset: u64,
    buffer_offset: usize,
    left: usize,
    /// The last one that was wanted: of a list, many extents lie in each, and to find out which it is
    /// takes divisions.
    stripe: Stripe,
}

impl Pieces<'_> {
    /// The pieces of another extent, in place of what is left of this one.
    pub fn of(&mut self, file_offset: u64, length: usize) -> &mut Self {
        self.file_offset = file_offset;
        self.buffer_offset = 0;
        self.left = length;
        self
    }

    /// Of the last piece: its column, and where in the file its stripe lies.
    pub fn stripe(&self) -> (usize, Range<u64>) {
        (self.stripe.column, self.stripe.file.clone())
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.left == 0 {
            return None;
        }
        if !self.stripe.file.contains(&self.file_offset) {
            self.stripe = self.layout.stripe(self.file_offset);
        }
        let stripe = &self.stripe;
        let to_end = usize::try_from(stripe.file.end - self.file_offset).unwrap_or(usize::MAX);
        let piece = Piece {
            column: stripe.column,
            object_offset: stripe.object_offset + (self.file_offset - stripe.file.start),
            buffer_offset: self.buffer_offset,
            length: self.left.min(to_end),
        };
        self.file_offset += piece.length as u64;
        self.buffer_offset += piece.length;
        self.left -= piece.length;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(stripe_size: u64, count: u32) -> Layout {
        Layout::striped(
            stripe_size,
            (0..count).map(|i| Member { target: TargetId(i), incarnation: Incarnation(7) }),
        )
    }

    /// Exhaustive on small numbers: every byte has one place, and objects have no gaps.
    #[test]
    fn every_byte_has_one_place() {
        for count in 1..=5 {
            for stripe_size in 1..=4 {
                let layout = layout(stripe_size, count);
                let mut next = vec![0; count as usize];
                for offset in 0..80 {
                    let (column, object_offset) = layout.locate(offset);
                    assert_eq!(object_offset, next[column], "objects are dense");
                    next[column] += 1;
                    assert_eq!(layout.file_offset(column, object_offset), offset);
                    assert_eq!(layout.file_size_seen(column, object_offset + 1), offset + 1);
                    for (column, &size) in next.iter().enumerate() {
                        assert_eq!(layout.object_size(column, offset + 1), size);
                    }
                }
            }
        }
    }

    #[test]
    fn pieces_cover_an_extent_in_order() {
        for count in 1..=4 {
            let layout = layout(3, count);
            // As one that goes from extent to extent does.
            let mut pieces = layout.pieces(7, 50);
            pieces.next();
            for offset in 0..20 {
                for length in 0..25 {
                    let mut at = 0;
                    for piece in pieces.of(offset, length) {
                        assert_eq!(piece.buffer_offset, at);
                        for i in 0..piece.length {
                            let expected = layout.locate(offset + (at + i) as u64);
                            assert_eq!(expected, (piece.column, piece.object_offset + i as u64));
                        }
                        at += piece.length;
                    }
                    assert_eq!(at, length);
                }
            }
        }
    }

    #[test]
    fn a_contiguous_extent_is_contiguous_in_every_object() {
        let layout = layout(4, 3);
        for offset in 0..30 {
            let mut next: [Option<u64>; 3] = [None; 3];
            for piece in layout.pieces(offset, 40) {
                if let Some(expected) = next[piece.column] {
                    assert_eq!(piece.object_offset, expected);
                }
                next[piece.column] = Some(piece.object_offset + piece.length as u64);
            }
        }
    }

    #[test]
    fn largest_offsets_do_not_overflow() {
        let layout = layout(STRIPE_SIZE_MAX, 3);
        let last = FILE_SIZE_MAX - 1;
        let (column, object_offset) = layout.locate(last);
        assert_eq!(layout.file_offset(column, object_offset), last);
        assert!(layout.check().is_ok());
    }
}
