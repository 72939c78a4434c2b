//! Each request, and each of its failures.

use super::conformance::store_conformance;
use super::*;
use crate::config::{CALM_ASKED_MIN, CALM_MS, RIDERS_PER_CALL_MAX, WAY_HELD_MS, WAYS_SHUT_MS};
use crate::types::Incarnation;
use crate::wire::control::{ServerEntry, TargetEntry};
use crate::wire::meta::{
    Changes, Closing, OpenMode, Opened, PendingTruncate, Place, Rider, SetTime, Settlement,
};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};

/// Runs a future that never waits.
pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a request over the store in memory waited"),
    }
}

pub(super) fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: vec![] }
}

pub(super) fn map(servers: u16, targets: u32) -> PoolMap {
    let entry =
        |id| TargetEntry { id: TargetId(id), incarnation: Incarnation(u64::MAX), memory: 1 << 30 };
    PoolMap {
        epoch: 1,
        pool: [7; 16],
        name: "test".into(),
        owner_uid: 1000,
        owner_gid: 1000,
        servers: (0..u32::from(servers))
            .map(|server| ServerEntry {
                address: format!("host{server}:1"),
                targets: (0..targets).map(|i| entry(server * targets + i)).collect(),
            })
            .collect(),
        metadata: vec![crate::types::ServerIndex(0)],
        stripe_size: 1 << 20,
        stripe_count: 0,
    }
}

pub(super) const CLIENT: ClientId = ClientId(1);
const OTHER: ClientId = ClientId(2);
pub(super) const KEY: [u8; 32] = [5; 32];

struct Bed {
    service: MetaService,
    now: Now,
    who: Credentials,
}

impl Bed {
    fn new() -> Bed {
        Bed::with_memory(1 << 26)
    }

    fn with_memory(limit: u64) -> Bed {
        let now = Now { mono_ms: 100_000, wall: WallTime(1_000_000) };
        let key = CapabilityKey::from_bytes(KEY);
        let store = Box::new(MemoryStore::new(limit));
        let service =
            run(MetaService::open(store, key, &map(2, 2), Timing::default(), now)).unwrap();
        Bed { service, now, who: user(1000) }
    }

    fn later(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall.0 += ms as i64 * 1_000_000;
    }

    fn by(&self, client: ClientId, who: &Credentials, request: MetaRequest) -> Result<MetaReply> {
        run(self.service.handle(self.now, client, who, request))
    }

    fn ask(&self, request: MetaRequest) -> Result<MetaReply> {
        self.by(CLIENT, &self.who, request)
    }

    fn fails(&self, request: MetaRequest) -> Code {
        let error = self.ask(request).expect_err("refused");
        assert!(!error.cause.is_empty());
        error.code
    }

    fn record(&self, request: MetaRequest) -> Record {
        match self.ask(request) {
            Ok(MetaReply::Found(record)) => record,
            other => panic!("{other:?}"),
        }
    }

    fn look(&self, path: &str) -> Result<Record> {
        match self.ask(MetaRequest::Lookup { place: at(path), follow: false })? {
            MetaReply::Found(record) => Ok(record),
            other => panic!("{other:?}"),
        }
    }

    fn ino(&self, path: &str) -> Ino {
        self.look(path).unwrap().attributes.ino
    }

    fn nlink(&self, path: &str) -> u32 {
        self.look(path).unwrap().attributes.nlink
    }

    fn opened(&self, request: MetaRequest) -> Opened {
        match self.ask(request) {
            Ok(MetaReply::Opened(opened)) => *opened,
            other => panic!("{other:?}"),
        }
    }

    fn create(&self, path: &str) -> Opened {
        self.opened(create(path, OpenMode::READ_WRITE))
    }

    /// Makes an empty settled file that was written to.
    fn file(&self, path: &str) -> Ino {
        let opened = self.create(path);
        let made = opened.record.attributes.mtime.0;
        self.close(&opened, Some((opened.version, 0, made)));
        opened.record.attributes.ino
    }

    fn open(&self, ino: Ino, open: OpenMode) -> Opened {
        self.opened(MetaRequest::Open { ino, open })
    }

    fn close(&self, opened: &Opened, settlement: Option<(u64, u64, i64)>) -> Vec<Ino> {
        let settlement = settlement.map(|(version, size, mtime)| Settlement {
            version,
            size,
            mtime: WallTime(mtime),
        });
        self.freed(MetaRequest::Close { handle: opened.handle, settlement, unsure: false })
    }

    fn freed(&self, request: MetaRequest) -> Vec<Ino> {
        match self.ask(request) {
            Ok(MetaReply::Gone { reap, order } | MetaReply::Garbage { reap, order }) => {
                let inos: Vec<Ino> = reap.iter().map(|reap| reap.ino).collect();
                assert_eq!(order.is_some(), !inos.is_empty());
                if let Some(order) = order {
                    assert_eq!(order.inos, inos);
                    let key = CapabilityKey::from_bytes(KEY);
                    key.check_order(&order, self.now.wall).unwrap();
                }
                inos
            }
            other => panic!("{other:?}"),
        }
    }

    fn truncate(&self, ino: Ino, size: u64, handle: Option<u64>) -> (PendingTruncate, u64) {
        match self.ask(MetaRequest::BeginTruncate { ino, size, handle }) {
            Ok(MetaReply::Truncation { pending, version, .. }) => (pending, version),
            other => panic!("{other:?}"),
        }
    }

    fn mkdir(&self, path: &str) -> Ino {
        let request = MetaRequest::MakeDirectory { place: at(path), mode: 0o755 };
        self.record(request).attributes.ino
    }

    fn done(&self, request: MetaRequest) {
        assert_eq!(self.ask(request), Ok(MetaReply::Done));
    }

    fn names(&self, path: &str) -> Vec<String> {
        let ino = self.ino(path);
        let list = MetaRequest::List { ino, after: vec![], limit: 100, attributes: false };
        match self.ask(list) {
            Ok(MetaReply::Entries { entries, end: true, .. }) => {
                entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into()).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

fn at(path: &str) -> Place {
    Place::new(Ino::ROOT, path)
}

fn create(path: &str, open: OpenMode) -> MetaRequest {
    let layout = LayoutWish::default();
    MetaRequest::Create { place: at(path), mode: 0o644, exclusive: false, open, layout }
}

fn exclusive(path: &str) -> MetaRequest {
    let (open, layout) = (OpenMode::WRITE, LayoutWish::default());
    MetaRequest::Create { place: at(path), mode: 0o644, exclusive: true, open, layout }
}

fn unlink(path: &str) -> MetaRequest {
    MetaRequest::Unlink { place: at(path) }
}

fn rmdir(path: &str) -> MetaRequest {
    MetaRequest::RemoveDirectory { place: at(path) }
}

fn rename(from: &str, to: &str) -> MetaRequest {
    MetaRequest::Rename { from: at(from), to: at(to), no_replace: false, exchange: false }
}

fn exchange(from: &str, to: &str) -> MetaRequest {
    MetaRequest::Rename { from: at(from), to: at(to), no_replace: false, exchange: true }
}

fn symlink(path: &str, text: &str) -> MetaRequest {
    MetaRequest::Symlink { place: at(path), text: text.into() }
}

fn lookup(path: &str, follow: bool) -> MetaRequest {
    MetaRequest::Lookup { place: at(path), follow }
}

fn chmod(ino: Ino, mode: u32) -> MetaRequest {
    MetaRequest::Change { ino, changes: Changes { mode: Some(mode), ..Changes::default() } }
}

fn chown(ino: Ino, uid: Option<u32>, gid: Option<u32>) -> MetaRequest {
    MetaRequest::Change { ino, changes: Changes { uid, gid, ..Changes::default() } }
}

#[test]
fn the_store_in_memory_conforms() {
    run(store_conformance(MemoryStore::new));
}

#[test]
fn paths_are_walked_with_links_and_dots() {
    let bed = Bed::new();
    let a = bed.mkdir("a");
    let b = bed.mkdir("a/b");
    let file = bed.file("a/b/file");
    bed.record(symlink("link", "a/b"));
    bed.record(symlink("a/up", "../a/./b/"));
    bed.record(symlink("a/absolute", "/a/b"));
    for path in [
        "a/b/file",
        "/a//b/./file",
        "link/file",
        "a/up/file",
        "a/absolute/file",
        "a/b/../b/file",
        "../../a/b/file",
    ] {
        assert_eq!(bed.ino(path), file, "{path}");
    }
    assert_eq!(bed.ino("a/b/.."), a);
    assert_eq!(bed.ino("a/b/."), b);
    assert_eq!(bed.ino(""), Ino::ROOT);
    assert_eq!(bed.ino("/"), Ino::ROOT);
    assert_eq!(bed.look("link").unwrap().attributes.kind, FileKind::Symlink);
    assert_eq!(bed.ino("link/"), b, "a slash behind a link asks for what it leads to");
    assert_eq!(bed.record(lookup("link", true)).attributes.ino, b);
    let relative = MetaRequest::Lookup { place: Place::new(b, "../b/file"), follow: false };
    assert_eq!(bed.record(relative).attributes.ino, file);
    assert_eq!(
        bed.ask(MetaRequest::ReadLink { ino: bed.ino("link") }),
        Ok(MetaReply::Text(b"a/b".to_vec()))
    );
    assert_eq!(bed.fails(MetaRequest::ReadLink { ino: b }), Code::Invalid);
    assert_eq!(bed.look("link").unwrap().attributes.size, 3);
}

#[test]
fn paths_that_lead_nowhere_are_refused() {
    let bed = Bed::new();
    bed.file("file");
    bed.record(symlink("ring", "ring2"));
    bed.record(symlink("ring2", "ring"));
    let long = "n".repeat(256);
    for (path, code) in [
        ("absent", Code::NotFound),
        ("absent/file", Code::NotFound),
        ("file/x", Code::NotDirectory),
        ("file/", Code::NotDirectory),
        ("ring/x", Code::Loop),
        (&long, Code::NameTooLong),
        (&"x/".repeat(2049), Code::NameTooLong),
        ("nul\0", Code::Invalid),
    ] {
        assert_eq!(bed.fails(lookup(path, false)), code, "{path:?}");
    }
    assert_eq!(bed.fails(lookup("ring", true)), Code::Loop);
    assert_eq!(bed.fails(MetaRequest::Attributes { ino: Ino(4711) }), Code::NotFound);
    assert!(bed.mkdir(&"n".repeat(255)).0 > 1);
    assert_eq!(bed.fails(symlink("empty", "")), Code::NotFound);
    assert_eq!(bed.fails(symlink("long", &"x".repeat(4097))), Code::NameTooLong);
}

#[test]
fn creating_opens_and_exclusive_creating_does_not_open_what_exists() {
    let mut bed = Bed::new();
    let made = bed.create("file");
    assert!(made.created && made.record.unsettled.is_none() && made.truncation.is_none());
    assert_eq!(made.record.attributes.mode, 0o644);
    assert_eq!((made.record.attributes.uid, made.record.attributes.gid), (1000, 1000));
    let again = bed.create("file");
    assert!(!again.created);
    assert_ne!(again.handle, made.handle);
    assert_eq!(again.layout, made.layout);
    assert_eq!(bed.fails(exclusive("file")), Code::Exists);
    bed.record(symlink("link", "target"));
    assert_eq!(bed.fails(exclusive("link")), Code::Exists);
    assert!(bed.create("link").created, "a dangling link is followed");
    bed.ino("target");
    bed.mkdir("dir");
    assert_eq!(bed.fails(create("dir", OpenMode::READ)), Code::IsDirectory);
    assert_eq!(bed.fails(create("new/", OpenMode::READ)), Code::IsDirectory);
    assert_eq!(bed.fails(create("absent/new", OpenMode::READ)), Code::NotFound);
    let neither = OpenMode { read: false, write: false, truncate: false };
    assert_eq!(bed.fails(create("new", neither)), Code::Invalid);
    let cut_to_read = OpenMode { truncate: true, ..OpenMode::READ };
    assert_eq!(bed.fails(create("new", cut_to_read)), Code::Invalid);
    // The directory's times follow, its count of names does not.
    bed.later(5);
    assert_eq!(bed.nlink("dir"), 2);
    bed.file("dir/x");
    let dir = bed.look("dir").unwrap().attributes;
    assert_eq!((dir.nlink, dir.mtime, dir.ctime), (2, bed.now.wall, bed.now.wall));
    bed.mkdir("dir/sub");
    assert_eq!(bed.nlink("dir"), 3);
}

#[test]
fn capabilities_allow_what_the_handle_does() {
    let bed = Bed::new();
    let ino = bed.file("file");
    let key = CapabilityKey::from_bytes(KEY);
    for (open, rights) in [
        (OpenMode::READ, Rights::STAT.and(Rights::READ)),
        (OpenMode::WRITE, Rights::STAT.and(Rights::WRITE)),
        (OpenMode::READ_WRITE, Rights::STAT.and(Rights::READ).and(Rights::WRITE)),
    ] {
        let opened = bed.open(ino, open);
        assert_eq!(opened.capability.rights, rights);
        assert_eq!(opened.capability.ino, ino);
        key.check(&opened.capability, bed.now.wall).unwrap();
        let renewed = bed.opened(MetaRequest::Renew { handle: opened.handle });
        assert_eq!(renewed.capability.rights, rights);
        assert_eq!(renewed.handle, opened.handle);
    }
    let unsettled = bed.look("file").unwrap().unsettled.unwrap();
    assert_eq!(unsettled.capability.rights, Rights::STAT);
    bed.truncate(ino, 7, None);
    let unsettled = bed.look("file").unwrap().unsettled.unwrap();
    assert_eq!(unsettled.capability.rights, Rights::STAT.and(Rights::WRITE));
    assert!(bed.open(ino, OpenMode::READ).capability.rights.allow(Rights::WRITE));
}

#[test]
fn handles_belong_to_their_client_and_end_once() {
    let bed = Bed::new();
    let opened = bed.create("file");
    let close = || MetaRequest::Close { handle: opened.handle, settlement: None, unsure: false };
    let foreign = bed.by(OTHER, &bed.who, close()).unwrap_err();
    assert_eq!(foreign.code, Code::BadHandle);
    assert_eq!(bed.freed(close()), []);
    assert_eq!(bed.fails(close()), Code::BadHandle);
    assert_eq!(bed.fails(MetaRequest::Renew { handle: opened.handle }), Code::BadHandle);
    assert!(bed.service.live.is_idle());
}

#[test]
fn handles_may_end_by_the_way() {
    let bed = Bed::new();
    let closing = |opened: &Opened| {
        let settlement = Some(Settlement { version: opened.version, size: 7, mtime: WallTime(9) });
        Rider::Close(Closing { handle: opened.handle, settlement })
    };
    let close = |client, riders: &[Rider]| run(bed.service.ride(client, riders));
    let (one, other) = (bed.create("one"), bed.create("other"));
    let both = [closing(&one), closing(&other)];
    assert_eq!(close(OTHER, &both), Ok(false));
    assert!(bed.look("one").unwrap().unsettled.is_some(), "they are another client's");
    bed.close(&other, None);
    assert_eq!(close(CLIENT, &both), Ok(false), "one that has ended is passed over");
    assert_eq!(bed.look("one").unwrap().attributes.size, 7);
    assert!(bed.service.live.is_idle());

    // The last handle of a removed file: whoever asks is told what to free.
    let orphan = bed.create("orphan");
    assert_eq!(bed.freed(MetaRequest::Unlink { place: at("orphan") }), []);
    assert_eq!(close(CLIENT, &[closing(&orphan)]), Ok(true));
    assert_eq!(bed.freed(MetaRequest::KeepAlive), [orphan.record.attributes.ino]);
    let many = vec![closing(&one); RIDERS_PER_CALL_MAX + 1];
    assert_eq!(close(CLIENT, &many).unwrap_err().code, Code::TooMany);
}

#[test]
fn truncations_may_end_by_the_way() {
    let bed = Bed::new();
    let ino = bed.file("file");
    let cut = |size| match bed.ask(MetaRequest::BeginTruncate { ino, size, handle: None }) {
        Ok(MetaReply::Truncation { pending, .. }) => pending.epoch,
        other => panic!("{other:?}"),
    };
    let undone = || {
        let unsettled = bed.look("file").unwrap().unsettled;
        unsettled.and_then(|unsettled| unsettled.truncation).is_some()
    };
    let end = |epoch| run(bed.service.ride(CLIENT, &[Rider::Truncated { ino, epoch }]));
    let (first, second) = (cut(5), cut(3));
    assert_eq!(end(first), Ok(false));
    assert!(undone(), "a newer one has begun");
    assert_eq!(end(second), Ok(false));
    assert!(!undone());
    assert_eq!(end(second), Ok(false), "once more is no error");
    let none = Rider::Truncated { ino: Ino(u64::MAX), epoch: 1 };
    assert_eq!(run(bed.service.ride(CLIENT, &[none])), Ok(false));
}

#[test]
fn what_never_had_a_name_can_be_given_one() {
    let bed = Bed::new();
    let unnamed = |directory| {
        let (open, layout) = (OpenMode::WRITE, LayoutWish::default());
        MetaRequest::CreateUnnamed { directory, mode: 0o640, open, layout }
    };
    let create = || bed.opened(unnamed(Ino::ROOT));
    let link = |opened: &Opened, path: &str| MetaRequest::Link {
        ino: opened.record.attributes.ino,
        place: at(path),
    };
    let left = create();
    assert_eq!((left.record.attributes.nlink, left.record.attributes.mode), (0, 0o640));
    assert!(bed.names("/").is_empty());
    assert_eq!(
        bed.close(&left, None),
        [left.record.attributes.ino],
        "nobody can reach it any more"
    );

    let given = create();
    assert_eq!(bed.record(link(&given, "name")).attributes.nlink, 1);
    assert_eq!(bed.record(link(&given, "other")).attributes.nlink, 2);
    assert_eq!(bed.close(&given, Some((given.version, 7, 1))), []);
    assert_eq!(bed.look("name").unwrap().attributes.size, 7);
    assert_eq!(bed.freed(unlink("name")), []);
    assert_eq!(bed.freed(unlink("other")), [given.record.attributes.ino]);

    // What had one and lost it is given no other.
    let lost = create();
    bed.record(link(&lost, "name"));
    assert_eq!(bed.freed(unlink("name")), []);
    assert_eq!(bed.fails(link(&lost, "again")), Code::NotFound);
    assert_eq!(bed.close(&lost, None), [lost.record.attributes.ino]);
    assert_eq!(bed.fails(unnamed(bed.file("file"))), Code::NotDirectory);
}

/// A file that was open for writing once, when it was made, and not written, has no objects. Any
/// doubt about that, and it has.
#[test]
fn what_was_never_written_leaves_no_garbage() {
    let bed = Bed::new();
    let unlink = |path: &str| bed.freed(MetaRequest::Unlink { place: at(path) });
    let empty = bed.create("empty");
    bed.close(&empty, Some((empty.version, 0, 0)));
    assert_eq!(unlink("empty"), []);

    let silent = bed.create("silent");
    bed.close(&silent, None);
    assert_eq!(unlink("silent"), [silent.record.attributes.ino]);

    let others = bed.create("others");
    let ino = others.record.attributes.ino;
    bed.close(&others, None);
    let settlement = Settlement { version: others.version, size: 0, mtime: WallTime(0) };
    bed.done(MetaRequest::Settle { ino, settlement });
    assert_eq!(unlink("others"), [ino], "its writer has not said so");

    let written = bed.create("written");
    bed.close(&written, Some((written.version, 0, 1)));
    assert_eq!(unlink("written"), [written.record.attributes.ino]);

    let again = bed.create("again");
    bed.close(&again, Some((again.version, 0, 0)));
    let again = bed.open(again.record.attributes.ino, OpenMode::WRITE);
    bed.close(&again, Some((again.version, 0, 0)));
    assert_eq!(unlink("again"), [again.record.attributes.ino]);

    let cut = bed.create("cut");
    let ino = cut.record.attributes.ino;
    let version = bed.truncate(ino, 0, Some(cut.handle)).1;
    bed.close(&cut, Some((version, 0, 0)));
    assert_eq!(unlink("cut"), [ino]);
}

#[test]
fn a_file_is_unsettled_from_opening_for_writing_until_a_right_report() {
    let bed = Bed::new();
    let writer = bed.create("file");
    let ino = writer.record.attributes.ino;
    let asked = bed.look("file").unwrap().unsettled.unwrap();
    assert!(!asked.settles);
    let settle = |version, size, mtime| MetaRequest::Settle {
        ino,
        settlement: Settlement { version, size, mtime: WallTime(mtime) },
    };
    bed.done(settle(asked.version, 1, 1));
    assert!(bed.look("file").unwrap().unsettled.is_some(), "not while a writer is there");
    bed.close(&writer, Some((writer.version, 500, 4_000)));
    let record = bed.look("file").unwrap();
    assert_eq!(record.unsettled, None);
    assert_eq!((record.attributes.size, record.attributes.mtime), (500, WallTime(4_000)));

    // A second opening makes a new version: reports for the first are late.
    let second = bed.open(ino, OpenMode::WRITE);
    assert_eq!(second.record.unsettled, None, "it was settled before this opening");
    assert!(second.version > writer.version);
    let third = bed.open(ino, OpenMode::WRITE);
    assert!(third.record.unsettled.is_some());
    bed.close(&second, Some((third.version, 1, 1)));
    assert!(bed.look("file").unwrap().unsettled.is_some(), "another writer stays");
    bed.close(&third, None);
    let asked = bed.look("file").unwrap().unsettled.unwrap();
    assert!(asked.settles);
    bed.done(settle(asked.version - 1, 1, 1));
    assert!(bed.look("file").unwrap().unsettled.is_some(), "a late report is ignored");
    bed.done(settle(asked.version, 600, 0));
    let record = bed.look("file").unwrap();
    assert_eq!(record.unsettled, None);
    assert_eq!(record.attributes.size, 600);
    assert_eq!(record.attributes.mtime, WallTime(4_000), "never written: the time stays");
    bed.done(settle(asked.version, 1, 1));
    assert_eq!(bed.look("file").unwrap().attributes.size, 600, "a second report is ignored");
    assert_eq!(bed.fails(settle(asked.version, u64::MAX, 1)), Code::TooLarge);
}

#[test]
fn truncations_merge_and_the_newest_one_ends_them() {
    let bed = Bed::new();
    let ino = bed.file("file");
    let (first, v1) = bed.truncate(ino, 100, None);
    assert_eq!((first.cut, first.size), (100, 100));
    let (second, v2) = bed.truncate(ino, 40, None);
    let larger = MetaRequest::BeginTruncate { ino, size: 41, handle: None };
    match bed.ask(larger) {
        Ok(MetaReply::Unfinished { pending, .. }) => assert_eq!(pending, second),
        other => panic!("{other:?}"),
    }
    let (third, v3) = bed.truncate(ino, 40, None);
    assert!(v1 < v2 && v2 < v3);
    assert!(first.epoch < second.epoch && second.epoch < third.epoch);
    assert_eq!((third.cut, third.size), (40, 40));
    bed.done(MetaRequest::EndTruncate { ino, epoch: second.epoch });
    let unsettled = bed.look("file").unwrap().unsettled.unwrap();
    assert_eq!(unsettled.truncation, Some(third));
    assert_eq!(bed.open(ino, OpenMode::READ).truncation, Some(third));
    let version = unsettled.version;
    let settlement = Settlement { version, size: 1, mtime: WallTime(1) };
    bed.done(MetaRequest::Settle { ino, settlement });
    assert!(bed.look("file").unwrap().unsettled.is_some(), "a report in front of it is ignored");
    bed.done(MetaRequest::EndTruncate { ino, epoch: third.epoch });
    let record = bed.look("file").unwrap();
    let version = record.unsettled.expect("it grew: the targets know what it holds").version;
    assert_eq!(record.attributes.size, 40);
    let (fresh, _) = bed.truncate(ino, 95, None);
    assert_eq!((fresh.cut, fresh.size), (95, 95), "what was ended is forgotten");
    bed.done(MetaRequest::EndTruncate { ino, epoch: fresh.epoch });
    let settlement = Settlement { version: version + 1, size: 95, mtime: WallTime(1) };
    bed.done(MetaRequest::Settle { ino, settlement });
    for size in [80, 0] {
        let (cut, _) = bed.truncate(ino, size, None);
        assert!(bed.look("file").unwrap().unsettled.is_some(), "not before the targets know");
        bed.done(MetaRequest::EndTruncate { ino, epoch: cut.epoch });
        let record = bed.look("file").unwrap();
        assert_eq!((record.unsettled, record.attributes.size), (None, size), "it only shrank");
    }
    let too_large = MetaRequest::BeginTruncate { ino, size: u64::MAX, handle: None };
    assert_eq!(bed.fails(too_large), Code::TooLarge);
    let directory = MetaRequest::BeginTruncate { ino: Ino::ROOT, size: 0, handle: None };
    assert_eq!(bed.fails(directory), Code::IsDirectory);
}

#[test]
fn a_truncation_beside_a_writer_settles_nothing() {
    let bed = Bed::new();
    let writer = bed.create("file");
    let ino = writer.record.attributes.ino;
    // The writer may write behind the cut before it closes with an older version.
    let (pending, version) = bed.truncate(ino, 10, None);
    bed.close(&writer, Some((writer.version, 3, 3)));
    bed.done(MetaRequest::EndTruncate { ino, epoch: pending.epoch });
    assert!(bed.look("file").unwrap().unsettled.unwrap().settles);
    // One who opens between begin and end may write, too.
    let (pending, _) = bed.truncate(ino, 10, None);
    let writer = bed.open(ino, OpenMode::WRITE);
    bed.close(&writer, None);
    bed.done(MetaRequest::EndTruncate { ino, epoch: pending.epoch });
    assert!(bed.look("file").unwrap().unsettled.is_some());
    // Through a handle: it must be this file's, and for writing; its closing settles.
    let reader = bed.open(ino, OpenMode::READ);
    let other = bed.create("other");
    for handle in [reader.handle, other.handle, 99] {
        let request = MetaRequest::BeginTruncate { ino, size: 0, handle: Some(handle) };
        assert_eq!(bed.fails(request), Code::BadHandle);
    }
    let writer = bed.open(ino, OpenMode::WRITE);
    let (pending, newer) = bed.truncate(ino, 20, Some(writer.handle));
    assert!(newer > version);
    bed.done(MetaRequest::EndTruncate { ino, epoch: pending.epoch });
    bed.close(&writer, Some((newer, 20, 0)));
    assert_eq!(bed.look("file").unwrap().unsettled, None);
}

#[test]
fn opening_with_truncation_cuts_unless_known_to_be_empty() {
    let mut bed = Bed::new();
    let ino = bed.file("file");
    let cut = OpenMode { truncate: true, ..OpenMode::WRITE };
    let empty = bed.open(ino, cut);
    assert_eq!(empty.truncation, None);
    bed.close(&empty, Some((empty.version, 5, 77)));
    bed.later(1);
    let full = bed.open(ino, cut);
    let pending = full.truncation.unwrap();
    assert_eq!((pending.cut, pending.size), (0, 0));
    assert_eq!(full.record.unsettled, None);
    assert_eq!(full.record.attributes.size, 0);
    assert_eq!(full.record.attributes.mtime, bed.now.wall);
    assert_eq!(full.record.attributes.data_epoch, pending.epoch);
    bed.done(MetaRequest::EndTruncate { ino, epoch: pending.epoch });
    assert!(bed.look("file").unwrap().unsettled.is_some(), "its writer is there");
    let second = bed.open(ino, cut);
    assert!(second.truncation.is_some(), "unsettled: nobody knows that it is empty");
    assert!(second.record.unsettled.is_some());
}

#[test]
fn times_are_set_and_begin_a_data_epoch() {
    let mut bed = Bed::new();
    let ino = bed.file("file");
    let before = bed.look("file").unwrap().attributes;
    bed.later(10);
    let set = |mtime, atime| MetaRequest::Change {
        ino,
        changes: Changes { mtime, atime, ..Changes::default() },
    };
    let record = bed.record(set(Some(SetTime::To(WallTime(-5))), Some(SetTime::Now)));
    assert_eq!(record.attributes.mtime, WallTime(-5));
    assert_eq!(record.attributes.atime, bed.now.wall);
    assert_eq!(record.attributes.ctime, bed.now.wall);
    assert!(record.attributes.data_epoch > before.data_epoch);
    let told = record.unsettled.expect("the targets must be told");
    assert!(told.settles);
    assert_eq!(bed.look("file").unwrap().unsettled, None, "but the file is settled");
    // With a writer: its report for the older version comes too late.
    let writer = bed.open(ino, OpenMode::WRITE);
    bed.record(set(Some(SetTime::To(WallTime(9))), None));
    bed.close(&writer, Some((writer.version, 1, 8)));
    assert!(bed.look("file").unwrap().unsettled.is_some());
    assert_eq!(bed.look("file").unwrap().attributes.mtime, WallTime(9));
    // Owner's rules.
    let bob = user(2000);
    let code = |request| bed.by(CLIENT, &bob, request).unwrap_err().code;
    assert_eq!(code(set(Some(SetTime::To(WallTime(1))), None)), Code::NotPermitted);
    assert_eq!(code(set(Some(SetTime::Now), None)), Code::AccessDenied);
    bed.record(chmod(ino, 0o666));
    assert!(bed.by(CLIENT, &bob, set(Some(SetTime::Now), None)).is_ok());
    assert_eq!(code(set(Some(SetTime::To(WallTime(1))), None)), Code::NotPermitted);
    // A directory's own.
    let dir = bed.mkdir("dir");
    let changes = Changes { mtime: Some(SetTime::To(WallTime(3))), ..Changes::default() };
    let record = bed.record(MetaRequest::Change { ino: dir, changes });
    assert_eq!(record.attributes.mtime, WallTime(3));
    assert_eq!(record.attributes.ctime, bed.now.wall);
    bed.file("dir/x");
    assert_eq!(bed.look("dir").unwrap().attributes.mtime, bed.now.wall);
}

#[test]
fn owners_and_modes_change_by_posix_rules() {
    let bed = Bed::new();
    let ino = bed.file("file");
    let (root, bob) = (user(0), user(2000));
    let code = |who: &Credentials, request| bed.by(CLIENT, who, request).map_err(|e| e.code);
    assert_eq!(code(&bob, chmod(ino, 0o777)), Err(Code::NotPermitted));
    assert_eq!(code(&bob, chown(ino, Some(2000), None)), Err(Code::NotPermitted));
    assert_eq!(bed.fails(chown(ino, Some(2000), None)), Code::NotPermitted);
    assert_eq!(bed.fails(chown(ino, None, Some(2000))), Code::NotPermitted);
    let member = Credentials { groups: vec![2000], ..user(1000) };
    bed.record(chmod(ino, 0o6775));
    code(&member, chown(ino, Some(1000), Some(2000))).unwrap();
    let attributes = bed.look("file").unwrap().attributes;
    assert_eq!((attributes.gid, attributes.mode), (2000, 0o775), "set-id bits go with the owner");
    bed.record(chmod(ino, 0o2775));
    assert_eq!(bed.look("file").unwrap().attributes.mode, 0o775, "not a member any more");
    code(&member, chmod(ino, 0o2775)).unwrap();
    assert_eq!(bed.look("file").unwrap().attributes.mode, 0o2775);
    code(&root, chown(ino, Some(0), Some(0))).unwrap();
    assert_eq!(bed.fails(chmod(ino, 0o777)), Code::NotPermitted);
    let unchanged = MetaRequest::Change { ino, changes: Changes::default() };
    assert_eq!(bed.record(unchanged).attributes.uid, 0);
    // Truncation by somebody else takes the set-id bits away.
    code(&root, chmod(ino, 0o6777)).unwrap();
    bed.truncate(ino, 0, None);
    assert_eq!(bed.look("file").unwrap().attributes.mode, 0o777);
}

#[test]
fn permissions_are_checked_for_each_kind_of_access() {
    let bed = Bed::new();
    let bob = user(2000);
    let code = |request| bed.by(CLIENT, &bob, request).map_err(|error| error.code).err();
    let dir = bed.mkdir("dir");
    let ino = bed.file("dir/file");
    assert_eq!(code(lookup("dir/file", false)), None);
    assert_eq!(code(MetaRequest::Open { ino, open: OpenMode::READ }), None);
    let denied = Some(Code::AccessDenied);
    assert_eq!(code(MetaRequest::Open { ino, open: OpenMode::WRITE }), denied);
    assert_eq!(code(MetaRequest::BeginTruncate { ino, size: 0, handle: None }), denied);
    for request in [
        create("dir/new", OpenMode::WRITE),
        unlink("dir/file"),
        rename("dir/file", "dir/new"),
        MetaRequest::MakeDirectory { place: at("dir/new"), mode: 0o755 },
        symlink("dir/new", "x"),
        MetaRequest::Link { ino, place: at("dir/new") },
    ] {
        assert_eq!(code(request.clone()), denied, "{request:?}");
    }
    assert_eq!(code(unlink("dir/absent")), Some(Code::NotFound));
    bed.record(chmod(dir, 0o711));
    let list = MetaRequest::List { ino: dir, after: vec![], limit: 9, attributes: false };
    assert_eq!(code(list), denied);
    assert_eq!(code(lookup("dir/file", false)), None);
    bed.record(chmod(dir, 0o744));
    assert_eq!(code(lookup("dir/file", false)), denied);
    assert_eq!(code(lookup("dir/.", false)), denied);
    // The owner's class counts even where others may more; group membership counts.
    bed.record(chmod(ino, 0o066));
    assert_eq!(bed.fails(MetaRequest::Open { ino, open: OpenMode::READ }), Code::AccessDenied);
    bed.record(chmod(ino, 0o060));
    assert_eq!(code(MetaRequest::Open { ino, open: OpenMode::READ }), denied);
    let member = Credentials { groups: vec![1000], ..user(2000) };
    assert!(bed.by(CLIENT, &member, MetaRequest::Open { ino, open: OpenMode::READ }).is_ok());
    assert!(bed.by(CLIENT, &user(0), MetaRequest::Open { ino, open: OpenMode::WRITE }).is_ok());
}

#[test]
fn sticky_and_set_group_directories() {
    let bed = Bed::new();
    let shared = bed.mkdir("shared");
    bed.record(chmod(shared, 0o1777));
    bed.file("shared/alices");
    let (bob, carol) = (user(2000), user(3000));
    let code = |who, request| bed.by(CLIENT, who, request).map_err(|error| error.code).err();
    assert_eq!(code(&bob, create("shared/bobs", OpenMode::WRITE)), None);
    let refused = Some(Code::NotPermitted);
    assert_eq!(code(&carol, unlink("shared/bobs")), refused);
    assert_eq!(code(&carol, rename("shared/bobs", "shared/carols")), refused);
    assert_eq!(code(&bob, rename("shared/bobs", "shared/alices")), refused);
    assert_eq!(code(&bob, rename("shared/bobs", "shared/bobs2")), None);
    assert_eq!(bed.ask(unlink("shared/bobs2")).map(|_| ()), Ok(()), "the directory's owner may");
    let team = bed.mkdir("team");
    bed.by(CLIENT, &user(0), chown(team, None, Some(77))).unwrap();
    bed.by(CLIENT, &user(0), chmod(team, 0o2777)).unwrap();
    bed.by(CLIENT, &bob, create("team/file", OpenMode::WRITE)).unwrap();
    assert_eq!(bed.look("team/file").unwrap().attributes.gid, 77);
    let sub = bed.mkdir("team/sub");
    let attributes = bed.record(MetaRequest::Attributes { ino: sub }).attributes;
    assert_eq!((attributes.gid, attributes.mode), (77, 0o2755));
}

#[test]
fn nodes_links_and_their_limits() {
    let bed = Bed::new();
    let node =
        |path: &str, kind| MetaRequest::MakeNode { place: at(path), kind, mode: 0o600, rdev: 5 };
    let fifo = bed.record(node("fifo", FileKind::Fifo)).attributes;
    assert_eq!((fifo.kind, fifo.rdev), (FileKind::Fifo, 0));
    assert_eq!(bed.fails(node("device", FileKind::CharDevice)), Code::NotPermitted);
    let reply = bed.by(CLIENT, &user(0), node("device", FileKind::BlockDevice));
    let Ok(MetaReply::Found(record)) = reply else { panic!("{reply:?}") };
    assert_eq!(record.attributes.rdev, 5);
    assert_eq!(bed.fails(node("d", FileKind::Directory)), Code::Invalid);
    assert_eq!(bed.fails(node("fifo", FileKind::Fifo)), Code::Exists);
    assert_eq!(bed.fails(node("x/", FileKind::Fifo)), Code::NotFound);
    assert_eq!(bed.fails(MetaRequest::Open { ino: fifo.ino, open: OpenMode::READ }), Code::Invalid);
    let file = bed.record(node("file", FileKind::Regular));
    assert_eq!(file.unsettled, None);
    let ino = file.attributes.ino;
    let dir = bed.mkdir("dir");
    let link = |ino, path: &str| MetaRequest::Link { ino, place: at(path) };
    assert_eq!(bed.record(link(ino, "dir/second")).attributes.nlink, 2);
    assert_eq!(bed.record(link(fifo.ino, "dir/fifo")).attributes.nlink, 2);
    assert_eq!(bed.ino("dir/second"), ino);
    assert_eq!(bed.fails(link(dir, "dir2")), Code::NotPermitted);
    assert_eq!(bed.fails(link(ino, "dir/second")), Code::Exists);
    assert_eq!(bed.fails(link(Ino(999), "x")), Code::NotFound);
    assert_eq!(bed.freed(unlink("file")), []);
    assert_eq!(bed.nlink("dir/second"), 1);
    assert_eq!(bed.freed(unlink("dir/second")), [], "no objects were made: nothing to free");
    for i in 1..LINKS_MAX {
        if i == 1 {
            bed.file("many");
        }
        bed.record(link(bed.ino("many"), &format!("dir/{i}")));
    }
    assert_eq!(bed.fails(link(bed.ino("many"), "dir/more")), Code::TooManyLinks);
}

#[test]
fn a_way_that_somebody_believes_stays() {
    let mut bed = Bed::new();
    let a = bed.mkdir("a");
    let b = bed.mkdir("a/b");
    bed.mkdir("c");
    bed.file("a/f");
    let way = |parent, name: &str| MetaRequest::LookupWay {
        place: Place::new(parent, name),
        others: true,
    };
    let who = bed.who.clone();
    let told = |bed: &Bed, parent, name: &str| match bed.by(OTHER, &who, way(parent, name)) {
        Ok(MetaReply::Looked { record: Some(record), name, attributes: false }) => {
            (record.attributes.ino, name)
        }
        other => panic!("{other:?}"),
    };
    // Of files nothing is to be believed, and nobody waits for it.
    assert!(!told(&bed, a, "f").1);
    bed.freed(rename("a/b", "a/d"));
    bed.freed(rename("a/d", "a/b"));
    assert_eq!(bed.fails(way(a, "b/..")), Code::Invalid);
    assert_eq!(bed.fails(way(a, "..")), Code::Invalid);
    assert_eq!(bed.fails(way(a, "absent")), Code::NotFound);
    assert_eq!(bed.fails(way(b, "absent")), Code::NotFound);

    assert_eq!(told(&bed, a, "b"), (b, true));
    for request in [
        rmdir("a/b"),
        rename("a/b", "a/d"),
        rename("c", "a/b"),
        exchange("c", "a/f"),
        chmod(a, 0o750),
    ] {
        let text = format!("{request:?}");
        assert_eq!(bed.fails(request), Code::Busy, "{text}");
    }
    assert_eq!(bed.ino("a/b"), b);
    // What is no directory's name goes, and who believes it himself knows what he does.
    bed.freed(rename("a/f", "a/g"));
    bed.record(chmod(a, 0o775));
    assert!(bed.by(OTHER, &who, rename("a/b", "a/d")).is_ok());
    assert!(matches!(bed.by(OTHER, &who, chmod(a, 0o700)), Err(error) if error.code == Code::Busy));
    bed.later(WAY_HELD_MS);
    assert!(!told(&bed, a, "d").1, "somebody waits");
    bed.freed(rename("a/d", "a/b"));
    bed.record(chmod(a, 0o750));
    // Who may not walk there must not learn of it by what others believe.
    bed.later(WAYS_SHUT_MS);
    assert!(!told(&bed, a, "b").1);
    assert!(told(&bed, Ino::ROOT, "c").1);
}

#[test]
fn where_not_everybody_may_walk_he_believes_it_who_goes_alone() {
    let mut bed = Bed::new();
    let a = bed.mkdir("a");
    bed.mkdir("a/b");
    let root = user(0);
    let told = |bed: &Bed, who: &Credentials, others| {
        let request = MetaRequest::LookupWay { place: Place::new(a, "b"), others };
        match bed.by(OTHER, who, request) {
            Ok(MetaReply::Looked { name, .. }) => Ok(name),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.code),
        }
    };
    let change = |bed: &Bed, who: &Credentials, request| {
        bed.by(CLIENT, who, request).map(|_| ()).map_err(|error| error.code)
    };
    let me = bed.who.clone();
    let member = Credentials { groups: vec![1000], ..user(77) };
    let open_to = |bed: &mut Bed, whom: &[&Credentials], mode| {
        bed.later(WAY_HELD_MS);
        assert_eq!(change(bed, &root, chmod(a, mode)), Ok(()));
        bed.later(WAYS_SHUT_MS);
        for who in [&me, &member, &root] {
            let may = [true, false].map(|others| told(bed, who, others).unwrap_or(false));
            assert_eq!(may, [false, whom.contains(&who)], "mode {mode:o}, user {}", who.uid);
        }
    };
    open_to(&mut bed, &[&me, &root], 0o700);
    open_to(&mut bed, &[&me, &root], 0o750);
    // That somebody is of its group may end at any time; and nothing is closed to the superuser.
    open_to(&mut bed, &[&root], 0o070);
    open_to(&mut bed, &[&root], 0o600);
    open_to(&mut bed, &[&me, &root], 0o710);

    // It is not closed to him before he believes it no more; and to the superuser never.
    assert_eq!(change(&bed, &root, chmod(a, 0o700)), Ok(()));
    assert_eq!(change(&bed, &root, chmod(a, 0o600)), Err(Code::Busy));
    assert_eq!(change(&bed, &root, chown(a, Some(77), None)), Err(Code::Busy));
    assert_eq!(change(&bed, &root, chown(a, None, Some(77))), Ok(()));
    assert_eq!(told(&bed, &me, false), Ok(false), "somebody waits");
    bed.later(WAY_HELD_MS);
    assert_eq!(change(&bed, &root, chown(a, Some(0), None)), Ok(()));
    assert_eq!(told(&bed, &me, false), Err(Code::AccessDenied));
    bed.later(WAYS_SHUT_MS);
    assert_eq!(told(&bed, &root, false), Ok(true));
    assert_eq!(change(&bed, &root, chmod(a, 0)), Ok(()));
    assert_eq!(change(&bed, &root, chown(a, Some(1000), None)), Ok(()));
    // Nor is it closed to anybody where all may walk afterwards.
    assert_eq!(change(&bed, &root, chmod(a, 0o700)), Ok(()));
    assert_eq!(told(&bed, &me, false), Ok(true));
    assert_eq!(change(&bed, &root, chmod(a, 0o755)), Ok(()));
    assert_eq!(change(&bed, &root, chown(a, Some(77), None)), Ok(()));
}

#[test]
fn while_nobody_else_changes_anything_all_is_believed() {
    let mut bed = Bed::new();
    let who = bed.who.clone();
    let a = bed.mkdir("a");
    let closed = bed.mkdir("closed");
    bed.record(chmod(closed, 0o700));
    bed.mkdir("a/d");
    let file = bed.file("a/f");
    bed.file("a/g");
    bed.file("closed/f");
    let xattr = |name: &str| MetaRequest::SetXattr {
        ino: file,
        name: name.as_bytes().to_vec(),
        value: b"v".to_vec(),
        create: false,
        replace: false,
    };
    bed.done(xattr("user.old"));
    let writer = bed.create("a/open");
    let resting = bed.create("a/resting");
    bed.close(&resting, None);
    bed.later(CALM_MS);
    let way = |parent, name: &str| MetaRequest::LookupWay {
        place: Place::new(parent, name),
        others: true,
    };
    let looked = |bed: &Bed, request| match bed.by(OTHER, &who, request) {
        Ok(MetaReply::Looked { record, name, attributes }) => (record.is_some(), name, attributes),
        other => panic!("{other:?}"),
    };
    // What is asked for now and then is not worth it that anybody waits.
    assert_eq!(looked(&bed, way(a, "f")), (true, false, false));
    assert_eq!(looked(&bed, MetaRequest::LookAt { ino: file }), (true, false, false));
    let calm = |bed: &Bed| {
        let often = || looked(bed, MetaRequest::LookAt { ino: a }) == (true, false, true);
        (0..CALM_ASKED_MIN).filter(|_| often()).count() > 0
    };
    assert!(calm(&bed));
    assert_eq!(looked(&bed, way(a, "f")), (true, true, true));
    assert_eq!(looked(&bed, way(a, "d")), (true, true, true));
    assert_eq!(looked(&bed, way(a, "absent")), (false, true, false));
    // Only the targets know how large they are: of one that nobody writes they can be asked.
    assert!(bed.look("a/resting").unwrap().unsettled.is_some());
    assert_eq!(looked(&bed, way(a, "resting")), (true, true, true));
    // And not everybody may walk everywhere.
    assert_eq!(looked(&bed, way(a, "open")), (true, true, false));
    assert_eq!(looked(&bed, way(closed, "f")), (true, false, true));
    let absent = bed.by(OTHER, &who, way(closed, "absent"));
    assert!(matches!(absent, Err(error) if error.code == Code::NotFound));

    let wish = LayoutWish { stripe_size: Some(1 << 16), stripe_count: None };
    for request in [
        create("a/new", OpenMode::WRITE),
        MetaRequest::Open { ino: file, open: OpenMode::WRITE },
        MetaRequest::OpenAt { place: at("a/f"), open: OpenMode::WRITE },
        chmod(file, 0o600),
        MetaRequest::BeginTruncate { ino: file, size: 5, handle: None },
        MetaRequest::Link { ino: file, place: at("a/link") },
        unlink("a/g"),
        MetaRequest::MakeDirectory { place: at("a/new"), mode: 0o755 },
        MetaRequest::MakeNode { place: at("a/new"), kind: FileKind::Fifo, mode: 0o644, rdev: 0 },
        symlink("a/new", "f"),
        rename("a/f", "a/new"),
        rmdir("a/d"),
        xattr("user.new"),
        MetaRequest::RemoveXattr { ino: file, name: b"user.old".to_vec() },
        MetaRequest::SetLayout { ino: a, wish },
    ] {
        let text = format!("{request:?}");
        let busy = bed.fails(request.clone());
        assert_eq!(busy, Code::Busy, "{text}");
        // Who believes it himself knows what he does; but this one has not got the leave to.
        assert!(!calm(&bed), "{text}: somebody waits");
        bed.later(WAY_HELD_MS);
        assert!(bed.ask(request).is_ok(), "{text}");
        bed.later(CALM_MS);
        // Undone where it is in the way of what follows.
        for path in ["a/new", "a/link"] {
            match bed.look(path) {
                Ok(_) if path == "a/new" && text.contains("Rename") => {
                    bed.freed(rename("a/new", "a/f"));
                }
                Ok(found) if found.attributes.kind == FileKind::Directory => {
                    bed.freed(rmdir(path));
                }
                Ok(_) => drop(bed.freed(unlink(path))),
                Err(_) => {}
            }
        }
        bed.later(CALM_MS);
        assert!(calm(&bed), "{text}: nobody changes anything any more");
    }
    // What changes nothing waits for nobody.
    let reader = bed.opened(MetaRequest::Open { ino: file, open: OpenMode::READ });
    bed.close(&reader, None);
    bed.close(&writer, Some((writer.version, 7, 1)));
    bed.names("a");
    assert_eq!(looked(&bed, way(a, "open")), (true, true, true));
    // His own changes neither; but others then may have to wait for what he was told.
    assert!(bed.by(OTHER, &who, rename("a/open", "a/mine")).is_ok());
    assert_eq!(looked(&bed, way(a, "mine")), (true, true, true));
    // Kernels do not ask again who may walk where they believe a name.
    assert!(matches!(bed.by(OTHER, &who, chmod(a, 0o700)), Err(error) if error.code == Code::Busy));
    bed.later(WAY_HELD_MS);
    assert!(bed.by(OTHER, &who, chmod(a, 0o700)).is_ok());
}

#[test]
fn who_lists_a_directory_in_calm_is_told_what_is_in_it() {
    let mut bed = Bed::new();
    let who = bed.who.clone();
    let [a, closed] = ["a", "closed"].map(|name| bed.mkdir(name));
    bed.record(chmod(closed, 0o700));
    for name in ["a/f", "a/g", "closed/f"] {
        bed.file(name);
    }
    bed.mkdir("a/d");
    let writer = bed.create("a/open");
    let look = |bed: &Bed, ino, after: &str, limit| {
        let request = MetaRequest::LookThrough { ino, after: after.into(), limit, others: true };
        match bed.by(OTHER, &who, request) {
            Ok(MetaReply::LookedThrough { entries, records, names, end }) => {
                assert!(records.is_empty() || records.len() == entries.len());
                let settled = records.iter().filter(|record| record.unsettled.is_none());
                (entries.len(), settled.count(), names, end)
            }
            other => panic!("{other:?}"),
        }
    };
    // Somebody else has just changed something.
    assert_eq!(look(&bed, a, "", 9), (4, 0, false, true));
    bed.later(CALM_MS);
    assert_eq!(look(&bed, a, "", 9), (4, 3, true, true));
    assert_eq!(look(&bed, a, "d", 2), (2, 2, true, false));
    assert_eq!(look(&bed, closed, "", 9), (1, 1, false, true));
    let alone = MetaRequest::LookThrough { ino: closed, after: vec![], limit: 9, others: false };
    let names =
        matches!(bed.by(OTHER, &who, alone), Ok(MetaReply::LookedThrough { names: true, .. }));
    assert!(names, "nobody else goes by them");
    assert_eq!(bed.fails(unlink("a/g")), Code::Busy);
    assert_eq!(look(&bed, a, "", 9), (4, 0, false, true));
    bed.later(WAY_HELD_MS);
    bed.freed(unlink("a/g"));
    bed.close(&writer, None);
    let nobody = MetaRequest::LookThrough { ino: closed, after: vec![], limit: 9, others: true };
    let refused = bed.by(OTHER, &user(77), nobody);
    assert!(matches!(refused, Err(error) if error.code == Code::AccessDenied));
}

#[test]
fn directories_are_removed_when_empty() {
    let bed = Bed::new();
    bed.mkdir("a");
    let b = bed.mkdir("a/b");
    bed.file("file");
    assert_eq!(bed.fails(MetaRequest::MakeDirectory { place: at("a"), mode: 0 }), Code::Exists);
    assert_eq!(bed.fails(MetaRequest::MakeDirectory { place: at("/"), mode: 0 }), Code::Exists);
    for (path, code) in [
        ("a", Code::NotEmpty),
        ("file", Code::NotDirectory),
        ("absent", Code::NotFound),
        ("a/.", Code::Invalid),
        ("a/b/..", Code::NotEmpty),
        ("/", Code::InUse),
    ] {
        assert_eq!(bed.fails(rmdir(path)), code, "{path}");
    }
    assert_eq!(bed.fails(unlink("a")), Code::IsDirectory);
    assert_eq!(bed.fails(unlink("file/")), Code::NotDirectory);
    assert_eq!(bed.nlink("a"), 3);
    assert_eq!(bed.freed(rmdir("a/b/")), []);
    assert_eq!(bed.nlink("a"), 2);
    let inside = MetaRequest::MakeDirectory { place: Place::new(b, "x"), mode: 0o755 };
    assert_eq!(bed.fails(inside), Code::NotFound);
    bed.freed(rmdir("a"));
    assert_eq!(bed.nlink(""), 2);
    assert_eq!(bed.names(""), ["file"]);
}

#[test]
fn renaming_replaces_moves_and_refuses() {
    let bed = Bed::new();
    let a = bed.mkdir("a");
    let b = bed.mkdir("a/b");
    bed.mkdir("c");
    let x = bed.file("x");
    let y = bed.file("y");
    assert_eq!(bed.freed(rename("x", "y")), [y], "what was replaced is freed");
    assert_eq!(bed.ino("y"), x);
    assert_eq!(bed.fails(lookup("x", false)), Code::NotFound);
    for (from, to, code) in [
        ("a", "a/b/into", Code::Invalid),
        ("a", "a/into", Code::Invalid),
        ("a/b", "a", Code::NotEmpty),
        ("c", "a", Code::NotEmpty),
        ("c", "y", Code::NotDirectory),
        ("y", "c", Code::IsDirectory),
        ("absent", "z", Code::NotFound),
        ("y", "absent/z", Code::NotFound),
        ("a/.", "z", Code::InUse),
        ("y/", "z", Code::NotDirectory),
        ("y", "z/", Code::NotDirectory),
    ] {
        assert_eq!(bed.fails(rename(from, to)), code, "{from} {to}");
    }
    bed.freed(rename("a/b", "c"));
    assert_eq!((bed.ino("c"), bed.ino("c/..")), (b, Ino::ROOT));
    assert_eq!((bed.nlink("a"), bed.nlink(""), bed.nlink("c")), (2, 4, 2));
    bed.freed(rename("c", "a/c"));
    assert_eq!((bed.nlink("a"), bed.nlink(""), bed.ino("a/c/..")), (3, 3, a));
    // Two names of one file: nothing happens. One name onto itself: neither.
    bed.record(MetaRequest::Link { ino: x, place: at("x2") });
    assert_eq!(bed.freed(rename("y", "x2")), []);
    assert_eq!(bed.freed(rename("y", "y")), []);
    assert_eq!((bed.ino("y"), bed.ino("x2"), bed.nlink("y")), (x, x, 2));
    let careful = |from, to| MetaRequest::Rename {
        from: at(from),
        to: at(to),
        no_replace: true,
        exchange: false,
    };
    assert_eq!(bed.fails(careful("y", "x2")), Code::Exists);
    assert_eq!(bed.fails(careful("y", "y")), Code::Exists);
    bed.freed(careful("y", "z"));
    assert_eq!(bed.names(""), ["a", "x2", "z"]);
}

#[test]
fn exchanging_names() {
    let bed = Bed::new();
    bed.mkdir("a");
    let sub = bed.mkdir("a/sub");
    let file = bed.file("file");
    bed.freed(exchange("a/sub", "file"));
    assert_eq!((bed.ino("a/sub"), bed.ino("file")), (file, sub));
    assert_eq!((bed.nlink("a"), bed.nlink(""), bed.ino("file/..")), (2, 4, Ino::ROOT));
    assert_eq!(bed.fails(exchange("a", "absent")), Code::NotFound);
    bed.mkdir("a/deep");
    assert_eq!(bed.fails(exchange("a", "a/deep")), Code::Invalid);
    assert_eq!(bed.fails(exchange("a", "a/absent")), Code::NotFound);
    assert_eq!(bed.fails(exchange("a/deep", "a")), Code::Invalid);
    let both =
        MetaRequest::Rename { from: at("a"), to: at("file"), no_replace: true, exchange: true };
    assert_eq!(bed.fails(both), Code::Invalid);
    assert_eq!(bed.nlink("a"), 3);
}

#[test]
fn moving_a_directory_needs_leave_to_write_it() {
    let bed = Bed::new();
    for path in ["from", "to"] {
        let ino = bed.mkdir(path);
        bed.record(chmod(ino, 0o777));
    }
    bed.mkdir("from/alices");
    let bob = user(2000);
    let moved = rename("from/alices", "to/alices");
    assert_eq!(bed.by(CLIENT, &bob, moved).unwrap_err().code, Code::AccessDenied);
    assert!(bed.by(CLIENT, &bob, rename("from/alices", "from/renamed")).is_ok());
}

#[test]
fn listing_goes_on_behind_a_name() {
    let bed = Bed::new();
    let dir = bed.mkdir("dir");
    for name in ["b", "a", "a\u{1}", "ab", "c"] {
        bed.file(&format!("dir/{name}"));
    }
    bed.mkdir("dir2");
    let list = |after: &str, limit, attributes| MetaRequest::List {
        ino: dir,
        after: after.into(),
        limit,
        attributes,
    };
    let Ok(MetaReply::Entries { entries, records, end }) = bed.ask(list("", 2, true)) else {
        panic!("entries")
    };
    let names: Vec<&[u8]> = entries.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!((names, end), (vec![&b"a"[..], b"a\x01"], false));
    assert_eq!(records.len(), 2);
    assert_eq!(records[0].attributes.ino, entries[0].ino);
    let Ok(MetaReply::Entries { entries, records, end }) = bed.ask(list("a\u{1}", 3, false)) else {
        panic!("entries")
    };
    assert_eq!((entries.len(), records.len(), end), (3, 0, true));
    assert_eq!(
        bed.fails(MetaRequest::List {
            ino: bed.ino("dir/a"),
            after: vec![],
            limit: 1,
            attributes: false
        }),
        Code::NotDirectory
    );
}

#[test]
fn an_answer_with_a_large_directory_fits_a_frame() {
    let now = Now { mono_ms: 0, wall: WallTime(1) };
    let key = CapabilityKey::from_bytes(KEY);
    let store = Box::new(MemoryStore::new(1 << 28));
    // So many targets that each unsettled file's record takes kilobytes.
    let service = run(MetaService::open(store, key, &map(600, 1), Timing::default(), now));
    let bed = Bed { service: service.unwrap(), now, who: user(1000) };
    for i in 0..200 {
        let opened = bed.create(&format!("{i}"));
        assert_eq!(opened.layout.groups.len(), COLUMNS_MAX);
        let again = bed.create(&format!("{i}"));
        let kept = crate::wire::encode(&MetaReply::Opened(Box::new(again))).len();
        assert!(kept <= crate::config::KEPT_REPLY_BYTES_MAX, "{kept} bytes");
    }
    let (mut after, mut count) = (Vec::new(), 0);
    loop {
        let list = MetaRequest::List { ino: Ino::ROOT, after, limit: 1024, attributes: true };
        let reply = bed.ask(list).unwrap();
        assert!(crate::wire::encode(&reply).len() <= BODY_BYTES_MAX);
        let MetaReply::Entries { entries, end, .. } = reply else { panic!("entries") };
        count += entries.len();
        if end {
            break;
        }
        after = entries.last().unwrap().name.clone();
    }
    assert_eq!(count, 200);
}

#[test]
fn unlinked_open_files_stay_until_their_last_handle() {
    let bed = Bed::new();
    let writer = bed.create("file");
    let ino = writer.record.attributes.ino;
    let reader = bed.open(ino, OpenMode::READ);
    assert_eq!(bed.freed(unlink("file")), []);
    let record = bed.record(MetaRequest::Attributes { ino });
    assert_eq!(record.attributes.nlink, 0);
    assert_eq!(bed.fails(MetaRequest::Link { ino, place: at("again") }), Code::NotFound);
    let again = bed.open(ino, OpenMode::READ);
    assert_eq!(bed.close(&writer, Some((writer.version, 5, 5))), []);
    assert_eq!(bed.close(&again, None), []);
    assert_eq!(bed.close(&reader, None), [ino]);
    assert_eq!(bed.fails(MetaRequest::Attributes { ino }), Code::NotFound);
    assert_eq!(bed.fails(MetaRequest::Open { ino, open: OpenMode::READ }), Code::NotFound);
}

#[test]
fn garbage_is_offered_until_it_is_reported_freed() {
    let mut bed = Bed::new();
    let ino = bed.file("file");
    assert_eq!(bed.freed(unlink("file")), [ino]);
    assert_eq!(bed.freed(MetaRequest::KeepAlive), [], "its client has just been told");
    bed.later(GARBAGE_RETRY_MS);
    assert_eq!(bed.freed(MetaRequest::KeepAlive), [ino]);
    assert_eq!(bed.freed(MetaRequest::KeepAlive), [], "not to everybody at once");
    bed.later(GARBAGE_RETRY_MS);
    bed.done(MetaRequest::Reaped { inos: vec![ino] });
    assert_eq!(bed.freed(MetaRequest::KeepAlive), []);
    bed.done(MetaRequest::Reaped { inos: vec![ino] });
    let many = MetaRequest::Reaped { inos: vec![Ino(9); REAP_BATCH_MAX + 1] };
    assert_eq!(bed.fails(many), Code::TooMany);
    // More than one answer's worth: each is offered once before any is again.
    let mut inos: Vec<Ino> = (0..600).map(|i| bed.file(&format!("{i}"))).collect();
    for i in 0..600 {
        bed.freed(unlink(&format!("{i}")));
    }
    bed.later(GARBAGE_RETRY_MS);
    let mut offered = Vec::new();
    for _ in 0..3 {
        offered.extend(bed.freed(MetaRequest::KeepAlive));
    }
    offered.sort();
    inos.sort();
    assert_eq!(offered, inos);
}

#[test]
fn a_silent_client_loses_its_handles() {
    let mut bed = Bed::new();
    let writer = bed.create("file");
    let ino = writer.record.attributes.ino;
    let doomed = bed.create("doomed");
    bed.freed(unlink("doomed"));
    let lease = Timing::default().lease_ms;
    bed.later(lease);
    run(bed.service.expire_now(bed.now)).unwrap();
    bed.opened(MetaRequest::Renew { handle: writer.handle });
    bed.later(lease + 1);
    bed.service.client_heard(OTHER, bed.now);
    run(bed.service.expire_now(bed.now)).unwrap();
    assert_eq!(bed.fails(MetaRequest::Renew { handle: writer.handle }), Code::BadHandle);
    let unsettled = bed.record(MetaRequest::Attributes { ino }).unsettled.unwrap();
    assert!(!unsettled.settles, "its capability is still good: it may wake up and write");
    assert_eq!(bed.freed(MetaRequest::KeepAlive), []);
    bed.later(Timing::default().capability_ms);
    bed.service.client_heard(OTHER, bed.now);
    run(bed.service.expire_now(bed.now)).unwrap();
    assert!(bed.service.live.is_idle());
    let unsettled = bed.record(MetaRequest::Attributes { ino }).unsettled.unwrap();
    assert!(unsettled.settles, "whoever asks the targets now can tell");
    assert_eq!(bed.freed(MetaRequest::KeepAlive), [doomed.record.attributes.ino]);
    // An orderly end does the same at once.
    let third = bed.create("third");
    bed.freed(unlink("third"));
    bed.service.client_gone(CLIENT);
    run(bed.service.expire_now(bed.now)).unwrap();
    assert_eq!(bed.freed(MetaRequest::KeepAlive), [third.record.attributes.ino]);
    // A writer that closes without knowing what became of his writes may yet be heard of.
    let unsure = bed.create("unsure");
    let ino = unsure.record.attributes.ino;
    let close = MetaRequest::Close { handle: unsure.handle, settlement: None, unsure: true };
    assert_eq!(bed.freed(close), []);
    assert_eq!(bed.fails(MetaRequest::Renew { handle: unsure.handle }), Code::BadHandle);
    assert!(!bed.record(MetaRequest::Attributes { ino }).unsettled.unwrap().settles);
    bed.later(Timing::default().capability_ms);
    bed.service.client_heard(OTHER, bed.now);
    run(bed.service.expire_now(bed.now)).unwrap();
    assert!(bed.record(MetaRequest::Attributes { ino }).unsettled.unwrap().settles);
}

/// A store that outlives a service, and knows whether there is something that was not saved.
struct Shared {
    store: Arc<MemoryStore>,
    unsaved: Arc<AtomicBool>,
}

impl MetaStore for Shared {
    fn get<'a>(&'a self, key: &'a [u8]) -> store::Answer<'a, Option<store::Versioned>> {
        self.store.get(key)
    }

    fn range<'a>(
        &'a self,
        start: &'a [u8],
        end: &'a [u8],
        limit: usize,
    ) -> store::Answer<'a, Vec<store::Item>> {
        self.store.range(start, end, limit)
    }

    fn commit(&self, batch: Batch) -> store::Answer<'_, Outcome> {
        self.unsaved.store(true, Ordering::Relaxed);
        self.store.commit(batch)
    }

    fn sync(&self) -> store::Answer<'_, ()> {
        self.unsaved.store(false, Ordering::Relaxed);
        store::Answer::ready(Ok(()))
    }

    fn usage(&self) -> store::Usage {
        self.store.usage()
    }
}

/// Opening for writing by a path was not: after a crash the file could count as settled, with the size
/// that it had before, though bytes behind that had been written and synced.
#[test]
fn what_was_changed_is_saved_before_it_is_answered() {
    let unsaved = Arc::new(AtomicBool::new(false));
    let store = Arc::new(MemoryStore::new(1 << 24));
    let store = Box::new(Shared { store, unsaved: unsaved.clone() });
    let key = CapabilityKey::from_bytes(KEY);
    let now = Now { mono_ms: 100_000, wall: WallTime(1_000_000) };
    let service = run(MetaService::open(store, key, &map(4, 1), Timing::default(), now)).unwrap();
    let bed = Bed { service, now, who: user(1000) };
    let ask = |request: MetaRequest| {
        let text = format!("{request:?}");
        let reply = bed.ask(request).unwrap();
        assert!(!unsaved.load(Ordering::Relaxed), "{text}");
        reply
    };
    ask(MetaRequest::MakeDirectory { place: at("d"), mode: 0o755 });
    ask(create("d/f", OpenMode::WRITE));
    let ino = bed.ino("d/f");
    let truncate = OpenMode { truncate: true, ..OpenMode::WRITE };
    for open in [OpenMode::WRITE, truncate] {
        ask(MetaRequest::Open { ino, open });
        ask(MetaRequest::OpenAt { place: at("d/f"), open });
    }
    ask(chmod(ino, 0o600));
    ask(MetaRequest::BeginTruncate { ino, size: 0, handle: None });
    ask(MetaRequest::Link { ino, place: at("d/l") });
    ask(rename("d/l", "d/m"));
    ask(symlink("d/s", "f"));
    for name in ["d/s", "d/m", "d/f"] {
        ask(unlink(name));
    }
    ask(rmdir("d"));
}

#[test]
fn a_restarted_service_finds_what_was_left() {
    let store = Arc::new(MemoryStore::new(1 << 24));
    let start = || {
        let key = CapabilityKey::from_bytes(KEY);
        let now = Now { mono_ms: 100_000, wall: WallTime(1_000_000) };
        let store = Box::new(Shared { store: store.clone(), unsaved: Arc::default() });
        let service = run(MetaService::open(store, key, &map(1, 1), Timing::default(), now));
        Bed { service: service.unwrap(), now, who: user(1000) }
    };
    let bed = start();
    let orphan = bed.create("orphan");
    bed.freed(unlink("orphan"));
    let garbage = bed.file("garbage");
    bed.freed(unlink("garbage"));
    let open = bed.create("open");
    let inodes = bed.service.fill().1;
    let mut bed = start();
    assert_eq!(bed.service.fill().1, inodes);
    // What the earlier life told clients to believe is let be.
    assert_eq!(bed.fails(create("fresh", OpenMode::WRITE)), Code::Busy);
    bed.later(WAY_HELD_MS);
    assert!(bed.look("open").unwrap().unsettled.unwrap().settles);
    assert_eq!(bed.fails(MetaRequest::Renew { handle: open.handle }), Code::BadHandle);
    let fresh = bed.create("fresh");
    assert!(fresh.handle > open.handle, "handles are unique over lives");
    assert!(fresh.record.attributes.ino > open.record.attributes.ino);
    run(bed.service.expire_now(bed.now)).unwrap();
    let mut offered = bed.freed(MetaRequest::KeepAlive);
    offered.sort();
    assert_eq!(offered, [orphan.record.attributes.ino, garbage]);
}

#[test]
fn appends_are_placed_one_behind_the_other() {
    let bed = Bed::new();
    let writer = bed.create("file");
    let ino = writer.record.attributes.ino;
    let reserve_as = |handle, length, floor, sole| {
        let request = MetaRequest::ReserveAppend { handle, ino, length, floor, sole };
        match bed.ask(request) {
            Ok(MetaReply::Reserved { offset, sole }) => Ok((offset, sole)),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.code),
        }
    };
    let reserve = |handle, length, floor| {
        let (offset, _) = reserve_as(handle, length, floor, None)?;
        Ok(offset.expect("who has asked the targets gets a place"))
    };
    let second = bed.open(ino, OpenMode::WRITE);
    assert_eq!(reserve(writer.handle, 10, 100), Ok(100));
    assert_eq!(reserve(second.handle, 5, 100), Ok(110));
    assert_eq!(reserve(writer.handle, 1, 200), Ok(200));
    let release = |offset, length| {
        let handle = writer.handle;
        bed.ask(MetaRequest::ReleaseAppend { handle, ino, offset, length }).expect("handle");
    };
    release(110, 5);
    assert_eq!(reserve(second.handle, 9, 100), Ok(201), "others' places are behind it");
    release(201, 9);
    assert_eq!(reserve(second.handle, 9, 100), Ok(201), "what was refused leaves no hole");
    let (cut, version) = bed.truncate(ino, 3, None);
    assert_eq!(reserve(writer.handle, 1, 3), Ok(3), "a truncation forgets reservations");
    assert_eq!(reserve(writer.handle, u64::MAX, 3), Err(Code::TooLarge));
    let reader = bed.open(ino, OpenMode::READ);
    assert_eq!(reserve(reader.handle, 1, 3), Err(Code::BadHandle));
    // Nobody's books count as long as there are two, and the second's only for what has not changed since.
    bed.done(MetaRequest::EndTruncate { ino, epoch: cut.epoch });
    assert_eq!(reserve_as(writer.handle, 1, 3, None), Ok((Some(4), None)));
    assert_eq!(reserve_as(writer.handle, 1, 5, Some(version)), Ok((None, None)));
    bed.close(&writer, None);
    let sole = Some(version);
    assert_eq!(reserve_as(second.handle, 1, 3, None), Ok((Some(5), sole)));
    assert_eq!(reserve_as(second.handle, 1, 6, sole), Ok((Some(6), sole)));
    let other = bed.open(ino, OpenMode::WRITE);
    bed.close(&other, None);
    let changed = Some(version + 1);
    assert_eq!(reserve_as(second.handle, 1, 7, sole), Ok((None, changed)));
    assert_eq!(reserve_as(second.handle, 1, 7, None), Ok((Some(7), changed)));
    bed.truncate(ino, 3, None);
    assert_eq!(reserve_as(second.handle, 1, 8, changed), Ok((None, None)), "it is being cut");
    bed.close(&second, None);
    let third = bed.open(ino, OpenMode::WRITE);
    assert_eq!(reserve(third.handle, 1, 2), Ok(2), "as do the last writer's end");
}

#[test]
fn layouts_come_from_file_directory_or_pool() {
    let bed = Bed::new();
    let dir = bed.mkdir("dir");
    let wish = |stripe_size, stripe_count| LayoutWish { stripe_size, stripe_count };
    let set = |ino, wish| MetaRequest::SetLayout { ino, wish };
    let shape = |opened: &Opened| (opened.layout.stripe_size, opened.layout.groups.len());
    assert_eq!(shape(&bed.create("file")), (1 << 20, 4));
    bed.ask(set(dir, wish(Some(65536), Some(2)))).unwrap();
    assert_eq!(shape(&bed.create("dir/file")), (65536, 2));
    bed.mkdir("dir/sub");
    assert_eq!(shape(&bed.create("dir/sub/file")), (65536, 2), "the wish is inherited");
    let mine = MetaRequest::Create {
        place: at("dir/mine"),
        mode: 0o644,
        exclusive: true,
        open: OpenMode::WRITE,
        layout: wish(None, Some(0)),
    };
    assert_eq!(shape(&bed.opened(mine)), (65536, 4));
    for size in [0, 4095, 4097, 1 << 31] {
        assert_eq!(bed.fails(set(dir, wish(Some(size), None))), Code::Invalid);
    }
    let ino = bed.ino("file");
    assert_eq!(bed.fails(set(ino, wish(None, None))), Code::InUse);
    let node =
        MetaRequest::MakeNode { place: at("node"), kind: FileKind::Regular, mode: 0o644, rdev: 0 };
    let node = bed.record(node).attributes.ino;
    let reply = bed.ask(set(node, wish(Some(8192), Some(1)))).unwrap();
    let MetaReply::Layout { layout: Some(layout), .. } = reply else { panic!("{reply:?}") };
    assert_eq!((layout.stripe_size, layout.groups.len(), layout.generation), (8192, 1, 2));
    assert_eq!(
        bed.ask(MetaRequest::Layout { ino: dir }),
        Ok(MetaReply::Layout { layout: None, wish: wish(Some(65536), Some(2)) })
    );
    let bob = bed.by(CLIENT, &user(2000), set(dir, wish(None, None)));
    assert_eq!(bob.unwrap_err().code, Code::NotPermitted);
    // Small files fall on every target alike, and neighbours in a layout are of different servers.
    let mut firsts = [0; 4];
    for i in 0..40 {
        let layout = bed.create(&format!("dir/small{i}")).layout;
        let (first, second) = (layout.member(0).target.0, layout.member(1).target.0);
        assert_ne!(first / 2, second / 2);
        firsts[first as usize] += 1;
    }
    assert_eq!(firsts, [10; 4]);
}

#[test]
fn targets_whose_disks_failed_get_no_new_files() {
    let bed = Bed::new();
    let old = bed.create("old").layout;
    let bad = old.member(0);
    let of_another_life = Member { incarnation: Incarnation(!bad.incarnation.0), ..bad };
    let tell = |member| run(bed.service.ride(CLIENT, &[Rider::Unfit { member }])).map(|_| ());
    assert_eq!(tell(of_another_life), Ok(()));
    assert_eq!(bed.create("all").layout.groups.len(), 4);
    // Twice: who hears of it is not asked whether others have.
    assert_eq!((tell(bad), tell(bad)), (Ok(()), Ok(())));
    for i in 0..8 {
        let layout = bed.create(&format!("new{i}")).layout;
        let columns = 0..layout.stripe_count();
        assert_eq!(columns.len(), 3);
        assert!(columns.into_iter().all(|column| layout.member(column) != bad));
    }
    assert_eq!(bed.service.unfit().into_iter().collect::<Vec<_>>(), [bad.target]);
    // With none left, all are as good as any.
    (0..4).for_each(|column| tell(old.member(column)).unwrap());
    assert_eq!(bed.create("last").layout.groups.len(), 4);
}

#[test]
fn extended_attributes() {
    let bed = Bed::new();
    let ino = bed.file("file");
    let set = |ino, name: &str, create, replace| MetaRequest::SetXattr {
        ino,
        name: name.into(),
        value: b"value".to_vec(),
        create,
        replace,
    };
    let get = |ino, name: &str| MetaRequest::GetXattr { ino, name: name.into() };
    let remove = |ino, name: &str| MetaRequest::RemoveXattr { ino, name: name.into() };
    assert_eq!(bed.fails(get(ino, "user.a")), Code::NoAttribute);
    assert_eq!(bed.fails(set(ino, "user.a", false, true)), Code::NoAttribute);
    bed.done(set(ino, "user.b", false, false));
    bed.done(set(ino, "user.a", true, false));
    assert_eq!(bed.fails(set(ino, "user.a", true, false)), Code::Exists);
    assert_eq!(bed.ask(get(ino, "user.a")), Ok(MetaReply::Text(b"value".to_vec())));
    let list = || bed.ask(MetaRequest::ListXattr { ino });
    assert_eq!(list(), Ok(MetaReply::Text(b"user.a\0user.b\0".to_vec())));
    bed.done(remove(ino, "user.a"));
    assert_eq!(bed.fails(remove(ino, "user.a")), Code::NoAttribute);
    assert_eq!(list(), Ok(MetaReply::Text(b"user.b\0".to_vec())));
    bed.record(symlink("link", "x"));
    assert_eq!(bed.fails(set(bed.ino("link"), "user.a", false, false)), Code::NotPermitted);
    assert_eq!(bed.fails(set(ino, "trusted.a", false, false)), Code::NotPermitted);
    assert_eq!(bed.fails(set(ino, "system.posix_acl_access", false, false)), Code::Unsupported);
    assert_eq!(bed.fails(set(ino, "", false, false)), Code::Range);
    assert_eq!(bed.fails(set(ino, "user.", false, false)), Code::Invalid);
    let large = MetaRequest::SetXattr {
        ino,
        name: b"user.large".to_vec(),
        value: vec![0; crate::config::XATTR_BYTES_MAX + 1],
        create: false,
        replace: false,
    };
    assert_eq!(bed.fails(large), Code::TooMany);
    let bob = bed.by(CLIENT, &user(2000), set(ino, "user.c", false, false));
    assert_eq!(bob.unwrap_err().code, Code::AccessDenied);
    // In a directory for all, its attributes are the owner's alone.
    let drop = bed.record(MetaRequest::MakeDirectory { place: at("drop"), mode: 0o1777 });
    let drop = drop.attributes.ino;
    bed.done(set(drop, "user.a", false, false));
    let bob = bed.by(CLIENT, &user(2000), set(drop, "user.b", false, false));
    assert_eq!(bob.unwrap_err().code, Code::NotPermitted);
    // What only root reads, others do not even see.
    let root = bed.by(CLIENT, &user(0), set(ino, "trusted.a", false, false));
    assert_eq!(root, Ok(MetaReply::Done));
    assert_eq!(list(), Ok(MetaReply::Text(b"user.b\0".to_vec())));
    let root = bed.by(CLIENT, &user(0), MetaRequest::ListXattr { ino });
    assert_eq!(root, Ok(MetaReply::Text(b"trusted.a\0user.b\0".to_vec())));
    assert_eq!(bed.by(CLIENT, &user(0), remove(ino, "trusted.a")), Ok(MetaReply::Done));
    for i in 1..attributes::XATTRS_MAX {
        bed.done(set(ino, &format!("user.{i}"), false, false));
    }
    assert_eq!(bed.fails(set(ino, "user.more", false, false)), Code::NoMetadataSpace);
    bed.freed(unlink("file"));
    bed.done(MetaRequest::Reaped { inos: vec![ino] });
    let (start, end) = records::xattrs_of(ino);
    assert_eq!(run(bed.service.store.range(&start, &end, 9)), Ok(vec![]), "they go with the file");
}

#[test]
fn full_metadata_memory_refuses_new_files_and_still_removes() {
    let bed = Bed::with_memory(256 * 1024);
    let mut count = 0;
    let failure = loop {
        let path = format!("file{count}");
        match bed.ask(create(&path, OpenMode::WRITE)) {
            Ok(MetaReply::Opened(opened)) => {
                bed.close(&opened, Some((opened.version, 1 << 40, 1 << 60)));
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
        count += 1;
    };
    assert_eq!(failure.code, Code::NoMetadataSpace);
    assert_eq!(failure.errno(), 28);
    assert!(count > 200, "{count} files in 256 KiB");
    // A directory takes less than a file: one may still have fitted.
    let mkdir = |path: &str| MetaRequest::MakeDirectory { place: at(path), mode: 0o755 };
    let directories: Vec<String> =
        (0..10).map(|i| format!("d{i}")).take_while(|path| bed.ask(mkdir(path)).is_ok()).collect();
    assert!(directories.len() < 3);
    assert_eq!(bed.fails(mkdir("another")), Code::NoMetadataSpace);
    // What exists can still be opened, written, settled, cut, and removed while open.
    let held = bed.open(bed.ino("file0"), OpenMode::READ_WRITE);
    let (pending, version) = bed.truncate(held.record.attributes.ino, 5, Some(held.handle));
    bed.done(MetaRequest::EndTruncate { ino: held.record.attributes.ino, epoch: pending.epoch });
    assert_eq!(bed.freed(unlink("file0")), []);
    assert_eq!(bed.close(&held, Some((version, 5, 1))).len(), 1);
    for i in 1..count {
        let inos = bed.freed(unlink(&format!("file{i}")));
        bed.done(MetaRequest::Reaped { inos });
    }
    bed.done(MetaRequest::Reaped { inos: vec![held.record.attributes.ino] });
    for path in directories {
        bed.freed(rmdir(&path));
    }
    let reply = bed.ask(MetaRequest::Fill).unwrap();
    let MetaReply::Fill { memory, used, inodes } = reply else { panic!("{reply:?}") };
    assert_eq!((memory, inodes), (256 * 1024, 1));
    assert!(used < 1024, "{used} bytes for the root alone");
    bed.create("again");
}

#[test]
fn what_a_place_names_is_opened_in_one_request() {
    let bed = Bed::new();
    let made = bed.create("file");
    bed.ask(MetaRequest::Close { handle: made.handle, settlement: None, unsure: false }).unwrap();
    bed.ask(MetaRequest::Symlink { place: at("link"), text: b"file".to_vec() }).unwrap();
    bed.ask(MetaRequest::MakeDirectory { place: at("dir"), mode: 0o755 }).unwrap();
    let open = |path: &str| MetaRequest::OpenAt { place: at(path), open: OpenMode::READ };
    for path in ["file", "link"] {
        let Ok(MetaReply::Opened(opened)) = bed.ask(open(path)) else { panic!("{path}") };
        assert_eq!(opened.record.attributes.ino, made.record.attributes.ino);
        assert!(!opened.created);
    }
    assert_eq!(bed.fails(open("none")), Code::NotFound);
    assert_eq!(bed.fails(open("dir")), Code::IsDirectory);
    assert_eq!(bed.fails(open("file/below")), Code::NotDirectory);
    let neither = MetaRequest::OpenAt { place: at("file"), open: OpenMode::default() };
    assert_eq!(bed.fails(neither), Code::Invalid);
}

#[test]
fn counters_are_everybodys_and_end_with_their_handle() {
    let bed = Bed::new();
    let opened = bed.create("file");
    let (handle, ino) = (opened.handle, opened.record.attributes.ino);
    let count = |client, number, add| {
        let request = MetaRequest::Count { handle, ino, number, add };
        match bed.by(client, &bed.who, request) {
            Ok(MetaReply::Counted { before }) => Ok(before),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.code),
        }
    };
    assert_eq!(count(CLIENT, 0, 5), Ok(0));
    assert_eq!(count(OTHER, 0, 7), Ok(5));
    assert_eq!(count(CLIENT, 0, 2u64.wrapping_neg()), Ok(12));
    assert_eq!(count(CLIENT, 0, 0), Ok(10));
    for number in 1..=crate::config::COUNTERS_PER_HANDLE_MAX as u32 {
        assert_eq!(count(OTHER, number, 1), Ok(0));
    }
    assert_eq!(count(CLIENT, 0, 1), Err(Code::Invalid), "driven out");
    assert_eq!(count(CLIENT, 1, 1), Ok(1));
    let elsewhere = MetaRequest::Count { handle, ino: Ino(ino.0 + 1), number: 1, add: 1 };
    assert_eq!(bed.fails(elsewhere), Code::BadHandle);
    bed.ask(MetaRequest::Close { handle, settlement: None, unsure: false }).unwrap();
    assert_eq!(count(CLIENT, 1, 1), Err(Code::BadHandle));
    assert!(bed.service.live.is_idle());
}
