//! How large pieces get into a ring: by plain copies, or past the processor's caches.
//!
//! Where the processors of both ends share a cache, plain copies are the fastest: 1 MiB through a ring takes
//! 45 to 80 us, and the writer is busy for 45. Where they do not, each line has to be taken from the
//! other processor before it is overwritten: then the writer alone takes 230 to 450 us. Past the caches 1 MiB takes
//! 70 to 110 us, and the writer 40 to 55, wherever they are (two threads of an AMD EPYC's virtual machine).
//! Nobody says where that is, and it changes as processes are moved, or a machine's virtual
//! processors. So a link does as has turned out to be better, and tries the other way now and then.

use std::time::Instant;
use weir_core::copying::{PASSES_CACHES, copy, copy_past_caches, settle};

/// Smaller pieces are copied plainly: bytes.
const STREAMED_BYTES_MIN: usize = 32 * 1024;
/// Paces are times for so many bytes.
const PACE_BYTES: u64 = 64 * 1024;
/// So many pieces later the other way is tried, and after each trial that does not pay twice as many, up to the most.
const PAUSE_MIN: u32 = 64;
const PAUSE_MAX: u32 = 4096;
/// How many times as long as past the caches plain pieces take where the ends are apart. Theirs is not the whole
/// time: of what went past the caches, who reads it has to fetch it from memory.
const APART: u64 = 4;
/// The same where the ends have come together.
const TOGETHER: u64 = 2;
/// Plain pieces, one after the other, that show where the ends are. A single one may have been interrupted.
const SLOW_MIN: u32 = 2;

/// A way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Streamed,
}

/// What a link knows of its copies.
#[derive(Debug)]
pub(crate) struct Copying {
    way: Way,
    /// Nanoseconds for [`PACE_BYTES`] that last went past the caches. None: not tried yet.
    streamed: Option<u64>,
    /// Plain pieces in a row that were slow.
    slow: u32,
    /// Pieces until the other way is tried.
    left: u32,
    pause: u32,
}

impl Copying {
    pub(crate) fn new() -> Copying {
        // The second piece tells how fast it is past the caches.
        Copying { way: Way::Plain, streamed: None, slow: 0, left: 1, pause: PAUSE_MIN }
    }

    /// Copies `length` bytes.
    ///
    /// # Safety
    /// They can be read, and written; the two places lie apart.
    pub(crate) unsafe fn copy(&mut self, to: *mut u8, from: *const u8, length: usize) {
        if length < STREAMED_BYTES_MIN || !PASSES_CACHES {
            // SAFETY: the caller's promise.
            return unsafe { copy(from, to, length) };
        }
        let way = self.next();
        let begun = Instant::now();
        // SAFETY: the caller's promise.
        unsafe {
            match way {
                Way::Plain => copy(from, to, length),
                Way::Streamed => {
                    copy_past_caches(from, to, length);
                    settle();
                }
            }
        }
        let time = begun.elapsed().as_nanos() as u64;
        self.learn(way, time.saturating_mul(PACE_BYTES) / length as u64);
    }

    /// The way for the next piece.
    fn next(&mut self) -> Way {
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            return self.way;
        }
        self.left = self.pause;
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        match self.way {
            Way::Plain => Way::Streamed,
            Way::Streamed => Way::Plain,
        }
    }

    /// A piece that went this way had this pace.
    fn learn(&mut self, way: Way, pace: u64) {
        match (way, self.streamed) {
            (Way::Streamed, _) => self.streamed = Some(pace),
            (Way::Plain, None) => {}
            (Way::Plain, Some(streamed)) if self.way == Way::Streamed => {
                if pace <= TOGETHER * streamed {
                    self.change(Way::Plain);
                }
            }
            (Way::Plain, Some(streamed)) => {
                self.slow = if pace > APART * streamed { self.slow + 1 } else { 0 };
                if self.slow >= SLOW_MIN {
                    self.change(Way::Streamed);
                }
            }
        }
    }

    fn change(&mut self, way: Way) {
        (self.way, self.slow) = (way, 0);
        (self.left, self.pause) = (PAUSE_MIN, PAUSE_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ways taken for so many pieces, where plain copies and streamed ones have these paces.
    fn ways(copying: &mut Copying, pieces: usize, plain: u64, streamed: u64) -> [usize; 2] {
        let mut counts = [0; 2];
        for _ in 0..pieces {
            let way = copying.next();
            counts[usize::from(way == Way::Streamed)] += 1;
            copying.learn(way, if way == Way::Plain { plain } else { streamed });
        }
        counts
    }

    #[test]
    fn the_better_way_is_taken_and_the_other_tried_now_and_then() {
        let mut copying = Copying::new();
        // Ends that share a cache: but for trials all is copied plainly.
        let [_, streamed] = ways(&mut copying, 10_000, 3000, 3000);
        assert!((1..20).contains(&streamed), "{streamed}");
        // They are moved apart.
        let [plain, _] = ways(&mut copying, 10_000, 27_000, 3000);
        assert!((SLOW_MIN as usize..20).contains(&plain), "{plain}");
        // And together again.
        let [plain, _] = ways(&mut copying, 10_000, 3000, 3000);
        assert!(plain > 5000, "{plain}");
    }

    #[test]
    fn a_piece_that_was_interrupted_changes_nothing() {
        let mut copying = Copying::new();
        ways(&mut copying, 10, 3000, 3000);
        copying.learn(Way::Plain, 1_000_000);
        let [plain, _] = ways(&mut copying, 20, 3000, 3000);
        assert_eq!(plain, 20);
    }
}
