//! A disk's twin for crash tests: it records what is written and synced, fails when it is told to,
//! and makes the images that a crash at any moment can leave.

use super::{BLOCK_BYTES, Medium};
use crate::error::{Code, Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a disk writes as a whole, at the least.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, Debug)]
enum Deed {
    Write { offset: u64, bytes: Vec<u8> },
    Sync,
}

#[derive(Debug, Default)]
struct State {
    /// As reads see it.
    bytes: Vec<u8>,
    /// What was there when recording began.
    base: Vec<u8>,
    deeds: Vec<Deed>,
    /// Operations so far, and the one that fails, and all after it.
    operations: u64,
    fails_at: Option<u64>,
}

/// A disk in memory that remembers how it came to what it holds. Its clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<State>>);

/// What a crash left.
#[derive(Clone, Debug)]
pub struct Image {
    /// The disk's bytes.
    pub bytes: Vec<u8>,
    /// So many deeds had been done or begun.
    pub deeds: usize,
}

impl Recorder {
    /// A disk that holds these bytes.
    pub fn new(bytes: Vec<u8>) -> Recorder {
        Recorder(Arc::new(Mutex::new(State { base: bytes.clone(), bytes, ..State::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its `n`-th operation from here on, counted from 0, fails, and so do all after it. A write
    /// that fails may have been done in part.
    pub fn fail_at(&self, n: u64) {
        let mut state = self.lock();
        state.fails_at = Some(state.operations + n);
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Writes and syncs recorded so far.
    pub fn deeds(&self) -> usize {
        self.lock().deeds.len()
    }

    /// Its bytes as they are.
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    /// Changes bytes behind everybody's back.
    pub fn spoil(&self, offset: u64, flip: u8) {
        self.lock().bytes[offset as usize] ^= flip;
    }

    /// Calls `look` with images that a crash can leave, for every moment from deed `from` on. Before
    /// the last sync everything is there; of what was written since then: nothing, all, each prefix,
    /// and `samples` random subsets, in which the writes are whole, torn at 4 KiB or torn at 512
    /// bytes. `random` gives the next of an endless row of numbers.
    pub fn each_image(
        &self,
        from: usize,
        samples: usize,
        random: &mut dyn FnMut() -> u64,
        look: &mut dyn FnMut(Image),
    ) {
        let state = self.lock();
        let (deeds, base) = (state.deeds.clone(), state.base.clone());
        drop(state);
        let mut synced = base;
        let mut open: Vec<(u64, Vec<u8>)> = Vec::new();
        for (index, deed) in deeds.iter().enumerate() {
            match deed {
                Deed::Write { offset, bytes } => open.push((*offset, bytes.clone())),
                Deed::Sync => {
                    for (offset, bytes) in open.drain(..) {
                        put(&mut synced, offset, &bytes);
                    }
                }
            }
            if index < from {
                continue;
            }
            let deeds = index + 1;
            look(Image { bytes: synced.clone(), deeds });
            let mut image = synced.clone();
            for (offset, bytes) in &open {
                put(&mut image, *offset, bytes);
                look(Image { bytes: image.clone(), deeds });
            }
            for _ in 0..if open.is_empty() { 0 } else { samples } {
                let mut image = synced.clone();
                for (offset, bytes) in &open {
                    let unit = match random() % 4 {
                        0 => continue,
                        1 => {
                            put(&mut image, *offset, bytes);
                            continue;
                        }
                        2 => BLOCK_BYTES,
                        _ => SECTOR_BYTES,
                    };
                    for (number, part) in bytes.chunks(unit).enumerate() {
                        if random().is_multiple_of(2) {
                            put(&mut image, offset + (number * unit) as u64, part);
                        }
                    }
                }
                look(Image { bytes: image, deeds });
            }
        }
    }

    fn operate(&self) -> (MutexGuard<'_, State>, Result<()>) {
        let mut state = self.lock();
        let result = match state.fails_at {
            Some(at) if state.operations >= at => {
                Err(Error::because(Code::Disk, "the twin was told to fail"))
            }
            _ => Ok(()),
        };
        state.operations += 1;
        (state, result)
    }
}

fn put(image: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    if image.len() < end {
        image.resize(end, 0);
    }
    image[start..end].copy_from_slice(bytes);
}

impl Medium for Recorder {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let (state, result) = self.operate();
        result?;
        let found = state.bytes.get(offset as usize..).unwrap_or_default();
        let length = found.len().min(into.len());
        into[..length].copy_from_slice(&found[..length]);
        into[length..].fill(0);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        assert!(
            offset.is_multiple_of(BLOCK_BYTES as u64) && bytes.len().is_multiple_of(BLOCK_BYTES),
            "whole blocks are written"
        );
        let (mut state, result) = self.operate();
        // A write that fails is one that a crash may have left in part.
        state.deeds.push(Deed::Write { offset, bytes: bytes.to_vec() });
        put(&mut state.bytes, offset, bytes);
        result
    }

    fn sync(&mut self) -> Result<()> {
        let (mut state, result) = self.operate();
        if result.is_ok() {
            state.deeds.push(Deed::Sync);
        }
        result
    }

    fn length(&mut self) -> Result<u64> {
        Ok(self.lock().bytes.len() as u64)
    }
}
