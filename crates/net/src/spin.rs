//! Looking again for a moment before going to sleep.
//!
//! To put a processor to sleep and wake it costs some 50 µs in a virtual machine, as much as five
//! small requests. Whoever waits for an answer therefore looks again for about that time; then it
//! has lost no more than it would have won. That is only right while no processor is wanted
//! by somebody else, above all by the peer who is to answer, and while looking pays: both are watched.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A wait in vain costs as much credit as so many that paid brought.
const VAIN_COST: i32 = 4;
/// Most credit; and how many waits pass by when it has been used up.
const CREDIT_MAX: i32 = 16;
/// How often the machine is asked whether it is crowded.
const SAMPLE_EVERY: Duration = Duration::from_millis(1);
/// Samples that must find room, one after the other, before it is believed.
const CALM_SAMPLES: u32 = 4;

/// Whether one who waits is to look again, learned from how that went before.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    credit: AtomicI32,
}

impl Spin {
    /// Calls `look` until it gives something else than zero, for at most `limit`; gives what it
    /// gave last. Does nothing, and gives 0, where looking again is no good.
    pub(crate) fn look(&self, limit: Duration, mut look: impl FnMut() -> i32) -> i32 {
        if limit.is_zero() {
            return 0;
        }
        if !self.pays() {
            return 0;
        }
        let start = Instant::now();
        if CROWD.is_crowded(start) {
            return 0;
        }
        loop {
            let found = look();
            if found != 0 {
                self.learn(true);
                return found;
            }
            if start.elapsed() >= limit {
                self.learn(false);
                return 0;
            }
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

    fn learn(&self, paid: bool) {
        let credit = self.credit.load(Relaxed);
        let credit = match paid {
            true => (credit + 1).min(CREDIT_MAX),
            false if credit < VAIN_COST => -CREDIT_MAX,
            false => credit - VAIN_COST,
        };
        self.credit.store(credit, Relaxed);
    }
}

/// What is known of the machine.
struct Crowd {
    since: Instant,
    processors: u32,
    /// When it was last asked: nanoseconds since `since`.
    asked_ns: AtomicU64,
    asking: AtomicBool,
    /// Samples in a row that found room.
    calm: AtomicU32,
}

static CROWD: LazyLock<Crowd> = LazyLock::new(|| Crowd {
    since: Instant::now(),
    // SAFETY: no pointers.
    processors: u32::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1),
    asked_ns: AtomicU64::new(0),
    asking: AtomicBool::new(false),
    calm: AtomicU32::new(0),
});

impl Crowd {
    /// Whether more threads want to run, this one among them, than there are processors.
    fn is_crowded(&self, now: Instant) -> bool {
        let now_ns = now.duration_since(self.since).as_nanos() as u64;
        let due = self.asked_ns.load(Relaxed) + SAMPLE_EVERY.as_nanos() as u64;
        if now_ns >= due && !self.asking.swap(true, Relaxed) {
            let calm = match running() {
                Some(running) if running <= self.processors => self.calm.load(Relaxed) + 1,
                _ => 0,
            };
            self.calm.store(calm.min(CALM_SAMPLES), Relaxed);
            self.asked_ns.store(now_ns, Relaxed);
            self.asking.store(false, Relaxed);
        }
        self.calm.load(Relaxed) < CALM_SAMPLES
    }
}

/// Threads that run or want to, in the whole machine; None where that is not told. By bare system
/// calls: in a program that we live in, its own `open` is not ours to call.
fn running() -> Option<u32> {
    let path = c"/proc/loadavg";
    let mut text = [0u8; 64];
    // SAFETY: a path that ends in zero, and a buffer of the length that is stated.
    let length = unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let descriptor = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
        if descriptor < 0 {
            return None;
        }
        let length = libc::syscall(libc::SYS_read, descriptor, text.as_mut_ptr(), text.len());
        libc::syscall(libc::SYS_close, descriptor);
        length
    };
    parse(text.get(..usize::try_from(length).ok()?)?)
}

/// The fourth word of the file is "running/all".
fn parse(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_ascii_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many waits, those that are tried, if each goes like this.
    fn tried(spin: &Spin, waits: usize, paid: bool) -> usize {
        let tries = (0..waits).filter(|_| spin.pays());
        tries.inspect(|_| spin.learn(paid)).count()
    }

    #[test]
    fn looking_in_vain_is_given_up_for_most_waits() {
        let spin = Spin::default();
        assert_eq!(tried(&spin, 100, true), 100);
        // Five in vain use the credit up; then it is tried once in seventeen.
        assert_eq!(tried(&spin, 5 + 10 * 17, false), 5 + 10);
        // One that pays is enough to go on.
        assert_eq!(tried(&spin, 17, true), 1);
        assert_eq!(tried(&spin, 100, true), 100);
    }

    #[test]
    fn none_is_tried_without_time_for_it() {
        assert_eq!(Spin::default().look(Duration::ZERO, || 1), 0);
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(parse(b"0.52 0.58 0.59 3/467 12345\n"), Some(3));
        assert_eq!(parse(b"0.52 0.58"), None);
        assert!(running().is_some_and(|running| running >= 1));
    }
}
