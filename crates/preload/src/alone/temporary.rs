//! Files and directories under names that nobody has yet.

use super::names::make_directory;
use super::{named, open};
use crate::real::{interpose, kernel};
use crate::{exports, process};
use libc::{c_char, c_int};
use std::ffi::CStr;

/// What is replaced in a template.
const BLANK: &[u8] = b"XXXXXX";
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// As the C library: one has to end some time.
const TRIES_MAX: usize = 1000;

/// Tries names until one is new; none: the template is not the pool's.
fn tried(
    template: *mut c_char,
    suffix: c_int,
    mut attempt: impl FnMut(*const c_char) -> c_int,
) -> Option<c_int> {
    named(libc::AT_FDCWD, template)?;
    // SAFETY: the program gives a template, ended by a NUL, for us to change.
    let length = unsafe { CStr::from_ptr(template) }.count_bytes();
    let end = usize::try_from(suffix).ok().and_then(|suffix| length.checked_sub(suffix));
    let blank = end.and_then(|end| end.checked_sub(BLANK.len())).map(|from| {
        // SAFETY: within the template.
        unsafe { std::slice::from_raw_parts_mut(template.cast::<u8>().add(from), BLANK.len()) }
    });
    let Some(blank) = blank.filter(|blank| *blank == BLANK) else {
        process::set_errno(libc::EINVAL);
        return Some(-1);
    };
    for _ in 0..TRIES_MAX {
        let mut random = [0u8; BLANK.len()];
        let _: isize = kernel!(SYS_getrandom, random.as_mut_ptr(), random.len(), 0);
        for (letter, random) in blank.iter_mut().zip(random) {
            *letter = LETTERS[random as usize % LETTERS.len()];
        }
        let made = attempt(template);
        if made >= 0 || process::errno() != libc::EEXIST {
            return Some(made);
        }
    }
    Some(-1)
}

fn file(template: *mut c_char, suffix: c_int, flags: c_int, next: impl FnOnce() -> c_int) -> c_int {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let made = |path| open(libc::AT_FDCWD, path, flags, 0o600).unwrap_or(-1);
    tried(template, suffix, made).unwrap_or_else(|| exports::opened(next()))
}

interpose! {
    fn mkstemp | mkstemp64(template: *mut c_char) -> c_int,
        |next| file(template, 0, 0, next);
    fn mkostemp | mkostemp64(template: *mut c_char, flags: c_int) -> c_int,
        |next| file(template, 0, flags, next);
    fn mkstemps | mkstemps64(template: *mut c_char, suffix: c_int) -> c_int,
        |next| file(template, suffix, 0, next);
    fn mkostemps | mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int,
        |next| file(template, suffix, flags, next);
    fn mkdtemp(template: *mut c_char) -> *mut c_char,
        |next| {
            let made = |path| {
                let work = |engine: &_, place| make_directory(engine, place, 0o700);
                super::names::named(libc::AT_FDCWD, path, || -1, work)
            };
            match tried(template, 0, made) {
                None => next(),
                Some(0) => template,
                Some(_) => std::ptr::null_mut(),
            }
        };
}
