//! Waits for many links at once: a thin face over epoll, level-triggered but for counters, with a way to
//! wake it, and a look at memory for links that have some.

use crate::descriptors::moved;
use crate::shm::Channel;
use crate::spin::Spin;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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

/// What is waited on.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub(crate) descriptor: RawFd,
    /// Where there is one, it tells what can be done, and the descriptor only when to look.
    pub(crate) channel: Option<&'a Arc<Channel>>,
}

impl From<RawFd> for Source<'_> {
    fn from(descriptor: RawFd) -> Self {
        Source { descriptor, channel: None }
    }
}

/// A channel that is waited on.
#[derive(Debug)]
struct Watched {
    token: u64,
    /// Gone with its link.
    channel: Weak<Channel>,
    read: bool,
    write: bool,
    /// It is looked at. The others ring when there is something.
    looked_at: bool,
}

/// Of so many looks at channels that found something the descriptors are looked at in one, too.
const LOOKS: usize = 8;
/// How often a look is at channels before others may have the processor: for a microsecond or two.
const GLANCES: usize = 50;

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
    watched: Mutex<Vec<Watched>>,
    /// How many they are, or have been since one was added last.
    channels: AtomicUsize,
    /// Who waits has gone to sleep, or is about to.
    sleeps: AtomicBool,
    looks: AtomicUsize,
}

impl Watched {
    fn tell(&self, (readable, writable): (bool, bool), events: &mut Vec<Event>) {
        if readable || writable {
            events.push(Event { token: self.token, readable, writable });
        }
    }
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
        let poller = Poller {
            epoll,
            wake,
            spin_max,
            spin,
            watched: Mutex::default(),
            channels: AtomicUsize::new(0),
            sleeps: AtomicBool::new(false),
            looks: AtomicUsize::new(0),
        };
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

    /// Waits for a source from now on; it is forgotten when it is closed.
    pub fn add<'a>(
        &self,
        source: impl Into<Source<'a>>,
        token: u64,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        let Source { descriptor, channel } = source.into();
        let Some(channel) = channel else {
            return self.control(libc::EPOLL_CTL_ADD, descriptor, token, read, write);
        };
        self.control(libc::EPOLL_CTL_ADD, descriptor, token, true, false)?;
        let mut watched = self.watched();
        // One that was waited on as this before may still be held for a moment by who looks.
        watched.retain(|other| other.token != token && other.channel.strong_count() > 0);
        let channel = Arc::downgrade(channel);
        watched.push(Watched { token, channel, read, write, looked_at: true });
        self.channels.store(watched.len(), Ordering::Release);
        drop(watched);
        self.look_anew();
        Ok(())
    }

    /// Waits for an eventfd from now on that nobody reads: each time that it is counted up is told once.
    pub fn add_counter(&self, descriptor: RawFd, token: u64) -> io::Result<()> {
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        self.register(libc::EPOLL_CTL_ADD, descriptor, token, events)
    }

    /// Changes what is waited for.
    pub fn change<'a>(
        &self,
        source: impl Into<Source<'a>>,
        token: u64,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        let Source { descriptor, channel } = source.into();
        if channel.is_none() {
            return self.control(libc::EPOLL_CTL_MOD, descriptor, token, read, write);
        }
        for watched in self.watched().iter_mut().filter(|watched| watched.token == token) {
            (watched.read, watched.write, watched.looked_at) = (read, write, true);
        }
        self.look_anew();
        Ok(())
    }

    fn watched(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who sleeps went to sleep over other channels than there are now.
    fn look_anew(&self) {
        if self.sleeps.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Looks for a moment at channels of which something is expected; gives how many have something.
    fn look(&self, events: &mut Vec<Event>) -> i32 {
        if self.channels.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut all = self.watched();
        for watched in all.iter_mut().filter(|watched| !watched.looked_at) {
            if let Some(channel) = watched.channel.upgrade()
                && channel.was_stirred()
            {
                watched.looked_at = true;
                channel.look();
            }
        }
        let looked_at = || all.iter().filter(|watched| watched.looked_at);
        if looked_at().next().is_none() {
            return 0;
        }
        for _ in 0..GLANCES {
            for watched in looked_at() {
                if let Some(channel) = watched.channel.upgrade() {
                    watched.tell(channel.ready(watched.read, watched.write), events);
                }
            }
            if !events.is_empty() {
                break;
            }
            std::hint::spin_loop();
        }
        events.len() as i32
    }

    /// Has channels ring from now on; gives how many have something already.
    fn sleep(&self, events: &mut Vec<Event>) -> i32 {
        self.sleeps.store(true, Ordering::SeqCst);
        if self.channels.load(Ordering::Acquire) == 0 {
            return 0;
        }
        for watched in self.watched().iter_mut().filter(|watched| watched.looked_at) {
            let Some(channel) = watched.channel.upgrade() else { continue };
            watched.looked_at = false;
            watched.tell(channel.sleep(watched.read, watched.write), events);
        }
        events.len() as i32
    }

    /// A descriptor has something: if it is a channel's, hears what, and gives what can be done.
    fn hear(&self, token: u64, trouble: bool) -> Option<Event> {
        let mut watched = self.watched();
        let watched = watched.iter_mut().find(|watched| watched.token == token)?;
        let channel = watched.channel.upgrade()?;
        channel.hear();
        watched.looked_at = true;
        channel.look();
        let (readable, writable) = channel.ready(watched.read, watched.write);
        let over = trouble || channel.is_closed();
        Some(Event { token, readable: readable || over, writable: writable || over })
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
        let mut descriptors = |timeout_ms| {
            let (epoll, room) = (self.epoll.as_raw_fd(), EVENTS_MAX as libc::c_int);
            // SAFETY: room for EVENTS_MAX events.
            unsafe { libc::epoll_wait(epoll, raw.as_mut_ptr(), room, timeout_ms) }
        };
        let mut count = 0;
        let mut look = || {
            let found = self.look(events);
            if found > 0 && !self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS) {
                return found;
            }
            count = descriptors(0);
            found + count
        };
        let spin = timeout.map_or(self.spin_max, |timeout| timeout.min(self.spin_max));
        if look() == 0 && timeout_ms != 0 && self.spin.look(spin, &mut look) == 0 {
            let found = self.sleep(events);
            count = descriptors(if found > 0 { 0 } else { timeout_ms });
            self.sleeps.store(false, Ordering::SeqCst);
        }
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
            if self.channels.load(Ordering::Acquire) > 0
                && let Some(event) = self.hear(token, bits & trouble != 0)
            {
                events.retain(|other| other.token != token);
                if event.readable || event.writable {
                    events.push(event);
                }
                continue;
            }
            events.push(Event {
                token,
                readable: bits & ((libc::EPOLLIN | libc::EPOLLRDHUP) as u32 | trouble) != 0,
                writable: bits & (libc::EPOLLOUT as u32 | trouble) != 0,
            });
        }
        Ok(())
    }
}
