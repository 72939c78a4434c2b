//! Whether what the kernel has cached of a file is still true when it is opened again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use weir_core::types::{Attributes, WallTime};

/// Files remembered. When there are more, all are forgotten, and read anew when they are opened.
const FILES_MAX: usize = 64 * 1024;

/// What changes with a file's content. The data epoch sees to it that a time set back counts too.
type State = (u64, WallTime, u32);

/// The state of each file when the kernel last began to cache it.
#[derive(Debug, Default)]
pub(crate) struct Cached {
    states: Mutex<HashMap<u64, State>>,
}

impl Cached {
    /// Whether the pages cached since an earlier opening still hold; remembers this one.
    pub(crate) fn still_true(&self, attributes: &Attributes) -> bool {
        let state = (attributes.size, attributes.mtime, attributes.data_epoch);
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if states.len() >= FILES_MAX && !states.contains_key(&attributes.ino.0) {
            states.clear();
        }
        states.insert(attributes.ino.0, state) == Some(state)
    }

    /// To be called for a file written here or forgotten by the kernel: between our own writes may
    /// lie another client's, which the state afterwards would hide.
    pub(crate) fn forget(&self, ino: u64) {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::types::{FileKind, Ino};

    #[test]
    fn any_change_ends_what_was_cached() {
        let attributes = Attributes {
            ino: Ino(9),
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 10,
            allocated: 0,
            rdev: 0,
            atime: WallTime(0),
            mtime: WallTime(5),
            ctime: WallTime(5),
            data_epoch: 1,
        };
        let cached = Cached::default();
        assert!(!cached.still_true(&attributes));
        assert!(cached.still_true(&attributes));
        let changes: [fn(&mut Attributes); 3] =
            [|a| a.size = 11, |a| a.mtime = WallTime(6), |a| a.data_epoch = 2];
        for change in changes {
            let mut changed = attributes.clone();
            change(&mut changed);
            assert!(!cached.still_true(&changed));
            assert!(!cached.still_true(&attributes));
        }
        cached.forget(9);
        assert!(!cached.still_true(&attributes));
    }
}
