//! Drives sessions over real connections. There is no I/O thread: whoever waits for an answer
//! drives the network meanwhile. One waiting thread at a time is the *leader*, which polls all
//! connections and wakes the others as their answers come; when it has its own, another takes over.
//! A single thread thus talks to a server without any hand-over between threads.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_core::auth::ConnectionKey;
use weir_core::config::Timing;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{Call, Rpc};
use weir_core::pending::{Pending, end};
use weir_core::session::{Completion, Expired, Identity, Reply, Request, Session};
use weir_core::slice::Row;
use weir_core::types::{Now, ServerIndex, WallTime};
use weir_core::wire::Header;
use weir_net::{Event, Link, Payload, Placement, Poller, Received, Sink, Transport, tcp};

/// How often deadlines are looked at while somebody waits.
const TICK_MS: u64 = 50;

/// A lock whose holder panicked: the bug has been told, and the state is whole enough to end with.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request's payload while it is being sent.
struct Outgoing(Arc<Pending>);

impl Payload for Outgoing {
    fn rows(&self, into: &mut Vec<Row>) {
        into.extend(self.0.source.iter().map(|&slice| Row::from(slice)));
    }
}

struct Stream {
    token: u64,
    address: SocketAddr,
    state: Mutex<StreamState>,
}

struct StreamState {
    session: Session<Arc<Pending>>,
    link: Option<Box<dyn Link<Outgoing>>>,
    connecting: bool,
    /// Asked the poller for room to send.
    wants_room: bool,
}

struct Shared {
    started: Instant,
    transport: Transport,
    poller: Poller,
    /// Streams of each server.
    servers: Vec<Vec<Stream>>,
    leader: AtomicBool,
    followers: Mutex<Vec<Thread>>,
    last_tick_ms: AtomicU64,
    timers: Mutex<BTreeMap<(u64, u64), Waker>>,
    timer_count: AtomicU64,
    next_timer_ms: AtomicU64,
    /// Nobody drove the network for longer than this: a server's silence meanwhile says nothing.
    unattended_ms_max: u64,
}

/// Connections to the servers of a pool. Cheap to clone.
#[derive(Clone)]
pub struct Net {
    shared: Arc<Shared>,
}

impl Net {
    /// Connections are made when they are first needed: `streams` to each of these servers.
    /// `identity.stream` and `identity.server_name` are filled in here.
    pub fn new(
        identity: &Identity,
        addresses: &[String],
        streams: usize,
        transport: Transport,
        timing: &Timing,
    ) -> Result<Net> {
        let mut servers = Vec::new();
        let mut token = 0;
        for (index, name) in addresses.iter().enumerate() {
            let address = tcp::resolve(name)?;
            let mut of_server = Vec::new();
            for stream in 0..streams.max(1) {
                let identity = Identity {
                    stream: stream as u16,
                    server_name: format!("server {index} ({name})"),
                    ..identity.clone()
                };
                let state = Mutex::new(StreamState {
                    session: Session::new(identity, timing.clone()),
                    link: None,
                    connecting: false,
                    wants_room: false,
                });
                of_server.push(Stream { token, address, state });
                token += 1;
            }
            servers.push(of_server);
        }
        let poller = Poller::of_client(Duration::from_micros(timing.spin_us)).map_err(|error| {
            Error::because(Code::Internal, format!("epoll: {error}")).on("connect", "pool")
        })?;
        Ok(Net {
            shared: Arc::new(Shared {
                started: Instant::now(),
                transport,
                poller,
                servers,
                leader: AtomicBool::new(false),
                followers: Mutex::default(),
                last_tick_ms: AtomicU64::new(0),
                timers: Mutex::default(),
                timer_count: AtomicU64::new(0),
                next_timer_ms: AtomicU64::new(u64::MAX),
                unattended_ms_max: timing.silence_ms_max / 2,
            }),
        })
    }

    /// The key of the newest connection of a server's first stream.
    pub fn connection_key(&self, server: ServerIndex) -> Option<ConnectionKey> {
        let stream = self.shared.servers.get(usize::from(server.0))?.first()?;
        lock(&stream.state).session.connection_key().cloned()
    }

    /// Runs a future to its end on this thread, driving the network while it waits.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            if let Some(value) = self.run_until(future.as_mut(), None) {
                return value;
            }
        }
    }

    /// As [`Net::run`], but gives up at the deadline; the future can be run on later. With a
    /// deadline that has passed, what arrived is dealt with and nothing is waited for.
    pub fn run_until<F: Future>(
        &self,
        mut future: Pin<&mut F>,
        deadline: Option<Instant>,
    ) -> Option<F::Output> {
        let parker =
            Arc::new(Parker { thread: std::thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(parker.clone());
        let mut context = Context::from_waker(&waker);
        let mut events = Vec::new();
        let mut over = false;
        loop {
            parker.woken.store(false, Ordering::Release);
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return Some(value);
            }
            if over || !self.shared.drive_until(&parker.woken, deadline, &mut events) {
                return None;
            }
            over = passed(deadline);
        }
    }
}

fn passed(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// How much of `at_most` there is before the deadline.
fn left(deadline: Option<Instant>, at_most: Duration) -> Duration {
    deadline
        .map_or(at_most, |deadline| at_most.min(deadline.saturating_duration_since(Instant::now())))
}

/// Wakes a thread that waits in [`Net::run_until`].
struct Parker {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        // The leader wakes itself in this way as a rule, and then nobody is parked.
        if self.thread.id() != std::thread::current().id() {
            self.thread.unpark();
        }
    }
}

impl Shared {
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn try_lead(&self) -> bool {
        self.leader.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Leads, or waits to be woken, until `woken` or the deadline. Says whether it was woken.
    fn drive_until(
        &self,
        woken: &AtomicBool,
        deadline: Option<Instant>,
        events: &mut Vec<Event>,
    ) -> bool {
        while !woken.load(Ordering::Acquire) {
            if self.try_lead() {
                let leadership = Leadership(self);
                while !woken.load(Ordering::Acquire) {
                    self.step(deadline, events);
                    if passed(deadline) {
                        break;
                    }
                }
                drop(leadership);
                return woken.load(Ordering::Acquire);
            }
            if passed(deadline) {
                self.find_leader();
                return false;
            }
            let me = std::thread::current();
            lock(&self.followers).push(me.clone());
            // The leader resigns first and looks for followers then: it either sees this thread
            // in the list or leaves the lead to be taken here.
            if !self.leader.load(Ordering::Acquire) || woken.load(Ordering::Acquire) {
                lock(&self.followers).retain(|thread| thread.id() != me.id());
                continue;
            }
            // Bounded, against a wake-up lost to a leader that ended in a panic.
            std::thread::park_timeout(left(deadline, Duration::from_millis(TICK_MS)));
            lock(&self.followers).retain(|thread| thread.id() != me.id());
        }
        // The one that the last leader chose may have its answer already: then another leads.
        self.find_leader();
        true
    }

    /// Wakes somebody to lead, if nobody does.
    fn find_leader(&self) {
        if !self.leader.load(Ordering::Acquire)
            && let Some(thread) = lock(&self.followers).pop()
        {
            thread.unpark();
        }
    }

    /// Waits for something to happen on any connection, and deals with it.
    fn step(&self, deadline: Option<Instant>, events: &mut Vec<Event>) {
        let now_ms = self.now_ms();
        let tick_ms = self.last_tick_ms.load(Ordering::Relaxed) + TICK_MS;
        let timer_ms = self.next_timer_ms.load(Ordering::Acquire);
        let timeout = Duration::from_millis(tick_ms.min(timer_ms).saturating_sub(now_ms));
        let timeout = left(deadline, timeout);
        // An error here would be a closed epoll descriptor: nothing arrives any more, and the
        // deadlines below end every request.
        let _ = self.poller.wait(events, Some(timeout));
        let now_ms = self.now_ms();
        for event in events.iter() {
            let streams = self.servers.iter().flatten();
            if let Some(stream) = streams.into_iter().find(|stream| stream.token == event.token) {
                self.ready(stream, *event, now_ms);
            }
        }
        if now_ms >= tick_ms {
            for stream in self.servers.iter().flatten() {
                let mut ended = Vec::new();
                let mut state = lock(&stream.state);
                self.tick(stream, &mut state, now_ms, &mut ended);
                self.transmit(stream, &mut state, now_ms);
                drop(state);
                end(ended);
            }
            self.last_tick_ms.store(now_ms, Ordering::Relaxed);
        }
        if now_ms >= self.next_timer_ms.load(Ordering::Acquire) {
            self.ring(now_ms);
        }
    }

    fn ring(&self, now_ms: u64) {
        let mut timers = lock(&self.timers);
        while let Some(entry) = timers.first_entry()
            && entry.key().0 <= now_ms
        {
            entry.remove().wake();
        }
        let next_ms = timers.first_key_value().map_or(u64::MAX, |(key, _)| key.0);
        self.next_timer_ms.store(next_ms, Ordering::Release);
    }

    /// A connection can receive or send.
    fn ready(&self, stream: &Stream, event: Event, now_ms: u64) {
        let mut ended = Vec::new();
        let mut guard = lock(&stream.state);
        let state = &mut *guard;
        let Some(link) = &mut state.link else {
            return;
        };
        if state.connecting && event.writable {
            state.connecting = false;
            state.wants_room = false;
            let made = link
                .connected()
                .and_then(|()| self.poller.change(link.source(), stream.token, true, false));
            match made {
                Ok(()) => {
                    let mut nonce = [0; 32];
                    match getrandom::fill(&mut nonce) {
                        Ok(()) => state.session.connected(nonce),
                        Err(error) => self.disconnect(state, now_ms, &error.to_string()),
                    }
                }
                Err(error) => self.disconnect(state, now_ms, &error.to_string()),
            }
        } else if event.readable {
            let mut receiver = Receiver { session: &mut state.session, ended: &mut ended, now_ms };
            match link.receive(&mut receiver) {
                Ok((Received::Closed, _)) => {
                    self.disconnect(state, now_ms, "server closed the connection");
                }
                Ok((_, moved)) => {
                    if moved > 0 {
                        state.session.heard(now_ms);
                    }
                }
                Err(error) => {
                    if error.code == Code::Version {
                        // It will not speak another one the next time either.
                        let name = state.session.server_name();
                        let cause = format!("{name}: {}", error.cause);
                        let error = Error::because(Code::Version, cause);
                        ended.extend(state.session.end_all(&error));
                    }
                    match state.session.receiving_for() {
                        Some(pending) if error.code == Code::BadAddress => {
                            self.give_up(state, now_ms, &pending, &error.cause);
                            pending.end(Err(bad_memory("received into")));
                        }
                        _ => self.disconnect(state, now_ms, &error.cause),
                    }
                }
            }
        }
        self.transmit(stream, state, now_ms);
        // Whoever is woken has its next request to send.
        drop(guard);
        end(ended);
    }

    fn disconnect(&self, state: &mut StreamState, now_ms: u64, trouble: &str) {
        state.link = None;
        state.connecting = false;
        state.wants_room = false;
        state.session.disconnected(now_ms, Error::because(Code::ServerLost, trouble));
    }

    /// Acts on deadlines; begins to connect where that is due.
    fn tick(
        &self,
        stream: &Stream,
        state: &mut StreamState,
        now_ms: u64,
        ended: &mut Vec<Completion<Arc<Pending>>>,
    ) {
        if now_ms > self.last_tick_ms.load(Ordering::Relaxed) + self.unattended_ms_max {
            state.session.heard(now_ms);
        }
        match state.session.handle_timeout(now_ms) {
            Expired::Nothing => {}
            Expired::Lost(completions) => {
                state.link = None;
                state.connecting = false;
                state.wants_room = false;
                ended.extend(completions);
            }
            Expired::Connect => {
                let link = self.transport.connect::<Outgoing>(stream.address).and_then(|link| {
                    self.poller.add(link.source(), stream.token, false, true)?;
                    Ok(link)
                });
                match link {
                    Ok(link) => {
                        state.link = Some(link);
                        state.connecting = true;
                    }
                    Err(error) => self.disconnect(state, now_ms, &error.to_string()),
                }
            }
        }
    }

    /// Sends what there is to send.
    fn transmit(&self, stream: &Stream, state: &mut StreamState, now_ms: u64) {
        let Some(link) = &mut state.link else {
            return;
        };
        if state.connecting {
            return;
        }
        while let Some(transmit) = state.session.poll_transmit() {
            let payload = transmit
                .payload_of
                .and_then(|slot| state.session.tag(slot))
                .map(|pending| Outgoing(pending.clone()));
            link.send(transmit.head, payload);
        }
        if link.unsent() == 0 && !state.wants_room {
            return;
        }
        let sent = link.flush().and_then(|moved| {
            // Room where there was none is a sign of life; what the kernel's buffer takes, our own
            // pings among it, is not.
            if moved > 0 && state.wants_room {
                state.session.heard(now_ms);
            }
            let wants_room = link.unsent() > 0;
            if wants_room != state.wants_room {
                self.poller.change(link.source(), stream.token, true, wants_room)?;
                state.wants_room = wants_room;
            }
            Ok(())
        });
        if let Err(error) = sent {
            match link.next().map(|outgoing| outgoing.0.clone()) {
                // It would be the same over any connection.
                Some(pending) if error.raw_os_error() == Some(libc::EFAULT) => {
                    self.give_up(state, now_ms, &pending, &error.to_string());
                    pending.end(Err(bad_memory("sent from")));
                }
                _ => self.disconnect(state, now_ms, &error.to_string()),
            }
        }
    }

    /// Forgets a request in the middle of whose payload the connection is. Half a payload cannot be
    /// taken back: the connection goes, the others' requests are made again.
    fn give_up(&self, state: &mut StreamState, now_ms: u64, pending: &Arc<Pending>, why: &str) {
        state.session.cancel(|other| Arc::ptr_eq(other, pending));
        self.disconnect(state, now_ms, why);
    }
}

/// What a call is told whose memory cannot be used; `what` for: "sent from" or "received into".
pub fn bad_memory(what: &str) -> Error {
    let cause = format!("the memory to be {what} is not all there, or may not be used so");
    Error::because(Code::BadAddress, cause)
}

/// Gives up the lead, also when unwinding, and finds a successor.
struct Leadership<'a>(&'a Shared);

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        self.0.leader.store(false, Ordering::Release);
        self.0.find_leader();
    }
}

/// Hands what a link receives to the session.
struct Receiver<'a> {
    session: &'a mut Session<Arc<Pending>>,
    ended: &'a mut Vec<Completion<Arc<Pending>>>,
    now_ms: u64,
}

impl Sink for Receiver<'_> {
    fn head(&mut self, header: Header, body: &[u8]) -> Result<Placement> {
        let place = self.session.take_head(self.now_ms, header, body, self.ended)?;
        Ok(place.map_or(Placement::Discard, Placement::Into))
    }

    fn payload(&mut self) -> Result<()> {
        self.session.take_payload(self.now_ms, self.ended);
        Ok(())
    }
}

/// Abandons a request whose future is dropped before its end: its buffers are not touched again.
struct Abandon<'a> {
    shared: &'a Shared,
    stream: &'a Stream,
    pending: Arc<Pending>,
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if !self.pending.is_under_way() {
            return;
        }
        let mut state = lock(&self.stream.state);
        let receiving =
            state.session.receiving_for().is_some_and(|other| Arc::ptr_eq(&other, &self.pending));
        let in_use = |outgoing: &Outgoing| Arc::ptr_eq(&outgoing.0, &self.pending);
        let sending = state.link.as_ref().is_some_and(|link| link.sending(&in_use));
        if sending || receiving {
            let now_ms = self.shared.now_ms();
            self.shared.give_up(&mut state, now_ms, &self.pending, "a request was abandoned");
        } else {
            state.session.cancel(|pending| Arc::ptr_eq(pending, &self.pending));
        }
    }
}

impl Rpc for Net {
    async unsafe fn call(&self, server: ServerIndex, call: Call) -> Result<Reply> {
        let shared = &*self.shared;
        let Some(streams) = shared.servers.get(usize::from(server.0)) else {
            return Err(Error::because(Code::Stale, format!("no server {} known", server.0)));
        };
        let stream = &streams[(call.lane % streams.len() as u64) as usize];
        let payload_length = call.source.iter().map(|slice| slice.length as u32).sum();
        let pending = Pending::new(call.source, call.sink);
        let abandon = Abandon { shared, stream, pending };
        {
            let request = Request {
                kind: call.kind,
                body: call.body,
                payload_length,
                capability: call.capability,
                once: call.once,
                tag: abandon.pending.clone(),
            };
            let now_ms = shared.now_ms();
            let mut ended = Vec::new();
            let mut state = lock(&stream.state);
            if let Err((pending, error)) = state.session.submit(now_ms, request) {
                drop(state);
                pending.end(Err(error));
            } else {
                if state.link.is_none() {
                    shared.tick(stream, &mut state, now_ms, &mut ended);
                }
                shared.transmit(stream, &mut state, now_ms);
                drop(state);
                end(ended);
            }
        }
        abandon.pending.ended().await
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono_ms: self.shared.now_ms(), wall: WallTime(wall.as_nanos() as i64) }
    }

    async fn sleep(&self, ms: u64) {
        Sleep { shared: &self.shared, until_ms: self.shared.now_ms() + ms.max(1) }.await;
    }
}

struct Sleep<'a> {
    shared: &'a Shared,
    until_ms: u64,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.shared.now_ms() >= self.until_ms {
            return Poll::Ready(());
        }
        let number = self.shared.timer_count.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.timers).insert((self.until_ms, number), context.waker().clone());
        let earlier = self.shared.next_timer_ms.fetch_min(self.until_ms, Ordering::AcqRel);
        if earlier > self.until_ms {
            // The leader may be waiting for longer than that.
            self.shared.poller.wake();
        }
        Poll::Pending
    }
}
