//! What is written behind: bytes that are put together, while those before are under way.

use super::DIRTY;
use crate::files::{self, Description};
use crate::flight::Flight;
use crate::process;
use crate::real::kernel;
use crate::transfer::{Way, move_bytes};
use libc::{c_int, ssize_t};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_core::copying::write_over;
use weir_core::slice::Slice;

/// See above.
#[derive(Default)]
pub(super) struct Behind {
    /// Written by the program and not yet on its way to the pool.
    dirty: Vec<u8>,
    dirty_at: u64,
    /// Up to where pieces begin: requests then fit the file's stripes.
    dirty_end: u64,
    /// Through which descriptor.
    through: Option<(c_int, Arc<Description>)>,
    /// What was dirty before.
    flying: Option<Flight>,
    /// Memory for the next.
    spare: Vec<u8>,
    /// In [`DIRTY`].
    counted: bool,
    /// Of a write that failed after the program was told that it was done.
    error: c_int,
}

impl Behind {
    pub(super) fn has_failed(&self) -> bool {
        self.error != 0
    }

    /// The error number of what could not be written since the last time, or 0.
    pub(super) fn failure(&mut self) -> c_int {
        std::mem::take(&mut self.error)
    }

    /// From where to where there may be bytes that are not yet stored.
    pub(super) fn range(&self) -> Option<(u64, u64)> {
        let dirty = (!self.dirty.is_empty())
            .then(|| (self.dirty_at, self.dirty_at + self.dirty.len() as u64));
        let flying = self.flying.as_ref().map(Flight::range);
        match (dirty, flying) {
            (Some(one), Some(other)) => Some((one.0.min(other.0), one.1.max(other.1))),
            (one, other) => one.or(other),
        }
    }

    /// Takes bytes to be written, in pieces of `size` bytes at most. Says whether a piece has begun its
    /// way now.
    ///
    /// # Safety
    /// The slices must be readable.
    pub(super) unsafe fn write(
        &mut self,
        size: usize,
        (fd, description): (c_int, &Arc<Description>),
        slices: &[Slice],
        at: u64,
    ) -> bool {
        let mut launched = false;
        let mut from = match at.checked_sub(self.dirty_at) {
            Some(from) if from <= self.dirty.len() as u64 && !self.dirty.is_empty() => {
                from as usize
            }
            _ => {
                launched = self.launch();
                self.begin(size, (fd, description), at);
                0
            }
        };
        for slice in slices {
            // SAFETY: the caller promises that the memory can be read.
            let mut bytes = unsafe { std::slice::from_raw_parts(slice.pointer, slice.length) };
            while !bytes.is_empty() {
                let room = (self.dirty_end - self.dirty_at) as usize;
                if from == room {
                    let next = self.dirty_end;
                    launched |= self.launch();
                    self.begin(size, (fd, description), next);
                    from = 0;
                    continue;
                }
                let (now, rest) = bytes.split_at(bytes.len().min(room - from));
                write_over(&mut self.dirty, from, now);
                from += now.len();
                bytes = rest;
            }
        }
        if self.dirty_at + self.dirty.len() as u64 == self.dirty_end {
            launched |= self.launch();
        }
        launched
    }

    /// What comes next is written there.
    fn begin(&mut self, size: usize, through: (c_int, &Arc<Description>), at: u64) {
        if !std::mem::replace(&mut self.counted, true) {
            DIRTY.fetch_add(1, Ordering::Relaxed);
        }
        self.dirty_at = at;
        self.dirty_end = at + size as u64 - at % size as u64;
        self.through = Some((through.0, through.1.clone()));
        self.dirty.reserve_exact(size);
    }

    /// Begins to write what is dirty; says whether there was anything.
    fn launch(&mut self) -> bool {
        let Some((fd, description)) = self.through.take() else { return false };
        // One after the other: they may overlap.
        self.land();
        let spare = std::mem::take(&mut self.spare);
        let memory = std::mem::replace(&mut self.dirty, spare);
        self.flying = Some(Flight::begin(fd, &description, Way::Write, memory, self.dirty_at));
        if description.mapped() {
            self.land();
        }
        true
    }

    /// Waits for what is under way.
    fn land(&mut self) {
        let Some(flight) = self.flying.take() else { return };
        let (fd, (at, _), description) = (flight.fd(), flight.range(), flight.description());
        let (mut memory, stored) = flight.end();
        if stored.is_none() && self.error == 0 {
            self.error = store_by_kernel(fd, &description, &memory, at);
        }
        memory.clear();
        self.spare = memory;
    }

    /// Writes all that is dirty if any of it lies behind this byte: before anything is read there, for
    /// that may be older, and may take for the file's end what is not.
    pub(super) fn flush_beyond(&mut self, at: u64) {
        if self.range().is_some_and(|(_, to)| at < to) {
            self.flush();
        }
    }

    /// Writes all that is dirty.
    pub(super) fn flush(&mut self) {
        self.land();
        if let Some((fd, description)) = self.through.take() {
            let slice = Slice { pointer: self.dirty.as_mut_ptr(), length: self.dirty.len() };
            // SAFETY: our own memory, which nobody else touches meanwhile.
            let stored = unsafe {
                move_bytes(fd, &description, Way::Write, &[slice], slice.length, self.dirty_at)
            };
            if stored.is_none() && self.error == 0 {
                self.error = store_by_kernel(fd, &description, &self.dirty, self.dirty_at);
            }
            self.dirty.clear();
        }
        if std::mem::take(&mut self.counted) {
            DIRTY.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Has the kernel write; gives the error number, or 0.
fn store_by_kernel(fd: c_int, description: &Description, bytes: &[u8], at: u64) -> c_int {
    if !files::leads_to(fd, description) {
        return libc::EIO;
    }
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let moved: ssize_t = kernel!(SYS_pwrite64, fd, rest.as_ptr(), rest.len(), at + done as u64);
        match moved {
            ..0 if process::errno() == libc::EINTR => {}
            ..=0 => return process::errno(),
            moved => done += moved as usize,
        }
    }
    0
}
