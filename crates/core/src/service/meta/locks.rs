//! Locks on files, and who waits for them. Volatile: they end with their client's lease.
//!
//! Who waits does not hold up other requests of his client: a wait is a note in the file's queue, and
//! a request to wait is answered at once. The lock is given to it here, in its turn, and the client
//! is told by the answer to its one [`AwaitLocks`](MetaRequest::AwaitLocks), which is parked until
//! there is something to tell. What it was told it confirms in the next one, so no news is lost with
//! a connection; what it gives up ([`CancelLock`](MetaRequest::CancelLock)) it either never gets or
//! is told that it has.
//!
//! *In line*: whoever may wait and holds nothing waits behind those who came before him and whom his
//! lock would hinder, so that readers cannot keep a writer waiting for ever. Whoever holds something
//! goes past them: they may be waiting for just that.

use super::MetaService;
use super::live::Live;
use crate::config::{
    LOCK_NEWS_MS, LOCK_WAITS_PER_CLIENT_MAX, LOCKS_MAX, LOCKS_PER_CLIENT_MAX, LOCKS_PER_FILE_MAX,
};
use crate::error::{Code, Error, Result};
use crate::types::{ClientId, Ino, Now};
use crate::wire::meta::{LOCK_END_MAX, Lock, LockEnded, LockKind, MetaReply};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Owners looked at in search of a deadlock; beyond that a wait is let begin.
const DEADLOCK_OWNERS_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    client: ClientId,
    number: u64,
}

/// Part of a file that one owner has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
    exclusive: bool,
    pid: u32,
}

impl Span {
    fn hinders(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end && (self.exclusive || other.exclusive)
    }
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    ticket: u64,
    ino: Ino,
    kind: LockKind,
    owner: Owner,
    span: Span,
}

/// What each owner has locked: spans in order that neither overlap nor, if they are alike, touch.
#[derive(Default)]
struct Holders(BTreeMap<Owner, Vec<Span>>);

/// What becomes of one owner's spans: these are replaced by those.
struct Change {
    replaced: Range<usize>,
    pieces: Vec<Span>,
}

impl Change {
    /// `with` is put over what is there, or nothing is left there.
    fn plan(spans: &[Span], start: u64, end: u64, with: Option<Span>) -> Change {
        // Neighbours that only touch may grow together with the new one.
        let first = spans.partition_point(|span| span.end < start);
        let last = spans.partition_point(|span| span.start <= end);
        let mut pieces: Vec<Span> = Vec::with_capacity(3);
        let mut add = |piece: Span| match pieces.last_mut() {
            _ if piece.start >= piece.end => {}
            Some(before) if before.end == piece.start && before.exclusive == piece.exclusive => {
                before.end = piece.end;
                before.pid = piece.pid;
            }
            _ => pieces.push(piece),
        };
        let touched = &spans[first..last.max(first)];
        touched.iter().for_each(|span| add(Span { end: span.end.min(start), ..*span }));
        with.into_iter().for_each(&mut add);
        touched.iter().for_each(|span| add(Span { start: span.start.max(end), ..*span }));
        Change { replaced: first..last.max(first), pieces }
    }

    fn growth(&self) -> usize {
        self.pieces.len().saturating_sub(self.replaced.len())
    }
}

impl Holders {
    fn of(&self, owner: Owner) -> &[Span] {
        self.0.get(&owner).map_or(&[], Vec::as_slice)
    }

    /// Who else has what hinders `span`; of each owner the first such.
    fn hinder<'a>(
        &'a self,
        owner: Owner,
        span: &'a Span,
    ) -> impl Iterator<Item = (Owner, Span)> + 'a {
        self.0.iter().filter(move |(other, _)| **other != owner).filter_map(|(&other, spans)| {
            let first = spans.partition_point(|held| held.end <= span.start);
            let behind = spans[first..].iter().take_while(|held| held.start < span.end);
            let found = behind.into_iter().find(|held| held.hinders(span))?;
            Some((other, *found))
        })
    }

    fn has_client(&self, client: ClientId) -> bool {
        let all = Owner { client, number: 0 }..=Owner { client, number: u64::MAX };
        self.0.range(all).next().is_some()
    }
}

#[derive(Default)]
struct File {
    ranges: Holders,
    wholes: Holders,
    /// First come, first served.
    waits: Vec<Wait>,
    /// Spans held.
    count: usize,
}

impl File {
    fn holders(&self, kind: LockKind) -> &Holders {
        match kind {
            LockKind::Range => &self.ranges,
            LockKind::Whole => &self.wholes,
        }
    }

    fn holders_mut(&mut self, kind: LockKind) -> &mut Holders {
        match kind {
            LockKind::Range => &mut self.ranges,
            LockKind::Whole => &mut self.wholes,
        }
    }

    fn is_held_against(&self, wait: &Wait) -> bool {
        self.holders(wait.kind).hinder(wait.owner, &wait.span).next().is_some()
    }

    fn has_client(&self, client: ClientId) -> bool {
        self.ranges.has_client(client)
            || self.wholes.has_client(client)
            || self.waits.iter().any(|wait| wait.owner.client == client)
    }
}

/// Whether some of the waits come before another one, of somebody who holds nothing.
fn before(waits: &[Wait], wait: &Wait) -> bool {
    waits.iter().any(|earlier| {
        earlier.kind == wait.kind && earlier.owner != wait.owner && earlier.span.hinders(&wait.span)
    })
}

/// A request that waits for news.
struct Watch {
    number: u64,
    until_ms: u64,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Client {
    /// Spans held.
    held: usize,
    /// Of these, by process.
    processes: BTreeMap<u32, usize>,
    /// Where it holds something or waits.
    files: BTreeSet<Ino>,
    waits: BTreeMap<u64, Wait>,
    /// Waits that ended and of which the client has not yet confirmed to know, and how.
    ended: BTreeMap<u64, Option<Code>>,
    watch: Option<Watch>,
}

impl Client {
    fn is_done(&self) -> bool {
        self.held == 0 && self.waits.is_empty() && self.ended.is_empty() && self.watch.is_none()
    }

    fn count_process(&mut self, pid: u32, held: bool) {
        let count = self.processes.entry(pid).or_default();
        *count = if held { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.processes.remove(&pid);
        }
    }

    fn news(&self) -> Vec<LockEnded> {
        let told = |(&ticket, &failure)| LockEnded { ticket, failure };
        self.ended.iter().map(told).collect()
    }
}

#[derive(Default)]
struct Table {
    files: HashMap<Ino, File>,
    clients: BTreeMap<ClientId, Client>,
    /// Spans held.
    held: usize,
    watch_last: u64,
    /// To be woken when the table is unlocked.
    wakers: Vec<Waker>,
}

/// Locks and waits, behind a mutex that is held for a few instructions and never across an await.
#[derive(Default)]
pub(super) struct Locks {
    table: Mutex<Table>,
}

fn too_many(what: &str, limit: usize) -> Error {
    Error::because(Code::NoLocks, format!("{limit} {what} already"))
}

impl Locks {
    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        // A panic elsewhere while it was locked cannot have left it half changed in a harmful way.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut table);
        let wakers = std::mem::take(&mut table.wakers);
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Takes a lock. False: its wait has begun.
    fn take(&self, live: &Live, now: Now, wait: &Wait, may_wait: bool) -> Result<bool> {
        self.with(|table| {
            let client = wait.owner.client;
            let known = table.clients.entry(client).or_default();
            if may_wait
                && (known.waits.contains_key(&wait.ticket)
                    || known.ended.contains_key(&wait.ticket))
            {
                return Err(Error::because(Code::Invalid, "a wait of this number has begun"));
            }
            // Under this table's lock: either the client's lapse takes this lock too, or it comes
            // after the lapse and keeps the client anew.
            live.keep(client, now.mono_ms);
            let result = table.take(wait, may_wait);
            table.tidy(wait.ino, client);
            result
        })
    }

    /// Ends what is over: watches whose time has come, and all that clients have whose lease
    /// lapsed. `lapse` says whose did, given who still has something here.
    pub(super) fn expire(
        &self,
        now_ms: u64,
        lapse: impl FnOnce(&dyn Fn(ClientId) -> bool) -> Vec<ClientId>,
    ) {
        self.with(|table| {
            for client in lapse(&|client| table.clients.contains_key(&client)) {
                table.gone(client);
            }
            let Table { clients, wakers, .. } = table;
            for client in clients.values_mut() {
                if let Some(watch) = client.watch.take_if(|watch| watch.until_ms <= now_ms) {
                    wakers.extend(watch.waker);
                }
            }
        });
    }

    /// Ends all that a client has.
    pub(super) fn gone(&self, client: ClientId) {
        self.with(|table| table.gone(client));
    }

    /// Answers the request in which a client waits for news: its connection has ended.
    pub(super) fn disturb(&self, client: ClientId) {
        self.with(|table| {
            let Some(client) = table.clients.get_mut(&client) else { return };
            table.wakers.extend(client.watch.take().and_then(|watch| watch.waker));
        });
    }

    /// Begins to wait for news, unless there is some.
    fn watch(
        &self,
        now: Now,
        client: ClientId,
        tickets: &[u64],
        known: &[u64],
    ) -> std::result::Result<Watching<'_>, Vec<LockEnded>> {
        self.with(|table| {
            let lapsed = |&ticket: &u64| LockEnded { ticket, failure: Some(Code::SessionLapsed) };
            let Some(found) = table.clients.get_mut(&client) else {
                return Err(tickets.iter().map(lapsed).collect());
            };
            for ticket in known {
                found.ended.remove(ticket);
            }
            let mut news = found.news();
            let waits = |ticket: &&u64| {
                !found.waits.contains_key(ticket) && !found.ended.contains_key(ticket)
            };
            // What it was told just now it may name still, and knows better.
            let told = |ticket: &&u64| !known.contains(ticket);
            news.extend(tickets.iter().filter(waits).filter(told).map(lapsed));
            if !news.is_empty() || found.waits.is_empty() {
                table.forget_if_done(client);
                return Err(news);
            }
            table.watch_last += 1;
            let number = table.watch_last;
            let watch = Watch { number, until_ms: now.mono_ms + LOCK_NEWS_MS, waker: None };
            if let Some(older) = found.watch.replace(watch) {
                table.wakers.extend(older.waker);
            }
            Ok(Watching { locks: self, client, number })
        })
    }

    /// Ends a wait, or tells how it had ended.
    fn cancel(&self, client: ClientId, ticket: u64) -> Option<Code> {
        self.with(|table| {
            let Some(found) = table.clients.get_mut(&client) else { return Some(Code::Cancelled) };
            if let Some(ended) = found.ended.remove(&ticket) {
                table.forget_if_done(client);
                return ended;
            }
            let Some(wait) = found.waits.remove(&ticket) else { return Some(Code::Cancelled) };
            if let Some(file) = table.files.get_mut(&wait.ino) {
                file.waits.retain(|other| (other.owner.client, other.ticket) != (client, ticket));
            }
            // Others may have waited behind it.
            table.promote(wait.ino);
            table.tidy(wait.ino, client);
            Some(Code::Cancelled)
        })
    }

    /// How many locks are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.with(|table| table.held)
    }

    /// Whether there is nothing at all.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.with(|table| table.files.is_empty() && table.clients.is_empty() && table.held == 0)
    }
}

impl Table {
    fn take(&mut self, wait: &Wait, may_wait: bool) -> Result<bool> {
        if wait.kind == LockKind::Whole
            && let Some(file) = self.files.get(&wait.ino)
            && let Some(held) = file.wholes.of(wait.owner).first()
        {
            if held.exclusive == wait.span.exclusive {
                return Ok(true);
            }
            // As flock(2) has it: the old one goes, then the new one is asked for.
            self.apply(wait, None)?;
            self.promote(wait.ino);
        }
        let hindered = self.files.get(&wait.ino).is_some_and(|file| file.is_held_against(wait));
        let waits = hindered || (may_wait && self.is_in_line(wait));
        if !waits {
            self.give(wait)?;
            return Ok(true);
        }
        if !may_wait {
            return Err(Error::because(Code::WouldBlock, "somebody else has locked it"));
        }
        if wait.kind == LockKind::Range && self.would_deadlock(wait) {
            return Err(Error::because(Code::Deadlock, "its holder waits for this one's locks"));
        }
        let client = self.clients.entry(wait.owner.client).or_default();
        if client.waits.len() + client.ended.len() >= LOCK_WAITS_PER_CLIENT_MAX {
            return Err(too_many("waits for locks of this client", LOCK_WAITS_PER_CLIENT_MAX));
        }
        client.waits.insert(wait.ticket, *wait);
        client.files.insert(wait.ino);
        self.files.entry(wait.ino).or_default().waits.push(*wait);
        Ok(false)
    }

    /// Whether it must wait though nobody holds what hinders it.
    fn is_in_line(&self, wait: &Wait) -> bool {
        self.holds_nothing(wait)
            && self.files.get(&wait.ino).is_some_and(|file| before(&file.waits, wait))
    }

    fn holds_nothing(&self, wait: &Wait) -> bool {
        let client = self.clients.get(&wait.owner.client);
        client.is_none_or(|client| !client.processes.contains_key(&wait.span.pid))
    }

    /// Gives a lock that can be given; others may get theirs with it (it may be less than before).
    fn give(&mut self, wait: &Wait) -> Result<()> {
        let mut inos = self.give_one(wait)?;
        inos.push(wait.ino);
        self.promote_in(inos);
        Ok(())
    }

    /// Gives a lock. Where this process waited in line and need not any more, now that it holds
    /// something, somebody's turn may have come.
    fn give_one(&mut self, wait: &Wait) -> Result<Vec<Ino>> {
        let first = self.holds_nothing(wait);
        self.apply(wait, Some(wait.span))?;
        let Some(client) = self.clients.get(&wait.owner.client).filter(|_| first) else {
            return Ok(Vec::new());
        };
        let its = client.waits.values().filter(|other| other.span.pid == wait.span.pid);
        Ok(its.map(|wait| wait.ino).collect())
    }

    /// Puts `with` over what the owner has in the wait's range, or leaves nothing there.
    fn apply(&mut self, wait: &Wait, with: Option<Span>) -> Result<()> {
        let file = self.files.entry(wait.ino).or_default();
        let client = self.clients.entry(wait.owner.client).or_default();
        let held = file.holders(wait.kind).of(wait.owner);
        let change = Change::plan(held, wait.span.start, wait.span.end, with);
        let growth = change.growth();
        for (count, limit, what) in [
            (file.count, LOCKS_PER_FILE_MAX, "locks on this file"),
            (client.held, LOCKS_PER_CLIENT_MAX, "locks of this client"),
            (self.held, LOCKS_MAX, "locks"),
        ] {
            if growth > 0 && count + growth > limit {
                return Err(too_many(what, limit));
            }
        }
        let Change { replaced, pieces } = change;
        let gone = replaced.len();
        let come = pieces.len();
        file.count = file.count + come - gone;
        client.held = client.held + come - gone;
        self.held = self.held + come - gone;
        // Those that come first: a count that reached zero would be forgotten.
        pieces.iter().for_each(|span| client.count_process(span.pid, true));
        let holders = &mut file.holders_mut(wait.kind).0;
        let spans = holders.entry(wait.owner).or_default();
        spans.splice(replaced, pieces).for_each(|span| client.count_process(span.pid, false));
        if spans.is_empty() {
            holders.remove(&wait.owner);
        } else {
            client.files.insert(wait.ino);
        }
        Ok(())
    }

    fn promote(&mut self, ino: Ino) {
        self.promote_in(vec![ino]);
    }

    /// Gives their locks to those whose turn has come.
    fn promote_in(&mut self, mut inos: Vec<Ino>) {
        while let Some(&ino) = inos.last() {
            let Some(wait) = self.next_in(ino) else {
                inos.pop();
                continue;
            };
            let client = wait.owner.client;
            if let Some(found) = self.clients.get_mut(&client) {
                found.waits.remove(&wait.ticket);
            }
            let given = self.give_one(&wait);
            if let Some(found) = self.clients.get_mut(&client) {
                let failure = given.as_ref().err().map(|error| error.code);
                found.ended.insert(wait.ticket, failure);
                let waker = found.watch.as_mut().and_then(|watch| watch.waker.take());
                self.wakers.extend(waker);
            }
            // Each of these has cost a wait: this ends.
            inos.extend(given.unwrap_or_default());
        }
    }

    /// Takes the wait out of a file's queue whose turn it is.
    fn next_in(&mut self, ino: Ino) -> Option<Wait> {
        let file = self.files.get(&ino)?;
        let index = (0..file.waits.len()).find(|&index| {
            let wait = &file.waits[index];
            let in_line = self.holds_nothing(wait) && before(&file.waits[..index], wait);
            !(in_line || file.is_held_against(wait))
        })?;
        Some(self.files.get_mut(&ino)?.waits.remove(index))
    }

    /// Whether somebody who stands in the way waits, directly or through others, for this owner.
    fn would_deadlock(&self, wait: &Wait) -> bool {
        let mut seen = BTreeSet::new();
        let mut waits = vec![*wait];
        while let Some(next) = waits.pop() {
            let Some(file) = self.files.get(&next.ino) else { continue };
            for (owner, _) in file.ranges.hinder(next.owner, &next.span) {
                if owner == wait.owner {
                    return true;
                }
                if seen.len() >= DEADLOCK_OWNERS_MAX {
                    return false;
                }
                if seen.insert(owner)
                    && let Some(client) = self.clients.get(&owner.client)
                {
                    let its = |wait: &&Wait| wait.owner == owner && wait.kind == LockKind::Range;
                    waits.extend(client.waits.values().filter(its));
                }
            }
        }
        false
    }

    /// Forgets what is empty after a change to a client's locks on a file.
    fn tidy(&mut self, ino: Ino, client: ClientId) {
        if let Some(file) = self.files.get(&ino) {
            if !file.has_client(client)
                && let Some(client) = self.clients.get_mut(&client)
            {
                client.files.remove(&ino);
            }
            if file.count == 0 && file.waits.is_empty() {
                self.files.remove(&ino);
            }
        }
        self.forget_if_done(client);
    }

    fn forget_if_done(&mut self, client: ClientId) {
        if self.clients.get(&client).is_some_and(Client::is_done) {
            self.clients.remove(&client);
        }
    }

    fn gone(&mut self, client: ClientId) {
        let Some(gone) = self.clients.remove(&client) else { return };
        self.held -= gone.held;
        self.wakers.extend(gone.watch.and_then(|watch| watch.waker));
        for &ino in &gone.files {
            let Some(file) = self.files.get_mut(&ino) else { continue };
            file.waits.retain(|wait| wait.owner.client != client);
            let mut freed = 0;
            for holders in [&mut file.ranges, &mut file.wholes] {
                holders.0.retain(|owner, spans| {
                    let its = owner.client == client;
                    freed += if its { spans.len() } else { 0 };
                    !its
                });
            }
            file.count -= freed;
        }
        for ino in gone.files {
            self.promote(ino);
            self.tidy(ino, client);
        }
    }
}

/// Ends when there is news for a client, or no more time.
struct Watching<'a> {
    locks: &'a Locks,
    client: ClientId,
    number: u64,
}

impl Future for Watching<'_> {
    type Output = Vec<LockEnded>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<LockEnded>> {
        self.locks.with(|table| {
            let Some(client) = table.clients.get_mut(&self.client) else {
                return Poll::Ready(Vec::new());
            };
            match &mut client.watch {
                Some(watch) if watch.number == self.number && client.ended.is_empty() => {
                    watch.waker = Some(context.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(client.news()),
            }
        })
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.locks.with(|table| {
            let Some(client) = table.clients.get_mut(&self.client) else { return };
            client.watch.take_if(|watch| watch.number == self.number);
            table.forget_if_done(self.client);
        });
    }
}

/// A wish from the wire, checked.
fn wish(client: ClientId, lock: &Lock, ticket: u64) -> Result<Wait> {
    let Lock { ino, kind, owner, pid, start, end, exclusive } = *lock;
    if start >= end || end > LOCK_END_MAX {
        let cause = format!("a lock from {start} to {end}");
        return Err(Error::because(Code::Invalid, cause));
    }
    let (start, end) = match kind {
        LockKind::Range => (start, end),
        LockKind::Whole => (0, LOCK_END_MAX),
    };
    let owner = Owner { client, number: owner };
    Ok(Wait { ticket, ino, kind, owner, span: Span { start, end, exclusive, pid } })
}

impl MetaService {
    /// Only who has a file open can lock it.
    fn demand_open(&self, client: ClientId, handle: u64, ino: Ino) -> Result<()> {
        match self.live.handle(handle, client)?.ino == ino {
            true => Ok(()),
            false => Err(Error::because(
                Code::BadHandle,
                format!("handle {handle:#x} is not one of inode {}", ino.0),
            )),
        }
    }

    pub(super) fn lock(
        &self,
        now: Now,
        client: ClientId,
        handle: u64,
        lock: &Lock,
        ticket: Option<u64>,
    ) -> Result<MetaReply> {
        self.demand_open(client, handle, lock.ino)?;
        let wait = wish(client, lock, ticket.unwrap_or_default())?;
        match self.locks.take(&self.live, now, &wait, ticket.is_some())? {
            true => Ok(MetaReply::Done),
            false => Ok(MetaReply::Waiting),
        }
    }

    /// Not through a handle: what was locked goes also when there is none any more.
    pub(super) fn unlock(&self, client: ClientId, lock: &Lock) -> Result<MetaReply> {
        let wait = wish(client, lock, 0)?;
        self.locks.with(|table| {
            if table
                .files
                .get(&wait.ino)
                .is_none_or(|file| file.holders(wait.kind).of(wait.owner).is_empty())
            {
                return Ok(MetaReply::Done);
            }
            let result = table.apply(&wait, None);
            table.promote(wait.ino);
            table.tidy(wait.ino, client);
            result.map(|()| MetaReply::Done)
        })
    }

    pub(super) fn find_lock(
        &self,
        client: ClientId,
        handle: u64,
        lock: &Lock,
    ) -> Result<MetaReply> {
        self.demand_open(client, handle, lock.ino)?;
        let wait = wish(client, lock, 0)?;
        let found = self.locks.with(|table| {
            let holders = table.files.get(&wait.ino)?.holders(wait.kind);
            holders.hinder(wait.owner, &wait.span).min_by_key(|(_, span)| span.start)
        });
        Ok(MetaReply::Blocked(found.map(|(owner, span)| {
            // Numbers of another host's processes would mislead.
            let own = owner.client == client;
            let pid = if own { span.pid } else { 0 };
            let owner = if own { owner.number } else { 0 };
            let Span { start, end, exclusive, .. } = span;
            Lock { owner, pid, start, end, exclusive, ..*lock }
        })))
    }

    pub(super) async fn await_locks(
        &self,
        now: Now,
        client: ClientId,
        tickets: &[u64],
        known: &[u64],
    ) -> Result<MetaReply> {
        if tickets.len().max(known.len()) > LOCK_WAITS_PER_CLIENT_MAX {
            return Err(too_many("waits for locks named", LOCK_WAITS_PER_CLIENT_MAX));
        }
        let news = match self.locks.watch(now, client, tickets, known) {
            Ok(watching) => watching.await,
            Err(news) => news,
        };
        Ok(MetaReply::LocksEnded(news))
    }

    pub(super) fn cancel_lock(&self, client: ClientId, ticket: u64) -> MetaReply {
        let failure = self.locks.cancel(client, ticket);
        MetaReply::LocksEnded(vec![LockEnded { ticket, failure }])
    }
}
