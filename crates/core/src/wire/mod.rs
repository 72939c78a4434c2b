//! The wire format. `docs/wire.md` describes it to the byte.
//!
//! A frame is a header of 16 bytes, a body, and a payload:
//!
//! ```text
//!  0  u8   version          4  u32  sequence         12  u32  payload length
//!  1  u8   kind             8  u32  body length
//!  2  u16  slot
//! ```
//!
//! All integers are little-endian. The bodies of reads and writes are fixed (48 bytes, so that such
//! a request is 64 bytes in all); all other bodies are `postcard` encodings of the types in
//! [`control`], [`meta`] and [`data`].

pub mod control;
pub mod data;
pub mod meta;

use crate::config::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX, WIRE_VERSION};
use crate::error::{Code, Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Room for most bodies: bytes.
const BODY_BYTES_USUAL: usize = 192;

/// Length of a frame's header: bytes.
pub const HEADER_BYTES: usize = 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Client: first words on a connection ([`control::Hello`]).
    Hello = 1,
    /// Client: answer to the challenge ([`control::Proof`]).
    Proof = 2,
    /// Client: asks for a sign of life.
    Ping = 3,
    /// Client: shows a capability ([`crate::auth::Capability`]); not answered.
    Present = 4,
    /// Client: reads from an object ([`data::Io`]).
    Read = 5,
    /// Client: writes to an object ([`data::Io`], payload).
    Write = 6,
    /// Client: anything else to a storage target ([`data::TargetCall`]).
    Target = 7,
    /// Client: to the metadata service ([`meta::MetaCall`]).
    Meta = 8,
    /// Client: to the server itself ([`control::ControlRequest`]).
    Control = 9,
    /// Server: [`control::Challenge`].
    Challenge = 0x81,
    /// Server: [`control::Welcome`].
    Welcome = 0x82,
    /// Server: a sign of life.
    Pong = 0x83,
    /// Server: a request's answer.
    Reply = 0x84,
    /// Server: a request's failure ([`encode_failure`]).
    Failure = 0x85,
    /// Server: why it is about to close the connection (as [`Kind::Failure`]).
    Refused = 0x86,
}

impl Kind {
    /// Every kind, for tests and fuzzers.
    pub const ALL: &[Kind] = &[
        Kind::Hello,
        Kind::Proof,
        Kind::Ping,
        Kind::Present,
        Kind::Read,
        Kind::Write,
        Kind::Target,
        Kind::Meta,
        Kind::Control,
        Kind::Challenge,
        Kind::Welcome,
        Kind::Pong,
        Kind::Reply,
        Kind::Failure,
        Kind::Refused,
    ];

    fn from_wire(byte: u8) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|&kind| kind as u8 == byte)
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// Which of the stream's slots the request occupies (0 where there is none).
    pub slot: u16,
    /// The slot's sequence number: grows by one with each request in the slot.
    pub sequence: u32,
    /// Bytes of body.
    pub body_length: u32,
    /// Bytes of payload.
    pub payload_length: u32,
}

impl Header {
    /// The header of a frame that belongs to no slot and has no payload.
    pub fn plain(kind: Kind, body_length: usize) -> Header {
        Header { kind, slot: 0, sequence: 0, body_length: body_length as u32, payload_length: 0 }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = WIRE_VERSION;
        bytes[1] = self.kind as u8;
        bytes[2..4].copy_from_slice(&self.slot.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload_length.to_le_bytes());
        bytes
    }

    /// Parses and checks a header: what it announces is within the limits.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if bytes[0] != WIRE_VERSION {
            return Err(Error::because(
                Code::Version,
                format!("peer speaks wire version {}, this side {WIRE_VERSION}", bytes[0]),
            ));
        }
        let Some(kind) = Kind::from_wire(bytes[1]) else {
            return Err(protocol(format!("unknown frame kind {}", bytes[1])));
        };
        let header = Header {
            kind,
            slot: u16::from_le_bytes([bytes[2], bytes[3]]),
            sequence: word(4),
            body_length: word(8),
            payload_length: word(12),
        };
        if header.body_length as usize > BODY_BYTES_MAX {
            return Err(protocol(format!("body of {} bytes announced", header.body_length)));
        }
        if header.payload_length as usize > PAYLOAD_BYTES_MAX {
            return Err(protocol(format!("payload of {} bytes announced", header.payload_length)));
        }
        Ok(header)
    }
}

/// A header and its body in one run of bytes: what is sent in front of a payload.
pub fn frame(mut header: Header, body: &[u8]) -> Vec<u8> {
    header.body_length = body.len() as u32;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&header.encode());
    bytes.extend_from_slice(body);
    bytes
}

/// Encodes a body.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Most bodies are shorter: one allocation instead of a growing row of them.
    let bytes = Vec::with_capacity(BODY_BYTES_USUAL);
    // The types of this crate have no maps with unserialisable keys and allocate only: no failure.
    postcard::to_extend(value, bytes).expect("wire types always serialise")
}

/// Decodes a body; all of it must be used.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(protocol(format!("{} bytes too many in a body", rest.len()))),
        Err(error) => Err(protocol(format!("body does not parse: {error}"))),
    }
}

/// Body of a failure: the code's word, then the cause as text (cut to 1 KiB).
pub fn encode_failure(error: &Error) -> Vec<u8> {
    let mut bytes = (error.code as u16).to_le_bytes().to_vec();
    let mut end = error.cause.len().min(1024);
    while !error.cause.is_char_boundary(end) {
        end -= 1;
    }
    bytes.extend_from_slice(&error.cause.as_bytes()[..end]);
    bytes
}

/// Reads a failure back.
pub fn decode_failure(body: &[u8]) -> Error {
    let Some((word, text)) = body.split_first_chunk::<2>() else {
        return protocol("a failure without its code");
    };
    Error::because(Code::from_wire(u16::from_le_bytes(*word)), String::from_utf8_lossy(text))
}

/// An error about bytes that make no sense.
pub fn protocol(cause: impl Into<String>) -> Error {
    Error::because(Code::Protocol, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_header() {
        let header = Header {
            kind: Kind::Write,
            slot: 0x0102,
            sequence: 0x03040506,
            body_length: 48,
            payload_length: 0x10_0000,
        };
        let bytes = [12, 6, 2, 1, 6, 5, 4, 3, 48, 0, 0, 0, 0, 0, 0x10, 0];
        assert_eq!(header.encode(), bytes);
        assert_eq!(Header::decode(&bytes), Ok(header));
    }

    #[test]
    fn a_header_is_refused_for_version_kind_and_size() {
        let good = Header::plain(Kind::Ping, 0).encode();
        let spoil = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Header::decode(&bytes).unwrap_err().code
        };
        assert_eq!(spoil(0, 1), Code::Version);
        assert_eq!(spoil(1, 0), Code::Protocol);
        assert_eq!(spoil(11, 1), Code::Protocol);
        assert_eq!(spoil(15, 1), Code::Protocol);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }

        #[test]
        fn any_body_decodes_or_fails(bytes: Vec<u8>) {
            let _ = decode::<meta::MetaCall>(&bytes);
            let _ = decode::<meta::MetaAnswer>(&bytes);
            let _ = decode::<data::TargetCall>(&bytes);
            let _ = decode::<control::ControlRequest>(&bytes);
            let _ = decode::<control::Hello>(&bytes);
            let _ = decode_failure(&bytes);
            let _ = data::Io::decode(&bytes);
        }
    }
}
