//! After each round, when everything is mended: what is there must be what was done.

use crate::model::{XATTRS, Xattr};
use crate::names::{NameDoubt, Node, xattr};
use crate::order::{NAMES, NameEvent, NameOp, linearizable};
use crate::shared::{CELL_BYTES, CELL_STRIPE, CELLS, HISTORY_MAX};
use crate::workload::{Mix, Worker, at};
use crate::world::lock;
use std::collections::BTreeMap;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::File;
use weir_core::layout::Layout;
use weir_core::types::{Attributes, Entry, FileKind, Ino};
use weir_core::wire::meta::OpenMode;

impl Worker {
    /// Checks everything, and settles what was in doubt.
    pub(crate) async fn audit(self) {
        if let Err(error) = self.try_audit().await {
            self.fail(|| format!("auditor: {:?}: {error}", error.code));
        }
    }

    async fn try_audit(&self) -> Result<()> {
        self.answering().await?;
        let places = lock(&self.model).places.len();
        for place in 0..places {
            self.settle_names(place).await?;
            let names = lock(&self.model).places[place].names.clone();
            let found = self.tree(&format!("p{place}")).await?;
            let kinds = |node: &Node| match node {
                Node::Directory => FileKind::Directory,
                Node::File(_) => FileKind::Regular,
                Node::Symlink(_) => FileKind::Symlink,
            };
            let expected: BTreeMap<_, _> =
                names.iter().map(|(name, node)| (name.clone(), kinds(node))).collect();
            let told: BTreeMap<_, _> =
                found.iter().map(|(name, attributes)| (name.clone(), attributes.kind)).collect();
            if expected != told {
                self.fail(|| format!("auditor: p{place} holds {told:?}, must hold {expected:?}"));
                return Ok(());
            }
            for (name, node) in &names {
                match *node {
                    Node::Directory => {}
                    Node::File(index) => self.audit_file(place, index, &found[name]).await?,
                    Node::Symlink(index) => self.audit_link(place, index, &found[name]).await?,
                }
            }
        }
        self.audit_cells().await?;
        self.audit_log().await?;
        self.audit_locks().await?;
        self.audit_races().await?;
        self.audit_shared_names().await
    }

    /// Everybody answers again once what was broken is mended: nobody is lost for good.
    async fn answering(&self) -> Result<()> {
        let dead = lock(&self.world).dead_since(u64::MAX);
        for (server, status) in self.fs.status().await.into_iter().enumerate() {
            if !dead.contains(&server) {
                status?;
            }
        }
        Ok(())
    }

    /// Finds out what became of operations on names whose outcome was open.
    async fn settle_names(&self, place: usize) -> Result<()> {
        let doubts: Vec<NameDoubt> = std::mem::take(&mut lock(&self.model).places[place].doubts);
        for doubt in doubts {
            let mut after = true;
            let mut before = true;
            for (name, old, new) in &doubt {
                let found = self.entry(&format!("p{place}/{name}")).await?;
                let model = lock(&self.model);
                let is = |node: &Option<Node>| match (node, &found) {
                    (None, None) => true,
                    (Some(Node::Directory), Some(found)) => found.kind == FileKind::Directory,
                    (Some(Node::File(index)), Some(found)) => {
                        let ino = model.places[place].inos[*index];
                        found.kind == FileKind::Regular && ino.is_none_or(|ino| ino == found.ino)
                    }
                    (Some(Node::Symlink(index)), Some(found)) => {
                        let ino = model.places[place].links[*index].ino;
                        found.kind == FileKind::Symlink && ino.is_none_or(|ino| ino == found.ino)
                    }
                    _ => false,
                };
                after &= is(new);
                before &= is(old);
            }
            if !after && !before {
                self.fail(|| format!("auditor: p{place}: {doubt:?} happened in part"));
            }
            // Where both fit, nothing changes either way.
            if after {
                lock(&self.model).places[place].apply(&doubt);
            }
        }
        Ok(())
    }

    /// Everything below a directory.
    async fn tree(&self, root: &str) -> Result<BTreeMap<String, Attributes>> {
        let mut found = BTreeMap::new();
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            let ino = self.fs.lookup(&self.who, at(format!("{root}/{directory}")), true).await?.ino;
            let mut after = Vec::new();
            loop {
                let names = self.fs.list(&self.who, ino, &after, 3, false).await?;
                for entry in &names.entries {
                    let leaf = String::from_utf8_lossy(&entry.name);
                    let name = format!("{directory}{leaf}");
                    let attributes =
                        self.fs.lookup(&self.who, at(format!("{root}/{name}")), false).await;
                    if entry.kind == FileKind::Directory {
                        directories.push(format!("{name}/"));
                    }
                    match attributes {
                        Ok(attributes) => {
                            found.insert(name, attributes);
                        }
                        // Size and time of what lies on dead servers cannot be told.
                        Err(error) => {
                            self.excuse_dead(&error)?;
                            found.insert(name, nothing(entry.ino, entry.kind));
                        }
                    }
                }
                if names.end {
                    break;
                }
                after = names.entries.last().map(|entry| entry.name.clone()).unwrap_or_default();
            }
        }
        Ok(found)
    }

    /// Passes errors on, unless servers are dead, or disks that are known to fail.
    pub(crate) fn excuse_dead(&self, error: &Error) -> Result<()> {
        let dead = self.mix == Mix::Wreck && !lock(&self.world).dead_since(u64::MAX).is_empty();
        if dead || self.disk_failed(error) { Ok(()) } else { Err(error.clone()) }
    }

    fn doomed(&self, layout: &Layout) -> bool {
        let dead = lock(&self.world).dead_since(u64::MAX);
        (0..layout.stripe_count()).any(|column| {
            dead.contains(&(layout.member(column).target.0 as usize / self.targets_per_server))
        })
    }

    async fn whole(&self, ino: Ino) -> Result<(File<crate::client::SimRpc>, Attributes, Vec<u8>)> {
        let (file, attributes) = self.fs.open(&self.who, ino, OpenMode::READ).await?;
        let read = async {
            let size = file.size().await?;
            // A little more than there is, so that the end is seen.
            let mut bytes = vec![0xee; size as usize + 100];
            let found = file.read_at(&mut bytes, 0).await?;
            bytes.truncate(found);
            Ok((size, found, bytes))
        };
        let (size, found, bytes) = match read.await {
            Ok(read) => read,
            Err(error) => {
                file.close().await?;
                return Err(error);
            }
        };
        if found as u64 != size {
            self.fail(|| format!("auditor: {found} bytes read of a file of {size}"));
        }
        Ok((file, attributes, bytes))
    }

    async fn audit_link(&self, place: usize, index: usize, listed: &Attributes) -> Result<()> {
        let text = self.fs.read_link(&self.who, listed.ino).await?;
        let (expected, names) = {
            let mut model = lock(&self.model);
            let private = &mut model.places[place];
            private.links[index].ino = Some(listed.ino);
            let names = private.names_of(Node::Symlink(index));
            (self.text(place, &private.links[index].target), names)
        };
        if text != expected.as_bytes() || listed.nlink as usize != names {
            self.fail(|| {
                format!(
                    "auditor: p{place}: link {index} has {} names and leads to {}; must have \
                     {names}, and lead to {expected}",
                    listed.nlink,
                    String::from_utf8_lossy(&text)
                )
            });
        }
        Ok(())
    }

    async fn audit_xattrs(&self, place: usize, index: usize, ino: Ino) -> Result<()> {
        let mut listed = Vec::new();
        for number in 0..XATTRS {
            let found = match self.fs.xattr(&self.who, ino, &xattr(number)).await {
                Ok(value) => Some(value),
                Err(error) if error.code == Code::NoAttribute => None,
                Err(error) => return Err(error),
            };
            if found.is_some() {
                listed.extend_from_slice(&xattr(number));
                listed.push(0);
            }
            let mut model = lock(&self.model);
            let model = &mut model.places[place].files[index].xattrs[number];
            let Xattr { value, doubt } = *model;
            let mut possible = doubt.into_iter().chain([value]);
            let is = possible.find(|value| value.map(|it| it.to_le_bytes().to_vec()) == found);
            if let Some(is) = is {
                *model = Xattr { value: is, doubt: None };
            } else {
                self.fail(|| {
                    format!(
                        "auditor: p{place} #{index}: x{number} is {found:?}: {value:?} {doubt:?}"
                    )
                });
            }
        }
        let names = self.fs.list_xattr(&self.who, ino).await?;
        if names != listed {
            self.fail(|| format!("auditor: p{place} #{index}: attributes listed: {names:?}"));
        }
        Ok(())
    }

    async fn audit_file(&self, place: usize, index: usize, listed: &Attributes) -> Result<()> {
        self.audit_xattrs(place, index, listed.ino).await?;
        let links = lock(&self.model).places[place].names_of(Node::File(index)) as u32;
        let (file, attributes, bytes) = match self.whole(listed.ino).await {
            Ok(read) => read,
            Err(error) if self.disk_failed(&error) => return Ok(()),
            Err(error) => {
                let layout = lock(&self.model).places[place].files[index].layout.clone();
                let layout = match layout {
                    Some(layout) => layout,
                    None => match self.fs.layout(&self.who, listed.ino).await? {
                        (Some(layout), _) => layout,
                        _ => return Err(error),
                    },
                };
                return if self.doomed(&layout) { Ok(()) } else { Err(error) };
            }
        };
        let doomed = self.doomed(file.layout());
        file.close().await?;
        let wrong = {
            let mut model = lock(&self.model);
            let private = &mut model.places[place];
            private.inos[index] = Some(listed.ino);
            let model = &mut private.files[index];
            model.layout = Some(file.layout().clone());
            let view = model.view();
            let all = [weir_core::layout::Extent { offset: 0, length: bytes.len() as u64 }];
            let mut wrong = view.check_size(bytes.len() as u64).err();
            wrong = wrong.or(view.check_read(&all, &bytes, bytes.len()).err());
            if let Some(mtime) = model.mtime
                && mtime != attributes.mtime
                && !doomed
            {
                wrong =
                    wrong.or(Some(format!("mtime is {:?}, must be {mtime:?}", attributes.mtime)));
            }
            model.settle(bytes);
            wrong
        };
        if let Some(wrong) = wrong {
            self.fail(|| format!("auditor: p{place} #{index}: {wrong}"));
        }
        let size = lock(&self.model).places[place].files[index].data.len() as u64;
        let right = listed.size == size && attributes.size == size && listed.nlink == links;
        if !right && !doomed {
            self.fail(|| {
                format!(
                    "auditor: p{place} #{index}: listed with {} bytes, {} links, opened with {}; \
                     must be {size} bytes, {links} links",
                    listed.size, listed.nlink, attributes.size
                )
            });
        }
        Ok(())
    }

    /// What a name stands for, by its directory's listing: servers of files are not asked.
    async fn entry(&self, name: &str) -> Result<Option<Entry>> {
        let (parent, leaf) = name.rsplit_once('/').unwrap_or(("", name));
        let ino = match self.fs.lookup(&self.who, at(parent), true).await {
            Ok(attributes) => attributes.ino,
            Err(error) if error.code == Code::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let names = self.fs.list(&self.who, ino, b"", 1000, false).await?;
        Ok(names.entries.into_iter().find(|entry| entry.name == leaf.as_bytes()))
    }

    async fn find(&self, name: &str) -> Result<Option<Ino>> {
        Ok(self.entry(name).await?.map(|entry| entry.ino))
    }

    async fn audit_cells(&self) -> Result<()> {
        let Some(ino) = self.find("cells").await? else { return Ok(()) };
        let (file, _) = match self.fs.open(&self.who, ino, OpenMode::READ).await {
            Ok(opened) => opened,
            Err(error) => return self.excuse_dead(&error),
        };
        for cell in 0..CELLS {
            let mut bytes = vec![0; CELL_BYTES];
            let begin_us = self.now_us();
            match file.read_at(&mut bytes, cell * CELL_STRIPE + 777).await {
                Ok(_) => self.check_cell(cell, &bytes, begin_us),
                Err(error) => self.excuse_dead(&error)?,
            }
        }
        file.close().await
    }

    async fn audit_log(&self) -> Result<()> {
        let Some(ino) = self.find("log").await? else { return Ok(()) };
        let (file, _, bytes) = match self.whole(ino).await {
            Ok(read) => read,
            Err(error) => return self.excuse_dead(&error),
        };
        file.close().await?;
        let (mut records, open) = {
            let model = lock(&self.model);
            (model.appended.clone(), model.appends_open)
        };
        records.sort();
        let mut end = 0;
        for (offset, record) in records {
            let is = bytes.get(offset as usize..offset as usize + record.len());
            if offset < end || is != Some(&record[..]) {
                let length = record.len();
                return {
                    self.fail(|| format!("auditor: log: {length} bytes at {offset} are not there"));
                    Ok(())
                };
            }
            if offset > end && open == 0 {
                self.fail(|| format!("auditor: log: nobody's bytes from {end} to {offset}"));
            }
            end = offset + record.len() as u64;
        }
        if end != bytes.len() as u64 && open == 0 {
            self.fail(|| format!("auditor: log: {} bytes, must be {end}", bytes.len()));
        }
        Ok(())
    }

    async fn audit_races(&self) -> Result<()> {
        let races = lock(&self.model).races.clone();
        for (name, race) in races {
            let there = self.find(&format!("race{name}")).await?.is_some();
            let dead = !lock(&self.world).dead_since(u64::MAX).is_empty();
            let right = match race.won.len() {
                // A winner whose answer was never heard: the others found that the name exists.
                0 => race.open > 0 || lock(&self.model).no_space > 0,
                1 => there || dead,
                _ => false,
            };
            if !right {
                self.fail(|| format!("auditor: race{name}: {race:?}, there: {there}"));
            }
        }
        Ok(())
    }

    async fn audit_shared_names(&self) -> Result<()> {
        let ends = lock(&self.model).history.len() >= HISTORY_MAX;
        for name in 0..NAMES {
            let begin_us = self.now_us();
            let found = self.find(&format!("shared/n{name}")).await?.map(|ino| ino.0);
            let (end_us, op) = (Some(self.now_us()), NameOp::Lookup(name, found));
            lock(&self.model).history.push(NameEvent { begin_us, end_us, op });
        }
        let history = {
            let mut model = lock(&self.model);
            // Operations of this round that are still open can no longer take effect after it.
            if ends { std::mem::take(&mut model.history) } else { model.history.clone() }
        };
        if !linearizable(&history) {
            self.fail(|| format!("auditor: no order explains {history:#?}"));
        }
        if ends {
            for name in 0..NAMES {
                match self.fs.unlink(&self.who, at(format!("shared/n{name}"))).await {
                    Err(error) if error.code != Code::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Removes everything there is.
    pub(crate) async fn sweep(self) {
        if let Err(error) = self.try_sweep().await {
            self.fail(|| format!("auditor: sweep: {:?}: {error}", error.code));
        }
    }

    async fn try_sweep(&self) -> Result<()> {
        let tree = self.tree("").await?;
        for (name, attributes) in tree.iter().rev() {
            let place = at(name.trim_start_matches('/'));
            let result = match attributes.kind {
                FileKind::Directory => self.fs.remove_directory(&self.who, place).await,
                _ => self.fs.unlink(&self.who, place).await,
            };
            match result {
                Err(error) if error.code != Code::NotFound => self.excuse_dead(&error)?,
                _ => {}
            }
        }
        match self.fs.collect_garbage().await {
            Err(error) => self.excuse_dead(&error),
            Ok(()) => Ok(()),
        }
    }
}

fn nothing(ino: Ino, kind: FileKind) -> Attributes {
    let never = weir_core::types::WallTime(0);
    Attributes {
        ino,
        kind,
        mode: 0,
        uid: 0,
        gid: 0,
        nlink: 0,
        size: 0,
        allocated: 0,
        rdev: 0,
        atime: never,
        mtime: never,
        ctime: never,
        data_epoch: 0,
    }
}
