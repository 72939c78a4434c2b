//! Mounting: in a namespace of our own, where nobody else sees it, or with fusermount3.

use crate::failure::{Failure, Outcome, plain, status};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use weir_client::mounts::mounts;
use weir_fuse::mounting;

/// How a directory becomes a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// In a mount namespace of this process, which ends with it. Must be used before any thread is
    /// started.
    Private,
    /// By fusermount3, for all to see.
    Helper,
}

/// What has been mounted.
pub(crate) struct Fresh {
    /// Over which the kernel asks.
    pub(crate) device: OwnedFd,
    /// Whether there may be other users than the one who mounted.
    pub(crate) others: bool,
}

/// Mounts at `directory`.
pub(crate) fn mount_at(way: Way, directory: &Path) -> Outcome<Fresh> {
    let result = match way {
        Way::Private => enter_namespace().and_then(|others| mount_here(directory, others)),
        Way::Helper => fusermount(directory, false),
    };
    result.map_err(|cause| {
        Failure::new(
            status::UNAVAILABLE,
            format!("mount {}: {cause}; 'weir doctor' says what to do", directory.display()),
        )
    })
}

/// Mounts for all to see: as root by ourselves, else with fusermount3.
pub(crate) fn mount_public(directory: &Path, allow_other: bool) -> Outcome<Fresh> {
    let result = match Uid::effective().is_root() {
        true => mount_here(directory, true),
        false => fusermount(directory, allow_other),
    };
    result.map_err(|cause| {
        Failure::new(
            status::UNAVAILABLE,
            format!("mount {}: {cause}; 'weir doctor' says what to do", directory.display()),
        )
    })
}

/// Fails all requests that are under way through a mount, for processes that wait for them cannot
/// be killed before. Best effort: only root may, and who mounted in his own namespace.
pub(crate) fn abort(directory: &Path) {
    let _ = umount2(directory, MntFlags::MNT_FORCE);
}

/// Takes a mount away; a busy one is detached and ends when its last user does.
pub(crate) fn unmount(directory: &Path) -> Outcome<()> {
    if umount2(directory, MntFlags::empty()).is_ok()
        || umount2(directory, MntFlags::MNT_DETACH).is_ok()
    {
        return Ok(());
    }
    let done = Command::new("fusermount3")
        .args(["-u", "-z", "-q", "--"])
        .arg(directory)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match done {
        Ok(done) if done.success() => Ok(()),
        _ => Err(Failure::say(format!("unmount {}: refused", directory.display()))),
    }
}

/// A mount namespace of our own; without root in a user namespace, in which we stay who we are, and nobody else can be.
/// Says whether others can.
pub(crate) fn enter_namespace() -> Result<bool, String> {
    if Uid::effective().is_root() && unshare(CloneFlags::CLONE_NEWNS).is_ok() {
        return keep_private().map(|()| true);
    }
    let (uid, gid) = (Uid::effective(), Gid::effective());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
        .map_err(|cause| format!("no user namespace: {}", plain(cause)))?;
    let write = |name: &str, text: String| {
        std::fs::write(format!("/proc/self/{name}"), text)
            .map_err(|cause| format!("write /proc/self/{name}: {}", plain(cause)))
    };
    // The kernel wants this before an unprivileged gid_map.
    write("setgroups", "deny".into())?;
    write("uid_map", format!("{uid} {uid} 1"))?;
    write("gid_map", format!("{gid} {gid} 1"))?;
    keep_private().map(|()| false)
}

/// What is mounted outside later still appears within; what we mount stays within.
fn keep_private() -> Result<(), String> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .map_err(|cause| format!("private mount namespace: {}", plain(cause)))
}

fn mount_here(directory: &Path, others: bool) -> Result<Fresh, String> {
    let device = mounting::by_ourselves(directory, others).map_err(said)?;
    Ok(Fresh { device, others })
}

/// Has fusermount3 mount and pass us the descriptor.
fn fusermount(directory: &Path, others: bool) -> Result<Fresh, String> {
    let device = mounting::by_helper(directory, others).map_err(said)?;
    Ok(Fresh { device, others })
}

fn said(refused: mounting::Refused) -> String {
    format!("{}: {}", refused.step, plain(refused.cause))
}

/// Refuses a directory that cannot become a mount.
pub(crate) fn check_mount_point(directory: &Path) -> Outcome<()> {
    let wrong =
        |cause: String| Err(Failure::usage(format!("mount {}: {cause}", directory.display())));
    let mut entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return wrong("no such directory; make it first".into());
        }
        Err(error) => return wrong(format!("{}; choose an empty directory", plain(error))),
    };
    match entries.next() {
        None => Ok(()),
        Some(_) => wrong("not empty; choose an empty directory".into()),
    }
}

/// Whether something is mounted at exactly this directory, as this process sees it.
pub(crate) fn is_mounted(directory: &Path) -> bool {
    mounts().iter().any(|mount| mount.at == directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_mounted_and_a_fresh_directory_is_not() {
        let directory = tempfile::tempdir().expect("tempdir");
        assert!(is_mounted(Path::new("/")));
        assert!(!is_mounted(directory.path()));
        assert!(check_mount_point(directory.path()).is_ok());
        std::fs::write(directory.path().join("x"), "").expect("written");
        assert!(check_mount_point(directory.path()).is_err());
        assert!(check_mount_point(&directory.path().join("none")).is_err());
    }
}
