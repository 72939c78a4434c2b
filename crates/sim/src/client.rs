//! A client process: the driver of its sessions, as `weir-client`'s, and the seam under [`Fs`].
//!
//! [`Fs`]: weir_core::fs::Fs

use crate::net::{Payload, Placement, Taker};
use crate::world::{Event, Job, World, lock};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use weir_core::auth::{ConnectionKey, Role};
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{Call, Rpc};
use weir_core::pending::{Pending, end};
use weir_core::session::{Completion, Expired, Identity, Reply, Request, Session};
use weir_core::types::{ClientId, Now, ServerIndex};
use weir_core::wire::Header;

/// Deadlines are looked at so often, as in the real driver.
const TICK_US: u64 = 50_000;

struct Stream {
    session: Session<Arc<Pending>>,
    connection: Option<u64>,
    connecting: bool,
    /// The deadline that is in the queue.
    deadline_us: Option<u64>,
}

/// A client process.
pub(crate) struct Client {
    pub(crate) host: usize,
    pub(crate) alive: bool,
    pub(crate) stopped: bool,
    /// Tasks that were woken while the process was stopped.
    pub(crate) waiting_jobs: Vec<Job>,
    streams: Vec<Vec<Stream>>,
}

impl Client {
    pub(crate) fn die(&mut self) {
        self.alive = false;
        self.stopped = false;
        self.streams.clear();
    }
}

impl World {
    /// Starts a client process on a host.
    pub(crate) fn start_client(&mut self, host: usize, streams: usize) -> usize {
        let id = ClientId(self.rng.word());
        let servers = (0..self.servers.len()).map(|server| {
            let stream = |stream: usize| {
                let identity = Identity {
                    client: id,
                    stream: stream as u16,
                    role: Role::Owner,
                    secret: self.secret.for_role(Role::Owner),
                    server_name: format!("server {server}"),
                };
                Stream {
                    session: Session::new(identity, self.timing.clone()),
                    connection: None,
                    connecting: false,
                    deadline_us: None,
                }
            };
            (0..streams).map(stream).collect()
        });
        let streams = servers.collect();
        self.clients.push(Client {
            host,
            alive: true,
            stopped: false,
            waiting_jobs: Vec::new(),
            streams,
        });
        self.clients.len() - 1
    }

    fn stream_of(&mut self, id: u64) -> Option<(usize, usize, usize)> {
        let connection = self.connections.get(&id)?;
        let (client, server, stream) = (connection.client, connection.server, connection.stream);
        let ours = self.clients[client].streams.get(server)?.get(stream)?;
        (ours.connection == Some(id)).then_some((client, server, stream))
    }

    pub(crate) fn client_connected(&mut self, id: u64) {
        let nonce = self.rng.bytes();
        let Some((client, server, stream)) = self.stream_of(id) else { return };
        let ours = &mut self.clients[client].streams[server][stream];
        ours.connecting = false;
        ours.session.connected(nonce);
        self.client_transmit(client, server, stream);
    }

    /// The connection is gone already; its session learns of it.
    pub(crate) fn client_lost_connection(
        &mut self,
        id: u64,
        (client, server, stream): (usize, usize, usize),
        trouble: &str,
    ) {
        let now_ms = self.now_ms();
        let of_server = self.clients[client].streams.get_mut(server);
        let Some(ours) = of_server.and_then(|of| of.get_mut(stream)) else { return };
        if ours.connection == Some(id) {
            ours.connection = None;
            ours.connecting = false;
            ours.session.disconnected(now_ms, Error::because(Code::ServerLost, trouble));
            self.client_schedule(client, server, stream);
        }
    }

    fn client_disconnect(&mut self, client: usize, server: usize, stream: usize, trouble: &str) {
        let now_ms = self.now_ms();
        let ours = &mut self.clients[client].streams[server][stream];
        let id = ours.connection.take();
        ours.connecting = false;
        ours.session.disconnected(now_ms, Error::because(Code::ServerLost, trouble));
        if let Some(id) = id {
            self.close_client_end(id);
        }
        self.client_schedule(client, server, stream);
    }

    pub(crate) fn client_heard(&mut self, id: u64) {
        let now_ms = self.now_ms();
        if let Some((client, server, stream)) = self.stream_of(id) {
            self.clients[client].streams[server][stream].session.heard(now_ms);
        }
    }

    /// Puts the session's next deadline into the queue.
    fn client_schedule(&mut self, client: usize, server: usize, stream: usize) {
        let now_us = self.now_us;
        let ours = &mut self.clients[client].streams[server][stream];
        let Some(timeout_ms) = ours.session.poll_timeout() else { return };
        let tick_us = (timeout_ms * 1000).max(now_us + 1).next_multiple_of(TICK_US);
        if ours.deadline_us.is_none_or(|at_us| at_us > tick_us || at_us <= now_us) {
            ours.deadline_us = Some(tick_us);
            self.at(tick_us, Event::Deadline { client, server, stream, at_us: tick_us });
        }
    }

    pub(crate) fn client_deadline(
        &mut self,
        client: usize,
        server: usize,
        stream: usize,
        at_us: u64,
    ) {
        let process = &mut self.clients[client];
        if process.stopped {
            // Looked at again when the process goes on.
            return;
        }
        let Some(ours) = process.streams.get_mut(server).and_then(|of| of.get_mut(stream)) else {
            return;
        };
        if ours.deadline_us != Some(at_us) {
            return;
        }
        ours.deadline_us = None;
        self.client_tick(client, server, stream);
        self.client_transmit(client, server, stream);
    }

    /// A process that was stopped goes on.
    pub(crate) fn client_catch_up(&mut self, client: usize) {
        let now_ms = self.now_ms();
        for server in 0..self.clients[client].streams.len() {
            for stream in 0..self.clients[client].streams[server].len() {
                let ours = &mut self.clients[client].streams[server][stream];
                ours.deadline_us = None;
                // Silence counts only while somebody listens.
                ours.session.heard(now_ms);
                self.client_tick(client, server, stream);
                self.client_transmit(client, server, stream);
            }
        }
    }

    fn client_tick(&mut self, client: usize, server: usize, stream: usize) {
        let now_ms = self.now_ms();
        let ours = &mut self.clients[client].streams[server][stream];
        match ours.session.handle_timeout(now_ms) {
            Expired::Nothing => {}
            Expired::Lost(completions) => {
                let id = ours.connection.take();
                ours.connecting = false;
                self.tell(|| format!("client {client} gives server {server} up"));
                if let Some(id) = id {
                    self.close_client_end(id);
                }
                end(completions);
            }
            Expired::Connect => {
                let id = self.connect(client, server, stream);
                let ours = &mut self.clients[client].streams[server][stream];
                ours.connection = Some(id);
                ours.connecting = true;
            }
        }
    }

    fn client_transmit(&mut self, client: usize, server: usize, stream: usize) {
        let ours = &mut self.clients[client].streams[server][stream];
        if let Some(id) = ours.connection
            && !ours.connecting
        {
            let mut frames = Vec::new();
            while let Some(transmit) = ours.session.poll_transmit() {
                let payload = transmit.payload_of.and_then(|slot| ours.session.tag(slot).cloned());
                frames.push(World::frame(transmit.head, payload));
            }
            for frame in frames {
                self.send(id, 0, frame);
            }
            // What the kernel's buffer takes, pings among it, is no sign of life.
            self.pump(id, 0);
        }
        self.client_schedule(client, server, stream);
    }

    pub(crate) fn client_take(&mut self, id: u64, bytes: &[u8]) {
        let now_ms = self.now_ms();
        let Some((client, server, stream)) = self.stream_of(id) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut reader = std::mem::take(&mut connection.streams[1].reader);
        let ours = &mut self.clients[client].streams[server][stream];
        let mut taker = Receiver { session: &mut ours.session, ended: Vec::new(), now_ms };
        let result = reader.feed(bytes, &mut taker);
        let ended = taker.ended;
        ours.session.heard(now_ms);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.streams[1].reader = reader;
        }
        if let Err(error) = result {
            self.tell(|| format!("client {client} closes to server {server}: {error}"));
            self.client_disconnect(client, server, stream, &error.cause);
        }
        self.client_transmit(client, server, stream);
        end(ended);
    }

    fn client_call(
        &mut self,
        client: usize,
        server: usize,
        lane: u64,
        request: Request<Arc<Pending>>,
    ) -> usize {
        let now_ms = self.now_ms();
        let of_server = &mut self.clients[client].streams[server];
        let stream = (lane % of_server.len() as u64) as usize;
        let ours = &mut of_server[stream];
        if let Err((pending, error)) = ours.session.submit(now_ms, request) {
            pending.end(Err(error));
            return stream;
        }
        if ours.connection.is_none() {
            self.client_tick(client, server, stream);
        }
        self.client_transmit(client, server, stream);
        stream
    }

    /// Forgets a request whose future was dropped: its memory is not touched again.
    fn abandon(&mut self, client: usize, server: usize, stream: usize, pending: &Arc<Pending>) {
        let of_client = &mut self.clients[client].streams;
        let Some(ours) = of_client.get_mut(server).and_then(|of| of.get_mut(stream)) else {
            return;
        };
        let is_it = |other: &Arc<Pending>| Arc::ptr_eq(other, pending);
        let receiving = ours.session.receiving_for().is_some_and(|other| is_it(&other));
        ours.session.cancel(is_it);
        let sending = ours.connection.and_then(|id| self.connections.get(&id)).is_some_and(|c| {
            c.streams[0]
                .unsent
                .iter()
                .any(|frame| matches!(&frame.payload, Payload::Request(p) if is_it(p)))
        });
        if sending || receiving {
            self.client_disconnect(client, server, stream, "a request was abandoned");
        }
    }

    fn connection_key(&self, client: usize, server: usize) -> Option<ConnectionKey> {
        self.clients[client].streams[server][0].session.connection_key().cloned()
    }
}

/// Hands what arrives to the session, as `weir-client` does.
struct Receiver<'a> {
    session: &'a mut Session<Arc<Pending>>,
    ended: Vec<Completion<Arc<Pending>>>,
    now_ms: u64,
}

impl Taker for Receiver<'_> {
    fn head(&mut self, header: Header, body: &[u8]) -> Result<Placement> {
        let place = self.session.take_head(self.now_ms, header, body, &mut self.ended)?;
        Ok(place.map_or(Placement::Discard, Placement::Into))
    }

    fn payload(&mut self) -> Result<()> {
        self.session.take_payload(self.now_ms, &mut self.ended);
        Ok(())
    }
}

/// The seam that the shipped file logic runs over: a client process of the simulated cluster.
#[derive(Clone)]
pub(crate) struct SimRpc {
    pub(crate) world: Arc<Mutex<World>>,
    pub(crate) client: usize,
}

impl SimRpc {
    /// The key of the newest connection to a server.
    pub(crate) fn connection_key(&self, server: usize) -> Option<ConnectionKey> {
        lock(&self.world).connection_key(self.client, server)
    }
}

struct Abandon<'a> {
    rpc: &'a SimRpc,
    server: usize,
    stream: usize,
    pending: Arc<Pending>,
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if self.pending.is_under_way() {
            let mut world = lock(&self.rpc.world);
            world.abandon(self.rpc.client, self.server, self.stream, &self.pending);
        }
    }
}

impl Rpc for SimRpc {
    async unsafe fn call(&self, server: ServerIndex, call: Call) -> Result<Reply> {
        let server = usize::from(server.0);
        let pending = Pending::new(call.source, call.sink);
        let request = Request {
            kind: call.kind,
            body: call.body,
            payload_length: pending.source.iter().map(|slice| slice.length as u32).sum(),
            capability: call.capability,
            once: call.once,
            tag: pending.clone(),
        };
        let stream = lock(&self.world).client_call(self.client, server, call.lane, request);
        let abandon = Abandon { rpc: self, server, stream, pending };
        abandon.pending.ended().await
    }

    fn now(&self) -> Now {
        let world = lock(&self.world);
        world.now(world.clients[self.client].host)
    }

    async fn sleep(&self, ms: u64) {
        let until_us = lock(&self.world).now_us + ms.max(1) * 1000;
        Sleep { world: &self.world, until_us, set: false }.await;
    }
}

struct Sleep<'a> {
    world: &'a Mutex<World>,
    until_us: u64,
    set: bool,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut world = lock(self.world);
        if world.now_us >= self.until_us {
            return Poll::Ready(());
        }
        if !self.set {
            world.at(self.until_us, Event::Wake(context.waker().clone()));
        }
        drop(world);
        self.set = true;
        Poll::Pending
    }
}
