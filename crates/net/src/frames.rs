//! What transports of byte streams have in common: frames on their way out, and where what comes in goes.

use crate::{Payload, Placement};
use std::collections::VecDeque;
use std::io;
use weir_core::error::{Code, Error, Result};
use weir_core::slice::{Row, Slice};

/// A payload of no more slices than this is no list.
pub(crate) const FEW_SLICES: usize = 8;
/// While small slices are copied, those so many farther on are fetched: they lie apart, often in memory
/// that was not touched for long. Without it lists were sent at 0.88 to 0.94 of the rate.
pub(crate) const FETCHED_AHEAD: usize = 12;
/// Of a slice no more than so many bytes are fetched.
const FETCHED_BYTES: usize = 1024;

/// A frame that is being sent.
pub(crate) struct Frame<P> {
    pub(crate) head: Vec<u8>,
    pub(crate) payload: Option<P>,
    pub(crate) rows: Vec<Row>,
    /// Slices in all rows together are more than a few.
    pub(crate) list: bool,
    /// Bytes of head and payload together that are still to be sent.
    pub(crate) left: usize,
    /// The first slice that has not gone wholly, and how much of it has. A list's payload is many
    /// slices and takes many calls: none of them begins at the beginning.
    pub(crate) next: Place,
    pub(crate) gone: usize,
}

/// A slice of a frame: in which row (the head is 0), and which of it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    pub(crate) row: usize,
    pub(crate) slice: usize,
}

impl<P: Payload> Frame<P> {
    pub(crate) fn new(head: Vec<u8>, payload: Option<P>) -> Frame<P> {
        let mut rows = Vec::new();
        if let Some(payload) = &payload {
            payload.rows(&mut rows);
        }
        let list = rows.iter().map(|row| row.count).sum::<usize>() > FEW_SLICES;
        let left = head.len() + rows.iter().map(Row::length).sum::<usize>();
        Frame { head, payload, rows, list, left, next: Place::default(), gone: 0 }
    }
}

impl<P> Frame<P> {
    pub(crate) fn row(&self, row: usize) -> Option<Row> {
        match row {
            0 => Some(Slice::to_read(&self.head).into()),
            _ => self.rows.get(row - 1).copied(),
        }
    }

    /// What is left of the slice that goes next. None: all have gone.
    pub(crate) fn rest(&self) -> Option<Slice> {
        let slice = self.row(self.next.row)?.get(self.next.slice)?;
        Some(slice.part(self.gone, slice.length - self.gone))
    }

    /// `count` more bytes have gone.
    pub(crate) fn advance(&mut self, count: usize) {
        self.left -= count;
        self.gone += count;
        while let Some(row) = self.row(self.next.row) {
            let here = row.count - self.next.slice;
            let whole = self.gone.checked_div(row.first.length).map_or(here, |n| n.min(here));
            self.gone -= whole * row.first.length;
            self.next.slice += whole;
            if self.next.slice < row.count {
                return;
            }
            self.next = Place { row: self.next.row + 1, slice: 0 };
        }
    }
}

/// Frames that are queued, in order.
pub(crate) struct Frames<P> {
    pub(crate) queue: VecDeque<Frame<P>>,
    /// Bytes of all of them that have not gone.
    pub(crate) unsent: usize,
}

impl<P> Frames<P> {
    pub(crate) fn new() -> Frames<P> {
        Frames { queue: VecDeque::new(), unsent: 0 }
    }

    pub(crate) fn push(&mut self, frame: Frame<P>) {
        self.unsent += frame.left;
        self.queue.push_back(frame);
    }

    /// So many of the bytes that are queued have gone.
    pub(crate) fn sent(&mut self, count: usize) {
        self.unsent -= count;
        let mut rest = count;
        while rest > 0 {
            let frame = &mut self.queue[0];
            let sent = rest.min(frame.left);
            frame.advance(sent);
            rest -= sent;
            if frame.left == 0 {
                self.queue.pop_front();
            }
        }
    }

    pub(crate) fn sending(&self, matches: &dyn Fn(&P) -> bool) -> bool {
        self.queue.iter().any(|frame| frame.payload.as_ref().is_some_and(matches))
    }

    pub(crate) fn next(&self) -> Option<&P> {
        self.queue.front()?.payload.as_ref()
    }
}

/// What is received next.
pub(crate) enum Incoming {
    /// A head is expected.
    Head,
    /// A payload is being received into this memory, which may be cold.
    Payload { slices: Vec<Slice>, first: usize, left: usize, cold: bool },
    /// A payload is being thrown away.
    Discard { left: usize },
}

impl Incoming {
    /// What follows a head whose payload of `left` bytes belongs there.
    pub(crate) fn behind(left: usize, placement: Placement) -> Result<Incoming> {
        let (slices, cold) = match placement {
            _ if left == 0 => return Ok(Incoming::Head),
            Placement::Discard => return Ok(Incoming::Discard { left }),
            Placement::Into(slices) => (slices, false),
            Placement::IntoCold(slices) => (slices, true),
        };
        let room: usize = slices.iter().map(|slice| slice.length).sum();
        if room != left {
            let cause = format!("payload of {left} bytes for {room}");
            return Err(Error::because(Code::Protocol, cause));
        }
        Ok(Incoming::Payload { slices, first: 0, left, cold })
    }
}

/// What became of a connection that the system says this of.
pub(crate) fn broken(error: &io::Error) -> Error {
    let code = match error.raw_os_error() {
        Some(libc::EFAULT) => Code::BadAddress,
        _ => Code::ServerLost,
    };
    Error::because(code, format!("connection broke: {error}"))
}

/// Takes `length` bytes off the first slice.
pub(crate) fn advance(slices: &mut [Slice], first: &mut usize, length: usize) {
    let slice = &mut slices[*first];
    *slice = slice.part(length, slice.length - length);
    while slices.get(*first).is_some_and(|slice| slice.length == 0) {
        *first += 1;
    }
}

/// Has the processor fetch a small slice into its caches, and does not wait for it.
pub(crate) fn fetch(slice: Slice) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..slice.length.min(FETCHED_BYTES)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every such processor has it, and it changes and reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(slice.pointer.wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slice;
}
