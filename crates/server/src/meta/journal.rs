//! The journal's file, and the thread that writes it.

use crate::kept::system;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use weir_core::error::{Code, Error, Result};
use weir_core::journal::{Journal, Medium, Source, Writer};

/// What nobody waits for is written so much later: what a crash may take of it.
pub const DELAY: Duration = Duration::from_millis(100);
/// The file grows by so much at a time: bytes.
const GROWTH_BYTES: u64 = 4 << 20;
/// Unit of what a file takes of its file system: bytes.
const STAT_BLOCK_BYTES: u64 = 512;

/// A file as a journal's medium.
#[derive(Debug)]
pub struct FileMedium {
    file: File,
    path: PathBuf,
    length: u64,
    /// What its records name is there.
    named: Option<File>,
    ahead: Option<Ahead>,
}

/// Room that is set aside beyond a journal's end, so that whoever else fills the file system does not end
/// it.
#[derive(Debug)]
struct Ahead {
    /// So much, beside as much again as the journal has: bytes.
    least: u64,
    /// What has been taken of the file system: bytes from the file's begin.
    taken: u64,
    /// When the last try failed; none: there is room.
    failed: Option<Instant>,
}

/// How often room is asked for again, where there was none.
const AHEAD_PAUSE: Duration = Duration::from_secs(1);

impl Ahead {
    /// Says whether there is room for a journal of this length.
    fn take(&mut self, file: &File, path: &Path, length: u64) -> bool {
        // A checkpoint writes the map once more, and the log goes on meanwhile.
        let wanted = (2 * length + self.least).next_multiple_of(GROWTH_BYTES);
        if wanted <= self.taken {
            self.failed = None;
            return true;
        }
        if self.failed.is_some_and(|failed| failed.elapsed() < AHEAD_PAUSE) {
            return false;
        }
        match self.try_take(file, path, wanted) {
            Ok(()) => {
                if self.failed.take().is_some() {
                    info!(path = %path.display(), "room for the journal again");
                }
                self.taken = wanted;
                true
            }
            Err(error) => {
                if self.failed.replace(Instant::now()).is_none() {
                    warn!(%error, path = %path.display(), "no room can be set aside for the journal: nothing new is taken until there is");
                }
                false
            }
        }
    }

    fn try_take(&self, file: &File, path: &Path, wanted: u64) -> std::io::Result<()> {
        let more = wanted - self.taken;
        // Asked first: what is refused in the middle leaves the file system full.
        if crate::free(path.parent().unwrap_or(Path::new("/")))? < more {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let (from, more) = (self.taken as libc::off_t, more as libc::off_t);
        // SAFETY: a valid descriptor of a file of our own; its length stays.
        let result =
            unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, from, more) };
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            // Where none can be set aside anywhere, it is as it always was.
            _ if result == 0 => Ok(()),
            Some(libc::EOPNOTSUPP) => Ok(()),
            _ => Err(error),
        }
    }
}

impl FileMedium {
    /// Makes a file that must not be there yet.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(path: &Path) -> Result<FileMedium> {
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = file.map_err(|error| system("make journal", path, &error))?;
        // The file's name is as much a part of what must last as its bytes.
        let directory = path.parent().unwrap_or(Path::new("/"));
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|error| system("sync directory", directory, &error))?;
        Ok(FileMedium { file, path: path.to_owned(), length: 0, named: None, ahead: None })
    }

    /// Opens one that is there.
    ///
    /// # Errors
    /// If it is not, or cannot be opened.
    pub fn open(path: &Path) -> Result<FileMedium> {
        FileMedium::open_as(path, true)
    }

    /// Opens one that is there, to look at it.
    ///
    /// # Errors
    /// If it is not, or cannot be opened.
    pub fn open_to_read(path: &Path) -> Result<FileMedium> {
        FileMedium::open_as(path, false)
    }

    fn open_as(path: &Path, write: bool) -> Result<FileMedium> {
        let open = || {
            let file = File::options().read(true).write(write).open(path)?;
            let length = file.metadata()?.len();
            Ok((file, length))
        };
        let (file, length) = open().map_err(|error| system("open journal", path, &error))?;
        let fresh = if write { forget_cached(&file) } else { drop_cached(&file) };
        fresh.map_err(|error| system("sync journal", path, &error))?;
        Ok(FileMedium { file, path: path.to_owned(), length, named: None, ahead: None })
    }

    /// Room is set aside for it: so much, and as much again as it has by then.
    pub fn with_room(self, least: u64) -> FileMedium {
        // What was set aside in an earlier life is there still.
        let taken = self.file.metadata().map_or(0, |found| found.blocks() * STAT_BLOCK_BYTES);
        let ahead = Some(Ahead { least, taken: taken.max(self.length), failed: None });
        let mut medium = FileMedium { ahead, ..self };
        medium.is_tight();
        medium
    }

    /// As [`FileMedium::with_room`], of one that is made.
    ///
    /// # Errors
    /// If there is no room.
    pub fn with_room_now(self, least: u64) -> Result<FileMedium> {
        let mut medium = self.with_room(least);
        match medium.is_tight() {
            false => Ok(medium),
            true => {
                let cause = format!("{} MiB for it are not free", least >> 20);
                Err(Error::because(Code::NoSpace, cause).on("make journal", medium.path.display()))
            }
        }
    }

    /// Its records name what is in another file.
    pub fn naming(self, named: File) -> FileMedium {
        FileMedium { named: Some(named), ..self }
    }
}

/// Has the kernel read the file from the disk from now on. What a process before this one wrote and could
/// not sync is still in the page cache as a rule, and passes for written: were it believed, and were what is
/// written behind it synced, a power cut would leave a journal with a hole.
fn forget_cached(file: &File) -> std::io::Result<()> {
    file.sync_all()?;
    drop_cached(file)
}

/// Has the kernel read from the disk what is there as it is in the page cache.
fn drop_cached(file: &File) -> std::io::Result<()> {
    // SAFETY: a valid descriptor of a file of our own.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        number => Err(std::io::Error::from_raw_os_error(number)),
    }
}

impl Medium for FileMedium {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < into.len() {
            match self.file.read_at(&mut into[at..], offset + at as u64) {
                Ok(0) => break,
                Ok(count) => at += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(system("read journal", &self.path, &error)),
            }
        }
        into[at..].fill(0);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        if end > self.length {
            // Blocks that have been written are overwritten by a sync of data alone; fresh ones cost
            // the file system a sync of its own books each time.
            let length = end.next_multiple_of(GROWTH_BYTES);
            let zeros = vec![0; (length - self.length) as usize];
            let grown = self.file.write_all_at(&zeros, self.length);
            let grown = grown.and_then(|()| self.file.sync_all());
            grown.map_err(|error| system("write journal", &self.path, &error))?;
            self.length = length;
        }
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| system("write journal", &self.path, &error))
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(|error| system("sync journal", &self.path, &error))
    }

    fn length(&mut self) -> Result<u64> {
        Ok(self.length)
    }

    fn is_tight(&mut self) -> bool {
        let FileMedium { file, path, length, ahead, .. } = self;
        ahead.as_mut().is_some_and(|ahead| !ahead.take(file, path, *length))
    }

    fn settle_named(&mut self) -> Result<()> {
        let Some(named) = &self.named else { return Ok(()) };
        named.sync_data().map_err(|error| {
            let cause = format!("what its records name: {error}");
            Error::because(Code::Disk, cause).on("sync journal", self.path.display())
        })
    }
}

#[derive(Default)]
struct Bell {
    state: Mutex<(bool, bool)>,
    rung: Condvar,
}

impl Bell {
    fn change(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.rung.notify_one();
    }

    /// Waits for a ring, or the end of the delay; says whether to stop.
    fn wait(&self, delay: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(state, delay, |state| !state.0 && !state.1);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.0 = false;
        state.1
    }
}

/// The thread that writes a journal. When dropped, it writes what is left first.
pub struct JournalThread {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl JournalThread {
    /// Starts it; `advanced` is called whenever something may have become safe, or nothing will
    /// any more.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start<M: Medium + 'static>(
        mut writer: Writer<M>,
        sources: impl Fn() -> Box<dyn Source> + Send + 'static,
        advanced: impl Fn() + Send + 'static,
    ) -> Result<JournalThread> {
        let bell = Arc::new(Bell::default());
        let ringer = bell.clone();
        writer.journal().set_bell(Box::new(move || ringer.change(|state| state.0 = true)));
        let journal: Arc<Journal> = writer.journal().clone();
        let own = bell.clone();
        let thread = std::thread::Builder::new().name("weir-journal".into()).spawn(move || {
            let mut more = false;
            loop {
                let stop = !more && !journal.is_wanted() && own.wait(DELAY);
                match writer.pump(&sources) {
                    Ok(left) => {
                        more = left && !stop;
                        advanced();
                    }
                    Err(failure) => {
                        error!(%failure, "journal; nothing changed from now on lasts");
                        advanced();
                        return;
                    }
                }
                if stop {
                    return;
                }
            }
        });
        let thread = thread.map_err(|error| {
            Error::because(Code::Internal, format!("no thread for the journal: {error}"))
        })?;
        Ok(JournalThread { bell, thread: Some(thread) })
    }
}

impl Drop for JournalThread {
    fn drop(&mut self) {
        self.bell.change(|state| state.1 = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(path: &Path) -> u64 {
        std::fs::metadata(path).expect("there").blocks() * STAT_BLOCK_BYTES
    }

    #[test]
    fn room_for_a_journal_is_set_aside_and_grows_with_it() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("journal");
        let medium = FileMedium::create(&path).expect("made");
        let mut medium = medium.with_room_now(10 << 20).expect("there is room");
        assert_eq!(medium.length().expect("a length"), 0);
        assert!(taken(&path) >= 10 << 20, "{}", taken(&path));
        medium.write(5 << 20, &[1; 4096]).expect("written");
        assert!(!medium.is_tight() && taken(&path) >= 26 << 20, "{}", taken(&path));
        drop(medium);
        // In another life it is there still.
        let mut medium = FileMedium::open(&path).expect("opens").with_room(10 << 20);
        assert!(!medium.is_tight());
        let mut block = [0; 4096];
        medium.read(5 << 20, &mut block).expect("reads");
        assert_eq!(block, [1; 4096]);
    }

    #[test]
    fn a_journal_for_which_there_is_no_room_is_not_made_and_goes_on_if_it_is_there() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("journal");
        let far = crate::free(directory.path()).expect("free space") + (1 << 40);
        let made = FileMedium::create(&path).expect("made").with_room_now(far);
        assert_eq!(made.map(drop).expect_err("too much").code, Code::NoSpace);
        assert!(taken(&path) < 1 << 20, "nothing is taken of what does not suffice");
        let mut medium = FileMedium::open(&path).expect("opens").with_room(far);
        assert!(medium.is_tight());
        medium.write(0, &[1; 4096]).expect("written");
        medium.sync().expect("synced");
    }
}
