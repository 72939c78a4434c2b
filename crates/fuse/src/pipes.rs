//! A large read's way from the network to the kernel without a copy in between: what the socket has
//! received is moved into a pipe, as pages, and from there to the device, which copies it to the
//! program. Whatever does not go this way goes through memory.

use crate::device::{Device, answer_header, untold};
use crate::kernel::ANSWER_HEADER_BYTES;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_core::slice::Basin;
use weir_net::pipe::{Pipe, splice};

/// Room asked for in a pipe: bytes.
const PIPE_BYTES: usize = 1 << 20;
/// Payloads that have pipes at a time. An ordinary user may have 64 MiB of room in all of his pipes;
/// beyond that new ones, those of his shell too, become tiny. This is half of it.
const PAYLOADS_MAX: usize = 16;
/// Read at a time when a pipe is emptied.
const CHUNK_BYTES: usize = 64 * 1024;

/// Puts all of `bytes` into a pipe, or fails.
fn put(pipe: &Pipe, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: so many bytes are there to read.
    let count =
        unsafe { libc::write(pipe.entrance.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    match usize::try_from(count) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WouldBlock.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

fn read(from: RawFd, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: so many bytes may be written.
    let count = unsafe { libc::read(from, into.as_mut_ptr().cast(), into.len()) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Where the payload of one read goes. Used again for the next one.
#[derive(Debug)]
pub(crate) struct Payload(Mutex<State>);

static PAYLOADS: AtomicUsize = AtomicUsize::new(0);

/// One of [`PAYLOADS_MAX`].
#[derive(Debug)]
struct Share;

impl Share {
    fn new() -> io::Result<Share> {
        // Counted first, so that it is given back if there are too many.
        let share = Share;
        match PAYLOADS.fetch_add(1, Ordering::Relaxed) < PAYLOADS_MAX {
            true => Ok(share),
            false => Err(io::Error::other("enough pipes are in use")),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        PAYLOADS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct State {
    pipe: Pipe,
    /// For the header and, behind it, the payload.
    answer: Pipe,
    /// Bytes in `pipe`.
    held: usize,
    /// Whether the payload goes to memory, because it did not fit into the pipe.
    spilled: bool,
    /// Of what spilled; kept for the next time.
    memory: Vec<u8>,
    /// Payloads until the pipe is tried again, after one that spilled: where packets are small,
    /// pages are many and hold little.
    detour: u32,
    _share: Share,
}

/// Payloads that go straight to memory after one that did not fit.
const DETOUR_COUNT: u32 = 64;

impl Payload {
    pub(crate) fn new() -> io::Result<Payload> {
        let _share = Share::new()?;
        let (pipe, answer) = (Pipe::new(PIPE_BYTES)?, Pipe::new(PIPE_BYTES)?);
        let (held, spilled, memory, detour) = (0, false, Vec::new(), 0);
        Ok(Payload(Mutex::new(State { pipe, answer, held, spilled, memory, detour, _share })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the next payload had better go another way.
    pub(crate) fn is_detour(&self) -> bool {
        let mut state = self.lock();
        state.detour = state.detour.saturating_sub(1);
        state.detour > 0
    }

    /// Answers a request with the payload and as many zeros behind it as make `length`.
    pub(crate) fn answer(&self, device: &Device, unique: u64, length: usize) {
        let mut state = self.lock();
        if let Err(error) = state.answer(device, unique, length) {
            untold(unique, &error);
        }
    }
}

impl State {
    fn answer(&mut self, device: &Device, unique: u64, length: usize) -> io::Result<()> {
        if !self.spilled && self.held != length {
            self.spill()?;
        }
        let whole = ANSWER_HEADER_BYTES + length;
        if !self.spilled {
            match self.gather(unique, whole) {
                Ok(()) => {
                    let sent =
                        splice(self.answer.exit.as_raw_fd(), device.descriptor(), whole, false);
                    if sent.is_err() {
                        // What is left in there belongs to nobody.
                        self.answer = Pipe::new(PIPE_BYTES)?;
                    }
                    return sent.map(drop);
                }
                Err(error) => {
                    tracing::debug!(%error, "an answer goes through memory");
                    self.regain()?;
                }
            }
        }
        self.memory.resize(length, 0);
        device.answer(unique, 0, &[&self.memory]);
        Ok(())
    }

    /// Puts header and payload into one pipe.
    fn gather(&mut self, unique: u64, whole: usize) -> io::Result<()> {
        put(&self.answer, &answer_header(unique, 0, whole))?;
        while self.held > 0 {
            let (from, to) = (self.pipe.exit.as_raw_fd(), self.answer.entrance.as_raw_fd());
            self.held -= splice(from, to, self.held, false)?;
        }
        Ok(())
    }

    /// After [`State::gather`] failed: what it gathered goes to memory with the rest.
    fn regain(&mut self) -> io::Result<()> {
        self.memory.clear();
        empty(&self.answer, &mut self.memory)?;
        self.memory.drain(..ANSWER_HEADER_BYTES.min(self.memory.len()));
        empty(&self.pipe, &mut self.memory)?;
        (self.held, self.spilled) = (0, true);
        Ok(())
    }

    /// From now on this payload goes to memory.
    fn spill(&mut self) -> io::Result<()> {
        self.memory.clear();
        empty(&self.pipe, &mut self.memory)?;
        (self.held, self.spilled) = (0, true);
        Ok(())
    }
}

/// Takes all that is in a pipe.
fn empty(pipe: &Pipe, into: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let start = into.len();
        into.resize(start + CHUNK_BYTES, 0);
        let got = read(pipe.exit.as_raw_fd(), &mut into[start..]);
        into.truncate(start + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Basin for Payload {
    fn begin(&self) -> io::Result<()> {
        let mut state = self.lock();
        if state.held > 0 {
            // Of an answer whose connection broke.
            state.spill()?;
        }
        state.memory.clear();
        state.spilled = false;
        Ok(())
    }

    fn pour(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        if !state.spilled {
            match put(&state.pipe, bytes) {
                Ok(()) => {
                    state.held += bytes.len();
                    return Ok(());
                }
                Err(error) => {
                    // Some of it may be in there.
                    let held = state.held;
                    tracing::debug!(%error, "a payload goes through memory");
                    state.spill()?;
                    state.memory.truncate(held);
                    state.detour = DETOUR_COUNT;
                }
            }
        }
        state.memory.extend_from_slice(bytes);
        Ok(())
    }

    fn fill(&self, descriptor: i32, length: usize) -> io::Result<usize> {
        let mut state = self.lock();
        if !state.spilled {
            match splice(descriptor, state.pipe.entrance.as_raw_fd(), length, false) {
                Ok(count) => {
                    state.held += count;
                    return Ok(count);
                }
                Err(error) => {
                    // There is nothing to take, or no room for it, or it does not go this way.
                    let mut byte = 0u8;
                    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
                    // SAFETY: room for one byte.
                    match unsafe { libc::recv(descriptor, (&raw mut byte).cast(), 1, flags) } {
                        0 => return Ok(0),
                        1 => {}
                        _ => return Err(error),
                    }
                    state.spill()?;
                    state.detour = DETOUR_COUNT;
                }
            }
        }
        let start = state.memory.len();
        state.memory.resize(start + length, 0);
        let got = read(descriptor, &mut state.memory[start..]);
        state.memory.truncate(start + *got.as_ref().unwrap_or(&0));
        got
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    /// The tests count what all of them have: one at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i.wrapping_mul(31) ^ (i >> 9)) as u8).collect()
    }

    /// Has everything come into the payload that `write` sends.
    fn receive(
        payload: &Payload,
        mut from: impl Write + Send + 'static,
        into: &impl AsRawFd,
        length: usize,
        write: impl FnOnce(&mut dyn Write) + Send + 'static,
    ) {
        let writer = std::thread::spawn(move || write(&mut from));
        let mut left = length;
        while left > 0 {
            match payload.fill(into.as_raw_fd(), left) {
                Ok(count) => {
                    assert!(count > 0, "ended {left} bytes early");
                    left -= count;
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
        }
        writer.join().unwrap();
    }

    /// What a device would be told.
    fn told(payload: &Payload, length: usize) -> Vec<u8> {
        let (device, mut kernel) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            kernel.read_to_end(&mut bytes).map(|_| bytes)
        });
        payload.answer(&Device::new(device.into()), 77, length);
        let bytes = reader.join().unwrap().unwrap();
        assert_eq!(bytes[..16], answer_header(77, 0, 16 + length));
        bytes[16..].to_vec()
    }

    fn tcp() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let right = listener.accept().unwrap().0;
        right.set_nonblocking(true).unwrap();
        (left, right)
    }

    #[test]
    fn a_payload_comes_through_with_what_preceded_it_and_zeros_behind() {
        let _alone = alone();
        let payload = Payload::new().unwrap();
        for (before, after, zeros) in [(0, 1 << 20, 0), (4000, 300_001, 0), (17, 100_000, 5000)] {
            let (left, right) = tcp();
            let bytes = pattern(before + after);
            payload.begin().unwrap();
            payload.pour(&bytes[..before]).unwrap();
            let rest = bytes[before..].to_vec();
            receive(&payload, left, &right, after, move |to| to.write_all(&rest).unwrap());
            let got = told(&payload, before + after + zeros);
            assert!(got[..before + after] == bytes);
            assert!(got[before + after..] == vec![0; zeros]);
        }
        assert!(!payload.is_detour());
    }

    #[test]
    fn what_does_not_fit_into_a_pipe_goes_through_memory() {
        let _alone = alone();
        let payload = Payload::new().unwrap();
        let (left, right) = UnixStream::pair().unwrap();
        right.set_nonblocking(true).unwrap();
        let bytes = pattern(64_000);
        payload.begin().unwrap();
        let sent = bytes.clone();
        // Packets of 100 bytes: more than a pipe has places.
        receive(&payload, left, &right, bytes.len(), move |to| {
            sent.chunks(100).for_each(|chunk| to.write_all(chunk).unwrap());
        });
        assert!(told(&payload, bytes.len()) == bytes);
        assert!(payload.is_detour());
        // And the next one comes through whole.
        let (left, right) = tcp();
        payload.begin().unwrap();
        let sent = bytes.clone();
        receive(&payload, left, &right, bytes.len(), move |to| to.write_all(&sent).unwrap());
        assert!(told(&payload, bytes.len()) == bytes);
    }

    #[test]
    fn pipes_are_few() {
        let _alone = alone();
        let payloads: Vec<_> = (0..PAYLOADS_MAX + 1).map(|_| Payload::new()).collect();
        assert!(payloads[PAYLOADS_MAX].is_err());
        drop(payloads);
        assert!(Payload::new().is_ok());
    }

    #[test]
    fn a_payload_that_is_broken_off_leaves_nothing_behind() {
        let _alone = alone();
        let payload = Payload::new().unwrap();
        let (left, right) = tcp();
        payload.begin().unwrap();
        payload.pour(b"half a head").unwrap();
        receive(&payload, left, &right, 5000, |to| to.write_all(&[1; 5000]).unwrap());
        // The writer has closed its end.
        assert_eq!(payload.fill(right.as_raw_fd(), 1).unwrap(), 0);
        payload.begin().unwrap();
        payload.pour(b"whole").unwrap();
        assert_eq!(told(&payload, 5), b"whole");
        payload.begin().unwrap();
        assert_eq!(told(&payload, 3), [0; 3]);
    }
}
