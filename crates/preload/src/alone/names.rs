//! Names of the pool's files: what makes, moves and removes them.

use super::{answer, told, umask, who};
use crate::buffer;
use crate::engine::Engine;
use crate::reach;
use crate::real::interpose;
use libc::{c_char, c_int, c_uint, mode_t, size_t, ssize_t};
use std::sync::Arc;
use weir_core::error::{Code, Error, Result};
use weir_core::types::FileKind;
use weir_core::wire::meta::Place;

/// Does something with what a path names; by the next function, where that is not the pool's.
pub(super) fn named<T: From<i8>>(
    at: c_int,
    path: *const c_char,
    next: impl FnOnce() -> T,
    work: impl FnOnce(&Arc<Engine>, Place) -> Result<T>,
) -> T {
    buffer::settle();
    match super::named(at, path) {
        None => next(),
        Some(named) => told(answer(|engine| work(engine, named.place()?))),
    }
}

fn unlink_it(engine: &Arc<Engine>, place: Place) -> Result<c_int> {
    engine.pool.run(engine.pool.fs().unlink(&who(), place)).map(|()| 0)
}

fn remove_directory(engine: &Arc<Engine>, place: Place) -> Result<c_int> {
    engine.pool.run(engine.pool.fs().remove_directory(&who(), place)).map(|()| 0)
}

pub(super) fn make_directory(engine: &Arc<Engine>, place: Place, mode: mode_t) -> Result<c_int> {
    // Whose directories have set-group-id, says the directory above.
    let mode = mode & !umask() & 0o1777;
    engine.pool.run(engine.pool.fs().make_directory(&who(), place, mode)).map(|_| 0)
}

fn moved(
    old_at: c_int,
    old: *const c_char,
    new_at: c_int,
    new: *const c_char,
    flags: c_uint,
    next: impl FnOnce() -> c_int,
) -> c_int {
    buffer::settle();
    let (from, to) = match (super::named(old_at, old), super::named(new_at, new)) {
        (None, None) => return next(),
        (Some(from), Some(to)) => (from, to),
        _ => return told(Err(libc::EXDEV)),
    };
    told(answer(|engine| {
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
            return Err(Error::new(Code::Invalid));
        }
        let keeps = flags & libc::RENAME_NOREPLACE != 0;
        let exchanges = flags & libc::RENAME_EXCHANGE != 0;
        let (from, to) = (from.place()?, to.place()?);
        engine.pool.run(engine.pool.fs().rename(&who(), from, to, keeps, exchanges)).map(|()| 0)
    }))
}

/// The directory that stands for the pool.
fn mount() -> Vec<u8> {
    let names = super::SETTING.get().into_iter().flat_map(|setting| &setting.mount);
    names.flat_map(|name| [b"/", name.as_slice()].concat()).collect()
}

/// Whether a symbolic link's text begins with a path.
fn begins_with(text: &[u8], path: &[u8]) -> bool {
    text.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// A symbolic link's text as the pool keeps it. Absolute ones are followed from the pool's root: so
/// that one which leads into the pool's directory arrives, this is left out of it, and as many slashes
/// stand in its place: its length, the link's size, is what the program knows.
fn rooted(text: &[u8], mount: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    if begins_with(&text, mount) {
        text[..mount.len()].fill(b'/');
    }
    text
}

/// The text as the program gave it to [`rooted`].
fn unrooted(mut text: Vec<u8>, mount: &[u8]) -> Vec<u8> {
    if begins_with(&text, &vec![b'/'; mount.len()]) {
        text[..mount.len()].copy_from_slice(mount);
    }
    text
}

fn symlinked(
    text: *const c_char,
    at: c_int,
    path: *const c_char,
    next: impl FnOnce() -> c_int,
) -> c_int {
    if super::named(at, path).is_some() && !reach::is_readable(text) {
        return told(Err(libc::EFAULT));
    }
    named(at, path, next, |engine, place| {
        // SAFETY: the program names a text, ended by a NUL.
        let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes();
        let text = rooted(text, &mount());
        engine.pool.run(engine.pool.fs().symlink(&who(), place, &text)).map(|_| 0)
    })
}

fn linked(
    old_at: c_int,
    old: *const c_char,
    new_at: c_int,
    new: *const c_char,
    flags: c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    buffer::settle();
    let (from, to) = match (super::named(old_at, old), super::named(new_at, new)) {
        (None, None) => return next(),
        (Some(from), Some(to)) => (from, to),
        _ => return told(Err(libc::EXDEV)),
    };
    told(answer(|engine| {
        let fs = engine.pool.fs();
        let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
        let attributes = engine.pool.run(fs.lookup(&who(), from.place()?, follow))?;
        engine.pool.run(fs.link(&who(), attributes.ino, to.place()?)).map(|_| 0)
    }))
}

fn link_text(
    at: c_int,
    path: *const c_char,
    text: *mut c_char,
    room: size_t,
    next: impl FnOnce() -> ssize_t,
) -> ssize_t {
    named(at, path, next, |engine, place| {
        let fs = engine.pool.fs();
        let attributes = engine.pool.run(fs.lookup(&who(), place, false))?;
        if attributes.kind != FileKind::Symlink || room == 0 {
            return Err(Error::new(Code::Invalid));
        }
        let found = engine.pool.run(fs.read_link(&who(), attributes.ino))?;
        let found = unrooted(found, &mount());
        let length = found.len().min(room);
        // SAFETY: the program gives that much room.
        unsafe { text.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), length) };
        Ok(length as ssize_t)
    })
}

interpose! {
    fn unlink(path: *const c_char) -> c_int,
        |next| named(libc::AT_FDCWD, path, next, unlink_it);
    fn unlinkat(at: c_int, path: *const c_char, flags: c_int) -> c_int,
        |next| named(at, path, next, match flags & libc::AT_REMOVEDIR {
            0 => unlink_it,
            _ => remove_directory,
        });
    fn remove(path: *const c_char) -> c_int,
        |next| named(libc::AT_FDCWD, path, next, |engine, place| {
            match unlink_it(engine, place.clone()) {
                Err(Error { code: Code::IsDirectory, .. }) => remove_directory(engine, place),
                result => result,
            }
        });
    fn rmdir(path: *const c_char) -> c_int,
        |next| named(libc::AT_FDCWD, path, next, remove_directory);
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int,
        |next| named(libc::AT_FDCWD, path, next, |engine, place| make_directory(engine, place, mode));
    fn mkdirat(at: c_int, path: *const c_char, mode: mode_t) -> c_int,
        |next| named(at, path, next, |engine, place| make_directory(engine, place, mode));
    fn rename(old: *const c_char, new: *const c_char) -> c_int,
        |next| moved(libc::AT_FDCWD, old, libc::AT_FDCWD, new, 0, next);
    fn renameat(old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char) -> c_int,
        |next| moved(old_at, old, new_at, new, 0, next);
    fn renameat2(old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char, flags: c_uint) -> c_int,
        |next| moved(old_at, old, new_at, new, flags, next);
    fn link(old: *const c_char, new: *const c_char) -> c_int,
        |next| linked(libc::AT_FDCWD, old, libc::AT_FDCWD, new, 0, next);
    fn linkat(old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char, flags: c_int) -> c_int,
        |next| linked(old_at, old, new_at, new, flags, next);
    fn symlink(text: *const c_char, path: *const c_char) -> c_int,
        |next| symlinked(text, libc::AT_FDCWD, path, next);
    fn symlinkat(text: *const c_char, at: c_int, path: *const c_char) -> c_int,
        |next| symlinked(text, at, path, next);
    fn readlink(path: *const c_char, text: *mut c_char, room: size_t) -> ssize_t,
        |next| link_text(libc::AT_FDCWD, path, text, room, next);
    fn readlinkat(at: c_int, path: *const c_char, text: *mut c_char, room: size_t) -> ssize_t,
        |next| link_text(at, path, text, room, next);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_into_the_pool_are_kept_from_its_root() {
        let mount = b"/tmp/p";
        for (text, kept) in [
            ("/tmp/p/a/b", "///////a/b"),
            ("/tmp/p", "//////"),
            ("/tmp/p/", "///////"),
            ("/tmp/pp/a", "/tmp/pp/a"),
            ("/etc/passwd", "/etc/passwd"),
            ("tmp/p/a", "tmp/p/a"),
            ("../a", "../a"),
            ("/", "/"),
        ] {
            let found = rooted(text.as_bytes(), mount);
            assert_eq!(found, kept.as_bytes(), "{text}");
            assert_eq!(unrooted(found, mount), text.as_bytes(), "{text}");
        }
    }
}
