//! Locks: single cases, and random histories compared with a table of bytes.

use super::model::Dice;
use super::tests::{KEY, map, run, user};
use super::*;
use crate::config::LOCK_WAITS_PER_CLIENT_MAX;
use crate::wire::meta::{LOCK_END_MAX, Lock, LockEnded, LockKind, OpenMode, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, Wake, Waker};

use LockKind::{Range, Whole};

/// A service with two files, which every client has open.
struct Bed {
    service: MetaService,
    now: Now,
    inos: Vec<Ino>,
    handles: BTreeMap<(u64, Ino), u64>,
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type News<'a> = Pin<Box<dyn Future<Output = Result<MetaReply>> + 'a>>;

fn lock(owner: u64, start: u64, end: u64, exclusive: bool) -> Lock {
    Lock { ino: Ino(0), kind: Range, owner, pid: owner as u32, start, end, exclusive }
}

fn whole(owner: u64, exclusive: bool) -> Lock {
    Lock { kind: Whole, ..lock(owner, 0, LOCK_END_MAX, exclusive) }
}

impl Bed {
    fn new(clients: u64) -> Bed {
        let now = Now { mono_ms: 100_000, wall: WallTime(1_000_000) };
        let key = CapabilityKey::from_bytes(KEY);
        let store = Box::new(MemoryStore::new(1 << 26));
        let service =
            run(MetaService::open(store, key, &map(1, 1), Timing::default(), now)).unwrap();
        let mut bed = Bed { service, now, inos: Vec::new(), handles: BTreeMap::new() };
        for name in ["f", "g"] {
            let create = MetaRequest::Create {
                place: Place::new(Ino::ROOT, name),
                mode: 0o644,
                exclusive: true,
                open: OpenMode::READ,
                layout: LayoutWish::default(),
            };
            let Ok(MetaReply::Opened(opened)) = bed.ask(0, create) else { panic!("creates") };
            bed.inos.push(opened.record.attributes.ino);
        }
        (1..=clients).for_each(|client| bed.open(client));
        bed
    }

    fn open(&mut self, client: u64) {
        for ino in self.inos.clone() {
            let open = MetaRequest::Open { ino, open: OpenMode::READ };
            let Ok(MetaReply::Opened(opened)) = self.ask(client, open) else { panic!("opens") };
            self.handles.insert((client, ino), opened.handle);
        }
    }

    fn ask(&self, client: u64, request: MetaRequest) -> Result<MetaReply> {
        run(self.service.handle(self.now, ClientId(client), &user(1000), request))
    }

    fn take(&self, client: u64, file: usize, lock: Lock, ticket: Option<u64>) -> Result<bool> {
        let ino = self.inos[file];
        let handle = self.handles[&(client, ino)];
        match self.ask(client, MetaRequest::Lock { handle, lock: Lock { ino, ..lock }, ticket })? {
            MetaReply::Done => Ok(true),
            MetaReply::Waiting => Ok(false),
            other => panic!("{other:?}"),
        }
    }

    fn try_take(&self, client: u64, lock: Lock) -> std::result::Result<bool, Code> {
        self.take(client, 0, lock, None).map_err(|error| error.code)
    }

    fn release(&self, client: u64, file: usize, lock: Lock) {
        let lock = Lock { ino: self.inos[file], ..lock };
        assert_eq!(self.ask(client, MetaRequest::Unlock { lock }), Ok(MetaReply::Done));
    }

    fn find(&self, client: u64, file: usize, lock: Lock) -> Option<Lock> {
        let ino = self.inos[file];
        let handle = self.handles[&(client, ino)];
        match self.ask(client, MetaRequest::FindLock { handle, lock: Lock { ino, ..lock } }) {
            Ok(MetaReply::Blocked(found)) => found,
            other => panic!("{other:?}"),
        }
    }

    fn watch(&self, client: u64, tickets: &[u64], known: &[u64]) -> News<'_> {
        let (now, tickets, known) = (self.now, tickets.to_vec(), known.to_vec());
        Box::pin(async move {
            let request = MetaRequest::AwaitLocks { tickets, known };
            self.service.handle(now, ClientId(client), &user(1000), request).await
        })
    }

    fn news(&self, client: u64, tickets: &[u64], known: &[u64]) -> Vec<LockEnded> {
        heard(&mut self.watch(client, tickets, known), Waker::noop()).expect("there is news")
    }

    fn cancel(&self, client: u64, ticket: u64) -> Option<Code> {
        match self.ask(client, MetaRequest::CancelLock { ticket }) {
            Ok(MetaReply::LocksEnded(ended)) => {
                assert_eq!((ended.len(), ended[0].ticket), (1, ticket));
                ended[0].failure
            }
            other => panic!("{other:?}"),
        }
    }

    fn expire(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        run(self.service.expire_now(self.now)).unwrap();
    }
}

fn heard(news: &mut News<'_>, waker: &Waker) -> Option<Vec<LockEnded>> {
    match news.as_mut().poll(&mut Context::from_waker(waker)) {
        Poll::Pending => None,
        Poll::Ready(Ok(MetaReply::LocksEnded(ended))) => Some(ended),
        Poll::Ready(other) => panic!("{other:?}"),
    }
}

fn got(ticket: u64) -> LockEnded {
    LockEnded { ticket, failure: None }
}

#[test]
fn a_lock_hinders_others_and_is_replaced_in_parts_by_its_owner() {
    let bed = Bed::new(2);
    assert_eq!(bed.try_take(1, lock(1, 0, 100, true)), Ok(true));
    assert_eq!(bed.try_take(2, lock(1, 99, 100, false)), Err(Code::WouldBlock));
    assert_eq!(bed.try_take(1, lock(2, 0, 1, false)), Err(Code::WouldBlock));
    assert_eq!(bed.try_take(2, lock(1, 100, 101, true)), Ok(true));
    // The middle becomes shared, a part of it free.
    assert_eq!(bed.try_take(1, lock(1, 40, 60, false)), Ok(true));
    bed.release(1, 0, lock(1, 50, 55, false));
    assert_eq!(bed.service.locks.held(), 5);
    let mine = lock(1, 45, 200, true);
    let found = bed.find(2, 0, mine).unwrap();
    assert_eq!((found.start, found.end, found.exclusive, found.pid), (40, 50, false, 0));
    let found = bed.find(1, 0, Lock { owner: 7, ..mine }).unwrap();
    assert_eq!((found.owner, found.pid), (1, 1), "the same client's are told in full");
    assert_eq!(bed.find(2, 0, lock(1, 50, 55, true)), None);
    // What grows together counts once.
    assert_eq!(bed.try_take(1, lock(1, 10, 90, true)), Ok(true));
    assert_eq!(bed.service.locks.held(), 2);
    bed.release(1, 0, lock(1, 0, LOCK_END_MAX, true));
    bed.release(2, 0, lock(1, 0, LOCK_END_MAX, true));
    assert!(bed.service.locks.is_idle());
}

#[test]
fn the_two_kinds_of_locks_do_not_see_each_other() {
    let bed = Bed::new(2);
    assert_eq!(bed.try_take(1, lock(1, 0, LOCK_END_MAX, true)), Ok(true));
    assert_eq!(bed.try_take(2, whole(1, true)), Ok(true));
    assert_eq!(bed.try_take(1, whole(9, false)), Err(Code::WouldBlock));
    bed.release(2, 0, whole(1, true));
    assert_eq!(bed.try_take(1, whole(9, false)), Ok(true));
    assert_eq!(bed.try_take(2, lock(1, 0, 1, false)), Err(Code::WouldBlock));
}

#[test]
fn changing_a_whole_lock_lets_the_old_one_go_first() {
    let bed = Bed::new(2);
    assert_eq!(bed.try_take(1, whole(1, false)), Ok(true));
    assert_eq!(bed.try_take(2, whole(1, false)), Ok(true));
    // Two that both want more: the first waits without its old lock, so the second gets its way.
    assert_eq!(bed.take(1, 0, whole(1, true), Some(1)), Ok(false));
    assert_eq!(bed.try_take(2, whole(1, true)), Err(Code::WouldBlock));
    // It lost its own lock by trying, as flock(2) says, and the first got what it waited for.
    assert_eq!(bed.news(1, &[1], &[]), [got(1)]);
    assert!(bed.find(2, 0, whole(5, false)).unwrap().exclusive);
}

#[test]
fn nonsense_is_refused() {
    let bed = Bed::new(2);
    assert_eq!(bed.try_take(1, lock(1, 5, 5, true)), Err(Code::Invalid));
    assert_eq!(bed.try_take(1, lock(1, 0, LOCK_END_MAX + 1, true)), Err(Code::Invalid));
    let (ino, other) = (bed.inos[0], bed.inos[1]);
    let handle = bed.handles[&(1, ino)];
    let of = |ino| Lock { ino, ..lock(1, 0, 1, true) };
    let refused = |client, ino| {
        let take = MetaRequest::Lock { handle, lock: of(ino), ticket: None };
        let find = MetaRequest::FindLock { handle, lock: of(ino) };
        let codes = [take, find].map(|request| bed.ask(client, request).unwrap_err().code);
        assert_eq!(codes, [Code::BadHandle; 2]);
    };
    refused(1, other);
    refused(2, ino);
    assert_eq!(bed.cancel(1, 77), Some(Code::Cancelled));
    bed.release(1, 0, lock(1, 0, 1, true));
    assert!(bed.service.locks.is_idle());
}

#[test]
fn who_waits_gets_the_lock_in_his_turn_and_is_woken() {
    let bed = Bed::new(3);
    assert_eq!(bed.try_take(1, lock(1, 0, 10, true)), Ok(true));
    assert_eq!(bed.take(2, 0, lock(1, 0, 10, true), Some(5)), Ok(false));
    assert_eq!(bed.take(3, 0, lock(1, 0, 10, true), Some(5)), Ok(false));
    assert_eq!(bed.take(3, 0, lock(1, 0, 10, true), Some(5)).unwrap_err().code, Code::Invalid);
    let bells = [Arc::new(Bell::default()), Arc::new(Bell::default())];
    let wakers = bells.clone().map(Waker::from);
    let rung = |index: usize| bells[index].0.load(Ordering::Relaxed);
    let (mut second, mut third) = (bed.watch(2, &[5], &[]), bed.watch(3, &[5], &[]));
    assert_eq!(heard(&mut second, &wakers[0]), None);
    assert_eq!(heard(&mut third, &wakers[1]), None);
    bed.release(1, 0, lock(1, 0, 10, true));
    assert_eq!((rung(0), rung(1)), (1, 0));
    assert_eq!(heard(&mut second, &wakers[0]), Some(vec![got(5)]));
    // Should this answer be lost, the next one tells it again, until it is confirmed.
    assert_eq!(bed.news(2, &[5], &[]), [got(5)]);
    assert_eq!(bed.news(2, &[5], &[5]), []);
    bed.release(2, 0, lock(1, 0, 10, true));
    assert_eq!(rung(1), 1);
    assert_eq!(heard(&mut third, &wakers[1]), Some(vec![got(5)]));
}

#[test]
fn a_request_for_news_ends_with_its_time_its_connection_or_a_newer_one() {
    let mut bed = Bed::new(2);
    assert_eq!(bed.try_take(1, whole(1, true)), Ok(true));
    assert_eq!(bed.take(2, 0, whole(1, true), Some(1)), Ok(false));
    // Not one that the service has forgotten.
    let lapsed = LockEnded { ticket: 9, failure: Some(Code::SessionLapsed) };
    assert_eq!(bed.news(2, &[1, 9], &[]), [lapsed]);
    let mut older = bed.watch(2, &[1], &[]);
    assert_eq!(heard(&mut older, Waker::noop()), None);
    let mut newer = bed.watch(2, &[1], &[]);
    assert_eq!(heard(&mut newer, Waker::noop()), None);
    assert_eq!(heard(&mut older, Waker::noop()), Some(vec![]));
    assert_eq!(heard(&mut newer, Waker::noop()), None);
    bed.service.client_disconnected(ClientId(2));
    assert_eq!(heard(&mut newer, Waker::noop()), Some(vec![]));
    drop((older, newer));
    let service = &bed.service;
    let request = MetaRequest::AwaitLocks { tickets: vec![1], known: vec![] };
    let who = user(1000);
    let mut timed: News<'_> = Box::pin(service.handle(bed.now, ClientId(2), &who, request));
    assert_eq!(heard(&mut timed, Waker::noop()), None);
    let mut later = bed.now;
    later.mono_ms += crate::config::LOCK_NEWS_MS;
    run(service.expire_now(later)).unwrap();
    assert_eq!(heard(&mut timed, Waker::noop()), Some(vec![]));
    drop(timed);
    bed.expire(0);
    assert_eq!(bed.cancel(2, 1), Some(Code::Cancelled));
}

#[test]
fn who_gives_up_holds_nothing_or_is_told_that_he_does() {
    let bed = Bed::new(3);
    assert_eq!(bed.try_take(1, whole(1, false)), Ok(true));
    assert_eq!(bed.take(2, 0, whole(1, true), Some(1)), Ok(false));
    assert_eq!(bed.take(3, 0, whole(1, false), Some(1)), Ok(false), "in line behind a writer");
    assert_eq!(bed.cancel(2, 1), Some(Code::Cancelled));
    assert_eq!(bed.news(3, &[1], &[]), [got(1)], "who waited behind him does no more");
    assert_eq!(bed.take(2, 0, whole(1, true), Some(2)), Ok(false));
    bed.release(1, 0, whole(1, false));
    bed.release(3, 0, whole(1, false));
    assert_eq!(bed.cancel(2, 2), None, "too late");
    assert_eq!(bed.cancel(2, 2), Some(Code::Cancelled), "it is told once");
    assert_eq!(bed.try_take(1, whole(1, false)), Err(Code::WouldBlock));
}

#[test]
fn readers_do_not_starve_a_writer_but_holders_pass_him() {
    let bed = Bed::new(3);
    assert_eq!(bed.try_take(1, lock(1, 0, 10, false)), Ok(true));
    assert_eq!(bed.take(2, 0, lock(1, 5, 20, true), Some(1)), Ok(false));
    assert_eq!(bed.take(3, 0, lock(1, 15, 20, false), Some(1)), Ok(false));
    // Who does not wait takes what is free, and who holds something does not wait in line.
    assert_eq!(bed.try_take(3, lock(2, 15, 20, false)), Ok(true));
    assert_eq!(bed.take(1, 0, lock(1, 15, 20, false), Some(2)), Ok(true));
    bed.release(1, 0, lock(1, 0, 30, false));
    bed.release(3, 0, lock(2, 0, 30, false));
    assert_eq!(bed.news(2, &[1], &[]), [got(1)]);
    bed.release(2, 0, lock(1, 0, 30, false));
    assert_eq!(bed.news(3, &[1], &[]), [got(1)]);
}

#[test]
fn a_wait_that_would_never_end_is_refused() {
    let bed = Bed::new(3);
    for client in 1..=3 {
        assert_eq!(bed.try_take(client, lock(1, client, client + 1, true)), Ok(true));
    }
    assert_eq!(bed.take(1, 0, lock(1, 2, 3, true), Some(1)), Ok(false));
    assert_eq!(bed.take(2, 0, lock(1, 3, 4, true), Some(1)), Ok(false));
    assert_eq!(bed.take(3, 0, lock(1, 1, 2, true), Some(1)).unwrap_err().code, Code::Deadlock);
    bed.release(3, 0, lock(1, 3, 4, true));
    assert_eq!(bed.news(2, &[1], &[]), [got(1)]);
    // Over two files.
    assert_eq!(bed.take(3, 1, lock(1, 0, 9, true), Some(1)), Ok(true));
    assert_eq!(bed.take(2, 1, lock(1, 0, 1, true), Some(2)), Ok(false));
    assert_eq!(bed.take(3, 0, lock(1, 2, 3, true), Some(3)).unwrap_err().code, Code::Deadlock);
}

#[test]
fn locks_end_with_their_clients_lease() {
    let mut bed = Bed::new(2);
    assert_eq!(bed.take(1, 0, lock(1, 0, 10, true), None), Ok(true));
    assert_eq!(bed.take(1, 1, whole(1, true), None), Ok(true));
    assert_eq!(bed.take(2, 0, lock(1, 0, 10, true), Some(1)), Ok(false));
    assert_eq!(bed.take(2, 1, whole(1, false), Some(2)), Ok(false));
    // Also without a handle it is known, and its locks with it.
    for ino in bed.inos.clone() {
        let close =
            MetaRequest::Close { handle: bed.handles[&(1, ino)], settlement: None, unsure: false };
        bed.ask(1, close).unwrap();
    }
    let lease_ms = Timing::default().lease_ms;
    bed.expire(lease_ms / 2);
    bed.ask(2, MetaRequest::KeepAlive).unwrap();
    bed.expire(lease_ms / 2);
    assert_eq!(bed.service.locks.held(), 2);
    bed.expire(1);
    assert_eq!(bed.news(2, &[1, 2], &[]), [got(1), got(2)]);
    assert_eq!(bed.service.locks.held(), 2);
    bed.service.client_gone(ClientId(2));
    assert!(bed.service.locks.is_idle());
}

#[test]
fn locks_and_waits_have_limits() {
    let bed = Bed::new(2);
    let count = crate::config::LOCKS_PER_FILE_MAX as u64;
    for at in 0..count {
        assert_eq!(bed.try_take(1, lock(1, 2 * at, 2 * at + 1, true)), Ok(true));
    }
    assert_eq!(bed.try_take(2, lock(1, 2 * count, 2 * count + 1, true)), Err(Code::NoLocks));
    // Less needs no room.
    assert_eq!(bed.try_take(1, lock(1, 0, 2 * count, true)), Ok(true));
    assert_eq!(bed.service.locks.held(), 1);
    for ticket in 0..LOCK_WAITS_PER_CLIENT_MAX as u64 {
        assert_eq!(bed.take(2, 0, lock(1, ticket, ticket + 1, true), Some(ticket)), Ok(false));
    }
    let error = bed.take(2, 0, lock(1, 0, 1, true), Some(u64::MAX)).unwrap_err();
    assert_eq!(error.code, Code::NoLocks);
    bed.service.client_gone(ClientId(2));
    bed.service.client_gone(ClientId(1));
    assert!(bed.service.locks.is_idle());
}

// ---- random histories ----

const CLIENTS: u64 = 3;
const OWNERS: u64 = 3;
/// Bytes told apart; the last one stands for all that follow.
const BYTES: usize = 10;

/// Client and owner.
type Who = (u64, u64);
/// File, kind, byte, holder.
type Key = (usize, LockKind, usize, Who);

#[derive(Clone, Copy, Debug)]
struct Waiting {
    who: Who,
    ticket: u64,
    file: usize,
    lock: Lock,
}

/// What should be so: for each file, kind and byte, who has locked it and how.
#[derive(Default)]
struct Bytes {
    held: BTreeMap<Key, bool>,
    waits: Vec<Waiting>,
    ended: BTreeSet<(u64, u64)>,
}

fn bytes_of(lock: &Lock) -> std::ops::Range<usize> {
    let end = if lock.end == LOCK_END_MAX { BYTES } else { lock.end as usize };
    lock.start as usize..end
}

fn pid_of(owner: u64) -> u32 {
    // Some owners are of one process.
    owner as u32 / 2
}

impl Bytes {
    fn hinder(&self, who: Who, file: usize, lock: &Lock) -> BTreeSet<Who> {
        let bytes = bytes_of(lock);
        let hinders = |&(&(held_in, kind, byte, holder), &exclusive): &(&Key, &bool)| {
            (held_in, kind) == (file, lock.kind)
                && holder != who
                && bytes.contains(&byte)
                && (exclusive || lock.exclusive)
        };
        self.held.iter().filter(hinders).map(|(&(.., holder), _)| holder).collect()
    }

    fn holds_nothing(&self, (client, owner): Who) -> bool {
        let its = |holder: &Who| holder.0 == client && pid_of(holder.1) == pid_of(owner);
        !self.held.keys().any(|(.., holder)| its(holder))
    }

    fn in_line(&self, wait: &Waiting, before: &[Waiting]) -> bool {
        let crosses = |earlier: &Waiting| {
            let (a, b) = (bytes_of(&earlier.lock), bytes_of(&wait.lock));
            earlier.file == wait.file
                && earlier.lock.kind == wait.lock.kind
                && earlier.who != wait.who
                && a.start < b.end
                && b.start < a.end
                && (earlier.lock.exclusive || wait.lock.exclusive)
        };
        self.holds_nothing(wait.who) && before.iter().any(crosses)
    }

    fn set(&mut self, who: Who, file: usize, lock: &Lock, how: Option<bool>) {
        for byte in bytes_of(lock) {
            let key = (file, lock.kind, byte, who);
            match how {
                Some(exclusive) => self.held.insert(key, exclusive),
                None => self.held.remove(&key),
            };
        }
    }

    fn give(&mut self, wait: &Waiting) -> Vec<usize> {
        let first = self.holds_nothing(wait.who);
        self.set(wait.who, wait.file, &wait.lock, Some(wait.lock.exclusive));
        let mut more: Vec<_> = self
            .waits
            .iter()
            .filter(|other| first && other.who.0 == wait.who.0)
            .filter(|other| pid_of(other.who.1) == pid_of(wait.who.1))
            .map(|other| (other.ticket, other.file))
            .collect();
        more.sort_unstable();
        more.into_iter().map(|(_, file)| file).collect()
    }

    fn promote(&mut self, mut files: Vec<usize>) {
        while let Some(&file) = files.last() {
            let turn = (0..self.waits.len()).find(|&index| {
                let wait = &self.waits[index];
                wait.file == file
                    && self.hinder(wait.who, file, &wait.lock).is_empty()
                    && !self.in_line(wait, &self.waits[..index])
            });
            let Some(index) = turn else {
                files.pop();
                continue;
            };
            let wait = self.waits.remove(index);
            let more = self.give(&wait);
            self.ended.insert((wait.who.0, wait.ticket));
            files.extend(more);
        }
    }

    fn would_deadlock(&self, wait: &Waiting) -> bool {
        let mut reached = self.hinder(wait.who, wait.file, &wait.lock);
        loop {
            let more: BTreeSet<Who> = self
                .waits
                .iter()
                .filter(|other| other.lock.kind == Range && reached.contains(&other.who))
                .flat_map(|other| self.hinder(other.who, other.file, &other.lock))
                .collect();
            if reached.contains(&wait.who) || more.contains(&wait.who) {
                return true;
            }
            if more.is_subset(&reached) {
                return false;
            }
            reached.extend(more);
        }
    }

    fn take(&mut self, wait: &Waiting, may_wait: bool) -> std::result::Result<bool, Code> {
        if wait.lock.kind == Whole {
            match self.held.get(&(wait.file, Whole, 0, wait.who)) {
                Some(&exclusive) if exclusive == wait.lock.exclusive => return Ok(true),
                Some(_) => {
                    self.set(wait.who, wait.file, &wait.lock, None);
                    self.promote(vec![wait.file]);
                }
                None => {}
            }
        }
        let free = self.hinder(wait.who, wait.file, &wait.lock).is_empty();
        if free && !(may_wait && self.in_line(wait, &self.waits)) {
            let mut files = self.give(wait);
            files.push(wait.file);
            self.promote(files);
            return Ok(true);
        }
        if !may_wait {
            return Err(Code::WouldBlock);
        }
        if wait.lock.kind == Range && self.would_deadlock(wait) {
            return Err(Code::Deadlock);
        }
        self.waits.push(*wait);
        Ok(false)
    }

    fn gone(&mut self, client: u64) {
        // In the order of inode numbers, as the service does.
        self.held.retain(|(.., holder), _| holder.0 != client);
        self.waits.retain(|wait| wait.who.0 != client);
        self.ended.retain(|(of, _)| *of != client);
        self.promote(vec![0]);
        self.promote(vec![1]);
    }

    /// Runs of bytes that one owner has locked in one way.
    fn spans(&self) -> usize {
        let begins = |&(&(file, kind, byte, who), how): &(&Key, &bool)| {
            byte == 0 || self.held.get(&(file, kind, byte - 1, who)) != Some(how)
        };
        self.held.iter().filter(begins).count()
    }

    fn check(&self) {
        let mut seen: BTreeMap<(usize, LockKind, usize), (usize, bool)> = BTreeMap::new();
        for (&(file, kind, byte, _), &exclusive) in &self.held {
            let (count, any) = seen.entry((file, kind, byte)).or_default();
            *count += 1;
            *any |= exclusive;
            assert!(*count == 1 || !*any, "two have locked byte {byte}");
        }
    }
}

fn any_lock(dice: &mut Dice) -> (u64, Lock) {
    let owner = dice.below(OWNERS as usize) as u64;
    let kind = if dice.one_in(4) { Whole } else { Range };
    let start = dice.below(BYTES - 1);
    let end = start + 1 + dice.below(BYTES - start);
    let (start, end) = if kind == Whole { (0, BYTES) } else { (start, end) };
    let end = if end == BYTES { LOCK_END_MAX } else { end as u64 };
    let exclusive = dice.one_in(2);
    let lock =
        Lock { ino: Ino(0), kind, owner, pid: pid_of(owner), start: start as u64, end, exclusive };
    (owner, lock)
}

#[test]
fn random_histories_agree_with_a_table_of_bytes() {
    let (mut granted, mut deadlocks) = (0, 0);
    for seed in 0..100 {
        let mut dice = Dice::new(seed);
        let mut bed = Bed::new(CLIENTS);
        let mut model = Bytes::default();
        let mut confirmed: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for step in 0..400u64 {
            let client = 1 + dice.below(CLIENTS as usize) as u64;
            let file = dice.below(2);
            let (owner, lock) = any_lock(&mut dice);
            let who = (client, owner);
            let case = format!("seed {seed} step {step}");
            match dice.below(20) {
                0..=7 => {
                    let may_wait = dice.one_in(2);
                    let wait = Waiting { who, ticket: step, file, lock };
                    let ticket = may_wait.then_some(step);
                    let got = bed.take(client, file, lock, ticket).map_err(|error| error.code);
                    assert_eq!(got, model.take(&wait, may_wait), "{case}: {wait:?}");
                    deadlocks += usize::from(got == Err(Code::Deadlock));
                }
                8..=13 => {
                    bed.release(client, file, lock);
                    model.set(who, file, &lock, None);
                    model.promote(vec![file]);
                }
                14 => {
                    let Some(wait) = model.waits.iter().find(|wait| wait.who.0 == client) else {
                        continue;
                    };
                    let wait = *wait;
                    assert_eq!(bed.cancel(client, wait.ticket), Some(Code::Cancelled), "{case}");
                    model.waits.retain(|other| other.ticket != wait.ticket);
                    model.promote(vec![wait.file]);
                }
                15 => {
                    let Some(&key) = model.ended.range((client, 0)..=(client, step)).next() else {
                        continue;
                    };
                    assert_eq!(bed.cancel(client, key.1), None, "{case}");
                    model.ended.remove(&key);
                }
                16 if dice.one_in(5) => {
                    bed.service.client_gone(ClientId(client));
                    model.gone(client);
                    confirmed.remove(&client);
                    bed.open(client);
                }
                _ => {
                    let known = confirmed.remove(&client).unwrap_or_default();
                    known.iter().for_each(|&ticket| {
                        model.ended.remove(&(client, ticket));
                    });
                    let its = |(of, _): &(u64, u64)| *of == client;
                    let ended: Vec<u64> =
                        model.ended.iter().filter(|key| its(key)).map(|key| key.1).collect();
                    let waits: Vec<u64> = model
                        .waits
                        .iter()
                        .filter(|wait| wait.who.0 == client)
                        .map(|wait| wait.ticket)
                        .collect();
                    let tickets: Vec<u64> = waits.iter().chain(&ended).copied().collect();
                    let mut news = bed.watch(client, &tickets, &known);
                    let expected = match ended.is_empty() && !waits.is_empty() {
                        true => None,
                        false => Some(ended.iter().map(|&ticket| got(ticket)).collect()),
                    };
                    assert_eq!(heard(&mut news, Waker::noop()), expected, "{case}");
                    drop(news);
                    granted += ended.len();
                    // Or else the answer was lost.
                    if !dice.one_in(4) {
                        confirmed.insert(client, ended);
                    }
                }
            }
            model.check();
            assert_eq!(bed.service.locks.held(), model.spans(), "{case}");
            let probe = |exclusive| Lock { owner: 99, exclusive, ..lock };
            for probe in [probe(true), probe(false)] {
                let found = bed.find(client, file, probe).is_some();
                let expected = !model.hinder((client, 99), file, &probe).is_empty();
                assert_eq!(found, expected, "{case}: {probe:?}");
            }
        }
        for client in 1..=CLIENTS {
            bed.service.client_gone(ClientId(client));
        }
        assert!(bed.service.locks.is_idle(), "seed {seed}");
    }
    assert!(granted > 500 && deadlocks > 20, "{granted} granted, {deadlocks} deadlocks");
}
