//! An open file: reads and writes go straight to the targets that hold the bytes.

use super::append::Books;
use super::plan::{Part, plan};
use super::survey::Survey;
use super::unsynced::{Begun, Borrowers, Unsynced};
use super::{Call, Fs, Rpc};
use crate::auth::Capability;
use crate::error::{Code, Error, Result};
use crate::layout::{Extent, FILE_SIZE_MAX, Layout};
use crate::session::Reply;
use crate::slice::Slice;
use crate::types::{Attributes, Credentials, Ino, WallTime};
use crate::wire::Kind;
use crate::wire::data::{Io, TargetReply, TargetRequest, Witness};
use crate::wire::meta::{Closing, MetaReply, MetaRequest, OpenMode, Opened, Rider, Settlement};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Unit in which holes are told: bytes. Some programs expect whole blocks.
const HOLE_BYTES: u64 = 4096;

/// What another client needs to read and write a file that this one has open: a mount lends files
/// to the programs beside it. Good while the lender's handle is open and the capability lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loan {
    /// For messages.
    pub name: String,
    /// Which file.
    pub ino: Ino,
    /// The lender's handle.
    pub handle: u64,
    /// For what it is open.
    pub mode: OpenMode,
    /// Where its objects are.
    pub layout: Layout,
    /// Leave to use them.
    pub capability: Capability,
    /// Newest data epoch known.
    pub epoch: u32,
}

/// An open regular file. Cheap to clone; [`File::close`] ends the handle for all clones.
pub struct File<R: Rpc> {
    shared: Arc<Shared<R>>,
}

impl<R: Rpc> Clone for File<R> {
    fn clone(&self) -> File<R> {
        File { shared: self.shared.clone() }
    }
}

struct Shared<R: Rpc> {
    fs: Fs<R>,
    who: Credentials,
    name: String,
    ino: Ino,
    mode: OpenMode,
    /// None: borrowed, the lender has it.
    handle: Option<u64>,
    /// The handle, or the lender's.
    opening: u64,
    layout: Layout,
    /// What may be gone when a target of a kept pool comes back; none: the pool is no such one.
    unsynced: Option<Unsynced>,
    state: Mutex<State>,
}

/// What changes while the file is open.
struct State {
    capability: Arc<Capability>,
    /// Newest data epoch known: goes with writes, so that their times count.
    epoch: u32,
    /// Version that this handle can report for when it is closed (see [`Settlement`]).
    version: u64,
    /// Size, if this handle can know it: nobody else was writing when it was opened, and where
    /// somebody began later the version gives it away.
    size: Option<u64>,
    /// For appending.
    books: Books,
    /// Bytes stored, as far as they are in this handle's books: those of a settled file, which has
    /// no holes, and its own writes. A file that may have holes is left for the targets to tell of.
    filled: u64,
    /// Time of this handle's last write (0: none).
    mtime: WallTime,
    /// Writes under way, and those that failed or were abandoned: these may have been stored all
    /// the same, so that this handle cannot tell the size.
    writes_open: usize,
    /// Those of them of which the targets have said no: nothing of these is on its way any more.
    writes_refused: usize,
    /// If this handle is lent to such as are watched, and to no others.
    watched: Option<Watched>,
}

/// Those to whom a handle is lent, and what [`Borrowers::changes`] said before.
struct Watched {
    borrowers: Arc<dyn Borrowers>,
    before: Option<u64>,
}

impl Watched {
    fn new(borrowers: Arc<dyn Borrowers>) -> Watched {
        Watched { before: borrowers.changes(), borrowers }
    }

    /// Whether they have written all that they will, and not nothing.
    fn have_written(&self) -> bool {
        let changes = self.borrowers.changes();
        changes.is_some() && changes != self.before && self.borrowers.tell_all()
    }
}

impl State {
    /// It is at least so long.
    fn grown(&mut self, size: u64) {
        self.size = self.size.map(|known| known.max(size));
        self.books.grown(size);
    }
}

/// What a read of some extents found.
struct Found {
    /// Largest file size that the answers bear witness to.
    size_seen: u64,
    /// Requests whose answer ended with their object, and how many bytes these had: the others are
    /// zeros, or behind the file's end.
    short: Vec<(Part, usize)>,
}

/// In which state a read found what it read: see [`File::is_as_seen`].
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Of each column the earliest state in which it was found: what was found later is as it was
    /// then only if it has not changed since.
    columns: Vec<(usize, Edition)>,
}

/// Life of a target, and changes of an object: both only grow.
type Edition = (u32, u64);

fn edition(witness: &Witness) -> Edition {
    (witness.life, witness.changes)
}

impl Seen {
    fn note(&mut self, column: usize, witness: &Witness) {
        let found = edition(witness);
        match self.columns.iter_mut().find(|(noted, _)| *noted == column) {
            Some((_, earliest)) => *earliest = found.min(*earliest),
            None => self.columns.push((column, found)),
        }
    }
}

impl<R: Rpc> File<R> {
    /// Wraps what the metadata service gave, carries out a truncation that came with it, and makes
    /// size and times true.
    pub(super) async fn begin(
        fs: Fs<R>,
        who: Credentials,
        name: String,
        mode: OpenMode,
        opened: Opened,
    ) -> Result<(File<R>, Attributes)> {
        let Opened { handle, mut record, version, layout, capability, truncation, .. } = opened;
        let ino = record.attributes.ino;
        let capability = Arc::new(capability);
        let state = Mutex::new(State {
            capability: capability.clone(),
            epoch: record.attributes.data_epoch,
            version,
            size: None,
            books: Books::default(),
            filled: 0,
            mtime: WallTime(0),
            writes_open: 0,
            writes_refused: 0,
            watched: None,
        });
        let shared = Shared {
            fs: fs.clone(),
            who: who.clone(),
            name,
            ino,
            mode,
            handle: Some(handle),
            opening: handle,
            unsynced: fs.unsynced(ino),
            layout,
            state,
        };
        let file = File { shared: Arc::new(shared) };
        let ready = async {
            if let Some(pending) = truncation {
                let layout = &file.shared.layout;
                fs.carry_out(ino, pending, layout, &capability).await?;
                record.attributes.size = pending.size;
                file.lock().epoch = pending.epoch;
                if let Some(unsettled) = &mut record.unsettled {
                    unsettled.truncation = None;
                }
            }
            if record.unsettled.is_none() {
                let mut state = file.lock();
                state.size = Some(record.attributes.size);
                state.filled = record.attributes.size;
            }
            fs.resolve(&who, record).await
        };
        match ready.await {
            Ok(attributes) => Ok((file, attributes)),
            Err(error) => {
                // The handle is of no use to anyone; the first error is the one to tell.
                let _ = file.close().await;
                Err(error)
            }
        }
    }

    /// The file that another client has lent. It reads and writes; what needs the handle
    /// (truncate) is the lender's to do, and closing is nothing. When the capability has expired,
    /// requests fail with `NoCapability`: [`File::extend`] with a fresh loan.
    pub(super) fn borrowed(fs: Fs<R>, loan: Loan) -> File<R> {
        let Loan { name, ino, handle: opening, mode, layout, capability, epoch } = loan;
        let state = State {
            capability: Arc::new(capability),
            epoch,
            version: 0,
            size: None,
            books: Books::lent(),
            filled: 0,
            mtime: WallTime(0),
            writes_open: 0,
            writes_refused: 0,
            watched: None,
        };
        let who = super::ITSELF;
        let state = Mutex::new(state);
        let unsynced = fs.unsynced(ino);
        let shared =
            Shared { fs, who, name, ino, mode, handle: None, opening, layout, unsynced, state };
        File { shared: Arc::new(shared) }
    }

    /// Takes over a fresh loan of the same file.
    pub fn extend(&self, loan: Loan) {
        let mut state = self.lock();
        state.capability = Arc::new(loan.capability);
        state.epoch = state.epoch.max(loan.epoch);
    }

    /// Lends the file to another client: with [`Fs::borrow`] it reads and writes by itself. From now
    /// on this handle cannot tell the file's size when it is closed; the targets are asked instead.
    pub async fn lend(&self) -> Result<Loan> {
        self.lend_to(None).await
    }

    /// The same to those whom somebody watches: where they have changed nothing, a sync by this handle
    /// tells of no loss. Who watches the first time does so to the end.
    pub async fn lend_watched(&self, borrowers: Arc<dyn Borrowers>) -> Result<Loan> {
        self.lend_to(Some(borrowers)).await
    }

    async fn lend_to(&self, borrowers: Option<Arc<dyn Borrowers>>) -> Result<Loan> {
        let shared = &self.shared;
        // The whole of a capability's time is worth more to the borrower than a request to us.
        self.fresh_capability().await.map_err(|error| error.on("lend", &shared.name))?;
        let reckoned = self.reckon_with(borrowers.clone()).await;
        reckoned.map_err(|error| error.on("lend", &shared.name))?;
        let mut state = self.lock();
        state.watched = match (borrowers, state.books.is_lent()) {
            (None, _) => None,
            (Some(borrowers), false) => Some(Watched::new(borrowers)),
            (Some(_), true) => state.watched.take(),
        };
        state.size = None;
        state.books = Books::lent();
        Ok(Loan {
            name: shared.name.clone(),
            ino: shared.ino,
            handle: shared.opening,
            mode: shared.mode,
            layout: shared.layout.clone(),
            capability: (*state.capability).clone(),
            epoch: state.epoch,
        })
    }

    pub(super) fn fs(&self) -> &Fs<R> {
        &self.shared.fs
    }

    pub(super) fn name(&self) -> &str {
        &self.shared.name
    }

    /// Whether writes may still be on their way to the targets: some are under way, or nobody knows
    /// what became of them.
    pub fn in_doubt(&self) -> bool {
        let state = self.lock();
        state.writes_open > state.writes_refused
    }

    /// For the lender: a borrower's writes are [`File::in_doubt`], or he died in the middle of some.
    /// They are then reckoned with when this handle is closed.
    pub fn doubt(&self) {
        self.lock().writes_open += 1;
    }

    pub(super) fn handle(&self) -> Result<u64> {
        self.shared.handle.ok_or_else(|| Error::because(Code::Invalid, "file is borrowed"))
    }

    /// The number of this handle, or the lender's.
    pub(super) fn opening(&self) -> u64 {
        self.shared.opening
    }

    /// Asks the metadata service something about this file.
    pub(super) async fn ask(&self, request: MetaRequest) -> Result<MetaReply> {
        let shared = &self.shared;
        shared.fs.meta(&shared.who, shared.ino, request).await
    }

    /// Does something with what there is to know of the file's end.
    pub(super) fn with_books<T>(&self, work: impl FnOnce(&mut Books) -> T) -> T {
        work(&mut self.lock().books)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its inode number.
    pub fn ino(&self) -> Ino {
        self.shared.ino
    }

    /// Where its bytes lie.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// For what it was opened.
    pub fn mode(&self) -> OpenMode {
        self.shared.mode
    }

    /// Reads from `offset`; gives the number of bytes before the file's end.
    pub async fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let extent = Extent { offset, length: buffer.len() as u64 };
        self.read_list(&[extent], &mut [IoSliceMut::new(buffer)]).await
    }

    /// Reads all of the buffer before somebody wants it: whoever does asks [`File::is_as_seen`] with
    /// what this gives. None: there is a hole, or the file's end, of which no target alone can tell.
    pub async fn read_ahead(&self, buffer: &mut [u8], offset: u64) -> Result<Option<Seen>> {
        let extents = [Extent { offset, length: buffer.len() as u64 }];
        let memory = [Slice::to_write(buffer)];
        let read = async {
            self.check(self.shared.mode.read, "read", &extents, &memory)?;
            let mut seen = Seen::default();
            let found =
                self.read_parts(&extents, &memory, |column, it| seen.note(column, it)).await?;
            Ok(found.short.is_empty().then_some(seen))
        };
        read.await.map_err(|error: Error| error.on("read ahead of", &self.shared.name))
    }

    /// Whether a read would find now what was read ahead: nothing has changed in the objects that it
    /// lies in. False, too, where that cannot be asked without what only a read gets.
    pub async fn is_as_seen(&self, seen: &Seen) -> Result<bool> {
        let shared = &self.shared;
        let ask = async {
            self.fresh_capability().await?;
            let capability = self.lock().capability.clone();
            let columns = seen.columns.iter().map(|&(column, ..)| column);
            let witness = |_| TargetRequest::Witness { ino: shared.ino };
            let told =
                shared.fs.on_some_columns(&shared.layout, &capability, columns, witness).await?;
            let mut same = true;
            for (&(column, before), told) in seen.columns.iter().zip(told) {
                self.found(column, told.witness)?;
                same &= edition(&told.witness) == before;
            }
            Result::Ok(same)
        };
        match ask.await {
            // A read gets itself a fresh one.
            Err(error) if error.code == Code::NoCapability => Ok(false),
            result => result.map_err(|error: Error| error.on("read", &shared.name)),
        }
    }

    /// Writes at `offset`. When it returns, every client sees the bytes.
    pub async fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let extent = Extent { offset, length: bytes.len() as u64 };
        self.write_list(&[extent], &[IoSlice::new(bytes)]).await
    }

    /// Reads file extents, one behind the other, into memory of the same length in all: one request
    /// to each target. Gives the number of bytes before the file's end; the rest of the memory is
    /// left as it was, which some programs rely on; or becomes zeros, unless extents ascend
    /// without overlapping.
    pub async fn read_list(
        &self,
        extents: &[Extent],
        memory: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        let memory: Vec<Slice> = memory.iter_mut().map(|slice| Slice::to_write(slice)).collect();
        // SAFETY: the borrow of `memory` outlives this future, which waits for the call.
        unsafe { self.read_slices(extents, &memory) }.await
    }

    /// Writes memory into file extents of the same length in all: one request to each target.
    /// Where extents overlap, the later one counts.
    pub async fn write_list(&self, extents: &[Extent], memory: &[IoSlice<'_>]) -> Result<()> {
        let memory: Vec<Slice> = memory.iter().map(|slice| Slice::to_read(slice)).collect();
        // SAFETY: the borrow of `memory` outlives this future, which waits for the call.
        unsafe { self.write_slices(extents, &memory) }.await
    }

    /// As [`File::read_list`], into memory named by address.
    ///
    /// # Safety
    /// The memory must stay valid and unaliased until the future has ended or was dropped, and the
    /// future must not be leaked before.
    pub async unsafe fn read_slices(&self, extents: &[Extent], memory: &[Slice]) -> Result<usize> {
        let read = async {
            let length = self.check(self.shared.mode.read, "read", extents, memory)?;
            if length == 0 {
                return Ok(0);
            }
            let found = self.read_parts(extents, memory, |_, _| ()).await?;
            let end = extents.iter().map(|extent| extent.end()).max().unwrap_or(0);
            // A list out of order may pass over the file's end in the middle of a full answer.
            let full = found.short.is_empty() && extents.is_sorted_by_key(|extent| extent.end());
            if full {
                return Ok(length);
            }
            let size = match found.size_seen >= end {
                true => found.size_seen,
                false => self.size_at_least(found.size_seen, end).await?,
            };
            for (part, length) in &found.short {
                zero(part, *length, self.shared.layout.object_size(part.column, size));
            }
            let before_end =
                |extent: &Extent| size.saturating_sub(extent.offset).min(extent.length);
            Ok(extents.iter().map(before_end).sum::<u64>() as usize)
        };
        read.await.map_err(|error: Error| error.on("read", &self.shared.name))
    }

    /// As [`File::write_list`], from memory named by address.
    ///
    /// # Safety
    /// As [`File::read_slices`], but the memory is only read.
    pub async unsafe fn write_slices(&self, extents: &[Extent], memory: &[Slice]) -> Result<()> {
        let write = async {
            if self.check(self.shared.mode.write, "write", extents, memory)? == 0 {
                return Ok(());
            }
            self.fresh_capability().await?;
            let parts = self.plan(extents, memory);
            self.lock().writes_open += 1;
            let results = join_all(parts.iter().map(|part| self.request(Kind::Write, part))).await;
            let mut lost = 0;
            let mut unsure = false;
            let mut first = None;
            for (part, result) in parts.iter().zip(results) {
                match result.and_then(|reply| Witness::decode(&reply.body)) {
                    Ok(witness) => self.wrote(part.column, witness, part.runs.length()),
                    Err(error) => {
                        lost += part.runs.length();
                        unsure |= !refused(&error);
                        first.get_or_insert(error);
                    }
                }
            }
            match first {
                None => {
                    self.lock().writes_open -= 1;
                    Ok(())
                }
                Some(error) => {
                    self.lock().writes_refused += usize::from(!unsure);
                    Err(error.so(format!("{lost} bytes not stored")))
                }
            }
        };
        write.await.map_err(|error: Error| error.on("write", &self.shared.name))
    }

    /// Checks a request against the handle and the limits; gives its length.
    fn check(
        &self,
        allowed: bool,
        operation: &str,
        extents: &[Extent],
        memory: &[Slice],
    ) -> Result<usize> {
        if !allowed {
            let cause = format!("file is not open for {operation}");
            return Err(Error::because(Code::BadHandle, cause));
        }
        let mut length = 0u64;
        for extent in extents {
            let end = extent.offset.checked_add(extent.length);
            if end.is_none_or(|end| end > FILE_SIZE_MAX) {
                return Err(Error::new(Code::TooLarge));
            }
            length = length.saturating_add(extent.length);
        }
        if length != memory.iter().map(|slice| slice.length as u64).sum::<u64>() {
            let cause = "extents and memory differ in length";
            return Err(Error::because(Code::Invalid, cause));
        }
        Ok(length as usize)
    }

    fn plan(&self, extents: &[Extent], memory: &[Slice]) -> Vec<Part> {
        plan(&self.shared.layout, extents, memory, self.shared.fs.options().transfer_size)
    }

    /// `note` is told what each answer says of its column.
    async fn read_parts(
        &self,
        extents: &[Extent],
        memory: &[Slice],
        mut note: impl FnMut(usize, &Witness),
    ) -> Result<Found> {
        self.fresh_capability().await?;
        let parts = self.plan(extents, memory);
        let requests = parts.iter().map(|part| self.request(Kind::Read, part));
        let results = join_all(requests).await;
        let mut found = Found { size_seen: 0, short: Vec::new() };
        for (part, result) in parts.into_iter().zip(results) {
            let reply = result?;
            let witness = Witness::decode(&reply.body)?;
            self.found(part.column, witness)?;
            note(part.column, &witness);
            let size = self.shared.layout.file_size_seen(part.column, witness.size);
            found.size_seen = found.size_seen.max(size);
            if reply.payload_length < part.runs.length() {
                found.short.push((part, reply.payload_length));
            }
        }
        Ok(found)
    }

    /// Makes one request, again with a fresh capability if the target wants one.
    async fn request(&self, kind: Kind, part: &Part) -> Result<Reply> {
        let fs = &self.shared.fs;
        let member = self.shared.layout.member(part.column);
        let server = fs.server_of(member)?;
        let place = |error: Error| {
            fs.heed(member, &error);
            let cause = format!("target {}: {}", member.target.0, error.cause);
            Error { cause, ..error }
        };
        let (mut renewed, mut reclaimed) = (false, false);
        loop {
            let (capability, epoch) = {
                let state = self.lock();
                (state.capability.clone(), state.epoch)
            };
            let io = Io {
                ino: self.shared.ino,
                member,
                map_epoch: fs.map().epoch,
                generation: self.shared.layout.generation,
                epoch,
                runs: part.runs.clone(),
            };
            let mut call = Call {
                kind,
                body: io.encode(),
                capability: Some(capability),
                once: kind == Kind::Write,
                source: Vec::new(),
                sink: Vec::new(),
                lane: part.lane,
            };
            match kind {
                Kind::Write => call.source.clone_from(&part.memory),
                _ => call.sink.clone_from(&part.memory),
            }
            // SAFETY: the callers of `read_slices` and `write_slices` promise what is needed, and
            // this future is part of theirs.
            match unsafe { fs.retry(server, call) }.await {
                Err(error) if error.code == Code::NoCapability && !renewed => {
                    if self.shared.handle.is_none() {
                        return Err(error);
                    }
                    renewed = true;
                    self.renew().await?;
                }
                // Space may be held by files that are gone but not freed yet.
                Err(error) if error.code == Code::NoSpace && !reclaimed => {
                    if !fs.reclaim().await? {
                        return Err(place(error));
                    }
                    reclaimed = true;
                }
                result => return result.map_err(place),
            }
        }
    }

    fn wrote(&self, column: usize, witness: Witness, length: usize) {
        self.note_change(column, witness);
        let seen = self.shared.layout.file_size_seen(column, witness.size);
        let mut state = self.lock();
        state.grown(seen);
        state.filled = state.filled.saturating_add(length as u64);
        state.mtime = state.mtime.max(witness.mtime);
        state.epoch = state.epoch.max(witness.epoch);
    }

    async fn fresh_capability(&self) -> Result<()> {
        let fs = &self.shared.fs;
        if self.shared.handle.is_none() {
            return Ok(());
        }
        let left_ns = self.lock().capability.expires.0 - fs.rpc().now().wall.0;
        let whole_ns = fs.options().timing.capability_ms as i64 * 1_000_000;
        if left_ns > whole_ns / 4 { Ok(()) } else { self.renew().await }
    }

    async fn renew(&self) -> Result<()> {
        let shared = &self.shared;
        let request = MetaRequest::Renew { handle: self.handle()? };
        match shared.fs.meta(&shared.who, shared.ino, request).await? {
            MetaReply::Opened(opened) => {
                self.lock().capability = Arc::new(opened.capability);
                Ok(())
            }
            other => Err(super::unexpected(&other)),
        }
    }

    /// The file's size, asking other columns only where it is not yet known to reach `enough`.
    async fn size_at_least(&self, seen: u64, enough: u64) -> Result<u64> {
        // With one column, its answer was the whole truth.
        if seen >= enough || self.shared.layout.stripe_count() == 1 {
            return Ok(seen);
        }
        Ok(self.survey().await?.max(seen))
    }

    /// Asks all columns. None: somebody truncated the file, or is about to.
    async fn ask_columns(&self) -> Result<Option<Survey>> {
        let (capability, epoch) = {
            let state = self.lock();
            (state.capability.clone(), state.epoch)
        };
        let shared = &self.shared;
        let survey = shared.fs.survey(&shared.layout, &capability, shared.ino, epoch).await?;
        Ok((survey.epoch <= epoch).then_some(survey))
    }

    /// Asks all columns for the file's size.
    async fn survey(&self) -> Result<u64> {
        if let Some(survey) = self.ask_columns().await? {
            return Ok(survey.size);
        }
        // The metadata service knows.
        let shared = &self.shared;
        let request = MetaRequest::Attributes { ino: shared.ino };
        let attributes = shared.fs.found(&shared.who, shared.ino, request).await?;
        let mut state = self.lock();
        state.epoch = state.epoch.max(attributes.data_epoch);
        Ok(attributes.size)
    }

    /// The file's size now.
    pub async fn size(&self) -> Result<u64> {
        self.fresh_capability().await?;
        self.survey().await.map_err(|error| error.on("stat", &self.shared.name))
    }

    /// Adds to a counter of this opening, in one step for all who borrowed the file of it and for
    /// the lender; gives what it was before, 0 at first. Counters of small numbers are forgotten
    /// where there are more than [`crate::config::COUNTERS_PER_HANDLE_MAX`].
    pub async fn count(&self, number: u32, add: u64) -> Result<u64> {
        let shared = &self.shared;
        let count = async {
            let request =
                MetaRequest::Count { handle: shared.opening, ino: shared.ino, number, add };
            match self.ask(request).await? {
                MetaReply::Counted { before } => Ok(before),
                other => Err(super::unexpected(&other)),
            }
        };
        count.await.map_err(|error: Error| error.on("count on", &shared.name))
    }

    /// Sets the size.
    pub async fn truncate(&self, size: u64) -> Result<()> {
        let shared = &self.shared;
        if !shared.mode.write {
            return Err(Error::because(Code::Invalid, "file is not open for writing")
                .on("truncate", &shared.name));
        }
        let handle = Some(self.handle().map_err(|error| error.on("truncate", &shared.name))?);
        let version = shared.fs.truncate_through(&shared.who, shared.ino, size, handle).await;
        let (version, epoch) = version.map_err(|error| error.on("truncate", &shared.name))?;
        let mut state = self.lock();
        // The version is this handle's only if nobody opened the file for writing since the last
        // one that was: their writes, before and after this, are in nobody's books here.
        let alone = version == state.version + 1;
        state.version = version;
        state.epoch = state.epoch.max(epoch);
        state.size = state.size.filter(|_| alone).map(|_| size);
        state.filled = state.filled.min(size);
        Ok(())
    }

    /// Makes what was written before durable, as far as the kind of pool promises it; fails if any
    /// of it was lost. That is told once to each that has the file open.
    pub async fn sync(&self) -> Result<()> {
        let shared = &self.shared;
        let sync = async {
            self.fresh_capability().await?;
            let capability = self.lock().capability.clone();
            let flush = |_| TargetRequest::Flush { ino: shared.ino };
            let begun = self.begin_sync();
            let told = shared.fs.on_columns(&shared.layout, &capability, flush).await?;
            if let Some(unsynced) = &shared.unsynced {
                unsynced.end_sync(&begun, told.iter().map(|told| told.witness.life));
            }
            self.tell_loss()
        };
        sync.await.map_err(|error: Error| error.on("fsync", &shared.name))
    }

    /// A sync of this file begins, by whatever way: gives what [`File::synced_elsewhere`] wants.
    pub fn begin_sync(&self) -> Begun {
        self.shared.unsynced.as_ref().map_or(Begun::default(), Unsynced::begin_sync)
    }

    /// For a borrower: the lender has synced the file since [`File::begin_sync`], and told of what
    /// was lost.
    pub fn synced_elsewhere(&self, begun: &Begun) {
        self.shared.unsynced.iter().for_each(|unsynced| unsynced.synced_elsewhere(begun));
    }

    /// Whoever is told has to write it again. What the books say of the size is as lost.
    fn tell_loss(&self) -> Result<()> {
        let Some(column) = self.shared.unsynced.as_ref().and_then(Unsynced::tell) else {
            return Ok(());
        };
        let mut state = self.lock();
        state.size = None;
        state.books.forget();
        drop(state);
        Err(self.loss(column))
    }

    fn loss(&self, column: usize) -> Error {
        let target = self.shared.layout.member(column).target;
        let cause = match self.shared.fs.map().find(target) {
            Some((server, _)) => {
                format!("server {} came back without what was not synced", server.0)
            }
            None => format!("target {} came back without what was not synced", target.0),
        };
        Error::because(Code::Lost, cause).so("what was written since the last sync may be gone")
    }

    /// Something of a column was changed: it is not synced.
    fn note_change(&self, column: usize, witness: Witness) {
        self.shared.fs.heed_life(witness.life);
        if witness.life != 0 {
            self.shared.unsynced.iter().for_each(|it| it.changed(column, witness.life));
        }
    }

    /// A target has answered with what it holds. Refused where that is not what this client wrote
    /// there, as long as the writer has not been told that it is lost.
    fn found(&self, column: usize, witness: Witness) -> Result<()> {
        self.shared.fs.heed_life(witness.life);
        match &self.shared.unsynced {
            Some(unsynced) if witness.life != 0 && self.shared.mode.write => {
                unsynced.found(column, witness.life).map_or(Ok(()), |lost| Err(self.loss(lost)))
            }
            _ => Ok(()),
        }
    }

    /// Others will write, and their syncs be made here: from which life on is to be known before.
    async fn reckon_with(&self, borrowers: Option<Arc<dyn Borrowers>>) -> Result<()> {
        let shared = &self.shared;
        let Some(unsynced) = shared.unsynced.as_ref().filter(|it| shared.mode.write && !it.lends())
        else {
            return Ok(());
        };
        let capability = self.lock().capability.clone();
        let ask = |_| TargetRequest::Witness { ino: shared.ino };
        let told = shared.fs.on_columns(&shared.layout, &capability, ask).await?;
        told.iter().for_each(|told| shared.fs.heed_life(told.witness.life));
        unsynced.lend(borrowers, told.iter().map(|told| told.witness.life));
        Ok(())
    }

    /// Makes the file at least so long, as a write up to there would, but with a hole: whatever
    /// others write meanwhile stays.
    pub async fn extend_to(&self, size: u64) -> Result<()> {
        let shared = &self.shared;
        if size == 0 {
            return Ok(());
        }
        let extend = async {
            self.fresh_capability().await?;
            let (column, last) = shared.layout.locate(size - 1);
            let (capability, epoch) = {
                let mut state = self.lock();
                state.writes_open += 1;
                (state.capability.clone(), state.epoch)
            };
            let request = TargetRequest::Extend { ino: shared.ino, size: last + 1, epoch };
            let member = shared.layout.member(column);
            match shared.fs.target(member, Some(capability), request).await? {
                TargetReply::Object { witness, .. } => {
                    self.note_change(column, witness);
                    let seen = shared.layout.file_size_seen(column, witness.size);
                    let mut state = self.lock();
                    state.grown(seen);
                    state.mtime = state.mtime.max(witness.mtime);
                    state.epoch = state.epoch.max(witness.epoch);
                    state.writes_open -= 1;
                    Ok(())
                }
                _ => Err(crate::wire::protocol("answer of another kind")),
            }
        };
        extend.await.map_err(|error: Error| error.on("extend", &shared.name))
    }

    /// Makes a hole: the extent reads as zeros, its memory is freed, the size stays.
    pub async fn punch(&self, extent: Extent) -> Result<()> {
        let shared = &self.shared;
        let punch = async {
            self.fresh_capability().await?;
            let capability = self.lock().capability.clone();
            let request = |column: usize| {
                let offset = shared.layout.object_size(column, extent.offset);
                let length = shared.layout.object_size(column, extent.end()) - offset;
                TargetRequest::Punch { ino: shared.ino, extents: vec![Extent { offset, length }] }
            };
            self.lock().size = None;
            let told = shared.fs.on_columns(&shared.layout, &capability, request).await?;
            for (column, told) in told.iter().enumerate() {
                self.note_change(column, told.witness);
            }
            Ok(())
        };
        punch.await.map_err(|error: Error| error.on("punch", &shared.name))
    }

    /// The next data (or hole) at or behind `offset`; none behind the last data. A hole is found at
    /// the file's end at the latest. Holes are told in whole blocks of [`HOLE_BYTES`], as local file
    /// systems do: tar writes wrong archives otherwise.
    pub async fn seek(&self, offset: u64, data: bool) -> Result<Option<u64>> {
        let block = |place: u64| place / HOLE_BYTES * HOLE_BYTES;
        let seek = async {
            let size = self.size().await?;
            if offset >= size {
                return Err(Error::new(Code::NoExtent));
            }
            let mut at = block(offset);
            if data {
                return Ok(self.find(at, true, size).await?.map(|found| block(found).max(offset)));
            }
            loop {
                let found = self.find(at, false, size).await?.unwrap_or(size);
                let hole = found.next_multiple_of(HOLE_BYTES);
                if hole >= size {
                    return Ok(Some(size));
                }
                match self.find(hole, true, size).await? {
                    Some(found) if block(found) == hole => at = found,
                    _ => return Ok(Some(hole.max(offset))),
                }
            }
        };
        seek.await.map_err(|error: Error| error.on("seek", &self.shared.name))
    }

    /// The next byte of data (or of a hole) at or behind `offset` and before `size`.
    async fn find(&self, offset: u64, data: bool, size: u64) -> Result<Option<u64>> {
        let shared = &self.shared;
        let capability = self.lock().capability.clone();
        let layout = &shared.layout;
        // Bytes of a column come in the file in the order in which they are in the object, so
        // that the first that any column finds is the first of all.
        let ask = |column| {
            let (capability, member) = (capability.clone(), layout.member(column));
            let start = layout.object_size(column, offset);
            let request = TargetRequest::Seek { ino: shared.ino, offset: start, data };
            async move {
                match shared.fs.target(member, Some(capability), request).await? {
                    TargetReply::Seek { offset: Some(found) } => {
                        Ok(Some(layout.file_offset(column, found)))
                    }
                    TargetReply::Seek { offset: None } => Ok(None),
                    _ => Err(crate::wire::protocol("answer of another kind")),
                }
            }
        };
        let columns = (0..layout.stripe_count()).filter(|&column| {
            layout.object_size(column, offset) < layout.object_size(column, size)
        });
        let found: Vec<_> = join_all(columns.map(ask)).await.into_iter().collect::<Result<_>>()?;
        Ok(found.into_iter().flatten().min().filter(|&found| found < size))
    }

    /// Ends the handle, and reports what this writer knows of the file's size and last write; where borrowers
    /// who were watched have written by it, what the targets say of them.
    ///
    /// Where nothing hangs on it, that goes with the next request to the metadata service, or with
    /// the next round of [`Fs::collect_garbage`], and is not waited for: until then, others find the
    /// file open and ask its targets how long it is.
    pub async fn close(&self) -> Result<()> {
        let shared = &self.shared;
        let Some(handle) = shared.handle else {
            return Ok(());
        };
        let (version, own, wrote, unsure, borrowers_wrote) = {
            let state = self.lock();
            let version = state.version;
            let settlement = |size| Settlement { version, size, mtime: state.mtime };
            // What is not safe may be gone one day, and the size that was told of it would stay.
            let safe = shared.unsynced.as_ref().is_none_or(Unsynced::is_clean);
            let known = shared.mode.write && state.writes_open == 0 && safe;
            let right = |&size: &u64| known && size <= state.filled;
            let own = state.size.filter(right).map(settlement);
            let borrowers_wrote =
                known && state.watched.as_ref().is_some_and(Watched::have_written);
            let wrote = borrowers_wrote || state.writes_open > 0 || state.mtime != WallTime(0);
            (version, own, wrote, state.writes_open > state.writes_refused, borrowers_wrote)
        };
        let settlement = match borrowers_wrote {
            true => {
                // If they cannot be asked, whoever wants to know asks them.
                let found = self.ask_columns().await.unwrap_or(None).filter(Survey::is_settled);
                found.map(|Survey { size, mtime, .. }| Settlement { version, size, mtime })
            }
            false => own,
        };
        // What was written is likely to be looked at, by many clients at once it may be: better one
        // request now than one of each of them to each target. And should another client remove it,
        // its memory must not be kept by a handle that has ended.
        if !wrote {
            let rider = Rider::Close(Closing { handle, settlement });
            return shared.fs.ride(shared.ino, rider).await;
        }
        let request = MetaRequest::Close { handle, settlement, unsure };
        let close = async {
            match shared.fs.meta(&shared.who, shared.ino, request).await? {
                MetaReply::Gone { reap, order } => {
                    shared.fs.throw_away(reap, order);
                    Ok(())
                }
                other => Err(super::unexpected(&other)),
            }
        };
        close.await.map_err(|error: Error| error.on("close", &shared.name))
    }
}

/// Whether a target has said no, so that nothing of the request was stored or will be. Other errors
/// say that nobody knows.
pub(super) fn refused(error: &Error) -> bool {
    use Code::*;
    matches!(
        error.code,
        NoSpace | NoCapability | Lost | Stale | Busy | NotFormed | Invalid | TooLarge | Unsupported
    )
}

/// Fills what a short answer left out with zeros: all behind its first `length` bytes that lies
/// before `object_end`. What lies behind that lies behind the file's end.
fn zero(part: &Part, mut length: usize, object_end: u64) {
    let mut memory = part.memory.iter().copied();
    let mut current = Slice { pointer: std::ptr::null_mut(), length: 0 };
    for extent in part.runs.extents() {
        let (mut offset, end) = (extent.offset, extent.end());
        while offset < end {
            while current.length == 0 {
                current = memory.next().expect("memory is as long as the extents");
            }
            let piece = current.length.min((end - offset) as usize);
            let answered = length.min(piece);
            length -= answered;
            let from = offset + answered as u64;
            let left_out = object_end.saturating_sub(from).min((piece - answered) as u64);
            let hole = current.part(answered, left_out as usize);
            // SAFETY: the caller of `read_slices` promises that the memory is valid and its own; the
            // call that wrote into it has ended.
            unsafe { hole.pointer.write_bytes(0, hole.length) };
            current = current.part(piece, current.length - piece);
            offset += piece as u64;
        }
    }
}
