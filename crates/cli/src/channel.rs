//! Lines of JSON between `weir` and the processes that it starts for itself.

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Longest line: bytes. A report on many files is long.
const LINE_BYTES_MAX: usize = 256 << 20;

/// One end. The other one's death is its end of file.
pub(crate) struct Channel {
    stream: UnixStream,
    unread: Vec<u8>,
}

impl Channel {
    /// Starts `weir WORD` with a channel to it.
    pub(crate) fn start(
        word: &str,
        prepare: impl FnOnce(&mut Command),
    ) -> Outcome<(Child, Channel)> {
        let failed =
            |cause: std::io::Error| Failure::system("start", format!("weir {word}"), cause);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let number = theirs.as_raw_fd();
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg(word).arg(number.to_string());
        // SAFETY: only a system call, on a descriptor that is open in parent and child.
        unsafe {
            command.pre_exec(move || match libc::fcntl(number, libc::F_SETFD, 0) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        };
        prepare(&mut command);
        let child = command.spawn().map_err(failed)?;
        Ok((child, Channel { stream: ours, unread: Vec::new() }))
    }

    /// The end that a process was started with.
    pub(crate) fn inherited(descriptor: i32) -> Outcome<Channel> {
        let wrong =
            || Failure::usage("this command is a part of weir itself and takes no part alone");
        // SAFETY: sets a flag of a number that may or may not be a descriptor.
        let closes = unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        if descriptor < 3 || closes != 0 {
            return Err(wrong());
        }
        // SAFETY: it is open, and whoever started us left it to us.
        let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        stream.peer_addr().map_err(|_| wrong())?;
        Ok(Channel { stream, unread: Vec::new() })
    }

    /// Whether a message is here already, which no poll tells of.
    pub(crate) fn has_message(&self) -> bool {
        self.unread.contains(&b'\n')
    }

    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Outcome<()> {
        let mut line = serde_json::to_vec(message)
            .map_err(|error| Failure::system("send", "a message", error))?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(|error| Failure::system("send", "a message", error))
    }

    /// Waits for a message; `None`: the other end is gone.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Outcome<Option<T>> {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|error| Failure::system("receive", "a message", error));
            }
            let mut bytes = [0; 64 * 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(None),
            }
            if self.unread.len() > LINE_BYTES_MAX {
                return Err(Failure::say("receive a message: it has no end"));
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
