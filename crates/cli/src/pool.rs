//! A pool as the commands use it: by path, each call waiting for its answer.

use crate::args::{self, Which};
use crate::failure::{Failure, Outcome};
use crate::kept::KeptFile;
use crate::state::{PoolDirectory, PoolFile, Standing};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use weir_client::{ConnectOptions, FormOptions, Formed, Pool, PoolAddress, Transport};
use weir_core::auth::{Role, Secret};
use weir_core::config::{ENTRIES_PER_REPLY_MAX, Timing};
use weir_core::error::{Code, Error, Result};
use weir_core::fs::PoolUsage;
use weir_core::layout::Layout;
use weir_core::types::{Attributes, Credentials, Entry, FileKind, Ino, ServerIndex};
use weir_core::wire::control::{ControlReply, ControlRequest, ScrubReport, ServerStatus};
use weir_core::wire::meta::{Changes, LayoutWish, OpenMode, Place};
use weir_core::wire::protocol;

/// An open file in a pool.
pub(crate) type File = weir_core::fs::File<weir_client::Net>;

/// All that it takes to reach a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Access {
    servers: Vec<String>,
    secret: String,
    connections: Option<usize>,
    #[serde(default)]
    transport: Transport,
    timing: Timing,
}

impl Access {
    pub(crate) fn new(file: &PoolFile, secret: &Secret) -> Access {
        Access {
            servers: file.servers.clone(),
            secret: secret.to_text(),
            connections: file.connections,
            transport: Transport::Auto,
            timing: file.timing.clone(),
        }
    }

    /// That of the pool that the user means; he may have said how many connections he wants.
    pub(crate) fn find(
        which: Option<&str>,
        wire: Option<&args::Wire>,
    ) -> Outcome<(PoolDirectory, Access)> {
        let directory = PoolDirectory::chosen(which)?;
        let file = directory.read()?;
        match file.standing() {
            Standing::Up => {}
            Standing::Forming => {
                return Err(Failure::say(format!(
                    "use pool {}: it is being made; try again",
                    file.name
                )));
            }
            Standing::Stale if KeptFile::is_in(&directory.path) => {
                return Err(Failure::say(format!(
                    "use pool {}: its servers are gone; 'weir up {}' brings it back",
                    file.name, file.name
                )));
            }
            Standing::Stale => {
                return Err(Failure::say(format!(
                    "use pool {}: its servers are gone, and what it held; 'weir down {}' clears it away",
                    file.name, file.name
                )));
            }
        }
        let mut access = Access::new(&file, &directory.secret()?);
        if let Some(wire) = wire {
            access.transport = wire.transport;
            access.connections = wire.connections.map(usize::from).or(access.connections);
        }
        Ok((directory, access))
    }

    fn secret(&self) -> Outcome<Secret> {
        Ok(Secret::parse(&self.secret)?)
    }

    fn options(&self) -> ConnectOptions {
        let mut options = ConnectOptions {
            transport: self.transport,
            timing: self.timing.clone(),
            ..ConnectOptions::default()
        };
        if let Some(connections) = self.connections {
            options.connections = connections;
        }
        options
    }

    pub(crate) fn connect(&self, role: Role) -> Outcome<Pool> {
        let address = PoolAddress { servers: self.servers.clone(), secret: self.secret()?, role };
        Ok(Pool::connect(&address, &self.options())?)
    }
}

/// Makes servers that were started into a pool.
pub(crate) fn form(access: &Access, name: &str, options: &args::Servers) -> Outcome<Formed> {
    let form = FormOptions {
        name: name.to_owned(),
        owner_uid: nix::unistd::Uid::effective().as_raw(),
        owner_gid: nix::unistd::Gid::effective().as_raw(),
        stripe_size: options.stripe_size,
        stripe_count: options.stripe_count,
    };
    Ok(weir_client::form(&access.servers, &access.secret()?, &form, &access.options())?)
}

/// Makes servers that came back into the pool that they were.
pub(crate) fn form_again(access: &Access, formed: &Formed) -> Outcome<Formed> {
    let options = access.options();
    Ok(weir_client::form_again(&access.servers, &access.secret()?, formed, &options)?)
}

/// Makes one server that came back part of its pool again.
pub(crate) fn rejoin(access: &Access, formed: &Formed, index: usize) -> Outcome<()> {
    Ok(weir_client::rejoin(index, &access.secret()?, formed, &access.options())?)
}

/// A pool and who asks.
pub(crate) struct Store {
    pool: Pool,
    who: Credentials,
}

fn place(path: &Path) -> Place {
    Place::new(Ino::ROOT, path.as_os_str().as_bytes())
}

impl Store {
    pub(crate) fn connect(access: &Access) -> Outcome<Store> {
        let pool = access.connect(Role::Owner)?;
        let who = Credentials {
            uid: nix::unistd::Uid::effective().as_raw(),
            gid: nix::unistd::Gid::effective().as_raw(),
            groups: Vec::new(),
        };
        Ok(Store { pool, who })
    }

    /// Connects to the pool that the user means.
    pub(crate) fn open(which: &Which, wire: Option<&args::Wire>) -> Outcome<Store> {
        Store::connect(&Access::find(which.pool.as_deref(), wire)?.1)
    }

    pub(crate) fn lookup(&self, path: &Path, follow: bool) -> Result<Attributes> {
        self.pool.run(self.pool.fs().lookup(&self.who, place(path), follow))
    }

    /// As [`Store::lookup`]; `None` if there is nothing of that name.
    pub(crate) fn find(&self, path: &Path, follow: bool) -> Result<Option<Attributes>> {
        match self.lookup(path, follow) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.code == Code::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All entries of a directory.
    pub(crate) fn list(&self, directory: Ino) -> Result<Vec<(Entry, Attributes)>> {
        let mut found: Vec<(Entry, Attributes)> = Vec::new();
        loop {
            let after = found.last().map_or(Vec::new(), |(entry, _)| entry.name.clone());
            let limit = ENTRIES_PER_REPLY_MAX as u32;
            let part =
                self.pool.run(self.pool.fs().list(&self.who, directory, &after, limit, true))?;
            let nothing = part.entries.is_empty();
            found.extend(part.entries.into_iter().zip(part.attributes));
            if part.end || nothing {
                return Ok(found);
            }
        }
    }

    /// All that lies below a directory, above before below, in the order of names.
    pub(crate) fn walk(&self, top: &Path) -> Result<Vec<(PathBuf, Attributes)>> {
        let mut found = Vec::new();
        let mut waiting = vec![(top.to_owned(), self.lookup(top, true)?.ino)];
        while let Some((directory, ino)) = waiting.pop() {
            let below = waiting.len();
            for (entry, attributes) in self.list(ino)? {
                let path = directory.join(std::ffi::OsString::from_vec(entry.name));
                if attributes.kind == FileKind::Directory {
                    waiting.push((path.clone(), attributes.ino));
                }
                found.push((path, attributes));
            }
            waiting[below..].reverse();
        }
        Ok(found)
    }

    pub(crate) fn open_file(&self, ino: Ino) -> Result<File> {
        Ok(self.pool.run(self.pool.fs().open(&self.who, ino, OpenMode::READ))?.0)
    }

    /// Makes a file that must not be there yet.
    pub(crate) fn create_file(&self, path: &Path, mode: u32) -> Result<File> {
        let create = self.pool.fs().create(
            &self.who,
            place(path),
            mode,
            true,
            OpenMode::READ_WRITE,
            LayoutWish::default(),
        );
        Ok(self.pool.run(create)?.0)
    }

    pub(crate) fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.pool.run(file.read_at(buffer, offset))
    }

    pub(crate) fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> Result<()> {
        self.pool.run(file.write_at(bytes, offset))
    }

    pub(crate) fn attributes(&self, ino: Ino) -> Result<Attributes> {
        self.pool.run(self.pool.fs().attributes(&self.who, ino))
    }

    pub(crate) fn set_mode(&self, ino: Ino, mode: u32) -> Result<()> {
        let changes = Changes { mode: Some(mode), ..Changes::default() };
        self.pool.run(self.pool.fs().change(&self.who, ino, changes)).map(drop)
    }

    /// Makes what was written last as long as the pool can.
    pub(crate) fn sync(&self, file: &File) -> Result<()> {
        self.pool.run(file.sync())
    }

    pub(crate) fn close(&self, file: &File) -> Result<()> {
        self.pool.run(file.close())
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.pool.run(self.pool.fs().rename(&self.who, place(from), place(to), false, false))
    }

    /// Makes a directory unless there is one.
    pub(crate) fn make_directory(&self, path: &Path, mode: u32) -> Result<()> {
        let made = self.pool.run(self.pool.fs().make_directory(&self.who, place(path), mode));
        match made {
            Err(error) if error.code == Code::Exists => match self.lookup(path, true)?.kind {
                FileKind::Directory => Ok(()),
                _ => Err(error),
            },
            other => other.map(drop),
        }
    }

    /// Makes the directories above a path.
    pub(crate) fn make_parents(&self, path: &Path) -> Result<()> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for directory in above {
            if directory != Path::new("/") && !directory.as_os_str().is_empty() {
                self.make_directory(directory, 0o777)?;
            }
        }
        Ok(())
    }

    pub(crate) fn symlink(&self, path: &Path, text: &[u8]) -> Result<()> {
        self.pool.run(self.pool.fs().symlink(&self.who, place(path), text)).map(drop)
    }

    pub(crate) fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.pool.run(self.pool.fs().read_link(&self.who, ino))
    }

    /// Removes a name.
    pub(crate) fn remove(&self, path: &Path, kind: FileKind) -> Result<()> {
        match kind {
            FileKind::Directory => {
                self.pool.run(self.pool.fs().remove_directory(&self.who, place(path)))
            }
            _ => self.pool.run(self.pool.fs().unlink(&self.who, place(path))),
        }
    }

    pub(crate) fn layout(&self, ino: Ino) -> Result<(Option<Layout>, LayoutWish)> {
        self.pool.run(self.pool.fs().layout(&self.who, ino))
    }

    pub(crate) fn set_layout(
        &self,
        ino: Ino,
        wish: LayoutWish,
    ) -> Result<(Option<Layout>, LayoutWish)> {
        self.pool.run(self.pool.fs().set_layout(&self.who, ino, wish))
    }

    pub(crate) fn usage(&self) -> Result<PoolUsage> {
        self.pool.run(self.pool.fs().usage())
    }

    /// Each server's counters.
    pub(crate) fn status(&self) -> Vec<std::result::Result<ServerStatus, Error>> {
        self.pool.status()
    }

    /// How far a server's verification of its disk is; with a rate, one is begun.
    pub(crate) fn scrub(&self, server: usize, rate: u64) -> Result<ScrubReport> {
        let request = ControlRequest::Scrub { rate };
        match self.pool.run(self.pool.fs().control(ServerIndex(server as u16), request))? {
            ControlReply::Scrub(report) => Ok(*report),
            other => Err(protocol(format!("answer of another kind: {other:.60?}"))),
        }
    }

    /// Ends the servers: for those that nobody holds.
    pub(crate) fn shut_down(&self) -> Vec<Result<()>> {
        self.pool.shutdown()
    }

    pub(crate) fn map(&self) -> &weir_core::wire::control::PoolMap {
        self.pool.map()
    }
}

/// A path in the pool: `weir:/a/b`, `weir:a/b`, and where nothing else can be meant `/a/b`.
pub(crate) fn path_in_pool(text: &str) -> Outcome<PathBuf> {
    let path = text.strip_prefix("weir:").unwrap_or(text);
    if text.is_empty() {
        return Err(Failure::usage("path '': empty; write weir:/path"));
    }
    let mut plain = PathBuf::from("/");
    for component in Path::new(path).components() {
        match component {
            std::path::Component::Normal(name) => plain.push(name),
            std::path::Component::ParentDir => {
                plain.pop();
            }
            _ => {}
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_the_pool() {
        let path = |text| path_in_pool(text).expect("good");
        for (text, expected) in [
            ("weir:/a/b", "/a/b"),
            ("weir:a", "/a"),
            ("weir:", "/"),
            ("/a//b/", "/a/b"),
            ("weir:/a/../../b/.", "/b"),
        ] {
            assert_eq!(path(text), Path::new(expected), "{text}");
        }
        assert!(path_in_pool("").is_err());
    }
}
