//! The metadata service: names, inodes, and who has what open.
//!
//! What lasts (names, inodes, what is still to be freed) is in a [`MetaStore`] and changed by
//! optimistic transactions: each request reads, and commits on condition that what it read has not
//! changed; if it has, it starts anew. So any number of requests may be under way at once, on any
//! threads, and no lock is held while one waits. What ends with its client (handles, reservations
//! for appends) is in memory only.
//!
//! A file's end: its last name goes. If nobody has it open, the same transaction removes the inode
//! and leaves *garbage*, a note that targets still hold its objects; some client is asked to free
//! them, and the note goes when that is done. If somebody has it open, it becomes an *orphan*, and
//! garbage with its last handle.

mod attributes;
pub mod conformance;
mod files;
mod journaled;
mod live;
mod locks;
mod looks;
mod memory;
mod names;
mod path;
mod records;
pub mod store;
mod txn;
mod ways;

pub use journaled::{JournaledStore, check_record};
pub use live::{GARBAGE_RETRY_MS, HANDLES_MAX, HANDLES_PER_CLIENT_MAX};
pub use memory::MemoryStore;
pub use names::LINKS_MAX;
pub use store::MetaStore;

use crate::auth::{Capability, CapabilityKey, ReapOrder, Rights};
use crate::config::{BODY_BYTES_MAX, REAP_BATCH_MAX, Timing};
use crate::error::{Code, Error, Result};
use crate::layout::{Layout, Member, STRIPE_SIZE_MAX, STRIPE_SIZE_MIN};
use crate::types::{Attributes, ClientId, Credentials, FileKind, Ino, Now, TargetId, WallTime};
use crate::wire::control::PoolMap;
use crate::wire::meta::{LayoutWish, MetaReply, MetaRequest, Place, Reap, Record, Unsettled};
use live::{Doom, Live, Mark};
use locks::Locks;
use path::Walker;
use records::{
    COUNTERS, Counters, DirectoryTimes, FORMAT, Head, Inode, all_of, decode, garbage_key, ino_of,
    inode_key, orphan_key, times_key,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use store::{Batch, Outcome};
use txn::{Fault, Step, Txn, attempt, peek, transact};
use ways::Ways;

/// Most columns of a layout made here: an answer to an opening may carry it twice, and must fit
/// into [`crate::config::KEPT_REPLY_BYTES_MAX`].
pub const COLUMNS_MAX: usize = 448;

/// The first version of an inode (see [`crate::wire::meta`]).
const VERSION_MADE: u64 = 1;
/// Inode numbers taken from the store at a time.
const INOS_PER_BATCH: u64 = 1024;
/// Orphans collected in one round of [`MetaService::expire`].
const COLLECTED_PER_ROUND_MAX: usize = 1024;
/// Entries read at a time when the service starts.
const START_PAGE: usize = 4096;
/// An answer that is made of many parts ends when it may have become this long: bytes.
const REPLY_BYTES: usize = BODY_BYTES_MAX / 2;

/// The metadata service of one shard.
pub struct MetaService {
    store: Box<dyn MetaStore>,
    key: CapabilityKey,
    timing: Timing,
    map_epoch: u32,
    /// Every target, neighbours on different servers where possible.
    members: Vec<Member>,
    stripe_size: u64,
    stripe_count: u32,
    live: Live,
    locks: Locks,
    ways: Ways,
    /// Inode numbers taken from the store and not yet given away: `next..end`.
    inos: Mutex<(u64, u64)>,
    /// Counts files made: rotates their first targets.
    files_made: AtomicU64,
    /// Targets that get no new files: a client was told that their disks failed. For as long as they and
    /// this service live.
    unfit: Mutex<BTreeSet<TargetId>>,
}

/// What became of an inode that lost a name.
enum Fate<'a> {
    /// It has other names, or was not one to be collected.
    Stays,
    /// Somebody has it open.
    Orphan(Ino),
    /// Gone; its objects, if any, are garbage.
    Gone { reap: Option<Reap>, _mark: Option<Mark<'a>> },
}

impl MetaService {
    /// Starts the service over a store, which may be empty (the root directory is made then) or
    /// hold what an earlier life left.
    ///
    /// # Errors
    ///
    /// If the map has no targets, or the store fails or is of another format.
    pub async fn open(
        store: Box<dyn MetaStore>,
        key: CapabilityKey,
        map: &PoolMap,
        timing: Timing,
        now: Now,
    ) -> Result<MetaService> {
        let members = members_of(map);
        if members.is_empty() {
            return Err(Error::because(Code::Invalid, "a pool without targets"));
        }
        let life = attempt!(begin_life(&*store, map, now))?;
        let service = MetaService {
            store,
            key,
            timing,
            map_epoch: map.epoch,
            members,
            stripe_size: map.stripe_size,
            stripe_count: map.stripe_count,
            live: Live::new(life),
            locks: Locks::default(),
            ways: Ways::new(life > 1, now.mono_ms),
            inos: Mutex::new((0, 0)),
            files_made: AtomicU64::new(0),
            unfit: Mutex::default(),
        };
        for tag in [b'i', b'o', b'g'] {
            let (mut start, end) = all_of(tag);
            loop {
                let items = service.store.range(&start, &end, START_PAGE).await?;
                for item in &items {
                    match tag {
                        b'i' => service.live.count_inodes(1),
                        b'o' => service.live.add_orphan(ino_of(&item.key)?),
                        _ => service.live.add_garbage(ino_of(&item.key)?, 0),
                    }
                }
                let Some(last) = items.into_iter().next_back() else { break };
                start = last.key;
                start.push(0);
            }
        }
        Ok(service)
    }

    /// Answers one request. `who` is to be believed: the caller has seen to that.
    ///
    /// The future is to be run to its end, whatever becomes of the connection: if it is dropped
    /// while it commits, what it left to be collected is found only when the service starts anew.
    pub async fn handle(
        &self,
        now: Now,
        client: ClientId,
        who: &Credentials,
        request: MetaRequest,
    ) -> Result<MetaReply> {
        let lasting = lasting(&request);
        let reply = self.carry_out(now, client, who, request).await?;
        // Whoever is told that it is done acts on it: he writes, frees objects, cuts them.
        if lasting {
            self.store.sync().await?;
        }
        Ok(reply)
    }

    /// Waits until all that was changed is as durable as the store promises.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn save(&self) -> Result<()> {
        self.store.sync().await
    }

    async fn carry_out(
        &self,
        now: Now,
        client: ClientId,
        who: &Credentials,
        request: MetaRequest,
    ) -> Result<MetaReply> {
        use MetaRequest::*;
        self.live.heard(client, now.mono_ms);
        let _changing =
            changes(&request).then(|| self.ways.change(client, now.mono_ms)).transpose()?;
        match request {
            Lookup { place, follow } => attempt!(self.lookup(now, who, &place, follow)),
            LookupWay { place, others } => {
                self.lookup_way(now, (client, who), &place, others).await
            }
            LookAt { ino } => self.look_at(now, client, ino).await,
            Attributes { ino } => self.found(now, ino).await,
            Change { ino, changes } => attempt!(self.change(now, who, ino, &changes)),
            Create { place, mode, exclusive, open, layout } => {
                let wish = files::Wanted { mode, exclusive, open, layout };
                attempt!(self.create(now, client, who, &place, &wish))
            }
            CreateUnnamed { directory, mode, open, layout } => {
                let wish = files::Wanted { mode, exclusive: true, open, layout };
                attempt!(self.create_unnamed(now, client, who, directory, &wish))
            }
            Open { ino, open } => attempt!(self.open_ino(now, client, who, ino, open)),
            OpenAt { place, open } => {
                attempt!(self.open_at(now, client, who, &place, open))
            }
            Close { handle, settlement, unsure } => {
                self.close(now, client, handle, settlement, unsure).await
            }
            Renew { handle } => self.renew(now, client, handle).await,
            MakeDirectory { place, mode } => {
                let new = names::New::directory(mode);
                transact!(self, txn => self.make(&mut txn, now, who, &place, &new))
            }
            MakeNode { place, kind, mode, rdev } => {
                let new = names::New::node(kind, mode, rdev)?;
                transact!(self, txn => self.make(&mut txn, now, who, &place, &new))
            }
            Symlink { place, text } => {
                let new = names::New::symlink(text)?;
                transact!(self, txn => self.make(&mut txn, now, who, &place, &new))
            }
            ReadLink { ino } => self.read_link(ino).await,
            Link { ino, place } => {
                transact!(self, txn => self.link(&mut txn, now, who, ino, &place))
            }
            Unlink { place } => {
                let fate = transact!(self, txn => self.unlink(&mut txn, now, who, &place))?;
                Ok(self.gone(now, fate))
            }
            RemoveDirectory { place } => {
                let by = (client, who);
                let fate =
                    transact!(self, txn => self.remove_directory(&mut txn, now, by, &place))?;
                Ok(self.gone(now, fate))
            }
            Rename { from, to, no_replace, exchange } => {
                let how = names::Renaming { no_replace, exchange };
                let by = (client, who);
                let fate = transact!(self, txn => self.rename(&mut txn, now, by, &from, &to, how))?;
                Ok(self.gone(now, fate))
            }
            List { ino, after, limit, attributes } => {
                let part = self.list(now, who, ino, &after, limit, attributes).await?;
                let names::Part { entries, records, end, .. } = part;
                Ok(MetaReply::Entries { entries, records, end })
            }
            LookThrough { ino, after, limit, others } => {
                self.look_through(now, (client, who), ino, (&after, limit), others).await
            }
            BeginTruncate { ino, size, handle } => {
                attempt!(self.begin_truncate(now, client, who, ino, size, handle))
            }
            EndTruncate { ino, epoch } => attempt!(self.end_truncate(ino, epoch)),
            Settle { ino, settlement } => {
                attempt!(self.settle(ino, settlement, 0))?;
                Ok(MetaReply::Done)
            }
            Layout { ino } => self.layout(ino).await,
            SetLayout { ino, wish } => attempt!(self.set_layout(now, who, ino, wish)),
            Lock { handle, lock, ticket } => self.lock(now, client, handle, &lock, ticket),
            Unlock { lock } => self.unlock(client, &lock),
            FindLock { handle, lock } => self.find_lock(client, handle, &lock),
            AwaitLocks { tickets, known } => self.await_locks(now, client, &tickets, &known).await,
            CancelLock { ticket } => Ok(self.cancel_lock(client, ticket)),
            KeepAlive => self.garbage(now).await,
            Reaped { inos } => self.reaped(inos).await,
            Fill => {
                let usage = self.store.usage();
                let inodes = self.live.inodes();
                Ok(MetaReply::Fill { memory: usage.limit, used: usage.used, inodes })
            }
            ReserveAppend { handle, ino, length, floor, sole } => {
                self.reserve_append(handle, ino, length, (floor, sole)).await
            }
            ReleaseAppend { handle, ino, offset, length } => {
                self.live.opening(handle, ino)?;
                self.live.unreserve(ino, offset, length);
                Ok(MetaReply::Done)
            }
            Count { handle, ino, number, add } => {
                let before = self.live.count(handle, ino, number, add)?;
                Ok(MetaReply::Counted { before })
            }
            GetXattr { ino, name } => self.get_xattr(who, ino, &name).await,
            SetXattr { ino, name, value, create, replace } => {
                let how = attributes::XattrMode { create, replace };
                let pair = (&name[..], &value[..]);
                transact!(self, txn => self.set_xattr(&mut txn, now, who, ino, pair, how))
            }
            ListXattr { ino } => self.list_xattrs(who, ino).await,
            RemoveXattr { ino, name } => {
                transact!(self, txn => self.remove_xattr(&mut txn, now, who, ino, &name))
            }
        }
    }

    /// A sign of life of a client, through whatever request.
    pub fn client_heard(&self, client: ClientId, now: Now) {
        self.live.heard(client, now.mono_ms);
    }

    /// A connection of a client has ended: what it waits for in a parked request, it asks for anew.
    pub fn client_disconnected(&self, client: ClientId) {
        self.locks.disturb(client);
    }

    /// A client has ended: its handles and locks end with it.
    pub fn client_gone(&self, client: ClientId) {
        self.live.gone(client);
        self.locks.gone(client);
    }

    /// Ends the handles and locks of clients that have not been heard since `since_ms`, and collects
    /// orphans that nobody has open. To be called about once a second.
    ///
    /// # Errors
    ///
    /// If the store fails; what was not done is done by a later call.
    pub async fn expire(&self, now: Now, since_ms: u64) -> Result<()> {
        let until_ms = now.mono_ms + self.timing.capability_ms;
        self.locks.expire(now.mono_ms, |has_locks| {
            self.live.lapse(now.mono_ms, since_ms, until_ms, has_locks)
        });
        for ino in self.live.collectable(COLLECTED_PER_ROUND_MAX) {
            let reap = self.collect(ino).await?;
            if let Some(reap) = reap {
                // Nobody is told right now: the next client that asks is.
                self.live.add_garbage(reap.ino, 0);
            }
        }
        Ok(())
    }

    /// [`MetaService::expire`] as of a server that never stood still.
    #[cfg(test)]
    pub(super) async fn expire_now(&self, now: Now) -> Result<()> {
        self.expire(now, now.mono_ms.saturating_sub(self.timing.lease_ms)).await
    }

    /// Memory stated and used, and how many inodes there are.
    pub fn fill(&self) -> (store::Usage, u64) {
        (self.store.usage(), self.live.inodes())
    }

    fn walker<'a>(&'a self, who: &'a Credentials) -> Walker<'a> {
        Walker::new(&*self.store, who)
    }

    fn txn(&self) -> Txn<'_> {
        Txn::new(&*self.store)
    }

    async fn lookup(
        &self,
        now: Now,
        who: &Credentials,
        place: &Place,
        follow: bool,
    ) -> Step<MetaReply> {
        self.look(now, who, place, follow).await.map(MetaReply::Found)
    }

    async fn look(&self, now: Now, who: &Credentials, place: &Place, follow: bool) -> Step<Record> {
        let ino = self.walker(who).find(place, follow).await?;
        let record = async {
            let inode = peek(&*self.store, ino).await?;
            self.record(now, ino, &inode).await
        };
        match record.await {
            // Something was moved over it after its name was read: the name leads elsewhere now.
            Err(error) if error.code == Code::NotFound && !place.path.is_empty() => {
                Err(Fault::Conflict)
            }
            other => Ok(other?),
        }
    }

    async fn found(&self, now: Now, ino: Ino) -> Result<MetaReply> {
        let inode = peek(&*self.store, ino).await?;
        Ok(MetaReply::Found(self.record(now, ino, &inode).await?))
    }

    /// An inode as clients see it.
    async fn record(&self, now: Now, ino: Ino, inode: &Inode) -> Result<Record> {
        let unsettled = match inode.kind == FileKind::Regular && !inode.settled {
            true => Some(Box::new(self.unsettled(now, ino, inode)?)),
            false => None,
        };
        let mut attributes = attributes_of(ino, inode);
        if inode.is_directory()
            && let Some(times) = self.store.get(&times_key(ino)).await?
        {
            let times: DirectoryTimes = decode(&times.value, "a directory's times")?;
            attributes.mtime = times.mtime;
            attributes.ctime = times.ctime.max(attributes.ctime);
        }
        Ok(Record { attributes, unsettled })
    }

    fn unsettled(&self, now: Now, ino: Ino, inode: &Inode) -> Result<Unsettled> {
        let layout = inode.layout()?;
        let mut rights = Rights::STAT;
        if inode.truncation.is_some() {
            rights = rights.and(Rights::WRITE);
        }
        Ok(Unsettled {
            version: inode.version,
            settles: self.live.writers(ino) == 0,
            capability: self.capability(now, ino, rights, &layout),
            layout,
            truncation: inode.truncation.map(|cut| cut.pending),
        })
    }

    fn capability(&self, now: Now, ino: Ino, rights: Rights, layout: &Layout) -> Capability {
        self.key.capability(ino, rights, layout.generation, self.map_epoch, self.expiry(now))
    }

    fn order(&self, now: Now, reap: &[Reap]) -> Option<ReapOrder> {
        let inos: Vec<Ino> = reap.iter().map(|reap| reap.ino).collect();
        (!inos.is_empty()).then(|| self.key.reap_order(inos, self.expiry(now)))
    }

    fn expiry(&self, now: Now) -> WallTime {
        let life_ns = (self.timing.capability_ms as i64).saturating_mul(1_000_000);
        WallTime(now.wall.0.saturating_add(life_ns))
    }

    /// Where a new file's objects go.
    fn place(&self, wish: LayoutWish, directory: LayoutWish) -> Result<Layout> {
        check_wish(wish)?;
        let size = wish.stripe_size.or(directory.stripe_size).unwrap_or(self.stripe_size);
        let count = wish.stripe_count.or(directory.stripe_count).unwrap_or(self.stripe_count);
        let unfit = self.unfit();
        // Where all have failed, whoever writes is told so by them.
        let none_fit = unfit.len() >= self.members.len();
        let fit = |member: &&Member| none_fit || !unfit.contains(&member.target);
        let members = self.members.iter().filter(fit);
        let all = members.clone().count();
        let count = match count as usize {
            0 => all,
            count => count.min(all),
        };
        let first = self.files_made.fetch_add(1, Ordering::Relaxed) as usize % all;
        let members = members.cycle().skip(first).take(count.min(COLUMNS_MAX));
        let layout = Layout::striped(size, members.copied());
        layout.check()?;
        Ok(layout)
    }

    /// Targets in which no new file is placed.
    pub fn unfit(&self) -> BTreeSet<TargetId> {
        self.unfit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A client was told that a target's disk failed. Files that are there stay where they are.
    fn set_unfit(&self, member: Member) {
        // Of another life, or another pool's, nothing is known here.
        if self.members.contains(&member) {
            self.unfit.lock().unwrap_or_else(PoisonError::into_inner).insert(member.target);
        }
    }

    /// A number that no inode had before.
    async fn new_ino(&self) -> Result<Ino> {
        loop {
            {
                let mut inos = self.inos.lock().unwrap_or_else(PoisonError::into_inner);
                if inos.0 < inos.1 {
                    inos.0 += 1;
                    return Ok(Ino(inos.0 - 1));
                }
            }
            let start = attempt!(self.take_inos())?;
            // If two were here at once, one batch is never used: numbers abound.
            *self.inos.lock().unwrap_or_else(PoisonError::into_inner) =
                (start, start + INOS_PER_BATCH);
        }
    }

    async fn take_inos(&self) -> Step<u64> {
        let mut txn = self.txn();
        let value = txn.read(COUNTERS.to_vec()).await?;
        let value =
            value.ok_or_else(|| Error::because(Code::Internal, "the store lost its counters"))?;
        let mut counters: Counters = decode(&value, "the counters")?;
        let start = counters.next_ino;
        counters.next_ino += INOS_PER_BATCH;
        txn.put(COUNTERS.to_vec(), crate::wire::encode(&counters));
        txn.use_reserve();
        txn.commit().await?;
        Ok(start)
    }

    /// Takes a name's count off a loaded inode that is not a directory; it may be the last.
    async fn drop_name<'a>(&'a self, txn: &mut Txn<'_>, ino: Ino, at: WallTime) -> Step<Fate<'a>> {
        let inode = txn.change(ino);
        if inode.nlink == 0 {
            // It lost its last name between our reading the name and the inode.
            return Err(Fault::Conflict);
        }
        inode.nlink -= 1;
        inode.ctime = at;
        if inode.nlink > 0 {
            return Ok(Fate::Stays);
        }
        match self.live.doom(ino)? {
            Doom::Open => {
                txn.put_orphan(ino);
                Ok(Fate::Orphan(ino))
            }
            Doom::Marked(mark) => {
                let reap = remove_file(txn, ino).await?;
                Ok(Fate::Gone { reap, _mark: Some(mark) })
            }
        }
    }

    /// After the commit: notes what became of an inode, and makes the answer.
    fn gone(&self, now: Now, fate: Fate<'_>) -> MetaReply {
        let mut reap = Vec::new();
        match fate {
            Fate::Stays => {}
            Fate::Orphan(ino) => self.live.add_orphan(ino),
            Fate::Gone { reap: freed, _mark } => {
                self.live.count_inodes(-1);
                reap.extend(freed);
            }
        }
        self.told(now, reap)
    }

    /// The answer that tells a client what to free; if it does not, somebody else is told later.
    fn told(&self, now: Now, reap: Vec<Reap>) -> MetaReply {
        for reap in &reap {
            self.live.add_garbage(reap.ino, now.mono_ms);
        }
        let order = self.order(now, &reap);
        MetaReply::Gone { reap, order }
    }

    /// Removes an orphan that nobody has open any more.
    async fn collect(&self, ino: Ino) -> Result<Option<Reap>> {
        match attempt!(self.collect_once(ino)) {
            // Somebody else is at it.
            Err(error) if error.code == Code::Busy => Ok(None),
            Err(error) if error.code == Code::NotFound => {
                self.live.remove_orphan(ino);
                Ok(None)
            }
            result => result,
        }
    }

    async fn collect_once(&self, ino: Ino) -> Step<Option<Reap>> {
        let Doom::Marked(mark) = self.live.doom(ino)? else { return Ok(None) };
        let mut txn = self.txn();
        if txn.load(ino).await?.nlink > 0 {
            return Ok(None);
        }
        txn.delete(orphan_key(ino));
        let reap = remove_file(&mut txn, ino).await?;
        txn.commit().await?;
        self.live.remove_orphan(ino);
        self.live.count_inodes(-1);
        drop(mark);
        Ok(reap)
    }

    /// Answers a sign of life with what waits to be freed.
    async fn garbage(&self, now: Now) -> Result<MetaReply> {
        let mut reap = Vec::new();
        let mut bytes = 0;
        for ino in self.live.offer_garbage(now.mono_ms) {
            let Some(found) = self.store.get(&garbage_key(ino)).await? else {
                self.live.remove_garbage(&[ino]);
                continue;
            };
            bytes += 2 * found.value.len() + 64;
            if bytes > REPLY_BYTES {
                // It and those behind it are offered again when their time comes.
                break;
            }
            reap.push(Reap { ino, layout: decode(&found.value, "a layout")? });
        }
        let order = self.order(now, &reap);
        Ok(MetaReply::Garbage { reap, order })
    }

    async fn reaped(&self, inos: Vec<Ino>) -> Result<MetaReply> {
        if inos.len() > REAP_BATCH_MAX {
            return Err(Error::because(
                Code::TooMany,
                format!("{} files reported freed at once", inos.len()),
            ));
        }
        let deletes = inos.iter().map(|&ino| garbage_key(ino)).collect();
        self.store.commit(Batch { deletes, reserve: true, ..Batch::default() }).await?;
        self.live.remove_garbage(&inos);
        Ok(MetaReply::Done)
    }
}

/// Whether what a request changes must be durable before its answer. Reports of sizes need not: who
/// does not know of them asks the targets. What was freed may be freed again.
fn lasting(request: &MetaRequest) -> bool {
    use MetaRequest::*;
    match request {
        Change { .. } | Create { .. } | MakeDirectory { .. } | MakeNode { .. } | Symlink { .. } => {
            true
        }
        CreateUnnamed { .. } => true,
        Link { .. } | Unlink { .. } | RemoveDirectory { .. } | Rename { .. } => true,
        BeginTruncate { .. } | SetLayout { .. } | SetXattr { .. } | RemoveXattr { .. } => true,
        Open { open, .. } | OpenAt { open, .. } => open.write,
        // These may say what is to be freed.
        Close { .. } | KeepAlive => true,
        _ => false,
    }
}

/// Whether a request may change what others see of names and attributes. That a file's size is reported
/// changes nothing: nobody believes attributes that are not settled.
fn changes(request: &MetaRequest) -> bool {
    use MetaRequest::*;
    match request {
        // They say what is to be freed.
        Close { .. } | KeepAlive => false,
        // Nobody else can know of it.
        CreateUnnamed { .. } => false,
        other => lasting(other),
    }
}

/// Removes a loaded inode that has neither names nor handles; its objects become garbage.
async fn remove_file(txn: &mut Txn<'_>, ino: Ino) -> Result<Option<Reap>> {
    let inode = txn.remove(ino).await?;
    if inode.kind != FileKind::Regular || !inode.objects {
        return Ok(None);
    }
    let layout = inode.layout()?;
    txn.put_garbage(ino, inode.tail);
    Ok(Some(Reap { ino, layout }))
}

fn attributes_of(ino: Ino, inode: &Inode) -> Attributes {
    Attributes {
        ino,
        kind: inode.kind,
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.nlink,
        size: inode.size,
        allocated: 0,
        rdev: inode.rdev,
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        data_epoch: inode.data_epoch,
    }
}

/// Refuses a wish that no layout could meet.
fn check_wish(wish: LayoutWish) -> Result<()> {
    match wish.stripe_size {
        Some(size)
            if !size.is_multiple_of(STRIPE_SIZE_MIN)
                || !(STRIPE_SIZE_MIN..=STRIPE_SIZE_MAX).contains(&size) =>
        {
            Err(Error::because(
                Code::Invalid,
                format!("stripe size {size} is not a multiple of 4 KiB up to 1 GiB"),
            ))
        }
        _ => Ok(()),
    }
}

/// Every target: first the first one of each server, then the second ones, and so on.
fn members_of(map: &PoolMap) -> Vec<Member> {
    let rounds = map.servers.iter().map(|server| server.targets.len()).max().unwrap_or(0);
    (0..rounds)
        .flat_map(|round| map.servers.iter().filter_map(move |server| server.targets.get(round)))
        .map(|entry| Member { target: entry.id, incarnation: entry.incarnation })
        .collect()
}

/// Counts a start of the service, and makes the root directory if there is none.
async fn begin_life(store: &dyn MetaStore, map: &PoolMap, now: Now) -> Step<u32> {
    let found = store.get(COUNTERS).await?;
    let (condition, mut counters) = match found {
        None => (None, Counters { format: FORMAT, next_ino: Ino::ROOT.0 + 1, life: 0 }),
        Some(found) => (Some(found.version), decode(&found.value, "the counters")?),
    };
    if counters.format != FORMAT {
        return Err(Fault::Failed(Error::because(
            Code::Version,
            format!("metadata store has format {}, this program {FORMAT}", counters.format),
        )));
    }
    counters.life += 1;
    let mut batch = Batch {
        conditions: vec![(COUNTERS.to_vec(), condition)],
        puts: vec![(COUNTERS.to_vec(), crate::wire::encode(&counters))],
        reserve: true,
        ..Batch::default()
    };
    if condition.is_none() {
        let root = new_inode(FileKind::Directory, 0o755, map.owner_uid, map.owner_gid, now.wall);
        batch.puts.push((inode_key(Ino::ROOT), root.encode()));
    }
    match store.commit(batch).await? {
        Outcome::Done => Ok(counters.life),
        Outcome::Conflict => Err(Fault::Conflict),
    }
}

fn new_inode(kind: FileKind, mode: u32, uid: u32, gid: u32, at: WallTime) -> Inode {
    let directory = kind == FileKind::Directory;
    let head = Head {
        kind,
        mode: mode & 0o7777,
        uid,
        gid,
        nlink: if directory { 2 } else { 1 },
        size: if directory { 4096 } else { 0 },
        rdev: 0,
        atime: at,
        mtime: at,
        ctime: at,
        data_epoch: 1,
        version: VERSION_MADE,
        settled: true,
        objects: false,
        xattrs: 0,
        parent: Ino::ROOT,
        wish: LayoutWish::default(),
        truncation: None,
    };
    Inode { head, tail: Vec::new() }
}

#[cfg(test)]
mod locks_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod races;
#[cfg(test)]
mod tests;
