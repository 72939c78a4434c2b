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
mod memory;

pub use channel::Channel;

use crate::descriptors::moved;
use crate::frames::{FETCHED_AHEAD, Frame, Frames, Incoming, advance, fetch};
use crate::{Link, NoPayload, Payload, Received, Sink, Source};
use channel::End;
use memory::{RING_BYTES, Ring};
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_core::error::{Code, Error, Result};
use weir_core::slice::Slice;
use weir_core::wire::{HEADER_BYTES, Header};

/// So many bytes are copied before the other end is shown that they are there, and begins with them.
const STEP_BYTES: usize = 64 * 1024;
/// What one call of [`ShmLink::receive`] takes before others get their turn: bytes.
const FAIR_SHARE_BYTES: usize = 4 * 1024 * 1024;
/// A long head must not cost a connection memory for ever: bytes.
const HEAD_BYTES_KEPT: usize = 64 * 1024;

/// The socket's name that belongs to an address.
fn name(address: SocketAddr) -> String {
    format!("weirpool/{address}")
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
    if !can_populate() {
        return Err(io::ErrorKind::Unsupported.into());
    }
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
    GUARDED.store(true, Ordering::Relaxed);
    Ok(ShmLink::with(channel, true))
}

/// Whether processes of this machine can share memory at all; what hinders them.
pub fn check() -> io::Result<()> {
    // Nobody else has the name as long as the address is ours.
    let reserved = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = reserved.local_addr()?;
    let listener = listen(address)?;
    let _left = connect::<NoPayload>(address)?;
    let right = ShmLink::<NoPayload>::accepted(listener.accept()?.0)?;
    right.channel.hear();
    match right.channel.incoming() {
        Some(_) => Ok(()),
        None => Err(io::Error::other("no memory came over the socket")),
    }
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
    incoming: Incoming,
    /// A head that is not all there, or is being understood.
    head: Vec<u8>,
    /// Payloads' memory is a program's: whether it is all there is asked before it is touched.
    guarded: bool,
}

// SAFETY: the raw pointers (in frames and slices) name memory that the makers of payloads and placements
// keep valid; they are used under `&mut self` only.
unsafe impl<P: Send> Send for ShmLink<P> {}

impl<P: Payload> ShmLink<P> {
    /// A connection that a listener of [`listen`] accepted.
    pub fn accepted(stream: UnixStream) -> io::Result<ShmLink<P>> {
        stream.set_nonblocking(true)?;
        Ok(ShmLink::with(Channel::new(moved(OwnedFd::from(stream)), End::Accepts), false))
    }

    fn with(channel: Channel, guarded: bool) -> ShmLink<P> {
        ShmLink {
            channel: Arc::new(channel),
            outgoing: Frames::new(),
            written: 0,
            taken: 0,
            incoming: Incoming::Head,
            head: Vec::new(),
            guarded,
        }
    }

    /// Copies queued frames into the ring, as far as there is room.
    fn write(&mut self, ring: &Ring<'_>) -> io::Result<()> {
        let mut room = ring.room(self.written)?;
        let mut shown = self.written;
        while let Some(frame) = self.outgoing.queue.front_mut() {
            let begins = frame.next.row == 0 && frame.gone == 0;
            if begins
                && self.guarded
                && frame.payload.as_ref().is_some_and(|payload| !payload.is_steady())
            {
                let slices = frame.rows.iter().flat_map(|row| row.slices());
                touch(slices, libc::MADV_POPULATE_READ)?;
            }
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
                unsafe { ring.put(self.written, part) };
                self.written += part.length as u64;
                room -= part.length;
                self.outgoing.unsent -= part.length;
                frame.advance(part.length);
                if self.written - shown >= STEP_BYTES as u64 {
                    shown = self.written;
                    if ring.show_written(shown) {
                        self.channel.ring_bell();
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
                        ring.take(self.taken, Slice { pointer, length: count });
                        self.head.set_len(have + count);
                    }
                    count
                }
                Incoming::Discard { left } => (*left).min(filled).min(STEP_BYTES),
                Incoming::Payload { slices, first, .. } => {
                    if let Some(soon) = slices.get(*first + FETCHED_AHEAD)
                        && soon.length < STEP_BYTES
                    {
                        fetch(*soon);
                    }
                    let slice = slices[*first];
                    let place = slice.part(0, slice.length.min(filled).min(STEP_BYTES));
                    // SAFETY: there are so many; whoever placed the payload keeps its memory valid.
                    unsafe { ring.take(self.taken, place) };
                    advance(slices, first, place.length);
                    place.length
                }
            };
            self.taken += count as u64;
            filled -= count;
            if self.taken - shown >= STEP_BYTES as u64 {
                shown = self.taken;
                if ring.show_taken(shown) {
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
                if let Incoming::Payload { slices, .. } = &self.incoming
                    && self.guarded
                {
                    touch(slices.iter().copied(), libc::MADV_POPULATE_WRITE)
                        .map_err(|error| broken(&error))?;
                }
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

/// Pages of which each is asked about. Of more it would take twice as long as to copy them.
const NEAR: usize = 4;

/// Makes sure that memory is there and may be used so, as the kernel does when it copies. Slices whose pages
/// follow on each other are asked about together; of many pages it is the first, the last, and that there is no
/// hole between them.
fn touch(slices: impl Iterator<Item = Slice>, how: libc::c_int) -> io::Result<()> {
    let page = page_bytes();
    let mut run: Option<(usize, usize)> = None;
    for slice in slices.filter(|slice| slice.length > 0) {
        let (start, length) = (slice.pointer.addr(), slice.length);
        let end = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(page));
        let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        let start = start & !(page - 1);
        match &mut run {
            Some((from, to)) if (*from..=*to).contains(&start) => *to = end.max(*to),
            _ => {
                if let Some((from, to)) = run.replace((start, end)) {
                    populate(from, to, how)?;
                }
            }
        }
    }
    run.map_or(Ok(()), |(from, to)| populate(from, to, how))
}

thread_local! {
    /// See [`Known`].
    static KNOWN: Cell<(usize, usize, libc::c_int)> = const { Cell::new((0, 0, 0)) };
}

/// Memory of which somebody else has made sure: as long as this lives, this thread's links do not ask.
#[derive(Debug)]
pub struct Known(());

impl Known {
    /// Pages from one address to another were asked for, as `how` of madvise says: all of them are there.
    pub fn new(start: usize, end: usize, how: libc::c_int) -> Known {
        KNOWN.set((start, end, how));
        Known(())
    }

    /// Memory that is our own.
    pub fn own(slice: Slice) -> Known {
        let page = page_bytes();
        let start = slice.pointer.addr();
        Known::new(start & !(page - 1), (start + slice.length).next_multiple_of(page), FOR_ALL)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        KNOWN.set((0, 0, 0));
    }
}

/// Whether any link of this process asks whether memory is there.
pub fn is_asked_about() -> bool {
    GUARDED.load(Ordering::Relaxed)
}

/// To be read and to be written: no advice of the kernel's.
const FOR_ALL: libc::c_int = -1;

static GUARDED: AtomicBool = AtomicBool::new(false);

/// The same for pages from one address to another.
fn populate(start: usize, end: usize, how: libc::c_int) -> io::Result<()> {
    let (page, length) = (page_bytes(), end - start);
    let within = |(from, to, asked): (usize, usize, libc::c_int)| {
        from <= start && end <= to && (asked == how || asked == FOR_ALL)
    };
    if KNOWN.try_with(Cell::get).is_ok_and(within) {
        return Ok(());
    }
    if length <= NEAR * page {
        // One question is cheaper than three.
        return asked(start, length, |start, length| {
            // SAFETY: it changes nothing that can be seen, whatever the address.
            unsafe { libc::madvise(start, length, how) }
        });
    }
    populate_page(start, how)?;
    populate_page(start + length - page, how)?;
    asked(start, length, |start, length| {
        // SAFETY: it tells whether there is a hole, and does nothing.
        unsafe { libc::msync(start, length, libc::MS_ASYNC) }
    })
}

fn populate_page(start: usize, how: libc::c_int) -> io::Result<()> {
    asked(start, page_bytes(), |start, length| {
        // SAFETY: as above.
        unsafe { libc::madvise(start, length, how) }
    })
}

/// Asks the kernel about memory, until it answers.
fn asked(
    start: usize,
    length: usize,
    ask: impl Fn(*mut libc::c_void, usize) -> libc::c_int,
) -> io::Result<()> {
    loop {
        if ask(std::ptr::without_provenance_mut(start), length) == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // What it says of memory that is not there, cannot be read, or lies behind a file's end.
            Some(libc::ENOMEM | libc::EFAULT | libc::EINVAL) => {
                return Err(io::Error::from_raw_os_error(libc::EFAULT));
            }
            _ => return Err(error),
        }
    }
}

fn page_bytes() -> usize {
    // SAFETY: a plain question, answered without the kernel.
    unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
}

/// Whether the kernel can say so at all (Linux 5.14).
fn can_populate() -> bool {
    let here = 0u8;
    touch([Slice::to_read(std::slice::from_ref(&here))].into_iter(), libc::MADV_POPULATE_READ)
        .is_ok()
}

fn broken(error: &io::Error) -> Error {
    let code = match error.raw_os_error() {
        Some(libc::EFAULT) => Code::BadAddress,
        _ => Code::ServerLost,
    };
    Error::because(code, format!("connection broke: {error}"))
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
        if ring.show_written(self.written) {
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
                if ring.show_taken(self.taken) {
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

    #[test]
    fn pieces_of_memory_are_there_as_far_as_they_are_mapped() {
        let page = page_bytes();
        let (count, hole) = (64, 40);
        // SAFETY: fresh memory, and a page of it that nobody uses.
        let start = unsafe {
            let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(std::ptr::null_mut(), count * page, access, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::munmap(start.wrapping_byte_add(hole * page), page), 0);
            start.cast::<u8>()
        };
        let slice = |at, length| Slice { pointer: start.wrapping_add(at), length };
        let read = |slices: &[Slice]| touch(slices.iter().copied(), libc::MADV_POPULATE_READ);
        let pieces = |from: usize, to: usize, step: usize| {
            (from..to).step_by(step).map(|at| slice(at, 100)).collect::<Vec<_>>()
        };
        assert!(read(&[]).is_ok());
        assert!(read(&[slice(0, hole * page)]).is_ok());
        assert!(
            read(&[slice(5, 0), slice(hole * page, 0)]).is_ok(),
            "nothing of what is not there"
        );
        assert!(read(&pieces(0, hole * page, 512)).is_ok());
        assert!(read(&pieces(page / 2, count * page, 8 * page)).is_err(), "one piece in the hole");
        assert!(read(&pieces(page, count * page, 2 * page)).is_ok(), "none of them in the hole");
        for slices in [
            vec![slice(0, count * page)],
            vec![slice(0, hole * page + 1)],
            vec![slice(hole * page - 1, 2)],
            pieces(0, count * page, 512),
            vec![slice((hole + 1) * page, page), slice(hole * page, 1), slice(0, page)],
            vec![Slice { pointer: std::ptr::without_provenance_mut(usize::MAX - 5), length: 100 }],
        ] {
            let error = read(&slices).expect_err("a hole");
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{slices:?}");
        }
        let written = touch([slice(0, 1)].into_iter(), libc::MADV_POPULATE_WRITE);
        assert_eq!(written.expect_err("read-only").raw_os_error(), Some(libc::EFAULT));
        let _known = Known::own(slice(0, page));
        assert!(touch([slice(0, 1)].into_iter(), libc::MADV_POPULATE_WRITE).is_ok(), "known");
    }
}
