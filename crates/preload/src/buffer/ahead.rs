//! What is read ahead: two pieces of the file, one behind the other. While the program takes the
//! first, the second is under way.

use super::recent::BELIEVED;
use std::time::Instant;
use weir_core::copying::copy;
use weir_core::slice::Slice;

/// What the first of a row of sequential reads reads ahead, in bytes; each further one reads
/// [`AHEAD_GROWTH`] times as much as the one before, up to half of the buffer. A program that reads
/// two records here and two there would otherwise move a whole buffer for each pair.
const AHEAD_BYTES_MIN: usize = 64 << 10;
const AHEAD_GROWTH: usize = 4;

/// A read of a piece that is under way.
pub(super) trait Fetch: Sized {
    /// Waits for its end. Gives the memory, and how many bytes were read; none: it failed.
    fn end(self) -> (Vec<u8>, Option<usize>);
}

/// A piece of the file.
#[derive(Default)]
struct Piece {
    at: u64,
    /// Of these bytes, so many are the file's.
    memory: Vec<u8>,
    length: usize,
    /// The file ended in it, or where it ends.
    last: bool,
    /// When its reading began.
    read: Option<Instant>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.at + self.length as u64
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[..self.length]
    }

    fn forget(&mut self) {
        (self.length, self.last) = (0, false);
    }
}

/// See above.
pub(super) struct Ahead<F> {
    first: Piece,
    /// Begins where the first one ends, or is empty.
    second: Piece,
    /// What becomes the second, from where to where; then there is none yet.
    coming: Option<(u64, u64, Instant, F)>,
    /// The last read. The next one is sequential if it begins within it or where it ended: some
    /// libraries read far more than they take, and go back.
    read_at: u64,
    read_end: u64,
    /// Bytes that were read ahead last in this row of sequential reads; 0: none yet.
    window: usize,
}

impl<F> Default for Ahead<F> {
    fn default() -> Ahead<F> {
        Ahead {
            first: Piece::default(),
            second: Piece::default(),
            coming: None,
            read_at: 0,
            read_end: 0,
            window: 0,
        }
    }
}

impl<F: Fetch> Ahead<F> {
    /// Reads what is there, and ahead where reads are sequential, in pieces of `size` bytes at most,
    /// which is `length` at least. None: to be read from the pool.
    ///
    /// # Safety
    /// The slices must be writable and `length` long in all.
    pub(super) unsafe fn read(
        &mut self,
        size: usize,
        slices: &[Slice],
        length: usize,
        at: u64,
        mut begin: impl FnMut(Vec<u8>, u64) -> Option<F>,
    ) -> Option<usize> {
        let end = at + length as u64;
        let sequential = (self.read_at..=self.read_end).contains(&at);
        let further = at > self.read_at;
        if !further && self.first.read.is_some_and(|read| read.elapsed() > BELIEVED) {
            // He may be waiting for others' bytes.
            self.forget();
        }
        (self.read_at, self.read_end) = (at, end);
        if at >= self.first.end() && at < self.known_end() {
            self.step();
        }
        let begun = at >= self.first.at && at < self.first.end();
        if begun && end > self.first.end() {
            if sequential {
                self.fetch(size, length, self.first.end(), &mut begin);
            }
            self.arrive();
        }
        let ended = self.ended();
        if !begun || end > self.held_end() && !ended {
            if !sequential {
                self.window = 0;
                return None;
            }
            self.forget();
            self.fetch(size, length, at, &mut begin);
            self.step();
            // As it is at this moment, also if the file ends here.
            return match self.first.length > 0 || self.first.last {
                // SAFETY: passed on.
                true => Some(unsafe { self.copy(slices, length, at) }),
                false => None,
            };
        }
        if end > self.held_end() && !further {
            // What was the file's end may no longer be: whoever asks for the same once more, as whoever
            // asks at the end, is told by the pool.
            self.forget();
            return None;
        }
        // SAFETY: passed on.
        let copied = unsafe { self.copy(slices, length, at) };
        // Whoever has taken half of it will go on, and whoever has gone on for long.
        let enough = if self.window < size { self.first.length as u64 / 2 } else { 0 };
        if sequential && at - self.first.at >= enough {
            self.fetch(size, length, self.first.end(), &mut begin);
        }
        Some(copied)
    }

    /// Begins to read what follows at `at`, unless that is there or under way, or the file has ended.
    fn fetch(
        &mut self,
        size: usize,
        length: usize,
        at: u64,
        begin: &mut impl FnMut(Vec<u8>, u64) -> Option<F>,
    ) {
        if self.coming.is_some() || self.second.length > 0 || self.ended() {
            return;
        }
        let window = self.window.saturating_mul(AHEAD_GROWTH);
        self.window = window.max(AHEAD_BYTES_MIN).max(2 * length).min(size);
        // Up to where pieces of this size begin: requests then fit the file's stripes.
        let rest = self.window - (at % self.window as u64) as usize;
        let wanted = if rest >= AHEAD_BYTES_MIN.max(length) { rest } else { self.window };
        let mut memory = std::mem::take(&mut self.second.memory);
        memory.resize(wanted, 0);
        let now = Instant::now();
        self.coming = begin(memory, at).map(|fetch| (at, at + wanted as u64, now, fetch));
    }

    /// What is under way becomes the second piece.
    fn arrive(&mut self) {
        let Some((at, _, read, fetch)) = self.coming.take() else { return };
        let (memory, got) = fetch.end();
        let last = got.is_some_and(|got| got < memory.len());
        self.second = Piece { at, length: got.unwrap_or(0), memory, last, read: Some(read) };
    }

    /// What comes next becomes the first piece.
    fn step(&mut self) {
        self.arrive();
        std::mem::swap(&mut self.first, &mut self.second);
        self.second.forget();
    }

    fn held_end(&self) -> u64 {
        if self.second.length > 0 { self.second.end() } else { self.first.end() }
    }

    /// As far as the file was read or is being read.
    fn known_end(&self) -> u64 {
        self.coming.as_ref().map_or_else(|| self.held_end(), |(_, end, ..)| *end)
    }

    /// Copies what there is from `at` on, which lies in the first piece or is its end.
    ///
    /// # Safety
    /// The slices must be writable and `length` long in all.
    unsafe fn copy(&self, slices: &[Slice], length: usize, at: u64) -> usize {
        let mut left = length.min((self.held_end() - at) as usize);
        let copied = left;
        let from = (at - self.first.at) as usize;
        let mut sources = [&self.first.bytes()[from..], self.second.bytes()];
        for slice in slices {
            let mut to = 0;
            while to < slice.length && left > 0 {
                if sources[0].is_empty() {
                    sources.swap(0, 1);
                }
                let bytes = left.min(slice.length - to).min(sources[0].len());
                let (now, rest) = sources[0].split_at(bytes);
                // SAFETY: the caller promises that the memory can be written.
                unsafe { copy(now.as_ptr(), slice.pointer.add(to), bytes) };
                sources[0] = rest;
                to += bytes;
                left -= bytes;
            }
        }
        copied
    }

    /// Something is about to be written from `from` to `to` past here: bytes read before would be older.
    pub(super) fn overwritten(&mut self, from: u64, to: u64) {
        if self.concerns(from, to) {
            self.forget();
        }
    }

    /// So many bytes are being written at `at`: what is here is as it will be.
    ///
    /// # Safety
    /// The slices must be readable and `length` long in all.
    pub(super) unsafe fn written(&mut self, slices: &[Slice], length: usize, at: u64) {
        let end = at + length as u64;
        if !self.concerns(at, end) {
            return;
        }
        if end > self.held_end() {
            // What is under way may be from before, and tell of an end that is no longer one.
            self.arrive();
        }
        if self.ended() && end > self.held_end() {
            self.forget();
            return;
        }
        let mut from = at;
        for slice in slices {
            // SAFETY: the caller promises that the memory can be read.
            let bytes = unsafe { std::slice::from_raw_parts(slice.pointer, slice.length) };
            for piece in [&mut self.first, &mut self.second] {
                let (start, stop) =
                    (from.max(piece.at), piece.end().min(from + bytes.len() as u64));
                if start < stop {
                    let to = (start - piece.at) as usize..(stop - piece.at) as usize;
                    let bytes = &bytes[(start - from) as usize..(stop - from) as usize];
                    piece.memory[to].copy_from_slice(bytes);
                }
            }
            from += bytes.len() as u64;
        }
    }

    /// Whether anything here, or under way, is no longer so when these bytes are written.
    fn concerns(&self, from: u64, to: u64) -> bool {
        let over = from < self.known_end() && to > self.first.at;
        over || self.ended() && to > self.held_end()
    }

    /// Whether the file's end is known.
    fn ended(&self) -> bool {
        self.first.last || self.second.last
    }

    /// The program has read these bytes from elsewhere: what follows them is read next, perhaps.
    pub(super) fn noticed(&mut self, at: u64, length: usize) {
        (self.read_at, self.read_end) = (at, at + length as u64);
    }

    /// Forgets what was read.
    pub(super) fn forget(&mut self) {
        self.arrive();
        self.first.forget();
        self.second.forget();
    }

    /// As [`Ahead::forget`]; the next row of reads begins small.
    pub(super) fn begin_anew(&mut self) {
        self.forget();
        self.window = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: usize = 4096;
    const SIZE: usize = 4 << 20;

    fn byte(at: u64) -> u8 {
        (at / 7) as u8 ^ (at >> 16) as u8
    }

    /// Of a file of so many bytes; read when its end is asked for.
    struct Late(Vec<u8>, u64, u64);

    impl Fetch for Late {
        fn end(self) -> (Vec<u8>, Option<usize>) {
            let Late(mut memory, at, file) = self;
            let got = (file.saturating_sub(at) as usize).min(memory.len());
            (at..).zip(&mut memory[..got]).for_each(|(at, to)| *to = byte(at));
            (memory, Some(got))
        }
    }

    /// Reads `length` bytes at each offset of a file of `file` bytes that says of each where it lies;
    /// gives the requests that were made for it, and their bytes.
    fn fetched(file: u64, length: usize, offsets: impl Iterator<Item = u64>) -> (usize, usize) {
        let mut ahead = Ahead::default();
        let (mut requests, mut bytes) = (0, 0);
        for at in offsets {
            let mut record = vec![0; length];
            // In two pieces, of which the first is short.
            let (head, rest) = record.split_at_mut(100);
            let slices = [Slice::to_write(head), Slice::to_write(rest)];
            let begin = |memory: Vec<u8>, from: u64| {
                assert!(memory.len() <= SIZE / 2);
                requests += 1;
                bytes += memory.len();
                Some(Late(memory, from, file))
            };
            // SAFETY: the slices are all of `record`.
            match unsafe { ahead.read(SIZE / 2, &slices, length, at, begin) } {
                Some(got) => {
                    assert_eq!(got as u64, (file.saturating_sub(at)).min(length as u64), "at {at}");
                    let good = (at..).zip(&record[..got]).all(|(at, got)| *got == byte(at));
                    assert!(good, "wrong at {at}");
                }
                None => {
                    requests += 1;
                    bytes += length;
                }
            }
        }
        (requests, bytes)
    }

    #[test]
    fn long_rows_are_read_in_few_pieces() {
        let file = 64 << 20;
        let (requests, bytes) = fetched(file, RECORD, (0..file).step_by(RECORD));
        assert!(bytes <= file as usize + 2 * SIZE, "{bytes} bytes for {file}");
        assert!(requests <= file as usize / (SIZE / 2) + 4, "{requests} requests");
    }

    /// Pairs of neighbours all over a file once moved a whole buffer each.
    #[test]
    fn short_rows_move_little() {
        let record = RECORD as u64;
        let pairs = 1000;
        let offsets = (0..pairs).flat_map(|pair| {
            let at = pair * 7919 % 4096 * (1 << 20);
            [at, at + record]
        });
        let (_, bytes) = fetched(u64::MAX, RECORD, offsets);
        let most = pairs as usize * (RECORD + AHEAD_BYTES_MIN);
        assert!(bytes <= most, "{bytes} bytes for {pairs} pairs of records");
    }

    /// As gfortran's library does it: it reads far more than a record, and goes back. Near the end of
    /// the file each record once cost two requests.
    #[test]
    fn who_reads_too_much_and_goes_back_is_served() {
        let file = 16 << 20;
        let (requests, bytes) = fetched(file, 128 << 10, (0..file).step_by(RECORD + 8));
        assert!(bytes <= file as usize + 2 * SIZE, "{bytes} bytes for {file}");
        assert!(requests <= file as usize / (SIZE / 2) + 6, "{requests} requests");
    }

    /// The end that comes with what was under way when a program wrote behind it.
    #[test]
    fn who_writes_behind_the_end_moves_it() {
        let (before, after) = (100_000, 120_000);
        let mut ahead = Ahead::default();
        let read = |ahead: &mut Ahead<Late>, at: u64, file: u64| {
            let mut record = vec![0; RECORD];
            let begin = |memory: Vec<u8>, from: u64| Some(Late(memory, from, file));
            let slices = [Slice::to_write(&mut record)];
            // SAFETY: the slice is all of `record`.
            let got = unsafe { ahead.read(SIZE / 2, &slices, RECORD, at, begin) };
            got.inspect(|got| assert!((at..).zip(&record[..*got]).all(|(at, to)| *to == byte(at))))
        };
        let mut at = 0;
        while ahead.known_end() <= before {
            assert_eq!(read(&mut ahead, at, before), Some(RECORD));
            at += RECORD as u64;
        }
        assert!(ahead.coming.is_some() && ahead.held_end() < before);
        let behind: Vec<u8> = (before + 9..after).map(byte).collect();
        // SAFETY: the slice can be read.
        unsafe { ahead.written(&[Slice::to_read(&behind)], behind.len(), before + 9) };
        while at + (RECORD as u64) < after {
            // Or it is read from the pool.
            assert_eq!(read(&mut ahead, at, after).unwrap_or(RECORD), RECORD, "at {at}");
            at += RECORD as u64;
        }
    }

    /// Rows that begin anywhere, of records of any length, backwards too.
    #[test]
    fn rows_of_all_kinds_give_the_right_bytes() {
        let file = 3_000_017;
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..60 {
            let length = 101 + random(300_000) as usize;
            let step = 1 + random(length as u64 + 5000);
            let mut at = random(file);
            let offsets: Vec<_> = (0..40)
                .map(|_| {
                    at = if random(16) == 0 { random(file + 1000) } else { at + step };
                    at
                })
                .collect();
            fetched(file, length, offsets.into_iter());
        }
    }

    /// A file that grows is seen to, by who asks at its end, or for the same once more.
    #[test]
    fn the_end_is_asked_for_again() {
        let mut ahead = Ahead::default();
        let mut read = |file: u64, at: u64| {
            let mut record = [0; RECORD];
            let slices = [Slice::to_write(&mut record)];
            let begin = |memory: Vec<u8>, from: u64| Some(Late(memory, from, file));
            // SAFETY: the slice is all of `record`.
            unsafe { ahead.read(SIZE, &slices, RECORD, at, begin) }
        };
        assert_eq!(read(10_000, 0), Some(RECORD));
        assert_eq!(read(10_000, 8192), Some(10_000 - 8192));
        // It has grown meanwhile.
        assert_eq!(read(20_000, 8192), None);
        assert_eq!(read(20_000, 12_288), Some(RECORD));
        assert_eq!(read(20_000, 16_384), Some(20_000 - 16_384));
        assert_eq!(read(20_000, 20_000), Some(0));
        assert_eq!(read(30_000, 20_000), Some(RECORD));
    }
}
