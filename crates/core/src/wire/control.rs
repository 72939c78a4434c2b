//! The handshake, and requests to a server itself.
//!
//! Client and server each prove that they know the pool's secret by answering the other's random
//! challenge; neither sends it. A recorded handshake is useless: both nonces go into both proofs.

use crate::auth::{Mac, Role, Sealed};
use crate::types::{ClientId, Incarnation, ServerIndex, TargetId};
use serde::{Deserialize, Serialize};

/// A client's first words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// `b"weir"`: says that this is no stray connection.
    pub magic: [u8; 4],
    /// Who calls.
    pub client: ClientId,
    /// Which of its streams to this server this is.
    pub stream: u16,
    /// As what it calls: which of the two secrets it will prove.
    pub role: Role,
    /// Random.
    pub nonce: [u8; 32],
}

/// The magic of [`Hello`].
pub const HELLO_MAGIC: [u8; 4] = *b"weir";

/// The server's answer to [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// Random.
    pub nonce: [u8; 32],
}

/// The client's proof, over both nonces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// See [`crate::auth::Secret::client_proof`].
    pub mac: Mac,
}

/// The server's proof, and on what terms it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// See [`crate::auth::Secret::server_proof`].
    pub mac: Mac,
    /// This life of the server process: another than last time means that it restarted.
    pub server: Incarnation,
    /// Whether the server still knows this stream's slots and their kept answers.
    pub resumed: bool,
    /// The newest sequence number of each slot that it knows: what was abandoned while the
    /// connection broke may or may not have arrived.
    pub sequences: Vec<u32>,
    /// Silence after which the server forgets a client: milliseconds.
    pub lease_ms: u64,
}

/// What can be asked of a server itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// What it is and has. Answer: [`ControlReply::Description`].
    Describe,
    /// Makes it part of a pool; once in its life. Answer: [`ControlReply::Done`].
    Form(Box<Formation>),
    /// The pool map. Answer: [`ControlReply::Map`].
    Map,
    /// Counters and fill. Answer: [`ControlReply::Status`].
    Status,
    /// Ends the server in an orderly way. Answer: [`ControlReply::Done`].
    Shutdown,
    /// Begins to verify what a server of a kept pool has on its disk, unless it is at it already. Answer:
    /// [`ControlReply::Scrub`].
    Scrub {
        /// How much to read in a second, at most; 0: begin nothing, and tell how far it is: bytes.
        rate: u64,
    },
}

impl ControlRequest {
    /// Whether it may be carried out again after a reconnect. A server is formed only once: the
    /// answer to that is kept and repeated.
    pub fn repeatable(&self) -> bool {
        !matches!(self, ControlRequest::Form(_))
    }
}

/// Answers to [`ControlRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlReply {
    /// To [`ControlRequest::Describe`].
    Description(Description),
    /// To [`ControlRequest::Map`].
    Map(Box<PoolMap>),
    /// To [`ControlRequest::Status`].
    Status(Box<ServerStatus>),
    /// Carried out.
    Done,
    /// To [`ControlRequest::Scrub`].
    Scrub(Box<ScrubReport>),
}

/// How far the verification of what is on disk is, or what the last one found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Whether it goes on.
    pub running: bool,
    /// Bytes read in it.
    pub done: u64,
    /// Bytes to read, as there were when it began.
    pub all: u64,
    /// Chunks verified.
    pub chunks: u64,
    /// Records of journals verified.
    pub records: u64,
    /// Chunks and journals that are not as they were written.
    pub errors: u64,
    /// The first of them: which part of which object, or of which journal, and why.
    pub bad: Vec<String>,
}

/// What a server is before it belongs to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Version of its program.
    pub version: String,
    /// Its process id, on its own host.
    pub pid: u32,
    /// Its host's name.
    pub host: String,
    /// Its targets: incarnation and memory in bytes.
    pub targets: Vec<(Incarnation, u64)>,
    /// Whether it belongs to a pool already.
    pub formed: bool,
}

/// All that makes a server part of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formation {
    /// The pool.
    pub map: PoolMap,
    /// Which of the map's servers this one is.
    pub index: ServerIndex,
    /// The key of capabilities (32 bytes), sealed for this connection; clients never see it.
    pub capability_key: Sealed,
}

/// Who is in a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolMap {
    /// Counts changes of this map; requests to targets carry it.
    pub epoch: u32,
    /// The pool's identity, drawn at random when it was made.
    pub pool: [u8; 16],
    /// Its name.
    pub name: String,
    /// To whom it belongs: who proves the secret is this user.
    pub owner_uid: u32,
    /// The owner's primary group.
    pub owner_gid: u32,
    /// Its servers; [`ServerIndex`] counts these.
    pub servers: Vec<ServerEntry>,
    /// Which server holds each metadata shard.
    pub metadata: Vec<ServerIndex>,
    /// Stripe size of files that nobody said otherwise for: bytes.
    pub stripe_size: u64,
    /// Columns of such files; 0: all targets.
    pub stripe_count: u32,
}

/// One server of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEntry {
    /// Where it listens: `host:port`.
    pub address: String,
    /// Its targets.
    pub targets: Vec<TargetEntry>,
}

/// One target of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetEntry {
    /// Its stable name.
    pub id: TargetId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its memory in bytes.
    pub memory: u64,
}

impl PoolMap {
    /// Which server holds a target, and the target's entry.
    pub fn find(&self, target: TargetId) -> Option<(ServerIndex, &TargetEntry)> {
        self.servers.iter().enumerate().find_map(|(index, server)| {
            let entry = server.targets.iter().find(|entry| entry.id == target)?;
            Some((ServerIndex(index as u16), entry))
        })
    }

    /// All targets, in the order of their servers.
    pub fn targets(&self) -> impl Iterator<Item = &TargetEntry> {
        self.servers.iter().flat_map(|server| &server.targets)
    }

    /// The server that holds an inode's metadata shard.
    pub fn metadata_of(&self, ino: crate::types::Ino) -> ServerIndex {
        let shard = (ino.0 >> 48) as usize;
        self.metadata.get(shard).copied().unwrap_or(self.metadata[0])
    }
}

/// What a server has done and holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its index in the map.
    pub index: u16,
    /// Its address.
    pub address: String,
    /// Its process id, on its own host.
    pub pid: u32,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// Bytes of file data sent to clients.
    pub bytes_read: u64,
    /// Bytes of file data stored for clients.
    pub bytes_written: u64,
    /// Reads served.
    pub reads: u64,
    /// Writes served.
    pub writes: u64,
    /// Other requests to targets served.
    pub target_requests: u64,
    /// Requests to the metadata service served.
    pub metadata_requests: u64,
    /// Of these, such as no call waits for: leases renewed, handles ended and objects freed later on.
    pub metadata_unawaited: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Requests answered from kept replies.
    pub repeats: u64,
    /// Requests answered "busy".
    pub busy: u64,
    /// Connections open now.
    pub connections: u64,
    /// Connections accepted in all.
    pub connections_accepted: u64,
    /// Sessions known now.
    pub sessions: u64,
    /// Memory stated, all targets: bytes.
    pub memory: u64,
    /// Memory of that which is kept for overwriting in a full pool: bytes.
    pub memory_reserve: u64,
    /// Memory in use, all targets: bytes.
    pub memory_used: u64,
    /// Objects held.
    pub objects: u64,
    /// Metadata memory stated (0: no metadata here): bytes.
    pub metadata_memory: u64,
    /// Metadata memory in use: bytes.
    pub metadata_used: u64,
    /// Inodes (0: no metadata here).
    pub inodes: u64,
    /// Targets of the pool in which no new file is placed any more, since their disks had errors; as far
    /// as the metadata here has heard of it.
    pub unfit: Vec<u32>,
    /// Processor time of the server in its own code: microseconds.
    pub cpu_user_us: u64,
    /// Processor time of the server in the kernel: microseconds.
    pub cpu_system_us: u64,
    /// Largest resident memory so far: bytes.
    pub resident_max: u64,
    /// Its targets (once it belongs to a pool).
    pub targets: Vec<TargetStatus>,
}

/// What a target has done and holds. Without a disk, all about that is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// Its name.
    pub id: u32,
    /// Memory stated: bytes.
    pub memory: u64,
    /// Of that in use: bytes.
    pub memory_used: u64,
    /// Objects held.
    pub objects: u64,
    /// Room on disk: bytes.
    pub disk: u64,
    /// Of that in use: bytes.
    pub disk_used: u64,
    /// Bytes in memory that are not on disk yet.
    pub dirty: u64,
    /// Requests under way at the disk.
    pub disk_queued: u64,
    /// Requests of clients that wait for the disk.
    pub disk_waiting: u64,
    /// Requests to read from disk.
    pub disk_reads: u64,
    /// Bytes read from disk.
    pub disk_bytes_read: u64,
    /// Requests to write to disk.
    pub disk_writes: u64,
    /// Bytes written to disk.
    pub disk_bytes_written: u64,
    /// Requests to the disk that failed, and checksums that were wrong.
    pub disk_errors: u64,
    /// Whether the disk was given up after errors.
    pub disk_failed: bool,
    /// Bytes on disk that were verified, by this scrub or the last one.
    pub scrubbed: u64,
    /// Chunks of those that were not as they had been written.
    pub scrub_errors: u64,
}
