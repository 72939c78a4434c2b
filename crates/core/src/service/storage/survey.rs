//! What a kept target's journal says, without the target: to check what is on its disk.

use super::arena::CHUNK_BYTES;
use super::chunk::Key;
use super::disk::BLOCK_BYTES;
use super::flow::salt;
use super::kept::{Entry, Last, Origin};
use super::tier::{Base, QUARTER_BYTES, Tier};
use super::{State, Target};
use crate::checksum;
use crate::error::{Code, Error, Result};
use crate::journal::Sink;
use crate::types::{Incarnation, Ino};
use std::collections::BTreeMap;

/// A chunk on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    key: Key,
    run: Base,
}

impl Placed {
    /// Where its first byte is on disk, and how many bytes it has there.
    pub fn place(&self) -> (u64, usize) {
        (u64::from(self.run.block) * BLOCK_BYTES as u64, self.run.length as usize)
    }

    /// Whether these are the bytes that were written for it.
    ///
    /// # Errors
    /// If not: which ones are not.
    pub fn verify(&self, target: Incarnation, bytes: &[u8]) -> Result<()> {
        for (quarter, part) in bytes.chunks(QUARTER_BYTES).enumerate() {
            let sum = checksum::append(salt(target.0, self.key, quarter), part);
            if sum != self.run.sums[quarter] {
                return Err(self.bad(quarter as u64, "wrong checksum on disk"));
            }
        }
        Ok(())
    }

    /// Tells what is wrong with a part of it.
    pub fn bad(&self, quarter: u64, what: &str) -> Error {
        let offset = self.key.1 * CHUNK_BYTES as u64 + quarter * QUARTER_BYTES as u64;
        let (at, _) = self.place();
        let at = at + quarter * QUARTER_BYTES as u64;
        let cause = format!(
            "inode {}, object offset {offset} (byte {at} of the disk): {what}",
            self.key.0.0
        );
        Error::because(Code::Damaged, cause)
    }
}

/// Chunks looked up at a time: others want the target's lock, too.
pub const PLACED_BATCH: usize = 256;

/// Where to go on among a target's chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place(Option<Key>);

impl Target {
    /// Copies of chunks that are on disk now, from a place on, which moves; none: those were all. Of a
    /// chunk that the journal knows by an older copy than the newest both are there.
    pub fn placed(&self, place: &mut Place) -> Vec<Placed> {
        let (mut ino, mut index) = place.0.unwrap_or((Ino(0), 0));
        let state = self.lock();
        let Some(tier) = &state.chunks.tier else { return Vec::new() };
        let mut found = Vec::new();
        while let Some((&next, object)) = state.objects.range(ino..).next() {
            if next != ino {
                (ino, index) = (next, 0);
            }
            for (&at, chunk) in object.chunks.range(index..) {
                let key = (ino, at);
                found.extend(state.copies(tier, chunk.record).map(|run| Placed { key, run }));
                index = at + 1;
                if found.len() >= PLACED_BATCH {
                    place.0 = Some((ino, index));
                    return found;
                }
            }
            (ino, index) = (Ino(ino.0 + 1), 0);
        }
        place.0 = Some((ino, index));
        found
    }

    /// Whether a copy still is one: if not, its blocks may hold something else by now.
    pub fn is_placed(&self, placed: &Placed) -> bool {
        let state = self.lock();
        let (ino, index) = placed.key;
        let chunk = state.objects.get(&ino).and_then(|object| object.chunks.get(&index));
        match (chunk, &state.chunks.tier) {
            (Some(chunk), Some(tier)) => {
                let same = |run: Base| run.block == placed.run.block && run.sums == placed.run.sums;
                state.copies(tier, chunk.record).any(same)
            }
            _ => false,
        }
    }
}

impl State {
    /// Copies on disk of the chunk with this record.
    fn copies(&self, tier: &Tier, id: u32) -> impl Iterator<Item = Base> + use<> {
        let base = if id == 0 { None } else { tier.base(id) };
        let ledger = tier.ledger.as_ref().filter(|_| id != 0);
        let said = ledger.map(|ledger| ledger.said(id).run).filter(|run| run.block != 0);
        let older = said.filter(|said| base.is_none_or(|base| base.block != said.block));
        base.into_iter().chain(older)
    }
}

/// Gathers what a journal says of the disk.
#[derive(Default)]
pub struct Survey {
    last: Last,
    chunks: BTreeMap<Key, Base>,
    /// Bytes that are in the journal itself.
    pub inline_bytes: u64,
    /// Records read.
    pub records: u64,
}

impl Survey {
    /// All chunks on disk, in the order in which they lie there.
    pub fn placed(&self) -> Vec<Placed> {
        let mut placed: Vec<Placed> =
            self.chunks.iter().map(|(&key, &run)| Placed { key, run }).collect();
        placed.sort_unstable_by_key(|placed| placed.run.block);
        placed
    }

    /// Chunks that are said to be where others are.
    pub fn overlaps(placed: &[Placed]) -> Vec<Error> {
        let overlap = |pair: &&[Placed]| {
            u64::from(pair[0].run.block) + pair[0].run.blocks() as u64
                > u64::from(pair[1].run.block)
        };
        let pairs = placed.windows(2).filter(overlap);
        pairs.map(|pair| pair[1].bad(0, "its blocks are another chunk's")).collect()
    }

    fn apply(&mut self, record: &[u8], origin: Origin) -> Result<()> {
        self.records += 1;
        let Survey { last, chunks, inline_bytes, .. } = self;
        last.replay(record, origin, |entry| {
            if let Entry::Chunk { key, run, bytes, .. } = entry {
                *inline_bytes += bytes.len() as u64;
                if run.block != 0 {
                    chunks.insert(key, run);
                }
            }
            Ok(())
        })
    }
}

impl Sink for Survey {
    fn foresees(&self) -> bool {
        true
    }

    fn foresee(&mut self, record: &[u8]) -> Result<()> {
        self.last.foresee(record)
    }

    fn snapshot(&mut self, record: &[u8]) -> Result<()> {
        self.apply(record, Origin::Snapshot)
    }

    fn record(&mut self, record: &[u8]) -> Result<()> {
        self.apply(record, Origin::Log)
    }
}
