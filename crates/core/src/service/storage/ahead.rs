//! Reading ahead: who reads on, in steps of what width.
//!
//! Per client and object, a short memory of where it read last. Three steps of the same width (a plain
//! sequential reader's is the length of its reads) make a *stream*, which is read ahead in growing
//! steps. A random reader makes none and costs one look-up; nothing is read for it but the quarters
//! of chunks that it names.

use super::State;
use super::arena::CHUNK_BYTES;
use crate::types::{ClientId, Ino};
use crate::wire::data::{Io, Runs};
use std::collections::BTreeMap;

/// Streams remembered; the one longest unused leaves.
const STREAMS_MAX: usize = 1024;
/// Steps of equal width that make a stream.
const STEPS: u32 = 2;
/// Most that is read ahead of one stream: bytes.
const WINDOW_MAX: u64 = 8 << 20;
/// What is read ahead of a stream at first: bytes.
const WINDOW_MIN: u64 = 512 << 10;
/// A sequential reader with several requests under way may send them a little out of order: bytes.
const SLACK: u64 = 2 << 20;

#[derive(Debug, Default)]
struct Stream {
    /// Start and end of the last read; for a sequential one, the farthest.
    start: u64,
    end: u64,
    length: u64,
    stride: u64,
    steps: u32,
    /// It is asked for up to here.
    asked: u64,
    window: u64,
    used: u64,
}

#[derive(Debug)]
pub(super) struct Streams {
    streams: BTreeMap<(Ino, ClientId), Stream>,
    clock: u64,
    window_max: u64,
    /// What is to be read ahead now: of whom.
    due: Option<(Ino, ClientId)>,
}

impl Streams {
    pub(super) fn new(memory: u64) -> Streams {
        let window_max = WINDOW_MAX.min(memory / 32);
        Streams { streams: BTreeMap::new(), clock: 0, window_max, due: None }
    }

    /// Notes a read. Says whether it goes on from the last one.
    fn note(&mut self, key: (Ino, ClientId), start: u64, end: u64) -> bool {
        self.clock += 1;
        self.due = None;
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&key) {
            let oldest = self.streams.iter().min_by_key(|(_, stream)| stream.used);
            if let Some(&oldest) = oldest.map(|(key, _)| key) {
                self.streams.remove(&oldest);
            }
        }
        let window_min = WINDOW_MIN.min(self.window_max);
        let stream = self.streams.entry(key).or_default();
        stream.used = self.clock;
        let length = end - start;
        let sequential = start <= stream.end + SLACK.min(stream.length * 8)
            && start + SLACK.min(length * 8) >= stream.end
            && stream.stride <= stream.length;
        let strided = start > stream.start
            && start - stream.start == stream.stride
            && length == stream.length;
        if stream.length > 0 && sequential {
            stream.steps += 1;
            stream.stride = 0;
            if end > stream.end {
                (stream.start, stream.end) = (start, end);
            }
            stream.length = length;
        } else if stream.length > 0 && strided {
            stream.steps += 1;
            (stream.start, stream.end) = (start, end);
        } else {
            let stride =
                if length == stream.length { start.saturating_sub(stream.start) } else { 0 };
            let used = stream.used;
            *stream = Stream { start, end, length, stride, used, ..Stream::default() };
            // The start of a file is where most begin who will read on.
            stream.steps = u32::from(start == 0);
        }
        if stream.steps < STEPS {
            return false;
        }
        stream.window = stream.window.max(window_min);
        self.due = Some(key);
        true
    }
}

impl State {
    /// Looks at a read to find out whether it is one of a row.
    pub(super) fn look_ahead(&mut self, client: ClientId, io: &Io) -> bool {
        let Runs::One(extent) = io.runs else { return false };
        extent.length > 0 && self.ahead.note((io.ino, client), extent.offset, extent.end())
    }

    /// Asks for what the stream just looked at will want next, if memory is at hand.
    pub(super) fn read_ahead(&mut self, ino: Ino) {
        let Some(key) = self.ahead.due.take().filter(|key| key.0 == ino) else { return };
        let window_max = self.ahead.window_max;
        let size = self.witness(ino).size;
        let Some(stream) = self.ahead.streams.get_mut(&key) else { return };
        let mut extents = Vec::new();
        if stream.stride > stream.length {
            let steps = (stream.window / stream.length.max(CHUNK_BYTES as u64)).clamp(2, 64);
            let last = stream.start + steps * stream.stride;
            // Half of the steps at once: large requests.
            let mut at = stream.start + stream.stride;
            if stream.asked > stream.start + steps / 2 * stream.stride {
                return;
            }
            while at <= last && at < size {
                if at > stream.asked {
                    extents.push((at, at + stream.length));
                }
                at += stream.stride;
            }
            stream.asked = last;
        } else {
            if stream.asked >= stream.end + stream.window / 2 {
                return;
            }
            let from = stream.asked.max(stream.end);
            let to = (stream.end + stream.window).next_multiple_of(CHUNK_BYTES as u64).min(size);
            if from >= to {
                return;
            }
            extents.push((from, to));
            stream.asked = to;
        }
        stream.window = (stream.window * 2).min(window_max);
        let (_, wanted) = self.lacking(ino, extents.into_iter(), true);
        // Without memory at hand nothing is lost but the lead.
        let floor = self.floor(false);
        if !wanted.is_empty() && self.disk_reads_room() {
            self.fetch(&wanted, floor);
        }
    }
}
