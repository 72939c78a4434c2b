//! The server's services, without I/O: storage targets, metadata, and in front of them the
//! [`Service`] that admits connections, checks capabilities and keeps answers.

pub mod meta;
mod peer;
mod scrub;
mod shown;
pub mod storage;
mod stream;

pub use peer::{Action, Outgoing, Peer, Receiving, Service, ServiceOptions, TargetParts, Usage};
pub use scrub::{Reader, Scrub};
