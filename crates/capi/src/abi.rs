//! The structures of `include/weir.h`, field by field.

use crate::invalid;
use std::ffi::c_char;
use weir_core::error::{Code, Error, Result};
use weir_core::layout::{Extent, Layout};
use weir_core::types::{Attributes, Entry};
use weir_core::wire::meta::LayoutWish;

/// A structure that begins with its size, so that it can grow.
///
/// # Safety
/// All bytes zero must be a valid value, as must any other bytes; the first field is a `usize` with
/// the structure's size.
pub unsafe trait Growing: Copy {
    /// Size of its first version: bytes.
    const FIRST_SIZE: usize;
}

/// Reads a structure of the caller's version: what it does not have is zero, what this library does
/// not know must be.
///
/// # Safety
/// `pointer` is valid for reads of a `usize`, and of as many bytes as that says.
pub(crate) unsafe fn read_growing<T: Growing>(pointer: *const T, what: &str) -> Result<T> {
    // SAFETY: the caller's promise.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if !(T::FIRST_SIZE..=4096).contains(&size) {
        return Err(invalid(format!("struct_size of {what} is {size}")));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size) };
    if bytes.iter().skip(size_of::<T>()).any(|&byte| byte != 0) {
        let cause = format!("{what} asks for what version {} has not", env!("CARGO_PKG_VERSION"));
        return Err(Error::because(Code::TooMany, cause));
    }
    // SAFETY: zeros are a valid T.
    let mut value: T = unsafe { std::mem::zeroed() };
    let known = size.min(size_of::<T>());
    // SAFETY: both are valid for so many bytes, and any bytes are a valid T.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// Writes a structure in the caller's version: what it does not have is left out, what this library
/// does not know becomes zero. The size stays the caller's.
///
/// # Safety
/// As [`read_growing`], and for writes.
pub(crate) unsafe fn write_growing<T: Growing>(
    pointer: *mut T,
    value: &T,
    what: &str,
) -> Result<()> {
    if pointer.is_null() {
        return Err(invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if !(T::FIRST_SIZE..=4096).contains(&size) {
        return Err(invalid(format!("struct_size of {what} is {size}")));
    }
    let head = size_of::<usize>();
    let known = size.min(size_of::<T>());
    let to = pointer.cast::<u8>();
    let from = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: both are valid for `known` bytes, the destination for `size` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(head), to.add(head), known - head);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// `weir_connect_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectOptions {
    pub struct_size: usize,
    pub connections: u32,
    pub silence_ms: u32,
    pub transfer_size: u64,
}

// SAFETY: integers, the size first.
unsafe impl Growing for ConnectOptions {
    const FIRST_SIZE: usize = 24;
}

/// `weir_layout`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WeirLayout {
    pub struct_size: usize,
    pub stripe_size: u64,
    pub stripe_count: u32,
    pub reserved: u32,
}

// SAFETY: integers, the size first.
unsafe impl Growing for WeirLayout {
    const FIRST_SIZE: usize = 24;
}

const STRIPE_ALL: u32 = u32::MAX;

impl WeirLayout {
    pub(crate) fn to_wish(self) -> Result<LayoutWish> {
        if self.reserved != 0 {
            return Err(invalid("reserved field of layout is not 0"));
        }
        let stripe_count = match self.stripe_count {
            0 => None,
            STRIPE_ALL => Some(0),
            count => Some(count),
        };
        Ok(LayoutWish {
            stripe_size: Some(self.stripe_size).filter(|&size| size != 0),
            stripe_count,
        })
    }

    pub(crate) fn of_wish(wish: LayoutWish) -> WeirLayout {
        WeirLayout {
            stripe_size: wish.stripe_size.unwrap_or(0),
            stripe_count: match wish.stripe_count {
                None => 0,
                Some(0) => STRIPE_ALL,
                Some(count) => count,
            },
            ..WeirLayout::default()
        }
    }

    pub(crate) fn of_file(layout: &Layout) -> WeirLayout {
        WeirLayout {
            stripe_size: layout.stripe_size,
            stripe_count: layout.stripe_count() as u32,
            ..WeirLayout::default()
        }
    }
}

/// `weir_extent`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WeirExtent {
    pub offset: u64,
    pub length: u64,
}

impl From<&WeirExtent> for Extent {
    fn from(extent: &WeirExtent) -> Extent {
        Extent { offset: extent.offset, length: extent.length }
    }
}

/// `struct weir_stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WeirStat {
    pub ino: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub allocated: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub reserved: [u64; 4],
}

impl From<&Attributes> for WeirStat {
    fn from(attributes: &Attributes) -> WeirStat {
        WeirStat {
            ino: attributes.ino.0,
            mode: attributes.kind.mode_bits() | attributes.mode,
            nlink: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.rdev,
            size: attributes.size,
            allocated: attributes.allocated,
            atime_ns: attributes.atime.0,
            mtime_ns: attributes.mtime.0,
            ctime_ns: attributes.ctime.0,
            reserved: [0; 4],
        }
    }
}

/// `struct weir_dirent`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WeirDirent {
    pub ino: u64,
    pub mode: u32,
    pub name_length: u32,
    pub name: [c_char; 256],
}

impl From<&Entry> for WeirDirent {
    fn from(entry: &Entry) -> WeirDirent {
        let mut name = [0; 256];
        // The last byte stays a NUL, whatever a server sends.
        let length = entry.name.len().min(name.len() - 1);
        for (to, &from) in name.iter_mut().zip(&entry.name[..length]) {
            *to = from as c_char;
        }
        WeirDirent {
            ino: entry.ino.0,
            mode: entry.kind.mode_bits(),
            name_length: length as u32,
            name,
        }
    }
}

/// `struct weir_statfs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WeirStatfs {
    pub capacity: u64,
    pub used: u64,
    pub inodes: u64,
    pub metadata_capacity: u64,
    pub metadata_used: u64,
    pub servers: u32,
    pub targets: u32,
    pub reserved: [u64; 4],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Newer {
        known: ConnectOptions,
        unknown: u64,
    }

    #[test]
    fn structures_of_other_versions_are_understood_or_refused() {
        let known = ConnectOptions { struct_size: 32, connections: 7, ..Default::default() };
        let mut newer = Newer { known, unknown: 0 };
        let pointer = (&raw const newer).cast::<ConnectOptions>();
        // SAFETY: 32 bytes are there.
        assert_eq!(unsafe { read_growing(pointer, "options") }.unwrap().connections, 7);
        newer.unknown = 1;
        let pointer = (&raw const newer).cast::<ConnectOptions>();
        // SAFETY: as above.
        let error = unsafe { read_growing(pointer, "options") }.unwrap_err();
        assert_eq!(error.code, Code::TooMany);
        for size in [0, 23, 4097] {
            newer.known.struct_size = size;
            let pointer = (&raw const newer).cast::<ConnectOptions>();
            // SAFETY: such sizes are refused before anything is read.
            let error = unsafe { read_growing(pointer, "options") }.unwrap_err();
            assert_eq!(error.code, Code::Invalid);
        }
    }

    #[test]
    fn results_fill_the_callers_version_of_a_structure() {
        let mut newer = Newer {
            known: ConnectOptions { struct_size: 32, ..Default::default() },
            unknown: u64::MAX,
        };
        let value = ConnectOptions { struct_size: 24, transfer_size: 9, ..Default::default() };
        let pointer = (&raw mut newer).cast::<ConnectOptions>();
        // SAFETY: 32 bytes are there.
        unsafe { write_growing(pointer, &value, "options") }.unwrap();
        assert_eq!(newer.known.struct_size, 32);
        assert_eq!(newer.known.transfer_size, 9);
        assert_eq!(newer.unknown, 0);
    }
}
