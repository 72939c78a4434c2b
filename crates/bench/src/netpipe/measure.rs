//! One size at a time: the targets in turns, the clock around the transfers alone.

use super::pattern::Cursor;
use super::stamp::{History, Mismatch};
use super::target::Target;
use crate::spread::Spread;
use clap::ValueEnum;
use serde::Serialize;
use std::time::Instant;
use weir_core::error::{Code, Error, Result};
use weir_core::layout::Extent;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// Rate of writes
    Write,
    /// Rate of reads
    Read,
    /// Time of single reads, one at a time
    Latency,
}

/// How every point is measured.
pub(super) struct Plan {
    /// Of each turn.
    pub(super) seconds: f64,
    pub(super) repeats: usize,
    pub(super) window: usize,
    pub(super) cache_invalidate: bool,
    /// In whose file to spoil a byte.
    pub(super) spoil: Option<&'static str>,
}

/// What one target did at one size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    pub(super) target: String,
    /// Bytes a second, or seconds of one transfer (median of each turn).
    pub(super) value: Spread,
    /// Latency alone: seconds that 99 of 100 transfers stayed under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p99: Option<Spread>,
    /// Ratio to the same figure of its reference, paired turn by turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) share: Option<Share>,
}

/// A figure as a share of another one.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Share {
    pub(super) of: String,
    pub(super) value: Spread,
}

/// All figures of one mode at one size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) mode: Mode,
    pub(super) size: u64,
    pub(super) figures: Vec<Figure>,
}

/// How much was verified, and found to be right.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) bytes: u64,
}

/// A target, and what its file must hold.
pub(super) struct Subject {
    pub(super) name: String,
    /// Bytes that were compared.
    pub(super) verified: u64,
    target: Box<dyn Target>,
    history: History,
    cursor: Cursor,
    file_size: u64,
}

impl Subject {
    pub(super) fn new(name: String, target: Box<dyn Target>, file: u32, file_size: u64) -> Subject {
        let (history, cursor) = (History::new(file, file_size), Cursor::new(file_size));
        Subject { name, verified: 0, target, history, cursor, file_size }
    }

    /// Writes the whole file for the first time.
    pub(super) fn fill(&mut self, memory: &mut [u8]) -> Result<()> {
        for extent in chunks(Extent { offset: 0, length: self.file_size }, memory.len()) {
            let memory = &mut memory[..extent.length as usize];
            self.history.expect(memory, extent.offset);
            self.target.write(&[extent], memory)?;
        }
        Ok(())
    }

    /// One turn. Latency gives the time of each transfer, the others of each batch.
    fn turn(
        &mut self,
        mode: Mode,
        size: u64,
        plan: &Plan,
        memory: &mut [u8],
        times: &mut Times,
    ) -> Result<()> {
        let window = if mode == Mode::Latency { 1 } else { plan.window };
        let bytes = size as usize * window;
        while times.seconds < plan.seconds {
            let batch = self.cursor.batch(size, window, plan.cache_invalidate);
            let memory = &mut memory[..batch.len() * size as usize];
            if mode == Mode::Write {
                self.history.begin_write(memory, &batch);
                let begun = Instant::now();
                for (window, memory) in batch.chunks(window).zip(memory.chunks(bytes)) {
                    self.target.write(window, memory)?;
                }
                times.add(begun.elapsed().as_secs_f64(), memory.len());
                continue;
            }
            let begun = Instant::now();
            let mut last = 0.0;
            for (window, memory) in batch.chunks(window).zip(memory.chunks_mut(bytes)) {
                self.target.read(window, memory)?;
                if mode == Mode::Latency {
                    let now = begun.elapsed().as_secs_f64();
                    times.single.push(now - last);
                    last = now;
                }
            }
            times.add(begun.elapsed().as_secs_f64(), memory.len());
            for (extent, memory) in batch.iter().zip(memory.chunks(size as usize)) {
                self.verify(memory, extent.offset)?;
            }
        }
        Ok(())
    }

    fn verify(&mut self, memory: &[u8], offset: u64) -> Result<()> {
        self.verified += memory.len() as u64;
        self.history.check(memory, offset).map_err(|mismatch| {
            let Mismatch { offset, generation, expected, found } = mismatch;
            let cause = format!(
                "byte {offset} is {found:#04x}, not {expected:#04x} as written (generation \
                 {generation})"
            );
            Error::because(Code::Lost, cause)
                .on("verify", &self.name)
                .so("its figures mean nothing")
        })
    }

    /// Reads back and verifies all that was written since the last time.
    fn verify_written(&mut self, memory: &mut [u8]) -> Result<()> {
        for written in self.history.take_written() {
            for extent in chunks(written, memory.len()) {
                let memory = &mut memory[..extent.length as usize];
                self.target.read(&[extent], memory)?;
                self.verify(memory, extent.offset)?;
            }
        }
        Ok(())
    }

    /// Changes one byte behind the history's back.
    fn spoil(&mut self, size: u64, memory: &mut [u8]) -> Result<()> {
        let batch = self.cursor.batch(size, 1, false);
        let memory = &mut memory[..size as usize];
        self.history.begin_write(memory, &batch[..1]);
        memory[size as usize / 2] ^= 1;
        self.target.write(&batch[..1], memory)
    }
}

/// Cuts an extent into pieces of at most `limit` bytes.
fn chunks(extent: Extent, limit: usize) -> impl Iterator<Item = Extent> {
    (extent.offset..extent.end())
        .step_by(limit)
        .map(move |offset| Extent { offset, length: (extent.end() - offset).min(limit as u64) })
}

#[derive(Default)]
struct Times {
    seconds: f64,
    bytes: usize,
    single: Vec<f64>,
}

impl Times {
    fn add(&mut self, seconds: f64, bytes: usize) {
        self.seconds += seconds;
        self.bytes += bytes;
    }

    /// The value that so many of a thousand single times stay under.
    fn permille(&mut self, permille: usize) -> f64 {
        self.single.sort_by(f64::total_cmp);
        let last = self.single.len().saturating_sub(1);
        self.single.get(last * permille / 1000).copied().unwrap_or(0.0)
    }
}

/// Measures one mode at one size: the targets in turns, as often as is planned.
pub(super) fn point(
    subjects: &mut [Subject],
    mode: Mode,
    size: u64,
    plan: &Plan,
    memory: &mut [u8],
) -> Result<Point> {
    let mut values = vec![Vec::new(); subjects.len()];
    let mut tails = vec![Vec::new(); subjects.len()];
    for subject in subjects.iter_mut() {
        subject.cursor.align(size);
    }
    // One turn more than is counted: caches, windows and page tables get warm in the first.
    for repeat in 0..=plan.repeats {
        for (index, subject) in subjects.iter_mut().enumerate() {
            let mut times = Times::default();
            if repeat == 0 {
                let short = Plan { seconds: f64::MIN_POSITIVE, ..*plan };
                match subject.turn(mode, size, &short, memory, &mut times) {
                    // A file system that does not take this size at all has no figure for it.
                    Err(error) if error.code == Code::Unsupported => continue,
                    result => result?,
                }
                values[index].push(f64::NAN);
                continue;
            }
            if values[index].is_empty() {
                continue;
            }
            subject.turn(mode, size, plan, memory, &mut times)?;
            if mode == Mode::Latency {
                values[index].push(times.permille(500));
                tails[index].push(times.permille(990));
            } else {
                values[index].push(times.bytes as f64 / times.seconds);
            }
        }
    }
    if mode == Mode::Write {
        for subject in subjects.iter_mut() {
            if plan.spoil == Some(subject.name.as_str()) {
                subject.spoil(size, memory)?;
            }
            subject.verify_written(memory)?;
        }
    }
    for values in &mut values {
        values.drain(..values.len().min(1));
    }
    let position = |name: &str| subjects.iter().position(|subject| subject.name == name);
    let figures = subjects.iter().enumerate().filter_map(|(index, subject)| {
        // A pool is measured by the wire, a mount by the pool.
        let reference = match subject.name.as_str() {
            "pool" => Some("tcp"),
            "tcp" => None,
            _ => Some("pool"),
        };
        let share = reference.and_then(|name| {
            let pairs = values[index].iter().zip(&values[position(name)?]);
            let value = Spread::of(pairs.map(|(own, other)| own / other).collect())?;
            Some(Share { of: name.to_owned(), value })
        });
        let value = Spread::of(values[index].clone())?;
        let p99 = Spread::of(tails[index].clone());
        Some(Figure { target: subject.name.clone(), value, p99, share })
    });
    Ok(Point { mode, size, figures: figures.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in memory that loses writes to one place.
    struct Forgetful {
        bytes: Vec<u8>,
        forgets: Option<u64>,
    }

    impl Target for Forgetful {
        fn write(&mut self, operations: &[Extent], memory: &[u8]) -> Result<()> {
            let mut at = 0;
            for extent in operations {
                let length = extent.length as usize;
                let from = extent.offset as usize;
                let kept = self.forgets.map(|lost| (lost, self.bytes[lost as usize]));
                self.bytes[from..from + length].copy_from_slice(&memory[at..at + length]);
                if let Some((lost, byte)) = kept {
                    self.bytes[lost as usize] = byte;
                }
                at += length;
            }
            Ok(())
        }

        fn read(&mut self, operations: &[Extent], memory: &mut [u8]) -> Result<()> {
            let mut at = 0;
            for extent in operations {
                let (from, length) = (extent.offset as usize, extent.length as usize);
                memory[at..at + length].copy_from_slice(&self.bytes[from..from + length]);
                at += length;
            }
            Ok(())
        }
    }

    const FILE_SIZE: u64 = 16 << 20;

    fn subject(name: &str) -> Subject {
        let target = Forgetful { bytes: vec![0; FILE_SIZE as usize], forgets: None };
        Subject::new(name.to_owned(), Box::new(target), 1, FILE_SIZE)
    }

    fn plan() -> Plan {
        Plan { seconds: 1e-4, repeats: 3, window: 2, cache_invalidate: false, spoil: None }
    }

    #[test]
    fn turns_are_paired_and_everything_is_verified() {
        let mut subjects = [subject("pool"), subject("tcp")];
        let mut memory = vec![0; 8 << 20];
        for subject in &mut subjects {
            subject.fill(&mut memory).expect("filled");
        }
        for mode in [Mode::Write, Mode::Read, Mode::Latency] {
            let point = point(&mut subjects, mode, 4093, &plan(), &mut memory).expect("right");
            let [pool, tcp] = &point.figures[..] else { panic!("{point:?}") };
            assert_eq!(pool.share.as_ref().map(|share| share.of.as_str()), Some("tcp"));
            assert!(tcp.share.is_none());
            assert!(tcp.value.min > 0.0 && tcp.value.min <= tcp.value.max);
            assert_eq!(tcp.p99.is_some(), mode == Mode::Latency);
        }
        assert!(subjects.iter().all(|subject| subject.verified > 4093));
    }

    #[test]
    fn a_spoiled_byte_and_a_lost_write_are_found() {
        let mut memory = vec![0; 8 << 20];
        let mut spoiled = [subject("pool")];
        spoiled[0].fill(&mut memory).expect("filled");
        let plan = Plan { spoil: Some("pool"), ..plan() };
        let error = point(&mut spoiled, Mode::Write, 100, &plan, &mut memory).expect_err("spoiled");
        assert!(error.to_string().starts_with("verify pool: byte "), "{error}");

        let mut losing = [subject("tcp")];
        losing[0].fill(&mut memory).expect("filled");
        let mut bytes = vec![0; FILE_SIZE as usize];
        losing[0].history.expect(&mut bytes, 0);
        losing[0].target = Box::new(Forgetful { bytes, forgets: Some(70) });
        let error = point(&mut losing, Mode::Write, 64, &plan, &mut memory).expect_err("lost");
        assert!(error.to_string().contains("byte 70 is"), "{error}");
    }

    #[test]
    fn medians_and_tails() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]).expect("some");
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of(Vec::new()), None);
        let single = (1..=1000).rev().map(f64::from).collect();
        let mut times = Times { single, ..Times::default() };
        assert_eq!((times.permille(500), times.permille(990)), (500.0, 990.0));
    }
}
