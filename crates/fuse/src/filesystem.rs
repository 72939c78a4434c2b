//! The kernel's requests, each carried out by the client.

use crate::attributes::{file_type, set_time, to_kernel};
use crate::directory::Directory;
use crate::locks::to_lock;
use crate::shared::{Open, Shared, errno, without_privileges};
use crate::statistics::Operation;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags,
    PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use weir_client::lending::LEND;
use weir_core::config::NAME_BYTES_MAX;
use weir_core::error::{Code, Error};
use weir_core::layout::Extent;
use weir_core::types::{FileKind, Ino};
use weir_core::wire::meta::{Changes, OpenMode, Place};

/// Largest read and write that the kernel makes of us in one request: bytes.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Reads ahead and writes behind that the kernel may have under way (caching, mmap, libaio).
const BACKGROUND_MAX: u16 = 64;
/// Unit of sizes in statfs: bytes.
const BLOCK_SIZE: u32 = 4096;
/// Metadata memory that a small file takes, for an estimate of how many more there can be: bytes.
const INODE_BYTES: u64 = 1024;
/// Asked for by the kernel before writes; we have none, and need not ask the pool each time.
const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// What fuser holds.
pub(crate) struct WeirFilesystem(pub(crate) Arc<Shared>);

thread_local! {
    /// Where reads land on their way to the kernel: made once for each thread.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn place(parent: INodeNo, name: &OsStr) -> Place {
    Place::new(Ino(parent.0), name.as_bytes())
}

impl Filesystem for WeirFilesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
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
        self.0.locks.end(&self.0);
        self.0.unpin_all();
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
        let look = self.0.lookup(&who, Ino(parent.0), name.as_bytes());
        let found = self.0.run(Operation::Lookup, look);
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
        let attributes = async {
            match self.0.fs().attributes(&who, Ino(ino.0)).await {
                // The pool keeps what has no names as long as a handle of its own is open. Fifos,
                // directories and what was opened with O_PATH have none.
                Err(error) if error.code == Code::NotFound => {
                    self.0.names.remains(ino.0).ok_or(error)
                }
                found => found,
            }
        };
        let found = self.0.run(Operation::Attributes, attributes);
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
            if mode.is_some() && without_privileges(attributes.mode).is_some() {
                self.0.mark_privileged(ino);
            }
            Ok(attributes)
        };
        let changed = self.0.run(Operation::Change, change);
        if changed.as_ref().is_err_and(|errno| *errno == Errno::ESTALE) {
            self.0.was_overtaken(ino);
        }
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
                self.0.was_opened(Ino(ino.0));
            }
            Err(errno) => {
                if errno == Errno::ESTALE {
                    self.0.was_overtaken(Ino(ino.0));
                }
                reply.error(errno);
            }
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
            let layout = self.0.layout_wish(parent.0, name);
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
                self.0.names.learn(&attributes, parent.0, name.as_bytes());
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
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(open) = self.0.files.find(handle.0) else {
            return reply.error(Errno::EBADF);
        };
        // The kernel names no owner when it fills its pages, and always one when a program reads.
        if let (None, Some(lender)) = (lock_owner, &self.0.lender) {
            lender.mapped(ino.0);
        }
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
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.0.changed(&open).await?;
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
        ino: INodeNo,
        _handle: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // What was written is stored already.
        self.0.flushed(Ino(ino.0), lock_owner.0);
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let Some(open) = self.0.files.remove(handle.0) else {
            return reply.error(Errno::EBADF);
        };
        if let Some(lender) = &self.0.lender {
            if open.file.mode().write && open.counters.in_doubt(&lender.board) {
                open.file.doubt();
            }
            lender.closed(ino.0, || self.0.files.any(|open| open.file.ino().0 == ino.0));
        }
        self.0.released(handle.0, &open);
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

    fn getlk(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let Some(open) = self.0.files.find(handle.0) else {
            return reply.error(Errno::EBADF);
        };
        let owner = (handle.0, lock_owner.0);
        let lock = to_lock(request, Ino(ino.0), owner, (start, end), typ, pid);
        self.0.find_lock(&open, lock, reply);
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let Some(open) = self.0.files.find(handle.0) else {
            return reply.error(Errno::EBADF);
        };
        let owner = (handle.0, lock_owner.0);
        let lock = to_lock(request, Ino(ino.0), owner, (start, end), typ, pid);
        if typ == libc::F_UNLCK {
            return self.0.let_go(lock, reply);
        }
        self.0.take_lock(request, (handle.0, &open), lock, sleep, reply);
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
            match attributes.allow(&who, mask.bits() as u32) {
                true => Ok(()),
                false => Err(Error::new(Code::AccessDenied).on("access", format!("inode {ino}"))),
            }
        };
        done(self.0.run(Operation::Access, access), reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.0.cached.forget(ino.0);
        let allocate = |open: Arc<Open>| async move {
            self.0.allocate(&open.file, Extent { offset, length }, mode).await?;
            if request.uid() != 0 { self.0.changed(&open).await } else { Ok(()) }
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

    fn copy_file_range(
        &self,
        request: &Request,
        _ino_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let files = (self.0.files.find(handle_in.0), self.0.files.find(handle_out.0));
        let (Some(from), Some(to)) = files else {
            return reply.error(Errno::EBADF);
        };
        self.0.cached.forget(ino_out.0);
        let copied = BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < REQUEST_BYTES_MAX as usize {
                buffer.resize(REQUEST_BYTES_MAX as usize, 0);
            }
            let copy = async {
                let copied =
                    self.0.copy((&from, offset_in), (&to, offset_out), length, buffer).await?;
                if request.uid() != 0 {
                    self.0.changed(&to).await?;
                }
                Ok(copied)
            };
            let (result, time) = self.0.timed(Operation::Copy, copy);
            from.counters.read(*result.as_ref().unwrap_or(&0) as usize, Duration::ZERO);
            to.counters.wrote(*result.as_ref().unwrap_or(&0) as usize, time);
            result
        });
        match copied {
            Ok(copied) => reply.written(copied),
            Err(errno) => reply.error(errno),
        }
    }

    // The kernel has its own way of doing these where we have none.

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
        handle: FileHandle,
        flags: IoctlFlags,
        command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        // A directory's handles are numbered apart from files'.
        if command != LEND || flags.contains(IoctlFlags::FUSE_IOCTL_DIR) {
            return reply.error(Errno::ENOTTY);
        }
        match self.0.lend(handle) {
            Ok(lent) => reply.ioctl(0, &lent),
            Err(errno) => reply.error(errno),
        }
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
