//! Locks of the programs on this mount, which hold against those of all other mounts.
//!
//! The pool keeps them; here is noted who may have some, so that they go when he closes the file or
//! dies: range locks of a process with any of its descriptors of the file (the kernel sends a flush
//! then), all others with the last descriptor of the opening that they were made through.
//!
//! A program that waits for a lock occupies none of the threads at the device (by a lane it has one, which
//! does nothing else): its reply is kept here, and one thread, [`attend`], waits for the news of all of them, ends those that a signal
//! has come for, and makes good what could not be told to the pool because it did not answer.

use crate::kernel::LockWish;
use crate::reply::{Errno, Reply};
use crate::shared::{Open, Shared, errno};
use crate::statistics::Operation;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_core::error::{Code, Error, Result};
use weir_core::fs::Rpc;
use weir_core::types::Ino;
use weir_core::wire::meta::{LOCK_END_MAX, Lock, LockEnded, LockKind};

/// How often [`attend`] looks around while somebody waits: milliseconds.
const TICK_MS: u64 = 50;
/// Interrupts that are remembered for requests that are not known yet. Most are of requests that end
/// by themselves; the kernel sends one only after the request itself, so that the newest suffice.
const EARLY_MAX: usize = 256;
/// Pause before the pool is told again what it did not take.
const DEBT_PAUSE: Duration = Duration::from_secs(1);
/// What the pool is still to be told. Beyond that its own lease has to clean up after this mount.
const DEBTS_MAX: usize = 16 * 1024;

/// Who can have locks: a file and the kernel's number of an owner.
type Holder = (Ino, u64);

/// What one owner may have locked of a file.
#[derive(Debug, Default)]
struct Held {
    range: bool,
    whole: bool,
    /// Requests under way.
    asking: usize,
    /// Through which openings.
    handles: BTreeSet<u64>,
}

impl Held {
    fn kind(&mut self, kind: LockKind) -> &mut bool {
        match kind {
            LockKind::Range => &mut self.range,
            LockKind::Whole => &mut self.whole,
        }
    }

    fn is_nothing(&self) -> bool {
        !self.range && !self.whole && self.asking == 0
    }
}

/// A program that waits.
struct Waiting {
    reply: Reply,
    lock: Lock,
    /// A signal waits for him: the kernel said so.
    interrupted: bool,
    /// The pool knows of it.
    queued: bool,
    /// It is being given up, because of a signal.
    leaving: bool,
}

/// What the pool is to be told: that nobody waits for this lock any more, and that its owner has let
/// go of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Debt {
    lock: Lock,
    /// The wait to end; if it has ended with the lock, that is let go.
    ticket: Option<u64>,
    /// Whether it is let go in any case.
    unlock: bool,
}

#[derive(Default)]
struct State {
    ticket_last: u64,
    held: HashMap<Holder, Held>,
    waits: BTreeMap<u64, Waiting>,
    debts: Vec<Debt>,
    /// Requests that were interrupted before they were known here, by number.
    early: VecDeque<u64>,
    over: bool,
    thread: Option<JoinHandle<()>>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locks {
    state: Mutex<State>,
    /// There is something to attend to.
    bell: Condvar,
}

/// Whether the pool did not do what it was asked for, as far as this error tells.
fn is_refusal(code: Code) -> bool {
    use Code::{BadHandle, Deadlock, Invalid, NoLocks, TooMany, WouldBlock};
    matches!(code, WouldBlock | Deadlock | NoLocks | BadHandle | Invalid | TooMany)
}

fn everything(ino: Ino, kind: LockKind, owner: u64) -> Lock {
    Lock { ino, kind, owner, pid: 0, start: 0, end: LOCK_END_MAX, exclusive: true }
}

/// The kernel's way to say a lock, in ours.
pub(crate) fn to_lock(ino: Ino, wish: &LockWish) -> Lock {
    Lock {
        ino,
        kind: if wish.whole { LockKind::Whole } else { LockKind::Range },
        owner: wish.owner,
        pid: wish.pid,
        start: wish.first,
        end: wish.last.saturating_add(1).min(LOCK_END_MAX),
        exclusive: wish.typ == libc::F_WRLCK,
    }
}

impl State {
    fn owes(&self, holder: Holder) -> bool {
        self.debts.iter().any(|debt| (debt.lock.ino, debt.lock.owner) == holder)
    }

    fn owe(&mut self, debt: Debt) {
        if self.debts.len() >= DEBTS_MAX {
            tracing::warn!(?debt, "a lock is left to the lease");
        } else if !self.debts.contains(&debt) {
            self.debts.push(debt);
        }
    }

    /// A request for a lock has ended; whether its owner may hold it now.
    fn asked(&mut self, lock: &Lock, may_hold: bool) {
        let holder = (lock.ino, lock.owner);
        let Some(held) = self.held.get_mut(&holder) else { return };
        held.asking -= 1;
        *held.kind(lock.kind) |= may_hold;
        if held.is_nothing() {
            self.held.remove(&holder);
        }
    }

    /// A request for a lock has ended, and whether it is held is open. Where its owner held nothing
    /// before, he shall not have it; else he keeps what he has, and it goes when he closes the file.
    fn asked_in_vain(&mut self, lock: &Lock, ticket: Option<u64>) {
        let held = self.held.get_mut(&(lock.ino, lock.owner));
        let unlock = held.is_some_and(|held| held.asking == 1 && !*held.kind(lock.kind));
        self.asked(lock, !unlock);
        if unlock || ticket.is_some() {
            self.owe(Debt { lock: *lock, ticket, unlock });
        }
    }

    /// Takes a wait out, with how its lock ended.
    fn finish(&mut self, ticket: u64, may_hold: bool) -> Option<Waiting> {
        let wait = self.waits.remove(&ticket)?;
        self.asked(&wait.lock, may_hold);
        Some(wait)
    }
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing below panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a lock is asked for.
    fn ask(&self, open: &Open, handle: u64, lock: &Lock) -> Result<()> {
        let mut state = self.lock();
        let holder = (lock.ino, lock.owner);
        if state.owes(holder) {
            let cause = "the pool has not heard yet that an older lock was let go";
            return Err(Error::because(Code::ServerLost, cause));
        }
        let held = state.held.entry(holder).or_default();
        held.asking += 1;
        held.handles.insert(handle);
        open.lock_owners.lock().unwrap_or_else(PoisonError::into_inner).insert(lock.owner);
        Ok(())
    }

    /// Has a thread attend to those who wait and to debts.
    fn ring(&self, shared: &Arc<Shared>) -> Result<()> {
        let mut state = self.lock();
        if state.thread.is_none() && !state.over {
            let shared = shared.clone();
            let run = move || shared.locks.run(&shared);
            let thread = std::thread::Builder::new().name("weir-locks".to_owned()).spawn(run);
            state.thread = Some(thread.map_err(|error| {
                Error::because(Code::NoLocks, format!("no thread: {error}")).on("wait for", "lock")
            })?);
        }
        drop(state);
        self.bell.notify_all();
        Ok(())
    }

    fn run(&self, shared: &Shared) {
        loop {
            let state = self.lock();
            let idle =
                |state: &mut State| !state.over && state.waits.is_empty() && state.debts.is_empty();
            let state = self.bell.wait_while(state, idle);
            if state.unwrap_or_else(PoisonError::into_inner).over {
                return;
            }
            shared.pool.run(attend(shared));
        }
    }

    /// The mount has ended: what is left goes.
    pub(crate) fn end(&self, shared: &Shared) {
        let (thread, waits, left) = {
            let mut state = self.lock();
            state.over = true;
            let waits = std::mem::take(&mut state.waits);
            (state.thread.take(), waits, std::mem::take(&mut state.held))
        };
        self.bell.notify_all();
        if let Some(thread) = thread {
            // It has told of its panic itself, if it had one.
            let _ = thread.join();
        }
        // Nobody waits any more. Else the pool would give them their locks, until this mount's lease has run out.
        let debt =
            |(ticket, Waiting { lock, .. })| Debt { lock, ticket: Some(ticket), unlock: false };
        let debts: Vec<Debt> = waits.into_iter().map(debt).collect();
        let unwaited = debts.iter().map(|debt| pay(shared, debt));
        for error in shared.pool.run(join_all(unwaited)).into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "end of a wait at the end of a mount failed");
        }
        let left = left.into_iter().flat_map(|((ino, owner), held)| {
            let kinds = [(held.range, LockKind::Range), (held.whole, LockKind::Whole)];
            kinds
                .into_iter()
                .filter(|(held, _)| *held)
                .map(move |(_, kind)| shared.fs().unlock(everything(ino, kind, owner)))
        });
        for error in shared.pool.run(join_all(left)).into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "unlock at the end of a mount failed");
        }
    }
}

impl Shared {
    /// The kernel's F_SETLK and F_SETLKW, and flock(2).
    pub(crate) fn take_lock(
        self: &Arc<Self>,
        (handle, open): (u64, &Open),
        lock: Lock,
        wait: bool,
        reply: Reply,
    ) {
        if let Err(error) = self.locks.ask(open, handle, &lock) {
            return reply.error(errno(&error));
        }
        let ask = |ticket| {
            let begun = Instant::now();
            let result = self.pool.run(open.file.take_lock(lock, ticket));
            self.counters.operation(Operation::Lock, begun.elapsed(), result.is_err());
            result
        };
        if !wait {
            return match ask(None) {
                Ok(_) => {
                    self.locks.lock().asked(&lock, true);
                    self.granted(lock.ino, reply);
                }
                Err(error) => {
                    self.failed(&lock, None, &error);
                    reply.error(errno(&error));
                }
            };
        }
        // Before it is asked for: the news may come before the answer.
        let ticket = {
            let mut state = self.locks.lock();
            state.ticket_last += 1;
            let ticket = state.ticket_last;
            let unique = reply.unique();
            let interrupted = state.early.contains(&unique);
            let (queued, leaving) = (false, false);
            let waiting = Waiting { reply, lock, interrupted, queued, leaving };
            state.waits.insert(ticket, waiting);
            ticket
        };
        let result = match ask(Some(ticket)) {
            // Nobody would attend to it: it does not wait.
            Ok(false) => self.locks.ring(self).map(|()| false).or_else(|error| {
                let held = self.pool.run(self.fs().cancel_lock(ticket))?;
                if held { Ok(true) } else { Err(error) }
            }),
            result => result,
        };
        let mut state = self.locks.lock();
        match result {
            Ok(true) => {
                let wait = state.finish(ticket, true);
                drop(state);
                if let Some(wait) = wait {
                    self.granted(lock.ino, wait.reply);
                }
            }
            Ok(false) => {
                if let Some(wait) = state.waits.get_mut(&ticket) {
                    wait.queued = true;
                }
            }
            Err(error) => {
                let wait = state.waits.remove(&ticket);
                drop(state);
                // Else the news was quicker, and it is held.
                if let Some(wait) = wait {
                    self.failed(&lock, Some(ticket), &error);
                    wait.reply.error(errno(&error));
                }
            }
        }
    }

    /// A signal has come for whoever made this request: if he waits for a lock, he is to be told.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.locks.lock();
        if let Some(wait) = state.waits.values_mut().find(|wait| wait.reply.unique() == unique) {
            wait.interrupted = true;
            return;
        }
        if state.early.len() >= EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }

    /// A lock was asked for, and is not to be had; or it is open whether it is held.
    fn failed(self: &Arc<Self>, lock: &Lock, ticket: Option<u64>, error: &Error) {
        let mut state = self.locks.lock();
        if is_refusal(error.code) {
            state.asked(lock, false);
            return;
        }
        state.asked_in_vain(lock, ticket);
        drop(state);
        // Without a thread the lease has to do.
        let _ = self.locks.ring(self);
    }

    /// A program has its lock. What the kernel believes of the file was perhaps true before: who has
    /// a lock must see what others did while they had theirs.
    fn granted(&self, ino: Ino, reply: Reply) {
        if self.caching
            && let Some(device) = self.device.get()
        {
            // Not the pages themselves, for which this might have to wait: finding the file changed,
            // the kernel does that. It fails where nothing is cached.
            let _ = device.invalidate(ino, -1);
        }
        reply.ok();
    }

    /// Lets go of what its owner has of this lock. What the pool does not hear now, it is told later.
    pub(crate) fn let_go(self: &Arc<Self>, lock: Lock, reply: Reply) {
        let may_hold = {
            let mut state = self.locks.lock();
            let held = state.held.get_mut(&(lock.ino, lock.owner));
            held.is_some_and(|held| *held.kind(lock.kind))
        };
        match may_hold.then(|| self.unlock(lock)) {
            // Too many locks: one in the middle of another makes three of it.
            Some(Err(error)) => reply.error(errno(&error)),
            _ => reply.ok(),
        }
    }

    /// Fails only where the pool refuses, never where it does not answer.
    fn unlock(self: &Arc<Self>, lock: Lock) -> Result<()> {
        let begun = Instant::now();
        let result = self.pool.run(self.fs().unlock(lock));
        self.counters.operation(Operation::Unlock, begun.elapsed(), result.is_err());
        match result {
            Err(error) if !is_refusal(error.code) => {
                tracing::debug!(%error, "a lock is let go later");
                self.locks.lock().owe(Debt { lock, ticket: None, unlock: true });
                // Without a thread the lease has to do.
                let _ = self.locks.ring(self);
                Ok(())
            }
            result => result,
        }
    }

    fn unlock_all(self: &Arc<Self>, ino: Ino, kind: LockKind, owner: u64) {
        // To let go of everything is not refused.
        let _ = self.unlock(everything(ino, kind, owner));
    }

    /// A process has closed a descriptor of a file: its range locks go.
    pub(crate) fn flushed(self: &Arc<Self>, ino: Ino, owner: u64) {
        let held = {
            let mut state = self.locks.lock();
            let Some(held) = state.held.get_mut(&(ino, owner)) else { return };
            let range = std::mem::take(&mut held.range);
            if held.is_nothing() {
                state.held.remove(&(ino, owner));
            }
            range
        };
        if held {
            self.unlock_all(ino, LockKind::Range, owner);
        }
    }

    /// The last descriptor of an opening is closed: locks made through it go.
    pub(crate) fn released(self: &Arc<Self>, handle: u64, open: &Open) {
        let ino = open.file.ino();
        let owners =
            std::mem::take(&mut *open.lock_owners.lock().unwrap_or_else(PoisonError::into_inner));
        for owner in owners {
            let (range, whole) = {
                let mut state = self.locks.lock();
                let Some(held) = state.held.get_mut(&(ino, owner)) else { continue };
                if !held.handles.remove(&handle) || !held.handles.is_empty() {
                    continue;
                }
                let kinds = (std::mem::take(&mut held.range), std::mem::take(&mut held.whole));
                if held.is_nothing() {
                    state.held.remove(&(ino, owner));
                }
                kinds
            };
            if range {
                self.unlock_all(ino, LockKind::Range, owner);
            }
            if whole {
                self.unlock_all(ino, LockKind::Whole, owner);
            }
        }
    }

    /// The kernel's F_GETLK.
    pub(crate) fn find_lock(&self, open: &Open, lock: Lock, reply: Reply) {
        match self.run(Operation::FindLock, open.file.find_lock(lock)) {
            Ok(Some(Lock { start, end, exclusive, pid, .. })) => {
                let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                reply.locked(start, end - 1, kind, pid);
            }
            Ok(None) => reply.locked(lock.start, lock.end - 1, libc::F_UNLCK, 0),
            Err(errno) => reply.error(errno),
        }
    }
}

/// Something that [`attend`] waited for.
enum Event {
    News(Result<Vec<LockEnded>>),
    Left(u64, Result<bool>),
    Paid(Debt, Result<()>),
    Tick,
}

type Work<'a> = Pin<Box<dyn Future<Output = Event> + Send + 'a>>;

/// Sees to those who wait and to debts, until there are none.
async fn attend(shared: &Shared) {
    let (fs, locks) = (shared.fs(), &shared.locks);
    let mut work: FuturesUnordered<Work<'_>> = FuturesUnordered::new();
    let mut known = Vec::new();
    let (mut asking, mut paying, mut ticking) = (false, false, false);
    let mut debt_due = Instant::now();
    loop {
        let (queued, signalled, debt) = {
            let mut state = locks.lock();
            let idle = state.waits.is_empty() && state.debts.is_empty() && known.is_empty();
            if state.over || idle {
                return;
            }
            look(&mut state)
        };
        for ticket in signalled {
            work.push(Box::pin(async move { Event::Left(ticket, fs.cancel_lock(ticket).await) }));
        }
        let news = !queued.is_empty() || !known.is_empty();
        if news && !asking {
            asking = true;
            let known = known.clone();
            work.push(Box::pin(async move { Event::News(fs.await_locks(&queued, &known).await) }));
        }
        if let Some(debt) = debt.filter(|_| !paying && debt_due <= Instant::now()) {
            paying = true;
            work.push(Box::pin(async move {
                let paid = pay(shared, &debt).await;
                Event::Paid(debt, paid)
            }));
        }
        if !ticking {
            ticking = true;
            work.push(Box::pin(async move {
                fs.rpc().sleep(TICK_MS).await;
                Event::Tick
            }));
        }
        let Some(event) = work.next().await else { return };
        let mut granted = Vec::new();
        let mut state = locks.lock();
        match event {
            Event::Tick => ticking = false,
            Event::News(news) => {
                asking = false;
                known = match news {
                    Ok(ended) => state.heard(ended, &mut granted),
                    Err(error) => {
                        state.fail(&error);
                        Vec::new()
                    }
                };
            }
            Event::Left(ticket, left) => {
                let held = *left.as_ref().unwrap_or(&false);
                let Some(wait) = state.finish(ticket, held || left.is_err()) else { continue };
                if left.is_err() {
                    state.owe(Debt { lock: wait.lock, ticket: Some(ticket), unlock: false });
                }
                match held {
                    true => granted.push(wait),
                    false => wait.reply.error(Errno::EINTR),
                }
            }
            Event::Paid(debt, paid) => {
                paying = false;
                match paid {
                    Err(error) if !is_refusal(error.code) && !is_another_life(error.code) => {
                        debt_due = Instant::now() + DEBT_PAUSE;
                    }
                    _ => state.debts.retain(|other| *other != debt),
                }
            }
        }
        drop(state);
        granted.into_iter().for_each(|wait| shared.granted(wait.lock.ino, wait.reply));
    }
}

/// Whether the pool that had the locks is no more.
fn is_another_life(code: Code) -> bool {
    matches!(code, Code::Lost | Code::NotFormed | Code::Unauthenticated)
}

async fn pay(shared: &Shared, debt: &Debt) -> Result<()> {
    let held = match debt.ticket {
        Some(ticket) => shared.fs().cancel_lock(ticket).await?,
        None => false,
    };
    if held || debt.unlock { shared.fs().unlock(debt.lock).await } else { Ok(()) }
}

/// The waits that the pool knows of, those that a signal has come for, and a debt.
fn look(state: &mut State) -> (Vec<u64>, Vec<u64>, Option<Debt>) {
    let (mut queued, mut signalled) = (Vec::new(), Vec::new());
    for (&ticket, wait) in &mut state.waits {
        if !wait.queued || wait.leaving {
            continue;
        }
        if wait.interrupted {
            wait.leaving = true;
            signalled.push(ticket);
            continue;
        }
        queued.push(ticket);
    }
    (queued, signalled, state.debts.first().cloned())
}

impl State {
    /// Tells those whose waits have ended, or gives them to be told. Gives also what the pool is to forget.
    fn heard(&mut self, ended: Vec<LockEnded>, granted: &mut Vec<Waiting>) -> Vec<u64> {
        for LockEnded { ticket, failure } in &ended {
            let Some(wait) = self.finish(*ticket, failure.is_none()) else { continue };
            match failure {
                None => granted.push(wait),
                Some(code) => wait.reply.error(Errno(code.errno())),
            }
        }
        ended.into_iter().map(|ended| ended.ticket).collect()
    }

    /// The pool does not answer: nobody waits for it any longer.
    fn fail(&mut self, error: &Error) {
        tracing::warn!(%error, "waits for locks have ended");
        let queued = |(_, wait): &(&u64, &Waiting)| wait.queued && !wait.leaving;
        let tickets: Vec<u64> =
            self.waits.iter().filter(queued).map(|(&ticket, _)| ticket).collect();
        for ticket in tickets {
            let Some(wait) = self.finish(ticket, true) else { continue };
            self.owe(Debt { lock: wait.lock, ticket: Some(ticket), unlock: false });
            wait.reply.error(errno(error));
        }
    }
}
