//! The event loops: one thread for each core, each with its own connections.

use crate::disk::{Cork, Driven, take_lane};
use std::collections::HashMap;
use std::future::Future;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{debug, warn};
use weir_core::config::{CONNECTIONS_MAX, SHARING_CONNECTIONS_MAX};
use weir_core::error::{Code, Error, Result};
use weir_core::service::storage::ReadTicket;
use weir_core::service::{Action, Outgoing, Peer, Receiving, Service};
use weir_core::slice::Row;
use weir_core::types::{Now, WallTime};
use weir_core::wire::{self, Header, Kind};
use weir_net::shm::{self, ShmLink};
use weir_net::tcp::TcpLink;
use weir_net::{Event, Link, Payload, Placement, Poller, Received, Sink, Transport};

/// How often time-outs are looked at.
const TICK_MS: u64 = 500;
/// A connection whose client does not prove the secret within this time is closed.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Answers that wait for a slow reader, beyond which no more of its requests are taken: bytes.
const UNSENT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The listeners' tokens; connections count from 0.
const LISTENER: u64 = u64::MAX - 1;
const LISTENER_SHM: u64 = u64::MAX - 2;
/// The first disk's token; there are no more disks than tokens up to the listeners'.
const DISKS: u64 = LISTENER_SHM - DISKS_MAX as u64;
/// Most disks of a server.
pub(crate) const DISKS_MAX: usize = 1024;

type Task = Pin<Box<dyn Future<Output = Outgoing> + Send>>;
type Chore = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// The clocks of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { started: Instant::now() }
    }

    pub(crate) fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            mono_ms: self.started.elapsed().as_millis() as u64,
            wall: WallTime(wall.as_nanos() as i64),
        }
    }
}

/// A read's payload: pins the memory until it is sent.
struct Pinned(ReadTicket);

impl Payload for Pinned {
    fn rows(&self, into: &mut Vec<Row>) {
        into.extend_from_slice(self.0.rows());
    }
}

/// What the threads of a server share.
pub(crate) struct Shared {
    pub(crate) service: Arc<Service>,
    pub(crate) clock: Clock,
    pub(crate) stop: AtomicBool,
    pub(crate) doors: Vec<Door>,
    /// The targets' disks; each loop has a lane of each.
    pub(crate) disks: Vec<Option<Arc<dyn Driven>>>,
}

/// A connection that was accepted.
type Arrival = Box<dyn Link<Pinned>>;

/// Where a server listens: for everybody, and for those of this machine.
pub(crate) struct Listeners {
    tcp: TcpListener,
    /// None: not offered, or there are too many connections just now. Who finds nobody there comes by TCP.
    shm: Option<UnixListener>,
    transport: Transport,
}

impl Listeners {
    pub(crate) fn new(tcp: TcpListener, transport: Transport) -> Listeners {
        let mut listeners = Listeners { tcp, shm: None, transport };
        listeners.offer();
        listeners
    }

    /// Listens for those of this machine, if they are to have shared memory.
    fn offer(&mut self) {
        if self.transport == Transport::Auto {
            let listening = self.tcp.local_addr().and_then(shm::listen);
            self.shm = listening.inspect_err(|error| debug!(%error, "nothing is shared")).ok();
        }
    }

    /// Takes one connection that waits.
    fn accept(&self, token: u64) -> std::io::Result<Arrival> {
        match &self.shm {
            Some(shm) if token == LISTENER_SHM => Ok(Box::new(ShmLink::accepted(shm.accept()?.0)?)),
            None if token == LISTENER_SHM => Err(std::io::ErrorKind::WouldBlock.into()),
            _ => Ok(Box::new(TcpLink::new(self.tcp.accept()?.0)?)),
        }
    }

    /// Waits for those of this machine, too, if there is a place for them.
    fn wait_for_local(&self, poller: &Poller) {
        if let Some(shm) = &self.shm
            && let Err(error) = poller.add(shm.as_raw_fd(), LISTENER_SHM, true, false)
        {
            warn!(%error, "epoll");
        }
    }

    /// Offers shared memory or does not, as `connections` are few or many.
    fn share(&mut self, connections: usize, poller: &Poller) {
        if self.shm.is_some() && connections >= SHARING_CONNECTIONS_MAX {
            debug!(connections, "no more by shared memory");
            self.shm = None;
        } else if self.shm.is_none() && connections < SHARING_CONNECTIONS_MAX / 4 * 3 {
            self.offer();
            self.wait_for_local(poller);
        }
    }
}

/// Through which other threads reach one event loop.
pub(crate) struct Door {
    pub(crate) poller: Arc<Poller>,
    /// Connections accepted for it, and their numbers.
    arrivals: Mutex<Vec<(u64, Arrival)>>,
    /// How many connections it has, those among the arrivals too, and the greatest of their numbers.
    held: AtomicUsize,
    newest: AtomicU64,
    /// Tasks of its that have something to do.
    woken: Arc<Woken>,
}

impl Door {
    pub(crate) fn new(spin_max: Duration) -> std::io::Result<Door> {
        let poller = Arc::new(Poller::new(spin_max)?);
        let woken = Arc::new(Woken {
            poller: poller.clone(),
            tasks: Mutex::default(),
            thread: OnceLock::new(),
        });
        Ok(Door {
            poller,
            arrivals: Mutex::default(),
            held: AtomicUsize::new(0),
            newest: AtomicU64::new(0),
            woken,
        })
    }

    fn gains(&self, number: u64) {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.newest.fetch_max(number, Ordering::Relaxed);
    }

    /// A connection is gone; `left` are the numbers of those that remain, arrivals apart, which are
    /// newer than any of these.
    fn loses(&self, number: u64, left: impl Iterator<Item = u64>) {
        self.held.fetch_sub(1, Ordering::Relaxed);
        if self.newest.load(Ordering::Relaxed) == number {
            let newest = left.max().unwrap_or(0);
            let _ =
                self.newest.compare_exchange(number, newest, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// The loop for one more connection: that which has the fewest, and of several the one which has had no
/// new one for the longest. In turn would not do: clients that begin to work side by side have others
/// come and go between them, as each asks for the pool's map on a connection of its own, and two that
/// share a loop share one core. Those on this machine need cores, too, and share some loops.
fn roomiest(doors: &[Door], local: bool) -> &Door {
    let count = if local { shm::loops(doors.len()) } else { doors.len() };
    let load =
        |door: &&Door| (door.held.load(Ordering::Relaxed), door.newest.load(Ordering::Relaxed));
    doors[..count].iter().min_by_key(load).expect("a server has an event loop")
}

/// Tasks to be gone on with, by number.
struct Woken {
    poller: Arc<Poller>,
    tasks: Mutex<Vec<u64>>,
    /// The loop's own thread: it looks at the tasks before it waits, and need not be woken.
    thread: OnceLock<ThreadId>,
}

/// The number that wakes what the service does by itself.
const CHORE: u64 = 0;

/// Wakes one task.
struct TaskWaker {
    woken: Arc<Woken>,
    task: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let first = {
            let mut tasks = self.woken.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.push(self.task);
            tasks.len() == 1
        };
        let own = self.woken.thread.get() == Some(&std::thread::current().id());
        if first && !own {
            self.woken.poller.wake();
        }
    }
}

impl Woken {
    fn is_any(&self) -> bool {
        !self.tasks.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn waker(self: &Arc<Self>, task: u64) -> Waker {
        Waker::from(Arc::new(TaskWaker { woken: self.clone(), task }))
    }
}

struct Connection {
    number: u64,
    link: Box<dyn Link<Pinned>>,
    peer: Peer,
    name: String,
    accepted: Instant,
    /// A write whose payload is on its way.
    receiving: Option<Receiving>,
    /// What to send once a payload is thrown away.
    after_discard: Option<Action>,
    /// Close once everything is sent.
    closing: bool,
    /// What the poller was told.
    interest: (bool, bool),
}

/// One event loop.
pub(crate) struct Loop {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
    /// The first loop has it.
    pub(crate) listeners: Option<Listeners>,
    connections: HashMap<u64, Connection>,
    /// Requests that wait, by number, and the connection to answer on.
    tasks: HashMap<u64, (u64, Task)>,
    next_task: u64,
    /// What the service does by itself, if it is at it.
    chore: Option<Chore>,
    next_token: u64,
    /// Connections accepted so far, by the loop that listens: their numbers.
    accepted: u64,
}

impl Loop {
    pub(crate) fn new(shared: Arc<Shared>, index: usize, listeners: Option<Listeners>) -> Loop {
        Loop {
            shared,
            index,
            listeners,
            connections: HashMap::new(),
            tasks: HashMap::new(),
            next_task: CHORE + 1,
            chore: None,
            next_token: 0,
            accepted: 0,
        }
    }

    fn door(&self) -> &Door {
        &self.shared.doors[self.index]
    }

    /// Serves until the server is stopped.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let poller = self.door().poller.clone();
        if let Some(listeners) = &self.listeners {
            poller.add(listeners.tcp.as_raw_fd(), LISTENER, true, false)?;
            listeners.wait_for_local(&poller);
        }
        let shared = self.shared.clone();
        take_lane(self.index);
        for (index, disk) in shared.disks.iter().enumerate() {
            if let Some(disk) = disk {
                poller.add_counter(disk.descriptor(self.index), DISKS + index as u64)?;
            }
        }
        let woken = self.door().woken.clone();
        let _ = woken.thread.set(std::thread::current().id());
        let mut events: Vec<Event> = Vec::new();
        // One look at the clocks for each turn: they cost as much as a small request's parsing.
        let mut now = self.shared.clock.now();
        let mut next_tick_ms = now.mono_ms + TICK_MS;
        while !self.shared.stop.load(Ordering::Acquire) {
            let timeout_ms = match woken.is_any() {
                true => 0,
                false => next_tick_ms.saturating_sub(now.mono_ms),
            };
            poller.wait(&mut events, Some(Duration::from_millis(timeout_ms)))?;
            now = self.shared.clock.now();
            for event in &events {
                // What it asks disks for goes to the kernel together.
                let _cork = Cork::new(&shared.disks);
                match event.token {
                    token @ (LISTENER | LISTENER_SHM) => self.accept(token),
                    token if token >= DISKS => {
                        self.reap((token - DISKS) as usize, now);
                    }
                    token => self.ready(token, *event, now),
                }
            }
            self.adopt();
            {
                let _cork = Cork::new(&shared.disks);
                self.run_tasks();
            }
            if now.mono_ms >= next_tick_ms {
                next_tick_ms = now.mono_ms + TICK_MS;
                self.tick(now);
            }
        }
        let now = self.shared.clock.now();
        for (_, mut connection) in self.connections.drain() {
            self.shared.service.closed(now, &mut connection.peer);
        }
        Ok(())
    }

    /// Hands a target what its disk has done in this loop's lane.
    fn reap(&self, index: usize, now: Now) {
        if let Some(disk) = &self.shared.disks[index] {
            let done = disk.reap(self.index);
            self.shared.service.disk_done(now, index, done);
        }
    }

    fn tick(&mut self, now: Now) {
        // What the kernel would not take before is handed to it once more.
        (0..self.shared.disks.len()).for_each(|index| self.reap(index, now));
        if self.index == 0 {
            let service = self.shared.service.clone();
            self.chore.get_or_insert_with(|| Box::pin(async move { service.expire(now).await }));
            self.run_chore();
            self.share();
            if self.shared.service.shutdown_asked() {
                self.shared.stop.store(true, Ordering::Release);
                self.shared.doors.iter().for_each(|door| door.poller.wake());
            }
        }
        let strangers: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                connection.peer.client().is_none() && connection.accepted.elapsed() > HANDSHAKE_MAX
            })
            .map(|(&token, _)| token)
            .collect();
        for token in strangers {
            self.close(token, now, "no handshake in time");
        }
    }

    /// Offers shared memory as long as connections are not too many.
    fn share(&mut self) {
        if let Some(listeners) = &mut self.listeners {
            let held = self.shared.doors.iter().map(|door| door.held.load(Ordering::Relaxed));
            listeners.share(held.sum(), &self.shared.doors[self.index].poller);
        }
    }

    /// Takes all connections that wait at a listener, and deals them out to the loops.
    fn accept(&mut self, token: u64) {
        self.share();
        let Some(listeners) = &self.listeners else {
            return;
        };
        loop {
            match listeners.accept(token) {
                Ok(link) => {
                    debug!(from = link.peer(), "connection");
                    let door = roomiest(&self.shared.doors, token == LISTENER_SHM);
                    self.accepted += 1;
                    door.gains(self.accepted);
                    let mut arrivals = door.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
                    arrivals.push((self.accepted, link));
                    drop(arrivals);
                    door.poller.wake();
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of descriptors, as a rule: those who wait stay in the queue.
                    warn!(%error, "accept");
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }

    /// Takes in the connections that were dealt to this loop.
    fn adopt(&mut self) {
        let arrivals = std::mem::take(
            &mut *self.door().arrivals.lock().unwrap_or_else(PoisonError::into_inner),
        );
        for (number, link) in arrivals {
            if self.connections.len() >= CONNECTIONS_MAX / self.shared.doors.len() {
                warn!("{CONNECTIONS_MAX} connections: another is turned away");
            } else if let Err(error) = self.adopt_one(number, link) {
                warn!(%error, "connection not taken");
            } else {
                continue;
            }
            self.lose(number);
        }
    }

    /// A connection of this loop is gone.
    fn lose(&self, number: u64) {
        self.door().loses(number, self.connections.values().map(|connection| connection.number));
    }

    fn adopt_one(&mut self, number: u64, link: Arrival) -> std::io::Result<()> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(std::io::Error::other)?;
        let token = self.next_token;
        self.door().poller.add(link.source(), token, true, false)?;
        self.next_token += 1;
        let name = link.peer();
        let connection = Connection {
            number,
            link,
            peer: self.shared.service.accept(nonce),
            name,
            accepted: Instant::now(),
            receiving: None,
            after_discard: None,
            closing: false,
            interest: (true, false),
        };
        self.connections.insert(token, connection);
        Ok(())
    }

    /// Ends a connection. Requests that are being carried out go on: their answers are kept.
    fn close(&mut self, token: u64, now: Now, why: &str) {
        if let Some(mut connection) = self.connections.remove(&token) {
            debug!(peer = connection.name, why, "connection ends");
            self.lose(connection.number);
            self.shared.service.closed(now, &mut connection.peer);
        }
    }

    /// A connection can receive or send.
    fn ready(&mut self, token: u64, event: Event, now: Now) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let mut later = Vec::new();
        if event.readable && !connection.closing {
            let Connection { link, peer, receiving, after_discard, closing, .. } = connection;
            let mut reception = Reception {
                service: &self.shared.service,
                now,
                peer,
                receiving,
                after_discard,
                closing,
                answers: Vec::new(),
                later: &mut later,
                next_task: &mut self.next_task,
                woken: &self.shared.doors[self.index].woken,
            };
            let result = link.receive(&mut reception);
            for answer in reception.answers {
                link.send(answer.head, answer.payload.map(Pinned));
            }
            match result {
                Ok((Received::Closed, _)) => return self.close(token, now, "closed by the client"),
                Ok(_) => {}
                Err(_) if connection.closing => {}
                Err(error) if error.code == Code::Version => {
                    // In words of our version: its number is what any other can read of them.
                    debug!(peer = connection.name, %error, "another version");
                    let refused = Header::plain(Kind::Refused, 0);
                    connection.link.send(wire::frame(refused, &wire::encode_failure(&error)), None);
                    connection.closing = true;
                }
                Err(error) => {
                    warn!(peer = connection.name, %error, "connection closed");
                    return self.close(token, now, "trouble");
                }
            }
        }
        self.tasks.extend(later.into_iter().map(|(number, task)| (number, (token, task))));
        self.settle(token, now);
    }

    /// Sends what is queued, and tells the poller what is waited for now.
    fn settle(&mut self, token: u64, now: Now) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.link.unsent() > 0
            && let Err(error) = connection.link.flush()
        {
            debug!(peer = connection.name, %error, "send");
            return self.close(token, now, "broken");
        }
        let unsent = connection.link.unsent();
        if connection.closing && unsent == 0 {
            return self.close(token, now, "refused");
        }
        let interest = (unsent < UNSENT_BYTES_MAX && !connection.closing, unsent > 0);
        if interest != connection.interest {
            connection.interest = interest;
            let source = connection.link.source();
            let poller = &self.shared.doors[self.index].poller;
            if let Err(error) = poller.change(source, token, interest.0, interest.1) {
                warn!(%error, "epoll");
                self.close(token, now, "trouble");
            }
        }
    }

    /// Goes on with requests that had to wait and need not any longer.
    fn run_tasks(&mut self) {
        let woken = self.door().woken.clone();
        let numbers =
            std::mem::take(&mut *woken.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        if numbers.is_empty() {
            return;
        }
        let now = self.shared.clock.now();
        // Answers on the same connection go out together.
        let mut answered: Vec<u64> = Vec::new();
        for number in numbers {
            if number == CHORE {
                self.run_chore();
                continue;
            }
            let Some((token, task)) = self.tasks.get_mut(&number) else { continue };
            let token = *token;
            let waker = woken.waker(number);
            if let Poll::Ready(answer) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.tasks.remove(&number);
                // The connection may be gone; then the answer is kept for the next one.
                if let Some(connection) = self.connections.get_mut(&token) {
                    connection.link.send(answer.head, answer.payload.map(Pinned));
                    if !answered.contains(&token) {
                        answered.push(token);
                    }
                }
            }
        }
        answered.into_iter().for_each(|token| self.settle(token, now));
    }

    fn run_chore(&mut self) {
        let waker = self.door().woken.waker(CHORE);
        if let Some(chore) = &mut self.chore
            && let Poll::Ready(result) = chore.as_mut().poll(&mut Context::from_waker(&waker))
        {
            self.chore = None;
            if let Err(error) = result {
                warn!(%error, "forgetting silent clients");
            }
        }
    }
}

/// Hands what a link receives to the service.
struct Reception<'a> {
    service: &'a Arc<Service>,
    now: Now,
    peer: &'a mut Peer,
    receiving: &'a mut Option<Receiving>,
    after_discard: &'a mut Option<Action>,
    closing: &'a mut bool,
    answers: Vec<Outgoing>,
    later: &'a mut Vec<(u64, Task)>,
    next_task: &'a mut u64,
    woken: &'a Arc<Woken>,
}

impl Reception<'_> {
    fn act(&mut self, action: Action, payload_length: u32) -> Result<Placement> {
        match action {
            Action::Nothing => {}
            Action::Send(answer) => self.answers.push(answer),
            Action::Receive(receiving) if payload_length > 0 => {
                let slices = receiving.ticket.buffers().to_vec();
                let cold = receiving.ticket.is_cold();
                *self.receiving = Some(receiving);
                return Ok(if cold {
                    Placement::IntoCold(slices)
                } else {
                    Placement::Into(slices)
                });
            }
            Action::Receive(receiving) => {
                let action = self.service.received(self.now, self.peer, receiving);
                return self.act(action, 0);
            }
            Action::Discard(then) if payload_length > 0 => *self.after_discard = Some(*then),
            Action::Discard(then) => return self.act(*then, 0),
            Action::Later(mut task) => {
                let number = *self.next_task;
                let waker = self.woken.waker(number);
                match task.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(answer) => self.answers.push(answer),
                    Poll::Pending => {
                        *self.next_task += 1;
                        self.later.push((number, task));
                    }
                }
            }
            Action::Close(answer) => {
                self.answers.extend(answer);
                *self.closing = true;
                return Err(Error::because(Code::Protocol, "connection refused"));
            }
        }
        Ok(Placement::Discard)
    }
}

impl Sink for Reception<'_> {
    fn head(&mut self, header: Header, body: &[u8]) -> Result<Placement> {
        let action = self.service.frame(self.now, self.peer, header, body);
        self.act(action, header.payload_length)
    }

    fn payload(&mut self) -> Result<()> {
        if let Some(receiving) = self.receiving.take() {
            let action = self.service.received(self.now, self.peer, receiving);
            self.act(action, 0)?;
        } else if let Some(then) = self.after_discard.take() {
            self.act(then, 0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn clients_that_begin_together_get_loops_of_their_own() {
        let doors: Vec<Door> =
            (0..4).map(|_| Door::new(Duration::ZERO).expect("a poller")).collect();
        let index = |door: &Door| doors.iter().position(|other| std::ptr::eq(other, door));
        for (local, loops) in [(false, 4), (true, 2)] {
            let place = |number: u64| {
                let door = roomiest(&doors, local);
                door.gains(number);
                door
            };
            // A mount's stays. Then each of the other clients asks for the map before it connects for good.
            let mount = place(1);
            let places = (1..loops).map(|client| {
                let asked = place(2 * client);
                asked.loses(2 * client, std::iter::empty());
                place(2 * client + 1)
            });
            let used: BTreeSet<_> = std::iter::once(mount).chain(places).map(index).collect();
            assert_eq!(used, (0..loops as usize).map(Some).collect(), "on this machine: {local}");
            // For the next round.
            doors.iter().for_each(|door| door.held.store(0, Ordering::Relaxed));
            doors.iter().for_each(|door| door.newest.store(0, Ordering::Relaxed));
        }
    }
}
