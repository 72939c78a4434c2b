//! What programs did through a mount, by path and by operation.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use weir_client::lending::Board;

/// Paths that are counted one by one; all that are opened later are counted together.
pub const PATHS_MAX: usize = 4096;

/// What was done with one file. Times are sums over requests, as the mount saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatistics {
    /// Times it was opened or created.
    pub opens: u64,
    /// Read requests: a large read of a program is several of up to 1 MiB.
    pub reads: u64,
    /// Write requests, likewise.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Nanoseconds in open and create.
    pub open_ns: u64,
    /// Nanoseconds in read.
    pub read_ns: u64,
    /// Nanoseconds in write.
    pub write_ns: u64,
    /// Nanoseconds in close (the kernel does not let programs wait for it).
    pub close_ns: u64,
    /// Nanoseconds in whatever else was done through an open descriptor.
    pub other_ns: u64,
}

/// How often something was asked, and how long that took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationStatistics {
    /// Requests.
    pub count: u64,
    /// Those that failed. Many failures are everyday: a lookup of what is not there.
    pub errors: u64,
    /// Nanoseconds, summed over requests.
    pub ns: u64,
}

/// What was done through a mount since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// By path, as it was when the file was opened; `inode N` where it was not known.
    pub files: BTreeMap<String, FileStatistics>,
    /// All files that were opened when `files` had [`PATHS_MAX`] paths already.
    pub others: FileStatistics,
    /// By operation: `lookup`, `read` and so on.
    pub operations: BTreeMap<String, OperationStatistics>,
    /// Sum over all files.
    pub total: FileStatistics,
}

impl FileStatistics {
    fn add(&mut self, other: &FileStatistics) {
        self.opens += other.opens;
        self.reads += other.reads;
        self.writes += other.writes;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.open_ns += other.open_ns;
        self.read_ns += other.read_ns;
        self.write_ns += other.write_ns;
        self.close_ns += other.close_ns;
        self.other_ns += other.other_ns;
    }
}

macro_rules! operations {
    ($($name:ident $text:literal)*) => {
        /// What the kernel asks for.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Operation { $($name),* }

        impl Operation {
            const ALL: &[Operation] = &[$(Operation::$name),*];

            pub(crate) fn text(self) -> &'static str {
                match self { $(Operation::$name => $text),* }
            }
        }
    };
}

operations! {
    Lookup "lookup" Attributes "getattr" Change "setattr" ReadLink "readlink" MakeNode "mknod"
    MakeDirectory "mkdir" Unlink "unlink" RemoveDirectory "rmdir" Symlink "symlink"
    Rename "rename" Link "link" Open "open" Create "create" Read "read" Write "write"
    Close "release" Sync "fsync" OpenDirectory "opendir" ReadDirectory "readdir"
    StatFs "statfs" SetXattr "setxattr" GetXattr "getxattr" ListXattr "listxattr"
    RemoveXattr "removexattr" Access "access" Seek "lseek" Allocate "fallocate"
    Copy "copy_file_range" Lock "setlk" Unlock "unlock" FindLock "getlk"
}

/// Counters of one path.
#[derive(Debug, Default)]
pub(crate) struct FileCounters {
    opens: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    open_ns: AtomicU64,
    read_ns: AtomicU64,
    write_ns: AtomicU64,
    close_ns: AtomicU64,
    other_ns: AtomicU64,
    /// Where programs that were lent files of this path count.
    cell: OnceLock<u32>,
}

#[derive(Debug, Default)]
struct OperationCounters {
    count: AtomicU64,
    errors: AtomicU64,
    ns: AtomicU64,
}

/// Adds to a counter that nothing else depends on.
fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl FileCounters {
    pub(crate) fn opened(&self, time: Duration) {
        add(&self.opens, 1);
        add(&self.open_ns, ns(time));
    }

    pub(crate) fn read(&self, bytes: usize, time: Duration) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes as u64);
        add(&self.read_ns, ns(time));
    }

    pub(crate) fn wrote(&self, bytes: usize, time: Duration) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes as u64);
        add(&self.write_ns, ns(time));
    }

    pub(crate) fn closed(&self, time: Duration) {
        add(&self.close_ns, ns(time));
    }

    pub(crate) fn other(&self, time: Duration) {
        add(&self.other_ns, ns(time));
    }

    /// The board's cell for this path: its number.
    pub(crate) fn cell(&self, board: &Board) -> u32 {
        *self.cell.get_or_init(|| board.new_cell())
    }

    /// A descriptor of a file of this path was closed.
    pub(crate) fn descriptor_closed(&self, board: &Board) {
        self.cell.get().iter().for_each(|&&cell| board.closed(cell));
    }

    /// Whether programs that were lent files of this path write at this moment, or do not know what
    /// became of their writes; one that was killed never will.
    pub(crate) fn in_doubt(&self, board: &Board) -> bool {
        self.cell.get().is_some_and(|&cell| value(&board.cell(cell).writes_open) > 0)
    }

    /// With what programs have counted on the board.
    fn snapshot(&self, board: Option<&Board>) -> FileStatistics {
        let mut counted = FileStatistics {
            opens: value(&self.opens),
            reads: value(&self.reads),
            writes: value(&self.writes),
            bytes_read: value(&self.bytes_read),
            bytes_written: value(&self.bytes_written),
            open_ns: value(&self.open_ns),
            read_ns: value(&self.read_ns),
            write_ns: value(&self.write_ns),
            close_ns: value(&self.close_ns),
            other_ns: value(&self.other_ns),
        };
        if let (Some(board), Some(&cell)) = (board, self.cell.get()) {
            let cell = board.cell(cell);
            counted.reads += value(&cell.reads);
            counted.writes += value(&cell.writes);
            counted.bytes_read += value(&cell.bytes_read);
            counted.bytes_written += value(&cell.bytes_written);
            counted.read_ns += value(&cell.read_ns);
            counted.write_ns += value(&cell.write_ns);
        }
        counted
    }
}

/// All counters of a mount.
#[derive(Debug)]
pub(crate) struct Counters {
    files: Mutex<HashMap<String, Arc<FileCounters>>>,
    others: Arc<FileCounters>,
    operations: Vec<OperationCounters>,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            files: Mutex::default(),
            others: Arc::default(),
            operations: Operation::ALL.iter().map(|_| OperationCounters::default()).collect(),
        }
    }

    /// The counters of a path.
    pub(crate) fn file(&self, path: String) -> Arc<FileCounters> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.len() >= PATHS_MAX && !files.contains_key(&path) {
            return self.others.clone();
        }
        files.entry(path).or_default().clone()
    }

    pub(crate) fn operation(&self, operation: Operation, time: Duration, failed: bool) {
        let counters = &self.operations[operation as usize];
        add(&counters.count, 1);
        add(&counters.ns, ns(time));
        add(&counters.errors, u64::from(failed));
    }

    /// All that was counted, with what programs that were lent files have counted on the board:
    /// their calls are the operations `direct read` and `direct write`.
    pub(crate) fn snapshot(&self, board: Option<&Board>) -> Statistics {
        let others = self.others.snapshot(board);
        let mut statistics = Statistics { others, ..Statistics::default() };
        statistics.total = statistics.others;
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for (path, counters) in files.iter() {
            let file = counters.snapshot(board);
            statistics.total.add(&file);
            statistics.files.insert(path.clone(), file);
        }
        for (operation, counters) in Operation::ALL.iter().zip(&self.operations) {
            let count = value(&counters.count);
            if count > 0 {
                let (errors, ns) = (value(&counters.errors), value(&counters.ns));
                let entry = OperationStatistics { count, errors, ns };
                statistics.operations.insert(operation.text().to_owned(), entry);
            }
        }
        if let Some(board) = board {
            let direct = board.total();
            let mut insert = |name: &str, count, errors, ns| {
                if count > 0 {
                    let entry = OperationStatistics { count, errors, ns };
                    statistics.operations.insert(name.to_owned(), entry);
                }
            };
            let [reads, read_errors] = [&direct.reads, &direct.read_errors].map(value);
            insert("direct read", reads, read_errors, value(&direct.read_ns));
            let [writes, write_errors] = [&direct.writes, &direct.write_errors].map(value);
            insert("direct write", writes, write_errors, value(&direct.write_ns));
        }
        statistics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_bounded_and_sums_hold_all() {
        let counters = Counters::new();
        for index in 0..PATHS_MAX + 10 {
            let file = counters.file(format!("/{index}"));
            file.opened(Duration::from_nanos(2));
            file.read(100, Duration::from_nanos(3));
        }
        counters.file("/0".to_owned()).wrote(7, Duration::from_nanos(5));
        counters.operation(Operation::Lookup, Duration::from_nanos(4), true);
        let statistics = counters.snapshot(None);
        assert_eq!(statistics.files.len(), PATHS_MAX);
        assert_eq!(statistics.others.opens, 10);
        assert_eq!(statistics.total.bytes_read, 100 * (PATHS_MAX as u64 + 10));
        assert_eq!(statistics.files["/0"].bytes_written, 7);
        assert_eq!(statistics.files["/0"].write_ns, 5);
        let lookup = OperationStatistics { count: 1, errors: 1, ns: 4 };
        assert_eq!(statistics.operations, BTreeMap::from([("lookup".to_owned(), lookup)]));
    }
}
