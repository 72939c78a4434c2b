//! A request of a buffer's that is under way while the program goes on.
//!
//! Nobody waits for it meanwhile, and so nobody drives it: what the kernel takes and brings by itself
//! is all that happens before its end is asked for.

use crate::files::Description;
use crate::transfer::{Way, begins, ends, exchange, move_bytes};
use libc::c_int;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use weir_core::error::{Code, Error, Result};
use weir_core::slice::Slice;

type Work = Pin<Box<dyn Future<Output = Result<usize>> + Send>>;

/// A read into memory of its own, or a write from there.
pub(crate) struct Flight {
    /// Until it has ended. Dropped before the memory that it uses.
    work: Option<Work>,
    result: Option<Result<usize>>,
    memory: Vec<u8>,
    at: u64,
    way: Way,
    fd: c_int,
    description: Arc<Description>,
    /// Time of the program's own that it took so far.
    spent: Duration,
}

impl Flight {
    /// Begins to read or write all of the memory at this place of the descriptor's file.
    pub(crate) fn begin(
        fd: c_int,
        description: &Arc<Description>,
        way: Way,
        mut memory: Vec<u8>,
        at: u64,
    ) -> Flight {
        let begun = Instant::now();
        begins(description, way);
        let slice = Slice { pointer: memory.as_mut_ptr(), length: memory.len() };
        let file = description.clone();
        let mut work: Work = Box::pin(async move {
            let slices = [slice];
            // SAFETY: the memory is the flight's, which keeps it until this has ended.
            unsafe { exchange(&file.file, way, &slices, slice.length, at) }.await
        });
        // Sends the requests; their end is looked for by whoever polls the next time.
        let result = match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        };
        let spent = begun.elapsed();
        if let Some(result) = &result {
            ends(description, way, spent, result);
        }
        let work = result.is_none().then_some(work);
        Flight { work, result, memory, at, way, fd, description: description.clone(), spent }
    }

    /// The descriptor that it was begun through.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    pub(crate) fn description(&self) -> Arc<Description> {
        self.description.clone()
    }

    /// Where it reads or writes, from and to.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.at, self.at + self.memory.len() as u64)
    }

    fn wait(&mut self) {
        let Some(mut work) = self.work.take() else { return };
        let begun = Instant::now();
        let result = self.description.engine.pool.run(work.as_mut());
        ends(&self.description, self.way, self.spent + begun.elapsed(), &result);
        self.result = Some(result);
    }

    /// Waits for its end. Gives the memory back and how many bytes were moved; none: the kernel has to
    /// do it.
    pub(crate) fn end(mut self) -> (Vec<u8>, Option<usize>) {
        self.wait();
        let mut memory = std::mem::take(&mut self.memory);
        let moved = match self.result.take() {
            Some(Err(Error { code: Code::NoCapability, .. })) => {
                let slice = Slice { pointer: memory.as_mut_ptr(), length: memory.len() };
                // SAFETY: memory of our own, in which nothing is under way any more.
                unsafe {
                    move_bytes(
                        self.fd,
                        &self.description,
                        self.way,
                        &[slice],
                        slice.length,
                        self.at,
                    )
                }
            }
            // Pages that the kernel read meanwhile may be from before or after.
            _ if self.way == Way::Write && self.description.mapped() => None,
            result => result.and_then(Result::ok),
        };
        (memory, moved)
    }
}

impl Drop for Flight {
    /// To abandon requests in the middle would cost the connection.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.wait();
        }
    }
}
