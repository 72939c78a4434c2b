//! The journal's file, and the thread that writes it.

use crate::kept::system;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::error;
use weir_core::error::{Code, Error, Result};
use weir_core::journal::{Journal, Medium, Source, Writer};

/// What nobody waits for is written so much later: what a crash may take of it.
pub const DELAY: Duration = Duration::from_millis(100);
/// The file grows by so much at a time: bytes.
const GROWTH_BYTES: u64 = 4 << 20;

/// A file as a journal's medium.
#[derive(Debug)]
pub struct FileMedium {
    file: File,
    path: PathBuf,
    length: u64,
    /// What its records name is there.
    named: Option<File>,
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
        Ok(FileMedium { file, path: path.to_owned(), length: 0, named: None })
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
        Ok(FileMedium { file, path: path.to_owned(), length, named: None })
    }

    /// Its records name what is in another file.
    pub fn naming(self, named: File) -> FileMedium {
        FileMedium { named: Some(named), ..self }
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
