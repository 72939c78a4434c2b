//! `weir run`: a pool for the life of one command.
//!
//! This process starts the servers and talks to the terminal; its [`job`] mounts and has the program
//! as a child. Servers hang on a pipe from here, the job on a socket: whichever of us is killed, the
//! others notice and leave nothing behind.

pub(crate) mod job;
pub(crate) mod preload;
mod report;
mod tuning;
mod wishes;

use crate::args;
use crate::channel::Channel;
use crate::copy::{self, Endpoint, Pair};
use crate::failure::{Failure, Outcome, plain, status, tell};
use crate::namespace::{self, Way};
use crate::pool::{Access, Store};
use crate::servers::{Death, Fleet};
use crate::size::{show, show_count};
use crate::state::{self, PoolDirectory, PoolFile};
use crate::sys::{self, Signals};
use job::{Ended, Order, Word};
use nix::sys::signal::Signal;
use report::{Report, Vanished};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use weir_core::auth::Secret;
use weir_core::types::{Attributes, FileKind};
use wishes::Wishes;

/// How long the program has to end after SIGTERM or SIGHUP came.
const TERM_GRACE: Duration = Duration::from_secs(10);
/// Interrupts after which the program is ended by force.
const INTERRUPTS_MAX: u32 = 3;
/// Biggest files named among those that vanish.
const BIGGEST: usize = 5;

/// `weir run`.
pub(crate) fn run(options: &args::Run) -> Outcome<u8> {
    let wishes = Wishes::check(options)?;
    let signals = Signals::catch(&[
        Signal::SIGCHLD,
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ])?;
    sys::adopt_orphans();
    PoolDirectory::sweep();
    let mut run = Run::prepare(options, &wishes, signals)?;
    run.stage_in(&wishes)?;
    run.note(format_args!("pool {} at {}", run.pool_file.name, run.mount.display()));
    let ended = run.attend(&wishes)?;
    run.finish(&wishes, ended)
}

/// A run under way. Dropping it leaves nothing behind.
struct Run<'a> {
    options: &'a args::Run,
    signals: Signals,
    directory: PoolDirectory,
    pool_file: PoolFile,
    secret: Secret,
    mount: PathBuf,
    /// Directories that we made, inner ones first.
    made: Vec<PathBuf>,
    job: Option<(Child, Channel)>,
    fleet: Option<Fleet>,
    deaths: Vec<Death>,
    /// The servers belong to this run's pool, and can to no other any more.
    formed: bool,
    /// There is no mount: the program sees the pool by the preload library alone.
    alone: bool,
    /// The job was killed: what it had started is ours now.
    bereft: bool,
}

impl<'a> Run<'a> {
    fn prepare(options: &'a args::Run, wishes: &Wishes, signals: Signals) -> Outcome<Run<'a>> {
        let name = match &options.name {
            Some(name) => name.clone(),
            None => format!("run-{}", std::process::id()),
        };
        let made = match options.mount {
            Some(_) => Vec::new(),
            None => mount_points(&name),
        };
        let forming = PoolFile::forming(&name, &options.servers.wire, &wishes.plan.timing)?;
        let pool_file = PoolFile { made, ..forming };
        let (directory, secret) = PoolDirectory::make(wishes.plan.secret()?, &pool_file)?;
        let mut run = Run {
            options,
            signals,
            directory,
            pool_file,
            secret,
            mount: PathBuf::new(),
            made: Vec::new(),
            job: None,
            fleet: None,
            deaths: Vec::new(),
            formed: false,
            alone: options.no_mount,
            bereft: false,
        };
        match &options.mount {
            Some(directory) => {
                run.mount = directory
                    .canonicalize()
                    .map_err(|error| Failure::system("mount", directory.display(), error))?;
            }
            None => run.make_mount_point()?,
        }
        // Whether a mount can be had is known soonest: before servers are started.
        if !run.alone {
            run.start_job()?;
        }
        if run.alone {
            run.start_alone(wishes)?;
        }
        run.note(format_args!("starting {}", wishes.plan.describe()));
        let fleet = Fleet::start(
            &wishes.plan,
            &run.secret,
            &run.directory.path,
            "warn",
            &run.signals,
            &mut |_, _| (),
        )?;
        run.pool_file.servers.clone_from(&fleet.addresses);
        run.pool_file.processes = fleet.processes();
        run.fleet = Some(fleet);
        crate::pool::form(&run.access(), &name, &options.servers)?;
        run.formed = true;
        run.directory.write(&run.pool_file)?;
        Ok(run)
    }

    fn access(&self) -> Access {
        Access::new(&self.pool_file, &self.secret)
    }

    fn note(&self, text: std::fmt::Arguments<'_>) {
        if !self.options.quiet {
            tell(text);
        }
    }

    /// A short path: some programs have room for few characters.
    fn make_mount_point(&mut self) -> Outcome<()> {
        let [mount, base] = self.pool_file.made.as_slice() else {
            return Err(Failure::say("make mount point: none is named"));
        };
        let (mount, base) = (mount.clone(), base.clone());
        // Another run that ends may remove the base just before we use it.
        let mut tries = 0;
        loop {
            let made =
                state::private_directory(&base).and_then(|()| state::private_directory(&mount));
            tries += 1;
            match made {
                Ok(()) => break,
                Err(failure) if tries == 10 => return Err(failure),
                Err(_) => {}
            }
        }
        self.made = vec![mount.clone(), base];
        namespace::check_mount_point(&mount)?;
        self.mount = mount;
        Ok(())
    }

    /// Starts the job and has it mount: privately, or else with fusermount3.
    fn start_job(&mut self) -> Outcome<()> {
        let mut causes = Vec::new();
        for way in [Way::Private, Way::Helper] {
            let (child, channel) = Channel::start("keep-run", |_| ())?;
            self.job = Some((child, channel));
            let order = Order::Mount {
                way,
                directory: self.mount.clone().into(),
                remove: self.made.iter().map(|path| path.clone().into()).collect(),
                pool: self.directory.path.clone().into(),
            };
            self.send(&order)?;
            match self.hear(Duration::from_secs(20)) {
                Ok(Word::Mounted) => {
                    if way == Way::Helper {
                        self.note(format_args!("no private namespace to be had: the mount is seen by all of this user's processes"));
                    }
                    return Ok(());
                }
                Ok(_) => causes.push("the mounting process makes no sense".to_owned()),
                Err(failure) if sys::interrupted().is_some() => return Err(failure),
                Err(failure) => causes.push(failure.text),
            }
            self.end_job();
        }
        self.without_mount(&causes)
    }

    /// No way of mounting works here: the program gets the preload library alone, if it may.
    fn without_mount(&mut self, causes: &[String]) -> Outcome<()> {
        let cause = |text: &String| {
            let prefix = format!("mount {}: ", self.mount.display());
            let text = text.strip_prefix(&prefix).unwrap_or(text);
            text.split("; 'weir doctor'").next().unwrap_or_default().to_owned()
        };
        let failure = format!(
            "mount {}: neither in a namespace ({}) nor with fusermount3 ({}); 'weir doctor' says what to do",
            self.mount.display(),
            cause(&causes[0]),
            cause(&causes[1])
        );
        if self.options.no_preload || self.options.kernel.cache || preload::find_library().is_err()
        {
            return Err(Failure::new(status::UNAVAILABLE, failure));
        }
        self.note(format_args!("{failure}"));
        self.alone = true;
        Ok(())
    }

    /// Starts the job for a program that has no mount, but an empty directory in which nothing is
    /// to be made.
    fn start_alone(&mut self, wishes: &Wishes) -> Outcome<()> {
        if let Err(cause) = preload::find_library() {
            return Err(Failure::new(
                status::UNAVAILABLE,
                format!(
                    "run without a mount: no preload library ({cause}); the program would not see the pool at all"
                ),
            ));
        }
        let trouble = |error| Failure::system("use", self.mount.display(), error);
        if let Some(made) = self.made.first() {
            std::fs::set_permissions(made, std::fs::Permissions::from_mode(0o500))
                .map_err(trouble)?;
        }
        self.mount = self.mount.canonicalize().map_err(trouble)?;
        let (child, channel) = Channel::start("keep-run", |_| ())?;
        self.job = Some((child, channel));
        let order = Order::Alone {
            remove: self.made.iter().map(|path| path.clone().into()).collect(),
            pool: self.directory.path.clone().into(),
        };
        self.send(&order)?;
        self.hear(Duration::from_secs(20))?;
        self.note(format_args!(
            "no mount: the program sees the pool by the preload library alone; docs/posix.md says what that cannot do"
        ));
        if !wishes.rules.is_empty() {
            self.note(format_args!("rules for files need a mount: they are not applied"));
        }
        Ok(())
    }

    /// Tells of files that were made beside the pool, by what the preload library does not see.
    fn watch_directory(&self) {
        if !self.alone {
            return;
        }
        let working = self.directory.path.join(job::WORKING);
        let stands = std::fs::read_dir(working).into_iter().flatten().flatten();
        for directory in stands.map(|entry| entry.path()).chain([self.mount.clone()]) {
            let strays = std::fs::read_dir(&directory).map_or(0, Iterator::count);
            if strays > 0 {
                tell(format_args!(
                    "{} made in {} by what the preload library does not see: not in the pool, and left there",
                    show_count(strays as u64, "file"),
                    directory.display()
                ));
            }
        }
    }

    fn send(&mut self, order: &Order) -> Outcome<()> {
        match &mut self.job {
            Some((_, channel)) => channel.send(order),
            None => Err(Failure::say("mount: its process is gone")),
        }
    }

    /// The job's next word; a failure of its own, silence and interrupts are failures.
    fn hear(&mut self, limit: Duration) -> Outcome<Word> {
        let until = Instant::now() + limit;
        let Some((_, channel)) = &mut self.job else {
            return Err(Failure::say("mount: its process is gone"));
        };
        loop {
            if channel.has_message()
                || sys::wait_readable(&[channel.as_fd()], Some(Duration::from_millis(50)))[0]
            {
                return match channel.receive::<Word>()? {
                    Some(Word::Failed { status, text }) => Err(Failure::new(status, text)),
                    Some(word) => Ok(word),
                    None => Err(Failure::new(status::UNAVAILABLE, "mount: its process died")),
                };
            }
            interruption()?;
            if Instant::now() > until {
                return Err(Failure::new(
                    status::UNAVAILABLE,
                    format!("mount: its process was silent for {} s", limit.as_secs()),
                ));
            }
        }
    }

    fn stage_in(&mut self, wishes: &Wishes) -> Outcome<()> {
        if wishes.stage_in.is_empty() {
            return Ok(());
        }
        let store = Store::connect(&self.access())?;
        let pairs: Vec<Pair> = wishes
            .stage_in
            .iter()
            .map(|(source, destination)| Pair {
                source: Endpoint::Local(source.clone()),
                destination: Endpoint::Pool(destination.clone()),
            })
            .collect();
        for pair in &pairs {
            if let Endpoint::Pool(path) = &pair.destination {
                store.make_parents(path)?;
            }
        }
        let done = copy::copy(
            &store,
            pairs,
            &copy::Options { recursive: true, title: "stage in", ..Default::default() },
        )?;
        interruption()?;
        done.check("stage in")?;
        self.note(format_args!(
            "staged in {}, {}",
            show_count(done.files, "file"),
            show(done.bytes)
        ));
        Ok(())
    }

    /// Starts the program and waits for its end, passing signals on and watching the servers.
    fn attend(&mut self, wishes: &Wishes) -> Outcome<Ended> {
        let order = Order::Serve {
            access: self.access(),
            kernel: self.options.kernel,
            rules: wishes.rules.clone(),
        };
        self.send(&order)?;
        self.hear(Duration::from_secs(60))?;
        interruption()?;
        let mut variables = vec![
            ("WEIR_MOUNT".into(), self.mount.clone().into()),
            ("WEIR_POOL".into(), self.pool_file.name.clone().into()),
        ];
        let mut libraries = Vec::new();
        // Not there where no MPI was to be served: then there is nothing to say either.
        if !self.options.no_mpi {
            libraries.extend(preload::find_mpi_library());
        }
        // Where the kernel caches, it reads what it has faster than anyone beside it.
        if !self.options.no_preload && !self.options.kernel.cache {
            match preload::find_library() {
                Ok(library) => {
                    libraries.push(library);
                    if tuning::buffers(&wishes.rules) {
                        variables.push(("WEIR_IO_BUFFER".into(), "yes".into()));
                    }
                }
                Err(cause) => self.note(format_args!(
                    "no preload library ({cause}): reads and writes take the kernel's way, at about half the rate"
                )),
            }
        }
        variables.extend(preload::variable(&libraries));
        let start = Order::Start {
            command: self.options.command.clone(),
            variables,
            group: nix::unistd::getpgrp().as_raw(),
        };
        self.send(&start)?;
        match self.hear(Duration::from_secs(60))? {
            Word::Started => {}
            _ => return Err(Failure::say("start: the mounting process makes no sense")),
        }
        let mut interrupts = 0;
        let mut end_by: Option<Instant> = None;
        loop {
            let Some((_, channel)) = &mut self.job else {
                return Err(Failure::say("mount: its process is gone"));
            };
            let limit = end_by.map(|end_by| end_by.saturating_duration_since(Instant::now()));
            let ready = match channel.has_message() {
                true => vec![true],
                false => sys::wait_readable(&[channel.as_fd(), self.signals.as_fd()], limit),
            };
            if ready[0] {
                match channel.receive::<Word>()? {
                    Some(Word::Ended(ended)) => return Ok(*ended),
                    Some(Word::Failed { status, text }) => return Err(Failure::new(status, text)),
                    Some(_) => {}
                    None => {
                        return Err(Failure::new(
                            status::POOL_LOST,
                            "serve mount: its process died; the program was ended",
                        ));
                    }
                }
            }
            self.watch_servers(true);
            while let Some(caught) = self.signals.next() {
                match caught.signal {
                    Signal::SIGCHLD => continue,
                    Signal::SIGINT | Signal::SIGQUIT => interrupts += 1,
                    Signal::SIGTERM | Signal::SIGHUP => {
                        end_by.get_or_insert_with(|| Instant::now() + TERM_GRACE);
                    }
                    _ => {}
                }
                // What the terminal sends, the program has got as well.
                if !caught.from_terminal {
                    self.send(&Order::Signal(caught.signal as i32))?;
                }
            }
            let late = end_by.is_some_and(|end_by| Instant::now() >= end_by);
            if interrupts >= INTERRUPTS_MAX || late {
                tell("the program does not end when asked; ending it");
                self.send(&Order::Kill)?;
                interrupts = 0;
                end_by = None;
            }
        }
    }

    /// Notices servers that died, and says so.
    fn watch_servers(&mut self, running: bool) {
        let Some(fleet) = &mut self.fleet else { return };
        for death in fleet.deaths() {
            let consequence = match running {
                true => "what it held is lost, reading it gives EIO",
                false => "what it held is lost",
            };
            tell(format_args!("{death}; {consequence}"));
            self.deaths.push(death);
        }
    }

    /// Saves, reports, and says what vanishes.
    fn finish(&mut self, wishes: &Wishes, ended: Ended) -> Outcome<u8> {
        self.watch_servers(false);
        self.watch_directory();
        if let Some(signal) = sys::interrupted() {
            tell(format_args!(
                "{signal} came; the program ended with status {}",
                ended.exit_status
            ));
        }
        if ended.left_running > 0 {
            tell(format_args!(
                "ended {} processes that the program left running",
                ended.left_running
            ));
        }
        // From here on another signal ends what is under way.
        sys::forget_interrupt();
        let command = self.options.command.iter().map(|word| word.to_string_lossy().into_owned());
        let (servers, store) = match Store::connect(&self.access()) {
            Ok(store) => (self.server_status(&store), Some(store)),
            Err(failure) => {
                tell(format_args!(
                    "{failure}; nothing can be saved and the servers' counts are unknown"
                ));
                (Vec::new(), None)
            }
        };
        let lost = !self.deaths.is_empty();
        let options = &self.options;
        let can_buffer = !options.no_preload && !options.no_mount && !options.kernel.cache;
        let mut report = Report::new(
            command.collect(),
            self.pool_file.name.clone(),
            ended,
            servers,
            self.deaths.clone(),
        );
        if can_buffer && !tuning::buffers(&wishes.rules) {
            report.advice = report.about_small_requests();
        }
        if lost && report.exit_status == 0 {
            report.exit_status = status::POOL_LOST;
        }
        let mut saved = Vec::new();
        let mut tree = None;
        if let Some(store) = &store {
            tree = store
                .walk(Path::new("/"))
                .map_err(|failure| tell(format_args!("list what is left: {failure}")))
                .ok();
            if report.exit_status == 0
                && let Some(tree) = &tree
                && let Err(failure) = self.stage_out(wishes, store, tree, &mut saved)
            {
                tell(&failure);
                report.exit_status = status::NOT_SAVED;
            }
        } else if report.exit_status == 0 && !wishes.stage_out.is_empty() {
            report.exit_status = status::NOT_SAVED;
        }
        if let (Some(store), Some(tree)) = (&store, &tree) {
            if report.exit_status != 0
                && let Some(directory) = &self.options.keep_on_failure
            {
                match self.keep(store, directory) {
                    Ok(()) => saved = vec![PathBuf::from("/")],
                    Err(failure) => tell(&failure),
                }
            }
            report.vanished = vanished(tree, &saved);
        }
        self.tell_report(&report)?;
        Ok(report.exit_status)
    }

    /// The servers' counters; those that do not answer are told of.
    fn server_status(&mut self, store: &Store) -> Vec<weir_core::wire::control::ServerStatus> {
        let mut found = Vec::new();
        for (index, status) in store.status().into_iter().enumerate() {
            match status {
                Ok(status) => found.push(status),
                Err(_) if self.deaths.iter().any(|death| death.index == index) => {}
                Err(error) => {
                    let address = self.pool_file.servers.get(index).cloned().unwrap_or_default();
                    let death = Death { index, address, how: error.cause };
                    tell(format_args!(
                        "server {index} ({}) is lost: {}; what it held is lost",
                        death.address, death.how
                    ));
                    self.deaths.push(death);
                }
            }
        }
        found
    }

    fn stage_out(
        &self,
        wishes: &Wishes,
        store: &Store,
        tree: &[(PathBuf, Attributes)],
        saved: &mut Vec<PathBuf>,
    ) -> Outcome<()> {
        let mut pairs = Vec::new();
        let exactly = glob::MatchOptions { require_literal_separator: true, ..Default::default() };
        for (pattern, directory) in &wishes.stage_out {
            let mut matched: Vec<&Path> = Vec::new();
            for (path, _) in tree {
                // What lies in a directory that matches goes with it.
                let covered = matched.iter().any(|above| path.starts_with(above));
                if !covered && pattern.matches_path_with(path, exactly) {
                    matched.push(path);
                }
            }
            if matched.is_empty() {
                return Err(Failure::new(
                    status::NOT_SAVED,
                    format!("stage out {}: nothing in the pool matches", pattern.as_str()),
                ));
            }
            for path in matched {
                let relative = path.strip_prefix("/").unwrap_or(path);
                let destination = match directory {
                    Some(directory) => directory.join(relative.file_name().unwrap_or_default()),
                    None => relative.to_owned(),
                };
                if let Some(parent) =
                    destination.parent().filter(|parent| !parent.as_os_str().is_empty())
                {
                    std::fs::create_dir_all(parent).map_err(|error| {
                        Failure::system("make directory", parent.display(), error)
                    })?;
                }
                pairs.push(Pair {
                    source: Endpoint::Pool(path.to_owned()),
                    destination: Endpoint::Local(destination),
                });
                saved.push(path.to_owned());
            }
        }
        if pairs.is_empty() {
            return Ok(());
        }
        let done = copy::copy(
            store,
            pairs,
            &copy::Options { recursive: true, title: "stage out", ..Default::default() },
        )
        .and_then(|done| done.check("stage out").map(|()| done))
        .inspect_err(|_| saved.clear())?;
        self.note(format_args!(
            "staged out {}, {}",
            show_count(done.files, "file"),
            show(done.bytes)
        ));
        Ok(())
    }

    fn keep(&self, store: &Store, directory: &Path) -> Outcome<()> {
        let directory = match directory.as_os_str().is_empty() {
            true => PathBuf::from(format!("{}-kept", self.pool_file.name)),
            false => directory.to_owned(),
        };
        let pair = Pair {
            source: Endpoint::Pool("/".into()),
            destination: Endpoint::Local(directory.clone()),
        };
        let done = copy::copy(
            store,
            vec![pair],
            &copy::Options { recursive: true, title: "keep", ..Default::default() },
        )?;
        tell(format_args!(
            "kept {}, {}, in {}",
            show_count(done.files, "file"),
            show(done.bytes),
            directory.display()
        ));
        done.check("keep")
    }

    fn tell_report(&self, report: &Report) -> Outcome<()> {
        if !self.options.quiet {
            let text = report.text(self.options.report_files);
            let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            let vanished = &report.vanished;
            if vanished.files > 0 {
                let biggest: Vec<String> = vanished
                    .biggest
                    .iter()
                    .map(|(path, bytes)| format!("{path} ({})", show(*bytes)))
                    .collect();
                let more = if vanished.files as usize > biggest.len() { ", ..." } else { "" };
                tell(format_args!(
                    "{}, {}, will vanish with the pool: {}{more}",
                    show_count(vanished.files, "file"),
                    show(vanished.bytes),
                    biggest.join(", ")
                ));
            }
            report.advice.iter().for_each(tell);
        }
        for death in &report.servers_lost {
            tell(format_args!(
                "lost server {} ({}) during the run; results may be incomplete",
                death.index, death.address
            ));
        }
        if let Some(file) = &self.options.report {
            let write = || {
                let mut text = serde_json::to_vec_pretty(report)?;
                text.push(b'\n');
                std::fs::write(file, text)
            };
            write().map_err(|error| {
                Failure::new(
                    if report.exit_status == 0 { status::NOT_SAVED } else { report.exit_status },
                    format!("write report {}: {}", file.display(), plain(error)),
                )
            })?;
        }
        Ok(())
    }

    fn end_job(&mut self) {
        let Some((mut child, mut channel)) = self.job.take() else { return };
        let _ = channel.send(&Order::Kill);
        let until = Instant::now() + Duration::from_secs(15);
        let ended = loop {
            match child.try_wait() {
                Ok(Some(ended)) => break Some(ended),
                Ok(None) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
            }
        };
        self.bereft |= !ended.is_some_and(|ended| ended.success());
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.end_job();
        if self.bereft {
            let spared = self.fleet.as_ref().map(Fleet::pids).unwrap_or_default();
            sys::end_children(&spared, Duration::ZERO);
        }
        if namespace::is_mounted(&self.mount) && !self.mount.as_os_str().is_empty() {
            let _ = namespace::unmount(&self.mount);
        }
        if self.formed && self.pool_file.processes.is_empty() {
            crate::keeper::shut_down(&self.directory, &self.pool_file);
        }
        self.fleet = None;
        for directory in &self.made {
            let _ = std::fs::remove_dir(directory);
        }
        self.directory.clear();
    }
}

/// Where a run mounts that is not told where: the directory, and the one that all such are in.
fn mount_points(name: &str) -> Vec<PathBuf> {
    let base = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(runtime) if runtime.is_dir() && state::private_directory(&runtime).is_ok() => {
            runtime.join("weir")
        }
        _ => std::env::temp_dir().join(format!("weir-{}", nix::unistd::Uid::effective())),
    };
    vec![base.join(name), base]
}

/// An error if we were asked to end before the program was started.
fn interruption() -> Outcome<()> {
    match sys::interrupted() {
        None => Ok(()),
        Some(signal) => Err(Failure::new(
            status::SIGNALLED + signal as u8,
            format!("run: {signal} came before the program was started; nothing is left"),
        )),
    }
}

/// What of a pool's files is not saved.
fn vanished(tree: &[(PathBuf, Attributes)], saved: &[PathBuf]) -> Vanished {
    let mut vanished = Vanished::default();
    for (path, attributes) in tree {
        let kept = saved.iter().any(|above| path.starts_with(above));
        if kept || attributes.kind == FileKind::Directory {
            continue;
        }
        vanished.files += 1;
        vanished.bytes += attributes.size;
        vanished.biggest.push((path.display().to_string(), attributes.size));
    }
    vanished.biggest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    vanished.biggest.truncate(BIGGEST);
    vanished
}
