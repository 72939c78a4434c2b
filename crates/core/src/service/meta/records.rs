//! What the store holds: keys and values.
//!
//! ```text
//! c                      counters
//! i ino                  inode
//! t ino                  a directory's times of last change (see DirectoryTimes)
//! d ino name             a name in directory ino
//! x ino name             an extended attribute
//! o ino                  orphan: no name, but open; its inode is still there. Value: UNNAMED if it
//!                        never had a name
//! g ino                  garbage: a file that is gone but for its objects; value: its layout
//! ```
//! Inode numbers are big-endian, so that a directory's names are one range.

use crate::error::{Code, Error, Result};
use crate::layout::Layout;
use crate::types::{FileKind, Ino, WallTime};
use crate::wire;
use crate::wire::meta::{LayoutWish, PendingTruncate};
use serde::{Deserialize, Serialize};

pub(super) const COUNTERS: &[u8] = b"c";
/// Marks an orphan that may still be given a name.
pub(super) const UNNAMED: &[u8] = b"u";

fn key(tag: u8, ino: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + name.len());
    key.push(tag);
    key.extend_from_slice(&ino.0.to_be_bytes());
    key.extend_from_slice(name);
    key
}

pub(super) fn inode_key(ino: Ino) -> Vec<u8> {
    key(b'i', ino, b"")
}

pub(super) fn times_key(ino: Ino) -> Vec<u8> {
    key(b't', ino, b"")
}

pub(super) fn name_key(directory: Ino, name: &[u8]) -> Vec<u8> {
    key(b'd', directory, name)
}

/// The range of a directory's names behind `after`.
pub(super) fn names_behind(directory: Ino, after: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut start = name_key(directory, after);
    // The key that follows a name's own is that name and a zero byte, which no name contains.
    if !after.is_empty() {
        start.push(0);
    }
    (start, key(b'd', Ino(directory.0 + 1), b""))
}

pub(super) fn xattr_key(ino: Ino, name: &[u8]) -> Vec<u8> {
    key(b'x', ino, name)
}

pub(super) fn xattrs_of(ino: Ino) -> (Vec<u8>, Vec<u8>) {
    (key(b'x', ino, b""), key(b'x', Ino(ino.0 + 1), b""))
}

pub(super) fn orphan_key(ino: Ino) -> Vec<u8> {
    key(b'o', ino, b"")
}

pub(super) fn garbage_key(ino: Ino) -> Vec<u8> {
    key(b'g', ino, b"")
}

/// All keys with this tag.
pub(super) fn all_of(tag: u8) -> (Vec<u8>, Vec<u8>) {
    (vec![tag], vec![tag + 1])
}

/// The inode number in a key.
pub(super) fn ino_of(key: &[u8]) -> Result<Ino> {
    let bytes = key.get(1..9).and_then(|bytes| bytes.try_into().ok());
    bytes.map(|bytes| Ino(u64::from_be_bytes(bytes))).ok_or_else(|| corrupt("a key"))
}

/// The name in a key.
pub(super) fn name_of(key: &[u8]) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

fn corrupt(what: &str) -> Error {
    Error::because(Code::Internal, format!("metadata store is damaged: {what} does not parse"))
}

/// Numbers handed out by the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counters {
    /// Of what is described in this file.
    pub(super) format: u32,
    /// Inode numbers below this are taken (without the shard).
    pub(super) next_ino: u64,
    /// How often the service was started: keeps handles of different lives apart.
    pub(super) life: u32,
}

pub(super) const FORMAT: u32 = 1;

/// A truncation that the targets may not all have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cut {
    pub(super) pending: PendingTruncate,
    /// The version that it made.
    pub(super) version: u64,
    /// Whether nobody had the file open for writing when it began, and it has no holes then. If so,
    /// and the version is still the same when it ends, the file is settled with what it was cut to.
    pub(super) quiet: bool,
}

/// An inode, as stored. Encoded as [`Head`], then `tail` to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    pub(super) head: Head,
    /// A regular file's layout (encoded: most requests need not look into it), or a link's text.
    pub(super) tail: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) nlink: u32,
    pub(super) size: u64,
    pub(super) rdev: u64,
    pub(super) atime: WallTime,
    pub(super) mtime: WallTime,
    pub(super) ctime: WallTime,
    pub(super) data_epoch: u32,
    /// See [`crate::wire::meta`].
    pub(super) version: u64,
    /// Whether size and mtime are right; never while somebody has it open for writing.
    pub(super) settled: bool,
    /// Whether targets may hold objects of it: it was opened for writing or truncated.
    pub(super) objects: bool,
    pub(super) xattrs: u32,
    /// A directory's parent.
    pub(super) parent: Ino,
    /// A directory's wish for files made in it.
    pub(super) wish: LayoutWish,
    pub(super) truncation: Option<Cut>,
}

impl std::ops::Deref for Inode {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

impl std::ops::DerefMut for Inode {
    fn deref_mut(&mut self) -> &mut Head {
        &mut self.head
    }
}

impl Inode {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = wire::encode(&self.head);
        bytes.extend_from_slice(&self.tail);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Inode> {
        let (head, tail) = postcard::take_from_bytes(bytes).map_err(|_| corrupt("an inode"))?;
        Ok(Inode { head, tail: tail.to_vec() })
    }

    pub(super) fn layout(&self) -> Result<Layout> {
        decode(&self.tail, "a layout")
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Target {
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
}

/// When names in a directory last changed. Apart from its inode and written without a condition, so
/// that files can be made and removed in one directory at once without conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DirectoryTimes {
    pub(super) mtime: WallTime,
    pub(super) ctime: WallTime,
}

pub(super) fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    wire::decode(bytes).map_err(|_| corrupt(what))
}
