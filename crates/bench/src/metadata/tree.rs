//! Where files are made: in a pool through the native API, or in a directory by system calls.

use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use weir_client::Pool;
use weir_core::config::ENTRIES_PER_REPLY_MAX;
use weir_core::error::{Code, Error, Result};
use weir_core::types::{Credentials, FileKind, Ino};
use weir_core::wire::meta::{LayoutWish, OpenMode, Place};

/// A directory and what can be done in it, by name.
pub(super) trait Tree {
    /// Makes a file that must not exist, open for writing, and closes it.
    fn create(&self, name: &str) -> Result<()>;

    /// Whether it is a regular file, and its size.
    fn stat(&self, name: &str) -> Result<(bool, u64)>;

    /// Removes a file.
    fn unlink(&self, name: &str) -> Result<()>;

    /// All names in it, in any order; `attributes`: each entry's attributes are asked for, too.
    fn list(&self, attributes: bool) -> Result<Vec<Vec<u8>>>;
}

/// Who this process is.
pub(super) fn myself() -> Credentials {
    // SAFETY: these calls always succeed.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    Credentials { uid, gid, groups: Vec::new() }
}

/// A directory of a pool.
pub(super) struct PoolTree<'a> {
    pub(super) pool: &'a Pool,
    pub(super) who: Credentials,
    /// From the root, without a slash at either end.
    pub(super) directory: String,
}

impl PoolTree<'_> {
    fn place(&self, name: &str) -> Place {
        Place::new(Ino::ROOT, format!("{}/{name}", self.directory))
    }
}

impl Tree for PoolTree<'_> {
    fn create(&self, name: &str) -> Result<()> {
        let (mode, wish) = (OpenMode::WRITE, LayoutWish::default());
        self.pool.run(async {
            let create =
                self.pool.fs().create(&self.who, self.place(name), 0o600, true, mode, wish);
            create.await?.0.close().await
        })
    }

    fn stat(&self, name: &str) -> Result<(bool, u64)> {
        let found = self.pool.run(self.pool.fs().lookup(&self.who, self.place(name), true))?;
        Ok((found.kind == FileKind::Regular, found.size))
    }

    fn unlink(&self, name: &str) -> Result<()> {
        self.pool.run(self.pool.fs().unlink(&self.who, self.place(name)))
    }

    fn list(&self, attributes: bool) -> Result<Vec<Vec<u8>>> {
        let (fs, limit) = (self.pool.fs(), ENTRIES_PER_REPLY_MAX as u32);
        self.pool.run(async {
            let place = Place::new(Ino::ROOT, self.directory.as_bytes());
            let ino = fs.lookup(&self.who, place, true).await?.ino;
            let mut names: Vec<Vec<u8>> = Vec::new();
            loop {
                let after = names.last().map_or(&[][..], |name| name);
                let part = fs.list(&self.who, ino, after, limit, attributes).await?;
                if attributes && part.attributes.len() != part.entries.len() {
                    return Err(Error::because(Code::Internal, "entries without attributes"));
                }
                names.extend(part.entries.into_iter().map(|entry| entry.name));
                if part.end {
                    return Ok(names);
                }
            }
        })
    }
}

/// A directory of the kernel's.
pub(super) struct KernelTree {
    pub(super) directory: PathBuf,
}

fn trouble<'a>(operation: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |error| Error::because(Code::Invalid, error.to_string()).on(operation, path.display())
}

impl Tree for KernelTree {
    fn create(&self, name: &str) -> Result<()> {
        let path = self.directory.join(name);
        let file: std::io::Result<File> =
            File::options().write(true).create_new(true).mode(0o600).open(&path);
        // Closed at once.
        file.map(drop).map_err(trouble("create", &path))
    }

    fn stat(&self, name: &str) -> Result<(bool, u64)> {
        let path = self.directory.join(name);
        let found = std::fs::metadata(&path).map_err(trouble("stat", &path))?;
        Ok((found.is_file(), found.len()))
    }

    fn unlink(&self, name: &str) -> Result<()> {
        let path = self.directory.join(name);
        std::fs::remove_file(&path).map_err(trouble("unlink", &path))
    }

    fn list(&self, attributes: bool) -> Result<Vec<Vec<u8>>> {
        let entries = std::fs::read_dir(&self.directory);
        let mut names = Vec::new();
        for entry in entries.map_err(trouble("list", &self.directory))? {
            let entry = entry.map_err(trouble("list", &self.directory))?;
            if attributes {
                entry.metadata().map_err(trouble("stat", &entry.path()))?;
            }
            names.push(entry.file_name().into_vec());
        }
        Ok(names)
    }
}

/// Refuses a listing that is not what was made: these numbers of files, each with its prefix.
pub(super) fn check(mut names: Vec<Vec<u8>>, made: &[(String, usize)], place: &str) -> Result<()> {
    let mut expected: Vec<Vec<u8>> = made
        .iter()
        .flat_map(|(prefix, count)| (0..*count).map(move |i| file_name(prefix, i).into_bytes()))
        .collect();
    expected.sort_unstable();
    names.sort_unstable();
    if names == expected {
        return Ok(());
    }
    let differs = names.iter().zip(&expected).find(|(name, expected)| name != expected);
    let at = differs.map_or_else(String::new, |(name, expected)| {
        let text = |name: &[u8]| std::ffi::OsStr::from_bytes(name).display().to_string();
        format!(", '{}' in place of '{}'", text(name), text(expected))
    });
    let cause = format!("{} entries, not {}{at}", names.len(), expected.len());
    Err(Error::because(Code::Lost, cause).on("verify", place).so("its figures mean nothing"))
}

/// The name of a process's file.
pub(super) fn file_name(prefix: &str, index: usize) -> String {
    format!("{prefix}.{index:06}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_does_what_a_tree_must() {
        let directory = tempfile::tempdir().expect("tempdir");
        let tree = KernelTree { directory: directory.path().to_owned() };
        for i in 0..3 {
            tree.create(&file_name("a", i)).expect("made");
        }
        assert!(tree.create(&file_name("a", 0)).is_err(), "it exists");
        assert_eq!(tree.stat(&file_name("a", 1)).expect("there"), (true, 0));
        let made = [("a".to_owned(), 3)];
        for attributes in [false, true] {
            check(tree.list(attributes).expect("listed"), &made, "x").expect("as made");
        }
        tree.unlink(&file_name("a", 1)).expect("removed");
        assert!(tree.stat(&file_name("a", 1)).is_err(), "it is gone");
    }

    #[test]
    fn a_listing_that_lacks_or_invents_a_name_is_refused() {
        let made = [("a".to_owned(), 2), ("b".to_owned(), 1)];
        let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
        check(names(&["b.000000", "a.000001", "a.000000"]), &made, "x").expect("all there");
        for bad in [
            &["a.000000", "a.000001"][..],
            &["a.000000", "a.000001", "b.000001"],
            &["a.000000", "a.000001", "b.000000", "b.000000"],
        ] {
            let error = check(names(bad), &made, "pool").expect_err("refused");
            assert_eq!((error.code, error.object.as_str()), (Code::Lost, "pool"), "{bad:?}");
        }
    }
}
