//! What a file must look like: a plain `Vec<u8>`, and what may have happened to it beside.

use std::sync::Arc;
use weir_core::layout::{Extent, Layout};
use weir_core::types::WallTime;

/// A change of a file's content.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Write { offset: u64, bytes: Arc<Vec<u8>> },
    Truncate(u64),
    Punch(Extent),
}

impl Effect {
    fn apply(&self, data: &mut Vec<u8>) {
        match self {
            Effect::Write { offset, bytes } => {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[start..end].copy_from_slice(bytes);
            }
            Effect::Truncate(size) => data.resize(*size as usize, 0),
            Effect::Punch(extent) => {
                let end = (extent.end() as usize).min(data.len());
                let start = (extent.offset as usize).min(end);
                data[start..end].fill(0);
            }
        }
    }

    /// Whether a byte may be this because of the effect.
    fn allows(&self, base_size: u64, at: u64, byte: u8) -> bool {
        match self {
            Effect::Write { offset, bytes } => {
                let within = at.checked_sub(*offset).and_then(|i| bytes.get(i as usize));
                within == Some(&byte) || (byte == 0 && at >= base_size && at < *offset)
            }
            // Cut off, and perhaps grown again by another effect.
            Effect::Truncate(size) => byte == 0 && (at >= *size || at >= base_size),
            Effect::Punch(extent) => byte == 0 && (extent.offset..extent.end()).contains(&at),
        }
    }
}

/// A file as it must be.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileModel {
    /// The outcome of all that has ended well.
    pub(crate) data: Vec<u8>,
    /// Under way, or ended in an error: may have happened, may yet happen, also in part.
    pub(crate) doubts: Vec<Effect>,
    /// Everything begun in this round, for those who read meanwhile.
    log: Vec<Effect>,
    /// As set by utimens and not written since.
    pub(crate) mtime: Option<WallTime>,
    pub(crate) layout: Option<Layout>,
}

/// What a reader may see of a file, as of when he began.
#[derive(Clone, Debug)]
pub(crate) struct View {
    base: Vec<u8>,
    effects: Vec<Effect>,
    mark: usize,
}

impl FileModel {
    pub(crate) fn begin(&mut self, effects: &[Effect]) {
        self.mtime = None;
        self.doubts.extend_from_slice(effects);
        self.log.extend_from_slice(effects);
    }

    /// The newest `count` effects begun have happened.
    pub(crate) fn done(&mut self, count: usize) {
        for effect in self.doubts.split_off(self.doubts.len() - count) {
            effect.apply(&mut self.data);
        }
    }

    /// All doubts are settled: this is how it is.
    pub(crate) fn settle(&mut self, data: Vec<u8>) {
        self.data = data;
        self.doubts.clear();
        self.log.clear();
    }

    pub(crate) fn view(&self) -> View {
        View { base: self.data.clone(), effects: self.doubts.clone(), mark: self.log.len() }
    }

    /// Adds what has begun since the view was taken.
    pub(crate) fn extend(&self, view: &mut View) {
        view.effects.extend_from_slice(self.log.get(view.mark..).unwrap_or_default());
    }
}

impl View {
    /// Smallest and largest size that may be seen.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let size = self.base.len() as u64;
        let (mut low, mut high) = (size, size);
        for effect in &self.effects {
            match effect {
                Effect::Write { offset, bytes } => high = high.max(offset + bytes.len() as u64),
                Effect::Truncate(size) => {
                    low = low.min(*size);
                    high = high.max(*size);
                }
                Effect::Punch(_) => {}
            }
        }
        (low, high)
    }

    pub(crate) fn exact(&self) -> bool {
        self.effects.is_empty()
    }

    pub(crate) fn check_size(&self, size: u64) -> Result<(), String> {
        let (low, high) = self.sizes();
        match (low..=high).contains(&size) {
            true => Ok(()),
            false if low == high => Err(format!("size is {size}, must be {low}")),
            false => Err(format!("size is {size}, must be {low} to {high}")),
        }
    }

    /// Checks what a read of `extents` found: `found` bytes before the file's end.
    pub(crate) fn check_read(
        &self,
        extents: &[Extent],
        bytes: &[u8],
        found: usize,
    ) -> Result<(), String> {
        let (low, high) = self.sizes();
        let before = |size: u64| -> u64 {
            extents.iter().map(|e| size.saturating_sub(e.offset).min(e.length)).sum()
        };
        if !(before(low)..=before(high)).contains(&(found as u64)) {
            return Err(format!(
                "read of {extents:?} found {found} bytes, must be {} to {} (size {low} to {high})",
                before(low),
                before(high)
            ));
        }
        let mut at = 0;
        for extent in extents {
            let part = &bytes[at..at + extent.length as usize];
            at += part.len();
            let start = (extent.offset as usize).min(self.base.len());
            let end = (extent.end() as usize).min(self.base.len());
            if part.len() == end - start && *part == self.base[start..end] {
                continue;
            }
            for (i, &byte) in part.iter().enumerate() {
                self.check_byte(extent.offset + i as u64, byte)?;
            }
        }
        Ok(())
    }

    fn check_byte(&self, at: u64, byte: u8) -> Result<(), String> {
        let size = self.base.len() as u64;
        let is = self.base.get(at as usize).copied();
        // Behind the end of what is found, buffers are zeros.
        if is.unwrap_or(0) == byte || self.effects.iter().any(|e| e.allows(size, at, byte)) {
            return Ok(());
        }
        Err(format!(
            "byte {at} is {byte:#04x}, must be {:#04x} (size {size}, {} other effects possible)",
            is.unwrap_or(0),
            self.effects.len()
        ))
    }
}

/// What somebody did with a shared name, and what came of it.
#[derive(Clone, Debug)]
pub(crate) enum NameOp {
    /// Exclusive creation: the new file's number, or that it exists.
    Create(usize, Option<u64>),
    /// Whether it was there.
    Unlink(usize, bool),
    /// Whether the first was there.
    Rename(usize, usize, bool),
    /// What was there.
    Lookup(usize, Option<u64>),
}

/// One operation on shared names.
#[derive(Clone, Debug)]
pub(crate) struct NameEvent {
    pub(crate) begin_us: u64,
    /// None: its outcome is not known; it may take effect at any time, or never.
    pub(crate) end_us: Option<u64>,
    pub(crate) op: NameOp,
}

/// Shared names.
pub(crate) const NAMES: usize = 4;
/// Stands for a file whose number nobody was told.
const SOMETHING: u64 = u64::MAX;

type Names = [Option<u64>; NAMES];

/// Whether the operations can be put in an order in which each, taken at one moment between its
/// beginning and its end, has the outcome that it had.
pub(crate) fn linearizable(history: &[NameEvent]) -> bool {
    assert!(history.len() <= 128, "a history fits into a set of 128 bits");
    let mut seen = std::collections::BTreeSet::new();
    search(history, 0, [None; NAMES], &mut seen)
}

fn search(
    history: &[NameEvent],
    done: u128,
    names: Names,
    seen: &mut std::collections::BTreeSet<(u128, Names)>,
) -> bool {
    let open = |i: &usize| done & (1 << i) == 0;
    let certain = |i: &usize| history[*i].end_us.is_some();
    let Some(first_end) =
        (0..history.len()).filter(open).filter(certain).filter_map(|i| history[i].end_us).min()
    else {
        return true;
    };
    if !seen.insert((done, names)) {
        return false;
    }
    for i in (0..history.len()).filter(open) {
        // What began after another one had ended comes after it.
        if history[i].begin_us > first_end {
            continue;
        }
        if let Some(next) = step(&history[i], names)
            && search(history, done | 1 << i, next, seen)
        {
            return true;
        }
    }
    false
}

/// The names after an operation, if it can have had its outcome.
fn step(event: &NameEvent, mut names: Names) -> Option<Names> {
    let unknown = event.end_us.is_none();
    match event.op {
        NameOp::Create(name, made) => match (names[name], made) {
            (None, Some(ino)) => names[name] = Some(ino),
            (None, None) if unknown => names[name] = Some(SOMETHING),
            (Some(_), None) => {}
            _ => return None,
        },
        NameOp::Unlink(name, there) => {
            if !unknown && names[name].is_some() != there {
                return None;
            }
            names[name] = None;
        }
        NameOp::Rename(from, to, there) => {
            if !unknown && names[from].is_some() != there {
                return None;
            }
            if names[from].is_some() && from != to {
                names[to] = names[from].take();
            }
        }
        NameOp::Lookup(name, found) => {
            let fits = match (names[name], found) {
                (Some(SOMETHING), Some(_)) => true,
                (is, found) => is == found,
            };
            if !fits {
                return None;
            }
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(begin_us: u64, end_us: u64, op: NameOp) -> NameEvent {
        NameEvent { begin_us, end_us: Some(end_us), op }
    }

    #[test]
    fn histories_that_cannot_be_are_refused() {
        let create = event(0, 10, NameOp::Create(0, Some(7)));
        let second = event(5, 15, NameOp::Create(0, Some(8)));
        assert!(linearizable(&[create.clone(), event(11, 12, NameOp::Lookup(0, Some(7)))]));
        assert!(!linearizable(&[create.clone(), event(11, 12, NameOp::Lookup(0, None))]));
        assert!(!linearizable(&[create.clone(), second.clone()]));
        let unlink = event(5, 15, NameOp::Unlink(0, true));
        assert!(linearizable(&[create.clone(), second, unlink.clone()]));
        let rename = event(20, 30, NameOp::Rename(0, 1, true));
        assert!(linearizable(&[create.clone(), rename.clone()]));
        assert!(!linearizable(&[create.clone(), unlink.clone(), rename]));
        let unknown = NameEvent { end_us: None, ..unlink };
        assert!(linearizable(&[create.clone(), unknown.clone()]));
        assert!(linearizable(&[create, unknown, event(20, 21, NameOp::Lookup(0, None))]));
    }

    #[test]
    fn doubts_widen_what_may_be_seen_and_nothing_else() {
        let mut file = FileModel::default();
        let write =
            |offset, byte, length| Effect::Write { offset, bytes: Arc::new(vec![byte; length]) };
        file.begin(&[write(0, 1, 10)]);
        file.done(1);
        let all = [Extent { offset: 0, length: 10 }];
        assert!(file.view().check_read(&all, &[1; 10], 10).is_ok());
        assert!(file.view().check_read(&all, &[1; 10], 9).is_err());
        let mut torn = [1; 10];
        torn[4..6].fill(2);
        assert!(file.view().check_read(&all, &torn, 10).is_err());
        file.begin(&[write(4, 2, 2)]);
        assert!(file.view().check_read(&all, &torn, 10).is_ok());
        file.done(1);
        assert!(file.view().check_read(&all, &[1; 10], 10).is_err());
    }
}
