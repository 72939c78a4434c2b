//! What a mount lends to the programs beside it: leave to read and write a file that the kernel has
//! open for them, by connections of their own; and a *board*, memory shared with them, on which they
//! count what they do and find out which files the kernel has pages of.
//!
//! A program asks with an ioctl on the open descriptor. Only descriptors of a mount of ours know it,
//! so that the answer is also how a program tells them from others.

mod life;

use life::{Life, Living};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use weir_core::error::Result;
use weir_core::fs::{Borrowers, Loan};
use weir_core::wire;

/// Bytes that an answer has room for (the kernel's limit is 16 KiB less one). A layout of more than
/// about a thousand targets does not fit: such files go through the kernel.
pub const LENT_BYTES_MAX: usize = 16_000;
/// The ioctl: reads up to [`LENT_BYTES_MAX`] bytes, a [`Lent`] behind its length. The number is
/// the kernel's `_IOR('w', 1, …)`.
pub const LEND: u32 = (2 << 30) | ((LENT_BYTES_MAX as u32) << 16) | ((b'w' as u32) << 8) | 1;

/// An answer to [`LEND`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    /// The pool's directory, where its address and its secret are.
    pub pool: String,
    /// The mount's board.
    pub board: String,
    /// Where on the board to count.
    pub cell: u32,
    /// Bytes to put small sequential writes together in, and to read ahead; 0: neither.
    pub io_buffer: u64,
    /// The file.
    pub file: Loan,
}

impl Lent {
    /// As the ioctl gives it; none if there is no room for it.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let body = wire::encode(self);
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend(body);
        (bytes.len() <= LENT_BYTES_MAX).then_some(bytes)
    }

    /// What the ioctl gave.
    pub fn decode(bytes: &[u8]) -> Result<Lent> {
        let (length, rest) =
            bytes.split_first_chunk::<4>().ok_or_else(|| wire::protocol("loan without length"))?;
        let body = rest
            .get(..u32::from_le_bytes(*length) as usize)
            .ok_or_else(|| wire::protocol("loan is cut short"))?;
        wire::decode(body)
    }
}

/// Files are told apart by so many buckets; two in one are treated alike, which costs speed alone.
const BUCKETS: usize = 64 * 1024;
/// Cells to count in.
pub const CELLS: usize = 4100;
/// First bytes of a board; changes with its form.
const MAGIC: u64 = 0x0003_6472_6165_6977;

/// Counters that a program adds to: requests, bytes and nanoseconds of one path's files.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Cell {
    /// Read calls.
    pub reads: AtomicU64,
    /// Write calls that have ended: counted before they are no longer under way.
    pub writes: AtomicU64,
    /// Bytes read.
    pub bytes_read: AtomicU64,
    /// Bytes written.
    pub bytes_written: AtomicU64,
    /// Nanoseconds in read calls.
    pub read_ns: AtomicU64,
    /// Nanoseconds in write calls.
    pub write_ns: AtomicU64,
    /// Write calls under way, and those of which nobody knows what became of them.
    pub writes_open: AtomicU64,
    /// Read calls that failed.
    pub read_errors: AtomicU64,
    /// Write calls that failed.
    pub write_errors: AtomicU64,
}

impl Cell {
    fn counters(&self) -> [&AtomicU64; 8] {
        [
            &self.reads,
            &self.writes,
            &self.bytes_read,
            &self.bytes_written,
            &self.read_ns,
            &self.write_ns,
            &self.read_errors,
            &self.write_errors,
        ]
    }
}

#[repr(C)]
struct Memory {
    magic: AtomicU64,
    next_cell: AtomicU32,
    buckets: [AtomicU8; BUCKETS],
    cells: [Cell; CELLS],
    /// Of each cell: descriptors closed of files that count there. Apart from the counters, which many
    /// change at a time.
    closes: [AtomicU32; CELLS],
    /// Whether the mount is there to count them.
    life: Life,
}

/// A mount's board: a file mapped by the mount and by the programs beside it. It is believed in
/// nothing but speed, counts, and whether programs have written (see [`Watch`]): who spoils it spoils
/// what he may spoil anyway.
#[derive(Debug)]
pub struct Board {
    memory: NonNull<Memory>,
    path: PathBuf,
    /// Whether the file is ours to remove.
    maker: bool,
}

// SAFETY: nothing but atomics in there.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Makes a mount's board in this directory, which only its user can enter.
    pub fn make(directory: &Path) -> io::Result<Board> {
        static BOARDS: AtomicU32 = AtomicU32::new(0);
        let number = BOARDS.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("board-{}-{number}", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        file.set_len(size_of::<Memory>() as u64)?;
        let board = Board { memory: map(&file)?, path, maker: true };
        board.memory().magic.store(MAGIC, Ordering::Release);
        Ok(board)
    }

    /// Opens the board that a mount named.
    pub fn open(path: &Path) -> io::Result<Board> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < size_of::<Memory>() as u64 {
            return Err(io::Error::other("not a board"));
        }
        let board = Board { memory: map(&file)?, path: path.to_owned(), maker: false };
        match board.memory().magic.load(Ordering::Acquire) {
            MAGIC => Ok(board),
            _ => Err(io::Error::other("board of another version")),
        }
    }

    fn memory(&self) -> &Memory {
        // SAFETY: mapped until `self` is dropped, of this size; all-zero bytes are valid atomics.
        unsafe { self.memory.as_ref() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file; what is mapped stays. Best effort: it goes with the pool's directory.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    fn bucket(&self, ino: u64) -> &AtomicU8 {
        // Inode numbers are dense; the multiplication spreads what shares low bits.
        let hash = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        &self.memory().buckets[hash as usize % BUCKETS]
    }

    /// The kernel has, or is about to have, pages of this file.
    pub fn mark(&self, ino: u64) {
        // Stays at the top once there: then it is never unmarked, which is safe.
        let more = |marks: u8| marks.checked_add(1);
        let _ = self.bucket(ino).fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
    }

    /// Takes one [`Board::mark`] back.
    pub fn unmark(&self, ino: u64) {
        let fewer = |marks: u8| (marks != u8::MAX).then(|| marks.saturating_sub(1));
        let _ = self.bucket(ino).fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
    }

    /// Whether the kernel may have pages of this file: then only requests through the kernel see
    /// what was written to them, and are seen in them.
    pub fn marked(&self, ino: u64) -> bool {
        self.bucket(ino).load(Ordering::SeqCst) != 0
    }

    /// The number of a cell that nobody else was given, as long as there are any; then the last.
    pub fn new_cell(&self) -> u32 {
        self.memory().next_cell.fetch_add(1, Ordering::Relaxed).min(CELLS as u32 - 1)
    }

    /// Sums over all cells.
    pub fn total(&self) -> Cell {
        let total = Cell::default();
        let given = self.memory().next_cell.load(Ordering::Relaxed).min(CELLS as u32);
        for number in 0..given {
            for (sum, counter) in total.counters().into_iter().zip(self.cell(number).counters()) {
                sum.fetch_add(counter.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        total
    }

    /// For the mount: the thread that calls this says that each descriptor's closing is counted before the
    /// kernel tells whoever closed it. That ends with what is given, with the thread, and where one was
    /// missed ([`Board::missed_close`]).
    pub fn counts_closes(self: &Arc<Self>) -> io::Result<Counting> {
        Living::begin(OfBoard(self.clone())).map(Counting)
    }

    /// A descriptor of a file that counts there was closed.
    pub fn closed(&self, cell: u32) {
        self.memory().closes[place(cell)].fetch_add(1, Ordering::Release);
    }

    /// Some may be closed, or may have been, without a word.
    pub fn missed_close(&self) {
        self.memory().life.end();
    }

    /// How many descriptors have been closed of files that count there, this one perhaps; while it stays
    /// the same, all descriptors are open on what they were. None: nobody counts.
    pub fn closes(&self, cell: u32) -> Option<u32> {
        let memory = self.memory();
        // In this order: what is counted up to a death was counted.
        let closes = memory.closes[place(cell)].load(Ordering::Acquire);
        memory.life.is_there().then_some(closes)
    }

    /// A cell.
    pub fn cell(&self, number: u32) -> &Cell {
        &self.memory().cells[place(number)]
    }
}

/// Where a cell lies: whatever a program names, within the board.
fn place(cell: u32) -> usize {
    (cell as usize).min(CELLS - 1)
}

struct OfBoard(Arc<Board>);

impl Deref for OfBoard {
    type Target = Life;

    fn deref(&self) -> &Life {
        &self.0.memory().life
    }
}

/// Closings are counted: see [`Board::counts_closes`].
pub struct Counting(#[allow(dead_code)] Living<OfBoard>);

/// What the programs that were lent files of one path have written, as the board says.
#[derive(Debug)]
pub struct Watch {
    board: Arc<Board>,
    cell: u32,
    io_buffer: u64,
}

impl Watch {
    /// On this cell, where they have buffers of so many bytes.
    pub fn new(board: Arc<Board>, cell: u32, io_buffer: u64) -> Watch {
        Watch { board, cell, io_buffer }
    }
}

impl Borrowers for Watch {
    fn changes(&self) -> Option<u64> {
        let cell = self.board.cell(self.cell);
        // In this order: what is no longer under way has been counted.
        let quiet = cell.writes_open.load(Ordering::SeqCst) == 0;
        quiet.then(|| cell.writes.load(Ordering::SeqCst))
    }

    fn tell_all(&self) -> bool {
        self.io_buffer == 0
    }
}

fn map(file: &File) -> io::Result<NonNull<Memory>> {
    // SAFETY: a fresh mapping of a file of that size.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Memory>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    match NonNull::new(address) {
        Some(memory) if address != libc::MAP_FAILED => Ok(memory.cast()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody has a reference any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), size_of::<Memory>()) };
        if self.maker {
            self.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_is_shared_and_goes_with_its_maker() {
        let directory = tempfile::tempdir().expect("tempdir");
        let board = Board::make(directory.path()).expect("made");
        let other = Board::open(board.path()).expect("opened");
        assert!(!other.marked(7));
        board.mark(7);
        board.mark(7);
        board.unmark(7);
        assert!(other.marked(7));
        board.unmark(7);
        board.unmark(7);
        assert!(!other.marked(7));
        let cell = board.new_cell();
        other.cell(cell).reads.fetch_add(3, Ordering::Relaxed);
        assert_eq!(board.cell(cell).reads.load(Ordering::Relaxed), 3);
        other.cell(board.new_cell()).reads.fetch_add(4, Ordering::Relaxed);
        assert_eq!(board.total().reads.load(Ordering::Relaxed), 7);
        assert_ne!(board.new_cell(), cell);
        let path = board.path().to_owned();
        drop(other);
        assert!(path.exists());
        drop(board);
        assert!(!path.exists());
    }

    #[test]
    fn more_marks_than_can_be_counted_stay() {
        let directory = tempfile::tempdir().expect("tempdir");
        let board = Board::make(directory.path()).expect("made");
        for _ in 0..300 {
            board.mark(9);
        }
        for _ in 0..300 {
            board.unmark(9);
        }
        assert!(board.marked(9));
    }

    #[test]
    fn closes_count_while_somebody_is_there_to_count_them() {
        let directory = tempfile::tempdir().expect("tempdir");
        let board = Arc::new(Board::make(directory.path()).expect("made"));
        let other = Board::open(board.path()).expect("opened");
        let (cell, next) = (board.new_cell(), board.new_cell());
        assert_eq!(other.closes(cell), None);
        let counting = board.counts_closes().expect("begun");
        assert_eq!(other.closes(cell), Some(0));
        board.closed(cell);
        assert_eq!((other.closes(cell), other.closes(next)), (Some(1), Some(0)));
        board.missed_close();
        assert_eq!(other.closes(cell), None);
        drop(counting);
        let counting = board.counts_closes().expect("begun again");
        assert_eq!(other.closes(cell), Some(1));
        drop(counting);
        assert_eq!(other.closes(cell), None);
        other.closes(u32::MAX);
    }

    #[test]
    fn cells_do_not_run_out_of_bounds() {
        let directory = tempfile::tempdir().expect("tempdir");
        let board = Board::make(directory.path()).expect("made");
        for _ in 0..CELLS + 10 {
            board.cell(board.new_cell());
        }
        assert_eq!(board.new_cell() as usize, CELLS - 1);
        board.cell(u32::MAX);
    }

    #[test]
    fn what_is_no_board_is_refused() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("x");
        std::fs::write(&path, "short").expect("written");
        assert!(Board::open(&path).is_err());
        std::fs::write(&path, vec![1; size_of::<Memory>()]).expect("written");
        assert!(Board::open(&path).is_err());
    }

    #[test]
    fn loans_cut_short_are_refused() {
        for bytes in [&b""[..], &[9, 0], &[9, 0, 0, 0, 1], &[255, 255, 255, 255]] {
            assert!(Lent::decode(bytes).is_err());
        }
    }
}
