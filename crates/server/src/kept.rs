//! A server's share of a kept pool: a directory with its target's journal, on one server the names'
//! too, and who they are.
//!
//! ```text
//! DIR/target      who the target is: see [`Label`]
//! DIR/data        the target's journal
//! DIR/metadata    the names' journal, on the server that holds them
//! ```
//! docs/journal.md has them to the byte.

use crate::memory::MappedMemory;
use crate::meta::{FileMedium, JournalThread};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_core::error::{Code, Error, Result};
use weir_core::journal::{self, Identity, Options, Sink};
use weir_core::layout::Member;
use weir_core::service::meta::{JournaledStore, MetaStore};
use weir_core::service::storage::{Memory, Target, check_record};
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
}

/// Called with what is being read and of how many bytes how many have been.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// What came back, or was made.
pub(crate) struct Kept {
    pub(crate) target: Arc<Target>,
    pub(crate) store: Option<Box<dyn MetaStore>>,
    pub(crate) threads: Vec<JournalThread>,
    /// Locked as long as it is open: no other server writes there.
    pub(crate) label: File,
}

const LABEL_MAGIC: &[u8; 8] = b"weirtrgt";
const LABEL_VERSION: u32 = 1;
const LABEL_BYTES: usize = 24;

/// The target's identity, 24 bytes: `weirtrgt`, version (4 bytes: 1), CRC-32C of all with these four
/// bytes as zero, incarnation (8).
fn label(incarnation: Incarnation) -> [u8; LABEL_BYTES] {
    let mut bytes = [0; LABEL_BYTES];
    bytes[..8].copy_from_slice(LABEL_MAGIC);
    bytes[8..12].copy_from_slice(&LABEL_VERSION.to_le_bytes());
    bytes[16..].copy_from_slice(&incarnation.0.to_le_bytes());
    let sum = journal::checksum(&bytes);
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
            Err(Error::because(Code::Version, cause).on("read", path.display()))
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
        let target = Target::new(member, 0, mapped);
        let path = directory.join("data");
        let journal = Options::new(identity(incarnation, *b"data    "));
        let writer = match options.back {
            true => {
                let mut told = |done, all| progress("data", done, all);
                let mut restore = target.restoring(&mut told);
                journal::open(FileMedium::open(&path)?, &journal, &mut restore)
                    .map_err(|error| come_back_failed(error, &path))?
            }
            false => journal::create(FileMedium::create(&path)?, &journal)?,
        };
        target.keep(writer.journal());
        let mut threads = vec![JournalThread::start(writer, target.sources())?];
        let mut store: Option<Box<dyn MetaStore>> = None;
        if options.names {
            let path = directory.join("metadata");
            let journal = Options::new(identity(incarnation, *b"metadata"));
            let (names, writer) = match options.back {
                true => {
                    let medium = FileMedium::open(&path)?;
                    JournaledStore::open(medium, &journal, metadata_memory, &mut |done, all| {
                        progress("metadata", done, all);
                    })
                    .map_err(|error| come_back_failed(error, &path))?
                }
                false => {
                    JournaledStore::create(FileMedium::create(&path)?, &journal, metadata_memory)?
                }
            };
            threads.push(JournalThread::start(writer, names.sources())?);
            store = Some(Box::new(names));
        }
        Ok(Kept { target, store, threads, label: file })
    }
}

/// What a look at a server's directory found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Records read, and bytes in them.
    pub records: u64,
    /// Bytes in them.
    pub bytes: u64,
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
    let files: &[(&str, [u8; 8])] = match names {
        true => &[("data", *b"data    "), ("metadata", *b"metadata")],
        false => &[("data", *b"data    ")],
    };
    for &(name, what) in files {
        let path = directory.join(name);
        let mut look = Look { name, found: &mut scrubbed, progress: &mut *progress };
        let options = Options::new(identity(incarnation, what));
        let checked = FileMedium::open_to_read(&path)
            .and_then(|medium| journal::check(medium, &options, &mut look));
        if let Err(error) = checked {
            scrubbed.errors.push((path, error));
        }
    }
    Ok(scrubbed)
}

struct Look<'a, 'b> {
    name: &'a str,
    found: &'a mut Scrubbed,
    progress: &'a mut (dyn FnMut(&str, u64, u64) + 'b),
}

impl Sink for Look<'_, '_> {
    fn record(&mut self, record: &[u8]) -> Result<()> {
        self.found.records += 1;
        self.found.bytes += record.len() as u64;
        match self.name == "data" {
            true => check_record(record).map(drop),
            false => weir_core::service::meta::check_record(record),
        }
    }

    fn progress(&mut self, done: u64, all: u64) {
        (self.progress)(self.name, done, all);
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
