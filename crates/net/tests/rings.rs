//! Two ends of a ring in every order of steps that threads and memory allow, up to so many changes of
//! thread: bytes that are shown are there, and nobody sleeps through what the other end has done, which
//! shows as a deadlock.

#[path = "../src/shm/counts.rs"]
mod counts;

/// What the ends' counts are made of here: it is for loom to say what a load finds.
mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use counts::{Counts, RING_BYTES, looks_once_more};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Notify};
use loom::thread;

/// Bytes go by halves of the ring.
const PART: u64 = RING_BYTES as u64 / 2;
/// Changes of thread where none has to wait, which is what makes the orders so many; LOOM_MAX_PREEMPTIONS
/// gives another number (3 take minutes).
const CHANGES_MAX: usize = 2;

/// Counts, bytes (a number for each half), and the bells, which are kept until they are heard.
struct Ring {
    counts: Counts,
    halves: [UnsafeCell<u64>; 2],
    to_reader: Notify,
    to_writer: Notify,
}

// SAFETY: the halves are used in turns, which is what this tests: loom tells where they are not.
unsafe impl Sync for Ring {}
// SAFETY: as above.
unsafe impl Send for Ring {}

impl Ring {
    fn new() -> Ring {
        Ring {
            counts: Counts::new(),
            halves: [UnsafeCell::new(0), UnsafeCell::new(0)],
            to_reader: Notify::new(),
            to_writer: Notify::new(),
        }
    }

    fn half(&self, count: u64) -> &UnsafeCell<u64> {
        &self.halves[(count / PART % 2) as usize]
    }

    /// As `ShmLink::write` and `flush`: so many parts, each shown when it is there; who sleeps is rung at
    /// the first one that finds it asleep, and at the end.
    fn write(&self, parts: u64) {
        let counts = &self.counts;
        let mut written = 0;
        let mut rung = false;
        while written < parts * PART {
            if counts.room(written).expect("a count that can be") < PART as usize {
                if counts.show_written(written) {
                    self.to_reader.notify();
                }
                rung = false;
                counts.writer_sleeps();
                looks_once_more();
                if !counts.has_room() {
                    self.to_writer.wait();
                }
                counts.writer_looks();
                continue;
            }
            // SAFETY: see the struct.
            self.half(written).with_mut(|half| unsafe { *half = written + 1 });
            written += PART;
            if rung {
                counts.show_more(written);
            } else if counts.show_written(written) {
                self.to_reader.notify();
                rung = true;
            }
        }
        if counts.show_written(written) {
            self.to_reader.notify();
        }
    }

    /// As `ShmLink::read`.
    fn read(&self, parts: u64) {
        let counts = &self.counts;
        let mut taken = 0;
        while taken < parts * PART {
            if !counts.has_bytes() {
                counts.reader_sleeps();
                looks_once_more();
                if !counts.has_bytes() {
                    self.to_reader.wait();
                }
                counts.reader_looks();
                continue;
            }
            let end = taken + counts.filled(taken).expect("a count that can be") as u64;
            while taken < end {
                // SAFETY: see the struct.
                let found = self.half(taken).with(|half| unsafe { *half });
                assert_eq!(found, taken + 1, "bytes that were not there yet");
                taken += PART;
                if counts.show_taken(taken) {
                    self.to_writer.notify();
                }
            }
        }
    }
}

fn in_every_order(parts: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(CHANGES_MAX));
    model.check(move || {
        let ring = Arc::new(Ring::new());
        let reader = {
            let ring = ring.clone();
            thread::spawn(move || ring.read(parts))
        };
        ring.write(parts);
        reader.join().unwrap();
    });
}

#[test]
fn who_reads_hears_of_bytes() {
    in_every_order(2);
}

#[test]
fn who_writes_hears_of_room() {
    in_every_order(3);
}
