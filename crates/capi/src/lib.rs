//! `libweir`: the functions of `include/weir.h`, which is their documentation.
//!
//! Every function goes through [`call`]: no panic and no change of errno leaves it.
//! The arguments of all functions must be what `weir.h` says of them; that is the promise that the
//! `SAFETY` comments here rest on.

pub mod abi;
mod dir;
mod engine;
mod file;
mod lending;
mod locks;
mod names;
mod op;
mod pool;

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weir_core::error::{Code, Error, Result};
use weir_core::types::Ino;
use weir_core::wire::meta::Place;

thread_local! {
    static ERROR_TEXT: RefCell<CString> = RefCell::default();
}

/// What a panic becomes.
fn panicked(payload: &(dyn Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    Error::because(Code::Internal, format!("bug in libweir: {}", text.unwrap_or("panic")))
}

/// Notes a failure's text for [`weir_error_text`]; gives its number as C functions return it.
fn fail(error: &Error) -> isize {
    let text = error.to_string().replace('\0', "\u{fffd}");
    // While a thread ends there may be no place for it any more: the number must do then.
    let _ = ERROR_TEXT.try_with(|slot| *slot.borrow_mut() = CString::new(text).unwrap_or_default());
    -(error.errno() as isize)
}

/// Runs the body of a function that returns a count, or a negated error number.
fn call(body: impl FnOnce() -> Result<usize>) -> isize {
    // SAFETY: the address of this thread's errno is valid as long as the thread is.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(count)) => count as isize,
        Ok(Err(error)) => fail(&error),
        Err(payload) => fail(&panicked(payload.as_ref())),
    };
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// As [`call`], for functions that return an int: 0, or another small number.
fn call_int(body: impl FnOnce() -> Result<usize>) -> c_int {
    call(body) as c_int
}

fn invalid(cause: impl Into<String>) -> Error {
    Error::because(Code::Invalid, cause)
}

/// What a handle or structure of the caller's is.
///
/// # Safety
/// `pointer` is NULL, or valid for reads throughout `'a`.
unsafe fn given<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(format!("{what} is NULL")))
}

/// Where the caller wants a result.
///
/// # Safety
/// `pointer` is NULL, or valid for writes throughout `'a`; what it names may be uninitialised only
/// where all bytes are a `T`.
unsafe fn wanted<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| invalid(format!("{what} is NULL")))
}

/// An array of the caller's.
///
/// # Safety
/// `pointer` is valid for reads of `count` elements throughout `'a`; NULL is allowed for none.
unsafe fn array<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || count > isize::MAX as usize / size_of::<T>() {
        return Err(invalid(format!("{what} is NULL or too long")));
    }
    // SAFETY: the caller's promise; not NULL, not too long.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// A text of the caller's.
///
/// # Safety
/// `text` is NULL, or ends with a NUL and is valid throughout `'a`.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a [u8]> {
    if text.is_null() {
        return Err(invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A path of the caller's: below the root, whether or not it begins with a slash.
///
/// # Safety
/// As [`text`].
unsafe fn path(path: *const c_char, what: &str) -> Result<Place> {
    // SAFETY: the caller's promise.
    let path = unsafe { text(path, what) }?;
    if path.is_empty() {
        return Err(Error::because(Code::NotFound, format!("{what} is empty")));
    }
    Ok(Place::new(Ino::ROOT, path))
}

/// How a place reads in messages.
fn shown(place: &Place) -> String {
    format!("/{}", String::from_utf8_lossy(&place.path).trim_start_matches('/'))
}

#[unsafe(no_mangle)]
extern "C" fn weir_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[unsafe(no_mangle)]
extern "C" fn weir_error_text() -> *const c_char {
    ERROR_TEXT.try_with(|slot| slot.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_text() -> String {
        // SAFETY: the text is valid until the next failure in this thread.
        unsafe { CStr::from_ptr(weir_error_text()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_an_error_number_and_a_text() {
        assert_eq!(call(|| panic!("not {}", "so")), -(libc::EIO as isize));
        assert_eq!(error_text(), "bug in libweir: not so");
    }

    #[test]
    fn errno_is_left_alone() {
        // SAFETY: this thread's own errno.
        unsafe { *libc::__errno_location() = 77 };
        let failure = call(|| {
            // SAFETY: fails, and sets errno.
            unsafe { libc::close(-1) };
            Err(Error::because(Code::NotFound, "nul \0 within").on("open", "/x"))
        });
        assert_eq!(failure, -(libc::ENOENT as isize));
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 77);
        assert_eq!(error_text(), "open /x: nul \u{fffd} within");
    }
}
