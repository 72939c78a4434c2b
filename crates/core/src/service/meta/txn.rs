//! Optimistic transactions: what was read becomes the conditions of what is written.

use super::records::{
    DirectoryTimes, Inode, Target, UNNAMED, decode, garbage_key, inode_key, name_key, orphan_key,
    times_key, xattrs_of,
};
use super::store::{Batch, MetaStore, Outcome};
use crate::error::{Code, Error, Result};
use crate::types::{Ino, WallTime};
use crate::wire;

/// Why one attempt at a transaction came to nothing.
pub(super) enum Fault {
    /// What it read has changed: try again.
    Conflict,
    Failed(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Failed(error)
    }
}

/// The result of one attempt.
pub(super) type Step<T> = std::result::Result<T, Fault>;

/// Attempts at one transaction before its client is told to come again later.
pub(super) const ATTEMPTS_MAX: usize = 64;

/// Repeats an attempt (an expression that makes its future anew) while it conflicts.
macro_rules! attempt {
    ($step:expr) => {{
        let mut attempts = 0;
        loop {
            match $step.await {
                Ok(value) => break Ok(value),
                Err($crate::service::meta::txn::Fault::Failed(error)) => break Err(error),
                Err($crate::service::meta::txn::Fault::Conflict) => {
                    attempts += 1;
                    if attempts == $crate::service::meta::txn::ATTEMPTS_MAX {
                        break Err($crate::error::Error::because(
                            $crate::error::Code::Busy,
                            "too many others change the same metadata",
                        ));
                    }
                }
            }
        }
    }};
}
pub(super) use attempt;

/// Repeats an attempt, an expression over a new transaction `$txn`, while it conflicts. What it
/// read was so all at one moment, whether it changed something, changed nothing or failed.
macro_rules! transact {
    ($service:expr, $txn:ident => $step:expr) => {
        $crate::service::meta::txn::attempt!(async {
            let mut $txn = $service.txn();
            let result = $step.await;
            $txn.conclude(result).await
        })
    };
}
pub(super) use transact;

/// One attempt at a transaction.
pub(super) struct Txn<'a> {
    store: &'a dyn MetaStore,
    batch: Batch,
    inodes: Vec<Loaded>,
}

struct Loaded {
    ino: Ino,
    inode: Inode,
    changed: bool,
}

pub(super) fn no_inode(ino: Ino) -> Error {
    Error::because(Code::NotFound, format!("inode {} does not exist (any more)", ino.0))
}

/// An inode, outside of any transaction.
pub(super) async fn peek(store: &dyn MetaStore, ino: Ino) -> Result<Inode> {
    let found = store.get(&inode_key(ino)).await?.ok_or_else(|| no_inode(ino))?;
    Inode::decode(&found.value)
}

/// What a name leads to, outside of any transaction.
pub(super) async fn peek_name(
    store: &dyn MetaStore,
    directory: Ino,
    name: &[u8],
) -> Result<Option<Target>> {
    let found = store.get(&name_key(directory, name)).await?;
    found.map(|found| decode(&found.value, "a name")).transpose()
}

impl<'a> Txn<'a> {
    pub(super) fn new(store: &'a dyn MetaStore) -> Txn<'a> {
        // Before anything is read.
        let batch = Batch { moment: store.moment(), ..Batch::default() };
        Txn { store, batch, inodes: Vec::new() }
    }

    /// A value, which must not have changed when this is committed.
    pub(super) async fn read(&mut self, key: Vec<u8>) -> Result<Option<Vec<u8>>> {
        let found = self.store.get(&key).await?;
        let (version, value) = match found {
            Some(found) => (Some(found.version), Some(found.value)),
            None => (None, None),
        };
        self.batch.conditions.push((key, version));
        Ok(value)
    }

    /// Loads an inode, once; it must not have changed when this is committed.
    pub(super) async fn load(&mut self, ino: Ino) -> Result<&Inode> {
        if let Some(at) = self.inodes.iter().position(|loaded| loaded.ino == ino) {
            return Ok(&self.inodes[at].inode);
        }
        let value = self.read(inode_key(ino)).await?.ok_or_else(|| no_inode(ino))?;
        self.inodes.push(Loaded { ino, inode: Inode::decode(&value)?, changed: false });
        Ok(&self.inodes[self.inodes.len() - 1].inode)
    }

    /// How many inodes were loaded.
    pub(super) fn loaded(&self) -> usize {
        self.inodes.len()
    }

    /// An inode that was loaded.
    pub(super) fn inode(&self, ino: Ino) -> &Inode {
        let loaded = self.inodes.iter().find(|loaded| loaded.ino == ino);
        &loaded.expect("the caller has loaded it").inode
    }

    /// An inode that was loaded, to be changed.
    pub(super) fn change(&mut self, ino: Ino) -> &mut Inode {
        let loaded = self.inodes.iter_mut().find(|loaded| loaded.ino == ino);
        let loaded = loaded.expect("the caller has loaded it");
        loaded.changed = true;
        &mut loaded.inode
    }

    /// Adds a new inode.
    pub(super) fn add(&mut self, ino: Ino, inode: Inode) {
        self.batch.conditions.push((inode_key(ino), None));
        self.inodes.push(Loaded { ino, inode, changed: true });
    }

    /// Removes a loaded inode, with its extended attributes.
    pub(super) async fn remove(&mut self, ino: Ino) -> Result<Inode> {
        let at = self.inodes.iter().position(|loaded| loaded.ino == ino);
        let loaded = self.inodes.swap_remove(at.expect("the caller has loaded it"));
        self.batch.deletes.push(inode_key(ino));
        if loaded.inode.is_directory() {
            self.batch.deletes.push(times_key(ino));
        }
        if loaded.inode.xattrs > 0 {
            let (start, end) = xattrs_of(ino);
            // Whoever sets one changes the inode, which would be a conflict: none is missed.
            let count = loaded.inode.xattrs as usize;
            for item in self.store.range(&start, &end, count).await? {
                self.batch.deletes.push(item.key);
            }
        }
        self.batch.reserve = true;
        Ok(loaded.inode)
    }

    /// What a name leads to; it must lead there still when this is committed.
    pub(super) async fn name(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Target>> {
        let value = self.read(name_key(directory, name)).await?;
        value.map(|value| decode(&value, "a name")).transpose()
    }

    pub(super) fn put_name(&mut self, directory: Ino, name: &[u8], target: Target) {
        self.batch.puts.push((name_key(directory, name), wire::encode(&target)));
    }

    pub(super) fn delete_name(&mut self, directory: Ino, name: &[u8]) {
        self.batch.deletes.push(name_key(directory, name));
        self.batch.reserve = true;
    }

    /// Notes that names in a directory changed.
    pub(super) fn touch(&mut self, directory: Ino, at: WallTime) {
        let times = DirectoryTimes { mtime: at, ctime: at };
        self.put(times_key(directory), wire::encode(&times));
    }

    /// Puts a value; the last one for a key counts.
    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.batch.puts.retain(|(other, _)| *other != key);
        self.batch.puts.push((key, value));
    }

    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.batch.deletes.push(key);
        self.batch.reserve = true;
    }

    pub(super) fn put_orphan(&mut self, ino: Ino) {
        self.put(orphan_key(ino), Vec::new());
        self.batch.reserve = true;
    }

    /// The same of one that never had a name.
    pub(super) fn put_unnamed(&mut self, ino: Ino) {
        self.put(orphan_key(ino), UNNAMED.to_vec());
    }

    /// Whether it is an orphan that never had a name; it must be so still when this is committed.
    pub(super) async fn is_unnamed(&mut self, ino: Ino) -> Result<bool> {
        Ok(self.read(orphan_key(ino)).await?.is_some_and(|mark| mark == UNNAMED))
    }

    pub(super) fn put_garbage(&mut self, ino: Ino, layout: Vec<u8>) {
        self.put(garbage_key(ino), layout);
        self.batch.reserve = true;
    }

    /// There must be nothing in this range when this is committed.
    pub(super) fn expect_empty(&mut self, range: (Vec<u8>, Vec<u8>)) {
        self.batch.empty.push(range);
    }

    /// Lets it use the memory kept for what must work when all is full.
    pub(super) fn use_reserve(&mut self) {
        self.batch.reserve = true;
    }

    /// Nothing can be read or changed in it any more.
    pub(super) async fn commit(&mut self) -> Step<()> {
        for loaded in self.inodes.drain(..).filter(|loaded| loaded.changed) {
            self.batch.puts.push((inode_key(loaded.ino), loaded.inode.encode()));
        }
        self.end().await
    }

    /// Ends an attempt. If it changed nothing, what it found must still be so, all of it: an answer
    /// put together from before and after another change could be one that was never right.
    pub(super) async fn conclude<T>(mut self, result: Step<T>) -> Step<T> {
        let conflicts = matches!(result, Err(Fault::Conflict));
        // After a commit there is none. One alone was right when it was read.
        if !conflicts && self.batch.conditions.len() > 1 {
            self.batch.puts.clear();
            self.batch.deletes.clear();
            self.end().await?;
        }
        result
    }

    async fn end(&mut self) -> Step<()> {
        match self.store.commit(std::mem::take(&mut self.batch)).await? {
            Outcome::Done => Ok(()),
            Outcome::Conflict => Err(Fault::Conflict),
        }
    }
}
