//! How inodes were last seen: their names, for reports; and their attributes, for those that
//! are still in use when no name leads to them any more.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_core::types::{Attributes, FileKind};

/// Inodes that are remembered. When there are more, all are forgotten: the kernel soon looks up anew
/// what it uses.
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

/// A directory, and a name in it.
pub(crate) type Place = (u64, Box<[u8]>);

#[derive(Debug, Default)]
struct Table {
    known: HashMap<u64, Known>,
    /// What was last seen at a place: where it is moved to we must know by ourselves, as the kernel
    /// believes its name for a moment and does not look it up.
    places: HashMap<Place, u64>,
}

impl Table {
    /// It is at a place from now on.
    fn put(&mut self, ino: u64, place: Place) {
        if let Some(entry) = self.known.get_mut(&ino) {
            (entry.parent, entry.name) = place.clone();
            self.places.insert(place, ino);
        }
    }

    /// No more is known of where it was, if it was what was last seen there.
    fn leave(&mut self, ino: u64, place: &Place) {
        if self.places.get(place) == Some(&ino) {
            self.places.remove(place);
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Names {
    table: Mutex<Table>,
}

impl Names {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that this is `name` in `parent`. Gives the place where the kernel has it, if it is a directory
    /// that came here from another one without the kernel's knowing.
    pub(crate) fn learn(&self, attributes: &Attributes, parent: u64, name: &[u8]) -> Option<Place> {
        let ino = attributes.ino.0;
        let attributes = attributes.clone();
        let table = &mut *self.table();
        let (mut lookups, mut displaced) = (1, None);
        if let Some(entry) = table.known.get_mut(&ino) {
            entry.lookups += 1;
            if entry.parent == parent && *entry.name == *name {
                entry.attributes = attributes;
                return None;
            }
            lookups = entry.lookups;
            let old = (entry.parent, entry.name.clone());
            table.leave(ino, &old);
            let is_elsewhere = attributes.kind == FileKind::Directory && old.0 != parent;
            displaced = is_elsewhere.then_some(old);
        } else if table.known.len() >= NAMES_MAX {
            *table = Table::default();
        }
        table.known.insert(ino, Known { parent, name: name.into(), attributes, lookups });
        table.places.insert((parent, name.into()), ino);
        displaced
    }

    /// A name was moved; or, if `exchange`, two were exchanged.
    pub(crate) fn moved(&self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        let place = |(parent, name): (u64, &[u8])| -> Place { (parent, name.into()) };
        let (from, to) = (place(from), place(to));
        let table = &mut *self.table();
        let (moved, instead) = (table.places.remove(&from), table.places.remove(&to));
        if let Some(ino) = moved {
            table.put(ino, to);
        }
        if let (Some(ino), true) = (instead, exchange) {
            table.put(ino, from);
        }
    }

    /// So many lookups of it count no more.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        let table = &mut *self.table();
        if let Some(entry) = table.known.get_mut(&ino) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            if entry.lookups == 0
                && let Some(entry) = table.known.remove(&ino)
            {
                table.leave(ino, &(entry.parent, entry.name));
            }
        }
    }

    /// Directory and name.
    pub(crate) fn place(&self, ino: u64) -> Option<(u64, Box<[u8]>)> {
        self.table().known.get(&ino).map(|entry| (entry.parent, entry.name.clone()))
    }

    pub(crate) fn parent(&self, ino: u64) -> Option<u64> {
        self.table().known.get(&ino).map(|entry| entry.parent)
    }

    /// It has these attributes now.
    pub(crate) fn saw(&self, attributes: &Attributes) {
        if let Some(entry) = self.table().known.get_mut(&attributes.ino.0) {
            entry.attributes = attributes.clone();
        }
    }

    /// The attributes of what the pool does not know any more: as they were last seen, but
    /// without names.
    pub(crate) fn remains(&self, ino: u64) -> Option<Attributes> {
        let attributes = self.table().known.get(&ino)?.attributes.clone();
        Some(Attributes { nlink: 0, ..attributes })
    }

    /// The path of an inode within the mount, from `/`; from `inode N` if more is not known.
    pub(crate) fn path(&self, ino: u64) -> String {
        let known = &self.table().known;
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
    use weir_core::types::{Ino, WallTime};

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
        assert_eq!(names.remains(5), Some(Attributes { nlink: 0, ..attributes.clone() }));
        // Changed since, by who has it open.
        let attributes = Attributes { uid: 7, ..attributes };
        names.saw(&attributes);
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
    fn what_came_from_another_directory_is_told() {
        let names = Names::default();
        for (one, displaced) in [(directory(5), true), (file(6), false)] {
            assert_eq!(names.learn(&one, 2, b"a"), None);
            assert_eq!(names.learn(&one, 2, b"b"), None);
            let old = displaced.then(|| (2, Box::from(&b"b"[..])));
            assert_eq!(names.learn(&one, 3, b"b"), old);
            // The kernel moves this itself.
            names.moved((3, b"b"), (4, b"c"), false);
            assert_eq!(names.learn(&one, 4, b"c"), None);
        }
    }

    fn directory(ino: u64) -> Attributes {
        Attributes { kind: FileKind::Directory, ..file(ino) }
    }

    #[test]
    fn directories_are_where_they_were_moved_to() {
        let names = Names::default();
        for (ino, name) in [(5, b"a"), (6, b"b")] {
            names.learn(&directory(ino), ROOT, name);
        }
        names.learn(&file(7), 5, b"f");
        names.moved((ROOT, b"a"), (ROOT, b"b"), true);
        assert_eq!((names.path(7), names.path(6)), ("/b/f".to_owned(), "/a".to_owned()));
        names.moved((ROOT, b"b"), (6, b"deep"), false);
        assert_eq!(names.path(7), "/a/deep/f");
        // Onto another one, which is no more; and of names that we know nothing of.
        names.learn(&directory(8), ROOT, b"old");
        names.moved((6, b"deep"), (ROOT, b"old"), false);
        names.moved((ROOT, b"what"), (ROOT, b"ever"), true);
        assert_eq!(names.path(7), "/old/f");
        names.forget(8, 1);
        names.moved((ROOT, b"old"), (ROOT, b"new"), false);
        assert_eq!(names.path(7), "/new/f");
        // What was found elsewhere meanwhile is not what is moved from its old name.
        names.learn(&directory(5), ROOT, b"elsewhere");
        names.moved((ROOT, b"new"), (ROOT, b"newer"), false);
        assert_eq!(names.path(7), "/elsewhere/f");
        (5..9).for_each(|ino| names.forget(ino, 2));
        let table = names.table();
        assert!(table.known.is_empty() && table.places.is_empty(), "{table:?}");
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
        assert!(names.table().known.len() <= NAMES_MAX);
        for ino in 0..3 * NAMES_MAX as u64 {
            names.learn(&directory(ino + 2), ino, b"x");
        }
        let table = names.table();
        assert!(table.known.len() <= NAMES_MAX && table.places.len() <= NAMES_MAX);
    }
}
