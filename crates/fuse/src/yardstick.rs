//! What a mount could do at best: one that keeps its only file in its own memory.
//!
//! The kernel's part is the same as of a pool's mount (requests, threads at the device, direct I/O), and behind
//! it is nothing but one copy of what is written, and none of what is read. For benchmarks.

use crate::device::Device;
use crate::kernel::{Header, Operation, fopen, init};
use crate::mounting;
use crate::reply::{Errno, Reply};
use crate::workers::{self, Inbox};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_core::copying::{copy, copy_past_caches, settle};
use weir_core::types::{Attributes, FileKind, Ino, WallTime};

/// Threads that wait at the device, as many as a pool's mount has there.
const THREADS: usize = workers::WAITING_MAX;
/// So many bytes are copied past the caches, as servers do: most of the file is in none.
const COLD_BYTES_MIN: usize = 64 * 1024;
/// The file's number, whatever its name.
const FILE: Ino = Ino(2);

/// A mount at work. Dropping it unmounts it.
pub struct Yardstick {
    directory: PathBuf,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// The file, if there is one: what it has room for, and how much was written.
struct Content {
    bytes: RwLock<(Vec<u8>, usize)>,
}

impl Yardstick {
    /// Mounts at a directory, with memory for a file of so many bytes.
    ///
    /// # Errors
    /// If there is no FUSE, or it is forbidden.
    pub fn mount(directory: &Path, bytes: usize) -> io::Result<Yardstick> {
        let directory = directory.canonicalize()?;
        let device = Arc::new(Device::new(mounting::mount(&directory, false)?));
        // From here on dropping it unmounts.
        let mut yardstick = Yardstick { directory, threads: Vec::new() };
        let wishes = init::ASYNC_READ | init::BIG_WRITES | init::MAX_PAGES;
        workers::begin(wishes, &device, None)?;
        let content = Arc::new(Content { bytes: RwLock::new((vec![0; bytes], 0)) });
        for _ in 0..THREADS {
            let (device, content) = (device.clone(), content.clone());
            let run = move || content.serve(&device);
            yardstick.threads.push(std::thread::Builder::new().spawn(run)?);
        }
        Ok(yardstick)
    }
}

impl Drop for Yardstick {
    fn drop(&mut self) {
        // Best effort: there is nobody left to tell.
        if mounting::take_away(&self.directory).is_ok() {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

impl Content {
    fn read(&self) -> RwLockReadGuard<'_, (Vec<u8>, usize)> {
        // Nothing below panics.
        self.bytes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, (Vec<u8>, usize)> {
        self.bytes.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, device: &Arc<Device>) -> io::Result<()> {
        let mut inbox = Inbox::new()?;
        while let Some(length) = device.receive(inbox.room())? {
            let message = &inbox.room()[..length];
            match workers::understand(message) {
                Ok((header, operation)) => {
                    self.answer(&header, &operation, Reply::new(device, header.unique));
                }
                Err(Some(unique)) => Reply::new(device, unique).error(Errno::EIO),
                Err(None) => {}
            }
        }
        Ok(())
    }

    fn attributes(&self, ino: Ino) -> Attributes {
        let (kind, mode, size) = match ino {
            Ino::ROOT => (FileKind::Directory, 0o700, 0),
            _ => (FileKind::Regular, 0o600, self.read().1 as u64),
        };
        // SAFETY: these two cannot fail and take nothing.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let never = WallTime(0);
        Attributes {
            ino,
            kind,
            mode,
            uid,
            gid,
            nlink: 1,
            size,
            allocated: size,
            rdev: 0,
            atime: never,
            mtime: never,
            ctime: never,
            data_epoch: 0,
        }
    }

    fn answer(&self, header: &Header, operation: &Operation<'_>, reply: Reply) {
        let believed = Duration::ZERO;
        let treatment = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        match operation {
            Operation::Forget { .. } | Operation::ForgetMany { .. } => reply.none(),
            Operation::Lookup { .. } => reply.error(Errno(libc::ENOENT)),
            Operation::Attributes | Operation::SetAttributes(_) => {
                reply.attributes(&self.attributes(header.ino), believed);
            }
            Operation::Create { .. } => {
                reply.created(&self.attributes(FILE), believed, 1, treatment);
            }
            Operation::Unlink { .. } | Operation::Flush { .. } | Operation::Release { .. } => {
                reply.ok();
            }
            Operation::Read(read) => {
                let content = self.read();
                let end = content.1.min((read.offset + u64::from(read.size)) as usize);
                reply.data(&content.0[end.min(read.offset as usize)..end]);
            }
            Operation::Write { write, data } => {
                let mut content = self.write();
                let (at, end) = (write.offset as usize, write.offset as usize + data.len());
                let Some(place) = content.0.get_mut(at..end) else {
                    return reply.error(Errno(libc::ENOSPC));
                };
                let copy = if data.len() < COLD_BYTES_MIN { copy } else { copy_past_caches };
                // SAFETY: two places of this length.
                unsafe { copy(data.as_ptr(), place.as_mut_ptr(), data.len()) };
                settle();
                content.1 = content.1.max(end);
                reply.written(data.len() as u32);
            }
            _ => reply.error(Errno::ENOSYS),
        }
    }
}
