//! Servers: the one that serves here, and those that `run` and `up` start and hold.
//!
//! A started server is *tethered*: it ends when its stdin does. Whoever started it holds the other
//! end of that pipe, so that nothing needs to be done for it to end, and even SIGKILL leaves none.

use crate::args;
use crate::failure::{Failure, Outcome, print, status};
use crate::kept::Keeping;
use crate::sys::{self, Process, Signals};
use crate::{size, state};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{BufRead, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use weir_client::Transport;
use weir_core::auth::Secret;
use weir_core::config::Timing;

/// Where `weir server` listens if nobody says otherwise.
const PORT: u16 = 4420;
/// How long a started server may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long it may take to end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What a server says when it listens.
#[derive(Serialize, Deserialize)]
struct Ready {
    address: String,
    pid: u32,
}

/// What a server says while it comes back to what it had.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Coming {
    /// Data or metadata.
    pub(crate) what: String,
    /// Of so many bytes so many have been read.
    pub(crate) done: u64,
    pub(crate) all: u64,
}

/// Servers to start or to use: all that can be checked before anything is started is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    place: Where,
    memory: u64,
    /// Of each server, as words for its command line.
    disks: Vec<String>,
    metadata_memory: Option<u64>,
    /// By what servers can be reached.
    #[serde(default)]
    transport: Transport,
    pub(crate) timing: Timing,
    /// Of a pool that lasts.
    keeping: Option<Keeping>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Where {
    Here {
        count: u16,
        listen: String,
    },
    /// Started on hosts by a command.
    There {
        command: String,
        program: String,
        hosts: Vec<Host>,
    },
    /// Running already.
    Running {
        addresses: Vec<String>,
        secret: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Host {
    /// As the remote command wants it: `user@host`.
    login: String,
    /// `host:port`; port 0: any.
    address: String,
}

impl Plan {
    pub(crate) fn of(options: &args::Servers) -> Outcome<Plan> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let available = sys::memory_available();
        let mut plan = Plan {
            place: Where::Here {
                count: options.servers.unwrap_or((cores / 2).clamp(1, 4) as u16),
                listen: options.listen.clone(),
            },
            memory: 0,
            disks: Vec::new(),
            metadata_memory: options.metadata_memory,
            transport: options.wire.transport,
            timing: options.times.timing()?,
            keeping: None,
        };
        if let Some(file) = &options.hosts {
            let hosts = read_hosts(file, if options.ssh.is_some() { 0 } else { PORT })?;
            plan.place = match (&options.ssh, &options.secret) {
                (Some(command), _) => Where::There {
                    command: command.clone(),
                    program: match &options.remote_weir {
                        Some(program) => program.clone(),
                        None => own_program()?.display().to_string(),
                    },
                    hosts,
                },
                (None, Some(file)) => Where::Running {
                    addresses: hosts.into_iter().map(|host| host.address).collect(),
                    secret: state::read_secret(file)?.to_text(),
                },
                (None, None) => {
                    return Err(Failure::usage(
                        "--hosts: whose servers are they? say --ssh to start them, or --secret FILE with the secret of those that run",
                    ));
                }
            };
        }
        match &plan.place {
            Where::Here { count, .. } => {
                let count = u64::from(*count);
                plan.disks = disks_here(&options.disk, count)?;
                plan.memory = match options.memory {
                    Some(memory) => memory,
                    // In whole MiB, as people would.
                    None => (available / 2 / count) >> 20 << 20,
                };
                let stated = plan.memory.saturating_mul(count).saturating_add(plan.metadata());
                if stated > available {
                    return Err(too_much(
                        &format!("{count} servers of {}", size::show(plan.memory)),
                        stated,
                        available,
                    ));
                }
            }
            Where::There { .. } => match options.memory {
                Some(memory) if !options.disk.is_empty() => {
                    plan.memory = memory;
                    plan.disks = options.disk.iter().map(disk_words).collect();
                }
                Some(memory) => plan.memory = memory,
                None => {
                    return Err(Failure::usage(
                        "--ssh: say how much memory each server shall have, as in --memory 16G",
                    ));
                }
            },
            // They have theirs.
            Where::Running { .. } => {}
        }
        if !plan.disks.is_empty() {
            enough_memory("--disk", plan.memory, plan.disks.len())?;
        }
        Ok(plan)
    }

    /// Makes it the plan of a pool that lasts.
    pub(crate) fn keep(&mut self, disk: &weir_server::DiskOptions) -> Outcome<()> {
        let directory = disk.path.as_path();
        enough_memory("--kept", self.memory, 1)?;
        let local = matches!(self.place, Where::Here { .. });
        if local {
            std::fs::create_dir_all(directory)
                .map_err(|error| Failure::system("make directory", directory.display(), error))?;
        } else if !directory.is_absolute() {
            return Err(Failure::usage(format!(
                "--kept {}: on other hosts it must be an absolute path",
                directory.display()
            )));
        }
        let directory = if local { directory.canonicalize() } else { Ok(directory.to_owned()) };
        let directory = directory.map_err(|error| Failure::system("keep in", "DIR", error))?;
        let size = disk.size.unwrap_or(self.memory.saturating_mul(KEPT_PER_MEMORY));
        if let Where::Here { count, .. } = &self.place {
            let free = weir_server::free(&directory)
                .map_err(|error| Failure::system("look at", directory.display(), error))?;
            if size.saturating_mul(u64::from(*count)) > free {
                return Err(Failure::say(format!(
                    "keep in {}: {} of each of {count} servers wanted, only {} are free there; say how much, as in --kept DIR:10G",
                    directory.display(),
                    size::show(size),
                    size::show(free)
                )));
            }
        }
        self.keeping = Some(Keeping { directory, size, back: false });
        Ok(())
    }

    /// The same servers once more, which come back to what they had.
    pub(crate) fn back(mut self) -> Plan {
        if let Some(keeping) = &mut self.keeping {
            keeping.back = true;
        }
        self
    }

    pub(crate) fn keeping(&self) -> Option<&Keeping> {
        self.keeping.as_ref()
    }

    fn metadata(&self) -> u64 {
        self.metadata_memory.unwrap_or_else(|| default_metadata_memory(self.memory))
    }

    /// What starts server `index`; `listen`: where, if not as planned.
    fn command(&self, index: usize, listen: Option<&str>, log_level: &str) -> Outcome<Command> {
        let (mut command, planned) = match &self.place {
            Where::Here { listen, .. } => {
                (Command::new(own_program()?), nth_address(listen, index as u16)?)
            }
            Where::There { command, program, hosts } => {
                let mut words = command.split_ascii_whitespace();
                let mut remote = Command::new(words.next().unwrap_or("ssh"));
                remote.args(words).arg(&hosts[index].login).arg(program);
                (remote, hosts[index].address.clone())
            }
            Where::Running { .. } => {
                return Err(Failure::say(format!("start server {index}: it is not ours to start")));
            }
        };
        command.arg("server").args(["--tether", "--secret", "-", "--log", log_level]);
        command.args(["--memory", &self.memory.to_string()]);
        // The first server of a pool holds its names; the others need next to nothing.
        command.args(["--metadata-memory", &self.metadata().to_string()]);
        command.args(args::Times::options(&self.timing));
        command.args(["--transport", self.transport.name()]);
        for disk in &self.disks {
            command.args(["--disk", disk]);
        }
        command.args(["--listen", listen.unwrap_or(&planned)]);
        if let Some(keeping) = &self.keeping {
            let directory = keeping.of_server(index);
            command.arg("--kept").arg(format!("{}:{}", directory.display(), keeping.size));
            // Whoever listens somewhere already has been there before.
            command.args((keeping.back || listen.is_some()).then_some("--back"));
            command.args((index == 0).then_some("--names"));
        }
        Ok(command)
    }

    /// The secret that the servers have already, if they run.
    pub(crate) fn secret(&self) -> Outcome<Option<Secret>> {
        match &self.place {
            Where::Running { secret, .. } => Ok(Some(Secret::parse(secret)?)),
            _ => Ok(None),
        }
    }

    /// Addresses of servers that run already, if these are meant.
    pub(crate) fn running(&self) -> Option<&[String]> {
        match &self.place {
            Where::Running { addresses, .. } => Some(addresses),
            _ => None,
        }
    }

    /// What it is, for people.
    pub(crate) fn describe(&self) -> String {
        let many = |count: usize| format!("{count} server{}", if count == 1 { "" } else { "s" });
        match &self.place {
            Where::Here { count, .. } => {
                format!("{} of {} on this machine", many(*count as usize), size::show(self.memory))
            }
            Where::There { hosts, command, .. } => {
                format!("{} of {} started by {command}", many(hosts.len()), size::show(self.memory))
            }
            Where::Running { addresses, .. } => {
                format!("{} that run already", many(addresses.len()))
            }
        }
    }
}

fn too_much(what: &str, stated: u64, available: u64) -> Failure {
    Failure::say(format!(
        "reserve memory {what}: {} wanted, with metadata, but only {} are available; ask for less with --memory",
        size::show(stated),
        size::show(available)
    ))
}

/// Where nobody says how much room for data a kept pool's servers shall have: so many times their memory.
const KEPT_PER_MEMORY: u64 = 4;
/// The least memory of a target with a disk: bytes.
const MEMORY_PER_DISK_MIN: u64 = 32 << 20;

fn enough_memory(option: &str, memory: u64, disks: usize) -> Outcome<()> {
    if memory / disks as u64 >= MEMORY_PER_DISK_MIN {
        return Ok(());
    }
    Err(Failure::say(format!(
        "{option}: {} of memory for {disks} of them are too little; give each {} with --memory",
        size::show(memory),
        size::show(MEMORY_PER_DISK_MIN)
    )))
}

fn disk_words(disk: &weir_server::DiskOptions) -> String {
    let path = disk.path.display();
    disk.size.map_or_else(|| path.to_string(), |size| format!("{path}:{size}"))
}

/// Disks of each of `count` servers on this machine: what is free is shared among them.
fn disks_here(disks: &[weir_server::DiskOptions], count: u64) -> Outcome<Vec<String>> {
    let mut words = Vec::new();
    for disk in disks {
        let trouble = |error| Failure::system("use as a disk", disk.path.display(), error);
        let mut disk = disk.clone();
        disk.path = std::fs::canonicalize(&disk.path).map_err(trouble)?;
        if disk.path.is_dir() {
            let same = disks.iter().filter(|other| other.path == disk.path).count() as u64;
            let free = weir_server::free(&disk.path).map_err(trouble)?;
            let share = free / 100 * weir_server::FREE_PERCENT / count / same.max(1);
            let size = disk.size.unwrap_or(share >> 20 << 20);
            if size.saturating_mul(count) > free {
                return Err(Failure::say(format!(
                    "use {} as a disk: {} of each of {count} servers wanted, only {} are free there",
                    disk.path.display(),
                    size::show(size),
                    size::show(free)
                )));
            }
            disk.size = Some(size);
        } else if count > 1 {
            return Err(Failure::say(format!(
                "use {} as a disk: {count} servers cannot share a device; say --servers 1",
                disk.path.display()
            )));
        }
        words.push(disk_words(&disk));
    }
    Ok(words)
}

fn default_metadata_memory(memory: u64) -> u64 {
    (memory / 16).clamp(32 << 20, 1 << 30)
}

fn own_program() -> Outcome<PathBuf> {
    std::env::current_exe().map_err(|error| Failure::system("find", "this program", error))
}

/// Reads a hosts file: `[user@]host[:port]` in each line, and behind it, if servers are to listen at
/// another address (of a faster network), that.
fn read_hosts(file: &Path, port: u16) -> Outcome<Vec<Host>> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::system("read hosts", file.display(), error))?;
    let mut hosts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        let mut next = || words.next().map(|word| parse_host(word, port));
        let host = match (next(), next(), next()) {
            (Some(host), None, _) => host,
            (Some(Some(host)), Some(Some(listen)), None) => {
                Some(Host { address: listen.address, ..host })
            }
            _ => None,
        };
        let host = host.ok_or_else(|| {
            Failure::usage(format!(
                "read hosts {} line {}: '{line}' is not host, host:port, or host and address",
                file.display(),
                index + 1
            ))
        })?;
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err(Failure::usage(format!("read hosts {}: no host in it", file.display())));
    }
    Ok(hosts)
}

fn parse_host(line: &str, default_port: u16) -> Option<Host> {
    let (user, rest) = match line.split_once('@') {
        Some((user, rest)) => (format!("{user}@"), rest),
        None => (String::new(), line),
    };
    let (name, port) = if let Some(rest) = rest.strip_prefix('[') {
        let (name, rest) = rest.split_once(']')?;
        (name, rest.strip_prefix(':'))
    } else if rest.matches(':').count() > 1 {
        (rest, None)
    } else {
        match rest.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (rest, None),
        }
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => default_port,
    };
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-:%".contains(c);
    // A name that began with a dash would be an option of the remote command.
    if name.is_empty() || user.starts_with('-') || name.starts_with('-') || !name.chars().all(fine)
    {
        return None;
    }
    let address =
        if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") };
    Some(Host { login: format!("{user}{name}"), address })
}

/// The servers of a pool, and those that we hold of them.
pub(crate) struct Fleet {
    /// `host:port` of each.
    pub(crate) addresses: Vec<String>,
    members: Vec<Member>,
}

struct Member {
    child: Child,
    /// Closed to end it.
    tether: Option<ChildStdin>,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

/// A server that ended and should not have.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Death {
    pub(crate) index: usize,
    pub(crate) address: String,
    pub(crate) how: String,
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "server {} ({}) ended by {}", self.index, self.address, self.how)
    }
}

impl Fleet {
    /// Starts the planned servers and waits until all listen. Their logs go to `logs`.
    pub(crate) fn start(
        plan: &Plan,
        secret: &Secret,
        logs: &Path,
        log_level: &str,
        signals: &Signals,
        coming: &mut dyn FnMut(usize, Coming),
    ) -> Outcome<Fleet> {
        let mut fleet = Fleet { addresses: Vec::new(), members: Vec::new() };
        let count = match &plan.place {
            Where::Running { addresses, .. } => {
                fleet.addresses.clone_from(addresses);
                return Ok(fleet);
            }
            Where::Here { count, .. } => usize::from(*count),
            Where::There { hosts, .. } => hosts.len(),
        };
        for index in 0..count {
            let command = plan.command(index, None, log_level)?;
            let log = log_of(logs, index);
            // What an earlier server wrote there is of no use any more; if it stays, no harm is done.
            let _ = std::fs::remove_file(&log);
            let member = Member::spawn(command, secret, log)
                .map_err(|failure| failure.with_status(status::UNAVAILABLE))?;
            fleet.members.push(member);
        }
        for index in 0..fleet.members.len() {
            let result = fleet.members[index].listening(signals, &mut |word| coming(index, word));
            match result {
                Ok(address) => fleet.addresses.push(address),
                Err(cause) => {
                    if let Some(signal) = sys::interrupted() {
                        return Err(Failure::new(
                            status::SIGNALLED + signal as u8,
                            format!("start servers: {signal} came; nothing is left"),
                        ));
                    }
                    let tail = fleet.members[index].log_tail();
                    return Err(Failure::new(
                        status::UNAVAILABLE,
                        format!("start server {index}: {cause}{tail}"),
                    ));
                }
            }
        }
        Ok(fleet)
    }

    /// Starts a server that died once more, at the address that it had. It comes back to what it
    /// kept, which may take its time; where it does not, it stays as it was.
    pub(crate) fn revive(
        &mut self,
        index: usize,
        plan: &Plan,
        secret: &Secret,
        logs: &Path,
        signals: &Signals,
    ) -> Outcome<()> {
        let command = plan.command(index, Some(&self.addresses[index]), "info")?;
        let mut member = Member::spawn(command, secret, log_of(logs, index))?;
        match member.listening(signals, &mut |_| ()) {
            Ok(address) if address == self.addresses[index] => {
                self.members[index] = member;
                Ok(())
            }
            Ok(address) => {
                member.end(Instant::now());
                Err(Failure::say(format!("start server {index}: it listens at {address}")))
            }
            Err(cause) => {
                let tail = member.log_tail();
                member.end(Instant::now());
                Err(Failure::say(format!("start server {index}: {cause}{tail}")))
            }
        }
    }

    /// Servers that have ended, as far as that is known.
    pub(crate) fn ended(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&index| self.members[index].ended.is_some()).collect()
    }

    /// Ends one of them, which is of no use.
    pub(crate) fn end_one(&mut self, index: usize) {
        self.members[index].end(Instant::now() + END_LIMIT);
    }

    /// Processes of servers on this machine.
    pub(crate) fn processes(&self) -> Vec<Process> {
        self.members.iter().filter_map(|member| Process::of(member.child.id() as i32)).collect()
    }

    /// Numbers of our children among them.
    pub(crate) fn pids(&self) -> BTreeSet<i32> {
        self.members.iter().map(|member| member.child.id() as i32).collect()
    }

    /// Whether every server that we held has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.members.iter().all(|member| member.ended.is_some())
    }

    /// Servers that died since the last call.
    pub(crate) fn deaths(&mut self) -> Vec<Death> {
        let mut deaths = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            if member.ended.is_none()
                && let Ok(Some(ended)) = member.child.try_wait()
            {
                member.ended = Some(ended);
                let how = format!("{}{}", sys::show_status(ended), member.log_tail());
                deaths.push(Death { index, address: self.addresses[index].clone(), how });
            }
        }
        deaths
    }

    /// Ends the servers that we hold.
    pub(crate) fn end(&mut self) {
        for member in &mut self.members {
            member.tether = None;
        }
        let until = Instant::now() + END_LIMIT;
        self.members.iter_mut().for_each(|member| member.end(until));
    }
}

fn log_of(logs: &Path, index: usize) -> PathBuf {
    logs.join(format!("server-{index}.log"))
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where the n-th server on this machine listens: a stated port is the first one's.
fn nth_address(listen: &str, index: u16) -> Outcome<String> {
    let wrong = || Failure::usage(format!("--listen {listen}: write host:port, port 0 for any"));
    let (host, port) = listen.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    match port {
        0 => Ok(listen.to_owned()),
        _ => Ok(format!("{host}:{}", port.checked_add(index).ok_or_else(wrong)?)),
    }
}

impl Member {
    fn spawn(mut command: Command, secret: &Secret, log: PathBuf) -> Outcome<Member> {
        let name = command.get_program().to_string_lossy().into_owned();
        // A server that is started once more leaves what its earlier life said.
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(|error| Failure::system("write", log.display(), error))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            // Ctrl-C is for the program, not for what keeps its files.
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::system("start", name, error))?;
        let mut tether = child.stdin.take();
        if let Some(tether) = &mut tether {
            // If it died at once, that is found out when its address is waited for.
            let _ = writeln!(tether, "{}", secret.to_text());
        }
        Ok(Member { child, tether, log, ended: None })
    }

    /// Waits until it says where it listens.
    fn listening(
        &mut self,
        signals: &Signals,
        coming: &mut dyn FnMut(Coming),
    ) -> Result<String, String> {
        let mut until = Instant::now() + START_LIMIT;
        let mut said = Vec::new();
        let Some(output) = self.child.stdout.as_mut() else { return Err("no output".into()) };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("silent for {} s", START_LIMIT.as_secs()));
            }
            // Short, as its pipe may be drained by now: the byte of a signal is not ours to take.
            let short = left.min(Duration::from_millis(200));
            let ready = sys::wait_readable(&[output.as_fd(), signals.as_fd()], Some(short));
            if let Some(signal) = sys::interrupted() {
                return Err(format!("interrupted by {signal}"));
            }
            if !ready[0] {
                if ready[1] {
                    std::thread::sleep(Duration::from_millis(5));
                }
                continue;
            }
            let mut bytes = [0; 512];
            match output.read(&mut bytes) {
                Ok(0) | Err(_) => {
                    self.ended = self.child.wait().ok();
                    let how = self.ended.map_or("unknown".into(), sys::show_status);
                    return Err(format!("it ended with {how}"));
                }
                Ok(count) => said.extend_from_slice(&bytes[..count]),
            }
            while let Some(end) = said.iter().position(|&byte| byte == b'\n') {
                if let Ok(word) = serde_json::from_slice::<Coming>(&said[..end]) {
                    // However much it has to read: as long as it gets on, it is waited for.
                    until = Instant::now() + START_LIMIT;
                    coming(word);
                    said.drain(..=end);
                    continue;
                }
                return match serde_json::from_slice::<Ready>(&said[..end]) {
                    Ok(ready) => Ok(ready.address),
                    Err(_) => Err(format!(
                        "it said '{}'; is it weir?",
                        String::from_utf8_lossy(&said[..end])
                    )),
                };
            }
        }
    }

    /// Ends it, by force when the time has come.
    fn end(&mut self, until: Instant) {
        self.tether = None;
        while self.ended.is_none() {
            match self.child.try_wait() {
                Ok(Some(ended)) => self.ended = Some(ended),
                Ok(None) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => {
                    let _ = self.child.kill();
                    self.ended = self.child.wait().ok();
                    break;
                }
            }
        }
    }

    /// The last of its log, in parentheses, if there is any.
    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        match text.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => format!(" ({})", line.trim()),
            None => String::new(),
        }
    }
}

/// `weir server`.
pub(crate) fn serve(options: &args::Server) -> Outcome<u8> {
    start_log(options.log);
    let signals = Signals::catch(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])?;
    let mut stdin = std::io::BufReader::new(std::io::stdin());
    let secret = if options.secret == Path::new("-") {
        let mut line = String::new();
        stdin
            .read_line(&mut line)
            .map_err(|error| Failure::system("read secret", "stdin", error))?;
        Secret::parse(&line)
            .map_err(|error| Failure::say(format!("read secret stdin: {}", error.cause)))?
    } else {
        state::read_secret(&options.secret)?
    };
    let metadata_memory =
        options.metadata_memory.unwrap_or_else(|| default_metadata_memory(options.memory));
    let available = sys::memory_available();
    // In a directory they are the disk's.
    let names = if options.metadata_dir.is_some() { 0 } else { metadata_memory };
    let stated = options.memory.saturating_add(names);
    if stated > available {
        return Err(too_much(&size::show(options.memory), stated, available));
    }
    let _lock = options.metadata_dir.as_deref().map(lock_directory).transpose()?;
    sys::raise_file_limit();
    let targets = options.disk.len().max(1);
    if !options.disk.is_empty() {
        enough_memory("--disk", options.memory, targets)?;
    }
    let server_options = weir_server::ServerOptions {
        listen: options.listen.clone(),
        transport: options.transport,
        memory: vec![options.memory / targets as u64; targets],
        disks: options.disk.clone(),
        disk_engine: weir_server::Engine::Auto,
        metadata_memory,
        metadata_dir: options.metadata_dir.clone(),
        secret,
        threads: options.threads,
        timing: options.times.timing()?,
    };
    let server = match &options.kept {
        None => weir_server::Server::start(server_options)?,
        Some(disk) => {
            let kept = weir_server::KeptOptions {
                directory: disk.path.clone(),
                size: disk.size.unwrap_or(options.memory.saturating_mul(KEPT_PER_MEMORY)),
                names: options.names,
                back: options.back,
            };
            weir_server::Server::start_kept(server_options, &kept, &mut |what, done, all| {
                let word = Coming { what: what.to_owned(), done, all };
                // If nobody listens any more, the tether tells soon.
                let line = serde_json::to_string(&word).unwrap_or_default();
                let _ = print(format_args!("{line}\n"));
            })?
        }
    };
    let ready = Ready { address: server.address().to_string(), pid: std::process::id() };
    let line = serde_json::to_string(&ready)
        .map_err(|error| Failure::system("print", "address", error))?;
    print(format_args!("{line}\n"))?;

    let server = std::sync::Arc::new(server);
    let stopped = server.clone();
    let tether = options.tether;
    std::thread::spawn(move || {
        watch(&signals, tether.then_some(&mut stdin));
        stopped.stop();
    });
    server.wait().map_err(|error| Failure::say(format!("serve: {error}")))?;
    Ok(0)
}

/// Makes a directory ours as long as the file is open: two servers would spoil each other's names.
fn lock_directory(directory: &Path) -> Outcome<std::fs::File> {
    let path = directory.join("lock");
    let file = std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::File::create(&path))
        .map_err(|error| Failure::system("open", path.display(), error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Failure::say(format!(
            "lock {}: another server has it; give each a directory of its own",
            directory.display()
        ))),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(Failure::system("lock", directory.display(), error))
        }
    }
}

/// Until a signal comes, or the tether's other end is closed.
fn watch(signals: &Signals, mut tether: Option<&mut impl Read>) {
    let stdin = std::io::stdin();
    loop {
        let ready = match tether {
            Some(_) => sys::wait_readable(&[signals.as_fd(), stdin.as_fd()], None),
            None => sys::wait_readable(&[signals.as_fd()], None),
        };
        if sys::interrupted().is_some() {
            return;
        }
        if let Some(tether) = &mut tether
            && ready[1]
            && matches!(tether.read(&mut [0; 64]), Ok(0) | Err(_))
        {
            return;
        }
    }
}

fn start_log(level: args::LogLevel) {
    use args::LogLevel;
    use tracing_subscriber::filter::LevelFilter;
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(terminal)
        .with_writer(std::io::stderr)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read() {
        let host = |line| parse_host(line, 4420).map(|host| (host.login, host.address));
        let pair = |login: &str, address: &str| Some((login.to_owned(), address.to_owned()));
        assert_eq!(host("node1"), pair("node1", "node1:4420"));
        assert_eq!(host("me@node1:99"), pair("me@node1", "node1:99"));
        assert_eq!(host("[fe80::1]:99"), pair("fe80::1", "[fe80::1]:99"));
        assert_eq!(host("fe80::1"), pair("fe80::1", "[fe80::1]:4420"));
        for wrong in ["-oProxyCommand=x", "a b", "a:b", "a:99999", "", "@", "-x@a", "[a", "a;b"] {
            assert_eq!(host(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_stated_port_is_the_first_servers() {
        assert_eq!(nth_address("127.0.0.1:0", 3).expect("any"), "127.0.0.1:0");
        assert_eq!(nth_address("[::1]:4420", 2).expect("fits"), "[::1]:4422");
        assert!(nth_address("127.0.0.1:65535", 1).is_err());
        assert!(nth_address("127.0.0.1", 0).is_err());
        assert!(nth_address("127.0.0.1:x", 0).is_err());
    }

    #[test]
    fn a_hosts_file_names_its_bad_line() {
        let directory = tempfile::tempdir().expect("tempdir");
        let file = directory.path().join("hosts");
        std::fs::write(&file, "# all\nnode1\nnode2:7 # fast\n\nme@n3 10.0.0.3\n").expect("written");
        let hosts = read_hosts(&file, 1).expect("good");
        assert_eq!(hosts.len(), 3);
        assert_eq!((&*hosts[2].login, &*hosts[2].address), ("me@n3", "10.0.0.3:1"));
        for wrong in ["no/de", "node2 10.0.0.1 10.0.0.2", "node2 a/b"] {
            std::fs::write(&file, format!("node1\n{wrong}\n")).expect("written");
            let said = read_hosts(&file, 1).expect_err("bad line").text;
            assert!(said.contains(&format!("line 2: '{wrong}'")), "{said}");
        }
        std::fs::write(&file, "# none\n").expect("written");
        assert!(read_hosts(&file, 1).is_err());
    }
}
