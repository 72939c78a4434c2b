//! What each descriptor is, as far as it was looked at.
//!
//! Most are not the pool's: one load of one byte says so. Of those that may be, the kernel tells
//! which file they are, since descriptors change hands in ways that are not seen here (the C library
//! closes and opens behind its own functions). The mount hears of each closing, and counts them where this
//! process sees it: while none is counted, nothing has changed.

mod sharing;

use crate::alone::{self, Own};
use crate::buffer::{self, Buffer};
use crate::engine::{self, Engine};
use crate::mark::{self, Mark};
use crate::process::{self, Inside};
use crate::real::kernel;
use crate::stdio;
use crate::transfer::Way;
use libc::c_int;
use sharing::{AMONG, DOUBTS, FOR_GOOD};
pub(crate) use sharing::{
    Sharers, any_to_share, end_doubts, ended, given, is_inherited, is_left_by_executing, share,
    share_one,
};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use weir_client::Net;
use weir_client::lending::{Board, Cell, LEND, LENT_BYTES_MAX, Lent};
use weir_core::fs::{Begun, File};

/// Descriptors that are looked at; those above go through the kernel.
const DESCRIPTORS_MAX: usize = 64 * 1024;
/// A request of so many bytes, or so many requests, and a descriptor is worth an ioctl to borrow its
/// file: bytes, requests. Many small files are opened, read once and closed.
const WORTH_BORROWING: (usize, u8) = (64 << 10, 3);
/// Whether a file has so many bytes is not asked.
const SMALL_BYTES: usize = 4096;
/// Work that makes connections worth making: bytes, where each request counts as so many more. To connect,
/// and to use fresh rings, takes a process one to two milliseconds; by a mount 1 MiB takes 0.2 more than by a connection,
/// and a small request 0.01 more. Of what is asked for no more is counted than a file has: many
/// programs read small ones into large buffers.
const WORTH_CONNECTING: u64 = 4 << 20;
const REQUEST_WORTH: u64 = 32 << 10;

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
/// Bit: opened by this process, and shared with nobody: its position is nobody else's business. Of [`OURS`]: kept by
/// children.
const PRIVATE: u8 = 0x80;
/// Bit: as [`PRIVATE`], but for children that have it for now ([`AMONG`]).
const WITH_CHILDREN: u8 = 0x40;

static STATES: [AtomicU8; DESCRIPTORS_MAX] = [const { AtomicU8::new(UNKNOWN) }; DESCRIPTORS_MAX];
/// No descriptor above this has a state.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);
/// Files are borrowed at the first request: buffers make small ones worth it.
pub(crate) static EAGER: AtomicBool = AtomicBool::new(false);
static WORK: AtomicU64 = AtomicU64::new(0);
static DESCRIPTIONS: RwLock<BTreeMap<c_int, Arc<Description>>> = RwLock::new(BTreeMap::new());
/// Of descriptors that are not yet borrowed: whose turn it is. Those that were duplicated from one have one turn.
static TURNS: Mutex<Turns> = Mutex::new(BTreeMap::new());
/// Some have.
static SHARE_TURNS: AtomicBool = AtomicBool::new(false);

type Turns = BTreeMap<c_int, Arc<Mutex<()>>>;

/// A file of the pool, opened: shared by the descriptors that were duplicated from one.
pub(crate) struct Description {
    pub(crate) engine: Arc<Engine>,
    pub(crate) file: File<Net>,
    cell: u32,
    source: Source,
    identity: Identity,
    /// By which a descriptor is known to be open on this, as long as no other process has it.
    mark: Mark,
    /// Who has it too: children of fork by bits, or [`FOR_GOOD`].
    shared: AtomicU64,
    /// One thread at a time reads the kernel's position, works there and moves it on.
    pub(crate) position: Mutex<()>,
    /// If the user asked for one.
    pub(crate) buffer: Option<Arc<Buffer>>,
    /// A stream of the C library has it, which reads and writes unseen.
    pub(crate) streamed: bool,
    /// How many writes past the kernel there were when it last asked how long the file is.
    seen: AtomicU64,
    /// The descriptor that may read, and write, as the kernel said, and what [`CALLS`] was then: to ask
    /// at each of many calls costs more than some of them.
    allowed: [AtomicU64; 2],
    /// Whether what is written goes to the end of the file, as the kernel last said.
    appends: AtomicBool,
    /// The descriptor that the kernel last said to be open on this, and how many closings the mount had
    /// counted then.
    led: AtomicU64,
}

/// Not all threads have the same descriptors.
static APART: AtomicBool = AtomicBool::new(false);

/// A thread is about to have descriptors of its own.
pub(crate) fn divide() {
    APART.store(true, Ordering::Relaxed);
}

/// Counts calls that may have changed how a descriptor is open, or what the process may do.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// No descriptor's number.
const NOBODY: u64 = u64::MAX;

/// To be called before what may change how a descriptor is open, or what the process may do.
pub(crate) fn may_have_changed() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// Where a file comes from.
enum Source {
    /// The kernel has it open at a mount, which lends it.
    Mount,
    /// There is no mount: this process has opened it, and closes it with this.
    Own(#[allow(dead_code)] Own),
}

/// Which file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    ino: u64,
}

impl Description {
    fn own(engine: Arc<Engine>, file: File<Net>, own: Own, identity: Identity) -> Description {
        Description {
            engine,
            file,
            cell: 0,
            source: Source::Own(own),
            identity,
            mark: Mark::none(),
            shared: AtomicU64::new(0),
            position: Mutex::new(()),
            buffer: None,
            streamed: false,
            seen: AtomicU64::new(u64::MAX),
            allowed: [const { AtomicU64::new(NOBODY) }; 2],
            appends: AtomicBool::new(false),
            led: AtomicU64::new(NOBODY),
        }
    }

    /// Whether another process may have it too, and might move the position meanwhile.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed) != 0 || DOUBTS.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn board(&self) -> &Board {
        &self.engine.board
    }

    /// Where what is done with it is counted.
    pub(crate) fn cell(&self) -> &Cell {
        self.board().cell(self.cell)
    }

    /// Whether this process has opened it itself, and the kernel knows nothing of it.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.source, Source::Own(_))
    }

    /// How many descriptors of the file have been closed, if that is known: a number stands for another
    /// file only after that of the one before was closed, however that was done.
    fn closes(&self) -> Option<u32> {
        match self.source {
            Source::Mount if !APART.load(Ordering::Relaxed) => self.board().closes(self.cell),
            _ => None,
        }
    }

    /// Whether the kernel may have pages of it, which only requests through the kernel respect.
    pub(crate) fn mapped(&self) -> bool {
        self.board().marked(self.identity.ino)
    }

    /// Whether this may be done here through the descriptor, as it is open now: another description
    /// of the same file may have its number, and flags and limits change.
    pub(crate) fn allows(&self, fd: c_int, way: Way) -> bool {
        let known = &self.allowed[way as usize];
        let calls = CALLS.load(Ordering::Relaxed);
        let here = u64::from(calls) << 32 | u64::from(fd as u32);
        // Another process may change the flags of what it has too.
        if known.load(Ordering::Relaxed) == here && !self.is_shared() {
            return true;
        }
        let allowed = self.asked(fd, way);
        known.store(if allowed { here } else { NOBODY }, Ordering::Relaxed);
        allowed
    }

    /// Whether what is written goes to the end: as of the last time that writing was found to be allowed.
    pub(crate) fn appends(&self) -> bool {
        self.appends.load(Ordering::Relaxed)
    }

    /// The kernel is about to write, to what it believes to be the end if this appends.
    pub(crate) fn left_to_kernel(&self, fd: c_int) {
        if self.appends() {
            self.refresh(fd);
        }
        self.file.written_elsewhere();
    }

    /// Has the kernel asked again at the next request.
    pub(crate) fn look_again(&self) {
        for known in &self.allowed {
            known.store(NOBODY, Ordering::Relaxed);
        }
    }

    /// What the kernel says of [`Description::allows`].
    fn asked(&self, fd: c_int, way: Way) -> bool {
        let flags: c_int = kernel!(SYS_fcntl, fd, libc::F_GETFL);
        let access = flags & libc::O_ACCMODE;
        let mode = self.file.mode();
        match way {
            _ if flags < 0 || flags & libc::O_PATH != 0 => false,
            Way::Read => mode.read && access != libc::O_WRONLY,
            // A limit on files' sizes, and a promise of durability with each write, are the kernel's.
            Way::Write => {
                let durable = flags & (libc::O_SYNC | libc::O_DSYNC) != 0;
                let appends = flags & libc::O_APPEND != 0;
                self.appends.store(appends, Ordering::Relaxed);
                // What the kernel was asked to do meanwhile may have made it longer.
                self.file.written_elsewhere();
                mode.write && access != libc::O_RDONLY && !durable && !sizes_are_limited()
            }
        }
    }

    /// Has the kernel ask the mount how long the file is, if it may have become longer unseen.
    fn refresh(&self, fd: c_int) {
        let writes = self.cell().writes.load(Ordering::Acquire);
        if self.seen.swap(writes, Ordering::Relaxed) != writes {
            ask_length(fd, libc::AT_STATX_FORCE_SYNC);
        }
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
    state(fd).is_none_or(|state| matches!(kind(state.load(Ordering::Acquire)), FOREIGN | OURS))
}

/// Whether it is a connection of this library.
pub(crate) fn ours(fd: c_int) -> bool {
    state(fd).is_some_and(|state| kind(state.load(Ordering::Acquire)) == OURS)
}

/// It is a connection of this library.
pub(crate) fn is_ours(fd: c_int) {
    set(fd, OURS);
}

/// It is this library's, and stays so in children.
pub(crate) fn is_ours_and_childrens(fd: c_int) {
    set(fd, OURS | PRIVATE);
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
    if before & WITH_CHILDREN != 0 {
        AMONG[fd as usize].store(0, Ordering::Relaxed);
    }
    if kind(before) == POOL && !process::is_inside() {
        let _inside = Inside::enter();
        let ended = descriptions().remove(&fd);
        drop(ended);
    }
    let may_have_turn = is_undecided(before) || kind(before) == POOL;
    if may_have_turn && SHARE_TURNS.load(Ordering::Relaxed) && !process::is_inside() {
        let _inside = Inside::enter();
        let ended = turns().remove(&fd);
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
    let Some(value) = state(old).map(|state| state.load(Ordering::Acquire)) else { return };
    match kind(value) {
        FOREIGN => return set(new, FOREIGN),
        POOL => {}
        _ if is_undecided(value) => {}
        _ => return,
    }
    if process::is_inside() || state(new).is_none() {
        // Looked at by either name, they would be two, and fight for the position.
        return set(old, kind(value));
    }
    let _inside = Inside::enter();
    let mut descriptions = descriptions();
    // Another thread may have borrowed it by now, or closed it.
    let Some(value) = state(old).map(|state| state.load(Ordering::Acquire)) else { return };
    if kind(value) == POOL {
        if let Some(description) = descriptions.get(&old).cloned() {
            descriptions.insert(new, description);
            set(new, POOL);
        }
    } else if is_undecided(value) {
        let mut turns = turns();
        let turn = turns.entry(old).or_default().clone();
        turns.insert(new, turn);
        SHARE_TURNS.store(true, Ordering::Relaxed);
        AMONG[new as usize].store(AMONG[old as usize].load(Ordering::Relaxed), Ordering::Relaxed);
        set(new, value);
    }
}

fn kind(state: u8) -> u8 {
    state & !(PRIVATE | WITH_CHILDREN)
}

/// Whether a state is that of what this process has opened, which nobody but children may have too, for now, and which
/// may yet be borrowed.
fn is_undecided(state: u8) -> bool {
    kind(state) != state && !matches!(kind(state), FOREIGN | OURS | POOL)
}

/// It was borrowed by one of its names: it is that by the others, too.
fn give_to_duplicates(
    fd: c_int,
    description: &Arc<Description>,
    descriptions: &mut BTreeMap<c_int, Arc<Description>>,
) {
    let turns = turns();
    let Some(turn) = turns.get(&fd) else { return };
    let alike =
        |(other, theirs): &(&c_int, &Arc<Mutex<()>>)| **other != fd && Arc::ptr_eq(theirs, turn);
    for (&other, _) in turns.iter().filter(alike) {
        let value = state(other).map_or(UNKNOWN, |state| state.load(Ordering::Acquire));
        match description.mark.is_on(other) {
            Some(true) => {
                // Who has that one has this.
                description.shared.fetch_or(sharing::who_has(other, value), Ordering::Relaxed);
                descriptions.insert(other, description.clone());
                set(other, POOL);
            }
            // Its number stands for something else by now.
            Some(false) => {}
            // Nobody can tell.
            None => description.shared.store(FOR_GOOD, Ordering::Relaxed),
        }
    }
}

fn known(fd: c_int) -> Option<Arc<Description>> {
    let state = state(fd)?;
    if kind(state.load(Ordering::Acquire)) != POOL {
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

/// Whether the descriptor is still open on this very description. To be called inside.
pub(crate) fn is_current(fd: c_int, description: &Arc<Description>) -> bool {
    current(fd).is_some_and(|current| Arc::ptr_eq(&current, description))
}

/// Whether the descriptor is open on this description's file. To ask the kernel takes 0.1 us, and 0.3 where
/// there are other threads: what is marked is asked about where a descriptor of the file has been closed since.
pub(crate) fn leads_to(fd: c_int, description: &Description) -> bool {
    // Another process may mark what it has too.
    if description.is_shared() {
        return is_same_file(fd, description);
    }
    let here = |closes| u64::from(closes) << 32 | u64::from(fd as u32);
    // What is counted while the kernel is asked counts for the next time.
    let now = description.closes().map(here);
    if now.is_some_and(|now| description.led.load(Ordering::Relaxed) == now) {
        return true;
    }
    let Some(leads) = description.mark.is_on(fd) else {
        // Perhaps opened by another name, whose closings are counted elsewhere.
        return is_same_file(fd, description);
    };
    description.led.store(now.filter(|_| leads).unwrap_or(NOBODY), Ordering::Relaxed);
    leads
}

fn is_same_file(fd: c_int, description: &Description) -> bool {
    identity(fd, libc::AT_STATX_DONT_SYNC).is_some_and(|(now, _)| now == description.identity)
}

/// Writes what is buffered of this descriptor's file; gives the error number of what could not be
/// written, or 0. To be called inside.
pub(crate) fn settle(fd: c_int) -> c_int {
    let buffer = known(fd).and_then(|description| description.buffer.clone());
    buffer.map_or(0, |buffer| buffer.settle())
}

/// A sync of this descriptor's file begins in the kernel; none: it is no borrowed file. To be called
/// inside.
pub(crate) fn begin_sync(fd: c_int) -> Option<Begun> {
    known(fd).map(|description| description.file.begin_sync())
}

/// It has ended, and what was lost has been told. To be called inside.
pub(crate) fn synced(fd: c_int, begun: &Begun) {
    known(fd).iter().for_each(|description| description.file.synced_elsewhere(begun));
}

/// This process has opened the descriptor as one for a file of the pool. To be called inside.
pub(crate) fn own(fd: c_int, engine: Arc<Engine>, file: File<Net>, own: Own) {
    let Some((identity, _)) = identity(fd, libc::AT_STATX_DONT_SYNC) else { return };
    let description = Arc::new(Description::own(engine, file, own, identity));
    let before = descriptions().insert(fd, description);
    set(fd, POOL);
    drop(before);
}

/// All files are closed. What is still done with them opens them anew. To be called inside.
pub(crate) fn close_all() {
    let ended = std::mem::take(&mut *descriptions());
    ended.keys().for_each(|fd| set(*fd, UNKNOWN));
    drop(ended);
}

/// The program is about to call fcntl so. To be called inside.
pub(crate) fn controlled(fd: c_int, command: c_int) {
    if mark::is_in_the_way_of(command)
        && let Some(description) = known(fd)
    {
        description.mark.remove(fd);
    }
}

fn forget(fd: c_int) {
    set(fd, UNKNOWN);
    let ended = descriptions().remove(&fd);
    drop(ended);
}

/// As [`current`], for a request of so many bytes: borrows the file where that is worth while.
pub(crate) fn wanted(fd: c_int, way: Way, bytes: usize) -> Option<Arc<Description>> {
    let state = state(fd)?;
    let before = state.load(Ordering::Acquire);
    let count = match kind(before) {
        // What is buffered is moved later, and looked at then.
        POOL => match known(fd)? {
            description if description.buffer.is_some() => return Some(description),
            _ => return current(fd),
        },
        FOREIGN | OURS => return None,
        UNKNOWN => match is_candidate(fd) {
            true => 0,
            false => {
                set(fd, FOREIGN);
                return None;
            }
        },
        counting => counting - CANDIDATE,
    };
    let counted =
        (CANDIDATE + (count + 1).min(WORTH_BORROWING.1)) | before & (PRIVATE | WITH_CHILDREN);
    // Where another thread has just borrowed or closed it, this request is the kernel's.
    state.compare_exchange(before, counted, Ordering::AcqRel, Ordering::Acquire).ok()?;
    HIGHEST.fetch_max(fd, Ordering::Relaxed);
    let bytes = match way {
        Way::Read if bytes > SMALL_BYTES => bytes.min(size(fd)),
        _ => bytes,
    };
    let work = WORK.fetch_add(bytes as u64 + REQUEST_WORTH, Ordering::Relaxed) + bytes as u64;
    let worth = EAGER.load(Ordering::Relaxed)
        || (bytes >= WORTH_BORROWING.0 || count >= WORTH_BORROWING.1)
            && (work >= WORTH_CONNECTING || engine::any());
    if !worth {
        return None;
    }
    let description = match adopt(fd, before & PRIVATE != 0) {
        Ok(description) => Arc::new(description),
        Err(_) => {
            set(fd, FOREIGN);
            return None;
        }
    };
    // Another thread may have been faster: then its description is the one.
    let mut descriptions = descriptions();
    let now = state.load(Ordering::Acquire);
    match kind(now) {
        POOL => descriptions.get(&fd).cloned(),
        CANDIDATE.. => {
            // A child that has it may have been made meanwhile.
            description.shared.store(sharing::who_has(fd, now), Ordering::Relaxed);
            if SHARE_TURNS.load(Ordering::Relaxed) {
                give_to_duplicates(fd, &description, &mut descriptions);
            }
            descriptions.insert(fd, description.clone());
            set(fd, POOL);
            Some(description)
        }
        // Closed meanwhile.
        _ => None,
    }
}

/// To be locked while the kernel moves the position of a descriptor that may be borrowed the next
/// moment, and while it is borrowed: otherwise two threads would work at the same position, one here
/// and one in the kernel. None where that cannot happen.
pub(crate) fn turn(fd: c_int) -> Option<Arc<Mutex<()>>> {
    let value = state(fd)?.load(Ordering::Acquire);
    is_undecided(value).then(|| turns().entry(fd).or_default().clone())
}

fn turns() -> MutexGuard<'static, Turns> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Devices that an ioctl has told about, and whether they are mounts of ours.
static DEVICES: Mutex<Devices> = Mutex::new(Vec::new());

type Devices = Vec<((u32, u32), bool)>;

fn devices() -> MutexGuard<'static, Devices> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether it is a regular file of a file system that may be a mount of ours.
pub(crate) fn is_candidate(fd: c_int) -> bool {
    let Some((identity, mode)) = identity(fd, libc::AT_STATX_DONT_SYNC) else { return false };
    // File systems without a device of their own have major number 0.
    u32::from(mode) & libc::S_IFMT == libc::S_IFREG
        && identity.device.0 == 0
        && !devices().iter().any(|(device, ours)| *device == identity.device && !ours)
}

/// The device of a descriptor's file, as major and minor number.
pub(crate) fn device(fd: c_int) -> Option<(u32, u32)> {
    identity(fd, libc::AT_STATX_DONT_SYNC).map(|(identity, _)| identity.device)
}

/// How long the kernel believes the file to be: bytes.
fn size(fd: c_int) -> usize {
    let flags = libc::AT_STATX_DONT_SYNC;
    status(fd, flags, libc::STATX_SIZE).map_or(0, |found| found.stx_size as usize)
}

/// Device, number and mode of a descriptor's file; with `AT_STATX_DONT_SYNC` as the kernel knows
/// them, without asking the mount.
fn identity(fd: c_int, flags: c_int) -> Option<(Identity, u16)> {
    let found = status(fd, flags, libc::STATX_INO | libc::STATX_TYPE)?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    Some((Identity { device, ino: found.stx_ino }, found.stx_mode))
}

fn status(fd: c_int, flags: c_int, mask: libc::c_uint) -> Option<libc::statx> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let result: c_int =
        kernel!(SYS_statx, fd, c"".as_ptr(), libc::AT_EMPTY_PATH | flags, mask, found.as_mut_ptr());
    // SAFETY: zeros are valid, and the kernel has filled it in.
    (result == 0).then(|| unsafe { found.assume_init() })
}

/// Has the kernel ask the mount how long the file is: what it believes bounds mappings and copies.
/// Also where only other processes have written to it past the kernel.
pub(crate) fn refresh(fd: c_int) {
    match current(fd) {
        Some(description) => description.refresh(fd),
        // Of what is lent to be written the kernel believes nothing, so that it asks.
        None if is_candidate(fd) => ask_length(fd, libc::AT_STATX_SYNC_AS_STAT),
        None => {}
    }
}

/// The kernel is about to write to what is not borrowed. Where it appends, it moves the position to what it believes to
/// be the end. To be called inside.
pub(crate) fn left_to_kernel(fd: c_int) {
    if !is_foreign(fd) && engine::any() {
        let flags: c_int = kernel!(SYS_fcntl, fd, libc::F_GETFL);
        if flags & libc::O_APPEND != 0 {
            ask_length(fd, libc::AT_STATX_FORCE_SYNC);
        }
    }
}

fn ask_length(fd: c_int, flags: c_int) {
    let _ = status(fd, flags, libc::STATX_SIZE);
}

/// Whether there is a limit on the sizes of files.
fn sizes_are_limited() -> bool {
    process::limit(libc::RLIMIT_FSIZE) != libc::RLIM_INFINITY
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
    if alone::is_on() {
        let (engine, file, own) = alone::adopt(fd)?;
        return Ok(Description::own(engine, file, own, identity));
    }
    let lent = lent(fd);
    if let Ok(_) | Err(libc::ENOTTY) = lent {
        let mut devices = devices();
        if !devices.iter().any(|(device, _)| *device == identity.device) {
            devices.push((identity.device, lent.is_ok()));
        }
    }
    let lent = lent?;
    let engine = engine::find(&lent.pool, &lent.board).ok_or(libc::EHOSTUNREACH)?;
    let file = engine.pool.fs().borrow(lent.file.clone());
    // Nothing is appended by this library to what others have.
    file.writes_alone();
    Ok(Description {
        file,
        engine,
        cell: lent.cell,
        source: Source::Mount,
        identity,
        mark: if private { Mark::put(fd) } else { Mark::none() },
        shared: AtomicU64::new(FOR_GOOD),
        position: Mutex::new(()),
        buffer: buffer::of(lent.file.ino.0, lent.io_buffer),
        streamed: stdio::has(fd),
        seen: AtomicU64::new(u64::MAX),
        allowed: [const { AtomicU64::new(NOBODY) }; 2],
        appends: AtomicBool::new(false),
        led: AtomicU64::new(NOBODY),
    })
}

/// All that is known, held still.
pub(crate) struct Held {
    descriptions: RwLockWriteGuard<'static, BTreeMap<c_int, Arc<Description>>>,
    turns: MutexGuard<'static, Turns>,
    /// Stays as it is; only nobody must be at it.
    _devices: MutexGuard<'static, Devices>,
}

/// Nobody looks at or changes descriptions until the guard is dropped or [`abandon`]ed.
pub(crate) fn hold() -> Held {
    Held { descriptions: descriptions(), turns: turns(), _devices: devices() }
}

/// As [`hold`], without waiting.
pub(crate) fn try_hold() -> Option<Held> {
    let descriptions = DESCRIPTIONS.try_write().ok()?;
    let turns = TURNS.try_lock().ok()?;
    Some(Held { descriptions, turns, _devices: DEVICES.try_lock().ok()? })
}

/// In a child: its descriptors are shared with the parent, and the parent's connections are not
/// for it to use.
pub(crate) fn abandon(mut held: Held) {
    std::mem::forget(std::mem::take(&mut *held.descriptions));
    std::mem::forget(std::mem::take(&mut *held.turns));
    sharing::abandon();
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        let Some(state) = state(fd) else { continue };
        let value = state.load(Ordering::Acquire);
        if value == OURS {
            let _: c_int = kernel!(SYS_close, fd);
        }
        let left = match kind(value) {
            FOREIGN => FOREIGN,
            OURS if value != OURS => value,
            _ => UNKNOWN,
        };
        if left != value {
            state.store(left, Ordering::Release);
        }
    }
}
