//! This process's own connections to pools.

use crate::{alone, files, process, reach};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_client::lending::Board;
use weir_client::{ConnectOptions, Pool, PoolAddress, Transport};
use weir_core::error::{Code, Error, Result};

/// A pool, connected, and the board of the mount that its files were opened through.
pub(crate) struct Engine {
    pub(crate) pool: Pool,
    pub(crate) board: Board,
}

struct Known {
    directory: String,
    board: String,
    /// None: tried in vain, and not tried again.
    engine: Option<Arc<Engine>>,
}

static ENGINES: Mutex<Vec<Known>> = Mutex::new(Vec::new());

pub(crate) struct Held(MutexGuard<'static, Vec<Known>>);

fn engines() -> MutexGuard<'static, Vec<Known>> {
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool of this directory by the mount with this board; none if it cannot be had from here.
pub(crate) fn find(directory: &str, board: &str) -> Option<Arc<Engine>> {
    let mut engines = engines();
    if let Some(known) =
        engines.iter().find(|known| known.directory == directory && known.board == board)
    {
        return known.engine.clone();
    }
    // Who may not read the secret has the kernel's way, as have those who cannot reach the servers.
    let engine = connect(Path::new(directory), Path::new(board)).ok().map(Arc::new);
    engines.push(Known {
        directory: directory.to_owned(),
        board: board.to_owned(),
        engine: engine.clone(),
    });
    engine
}

/// Whether any pool has been connected.
pub(crate) fn any() -> bool {
    engines().iter().any(|known| known.engine.is_some())
}

fn connect(directory: &Path, board: &Path) -> Result<Engine> {
    weir_net::descriptors::set_mover(mover);
    let address = PoolAddress::load(directory)?;
    // With a mount there is no thread of ours in somebody else's process: nothing is opened that a
    // lease is kept for.
    let keeps_lease = alone::is_on();
    // What is copied from and to shared memory is copied by us: the kernel does not say what is not there.
    let transport = if reach::can_ask() { Transport::Auto } else { Transport::Tcp };
    let options = ConnectOptions { keeps_lease, transport, ..ConnectOptions::load(directory)? };
    // A program that may have few descriptors is left all of them.
    let wanted = (address.servers.len() * options.connections + 4) as u64;
    if wanted * 4 > descriptors_max() && !alone::is_on() {
        return Err(Error::because(Code::NoSpace, "too few descriptors").on("connect to", "pool"));
    }
    let board =
        Board::open(board).map_err(|error| Error::because(Code::NotFound, error.to_string()))?;
    let pool = without_signals(|| Pool::connect(&address, &options))?;
    Ok(Engine { pool, board })
}

/// Threads that are started meanwhile get no signals: a program's handlers run on its own.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let mut before = MaybeUninit::uninit();
    // SAFETY: sets of signals, filled in before they are read.
    unsafe {
        let mut all = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = work();
    // SAFETY: as it was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// How many descriptors this process may have.
fn descriptors_max() -> u64 {
    process::limit(libc::RLIMIT_NOFILE)
}

/// Moves our descriptors behind those that programs expect to get, and remembers them.
pub(crate) fn mover(descriptor: OwnedFd) -> OwnedFd {
    // Not too far: the kernel keeps a table of all numbers below.
    let floor = (descriptors_max() / 2).min(4000) as libc::c_int;
    // SAFETY: numbers only.
    let moved = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, floor) };
    let descriptor = match moved {
        ..0 => descriptor,
        // SAFETY: the kernel just gave us this descriptor.
        moved => unsafe { OwnedFd::from_raw_fd(moved) },
    };
    files::is_ours(descriptor.as_raw_fd());
    descriptor
}

/// Nobody else connects or ends connections until the guard is dropped or [`abandon`]ed.
pub(crate) fn hold() -> Held {
    Held(engines())
}

/// As [`hold`], without waiting.
pub(crate) fn try_hold() -> Option<Held> {
    ENGINES.try_lock().ok().map(Held)
}

/// Forgets the parent's connections in a child, without a word to the servers: the parent goes on
/// using them.
pub(crate) fn abandon(mut held: Held) {
    std::mem::forget(std::mem::take(&mut *held.0));
}
