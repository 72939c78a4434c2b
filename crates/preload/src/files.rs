//! What each descriptor is, as far as it was looked at.
//!
//! Most are not the pool's: one load of one byte says so. Of those that may be, the kernel tells
//! which file they are at every use, since descriptors change hands in ways that nobody sees (the C
//! library closes and opens behind its own functions).

use crate::buffer::{self, Buffer};
use crate::engine::{self, Engine};
use crate::process::{self, Inside};
use crate::real::kernel;
use libc::c_int;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use weir_client::Net;
use weir_client::lending::{Board, Cell, LEND, LENT_BYTES_MAX, Lent};
use weir_core::fs::File;

/// Descriptors that are looked at; those above go through the kernel.
const DESCRIPTORS_MAX: usize = 64 * 1024;
/// A request of so many bytes, or so many requests, and a descriptor is worth an ioctl to borrow its
/// file: bytes, requests. Many small files are opened, read once and closed.
const WORTH_BORROWING: (usize, u8) = (64 << 10, 3);
/// Work that makes connections worth making: bytes, where each request counts as a page more.
const WORTH_CONNECTING: u64 = 256 << 10;

/// Nothing is known yet.
const UNKNOWN: u8 = 0;
/// Not the pool's.
const FOREIGN: u8 = 1;
/// A connection of this library.
const OURS: u8 = 2;
/// There is a [`Description`] of it.
const POOL: u8 = 3;
/// It may be the pool's; requests made of it are counted up from here.
const CANDIDATE: u8 = 4;
/// Bit: opened by this process, and shared with nobody: its position is nobody else's business.
const PRIVATE: u8 = 0x80;

static STATES: [AtomicU8; DESCRIPTORS_MAX] = [const { AtomicU8::new(UNKNOWN) }; DESCRIPTORS_MAX];
/// No descriptor above this has a state.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);
/// Files are borrowed at the first request: buffers make small ones worth it.
pub(crate) static EAGER: AtomicBool = AtomicBool::new(false);
static WORK: AtomicU64 = AtomicU64::new(0);
static DESCRIPTIONS: RwLock<BTreeMap<c_int, Arc<Description>>> = RwLock::new(BTreeMap::new());

/// A file of the pool, opened: shared by the descriptors that were duplicated from one.
pub(crate) struct Description {
    pub(crate) engine: Arc<Engine>,
    pub(crate) file: File<Net>,
    cell: u32,
    identity: Identity,
    pub(crate) readable: bool,
    /// Open for writing, and nothing speaks against doing it here.
    writable: bool,
    appends: AtomicBool,
    /// Another process may have it too, or might move the position meanwhile.
    pub(crate) shared: AtomicBool,
    /// One thread at a time reads the kernel's position, works there and moves it on.
    pub(crate) position: Mutex<()>,
    /// If the user asked for one.
    pub(crate) buffer: Option<Arc<Buffer>>,
    /// Written here since the kernel last asked how long the file is.
    pub(crate) grown: AtomicBool,
}

/// Which file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    ino: u64,
}

impl Description {
    pub(crate) fn board(&self) -> &Board {
        &self.engine.board
    }

    /// Where what is done with it is counted.
    pub(crate) fn cell(&self) -> &Cell {
        self.board().cell(self.cell)
    }

    /// Whether the kernel may have pages of it, which only requests through the kernel respect.
    pub(crate) fn mapped(&self) -> bool {
        self.board().marked(self.identity.ino)
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable && !self.appends.load(Ordering::Relaxed)
    }

    /// Borrows the file anew: the leave to use it has expired.
    pub(crate) fn extend(&self, fd: c_int) -> bool {
        match lent(fd) {
            Ok(lent) if lent.file.ino == self.file.ino() => {
                self.file.extend(lent.file);
                true
            }
            _ => false,
        }
    }
}

fn state(fd: c_int) -> Option<&'static AtomicU8> {
    usize::try_from(fd).ok().and_then(|fd| STATES.get(fd))
}

fn set(fd: c_int, value: u8) {
    if let Some(state) = state(fd) {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
        state.store(value, Ordering::Release);
    }
}

fn descriptions() -> RwLockWriteGuard<'static, BTreeMap<c_int, Arc<Description>>> {
    DESCRIPTIONS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Whether it is known not to be the pool's.
#[inline]
pub(crate) fn is_foreign(fd: c_int) -> bool {
    state(fd).is_none_or(|state| matches!(state.load(Ordering::Acquire) & !PRIVATE, FOREIGN | OURS))
}

/// Whether it is a connection of this library.
pub(crate) fn ours(fd: c_int) -> bool {
    state(fd).is_some_and(|state| state.load(Ordering::Acquire) == OURS)
}

/// It is a connection of this library.
pub(crate) fn is_ours(fd: c_int) {
    set(fd, OURS);
}

/// The kernel just gave it to this process for an opening.
pub(crate) fn opened(fd: c_int) {
    closed(fd);
    if fd >= 0 {
        set(fd, UNKNOWN | PRIVATE);
    }
}

/// What it was it is no longer.
pub(crate) fn closed(fd: c_int) {
    let Some(state) = state(fd) else { return };
    // Of what was never looked at there is nothing to forget, and nothing to dirty memory for.
    if state.load(Ordering::Acquire) == UNKNOWN {
        return;
    }
    let before = state.swap(UNKNOWN, Ordering::AcqRel);
    // A signal handler leaves what it interrupted alone: it would wait for its own thread. What is
    // left over is replaced when the number comes up again.
    if before & !PRIVATE == POOL && !process::is_inside() {
        let _inside = Inside::enter();
        let ended = descriptions().remove(&fd);
        drop(ended);
    }
}

/// As [`closed`], for all from `first` to `last`.
pub(crate) fn closed_range(first: c_int, last: c_int) {
    for fd in first.max(0)..=last.min(HIGHEST.load(Ordering::Relaxed)) {
        if !ours(fd) {
            closed(fd);
        }
    }
}

/// Connections of this library from `first` to `last`.
pub(crate) fn ours_within(first: c_int, last: c_int) -> impl Iterator<Item = c_int> {
    (first.max(0)..=last.min(HIGHEST.load(Ordering::Relaxed))).filter(|fd| ours(*fd))
}

/// `new` is now another name of `old`.
pub(crate) fn duplicated(old: c_int, new: c_int) {
    if old == new || new < 0 {
        return;
    }
    closed(new);
    let Some(kind) = state(old).map(|state| state.load(Ordering::Acquire)) else { return };
    match kind & !PRIVATE {
        POOL if !process::is_inside() => {
            let _inside = Inside::enter();
            let mut descriptions = descriptions();
            if let Some(description) = descriptions.get(&old).cloned() {
                descriptions.insert(new, description);
                set(new, POOL);
            }
        }
        FOREIGN => set(new, FOREIGN),
        _ => {
            // Looked at by either name, they would be two, and fight for the position.
            set(old, kind & !PRIVATE);
        }
    }
}

/// `fcntl(F_SETFL)` was called.
pub(crate) fn flags_set(fd: c_int, flags: c_int) {
    if let Some(description) = known(fd) {
        description.appends.store(flags & libc::O_APPEND != 0, Ordering::Relaxed);
    }
}

fn known(fd: c_int) -> Option<Arc<Description>> {
    let state = state(fd)?;
    if state.load(Ordering::Acquire) & !PRIVATE != POOL {
        return None;
    }
    DESCRIPTIONS.read().unwrap_or_else(PoisonError::into_inner).get(&fd).cloned()
}

/// What the descriptor is open on, if that was borrowed from the pool and is still the same file.
/// To be called inside.
pub(crate) fn current(fd: c_int) -> Option<Arc<Description>> {
    let description = known(fd)?;
    if leads_to(fd, &description) {
        return Some(description);
    }
    forget(fd);
    None
}

/// Whether the descriptor is open on this description's file.
pub(crate) fn leads_to(fd: c_int, description: &Description) -> bool {
    identity(fd, libc::AT_STATX_DONT_SYNC).is_some_and(|(now, _)| now == description.identity)
}

/// Writes what is buffered of this descriptor's file; gives the error number of what could not be
/// written, or 0. To be called inside.
pub(crate) fn settle(fd: c_int) -> c_int {
    let buffer = known(fd).and_then(|description| description.buffer.clone());
    buffer.map_or(0, |buffer| buffer.settle())
}

fn forget(fd: c_int) {
    set(fd, UNKNOWN);
    let ended = descriptions().remove(&fd);
    drop(ended);
}

/// As [`current`], for a request of so many bytes: borrows the file where that is worth while.
pub(crate) fn wanted(fd: c_int, bytes: usize) -> Option<Arc<Description>> {
    let state = state(fd)?;
    let before = state.load(Ordering::Acquire);
    let (kind, private) = (before & !PRIVATE, before & PRIVATE);
    let count = match kind {
        // What is buffered is moved later, and looked at then.
        POOL => match known(fd)? {
            description if description.buffer.is_some() => return Some(description),
            _ => return current(fd),
        },
        FOREIGN | OURS => return None,
        UNKNOWN => match candidate(fd) {
            true => 0,
            false => {
                set(fd, FOREIGN);
                return None;
            }
        },
        counting => counting - CANDIDATE,
    };
    set(fd, (CANDIDATE + (count + 1).min(WORTH_BORROWING.1)) | private);
    let work = WORK.fetch_add(bytes as u64 + 4096, Ordering::Relaxed) + bytes as u64;
    let worth = EAGER.load(Ordering::Relaxed)
        || (bytes >= WORTH_BORROWING.0 || count >= WORTH_BORROWING.1)
            && (work >= WORTH_CONNECTING || engine::any());
    if !worth {
        return None;
    }
    let description = match adopt(fd, private != 0) {
        Ok(description) => Arc::new(description),
        Err(_) => {
            set(fd, FOREIGN);
            return None;
        }
    };
    // Another thread may have been faster: then its description is the one.
    let mut descriptions = descriptions();
    if state.load(Ordering::Acquire) == POOL
        && let Some(first) = descriptions.get(&fd)
    {
        return Some(first.clone());
    }
    descriptions.insert(fd, description.clone());
    set(fd, POOL);
    Some(description)
}

/// Devices that an ioctl has told about, and whether they are mounts of ours.
static DEVICES: Mutex<Vec<((u32, u32), bool)>> = Mutex::new(Vec::new());

fn devices() -> std::sync::MutexGuard<'static, Vec<((u32, u32), bool)>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether it is a regular file of a file system that may be a mount of ours.
fn candidate(fd: c_int) -> bool {
    let Some((identity, mode)) = identity(fd, libc::AT_STATX_DONT_SYNC) else { return false };
    // File systems without a device of their own have major number 0.
    u32::from(mode) & libc::S_IFMT == libc::S_IFREG
        && identity.device.0 == 0
        && !devices().iter().any(|(device, ours)| *device == identity.device && !ours)
}

/// Device, number and mode of a descriptor's file; with `AT_STATX_DONT_SYNC` as the kernel knows
/// them, without asking the mount.
fn identity(fd: c_int, flags: c_int) -> Option<(Identity, u16)> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let mask = libc::STATX_INO | libc::STATX_TYPE;
    let result: c_int =
        kernel!(SYS_statx, fd, c"".as_ptr(), libc::AT_EMPTY_PATH | flags, mask, found.as_mut_ptr());
    if result != 0 {
        return None;
    }
    // SAFETY: zeros are valid, and the kernel has filled it in.
    let found = unsafe { found.assume_init() };
    let device = (found.stx_dev_major, found.stx_dev_minor);
    Some((Identity { device, ino: found.stx_ino }, found.stx_mode))
}

/// Has the kernel ask the mount how long the file is: what it believes bounds mappings and copies.
pub(crate) fn refresh(fd: c_int) {
    if let Some(description) = current(fd)
        && description.grown.swap(false, Ordering::Relaxed)
    {
        let mut found = MaybeUninit::<libc::statx>::zeroed();
        let _: c_int = kernel!(
            SYS_statx,
            fd,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC,
            libc::STATX_SIZE,
            found.as_mut_ptr()
        );
    }
}

/// Asks the mount for a loan; gives the error number where there is none.
fn lent(fd: c_int) -> Result<Lent, c_int> {
    let mut answer = vec![0u8; LENT_BYTES_MAX];
    let result: c_int = kernel!(SYS_ioctl, fd, LEND, answer.as_mut_ptr());
    if result < 0 {
        return Err(process::errno());
    }
    Lent::decode(&answer).map_err(|_| libc::EPROTO)
}

fn adopt(fd: c_int, private: bool) -> Result<Description, c_int> {
    let (identity, _) = identity(fd, libc::AT_STATX_DONT_SYNC).ok_or(libc::EBADF)?;
    let lent = lent(fd);
    if let Ok(_) | Err(libc::ENOTTY) = lent {
        let mut devices = devices();
        if !devices.iter().any(|(device, _)| *device == identity.device) {
            devices.push((identity.device, lent.is_ok()));
        }
    }
    let lent = lent?;
    let flags: c_int = kernel!(SYS_fcntl, fd, libc::F_GETFL);
    let engine = engine::find(&lent.pool, &lent.board).ok_or(libc::EHOSTUNREACH)?;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is there to be written.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    let mode = lent.file.mode;
    Ok(Description {
        file: engine.pool.fs().borrow(lent.file.clone()),
        engine,
        cell: lent.cell,
        identity,
        readable: mode.read,
        // A limit on files' sizes, and a promise of durability with each write, are the kernel's.
        writable: mode.write
            && flags & libc::O_SYNC & !libc::O_DSYNC == 0
            && flags & libc::O_DSYNC == 0
            && limit.rlim_cur == libc::RLIM_INFINITY,
        appends: AtomicBool::new(flags & libc::O_APPEND != 0),
        shared: AtomicBool::new(!private),
        position: Mutex::new(()),
        buffer: buffer::of(lent.file.ino.0, lent.io_buffer),
        grown: AtomicBool::new(false),
    })
}

/// From now on other processes have descriptors too: all of them, or those that executed programs
/// inherit. To be called inside.
pub(crate) fn share(all: bool) {
    let descriptions = DESCRIPTIONS.read().unwrap_or_else(PoisonError::into_inner);
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        let Some(state) = state(fd) else { continue };
        let value = state.load(Ordering::Acquire);
        let kind = value & !PRIVATE;
        if matches!(kind, FOREIGN | OURS) || (kind != POOL && value & PRIVATE == 0) {
            continue;
        }
        if !all {
            let flags: c_int = kernel!(SYS_fcntl, fd, libc::F_GETFD);
            if flags & libc::FD_CLOEXEC != 0 {
                continue;
            }
        }
        match descriptions.get(&fd) {
            Some(description) => description.shared.store(true, Ordering::Relaxed),
            None => set(fd, kind),
        }
    }
}

/// All descriptions, held still.
pub(crate) struct Held(RwLockWriteGuard<'static, BTreeMap<c_int, Arc<Description>>>);

/// Nobody looks at or changes descriptions until the guard is dropped or [`abandon`]ed.
pub(crate) fn hold() -> Held {
    Held(descriptions())
}

/// As [`hold`], without waiting.
pub(crate) fn try_hold() -> Option<Held> {
    DESCRIPTIONS.try_write().ok().map(Held)
}

/// In a child: its descriptors are shared with the parent, and the parent's connections are not
/// for it to use.
pub(crate) fn abandon(mut held: Held) {
    std::mem::forget(std::mem::take(&mut *held.0));
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        let Some(state) = state(fd) else { continue };
        let value = state.load(Ordering::Acquire);
        if value == OURS {
            let _: c_int = kernel!(SYS_close, fd);
        }
        let kind = if value & !PRIVATE == FOREIGN { FOREIGN } else { UNKNOWN };
        if kind != value {
            state.store(kind, Ordering::Release);
        }
    }
}
