//! The memory that two processes share: two rings of bytes, one each way.
//!
//! Whatever lies in it the other end may change at any moment, in any way. So each end keeps how far it
//! has come itself, and believes of the other's count only what can be true.

use super::copying::Copying;
use super::counts::{Counts, RING_BYTES};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use weir_core::copying::{copy, copy_past_caches, settle};
use weir_core::slice::Slice;

/// Counts of a ring, before its bytes.
const COUNTS_BYTES: usize = 4096;
const WHOLE_BYTES: usize = 2 * (COUNTS_BYTES + RING_BYTES);
const _: () = assert!(size_of::<Counts>() <= COUNTS_BYTES);

/// The two rings, mapped.
#[derive(Debug)]
pub(crate) struct Memory {
    start: *mut u8,
}

// SAFETY: what it names is shared memory, used by atomic counts, and by copies of bytes that only one end
// may make at a time.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody has a reference into it any more.
        unsafe { libc::munmap(self.start.cast(), WHOLE_BYTES) };
    }
}

fn not_so(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Memory {
    /// Fresh memory, and the descriptor by which another process maps it.
    pub(crate) fn new() -> io::Result<(Memory, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a name that ends.
        let descriptor = unsafe { libc::memfd_create(c"weirpool".as_ptr(), flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: no pointers.
        let sized = unsafe {
            libc::ftruncate(file.as_raw_fd(), WHOLE_BYTES as libc::off_t) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) == 0
        };
        if !sized {
            return Err(io::Error::last_os_error());
        }
        let memory = Memory::map(&file)?;
        for at in [0, 1] {
            // Nobody looks yet.
            memory.ring(at).counts().reader_sleeps();
        }
        Ok((memory, file))
    }

    /// Maps what another process has made, if it can be used without fear.
    pub(crate) fn of(file: &OwnedFd) -> io::Result<Memory> {
        // SAFETY: no pointers; it tells what the file is sealed against, or fails for any other kind.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            // Whoever can shorten it can kill us by that.
            return Err(not_so("memory that could be shortened"));
        }
        // SAFETY: all zeros is a valid stat.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: room for it.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if stat.st_size != WHOLE_BYTES as libc::off_t {
            return Err(not_so("memory of another size"));
        }
        Memory::map(file)
    }

    fn map(file: &OwnedFd) -> io::Result<Memory> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let file = file.as_raw_fd();
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), WHOLE_BYTES, access, libc::MAP_SHARED, file, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Memory { start: start.cast() })
    }

    /// One of the two: the first is written by who connected.
    pub(crate) fn ring(&self, at: usize) -> Ring<'_> {
        debug_assert!(at < 2);
        Ring { memory: self, start: self.start.wrapping_add(at * (COUNTS_BYTES + RING_BYTES)) }
    }
}

/// Its size stays, for ever.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// One direction.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    memory: &'a Memory,
    start: *mut u8,
}

impl<'a> Ring<'a> {
    /// How far both ends are, and who sleeps.
    pub(crate) fn counts(&self) -> &'a Counts {
        let _mapped = self.memory;
        // SAFETY: the mapping is as long as the memory lives, zeros at first, and atomics alone are used in it.
        unsafe { &*self.start.cast::<Counts>() }
    }

    /// A place of the ring's bytes, and how many there are up to its end.
    fn at(&self, count: u64) -> (*mut u8, usize) {
        let place = (count % RING_BYTES as u64) as usize;
        (self.start.wrapping_add(COUNTS_BYTES + place), RING_BYTES - place)
    }

    /// For who has written `written` bytes: how many more there is room for.
    pub(crate) fn room(&self, written: u64) -> io::Result<usize> {
        self.counts().room(written).ok_or_else(|| not_so("more was taken than was written"))
    }

    /// For who has taken `taken` bytes: how many more there are.
    pub(crate) fn filled(&self, taken: u64) -> io::Result<usize> {
        let filled = self.counts().filled(taken);
        filled.ok_or_else(|| not_so("more was written than there is room for"))
    }

    /// Copies bytes in, behind the `written` ones.
    ///
    /// # Safety
    /// There is room for them, and their memory can be read.
    pub(crate) unsafe fn put(&self, written: u64, bytes: Slice, copying: &mut Copying) {
        let (to, length) = self.at(written);
        let first = bytes.length.min(length);
        // SAFETY: within the ring, where nobody else writes; the caller promises the rest.
        unsafe {
            copying.copy(to, bytes.pointer, first);
            if first < bytes.length {
                let (to, _) = self.at(0);
                copying.copy(to, bytes.pointer.add(first), bytes.length - first);
            }
        }
    }

    /// Copies bytes out, behind the `taken` ones; into memory that is cold past the caches.
    ///
    /// # Safety
    /// There are so many, and their place can be written.
    pub(crate) unsafe fn take(&self, taken: u64, place: Slice, cold: bool) {
        let copy = if cold { copy_past_caches } else { copy };
        let (from, length) = self.at(taken);
        let first = place.length.min(length);
        // SAFETY: within the ring; the caller promises the rest. What the other end writes there meanwhile,
        // against the rules, are bytes all the same.
        unsafe {
            copy(from, place.pointer, first);
            if first < place.length {
                let (from, _) = self.at(0);
                copy(from, place.pointer.add(first), place.length - first);
            }
        }
        if cold {
            settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn file(bytes: usize, seals: libc::c_int) -> OwnedFd {
        // SAFETY: a name that ends; the kernel gives a descriptor that is nobody else's.
        let file = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), flags))
        };
        // SAFETY: no pointers.
        unsafe {
            assert_eq!(libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t), 0);
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
        }
        file
    }

    #[test]
    fn memory_that_could_shrink_or_is_another_is_refused() {
        assert!(Memory::of(&file(WHOLE_BYTES, SEALS)).is_ok());
        assert!(Memory::of(&file(WHOLE_BYTES, libc::F_SEAL_GROW)).is_err(), "not sealed");
        assert!(Memory::of(&file(WHOLE_BYTES - 4096, SEALS)).is_err(), "too small");
        assert!(Memory::of(&file(0, SEALS)).is_err(), "none");
        let other = std::fs::File::open("/proc/self/exe").expect("a file");
        assert!(Memory::of(&other.into()).is_err(), "not memory");
    }

    /// Whatever the other end writes into the counts, nothing is read or written beyond the ring.
    #[test]
    fn counts_that_cannot_be_are_errors() {
        let (memory, _file) = Memory::new().expect("memory");
        let ring = memory.ring(0);
        assert_eq!(ring.room(0).unwrap(), RING_BYTES);
        let most = RING_BYTES as u64;
        for (written, good) in
            [(0, true), (1, true), (most, true), (most + 1, false), (u64::MAX, false)]
        {
            ring.counts().written.store(written, Ordering::Relaxed);
            assert_eq!(ring.filled(0).is_ok(), good, "{written} written");
        }
        for (taken, good) in [(0, true), (100, true), (101, false), (u64::MAX - most, false)] {
            ring.counts().taken.store(taken, Ordering::Relaxed);
            assert_eq!(ring.room(100).is_ok(), good, "{taken} taken");
        }
        ring.counts().taken.store(0, Ordering::Relaxed);
        assert_eq!(ring.room(most).unwrap(), 0);
        assert!(ring.room(most + 1).is_err());
    }

    #[test]
    fn bytes_go_round_the_end() {
        let (memory, file) = Memory::new().expect("memory");
        let other = Memory::of(&file).expect("mapped twice");
        let (into, from) = (memory.ring(1), other.ring(1));
        let mut copying = Copying::new();
        let mut at = RING_BYTES as u64 - 5;
        for length in [10, 1, RING_BYTES, 4096, RING_BYTES - 1] {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
            let mut back = vec![0; length];
            for cold in [false, true] {
                // SAFETY: there is room, and nobody else is at it.
                unsafe {
                    into.put(at, Slice::to_read(&bytes), &mut copying);
                    from.take(at, Slice::to_write(&mut back), cold);
                }
                assert!(bytes == back, "{length} bytes at {at}");
                back.fill(0);
                at += length as u64;
            }
        }
    }
}
