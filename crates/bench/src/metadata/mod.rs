//! `weir bench metadata`: how many files a second are made, looked at and removed, by one process
//! and by several, natively, through a mount, and in a directory of the machine's own; beside the
//! bare ping-pong of the same processes in the same run. And how long a large directory takes to
//! list. What was made is compared with what is there outside the timed parts.

mod echo;
mod process;
mod report;
mod tree;
mod worker;

use crate::process::{Child, Reach};
use crate::progress::progress;
use crate::spread::Spread;
use clap::Args;
use process::Role;
use report::{Figure, Listing, Point, Report, Settings};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tree::{KernelTree, PoolTree, Tree, check, myself};
use weir_client::{ConnectOptions, FormOptions, Pool, PoolAddress, STRIPE_SIZE_DEFAULT, form};
use weir_core::auth::{Role as PoolRole, Secret};
use weir_core::error::{Code, Error, Result};
use weir_core::types::Ino;
use weir_core::wire::meta::Place;
use weir_net::Transport;
use worker::{Answer, Briefing, Order, PoolNote, Span, Task, Where};

/// What to measure, and how.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  weir bench metadata                        a pool of one server here, beside the bare ping-pong
  weir bench metadata --mount --local /dev/shm
  weir bench metadata --mount --depth 8 --list 0
  weir bench metadata --processes 1,4,16 --files 50000 --list 0
  weir bench metadata --pool DIR --json result.json")]
pub struct Arguments {
    /// Files that are made, looked at and removed in each turn, by all processes together
    #[arg(long, value_name = "COUNT", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    files: u32,
    /// Processes at work at the same time
    #[arg(long, value_delimiter = ',', value_name = "COUNT,...", default_values_t = [1, 4],
          value_parser = clap::value_parser!(u16).range(1..=256))]
    processes: Vec<u16>,
    /// Turns; figures are medians over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Entries of the directory that is listed; 0: none is
    #[arg(long, value_name = "COUNT", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    list: u32,
    /// How deep below the pool's root, and below --local, the directory is in which files are made
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=100))]
    depth: u16,
    /// Also measure through a FUSE mount of the pool, which is made for it
    #[arg(long)]
    mount: bool,
    /// Also measure in this directory, by the same system calls as through the mount
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,
    /// Use a running pool: the directory with its pool.json and secret
    #[arg(long, value_name = "DIR")]
    pool: Option<PathBuf>,
    /// Servers of the pool, if one is started
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    #[command(flatten)]
    reach: Reach,
    /// Print JSON instead of tables, to a file or to standard output (-)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What this process is to be
    #[arg(long, hide = true)]
    role: Option<Role>,
}

/// Measures, and prints the report. To start its processes it runs the program again that it is
/// part of, with the same command line and a role, so that program must come here with it too.
///
/// # Errors
/// What cannot be started or does not answer, and any difference between what was made and what is
/// there.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(role) = arguments.role {
        return process::play(role, arguments.reach.transport);
    }
    arguments.check()?;
    let mut stage = Stage::set(arguments)?;
    let measured = stage.measure(arguments);
    let cleared = stage.clear();
    let (points, listings) = measured?;
    cleared?;
    let settings = Settings {
        files: arguments.files,
        repeats: arguments.repeats,
        listed: arguments.list,
        depth: arguments.depth,
        servers: stage.pool.map().servers.len(),
    };
    let verified = stage.verified;
    // Ended before the report, so that nothing of ours is left when it can be seen.
    drop(stage);
    Report::new(settings, points, listings, verified).print(arguments.json.as_deref())
}

impl Arguments {
    fn check(&self) -> Result<()> {
        let most = self.processes.iter().copied().max().unwrap_or(1);
        if self.files < u32::from(most) {
            let cause = format!("{} cannot be shared by {most} processes", self.files);
            return Err(Error::because(Code::Invalid, cause).on("use", "--files"));
        }
        Ok(())
    }
}

/// Something that files are made in.
struct Subject {
    name: String,
    place: Where,
}

/// All that takes part.
struct Stage {
    /// They leave first, the servers last.
    workers: Vec<Child>,
    _mount: Option<Child>,
    pool: Pool,
    subjects: Vec<Subject>,
    /// The directory of the pool in which all happens, and our own ones above it.
    directory: String,
    /// The topmost one in `--local`.
    local: Option<PathBuf>,
    /// Names that were compared.
    verified: u64,
    _echo: Child,
    _servers: Vec<Child>,
}

impl Stage {
    fn set(arguments: &Arguments) -> Result<Stage> {
        let mut number = [0; 8];
        getrandom::fill(&mut number)
            .map_err(|error| Error::because(Code::Internal, error.to_string()))?;
        let top = format!("weir-bench-{:016x}", u64::from_le_bytes(number));
        let directory = top.clone() + &"/d".repeat(usize::from(arguments.depth) - 1);
        let (servers, address, options) = arguments.pool()?;
        let pool = Pool::connect(&address, &options)?;
        let note = PoolNote::new(&address, &options);
        for directory in within_each_other(&directory) {
            // As most programs make them.
            let place = Place::new(Ino::ROOT, directory);
            pool.run(pool.fs().make_directory(&myself(), place, 0o755))?;
        }
        let mut subjects =
            vec![Subject { name: "pool".to_owned(), place: Where::Pool(directory.clone()) }];
        let mount = match arguments.mount {
            true => Some(Child::start(Role::Mount.name(), &json(&note)?)?),
            false => None,
        };
        if let Some(mount) = &mount {
            let place = Where::Kernel(PathBuf::from(&mount.address).join(&directory));
            subjects.push(Subject { name: "mount".to_owned(), place });
        }
        let local = arguments.local.as_ref().map(|local| local.join(&top));
        if let (Some(top), Some(parent)) = (&local, &arguments.local) {
            let within = parent.join(&directory);
            // What it is to lie in must be there.
            let made = std::fs::create_dir(top).and_then(|()| std::fs::create_dir_all(&within));
            made.map_err(|error| {
                Error::because(Code::Invalid, error.to_string()).on("mkdir", top.display())
            })?;
            subjects.push(Subject { name: "local".to_owned(), place: Where::Kernel(within) });
        }
        let echo = Child::start(Role::Echo.name(), "")?;
        let addresses = echo.address.split_once(' ').unwrap_or_default();
        let briefing =
            Briefing { pool: note, echo: (addresses.0.to_owned(), addresses.1.to_owned()) };
        let most = arguments.processes.iter().copied().max().unwrap_or(1);
        let start = |_| Child::start(Role::Worker.name(), &json(&briefing)?);
        let workers = (0..most).map(start).collect::<Result<Vec<_>>>()?;
        Ok(Stage {
            workers,
            _mount: mount,
            pool,
            subjects,
            directory,
            local,
            verified: 0,
            _echo: echo,
            _servers: servers,
        })
    }

    fn measure(&mut self, arguments: &Arguments) -> Result<(Vec<Point>, Vec<Listing>)> {
        let points = arguments.processes.iter().map(|&count| self.point(arguments, count.into()));
        let points = points.collect::<Result<Vec<_>>>()?;
        let listings = match arguments.list {
            0 => Vec::new(),
            count => self.listings(arguments, count as usize)?,
        };
        progress("");
        Ok((points, listings))
    }

    /// All operations by so many processes.
    fn point(&mut self, arguments: &Arguments, processes: usize) -> Result<Point> {
        let shares = split(arguments.files as usize, processes);
        let mut rates: BTreeMap<(usize, usize), (Figure, Vec<f64>)> = BTreeMap::new();
        let mut pings: Vec<f64> = Vec::new();
        // One turn more than is counted: caches and connections get warm in the first.
        for turn in 0..=arguments.repeats {
            progress(&format!("{processes} processes, turn {turn} of {}", arguments.repeats));
            let mut count = |row: usize, of: usize, target: &str, operation: &str, rate: f64| {
                let figure = || (Figure::new(target, operation), Vec::new());
                let values = &mut rates.entry((row, of)).or_insert_with(figure).1;
                if turn > 0 {
                    values.push(rate);
                }
            };
            let links = self.together(&shares, |_, count| Task::Links(count))?;
            pings.extend((turn > 0).then_some(links));
            count(0, 0, "ping-pong", "links", links);
            let sockets = self.together(&shares, |_, count| Task::Sockets(count))?;
            count(0, 1, "ping-pong", "sockets", sockets);
            if arguments.reach.transport == Transport::Auto {
                let shared = self.together(&shares, |_, count| Task::Shared(count))?;
                count(0, 2, "ping-pong", "shared memory", shared);
            }
            for index in 0..self.subjects.len() {
                let Subject { name, place } = &self.subjects[index];
                let (name, place) = (name.clone(), place.clone());
                let rate = self.together(&shares, |_, n| Task::Create(place.clone(), n))?;
                count(index + 1, 0, &name, "create", rate);
                self.verify(index, &shares)?;
                let rate = self.together(&shares, |_, n| Task::Stat(place.clone(), n))?;
                count(index + 1, 1, &name, "stat", rate);
                let rate = self.together(&shares, |_, n| Task::Unlink(place.clone(), n))?;
                count(index + 1, 2, &name, "unlink", rate);
                self.verify(index, &[])?;
            }
        }
        let figures = rates.into_values().filter_map(|(figure, values)| {
            let share =
                Spread::of(values.iter().zip(&pings).map(|(own, ping)| own / ping).collect());
            Some(Figure { rate: Spread::of(values)?, share: share?, ..figure })
        });
        Ok(Point { processes, figures: figures.collect() })
    }

    /// Makes a large directory by all processes together, and lists it by one.
    fn listings(&mut self, arguments: &Arguments, entries: usize) -> Result<Vec<Listing>> {
        let shares = split(entries, self.workers.len());
        let mut listings = Vec::new();
        for index in 0..self.subjects.len() {
            let Subject { name, place } = &self.subjects[index];
            let (name, place) = (name.clone(), place.clone());
            // A mount shows what was made natively.
            if name != "mount" {
                progress(&format!("{name}: making {entries} files"));
                self.together(&shares, |_, n| Task::Create(place.clone(), n))?;
            }
            for attributes in [false, true] {
                let mut seconds = Vec::new();
                for turn in 0..arguments.repeats {
                    progress(&format!("{name}: listing {entries} files, turn {}", turn + 1));
                    let (place, made) = (place.clone(), made(&shares));
                    let order = Order {
                        prefix: String::new(),
                        task: Task::List { place, attributes, made },
                    };
                    let span = ask(&mut self.workers[..1], |_| order.clone())?;
                    seconds.push((span.ended - span.begun) as f64 / 1e9);
                    self.verified += entries as u64;
                }
                let what = if attributes { "names and attributes" } else { "names" };
                let seconds = Spread::of(seconds);
                listings.extend(seconds.map(|seconds| Listing {
                    target: name.clone(),
                    what: what.to_owned(),
                    seconds,
                }));
            }
            let last = self.subjects.get(index + 1).is_none_or(|next| next.name != "mount");
            if last {
                progress(&format!("removing {entries} files"));
                let place = match &self.subjects[index].name[..] {
                    "mount" => self.subjects[0].place.clone(),
                    _ => place,
                };
                self.together(&shares, |_, n| Task::Unlink(place.clone(), n))?;
            }
        }
        Ok(listings)
    }

    /// Lets processes do their shares at the same time; gives how many things a second were done.
    fn together(&mut self, shares: &[usize], task: impl Fn(usize, usize) -> Task) -> Result<f64> {
        let workers = &mut self.workers[..shares.len()];
        let order =
            |index: usize| Order { prefix: prefix(index), task: task(index, shares[index]) };
        let span = ask(workers, order)?;
        let seconds = (span.ended - span.begun).max(1) as f64 / 1e9;
        Ok(shares.iter().sum::<usize>() as f64 / seconds)
    }

    /// Compares what is there with what each process has made.
    fn verify(&mut self, index: usize, shares: &[usize]) -> Result<()> {
        let Subject { name, place } = &self.subjects[index];
        let names = match place {
            Where::Kernel(directory) => KernelTree { directory: directory.clone() }.list(false)?,
            Where::Pool(directory) => {
                let directory = directory.clone();
                PoolTree { pool: &self.pool, who: myself(), directory }.list(false)?
            }
        };
        self.verified += names.len() as u64;
        check(names, &made(shares), name)
    }

    /// Takes away what is left in places that stay.
    fn clear(&mut self) -> Result<()> {
        let tree = PoolTree { pool: &self.pool, who: myself(), directory: self.directory.clone() };
        for name in tree.list(false)? {
            tree.unlink(&String::from_utf8_lossy(&name))?;
        }
        for directory in within_each_other(&self.directory).rev() {
            let place = Place::new(Ino::ROOT, directory);
            self.pool.run(self.pool.fs().remove_directory(&myself(), place))?;
        }
        if let Some(local) = &self.local {
            std::fs::remove_dir_all(local).map_err(|error| {
                Error::because(Code::Invalid, error.to_string()).on("remove", local.display())
            })?;
        }
        Ok(())
    }
}

/// The directories of a path, from the topmost one on.
fn within_each_other(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end]).chain([path])
}

fn prefix(index: usize) -> String {
    format!("file.{index}")
}

/// What each process makes.
fn made(shares: &[usize]) -> Vec<(String, usize)> {
    shares.iter().enumerate().map(|(index, &count)| (prefix(index), count)).collect()
}

/// Deals out a number as evenly as it goes.
fn split(total: usize, parts: usize) -> Vec<usize> {
    (0..parts).map(|part| total / parts + usize::from(part < total % parts)).collect()
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::because(Code::Internal, error.to_string()))
}

/// Tells workers what to do, and waits for all of them: from when the first began to when the last
/// ended.
fn ask(workers: &mut [Child], order: impl Fn(usize) -> Order) -> Result<Span> {
    let lines = (0..workers.len()).map(|index| json(&order(index))).collect::<Result<Vec<_>>>()?;
    for (worker, line) in workers.iter_mut().zip(&lines) {
        worker.say(line)?;
    }
    let mut whole = Span { begun: u64::MAX, ended: 0 };
    let mut failure = None;
    for worker in workers {
        let answer: Answer = serde_json::from_str(&worker.hear()?)
            .map_err(|error| Error::because(Code::Protocol, error.to_string()))?;
        match answer {
            Ok(span) => {
                whole.begun = whole.begun.min(span.begun);
                whole.ended = whole.ended.max(span.ended);
            }
            Err(text) => failure = Some(text),
        }
    }
    match failure {
        None => Ok(whole),
        Some(text) => Err(Error::because(Code::Lost, text).on("run", "worker")),
    }
}

impl Arguments {
    /// The pool: one that runs, or one of our own.
    fn pool(&self) -> Result<(Vec<Child>, PoolAddress, ConnectOptions)> {
        if let Some(directory) = &self.pool {
            let address = PoolAddress::load(directory)?;
            return Ok((Vec::new(), address, ConnectOptions::load(directory)?));
        }
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| {
            Error::because(Code::Internal, error.to_string()).on("make", "secret")
        })?;
        let secret = Secret::from_bytes(bytes);
        let start = |_| Child::start(Role::Server.name(), &secret.to_text());
        let servers = (0..self.servers).map(start).collect::<Result<Vec<_>>>()?;
        let addresses: Vec<String> = servers.iter().map(|server| server.address.clone()).collect();
        let options = ConnectOptions::default();
        let me = myself();
        let wish = FormOptions {
            name: "metadata".to_owned(),
            owner_uid: me.uid,
            owner_gid: me.gid,
            stripe_size: STRIPE_SIZE_DEFAULT,
            stripe_count: 0,
        };
        form(&addresses, &secret, &wish, &options)?;
        let address = PoolAddress { servers: addresses, secret, role: PoolRole::Owner };
        Ok((servers, address, options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (total, parts) in [(10, 3), (4, 4), (100_001, 4), (1, 1)] {
            let shares = split(total, parts);
            assert_eq!((shares.len(), shares.iter().sum::<usize>()), (parts, total));
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }
}
