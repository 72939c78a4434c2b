//! Copying: several files, and several pieces of large ones, at once; each copy checked before it
//! gets its name.

use crate::args;
use crate::failure::{Failure, Outcome, plain, print, status, tell};
use crate::pool::{self, Access, Store, path_in_pool};
use crate::progress::Progress;
use crate::size::{show, show_count};
use crate::sys::{self, Signals};
use nix::sys::signal::Signal;
use std::collections::VecDeque;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_core::types::FileKind;

/// What one worker copies at a time: bytes.
const PIECE: u64 = 4 << 20;
/// Failures named one by one.
const FAILURES_SHOWN: usize = 10;

/// A file here or in the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Local(PathBuf),
    Pool(PathBuf),
}

/// What is to be copied, and the name that it gets.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) source: Endpoint,
    pub(crate) destination: Endpoint,
}

pub(crate) struct Options {
    pub(crate) recursive: bool,
    /// Read each copy back and compare.
    pub(crate) verify: bool,
    /// Workers.
    pub(crate) jobs: usize,
    /// For the progress bar.
    pub(crate) title: &'static str,
}

impl Default for Options {
    fn default() -> Options {
        Options { recursive: false, verify: false, jobs: 8, title: "copy" }
    }
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) failures: Vec<String>,
}

impl Done {
    /// An error if anything was not copied; says what.
    pub(crate) fn check(&self, what: &str) -> Outcome<()> {
        for failure in self.failures.iter().take(FAILURES_SHOWN) {
            tell(failure);
        }
        match self.failures.len() {
            0 => Ok(()),
            count => Err(Failure::say(format!(
                "{what}: {count} not copied, {} copied and checked",
                show_count(self.files, "file")
            ))),
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Local(path) => write!(f, "{}", path.display()),
            Endpoint::Pool(path) => write!(f, "weir:{}", path.display()),
        }
    }
}

/// What tells whether a file was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    mtime_ns: i64,
}

struct Found {
    kind: FileKind,
    mode: u32,
    stamp: Stamp,
    identity: (u64, u64),
}

/// Failures of one step: text without what it was about.
type Step<T> = Result<T, String>;

fn local(error: std::io::Error) -> String {
    plain(error)
}

fn pooled(error: weir_core::error::Error) -> String {
    error.cause
}

impl Endpoint {
    fn path(&self) -> &Path {
        match self {
            Endpoint::Local(path) | Endpoint::Pool(path) => path,
        }
    }

    fn join(&self, name: impl AsRef<Path>) -> Endpoint {
        match self {
            Endpoint::Local(path) => Endpoint::Local(path.join(name)),
            Endpoint::Pool(path) => Endpoint::Pool(path.join(name)),
        }
    }

    fn with_name(&self, name: impl AsRef<std::ffi::OsStr>) -> Endpoint {
        match self {
            Endpoint::Local(path) => Endpoint::Local(path.with_file_name(name)),
            Endpoint::Pool(path) => Endpoint::Pool(path.with_file_name(name)),
        }
    }

    fn find(&self, store: &Store, follow: bool) -> Step<Option<Found>> {
        match self {
            Endpoint::Local(path) => {
                let found = if follow { path.metadata() } else { path.symlink_metadata() };
                match found {
                    Ok(found) => Ok(Some(Found::of_local(&found))),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(local(error)),
                }
            }
            Endpoint::Pool(path) => {
                Ok(store.find(path, follow).map_err(pooled)?.map(|found| Found::of_pool(&found)))
            }
        }
    }

    fn make_directory(&self, store: &Store, mode: u32) -> Step<()> {
        match self {
            Endpoint::Local(path) => {
                match std::fs::DirBuilder::new().mode(mode | 0o700).create(path) {
                    Err(_) if path.is_dir() => Ok(()),
                    other => other.map_err(local),
                }
            }
            Endpoint::Pool(path) if path == Path::new("/") => Ok(()),
            Endpoint::Pool(path) => store.make_directory(path, mode | 0o700).map_err(pooled),
        }
    }

    fn read_link(&self, store: &Store) -> Step<Vec<u8>> {
        match self {
            Endpoint::Local(path) => {
                Ok(std::fs::read_link(path).map_err(local)?.into_os_string().into_vec())
            }
            Endpoint::Pool(path) => {
                let ino = store.lookup(path, false).map_err(pooled)?.ino;
                store.read_link(ino).map_err(pooled)
            }
        }
    }

    fn make_link(&self, store: &Store, text: &[u8]) -> Step<()> {
        match self {
            Endpoint::Local(path) => {
                std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(text), path).map_err(local)
            }
            Endpoint::Pool(path) => store.symlink(path, text).map_err(pooled),
        }
    }

    fn list(&self, store: &Store) -> Step<Vec<std::ffi::OsString>> {
        let mut names: Vec<_> = match self {
            Endpoint::Local(path) => std::fs::read_dir(path)
                .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
                .map_err(local)?,
            Endpoint::Pool(path) => {
                let ino = store.lookup(path, true).map_err(pooled)?.ino;
                let entries = store.list(ino).map_err(pooled)?;
                entries
                    .into_iter()
                    .map(|(entry, _)| std::ffi::OsString::from_vec(entry.name))
                    .collect()
            }
        };
        names.sort();
        Ok(names)
    }

    fn open(&self, store: &Store) -> Step<Handle> {
        match self {
            Endpoint::Local(path) => Ok(Handle::Local(std::fs::File::open(path).map_err(local)?)),
            Endpoint::Pool(path) => {
                let ino = store.lookup(path, true).map_err(pooled)?.ino;
                Ok(Handle::Pool(store.open_file(ino).map_err(pooled)?))
            }
        }
    }

    fn create(&self, store: &Store, mode: u32) -> Step<Handle> {
        match self {
            Endpoint::Local(path) => std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(mode | 0o600)
                .open(path)
                .map(Handle::Local)
                .map_err(local),
            Endpoint::Pool(path) => {
                store.create_file(path, mode | 0o600).map(Handle::Pool).map_err(pooled)
            }
        }
    }

    fn remove(&self, store: &Store) {
        // Best effort: it is our own half-made copy, and the failure that led here is told.
        match self {
            Endpoint::Local(path) => drop(std::fs::remove_file(path)),
            Endpoint::Pool(path) => drop(store.remove(path, FileKind::Regular)),
        }
    }

    fn rename_to(&self, store: &Store, to: &Endpoint) -> Step<()> {
        match self {
            Endpoint::Local(path) => std::fs::rename(path, to.path()).map_err(local),
            Endpoint::Pool(path) => store.rename(path, to.path()).map_err(pooled),
        }
    }
}

impl Found {
    fn of_local(found: &std::fs::Metadata) -> Found {
        Found {
            kind: FileKind::from_mode_bits(found.mode()).unwrap_or(FileKind::Socket),
            mode: found.mode() & 0o777,
            stamp: Stamp {
                size: found.size(),
                mtime_ns: found
                    .mtime()
                    .wrapping_mul(1_000_000_000)
                    .wrapping_add(found.mtime_nsec()),
            },
            identity: (found.dev(), found.ino()),
        }
    }

    fn of_pool(found: &weir_core::types::Attributes) -> Found {
        Found {
            kind: found.kind,
            mode: found.mode & 0o777,
            stamp: Stamp { size: found.size, mtime_ns: found.mtime.0 },
            identity: (u64::MAX, found.ino.0),
        }
    }
}

enum Handle {
    Local(std::fs::File),
    Pool(pool::File),
}

impl Handle {
    fn stamp(&self, store: &Store) -> Step<Stamp> {
        match self {
            Handle::Local(file) => Ok(Found::of_local(&file.metadata().map_err(local)?).stamp),
            Handle::Pool(file) => {
                Ok(Found::of_pool(&store.attributes(file.ino()).map_err(pooled)?).stamp)
            }
        }
    }

    /// Reads all of the buffer, unless the file ends before: how many bytes.
    fn read(&self, store: &Store, buffer: &mut [u8], offset: u64) -> Step<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let rest = &mut buffer[filled..];
            let count = match self {
                Handle::Local(file) => match file.read_at(rest, offset + filled as u64) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    other => other.map_err(local)?,
                },
                Handle::Pool(file) => {
                    store.read_at(file, rest, offset + filled as u64).map_err(pooled)?
                }
            };
            if count == 0 {
                break;
            }
            filled += count;
        }
        Ok(filled)
    }

    fn write(&self, store: &Store, bytes: &[u8], offset: u64) -> Step<()> {
        match self {
            Handle::Local(file) => file.write_all_at(bytes, offset).map_err(local),
            Handle::Pool(file) => store.write_at(file, bytes, offset).map_err(pooled),
        }
    }

    fn set_mode(&self, store: &Store, mode: u32) -> Step<()> {
        match self {
            Handle::Local(file) => {
                file.set_permissions(std::fs::Permissions::from_mode(mode)).map_err(local)
            }
            Handle::Pool(file) => store.set_mode(file.ino(), mode).map_err(pooled),
        }
    }

    fn close(&self, store: &Store) -> Step<()> {
        match self {
            // Quotas and network file systems speak up when a descriptor is closed; the standard
            // library would not listen.
            Handle::Local(file) => {
                let again = file.try_clone().map_err(local)?;
                nix::unistd::close(again).map_err(plain)
            }
            // What was copied into a pool that lasts is to last.
            Handle::Pool(file) => store.sync(file).and_then(|()| store.close(file)).map_err(pooled),
        }
    }
}

/// A regular file to copy.
struct Planned {
    source: Endpoint,
    destination: Endpoint,
    mode: u32,
    stamp: Stamp,
}

/// A file under way.
struct Active {
    planned: Planned,
    part: Endpoint,
    source: Handle,
    copy: Handle,
    /// Pieces not copied yet.
    left: AtomicU64,
    failed: AtomicBool,
}

/// What the workers share.
struct Work {
    planned: VecDeque<Planned>,
    /// Files that pieces are still to be taken of: with the next one's offset.
    active: VecDeque<(Arc<Active>, u64)>,
    done: Done,
    working: usize,
}

struct Shared<'a> {
    store: &'a Store,
    options: &'a Options,
    work: Mutex<Work>,
    idle: Condvar,
    bytes: AtomicU64,
}

/// Copies all pairs. Directories need `recursive`; what is there is replaced, file by file.
pub(crate) fn copy(store: &Store, pairs: Vec<Pair>, options: &Options) -> Outcome<Done> {
    let mut work = Work {
        planned: VecDeque::new(),
        active: VecDeque::new(),
        done: Done::default(),
        working: 0,
    };
    for pair in pairs {
        plan(store, pair, options.recursive, &mut work);
    }
    let total: u64 = work.planned.iter().map(|planned| planned.stamp.size).sum();
    let workers = options.jobs.clamp(1, 1 + work.planned.len() + (total / PIECE) as usize);
    let shared = Shared {
        store,
        options,
        work: Mutex::new(work),
        idle: Condvar::new(),
        bytes: AtomicU64::new(0),
    };
    let mut progress = Progress::new(options.title, total);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(|| shared.work())).collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::park_timeout(Duration::from_millis(20));
            progress.at(shared.bytes.load(Ordering::Relaxed));
        }
    });
    drop(progress);
    let mut done = shared.work.into_inner().unwrap_or_else(PoisonError::into_inner).done;
    if let Some(signal) = sys::interrupted() {
        done.failures.push(format!("{}: interrupted by {signal}", options.title));
    }
    Ok(done)
}

/// Makes directories and links at once, and notes the files.
fn plan(store: &Store, pair: Pair, recursive: bool, work: &mut Work) {
    let mut waiting = vec![pair];
    // What is below a top-level directory is never a link to be followed.
    let mut top = true;
    while let Some(Pair { source, destination }) = waiting.pop() {
        let step = || -> Step<()> {
            if sys::interrupted().is_some() {
                waiting.clear();
                return Ok(());
            }
            let found =
                source.find(store, top && !recursive)?.ok_or("no such file or directory")?;
            match found.kind {
                FileKind::Directory => {
                    if !recursive {
                        return Err("is a directory; copy it with -r".into());
                    }
                    // The names first: a destination within the source is not copied into itself.
                    let names = source.list(store)?;
                    destination.make_directory(store, found.mode)?;
                    if destination
                        .find(store, true)?
                        .is_some_and(|made| made.identity == found.identity)
                    {
                        return Err("is the same directory as its destination".into());
                    }
                    for name in names.iter().rev() {
                        waiting.push(Pair {
                            source: source.join(name),
                            destination: destination.join(name),
                        });
                    }
                }
                FileKind::Symlink => {
                    let text = source.read_link(store)?;
                    if let Some(old) = destination.find(store, false)? {
                        if old.kind == FileKind::Directory {
                            return Err(format!("{destination} is a directory"));
                        }
                        destination.remove(store);
                    }
                    destination.make_link(store, &text)?;
                }
                FileKind::Regular => {
                    match destination.find(store, true)? {
                        Some(old) if old.identity == found.identity => {
                            return Err("is the same file as its destination".into());
                        }
                        Some(old) if old.kind != FileKind::Regular => {
                            return Err(format!("{destination} is not a regular file"));
                        }
                        _ => {}
                    }
                    let (mode, stamp) = (found.mode, found.stamp);
                    work.planned.push_back(Planned {
                        source: source.clone(),
                        destination,
                        mode,
                        stamp,
                    });
                }
                _ => return Err("neither file, directory nor symbolic link; not copied".into()),
            }
            Ok(())
        };
        if let Err(cause) = step() {
            work.done.failures.push(format!("copy {source}: {cause}"));
        }
        top = false;
    }
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One worker: takes a piece of a file under way, or else begins a file.
    fn work(&self) {
        let mut buffer = vec![0; PIECE as usize];
        let mut again = Vec::new();
        if self.options.verify {
            again.resize(PIECE as usize, 0);
        }
        loop {
            let mut work = self.lock();
            if sys::interrupted().is_some() {
                work.planned.clear();
            }
            if let Some((active, offset)) = work.active.pop_front() {
                let next = offset + PIECE;
                if next < active.planned.stamp.size {
                    work.active.push_front((active.clone(), next));
                }
                drop(work);
                self.copy_piece(&active, offset, &mut buffer);
                if active.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    self.finish(&active, &mut buffer, &mut again);
                }
            } else if let Some(planned) = work.planned.pop_front() {
                work.working += 1;
                drop(work);
                self.begin(planned, &mut buffer, &mut again);
                self.lock().working -= 1;
                self.idle.notify_all();
            } else if work.working > 0 {
                // Who begins a file may have pieces for us in a moment.
                drop(self.idle.wait_timeout(work, Duration::from_millis(50)));
            } else {
                return;
            }
        }
    }

    fn begin(&self, planned: Planned, buffer: &mut [u8], again: &mut [u8]) {
        let store = self.store;
        let name = planned.destination.path().file_name().unwrap_or_default().as_bytes();
        // A name may have 255 bytes in all.
        let mut hidden = b".".to_vec();
        hidden.extend_from_slice(&name[..name.len().min(200)]);
        hidden.extend_from_slice(format!(".{}.part", std::process::id()).as_bytes());
        let part = planned.destination.with_name(std::ffi::OsString::from_vec(hidden));
        let opened = (|| {
            let source = planned.source.open(store)?;
            let copy = part
                .create(store, planned.mode)
                .map_err(|cause| format!("{}: {cause}", planned.destination))?;
            Ok((source, copy))
        })();
        let (source, copy) = match opened {
            Ok(opened) => opened,
            Err(cause) => return self.fail(&planned, cause),
        };
        let pieces = planned.stamp.size.div_ceil(PIECE);
        let active = Arc::new(Active {
            planned,
            part,
            source,
            copy,
            left: AtomicU64::new(pieces),
            failed: AtomicBool::new(false),
        });
        match pieces {
            0 => self.finish(&active, buffer, again),
            1 => {
                self.copy_piece(&active, 0, buffer);
                self.finish(&active, buffer, again);
            }
            _ => {
                self.lock().active.push_back((active, 0));
                self.idle.notify_all();
            }
        }
    }

    fn copy_piece(&self, active: &Active, offset: u64, buffer: &mut [u8]) {
        if active.failed.load(Ordering::Relaxed) {
            return;
        }
        let size = active.planned.stamp.size;
        let buffer = &mut buffer[..(size - offset).min(PIECE) as usize];
        let step = (|| {
            if let Some(signal) = sys::interrupted() {
                return Err(format!("interrupted by {signal}"));
            }
            let count = active.source.read(self.store, buffer, offset)?;
            if count < buffer.len() {
                return Err(format!(
                    "ended at {} of {size} bytes: it changed while it was copied",
                    offset + count as u64
                ));
            }
            active
                .copy
                .write(self.store, buffer, offset)
                .map_err(|cause| format!("{}: {cause}", active.planned.destination))
        })();
        match step {
            Ok(()) => {
                self.bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
            }
            Err(cause) => {
                if !active.failed.swap(true, Ordering::Relaxed) {
                    self.fail(&active.planned, cause);
                }
            }
        }
    }

    /// Checks a copy whose pieces are all written, and gives it its name.
    fn finish(&self, active: &Active, buffer: &mut [u8], again: &mut [u8]) {
        let store = self.store;
        let planned = &active.planned;
        if active.failed.load(Ordering::Relaxed) {
            let _ = active.copy.close(store);
            let _ = active.source.close_read(store);
            active.part.remove(store);
            return;
        }
        let checked = (|| -> Step<()> {
            let copied = active.copy.stamp(store)?.size;
            if copied != planned.stamp.size {
                return Err(format!(
                    "{copied} of {} bytes arrived at {}",
                    planned.stamp.size, planned.destination
                ));
            }
            if self.options.verify {
                self.compare(active, buffer, again)?;
            }
            active.copy.set_mode(store, planned.mode)?;
            active.copy.close(store)?;
            // Last of all: any change up to here shows.
            if active.source.stamp(store)? != planned.stamp {
                return Err("changed while it was copied".into());
            }
            active.source.close_read(store)?;
            active.part.rename_to(store, &planned.destination)
        })();
        match checked {
            Ok(()) => {
                let mut work = self.lock();
                work.done.files += 1;
                work.done.bytes += planned.stamp.size;
            }
            Err(cause) => {
                active.part.remove(store);
                self.fail(planned, cause);
            }
        }
    }

    fn compare(&self, active: &Active, buffer: &mut [u8], again: &mut [u8]) -> Step<()> {
        let size = active.planned.stamp.size;
        let mut offset = 0;
        while offset < size {
            let length = (size - offset).min(PIECE) as usize;
            let (left, right) = (&mut buffer[..length], &mut again[..length]);
            active.source.read(self.store, left, offset)?;
            let count = active.copy.read(self.store, right, offset)?;
            if count != length || left != right {
                let at = left.iter().zip(right.iter()).position(|(a, b)| a != b).unwrap_or(count);
                return Err(format!("copy differs at byte {}", offset + at as u64));
            }
            offset += length as u64;
        }
        Ok(())
    }

    fn fail(&self, planned: &Planned, cause: String) {
        let text = format!("copy {}: {cause}; no copy was left", planned.source);
        self.lock().done.failures.push(text);
    }
}

impl Handle {
    fn close_read(&self, store: &Store) -> Step<()> {
        match self {
            Handle::Local(_) => Ok(()),
            Handle::Pool(file) => store.close(file).map_err(pooled),
        }
    }
}

/// `weir cp`.
pub(crate) fn cp(options: &args::Cp) -> Outcome<u8> {
    let endpoint = |text: &str| -> Outcome<Endpoint> {
        Ok(match text.starts_with("weir:") {
            true => Endpoint::Pool(path_in_pool(text)?),
            false => Endpoint::Local(PathBuf::from(text)),
        })
    };
    let Some((last, sources)) = options.paths.split_last() else {
        return Err(Failure::usage("cp: what is to be copied?"));
    };
    if !options.paths.iter().any(|path| path.starts_with("weir:")) {
        return Err(Failure::usage(
            "cp: none of these is in a pool; write paths in the pool as weir:/path",
        ));
    }
    let _signals = Signals::catch(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let store =
        Store::connect(&Access::find(options.which.pool.as_deref(), Some(&options.wire))?.1)?;
    let destination = endpoint(last)?;
    let system = |operation: &str, object: &Endpoint, cause: String| {
        Failure::say(format!("{operation} {object}: {cause}"))
    };
    let into = destination
        .find(&store, true)
        .map_err(|cause| system("copy to", &destination, cause))?
        .is_some_and(|found| found.kind == FileKind::Directory);
    if !into && (sources.len() > 1 || last.ends_with('/')) {
        return Err(Failure::usage(format!("copy to {destination}: not a directory")));
    }
    let mut pairs = Vec::new();
    for text in sources {
        let source = endpoint(text)?;
        // `.` and the pool's root have no name: their contents are meant.
        let destination = match source.path().file_name() {
            Some(name) if into && !text.ends_with("/.") => destination.join(name),
            _ => destination.clone(),
        };
        pairs.push(Pair { source, destination });
    }
    let begun = Instant::now();
    let settings = Options {
        recursive: options.recursive,
        verify: options.verify,
        jobs: options.jobs.into(),
        title: "copy",
    };
    let done = copy(&store, pairs, &settings)?;
    let seconds = begun.elapsed().as_secs_f64();
    if options.json {
        let json = serde_json::json!({
            "files": done.files, "bytes": done.bytes, "seconds": seconds, "failures": done.failures,
        });
        print(format_args!("{json}\n"))?;
    } else if seconds > 2.0 {
        tell(format_args!(
            "copied {}, {} in {seconds:.1} s, {}",
            show_count(done.files, "file"),
            show(done.bytes),
            crate::size::show_rate(done.bytes, seconds)
        ));
    }
    done.check("cp").map_err(|failure| match sys::interrupted() {
        Some(signal) => failure.with_status(status::SIGNALLED + signal as u8),
        None => failure,
    })?;
    Ok(0)
}
