//! What was read lately: blocks of the file, for programs that go to and fro in it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weir_core::copying::{copy, write_over};
use weir_core::slice::Slice;

/// Blocks begin at multiples of this, in bytes: to read so much takes hardly longer than to read a record
/// of it.
const BLOCK_BYTES: usize = 16 << 10;
/// Longer reads are not worth a copy, in bytes.
const READ_BYTES_MAX: usize = 32 << 10;
/// So long a program is given what was read before: whoever waits for others' bytes by reading the same
/// place again and again must see them come.
pub(super) const BELIEVED: Duration = Duration::from_millis(100);

/// Reads without any use of what is here, after which whole blocks are read for few only: one in
/// [`TRIED`]. A program that reads anywhere in a large file pays a quarter more for each block.
const USELESS_MAX: u32 = 64;
const TRIED: u32 = 16;

struct Block {
    number: u64,
    /// The file's bytes, as far as it went when they were read.
    bytes: Vec<u8>,
    read: Instant,
    /// Used since the hand last passed it.
    used: bool,
}

/// See above. Of those that are used again and again the most stay, by the rule of the clock's hand.
pub(super) struct Recent {
    blocks: Vec<Block>,
    /// Where in `blocks` each one is, by its number.
    places: BTreeMap<u64, usize>,
    blocks_max: usize,
    hand: usize,
    /// Reads since one of what was here, more or less.
    useless: u32,
}

/// Numbers of the blocks in which these bytes lie, none of which is the last one of all.
fn numbers(from: u64, to: u64) -> std::ops::Range<u64> {
    let size = BLOCK_BYTES as u64;
    from / size..to.div_ceil(size)
}

impl Recent {
    /// Of so many bytes in all at most.
    pub(super) fn new(size: usize) -> Recent {
        let blocks_max = size / BLOCK_BYTES;
        Recent { blocks: Vec::new(), places: BTreeMap::new(), blocks_max, hand: 0, useless: 0 }
    }

    /// Whether reads of this length are served from here.
    fn takes(&self, length: usize) -> bool {
        // The blocks of one read must not drive each other out.
        length <= READ_BYTES_MAX && length + 2 * BLOCK_BYTES <= self.blocks_max * BLOCK_BYTES
    }

    /// Whether all blocks are to be read in which so many bytes lie that are not here.
    pub(super) fn wants(&mut self, length: usize) -> bool {
        if !self.takes(length) {
            return false;
        }
        self.useless = self.useless.wrapping_add(1);
        self.useless <= USELESS_MAX || self.useless.is_multiple_of(TRIED)
    }

    /// Reads what is there; false: not all of it is.
    ///
    /// # Safety
    /// The slices must be writable and `length` long in all.
    pub(super) unsafe fn read(&mut self, slices: &[Slice], length: usize, at: u64) -> bool {
        if self.blocks.is_empty() || !self.takes(length) {
            return false;
        }
        let end = at + length as u64;
        let mut now = None;
        for number in numbers(at, end) {
            let Some(block) = self.places.get(&number).map(|place| &mut self.blocks[*place]) else {
                return false;
            };
            let now = *now.get_or_insert_with(Instant::now);
            let start = number * BLOCK_BYTES as u64;
            let wanted = (end - start).min(BLOCK_BYTES as u64) as usize;
            if block.bytes.len() < wanted || now.duration_since(block.read) > BELIEVED {
                return false;
            }
            block.used = true;
        }
        self.useless = self.useless.min(USELESS_MAX).saturating_sub(1);
        let mut from = at;
        for slice in slices {
            let mut done = 0;
            while done < slice.length {
                let (number, within) = place(from);
                let bytes = &self.blocks[self.places[&number]].bytes[within..];
                let count = bytes.len().min(slice.length - done);
                // SAFETY: the caller promises that the memory can be written.
                unsafe { copy(bytes.as_ptr(), slice.pointer.add(done), count) };
                done += count;
                from += count as u64;
            }
        }
        true
    }

    /// What is to be read from the file, from where to where, for these bytes to be there.
    pub(super) fn around(at: u64, length: usize) -> (u64, u64) {
        let numbers = numbers(at, at + length as u64);
        (numbers.start * BLOCK_BYTES as u64, numbers.end * BLOCK_BYTES as u64)
    }

    /// These bytes of the file have just been read, from the beginning of a block on; the file ends with
    /// them, or they with a block.
    pub(super) fn came(&mut self, at: u64, bytes: &[u8]) {
        let read = Instant::now();
        for (number, bytes) in (place(at).0..).zip(bytes.chunks(BLOCK_BYTES)) {
            let place = self.places.get(&number).copied().unwrap_or_else(|| self.room());
            let memory = match self.blocks.get_mut(place) {
                Some(old) => {
                    self.places.remove(&old.number);
                    std::mem::take(&mut old.bytes)
                }
                None => Vec::with_capacity(BLOCK_BYTES),
            };
            let mut block = Block { number, bytes: memory, read, used: true };
            block.bytes.clear();
            write_over(&mut block.bytes, 0, bytes);
            match self.blocks.get_mut(place) {
                Some(old) => *old = block,
                None => self.blocks.push(block),
            }
            self.places.insert(number, place);
        }
    }

    /// The place for one more: behind the others, or of one that was not used for long.
    fn room(&mut self) -> usize {
        if self.blocks.len() < self.blocks_max {
            return self.blocks.len();
        }
        loop {
            self.hand = (self.hand + 1) % self.blocks.len();
            let block = &mut self.blocks[self.hand];
            if !std::mem::take(&mut block.used) {
                return self.hand;
            }
        }
    }

    /// These bytes are being written: what is here is as it will be.
    ///
    /// # Safety
    /// The slices must be readable.
    pub(super) unsafe fn written(&mut self, slices: &[Slice], at: u64) {
        if self.blocks.is_empty() {
            return;
        }
        let mut to = at;
        for slice in slices {
            // SAFETY: the caller promises that the memory can be read.
            let mut bytes = unsafe { std::slice::from_raw_parts(slice.pointer, slice.length) };
            while !bytes.is_empty() {
                let (number, within) = place(to);
                let (now, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - within));
                if let Some(place) = self.places.get(&number) {
                    let old = &mut self.blocks[*place].bytes;
                    // Between them and the end that was there, nobody has looked.
                    if within <= old.len() {
                        write_over(old, within, now);
                    }
                }
                to += now.len() as u64;
                bytes = rest;
            }
        }
    }

    /// These bytes are written past here.
    pub(super) fn overwritten(&mut self, from: u64, to: u64) {
        let numbers = numbers(from, to);
        if self.blocks.iter().any(|block| numbers.contains(&block.number)) {
            self.forget();
        }
    }

    /// Forgets all of it.
    pub(super) fn forget(&mut self) {
        self.places.clear();
        self.blocks.clear();
    }
}

/// The block of this byte, and where in it.
fn place(at: u64) -> (u64, usize) {
    (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random() -> impl FnMut(u64) -> u64 {
        let mut state = 1u64;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        }
    }

    /// Reads a record of the file; gives how many bytes were read of it for that.
    fn read(recent: &mut Recent, file: &[u8], at: u64, length: usize) -> usize {
        let within = |at: u64| (at as usize).min(file.len());
        let expected = &file[within(at)..within(at + length as u64)];
        let mut record = vec![0; length];
        // In two pieces, of which the first is short.
        let (head, rest) = record.split_at_mut(length / 10);
        // SAFETY: the slices are all of `record`.
        let there =
            unsafe { recent.read(&[Slice::to_write(head), Slice::to_write(rest)], length, at) };
        if there {
            assert_eq!(record, expected, "at {at}");
            return 0;
        }
        if !recent.wants(length) {
            return length;
        }
        let (from, to) = Recent::around(at, length);
        assert!(from <= at && to >= at + length as u64);
        recent.came(from, &file[within(from)..within(to)]);
        (to - from) as usize
    }

    fn write(recent: &mut Recent, file: &mut Vec<u8>, at: u64, bytes: &mut [u8]) {
        let end = at as usize + bytes.len();
        if end > file.len() {
            file.resize(end, 0);
        }
        file[at as usize..end].copy_from_slice(bytes);
        let (head, rest) = bytes.split_at_mut(bytes.len() / 3);
        // SAFETY: these slices can be read.
        unsafe { recent.written(&[Slice::to_read(head), Slice::to_read(rest)], at) };
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let mut random = random();
        for blocks in 1..12 {
            let mut recent = Recent::new(blocks * BLOCK_BYTES + 5);
            let mut file = vec![1; 7 * BLOCK_BYTES + 100];
            for round in 0..3000 {
                let at = random(12 * BLOCK_BYTES as u64);
                let longest = if random(4) == 0 { 50_000 } else { 900 };
                let length = 1 + random(longest) as usize;
                match random(3) {
                    0 => write(&mut recent, &mut file, at, &mut vec![round as u8; length]),
                    1 if random(20) == 0 => recent.overwritten(at, at + length as u64),
                    _ => _ = read(&mut recent, &file, at, length),
                }
                assert!(recent.blocks.len() <= recent.blocks_max);
                assert_eq!(recent.blocks.len(), recent.places.len());
            }
        }
    }

    /// Of what is used again and again the most stays, though as much is read once beside it.
    #[test]
    fn what_is_used_stays() {
        let mut random = random();
        let file = vec![7; 1000 * BLOCK_BYTES];
        let mut recent = Recent::new(32 * BLOCK_BYTES);
        let mut missed = 0;
        let rounds = 10_000;
        for _ in 0..rounds {
            let often = random(16) * 3 * BLOCK_BYTES as u64;
            missed += usize::from(read(&mut recent, &file, often, 800) > 0);
            if random(8) == 0 {
                read(&mut recent, &file, random(990) * BLOCK_BYTES as u64, 800);
            }
        }
        assert!(missed < rounds / 20, "{missed} of {rounds}");
    }

    /// Where nothing comes again, little more is read than was asked for; what comes again later is
    /// found out.
    #[test]
    fn reads_all_over_a_file_move_little() {
        let mut random = random();
        let file = vec![7; 4000 * BLOCK_BYTES];
        let mut recent = Recent::new(32 * BLOCK_BYTES);
        let rounds = 20_000;
        let moved: usize =
            (0..rounds).map(|_| read(&mut recent, &file, random(15_000) * 4096, 4096)).sum();
        assert!(moved < rounds * 4096 * 5 / 4, "{moved} bytes");
        let moved: usize =
            (0..rounds).map(|_| read(&mut recent, &file, random(50) * 4096, 4096)).sum();
        assert!(moved < rounds * 4096 / 20, "{moved} bytes");
    }
}
