//! Making a journal, and coming back to one.

use super::format::{Frame, LOG, SUPERBLOCKS, Segment, Superblock, frame_bytes};
use super::writer::{Space, Writer, offset_of, records};
use super::{BLOCK_BYTES, Journal, Mark, Medium, Options, Sink, check_segment_bytes};
use crate::error::{Code, Error, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

/// Makes an empty journal, whatever was there before.
///
/// # Errors
/// If the medium fails, or the options make no sense.
pub fn create<M: Medium>(mut medium: M, options: &Options) -> Result<Writer<M>> {
    check_segment_bytes(options.segment_bytes)?;
    // What an older journal left in the other place must not be taken for a newer one of this.
    medium.write(0, &[0; SUPERBLOCKS as usize * BLOCK_BYTES])?;
    medium.sync()?;
    let superblock = Superblock {
        generation: 0,
        segment_bytes: options.segment_bytes,
        life: 0,
        snapshot: 0,
        snapshot_segments: 0,
        snapshot_frames: 0,
        log_start: 0,
    };
    let mut writer = fresh(medium, options, superblock);
    begin(&mut writer, Superblock { generation: 1, life: 1, ..superblock })?;
    Ok(writer)
}

fn fresh<M: Medium>(medium: M, options: &Options, superblock: Superblock) -> Writer<M> {
    Writer {
        medium,
        options: *options,
        journal: Journal::new(superblock.segment_bytes),
        next: superblock.log_start,
        superblock,
        space: Space::default(),
        log: VecDeque::new(),
        log_used: None,
        log_bytes: 0,
        snapshot: Vec::new(),
        checkpoint: None,
    }
}

/// Opens a journal, and gives what it held to `sink`.
///
/// # Errors
/// [`Code::Damaged`] if there is none, or what was synced is not there any more; [`Code::Version`],
/// [`Code::Invalid`] for one of another format or owner; what the sink or the medium say.
pub fn open<M: Medium>(medium: M, options: &Options, sink: &mut dyn Sink) -> Result<Writer<M>> {
    let (mut writer, life) = read(medium, options, sink)?;
    // What a crash left behind the end is of an older life than what comes there next.
    let superblock = writer.superblock;
    let generation = superblock.generation + 1;
    begin(&mut writer, Superblock { generation, life: life + 1, ..superblock })?;
    Ok(writer)
}

/// A life begins: no later one has its number, whatever becomes of it.
fn begin<M: Medium>(writer: &mut Writer<M>, superblock: Superblock) -> Result<()> {
    writer.put(superblock)?;
    writer.journal.life.store(superblock.life, Ordering::Relaxed);
    Ok(())
}

/// Reads a journal as [`open`] does, and changes nothing.
///
/// # Errors
/// As [`open`].
pub fn check<M: Medium>(medium: M, options: &Options, sink: &mut dyn Sink) -> Result<()> {
    read(medium, options, sink).map(drop)
}

/// Reads a journal that is being written, up to a mark of its. What it says is only true if the journal's
/// mark is of the same superblock afterwards: else something may have been written over meanwhile.
///
/// # Errors
/// [`Code::Damaged`] if not everything up to the mark is as it was synced; what the sink or the medium say.
pub fn check_until<M: Medium>(
    mut medium: M,
    options: &Options,
    mark: Mark,
    sink: &mut dyn Sink,
) -> Result<()> {
    let superblock = read_superblock(&mut medium, options)?;
    if superblock.generation < mark.generation {
        let cause = format!("superblock {} does not match its checksum", mark.generation);
        return Err(damaged(cause));
    }
    let mut writer = fresh(medium, options, superblock);
    let mut reader = Reader::scan(&mut writer)?;
    reader.snapshot(&mut writer, sink)?;
    reader.log(&mut writer, &mut |record| sink.record(record))?;
    // Behind the mark there may be more, and half of it.
    match writer.next >= mark.frames {
        true => Ok(()),
        false => Err(damaged(format!(
            "frame {} of the log, at offset {} or behind, does not match its checksum",
            writer.next, reader.end
        ))),
    }
}

/// Gives the newest life that there is, too.
fn read<M: Medium>(
    mut medium: M,
    options: &Options,
    sink: &mut dyn Sink,
) -> Result<(Writer<M>, u64)> {
    let superblock = read_superblock(&mut medium, options)?;
    let mut writer = fresh(medium, options, superblock);
    let mut reader = Reader::scan(&mut writer)?;
    if sink.foresees() {
        reader.log(&mut writer, &mut |record| sink.foresee(record))?;
        (writer.next, writer.log_bytes) = (superblock.log_start, 0);
        writer.log.clear();
    }
    reader.snapshot(&mut writer, sink)?;
    reader.log(&mut writer, &mut |record| sink.record(record))?;
    sink.progress(reader.all, reader.all);
    reader.refuse_holes(&mut writer)?;
    let used: BTreeSet<u64> =
        writer.snapshot.iter().copied().chain(writer.log.iter().map(|&(_, index)| index)).collect();
    writer.space.free = (0..writer.space.count).filter(|index| !used.contains(index)).collect();
    Ok((writer, superblock.life.max(reader.life)))
}

fn damaged(cause: impl Into<String>) -> Error {
    Error::because(Code::Damaged, cause)
}

fn read_superblock<M: Medium>(medium: &mut M, options: &Options) -> Result<Superblock> {
    let length = medium.length()?;
    if length < SUPERBLOCKS * BLOCK_BYTES as u64 {
        return Err(damaged(format!("no journal here: only {length} bytes")));
    }
    let mut newest: Option<Superblock> = None;
    for slot in 0..SUPERBLOCKS {
        let mut block = vec![0; BLOCK_BYTES];
        medium.read(slot * BLOCK_BYTES as u64, &mut block)?;
        let found = Superblock::decode(&block, &options.identity)?;
        newest = [newest, found].into_iter().flatten().max_by_key(|found| found.generation);
    }
    newest.ok_or_else(|| damaged("no journal here: neither superblock is whole"))
}

struct Reader {
    /// By stream and first: the newest life, and where.
    segments: BTreeMap<(u64, u64), (u64, u64)>,
    /// Segments whose heads are not whole.
    headless: Vec<u64>,
    /// The newest life in any head.
    life: u64,
    /// Where the log ended, as far as it was read: bytes.
    end: u64,
    done: u64,
    all: u64,
}

impl Reader {
    /// Reads the heads of all segments.
    fn scan<M: Medium>(writer: &mut Writer<M>) -> Result<Reader> {
        let segment_bytes = writer.superblock.segment_bytes;
        let length = writer.medium.length()?;
        let mut segments: BTreeMap<(u64, u64), (u64, u64)> = BTreeMap::new();
        let (mut headless, mut life) = (Vec::new(), 0);
        let mut block = vec![0; BLOCK_BYTES];
        let mut index = 0;
        while offset_of(segment_bytes, index) < length {
            writer.medium.read(offset_of(segment_bytes, index), &mut block)?;
            match Segment::decode(&block, &writer.options.identity) {
                Some(segment) => {
                    let place = segments.entry((segment.stream, segment.first)).or_default();
                    *place = (*place).max((segment.life, index));
                    life = life.max(segment.life);
                }
                None => headless.push(index),
            }
            index += 1;
        }
        writer.space.count = index;
        let snapshot = writer.superblock.snapshot_segments;
        let log = segments.range((LOG, writer.superblock.log_start)..(LOG + 1, 0)).count() as u64;
        let all = (snapshot + log) * segment_bytes;
        Ok(Reader { segments, headless, life, end: 0, done: 0, all })
    }

    fn segment<M: Medium>(&mut self, writer: &mut Writer<M>, index: u64) -> Result<Vec<u8>> {
        let segment_bytes = writer.superblock.segment_bytes;
        let offset = offset_of(segment_bytes, index);
        // The last one may be written in part, and cut by a crash wherever it liked.
        let length = writer.medium.length()?.saturating_sub(offset).min(segment_bytes);
        let mut bytes = vec![0; (length as usize).next_multiple_of(BLOCK_BYTES)];
        writer.medium.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    fn advance<M>(&mut self, writer: &Writer<M>, sink: &mut dyn Sink) {
        self.done += writer.superblock.segment_bytes;
        sink.progress(self.done.min(self.all), self.all);
    }

    fn snapshot<M: Medium>(&mut self, writer: &mut Writer<M>, sink: &mut dyn Sink) -> Result<()> {
        let Superblock { snapshot: id, snapshot_segments, snapshot_frames, .. } = writer.superblock;
        let (mut frames, mut end) = (0, 0);
        for number in 0..snapshot_segments {
            let Some(&(life, index)) = self.segments.get(&(id, number)) else {
                return Err(damaged(format!("segment {number} of snapshot {id} is gone")));
            };
            let bytes = self.segment(writer, index)?;
            let mut at = BLOCK_BYTES;
            while let Some((frame, payload)) =
                bytes.get(at..).and_then(|rest| Frame::decode(rest, &writer.options.identity))
                && (frame.stream, frame.sequence, frame.life) == (id, frames, life)
            {
                give(payload, &mut |record| sink.snapshot(record))?;
                frames += 1;
                at += frame_bytes(payload.len());
            }
            end = offset_of(writer.superblock.segment_bytes, index) + at as u64;
            writer.snapshot.push(index);
            self.advance(writer, sink);
        }
        match frames == snapshot_frames {
            true => Ok(()),
            false => Err(damaged(format!(
                "frame {frames} of {snapshot_frames} of snapshot {id}, at offset {end} or behind, does not match its checksum"
            ))),
        }
    }

    fn log<M: Medium>(
        &mut self,
        writer: &mut Writer<M>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut life = 0;
        while let Some(&(segment_life, index)) = self.segments.get(&(LOG, writer.next)) {
            if segment_life < life {
                break;
            }
            let first = writer.next;
            let bytes = self.segment(writer, index)?;
            let mut at = BLOCK_BYTES;
            while let Some((frame, payload)) =
                bytes.get(at..).and_then(|rest| Frame::decode(rest, &writer.options.identity))
                && (frame.stream, frame.sequence) == (LOG, writer.next)
                && frame.life == segment_life
                // Who came back before us ended here, and went on elsewhere.
                && self.segments.get(&(LOG, writer.next)).is_none_or(|next| {
                    next.0 <= segment_life || writer.next == first
                })
            {
                give(payload, take)?;
                life = frame.life;
                writer.next += 1;
                at += frame_bytes(payload.len());
                writer.log_bytes += frame_bytes(payload.len()) as u64;
            }
            self.end = offset_of(writer.superblock.segment_bytes, index) + at as u64;
            if writer.next == first {
                break;
            }
            writer.log.push_back((first, index));
        }
        Ok(())
    }

    /// Frames are written only when those before have been synced, or together with them: a frame
    /// that says so of what is not there shows that something was lost since.
    fn refuse_holes<M: Medium>(&mut self, writer: &mut Writer<M>) -> Result<()> {
        let hole = |frame: &Frame, end: u64| frame.stream == LOG && frame.synced > end;
        // All frames that could follow are in segments that begin behind the end, or behind it in
        // the last one, or where a head is spoilt.
        let last = writer.log.back().map(|&(_, index)| index);
        let behind = self.segments.iter().filter_map(|(&(stream, first), &(_, index))| {
            (stream == LOG && first >= writer.next).then_some(index)
        });
        let headless = self.headless.iter().copied();
        for index in behind.chain(last).chain(headless).collect::<Vec<_>>() {
            let bytes = self.segment(writer, index)?;
            for block in bytes.chunks_exact(BLOCK_BYTES) {
                let at = block.as_ptr().addr() - bytes.as_ptr().addr();
                let Some(frame) = Frame::peek(block).filter(|frame| hole(frame, writer.next))
                else {
                    continue;
                };
                if Frame::decode(&bytes[at..], &writer.options.identity).is_some() {
                    let offset = offset_of(writer.superblock.segment_bytes, index) + at as u64;
                    return Err(damaged(format!(
                        "frame {} of the log does not match its checksum, though frame {} at offset {offset} was written after it was synced",
                        writer.next, frame.sequence
                    )));
                }
            }
        }
        Ok(())
    }
}

fn give(payload: &[u8], take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    for record in records(payload) {
        take(record.ok_or_else(|| damaged("a record is longer than its frame"))?)?;
    }
    Ok(())
}
