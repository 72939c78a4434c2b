//! The bare wire: what TCP gives when nothing is done but the moving of bytes. The pattern is the
//! pool's own (requests and answers of 64 bytes, cut at stripes and at the transfer size, spread
//! over servers and connections in the same way, payload into and out of memory as large as the
//! file), the code as little as will do it: blocking calls where there is one connection.

use super::target::Target;
use crate::memory::Region;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use weir_core::error::{Code, Error, Result};
use weir_core::layout::{Extent, Layout};
use weir_net::tcp;

/// Length of a request and of an answer, without payload: bytes.
const HEAD_BYTES: usize = 64;
/// What a server receives with a head: small payloads come in the same system call.
const AHEAD_BYTES: usize = HEAD_BYTES + 8192;
/// Requests that are sent before any answer is taken: their heads and answers fit into the
/// sockets' buffers, so that neither end can wait for the other for ever.
const BLOCKING_REQUESTS_MAX: usize = 64;
/// Pieces of memory in one system call.
const SLICES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Write = 1,
    Read = 2,
    Done = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    kind: Kind,
    offset: u64,
    length: u64,
}

impl Head {
    fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD_BYTES]) -> io::Result<Head> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let kind = match bytes[0] {
            1 => Kind::Write,
            2 => Kind::Read,
            3 => Kind::Done,
            other => return Err(io::Error::other(format!("unknown message {other}"))),
        };
        Ok(Head { kind, offset: word(8), length: word(16) })
    }
}

fn vector(pointer: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: pointer.cast(), iov_len: length }
}

/// One call of sendmsg or recvmsg.
///
/// # Safety
/// The vectors must name memory valid for reading (to send) or writing (to receive).
unsafe fn transfer(
    stream: &TcpStream,
    vectors: &mut [libc::iovec],
    sending: bool,
    flags: libc::c_int,
) -> io::Result<usize> {
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len().min(SLICES_MAX);
    let descriptor = stream.as_raw_fd();
    loop {
        // SAFETY: a valid message over memory that the caller vouches for.
        let count = unsafe {
            match sending {
                true => libc::sendmsg(descriptor, &raw const message, flags | libc::MSG_NOSIGNAL),
                false => libc::recvmsg(descriptor, &raw mut message, flags),
            }
        };
        if count >= 0 {
            return Ok(count as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Memory that is still to be sent or received.
#[derive(Default)]
struct Queue {
    vectors: Vec<libc::iovec>,
    first: usize,
}

// SAFETY: the addresses are used under `&mut`, by the thread that has made the buffers' borrow.
unsafe impl Send for Queue {}

impl Queue {
    fn clear(&mut self) {
        self.vectors.clear();
        self.first = 0;
    }

    fn is_empty(&self) -> bool {
        self.first == self.vectors.len()
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let vector = &mut self.vectors[self.first];
            let moved = count.min(vector.iov_len);
            vector.iov_base = vector.iov_base.wrapping_byte_add(moved);
            vector.iov_len -= moved;
            count -= moved;
            if vector.iov_len == 0 {
                self.first += 1;
            }
        }
    }

    /// Moves what it can; false if nothing can be moved now.
    ///
    /// # Safety
    /// As [`transfer`].
    unsafe fn step(
        &mut self,
        stream: &TcpStream,
        sending: bool,
        flags: libc::c_int,
    ) -> io::Result<bool> {
        // SAFETY: the caller's promise.
        match unsafe { transfer(stream, &mut self.vectors[self.first..], sending, flags) } {
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(count) => {
                self.advance(count);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Moves everything, waiting for it.
    ///
    /// # Safety
    /// As [`transfer`].
    unsafe fn finish(&mut self, stream: &TcpStream, sending: bool) -> io::Result<()> {
        let flags = if sending { 0 } else { libc::MSG_WAITALL };
        while !self.is_empty() {
            // SAFETY: the caller's promise.
            unsafe { self.step(stream, sending, flags) }?;
        }
        Ok(())
    }
}

/// Serves `size` bytes of memory on a listener, for ever: a thread for each connection.
pub(super) fn serve(listener: &TcpListener, size: u64) -> io::Result<()> {
    let region = Arc::new(Region::new(size as usize)?);
    for stream in listener.incoming() {
        let (stream, region) = (stream?, region.clone());
        std::thread::spawn(move || {
            if let Err(error) = serve_one(&stream, &region) {
                eprintln!("wire: connection ends: {error}");
            }
        });
    }
    Ok(())
}

fn serve_one(stream: &TcpStream, region: &Region) -> io::Result<()> {
    tcp::configure(stream)?;
    let mut ahead = [0; AHEAD_BYTES];
    let (mut start, mut end) = (0, 0);
    let mut queue = Queue::default();
    loop {
        while end - start < HEAD_BYTES {
            ahead.copy_within(start..end, 0);
            (start, end) = (0, end - start);
            let mut room = [vector(ahead[end..].as_mut_ptr(), AHEAD_BYTES - end)];
            // SAFETY: the rest of `ahead`.
            match unsafe { transfer(stream, &mut room, false, 0) }? {
                0 => return Ok(()),
                count => end += count,
            }
        }
        let bytes = ahead[start..].first_chunk().ok_or_else(|| io::Error::other("no head"))?;
        let head = Head::decode(bytes)?;
        start += HEAD_BYTES;
        let region_size = region.length() as u64;
        if head.offset.checked_add(head.length).is_none_or(|beyond| beyond > region_size) {
            return Err(io::Error::other(format!("{head:?} is beyond {region_size} bytes")));
        }
        let place = region.pointer().wrapping_add(head.offset as usize);
        let length = head.length as usize;
        let mut answer = Head { kind: Kind::Done, ..head }.encode();
        queue.clear();
        if head.kind == Kind::Write {
            let here = length.min(end - start);
            // SAFETY: `here` bytes of `ahead`, to a place within the region, which nobody refers
            // to but by address.
            unsafe { place.copy_from_nonoverlapping(ahead[start..].as_ptr(), here) };
            start += here;
            if here < length {
                queue.vectors.push(vector(place.wrapping_add(here), length - here));
                // SAFETY: within the region.
                unsafe { queue.finish(stream, false) }?;
                queue.clear();
            }
        }
        queue.vectors.push(vector(answer.as_mut_ptr(), HEAD_BYTES));
        if head.kind == Kind::Read && length > 0 {
            queue.vectors.push(vector(place, length));
        }
        // SAFETY: the answer, which lives on, and a part of the region.
        unsafe { queue.finish(stream, true) }?;
    }
}

/// One connection of the client, and what is to be moved on it.
struct Connection {
    stream: TcpStream,
    heads: Vec<[u8; HEAD_BYTES]>,
    /// Memory of each request: how many of `memory`.
    counts: Vec<usize>,
    memory: Vec<libc::iovec>,
    answers: Vec<[u8; HEAD_BYTES]>,
    out: Queue,
    back: Queue,
}

// SAFETY: as for `Queue`.
unsafe impl Send for Connection {}

/// The client's end.
pub(super) struct Wire {
    connections: Vec<Connection>,
    /// To each server.
    streams: usize,
    layout: Layout,
    transfer_size: usize,
    /// Requests that are being put together: for each column.
    building: Vec<Building>,
}

#[derive(Default)]
struct Building {
    offset: u64,
    length: usize,
    memory: Vec<libc::iovec>,
}

// SAFETY: as for `Queue`.
unsafe impl Send for Building {}

impl Wire {
    /// Connects, `streams` times to each of the servers.
    pub(super) fn connect(
        addresses: &[String],
        streams: usize,
        layout: Layout,
        transfer_size: usize,
    ) -> Result<Wire> {
        let mut connections = Vec::new();
        for address in addresses {
            for _ in 0..streams {
                let stream = tcp::dial(tcp::resolve(address)?).map_err(|error| {
                    Error::because(Code::ServerLost, error.to_string()).on("connect to", address)
                })?;
                connections.push(Connection {
                    stream,
                    heads: Vec::new(),
                    counts: Vec::new(),
                    memory: Vec::new(),
                    answers: Vec::new(),
                    out: Queue::default(),
                    back: Queue::default(),
                });
            }
        }
        let mut building = Vec::new();
        building.resize_with(layout.stripe_count(), Building::default);
        Ok(Wire { connections, streams, layout, transfer_size, building })
    }

    /// Cuts an operation into requests as the pool's client does.
    fn plan(&mut self, kind: Kind, extent: Extent, memory: *mut u8) {
        let limit = self.transfer_size;
        for piece in self.layout.pieces(extent.offset, extent.length as usize) {
            let building = &mut self.building[piece.column];
            let mut done = 0;
            while done < piece.length {
                if building.length == limit {
                    building.finish(piece.column, kind, limit, self.streams, &mut self.connections);
                }
                if building.length == 0 {
                    building.offset = piece.object_offset + done as u64;
                }
                let length = (piece.length - done).min(limit - building.length);
                let pointer = memory.wrapping_add(piece.buffer_offset + done);
                building.memory.push(vector(pointer, length));
                building.length += length;
                done += length;
            }
        }
        for (column, building) in self.building.iter_mut().enumerate() {
            if building.length > 0 {
                building.finish(column, kind, limit, self.streams, &mut self.connections);
            }
        }
    }

    /// # Safety
    /// `memory` must be valid for reading (to write) or writing (to read) for all operations.
    unsafe fn run(&mut self, kind: Kind, operations: &[Extent], memory: *mut u8) -> Result<()> {
        for connection in &mut self.connections {
            connection.clear();
        }
        let mut at = 0;
        for &extent in operations {
            self.plan(kind, extent, memory.wrapping_add(at));
            at += extent.length as usize;
        }
        for connection in &mut self.connections {
            connection.lay_out(kind);
        }
        let moved = match self.connections.as_mut_slice() {
            [one] if one.heads.len() <= BLOCKING_REQUESTS_MAX => {
                let Connection { stream, out, back, .. } = one;
                // SAFETY: the caller's promise, and the heads and answers of this connection.
                unsafe { out.finish(stream, true).and_then(|()| back.finish(stream, false)) }
            }
            // SAFETY: as above.
            several => unsafe { move_all(several) },
        };
        moved.map_err(broken)?;
        self.connections.iter().try_for_each(Connection::check)
    }
}

impl Building {
    fn finish(
        &mut self,
        column: usize,
        kind: Kind,
        transfer_size: usize,
        streams: usize,
        connections: &mut [Connection],
    ) {
        let lane = (self.offset / transfer_size as u64) as usize % streams;
        let connection = &mut connections[column * streams + lane];
        let head = Head { kind, offset: self.offset, length: self.length as u64 };
        connection.heads.push(head.encode());
        connection.counts.push(self.memory.len());
        connection.memory.append(&mut self.memory);
        self.length = 0;
    }
}

impl Connection {
    fn clear(&mut self) {
        self.heads.clear();
        self.counts.clear();
        self.memory.clear();
        self.out.clear();
        self.back.clear();
    }

    /// Puts heads, payloads and answers in the order in which they are moved.
    fn lay_out(&mut self, kind: Kind) {
        self.answers.clear();
        self.answers.resize(self.heads.len(), [0; HEAD_BYTES]);
        let mut memory = self.memory.iter();
        let requests = self.heads.iter_mut().zip(&mut self.answers).zip(&self.counts);
        for ((head, answer), &count) in requests {
            self.out.vectors.push(vector(head.as_mut_ptr(), HEAD_BYTES));
            self.back.vectors.push(vector(answer.as_mut_ptr(), HEAD_BYTES));
            let payload = if kind == Kind::Write { &mut self.out } else { &mut self.back };
            payload.vectors.extend(memory.by_ref().take(count));
        }
    }

    /// Every request has had its own answer.
    fn check(&self) -> Result<()> {
        for (request, answer) in self.heads.iter().zip(&self.answers) {
            if answer[0] != Kind::Done as u8 || answer[1..] != request[1..] {
                return Err(broken(io::Error::other("answer to another request")));
            }
        }
        Ok(())
    }
}

fn broken(error: io::Error) -> Error {
    Error::because(Code::ServerLost, error.to_string()).on("use", "wire")
}

/// Moves everything on several connections at once.
///
/// # Safety
/// As [`transfer`], for all queues.
unsafe fn move_all(connections: &mut [Connection]) -> io::Result<()> {
    let mut waits = Vec::with_capacity(connections.len());
    loop {
        let mut progress = false;
        waits.clear();
        for Connection { stream, out, back, .. } in connections.iter_mut() {
            let mut events = 0;
            for (queue, sending, event) in
                [(&mut *out, true, libc::POLLOUT), (&mut *back, false, libc::POLLIN)]
            {
                if !queue.is_empty() {
                    // SAFETY: the caller's promise.
                    progress |= unsafe { queue.step(stream, sending, libc::MSG_DONTWAIT) }?;
                    events |= if queue.is_empty() { 0 } else { event };
                }
            }
            if events != 0 {
                waits.push(libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 });
            }
        }
        if waits.is_empty() {
            return Ok(());
        }
        if !progress {
            // SAFETY: an array of valid entries.
            let ready = unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, -1) };
            if ready < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

fn total(operations: &[Extent]) -> u64 {
    operations.iter().map(|extent| extent.length).sum()
}

impl Target for Wire {
    fn write(&mut self, operations: &[Extent], memory: &[u8]) -> Result<()> {
        assert_eq!(memory.len() as u64, total(operations), "as much memory as is moved");
        // SAFETY: the memory is valid as long as this call, and only read.
        unsafe { self.run(Kind::Write, operations, memory.as_ptr().cast_mut()) }
    }

    fn read(&mut self, operations: &[Extent], memory: &mut [u8]) -> Result<()> {
        assert_eq!(memory.len() as u64, total(operations), "as much memory as is moved");
        // SAFETY: the memory is valid as long as this call, and borrowed for it alone.
        unsafe { self.run(Kind::Read, operations, memory.as_mut_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stamp::stamp;
    use super::*;
    use weir_core::layout::Member;
    use weir_core::types::{Incarnation, TargetId};

    /// What is written at one place over many servers and connections is read back from there,
    /// and no byte beside it changes.
    #[test]
    fn bytes_come_back_over_any_pattern() {
        for (servers, streams) in [(1, 1), (1, 3), (3, 1), (2, 2)] {
            let addresses: Vec<String> = (0..servers)
                .map(|_| {
                    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
                    let address = listener.local_addr().expect("bound").to_string();
                    std::thread::spawn(move || serve(&listener, 1 << 20));
                    address
                })
                .collect();
            let member = |i| Member { target: TargetId(i), incarnation: Incarnation(1) };
            let layout = Layout::striped(4096, (0..servers).map(member));
            let mut wire = Wire::connect(&addresses, streams, layout, 10_000).expect("connects");
            let mut model = vec![0; 500_000];
            let extents = [(0u64, 1u64), (3, 4096), (8191, 300_000), (100, 9), (400_000, 100_000)];
            for (round, (offset, length)) in extents.into_iter().enumerate() {
                let mut bytes = vec![0; length as usize];
                stamp(&mut bytes, 1, round as u32, offset);
                wire.write(&[Extent { offset, length }], &bytes).expect("written");
                model[offset as usize..][..length as usize].copy_from_slice(&bytes);
            }
            // Many at once: more than may be sent before an answer is taken.
            let operations: Vec<Extent> =
                (0..500).map(|i| Extent { offset: i * 1000, length: 1000 }).collect();
            let mut back = vec![1; model.len()];
            wire.read(&operations, &mut back).expect("read");
            assert!(back == model, "{servers} servers, {streams} streams");
        }
    }

    #[test]
    fn a_request_beyond_the_memory_ends_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("bound").to_string();
        std::thread::spawn(move || serve(&listener, 4096));
        let member = Member { target: TargetId(0), incarnation: Incarnation(1) };
        let layout = Layout::striped(4096, [member]);
        let mut wire = Wire::connect(&[address], 1, layout, 4096).expect("connects");
        assert!(wire.read(&[Extent { offset: 4000, length: 97 }], &mut [0; 97]).is_err());
        let lies = Head { kind: Kind::Read, offset: u64::MAX, length: 2 };
        assert_eq!(Head::decode(&lies.encode()).expect("a head"), lies);
        assert!(Head::decode(&[9; HEAD_BYTES]).is_err());
    }
}
