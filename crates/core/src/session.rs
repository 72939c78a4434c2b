//! The client's side of one stream to one server: slots, sequence numbers, the handshake, repetition
//! after a reconnect, and the deadline on the server's silence. A state machine without I/O.
//!
//! A driver submits requests, sends what [`Session::poll_transmit`] gives, hands in what arrives, and
//! calls [`Session::handle_timeout`] when [`Session::poll_timeout`] says so. Each request comes out
//! again exactly once, as a [`Completion`], unless it is cancelled.
//!
//! *Slow is not dead*: while requests are under way and the server is silent it is asked for a sign
//! of life; only when it stays silent, that included, for [`Timing::silence_ms_max`], do they fail.
//! After a lost connection, requests are sent again with their old sequence numbers, so that the
//! server can tell a repetition from a new request.

use crate::auth::{Capability, ConnectionKey, Role, Secret, Transcript, mac_equal};
use crate::config::{SLOTS_PER_STREAM_MAX, Timing, WAITING_PER_STREAM_MAX};
use crate::error::{Code, Error, Result};
use crate::types::{ClientId, Incarnation};
use crate::wire::control::{Challenge, HELLO_MAGIC, Hello, Proof, Welcome};
use crate::wire::{self, Header, Kind};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A request as the session needs to know it.
#[derive(Debug)]
pub struct Request<T> {
    /// Read, Write, Target, Meta or Control.
    pub kind: Kind,
    /// The frame's body.
    pub body: Vec<u8>,
    /// Bytes of payload that follow it.
    pub payload_length: u32,
    /// Shown to the server before the request, once for each connection.
    pub capability: Option<Arc<Capability>>,
    /// Whether it must happen once: then its sequence number protects it from repetition, and it
    /// fails where a server that forgot this client leaves open whether it happened.
    pub once: bool,
    /// The driver's own: its buffers, and whom to tell.
    pub tag: T,
}

/// An answer's body; its payload is already where the driver put it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The frame's body.
    pub body: Vec<u8>,
    /// Bytes of payload that came with it.
    pub payload_length: usize,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completion<T> {
    /// The driver's own.
    pub tag: T,
    /// How it ended.
    pub result: Result<Reply>,
}

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Header and body.
    pub head: Vec<u8>,
    /// The slot whose payload follows, if one does.
    pub payload_of: Option<u16>,
}

/// What an incoming frame means for the driver.
#[derive(Debug)]
pub enum Incoming<T> {
    /// Nothing to do (there may be something to transmit now).
    Nothing,
    /// A request has ended.
    Done(Completion<T>),
    /// Payload follows, for the request in this slot; [`Session::payload_received`] when it is here.
    Payload(u16),
    /// Payload follows that nobody waits for any more.
    Discard,
    /// The handshake is done: requests flow. Some may have ended with it.
    Ready(Vec<Completion<T>>),
    /// The server will not have us, or makes no sense: close the connection.
    Close(Vec<Completion<T>>),
}

/// What a timeout asks of the driver.
#[derive(Debug)]
pub enum Expired<T> {
    /// Nothing (there may be something to transmit now).
    Nothing,
    /// Open a connection, then call [`Session::connected`] or [`Session::disconnected`].
    Connect,
    /// The server is lost: close the connection, if there is one. All requests have ended.
    Lost(Vec<Completion<T>>),
}

/// Who calls whom, and how it is proved.
#[derive(Clone, Debug)]
pub struct Identity {
    /// This client.
    pub client: ClientId,
    /// Which of its streams to the server this is.
    pub stream: u16,
    /// As what it calls.
    pub role: Role,
    /// The pool's mount secret or owner secret, whichever the role needs (see
    /// [`Secret::for_role`]).
    pub secret: Secret,
    /// The server's name for messages: `server 2 (10.0.0.7:4420)`.
    pub server_name: String,
}

#[derive(Debug)]
enum State {
    /// No connection; `retry_ms` says when to try again (if there is anything to do).
    Idle { retry_ms: u64 },
    /// The driver is connecting.
    Connecting,
    /// Hello sent.
    Greeting { client_nonce: [u8; 32] },
    /// Proof sent.
    Proving { transcript: Transcript },
    /// Requests flow.
    Ready,
}

#[derive(Debug)]
struct Slot<T> {
    sequence: u32,
    /// How far the server said that it got, when the connection was made.
    reached: u32,
    /// None: free, or abandoned while `sent`.
    request: Option<Request<T>>,
    /// Sent on this or an earlier connection, and not answered.
    sent: bool,
    /// The answer's body, while its payload is being received.
    answer: Option<Vec<u8>>,
}

/// See the module's description.
#[derive(Debug)]
pub struct Session<T> {
    identity: Identity,
    timing: Timing,
    state: State,
    slots: Vec<Slot<T>>,
    /// Slots that hold a request (others are free, or abandoned and waited for no more).
    in_slots: usize,
    free: Vec<u16>,
    waiting: VecDeque<Request<T>>,
    /// Frames of the handshake and heartbeats: go out first.
    urgent: VecDeque<Vec<u8>>,
    /// Slots to be sent, in order.
    outgoing: VecDeque<u16>,
    /// Capabilities shown on this connection: by inode, the code of the newest.
    shown: HashMap<u64, [u8; 32]>,
    server: Option<Incarnation>,
    key: Option<ConnectionKey>,
    receiving: Option<(u16, usize)>,
    heard_ms: u64,
    pinged_ms: u64,
    /// The server was declared lost and has not been heard since: less patience with it.
    lost: bool,
    /// The last attempt to reach the server was turned down, rather than not answered.
    refused: bool,
    /// Why the last connection ended, for the error's text.
    last_trouble: Option<Error>,
}

impl<T> Session<T> {
    /// A session without a connection.
    pub fn new(identity: Identity, timing: Timing) -> Session<T> {
        Session {
            identity,
            timing,
            state: State::Idle { retry_ms: 0 },
            slots: Vec::new(),
            in_slots: 0,
            free: Vec::new(),
            waiting: VecDeque::new(),
            urgent: VecDeque::new(),
            outgoing: VecDeque::new(),
            shown: HashMap::new(),
            server: None,
            key: None,
            receiving: None,
            heard_ms: 0,
            pinged_ms: 0,
            lost: false,
            refused: false,
            last_trouble: None,
        }
    }

    /// The server's name for messages.
    pub fn server_name(&self) -> &str {
        &self.identity.server_name
    }

    /// Whether requests flow.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// The key of the newest connection whose handshake was done: seals what only its other end may
    /// read.
    pub fn connection_key(&self) -> Option<&ConnectionKey> {
        self.key.as_ref()
    }

    /// Requests under way or waiting.
    pub fn outstanding(&self) -> usize {
        self.waiting.len() + self.in_slots
    }

    /// Takes a request in. Fails, giving it back, where too many wait already.
    pub fn submit(
        &mut self,
        now_ms: u64,
        request: Request<T>,
    ) -> std::result::Result<(), (T, Error)> {
        if self.waiting.len() >= WAITING_PER_STREAM_MAX {
            let cause = format!("{WAITING_PER_STREAM_MAX} requests wait for it already");
            return Err((request.tag, Error::because(Code::TooMany, cause)));
        }
        if self.outstanding() == 0 {
            // Silence counts only while something is waited for.
            self.heard_ms = now_ms;
            self.pinged_ms = now_ms;
            self.refused = false;
        }
        self.waiting.push_back(request);
        self.fill_slots();
        Ok(())
    }

    fn fill_slots(&mut self) {
        while !self.waiting.is_empty() {
            let slot = match self.free.pop() {
                Some(slot) => slot,
                None if self.slots.len() < SLOTS_PER_STREAM_MAX => {
                    let fresh =
                        Slot { sequence: 0, reached: 0, request: None, sent: false, answer: None };
                    self.slots.push(fresh);
                    (self.slots.len() - 1) as u16
                }
                None => return,
            };
            let entry = &mut self.slots[usize::from(slot)];
            entry.sequence = entry.sequence.wrapping_add(1);
            entry.request = self.waiting.pop_front();
            self.in_slots += 1;
            entry.sent = false;
            self.outgoing.push_back(slot);
        }
    }

    /// The driver's part of the request in a slot.
    pub fn tag(&mut self, slot: u16) -> Option<&mut T> {
        Some(&mut self.slots.get_mut(usize::from(slot))?.request.as_mut()?.tag)
    }

    /// Forgets the first request that `matches`: its buffers are not used again after this, provided
    /// that the driver is not in the middle of sending or receiving its payload. Whether it happens
    /// at the server is open if it was sent.
    pub fn cancel(&mut self, matches: impl Fn(&T) -> bool) -> Option<T> {
        if let Some(at) = self.waiting.iter().position(|request| matches(&request.tag)) {
            return self.waiting.remove(at).map(|request| request.tag);
        }
        let slot = self
            .slots
            .iter()
            .position(|slot| slot.request.as_ref().is_some_and(|request| matches(&request.tag)))?;
        let entry = &mut self.slots[slot];
        let request = entry.request.take()?;
        self.in_slots -= 1;
        entry.answer = None;
        if !entry.sent {
            // The sequence number was never used: the next request takes it.
            entry.sequence = entry.sequence.wrapping_sub(1);
            self.outgoing.retain(|&other| usize::from(other) != slot);
            self.free.push(slot as u16);
        }
        Some(request.tag)
    }

    /// The next frame to send, if there is one.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        if let Some(head) = self.urgent.pop_front() {
            return Some(Transmit { head, payload_of: None });
        }
        if !self.is_ready() {
            return None;
        }
        let &slot = self.outgoing.front()?;
        let entry = &mut self.slots[usize::from(slot)];
        let Some(request) = &entry.request else {
            // Abandoned before it could be sent again: the slot goes on from what the server has.
            self.outgoing.pop_front();
            entry.sequence = entry.reached;
            entry.sent = false;
            self.free.push(slot);
            self.fill_slots();
            return self.poll_transmit();
        };
        if let Some(capability) = &request.capability
            && self.shown.get(&capability.ino.0) != Some(&capability.mac)
        {
            if self.shown.len() >= crate::config::CAPABILITIES_PER_CONNECTION_MAX {
                // The server may know no more; showing one twice costs nothing but bytes.
                self.shown.clear();
            }
            self.shown.insert(capability.ino.0, capability.mac);
            let head =
                wire::frame(Header::plain(Kind::Present, 0), &wire::encode(capability.as_ref()));
            return Some(Transmit { head, payload_of: None });
        }
        self.outgoing.pop_front();
        entry.sent = true;
        let header = Header {
            kind: request.kind,
            slot,
            sequence: entry.sequence,
            body_length: 0,
            payload_length: request.payload_length,
        };
        let payload_of = (request.payload_length > 0).then_some(slot);
        Some(Transmit { head: wire::frame(header, &request.body), payload_of })
    }

    /// Whether [`Session::poll_transmit`] would give something.
    pub fn wants_transmit(&self) -> bool {
        !self.urgent.is_empty() || (self.is_ready() && !self.outgoing.is_empty())
    }

    /// The driver has a connection; `nonce` is 32 random bytes.
    pub fn connected(&mut self, nonce: [u8; 32]) {
        let hello = Hello {
            magic: HELLO_MAGIC,
            client: self.identity.client,
            stream: self.identity.stream,
            role: self.identity.role,
            nonce,
        };
        self.urgent.clear();
        self.shown.clear();
        self.urgent.push_back(wire::frame(Header::plain(Kind::Hello, 0), &wire::encode(&hello)));
        self.state = State::Greeting { client_nonce: nonce };
    }

    /// The connection ended, or could not be made. What was sent will be sent again.
    pub fn disconnected(&mut self, now_ms: u64, trouble: Error) {
        self.urgent.clear();
        self.shown.clear();
        self.receiving = None;
        for slot in &mut self.slots {
            slot.answer = None;
        }
        self.outgoing = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.request.is_some())
            .map(|(index, _)| index as u16)
            .collect();
        self.refused = matches!(self.state, State::Connecting);
        self.state = State::Idle { retry_ms: now_ms + self.timing.reconnect_ms };
        self.last_trouble = Some(trouble);
    }

    /// Bytes moved: the server is alive.
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// A frame's header and body arrived.
    pub fn receive(&mut self, now_ms: u64, header: Header, body: &[u8]) -> Incoming<T> {
        self.heard_ms = now_ms;
        match self.try_receive(now_ms, header, body) {
            Ok(incoming) => incoming,
            Err(error) => self.give_up(error),
        }
    }

    fn try_receive(&mut self, now_ms: u64, header: Header, body: &[u8]) -> Result<Incoming<T>> {
        match (&self.state, header.kind) {
            (State::Greeting { client_nonce }, Kind::Challenge) => {
                let challenge: Challenge = wire::decode(body)?;
                let transcript = Transcript {
                    client: self.identity.client,
                    stream: self.identity.stream,
                    role: self.identity.role,
                    client_nonce: *client_nonce,
                    server_nonce: challenge.nonce,
                };
                let proof = Proof { mac: self.identity.secret.client_proof(&transcript) };
                self.urgent
                    .push_back(wire::frame(Header::plain(Kind::Proof, 0), &wire::encode(&proof)));
                self.state = State::Proving { transcript };
                Ok(Incoming::Nothing)
            }
            (State::Proving { transcript }, Kind::Welcome) => {
                let welcome: Welcome = wire::decode(body)?;
                let expected = self.identity.secret.server_proof(transcript);
                if !mac_equal(&expected, &welcome.mac) {
                    return Err(Error::because(
                        Code::Unauthenticated,
                        format!("{} did not prove the secret", self.identity.server_name),
                    ));
                }
                self.key = Some(self.identity.secret.connection_key(transcript));
                self.pinged_ms = now_ms;
                Ok(Incoming::Ready(self.welcomed(&welcome)))
            }
            (State::Ready, Kind::Pong) => Ok(Incoming::Nothing),
            (State::Ready, Kind::Reply | Kind::Failure) => self.answered(header, body),
            (_, Kind::Refused) => Err(wire::decode_failure(body)),
            (_, kind) => Err(wire::protocol(format!("unexpected {kind:?}"))),
        }
    }

    /// Settles which of the requests sent on an earlier connection can be sent again.
    fn welcomed(&mut self, welcome: &Welcome) -> Vec<Completion<T>> {
        let restarted = self.server.is_some_and(|server| server != welcome.server);
        self.server = Some(welcome.server);
        self.lost = false;
        self.last_trouble = None;
        self.state = State::Ready;
        let mut ended = Vec::new();
        for index in 0..self.slots.len() {
            let entry = &mut self.slots[index];
            // A server that does not know the slot takes any number.
            entry.reached = welcome.sequences.get(index).copied().unwrap_or(entry.sequence);
            if entry.request.is_none() {
                // Free, or abandoned after it was sent: the server says how far the slot got.
                entry.sequence = entry.reached;
                if std::mem::take(&mut entry.sent) {
                    self.free.push(index as u16);
                }
                continue;
            }
            let open = entry.sent && entry.request.as_ref().is_some_and(|request| request.once);
            let error = if restarted && entry.sent {
                Error::because(Code::Lost, format!("{} restarted", self.identity.server_name))
            } else if !welcome.resumed && open {
                Error::because(
                    Code::SessionLapsed,
                    format!(
                        "{} forgot this client, which was silent for longer than {} s",
                        self.identity.server_name,
                        welcome.lease_ms / 1000
                    ),
                )
            } else {
                continue;
            };
            ended.extend(self.end_slot(index, Err(error)));
        }
        self.outgoing.retain(|&slot| self.slots[usize::from(slot)].request.is_some());
        self.fill_slots();
        ended
    }

    fn answered(&mut self, header: Header, body: &[u8]) -> Result<Incoming<T>> {
        let index = usize::from(header.slot);
        let Some(entry) = self.slots.get_mut(index) else {
            return Err(wire::protocol(format!("answer for slot {index}, which was never used")));
        };
        if !entry.sent || entry.sequence != header.sequence {
            return Err(wire::protocol(format!("answer for slot {index} out of step")));
        }
        if entry.request.is_none() {
            entry.sent = false;
            self.free.push(header.slot);
            self.fill_slots();
            return Ok(match header.payload_length {
                0 => Incoming::Nothing,
                _ => Incoming::Discard,
            });
        }
        if header.kind == Kind::Failure {
            let error = wire::decode_failure(body);
            if matches!(error.code, Code::NoCapability | Code::Busy)
                && let Some(request) = &entry.request
                && let Some(capability) = &request.capability
            {
                // The server may have let it go for others, or could not judge it yet, because it is
                // coming back to its pool: the next request shows it again.
                self.shown.remove(&capability.ino.0);
            }
            return Ok(match self.end_slot(index, Err(error)) {
                Some(completion) => Incoming::Done(completion),
                None => Incoming::Nothing,
            });
        }
        if header.payload_length > 0 {
            entry.answer = Some(body.to_vec());
            self.receiving = Some((header.slot, header.payload_length as usize));
            return Ok(Incoming::Payload(header.slot));
        }
        let reply = Reply { body: body.to_vec(), payload_length: 0 };
        Ok(match self.end_slot(index, Ok(reply)) {
            Some(completion) => Incoming::Done(completion),
            None => Incoming::Nothing,
        })
    }

    /// The slot whose payload is being received, and the payload's length.
    pub fn receiving(&self) -> Option<(u16, usize)> {
        self.receiving
    }

    /// The payload announced by [`Incoming::Payload`] is where it belongs.
    pub fn payload_received(
        &mut self,
        now_ms: u64,
        slot: u16,
        payload_length: usize,
    ) -> Option<Completion<T>> {
        self.heard_ms = now_ms;
        let index = usize::from(slot);
        self.receiving = None;
        let body = self.slots[index].answer.take()?;
        self.end_slot(index, Ok(Reply { body, payload_length }))
    }

    fn end_slot(&mut self, index: usize, result: Result<Reply>) -> Option<Completion<T>> {
        let entry = &mut self.slots[index];
        let request = entry.request.take();
        self.in_slots -= usize::from(request.is_some());
        entry.sent = false;
        entry.answer = None;
        self.free.push(index as u16);
        self.fill_slots();
        request.map(|request| Completion { tag: request.tag, result })
    }

    /// When [`Session::handle_timeout`] wants to be called: milliseconds, as `now_ms`.
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.outstanding() == 0 {
            return None;
        }
        let give_up = self.give_up_ms();
        Some(match self.state {
            State::Idle { retry_ms } => retry_ms.min(give_up),
            State::Ready => {
                give_up.min(self.heard_ms.max(self.pinged_ms) + self.timing.heartbeat_ms)
            }
            State::Connecting | State::Greeting { .. } | State::Proving { .. } => give_up,
        })
    }

    /// When requests fail if nothing is heard.
    fn give_up_ms(&self) -> u64 {
        // A server that was declared lost and is tried again gets a short chance, and none where nobody
        // listens any more, so that a program with a lost server fails quickly rather than at each
        // request anew.
        let patience_ms = match (self.lost, self.refused) {
            (false, _) => self.timing.silence_ms_max,
            (true, false) => self.timing.heartbeat_ms,
            (true, true) => 0,
        };
        self.heard_ms + patience_ms
    }

    /// Acts on the time.
    pub fn handle_timeout(&mut self, now_ms: u64) -> Expired<T> {
        if self.outstanding() == 0 {
            return Expired::Nothing;
        }
        if now_ms >= self.give_up_ms() {
            let silent_s = now_ms.saturating_sub(self.heard_ms) as f64 / 1000.0;
            let trouble = match &self.last_trouble {
                Some(trouble) => format!(" (last trouble: {})", trouble.cause),
                None => String::new(),
            };
            let error = Error::because(
                Code::ServerLost,
                format!("{} silent for {silent_s:.1} s{trouble}", self.identity.server_name),
            );
            self.lost = true;
            let ended = self.end_all(&error);
            self.disconnected(now_ms, error);
            self.refused = false;
            return Expired::Lost(ended);
        }
        match self.state {
            State::Idle { retry_ms } if now_ms >= retry_ms => {
                self.state = State::Connecting;
                Expired::Connect
            }
            State::Ready
                if now_ms >= self.heard_ms.max(self.pinged_ms) + self.timing.heartbeat_ms =>
            {
                self.pinged_ms = now_ms;
                self.urgent.push_back(Header::plain(Kind::Ping, 0).encode().to_vec());
                Expired::Nothing
            }
            _ => Expired::Nothing,
        }
    }

    /// Ends everything: the server refuses us, or talks nonsense.
    fn give_up(&mut self, error: Error) -> Incoming<T> {
        if error.code == Code::Busy {
            // Not now: the driver closes, and tries again with the same sequence numbers.
            return Incoming::Close(Vec::new());
        }
        Incoming::Close(self.end_all(&error))
    }

    /// Ends all requests with this error (their buffers are not used again).
    pub fn end_all(&mut self, error: &Error) -> Vec<Completion<T>> {
        let in_slots = self.slots.iter_mut().filter_map(|slot| {
            slot.answer = None;
            slot.request.take()
        });
        let waiting = std::mem::take(&mut self.waiting);
        let ended: Vec<_> = in_slots
            .chain(waiting)
            .map(|request| Completion { tag: request.tag, result: Err(error.clone()) })
            .collect();
        self.in_slots = 0;
        self.receiving = None;
        self.outgoing.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let index = index as u16;
            if !slot.sent && !self.free.contains(&index) {
                slot.sequence = slot.sequence.wrapping_sub(1);
                self.free.push(index);
            }
        }
        ended
    }
}
