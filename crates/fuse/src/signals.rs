//! Whether a signal waits for a thread that waits for an answer of ours.
//!
//! The kernel would say so (FUSE_INTERRUPT), but fuser answers that it does not want to know; from
//! then on threads wait for their answers deaf to all signals. So whoever lets a thread wait for long
//! has to look after its signals, and end the wait: it is in `/proc`, where the thread can be seen
//! from here at all.

use std::fs;

/// Signals of a thread, as sets of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Signals {
    /// The thread's process.
    process: u32,
    threads: u32,
    /// Sent to the thread.
    own: u64,
    /// Sent to the process.
    shared: u64,
    blocked: u64,
}

impl Signals {
    fn of(thread: u32) -> Option<Signals> {
        Signals::parse(&fs::read_to_string(format!("/proc/{thread}/status")).ok()?)
    }

    fn parse(status: &str) -> Option<Signals> {
        let field = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim)
        };
        let number = |name| field(name)?.parse().ok();
        let bits = |name| u64::from_str_radix(field(name)?, 16).ok();
        Some(Signals {
            process: number("Tgid:")?,
            threads: number("Threads:")?,
            own: bits("SigPnd:")?,
            shared: bits("ShdPnd:")?,
            blocked: bits("SigBlk:")?,
        })
    }
}

/// Watches one thread.
#[derive(Debug)]
pub(crate) struct Watch {
    thread: u32,
    /// Signals of its process that were waiting when it was last looked at.
    before: u64,
}

impl Watch {
    /// `thread` is as the kernel names it in a request.
    pub(crate) fn new(thread: u32) -> Watch {
        Watch { thread, before: 0 }
    }

    /// Whether the thread has a signal to see to. Only then may it be told EINTR: the kernel makes
    /// that a restart, which nothing but a signal would carry out.
    pub(crate) fn is_signalled(&mut self) -> bool {
        // Process 0 is one that cannot be seen from here.
        match Signals::of(self.thread).filter(|_| self.thread != 0) {
            Some(signals) => self.judge(signals, Signals::of),
            None => false,
        }
    }

    fn judge(&mut self, signals: Signals, of: impl Fn(u32) -> Option<Signals>) -> bool {
        if signals.own & !signals.blocked != 0 {
            return true;
        }
        let mut shared = signals.shared & !signals.blocked;
        if shared == 0 || signals.threads == 1 {
            self.before = 0;
            return shared != 0;
        }
        // The kernel has chosen one thread for it: the first, unless that has blocked it. Where
        // another was chosen, it takes the signal before we look for the second time.
        if signals.process != self.thread {
            shared &= of(signals.process).map_or(0, |first| first.blocked);
        }
        let waits = shared & self.before != 0;
        self.before = shared;
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USR1: u64 = 1 << 9;

    fn signals(threads: u32, own: u64, shared: u64, blocked: u64) -> Signals {
        Signals { process: 7, threads, own, shared, blocked }
    }

    #[test]
    fn a_status_is_read() {
        let status = "Name:\tx\nTgid:\t7\nThreads:\t3\nSigQ:\t1/9\nSigPnd:\t0000000000000100\n\
                      ShdPnd:\t0000000000000200\nSigBlk:\tfffffffe7ffbfeff\n";
        let expected = Signals {
            process: 7,
            threads: 3,
            own: 0x100,
            shared: 0x200,
            blocked: 0xffff_fffe_7ffb_feff,
        };
        assert_eq!(Signals::parse(status), Some(expected));
        assert_eq!(Signals::parse("Name:\tx\n"), None);
        let own = Signals::of(std::process::id()).unwrap();
        assert_eq!(own.process, std::process::id());
    }

    #[test]
    fn a_signal_counts_where_it_will_be_taken() {
        let none = |_| None;
        let blocked = |_| Some(signals(2, 0, 0, USR1));
        let open = |_| Some(signals(2, 0, 0, 0));
        let mut first = Watch::new(7);
        assert!(!first.judge(signals(1, 0, 0, 0), none));
        assert!(!first.judge(signals(1, USR1, USR1, USR1), none));
        assert!(first.judge(signals(1, 0, USR1, 0), none));
        assert!(first.judge(signals(2, USR1, 0, 0), none));
        // Of many threads, the first is asked first; another may be about to take it.
        assert!(!first.judge(signals(2, 0, USR1, 0), none));
        assert!(first.judge(signals(2, 0, USR1, 0), none));
        assert!(!first.judge(signals(2, 0, 0, 0), none));
        assert!(!first.judge(signals(2, 0, USR1, 0), none));
        let mut second = Watch::new(8);
        for _ in 0..3 {
            assert!(!second.judge(signals(2, 0, USR1, 0), open));
        }
        assert!(!second.judge(signals(2, 0, USR1, 0), blocked));
        assert!(second.judge(signals(2, 0, USR1, 0), blocked));
    }
}
