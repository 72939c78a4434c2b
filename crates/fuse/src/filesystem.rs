//! The kernel's requests, each carried out by the client.

use crate::ahead::{Fetch, Step};
use crate::directory::{Directory, Listed};
use crate::kernel::{Header, Operation as Asked, Read, SetAttributes, Write, init, write};
use crate::lanes::{self, with_room};
use crate::locks::to_lock;
use crate::reply::{Entries, Errno, Reply, Space};
use crate::shared::{Open, Shared, errno, open_mode, without_privileges};
use crate::statistics::Operation;
use futures_util::FutureExt;
use futures_util::future::{Either, Fuse, FusedFuture, LocalBoxFuture, select};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_client::Net;
use weir_client::lending::LEND;
use weir_core::config::NAME_BYTES_MAX;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::File;
use weir_core::layout::Extent;
use weir_core::types::{Attributes, Credentials, FileKind, Ino};
use weir_core::wire::meta::{Changes, Place, SetTime};

/// Largest read and write that the kernel makes of us in one request: bytes.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Reads ahead and writes behind that the kernel may have under way (caching, mmap, libaio).
pub(crate) const BACKGROUND_MAX: u16 = 64;
/// Unit of sizes in statfs: bytes.
const BLOCK_SIZE: u32 = 4096;
/// Metadata memory that a small file takes, for an estimate of how many more there can be: bytes.
const INODE_BYTES: u64 = 1024;
/// Asked for by the kernel before writes; we have none, and need not ask the pool each time.
const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// Whether an extended attribute is of a kind that is never kept here, which is then said without a
/// question to the pool. `ls -l` and the like ask for SELinux's label of every entry, but no more
/// once they have heard that there is no such thing; where SELinux rules, it answers itself.
fn never_kept(name: &[u8]) -> bool {
    name == b"security.selinux" || name.starts_with(b"system.")
}
/// What a rename may be asked to be.
const RENAME_NO_REPLACE: u32 = libc::RENAME_NOREPLACE;
const RENAME_EXCHANGE: u32 = libc::RENAME_EXCHANGE;

/// A step on its way to memory.
type Fetching<'a> = Fuse<LocalBoxFuture<'a, ()>>;

type Answered<T> = std::result::Result<T, Errno>;

impl Shared {
    /// What this file system wants of the kernel, as bits of [`init`].
    pub(crate) fn wishes(&self) -> u64 {
        let wanted = init::ASYNC_READ
            | init::BIG_WRITES
            | init::ATOMIC_O_TRUNC
            | init::PARALLEL_DIROPS
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::ASYNC_DIO
            | init::MAX_PAGES
            | init::DIRECT_IO_ALLOW_MMAP
            | init::POSIX_LOCKS
            | init::FLOCK_LOCKS
            // We end set-user-id and set-group-id: the kernel would ask in the name of who writes,
            // who may not change modes.
            | init::HANDLE_KILLPRIV_V2;
        match self.caching {
            true => wanted | init::AUTO_INVAL_DATA | init::CACHE_SYMLINKS,
            false => wanted,
        }
    }

    /// The mount has ended.
    pub(crate) fn end(&self) {
        self.unpin_all();
        // The kernel does not say so of each when a mount ends.
        let left = self.files.drain();
        let close = async {
            futures_util::future::join_all(left.iter().map(|open| open.file.close())).await
        };
        for error in self.pool.run(close).into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "close at the end of a mount failed");
        }
    }

    /// Carries out a request and answers it.
    pub(crate) fn answer(self: &Arc<Self>, request: &Header, asked: Asked<'_>, reply: Reply) {
        let ino = request.ino;
        match asked {
            Asked::Lookup { name } => self.look_up(request, name, reply),
            Asked::Forget { lookups } => {
                self.forget(ino, lookups);
                reply.none();
            }
            Asked::ForgetMany { inos } => {
                inos.into_iter().for_each(|(ino, lookups)| self.forget(ino, lookups));
                reply.none();
            }
            Asked::Attributes => self.attributes(request, reply),
            Asked::SetAttributes(wish) => self.set_attributes(request, wish, reply),
            Asked::ReadLink => {
                let who = self.who(request);
                match self.run(Operation::ReadLink, self.fs().read_link(&who, ino)) {
                    Ok(text) => reply.data(&text),
                    Err(errno) => reply.error(errno),
                }
            }
            Asked::Symlink { name, target } => {
                let who = self.who(request);
                let make = self.fs().symlink(&who, Place::new(ino, name), target);
                self.reply_entry(ino, name, self.run(Operation::Symlink, make), reply);
            }
            Asked::MakeNode { name, mode, rdev } => {
                let who = self.who(request);
                let made = match FileKind::from_mode_bits(mode) {
                    None | Some(FileKind::Directory | FileKind::Symlink) => Err(Errno::EINVAL),
                    Some(kind) => {
                        let (place, mode) = (Place::new(ino, name), mode & 0o7777);
                        let make = self.fs().make_node(&who, place, kind, mode, rdev.into());
                        self.run(Operation::MakeNode, make)
                    }
                };
                self.reply_entry(ino, name, made, reply);
            }
            Asked::MakeDirectory { name, mode } => {
                let who = self.who(request);
                let make = self.fs().make_directory(&who, Place::new(ino, name), mode & 0o7777);
                self.reply_entry(ino, name, self.run(Operation::MakeDirectory, make), reply);
            }
            Asked::Unlink { name } => {
                let who = self.who(request);
                let unlink = self.fs().unlink(&who, Place::new(ino, name));
                done(self.run(Operation::Unlink, unlink), reply);
            }
            Asked::RemoveDirectory { name } => {
                let who = self.who(request);
                let remove = self.fs().remove_directory(&who, Place::new(ino, name));
                done(self.run(Operation::RemoveDirectory, remove), reply);
            }
            Asked::Rename { name, new_parent, new_name, flags } => {
                let (from, to) = (Place::new(ino, name), Place::new(new_parent, new_name));
                done(self.rename(request, from, to, flags), reply);
            }
            Asked::Link { ino: linked, new_name } => {
                let who = self.who(request);
                let link = self.fs().link(&who, linked, Place::new(ino, new_name));
                self.reply_entry(ino, new_name, self.run(Operation::Link, link), reply);
            }
            Asked::Open { flags } => self.open_file(request, flags, reply),
            Asked::Create { name, mode, flags } => self.create(request, name, mode, flags, reply),
            Asked::CreateUnnamed { mode, flags } => {
                self.create_unnamed(request, mode, flags, reply);
            }
            Asked::Read(read) => self.read_file(ino, &read, reply),
            Asked::Write { write, data } => self.write_file(ino, &write, data, reply),
            Asked::Flush { handle, lock_owner } => {
                // Whoever closed it does not go on before the answer: programs find it counted.
                if let (Some(lender), Some(open)) = (&self.lender, self.files.find(handle)) {
                    open.counters.descriptor_closed(&lender.board);
                }
                // What was written is stored already.
                self.flushed(ino, lock_owner);
                reply.ok();
            }
            Asked::Release { handle } => self.release(ino, handle, reply),
            Asked::Sync { handle } => {
                let sync = |open: Arc<Open>| async move { open.file.sync().await };
                done(self.on_file(Operation::Sync, handle, sync), reply);
            }
            Asked::OpenDirectory => self.open_directory(request, reply),
            Asked::ReadDirectory { handle, offset, size, plus } => {
                self.read_directory(handle, offset, size, plus, reply);
            }
            Asked::ReleaseDirectory { handle } => {
                self.directories.remove(handle);
                reply.ok();
            }
            // The metadata service has committed each change before it answers.
            Asked::SyncDirectory => reply.ok(),
            Asked::StatFs => self.space(reply),
            Asked::SetXattr { name, .. } if name == CAPABILITY_XATTR || never_kept(name) => {
                reply.error(Errno::EOPNOTSUPP);
            }
            Asked::SetXattr { name, value, flags } => {
                let who = self.who(request);
                let create = flags & libc::XATTR_CREATE != 0;
                let replace = flags & libc::XATTR_REPLACE != 0;
                let set = self.fs().set_xattr(&who, ino, name, value, create, replace);
                done(self.run(Operation::SetXattr, set), reply);
            }
            Asked::GetXattr { name, .. } if name == CAPABILITY_XATTR => {
                reply.error(Errno::ENODATA);
            }
            Asked::GetXattr { name, .. } if never_kept(name) => reply.error(Errno::EOPNOTSUPP),
            Asked::GetXattr { name, size } => {
                let who = self.who(request);
                let get = self.fs().xattr(&who, ino, name);
                reply_xattr(self.run(Operation::GetXattr, get), size, reply);
            }
            Asked::ListXattr { size } => {
                let who = self.who(request);
                let list = self.run(Operation::ListXattr, self.fs().list_xattr(&who, ino));
                reply_xattr(list, size, reply);
            }
            Asked::RemoveXattr { name } => {
                let who = self.who(request);
                let remove = self.fs().remove_xattr(&who, ino, name);
                done(self.run(Operation::RemoveXattr, remove), reply);
            }
            Asked::Access { mask } => self.access(request, mask, reply),
            Asked::FindLock(wish) => match self.files.find(wish.handle) {
                Some(open) => self.find_lock(&open, to_lock(ino, &wish), reply),
                None => reply.error(Errno::EBADF),
            },
            Asked::SetLock { lock: wish, wait } => {
                let lock = to_lock(ino, &wish);
                match self.files.find(wish.handle) {
                    None => reply.error(Errno::EBADF),
                    Some(_) if wish.typ == libc::F_UNLCK => self.let_go(lock, reply),
                    Some(open) => self.take_lock((wish.handle, &open), lock, wait, reply),
                }
            }
            Asked::Interrupt { unique } => {
                self.interrupt(unique);
                reply.none();
            }
            Asked::Ioctl { handle, command, directory } => {
                // A directory's handles are numbered apart from files'.
                let known = command == LEND && !directory;
                match if known { self.lend(handle) } else { Err(Errno::ENOTTY) } {
                    Ok(lent) => reply.ioctl(&lent),
                    Err(errno) => reply.error(errno),
                }
            }
            Asked::Allocate { handle, offset, length, mode } => {
                self.cached.forget(ino.0);
                let allocate = |open: Arc<Open>| async move {
                    self.allocate(&open.file, Extent { offset, length }, mode).await?;
                    if request.uid != 0 { self.changed(&open).await } else { Ok(()) }
                };
                done(self.on_file(Operation::Allocate, handle, allocate), reply);
            }
            Asked::Seek { handle, offset, whence } => self.seek(handle, offset, whence, reply),
            Asked::CopyRange { from, offset_in, ino_out, to, offset_out, length } => {
                self.cached.forget(ino_out.0);
                let ends = ((from, offset_in), (to, offset_out));
                match self.copy_range(request, ends, length) {
                    Ok(copied) => reply.written(copied),
                    Err(errno) => reply.error(errno),
                }
            }
            Asked::Destroy => reply.ok(),
            Asked::Provoked => reply.ok(),
            // An init in the middle of a mount is nothing that a kernel sends. For the others it has
            // its own way where we have none.
            Asked::Init { .. } | Asked::Unknown => reply.error(Errno::ENOSYS),
        }
    }

    fn look_up(&self, request: &Header, name: &[u8], reply: Reply) {
        self.displaced.settle();
        let who = self.who(request);
        let found = self.run(Operation::Lookup, self.lookup(&who, request.ino, name));
        self.reply_looked(request.ino, name, found, reply);
    }

    fn forget(&self, ino: Ino, lookups: u64) {
        self.names.forget(ino.0, lookups);
        self.cached.forget(ino.0);
    }

    fn attributes(&self, request: &Header, reply: Reply) {
        let who = self.who(request);
        let found = self.run(Operation::Attributes, self.look_at(&who, request.ino));
        self.reply_attributes(found, reply);
    }

    /// Attributes, and how long they may be believed.
    async fn look_at(&self, who: &Credentials, ino: Ino) -> Result<(Attributes, Duration)> {
        match self.fs().look_at(who, ino).await {
            // The pool keeps what has no names as long as a handle of its own is open. Fifos,
            // directories and what was opened with O_PATH have none.
            Err(error) if error.code == Code::NotFound => {
                self.names.remains(ino.0).map(unbelieved).ok_or(error)
            }
            found => found,
        }
    }

    fn set_attributes(&self, request: &Header, wish: SetAttributes, reply: Reply) {
        let (who, ino) = (self.who(request), request.ino);
        let SetAttributes { mode, uid, gid, size, atime, mtime, handle } = wish;
        let change = async {
            // A truncation sets the time of last write by itself.
            let mtime = mtime.filter(|time| size.is_none() || *time != SetTime::Now);
            let mode_wanted = mode.map(|mode| mode & 0o7777);
            let changes = Changes { mode: mode_wanted, uid, gid, atime, mtime };
            if let Some(size) = size {
                self.truncate(&who, ino, size, handle).await?;
            }
            let mut attributes = match changes == Changes::default() {
                true => self.fs().attributes(&who, ino).await?,
                false => self.fs().change(&who, ino, changes).await?,
            };
            if size.is_some() && who.uid != 0 {
                self.end_privileges(&mut attributes).await?;
            }
            if mode.is_some() && without_privileges(attributes.mode).is_some() {
                self.mark_privileged(ino);
            }
            Ok(attributes)
        };
        let changed = self.run(Operation::Change, change);
        if changed.as_ref().is_err_and(|errno| *errno == Errno::ESTALE) {
            self.was_overtaken(ino);
        }
        self.reply_attributes(changed.map(unbelieved), reply);
    }

    fn rename(&self, request: &Header, from: Place, to: Place, flags: u32) -> Answered<()> {
        let no_replace = flags & RENAME_NO_REPLACE != 0;
        let exchange = flags & RENAME_EXCHANGE != 0;
        let unknown = flags & !(RENAME_NO_REPLACE | RENAME_EXCHANGE) != 0;
        if unknown || (no_replace && exchange) {
            return Err(Errno::EINVAL);
        }
        let who = self.who(request);
        let rename = self.fs().rename(&who, from.clone(), to.clone(), no_replace, exchange);
        self.run(Operation::Rename, rename)?;
        self.names.moved((from.base.0, &from.path), (to.base.0, &to.path), exchange);
        Ok(())
    }

    fn open_file(&self, request: &Header, flags: i32, reply: Reply) {
        let (who, ino) = (self.who(request), request.ino);
        // Of openings for writing the kernel knows by itself, of these only when they have truncated it.
        let reads_and_truncates = flags & (libc::O_ACCMODE | libc::O_TRUNC) == libc::O_TRUNC;
        if reads_and_truncates && self.files.any(|open| open.executed && open.file.ino() == ino) {
            return reply.error(Errno(libc::ETXTBSY));
        }
        let (result, time) = self.timed(Operation::Open, self.open(&who, ino, flags));
        match result {
            Ok((file, attributes)) => {
                let (handle, treatment) = self.opened(file, &attributes, flags, time);
                reply.opened(handle, treatment);
                self.was_opened(ino);
            }
            Err(errno) => {
                if errno == Errno::ESTALE {
                    self.was_overtaken(ino);
                }
                reply.error(errno);
            }
        }
    }

    fn create(&self, request: &Header, name: &[u8], mode: u32, flags: i32, reply: Reply) {
        let (who, parent) = (self.who(request), request.ino);
        let open = open_mode(flags);
        let create = async {
            let exclusive = flags & libc::O_EXCL != 0;
            let (place, mode) = (Place::new(parent, name), mode & 0o7777);
            let layout = self.layout_wish(parent.0, OsStr::from_bytes(name));
            let (file, mut attributes, made) =
                self.fs().create(&who, place, mode, exclusive, open, layout).await?;
            if open.truncate && !made && who.uid != 0 {
                self.end_privileges(&mut attributes).await?;
            }
            Ok((file, attributes))
        };
        let created = self.timed(Operation::Create, create);
        self.reply_created((parent, Some(name)), flags, created, reply);
    }

    fn create_unnamed(&self, request: &Header, mode: u32, flags: i32, reply: Reply) {
        let (who, parent) = (self.who(request), request.ino);
        let layout = self.layout_wish(parent.0, OsStr::new(""));
        let (mode, open) = (mode & 0o7777, open_mode(flags));
        let create = self.fs().create_unnamed(&who, parent, mode, open, layout);
        let created = self.timed(Operation::Create, create);
        self.reply_created((parent, None), flags, created, reply);
    }

    fn reply_created(
        &self,
        (parent, name): (Ino, Option<&[u8]>),
        flags: i32,
        (created, time): (Answered<(File<Net>, Attributes)>, Duration),
        reply: Reply,
    ) {
        match created {
            Ok((file, attributes)) => {
                // Without a name it is called as the kernel calls it.
                let number = format!("#{}", attributes.ino.0);
                self.names.learn(&attributes, parent.0, name.unwrap_or(number.as_bytes()));
                let (handle, treatment) = self.opened(file, &attributes, flags, time);
                reply.created(&attributes, Duration::ZERO, handle, treatment);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read_file(&self, ino: Ino, read: &Read, reply: Reply) {
        let Some(open) = self.files.find(read.handle) else {
            return reply.error(Errno::EBADF);
        };
        if let (false, Some(lender)) = (read.for_program, &self.lender) {
            lender.mapped(ino.0);
        }
        let size = read.size as usize;
        let Step { fetched, next } = match read.for_program {
            true => open.ahead.step(read.offset, size),
            false => Step::default(),
        };
        let mut fetching = next.and_then(|next| Shared::fetch(&open, next, size));
        with_room(size, |room| {
            let (room, fetched) = match room {
                Ok(room) => (room, &fetched),
                Err(errno) => return reply.error(errno),
            };
            let read = async {
                if let Some(fetched) = fetched
                    && open.file.is_as_seen(&fetched.seen).await?
                {
                    return Ok(&fetched.buffer[..]);
                }
                let length = open.file.read_at(room, read.offset).await?;
                Ok(&room[..length])
            };
            let work = async {
                // What is wanted now is asked for first, and both are under way at a time.
                match &mut fetching {
                    None => read.await,
                    Some(fetching) => match select(pin!(read), fetching).await {
                        Either::Left((result, _)) => result,
                        Either::Right(((), read)) => read.await,
                    },
                }
            };
            let (result, time) = self.timed(Operation::Read, work);
            open.counters.read(result.as_ref().map_or(0, |bytes| bytes.len()), time);
            match result {
                Ok(bytes) => reply.data(bytes),
                Err(errno) => reply.error(errno),
            }
        });
        if let Some(fetched) = fetched {
            open.ahead.give_back(fetched.buffer);
        }
        // The program goes on meanwhile.
        if let Some(fetching) = fetching.filter(|fetching| !fetching.is_terminated()) {
            lanes::tell();
            self.pool.run(fetching);
        }
    }

    /// Fetches a step before the program asks for it.
    fn fetch<'a>(open: &'a Open, next: Fetch<'a>, size: usize) -> Option<Fetching<'a>> {
        let mut buffer = open.ahead.buffer(size).ok()?;
        let fetch = async move {
            match open.file.read_ahead(&mut buffer, next.offset).await {
                Ok(Some(seen)) => next.keep(buffer, seen),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "nothing was read ahead"),
            }
        };
        Some(fetch.boxed_local().fuse())
    }

    fn write_file(&self, ino: Ino, asked: &Write, data: &[u8], reply: Reply) {
        let Some(open) = self.files.find(asked.handle) else {
            return reply.error(Errno::EBADF);
        };
        if self.caching {
            self.cached.forget(ino.0);
        }
        // Pages come back from the cache with any handle of the file, and know where they belong.
        let from_cache = asked.write_flags & write::CACHE != 0;
        let append = !from_cache && asked.flags & libc::O_APPEND != 0;
        let work = async {
            self.write(&open, data, asked.offset, append).await?;
            if asked.write_flags & write::KILL_SUIDGID != 0 {
                self.changed(&open).await?;
            }
            Ok(())
        };
        let (result, time) = self.timed(Operation::Write, work);
        open.counters.wrote(if result.is_ok() { data.len() } else { 0 }, time);
        match result {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => {
                // The next closing of the file tells of that, and asks nothing of us.
                if let Some(lender) = self.lender.as_ref().filter(|_| from_cache) {
                    lender.board.missed_close();
                }
                reply.error(errno);
            }
        }
    }

    fn release(self: &Arc<Self>, ino: Ino, handle: u64, reply: Reply) {
        let Some(open) = self.files.remove(handle) else {
            return reply.error(Errno::EBADF);
        };
        if let Some(lender) = &self.lender {
            if open.file.mode().write && open.counters.in_doubt(&lender.board) {
                open.file.doubt();
            }
            lender.closed(ino.0, || self.files.any(|open| open.file.ino() == ino));
        }
        self.released(handle, &open);
        let (result, time) = self.timed(Operation::Close, open.file.close());
        open.counters.closed(time);
        done(result, reply);
    }

    fn open_directory(&self, request: &Header, reply: Reply) {
        let (who, ino) = (self.who(request), request.ino);
        let begun = Instant::now();
        // Many are read by who then looks at each entry: the kernel tells with the next request.
        let opened =
            Directory::open(who.clone(), ino, self.changes(), self.look_through(&who, ino));
        self.counters.operation(Operation::OpenDirectory, begun.elapsed(), opened.is_err());
        match opened {
            Ok(directory) => reply.opened(self.directories.insert(directory), 0),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn read_directory(&self, handle: u64, offset: u64, room: u32, plus: bool, reply: Reply) {
        let Some(directory) = self.directories.find(handle) else {
            return reply.error(Errno::EBADF);
        };
        let begun = Instant::now();
        let parent = self.names.parent(directory.ino.0).map_or(directory.ino, Ino);
        let (who, ino) = (&directory.who, directory.ino);
        let mut entries = Entries::new(room, plus);
        let add = |listed: Listed<'_>| {
            let kind = listed.entry.map_or(FileKind::Directory, |entry| entry.kind);
            let known = listed.known.map(|(attributes, of_name, let_be)| {
                (attributes, of_name, self.believed(attributes, let_be))
            });
            let full = entries.add(listed.ino, listed.cookie, kind, listed.name, known);
            if let (false, Some((attributes, ..))) = (full, listed.known) {
                self.names.learn(attributes, ino.0, listed.name);
            }
            full
        };
        let (look_through, list) = (self.look_through(who, ino), self.list(ino));
        let ask = |after: &[u8], limit| match plus {
            // Where he may no longer look at what is in it, he may still read it.
            true => match look_through(after, limit) {
                Err(error) if error.code == Code::AccessDenied => list(after, limit),
                looked => looked,
            },
            false => list(after, limit),
        };
        let read = directory.read(offset, parent, self.changes(), plus, ask, add);
        self.counters.operation(Operation::ReadDirectory, begun.elapsed(), read.is_err());
        match read {
            Ok(()) => reply.data(entries.bytes()),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn space(&self, reply: Reply) {
        let usage = match self.run(Operation::StatFs, self.fs().usage()) {
            Ok(usage) => usage,
            Err(errno) => return reply.error(errno),
        };
        let block = u64::from(BLOCK_SIZE);
        let room = usage.metadata_capacity.saturating_sub(usage.metadata_used);
        let files_free = room / INODE_BYTES;
        reply.space(&Space {
            blocks: usage.capacity / block,
            blocks_free: usage.capacity.saturating_sub(usage.used) / block,
            files: usage.inodes + files_free,
            files_free,
            block_size: BLOCK_SIZE,
            name_bytes_max: NAME_BYTES_MAX as u32,
        });
    }

    fn access(&self, request: &Header, mask: u32, reply: Reply) {
        let (who, ino) = (self.who(request), request.ino);
        let access = async {
            let (attributes, _) = self.look_at(&who, ino).await?;
            // The bits of access(2) are those of a permission triple.
            match attributes.allow(&who, mask) {
                true => Ok(()),
                false => {
                    Err(Error::new(Code::AccessDenied).on("access", format!("inode {}", ino.0)))
                }
            }
        };
        done(self.run(Operation::Access, access), reply);
    }

    fn seek(&self, handle: u64, offset: i64, whence: i32, reply: Reply) {
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
        match self.on_file(Operation::Seek, handle, seek) {
            Ok(Some(found)) => reply.offset(found),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_range(
        &self,
        request: &Header,
        ((handle_in, offset_in), (handle_out, offset_out)): ((u64, u64), (u64, u64)),
        length: u64,
    ) -> Answered<u32> {
        let from = self.files.find(handle_in).ok_or(Errno::EBADF)?;
        let to = self.files.find(handle_out).ok_or(Errno::EBADF)?;
        with_room(REQUEST_BYTES_MAX as usize, |room| {
            let room = room?;
            let copy = async {
                let copied = self.copy((&from, offset_in), (&to, offset_out), length, room).await?;
                if request.uid != 0 {
                    self.changed(&to).await?;
                }
                Ok(copied)
            };
            let (result, time) = self.timed(Operation::Copy, copy);
            from.counters.read(*result.as_ref().unwrap_or(&0) as usize, Duration::ZERO);
            to.counters.wrote(*result.as_ref().unwrap_or(&0) as usize, time);
            result
        })
    }
}

/// Attributes that the kernel is to ask for again.
fn unbelieved(attributes: Attributes) -> (Attributes, Duration) {
    (attributes, Duration::ZERO)
}

fn done(result: Answered<()>, reply: Reply) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// A size of 0 asks how large the value is.
fn reply_xattr(value: Answered<Vec<u8>>, size: u32, reply: Reply) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}
