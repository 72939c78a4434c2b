//! Locks on ranges of bytes, and the wait for them.
//!
//! A client asks for news of all its waits in one request: of the threads that wait for locks of one
//! pool one does that for all of them.

use crate::call_int;
use crate::engine::{Engine, lock};
use crate::file::{OpenFile, WeirFile, open_file};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use weir_core::error::{Code, Error, Result};
use weir_core::types::Ino;
use weir_core::wire::meta::{LOCK_END_MAX, Lock, LockKind};

/// How long a thread leaves the asking to another before it looks again: that one may have died.
const PATIENCE: Duration = Duration::from_millis(100);

/// The waits of one pool's threads.
#[derive(Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    /// Of whose end there may be news.
    waiting: BTreeSet<u64>,
    /// Those of them of which the service has said that they wait: one that it has not heard of it
    /// would take for lapsed.
    begun: BTreeSet<u64>,
    ended: BTreeMap<u64, Option<Code>>,
    /// Of which the service may still tell.
    known: Vec<u64>,
    /// Whether a thread is asking.
    asking: bool,
}

impl Waits {
    /// A number that was not used before.
    pub(crate) fn number(&self) -> u64 {
        let mut state = lock(&self.state);
        state.last += 1;
        state.last
    }

    /// A wait is about to be asked for.
    fn expect(&self, ticket: u64) {
        lock(&self.state).waiting.insert(ticket);
    }

    fn forget(&self, ticket: u64) {
        let mut state = lock(&self.state);
        state.waiting.remove(&ticket);
        state.begun.remove(&ticket);
        state.ended.remove(&ticket);
    }

    /// Until the wait, which has begun, has ended.
    fn wait(&self, engine: &Engine, ticket: u64) -> Result<()> {
        lock(&self.state).begun.insert(ticket);
        loop {
            let mut state = lock(&self.state);
            if let Some(failure) = state.ended.remove(&ticket) {
                state.begun.remove(&ticket);
                return failure.map_or(Ok(()), |code| Err(Error::new(code)));
            }
            if state.asking {
                let woken = self.changed.wait_timeout(state, PATIENCE);
                drop(woken.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            state.asking = true;
            let named = |ticket: &&u64| !state.ended.contains_key(ticket);
            let tickets: Vec<u64> = state.begun.iter().filter(named).copied().collect();
            let known = std::mem::take(&mut state.known);
            drop(state);
            let told =
                engine.pool().and_then(|pool| engine.run(pool.fs().await_locks(&tickets, &known)));
            let mut state = lock(&self.state);
            state.asking = false;
            self.changed.notify_all();
            for news in told? {
                state.known.push(news.ticket);
                if state.waiting.contains(&news.ticket) {
                    state.ended.insert(news.ticket, news.failure);
                }
            }
        }
    }
}

impl OpenFile {
    fn range(&self, offset: u64, length: u64, exclusive: bool) -> Result<Lock> {
        let end = offset.checked_add(length).filter(|&end| end <= LOCK_END_MAX && length > 0);
        let end = end.ok_or_else(|| Error::because(Code::Invalid, "no such range of bytes"))?;
        Ok(Lock {
            ino: Ino(0),
            kind: LockKind::Range,
            owner: self.owner,
            pid: std::process::id(),
            start: offset,
            end,
            exclusive,
        })
    }

    fn take_lock(&self, offset: u64, length: u64, exclusive: bool) -> Result<()> {
        let range = self.range(offset, length, exclusive)?;
        let engine = &self.engine;
        let own = engine.run(self.own())?;
        self.locked.store(true, Ordering::Release);
        let ticket = engine.waits.number();
        engine.waits.expect(ticket);
        let taken = engine.run(own.take_lock(range, Some(ticket))).and_then(|held| match held {
            true => Ok(()),
            false => engine.waits.wait(engine, ticket),
        });
        engine.waits.forget(ticket);
        if taken.is_err() {
            // Whether it was had is open where the network failed: it must not be.
            let fs = engine.pool()?.fs();
            let range = Lock { ino: own.ino(), ..range };
            let held = engine.run(fs.cancel_lock(ticket)).unwrap_or(false);
            if held {
                let _ = engine.run(fs.unlock(range));
            }
        }
        taken
    }

    pub(crate) async fn give_back_all(&self) -> Result<()> {
        if !self.locked.load(Ordering::Acquire) {
            return Ok(());
        }
        let all = Lock { ino: self.ino(), ..self.range(0, LOCK_END_MAX, false)? };
        self.engine.pool()?.fs().unlock(all).await
    }

    fn give_back(&self, offset: u64, length: u64) -> Result<()> {
        let range = Lock { ino: self.ino(), ..self.range(offset, length, false)? };
        self.engine.run(self.engine.pool()?.fs().unlock(range))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_lock(
    file: *mut WeirFile,
    offset: u64,
    length: u64,
    exclusive: c_int,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        file.take_lock(offset, length, exclusive != 0)
            .map_err(|error| file.told(error.on("lock", "")))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_unlock(file: *mut WeirFile, offset: u64, length: u64) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        file.give_back(offset, length).map_err(|error| file.told(error.on("unlock", "")))?;
        Ok(0)
    })
}
