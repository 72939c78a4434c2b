//! What several clients do to the same files and names at once, and what that may come to.

use crate::model::{NAMES, NameEvent, NameOp};
use crate::workload::{Node, Worker, at};
use crate::world::lock;
use std::collections::BTreeSet;
use weir_core::error::Code;
use weir_core::layout::Extent;
use weir_core::wire::meta::{LayoutWish, OpenMode};

/// Cells of the shared file, and their size: each lies within one stripe.
pub(crate) const CELLS: u64 = 12;
pub(crate) const CELL_BYTES: usize = 6000;
/// Stripe size of the shared file, one cell a stripe.
pub(crate) const CELL_STRIPE: u64 = 8192;

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
                Node::Directory => None,
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
                    Ok((bytes, _)) => {
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
        for _ in 0..self.rng.between(1, 3) {
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

    pub(crate) async fn shared_name(&mut self) {
        let (a, b) = (self.rng.below(NAMES as u64) as usize, self.rng.below(NAMES as u64) as usize);
        let path = |name: usize| at(format!("shared/n{name}"));
        let op = match self.rng.below(4) {
            0 => NameOp::Create(a, None),
            1 => NameOp::Unlink(a, false),
            2 => NameOp::Rename(a, b, false),
            _ => NameOp::Lookup(a, None),
        };
        let number = {
            let begin_us = self.now_us();
            let mut model = lock(&self.model);
            // The search for an order is exponential: short histories.
            if model.history.len() >= 40 {
                return;
            }
            // A lookup of unknown outcome says nothing, and is left out.
            let op = op.clone();
            model.history.push(NameEvent { begin_us, end_us: None, op });
            model.history.len() - 1
        };
        let found = match op {
            NameOp::Create(..) => {
                let mode = OpenMode::WRITE;
                let create =
                    self.fs.create(&self.who, path(a), 0o600, true, mode, LayoutWish::default());
                match self.op(|| format!("create shared n{a}"), create).await {
                    Ok((file, attributes, _)) => {
                        self.note(number, NameOp::Create(a, Some(attributes.ino.0)));
                        if let Err(error) = self.op(|| format!("close n{a}"), file.close()).await {
                            self.excuse(&error);
                        }
                        return;
                    }
                    Err(error) if error.code == Code::Exists => Ok(NameOp::Create(a, None)),
                    Err(error) => Err(error),
                }
            }
            NameOp::Unlink(..) => {
                let unlink = self.fs.unlink(&self.who, path(a));
                match self.op(|| format!("unlink shared n{a}"), unlink).await {
                    Ok(()) => Ok(NameOp::Unlink(a, true)),
                    Err(error) if error.code == Code::NotFound => Ok(NameOp::Unlink(a, false)),
                    Err(error) => Err(error),
                }
            }
            NameOp::Rename(..) => {
                let rename = self.fs.rename(&self.who, path(a), path(b), false, false);
                match self.op(|| format!("rename shared n{a} n{b}"), rename).await {
                    Ok(()) => Ok(NameOp::Rename(a, b, true)),
                    Err(error) if error.code == Code::NotFound => Ok(NameOp::Rename(a, b, false)),
                    Err(error) => Err(error),
                }
            }
            NameOp::Lookup(..) => {
                let lookup = self.fs.lookup(&self.who, path(a), false);
                match self.op(|| format!("look up shared n{a}"), lookup).await {
                    Ok(attributes) => Ok(NameOp::Lookup(a, Some(attributes.ino.0))),
                    Err(error) if error.code == Code::NotFound => Ok(NameOp::Lookup(a, None)),
                    Err(error) => Err(error),
                }
            }
        };
        match found {
            Ok(op) => self.note(number, op),
            Err(error) => self.excuse(&error),
        }
    }

    /// An operation on shared names has ended so.
    fn note(&self, number: usize, op: NameOp) {
        let end_us = self.now_us();
        let event = &mut lock(&self.model).history[number];
        event.end_us = Some(end_us);
        event.op = op;
    }
}
