//! The writer's side: frames, segments and checkpoints.

use super::format::{FRAME_HEAD_BYTES, Frame, LOG, SUPERBLOCKS, Segment, Superblock, frame_bytes};
use super::{BLOCK_BYTES, Journal, Mark, Medium, Options, Pending, Source};
use crate::error::{Code, Error, Result};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Writes a journal. One thread drives it, by [`Writer::pump`].
pub struct Writer<M> {
    pub(super) medium: M,
    pub(super) options: Options,
    pub(super) journal: Arc<Journal>,
    pub(super) superblock: Superblock,
    /// The sequence of the log's next frame; all before it are on the disk.
    pub(super) next: u64,
    pub(super) space: Space,
    /// Segments of the log: the sequence of the first frame of each, and where it is.
    pub(super) log: VecDeque<(u64, u64)>,
    /// Bytes taken in the log's last segment; none: the next frame begins another.
    pub(super) log_used: Option<usize>,
    /// Bytes of log that opening would replay.
    pub(super) log_bytes: u64,
    pub(super) snapshot: Vec<u64>,
    pub(super) checkpoint: Option<Checkpoint>,
}

/// Which segments are free.
#[derive(Debug, Default)]
pub(super) struct Space {
    pub(super) free: BTreeSet<u64>,
    /// Segments there are.
    pub(super) count: u64,
}

impl Space {
    fn take(&mut self) -> u64 {
        // The lowest: a journal that was large once does not stay spread out.
        self.free.pop_first().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }
}

/// A snapshot on its way to the disk.
pub(super) struct Checkpoint {
    source: Box<dyn Source>,
    id: u64,
    log_start: u64,
    segments: Vec<u64>,
    used: usize,
    frames: u64,
    /// A record for which the last frame had no room.
    carried: Option<Vec<u8>>,
}

/// Where segment `index` begins.
pub(super) fn offset_of(segment_bytes: u64, index: u64) -> u64 {
    segment_bytes * (index + 1)
}

fn put_record(record: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(&(record.len() as u32).to_le_bytes());
    into.extend_from_slice(record);
}

/// The records of a frame's payload.
pub(super) fn records(mut payload: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    std::iter::from_fn(move || {
        if payload.is_empty() {
            return None;
        }
        let split = payload.split_at_checked(size_of::<u32>()).and_then(|(length, rest)| {
            let length = u32::from_le_bytes(length.try_into().ok()?);
            rest.split_at_checked(length as usize)
        });
        let (record, rest) = split.unwrap_or((&[], &[]));
        payload = rest;
        Some(split.is_some().then_some(record))
    })
}

impl<M: Medium> Writer<M> {
    /// Where records are appended.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// The medium.
    pub fn medium(&mut self) -> &mut M {
        &mut self.medium
    }

    /// What it takes up on its medium: bytes.
    pub fn bytes(&self) -> u64 {
        offset_of(self.superblock.segment_bytes, self.space.count)
    }

    /// Writes and syncs what waits, and does a step of a checkpoint if one is under way or due
    /// (`source` makes what it reads). Says whether there is more to do at once.
    ///
    /// # Errors
    /// If the medium fails: then the journal has failed for good, and all who wait are told.
    pub fn pump(&mut self, source: impl FnOnce() -> Box<dyn Source>) -> Result<bool> {
        if let Some(error) = self.journal.failure() {
            return Err(error);
        }
        let result = self.try_pump(source);
        if let Err(error) = &result {
            self.journal.settle(Err(error.clone()));
        }
        result
    }

    /// Writes and syncs what waits, and nothing else.
    ///
    /// # Errors
    /// As [`Writer::pump`].
    pub fn flush(&mut self) -> Result<()> {
        if let Some(error) = self.journal.failure() {
            return Err(error);
        }
        let result = self.try_flush().map(drop);
        if let Err(error) = &result {
            self.journal.settle(Err(error.clone()));
        }
        result
    }

    fn try_pump(&mut self, source: impl FnOnce() -> Box<dyn Source>) -> Result<bool> {
        let written = self.try_flush()?;
        self.journal.tight.store(self.medium.is_tight(), Ordering::Relaxed);
        if self.checkpoint.is_none() && (self.journal.take_renewal() || self.is_due()) {
            self.begin(source());
        }
        if self.checkpoint.is_some() {
            // At least as much as the log grew by: the log cannot run away from its checkpoint.
            self.step(written.max(self.options.step_bytes))?;
        }
        Ok(self.checkpoint.is_some())
    }

    /// Writes a checkpoint from begin to end.
    ///
    /// # Errors
    /// As [`Writer::pump`].
    pub fn checkpoint(&mut self, source: impl FnOnce() -> Box<dyn Source>) -> Result<()> {
        let all = |writer: &mut Self| {
            writer.try_flush()?;
            if writer.checkpoint.is_none() {
                writer.begin(source());
            }
            while writer.checkpoint.is_some() {
                writer.step(usize::MAX)?;
            }
            Ok(())
        };
        let result = all(self);
        if let Err(error) = &result {
            self.journal.settle(Err(Clone::clone(error)));
        }
        result
    }

    fn is_due(&self) -> bool {
        let snapshot = self.snapshot.len() as u64 * self.superblock.segment_bytes;
        self.log_bytes > self.options.log_bytes_min.max(snapshot)
    }

    /// Gives how many bytes were written.
    fn try_flush(&mut self) -> Result<usize> {
        let Pending { records: pending, position, names } = self.journal.take();
        if names {
            // What they name must never be less safe than they are: else what was safe and is
            // replaced by it would be lost.
            self.medium.settle_named()?;
        }
        if pending.is_empty() {
            self.journal.settle(Ok(position));
            return Ok(0);
        }
        let segment_bytes = self.superblock.segment_bytes as usize;
        let (mut next, mut written) = (self.next, 0);
        let mut rest = &pending[..];
        while !rest.is_empty() {
            let first = size_of::<u32>() + records(rest).next().flatten().map_or(0, <[u8]>::len);
            let used = match self.log_used {
                Some(used) if used + frame_bytes(first) <= segment_bytes => used,
                _ => {
                    let index = self.space.take();
                    self.log.push_back((next, index));
                    0
                }
            };
            let mut buffer = Vec::new();
            if used == 0 {
                let segment = Segment { stream: LOG, first: next, life: self.superblock.life };
                buffer = segment.encode(&self.options.identity);
            }
            let room = segment_bytes - used - buffer.len() - FRAME_HEAD_BYTES;
            let mut length = 0;
            for record in records(rest) {
                let more = size_of::<u32>() + record.map_or(0, <[u8]>::len);
                if length + more > room {
                    break;
                }
                length += more;
            }
            let (payload, after) = rest.split_at(length);
            rest = after;
            let frame = Frame {
                stream: LOG,
                sequence: next,
                life: self.superblock.life,
                synced: self.next,
                length: length as u32,
            };
            frame.encode(&self.options.identity, payload, &mut buffer);
            let (_, index) = *self.log.back().expect("a segment was begun");
            let offset = offset_of(self.superblock.segment_bytes, index) + used as u64;
            self.medium.write(offset, &buffer)?;
            self.log_used = Some(used + buffer.len());
            written += buffer.len();
            next += 1;
        }
        self.medium.sync()?;
        self.next = next;
        self.tell_mark();
        self.log_bytes += written as u64;
        self.journal.settle(Ok(position));
        Ok(written)
    }

    fn begin(&mut self, source: Box<dyn Source>) {
        // What is appended from here on is in a segment of its own, from which replaying starts.
        self.log_used = None;
        self.checkpoint = Some(Checkpoint {
            source,
            id: self.superblock.snapshot + 1,
            log_start: self.next,
            segments: Vec::new(),
            used: 0,
            frames: 0,
            carried: None,
        });
    }

    /// Writes some more of the snapshot.
    fn step(&mut self, budget: usize) -> Result<()> {
        let Some(mut checkpoint) = self.checkpoint.take() else { return Ok(()) };
        let segment_bytes = self.superblock.segment_bytes as usize;
        let life = self.superblock.life;
        let mut written = 0;
        while written < budget {
            let record = checkpoint.carried.take().or_else(|| checkpoint.source.next());
            let Some(record) = record else { return self.finish(checkpoint) };
            if record.len() > self.journal.record_bytes_max() {
                let cause = format!("a record of {} bytes in a snapshot", record.len());
                return Err(Error::because(Code::Internal, cause));
            }
            let mut buffer = Vec::new();
            let first = frame_bytes(size_of::<u32>() + record.len());
            if checkpoint.segments.is_empty() || checkpoint.used + first > segment_bytes {
                let index = checkpoint.segments.len() as u64;
                let segment = Segment { stream: checkpoint.id, first: index, life };
                buffer = segment.encode(&self.options.identity);
                checkpoint.segments.push(self.space.take());
                checkpoint.used = 0;
            }
            let room = (segment_bytes - checkpoint.used - buffer.len() - FRAME_HEAD_BYTES)
                .min(self.options.step_bytes)
                .max(size_of::<u32>() + record.len());
            let mut payload = Vec::new();
            put_record(&record, &mut payload);
            while let Some(record) = checkpoint.source.next() {
                if payload.len() + size_of::<u32>() + record.len() > room {
                    checkpoint.carried = Some(record);
                    break;
                }
                put_record(&record, &mut payload);
            }
            let frame = Frame {
                stream: checkpoint.id,
                sequence: checkpoint.frames,
                life,
                synced: self.next,
                length: payload.len() as u32,
            };
            frame.encode(&self.options.identity, &payload, &mut buffer);
            let index = checkpoint.segments[checkpoint.segments.len() - 1];
            let offset = offset_of(self.superblock.segment_bytes, index) + checkpoint.used as u64;
            self.medium.write(offset, &buffer)?;
            checkpoint.used += buffer.len();
            checkpoint.frames += 1;
            written += buffer.len();
        }
        self.checkpoint = Some(checkpoint);
        Ok(())
    }

    /// The snapshot is written: from now on it counts.
    fn finish(&mut self, checkpoint: Checkpoint) -> Result<()> {
        // It shows changes made until just now; their records must not be lost when it counts, or
        // only a part of a change might be left.
        self.try_flush()?;
        self.medium.settle_named()?;
        self.medium.sync()?;
        let superblock = Superblock {
            generation: self.superblock.generation + 1,
            snapshot: checkpoint.id,
            snapshot_segments: checkpoint.segments.len() as u64,
            snapshot_frames: checkpoint.frames,
            log_start: checkpoint.log_start,
            ..self.superblock
        };
        self.put(superblock)?;
        self.space.free.extend(std::mem::replace(&mut self.snapshot, checkpoint.segments));
        while self.log.front().is_some_and(|(first, _)| *first < checkpoint.log_start) {
            let (_, index) = self.log.pop_front().expect("looked at");
            self.space.free.insert(index);
        }
        self.log_bytes = self.log.len() as u64 * self.superblock.segment_bytes;
        Ok(())
    }

    /// Writes a superblock in place of the older one, and syncs it.
    pub(super) fn put(&mut self, superblock: Superblock) -> Result<()> {
        let slot = superblock.generation % SUPERBLOCKS * BLOCK_BYTES as u64;
        self.medium.write(slot, &superblock.encode(&self.options.identity))?;
        self.medium.sync()?;
        self.superblock = superblock;
        // Before what the older one needs is used for something else.
        self.tell_mark();
        Ok(())
    }

    fn tell_mark(&self) {
        self.journal.set_mark(Mark { generation: self.superblock.generation, frames: self.next });
    }
}
