//! Who has not proved the secret gets nothing, and who has no capability gets no data: for every
//! type of message.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use weir_core::auth::{CapabilityKey, Rights, Role, Secret, Transcript};
use weir_core::config::{Timing, WIRE_VERSION};
use weir_core::error::Code;
use weir_core::layout::{Extent, Member};
use weir_core::service::meta::MemoryStore;
use weir_core::service::storage::HeapMemory;
use weir_core::service::{Action, Outgoing, Peer, Service, ServiceOptions, TargetParts, Usage};
use weir_core::types::{
    ClientId, Credentials, Incarnation, Ino, Now, ServerIndex, TargetId, WallTime,
};
use weir_core::wire::control::{
    Challenge, ControlReply, ControlRequest, Formation, HELLO_MAGIC, Hello, PoolMap, Proof,
    ServerEntry, TargetEntry, Welcome,
};
use weir_core::wire::data::{Io, Runs, TargetCall, TargetRequest};
use weir_core::wire::meta::{
    LayoutWish, MetaAnswer, MetaCall, MetaReply, MetaRequest, OpenMode, Place,
};
use weir_core::wire::{self, HEADER_BYTES, Header, Kind};

const NOW: Now = Now { mono_ms: 1_000, wall: WallTime(1_000_000_000_000) };
const MEMBER: Member = Member { target: TargetId(0), incarnation: Incarnation(11) };

fn secret() -> Secret {
    Secret::from_bytes([1; 32])
}

fn service() -> Arc<Service> {
    Service::new(ServiceOptions {
        incarnation: Incarnation(99),
        secret: secret(),
        timing: Timing::default(),
        targets: vec![TargetParts {
            incarnation: MEMBER.incarnation,
            memory: Box::new(HeapMemory::new(8 << 20)),
            disk: None,
        }],
        prepared: Vec::new(),
        scrub: None,
        store: Box::new(MemoryStore::new(4 << 20)),
        description: ("0".to_owned(), 1, "host".to_owned()),
        usage: Box::new(Usage::default),
        started: NOW,
    })
}

fn map() -> PoolMap {
    PoolMap {
        epoch: 1,
        pool: [0; 16],
        name: "p".to_owned(),
        owner_uid: 1000,
        owner_gid: 1000,
        servers: vec![ServerEntry {
            address: "h:1".to_owned(),
            targets: vec![TargetEntry {
                id: MEMBER.target,
                incarnation: MEMBER.incarnation,
                memory: 8 << 20,
            }],
        }],
        metadata: vec![ServerIndex(0)],
        stripe_size: 1 << 20,
        stripe_count: 0,
    }
}

/// What came back: the frame's header and body.
fn parse(outgoing: &Outgoing) -> (Header, &[u8]) {
    let bytes = outgoing.head.first_chunk::<HEADER_BYTES>().expect("a header");
    (Header::decode(bytes).expect("a good header"), &outgoing.head[HEADER_BYTES..])
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the in-memory store never waits"),
    }
}

/// The answer to a frame, whatever form it takes; none where there is nothing to say.
fn answer(action: Action) -> (Option<Outgoing>, bool) {
    match action {
        Action::Nothing => (None, false),
        Action::Send(outgoing) => (Some(outgoing), false),
        Action::Discard(then) => answer(*then),
        Action::Later(task) => (Some(ready(task)), false),
        Action::Close(outgoing) => (outgoing, true),
        Action::Receive(_) => panic!("a payload would be taken"),
    }
}

fn header(kind: Kind, sequence: u32, body: &[u8], payload_length: u32) -> Header {
    Header { kind, slot: 3, sequence, body_length: body.len() as u32, payload_length }
}

fn io() -> Vec<u8> {
    let runs = Runs::One(Extent { offset: 0, length: 4 });
    Io { ino: Ino(2), member: MEMBER, map_epoch: 1, generation: 1, epoch: 0, runs }.encode()
}

/// A good body for every kind of frame that a client can send, by kind; with its payload's length.
fn bodies() -> Vec<(Kind, Vec<u8>, u32)> {
    let who = Credentials { uid: 0, gid: 0, groups: vec![] };
    let forged = CapabilityKey::from_bytes([9; 32]);
    let far = WallTime(i64::MAX);
    let target = |request| wire::encode(&TargetCall { member: MEMBER, map_epoch: 1, request });
    let meta = |request| wire::encode(&MetaCall { who: who.clone(), riders: Vec::new(), request });
    let mut bodies = vec![
        (Kind::Ping, vec![], 0),
        (Kind::Present, wire::encode(&forged.capability(Ino(2), Rights(255), 1, 1, far)), 0),
        (Kind::Read, io(), 0),
        (Kind::Write, io(), 4),
    ];
    let order = forged.reap_order(vec![Ino(2)], far);
    for request in [
        TargetRequest::Witness { ino: Ino(2) },
        TargetRequest::Truncate { ino: Ino(2), cut: 0, size: 0, epoch: 9 },
        TargetRequest::Stamp { ino: Ino(2), epoch: 9 },
        TargetRequest::Punch { ino: Ino(2), extents: vec![Extent { offset: 0, length: 1 }] },
        TargetRequest::Seek { ino: Ino(2), offset: 0, data: true },
        TargetRequest::Flush { ino: Ino(2) },
        TargetRequest::Remove { orders: vec![order] },
        TargetRequest::Extend { ino: Ino(2), size: 9, epoch: 0 },
    ] {
        bodies.push((Kind::Target, target(request), 0));
    }
    for request in [
        MetaRequest::Attributes { ino: Ino::ROOT },
        MetaRequest::List { ino: Ino::ROOT, after: vec![], limit: 10, attributes: true },
        MetaRequest::MakeDirectory { place: Place::new(Ino::ROOT, "d"), mode: 0o777 },
        MetaRequest::KeepAlive,
    ] {
        bodies.push((Kind::Meta, meta(request), 0));
    }
    for request in [
        ControlRequest::Describe,
        ControlRequest::Map,
        ControlRequest::Status,
        ControlRequest::Shutdown,
    ] {
        bodies.push((Kind::Control, wire::encode(&request), 0));
    }
    bodies
}

fn hello(role: Role) -> Vec<u8> {
    let client = ClientId(5);
    wire::encode(&Hello { magic: HELLO_MAGIC, client, stream: 0, role, nonce: [3; 32] })
}

fn prove(service: &Arc<Service>, peer: &mut Peer, secret: &Secret, role: Role) -> Outgoing {
    let body = hello(role);
    let (challenge, _) = answer(service.frame(NOW, peer, header(Kind::Hello, 0, &body, 0), &body));
    let challenge = challenge.expect("challenged");
    let (_, body) = parse(&challenge);
    let challenge: Challenge = wire::decode(body).expect("a challenge");
    let transcript = Transcript {
        client: ClientId(5),
        stream: 0,
        role,
        client_nonce: [3; 32],
        server_nonce: challenge.nonce,
    };
    let body = wire::encode(&Proof { mac: secret.client_proof(&transcript) });
    let (outgoing, _) = answer(service.frame(NOW, peer, header(Kind::Proof, 0, &body, 0), &body));
    outgoing.expect("an answer to the proof")
}

/// A connection of the pool's owner to a server that belongs to a pool.
fn formed(role: Role) -> (Arc<Service>, Peer) {
    let service = service();
    let mut peer = service.accept([4; 32]);
    let secret = secret().for_role(Role::Owner);
    prove(&service, &mut peer, &secret, Role::Owner);
    let transcript = Transcript {
        client: ClientId(5),
        stream: 0,
        role: Role::Owner,
        client_nonce: [3; 32],
        server_nonce: [4; 32],
    };
    let capability_key = secret.connection_key(&transcript).seal(&[77; 32]);
    let formation = Formation { map: map(), index: ServerIndex(0), capability_key };
    let body = wire::encode(&ControlRequest::Form(Box::new(formation)));
    // A slot of its own: the tests' sequence numbers start anew in theirs.
    let frame = Header { slot: 0, ..header(Kind::Control, 1, &body, 0) };
    let (outgoing, _) = answer(service.frame(NOW, &mut peer, frame, &body));
    let outgoing = outgoing.expect("formed");
    let (reply, body) = parse(&outgoing);
    assert_eq!(reply.kind, Kind::Reply);
    assert_eq!(wire::decode::<ControlReply>(body), Ok(ControlReply::Done));
    let mut fresh = service.accept([5; 32]);
    prove(&service, &mut fresh, &self::secret().for_role(role), role);
    (service, fresh)
}

#[test]
fn before_the_proof_every_message_is_refused() {
    let (service, _) = formed(Role::Owner);
    for (kind, body, payload) in bodies() {
        for greeted in [false, true] {
            let mut peer = service.accept([6; 32]);
            if greeted {
                let body = hello(Role::Owner);
                answer(service.frame(NOW, &mut peer, header(Kind::Hello, 0, &body, 0), &body));
            }
            let frame = header(kind, 1, &body, payload);
            let (outgoing, closed) = answer(service.frame(NOW, &mut peer, frame, &body));
            assert!(closed, "{kind:?} does not close the connection");
            let outgoing = outgoing.expect("a reason");
            let (refusal, body) = parse(&outgoing);
            assert_eq!(refusal.kind, Kind::Refused, "{kind:?}");
            assert_eq!(wire::decode_failure(body).code, Code::Unauthenticated, "{kind:?}");
            assert!(outgoing.payload.is_none());
        }
    }
    assert!(!service.shutdown_asked());
}

#[test]
fn only_the_right_secret_in_the_right_role_is_welcome() {
    let (service, _) = formed(Role::Owner);
    let other = Secret::from_bytes([2; 32]);
    for (secret, role, good) in [
        (secret().for_role(Role::Owner), Role::Owner, true),
        (secret().for_role(Role::Mount), Role::Mount, true),
        // Who has only the owner's derived secret cannot pose as a trusted mount.
        (secret().for_role(Role::Owner), Role::Mount, false),
        (secret().for_role(Role::Mount), Role::Owner, false),
        (other.for_role(Role::Owner), Role::Owner, false),
        (other, Role::Mount, false),
    ] {
        let mut peer = service.accept([7; 32]);
        let outgoing = prove(&service, &mut peer, &secret, role);
        let (reply, body) = parse(&outgoing);
        assert_eq!(reply.kind, if good { Kind::Welcome } else { Kind::Refused });
        if good {
            let welcome: Welcome = wire::decode(body).expect("a welcome");
            assert_eq!(welcome.server, Incarnation(99));
        }
    }
}

#[test]
fn a_recorded_handshake_opens_nothing() {
    let (service, _) = formed(Role::Owner);
    let transcript = Transcript {
        client: ClientId(5),
        stream: 0,
        role: Role::Owner,
        client_nonce: [3; 32],
        server_nonce: [8; 32],
    };
    let proof =
        wire::encode(&Proof { mac: secret().for_role(Role::Owner).client_proof(&transcript) });
    // The same bytes again, on a connection that was given another nonce.
    for (nonce, kind) in [([8; 32], Kind::Welcome), ([9; 32], Kind::Refused)] {
        let mut peer = service.accept(nonce);
        let body = hello(Role::Owner);
        answer(service.frame(NOW, &mut peer, header(Kind::Hello, 0, &body, 0), &body));
        let frame = header(Kind::Proof, 0, &proof, 0);
        let (outgoing, _) = answer(service.frame(NOW, &mut peer, frame, &proof));
        assert_eq!(parse(&outgoing.expect("an answer")).0.kind, kind);
    }
}

#[test]
fn without_a_genuine_capability_no_message_reaches_data() {
    let (service, mut peer) = formed(Role::Owner);
    let mut sequence = 100;
    // The forged capability among them is shown and must not help.
    for (kind, body, payload) in bodies() {
        if !matches!(kind, Kind::Present | Kind::Read | Kind::Write | Kind::Target) {
            continue;
        }
        sequence += 1;
        let frame = header(kind, sequence, &body, payload);
        let (outgoing, closed) = answer(service.frame(NOW, &mut peer, frame, &body));
        assert!(!closed, "{kind:?}");
        if kind == Kind::Present {
            assert!(outgoing.is_none());
            continue;
        }
        let outgoing = outgoing.expect("an answer");
        let (reply, text) = parse(&outgoing);
        assert_eq!(reply.kind, Kind::Failure, "{kind:?} {body:?}");
        assert_eq!(wire::decode_failure(text).code, Code::NoCapability, "{kind:?} {body:?}");
        assert!(outgoing.payload.is_none());
    }
}

fn meta(service: &Arc<Service>, peer: &mut Peer, sequence: u32, request: MetaRequest) -> MetaReply {
    let who = Credentials { uid: 7, gid: 7, groups: vec![] };
    let body = wire::encode(&MetaCall { who, riders: Vec::new(), request });
    let frame = header(Kind::Meta, sequence, &body, 0);
    let (outgoing, _) = answer(service.frame(NOW, peer, frame, &body));
    let outgoing = outgoing.expect("an answer");
    let (reply, body) = parse(&outgoing);
    assert_eq!(reply.kind, Kind::Reply, "{}", wire::decode_failure(body));
    wire::decode::<MetaAnswer>(body).expect("a reply").reply
}

#[test]
fn a_capability_allows_what_it_says_until_it_expires() {
    let (service, mut peer) = formed(Role::Owner);
    let create = MetaRequest::Create {
        place: Place::new(Ino::ROOT, "f"),
        mode: 0o600,
        exclusive: true,
        open: OpenMode::READ,
        layout: LayoutWish::default(),
    };
    let MetaReply::Opened(opened) = meta(&service, &mut peer, 1, create) else {
        panic!("not opened")
    };
    // The owner is believed to be himself only, whatever uid he states.
    assert_eq!(opened.record.attributes.uid, 1000);
    let body = wire::encode(&opened.capability);
    answer(service.frame(NOW, &mut peer, header(Kind::Present, 0, &body, 0), &body));
    let ino = opened.record.attributes.ino;
    let runs = Runs::One(Extent { offset: 0, length: 4 });
    let member = opened.layout.member(0);
    let generation = opened.layout.generation;
    let io = Io { ino, member, map_epoch: 1, generation, epoch: 0, runs };
    let later = Now { wall: WallTime(opened.capability.expires.0 + 1), ..NOW };
    for (now, kind, expected) in [
        (NOW, Kind::Read, Kind::Reply),
        (NOW, Kind::Write, Kind::Failure),
        (later, Kind::Read, Kind::Failure),
    ] {
        let body = io.encode();
        let sequence = 10 + u32::from(kind == Kind::Write) + 2 * u32::from(now == later);
        let payload = if kind == Kind::Write { 4 } else { 0 };
        let frame = Header { slot: 1, ..header(kind, sequence, &body, payload) };
        let (outgoing, _) = answer(service.frame(now, &mut peer, frame, &body));
        let outgoing = outgoing.expect("an answer");
        let (reply, text) = parse(&outgoing);
        assert_eq!(reply.kind, expected);
        if expected == Kind::Failure {
            assert_eq!(wire::decode_failure(text).code, Code::NoCapability);
        }
    }
    // Another life of the target: an error, not zeros.
    let other = Io { member: Member { incarnation: Incarnation(12), ..member }, ..io };
    let body = other.encode();
    let frame = Header { slot: 2, ..header(Kind::Read, 1, &body, 0) };
    let (outgoing, _) = answer(service.frame(NOW, &mut peer, frame, &body));
    let outgoing = outgoing.expect("an answer");
    assert_eq!(wire::decode_failure(parse(&outgoing).1).code, Code::Lost);
}

#[test]
fn only_a_trusted_mount_speaks_for_others() {
    let (service, mut peer) = formed(Role::Mount);
    // The root directory is the owner's (uid 1000) and nobody else may write there.
    let who = Credentials { uid: 7, gid: 7, groups: vec![] };
    let request = MetaRequest::MakeDirectory { place: Place::new(Ino::ROOT, "d"), mode: 0o777 };
    let body = wire::encode(&MetaCall { who, riders: Vec::new(), request });
    let frame = header(Kind::Meta, 1, &body, 0);
    let (outgoing, _) = answer(service.frame(NOW, &mut peer, frame, &body));
    let outgoing = outgoing.expect("an answer");
    let (reply, text) = parse(&outgoing);
    assert_eq!(reply.kind, Kind::Failure);
    assert_eq!(wire::decode_failure(text).code, Code::AccessDenied);
}

#[test]
fn other_versions_are_told_apart_from_noise() {
    let mut bytes = Header::plain(Kind::Hello, 0).encode();
    bytes[0] = WIRE_VERSION + 1;
    let error = Header::decode(&bytes).unwrap_err();
    assert_eq!(error.code, Code::Version);
    assert!(error.to_string().contains(&format!("version {}", WIRE_VERSION + 1)), "{error}");
}

mod noise {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever a client sends, proved or not, the server neither panics nor takes a payload
        /// that it has no place for.
        #[test]
        fn any_frames_are_answered_or_refused(
            proved: bool,
            frames in proptest::collection::vec(
                (0usize..9, 0u16..80, 0u32..4, 0usize..40, any::<Vec<u8>>(), 0u32..9), 1..40),
        ) {
            let (service, known) = formed(Role::Owner);
            let mut peer = if proved { known } else { service.accept([1; 32]) };
            let good = bodies();
            for (kind, slot, sequence, pick, noise, spoil) in frames {
                // Half of the bodies are good ones, spoilt or not; the others are noise.
                let kind = Kind::ALL[kind];
                let (body, payload) = match good.get(pick) {
                    Some((_, body, payload)) => (body.clone(), *payload),
                    None => (noise.clone(), u32::from(spoil > 4)),
                };
                let mut body = body;
                if spoil == 1 && !body.is_empty() {
                    let at = noise.len() % body.len();
                    body[at] ^= 0x40;
                }
                let frame = Header {
                    kind, slot, sequence, body_length: body.len() as u32, payload_length: payload,
                };
                match service.frame(NOW, &mut peer, frame, &body) {
                    Action::Receive(receiving) => {
                        let room: usize = receiving.ticket.buffers().iter().map(|s| s.length).sum();
                        prop_assert_eq!(room, payload as usize);
                    }
                    Action::Close(_) => break,
                    other => drop(answer(other)),
                }
            }
        }
    }
}
