//! `weir mount` and `weir umount`: a pool as a directory that stays.

use crate::args;
use crate::channel::Channel;
use crate::failure::{Failure, Outcome, status, tell};
use crate::fuse;
use crate::namespace;
use crate::pool::Access;
use crate::state::{Mounted, PoolDirectory};
use crate::sys::{self, Process, Signals};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// How long a mount has to end when asked.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What to mount.
#[derive(Serialize, Deserialize)]
struct Order {
    directory: OsString,
    pool: OsString,
    access: Access,
    kernel: args::Kernel,
    allow_other: bool,
}

/// The mount's answer, once.
#[derive(Serialize, Deserialize)]
enum Word {
    Mounted,
    Failed { status: u8, text: String },
}

/// `weir mount`.
pub(crate) fn mount(options: &args::Mount) -> Outcome<u8> {
    let (pool, access) = Access::find(options.which.pool.as_deref(), Some(&options.wire))?;
    let order = order(&pool, access, &options.directory, options.kernel, options.allow_other)?;
    if options.foreground {
        return keep(order, None);
    }
    start(order)?;
    Ok(0)
}

/// Mounts a pool and leaves a process behind that serves the mount.
pub(crate) fn mount_pool(
    pool: &PoolDirectory,
    access: Access,
    directory: &Path,
    kernel: args::Kernel,
) -> Outcome<()> {
    start(order(pool, access, directory, kernel, false)?)
}

fn order(
    pool: &PoolDirectory,
    access: Access,
    directory: &Path,
    kernel: args::Kernel,
    allow_other: bool,
) -> Outcome<Order> {
    namespace::check_mount_point(directory)?;
    let directory = directory
        .canonicalize()
        .map_err(|error| Failure::system("mount", directory.display(), error))?;
    if namespace::is_mounted(&directory) {
        return Err(Failure::say(format!(
            "mount {}: something is mounted there already; 'weir umount {}' takes it away",
            directory.display(),
            directory.display()
        )));
    }
    Ok(Order {
        directory: directory.into(),
        pool: pool.path.clone().into(),
        access,
        kernel,
        allow_other,
    })
}

fn start(order: Order) -> Outcome<()> {
    let log = PathBuf::from(&order.pool).join("mount.log");
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)
        .map_err(|error| Failure::system("write", log.display(), error))?;
    let (_child, mut channel) = Channel::start("keep-mount", |command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).current_dir("/");
        // SAFETY: a system call; the child is no group's leader yet, so that it cannot fail.
        unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?)) };
    })?;
    channel.send(&order)?;
    match channel.receive::<Word>()? {
        Some(Word::Mounted) => Ok(()),
        Some(Word::Failed { status, text }) => Err(Failure::new(status, text)),
        None => Err(Failure::new(
            status::UNAVAILABLE,
            "mount: its process died; see mount.log in the pool's directory",
        )),
    }
}

/// `weir keep-mount`.
pub(crate) fn keep_mount(control: i32) -> Outcome<u8> {
    let mut channel = Channel::inherited(control)?;
    let Some(order) = channel.receive::<Order>()? else { return Ok(0) };
    if let Err(failure) = keep(order, Some(&mut channel)) {
        // Nobody may be there to hear it any more: then it is in the log.
        tell(&failure);
        let _ = channel.send(&Word::Failed { status: failure.status, text: failure.text });
        return Ok(1);
    }
    Ok(0)
}

/// Serves a mount until it is taken away or we are asked to end.
fn keep(order: Order, channel: Option<&mut Channel>) -> Outcome<u8> {
    let signals = Signals::catch(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])?;
    let directory = PathBuf::from(&order.directory);
    let pool = PoolDirectory { path: PathBuf::from(&order.pool) };
    let fresh = namespace::mount_public(&directory, order.allow_other)?;
    let unmounted = Unmount(&directory);
    let options = order.kernel.into();
    let session = fuse::serve(&order.access, &pool.path, &directory, fresh, options)?;
    let mounted = Mounted { directory: directory.clone(), process: Process::me()? };
    pool.change(|file| file.mounts.push(mounted.clone()))?;
    if let Some(channel) = channel {
        channel.send(&Word::Mounted)?;
    }
    while !session.is_over() && sys::interrupted().is_none() {
        sys::wait_readable(&[signals.as_fd()], Some(Duration::from_millis(500)));
    }
    drop(unmounted);
    // The pool may have been taken down, and its directory with it.
    let _ = pool.change(|file| file.mounts.retain(|other| *other != mounted));
    session.stop_lending();
    // Its threads may wait for servers that are gone: they end with the process.
    std::mem::forget(session);
    Ok(0)
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        if namespace::is_mounted(self.0) {
            let _ = namespace::unmount(self.0);
        }
    }
}

/// `weir umount`.
pub(crate) fn umount(options: &args::Umount) -> Outcome<u8> {
    // Not canonicalize: a mount whose server died cannot be looked at.
    let directory = std::path::absolute(&options.directory)
        .map_err(|error| Failure::system("unmount", options.directory.display(), error))?;
    let directory = match (directory.parent().map(Path::canonicalize), directory.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => directory,
    };
    for pool in PoolDirectory::all()? {
        let Ok(file) = pool.read() else { continue };
        // Where hosts share a home, others may have theirs at the same place.
        let ours =
            |mounted: &&Mounted| mounted.directory == directory && mounted.process.is_local();
        if let Some(mounted) = file.mounts.iter().find(ours) {
            end(mounted);
            pool.change(|file| file.mounts.retain(|other| other != mounted))?;
            return Ok(0);
        }
    }
    if !namespace::is_mounted(&directory) {
        return Err(Failure::say(format!(
            "unmount {}: nothing is mounted there",
            directory.display()
        )));
    }
    Err(Failure::say(format!(
        "unmount {}: no mount of weir's; 'umount {}' is for others",
        directory.display(),
        directory.display()
    )))
}

/// Ends a mount and the process that serves it.
pub(crate) fn end(mounted: &Mounted) {
    if !mounted.process.end(END_LIMIT) {
        tell(format_args!(
            "unmount {}: process {} on {} does not end",
            mounted.directory.display(),
            mounted.process.pid,
            mounted.process.host
        ));
    }
    // It was killed before it could.
    if mounted.process.is_local() && namespace::is_mounted(&mounted.directory) {
        let _ = namespace::unmount(&mounted.directory);
    }
}
