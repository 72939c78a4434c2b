//! The journal's blocks, to the byte: see docs/journal.md.

use super::{BLOCK_BYTES, Identity};
use crate::checksum;
use crate::error::{Code, Error, Result};

/// Version of the format.
pub(super) const VERSION: u32 = 1;
/// Superblocks, in turn.
pub(super) const SUPERBLOCKS: u64 = 2;
/// Bytes in front of a frame's payload.
pub(super) const FRAME_HEAD_BYTES: usize = 48;

const SUPERBLOCK_MAGIC: &[u8; 8] = b"weirjrnl";
const SEGMENT_MAGIC: &[u8; 8] = b"weirsegm";
const FRAME_MAGIC: &[u8; 4] = b"wfrm";

/// The stream of all log segments; those of snapshots are their ids, from 1 on.
pub(super) const LOG: u64 = 0;

/// Where things begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    /// Counts superblocks written; the newest one counts.
    pub(super) generation: u64,
    pub(super) segment_bytes: u64,
    /// How often the journal was opened.
    pub(super) life: u64,
    /// The newest whole snapshot; 0: none.
    pub(super) snapshot: u64,
    pub(super) snapshot_segments: u64,
    pub(super) snapshot_frames: u64,
    /// The first frame of the log that is to be replayed over it.
    pub(super) log_start: u64,
}

/// What a segment is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// [`LOG`], or a snapshot.
    pub(super) stream: u64,
    /// Its number within a snapshot; of a log segment the sequence of its first frame.
    pub(super) first: u64,
    pub(super) life: u64,
}

/// What stands in front of records that were written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) stream: u64,
    pub(super) sequence: u64,
    pub(super) life: u64,
    /// When it was written, the log's frames below this one were on the disk.
    pub(super) synced: u64,
    pub(super) length: u32,
}

fn seed(identity: &Identity) -> u32 {
    checksum::crc32c(identity)
}

struct Put<'a>(&'a mut [u8], usize);

impl Put<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
    }

    fn word(&mut self, word: u64) {
        self.bytes(&word.to_le_bytes());
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// Puts the checksum over a block into its bytes 12 to 16.
fn seal(block: &mut [u8], identity: &Identity) {
    let sum = checksum::append(seed(identity), block);
    block[12..16].copy_from_slice(&sum.to_le_bytes());
}

fn sealed(block: &[u8], identity: &Identity) -> bool {
    let stated = half(block, 12);
    let sum = checksum::append(seed(identity), &block[..12]);
    let sum = checksum::append(sum, &[0; 4]);
    checksum::append(sum, &block[16..]) == stated
}

impl Superblock {
    pub(super) fn encode(&self, identity: &Identity) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut put = Put(&mut block, 0);
        put.bytes(SUPERBLOCK_MAGIC);
        put.bytes(&VERSION.to_le_bytes());
        put.bytes(&[0; 4]);
        put.bytes(identity);
        for value in [
            self.generation,
            self.segment_bytes,
            self.life,
            self.snapshot,
            self.snapshot_segments,
            self.snapshot_frames,
            self.log_start,
        ] {
            put.word(value);
        }
        seal(&mut block, identity);
        block
    }

    /// `None`: there is none here, or a torn one.
    ///
    /// # Errors
    /// If it is one of another program or another journal.
    pub(super) fn decode(block: &[u8], identity: &Identity) -> Result<Option<Superblock>> {
        let found: Identity = block[16..32].try_into().expect("16 bytes");
        if &block[..8] != SUPERBLOCK_MAGIC || !sealed(block, &found) {
            return Ok(None);
        }
        let version = half(block, 8);
        if version != VERSION {
            let cause = format!("journal of format {version}, this program knows {VERSION}");
            return Err(Error::because(Code::Version, cause));
        }
        if found != *identity {
            let cause = "this journal belongs to another pool or target";
            return Err(Error::because(Code::Invalid, cause));
        }
        let superblock = Superblock {
            generation: word(block, 32),
            segment_bytes: word(block, 40),
            life: word(block, 48),
            snapshot: word(block, 56),
            snapshot_segments: word(block, 64),
            snapshot_frames: word(block, 72),
            log_start: word(block, 80),
        };
        if super::check_segment_bytes(superblock.segment_bytes).is_err() {
            return Ok(None);
        }
        Ok(Some(superblock))
    }
}

impl Segment {
    pub(super) fn encode(&self, identity: &Identity) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut put = Put(&mut block, 0);
        put.bytes(SEGMENT_MAGIC);
        put.bytes(&VERSION.to_le_bytes());
        put.bytes(&[0; 4]);
        put.bytes(identity);
        put.word(self.stream);
        put.word(self.first);
        put.word(self.life);
        seal(&mut block, identity);
        block
    }

    pub(super) fn decode(block: &[u8], identity: &Identity) -> Option<Segment> {
        let whole = &block[..8] == SEGMENT_MAGIC
            && half(block, 8) == VERSION
            && block[16..32] == *identity
            && sealed(block, identity);
        whole.then(|| Segment {
            stream: word(block, 32),
            first: word(block, 40),
            life: word(block, 48),
        })
    }
}

impl Frame {
    /// Appends the frame, filled up to whole blocks.
    pub(super) fn encode(&self, identity: &Identity, payload: &[u8], into: &mut Vec<u8>) {
        let start = into.len();
        into.resize(start + FRAME_HEAD_BYTES, 0);
        let mut put = Put(&mut into[start..], 0);
        put.bytes(FRAME_MAGIC);
        put.bytes(&self.length.to_le_bytes());
        put.bytes(&VERSION.to_le_bytes());
        put.bytes(&[0; 4]);
        put.word(self.stream);
        put.word(self.sequence);
        put.word(self.life);
        put.word(self.synced);
        into.extend_from_slice(payload);
        let end = into.len();
        seal(&mut into[start..end], identity);
        into.resize(start + frame_bytes(payload.len()), 0);
    }

    /// A frame's head, not yet verified, from the first block of it.
    pub(super) fn peek(block: &[u8]) -> Option<Frame> {
        let is_one = block.len() >= FRAME_HEAD_BYTES
            && &block[..4] == FRAME_MAGIC
            && half(block, 8) == VERSION;
        is_one.then(|| Frame {
            length: half(block, 4),
            stream: word(block, 16),
            sequence: word(block, 24),
            life: word(block, 32),
            synced: word(block, 40),
        })
    }

    /// A whole frame; `None`: there is none, or not whole.
    pub(super) fn decode<'a>(bytes: &'a [u8], identity: &Identity) -> Option<(Frame, &'a [u8])> {
        let frame = Frame::peek(bytes)?;
        let whole = bytes.get(..FRAME_HEAD_BYTES.checked_add(frame.length as usize)?)?;
        sealed(whole, identity).then(|| (frame, &whole[FRAME_HEAD_BYTES..]))
    }
}

/// What a frame takes up: bytes.
pub(super) fn frame_bytes(payload: usize) -> usize {
    (FRAME_HEAD_BYTES + payload).next_multiple_of(BLOCK_BYTES)
}
