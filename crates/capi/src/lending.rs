//! Open files that are lent to other processes as bytes, and counters that all who have them share.

use crate::engine::lock;
use crate::file::{OpenFile, WeirFile, open_file};
use crate::pool::{WeirPool, engine};
use crate::{array, call, call_int, invalid, wanted};
use std::ffi::{c_int, c_void};
use std::future::Future;
use std::sync::Arc;
use weir_client::Net;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{File, Loan};
use weir_core::wire::meta::OpenMode;

/// What a loan is as bytes: of which pool, under which path it was opened, and the file.
type Lent = ([u8; 16], String, Loan);

impl OpenFile {
    /// A handle of our own: that of a file that was opened here; one that is opened by its inode
    /// for a file that was lent.
    pub(crate) async fn own(&self) -> Result<File<Net>> {
        if !self.borrowed {
            return Ok(self.file.clone());
        }
        if let Some(own) = &*lock(&self.own) {
            return Ok(own.clone());
        }
        let mode = OpenMode { truncate: false, ..self.file.mode() };
        let fs = self.engine.pool()?.fs();
        let (opened, _) = fs.open(&self.engine.who, self.file.ino(), mode).await?;
        let first = {
            let mut own = lock(&self.own);
            let first = own.clone();
            own.get_or_insert(opened.clone());
            first
        };
        let Some(first) = first else { return Ok(opened) };
        // Another thread was quicker.
        opened.close().await?;
        Ok(first)
    }

    /// Does something that needs leave of the targets; once more if the leave that was lent has
    /// expired, with a fresh one.
    pub(crate) async fn with_leave<T, F: Future<Output = Result<T>>>(
        &self,
        work: impl Fn() -> F,
    ) -> Result<T> {
        match work().await {
            Err(error) if error.code == Code::NoCapability && self.borrowed => {
                let own = self.own().await?;
                self.file.extend(own.lend().await?);
                work().await
            }
            result => result,
        }
    }

    pub(crate) async fn truncate(&self, size: u64) -> Result<()> {
        let own = self.own().await?;
        own.truncate(size).await?;
        if self.borrowed {
            self.file.extend(own.lend().await?);
        }
        Ok(())
    }

    /// Closes.
    pub(crate) async fn end(&self) -> Result<()> {
        self.give_back_all().await?;
        let own = lock(&self.own).take();
        if let Some(own) = own {
            own.close().await?;
        }
        self.file.close().await
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_lend(file: *mut WeirFile, buffer: *mut c_void, size: usize) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        let loan = file.run(async { file.own().await?.lend().await })?;
        let lent: Lent = (file.engine.pool()?.map().pool, file.path.clone(), loan);
        let bytes = weir_core::wire::encode(&lent);
        if size > 0 {
            if bytes.len() > size {
                let cause = format!("{} bytes do not fit into {size}", bytes.len());
                return Err(Error::because(Code::Range, cause).on("lend", &file.path));
            }
            if buffer.is_null() {
                return Err(invalid("buffer is NULL"));
            }
            // SAFETY: `size` bytes are valid for writes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) };
        }
        Ok(bytes.len())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_borrow(
    pool: *mut WeirPool,
    loan: *const c_void,
    size: usize,
    out: *mut *mut WeirFile,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let out = unsafe { wanted(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: as above.
        let (engine, bytes) = unsafe { (engine(pool)?, array(loan.cast::<u8>(), size, "loan")?) };
        let (of, path, loan): Lent = weir_core::wire::decode(bytes)
            .map_err(|_| invalid("these bytes are no loan").on("borrow", "file"))?;
        let pool = engine.pool()?;
        if of != pool.map().pool {
            return Err(Error::because(Code::CrossPool, "it is of another pool").on("borrow", path));
        }
        let open = OpenFile::new(engine, pool.fs().borrow(loan), path, false, true);
        *out = Box::into_raw(Box::new(WeirFile { open: Arc::new(open) }));
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_counter_add(
    file: *mut WeirFile,
    number: u32,
    add: u64,
    before: *mut u64,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let file = unsafe { open_file(file) }?;
        let found = file.run(file.file.count(number, add))?;
        // SAFETY: NULL, or valid for writes.
        if let Some(before) = unsafe { before.as_mut() } {
            *before = found;
        }
        Ok(0)
    })
}
