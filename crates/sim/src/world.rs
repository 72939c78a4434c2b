//! The whole cluster: clocks, the queue of what is to come, the network between processes.

use crate::client::Client;
use crate::net::{Connection, Host, Payload, Segment, Sending, Stream};
use crate::planted::Planted;
use crate::rng::Rng;
use crate::server::Server;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use weir_core::auth::Secret;
use weir_core::config::Timing;
use weir_core::journal::twin::Fault as FileFault;
use weir_core::pending::Pending;
use weir_core::types::{Now, WallTime};

/// Lines of the story that are kept.
const STORY_LINES_MAX: usize = 400_000;
/// Where wall clocks start: nanoseconds since the Unix epoch.
const WALL_START_NS: i64 = 1_700_000_000_000_000_000;
/// A connection whose other end says nothing at all is found out by the kernel after this time.
const KEEPALIVE_US: u64 = 60_000_000;

/// What is to come.
pub(crate) enum Event {
    /// A segment has reached the receiver's link.
    Arrive { connection: u64, direction: usize, segment: Segment },
    /// A segment has passed the receiver's link.
    Deliver { connection: u64, direction: usize, segment: Segment },
    /// A partition is over for a connection.
    Release { connection: u64 },
    /// A client knocks.
    Knock { connection: u64 },
    /// A server has let it in, or not.
    Knocked { connection: u64, accepted: bool },
    /// One end of a connection learns that it broke.
    Broken { connection: u64, at_client: bool },
    /// A session's deadline.
    Deadline { client: usize, server: usize, stream: usize, at_us: u64 },
    /// A server looks at its own deadlines.
    Tick { server: usize, life: u64 },
    /// A disk ends one of its requests.
    Disk { server: usize, life: u64, target: usize },
    /// A server writes and syncs its journals; `again`: and will do so regularly.
    Journal { server: usize, life: u64, again: bool },
    /// A sleeper's time has come.
    Wake(Waker),
    /// Something breaks, or is mended.
    Fault(Fault),
}

/// What can go wrong, and right again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A connection breaks, in the middle of whatever.
    Drop,
    /// Hosts are cut off from the others: bit by bit, host by host.
    Partition {
        islanders: Vec<usize>,
    },
    /// All hosts reach each other again.
    Heal,
    /// A server process is stopped (SIGSTOP), or goes on.
    Stop {
        server: usize,
    },
    Continue {
        server: usize,
    },
    /// A client process is stopped, or goes on.
    StopClient {
        place: usize,
    },
    ContinueClient {
        place: usize,
    },
    /// A client process dies; `power`: and its host with it, so that nobody hears of it.
    CrashClient {
        place: usize,
        power: bool,
    },
    /// A server dies; `power`: and its host with it.
    CrashServer {
        server: usize,
        power: bool,
    },
    /// It comes back, with nothing in it.
    Restart {
        server: usize,
    },
    /// Files of a kept server fail, from their `after`th operation on.
    Files {
        server: usize,
        after: u64,
        how: FileFault,
        lasts: bool,
    },
    /// A host becomes slow, or quick again.
    Slow {
        host: usize,
        us: u64,
    },
}

/// What has something to do now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    /// A task of a client.
    Task(usize),
    /// A request that a server could not answer at once.
    Request { server: usize, life: u64, task: u64 },
}

/// Jobs in the order in which they were woken.
#[derive(Debug, Default)]
pub(crate) struct Ready(Mutex<VecDeque<Job>>);

impl Ready {
    pub(crate) fn push(&self, job: Job) {
        lock(&self.0).push_back(job);
    }

    pub(crate) fn pop(&self) -> Option<Job> {
        lock(&self.0).pop_front()
    }
}

pub(crate) struct JobWaker {
    pub(crate) ready: Arc<Ready>,
    pub(crate) job: Job,
}

impl Wake for JobWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.job);
    }
}

/// Sleepers that could not lock the world: microseconds from now, and whom to wake.
pub(crate) type Sleepers = Arc<Mutex<Vec<(u64, Waker)>>>;

/// One thread runs everything; a poisoned lock is a failure that has been told already.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Entry {
    at_us: u64,
    /// Ties are broken by age, so that runs are the same every time.
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (other.at_us, other.number).cmp(&(self.at_us, self.number))
    }
}

/// See the module's description.
pub(crate) struct World {
    pub(crate) now_us: u64,
    queue: BinaryHeap<Entry>,
    events: u64,
    pub(crate) rng: Rng,
    pub(crate) timing: Timing,
    pub(crate) secret: Secret,
    pub(crate) hosts: Vec<Host>,
    pub(crate) connections: HashMap<u64, Connection<Arc<Pending>>>,
    next_connection: u64,
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    /// The newest process of each client's place.
    pub(crate) places: Vec<usize>,
    pub(crate) ready: Arc<Ready>,
    pub(crate) sleepers: Sleepers,
    pub(crate) asking: crate::disk::Asking,
    /// Servers, and their lives, whose journals somebody waits for.
    pub(crate) bells: Arc<Mutex<Vec<(usize, u64)>>>,
    /// Whether disks have faults: then requests may end in the errors that tell of it.
    pub(crate) disks_fail: bool,
    pub(crate) planted: Planted,
    /// Clients that died: their tasks are to be dropped.
    pub(crate) dead: Vec<usize>,
    /// Servers that ever died, and when last.
    pub(crate) deaths: Vec<Option<u64>>,
    pub(crate) bytes_moved: u64,
    pub(crate) delay_us: u64,
    pub(crate) jitter_us: u64,
    pub(crate) tells: bool,
    story: VecDeque<String>,
    pub(crate) failure: Option<String>,
}

impl World {
    pub(crate) fn new(rng: Rng, timing: Timing, planted: Planted, tells: bool) -> World {
        let mut rng = rng;
        World {
            now_us: 1_000_000,
            queue: BinaryHeap::new(),
            events: 0,
            secret: Secret::from_bytes(rng.bytes()),
            rng,
            timing,
            hosts: Vec::new(),
            connections: HashMap::new(),
            next_connection: 0,
            servers: Vec::new(),
            clients: Vec::new(),
            places: Vec::new(),
            ready: Arc::default(),
            sleepers: Sleepers::default(),
            asking: crate::disk::Asking::default(),
            bells: Arc::default(),
            disks_fail: false,
            planted,
            dead: Vec::new(),
            deaths: Vec::new(),
            bytes_moved: 0,
            delay_us: 60,
            jitter_us: 100,
            tells,
            story: VecDeque::new(),
            failure: None,
        }
    }

    /// The clocks of a host.
    pub(crate) fn now(&self, host: usize) -> Now {
        let ns = self.now_us as i64 * 1000 + self.hosts[host].wall_offset_ns;
        Now { mono_ms: self.now_us / 1000, wall: WallTime(WALL_START_NS + ns) }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    /// Adds a line to the story, if one is kept.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.tells {
            if self.story.len() == STORY_LINES_MAX {
                self.story.pop_front();
            }
            let at = self.now_us as f64 / 1e6;
            self.story.push_back(format!("{at:11.6}  {}", line()));
        }
    }

    pub(crate) fn take_story(&mut self) -> Vec<String> {
        std::mem::take(&mut self.story).into()
    }

    /// Ends the run: something is not as it must be. The first one counts.
    pub(crate) fn fail(&mut self, what: impl FnOnce() -> String) {
        if self.failure.is_none() {
            let what = what();
            self.tell(|| format!("FAILURE {what}"));
            self.failure = Some(what);
        }
    }

    pub(crate) fn at(&mut self, at_us: u64, event: Event) {
        self.events += 1;
        self.queue.push(Entry { at_us: at_us.max(self.now_us), number: self.events, event });
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// The time of the next event.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.queue.peek().map(|entry| entry.at_us)
    }

    /// Moves the clock to the next event, and carries it out.
    pub(crate) fn step(&mut self) {
        let Some(Entry { at_us, event, .. }) = self.queue.pop() else { return };
        self.now_us = at_us;
        match event {
            Event::Arrive { connection, direction, segment } => {
                self.arrive(connection, direction, segment);
            }
            Event::Deliver { connection, direction, segment } => {
                self.deliver(connection, direction, segment);
            }
            Event::Release { connection } => self.release(connection),
            Event::Knock { connection } => self.knock(connection),
            Event::Knocked { connection, accepted } => self.knocked(connection, accepted),
            Event::Broken { connection, at_client } => self.broken(connection, at_client),
            Event::Deadline { client, server, stream, at_us } => {
                self.client_deadline(client, server, stream, at_us);
            }
            Event::Tick { server, life } => self.server_tick(server, life),
            Event::Disk { server, life, target } => self.disk_ends(server, life, target),
            Event::Journal { server, life, again } => self.journal_turn(server, life, again),
            Event::Wake(waker) => waker.wake(),
            Event::Fault(fault) => self.fault(&fault),
        }
    }

    // ---- connections ----

    fn delay(&mut self) -> u64 {
        let jitter = self.jitter_us.max(1);
        let spike = if self.rng.chance(1) { self.rng.below(20 * jitter) } else { 0 };
        self.delay_us + self.rng.below(jitter) + spike
    }

    fn hosts_of(&self, id: u64) -> Option<(usize, usize)> {
        let connection = self.connections.get(&id)?;
        Some((self.clients[connection.client].host, self.servers[connection.server].host))
    }

    fn apart(&self, id: u64) -> bool {
        self.hosts_of(id).is_some_and(|(a, b)| self.hosts[a].island != self.hosts[b].island)
    }

    /// A client begins to connect.
    pub(crate) fn connect(&mut self, client: usize, server: usize, stream: usize) -> u64 {
        let id = self.next_connection;
        self.next_connection += 1;
        let connection = Connection {
            client,
            server,
            stream,
            life: 0,
            streams: [Stream::default(), Stream::default()],
            client_open: true,
            server_open: false,
            at_server: None,
        };
        self.connections.insert(id, connection);
        let delay = self.delay();
        self.at(self.now_us + delay, Event::Knock { connection: id });
        id
    }

    fn knock(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        if !connection.client_open {
            self.connections.remove(&id);
            return;
        }
        let server = connection.server;
        if self.apart(id) || self.servers[server].host_down {
            // The kernel knocks again.
            self.at(self.now_us + 200_000, Event::Knock { connection: id });
            return;
        }
        let accepted = self.servers[server].alive;
        if accepted {
            let at_server = self.server_accept(server);
            let life = self.servers[server].life;
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.server_open = true;
                connection.life = life;
                connection.at_server = Some(at_server);
            }
        }
        let delay = self.delay();
        self.at(self.now_us + delay, Event::Knocked { connection: id, accepted });
    }

    fn knocked(&mut self, id: u64, accepted: bool) {
        if self.apart(id) {
            self.at(self.now_us + 200_000, Event::Knocked { connection: id, accepted });
            return;
        }
        let Some(connection) = self.connections.get(&id) else { return };
        if !connection.client_open {
            return;
        }
        match accepted {
            true => self.client_connected(id),
            false => {
                let whose = (connection.client, connection.server, connection.stream);
                self.connections.remove(&id);
                self.client_lost_connection(id, whose, "connection refused");
            }
        }
    }

    pub(crate) fn send(&mut self, id: u64, direction: usize, frame: Sending<Arc<Pending>>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.streams[direction].unsent.push_back(frame);
        }
    }

    /// Sends as much as the window allows. Says whether anything moved.
    pub(crate) fn pump(&mut self, id: u64, direction: usize) -> bool {
        let mut moved = false;
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return moved };
            let (client, server) = (connection.client, connection.server);
            let stopped = match direction {
                0 => self.clients[client].stopped || !connection.client_open,
                _ => self.servers[server].stopped || !connection.server_open,
            };
            if stopped {
                return moved;
            }
            let slices = |pending: &Arc<Pending>| pending.source.clone();
            let Some(bytes) = connection.streams[direction].next(&mut self.rng, slices) else {
                return moved;
            };
            moved = true;
            self.bytes_moved += bytes.len() as u64;
            self.launch(id, direction, Segment::Bytes(bytes));
        }
    }

    fn launch(&mut self, id: u64, direction: usize, segment: Segment) {
        let Some((client, server)) = self.hosts_of(id) else { return };
        let host = if direction == 0 { client } else { server };
        let length = match &segment {
            Segment::Bytes(bytes) => bytes.len(),
            Segment::End => 0,
        };
        let delay = self.delay() + self.hosts[client].slow_us + self.hosts[server].slow_us;
        let left_us = self.hosts[host].send(self.now_us, length);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let stream = &mut connection.streams[direction];
        stream.last_arrival_us = stream.last_arrival_us.max(left_us + delay);
        let at_us = stream.last_arrival_us;
        self.at(at_us, Event::Arrive { connection: id, direction, segment });
    }

    fn arrive(&mut self, id: u64, direction: usize, segment: Segment) {
        let Some((client, server)) = self.hosts_of(id) else { return };
        let apart = self.hosts[client].island != self.hosts[server].island;
        let host = if direction == 0 { server } else { client };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let stream = &mut connection.streams[direction];
        if stream.cut {
            return;
        }
        if apart || !stream.held.is_empty() {
            stream.held.push_back(segment);
            return;
        }
        let length = match &segment {
            Segment::Bytes(bytes) => bytes.len(),
            Segment::End => 0,
        };
        let at_us = self.hosts[host].receive(self.now_us, length);
        self.at(at_us, Event::Deliver { connection: id, direction, segment });
    }

    fn deliver(&mut self, id: u64, direction: usize, segment: Segment) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let stopped = match direction {
            0 => self.servers[connection.server].stopped,
            _ => self.clients[connection.client].stopped,
        };
        let stream = &mut connection.streams[direction];
        if stream.cut {
            return;
        }
        if stopped || !stream.inbox.is_empty() {
            stream.inbox.push_back(segment);
            return;
        }
        self.take(id, direction, segment);
    }

    fn take(&mut self, id: u64, direction: usize, segment: Segment) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match segment {
            Segment::Bytes(bytes) => {
                let stream = &mut connection.streams[direction];
                stream.in_flight -= bytes.len();
                match direction {
                    0 => self.server_take(id, &bytes),
                    _ => self.client_take(id, &bytes),
                }
                if self.pump(id, direction) && direction == 0 {
                    self.client_heard(id);
                }
                if direction == 1 {
                    self.close_if_drained(id);
                }
            }
            Segment::End if direction == 0 => self.close_server_end(id),
            Segment::End => {
                if connection.client_open {
                    let whose = (connection.client, connection.server, connection.stream);
                    self.close_client_end(id);
                    self.client_lost_connection(id, whose, "server closed the connection");
                }
            }
        }
    }

    /// The client's process lets go of its end.
    pub(crate) fn close_client_end(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.client_open = false;
        connection.streams[1].unsent.clear();
        let stream = &mut connection.streams[0];
        stream.unsent.clear();
        if !std::mem::replace(&mut stream.ended, true) && !stream.cut {
            self.launch(id, 0, Segment::End);
        }
        self.forget_if_closed(id);
    }

    /// The server's process lets go of its end.
    pub(crate) fn close_server_end(&mut self, id: u64) {
        self.server_closed(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.server_open = false;
        let stream = &mut connection.streams[1];
        stream.unsent.clear();
        if !std::mem::replace(&mut stream.ended, true) && !stream.cut {
            self.launch(id, 1, Segment::End);
        }
        self.forget_if_closed(id);
    }

    fn forget_if_closed(&mut self, id: u64) {
        let over = |c: &Connection<Arc<Pending>>| !c.client_open && !c.server_open;
        if self.connections.get(&id).is_some_and(over) {
            self.connections.remove(&id);
        }
    }

    fn sorted(&self, wanted: impl Fn(&Connection<Arc<Pending>>) -> bool) -> Vec<u64> {
        let mut ids: Vec<u64> =
            self.connections.iter().filter(|(_, c)| wanted(c)).map(|(&id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    // ---- faults ----

    pub(crate) fn fault(&mut self, fault: &Fault) {
        self.tell(|| format!("FAULT {fault:?}"));
        match *fault {
            Fault::Drop => {
                let ids = self.sorted(|c| c.client_open && c.server_open);
                if !ids.is_empty() {
                    // Where payload is under way, if anywhere: that is where it hurts.
                    let busy: Vec<u64> = ids
                        .iter()
                        .copied()
                        .filter(|id| self.connections[id].streams.iter().any(|s| s.in_flight > 0))
                        .collect();
                    let from = if busy.is_empty() || self.rng.chance(20) { &ids } else { &busy };
                    let id = *self.rng.pick(from);
                    self.cut(id, true, true);
                }
            }
            Fault::Partition { ref islanders } => {
                for &host in islanders {
                    self.hosts[host].island = 1;
                }
            }
            Fault::Heal => self.heal(),
            Fault::Stop { server } => self.servers[server].stopped = true,
            Fault::Continue { server } => self.continue_server(server),
            Fault::StopClient { place } => {
                let client = self.places[place];
                self.clients[client].stopped = true;
            }
            Fault::ContinueClient { place } => self.continue_client(place),
            Fault::CrashClient { place, power } => self.crash_client(place, power),
            Fault::CrashServer { server, power } => self.crash_server(server, power),
            Fault::Restart { server } => self.restart_server(server),
            Fault::Files { server, after, how, lasts } => {
                let process = &self.servers[server];
                if let Some(shelf) = process.shelf.as_ref().filter(|_| process.alive) {
                    shelf.fail(after, how, lasts);
                    self.disks_fail = true;
                }
            }
            Fault::Slow { host, us } => self.hosts[host].slow_us = us,
        }
    }

    /// A connection breaks: what is under way is lost; both ends learn of it in their own time.
    fn cut(&mut self, id: u64, tell_client: bool, tell_server: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        for stream in &mut connection.streams {
            stream.cut = true;
            stream.held.clear();
            stream.inbox.clear();
        }
        self.tell(|| format!("connection {id} breaks"));
        for (at_client, soon) in [(true, tell_client), (false, tell_server)] {
            let limit = if self.rng.chance(50) { 1_000 } else { 100_000 };
            let us = if soon { self.rng.below(limit) } else { KEEPALIVE_US };
            self.at(self.now_us + us, Event::Broken { connection: id, at_client });
        }
    }

    /// Everybody reaches everybody again; what was held up goes on in order.
    pub(crate) fn heal(&mut self) {
        for host in &mut self.hosts {
            host.island = 0;
        }
        for id in self.sorted(|c| c.streams.iter().any(|stream| !stream.held.is_empty())) {
            let delay = self.delay() + self.rng.below(200_000);
            self.at(self.now_us + delay, Event::Release { connection: id });
        }
    }

    /// What a partition held up goes on, in order; until then, what comes later waits behind it.
    fn release(&mut self, id: u64) {
        if self.apart(id) {
            return;
        }
        for direction in 0..2 {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            for segment in std::mem::take(&mut connection.streams[direction].held) {
                self.arrive(id, direction, segment);
            }
        }
    }

    pub(crate) fn continue_server(&mut self, server: usize) {
        if !std::mem::replace(&mut self.servers[server].stopped, false) {
            return;
        }
        self.server_catch_up(server);
        let mut ids = self.sorted(|c| c.server == server);
        // The kernel reports connections in whatever order.
        for i in (1..ids.len()).rev() {
            let j = self.rng.below(i as u64 + 1) as usize;
            ids.swap(i, j);
        }
        self.drain_inboxes(&ids, 0);
        for id in ids {
            self.pump(id, 1);
        }
    }

    pub(crate) fn continue_client(&mut self, place: usize) {
        let client = self.places[place];
        if !std::mem::replace(&mut self.clients[client].stopped, false) {
            return;
        }
        let ids = self.sorted(|c| c.client == client);
        self.drain_inboxes(&ids, 1);
        for id in ids {
            self.pump(id, 0);
        }
        let waiting = std::mem::take(&mut self.clients[client].waiting_jobs);
        waiting.into_iter().for_each(|job| self.ready.push(job));
        self.client_catch_up(client);
    }

    fn drain_inboxes(&mut self, ids: &[u64], direction: usize) {
        for &id in ids {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            for segment in std::mem::take(&mut connection.streams[direction].inbox) {
                self.take(id, direction, segment);
            }
        }
    }

    pub(crate) fn crash_client(&mut self, place: usize, power: bool) {
        let client = self.places[place];
        if !self.clients[client].alive {
            return;
        }
        self.clients[client].die();
        self.dead.push(client);
        for id in self.sorted(|c| c.client == client) {
            let broken = power || self.rng.chance(50);
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.client_open = false;
            if broken {
                self.cut(id, false, !power);
                self.forget_if_closed(id);
            } else {
                self.close_client_end(id);
            }
        }
    }

    pub(crate) fn crash_server(&mut self, server: usize, power: bool) {
        if !self.servers[server].alive {
            return;
        }
        self.deaths[server] = Some(self.now_us);
        for id in self.sorted(|c| c.server == server && c.server_open) {
            self.cut(id, !power, false);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.server_open = false;
                connection.at_server = None;
            }
            self.forget_if_closed(id);
        }
        self.servers[server].die(power, &mut self.rng);
    }

    fn broken(&mut self, id: u64, at_client: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let direction = usize::from(at_client);
        let stopped = match at_client {
            true => self.clients[connection.client].stopped,
            false => self.servers[connection.server].stopped,
        };
        match stopped {
            true => connection.streams[direction].inbox.push_back(Segment::End),
            false => self.take(id, direction, Segment::End),
        }
    }

    /// A host that is back answers segments of connections that it does not know with a reset.
    pub(crate) fn reset_stale(&mut self, server: usize) {
        for id in self.sorted(|c| c.server == server && c.client_open && c.streams[0].cut) {
            let us = self.rng.below(200_000);
            self.at(self.now_us + us, Event::Broken { connection: id, at_client: true });
        }
    }

    /// Ends what still goes wrong, so that the survivors can be held to account.
    pub(crate) fn mend(&mut self) {
        self.tell(|| "all faults are mended".to_owned());
        self.heal();
        for host in &mut self.hosts {
            host.slow_us = 0;
        }
        for server in 0..self.servers.len() {
            self.continue_server(server);
        }
        for place in 0..self.places.len() {
            self.continue_client(place);
        }
        // Faults that were planned and have not come yet do not come.
        let entries = std::mem::take(&mut self.queue);
        self.queue =
            entries.into_iter().filter(|entry| !matches!(entry.event, Event::Fault(_))).collect();
    }

    /// Servers that died at or before a time.
    pub(crate) fn dead_since(&self, at_us: u64) -> BTreeSet<usize> {
        let died = |&(_, death): &(usize, &Option<u64>)| death.is_some_and(|at| at <= at_us);
        self.deaths.iter().enumerate().filter(died).map(|(server, _)| server).collect()
    }

    /// A frame of a client's session, with the payload of its request if there is one.
    pub(crate) fn frame(head: Vec<u8>, payload: Option<Arc<Pending>>) -> Sending<Arc<Pending>> {
        let payload = payload.map_or(Payload::None, Payload::Request);
        Sending { head, payload, sent: 0 }
    }
}
