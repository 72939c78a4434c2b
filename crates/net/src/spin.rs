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
//!
//! But Linux lets only those have it that are of the same group, by session or control group. MPICH
//! gives each rank a session of its own: there servers stood still for as long as a rank looked. So
//! a client who looks asks now and then whether more are at work on this machine than it has
//! processors, and if so, sleeps, as it does for the next few waits.

use crate::descriptors::moved;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
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
/// Waits that pass by where there was a crowd: it will hardly be gone with the next.
const CROWDED_COST: i32 = 8;
/// Whoever has looked for so long, and as long again, asks how many are at work.
const ASKED_AFTER: Duration = Duration::from_micros(15);
/// Who finds too many as often, one time after the other, sleeps. One time is not enough: where a
/// program and a mount take turns, both are at work for a moment when one wakes the other.
const CROWDED_MAX: u32 = 2;

/// Whether one who waits is to look again, learned from how that went before.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    credit: AtomicI32,
    /// None: it is not asked about, or cannot be known.
    crowd: Option<Crowd>,
}

/// How looking went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Paid,
    Vain,
    Taken,
    Crowded,
}

impl Spin {
    /// Of one who waits for a server: it looks again as long as there are processors to spare. A server
    /// that did so would sleep whenever a program and a mount are both at work for it to have
    /// something to do next, and be woken in the middle of that.
    pub(crate) fn of_client() -> Spin {
        Spin { credit: AtomicI32::default(), crowd: Crowd::new() }
    }

    /// Calls `look` until it gives something else than zero, for about `limit`; gives what it gave
    /// last. Does nothing, and gives 0, where looking again is no good.
    pub(crate) fn look(&self, limit: Duration, mut look: impl FnMut() -> i32) -> i32 {
        if limit.is_zero() || !self.pays() {
            return 0;
        }
        let start = Instant::now();
        let mut before = Duration::ZERO;
        let (mut ask_at, mut crowded) = (ASKED_AFTER, 0);
        loop {
            let found = look();
            let waited = start.elapsed();
            let course = match found {
                _ if waited - before >= TAKEN => Course::Taken,
                0 if waited < limit => {
                    if waited >= ask_at {
                        let is_there = self.crowd.as_ref().is_some_and(Crowd::is_there);
                        crowded = if is_there { crowded + 1 } else { 0 };
                        if crowded == CROWDED_MAX {
                            self.learn(Course::Crowded);
                            return 0;
                        }
                        ask_at = waited + ASKED_AFTER;
                    }
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
            Course::Crowded => -CROWDED_COST,
        };
        self.credit.store(credit, Relaxed);
    }
}

/// Whether more want to work than there are processors.
#[derive(Debug)]
struct Crowd {
    /// Open for as long as it may be asked, so that it never takes a number that a program uses.
    load: File,
    processors: u32,
}

impl Crowd {
    fn new() -> Option<Crowd> {
        let load = File::open("/proc/loadavg").ok()?;
        // All of the machine's, as the kernel counts all who are at work; not those alone on which
        // this thread may run.
        // SAFETY: a plain question.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let processors = u32::try_from(processors).ok().filter(|count| *count > 0)?;
        Some(Crowd { load: File::from(moved(OwnedFd::from(load))), processors })
    }

    fn is_there(&self) -> bool {
        let mut bytes = [0; 64];
        let length = self.load.read_at(&mut bytes, 0).unwrap_or(0);
        at_work(&bytes[..length]).is_some_and(|count| count > self.processors)
    }
}

/// From the text of /proc/loadavg, as in `0.20 0.18 0.12 1/80 11206`: how many threads run or want to.
fn at_work(text: &[u8]) -> Option<u32> {
    let counts = std::str::from_utf8(text).ok()?.split(' ').nth(3)?;
    counts.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_at_work_is_read_from_what_the_kernel_tells() {
        assert_eq!(at_work(b"0.20 0.18 0.12 1/80 11206\n"), Some(1));
        assert_eq!(at_work(b"120.20 0.18 0.12 130/4080 11206\n"), Some(130));
        for text in ["", "0.20 0.18", "0.20 0.18 0.12 80 11206", "0.20 0.18 0.12 x/80 11206"] {
            assert_eq!(at_work(text.as_bytes()), None, "{text}");
        }
        assert!(at_work(&std::fs::read("/proc/loadavg").unwrap()).unwrap() >= 1);
    }

    #[test]
    fn who_waits_sleeps_where_more_want_to_work_than_there_are_processors() {
        let of = |processors| {
            let crowd = Crowd { processors, ..Crowd::new().unwrap() };
            Spin { credit: AtomicI32::default(), crowd: Some(crowd) }
        };
        // This thread itself is one too many.
        let sleepless = Duration::from_secs(60);
        let asked = (0..1000).any(|_| {
            let spin = of(0);
            let mut looks = 0u64;
            let start = Instant::now();
            let found = spin.look(sleepless, || {
                looks += 1;
                0
            });
            assert_eq!(found, 0);
            assert!(start.elapsed() < sleepless);
            if spin.credit.load(Relaxed) == -TAKEN_COST {
                // Others on this machine had the processor meanwhile: nobody was asked.
                return false;
            }
            assert!(looks > 1, "asked before it looked");
            let passed = (0..1000).take_while(|_| !spin.pays()).count();
            assert_eq!(passed, CROWDED_COST as usize, "waits that go without looking");
            true
        });
        assert!(asked);
        // There is room for all.
        let limit = 20 * ASKED_AFTER;
        let start = Instant::now();
        assert_eq!(of(u32::MAX).look(limit, || 0), 0);
        assert!(start.elapsed() >= limit);
    }

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
        let looks_on = || {
            let mut looks = 0;
            let found = Spin::default().look(Duration::from_secs(60), || {
                looks += 1;
                i32::from(looks == 5)
            });
            (found, looks) == (1, 5)
        };
        // It gives up early where others had the processor meanwhile, as beside other tests: not each time.
        assert!((0..100).any(|_| looks_on()));
        let spin = Spin::default();
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
