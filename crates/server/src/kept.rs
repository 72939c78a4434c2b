//! A server's share of a kept pool: a directory with its target's data and journal, on one server the
//! names' too, and who they are.
//!
//! ```text
//! DIR/target      who the target is: see [`label`]
//! DIR/blocks      the target's disk
//! DIR/data        the target's journal: what is where on the disk
//! DIR/metadata    the names' journal, on the server that holds them
//! ```
//! docs/journal.md has them to the byte.

use crate::disk::{Backing, Driven, Engine};
use crate::memory::MappedMemory;
use crate::meta::{FileMedium, JournalThread};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use weir_core::checksum;
use weir_core::error::{Code, Error, Result};
use weir_core::journal::{self, Identity, Journal, Medium, Options, Sink};
use weir_core::layout::Member;
use weir_core::service::Scrub;
use weir_core::service::meta::{JournaledStore, MetaStore};
use weir_core::service::storage::disk::{BLOCK_BYTES, Disk};
use weir_core::service::storage::{
    CHUNK_BYTES, INLINE_SHARE, Memory, Place, Placed, Survey, Target,
};
use weir_core::types::{Incarnation, TargetId};

/// How a server's content is to outlive it.
#[derive(Clone, Debug)]
pub struct KeptOptions {
    /// Its directory. No other server uses it.
    pub directory: PathBuf,
    /// Whether it holds the pool's names.
    pub names: bool,
    /// Whether it comes back: everything must be there. If not, nothing may.
    pub back: bool,
    /// How much room for data it makes on its disk, if it does not come back: bytes.
    pub size: u64,
}

/// Called with what is being read and of how many bytes how many have been.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// What came back, or was made.
pub(crate) struct Kept {
    pub(crate) target: Arc<Target>,
    pub(crate) disk: Arc<dyn Driven>,
    pub(crate) store: Option<Box<dyn MetaStore>>,
    pub(crate) threads: Vec<JournalThread>,
    pub(crate) scrub: Arc<Scrub>,
    /// Locked as long as it is open: no other server writes there.
    pub(crate) label: File,
}

/// Room that a journal has at least, beside as much again as it has: bytes.
const JOURNAL_ROOM: u64 = 32 << 20;
/// Whoever verifies a disk slowly looks so often whether it is still there.
const PAUSE_MAX: Duration = Duration::from_secs(1);
const LABEL_MAGIC: &[u8; 8] = b"weirtrgt";
/// Version 1 had all data in the journal.
const LABEL_VERSION: u32 = 2;
const LABEL_BYTES: usize = 24;

/// The target's identity, 24 bytes: `weirtrgt`, version (4 bytes: 2), CRC-32C of all with these four
/// bytes as zero, incarnation (8).
fn label(incarnation: Incarnation) -> [u8; LABEL_BYTES] {
    let mut bytes = [0; LABEL_BYTES];
    bytes[..8].copy_from_slice(LABEL_MAGIC);
    bytes[8..12].copy_from_slice(&LABEL_VERSION.to_le_bytes());
    bytes[16..].copy_from_slice(&incarnation.0.to_le_bytes());
    let sum = checksum::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn read_label(file: &mut File, path: &Path) -> Result<Incarnation> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| system("read", path, &error))?;
    let version = bytes.get(8..12).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4")));
    let incarnation = bytes
        .get(16..24)
        .map(|bytes| Incarnation(u64::from_le_bytes(bytes.try_into().expect("8 bytes"))));
    match (version, incarnation) {
        (Some(version), _) if bytes.starts_with(LABEL_MAGIC) && version != LABEL_VERSION => {
            let cause = format!("target of format {version}, this program knows {LABEL_VERSION}");
            let consequence = "its pool comes up with the program that made it";
            Err(Error::because(Code::Version, cause).on("read", path.display()).so(consequence))
        }
        (_, Some(incarnation)) if bytes == label(incarnation) => Ok(incarnation),
        _ => Err(Error::because(Code::Damaged, "not a target's label, or a damaged one")
            .on("read", path.display())),
    }
}

/// What failed with one of a kept pool's files.
pub(crate) fn system(operation: &str, path: &Path, error: &std::io::Error) -> Error {
    use std::io::ErrorKind;
    let code = match error.kind() {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::PermissionDenied => Code::AccessDenied,
        ErrorKind::AlreadyExists => Code::Exists,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Code::NoSpace,
        _ => Code::Disk,
    };
    Error::because(code, error.to_string()).on(operation, path.display())
}

/// Whose journal it is: a target's incarnation, and which of its two.
fn identity(incarnation: Incarnation, what: [u8; 8]) -> Identity {
    let mut identity = [0; 16];
    identity[..8].copy_from_slice(&incarnation.0.to_le_bytes());
    identity[8..].copy_from_slice(&what);
    identity
}

impl Kept {
    /// Makes the directory's content, or comes back to it.
    pub(crate) fn open(
        options: &KeptOptions,
        memory: u64,
        metadata_memory: u64,
        (engine, lanes): (Engine, usize),
        progress: Progress<'_>,
    ) -> Result<Kept> {
        let directory = &options.directory;
        let path = directory.join("target");
        let (file, incarnation) = match options.back {
            true => {
                let mut file =
                    File::options().read(true).write(true).open(&path).map_err(|error| {
                        system("open target", &path, &error).so(
                            "its directory is missing, empty or another one; nothing was changed",
                        )
                    })?;
                let incarnation = read_label(&mut file, &path)?;
                (file, incarnation)
            }
            false => {
                std::fs::create_dir_all(directory)
                    .map_err(|error| system("make directory", directory, &error))?;
                let incarnation = Incarnation(crate::random()?);
                let file = make_label(&path, incarnation).map_err(|error| {
                    let error = system("make target", &path, &error);
                    match error.code {
                        Code::Exists => error.so(
                            "a kept pool has this directory; 'weir down --destroy' that pool, or choose another",
                        ),
                        _ => error,
                    }
                })?;
                (file, incarnation)
            }
        };
        if file.try_lock().is_err() {
            let cause = "another server has it";
            return Err(Error::because(Code::InUse, cause).on("lock", path.display()));
        }
        let member = Member { target: TargetId(0), incarnation };
        let mapped: Box<dyn Memory> = Box::new(MappedMemory::new(memory)?);
        let path = directory.join("blocks");
        let backing = match options.back {
            true => Backing::reopen(&path).map_err(|error| system("open disk", &path, &error))?,
            false => Backing::create(&path, options.size)
                .map_err(|error| system("make disk", &path, &error))?,
        };
        let read = backing.duplicate().map_err(|error| system("open disk", &path, &error))?;
        let named = backing.duplicate().map_err(|error| system("open disk", &path, &error))?;
        let disk =
            backing.start(engine, lanes).map_err(|error| system("use disk", &path, &error))?;
        let target = Target::with(member, 0, mapped, Some(disk.clone() as Arc<dyn Disk>));
        if target.disk_status().is_none() {
            let cause = "the target's memory is too small to have a disk under it";
            return Err(Error::because(Code::NoSpace, cause));
        }
        let path = directory.join("data");
        let journal = Options::new(identity(incarnation, *b"data    "));
        let room = JOURNAL_ROOM + memory / INLINE_SHARE;
        let writer = match options.back {
            true => {
                let mut told = |done, all| progress("data", done, all);
                let mut restore = target.restoring(&mut told);
                let medium = FileMedium::open(&path)?.naming(named).with_room(room);
                journal::open(medium, &journal, &mut restore)
                    .map_err(|error| come_back_failed(error, &path))?
            }
            false => {
                let medium = FileMedium::create(&path)?.naming(named).with_room_now(room)?;
                journal::create(medium, &journal)?
            }
        };
        target.keep(writer.journal());
        let mut journals = vec![Written::new(writer.journal(), &path, journal.identity)];
        let advanced = Arc::downgrade(&target);
        let advanced =
            move || advanced.upgrade().iter().for_each(|target| target.journal_advanced());
        let mut threads = vec![JournalThread::start(writer, target.sources(), advanced)?];
        let mut store: Option<Box<dyn MetaStore>> = None;
        if options.names {
            let path = directory.join("metadata");
            let journal = Options::new(identity(incarnation, *b"metadata"));
            let (names, writer) = match options.back {
                true => {
                    let medium = FileMedium::open(&path)?.with_room(JOURNAL_ROOM);
                    JournaledStore::open(medium, &journal, metadata_memory, &mut |done, all| {
                        progress("metadata", done, all);
                    })
                    .map_err(|error| come_back_failed(error, &path))?
                }
                false => {
                    let medium = FileMedium::create(&path)?.with_room_now(JOURNAL_ROOM)?;
                    JournaledStore::create(medium, &journal, metadata_memory)?
                }
            };
            journals.push(Written::new(writer.journal(), &path, journal.identity));
            threads.push(JournalThread::start(writer, names.sources(), || ())?);
            store = Some(Box::new(names));
        }
        let scrub = scrubber(&target, read, journals);
        Ok(Kept { target, disk, store, threads, scrub, label: file })
    }
}

/// Verifies a target's disk and the journals while they serve, when somebody asks for it.
fn scrubber(target: &Arc<Target>, disk: File, journals: Vec<Written>) -> Arc<Scrub> {
    let (target, disk) = (Arc::downgrade(target), Arc::new(disk));
    let journals = Arc::new(journals);
    Scrub::new(Box::new(move |book, rate| {
        let (target, disk, journals) = (target.clone(), disk.clone(), journals.clone());
        let read = move || {
            yield_to_others();
            let mut pace = Pace { began: Instant::now(), done: 0, rate };
            for journal in &*journals {
                journal.look_through(&book, &mut pace);
            }
            read_all(&target, &disk, &book, &mut pace);
            book.end();
        };
        let thread = std::thread::Builder::new().name("weir-scrub".to_owned()).spawn(read);
        thread.map(drop).map_err(|error| {
            Error::because(Code::Internal, format!("no thread to verify the disk: {error}"))
        })
    }))
}

/// The disk is asked for this thread when nobody else asks it, where the kernel knows of such a thing.
fn yield_to_others() {
    const THIS_THREAD: libc::c_int = 0;
    const WHO_PROCESS: libc::c_int = 1;
    const IDLE: libc::c_int = 3 << 13;
    // SAFETY: a system call with three integers.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, THIS_THREAD, IDLE) };
}

/// How fast somebody reads.
struct Pace {
    began: Instant,
    /// Bytes read.
    done: u64,
    /// Bytes in a second, at most.
    rate: u64,
}

impl Pace {
    /// So many bytes more have been read: waits until they may have been.
    fn keep(&mut self, bytes: u64) {
        self.done += bytes;
        let due = Duration::from_secs_f64(self.done as f64 / self.rate as f64);
        std::thread::sleep(due.saturating_sub(self.began.elapsed()).min(PAUSE_MAX));
    }
}

/// A journal that is being written, to be verified meanwhile.
struct Written {
    journal: Weak<Journal>,
    path: PathBuf,
    identity: Identity,
}

/// So often a journal is read anew, because it was written over while it was read.
const TRIES_MAX: u32 = 16;

impl Written {
    fn new(journal: &Arc<Journal>, path: &Path, identity: Identity) -> Written {
        Written { journal: Arc::downgrade(journal), path: path.to_owned(), identity }
    }

    /// Verifies all of it that is safe by now.
    fn look_through(&self, book: &Scrub, pace: &mut Pace) {
        for tries in 0..TRIES_MAX {
            let Some(mark) = self.journal.upgrade().map(|journal| journal.mark()) else { return };
            // Whoever was overtaken a few times runs.
            let pace = (tries < TRIES_MAX / 2).then_some(&mut *pace);
            let mut tally = Tally::default();
            let checked = FileMedium::open_to_read(&self.path).and_then(|file| {
                let options = Options::new(self.identity);
                journal::check_until(Paced { file, pace }, &options, mark, &mut tally)
            });
            let Tally { records, bytes } = tally;
            let Err(error) = checked else { return book.looked_through(bytes, records, None) };
            let Some(journal) = self.journal.upgrade() else { return };
            if journal.mark().is_of_superblock(mark) {
                // All that it says is in memory, too.
                journal.renew();
                let consequence = match journal.failure() {
                    None => "written anew from memory; verify it again in a moment",
                    Some(_) => {
                        "it has failed and cannot be written anew: copy the pool's files elsewhere"
                    }
                };
                let error = error.on("verify", self.path.display()).so(consequence);
                return book.looked_through(bytes, records, Some(error));
            }
        }
        let cause = format!("written over {TRIES_MAX} times while it was read");
        let error = Error::because(Code::Busy, cause).on("verify", self.path.display());
        book.looked_through(0, 0, Some(error.so("not verified; again, when less is changed")));
    }
}

/// A journal's file, read at a pace: of what is on disk, not of the records in it, which may be few.
struct Paced<'a> {
    file: FileMedium,
    pace: Option<&'a mut Pace>,
}

impl Medium for Paced<'_> {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        for (part, at) in into.chunks_mut(CHUNK_BYTES).zip((offset..).step_by(CHUNK_BYTES)) {
            self.file.read(at, part)?;
            self.pace.iter_mut().for_each(|pace| pace.keep(part.len() as u64));
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write(offset, bytes)
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync()
    }

    fn length(&mut self) -> Result<u64> {
        self.file.length()
    }
}

/// Counts a journal's records, and the bytes in them.
#[derive(Default)]
struct Tally {
    records: u64,
    bytes: u64,
}

impl Sink for Tally {
    fn record(&mut self, record: &[u8]) -> Result<()> {
        self.records += 1;
        self.bytes += record.len() as u64;
        Ok(())
    }
}

/// Reads all copies of chunks that there are, at a pace, until the target is gone.
fn read_all(target: &Weak<Target>, disk: &File, book: &Scrub, pace: &mut Pace) {
    // The disk is read past the page cache, into whole blocks of memory.
    let mut memory = vec![0; CHUNK_BYTES + BLOCK_BYTES];
    let skipped = memory.as_ptr().align_offset(BLOCK_BYTES);
    let memory = &mut memory[skipped..skipped + CHUNK_BYTES];
    let mut place = Place::default();
    loop {
        let Some(found) = target.upgrade().map(|target| target.placed(&mut place)) else { return };
        if found.is_empty() {
            return;
        }
        for placed in found {
            let Some(target) = target.upgrade() else { return };
            book.looked(&placed, look(&target, disk, &placed, memory));
            drop(target);
            pace.keep(placed.place().1 as u64);
        }
    }
}

/// What is wrong with a copy, if something is.
fn look(target: &Target, disk: &File, placed: &Placed, memory: &mut [u8]) -> Option<Error> {
    let mut once = false;
    loop {
        let (offset, length) = placed.place();
        let blocks = &mut memory[..length.next_multiple_of(BLOCK_BYTES)];
        let checked = match disk.read_exact_at(blocks, offset) {
            Ok(()) => placed.verify(target.member().incarnation, &blocks[..length]),
            Err(error) => Err(placed.bad(0, &error.to_string())),
        };
        let error = checked.err()?;
        // Its blocks may have been given up, and be written to, since they were looked up.
        if !target.is_placed(placed) {
            return None;
        }
        // Given up, written to, and used for the same once more, between two looks: then this one is right.
        if std::mem::replace(&mut once, true) {
            return Some(error);
        }
    }
}

/// What a look at a server's directory found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Records read.
    pub records: u64,
    /// Bytes in them, and in chunks.
    pub bytes: u64,
    /// Chunks read from the disk.
    pub chunks: u64,
    /// What is not as it was written: file, and what is wrong with it.
    pub errors: Vec<(PathBuf, Error)>,
}

/// Reads all that a server of a pool that is down has kept, verifies every checksum and changes
/// nothing.
///
/// # Errors
/// If it cannot be found out whose directory it is, or a server uses it.
pub fn scrub(directory: &Path, names: bool, progress: Progress<'_>) -> Result<Scrubbed> {
    let path = directory.join("target");
    let mut file = File::open(&path).map_err(|error| system("open target", &path, &error))?;
    let incarnation = read_label(&mut file, &path)?;
    if file.try_lock_shared().is_err() {
        let cause = "a server has it";
        return Err(Error::because(Code::InUse, cause).on("lock", path.display()));
    }
    let mut scrubbed = Scrubbed::default();
    let path = directory.join("data");
    let mut survey = Look { name: "data", sink: Survey::default(), bytes: 0, progress };
    check(&path, identity(incarnation, *b"data    "), &mut survey, &mut scrubbed);
    let Look { sink: survey, progress, .. } = survey;
    scrubbed.records += survey.records;
    let path = directory.join("blocks");
    if let Err(error) = scrub_disk(&path, incarnation, &survey, &mut scrubbed, progress) {
        scrubbed.errors.push((path, error));
    }
    if names {
        let path = directory.join("metadata");
        let mut records = Look { name: "metadata", sink: Records(0), bytes: 0, progress };
        check(&path, identity(incarnation, *b"metadata"), &mut records, &mut scrubbed);
        scrubbed.records += records.sink.0;
    }
    Ok(scrubbed)
}

fn check<S: Sink>(path: &Path, whose: Identity, look: &mut Look<'_, S>, found: &mut Scrubbed) {
    let checked = FileMedium::open_to_read(path)
        .and_then(|medium| journal::check(medium, &Options::new(whose), look));
    found.bytes += look.bytes;
    if let Err(error) = checked {
        found.errors.push((path.to_owned(), error));
    }
}

/// Reads all chunks that a journal names, and verifies them.
fn scrub_disk(
    path: &Path,
    incarnation: Incarnation,
    survey: &Survey,
    found: &mut Scrubbed,
    progress: Progress<'_>,
) -> Result<()> {
    let file = File::open(path).map_err(|error| system("open disk", path, &error))?;
    let placed = survey.placed();
    let overlaps = Survey::overlaps(&placed).into_iter();
    found.errors.extend(overlaps.map(|error| (path.to_owned(), error)));
    let all = placed.iter().map(|placed| placed.place().1 as u64).sum();
    let mut done = 0;
    let mut bytes = vec![0; CHUNK_BYTES];
    for placed in placed {
        let (offset, length) = placed.place();
        let bytes = &mut bytes[..length];
        let checked = match file.read_exact_at(bytes, offset) {
            Ok(()) => placed.verify(incarnation, bytes),
            Err(error) => Err(placed.bad(0, &error.to_string())),
        };
        if let Err(error) = checked {
            found.errors.push((path.to_owned(), error));
        }
        done += length as u64;
        found.chunks += 1;
        progress("blocks", done, all);
    }
    found.bytes += done;
    Ok(())
}

/// Looks at the records of a journal, counts their bytes and tells how far it is.
struct Look<'a, S> {
    name: &'a str,
    sink: S,
    bytes: u64,
    progress: Progress<'a>,
}

impl<S: Sink> Sink for Look<'_, S> {
    fn foresees(&self) -> bool {
        self.sink.foresees()
    }

    fn foresee(&mut self, record: &[u8]) -> Result<()> {
        self.sink.foresee(record)
    }

    fn snapshot(&mut self, record: &[u8]) -> Result<()> {
        self.bytes += record.len() as u64;
        self.sink.snapshot(record)
    }

    fn record(&mut self, record: &[u8]) -> Result<()> {
        self.bytes += record.len() as u64;
        self.sink.record(record)
    }

    fn progress(&mut self, done: u64, all: u64) {
        (self.progress)(self.name, done, all);
    }
}

/// Counts the records of names.
struct Records(u64);

impl Sink for Records {
    fn record(&mut self, record: &[u8]) -> Result<()> {
        self.0 += 1;
        weir_core::service::meta::check_record(record)
    }
}

fn come_back_failed(error: Error, path: &Path) -> Error {
    let consequence = match error.code {
        Code::NoSpace => "the pool was made with more memory; give it as much",
        _ => "the pool does not come up; nothing was changed",
    };
    error.on("read", path.display()).so(consequence)
}

/// Whole or not at all.
fn make_label(path: &Path, incarnation: Incarnation) -> std::io::Result<File> {
    let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.write_all(&label(incarnation))?;
    file.sync_all()?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_at_the_pace_however_little_is_in_it() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("journal");
        let mut file = FileMedium::create(&path).expect("made");
        file.write(0, &vec![7; 1 << 20]).expect("written");
        let began = Instant::now();
        let mut pace = Pace { began, done: 0, rate: 4 << 20 };
        let mut paced = Paced { file, pace: Some(&mut pace) };
        let mut bytes = vec![0; 1 << 20];
        paced.read(0, &mut bytes).expect("reads");
        assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
        assert!(bytes.iter().all(|&byte| byte == 7));
    }
}
