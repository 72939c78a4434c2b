//! A virtual disk: takes time for each request and each byte, and ends what is under way in any order.

use crate::world::lock;
use std::sync::{Arc, Mutex};
use weir_core::service::storage::disk::{Disk, DiskRequest, MemoryDisk};

/// How fast a disk is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    /// Of each request: microseconds.
    pub(crate) latency_us: u64,
    /// Bytes in a millisecond.
    pub(crate) bytes_per_ms: u64,
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

/// One disk of one life of a server.
pub(crate) struct SimDisk {
    pub(crate) inner: MemoryDisk,
    server: usize,
    life: u64,
    target: usize,
    asking: Asking,
}

impl SimDisk {
    pub(crate) fn new(
        blocks: u64,
        (server, life, target): (usize, u64, usize),
        asking: Asking,
    ) -> SimDisk {
        SimDisk { inner: MemoryDisk::new(blocks), server, life, target, asking }
    }
}

impl Disk for SimDisk {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn submit(&self, request: DiskRequest) {
        let bytes = request.length() as u64;
        let SimDisk { server, life, target, .. } = *self;
        self.inner.submit(request);
        lock(&self.asking).push(Asked { server, life, target, bytes });
    }

    fn close(&self) {
        self.inner.close();
    }
}
