//! What a mount is made of, and what several requests have in common.

use crate::ahead::{Ahead, Places};
use crate::cache::Cached;
use crate::credentials::{self, Groups};
use crate::device::Device;
use crate::directory::{Directory, List, Page};
use crate::displaced::Displaced;
use crate::handles::Handles;
use crate::ioctl::Lender;
use crate::kernel::{Header, fopen};
use crate::locks::Locks;
use crate::names::Names;
use crate::pins::Pins;
use crate::reply::{Errno, Reply};
use crate::session::MountOptions;
use crate::statistics::{Counters, FileCounters, Operation, Statistics};
use crate::tuning::Tuning;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use weir_client::{Net, Pool};
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{File, Fs, Looked};
use weir_core::layout::Extent;
use weir_core::types::{Attributes, Credentials, FileKind, Ino};
use weir_core::wire::meta::{Changes, LayoutWish, OpenMode};

/// How long the kernel believes attributes, where it caches. Names, and attributes elsewhere, it believes
/// for a moment in which the pool lets them be (`Fs::lookup_way`).
const BELIEVED: Duration = Duration::from_secs(1);
/// What one copy_file_range copies at most, lest it cannot be interrupted for long: bytes.
const COPY_BYTES_MAX: u32 = 64 << 20;
/// Linux's mark of an opening for execve.
const FMODE_EXEC: i32 = 0x20;

/// Everything about a mount.
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) caching: bool,
    /// Whether there may be other users than the one who mounted.
    pub(crate) others: bool,
    pub(crate) files: Handles<Open>,
    pub(crate) directories: Handles<Directory>,
    pub(crate) names: Names,
    pub(crate) displaced: Arc<Displaced>,
    pub(crate) pins: Pins,
    pub(crate) cached: Cached,
    /// See [`Shared::changes`].
    changes: AtomicU64,
    pub(crate) locks: Locks,
    ahead_places: Places,
    /// Over which the kernel is told what changed.
    pub(crate) device: OnceLock<Arc<Device>>,
    groups: Groups,
    /// None: files are not lent.
    pub(crate) lender: Option<Lender>,
    pub(crate) tuning: Tuning,
    pub(crate) counters: Counters,
}

/// A file opened by the kernel.
pub(crate) struct Open {
    pub(crate) file: File<Net>,
    /// Whether the kernel executes it, for as long as it is open.
    pub(crate) executed: bool,
    pub(crate) counters: Arc<FileCounters>,
    /// Whether it was made set-user-id or set-group-id since it was last known that a write need
    /// not end that. What other mounts make of it is not seen.
    pub(crate) privileged: AtomicBool,
    /// Who has asked for locks through it.
    pub(crate) lock_owners: Mutex<BTreeSet<u64>>,
    pub(crate) ahead: Ahead,
}

/// The superuser, for what follows from a permission that was given before.
pub(crate) const SUPERUSER: Credentials = Credentials { uid: 0, gid: 0, groups: Vec::new() };

pub(crate) fn errno(error: &Error) -> Errno {
    Errno(error.errno())
}

/// Whether it is asked of an inode, not of a name.
fn of_inode(operation: Operation) -> bool {
    use Operation::{Access, Attributes, Change, Open, ReadLink};
    matches!(operation, Access | Attributes | Change | Open | ReadLink)
}

/// Whether it may change names or attributes. An opening may be one for writing.
fn may_change(operation: Operation) -> bool {
    use Operation::*;
    match operation {
        Lookup | Attributes | ReadLink | Read | OpenDirectory | ReadDirectory | StatFs
        | GetXattr | ListXattr | Access | Seek | Lock | Unlock | FindLock | Sync | Close => false,
        Change | MakeNode | MakeDirectory | Unlink | RemoveDirectory | Symlink | Rename | Link
        | Open | Create | Write | SetXattr | RemoveXattr | Allocate | Copy => true,
    }
}

/// The mode without set-user-id and set-group-id, if that changes it. Set-group-id without
/// execution by the group is no privilege.
pub(crate) fn without_privileges(mode: u32) -> Option<u32> {
    let cleared = match mode & 0o2010 {
        0o2010 => mode & !0o6000,
        _ => mode & !0o4000,
    };
    (cleared != mode).then_some(cleared)
}

/// For what open(2)'s flags open a file.
pub(crate) fn open_mode(flags: i32) -> OpenMode {
    let access = flags & libc::O_ACCMODE;
    let write = access != libc::O_RDONLY;
    let truncate = write && flags & libc::O_TRUNC != 0;
    OpenMode { read: access != libc::O_WRONLY, write, truncate }
}

impl Shared {
    pub(crate) fn new(pool: Pool, options: &MountOptions) -> Result<Shared> {
        Ok(Shared {
            pool,
            caching: options.caching,
            others: options.allow_other,
            files: Handles::new(),
            directories: Handles::new(),
            names: Names::default(),
            displaced: Arc::default(),
            pins: Pins::default(),
            cached: Cached::default(),
            changes: AtomicU64::new(0),
            locks: Locks::default(),
            ahead_places: Places::default(),
            device: OnceLock::new(),
            groups: Groups::default(),
            lender: options.pool_directory.as_deref().and_then(Lender::new),
            tuning: Tuning::new(&options.rules)?,
            counters: Counters::new(),
        })
    }

    /// What was done so far.
    pub(crate) fn statistics(&self) -> Statistics {
        self.counters.snapshot(self.lender.as_ref().map(|lender| &*lender.board))
    }

    /// How a file of this name is to be striped.
    pub(crate) fn layout_wish(&self, parent: u64, name: &OsStr) -> LayoutWish {
        if self.tuning.is_empty() {
            return LayoutWish::default();
        }
        let directory = self.names.path(parent);
        let name = name.to_string_lossy();
        self.tuning.layout(&format!("{}/{name}", directory.trim_end_matches('/')))
    }

    pub(crate) fn fs(&self) -> &Fs<Net> {
        self.pool.fs()
    }

    pub(crate) fn who(&self, request: &Header) -> Credentials {
        self.groups.credentials(request.uid, request.gid, request.pid)
    }

    /// Does and counts what the kernel asked for.
    pub(crate) fn run<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T>>,
    ) -> std::result::Result<T, Errno> {
        self.timed(operation, work).0
    }

    pub(crate) fn timed<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T>>,
    ) -> (std::result::Result<T, Errno>, Duration) {
        let begun = Instant::now();
        let result = self.pool.run(work);
        if may_change(operation) {
            self.changes.fetch_add(1, Ordering::Release);
        }
        let time = begun.elapsed();
        self.counters.operation(operation, time, result.is_err());
        let result = result.map_err(|error| {
            tracing::debug!(operation = operation.text(), %error, "request failed");
            match error.code {
                // Looked up a moment ago, and since then removed or replaced by another client: at
                // this word the kernel looks the name up again.
                Code::NotFound if of_inode(operation) => Errno::ESTALE,
                _ => errno(&error),
            }
        });
        (result, time)
    }

    /// As [`Shared::timed`], for what is done through an open file.
    pub(crate) fn on_file<T, F: Future<Output = Result<T>>>(
        &self,
        operation: Operation,
        handle: u64,
        work: impl FnOnce(Arc<Open>) -> F,
    ) -> std::result::Result<T, Errno> {
        let open = self.files.find(handle).ok_or(Errno::EBADF)?;
        let counters = open.counters.clone();
        let (result, time) = self.timed(operation, work(open));
        counters.other(time);
        result
    }

    /// How many requests this mount has carried out that may have changed names or attributes. What was
    /// asked for when there were fewer, the kernel may know better.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// How long the kernel believes attributes that the pool lets be for so long.
    pub(crate) fn believed(&self, attributes: &Attributes, let_be: Duration) -> Duration {
        match self.caching {
            true => BELIEVED,
            // A write ends that, of which the kernel does not hear.
            false if without_privileges(attributes.mode).is_some() => Duration::ZERO,
            false => let_be,
        }
    }

    /// Answers with what was made.
    pub(crate) fn reply_entry(
        &self,
        parent: Ino,
        name: &[u8],
        made: std::result::Result<Attributes, Errno>,
        reply: Reply,
    ) {
        self.reply_looked(parent, name, made.map(Looked::at), reply);
    }

    /// Answers with what a name names, if anything, and for how long that may be believed.
    pub(crate) fn reply_looked(
        &self,
        parent: Ino,
        name: &[u8],
        looked: std::result::Result<Looked, Errno>,
        reply: Reply,
    ) {
        match looked {
            Ok(Looked { attributes: Some(attributes), name_believed, attributes_believed }) => {
                if let Some(place) = self.names.learn(&attributes, parent.0, name)
                    && let Some(device) = self.device.get()
                {
                    self.displaced.forget(device, place);
                }
                let believed = self.believed(&attributes, attributes_believed);
                reply.entry(&attributes, believed, name_believed);
            }
            Ok(Looked { attributes: None, name_believed, .. }) => reply.no_entry(name_believed),
            Err(errno) => reply.error(errno),
        }
    }

    pub(crate) fn reply_attributes(
        &self,
        found: std::result::Result<(Attributes, Duration), Errno>,
        reply: Reply,
    ) {
        match found {
            Ok((attributes, let_be)) => {
                self.names.saw(&attributes);
                reply.attributes(&attributes, self.believed(&attributes, let_be));
            }
            Err(errno) => reply.error(errno),
        }
    }

    /// Gives an open file its number, and says how the kernel is to treat it.
    pub(crate) fn opened(
        &self,
        file: File<Net>,
        attributes: &Attributes,
        flags: i32,
        time: Duration,
    ) -> (u64, u32) {
        let ino = attributes.ino.0;
        let counters = self.counters.file(self.names.path(ino));
        counters.opened(time);
        let privileged = AtomicBool::new(without_privileges(attributes.mode).is_some());
        let lock_owners = Mutex::default();
        let ahead = Ahead::new(&self.ahead_places);
        let executed = flags & FMODE_EXEC != 0;
        let open = Open { file, executed, counters, privileged, lock_owners, ahead };
        let handle = self.files.insert(open);
        // The kernel would cache appended bytes where it believes the file's end to be.
        let direct = !self.caching || flags & libc::O_APPEND != 0;
        let treatment = match direct {
            true => fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
            false if self.cached.still_true(attributes) => fopen::KEEP_CACHE,
            false => 0,
        };
        (handle, treatment)
    }

    pub(crate) async fn open(
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
            if !attributes.allow(who, credentials::EXECUTE) {
                return Err(
                    Error::new(Code::AccessDenied).on("execute", format!("inode {}", ino.0))
                );
            }
            return self.fs().open(&SUPERUSER, ino, OpenMode::READ).await;
        }
        if truncate && access == libc::O_RDONLY {
            self.fs().truncate(who, ino, 0).await?;
        }
        let (file, mut attributes) = self.fs().open(who, ino, open_mode(flags)).await?;
        if truncate && who.uid != 0 {
            self.end_privileges(&mut attributes).await?;
        }
        Ok((file, attributes))
    }

    /// What somebody else than the superuser has changed loses set-user-id and set-group-id.
    pub(crate) async fn end_privileges(&self, attributes: &mut Attributes) -> Result<()> {
        if attributes.kind == FileKind::Regular
            && let Some(mode) = without_privileges(attributes.mode)
        {
            let changes = Changes { mode: Some(mode), ..Changes::default() };
            *attributes = self.fs().change(&SUPERUSER, attributes.ino, changes).await?;
        }
        Ok(())
    }

    /// Has open files of this inode know that it became set-user-id or set-group-id.
    pub(crate) fn mark_privileged(&self, ino: Ino) {
        self.files.each(|open| {
            if open.file.ino() == ino {
                open.privileged.store(true, Ordering::Relaxed);
            }
        });
    }

    /// What follows after somebody else than the superuser has changed a file's content.
    pub(crate) async fn changed(&self, open: &Open) -> Result<()> {
        if open.privileged.swap(false, Ordering::Relaxed) {
            let mut attributes = self.fs().attributes(&SUPERUSER, open.file.ino()).await?;
            self.end_privileges(&mut attributes).await?;
        }
        Ok(())
    }

    pub(crate) async fn truncate(
        &self,
        who: &Credentials,
        ino: Ino,
        size: u64,
        handle: Option<u64>,
    ) -> Result<()> {
        self.cached.forget(ino.0);
        match handle.and_then(|handle| self.files.find(handle)) {
            Some(open) if open.file.mode().write => open.file.truncate(size).await,
            _ => self.fs().truncate(who, ino, size).await,
        }
    }

    pub(crate) async fn write(
        &self,
        open: &Open,
        bytes: &[u8],
        offset: u64,
        append: bool,
    ) -> Result<()> {
        if append {
            open.file.append(bytes).await.map(drop)
        } else {
            open.file.write_at(bytes, offset).await
        }
    }

    /// Copies between files as far as there is something to copy; gives the bytes copied.
    pub(crate) async fn copy(
        &self,
        (from, offset_in): (&Open, u64),
        (to, offset_out): (&Open, u64),
        length: u64,
        buffer: &mut [u8],
    ) -> Result<u32> {
        let length = length.min(COPY_BYTES_MAX.into()) as usize;
        let mut copied = 0;
        while copied < length {
            let want = (length - copied).min(buffer.len());
            let step = async {
                let got = from.file.read_at(&mut buffer[..want], offset_in + copied as u64).await?;
                to.file.write_at(&buffer[..got], offset_out + copied as u64).await?;
                Ok(got)
            };
            match step.await {
                Ok(0) => break,
                Ok(got) => copied += got,
                // What was copied before is told first.
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(copied as u32)
    }

    pub(crate) async fn allocate(&self, file: &File<Net>, extent: Extent, mode: i32) -> Result<()> {
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
        // Memory is not set aside. But what there is no memory for at all is refused here, as far as
        // it lies behind the end.
        let beyond = end.saturating_sub(extent.offset.max(size));
        if !clear && beyond > 0 {
            let usage = self.fs().usage().await?;
            let free = usage.capacity.saturating_sub(usage.used);
            if beyond > free {
                let cause = format!("{beyond} bytes wanted, {free} free");
                return Err(Error::because(Code::NoSpace, cause).on("fallocate", ""));
            }
        }
        if !keep_size && end > size { file.extend_to(end).await } else { Ok(()) }
    }

    /// Whether that is permitted was asked when the directory was opened.
    pub(crate) fn list(&self, ino: Ino) -> impl List {
        move |after: &[u8], limit| {
            let listing = self.pool.run(self.fs().list(&SUPERUSER, ino, after, limit, false));
            or_empty(listing.map(|listing| Page::of_names(listing.entries, listing.end)))
        }
    }

    /// As [`Shared::list`], with attributes where they may be believed.
    pub(crate) fn look_through(&self, who: &Credentials, ino: Ino) -> impl List {
        move |after: &[u8], limit| {
            let looked =
                self.pool.run(self.fs().look_through(who, ino, (after, limit), self.others));
            or_empty(looked.map(Page::looked_through))
        }
    }
}

/// A directory was removed while somebody is in it.
fn or_empty(page: Result<Page>) -> Result<Page> {
    match page {
        Err(error) if error.code == Code::NotFound => Ok(Page::of_names(Vec::new(), true)),
        other => other,
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
