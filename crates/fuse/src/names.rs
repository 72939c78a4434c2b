//! How inodes were last looked up: their names, for reports; and their attributes, for those that
//! are still in use when no name leads to them any more.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_core::types::Attributes;

/// Inodes that are remembered. When there are more, all are forgotten: the kernel looks a path up
/// anew each time that it is opened.
const NAMES_MAX: usize = 64 * 1024;
/// Directories in a path, in case that renames between lookups made a circle.
const DEPTH_MAX: usize = 256;

const ROOT: u64 = 1;

#[derive(Debug)]
struct Known {
    /// The directory, and the name in it.
    parent: u64,
    name: Box<[u8]>,
    attributes: Attributes,
    /// How often the kernel was told and has not forgotten it. It may look an inode up again before we
    /// hear that it has forgotten an earlier lookup.
    lookups: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Names {
    known: Mutex<HashMap<u64, Known>>,
}

impl Names {
    fn known(&self) -> MutexGuard<'_, HashMap<u64, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that this is `name` in `parent`.
    pub(crate) fn learn(&self, attributes: &Attributes, parent: u64, name: &[u8]) {
        let ino = attributes.ino.0;
        let attributes = attributes.clone();
        let mut known = self.known();
        let mut lookups = 1;
        if let Some(entry) = known.get_mut(&ino) {
            entry.lookups += 1;
            if entry.parent == parent && *entry.name == *name {
                entry.attributes = attributes;
                return;
            }
            lookups = entry.lookups;
        } else if known.len() >= NAMES_MAX {
            known.clear();
        }
        known.insert(ino, Known { parent, name: name.into(), attributes, lookups });
    }

    /// So many lookups of it count no more.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        let mut known = self.known();
        if let Some(entry) = known.get_mut(&ino) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            if entry.lookups == 0 {
                known.remove(&ino);
            }
        }
    }

    /// Directory and name.
    pub(crate) fn place(&self, ino: u64) -> Option<(u64, Box<[u8]>)> {
        self.known().get(&ino).map(|entry| (entry.parent, entry.name.clone()))
    }

    pub(crate) fn parent(&self, ino: u64) -> Option<u64> {
        self.known().get(&ino).map(|entry| entry.parent)
    }

    /// The attributes of what the pool does not know any more: as they were last looked up, but
    /// without names.
    pub(crate) fn remains(&self, ino: u64) -> Option<Attributes> {
        let attributes = self.known().get(&ino)?.attributes.clone();
        Some(Attributes { nlink: 0, ..attributes })
    }

    /// The path of an inode within the mount, from `/`; from `inode N` if more is not known.
    pub(crate) fn path(&self, ino: u64) -> String {
        let known = self.known();
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while at != ROOT {
            match known.get(&at) {
                Some(entry) if parts.len() < DEPTH_MAX => {
                    parts.push(&entry.name);
                    at = entry.parent;
                }
                _ => break,
            }
        }
        let mut path = if at == ROOT { String::new() } else { format!("inode {at}") };
        for part in parts.iter().rev() {
            path.push('/');
            path.push_str(&String::from_utf8_lossy(part));
        }
        if path.is_empty() { "/".to_owned() } else { path }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::types::{FileKind, Ino, WallTime};

    fn file(ino: u64) -> Attributes {
        Attributes {
            ino: Ino(ino),
            kind: FileKind::Fifo,
            mode: 0o640,
            uid: 1,
            gid: 2,
            nlink: 1,
            size: 0,
            allocated: 0,
            rdev: 0,
            atime: WallTime(3),
            mtime: WallTime(4),
            ctime: WallTime(5),
            data_epoch: 0,
        }
    }

    #[test]
    fn what_is_gone_is_as_it_was_last_seen() {
        let names = Names::default();
        names.learn(&file(5), ROOT, b"a");
        let attributes = Attributes { mode: 0o600, ..file(5) };
        names.learn(&attributes, ROOT, b"a");
        assert_eq!(names.remains(5), Some(Attributes { nlink: 0, ..attributes }));
        // The kernel has looked it up twice, and gives one of these back later than we think.
        names.forget(5, 1);
        assert!(names.remains(5).is_some() && names.place(5).is_some());
        names.forget(5, 1);
        assert_eq!(names.remains(5), None);
    }

    #[test]
    fn paths_are_put_together_as_far_as_they_are_known() {
        let names = Names::default();
        names.learn(&file(5), ROOT, b"a");
        names.learn(&file(6), 5, b"b");
        assert_eq!(names.path(6), "/a/b");
        assert_eq!(names.path(ROOT), "/");
        names.learn(&file(6), 5, b"c");
        assert_eq!(names.path(6), "/a/c");
        names.forget(5, 1);
        assert_eq!(names.path(6), "inode 5/c");
        assert_eq!(names.path(77), "inode 77");
    }

    #[test]
    fn a_circle_ends() {
        let names = Names::default();
        names.learn(&file(5), 6, b"a");
        names.learn(&file(6), 5, b"b");
        assert!(names.path(5).starts_with("inode "));
    }

    #[test]
    fn memory_is_bounded() {
        let names = Names::default();
        for ino in 0..3 * NAMES_MAX as u64 {
            names.learn(&file(ino + 2), ROOT, b"x");
        }
        assert!(names.known.lock().unwrap().len() <= NAMES_MAX);
    }
}
