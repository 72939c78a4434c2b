//! Locks, as a client asks for them.

use super::file::File;
use super::{Fs, ITSELF, Rpc, shown_ino, unexpected};
use crate::error::{Code, Error, Result};
use crate::types::Ino;
use crate::wire::meta::{Lock, LockEnded, MetaReply, MetaRequest};

impl<R: Rpc> File<R> {
    /// Takes a lock on this file; it does not go with the handle, but with [`Fs::unlock`]. Where it
    /// is not to be had now, fails with `WouldBlock`, or, with a `ticket` (a number not used
    /// before), begins to wait and gives false: [`Fs::await_locks`] tells how that ends.
    ///
    /// If it fails with an error of the network, whether it happened is open: [`Fs::cancel_lock`] and
    /// [`Fs::unlock`] see to it that it did not.
    pub async fn take_lock(&self, lock: Lock, ticket: Option<u64>) -> Result<bool> {
        let lock = Lock { ino: self.ino(), ..lock };
        let ask = async {
            let request = MetaRequest::Lock { handle: self.handle()?, lock, ticket };
            match self.fs().meta(&ITSELF, lock.ino, request).await? {
                MetaReply::Done => Ok(true),
                MetaReply::Waiting => Ok(false),
                other => Err(unexpected(&other)),
            }
        };
        ask.await.map_err(|error: Error| error.on("lock", self.name()))
    }

    /// A lock that stands in the way of this one.
    pub async fn find_lock(&self, lock: Lock) -> Result<Option<Lock>> {
        let lock = Lock { ino: self.ino(), ..lock };
        let ask = async {
            let request = MetaRequest::FindLock { handle: self.handle()?, lock };
            match self.fs().meta(&ITSELF, lock.ino, request).await? {
                MetaReply::Blocked(found) => Ok(found),
                other => Err(unexpected(&other)),
            }
        };
        ask.await.map_err(|error: Error| error.on("find lock on", self.name()))
    }
}

impl<R: Rpc> Fs<R> {
    /// Lets go of what the lock's owner has locked in its range. Also right where the lease has
    /// lapsed, and the lock with it.
    pub async fn unlock(&self, lock: Lock) -> Result<()> {
        match self.done(&ITSELF, lock.ino, MetaRequest::Unlock { lock }).await {
            Err(error) if error.code == Code::SessionLapsed => Ok(()),
            result => result.map_err(|error| error.on("unlock", shown_ino(lock.ino))),
        }
    }

    /// Ends when some of this client's waits for locks have ended, or after a while without. To be
    /// called again and again, one call at a time, as long as there are waits: with all `tickets`,
    /// and those that the last call told of, which are `known` now.
    pub async fn await_locks(&self, tickets: &[u64], known: &[u64]) -> Result<Vec<LockEnded>> {
        let request = MetaRequest::AwaitLocks { tickets: tickets.to_vec(), known: known.to_vec() };
        self.locks_ended(request).await.map_err(|error| error.on("await", "locks"))
    }

    /// Gives up a wait. True: too late, the lock is held.
    pub async fn cancel_lock(&self, ticket: u64) -> Result<bool> {
        match self.locks_ended(MetaRequest::CancelLock { ticket }).await {
            Ok(ended) => Ok(ended.iter().any(|ended| ended.failure.is_none())),
            Err(error) if error.code == Code::SessionLapsed => Ok(false),
            Err(error) => Err(error.on("give up", "lock")),
        }
    }

    async fn locks_ended(&self, request: MetaRequest) -> Result<Vec<LockEnded>> {
        match self.meta(&ITSELF, Ino::ROOT, request).await? {
            MetaReply::LocksEnded(ended) => Ok(ended),
            other => Err(unexpected(&other)),
        }
    }
}
