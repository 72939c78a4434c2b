//! Reading ahead of a program that reads on and on in large steps.
//!
//! While the kernel copies a step to the program, and the program asks for the next, the pool would
//! have nothing to do for it: the next step is fetched then. It is given to the program only if the
//! targets say, when it has asked, that nothing has changed there since: it sees what a read would
//! have found, whoever wrote meanwhile.

use crate::buffer::Buffer;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use weir_core::fs::Seen;

/// Smallest step ahead of which is read: bytes. To ask whether it is as it was takes as long as to
/// read a small one.
const STEP_BYTES_MIN: usize = 128 << 10;
/// Steps, each where the last one ended, after which the next one is expected.
const STEPS_MIN: u32 = 2;
/// Files of a mount ahead of whose readers is read at a time. Each takes two buffers of a step.
const FILES_MAX: usize = 16;

/// How many of a mount's files are read ahead of.
#[derive(Clone, Default)]
pub(crate) struct Places(Arc<AtomicUsize>);

impl Places {
    fn take(&self) -> Option<Place> {
        let add = |count| (count < FILES_MAX).then_some(count + 1);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.ok().map(|_| Place(self.clone()))
    }
}

struct Place(Places);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is known of how an open file is read.
pub(crate) struct Ahead {
    places: Places,
    state: Mutex<State>,
    /// A step that was coming is here, or does not come.
    settled: Condvar,
}

#[derive(Default)]
struct State {
    /// The last step: where it ended, its length, and how many before it came one behind the other.
    end: u64,
    length: usize,
    steps: u32,
    /// None: nothing was fetched.
    place: Option<Place>,
    next: Next,
    spare: Option<Buffer>,
}

#[derive(Default)]
enum Next {
    #[default]
    Nothing,
    /// Somebody fetches the step that begins there.
    Coming(u64),
    Here(Fetched),
}

/// A step that was fetched, and in which state it was found.
pub(crate) struct Fetched {
    offset: u64,
    pub(crate) buffer: Buffer,
    pub(crate) seen: Seen,
}

/// What to do for a read.
#[derive(Default)]
pub(crate) struct Step<'a> {
    /// What was fetched for it.
    pub(crate) fetched: Option<Fetched>,
    /// The step after it is to be fetched.
    pub(crate) next: Option<Fetch<'a>>,
}

/// A promise to fetch a step: whoever wants it waits until it is kept, or dropped.
pub(crate) struct Fetch<'a> {
    ahead: &'a Ahead,
    pub(crate) offset: u64,
    result: Option<Fetched>,
}

impl Ahead {
    pub(crate) fn new(places: &Places) -> Ahead {
        Ahead { places: places.clone(), state: Mutex::default(), settled: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing below panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program reads; waits if that is being fetched.
    pub(crate) fn step(&self, offset: u64, length: usize) -> Step<'_> {
        let mut state = self.lock();
        let goes_on = offset == state.end && length == state.length;
        (state.end, state.length) = (offset + length as u64, length);
        if !goes_on || length < STEP_BYTES_MIN {
            state.steps = 0;
            state.rest();
            return Step::default();
        }
        state.steps = state.steps.saturating_add(1);
        while matches!(state.next, Next::Coming(at) if at == offset) {
            state = self.settled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut step = Step::default();
        match std::mem::take(&mut state.next) {
            Next::Nothing => {}
            coming @ Next::Coming(_) => {
                state.next = coming;
                return step;
            }
            Next::Here(fetched) if fetched.offset == offset && fetched.buffer.len() == length => {
                step.fetched = Some(fetched);
            }
            Next::Here(fetched) => state.spare = Some(fetched.buffer),
        }
        if state.place.is_none() && state.steps >= STEPS_MIN {
            state.place = self.places.take();
        }
        if state.place.is_some() {
            let offset = offset + length as u64;
            state.next = Next::Coming(offset);
            step.next = Some(Fetch { ahead: self, offset, result: None });
        }
        step
    }

    /// Memory for a step of this length.
    pub(crate) fn buffer(&self, length: usize) -> std::io::Result<Buffer> {
        let spare = self.lock().spare.take().filter(|buffer| buffer.len() == length);
        spare.map_or_else(|| Buffer::to_answer(length), Ok)
    }

    /// A step's memory is not needed any more.
    pub(crate) fn give_back(&self, buffer: Buffer) {
        let mut state = self.lock();
        if state.place.is_some() {
            state.spare = Some(buffer);
        }
    }
}

impl State {
    /// Nobody is expected to read on.
    fn rest(&mut self) {
        if !matches!(self.next, Next::Coming(_)) {
            self.next = Next::Nothing;
            (self.place, self.spare) = (None, None);
        }
    }
}

impl Fetch<'_> {
    /// It is here.
    pub(crate) fn keep(mut self, buffer: Buffer, seen: Seen) {
        self.result = Some(Fetched { offset: self.offset, buffer, seen });
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        let mut state = self.ahead.lock();
        // Whoever waits for it has counted it as a step already.
        let after = self.offset + state.length as u64;
        let wanted = state.steps > 0 && (state.end == self.offset || state.end == after);
        state.next = match self.result.take() {
            Some(fetched) if wanted => Next::Here(fetched),
            _ => Next::Nothing,
        };
        if !wanted {
            state.rest();
        }
        drop(state);
        self.ahead.settled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    const STEP: usize = STEP_BYTES_MIN;

    fn at(step: usize) -> u64 {
        (step * STEP) as u64
    }

    /// Reads a step: whether it had been fetched, and which one is to be.
    fn read(ahead: &Ahead, step: usize) -> (bool, Option<u64>) {
        let Step { fetched, next } = ahead.step(at(step), STEP);
        let (found, offset) = (fetched.is_some(), next.as_ref().map(|next| next.offset));
        if let Some(next) = next {
            next.keep(ahead.buffer(STEP).unwrap(), Seen::default());
        }
        if let Some(fetched) = fetched {
            assert_eq!((fetched.offset, fetched.buffer.len()), (at(step), STEP));
            ahead.give_back(fetched.buffer);
        }
        (found, offset)
    }

    #[test]
    fn who_reads_on_and_on_is_read_ahead_of() {
        let places = Places::default();
        let ahead = Ahead::new(&places);
        assert_eq!(read(&ahead, 0), (false, None));
        assert_eq!(read(&ahead, 1), (false, None));
        assert_eq!(read(&ahead, 2), (false, Some(at(3))));
        for step in 3..9 {
            assert_eq!(read(&ahead, step), (true, Some(at(step + 1))));
        }
        assert_eq!(places.0.load(Ordering::Relaxed), 1);
        // Somewhere else, and on from there.
        assert_eq!(read(&ahead, 5), (false, None));
        assert_eq!(places.0.load(Ordering::Relaxed), 0);
        assert!(ahead.lock().spare.is_none(), "memory that nobody needs is kept");
        assert_eq!(read(&ahead, 6), (false, None));
        assert_eq!(read(&ahead, 7), (false, Some(at(8))));
        // A step of another length ends it too; so do small ones.
        assert!(ahead.step(at(8), STEP + 1).fetched.is_none());
        for i in 0..9 {
            let step = ahead.step(at(8) + STEP as u64 + 1 + i * 4096, 4096);
            assert!(step.fetched.is_none() && step.next.is_none());
        }
    }

    #[test]
    fn a_step_that_did_not_come_is_not_waited_for() {
        let ahead = Ahead::new(&Places::default());
        for step in 0..2 {
            read(&ahead, step);
        }
        let step = ahead.step(at(2), STEP);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| read(&ahead, 3));
            thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished(), "it was on its way");
            drop(step);
            assert_eq!(waiting.join().unwrap(), (false, Some(at(4))));
        });
        assert_eq!(read(&ahead, 4), (true, Some(at(5))));
    }

    #[test]
    fn what_comes_late_is_not_kept_for_nobody() {
        let places = Places::default();
        let ahead = Ahead::new(&places);
        for step in 0..2 {
            read(&ahead, step);
        }
        let late = ahead.step(at(2), STEP).next.unwrap();
        assert_eq!(read(&ahead, 77), (false, None));
        late.keep(ahead.buffer(STEP).unwrap(), Seen::default());
        assert!(matches!(ahead.lock().next, Next::Nothing));
        assert_eq!(places.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn only_so_many_files_are_read_ahead_of() {
        let places = Places::default();
        let reader = || {
            let ahead = Ahead::new(&places);
            let fetches = (0..3).any(|step| read(&ahead, step).1.is_some());
            (ahead, fetches)
        };
        let mut readers: Vec<_> = (0..FILES_MAX).map(|_| reader()).collect();
        assert!(readers.iter().all(|(_, fetches)| *fetches));
        assert!(!reader().1);
        readers.pop();
        assert!(reader().1);
    }
}
