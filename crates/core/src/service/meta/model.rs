//! Random histories of a few clients, compared with a plain tree, one request at a time.

use super::records::{Target, name_of, xattrs_of};
use super::store::{Answer, Item, Usage, Versioned, footprint};
use super::tests::{KEY, map, run, user};
use super::*;
use crate::types::Now;
use crate::wire::meta::{OpenMode, Place, Settlement};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A seeded source of choices (xorshift64*).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A store that makes its callers wait, and conflicts without a reason.
struct Unruly {
    store: Arc<MemoryStore>,
    dice: Mutex<Dice>,
    /// Whether it also waits.
    waits: bool,
}

/// Waits for some polls.
struct Pause(usize);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        Poll::Pending
    }
}

impl Unruly {
    fn pause(&self) -> Pause {
        let mut dice = self.dice.lock().unwrap();
        Pause(if self.waits { dice.below(4) } else { 0 })
    }

    fn conflicts(&self) -> bool {
        self.dice.lock().unwrap().one_in(4)
    }
}

impl MetaStore for Unruly {
    fn get<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Option<Versioned>> {
        let (before, after) = (self.pause(), self.pause());
        Answer::Later(Box::pin(async move {
            before.await;
            let answer = self.store.get(key).await;
            after.await;
            answer
        }))
    }

    fn range<'a>(&'a self, start: &'a [u8], end: &'a [u8], limit: usize) -> Answer<'a, Vec<Item>> {
        let (before, after) = (self.pause(), self.pause());
        Answer::Later(Box::pin(async move {
            before.await;
            let answer = self.store.range(start, end, limit).await;
            after.await;
            answer
        }))
    }

    fn commit(&self, batch: Batch) -> Answer<'_, Outcome> {
        let (before, after) = (self.pause(), self.pause());
        Answer::Later(Box::pin(async move {
            before.await;
            let answer = match !batch.conditions.is_empty() && self.conflicts() {
                true => Ok(Outcome::Conflict),
                false => self.store.commit(batch).await,
            };
            after.await;
            answer
        }))
    }

    fn usage(&self) -> Usage {
        self.store.usage()
    }
}

pub(super) struct Bed {
    pub(super) service: MetaService,
    store: Arc<MemoryStore>,
    pub(super) now: Now,
}

impl Bed {
    pub(super) fn new(seed: u64, waits: bool) -> Bed {
        let store = Arc::new(MemoryStore::new(1 << 24));
        let unruly = Unruly { store: store.clone(), dice: Mutex::new(Dice::new(seed ^ 77)), waits };
        let now = Now { mono_ms: 100_000, wall: WallTime(1_000) };
        let key = CapabilityKey::from_bytes(KEY);
        let map = map(2, 2);
        let service = drive(MetaService::open(Box::new(unruly), key, &map, Timing::default(), now));
        Bed { service: service.unwrap(), store, now }
    }

    fn all(&self, tag: u8) -> Vec<Item> {
        let (start, end) = all_of(tag);
        run(self.store.range(&start, &end, usize::MAX)).unwrap()
    }

    /// What holds whenever no request is under way.
    pub(super) fn check(&self) {
        let inodes: BTreeMap<Ino, Inode> = self
            .all(b'i')
            .iter()
            .map(|item| (ino_of(&item.key).unwrap(), Inode::decode(&item.value).unwrap()))
            .collect();
        let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut subdirectories: BTreeMap<Ino, u32> = BTreeMap::new();
        for item in self.all(b'd') {
            let directory = ino_of(&item.key).unwrap();
            let target: Target = decode(&item.value, "a name").unwrap();
            assert!(inodes[&directory].is_directory(), "a name in what is no directory");
            assert_eq!(inodes[&target.ino].kind, target.kind);
            *names.entry(target.ino).or_default() += 1;
            if target.kind == FileKind::Directory {
                assert_eq!(inodes[&target.ino].parent, directory);
                *subdirectories.entry(directory).or_default() += 1;
            }
        }
        let orphans: BTreeSet<Ino> =
            self.all(b'o').iter().map(|item| ino_of(&item.key).unwrap()).collect();
        for (&ino, inode) in &inodes {
            let count = names.get(&ino).copied().unwrap_or(0);
            if inode.is_directory() {
                assert_eq!(count, u32::from(ino != Ino::ROOT), "names of directory {ino:?}");
                assert_eq!(inode.nlink, 2 + subdirectories.get(&ino).copied().unwrap_or(0));
                // Reachable: parents lead to the root.
                let (mut at, mut steps) = (ino, 0);
                while at != Ino::ROOT {
                    at = inodes[&at].parent;
                    steps += 1;
                    assert!(steps <= inodes.len(), "a ring of directories");
                }
            } else {
                assert_eq!(inode.nlink, count, "names of {ino:?}");
                assert_eq!(count == 0, orphans.contains(&ino), "{ino:?} nameless or orphan");
            }
            assert!(!inode.settled || self.service.live.writers(ino) == 0);
            assert!(!inode.settled || inode.truncation.is_none());
            let (start, end) = xattrs_of(ino);
            let xattrs = run(self.store.range(&start, &end, usize::MAX)).unwrap();
            assert_eq!(xattrs.len(), inode.xattrs as usize);
        }
        assert!(orphans.iter().all(|ino| inodes.contains_key(ino)));
        for item in self.all(b'g') {
            assert!(!inodes.contains_key(&ino_of(&item.key).unwrap()), "garbage that lives");
        }
        for item in self.all(b't') {
            assert!(inodes[&ino_of(&item.key).unwrap()].is_directory());
        }
        for item in self.all(b'x') {
            assert!(inodes.contains_key(&ino_of(&item.key).unwrap()), "an attribute of nothing");
            assert!(!name_of(&item.key).is_empty());
        }
        assert_eq!(self.service.fill().1, inodes.len() as u64);
        let everything = run(self.store.range(&[], &[255], usize::MAX)).unwrap();
        let used: u64 = everything.iter().map(|item| footprint(&item.key, &item.value)).sum();
        assert_eq!(self.store.usage().used, used);
    }

    pub(super) fn ask(&self, client: u64, request: MetaRequest) -> Result<MetaReply> {
        let who = user(1000);
        loop {
            let reply =
                drive(self.service.handle(self.now, ClientId(client), &who, request.clone()));
            match reply {
                Err(error) if error.code == Code::Busy => {}
                reply => return reply,
            }
        }
    }

    /// All clients go, everything is removed and freed: nothing must be left.
    pub(super) fn tear_down(mut self) {
        for client in 0..CLIENTS {
            self.service.client_gone(ClientId(client));
        }
        // What writers closed who were unsure of their writes counts as open until then.
        self.now.mono_ms += Timing::default().capability_ms;
        drive(self.service.expire_now(self.now)).unwrap();
        drive(self.service.expire_now(self.now)).unwrap();
        self.check();
        assert!(self.service.live.is_idle(), "a handle is left");
        assert!(self.all(b'o').is_empty(), "an orphan is left");
        let mut directories = vec![Ino::ROOT];
        let mut emptied = Vec::new();
        while let Some(ino) = directories.pop() {
            let list = MetaRequest::List { ino, after: vec![], limit: 1024, attributes: false };
            let MetaReply::Entries { entries, end: true, .. } = self.ask(0, list).unwrap() else {
                panic!("a small directory")
            };
            for entry in entries {
                let place = Place::new(ino, entry.name);
                if entry.kind == FileKind::Directory {
                    directories.push(entry.ino);
                    emptied.push(place);
                } else {
                    self.ask(0, MetaRequest::Unlink { place }).unwrap();
                }
            }
        }
        for place in emptied.into_iter().rev() {
            self.ask(0, MetaRequest::RemoveDirectory { place }).unwrap();
        }
        // The root stays, and may have been given an attribute.
        let name = b"user.x".to_vec();
        let _ = self.ask(0, MetaRequest::RemoveXattr { ino: Ino::ROOT, name });
        self.check();
        let garbage: BTreeSet<Ino> =
            self.all(b'g').iter().map(|item| ino_of(&item.key).unwrap()).collect();
        self.now.mono_ms += GARBAGE_RETRY_MS;
        let MetaReply::Garbage { reap, .. } = self.ask(0, MetaRequest::KeepAlive).unwrap() else {
            panic!("garbage")
        };
        let inos: Vec<Ino> = reap.iter().map(|reap| reap.ino).collect();
        assert_eq!(inos.iter().copied().collect::<BTreeSet<_>>(), garbage, "all is offered");
        self.ask(0, MetaRequest::Reaped { inos }).unwrap();
        let left = run(self.store.range(&[], &[255], usize::MAX)).unwrap();
        let tags: Vec<u8> = left.iter().map(|item| item.key[0]).collect();
        assert!(tags == b"cit" || tags == b"ci", "left over: {left:?}");
    }
}

/// Runs a future to its end by polling it.
fn drive<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

pub(super) const CLIENTS: u64 = 3;
const NAMES: &[&str] = &["a", "b", "c"];

pub(super) fn path(dice: &mut Dice) -> String {
    let mut path = NAMES[dice.below(NAMES.len())].to_owned();
    while dice.one_in(2) && path.len() < 5 {
        path = format!("{path}/{}", NAMES[dice.below(NAMES.len())]);
    }
    path
}

pub(super) fn place(path: &str) -> Place {
    Place::new(Ino::ROOT, path)
}

#[derive(Clone, Debug)]
enum Node {
    Directory(BTreeMap<String, usize>),
    File(Plain),
}

#[derive(Clone, Debug, Default)]
struct Plain {
    nlink: u32,
    /// The size if it is settled.
    size: Option<u64>,
    version: u64,
    pending: Option<(PendingModel, bool)>,
    objects: bool,
    ino: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct PendingModel {
    size: u64,
    epoch: u32,
    version: u64,
}

struct Open {
    client: u64,
    handle: u64,
    node: usize,
    write: bool,
}

/// The plain tree: node 0 is the root.
struct Model {
    nodes: BTreeMap<usize, Node>,
    next: usize,
    open: Vec<Open>,
    garbage: BTreeSet<u64>,
}

impl Model {
    fn new() -> Model {
        let nodes = BTreeMap::from([(0, Node::Directory(BTreeMap::new()))]);
        Model { nodes, next: 1, open: Vec::new(), garbage: BTreeSet::new() }
    }

    fn find(&self, path: &str) -> std::result::Result<usize, Code> {
        let mut at = 0;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let Node::Directory(names) = &self.nodes[&at] else { return Err(Code::NotDirectory) };
            at = *names.get(name).ok_or(Code::NotFound)?;
        }
        Ok(at)
    }

    /// The directory that holds a path's last name, that name, and what it leads to.
    fn spot<'a>(
        &self,
        path: &'a str,
    ) -> std::result::Result<(usize, &'a str, Option<usize>), Code> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.find(parent)?;
        let Node::Directory(names) = &self.nodes[&parent] else { return Err(Code::NotDirectory) };
        Ok((parent, name, names.get(name).copied()))
    }

    fn names(&mut self, directory: usize) -> &mut BTreeMap<String, usize> {
        match self.nodes.get_mut(&directory) {
            Some(Node::Directory(names)) => names,
            other => panic!("{other:?}"),
        }
    }

    fn file(&mut self, node: usize) -> &mut Plain {
        match self.nodes.get_mut(&node) {
            Some(Node::File(file)) => file,
            other => panic!("{other:?}"),
        }
    }

    fn is_directory(&self, node: usize) -> bool {
        matches!(self.nodes[&node], Node::Directory(_))
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.insert(self.next, node);
        self.next += 1;
        self.next - 1
    }

    fn writers(&self, node: usize) -> usize {
        self.open.iter().filter(|open| open.node == node && open.write).count()
    }

    /// Drops a file that has neither names nor handles. Answers what is to be freed.
    fn collect(&mut self, node: usize) -> Vec<u64> {
        let file = self.file(node).clone();
        if file.nlink > 0 || self.open.iter().any(|open| open.node == node) {
            return vec![];
        }
        self.nodes.remove(&node);
        match file.objects {
            true => {
                self.garbage.insert(file.ino);
                vec![file.ino]
            }
            false => vec![],
        }
    }

    fn inside(&self, node: usize, root: usize) -> bool {
        match &self.nodes[&root] {
            _ if node == root => true,
            Node::Directory(names) => names.values().any(|&below| self.inside(node, below)),
            Node::File(_) => false,
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> std::result::Result<Vec<u64>, Code> {
        let (from_parent, from_name, source) = self.spot(from)?;
        let (to_parent, to_name, target) = self.spot(to)?;
        let source = source.ok_or(Code::NotFound)?;
        if self.is_directory(source) && self.inside(to_parent, source) {
            return Err(Code::Invalid);
        }
        let mut freed = vec![];
        if let Some(target) = target {
            if target == source {
                return Ok(vec![]);
            }
            if self.is_directory(target) && self.inside(from_parent, target) {
                return Err(Code::NotEmpty);
            }
            match (self.is_directory(source), self.is_directory(target)) {
                (true, false) => return Err(Code::NotDirectory),
                (false, true) => return Err(Code::IsDirectory),
                (true, true) if !self.names(target).is_empty() => return Err(Code::NotEmpty),
                (true, true) => drop(self.nodes.remove(&target)),
                (false, false) => {
                    self.file(target).nlink -= 1;
                    freed = self.collect(target);
                }
            }
        }
        self.names(from_parent).remove(from_name);
        self.names(to_parent).insert(to_name.into(), source);
        Ok(freed)
    }
}

/// The service beside the model.
struct Pair {
    bed: Bed,
    model: Model,
    dice: Dice,
}

impl Pair {
    fn freed(reply: Result<MetaReply>) -> std::result::Result<Vec<u64>, Code> {
        match reply {
            Ok(MetaReply::Gone { reap, .. }) => Ok(reap.iter().map(|reap| reap.ino.0).collect()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.code),
        }
    }

    fn step(&mut self) {
        let client = self.dice.below(CLIENTS as usize) as u64;
        let name = path(&mut self.dice);
        match self.dice.below(12) {
            0 => self.make_directory(client, &name),
            1 | 2 => self.create(client, &name),
            3 => self.open(client, &name),
            4 => self.close(),
            5 => {
                let expected = self.model.spot(&name).and_then(|(parent, last, node)| {
                    let node = node.ok_or(Code::NotFound)?;
                    if self.model.is_directory(node) {
                        return Err(Code::IsDirectory);
                    }
                    self.model.names(parent).remove(last);
                    self.model.file(node).nlink -= 1;
                    Ok(self.model.collect(node))
                });
                let reply = self.bed.ask(client, MetaRequest::Unlink { place: place(&name) });
                assert_eq!(Pair::freed(reply), expected, "unlink {name}");
            }
            6 => {
                let expected = self.model.spot(&name).and_then(|(parent, last, node)| {
                    let node = node.ok_or(Code::NotFound)?;
                    if !self.model.is_directory(node) {
                        return Err(Code::NotDirectory);
                    }
                    if !self.model.names(node).is_empty() {
                        return Err(Code::NotEmpty);
                    }
                    self.model.names(parent).remove(last);
                    self.model.nodes.remove(&node);
                    Ok(vec![])
                });
                let request = MetaRequest::RemoveDirectory { place: place(&name) };
                assert_eq!(Pair::freed(self.bed.ask(client, request)), expected, "rmdir {name}");
            }
            7 => {
                let other = path(&mut self.dice);
                let expected = self.model.rename(&name, &other);
                let request = MetaRequest::Rename {
                    from: place(&name),
                    to: place(&other),
                    no_replace: false,
                    exchange: false,
                };
                let reply = Pair::freed(self.bed.ask(client, request));
                assert_eq!(reply, expected, "rename {name} {other}");
            }
            8 if self.dice.one_in(3) => self.create_unnamed(client, &name),
            8 => self.link(client, &name),
            9 => self.truncate(client, &name),
            10 => self.settle(client, &name),
            _ if self.dice.one_in(8) => self.client_gone(client),
            _ => {}
        }
    }

    fn make_directory(&mut self, client: u64, name: &str) {
        let expected = self.model.spot(name).and_then(|(parent, last, node)| {
            if node.is_some() {
                return Err(Code::Exists);
            }
            let node = self.model.add(Node::Directory(BTreeMap::new()));
            self.model.names(parent).insert(last.into(), node);
            Ok(())
        });
        let request = MetaRequest::MakeDirectory { place: place(name), mode: 0o755 };
        let reply = self.bed.ask(client, request).map(|_| ()).map_err(|error| error.code);
        assert_eq!(reply, expected, "mkdir {name}");
    }

    fn create(&mut self, client: u64, name: &str) {
        let write = !self.dice.one_in(4);
        let open = OpenMode { read: true, write, truncate: false };
        let layout = LayoutWish::default();
        let request =
            MetaRequest::Create { place: place(name), mode: 0o644, exclusive: false, open, layout };
        let reply = self.bed.ask(client, request).map_err(|error| error.code);
        match self.model.spot(name) {
            Err(code) => assert_eq!(reply, Err(code), "create {name}"),
            Ok((_, _, Some(node))) if self.model.is_directory(node) => {
                assert_eq!(reply, Err(Code::IsDirectory), "create {name}");
            }
            Ok((parent, last, node)) => {
                let Ok(MetaReply::Opened(opened)) = reply else { panic!("{reply:?}") };
                assert_eq!(opened.created, node.is_none());
                let node = node.unwrap_or_else(|| {
                    let ino = opened.record.attributes.ino.0;
                    let file = Plain { nlink: 1, size: Some(0), ino, ..Plain::default() };
                    let node = self.model.add(Node::File(file));
                    self.model.names(parent).insert(last.into(), node);
                    node
                });
                self.opened(client, node, write, &opened);
            }
        }
    }

    /// Makes a file without a name, of which the next step may be that it is given one.
    fn create_unnamed(&mut self, client: u64, name: &str) {
        let other = path(&mut self.dice);
        let directory =
            match self.bed.ask(client, MetaRequest::Lookup { place: place(name), follow: false }) {
                Ok(MetaReply::Found(record)) => record.attributes.ino,
                Ok(other) => panic!("{other:?}"),
                Err(_) => return,
            };
        let write = self.dice.one_in(2);
        let open = OpenMode { read: true, write, truncate: false };
        let layout = LayoutWish::default();
        let request = MetaRequest::CreateUnnamed { directory, mode: 0o644, open, layout };
        let reply = self.bed.ask(client, request).map_err(|error| error.code);
        if !self.model.is_directory(self.model.find(name).expect("it was found")) {
            assert_eq!(reply, Err(Code::NotDirectory), "create without a name in {name}");
            return;
        }
        let Ok(MetaReply::Opened(opened)) = reply else { panic!("{reply:?}") };
        let attributes = &opened.record.attributes;
        assert!(opened.created && attributes.nlink == 0);
        let file = Plain { nlink: 0, size: Some(0), ino: attributes.ino.0, ..Plain::default() };
        let node = self.model.add(Node::File(file));
        self.opened(client, node, write, &opened);
        if self.dice.one_in(2) {
            self.give_name(client, node, &other);
        }
    }

    fn open(&mut self, client: u64, name: &str) {
        let Ok(node) = self.model.find(name) else { return };
        if self.model.is_directory(node) {
            return;
        }
        let write = self.dice.one_in(2);
        let ino = Ino(self.model.file(node).ino);
        let open = OpenMode { read: true, write, truncate: false };
        let reply = self.bed.ask(client, MetaRequest::Open { ino, open });
        let Ok(MetaReply::Opened(opened)) = reply else { panic!("{reply:?}") };
        assert_eq!(opened.record.unsettled.is_some(), self.model.file(node).size.is_none());
        self.opened(client, node, write, &opened);
    }

    fn opened(
        &mut self,
        client: u64,
        node: usize,
        write: bool,
        opened: &crate::wire::meta::Opened,
    ) {
        self.model.open.push(Open { client, handle: opened.handle, node, write });
        let file = self.model.file(node);
        assert_eq!(opened.record.attributes.ino.0, file.ino);
        if write {
            assert!(opened.version > file.version);
            file.version = opened.version;
            file.size = None;
            file.objects = true;
        } else {
            assert!(opened.version == file.version || opened.created);
            file.version = opened.version;
        }
    }

    fn close(&mut self) {
        if self.model.open.is_empty() {
            return;
        }
        let open = self.dice.below(self.model.open.len());
        let open = self.model.open.swap_remove(open);
        let unwritten = self.dice.one_in(2);
        let (size, mtime) = match unwritten {
            true => (0, 0),
            false => (self.dice.below(1000) as u64, 5),
        };
        let (others, stale) = (self.model.writers(open.node), self.dice.one_in(4));
        let file = self.model.file(open.node);
        let version = file.version - u64::from(stale);
        if open.write && others == 0 && !stale && file.pending.is_none() && file.size.is_none() {
            file.size = Some(size);
            file.objects &= !(unwritten && version == 1);
        }
        let settlement = Some(Settlement { version, size, mtime: WallTime(mtime) });
        let request = MetaRequest::Close { handle: open.handle, settlement, unsure: false };
        let expected = self.model.collect(open.node);
        assert_eq!(Pair::freed(self.bed.ask(open.client, request)), Ok(expected), "close");
    }

    fn link(&mut self, client: u64, name: &str) {
        let other = path(&mut self.dice);
        let Ok(node) = self.model.find(name) else { return };
        if !self.model.is_directory(node) {
            self.give_name(client, node, &other);
        }
    }

    fn give_name(&mut self, client: u64, node: usize, other: &str) {
        let ino = Ino(self.model.file(node).ino);
        let expected = self.model.spot(other).and_then(|(parent, last, there)| {
            if there.is_some() {
                return Err(Code::Exists);
            }
            self.model.names(parent).insert(last.into(), node);
            self.model.file(node).nlink += 1;
            Ok(())
        });
        let request = MetaRequest::Link { ino, place: place(other) };
        let reply = self.bed.ask(client, request).map(|_| ()).map_err(|error| error.code);
        assert_eq!(reply, expected, "link {ino:?} {other}");
    }

    /// Begins a truncation; ends it at once, later or never.
    fn truncate(&mut self, client: u64, name: &str) {
        let Ok(node) = self.model.find(name) else { return };
        if self.model.is_directory(node) {
            return;
        }
        let (size, quiet) = (self.dice.below(1000) as u64, self.model.writers(node) == 0);
        let ends = !self.dice.one_in(3);
        let begins = !self.dice.one_in(4);
        let file = self.model.file(node);
        let ino = Ino(file.ino);
        if begins {
            let request = MetaRequest::BeginTruncate { ino, size, handle: None };
            let reply = self.bed.ask(client, request);
            if let Some((older, _)) = file.pending.filter(|(older, _)| older.size < size) {
                let Ok(MetaReply::Unfinished { pending, .. }) = reply else { panic!("{reply:?}") };
                assert_eq!((pending.size, pending.epoch), (older.size, older.epoch));
                return;
            }
            let Ok(MetaReply::Truncation { pending, version, .. }) = reply else {
                panic!("{reply:?}")
            };
            assert_eq!((pending.cut, pending.size), (size, size));
            assert!(version > file.version);
            assert!(file.pending.is_none_or(|(older, _)| older.epoch < pending.epoch));
            let whole = size == 0 || file.size.is_some_and(|old| size <= old);
            file.version = version;
            file.size = None;
            file.objects = true;
            let pending = PendingModel { size, epoch: pending.epoch, version };
            file.pending = Some((pending, quiet && whole));
        }
        if let Some((pending, was_quiet)) = file.pending.filter(|_| ends) {
            let request = MetaRequest::EndTruncate { ino, epoch: pending.epoch };
            assert_eq!(self.bed.ask(client, request), Ok(MetaReply::Done));
            file.pending = None;
            if was_quiet && quiet && file.version == pending.version {
                file.size = Some(pending.size);
            }
        }
    }

    fn settle(&mut self, client: u64, name: &str) {
        let Ok(node) = self.model.find(name) else { return };
        if self.model.is_directory(node) {
            return;
        }
        // Nobody but a writer himself is believed that he did not write.
        let (size, writers) = (self.dice.below(2) as u64, self.model.writers(node));
        let stale = self.dice.one_in(4);
        let file = self.model.file(node);
        let version = file.version - u64::from(stale);
        if !stale && writers == 0 && file.pending.is_none() && file.size.is_none() {
            file.size = Some(size);
        }
        let settlement = Settlement { version, size, mtime: WallTime(0) };
        let request = MetaRequest::Settle { ino: Ino(file.ino), settlement };
        assert_eq!(self.bed.ask(client, request), Ok(MetaReply::Done));
    }

    fn client_gone(&mut self, client: u64) {
        self.bed.service.client_gone(ClientId(client));
        drive(self.bed.service.expire_now(self.bed.now)).unwrap();
        let (gone, stay) = std::mem::take(&mut self.model.open)
            .into_iter()
            .partition(|open: &Open| open.client == client);
        self.model.open = stay;
        let nodes: BTreeSet<usize> = gone.iter().map(|open: &Open| open.node).collect();
        for node in nodes {
            self.model.collect(node);
        }
    }

    /// The trees agree.
    fn compare(&self, path: &str, node: usize) {
        let request = MetaRequest::Lookup { place: place(path), follow: false };
        let reply = self.bed.ask(0, request);
        let Ok(MetaReply::Found(record)) = reply else { panic!("{path}: {reply:?}") };
        match &self.model.nodes[&node] {
            Node::File(file) => {
                assert_eq!(record.attributes.nlink, file.nlink, "{path}");
                assert_eq!(record.attributes.ino.0, file.ino, "{path}");
                let size = record.unsettled.is_none().then_some(record.attributes.size);
                assert_eq!(size, file.size, "{path}");
                if let Some(unsettled) = record.unsettled {
                    assert_eq!(unsettled.version, file.version);
                    assert_eq!(unsettled.settles, self.model.writers(node) == 0);
                    let pending = file.pending.map(|(pending, _)| (pending.size, pending.size));
                    assert_eq!(unsettled.truncation.map(|it| (it.cut, it.size)), pending);
                }
            }
            Node::Directory(names) => {
                let ino = record.attributes.ino;
                let list = MetaRequest::List { ino, after: vec![], limit: 99, attributes: true };
                let Ok(MetaReply::Entries { entries, records, .. }) = self.bed.ask(0, list) else {
                    panic!("entries of {path}")
                };
                assert_eq!(records.len(), entries.len());
                let listed: Vec<String> = entries
                    .into_iter()
                    .map(|entry| String::from_utf8(entry.name).unwrap())
                    .collect();
                assert_eq!(listed, names.keys().cloned().collect::<Vec<_>>(), "{path}");
                for (name, &below) in names {
                    self.compare(&format!("{path}/{name}"), below);
                }
            }
        }
    }
}

#[test]
fn random_histories_agree_with_a_plain_tree() {
    for seed in 0..60 {
        let bed = Bed::new(seed, false);
        let mut pair = Pair { bed, model: Model::new(), dice: Dice::new(seed) };
        for _ in 0..300 {
            pair.step();
        }
        pair.bed.check();
        pair.compare("", 0);
        assert_eq!(pair.bed.service.fill().1, pair.model.nodes.len() as u64, "seed {seed}");
        let garbage: BTreeSet<u64> =
            pair.bed.all(b'g').iter().map(|item| ino_of(&item.key).unwrap().0).collect();
        assert_eq!(garbage, pair.model.garbage, "seed {seed}");
        pair.bed.tear_down();
    }
}
