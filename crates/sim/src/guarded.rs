//! What locks guard, within histories: whoever holds one is alone with it, and finds there what the
//! last holder left.

use crate::workload::{Mix, Worker, at};
use crate::world::lock;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{File, Rpc};
use weir_core::wire::meta::{LOCK_END_MAX, LayoutWish, Lock, LockKind, OpenMode};

/// Counters that locks on ranges guard; one more is guarded by the lock on the whole file.
const RANGES: u64 = 3;
/// Where a counter is: stripes differ.
const COUNTER_BYTES: u64 = 4096;
/// In a calm world a wait for a lock ends sooner: microseconds.
const WAIT_US_MAX: u64 = 60_000_000;

type Client = crate::client::SimRpc;

/// A lock, by the counters that it guards.
#[derive(Clone, Copy, Debug)]
struct Claim {
    place: usize,
    kind: LockKind,
    first: u64,
    behind: u64,
    exclusive: bool,
}

impl Claim {
    fn excludes(&self, other: &Claim) -> bool {
        self.place != other.place
            && self.kind == other.kind
            && (self.exclusive || other.exclusive)
            && self.first < other.behind
            && other.first < self.behind
    }

    fn lock(&self) -> Lock {
        let (start, end) = match self.kind {
            LockKind::Range => (self.first * COUNTER_BYTES, self.behind * COUNTER_BYTES),
            LockKind::Whole => (0, LOCK_END_MAX),
        };
        let (ino, owner) = (weir_core::types::Ino::ROOT, self.place as u64);
        // Of the file that it is asked for.
        Lock { ino, kind: self.kind, owner, pid: 1, start, end, exclusive: self.exclusive }
    }
}

/// What is known of locks.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    held: Vec<Claim>,
    /// How many are at it, and how often somebody came.
    inside: usize,
    visits: u64,
    tickets: u64,
    /// What the counters are, where the outcome of no write is open.
    counters: [Option<u64>; RANGES as usize + 1],
    made: bool,
}

impl Worker {
    /// Whether nobody can have lost a lock without knowing.
    fn nobody_lapses(&self) -> bool {
        matches!(self.mix, Mix::Calm | Mix::Gentle)
    }

    /// Does something under locks, when others do.
    pub(crate) async fn locked(&mut self) {
        self.meet().await;
        let open = self.fs.create(
            &self.who,
            at("locked"),
            0o644,
            false,
            OpenMode::READ_WRITE,
            LayoutWish { stripe_size: Some(COUNTER_BYTES), stripe_count: Some(0) },
        );
        let file = match self.op(|| "open locked".to_owned(), open).await {
            Ok((file, ..)) => file,
            Err(error) => return self.excuse(&error),
        };
        {
            let locked = &mut lock(&self.model).locked;
            if !std::mem::replace(&mut locked.made, true) {
                locked.counters = [Some(0); RANGES as usize + 1];
            }
            locked.inside += 1;
            locked.visits += 1;
        }
        let mut result = Ok(());
        for _ in 0..self.rng.between(1, 3) {
            if result.is_ok() {
                result = self.work_locked(&file).await;
            }
        }
        lock(&self.model).locked.inside -= 1;
        let closed = self.op(|| "close locked".to_owned(), file.close()).await;
        for error in [result, closed].into_iter().filter_map(Result::err) {
            self.excuse(&error);
        }
    }

    async fn work_locked(&mut self, file: &File<Client>) -> Result<()> {
        let exclusive = self.rng.chance(60);
        let first = self.rng.below(RANGES);
        let behind = self.rng.between(first + 1, RANGES);
        let place = self.place;
        let claim = match self.rng.chance(60) {
            true => Claim { place, kind: LockKind::Range, first, behind, exclusive },
            false => {
                let (first, behind) = (RANGES, RANGES + 1);
                Claim { place, kind: LockKind::Whole, first, behind, exclusive }
            }
        };
        if !self.take(file, claim).await? {
            return Ok(());
        }
        let result = self.hold(file, claim).await;
        lock(&self.model).locked.held.retain(|held| held.place != place);
        // Also where it failed in between.
        let released = self.release(file, claim).await;
        result.and(released)
    }

    /// What is done while the lock is held.
    async fn hold(&mut self, file: &File<Client>, claim: Claim) -> Result<()> {
        self.count(file, claim).await?;
        // Long enough for others to come.
        let pause_ms = *self.rng.pick(&[0, 30, 400]);
        self.fs.rpc().sleep(pause_ms).await;
        if claim.exclusive || self.rng.chance(50) {
            return Ok(());
        }
        // Others may want the same: of two, one is told that this would be for ever.
        let claim = Claim { exclusive: true, ..claim };
        if claim.kind == LockKind::Whole {
            // The old one goes before the new one is waited for.
            lock(&self.model).locked.held.retain(|held| held.place != claim.place);
        }
        match self.take(file, claim).await {
            Ok(true) => self.count(file, claim).await,
            Ok(false) => Ok(()),
            Err(error) if error.code == Code::Deadlock && claim.kind == LockKind::Range => {
                self.count(file, Claim { exclusive: false, ..claim }).await
            }
            Err(error) => Err(error),
        }
    }

    /// Takes a lock, perhaps after a while. False: it was not to be had, or not waited for.
    async fn take(&mut self, file: &File<Client>, claim: Claim) -> Result<bool> {
        let ticket = {
            let locked = &mut lock(&self.model).locked;
            locked.tickets += 1;
            self.rng.chance(75).then_some(locked.tickets)
        };
        let patience_us = if self.rng.chance(20) { self.rng.below(300_000) } else { WAIT_US_MAX };
        let begin_us = self.now_us();
        let visits = {
            let model = lock(&self.model);
            (model.locked.inside == 1).then_some(model.locked.visits)
        };
        let ask = file.take_lock(claim.lock(), ticket);
        let taken = match self.op(|| format!("take {claim:?}, ticket {ticket:?}"), ask).await {
            Ok(taken) => taken,
            Err(error) if error.code == Code::WouldBlock && ticket.is_none() => {
                if self.nobody_lapses() && visits == Some(lock(&self.model).locked.visits) {
                    self.unexpected("a lock that nobody has was refused", "the lock");
                }
                return Ok(false);
            }
            Err(error) => return self.give_up(file, claim, ticket, error).await,
        };
        if let Some(ticket) = ticket.filter(|_| !taken) {
            let until_us = begin_us + patience_us;
            match self.wait(ticket, until_us).await {
                Ok(true) => {}
                Ok(false) => {
                    if patience_us == WAIT_US_MAX && self.nobody_lapses() {
                        self.unexpected("a wait for a lock did not end", "its end");
                    }
                    return Ok(false);
                }
                Err(error) => return self.give_up(file, claim, Some(ticket), error).await,
            }
        }
        let other = {
            let locked = &mut lock(&self.model).locked;
            locked.held.retain(|held| held.place != claim.place);
            let other = locked.held.iter().find(|held| held.excludes(&claim)).copied();
            locked.held.push(claim);
            other
        };
        if let Some(other) = other.filter(|_| self.nobody_lapses()) {
            self.unexpected(&format!("{claim:?} held beside {other:?}"), "one of them");
        }
        Ok(true)
    }

    /// Waits for a lock. False: not any more.
    async fn wait(&mut self, ticket: u64, until_us: u64) -> Result<bool> {
        let mut known = Vec::new();
        loop {
            let tickets = [ticket];
            let news = self.fs.await_locks(&tickets, &known);
            let news = self.op(|| format!("await lock {ticket}"), news).await?;
            if let Some(ended) = news.iter().find(|ended| ended.ticket == ticket) {
                return match ended.failure {
                    None => Ok(true),
                    Some(code) => Err(Error::because(code, "the wait for a lock ended so")),
                };
            }
            known = news.iter().map(|ended| ended.ticket).collect();
            if self.now_us() >= until_us {
                let cancel = self.fs.cancel_lock(ticket);
                return self.op(|| format!("cancel lock {ticket}"), cancel).await;
            }
        }
    }

    /// Sees to it that a lock of unknown outcome is not held.
    async fn give_up(
        &mut self,
        file: &File<Client>,
        claim: Claim,
        ticket: Option<u64>,
        error: Error,
    ) -> Result<bool> {
        if error.code == Code::Deadlock {
            return Err(error);
        }
        while let Some(ticket) = ticket {
            let cancel = self.fs.cancel_lock(ticket);
            match self.op(|| format!("cancel lock {ticket}"), cancel).await {
                Err(error) if self.may_yet_answer(&error) => self.fs.rpc().sleep(500).await,
                _ => break,
            }
        }
        self.release(file, claim).await?;
        Err(error)
    }

    async fn release(&self, file: &File<Client>, claim: Claim) -> Result<()> {
        let claim = Lock { ino: file.ino(), ..claim.lock() };
        loop {
            match self.op(|| "unlock".to_owned(), self.fs.unlock(claim)).await {
                Err(error) if self.may_yet_answer(&error) => self.fs.rpc().sleep(500).await,
                result => return result,
            }
        }
    }

    fn may_yet_answer(&self, error: &Error) -> bool {
        let dead = lock(&self.world).deaths[0].is_some();
        matches!(error.code, Code::ServerLost | Code::Busy) && !dead
    }

    /// Reads the counters that a lock guards, and adds to them if it excludes all others.
    async fn count(&mut self, file: &File<Client>, claim: Claim) -> Result<()> {
        for at in claim.first..claim.behind {
            let expected = lock(&self.model).locked.counters[at as usize];
            let mut bytes = [0; 8];
            let read = file.read_at(&mut bytes, at * COUNTER_BYTES);
            self.op(|| format!("read counter {at}"), read).await?;
            let found = u64::from_le_bytes(bytes);
            if let Some(expected) = expected.filter(|&it| it != found && self.nobody_lapses()) {
                self.unexpected(&format!("counter {at} is {found}"), &expected.to_string());
            }
            if !claim.exclusive {
                continue;
            }
            let pause_ms = self.rng.below(10);
            self.fs.rpc().sleep(pause_ms).await;
            lock(&self.model).locked.counters[at as usize] = None;
            let bytes = (found + 1).to_le_bytes();
            let write = file.write_at(&bytes, at * COUNTER_BYTES);
            self.op(|| format!("write counter {at}: {}", found + 1), write).await?;
            lock(&self.model).locked.counters[at as usize] = Some(found + 1);
        }
        Ok(())
    }

    /// Between rounds nobody holds a lock: the auditor gets all of them, at once or when the leases
    /// of those have lapsed that died.
    pub(crate) async fn audit_locks(&self) -> Result<()> {
        if !lock(&self.model).locked.made {
            return Ok(());
        }
        lock(&self.model).locked.held.clear();
        lock(&self.model).locked.inside = 0;
        let opened = async {
            let ino = self.fs.lookup(&self.who, at("locked"), false).await?.ino;
            self.fs.open(&self.who, ino, OpenMode::READ_WRITE).await
        };
        let (file, _) = match opened.await {
            Ok(opened) => opened,
            Err(error) => return self.excuse_dead(&error),
        };
        let place = lock(&self.model).places.len();
        let until_us = self.now_us() + if self.nobody_lapses() { 0 } else { WAIT_US_MAX };
        for kind in [LockKind::Range, LockKind::Whole] {
            let claim = Claim { place, kind, first: 0, behind: RANGES, exclusive: true };
            while let Err(error) = file.take_lock(claim.lock(), None).await {
                if error.code != Code::WouldBlock || self.now_us() >= until_us {
                    return Err(error);
                }
                self.fs.rpc().sleep(1000).await;
            }
            self.release(&file, claim).await?;
        }
        file.close().await
    }
}
