//! The disk under a target, as the core sees it: requests with a tag, and completions that the driver
//! hands back. The real one is `weir-server`'s (io_uring or threads), the others are [`MemoryDisk`]
//! and [`TwinDisk`] for tests and the simulator's.
//!
//! Nothing here waits. Whoever owns the disk's completions calls [`super::Target::disk_done`] with
//! each of them, in any order and from any thread. Between submission and completion the buffers are
//! the disk's; the target keeps them valid, and calls [`Disk::close`] before its memory goes.

mod twin;

pub use twin::TwinDisk;

use crate::error::{Code, Error};
use crate::slice::Slice;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Unit of space on a disk: offsets, lengths and the addresses of buffers are multiples of it, so
/// that O_DIRECT takes them whatever the device's sectors are.
pub const BLOCK_BYTES: usize = 4096;

/// What is asked of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOp {
    /// Fills the buffers from the disk.
    Read,
    /// Writes the buffers to the disk. It may be lost, or be torn at any sector, in a crash before a
    /// later [`DiskOp::Sync`] is done.
    Write,
    /// Makes all writes durable that were done (not only submitted) before this was submitted.
    Sync,
}

/// One request.
#[derive(Debug)]
pub struct DiskRequest {
    /// Comes back with the completion.
    pub tag: u64,
    /// What to do.
    pub op: DiskOp,
    /// First block (of [`DiskOp::Sync`]: 0).
    pub block: u64,
    /// Memory, in the order of the blocks; whole blocks each. Empty for [`DiskOp::Sync`].
    pub buffers: Vec<Slice>,
}

impl DiskRequest {
    /// Length of the buffers: bytes.
    pub fn length(&self) -> usize {
        self.buffers.iter().map(|slice| slice.length).sum()
    }
}

/// Why a request failed. What it wrote or read is undefined then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// The operating system's error number.
    Os(i32),
    /// The disk took or gave fewer bytes than it should, and then nothing: bytes that moved.
    Short(usize),
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskError::Os(number) => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*number))
            }
            DiskError::Short(bytes) => write!(f, "the disk moved {bytes} bytes and no more"),
        }
    }
}

impl From<DiskError> for Error {
    fn from(error: DiskError) -> Error {
        Error::because(Code::Disk, error.to_string())
    }
}

/// A request that has ended.
#[derive(Debug)]
pub struct DiskDone {
    /// The request's tag.
    pub tag: u64,
    /// Whether all of it was done.
    pub result: Result<(), DiskError>,
}

/// A run of blocks on a device or in a file.
pub trait Disk: Send + Sync {
    /// How many blocks of [`BLOCK_BYTES`] it has; never changes.
    fn blocks(&self) -> u64;

    /// Takes a request. Never blocks: what the device does not take yet waits in a queue, which is
    /// as long as the target makes it. Ends in exactly one completion, unless the disk is closed.
    fn submit(&self, request: DiskRequest);

    /// The target has more to do for the disk than it wants to do at once: whoever hands it completions is to
    /// call [`super::Target::disk_done`] soon, if need be with none. False: nobody will, so that the
    /// target goes on by itself.
    fn call_again(&self) -> bool {
        false
    }

    /// Gives up what is queued, and waits until nothing touches the buffers of any request. Nothing is
    /// submitted afterwards.
    fn close(&self);
}

/// A disk in memory whose requests are carried out when a test says so, in the order that it wants,
/// with the failures that it wants.
#[derive(Debug)]
pub struct MemoryDisk {
    blocks: u64,
    state: Mutex<MemoryDiskState>,
}

#[derive(Debug, Default)]
struct MemoryDiskState {
    content: BTreeMap<u64, Box<[u8]>>,
    queue: VecDeque<DiskRequest>,
    /// Requests carried out so far, failed ones too.
    count: u64,
    faults: BTreeMap<u64, DiskError>,
    read_only: bool,
    reads: u64,
    writes: u64,
    closed: bool,
}

impl MemoryDisk {
    /// `blocks` blocks of zeros.
    pub fn new(blocks: u64) -> MemoryDisk {
        MemoryDisk { blocks, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, MemoryDiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The `index`th request to be carried out, counted from 0 and from the start, will fail. A
    /// failing write leaves half of its blocks written.
    pub fn fail(&self, index: u64, error: DiskError) {
        self.lock().faults.insert(index, error);
    }

    /// From now on (or no longer) every write fails, as on a device that has gone read-only.
    pub fn set_read_only(&self, read_only: bool) {
        self.lock().read_only = read_only;
    }

    /// Changes stored bytes behind everybody's back, as a device that lies: flips bits of one byte.
    pub fn corrupt(&self, block: u64, byte: usize) {
        let mut state = self.lock();
        let content = state.content.entry(block).or_insert_with(|| vec![0; BLOCK_BYTES].into());
        content[byte] ^= 0x5a;
    }

    /// Blocks that were ever written, ascending.
    pub fn written(&self) -> Vec<u64> {
        self.lock().content.keys().copied().collect()
    }

    /// Requests that wait.
    pub fn pending(&self) -> usize {
        self.lock().queue.len()
    }

    /// Requests carried out so far: all, reads, writes.
    pub fn counts(&self) -> (u64, u64, u64) {
        let state = self.lock();
        (state.count, state.reads, state.writes)
    }

    /// Carries out the `index`th of the requests that wait. Hand what comes back to the target.
    pub fn step(&self, index: usize) -> Option<DiskDone> {
        let mut state = self.lock();
        let request = state.queue.remove(index)?;
        let fault = state.faults.get(&state.count).cloned();
        state.count += 1;
        let blocks = (request.length() / BLOCK_BYTES) as u64;
        let end = request.block + blocks;
        let error = match request.op {
            _ if end > self.blocks => Some(DiskError::Os(22)),
            DiskOp::Write if state.read_only => Some(DiskError::Os(30)),
            _ => fault,
        };
        match request.op {
            DiskOp::Read => state.reads += 1,
            DiskOp::Write => state.writes += 1,
            DiskOp::Sync => (),
        }
        let reach = match error {
            None => blocks,
            Some(DiskError::Os(22 | 30)) => 0,
            Some(_) => blocks / 2,
        };
        let mut block = request.block;
        for slice in &request.buffers {
            assert!(slice.length.is_multiple_of(BLOCK_BYTES), "buffers are whole blocks");
            for at in (0..slice.length).step_by(BLOCK_BYTES) {
                if block - request.block >= reach {
                    break;
                }
                let pointer = slice.part(at, BLOCK_BYTES).pointer;
                match request.op {
                    DiskOp::Read => match state.content.get(&block) {
                        // SAFETY: the target keeps the buffer valid, and to this request alone, until
                        // the completion is handed back.
                        Some(bytes) => unsafe {
                            pointer.copy_from_nonoverlapping(bytes.as_ptr(), BLOCK_BYTES);
                        },
                        // SAFETY: as above.
                        None => unsafe { pointer.write_bytes(0, BLOCK_BYTES) },
                    },
                    DiskOp::Write => {
                        // SAFETY: valid by the target's promise; nobody writes to it meanwhile.
                        let bytes = unsafe { std::slice::from_raw_parts(pointer, BLOCK_BYTES) };
                        state.content.insert(block, bytes.into());
                    }
                    DiskOp::Sync => (),
                }
                block += 1;
            }
        }
        Some(DiskDone { tag: request.tag, result: error.map_or(Ok(()), Err) })
    }
}

impl Disk for MemoryDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn submit(&self, request: DiskRequest) {
        let mut state = self.lock();
        if !state.closed {
            state.queue.push_back(request);
        }
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
    }
}
