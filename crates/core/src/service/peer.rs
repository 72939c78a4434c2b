//! A server as its connections see it: the handshake, capabilities, and the way to targets and
//! metadata. Nothing is served before the
//! secret is proved.

use super::meta::{MetaService, MetaStore};
use super::scrub::Scrub;
use super::shown::Shown;
use super::storage::disk::{Disk, DiskDone};
use super::storage::{Memory, ReadTicket, Target, WriteTicket};
use super::stream::{Admission, Stream};
use crate::auth::{
    Capability, CapabilityKey, ConnectionKey, Rights, Role, Secret, Transcript, mac_equal,
};
use crate::config::{SESSIONS_MAX, Timing};
use crate::error::{Code, Error, Result};
use crate::layout::Member;
use crate::types::{ClientId, Credentials, Incarnation, Ino, Now, ServerIndex};
use crate::wire::control::{
    Challenge, ControlReply, ControlRequest, Description, Formation, HELLO_MAGIC, Hello, PoolMap,
    Proof, ServerStatus, Welcome,
};
use crate::wire::data::{Io, TargetCall, TargetReply, TargetRequest};
use crate::wire::meta::{MetaAnswer, MetaCall, MetaRequest};
use crate::wire::{self, Header, Kind};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// An answer to send: header and body, and the payload's memory, pinned until it is sent.
pub struct Outgoing {
    /// Header and body.
    pub head: Vec<u8>,
    /// What a read found.
    pub payload: Option<ReadTicket>,
}

impl Outgoing {
    fn plain(head: Vec<u8>) -> Outgoing {
        Outgoing { head, payload: None }
    }
}

/// A write whose payload is on its way. Dropping it leaves everything as it was.
pub struct Receiving {
    /// Where the payload goes.
    pub ticket: WriteTicket,
    header: Header,
}

/// What a frame asks of the driver.
pub enum Action {
    /// Nothing.
    Nothing,
    /// To send this.
    Send(Outgoing),
    /// To receive the payload into the ticket's buffers, then call [`Service::received`].
    Receive(Receiving),
    /// To receive the payload and throw it away, then do this.
    Discard(Box<Action>),
    /// To run this to its end, then send what it gives.
    Later(Pin<Box<dyn Future<Output = Outgoing> + Send>>),
    /// To send this, if anything, and close the connection.
    Close(Option<Outgoing>),
}

/// What only the operating system knows of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Processor time in its own code: microseconds.
    pub cpu_user_us: u64,
    /// Processor time in the kernel: microseconds.
    pub cpu_system_us: u64,
    /// Largest resident memory so far: bytes.
    pub resident_max: u64,
}

/// What a target is made of.
pub struct TargetParts {
    /// This life of the target, drawn at random.
    pub incarnation: Incarnation,
    /// Its memory.
    pub memory: Box<dyn Memory>,
    /// The disk under it, if there is one: see [`Service::disk_done`].
    pub disk: Option<Arc<dyn Disk>>,
}

/// What a server is made of.
pub struct ServiceOptions {
    /// This life of the server, drawn at random.
    pub incarnation: Incarnation,
    /// The pool's secret.
    pub secret: Secret,
    /// Times of the protocol.
    pub timing: Timing,
    /// What each target is made of.
    pub targets: Vec<TargetParts>,
    /// Targets that are there already: they came back from their journals.
    pub prepared: Vec<Arc<Target>>,
    /// What verifies the disk of the one that came back, if it did.
    pub scrub: Option<Arc<Scrub>>,
    /// Where metadata goes, should this server be chosen to hold it.
    pub store: Box<dyn MetaStore>,
    /// For people: version, process id, host.
    pub description: (String, u32, String),
    /// Asks the operating system about this server.
    pub usage: Box<dyn Fn() -> Usage + Send + Sync>,
    /// When it started.
    pub started: Now,
}

struct Formed {
    map: PoolMap,
    index: u16,
    key: CapabilityKey,
    targets: Vec<Arc<Target>>,
    meta: Option<Arc<MetaService>>,
}

#[derive(Default)]
struct Counters {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    target_requests: AtomicU64,
    metadata_requests: AtomicU64,
    metadata_unawaited: AtomicU64,
    failures: AtomicU64,
    repeats: AtomicU64,
    busy: AtomicU64,
    connections: AtomicU64,
    connections_accepted: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// One server: shared by all its connections.
pub struct Service {
    incarnation: Incarnation,
    secret: Secret,
    timing: Timing,
    description: (String, u32, String),
    usage: Box<dyn Fn() -> Usage + Send + Sync>,
    started: Now,
    unformed: Mutex<Option<Unformed>>,
    target_memory: Vec<(Incarnation, u64)>,
    /// Its targets outlive it.
    kept: bool,
    scrub: Option<Arc<Scrub>>,
    formed: OnceLock<Formed>,
    streams: Mutex<Streams>,
    counters: Counters,
    shutdown: std::sync::atomic::AtomicBool,
    /// When leases were looked at last; 0: never.
    looked_ms: AtomicU64,
    /// When it was found that this server had stood still.
    excused_ms: AtomicU64,
}

/// By client and stream.
type Streams = BTreeMap<(ClientId, u16), Arc<Stream>>;

struct Unformed {
    targets: Vec<TargetParts>,
    prepared: Vec<Arc<Target>>,
    store: Box<dyn MetaStore>,
}

/// One connection's state.
pub struct Peer {
    number: u64,
    state: PeerState,
    shown: Shown,
}

enum PeerState {
    /// Waits for Hello; holds the server's nonce.
    New([u8; 32]),
    /// Waits for the proof.
    Challenged(Box<Transcript>),
    /// Proved.
    Known(Box<Known>),
    Closed,
}

struct Known {
    client: ClientId,
    stream: u16,
    role: Role,
    key: ConnectionKey,
    session: Arc<Stream>,
}

/// A poisoned lock means that a bug panicked in the middle of a change: nothing to go on with.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// A server that belongs to no pool yet.
    pub fn new(options: ServiceOptions) -> Arc<Service> {
        let fresh =
            options.targets.iter().map(|parts| (parts.incarnation, parts.memory.length() as u64));
        let kept =
            options.prepared.iter().map(|target| (target.member().incarnation, target.capacity()));
        let target_memory = fresh.chain(kept).collect();
        Arc::new(Service {
            incarnation: options.incarnation,
            secret: options.secret,
            timing: options.timing,
            description: options.description,
            usage: options.usage,
            started: options.started,
            kept: !options.prepared.is_empty(),
            scrub: options.scrub,
            unformed: Mutex::new(Some(Unformed {
                targets: options.targets,
                prepared: options.prepared,
                store: options.store,
            })),
            target_memory,
            formed: OnceLock::new(),
            streams: Mutex::default(),
            counters: Counters::default(),
            shutdown: false.into(),
            looked_ms: AtomicU64::new(0),
            excused_ms: AtomicU64::new(0),
        })
    }

    /// A connection has come in; `nonce` is 32 random bytes.
    pub fn accept(&self, nonce: [u8; 32]) -> Peer {
        let number = self.counters.connections_accepted.fetch_add(1, Relaxed) + 1;
        count(&self.counters.connections);
        Peer { number, state: PeerState::New(nonce), shown: Shown::default() }
    }

    /// A connection has ended.
    pub fn closed(&self, now: Now, peer: &mut Peer) {
        if let PeerState::Known(known) = std::mem::replace(&mut peer.state, PeerState::Closed) {
            known.session.leave(peer.number, now);
            if let Some(meta) = self.formed.get().and_then(|formed| formed.meta.as_ref()) {
                meta.client_disconnected(known.client);
            }
        }
        self.counters.connections.fetch_sub(1, Relaxed);
    }

    /// Whether a client has asked for this server's end.
    pub fn shutdown_asked(&self) -> bool {
        self.shutdown.load(Relaxed)
    }

    /// To be called about once a second: forgets clients that were silent for too long.
    ///
    /// # Errors
    /// If the metadata store fails; what was not done is done by a later call.
    pub async fn expire(&self, now: Now) -> Result<()> {
        let since_ms = self.silence_since(now.mono_ms);
        lock(&self.streams).retain(|_, stream| !stream.lapsed(since_ms));
        if let Some(formed) = self.formed.get() {
            formed.targets.iter().for_each(|target| target.write_behind());
        }
        match self.formed.get().and_then(|formed| formed.meta.as_ref()) {
            Some(meta) => meta.expire(now, since_ms).await,
            None => Ok(()),
        }
    }

    /// Since when a client must have been silent for its lease to have lapsed. A server that itself
    /// stood still (its job was suspended, its machine starved) has not listened meanwhile: then
    /// everybody gets a whole lease from now on.
    fn silence_since(&self, now_ms: u64) -> u64 {
        let lease_ms = self.timing.lease_ms;
        let looked_ms = self.looked_ms.swap(now_ms, Relaxed);
        // Clients are heard twice in a lease at least: shorter stops take nobody over its end.
        if looked_ms > 0 && now_ms > looked_ms + lease_ms / 4 {
            self.excused_ms.store(now_ms, Relaxed);
        }
        let since_ms = now_ms.saturating_sub(lease_ms);
        if since_ms < self.excused_ms.load(Relaxed) { 0 } else { since_ms }
    }

    /// Waits until all that targets and metadata hold now is safe, where it is to outlive the server.
    ///
    /// # Errors
    /// If a disk failed.
    pub async fn save(&self) -> Result<()> {
        let Some(formed) = self.formed.get() else { return Ok(()) };
        for target in &formed.targets {
            target.save(None).await?;
        }
        match &formed.meta {
            Some(meta) => meta.save().await,
            None => Ok(()),
        }
    }

    /// A frame's header and body have arrived (its payload, if any, not yet).
    pub fn frame(
        self: &Arc<Self>,
        now: Now,
        peer: &mut Peer,
        header: Header,
        body: &[u8],
    ) -> Action {
        match self.try_frame(now, peer, header, body) {
            Ok(action) => action,
            // Errors here are about the connection; those of requests are answers.
            Err(error) => {
                let head =
                    wire::frame(Header::plain(Kind::Refused, 0), &wire::encode_failure(&error));
                Action::Close(Some(Outgoing::plain(head)))
            }
        }
    }

    fn try_frame(
        self: &Arc<Self>,
        now: Now,
        peer: &mut Peer,
        header: Header,
        body: &[u8],
    ) -> Result<Action> {
        if header.payload_length > 0 && header.kind != Kind::Write {
            return Err(wire::protocol(format!("{:?} with a payload", header.kind)));
        }
        match (&peer.state, header.kind) {
            (PeerState::New(nonce), Kind::Hello) => {
                let hello: Hello = wire::decode(body)?;
                if hello.magic != HELLO_MAGIC {
                    return Err(wire::protocol("hello without its magic"));
                }
                let challenge = Challenge { nonce: *nonce };
                peer.state = PeerState::Challenged(Box::new(Transcript {
                    client: hello.client,
                    stream: hello.stream,
                    role: hello.role,
                    client_nonce: hello.nonce,
                    server_nonce: challenge.nonce,
                }));
                let header = Header::plain(Kind::Challenge, 0);
                Ok(send(wire::frame(header, &wire::encode(&challenge))))
            }
            (PeerState::Challenged(transcript), Kind::Proof) => {
                let transcript = Transcript::clone(transcript);
                self.prove(now, peer, &transcript, &wire::decode(body)?)
            }
            (PeerState::Known(known), _) => {
                known.session.fence(peer.number)?;
                self.known_frame(now, peer, header, body)
            }
            _ => Err(Error::because(
                Code::Unauthenticated,
                format!("{:?} before the secret was proved", header.kind),
            )),
        }
    }

    fn prove(
        &self,
        now: Now,
        peer: &mut Peer,
        transcript: &Transcript,
        proof: &Proof,
    ) -> Result<Action> {
        let secret = self.secret.for_role(transcript.role);
        if !mac_equal(&secret.client_proof(transcript), &proof.mac) {
            count(&self.counters.failures);
            return Err(Error::because(
                Code::Unauthenticated,
                "the pool's secret was not proved: wrong secret file",
            ));
        }
        let (session, resumed) = {
            let mut streams = lock(&self.streams);
            let key = (transcript.client, transcript.stream);
            let resumed = streams.contains_key(&key);
            if streams.len() >= SESSIONS_MAX && !resumed {
                count(&self.counters.busy);
                let cause = format!("{SESSIONS_MAX} client sessions already");
                return Err(Error::because(Code::Busy, cause));
            }
            (streams.entry(key).or_default().clone(), resumed)
        };
        let sequences = session.take_over(peer.number, now);
        if let Some(meta) = self.formed.get().and_then(|formed| formed.meta.as_ref()) {
            meta.client_heard(transcript.client, now);
            // Perhaps it has given up an older connection that seems to be whole from here.
            meta.client_disconnected(transcript.client);
        }
        let welcome = Welcome {
            mac: secret.server_proof(transcript),
            server: self.incarnation,
            resumed,
            sequences,
            lease_ms: self.timing.lease_ms,
        };
        peer.state = PeerState::Known(Box::new(Known {
            client: transcript.client,
            stream: transcript.stream,
            role: transcript.role,
            key: secret.connection_key(transcript),
            session,
        }));
        Ok(send(wire::frame(Header::plain(Kind::Welcome, 0), &wire::encode(&welcome))))
    }

    fn known_frame(
        self: &Arc<Self>,
        now: Now,
        peer: &mut Peer,
        header: Header,
        body: &[u8],
    ) -> Result<Action> {
        match header.kind {
            Kind::Ping => {
                if let Some(meta) = self.formed.get().and_then(|formed| formed.meta.as_ref()) {
                    meta.client_heard(peer.known()?.client, now);
                }
                Ok(send(Header::plain(Kind::Pong, 0).encode().to_vec()))
            }
            Kind::Present => {
                // A bad one is not answered: the request that needs it will be.
                if let Ok(capability) = wire::decode::<Capability>(body)
                    && let Some(formed) = self.formed.get()
                    && formed.key.check(&capability, now.wall).is_ok()
                {
                    peer.shown.keep(capability);
                }
                Ok(Action::Nothing)
            }
            Kind::Read => self.read(now, peer, header, body),
            Kind::Write => self.write(now, peer, header, body),
            Kind::Target => {
                let call: TargetCall = wire::decode(body)?;
                let once = !call.request.repeatable();
                let kept = self.target(call.member).ok().filter(|target| target.is_kept());
                let Some(target) = kept.cloned() else {
                    return self.run(peer, header, once, |service, peer| {
                        count(&service.counters.target_requests);
                        Ok(wire::encode(&service.target_call(now, peer, &call)?))
                    });
                };
                if let Some(repeated) = self.admit(peer, header, false)? {
                    return Ok(Action::Send(repeated));
                }
                count(&self.counters.target_requests);
                let result = self.target_call(now, peer, &call);
                let work = async move {
                    let mut reply = result?;
                    match call.request {
                        TargetRequest::Flush { ino } => {
                            target.save(Some(ino)).await?;
                            // What went wrong on the way is told now, not to the next one.
                            reply = target.call(now, &call.request)?;
                        }
                        // Who is told that these are done may rely on it after a crash, too.
                        TargetRequest::Truncate { .. } | TargetRequest::Remove { .. } => {
                            target.settled().await?;
                        }
                        _ => {}
                    }
                    Ok(wire::encode(&reply))
                };
                self.carry_out(peer, header, once, work)
            }
            Kind::Meta => {
                let call: MetaCall = wire::decode(body)?;
                let known = peer.known()?;
                let (client, role) = (known.client, known.role);
                count(&self.counters.metadata_requests);
                if matches!(call.request, MetaRequest::KeepAlive | MetaRequest::Reaped { .. }) {
                    count(&self.counters.metadata_unawaited);
                }
                let once = !call.request.repeatable();
                self.later(peer, header, once, move |service| async move {
                    service.meta_call(now, client, role, call).await
                })
            }
            Kind::Control => {
                let request: ControlRequest = wire::decode(body)?;
                let once = !request.repeatable();
                let key = peer.known()?.key.clone();
                self.later(peer, header, once, move |service| async move {
                    Ok(wire::encode(&service.control(now, &key, request).await?))
                })
            }
            kind => Err(wire::protocol(format!("unexpected {kind:?}"))),
        }
    }

    /// Admits a request to its slot: a new one is to be carried out (none); a repeated one gets its
    /// first answer.
    fn admit(&self, peer: &Peer, header: Header, receiving: bool) -> Result<Option<Outgoing>> {
        match peer.known()?.session.admit(peer.number, header, receiving) {
            Ok(Admission::Run) => Ok(None),
            Ok(Admission::Repeat(frame)) => {
                count(&self.counters.repeats);
                Ok(Some(Outgoing::plain(frame)))
            }
            Err(error) => {
                self.count_failure::<()>(&Err(error.clone()));
                Err(error)
            }
        }
    }

    /// Runs a request that needs no waiting and has no payload.
    fn run(
        self: &Arc<Self>,
        peer: &mut Peer,
        header: Header,
        once: bool,
        work: impl FnOnce(&Arc<Self>, &mut Peer) -> Result<Vec<u8>>,
    ) -> Result<Action> {
        if let Some(repeated) = self.admit(peer, header, false)? {
            return Ok(Action::Send(repeated));
        }
        let result = work(self, peer);
        self.count_failure(&result);
        Ok(send(peer.known()?.session.settle(header, once, result, 0)))
    }

    fn count_failure<T>(&self, result: &Result<T>) {
        if let Err(error) = result {
            count(&self.counters.failures);
            if error.code == Code::Busy {
                count(&self.counters.busy);
            }
        }
    }

    fn read(
        self: &Arc<Self>,
        now: Now,
        peer: &mut Peer,
        header: Header,
        body: &[u8],
    ) -> Result<Action> {
        let io = Io::decode(body)?;
        if let Some(repeated) = self.admit(peer, header, false)? {
            return Ok(Action::Send(repeated));
        }
        let known = peer.known()?;
        let (client, session) = (known.client, known.session.clone());
        let ticket = self.target(io.member).and_then(|target| {
            peer.check(now, io.ino, Rights::READ, io.generation)?;
            match target.read_for(client, &io) {
                Err(error) if error.code == Code::WouldBlock => Ok(Err(target.clone())),
                ticket => ticket.map(Ok),
            }
        });
        match ticket {
            Ok(Ok(ticket)) => Ok(Action::Send(self.read_answer(header, &session, Ok(ticket)))),
            Err(error) => Ok(Action::Send(self.read_answer(header, &session, Err(error)))),
            Ok(Err(target)) => {
                let service = self.clone();
                Ok(Action::Later(Box::pin(async move {
                    let ticket = target.reading(io).await;
                    service.read_answer(header, &session, ticket)
                })))
            }
        }
    }

    fn read_answer(
        &self,
        header: Header,
        session: &Stream,
        ticket: Result<ReadTicket>,
    ) -> Outgoing {
        self.count_failure(&ticket);
        let (result, payload) = match ticket {
            Ok(ticket) => {
                count(&self.counters.reads);
                self.counters.bytes_read.fetch_add(ticket.length() as u64, Relaxed);
                (Ok(ticket.witness().encode().to_vec()), Some(ticket))
            }
            Err(error) => (Err(error), None),
        };
        let length = payload.as_ref().map_or(0, |ticket| ticket.length());
        let head = session.settle(header, false, result, length);
        Outgoing { head, payload: payload.filter(|_| length > 0) }
    }

    /// A target's disk has ended requests, or is to be looked after. `index` counts the targets as they
    /// were given.
    pub fn disk_done(&self, now: Now, index: usize, done: Vec<DiskDone>) {
        // Before it was formed, a server has no targets, and asked no disk for anything.
        if let Some(target) = self.formed.get().and_then(|formed| formed.targets.get(index)) {
            target.disk_done(now, done);
        }
    }

    fn write(
        self: &Arc<Self>,
        now: Now,
        peer: &mut Peer,
        header: Header,
        body: &[u8],
    ) -> Result<Action> {
        let io = Io::decode(body)?;
        if io.runs.length() != header.payload_length as usize {
            return Err(wire::protocol("a write whose payload is not its length"));
        }
        if let Some(repeated) = self.admit(peer, header, true)? {
            return Ok(Action::Discard(Box::new(Action::Send(repeated))));
        }
        let ticket = self.target(io.member).and_then(|target| {
            peer.check(now, io.ino, Rights::WRITE, io.generation)?;
            target.begin_write(now, &io)
        });
        let error = match ticket {
            Ok(ticket) => return Ok(Action::Receive(Receiving { ticket, header })),
            Err(error) => error,
        };
        let known = peer.known()?;
        // The client may try again when there is memory, not before.
        let room = match (error.code, self.target(io.member)) {
            (Code::Busy, Ok(target)) => target.room(known.client, io),
            _ => None,
        };
        let result = Err(error);
        self.count_failure(&result);
        let session = known.session.clone();
        let answer = match room {
            None => Action::Send(Outgoing::plain(session.settle(header, true, result, 0))),
            Some(room) => Action::Later(Box::pin(async move {
                room.await;
                Outgoing::plain(session.settle(header, true, result, 0))
            })),
        };
        Ok(Action::Discard(Box::new(answer)))
    }

    /// A write's payload is in the ticket's buffers: commits it, unless the connection was replaced
    /// meanwhile (then the newer one repeats the write from its start).
    pub fn received(&self, now: Now, peer: &Peer, receiving: Receiving) -> Action {
        let Receiving { ticket, header } = receiving;
        let Ok(known) = peer.known() else {
            return Action::Close(None);
        };
        if known.session.received(peer.number, header).is_err() {
            return Action::Close(None);
        }
        count(&self.counters.writes);
        self.counters.bytes_written.fetch_add(u64::from(header.payload_length), Relaxed);
        let target = ticket.target().clone();
        let result = ticket.commit(now).map(|witness| witness.encode().to_vec());
        self.count_failure(&result);
        // It is stored; only the writer may have to slow down to the disk.
        match target.turn(known.client, u64::from(header.payload_length)) {
            None => send(known.session.settle(header, true, result, 0)),
            Some(turn) => {
                let session = known.session.clone();
                Action::Later(Box::pin(async move {
                    turn.await;
                    Outgoing::plain(session.settle(header, true, result, 0))
                }))
            }
        }
    }

    /// Runs a request that may have to wait.
    fn later<F>(
        self: &Arc<Self>,
        peer: &Peer,
        header: Header,
        once: bool,
        work: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<Action>
    where
        F: Future<Output = Result<Vec<u8>>> + Send + 'static,
    {
        if let Some(repeated) = self.admit(peer, header, false)? {
            return Ok(Action::Send(repeated));
        }
        self.carry_out(peer, header, once, work(self.clone()))
    }

    /// Runs a request that was admitted.
    fn carry_out(
        self: &Arc<Self>,
        peer: &Peer,
        header: Header,
        once: bool,
        work: impl Future<Output = Result<Vec<u8>>> + Send + 'static,
    ) -> Result<Action> {
        let service = self.clone();
        let session = peer.known()?.session.clone();
        Ok(Action::Later(Box::pin(async move {
            let result = work.await;
            service.count_failure(&result);
            Outgoing::plain(session.settle(header, once, result, 0))
        })))
    }

    async fn meta_call(
        &self,
        now: Now,
        client: ClientId,
        role: Role,
        call: MetaCall,
    ) -> Result<Vec<u8>> {
        let formed = self.formed()?;
        let Some(meta) = &formed.meta else {
            return Err(Error::because(Code::Stale, "this server holds no metadata"));
        };
        let owner;
        let who = match role {
            Role::Mount => &call.who,
            Role::Owner => {
                owner = Credentials {
                    uid: formed.map.owner_uid,
                    gid: formed.map.owner_gid,
                    groups: Vec::new(),
                };
                &owner
            }
        };
        let garbage = meta.ride(client, &call.riders).await?;
        let reply = meta.handle(now, client, who, call.request).await?;
        Ok(wire::encode(&MetaAnswer { reply, garbage }))
    }

    fn target_call(&self, now: Now, peer: &mut Peer, call: &TargetCall) -> Result<TargetReply> {
        let target = self.target(call.member)?;
        target.check(call.member, call.map_epoch)?;
        let (ino, rights) = match &call.request {
            TargetRequest::Remove { orders } => {
                let key = &self.formed()?.key;
                orders.iter().try_for_each(|order| key.check_order(order, now.wall))?;
                let count = orders.iter().map(|order| target.remove(&order.inos)).sum();
                return Ok(TargetReply::Removed { count });
            }
            TargetRequest::Witness { ino }
            | TargetRequest::Stamp { ino, .. }
            | TargetRequest::Flush { ino }
            | TargetRequest::Seek { ino, .. } => (*ino, Rights::STAT),
            TargetRequest::Truncate { ino, .. }
            | TargetRequest::Punch { ino, .. }
            | TargetRequest::Extend { ino, .. } => (*ino, Rights::WRITE),
        };
        peer.check_rights(now, ino, rights)?;
        target.call(now, &call.request)
    }

    fn formed(&self) -> Result<&Formed> {
        self.formed.get().ok_or_else(|| match self.kept {
            // Whoever knows it waits until it is what it was.
            true => Error::because(Code::Busy, "server is coming back to its pool"),
            false => Error::new(Code::NotFormed),
        })
    }

    fn target(&self, member: Member) -> Result<&Arc<Target>> {
        let formed = self.formed()?;
        formed.targets.iter().find(|target| target.member().target == member.target).ok_or_else(
            || {
                let cause = format!("target {} is not on this server", member.target.0);
                Error::because(Code::Stale, cause)
            },
        )
    }

    async fn control(
        &self,
        now: Now,
        key: &ConnectionKey,
        request: ControlRequest,
    ) -> Result<ControlReply> {
        match request {
            ControlRequest::Describe => Ok(ControlReply::Description(Description {
                version: self.description.0.clone(),
                pid: self.description.1,
                host: self.description.2.clone(),
                targets: self.target_memory.clone(),
                formed: self.formed.get().is_some(),
            })),
            ControlRequest::Form(formation) => self.form(now, key, *formation).await,
            ControlRequest::Map => Ok(ControlReply::Map(Box::new(self.formed()?.map.clone()))),
            ControlRequest::Status => Ok(ControlReply::Status(Box::new(self.status(now)))),
            ControlRequest::Scrub { rate } => {
                let Some(scrub) = &self.scrub else {
                    let cause = "only a kept pool's disks are verified";
                    return Err(Error::because(Code::Unsupported, cause));
                };
                if rate > 0 {
                    let targets = self.formed()?.targets.iter();
                    scrub.begin(rate, targets.map(|target| target.status().disk_used).sum())?;
                }
                Ok(ControlReply::Scrub(Box::new(scrub.report())))
            }
            ControlRequest::Shutdown => {
                self.shutdown.store(true, Relaxed);
                Ok(ControlReply::Done)
            }
        }
    }

    async fn form(
        &self,
        now: Now,
        key: &ConnectionKey,
        formation: Formation,
    ) -> Result<ControlReply> {
        let key = CapabilityKey::from_bytes(key.open(&formation.capability_key)?);
        let index = usize::from(formation.index.0);
        let map = formation.map;
        let entry = map
            .servers
            .get(index)
            .ok_or_else(|| Error::because(Code::Invalid, "a pool map without this server"))?;
        let own: Vec<_> = entry.targets.iter().map(|t| (t.incarnation, t.memory)).collect();
        let known = |server: &ServerIndex| usize::from(server.0) < map.servers.len();
        if own != self.target_memory || map.metadata.is_empty() || !map.metadata.iter().all(known) {
            return Err(Error::because(Code::Invalid, "a pool map that does not fit this server"));
        }
        let Some(parts) = lock(&self.unformed).take() else {
            let name = self.formed.get().map_or("another", |formed| &formed.map.name);
            let cause = format!("server belongs to pool {name} already");
            return Err(Error::because(Code::Exists, cause));
        };
        let mut entries = entry.targets.iter();
        let mut targets: Vec<Arc<Target>> = parts
            .targets
            .into_iter()
            .zip(&mut entries)
            .map(|(parts, target)| {
                let member = Member { target: target.id, incarnation: parts.incarnation };
                Target::with(member, map.epoch, parts.memory, parts.disk)
            })
            .collect();
        for (target, entry) in parts.prepared.into_iter().zip(entries) {
            target.assign(entry.id, map.epoch);
            targets.push(target);
        }
        let meta = if map.metadata.contains(&formation.index) {
            let timing = self.timing.clone();
            let meta = MetaService::open(parts.store, key.clone(), &map, timing, now).await?;
            Some(Arc::new(meta))
        } else {
            None
        };
        let formed = Formed { index: formation.index.0, map, key, targets, meta };
        // Taking `unformed` made this the only one ever to be here.
        let _ = self.formed.set(formed);
        // Not before: what their disks have done is handed to targets that are known here.
        self.formed.get().iter().for_each(|it| it.targets.iter().for_each(|it| it.begin()));
        Ok(ControlReply::Done)
    }

    /// Counters and fill.
    pub fn status(&self, now: Now) -> ServerStatus {
        let usage = (self.usage)();
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let mut status = ServerStatus {
            pid: self.description.1,
            uptime_ms: now.mono_ms.saturating_sub(self.started.mono_ms),
            bytes_read: get(&self.counters.bytes_read),
            bytes_written: get(&self.counters.bytes_written),
            reads: get(&self.counters.reads),
            writes: get(&self.counters.writes),
            target_requests: get(&self.counters.target_requests),
            metadata_requests: get(&self.counters.metadata_requests),
            metadata_unawaited: get(&self.counters.metadata_unawaited),
            failures: get(&self.counters.failures),
            repeats: get(&self.counters.repeats),
            busy: get(&self.counters.busy),
            connections: get(&self.counters.connections),
            connections_accepted: get(&self.counters.connections_accepted),
            sessions: lock(&self.streams).len() as u64,
            memory: self.target_memory.iter().map(|&(_, memory)| memory).sum(),
            cpu_user_us: usage.cpu_user_us,
            cpu_system_us: usage.cpu_system_us,
            resident_max: usage.resident_max,
            ..ServerStatus::default()
        };
        if let Some(formed) = self.formed.get() {
            status.index = formed.index;
            status.address = formed.map.servers[usize::from(formed.index)].address.clone();
            status.memory_reserve = formed.targets.iter().map(|target| target.reserve()).sum();
            status.memory_used = formed.targets.iter().map(|target| target.used()).sum();
            status.objects = formed.targets.iter().map(|target| target.objects()).sum();
            status.targets = formed.targets.iter().map(|target| target.status()).collect();
            if let (Some(scrub), Some(target)) = (&self.scrub, status.targets.last_mut()) {
                let report = scrub.report();
                (target.scrubbed, target.scrub_errors) = (report.done, report.errors);
            }
            if let Some(meta) = &formed.meta {
                let (usage, inodes) = meta.fill();
                status.metadata_memory = usage.limit;
                status.metadata_used = usage.used;
                status.inodes = inodes;
                status.unfit = meta.unfit().iter().map(|target| target.0).collect();
            }
        }
        status
    }
}

impl Peer {
    fn known(&self) -> Result<&Known> {
        match &self.state {
            PeerState::Known(known) => Ok(known),
            // Frames that need it are refused before they come this far.
            _ => Err(Error::because(Code::Unauthenticated, "the secret was not proved")),
        }
    }

    fn check(&self, now: Now, ino: Ino, rights: Rights, generation: u32) -> Result<()> {
        let capability = self.check_rights(now, ino, rights)?;
        if capability.generation != generation {
            let cause = format!(
                "layout generation {generation} with a capability for {}",
                capability.generation
            );
            return Err(Error::because(Code::Stale, cause));
        }
        Ok(())
    }

    fn check_rights(&self, now: Now, ino: Ino, rights: Rights) -> Result<&Capability> {
        let refuse = |cause: &str| {
            Err(Error::because(Code::NoCapability, format!("inode {}: {cause}", ino.0)))
        };
        match self.shown.of(ino) {
            None => refuse("no capability was shown"),
            Some(capability) if !capability.rights.allow(rights) => {
                refuse("the capability shown does not allow it")
            }
            Some(capability) if capability.expires < now.wall => {
                refuse("the capability shown has expired")
            }
            Some(capability) => Ok(capability),
        }
    }

    /// Who speaks here, once that is proved.
    pub fn client(&self) -> Option<(ClientId, u16)> {
        match &self.state {
            PeerState::Known(known) => Some((known.client, known.stream)),
            _ => None,
        }
    }
}

fn send(head: Vec<u8>) -> Action {
    Action::Send(Outgoing::plain(head))
}
