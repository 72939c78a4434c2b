//! Attributes in the kernel's words.

use crate::kernel::from_time;
use weir_core::types::Attributes;

/// What programs are told to read and write at a time: buffers of stdio have this size, so that it
/// is a compromise between requests and memory.
const BLOCK_SIZE: u32 = 128 * 1024;

/// Length of the kernel's `fuse_attr`.
pub(crate) const ATTRIBUTES_BYTES: usize = 88;

/// The kernel's `fuse_attr`.
pub(crate) fn encode_attributes(attributes: &Attributes, into: &mut Vec<u8>) {
    let times = [attributes.atime, attributes.mtime, attributes.ctime].map(from_time);
    let words = [attributes.ino.0, attributes.size, attributes.allocated.div_ceil(512)];
    for word in words.into_iter().chain(times.map(|(seconds, _)| seconds as u64)) {
        into.extend_from_slice(&word.to_ne_bytes());
    }
    let mode = attributes.kind.mode_bits() | attributes.mode & 0o7777;
    let others = [
        mode,
        attributes.nlink,
        attributes.uid,
        attributes.gid,
        attributes.rdev as u32,
        BLOCK_SIZE,
        0,
    ];
    for number in times.map(|(_, ns)| ns).into_iter().chain(others) {
        into.extend_from_slice(&number.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::types::{FileKind, Ino, WallTime};

    #[test]
    fn attributes_have_their_places() {
        let attributes = Attributes {
            ino: Ino(9),
            kind: FileKind::Fifo,
            mode: 0o640,
            uid: 1,
            gid: 2,
            nlink: 3,
            size: 1000,
            allocated: 400,
            rdev: 5,
            atime: WallTime(-1_500_000_000),
            mtime: WallTime(1),
            ctime: WallTime(2_000_000_003),
            data_epoch: 0,
        };
        let mut bytes = Vec::new();
        encode_attributes(&attributes, &mut bytes);
        assert_eq!(bytes.len(), ATTRIBUTES_BYTES);
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([0, 8, 16].map(word), [9, 1000, 1]);
        assert_eq!([24, 32, 40].map(|at| word(at) as i64), [-2, 0, 2]);
        assert_eq!([48, 52, 56].map(half), [500_000_000, 1, 3]);
        assert_eq!([60, 64, 68, 72, 76].map(half), [libc::S_IFIFO | 0o640, 3, 1, 2, 5]);
    }
}
