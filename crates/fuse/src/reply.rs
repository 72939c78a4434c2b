//! Answers to the kernel.

use crate::attributes::{ATTRIBUTES_BYTES, encode_attributes};
use crate::device::Device;
use crate::lanes::Desk;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use weir_core::types::{Attributes, FileKind, Ino};

/// Names are padded to this in a listing: bytes.
const ENTRY_ALIGNMENT: usize = 8;
/// Bytes of an entry before its name.
const ENTRY_HEAD_BYTES: usize = 24;

/// Why a request failed, as the kernel tells programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    pub(crate) const EBADF: Errno = Errno(libc::EBADF);
    pub(crate) const EFBIG: Errno = Errno(libc::EFBIG);
    pub(crate) const EINTR: Errno = Errno(libc::EINTR);
    pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
    pub(crate) const EIO: Errno = Errno(libc::EIO);
    pub(crate) const ENODATA: Errno = Errno(libc::ENODATA);
    pub(crate) const ENOSYS: Errno = Errno(libc::ENOSYS);
    pub(crate) const ENOTTY: Errno = Errno(libc::ENOTTY);
    pub(crate) const ENXIO: Errno = Errno(libc::ENXIO);
    pub(crate) const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    pub(crate) const ERANGE: Errno = Errno(libc::ERANGE);
    pub(crate) const ESTALE: Errno = Errno(libc::ESTALE);
}

/// What statfs(2) is told.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) blocks: u64,
    pub(crate) blocks_free: u64,
    pub(crate) files: u64,
    pub(crate) files_free: u64,
    pub(crate) block_size: u32,
    pub(crate) name_bytes_max: u32,
}

/// Puts a message together.
#[derive(Default)]
struct Put(Vec<u8>);

impl Put {
    fn u32(mut self, number: u32) -> Put {
        self.0.extend_from_slice(&number.to_ne_bytes());
        self
    }

    fn u16(mut self, number: u16) -> Put {
        self.0.extend_from_slice(&number.to_ne_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Put {
        self.0.extend_from_slice(&number.to_ne_bytes());
        self
    }

    fn attributes(mut self, attributes: &Attributes) -> Put {
        encode_attributes(attributes, &mut self.0);
        self
    }

    /// What a name names; how long the attributes are believed, and how long the name.
    fn entry(self, attributes: &Attributes, believed: Duration, name_believed: Duration) -> Put {
        self.entry_head(attributes.ino.0, believed, name_believed).attributes(attributes)
    }

    fn entry_head(self, ino: u64, believed: Duration, name_believed: Duration) -> Put {
        self.u64(ino)
            .u64(0)
            .u64(name_believed.as_secs())
            .u64(believed.as_secs())
            .u32(name_believed.subsec_nanos())
            .u32(believed.subsec_nanos())
    }
}

/// A request's answer, still to be given. One that is dropped tells EIO: nobody waits for ever.
pub(crate) struct Reply {
    way: Way,
    unique: u64,
    given: bool,
}

/// How the kernel is told: as it has asked.
enum Way {
    Device(Arc<Device>),
    Lane(Arc<Desk>),
}

impl fmt::Debug for Reply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Reply({})", self.unique)
    }
}

/// Length of the kernel's `fuse_entry_out`.
const LOOKUP_BYTES: usize = 40 + ATTRIBUTES_BYTES;

impl Reply {
    pub(crate) fn new(device: &Arc<Device>, unique: u64) -> Reply {
        Reply { way: Way::Device(device.clone()), unique, given: false }
    }

    /// To a request that has come by a lane.
    pub(crate) fn by_lane(desk: &Arc<Desk>, unique: u64) -> Reply {
        Reply { way: Way::Lane(desk.clone()), unique, given: false }
    }

    /// The request's number.
    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    fn give(mut self, error: i32, parts: &[&[u8]]) {
        self.given = true;
        self.say(error, parts);
    }

    fn say(&self, error: i32, parts: &[&[u8]]) {
        match &self.way {
            Way::Device(device) => device.answer(self.unique, error, parts),
            Way::Lane(desk) => desk.answer(self.unique, error, parts),
        }
    }

    fn put(self, message: Put) {
        self.give(0, &[&message.0]);
    }

    /// To what needs none. Over a lane nothing of the kind comes; what came would be done with.
    pub(crate) fn none(mut self) {
        self.given = true;
        if let Way::Lane(desk) = &self.way {
            desk.answer(self.unique, 0, &[]);
        }
    }

    pub(crate) fn error(self, errno: Errno) {
        self.give(errno.0, &[]);
    }

    pub(crate) fn ok(self) {
        self.give(0, &[]);
    }

    pub(crate) fn data(self, bytes: &[u8]) {
        self.give(0, &[bytes]);
    }

    pub(crate) fn entry(
        self,
        attributes: &Attributes,
        believed: Duration,
        name_believed: Duration,
    ) {
        self.put(Put::default().entry(attributes, believed, name_believed));
    }

    /// There is no such name, and it may be believed for so long that there is none.
    pub(crate) fn no_entry(self, name_believed: Duration) {
        let mut entry = Put::default().entry_head(0, Duration::ZERO, name_believed);
        entry.0.resize(entry.0.len() + ATTRIBUTES_BYTES, 0);
        self.put(entry);
    }

    pub(crate) fn attributes(self, attributes: &Attributes, believed: Duration) {
        let head = Put::default().u64(believed.as_secs()).u32(believed.subsec_nanos()).u32(0);
        self.put(head.attributes(attributes));
    }

    /// `treatment` is of [`crate::kernel::fopen`].
    pub(crate) fn opened(self, handle: u64, treatment: u32) {
        self.put(Put::default().u64(handle).u32(treatment).u32(0));
    }

    pub(crate) fn created(
        self,
        attributes: &Attributes,
        believed: Duration,
        handle: u64,
        treatment: u32,
    ) {
        let entry = Put::default().entry(attributes, believed, Duration::ZERO);
        self.put(entry.u64(handle).u32(treatment).u32(0));
    }

    pub(crate) fn written(self, length: u32) {
        self.put(Put::default().u32(length).u32(0));
    }

    /// How large an attribute's value is.
    pub(crate) fn size(self, length: u32) {
        self.put(Put::default().u32(length).u32(0));
    }

    pub(crate) fn offset(self, offset: u64) {
        self.put(Put::default().u64(offset));
    }

    /// `last` is in the lock; `typ` is F_RDLCK, F_WRLCK or F_UNLCK.
    pub(crate) fn locked(self, first: u64, last: u64, typ: i32, pid: u32) {
        self.put(Put::default().u64(first).u64(last).u32(typ as u32).u32(pid));
    }

    pub(crate) fn ioctl(self, bytes: &[u8]) {
        let head = Put::default().u64(0).u64(0);
        self.give(0, &[&head.0, bytes]);
    }

    pub(crate) fn space(self, space: &Space) {
        let put = Put::default()
            .u64(space.blocks)
            .u64(space.blocks_free)
            .u64(space.blocks_free)
            .u64(space.files)
            .u64(space.files_free)
            .u32(space.block_size)
            .u32(space.name_bytes_max)
            .u32(space.block_size);
        self.put((0..7).fold(put, |put, _| put.u32(0)));
    }

    /// To the mount's first request: what was agreed on. `body` is the kernel's `fuse_init_out`.
    pub(crate) fn agreed(self, [readahead_max, write_max]: [u32; 2], background: u16, flags: u64) {
        let (low, high) = (flags as u32, (flags >> 32) as u32);
        let pages = write_max.max(readahead_max).div_ceil(4096);
        let put = Put::default()
            .u32(crate::kernel::MAJOR)
            .u32(crate::kernel::MINOR)
            .u32(readahead_max)
            .u32(low)
            .u16(background)
            .u16(background / 4 * 3)
            .u32(write_max)
            // Times count nanoseconds.
            .u32(1)
            .u16(pages.min(u16::MAX.into()) as u16)
            .u16(0)
            .u32(high);
        self.put((0..7).fold(put, |put, _| put.u32(0)));
    }

    /// Only the version that is spoken here: the kernel then asks anew.
    pub(crate) fn version(self) {
        let put = Put::default().u32(crate::kernel::MAJOR).u32(crate::kernel::MINOR);
        self.put((0..14).fold(put, |put, _| put.u32(0)));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.given {
            tracing::warn!(unique = self.unique, "a request was given up");
            self.say(Errno::EIO.0, &[]);
        }
    }
}

/// Entries of a directory, as many as the kernel has room for.
pub(crate) struct Entries {
    bytes: Vec<u8>,
    room: usize,
    /// Whether each is preceded by what a lookup of it would be answered with.
    plus: bool,
}

impl Entries {
    pub(crate) fn new(room: u32, plus: bool) -> Entries {
        Entries { bytes: Vec::new(), room: room as usize, plus }
    }

    /// Adds one; true if there is no more room for it. `cookie` is where the listing goes on; `known` are its
    /// attributes, how long its name is believed, and how long they are. Without them the kernel looks the
    /// name up when it needs to.
    pub(crate) fn add(
        &mut self,
        ino: Ino,
        cookie: u64,
        kind: FileKind,
        name: &[u8],
        known: Option<(&Attributes, Duration, Duration)>,
    ) -> bool {
        let head = if self.plus { LOOKUP_BYTES + ENTRY_HEAD_BYTES } else { ENTRY_HEAD_BYTES };
        let end = self.bytes.len() + (head + name.len()).next_multiple_of(ENTRY_ALIGNMENT);
        if end > self.room {
            return true;
        }
        if self.plus {
            let start = self.bytes.len();
            if let Some((attributes, name_believed, believed)) = known {
                let put = Put(std::mem::take(&mut self.bytes));
                self.bytes = put.entry(attributes, believed, name_believed).0;
            }
            self.bytes.resize(start + LOOKUP_BYTES, 0);
        }
        for number in [ino.0, cookie] {
            self.bytes.extend_from_slice(&number.to_ne_bytes());
        }
        for number in [name.len() as u32, kind.mode_bits() >> 12] {
            self.bytes.extend_from_slice(&number.to_ne_bytes());
        }
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        false
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::types::WallTime;

    #[test]
    fn entries_are_aligned_and_keep_to_their_room() {
        let mut entries = Entries::new(80, false);
        assert!(!entries.add(Ino(5), 3, FileKind::Regular, b"abc", None));
        assert_eq!(entries.bytes().len(), 32);
        assert_eq!(entries.bytes()[20], 8);
        assert!(!entries.add(Ino(6), 4, FileKind::Directory, b"12345678", None));
        assert_eq!(entries.bytes().len(), 64);
        assert!(entries.add(Ino(7), 5, FileKind::Fifo, b"x", None));
        assert_eq!(entries.bytes().len(), 64);
    }

    #[test]
    fn entries_come_behind_what_is_known_of_them() {
        let attributes = Attributes {
            ino: Ino(9),
            kind: FileKind::Regular,
            mode: 0o640,
            uid: 1,
            gid: 2,
            nlink: 1,
            size: 77,
            allocated: 77,
            rdev: 0,
            atime: WallTime(0),
            mtime: WallTime(0),
            ctime: WallTime(0),
            data_epoch: 0,
        };
        let mut entries = Entries::new(400, true);
        let (of_name, believed) = (Duration::from_millis(40), Duration::from_secs(3));
        let known = Some((&attributes, of_name, believed));
        assert!(!entries.add(Ino(9), 3, FileKind::Regular, b"abc", known));
        assert!(!entries.add(Ino(8), 4, FileKind::Directory, b"d", None));
        assert!(entries.add(Ino(7), 5, FileKind::Fifo, b"x", None), "160 bytes each");
        let bytes = entries.bytes();
        assert_eq!(bytes.len(), 320);
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        // As fuse_entry_out has it, then fuse_dirent.
        assert_eq!([0, 16, 24].map(word), [9, 0, 3]);
        assert_eq!([32, 36].map(half), [40_000_000, 0]);
        assert_eq!([40, 48].map(word), [9, 77]);
        assert_eq!([128, 136].map(word), [9, 3]);
        assert_eq!(&bytes[152..155], b"abc");
        // Of the second nothing is known.
        assert!(bytes[160..288].iter().all(|byte| *byte == 0));
        assert_eq!([288, 296].map(word), [8, 4]);
    }
}
