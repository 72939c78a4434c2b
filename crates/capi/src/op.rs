//! Operations: I/O that is begun in one call and ended in another.

use crate::abi::WeirExtent;
use crate::engine::{Engine, Task, TaskFuture};
use crate::file::{OpenFile, Transfer, WeirFile, open_file};
use crate::{array, call, call_int, fail, given, invalid, wanted};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weir_core::error::{Code, Error, Result};

/// `weir_op`.
pub(crate) struct WeirOp {
    engine: Arc<Engine>,
    task: Arc<Task>,
}

/// An operation's file, kept from being closed.
struct Busy(Arc<OpenFile>);

impl Busy {
    fn new(file: &Arc<OpenFile>) -> Busy {
        file.busy.fetch_add(1, Ordering::AcqRel);
        Busy(file.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Begins an operation and hands its handle out.
///
/// # Safety
/// `file` and `out` are as weir.h demands.
unsafe fn submit(
    file: *mut WeirFile,
    out: *mut *mut WeirOp,
    future: impl FnOnce(Busy) -> Result<TaskFuture>,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { wanted(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: as above.
        let file = unsafe { open_file(file) }?;
        let task = file.engine.submit(future(Busy::new(file))?);
        *out = Box::into_raw(Box::new(WeirOp { engine: file.engine.clone(), task }));
        Ok(0)
    })
}

// In all of these the memory is the operation's until it has ended or `weir_op_free` has dropped
// its future: weir.h says so.

fn reading(busy: Busy, transfer: Transfer) -> TaskFuture {
    // SAFETY: see above.
    Box::pin(async move { unsafe { busy.0.read(&transfer) }.await })
}

fn writing(busy: Busy, transfer: Transfer) -> TaskFuture {
    // SAFETY: see above.
    Box::pin(async move { unsafe { busy.0.write(&transfer) }.await })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_submit_read(
    file: *mut WeirFile,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    out: *mut *mut WeirOp,
) -> c_int {
    let future = |busy| Ok(reading(busy, Transfer::one(buffer, length, offset)?));
    // SAFETY: the arguments are as weir.h demands.
    unsafe { submit(file, out, future) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_submit_write(
    file: *mut WeirFile,
    buffer: *const c_void,
    length: usize,
    offset: u64,
    out: *mut *mut WeirOp,
) -> c_int {
    let future = |busy| Ok(writing(busy, Transfer::one(buffer, length, offset)?));
    // SAFETY: the arguments are as weir.h demands.
    unsafe { submit(file, out, future) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_submit_readv_list(
    file: *mut WeirFile,
    extents: *const WeirExtent,
    extent_count: usize,
    iov: *const libc::iovec,
    iov_count: usize,
    out: *mut *mut WeirOp,
) -> c_int {
    // SAFETY: the arguments are as weir.h demands.
    let list = || unsafe { Transfer::list(extents, extent_count, iov, iov_count) };
    // SAFETY: as above.
    unsafe { submit(file, out, |busy| Ok(reading(busy, list()?))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_submit_writev_list(
    file: *mut WeirFile,
    extents: *const WeirExtent,
    extent_count: usize,
    iov: *const libc::iovec,
    iov_count: usize,
    out: *mut *mut WeirOp,
) -> c_int {
    // SAFETY: the arguments are as weir.h demands.
    let list = || unsafe { Transfer::list(extents, extent_count, iov, iov_count) };
    // SAFETY: as above.
    unsafe { submit(file, out, |busy| Ok(writing(busy, list()?))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_submit_fsync(file: *mut WeirFile, out: *mut *mut WeirOp) -> c_int {
    // SAFETY: the arguments are as weir.h demands.
    unsafe { submit(file, out, |busy| Ok(Box::pin(async move { busy.0.sync().await }))) }
}

/// What an operation's handle stands for.
///
/// # Safety
/// `op` is NULL or a handle that has not been ended.
unsafe fn operation<'a>(op: *const WeirOp) -> Result<&'a WeirOp> {
    // SAFETY: the caller's promise.
    let op = unsafe { given(op, "op") }?;
    op.engine.pool()?;
    Ok(op)
}

/// The moment so many milliseconds from now; none where there is no limit.
fn deadline(timeout_ms: c_int) -> Option<Instant> {
    let timeout = Duration::from_millis(u64::try_from(timeout_ms).ok()?);
    Instant::now().checked_add(timeout)
}

/// As `weir_wait`.
///
/// # Safety
/// As weir.h demands.
unsafe fn wait(op: *const WeirOp, timeout_ms: c_int, result: *mut isize) -> c_int {
    call_int(|| {
        // SAFETY: the caller's promise.
        let op = unsafe { operation(op) }?;
        op.engine.wait(&[&op.task], deadline(timeout_ms));
        let Some(ended) = op.task.result() else {
            return Ok(0);
        };
        let value = ended.map_or_else(|error| fail(&error), |count| count as isize);
        // SAFETY: NULL, or valid for writes.
        if let Some(result) = unsafe { result.as_mut() } {
            *result = value;
        }
        Ok(1)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_poll(op: *mut WeirOp, result: *mut isize) -> c_int {
    // SAFETY: the arguments are as weir.h demands.
    unsafe { wait(op, 0, result) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_wait(op: *mut WeirOp, timeout_ms: c_int, result: *mut isize) -> c_int {
    // SAFETY: the arguments are as weir.h demands.
    unsafe { wait(op, timeout_ms, result) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_wait_any(
    ops: *const *mut WeirOp,
    count: usize,
    timeout_ms: c_int,
) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let ops = unsafe { array(ops, count, "ops") }?;
        let mut indexes = Vec::with_capacity(count);
        let mut tasks: Vec<&Task> = Vec::with_capacity(count);
        let mut engine: Option<&Arc<Engine>> = None;
        for (index, &op) in ops.iter().enumerate().filter(|(_, op)| !op.is_null()) {
            // SAFETY: as above.
            let op = unsafe { operation(op) }?;
            if !Arc::ptr_eq(engine.get_or_insert(&op.engine), &op.engine) {
                return Err(invalid("operations of different pools").on("wait", "operations"));
            }
            indexes.push(index);
            tasks.push(&op.task);
        }
        let engine = engine.ok_or_else(|| invalid("no operation").on("wait", "operations"))?;
        match engine.wait(&tasks, deadline(timeout_ms)) {
            Some(found) => Ok(indexes[found]),
            None => Err(Error::because(Code::TimedOut, "none has ended").on("wait", "operations")),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_op_free(op: *mut WeirOp) {
    call(|| {
        if !op.is_null() {
            // In a child process the handle stays: its connections are the parent's.
            // SAFETY: the arguments are as weir.h demands.
            unsafe { operation(op) }?;
            // SAFETY: made by `submit`, and not used again.
            let op = unsafe { Box::from_raw(op) };
            op.task.cancel();
        }
        Ok(0)
    });
}
