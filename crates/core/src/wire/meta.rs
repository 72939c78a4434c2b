//! Requests to the metadata service.
//!
//! **Sizes and times.** Targets own a file's size and time of last write. What the metadata service
//! holds of them is *settled* (right, nobody need be asked) or not: while a handle is open for
//! writing, and until somebody who has asked the targets afterwards reports back
//! ([`MetaRequest::Settle`], or with the last [`MetaRequest::Close`]). Each opening for writing,
//! truncation and change of times makes a new *version*; a report for an older version is ignored.
//! Truncation and change of times also begin a new *data epoch*, which targets are told of: times of
//! writes of older epochs count no more.

use crate::auth::{Capability, ReapOrder};
use crate::error::Code;
use crate::layout::{Layout, Member};
use crate::types::{Attributes, Credentials, Entry, FileKind, Ino, WallTime};
use serde::{Deserialize, Serialize};

/// Body of a request to the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaCall {
    /// For whom. Believed from a trusted mount; anyone else is the pool's owner whatever it says.
    pub who: Credentials,
    /// What is done first, by the way. What was done already is no error, so that a call may be
    /// repeated with them whatever it asks.
    pub riders: Vec<Rider>,
    /// What.
    pub request: MetaRequest,
}

/// What nobody waits for: it goes with the next request, or soon by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rider {
    /// A handle ends.
    Close(Closing),
    /// The targets have been told of a truncation, as [`MetaRequest::EndTruncate`] says it.
    Truncated {
        /// Of which file.
        ino: Ino,
        /// The data epoch that it began.
        epoch: u32,
    },
    /// A target has answered that its disk failed: new files had better go elsewhere.
    Unfit {
        /// Which, in which life.
        member: Member,
    },
}

/// A handle whose end nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// Which.
    pub handle: u64,
    /// What the closing writer knows of the file.
    pub settlement: Option<Settlement>,
}

/// Body of a successful answer of the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaAnswer {
    /// To what was asked.
    pub reply: MetaReply,
    /// A file went with one of the handles: its objects wait to be freed
    /// ([`MetaRequest::KeepAlive`]).
    pub garbage: bool,
}

/// A place in the tree of names: a path below a directory. Where `path` has several components the
/// service walks them, following symbolic links in all but the last. An absolute path starts at the
/// root whatever `base` says. The empty path is `base` itself (for lookups only).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Directory to start from.
    pub base: Ino,
    /// Bytes of the path: no NUL; at most [`crate::config::PATH_BYTES_MAX`].
    pub path: Vec<u8>,
}

impl Place {
    /// `path` below `base`.
    pub fn new(base: Ino, path: impl Into<Vec<u8>>) -> Place {
        Place { base, path: path.into() }
    }
}

/// For what a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenMode {
    /// To read.
    pub read: bool,
    /// To write.
    pub write: bool,
    /// And cut to nothing (only with `write`).
    pub truncate: bool,
}

impl OpenMode {
    /// To read.
    pub const READ: OpenMode = OpenMode { read: true, write: false, truncate: false };
    /// To write.
    pub const WRITE: OpenMode = OpenMode { read: false, write: true, truncate: false };
    /// To read and write.
    pub const READ_WRITE: OpenMode = OpenMode { read: true, write: true, truncate: false };
}

/// How a file should be striped; what is not said comes from its directory, then from the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutWish {
    /// Stripe size in bytes: a multiple of 4 KiB up to 1 GiB.
    pub stripe_size: Option<u64>,
    /// Columns; 0 or more than there are targets: all targets.
    pub stripe_count: Option<u32>,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The service's own time.
    Now,
    /// This time (only the owner may).
    To(WallTime),
}

/// Attributes to change; what is not named stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Time of last read.
    pub atime: Option<SetTime>,
    /// Time of last write. Begins a new data epoch, of which the targets must be told.
    pub mtime: Option<SetTime>,
}

/// What somebody who asked the targets found: the file's size, and the time of its last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// The version that was in force before the targets were asked.
    pub version: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of last write; zero: never written in this data epoch (the service's own time holds).
    pub mtime: WallTime,
}

/// Which of a file's two kinds of locks; they do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockKind {
    /// On ranges of bytes (fcntl, lockf): an owner's locks on a file never overlap; a newer one
    /// replaces what it covers of older ones, in one step.
    Range,
    /// On the whole file (flock): an owner has one or none; to change its kind is to let it go and
    /// to ask anew.
    Whole,
}

/// A lock that is held or wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// On which file.
    pub ino: Ino,
    /// Of which kind.
    pub kind: LockKind,
    /// Whose, among those of the client: owners exclude each other, never themselves.
    pub owner: u64,
    /// The process on the client's host, for people; 0 in answers about other clients' locks.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// Byte behind the last: at most [`LOCK_END_MAX`].
    pub end: u64,
    /// Against every other lock, or only against exclusive ones.
    pub exclusive: bool,
}

/// A lock that ends here covers all bytes that the file may ever have.
pub const LOCK_END_MAX: u64 = 1 << 63;

/// How the wait for a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockEnded {
    /// Which wait.
    pub ticket: u64,
    /// None: the lock is held now.
    pub failure: Option<Code>,
}

/// What can be asked of the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaRequest {
    /// What a place names. Answer: [`MetaReply::Found`].
    Lookup {
        /// Where.
        place: Place,
        /// Whether a symbolic link in the last component is followed.
        follow: bool,
    },
    /// As [`MetaRequest::Lookup`] of a single name that is not followed, by one who keeps for a
    /// moment what it is told that it may. Answer: [`MetaReply::Looked`].
    LookupWay {
        /// Where.
        place: Place,
        /// Whether others than who asks may go by what is told.
        others: bool,
    },
    /// As [`MetaRequest::Attributes`], by one who does that. Answer: [`MetaReply::Looked`].
    LookAt {
        /// Which.
        ino: Ino,
    },
    /// An inode's attributes. Answer: [`MetaReply::Found`].
    Attributes {
        /// Which.
        ino: Ino,
    },
    /// Changes attributes. Answer: [`MetaReply::Found`]. If a new data epoch was begun and targets
    /// may hold objects of the file, `unsettled` is given even if the file is settled: with it the
    /// client tells them of the epoch.
    Change {
        /// Which.
        ino: Ino,
        /// How.
        changes: Changes,
    },
    /// Makes a regular file, if there is none, and opens it. Answer: [`MetaReply::Opened`].
    Create {
        /// Where.
        place: Place,
        /// Permission bits.
        mode: u32,
        /// Whether it is an error if the name exists (a symbolic link there too is one then).
        exclusive: bool,
        /// For what it is opened. Permissions are not checked against a file just made.
        open: OpenMode,
        /// How it is striped, if it is made.
        layout: LayoutWish,
    },
    /// Makes a regular file without a name, and opens it: a request to link it gives it one. Else it goes
    /// with its last handle. Answer: [`MetaReply::Opened`].
    CreateUnnamed {
        /// Whose group, striping and leave to make files are its.
        directory: Ino,
        /// Permission bits.
        mode: u32,
        /// For what it is opened. Permissions are not checked against a file just made.
        open: OpenMode,
        /// How it is striped.
        layout: LayoutWish,
    },
    /// Opens a regular file. Answer: [`MetaReply::Opened`].
    Open {
        /// Which.
        ino: Ino,
        /// For what.
        open: OpenMode,
    },
    /// Opens the regular file that a place names, symbolic links followed.
    /// Answer: [`MetaReply::Opened`].
    OpenAt {
        /// Where.
        place: Place,
        /// For what.
        open: OpenMode,
    },
    /// Ends a handle. Answer: [`MetaReply::Gone`] (it may have been the last of a removed file).
    Close {
        /// Which.
        handle: u64,
        /// What the closing writer knows of the file.
        settlement: Option<Settlement>,
        /// Writes of his failed or were abandoned, and may be on their way still: until his
        /// capabilities have expired the file counts as open for writing.
        unsure: bool,
    },
    /// A fresh capability for an open handle. Answer: [`MetaReply::Opened`].
    Renew {
        /// Which.
        handle: u64,
    },
    /// Makes a directory. Answer: [`MetaReply::Found`].
    MakeDirectory {
        /// Where.
        place: Place,
        /// Permission bits.
        mode: u32,
    },
    /// Makes a FIFO, socket, device, or a regular file without opening it.
    /// Answer: [`MetaReply::Found`].
    MakeNode {
        /// Where.
        place: Place,
        /// What.
        kind: FileKind,
        /// Permission bits.
        mode: u32,
        /// Device number.
        rdev: u64,
    },
    /// Makes a symbolic link. Answer: [`MetaReply::Found`].
    Symlink {
        /// Where.
        place: Place,
        /// Its text.
        text: Vec<u8>,
    },
    /// A symbolic link's text. Answer: [`MetaReply::Text`].
    ReadLink {
        /// Which.
        ino: Ino,
    },
    /// Gives an inode that is not a directory another name; of those without any, only what
    /// [`MetaRequest::CreateUnnamed`] made can be given one. Answer: [`MetaReply::Found`].
    Link {
        /// Which.
        ino: Ino,
        /// Where.
        place: Place,
    },
    /// Removes a name of what is not a directory. Answer: [`MetaReply::Gone`].
    Unlink {
        /// Where.
        place: Place,
    },
    /// Removes an empty directory. Answer: [`MetaReply::Gone`].
    RemoveDirectory {
        /// Where.
        place: Place,
    },
    /// Moves a name, in one step. Answer: [`MetaReply::Gone`] (it may have replaced something).
    Rename {
        /// From where.
        from: Place,
        /// To where.
        to: Place,
        /// Whether it is an error if `to` exists.
        no_replace: bool,
        /// Whether the two names change places.
        exchange: bool,
    },
    /// Lists a directory in the order of names, without `.` and `..`. Answer: [`MetaReply::Entries`].
    List {
        /// Which.
        ino: Ino,
        /// Names behind this one (empty: from the start).
        after: Vec<u8>,
        /// At most so many; at most [`crate::config::ENTRIES_PER_REPLY_MAX`].
        limit: u32,
        /// Whether attributes come with them.
        attributes: bool,
    },
    /// As [`MetaRequest::List`], by one who keeps for a moment what it is told that it may. Answer:
    /// [`MetaReply::LookedThrough`].
    LookThrough {
        /// Which.
        ino: Ino,
        /// Names behind this one (empty: from the start).
        after: Vec<u8>,
        /// At most so many; at most [`crate::config::ENTRIES_PER_REPLY_MAX`].
        limit: u32,
        /// Whether others than who asks may go by what is told.
        others: bool,
    },
    /// Begins a truncation: new version, new data epoch. Answer: [`MetaReply::Truncation`], or
    /// [`MetaReply::Unfinished`] where one to a smaller size must end first.
    BeginTruncate {
        /// Which.
        ino: Ino,
        /// To which size.
        size: u64,
        /// The handle that it is done through, or the right to write is checked.
        handle: Option<u64>,
    },
    /// The targets have been told of a truncation. Answer: [`MetaReply::Done`].
    EndTruncate {
        /// Which.
        ino: Ino,
        /// The data epoch that it began.
        epoch: u32,
    },
    /// A report on size and time. Answer: [`MetaReply::Done`], also where it came too late.
    Settle {
        /// Which.
        ino: Ino,
        /// What was found.
        settlement: Settlement,
    },
    /// A file's layout, or what a directory wishes for files made in it.
    /// Answer: [`MetaReply::Layout`].
    Layout {
        /// Which.
        ino: Ino,
    },
    /// Sets a directory's wish, or the layout of a file that was never written.
    /// Answer: [`MetaReply::Layout`].
    SetLayout {
        /// Which.
        ino: Ino,
        /// How.
        wish: LayoutWish,
    },
    /// Keeps the client's lease, and asks for objects that wait to be freed.
    /// Answer: [`MetaReply::Garbage`].
    KeepAlive,
    /// All targets have freed these files' objects. Answer: [`MetaReply::Done`].
    Reaped {
        /// Which.
        inos: Vec<Ino>,
    },
    /// The metadata service's own fill. Answer: [`MetaReply::Fill`].
    Fill,
    /// Reserves bytes at the end of a file for an append. Any client may that knows the handle: it was lent to him.
    /// Answer: [`MetaReply::Reserved`].
    ReserveAppend {
        /// The handle, open for writing.
        handle: u64,
        /// Its file.
        ino: Ino,
        /// How many bytes.
        length: u64,
        /// The file's size as the client found it; the reservation lies behind it.
        floor: u64,
        /// The client did not ask the targets for it: it knows of all that was written to the file while it has
        /// had this version.
        sole: Option<u64>,
    },
    /// What was to be written to a reserved place was refused: if it is the last one, it is free again.
    /// Answer: [`MetaReply::Done`].
    ReleaseAppend {
        /// The handle that it was reserved by.
        handle: u64,
        /// Its file.
        ino: Ino,
        /// The place.
        offset: u64,
        /// How many bytes it has.
        length: u64,
    },
    /// Adds to a counter of an open handle, which begins at 0 and ends with the handle. Any client
    /// may that knows the handle: it was lent to him. Answer: [`MetaReply::Counted`].
    Count {
        /// The handle, whoever opened it.
        handle: u64,
        /// Its file.
        ino: Ino,
        /// Which counter. Those of small numbers are forgotten where there are more than
        /// [`crate::config::COUNTERS_PER_HANDLE_MAX`].
        number: u32,
        /// How much, in the arithmetic of 64 bits without a carry.
        add: u64,
    },
    /// An extended attribute's value. Answer: [`MetaReply::Text`].
    GetXattr {
        /// Which.
        ino: Ino,
        /// Its name.
        name: Vec<u8>,
    },
    /// Sets an extended attribute. Answer: [`MetaReply::Done`].
    SetXattr {
        /// Which.
        ino: Ino,
        /// Its name.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// It must not exist yet.
        create: bool,
        /// It must exist.
        replace: bool,
    },
    /// Names of extended attributes, each ended by a NUL. Answer: [`MetaReply::Text`].
    ListXattr {
        /// Which.
        ino: Ino,
    },
    /// Removes an extended attribute. Answer: [`MetaReply::Done`].
    RemoveXattr {
        /// Which.
        ino: Ino,
        /// Its name.
        name: Vec<u8>,
    },
    /// Takes a lock, or waits in line for it. Answer: [`MetaReply::Done`], or, where it has to wait
    /// and may, [`MetaReply::Waiting`]. Fails with `WouldBlock` where it may not.
    Lock {
        /// An open handle of the file.
        handle: u64,
        /// What; `ino` must be the handle's.
        lock: Lock,
        /// It may wait, and this is the wait's number: one that the client has not used before.
        ticket: Option<u64>,
    },
    /// Lets go of what an owner has locked in a range. Answer: [`MetaReply::Done`].
    Unlock {
        /// Which; neither `pid` nor `exclusive` counts. No handle is needed.
        lock: Lock,
    },
    /// A lock that stands in the way of this one. Answer: [`MetaReply::Blocked`].
    FindLock {
        /// An open handle of the file.
        handle: u64,
        /// What; `ino` must be the handle's.
        lock: Lock,
    },
    /// Answered when one of the client's waits has ended, or after a while without. A newer request
    /// of this kind ends an older one. Answer: [`MetaReply::LocksEnded`].
    AwaitLocks {
        /// The waits that the client knows of. One that the service does not know (the client's
        /// lease lapsed) ends with `SessionLapsed`.
        tickets: Vec<u64>,
        /// Ended waits of which the client was told; they are forgotten.
        known: Vec<u64>,
    },
    /// Ends a wait. Answer: [`MetaReply::LocksEnded`] with one entry: `Cancelled`, or as it had
    /// ended before, which is forgotten.
    CancelLock {
        /// Which.
        ticket: u64,
    },
}

impl MetaRequest {
    /// Whether it may be carried out again after a reconnect (it changes nothing). The others
    /// happen once: their answer is kept and repeated.
    pub fn repeatable(&self) -> bool {
        use MetaRequest::*;
        matches!(
            self,
            Lookup { .. }
                | LookupWay { .. }
                | LookAt { .. }
                | Attributes { .. }
                | ReadLink { .. }
                | List { .. }
                | LookThrough { .. }
                | Layout { .. }
                | Renew { .. }
                | KeepAlive
                | Fill
                | GetXattr { .. }
                | ListXattr { .. }
                | FindLock { .. }
                | AwaitLocks { .. }
        )
    }
}

/// An inode as the metadata service knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its attributes; size and mtime are the last settled ones.
    pub attributes: Attributes,
    /// Where to ask for size and mtime, if they are not settled.
    pub unsettled: Option<Box<Unsettled>>,
}

impl Record {
    /// Whether nobody has it open for writing: then its attributes stay, once they are found out, until
    /// somebody asks the service to change something.
    pub fn is_at_rest(&self) -> bool {
        self.unsettled.as_ref().is_none_or(|unsettled| unsettled.settles)
    }
}

/// What a client needs to find out a file's true size and time of last write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsettled {
    /// Version to report for.
    pub version: u64,
    /// Whether a report can settle it now (nobody has it open for writing).
    pub settles: bool,
    /// Where its objects are.
    pub layout: Layout,
    /// Leave to ask the targets, and to repeat a truncation that was left undone.
    pub capability: Capability,
    /// A truncation that was begun and not ended: whoever finds it carries it out first.
    pub truncation: Option<PendingTruncate>,
}

/// A truncation that the targets may not all have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingTruncate {
    /// Smallest size that the file was cut to since all targets last agreed: less than its size only
    /// in what servers of wire version 5 and before wrote down.
    pub cut: u64,
    /// Its size after that.
    pub size: u64,
    /// The data epoch of the newest truncation.
    pub epoch: u32,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The open handle, unique in the life of the metadata service.
    pub handle: u64,
    /// The file. `unsettled` is given only if size and time were unsettled before this opening.
    pub record: Record,
    /// Version in force with this opening (see [`Settlement`]).
    pub version: u64,
    /// Where its objects are.
    pub layout: Layout,
    /// Leave to use them.
    pub capability: Capability,
    /// A truncation to carry out before anything else (the opening's own, or one left undone).
    pub truncation: Option<PendingTruncate>,
    /// Whether this request made the file.
    pub created: bool,
}

/// A file whose objects can be freed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reap {
    /// Which file.
    pub ino: Ino,
    /// Where its objects are.
    pub layout: Layout,
}

/// Answers of the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaReply {
    /// An inode.
    Found(Record),
    /// What was looked at. For [`crate::config::WAY_BELIEVED_MS`] from when it was asked for the client may
    /// believe some of it, but for what it changes itself.
    Looked {
        /// None: there is no such name, which may be believed (else it is an error, as it is to
        /// others).
        record: Option<Record>,
        /// Whether it may believe that the name leads there, or to nothing, whoever asks.
        name: bool,
        /// Whether it may believe the attributes. Nobody has the file open for writing then.
        attributes: bool,
    },
    /// An open file.
    Opened(Box<Opened>),
    /// Something lost a name or a handle. Objects that nothing leads to any more can be freed.
    Gone {
        /// Files to free; the client tells their targets (with `order`), then reports
        /// [`MetaRequest::Reaped`]. If it dies before, somebody else is asked.
        reap: Vec<Reap>,
        /// Leave to do so.
        order: Option<ReapOrder>,
    },
    /// A symbolic link's text or an attribute's value.
    Text(Vec<u8>),
    /// Part of a directory.
    Entries {
        /// In the order of names.
        entries: Vec<Entry>,
        /// For each entry, if they were asked for.
        records: Vec<Record>,
        /// Whether the directory ends here.
        end: bool,
    },
    /// Part of a directory, by one who keeps it for a moment.
    LookedThrough {
        /// In the order of names.
        entries: Vec<Entry>,
        /// For each entry, if the client may believe those of what nobody has open for writing; else none.
        records: Vec<Record>,
        /// Whether it may believe that these names lead there, whoever asks.
        names: bool,
        /// Whether the directory ends here.
        end: bool,
    },
    /// A truncation has begun.
    Truncation {
        /// What to tell the targets.
        pending: PendingTruncate,
        /// Where its objects are.
        layout: Layout,
        /// Leave to do so.
        capability: Capability,
        /// Version in force with it.
        version: u64,
    },
    /// No truncation has begun: tell the targets of this older one, say so
    /// ([`MetaRequest::EndTruncate`]), and ask again.
    Unfinished {
        /// What to tell the targets.
        pending: PendingTruncate,
        /// Where its objects are.
        layout: Layout,
        /// Leave to do so.
        capability: Capability,
    },
    /// A layout.
    Layout {
        /// The file's own, if it is one.
        layout: Option<Layout>,
        /// The directory's wish, if it is one.
        wish: LayoutWish,
    },
    /// Objects that wait to be freed; empty as a rule.
    Garbage {
        /// Files to free, as in [`MetaReply::Gone`].
        reap: Vec<Reap>,
        /// Leave to do so.
        order: Option<ReapOrder>,
    },
    /// Fill of the metadata service.
    Fill {
        /// Memory stated: bytes.
        memory: u64,
        /// Memory in use: bytes.
        used: u64,
        /// Inodes there are.
        inodes: u64,
    },
    /// A place for an append.
    Reserved {
        /// File offset. None: the file has another version than the client thinks, and so perhaps another size.
        offset: Option<u64>,
        /// The file's version, if nobody else has it open for writing.
        sole: Option<u64>,
    },
    /// What a counter was before.
    Counted {
        /// That.
        before: u64,
    },
    /// Carried out.
    Done,
    /// The lock is not to be had now: the wait has begun.
    Waiting,
    /// What stands in the way of a lock.
    Blocked(Option<Lock>),
    /// Waits for locks that have ended.
    LocksEnded(Vec<LockEnded>),
}
