//! `weir up` and `weir down`: a pool that stays, held by a keeper in the background.

use crate::args;
use crate::channel::Channel;
use crate::failure::{Failure, Outcome, Pace, print, status, tell};
use crate::kept::KeptFile;
use crate::mount;
use crate::pool::{self, Access, Store};
use crate::servers::{Coming, Fleet, Plan};
use crate::state::{PoolDirectory, PoolFile, Standing};
use crate::sys::{self, Process, Signals};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_core::auth::Secret;

/// A server that died is started once more so many times within [`REVIVALS_TIME`], not oftener: what
/// kills it is likely to be there still.
const REVIVALS_MAX: usize = 3;
const REVIVALS_TIME: Duration = Duration::from_secs(60);
/// Tries to start one: its port may be in use for a moment, by a client that knocks at it.
const REVIVAL_TRIES: u32 = 3;
/// A server that says nothing for so long is taken for one that died, by who asks for it to be brought back.
const PROBE_SILENCE_MS: u64 = 1000;
/// How long a keeper has to bring back what it is asked to, until somebody is told that it did not.
const BACK_LIMIT: Duration = Duration::from_secs(60);
/// How long a keeper has to end its servers.
const END_LIMIT: Duration = Duration::from_secs(20);

/// What a keeper is to start.
#[derive(Serialize, Deserialize)]
struct Order {
    pool: OsString,
    plan: Plan,
    secret: String,
}

/// What a keeper says, once.
#[derive(Serialize, Deserialize)]
enum Word {
    Coming { server: usize, word: Coming },
    Started { servers: Vec<String> },
    Failed { status: u8, text: String },
}

/// The pool is formed and shall stay when `weir up` ends.
#[derive(Serialize, Deserialize)]
struct Stay;

/// `weir up`.
pub(crate) fn up(options: &args::Up) -> Outcome<u8> {
    if let Some(directory) = &options.mount {
        crate::namespace::check_mount_point(directory)?;
    }
    let forming =
        |plan: &Plan| PoolFile::forming(&options.name, &options.servers.wire, &plan.timing);
    if let Some(directory) = KeptFile::find_up(&options.name)? {
        return bring_back_servers(&options.name, &directory);
    }
    if let Some((directory, kept)) = KeptFile::find(&options.name)? {
        if options.kept.is_some() {
            return Err(Failure::usage(format!(
                "make pool {name}: there is a kept one of that name, which is down; 'weir up {name}' brings it back, 'weir down --destroy {name}' removes it",
                name = options.name
            )));
        }
        let _signals = Signals::catch(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
        let plan = kept.plan.clone().back();
        let secret = directory.secret()?;
        let told = forming(&plan).and_then(|file| directory.write(&file));
        let result = told.and_then(|()| bring_up(options, &plan, &directory, &secret, Some(&kept)));
        return came_up(options, &plan, &directory, result);
    }
    let mut plan = Plan::of(&options.servers)?;
    if let Some(disk) = &options.kept {
        plan.keep(disk)?;
    }
    let _signals = Signals::catch(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    PoolDirectory::sweep();
    let file = forming(&plan)?;
    let (directory, secret) = PoolDirectory::make(plan.secret()?, &file)?;
    let result = bring_up(options, &plan, &directory, &secret, None);
    came_up(options, &plan, &directory, result)
}

/// Mounts and tells, or clears away what was begun.
fn came_up(
    options: &args::Up,
    plan: &Plan,
    directory: &PoolDirectory,
    result: Outcome<Access>,
) -> Outcome<u8> {
    if result.is_err() {
        take_down(directory);
    }
    let access = result?;
    if let Some(mount_point) = &options.mount
        && let Err(failure) = mount::mount_pool(directory, access, mount_point, options.kernel)
    {
        take_down(directory);
        return Err(failure.so("the pool was taken down again"));
    }
    let file = directory.read()?;
    if options.json {
        let json = serde_json::json!({
            "name": file.name, "servers": file.servers, "mount": options.mount,
            "directory": directory.path, "kept": plan.keeping().map(|keeping| &keeping.directory),
            "back": plan.keeping().is_some_and(|keeping| keeping.back),
        });
        print(format_args!("{json:#}\n"))?;
        return Ok(0);
    }
    let back = plan.keeping().is_some_and(|keeping| keeping.back);
    let up = if back { "is back" } else { "is up" };
    print(format_args!("pool {} {up}: {}\n", file.name, plan.describe()))?;
    if let Some(mount_point) = &options.mount {
        print(format_args!("mounted at {}\n", mount_point.display()))?;
    }
    let name = &file.name;
    match plan.keeping() {
        None => print(format_args!("'weir down {name}' ends it, and what it holds\n"))?,
        Some(keeping) => print(format_args!(
            "kept in {}; 'weir down {name}' ends it, 'weir up {name}' brings it back\n",
            keeping.directory.display()
        ))?,
    }
    Ok(0)
}

fn bring_up(
    options: &args::Up,
    plan: &Plan,
    directory: &PoolDirectory,
    secret: &Secret,
    kept: Option<&KeptFile>,
) -> Outcome<Access> {
    let mut file = directory.read()?;
    if let Some(servers) = plan.running() {
        // Nothing to hold.
        file.servers = servers.to_vec();
        let access = Access::new(&file, secret);
        pool::form(&access, &options.name, &options.servers)?;
        file.keeper = None;
        directory.write(&file)?;
        return Ok(access);
    }
    let (servers, mut keeper) = start_keeper(plan, directory, secret)?;
    file = directory.read()?;
    let access = Access::new(&PoolFile { servers: servers.clone(), ..file.clone() }, secret);
    let formed = match kept {
        Some(kept) => pool::form_again(&access, &kept.formed)?,
        None => pool::form(&access, &options.name, &options.servers)?,
    };
    if let Some(signal) = sys::interrupted() {
        return Err(Failure::new(
            status::SIGNALLED + signal as u8,
            format!("make pool {}: {signal} came; nothing is left", options.name),
        ));
    }
    if plan.keeping().is_some() {
        KeptFile::new(plan.clone(), formed).write(directory)?;
    }
    // From here on the pool is up.
    directory.change(|file| file.servers = servers)?;
    keeper.send(&Stay)?;
    Ok(access)
}

/// Leaves a keeper behind, which starts the servers and holds them.
fn start_keeper(
    plan: &Plan,
    directory: &PoolDirectory,
    secret: &Secret,
) -> Outcome<(Vec<String>, Channel)> {
    let log = directory.path.join("keeper.log");
    let log = std::fs::File::create(&log)
        .map_err(|error| Failure::system("write", log.display(), error))?;
    let (child, mut channel) = Channel::start("keep-pool", |command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).current_dir("/");
        // SAFETY: a system call; the child is no group's leader yet, so that it cannot fail.
        unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?)) };
    })?;
    let keeper = Process::of(child.id() as i32);
    directory.change(|file| file.keeper = keeper.or(file.keeper.take()))?;
    let order =
        Order { pool: directory.path.clone().into(), plan: plan.clone(), secret: secret.to_text() };
    channel.send(&order)?;
    let mut pace = Pace::new();
    loop {
        if channel.has_message()
            || sys::wait_readable(&[channel.as_fd()], Some(Duration::from_millis(100)))[0]
        {
            return match channel.receive::<Word>()? {
                Some(Word::Coming { server, word }) => {
                    if pace.is_due() {
                        let share = 100 * word.done / word.all.max(1);
                        tell(format_args!("server {server} reads its {}: {share} %", word.what));
                    }
                    continue;
                }
                Some(Word::Started { servers }) => Ok((servers, channel)),
                Some(Word::Failed { status, text }) => Err(Failure::new(status, text)),
                None => Err(Failure::new(status::UNAVAILABLE, "start servers: their keeper died")),
            };
        }
        if let Some(signal) = sys::interrupted() {
            return Err(Failure::new(
                status::SIGNALLED + signal as u8,
                format!("start servers: {signal} came; nothing is left"),
            ));
        }
    }
}

/// `weir keep-pool`.
pub(crate) fn keep_pool(control: i32) -> Outcome<u8> {
    let mut channel = Channel::inherited(control)?;
    let signals = Signals::catch(&[
        Signal::SIGCHLD,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGUSR1,
    ])?;
    let Some(order) = channel.receive::<Order>()? else { return Ok(0) };
    let directory = PoolDirectory { path: PathBuf::from(&order.pool) };
    let mut start = || -> Outcome<Fleet> {
        let secret = Secret::parse(&order.secret)?;
        let coming = &mut |server, word| {
            // If `weir up` is gone, that is found out when the servers are there.
            let _ = channel.send(&Word::Coming { server, word });
        };
        let fleet = Fleet::start(&order.plan, &secret, &directory.path, "info", &signals, coming)?;
        directory.change(|file| file.processes = fleet.processes())?;
        Ok(fleet)
    };
    let mut fleet = match start() {
        Ok(fleet) => fleet,
        Err(failure) => {
            tell(&failure);
            channel.send(&Word::Failed { status: failure.status, text: failure.text })?;
            return Ok(1);
        }
    };
    let mut abandoned = channel.send(&Word::Started { servers: fleet.addresses.clone() }).is_err();
    let mut stay = false;
    let mut reviver =
        Reviver { order: &order, directory: &directory, signals: &signals, times: Vec::new() };
    while sys::interrupted().is_none() && !abandoned && !(fleet.is_over() && stay) {
        // Until it says so, `weir up` may fail yet, or be killed: then nobody knows of this pool.
        match stay {
            true => drop(sys::wait_readable(&[signals.as_fd()], None)),
            false => {
                if sys::wait_readable(&[channel.as_fd(), signals.as_fd()], None)[0] {
                    stay = channel.receive::<Stay>()?.is_some();
                    abandoned = !stay;
                }
            }
        }
        let mut asked = false;
        while let Some(signal) = signals.next() {
            asked |= signal.signal == Signal::SIGUSR1;
        }
        let deaths = fleet.deaths();
        for death in &deaths {
            match order.plan.keeping() {
                None => tell(format_args!("{death}; what it held is lost")),
                Some(_) if death.index == 0 => {
                    tell(format_args!("{death}; 'weir down' and 'weir up' bring the pool back"));
                }
                Some(_) => tell(format_args!("{death}")),
            }
        }
        if stay && order.plan.keeping().is_some() {
            let dead = match asked {
                true => fleet.ended(),
                false => deaths.iter().map(|death| death.index).collect(),
            };
            reviver.revive(&mut fleet, &dead, asked);
        }
    }
    fleet.end();
    if abandoned {
        directory.clear();
    }
    Ok(0)
}

/// Brings single servers of a kept pool back.
struct Reviver<'a> {
    order: &'a Order,
    directory: &'a PoolDirectory,
    signals: &'a Signals,
    times: Vec<Instant>,
}

impl Reviver<'_> {
    /// `asked`: by somebody who knows what he does, and not only by their deaths.
    fn revive(&mut self, fleet: &mut Fleet, dead: &[usize], asked: bool) {
        // Names, handles and locks end with the first server: the pool comes back as a whole.
        if dead.is_empty() || fleet.ended().contains(&0) {
            return;
        }
        for &index in dead {
            self.times.retain(|time| time.elapsed() < REVIVALS_TIME);
            if self.times.len() >= REVIVALS_MAX && !asked {
                tell(format_args!(
                    "server {index} stays down: {REVIVALS_MAX} have died within {} s; 'weir up' tries again",
                    REVIVALS_TIME.as_secs()
                ));
                continue;
            }
            self.times.push(Instant::now());
            match self.revive_one(fleet, index) {
                Ok(()) => tell(format_args!("server {index} is back")),
                Err(failure) => tell(format_args!("{failure}; 'weir up' tries again")),
            }
            if let Err(failure) = self.directory.change(|file| file.processes = fleet.processes()) {
                tell(&failure);
            }
            if sys::interrupted().is_some() {
                return;
            }
        }
    }

    fn revive_one(&self, fleet: &mut Fleet, index: usize) -> Outcome<()> {
        let kept = KeptFile::read(self.directory)?;
        let secret = Secret::parse(&self.order.secret)?;
        let mut result = Ok(());
        for again in 0..REVIVAL_TRIES {
            std::thread::sleep(Duration::from_millis(200) * again);
            let plan = &self.order.plan;
            result = fleet.revive(index, plan, &secret, &self.directory.path, self.signals);
            if result.is_ok() || sys::interrupted().is_some() {
                break;
            }
        }
        result?;
        let access = Access::new(&self.directory.read()?, &secret);
        pool::rejoin(&access, &kept.formed, index).inspect_err(|_| fleet.end_one(index))
    }
}

/// `weir up` of a kept pool that is up, but for some of its servers.
fn bring_back_servers(name: &str, directory: &PoolDirectory) -> Outcome<u8> {
    let file = directory.read()?;
    let dead = || -> Outcome<Vec<usize>> {
        let mut file = directory.read()?;
        // The pool's clients are waiting, too.
        file.timing.silence_ms_max = file.timing.silence_ms_max.min(PROBE_SILENCE_MS);
        let status = Store::connect(&Access::new(&file, &directory.secret()?))?.status();
        // One that belongs to no pool as yet does not say where it is.
        let serves = |index: &usize| status[*index].as_ref().is_ok_and(|it| !it.address.is_empty());
        Ok((0..status.len()).filter(|index| !serves(index)).collect())
    };
    let up = || {
        Failure::say(format!(
            "bring pool {name} back: it is up already; 'weir down {name}' ends it"
        ))
    };
    let before = dead()?;
    if before.is_empty() {
        return Err(up());
    }
    let gone = format!("'weir down {name}' and 'weir up {name}' bring the pool back as a whole");
    if before.contains(&0) {
        return Err(Failure::say(format!(
            "bring pool {name} back: server 0, which has its names, is gone; {gone}"
        )));
    }
    let Some(keeper) = file.keeper.filter(|keeper| keeper.is_local() && keeper.lives()) else {
        return Err(Failure::say(format!(
            "bring pool {name} back: its keeper does not run here; {gone}"
        )));
    };
    keeper.signal(Signal::SIGUSR1);
    let until = Instant::now() + BACK_LIMIT;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let left = dead()?;
        if left.is_empty() {
            let servers: Vec<_> = before.iter().map(usize::to_string).collect();
            print(format_args!(
                "pool {name} is whole again: server {} is back\n",
                servers.join(", ")
            ))?;
            return Ok(0);
        }
        if Instant::now() > until {
            return Err(Failure::say(format!(
                "bring pool {name} back: server {} did not come within {} s; see {}",
                left[0],
                BACK_LIMIT.as_secs(),
                directory.path.join("keeper.log").display()
            )));
        }
    }
}

/// `weir down`.
pub(crate) fn down(options: &args::Down) -> Outcome<u8> {
    let directory = match &options.name {
        Some(name) => {
            let directory = PoolDirectory::of(name)?;
            if !directory.path.is_dir() {
                return Err(Failure::say(format!(
                    "end pool {name}: there is none; 'weir status' lists pools"
                )));
            }
            directory
        }
        None => PoolDirectory::chosen(None)?,
    };
    let kept = match KeptFile::is_in(&directory.path) {
        true => Some(KeptFile::read(&directory)?),
        false => None,
    };
    let name = directory.name();
    if options.destroy && kept.is_none() {
        return Err(Failure::usage(format!(
            "--destroy: pool {name} is not kept; 'weir down {name}' ends it and what it holds"
        )));
    }
    let found = directory.read();
    let stale = found.as_ref().is_ok_and(|file| file.standing() == Standing::Stale);
    let was_up = found.is_ok();
    take_down(&directory);
    let Some(kept) = kept else {
        match stale {
            true => {
                print(format_args!("pool {name} was stale, its servers gone; cleared away\n"))?;
            }
            false => print(format_args!("pool {name} is down\n"))?,
        }
        return Ok(0);
    };
    if options.destroy {
        kept.destroy()?;
        directory.forget();
        print(format_args!("pool {name} and all it held are gone\n"))?;
        return Ok(0);
    }
    let place = kept.plan.keeping().map(|keeping| keeping.directory.display().to_string());
    let place = place.unwrap_or_default();
    let down = if was_up { "is down" } else { "was down already" };
    print(format_args!(
        "pool {name} {down}; it is kept in {place}: 'weir up {name}' brings it back, 'weir down --destroy {name}' removes it\n"
    ))?;
    Ok(0)
}

/// Ends mounts, servers and their keeper, and removes the pool's directory.
fn take_down(directory: &PoolDirectory) {
    let Ok(file) = directory.read() else { return directory.clear() };
    for mounted in &file.mounts {
        mount::end(mounted);
    }
    let me = Process::me().ok();
    match file.keeper.as_ref().filter(|keeper| keeper.lives() && me.as_ref() != Some(*keeper)) {
        // It ends its servers itself. One that ran elsewhere is beyond our signals, not its servers.
        Some(keeper) if keeper.is_local() => {
            keeper.end(END_LIMIT);
        }
        _ if file.processes.is_empty() && !file.servers.is_empty() => shut_down(directory, &file),
        _ => {}
    }
    for process in file.processes.iter().filter(|process| process.is_local() && process.lives()) {
        process.end(END_LIMIT);
    }
    directory.clear();
}

/// Asks servers to end that nobody here holds.
pub(crate) fn shut_down(directory: &PoolDirectory, file: &PoolFile) {
    let store = directory.secret().and_then(|secret| Store::connect(&Access::new(file, &secret)));
    match store {
        Ok(store) => {
            for (index, result) in store.shut_down().into_iter().enumerate() {
                if let Err(error) = result {
                    let address = file.servers.get(index).map_or("", String::as_str);
                    tell(format_args!(
                        "end server {index} ({address}): {}; it may run still",
                        error.cause
                    ));
                }
            }
        }
        Err(failure) => tell(format_args!("end servers: {failure}; some may run still")),
    }
}
