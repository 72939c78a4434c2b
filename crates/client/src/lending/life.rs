//! A sign of life in shared memory: it is there as long as a thread is, and the kernel takes it away
//! when that thread dies, whatever it dies of, before it closes the process's files.
//!
//! It is what C libraries make robust locks of: the thread names a word that holds its number, and of
//! threads that die the kernel marks the words that still do (`set_robust_list(2)`, `FUTEX_OWNER_DIED`).

use libc::{c_long, c_void};
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

/// Lies in memory that processes share, zeroed at first: nobody has ever lived.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Life(AtomicU32);

impl Life {
    pub(super) fn is_there(&self) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word != 0 && word & libc::FUTEX_OWNER_DIED == 0
    }

    pub(super) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// The kernel's `struct robust_list`.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    next: *const Entry,
}

/// The kernel's `struct robust_list_head`, and the only entry that there is.
#[derive(Debug)]
#[repr(C)]
struct Head {
    list: Entry,
    /// From an entry to its word: bytes.
    offset: c_long,
    pending: *const Entry,
    only: Entry,
}

/// Bytes of it that the kernel knows.
const HEAD_BYTES: usize = 3 * size_of::<usize>();

/// This thread lives, until this is dropped. The locks that the C library would have had the kernel
/// mark are not marked meanwhile: the thread is to have none.
#[derive(Debug)]
pub(super) struct Living<L: Deref<Target = Life>> {
    life: L,
    before: *const c_void,
    /// Whose it is: not to be sent to another thread.
    _thread: PhantomData<*const ()>,
}

impl<L: Deref<Target = Life>> Living<L> {
    /// What `life` leads to must stay where it is as long as `life` does, and be alive for nobody else.
    pub(super) fn begin(life: L) -> io::Result<Living<L>> {
        let (mut before, mut length) = (std::ptr::null(), 0usize);
        // SAFETY: both are there to be written.
        let got = unsafe {
            libc::syscall(libc::SYS_get_robust_list, 0, &raw mut before, &raw mut length)
        };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        let nothing = std::ptr::null();
        let entry = || Entry { next: nothing };
        // Never freed: whatever goes wrong at the end, the kernel finds it.
        let head =
            Box::leak(Box::new(Head { list: entry(), offset: 0, pending: nothing, only: entry() }));
        head.list.next = &raw const head.only;
        head.only.next = &raw const head.list;
        let word: *const Life = &raw const *life;
        head.offset = (word.addr() as c_long).wrapping_sub((&raw const head.only).addr() as c_long);
        register(head)?;
        // SAFETY: has no conditions.
        let thread = unsafe { libc::gettid() };
        life.0.store(thread as u32, Ordering::Release);
        Ok(Living { life, before, _thread: PhantomData })
    }
}

fn register<T>(head: *const T) -> io::Result<()> {
    // SAFETY: the kernel reads there when the thread dies: ours are never freed, and what was registered
    // before lives as long as the thread.
    match unsafe { libc::syscall(libc::SYS_set_robust_list, head, HEAD_BYTES) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl<L: Deref<Target = Life>> Drop for Living<L> {
    fn drop(&mut self) {
        self.life.end();
        // The kernel has just taken one; without it the C library's robust locks do without the kernel.
        let _ = register(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    fn until(what: &str, mut so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !so() {
            assert!(begun.elapsed() < Duration::from_secs(10), "never {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn it_ends_with_the_guard_and_with_the_thread() {
        static ORDERLY: Life = Life(AtomicU32::new(0));
        static SUDDEN: Life = Life(AtomicU32::new(0));
        assert!(!ORDERLY.is_there());
        let living = Living::begin(&ORDERLY).expect("begun");
        assert!(ORDERLY.is_there());
        drop(living);
        assert!(!ORDERLY.is_there());
        let (go, went) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            std::mem::forget(Living::begin(&SUDDEN).expect("begun"));
            let _ = went.recv();
        });
        until("alive", || SUDDEN.is_there());
        drop(go);
        thread.join().expect("ended");
        assert!(!SUDDEN.is_there(), "the thread has died");
    }

    #[test]
    fn it_ends_with_a_process_that_is_killed() {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: asks for fresh memory; zeros are a life that has not begun.
        let shared: &'static Life = unsafe {
            let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            &*page.cast()
        };
        // SAFETY: the child calls nothing that another thread could have left locked, but for the
        // allocator, which glibc makes usable there.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let _living = Living::begin(shared);
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        until("alive", || shared.is_there());
        // SAFETY: our own child, which is waited for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(!shared.is_there(), "the process was killed");
    }
}
