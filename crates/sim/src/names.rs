//! What a client does to names that are its own: what a name stands for is known but for operations
//! whose outcome is open.

use crate::model::{FileModel, XATTRS};
use crate::workload::Worker;
use std::collections::BTreeMap;
use weir_core::error::{Code, Result};
use weir_core::types::Ino;

/// Directories in which a client has names of its own, and names in each.
const DIRECTORIES: [&str; 3] = ["", "d0/", "d1/"];
const LEAVES: u64 = 5;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Directory,
    /// Index into [`Private::files`].
    File(usize),
    /// Index into [`Private::links`].
    Symlink(usize),
}

/// A symbolic link.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// The name of the same client's to which it leads.
    pub(crate) target: String,
    pub(crate) ino: Option<Ino>,
}

/// An operation on names whose outcome is open: all of it happened, or nothing.
pub(crate) type NameDoubt = Vec<(String, Option<Node>, Option<Node>)>;

/// What one client alone changes: a directory of its own.
#[derive(Debug, Default)]
pub(crate) struct Private {
    pub(crate) names: BTreeMap<String, Node>,
    pub(crate) files: Vec<FileModel>,
    pub(crate) inos: Vec<Option<Ino>>,
    pub(crate) links: Vec<Link>,
    pub(crate) doubts: Vec<NameDoubt>,
}

impl Private {
    /// Whether it is known what a name stands for, and that it can be one.
    fn usable(&self, path: &str) -> bool {
        let parent = path.rsplit_once('/').map(|(parent, _)| parent);
        let parent_is_there =
            parent.is_none_or(|parent| self.names.get(parent) == Some(&Node::Directory));
        let touched = |name| self.touched(|other| other == name);
        !touched(path) && parent.is_none_or(|parent| !touched(parent)) && parent_is_there
    }

    fn touched(&self, is: impl Fn(&str) -> bool) -> bool {
        self.doubts.iter().flatten().any(|(name, ..)| is(name))
    }

    pub(crate) fn apply(&mut self, doubt: &NameDoubt) {
        for (name, _, after) in doubt {
            match after {
                Some(node) => self.names.insert(name.clone(), *node),
                None => self.names.remove(name),
            };
        }
    }

    /// How many names something has.
    pub(crate) fn names_of(&self, node: Node) -> usize {
        self.names.values().filter(|&&other| other == node).count()
    }

    /// The number of what has a name and may have more of them.
    pub(crate) fn ino(&self, node: Node) -> Option<Ino> {
        match node {
            Node::Directory => None,
            Node::File(index) => self.inos[index],
            Node::Symlink(index) => self.links[index].ino,
        }
    }

    /// A file that is there for certain: if its last name may be gone, it may be gone itself.
    pub(crate) fn certain_file(&self) -> Option<(usize, Ino)> {
        let certain = self.names.iter().rev().filter(|(name, _)| self.usable(name));
        let mut files = certain.filter_map(|(_, node)| match node {
            Node::File(index) => Some((*index, self.inos[*index]?)),
            _ => None,
        });
        files.next()
    }

    /// Where a name leads if symbolic links are followed. `None`: that cannot be told now.
    pub(crate) fn resolve(&self, name: &str) -> Option<std::result::Result<String, Code>> {
        let mut name = name.to_owned();
        for _ in 0..=DIRECTORIES.len() * LEAVES as usize {
            if !self.usable(&name) {
                return None;
            }
            match self.names.get(&name) {
                Some(Node::Symlink(link)) => name.clone_from(&self.links[*link].target),
                _ => return Some(Ok(name)),
            }
        }
        Some(Err(Code::Loop))
    }
}

pub(crate) fn xattr(number: usize) -> Vec<u8> {
    format!("user.x{number}").into_bytes()
}

impl Worker {
    /// A name for anything but a directory.
    pub(crate) fn name(&mut self) -> String {
        let leaf = format!("f{}", self.rng.below(LEAVES));
        match self.rng.below(4) {
            0 => format!("{}{leaf}", DIRECTORIES[1]),
            1 => format!("{}{leaf}", DIRECTORIES[2]),
            _ => leaf,
        }
    }

    /// A symbolic link's text.
    pub(crate) fn text(&self, place: usize, target: &str) -> String {
        format!("/p{place}/{target}")
    }

    pub(crate) async fn change_names(&mut self) {
        let (from, to) = (self.name(), self.name());
        let usable = self.with(|private| private.usable(&from) && private.usable(&to));
        if !usable {
            // The directories may be missing.
            return self.directory().await;
        }
        let (here, there) = self
            .with(|private| (private.names.get(&from).copied(), private.names.get(&to).copied()));
        match self.rng.below(8) {
            0 => {
                let doubt = vec![(from.clone(), here, None)];
                let expected = here.is_none().then_some(Code::NotFound);
                let unlink = self.fs.unlink(&self.who, self.path(&from));
                self.change(format!("unlink {from}"), doubt, expected, unlink).await;
            }
            1 => {
                let ino = self.with(|private| here.and_then(|node| private.ino(node)));
                let Some(ino) = ino else { return self.directory().await };
                let doubt = vec![(to.clone(), there, here)];
                let expected = there.is_some().then_some(Code::Exists);
                let link = self.fs.link(&self.who, ino, self.path(&to));
                let link = async { link.await.map(drop) };
                self.change(format!("link {from} {to}"), doubt, expected, link).await;
            }
            2 => self.symlink(from, to).await,
            3 | 4 => self.follow(&from).await,
            kind => {
                let (no_replace, exchange) = (kind == 6, kind == 7);
                let expected = match (here, there) {
                    (None, _) => Some(Code::NotFound),
                    (_, Some(_)) if no_replace => Some(Code::Exists),
                    (_, None) if exchange => Some(Code::NotFound),
                    _ => None,
                };
                // Two names of one file: nothing happens.
                let stays = here == there || from == to;
                let left = if exchange { there } else { None };
                let doubt = match stays {
                    true => vec![(from.clone(), here, here), (to.clone(), there, there)],
                    false => vec![(from.clone(), here, left), (to.clone(), there, here)],
                };
                let (a, b) = (self.path(&from), self.path(&to));
                let rename = self.fs.rename(&self.who, a, b, no_replace, exchange);
                let name =
                    format!("rename {from} {to} (no_replace {no_replace}, exchange {exchange})");
                self.change(name, doubt, expected, rename).await;
            }
        }
    }

    async fn symlink(&mut self, name: String, target: String) {
        let before = self.with(|private| private.names.get(&name).copied());
        let text = self.text(self.place, &target);
        let symlink = self.fs.symlink(&self.who, self.path(&name), text.as_bytes());
        let symlink = self.op(|| format!("symlink {name} to {target}"), symlink);
        if before.is_some() {
            return self.expect_error(Code::Exists, symlink.await.map(drop));
        }
        let index = self.with(|private| {
            private.links.push(Link { target: target.clone(), ino: None });
            let index = private.links.len() - 1;
            private.doubts.push(vec![(name.clone(), None, Some(Node::Symlink(index)))]);
            index
        });
        match symlink.await {
            Ok(attributes) => {
                if attributes.size != text.len() as u64 {
                    self.unexpected("a symbolic link's size", "its text's");
                }
                self.with(|private| {
                    private.links[index].ino = Some(attributes.ino);
                    if let Some(doubt) = private.doubts.pop() {
                        private.apply(&doubt);
                    }
                });
            }
            Err(error) => self.excuse(&error),
        }
    }

    /// Looks a name up, and what it leads to.
    async fn follow(&mut self, name: &str) {
        let (node, ino) = self.with(|private| {
            let node = private.names.get(name).copied();
            (node, node.and_then(|node| private.ino(node)))
        });
        let lookup = self.fs.lookup(&self.who, self.path(name), false);
        let found = self.op(|| format!("look up {name}"), lookup).await;
        self.check_found(name, node.is_some(), ino, found.map(|it| it.ino));
        if let (Some(Node::Symlink(link)), Some(ino)) = (node, ino) {
            let text = self.with(|private| private.links[link].target.clone());
            let text = self.text(self.place, &text);
            match self.op(|| format!("readlink {name}"), self.fs.read_link(&self.who, ino)).await {
                Ok(found) if found == text.as_bytes() => {}
                Ok(found) => {
                    self.unexpected(&format!("{name} leads to {found:?}"), &text);
                }
                Err(error) => self.excuse(&error),
            }
        }
        let Some(end) = self.with(|private| private.resolve(name)) else { return };
        let lookup = self.fs.lookup(&self.who, self.path(name), true);
        let found = self.op(|| format!("follow {name}"), lookup).await;
        match end {
            Err(code) => self.expect_error(code, found.map(drop)),
            Ok(end) => {
                let (there, ino) = self.with(|private| {
                    let node = private.names.get(&end).copied();
                    (node.is_some(), node.and_then(|node| private.ino(node)))
                });
                self.check_found(name, there, ino, found.map(|it| it.ino));
            }
        }
    }

    fn check_found(&self, name: &str, there: bool, ino: Option<Ino>, found: Result<Ino>) {
        match found {
            Ok(found) if there && ino.is_none_or(|ino| ino == found) => {}
            Ok(found) => {
                self.unexpected(&format!("{name} leads to {found:?}"), &format!("{ino:?}"));
            }
            Err(error) if error.code == Code::NotFound && !there => {}
            Err(error) => self.excuse(&error),
        }
    }

    async fn directory(&mut self) {
        let (name, other) = if self.rng.chance(50) { ("d0", "d1") } else { ("d1", "d0") };
        let usable = |private: &mut Private| private.usable(name) && private.usable(other);
        if !self.with(usable) {
            return;
        }
        let here = self.with(|private| private.names.get(name).copied());
        if here.is_none() || self.rng.chance(20) {
            let doubt = vec![(name.to_owned(), here, Some(Node::Directory))];
            let expected = here.is_some().then_some(Code::Exists);
            let make = self.fs.make_directory(&self.who, self.path(name), 0o755);
            let make = async { make.await.map(drop) };
            return self.change(format!("mkdir {name}"), doubt, expected, make).await;
        }
        if self.with(|private| private.touched(|name| name.contains('/'))) {
            return;
        }
        let inside = format!("{name}/");
        let full = |private: &mut Private, inside: &str| {
            private.names.keys().any(|name| name.starts_with(inside))
        };
        if self.rng.chance(30) {
            let full = self.with(|private| full(private, &inside));
            let doubt = vec![(name.to_owned(), here, None)];
            let expected = full.then_some(Code::NotEmpty);
            let remove = self.fs.remove_directory(&self.who, self.path(name));
            self.change(format!("rmdir {name}"), doubt, expected, remove).await;
        } else if self.rng.chance(50) {
            let there = self.with(|private| private.names.get(other).copied());
            let (no_replace, exchange) = (self.rng.chance(20), self.rng.chance(40));
            let exchange = exchange && !no_replace;
            let full = self.with(|private| full(private, &format!("{other}/")));
            let expected = match there {
                None => exchange.then_some(Code::NotFound),
                Some(_) if no_replace => Some(Code::Exists),
                Some(_) => (full && !exchange).then_some(Code::NotEmpty),
            };
            let doubt = self.with(|private| moved(private, name, other, exchange));
            let (a, b) = (self.path(name), self.path(other));
            let rename = self.fs.rename(&self.who, a, b, no_replace, exchange);
            let what =
                format!("rename {name} {other} (no_replace {no_replace}, exchange {exchange})");
            self.change(what, doubt, expected, rename).await;
        }
    }

    /// Carries out an operation on names: as expected, or nothing of it.
    async fn change(
        &self,
        what: String,
        doubt: NameDoubt,
        expected: Option<Code>,
        operation: impl Future<Output = Result<()>>,
    ) {
        let operation = self.op(|| what.clone(), operation);
        if let Some(code) = expected {
            return self.expect_error(code, operation.await);
        }
        self.with(|private| private.doubts.push(doubt));
        match operation.await {
            Ok(()) => self.with(|private| {
                if let Some(doubt) = private.doubts.pop() {
                    private.apply(&doubt);
                }
            }),
            Err(error) => self.excuse(&error),
        }
    }

    /// Sets, reads or removes extended attributes.
    pub(crate) async fn attribute(&mut self) {
        let Some((index, ino)) = self.with(|private| private.certain_file()) else { return };
        let number = self.rng.below(XATTRS as u64) as usize;
        let before = self.with(|private| private.files[index].xattrs[number]);
        if before.doubt.is_some() {
            return;
        }
        let there = before.value.is_some();
        let name = xattr(number);
        match self.rng.below(4) {
            0 | 1 => {
                let value = self.rng.word();
                let (create, replace) = (self.rng.chance(30), self.rng.chance(30));
                let replace = replace && !create;
                let expected = match there {
                    true => create.then_some(Code::Exists),
                    false => replace.then_some(Code::NoAttribute),
                };
                let value_bytes = value.to_le_bytes();
                let set = self.fs.set_xattr(&self.who, ino, &name, &value_bytes, create, replace);
                let what = format!("set #{index} x{number} (create {create}, replace {replace})");
                self.change_xattr(what, (index, number), Some(value), expected, set).await;
            }
            2 => {
                let expected = (!there).then_some(Code::NoAttribute);
                let remove = self.fs.remove_xattr(&self.who, ino, &name);
                let what = format!("remove #{index} x{number}");
                self.change_xattr(what, (index, number), None, expected, remove).await;
            }
            _ => {
                let read = self.fs.xattr(&self.who, ino, &name);
                match self.op(|| format!("get #{index} x{number}"), read).await {
                    Ok(found)
                        if before.value.map(u64::to_le_bytes).as_ref().map(|v| &v[..])
                            == Some(&found[..]) => {}
                    Ok(found) => {
                        self.unexpected(
                            &format!("#{index} x{number} is {found:?}"),
                            &format!("{before:?}"),
                        );
                    }
                    Err(error) if error.code == Code::NoAttribute && !there => {}
                    Err(error) => self.excuse(&error),
                }
            }
        }
    }

    async fn change_xattr(
        &self,
        what: String,
        (index, number): (usize, usize),
        value: Option<u64>,
        expected: Option<Code>,
        operation: impl Future<Output = Result<()>>,
    ) {
        let operation = self.op(|| what.clone(), operation);
        if let Some(code) = expected {
            return self.expect_error(code, operation.await);
        }
        self.with(|private| private.files[index].xattrs[number].doubt = Some(value));
        match operation.await {
            Ok(()) => self.with(|private| {
                private.files[index].xattrs[number] = crate::model::Xattr { value, doubt: None };
            }),
            Err(error) => self.excuse(&error),
        }
    }
}

/// A directory moved, with all that it holds.
fn moved(private: &Private, from: &str, to: &str, exchange: bool) -> NameDoubt {
    let mut doubt = NameDoubt::new();
    let under = |path: &str, root: &str| {
        path.strip_prefix(root)
            .filter(|rest| rest.is_empty() || rest.starts_with('/'))
            .map(str::to_owned)
    };
    let mut rests: Vec<String> = private
        .names
        .keys()
        .filter_map(|path| under(path, from).or_else(|| under(path, to)))
        .collect();
    rests.sort();
    rests.dedup();
    for rest in rests {
        let (a, b) = (format!("{from}{rest}"), format!("{to}{rest}"));
        let (here, there) = (private.names.get(&a).copied(), private.names.get(&b).copied());
        doubt.push((a, here, if exchange { there } else { None }));
        doubt.push((b, there, here));
    }
    doubt
}
