//! Without a mount (a container that has neither user namespaces nor FUSE): paths below
//! `$WEIR_MOUNT` are the pool's all the same, for programs that this library is loaded into.
//!
//! The directory there is empty, and nothing is ever made in it. What a program opens is a memory
//! file that holds nothing: its position serves as the descriptor's, and its name says which file of
//! the pool it stands for, so that children find out, also those that execute another program. It is
//! open for writing alone and sealed against it: the kernel refuses whatever goes past this library.

mod attributes;
pub(crate) mod directories;
mod figures;
mod moves;
mod names;
mod refused;
pub(crate) mod streams;
mod temporary;
mod working;

use crate::engine::{self, Engine};
use crate::process::{self, Inside};
use crate::real::kernel;
use crate::transfer::Way;
use crate::{files, fork, reach};
use libc::{c_char, c_int, mode_t, off_t, ssize_t};
use std::ffi::CStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use weir_client::Net;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::File;
use weir_core::types::{Attributes, Credentials, FileKind, Ino};
use weir_core::wire::meta::{LayoutWish, OpenMode, Place};

pub(crate) use moves::{map, transfer};
use working::Working;

static ON: AtomicBool = AtomicBool::new(false);
static SETTING: OnceLock<Setting> = OnceLock::new();

struct Setting {
    /// Components of the directory that stands for the pool.
    mount: Vec<Vec<u8>>,
    /// The pool's directory.
    pool: String,
    /// Where to count.
    board: String,
    /// Tells descriptors of this pool from those of others.
    mark: u64,
}

/// A file of the pool that this process has opened itself; closed when it is dropped.
pub(crate) struct Own {
    engine: Arc<Engine>,
    file: File<Net>,
}

impl Drop for Own {
    fn drop(&mut self) {
        // Nobody is there to be told: a close comes from many sides.
        let close = || self.engine.pool.run(self.file.close());
        let _ = catch_unwind(AssertUnwindSafe(close));
    }
}

/// What a descriptor of ours says that it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Handle {
    ino: Ino,
    directory: bool,
    mode: OpenMode,
}

/// Neither to read nor to write.
const NOTHING: OpenMode = OpenMode { read: false, write: false, truncate: false };

fn variable(name: &CStr) -> Option<String> {
    // SAFETY: a name ended by a NUL; nobody changes the environment this early.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: values end with a NUL.
    unsafe { CStr::from_ptr(value) }.to_str().ok().map(str::to_owned)
}

/// Looks up what stands behind us.
pub(crate) fn find() {
    attributes::find();
    directories::find();
    figures::find();
    names::find();
    refused::find();
    streams::find();
    temporary::find();
    working::find();
}

/// Looks whether `weir run` wants it so.
pub(crate) fn begin() {
    let (Some(mount), Some(board)) = (variable(c"WEIR_MOUNT"), variable(c"WEIR_ALONE")) else {
        return;
    };
    let Some(pool) = Path::new(&board).parent().and_then(Path::to_str).map(str::to_owned) else {
        return;
    };
    let names = Names::of(mount.as_bytes());
    let mount: Vec<Vec<u8>> = names.names[..names.count].iter().map(|name| name.to_vec()).collect();
    if mount.is_empty() {
        return;
    }
    let mut hasher = DefaultHasher::new();
    board.hash(&mut hasher);
    let setting = Setting { mount, pool, board, mark: hasher.finish() };
    if SETTING.set(setting).is_ok() {
        files::EAGER.store(true, Ordering::Relaxed);
        ON.store(true, Ordering::Release);
        (0..=2).for_each(streams::stands);
    }
}

/// The process ends: what is open is closed.
pub(crate) fn finish() {
    if is_on() && process::attends() {
        streams::flush();
        let _inside = Inside::enter();
        files::close_all();
    }
}

/// Whether there is no mount.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Names along a path that are kept; deeper ones are beyond what any pool holds.
const NAMES_MAX: usize = 512;
/// Bytes of a path that the kernel knows.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The names along an absolute path, without dots. Allocates nothing.
struct Names<'a> {
    names: [&'a [u8]; NAMES_MAX],
    count: usize,
}

impl<'a> Names<'a> {
    fn of(path: &'a [u8]) -> Names<'a> {
        Names { names: [b""; NAMES_MAX], count: 0 }.then(path)
    }

    /// Goes on from here.
    fn then(mut self, path: &'a [u8]) -> Names<'a> {
        for name in path.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => self.count = self.count.saturating_sub(1),
                name if self.count < NAMES_MAX => {
                    self.names[self.count] = name;
                    self.count += 1;
                }
                _ => {}
            }
        }
        self
    }

    /// What of the path lies below this directory.
    fn below(&self, directory: &[Vec<u8>]) -> Option<&[&'a [u8]]> {
        let rest = self.names[..self.count].get(directory.len()..)?;
        self.names.iter().zip(directory).all(|(name, expected)| name == expected).then_some(rest)
    }
}

/// A path that is the pool's, as the program names it.
#[derive(Clone, Copy)]
struct Named<'a> {
    at: c_int,
    path: &'a [u8],
}

/// Where a path leads in the pool.
enum Route<'a> {
    /// From the root: by these names.
    Root(&'a [&'a [u8]]),
    /// From a directory.
    Directory(Ino, &'a [u8]),
    /// From what is none.
    File,
}

impl Named<'_> {
    /// As the pool knows it. To be called inside.
    fn place(&self) -> Result<Place> {
        self.follow(|route| match route {
            Route::Root(names) => {
                let mut path = names.join(&b'/');
                // It must be a directory then.
                if self.path.ends_with(b"/") {
                    path.push(b'/');
                }
                Ok(Place::new(Ino::ROOT, path))
            }
            Route::Directory(base, path) => Ok(Place::new(base, path)),
            Route::File => Err(Error::new(Code::NotDirectory)),
        })
        .unwrap_or_else(|| Err(Error::new(Code::NotFound)))
    }

    /// Finds the way, if it leads to the pool. Signal handlers ask too, so that nothing is allocated
    /// here.
    fn follow<T>(&self, end: impl FnOnce(Route) -> T) -> Option<T> {
        let setting = SETTING.get()?;
        if self.path.starts_with(b"/") {
            return Names::of(self.path).below(&setting.mount).map(|rest| end(Route::Root(rest)));
        }
        if self.at != libc::AT_FDCWD {
            let handle = handle(self.at)?;
            return Some(end(match handle.directory || self.path.is_empty() {
                true => Route::Directory(handle.ino, self.path),
                false => Route::File,
            }));
        }
        if self.path.is_empty() {
            return None;
        }
        let mut room = [0; PATH_MAX];
        match working::directory(setting, &mut room)? {
            Working::Pool(ino) => Some(end(Route::Directory(ino, self.path))),
            Working::Kernel(path) => Names::of(path)
                .then(self.path)
                .below(&setting.mount)
                .map(|rest| end(Route::Root(rest))),
        }
    }
}

/// Whether a path is the pool's.
#[inline]
fn named<'a>(at: c_int, path: *const c_char) -> Option<Named<'a>> {
    if is_on() && !path.is_null() { find_named(at, path) } else { None }
}

/// Whether a path is that of something in a pool without a mount.
pub(crate) fn is_pools(at: c_int, path: *const c_char) -> bool {
    named(at, path).is_some()
}

/// Whether a descriptor stands for something in a pool without a mount.
pub(crate) fn is_handle(fd: c_int) -> bool {
    handle(fd).is_some()
}

fn find_named<'a>(at: c_int, path: *const c_char) -> Option<Named<'a>> {
    // The kernel says what is wrong with it.
    if !reach::is_readable(path) {
        return None;
    }
    // SAFETY: the program names a path, ended by a NUL, which stays for the call.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let named = Named { at, path };
    named.follow(|_| named)
}

/// What the descriptor stands for, if it is one of ours.
fn handle(fd: c_int) -> Option<Handle> {
    if !is_on() || fd < 0 {
        return None;
    }
    let mut link = [0u8; 32];
    write!(&mut link[..], "/proc/self/fd/{fd}\0").ok()?;
    let mut text = [0u8; 128];
    let length: isize =
        kernel!(SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), text.as_mut_ptr(), text.len());
    let text = std::str::from_utf8(text.get(..usize::try_from(length).ok()?)?).ok()?;
    Handle::parse(text.strip_prefix("/memfd:")?, SETTING.get()?.mark)
}

impl Handle {
    /// As the memory file is named: `weir:MARK:INO:KIND`.
    fn name(&self, mark: u64) -> String {
        let kind = match (self.directory, self.mode.read, self.mode.write) {
            (true, ..) => "directory",
            (_, true, true) => "both",
            (_, true, _) => "read",
            (_, _, true) => "write",
            _ => "path",
        };
        format!("weir:{mark:x}:{}:{kind}", self.ino.0)
    }

    /// From the name, whatever the kernel says behind it.
    fn parse(text: &str, mark: u64) -> Option<Handle> {
        let mut words = text.split([':', ' ']);
        let ours = words.next()? == "weir" && u64::from_str_radix(words.next()?, 16) == Ok(mark);
        let ino = Ino(words.next()?.parse().ok().filter(|_| ours)?);
        let file = |read, write| Handle {
            ino,
            directory: false,
            mode: OpenMode { read, write, truncate: false },
        };
        Some(match words.next()? {
            "directory" => Handle { directory: true, ..file(false, false) },
            "both" => file(true, true),
            "read" => file(true, false),
            "write" => file(false, true),
            "path" => file(false, false),
            _ => return None,
        })
    }
}

/// The pool's owner, as whom everything is asked.
fn who() -> Credentials {
    // SAFETY: asks for numbers.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    Credentials { uid, gid, groups: Vec::new() }
}

/// Does something with the pool; gives an error number where that cannot be.
fn answer<T>(work: impl FnOnce(&Arc<Engine>) -> Result<T>) -> std::result::Result<T, c_int> {
    // Whoever interrupts us, and the child of a `vfork`, would find things half done.
    if !process::attends() {
        return Err(libc::ENOSYS);
    }
    let _inside = Inside::enter();
    if process::inherited() {
        fork::adopted_by_stranger();
    }
    // A panic is a bug here and below.
    catch_unwind(AssertUnwindSafe(|| {
        let engine = engine().ok_or(libc::EIO)?;
        work(&engine).map_err(|error| error.errno())
    }))
    .unwrap_or(Err(libc::EIO))
}

fn engine() -> Option<Arc<Engine>> {
    let setting = SETTING.get()?;
    engine::find(&setting.pool, &setting.board)
}

/// As functions of the C library tell it.
fn told<T: From<i8>>(result: std::result::Result<T, c_int>) -> T {
    result.unwrap_or_else(|errno| {
        process::set_errno(errno);
        T::from(-1)
    })
}

/// Opens what a path names, if it is the pool's.
pub(crate) fn open(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> Option<c_int> {
    let named = named(at, path)?;
    let opened = answer(|engine| {
        let found = look_up(engine, named.place()?, flags, mode)?;
        let fd = descriptor(&found.handle(flags), flags)?;
        if let Found::File(file) = found {
            let own = Own { engine: engine.clone(), file: file.clone() };
            files::own(fd, engine.clone(), file, own);
        }
        Ok(fd)
    });
    if let Ok(fd) = opened {
        streams::stands(fd);
    }
    Some(told(opened))
}

/// What is to be opened.
enum Found {
    File(File<Net>),
    /// Its number only: a directory, or what is opened for its path.
    Bare(Attributes),
}

impl Found {
    fn handle(&self, flags: c_int) -> Handle {
        match self {
            Found::File(file) => {
                Handle { ino: file.ino(), directory: false, mode: open_mode(flags) }
            }
            Found::Bare(attributes) => Handle {
                ino: attributes.ino,
                directory: attributes.kind == FileKind::Directory,
                mode: NOTHING,
            },
        }
    }
}

fn open_mode(flags: c_int) -> OpenMode {
    let access = flags & libc::O_ACCMODE;
    OpenMode { read: access != libc::O_WRONLY, write: access != libc::O_RDONLY, truncate: false }
}

fn look_up(engine: &Engine, place: Place, flags: c_int, mode: mode_t) -> Result<Found> {
    let fs = engine.pool.fs();
    let who = who();
    let mut open = open_mode(flags);
    let asked = |flag| flags & flag == flag;
    if asked(libc::O_TMPFILE) {
        return Err(Error::new(Code::Unsupported));
    }
    if asked(libc::O_CREAT) && !asked(libc::O_PATH) {
        if asked(libc::O_DIRECTORY) {
            return Err(Error::new(Code::Invalid));
        }
        open.truncate = asked(libc::O_TRUNC) && open.write;
        let mode = mode & !umask() & 0o7777;
        let exclusive = asked(libc::O_EXCL);
        if asked(libc::O_NOFOLLOW) && !exclusive {
            let found = engine.pool.run(fs.lookup(&who, place.clone(), false));
            if found.is_ok_and(|found| found.kind == FileKind::Symlink) {
                return Err(Error::new(Code::Loop));
            }
        }
        let wish = LayoutWish::default();
        let created = fs.create(&who, place, mode, exclusive, open, wish);
        return engine.pool.run(created).map(|(file, ..)| Found::File(file));
    }
    let attributes = engine.pool.run(fs.lookup(&who, place, !asked(libc::O_NOFOLLOW)))?;
    let directory = attributes.kind == FileKind::Directory;
    if asked(libc::O_DIRECTORY) && !directory {
        return Err(Error::new(Code::NotDirectory));
    }
    if asked(libc::O_PATH) {
        return Ok(Found::Bare(attributes));
    }
    match attributes.kind {
        FileKind::Directory if open.write || asked(libc::O_TRUNC) => {
            Err(Error::new(Code::IsDirectory))
        }
        FileKind::Directory => Ok(Found::Bare(attributes)),
        FileKind::Symlink => Err(Error::new(Code::Loop)),
        FileKind::Regular => {
            open.truncate = asked(libc::O_TRUNC) && open.write;
            if asked(libc::O_TRUNC) && !open.write {
                engine.pool.run(fs.truncate(&who, attributes.ino, 0))?;
            }
            let opened = fs.open(&who, attributes.ino, open);
            engine.pool.run(opened).map(|(file, _)| Found::File(file))
        }
        _ => Err(Error::new(Code::Unsupported)),
    }
}

/// What the program does not want others to be permitted.
fn umask() -> mode_t {
    // The function that tells it also changes it, for all threads.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| mode_t::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}

fn system(result: c_int) -> Result<c_int> {
    match result {
        ..0 => Err(Error::because(Code::Internal, format!("errno {}", process::errno()))),
        result => Ok(result),
    }
}

/// A descriptor that stands for a file of the pool: the lowest number that is free.
fn descriptor(handle: &Handle, flags: c_int) -> Result<c_int> {
    let mark = SETTING.get().map_or(0, |setting| setting.mark);
    let name = format!("{}\0", handle.name(mark));
    let memory: c_int = system(kernel!(
        SYS_memfd_create,
        name.as_ptr(),
        libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING
    ))?;
    let finish = || {
        let seals =
            libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
        system(kernel!(SYS_fcntl, memory, libc::F_ADD_SEALS, seals))?;
        let link = format!("/proc/self/fd/{memory}\0");
        // What is opened for its path alone is neither read nor written.
        let kept = flags & (libc::O_APPEND | libc::O_NONBLOCK | libc::O_SYNC | libc::O_PATH);
        let refuses = libc::O_WRONLY | libc::O_CLOEXEC | kept;
        let above = system(kernel!(SYS_openat, libc::AT_FDCWD, link.as_ptr(), refuses, 0))?;
        let moved = system(kernel!(SYS_dup3, above, memory, flags & libc::O_CLOEXEC));
        let _: c_int = kernel!(SYS_close, above);
        moved
    };
    finish().inspect_err(|_| {
        let _: c_int = kernel!(SYS_close, memory);
    })
}

/// Opens what a descriptor stands for that this process has from its parent, or from before it
/// executed this program. To be called inside.
pub(crate) fn adopt(fd: c_int) -> std::result::Result<(Arc<Engine>, File<Net>, Own), c_int> {
    let handle = handle(fd).ok_or(libc::ENOTTY)?;
    let engine = engine().ok_or(libc::EIO)?;
    let fs = engine.pool.fs();
    let opened = engine.pool.run(fs.open(&who(), handle.ino, handle.mode));
    let (file, _) = opened.map_err(|error| error.errno())?;
    let own = Own { engine: engine.clone(), file: file.clone() };
    Ok((engine, file, own))
}

/// The pool's file that the descriptor is open on. To be called inside.
fn file(fd: c_int) -> Result<File<Net>> {
    match handle(fd) {
        Some(Handle { directory: true, .. }) => return Err(Error::new(Code::IsDirectory)),
        Some(handle) if handle.mode != NOTHING => {}
        _ => return Err(Error::new(Code::BadHandle)),
    }
    match files::wanted(fd, Way::Write, 0) {
        Some(description) => Ok(description.file.clone()),
        None => Err(Error::new(Code::Lost)),
    }
}

/// Moves the position to where the pool has to be asked for.
pub(crate) fn seek(fd: c_int, offset: off_t, whence: c_int) -> Option<off_t> {
    if matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) || handle(fd)?.directory {
        return None;
    }
    let found = answer(|engine| {
        let file = file(fd)?;
        let from = u64::try_from(offset).ok();
        let found = match (whence, from) {
            (libc::SEEK_END, _) => {
                let size = engine.pool.run(file.size())?;
                size.checked_add_signed(offset).ok_or_else(|| Error::new(Code::Invalid))?
            }
            (libc::SEEK_DATA | libc::SEEK_HOLE, Some(from)) => {
                let data = whence == libc::SEEK_DATA;
                let found = engine.pool.run(file.seek(from, data))?;
                found.ok_or_else(|| Error::new(Code::NoExtent))?
            }
            (libc::SEEK_DATA | libc::SEEK_HOLE, None) => return Err(Error::new(Code::NoExtent)),
            _ => return Err(Error::new(Code::Invalid)),
        };
        let moved: off_t = kernel!(SYS_lseek, fd, found, libc::SEEK_SET);
        if moved < 0 { Err(Error::new(Code::Invalid)) } else { Ok(moved) }
    });
    Some(told(found))
}

/// Has the pool store what was written so far.
pub(crate) fn sync(fd: c_int) -> Option<c_int> {
    if handle(fd)?.directory {
        return None;
    }
    Some(told(answer(|engine| {
        let file = file(fd)?;
        engine.pool.run(file.sync()).map(|()| 0)
    })))
}

/// What the kernel would say wrong of a descriptor of ours, or do with its memory file alone.
pub(crate) fn control(fd: c_int, command: c_int, next: impl FnOnce() -> c_int) -> c_int {
    const OPEN_LOCKS: [c_int; 3] = [libc::F_OFD_GETLK, libc::F_OFD_SETLK, libc::F_OFD_SETLKW];
    const LOCKS: [c_int; 3] = [libc::F_GETLK, libc::F_SETLK, libc::F_SETLKW];
    let locks = LOCKS.contains(&command) || OPEN_LOCKS.contains(&command);
    if !is_on() || !(locks || command == libc::F_GETFL) {
        return next();
    }
    match handle(fd) {
        None => next(),
        Some(_) if locks => told(Err(libc::ENOLCK)),
        Some(handle) => match next() {
            flags @ 0.. => {
                let access = match (handle.mode.read, handle.mode.write) {
                    (true, true) => libc::O_RDWR,
                    (false, true) => libc::O_WRONLY,
                    _ => libc::O_RDONLY,
                };
                flags & !libc::O_ACCMODE | access
            }
            refused => refused,
        },
    }
}

/// What the kernel says of the memory file, or what it would say of what that stands for: neither
/// directories nor what was opened for its path alone are read or written.
#[inline]
pub(crate) fn judged(fd: c_int, way: Way, result: ssize_t) -> ssize_t {
    if result > 0 || !is_on() { result } else { judge(fd, way, result) }
}

#[cold]
fn judge(fd: c_int, way: Way, result: ssize_t) -> ssize_t {
    let errno = process::errno();
    let handle = handle(fd);
    process::set_errno(errno);
    match handle {
        Some(Handle { directory: true, .. }) if way == Way::Read && !is_path(fd) => {
            told(Err(libc::EISDIR))
        }
        Some(handle) if handle.directory || handle.mode == NOTHING => told(Err(libc::EBADF)),
        _ => result,
    }
}

/// Whether a descriptor was opened for its path alone.
fn is_path(fd: c_int) -> bool {
    let flags: c_int = kernel!(SYS_fcntl, fd, libc::F_GETFL);
    flags & libc::O_PATH != 0
}

/// Refuses what would be done with the memory file alone.
pub(crate) fn refuse<T: From<i8>>(fd: c_int, errno: c_int, next: impl FnOnce() -> T) -> T {
    if is_handle(fd) { told(Err(errno)) } else { next() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_the_directory_are_the_pools() {
        let mount = ["tmp", "weir", "p"].map(|name| name.as_bytes().to_vec());
        let rest = |path: &str| {
            let names = Names::of(path.as_bytes());
            names.below(&mount).map(|rest| String::from_utf8(rest.join(&b'/')))
        };
        for (path, expected) in [
            ("/tmp/weir/p", Some("")),
            ("/tmp/weir/p/", Some("")),
            ("//tmp/./weir/p/a//b", Some("a/b")),
            ("/tmp/x/../weir/p/a/../b", Some("b")),
            ("/tmp/weir/p/a/../..", None),
            ("/tmp/weir/pp", None),
            ("/tmp/weir", None),
            ("/", None),
        ] {
            let found = rest(path).map(|rest| rest.expect("text"));
            assert_eq!(found.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn a_descriptor_says_what_it_stands_for() {
        for (directory, read, write) in [
            (true, false, false),
            (false, true, true),
            (false, true, false),
            (false, false, true),
            (false, false, false),
        ] {
            let mode = OpenMode { read, write, truncate: false };
            let handle = Handle { ino: Ino(77), directory, mode };
            let name = format!("{} (deleted)", handle.name(5));
            assert_eq!(Handle::parse(&name, 5), Some(handle));
            assert_eq!(Handle::parse(&name, 6), None, "another pool's");
        }
        for name in ["weir:5", "weir:5:x:read", "weir:5:1:else", "other", ""] {
            assert_eq!(Handle::parse(name, 5), None, "{name}");
        }
    }
}
