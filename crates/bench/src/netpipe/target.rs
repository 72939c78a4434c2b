//! What is measured: a pool, the bare wire, a file of the kernel's.

use super::{Arguments, process};
use crate::process::Child;
use futures_util::future::try_join_all;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use weir_client::{ConnectOptions, FormOptions, Net, Pool, PoolAddress, STRIPE_SIZE_DEFAULT, form};
use weir_core::auth::{Role, Secret};
use weir_core::error::{Code, Error, Result};
use weir_core::fs;
use weir_core::layout::{Extent, Layout};
use weir_core::types::{Credentials, Ino};
use weir_core::wire::meta::{LayoutWish, OpenMode, Place};

/// Something with one large file.
pub(super) trait Target {
    /// Writes these extents, all under way at once; their bytes lie one behind the other.
    fn write(&mut self, operations: &[Extent], memory: &[u8]) -> Result<()>;

    /// Reads these extents likewise.
    fn read(&mut self, operations: &[Extent], memory: &mut [u8]) -> Result<()>;
}

/// A pool through the native API.
pub(super) struct PoolFile {
    pool: Pool,
    file: fs::File<Net>,
    place: Place,
    who: Credentials,
    /// Our own servers; they end with this value.
    _servers: Vec<Child>,
}

impl PoolFile {
    /// Makes the file on a running pool, or on one of its own for the time being.
    pub(super) fn make(arguments: &Arguments, memory: u64, name: &str) -> Result<PoolFile> {
        // SAFETY: these calls always succeed.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        let options = ConnectOptions {
            connections: arguments.connections,
            transfer_size: arguments.transfer_size as usize,
            ..ConnectOptions::default()
        };
        let mut servers = Vec::new();
        let address = match &arguments.pool {
            Some(directory) => PoolAddress::load(directory)?,
            None => {
                let mut bytes = [0; 32];
                getrandom::fill(&mut bytes).map_err(|error| {
                    Error::because(Code::Internal, error.to_string()).on("make", "secret")
                })?;
                let secret = Secret::from_bytes(bytes);
                for _ in 0..arguments.servers {
                    servers.push(process::pool(memory, &secret)?);
                }
                let addresses: Vec<String> =
                    servers.iter().map(|server| server.address.clone()).collect();
                let wish = FormOptions {
                    name: "netpipe".to_owned(),
                    owner_uid: uid,
                    owner_gid: gid,
                    stripe_size: STRIPE_SIZE_DEFAULT,
                    stripe_count: 0,
                };
                form(&addresses, &secret, &wish, &options)?;
                PoolAddress { servers: addresses, secret, role: Role::Owner }
            }
        };
        let pool = Pool::connect(&address, &options)?;
        let who = Credentials { uid, gid, groups: Vec::new() };
        let place = Place::new(Ino::ROOT, name);
        let (open, wish) = (OpenMode::READ_WRITE, LayoutWish::default());
        let create = pool.fs().create(&who, place.clone(), 0o600, true, open, wish);
        let (file, _, _) = pool.run(create)?;
        Ok(PoolFile { pool, file, place, who, _servers: servers })
    }

    /// Where the file's bytes lie.
    pub(super) fn layout(&self) -> Layout {
        self.file.layout().clone()
    }

    /// Servers of the pool.
    pub(super) fn server_count(&self) -> usize {
        self.pool.map().servers.len()
    }
}

impl Drop for PoolFile {
    fn drop(&mut self) {
        // On a running pool, the file must not stay behind; failures have been told before.
        let _ = self.pool.run(self.file.close());
        let _ = self.pool.run(self.pool.fs().unlink(&self.who, self.place.clone()));
    }
}

fn whole(count: usize, extent: Extent) -> Result<()> {
    if count as u64 == extent.length {
        return Ok(());
    }
    let cause = format!("{count} of {} bytes at {} are there", extent.length, extent.offset);
    Err(Error::because(Code::Lost, cause).on("read", "pool"))
}

impl Target for PoolFile {
    fn write(&mut self, operations: &[Extent], memory: &[u8]) -> Result<()> {
        if let [only] = operations {
            return self.pool.run(self.file.write_at(memory, only.offset));
        }
        let mut rest = memory;
        let writes = operations.iter().map(|extent| {
            let (now, later) = rest.split_at(extent.length as usize);
            rest = later;
            self.file.write_at(now, extent.offset)
        });
        self.pool.run(try_join_all(writes)).map(drop)
    }

    fn read(&mut self, operations: &[Extent], memory: &mut [u8]) -> Result<()> {
        if let [only] = operations {
            return whole(self.pool.run(self.file.read_at(memory, only.offset))?, *only);
        }
        let mut rest = memory;
        let reads = operations.iter().map(|extent| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(extent.length as usize);
            rest = later;
            self.file.read_at(now, extent.offset)
        });
        let counts = self.pool.run(try_join_all(reads))?;
        counts.into_iter().zip(operations).try_for_each(|(count, &extent)| whole(count, extent))
    }
}

/// How a file of the kernel's is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calls {
    /// By the C library's functions, which a preload library may stand in front of.
    Library,
    /// By bare system calls.
    Kernel,
}

/// A file of the kernel's: on a mount, on tmpfs. Its operations follow one another.
pub(super) struct PosixFile {
    file: File,
    path: PathBuf,
    calls: Calls,
}

impl PosixFile {
    /// Makes the file in a directory.
    pub(super) fn make(
        directory: &Path,
        name: &str,
        direct: bool,
        calls: Calls,
    ) -> Result<PosixFile> {
        let path = directory.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(if direct { libc::O_DIRECT } else { 0 })
            .open(&path)
            .map_err(|error| {
                let hint = if direct { " (opened with O_DIRECT)" } else { "" };
                Error::because(Code::Invalid, format!("{error}{hint}")).on("create", path.display())
            })?;
        Ok(PosixFile { file, path, calls })
    }

    fn trouble(&self, operation: &str, error: &std::io::Error) -> Error {
        // Direct I/O on a file system that wants whole blocks: no figure, but no failure either.
        let code = match error.raw_os_error() {
            Some(libc::EINVAL) => Code::Unsupported,
            _ => Code::Lost,
        };
        Error::because(code, error.to_string()).on(operation, self.path.display())
    }
}

impl Drop for PosixFile {
    fn drop(&mut self) {
        // Best effort: what went wrong with this file has been told before.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The file of a mount that keeps it in its own memory, in a process of its own.
pub(super) struct MountedFile {
    file: Option<PosixFile>,
    mount: Option<Child>,
    directory: PathBuf,
}

impl MountedFile {
    /// Makes the mount, in the directory for temporary files, and the file.
    pub(super) fn make(memory: u64, name: &str) -> Result<MountedFile> {
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).map_err(|error| {
            Error::because(Code::Invalid, error.to_string()).on("create", directory.display())
        })?;
        // From here on it is taken away in the end.
        let mut made = MountedFile { file: None, mount: None, directory };
        made.mount = Some(process::mount(memory, &made.directory)?);
        made.file = Some(PosixFile::make(&made.directory, "file", false, Calls::Kernel)?);
        Ok(made)
    }

    fn file(&mut self) -> &mut PosixFile {
        self.file.as_mut().expect("it is there from the beginning to the end")
    }
}

impl Target for MountedFile {
    fn write(&mut self, operations: &[Extent], memory: &[u8]) -> Result<()> {
        self.file().write(operations, memory)
    }

    fn read(&mut self, operations: &[Extent], memory: &mut [u8]) -> Result<()> {
        self.file().read(operations, memory)
    }
}

impl Drop for MountedFile {
    fn drop(&mut self) {
        // In this order; the mount's process unmounts when it ends.
        (self.file, self.mount) = (None, None);
        let _ = std::fs::remove_dir(&self.directory);
    }
}

fn bare_write(file: &File, mut bytes: &[u8], mut offset: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let (pointer, length) = (bytes.as_ptr(), bytes.len());
        // SAFETY: memory that is ours to read, of that length.
        let moved =
            unsafe { libc::syscall(libc::SYS_pwrite64, file.as_raw_fd(), pointer, length, offset) };
        let moved = progress_of(moved)?;
        bytes = &bytes[moved..];
        offset += moved as u64;
    }
    Ok(())
}

fn bare_read(file: &File, mut bytes: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let (pointer, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: memory that is ours to write, of that length.
        let moved =
            unsafe { libc::syscall(libc::SYS_pread64, file.as_raw_fd(), pointer, length, offset) };
        let moved = progress_of(moved)?;
        bytes = &mut bytes[moved..];
        offset += moved as u64;
    }
    Ok(())
}

fn progress_of(moved: libc::c_long) -> std::io::Result<usize> {
    match moved {
        ..0 => Err(std::io::Error::last_os_error()),
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        moved => Ok(moved as usize),
    }
}

impl Target for PosixFile {
    fn write(&mut self, operations: &[Extent], memory: &[u8]) -> Result<()> {
        let mut rest = memory;
        for extent in operations {
            let (now, later) = rest.split_at(extent.length as usize);
            rest = later;
            let written = match self.calls {
                Calls::Library => self.file.write_all_at(now, extent.offset),
                Calls::Kernel => bare_write(&self.file, now, extent.offset),
            };
            written.map_err(|error| self.trouble("write", &error))?;
        }
        Ok(())
    }

    fn read(&mut self, operations: &[Extent], memory: &mut [u8]) -> Result<()> {
        let mut rest = memory;
        for extent in operations {
            let (now, later) = rest.split_at_mut(extent.length as usize);
            rest = later;
            let read = match self.calls {
                Calls::Library => self.file.read_exact_at(now, extent.offset),
                Calls::Kernel => bare_read(&self.file, now, extent.offset),
            };
            read.map_err(|error| self.trouble("read", &error))?;
        }
        Ok(())
    }
}
