//! Disks of targets: a file or device, read and written past the page cache, by io_uring or, where
//! that is forbidden (as in many containers), by a few threads.
//!
//! Each event loop has a *lane* of its own: what its thread submits ends there, behind a descriptor that
//! it polls, and is handed to the target by the thread that, as a rule, has the answer to send. Were one
//! loop to look after a disk for all, each request would wake two threads.

mod ring;
mod threads;

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::warn;
use weir_core::service::storage::disk::{BLOCK_BYTES, Disk, DiskDone, DiskRequest};

/// Largest share of a directory's free space that is taken where nobody says how much: percent.
pub const FREE_PERCENT: u64 = 90;
/// The least that a disk must have: bytes.
pub const DISK_BYTES_MIN: u64 = 64 << 20;

/// Where a target's data goes that memory has no room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// A directory, or a block device, all of which is overwritten.
    pub path: PathBuf,
    /// How much of it: bytes; none: what is free there, or all of the device.
    pub size: Option<u64>,
}

/// How requests get to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// io_uring where the kernel allows it, else threads.
    Auto,
    /// Threads.
    Threads,
}

/// A disk whose completions event loops fetch.
pub(crate) trait Driven: Disk {
    /// A counter that goes up whenever there may be completions in a lane. Nobody reads it: each time
    /// that it goes up is an edge.
    fn descriptor(&self, lane: usize) -> RawFd;

    /// Takes the completions that are there.
    fn reap(&self, lane: usize) -> Vec<DiskDone>;

    /// Hands the kernel what was submitted under a [`Cork`] of this thread.
    fn flush(&self) {}
}

thread_local! {
    /// Whether this thread has a [`Cork`].
    static CORKED: Cell<bool> = const { Cell::new(false) };
    /// In which lane ends what this thread submits. Threads that are no event loop's use the first.
    static LANE: Cell<usize> = const { Cell::new(0) };
}

/// From now on, what this thread submits to disks ends in this lane, and it looks after that.
pub(crate) fn take_lane(lane: usize) {
    LANE.set(lane);
}

/// For as long as it lives, what its thread submits to disks only queues up; then it goes to the kernel
/// together. For the time of one event: nothing may wait for a disk under it.
pub(crate) struct Cork<'a> {
    disks: &'a [Option<Arc<dyn Driven>>],
}

impl Cork<'_> {
    pub(crate) fn new(disks: &[Option<Arc<dyn Driven>>]) -> Cork<'_> {
        CORKED.set(true);
        Cork { disks }
    }
}

impl Drop for Cork<'_> {
    fn drop(&mut self) {
        CORKED.set(false);
        self.disks.iter().flatten().for_each(|disk| disk.flush());
    }
}

/// A file or device, open for direct I/O.
pub(crate) struct Backing {
    file: File,
    blocks: u64,
}

impl Backing {
    /// Opens a device, or makes a file without a name in a directory: it goes with the process,
    /// whatever way that ends. Its space is taken at once, so that a write is never told later that
    /// there is none.
    pub(crate) fn open(options: &DiskOptions) -> io::Result<Backing> {
        let kind = std::fs::metadata(&options.path)?;
        if kind.file_type().is_block_device() {
            let file =
                direct(OpenOptions::new().read(true).write(true), libc::O_EXCL, &options.path)?;
            // SAFETY: a valid descriptor; the device's size is its end.
            let end = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
            let end = u64::try_from(end).map_err(|_| io::Error::last_os_error())?;
            let size = options.size.unwrap_or(end);
            if size > end {
                return Err(io::Error::other(format!("the device has {end} bytes only")));
            }
            return Backing::sized(file, size);
        }
        if !kind.is_dir() {
            return Err(io::Error::other("neither a directory nor a block device"));
        }
        let size = match options.size {
            Some(size) => size,
            None => free(&options.path)? / 100 * FREE_PERCENT,
        };
        let file = match direct(
            OpenOptions::new().read(true).write(true).mode(0o600),
            libc::O_TMPFILE,
            &options.path,
        ) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                let name = format!(".weir-{}-{:x}", std::process::id(), kind.ino());
                let path = options.path.join(name);
                let mut open = OpenOptions::new();
                let file =
                    direct(open.read(true).write(true).create_new(true).mode(0o600), 0, &path)?;
                std::fs::remove_file(path)?;
                file
            }
            other => other?,
        };
        allocate(&file, size, &options.path)?;
        Backing::sized(file, size)
    }

    /// Makes a file that stays, of a kept pool's server, and takes its space.
    pub(crate) fn create(path: &Path, size: u64) -> io::Result<Backing> {
        let mut open = OpenOptions::new();
        let file = direct(open.read(true).write(true).create_new(true).mode(0o600), 0, path)?;
        let backing = Backing::sized(file, size)?;
        allocate(&backing.file, size, path)?;
        backing.file.sync_all()?;
        Ok(backing)
    }

    /// Opens a file that stayed.
    pub(crate) fn reopen(path: &Path) -> io::Result<Backing> {
        let file = direct(OpenOptions::new().read(true).write(true), 0, path)?;
        let size = file.metadata()?.len();
        Backing::sized(file, size)
    }

    /// The file once more: to sync what was written.
    pub(crate) fn duplicate(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    fn sized(file: File, size: u64) -> io::Result<Backing> {
        if size < DISK_BYTES_MIN {
            return Err(io::Error::other(format!(
                "{} MiB are too little; a disk has at least {} MiB",
                size >> 20,
                DISK_BYTES_MIN >> 20
            )));
        }
        Ok(Backing { file, blocks: size / BLOCK_BYTES as u64 })
    }

    /// Starts to serve it, to so many event loops.
    pub(crate) fn start(self, engine: Engine, lanes: usize) -> io::Result<Arc<dyn Driven>> {
        if engine == Engine::Auto {
            // Old kernels charge rings to a limit: then loops share as many as there are.
            let first = ring::Lane::new();
            let more = (1..lanes).map_while(|_| ring::Lane::new().ok());
            match first {
                Ok(first) => {
                    let rings = std::iter::once(first).chain(more).collect();
                    return Ok(Arc::new(ring::RingDisk::new(self, rings)));
                }
                Err(error) => warn!(%error, "no io_uring here: threads read and write the disk"),
            }
        }
        Ok(Arc::new(threads::ThreadDisk::new(self, lanes)?))
    }
}

/// Takes a file's space.
fn allocate(file: &File, size: u64, path: &Path) -> io::Result<()> {
    // SAFETY: a valid descriptor of a file of our own.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size as libc::off_t) };
    if result < 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
            return Err(error);
        }
        warn!(path = %path.display(), "space cannot be set aside here: writes may fail");
        file.set_len(size)?;
    }
    Ok(())
}

/// Opens past the page cache, where the file system can.
fn direct(options: &mut OpenOptions, flags: i32, path: &Path) -> io::Result<File> {
    match options.custom_flags(flags | libc::O_DIRECT | libc::O_CLOEXEC).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            warn!(path = %path.display(), "no direct I/O here: the page cache takes memory of its own");
            options.custom_flags(flags | libc::O_CLOEXEC).open(path)
        }
        other => other,
    }
}

/// Free space where a directory is: bytes.
pub fn free(path: &Path) -> io::Result<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all zeros is a valid statvfs.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid path and a valid structure.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.f_bavail * found.f_frsize)
}

/// A counter in the kernel that a poller can wait for.
fn event() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Counts it up.
fn rouse(event: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight valid bytes. A full counter is readable anyway.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
}

fn vectors(request: &DiskRequest) -> Vec<libc::iovec> {
    let vector = |slice: &weir_core::slice::Slice| libc::iovec {
        iov_base: slice.pointer.cast(),
        iov_len: slice.length,
    };
    request.buffers.iter().map(vector).collect()
}

/// Takes `length` bytes off the front.
fn advance(vectors: &mut Vec<libc::iovec>, mut length: usize) {
    let whole = vectors.iter().take_while(|vector| {
        let whole = vector.iov_len <= length;
        length -= if whole { vector.iov_len } else { 0 };
        whole
    });
    let whole = whole.count();
    vectors.drain(..whole);
    if let Some(first) = vectors.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(length);
        first.iov_len -= length;
    }
}

#[cfg(test)]
mod tests;
