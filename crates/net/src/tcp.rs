//! The TCP transport: sockets, and no copy in user space for large payloads.

use crate::descriptors::moved;
use crate::frames::{
    FETCHED_AHEAD, FEW_SLICES, Frame, Frames, Incoming, Place, advance, broken, fetch,
};
use crate::{Link, Payload, Received, Sink, Source};
use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use weir_core::config::BODY_BYTES_MAX;
use weir_core::copying::copy;
use weir_core::error::{Code, Error, Result};
use weir_core::slice::{Row, Slice};
use weir_core::wire::{HEADER_BYTES, Header};

/// What is received ahead, not knowing yet what it is. Small payloads arrive with their head in
/// one system call and are copied out of here; of a large payload at most this much is copied, and
/// the rest received straight into its place.
const AHEAD_BYTES: usize = 4 * 1024 + 512;
/// What one call of [`TcpLink::receive`] takes before others get their turn: bytes.
const FAIR_SHARE_BYTES: usize = 4 * 1024 * 1024;
/// Pieces of memory named in one system call.
const SLICES_MAX: usize = 256;
/// A list's slices shorter than this go through a buffer, side by side: to name one to the kernel
/// costs more than to copy it. Bytes.
const SMALL_BYTES: usize = 1024;
/// That buffer, a thread's: bytes. Whoever receives is woken by each call's bytes, and where processors
/// are shared takes the one of him who copies: with 64 KiB they took turns sixteen times a MiB.
const STAGED_BYTES: usize = 512 * 1024;
/// As much of it is received in one call: with more of it the copies from there were of memory that
/// had left the processor's own cache. Bytes.
const RECEIVED_BYTES: usize = 256 * 1024;
/// Frames gathered into one system call.
const FRAMES_PER_CALL_MAX: usize = 16;

/// Connects without waiting: the link is usable once its descriptor is writable and
/// [`TcpLink::connected`] says so.
pub fn connect<P: Payload>(address: SocketAddr) -> io::Result<TcpLink<P>> {
    TcpLink::new(start(address, libc::SOCK_NONBLOCK)?)
}

/// Connects and waits for it: a plain stream, set up as those of links are, for whatever is to be
/// compared with them.
pub fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = start(address, 0)?;
    configure(&stream)?;
    Ok(stream)
}

/// A socket that connects, or has if `flags` let it wait for that.
fn start(address: SocketAddr, flags: libc::c_int) -> io::Result<TcpStream> {
    let (domain, storage, length) = raw_address(address);
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags;
    // SAFETY: no pointers.
    let descriptor = unsafe { libc::socket(domain, kind, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor.
    let socket = moved(unsafe { OwnedFd::from_raw_fd(descriptor) });
    choose_control(socket.as_raw_fd());
    // SAFETY: `storage` holds an address of `length` bytes.
    let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const storage).cast(), length) };
    if result < 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINPROGRESS) {
            return Err(error);
        }
    }
    Ok(TcpStream::from(socket))
}

/// Has a socket control congestion as is right in a machine room. To be said before it connects or
/// listens (what a listener accepts takes after it): some machines come with BBR, which paces for
/// the long-distance Internet, and a connection that once began with it is paced for ever, whatever
/// it is told later. Over loopback that was half of the rate, or 50 µs without a byte in each MiB.
/// Where the kernel has not got cubic, its own choice stays.
fn choose_control(socket: RawFd) {
    let name = b"cubic";
    // SAFETY: a name of that length; the kernel checks the descriptor.
    unsafe {
        libc::setsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        );
    }
}

fn raw_address(address: SocketAddr) -> (libc::c_int, libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is large enough and aligned for every address family.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            (libc::AF_INET, storage, size_of::<libc::sockaddr_in>() as libc::socklen_t)
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            (libc::AF_INET6, storage, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
        }
    }
}

/// Finds the address behind `host:port`.
pub fn resolve(name: &str) -> Result<SocketAddr> {
    let bad = |cause: String| Error::because(Code::Invalid, cause).on("resolve", name);
    name.to_socket_addrs()
        .map_err(|error| bad(format!("{error}; expected host:port")))?
        .next()
        .ok_or_else(|| bad("no such host".to_owned()))
}

/// Sets a connection up for a machine room: for links, and for whatever is to be compared with them.
/// It is one that [`dial`] made, or that a listener of [`listen`] accepted.
pub fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    set_option(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    // A peer host that vanished is noticed in about two minutes, even where nobody waits.
    set_option(stream, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60)?;
    set_option(stream, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 15)?;
    set_option(stream, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4)?;
    Ok(())
}

/// Listens; accepting waits unless the caller says otherwise.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    // The standard library listens with a backlog of 128 at most; listening again widens it, so
    // that a thousand clients that start together all get in.
    let listener = TcpListener::bind(address)?;
    choose_control(listener.as_raw_fd());
    // SAFETY: a valid socket.
    if unsafe { libc::listen(listener.as_raw_fd(), 4096) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(listener)
}

/// Names what is left of a frame for one system call, small slices of a list by their copies in `staged`.
/// Gives how many bytes that is, and whether it is all.
fn name<P>(
    frame: &Frame<P>,
    vectors: &mut Vec<libc::iovec>,
    staged: &mut Vec<u8>,
) -> (usize, bool) {
    let Place { row: mut index, mut slice } = frame.next;
    let mut gone = frame.gone;
    let mut named = 0;
    while let Some(row) = frame.row(index) {
        while let Some(next) = row.get(slice) {
            let mut part = next.part(gone, next.length - gone);
            // What has gone in part is by itframe.
            let count = if gone == 0 { row.count - slice } else { 1 };
            (gone, slice) = (0, slice + 1);
            if part.length == 0 {
                continue;
            }
            // The head has its own place in the call: beside it a list of STAGED_BYTES would not go as one.
            if frame.list && index > 0 && part.length < SMALL_BYTES {
                let after = if row.count > 1 { index } else { index + FETCHED_AHEAD - 1 };
                let row = Row { first: part, count, ..row };
                // SAFETY: whoever made the payload keeps its memory valid until it is sent.
                let copies = unsafe { stage(staged, row, frame.rows.get(after)) };
                if copies.length == 0 {
                    return (named, false);
                }
                slice += copies.length / part.length - 1;
                part = copies;
            }
            let (iov_base, iov_len) = (part.pointer.cast(), part.length);
            let full = vectors.len() == SLICES_MAX;
            match vectors.last_mut() {
                Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == iov_base => {
                    last.iov_len += iov_len;
                }
                _ if full => return (named, false),
                _ => vectors.push(libc::iovec { iov_base, iov_len }),
            }
            named += iov_len;
        }
        (index, slice) = (index + 1, 0);
    }
    (named, true)
}

/// One end of a TCP connection.
pub struct TcpLink<P> {
    stream: TcpStream,
    outgoing: Frames<P>,
    incoming: Incoming,
    /// Received and not yet understood: `ahead[start..end]`.
    ahead: Vec<u8>,
    start: usize,
    end: usize,
    scratch: Vec<libc::iovec>,
}

// SAFETY: the raw pointers (in slices and `scratch`) name memory that the makers of payloads and
// placements keep valid; they are used under `&mut self` only.
unsafe impl<P: Send> Send for TcpLink<P> {}

impl<P: Payload> TcpLink<P> {
    /// Wraps a connected, or connecting, socket.
    pub fn new(stream: TcpStream) -> io::Result<TcpLink<P>> {
        stream.set_nonblocking(true)?;
        configure(&stream)?;
        Ok(TcpLink {
            stream,
            outgoing: Frames::new(),
            incoming: Incoming::Head,
            ahead: vec![0; AHEAD_BYTES],
            start: 0,
            end: 0,
            scratch: Vec::new(),
        })
    }

    /// Understands as many frames as are in `ahead`. Gives false if a head is incomplete.
    fn digest(&mut self, sink: &mut dyn Sink) -> Result<()> {
        loop {
            match &mut self.incoming {
                Incoming::Head => {
                    let have = &self.ahead[self.start..self.end];
                    let Some((bytes, rest)) = have.split_first_chunk::<HEADER_BYTES>() else {
                        return Ok(());
                    };
                    let header = Header::decode(bytes)?;
                    let body_length = header.body_length as usize;
                    if rest.len() < body_length {
                        self.make_room(HEADER_BYTES + body_length);
                        return Ok(());
                    }
                    let placement = sink.head(header, &rest[..body_length])?;
                    self.start += HEADER_BYTES + body_length;
                    let left = header.payload_length as usize;
                    self.incoming = Incoming::behind(left, placement)?;
                }
                Incoming::Discard { left } => {
                    let taken = (*left).min(self.end - self.start);
                    self.start += taken;
                    *left -= taken;
                    if *left > 0 {
                        return Ok(());
                    }
                    self.incoming = Incoming::Head;
                    sink.payload()?;
                }
                Incoming::Payload { slices, first, left, .. } => {
                    while self.start < self.end && *left > 0 {
                        let slice = &mut slices[*first];
                        let length = slice.length.min(self.end - self.start);
                        // SAFETY: whoever placed the payload keeps its memory valid and unaliased;
                        // `ahead` has `length` bytes there.
                        unsafe {
                            let from = self.ahead.as_ptr().add(self.start);
                            copy(from, slice.pointer, length);
                        }
                        advance(slices, first, length);
                        self.start += length;
                        *left -= length;
                    }
                    if *left > 0 {
                        return Ok(());
                    }
                    self.incoming = Incoming::Head;
                    sink.payload()?;
                }
            }
        }
    }

    /// Makes room for a head of `length` bytes that begins at `start`.
    fn make_room(&mut self, length: usize) {
        debug_assert!(length <= HEADER_BYTES + BODY_BYTES_MAX);
        self.ahead.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.ahead.len() < length {
            self.ahead.resize(length, 0);
        }
    }

    /// One system call: into the payload's place, if one is expected, and ahead.
    fn receive_once(&mut self) -> io::Result<usize> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            // A long head must neither cost this connection memory for ever, nor make it receive
            // ahead of a large payload that comes next.
            if self.ahead.capacity() > 16 * AHEAD_BYTES {
                self.ahead = vec![0; AHEAD_BYTES];
            }
            self.ahead.truncate(AHEAD_BYTES);
        } else if self.end == self.ahead.len() {
            self.make_room(AHEAD_BYTES);
        }
        self.scratch.clear();
        let mut staged = None;
        let mut expected = 0;
        if let Incoming::Payload { slices, first, left, .. } = &self.incoming {
            let slices = &slices[*first..];
            expected = small_ones(slices);
            if expected > 0 {
                let memory = staged.insert(Staged::take());
                memory.0.reserve_exact(STAGED_BYTES);
                let iov_base = memory.0.as_mut_ptr().cast();
                self.scratch.push(libc::iovec { iov_base, iov_len: expected });
            } else {
                for slice in slices.iter().take(SLICES_MAX) {
                    let (iov_base, iov_len) = (slice.pointer.cast(), slice.length);
                    self.scratch.push(libc::iovec { iov_base, iov_len });
                }
                let named = || self.scratch.iter().map(|slice| slice.iov_len).sum();
                expected = if slices.len() > SLICES_MAX { named() } else { *left };
            }
        }
        let whole = matches!(&self.incoming, Incoming::Payload { left, .. } if *left == expected)
            || expected == 0;
        if whole {
            // What follows the payload may come along.
            let room = &mut self.ahead[self.end..];
            let limit = if expected == 0 { room.len() } else { room.len().min(AHEAD_BYTES) };
            let iov_base = room.as_mut_ptr().cast();
            self.scratch.push(libc::iovec { iov_base, iov_len: limit });
        }
        // SAFETY: the vectors name memory valid for writing: the payload's place by its maker's
        // promise, and this link's own buffer.
        let count = unsafe {
            libc::readv(
                self.stream.as_raw_fd(),
                self.scratch.as_ptr(),
                self.scratch.len() as libc::c_int,
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        let count = count as usize;
        let mut rest = count;
        if let Incoming::Payload { slices, first, left, .. } = &mut self.incoming {
            let placed = rest.min(expected);
            rest -= placed;
            *left -= placed;
            let mut at = 0;
            while at < placed {
                let slice = slices[*first];
                let length = slice.length.min(placed - at);
                if let Some(staged) = &staged {
                    // SAFETY: whoever placed the payload keeps its memory valid and unaliased; so many
                    // bytes were received there.
                    unsafe {
                        let from = staged.0.as_ptr().add(at);
                        copy(from, slice.pointer, length);
                    }
                }
                advance(slices, first, length);
                at += length;
            }
        }
        self.end += rest;
        Ok(count)
    }

    fn asked(&self) -> usize {
        self.scratch.iter().map(|slice| slice.iov_len).sum()
    }
}

/// Bytes of the slices that are better received side by side: the small ones at the beginning, if they
/// are a list, as many as one call is to take.
fn small_ones(slices: &[Slice]) -> usize {
    let (mut count, mut bytes) = (0, 0);
    for slice in slices.iter().take_while(|slice| slice.length < SMALL_BYTES) {
        if bytes + slice.length > RECEIVED_BYTES {
            break;
        }
        (count, bytes) = (count + 1, bytes + slice.length);
    }
    if count > FEW_SLICES { bytes } else { 0 }
}

thread_local! {
    static STAGED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Where small slices are put side by side. The memory stays with the thread: made for each list, it
/// could be fresh pages of the kernel's each time, which cost more than the copying.
struct Staged(Vec<u8>);

impl Staged {
    /// Empty.
    fn take() -> Staged {
        // A thread that is about to end has none any more.
        let mut memory = STAGED.try_with(Cell::take).unwrap_or_default();
        memory.clear();
        Staged(memory)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        _ = STAGED.try_with(|kept| kept.set(memory));
    }
}

/// Copies small slices of a row behind others, which do not move for them, as many as there is room
/// for; gives their copies, side by side. Meanwhile fetches those farther on; or, where the row is
/// at its end, those of the row `after` it.
///
/// # Safety
/// The slices' memory must be valid.
unsafe fn stage(staged: &mut Vec<u8>, row: Row, after: Option<&Row>) -> Slice {
    let at = staged.len();
    // All of it is taken with the first slice.
    staged.reserve_exact(STAGED_BYTES - at);
    let pointer = staged.as_mut_ptr().wrapping_add(at);
    let mut length = 0;
    for (index, slice) in row.slices().enumerate() {
        if at + length + slice.length > STAGED_BYTES {
            break;
        }
        let ahead = index + FETCHED_AHEAD;
        let beyond = |after: &Row| after.get(ahead - row.count).unwrap_or(after.first);
        if let Some(soon) = row.get(ahead).or_else(|| after.map(beyond)) {
            fetch(soon);
        }
        // SAFETY: the caller promises valid memory; there is room for as many bytes.
        unsafe {
            let to = pointer.wrapping_add(length);
            copy(slice.pointer, to, slice.length);
        }
        length += slice.length;
    }
    // SAFETY: so many were written.
    unsafe { staged.set_len(at + length) };
    Slice { pointer, length }
}

fn set_option(stream: &TcpStream, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: a valid socket and a valid integer.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl<P: Payload> Link<P> for TcpLink<P> {
    fn connected(&self) -> io::Result<()> {
        match self.stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn peer(&self) -> String {
        self.stream.peer_addr().map_or_else(|error| error.to_string(), |peer| peer.to_string())
    }

    fn send(&mut self, head: Vec<u8>, payload: Option<P>) {
        self.outgoing.push(Frame::new(head, payload));
    }

    fn flush(&mut self) -> io::Result<usize> {
        let mut moved = 0;
        let mut staged = Staged::take();
        let mut frames_max = FRAMES_PER_CALL_MAX;
        while !self.outgoing.queue.is_empty() {
            self.scratch.clear();
            staged.0.clear();
            let mut asked = 0;
            for frame in self.outgoing.queue.iter().take(frames_max) {
                let (named, all) = name(frame, &mut self.scratch, &mut staged.0);
                asked += named;
                if !all {
                    break;
                }
            }
            // SAFETY: all zeros is a valid msghdr.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = self.scratch.as_mut_ptr();
            message.msg_iovlen = self.scratch.len();
            // SAFETY: the vectors name memory that the queued frames keep valid.
            let count = unsafe {
                libc::sendmsg(self.stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
            };
            if count < 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(moved),
                    io::ErrorKind::Interrupted => continue,
                    // Of which of them the memory is bad shows if they go one by one.
                    _ if error.raw_os_error() == Some(libc::EFAULT) && frames_max > 1 => {
                        frames_max = 1;
                        continue;
                    }
                    _ => Err(error),
                };
            }
            let count = count as usize;
            moved += count;
            self.outgoing.sent(count);
            if count < asked {
                return Ok(moved);
            }
        }
        Ok(moved)
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
        let mut moved = 0;
        loop {
            match self.receive_once() {
                Ok(0) => return Ok((Received::Closed, moved)),
                Ok(count) => {
                    moved += count;
                    let drained = count < self.asked();
                    self.digest(sink)?;
                    if drained {
                        return Ok((Received::Drained, moved));
                    }
                    if moved >= FAIR_SHARE_BYTES {
                        return Ok((Received::More, moved));
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok((Received::Drained, moved)),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(broken(&error)),
                },
            }
        }
    }

    fn source(&self) -> Source<'_> {
        self.stream.as_raw_fd().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoPayload;

    /// How a socket controls congestion.
    fn control(stream: &TcpStream) -> Vec<u8> {
        let mut name = [0u8; 16];
        let mut length = name.len() as libc::socklen_t;
        // SAFETY: a valid socket, and room for so many bytes.
        let result = unsafe {
            let name = name.as_mut_ptr().cast();
            let descriptor = stream.as_raw_fd();
            libc::getsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name, &mut length)
        };
        assert_eq!(result, 0);
        name.split(|byte| *byte == 0).next().unwrap().to_vec()
    }

    #[test]
    fn a_list_as_large_as_the_buffer_goes_in_one_call_with_its_head() {
        const SLICE_BYTES: usize = 256;
        let memory = vec![7; 2 * STAGED_BYTES];
        let first = Slice::to_read(&memory[..SLICE_BYTES]);
        let row = Row { first, count: STAGED_BYTES / SLICE_BYTES, stride: 2 * SLICE_BYTES };
        let head = vec![1; HEADER_BYTES];
        let left = head.len() + STAGED_BYTES;
        let rows = vec![row];
        let frame = Frame { rows, list: true, left, ..Frame::<NoPayload>::new(head, None) };
        let (mut vectors, mut staged) = (Vec::new(), Vec::new());
        assert_eq!(name(&frame, &mut vectors, &mut staged), (left, true));
        assert_eq!(vectors.len(), 2);
        assert!(staged.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn connections_begin_with_the_control_that_they_keep() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let left = start(listener.local_addr().unwrap(), 0).unwrap();
        let right = listener.accept().unwrap().0;
        // Whoever chose before he connected has got what the kernel offers of it.
        assert_eq!(control(&left), control(&right));
        let plain = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(plain.local_addr().unwrap()).unwrap();
        choose_control(stream.as_raw_fd());
        assert_eq!(control(&left), control(&stream));
    }
}
