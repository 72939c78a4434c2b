//! The words that every part shares: identities, times, attributes.

use serde::{Deserialize, Serialize};

/// Inode number: the identity of a file. The top 16 bits name the metadata shard that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of every pool.
    pub const ROOT: Ino = Ino(1);
}

/// A storage target's stable name within its pool: never an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TargetId(pub u32);

/// One life of a target. What an older incarnation held is lost: it answers an error, never zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// One client process's identity towards all servers, drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// Index of a server in the pool map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServerIndex(pub u16);

/// Wall-clock time: nanoseconds since the Unix epoch (negative before it).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct WallTime(pub i64);

/// Both clocks at one moment, handed in by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Monotonic milliseconds since an arbitrary start: for deadlines.
    pub mono_ms: u64,
    /// Wall clock: for file times and the expiry of capabilities.
    pub wall: WallTime,
}

/// Who asks: believed as stated only from a trusted mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// The permission triple of `mode` that is meant for them: the owner's, the group's or that of
    /// others, whichever fits first.
    pub fn triple(&self, mode: u32, uid: u32, gid: u32) -> u32 {
        let class = if self.uid == uid {
            6
        } else if self.gid == gid || self.groups.contains(&gid) {
            3
        } else {
            0
        };
        mode >> class & 0o7
    }
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file, striped over targets.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// FIFO.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl FileKind {
    /// The type bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Fifo => 0o010_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::Directory => 0o040_000,
            FileKind::BlockDevice => 0o060_000,
            FileKind::Regular => 0o100_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Socket => 0o140_000,
        }
    }

    /// The kind that the type bits of `mode` name, if any.
    pub fn from_mode_bits(mode: u32) -> Option<FileKind> {
        Some(match mode & 0o170_000 {
            0o010_000 => FileKind::Fifo,
            0o020_000 => FileKind::CharDevice,
            0o040_000 => FileKind::Directory,
            0o060_000 => FileKind::BlockDevice,
            0o100_000 | 0 => FileKind::Regular,
            0o120_000 => FileKind::Symlink,
            0o140_000 => FileKind::Socket,
            _ => return None,
        })
    }
}

/// A file's attributes as a caller sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Identity.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits (0o7777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names (directories: 2 + subdirectories).
    pub nlink: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of it that the pool holds: all but its holes. The metadata service does not know of them,
    /// and leaves this to the client ([`crate::fs`]).
    pub allocated: u64,
    /// Device number of special files.
    pub rdev: u64,
    /// Time of last read (not kept up by reads: the pool mounts as noatime).
    pub atime: WallTime,
    /// Time of last write.
    pub mtime: WallTime,
    /// Time of last change of the inode.
    pub ctime: WallTime,
    /// Changes to the inode's size and times that order late reports (DESIGN 5).
    pub data_epoch: u32,
}

impl Attributes {
    /// Whether they may do all that `wanted` says, as access(2) puts it (4: read, 2: write, 1:
    /// execute a file, or walk a directory).
    pub fn allow(&self, who: &Credentials, wanted: u32) -> bool {
        if who.uid == 0 {
            let executable = self.kind == FileKind::Directory || self.mode & 0o111 != 0;
            return wanted & 1 == 0 || executable;
        }
        who.triple(self.mode, self.uid, self.gid) & wanted == wanted
    }
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The name's bytes: no slash, no NUL, 1 to 255 of them.
    pub name: Vec<u8>,
    /// What it names.
    pub ino: Ino,
    /// What that is.
    pub kind: FileKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXECUTE: u32 = 1;
    const READ: u32 = 4;
    const WRITE: u32 = 2;

    fn file(mode: u32) -> Attributes {
        Attributes {
            ino: Ino(9),
            kind: FileKind::Regular,
            mode,
            uid: 10,
            gid: 20,
            nlink: 1,
            size: 0,
            allocated: 0,
            rdev: 0,
            atime: WallTime(0),
            mtime: WallTime(0),
            ctime: WallTime(0),
            data_epoch: 0,
        }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let who = |uid, gid, groups: &[u32]| Credentials { uid, gid, groups: groups.to_vec() };
        // The owner has less than others here, and that is what counts.
        assert!(!file(0o077).allow(&who(10, 20, &[]), READ));
        assert!(file(0o640).allow(&who(11, 20, &[]), READ));
        assert!(file(0o640).allow(&who(11, 1, &[3, 20]), READ));
        assert!(!file(0o640).allow(&who(11, 1, &[3]), READ));
        assert!(!file(0o640).allow(&who(10, 20, &[]), READ | EXECUTE));
        assert!(file(0o000).allow(&who(0, 0, &[]), READ | WRITE));
        assert!(!file(0o666).allow(&who(0, 0, &[]), EXECUTE));
        assert!(file(0o001).allow(&who(0, 0, &[]), EXECUTE));
    }
}
