//! Requests by io_uring, where the kernel has that (Linux 6.14 and up) and allows it.
//!
//! By the descriptor the kernel puts requests into one queue for all processors, and whoever waits
//! there is waked to read the next one and later to write its answer. By io_uring there is a queue
//! for each processor, in which threads wait with memory that the request is put into, and one system
//! call gives an answer and waits for the next request.
//!
//! Of a thread that has got a request nobody knows for how long: so each has one lane, memory for one
//! request in the queue of one processor. A program that waits for a lock keeps its lane; another
//! thread then stands in for the one that waits with it.
//!
//! The kernel gives a new lane only what comes from then on, and the rest when a request was answered. Where
//! all lanes of a processor were taken at once by programs that wait for locks, what came next would
//! wait for ever: so who waits, once another one stands in, has the kernel make a request there.
//!
//! By the descriptor come, as ever, how a mount begins, signals for who waits, and what the kernel
//! forgets.

use crate::buffer::Buffer;
use crate::device::{Device, answer_header};
use crate::filesystem::REQUEST_BYTES_MAX;
use crate::kernel::{self, ANSWER_HEADER_BYTES, REQUEST_HEADER_BYTES};
use crate::reply::{Errno, Reply};
use crate::shared::Shared;
use crate::workers::understand;
use io_uring::{IoUring, opcode, squeue, types};
use std::cell::{Cell, RefCell};
use std::fs::{File, TryLockError};
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_core::copying::{PAGE_BYTES, PLACE_IN_PAGE};
use weir_core::types::Ino;

/// See [`is_allowed`]: `Y` or `N`.
const ALLOWED: &str = "/sys/module/fuse/parameters/enable_uring";
/// The processors that there may ever be, each of which has a queue, and those at work.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Most processors for which lanes are made: each takes a thread at least.
const PROCESSORS_MAX: usize = 512;
/// Where a lane's payload begins.
const PAYLOAD_AT: usize = PAGE_BYTES + PLACE_IN_PAGE;
/// Fewest and most lanes of a processor, but for those of threads that stand in.
const LANES_MIN: usize = 2;
const LANES_MAX: usize = 8;
/// Most threads of a mount that wait for locks of programs.
const WAITING_MAX: usize = 4096;
/// How often a thread that waits for a program's lock looks whether the mount is over.
const OVER_PAUSE: Duration = Duration::from_secs(1);
/// How long other mounts are given to agree with the kernel, and how often they are asked.
const TURN_MAX: Duration = Duration::from_secs(1);
const TURN_PAUSE: Duration = Duration::from_millis(1);
/// So few lanes have huge pages, which a small request would take whole as well.
const HUGE_LANES_MAX: usize = 32;

/// The kernel's commands, `enum fuse_uring_cmd`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Pieces of memory that a lane is made of: headers, payload.
const PIECES: u32 = 2;

/// The kernel's `struct fuse_uring_req_header`.
#[repr(C)]
struct Headers {
    /// A request's header, or an answer's.
    header: [u8; 128],
    /// What a request has before its payload.
    operation: [u8; 128],
    flags: u64,
    /// What an answer is to be given with.
    commit: u64,
    payload_bytes: u32,
    padding: u32,
    reserved: u64,
}

/// Memory for a request and its answer, and the ring in which its thread waits.
pub(crate) struct Lane {
    ring: IoUring<squeue::Entry128>,
    device: Arc<Device>,
    queue: u16,
    /// A page for headers, then the payload. Behind the kernel's headers there is room to put a
    /// request's head before its payload.
    base: NonNull<u8>,
    /// Whose memory that is.
    _memory: Buffer,
    /// What the kernel is told of it.
    pieces: Box<[libc::iovec; PIECES as usize]>,
    /// The request that is to be answered.
    asked: Option<Asked>,
    /// The answer is put together, but the kernel has not been told.
    untold: bool,
}

// SAFETY: the pieces name memory of the lane's own.
unsafe impl Send for Lane {}

#[derive(Clone, Copy)]
struct Asked {
    unique: u64,
    commit: u64,
}

thread_local! {
    /// The lane of this thread.
    static LANE: RefCell<Option<Lane>> = const { RefCell::new(None) };
    /// Its payload, while the request has none.
    static FREE: Cell<Option<NonNull<[u8]>>> = const { Cell::new(None) };
    /// Where answers are put together by threads that have none.
    static ROOM: RefCell<Option<Buffer>> = const { RefCell::new(None) };
}

/// Lends memory of so many bytes, up to [`REQUEST_BYTES_MAX`], for an answer: what is given from its
/// beginning ([`Reply::data`]) need not be moved any more.
pub(crate) fn with_room<T>(length: usize, work: impl FnOnce(Result<&mut [u8], Errno>) -> T) -> T {
    let none = Errno(libc::ENOMEM);
    if let Some(mut free) = FREE.take() {
        // SAFETY: the lane's, which this thread has, and no part of the request. It was taken, so it
        // is lent once.
        let payload = unsafe { free.as_mut() };
        return work(payload.get_mut(..length).ok_or(none));
    }
    ROOM.with_borrow_mut(|room| {
        if room.is_none() {
            *room = Buffer::to_answer(REQUEST_BYTES_MAX as usize).ok();
        }
        work(room.as_mut().and_then(|room| room.get_mut(..length)).ok_or(none))
    })
}

/// Tells the kernel an answer now that would be told when this thread waits for the next request: for
/// who has something to do before.
pub(crate) fn tell() {
    LANE.with_borrow_mut(|lane| {
        if let Some(lane) = lane.as_mut().filter(|lane| lane.untold) {
            lane.untold = false;
            if let Err(error) = lane.ring.submit() {
                // It is told with the next one.
                tracing::debug!(%error, "an answer waits");
            }
        }
    });
}

/// Where an answer is left for the thread that has the lane.
#[derive(Default)]
pub(crate) struct Desk {
    answer: Mutex<Option<(i32, Vec<u8>)>>,
    left: Condvar,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Option<(i32, Vec<u8>)>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request: `error` is an errno, or 0.
    pub(crate) fn answer(&self, unique: u64, error: i32, parts: &[&[u8]]) {
        let answered = LANE.with_borrow_mut(|lane| match lane {
            Some(lane) if lane.asked.is_some_and(|asked| asked.unique == unique) => {
                lane.answer(error, parts);
                true
            }
            _ => false,
        });
        if !answered {
            *self.lock() = Some((error, parts.concat()));
            self.left.notify_one();
        }
    }
}

impl Lane {
    /// `huge`: see [`HUGE_LANES_MAX`].
    fn new(device: &Arc<Device>, queue: u16, huge: bool) -> io::Result<Lane> {
        let mut builder = IoUring::<squeue::Entry128>::builder();
        // It is made by one thread, and used by another one alone.
        builder.setup_r_disabled().setup_single_issuer().setup_defer_taskrun().dontfork();
        let ring = builder.build(4)?;
        let length = PAYLOAD_AT + REQUEST_BYTES_MAX as usize;
        let memory = if huge { Buffer::new(PAGE_BYTES, length)? } else { Buffer::small(length)? };
        let base = memory.pointer();
        let payload = base.as_ptr().wrapping_add(PAYLOAD_AT);
        let pieces = Box::new([
            libc::iovec { iov_base: base.as_ptr().cast(), iov_len: size_of::<Headers>() },
            libc::iovec { iov_base: payload.cast(), iov_len: REQUEST_BYTES_MAX as usize },
        ]);
        let device = device.clone();
        let (_memory, asked, untold) = (memory, None, false);
        Ok(Lane { ring, device, queue, base, _memory, pieces, asked, untold })
    }

    fn payload(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(PAYLOAD_AT)
    }

    /// Has the kernel use it. From now on it is this thread's.
    fn open(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        self.push(REGISTER, 0);
        self.ring.submit()?;
        // What the kernel refuses it refuses at once.
        match self.ring.completion().next() {
            Some(refused) if refused.result() < 0 => {
                Err(io::Error::from_raw_os_error(-refused.result()))
            }
            _ => Ok(()),
        }
    }

    fn push(&mut self, command: u32, commit: u64) {
        // The kernel's `struct fuse_uring_cmd_req`: flags, commit, queue.
        let mut order = [0; 80];
        order[8..16].copy_from_slice(&commit.to_ne_bytes());
        order[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let descriptor = types::Fd(self.device.as_raw_fd());
        let pieces = self.pieces.as_ptr() as u64;
        let mut entry = opcode::UringCmd80::new(descriptor, command)
            .cmd(order)
            .addr((command == REGISTER).then_some(pieces))
            .build();
        // The library has no name for this field of `struct io_uring_sqe`: `len`.
        const LENGTH_AT: usize = 24;
        // SAFETY: the entry is laid out as the kernel has it, with 32 bits there.
        unsafe { (&raw mut entry).byte_add(LENGTH_AT).cast::<u32>().write(PIECES) };
        // SAFETY: the memory that it names is the lane's, as is the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        debug_assert!(pushed.is_ok(), "one at a time is on its way");
    }

    /// Tells the kernel the last answer and waits for a request: the address of its message, and its
    /// length. None: the mount has ended.
    fn wait(&mut self) -> io::Result<Option<(NonNull<u8>, usize)>> {
        self.untold = false;
        let result = loop {
            if let Some(completion) = self.ring.completion().next() {
                break completion.result();
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        match -result {
            0 => Ok(Some(self.received())),
            libc::ENOTCONN | libc::ENODEV | libc::ECONNABORTED | libc::ECANCELED => Ok(None),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Puts the parts of a message one behind the other.
    fn received(&mut self) -> (NonNull<u8>, usize) {
        let base = self.base.as_ptr();
        // SAFETY: the page begins with the headers, which the kernel has just written; any bytes are
        // a value of them.
        let headers = unsafe { base.cast::<Headers>().read() };
        let length = u32::from_ne_bytes(*cut(&headers.header, 0)) as usize;
        let unique = u64::from_ne_bytes(*cut(&headers.header, 8));
        self.asked = Some(Asked { unique, commit: headers.commit });
        let payload = (headers.payload_bytes as usize).min(REQUEST_BYTES_MAX as usize);
        let most = headers.operation.len();
        let head = length.saturating_sub(REQUEST_HEADER_BYTES + payload).min(most);
        let message = self.payload().wrapping_sub(head + REQUEST_HEADER_BYTES);
        // SAFETY: this lies in the page, behind the headers, and so much was read of those.
        let message = unsafe {
            message.copy_from(headers.header.as_ptr(), REQUEST_HEADER_BYTES);
            message.add(REQUEST_HEADER_BYTES).copy_from(headers.operation.as_ptr(), head);
            NonNull::new_unchecked(message)
        };
        let free = std::ptr::slice_from_raw_parts_mut(self.payload(), REQUEST_BYTES_MAX as usize);
        FREE.set(if payload == 0 { NonNull::new(free) } else { None });
        (message, REQUEST_HEADER_BYTES + head + payload)
    }

    fn answer(&mut self, error: i32, parts: &[&[u8]]) {
        let Some(asked) = self.asked.take() else { return };
        let total = parts.iter().map(|part| part.len()).sum::<usize>();
        let (error, parts) = match total <= REQUEST_BYTES_MAX as usize {
            true => (error, parts),
            false => (libc::EIO, &[][..]),
        };
        let mut end = 0;
        for part in parts {
            let at = self.payload().wrapping_add(end);
            // What was put together there is there.
            if part.as_ptr() != at {
                // SAFETY: the payload is the lane's, and long enough.
                unsafe { at.copy_from(part.as_ptr(), part.len()) };
            }
            end += part.len();
        }
        let header = answer_header(asked.unique, error, ANSWER_HEADER_BYTES + end);
        let base = self.base.as_ptr();
        // SAFETY: the page begins with the headers, which the kernel does not use now.
        unsafe {
            base.copy_from(header.as_ptr(), header.len());
            let length = (end as u32).to_ne_bytes();
            base.add(offset_of!(Headers, payload_bytes)).copy_from(length.as_ptr(), length.len());
        }
        self.push(COMMIT_AND_FETCH, asked.commit);
        self.untold = true;
    }
}

fn cut<const N: usize>(bytes: &[u8; 128], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("a number near the beginning")
}

/// The lanes of a mount.
pub(crate) struct Lanes {
    /// Those that nobody has opened yet.
    closed: Vec<Lane>,
    /// Lanes of each processor at first.
    each: usize,
    huge: bool,
}

impl Lanes {
    /// Makes lanes for about so many threads; none if the kernel has no such thing, or forbids it.
    pub(crate) fn new(device: &Arc<Device>, threads: usize) -> io::Result<Lanes> {
        let count = processors(POSSIBLE)?.len();
        if count > PROCESSORS_MAX {
            return Err(io::Error::other(format!("{count} processors are too many")));
        }
        let allowed = allowed_processors()?;
        // SAFETY: there is room in the set for each of `PROCESSORS_MAX`.
        let is_allowed = |number| unsafe { libc::CPU_ISSET(number, &allowed) };
        if !processors(ONLINE)?.into_iter().all(is_allowed) {
            // Threads that stand in go there for a moment.
            return Err(io::Error::other("not all processors may be used"));
        }
        let each = threads.div_ceil(count).clamp(LANES_MIN, LANES_MAX);
        let huge = each * count <= HUGE_LANES_MAX;
        let all = (0..each).flat_map(|_| 0..count as u16);
        let closed = all.map(|queue| Lane::new(device, queue, huge)).collect::<io::Result<_>>()?;
        Ok(Lanes { closed, each, huge })
    }

    /// Opens them: each has a thread from now on. Until all are open the kernel asks for nothing.
    pub(crate) fn serve(self, shared: &Arc<Shared>, device: &Arc<Device>) -> io::Result<Arc<Crew>> {
        let processors = self.closed.len() / self.each;
        let crew = Arc::new(Crew {
            shared: shared.clone(),
            device: device.clone(),
            each: self.each,
            huge: self.huge,
            at_hand: (0..processors).map(|_| AtomicUsize::new(0)).collect(),
            waiting: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        for lane in self.closed {
            crew.start(lane)?;
        }
        Ok(crew)
    }
}

/// The threads that serve lanes.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    device: Arc<Device>,
    each: usize,
    huge: bool,
    /// For each processor: threads that wait for a request or carry one out, and not for a lock.
    at_hand: Vec<AtomicUsize>,
    /// Threads that wait for locks.
    waiting: AtomicUsize,
    over: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Crew {
    /// Starts a thread; when this returns the kernel knows its lane.
    fn start(self: &Arc<Self>, lane: Lane) -> io::Result<()> {
        let at_hand = &self.at_hand[usize::from(lane.queue)];
        // Before it has got anything to do.
        at_hand.fetch_add(1, Ordering::Relaxed);
        self.spawn(lane).inspect_err(|_| _ = at_hand.fetch_sub(1, Ordering::Relaxed))
    }

    fn spawn(self: &Arc<Self>, mut lane: Lane) -> io::Result<()> {
        let (crew, queue) = (self.clone(), lane.queue);
        let (said, heard) = mpsc::sync_channel(1);
        let run = move || {
            let opened = lane.open();
            let is_open = opened.is_ok();
            // Whoever started it waits to hear it.
            let _ = said.send(opened);
            if is_open && let Err(error) = crew.work(lane) {
                tracing::error!(%error, queue, "a lane of the mount is closed");
                crew.at_hand[usize::from(queue)].fetch_sub(1, Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new().name(format!("weir-lane-{queue}")).spawn(run)?;
        heard.recv().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// What a thread does until the mount ends.
    fn work(self: &Arc<Self>, lane: Lane) -> io::Result<()> {
        let queue = lane.queue;
        LANE.set(Some(lane));
        let wait = || LANE.with_borrow_mut(|lane| lane.as_mut().map_or(Ok(None), Lane::wait));
        let asked = || LANE.with_borrow(|lane| lane.as_ref().and_then(|lane| lane.asked));
        while let Some((message, length)) = wait()? {
            let Some(Asked { unique, .. }) = asked() else { continue };
            // SAFETY: so long is the message, which nobody touches before it is answered: what is
            // lent of the lane meanwhile is what the request did not need.
            let message = unsafe { std::slice::from_raw_parts(message.as_ptr(), length) };
            let file = kernel::header(message).map(|(header, _)| header.ino);
            let desk = Arc::new(Desk::default());
            let reply = Reply::by_lane(&desk, unique);
            // A reply that is given up on the way tells of it.
            let _ = catch_unwind(AssertUnwindSafe(|| match understand(message) {
                Ok((header, operation)) => self.shared.answer(&header, operation, reply),
                Err(_) => reply.error(Errno::EIO),
            }));
            FREE.set(None);
            if asked().is_some() {
                let (error, bytes) = self.wait(queue, unique, file, &desk);
                desk.answer(unique, error, &[&bytes]);
            }
        }
        LANE.set(None);
        Ok(())
    }

    /// Waits until somebody else has answered a request, which is about that file.
    fn wait(
        self: &Arc<Self>,
        queue: u16,
        unique: u64,
        file: Option<Ino>,
        desk: &Desk,
    ) -> (i32, Vec<u8>) {
        let at_hand = &self.at_hand[usize::from(queue)];
        let left = at_hand.fetch_sub(1, Ordering::Relaxed) - 1;
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        let somebody = || at_hand.load(Ordering::Relaxed) > 0;
        let heard = if left < self.each && waiting <= WAITING_MAX {
            let lane = Lane::new(&self.device, queue, self.huge);
            match lane.and_then(|lane| self.start(lane)) {
                Ok(()) => self.call(queue, file),
                Err(error) => {
                    tracing::warn!(%error, "nobody stands in for who waits for a lock");
                    somebody()
                }
            }
        } else {
            somebody()
        };
        if !heard {
            // Who has the lock may not be able to tell us that he lets it go.
            self.shared.interrupt(unique);
        }
        let mut answer = desk.lock();
        let answer = loop {
            if let Some(answer) = answer.take() {
                break answer;
            }
            if self.over.load(Ordering::Relaxed) {
                break (libc::EIO, Vec::new());
            }
            let waited = desk.left.wait_timeout(answer, OVER_PAUSE);
            answer = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        at_hand.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// Calls a processor's new lane to what was queued before it came; false: that may go on waiting. A program
    /// waits for a lock of that file.
    fn call(&self, queue: u16, file: Option<Ino>) -> bool {
        let Some(file) = file else { return false };
        // A directory has nothing that the kernel could send.
        let provoked = on_processor(queue, || self.device.provoke(file));
        provoked.inspect_err(|error| tracing::debug!(%error, queue, "no request is made")).is_ok()
    }

    /// Waits until all have gone home, after the mount has ended.
    pub(crate) fn join(&self) {
        self.over.store(true, Ordering::Relaxed);
        loop {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(thread) = threads.pop() else { return };
            drop(threads);
            // It has told of its panic itself, if it had one.
            let _ = thread.join();
        }
    }
}

/// Does something on one processor.
fn on_processor(number: u16, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let bytes = size_of::<libc::cpu_set_t>();
    let set = |processors: &libc::cpu_set_t| {
        // SAFETY: so many bytes, about this thread.
        let done = unsafe { libc::sched_setaffinity(0, bytes, processors) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    let allowed = allowed_processors()?;
    // SAFETY: all zeros is a set, of nothing; there is room in it for each of `PROCESSORS_MAX`.
    let one = unsafe {
        let mut one = std::mem::zeroed();
        libc::CPU_SET(usize::from(number), &mut one);
        one
    };
    set(&one)?;
    let result = work();
    set(&allowed)?;
    result
}

/// Those on which this thread may run.
fn allowed_processors() -> io::Result<libc::cpu_set_t> {
    // SAFETY: all zeros is a set, and the kernel has so much room to write another one.
    unsafe {
        let mut allowed = std::mem::zeroed();
        match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed) {
            ..0 => Err(io::Error::last_os_error()),
            _ => Ok(allowed),
        }
    }
}

/// The processors of a list that the kernel keeps.
fn processors(list: &str) -> io::Result<Vec<usize>> {
    let text = std::fs::read_to_string(list)?;
    numbers(text.trim()).ok_or_else(|| io::Error::other(format!("{list} has {text:?}")))
}

/// Numbers in a list such as `0-3,8`.
fn numbers(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        let length = last.checked_sub(first)?;
        // More would be none that a machine has.
        if length > 1 << 16 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Whether the kernel lets anybody have requests by io_uring. None: it knows nothing of that.
fn is_allowed() -> Option<bool> {
    Some(std::fs::read_to_string(ALLOWED).ok()?.starts_with('Y'))
}

/// How the kernel's requests would come to a mount that this process makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requests {
    /// By io_uring.
    ByIoUring,
    /// By `/dev/fuse`: this kernel has no other way.
    ByDevice,
    /// By `/dev/fuse`, for the other way is forbidden; by what.
    Forbidden(String),
}

impl Requests {
    /// Looks what this machine has.
    pub fn here() -> Requests {
        let Some(allowed) = is_allowed() else { return Requests::ByDevice };
        if let Err(error) = IoUring::<squeue::Entry128>::builder().build(1) {
            return Requests::Forbidden(format!("io_uring: {error}"));
        }
        match allowed || File::options().write(true).open(ALLOWED).is_ok() {
            true => Requests::ByIoUring,
            false => Requests::Forbidden(format!("{ALLOWED} is N")),
        }
    }
}

/// The kernel's leave to have requests by io_uring: given by whoever looks after the machine, or, for
/// this mount alone, by its superuser who mounts.
pub(crate) struct Leave(Option<File>);

impl Leave {
    /// None: there is none to be had.
    pub(crate) fn take() -> Option<Leave> {
        let writable = File::options().read(true).write(true).open(ALLOWED);
        let is_ours = writable.is_ok();
        let file = writable.or_else(|_| File::open(ALLOWED)).ok()?;
        // What another mount has set for itself it takes back before it lets go of this.
        let begun = Instant::now();
        while let Err(error) = file.try_lock() {
            if !matches!(error, TryLockError::WouldBlock) || begun.elapsed() > TURN_MAX {
                return None;
            }
            std::thread::sleep(TURN_PAUSE);
        }
        if is_allowed()? {
            return Some(Leave(None));
        }
        if !is_ours {
            return None;
        }
        file.write_all_at(b"Y", 0).ok()?;
        Some(Leave(Some(file)))
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        if let Some(file) = &self.0
            && let Err(error) = file.write_all_at(b"N", 0)
        {
            tracing::warn!(%error, "{ALLOWED} stays as it was set for this mount");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_listed() {
        assert_eq!(numbers("0"), Some(vec![0]));
        assert_eq!(numbers("0-1"), Some(vec![0, 1]));
        assert_eq!(numbers("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(numbers(""), None);
        assert_eq!(numbers("3-1"), None);
        assert_eq!(numbers("0-99999999999"), None);
    }

    #[test]
    fn headers_are_laid_out_as_the_kernel_has_them() {
        assert_eq!(size_of::<Headers>(), 288);
        assert_eq!(offset_of!(Headers, commit), 264);
        assert_eq!(offset_of!(Headers, payload_bytes), 272);
        assert_eq!(size_of::<squeue::Entry128>(), 128);
    }
}
