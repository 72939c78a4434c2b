//! A server process: the driver of the shipped services, as `weir-server`'s.

use crate::disk::{Asked, Faults, Platter, SimDisk, Speed};
use crate::kept::{Bell, Shelf};
use crate::net::{Payload, Placement, Sending, Taker};
use crate::planted::{Bug, Planted};
use crate::rng::Rng;
use crate::store::SlowStore;
use crate::world::{Event, Job, JobWaker, World, lock};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use weir_core::error::{Code, Error, Result};
use weir_core::service::meta::{MemoryStore, MetaStore};
use weir_core::service::storage::HeapMemory;
use weir_core::service::storage::disk::{Disk, MemoryDisk};
use weir_core::service::{
    Action, Outgoing, Peer, Receiving, Service, ServiceOptions, TargetParts, Usage,
};
use weir_core::slice::Slice;
use weir_core::types::{Incarnation, Now};
use weir_core::wire::data::{Io, TargetCall, TargetRequest};
use weir_core::wire::meta::MetaCall;
use weir_core::wire::{self, Header, Kind};

/// How often a server looks at its deadlines, as in the real driver.
const TICK_US: u64 = 500_000;

type Task = Pin<Box<dyn Future<Output = Outgoing> + Send>>;
type Chore = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// What a server's process is made of: its service, its disks, and when each has done what it was asked.
type Made = (Arc<Service>, Vec<(Arc<SimDisk>, u64)>);

/// What a server is given.
#[derive(Clone, Debug)]
pub(crate) struct Equipment {
    pub(crate) targets: usize,
    pub(crate) memory: usize,
    pub(crate) metadata_memory: u64,
    /// Longest answer of its metadata store: microseconds.
    pub(crate) store_us: u64,
    /// How fast the targets' disks are, if they have any.
    pub(crate) disk: Option<Speed>,
    /// What is wrong with those, if anything is.
    pub(crate) faults: Option<Faults>,
}

/// One small target, and nothing slow or broken.
impl Default for Equipment {
    fn default() -> Equipment {
        Equipment {
            targets: 1,
            memory: 4 << 20,
            metadata_memory: 1 << 20,
            store_us: 0,
            disk: None,
            faults: None,
        }
    }
}

/// Room on a target's disk: blocks.
const DISK_BLOCKS: u64 = 16 << 10;

/// A server process.
pub(crate) struct Server {
    pub(crate) host: usize,
    /// Counts its processes.
    pub(crate) life: u64,
    pub(crate) alive: bool,
    pub(crate) host_down: bool,
    pub(crate) stopped: bool,
    pub(crate) service: Arc<Service>,
    equipment: Equipment,
    /// Its targets' disks, and when each has done all that it was asked for.
    disks: Vec<(Arc<SimDisk>, u64)>,
    /// What outlives its processes, if something does.
    pub(crate) shelf: Option<Shelf>,
    /// Its own and its targets' incarnations: drawn anew for each life.
    incarnations: Vec<Incarnation>,
    /// Requests that wait, and the connection to answer on.
    tasks: BTreeMap<u64, (u64, Task)>,
    next_task: u64,
    chore: Option<Chore>,
    waiting_jobs: Vec<Job>,
}

impl Server {
    /// Requests that its disks have not ended.
    pub(crate) fn disk_pending(&self) -> usize {
        self.disks.iter().map(|(disk, _)| disk.pending()).sum()
    }

    pub(crate) fn die(&mut self, power: bool, rng: &mut Rng) {
        if let Some(shelf) = &mut self.shelf {
            // What its disks had been asked for they may have done.
            for (disk, _) in &self.disks {
                while disk.pending() > 0 && rng.chance(60) {
                    disk.step(rng.below(disk.pending() as u64) as usize);
                }
            }
            shelf.die(power, rng);
        }
        self.alive = false;
        self.host_down = power;
        self.stopped = false;
        self.tasks.clear();
        self.chore = None;
        self.waiting_jobs.clear();
    }
}

/// The server's side of a connection.
pub(crate) struct AtServer {
    peer: Peer,
    receiving: Option<Receiving>,
    after_discard: Option<Action>,
    closing: bool,
}

impl World {
    fn service(
        &mut self,
        equipment: &Equipment,
        incarnations: &[Incarnation],
        host: usize,
        (server, life): (usize, u64),
    ) -> Made {
        let disk = |target| {
            let place = (server, life, target);
            let platter = Platter::Scratch(MemoryDisk::new(DISK_BLOCKS));
            (Arc::new(SimDisk::new(platter, place, self.asking.clone())), 0)
        };
        let disks: Vec<_> = match equipment.disk {
            Some(_) => (0..equipment.targets).map(disk).collect(),
            None => Vec::new(),
        };
        if let Some(faults) = equipment.faults {
            for (disk, _) in &disks {
                disk.faulty().iter().for_each(|disk| faults.plant(disk, &mut self.rng));
            }
        }
        let parts = |(target, &incarnation): (usize, &Incarnation)| TargetParts {
            incarnation,
            memory: Box::new(HeapMemory::new(equipment.memory)),
            disk: disks.get(target).map(|(disk, _)| disk.clone() as Arc<dyn Disk>),
        };
        let store = SlowStore::new(
            equipment.metadata_memory,
            equipment.store_us,
            self.rng.fork(),
            self.sleepers.clone(),
        );
        let service = Service::new(ServiceOptions {
            targets: incarnations[1..].iter().enumerate().map(parts).collect(),
            ..self.options(incarnations[0], host, Box::new(store))
        });
        (service, disks)
    }

    /// A service without targets.
    fn options(
        &self,
        incarnation: Incarnation,
        host: usize,
        store: Box<dyn MetaStore>,
    ) -> ServiceOptions {
        ServiceOptions {
            incarnation,
            secret: self.secret.clone(),
            timing: self.timing.clone(),
            targets: Vec::new(),
            prepared: Vec::new(),
            scrub: None,
            store,
            description: ("sim".to_owned(), 1, format!("host-{host}")),
            usage: Box::new(Usage::default),
            started: self.now(host),
        }
    }

    /// What a shelf holds, served.
    fn kept_service(
        &mut self,
        equipment: &Equipment,
        shelf: &mut Shelf,
        host: usize,
        (server, life): (usize, u64),
    ) -> Result<Made> {
        let platter = Platter::Kept(shelf.disk());
        let disk = Arc::new(SimDisk::new(platter, (server, life, 0), self.asking.clone()));
        let bells = self.bells.clone();
        let bell = || -> Bell {
            let bells = bells.clone();
            Box::new(move || lock(&bells).push((server, life)))
        };
        let brought = shelf.bring(disk.clone(), equipment, &bell, self.planted.bug)?;
        let none = || Box::new(MemoryStore::new(equipment.metadata_memory)) as Box<dyn MetaStore>;
        let store = brought.store.unwrap_or_else(none);
        let incarnation = Incarnation(self.rng.word());
        let service = Service::new(ServiceOptions {
            prepared: vec![brought.target],
            ..self.options(incarnation, host, store)
        });
        self.at(self.now_us, Event::Journal { server, life, again: true });
        Ok((service, vec![(disk, 0)]))
    }

    /// Sets the time for what disks were asked.
    pub(crate) fn disks_asked(&mut self) {
        let asked = std::mem::take(&mut *lock(&self.asking));
        for Asked { server, life, target, bytes } in asked {
            let process = &mut self.servers[server];
            let (Some(speed), Some((_, busy_us))) =
                (process.equipment.disk, process.disks.get_mut(target))
            else {
                continue;
            };
            *busy_us = self.now_us.max(*busy_us) + bytes * 1000 / speed.bytes_per_ms;
            let faults = process.equipment.faults;
            let stall_us = faults.map_or(0, |faults| faults.stall_us(&mut self.rng));
            let at_us = *busy_us + speed.latency_us + stall_us;
            self.at(at_us, Event::Disk { server, life, target });
        }
    }

    pub(crate) fn disk_ends(&mut self, server: usize, life: u64, target: usize) {
        let process = &self.servers[server];
        if !process.alive || process.life != life {
            return;
        }
        if process.stopped {
            // The device has done it; the process does not see it yet.
            let at_us = self.now_us + 1000;
            return self.at(at_us, Event::Disk { server, life, target });
        }
        let (disk, service) = (process.disks[target].0.clone(), process.service.clone());
        let now = self.now(process.host);
        if let Some(faults) = process.equipment.faults {
            disk.faulty().iter().for_each(|disk| faults.watch(disk));
        }
        let pending = disk.pending() as u64;
        if pending > 0
            && let Some(done) = disk.step(self.rng.below(pending) as usize)
        {
            service.disk_done(now, target, vec![done]);
        }
    }

    /// Starts a server process on a host of its own.
    pub(crate) fn start_server(&mut self, host: usize, equipment: Equipment) {
        let incarnations: Vec<_> =
            (0..=equipment.targets).map(|_| Incarnation(self.rng.word())).collect();
        let server = self.servers.len();
        let made = self.service(&equipment, &incarnations, host, (server, 1));
        self.enlist(host, equipment, made, incarnations, None);
    }

    /// Starts one whose content outlives it; the first has the names, too.
    pub(crate) fn start_kept_server(&mut self, host: usize, equipment: Equipment) {
        let server = self.servers.len();
        let mut shelf = Shelf::new(Incarnation(self.rng.word()), server == 0);
        match self.kept_service(&equipment, &mut shelf, host, (server, 1)) {
            Ok(made) => self.enlist(host, equipment, made, Vec::new(), Some(shelf)),
            Err(error) => self.fail(|| format!("server {server} is not made: {error}")),
        }
    }

    fn enlist(
        &mut self,
        host: usize,
        equipment: Equipment,
        (service, disks): Made,
        incarnations: Vec<Incarnation>,
        shelf: Option<Shelf>,
    ) {
        let server = self.servers.len();
        self.servers.push(Server {
            shelf,
            host,
            life: 1,
            alive: true,
            host_down: false,
            stopped: false,
            service,
            equipment,
            disks,
            incarnations,
            tasks: BTreeMap::new(),
            next_task: 0,
            chore: None,
            waiting_jobs: Vec::new(),
        });
        self.deaths.push(None);
        self.at(self.now_us + TICK_US, Event::Tick { server, life: 1 });
    }

    /// Starts a dead server's successor, which belongs to no pool, and has nothing but what outlives
    /// servers.
    pub(crate) fn restart_server(&mut self, server: usize) {
        if self.servers[server].alive {
            return;
        }
        let host = self.servers[server].host;
        let equipment = self.servers[server].equipment.clone();
        let incarnations: Vec<_> = match self.planted.bug {
            Some(Bug::Hole) => self.servers[server].incarnations.clone(),
            _ => (0..=equipment.targets).map(|_| Incarnation(self.rng.word())).collect(),
        };
        let life = self.servers[server].life + 1;
        let (service, disks) = match self.servers[server].shelf.take() {
            None => self.service(&equipment, &incarnations, host, (server, life)),
            Some(mut shelf) => {
                let made = self.kept_service(&equipment, &mut shelf, host, (server, life));
                self.servers[server].shelf = Some(shelf);
                match made {
                    Ok(made) => made,
                    Err(error) => {
                        return self.fail(|| format!("server {server} is not back: {error}"));
                    }
                }
            }
        };
        let process = &mut self.servers[server];
        process.service = service;
        process.disks = disks;
        process.incarnations = incarnations;
        process.life += 1;
        process.alive = true;
        process.host_down = false;
        let life = process.life;
        self.at(self.now_us + TICK_US, Event::Tick { server, life });
        self.reset_stale(server);
    }

    pub(crate) fn server_accept(&mut self, server: usize) -> AtServer {
        let nonce = self.rng.bytes();
        let peer = self.servers[server].service.accept(nonce);
        AtServer { peer, receiving: None, after_discard: None, closing: false }
    }

    pub(crate) fn server_tick(&mut self, server: usize, life: u64) {
        let process = &mut self.servers[server];
        if !process.alive || process.life != life {
            return;
        }
        self.at(self.now_us + TICK_US, Event::Tick { server, life });
        let now = self.now(self.servers[server].host);
        let process = &mut self.servers[server];
        if process.stopped || process.chore.is_some() {
            return;
        }
        let service = process.service.clone();
        process.chore = Some(Box::pin(async move { service.expire(now).await }));
        self.server_chore(server);
    }

    fn server_chore(&mut self, server: usize) {
        let ready = self.ready.clone();
        let process = &mut self.servers[server];
        let job = Job::Request { server, life: process.life, task: u64::MAX };
        let waker = Waker::from(Arc::new(JobWaker { ready, job }));
        if let Some(chore) = &mut process.chore
            && let Poll::Ready(result) = chore.as_mut().poll(&mut Context::from_waker(&waker))
        {
            process.chore = None;
            // It is tried again.
            if let Err(error) = result
                && !self.disks_fail
            {
                self.fail(|| format!("server {server} forgetting silent clients: {error}"));
            }
        }
    }

    /// A process that was stopped goes on.
    pub(crate) fn server_catch_up(&mut self, server: usize) {
        let jobs = std::mem::take(&mut self.servers[server].waiting_jobs);
        jobs.into_iter().for_each(|job| self.ready.push(job));
    }

    /// Goes on with a request that had to wait.
    pub(crate) fn server_job(&mut self, server: usize, life: u64, task: u64) {
        let ready = self.ready.clone();
        let process = &mut self.servers[server];
        if !process.alive || process.life != life {
            return;
        }
        let job = Job::Request { server, life, task };
        if process.stopped {
            process.waiting_jobs.push(job);
            return;
        }
        if task == u64::MAX {
            return self.server_chore(server);
        }
        let waker = Waker::from(Arc::new(JobWaker { ready, job }));
        let Some((id, request)) = process.tasks.get_mut(&task) else { return };
        let id = *id;
        if let Poll::Ready(answer) = request.as_mut().poll(&mut Context::from_waker(&waker)) {
            process.tasks.remove(&task);
            // The connection may be gone; then the answer is kept for the next one.
            self.server_answer(id, vec![answer]);
        }
    }

    fn server_answer(&mut self, id: u64, answers: Vec<Outgoing>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(at_server) = &connection.at_server else { return };
        let client = at_server.peer.client();
        for mut answer in answers {
            self.planted.answer(client, &mut answer.head);
            let payload = answer.payload.map_or(Payload::None, Payload::Ticket);
            connection.streams[1].unsent.push_back(Sending { head: answer.head, payload, sent: 0 });
        }
        self.pump(id, 1);
        self.close_if_drained(id);
    }

    /// A connection that is to be closed once everything is sent.
    pub(crate) fn close_if_drained(&mut self, id: u64) {
        if let Some(connection) = self.connections.get(&id)
            && connection.at_server.as_ref().is_some_and(|at_server| at_server.closing)
            && connection.streams[1].unsent.is_empty()
        {
            self.close_server_end(id);
        }
    }

    /// The server's side of a connection ends.
    pub(crate) fn server_closed(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let server = connection.server;
        let Some(mut at_server) = connection.at_server.take() else { return };
        let service = self.servers[server].service.clone();
        let now = self.now(self.servers[server].host);
        if self.planted.tears()
            && let Some(receiving) = at_server.receiving.take()
        {
            // The planted bug: what has come of the payload is committed as if it were all.
            service.received(now, &at_server.peer, receiving);
        }
        service.closed(now, &mut at_server.peer);
    }

    pub(crate) fn server_take(&mut self, id: u64, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let server = connection.server;
        let Some(mut at_server) = connection.at_server.take() else { return };
        if at_server.closing {
            connection.at_server = Some(at_server);
            return;
        }
        let mut reader = std::mem::take(&mut connection.streams[0].reader);
        let now = self.now(self.servers[server].host);
        let process = &mut self.servers[server];
        let service = process.service.clone();
        let mut taker = Reception {
            service: &service,
            now,
            at_server: &mut at_server,
            answers: Vec::new(),
            later: Vec::new(),
            planted: &mut self.planted,
            rng: &mut self.rng,
            notes: self.tells.then(Vec::new),
        };
        let result = reader.feed(bytes, &mut taker);
        let Reception { answers, later, notes, .. } = taker;
        for note in notes.into_iter().flatten() {
            self.tell(|| format!("    server {server}, connection {id}: {note}"));
        }
        let closing = at_server.closing;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.streams[0].reader = reader;
            connection.at_server = Some(at_server);
        }
        for task in later {
            let process = &mut self.servers[server];
            let number = process.next_task;
            process.next_task += 1;
            process.tasks.insert(number, (id, task));
            let life = process.life;
            self.server_job(server, life, number);
        }
        self.server_answer(id, answers);
        if let Err(error) = result
            && !closing
        {
            self.fail(|| format!("server {server} closes connection {id}: {error}"));
            self.close_server_end(id);
        }
    }
}

/// Hands what arrives to the service, as `weir-server` does.
struct Reception<'a> {
    service: &'a Arc<Service>,
    now: Now,
    at_server: &'a mut AtServer,
    answers: Vec<Outgoing>,
    later: Vec<Task>,
    planted: &'a mut Planted,
    rng: &'a mut Rng,
    /// What arrives, in words, if the story is told.
    notes: Option<Vec<String>>,
}

impl Reception<'_> {
    fn act(&mut self, action: Action, payload_length: u32) -> Result<Placement> {
        match action {
            Action::Nothing => {}
            Action::Send(answer) => self.answers.push(answer),
            Action::Receive(receiving) if payload_length > 0 => {
                let slices: Vec<Slice> = receiving.ticket.buffers().to_vec();
                self.at_server.receiving = Some(receiving);
                return Ok(Placement::Into(slices));
            }
            Action::Receive(receiving) => {
                let action = self.service.received(self.now, &self.at_server.peer, receiving);
                return self.act(action, 0);
            }
            Action::Discard(then) if payload_length > 0 => {
                self.at_server.after_discard = Some(*then);
            }
            Action::Discard(then) => return self.act(*then, 0),
            Action::Later(task) => self.later.push(task),
            Action::Close(answer) => {
                self.answers.extend(answer);
                self.at_server.closing = true;
                return Err(Error::because(Code::Protocol, "connection refused"));
            }
        }
        Ok(Placement::Discard)
    }
}

impl Taker for Reception<'_> {
    fn head(&mut self, header: Header, body: &[u8]) -> Result<Placement> {
        let client = self.at_server.peer.client();
        let (header, body) = self.planted.request(client, header, body, self.rng);
        if let Some(notes) = &mut self.notes {
            notes.push(words(header, &body));
        }
        let action = self.service.frame(self.now, &mut self.at_server.peer, header, &body);
        self.act(action, header.payload_length)
    }

    fn payload(&mut self) -> Result<()> {
        if let Some(receiving) = self.at_server.receiving.take() {
            if let Some(head) = self.planted.lose(self.now, self.rng) {
                // The planted bug: acknowledged, and dropped.
                self.answers.push(Outgoing { head, payload: None });
                return Ok(());
            }
            let action = self.service.received(self.now, &self.at_server.peer, receiving);
            self.act(action, 0)?;
        } else if let Some(then) = self.at_server.after_discard.take() {
            self.act(then, 0)?;
        }
        Ok(())
    }
}

/// A request in words, for the story.
fn words(header: Header, body: &[u8]) -> String {
    let what = match header.kind {
        Kind::Read | Kind::Write => {
            Io::decode(body).map(|io| format!("inode {} {:?}", io.ino.0, io.runs))
        }
        Kind::Target => wire::decode::<TargetCall>(body).map(|call| match call.request {
            TargetRequest::Remove { orders } => {
                let inos: Vec<_> = orders.iter().flat_map(|order| &order.inos).collect();
                format!("Remove {inos:?}")
            }
            request => format!("{request:?}"),
        }),
        Kind::Meta => wire::decode::<MetaCall>(body).map(|call| format!("{:?}", call.request)),
        _ => Ok(String::new()),
    };
    let what = what.unwrap_or_else(|error| error.to_string());
    format!("{:?} {}.{} {what:.1000}", header.kind, header.slot, header.sequence)
}
