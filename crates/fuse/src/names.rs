//! By which names inodes were last looked up: for reports only.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Inodes whose names are remembered. When there are more, all are forgotten: the kernel looks a
/// path up anew each time that it is opened.
const NAMES_MAX: usize = 64 * 1024;
/// Directories in a path, in case that renames between lookups made a circle.
const DEPTH_MAX: usize = 256;

const ROOT: u64 = 1;

/// A directory and a name in it.
type Name = (u64, Box<[u8]>);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Names {
    known: Mutex<HashMap<u64, Name>>,
}

impl Names {
    /// Remembers that `ino` is `name` in `parent`.
    pub(crate) fn learn(&self, ino: u64, parent: u64, name: &[u8]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&ino) {
            Some((at, called)) if *at == parent && **called == *name => return,
            Some(_) => {}
            None if known.len() >= NAMES_MAX => known.clear(),
            None => {}
        }
        known.insert(ino, (parent, name.into()));
    }

    pub(crate) fn forget(&self, ino: u64) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&ino);
    }

    pub(crate) fn parent(&self, ino: u64) -> Option<u64> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&ino).map(|(parent, _)| *parent)
    }

    /// The path of an inode within the mount, from `/`; from `inode N` if more is not known.
    pub(crate) fn path(&self, ino: u64) -> String {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while at != ROOT {
            match known.get(&at) {
                Some((parent, name)) if parts.len() < DEPTH_MAX => {
                    parts.push(name);
                    at = *parent;
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

    #[test]
    fn paths_are_put_together_as_far_as_they_are_known() {
        let names = Names::default();
        names.learn(5, ROOT, b"a");
        names.learn(6, 5, b"b");
        assert_eq!(names.path(6), "/a/b");
        assert_eq!(names.path(ROOT), "/");
        names.learn(6, 5, b"c");
        assert_eq!(names.path(6), "/a/c");
        names.forget(5);
        assert_eq!(names.path(6), "inode 5/c");
        assert_eq!(names.path(77), "inode 77");
    }

    #[test]
    fn a_circle_ends() {
        let names = Names::default();
        names.learn(5, 6, b"a");
        names.learn(6, 5, b"b");
        assert!(names.path(5).starts_with("inode "));
    }

    #[test]
    fn memory_is_bounded() {
        let names = Names::default();
        for ino in 0..3 * NAMES_MAX as u64 {
            names.learn(ino + 2, ROOT, b"x");
        }
        assert!(names.known.lock().unwrap().len() <= NAMES_MAX);
    }
}
