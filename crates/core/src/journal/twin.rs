//! Twins of files for crash tests: they record what is written and synced, fail when they are told to,
//! and make the images that a crash at any moment can leave. Several files may share one recorder: each
//! is synced by itself, and a crash takes what it likes of what was not, of all of them.

use super::{BLOCK_BYTES, Medium};
use crate::error::{Code, Error, Result};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a disk writes as a whole, at the least.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, Debug)]
enum Deed {
    Write {
        file: usize,
        offset: u64,
        bytes: Vec<u8>,
    },
    Sync {
        file: usize,
    },
    /// A sync that failed: of what was written before, any part may be lost, and no later sync brings
    /// it back.
    LostSync {
        file: usize,
    },
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An I/O error. What was written may be there, or any part of it.
    Error,
    /// The first half is read or written, and no more.
    Short,
    /// There is no room on the device: nothing is written. Reads and syncs go well.
    Full,
    /// The device is no more.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    at: u64,
    fault: Fault,
    /// All operations behind it fail, too.
    lasts: bool,
}

#[derive(Debug, Default)]
struct State {
    /// As reads see them.
    files: Vec<Vec<u8>>,
    /// What was there when recording began.
    base: Vec<Vec<u8>>,
    deeds: Vec<Deed>,
    /// Operations so far, and the one that fails.
    operations: u64,
    planned: Option<Planned>,
    /// Operations that failed, by file.
    failed: Vec<u64>,
    /// Room for more is short.
    tight: bool,
}

/// What a crash may leave of a file: of each byte the values that it may have, a bit each for 0 to 63.
/// Where a value is missing at its end, the file may be shorter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Possible(Vec<u64>);

impl Possible {
    /// It may be longer than it was by now, or filled up with zeros.
    fn reach(&mut self, end: usize) {
        self.0.resize(self.0.len().max(end), 1);
    }

    /// These bytes were written, and not synced.
    pub fn written(&mut self, start: usize, end: usize, value: u8) {
        self.reach(end);
        self.0[start..end].iter_mut().for_each(|byte| *byte |= 1 << value);
    }

    /// These bytes were made a hole, and that was not synced.
    pub fn punched(&mut self, start: usize, end: usize) {
        let end = end.min(self.0.len());
        self.0[start.min(end)..end].iter_mut().for_each(|byte| *byte |= 1);
    }

    /// It was cut, or made longer, and that is safe; or else, either way.
    pub fn cut(&mut self, size: usize, safe: bool) {
        let before = self.0.clone();
        self.0.resize(size, 1);
        if !safe {
            self.reach(before.len());
            self.0.iter_mut().zip(&before).for_each(|(byte, old)| *byte |= old);
            self.0.iter_mut().for_each(|byte| *byte |= 1);
        }
    }

    /// All that is here is safe.
    pub fn synced(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().map(|byte| 1 << byte).collect();
    }

    /// Whether this may be what is left.
    pub fn allows(&self, found: &[u8]) -> bool {
        found.len() <= self.0.len()
            && found.iter().zip(&self.0).all(|(byte, values)| values >> byte & 1 == 1)
            && self.0[found.len()..].iter().all(|values| values & 1 == 1)
    }
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
        let failed = vec![0; count];
        let state = State { base: files.clone(), files, failed, ..State::default() };
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
        self.plan(n, Fault::Error, true);
    }

    /// The `n`-th operation on any of its files from here on, counted from 0, fails so; if it `lasts`, all
    /// after it do.
    pub fn plan(&self, n: u64, fault: Fault, lasts: bool) {
        let mut state = self.lock();
        state.planned = Some(Planned { at: state.operations + n, fault, lasts });
    }

    /// Another process opens the file, syncs it and reads it anew, from the disk: of what a sync that
    /// failed had before it, any part is lost.
    pub fn reopen(&self, random: &mut dyn FnMut() -> u64) {
        let (mut state, own) = (self.lock(), self.file);
        let (mut open, mut lost) = (Vec::new(), BTreeSet::new());
        for (at, deed) in state.deeds.iter().enumerate() {
            match deed {
                Deed::Write { file, .. } if *file == own => open.push(at),
                Deed::Sync { file } if *file == own => open.clear(),
                Deed::LostSync { file } if *file == own => {
                    lost.extend(open.drain(..).filter(|_| random().is_multiple_of(2)));
                    lost.insert(at);
                }
                _ => {}
            }
        }
        let mut numbers = 0..;
        state.deeds.retain(|_| numbers.next().is_none_or(|at| !lost.contains(&at)));
        let State { files, base, deeds, .. } = &mut *state;
        files[own].clone_from(&base[own]);
        for deed in deeds.iter() {
            if let Deed::Write { file, offset, bytes } = deed
                && *file == own
            {
                put(files, own, *offset, bytes);
            }
        }
        deeds.push(Deed::Sync { file: own });
    }

    /// Whatever is planned does not happen.
    pub fn mend(&self) {
        self.lock().planned = None;
    }

    /// From now on there is no room to be set aside for what may come; or there is again.
    pub fn set_tight(&self, tight: bool) {
        self.lock().tight = tight;
    }

    /// The fault that is planned.
    pub fn fault(&self) -> Option<Fault> {
        self.lock().planned.map(|planned| planned.fault)
    }

    /// How many operations on this file have failed.
    pub fn failed(&self) -> u64 {
        self.lock().failed[self.file]
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
        self.images(from, usize::MAX, samples, random, look);
    }

    fn images(
        &self,
        from: usize,
        to: usize,
        samples: usize,
        random: &mut dyn FnMut() -> u64,
        look: &mut dyn FnMut(Image),
    ) {
        let state = self.lock();
        let (deeds, base) = (state.deeds.clone(), state.base.clone());
        drop(state);
        let mut synced = base;
        let mut open = Open::new();
        for (index, deed) in deeds.iter().take(to).enumerate() {
            match deed {
                Deed::Write { file, offset, bytes } => open.push((*file, *offset, bytes.clone())),
                Deed::Sync { file: synced_file } => {
                    for (file, offset, bytes) in open.extract_if(.., |it| it.0 == *synced_file) {
                        put(&mut synced, file, offset, &bytes);
                    }
                }
                Deed::LostSync { file: lost_file } => {
                    for (file, offset, bytes) in open.extract_if(.., |it| it.0 == *lost_file) {
                        if random().is_multiple_of(2) {
                            put(&mut synced, file, offset, &bytes);
                        }
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
                look(Image { files: torn(&synced, &open, random), deeds });
            }
        }
    }

    /// One of the images that a crash can leave now, or at any deed from `from` on, drawn by `random`.
    pub fn crash(&self, from: usize, random: &mut dyn FnMut() -> u64) -> Image {
        let deeds = self.deeds();
        let last = from.min(deeds) + (random() % (deeds.saturating_sub(from) as u64 + 1)) as usize;
        let mut drawn = Image { files: self.lock().base.clone(), deeds: last };
        if last > 0 {
            // Of one moment's images the last is torn, if anything is open then.
            self.images(last - 1, last, 1, random, &mut |image| drawn = image);
        }
        drawn
    }
}

type Open = Vec<(usize, u64, Vec<u8>)>;

/// What is safe, and of what is not any part.
fn torn(synced: &[Vec<u8>], open: &Open, random: &mut dyn FnMut() -> u64) -> Vec<Vec<u8>> {
    let mut image = synced.to_vec();
    for (file, offset, bytes) in open {
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
    image
}

impl Recorder {
    /// Counts an operation, and says how it fails, if it does.
    fn operate(&self, writes: bool) -> (MutexGuard<'_, State>, std::result::Result<(), Fault>) {
        let mut state = self.lock();
        let at = state.operations;
        let due = |planned: &Planned| at == planned.at || (planned.lasts && at > planned.at);
        let mut fault = state.planned.filter(due).map(|planned| planned.fault);
        if fault == Some(Fault::Full) && !writes {
            fault = None;
        }
        state.operations += 1;
        if fault.is_some() {
            state.failed[self.file] += 1;
        }
        (state, fault.map_or(Ok(()), Err))
    }
}

fn told(fault: Fault) -> Error {
    let code = if fault == Fault::Full { Code::NoSpace } else { Code::Disk };
    Error::because(code, "the twin was told to fail")
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
        let (state, result) = self.operate(false);
        let into = match result {
            Ok(()) => into,
            // The rest stays what it was: nobody may look at it.
            Err(Fault::Short) => {
                let half = into.len() / 2;
                &mut into[..half]
            }
            Err(fault) => return Err(told(fault)),
        };
        let found = state.files[self.file].get(offset as usize..).unwrap_or_default();
        let length = found.len().min(into.len());
        into[..length].copy_from_slice(&found[..length]);
        into[length..].fill(0);
        result.map_err(told)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        assert!(
            offset.is_multiple_of(BLOCK_BYTES as u64) && bytes.len().is_multiple_of(BLOCK_BYTES),
            "whole blocks are written"
        );
        let (mut state, result) = self.operate(true);
        let bytes = match result {
            // A write that fails is one that a crash may have left in part.
            Ok(()) | Err(Fault::Error) => bytes,
            Err(Fault::Short) => &bytes[..bytes.len() / 2],
            Err(fault) => return Err(told(fault)),
        };
        state.deeds.push(Deed::Write { file: self.file, offset, bytes: bytes.to_vec() });
        put(&mut state.files, self.file, offset, bytes);
        result.map_err(told)
    }

    fn is_tight(&mut self) -> bool {
        self.lock().tight
    }

    fn sync(&mut self) -> Result<()> {
        let (mut state, result) = self.operate(false);
        let file = self.file;
        state.deeds.push(match result {
            Ok(()) => Deed::Sync { file },
            Err(_) => Deed::LostSync { file },
        });
        result.map_err(told)
    }

    fn length(&mut self) -> Result<u64> {
        Ok(self.lock().files[self.file].len() as u64)
    }

    fn settle_named(&mut self) -> Result<()> {
        let Some(file) = self.named else { return Ok(()) };
        Recorder { file, ..self.clone() }.sync()
    }
}
