//! Names: making, linking, removing, moving and listing them.

use super::path::{
    Last, READ, SET_GID, WRITE, demand, demand_removal, fail, in_group, no_name, show,
};
use super::records::{Inode, Target, decode, inode_key, name_of, names_behind, orphan_key};
use super::txn::{Fault, Step, Txn, peek};
use super::{Fate, MetaService, REPLY_BYTES, new_inode};
use crate::config::{ENTRIES_PER_REPLY_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX};
use crate::error::{Code, Error, Result};
use crate::types::{ClientId, Credentials, Entry, FileKind, Ino, Now, WallTime};
use crate::wire::meta::{LayoutWish, MetaReply, Place, Record};

/// Most names of one file.
pub const LINKS_MAX: u32 = 65_000;

/// Something to be made.
pub(super) struct New {
    kind: FileKind,
    mode: u32,
    rdev: u64,
    text: Vec<u8>,
}

impl New {
    pub(super) fn directory(mode: u32) -> New {
        New { kind: FileKind::Directory, mode, rdev: 0, text: Vec::new() }
    }

    pub(super) fn node(kind: FileKind, mode: u32, rdev: u64) -> Result<New> {
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(Error::because(Code::Invalid, "a directory or link is no node"));
        }
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        Ok(New { kind, mode, rdev: if device { rdev } else { 0 }, text: Vec::new() })
    }

    pub(super) fn symlink(text: Vec<u8>) -> Result<New> {
        if text.is_empty() || text.contains(&0) {
            return Err(Error::because(Code::NotFound, "a symbolic link to nothing"));
        }
        if text.len() > PATH_BYTES_MAX {
            return Err(Error::because(
                Code::NameTooLong,
                format!("text of {} bytes in a symbolic link", text.len()),
            ));
        }
        Ok(New { kind: FileKind::Symlink, mode: 0o777, rdev: 0, text })
    }
}

/// How a name is moved.
#[derive(Clone, Copy)]
pub(super) struct Renaming {
    pub(super) no_replace: bool,
    pub(super) exchange: bool,
}

pub(super) fn exists(directory: Ino, name: &[u8]) -> Error {
    Error::because(
        Code::Exists,
        format!("'{}' exists in directory inode {}", show(name), directory.0),
    )
}

/// An inode as a user makes it in a directory.
pub(super) fn child(
    parent: &Inode,
    who: &Credentials,
    kind: FileKind,
    mode: u32,
    at: WallTime,
) -> Inode {
    let mut inode = new_inode(kind, mode, who.uid, who.gid, at);
    if parent.mode & SET_GID != 0 {
        inode.gid = parent.gid;
        if kind == FileKind::Directory {
            inode.mode |= SET_GID;
        }
    }
    if kind != FileKind::Directory && inode.mode & 0o010 != 0 && !in_group(who, inode.gid) {
        inode.mode &= !SET_GID;
    }
    inode
}

/// Part of a directory.
pub(super) struct Part {
    pub(super) entries: Vec<Entry>,
    /// For each entry, if they were asked for.
    pub(super) records: Vec<Record>,
    /// Whether the directory ends here.
    pub(super) end: bool,
    pub(super) directory: Inode,
}

impl MetaService {
    /// Makes anything but an open regular file.
    pub(super) async fn make(
        &self,
        txn: &mut Txn<'_>,
        now: Now,
        who: &Credentials,
        place: &Place,
        new: &New,
    ) -> Step<MetaReply> {
        let spot = self.walker(who).spot(place).await?;
        let directory = spot.directory;
        let Last::Name(name) = &spot.last else {
            return fail(Code::Exists, "a path that ends in '.', '..' or '/' names what exists");
        };
        self.enter(txn, who, &spot).await?;
        if txn.name(directory, name).await?.is_some() {
            return Err(Fault::Failed(exists(directory, name)));
        }
        if spot.slash && new.kind != FileKind::Directory {
            return Err(Fault::Failed(no_name(directory, name)));
        }
        let parent = txn.inode(directory);
        demand(parent, directory, who, WRITE)?;
        if matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice) && who.uid != 0 {
            return fail(Code::NotPermitted, "only root makes devices");
        }
        let mut inode = child(parent, who, new.kind, new.mode, now.wall);
        inode.rdev = new.rdev;
        match new.kind {
            FileKind::Directory => {
                inode.parent = directory;
                inode.wish = parent.wish;
                // A directory counts its subdirectories' `..` as names.
                txn.change(directory).nlink += 1;
            }
            FileKind::Regular => {
                let layout = self.place(LayoutWish::default(), parent.wish)?;
                inode.tail = crate::wire::encode(&layout);
            }
            FileKind::Symlink => {
                inode.size = new.text.len() as u64;
                inode.tail = new.text.clone();
            }
            _ => {}
        }
        let ino = self.new_ino().await?;
        let record = self.record(now, ino, &inode).await?;
        txn.put_name(directory, name, Target { ino, kind: new.kind });
        txn.touch(directory, now.wall);
        txn.add(ino, inode);
        txn.commit().await?;
        self.live.count_inodes(1);
        Ok(MetaReply::Found(record))
    }

    pub(super) async fn link(
        &self,
        txn: &mut Txn<'_>,
        now: Now,
        who: &Credentials,
        ino: Ino,
        place: &Place,
    ) -> Step<MetaReply> {
        let spot = self.walker(who).spot(place).await?;
        let directory = spot.directory;
        let Last::Name(name) = &spot.last else {
            return fail(Code::Exists, "a path that ends in '.', '..' or '/' names what exists");
        };
        let inode = txn.load(ino).await?;
        let (kind, nlink) = (inode.kind, inode.nlink);
        let unnamed = nlink == 0 && txn.is_unnamed(ino).await?;
        self.enter(txn, who, &spot).await?;
        if txn.name(directory, name).await?.is_some() {
            return Err(Fault::Failed(exists(directory, name)));
        }
        if kind == FileKind::Directory {
            return fail(Code::NotPermitted, format!("inode {} is a directory", ino.0));
        }
        if (nlink == 0 && !unnamed) || spot.slash {
            return Err(Fault::Failed(no_name(directory, name)));
        }
        demand(txn.inode(directory), directory, who, WRITE)?;
        if nlink >= LINKS_MAX {
            return fail(Code::TooManyLinks, format!("inode {} has {nlink} names", ino.0));
        }
        let inode = txn.change(ino);
        inode.nlink += 1;
        inode.ctime = now.wall;
        let record = self.record(now, ino, inode).await?;
        txn.put_name(directory, name, Target { ino, kind });
        txn.touch(directory, now.wall);
        if unnamed {
            txn.delete(orphan_key(ino));
        }
        txn.commit().await?;
        if unnamed {
            self.live.remove_orphan(ino);
            // Whoever has removed that name again by now may have noted it as an orphan before.
            if peek(&*self.store, ino).await.is_ok_and(|inode| inode.nlink == 0) {
                self.live.add_orphan(ino);
            }
        }
        Ok(MetaReply::Found(record))
    }

    pub(super) async fn unlink<'a>(
        &'a self,
        txn: &mut Txn<'_>,
        now: Now,
        who: &Credentials,
        place: &Place,
    ) -> Step<Fate<'a>> {
        let spot = self.walker(who).spot(place).await?;
        let directory = spot.directory;
        let Last::Name(name) = &spot.last else {
            return fail(Code::IsDirectory, "a path that ends in '.', '..' or '/'");
        };
        self.enter(txn, who, &spot).await?;
        let target = txn.name(directory, name).await?;
        let target = target.ok_or_else(|| no_name(directory, name))?;
        let ino = target.ino;
        load_named(txn, ino).await?;
        demand_removal((directory, txn.inode(directory)), (ino, txn.inode(ino)), who)?;
        if target.kind == FileKind::Directory {
            return fail(Code::IsDirectory, format!("'{}' is a directory", show(name)));
        }
        if spot.slash {
            return fail(Code::NotDirectory, format!("'{}' is not a directory", show(name)));
        }
        txn.delete_name(directory, name);
        txn.touch(directory, now.wall);
        let fate = self.drop_name(txn, ino, now.wall).await?;
        txn.commit().await?;
        Ok(fate)
    }

    pub(super) async fn remove_directory<'a>(
        &'a self,
        txn: &mut Txn<'_>,
        now: Now,
        (client, who): (ClientId, &Credentials),
        place: &Place,
    ) -> Step<Fate<'a>> {
        let spot = self.walker(who).spot(place).await?;
        let directory = spot.directory;
        let name = match &spot.last {
            Last::Name(name) => name,
            Last::Nothing => return fail(Code::InUse, "the root or a base directory stays"),
            Last::Dot => return fail(Code::Invalid, "a directory is not removed as '.'"),
            Last::DotDot => return fail(Code::NotEmpty, "'..' has at least one entry"),
        };
        self.enter(txn, who, &spot).await?;
        let target = txn.name(directory, name).await?;
        let target = target.ok_or_else(|| no_name(directory, name))?;
        let ino = target.ino;
        load_named(txn, ino).await?;
        demand_removal((directory, txn.inode(directory)), (ino, txn.inode(ino)), who)?;
        if target.kind != FileKind::Directory {
            return fail(Code::NotDirectory, format!("'{}' is not a directory", show(name)));
        }
        let fate = self.drop_directory(txn, ino).await?;
        let _taking = self.ways.take(client, now.mono_ms)?;
        txn.delete_name(directory, name);
        txn.change(directory).nlink -= 1;
        txn.touch(directory, now.wall);
        txn.commit().await?;
        Ok(fate)
    }

    /// Removes a loaded directory, if it is empty.
    async fn drop_directory(&self, txn: &mut Txn<'_>, ino: Ino) -> Step<Fate<'static>> {
        let (start, end) = names_behind(ino, b"");
        if let Some(item) = self.store.range(&start, &end, 1).await?.first() {
            return fail(
                Code::NotEmpty,
                format!("directory inode {} holds '{}'", ino.0, show(name_of(&item.key))),
            );
        }
        txn.expect_empty((start, end));
        txn.remove(ino).await?;
        Ok(Fate::Gone { reap: None, _mark: None })
    }

    pub(super) async fn rename<'a>(
        &'a self,
        txn: &mut Txn<'_>,
        now: Now,
        (client, who): (ClientId, &Credentials),
        from: &Place,
        to: &Place,
        how: Renaming,
    ) -> Step<Fate<'a>> {
        if how.no_replace && how.exchange {
            return fail(Code::Invalid, "a rename that exchanges but must not replace");
        }
        let from = self.walker(who).spot(from).await?;
        let to = self.walker(who).spot(to).await?;
        let (Last::Name(from_name), Last::Name(to_name)) = (&from.last, &to.last) else {
            return fail(Code::InUse, "a rename of '.', '..' or a base directory");
        };
        self.enter(txn, who, &from).await?;
        self.enter(txn, who, &to).await?;
        let source = txn.name(from.directory, from_name).await?;
        let source = source.ok_or_else(|| no_name(from.directory, from_name))?;
        let target = txn.name(to.directory, to_name).await?;
        match target {
            Some(_) if how.no_replace => return Err(Fault::Failed(exists(to.directory, to_name))),
            None if how.exchange => return Err(Fault::Failed(no_name(to.directory, to_name))),
            _ => {}
        }
        if from.directory == to.directory && from_name == to_name {
            return Ok(Fate::Stays);
        }
        let source_is_directory = source.kind == FileKind::Directory;
        let target_is_directory = target.is_some_and(|it| it.kind == FileKind::Directory);
        if from.slash && !source_is_directory {
            return fail(Code::NotDirectory, format!("'{}' is not a directory", show(from_name)));
        }
        // A slash behind what is to be says that it is to be a directory.
        let to_be = if how.exchange { target_is_directory } else { source_is_directory };
        if to.slash && !to_be {
            return fail(Code::NotDirectory, format!("'{}' is not a directory", show(to_name)));
        }
        if source_is_directory && inside(txn, to.directory, source.ino).await? {
            return fail(
                Code::Invalid,
                format!("directory inode {} cannot move into itself", source.ino.0),
            );
        }
        load_named(txn, source.ino).await?;
        if let Some(target) = target {
            load_named(txn, target.ino).await?;
            if target_is_directory && inside(txn, from.directory, target.ino).await? {
                let code = if how.exchange { Code::Invalid } else { Code::NotEmpty };
                return fail(code, format!("directory inode {} holds what is moved", target.ino.0));
            }
            if target.ino == source.ino {
                // Two names of one file: POSIX leaves both.
                return Ok(Fate::Stays);
            }
        }
        let from_directory = (from.directory, txn.inode(from.directory));
        demand_removal(from_directory, (source.ino, txn.inode(source.ino)), who)?;
        let to_directory = (to.directory, txn.inode(to.directory));
        match target {
            None => demand(to_directory.1, to.directory, who, WRITE)?,
            Some(target) => {
                demand_removal(to_directory, (target.ino, txn.inode(target.ino)), who)?;
            }
        }
        let moves_parent = from.directory != to.directory;
        if moves_parent && source_is_directory {
            // Its `..` is to change.
            demand(txn.inode(source.ino), source.ino, who, WRITE)?;
        }
        let mut fate = Fate::Stays;
        if let Some(target) = target {
            if how.exchange {
                if moves_parent && target_is_directory {
                    demand(txn.inode(target.ino), target.ino, who, WRITE)?;
                }
                settle_in(txn, target, to.directory, from.directory, now.wall);
                txn.put_name(from.directory, from_name, target);
            } else {
                match (source_is_directory, target_is_directory) {
                    (true, false) => {
                        return fail(
                            Code::NotDirectory,
                            format!("'{}' is not a directory", show(to_name)),
                        );
                    }
                    (false, true) => {
                        return fail(
                            Code::IsDirectory,
                            format!("'{}' is a directory", show(to_name)),
                        );
                    }
                    (true, true) => {
                        fate = self.drop_directory(txn, target.ino).await?;
                        txn.change(to.directory).nlink -= 1;
                    }
                    (false, false) => {
                        fate = self.drop_name(txn, target.ino, now.wall).await?;
                    }
                }
            }
        }
        settle_in(txn, source, from.directory, to.directory, now.wall);
        txn.put_name(to.directory, to_name, source);
        if !how.exchange {
            txn.delete_name(from.directory, from_name);
        }
        let of_directory = source_is_directory || target_is_directory;
        let _taking = of_directory.then(|| self.ways.take(client, now.mono_ms)).transpose()?;
        txn.touch(from.directory, now.wall);
        txn.touch(to.directory, now.wall);
        txn.commit().await?;
        Ok(fate)
    }

    pub(super) async fn list(
        &self,
        now: Now,
        who: &Credentials,
        ino: Ino,
        after: &[u8],
        limit: u32,
        with_attributes: bool,
    ) -> Result<Part> {
        let inode = peek(&*self.store, ino).await?;
        if !inode.is_directory() {
            return Err(Error::because(
                Code::NotDirectory,
                format!("inode {} is not a directory", ino.0),
            ));
        }
        demand(&inode, ino, who, READ)?;
        if after.len() > NAME_BYTES_MAX {
            return Err(Error::because(Code::NameTooLong, "a listing behind an overlong name"));
        }
        let limit = (limit as usize).clamp(1, ENTRIES_PER_REPLY_MAX);
        let (start, end_key) = names_behind(ino, after);
        let items = self.store.range(&start, &end_key, limit + 1).await?;
        let mut end = items.len() <= limit;
        let (mut entries, mut records) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        for item in items.iter().take(limit) {
            let name = name_of(&item.key);
            let target: Target = decode(&item.value, "a name")?;
            bytes += name.len() + 16;
            if with_attributes {
                let Some(found) = self.store.get(&inode_key(target.ino)).await? else {
                    // Removed since the names were read.
                    continue;
                };
                bytes += 2 * found.value.len() + 160;
                if bytes > REPLY_BYTES && !entries.is_empty() {
                    end = false;
                    break;
                }
                let inode = Inode::decode(&found.value)?;
                records.push(self.record(now, target.ino, &inode).await?);
            }
            entries.push(Entry { name: name.to_vec(), ino: target.ino, kind: target.kind });
        }
        if entries.is_empty() && !end {
            // All of this part was removed meanwhile; an empty part that is not the end would leave
            // the client without a name to go on from.
            return Err(Error::because(Code::Busy, "directory is changing"));
        }
        Ok(Part { entries, records, end, directory: inode })
    }

    pub(super) async fn read_link(&self, ino: Ino) -> Result<MetaReply> {
        let inode = peek(&*self.store, ino).await?;
        if inode.kind != FileKind::Symlink {
            return Err(Error::because(
                Code::Invalid,
                format!("inode {} is not a symbolic link", ino.0),
            ));
        }
        Ok(MetaReply::Text(inode.tail))
    }
}

/// Loads what a name that was just read leads to. If it is not there, the name has gone since.
async fn load_named(txn: &mut Txn<'_>, ino: Ino) -> Step<()> {
    match txn.load(ino).await {
        Ok(_) => Ok(()),
        Err(error) if error.code == Code::NotFound => Err(Fault::Conflict),
        Err(error) => Err(Fault::Failed(error)),
    }
}

/// Whether a directory is `root` or below it. All directories on the way become conditions, so that
/// two moves at once cannot make a ring of them.
async fn inside(txn: &mut Txn<'_>, directory: Ino, root: Ino) -> Step<bool> {
    let (mut at, mut steps) = (directory, 0);
    while at != Ino::ROOT {
        if at == root {
            return Ok(true);
        }
        at = txn.load(at).await?.parent;
        steps += 1;
        if steps > txn.loaded() {
            // Parents read at different times made a ring that never was.
            return Err(Fault::Conflict);
        }
    }
    Ok(root == Ino::ROOT)
}

/// Notes in a loaded inode, and in its old and new parent, that it moved.
fn settle_in(txn: &mut Txn<'_>, moved: Target, old: Ino, new: Ino, at: WallTime) {
    let inode = txn.change(moved.ino);
    inode.ctime = at;
    if moved.kind == FileKind::Directory && old != new {
        inode.parent = new;
        txn.change(old).nlink -= 1;
        txn.change(new).nlink += 1;
    }
}
