//! The protocol of Weirpool without I/O.
//!
//! The wire format, the layout arithmetic, the client's session and file logic, and the server's
//! services. Nothing here owns a socket, a thread, a clock or a source of randomness: drivers (the
//! real ones in `weir-net`, `weir-server` and `weir-client`, and the simulator) pass in messages and
//! the time and carry out what comes back.
#![warn(missing_docs)]

pub mod auth;
pub mod checksum;
pub mod config;
pub mod copying;
pub mod error;
pub mod fs;
pub mod journal;
pub mod layout;
pub mod pending;
pub mod service;
pub mod session;
pub mod slice;
pub mod types;
pub mod wire;
