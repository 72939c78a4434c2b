//! What this process alone has open, and leaves to the program that it executes: in `program >file` the shell opens the
//! file in the very process that the program will be.
//!
//! A program finds descriptors open when it begins, and cannot tell whether others have them, too. So who executes it
//! says so, on what is open, in the kernel: the signal that goes with it (see [`mark`](crate::mark)) is one of the last
//! ones, and its owner (`F_SETOWN`) is this process. A child of a program that does not know of this is another
//! process, and is not taken in; only programs that do are left anything.

use crate::before::jumping;
use crate::mark::{F_GETSIG, F_SETSIG};
use crate::process::{self, Inside};
use crate::real::{kernel, look_up};
use crate::{alone, buffer, files, stdio};
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Descriptors that are left: those that shells have names for.
const LEFT_MAX: c_int = 10;
/// The signal of what is left as descriptor 0; those of the next ones follow. Duplicates have that of the first.
const FIRST_SIGNAL: c_int = 55;

/// This process has left something, and goes on nevertheless: what it wanted to execute was not to be.
static REMAINS: AtomicBool = AtomicBool::new(false);

/// As which descriptor this one's file was left by a process of this number, if it was.
fn left_as(fd: c_int) -> Option<c_int> {
    let signal: c_int = kernel!(SYS_fcntl, fd, F_GETSIG);
    let first = signal.checked_sub(FIRST_SIGNAL).filter(|first| (0..LEFT_MAX).contains(first))?;
    let owner: c_int = kernel!(SYS_fcntl, fd, libc::F_GETOWN);
    // Of what is no regular file, a program's own signals may be such.
    (owner == std::process::id() as c_int && files::is_candidate(fd)).then_some(first)
}

fn sign(fd: c_int, signal: c_int, owner: c_int) {
    let _: c_int = kernel!(SYS_fcntl, fd, F_SETSIG, signal);
    let _: c_int = kernel!(SYS_fcntl, fd, libc::F_SETOWN, owner);
}

fn erase(fd: c_int) {
    sign(fd, 0, 0);
}

/// Takes over what was left to this program. Nobody else can have it yet.
pub(crate) fn take_over() {
    if alone::is_on() {
        return;
    }
    let left: Vec<_> = (0..LEFT_MAX).filter_map(|fd| Some((fd, left_as(fd)?))).collect();
    for (place, (fd, first)) in left.iter().enumerate() {
        match left[..place].iter().find(|(_, theirs)| theirs == first) {
            Some((known, _)) => files::duplicated(*known, *fd),
            None => files::opened(*fd),
        }
    }
    for (fd, _) in left {
        erase(fd);
        stdio::begins_with(fd);
    }
}

/// Another process gets what is open here.
pub(crate) fn revoke() {
    if REMAINS.swap(false, Ordering::Relaxed) {
        (0..LEFT_MAX).filter(|fd| left_as(*fd).is_some()).for_each(erase);
    }
}

/// A program, as it is named to be executed.
enum Program {
    At(*const c_char),
    /// To be looked for where programs are.
    Called(*const c_char),
    /// In one of the ways that are too rare to be looked into.
    Other,
}

impl Program {
    /// # Safety
    /// The name ends.
    unsafe fn path(&self) -> Option<PathBuf> {
        let (Program::At(name) | Program::Called(name)) = *self else { return None };
        // SAFETY: the caller's promise.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
        let name = Path::new(OsStr::from_bytes(name.to_bytes()));
        if matches!(self, Program::At(_)) || name.as_os_str().as_bytes().contains(&b'/') {
            return Some(name.to_owned());
        }
        let places = std::env::var_os("PATH").unwrap_or("/bin:/usr/bin".into());
        let is_one = |path: &PathBuf| {
            path.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
        };
        std::env::split_paths(&places).map(|place| place.join(name)).find(is_one)
    }
}

/// This process is about to execute a program, with this in its environment: leaves it what nobody else has open.
///
/// # Safety
/// The program's name ends, and the environment is one.
unsafe fn leave(program: Program, environment: *const *const c_char) {
    if !process::attends() || alone::is_on() {
        return;
    }
    let _inside = Inside::enter();
    revoke();
    (0..LEFT_MAX).for_each(files::end_doubts);
    let left: Vec<_> = (0..LEFT_MAX).filter(|fd| files::is_left_by_executing(*fd)).collect();
    if left.is_empty() || !is_single() {
        return;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { program.path() };
    // SAFETY: as above.
    if !path.is_some_and(|path| unsafe { preloads(environment) } && is_dynamic(&path, true)) {
        return;
    }
    REMAINS.store(true, Ordering::Relaxed);
    for fd in left {
        if left_as(fd).is_none() {
            files::controlled(fd, F_SETSIG);
            sign(fd, FIRST_SIGNAL + fd, std::process::id() as c_int);
        }
    }
}

/// Whether this process has but one thread: another one might be making a child.
fn is_single() -> bool {
    // The directory itself, its parent, and the thread.
    std::fs::metadata("/proc/self/task").is_ok_and(|tasks| tasks.nlink() == 3)
}

/// Whether a program that gets this environment gets this library.
///
/// # Safety
/// It is one, or null.
unsafe fn preloads(mut environment: *const *const c_char) -> bool {
    let has_ours = |entry: &[u8]| {
        let list = entry.strip_prefix(b"LD_PRELOAD=").map(String::from_utf8_lossy);
        list.is_some_and(|list| list.contains("libweir_preload.so"))
    };
    // SAFETY: the caller's promise.
    unsafe {
        while !environment.is_null() && !(*environment).is_null() {
            if has_ours(CStr::from_ptr(*environment).to_bytes()) {
                return true;
            }
            environment = environment.add(1);
        }
    }
    false
}

/// Whether it is a program as this one, or a script for one, that libraries are loaded into by the environment.
fn is_dynamic(program: &Path, may_be_script: bool) -> bool {
    const SETS_IDS: u32 = libc::S_ISUID | libc::S_ISGID;
    let Ok(file) = File::open(program) else { return false };
    let mut head = [0; 4096];
    let known = file.metadata().is_ok_and(|found| found.is_file() && found.mode() & SETS_IDS == 0);
    let Ok(length) = file.read_at(&mut head, 0) else { return false };
    let head = &head[..length];
    match head.strip_prefix(b"#!") {
        Some(line) if may_be_script => {
            let mut words = line.split(|byte| b" \t\n".contains(byte)).filter(|it| !it.is_empty());
            words
                .next()
                .is_some_and(|program| is_dynamic(Path::new(OsStr::from_bytes(program)), false))
        }
        _ => known && has_interpreter(head),
    }
}

/// Whether this is the beginning of an ELF file of this machine's kind that names a dynamic linker. From elf(5).
fn has_interpreter(head: &[u8]) -> bool {
    const CLASS_AND_ORDER: &[u8] =
        if cfg!(target_endian = "little") { b"\x7fELF\x02\x01" } else { b"\x7fELF\x02\x02" };
    const MACHINE: u64 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    const PT_INTERP: u64 = 3;
    let number = |at: usize, length: usize| -> Option<u64> {
        let bytes = head.get(at..at.checked_add(length)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let headers = || {
        let (from, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let mut headers =
            (0..count).map(|index| number(from.checked_add(index * size)? as usize, 4));
        Some(headers.any(|kind| kind == Some(PT_INTERP)))
    };
    head.starts_with(CLASS_AND_ORDER) && number(18, 2) == Some(MACHINE) && headers() == Some(true)
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Defines the functions that execute programs: from their first and third argument, which program it is and what its
/// environment will be.
macro_rules! executing {
    ($($name:ident($first:ident, $third:ident) $program:expr, $environment:expr;)*) => {
        /// Looks up what stands behind us.
        pub(crate) fn find() {
            $(look_up(&found::$name, concat!(stringify!($name), "\0"));)*
        }

        #[allow(non_upper_case_globals)]
        mod found {
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        /// What each does first.
        mod first {
            use super::*;
            $(pub(super) unsafe extern "C" fn $name(
                $first: *const c_char,
                _: usize,
                $third: *const *const c_char,
            ) -> *mut c_void {
                buffer::settle();
                // SAFETY: the promises of the caller are those of the function.
                unsafe { leave($program, $environment) };
                look_up(&found::$name, concat!(stringify!($name), "\0"))
            })*
        }

        $(jumping!($name, first::$name);)*
    };
}

executing! {
    execve(path, environment) Program::At(path), environment;
    execv(path, _third) Program::At(path), environ;
    execl(path, _third) Program::At(path), environ;
    execvp(name, _third) Program::Called(name), environ;
    execlp(name, _third) Program::Called(name), environ;
    execvpe(name, environment) Program::Called(name), environment;
    execle(_path, _third) Program::Other, environ;
    fexecve(_fd, _third) Program::Other, environ;
    execveat(_at, _third) Program::Other, environ;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_load_libraries_are_told_from_others() {
        assert!(is_dynamic(Path::new("/proc/self/exe"), true), "this test");
        let place = tempfile::tempdir().expect("directory");
        let is_one = |bytes: &[u8], mode: u32| {
            let path = place.path().join("program");
            std::fs::write(&path, bytes).expect("file");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).expect("mode");
            is_dynamic(&path, true)
        };
        let this = std::fs::read("/proc/self/exe").expect("this test");
        assert!(is_one(&this, 0o755));
        assert!(!is_one(&this, 0o4755) && !is_one(&this, 0o2755), "it would be loaded without us");
        assert!(is_one(b"#! /bin/sh -e\n", 0o755) && is_one(b"#!/bin/sh", 0o755));
        for script in ["#!", "#!\n", "#!/nowhere\n", "echo", ""] {
            assert!(!is_one(script.as_bytes(), 0o755), "{script}");
        }
        // Another machine's, one without a dynamic linker, and ends everywhere.
        let changed = |at: usize, to: u8| {
            let mut other = this.clone();
            other[at] = to;
            is_one(&other, 0o755)
        };
        assert!(!changed(4, 1) && !changed(18, 3) && !changed(56, 0) && !changed(32, 255));
        for length in 0..64 {
            assert!(!is_one(&this[..length], 0o755), "{length}");
        }
        for at in 0..64 {
            changed(at, 255);
        }
    }
}
