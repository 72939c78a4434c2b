//! Lists of directories. The C library's own streams hold what the kernel says; ours hold what the
//! pool has said when they were opened or rewound.

use super::{answer, handle, is_on, is_path, open, told, who};
use crate::engine::Engine;
use crate::process;
use crate::real::interpose;
use crate::{buffer, exports};
use libc::{DIR, c_char, c_int, c_long, c_void, dirent, dirent64};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_core::config::ENTRIES_PER_REPLY_MAX;
use weir_core::error::Result;
use weir_core::types::{Entry, FileKind, Ino};

const HERE: c_int = libc::AT_FDCWD;

/// A directory that is being read.
pub(crate) struct Listing {
    fd: c_int,
    entries: Vec<Entry>,
    next: usize,
    /// What the program was given last.
    shown: dirent64,
}

// SAFETY: plain bytes.
unsafe impl Send for Listing {}

/// By the address that programs have instead of the C library's.
type Listings = BTreeMap<usize, Box<Listing>>;

static LISTINGS: Mutex<Listings> = Mutex::new(BTreeMap::new());

/// Something that can be held still while a child is made.
pub(crate) type Held = MutexGuard<'static, Listings>;

/// Nobody reads directories until the guard is dropped.
pub(crate) fn hold() -> Held {
    LISTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<T>(directory: *mut DIR, work: impl FnOnce(&mut Listing) -> T) -> Option<T> {
    // A signal handler, and the child of a `vfork`, would wait for what they interrupted.
    if !is_on() || !process::attends() {
        return None;
    }
    let _inside = process::Inside::enter();
    hold().get_mut(&(directory as usize)).map(|listing| work(listing))
}

fn list(engine: &Engine, ino: Ino) -> Result<Vec<Entry>> {
    let dot = |name: &[u8]| Entry { name: name.to_vec(), ino, kind: FileKind::Directory };
    let mut entries = vec![dot(b"."), dot(b"..")];
    let mut after = Vec::new();
    loop {
        let fs = engine.pool.fs();
        let limit = ENTRIES_PER_REPLY_MAX as u32;
        let page = engine.pool.run(fs.list(&who(), ino, &after, limit, false))?;
        if let Some(last) = page.entries.last() {
            after.clone_from(&last.name);
        }
        let end = page.end || page.entries.is_empty();
        entries.extend(page.entries);
        if end {
            return Ok(entries);
        }
    }
}

/// Begins to list the directory that a descriptor of ours stands for.
fn begin(fd: c_int) -> Option<*mut DIR> {
    let handle = handle(fd)?;
    if !handle.directory || is_path(fd) {
        process::set_errno(if handle.directory { libc::EBADF } else { libc::ENOTDIR });
        return Some(std::ptr::null_mut());
    }
    let listed = answer(|engine| {
        // SAFETY: zeros are a valid entry.
        let shown = unsafe { std::mem::zeroed() };
        let entries = list(engine, handle.ino)?;
        let listing = Box::new(Listing { fd, entries, next: 0, shown });
        let address = (&raw const *listing) as usize;
        hold().insert(address, listing);
        Ok(address as isize)
    });
    Some(match told(listed) {
        -1 => std::ptr::null_mut(),
        address => address as *mut DIR,
    })
}

impl Listing {
    fn next(&mut self) -> *mut dirent64 {
        let Some(entry) = self.entries.get(self.next) else { return std::ptr::null_mut() };
        self.next += 1;
        let shown = &mut self.shown;
        shown.d_ino = entry.ino.0;
        shown.d_off = self.next as i64;
        shown.d_reclen = size_of::<dirent64>() as u16;
        shown.d_type = match entry.kind {
            FileKind::Regular => libc::DT_REG,
            FileKind::Directory => libc::DT_DIR,
            FileKind::Symlink => libc::DT_LNK,
            FileKind::Fifo => libc::DT_FIFO,
            FileKind::Socket => libc::DT_SOCK,
            FileKind::CharDevice => libc::DT_CHR,
            FileKind::BlockDevice => libc::DT_BLK,
        };
        let length = entry.name.len().min(shown.d_name.len() - 1);
        for (to, from) in shown.d_name.iter_mut().zip(&entry.name[..length]) {
            *to = *from as c_char;
        }
        shown.d_name[length] = 0;
        shown
    }
}

/// Opens a directory, if it is the pool's.
fn opened(path: *const c_char) -> Option<*mut DIR> {
    buffer::settle();
    let fd = open(HERE, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)?;
    if fd < 0 {
        return Some(std::ptr::null_mut());
    }
    let directory = begin(fd).filter(|directory| !directory.is_null());
    if directory.is_none() {
        let errno = process::errno();
        // SAFETY: a descriptor that nobody else knows of.
        unsafe { exports::close(fd) };
        process::set_errno(errno);
    }
    directory.or(Some(std::ptr::null_mut()))
}

fn closed(directory: *mut DIR) -> Option<c_int> {
    let fd = with(directory, |listing| listing.fd)?;
    let inside = process::Inside::enter();
    let ended = hold().remove(&(directory as usize));
    drop((ended, inside));
    // SAFETY: the descriptor belonged to the stream.
    Some(unsafe { exports::close(fd) })
}

type Filter = unsafe extern "C" fn(*const dirent) -> c_int;
type Compare = unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int;

/// As `scandir`, of the pool's directories: memory that the program gives back.
///
/// # Safety
/// As the function.
unsafe fn scanned(
    path: *const c_char,
    list: *mut *mut *mut dirent,
    filter: Option<Filter>,
    compare: Option<Compare>,
) -> Option<c_int> {
    let directory = opened(path)?;
    if directory.is_null() {
        return Some(-1);
    }
    let (mut found, mut count, mut room) = (std::ptr::null_mut::<*mut dirent>(), 0, 0);
    let each = || with(directory, Listing::next).filter(|entry| !entry.is_null());
    // SAFETY: entries stay until the next is asked for, which nobody else does; memory is used as far as it
    // was got.
    let got = unsafe {
        loop {
            let Some(entry) = each().map(<*mut dirent64>::cast::<dirent>) else { break true };
            if filter.is_some_and(|filter| filter(entry) == 0) {
                continue;
            }
            if count == room {
                room = 2 * room + 16;
                let more = libc::realloc(found.cast(), room * size_of::<*mut dirent>());
                if more.is_null() {
                    break false;
                }
                found = more.cast();
            }
            let copy = libc::malloc(size_of::<dirent>()).cast::<dirent>();
            if copy.is_null() {
                break false;
            }
            copy.copy_from_nonoverlapping(entry, 1);
            found.add(count).write(copy);
            count += 1;
        }
    };
    closed(directory);
    // SAFETY: as above; a comparison of pointers to entries is one of pointers to anything.
    unsafe {
        if !got {
            (0..count).for_each(|index| libc::free(found.add(index).read().cast()));
            libc::free(found.cast());
            return Some(told(Err(libc::ENOMEM)));
        }
        if let Some(compare) = compare {
            let compare = std::mem::transmute::<
                Compare,
                unsafe extern "C" fn(*const c_void, *const c_void) -> c_int,
            >(compare);
            libc::qsort(found.cast(), count, size_of::<*mut dirent>(), Some(compare));
        }
        list.write(found);
    }
    Some(count as c_int)
}

interpose! {
    fn opendir(path: *const c_char) -> *mut DIR,
        |next| opened(path).unwrap_or_else(next);
    fn scandir | scandir64(path: *const c_char, list: *mut *mut *mut dirent, filter: Option<Filter>, compare: Option<Compare>) -> c_int,
        // SAFETY: the program gives room for a pointer, and its own functions.
        |next| unsafe { scanned(path, list, filter, compare) }.unwrap_or_else(next);
    fn fdopendir(fd: c_int) -> *mut DIR,
        |next| begin(fd).unwrap_or_else(next);
    fn readdir(directory: *mut DIR) -> *mut dirent,
        |next| with(directory, Listing::next).map_or_else(next, |entry| entry.cast());
    fn readdir64(directory: *mut DIR) -> *mut dirent64,
        |next| with(directory, Listing::next).unwrap_or_else(next);
    fn readdir_r(directory: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int,
        |next| with(directory, |listing| {
            let found = listing.next().cast::<dirent>();
            // SAFETY: the program gives room for an entry and for a pointer.
            unsafe {
                if !found.is_null() {
                    entry.copy_from_nonoverlapping(found, 1);
                }
                result.write(if found.is_null() { found } else { entry });
            }
            0
        }).unwrap_or_else(next);
    fn rewinddir(directory: *mut DIR) -> (),
        |next| match with(directory, |listing| listing.fd) {
            None => next(),
            Some(fd) => {
                let anew = handle(fd).and_then(|handle| {
                    answer(|engine| list(engine, handle.ino)).ok()
                });
                with(directory, |listing| {
                    listing.next = 0;
                    if let Some(entries) = anew {
                        listing.entries = entries;
                    }
                });
            }
        };
    fn telldir(directory: *mut DIR) -> c_long,
        |next| with(directory, |listing| listing.next as c_long).unwrap_or_else(next);
    fn seekdir(directory: *mut DIR, at: c_long) -> (),
        |next| with(directory, |listing| listing.next = at.max(0) as usize).unwrap_or_else(next);
    fn dirfd(directory: *mut DIR) -> c_int,
        |next| with(directory, |listing| listing.fd).unwrap_or_else(next);
    fn closedir(directory: *mut DIR) -> c_int,
        |next| closed(directory).unwrap_or_else(next);
}
