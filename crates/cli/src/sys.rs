//! Processes, signals and memory of this machine.

use crate::failure::{Failure, Outcome, plain};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// One process, never mistaken for a later one with the same number: pid, start time and boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Clock ticks from boot to its start.
    pub(crate) start: u64,
    pub(crate) boot: String,
    /// Its host: on another one nothing can be said about it.
    pub(crate) host: String,
}

impl Process {
    /// This process.
    pub(crate) fn me() -> Outcome<Process> {
        Process::of(std::process::id() as i32)
            .ok_or_else(|| Failure::say("read /proc/self/stat: failed; weir needs /proc"))
    }

    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> Option<Process> {
        let stat = Stat::read(pid)?;
        Some(Process { pid, start: stat.start, boot: boot(), host: host() })
    }

    pub(crate) fn is_local(&self) -> bool {
        self.host == host()
    }

    /// Whether it runs still (a zombie does not). On another host: unknown, hence `true`.
    pub(crate) fn lives(&self) -> bool {
        if !self.is_local() {
            return true;
        }
        self.boot == boot()
            && Stat::read(self.pid)
                .is_some_and(|stat| stat.start == self.start && stat.state != 'Z')
    }

    /// Sends a signal to exactly this process.
    pub(crate) fn signal(&self, signal: Signal) {
        if !self.is_local() {
            return;
        }
        // The descriptor pins the process: its number cannot pass to another in between.
        // SAFETY: a system call with two integers; the result is a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) } as i32;
        if fd < 0 {
            return;
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        if self.lives() {
            let none = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: a system call on a live descriptor, with no siginfo.
            unsafe {
                libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal as i32, none, 0)
            };
        }
    }

    /// Asks it to end, and makes it after `grace`. Whether it is gone.
    pub(crate) fn end(&self, grace: Duration) -> bool {
        self.signal(Signal::SIGTERM);
        if self.wait(grace) {
            return true;
        }
        self.signal(Signal::SIGKILL);
        self.wait(Duration::from_secs(5))
    }

    fn wait(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while self.is_local() && self.lives() {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.is_local()
    }
}

struct Stat {
    state: char,
    parent: i32,
    start: u64,
}

impl Stat {
    fn read(pid: i32) -> Option<Stat> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything, parentheses too.
        let rest = &text[text.rfind(')')? + 1..];
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Stat {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }
}

fn boot() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// This host's name.
pub(crate) fn host() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The processes whose parent is this one.
pub(crate) fn children() -> BTreeSet<i32> {
    let me = std::process::id() as i32;
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeSet::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| Stat::read(pid).is_some_and(|stat| stat.parent == me))
        .collect()
}

/// Orphans among our descendants become our children, so that none is lost sight of.
pub(crate) fn adopt_orphans() {
    // Refused by no kernel that has FUSE in namespaces; where it is, orphans are init's.
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

/// Ends all our children but `spared`, theirs, and so on: as each dies, its own become ours. Gives
/// how many were ended. Needs [`adopt_orphans`].
pub(crate) fn end_children(spared: &BTreeSet<i32>, grace: Duration) -> usize {
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    use nix::unistd::Pid;
    let mut seen = BTreeSet::new();
    let polite_until = Instant::now() + grace;
    let give_up = polite_until + Duration::from_secs(10);
    loop {
        let mut left = 0;
        for pid in children().difference(spared).copied() {
            let pid = Pid::from_raw(pid);
            if !matches!(waitpid(pid, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive)) {
                continue;
            }
            left += 1;
            // A child that was not waited for keeps its number: this is nobody else.
            if Instant::now() >= polite_until {
                seen.insert(pid);
                let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
            } else if seen.insert(pid) {
                let _ = nix::sys::signal::kill(pid, Signal::SIGTERM);
                // Stopped ones hear it only when they go on.
                let _ = nix::sys::signal::kill(pid, Signal::SIGCONT);
            }
        }
        if left == 0 || Instant::now() > give_up {
            return seen.len();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Memory that can be had without swapping, and within the control group's limit: bytes.
pub(crate) fn memory_available() -> u64 {
    let kib = |text: &str, key: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line[key.len()..].split_ascii_whitespace().next()?.parse().ok()
    };
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = kib(&meminfo, "MemAvailable:").map_or(u64::MAX, |kib| kib * 1024);
    machine.min(group_memory_left().unwrap_or(u64::MAX))
}

/// What the control group (v2) and its ancestors leave us.
fn group_memory_left() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = std::path::Path::new("/sys/fs/cgroup");
    let mut left: Option<u64> = None;
    for group in root.join(path).ancestors().take_while(|group| group.starts_with(root)) {
        let number = |name: &str| -> Option<u64> {
            std::fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
        };
        if let (Some(limit), Some(used)) = (number("memory.max"), number("memory.current")) {
            let cache = std::fs::read_to_string(group.join("memory.stat")).ok().and_then(|text| {
                let line = text.lines().find_map(|line| line.strip_prefix("inactive_file "))?;
                line.parse().ok()
            });
            let here = limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0)));
            left = Some(left.map_or(here, |left| left.min(here)));
        }
    }
    left
}

/// As many open files as the hard limit allows: a server has a descriptor for each connection.
pub(crate) fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// A signal that came, and whether the terminal sent it (to all of the foreground, hence to the
/// program too) rather than a process (to us alone).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caught {
    pub(crate) signal: Signal,
    pub(crate) from_terminal: bool,
}

/// Signals as bytes in a pipe, for a poll loop.
pub(crate) struct Signals {
    pipe: OwnedFd,
}

static PIPE: AtomicI32 = AtomicI32::new(-1);
static ENDING: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(number: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo to a handler installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    if matches!(number, libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT) {
        ENDING.store(number, Ordering::Relaxed);
    }
    let bytes = [number as u8, u8::from(code > 0)];
    // SAFETY: errno is the thread's own, and put back so that interrupted code sees its value;
    // write is safe in handlers. A full pipe has woken its reader already.
    unsafe {
        let errno = libc::__errno_location();
        let kept = *errno;
        libc::write(PIPE.load(Ordering::Relaxed), bytes.as_ptr().cast(), bytes.len());
        *errno = kept;
    }
}

/// The signal that asked this process to end, once [`Signals::catch`] was called.
pub(crate) fn interrupted() -> Option<Signal> {
    Signal::try_from(ENDING.load(Ordering::Relaxed)).ok()
}

/// Forgets that signal: what follows is to be done in spite of it.
pub(crate) fn forget_interrupt() {
    ENDING.store(0, Ordering::Relaxed);
}

impl Signals {
    /// Catches these from now on; those that we were told to ignore (nohup) stay ignored.
    pub(crate) fn catch(signals: &[Signal]) -> Outcome<Signals> {
        let failed = |cause| Failure::system("catch", "signals", cause);
        let (read, write) =
            nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK)
                .map_err(failed)?;
        // The handler's end stays open as long as the process lives.
        PIPE.store(std::os::fd::IntoRawFd::into_raw_fd(write), Ordering::Relaxed);
        let action =
            SigAction::new(SigHandler::SigAction(on_signal), SaFlags::SA_RESTART, SigSet::empty());
        for &signal in signals {
            // SAFETY: the handler does nothing but what handlers may do.
            let before = unsafe { sigaction(signal, &action) }.map_err(failed)?;
            if matches!(before.handler(), SigHandler::SigIgn) && signal != Signal::SIGCHLD {
                // SAFETY: puts back what was there.
                unsafe { sigaction(signal, &before) }.map_err(failed)?;
            }
        }
        Ok(Signals { pipe: read })
    }

    /// The next one that came.
    pub(crate) fn next(&self) -> Option<Caught> {
        let mut bytes = [0; 2];
        match nix::unistd::read(&self.pipe, &mut bytes) {
            Ok(2) => Some(Caught {
                signal: Signal::try_from(i32::from(bytes[0])).ok()?,
                from_terminal: bytes[1] != 0,
            }),
            _ => None,
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// Waits until one of these can be read or is closed, or time is up: which of them.
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], limit: Option<Duration>) -> Vec<bool> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let timeout = match limit {
        None => PollTimeout::NONE,
        Some(limit) => PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX),
    };
    match poll(&mut polled, timeout) {
        Ok(_) => polled.iter().map(|fd| fd.any().unwrap_or(false)).collect(),
        // Interrupted: by a signal, whose byte is in the pipe by now.
        Err(_) => vec![false; fds.len()],
    }
}

/// How a child ended, for people.
pub(crate) fn show_status(status: std::process::ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (_, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("signal {number} ({signal})"),
            Err(_) => format!("signal {number}"),
        },
        _ => "an unknown status".to_owned(),
    }
}

/// Fresh randomness.
pub(crate) fn random<const N: usize>() -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|cause| Failure::say(format!("draw random bytes: {}", plain(cause))))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_number_and_start() {
        let me = Process::me().expect("self");
        assert!(me.lives());
        assert!(!Process { start: me.start + 1, ..me.clone() }.lives());
        assert!(!Process { boot: "another".into(), ..me.clone() }.lives());
        assert!(Process { host: "elsewhere".into(), start: 0, ..me }.lives());
    }

    #[test]
    fn a_process_is_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let process = Process::of(child.id() as i32).expect("it runs");
        assert!(children().contains(&process.pid));
        // A zombie counts as gone.
        assert!(process.end(Duration::from_secs(5)));
        assert!(!process.lives());
        child.wait().expect("reaped");
    }

    #[test]
    fn memory_is_found() {
        assert!((1 << 20..1 << 60).contains(&memory_available()));
    }
}
