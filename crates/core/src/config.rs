//! Every limit and every time, by name.

use serde::{Deserialize, Serialize};

/// Version of the wire format; both sides must speak the same one.
pub const WIRE_VERSION: u8 = 12;

/// Largest body of a frame (everything behind the header but the payload): bytes.
pub const BODY_BYTES_MAX: usize = 512 * 1024;
/// Largest payload of one request: bytes.
pub const PAYLOAD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most extents, counted one by one, in one list request.
pub const LIST_EXTENTS_MAX: usize = 16 * 1024;
/// Requests under way on one stream of a client to a server.
pub const SLOTS_PER_STREAM_MAX: usize = 64;
/// Streams of one client to one server.
pub const STREAMS_PER_SERVER_MAX: usize = 16;
/// Requests that wait at the client for a free slot of a stream.
pub const WAITING_PER_STREAM_MAX: usize = 16 * 1024;
/// Largest answer that a server keeps to repeat it: bytes. What must happen once answers in less.
pub const KEPT_REPLY_BYTES_MAX: usize = 16 * 1024;
/// Sessions (client × stream) that one server keeps.
pub const SESSIONS_MAX: usize = 64 * 1024;
/// Connections that one server serves.
pub const CONNECTIONS_MAX: usize = 16 * 1024;
/// Of so many connections on, new ones are by TCP also from the same machine: each by shared memory has a MiB each
/// way, in all 1 GiB.
pub const SHARING_CONNECTIONS_MAX: usize = 512;
/// Files whose capabilities a connection remembers at least, of those shown last; at most twice as many.
pub const CAPABILITIES_PER_CONNECTION_MAX: usize = 4096;
/// Handles and truncations that end by the way in one call of the metadata service.
pub const RIDERS_PER_CALL_MAX: usize = 64;
/// Counters of one open handle.
pub const COUNTERS_PER_HANDLE_MAX: usize = 8;
/// Files of a kept pool that were changed, closed and not synced, of which a client remembers that.
pub const UNSYNCED_FILES_MAX: usize = 16 * 1024;
/// Longest file name: bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path or text of a symbolic link: bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Symbolic links followed in one path.
pub const SYMLINKS_MAX: usize = 40;
/// Entries in one answer to a directory listing.
pub const ENTRIES_PER_REPLY_MAX: usize = 1024;
/// Objects in one request to remove them.
pub const REAP_BATCH_MAX: usize = 256;
/// Largest value of an extended attribute: bytes.
pub const XATTR_BYTES_MAX: usize = 64 * 1024;
/// Locks on one file. Neighbouring ranges of one owner and kind count as one.
pub const LOCKS_PER_FILE_MAX: usize = 64 * 1024;
/// Locks of one client.
pub const LOCKS_PER_CLIENT_MAX: usize = 256 * 1024;
/// Locks in all.
pub const LOCKS_MAX: usize = 2 * 1024 * 1024;
/// Waits for locks of one client, those counted that ended and of which it was not told yet.
pub const LOCK_WAITS_PER_CLIENT_MAX: usize = 8 * 1024;
/// How long a client waits for news of its locks in one request: milliseconds.
pub const LOCK_NEWS_MS: u64 = 5_000;

/// How long after asking a client may believe what it was told that it may: milliseconds.
pub const WAY_BELIEVED_MS: u64 = 50;
/// How long others let that be: milliseconds. What is above [`WAY_BELIEVED_MS`] is for answers
/// that take effect late: a mount's kernel counts from when it has one, in ticks.
pub const WAY_HELD_MS: u64 = 250;
/// How long nobody is told so once somebody has waited for it: milliseconds.
pub const WAYS_SHUT_MS: u64 = 1_000;
/// How long nobody else must have changed anything for a client to believe all that it is told:
/// milliseconds.
pub const CALM_MS: u64 = 3_000;
/// And it must have asked so many times in a second: who asks now and then is not worth it that others
/// may have to wait.
pub const CALM_ASKED_MIN: u32 = 16;

/// Longest time that one who waits may look again before it sleeps: microseconds.
pub const SPIN_US_MAX: u64 = 10_000;

/// Times of the protocol, in milliseconds but for the last. One struct, so that the simulator can shrink them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// A client that waits and has heard nothing for so long asks for a sign of life.
    pub heartbeat_ms: u64,
    /// A server that was silent for so long, heartbeats included, is lost: its requests fail.
    pub silence_ms_max: u64,
    /// Pause before a connection is tried again.
    pub reconnect_ms: u64,
    /// A client that was silent for so long loses its handles and its kept answers.
    pub lease_ms: u64,
    /// How often a client renews its lease.
    pub renew_ms: u64,
    /// How long a capability is good for.
    pub capability_ms: u64,
    /// Pause before a request that was answered "busy" is made again.
    pub busy_retry_ms: u64,
    /// How long a request may be refused as "busy" on end before that is an error.
    pub busy_ms_max: u64,
    /// How long one who waits looks again before it sleeps, while nobody else wants the processor:
    /// microseconds; 0: not at all.
    pub spin_us: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat_ms: 1_000,
            silence_ms_max: 8_000,
            reconnect_ms: 100,
            lease_ms: 60_000,
            renew_ms: 10_000,
            capability_ms: 300_000,
            busy_retry_ms: 5,
            busy_ms_max: 60_000,
            spin_us: 400,
        }
    }
}
