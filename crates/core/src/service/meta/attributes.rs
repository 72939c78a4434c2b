//! Changing attributes: permissions, owners, times, layouts, extended attributes.

use super::files::strip_set_ids;
use super::path::{READ, SET_GID, STICKY, WRITE, allows, closes, demand, in_group, owns, show};
use super::records::{DirectoryTimes, Inode, name_of, times_key, xattr_key, xattrs_of};
use super::txn::{Fault, Step, Txn, peek};
use super::{MetaService, check_wish};
use crate::config::{NAME_BYTES_MAX, XATTR_BYTES_MAX};
use crate::error::{Code, Error, Result};
use crate::types::{Credentials, FileKind, Ino, Now, WallTime};
use crate::wire::meta::{Changes, LayoutWish, MetaReply, SetTime};

/// Extended attributes of one inode.
pub(super) const XATTRS_MAX: u32 = 128;

/// Whether an extended attribute must be new, or must exist.
#[derive(Clone, Copy)]
pub(super) struct XattrMode {
    pub(super) create: bool,
    pub(super) replace: bool,
}

fn not_owner(who: &Credentials, ino: Ino, inode: &Inode) -> Error {
    Error::because(
        Code::NotPermitted,
        format!("inode {} belongs to user {}, not to {}", ino.0, inode.uid, who.uid),
    )
}

impl MetaService {
    pub(super) async fn change(
        &self,
        now: Now,
        who: &Credentials,
        ino: Ino,
        changes: &Changes,
    ) -> Step<MetaReply> {
        let mut txn = self.txn();
        let inode = txn.load(ino).await?;
        demand_changes(who, ino, inode, changes)?;
        if *changes == Changes::default() {
            let record = self.record(now, ino, inode).await?;
            return Ok(MetaReply::Found(record));
        }
        let directory_before = inode.is_directory().then(|| inode.clone());
        let inode = txn.change(ino);
        if changes.uid.is_some() || changes.gid.is_some() {
            inode.uid = changes.uid.unwrap_or(inode.uid);
            inode.gid = changes.gid.unwrap_or(inode.gid);
            if !inode.is_directory() {
                strip_set_ids(inode);
            }
        }
        if let Some(mode) = changes.mode {
            inode.mode = mode & 0o7777;
            if !in_group(who, inode.gid) {
                inode.mode &= !SET_GID;
            }
        }
        let time = |set: SetTime| match set {
            SetTime::Now => now.wall,
            SetTime::To(time) => time,
        };
        if let Some(atime) = changes.atime {
            inode.atime = time(atime);
        }
        let mut stamps = false;
        if let Some(mtime) = changes.mtime {
            inode.mtime = time(mtime);
            if inode.kind == FileKind::Regular {
                // Times of writes before this count no more; the targets are told by the client.
                inode.data_epoch = inode.data_epoch.saturating_add(1);
                inode.version += 1;
                stamps = inode.objects;
            }
        }
        inode.ctime = now.wall;
        let inode = inode.clone();
        if inode.is_directory() && changes.mtime.is_some() {
            let times = DirectoryTimes { mtime: inode.mtime, ctime: inode.ctime };
            txn.put(times_key(ino), crate::wire::encode(&times));
        }
        let closes = directory_before.is_some_and(|before| closes(&before, &inode));
        let _closing = closes.then(|| self.ways.close(now.mono_ms)).transpose()?;
        txn.use_reserve();
        txn.commit().await?;
        let mut record = self.record(now, ino, &inode).await?;
        if stamps && record.unsettled.is_none() {
            record.unsettled = Some(Box::new(self.unsettled(now, ino, &inode)?));
        }
        Ok(MetaReply::Found(record))
    }

    pub(super) async fn layout(&self, ino: Ino) -> Result<MetaReply> {
        let inode = peek(&*self.store, ino).await?;
        layout_reply(&inode)
    }

    pub(super) async fn set_layout(
        &self,
        now: Now,
        who: &Credentials,
        ino: Ino,
        wish: LayoutWish,
    ) -> Step<MetaReply> {
        check_wish(wish)?;
        let mut txn = self.txn();
        let inode = txn.load(ino).await?;
        if !owns(inode, who) {
            return Err(Fault::Failed(not_owner(who, ino, inode)));
        }
        match inode.kind {
            FileKind::Directory => txn.change(ino).wish = wish,
            FileKind::Regular if inode.objects => {
                return Err(Fault::Failed(Error::because(
                    Code::InUse,
                    format!("inode {} was opened for writing: its layout stays", ino.0),
                )));
            }
            FileKind::Regular => {
                let old = inode.layout()?;
                let mut layout = self.place(wish, LayoutWish::default())?;
                layout.generation = old.generation + 1;
                txn.change(ino).tail = crate::wire::encode(&layout);
            }
            _ => {
                return Err(Fault::Failed(Error::because(
                    Code::Invalid,
                    format!("inode {} is neither file nor directory", ino.0),
                )));
            }
        }
        let inode = txn.change(ino);
        inode.ctime = now.wall;
        let reply = layout_reply(inode)?;
        txn.commit().await?;
        Ok(reply)
    }

    pub(super) async fn get_xattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
    ) -> Result<MetaReply> {
        let inode = peek(&*self.store, ino).await?;
        demand_xattr(who, ino, &inode, name, READ)?;
        match self.store.get(&xattr_key(ino, name)).await? {
            Some(found) => Ok(MetaReply::Text(found.value)),
            None => Err(no_attribute(ino, name)),
        }
    }

    pub(super) async fn set_xattr(
        &self,
        txn: &mut Txn<'_>,
        now: Now,
        who: &Credentials,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
    ) -> Step<MetaReply> {
        if value.len() > XATTR_BYTES_MAX {
            return Err(Fault::Failed(Error::because(
                Code::TooMany,
                format!("{} bytes in an extended attribute", value.len()),
            )));
        }
        let inode = txn.load(ino).await?;
        demand_xattr(who, ino, inode, name, WRITE)?;
        let count = inode.xattrs;
        let there = txn.read(xattr_key(ino, name)).await?.is_some();
        if there && mode.create {
            return Err(Fault::Failed(Error::because(
                Code::Exists,
                format!("attribute '{}' of inode {} exists", show(name), ino.0),
            )));
        }
        if !there && mode.replace {
            return Err(Fault::Failed(no_attribute(ino, name)));
        }
        if !there && count >= XATTRS_MAX {
            return Err(Fault::Failed(Error::because(
                Code::NoMetadataSpace,
                format!("inode {} has {count} extended attributes", ino.0),
            )));
        }
        let inode = txn.change(ino);
        inode.xattrs += u32::from(!there);
        inode.ctime = now.wall;
        txn.put(xattr_key(ino, name), value.to_vec());
        txn.commit().await?;
        Ok(MetaReply::Done)
    }

    pub(super) async fn list_xattrs(&self, who: &Credentials, ino: Ino) -> Result<MetaReply> {
        let inode = peek(&*self.store, ino).await?;
        let mut names = Vec::new();
        if inode.xattrs > 0 {
            let (start, end) = xattrs_of(ino);
            for item in self.store.range(&start, &end, XATTRS_MAX as usize).await? {
                let name = name_of(&item.key);
                if who.uid != 0 && name.starts_with(b"trusted.") {
                    continue;
                }
                names.extend_from_slice(name);
                names.push(0);
            }
        }
        Ok(MetaReply::Text(names))
    }

    pub(super) async fn remove_xattr(
        &self,
        txn: &mut Txn<'_>,
        now: Now,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
    ) -> Step<MetaReply> {
        let inode = txn.load(ino).await?;
        demand_xattr(who, ino, inode, name, WRITE)?;
        if txn.read(xattr_key(ino, name)).await?.is_none() {
            return Err(Fault::Failed(no_attribute(ino, name)));
        }
        let inode = txn.change(ino);
        // Read before the attribute was: if it was added in between, this conflicts.
        inode.xattrs = inode.xattrs.saturating_sub(1);
        inode.ctime = now.wall;
        txn.delete(xattr_key(ino, name));
        txn.commit().await?;
        Ok(MetaReply::Done)
    }
}

fn layout_reply(inode: &Inode) -> Result<MetaReply> {
    let layout = match inode.kind {
        FileKind::Regular => Some(inode.layout()?),
        _ => None,
    };
    Ok(MetaReply::Layout { layout, wish: inode.wish })
}

fn no_attribute(ino: Ino, name: &[u8]) -> Error {
    Error::because(
        Code::NoAttribute,
        format!("inode {} has no extended attribute '{}'", ino.0, show(name)),
    )
}

/// POSIX's rules for chmod, chown and utimens.
fn demand_changes(who: &Credentials, ino: Ino, inode: &Inode, changes: &Changes) -> Result<()> {
    let is_owner = owns(inode, who);
    if changes.mode.is_some() && !is_owner {
        return Err(not_owner(who, ino, inode));
    }
    let foreign = |uid: u32| uid != inode.uid && who.uid != 0;
    if changes.uid.is_some_and(|uid| !is_owner || foreign(uid)) {
        return Err(Error::because(
            Code::NotPermitted,
            format!("only root gives inode {} to another user", ino.0),
        ));
    }
    if let Some(gid) = changes.gid
        && (!is_owner || !(gid == inode.gid || in_group(who, gid)))
    {
        return Err(Error::because(
            Code::NotPermitted,
            format!("user {} may not give inode {} to group {gid}", who.uid, ino.0),
        ));
    }
    let times = [changes.atime, changes.mtime];
    let explicit = |set: &Option<SetTime>| matches!(set, Some(SetTime::To(WallTime(_))));
    if times.iter().any(explicit) && !is_owner {
        return Err(not_owner(who, ino, inode));
    }
    if times.iter().any(Option::is_some) && !is_owner && !allows(inode, who, WRITE) {
        demand(inode, ino, who, WRITE)?;
    }
    Ok(())
}

/// Linux's rules for extended attributes, by the part of the name in front of the first dot.
fn demand_xattr(who: &Credentials, ino: Ino, inode: &Inode, name: &[u8], want: u32) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(&0) {
        return Err(Error::because(
            Code::Range,
            format!("an extended attribute's name of {} bytes", name.len()),
        ));
    }
    let refused = |cause: &str| {
        Err(Error::because(
            Code::NotPermitted,
            format!("attribute '{}' of inode {}: {cause}", show(name), ino.0),
        ))
    };
    let sticky = inode.mode & STICKY != 0;
    let mut parts = name.splitn(2, |&byte| byte == b'.');
    let space = parts.next().unwrap_or_default();
    if parts.next() == Some(b"") {
        let cause = format!("attribute '{}' has no name behind the dot", show(name));
        return Err(Error::because(Code::Invalid, cause));
    }
    match space {
        b"user" if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) => match want {
            READ => Err(no_attribute(ino, name)),
            _ => refused("only files and directories have user attributes"),
        },
        b"user" if want == WRITE && inode.is_directory() && sticky && !owns(inode, who) => {
            refused("only the owner sets it on a sticky directory")
        }
        b"user" => demand(inode, ino, who, want),
        b"trusted" if who.uid != 0 => match want {
            READ => Err(no_attribute(ino, name)),
            _ => refused("only root sets it"),
        },
        b"security" if want == WRITE && !owns(inode, who) => refused("only the owner sets it"),
        b"trusted" | b"security" => Ok(()),
        _ => Err(Error::because(
            Code::Unsupported,
            format!("extended attributes like '{}' are not kept", show(name)),
        )),
    }
}
