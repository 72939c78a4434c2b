//! What is known of pools on this machine: `~/.weir/pools/NAME/` with `pool.json` and `secret`.

use crate::args;
use crate::failure::{Failure, Outcome};
use crate::kept::KeptFile;
use crate::sys::{self, Process};
use nix::unistd::Uid;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use weir_core::auth::Secret;
use weir_core::config::Timing;

/// `pool.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PoolFile {
    pub(crate) name: String,
    /// `host:port` of each server; empty until the pool is formed.
    pub(crate) servers: Vec<String>,
    /// Whether its servers are ours to end (rather than the site's).
    pub(crate) owns_servers: bool,
    /// Who keeps it: `weir run`, or the keeper that `weir up` left. Servers started elsewhere need
    /// none.
    pub(crate) keeper: Option<Process>,
    /// The servers that were started on this machine.
    pub(crate) processes: Vec<Process>,
    /// Where it is mounted, and by whom.
    pub(crate) mounts: Vec<Mounted>,
    /// Of a run: directories to mount at, inner ones first, that go with it once they are empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) made: Vec<PathBuf>,
    /// Connections to each server that were asked for.
    pub(crate) connections: Option<usize>,
    /// The times that it was made with.
    #[serde(default)]
    pub(crate) timing: Timing,
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mounted {
    pub(crate) directory: PathBuf,
    pub(crate) process: Process,
}

/// How a pool fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Being made right now.
    Forming,
    Up,
    /// Who kept it is gone, and its servers with him.
    Stale,
}

/// A pool's directory.
#[derive(Clone, Debug)]
pub(crate) struct PoolDirectory {
    pub(crate) path: PathBuf,
}

/// Whether this can be a pool's name, which is a file name and an environment value too.
pub(crate) fn check_name(name: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > 64 || name.starts_with(['.', '-']) || !name.chars().all(fine)
    {
        return Err("a pool's name is 1 to 64 letters, digits, '.', '_' and '-', and begins with a letter, a digit or '_'".into());
    }
    Ok(name.to_owned())
}

/// Where pools and the configuration are.
pub(crate) fn home() -> Outcome<PathBuf> {
    if let Some(home) = std::env::var_os("WEIR_HOME").filter(|home| !home.is_empty()) {
        return Ok(PathBuf::from(home));
    }
    match std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        Some(home) => Ok(PathBuf::from(home).join(".weir")),
        None => Err(Failure::usage(
            "find pools: neither WEIR_HOME nor HOME is set; set WEIR_HOME to a directory of yours",
        )),
    }
}

/// A directory that only we can enter: made, or found and checked.
pub(crate) fn private_directory(path: &Path) -> Outcome<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(path);
    match made {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Failure::system("make directory", path.display(), error)),
    }
    let found = std::fs::symlink_metadata(path)
        .map_err(|error| Failure::system("look at", path.display(), error))?;
    if !found.is_dir() || found.uid() != Uid::effective().as_raw() || found.mode() & 0o022 != 0 {
        return Err(Failure::say(format!(
            "use {}: not a directory of yours alone; remove it, or chmod go-w it",
            path.display()
        )));
    }
    Ok(())
}

impl PoolDirectory {
    /// Whether pools can be kept: where.
    pub(crate) fn check_home() -> Outcome<PathBuf> {
        let home = home()?;
        // What is there must be ours; what is not must be possible to make.
        if home.symlink_metadata().is_ok() {
            private_directory(&home)?;
            return Ok(home);
        }
        let above = home.ancestors().skip(1).find(|above| above.is_dir()).unwrap_or(Path::new("/"));
        match nix::unistd::access(above, nix::unistd::AccessFlags::W_OK) {
            Ok(()) => Ok(home),
            Err(error) => Err(Failure::system("make directory", home.display(), error)),
        }
    }

    /// Where pool `name` is or would be; a name with a slash is the directory itself.
    pub(crate) fn of(name: &str) -> Outcome<PoolDirectory> {
        if name.contains('/') {
            return Ok(PoolDirectory { path: PathBuf::from(name) });
        }
        check_name(name).map_err(|why| Failure::usage(format!("name '{name}': {why}")))?;
        Ok(PoolDirectory { path: home()?.join("pools").join(name) })
    }

    /// All that there are, in the order of their names.
    pub(crate) fn all() -> Outcome<Vec<PoolDirectory>> {
        let pools = home()?.join("pools");
        let entries = match std::fs::read_dir(&pools) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Failure::system("list", pools.display(), error)),
        };
        let mut found: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_dir() && maker(path).is_none())
            .collect();
        found.sort();
        Ok(found.into_iter().map(|path| PoolDirectory { path }).collect())
    }

    /// The directory of the pool that is meant: named, or in `WEIR_POOL`, or the only one there is.
    pub(crate) fn chosen(name: Option<&str>) -> Outcome<PoolDirectory> {
        if let Some(name) = name {
            let directory = PoolDirectory::of(name)?;
            return match directory.path.join("pool.json").exists() {
                true => Ok(directory),
                false if KeptFile::is_in(&directory.path) => Err(Failure::say(format!(
                    "find pool {name}: it is down; 'weir up {name}' brings it back"
                ))),
                false => Err(Failure::say(format!(
                    "find pool {name}: there is none; 'weir status' lists pools, 'weir up {name}' makes it"
                ))),
            };
        }
        let up: Vec<PoolDirectory> = PoolDirectory::all()?
            .into_iter()
            .filter(|pool| pool.read().is_ok_and(|file| file.standing() == Standing::Up))
            .collect();
        match up.as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(Failure::say("find pool: none is up; 'weir up NAME' makes one")),
            several => {
                let names: Vec<String> = several.iter().map(PoolDirectory::name).collect();
                Err(Failure::usage(format!(
                    "find pool: {} are up ({}); say which with --pool NAME or WEIR_POOL",
                    names.len(),
                    names.join(", ")
                )))
            }
        }
    }

    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Makes the directory of a new pool, with a fresh secret or the given one, and its file: whole
    /// or not at all. A stale one of that name is removed first.
    pub(crate) fn make(
        secret: Option<Secret>,
        file: &PoolFile,
    ) -> Outcome<(PoolDirectory, Secret)> {
        let name = &file.name;
        let home = home()?;
        // Parents of WEIR_HOME are the user's business; they may be shared.
        if let Some(parent) = home.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|error| Failure::system("make directory", parent.display(), error))?;
        }
        let pools = home.join("pools");
        private_directory(&home)?;
        private_directory(&pools)?;
        let directory = PoolDirectory::of(name)?;
        let secret = match secret {
            Some(secret) => secret,
            None => Secret::from_bytes(sys::random()?),
        };
        // Its name says whose it is: should this process be killed now, another removes it.
        let fresh = PoolDirectory { path: pools.join(making_name(&Process::me()?)) };
        let fill = || {
            private_directory(&fresh.path)?;
            fresh.store("secret", format!("{}\n", secret.to_text()).as_bytes())?;
            fresh.write(file)?;
            for attempt in 0.. {
                // Replaces an empty directory, and no other.
                match std::fs::rename(&fresh.path, &directory.path) {
                    Ok(()) => break,
                    Err(error)
                        if error.kind() == std::io::ErrorKind::DirectoryNotEmpty
                            && attempt == 0 =>
                    {
                        directory.remove_if_stale(name)?;
                    }
                    Err(error) => {
                        let path = directory.path.display();
                        return Err(Failure::system("make directory", path, error));
                    }
                }
            }
            Ok(())
        };
        fill().inspect_err(|_| fresh.clear())?;
        Ok((directory, secret))
    }

    fn remove_if_stale(&self, name: &str) -> Outcome<()> {
        // A directory without its file is being made by another, or was left half made.
        let standing = match self.read() {
            Ok(file) => file.standing(),
            Err(_) => match std::fs::metadata(&self.path).and_then(|found| found.modified()) {
                Ok(time) if time.elapsed().is_ok_and(|age| age.as_secs() > 60) => Standing::Stale,
                _ => Standing::Forming,
            },
        };
        match standing {
            Standing::Stale => {
                crate::failure::tell(format!(
                    "pool {name} was left behind by servers that are gone; removed"
                ));
                self.clear_left();
                Ok(())
            }
            Standing::Up => Err(Failure::say(format!(
                "make pool {name}: it is up already; 'weir down {name}' ends it, or choose another name"
            ))),
            Standing::Forming => Err(Failure::say(format!(
                "make pool {name}: another weir is making it; 'weir down {name}' ends it, or choose another name"
            ))),
        }
    }

    /// Removes what runs left that were killed together with their keepers, and what was left by
    /// whoever was killed while he made a pool's directory or removed it.
    pub(crate) fn sweep() {
        let Ok(pools) = home().map(|home| home.join("pools")) else { return };
        for entry in std::fs::read_dir(pools).into_iter().flatten().flatten() {
            let directory = PoolDirectory { path: entry.path() };
            match maker(&directory.path) {
                Some(maker) if maker.lives() => {}
                Some(_) => directory.clear(),
                None if !directory.name().starts_with("run-") => {}
                None => match directory.read() {
                    Ok(file) if file.standing() == Standing::Stale => directory.clear_left(),
                    Ok(_) => {}
                    // Goes if it is empty, which none is that is still in use.
                    Err(_) => drop(std::fs::remove_dir(&directory.path)),
                },
            }
        }
    }

    /// Removes the directory of a pool that is stale, and those that it was to be mounted at.
    fn clear_left(&self) {
        for made in self.read().map(|file| file.made).unwrap_or_default() {
            let _ = std::fs::remove_dir(made);
        }
        self.clear();
    }

    pub(crate) fn read(&self) -> Outcome<PoolFile> {
        let path = self.path.join("pool.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Failure::system("read", path.display(), error))?;
        serde_json::from_str(&text).map_err(|error| {
            Failure::say(format!(
                "read {}: {error}; 'weir down {}' removes it",
                path.display(),
                self.name()
            ))
        })
    }

    pub(crate) fn write(&self, file: &PoolFile) -> Outcome<()> {
        let text = serde_json::to_string_pretty(file)
            .map_err(|error| Failure::system("write", "pool.json", error))?;
        self.store("pool.json", text.as_bytes())
    }

    /// Changes `pool.json`, alone: `weir mount` and `weir umount` may come at once.
    pub(crate) fn change(&self, change: impl FnOnce(&mut PoolFile)) -> Outcome<()> {
        let lock = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.path.join("lock"))
            .map_err(|error| Failure::system("lock", self.path.display(), error))?;
        let _lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive)
            .map_err(|(_, error)| Failure::system("lock", self.path.display(), error))?;
        let mut file = self.read()?;
        change(&mut file);
        self.write(&file)
    }

    pub(crate) fn secret(&self) -> Outcome<Secret> {
        read_secret(&self.path.join("secret"))
    }

    /// Whole or not at all, and for our eyes only.
    pub(crate) fn store(&self, name: &str, bytes: &[u8]) -> Outcome<()> {
        let path = self.path.join(name);
        let fresh = self.path.join(format!(".{name}.{}", std::process::id()));
        let write = || {
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&fresh)?;
            file.write_all(bytes)?;
            std::fs::rename(&fresh, &path)
        };
        write().map_err(|error| Failure::system("write", path.display(), error))
    }

    /// Removes the directory and what we put there: nothing else. Of a kept pool what is needed to
    /// find it again stays.
    pub(crate) fn clear(&self) {
        self.remove(KeptFile::is_in(&self.path));
    }

    /// Removes the directory, of a kept pool too.
    pub(crate) fn forget(&self) {
        self.remove(false);
    }

    fn remove(&self, kept: bool) {
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // By `pool.json` others see whose the rest is: it goes last.
            let ours = name == "lock"
                || (!kept && ["secret", "kept.json"].contains(&&*name))
                || name.ends_with(".log")
                || name.starts_with(".pool.json.")
                || name.starts_with(".secret.")
                || name.starts_with(".kept.json.")
                || name.starts_with("board-");
            if ours {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        // Of a run without a mount: directories in which nothing is to be made.
        let working = self.path.join(crate::run::job::WORKING);
        for entry in std::fs::read_dir(&working).into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir(entry.path());
        }
        let _ = std::fs::remove_dir(&working);
        let _ = std::fs::remove_file(self.path.join("pool.json"));
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// What a directory that is being made is called until it is whole.
const MAKING: &str = ".making.";

/// The name, until it is whole, of a directory that a process makes.
fn making_name(Process { pid, start, boot, host }: &Process) -> String {
    format!("{MAKING}{pid}.{start}.{boot}.{host}")
}

/// Who makes a directory, if it is one that is being made.
fn maker(path: &Path) -> Option<Process> {
    let name = path.file_name()?.to_str()?.strip_prefix(MAKING)?;
    let mut parts = name.splitn(4, '.');
    let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let (boot, host) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    Some(Process { pid, start, boot, host })
}

impl PoolFile {
    /// What is said of a pool that this process begins to form.
    pub(crate) fn forming(name: &str, wire: &args::Wire, timing: &Timing) -> Outcome<PoolFile> {
        Ok(PoolFile {
            name: name.to_owned(),
            servers: Vec::new(),
            owns_servers: true,
            keeper: Some(Process::me()?),
            processes: Vec::new(),
            mounts: Vec::new(),
            made: Vec::new(),
            connections: wire.connections.map(usize::from),
            timing: timing.clone(),
        })
    }

    pub(crate) fn standing(&self) -> Standing {
        match &self.keeper {
            Some(keeper) if !keeper.lives() => match self.processes.iter().any(Process::lives) {
                true => Standing::Up,
                false => Standing::Stale,
            },
            _ if self.servers.is_empty() => Standing::Forming,
            _ => Standing::Up,
        }
    }
}

/// Reads a secret file, which nobody else may read.
pub(crate) fn read_secret(path: &Path) -> Outcome<Secret> {
    let found = std::fs::metadata(path)
        .map_err(|error| Failure::system("read secret", path.display(), error))?;
    if found.mode() & 0o077 != 0 {
        return Err(Failure::say(format!(
            "read secret {}: others may read it (mode {:o}); chmod 600 it",
            path.display(),
            found.mode() & 0o7777
        )));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::system("read secret", path.display(), error))?;
    Secret::parse(&text)
        .map_err(|error| Failure::say(format!("read secret {}: {}", path.display(), error.cause)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for name in ["a", "run-1", "_x", "A.b-c_9"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", ".a", "-a", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_pool_stands_by_its_processes() {
        let me = Process::me().expect("self");
        let gone = Process { start: 1, ..me.clone() };
        let file = |keeper: Option<&Process>, servers: &[&str], processes: &[&Process]| PoolFile {
            name: "p".into(),
            servers: servers.iter().map(|s| s.to_string()).collect(),
            owns_servers: true,
            keeper: keeper.cloned(),
            processes: processes.iter().map(|&p| p.clone()).collect(),
            mounts: Vec::new(),
            made: Vec::new(),
            connections: None,
            timing: Timing::default(),
        };
        assert_eq!(file(Some(&me), &[], &[]).standing(), Standing::Forming);
        assert_eq!(file(Some(&me), &["a:1"], &[&gone]).standing(), Standing::Up);
        assert_eq!(file(Some(&gone), &["a:1"], &[&gone]).standing(), Standing::Stale);
        assert_eq!(file(Some(&gone), &["a:1"], &[&me]).standing(), Standing::Up);
        assert_eq!(file(None, &["a:1"], &[]).standing(), Standing::Up);
    }

    #[test]
    fn a_directory_in_the_making_says_by_whom() {
        let me = Process { host: "node-7.example.org".into(), ..Process::me().expect("self") };
        let path = Path::new("/pools").join(making_name(&me));
        assert_eq!(maker(&path), Some(me));
        for other in ["run-1", ".making", ".making.x.1.b.h", ".making.1.2.3"] {
            assert_eq!(maker(Path::new(other)), None, "{other}");
        }
    }
}
