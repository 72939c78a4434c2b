//! The threads that serve a mount.
//!
//! Few of them wait at the device at a time, and those that have just worked rather than those that
//! rested: their memory is still in the processor's caches. The others rest until all who waited
//! have found something to do.

use crate::buffer::Buffer;
use crate::device::Device;
use crate::filesystem::{BACKGROUND_MAX, REQUEST_BYTES_MAX};
use crate::kernel::{
    self, Header, MAJOR, MINOR_MIN, MINOR_URING, Operation, WRITE_HEAD_BYTES, init,
};
use crate::lanes::{Crew, Lanes, Leave};
use crate::reply::{Errno, Reply};
use crate::shared::Shared;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use weir_core::copying::PAGE_BYTES;

/// Threads that wait at the device. The second is there when the first has got something to do.
pub(crate) const WAITING_MAX: usize = 2;

/// Serves a mount until it ends. Where there are lanes, little comes by the device.
pub(crate) fn serve(
    shared: &Arc<Shared>,
    device: &Arc<Device>,
    threads: usize,
    crew: Option<Arc<Crew>>,
) -> io::Result<()> {
    let threads = if crew.is_some() { WAITING_MAX } else { threads };
    let gate = Arc::new(Gate::default());
    // This thread is there until the mount ends. Without it programs ask the kernel more often.
    let _counting = shared.lender.as_ref().and_then(|lender| lender.board.counts_closes().ok());
    let mut workers = Vec::new();
    for index in 0..threads {
        let worker = (shared.clone(), device.clone(), gate.clone());
        let run = move || {
            let (shared, device, gate) = worker;
            // Whatever ends this thread ends the rest of the others.
            let _over = Over(&gate);
            work(&shared, &device, &gate)
        };
        workers.push(std::thread::Builder::new().name(format!("weir-fuse-{index}")).spawn(run)?);
    }
    let mut over = Ok(());
    for worker in workers {
        let result = worker.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        over = over.and(result);
    }
    shared.locks.end(shared);
    if let Some(crew) = crew {
        crew.join();
    }
    shared.end();
    over
}

/// What a thread does.
fn work(shared: &Arc<Shared>, device: &Arc<Device>, gate: &Gate) -> io::Result<()> {
    let mut inbox = Inbox::new()?;
    while gate.enter() {
        let received = device.receive(inbox.room());
        gate.leave();
        let Some(length) = received? else { return Ok(()) };
        let message = &inbox.room()[..length];
        match understand(message) {
            Ok((header, operation)) => {
                shared.answer(&header, operation, Reply::new(device, header.unique));
            }
            Err(Some(unique)) => Reply::new(device, unique).error(Errno::EIO),
            Err(None) => tracing::warn!(length, "the kernel sent what is no request"),
        }
    }
    Ok(())
}

/// Takes a message apart; else gives the number of the request that is to fail, if it has one.
pub(crate) fn understand(message: &[u8]) -> Result<(Header, Operation<'_>), Option<u64>> {
    let (header, body) = kernel::header(message).ok_or(None)?;
    match kernel::parse(&header, body) {
        Some(operation) => Ok((header, operation)),
        None => {
            tracing::warn!(opcode = header.opcode, bytes = body.len(), "request not understood");
            Err(Some(header.unique))
        }
    }
}

/// Agrees with the kernel on how a mount is to work: its first request. `wishes` are of [`init`]. Gives the lanes by which the
/// others are to come, to be opened; `lanes`: for about so many threads, or none.
pub(crate) fn begin(
    wishes: u64,
    device: &Arc<Device>,
    lanes: Option<usize>,
) -> io::Result<Option<Lanes>> {
    let mut inbox = Inbox::new()?;
    loop {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the mount is gone already");
        let length = device.receive(inbox.room())?.ok_or_else(gone)?;
        let message = &inbox.room()[..length];
        let Ok((header, Operation::Init { major, minor, max_readahead, flags })) =
            understand(message)
        else {
            return Err(io::Error::other("the kernel's first request is not how it begins"));
        };
        let reply = Reply::new(device, header.unique);
        if major > MAJOR {
            // It asks again in our version.
            reply.version();
            continue;
        }
        if (major, minor) < (MAJOR, MINOR_MIN) {
            reply.error(Errno(libc::EPROTO));
            let cause = format!("the kernel's FUSE protocol {major}.{minor} is too old");
            return Err(io::Error::new(io::ErrorKind::Unsupported, cause));
        }
        // What this kernel does not have, we do without.
        let mut agreed = (wishes | init::EXT) & flags;
        // The kernel looks at its leave when it has the answer: until then it is kept.
        let threads = lanes.filter(|_| minor >= MINOR_URING);
        let leave = threads.and_then(|threads| Some((threads, Leave::take()?)));
        let lanes = leave.as_ref().and_then(|(threads, _)| {
            Lanes::new(device, *threads)
                .inspect_err(|error| tracing::debug!(%error, "no requests by io_uring"))
                .ok()
        });
        if lanes.is_some() {
            agreed |= init::OVER_IO_URING;
        }
        let readahead = max_readahead.min(REQUEST_BYTES_MAX);
        reply.agreed([readahead, REQUEST_BYTES_MAX], BACKGROUND_MAX, agreed);
        return Ok(lanes);
    }
}

/// Where requests are received: so that a write's data begins at a page.
pub(crate) struct Inbox(Buffer);

impl Inbox {
    pub(crate) fn new() -> io::Result<Inbox> {
        let length = PAGE_BYTES + REQUEST_BYTES_MAX as usize;
        Buffer::new(PAGE_BYTES, length).map(Inbox)
    }

    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.0[PAGE_BYTES - WRITE_HEAD_BYTES..]
    }
}

/// See the module.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: usize,
    /// Those that rest: the last one was at work last.
    resting: Vec<(Thread, Arc<AtomicBool>)>,
    over: bool,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing below panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rests until there is room at the device; false if the mount has ended.
    fn enter(&self) -> bool {
        let mut state = self.lock();
        if !state.over && state.waiting >= WAITING_MAX {
            // Whoever calls counts this thread as waiting already.
            let called = Arc::new(AtomicBool::new(false));
            state.resting.push((std::thread::current(), called.clone()));
            drop(state);
            while !called.load(Ordering::Acquire) {
                std::thread::park();
            }
            return !self.lock().over;
        }
        state.waiting += 1;
        !state.over
    }

    /// Something has come.
    fn leave(&self) {
        let mut state = self.lock();
        state.waiting -= 1;
        if state.waiting == 0 {
            state.call();
        }
    }
}

impl State {
    fn call(&mut self) {
        if let Some((thread, called)) = self.resting.pop() {
            self.waiting += 1;
            called.store(true, Ordering::Release);
            thread.unpark();
        }
    }
}

/// Has all who rest go home.
struct Over<'a>(&'a Gate);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The mount goes on without this one.
            return;
        }
        let mut state = self.0.lock();
        state.over = true;
        while !state.resting.is_empty() {
            state.call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn few_wait_at_a_time_and_all_go_home() {
        let gate = Arc::new(Gate::default());
        let (said, heard) = mpsc::channel();
        let threads: Vec<_> = (0..5)
            .map(|_| {
                let (gate, said) = (gate.clone(), said.clone());
                std::thread::spawn(move || {
                    said.send(gate.enter()).unwrap();
                })
            })
            .collect();
        let next = || heard.recv_timeout(Duration::from_secs(10));
        assert_eq!((next(), next()), (Ok(true), Ok(true)));
        assert!(heard.recv_timeout(Duration::from_millis(50)).is_err());
        gate.leave();
        assert!(heard.recv_timeout(Duration::from_millis(50)).is_err());
        gate.leave();
        assert_eq!(next(), Ok(true));
        drop(Over(&gate));
        assert_eq!((next(), next()), (Ok(false), Ok(false)));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
