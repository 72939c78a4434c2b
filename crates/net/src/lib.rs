//! Transports: how frames and their payloads get from one process to another.
//!
//! A [`Link`] is one end of a connection. It knows frames (see [`weir_core::wire`]) but not what
//! they mean: whoever drives it says, as each frame's head comes in, where its payload belongs, and
//! the payload goes straight there. All transports share this seam and one conformance suite
//! (`tests/conformance.rs`).
#![warn(missing_docs)]

pub mod descriptors;
mod frames;
mod poller;
pub mod reach;
pub mod shm;
mod spin;
pub mod tcp;

pub use poller::{Event, Poller, Source};

use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use weir_core::error::Result;
use weir_core::slice::{Row, Slice};
use weir_core::wire::Header;

/// A payload on its way out. It keeps its memory valid until it is dropped, or its maker promises
/// that somebody else does.
pub trait Payload: Send {
    /// Appends the memory to send, in order.
    fn rows(&self, into: &mut Vec<Row>);
}

/// Nothing behind the head.
pub struct NoPayload;

impl Payload for NoPayload {
    fn rows(&self, _: &mut Vec<Row>) {}
}

/// Where an incoming payload goes.
#[derive(Debug)]
pub enum Placement {
    /// There is none, or it is to be thrown away.
    Discard,
    /// Into this memory, of the payload's length. Whoever names it keeps it valid and unaliased
    /// until [`Sink::payload`] is called or the link is dropped.
    Into(Vec<Slice>),
    /// The same, where that was not touched for long: a link that copies by itself does so past the processor's
    /// caches, as it would have to fetch what it overwrites.
    IntoCold(Vec<Slice>),
}

/// Takes what a link receives.
pub trait Sink {
    /// A frame's header and body are here. An error closes the link.
    fn head(&mut self, header: Header, body: &[u8]) -> Result<Placement>;

    /// The payload of the last head is where it belongs (or thrown away). Not called for frames
    /// without one. An error closes the link.
    fn payload(&mut self) -> Result<()>;
}

/// What became of an attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// All that was there was taken.
    Drained,
    /// There may be more: the attempt had its fair share.
    More,
    /// The other end has closed.
    Closed,
}

/// One end of a connection. Nothing here blocks.
pub trait Link<P: Payload>: Send {
    /// Whether the connection has been made; an error if it could not be.
    fn connected(&self) -> io::Result<()>;

    /// Who is at the other end, in words.
    fn peer(&self) -> String;

    /// Queues a frame: `head` is header and body.
    fn send(&mut self, head: Vec<u8>, payload: Option<P>);

    /// Sends what is queued, as far as the wire takes it. Gives the number of bytes that moved.
    /// EFAULT: it is the memory of the frame that goes next which cannot be read.
    fn flush(&mut self) -> io::Result<usize>;

    /// Bytes queued and not yet taken by the wire.
    fn unsent(&self) -> usize;

    /// Whether a queued payload matches: then its memory is still in use.
    fn sending(&self, matches: &dyn Fn(&P) -> bool) -> bool;

    /// The payload of the frame that goes next, if it has one.
    fn next(&self) -> Option<&P>;

    /// Receives what is there, up to a fair share. Gives the number of bytes that moved, too.
    /// [`BadAddress`](weir_core::error::Code::BadAddress): a payload's place cannot be written.
    fn receive(&mut self, sink: &mut dyn Sink) -> Result<(Received, usize)>;

    /// What a [`Poller`] waits on.
    fn source(&self) -> Source<'_>;
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Transport, String> {
        match name {
            "auto" => Ok(Transport::Auto),
            "tcp" => Ok(Transport::Tcp),
            "shm" => Err("auto takes shared memory wherever it can; write auto or tcp".to_owned()),
            "ucx" => Err("not in this build; write tcp or auto".to_owned()),
            _ => Err("there is no such transport; write tcp or auto".to_owned()),
        }
    }
}

/// How to reach servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// By shared memory those of this machine that offer it, by TCP all others.
    #[default]
    Auto,
    /// By TCP.
    Tcp,
}

impl Transport {
    /// As it is written on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Tcp => "tcp",
        }
    }

    /// Connects without waiting. The link is usable once a [`Poller`] finds it writable and
    /// [`Link::connected`] says so.
    pub fn connect<P>(self, address: SocketAddr) -> io::Result<Box<dyn Link<P>>>
    where
        P: Payload + 'static,
    {
        if self == Transport::Auto
            && let Ok(link) = shm::connect(address)
        {
            return Ok(Box::new(link));
        }
        Ok(Box::new(tcp::connect(address)?))
    }
}
