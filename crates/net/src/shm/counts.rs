//! What the two ends of a ring tell each other: how far they have come, and whether they sleep.
//!
//! Nobody sleeps through what the other end has done: an end that is about to sleep says so, and looks once
//! more; the other one shows what it has done, and then looks who sleeps. At least one of them sees the
//! other. `tests/rings.rs` tries this in every order that memory allows.

use super::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes that may be under way in one direction.
pub(crate) const RING_BYTES: usize = 1024 * 1024;
/// Who waits for room is told when there is so much.
const ROOM_BYTES: usize = RING_BYTES / 4;
/// Counts that different ends write are so far apart that they never share what processors pass around.
const APART_BYTES: usize = 128;

/// An end asked to be told when it can go on.
const ASLEEP: u32 = 1;

/// The counts of one ring. In shared memory, zeros at first.
#[repr(C)]
pub(crate) struct Counts {
    /// Bytes written since it was made, by who writes.
    pub(crate) written: AtomicU64,
    _apart: [u8; APART_BYTES - 8],
    /// Bytes that were taken out again, by who reads.
    pub(crate) taken: AtomicU64,
    _apart_2: [u8; APART_BYTES - 8],
    /// [`ASLEEP`]: who reads is to be told of the next bytes.
    reader: AtomicU32,
    _apart_3: [u8; APART_BYTES - 4],
    /// [`ASLEEP`]: who writes is to be told of room.
    writer: AtomicU32,
}

impl Counts {
    /// As they are in fresh memory.
    #[cfg(test)]
    #[allow(dead_code)]
    pub(crate) fn new() -> Counts {
        Counts {
            written: AtomicU64::new(0),
            _apart: [0; APART_BYTES - 8],
            taken: AtomicU64::new(0),
            _apart_2: [0; APART_BYTES - 8],
            reader: AtomicU32::new(0),
            _apart_3: [0; APART_BYTES - 4],
            writer: AtomicU32::new(0),
        }
    }

    /// For who has written `written` bytes: how many more there is room for. None: that cannot be.
    pub(crate) fn room(&self, written: u64) -> Option<usize> {
        let taken = self.taken.load(Ordering::Acquire);
        let under_way = written.wrapping_sub(taken);
        RING_BYTES.checked_sub(usize::try_from(under_way).unwrap_or(usize::MAX))
    }

    /// For who has taken `taken` bytes: how many more there are. None: that cannot be.
    pub(crate) fn filled(&self, taken: u64) -> Option<usize> {
        let written = self.written.load(Ordering::Acquire);
        let filled = usize::try_from(written.wrapping_sub(taken)).unwrap_or(usize::MAX);
        (filled <= RING_BYTES).then_some(filled)
    }

    /// Shows who reads that so many bytes were written. True: it sleeps, and is to be told.
    pub(crate) fn show_written(&self, written: u64) -> bool {
        self.written.store(written, Ordering::Release);
        is_asleep(&self.reader)
    }

    /// The same for who does not want to know: [`Counts::show_written`] is to follow.
    pub(crate) fn show_more(&self, written: u64) {
        self.written.store(written, Ordering::Release);
    }

    /// Shows who writes that so many bytes were taken. True: it sleeps, and is to be told, as there is
    /// room enough now.
    pub(crate) fn show_taken(&self, taken: u64) -> bool {
        self.taken.store(taken, Ordering::Release);
        let written = self.written.load(Ordering::Relaxed);
        is_room_enough(written, taken) && is_asleep(&self.writer)
    }

    /// Whether there is anything to take.
    pub(crate) fn has_bytes(&self) -> bool {
        self.written.load(Ordering::Acquire) != self.taken.load(Ordering::Relaxed)
    }

    /// Whether there is so much room that to write goes on.
    pub(crate) fn has_room(&self) -> bool {
        let written = self.written.load(Ordering::Relaxed);
        is_room_enough(written, self.taken.load(Ordering::Acquire))
    }

    /// Who reads is about to sleep. It calls [`looks_once_more`] after this, and looks.
    pub(crate) fn reader_sleeps(&self) {
        asleep(&self.reader);
    }

    /// Who writes is about to sleep, for want of room. It calls [`looks_once_more`] after this, and looks.
    pub(crate) fn writer_sleeps(&self) {
        asleep(&self.writer);
    }

    /// Who reads looks by itself.
    pub(crate) fn reader_looks(&self) {
        awake(&self.reader);
    }

    /// Who writes looks by itself.
    pub(crate) fn writer_looks(&self) {
        awake(&self.writer);
    }
}

fn is_room_enough(written: u64, taken: u64) -> bool {
    written.wrapping_sub(taken) <= (RING_BYTES - ROOM_BYTES) as u64
}

/// Stands between an end's saying that it sleeps and its looking once more: either what the other end has
/// shown before is seen by that look, or the other end sees that this one sleeps.
pub(crate) fn looks_once_more() {
    fence(Ordering::SeqCst);
}

/// Whether an end asked to be told; it is told once.
fn is_asleep(end: &AtomicU32) -> bool {
    // Between what was shown and this look: see `looks_once_more`.
    fence(Ordering::SeqCst);
    end.load(Ordering::Relaxed) == ASLEEP && end.swap(0, Ordering::Relaxed) == ASLEEP
}

/// By a swap, not a store: of a store beside another's swap loom does not know which came first, though only
/// one order is possible.
fn asleep(end: &AtomicU32) {
    end.swap(ASLEEP, Ordering::Relaxed);
}

fn awake(end: &AtomicU32) {
    // To write it costs the other end more than to read it.
    if end.load(Ordering::Relaxed) != 0 {
        end.store(0, Ordering::Relaxed);
    }
}
