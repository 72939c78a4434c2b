//! The working directory. The kernel knows no directory of the pool, and children that execute
//! programs have nothing but what the kernel knows: so a process that goes to a directory of the pool
//! is, for the kernel, in an empty one that has its number for a name, in the pool's own directory.

use super::{Handle, Named, PATH_MAX, SETTING, Setting, answer, handle, named, told, who};
use crate::engine::Engine;
use crate::process;
use crate::real::{interpose, kernel};
use libc::{c_char, c_int, size_t};
use std::io::Write;
use weir_core::config::ENTRIES_PER_REPLY_MAX;
use weir_core::error::{Code, Error, Result};
use weir_core::types::{Attributes, FileKind, Ino};
use weir_core::wire::meta::Place;

/// In the pool's own directory: where the empty ones are.
const STANDS: &str = "cwd";

/// Where the process is.
pub(super) enum Working<'a> {
    /// In this directory of the pool.
    Pool(Ino),
    /// Elsewhere, as the kernel says.
    Kernel(&'a [u8]),
}

/// Where the process is. Allocates nothing.
pub(super) fn directory<'a>(
    setting: &Setting,
    room: &'a mut [u8; PATH_MAX],
) -> Option<Working<'a>> {
    let length: isize = kernel!(SYS_getcwd, room.as_mut_ptr(), room.len());
    let path = room.get(..usize::try_from(length).ok()?.checked_sub(1)?)?;
    let number = || {
        let rest = path.strip_prefix(setting.pool.as_bytes())?.strip_prefix(b"/")?;
        let rest = rest.strip_prefix(STANDS.as_bytes())?.strip_prefix(b"/")?;
        std::str::from_utf8(rest).ok()?.parse().ok().map(Ino)
    };
    Some(number().map_or(Working::Kernel(path), Working::Pool))
}

/// The path of the directory that stands for this one, ended by a NUL. Allocates nothing.
fn stand(ino: Ino, room: &mut [u8; PATH_MAX]) -> Option<*const c_char> {
    let setting = SETTING.get()?;
    let mut rest = &mut room[..];
    write!(rest, "{}/{STANDS}/{}\0", setting.pool, ino.0).ok()?;
    Some(room.as_ptr().cast())
}

/// Goes there, as far as the kernel is concerned.
fn go(ino: Ino) -> Result<c_int> {
    let mut room = [0; PATH_MAX];
    let path = stand(ino, &mut room).ok_or_else(|| Error::new(Code::NameTooLong))?;
    for attempt in 0..2 {
        let gone: c_int = kernel!(SYS_chdir, path);
        if gone == 0 {
            return Ok(0);
        }
        if attempt == 0 {
            let _: c_int = kernel!(SYS_mkdirat, libc::AT_FDCWD, path, 0o500);
        }
    }
    Err(Error::because(Code::Internal, format!("errno {}", process::errno())))
}

fn enter(found: &Attributes) -> Result<c_int> {
    match found.kind {
        FileKind::Directory => go(found.ino),
        _ => Err(Error::new(Code::NotDirectory)),
    }
}

fn changed(named: Named) -> c_int {
    told(answer(|engine| {
        let found = engine.pool.run(engine.pool.fs().lookup(&who(), named.place()?, true))?;
        enter(&found)
    }))
}

fn changed_to_held(handle: Handle) -> c_int {
    told(answer(|engine| {
        let found = engine.pool.run(engine.pool.fs().attributes(&who(), handle.ino))?;
        enter(&found)
    }))
}

/// Names that lead from the root to a directory.
fn trace(engine: &Engine, mut ino: Ino) -> Result<Vec<Vec<u8>>> {
    let fs = engine.pool.fs();
    let mut names = Vec::new();
    while ino != Ino::ROOT {
        let above = engine.pool.run(fs.lookup(&who(), Place::new(ino, ".."), true))?.ino;
        let mut after = Vec::new();
        let name = loop {
            let limit = ENTRIES_PER_REPLY_MAX as u32;
            let page = engine.pool.run(fs.list(&who(), above, &after, limit, false))?;
            if let Some(entry) = page.entries.iter().find(|entry| entry.ino == ino) {
                break entry.name.clone();
            }
            match page.entries.last() {
                Some(last) if !page.end => after.clone_from(&last.name),
                // It was removed.
                _ => return Err(Error::new(Code::NotFound)),
            }
        };
        names.push(name);
        ino = above;
    }
    names.reverse();
    Ok(names)
}

/// The path of the working directory in the pool, written to `room` and ended by a NUL; its length
/// with that. None: it is not in the pool.
fn written(room: &mut [u8]) -> Option<std::result::Result<usize, c_int>> {
    let setting = SETTING.get()?;
    let mut path = [0; PATH_MAX];
    let Working::Pool(ino) = directory(setting, &mut path)? else { return None };
    let traced = answer(|engine| {
        let mut rest = &mut *room;
        let names = trace(engine, ino)?;
        let written = (setting.mount.iter().chain(&names))
            .try_for_each(|name| rest.write_all(b"/").and_then(|()| rest.write_all(name)))
            .and_then(|()| rest.write_all(b"\0"));
        let left = rest.len();
        written.map_err(|_| Error::new(Code::Range))?;
        Ok(room.len() - left)
    });
    Some(traced)
}

/// As `getcwd`: into the program's memory, or (none) into memory that it is to free.
fn told_to(memory: *mut c_char, size: size_t, next: impl FnOnce() -> *mut c_char) -> *mut c_char {
    if !super::is_on() {
        return next();
    }
    let mut room = [0; PATH_MAX];
    let result = match written(&mut room) {
        None => return next(),
        Some(Ok(length)) if (memory.is_null() && size == 0) || length <= size => Ok(length),
        Some(Ok(_)) => Err(libc::ERANGE),
        Some(Err(errno)) => Err(errno),
    };
    let length = match result {
        Ok(length) => length,
        Err(errno) => {
            process::set_errno(errno);
            return std::ptr::null_mut();
        }
    };
    let memory = match memory.is_null() {
        // SAFETY: asks for memory, which the program frees.
        true => unsafe { libc::malloc(length.max(size)) }.cast(),
        false => memory,
    };
    if !memory.is_null() {
        // SAFETY: as large as was just looked at.
        unsafe { memory.cast::<u8>().copy_from_nonoverlapping(room.as_ptr(), length) };
    }
    memory
}

interpose! {
    fn chdir(path: *const c_char) -> c_int,
        |next| match named(libc::AT_FDCWD, path) {
            None => next(),
            Some(named) => changed(named),
        };
    fn fchdir(fd: c_int) -> c_int,
        |next| match handle(fd) {
            None => next(),
            Some(handle) => changed_to_held(handle),
        };
    fn getcwd(memory: *mut c_char, size: size_t) -> *mut c_char,
        |next| told_to(memory, size, next);
    fn __getcwd_chk(memory: *mut c_char, size: size_t, room: size_t) -> *mut c_char,
        |next| if size > room { next() } else { told_to(memory, size, next) };
    fn getwd(memory: *mut c_char) -> *mut c_char,
        |next| told_to(memory, PATH_MAX, next);
    fn get_current_dir_name() -> *mut c_char,
        |next| told_to(std::ptr::null_mut(), 0, next);
}
