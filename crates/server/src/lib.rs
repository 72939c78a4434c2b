//! The server: memory, event loops and the metadata store around the services of `weir-core`.
#![warn(missing_docs)]

mod disk;
mod driver;
mod kept;
mod memory;
pub mod meta;

use disk::{Backing, Driven};
pub use disk::{DISK_BYTES_MIN, DiskOptions, Engine, FREE_PERCENT, free};
use driver::{Clock, Door, Loop, Shared};
use kept::Kept;
pub use kept::{KeptOptions, Progress, Scrubbed, scrub};
use memory::MappedMemory;
use meta::{JournalThread, LmdbOptions, LmdbStore};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use weir_core::auth::Secret;
use weir_core::config::Timing;
use weir_core::error::{Code, Error, Result};
use weir_core::service::meta::{MemoryStore, MetaStore};
use weir_core::service::storage::disk::Disk;
use weir_core::service::{Service, ServiceOptions, TargetParts, Usage};
use weir_core::types::Incarnation;
use weir_net::{Transport, tcp};

/// How to run a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// `host:port` to listen on; port 0: any that is free.
    pub listen: String,
    /// By what it can be reached.
    pub transport: Transport,
    /// Memory of each target: bytes.
    pub memory: Vec<u64>,
    /// Disk of each target: as many as there are targets, or none.
    pub disks: Vec<DiskOptions>,
    /// How requests get to the disks.
    pub disk_engine: Engine,
    /// Memory for metadata, should this server be chosen to hold it: bytes.
    pub metadata_memory: u64,
    /// Where metadata is kept on disk (LMDB); none: in memory, which is the fastest.
    pub metadata_dir: Option<PathBuf>,
    /// The pool's secret.
    pub secret: Secret,
    /// Event loops; 0: one for each core.
    pub threads: usize,
    /// Times of the protocol.
    pub timing: Timing,
}

/// How often a server that ends looks whether its disks have ended anything.
const SAVE_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// A running server. Dropping it stops it.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<std::io::Result<()>>>>,
    /// Of a server whose content outlives it: what writes it down, and its lock.
    kept: Mutex<Option<(Vec<JournalThread>, std::fs::File)>>,
}

fn random() -> Result<u64> {
    getrandom::u64()
        .map_err(|error| Error::because(Code::Internal, format!("no random bytes: {error}")))
}

fn host() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer is valid, and its last byte is left alone as a terminator.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// Asks the kernel what this process has used.
fn usage() -> Usage {
    // SAFETY: all zeros is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Usage {
        cpu_user_us: us(usage.ru_utime),
        cpu_system_us: us(usage.ru_stime),
        resident_max: usage.ru_maxrss as u64 * 1024,
    }
}

/// Runs a future to its end on this thread.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

impl Server {
    /// Starts a server that belongs to no pool yet (see `weir_client::form`).
    pub fn start(options: ServerOptions) -> Result<Server> {
        Server::start_with(options, None)
    }

    /// Starts a server whose content outlives it. It has one target, of the memory stated first; if it comes
    /// back, `progress` is told how far it is.
    pub fn start_kept(
        options: ServerOptions,
        kept: &KeptOptions,
        progress: Progress<'_>,
    ) -> Result<Server> {
        let memory = options.memory.first().copied().unwrap_or(0);
        let engine = options.disk_engine;
        let disk = (engine, loops(options.threads));
        let kept = Kept::open(kept, memory, options.metadata_memory, disk, progress)?;
        Server::start_with(ServerOptions { memory: Vec::new(), ..options }, Some(kept))
    }

    fn start_with(options: ServerOptions, kept: Option<Kept>) -> Result<Server> {
        let trouble = |error: std::io::Error| {
            let code = match error.kind() {
                std::io::ErrorKind::AddrInUse => Code::InUse,
                std::io::ErrorKind::PermissionDenied => Code::AccessDenied,
                _ => Code::Invalid,
            };
            Error::because(code, error.to_string()).on("listen on", &options.listen)
        };
        let listener = tcp::listen(tcp::resolve(&options.listen)?).map_err(trouble)?;
        listener.set_nonblocking(true).map_err(trouble)?;
        let address = listener.local_addr().map_err(trouble)?;
        let count = loops(options.threads);
        let mut targets: Vec<TargetParts> = Vec::new();
        let mut disks: Vec<Option<Arc<dyn Driven>>> = Vec::new();
        for (index, &bytes) in options.memory.iter().enumerate().take(driver::DISKS_MAX) {
            let mapped = MappedMemory::new(bytes)?;
            let driven = options.disks.get(index).map(|disk| {
                Backing::open(disk)
                    .and_then(|backing| backing.start(options.disk_engine, count))
                    .map_err(|error| {
                        Error::because(Code::Disk, error.to_string())
                            .on("use as a disk", disk.path.display())
                    })
            });
            let driven = driven.transpose()?;
            targets.push(TargetParts {
                incarnation: Incarnation(random()?),
                memory: Box::new(mapped),
                disk: driven.clone().map(|disk| disk as Arc<dyn Disk>),
            });
            disks.push(driven);
        }
        let mut prepared = Vec::new();
        let (mut names, mut scrub) = (None, None);
        let kept = kept.map(|kept| {
            scrub = Some(kept.scrub);
            prepared.push(kept.target);
            disks.push(Some(kept.disk));
            names = kept.store;
            (kept.threads, kept.label)
        });
        let store: Box<dyn MetaStore> = match (names, options.metadata_dir.clone()) {
            (Some(names), _) => names,
            (None, None) => Box::new(MemoryStore::new(options.metadata_memory)),
            // A scratch pool does not outlive its servers: no commit waits for the disk.
            (None, Some(path)) => Box::new(LmdbStore::open(&LmdbOptions {
                path,
                limit: options.metadata_memory,
                sync: false,
            })?),
        };
        let clock = Clock::start();
        let service = Service::new(ServiceOptions {
            incarnation: Incarnation(random()?),
            secret: options.secret.clone(),
            timing: options.timing.clone(),
            targets,
            prepared,
            scrub,
            store,
            description: (env!("CARGO_PKG_VERSION").to_owned(), std::process::id(), host()),
            usage: Box::new(usage),
            started: clock.now(),
        });
        let spin_max = std::time::Duration::from_micros(options.timing.spin_us);
        let doors = (0..count).map(|_| Door::new(spin_max)).collect::<std::io::Result<Vec<_>>>();
        let doors = doors.map_err(trouble)?;
        let shared =
            Arc::new(Shared { service, clock, stop: AtomicBool::new(false), doors, disks });
        let mut threads = Vec::new();
        let mut listeners = Some(driver::Listeners::new(listener, options.transport));
        for index in 0..count {
            let event_loop = Loop::new(shared.clone(), index, listeners.take());
            let thread = std::thread::Builder::new()
                .name(format!("weir-loop-{index}"))
                .spawn(move || event_loop.run())
                .map_err(trouble)?;
            threads.push(thread);
        }
        Ok(Server { address, shared, threads: Mutex::new(threads), kept: Mutex::new(kept) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it has been stopped, by [`Server::stop`] or over the network.
    pub fn wait(&self) -> Result<()> {
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let failed = |cause: String| Error::because(Code::Internal, cause).on("serve", "");
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(failed(error.to_string())),
                Err(_) => return Err(failed("an event loop panicked".to_owned())),
            }
        }
        // Nobody is served any more: what is left is written down.
        if self.kept.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            self.save().map_err(|error| {
                error.on("save", "what was written last").so("some of it may be lost")
            })?;
        }
        Ok(())
    }

    /// Writes down what there is. No event loop looks after the disks any more.
    fn save(&self) -> Result<()> {
        let shared = &self.shared;
        std::thread::scope(|scope| {
            let saving = scope.spawn(|| wait_for(shared.service.save()));
            while !saving.is_finished() {
                let mut ended = 0;
                for (index, disk) in shared.disks.iter().enumerate() {
                    let lanes = 0..shared.doors.len();
                    let reaped = disk.iter().flat_map(|disk| lanes.clone().map(|at| disk.reap(at)));
                    let done: Vec<_> = reaped.flatten().collect();
                    ended += done.len();
                    shared.service.disk_done(shared.clock.now(), index, done);
                }
                if ended == 0 {
                    std::thread::sleep(SAVE_PAUSE);
                }
            }
            let panicked = |_| Err(Error::because(Code::Internal, "saving panicked"));
            saving.join().unwrap_or_else(panicked)
        })
    }

    /// Tells it to stop; does not wait.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.doors.iter().for_each(|door| door.poller.wake());
    }
}

/// How many event loops there are, where so many threads are wished for; 0: one for each core.
fn loops(threads: usize) -> usize {
    match threads {
        0 => std::thread::available_parallelism().map_or(1, |count| count.get()),
        count => count,
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = self.wait();
    }
}
