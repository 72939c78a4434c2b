//! What two processes of one machine share: memory, and a socket by which either wakes the other and
//! notices its end.

use super::counts::looks_once_more;
use super::memory::{Memory, Ring};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What who connects says first, with the memory's descriptor. The number is that of the memory's format.
const HELLO: &[u8; 8] = b"weirshm1";
/// What wakes the other end.
static BELL: u8 = 1;

/// Which end of a channel this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Who made the memory, and writes the first ring.
    Connects,
    Accepts,
}

/// One end of a connection by shared memory, as far as a [`Poller`](crate::Poller) knows it.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    end: End,
    /// None: the other end has not sent it yet.
    memory: OnceLock<Memory>,
    /// The other end is gone, or broke the rules; what it wrote before may still be in the memory.
    closed: AtomicBool,
    /// Something was sent: an answer will come soon.
    active: AtomicBool,
}

impl Channel {
    pub(crate) fn new(socket: OwnedFd, end: End) -> Channel {
        Channel {
            socket,
            end,
            memory: OnceLock::new(),
            closed: AtomicBool::new(false),
            active: AtomicBool::new(false),
        }
    }

    /// Makes the memory and sends it to the other end.
    pub(crate) fn offer(&self) -> io::Result<()> {
        let (memory, file) = Memory::new()?;
        send_with(self.descriptor(), HELLO, &file)?;
        _ = self.memory.set(memory);
        Ok(())
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The ring that this end writes, once there is one.
    pub(crate) fn outgoing(&self) -> Option<Ring<'_>> {
        Some(self.memory.get()?.ring(usize::from(self.end == End::Accepts)))
    }

    /// The ring that the other end writes, once there is one.
    pub(crate) fn incoming(&self) -> Option<Ring<'_>> {
        Some(self.memory.get()?.ring(usize::from(self.end == End::Connects)))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Wakes the other end.
    pub(crate) fn ring_bell(&self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: one valid byte.
        let count = unsafe { libc::send(self.descriptor(), (&raw const BELL).cast(), 1, flags) };
        if count < 0 {
            match io::Error::last_os_error().kind() {
                // It has bells enough to hear.
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => self.closed.store(true, Ordering::Release),
            }
        }
    }

    /// Takes what came by the socket: the memory, bells, or the end.
    pub(crate) fn hear(&self) {
        while !self.is_closed() {
            let heard = match self.memory.get() {
                Some(_) => {
                    let mut bells = [0u8; 64];
                    let room = bells.as_mut_ptr().cast();
                    // SAFETY: room for so many bytes. Descriptors that come with them are dropped.
                    unsafe { libc::recv(self.descriptor(), room, bells.len(), libc::MSG_DONTWAIT) }
                }
                None => match receive_with(self.descriptor()) {
                    Ok(None) => 0,
                    Ok(Some((hello, file))) => {
                        let memory = file.filter(|_| &hello == HELLO).map(|file| Memory::of(&file));
                        match memory {
                            Some(Ok(memory)) => _ = self.memory.set(memory),
                            _ => self.closed.store(true, Ordering::Release),
                        }
                        continue;
                    }
                    Err(_) => -1,
                },
            };
            match heard {
                1.. => {}
                0 => self.closed.store(true, Ordering::Release),
                _ => match io::Error::last_os_error().kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    _ => self.closed.store(true, Ordering::Release),
                },
            }
        }
    }

    /// Something was sent: whoever waits looks, rather than to be told.
    pub(crate) fn stir(&self) {
        if !self.active.load(Ordering::Relaxed) {
            self.active.store(true, Ordering::Relaxed);
        }
    }

    /// Whether something was sent since this was asked last.
    pub(crate) fn was_stirred(&self) -> bool {
        self.active.load(Ordering::Relaxed) && self.active.swap(false, Ordering::Relaxed)
    }

    /// What can be done now of what is wanted: to receive, to send.
    pub(crate) fn ready(&self, read: bool, write: bool) -> (bool, bool) {
        let readable = read && self.incoming().is_some_and(|ring| ring.counts().has_bytes());
        let writable = write && self.outgoing().is_some_and(|ring| ring.counts().has_room());
        (readable, writable)
    }

    /// From now on the other end rings when something can be done; gives what can be done already.
    pub(crate) fn sleep(&self, read: bool, write: bool) -> (bool, bool) {
        if let Some(ring) = self.incoming().filter(|_| read) {
            ring.counts().reader_sleeps();
        }
        if let Some(ring) = self.outgoing().filter(|_| write) {
            ring.counts().writer_sleeps();
        }
        looks_once_more();
        self.ready(read, write)
    }

    /// From now on this end looks by itself.
    pub(crate) fn look(&self) {
        if let Some(ring) = self.incoming() {
            ring.counts().reader_looks();
        }
        if let Some(ring) = self.outgoing() {
            ring.counts().writer_looks();
        }
    }
}

/// Room for one descriptor beside a message.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// Sends a message with a descriptor.
fn send_with(socket: RawFd, bytes: &[u8], file: &OwnedFd) -> io::Result<()> {
    let mut vector =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 32]);
    let length = size_of::<libc::c_int>() as libc::c_uint;
    // SAFETY: all zeros is a valid msghdr; the control message lies within its room, which is aligned for it.
    let count = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(length) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(length) as _;
        libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(file.as_raw_fd());
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    match usize::try_from(count) {
        Ok(count) if count == bytes.len() => Ok(()),
        // So few bytes go as one, or not at all.
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives a hello, and the descriptor that came with it. None: the end.
fn receive_with(socket: RawFd) -> io::Result<Option<([u8; 8], Option<OwnedFd>)>> {
    let mut hello = [0u8; 8];
    let mut vector = libc::iovec { iov_base: hello.as_mut_ptr().cast(), iov_len: hello.len() };
    let mut control = Control([0; 32]);
    // SAFETY: all zeros is a valid msghdr; what it names has room as stated. A descriptor that the kernel
    // hands over is nobody else's.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<libc::c_int>() as _) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let count = libc::recvmsg(socket, &raw mut message, flags);
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let one = libc::CMSG_LEN(size_of::<libc::c_int>() as _);
        let file = (!header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
            && (*header).cmsg_len as libc::c_uint == one)
            .then(|| {
                let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                OwnedFd::from_raw_fd(data.read_unaligned())
            });
        Ok((count > 0).then_some((hello, file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, Channel) {
        let (left, right) = UnixStream::pair().expect("a pair");
        (left, Channel::new(right.into(), End::Accepts))
    }

    #[test]
    fn who_says_hello_in_another_way_is_not_heard() {
        let (_, file) = Memory::new().expect("memory");
        let null: OwnedFd = std::fs::File::open("/dev/null").expect("opens").into();
        for (hello, file, good) in [
            (&HELLO[..], Some(&file), true),
            (&HELLO[..], Some(&null), false),
            (&HELLO[..], None, false),
            (b"weirshm9", Some(&file), false),
            (b"weir", Some(&file), false),
            (b"", None, false),
        ] {
            let (left, channel) = pair();
            match file {
                Some(file) => send_with(left.as_raw_fd(), hello, file).expect("sent"),
                None => {
                    // SAFETY: so many valid bytes.
                    unsafe { libc::send(left.as_raw_fd(), hello.as_ptr().cast(), hello.len(), 0) };
                }
            }
            if hello.is_empty() {
                drop(left);
            }
            channel.hear();
            assert_eq!(channel.incoming().is_some(), good, "{hello:?}");
            assert_eq!(channel.is_closed(), !good, "{hello:?}");
        }
    }

    #[test]
    fn bells_and_descriptors_that_nobody_asked_for_change_nothing() {
        let (_, file) = Memory::new().expect("memory");
        let (left, channel) = pair();
        send_with(left.as_raw_fd(), HELLO, &file).expect("sent");
        for _ in 0..100 {
            send_with(left.as_raw_fd(), HELLO, &file).expect("sent");
        }
        channel.hear();
        assert!(channel.incoming().is_some() && !channel.is_closed());
        drop(left);
        channel.hear();
        assert!(channel.is_closed());
    }
}
