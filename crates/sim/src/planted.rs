//! Bugs to be found: what a faulty server would do, done to the frames and effects between the
//! simulated driver and the shipped service. The service itself has no switches.

use crate::rng::Rng;
use std::borrow::Cow;
use std::collections::BTreeMap;
use weir_core::types::{ClientId, Now};
use weir_core::wire::control::Welcome;
use weir_core::wire::data::{Io, TargetCall, TargetReply, TargetRequest, Witness};
use weir_core::wire::meta::{MetaCall, MetaRequest};
use weir_core::wire::{self, HEADER_BYTES, Header, Kind};

/// A class of bug that the simulator must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A write is acknowledged, and never stored.
    LostWrite,
    /// The metadata service is told a wrong size.
    StaleSize,
    /// A request that is repeated after a reconnect is carried out again.
    ServedTwice,
    /// A server that restarted passes for its former self: what was lost reads as zeros.
    Hole,
    /// A write whose connection broke in mid-payload is stored as far as it came.
    TornWrite,
    /// Answers do not tell that an object has changed.
    SameEdition,
    /// Of a kept pool: a sync is answered before the journal is on the disk.
    EarlySync,
    /// Of a kept pool: the journal is synced, and what it names was not.
    NamedUnsynced,
    /// Of a kept pool: a server that died and came back says that it is in its first life still.
    SameLife,
}

impl Bug {
    /// All of them.
    pub const ALL: &[Bug] = &[
        Bug::LostWrite,
        Bug::StaleSize,
        Bug::ServedTwice,
        Bug::Hole,
        Bug::TornWrite,
        Bug::SameEdition,
        Bug::EarlySync,
        Bug::NamedUnsynced,
        Bug::SameLife,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Bug::LostWrite => "lost-write",
            Bug::StaleSize => "stale-size",
            Bug::ServedTwice => "served-twice",
            Bug::Hole => "hole",
            Bug::TornWrite => "torn-write",
            Bug::SameEdition => "same-edition",
            Bug::EarlySync => "early-sync",
            Bug::NamedUnsynced => "named-unsynced",
            Bug::SameLife => "same-life",
        }
    }
}

type Slot = (ClientId, u16, u16);

/// The planted bug, if there is one, and what it must remember.
#[derive(Debug, Default)]
pub(crate) struct Planted {
    pub(crate) bug: Option<Bug>,
    /// The write whose payload is being received.
    write: Option<(Header, Io)>,
    /// By slot: the newest number that the client used, and how far the server is ahead of it.
    ahead: BTreeMap<Slot, (u32, u32)>,
    /// By slot: the kind of the newest request.
    kinds: BTreeMap<Slot, Kind>,
}

impl Planted {
    pub(crate) fn new(bug: Option<Bug>) -> Planted {
        Planted { bug, ..Planted::default() }
    }

    /// A request on its way to the service.
    pub(crate) fn request<'a>(
        &mut self,
        client: Option<(ClientId, u16)>,
        mut header: Header,
        body: &'a [u8],
        rng: &mut Rng,
    ) -> (Header, Cow<'a, [u8]>) {
        let mut body = Cow::Borrowed(body);
        match self.bug {
            Some(Bug::LostWrite) if header.kind == Kind::Write => {
                self.write = Io::decode(&body).ok().map(|io| (header, io));
            }
            Some(Bug::StaleSize) if header.kind == Kind::Meta && rng.chance(30) => {
                if let Ok(mut call) = wire::decode::<MetaCall>(&body)
                    && let MetaRequest::Close { settlement: Some(settlement), .. }
                    | MetaRequest::Settle { settlement, .. } = &mut call.request
                {
                    settlement.size /= 2;
                    body = Cow::Owned(wire::encode(&call));
                }
            }
            Some(Bug::SameLife | Bug::SameEdition) => {
                if let Some((client, stream)) = client {
                    self.kinds.insert((client, stream, header.slot), header.kind);
                }
            }
            Some(Bug::EarlySync) if header.kind == Kind::Target => {
                if let Ok(mut call) = wire::decode::<TargetCall>(&body)
                    && let TargetRequest::Flush { ino } = call.request
                {
                    // Answered likewise, and nothing is written.
                    call.request = TargetRequest::Witness { ino };
                    body = Cow::Owned(wire::encode(&call));
                }
            }
            Some(Bug::ServedTwice) if header.kind as u8 >= Kind::Read as u8 => {
                if let Some((client, stream)) = client {
                    let slot = (client, stream, header.slot);
                    let (newest, ahead) = self.ahead.entry(slot).or_default();
                    if *newest == header.sequence && header.kind == Kind::Meta {
                        *ahead += 1;
                    }
                    *newest = header.sequence;
                    header.sequence = header.sequence.wrapping_add(*ahead);
                }
            }
            _ => {}
        }
        (header, body)
    }

    /// An answer on its way to the client.
    pub(crate) fn answer(&self, client: Option<(ClientId, u16)>, head: &mut Vec<u8>) {
        let Some((client, stream)) = client else { return };
        match self.bug {
            Some(Bug::SameLife) => {
                let young = |witness| Witness { life: 1, ..witness };
                return self.forge((client, stream), head, young);
            }
            Some(Bug::SameEdition) => {
                let unchanged = |witness| Witness { changes: 1, ..witness };
                return self.forge((client, stream), head, unchanged);
            }
            Some(Bug::ServedTwice) => {}
            _ => return,
        }
        let Some(Ok(header)) = head.first_chunk::<HEADER_BYTES>().map(Header::decode) else {
            return;
        };
        let ahead = |slot: u16| self.ahead.get(&(client, stream, slot)).map_or(0, |&(_, n)| n);
        match header.kind {
            Kind::Reply | Kind::Failure => {
                let sequence = header.sequence.wrapping_sub(ahead(header.slot));
                head[4..8].copy_from_slice(&sequence.to_le_bytes());
            }
            Kind::Welcome => {
                if let Ok(mut welcome) = wire::decode::<Welcome>(&head[HEADER_BYTES..]) {
                    for (slot, sequence) in welcome.sequences.iter_mut().enumerate() {
                        *sequence = sequence.wrapping_sub(ahead(slot as u16));
                    }
                    *head = wire::frame(header, &wire::encode(&welcome));
                }
            }
            _ => {}
        }
    }

    /// The answer bears false witness.
    fn forge(
        &self,
        (client, stream): (ClientId, u16),
        head: &mut Vec<u8>,
        forged: impl Fn(Witness) -> Witness,
    ) {
        let Some(Ok(header)) = head.first_chunk::<HEADER_BYTES>().map(Header::decode) else {
            return;
        };
        let kind = self.kinds.get(&(client, stream, header.slot));
        let (Kind::Reply, Some(kind)) = (header.kind, kind) else { return };
        let body = &head[HEADER_BYTES..];
        match kind {
            Kind::Read | Kind::Write => {
                if let Ok(witness) = Witness::decode(body) {
                    head[HEADER_BYTES..].copy_from_slice(&forged(witness).encode());
                }
            }
            Kind::Target => {
                if let Ok(TargetReply::Object { witness, allocated, safe }) = wire::decode(body) {
                    let witness = forged(witness);
                    let reply = TargetReply::Object { witness, allocated, safe };
                    *head = wire::frame(header, &wire::encode(&reply));
                }
            }
            _ => {}
        }
    }

    /// Whether the write that has just been received is lost; gives its acknowledgement.
    pub(crate) fn lose(&mut self, now: Now, rng: &mut Rng) -> Option<Vec<u8>> {
        let (header, io) = self.write.take()?;
        if !rng.chance(3) {
            return None;
        }
        let size = io.runs.extents().map(|extent| extent.end()).max().unwrap_or(0);
        let witness = Witness { size, mtime: now.wall, epoch: io.epoch, ..Witness::default() };
        let header = Header { kind: Kind::Reply, payload_length: 0, ..header };
        Some(wire::frame(header, &witness.encode()))
    }

    pub(crate) fn tears(&self) -> bool {
        self.bug == Some(Bug::TornWrite)
    }
}
