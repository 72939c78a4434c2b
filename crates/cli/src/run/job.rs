//! The half of `weir run` that mounts the pool and has the program as its child.
//!
//! A process of its own, because a mount namespace must be entered before any thread starts, and so
//! that whichever half is killed, the other one cleans up.

use crate::args;
use crate::channel::Channel;
use crate::failure::{Failure, Outcome, plain, status};
use crate::fuse;
use crate::namespace::{self, Fresh, Way};
use crate::pool;
use crate::sys::{self, Signals};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setpgid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weir_client::lending::Board;
use weir_fuse::{FileStatistics, MountOptions, OperationStatistics, Statistics};

/// Tells the preload library that there is no mount, and where the pool's directory and board are.
const ALONE: &str = "WEIR_ALONE";
/// In the pool's directory: where programs without a mount are, for the kernel, that have gone to a
/// directory of the pool.
pub(crate) const WORKING: &str = "cwd";
/// How long what the program left running has to end by itself.
const ORPHANS_GRACE: Duration = Duration::from_secs(2);

/// What `weir run` wants of its job.
#[derive(Serialize, Deserialize)]
pub(super) enum Order {
    /// Mount there. If `weir run` dies, remove these directories and that of the pool.
    Mount { way: Way, directory: OsString, remove: Vec<OsString>, pool: OsString },
    /// There is to be no mount: the program has the preload library alone, which finds the pool's
    /// directory by the board in it.
    Alone { remove: Vec<OsString>, pool: OsString },
    /// Serve the mount from this pool.
    Serve { access: pool::Access, kernel: args::Kernel, rules: Vec<weir_fuse::Rule> },
    /// Start the program, in this process group.
    Start { command: Vec<OsString>, variables: Vec<(String, OsString)>, group: i32 },
    /// Pass a signal on to the program.
    Signal(i32),
    /// End the program and all that it started.
    Kill,
}

/// What the job says.
#[derive(Serialize, Deserialize)]
pub(super) enum Word {
    Mounted,
    Serving,
    Started,
    Ended(Box<Ended>),
    Failed { status: u8, text: String },
}

/// What became of the program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ended {
    /// As `$?` of a shell: 128 + signal for one that was killed.
    pub(super) exit_status: u8,
    pub(super) signal: Option<i32>,
    pub(super) wall_s: f64,
    pub(super) user_s: f64,
    pub(super) system_s: f64,
    /// Processes that it left running and that were ended.
    pub(super) left_running: usize,
    pub(super) mount: weir_fuse::Statistics,
}

/// `weir keep-run`.
pub(crate) fn keep(control: i32) -> Outcome<u8> {
    let mut channel = Channel::inherited(control)?;
    // Neither Ctrl-C nor Ctrl-Z are for the process that serves the program's files.
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    let signals = Signals::catch(&[Signal::SIGCHLD, Signal::SIGTERM])?;
    sys::adopt_orphans();
    let mut job = Job::default();
    let result = job.work(&mut channel, &signals);
    if let Err(failure) = &result {
        // Fails where `weir run` is gone: then nobody wants to know.
        let word = Word::Failed { status: failure.status, text: failure.text.clone() };
        let _ = channel.send(&word);
    }
    job.clean(matches!(result, Ok(Finish::Abandoned)));
    Ok(0)
}

/// Whether a private mount can be had here: tried, in a process of its own.
pub(crate) fn try_private_mount() -> Outcome<()> {
    let directory = std::env::temp_dir().join(format!("weir-doctor-{}", std::process::id()));
    std::fs::create_dir(&directory)
        .map_err(|error| Failure::system("make directory", directory.display(), error))?;
    let attempt = || {
        let (mut child, mut channel) = Channel::start("keep-run", |_| ())?;
        let order = Order::Mount {
            way: Way::Private,
            directory: directory.clone().into(),
            remove: Vec::new(),
            pool: directory.join("none").into(),
        };
        channel.send(&order)?;
        let word = channel.receive::<Word>();
        let _ = channel.send(&Order::Kill);
        let _ = child.wait();
        match word? {
            Some(Word::Mounted) => Ok(()),
            Some(Word::Failed { status, text }) => Err(Failure::new(status, text)),
            _ => Err(Failure::say("mount: its process died")),
        }
    };
    let result = attempt();
    let _ = std::fs::remove_dir(&directory);
    result
}

enum Finish {
    /// All was said.
    Told,
    /// `weir run` is gone.
    Abandoned,
}

#[derive(Default)]
struct Job {
    mounted: Option<PathBuf>,
    /// Where the program counts, if there is no mount.
    board: Option<Board>,
    session: Option<weir_fuse::Session>,
    remove: Vec<PathBuf>,
    pool: PathBuf,
}

impl Job {
    fn work(&mut self, channel: &mut Channel, signals: &Signals) -> Outcome<Finish> {
        let mut fresh: Option<Fresh> = None;
        loop {
            match channel.receive()? {
                None => return Ok(Finish::Abandoned),
                Some(Order::Mount { way, directory, remove, pool }) => {
                    self.remove = remove.into_iter().map(PathBuf::from).collect();
                    self.pool = PathBuf::from(pool);
                    let directory = PathBuf::from(directory);
                    fresh = Some(namespace::mount_at(way, &directory)?);
                    self.mounted = Some(directory);
                    channel.send(&Word::Mounted)?;
                }
                Some(Order::Alone { remove, pool }) => {
                    self.remove = remove.into_iter().map(PathBuf::from).collect();
                    self.pool = PathBuf::from(pool);
                    // Programs compare it with what the kernel says of working directories.
                    let pool = self.pool.canonicalize();
                    let trouble = |error| Failure::system("use", self.pool.display(), error);
                    let board = pool
                        .and_then(|pool| {
                            std::fs::DirBuilder::new().mode(0o700).create(pool.join(WORKING))?;
                            Board::make(&pool)
                        })
                        .map_err(trouble)?;
                    board.new_cell();
                    self.board = Some(board);
                    channel.send(&Word::Mounted)?;
                }
                Some(Order::Serve { .. }) if self.board.is_some() => {
                    channel.send(&Word::Serving)?;
                }
                Some(Order::Serve { access, kernel, rules }) => {
                    let (Some(fresh), Some(directory)) = (fresh.take(), &self.mounted) else {
                        return Err(Failure::say("serve: not mounted"));
                    };
                    let options = MountOptions { rules, ..kernel.into() };
                    self.session =
                        Some(fuse::serve(&access, &self.pool, directory, fresh, options)?);
                    channel.send(&Word::Serving)?;
                }
                Some(Order::Start { command, mut variables, group }) => {
                    if let Some(board) = &self.board {
                        variables.push((ALONE.to_owned(), board.path().into()));
                    } else if self.session.is_none() {
                        return Err(Failure::say("start: the pool is not there"));
                    }
                    let program = start(&command, variables, group)?;
                    channel.send(&Word::Started)?;
                    return self.attend(program, channel, signals);
                }
                Some(Order::Signal(_)) => {}
                Some(Order::Kill) => return Ok(Finish::Told),
            }
        }
    }

    /// Until the program has ended, then reports.
    fn attend(
        &mut self,
        program: Pid,
        channel: &mut Channel,
        signals: &Signals,
    ) -> Outcome<Finish> {
        let begun = Instant::now();
        let ended = loop {
            let ready = match channel.has_message() {
                true => vec![true],
                false => sys::wait_readable(&[channel.as_fd(), signals.as_fd()], None),
            };
            while signals.next().is_some() {}
            if sys::interrupted().is_some() {
                return Ok(Finish::Abandoned);
            }
            if let Some(ended) = reap(program) {
                break ended;
            }
            if ready[0] {
                match channel.receive()? {
                    None => return Ok(Finish::Abandoned),
                    Some(Order::Signal(number)) => {
                        if let Ok(signal) = Signal::try_from(number) {
                            let _ = kill(program, signal);
                        }
                    }
                    Some(Order::Kill) => {
                        sys::end_children(&BTreeSet::from([program.as_raw()]), Duration::ZERO);
                        let _ = kill(program, Signal::SIGKILL);
                    }
                    Some(_) => {}
                }
            }
        };
        let wall_s = begun.elapsed().as_secs_f64();
        let left_running = sys::end_children(&BTreeSet::new(), ORPHANS_GRACE);
        let (user_s, system_s) = children_cpu();
        self.settle();
        let mount = match (&self.session, &self.board) {
            (Some(session), _) => fuse::statistics(session),
            (None, Some(board)) => counted(board),
            (None, None) => Statistics::default(),
        };
        let (exit_status, signal) = match ended {
            WaitStatus::Exited(_, code) => (code as u8, None),
            WaitStatus::Signaled(_, signal, _) => {
                (status::SIGNALLED + signal as u8, Some(signal as i32))
            }
            _ => (status::FAILED, None),
        };
        let ended = Ended { exit_status, signal, wall_s, user_s, system_s, left_running, mount };
        channel.send(&Word::Ended(Box::new(ended)))?;
        // `weir run` saves results now. Should it be killed meanwhile, we are there to clean up.
        self.unmount();
        loop {
            match channel.receive()? {
                None => return Ok(Finish::Abandoned),
                Some(Order::Kill) => return Ok(Finish::Told),
                Some(_) => {}
            }
        }
    }

    /// Nobody waits for the kernel's last words on files that were closed: a moment is enough.
    fn settle(&self) {
        let Some(session) = &self.session else { return };
        for _ in 0..100 {
            let counted = fuse::statistics(session);
            let count = |name: &str| {
                counted.operations.get(name).map_or(0, |found| found.count - found.errors)
            };
            if count("release") >= count("open") + count("create") {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn unmount(&mut self) {
        if let Some(directory) = self.mounted.take() {
            let _ = namespace::unmount(&directory);
        }
    }

    /// Leaves nothing behind: no process of the program, no mount; no directory either, if nobody
    /// else is there to remove them.
    fn clean(&mut self, abandoned: bool) {
        if abandoned && let Some(directory) = &self.mounted {
            namespace::abort(directory);
        }
        sys::end_children(&BTreeSet::new(), Duration::ZERO);
        self.unmount();
        if abandoned {
            for directory in &self.remove {
                let _ = std::fs::remove_dir(directory);
            }
            crate::state::PoolDirectory { path: self.pool.clone() }.clear();
        }
        if let Some(session) = &self.session {
            session.stop_lending();
        }
        // Its threads may wait for servers that are gone: they end with the process.
        std::mem::forget(self.session.take());
    }
}

/// Collects all children that ended; the program's end if it is among them.
fn reap(program: Pid) -> Option<WaitStatus> {
    let mut found = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(_) => return found,
            Ok(ended) if ended.pid() == Some(program) => found = Some(ended),
            Ok(_) => {}
        }
    }
}

/// Processor time of all children so far, user and system: seconds.
fn children_cpu() -> (f64, f64) {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return (0.0, 0.0) };
    let seconds = |time: nix::sys::time::TimeVal| time.num_microseconds() as f64 / 1e6;
    (seconds(usage.user_time()), seconds(usage.system_time()))
}

/// What programs without a mount have counted, all files together.
fn counted(board: &Board) -> Statistics {
    let found = board.total();
    let value = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let total = FileStatistics {
        reads: value(&found.reads),
        writes: value(&found.writes),
        bytes_read: value(&found.bytes_read),
        bytes_written: value(&found.bytes_written),
        read_ns: value(&found.read_ns),
        write_ns: value(&found.write_ns),
        ..FileStatistics::default()
    };
    let operation = |name: &str, count, errors, ns| {
        (name.to_owned(), OperationStatistics { count, errors, ns })
    };
    let operations = [
        operation("direct read", total.reads, value(&found.read_errors), total.read_ns),
        operation("direct write", total.writes, value(&found.write_errors), total.write_ns),
    ];
    Statistics { total, operations: operations.into(), ..Statistics::default() }
}

fn start(command: &[OsString], variables: Vec<(String, OsString)>, group: i32) -> Outcome<Pid> {
    let Some(program) = command.first() else {
        return Err(Failure::say("start: nothing to start"));
    };
    let keeper = std::process::id() as i32;
    let mut child = Command::new(program);
    // Of a run around this one.
    child.args(&command[1..]).env_remove(ALONE).envs(variables);
    let prepare = move || {
        // In the terminal's foreground, where its signals go and its input comes from. Refused where
        // there is no such group any more: then there is no such terminal either.
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(group));
        // If this process dies, so does the program.
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        match nix::unistd::getppid().as_raw() == keeper {
            true => Ok(()),
            false => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: nothing but system calls on integers.
    unsafe { child.pre_exec(prepare) };
    match child.spawn() {
        Ok(child) => Ok(Pid::from_raw(child.id() as i32)),
        Err(cause) => {
            let status = match cause.kind() {
                std::io::ErrorKind::NotFound => status::NOT_FOUND,
                _ => status::NOT_EXECUTABLE,
            };
            let name = program.to_string_lossy();
            Err(Failure::new(status, format!("start {name}: {}", plain(cause))))
        }
    }
}
