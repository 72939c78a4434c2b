//! The virtual network: hosts with a link each, and connections that share them.
//!
//! A connection carries two ordered streams of bytes. Bytes are copied out of the sender's memory
//! when they leave it, queue for the sender's link, travel, queue for the receiver's link, and are
//! copied into their place when the receiver takes them. Nothing is ever corrupted or reordered
//! within a stream; a connection can end at any byte.

use crate::rng::Rng;
use std::collections::VecDeque;
use weir_core::error::Result;
use weir_core::service::storage::ReadTicket;
use weir_core::slice::Slice;
use weir_core::wire::{HEADER_BYTES, Header};

/// Bytes of one stream that are under way at most: the sockets' buffers.
pub(crate) const WINDOW_BYTES: usize = 128 * 1024;
/// Largest piece that travels as one.
const SEGMENT_BYTES_MAX: u64 = 32 * 1024;

/// A machine and its link.
#[derive(Debug)]
pub(crate) struct Host {
    /// Bytes in a millisecond, each way.
    pub(crate) bytes_per_ms: u64,
    /// Processor time that taking a segment in costs, of all cores together.
    pub(crate) take_us: u64,
    /// Adds to every delay: a slow host.
    pub(crate) slow_us: u64,
    /// When its link will have sent, or received, all that waits for it.
    up_free_us: u64,
    down_free_us: u64,
    /// Hosts of different islands do not reach each other.
    pub(crate) island: u8,
    /// How far its wall clock is ahead: nanoseconds.
    pub(crate) wall_offset_ns: i64,
}

impl Host {
    pub(crate) fn new(bytes_per_ms: u64, wall_offset_ns: i64) -> Host {
        Host {
            bytes_per_ms,
            take_us: 0,
            slow_us: 0,
            up_free_us: 0,
            down_free_us: 0,
            island: 0,
            wall_offset_ns,
        }
    }

    fn cost_us(&self, bytes: usize) -> u64 {
        // Every piece costs something, an empty one too: headers of lower layers.
        (bytes as u64 + 64) * 1000 / self.bytes_per_ms
    }

    /// When the last of `bytes` leaves.
    pub(crate) fn send(&mut self, now_us: u64, bytes: usize) -> u64 {
        self.up_free_us = self.up_free_us.max(now_us) + self.cost_us(bytes);
        self.up_free_us
    }

    /// When the last of `bytes` is here.
    pub(crate) fn receive(&mut self, now_us: u64, bytes: usize) -> u64 {
        self.down_free_us = self.down_free_us.max(now_us) + self.cost_us(bytes) + self.take_us;
        self.down_free_us
    }
}

/// What travels.
#[derive(Clone, Debug)]
pub(crate) enum Segment {
    Bytes(Vec<u8>),
    /// The sender has closed, or the connection broke.
    End,
}

/// The payload of a queued frame.
pub(crate) enum Payload<P> {
    None,
    /// A client's: its request names the memory.
    Request(P),
    /// A server's: the ticket pins the memory.
    Ticket(ReadTicket),
}

/// A frame that is being sent.
pub(crate) struct Sending<P> {
    pub(crate) head: Vec<u8>,
    pub(crate) payload: Payload<P>,
    /// Bytes that have left.
    pub(crate) sent: usize,
}

/// One of a connection's two streams.
pub(crate) struct Stream<P> {
    pub(crate) unsent: VecDeque<Sending<P>>,
    /// Under way: sent, and not taken by the receiver.
    pub(crate) in_flight: usize,
    /// Monotone, so that segments stay in order whatever the jitter.
    pub(crate) last_arrival_us: u64,
    /// What a partition holds up.
    pub(crate) held: VecDeque<Segment>,
    /// What has arrived at a process that is stopped.
    pub(crate) inbox: VecDeque<Segment>,
    /// Cut: what is under way never arrives.
    pub(crate) cut: bool,
    /// The sender has nothing more to say.
    pub(crate) ended: bool,
    pub(crate) reader: Assembler,
}

impl<P> Default for Stream<P> {
    fn default() -> Stream<P> {
        Stream {
            unsent: VecDeque::new(),
            in_flight: 0,
            last_arrival_us: 0,
            held: VecDeque::new(),
            inbox: VecDeque::new(),
            cut: false,
            ended: false,
            reader: Assembler::default(),
        }
    }
}

impl<P> Stream<P> {
    /// The next bytes to travel, if the window has room.
    pub(crate) fn next(
        &mut self,
        rng: &mut Rng,
        slices: impl Fn(&P) -> Vec<Slice>,
    ) -> Option<Vec<u8>> {
        if self.cut || self.ended || self.in_flight >= WINDOW_BYTES || self.unsent.is_empty() {
            return None;
        }
        // Odd sizes, so that frames are cut at every possible place.
        let limit = match rng.below(8) {
            0 => rng.between(1, 100),
            1 => rng.between(1000, 9000),
            _ => SEGMENT_BYTES_MAX,
        } as usize;
        let mut bytes = Vec::new();
        while bytes.len() < limit
            && let Some(frame) = self.unsent.front_mut()
        {
            if !frame.copy(limit, &slices, &mut bytes) {
                break;
            }
            self.unsent.pop_front();
        }
        self.in_flight += bytes.len();
        Some(bytes)
    }
}

impl<P> Sending<P> {
    /// Copies what comes next, up to `limit` bytes in all; says whether that was the rest.
    fn copy(
        &mut self,
        limit: usize,
        slices: &impl Fn(&P) -> Vec<Slice>,
        into: &mut Vec<u8>,
    ) -> bool {
        let slices: Vec<Slice> = match &self.payload {
            Payload::None => Vec::new(),
            Payload::Request(request) => slices(request),
            Payload::Ticket(ticket) => {
                ticket.slices().iter().map(|bytes| Slice::to_read(bytes)).collect()
            }
        };
        let mut skip = self.sent;
        for slice in std::iter::once(Slice::to_read(&self.head)).chain(slices) {
            if skip >= slice.length {
                skip -= slice.length;
                continue;
            }
            let length = (slice.length - skip).min(limit - into.len());
            let part = slice.part(skip, length);
            // SAFETY: the head is ours; a ticket's slices live as long as the ticket; a request's
            // are good until its call ends or is abandoned, and then this frame is not here any
            // more (see `World::abandon`).
            into.extend_from_slice(unsafe {
                std::slice::from_raw_parts(part.pointer, part.length)
            });
            self.sent += length;
            if skip + length < slice.length {
                return false;
            }
            skip = 0;
        }
        true
    }
}

/// What becomes of a payload.
pub(crate) enum Placement {
    Discard,
    Into(Vec<Slice>),
}

/// Who takes the frames of a stream.
pub(crate) trait Taker {
    /// Header and body are here.
    fn head(&mut self, header: Header, body: &[u8]) -> Result<Placement>;
    /// The payload is where it belongs.
    fn payload(&mut self) -> Result<()>;
}

/// Makes frames of a stream of bytes; payload goes straight to its place.
#[derive(Default)]
pub(crate) struct Assembler {
    head: Vec<u8>,
    place: Vec<Slice>,
    payload_left: usize,
    payload_done: usize,
}

impl Assembler {
    pub(crate) fn feed(&mut self, mut bytes: &[u8], taker: &mut impl Taker) -> Result<()> {
        loop {
            if self.payload_left > 0 {
                let length = self.payload_left.min(bytes.len());
                let (now, rest) = bytes.split_at(length);
                self.store(now);
                bytes = rest;
                self.payload_left -= length;
                if self.payload_left > 0 {
                    return Ok(());
                }
                self.place.clear();
                taker.payload()?;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let mut need = HEADER_BYTES;
            if let Some(fixed) = self.head.first_chunk::<HEADER_BYTES>() {
                need += Header::decode(fixed)?.body_length as usize;
            }
            let length = (need - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..length]);
            bytes = &bytes[length..];
            let Some(fixed) = self.head.first_chunk::<HEADER_BYTES>() else {
                continue;
            };
            let header = Header::decode(fixed)?;
            if self.head.len() < HEADER_BYTES + header.body_length as usize {
                continue;
            }
            let head = std::mem::take(&mut self.head);
            self.place = match taker.head(header, &head[HEADER_BYTES..])? {
                Placement::Discard => Vec::new(),
                Placement::Into(slices) => slices,
            };
            self.payload_left = header.payload_length as usize;
            self.payload_done = 0;
        }
    }

    fn store(&mut self, bytes: &[u8]) {
        let mut skip = self.payload_done;
        let mut left = bytes;
        for slice in &self.place {
            if skip >= slice.length {
                skip -= slice.length;
                continue;
            }
            let (now, rest) = left.split_at((slice.length - skip).min(left.len()));
            let part = slice.part(skip, now.len());
            // SAFETY: the taker promised this memory until the payload is here or the connection is
            // closed; `now` lies in a segment of its own.
            unsafe { part.pointer.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            left = rest;
            skip = 0;
            if left.is_empty() {
                break;
            }
        }
        self.payload_done += bytes.len();
    }
}

/// A connection from a client's stream to a server.
pub(crate) struct Connection<P> {
    pub(crate) client: usize,
    pub(crate) server: usize,
    pub(crate) stream: usize,
    /// The server's life that accepted it.
    pub(crate) life: u64,
    /// To the server, and back.
    pub(crate) streams: [Stream<P>; 2],
    /// Whether the two processes still hold their ends.
    pub(crate) client_open: bool,
    pub(crate) server_open: bool,
    pub(crate) at_server: Option<crate::server::AtServer>,
}
