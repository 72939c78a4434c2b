//! What several clients do to the same files and names at once, and what that may come to.

use crate::names::Node;
use crate::order::{Answer, How, NAMES, NameEvent, NameOp};
use crate::workload::{Worker, at};
use crate::world::lock;
use std::collections::BTreeSet;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::Rpc;
use weir_core::layout::Extent;
use weir_core::types::Ino;
use weir_core::wire::meta::{LayoutWish, OpenMode, Place};

/// Cells of the shared file, and their size: each lies within one stripe.
pub(crate) const CELLS: u64 = 12;
pub(crate) const CELL_BYTES: usize = 6000;
/// Stripe size of the shared file, one cell a stripe.
pub(crate) const CELL_STRIPE: u64 = 8192;

/// Operations on shared names in one history, and such of them as are under way or of unknown
/// outcome: the search for an order is exponential.
pub(crate) const HISTORY_MAX: usize = 60;
const OPEN_MAX: usize = 8;
/// Clients come together at multiples of this: milliseconds.
const MEETING_MS: u64 = 100;

/// A write of a whole cell.
#[derive(Clone, Debug)]
pub(crate) struct CellWrite {
    pub(crate) tag: u64,
    pub(crate) begin_us: u64,
    /// None: under way, or its outcome is not known.
    pub(crate) end_us: Option<u64>,
}

/// A race to create a name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Race {
    pub(crate) won: Vec<usize>,
    /// Under way, or of unknown outcome.
    pub(crate) open: usize,
    pub(crate) tried: BTreeSet<usize>,
}

impl Worker {
    /// Reads what another client may be writing.
    pub(crate) async fn peek(&mut self) {
        let found = {
            let model = lock(&self.model);
            let place = self.rng.below(model.places.len() as u64) as usize;
            let private = &model.places[place];
            let files = private.names.values().filter_map(|node| match node {
                Node::File(index) => Some((place, *index, private.inos[*index]?)),
                _ => None,
            });
            let files: Vec<_> = files.collect();
            if files.is_empty() { None } else { Some(*self.rng.pick(&files)) }
        };
        let Some((place, index, ino)) = found else { return };
        let mut view = lock(&self.model).places[place].files[index].view();
        let name = format!("{place}#{index}");
        let begin_us = self.now_us();
        let extents = self.random_extents();
        let open = self.fs.open(&self.who, ino, OpenMode::READ);
        let (file, attributes) = match self.op(|| format!("open {name}"), open).await {
            Ok(opened) => opened,
            // It may just have gone.
            Err(error) if error.code == Code::NotFound => return,
            Err(error) => return self.excuse(&error),
        };
        match self.read_extents(&file, &extents, &name).await {
            Ok((bytes, found)) => {
                lock(&self.model).places[place].files[index].extend(&mut view);
                if self.dead_under(file.layout(), &extents, begin_us) {
                    self.unexpected(&format!("read of {name} from a dead server"), "an error");
                }
                let right = view
                    .check_size(attributes.size)
                    .and_then(|()| view.check_read(&extents, &bytes, found));
                if let Err(what) = right {
                    self.fail(|| format!("client {}: peek at {name}: {what}", self.place));
                }
            }
            Err(error) => self.excuse(&error),
        }
        if let Err(error) = self.op(|| format!("close {name}"), file.close()).await {
            self.excuse(&error);
        }
    }

    /// Writes or reads one cell of the shared file: one request, so all of it or nothing.
    pub(crate) async fn cell(&mut self) {
        let cell = self.rng.below(CELLS);
        let extent = Extent { offset: cell * CELL_STRIPE + 777, length: CELL_BYTES as u64 };
        let open = self.fs.create(
            &self.who,
            at("cells"),
            0o644,
            false,
            OpenMode::READ_WRITE,
            LayoutWish { stripe_size: Some(CELL_STRIPE), stripe_count: Some(0) },
        );
        let file = match self.op(|| "open cells".to_owned(), open).await {
            Ok((file, ..)) => file,
            Err(error) => return self.excuse(&error),
        };
        for _ in 0..self.rng.between(1, 3) {
            let begin_us = self.now_us();
            if self.rng.chance(60) {
                let (tag, number) = {
                    let mut model = lock(&self.model);
                    model.tags += 1;
                    let tag = model.tags;
                    let writes = &mut model.cells[cell as usize];
                    writes.push(CellWrite { tag, begin_us, end_us: None });
                    (tag, writes.len() - 1)
                };
                let bytes: Vec<u8> =
                    tag.to_le_bytes().iter().copied().cycle().take(CELL_BYTES).collect();
                let name = || format!("write cell {cell} tag {tag}");
                match self.op(name, file.write_at(&bytes, extent.offset)).await {
                    Ok(()) => {
                        let end_us = self.now_us();
                        lock(&self.model).cells[cell as usize][number].end_us = Some(end_us);
                    }
                    Err(error) => self.excuse(&error),
                }
            } else {
                let name = format!("cell {cell}");
                match self.read_extents(&file, &[extent], &name).await {
                    Ok((mut bytes, found)) => {
                        // Not yet written: as good as zeros.
                        bytes[found..].fill(0);
                        if self.dead_under(file.layout(), &[extent], begin_us) {
                            self.unexpected(&format!("{name} from a dead server"), "an error");
                        }
                        self.check_cell(cell, &bytes, begin_us);
                    }
                    Err(error) => self.excuse(&error),
                }
            }
        }
        if let Err(error) = self.op(|| "close cells".to_owned(), file.close()).await {
            self.excuse(&error);
        }
    }

    pub(crate) fn check_cell(&self, cell: u64, bytes: &[u8], begin_us: u64) {
        let tag = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        let whole = tag.to_le_bytes();
        if bytes.iter().zip(whole.iter().cycle()).any(|(a, b)| a != b) {
            return self.fail(|| format!("client {}: cell {cell} is torn", self.place));
        }
        let model = lock(&self.model);
        let writes = &model.cells[cell as usize];
        // A write is seen unless another one came wholly between it and the reading.
        let over = |since_us: u64| {
            writes.iter().any(|w| w.begin_us > since_us && w.end_us.is_some_and(|e| e < begin_us))
        };
        let right = match writes.iter().find(|write| write.tag == tag) {
            Some(write) => write.end_us.is_none_or(|end_us| !over(end_us)),
            None => tag == 0 && !over(0),
        };
        drop(model);
        if !right {
            self.fail(|| {
                format!("client {}: cell {cell} shows write {tag}, overwritten before", self.place)
            });
        }
    }

    pub(crate) async fn append(&mut self) {
        let open = self.fs.create(
            &self.who,
            at("log"),
            0o644,
            false,
            OpenMode::READ_WRITE,
            LayoutWish { stripe_size: Some(4096), stripe_count: Some(3) },
        );
        let file = match self.op(|| "open log".to_owned(), open).await {
            Ok((file, ..)) => file,
            Err(error) => return self.excuse(&error),
        };
        for _ in 0..self.rng.between(1, 6) {
            let length = self.rng.between(1, 5000) as usize;
            let byte = self.rng.word() as u8 | 1;
            let bytes = vec![byte; length];
            lock(&self.model).appends_open += 1;
            match self.op(|| format!("append {length} bytes"), file.append(&bytes)).await {
                Ok(offset) => {
                    let mut model = lock(&self.model);
                    model.appends_open -= 1;
                    model.appended.push((offset, bytes));
                }
                Err(error) => self.excuse(&error),
            }
        }
        if let Err(error) = self.op(|| "close log".to_owned(), file.close()).await {
            self.excuse(&error);
        }
    }

    /// Who is first to create a name?
    pub(crate) async fn race(&mut self) {
        let name = {
            let model = lock(&self.model);
            let mine = |race: &Race| race.tried.contains(&self.place);
            let open = model.races.iter().find(|(_, race)| !mine(race)).map(|(&name, _)| name);
            open.unwrap_or_else(|| model.races.keys().next_back().map_or(0, |last| last + 1))
        };
        {
            let mut model = lock(&self.model);
            let race = model.races.entry(name).or_default();
            race.tried.insert(self.place);
            race.open += 1;
        }
        let mode = OpenMode::WRITE;
        let path = at(format!("race{name}"));
        let create = self.fs.create(&self.who, path, 0o600, true, mode, LayoutWish::default());
        match self.op(|| format!("create race{name}"), create).await {
            Ok((file, ..)) => {
                {
                    let mut model = lock(&self.model);
                    if let Some(race) = model.races.get_mut(&name) {
                        race.open -= 1;
                        race.won.push(self.place);
                    }
                }
                if let Err(error) = self.op(|| format!("close race{name}"), file.close()).await {
                    self.excuse(&error);
                }
            }
            Err(error) if error.code == Code::Exists => {
                if let Some(race) = lock(&self.model).races.get_mut(&name) {
                    race.open -= 1;
                }
            }
            Err(error) => self.excuse(&error),
        }
    }

    /// Some operations on shared names, begun when others begin theirs.
    pub(crate) async fn shared_names(&mut self) {
        self.meet().await;
        for _ in 0..self.rng.between(1, 6) {
            self.shared_name().await;
        }
    }

    /// Waits until others may come too.
    pub(crate) async fn meet(&self) {
        let now_ms = self.now_us() / 1000;
        self.fs.rpc().sleep(MEETING_MS - now_ms % MEETING_MS).await;
    }

    async fn shared_name(&mut self) {
        let (a, b) = (self.rng.below(NAMES as u64) as usize, self.rng.below(NAMES as u64) as usize);
        let known = self.known_file();
        let (how, file) = (*self.rng.pick(&[How::Replace, How::NoReplace, How::Exchange]), known);
        let op = match (self.rng.below(12), file) {
            (0..3, _) => NameOp::Create(a, None),
            (3, _) => NameOp::Unlink(a, Answer::Done),
            (4..8, _) => NameOp::Move(a, b, how, Answer::Done),
            (8..10, Some(ino)) => NameOp::Link(ino, a, Answer::Done),
            (10, Some(ino)) => NameOp::Count(ino, 0),
            _ => NameOp::Lookup(a, None),
        };
        let number = {
            let begin_us = self.now_us();
            let mut model = lock(&self.model);
            let open = model.history.iter().filter(|event| event.end_us.is_none()).count();
            if model.history.len() >= HISTORY_MAX || open >= OPEN_MAX {
                return;
            }
            model.history.push(NameEvent { begin_us, end_us: None, op: op.clone() });
            model.history.len() - 1
        };
        let ended = match op {
            NameOp::Create(name, _) => self.create_shared(number, name).await,
            NameOp::Unlink(name, _) => {
                let unlink = self.fs.unlink(&self.who, shared(name));
                let result = self.op(|| format!("unlink shared n{name}"), unlink).await;
                answer(result).map(|answer| NameOp::Unlink(name, answer))
            }
            NameOp::Move(from, to, how, _) => {
                let (no_replace, exchange) = (how == How::NoReplace, how == How::Exchange);
                let (a, b) = (shared(from), shared(to));
                let rename = self.fs.rename(&self.who, a, b, no_replace, exchange);
                let result =
                    self.op(|| format!("rename shared n{from} n{to} {how:?}"), rename).await;
                answer(result).map(|answer| NameOp::Move(from, to, how, answer))
            }
            NameOp::Link(ino, to, _) => {
                let link = self.fs.link(&self.who, Ino(ino), shared(to));
                let result = self.op(|| format!("link inode {ino} shared n{to}"), link).await;
                answer(result.map(drop)).map(|answer| NameOp::Link(ino, to, answer))
            }
            NameOp::Lookup(name, _) => {
                let lookup = self.fs.lookup(&self.who, shared(name), false);
                match self.op(|| format!("look up shared n{name}"), lookup).await {
                    Ok(attributes) => Ok(NameOp::Lookup(name, Some(attributes.ino.0))),
                    Err(error) if error.code == Code::NotFound => Ok(NameOp::Lookup(name, None)),
                    Err(error) => Err(error),
                }
            }
            NameOp::Count(ino, _) => {
                let stat = self.fs.attributes(&self.who, Ino(ino));
                match self.op(|| format!("stat inode {ino}"), stat).await {
                    Ok(attributes) => Ok(NameOp::Count(ino, attributes.nlink)),
                    Err(error) if error.code == Code::NotFound => Ok(NameOp::Count(ino, 0)),
                    Err(error) => Err(error),
                }
            }
        };
        match ended {
            Ok(op) => self.note(number, op),
            Err(error) => self.excuse(&error),
        }
    }

    /// A file that has, or had, a shared name.
    fn known_file(&mut self) -> Option<u64> {
        let model = lock(&self.model);
        let told = model.history.iter().filter_map(|event| match event.op {
            NameOp::Create(_, ino) | NameOp::Lookup(_, ino) => ino,
            _ => None,
        });
        let told: Vec<u64> = told.collect();
        (!told.is_empty()).then(|| *self.rng.pick(&told))
    }

    /// Makes a file or a symbolic link.
    async fn create_shared(&mut self, number: usize, name: usize) -> Result<NameOp> {
        let path = shared(name);
        if self.rng.chance(30) {
            let symlink = self.fs.symlink(&self.who, path, b"anywhere");
            return match self.op(|| format!("symlink shared n{name}"), symlink).await {
                Ok(attributes) => Ok(NameOp::Create(name, Some(attributes.ino.0))),
                Err(error) if error.code == Code::Exists => Ok(NameOp::Create(name, None)),
                Err(error) => Err(error),
            };
        }
        let (mode, wish) = (OpenMode::WRITE, LayoutWish::default());
        let create = self.fs.create(&self.who, path, 0o600, true, mode, wish);
        match self.op(|| format!("create shared n{name}"), create).await {
            Ok((file, attributes, _)) => {
                let made = NameOp::Create(name, Some(attributes.ino.0));
                self.note(number, made.clone());
                if let Err(error) = self.op(|| format!("close n{name}"), file.close()).await {
                    self.excuse(&error);
                }
                Ok(made)
            }
            Err(error) if error.code == Code::Exists => Ok(NameOp::Create(name, None)),
            Err(error) => Err(error),
        }
    }

    /// An operation on shared names has ended so.
    fn note(&self, number: usize, op: NameOp) {
        let end_us = self.now_us();
        let event = &mut lock(&self.model).history[number];
        event.end_us.get_or_insert(end_us);
        event.op = op;
    }
}

fn shared(name: usize) -> Place {
    at(format!("shared/n{name}"))
}

fn answer(result: Result<()>) -> Result<Answer> {
    match result {
        Ok(()) => Ok(Answer::Done),
        Err(Error { code: Code::NotFound, .. }) => Ok(Answer::NotFound),
        Err(Error { code: Code::Exists, .. }) => Ok(Answer::Exists),
        Err(error) => Err(error),
    }
}
