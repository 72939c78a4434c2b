//! For whom a request is made.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_core::types::Credentials;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_of_a_process() {
        assert_eq!(parse("Name:\tsh\nGroups:\t4 24 1000 \nNgid:\t0\n"), vec![4, 24, 1000]);
        assert_eq!(parse("Groups:\t \n"), Vec::<u32>::new());
        assert_eq!(parse(""), Vec::<u32>::new());
    }
}
