//! Regular files: opening and closing, truncation, and who knows their size.

use super::path::{Last, READ, SEARCH, SET_GID, SET_UID, Spot, WRITE, demand, not_directory};
use super::records::{Cut, Inode, Target};
use super::txn::{Fault, Step, Txn, attempt, peek};
use super::{MetaService, VERSION_MADE, live::Handle, live::Hold};
use crate::auth::Rights;
use crate::config::RIDERS_PER_CALL_MAX;
use crate::error::{Code, Error, Result};
use crate::layout::FILE_SIZE_MAX;
use crate::types::{ClientId, Credentials, FileKind, Ino, Now, WallTime};
use crate::wire::meta::{
    LayoutWish, MetaReply, OpenMode, Opened, PendingTruncate, Place, Reap, Rider, Settlement,
};

/// What a request to create a file asks for.
pub(super) struct Wanted {
    pub(super) mode: u32,
    pub(super) exclusive: bool,
    pub(super) open: OpenMode,
    pub(super) layout: LayoutWish,
}

impl MetaService {
    pub(super) async fn create(
        &self,
        now: Now,
        client: ClientId,
        who: &Credentials,
        place: &Place,
        wanted: &Wanted,
    ) -> Step<MetaReply> {
        check_mode(wanted.open)?;
        let mut walker = self.walker(who);
        let mut spot = walker.spot(place).await?;
        loop {
            let name = match &spot.last {
                Last::Name(name) if !spot.slash => name,
                _ => {
                    return Err(Fault::Failed(Error::because(
                        Code::IsDirectory,
                        "a path that ends like a directory's",
                    )));
                }
            };
            let mut txn = self.txn();
            self.enter(&mut txn, who, &spot).await?;
            let Some(target) = txn.name(spot.directory, name).await? else {
                let at = (spot.directory, Some(&name[..]));
                let result = self.create_new(&mut txn, now, client, who, at, wanted).await;
                return txn.conclude(result).await;
            };
            if wanted.exclusive {
                return Err(Fault::Failed(super::names::exists(spot.directory, name)));
            }
            if target.kind == FileKind::Symlink {
                spot = walker.beyond(&spot, target.ino).await?;
                continue;
            }
            return match self.open_ino(now, client, who, target.ino, wanted.open).await {
                // It was there a moment ago: the name has gone meanwhile.
                Err(Fault::Failed(error)) if error.code == Code::NotFound => Err(Fault::Conflict),
                result => result,
            };
        }
    }

    /// Makes a file that has no name.
    pub(super) async fn create_unnamed(
        &self,
        now: Now,
        client: ClientId,
        who: &Credentials,
        directory: Ino,
        wanted: &Wanted,
    ) -> Step<MetaReply> {
        check_mode(wanted.open)?;
        let mut txn = self.txn();
        let parent = txn.load(directory).await?;
        if !parent.is_directory() {
            return Err(Fault::Failed(not_directory(directory)));
        }
        demand(parent, directory, who, SEARCH)?;
        let at = (directory, None);
        let result = self.create_new(&mut txn, now, client, who, at, wanted).await;
        txn.conclude(result).await
    }

    async fn create_new(
        &self,
        txn: &mut Txn<'_>,
        now: Now,
        client: ClientId,
        who: &Credentials,
        (directory, name): (Ino, Option<&[u8]>),
        wanted: &Wanted,
    ) -> Step<MetaReply> {
        let parent = txn.inode(directory);
        demand(parent, directory, who, WRITE)?;
        let mut inode = super::names::child(parent, who, FileKind::Regular, wanted.mode, now.wall);
        let layout = self.place(wanted.layout, parent.wish)?;
        inode.tail = crate::wire::encode(&layout);
        inode.objects = wanted.open.write;
        inode.settled = !wanted.open.write;
        let ino = self.new_ino().await?;
        let hold = self.hold(now, client, ino, wanted.open)?;
        match name {
            Some(name) => {
                txn.put_name(directory, name, Target { ino, kind: FileKind::Regular });
                txn.touch(directory, now.wall);
            }
            None => {
                inode.nlink = 0;
                txn.put_unnamed(ino);
            }
        }
        txn.add(ino, inode.clone());
        txn.commit().await?;
        self.live.count_inodes(1);
        if name.is_none() {
            self.live.add_orphan(ino);
        }
        let record = crate::wire::meta::Record {
            attributes: super::attributes_of(ino, &inode),
            unsettled: None,
        };
        let rights = rights_of(wanted.open.read, wanted.open.write, &inode);
        Ok(MetaReply::Opened(Box::new(Opened {
            handle: hold.keep(),
            record,
            version: inode.version,
            capability: self.capability(now, ino, rights, &layout),
            layout,
            truncation: None,
            created: true,
        })))
    }

    pub(super) async fn open_ino(
        &self,
        now: Now,
        client: ClientId,
        who: &Credentials,
        ino: Ino,
        open: OpenMode,
    ) -> Step<MetaReply> {
        check_mode(open)?;
        // Before the inode is read: whoever removes the file from now on leaves us an orphan.
        let hold = self.hold(now, client, ino, open)?;
        let mut txn = self.txn();
        let inode = txn.load(ino).await?;
        demand_regular(ino, inode)?;
        if open.read {
            demand(inode, ino, who, READ)?;
        }
        if open.write {
            demand(inode, ino, who, WRITE)?;
        }
        let was_settled = inode.settled;
        let mut cuts = false;
        if open.write {
            let inode = txn.change(ino);
            if open.truncate {
                cuts = !(inode.settled && inode.size == 0);
                if cuts {
                    begin_cut(inode, 0, false);
                }
                clear_set_ids(inode, who);
                inode.mtime = now.wall;
                inode.ctime = now.wall;
            }
            inode.version += 1;
            inode.objects = true;
            inode.settled = false;
        }
        let inode = txn.inode(ino).clone();
        if open.write {
            txn.use_reserve();
            txn.commit().await?;
        }
        if cuts {
            self.live.reset_append(ino);
        }
        let mut record = self.record(now, ino, &inode).await?;
        if was_settled {
            record.unsettled = None;
        }
        Ok(MetaReply::Opened(Box::new(self.opened(now, ino, &inode, record, open, hold)?)))
    }

    /// Opens what a place names: lookup and opening in one request.
    pub(super) async fn open_at(
        &self,
        now: Now,
        client: ClientId,
        who: &Credentials,
        place: &Place,
        open: OpenMode,
    ) -> Step<MetaReply> {
        check_mode(open)?;
        let ino = self.walker(who).find(place, true).await?;
        match self.open_ino(now, client, who, ino, open).await {
            // It was there a moment ago: the name has gone meanwhile, or leads elsewhere.
            Err(Fault::Failed(error)) if error.code == Code::NotFound && !place.path.is_empty() => {
                Err(Fault::Conflict)
            }
            result => result,
        }
    }

    fn opened(
        &self,
        now: Now,
        ino: Ino,
        inode: &Inode,
        record: crate::wire::meta::Record,
        open: OpenMode,
        hold: Hold<'_>,
    ) -> Result<Opened> {
        let layout = inode.layout()?;
        let rights = rights_of(open.read, open.write, inode);
        Ok(Opened {
            handle: hold.keep(),
            record,
            version: inode.version,
            capability: self.capability(now, ino, rights, &layout),
            layout,
            truncation: inode.truncation.map(|cut| cut.pending),
            created: false,
        })
    }

    fn hold(&self, now: Now, client: ClientId, ino: Ino, open: OpenMode) -> Result<Hold<'_>> {
        let handle = Handle { client, ino, read: open.read, write: open.write };
        self.live.hold(handle, now.mono_ms)
    }

    pub(super) async fn renew(&self, now: Now, client: ClientId, number: u64) -> Result<MetaReply> {
        let handle = self.live.handle(number, client)?;
        let ino = handle.ino;
        let inode = peek(&*self.store, ino).await?;
        let record = self.record(now, ino, &inode).await?;
        let layout = inode.layout()?;
        let rights = rights_of(handle.read, handle.write, &inode);
        Ok(MetaReply::Opened(Box::new(Opened {
            handle: number,
            record,
            version: inode.version,
            capability: self.capability(now, ino, rights, &layout),
            layout,
            truncation: inode.truncation.map(|cut| cut.pending),
            created: false,
        })))
    }

    pub(super) async fn close(
        &self,
        now: Now,
        client: ClientId,
        number: u64,
        settlement: Option<Settlement>,
        unsure: bool,
    ) -> Result<MetaReply> {
        if unsure && self.live.handle(number, client)?.write {
            self.live.release_later(number, now.mono_ms + self.timing.capability_ms);
            return Ok(self.told(now, Vec::new()));
        }
        let reap = self.end(client, number, settlement).await?;
        Ok(self.told(now, reap.into_iter().collect()))
    }

    /// Ends a handle; gives what is to be freed if that was the last of a removed file.
    async fn end(
        &self,
        client: ClientId,
        number: u64,
        settlement: Option<Settlement>,
    ) -> Result<Option<Reap>> {
        let handle = self.live.handle(number, client)?;
        if let Some(settlement) = settlement.filter(|_| handle.write) {
            // If this fails, the file stays unsettled, and whoever wants to know asks the targets.
            let _ = attempt!(self.settle(handle.ino, settlement, 1));
        }
        if self.live.release(number) {
            // If this fails, a later round of `expire` collects it.
            return Ok(self.collect(handle.ino).await.unwrap_or(None));
        }
        Ok(None)
    }

    /// Does what is asked by the way. Says whether a file went with one of the handles that end,
    /// whose objects wait to be freed. What was done already, or is not the client's, is passed over.
    ///
    /// # Errors
    /// If they are more than one call may name.
    pub async fn ride(&self, client: ClientId, riders: &[Rider]) -> Result<bool> {
        if riders.len() > RIDERS_PER_CALL_MAX {
            let cause = format!("{} handles and truncations to end in one call", riders.len());
            return Err(Error::because(Code::TooMany, cause));
        }
        let mut garbage = false;
        for rider in riders {
            let closing = match *rider {
                Rider::Close(closing) => closing,
                Rider::Truncated { ino, epoch } => {
                    // If this fails, whoever finds it undone carries it out once more.
                    let _ = attempt!(self.end_truncate(ino, epoch));
                    continue;
                }
                Rider::Unfit { member } => {
                    self.set_unfit(member);
                    continue;
                }
            };
            if let Ok(Some(reap)) = self.end(client, closing.handle, closing.settlement).await {
                // Whoever asks first is told; this client is told that it may ask.
                self.live.add_garbage(reap.ino, 0);
                garbage = true;
            }
        }
        Ok(garbage)
    }

    /// Takes a report, if it is right: nobody but the reporter (`writers` is 1 if he is one, else
    /// 0) has the file open for writing, and the version is still that for which he reports.
    pub(super) async fn settle(&self, ino: Ino, settlement: Settlement, writers: u32) -> Step<()> {
        if settlement.size > FILE_SIZE_MAX {
            return Err(Fault::Failed(Error::because(Code::TooLarge, "a size beyond all files")));
        }
        let mut txn = self.txn();
        let inode = txn.load(ino).await?;
        let stale = inode.version != settlement.version
            || inode.kind != FileKind::Regular
            || inode.settled
            || inode.truncation.is_some();
        // Asked after the inode was read: an opening for writing that is not counted here yet makes
        // a new version, and so a conflict.
        if stale || self.live.writers(ino) != writers {
            return Ok(());
        }
        let inode = txn.change(ino);
        inode.settled = true;
        inode.size = settlement.size;
        if settlement.mtime != WallTime(0) {
            inode.mtime = settlement.mtime;
            inode.ctime = inode.ctime.max(settlement.mtime);
        } else if writers == 1 && settlement.version == VERSION_MADE && settlement.size == 0 {
            // Open for writing only once, when it was made, and not written then, as the writer
            // himself says: no target has heard of it, and when it is removed there is nothing to
            // free. Somebody else's word is not enough: a writer whose lease lapsed may go on.
            inode.objects = false;
        }
        txn.use_reserve();
        txn.commit().await
    }

    pub(super) async fn begin_truncate(
        &self,
        now: Now,
        client: ClientId,
        who: &Credentials,
        ino: Ino,
        size: u64,
        handle: Option<u64>,
    ) -> Step<MetaReply> {
        if size > FILE_SIZE_MAX {
            return Err(Fault::Failed(Error::because(
                Code::TooLarge,
                format!("truncation to {size} bytes is beyond the largest file"),
            )));
        }
        let mut txn = self.txn();
        let inode = txn.load(ino).await?;
        demand_regular(ino, inode)?;
        match handle {
            None => demand(inode, ino, who, WRITE)?,
            Some(number) => {
                let handle = self.live.handle(number, client)?;
                if handle.ino != ino || !handle.write {
                    return Err(Fault::Failed(Error::because(
                        Code::BadHandle,
                        format!("handle {number:#x} is not open for writing inode {}", ino.0),
                    )));
                }
            }
        }
        if let Some(older) = inode.truncation.filter(|older| older.pending.cut < size) {
            // The targets may have seen it, and bytes may have been written behind its end since.
            let layout = inode.layout()?;
            return Ok(MetaReply::Unfinished {
                pending: older.pending,
                capability: self.capability(now, ino, Rights::STAT.and(Rights::WRITE), &layout),
                layout,
            });
        }
        // What a settled file has no holes in stays so when it is cut, not when it grows.
        let whole = size == 0 || (inode.settled && size <= inode.size);
        let quiet = whole && self.live.writers(ino) == 0;
        let inode = txn.change(ino);
        begin_cut(inode, size, quiet);
        clear_set_ids(inode, who);
        inode.mtime = now.wall;
        inode.ctime = now.wall;
        let inode = inode.clone();
        txn.use_reserve();
        txn.commit().await?;
        self.live.reset_append(ino);
        let layout = inode.layout()?;
        let rights = Rights::STAT.and(Rights::WRITE);
        let cut = inode.truncation.expect("it was just begun");
        Ok(MetaReply::Truncation {
            pending: cut.pending,
            capability: self.capability(now, ino, rights, &layout),
            layout,
            version: inode.version,
        })
    }

    pub(super) async fn end_truncate(&self, ino: Ino, epoch: u32) -> Step<MetaReply> {
        let mut txn = self.txn();
        let inode = txn.load(ino).await?;
        let Some(cut) = inode.truncation.filter(|cut| cut.pending.epoch == epoch) else {
            // A newer one has begun, or somebody else was quicker.
            return Ok(MetaReply::Done);
        };
        let quiet = cut.quiet && inode.version == cut.version && self.live.writers(ino) == 0;
        let inode = txn.change(ino);
        inode.truncation = None;
        if quiet {
            inode.settled = true;
            inode.size = cut.pending.size;
        }
        txn.use_reserve();
        txn.commit().await?;
        Ok(MetaReply::Done)
    }

    pub(super) async fn reserve_append(
        &self,
        number: u64,
        ino: Ino,
        length: u64,
        (floor, known): (u64, Option<u64>),
    ) -> Result<MetaReply> {
        if !self.live.opening(number, ino)?.write {
            return Err(Error::because(
                Code::BadHandle,
                format!("handle {number:#x} is not open for writing"),
            ));
        }
        let inode = peek(&*self.store, ino).await?;
        // Asked after the inode was read: an opening for writing that is not counted here yet makes a new version. One
        // that is will be seen the next time.
        let is_sole = self.live.writers(ino) == 1 && inode.truncation.is_none();
        let sole = is_sole.then_some(inode.version);
        let offset = match known {
            Some(_) if known != sole => None,
            _ => Some(self.live.reserve(ino, floor, length)?),
        };
        Ok(MetaReply::Reserved { offset, sole })
    }

    /// Loads a directory in which names are to be changed; it must stay what it is until then.
    pub(super) async fn enter(
        &self,
        txn: &mut Txn<'_>,
        who: &Credentials,
        spot: &Spot,
    ) -> Step<()> {
        let inode = match txn.load(spot.directory).await {
            Err(error) if error.code == Code::NotFound && spot.named => {
                return Err(Fault::Conflict);
            }
            other => other?,
        };
        if !inode.is_directory() {
            return Err(Fault::Failed(not_directory(spot.directory)));
        }
        Ok(demand(inode, spot.directory, who, SEARCH)?)
    }
}

fn check_mode(open: OpenMode) -> Result<()> {
    if !open.read && !open.write {
        return Err(Error::because(Code::Invalid, "opened neither to read nor to write"));
    }
    if open.truncate && !open.write {
        return Err(Error::because(Code::Invalid, "truncation by an opening to read"));
    }
    Ok(())
}

fn demand_regular(ino: Ino, inode: &Inode) -> Result<()> {
    let (code, what) = match inode.kind {
        FileKind::Regular => return Ok(()),
        FileKind::Directory => (Code::IsDirectory, "a directory"),
        FileKind::Symlink => (Code::Loop, "a symbolic link"),
        _ => (Code::Invalid, "a special file"),
    };
    Err(Error::because(code, format!("inode {} is {what}", ino.0)))
}

/// The size to be, as far as the service can bring it about: the targets are told by the client.
fn begin_cut(inode: &mut Inode, size: u64, quiet: bool) {
    inode.data_epoch = inode.data_epoch.saturating_add(1);
    inode.version += 1;
    inode.settled = false;
    inode.objects = true;
    inode.size = size;
    // Whoever begins one has seen to it that no older one cut more.
    let pending = PendingTruncate { cut: size, size, epoch: inode.data_epoch };
    inode.truncation = Some(Cut { pending, version: inode.version, quiet });
}

/// Who changes a file without being root takes its set-id bits away.
pub(super) fn clear_set_ids(inode: &mut Inode, who: &Credentials) {
    if who.uid != 0 {
        strip_set_ids(inode);
    }
}

/// Set-group-id without the group's execute bit means something else (mandatory locks): it stays.
pub(super) fn strip_set_ids(inode: &mut Inode) {
    inode.mode &= !SET_UID;
    if inode.mode & 0o010 != 0 {
        inode.mode &= !SET_GID;
    }
}

fn rights_of(read: bool, write: bool, inode: &Inode) -> Rights {
    let mut rights = Rights::STAT;
    if read {
        rights = rights.and(Rights::READ);
    }
    // A truncation left undone is for whoever finds it to carry out.
    if write || inode.truncation.is_some() {
        rights = rights.and(Rights::WRITE);
    }
    rights
}
