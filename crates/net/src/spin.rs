//! Looking again for a moment before going to sleep.
//!
//! To put a processor to sleep and wake it costs some 50 µs in a virtual machine, as much as five
//! small requests, and half of that is paid by who wakes it, in the middle of his work. Whoever waits
//! therefore looks again, for as long as it takes to answer or ask for a large piece.
//!
//! That is only right while nobody else wants the processor, above all not the peer who is to answer.
//! So others may have it between any two looks: where there are none that costs nothing, and where
//! the peer shares this processor it works at once, without being woken. Who computes keeps it for
//! milliseconds, which is noticed; then, as where looking has not paid, most waits go without.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A wait in vain costs as much credit as so many that paid brought.
const VAIN_COST: i32 = 2;
/// Most credit; and how many waits pass by when it has been used up.
const CREDIT_MAX: i32 = 16;
/// A look after which it is this much later found others at work who do not wait for us.
const TAKEN: Duration = Duration::from_millis(1);
/// Waits that pass by after that.
const TAKEN_COST: i32 = 256;

/// Whether one who waits is to look again, learned from how that went before.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    credit: AtomicI32,
}

/// How looking went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Paid,
    Vain,
    Taken,
}

impl Spin {
    /// Calls `look` until it gives something else than zero, for about `limit`; gives what it gave
    /// last. Does nothing, and gives 0, where looking again is no good.
    pub(crate) fn look(&self, limit: Duration, mut look: impl FnMut() -> i32) -> i32 {
        if limit.is_zero() || !self.pays() {
            return 0;
        }
        let start = Instant::now();
        let mut before = Duration::ZERO;
        loop {
            let found = look();
            let waited = start.elapsed();
            let course = match found {
                _ if waited - before >= TAKEN => Course::Taken,
                0 if waited < limit => {
                    before = waited;
                    std::thread::yield_now();
                    continue;
                }
                0 => Course::Vain,
                _ => Course::Paid,
            };
            self.learn(course);
            return found;
        }
    }

    /// Whether looking has paid lately; where it has not, counts a wait that passes by.
    fn pays(&self) -> bool {
        let credit = self.credit.load(Relaxed);
        if credit < 0 {
            self.credit.store(credit + 1, Relaxed);
        }
        credit >= 0
    }

    fn learn(&self, course: Course) {
        let credit = self.credit.load(Relaxed);
        let credit = match course {
            Course::Paid => (credit + 1).min(CREDIT_MAX),
            Course::Vain if credit < VAIN_COST => -CREDIT_MAX,
            Course::Vain => credit - VAIN_COST,
            Course::Taken => -TAKEN_COST,
        };
        self.credit.store(credit, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many waits, those that are tried, if each goes like this.
    fn tried(spin: &Spin, waits: usize, course: Course) -> usize {
        let tries = (0..waits).filter(|_| spin.pays());
        tries.inspect(|_| spin.learn(course)).count()
    }

    #[test]
    fn looking_in_vain_is_given_up_for_most_waits() {
        let spin = Spin::default();
        assert_eq!(tried(&spin, 100, Course::Paid), 100);
        // Nine in vain use the credit up; then it is tried once in seventeen.
        assert_eq!(tried(&spin, 9 + 10 * 17, Course::Vain), 9 + 10);
        // One that pays is enough to go on.
        assert_eq!(tried(&spin, 17, Course::Paid), 1);
        assert_eq!(tried(&spin, 100, Course::Paid), 100);
    }

    #[test]
    fn beside_those_who_compute_it_is_hardly_tried() {
        let spin = Spin::default();
        assert_eq!(tried(&spin, 100, Course::Paid), 100);
        assert_eq!(tried(&spin, 1 + 10 * 257, Course::Taken), 1 + 10);
    }

    #[test]
    fn it_looks_until_there_is_something_or_the_time_is_over() {
        let spin = Spin::default();
        let mut looks = 0;
        let found = spin.look(Duration::from_secs(60), || {
            looks += 1;
            i32::from(looks == 5)
        });
        assert_eq!((found, looks), (1, 5));
        assert_eq!(spin.look(Duration::ZERO, || 1), 0);
        assert_eq!(Spin::default().look(Duration::from_micros(10), || 0), 0);
        // Somebody had the processor for longer than a peer needs.
        let late = || {
            std::thread::sleep(2 * TAKEN);
            1
        };
        assert_eq!(spin.look(Duration::from_secs(60), late), 1);
        assert_eq!(spin.look(Duration::from_secs(60), || 1), 0, "passed by");
    }
}
