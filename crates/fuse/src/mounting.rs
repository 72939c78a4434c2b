//! Making and ending a mount: by mount(2) or, where that is forbidden, by fusermount3.

use crate::filesystem::REQUEST_BYTES_MAX;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// Mounts at a directory; gives the descriptor over which the kernel asks.
pub(crate) fn mount(directory: &Path, allow_other: bool) -> io::Result<OwnedFd> {
    match by_ourselves(directory, allow_other) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            by_helper(directory, allow_other)
        }
        result => result,
    }
}

fn by_ourselves(directory: &Path, allow_other: bool) -> io::Result<OwnedFd> {
    let device = OwnedFd::from(OpenOptions::new().read(true).write(true).open("/dev/fuse")?);
    // SAFETY: these two cannot fail and take nothing.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let descriptor = device.as_raw_fd();
    let mut options = format!(
        "fd={descriptor},rootmode=40000,user_id={uid},group_id={gid},max_read={REQUEST_BYTES_MAX}"
    );
    if allow_other {
        options.push_str(",allow_other");
    }
    let [source, target, kind, options] =
        [b"weir", directory.as_os_str().as_bytes(), b"fuse.weir", options.as_bytes()]
            .map(CString::new);
    let (source, target, kind, options) = (source?, target?, kind?, options?);
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOATIME;
    // SAFETY: all four are strings ended by a NUL.
    let done = unsafe {
        let (source, target, kind) = (source.as_ptr(), target.as_ptr(), kind.as_ptr());
        libc::mount(source, target, kind, flags, options.as_ptr().cast())
    };
    if done == 0 { Ok(device) } else { Err(io::Error::last_os_error()) }
}

/// Has fusermount3 mount and pass us the descriptor over a socket.
fn by_helper(directory: &Path, allow_other: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: a descriptor of ours, which the helper is to inherit.
    if unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut options =
        format!("fsname=weir,subtype=weir,nosuid,nodev,noatime,max_read={REQUEST_BYTES_MAX}");
    if allow_other {
        options.push_str(",allow_other");
    }
    let output = Command::new("fusermount3")
        .args(["-o", &options, "--"])
        .arg(directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .output()?;
    drop(theirs);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, said.trim()));
    }
    receive_descriptor(&ours)
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // Room for one descriptor and its header, aligned as the kernel writes it.
    let mut control = [0u64; 8];
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the message names memory that lives as long as the call.
    let got =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled in the control messages of this header.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: a header, if there is one, lies within `control`.
    let is_one = !first.is_null()
        && unsafe { (*first).cmsg_level == libc::SOL_SOCKET }
        && unsafe { (*first).cmsg_type == libc::SCM_RIGHTS };
    if got == 0 || !is_one {
        return Err(io::Error::other("fusermount3 passed no descriptor"));
    }
    // SAFETY: such a message has at least one descriptor, which the kernel has made for us.
    unsafe {
        let descriptor = libc::CMSG_DATA(first).cast::<i32>().read_unaligned();
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

/// Ends a mount; fails while it is in use.
pub(crate) fn unmount(directory: &Path) -> io::Result<()> {
    match detach(directory, 0) {
        // Not root: the helper can.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => helped(directory, &["-u"]),
        result => result,
    }
}

/// Takes a mount out of the tree of names; it ends when its last user does.
pub(crate) fn take_away(directory: &Path) -> io::Result<()> {
    detach(directory, libc::MNT_DETACH).or_else(|_| helped(directory, &["-u", "-z"]))
}

fn detach(directory: &Path, flags: i32) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: `path` is a string ended by a NUL.
    match unsafe { libc::umount2(path.as_ptr(), libc::UMOUNT_NOFOLLOW | flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn helped(directory: &Path, options: &[&str]) -> io::Result<()> {
    let output = Command::new("fusermount3")
        .args(options)
        .arg("--")
        .arg(directory)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let kind = match said.contains("busy") {
        true => io::ErrorKind::ResourceBusy,
        false => io::ErrorKind::PermissionDenied,
    };
    Err(io::Error::new(kind, said.trim()))
}
