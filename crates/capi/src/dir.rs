//! Open directories.

use crate::abi::{WeirDirent, WeirStat};
use crate::engine::{Engine, lock};
use crate::pool::{WeirPool, engine};
use crate::{call_int, given, path, shown, wanted};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex};
use weir_core::config::ENTRIES_PER_REPLY_MAX;
use weir_core::error::{Code, Error, Result};
use weir_core::types::{Attributes, Entry, FileKind, Ino};

/// `weir_dir`.
pub(crate) struct WeirDir {
    engine: Arc<Engine>,
    ino: Ino,
    path: String,
    /// Held during requests too: threads that share a handle get different names.
    position: Mutex<Position>,
}

#[derive(Default)]
struct Position {
    /// Fetched but not yet given; with attributes if those were asked for.
    entries: VecDeque<(Entry, Option<Attributes>)>,
    /// The last name fetched.
    after: Vec<u8>,
    /// Whether nothing comes behind that.
    end: bool,
}

impl WeirDir {
    fn next(&self, attributes: bool) -> Result<Option<(Entry, Option<Attributes>)>> {
        let fs = self.engine.pool()?.fs();
        let who = &self.engine.who;
        let mut position = lock(&self.position);
        while position.entries.is_empty() && !position.end {
            let limit = ENTRIES_PER_REPLY_MAX as u32;
            let list = fs.list(who, self.ino, &position.after, limit, attributes);
            let listing = self.engine.run(list)?;
            if let Some(last) = listing.entries.last() {
                position.after.clone_from(&last.name);
            } else if !listing.end {
                return Err(Error::because(Code::Protocol, "a listing without entries goes on"));
            }
            position.end = listing.end;
            let mut found = listing.attributes.into_iter();
            position.entries =
                listing.entries.into_iter().map(|entry| (entry, found.next())).collect();
        }
        let Some((entry, mut found)) = position.entries.pop_front() else {
            return Ok(None);
        };
        if attributes && found.is_none() {
            found = Some(self.engine.run(fs.attributes(who, entry.ino))?);
        }
        Ok(Some((entry, found)))
    }
}

/// What a directory's handle stands for.
///
/// # Safety
/// `dir` is NULL or a handle that has not been ended.
unsafe fn directory<'a>(dir: *const WeirDir) -> Result<&'a WeirDir> {
    // SAFETY: the caller's promise.
    let dir = unsafe { given(dir, "dir") }?;
    dir.engine.pool()?;
    Ok(dir)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_opendir(
    pool: *mut WeirPool,
    name: *const c_char,
    out: *mut *mut WeirDir,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let out = unsafe { wanted(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: as above.
        let (engine, place) = unsafe { (engine(pool)?, path(name, "path")?) };
        let path = shown(&place);
        let found = engine.run(engine.pool()?.fs().lookup(&engine.who, place, true))?;
        if found.kind != FileKind::Directory {
            return Err(Error::new(Code::NotDirectory).on("open directory", &path));
        }
        let position = Mutex::default();
        let dir = WeirDir { engine: engine.clone(), ino: found.ino, path, position };
        *out = Box::into_raw(Box::new(dir));
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_readdir(
    dir: *mut WeirDir,
    entry: *mut WeirDirent,
    stat: *mut WeirStat,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let (dir, entry) = unsafe { (directory(dir)?, wanted(entry, "entry")?) };
        let named = |error: Error| Error { object: dir.path.clone(), ..error };
        let Some((found, attributes)) = dir.next(!stat.is_null()).map_err(named)? else {
            return Ok(0);
        };
        *entry = WeirDirent::from(&found);
        // SAFETY: NULL, or valid for writes.
        if let (Some(stat), Some(attributes)) = (unsafe { stat.as_mut() }, &attributes) {
            *stat = WeirStat::from(attributes);
        }
        Ok(1)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_rewinddir(dir: *mut WeirDir) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let dir = unsafe { directory(dir) }?;
        *lock(&dir.position) = Position::default();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_closedir(dir: *mut WeirDir) -> c_int {
    call_int(|| {
        if !dir.is_null() {
            // In a child process the handle stays: its connections are the parent's.
            // SAFETY: the arguments are as weir.h demands.
            unsafe { directory(dir) }?;
            // SAFETY: made by `weir_opendir`, and not used again.
            drop(unsafe { Box::from_raw(dir) });
        }
        Ok(0)
    })
}
