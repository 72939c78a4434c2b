//! What the service keeps in memory only: who has what open, and what waits to be collected.

use crate::config::{COUNTERS_PER_HANDLE_MAX, REAP_BATCH_MAX};
use crate::error::{Code, Error, Result};
use crate::layout::FILE_SIZE_MAX;
use crate::types::{ClientId, Ino};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Open handles of one client.
pub const HANDLES_PER_CLIENT_MAX: usize = 256 * 1024;
/// Open handles in all.
pub const HANDLES_MAX: usize = 4 * 1024 * 1024;
/// Garbage is offered to some client again if it was not reported freed for so long: milliseconds.
pub const GARBAGE_RETRY_MS: u64 = 5_000;

/// An open handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) client: ClientId,
    pub(super) ino: Ino,
    pub(super) read: bool,
    pub(super) write: bool,
}

#[derive(Default)]
struct File {
    handles: u32,
    writers: u32,
    /// Being removed: a commit is under way after which it exists no more.
    doomed: bool,
    /// End of the bytes handed out to appenders.
    append_end: u64,
}

#[derive(Default)]
struct Client {
    heard_ms: u64,
    handles: BTreeSet<u64>,
    /// Whether it may have locks, or wait for some.
    locks: bool,
}

#[derive(Default)]
struct Table {
    handle_last: u64,
    handles: BTreeMap<u64, Handle>,
    /// Counters of those handles that have any.
    counters: BTreeMap<u64, BTreeMap<u32, u64>>,
    files: BTreeMap<Ino, File>,
    /// Those with handles or locks.
    clients: BTreeMap<ClientId, Client>,
    /// Files that lapsed clients had open (and whether for writing), or closed unsure of what they
    /// wrote, and until when they count as open: such a client may still write, or read what must not have been freed meanwhile, by a
    /// capability that targets honour until it expires.
    lapsed: VecDeque<(u64, Ino, bool)>,
    orphans: BTreeSet<Ino>,
    /// Since when each was last offered to somebody (monotonic milliseconds).
    garbage: BTreeMap<Ino, u64>,
    /// The garbage offered last.
    garbage_cursor: Option<Ino>,
    inodes: u64,
}

/// The table, locked for a few instructions at a time and never across an await.
pub(super) struct Live {
    table: Mutex<Table>,
}

impl Live {
    /// Handles of different lives of the service differ.
    pub(super) fn new(life: u32) -> Live {
        let table = Table { handle_last: u64::from(life) << 32, ..Table::default() };
        Live { table: Mutex::new(table) }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // A panic elsewhere while it was locked cannot have left it half changed in a harmful way.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn heard(&self, client: ClientId, now_ms: u64) {
        if let Some(client) = self.lock().clients.get_mut(&client) {
            client.heard_ms = now_ms.max(client.heard_ms);
        }
    }

    /// A client is to be kept also without handles, for its locks.
    pub(super) fn keep(&self, client: ClientId, now_ms: u64) {
        let mut table = self.lock();
        let client = table.clients.entry(client).or_default();
        client.heard_ms = now_ms.max(client.heard_ms);
        client.locks = true;
    }

    /// Registers a handle before the inode is read: from here on nobody removes the file.
    pub(super) fn hold(&self, handle: Handle, now_ms: u64) -> Result<Hold<'_>> {
        let mut table = self.lock();
        if table.files.get(&handle.ino).is_some_and(|file| file.doomed) {
            // In a moment it will be gone, or not: the client asks again.
            return Err(Error::because(
                Code::Busy,
                format!("inode {} is just being removed", handle.ino.0),
            ));
        }
        let count = table.clients.get(&handle.client).map_or(0, |client| client.handles.len());
        if count >= HANDLES_PER_CLIENT_MAX || table.handles.len() >= HANDLES_MAX {
            return Err(Error::because(
                Code::TooMany,
                format!("too many open files: {count} of this client, {}", table.handles.len()),
            ));
        }
        table.handle_last += 1;
        let number = table.handle_last;
        table.handles.insert(number, handle);
        let client = table.clients.entry(handle.client).or_default();
        client.heard_ms = now_ms.max(client.heard_ms);
        client.handles.insert(number);
        let file = table.files.entry(handle.ino).or_default();
        file.handles += 1;
        file.writers += u32::from(handle.write);
        Ok(Hold { live: self, number, kept: false })
    }

    pub(super) fn handle(&self, number: u64, client: ClientId) -> Result<Handle> {
        let found = self.lock().handles.get(&number).copied();
        found.filter(|handle| handle.client == client).ok_or_else(|| {
            Error::because(
                Code::BadHandle,
                format!("handle {number:#x} is not open: closed, or its client's lease lapsed"),
            )
        })
    }

    /// Somebody's handle of this file.
    pub(super) fn opening(&self, number: u64, ino: Ino) -> Result<Handle> {
        self.lock().opening(number, ino)
    }

    /// Adds to a counter of somebody's handle; gives what it was before.
    pub(super) fn count(&self, handle: u64, ino: Ino, number: u32, add: u64) -> Result<u64> {
        let mut table = self.lock();
        table.opening(handle, ino)?;
        let counters = table.counters.entry(handle).or_default();
        let least = counters.first_key_value().map_or(0, |(&least, _)| least);
        if !counters.contains_key(&number) && counters.len() >= COUNTERS_PER_HANDLE_MAX {
            if number < least {
                let cause = format!("counter {number} was followed by too many others");
                return Err(Error::because(Code::Invalid, cause));
            }
            counters.pop_first();
        }
        let counter = counters.entry(number).or_default();
        let before = *counter;
        *counter = before.wrapping_add(add);
        Ok(before)
    }

    /// How many have it open for writing.
    pub(super) fn writers(&self, ino: Ino) -> u32 {
        self.lock().files.get(&ino).map_or(0, |file| file.writers)
    }

    /// Ends a handle. True: it was the last of an orphan, which can be collected.
    pub(super) fn release(&self, number: u64) -> bool {
        self.lock().release(number)
    }

    /// Ends a handle whose writer does not know what became of his writes: the file counts as open
    /// for writing until `until_ms`, when his capabilities have expired.
    pub(super) fn release_later(&self, number: u64, until_ms: u64) {
        let mut table = self.lock();
        if let Some(handle) = table.take(number) {
            table.lapsed.push_back((until_ms, handle.ino, handle.write));
        }
    }

    /// Ends all handles of a client.
    pub(super) fn gone(&self, client: ClientId) {
        let mut table = self.lock();
        let handles = table.clients.remove(&client).unwrap_or_default().handles;
        for number in handles {
            table.release(number);
        }
    }

    /// Ends all handles of clients that were silent since before `since_ms`. What they had open
    /// counts as open until `until_ms`, when their capabilities have expired. `has_locks` says whose
    /// locks there are. Gives those clients.
    pub(super) fn lapse(
        &self,
        now_ms: u64,
        since_ms: u64,
        until_ms: u64,
        has_locks: &dyn Fn(ClientId) -> bool,
    ) -> Vec<ClientId> {
        let mut table = self.lock();
        table.clients.retain(|&id, client| {
            client.locks = client.locks && has_locks(id);
            client.locks || !client.handles.is_empty()
        });
        while let Some((_, ino, write)) =
            table.lapsed.pop_front_if(|(until_ms, ..)| *until_ms <= now_ms)
        {
            table.let_go(ino, write);
        }
        let silent = table.clients.extract_if(.., |_, client| client.heard_ms < since_ms);
        let silent: Vec<_> = silent.collect();
        for &number in silent.iter().flat_map(|(_, client)| &client.handles) {
            table.counters.remove(&number);
            if let Some(handle) = table.handles.remove(&number) {
                table.lapsed.push_back((until_ms, handle.ino, handle.write));
            }
        }
        silent.into_iter().map(|(id, _)| id).collect()
    }

    /// Marks a file that nobody has open as being removed; nobody can open it while the mark lasts.
    pub(super) fn doom(&self, ino: Ino) -> Result<Doom<'_>> {
        let mut table = self.lock();
        let file = table.files.entry(ino).or_default();
        if file.doomed {
            return Err(Error::because(
                Code::Busy,
                format!("inode {} is just being removed", ino.0),
            ));
        }
        if file.handles > 0 {
            return Ok(Doom::Open);
        }
        file.doomed = true;
        Ok(Doom::Marked(Mark { live: self, ino }))
    }

    /// Reserves bytes for an append.
    pub(super) fn reserve(&self, ino: Ino, floor: u64, length: u64) -> Result<u64> {
        let mut table = self.lock();
        let Some(file) = table.files.get_mut(&ino) else {
            return Err(Error::because(Code::BadHandle, "handle was closed meanwhile"));
        };
        let offset = file.append_end.max(floor);
        match offset.checked_add(length) {
            Some(end) if end <= FILE_SIZE_MAX => file.append_end = end,
            _ => return Err(Error::because(Code::TooLarge, "append beyond the largest file")),
        }
        Ok(offset)
    }

    /// Gives back the last bytes that were reserved, if it is these.
    pub(super) fn unreserve(&self, ino: Ino, offset: u64, length: u64) {
        if let Some(file) = self.lock().files.get_mut(&ino)
            && Some(file.append_end) == offset.checked_add(length)
        {
            file.append_end = offset;
        }
    }

    /// Forgets reservations: the file was truncated.
    pub(super) fn reset_append(&self, ino: Ino) {
        if let Some(file) = self.lock().files.get_mut(&ino) {
            file.append_end = 0;
        }
    }

    pub(super) fn add_orphan(&self, ino: Ino) {
        self.lock().orphans.insert(ino);
    }

    pub(super) fn remove_orphan(&self, ino: Ino) {
        self.lock().orphans.remove(&ino);
    }

    /// Orphans that nobody has open, at most `limit`.
    pub(super) fn collectable(&self, limit: usize) -> Vec<Ino> {
        let table = self.lock();
        let closed =
            |ino: &&Ino| table.files.get(ino).is_none_or(|file| file.handles == 0 && !file.doomed);
        table.orphans.iter().filter(closed).take(limit).copied().collect()
    }

    /// Notes garbage that was just offered to somebody (or, with 0, never).
    pub(super) fn add_garbage(&self, ino: Ino, offered_ms: u64) {
        self.lock().garbage.insert(ino, offered_ms);
    }

    pub(super) fn remove_garbage(&self, inos: &[Ino]) {
        let mut table = self.lock();
        for ino in inos {
            table.garbage.remove(ino);
        }
    }

    /// Garbage to offer: each in its turn, none twice within [`GARBAGE_RETRY_MS`].
    pub(super) fn offer_garbage(&self, now_ms: u64) -> Vec<Ino> {
        let mut table = self.lock();
        let Table { garbage, garbage_cursor, .. } = &mut *table;
        let due = |(_, offered): &(&Ino, &mut u64)| **offered + GARBAGE_RETRY_MS <= now_ms;
        let mut inos = Vec::new();
        let cursor = garbage_cursor.unwrap_or(Ino(0));
        let behind = (Bound::Excluded(cursor), Bound::Unbounded);
        for (ino, offered) in garbage.range_mut(behind).filter(due).take(REAP_BATCH_MAX) {
            *offered = now_ms;
            inos.push(*ino);
        }
        let left = REAP_BATCH_MAX - inos.len();
        for (ino, offered) in garbage.range_mut(..=cursor).filter(due).take(left) {
            *offered = now_ms;
            inos.push(*ino);
        }
        if let Some(&last) = inos.last() {
            *garbage_cursor = Some(last);
        }
        inos
    }

    pub(super) fn count_inodes(&self, change: i64) {
        let mut table = self.lock();
        table.inodes = table.inodes.saturating_add_signed(change);
    }

    pub(super) fn inodes(&self) -> u64 {
        self.lock().inodes
    }

    /// Whether nothing is open, held or doomed.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let table = self.lock();
        table.counters.is_empty()
            && table.handles.is_empty()
            && table.files.is_empty()
            && table.clients.is_empty()
    }
}

impl Table {
    fn opening(&self, number: u64, ino: Ino) -> Result<Handle> {
        let found = self.handles.get(&number).copied().filter(|found| found.ino == ino);
        found.ok_or_else(|| {
            let cause = format!(
                "handle {number:#x} of inode {} is not open: closed, or its client's lease lapsed",
                ino.0
            );
            Error::because(Code::BadHandle, cause)
        })
    }

    fn release(&mut self, number: u64) -> bool {
        let Some(handle) = self.take(number) else { return false };
        self.let_go(handle.ino, handle.write)
    }

    /// Takes a handle out of the books, but for the file's own.
    fn take(&mut self, number: u64) -> Option<Handle> {
        let handle = self.handles.remove(&number)?;
        self.counters.remove(&number);
        if let Some(client) = self.clients.get_mut(&handle.client) {
            client.handles.remove(&number);
            if client.handles.is_empty() && !client.locks {
                self.clients.remove(&handle.client);
            }
        }
        Some(handle)
    }

    /// One less has the file open. True: it was the last of an orphan.
    fn let_go(&mut self, ino: Ino, write: bool) -> bool {
        let Some(file) = self.files.get_mut(&ino) else { return false };
        file.handles -= 1;
        file.writers -= u32::from(write);
        if file.writers == 0 {
            file.append_end = 0;
        }
        if file.handles > 0 {
            return false;
        }
        if !file.doomed {
            self.files.remove(&ino);
        }
        self.orphans.contains(&ino)
    }
}

/// A handle being opened: ended again if the opening fails.
pub(super) struct Hold<'a> {
    live: &'a Live,
    number: u64,
    kept: bool,
}

impl Hold<'_> {
    /// The opening succeeded.
    pub(super) fn keep(mut self) -> u64 {
        self.kept = true;
        self.number
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // If this was the last of an orphan, the next round of `expire` collects it.
            self.live.release(self.number);
        }
    }
}

/// Whether a file that lost its last name can go at once.
pub(super) enum Doom<'a> {
    /// Somebody has it open.
    Open,
    Marked(Mark<'a>),
}

/// A file is being removed as long as this lives.
pub(super) struct Mark<'a> {
    live: &'a Live,
    ino: Ino,
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.live.lock().files.remove(&self.ino);
    }
}
