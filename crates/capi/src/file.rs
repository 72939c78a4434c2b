//! Open files, and I/O that waits for its end.

use crate::abi::{WeirExtent, WeirLayout, WeirStat, read_growing, write_growing};
use crate::engine::Engine;
use crate::pool::{WeirPool, engine};
use crate::{array, call, call_int, given, invalid, path, shown, wanted};
use std::ffi::{c_char, c_int, c_void};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use weir_client::Net;
use weir_client::reach;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::File;
use weir_core::layout::Extent;
use weir_core::slice::Slice;
use weir_core::types::Ino;
use weir_core::wire::meta::{LayoutWish, OpenMode};

/// `weir_file`.
pub(crate) struct WeirFile {
    pub(crate) open: Arc<OpenFile>,
}

/// What a file's handle and the operations on it share.
pub(crate) struct OpenFile {
    pub(crate) engine: Arc<Engine>,
    pub(crate) file: File<Net>,
    /// A handle of our own for what the one that was lent to us does not do, once it was needed.
    pub(crate) own: Mutex<Option<File<Net>>>,
    pub(crate) borrowed: bool,
    pub(crate) path: String,
    append: bool,
    /// Whose locks ours are, among those of this process.
    pub(crate) owner: u64,
    /// Whether it may have some.
    pub(crate) locked: AtomicBool,
    /// Operations under way.
    pub(crate) busy: AtomicUsize,
}

/// File extents, and the memory that they are read into or written from.
pub(crate) struct Transfer {
    extents: Vec<Extent>,
    memory: Vec<Slice>,
    length: usize,
    list: bool,
}

impl Transfer {
    /// Makes sure that the memory is there, to be used as this advice has it; `what` says for what.
    fn touch(&self, advice: libc::c_int, what: &str) -> Result<()> {
        let touched = reach::touch(self.memory.iter().copied(), advice);
        touched.map_err(|_| weir_client::bad_memory(what))
    }

    /// One extent.
    pub(crate) fn one(buffer: *const c_void, length: usize, offset: u64) -> Result<Transfer> {
        if length > isize::MAX as usize || (buffer.is_null() && length > 0) {
            return Err(invalid("buffer is NULL or too long"));
        }
        let extents = vec![Extent { offset, length: length as u64 }];
        let memory = vec![Slice { pointer: buffer.cast::<u8>().cast_mut(), length }];
        Ok(Transfer { extents, memory, length, list: false })
    }

    /// A list.
    ///
    /// # Safety
    /// The arrays are valid for reads of so many elements.
    pub(crate) unsafe fn list(
        extents: *const WeirExtent,
        extent_count: usize,
        iov: *const libc::iovec,
        iov_count: usize,
    ) -> Result<Transfer> {
        // SAFETY: the caller's promise.
        let (extents, iov) =
            unsafe { (array(extents, extent_count, "extents")?, array(iov, iov_count, "iov")?) };
        let mut length = 0usize;
        let mut memory = Vec::with_capacity(iov.len());
        for piece in iov {
            if piece.iov_base.is_null() && piece.iov_len > 0 {
                return Err(invalid("memory in iov is NULL"));
            }
            length = length
                .checked_add(piece.iov_len)
                .filter(|&length| length <= isize::MAX as usize)
                .ok_or_else(|| invalid("iov is too long"))?;
            memory.push(Slice { pointer: piece.iov_base.cast(), length: piece.iov_len });
        }
        let extents = extents.iter().map(Extent::from).collect();
        Ok(Transfer { extents, memory, length, list: true })
    }
}

impl OpenFile {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        file: File<Net>,
        path: String,
        append: bool,
        borrowed: bool,
    ) -> OpenFile {
        let (own, busy, owner) = (Mutex::default(), AtomicUsize::new(0), engine.waits.number());
        let locked = AtomicBool::new(false);
        OpenFile { engine: engine.clone(), file, own, borrowed, path, append, owner, locked, busy }
    }

    /// Names the file in an error by the path that it was opened by.
    pub(crate) fn told(&self, error: Error) -> Error {
        if error.operation.is_empty() {
            error
        } else {
            Error { object: self.path.clone(), ..error }
        }
    }

    /// Reads; gives the number of bytes before the file's end.
    ///
    /// # Safety
    /// The transfer's memory stays valid for writes, and is nobody else's, until the future has
    /// ended or was dropped.
    pub(crate) async unsafe fn read(&self, transfer: &Transfer) -> Result<usize> {
        transfer
            .touch(libc::MADV_POPULATE_WRITE, "received into")
            .map_err(|error| error.on("read", &self.path))?;
        // SAFETY: the caller's promise.
        let read = || unsafe { self.file.read_slices(&transfer.extents, &transfer.memory) };
        self.with_leave(read).await.map_err(|error| self.told(error))
    }

    /// Writes; gives the number of bytes.
    ///
    /// # Safety
    /// The transfer's memory stays valid for reads until the future has ended or was dropped.
    pub(crate) async unsafe fn write(&self, transfer: &Transfer) -> Result<usize> {
        transfer
            .touch(libc::MADV_POPULATE_READ, "sent from")
            .map_err(|error| error.on("write", &self.path))?;
        if self.append {
            if transfer.list {
                let cause = "a list cannot be written to a file opened with O_APPEND";
                return Err(invalid(cause).on("write", &self.path));
            }
            // SAFETY: the caller's promise.
            return unsafe { self.append(transfer.memory[0]) }.await.map(|_| transfer.length);
        }
        // SAFETY: the caller's promise.
        let write = || unsafe { self.file.write_slices(&transfer.extents, &transfer.memory) };
        self.with_leave(write).await.map_err(|error| self.told(error))?;
        Ok(transfer.length)
    }

    /// Appends; gives the offset.
    ///
    /// # Safety
    /// The memory stays valid for reads until the future has ended or was dropped.
    async unsafe fn append(&self, memory: Slice) -> Result<u64> {
        let bytes = match memory.length {
            0 => &[][..],
            // SAFETY: the caller's promise; not NULL (see `Transfer::one`).
            length => unsafe { std::slice::from_raw_parts(memory.pointer, length) },
        };
        if !self.file.mode().write {
            let cause = "file is not open for write";
            return Err(Error::because(Code::BadHandle, cause).on("append", &self.path));
        }
        let append = async { self.own().await?.append(bytes).await };
        append.await.map_err(|error| self.told(error))
    }

    pub(crate) fn ino(&self) -> Ino {
        self.file.ino()
    }

    pub(crate) async fn sync(&self) -> Result<usize> {
        self.with_leave(|| self.file.sync()).await.map(|()| 0).map_err(|error| self.told(error))
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.engine.run(future).map_err(|error| self.told(error))
    }
}

/// What a file's handle stands for.
///
/// # Safety
/// `file` is NULL or a handle that has not been ended.
pub(crate) unsafe fn open_file<'a>(file: *const WeirFile) -> Result<&'a Arc<OpenFile>> {
    // SAFETY: the caller's promise.
    let open = unsafe { &given(file, "file")?.open };
    open.engine.pool()?;
    Ok(open)
}

/// What the flags of an opening ask for.
struct Opening {
    mode: OpenMode,
    create: bool,
    exclusive: bool,
    append: bool,
}

impl Opening {
    fn parse(flags: c_int) -> Result<Opening> {
        let known = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_APPEND;
        let idle = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_DIRECT;
        let unknown = flags & !(known | idle);
        if unknown != 0 {
            return Err(invalid(format!("flags {unknown:#o} are not known here")));
        }
        let (read, write) = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            libc::O_RDWR => (true, true),
            _ => return Err(invalid("neither O_RDONLY, O_WRONLY nor O_RDWR")),
        };
        let truncate = flags & libc::O_TRUNC != 0;
        if truncate && !write {
            return Err(invalid("O_TRUNC needs O_WRONLY or O_RDWR"));
        }
        Ok(Opening {
            mode: OpenMode { read, write, truncate },
            create: flags & libc::O_CREAT != 0,
            exclusive: flags & libc::O_EXCL != 0,
            append: flags & libc::O_APPEND != 0,
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_open(
    pool: *mut WeirPool,
    name: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
    layout: *const WeirLayout,
    out: *mut *mut WeirFile,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let out = unsafe { wanted(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: as above.
        let (engine, place) = unsafe { (engine(pool)?, path(name, "path")?) };
        let path = shown(&place);
        let open = || {
            let opening = Opening::parse(flags)?;
            let wish = if layout.is_null() {
                LayoutWish::default()
            } else {
                // SAFETY: as above.
                unsafe { read_growing(layout, "layout") }?.to_wish()?
            };
            let fs = engine.pool()?.fs();
            let who = &engine.who;
            engine.run(async {
                if opening.create {
                    let mode = mode & 0o7777;
                    let (file, _, _) =
                        fs.create(who, place, mode, opening.exclusive, opening.mode, wish).await?;
                    return Ok((file, opening.append));
                }
                let (file, _) = fs.open_at(who, place, opening.mode).await?;
                Ok((file, opening.append))
            })
        };
        let (file, append) = open()
            .map_err(|error| Error { operation: String::new(), ..error }.on("open", &path))?;
        let open = Arc::new(OpenFile::new(engine, file, path, append, false));
        *out = Box::into_raw(Box::new(WeirFile { open }));
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_close(file: *mut WeirFile) -> c_int {
    call_int(|| {
        if file.is_null() {
            return Ok(0);
        }
        // SAFETY: the arguments are as weir.h demands.
        let open = unsafe { open_file(file) }?;
        let busy = open.busy.load(Ordering::Acquire);
        if busy > 0 {
            let cause = format!("{busy} operations are under way");
            return Err(Error::because(Code::InUse, cause)
                .on("close", &open.path)
                .so("the file stays open"));
        }
        // SAFETY: made by `weir_open`, and not used again.
        let file = unsafe { Box::from_raw(file) };
        file.open.run(file.open.end()).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_pread(
    file: *mut WeirFile,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        let transfer = Transfer::one(buffer, length, offset)?;
        // SAFETY: the buffer is this call's until it returns.
        file.run(unsafe { file.read(&transfer) })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_pwrite(
    file: *mut WeirFile,
    buffer: *const c_void,
    length: usize,
    offset: u64,
) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        let transfer = Transfer::one(buffer, length, offset)?;
        // SAFETY: the buffer is this call's until it returns.
        file.run(unsafe { file.write(&transfer) })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_append(
    file: *mut WeirFile,
    buffer: *const c_void,
    length: usize,
    offset: *mut u64,
) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        let transfer = Transfer::one(buffer, length, 0)?;
        // SAFETY: the buffer is this call's until it returns.
        let at = file.run(unsafe { file.append(transfer.memory[0]) })?;
        // SAFETY: NULL, or valid for writes.
        if let Some(offset) = unsafe { offset.as_mut() } {
            *offset = at;
        }
        Ok(length)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_readv_list(
    file: *mut WeirFile,
    extents: *const WeirExtent,
    extent_count: usize,
    iov: *const libc::iovec,
    iov_count: usize,
) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        // SAFETY: as above.
        let transfer = unsafe { Transfer::list(extents, extent_count, iov, iov_count) }?;
        // SAFETY: the memory is this call's until it returns.
        file.run(unsafe { file.read(&transfer) })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_writev_list(
    file: *mut WeirFile,
    extents: *const WeirExtent,
    extent_count: usize,
    iov: *const libc::iovec,
    iov_count: usize,
) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        // SAFETY: as above.
        let transfer = unsafe { Transfer::list(extents, extent_count, iov, iov_count) }?;
        // SAFETY: the memory is this call's until it returns.
        file.run(unsafe { file.write(&transfer) })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_fsync(file: *mut WeirFile) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        file.run(file.sync())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_ftruncate(file: *mut WeirFile, size: u64) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        file.run(file.truncate(size)).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_fstat(file: *mut WeirFile, out: *mut WeirStat) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let (file, out) = unsafe { (open_file(file)?, wanted(out, "out")?) };
        let engine = &file.engine;
        let fs = engine.pool()?.fs();
        let attributes = file.run(fs.attributes(&engine.who, file.file.ino()))?;
        *out = WeirStat::from(&attributes);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_flayout(file: *mut WeirFile, out: *mut WeirLayout) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        // SAFETY: as above.
        unsafe { write_growing(out, &WeirLayout::of_file(file.file.layout()), "out") }?;
        Ok(0)
    })
}
