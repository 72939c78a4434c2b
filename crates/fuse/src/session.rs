//! Mounts: how they begin, run and end.

use crate::device::Device;
use crate::mounting;
use crate::shared::Shared;
use crate::statistics::Statistics;
use crate::tuning::Rule;
use crate::workers;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use weir_client::Pool;
use weir_core::error::{Code, Error, Result};

/// Fewest threads where nobody says how many: each waits for one request.
const THREADS_MIN: usize = 8;
/// Most threads.
const THREADS_MAX: usize = 64;

/// How a pool is mounted.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Whether the kernel caches data from opening to opening (a file that another client has
    /// changed meanwhile is read anew when it is opened), and attributes for a second. Otherwise
    /// every read and write goes to the pool at once: the pool does the work, and every mount sees
    /// what every other one has written.
    pub caching: bool,
    /// The pool's directory. If it is said, programs that can read the secret there are lent the
    /// files they open, to read and write them by connections of their own (see
    /// [`weir_client::lending`]).
    pub pool_directory: Option<PathBuf>,
    /// What the user asked for certain files.
    pub rules: Vec<Rule>,
    /// Whether requests come by io_uring where the kernel has that and lets us, in place of the device's
    /// descriptor.
    pub by_io_uring: bool,
    /// Threads that serve requests; 0: twice as many as there are cores, within reason.
    pub threads: usize,
    /// Whether other users than the one who mounts may be there, each as who he is. [`mount()`] lets them in then;
    /// of a mount made elsewhere it must be true unless its options, or the namespace that it is in, keep them out.
    pub allow_other: bool,
}

/// A mount at work. Dropping it unmounts what [`mount()`] has mounted, even while it is in use.
pub struct Session {
    shared: Arc<Shared>,
    /// None after it was joined.
    thread: Option<JoinHandle<io::Result<()>>>,
    /// None: mounted by the caller.
    mounted: Option<PathBuf>,
    by_io_uring: bool,
}

/// Serves a mount that the caller has made: `device` is `/dev/fuse`, mounted with `fd=N`,
/// `rootmode=40000`, `user_id`, `group_id`, and `max_read` of 1 MiB or none. The caller unmounts.
///
/// Fails if the kernel speaks no protocol that we do.
pub fn serve(pool: Pool, device: OwnedFd, options: &MountOptions) -> Result<Session> {
    let shared = Arc::new(Shared::new(pool, options)?);
    // Whom to let in is the kernel's decision, by the options of the mount.
    start(shared, device, None, options).map_err(|error| failed(&error).on("serve", "mount"))
}

/// Mounts a pool at a directory, by mount(2) or, where that is forbidden, by fusermount3.
pub fn mount(pool: Pool, directory: &Path, options: &MountOptions) -> Result<Session> {
    let trouble = |error: io::Error| failed(&error).on("mount at", directory.display());
    let directory = directory.canonicalize().map_err(trouble)?;
    let shared = Arc::new(Shared::new(pool, options)?);
    let device = mounting::mount(&directory, options.allow_other);
    let device = device.map_err(|refused| trouble(refused.into()))?;
    start(shared, device, Some(directory.clone()), options).map_err(|error| {
        // The first error is the one to tell.
        let _ = mounting::take_away(&directory);
        trouble(error)
    })
}

fn start(
    shared: Arc<Shared>,
    device: OwnedFd,
    mounted: Option<PathBuf>,
    options: &MountOptions,
) -> io::Result<Session> {
    let device = Arc::new(Device::new(device));
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    let threads = match options.threads {
        0 => (2 * cores).max(THREADS_MIN),
        threads => threads,
    }
    .min(THREADS_MAX);
    let lanes = options.by_io_uring.then_some(threads);
    let lanes = workers::begin(shared.wishes(), &device, lanes)?;
    // Nobody else sets it.
    let _ = shared.device.set(device.clone());
    let by_io_uring = lanes.is_some();
    let crew = lanes.map(|lanes| lanes.serve(&shared, &device)).transpose().map_err(|error| {
        let cause = format!("requests by io_uring: {error}; leave out --io-uring");
        io::Error::new(error.kind(), cause)
    })?;
    let of_thread = shared.clone();
    let thread = std::thread::Builder::new()
        .name("weir-mount".to_owned())
        .spawn(move || workers::serve(&of_thread, &device, threads, crew))?;
    Ok(Session { shared, thread: Some(thread), mounted, by_io_uring })
}

fn failed(error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::PermissionDenied => Code::NotPermitted,
        io::ErrorKind::NotADirectory => Code::NotDirectory,
        io::ErrorKind::ResourceBusy => Code::InUse,
        _ => Code::Invalid,
    };
    Error::because(code, error.to_string())
}

impl Session {
    /// Whether the mount has ended.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the mount has ended: until somebody unmounts it and nobody uses it any more.
    /// Handles that are open at the pool still are closed then.
    pub fn join(mut self) -> Result<()> {
        let over = match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(failed(&error)),
            Some(Err(_)) => Err(Error::because(Code::Internal, "a thread panicked")),
        };
        over.map_err(|error| error.on("serve", "mount"))
    }

    /// Unmounts what [`mount()`] has mounted; fails while it is in use. [`Session::join`] then waits
    /// for the end.
    pub fn unmount(&self) -> Result<()> {
        let Some(directory) = &self.mounted else {
            let cause = "mounted by somebody else, who must unmount it";
            return Err(Error::because(Code::Invalid, cause).on("unmount", "pool"));
        };
        if self.is_over() {
            return Ok(());
        }
        mounting::unmount(directory)
            .map_err(|error| failed(&error).on("unmount", directory.display()))
    }

    /// Whether the kernel's requests come by io_uring.
    pub fn by_io_uring(&self) -> bool {
        self.by_io_uring
    }

    /// Takes the board away from where programs find it. Dropping a session does so too; who ends
    /// with the process and never drops it calls this.
    pub fn stop_lending(&self) {
        if let Some(lender) = &self.shared.lender {
            lender.board.remove();
        }
    }

    /// What was done through the mount so far.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_over() {
            return;
        }
        if let Some(directory) = &self.mounted {
            // Best effort: there is nobody left to tell.
            let _ = mounting::take_away(directory);
        }
    }
}
