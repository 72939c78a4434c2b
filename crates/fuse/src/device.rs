//! The descriptor over which the kernel asks and is answered.

use crate::kernel::ANSWER_HEADER_BYTES;
#[cfg(doc)]
use crate::kernel::Operation;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use weir_core::types::Ino;

/// A message from us that is no answer: pages or attributes of an inode are not true any more.
const NOTIFY_INVALIDATE_INODE: i32 = 2;
/// Another: a name does not lead where it led.
const NOTIFY_INVALIDATE_NAME: i32 = 3;
/// Another: the kernel is to send what it has cached of a file, as a request of its own.
const NOTIFY_RETRIEVE: i32 = 5;
/// Marks numbers of requests that the kernel makes at our wish; its own are counted up from 0.
const AT_OUR_WISH: u64 = 1 << 62;

/// A mount's descriptor. Several threads use it at a time.
#[derive(Debug)]
pub(crate) struct Device(File);

impl Device {
    pub(crate) fn new(descriptor: OwnedFd) -> Device {
        Device(File::from(descriptor))
    }

    /// Waits for a request. None: the mount has ended.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match (&self.0).read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) => {
                    if !again(&error)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Answers a request. An answer that nobody waits for any more is no failure.
    pub(crate) fn answer(&self, unique: u64, error: i32, parts: &[&[u8]]) {
        if let Err(error) = self.send(unique, error, parts) {
            untold(unique, &error);
        }
    }

    /// Tells the kernel something that is no answer.
    fn notify(&self, what: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.send(0, -what, parts)
    }

    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let length = ANSWER_HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = answer_header(unique, error, length);
        let mut slices = [IoSlice::new(&header); 4];
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        (&self.0).write_vectored(&slices[..=parts.len()]).map(drop)
    }

    /// Tells the kernel that its attributes of an inode are not true any more, and its pages from
    /// `offset` on if that is not negative. Fails where nothing is cached.
    pub(crate) fn invalidate(&self, ino: Ino, offset: i64) -> io::Result<()> {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&ino.0.to_ne_bytes());
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        self.notify(NOTIFY_INVALIDATE_INODE, &[&body])
    }

    /// Tells the kernel to forget where a name in a directory leads, and all that is below it and not in use.
    /// Waits for the directory's lock, and so for whoever holds it. Fails where nothing is known of it.
    pub(crate) fn invalidate_name(&self, directory: u64, name: &[u8]) -> io::Result<()> {
        let mut body = [0; 16];
        body[..8].copy_from_slice(&directory.to_ne_bytes());
        body[8..12].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        self.notify(NOTIFY_INVALIDATE_NAME, &[&body, name, &[0]])
    }

    /// Has the kernel make a request on this thread's processor ([`Operation::Provoked`]), with nothing of that
    /// file in it, which is a regular one that a program has open. Does not wait for it.
    pub(crate) fn provoke(&self, file: Ino) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Odd numbers would be those of interrupts.
        let unique = AT_OUR_WISH | COUNT.fetch_add(2, Ordering::Relaxed);
        let mut body = [0; 32];
        body[..8].copy_from_slice(&unique.to_ne_bytes());
        body[8..16].copy_from_slice(&file.0.to_ne_bytes());
        self.notify(NOTIFY_RETRIEVE, &[&body])
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Whether to read on after an error: false when the mount has ended.
pub(crate) fn again(error: &io::Error) -> io::Result<bool> {
    match error.raw_os_error() {
        // A request that was taken back before it was read; a signal.
        Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => Ok(true),
        Some(libc::ENODEV) => Ok(false),
        _ => Err(io::Error::new(error.kind(), error.to_string())),
    }
}

/// The kernel did not take an answer: whoever asked is gone, or the mount.
pub(crate) fn untold(unique: u64, error: &io::Error) {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED) => {}
        _ => tracing::warn!(unique, %error, "answer to the kernel failed"),
    }
}

/// The header of an answer of `length` bytes; `error` is an errno, or 0.
pub(crate) fn answer_header(unique: u64, error: i32, length: usize) -> [u8; ANSWER_HEADER_BYTES] {
    let mut header = [0; ANSWER_HEADER_BYTES];
    header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&(-error).to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}
