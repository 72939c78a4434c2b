//! What a file must look like: a plain `Vec<u8>`, and what may have happened to it beside.

use std::sync::Arc;
use weir_core::layout::{Extent, Layout};
use weir_core::types::WallTime;

/// Holes are told in whole blocks of so many bytes.
const HOLE_BYTES: u64 = 4096;

/// What memory holds before a read: it must stay where the file has ended.
pub(crate) const UNTOUCHED: u8 = 0xee;

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
    /// Extended attributes, by their numbers.
    pub(crate) xattrs: [Xattr; XATTRS],
}

/// Extended attributes that a file may have.
pub(crate) const XATTRS: usize = 3;

/// One of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Xattr {
    pub(crate) value: Option<u64>,
    /// What it may have been changed to: nobody touches it until that is known.
    pub(crate) doubt: Option<Option<u64>>,
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
        let ascending = extents.is_sorted_by(|one, next| one.end() <= next.offset);
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
                let offset = extent.offset + i as u64;
                match (offset >= low, byte == UNTOUCHED) {
                    (true, true) => {}
                    (true, false) if self.exact() && (ascending || byte != 0) => {
                        return Err(format!(
                            "{byte:#x} came for {offset}, behind the end at {low}"
                        ));
                    }
                    _ => self.check_byte(offset, byte)?,
                }
            }
        }
        Ok(())
    }

    /// Checks where data (or a hole) was found; `None` stands for an offset behind the file's end.
    pub(crate) fn check_seek(
        &self,
        offset: u64,
        data: bool,
        found: Option<Option<u64>>,
    ) -> Result<(), String> {
        let size = self.base.len() as u64;
        let zeros = |start: u64, end: u64| {
            self.base[start as usize..end as usize].iter().all(|&byte| byte == 0)
        };
        let right = match found {
            _ if !self.exact() => true,
            None => offset >= size,
            Some(_) if offset >= size => false,
            Some(Some(at)) if data => (offset..size).contains(&at) && zeros(offset, at),
            Some(None) => data && zeros(offset, size),
            Some(Some(at)) => {
                let end = (at + 1).next_multiple_of(HOLE_BYTES).min(size);
                (offset..=size).contains(&at) && (at == size || zeros(at, end))
            }
        };
        match right {
            true => Ok(()),
            false => Err(format!("found {found:?} in a file of {size} bytes")),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

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
