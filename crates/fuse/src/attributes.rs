//! Attributes and times in the kernel's words.

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_core::types::{Attributes, FileKind, WallTime};
use weir_core::wire::meta::SetTime;

/// What programs are told to read and write at a time: buffers of stdio have this size, so that it
/// is a compromise between requests and memory.
const BLOCK_SIZE: u32 = 128 * 1024;

const SECOND_NS: i64 = 1_000_000_000;

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(crate) fn to_kernel(attributes: &Attributes) -> FileAttr {
    // Where nobody asked the targets what the file holds, it counts as without holes.
    let bytes = match attributes.allocated {
        0 => attributes.size,
        allocated => allocated,
    };
    FileAttr {
        ino: INodeNo(attributes.ino.0),
        size: attributes.size,
        blocks: bytes.div_ceil(512),
        atime: to_system(attributes.atime),
        mtime: to_system(attributes.mtime),
        ctime: to_system(attributes.ctime),
        crtime: to_system(attributes.ctime),
        kind: file_type(attributes.kind),
        perm: (attributes.mode & 0o7777) as u16,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev as u32,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

fn to_system(time: WallTime) -> SystemTime {
    let distance = Duration::from_nanos(time.0.unsigned_abs());
    if time.0 < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// A time to set, held within what 64 bits of nanoseconds can say (the years 1677 to 2262).
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    let time = match time {
        TimeOrNow::Now => return SetTime::Now,
        TimeOrNow::SpecificTime(time) => time,
    };
    let (seconds, nanoseconds) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()), after.subsec_nanos()),
        // The kernel counts nanoseconds forward from the second, also before 1970; fuser has
        // counted them backward.
        Err(error) => {
            let before = error.duration();
            (i64::try_from(before.as_secs()).map(|seconds| -seconds), before.subsec_nanos())
        }
    };
    let seconds = seconds.unwrap_or(i64::MAX);
    SetTime::To(WallTime(seconds.saturating_mul(SECOND_NS).saturating_add(nanoseconds.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_through_on_both_sides_of_1970() {
        for ns in [0, 1, -1, 1_700_000_000_123_456_789, -1_500_000_000, i64::MAX, i64::MIN + 1] {
            let shown = to_system(WallTime(ns));
            let distance = match shown.duration_since(UNIX_EPOCH) {
                Ok(after) => after.as_nanos() as i128,
                Err(error) => -(error.duration().as_nanos() as i128),
            };
            assert_eq!(distance, i128::from(ns));
        }
        // As fuser hands over what the kernel calls (-2 s, +0.5 s), which is -1.5 s.
        let half = UNIX_EPOCH - Duration::new(2, 500_000_000);
        let time = set_time(TimeOrNow::SpecificTime(half));
        assert_eq!(time, SetTime::To(WallTime(-1_500_000_000)));
        let late = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(set_time(TimeOrNow::SpecificTime(late)), SetTime::To(WallTime(i64::MAX)));
    }
}
