//! Listing a directory while it changes.
//!
//! The service lists names in their order, from behind a given name. The kernel continues with a
//! number, the *cookie* of an entry that it got before. An open directory therefore remembers which
//! name it gave each cookie: a listing goes on behind that name whether it still exists or not, so
//! that what is removed or made meanwhile neither skips nor repeats other entries.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_core::config::ENTRIES_PER_REPLY_MAX;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::LookedThrough;
use weir_core::types::{Attributes, Credentials, Entry, Ino};

/// Entries asked for when a directory is opened: many are opened only for what lies below.
const FIRST_PAGE: u32 = 64;
/// Entries asked for after that.
const NEXT_PAGE: u32 = ENTRIES_PER_REPLY_MAX as u32;
/// The same where attributes are wanted, which may not be believed for long.
const NEXT_PAGE_KNOWN: u32 = 256;

/// What came when a directory was opened is not listed later than this: others may have changed it.
const FIRST_PAGE_KEPT: Duration = Duration::from_millis(5);

/// Cookie of `.`; `..` and the first name follow.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
const FIRST_NAME: u64 = 3;

/// Entries one behind the other, as they were listed.
#[derive(Default)]
pub(crate) struct Page {
    entries: Vec<(Entry, Option<Attributes>)>,
    /// Whether the directory ends with them.
    end: bool,
    known: Known,
}

/// What is known of what entries name.
#[derive(Clone, Copy, Default)]
enum Known {
    #[default]
    NotAsked,
    /// It may not be believed.
    Nothing,
    /// The attributes that came with them may be believed until then, and the names; unless this mount
    /// itself has changed anything since.
    Until { names: Instant, attributes: Instant },
}

impl Page {
    /// Names only.
    pub(crate) fn of_names(entries: Vec<Entry>, end: bool) -> Page {
        let entries = entries.into_iter().map(|entry| (entry, None)).collect();
        Page { entries, end, known: Known::NotAsked }
    }

    /// What was answered just now.
    pub(crate) fn looked_through(looked: LookedThrough) -> Page {
        let LookedThrough { entries, end, names_believed, attributes_believed } = looked;
        let now = Instant::now();
        let known = match entries.iter().any(|(_, attributes)| attributes.is_some()) {
            false => Known::Nothing,
            true => {
                Known::Until { names: now + names_believed, attributes: now + attributes_believed }
            }
        };
        Page { entries, end, known }
    }

    /// How long names and attributes may still be believed. None: they may not.
    fn believed(&self) -> Option<(Duration, Duration)> {
        let Known::Until { names, attributes } = self.known else { return None };
        let now = Instant::now();
        (now < attributes).then(|| (names.saturating_duration_since(now), attributes - now))
    }
}

/// An entry for the kernel.
pub(crate) struct Listed<'a> {
    pub(crate) ino: Ino,
    /// Where the listing goes on behind it.
    pub(crate) cookie: u64,
    pub(crate) name: &'a [u8],
    /// None: this directory or the one above.
    pub(crate) entry: Option<&'a Entry>,
    /// Attributes, and how long the name and they may be believed.
    pub(crate) known: Option<(&'a Attributes, Duration, Duration)>,
}

/// Asks for entries behind a name, at most so many.
pub(crate) trait List: Fn(&[u8], u32) -> Result<Page> {}
impl<F: Fn(&[u8], u32) -> Result<Page>> List for F {}

/// A directory opened by the kernel.
pub(crate) struct Directory {
    /// Who opened it: permission was checked then, and holds as long as it is open.
    pub(crate) who: Credentials,
    pub(crate) ino: Ino,
    cursor: Mutex<Cursor>,
}

#[derive(Default)]
struct Cursor {
    /// Names that have a cookie, one behind the other; and where each ends.
    names: Vec<u8>,
    ends: Vec<usize>,
    /// Entries at hand.
    page: Page,
    /// How many changes this mount had made when it asked for them.
    changes: u64,
    /// Cookie of the first of them.
    page_cookie: u64,
    /// When they came with the opening, if no listing has begun with them yet.
    unlisted: Option<Instant>,
}

impl Directory {
    /// Opens a directory, when this mount has made so many changes: fails as its first listing does.
    pub(crate) fn open(
        who: Credentials,
        ino: Ino,
        changes: u64,
        list: impl List,
    ) -> Result<Directory> {
        let mut cursor = Cursor::default();
        cursor.fetch(b"", FIRST_PAGE, changes, &list)?;
        cursor.unlisted = Some(Instant::now());
        Ok(Directory { who, ino, cursor: Mutex::new(cursor) })
    }

    /// Gives entries behind a cookie (0: from the start, as they are now) to `add`, which says when there
    /// is no more room. This mount has made so many `changes` so far. If `plus`, attributes are wanted that
    /// may be believed.
    pub(crate) fn read(
        &self,
        cookie: u64,
        parent: Ino,
        changes: u64,
        plus: bool,
        list: impl List,
        mut add: impl FnMut(Listed<'_>) -> bool,
    ) -> Result<()> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        if cookie == 0 {
            cursor.begin(changes);
        }
        let dots = [(self.ino, DOT, &b"."[..]), (parent, DOT_DOT, b"..")];
        for (ino, at, name) in dots {
            if cookie < at && add(Listed { ino, cookie: at, name, entry: None, known: None }) {
                return Ok(());
            }
        }
        let mut next = cursor.seek(cookie, changes, plus, &list)?;
        let believed = if plus { cursor.believed(changes) } else { None };
        while let Some(index) = next {
            let cookie = cursor.page_cookie + index as u64;
            let (entry, attributes) = &cursor.page.entries[index];
            let known = believed
                .zip(attributes.as_ref())
                .map(|((of_name, of_attributes), known)| (known, of_name, of_attributes));
            let (ino, name) = (entry.ino, &entry.name[..]);
            if add(Listed { ino, cookie, name, entry: Some(entry), known }) {
                return Ok(());
            }
            next = match index + 1 < cursor.page.entries.len() {
                true => Some(index + 1),
                // What is at hand has all gone into this answer, which is enough of one.
                false => None,
            };
        }
        Ok(())
    }
}

impl Cursor {
    /// A listing begins: what came with the opening serves for the first one, if nothing can have changed
    /// since. Cookies given before mean nothing any more.
    fn begin(&mut self, changes: u64) {
        let since = self.unlisted.take();
        let kept = |since: Instant| since.elapsed() < FIRST_PAGE_KEPT && self.changes == changes;
        if !since.is_some_and(kept) {
            *self = Cursor::default();
        }
    }

    /// How long names and attributes at hand may still be believed. None: they may not, or this mount has
    /// changed something since it asked for them.
    fn believed(&self, changes: u64) -> Option<(Duration, Duration)> {
        if self.changes == changes { self.page.believed() } else { None }
    }

    /// The index in the page of the entry behind a cookie; none at the directory's end. Where attributes
    /// are wanted (see [`Directory::read`]), a page that was asked for without them, or so long ago that
    /// they may not be believed any more, is asked for anew from there.
    fn seek(
        &mut self,
        cookie: u64,
        changes: u64,
        plus: bool,
        list: &impl List,
    ) -> Result<Option<usize>> {
        let limit = if plus { NEXT_PAGE_KNOWN } else { NEXT_PAGE };
        let serves = !plus
            || match self.page.known {
                Known::NotAsked => false,
                Known::Nothing => true,
                Known::Until { .. } => self.believed(changes).is_some(),
            };
        if cookie < FIRST_NAME {
            if self.page_cookie != FIRST_NAME || !serves {
                *self = Cursor::default();
                self.fetch(b"", limit, changes, list)?;
            }
            return Ok((!self.page.entries.is_empty()).then_some(0));
        }
        let given = (cookie - FIRST_NAME) as usize;
        if given >= self.ends.len() {
            return Err(Error::because(Code::Invalid, "no such place in a directory"));
        }
        if cookie >= self.page_cookie {
            let index = (cookie - self.page_cookie) as usize + 1;
            if index < self.page.entries.len() && serves {
                return Ok(Some(index));
            }
            if index >= self.page.entries.len() && self.page.end {
                return Ok(None);
            }
        }
        let start = if given == 0 { 0 } else { self.ends[given - 1] };
        let name = self.names[start..self.ends[given]].to_vec();
        self.fetch(&name, limit, changes, list)?;
        Ok((!self.page.entries.is_empty()).then_some(0))
    }

    /// Gets the entries behind a name and gives them cookies.
    fn fetch(&mut self, after: &[u8], limit: u32, changes: u64, list: &impl List) -> Result<()> {
        self.page = list(after, limit)?;
        self.changes = changes;
        self.page_cookie = FIRST_NAME + self.ends.len() as u64;
        for (entry, _) in &self.page.entries {
            self.names.extend_from_slice(&entry.name);
            self.ends.push(self.names.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use weir_core::types::FileKind;

    struct Model {
        names: RefCell<BTreeSet<Vec<u8>>>,
        /// Of this mount.
        changes: Cell<u64>,
    }

    impl Model {
        fn new(count: usize) -> Model {
            let names = (0..count).map(|i| format!("{i:05}").into_bytes()).collect();
            Model { names: RefCell::new(names), changes: Cell::new(0) }
        }

        fn insert(&self, name: &str) {
            self.names.borrow_mut().insert(name.as_bytes().to_vec());
        }

        fn remove(&self, name: &str) -> bool {
            self.names.borrow_mut().remove(name.as_bytes())
        }

        fn list(&self) -> impl List + '_ {
            |after: &[u8], limit: u32| {
                let names = self.names.borrow();
                let behind: Vec<_> = names.iter().filter(|name| name.as_slice() > after).collect();
                let entry = |name: &&Vec<u8>| Entry {
                    name: (*name).clone(),
                    ino: Ino(7),
                    kind: FileKind::Regular,
                };
                let end = behind.len() <= limit as usize;
                let entries = behind.iter().take(limit as usize).map(entry).collect();
                Ok(Page::of_names(entries, end))
            }
        }

        fn open(&self) -> Directory {
            let who = Credentials { uid: 0, gid: 0, groups: vec![] };
            Directory::open(who, Ino(5), self.changes.get(), self.list()).unwrap()
        }
    }

    /// One answer of at most `room` entries.
    fn read(model: &Model, directory: &Directory, cookie: u64, room: usize) -> Vec<(u64, String)> {
        let mut got = Vec::new();
        let add = |listed: Listed<'_>| {
            if got.len() == room {
                return true;
            }
            got.push((listed.cookie, String::from_utf8(listed.name.to_vec()).unwrap()));
            false
        };
        let changes = model.changes.get();
        directory.read(cookie, Ino(1), changes, false, model.list(), add).unwrap();
        got
    }

    fn read_all(model: &Model, directory: &Directory, room: usize) -> Vec<String> {
        let (mut cookie, mut names) = (0, Vec::new());
        loop {
            let got = read(model, directory, cookie, room);
            let Some(last) = got.last() else { return names };
            cookie = last.0;
            names.extend(got.into_iter().map(|(_, name)| name));
        }
    }

    #[test]
    fn every_entry_comes_once_whatever_fits_into_an_answer() {
        for count in [0, 1, 63, 64, 65, 1500, 3000] {
            let model = Model::new(count);
            let directory = model.open();
            for room in [1, 2, 3, 64, 5000] {
                let names = read_all(&model, &directory, room);
                assert_eq!(names.len(), count + 2, "{count} entries, {room} at a time");
                assert_eq!(names[..2], [".", ".."]);
                assert!(names[2..].is_sorted());
            }
        }
    }

    #[test]
    fn removing_what_was_listed_skips_nothing() {
        let model = Model::new(2500);
        let directory = model.open();
        let (mut cookie, mut seen) = (0, 0);
        loop {
            let got = read(&model, &directory, cookie, 7);
            let Some(last) = got.last() else { break };
            cookie = last.0;
            for (_, name) in got {
                seen += usize::from(model.remove(&name));
            }
        }
        assert_eq!(seen, 2500);
        assert!(model.names.borrow().is_empty());
    }

    #[test]
    fn a_cookie_stays_with_its_name() {
        let model = Model::new(3000);
        let directory = model.open();
        let all = read(&model, &directory, 0, 40);
        let (cookie, name) = all.last().unwrap().clone();
        let mut at = cookie;
        for _ in 0..30 {
            at = read(&model, &directory, at, 100).last().unwrap().0;
        }
        model.remove(&name);
        let next = read(&model, &directory, cookie, 1);
        assert_eq!(next[0].1, "00038");
        // And the one that the listing had come to is not moved by that.
        let later = read(&model, &directory, at, 1);
        assert!(later[0].1.as_str() > "02000", "{later:?}");
    }

    #[test]
    fn a_rewound_listing_sees_what_is_new() {
        for (count, room) in [(0, 100), (0, 1), (10, 100), (10, 1), (3000, 500)] {
            let model = Model::new(count);
            let directory = model.open();
            for round in 0..3 {
                assert_eq!(read_all(&model, &directory, room).len(), count + 2 + round);
                model.insert(&format!("new {round}"));
            }
            let stray = directory.read(1 << 40, Ino(1), 0, false, model.list(), |_| true);
            assert_eq!(stray.unwrap_err().code, Code::Invalid);
        }
    }

    #[test]
    fn what_came_with_the_opening_is_listed_only_if_it_is_still_true() {
        let model = Model::new(10);
        // Changed by this mount.
        let directory = model.open();
        model.insert("new");
        model.changes.set(1);
        assert_eq!(read_all(&model, &directory, 100).len(), 13);
        // Changed by another one, a while ago.
        let directory = model.open();
        model.insert("newer");
        std::thread::sleep(FIRST_PAGE_KEPT);
        assert_eq!(read_all(&model, &directory, 100).len(), 14);
    }
}
