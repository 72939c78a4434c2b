//! For whom a request is made, and whether he may.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_core::types::{Attributes, Credentials, FileKind};

/// Processes whose groups are remembered; when there are more, all are forgotten.
const PROCESSES_MAX: usize = 1024;
/// How long a process's groups are believed: it may change them, or end and another take its number.
const BELIEVED: Duration = Duration::from_secs(1);

/// To execute, or to walk a directory: a bit of a permission triple, and of access(2).
pub(crate) const EXECUTE: u32 = 1;

struct Known {
    since: Instant,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Supplementary groups, which the kernel does not send with its requests.
#[derive(Default)]
pub(crate) struct Groups {
    known: Mutex<HashMap<u32, Known>>,
}

impl Groups {
    /// The credentials of the process behind a request.
    pub(crate) fn credentials(&self, uid: u32, gid: u32, pid: u32) -> Credentials {
        // The superuser's groups open nothing that is not open to him, and process 0 is one that
        // cannot be seen from here.
        if uid == 0 || pid == 0 {
            return Credentials { uid, gid, groups: Vec::new() };
        }
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = known.get(&pid)
            && (process.uid, process.gid) == (uid, gid)
            && now.duration_since(process.since) < BELIEVED
        {
            return Credentials { uid, gid, groups: process.groups.clone() };
        }
        let groups = std::fs::read_to_string(format!("/proc/{pid}/status"))
            .map(|status| parse(&status))
            .unwrap_or_default();
        if known.len() >= PROCESSES_MAX {
            known.clear();
        }
        known.insert(pid, Known { since: now, uid, gid, groups: groups.clone() });
        Credentials { uid, gid, groups }
    }
}

/// The groups in the text of `/proc/PID/status`.
fn parse(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.into_iter().flat_map(str::split_whitespace).filter_map(|word| word.parse().ok()).collect()
}

/// Whether `who` may do all that `wanted` says (4: read, 2: write, 1: execute).
pub(crate) fn allows(attributes: &Attributes, who: &Credentials, wanted: u32) -> bool {
    let mode = attributes.mode;
    if who.uid == 0 {
        let executable = attributes.kind == FileKind::Directory || mode & 0o111 != 0;
        return wanted & EXECUTE == 0 || executable;
    }
    let shift = if who.uid == attributes.uid {
        6
    } else if who.gid == attributes.gid || who.groups.contains(&attributes.gid) {
        3
    } else {
        0
    };
    (mode >> shift) & wanted == wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::types::{Ino, WallTime};

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
        assert!(!allows(&file(0o077), &who(10, 20, &[]), READ));
        assert!(allows(&file(0o640), &who(11, 20, &[]), READ));
        assert!(allows(&file(0o640), &who(11, 1, &[3, 20]), READ));
        assert!(!allows(&file(0o640), &who(11, 1, &[3]), READ));
        assert!(!allows(&file(0o640), &who(10, 20, &[]), READ | EXECUTE));
        assert!(allows(&file(0o000), &who(0, 0, &[]), READ | WRITE));
        assert!(!allows(&file(0o666), &who(0, 0, &[]), EXECUTE));
        assert!(allows(&file(0o001), &who(0, 0, &[]), EXECUTE));
    }

    #[test]
    fn groups_are_read_from_the_status_of_a_process() {
        assert_eq!(parse("Name:\tsh\nGroups:\t4 24 1000 \nNgid:\t0\n"), vec![4, 24, 1000]);
        assert_eq!(parse("Groups:\t \n"), Vec::<u32>::new());
        assert_eq!(parse(""), Vec::<u32>::new());
    }
}
