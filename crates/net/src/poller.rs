//! Waits for many links at once: a thin face over epoll, level-triggered but for counters, with a way to
//! wake it.

use crate::descriptors::moved;
use crate::spin::Spin;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Something can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token that the descriptor was added with.
    pub token: u64,
    /// There is something to receive (or the other end has closed).
    pub readable: bool,
    /// There is room to send.
    pub writable: bool,
}

/// The token of a wake-up.
const WAKE: u64 = u64::MAX;
/// Events taken in one wait.
const EVENTS_MAX: usize = 64;

/// An epoll instance and an eventfd to wake it. All methods may be called from any thread.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
    /// How long who waits looks again before it sleeps, and how that went.
    spin_max: Duration,
    spin: Spin,
}

fn owned(descriptor: libc::c_int) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else has it.
    Ok(moved(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

impl Poller {
    /// A poller that waits for nothing yet, and looks again for `spin_max` at most before it sleeps.
    pub fn new(spin_max: Duration) -> io::Result<Poller> {
        Poller::with(spin_max, Spin::default())
    }

    /// The same for a client, who waits for servers that may be on the same machine: it does not look
    /// again while more want to work there than can.
    pub fn of_client(spin_max: Duration) -> io::Result<Poller> {
        Poller::with(spin_max, Spin::of_client())
    }

    fn with(spin_max: Duration, spin: Spin) -> io::Result<Poller> {
        // SAFETY: plain system calls without pointers.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: as above.
        let wake = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let poller = Poller { epoll, wake, spin_max, spin };
        poller.control(libc::EPOLL_CTL_ADD, poller.wake.as_raw_fd(), WAKE, true, false)?;
        Ok(poller)
    }

    fn control(
        &self,
        operation: libc::c_int,
        descriptor: RawFd,
        token: u64,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        let mut events = 0;
        if read {
            events |= (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        }
        if write {
            events |= libc::EPOLLOUT as u32;
        }
        self.register(operation, descriptor, token, events)
    }

    fn register(
        &self,
        operation: libc::c_int,
        descriptor: RawFd,
        token: u64,
        events: u32,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: `event` is valid for the call; the kernel copies it.
        let result =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, descriptor, &mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits for a descriptor from now on; it is forgotten when it is closed.
    pub fn add(&self, descriptor: RawFd, token: u64, read: bool, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, descriptor, token, read, write)
    }

    /// Waits for an eventfd from now on that nobody reads: each time that it is counted up is told once.
    pub fn add_counter(&self, descriptor: RawFd, token: u64) -> io::Result<()> {
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        self.register(libc::EPOLL_CTL_ADD, descriptor, token, events)
    }

    /// Changes what is waited for.
    pub fn change(&self, descriptor: RawFd, token: u64, read: bool, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, descriptor, token, read, write)
    }

    /// Ends a wait that is under way, or the next one.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight valid bytes. A full counter means that it will wake anyway.
        unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Waits until something can be done, or somebody wakes it, or the time is over.
    pub fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        events.clear();
        let mut raw = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // Rounded up: waking a moment early would spin.
        let timeout_ms = timeout.map_or(-1, |timeout| {
            libc::c_int::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(libc::c_int::MAX)
        });
        let mut look = |timeout_ms| {
            let (epoll, room) = (self.epoll.as_raw_fd(), EVENTS_MAX as libc::c_int);
            // SAFETY: room for EVENTS_MAX events.
            unsafe { libc::epoll_wait(epoll, raw.as_mut_ptr(), room, timeout_ms) }
        };
        let spin = timeout.map_or(self.spin_max, |timeout| timeout.min(self.spin_max));
        let count = match self.spin.look(spin, || look(0)) {
            0 => look(timeout_ms),
            count => count,
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        for event in &raw[..count as usize] {
            let (token, bits) = (event.u64, event.events);
            if token == WAKE {
                let mut count = 0u64;
                // SAFETY: eight valid bytes.
                unsafe { libc::read(self.wake.as_raw_fd(), (&raw mut count).cast(), 8) };
                continue;
            }
            let trouble = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            events.push(Event {
                token,
                readable: bits & ((libc::EPOLLIN | libc::EPOLLRDHUP) as u32 | trouble) != 0,
                writable: bits & (libc::EPOLLOUT as u32 | trouble) != 0,
            });
        }
        Ok(())
    }
}
