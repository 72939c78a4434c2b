//! A virtual disk: takes time for each request and each byte, and ends what is under way in any order.

use crate::rng::Rng;
use crate::world::lock;
use std::sync::{Arc, Mutex};
use weir_core::service::storage::disk::{
    Disk, DiskDone, DiskError, DiskRequest, MemoryDisk, TwinDisk,
};

/// How fast a disk is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    /// Of each request: microseconds.
    pub(crate) latency_us: u64,
    /// Bytes in a millisecond.
    pub(crate) bytes_per_ms: u64,
}

/// What goes wrong with a disk. Without faults it is as fast as [`Speed`] says, and does all that it is
/// told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Requests that fail or fall short: of a thousand.
    pub(crate) failing: u64,
    /// Requests that take long: of a thousand.
    pub(crate) stalling: u64,
    /// After so many requests it is read-only, or gone.
    pub(crate) ends: Option<(u64, End)>,
}

/// How a disk ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    ReadOnly,
    Gone,
}

/// What a stall adds: microseconds. Longer than a client bears with a server that is silent.
const STALL_US: u64 = 5_000_000;
/// Requests of a disk for which faults are drawn.
const REQUESTS: u64 = 4000;

impl Faults {
    /// Has a disk fail as it is drawn.
    pub(crate) fn plant(self, disk: &MemoryDisk, rng: &mut Rng) {
        for index in 0..REQUESTS {
            let error = match (self.ends, rng.below(1000) < self.failing) {
                (Some((end, End::Gone)), _) if index >= end => DiskError::Os(19),
                (_, false) => continue,
                (_, true) => match rng.below(2) {
                    0 => DiskError::Os(5),
                    _ => DiskError::Short(512),
                },
            };
            disk.fail(index, error);
        }
    }

    /// What a request takes longer: microseconds.
    pub(crate) fn stall_us(self, rng: &mut Rng) -> u64 {
        if rng.below(1000) < self.stalling { rng.below(STALL_US) } else { 0 }
    }

    /// To be called before each request ends.
    pub(crate) fn watch(self, disk: &MemoryDisk) {
        if let Some((end, End::ReadOnly)) = self.ends
            && disk.counts().0 >= end
        {
            disk.set_read_only(true);
        }
    }
}

/// A request that was submitted: to which disk of which life of which server, and its bytes.
pub(crate) struct Asked {
    pub(crate) server: usize,
    pub(crate) life: u64,
    pub(crate) target: usize,
    pub(crate) bytes: u64,
}

/// Requests that no time was set for yet: whoever submits them may not lock the world.
pub(crate) type Asking = Arc<Mutex<Vec<Asked>>>;

/// What holds a disk's bytes.
pub(crate) enum Platter {
    /// Gone with the server's process.
    Scratch(MemoryDisk),
    /// It outlives that.
    Kept(TwinDisk),
}

/// One disk of one life of a server.
pub(crate) struct SimDisk {
    platter: Platter,
    server: usize,
    life: u64,
    target: usize,
    asking: Asking,
}

impl SimDisk {
    pub(crate) fn new(
        platter: Platter,
        (server, life, target): (usize, u64, usize),
        asking: Asking,
    ) -> SimDisk {
        SimDisk { platter, server, life, target, asking }
    }

    /// The disk that has the faults, if it can have any.
    pub(crate) fn faulty(&self) -> Option<&MemoryDisk> {
        match &self.platter {
            Platter::Scratch(disk) => Some(disk),
            Platter::Kept(_) => None,
        }
    }

    /// Requests that wait.
    pub(crate) fn pending(&self) -> usize {
        match &self.platter {
            Platter::Scratch(disk) => disk.pending(),
            Platter::Kept(disk) => disk.pending(),
        }
    }

    /// Carries out one of them.
    pub(crate) fn step(&self, index: usize) -> Option<DiskDone> {
        match &self.platter {
            Platter::Scratch(disk) => disk.step(index),
            Platter::Kept(disk) => disk.step(index),
        }
    }

    fn disk(&self) -> &dyn Disk {
        match &self.platter {
            Platter::Scratch(disk) => disk,
            Platter::Kept(disk) => disk,
        }
    }
}

impl Disk for SimDisk {
    fn blocks(&self) -> u64 {
        self.disk().blocks()
    }

    fn submit(&self, request: DiskRequest) {
        let bytes = request.length() as u64;
        let SimDisk { server, life, target, .. } = *self;
        self.disk().submit(request);
        lock(&self.asking).push(Asked { server, life, target, bytes });
    }

    fn close(&self) {
        self.disk().close();
    }
}
