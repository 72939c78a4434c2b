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

/// What kept a directory from becoming a mount.
#[derive(Debug)]
pub struct Refused {
    /// What was tried.
    pub step: &'static str,
    /// What came of it.
    pub cause: io::Error,
}

impl Refused {
    fn at(step: &'static str) -> impl Fn(io::Error) -> Refused {
        move |cause| Refused { step, cause }
    }
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> io::Error {
        let Refused { step, cause } = refused;
        io::Error::new(cause.kind(), format!("{step}: {cause}"))
    }
}

/// Mounts at a directory; gives the descriptor over which the kernel asks.
pub(crate) fn mount(directory: &Path, allow_other: bool) -> Result<OwnedFd, Refused> {
    match by_ourselves(directory, allow_other) {
        Err(refused) if refused.cause.raw_os_error() == Some(libc::EPERM) => {
            by_helper(directory, allow_other)
        }
        result => result,
    }
}

/// Mounts by mount(2): as root, or in a namespace of one's own. Gives the descriptor over which the
/// kernel asks.
///
/// # Errors
/// If there is no FUSE, or it is forbidden.
pub fn by_ourselves(directory: &Path, allow_other: bool) -> Result<OwnedFd, Refused> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let device = OwnedFd::from(device.map_err(Refused::at("open /dev/fuse"))?);
    let mounted = mount_device(&device, directory, allow_other);
    mounted.map_err(Refused::at("mount of a FUSE file system refused"))?;
    Ok(device)
}

fn mount_device(device: &OwnedFd, directory: &Path, allow_other: bool) -> io::Result<()> {
    // SAFETY: these two cannot fail and take nothing.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
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
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has fusermount3 mount and pass us the descriptor over a socket.
///
/// # Errors
/// If there is no such program, or it refuses.
pub fn by_helper(directory: &Path, allow_other: bool) -> Result<OwnedFd, Refused> {
    let (ours, theirs) = UnixStream::pair().map_err(Refused::at("socket pair"))?;
    // SAFETY: a descriptor of ours, which the helper is to inherit.
    if unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) } < 0 {
        return Err(Refused::at("socket pair")(io::Error::last_os_error()));
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
        .output()
        .map_err(Refused::at("start fusermount3"))?;
    drop(theirs);
    let refused = Refused::at("fusermount3");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = match said.trim().trim_start_matches("fusermount3: ") {
            "" => "failed",
            said => said,
        };
        return Err(refused(io::Error::new(io::ErrorKind::PermissionDenied, said)));
    }
    receive_descriptor(&ours).map_err(refused)
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
        return Err(io::Error::other("no descriptor came"));
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
