//! A disk through io_uring, with a ring for each event loop: requests go in under a short lock, from any
//! thread; the kernel counts up an eventfd when some have ended.

use super::{Backing, CORKED, Driven, LANE, advance, event, rouse, vectors};
use io_uring::{IoUring, opcode, types};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_core::service::storage::disk::{
    BLOCK_BYTES, Disk, DiskDone, DiskError, DiskOp, DiskRequest,
};

/// Requests in the kernel at once, of each lane; more wait here.
const DEPTH_MAX: u32 = 256;

/// Requests of so many bytes are not held back for others to go along.
const LARGE_BYTES: usize = 128 << 10;

/// A ring and what is under way in it.
pub(super) struct Lane {
    event: OwnedFd,
    state: Mutex<State>,
    /// Something was submitted that the kernel has not been handed.
    corked: AtomicBool,
}

pub(super) struct RingDisk {
    backing: Backing,
    /// At least one. Where there are fewer than event loops, some share one.
    lanes: Vec<Lane>,
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

impl Lane {
    /// Fails where io_uring is forbidden.
    pub(super) fn new() -> io::Result<Lane> {
        // Completions wait until this process enters the kernel anyway, instead of interrupting it;
        // kernels before 5.19 cannot.
        let ring = match IoUring::builder().setup_coop_taskrun().build(DEPTH_MAX) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(DEPTH_MAX)?,
            ring => ring?,
        };
        let event = event()?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let state = State {
            ring,
            under_way: BTreeMap::new(),
            queue: VecDeque::new(),
            done: Vec::new(),
            next: 0,
            closed: false,
        };
        Ok(Lane { event, state: Mutex::new(state), corked: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Hands the kernel as much of the queue as it takes.
    fn push(&mut self, backing: &Backing) {
        let descriptor = types::Fd(backing.file.as_raw_fd());
        while self.under_way.len() < DEPTH_MAX as usize
            && let Some(transfer) = self.queue.pop_front()
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
            let number = self.next;
            self.next += 1;
            let entry = entry.user_data(number);
            // SAFETY: the vectors are kept in `under_way` and the buffers by the target until the
            // request ends; the descriptor lives as long as the disk, whose `close` empties this first.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            // The queue is as long as requests may be under way, and submitted each time.
            pushed.expect("room in the submission queue");
            self.under_way.insert(number, transfer);
        }
        // What the kernel does not take now (EAGAIN, EINTR) it takes with the next call, which comes
        // at the latest with the next completion in this lane, or with the loop's next tick.
        if !self.ring.submission().is_empty() {
            let _ = self.ring.submit();
        }
    }

    fn collect(&mut self) {
        let mut ended = Vec::new();
        for completion in self.ring.completion() {
            ended.push((completion.user_data(), completion.result()));
        }
        for (number, result) in ended {
            let Some(mut transfer) = self.under_way.remove(&number) else { continue };
            let length = transfer.request.length();
            let failure = match result {
                _ if -result == libc::EINTR || -result == libc::EAGAIN => None,
                0.. => {
                    transfer.moved += result as usize;
                    if transfer.moved >= length {
                        let tag = transfer.request.tag;
                        self.done.push(DiskDone { tag, result: Ok(()) });
                        continue;
                    }
                    advance(&mut transfer.vectors, result as usize);
                    (result == 0).then_some(DiskError::Short(transfer.moved))
                }
                _ => Some(DiskError::Os(-result)),
            };
            match failure {
                None if !self.closed => self.queue.push_front(transfer),
                failure => {
                    let result = Err(failure.unwrap_or(DiskError::Os(libc::ECANCELED)));
                    self.done.push(DiskDone { tag: transfer.request.tag, result });
                }
            }
        }
    }
}

impl RingDisk {
    pub(super) fn new(backing: Backing, lanes: Vec<Lane>) -> RingDisk {
        RingDisk { backing, lanes }
    }

    fn lane(&self, index: usize) -> &Lane {
        &self.lanes[index % self.lanes.len()]
    }

    /// This thread's lane.
    fn here(&self) -> &Lane {
        self.lane(LANE.get())
    }
}

impl Disk for RingDisk {
    fn blocks(&self) -> u64 {
        self.backing.blocks
    }

    fn submit(&self, request: DiskRequest) {
        let lane = self.here();
        let mut state = lane.lock();
        if state.closed {
            return;
        }
        let (vectors, length) = (vectors(&request), request.length());
        state.queue.push_back(Transfer { request, vectors, moved: 0 });
        match CORKED.get() && length < LARGE_BYTES {
            true => lane.corked.store(true, Ordering::Relaxed),
            false => state.push(&self.backing),
        }
    }

    fn call_again(&self) -> bool {
        rouse(&self.here().event);
        true
    }

    fn close(&self) {
        for lane in &self.lanes {
            let mut state = lane.lock();
            state.closed = true;
            state.queue.clear();
            while !state.under_way.is_empty() {
                // The kernel ends every request, if need be with an error.
                let _ = state.ring.submit_and_wait(1);
                state.collect();
            }
            state.done.clear();
        }
    }
}

impl Drop for RingDisk {
    fn drop(&mut self) {
        self.close();
    }
}

impl Driven for RingDisk {
    fn descriptor(&self, lane: usize) -> RawFd {
        self.lane(lane).event.as_raw_fd()
    }

    fn flush(&self) {
        let lane = self.here();
        // Whoever corked it is this thread, or flushes it himself.
        if lane.corked.load(Ordering::Relaxed) {
            let mut state = lane.lock();
            lane.corked.store(false, Ordering::Relaxed);
            state.push(&self.backing);
        }
    }

    fn reap(&self, lane: usize) -> Vec<DiskDone> {
        let mut state = self.lane(lane).lock();
        state.collect();
        state.push(&self.backing);
        std::mem::take(&mut state.done)
    }
}
