//! The kernel's FUSE protocol: its requests, parsed with exact bounds, and its numbers
//! (`include/uapi/linux/fuse.h`, version 7). Integers are in the machine's own order.

use weir_core::types::{Ino, WallTime};
use weir_core::wire::meta::SetTime;

/// The protocol as spoken here.
pub(crate) const MAJOR: u32 = 7;
/// Newest minor version whose messages are known here; the kernel speaks an older one where it must.
pub(crate) const MINOR: u32 = 42;
/// Oldest minor version served: before it messages had other lengths.
pub(crate) const MINOR_MIN: u32 = 23;

/// The first minor version in which requests may come by io_uring.
pub(crate) const MINOR_URING: u32 = 42;

/// Bytes of a request's header.
pub(crate) const REQUEST_HEADER_BYTES: usize = 40;
/// Bytes of an answer's header.
pub(crate) const ANSWER_HEADER_BYTES: usize = 16;
/// Bytes of a write request before its data.
pub(crate) const WRITE_HEAD_BYTES: usize = REQUEST_HEADER_BYTES + 40;

/// What both sides can agree on when a mount begins.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// How the kernel is to treat an open file.
pub(crate) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// What a write request is about.
pub(crate) mod write {
    /// Pages come back from the cache.
    pub(crate) const CACHE: u32 = 1;
    /// Set-user-id and set-group-id end.
    pub(crate) const KILL_SUIDGID: u32 = 1 << 2;
}

/// A read names who asks, for his locks: the kernel itself does not when it fills its pages.
const READ_LOCK_OWNER: u32 = 1 << 1;
/// A lock is flock's.
const LOCK_FLOCK: u32 = 1;
/// An ioctl is of a directory.
const IOCTL_DIRECTORY: u32 = 1 << 4;

mod set {
    pub(super) const MODE: u32 = 1;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const HANDLE: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
}

/// For whom a request is made, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    /// Its number, which the answer repeats.
    pub(crate) unique: u64,
    pub(crate) ino: Ino,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

/// Attributes to be set.
#[derive(Debug, Default)]
pub(crate) struct SetAttributes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
    pub(crate) handle: Option<u64>,
}

/// A lock, as the kernel says it: the last byte is in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockWish {
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub(crate) typ: i32,
    pub(crate) pid: u32,
    /// It is flock's, of the whole file.
    pub(crate) whole: bool,
}

/// A read of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    /// Whether a program asks; else the kernel fills its pages.
    pub(crate) for_program: bool,
}

/// A write to a file; its data comes with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    /// See [`write`].
    pub(crate) write_flags: u32,
    /// Those of open(2).
    pub(crate) flags: i32,
}

/// What is asked for.
#[derive(Debug)]
pub(crate) enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    /// So many answers that told of the inode count no more.
    Forget {
        lookups: u64,
    },
    ForgetMany {
        inos: Vec<(Ino, u64)>,
    },
    Attributes,
    SetAttributes(SetAttributes),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: Ino,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        ino: Ino,
        new_name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        flags: i32,
    },
    /// A file without a name, in a directory.
    CreateUnnamed {
        mode: u32,
        flags: i32,
    },
    Read(Read),
    Write {
        write: Write,
        data: &'a [u8],
    },
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    Release {
        handle: u64,
    },
    Sync {
        handle: u64,
    },
    OpenDirectory,
    ReadDirectory {
        handle: u64,
        offset: u64,
        size: u32,
        /// Whether attributes are to come with the entries.
        plus: bool,
    },
    ReleaseDirectory {
        handle: u64,
    },
    SyncDirectory,
    StatFs,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Access {
        mask: u32,
    },
    FindLock(LockWish),
    SetLock {
        lock: LockWish,
        wait: bool,
    },
    /// The request of this number is to end early, for a signal waits.
    Interrupt {
        unique: u64,
    },
    Ioctl {
        handle: u64,
        command: u32,
        directory: bool,
    },
    Allocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
    },
    Seek {
        handle: u64,
        offset: i64,
        whence: i32,
    },
    CopyRange {
        from: u64,
        offset_in: u64,
        ino_out: Ino,
        to: u64,
        offset_out: u64,
        length: u64,
    },
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    },
    /// The mount is about to end.
    Destroy,
    /// Nothing: the kernel makes it because we wanted it to.
    Provoked,
    /// Nothing that is done here: the kernel has its own way then.
    Unknown,
}

/// Takes a message apart.
struct Cut<'a>(&'a [u8]);

impl<'a> Cut<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.0 = self.0.get(length..)?;
        Some(())
    }

    /// Text up to a NUL.
    fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(text)
    }
}

/// Cuts off the header; the length that it tells must be that of the message.
pub(crate) fn header(message: &[u8]) -> Option<(Header, &[u8])> {
    let mut cut = Cut(message);
    let length = cut.u32()?;
    let opcode = cut.u32()?;
    let unique = cut.u64()?;
    let ino = Ino(cut.u64()?);
    let (uid, gid, pid) = (cut.u32()?, cut.u32()?, cut.u32()?);
    cut.skip(4)?;
    let header = Header { opcode, unique, ino, uid, gid, pid };
    (length as usize == message.len()).then_some((header, cut.0))
}

/// What a request asks for. None: its body is not what such a request has.
pub(crate) fn parse<'a>(header: &Header, body: &'a [u8]) -> Option<Operation<'a>> {
    use Operation::*;
    let mut cut = Cut(body);
    Some(match header.opcode {
        1 => Lookup { name: cut.text()? },
        2 => Forget { lookups: cut.u64()? },
        3 => {
            // A handle, which would tell nothing new.
            cut.skip(16)?;
            Attributes
        }
        4 => SetAttributes(set_attributes(&mut cut)?),
        5 => ReadLink,
        6 => Symlink { name: cut.text()?, target: cut.text()? },
        8 => {
            let (mode, rdev) = (cut.u32()?, cut.u32()?);
            cut.skip(8)?;
            MakeNode { name: cut.text()?, mode, rdev }
        }
        9 => {
            let mode = cut.u32()?;
            cut.skip(4)?;
            MakeDirectory { name: cut.text()?, mode }
        }
        10 => Unlink { name: cut.text()? },
        11 => RemoveDirectory { name: cut.text()? },
        12 => {
            let new_parent = Ino(cut.u64()?);
            Rename { name: cut.text()?, new_parent, new_name: cut.text()?, flags: 0 }
        }
        13 => Link { ino: Ino(cut.u64()?), new_name: cut.text()? },
        14 => Open { flags: cut.i32()? },
        15 => Read(read(&mut cut)?),
        16 => {
            let write = cut_write(&mut cut)?;
            let data = cut.0.get(..write.size as usize)?;
            Write { write, data }
        }
        17 => StatFs,
        18 => Release { handle: cut.u64()? },
        20 => Sync { handle: cut.u64()? },
        21 => {
            let (size, flags) = (cut.u32()?, cut.i32()?);
            let name = cut.text()?;
            SetXattr { name, value: cut.0.get(..size as usize)?, flags }
        }
        22 => {
            let size = cut.u32()?;
            cut.skip(4)?;
            GetXattr { name: cut.text()?, size }
        }
        23 => ListXattr { size: cut.u32()? },
        24 => RemoveXattr { name: cut.text()? },
        25 => {
            let handle = cut.u64()?;
            cut.skip(8)?;
            Flush { handle, lock_owner: cut.u64()? }
        }
        26 => {
            let (major, minor, max_readahead) = (cut.u32()?, cut.u32()?, cut.u32()?);
            let low = u64::from(cut.u32()?);
            let high = if low & init::EXT != 0 { u64::from(cut.u32()?) } else { 0 };
            Init { major, minor, max_readahead, flags: low | high << 32 }
        }
        27 => OpenDirectory,
        28 | 44 => {
            let read = read(&mut cut)?;
            let plus = header.opcode == 44;
            ReadDirectory { handle: read.handle, offset: read.offset, size: read.size, plus }
        }
        29 => ReleaseDirectory { handle: cut.u64()? },
        30 => SyncDirectory,
        31 => FindLock(lock(&mut cut)?),
        32 => SetLock { lock: lock(&mut cut)?, wait: false },
        33 => SetLock { lock: lock(&mut cut)?, wait: true },
        34 => Access { mask: cut.u32()? },
        35 => {
            let (name, mode, flags) = create(&mut cut)?;
            Create { name, mode, flags }
        }
        36 => Interrupt { unique: cut.u64()? },
        38 => Destroy,
        39 => {
            let (handle, flags, command) = (cut.u64()?, cut.u32()?, cut.u32()?);
            Ioctl { handle, command, directory: flags & IOCTL_DIRECTORY != 0 }
        }
        41 => Provoked,
        42 => {
            let count = cut.u32()?;
            cut.skip(4)?;
            let one = |_| {
                let (ino, lookups) = (cut.u64()?, cut.u64()?);
                Some((Ino(ino), lookups))
            };
            ForgetMany { inos: (0..count).map(one).collect::<Option<_>>()? }
        }
        43 => {
            let (handle, offset, length) = (cut.u64()?, cut.u64()?, cut.u64()?);
            Allocate { handle, offset, length, mode: cut.i32()? }
        }
        45 => {
            let (new_parent, flags) = (Ino(cut.u64()?), cut.u32()?);
            cut.skip(4)?;
            Rename { name: cut.text()?, new_parent, new_name: cut.text()?, flags }
        }
        46 => {
            let (handle, offset) = (cut.u64()?, cut.u64()? as i64);
            Seek { handle, offset, whence: cut.i32()? }
        }
        47 => CopyRange {
            from: cut.u64()?,
            offset_in: cut.u64()?,
            ino_out: Ino(cut.u64()?),
            to: cut.u64()?,
            offset_out: cut.u64()?,
            length: cut.u64()?,
        },
        51 => {
            // The kernel's own name for it says nothing.
            let (_, mode, flags) = create(&mut cut)?;
            CreateUnnamed { mode, flags }
        }
        _ => Unknown,
    })
}

/// Name, mode, flags of open(2).
fn create<'a>(cut: &mut Cut<'a>) -> Option<(&'a [u8], u32, i32)> {
    let (flags, mode) = (cut.i32()?, cut.u32()?);
    cut.skip(8)?;
    Some((cut.text()?, mode, flags))
}

fn read(cut: &mut Cut<'_>) -> Option<Read> {
    let (handle, offset) = (cut.u64()?, cut.u64()?);
    let (size, flags) = (cut.u32()?, cut.u32()?);
    // Owner of locks, flags of open(2), padding.
    cut.skip(16)?;
    Some(Read { handle, offset, size, for_program: flags & READ_LOCK_OWNER != 0 })
}

fn cut_write(cut: &mut Cut<'_>) -> Option<Write> {
    let (handle, offset) = (cut.u64()?, cut.u64()?);
    let (size, write_flags) = (cut.u32()?, cut.u32()?);
    // Owner of locks.
    cut.skip(8)?;
    let flags = cut.i32()?;
    cut.skip(4)?;
    Some(Write { handle, offset, size, write_flags, flags })
}

fn lock(cut: &mut Cut<'_>) -> Option<LockWish> {
    let (handle, owner) = (cut.u64()?, cut.u64()?);
    let (first, last) = (cut.u64()?, cut.u64()?);
    let (typ, pid, flags) = (cut.i32()?, cut.u32()?, cut.u32()?);
    cut.skip(4)?;
    let whole = flags & LOCK_FLOCK != 0;
    Some(LockWish { handle, owner, first, last, typ, pid, whole })
}

fn set_attributes(cut: &mut Cut<'_>) -> Option<SetAttributes> {
    let valid = cut.u32()?;
    cut.skip(4)?;
    let (handle, size) = (cut.u64()?, cut.u64()?);
    // Owner of locks.
    cut.skip(8)?;
    let (atime, mtime) = (cut.u64()? as i64, cut.u64()? as i64);
    cut.skip(8)?;
    let (atime_ns, mtime_ns) = (cut.u32()?, cut.u32()?);
    cut.skip(4)?;
    let mode = cut.u32()?;
    cut.skip(4)?;
    let (uid, gid) = (cut.u32()?, cut.u32()?);
    cut.skip(4)?;
    let has = |bit| valid & bit != 0;
    let time = |bit, now, seconds, ns| {
        let to = if has(now) { SetTime::Now } else { SetTime::To(to_time(seconds, ns)) };
        has(bit).then_some(to)
    };
    Some(SetAttributes {
        mode: has(set::MODE).then_some(mode),
        uid: has(set::UID).then_some(uid),
        gid: has(set::GID).then_some(gid),
        size: has(set::SIZE).then_some(size),
        atime: time(set::ATIME, set::ATIME_NOW, atime, atime_ns),
        mtime: time(set::MTIME, set::MTIME_NOW, mtime, mtime_ns),
        handle: has(set::HANDLE).then_some(handle),
    })
}

const SECOND_NS: i64 = 1_000_000_000;

/// The kernel counts nanoseconds forward from the second, also before 1970. Held within what 64 bits
/// of nanoseconds can say (the years 1677 to 2262).
fn to_time(seconds: i64, ns: u32) -> WallTime {
    WallTime(seconds.saturating_mul(SECOND_NS).saturating_add(ns.into()))
}

/// Seconds and nanoseconds of a time.
pub(crate) fn from_time(time: WallTime) -> (i64, u32) {
    (time.0.div_euclid(SECOND_NS), time.0.rem_euclid(SECOND_NS) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        let length = (REQUEST_HEADER_BYTES + body.len()) as u32;
        message.extend_from_slice(&length.to_ne_bytes());
        message.extend_from_slice(&opcode.to_ne_bytes());
        for number in [7u64, 9] {
            message.extend_from_slice(&number.to_ne_bytes());
        }
        for number in [1000u32, 100, 4242, 0] {
            message.extend_from_slice(&number.to_ne_bytes());
        }
        message.extend_from_slice(body);
        message
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn pair(low: u32, high: u32) -> u64 {
        let [a, b, c, d] = low.to_ne_bytes();
        let [e, f, g, h] = high.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }

    #[test]
    fn a_header_tells_whose_request_it_is_and_its_length_is_true() {
        let bytes = message(5, b"");
        let (told, body) = header(&bytes).unwrap();
        let expected = Header { opcode: 5, unique: 7, ino: Ino(9), uid: 1000, gid: 100, pid: 4242 };
        assert_eq!((told, body), (expected, &b""[..]));
        assert!(header(&bytes[..39]).is_none());
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(header(&longer).is_none());
    }

    #[test]
    fn a_write_has_all_of_its_data() {
        let mut body = words(&[3, 4096, pair(5, write::KILL_SUIDGID), 0, pair(2, 0)]);
        body.extend_from_slice(b"hello");
        let bytes = message(16, &body);
        let (head, body) = header(&bytes).unwrap();
        let Some(Operation::Write { write, data }) = parse(&head, body) else { panic!() };
        assert_eq!((write.handle, write.offset, write.flags, data), (3, 4096, 2, &b"hello"[..]));
        assert_eq!(write.write_flags, super::write::KILL_SUIDGID);
        assert!(parse(&head, &body[..body.len() - 1]).is_none());
        assert_eq!(WRITE_HEAD_BYTES, bytes.len() - 5);
    }

    #[test]
    fn flock_is_told_from_fcntl() {
        for (flags, whole) in [(0, false), (LOCK_FLOCK, true)] {
            let typ = libc::F_WRLCK as u32;
            let bytes = message(33, &words(&[3, 77, 10, 19, pair(typ, 4242), pair(flags, 0)]));
            let (head, body) = header(&bytes).unwrap();
            let Some(Operation::SetLock { lock, wait: true }) = parse(&head, body) else {
                panic!()
            };
            assert_eq!((lock.owner, lock.first, lock.last, lock.typ), (77, 10, 19, libc::F_WRLCK));
            assert_eq!(lock.whole, whole);
        }
    }

    #[test]
    fn times_are_counted_forward_on_both_sides_of_1970() {
        assert_eq!(to_time(-2, 500_000_000), WallTime(-1_500_000_000));
        for ns in [0, 1, -1, 1_700_000_000_123_456_789, -1_500_000_000, i64::MAX] {
            let (seconds, rest) = from_time(WallTime(ns));
            assert_eq!(to_time(seconds, rest), WallTime(ns));
        }
        assert_eq!(to_time(1 << 40, 0), WallTime(i64::MAX));
        assert_eq!(to_time(-(1 << 40), 0), WallTime(i64::MIN));
    }

    /// Whatever comes, parsing ends without a panic; and what is cut off is never a request.
    #[test]
    fn noise_and_fragments_are_survived() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..200_000 {
            let length = (noise() % 160) as usize;
            let body: Vec<u8> = (0..length).map(|_| (noise() >> 32) as u8).collect();
            let bytes = message((noise() % 56) as u32, &body);
            let (head, body) = header(&bytes).unwrap();
            let _ = parse(&head, body);
        }
        let needed = [(1, 1), (3, 16), (4, 88), (15, 40), (31, 48), (42, 8), (43, 28), (47, 48)];
        for (opcode, least) in needed {
            let zeros = vec![0; least];
            let bytes = message(opcode, &zeros);
            let (head, body) = header(&bytes).unwrap();
            assert!(parse(&head, body).is_some(), "opcode {opcode}");
            assert!(parse(&head, &body[..least - 1]).is_none(), "opcode {opcode}");
        }
    }
}
