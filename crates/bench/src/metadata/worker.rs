//! One of the processes at work: it does what it is told, line by line, and says how long it took.

use super::echo::{LinkClient, SocketClient};
use super::tree::{KernelTree, PoolTree, Tree, check, file_name, myself};
use crate::process::announce;
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::path::PathBuf;
use weir_client::{ConnectOptions, Pool, PoolAddress};
use weir_core::auth::{Role, Secret};
use weir_core::error::{Code, Error, Result};
use weir_net::Transport;

/// A pool, for a process that is to connect to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PoolNote {
    servers: Vec<String>,
    secret: String,
    connections: usize,
    timing: weir_core::config::Timing,
}

impl PoolNote {
    pub(super) fn new(address: &PoolAddress, options: &ConnectOptions) -> PoolNote {
        PoolNote {
            servers: address.servers.clone(),
            secret: address.secret.to_text(),
            connections: options.connections,
            timing: options.timing.clone(),
        }
    }

    pub(super) fn connect(&self, role: Role) -> Result<Pool> {
        let secret = Secret::parse(&self.secret)?;
        let address = PoolAddress { servers: self.servers.clone(), secret, role };
        let options = ConnectOptions {
            connections: self.connections,
            timing: self.timing.clone(),
            ..ConnectOptions::default()
        };
        Pool::connect(&address, &options)
    }
}

/// What a worker is told first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Briefing {
    pub(super) pool: PoolNote,
    /// Where the ping-pong is answered, over links and over sockets.
    pub(super) echo: (String, String),
}

/// On what an operation is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Where {
    /// In this directory of the pool.
    Pool(String),
    /// In this directory of the kernel's.
    Kernel(PathBuf),
}

/// What to do, so many times.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    Links(usize),
    Shared(usize),
    Sockets(usize),
    Create(Where, usize),
    Stat(Where, usize),
    Unlink(Where, usize),
    /// List, and compare with what each of the prefixes made.
    List {
        place: Where,
        attributes: bool,
        made: Vec<(String, usize)>,
    },
}

/// A task for a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// What its files' names begin with.
    pub(super) prefix: String,
    pub(super) task: Task,
}

/// When it began and ended, by the clock that all processes share: nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) begun: u64,
    pub(super) ended: u64,
}

/// What a worker answers.
pub(super) type Answer = std::result::Result<Span, String>;

fn clock() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn trouble(error: impl std::fmt::Display) -> Error {
    Error::because(Code::Invalid, error.to_string()).on("run", "worker")
}

struct Worker {
    pool: Pool,
    links: LinkClient,
    shared: LinkClient,
    sockets: SocketClient,
}

/// Works until the tether is cut.
pub(super) fn work() -> Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let Some(line) = lines.next() else { return Ok(()) };
    let briefing: Briefing = serde_json::from_str(&line.map_err(trouble)?).map_err(trouble)?;
    let mut worker = Worker {
        pool: briefing.pool.connect(Role::Owner)?,
        links: LinkClient::connect(&briefing.echo.0, Transport::Tcp)?,
        shared: LinkClient::connect(&briefing.echo.0, Transport::Auto)?,
        sockets: SocketClient::connect(&briefing.echo.1)?,
    };
    announce("ready").map_err(trouble)?;
    for line in lines {
        let order: Order = serde_json::from_str(&line.map_err(trouble)?).map_err(trouble)?;
        let answer: Answer = worker.obey(&order).map_err(|error| error.to_string());
        announce(serde_json::to_string(&answer).map_err(trouble)?).map_err(trouble)?;
    }
    Ok(())
}

impl Worker {
    fn tree(&self, place: &Where) -> Box<dyn Tree + '_> {
        match place {
            Where::Kernel(directory) => Box::new(KernelTree { directory: directory.clone() }),
            Where::Pool(directory) => {
                Box::new(PoolTree { pool: &self.pool, who: myself(), directory: directory.clone() })
            }
        }
    }

    fn obey(&mut self, order: &Order) -> Result<Span> {
        let names = |count| (0..count).map(|i| file_name(&order.prefix, i)).collect::<Vec<_>>();
        match &order.task {
            Task::Links(count) => timed(0..*count, |_| self.links.ping()),
            Task::Shared(count) => timed(0..*count, |_| self.shared.ping()),
            Task::Sockets(count) => timed(0..*count, |_| self.sockets.ping()),
            Task::Create(place, count) => {
                let tree = self.tree(place);
                timed(names(*count), |name| tree.create(&name))
            }
            Task::Unlink(place, count) => {
                let tree = self.tree(place);
                timed(names(*count), |name| tree.unlink(&name))
            }
            Task::Stat(place, count) => {
                let tree = self.tree(place);
                let mut found = Vec::with_capacity(*count);
                let span = timed(names(*count), |name| {
                    found.push(tree.stat(&name)?);
                    Ok(())
                })?;
                match found.iter().position(|&found| found != (true, 0)) {
                    None => Ok(span),
                    Some(index) => {
                        let name = file_name(&order.prefix, index);
                        let cause = format!("'{name}' is not the empty file that was made");
                        Err(Error::because(Code::Lost, cause).on("verify", "stat"))
                    }
                }
            }
            Task::List { place, attributes, made } => {
                let tree = self.tree(place);
                let mut names = Vec::new();
                let span = timed(0..1, |_| {
                    names = tree.list(*attributes)?;
                    Ok(())
                })?;
                check(names, made, "listing")?;
                Ok(span)
            }
        }
    }
}

/// Does something for each item; the clock runs from the first to the last.
fn timed<T>(
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(T) -> Result<()>,
) -> Result<Span> {
    let begun = clock();
    items.into_iter().try_for_each(&mut each)?;
    Ok(Span { begun, ended: clock() })
}
