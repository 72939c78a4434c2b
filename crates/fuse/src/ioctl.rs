//! Lends open files to the programs that have them open (see [`weir_client::lending`]).

use crate::reply::Errno;
use crate::shared::{Open, Shared};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use weir_client::lending::{Board, Lent, Watch};

/// What a mount needs to lend its files.
pub(crate) struct Lender {
    /// The pool's directory, as text.
    pool: String,
    /// The board, and its place as text.
    pub(crate) board: Arc<Board>,
    place: String,
    /// Files that the board is marked with.
    marked: Mutex<HashSet<u64>>,
}

impl Lender {
    /// None where a board cannot be had: then nothing is lent, and all goes through the kernel.
    pub(crate) fn new(pool: &Path) -> Option<Lender> {
        let made = Board::make(pool);
        if let Err(error) = &made {
            tracing::warn!(%error, "no board: programs read and write through the kernel");
        }
        let board = Arc::new(made.ok()?);
        let place = board.path().to_str()?.to_owned();
        Some(Lender { pool: pool.to_str()?.to_owned(), board, place, marked: Mutex::default() })
    }

    fn marked(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.marked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel fills its pages of this file, for a mapping.
    pub(crate) fn mapped(&self, ino: u64) {
        if self.marked().insert(ino) {
            self.board.mark(ino);
        }
    }

    /// A handle was closed; `open` says whether the file has others. A mapping holds one.
    pub(crate) fn closed(&self, ino: u64, open: impl FnOnce() -> bool) {
        let mut marked = self.marked();
        if marked.contains(&ino) && !open() {
            marked.remove(&ino);
            self.board.unmark(ino);
        }
    }
}

impl Shared {
    /// An answer to [`weir_client::lending::LEND`].
    pub(crate) fn lend(&self, handle: u64) -> Result<Vec<u8>, Errno> {
        // Where the kernel caches it is faster than anyone beside it, and knows best.
        let lender = self.lender.as_ref().filter(|_| !self.caching).ok_or(Errno::ENOTTY)?;
        let open = self.files.find(handle).ok_or(Errno::EBADF)?;
        // The first write has an end of privileges as its consequence, which is ours to see to.
        if open.privileged.load(Ordering::Relaxed) && open.file.mode().write {
            return Err(Errno::EOPNOTSUPP);
        }
        self.lent(lender, &open).inspect_err(|errno| {
            tracing::debug!(ino = open.file.ino().0, ?errno, "file was not lent");
        })
    }

    fn lent(&self, lender: &Lender, open: &Open) -> Result<Vec<u8>, Errno> {
        if open.file.mode().write
            && let Some(device) = self.device.get()
        {
            // The kernel does not hear of writes from now on. That it knows nothing is no failure.
            let _ = device.invalidate(open.file.ino(), -1);
        }
        let cell = open.counters.cell(&lender.board);
        let io_buffer = match self.tuning.is_empty() {
            true => 0,
            false => self.tuning.io_buffer(&self.names.path(open.file.ino().0)),
        };
        let watch = Arc::new(Watch::new(lender.board.clone(), cell, io_buffer));
        let lend = self.pool.run(open.file.lend_watched(watch));
        let file = lend.map_err(|error| crate::shared::errno(&error))?;
        let lent =
            Lent { pool: lender.pool.clone(), board: lender.place.clone(), cell, io_buffer, file };
        lent.encode().ok_or(Errno::EFBIG)
    }
}
