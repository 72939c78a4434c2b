//! Walking paths, and who may do what.

use super::records::{Inode, Target};
use super::store::MetaStore;
use super::txn::{Fault, Step, peek, peek_name};
use crate::config::{NAME_BYTES_MAX, PATH_BYTES_MAX, SYMLINKS_MAX};
use crate::error::{Code, Error, Result};
use crate::types::{Credentials, FileKind, Ino};
use crate::wire::meta::Place;

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const SEARCH: u32 = 1;

pub(super) const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
pub(super) const STICKY: u32 = 0o1000;

pub(super) fn in_group(who: &Credentials, gid: u32) -> bool {
    who.uid == 0 || who.gid == gid || who.groups.contains(&gid)
}

pub(super) fn owns(inode: &Inode, who: &Credentials) -> bool {
    who.uid == 0 || who.uid == inode.uid
}

/// Whether the permission bits allow `want` (bits of [`READ`], [`WRITE`], [`SEARCH`]).
pub(super) fn allows(inode: &Inode, who: &Credentials, want: u32) -> bool {
    who.uid == 0 || who.triple(inode.mode, inode.uid, inode.gid) & want == want
}

/// Whether everybody may walk through a directory.
fn open_to_all(inode: &Inode) -> bool {
    inode.mode & 0o111 == 0o111
}

/// Whether its owner may, as far as that is not the superuser, to whom nothing is closed.
fn open_to_owner(inode: &Inode) -> bool {
    inode.uid != 0 && inode.mode & 0o100 != 0
}

/// Whether a directory stays open to all who go by what is told, until it is [closed](closes): to everybody, if `others`
/// than who asks do, and else to him, in whatever groups he is then.
pub(super) fn stays_open(inode: &Inode, who: &Credentials, others: bool) -> bool {
    let to_him = || who.uid == 0 || who.uid == inode.uid && open_to_owner(inode);
    open_to_all(inode) || !others && to_him()
}

/// Whether such a change of a directory closes it to somebody to whom it would have stayed open.
pub(super) fn closes(before: &Inode, after: &Inode) -> bool {
    let to_owner = || open_to_owner(after) && after.uid == before.uid;
    !open_to_all(after) && (open_to_all(before) || open_to_owner(before) && !to_owner())
}

pub(super) fn demand(inode: &Inode, ino: Ino, who: &Credentials, want: u32) -> Result<()> {
    if allows(inode, who, want) {
        return Ok(());
    }
    let what = match want {
        READ => "read",
        SEARCH => "search",
        _ => "write",
    };
    Err(Error::because(
        Code::AccessDenied,
        format!(
            "user {} may not {what} inode {} (mode {:o}, owner {}:{})",
            who.uid, ino.0, inode.mode, inode.uid, inode.gid
        ),
    ))
}

/// Refuses who may not take `victim`'s name out of `directory`.
pub(super) fn demand_removal(
    directory: (Ino, &Inode),
    victim: (Ino, &Inode),
    who: &Credentials,
) -> Result<()> {
    demand(directory.1, directory.0, who, WRITE | SEARCH)?;
    if directory.1.mode & STICKY != 0 && !owns(directory.1, who) && !owns(victim.1, who) {
        return Err(Error::because(
            Code::NotPermitted,
            format!(
                "inode {} in the sticky directory {} belongs to user {}",
                victim.0.0, directory.0.0, victim.1.uid
            ),
        ));
    }
    Ok(())
}

/// The last component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// There is none: the directory itself.
    Nothing,
    Dot,
    DotDot,
    Name(Vec<u8>),
}

/// Where a path leads, its last component not yet looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) directory: Ino,
    /// Whether a name led to the directory: if that is gone, the name leads elsewhere by now.
    pub(super) named: bool,
    pub(super) last: Last,
    /// A slash follows the last component: it must be a directory.
    pub(super) slash: bool,
}

/// A path shown in an error.
pub(super) fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

pub(super) fn no_name(directory: Ino, name: &[u8]) -> Error {
    Error::because(
        Code::NotFound,
        format!("no '{}' in directory inode {}", show(name), directory.0),
    )
}

pub(super) fn fail<T>(code: Code, cause: impl Into<String>) -> Step<T> {
    Err(Fault::Failed(Error::because(code, cause)))
}

pub(super) fn not_directory(ino: Ino) -> Error {
    Error::because(Code::NotDirectory, format!("inode {} is not a directory", ino.0))
}

/// A walk through the tree of names for one user.
pub(super) struct Walker<'a> {
    pub(super) store: &'a dyn MetaStore,
    pub(super) who: &'a Credentials,
    /// Where the walk begins.
    base: Ino,
    /// Symbolic links followed so far.
    links: usize,
}

impl<'a> Walker<'a> {
    pub(super) fn new(store: &'a dyn MetaStore, who: &'a Credentials) -> Walker<'a> {
        Walker { store, who, base: Ino::ROOT, links: 0 }
    }

    /// Loads a directory in which names are to be looked up.
    async fn enter(&self, ino: Ino) -> Step<Inode> {
        let inode = self.load(ino).await?;
        if !inode.is_directory() {
            return Err(Fault::Failed(not_directory(ino)));
        }
        demand(&inode, ino, self.who, SEARCH)?;
        Ok(inode)
    }

    async fn load(&self, ino: Ino) -> Step<Inode> {
        match peek(self.store, ino).await {
            // It was replaced after its name was read: the name leads elsewhere by now.
            Err(error) if error.code == Code::NotFound && ino != self.base => Err(Fault::Conflict),
            other => Ok(other?),
        }
    }

    /// Walks all but the last component, following symbolic links.
    pub(super) async fn spot(&mut self, place: &Place) -> Step<Spot> {
        self.base = place.base;
        self.walk(place.base, &place.path).await
    }

    async fn walk(&mut self, base: Ino, path: &[u8]) -> Step<Spot> {
        if path.len() > PATH_BYTES_MAX {
            return fail(Code::NameTooLong, format!("a path of {} bytes", path.len()));
        }
        if path.contains(&0) {
            return fail(Code::Invalid, "a path with a zero byte in it");
        }
        let mut directory = if path.first() == Some(&b'/') { Ino::ROOT } else { base };
        // Replaced when a symbolic link is followed.
        let mut owned: Vec<u8>;
        let mut path = path;
        loop {
            path = skip_slashes(path);
            let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
            let (component, rest) = path.split_at(end);
            let slash = !rest.is_empty();
            let rest = skip_slashes(rest);
            if component.len() > NAME_BYTES_MAX {
                return fail(Code::NameTooLong, format!("a name of {} bytes", component.len()));
            }
            if rest.is_empty() {
                let last = match component {
                    b"" => Last::Nothing,
                    b"." => Last::Dot,
                    b".." => Last::DotDot,
                    name => Last::Name(name.to_vec()),
                };
                return Ok(Spot { directory, named: directory != self.base, last, slash });
            }
            let inode = self.enter(directory).await?;
            match component {
                b"." => path = rest,
                b".." => {
                    directory = inode.parent;
                    path = rest;
                }
                name => {
                    let target = peek_name(self.store, directory, name).await?;
                    let target = target.ok_or_else(|| no_name(directory, name))?;
                    match target.kind {
                        FileKind::Directory => {
                            directory = target.ino;
                            path = rest;
                        }
                        FileKind::Symlink => {
                            let mut text = self.follow(target.ino).await?;
                            if text.first() == Some(&b'/') {
                                directory = Ino::ROOT;
                            }
                            text.push(b'/');
                            text.extend_from_slice(rest);
                            owned = text;
                            path = &owned;
                        }
                        _ => return Err(Fault::Failed(not_directory(target.ino))),
                    }
                }
            }
        }
    }

    /// A symbolic link's text.
    async fn follow(&mut self, link: Ino) -> Step<Vec<u8>> {
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            return fail(
                Code::Loop,
                format!("more than {SYMLINKS_MAX} symbolic links, the last one inode {}", link.0),
            );
        }
        Ok(self.load(link).await?.tail)
    }

    /// What a place names.
    pub(super) async fn find(&mut self, place: &Place, follow: bool) -> Step<Ino> {
        let mut spot = self.spot(place).await?;
        loop {
            let (target, name) = match &spot.last {
                Last::Nothing => return Ok(spot.directory),
                Last::Dot => {
                    self.enter(spot.directory).await?;
                    return Ok(spot.directory);
                }
                Last::DotDot => return Ok(self.enter(spot.directory).await?.parent),
                Last::Name(name) => {
                    self.enter(spot.directory).await?;
                    (self.name(spot.directory, name).await?, name)
                }
            };
            match target {
                None => return Err(Fault::Failed(no_name(spot.directory, name))),
                Some(Target { ino, kind: FileKind::Symlink }) if follow || spot.slash => {
                    spot = self.beyond(&spot, ino).await?;
                }
                Some(target) if spot.slash && target.kind != FileKind::Directory => {
                    return Err(Fault::Failed(not_directory(target.ino)));
                }
                Some(target) => return Ok(target.ino),
            }
        }
    }

    async fn name(&self, directory: Ino, name: &[u8]) -> Result<Option<Target>> {
        peek_name(self.store, directory, name).await
    }

    /// The place that a symbolic link, found at `spot`, leads to.
    pub(super) async fn beyond(&mut self, spot: &Spot, link: Ino) -> Step<Spot> {
        let mut path = self.follow(link).await?;
        if spot.slash {
            path.push(b'/');
        }
        self.walk(spot.directory, &path).await
    }
}

fn skip_slashes(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    &path[start..]
}
