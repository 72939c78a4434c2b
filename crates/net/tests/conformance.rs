//! What every transport must do, run against each of them.

use proptest::prelude::*;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_core::config::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX};
use weir_core::error::{Code, Error, Result};
use weir_core::slice::{Row, Slice};
use weir_core::wire::{self, Header, Kind};
use weir_net::shm::{self, ShmLink};
use weir_net::tcp::{self, TcpLink};
use weir_net::{Link, Payload, Placement, Poller, Received, Sink};

/// A payload of its own memory in several pieces, which says when it is let go.
struct Owned {
    /// Pieces of one length with a gap behind each; the last one may be shorter.
    memory: Vec<u8>,
    piece: usize,
    length: usize,
    _alive: Arc<()>,
}

/// Bytes between two pieces that are not to be sent.
const GAP: usize = 3;

impl Owned {
    fn new(bytes: &[u8], piece: usize, alive: &Arc<()>) -> Owned {
        let piece = piece.max(1);
        let memory = bytes.chunks(piece).flat_map(|part| [part, &[0xdd; GAP]].concat()).collect();
        Owned { memory, piece, length: bytes.len(), _alive: alive.clone() }
    }
}

impl Payload for Owned {
    fn rows(&self, into: &mut Vec<Row>) {
        let slice = |at: usize, length| Slice::to_read(&self.memory[at..at + length]);
        let (count, rest) = (self.length / self.piece, self.length % self.piece);
        let stride = self.piece + GAP;
        if count > 0 && self.piece % 2 == 1 {
            into.push(Row { first: slice(0, self.piece), count, stride });
        } else {
            into.extend((0..count).map(|i| Row::from(slice(i * stride, self.piece))));
        }
        if rest > 0 {
            into.push(slice(count * stride, rest).into());
        }
    }
}

/// One frame as it is sent, or as it came.
#[derive(Clone, Debug, PartialEq)]
struct Frame {
    slot: u16,
    body: Vec<u8>,
    payload: Vec<u8>,
    /// Whether the receiver throws the payload away.
    discard: bool,
}

/// Collects frames; payloads go into memory in pieces of `piece`, or, where `large` is not 0, in one
/// of so many bytes after each [`SMALL_ONES`] of those.
#[derive(Default)]
struct Collector {
    piece: usize,
    large: usize,
    frames: Vec<Frame>,
    place: Vec<u8>,
    waiting: Option<Frame>,
}

/// See [`Collector`]: enough for a list.
const SMALL_ONES: usize = 500;

impl Sink for Collector {
    fn head(&mut self, header: Header, body: &[u8]) -> Result<Placement> {
        assert!(self.waiting.is_none(), "a head in the middle of a payload");
        let discard = header.kind == Kind::Ping;
        let frame = Frame { slot: header.slot, body: body.to_vec(), payload: vec![], discard };
        if header.payload_length == 0 {
            self.frames.push(frame);
            return Ok(Placement::Discard);
        }
        self.waiting = Some(frame);
        if discard {
            return Ok(Placement::Discard);
        }
        self.place = vec![0xee; header.payload_length as usize];
        let (mut rest, mut slices) = (&mut self.place[..], Vec::new());
        while !rest.is_empty() {
            let is_large = self.large > 0 && slices.len() % (SMALL_ONES + 1) == SMALL_ONES;
            let piece = if is_large { self.large } else { self.piece.max(1) };
            let part = rest.split_off_mut(..piece.min(rest.len())).expect("no more than there is");
            slices.push(Slice::to_write(part));
        }
        Ok(Placement::Into(slices))
    }

    fn payload(&mut self) -> Result<()> {
        let mut frame = self.waiting.take().expect("a payload without its head");
        if !frame.discard {
            frame.payload = std::mem::take(&mut self.place);
        }
        self.frames.push(frame);
        Ok(())
    }
}

type AnyLink = Box<dyn Link<Owned>>;

/// A connected pair of links of each transport.
fn pairs() -> Vec<(&'static str, AnyLink, AnyLink)> {
    let listener = tcp::listen(([127, 0, 0, 1], 0).into()).expect("listen");
    let left = tcp::dial(listener.local_addr().expect("address")).expect("connect");
    let (right, _) = listener.accept().expect("accept");
    let link = |stream| Box::new(TcpLink::<Owned>::new(stream).expect("link"));
    let mut pairs: Vec<(&'static str, AnyLink, AnyLink)> = vec![("tcp", link(left), link(right))];
    let (left, right) = shm_pair();
    pairs.push(("shm", Box::new(left), Box::new(right)));
    pairs
}

fn shm_pair() -> (ShmLink<Owned>, ShmLink<Owned>) {
    // Nobody else has the address as long as its listener lives.
    let listener = tcp::listen(([127, 0, 0, 1], 0).into()).expect("listen");
    let address = listener.local_addr().expect("address");
    let beside = shm::listen(address).expect("listen");
    let left = shm::connect(address).expect("connect");
    let (right, _) = beside.accept().expect("accept");
    (left, ShmLink::accepted(right).expect("link"))
}

fn send(link: &mut dyn Link<Owned>, frame: &Frame, piece: usize) {
    send_counted(link, frame, piece, &Arc::default());
}

fn send_counted(link: &mut dyn Link<Owned>, frame: &Frame, piece: usize, alive: &Arc<()>) {
    let kind = if frame.discard { Kind::Ping } else { Kind::Write };
    let header = Header {
        kind,
        slot: frame.slot,
        sequence: 1,
        body_length: 0,
        payload_length: frame.payload.len() as u32,
    };
    let payload = (!frame.payload.is_empty()).then(|| Owned::new(&frame.payload, piece, alive));
    link.send(wire::frame(header, &frame.body), payload);
}

/// Moves bytes both ways until `count` frames have arrived on the right.
fn carry<P: Payload>(
    left: &mut dyn Link<P>,
    right: &mut dyn Link<Owned>,
    into: &mut Collector,
    count: usize,
) {
    let poller = Poller::new(Duration::from_micros(50)).expect("poller");
    poller.add(left.source(), 0, false, true).expect("add");
    poller.add(right.source(), 1, true, false).expect("add");
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut events = Vec::new();
    while into.frames.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} frames", into.frames.len());
        left.flush().expect("send");
        if left.unsent() == 0 {
            poller.change(left.source(), 0, false, false).expect("change");
        }
        poller.wait(&mut events, Some(Duration::from_millis(100))).expect("wait");
        if events.iter().any(|event| event.token == 1) {
            let (received, _) = right.receive(into).expect("receive");
            assert_ne!(received, Received::Closed);
        }
    }
}

fn expected(frames: &[Frame]) -> Vec<Frame> {
    let arrive = |frame: &Frame| match frame.discard {
        true => Frame { payload: vec![], ..frame.clone() },
        false => frame.clone(),
    };
    frames.iter().map(arrive).collect()
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8).collect()
}

#[test]
fn frames_of_every_size_arrive_whole_and_in_order() {
    let sizes = [0, 1, 63, 4096, 8191, 8192, 8193, 65_536, 100_000, 1 << 20, PAYLOAD_BYTES_MAX];
    for (name, mut left, mut right) in pairs() {
        let frames: Vec<Frame> = sizes
            .iter()
            .flat_map(|&size| {
                let body = pattern(size % 1000, size);
                [false, true].map(|discard| Frame {
                    slot: (size % 100) as u16,
                    body: body.clone(),
                    payload: pattern(size, 3),
                    discard,
                })
            })
            .collect();
        let alive = Arc::default();
        // Pieces that are named to the kernel, and (of lists) such as are copied side by side first.
        let ways = [
            (70_000, 65_536, 0),
            (256, 65_536, 0),
            (70_000, 300, 0),
            (1023, 1025, 0),
            (70_000, 1023, 5000),
            (256, 17, 300_000),
        ];
        for (out, into, large) in ways {
            frames.iter().for_each(|frame| send_counted(&mut *left, frame, out, &alive));
            let mut collector = Collector { piece: into, large, ..Collector::default() };
            carry(&mut *left, &mut *right, &mut collector, frames.len());
            assert!(collector.frames == expected(&frames), "{name}: {out}, {into}, {large}");
        }
        assert_eq!(left.unsent(), 0);
        assert_eq!(Arc::strong_count(&alive), 1, "payloads are let go once sent");
    }
}

#[test]
fn a_broken_link_is_an_error_for_who_sends() {
    for (_, mut left, right) in pairs() {
        let payload = vec![1; PAYLOAD_BYTES_MAX];
        let frame = Frame { slot: 1, body: vec![], payload, discard: false };
        drop(right);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            assert!(Instant::now() < deadline, "nothing was noticed");
            send(&mut *left, &frame, 1 << 20);
            if left.flush().is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn the_longest_body_arrives() {
    for (_, mut left, mut right) in pairs() {
        let frame =
            Frame { slot: 1, body: pattern(BODY_BYTES_MAX, 5), payload: vec![], discard: false };
        let frames = vec![frame.clone(), frame.clone(), frame];
        frames.iter().for_each(|frame| send(&mut *left, frame, 1));
        let mut collector = Collector::default();
        carry(&mut *left, &mut *right, &mut collector, 3);
        assert!(collector.frames == frames);
    }
}

#[test]
fn a_closed_end_is_noticed_and_half_a_payload_is_not_one() {
    for (_, mut left, mut right) in pairs() {
        // More than the kernel buffers at both ends.
        let payload = pattern(PAYLOAD_BYTES_MAX, 1);
        let frame = Frame { slot: 1, body: vec![], payload, discard: false };
        (0..8).for_each(|_| send(&mut *left, &frame, 1 << 20));
        left.flush().expect("send");
        assert!(left.unsent() > 0, "the wire took all of it");
        drop(left);
        let mut collector = Collector { piece: 1 << 20, ..Collector::default() };
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            assert!(Instant::now() < deadline);
            match right.receive(&mut collector) {
                Ok((Received::Closed, _)) | Err(_) => break,
                Ok(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        assert!(collector.frames.len() < 8);
        assert!(collector.frames.iter().all(|whole| *whole == frame));
    }
}

/// Sends frames one by one, each when the one before has come back, between two threads that sleep at
/// once whenever there is nothing: a wake-up that is lost would be the end.
#[test]
fn who_sleeps_is_woken() {
    /// Sends and receives until `count` frames have arrived; the one who `begins` sends first.
    fn play(mut link: AnyLink, begins: bool, count: usize) {
        let poller = Poller::new(Duration::ZERO).expect("poller");
        poller.add(link.source(), 7, true, false).expect("add");
        let mut collector = Collector { piece: 100_000, ..Collector::default() };
        let (mut events, mut wants_room) = (Vec::new(), false);
        // Longer than a ring or a socket's buffer, now and then.
        let frame = |number: usize| Frame {
            slot: number as u16,
            body: vec![],
            payload: pattern(if number % 50 == 49 { 3_000_000 } else { number % 3000 }, number),
            discard: false,
        };
        let mut sent = 0;
        let begun = Instant::now();
        while collector.frames.len() < count || sent < count || link.unsent() > 0 {
            let due = (collector.frames.len() + usize::from(begins)).min(count);
            while sent < due {
                send(&mut *link, &frame(sent), 1 << 20);
                sent += 1;
            }
            link.flush().expect("sent");
            if wants_room != (link.unsent() > 0) {
                wants_room = !wants_room;
                poller.change(link.source(), 7, true, wants_room).expect("change");
            }
            if collector.frames.len() == count && sent == count && link.unsent() == 0 {
                break;
            }
            poller.wait(&mut events, Some(Duration::from_secs(20))).expect("wait");
            assert!(begun.elapsed() < Duration::from_secs(18), "nobody was woken");
            if events.iter().any(|event| event.readable) {
                link.receive(&mut collector).expect("receive");
            }
        }
        for (number, arrived) in collector.frames.iter().enumerate() {
            assert!(*arrived == frame(number), "frame {number}");
        }
    }
    for (_, left, right) in pairs() {
        std::thread::scope(|scope| {
            scope.spawn(|| play(left, true, 3000));
            play(right, false, 3000);
        });
    }
}

/// That a processor is shared, or that both ends look at once, changes nothing of what arrives.
#[test]
fn a_channel_of_which_others_are_told_while_it_is_looked_at() {
    let (mut left, mut right) = shm_pair();
    let poller = Arc::new(Poller::new(Duration::from_millis(1)).expect("poller"));
    poller.add(right.source(), 1, true, false).expect("add");
    let frames: Vec<Frame> = (0..2000)
        .map(|i| Frame {
            slot: i as u16,
            body: vec![],
            payload: pattern(i * 13 % 70_000, i),
            discard: false,
        })
        .collect();
    let (waits, sent) = (poller.clone(), frames.clone());
    let sender = std::thread::spawn(move || {
        let other = Poller::new(Duration::ZERO).expect("poller");
        other.add(left.source(), 2, false, true).expect("add");
        let mut events = Vec::new();
        for (number, frame) in sent.iter().enumerate() {
            send(&mut left, frame, 5000);
            // What is waited for is said anew by another thread than the one who waits.
            if number % 7 == 0 {
                waits.wake();
            }
            left.flush().expect("sent");
            while left.unsent() > 0 {
                other.wait(&mut events, Some(Duration::from_secs(20))).expect("wait");
                left.flush().expect("sent");
            }
        }
        left
    });
    let mut collector = Collector { piece: 9000, ..Collector::default() };
    let (mut events, begun) = (Vec::new(), Instant::now());
    while collector.frames.len() < frames.len() {
        assert!(begun.elapsed() < Duration::from_secs(50), "{} arrived", collector.frames.len());
        poller.wait(&mut events, Some(Duration::from_secs(20))).expect("wait");
        if !events.is_empty() {
            right.receive(&mut collector).expect("receive");
        }
    }
    assert!(collector.frames == frames);
    let left = sender.join().expect("sender");
    assert_eq!(left.unsent(), 0);
}

/// Who listens at all addresses is found by each of this machine's, and by no other.
#[test]
fn who_listens_everywhere_is_found_at_home_alone() {
    let everywhere = tcp::listen(([0, 0, 0, 0], 0).into()).expect("listen");
    let port = everywhere.local_addr().expect("address").port();
    let beside = shm::listen(([0, 0, 0, 0], port).into()).expect("listen");
    let connects = |ip: [u8; 4]| shm::connect::<Owned>((ip, port).into()).is_ok();
    assert!(connects([127, 0, 0, 1]));
    assert!(connects([127, 1, 2, 3]));
    // An address that is nobody's (RFC 5737).
    assert!(!connects([192, 0, 2, 1]));
    assert!(shm::connect::<Owned>(([127, 0, 0, 1], port.wrapping_add(1)).into()).is_err());
    drop(beside);
    assert!(!connects([127, 0, 0, 1]));
}

/// Refuses every frame.
struct Refuser;

impl Sink for Refuser {
    fn head(&mut self, _: Header, _: &[u8]) -> Result<Placement> {
        Err(Error::because(Code::Protocol, "not wanted"))
    }

    fn payload(&mut self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn the_sinks_refusal_reaches_the_driver() {
    for (_, mut left, mut right) in pairs() {
        send(&mut *left, &Frame { slot: 0, body: vec![], payload: vec![], discard: false }, 1);
        left.flush().expect("send");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(right.receive(&mut Refuser).unwrap_err().code, Code::Protocol);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_frames_arrive(
        shapes in proptest::collection::vec((0usize..3000, 0usize..40_000, any::<bool>()), 1..30),
        out in 1usize..50_000, into in 1usize..50_000,
    ) {
        for (_, mut left, mut right) in pairs() {
            let frames: Vec<Frame> = shapes.iter().enumerate().map(|(i, &(body, payload, discard))| {
                Frame { slot: i as u16, body: pattern(body, i), payload: pattern(payload, i), discard }
            }).collect();
            frames.iter().for_each(|frame| send(&mut *left, frame, out));
            let mut collector = Collector { piece: into, ..Collector::default() };
            carry(&mut *left, &mut *right, &mut collector, frames.len());
            prop_assert!(collector.frames == expected(&frames));
        }
    }

    /// The same where memory is shared: what lies in it may be anything.
    #[test]
    fn noise_in_shared_memory_is_an_error(
        noise in proptest::collection::vec(any::<u8>(), 0..200), good: bool,
    ) {
        let (mut left, mut right) = shm_pair();
        if good {
            left.send(Header::plain(Kind::Ping, 0).encode().to_vec(), None);
        }
        left.send(noise, None);
        left.flush().unwrap();
        drop(left);
        let mut collector = Collector { piece: 4096, ..Collector::default() };
        while let Ok((received, _)) = right.receive(&mut collector) {
            if received == Received::Closed { break; }
        }
        prop_assert!(collector.frames.len() >= usize::from(good));
    }

    /// Noise on the port ends in an error or in nothing, never in a panic or in much memory.
    #[test]
    fn noise_is_an_error(noise in proptest::collection::vec(any::<u8>(), 0..200), good: bool) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (right, _) = listener.accept().unwrap();
        let mut right = TcpLink::<Owned>::new(right).unwrap();
        if good {
            left.write_all(&Header::plain(Kind::Ping, 0).encode()).unwrap();
        }
        left.write_all(&noise).unwrap();
        drop(left);
        let mut collector = Collector { piece: 4096, ..Collector::default() };
        while let Ok((received, _)) = right.receive(&mut collector) {
            if received == Received::Closed { break; }
        }
        prop_assert!(collector.frames.len() >= usize::from(good));
    }
}
