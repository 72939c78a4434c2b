//! Twins of files for crash tests: they record what is written and synced, fail when they are told to,
//! and make the images that a crash at any moment can leave. Several files may share one recorder: each
//! is synced by itself, and a crash takes what it likes of what was not, of all of them.

use super::{BLOCK_BYTES, Medium};
use crate::error::{Code, Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a disk writes as a whole, at the least.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, Debug)]
enum Deed {
    Write { file: usize, offset: u64, bytes: Vec<u8> },
    Sync { file: usize },
}

#[derive(Debug, Default)]
struct State {
    /// As reads see them.
    files: Vec<Vec<u8>>,
    /// What was there when recording began.
    base: Vec<Vec<u8>>,
    deeds: Vec<Deed>,
    /// Operations so far, and the one that fails, and all after it.
    operations: u64,
    fails_at: Option<u64>,
}

/// A file in memory that remembers how it came to what it holds. Its clones are the same file.
#[derive(Clone, Debug)]
pub struct Recorder {
    state: Arc<Mutex<State>>,
    file: usize,
    /// Another file that a journal here names: see [`Medium::settle_named`].
    named: Option<usize>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder::new(Vec::new())
    }
}

/// What a crash left.
#[derive(Clone, Debug)]
pub struct Image {
    /// The files' bytes.
    pub files: Vec<Vec<u8>>,
    /// So many deeds had been done or begun.
    pub deeds: usize,
}

impl Image {
    /// The bytes of the first file.
    pub fn first(mut self) -> Vec<u8> {
        self.files.swap_remove(0)
    }
}

impl Recorder {
    /// A file that holds these bytes.
    pub fn new(bytes: Vec<u8>) -> Recorder {
        Recorder::files(vec![bytes]).remove(0)
    }

    /// Files that hold these bytes.
    pub fn files(files: Vec<Vec<u8>>) -> Vec<Recorder> {
        let count = files.len();
        let state = State { base: files.clone(), files, ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let file = |file| Recorder { state: state.clone(), file, named: None };
        (0..count).map(file).collect()
    }

    /// A journal's file, whose records name what is in another of the same recorder.
    pub fn naming(self, other: &Recorder) -> Recorder {
        Recorder { named: Some(other.file), ..self }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The `n`-th operation on any of its files from here on, counted from 0, fails, and so do all after
    /// it. A write that fails may have been done in part.
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
        self.lock().files[self.file].clone()
    }

    /// Changes bytes behind everybody's back.
    pub fn spoil(&self, offset: u64, flip: u8) {
        self.lock().files[self.file][offset as usize] ^= flip;
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
        let mut open: Vec<(usize, u64, Vec<u8>)> = Vec::new();
        for (index, deed) in deeds.iter().enumerate() {
            match deed {
                Deed::Write { file, offset, bytes } => open.push((*file, *offset, bytes.clone())),
                Deed::Sync { file: synced_file } => {
                    for (file, offset, bytes) in open.extract_if(.., |it| it.0 == *synced_file) {
                        put(&mut synced, file, offset, &bytes);
                    }
                }
            }
            if index < from {
                continue;
            }
            let deeds = index + 1;
            look(Image { files: synced.clone(), deeds });
            let mut image = synced.clone();
            for (file, offset, bytes) in &open {
                put(&mut image, *file, *offset, bytes);
                look(Image { files: image.clone(), deeds });
            }
            for _ in 0..if open.is_empty() { 0 } else { samples } {
                let mut image = synced.clone();
                for (file, offset, bytes) in &open {
                    let unit = match random() % 4 {
                        0 => continue,
                        1 => {
                            put(&mut image, *file, *offset, bytes);
                            continue;
                        }
                        2 => BLOCK_BYTES,
                        _ => SECTOR_BYTES,
                    };
                    for (number, part) in bytes.chunks(unit).enumerate() {
                        if random().is_multiple_of(2) {
                            put(&mut image, *file, offset + (number * unit) as u64, part);
                        }
                    }
                }
                look(Image { files: image, deeds });
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

fn put(files: &mut [Vec<u8>], file: usize, offset: u64, bytes: &[u8]) {
    let image = &mut files[file];
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
        let found = state.files[self.file].get(offset as usize..).unwrap_or_default();
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
        state.deeds.push(Deed::Write { file: self.file, offset, bytes: bytes.to_vec() });
        put(&mut state.files, self.file, offset, bytes);
        result
    }

    fn sync(&mut self) -> Result<()> {
        let (mut state, result) = self.operate();
        if result.is_ok() {
            state.deeds.push(Deed::Sync { file: self.file });
        }
        result
    }

    fn length(&mut self) -> Result<u64> {
        Ok(self.lock().files[self.file].len() as u64)
    }

    fn settle_named(&mut self) -> Result<()> {
        let Some(file) = self.named else { return Ok(()) };
        Recorder { file, ..self.clone() }.sync()
    }
}
