//! A disk over a file's twin, from which every image that a crash can leave is made.

use super::{BLOCK_BYTES, Disk, DiskDone, DiskError, DiskOp, DiskRequest};
use crate::journal::Medium;
use crate::journal::twin::{Fault, Recorder};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A disk whose requests are carried out when a test says so, in the order that it wants, each as one
/// operation of the file's twin.
#[derive(Debug)]
pub struct TwinDisk {
    file: Recorder,
    blocks: u64,
    queue: Mutex<VecDeque<DiskRequest>>,
}

impl TwinDisk {
    /// A disk of so many blocks.
    pub fn new(file: Recorder, blocks: u64) -> TwinDisk {
        TwinDisk { file, blocks, queue: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<DiskRequest>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that wait.
    pub fn pending(&self) -> usize {
        self.queue().len()
    }

    /// Carries out the `index`th of the requests that wait. Hand what comes back to the target.
    pub fn step(&self, index: usize) -> Option<DiskDone> {
        // Nobody takes the buffers away meanwhile: see `close`.
        let mut queue = self.queue();
        let request = queue.remove(index)?;
        let offset = request.block * BLOCK_BYTES as u64;
        let mut file = self.file.clone();
        let mut bytes = vec![0; request.length()];
        let parts = request.buffers.iter().scan(0, |at, slice| {
            let start = *at;
            *at += slice.length;
            Some((start..*at, slice))
        });
        let result = match request.op {
            DiskOp::Read => {
                let result = file.read(offset, &mut bytes);
                for (range, slice) in parts {
                    // SAFETY: the target keeps the buffer valid, and to this request alone, until the
                    // completion is handed back.
                    unsafe { slice.pointer.copy_from(bytes[range].as_ptr(), slice.length) };
                }
                result
            }
            DiskOp::Write => {
                for (range, slice) in parts {
                    // SAFETY: the target keeps the buffer valid, and nobody writes to it, until the
                    // completion is handed back.
                    let from = unsafe { std::slice::from_raw_parts(slice.pointer, slice.length) };
                    bytes[range].copy_from_slice(from);
                }
                file.write(offset, &bytes)
            }
            DiskOp::Sync => file.sync(),
        };
        let error = |_| match self.file.fault() {
            Some(Fault::Short) => DiskError::Short(bytes.len() / 2),
            Some(Fault::Full) => DiskError::Os(28),
            Some(Fault::Gone) => DiskError::Os(19),
            _ => DiskError::Os(5),
        };
        Some(DiskDone { tag: request.tag, result: result.map_err(error) })
    }
}

impl Disk for TwinDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn submit(&self, request: DiskRequest) {
        self.queue().push_back(request);
    }

    fn close(&self) {
        self.queue().clear();
    }
}
