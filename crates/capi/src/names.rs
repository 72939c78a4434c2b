//! Functions on paths.

use crate::abi::{WeirLayout, WeirStat, read_growing, write_growing};
use crate::engine::Engine;
use crate::pool::{WeirPool, engine};
use crate::{array, call, call_int, invalid, path, shown, text, wanted};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::future::Future;
use std::sync::Arc;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::Fs;
use weir_core::types::{Attributes, WallTime};
use weir_core::wire::meta::{Changes, Place, SetTime};

const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;
const XATTR_CREATE: c_int = 1;
const XATTR_REPLACE: c_int = 2;
const RENAME_NOREPLACE: c_uint = 1;
const RENAME_EXCHANGE: c_uint = 2;

fn only(flags: c_int, known: c_int) -> Result<c_int> {
    match flags & !known {
        0 => Ok(flags),
        unknown => Err(invalid(format!("flags {unknown:#x} are not known here"))),
    }
}

/// A pool and a path in it.
struct At<'a> {
    engine: &'a Arc<Engine>,
    fs: &'a Fs<weir_client::Net>,
    place: Place,
    path: String,
}

impl At<'_> {
    /// # Safety
    /// `pool` is NULL or an open handle; `name` is NULL or a text.
    unsafe fn new<'a>(pool: *const WeirPool, name: *const c_char) -> Result<At<'a>> {
        // SAFETY: the caller's promise.
        let (engine, place) = unsafe { (engine(pool)?, path(name, "path")?) };
        let path = shown(&place);
        Ok(At { engine, fs: engine.pool()?.fs(), place, path })
    }

    /// Runs a request; in its errors the object is the path.
    fn run<T>(&self, operation: &str, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.engine.run(future).map_err(|error| Error {
            operation: operation.to_owned(),
            object: self.path.clone(),
            ..error
        })
    }

    /// Looks the path up.
    async fn found(&self, follow: bool) -> Result<Attributes> {
        self.fs.lookup(&self.engine.who, self.place.clone(), follow).await
    }

    /// Changes attributes.
    fn change(&self, operation: &str, flags: c_int, changes: Changes) -> Result<usize> {
        let follow = only(flags, NOFOLLOW)? == 0;
        self.run(operation, async {
            let ino = self.found(follow).await?.ino;
            self.fs.change(&self.engine.who, ino, changes).await
        })?;
        Ok(0)
    }
}

/// Copies a result out as the functions for extended attributes do.
///
/// # Safety
/// `buffer` is valid for writes of `size` bytes; NULL is allowed for none.
unsafe fn copy_out(bytes: &[u8], buffer: *mut c_void, size: usize) -> Result<usize> {
    if size > 0 {
        if bytes.len() > size {
            let cause = format!("{} bytes do not fit into {size}", bytes.len());
            return Err(Error::because(Code::Range, cause));
        }
        if buffer.is_null() {
            return Err(invalid("buffer is NULL"));
        }
        // SAFETY: the caller's promise, and it is long enough.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) };
    }
    Ok(bytes.len())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_stat(
    pool: *mut WeirPool,
    name: *const c_char,
    flags: c_int,
    out: *mut WeirStat,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let (at, out) = unsafe { (At::new(pool, name)?, wanted(out, "out")?) };
        let follow = only(flags, NOFOLLOW)? == 0;
        *out = WeirStat::from(&at.run("stat", at.found(follow))?);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_truncate(pool: *mut WeirPool, name: *const c_char, size: u64) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        at.run("truncate", async {
            let ino = at.found(true).await?.ino;
            at.fs.truncate(&at.engine.who, ino, size).await
        })?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_mkdir(
    pool: *mut WeirPool,
    name: *const c_char,
    mode: libc::mode_t,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        at.run("mkdir", at.fs.make_directory(&at.engine.who, at.place.clone(), mode & 0o7777))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_rmdir(pool: *mut WeirPool, name: *const c_char) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        at.run("rmdir", at.fs.remove_directory(&at.engine.who, at.place.clone()))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_unlink(pool: *mut WeirPool, name: *const c_char) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        at.run("unlink", at.fs.unlink(&at.engine.who, at.place.clone()))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_rename(
    pool: *mut WeirPool,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let (at, to) = unsafe { (At::new(pool, from)?, path(to, "new path")?) };
        let (no_replace, exchange) = match flags {
            0 => (false, false),
            RENAME_NOREPLACE => (true, false),
            RENAME_EXCHANGE => (false, true),
            _ => return Err(invalid(format!("flags {flags:#x} are not known here"))),
        };
        let at = At { path: format!("{} to {}", at.path, shown(&to)), ..at };
        let rename = at.fs.rename(&at.engine.who, at.place.clone(), to, no_replace, exchange);
        at.run("rename", rename)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_link(
    pool: *mut WeirPool,
    name: *const c_char,
    new_name: *const c_char,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let (at, to) = unsafe { (At::new(pool, name)?, path(new_name, "new path")?) };
        let at = At { path: format!("{} to {}", at.path, shown(&to)), ..at };
        at.run("link", async {
            let ino = at.found(false).await?.ino;
            at.fs.link(&at.engine.who, ino, to).await
        })?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_symlink(
    pool: *mut WeirPool,
    content: *const c_char,
    name: *const c_char,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let (at, content) = unsafe { (At::new(pool, name)?, text(content, "text")?) };
        at.run("symlink", at.fs.symlink(&at.engine.who, at.place.clone(), content))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_readlink(
    pool: *mut WeirPool,
    name: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        if buffer.is_null() || size == 0 {
            return Err(invalid("no buffer").on("readlink", &at.path));
        }
        let content = at.run("readlink", async {
            let ino = at.found(false).await?.ino;
            at.fs.read_link(&at.engine.who, ino).await
        })?;
        let shown = content.len().min(size);
        // SAFETY: `size` bytes are valid for writes.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), buffer.cast(), shown) };
        Ok(shown)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_chmod(
    pool: *mut WeirPool,
    name: *const c_char,
    mode: libc::mode_t,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        at.change("chmod", 0, Changes { mode: Some(mode & 0o7777), ..Changes::default() })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_chown(
    pool: *mut WeirPool,
    name: *const c_char,
    uid: libc::uid_t,
    gid: libc::gid_t,
    flags: c_int,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        let stated = |id: u32| Some(id).filter(|&id| id != u32::MAX);
        let changes = Changes { uid: stated(uid), gid: stated(gid), ..Changes::default() };
        at.change("chown", flags, changes)
    })
}

fn time_to_set(time: &libc::timespec) -> Result<Option<SetTime>> {
    match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        ns @ 0..1_000_000_000 => time
            .tv_sec
            .checked_mul(1_000_000_000)
            .and_then(|whole| whole.checked_add(ns))
            .map(|ns| Some(SetTime::To(WallTime(ns))))
            .ok_or_else(|| invalid("time is out of range")),
        _ => Err(invalid("tv_nsec is out of range")),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_utimens(
    pool: *mut WeirPool,
    name: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        let (atime, mtime) = if times.is_null() {
            (Some(SetTime::Now), Some(SetTime::Now))
        } else {
            // SAFETY: as above: two of them.
            let times = unsafe { array(times, 2, "times") }?;
            (time_to_set(&times[0])?, time_to_set(&times[1])?)
        };
        at.change("utimens", flags, Changes { atime, mtime, ..Changes::default() })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_get_layout(
    pool: *mut WeirPool,
    name: *const c_char,
    out: *mut WeirLayout,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        let (layout, wish) = at.run("get layout", async {
            let ino = at.found(true).await?.ino;
            at.fs.layout(&at.engine.who, ino).await
        })?;
        let layout = layout.map_or_else(|| WeirLayout::of_wish(wish), |l| WeirLayout::of_file(&l));
        // SAFETY: as above.
        unsafe { write_growing(out, &layout, "out") }?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_set_layout(
    pool: *mut WeirPool,
    name: *const c_char,
    layout: *const WeirLayout,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        if layout.is_null() {
            return Err(invalid("layout is NULL").on("set layout", &at.path));
        }
        // SAFETY: as above.
        let wish = unsafe { read_growing(layout, "layout") }?.to_wish()?;
        at.run("set layout", async {
            let ino = at.found(true).await?.ino;
            at.fs.set_layout(&at.engine.who, ino, wish).await
        })?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_getxattr(
    pool: *mut WeirPool,
    name: *const c_char,
    attribute: *const c_char,
    buffer: *mut c_void,
    size: usize,
    flags: c_int,
) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let (at, attribute) = unsafe { (At::new(pool, name)?, text(attribute, "name")?) };
        let follow = only(flags, NOFOLLOW)? == 0;
        let value = at.run("getxattr", async {
            let ino = at.found(follow).await?.ino;
            at.fs.xattr(&at.engine.who, ino, attribute).await
        })?;
        // SAFETY: as above.
        unsafe { copy_out(&value, buffer, size) }.map_err(|error| error.on("getxattr", &at.path))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_setxattr(
    pool: *mut WeirPool,
    name: *const c_char,
    attribute: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let (at, attribute) = unsafe { (At::new(pool, name)?, text(attribute, "name")?) };
        // SAFETY: as above.
        let value = unsafe { array(value.cast::<u8>(), size, "value") }?;
        let flags = only(flags, NOFOLLOW | XATTR_CREATE | XATTR_REPLACE)?;
        let (create, replace) = (flags & XATTR_CREATE != 0, flags & XATTR_REPLACE != 0);
        at.run("setxattr", async {
            let ino = at.found(flags & NOFOLLOW == 0).await?.ino;
            at.fs.set_xattr(&at.engine.who, ino, attribute, value, create, replace).await
        })?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_listxattr(
    pool: *mut WeirPool,
    name: *const c_char,
    buffer: *mut c_char,
    size: usize,
    flags: c_int,
) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let at = unsafe { At::new(pool, name) }?;
        let follow = only(flags, NOFOLLOW)? == 0;
        let names = at.run("listxattr", async {
            let ino = at.found(follow).await?.ino;
            at.fs.list_xattr(&at.engine.who, ino).await
        })?;
        // SAFETY: as above.
        unsafe { copy_out(&names, buffer.cast(), size) }
            .map_err(|error| error.on("listxattr", &at.path))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_removexattr(
    pool: *mut WeirPool,
    name: *const c_char,
    attribute: *const c_char,
    flags: c_int,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let (at, attribute) = unsafe { (At::new(pool, name)?, text(attribute, "name")?) };
        let follow = only(flags, NOFOLLOW)? == 0;
        at.run("removexattr", async {
            let ino = at.found(follow).await?.ino;
            at.fs.remove_xattr(&at.engine.who, ino, attribute).await
        })?;
        Ok(0)
    })
}
