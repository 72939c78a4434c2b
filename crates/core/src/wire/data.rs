//! Requests to storage targets.

use super::protocol;
use crate::config::{LIST_EXTENTS_MAX, PAYLOAD_BYTES_MAX};
use crate::error::Result;
use crate::layout::{Extent, FILE_SIZE_MAX, Member};
use crate::types::{Incarnation, Ino, TargetId, WallTime};
use serde::{Deserialize, Serialize};

/// Length of the fixed part of a read's or write's body: bytes.
pub const IO_BYTES: usize = 48;
/// Length of one run in a list request: bytes.
pub const RUN_BYTES: usize = 24;
/// Length of a [`Witness`] on the wire: bytes.
pub const WITNESS_BYTES: usize = 32;

/// Extents of equal length at a regular stride: `count` times `length` bytes, the first at
/// `offset`, each next one `stride` further. A single extent is a run of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// First byte of the first extent.
    pub offset: u64,
    /// Bytes of each extent.
    pub length: u32,
    /// How many extents.
    pub count: u32,
    /// From the start of one to the start of the next: bytes (at least `length` if count > 1).
    pub stride: u64,
}

impl Run {
    /// A single extent.
    pub fn single(offset: u64, length: u32) -> Run {
        Run { offset, length, count: 1, stride: u64::from(length) }
    }

    /// Its extents, in order.
    pub fn extents(self) -> impl Iterator<Item = Extent> + Clone {
        (0..u64::from(self.count)).map(move |i| Extent {
            offset: self.offset + i * self.stride,
            length: u64::from(self.length),
        })
    }
}

/// Body of a read or write: which object, where in it.
///
/// ```text
///  0 u64 inode number    16 u32 target      24 u32 layout generation   32 u64 offset
///  8 u64 incarnation     20 u32 map epoch   28 u32 length              40 u32 runs   44 u32 data epoch
/// 48 runs × { u64 offset, u32 length, u32 count, u64 stride }
/// ```
/// With no runs, the one extent is `offset`, `length`; with runs, `offset` is 0 and `length` their
/// sum. The payload of a list is the extents' bytes, one behind the other in the list's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Io {
    /// The file whose object on this target is meant.
    pub ino: Ino,
    /// The target.
    pub member: Member,
    /// Epoch of the pool map that the client went by.
    pub map_epoch: u32,
    /// Generation of the layout that the client went by.
    pub generation: u32,
    /// Newest data epoch that the client knows: a write lifts the object to it.
    pub epoch: u32,
    /// The extents; never empty.
    pub runs: Runs,
}

/// The extents of a read or write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runs {
    /// One contiguous extent.
    One(Extent),
    /// A list; its sum is cached.
    List {
        /// The extents in compact form.
        runs: Vec<Run>,
        /// Bytes in all.
        length: usize,
    },
}

impl Runs {
    /// Bytes in all.
    pub fn length(&self) -> usize {
        match self {
            Runs::One(extent) => extent.length as usize,
            Runs::List { length, .. } => *length,
        }
    }

    /// The extents, in the order of the payload.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + Clone + '_ {
        let (one, list) = match self {
            Runs::One(extent) => (Some(*extent), &[][..]),
            Runs::List { runs, .. } => (None, &runs[..]),
        };
        one.into_iter().chain(list.iter().flat_map(|run| run.extents()))
    }

    /// Compacts extents (in payload order) into runs: neighbours are joined, regular strides folded.
    pub fn compact(extents: impl IntoIterator<Item = Extent>) -> Runs {
        let mut folding = Folding::default();
        extents.into_iter().for_each(|extent| folding.push(extent));
        folding.finish()
    }
}

/// Extents on their way into compact form, in payload order.
#[derive(Debug, Default)]
pub struct Folding {
    runs: Vec<Run>,
    /// Bytes in `runs`.
    folded: usize,
    /// The last extent, which may still grow.
    last: Option<Extent>,
    /// Extents so far, neighbours joined.
    extents: usize,
}

impl Folding {
    /// Adds an extent.
    pub fn push(&mut self, extent: Extent) {
        if extent.length == 0 {
            return;
        }
        match &mut self.last {
            Some(last) if last.end() == extent.offset => last.length += extent.length,
            _ => {
                self.fold();
                self.last = Some(extent);
                self.extents += 1;
            }
        }
    }

    /// Whether the last extents are of this length and at this distance.
    pub fn is_regular(&self, length: u64, stride: u64) -> bool {
        let (Some(run), Some(last)) = (self.runs.last(), &self.last) else { return false };
        let next = run.offset + u64::from(run.count) * run.stride;
        (last.offset, last.length) == (next, length)
            && (u64::from(run.length), run.stride) == (length, stride)
    }

    /// Adds `count` more extents like the last ones.
    ///
    /// # Panics
    /// If these are not [`Folding::is_regular`].
    pub fn repeat(&mut self, count: usize) {
        let (Some(run), Some(last)) = (self.runs.last_mut(), &mut self.last) else {
            panic!("nothing to repeat")
        };
        assert_eq!(last.length, run.length.into(), "the last extents are not alike");
        run.count += count as u32;
        last.offset += count as u64 * run.stride;
        self.folded += count * run.length as usize;
        self.extents += count;
    }

    /// Extents so far, neighbours joined.
    pub fn extents(&self) -> usize {
        self.extents
    }

    /// The compact form. Without any extents, an empty list.
    pub fn finish(mut self) -> Runs {
        if let (1, Some(one)) = (self.extents, self.last) {
            return Runs::One(one);
        }
        self.fold();
        Runs::List { runs: self.runs, length: self.folded }
    }

    /// Makes the last extent part of the runs.
    fn fold(&mut self) {
        let Some(extent) = self.last else { return };
        self.folded += extent.length as usize;
        if let Some(run) = self.runs.last_mut()
            && u64::from(run.length) == extent.length
        {
            let last_offset = run.offset + u64::from(run.count - 1) * run.stride;
            let step = extent.offset.wrapping_sub(last_offset);
            let ahead = extent.offset > last_offset && step >= extent.length;
            if ahead && (run.count == 1 || step == run.stride) {
                run.stride = step;
                run.count += 1;
                return;
            }
        }
        self.runs.push(Run::single(extent.offset, extent.length as u32));
    }
}

impl Io {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (offset, runs) = match &self.runs {
            Runs::One(extent) => (extent.offset, &[][..]),
            Runs::List { runs, .. } => (0, &runs[..]),
        };
        let mut bytes = Vec::with_capacity(IO_BYTES + runs.len() * RUN_BYTES);
        bytes.extend_from_slice(&self.ino.0.to_le_bytes());
        bytes.extend_from_slice(&self.member.incarnation.0.to_le_bytes());
        bytes.extend_from_slice(&self.member.target.0.to_le_bytes());
        bytes.extend_from_slice(&self.map_epoch.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&(self.runs.length() as u32).to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&(runs.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        for run in runs {
            bytes.extend_from_slice(&run.offset.to_le_bytes());
            bytes.extend_from_slice(&run.length.to_le_bytes());
            bytes.extend_from_slice(&run.count.to_le_bytes());
            bytes.extend_from_slice(&run.stride.to_le_bytes());
        }
        bytes
    }

    /// Parses and checks: extents are within a file's bounds, their number and sum within limits.
    pub fn decode(bytes: &[u8]) -> Result<Io> {
        let Some((fixed, mut rest)) = bytes.split_first_chunk::<IO_BYTES>() else {
            return Err(protocol("body of a read or write is too short"));
        };
        let u32_at = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("8 bytes"));
        let length = u32_at(28) as usize;
        let runs_count = u32_at(40) as usize;
        if length > PAYLOAD_BYTES_MAX || runs_count.checked_mul(RUN_BYTES) != Some(rest.len()) {
            return Err(protocol("a read or write whose lengths do not fit"));
        }
        let runs = if runs_count == 0 {
            let extent = Extent { offset: u64_at(32), length: length as u64 };
            check_extent(extent)?;
            Runs::One(extent)
        } else {
            let mut runs = Vec::with_capacity(runs_count);
            let (mut sum, mut extents) = (0u64, 0u64);
            while let Some((run, tail)) = rest.split_first_chunk::<RUN_BYTES>() {
                rest = tail;
                let run = Run {
                    offset: u64::from_le_bytes(run[0..8].try_into().expect("8 bytes")),
                    length: u32::from_le_bytes(run[8..12].try_into().expect("4 bytes")),
                    count: u32::from_le_bytes(run[12..16].try_into().expect("4 bytes")),
                    stride: u64::from_le_bytes(run[16..24].try_into().expect("8 bytes")),
                };
                if run.length == 0 || run.count == 0 {
                    return Err(protocol("an empty run in a list"));
                }
                if run.count > 1 && run.stride < u64::from(run.length) {
                    return Err(protocol("a run whose extents overlap"));
                }
                let last = u64::from(run.count - 1)
                    .checked_mul(run.stride)
                    .and_then(|span| span.checked_add(run.offset))
                    .ok_or_else(|| protocol("a run beyond the largest file"))?;
                check_extent(Extent { offset: last, length: u64::from(run.length) })?;
                extents += u64::from(run.count);
                sum = sum.saturating_add(u64::from(run.length) * u64::from(run.count));
                runs.push(run);
            }
            if extents > LIST_EXTENTS_MAX as u64 {
                return Err(protocol(format!("{extents} extents in one list")));
            }
            if sum != length as u64 {
                return Err(protocol("a list whose sum is not its length"));
            }
            Runs::List { runs, length }
        };
        Ok(Io {
            ino: Ino(u64_at(0)),
            member: Member { incarnation: Incarnation(u64_at(8)), target: TargetId(u32_at(16)) },
            map_epoch: u32_at(20),
            generation: u32_at(24),
            epoch: u32_at(44),
            runs,
        })
    }
}

fn check_extent(extent: Extent) -> Result<()> {
    match extent.offset.checked_add(extent.length) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(()),
        _ => Err(protocol("an extent beyond the largest file")),
    }
}

/// What a target knows of a file through its own object: the body of answers to reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// Size of the object: one past its last byte.
    pub size: u64,
    /// When it was last written (0 = never).
    pub mtime: WallTime,
    /// The data epoch in which that was (see [`crate::wire::meta`]).
    pub epoch: u32,
    /// How often the target has come to life, if what it holds outlives its server; else 0. What was
    /// written in an earlier life, and not synced in it, may be gone.
    pub life: u32,
    /// How often it was written, truncated, made longer or punched in this life: who finds the same
    /// number, in the same life, finds the same bytes.
    pub changes: u64,
}

impl Witness {
    /// Its bytes.
    pub fn encode(&self) -> [u8; WITNESS_BYTES] {
        let mut bytes = [0; WITNESS_BYTES];
        bytes[0..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.mtime.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.life.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.changes.to_le_bytes());
        bytes
    }

    /// Reads it back.
    pub fn decode(bytes: &[u8]) -> Result<Witness> {
        let bytes: &[u8; WITNESS_BYTES] =
            bytes.try_into().map_err(|_| protocol("a witness of the wrong length"))?;
        Ok(Witness {
            size: u64::from_le_bytes(bytes[0..8].try_into().expect("8 bytes")),
            mtime: WallTime(i64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"))),
            epoch: u32::from_le_bytes(bytes[16..20].try_into().expect("4 bytes")),
            life: u32::from_le_bytes(bytes[20..24].try_into().expect("4 bytes")),
            changes: u64::from_le_bytes(bytes[24..32].try_into().expect("8 bytes")),
        })
    }
}

/// Body of every other request to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetCall {
    /// The target.
    pub member: Member,
    /// Epoch of the pool map that the client went by.
    pub map_epoch: u32,
    /// What is asked.
    pub request: TargetRequest,
}

/// What can be asked of a target, reads and writes apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetRequest {
    /// What it knows of a file. Answer: [`TargetReply::Object`]. Right: any.
    Witness {
        /// The file.
        ino: Ino,
    },
    /// Cuts the object at `cut`, then sets its size to `size` (holes between). Ignored, and
    /// answered as done, if the object has already seen a truncation of `epoch` or later: an older
    /// one never undoes a newer one. Answer: [`TargetReply::Object`]. Right: write.
    Truncate {
        /// The file.
        ino: Ino,
        /// Bytes of the object that stay.
        cut: u64,
        /// Size of the object then.
        size: u64,
        /// The data epoch that this truncation began.
        epoch: u32,
    },
    /// Counts later writes to `epoch` (after utimens). Answer: [`TargetReply::Object`]. Right: any.
    Stamp {
        /// The file.
        ino: Ino,
        /// The data epoch that the change of times began.
        epoch: u32,
    },
    /// Makes holes; the size stays. Answer: [`TargetReply::Object`]. Right: write.
    Punch {
        /// The file.
        ino: Ino,
        /// Object extents; at most [`LIST_EXTENTS_MAX`].
        extents: Vec<Extent>,
    },
    /// Next data or hole at or behind `offset`. Answer: [`TargetReply::Seek`]. Right: any.
    Seek {
        /// The file.
        ino: Ino,
        /// Object offset to look from.
        offset: u64,
        /// For data (true) or for a hole.
        data: bool,
    },
    /// Makes what was written before durable, as far as the kind of pool promises it.
    /// Answer: [`TargetReply::Object`]. Right: any.
    Flush {
        /// The file.
        ino: Ino,
    },
    /// Frees the objects of files that no name and no handle leads to any more.
    /// Answer: [`TargetReply::Removed`]. The orders are their own capability.
    Remove {
        /// Signed by the metadata service; at most [`crate::config::REAP_BATCH_MAX`].
        orders: Vec<crate::auth::ReapOrder>,
    },
    /// Makes the object at least this long, as a write to its end would, but with a hole. Answer:
    /// [`TargetReply::Object`]. Right: write.
    Extend {
        /// The file.
        ino: Ino,
        /// Size of the object then, if it is not longer: bytes.
        size: u64,
        /// Newest data epoch that the client knows.
        epoch: u32,
    },
}

impl TargetRequest {
    /// Whether it may be carried out again after a reconnect (it changes nothing). The others
    /// happen once: their answer is kept and repeated.
    pub fn repeatable(&self) -> bool {
        matches!(self, TargetRequest::Witness { .. } | TargetRequest::Seek { .. })
    }
}

/// Answers to [`TargetRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetReply {
    /// State of the object after the request.
    Object {
        /// Size and time.
        witness: Witness,
        /// Bytes of memory (and, later, disk) that it holds.
        allocated: u64,
        /// Whether all of it is as safe as it will ever be: nothing is left for a flush to do.
        safe: bool,
    },
    /// Where the next data or hole begins; none: there is none (the object's end is a hole).
    Seek {
        /// Object offset.
        offset: Option<u64>,
    },
    /// How many of the objects were there.
    Removed {
        /// Objects freed.
        count: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn io(runs: Runs) -> Io {
        Io {
            ino: Ino(0x0102),
            member: Member { target: TargetId(3), incarnation: Incarnation(4) },
            map_epoch: 5,
            generation: 6,
            epoch: 9,
            runs,
        }
    }

    #[test]
    fn golden_read_is_64_bytes_with_its_header() {
        let bytes = io(Runs::One(Extent { offset: 7, length: 8 })).encode();
        assert_eq!(bytes.len() + super::super::HEADER_BYTES, 64);
        let mut golden = vec![2, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
        golden.extend_from_slice(&[3, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 8, 0, 0, 0]);
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0]);
        assert_eq!(bytes, golden);
    }

    #[test]
    fn regular_strides_are_one_run() {
        let extents = (0..1000).map(|i| Extent { offset: 100 + i * 4096, length: 256 });
        let Runs::List { runs, length } = Runs::compact(extents) else { panic!("a list") };
        assert_eq!(runs, [Run { offset: 100, length: 256, count: 1000, stride: 4096 }]);
        assert_eq!(length, 256_000);
    }

    #[test]
    fn lists_that_lie_are_refused() {
        let list = |run: Run| io(Runs::List { runs: vec![run], length: 8 }).encode();
        let good = Run { offset: 0, length: 4, count: 2, stride: 4 };
        assert!(Io::decode(&list(good)).is_ok());
        for bad in [
            Run { length: 3, ..good },
            Run { stride: 3, ..good },
            Run { count: 0, ..good },
            Run { offset: u64::MAX, ..good },
            Run { stride: u64::MAX, ..good },
        ] {
            assert!(Io::decode(&list(bad)).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn compacting_keeps_every_byte_in_order(
            extents in proptest::collection::vec((0u64..500, 0u64..20), 1..40)
        ) {
            let extents: Vec<_> =
                extents.into_iter().map(|(offset, length)| Extent { offset, length }).collect();
            let bytes = |extent: Extent| extent.offset..extent.end();
            let before: Vec<u64> = extents.iter().copied().flat_map(bytes).collect();
            let runs = Runs::compact(extents);
            let after: Vec<u64> = runs.extents().flat_map(bytes).collect();
            prop_assert_eq!(&before, &after);
            prop_assert_eq!(runs.length(), before.len());
            if !before.is_empty() {
                let io = io(runs);
                prop_assert_eq!(Io::decode(&io.encode()), Ok(io));
            }
        }

        #[test]
        fn any_bytes_decode_to_what_encodes_to_them(bytes in proptest::collection::vec(0u8..3, 0..120)) {
            if let Ok(io) = Io::decode(&bytes) {
                prop_assert_eq!(io.encode(), bytes);
            }
        }
    }
}
