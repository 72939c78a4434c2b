//! The end of a process that leaves pools connected: handles that were closed and wait for a request
//! to end with must not stay open until the lease lapses.

use crate::pool::Inner;
use std::pin::pin;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long the end of a process waits for that: a lost server is not worth more.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Pools, and by which process each was connected: a child after fork has no business with them.
static POOLS: Mutex<Vec<(u32, Weak<Inner>)>> = Mutex::new(Vec::new());

/// Sees to it that this pool is left in order when the process exits with it connected.
pub(crate) fn at_exit(pool: &Arc<Inner>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the function takes nothing and does not unwind. Where this is a shared object that
        // is unloaded, the C library runs the function then.
        let _ = unsafe { libc::atexit(leave) };
    });
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    pools.retain(|(_, pool)| pool.strong_count() > 0);
    pools.push((std::process::id(), Arc::downgrade(pool)));
}

extern "C" fn leave() {
    // Never into the C library by a panic: what is left then, the lease's end clears up.
    let _ = std::panic::catch_unwind(|| {
        let pools = std::mem::take(&mut *POOLS.lock().unwrap_or_else(PoisonError::into_inner));
        let mut pools: Vec<Arc<Inner>> = pools
            .into_iter()
            .filter(|(process, _)| *process == std::process::id())
            .filter_map(|(_, pool)| pool.upgrade())
            .collect();
        pools.retain(|pool| pool.fs.has_garbage());
        if pools.is_empty() {
            return;
        }
        // This thread's own variables, by which it would wait, are gone already.
        let helper = std::thread::Builder::new().spawn(move || {
            let deadline = Instant::now() + END_LIMIT;
            for pool in pools {
                let rest = pin!(pool.fs.collect_garbage());
                let _ = pool.fs.rpc().run_until(rest, Some(deadline));
            }
        });
        let _ = helper.map(|helper| helper.join());
    });
}
