//! What clients do, and what each of them must see.

use crate::client::SimRpc;
use crate::guarded::Locked;
use crate::model::{Effect, FileModel, UNTOUCHED};
use crate::names::{Node, Private};
use crate::order::NameEvent;
use crate::rng::Rng;
use crate::shared::{CellWrite, Race};
use crate::world::{World, lock};
use std::collections::BTreeMap;
use std::future::Future;
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{File, Fs, Rpc, Seen};
use weir_core::layout::{Extent, Layout};
use weir_core::types::{Attributes, Credentials, Ino, WallTime};
use weir_core::wire::meta::{Changes, LayoutWish, OpenMode, Place, SetTime};

/// Open files of one client.
const HANDLES_MAX: usize = 4;
/// Where files of the random histories begin at most, and how long one write is at most: bytes.
const OFFSET_MAX: u64 = 96 * 1024;
const LENGTH_MAX: u64 = 40 * 1024;
/// Which faults a run has, and with them which errors are excused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// None.
    Calm,
    /// Broken connections, short stops and partitions: nobody may notice.
    Gentle,
    /// Long stops and partitions, clients that die.
    Rough,
    /// Servers die too.
    Wreck,
}

impl Mix {
    /// All of them.
    pub const ALL: &[Mix] = &[Mix::Calm, Mix::Gentle, Mix::Rough, Mix::Wreck];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mix::Calm => "calm",
            Mix::Gentle => "gentle",
            Mix::Rough => "rough",
            Mix::Wreck => "wreck",
        }
    }

    fn excuses(self, code: Code) -> bool {
        // Busy: clients that are stopped in mid-payload hold the last free memory.
        let rough =
            matches!(code, Code::ServerLost | Code::SessionLapsed | Code::BadHandle | Code::Busy);
        let wreck = matches!(code, Code::Lost | Code::NotFormed);
        match self {
            Mix::Calm | Mix::Gentle => false,
            Mix::Rough => rough,
            Mix::Wreck => rough || wreck,
        }
    }
}

/// All that clients know together.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) places: Vec<Private>,
    pub(crate) cells: Vec<Vec<CellWrite>>,
    pub(crate) tags: u64,
    /// Offset and bytes of records that are appended for certain.
    pub(crate) appended: Vec<(u64, Vec<u8>)>,
    /// Appends under way, or of unknown outcome.
    pub(crate) appends_open: usize,
    pub(crate) races: BTreeMap<u32, Race>,
    pub(crate) history: Vec<NameEvent>,
    pub(crate) locked: Locked,
    pub(crate) ops: u64,
    pub(crate) errors: u64,
    pub(crate) no_space: u64,
}

/// A client at work.
#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) fs: Fs<SimRpc>,
    /// A program on the same host, which borrows files from this client, or opens them itself.
    pub(crate) beside: Fs<SimRpc>,
    pub(crate) world: Arc<Mutex<World>>,
    pub(crate) model: Arc<Mutex<Model>>,
    pub(crate) who: Credentials,
    /// Which client this is, through all its lives.
    pub(crate) place: usize,
    pub(crate) mix: Mix,
    pub(crate) limit_us: u64,
    pub(crate) targets_per_server: usize,
    pub(crate) rng: Rng,
}

pub(crate) fn at(path: impl Into<String>) -> Place {
    Place::new(Ino::ROOT, path.into().into_bytes())
}

struct Open {
    file: File<SimRpc>,
    index: usize,
    /// The same as it was lent to the program beside, which may have had it for long.
    lent: Option<File<SimRpc>>,
    /// The same as the program beside has opened it.
    other: Option<File<SimRpc>>,
    /// What was read ahead of it by this handle.
    ahead: Option<(Extent, Vec<u8>, Seen)>,
}

/// By whose handle a file is read or written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    OwnOrLent,
    Other,
}

impl Worker {
    pub(crate) fn now_us(&self) -> u64 {
        lock(&self.world).now_us
    }

    pub(crate) fn fail(&self, what: impl FnOnce() -> String) {
        lock(&self.world).fail(what);
    }

    /// Runs an operation: it must end in time, whatever happens.
    pub(crate) async fn op<T>(
        &self,
        name: impl Fn() -> String,
        operation: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let begin_us = {
            let mut world = lock(&self.world);
            let place = self.place;
            world.tell(|| format!("client {place}: {} ...", name()));
            world.now_us
        };
        let result = operation.await;
        let mut model = lock(&self.model);
        model.ops += 1;
        model.errors += u64::from(result.is_err());
        drop(model);
        let mut world = lock(&self.world);
        let us = world.now_us - begin_us;
        let place = self.place;
        world.tell(|| match &result {
            Ok(_) => format!("client {place}: {} done", name()),
            Err(error) => format!("client {place}: {}: {:?}: {error}", name(), error.code),
        });
        if us > self.limit_us {
            world.fail(|| format!("client {place}: {} took {:.1} s", name(), us as f64 / 1e6));
        }
        result
    }

    /// An error that nothing in the story excuses is a failure of the run.
    pub(crate) fn excuse(&self, error: &Error) {
        if matches!(error.code, Code::NoSpace | Code::NoMetadataSpace) {
            lock(&self.model).no_space += 1;
        } else if !self.mix.excuses(error.code) && !self.disk_failed(error) {
            self.fail(|| format!("client {}: {:?}: {error}", self.place, error.code));
        }
    }

    /// Whether a disk's fault is told of, where disks have faults.
    pub(crate) fn disk_failed(&self, error: &Error) -> bool {
        error.code == Code::Disk && lock(&self.world).disks_fail
    }

    /// It can only have ended in this error, or in one that the story excuses.
    pub(crate) fn expect_error(&self, code: Code, result: Result<()>) {
        match result {
            Ok(()) => self.unexpected("an operation was done", &format!("{code:?}")),
            Err(error) if error.code == code => {}
            Err(error) => self.excuse(&error),
        }
    }

    pub(crate) fn unexpected(&self, what: &str, expected: &str) {
        self.fail(|| format!("client {}: {what}, expected: {expected}", self.place));
    }

    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Private) -> T) -> T {
        change(&mut lock(&self.model).places[self.place])
    }

    pub(crate) fn path(&self, name: &str) -> Place {
        at(format!("p{}/{name}", self.place))
    }

    fn wish(&mut self) -> LayoutWish {
        LayoutWish {
            stripe_size: Some(*self.rng.pick(&[4096, 8192, 65536])),
            stripe_count: Some(self.rng.between(1, 4) as u32),
        }
    }

    /// Servers that died before `since_us` and that hold some of these bytes.
    pub(crate) fn dead_under(&self, layout: &Layout, extents: &[Extent], since_us: u64) -> bool {
        let dead = lock(&self.world).dead_since(since_us);
        !dead.is_empty()
            && extents.iter().any(|extent| {
                layout.pieces(extent.offset, extent.length as usize).any(|piece| {
                    let target = layout.member(piece.column).target.0 as usize;
                    dead.contains(&(target / self.targets_per_server))
                })
            })
    }

    /// Works through a random history.
    pub(crate) async fn work(mut self, steps: u64) {
        let mut open: Vec<Open> = Vec::new();
        for _ in 0..steps {
            let pause_ms = self.rng.below(25);
            if pause_ms > 4 {
                self.fs.rpc().sleep(pause_ms - 4).await;
            }
            match self.rng.below(100) {
                0..18 => self.create(&mut open).await,
                18..42 => self.write(&mut open).await,
                42..53 => self.read(&mut open).await,
                53..57 => self.resize(&mut open).await,
                57..60 => self.look(&mut open).await,
                60..63 => self.close(&mut open).await,
                63..71 => self.change_names().await,
                71..73 => self.set_time().await,
                73..76 => self.attribute().await,
                76..79 => self.peek().await,
                79..88 => self.cell().await,
                88..90 => self.append().await,
                90..93 => self.locked().await,
                93..95 => self.race().await,
                _ => self.shared_names().await,
            }
        }
        while !open.is_empty() {
            self.close(&mut open).await;
        }
    }

    async fn create(&mut self, open: &mut Vec<Open>) {
        if open.len() >= HANDLES_MAX {
            return self.close(open).await;
        }
        let name = self.name();
        let exclusive = self.rng.chance(20);
        let truncate = self.rng.chance(20);
        let mode = OpenMode { truncate, ..OpenMode::READ_WRITE };
        let wish = self.wish();
        let create = self.fs.create(&self.who, self.path(&name), 0o644, exclusive, mode, wish);
        let create = self
            .op(|| format!("create {name} (exclusive {exclusive}, truncate {truncate})"), create);
        let Some(end) = self.with(|private| private.resolve(&name)) else { return };
        let end = match self.with(|private| private.names.contains_key(&name)) && exclusive {
            true => Err(Code::Exists),
            false => end,
        };
        let end = match end {
            Ok(end) => end,
            Err(code) => return self.expect_error(code, create.await.map(drop)),
        };
        let before = self.with(|private| private.names.get(&end).copied());
        let index = self.with(|private| match before {
            Some(Node::File(index)) => {
                if truncate {
                    private.files[index].begin(&[Effect::Truncate(0)]);
                }
                index
            }
            _ => {
                private.files.push(FileModel::default());
                private.inos.push(None);
                let index = private.files.len() - 1;
                private.doubts.push(vec![(end, before, Some(Node::File(index)))]);
                index
            }
        });
        let existed = before.is_some();
        match create.await {
            Ok((file, attributes, created)) => {
                if created == existed {
                    self.unexpected(&format!("create {name} gave created={created}"), "otherwise");
                }
                let size = self.with(|private| {
                    if existed && truncate {
                        private.files[index].done(1);
                    }
                    if !existed && let Some(doubt) = private.doubts.pop() {
                        private.apply(&doubt);
                    }
                    private.inos[index] = Some(attributes.ino);
                    private.files[index].layout = Some(file.layout().clone());
                    private.files[index].view().check_size(attributes.size)
                });
                if let Err(what) = size {
                    self.fail(|| format!("client {}: create {name}: {what}", self.place));
                }
                open.push(Open { file, index, lent: None, other: None, ahead: None });
            }
            Err(error) => self.excuse(&error),
        }
    }

    pub(crate) fn random_extents(&mut self) -> Vec<Extent> {
        if self.rng.chance(75) {
            let offset = match self.rng.chance(50) {
                true => self.rng.below(OFFSET_MAX),
                false => self.rng.below(OFFSET_MAX / 4096) * 4096,
            };
            let length = match self.rng.chance(30) {
                true => self.rng.between(1, 600),
                false => self.rng.between(1, LENGTH_MAX),
            };
            return vec![Extent { offset, length }];
        }
        // A list: strided, with gaps now and then irregular.
        let (count, length) = (self.rng.between(2, 12), self.rng.between(1, 3000));
        let stride = length + self.rng.below(5000);
        let start = self.rng.below(OFFSET_MAX / 2);
        (0..count)
            .map(|i| Extent {
                offset: start + i * stride,
                length: length - if stride > length { self.rng.below(length.min(3)) } else { 0 },
            })
            .collect()
    }

    async fn write(&mut self, open: &mut Vec<Open>) {
        let Some(at) = self.any(open) else { return self.create(open).await };
        let index = open[at].index;
        let (file, by) = match self.by_someone(&mut open[at]).await {
            Ok(found) => found,
            Err(error) => {
                self.excuse(&error);
                return self.drop_if_dead(open, at, &error);
            }
        };
        let extents = self.random_extents();
        let bytes: Vec<Arc<Vec<u8>>> = extents
            .iter()
            .map(|extent| {
                let (a, b) = (self.rng.word() as u8 | 1, self.rng.word() as u8);
                Arc::new((0..extent.length).map(|i| (i as u8).wrapping_mul(b) ^ a).collect())
            })
            .collect();
        let effects: Vec<Effect> = extents
            .iter()
            .zip(&bytes)
            .map(|(extent, bytes)| Effect::Write { offset: extent.offset, bytes: bytes.clone() })
            .collect();
        self.with(|private| private.files[index].begin(&effects));
        let begin_us = self.now_us();
        let slices: Vec<IoSlice<'_>> = bytes.iter().map(|bytes| IoSlice::new(bytes)).collect();
        let result = self
            .op(|| format!("write #{index} {}", show(&extents)), file.write_list(&extents, &slices))
            .await;
        match result {
            Ok(()) => {
                self.with(|private| private.files[index].done(effects.len()));
                if self.dead_under(file.layout(), &extents, begin_us) {
                    self.unexpected(&format!("write #{index} to a dead server"), "an error");
                }
            }
            Err(error) => {
                if open[at].lent.as_ref().is_some_and(File::in_doubt) {
                    open[at].file.doubt();
                }
                self.failed(open, at, by, &error);
            }
        }
    }

    fn any(&mut self, open: &[Open]) -> Option<usize> {
        (!open.is_empty()).then(|| self.rng.below(open.len() as u64) as usize)
    }

    /// A handle whose lease has lapsed is of no use any more.
    fn drop_if_dead(&self, open: &mut Vec<Open>, at: usize, error: &Error) {
        if matches!(error.code, Code::BadHandle | Code::SessionLapsed) {
            open.swap_remove(at);
        }
    }

    /// An open file, now and then by way of the program that has borrowed it, or opened it itself.
    async fn by_someone(&mut self, open: &mut Open) -> Result<(File<SimRpc>, By)> {
        if self.rng.chance(70) {
            return Ok((open.file.clone(), By::OwnOrLent));
        }
        if self.rng.chance(40) {
            if let Some(other) = &open.other {
                return Ok((other.clone(), By::Other));
            }
            let opening = self.beside.open(&self.who, open.file.ino(), OpenMode::READ_WRITE);
            let (other, _) = self.op(|| format!("open #{} beside", open.index), opening).await?;
            open.other = Some(other.clone());
            return Ok((other, By::Other));
        }
        // What was lent before does only as long as its capability.
        if open.lent.is_none() || self.rng.chance(20) {
            let loan = self.op(|| format!("lend #{}", open.index), open.file.lend()).await?;
            match &open.lent {
                Some(lent) if self.rng.chance(50) => lent.extend(loan),
                _ => open.lent = Some(self.beside.borrow(loan)),
            }
        }
        Ok((open.lent.clone().unwrap_or_else(|| open.file.clone()), By::OwnOrLent))
    }

    /// A read or write has failed.
    fn failed(&self, open: &mut Vec<Open>, at: usize, by: By, error: &Error) {
        if by == By::Other {
            open[at].other = None;
            return self.excuse(error);
        }
        // What is lent, is lent for a time.
        if error.code != Code::NoCapability || open[at].lent.take().is_none() {
            self.excuse(error);
            self.drop_if_dead(open, at, error);
        }
    }

    /// Reads ahead; or asks whether what was read ahead before is true still, and so it must be then.
    async fn read_ahead(&mut self, open: &mut Vec<Open>, at: usize) {
        let Open { file, index, ahead, .. } = &mut open[at];
        let index = *index;
        let result = if let Some((extent, bytes, seen)) = ahead.take() {
            let view = self.with(|private| private.files[index].view());
            let ask = || format!("ask for #{index} {}", show(&[extent]));
            match self.op(ask, file.is_as_seen(&seen)).await {
                Ok(true) => {
                    if let Err(what) = view.check_read(&[extent], &bytes, bytes.len()) {
                        let place = self.place;
                        self.fail(|| format!("client {place}: read ahead of #{index}: {what}"));
                    }
                    // It can be asked for again.
                    *ahead = Some((extent, bytes, seen));
                    Ok(())
                }
                result => result.map(drop),
            }
        } else {
            let offset = self.rng.below(OFFSET_MAX);
            let extent = Extent { offset, length: self.rng.between(1, LENGTH_MAX) };
            let mut bytes = vec![UNTOUCHED; extent.length as usize];
            let read = || format!("read ahead of #{index} {}", show(&[extent]));
            let read = self.op(read, file.read_ahead(&mut bytes, offset)).await;
            read.map(|seen| *ahead = seen.map(|seen| (extent, bytes, seen)))
        };
        if let Err(error) = result {
            self.excuse(&error);
            self.drop_if_dead(open, at, &error);
        }
    }

    async fn read(&mut self, open: &mut Vec<Open>) {
        let Some(at) = self.any(open) else { return };
        if self.rng.chance(35) {
            return self.read_ahead(open, at).await;
        }
        let index = open[at].index;
        let (file, by) = match self.by_someone(&mut open[at]).await {
            Ok(found) => found,
            Err(error) => {
                self.excuse(&error);
                return self.drop_if_dead(open, at, &error);
            }
        };
        let extents = self.random_extents();
        let view = self.with(|private| private.files[index].view());
        let begin_us = self.now_us();
        match self.read_extents(&file, &extents, &format!("#{index}")).await {
            Ok((bytes, found)) => {
                if self.dead_under(file.layout(), &extents, begin_us) {
                    self.unexpected(&format!("read of #{index} from a dead server"), "an error");
                }
                if let Err(what) = view.check_read(&extents, &bytes, found) {
                    self.fail(|| format!("client {}: read of #{index}: {what}", self.place));
                }
            }
            Err(error) => {
                self.failed(open, at, by, &error);
            }
        }
    }

    pub(crate) async fn read_extents(
        &self,
        file: &File<SimRpc>,
        extents: &[Extent],
        name: &str,
    ) -> Result<(Vec<u8>, usize)> {
        let length: u64 = extents.iter().map(|extent| extent.length).sum();
        let mut bytes = vec![UNTOUCHED; length as usize];
        // Into memory in two parts, so that requests gather.
        let (left, right) = bytes.split_at_mut(length as usize / 3);
        let mut memory = [IoSliceMut::new(left), IoSliceMut::new(right)];
        let found = self
            .op(|| format!("read {name} {}", show(extents)), file.read_list(extents, &mut memory))
            .await?;
        Ok((bytes, found))
    }

    async fn resize(&mut self, open: &mut Vec<Open>) {
        let Some(at) = self.any(open) else { return };
        let Open { file, index, .. } = &open[at];
        let index = *index;
        let (effect, result) = if self.rng.chance(70) {
            let size = self.rng.below(OFFSET_MAX);
            let effect = Effect::Truncate(size);
            self.with(|private| private.files[index].begin(std::slice::from_ref(&effect)));
            let result = match (self.rng.chance(60), self.with(|private| private.inos[index])) {
                (false, Some(ino)) => {
                    // Another client may do it as well.
                    let fs = if self.rng.chance(50) { &self.beside } else { &self.fs };
                    let truncate = fs.truncate(&self.who, ino, size);
                    self.op(|| format!("truncate #{index} to {size}"), truncate).await
                }
                _ => {
                    let truncate = file.truncate(size);
                    self.op(|| format!("ftruncate #{index} to {size}"), truncate).await
                }
            };
            (effect, result)
        } else {
            let offset = self.rng.below(OFFSET_MAX);
            let extent = Extent { offset, length: self.rng.between(1, LENGTH_MAX) };
            let effect = Effect::Punch(extent);
            self.with(|private| private.files[index].begin(std::slice::from_ref(&effect)));
            let name = || format!("punch #{index} {}", show(&[extent]));
            (effect, self.op(name, file.punch(extent)).await)
        };
        match result {
            Ok(()) => self.with(|private| private.files[index].done(1)),
            Err(error) => {
                self.tell_doubt(&effect);
                self.excuse(&error);
                self.drop_if_dead(open, at, &error);
            }
        }
    }

    fn tell_doubt(&self, effect: &Effect) {
        lock(&self.world).tell(|| match effect {
            Effect::Truncate(size) => format!("in doubt: truncation to {size}"),
            _ => "in doubt: a hole".to_owned(),
        });
    }

    /// Size through the handle and by the metadata service; data and holes; sync.
    async fn look(&mut self, open: &mut Vec<Open>) {
        let Some(at) = self.any(open) else { return };
        let Open { file, index, .. } = &open[at];
        let index = *index;
        let result = match self.rng.below(5) {
            0 => self.op(|| format!("fsync #{index}"), file.sync()).await.map(|()| None),
            1 => self.op(|| format!("size of #{index}"), file.size()).await.map(Some),
            2 | 3 => {
                let (offset, data) = (self.rng.below(OFFSET_MAX / 2), self.rng.chance(50));
                let view = self.with(|private| private.files[index].view());
                let what = || format!("seek #{index} from {offset}, data {data}");
                let found = match self.op(what, file.seek(offset, data)).await {
                    Ok(found) => Ok(Some(found)),
                    Err(error) if error.code == Code::NoExtent => Ok(None),
                    Err(error) => Err(error),
                };
                found.map(|found| {
                    if let Err(wrong) = view.check_seek(offset, data, found) {
                        self.fail(|| format!("client {}: {}: {wrong}", self.place, what()));
                    }
                    None
                })
            }
            _ => {
                let stat = self.fs.attributes(&self.who, file.ino());
                self.op(|| format!("stat #{index}"), stat).await.map(|attributes| {
                    self.check_attributes(index, &attributes);
                    Some(attributes.size)
                })
            }
        };
        match result {
            Ok(None) => {}
            Ok(Some(size)) => {
                let right = self.with(|private| private.files[index].view().check_size(size));
                if let Err(what) = right {
                    self.fail(|| format!("client {}: #{index}: {what}", self.place));
                }
            }
            Err(error) => {
                self.excuse(&error);
                self.drop_if_dead(open, at, &error);
            }
        }
    }

    fn check_attributes(&self, index: usize, attributes: &Attributes) {
        let (links, mtime, doubtful) = self.with(|private| {
            let file = &private.files[index];
            (private.names_of(Node::File(index)), file.mtime, !private.doubts.is_empty())
        });
        if !doubtful && attributes.nlink as usize != links {
            self.unexpected(
                &format!("#{index} has {} links", attributes.nlink),
                &links.to_string(),
            );
        }
        if let Some(mtime) = mtime
            && mtime != attributes.mtime
        {
            let text = format!("#{index} was written at {:?}", attributes.mtime);
            self.unexpected(&text, &format!("{mtime:?}, as was set"));
        }
    }

    async fn close(&mut self, open: &mut Vec<Open>) {
        let Some(at) = self.any(open) else { return };
        let Open { file, index, other, .. } = open.swap_remove(at);
        if let Some(other) = other
            && let Err(error) = self.op(|| format!("close #{index} beside"), other.close()).await
        {
            self.excuse(&error);
        }
        if let Err(error) = self.op(|| format!("close #{index}"), file.close()).await {
            self.excuse(&error);
            return;
        }
        // Settled or not, what others are told is right.
        let (linked, settled) = self
            .with(|private| (private.names_of(Node::File(index)) > 0, private.doubts.is_empty()));
        if linked && settled && self.rng.chance(40) {
            let view = self.with(|private| private.files[index].view());
            let stat = self.fs.attributes(&self.who, file.ino());
            match self.op(|| format!("stat #{index} after close"), stat).await {
                Ok(attributes) => {
                    self.check_attributes(index, &attributes);
                    if let Err(what) = view.check_size(attributes.size) {
                        self.fail(|| format!("client {}: closed #{index}: {what}", self.place));
                    }
                }
                Err(error) => self.excuse(&error),
            }
        }
    }

    async fn set_time(&mut self) {
        let Some((index, ino)) = self.with(|private| private.certain_file()) else { return };
        let time = WallTime(1_000_000_000_000 + self.rng.below(1 << 50) as i64);
        let changes = Changes { mtime: Some(SetTime::To(time)), ..Changes::default() };
        self.with(|private| private.files[index].mtime = None);
        let change = self.fs.change(&self.who, ino, changes);
        match self.op(|| format!("utimens #{index}"), change).await {
            Ok(attributes) => {
                let quiet = self.with(|private| {
                    let quiet = private.files[index].view().exact();
                    private.files[index].mtime = quiet.then_some(time);
                    quiet
                });
                if quiet && attributes.mtime != time {
                    self.unexpected("utimens told another time", "the one set");
                }
            }
            Err(error) => self.excuse(&error),
        }
    }
}

pub(crate) fn show(extents: &[Extent]) -> String {
    let one = |extent: &Extent| format!("{}+{}", extent.offset, extent.length);
    extents.iter().map(one).collect::<Vec<_>>().join(" ")
}
