//! A disk through io_uring: requests go in under a short lock, from any thread; the kernel counts up
//! an eventfd when some have ended.

use super::{Backing, CORKED, Driven, advance, drain, event, rouse, vectors};
use io_uring::{IoUring, opcode, types};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_core::service::storage::disk::{
    BLOCK_BYTES, Disk, DiskDone, DiskError, DiskOp, DiskRequest,
};

/// Requests in the kernel at once; more wait here.
const DEPTH_MAX: u32 = 256;

/// Requests of so many bytes are not held back for others to go along.
const LARGE_BYTES: usize = 128 << 10;

pub(super) struct Ring {
    ring: IoUring,
    event: OwnedFd,
}

impl Ring {
    /// Fails where io_uring is forbidden.
    pub(super) fn new() -> io::Result<Ring> {
        // Completions wait until this process enters the kernel anyway, instead of interrupting it;
        // kernels before 5.19 cannot.
        let ring = match IoUring::builder().setup_coop_taskrun().build(DEPTH_MAX) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(DEPTH_MAX)?,
            ring => ring?,
        };
        let event = event()?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(Ring { ring, event })
    }
}

pub(super) struct RingDisk {
    backing: Backing,
    event: OwnedFd,
    state: Mutex<State>,
    /// Something was submitted that the kernel has not been handed.
    corked: AtomicBool,
}

struct State {
    ring: IoUring,
    under_way: BTreeMap<u64, Transfer>,
    queue: VecDeque<Transfer>,
    done: Vec<DiskDone>,
    next: u64,
    closed: bool,
}

struct Transfer {
    request: DiskRequest,
    /// What is left of the buffers. The kernel may look at these until the request ends.
    vectors: Vec<libc::iovec>,
    moved: usize,
}

// SAFETY: the pointers name memory that the target keeps valid until the request ends, and are used
// under the lock and by the kernel only.
unsafe impl Send for Transfer {}

impl RingDisk {
    pub(super) fn new(backing: Backing, ring: Ring) -> RingDisk {
        let Ring { ring, event } = ring;
        let state = State {
            ring,
            under_way: BTreeMap::new(),
            queue: VecDeque::new(),
            done: Vec::new(),
            next: 0,
            closed: false,
        };
        RingDisk { backing, event, state: Mutex::new(state), corked: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the kernel as much of the queue as it takes.
    fn push(&self, state: &mut State) {
        let descriptor = types::Fd(self.backing.file.as_raw_fd());
        while state.under_way.len() < DEPTH_MAX as usize
            && let Some(transfer) = state.queue.pop_front()
        {
            let request = &transfer.request;
            let offset = request.block * BLOCK_BYTES as u64 + transfer.moved as u64;
            let (vectors, count) = (transfer.vectors.as_ptr(), transfer.vectors.len() as u32);
            let entry = match (request.op, &transfer.vectors[..]) {
                // The kernel need not fetch a list of one.
                (DiskOp::Read, [one]) => {
                    let (buffer, length) = (one.iov_base.cast(), one.iov_len as u32);
                    opcode::Read::new(descriptor, buffer, length).offset(offset).build()
                }
                (DiskOp::Read, _) => {
                    opcode::Readv::new(descriptor, vectors, count).offset(offset).build()
                }
                (DiskOp::Write, _) => {
                    opcode::Writev::new(descriptor, vectors, count).offset(offset).build()
                }
                (DiskOp::Sync, _) => {
                    opcode::Fsync::new(descriptor).flags(types::FsyncFlags::DATASYNC).build()
                }
            };
            let number = state.next;
            state.next += 1;
            let entry = entry.user_data(number);
            // SAFETY: the vectors are kept in `under_way` and the buffers by the target until the
            // request ends; the descriptor lives as long as `self`, which `close` empties first.
            let pushed = unsafe { state.ring.submission().push(&entry) };
            // The queue is as long as requests may be under way, and submitted each time.
            pushed.expect("room in the submission queue");
            state.under_way.insert(number, transfer);
        }
        // What the kernel does not take now (EAGAIN, EINTR) it takes with the next call, which comes
        // at the latest with the next completion or tick.
        if !state.ring.submission().is_empty() {
            let _ = state.ring.submit();
        }
    }

    fn collect(&self, state: &mut State) {
        let mut ended = Vec::new();
        for completion in state.ring.completion() {
            ended.push((completion.user_data(), completion.result()));
        }
        for (number, result) in ended {
            let Some(mut transfer) = state.under_way.remove(&number) else { continue };
            let length = transfer.request.length();
            let failure = match result {
                _ if -result == libc::EINTR || -result == libc::EAGAIN => None,
                0.. => {
                    transfer.moved += result as usize;
                    if transfer.moved >= length {
                        let tag = transfer.request.tag;
                        state.done.push(DiskDone { tag, result: Ok(()) });
                        continue;
                    }
                    advance(&mut transfer.vectors, result as usize);
                    (result == 0).then_some(DiskError::Short(transfer.moved))
                }
                _ => Some(DiskError::Os(-result)),
            };
            match failure {
                None if !state.closed => state.queue.push_front(transfer),
                failure => {
                    let result = Err(failure.unwrap_or(DiskError::Os(libc::ECANCELED)));
                    state.done.push(DiskDone { tag: transfer.request.tag, result });
                }
            }
        }
    }
}

impl Disk for RingDisk {
    fn blocks(&self) -> u64 {
        self.backing.blocks
    }

    fn submit(&self, request: DiskRequest) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let (vectors, length) = (vectors(&request), request.length());
        state.queue.push_back(Transfer { request, vectors, moved: 0 });
        match CORKED.get() && length < LARGE_BYTES {
            true => self.corked.store(true, Ordering::Relaxed),
            false => self.push(&mut state),
        }
    }

    fn call_again(&self) -> bool {
        rouse(&self.event);
        true
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        while !state.under_way.is_empty() {
            // The kernel ends every request, if need be with an error.
            let _ = state.ring.submit_and_wait(1);
            self.collect(&mut state);
        }
        state.done.clear();
    }
}

impl Drop for RingDisk {
    fn drop(&mut self) {
        self.close();
    }
}

impl Driven for RingDisk {
    fn descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    fn flush(&self) {
        // Whoever corked it is this thread, or flushes it himself.
        if self.corked.load(Ordering::Relaxed) {
            let mut state = self.lock();
            self.corked.store(false, Ordering::Relaxed);
            self.push(&mut state);
        }
    }

    fn reap(&self) -> Vec<DiskDone> {
        drain(&self.event);
        let mut state = self.lock();
        self.collect(&mut state);
        self.push(&mut state);
        std::mem::take(&mut state.done)
    }
}
