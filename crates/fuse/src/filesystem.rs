//! The kernel's requests, each carried out by the client.

use crate::attributes::{file_type, set_time, to_kernel};
use crate::cache::Cached;
use crate::credentials::{self, Groups, allows};
use crate::directory::Directory;
use crate::handles::Handles;
use crate::names::Names;
use crate::statistics::{Counters, FileCounters, Operation};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags,
    PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use weir_client::{Net, Pool};
use weir_core::config::NAME_BYTES_MAX;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{File, Fs};
use weir_core::layout::Extent;
use weir_core::types::{Attributes, Credentials, FileKind, Ino};
use weir_core::wire::meta::{Changes, LayoutWish, OpenMode, Place};

/// Largest read and write that the kernel makes of us in one request: bytes.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Reads ahead and writes behind that the kernel may have under way (caching, mmap, libaio).
const BACKGROUND_MAX: u16 = 64;
/// How long the kernel believes attributes, where it caches. Names it never does: the file that a
/// path leads to, and whether it may be walked, is asked each time.
const BELIEVED: Duration = Duration::from_secs(1);
/// Unit of sizes in statfs: bytes.
const BLOCK_SIZE: u32 = 4096;
/// Metadata memory that a small file takes, for an estimate of how many more there can be: bytes.
const INODE_BYTES: u64 = 1024;
/// Linux's mark of an opening for execve.
const FMODE_EXEC: i32 = 0x20;
/// Asked for by the kernel before writes; we have none, and need not ask the pool each time.
const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// Everything about a mount.
pub(crate) struct Shared {
    pool: Pool,
    caching: bool,
    files: Handles<Open>,
    directories: Handles<Directory>,
    names: Names,
    cached: Cached,
    groups: Groups,
    pub(crate) counters: Counters,
}

/// What fuser holds.
pub(crate) struct WeirFilesystem(pub(crate) Arc<Shared>);

/// A file opened by the kernel.
struct Open {
    file: File<Net>,
    counters: Arc<FileCounters>,
    /// Whether it was set-user-id or set-group-id when it was opened: a write ends that.
    privileged: AtomicBool,
}

/// The superuser, for what follows from a permission that was given before.
const SUPERUSER: Credentials = Credentials { uid: 0, gid: 0, groups: Vec::new() };

thread_local! {
    /// Where reads land on their way to the kernel: made once for each thread.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

fn place(parent: INodeNo, name: &OsStr) -> Place {
    Place::new(Ino(parent.0), name.as_bytes())
}

/// The mode without set-user-id and set-group-id, if that changes it. Set-group-id without
/// execution by the group is no privilege.
fn without_privileges(mode: u32) -> Option<u32> {
    let cleared = match mode & 0o2010 {
        0o2010 => mode & !0o6000,
        _ => mode & !0o4000,
    };
    (cleared != mode).then_some(cleared)
}

impl Shared {
    pub(crate) fn new(pool: Pool, caching: bool) -> Shared {
        Shared {
            pool,
            caching,
            files: Handles::new(),
            directories: Handles::new(),
            names: Names::default(),
            cached: Cached::default(),
            groups: Groups::default(),
            counters: Counters::new(),
        }
    }

    fn fs(&self) -> &Fs<Net> {
        self.pool.fs()
    }

    fn who(&self, request: &Request) -> Credentials {
        self.groups.credentials(request.uid(), request.gid(), request.pid())
    }

    /// Does and counts what the kernel asked for.
    fn run<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T>>,
    ) -> std::result::Result<T, Errno> {
        self.timed(operation, work).0
    }

    fn timed<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T>>,
    ) -> (std::result::Result<T, Errno>, Duration) {
        let begun = Instant::now();
        let result = self.pool.run(work);
        let time = begun.elapsed();
        self.counters.operation(operation, time, result.is_err());
        let result = result.map_err(|error| {
            tracing::debug!(operation = operation.text(), %error, "request failed");
            errno(&error)
        });
        (result, time)
    }

    /// As [`Shared::timed`], for what is done through an open file.
    fn on_file<T, F: Future<Output = Result<T>>>(
        &self,
        operation: Operation,
        handle: FileHandle,
        work: impl FnOnce(Arc<Open>) -> F,
    ) -> std::result::Result<T, Errno> {
        let open = self.files.find(handle.0).ok_or(Errno::EBADF)?;
        let counters = open.counters.clone();
        let (result, time) = self.timed(operation, work(open));
        counters.other(time);
        result
    }

    fn attributes_believed(&self) -> Duration {
        if self.caching { BELIEVED } else { Duration::ZERO }
    }

    fn reply_entry(
        &self,
        parent: INodeNo,
        name: &OsStr,
        found: std::result::Result<Attributes, Errno>,
        reply: ReplyEntry,
    ) {
        match found {
            Ok(attributes) => {
                self.names.learn(attributes.ino.0, parent.0, name.as_bytes());
                let believed = self.attributes_believed();
                let attributes = to_kernel(&attributes);
                reply.entry_with_ttls(&believed, &Duration::ZERO, &attributes, Generation(0));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn reply_attributes(&self, found: std::result::Result<Attributes, Errno>, reply: ReplyAttr) {
        match found {
            Ok(attributes) => reply.attr(&self.attributes_believed(), &to_kernel(&attributes)),
            Err(errno) => reply.error(errno),
        }
    }

    /// Gives an open file its number, and says how the kernel is to treat it.
    fn opened(
        &self,
        file: File<Net>,
        attributes: &Attributes,
        flags: i32,
        time: Duration,
    ) -> (FileHandle, FopenFlags) {
        let ino = attributes.ino.0;
        let counters = self.counters.file(self.names.path(ino));
        counters.opened(time);
        let privileged = AtomicBool::new(without_privileges(attributes.mode).is_some());
        let handle = self.files.insert(Open { file, counters, privileged });
        // The kernel would cache appended bytes where it believes the file's end to be.
        let direct = !self.caching || flags & libc::O_APPEND != 0;
        let treatment = match direct {
            true => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            false if self.cached.still_true(attributes) => FopenFlags::FOPEN_KEEP_CACHE,
            false => FopenFlags::empty(),
        };
        (FileHandle(handle), treatment)
    }

    async fn open(
        &self,
        who: &Credentials,
        ino: Ino,
        flags: i32,
    ) -> Result<(File<Net>, Attributes)> {
        let access = flags & libc::O_ACCMODE;
        let truncate = flags & libc::O_TRUNC != 0;
        if flags & FMODE_EXEC != 0 && access == libc::O_RDONLY {
            // To execute a program one need not be allowed to read it.
            let attributes = self.fs().attributes(who, ino).await?;
            if !allows(&attributes, who, credentials::EXECUTE) {
                return Err(
                    Error::new(Code::AccessDenied).on("execute", format!("inode {}", ino.0))
                );
            }
            return self.fs().open(&SUPERUSER, ino, OpenMode::READ).await;
        }
        if truncate && access == libc::O_RDONLY {
            self.fs().truncate(who, ino, 0).await?;
        }
        let write = access != libc::O_RDONLY;
        let mode = OpenMode { read: access != libc::O_WRONLY, write, truncate: truncate && write };
        let (file, mut attributes) = self.fs().open(who, ino, mode).await?;
        if truncate && who.uid != 0 {
            self.end_privileges(&mut attributes).await?;
        }
        Ok((file, attributes))
    }

    /// What somebody else than the superuser has changed loses set-user-id and set-group-id.
    async fn end_privileges(&self, attributes: &mut Attributes) -> Result<()> {
        if attributes.kind == FileKind::Regular
            && let Some(mode) = without_privileges(attributes.mode)
        {
            let changes = Changes { mode: Some(mode), ..Changes::default() };
            *attributes = self.fs().change(&SUPERUSER, attributes.ino, changes).await?;
        }
        Ok(())
    }

    async fn truncate(
        &self,
        who: &Credentials,
        ino: Ino,
        size: u64,
        handle: Option<FileHandle>,
    ) -> Result<()> {
        self.cached.forget(ino.0);
        match handle.and_then(|handle| self.files.find(handle.0)) {
            Some(open) if open.file.mode().write => open.file.truncate(size).await,
            _ => self.fs().truncate(who, ino, size).await,
        }
    }

    async fn write(&self, open: &Open, bytes: &[u8], offset: u64, append: bool) -> Result<()> {
        if append {
            open.file.append(bytes).await.map(drop)
        } else {
            open.file.write_at(bytes, offset).await
        }
    }

    async fn allocate(&self, file: &File<Net>, extent: Extent, mode: i32) -> Result<()> {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let clear = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => false,
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => true,
            libc::FALLOC_FL_ZERO_RANGE => true,
            _ => return Err(Error::new(Code::Unsupported).on("fallocate", "")),
        };
        let size = file.size().await?;
        let end = extent.offset.checked_add(extent.length).ok_or(Error::new(Code::TooLarge))?;
        if clear && extent.offset < size {
            let length = end.min(size) - extent.offset;
            file.punch(Extent { offset: extent.offset, length }).await?;
        }
        // Memory is not reserved: a full pool says so when it is written to. The kernel lets no
        // write of this mount make the file longer meanwhile.
        if !keep_size && end > size { file.truncate(end).await } else { Ok(()) }
    }

    fn list(
        &self,
        who: &Credentials,
        ino: Ino,
    ) -> impl Fn(&[u8], u32) -> Result<(Vec<weir_core::types::Entry>, bool)> {
        move |after, limit| {
            let listing = self.pool.run(self.fs().list(who, ino, after, limit, false))?;
            Ok((listing.entries, listing.end))
        }
    }
}

impl Filesystem for WeirFilesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            // We end set-user-id and set-group-id: the kernel would ask in the name of who writes,
            // who may not change modes.
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        if self.0.caching {
            wanted |= InitFlags::FUSE_AUTO_INVAL_DATA | InitFlags::FUSE_CACHE_SYMLINKS;
        }
        // What this kernel does not have, we do without.
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        if let Err(largest) = config.set_max_readahead(REQUEST_BYTES_MAX) {
            let _ = config.set_max_readahead(largest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        // The kernel does not say so of each when a mount ends.
        let left = self.0.files.drain();
        let close = async {
            futures_util::future::join_all(left.iter().map(|open| open.file.close())).await
        };
        for error in self.0.pool.run(close).into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "close at the end of a mount failed");
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let who = self.0.who(request);
        let found =
            self.0.run(Operation::Lookup, self.0.fs().lookup(&who, place(parent, name), false));
        self.0.reply_entry(parent, name, found, reply);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, _lookups: u64) {
        self.0.names.forget(ino.0);
        self.0.cached.forget(ino.0);
    }

    fn getattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let who = self.0.who(request);
        let found = self.0.run(Operation::Attributes, self.0.fs().attributes(&who, Ino(ino.0)));
        self.0.reply_attributes(found, reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let who = self.0.who(request);
        let ino = Ino(ino.0);
        let change = async {
            // A truncation sets the time of last write by itself.
            let mtime = mtime.filter(|time| size.is_none() || *time != TimeOrNow::Now);
            let changes = Changes {
                mode: mode.map(|mode| mode & 0o7777),
                uid,
                gid,
                atime: atime.map(set_time),
                mtime: mtime.map(set_time),
            };
            if let Some(size) = size {
                self.0.truncate(&who, ino, size, handle).await?;
            }
            let mut attributes = match changes == Changes::default() {
                true => self.0.fs().attributes(&who, ino).await?,
                false => self.0.fs().change(&who, ino, changes).await?,
            };
            if size.is_some() && who.uid != 0 {
                self.0.end_privileges(&mut attributes).await?;
            }
            Ok(attributes)
        };
        let changed = self.0.run(Operation::Change, change);
        self.0.reply_attributes(changed, reply);
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let who = self.0.who(request);
        match self.0.run(Operation::ReadLink, self.0.fs().read_link(&who, Ino(ino.0))) {
            Ok(text) => reply.data(&text),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let who = self.0.who(request);
        let made = match FileKind::from_mode_bits(mode) {
            None | Some(FileKind::Directory | FileKind::Symlink) => Err(Errno::EINVAL),
            Some(kind) => {
                let place = place(parent, name);
                let make = self.0.fs().make_node(&who, place, kind, mode & 0o7777, rdev.into());
                self.0.run(Operation::MakeNode, make)
            }
        };
        self.0.reply_entry(parent, name, made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let who = self.0.who(request);
        let make = self.0.fs().make_directory(&who, place(parent, name), mode & 0o7777);
        let made = self.0.run(Operation::MakeDirectory, make);
        self.0.reply_entry(parent, name, made, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let who = self.0.who(request);
        let unlink = self.0.fs().unlink(&who, place(parent, name));
        done(self.0.run(Operation::Unlink, unlink), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let who = self.0.who(request);
        let remove = self.0.fs().remove_directory(&who, place(parent, name));
        done(self.0.run(Operation::RemoveDirectory, remove), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let who = self.0.who(request);
        let text = target.as_os_str().as_bytes();
        let made =
            self.0.run(Operation::Symlink, self.0.fs().symlink(&who, place(parent, name), text));
        self.0.reply_entry(parent, name, made, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let no_replace = flags.contains(RenameFlags::RENAME_NOREPLACE);
        let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
        let known = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
        if !known.contains(flags) || (no_replace && exchange) {
            return reply.error(Errno::EINVAL);
        }
        let who = self.0.who(request);
        let (from, to) = (place(parent, name), place(new_parent, new_name));
        let rename = self.0.fs().rename(&who, from, to, no_replace, exchange);
        done(self.0.run(Operation::Rename, rename), reply);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let who = self.0.who(request);
        let link = self.0.fs().link(&who, Ino(ino.0), place(new_parent, new_name));
        let made = self.0.run(Operation::Link, link);
        self.0.reply_entry(new_parent, new_name, made, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let who = self.0.who(request);
        let (result, time) = self.0.timed(Operation::Open, self.0.open(&who, Ino(ino.0), flags.0));
        match result {
            Ok((file, attributes)) => {
                let (handle, treatment) = self.0.opened(file, &attributes, flags.0, time);
                reply.opened(handle, treatment);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let who = self.0.who(request);
        let access = flags & libc::O_ACCMODE;
        let write = access != libc::O_RDONLY;
        let truncate = write && flags & libc::O_TRUNC != 0;
        let open = OpenMode { read: access != libc::O_WRONLY, write, truncate };
        let create = async {
            let exclusive = flags & libc::O_EXCL != 0;
            let (place, mode) = (place(parent, name), mode & 0o7777);
            let layout = LayoutWish::default();
            let (file, mut attributes, made) =
                self.0.fs().create(&who, place, mode, exclusive, open, layout).await?;
            if truncate && !made && who.uid != 0 {
                self.0.end_privileges(&mut attributes).await?;
            }
            Ok((file, attributes))
        };
        let (result, time) = self.0.timed(Operation::Create, create);
        match result {
            Ok((file, attributes)) => {
                self.0.names.learn(attributes.ino.0, parent.0, name.as_bytes());
                let (handle, treatment) = self.0.opened(file, &attributes, flags, time);
                // Name and attributes go by one time here: the name's, which is none.
                let attributes = to_kernel(&attributes);
                reply.created(&Duration::ZERO, &attributes, Generation(0), handle, treatment);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(open) = self.0.files.find(handle.0) else {
            return reply.error(Errno::EBADF);
        };
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size.max(REQUEST_BYTES_MAX as usize), 0);
            }
            let read = open.file.read_at(&mut buffer[..size], offset);
            let (result, time) = self.0.timed(Operation::Read, read);
            open.counters.read(*result.as_ref().unwrap_or(&0), time);
            match result {
                Ok(length) => reply.data(&buffer[..length]),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(open) = self.0.files.find(handle.0) else {
            return reply.error(Errno::EBADF);
        };
        if self.0.caching {
            self.0.cached.forget(ino.0);
        }
        // Pages come back from the cache with any handle of the file, and know where they belong.
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let append = !from_cache && flags.0 & libc::O_APPEND != 0;
        let write = async {
            self.0.write(&open, data, offset, append).await?;
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)
                && open.privileged.swap(false, Ordering::Relaxed)
            {
                let mut attributes = self.0.fs().attributes(&SUPERUSER, Ino(ino.0)).await?;
                self.0.end_privileges(&mut attributes).await?;
            }
            Ok(())
        };
        let (result, time) = self.0.timed(Operation::Write, write);
        open.counters.wrote(if result.is_ok() { data.len() } else { 0 }, time);
        match result {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // What was written is stored already. The kernel asks no more after this answer, and still
        // writes mapped pages back.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let Some(open) = self.0.files.remove(handle.0) else {
            return reply.error(Errno::EBADF);
        };
        let (result, time) = self.0.timed(Operation::Close, open.file.close());
        open.counters.closed(time);
        done(result, reply);
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let sync = |open: Arc<Open>| async move { open.file.sync().await };
        done(self.0.on_file(Operation::Sync, handle, sync), reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let who = self.0.who(request);
        let ino = Ino(ino.0);
        let begun = Instant::now();
        let opened = Directory::open(who.clone(), ino, self.0.list(&who, ino));
        self.0.counters.operation(Operation::OpenDirectory, begun.elapsed(), opened.is_err());
        match opened {
            Ok(directory) => {
                let handle = FileHandle(self.0.directories.insert(directory));
                reply.opened(handle, FopenFlags::empty());
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(directory) = self.0.directories.find(handle.0) else {
            return reply.error(Errno::EBADF);
        };
        let begun = Instant::now();
        let parent = self.0.names.parent(directory.ino.0).map_or(directory.ino, Ino);
        let list = self.0.list(&directory.who, directory.ino);
        let read = directory.read(offset, parent, list, |ino, cookie, entry, name| {
            let kind = entry.map_or(FileType::Directory, |entry| file_type(entry.kind));
            reply.add(INodeNo(ino.0), cookie, kind, OsStr::from_bytes(name))
        });
        self.0.counters.operation(Operation::ReadDirectory, begun.elapsed(), read.is_err());
        match read {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.directories.remove(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        // The metadata service has committed each change before it answers.
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.0.run(Operation::StatFs, self.0.fs().usage()) {
            Ok(usage) => {
                let block = u64::from(BLOCK_SIZE);
                let free = usage.capacity.saturating_sub(usage.used) / block;
                let room = usage.metadata_capacity.saturating_sub(usage.metadata_used);
                let files_free = room / INODE_BYTES;
                reply.statfs(
                    usage.capacity / block,
                    free,
                    free,
                    usage.inodes + files_free,
                    files_free,
                    BLOCK_SIZE,
                    NAME_BYTES_MAX as u32,
                    BLOCK_SIZE,
                );
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if name.as_bytes() == CAPABILITY_XATTR {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let who = self.0.who(request);
        let create = flags & libc::XATTR_CREATE != 0;
        let replace = flags & libc::XATTR_REPLACE != 0;
        let set = self.0.fs().set_xattr(&who, Ino(ino.0), name.as_bytes(), value, create, replace);
        done(self.0.run(Operation::SetXattr, set), reply);
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if name.as_bytes() == CAPABILITY_XATTR {
            return reply.error(Errno::ENODATA);
        }
        let who = self.0.who(request);
        let get = self.0.fs().xattr(&who, Ino(ino.0), name.as_bytes());
        reply_xattr(self.0.run(Operation::GetXattr, get), size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let who = self.0.who(request);
        let list = self.0.run(Operation::ListXattr, self.0.fs().list_xattr(&who, Ino(ino.0)));
        reply_xattr(list, size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let who = self.0.who(request);
        let remove = self.0.fs().remove_xattr(&who, Ino(ino.0), name.as_bytes());
        done(self.0.run(Operation::RemoveXattr, remove), reply);
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let who = self.0.who(request);
        let access = async {
            let attributes = self.0.fs().attributes(&who, Ino(ino.0)).await?;
            // The bits of access(2) are those of a permission triple.
            match allows(&attributes, &who, mask.bits() as u32) {
                true => Ok(()),
                false => Err(Error::new(Code::AccessDenied).on("access", format!("inode {ino}"))),
            }
        };
        done(self.0.run(Operation::Access, access), reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.0.cached.forget(ino.0);
        let allocate = |open: Arc<Open>| async move {
            self.0.allocate(&open.file, Extent { offset, length }, mode).await
        };
        done(self.0.on_file(Operation::Allocate, handle, allocate), reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let data = match whence {
            libc::SEEK_DATA => true,
            libc::SEEK_HOLE => false,
            // The kernel does the others by itself.
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        let seek = |open: Arc<Open>| async move { open.file.seek(offset, data).await };
        match self.0.on_file(Operation::Seek, handle, seek) {
            Ok(Some(found)) => reply.offset(found as i64),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(errno) => reply.error(errno),
        }
    }

    // The kernel has its own way of doing these where we have none.

    fn copy_file_range(
        &self,
        _request: &Request,
        _ino_in: INodeNo,
        _handle_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _handle_out: FileHandle,
        _offset_out: u64,
        _length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _request: &Request, _ino: INodeNo, _size: u32, _index: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}

fn done(result: std::result::Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// A size of 0 asks how large the value is.
fn reply_xattr(value: std::result::Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::without_privileges;

    #[test]
    fn a_write_ends_privileges_and_nothing_else() {
        assert_eq!(without_privileges(0o755), None);
        assert_eq!(without_privileges(0o4755), Some(0o755));
        assert_eq!(without_privileges(0o2755), Some(0o755));
        assert_eq!(without_privileges(0o6711), Some(0o711));
        // Set-group-id without execution by the group stays.
        assert_eq!(without_privileges(0o2644), None);
        assert_eq!(without_privileges(0o6644), Some(0o2644));
    }
}
