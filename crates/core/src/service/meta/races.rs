//! Several requests at once, over a store that waits and conflicts: they end as if each had happened at
//! one moment.

use super::model::{Bed, CLIENTS, Dice, path, place};
use super::tests::user;
use super::*;
use crate::config::{CALM_ASKED_MIN, CALM_MS, WAY_HELD_MS};
use crate::wire::meta::{Changes, OpenMode, Place, Settlement};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A random request; `handles` and `inos` are what earlier answers named.
fn any_request(dice: &mut Dice, handles: &[u64], inos: &[Ino]) -> MetaRequest {
    let pick = |dice: &mut Dice| inos[dice.below(inos.len())];
    let handle = |dice: &mut Dice| match handles.len() {
        0 => 0,
        count => handles[dice.below(count)],
    };
    let at = place(&path(dice));
    let open = OpenMode { read: true, write: dice.one_in(2), truncate: false };
    let open = OpenMode { truncate: open.write && dice.one_in(3), ..open };
    let size = dice.below(1000) as u64;
    let settlement = Settlement { version: size % 9, size, mtime: WallTime(3) };
    let place = at;
    match dice.below(16) {
        0 | 1 => MetaRequest::MakeDirectory { place, mode: 0o755 },
        2 if dice.one_in(2) => MetaRequest::CreateUnnamed {
            directory: pick(dice),
            mode: 0o644,
            open,
            layout: LayoutWish::default(),
        },
        2..=4 => MetaRequest::Create {
            place,
            mode: 0o644,
            exclusive: dice.one_in(3),
            open,
            layout: LayoutWish::default(),
        },
        5 => MetaRequest::Open { ino: pick(dice), open },
        6 | 7 => MetaRequest::Close {
            handle: handle(dice),
            settlement: Some(settlement),
            unsure: dice.one_in(4),
        },
        8 => MetaRequest::Unlink { place },
        9 => MetaRequest::RemoveDirectory { place },
        10 | 11 => MetaRequest::Rename {
            from: place,
            to: self::place(&path(dice)),
            no_replace: dice.one_in(4),
            exchange: false,
        },
        12 => MetaRequest::Rename {
            from: place,
            to: self::place(&path(dice)),
            no_replace: false,
            exchange: true,
        },
        13 => MetaRequest::Link { ino: pick(dice), place },
        14 => match dice.below(3) {
            0 => MetaRequest::BeginTruncate { ino: pick(dice), size, handle: None },
            1 => MetaRequest::EndTruncate { ino: pick(dice), epoch: dice.below(4) as u32 + 1 },
            _ => MetaRequest::Settle { ino: pick(dice), settlement },
        },
        _ => MetaRequest::SetXattr {
            ino: pick(dice),
            name: b"user.x".to_vec(),
            value: vec![1],
            create: dice.one_in(3),
            replace: false,
        },
    }
}

type Task<'a, T = u64> = Pin<Box<dyn Future<Output = (T, Result<MetaReply>)> + 'a>>;

#[test]
fn requests_at_once_leave_everything_in_order() {
    let who = user(1000);
    for seed in 0..60 {
        let bed = Bed::new(seed, true);
        let mut dice = Dice::new(seed + 1000);
        let mut handles: Vec<Vec<u64>> = vec![vec![]; CLIENTS as usize];
        let mut inos = vec![Ino::ROOT];
        let mut tasks: Vec<Task<'_>> = Vec::new();
        let (mut succeeded, mut made) = (0, 0);
        while made < 400 || !tasks.is_empty() {
            if made < 400 && tasks.len() < 5 {
                let client = dice.below(CLIENTS as usize) as u64;
                let request = any_request(&mut dice, &handles[client as usize], &inos);
                let (bed, who) = (&bed, &who);
                tasks.push(Box::pin(async move {
                    (client, bed.service.handle(bed.now, ClientId(client), who, request).await)
                }));
                made += 1;
                if dice.one_in(50) {
                    bed.service.client_gone(ClientId(dice.below(CLIENTS as usize) as u64));
                }
            }
            let at = dice.below(tasks.len());
            let poll = tasks[at].as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready((client, reply)) = poll else { continue };
            drop(tasks.swap_remove(at));
            match reply {
                Ok(MetaReply::Opened(opened)) => {
                    handles[client as usize].push(opened.handle);
                    inos.push(opened.record.attributes.ino);
                    succeeded += 1;
                }
                Ok(_) => succeeded += 1,
                Err(error) => {
                    assert!(
                        !matches!(error.code, Code::Internal | Code::Protocol),
                        "seed {seed}: {error}"
                    );
                }
            }
        }
        drop(tasks);
        assert!(succeeded > 50, "seed {seed}: only {succeeded} requests succeeded");
        bed.tear_down();
    }
}

/// Pairs of requests that would break the tree if they did not notice each other.
#[test]
fn races_end_as_if_one_had_been_first() {
    let who = user(1000);
    let create = |path: &str| MetaRequest::Create {
        place: place(path),
        mode: 0o644,
        exclusive: false,
        open: OpenMode::WRITE,
        layout: LayoutWish::default(),
    };
    let directory = |path: &str| MetaRequest::MakeDirectory { place: place(path), mode: 0o755 };
    let remove = |path: &str| MetaRequest::RemoveDirectory { place: place(path) };
    let unlink = |path: &str| MetaRequest::Unlink { place: place(path) };
    let rename = |from: &str, to: &str| MetaRequest::Rename {
        from: place(from),
        to: place(to),
        no_replace: false,
        exchange: false,
    };
    for seed in 0..150 {
        let races = [
            [remove("a"), create("a/x")],
            [rename("b", "a"), create("a/x")],
            [rename("a", "b/a"), rename("b", "a/b")],
            [rename("a", "b/a"), remove("b")],
            [unlink("f"), create("f")],
            [unlink("f"), MetaRequest::Link { ino: Ino(0), place: place("g") }],
            [unlink("f"), rename("h", "f")],
            [unlink("f"), MetaRequest::Open { ino: Ino(0), open: OpenMode::READ }],
            [directory("a/d"), remove("a")],
            // Neither moves anything that the other's own parents are.
            [rename("p/a", "q/b/c/a"), rename("q/b", "p/a/d/b")],
        ];
        for race in races {
            let bed = Bed::new(seed, true);
            let mut dice = Dice::new(seed + 5000);
            for path in ["a", "b", "p", "p/a", "p/a/d", "q", "q/b", "q/b/c"] {
                bed.ask(0, directory(path)).unwrap();
            }
            for path in ["f", "h"] {
                bed.ask(0, create(path)).unwrap();
                bed.service.client_gone(ClientId(0));
            }
            let lookup = MetaRequest::Lookup { place: place("f"), follow: false };
            let Ok(MetaReply::Found(file)) = bed.ask(0, lookup) else { panic!("f is there") };
            let mut opened = Vec::new();
            let mut tasks: Vec<Task<'_>> = Vec::new();
            for mut request in race.clone() {
                if let MetaRequest::Link { ino, .. } | MetaRequest::Open { ino, .. } = &mut request
                {
                    *ino = file.attributes.ino;
                }
                let (bed, who) = (&bed, &who);
                tasks.push(Box::pin(async move {
                    (0, bed.service.handle(bed.now, ClientId(0), who, request).await)
                }));
            }
            while !tasks.is_empty() {
                let at = dice.below(tasks.len());
                let mut context = Context::from_waker(Waker::noop());
                if let Poll::Ready((_, reply)) = tasks[at].as_mut().poll(&mut context) {
                    drop(tasks.swap_remove(at));
                    match reply {
                        Ok(MetaReply::Opened(file)) => opened.push(file.record.attributes.ino),
                        Err(error) if error.code == Code::Internal => {
                            panic!("seed {seed}: {race:?}: {error}")
                        }
                        _ => {}
                    }
                }
            }
            drop(tasks);
            bed.check();
            for ino in opened {
                let found = bed.ask(0, MetaRequest::Attributes { ino });
                assert!(found.is_ok(), "seed {seed}: {race:?}: open, and gone");
            }
            bed.tear_down();
        }
    }
}

/// What is given its first name, which is removed again before whoever gave it is told.
#[test]
fn what_is_unnamed_again_at_once_goes_with_its_handle() {
    let who = user(1000);
    let mut removed = 0;
    for seed in 0..2000 {
        let bed = Bed::new(seed, true);
        let mut dice = Dice::new(seed + 7000);
        let (directory, layout) = (Ino::ROOT, LayoutWish::default());
        let open = OpenMode::WRITE;
        let create = MetaRequest::CreateUnnamed { directory, mode: 0o644, open, layout };
        let Ok(MetaReply::Opened(file)) = bed.ask(0, create) else { panic!("it is made") };
        let ino = file.record.attributes.ino;
        let link = MetaRequest::Link { ino, place: place("name") };
        let unlink = || MetaRequest::Unlink { place: place("name") };
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for (number, request) in [link, unlink(), unlink(), unlink()].into_iter().enumerate() {
            let (bed, who) = (&bed, &who);
            let client = ClientId(u64::from(number > 0));
            tasks.push(Box::pin(async move {
                (client.0, bed.service.handle(bed.now, client, who, request).await)
            }));
        }
        while !tasks.is_empty() {
            // Whoever gives the name is slow, most of the time.
            let slow = usize::from(dice.one_in(2) && tasks.len() > 1);
            let at = slow + dice.below(tasks.len() - slow);
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready((client, reply)) = tasks[at].as_mut().poll(&mut context) {
                drop(tasks.swap_remove(at));
                removed += u32::from(client > 0 && reply.is_ok());
            }
        }
        drop(tasks);
        bed.check();
        bed.tear_down();
    }
    assert!(removed > 100, "only {removed} were removed");
}

/// Makes a file without opening it.
fn node(path: &str) -> MetaRequest {
    MetaRequest::MakeNode { place: place(path), kind: FileKind::Regular, mode: 0o644, rdev: 0 }
}

/// Story: a lookup read the name, then a rename moved another file over it, and the inode that the
/// name had led to was gone when the lookup came to read it. (Simulator, seed 106327.) So it went with
/// symbolic links and directories on the way to a name.
#[test]
fn a_name_that_is_replaced_is_found_all_the_while() {
    let who = user(1000);
    let directory = |path| MetaRequest::MakeDirectory { place: place(path), mode: 0o755 };
    let link = |path| MetaRequest::Symlink { place: place(path), text: b"there".to_vec() };
    let lookup = |path| MetaRequest::Lookup { place: place(path), follow: true };
    let create = |path| MetaRequest::Create {
        place: place(path),
        mode: 0o644,
        exclusive: false,
        open: OpenMode::READ,
        layout: LayoutWish::default(),
    };
    // Of two alike, the second is moved over the first; meanwhile it is looked for.
    let cases = [
        (node("old"), node("new"), lookup("old")),
        (node("old"), node("new"), create("old")),
        (link("old"), link("new"), lookup("old")),
        (link("old"), link("new"), lookup("old/file")),
        (link("old"), link("new"), create("old/file")),
        (directory("old"), directory("new"), lookup("old")),
        (directory("old"), directory("new"), lookup("old/../there")),
        (directory("old"), directory("new"), create("old/../there/file")),
    ];
    for seed in 0..150 {
        for (old, new, search) in cases.clone() {
            let bed = Bed::new(seed, true);
            let mut dice = Dice::new(seed + 7000);
            for request in [directory("there"), node("there/file"), old, new] {
                bed.ask(0, request).unwrap();
            }
            let rename = MetaRequest::Rename {
                from: place("new"),
                to: place("old"),
                no_replace: false,
                exchange: false,
            };
            for (_, reply) in at_once(&bed, &who, &mut dice, &[rename, search.clone()]) {
                assert!(reply.is_ok(), "seed {seed}: {search:?}: {reply:?}");
            }
            bed.service.client_gone(ClientId(0));
            bed.tear_down();
        }
    }
}

/// Who is told to believe a name finds it there: a move of it that was not over before does not happen.
#[test]
fn a_way_that_may_be_believed_is_not_just_being_taken_away() {
    let who = user(1000);
    let directory = |path| MetaRequest::MakeDirectory { place: place(path), mode: 0o755 };
    let (mut believed, mut refused) = (0, 0);
    for seed in 0..300 {
        let bed = Bed::new(seed, true);
        let mut dice = Dice::new(seed + 13_000);
        bed.ask(0, directory("old")).unwrap();
        let Ok(MetaReply::Found(new)) = bed.ask(0, directory("new")) else { unreachable!() };
        let (from, to) = (place("new"), place("old"));
        let rename = MetaRequest::Rename { from, to, no_replace: false, exchange: false };
        let look = MetaRequest::LookupWay { place: place("old"), others: true };
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for (client, request) in [(1, rename), (2, look)] {
            let (bed, who) = (&bed, &who);
            tasks.push(Box::pin(async move {
                (client, bed.service.handle(bed.now, ClientId(client), who, request).await)
            }));
        }
        let mut replies = mingle(tasks, &mut dice);
        replies.sort_by_key(|(client, _)| *client);
        let moved = match &replies[0].1 {
            Ok(_) => true,
            Err(error) if error.code == Code::Busy => false,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        match &replies[1].1 {
            Ok(MetaReply::Looked { record: Some(record), name: true, .. }) => {
                let leads_to_new = record.attributes.ino == new.attributes.ino;
                assert_eq!(leads_to_new, moved, "seed {seed}: believed what was taken away");
                believed += 1;
            }
            Ok(MetaReply::Looked { record: Some(_), name: false, .. }) => {
                assert!(moved, "seed {seed}: nobody took it");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
        refused += u32::from(!moved);
        bed.tear_down();
    }
    assert!(believed > 50 && refused > 20, "{believed} believed, {refused} refused");
}

/// Who is told to believe all that he is told finds it so: a change that was not over before does not happen.
#[test]
fn what_may_be_believed_in_calm_is_not_just_being_changed() {
    let who = user(1000);
    let chmod = |ino| {
        let changes = Changes { mode: Some(0o600), ..Changes::default() };
        MetaRequest::Change { ino, changes }
    };
    let look = |name| MetaRequest::LookupWay { place: place(name), others: true };
    let (mut believed, mut refused) = (0, 0);
    for seed in 0..400 {
        let bed = Bed::new(seed, true);
        let mut dice = Dice::new(seed + 17_000);
        let Ok(MetaReply::Found(file)) = bed.ask(0, node("file")) else { unreachable!() };
        let ino = file.attributes.ino;
        let now = Now { mono_ms: bed.now.mono_ms + CALM_MS, ..bed.now };
        let handle = |client, request| bed.service.handle(now, ClientId(client), &who, request);
        for _ in 0..CALM_ASKED_MIN {
            let mut task: Task<'_> =
                Box::pin(async { (2, handle(2, MetaRequest::LookAt { ino: Ino::ROOT }).await) });
            let mut context = Context::from_waker(Waker::noop());
            while task.as_mut().poll(&mut context).is_pending() {}
        }
        // Those were told a while ago.
        let now = Now { mono_ms: now.mono_ms + WAY_HELD_MS, ..now };
        let handle = |client, request| bed.service.handle(now, ClientId(client), &who, request);
        let (change, look) = match seed % 4 {
            0 => (chmod(ino), look("file")),
            1 => (chmod(ino), MetaRequest::LookAt { ino }),
            2 => (MetaRequest::Unlink { place: place("file") }, look("file")),
            _ => (node("new"), look("new")),
        };
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for (client, request) in [(1, change), (2, look)] {
            let handle = &handle;
            tasks.push(Box::pin(async move { (client, handle(client, request).await) }));
        }
        let mut replies = mingle(tasks, &mut dice);
        replies.sort_by_key(|(client, _)| *client);
        let changed = match &replies[0].1 {
            Ok(_) => true,
            Err(error) if error.code == Code::Busy => false,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        match &replies[1].1 {
            Ok(MetaReply::Looked { record, name, attributes }) if *name || *attributes => {
                assert!(!changed, "seed {seed}: believed what was changed");
                let there = record.as_ref().map(|record| record.attributes.mode);
                assert_eq!(there, (seed % 4 < 3).then_some(0o644), "seed {seed}");
                believed += 1;
            }
            Ok(MetaReply::Looked { record: Some(_), .. }) => assert!(changed, "seed {seed}"),
            Err(error) if error.code == Code::NotFound => assert!(changed, "seed {seed}"),
            other => panic!("seed {seed}: {other:?}"),
        }
        refused += u32::from(!changed);
        bed.tear_down();
    }
    assert!(believed > 100 && believed == refused, "{believed} believed, {refused} refused");
}

/// Lets requests meet: each goes on when the dice say so. Answers come in the order of their ends.
fn at_once(
    bed: &Bed,
    who: &Credentials,
    dice: &mut Dice,
    requests: &[MetaRequest],
) -> Vec<(usize, Result<MetaReply>)> {
    let mut tasks: Vec<Task<'_, usize>> = Vec::new();
    for (at, request) in requests.iter().enumerate() {
        tasks.push(Box::pin(async move {
            loop {
                let reply = bed.service.handle(bed.now, ClientId(0), who, request.clone()).await;
                if !matches!(&reply, Err(error) if error.code == Code::Busy) {
                    return (at, reply);
                }
            }
        }));
    }
    mingle(tasks, dice)
}

/// Runs tasks to their ends, each a step further when the dice say so.
fn mingle<T>(mut tasks: Vec<Task<'_, T>>, dice: &mut Dice) -> Vec<(T, Result<MetaReply>)> {
    let mut replies = Vec::new();
    while !tasks.is_empty() {
        let task = dice.below(tasks.len());
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(reply) = tasks[task].as_mut().poll(&mut context) {
            drop(tasks.swap_remove(task));
            replies.push(reply);
        }
    }
    replies
}

/// Names that the requests of [`answers_are_those_of_some_order`] are about.
const PLACES: &[&str] = &["a", "b", "c", "a/a"];

/// A small tree to begin with: what each name in use is.
struct Start {
    bed: Bed,
    inos: Vec<(&'static str, FileKind, Ino)>,
}

impl Start {
    /// The same tree for the same seed, whatever `pauses`.
    fn new(seed: u64, pauses: Option<u64>) -> Start {
        let bed = Bed::new(pauses.unwrap_or(seed), pauses.is_some());
        let mut start = Start { bed, inos: vec![("", FileKind::Directory, Ino::ROOT)] };
        let mut dice = Dice::new(seed + 9000);
        for &path in PLACES {
            let place = start.spot(path);
            let request = match dice.below(5) {
                0 | 1 => MetaRequest::MakeDirectory { place, mode: 0o755 },
                2 => MetaRequest::MakeNode { place, kind: FileKind::Regular, mode: 0o644, rdev: 0 },
                3 => match start.file() {
                    Some(ino) => MetaRequest::Link { ino, place },
                    None => continue,
                },
                _ => continue,
            };
            if let Ok(MetaReply::Found(Record { attributes, .. })) = start.bed.ask(0, request) {
                start.inos.push((path, attributes.kind, attributes.ino));
            }
        }
        start
    }

    fn file(&self) -> Option<Ino> {
        let file = self.inos.iter().find(|(_, kind, _)| *kind == FileKind::Regular);
        file.map(|&(_, _, ino)| ino)
    }

    /// A name in a directory that need not be looked up, if it is there at the beginning.
    fn spot(&self, path: &str) -> Place {
        let (parent, leaf) = path.rsplit_once('/').unwrap_or(("", path));
        let is = |&&(name, kind, _): &&(&str, FileKind, Ino)| {
            name == parent && kind == FileKind::Directory
        };
        match self.inos.iter().find(is) {
            Some(&(_, _, ino)) => Place::new(ino, leaf),
            None => Place::new(Ino::ROOT, path),
        }
    }

    /// The same requests for the same seed.
    fn requests(&self, seed: u64, count: usize) -> Vec<MetaRequest> {
        let mut dice = Dice::new(seed + 11_000);
        (0..count).map(|_| self.any_request(&mut dice, count == 2)).collect()
    }

    fn any_request(&self, dice: &mut Dice, walks: bool) -> MetaRequest {
        let mut any = |walks: bool| match (walks, PLACES[dice.below(PLACES.len())]) {
            (true, path) => place(path),
            (false, path) => self.spot(path),
        };
        // Two walks of one request see the tree at two moments, as they do in other file systems.
        let (place, from, to) = (any(walks), any(false), any(false));
        let file = self.file().unwrap_or(Ino::ROOT);
        let open = OpenMode { read: true, write: false, truncate: false };
        let name = b"user.x".to_vec();
        match dice.below(14) {
            0 | 1 => MetaRequest::Lookup { place, follow: false },
            2 | 3 => MetaRequest::Create {
                place,
                mode: 0o644,
                exclusive: dice.one_in(2),
                open,
                layout: LayoutWish::default(),
            },
            4 => MetaRequest::MakeDirectory { place, mode: 0o755 },
            5 => MetaRequest::Unlink { place },
            6 => MetaRequest::RemoveDirectory { place },
            7 => MetaRequest::Link { ino: file, place },
            8 | 9 => MetaRequest::Rename { from, to, no_replace: false, exchange: false },
            10 => MetaRequest::Rename { from, to, no_replace: true, exchange: false },
            11 => MetaRequest::Rename { from, to, no_replace: false, exchange: true },
            12 => MetaRequest::RemoveXattr { ino: file, name },
            _ => {
                let (create, replace) = (dice.one_in(2), dice.one_in(4));
                MetaRequest::SetXattr { ino: file, name, value: vec![1], create, replace }
            }
        }
    }

    /// What an inode was called at the beginning.
    fn known(&self, ino: Ino) -> Option<&'static str> {
        self.inos.iter().find(|&&(.., known)| known == ino).map(|&(path, ..)| path)
    }

    fn answer(&self, reply: &Result<MetaReply>) -> String {
        match reply {
            Ok(MetaReply::Found(record)) => format!("{:?}", self.known(record.attributes.ino)),
            Ok(MetaReply::Opened(opened)) => {
                let ino = self.known(opened.record.attributes.ino);
                format!("{ino:?} created {}", opened.created)
            }
            Ok(_) => "done".to_owned(),
            Err(error) => format!("{:?}", error.code),
        }
    }

    /// Answers, and the tree that is left.
    fn outcome(self, answers: &[String]) -> String {
        let mut tree = format!("{answers:?}");
        let mut directories = vec![(String::new(), Ino::ROOT)];
        while let Some((path, ino)) = directories.pop() {
            let list = MetaRequest::List { ino, after: vec![], limit: 99, attributes: true };
            let Ok(MetaReply::Entries { entries, records, .. }) = self.bed.ask(0, list) else {
                panic!("entries of {path}")
            };
            for (entry, record) in entries.into_iter().zip(records) {
                let path = format!("{path}/{}", String::from_utf8(entry.name).unwrap());
                let known = self.known(entry.ino);
                tree += &format!("\n{path}: {:?} {known:?}", entry.kind);
                tree += &format!(" {} names", record.attributes.nlink);
                if entry.kind == FileKind::Directory {
                    directories.push((path, entry.ino));
                }
            }
        }
        self.bed.check();
        self.bed.tear_down();
        tree
    }
}

fn orders(count: usize) -> Vec<Vec<usize>> {
    match count {
        0 => vec![vec![]],
        _ => orders(count - 1)
            .into_iter()
            .flat_map(|order| {
                (0..count).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, count - 1);
                    order
                })
            })
            .collect(),
    }
}

/// Story: a rename read its source; another one moved just that onto the target; the first one then
/// read its target, saw one file under both names, and said that this was done, which was not so for
/// a single moment. (Simulator, seed 3000739.)
#[test]
fn answers_are_those_of_some_order() {
    let who = user(1000);
    for seed in std::env::var("S0").map_or(0, |s| s.parse::<u64>().unwrap())
        ..std::env::var("S1").map_or(4000, |s| s.parse().unwrap())
    {
        let count = 2 + usize::from(seed % 4 == 0);
        let possible: BTreeSet<String> = orders(count)
            .into_iter()
            .map(|order| {
                let start = Start::new(seed, None);
                let requests = start.requests(seed, count);
                let mut answers = vec![String::new(); count];
                for at in order {
                    answers[at] = start.answer(&start.bed.ask(0, requests[at].clone()));
                }
                start.outcome(&answers)
            })
            .collect();
        for round in 0..12 {
            let start = Start::new(seed, Some(seed * 100 + round));
            let requests = start.requests(seed, count);
            let mut dice = Dice::new(seed * 100 + round + 13_000);
            let mut answers = vec![String::new(); count];
            for (at, reply) in at_once(&start.bed, &who, &mut dice, &requests) {
                answers[at] = start.answer(&reply);
            }
            let outcome = start.outcome(&answers);
            assert!(
                possible.contains(&outcome),
                "seed {seed}.{round}: {requests:?} gave {outcome}\nnone of {possible:#?}"
            );
        }
    }
}
