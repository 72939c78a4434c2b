//! The file system as a client sees it: names and files over requests to metadata and targets.
//!
//! All functions are async over one seam, [`Rpc`]; real clients and simulated ones run this code.

mod append;
mod file;
mod garbage;
mod locks;
mod plan;
mod survey;
mod unsynced;

pub use file::{File, Loan, Seen};
use garbage::{Owed, Riders};
pub use unsynced::{Begun, Borrowers};

use crate::auth::Capability;
use crate::config::{Timing, WAY_BELIEVED_MS};
use crate::error::{Code, Error, Result};
use crate::layout::{Layout, Member};
use crate::session::Reply;
use crate::slice::Slice;
use crate::types::{Attributes, Credentials, Entry, FileKind, Ino, Now, ServerIndex};
use crate::wire::control::{ControlReply, ControlRequest, PoolMap, ServerStatus};
use crate::wire::data::{TargetCall, TargetReply, TargetRequest, Witness};
use crate::wire::meta::{
    Changes, LayoutWish, MetaAnswer, MetaCall, MetaReply, MetaRequest, OpenMode, Place, Record,
};
use crate::wire::{self, Kind};
use futures_util::future::join_all;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A request on its way to a server.
#[derive(Debug)]
pub struct Call {
    /// Read, Write, Target, Meta or Control.
    pub kind: Kind,
    /// The frame's body.
    pub body: Vec<u8>,
    /// Shown before the request.
    pub capability: Option<Arc<Capability>>,
    /// Whether it must happen once.
    pub once: bool,
    /// The payload to send: read until the call ends.
    pub source: Vec<Slice>,
    /// Where the answer's payload goes: written until the call ends.
    pub sink: Vec<Slice>,
    /// Spreads calls over the streams to a server: equal numbers share a stream.
    pub lane: u64,
}

/// The seam under this module: requests to servers, and the time.
pub trait Rpc: Send + Sync + 'static {
    /// Makes a request and waits for its answer. Dropping the future abandons the request.
    ///
    /// # Safety
    /// The memory that the call's slices name must stay valid, and that of `sink` unaliased, until
    /// the future has ended or was dropped; the future must not be leaked before.
    unsafe fn call(
        &self,
        server: ServerIndex,
        call: Call,
    ) -> impl Future<Output = Result<Reply>> + Send;

    /// The time.
    fn now(&self) -> Now;

    /// Ends after so many milliseconds.
    fn sleep(&self, ms: u64) -> impl Future<Output = ()> + Send;
}

/// How a client goes about its I/O.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// Times of the protocol.
    pub timing: Timing,
    /// Bytes of a contiguous read or write that go into one request. The other end begins to copy
    /// with the first segment that comes, so nothing is won by cutting finer, and each request costs
    /// some 10 µs: with client and server on two cores, transfers of 4 MiB went at 4552/4414 MiB/s
    /// (write/read) in requests of 256 KiB, 5457/5153 in 512 KiB, 6125/5476 in 1 MiB, 5915/5032 in 2 MiB.
    /// (With `vm.percpu_pagelist_high_fraction=1000`: see *Slow seconds* in bench/README.md.)
    pub transfer_size: usize,
}

impl Default for FsOptions {
    fn default() -> FsOptions {
        FsOptions { timing: Timing::default(), transfer_size: 1 << 20 }
    }
}

/// Part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// In the order of names, without `.` and `..`.
    pub entries: Vec<Entry>,
    /// For each entry, if they were asked for.
    pub attributes: Vec<Attributes>,
    /// Whether the directory ends here.
    pub end: bool,
}

/// Fill of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes that files can hold in all.
    pub capacity: u64,
    /// Bytes that are in use.
    pub used: u64,
    /// Inodes there are.
    pub inodes: u64,
    /// Metadata memory stated: bytes.
    pub metadata_capacity: u64,
    /// Metadata memory in use: bytes.
    pub metadata_used: u64,
}

/// Deaths of its server that a request lives through.
const DEATHS_MAX: usize = 4;

/// For whom a client asks on its own behalf, about its lease and what is to be freed: no permission
/// is checked for that.
const ITSELF: Credentials = Credentials { uid: 0, gid: 0, groups: Vec::new() };

/// A pool's file system. Cheap to clone.
pub struct Fs<R: Rpc> {
    shared: Arc<Shared<R>>,
}

impl<R: Rpc> Clone for Fs<R> {
    fn clone(&self) -> Fs<R> {
        Fs { shared: self.shared.clone() }
    }
}

struct Shared<R> {
    rpc: R,
    map: PoolMap,
    options: FsOptions,
    owed: Owed,
    unsynced: unsynced::Register,
}

/// What a target has told of its part of a file.
#[derive(Clone, Copy, Debug)]
struct Told {
    witness: Witness,
    /// Bytes that it holds.
    allocated: u64,
    /// Whether nothing of it is left for a flush to do.
    safe: bool,
}

/// What a client finds where it looks, and for how long from then it may believe that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// None: there is no such name.
    pub attributes: Option<Attributes>,
    /// How long it may be believed that the name leads there, or to nothing, whoever asks.
    pub name_believed: Duration,
    /// How long the attributes may be believed.
    pub attributes_believed: Duration,
}

/// Part of a directory, and for how long from then it may be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookedThrough {
    /// In the order of names, without `.` and `..`. Attributes are there only if they may be believed.
    pub entries: Vec<(Entry, Option<Attributes>)>,
    /// Whether the directory ends here.
    pub end: bool,
    /// How long it may be believed that these names lead there, whoever asks.
    pub names_believed: Duration,
    /// How long those attributes may be believed that are there.
    pub attributes_believed: Duration,
}

impl Looked {
    /// Something that is to be asked for again.
    pub fn at(attributes: Attributes) -> Looked {
        let none = Duration::ZERO;
        Looked { attributes: Some(attributes), name_believed: none, attributes_believed: none }
    }
}

/// Text of a place, for messages.
fn shown(place: &Place) -> String {
    let path = String::from_utf8_lossy(&place.path);
    match place.base {
        Ino::ROOT => format!("/{}", path.trim_start_matches('/')),
        _ if path.starts_with('/') => path.into_owned(),
        base => format!("inode {}/{path}", base.0),
    }
}

fn shown_ino(ino: Ino) -> String {
    format!("inode {}", ino.0)
}

fn unexpected(reply: &MetaReply) -> Error {
    wire::protocol(format!("answer of another kind: {reply:.60?}"))
}

impl<R: Rpc> Fs<R> {
    /// The file system of the pool that `map` describes.
    pub fn new(rpc: R, map: PoolMap, options: FsOptions) -> Fs<R> {
        let (owed, unsynced) = (Owed::default(), unsynced::Register::default());
        Fs { shared: Arc::new(Shared { rpc, map, options, owed, unsynced }) }
    }

    /// The seam underneath.
    pub fn rpc(&self) -> &R {
        &self.shared.rpc
    }

    /// Who is in the pool.
    pub fn map(&self) -> &PoolMap {
        &self.shared.map
    }

    /// How this client goes about its I/O.
    pub fn options(&self) -> &FsOptions {
        &self.shared.options
    }

    // ---- names ----

    /// What a place names.
    pub async fn lookup(
        &self,
        who: &Credentials,
        place: Place,
        follow: bool,
    ) -> Result<Attributes> {
        let name = shown(&place);
        let request = MetaRequest::Lookup { place, follow };
        self.found(who, Ino::ROOT, request).await.map_err(|error| error.on("look up", name))
    }

    /// What a single name in a directory names, not followed, and for how long that may be believed, but
    /// for what this client changes itself; by `others` than who asks, too, or by him alone.
    ///
    /// # Errors
    /// [`Code::NotFound`] if there is no such name, and that may not be believed.
    pub async fn lookup_way(
        &self,
        who: &Credentials,
        place: Place,
        others: bool,
    ) -> Result<Looked> {
        let name = shown(&place);
        let looked = self.looked(who, Ino::ROOT, MetaRequest::LookupWay { place, others });
        looked.await.map_err(|error| error.on("look up", name))
    }

    /// As [`Fs::attributes`], and for how long from now they may be believed, but for what this client
    /// changes itself.
    pub async fn look_at(&self, who: &Credentials, ino: Ino) -> Result<(Attributes, Duration)> {
        let looked = async {
            let looked = self.looked(who, ino, MetaRequest::LookAt { ino }).await?;
            let nothing = || wire::protocol("an inode that is none");
            Ok((looked.attributes.ok_or_else(nothing)?, looked.attributes_believed))
        };
        looked.await.map_err(|error: Error| error.on("stat", shown_ino(ino)))
    }

    /// How long what was asked for then may still be believed, if it may.
    fn left_to_believe(&self, asked_ms: u64) -> Duration {
        // The clock may have been about to tick.
        let gone_ms = self.rpc().now().mono_ms.saturating_sub(asked_ms) + 1;
        Duration::from_millis(WAY_BELIEVED_MS.saturating_sub(gone_ms))
    }

    async fn looked(&self, who: &Credentials, ino: Ino, request: MetaRequest) -> Result<Looked> {
        let asked_ms = self.rpc().now().mono_ms;
        let (record, name, attributes_stay) = match self.meta(who, ino, request).await? {
            MetaReply::Looked { record, name, attributes } => (record, name, attributes),
            other => return Err(unexpected(&other)),
        };
        let attributes = match record {
            Some(record) => Some(self.resolve(who, record).await?),
            None => None,
        };
        let believed = |may: bool| match may {
            true => self.left_to_believe(asked_ms),
            false => Duration::ZERO,
        };
        Ok(Looked {
            attributes,
            name_believed: believed(name),
            attributes_believed: believed(attributes_stay),
        })
    }

    /// An inode's attributes; size and times are true at the time of asking.
    pub async fn attributes(&self, who: &Credentials, ino: Ino) -> Result<Attributes> {
        self.found(who, ino, MetaRequest::Attributes { ino })
            .await
            .map_err(|error| error.on("stat", shown_ino(ino)))
    }

    /// Changes attributes.
    pub async fn change(
        &self,
        who: &Credentials,
        ino: Ino,
        changes: Changes,
    ) -> Result<Attributes> {
        let change = async {
            let record = self.record(who, ino, MetaRequest::Change { ino, changes }).await?;
            if let (Some(_), Some(unsettled)) = (changes.mtime, &record.unsettled) {
                // Writers are at work: the targets count their writes to the new epoch from now on.
                let epoch = record.attributes.data_epoch;
                let stamp = |_| TargetRequest::Stamp { ino, epoch };
                let capability = Arc::new(unsettled.capability.clone());
                self.on_columns(&unsettled.layout, &capability, stamp).await?;
            }
            self.resolve(who, record).await
        };
        change.await.map_err(|error| error.on("change attributes", shown_ino(ino)))
    }

    /// Makes a directory.
    pub async fn make_directory(
        &self,
        who: &Credentials,
        place: Place,
        mode: u32,
    ) -> Result<Attributes> {
        let name = shown(&place);
        let request = MetaRequest::MakeDirectory { place, mode };
        self.found(who, Ino::ROOT, request).await.map_err(|error| error.on("mkdir", name))
    }

    /// Makes a FIFO, socket, device, or a regular file without opening it.
    pub async fn make_node(
        &self,
        who: &Credentials,
        place: Place,
        kind: FileKind,
        mode: u32,
        rdev: u64,
    ) -> Result<Attributes> {
        let name = shown(&place);
        let request = MetaRequest::MakeNode { place, kind, mode, rdev };
        self.found(who, Ino::ROOT, request).await.map_err(|error| error.on("mknod", name))
    }

    /// Makes a symbolic link.
    pub async fn symlink(
        &self,
        who: &Credentials,
        place: Place,
        text: &[u8],
    ) -> Result<Attributes> {
        let name = shown(&place);
        let request = MetaRequest::Symlink { place, text: text.to_vec() };
        self.found(who, Ino::ROOT, request).await.map_err(|error| error.on("symlink", name))
    }

    /// A symbolic link's text.
    pub async fn read_link(&self, who: &Credentials, ino: Ino) -> Result<Vec<u8>> {
        self.text(who, ino, MetaRequest::ReadLink { ino })
            .await
            .map_err(|error| error.on("readlink", shown_ino(ino)))
    }

    /// Gives an inode another name.
    pub async fn link(&self, who: &Credentials, ino: Ino, place: Place) -> Result<Attributes> {
        let name = shown(&place);
        let request = MetaRequest::Link { ino, place };
        self.found(who, ino, request).await.map_err(|error| error.on("link", name))
    }

    /// Removes a name of what is not a directory.
    pub async fn unlink(&self, who: &Credentials, place: Place) -> Result<()> {
        let name = shown(&place);
        let request = MetaRequest::Unlink { place };
        self.gone(who, request).await.map_err(|error| error.on("unlink", name))
    }

    /// Removes an empty directory.
    pub async fn remove_directory(&self, who: &Credentials, place: Place) -> Result<()> {
        let name = shown(&place);
        let request = MetaRequest::RemoveDirectory { place };
        self.gone(who, request).await.map_err(|error| error.on("rmdir", name))
    }

    /// Moves a name in one step, replacing what `to` names unless told otherwise.
    pub async fn rename(
        &self,
        who: &Credentials,
        from: Place,
        to: Place,
        no_replace: bool,
        exchange: bool,
    ) -> Result<()> {
        let names = format!("{} to {}", shown(&from), shown(&to));
        let request = MetaRequest::Rename { from, to, no_replace, exchange };
        self.gone(who, request).await.map_err(|error| error.on("rename", names))
    }

    /// Lists a directory: names behind `after` (empty: from the start), at most `limit` of them.
    pub async fn list(
        &self,
        who: &Credentials,
        ino: Ino,
        after: &[u8],
        limit: u32,
        attributes: bool,
    ) -> Result<Listing> {
        let list = async {
            let request = MetaRequest::List { ino, after: after.to_vec(), limit, attributes };
            match self.meta(who, ino, request).await? {
                MetaReply::Entries { entries, records, end } => {
                    let resolved =
                        join_all(records.into_iter().map(|record| self.resolve(who, record))).await;
                    let attributes = resolved.into_iter().collect::<Result<Vec<_>>>()?;
                    Ok(Listing { entries, attributes, end })
                }
                other => Err(unexpected(&other)),
            }
        };
        list.await.map_err(|error: Error| error.on("list", shown_ino(ino)))
    }

    /// As [`Fs::list`], with those attributes that may be believed for a moment, if any, and how long names may; by
    /// `others` than who asks, too, or by him alone.
    pub async fn look_through(
        &self,
        who: &Credentials,
        ino: Ino,
        (after, limit): (&[u8], u32),
        others: bool,
    ) -> Result<LookedThrough> {
        let asked_ms = self.rpc().now().mono_ms;
        let look = async {
            let request = MetaRequest::LookThrough { ino, after: after.to_vec(), limit, others };
            match self.meta(who, ino, request).await? {
                MetaReply::LookedThrough { entries, records, names, end } => {
                    let resolved =
                        records.into_iter().map(async |record| match record.is_at_rest() {
                            // Whoever needs to know then asks by himself, and is told of the failure.
                            true => self.resolve(who, record).await.ok(),
                            false => None,
                        });
                    let mut attributes = join_all(resolved).await;
                    attributes.resize(entries.len(), None);
                    let believed = self.left_to_believe(asked_ms);
                    let names_believed = if names { believed } else { Duration::ZERO };
                    let entries = entries.into_iter().zip(attributes).collect();
                    Ok(LookedThrough {
                        entries,
                        end,
                        names_believed,
                        attributes_believed: believed,
                    })
                }
                other => Err(unexpected(&other)),
            }
        };
        look.await.map_err(|error: Error| error.on("list", shown_ino(ino)))
    }

    /// A file's layout (none for a directory), and a directory's wish for files made in it.
    pub async fn layout(
        &self,
        who: &Credentials,
        ino: Ino,
    ) -> Result<(Option<Layout>, LayoutWish)> {
        self.layout_reply(who, ino, MetaRequest::Layout { ino })
            .await
            .map_err(|error| error.on("get layout of", shown_ino(ino)))
    }

    /// Sets a directory's wish, or the layout of a file that was never written.
    pub async fn set_layout(
        &self,
        who: &Credentials,
        ino: Ino,
        wish: LayoutWish,
    ) -> Result<(Option<Layout>, LayoutWish)> {
        self.layout_reply(who, ino, MetaRequest::SetLayout { ino, wish })
            .await
            .map_err(|error| error.on("set layout of", shown_ino(ino)))
    }

    /// An extended attribute's value.
    pub async fn xattr(&self, who: &Credentials, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.text(who, ino, MetaRequest::GetXattr { ino, name: name.to_vec() })
            .await
            .map_err(|error| error.on("getxattr", shown_ino(ino)))
    }

    /// Sets an extended attribute; `create`: it must not exist; `replace`: it must.
    pub async fn set_xattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<()> {
        let (name, value) = (name.to_vec(), value.to_vec());
        self.done(who, ino, MetaRequest::SetXattr { ino, name, value, create, replace })
            .await
            .map_err(|error| error.on("setxattr", shown_ino(ino)))
    }

    /// Names of extended attributes, each ended by a NUL.
    pub async fn list_xattr(&self, who: &Credentials, ino: Ino) -> Result<Vec<u8>> {
        self.text(who, ino, MetaRequest::ListXattr { ino })
            .await
            .map_err(|error| error.on("listxattr", shown_ino(ino)))
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, who: &Credentials, ino: Ino, name: &[u8]) -> Result<()> {
        self.done(who, ino, MetaRequest::RemoveXattr { ino, name: name.to_vec() })
            .await
            .map_err(|error| error.on("removexattr", shown_ino(ino)))
    }

    // ---- files ----

    /// Opens a regular file, making it if there is none (`exclusive`: it is an error if there is).
    /// Says whether it was made.
    pub async fn create(
        &self,
        who: &Credentials,
        place: Place,
        mode: u32,
        exclusive: bool,
        open: OpenMode,
        layout: LayoutWish,
    ) -> Result<(File<R>, Attributes, bool)> {
        let name = shown(&place);
        let request = MetaRequest::Create { place, mode, exclusive, open, layout };
        self.opened(who, Ino::ROOT, &name, open, request)
            .await
            .map_err(|error| error.on("create", name))
    }

    /// Makes a regular file without a name in a directory, and opens it. [`Fs::link`] can give it one.
    pub async fn create_unnamed(
        &self,
        who: &Credentials,
        directory: Ino,
        mode: u32,
        open: OpenMode,
        layout: LayoutWish,
    ) -> Result<(File<R>, Attributes)> {
        let name = format!("a file without a name in {}", shown_ino(directory));
        let request = MetaRequest::CreateUnnamed { directory, mode, open, layout };
        let opened = self.opened(who, directory, &name, open, request).await;
        opened
            .map(|(file, attributes, _)| (file, attributes))
            .map_err(|error| error.on("create", name))
    }

    /// Opens a regular file.
    pub async fn open(
        &self,
        who: &Credentials,
        ino: Ino,
        open: OpenMode,
    ) -> Result<(File<R>, Attributes)> {
        let name = shown_ino(ino);
        let request = MetaRequest::Open { ino, open };
        let opened = self.opened(who, ino, &name, open, request).await;
        opened
            .map(|(file, attributes, _)| (file, attributes))
            .map_err(|error| error.on("open", name))
    }

    /// Opens the regular file that a place names.
    pub async fn open_at(
        &self,
        who: &Credentials,
        place: Place,
        open: OpenMode,
    ) -> Result<(File<R>, Attributes)> {
        let name = shown(&place);
        let request = MetaRequest::OpenAt { place, open };
        let opened = self.opened(who, Ino::ROOT, &name, open, request).await;
        opened
            .map(|(file, attributes, _)| (file, attributes))
            .map_err(|error| error.on("open", name))
    }

    /// The file that another client of the pool has open and lends to this one.
    pub fn borrow(&self, loan: Loan) -> File<R> {
        File::borrowed(self.clone(), loan)
    }

    async fn opened(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &str,
        mode: OpenMode,
        request: MetaRequest,
    ) -> Result<(File<R>, Attributes, bool)> {
        let opened = match self.meta(who, ino, request).await? {
            MetaReply::Opened(opened) => *opened,
            other => return Err(unexpected(&other)),
        };
        let created = opened.created;
        let (file, attributes) =
            File::begin(self.clone(), who.clone(), name.to_owned(), mode, opened).await?;
        Ok((file, attributes, created))
    }

    /// Sets a file's size; what is cut off reads as zeros should the file grow again.
    pub async fn truncate(&self, who: &Credentials, ino: Ino, size: u64) -> Result<()> {
        self.truncate_through(who, ino, size, None)
            .await
            .map(|_| ())
            .map_err(|error| error.on("truncate", shown_ino(ino)))
    }

    // ---- the pool ----

    /// Fill of the pool.
    pub async fn usage(&self) -> Result<PoolUsage> {
        self.collect_garbage().await?;
        let mut usage = PoolUsage::default();
        for status in self.status().await {
            let status = status?;
            usage.capacity += status.memory - status.memory_reserve.min(status.memory);
            usage.used += status.memory_used;
            for target in status.targets.iter().filter(|target| target.disk > 0) {
                // What is on disk may be in memory as well: of memory, what the disk has not counts.
                usage.capacity += target.disk;
                usage.used += target.disk_used + target.dirty;
                usage.used -= target.memory_used;
            }
            usage.inodes += status.inodes;
            usage.metadata_capacity += status.metadata_memory;
            usage.metadata_used += status.metadata_used;
        }
        Ok(usage)
    }

    /// Counters and fill of each server.
    pub async fn status(&self) -> Vec<Result<ServerStatus>> {
        let ask = |index| async move {
            match self.control(ServerIndex(index as u16), ControlRequest::Status).await? {
                ControlReply::Status(status) => Ok(*status),
                other => Err(wire::protocol(format!("answer of another kind: {other:.60?}"))),
            }
        };
        join_all((0..self.map().servers.len()).map(ask)).await
    }

    /// Asks a server something about itself.
    pub async fn control(
        &self,
        server: ServerIndex,
        request: ControlRequest,
    ) -> Result<ControlReply> {
        let once = !request.repeatable();
        let body = wire::encode(&request);
        wire::decode(&self.plain(server, Kind::Control, body, None, once, 0).await?.body)
    }

    // ---- requests ----

    async fn plain(
        &self,
        server: ServerIndex,
        kind: Kind,
        body: Vec<u8>,
        capability: Option<Arc<Capability>>,
        once: bool,
        lane: u64,
    ) -> Result<Reply> {
        let (source, sink) = (vec![], vec![]);
        let call = Call { kind, body, capability, once, source, sink, lane };
        // SAFETY: no slices.
        unsafe { self.retry(server, call) }.await
    }

    /// Makes a request, again and again while the server is too busy for it.
    ///
    /// # Safety
    /// As [`Rpc::call`].
    async unsafe fn retry(&self, server: ServerIndex, call: Call) -> Result<Reply> {
        let timing = &self.shared.options.timing;
        let to_target = matches!(call.kind, Kind::Read | Kind::Write | Kind::Target);
        // Counted from the first refusal: most calls see none, and need no clock.
        let mut give_up_ms = None;
        // Requests to targets say what is to be, and can be made twice. One that was under way when
        // its server died is made once more to the next life: a kept target is the same still, and
        // another one refuses.
        let (mut died, mut deaths) = (None, 0);
        // A server that is just coming back cannot take what it is shown. If it is whole by the time that
        // the request arrives, that was shown to nobody: it is shown again with the next try.
        let mut shown_again = call.capability.is_none();
        loop {
            let again = Call {
                body: call.body.clone(),
                capability: call.capability.clone(),
                source: call.source.clone(),
                sink: call.sink.clone(),
                ..call
            };
            // SAFETY: the caller's promise covers every try.
            match unsafe { self.rpc().call(server, again) }.await {
                Err(error) if error.code == Code::Busy => {
                    let now_ms = self.rpc().now().mono_ms;
                    if now_ms >= *give_up_ms.get_or_insert(now_ms + timing.busy_ms_max) {
                        return Err(error);
                    }
                    self.rpc().sleep(timing.busy_retry_ms).await;
                }
                Err(error) if error.code == Code::Lost && deaths < DEATHS_MAX && to_target => {
                    deaths += 1;
                    died = Some(error);
                }
                Err(error) if error.code == Code::NoCapability && !shown_again => {
                    shown_again = true;
                }
                Err(error) if error.code == Code::NotFormed => return Err(died.unwrap_or(error)),
                other => return other,
            }
        }
    }

    async fn meta(&self, who: &Credentials, ino: Ino, request: MetaRequest) -> Result<MetaReply> {
        let once = !request.repeatable();
        let server = self.map().metadata_of(ino);
        let riders = Riders::board(self, server, &request);
        let keeps_alive = matches!(request, MetaRequest::KeepAlive);
        let call = MetaCall { who: who.clone(), riders: riders.on_board(), request };
        let reply = self.plain(server, Kind::Meta, wire::encode(&call), None, once, 0).await;
        let lost = reply.as_ref().err().map(|error| error.code);
        let arrived = !matches!(lost, Some(Code::ServerLost | Code::Busy));
        let answer: Result<MetaAnswer> = reply.and_then(|reply| wire::decode(&reply.body));
        // An answer to something else says if there is more; a failure does not.
        let more = !keeps_alive && answer.as_ref().map_or(true, |answer| answer.garbage);
        riders.end(arrived, more);
        Ok(answer?.reply)
    }

    async fn record(&self, who: &Credentials, ino: Ino, request: MetaRequest) -> Result<Record> {
        match self.meta(who, ino, request).await? {
            MetaReply::Found(record) => Ok(record),
            other => Err(unexpected(&other)),
        }
    }

    async fn found(&self, who: &Credentials, ino: Ino, request: MetaRequest) -> Result<Attributes> {
        let record = self.record(who, ino, request).await?;
        self.resolve(who, record).await
    }

    async fn text(&self, who: &Credentials, ino: Ino, request: MetaRequest) -> Result<Vec<u8>> {
        match self.meta(who, ino, request).await? {
            MetaReply::Text(text) => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    async fn done(&self, who: &Credentials, ino: Ino, request: MetaRequest) -> Result<()> {
        match self.meta(who, ino, request).await? {
            MetaReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn gone(&self, who: &Credentials, request: MetaRequest) -> Result<()> {
        match self.meta(who, Ino::ROOT, request).await? {
            MetaReply::Gone { reap, order } => {
                self.throw_away(reap, order);
                self.throw_away_soon().await
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn layout_reply(
        &self,
        who: &Credentials,
        ino: Ino,
        request: MetaRequest,
    ) -> Result<(Option<Layout>, LayoutWish)> {
        match self.meta(who, ino, request).await? {
            MetaReply::Layout { layout, wish } => Ok((layout, wish)),
            other => Err(unexpected(&other)),
        }
    }

    /// The server that holds a target now, if it still is what the layout means.
    fn server_of(&self, member: Member) -> Result<ServerIndex> {
        match self.map().find(member.target) {
            Some((server, entry)) if entry.incarnation == member.incarnation => Ok(server),
            Some(_) => Err(Error::because(
                Code::Lost,
                format!("target {} restarted since this was stored", member.target.0),
            )),
            None => {
                let cause = format!("target {} is not in the pool any more", member.target.0);
                Err(Error::because(Code::Lost, cause))
            }
        }
    }

    async fn target(
        &self,
        member: Member,
        capability: Option<Arc<Capability>>,
        request: TargetRequest,
    ) -> Result<TargetReply> {
        let server = self.server_of(member)?;
        let once = !request.repeatable();
        let call = TargetCall { member, map_epoch: self.map().epoch, request };
        let body = wire::encode(&call);
        let reply = self.plain(server, Kind::Target, body, capability, once, 0).await;
        wire::decode(&reply.inspect_err(|error| self.heed(member, error))?.body)
    }

    /// Makes a request to the target of each column; fails if any fails.
    async fn on_columns(
        &self,
        layout: &Layout,
        capability: &Arc<Capability>,
        request: impl Fn(usize) -> TargetRequest,
    ) -> Result<Vec<Told>> {
        self.on_some_columns(layout, capability, 0..layout.stripe_count(), request).await
    }

    async fn on_some_columns(
        &self,
        layout: &Layout,
        capability: &Arc<Capability>,
        columns: impl IntoIterator<Item = usize>,
        request: impl Fn(usize) -> TargetRequest,
    ) -> Result<Vec<Told>> {
        let one = |column| {
            let request = request(column);
            async move {
                match self.target(layout.member(column), Some(capability.clone()), request).await? {
                    TargetReply::Object { witness, allocated, safe } => {
                        Ok(Told { witness, allocated, safe })
                    }
                    other => Err(wire::protocol(format!("answer of another kind: {other:?}"))),
                }
            }
        };
        join_all(columns.into_iter().map(one)).await.into_iter().collect()
    }
}
