//! Session and service as a pair on a virtual clock: what breaks between them, and what happens
//! once all the same.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use weir_core::auth::{Role, Secret, Transcript};
use weir_core::config::{SLOTS_PER_STREAM_MAX, Timing};
use weir_core::error::{Code, Error};
use weir_core::service::meta::MemoryStore;
use weir_core::service::storage::HeapMemory;
use weir_core::service::{Action, Outgoing, Peer, Service, ServiceOptions, TargetParts, Usage};
use weir_core::session::{Completion, Expired, Identity, Incoming, Request, Session};
use weir_core::types::{ClientId, Incarnation, Now, ServerIndex, TargetId, WallTime};
use weir_core::wire::control::{
    ControlReply, ControlRequest, Formation, HELLO_MAGIC, Hello, PoolMap, Proof, ServerEntry,
    TargetEntry,
};
use weir_core::wire::{self, HEADER_BYTES, Header, Kind};

const SILENCE_MS: u64 = 1_000;

fn timing() -> Timing {
    Timing { heartbeat_ms: 200, silence_ms_max: SILENCE_MS, lease_ms: 5_000, ..Timing::default() }
}

fn service(life: u64) -> Arc<Service> {
    Service::new(ServiceOptions {
        incarnation: Incarnation(life),
        secret: Secret::from_bytes([1; 32]),
        timing: timing(),
        targets: vec![TargetParts {
            incarnation: Incarnation(life),
            memory: Box::new(HeapMemory::new(4 << 20)),
            disk: None,
        }],
        prepared: Vec::new(),
        scrub: None,
        store: Box::new(MemoryStore::new(1 << 20)),
        description: ("0".to_owned(), 1, "host".to_owned()),
        usage: Box::new(Usage::default),
        started: Now::default(),
    })
}

/// A client's session and a server, joined by a wire that a test can cut.
struct Pair {
    now_ms: u64,
    session: Session<u32>,
    service: Arc<Service>,
    peer: Option<Peer>,
    nonce: u8,
    /// Tags of requests that ended, and how.
    ended: Vec<(u32, Result<Vec<u8>, Code>)>,
    /// Answers are dropped: the wire breaks on its way back.
    deaf: bool,
    /// The server is reachable.
    reachable: bool,
    /// The server reads and answers.
    awake: bool,
}

impl Pair {
    fn new() -> Pair {
        let identity = Identity {
            client: ClientId(5),
            stream: 0,
            role: Role::Owner,
            secret: Secret::from_bytes([1; 32]).for_role(Role::Owner),
            server_name: "server 0 (h:1)".to_owned(),
        };
        Pair {
            now_ms: 10,
            session: Session::new(identity, timing()),
            service: service(1),
            peer: None,
            nonce: 0,
            ended: Vec::new(),
            deaf: false,
            reachable: true,
            awake: true,
        }
    }

    fn now(&self) -> Now {
        Now { mono_ms: self.now_ms, wall: WallTime(self.now_ms as i64 * 1_000_000) }
    }

    fn submit(&mut self, tag: u32, request: &ControlRequest, once: bool) {
        let request = Request {
            kind: Kind::Control,
            body: wire::encode(request),
            payload_length: 0,
            capability: None,
            once,
            tag,
        };
        self.session.submit(self.now_ms, request).expect("taken");
    }

    fn end(&mut self, completions: impl IntoIterator<Item = Completion<u32>>) {
        for completion in completions {
            let result = completion.result.map(|reply| reply.body).map_err(|error| error.code);
            self.ended.push((completion.tag, result));
        }
    }

    fn cut(&mut self) {
        if let Some(mut peer) = self.peer.take() {
            self.service.closed(self.now(), &mut peer);
            self.session.disconnected(self.now_ms, Error::because(Code::ServerLost, "cut"));
        }
    }

    fn handle(&mut self, outgoing: Outgoing) {
        let header = Header::decode(outgoing.head.first_chunk().expect("header")).expect("good");
        match self.session.receive(self.now_ms, header, &outgoing.head[HEADER_BYTES..]) {
            Incoming::Nothing | Incoming::Discard => {}
            Incoming::Done(completion) => self.end([completion]),
            Incoming::Ready(completions) => self.end(completions),
            Incoming::Close(completions) => {
                self.end(completions);
                self.cut();
            }
            Incoming::Payload(_) => panic!("no payloads here"),
        }
    }

    /// Lets everything happen that can happen now.
    fn settle(&mut self) {
        loop {
            match self.session.handle_timeout(self.now_ms) {
                Expired::Nothing => {}
                Expired::Connect if self.reachable => {
                    self.nonce += 1;
                    self.peer = Some(self.service.accept([self.nonce; 32]));
                    self.session.connected([self.nonce; 32]);
                }
                Expired::Connect => {
                    let trouble = Error::because(Code::ServerLost, "refused");
                    self.session.disconnected(self.now_ms, trouble);
                }
                Expired::Lost(completions) => {
                    self.end(completions);
                    if let Some(mut peer) = self.peer.take() {
                        self.service.closed(self.now(), &mut peer);
                    }
                }
            }
            if !self.awake || self.peer.is_none() {
                return;
            }
            let Some(transmit) = self.session.poll_transmit() else { return };
            let header =
                Header::decode(transmit.head.first_chunk().expect("header")).expect("good");
            let body = &transmit.head[HEADER_BYTES..];
            let now = self.now();
            let peer = self.peer.as_mut().expect("connected");
            let action = match self.service.frame(now, peer, header, body) {
                Action::Discard(then) => *then,
                action => action,
            };
            let answer = match action {
                Action::Nothing => None,
                Action::Send(outgoing) => Some(outgoing),
                Action::Discard(_) => panic!("thrown away once"),
                Action::Later(mut task) => {
                    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                        Poll::Ready(outgoing) => Some(outgoing),
                        Poll::Pending => panic!("the in-memory store never waits"),
                    }
                }
                Action::Close(outgoing) => outgoing,
                Action::Receive(_) => panic!("no payloads here"),
            };
            // The handshake goes through even to the deaf: it is the answers that get lost.
            let handshake = matches!(header.kind, Kind::Hello | Kind::Proof);
            match answer {
                Some(outgoing) if handshake || !self.deaf => self.handle(outgoing),
                _ => {}
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now_ms += 10;
            self.settle();
        }
    }
}

#[test]
fn requests_are_answered_in_their_own_slots() {
    let mut pair = Pair::new();
    for tag in 0..200 {
        pair.submit(tag, &ControlRequest::Describe, false);
    }
    pair.settle();
    let mut tags: Vec<u32> = pair.ended.iter().map(|(tag, _)| *tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..200).collect::<Vec<_>>());
    assert!(pair.ended.iter().all(|(_, result)| result.is_ok()));
    assert_eq!(pair.session.outstanding(), 0);
    assert_eq!(pair.session.poll_timeout(), None);
}

#[test]
fn a_request_whose_answer_was_lost_gets_its_first_answer() {
    let mut pair = Pair::new();
    pair.submit(0, &ControlRequest::Describe, true);
    pair.settle();
    // A server joins a pool once: carried out again, the request would fail.
    let key = pair.session.connection_key().expect("connected").seal(&[9; 32]);
    let target = TargetEntry { id: TargetId(0), incarnation: Incarnation(1), memory: 4 << 20 };
    let map = PoolMap {
        epoch: 1,
        pool: [0; 16],
        name: "p".to_owned(),
        owner_uid: 0,
        owner_gid: 0,
        servers: vec![ServerEntry { address: "h:1".to_owned(), targets: vec![target] }],
        metadata: vec![ServerIndex(0)],
        stripe_size: 1 << 20,
        stripe_count: 0,
    };
    let form = Formation { map, index: ServerIndex(0), capability_key: key };
    pair.deaf = true;
    pair.submit(1, &ControlRequest::Form(Box::new(form)), true);
    pair.settle();
    assert_eq!(pair.ended.len(), 1);
    pair.cut();
    pair.deaf = false;
    pair.pass(300);
    assert_eq!(pair.ended.len(), 2);
    let body = pair.ended[1].1.as_ref().expect("carried out once, told once");
    assert_eq!(wire::decode(body), Ok(ControlReply::Done));
    assert_eq!(pair.service.status(pair.now()).repeats, 1);
}

#[test]
fn silence_is_asked_about_then_fatal_and_then_forgiven() {
    let mut pair = Pair::new();
    pair.submit(0, &ControlRequest::Describe, false);
    pair.settle();
    pair.awake = false;
    for tag in 1..=SLOTS_PER_STREAM_MAX as u32 + 5 {
        pair.submit(tag, &ControlRequest::Describe, true);
    }
    pair.pass(SILENCE_MS - 100);
    assert_eq!(pair.ended.len(), 1, "failed before the time was over");
    pair.pass(200);
    assert_eq!(pair.ended.len(), SLOTS_PER_STREAM_MAX + 6);
    assert!(pair.ended[1..].iter().all(|(_, result)| *result == Err(Code::ServerLost)));
    // While it is away, errors come sooner; once it is back, all slots are of use again.
    pair.ended.clear();
    pair.submit(0, &ControlRequest::Describe, false);
    pair.pass(400);
    assert_eq!(pair.ended, [(0, Err(Code::ServerLost))]);
    pair.awake = true;
    pair.ended.clear();
    for tag in 0..2 * SLOTS_PER_STREAM_MAX as u32 {
        pair.submit(tag, &ControlRequest::Describe, true);
    }
    pair.pass(400);
    assert_eq!(pair.ended.len(), 2 * SLOTS_PER_STREAM_MAX);
    assert!(pair.ended.iter().all(|(_, result)| result.is_ok()), "{:?}", pair.ended);
}

#[test]
fn a_slow_server_that_answers_heartbeats_is_waited_for() {
    let mut pair = Pair::new();
    pair.submit(0, &ControlRequest::Describe, false);
    pair.settle();
    // Its answer is held back, but the connection lives: pongs are let through.
    pair.deaf = true;
    pair.submit(1, &ControlRequest::Describe, false);
    pair.settle();
    pair.deaf = false;
    pair.pass(10 * SILENCE_MS);
    assert_eq!(pair.ended.len(), 1, "given up although the server is alive");
    assert_eq!(pair.session.outstanding(), 1);
}

#[test]
fn a_server_that_cannot_be_reached_is_lost_in_time() {
    let mut pair = Pair::new();
    pair.reachable = false;
    pair.submit(0, &ControlRequest::Describe, false);
    pair.pass(SILENCE_MS + 50);
    assert_eq!(pair.ended, [(0, Err(Code::ServerLost))]);
    pair.reachable = true;
    pair.submit(1, &ControlRequest::Describe, false);
    pair.pass(300);
    assert!(pair.ended[1].1.is_ok());
}

/// Each further request to a killed server took a second: that a server is lost is found out once.
#[test]
fn a_lost_server_that_is_not_there_any_more_fails_requests_at_once() {
    let mut pair = Pair::new();
    pair.submit(0, &ControlRequest::Describe, false);
    pair.settle();
    pair.reachable = false;
    pair.cut();
    pair.submit(1, &ControlRequest::Describe, false);
    pair.pass(SILENCE_MS - 50);
    assert_eq!(pair.ended.len(), 1, "given up before its time");
    pair.pass(100);
    assert_eq!(pair.ended[1], (1, Err(Code::ServerLost)));
    for tag in 2..10 {
        pair.submit(tag, &ControlRequest::Describe, false);
        pair.pass(150);
        assert_eq!(pair.ended[tag as usize], (tag, Err(Code::ServerLost)));
    }
    // It is tried each time nevertheless.
    pair.reachable = true;
    pair.submit(10, &ControlRequest::Describe, false);
    pair.pass(150);
    assert!(pair.ended[10].1.is_ok());
}

#[test]
fn a_restarted_server_fails_what_was_under_way() {
    let mut pair = Pair::new();
    pair.submit(0, &ControlRequest::Describe, false);
    pair.settle();
    pair.deaf = true;
    pair.submit(1, &ControlRequest::Describe, false);
    pair.settle();
    pair.cut();
    pair.deaf = false;
    pair.service = service(2);
    pair.submit(2, &ControlRequest::Describe, true);
    pair.pass(300);
    pair.ended.sort_by_key(|(tag, _)| *tag);
    assert_eq!(pair.ended[1], (1, Err(Code::Lost)));
    assert!(pair.ended[2].1.is_ok(), "what was not yet sent is nobody's loss");
}

/// Two requests whose answers do not arrive. Then the server looks at leases after each of these
/// times, the client comes back, and this became of the requests.
fn after_looks(looks_ms: &[u64]) -> [Result<(), Code>; 2] {
    let mut pair = Pair::new();
    pair.submit(0, &ControlRequest::Describe, false);
    pair.settle();
    pair.deaf = true;
    pair.submit(1, &ControlRequest::Describe, true);
    pair.submit(2, &ControlRequest::Describe, false);
    pair.settle();
    pair.cut();
    pair.deaf = false;
    for &ms in looks_ms {
        let later = Now { mono_ms: pair.now_ms + ms, ..pair.now() };
        let service = pair.service.clone();
        let expire = std::pin::pin!(service.expire(later));
        assert!(expire.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    pair.pass(300);
    pair.ended.sort_by_key(|(tag, _)| *tag);
    [1, 2].map(|tag| pair.ended[tag].1.clone().map(drop))
}

#[test]
fn who_was_silent_for_longer_than_the_lease_is_told() {
    // The lease of 5 s passes while the client is stopped.
    let looks: Vec<u64> = (1..=6).map(|second| second * 1_000).collect();
    let changes_nothing = Ok(());
    assert_eq!(after_looks(&looks), [Err(Code::SessionLapsed), changes_nothing]);
}

#[test]
fn a_server_that_stood_still_blames_nobody_for_silence() {
    // It was suspended for a minute, as was the client.
    assert_eq!(after_looks(&[1_000, 61_000, 62_000, 65_000]), [Ok(()), Ok(())]);
    // And once it listens again, silence counts again.
    let looks: Vec<u64> = std::iter::once(1_000).chain((61..=67).map(|s| s * 1_000)).collect();
    assert_eq!(after_looks(&looks)[0], Err(Code::SessionLapsed));
}

#[test]
fn abandoned_requests_leave_no_trace() {
    let mut pair = Pair::new();
    pair.submit(0, &ControlRequest::Describe, false);
    pair.settle();
    for round in 0..3 * SLOTS_PER_STREAM_MAX as u32 {
        pair.deaf = round % 2 == 0;
        pair.submit(100 + round, &ControlRequest::Describe, true);
        pair.settle();
        pair.session.cancel(|&tag| tag == 100 + round);
        if round % 3 == 0 {
            pair.cut();
        }
        if round % 7 == 0 {
            pair.deaf = false;
            pair.pass(200);
        }
    }
    pair.cut();
    pair.deaf = false;
    pair.ended.clear();
    for tag in 0..SLOTS_PER_STREAM_MAX as u32 {
        pair.submit(tag, &ControlRequest::Describe, true);
    }
    pair.pass(300);
    assert_eq!(pair.ended.len(), SLOTS_PER_STREAM_MAX);
    for (_, result) in &pair.ended {
        let body = result.as_ref().expect("answered");
        assert!(matches!(wire::decode(body), Ok(ControlReply::Description(_))));
    }
}

#[test]
fn a_newer_connection_fences_the_older_one() {
    let mut pair = Pair::new();
    pair.submit(0, &ControlRequest::Describe, false);
    pair.settle();
    let mut old = pair.peer.take().expect("connected");
    pair.session.disconnected(pair.now_ms, Error::because(Code::ServerLost, "cut"));
    pair.submit(1, &ControlRequest::Describe, false);
    pair.pass(300);
    assert_eq!(pair.ended.len(), 2);
    let body = wire::encode(&ControlRequest::Shutdown);
    let header = Header {
        kind: Kind::Control,
        slot: 0,
        sequence: 2,
        body_length: body.len() as u32,
        payload_length: 0,
    };
    let action = pair.service.frame(pair.now(), &mut old, header, &body);
    assert!(matches!(action, Action::Close(_)));
    assert!(!pair.service.shutdown_asked());
}

/// Story: a client gave up a connection in the middle of the handshake and made another. The server
/// saw the first one's proof late, after the second's, and took the first for the newest; the client's
/// requests on the second failed with a protocol error. (Simulator, seed 103643.)
#[test]
fn a_proof_that_comes_late_does_no_harm() {
    let mut pair = Pair::new();
    pair.submit(0, &ControlRequest::Describe, false);
    pair.settle();
    let mut stale = pair.service.accept([77; 32]);
    let (client, stream, role) = (ClientId(5), 0, Role::Owner);
    let (client_nonce, server_nonce) = ([78; 32], [77; 32]);
    let hello = Hello { magic: HELLO_MAGIC, client, stream, role, nonce: client_nonce };
    let transcript = Transcript { client, stream, role, client_nonce, server_nonce };
    let secret = Secret::from_bytes([1; 32]).for_role(role);
    let proof = Proof { mac: secret.client_proof(&transcript) };
    let now = pair.now();
    for (kind, body) in [(Kind::Hello, wire::encode(&hello)), (Kind::Proof, wire::encode(&proof))] {
        let header = Header::plain(kind, body.len());
        let action = pair.service.frame(now, &mut stale, header, &body);
        assert!(matches!(action, Action::Send(_)), "{kind:?}");
    }
    pair.submit(1, &ControlRequest::Describe, true);
    pair.pass(400);
    assert_eq!(pair.ended.len(), 2);
    assert!(pair.ended[1].1.is_ok(), "{:?}", pair.ended[1]);
}
