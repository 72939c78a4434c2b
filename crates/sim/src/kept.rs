//! Servers whose content outlives them: killed, or cut from power in the middle of whatever their disks
//! do, and started anew. What was synced must be there, and nothing older than that.

use crate::client::SimRpc;
use crate::disk::Speed;
use crate::net::Host;
use crate::planted::{Bug, Planted};
use crate::rng::Rng;
use crate::run::{Report, ask, bare_map, form, housekeeping, join, owner};
use crate::server::Equipment;
use crate::sim::{Ended, Sim};
use crate::workload::at;
use crate::world::{Event, Fault, World, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use weir_core::config::Timing;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{File, Fs, FsOptions, Rpc};
use weir_core::journal::twin::{Fault as FileFault, Possible, Recorder};
use weir_core::journal::{self, Journal, Options, Writer};
use weir_core::layout::Member;
use weir_core::service::meta::{JournaledStore, MetaStore};
use weir_core::service::storage::disk::{Disk, TwinDisk};
use weir_core::service::storage::{HeapMemory, Target};
use weir_core::types::{Incarnation, Ino, ServerIndex, TargetId};
use weir_core::wire::control::{ControlReply, ControlRequest, PoolMap};
use weir_core::wire::meta::{LOCK_END_MAX, LayoutWish, Lock, LockKind, OpenMode};

/// A journal is written so much later at the latest, as in the real server.
const JOURNAL_US: u64 = 100_000;
/// What it takes to write and sync one that somebody waits for: microseconds.
const SYNC_US: u64 = 400;
/// Room on a target's disk: blocks.
const BLOCKS: u64 = 16 << 10;

/// The files of a server's directory.
const DATA: usize = 0;
const DISK: usize = 1;
const NAMES: usize = 2;

type Pump = Box<dyn FnMut() -> Result<bool> + Send>;
/// Called when somebody waits for a journal.
pub(crate) type Bell = Box<dyn Fn() + Send + Sync>;

/// What a server has on its disk, and who writes its journals.
pub(crate) struct Shelf {
    incarnation: Incarnation,
    names: bool,
    back: bool,
    files: Vec<Recorder>,
    /// In this life.
    pumps: Vec<Pump>,
    target: Option<Arc<Target>>,
}

/// What was made of a shelf for a new life.
pub(crate) struct Brought {
    pub(crate) target: Arc<Target>,
    pub(crate) store: Option<Box<dyn MetaStore>>,
}

fn options(incarnation: Incarnation, what: [u8; 8], segment_bytes: u64) -> Options {
    let mut identity = [0; 16];
    identity[..8].copy_from_slice(&incarnation.0.to_le_bytes());
    identity[8..].copy_from_slice(&what);
    let log_bytes_min = segment_bytes / 4;
    Options { segment_bytes, log_bytes_min, step_bytes: 32 << 10, ..Options::new(identity) }
}

impl Shelf {
    pub(crate) fn new(incarnation: Incarnation, names: bool) -> Shelf {
        let files = Recorder::files(vec![Vec::new(); 3]);
        Shelf { incarnation, names, back: false, files, pumps: Vec::new(), target: None }
    }

    /// The process has died; `power`: and with it what its disks had not been made to keep. That may
    /// have happened while they were at it.
    pub(crate) fn die(&mut self, power: bool, rng: &mut Rng) {
        if power {
            let before = self.files[DATA].deeds();
            if rng.chance(50) {
                // Nobody has heard of what is done now.
                self.pumps.iter_mut().for_each(|pump| drop(pump()));
            }
            let image = self.files[DATA].crash(before, &mut || rng.word());
            self.files = Recorder::files(image.files);
        } else {
            // As the real server opens its journals.
            [DATA, NAMES].iter().for_each(|&file| self.files[file].reopen(&mut || rng.word()));
        }
        self.files[DATA].mend();
        self.pumps.clear();
        self.target = None;
    }

    /// In this life its files fail, from their `after`th operation on.
    pub(crate) fn fail(&self, after: u64, how: FileFault, lasts: bool) {
        self.files[DATA].plan(after, how, lasts);
    }

    /// Comes back from the shelf, or is made there.
    pub(crate) fn bring(
        &mut self,
        disk: Arc<dyn Disk>,
        equipment: &Equipment,
        bell: &dyn Fn() -> Bell,
        bug: Option<Bug>,
    ) -> Result<Brought> {
        let member = Member { target: TargetId(0), incarnation: self.incarnation };
        let memory = Box::new(HeapMemory::new(equipment.memory));
        let target = Target::with(member, 0, memory, Some(disk));
        let data = options(self.incarnation, *b"data    ", 1 << 20);
        let medium = match bug {
            // The planted bug: what records name is not synced before them.
            Some(Bug::NamedUnsynced) => self.files[DATA].clone(),
            _ => self.files[DATA].clone().naming(&self.files[DISK]),
        };
        let writer = match self.back {
            true => {
                let mut told = |_, _| ();
                let mut restore = target.restoring(&mut told);
                journal::open(medium, &data, &mut restore)?
            }
            false => journal::create(medium, &data)?,
        };
        target.keep(writer.journal());
        let sources = target.sources();
        self.drive(writer, sources, bell);
        let mut store: Option<Box<dyn MetaStore>> = None;
        if self.names {
            let names = options(self.incarnation, *b"metadata", 128 << 10);
            let (medium, limit) = (self.files[NAMES].clone(), equipment.metadata_memory);
            let (map, writer) = match self.back {
                true => JournaledStore::open(medium, &names, limit, &mut |_, _| ())?,
                false => JournaledStore::create(medium, &names, limit)?,
            };
            let sources = map.sources();
            self.drive(writer, sources, bell);
            store = Some(Box::new(map));
        }
        self.back = true;
        self.target = Some(target.clone());
        Ok(Brought { target, store })
    }

    fn drive(
        &mut self,
        mut writer: Writer<Recorder>,
        sources: impl Fn() -> Box<dyn journal::Source> + Send + 'static,
        bell: &dyn Fn() -> Bell,
    ) {
        let journal: &Arc<Journal> = writer.journal();
        journal.set_bell(bell());
        self.pumps.push(Box::new(move || writer.pump(&sources)));
    }

    pub(crate) fn disk(&self) -> TwinDisk {
        TwinDisk::new(self.files[DISK].clone(), BLOCKS)
    }

    /// Writes and syncs what waits. Says whether there is more.
    fn pump(&mut self) -> Result<bool> {
        let mut more = false;
        for pump in &mut self.pumps {
            more |= pump()?;
        }
        if let Some(target) = &self.target {
            target.journal_advanced();
        }
        Ok(more)
    }
}

impl World {
    /// Whether the error is one of those that tell of a kept server's files that are known to fail.
    fn files_failed(&self, error: &Error) -> bool {
        matches!(error.code, Code::Disk | Code::NoSpace) && self.disks_fail
    }

    /// Journals that somebody waits for are written soon.
    pub(crate) fn bells_rung(&mut self) {
        let rung = std::mem::take(&mut *lock(&self.bells));
        for (server, life) in rung {
            let at_us = self.now_us + self.rng.between(1, 2 * SYNC_US);
            self.at(at_us, Event::Journal { server, life, again: false });
        }
    }

    pub(crate) fn journal_turn(&mut self, server: usize, life: u64, again: bool) {
        let process = &mut self.servers[server];
        let Some(shelf) = process.shelf.as_mut().filter(|_| process.alive && process.life == life)
        else {
            return;
        };
        if process.stopped {
            return self.at(self.now_us + 1000, Event::Journal { server, life, again });
        }
        let more = shelf.pump();
        if again {
            self.at(self.now_us + JOURNAL_US, Event::Journal { server, life, again });
        }
        match more {
            Ok(true) => {
                self.at(self.now_us + SYNC_US, Event::Journal { server, life, again: false })
            }
            Ok(false) => {}
            // Who waits for it is told.
            Err(_) if self.disks_fail => {}
            Err(error) => self.fail(|| format!("server {server}: journal: {error}")),
        }
    }
}

/// A kept pool whose servers die and come back. The rest is drawn from the seed.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Decides everything.
    pub seed: u64,
    /// A bug to be found.
    pub bug: Option<Bug>,
    /// Whether to keep the story.
    pub tells: bool,
}

/// Files of each client, and how far they reach: bytes.
const FILES: u64 = 3;
const OFFSET_MAX: u64 = 150_000;
const LENGTH_MAX: u64 = 60_000;
const ROUNDS: u64 = 4;
/// What goes wrong does so within this time: microseconds.
const HORIZON_US: u64 = 400_000;
/// Operations within which a server's files fail, if they do.
const OPERATIONS: u64 = 80;
/// How often a sync that failed is tried again.
const SYNCS: usize = 3;
/// The file that clients lock.
const LOCKED: &str = "locked";
/// How often it is looked whether a server came back: milliseconds.
const WATCH_MS: u64 = 20;

/// What is known of a file.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Whether its name is there, unless nobody can say.
    there: Option<bool>,
    /// What its client must read.
    live: Vec<u8>,
    /// What a crash may leave.
    possible: Possible,
}

/// A change of names that was begun, and of which nobody knows whether it was done.
#[derive(Clone, Debug)]
struct Renaming {
    from: String,
    to: String,
    exchange: bool,
    /// The file that had the first name.
    ino: Ino,
}

#[derive(Debug, Default)]
struct Knowledge {
    files: BTreeMap<String, Known>,
    /// By client.
    renamings: BTreeMap<usize, Renaming>,
    /// Who holds the lock.
    holder: Option<usize>,
    ops: u64,
    errors: u64,
    /// Files that came back, and were not empty.
    found: u64,
    /// Losses that a client was told of.
    losses: u64,
}

impl Knowledge {
    /// A client's change of names was done.
    fn renamed(&mut self, place: usize) {
        let Some(Renaming { from, to, exchange, .. }) = self.renamings.remove(&place) else {
            return;
        };
        let gone = Known { there: Some(false), ..Known::default() };
        let moved = self.files.remove(&from).unwrap_or_default();
        let replaced = self.files.insert(to, moved);
        self.files.insert(from, replaced.filter(|_| exchange).unwrap_or(gone));
    }
}

type Shared = Arc<Mutex<Knowledge>>;

/// A client's program: it works on files of its own until the pool is gone.
struct Program {
    fs: Fs<SimRpc>,
    world: Arc<Mutex<World>>,
    shared: Shared,
    place: usize,
    steps: u64,
    since_us: u64,
    rng: Rng,
    /// For what not all seeds have, if this one has it: the others stay as they were without.
    more: Option<Rng>,
    /// The file that is locked, if it was opened, and whether it is.
    locked: Option<(File<SimRpc>, bool)>,
}

impl Program {
    /// How many lives the servers have lived.
    fn lives(&self) -> u64 {
        lock(&self.world).servers.iter().map(|server| server.life).sum()
    }

    /// Something of a file is lost, and its client has been told, or need not be: whatever is there
    /// now must be what may be.
    async fn look(&self, name: &str, file: &File<SimRpc>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (OFFSET_MAX + LENGTH_MAX) as usize];
        let found = file.read_at(&mut bytes, 0).await?;
        bytes.truncate(found);
        let allowed = self.know(name, |known| known.possible.allows(&bytes));
        if !allowed {
            let what = format!("{name}: {found} bytes, lost in part, or older than a sync");
            lock(&self.world).fail(|| what);
        }
        self.know(name, |known| known.live.clone_from(&bytes));
        Ok(bytes)
    }

    /// Makes the file safe. What it is by then if some was lost, of which this tells, is safe too.
    async fn sync(&self, name: &str, file: &File<SimRpc>) -> Result<bool> {
        let mut result = file.sync().await;
        for _ in 1..SYNCS {
            match &result {
                // What went wrong is told once. If it is well then, all of it is.
                Err(error) if lock(&self.world).files_failed(error) => result = file.sync().await,
                _ => break,
            }
        }
        match result {
            Ok(()) => {
                self.know(name, |known| known.possible.synced(&known.live));
                Ok(false)
            }
            Err(error) if error.code == Code::Lost => {
                lock(&self.shared).losses += 1;
                let lives = self.lives();
                let bytes = self.look(name, file).await?;
                // Unless it happened again before it was read.
                if lives == self.lives() {
                    self.know(name, |known| known.possible.synced(&bytes));
                }
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads all of it, which must be what was written, or refused until a sync has told why.
    async fn check(&self, name: &str, file: &File<SimRpc>) -> Result<()> {
        let mut bytes = vec![0; (OFFSET_MAX + LENGTH_MAX) as usize];
        let found = match file.read_at(&mut bytes, 0).await {
            Ok(found) => found,
            Err(error) if error.code == Code::Lost => {
                if !self.sync(name, file).await? {
                    lock(&self.world).fail(|| format!("{name}: {error}; and a sync says nothing"));
                }
                return Ok(());
            }
            Err(error) if lock(&self.world).files_failed(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let right = self.know(name, |known| bytes[..found] == known.live[..]);
        if !right {
            let what = format!("{name}: {found} bytes, not what was written");
            lock(&self.world).fail(|| what);
        }
        Ok(())
    }

    fn know<T>(&self, name: &str, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut shared = lock(&self.shared);
        shared.ops += 1;
        change(shared.files.entry(name.to_owned()).or_default())
    }

    async fn work(mut self) {
        if let Err(error) = self.try_work().await {
            lock(&self.shared).errors += 1;
            let mut world = lock(&self.world);
            // Only the death of a server excuses errors, and only some if it is back.
            let lost = matches!(error.code, Code::ServerLost | Code::Lost | Code::Busy);
            let died = world.deaths.iter().flatten().any(|&at_us| at_us >= self.since_us);
            let disk = world.files_failed(&error);
            if world.servers.iter().all(|server| server.alive) && !(died && lost) && !disk {
                let place = self.place;
                world.fail(|| format!("client {place}: {:?}: {error}", error.code));
            }
        }
    }

    async fn open(&self, name: &str) -> Result<File<SimRpc>> {
        let wish = LayoutWish { stripe_size: Some(8192), stripe_count: Some(2) };
        self.know(name, |known| known.there = known.there.filter(|there| *there));
        let mode = OpenMode::READ_WRITE;
        let opened = self.fs.create(&owner(), at(name), 0o644, false, mode, wish).await;
        let file = opened?.0;
        self.know(name, |known| known.there = Some(true));
        Ok(file)
    }

    /// Has the file take another of the client's names, or exchange it with that.
    async fn rename(&mut self, from: &str, open: File<SimRpc>) -> Result<()> {
        let Some(more) = &mut self.more else { return Ok(()) };
        let (to, exchange) = (format!("f{}-{}", self.place, more.below(FILES)), more.chance(30));
        let ino = open.ino();
        open.close().await?;
        let there = self.know(&to, |known| known.there == Some(true));
        if to == from || (exchange && !there) {
            return Ok(());
        }
        let renaming = Renaming { from: from.to_owned(), to, exchange, ino };
        lock(&self.shared).renamings.insert(self.place, renaming.clone());
        let Renaming { from, to, .. } = &renaming;
        self.fs.rename(&owner(), at(from), at(to), false, exchange).await?;
        lock(&self.shared).renamed(self.place);
        Ok(())
    }

    /// Takes the lock that all clients contend for, if it is to be had, or lets it go.
    async fn lock_or_unlock(&mut self) -> Result<()> {
        if self.locked.is_none() {
            let (mode, wish) = (OpenMode::READ_WRITE, LayoutWish::default());
            let opened = self.fs.create(&owner(), at(LOCKED), 0o644, false, mode, wish).await?;
            self.locked = Some((opened.0, false));
        }
        let Some((file, held)) = &mut self.locked else { return Ok(()) };
        let wish = whole(file.ino(), self.place);
        if *held {
            // From here on others may have it.
            lock(&self.shared).holder = None;
            *held = false;
            return self.fs.unlock(wish).await;
        }
        match file.take_lock(wish, None).await {
            Ok(_) => {
                let before = lock(&self.shared).holder.replace(self.place);
                if let Some(other) = before {
                    let what = format!("clients {other} and {} hold the lock at once", self.place);
                    lock(&self.world).fail(|| what);
                }
                *held = true;
                Ok(())
            }
            Err(error) if error.code == Code::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn try_work(&mut self) -> Result<()> {
        let mut file: Option<(String, File<SimRpc>)> = None;
        for _ in 0..self.steps {
            let value = self.rng.between(1, 62) as u8;
            let (name, open) = match file.take() {
                Some(open) => open,
                None => {
                    let name = format!("f{}-{}", self.place, self.rng.below(FILES));
                    let open = self.open(&name).await?;
                    (name, open)
                }
            };
            let choice = self.more.as_mut().map_or(u64::MAX, |more| more.below(16));
            if choice == 0 {
                self.rename(&name, open).await?;
                continue;
            }
            if choice == 1 {
                self.lock_or_unlock().await?;
            }
            let offset = self.rng.below(OFFSET_MAX);
            match self.rng.below(14) {
                0..=5 => {
                    let small = self.rng.chance(50);
                    let length = self.rng.between(1, if small { 3000 } else { LENGTH_MAX });
                    let (start, end) = (offset as usize, (offset + length) as usize);
                    self.know(&name, |known| known.possible.written(start, end, value));
                    open.write_at(&vec![value; length as usize], offset).await?;
                    self.know(&name, |known| {
                        known.live.resize(known.live.len().max(end), 0);
                        known.live[start..end].fill(value);
                    });
                }
                6..=8 => {
                    self.sync(&name, &open).await?;
                }
                9 => {
                    // Either way, until it is done.
                    let before = self.know(&name, |known| {
                        let before = known.possible.clone();
                        known.possible.cut(offset as usize, false);
                        before
                    });
                    open.truncate(offset).await?;
                    self.know(&name, |known| {
                        known.possible = before;
                        known.possible.cut(offset as usize, true);
                        known.live.resize(offset as usize, 0);
                    });
                }
                10 | 11 => {
                    self.check(&name, &open).await?;
                }
                12 => {
                    open.close().await?;
                    self.know(&name, |known| known.there = None);
                    self.fs.unlink(&owner(), at(&name)).await?;
                    self.know(&name, |known| {
                        *known = Known { there: Some(false), ..Known::default() };
                    });
                    continue;
                }
                _ => {
                    open.close().await?;
                    if value.is_multiple_of(2) {
                        // Whoever looks at it settles its size, if that is safe.
                        self.fs.lookup(&owner(), at(&name), false).await?;
                    }
                    continue;
                }
            }
            file = Some((name, open));
        }
        match file {
            Some((_, open)) => open.close().await,
            None => Ok(()),
        }
    }
}

/// Excludes everybody else from all of a file.
fn whole(ino: Ino, owner: usize) -> Lock {
    let (kind, owner) = (LockKind::Range, owner as u64);
    Lock { ino, kind, owner, pid: 1, start: 0, end: LOCK_END_MAX, exclusive: true }
}

async fn find(fs: &Fs<SimRpc>, name: &str) -> Result<Option<Ino>> {
    match fs.lookup(&owner(), at(name), false).await {
        Ok(attributes) => Ok(Some(attributes.ino)),
        Err(error) if error.code == Code::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Nothing is locked by those who are dead.
async fn audit_lock(fs: &Fs<SimRpc>, shared: &Shared) -> Result<()> {
    lock(shared).holder = None;
    let Some(ino) = find(fs, LOCKED).await? else { return Ok(()) };
    let (file, _) = fs.open(&owner(), ino, OpenMode::READ_WRITE).await?;
    file.take_lock(whole(ino, 0), None).await?;
    fs.unlock(whole(ino, 0)).await?;
    file.close().await
}

/// Changes of names that were under way were done, or they were not.
async fn audit_names(fs: &Fs<SimRpc>, shared: &Shared) -> Result<()> {
    let renamings = lock(shared).renamings.clone();
    for (place, renaming) in renamings {
        let Renaming { from, to, ino, .. } = &renaming;
        let (first, second) = (find(fs, from).await?, find(fs, to).await?);
        match (first == Some(*ino), second == Some(*ino)) {
            (true, false) => drop(lock(shared).renamings.remove(&place)),
            (false, true) => lock(shared).renamed(place),
            (both, _) => {
                let what = if both { "both names" } else { "neither name" };
                let cause = format!("{renaming:?}: {what} are of that file");
                return Err(Error::because(Code::Internal, cause));
            }
        }
    }
    Ok(())
}

/// Looks at all files: what is there from now on counts, and must be what may be.
async fn audit(fs: Fs<SimRpc>, shared: Shared) -> Result<()> {
    audit_lock(&fs, &shared).await?;
    audit_names(&fs, &shared).await?;
    let names: Vec<String> = lock(&shared).files.keys().cloned().collect();
    for name in names {
        let found = match fs.lookup(&owner(), at(&name), false).await {
            Ok(attributes) => Some(attributes),
            Err(error) if error.code == Code::NotFound => None,
            Err(error) => return Err(error),
        };
        let wrong = |what: String| Err(Error::because(Code::Internal, format!("{name}: {what}")));
        let known = lock(&shared).files[&name].clone();
        let Some(attributes) = found else {
            if known.there == Some(true) {
                return wrong("it was made, and is gone".to_owned());
            }
            let gone = Known { there: Some(false), ..Known::default() };
            lock(&shared).files.insert(name, gone);
            continue;
        };
        if known.there == Some(false) {
            return wrong("it was removed, and is back".to_owned());
        }
        let (file, _) = fs.open(&owner(), attributes.ino, OpenMode::READ).await?;
        let mut bytes = vec![0; (OFFSET_MAX + LENGTH_MAX) as usize];
        let size = file.size().await?;
        let length = file.read_at(&mut bytes, 0).await?;
        bytes.truncate(length);
        file.close().await?;
        if size != length as u64 || attributes.size != size {
            return wrong(format!("{length} bytes are found of {size}, {} told", attributes.size));
        }
        // A name that may have been removed, and was not, is that of the file that it was.
        if !known.possible.allows(&bytes) {
            return wrong(format!("its {length} bytes are lost in part, or older than a sync"));
        }
        let mut shared = lock(&shared);
        shared.found += u64::from(length > 0);
        let mut possible = Possible::default();
        possible.synced(&bytes);
        let known = Known { there: Some(true), live: bytes, possible };
        shared.files.insert(name.clone(), known);
    }
    Ok(())
}

/// Makes a server that died alone, and was started again, part of its pool once more: as the keeper of a pool
/// does.
async fn watch(fs: Fs<SimRpc>, map: PoolMap, key: [u8; 32], index: usize) {
    let server = ServerIndex(index as u16);
    loop {
        let reply = fs.control(server, ControlRequest::Describe).await;
        if let Ok(ControlReply::Description(description)) = reply
            && !description.formed
        {
            // If it dies again meanwhile, it is asked again.
            let _ = join(&fs, &map, key, index).await;
        }
        fs.rpc().sleep(WATCH_MS).await;
    }
}

struct Story {
    sim: Sim,
    rng: Rng,
    /// What concerns single servers is drawn apart: the rest of a seed is the same without.
    lone: Rng,
    /// So are files that fail, renames and locks, which a third of the seeds go without.
    more: Option<Rng>,
    timing: Timing,
    servers: usize,
    clients: usize,
    key: [u8; 32],
    map: PoolMap,
    shared: Shared,
}

impl Kept {
    /// Plays it.
    pub fn run(self) -> Report {
        let mut rng = Rng::new(self.seed);
        let (servers, clients) = (rng.between(1, 3) as usize, rng.between(1, 3) as usize);
        let timing = Timing {
            heartbeat_ms: 300,
            silence_ms_max: 1_500,
            lease_ms: 5_000,
            renew_ms: 1_000,
            ..Timing::default()
        };
        let planted = Planted::new(self.bug);
        let mut world = World::new(rng.fork(), timing.clone(), planted, self.tells);
        world.delay_us = rng.between(20, 1000);
        (0..=servers + clients).for_each(|_| world.hosts.push(Host::new(1_000_000, 0)));
        let equipment = Equipment {
            memory: *rng.pick(&[1 << 20, 2 << 20]),
            metadata_memory: 8 << 20,
            disk: Some(Speed {
                latency_us: *rng.pick(&[20, 200, 4_000]),
                bytes_per_ms: *rng.pick(&[20_000, 500_000]),
            }),
            ..Equipment::default()
        };
        for server in 0..servers {
            world.start_kept_server(server, equipment.clone());
        }
        let (key, map) = (rng.bytes(), bare_map(servers));
        let shared = Shared::default();
        let sim = Sim::new(world);
        let lone = Rng::new(self.seed ^ 0x10e);
        let more = (self.seed % 3 != 1).then(|| Rng::new(self.seed ^ 0x3d5));
        let mut story = Story { sim, rng, lone, more, timing, servers, clients, key, map, shared };
        let end = story.play();
        let mut world = lock(&story.sim.world);
        if let Err(error) = end {
            world.fail(|| format!("{:?}: {error}", error.code));
        }
        let shared = lock(&story.shared);
        Report {
            failure: world.failure.take(),
            story: world.take_story(),
            virtual_us: world.now_us,
            ops: shared.ops,
            errors: shared.errors,
            events: world.events(),
            bytes: world.bytes_moved,
        }
    }
}

impl Story {
    fn fs(&mut self, host: usize) -> (usize, Fs<SimRpc>) {
        let client = lock(&self.sim.world).start_client(self.servers + host, 1);
        let options = FsOptions { timing: self.timing.clone(), transfer_size: 16384 };
        (client, Fs::new(self.sim.rpc(client), self.map.clone(), options))
    }

    fn keep_house(&mut self, client: usize, fs: &Fs<SimRpc>) {
        self.sim.spawn(client, false, housekeeping(fs.clone(), self.timing.renew_ms));
    }

    fn ask<T: Send + 'static>(
        &mut self,
        client: usize,
        what: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match ask(&mut self.sim, client, what) {
            Some(result) => result,
            None => Err(Error::because(Code::Internal, format!("hangs; {}", self.states()))),
        }
    }

    /// How the servers' disks are, for whoever looks for what hangs.
    fn states(&self) -> String {
        let world = lock(&self.sim.world);
        let state = |(index, server): (usize, &crate::server::Server)| {
            let target = server.service.status(world.now(server.host)).targets.pop();
            format!("server {index}: {target:?}, {} requests of its disk", server.disk_pending())
        };
        world.servers.iter().enumerate().map(state).collect::<Vec<_>>().join("; ")
    }

    fn play(&mut self) -> Result<()> {
        let (maker, fs) = self.fs(self.clients);
        let key = self.key;
        self.map = self.ask(maker, async move { form(&fs, key, 65536).await })?;
        for round in 0..ROUNDS {
            let lone = self.servers > 1 && self.lone.chance(60);
            for place in 0..self.clients {
                let (client, fs) = self.fs(place);
                self.keep_house(client, &fs);
                let began = lock(&self.sim.world).now_us;
                let program = Program {
                    fs,
                    since_us: began,
                    world: self.sim.world.clone(),
                    shared: self.shared.clone(),
                    place,
                    steps: self.rng.between(10, 40) * if lone { 4 } else { 1 },
                    rng: self.rng.fork(),
                    more: self.more.as_mut().map(Rng::fork),
                    locked: None,
                };
                self.sim.spawn(client, true, program.work());
                let mut world = lock(&self.sim.world);
                if round == 0 {
                    world.places.push(client);
                } else {
                    world.places[place] = client;
                }
            }
            self.plan_faults(lone);
            if lone {
                self.plan_lone_deaths();
            }
            self.plan_file_faults();
            let until_us = lock(&self.sim.world).now_us + 600_000_000;
            if self.sim.run(until_us) == Ended::TimeUp {
                let cause = format!("clients hang; {}", self.states());
                return Err(Error::because(Code::Internal, cause));
            }
            self.come_back()?;
            let (auditor, fs) = self.fs(self.clients);
            let shared = self.shared.clone();
            self.ask(auditor, async move { audit(fs, shared).await })?;
            if lock(&self.sim.world).failure.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// All servers die at some time while clients are at it: at once, with or without their hosts, or
    /// one first.
    fn plan_faults(&mut self, lone: bool) {
        let rng = &mut self.rng;
        let mut world = lock(&self.sim.world);
        // About as long as the clients will be at it.
        let later_us = if lone { 3 * HORIZON_US } else { 0 };
        let begin_us = world.now_us + later_us + rng.below(HORIZON_US);
        let power = rng.chance(70);
        let apart_us = if rng.chance(30) { rng.below(500_000) } else { 0 };
        for server in 0..self.servers {
            let at_us = begin_us + if server == 0 { 0 } else { apart_us };
            world.at(at_us, Event::Fault(Fault::CrashServer { server, power }));
        }
        for _ in 0..rng.below(6) {
            let at_us = world.now_us + rng.below(HORIZON_US);
            world.at(at_us, Event::Fault(Fault::Drop));
        }
    }

    /// Before that, servers die one at a time and come back, while all else goes on.
    fn plan_lone_deaths(&mut self) {
        for server in 1..self.servers {
            let (client, fs) = self.fs(self.clients);
            let mut world = lock(&self.sim.world);
            let place = self.clients + server - 1;
            match world.places.get_mut(place) {
                Some(watcher) => *watcher = client,
                None => world.places.push(client),
            }
            drop(world);
            self.sim.spawn(client, false, watch(fs, self.map.clone(), self.key, server));
        }
        let rng = &mut self.lone;
        let mut world = lock(&self.sim.world);
        for _ in 0..rng.between(1, 3) {
            let server = rng.between(1, self.servers as u64 - 1) as usize;
            let at_us = world.now_us + rng.below(3 * HORIZON_US);
            let power = rng.chance(50);
            world.at(at_us, Event::Fault(Fault::CrashServer { server, power }));
            let back_us = at_us + rng.below(HORIZON_US);
            world.at(back_us, Event::Fault(Fault::Restart { server }));
        }
    }

    /// A server's files fail once, or from then on, until it dies.
    fn plan_file_faults(&mut self) {
        let Some(rng) = self.more.as_mut() else { return };
        if !rng.chance(40) {
            return;
        }
        let how =
            *rng.pick(&[FileFault::Error, FileFault::Short, FileFault::Full, FileFault::Gone]);
        let lasts = how == FileFault::Gone || rng.chance(40);
        let server = rng.below(self.servers as u64) as usize;
        let (after, at_us) = (rng.below(OPERATIONS), rng.below(HORIZON_US));
        let mut world = lock(&self.sim.world);
        let at_us = world.now_us + at_us;
        world.at(at_us, Event::Fault(Fault::Files { server, after, how, lasts }));
    }

    /// Whatever is left of the pool and its clients dies, and the pool comes back, as by `weir up`.
    fn come_back(&mut self) -> Result<()> {
        let power = self.rng.chance(50);
        {
            let mut world = lock(&self.sim.world);
            for place in 0..world.places.len() {
                world.crash_client(place, true);
            }
            world.mend();
            world.disks_fail = false;
            for server in 0..self.servers {
                world.crash_server(server, power);
            }
            for server in 0..self.servers {
                world.restart_server(server);
            }
            if let Some(failure) = &world.failure {
                return Err(Error::because(Code::Internal, failure.clone()));
            }
        }
        self.map.epoch += 1;
        let (maker, fs) = self.fs(self.clients);
        let (map, key) = (self.map.clone(), self.key);
        self.ask(maker, async move {
            for index in 0..map.servers.len() {
                fs.control(ServerIndex(index as u16), ControlRequest::Describe).await?;
                join(&fs, &map, key, index).await?;
            }
            Ok(())
        })
    }
}
