//! Verifying what a kept target has on its disk while it serves: what is asked for, and what was found.

use super::storage::Placed;
use crate::error::{Error, Result};
use crate::wire::control::ScrubReport;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is bad and named; more is counted.
const NAMED_MAX: usize = 64;

/// Reads what is on disk, at so many bytes in a second, and tells the book; runs by itself.
pub type Reader = Box<dyn Fn(Arc<Scrub>, u64) -> Result<()> + Send + Sync>;

/// The book of a target's verification.
pub struct Scrub {
    report: Mutex<ScrubReport>,
    reader: Reader,
}

impl Scrub {
    /// None was made yet.
    pub fn new(reader: Reader) -> Arc<Scrub> {
        Arc::new(Scrub { report: Mutex::default(), reader })
    }

    fn lock(&self) -> MutexGuard<'_, ScrubReport> {
        // Nothing here panics between two changes that belong together.
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it is, or what the last one found.
    pub fn report(&self) -> ScrubReport {
        self.lock().clone()
    }

    /// Begins one, unless it goes on already.
    pub(super) fn begin(self: &Arc<Scrub>, rate: u64, all: u64) -> Result<()> {
        {
            let mut report = self.lock();
            if report.running {
                return Ok(());
            }
            *report = ScrubReport { running: true, all, ..ScrubReport::default() };
        }
        (self.reader)(self.clone(), rate).inspect_err(|_| self.end())
    }

    /// A chunk was looked at; `bad`: what is wrong with it.
    pub fn looked(&self, placed: &Placed, bad: Option<Error>) {
        let mut report = self.lock();
        report.done += placed.place().1 as u64;
        report.chunks += 1;
        note(&mut report, bad);
    }

    /// A journal was looked at: so many bytes in so many records; `bad`: what is wrong with it.
    pub fn looked_through(&self, bytes: u64, records: u64, bad: Option<Error>) {
        let mut report = self.lock();
        report.all += bytes;
        report.done += bytes;
        report.records += records;
        note(&mut report, bad);
    }

    /// All was looked at, or nobody goes on.
    pub fn end(&self) {
        self.lock().running = false;
    }
}

fn note(report: &mut ScrubReport, bad: Option<Error>) {
    let Some(error) = bad else { return };
    report.errors += 1;
    if report.bad.len() < NAMED_MAX {
        report.bad.push(error.to_string());
    }
}
