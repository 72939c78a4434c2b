//! The transport between processes of one machine: memory that both have mapped.
//!
//! Who connects makes the memory, with a ring of bytes each way, and sends it over a Unix socket. After
//! that the socket carries nothing but bells, for who sleeps, and the end. A frame is copied into a ring and
//! out of it again, the one while the other is under way: no system call, and copies that are three times as
//! fast as the kernel's. No end writes anywhere but into its own memory and the rings, so a late one
//! spoils nothing.
//!
//! The socket's name is in the abstract namespace, which is that of a network, as are the addresses: it is
//! made from the address on which the server listens for others. Whoever connects makes sure that
//! the one who listens is the same user, or root.

mod channel;
mod copying;
mod counts;
mod memory;

/// What [`counts`] is made of; its test has another kind.
mod atomic {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

pub use channel::Channel;

use crate::descriptors::moved;
use crate::frames::{FETCHED_AHEAD, Frame, Frames, Incoming, advance, broken, fetch};
use crate::{Link, NoPayload, Payload, Received, Sink, Source};
use channel::End;
use copying::Copying;
use counts::RING_BYTES;
use memory::Ring;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener, UnixStream};
use std::sync::Arc;
use weir_core::error::Result;
use weir_core::slice::Slice;
use weir_core::wire::{HEADER_BYTES, Header};

/// So many bytes are copied before the other end is shown that they are there, and begins with them.
const STEP_BYTES: usize = 64 * 1024;
/// Smaller pieces are copied plainly: bytes. They have lines in common with what lies beside them.
const COLD_BYTES_MIN: usize = 4096;
/// What one call of [`ShmLink::receive`] takes before others get their turn: bytes.
const FAIR_SHARE_BYTES: usize = 4 * 1024 * 1024;
/// A long head must not cost a connection memory for ever: bytes.
const HEAD_BYTES_KEPT: usize = 64 * 1024;

/// The socket's name that belongs to an address.
fn name(address: SocketAddr) -> String {
    format!("weirpool/{address}")
}

/// Over how many of a server's event loops the clients of its own machine are dealt: they need the other
/// processors. Two loops on two processors, one for a program and one for the mount beside it, put each other to sleep
/// with each turn.
pub fn loops(all: usize) -> usize {
    all.div_ceil(2)
}

/// Listens beside the one who listens at that address for others. Accepting does not wait.
pub fn listen(address: SocketAddr) -> io::Result<UnixListener> {
    let name = unix::SocketAddr::from_abstract_name(name(address))?;
    let listener = UnixListener::bind_addr(&name)?;
    listener.set_nonblocking(true)?;
    // SAFETY: a valid socket. Many clients that start together all get in.
    if unsafe { libc::listen(listener.as_raw_fd(), 4096) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(listener)
}

/// Connects, without waiting, to the server of this machine that listens at that address: the link is usable
/// at once. An error: there is none, or it is another user's, or no memory can be shared.
pub fn connect<P: Payload>(address: SocketAddr) -> io::Result<ShmLink<P>> {
    let socket = dial(&name(address)).or_else(|error| {
        // Who listens at all addresses of this machine listens at this one, if it is one of them.
        if !is_own(address.ip()) {
            return Err(error);
        }
        let port = address.port();
        dial(&name((Ipv4Addr::UNSPECIFIED, port).into()))
            .or_else(|_| dial(&name((Ipv6Addr::UNSPECIFIED, port).into())))
    })?;
    let other = credentials(socket.as_raw_fd())?;
    // SAFETY: a plain question.
    if other.uid != 0 && other.uid != unsafe { libc::geteuid() } {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let channel = Channel::new(socket, End::Connects);
    channel.offer()?;
    Ok(ShmLink::with(channel))
}

/// Whether processes of this machine can share memory at all; what hinders them.
pub fn check() -> io::Result<()> {
    let (_left, right) = pair::<NoPayload>()?;
    match right.channel.incoming() {
        Some(_) => Ok(()),
        None => Err(io::Error::other("no memory came over the socket")),
    }
}

/// Two ends of a connection within this process, of which the one that accepts has heard the first words.
fn pair<P: Payload>() -> io::Result<(ShmLink<P>, ShmLink<P>)> {
    // Nobody else has the name as long as the address is ours.
    let reserved = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = reserved.local_addr()?;
    let listener = listen(address)?;
    let left = connect(address)?;
    let right = ShmLink::accepted(listener.accept()?.0)?;
    right.channel.hear();
    Ok((left, right))
}

/// Whether it is an address of this machine's.
fn is_own(address: IpAddr) -> bool {
    // To others nothing can be bound.
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

/// A socket that is connected to the one of that name.
fn dial(name: &str) -> io::Result<OwnedFd> {
    // SAFETY: all zeros is a valid sockaddr_un.
    let mut raw: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays zero: that is what makes it abstract.
    for (to, from) in raw.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor.
    let socket = moved(unsafe { OwnedFd::from_raw_fd(socket) });
    let length = length as libc::socklen_t;
    // SAFETY: `raw` holds an address of that length.
    if unsafe { libc::connect(socket.as_raw_fd(), (&raw const raw).cast(), length) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Who is at the other end of a socket.
fn credentials(socket: RawFd) -> io::Result<libc::ucred> {
    let mut other = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for what is asked.
    let result = unsafe {
        let other = (&raw mut other).cast();
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, other, &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(other) }
}

/// One end of a connection by shared memory.
pub struct ShmLink<P> {
    channel: Arc<Channel>,
    outgoing: Frames<P>,
    /// Bytes that were written to the one ring, and taken from the other.
    written: u64,
    taken: u64,
    copying: Copying,
    incoming: Incoming,
    /// A head that is not all there, or is being understood.
    head: Vec<u8>,
}

// SAFETY: the raw pointers (in frames and slices) name memory that the makers of payloads and placements
// keep valid; they are used under `&mut self` only.
unsafe impl<P: Send> Send for ShmLink<P> {}

impl<P: Payload> ShmLink<P> {
    /// A connection that a listener of [`listen`] accepted.
    pub fn accepted(stream: UnixStream) -> io::Result<ShmLink<P>> {
        stream.set_nonblocking(true)?;
        Ok(ShmLink::with(Channel::new(moved(OwnedFd::from(stream)), End::Accepts)))
    }

    fn with(channel: Channel) -> ShmLink<P> {
        ShmLink {
            channel: Arc::new(channel),
            outgoing: Frames::new(),
            written: 0,
            taken: 0,
            copying: Copying::new(),
            incoming: Incoming::Head,
            head: Vec::new(),
        }
    }

    /// Copies queued frames into the ring, as far as there is room.
    fn write(&mut self, ring: &Ring<'_>) -> io::Result<()> {
        let mut room = ring.room(self.written)?;
        let mut shown = self.written;
        let mut rung = false;
        while let Some(frame) = self.outgoing.queue.front_mut() {
            while let Some(rest) = frame.rest() {
                if room == 0 {
                    room = ring.room(self.written)?;
                    if room == 0 {
                        return Ok(());
                    }
                }
                if frame.list
                    && let Some(soon) = ahead(frame)
                {
                    fetch(soon);
                }
                let part = rest.part(0, rest.length.min(room).min(STEP_BYTES));
                // SAFETY: there is room; whoever made the payload keeps its memory valid until it is sent.
                unsafe { ring.put(self.written, part, &mut self.copying) };
                self.written += part.length as u64;
                room -= part.length;
                self.outgoing.unsent -= part.length;
                frame.advance(part.length);
                if self.written - shown >= STEP_BYTES as u64 {
                    shown = self.written;
                    // Who sleeps is rung now, to begin while this goes on, and at the end. In between it would
                    // be each time that it has caught up: where both share a processor, who is woken
                    // takes it at once, and for 1 MiB they change places sixteen times.
                    if rung {
                        ring.counts().show_more(shown);
                    } else if ring.counts().show_written(shown) {
                        self.channel.ring_bell();
                        rung = true;
                    }
                }
            }
            self.outgoing.queue.pop_front();
        }
        Ok(())
    }

    /// Takes frames from the ring. Gives whether it is to be gone on with.
    fn read(&mut self, ring: &Ring<'_>, sink: &mut dyn Sink) -> Result<Received> {
        let start = self.taken;
        let mut shown = self.taken;
        let mut filled = 0;
        loop {
            if filled == 0 {
                filled = ring.filled(self.taken).map_err(|error| broken(&error))?;
                if filled == 0 {
                    return Ok(Received::Drained);
                }
                if self.taken - start >= FAIR_SHARE_BYTES as u64 {
                    return Ok(Received::More);
                }
            }
            let count = match &mut self.incoming {
                Incoming::Head => {
                    let have = self.head.len();
                    let lacks = lacking(&self.head)?;
                    let count = lacks.min(filled);
                    self.head.reserve(count);
                    // SAFETY: there are so many, and room for them.
                    unsafe {
                        let pointer = self.head.as_mut_ptr().add(have);
                        ring.take(self.taken, Slice { pointer, length: count }, false);
                        self.head.set_len(have + count);
                    }
                    count
                }
                Incoming::Discard { left } => (*left).min(filled).min(STEP_BYTES),
                Incoming::Payload { slices, first, cold, .. } => {
                    if let Some(soon) = slices.get(*first + FETCHED_AHEAD)
                        && soon.length < STEP_BYTES
                    {
                        fetch(*soon);
                    }
                    let slice = slices[*first];
                    let place = slice.part(0, slice.length.min(filled).min(STEP_BYTES));
                    // SAFETY: there are so many; whoever placed the payload keeps its memory valid.
                    unsafe {
                        ring.take(self.taken, place, *cold && place.length >= COLD_BYTES_MIN)
                    };
                    advance(slices, first, place.length);
                    place.length
                }
            };
            self.taken += count as u64;
            filled -= count;
            if self.taken - shown >= STEP_BYTES as u64 {
                shown = self.taken;
                if ring.counts().show_taken(shown) {
                    self.channel.ring_bell();
                }
            }
            self.understand(count, sink)?;
        }
    }

    /// `count` more bytes of what comes in are where they belong.
    fn understand(&mut self, count: usize, sink: &mut dyn Sink) -> Result<()> {
        match &mut self.incoming {
            Incoming::Head => {
                if lacking(&self.head)? > 0 {
                    return Ok(());
                }
                let Some((bytes, body)) = self.head.split_first_chunk::<HEADER_BYTES>() else {
                    return Ok(());
                };
                let header = Header::decode(bytes)?;
                let placement = sink.head(header, body)?;
                self.head.clear();
                self.head.shrink_to(HEAD_BYTES_KEPT);
                let incoming = Incoming::behind(header.payload_length as usize, placement)?;
                self.incoming = incoming;
                Ok(())
            }
            Incoming::Discard { left } | Incoming::Payload { left, .. } => {
                *left -= count;
                if *left == 0 {
                    self.incoming = Incoming::Head;
                    sink.payload()?;
                }
                Ok(())
            }
        }
    }
}

/// A small slice of a list that goes some time after the next one.
fn ahead<P>(frame: &Frame<P>) -> Option<Slice> {
    let row = frame.row(frame.next.row)?;
    let slice = row
        .get(frame.next.slice + FETCHED_AHEAD)
        .or_else(|| Some(frame.row(frame.next.row + FETCHED_AHEAD)?.first))?;
    (slice.length < STEP_BYTES).then_some(slice)
}

/// How many bytes a head lacks, as far as is known.
fn lacking(head: &[u8]) -> Result<usize> {
    match head.split_first_chunk::<HEADER_BYTES>() {
        None => Ok(HEADER_BYTES - head.len()),
        Some((bytes, body)) => Ok(Header::decode(bytes)?.body_length as usize - body.len()),
    }
}

impl<P: Payload> Link<P> for ShmLink<P> {
    fn connected(&self) -> io::Result<()> {
        Ok(())
    }

    fn peer(&self) -> String {
        match credentials(self.channel.descriptor()) {
            Ok(other) => format!("process {} of user {}", other.pid, other.uid),
            Err(error) => error.to_string(),
        }
    }

    fn send(&mut self, head: Vec<u8>, payload: Option<P>) {
        self.outgoing.push(Frame::new(head, payload));
    }

    fn flush(&mut self) -> io::Result<usize> {
        if self.channel.is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let channel = self.channel.clone();
        let Some(ring) = channel.outgoing() else {
            return Ok(0);
        };
        let before = self.written;
        let result = self.write(&ring);
        if ring.counts().show_written(self.written) {
            channel.ring_bell();
        }
        channel.stir();
        result.map(|()| (self.written - before) as usize)
    }

    fn unsent(&self) -> usize {
        self.outgoing.unsent
    }

    fn sending(&self, matches: &dyn Fn(&P) -> bool) -> bool {
        self.outgoing.sending(matches)
    }

    fn next(&self) -> Option<&P> {
        self.outgoing.next()
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<(Received, usize)> {
        let channel = self.channel.clone();
        let before = self.taken;
        loop {
            // Asked first: what was written before the end is there when the end is.
            let closed = channel.is_closed();
            if let Some(ring) = channel.incoming() {
                let result = self.read(&ring, sink);
                if ring.counts().show_taken(self.taken) {
                    channel.ring_bell();
                }
                let received = result?;
                let moved = (self.taken - before) as usize;
                if moved > 0 || received == Received::More {
                    return Ok((received, moved));
                }
            }
            if closed {
                return Ok((Received::Closed, 0));
            }
            let had = channel.incoming().is_some();
            channel.hear();
            if had == channel.incoming().is_some() && !channel.is_closed() {
                return Ok((Received::Drained, 0));
            }
        }
    }

    fn source(&self) -> Source<'_> {
        Source { descriptor: self.channel.descriptor(), channel: Some(&self.channel) }
    }
}

const _: () = assert!(STEP_BYTES <= RING_BYTES / 2);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use weir_core::slice::Row;
    use weir_core::wire::{self, Kind};

    struct Whole(Vec<u8>);

    impl Payload for Whole {
        fn rows(&self, into: &mut Vec<Row>) {
            into.push(Slice::to_read(&self.0).into());
        }
    }

    #[test]
    fn who_sleeps_whenever_it_has_caught_up_is_not_rung_for_each_step() {
        let (mut left, right) = pair::<Whole>().expect("a pair");
        let bytes = RING_BYTES - STEP_BYTES;
        let header = Header {
            kind: Kind::Write,
            slot: 0,
            sequence: 1,
            body_length: 0,
            payload_length: bytes as u32,
        };
        left.send(wire::frame(header, &[]), Some(Whole(vec![1; bytes])));
        let over = AtomicBool::new(false);
        let flushed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    right.channel.incoming().expect("memory").counts().reader_sleeps();
                }
            });
            let flushed = left.flush();
            over.store(true, Ordering::Relaxed);
            flushed
        });
        assert!(flushed.expect("flushes") > bytes);
        let mut bells = [0u8; 64];
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: room for so many bytes.
        let count = unsafe {
            libc::recv(right.channel.descriptor(), bells.as_mut_ptr().cast(), bells.len(), flags)
        };
        assert!((1..=2).contains(&count), "{count} bells for {} steps", bytes / STEP_BYTES);
    }
}
