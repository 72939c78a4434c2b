//! A disk through a few threads that each wait for one request, whichever lane it came by.

use super::{Backing, Driven, LANE, advance, event, rouse, vectors};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use weir_core::service::storage::disk::{
    BLOCK_BYTES, Disk, DiskDone, DiskError, DiskOp, DiskRequest,
};

/// Requests in the kernel at once.
const THREADS: usize = 16;

pub(super) struct ThreadDisk {
    blocks: u64,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    file: File,
    /// One for each lane.
    events: Vec<OwnedFd>,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests, and their lanes.
    queue: VecDeque<(usize, DiskRequest)>,
    /// What has ended in each lane.
    done: Vec<Vec<DiskDone>>,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            let (lane, request) = loop {
                if state.closed {
                    return;
                }
                match state.queue.pop_front() {
                    Some(request) => break request,
                    None => state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(state);
            let result = carry_out(&self.file, &request);
            self.lock().done[lane].push(DiskDone { tag: request.tag, result });
            rouse(&self.events[lane]);
        }
    }
}

fn carry_out(file: &File, request: &DiskRequest) -> Result<(), DiskError> {
    let descriptor = file.as_raw_fd();
    let mut vectors = vectors(request);
    let (mut moved, length) = (0, request.length());
    loop {
        let offset = (request.block * BLOCK_BYTES as u64 + moved as u64) as libc::off_t;
        let (pointer, count) = (vectors.as_ptr(), vectors.len() as libc::c_int);
        // SAFETY: a valid descriptor; the vectors name memory that the target keeps valid until the
        // request ends, and to itself while it is read into.
        let result = unsafe {
            match request.op {
                DiskOp::Read => libc::preadv(descriptor, pointer, count, offset),
                DiskOp::Write => libc::pwritev(descriptor, pointer, count, offset),
                DiskOp::Sync => libc::fdatasync(descriptor) as isize,
            }
        };
        if result < 0 {
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => continue,
                number => return Err(DiskError::Os(number.unwrap_or(libc::EIO))),
            }
        }
        moved += result as usize;
        if moved >= length {
            return Ok(());
        }
        if result == 0 {
            return Err(DiskError::Short(moved));
        }
        advance(&mut vectors, result as usize);
    }
}

impl ThreadDisk {
    pub(super) fn new(backing: Backing, lanes: usize) -> io::Result<ThreadDisk> {
        let Backing { file, blocks } = backing;
        let done = (0..lanes).map(|_| Vec::new()).collect();
        let shared = Arc::new(Shared {
            file,
            events: (0..lanes).map(|_| event()).collect::<io::Result<_>>()?,
            state: Mutex::new(State { done, ..State::default() }),
            more: Condvar::new(),
        });
        let disk = ThreadDisk { blocks, shared, threads: Mutex::default() };
        for index in 0..THREADS {
            let shared = disk.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("weir-disk-{index}"))
                .spawn(move || shared.work())?;
            disk.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(disk)
    }
}

impl Disk for ThreadDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn submit(&self, request: DiskRequest) {
        let mut state = self.shared.lock();
        if !state.closed {
            state.queue.push_back((LANE.get(), request));
            self.shared.more.notify_one();
        }
    }

    fn call_again(&self) -> bool {
        rouse(&self.shared.events[LANE.get()]);
        true
    }

    fn close(&self) {
        {
            let mut state = self.shared.lock();
            state.closed = true;
            state.queue.clear();
        }
        self.shared.more.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
        self.shared.lock().done.iter_mut().for_each(Vec::clear);
    }
}

impl Drop for ThreadDisk {
    fn drop(&mut self) {
        self.close();
    }
}

impl Driven for ThreadDisk {
    fn descriptor(&self, lane: usize) -> RawFd {
        self.shared.events[lane].as_raw_fd()
    }

    fn reap(&self, lane: usize) -> Vec<DiskDone> {
        std::mem::take(&mut self.shared.lock().done[lane])
    }
}
