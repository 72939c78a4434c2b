//! What this client has written to a kept pool and not synced: should a target die and come back, that
//! may be gone, and whoever has the file open is told so by his next sync.
//!
//! Each answer of a kept target says which *life* it is in. A change that was answered in one life and
//! not synced before the target answers in another counts as lost. All openings of a file at this client
//! share what is known, also those that have ended; each one that there is then is told of a loss once.
//!
//! What borrowers change is answered to them. Where [`Borrowers`] tell the lender that they have changed
//! nothing, there is nothing to lose; else he must reckon with it.

use super::{Fs, Rpc};
use crate::config::UNSYNCED_FILES_MAX;
use crate::types::Ino;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Entries of which nobody needs to know any more are swept out when there are so many.
const SWEEP_ENTRIES_MIN: usize = 64;

const UNKNOWN: u8 = 0;
const SCRATCH: u8 = 1;
const KEPT: u8 = 2;

/// Those to whom one opening is lent, as far as the lender can see what they do.
pub trait Borrowers: Debug + Send + Sync {
    /// A number that grows with each change that has ended, whether it went well or not. None: some are
    /// under way, or nobody knows what became of them.
    fn changes(&self) -> Option<u64>;

    /// Whether none of them may yet begin a change when what is lent is closed, as it may who keeps back what
    /// he was given to write.
    fn tell_all(&self) -> bool;
}

/// Files that are open at a client of a kept pool, or were, and are not synced.
#[derive(Debug, Default)]
pub(super) struct Register {
    /// What kind of pool it is, as answers have shown.
    kind: AtomicU8,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    by_ino: HashMap<Ino, Arc<Mutex<State>>>,
    /// How many there are at the next sweep.
    sweep_at: usize,
}

impl Files {
    /// Forgets files that nobody has open and that are synced; and if there are still too many, those that
    /// are not, too: who opens one of them once more, and syncs it, is not told what was lost before.
    fn sweep(&mut self) {
        let is_open = |file: &Arc<Mutex<State>>| Arc::strong_count(file) > 1;
        self.by_ino.retain(|_, file| is_open(file) || !lock(file).is_clean());
        if self.by_ino.len() >= UNSYNCED_FILES_MAX {
            self.by_ino.retain(|_, file| is_open(file));
        }
        self.sweep_at = (2 * self.by_ino.len()).max(SWEEP_ENTRIES_MIN);
    }
}

/// One opening's view of its file.
#[derive(Debug)]
pub(super) struct Unsynced {
    state: Arc<Mutex<State>>,
    /// Losses that it was told of.
    seen: AtomicU32,
    /// If it is lent: which of the lenders it is.
    lends: OnceLock<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Those in which something was changed.
    columns: BTreeMap<usize, Column>,
    losses: u32,
    /// So many of them somebody was told of: those who open the file from now on need not be.
    told: u32,
    /// The column of the newest.
    lost: usize,
    /// Openings that are lent, by number, and how many there have been.
    lenders: BTreeMap<u64, Lender>,
    lender_count: u64,
    /// Openings that were lent and have ended with changes in them that are not synced.
    left: u64,
}

/// An opening that is lent.
#[derive(Debug)]
struct Lender {
    /// None: nobody can see what they do.
    borrowers: Option<Arc<dyn Borrowers>>,
    /// Their changes up to here are synced.
    synced: Option<u64>,
}

impl Lender {
    fn changes(&self) -> Option<u64> {
        self.borrowers.as_ref().and_then(|borrowers| borrowers.changes())
    }

    /// Whether there may be changes that are not synced.
    fn changed(&self) -> bool {
        let changes = self.changes();
        changes.is_none() || changes != self.synced
    }
}

/// How far changes had come when a sync began.
#[derive(Debug, Default)]
pub struct Begun {
    /// Those of each column.
    columns: BTreeMap<usize, u64>,
    /// Those of each lender's borrowers.
    lenders: BTreeMap<u64, Option<u64>>,
    left: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Column {
    /// The life in which changes were made that are not synced; 0: there are none.
    life: u32,
    /// Changes that were noted, so that a sync knows whether there were more meanwhile.
    changes: u64,
    /// The life since which borrowers may have made changes; 0: there are none.
    lent: u32,
}

impl<R: Rpc> Fs<R> {
    /// For a file that is being opened; none: the pool is not kept.
    pub(super) fn unsynced(&self, ino: Ino) -> Option<Unsynced> {
        let register = &self.shared.unsynced;
        if register.kind.load(Ordering::Relaxed) == SCRATCH {
            return None;
        }
        let mut files = register.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.by_ino.len() >= files.sweep_at {
            files.sweep();
        }
        let state = files.by_ino.entry(ino).or_default().clone();
        let seen = AtomicU32::new(lock(&state).told);
        Some(Unsynced { state, seen, lends: OnceLock::new() })
    }

    /// A target has said which life it is in.
    pub(super) fn heed_life(&self, life: u32) {
        let kind = &self.shared.unsynced.kind;
        if kind.load(Ordering::Relaxed) == UNKNOWN {
            kind.store(if life == 0 { SCRATCH } else { KEPT }, Ordering::Relaxed);
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Nothing here panics between two changes that belong together.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn is_clean(&self) -> bool {
        self.losses == self.told
            && self.columns.values().all(|column| column.life == 0)
            && !self.borrowers_changed()
    }

    /// Whether borrowers may have made changes that are not synced.
    fn borrowers_changed(&self) -> bool {
        self.left > 0 || self.lenders.values().any(Lender::changed)
    }

    fn lose(&mut self, column: usize) {
        self.losses = self.losses.wrapping_add(1);
        self.lost = column;
    }
}

impl Unsynced {
    /// A change was answered.
    pub(super) fn changed(&self, column: usize, life: u32) {
        let mut state = lock(&self.state);
        let entry = state.columns.entry(column).or_default();
        entry.changes += 1;
        let before = entry.life;
        entry.life = before.max(life);
        // The later of the two may have been answered first: either way the older one is lost.
        if before != 0 && before != life {
            state.lose(column);
        }
    }

    /// A target has answered in this life. If changes are lost of which this opening was not told,
    /// gives the column of such.
    pub(super) fn found(&self, column: usize, life: u32) -> Option<usize> {
        let mut state = lock(&self.state);
        if let Some(entry) = state.columns.get_mut(&column)
            && entry.life != 0
            && entry.life < life
        {
            entry.life = 0;
            state.lose(column);
        }
        (state.losses != self.seen.load(Ordering::Relaxed)).then_some(state.lost)
    }

    /// Whether everything is synced, as far as this client can know.
    pub(super) fn is_clean(&self) -> bool {
        let state = lock(&self.state);
        state.losses == self.seen.load(Ordering::Relaxed) && state.is_clean()
    }

    /// Says how far changes have come.
    pub(super) fn begin_sync(&self) -> Begun {
        let state = lock(&self.state);
        Begun {
            columns: state.columns.iter().map(|(&at, column)| (at, column.changes)).collect(),
            lenders: state.lenders.iter().map(|(&at, lender)| (at, lender.changes())).collect(),
            left: state.left,
        }
    }

    /// All columns were flushed, in these lives.
    pub(super) fn end_sync(&self, begun: &Begun, lives: impl Iterator<Item = u32>) {
        let mut state = lock(&self.state);
        // Looked at now, as all columns have answered: what is changed from here on, is so in these
        // lives or later ones.
        let borrowers_changed = state.borrowers_changed();
        if state.left == begun.left {
            state.left = 0;
        }
        for (number, lender) in &mut state.lenders {
            if let Some(&changes) = begun.lenders.get(number) {
                lender.synced = changes;
            }
        }
        let lends = !state.lenders.is_empty() || state.left > 0;
        for (column, life) in lives.enumerate() {
            let Some(entry) = state.columns.get_mut(&column) else { continue };
            let before = *entry;
            // What was changed meanwhile may be in either life, and counts as of the later one: if
            // it is lost, that is told now, with the loss of what was there before.
            entry.life = match begun.columns.get(&column) == Some(&before.changes) {
                true if before.life <= life => 0,
                _ if before.life == 0 => 0,
                _ => before.life.max(life),
            };
            if before.lent != 0 {
                entry.lent = if lends { life } else { 0 };
            }
            let older = |other: u32| other != 0 && other < life;
            if older(before.life) || (borrowers_changed && older(before.lent)) {
                state.lose(column);
            }
        }
    }

    /// As [`Unsynced::end_sync`], where somebody else has flushed them and told of losses.
    pub(super) fn synced_elsewhere(&self, begun: &Begun) {
        let mut state = lock(&self.state);
        for (column, entry) in &mut state.columns {
            if begun.columns.get(column) == Some(&entry.changes) {
                entry.life = 0;
            }
        }
        state.told = state.losses;
        self.seen.store(state.losses, Ordering::Relaxed);
    }

    /// Gives the column of a loss that this opening was not told of, which it is by this.
    pub(super) fn tell(&self) -> Option<usize> {
        let mut state = lock(&self.state);
        state.told = state.losses;
        let seen = self.seen.swap(state.losses, Ordering::Relaxed);
        (seen != state.losses).then_some(state.lost)
    }

    /// Whether borrowers are reckoned with already.
    pub(super) fn lends(&self) -> bool {
        self.lends.get().is_some()
    }

    /// Borrowers may make changes from now on, in these lives or later ones.
    pub(super) fn lend(
        &self,
        borrowers: Option<Arc<dyn Borrowers>>,
        lives: impl Iterator<Item = u32>,
    ) {
        let mut state = lock(&self.state);
        let others_changed = state.borrowers_changed();
        if !self.lends() {
            state.lender_count += 1;
            let number = state.lender_count;
            let mut lender = Lender { borrowers, synced: None };
            // Those of this opening have made none yet: what is counted are others.
            lender.synced = lender.changes();
            state.lenders.insert(number, lender);
            // Two that lend at once do so one after the other, under the lock.
            let _ = self.lends.set(number);
        }
        for (column, life) in lives.enumerate().filter(|&(_, life)| life != 0) {
            let entry = state.columns.entry(column).or_default();
            if entry.lent == 0 || !others_changed {
                entry.lent = entry.lent.max(life);
            }
        }
    }
}

impl Drop for Unsynced {
    fn drop(&mut self) {
        let Some(number) = self.lends.get() else { return };
        let mut state = lock(&self.state);
        let lender = state.lenders.remove(number);
        state.left += u64::from(lender.is_some_and(|lender| lender.changed()));
        if state.lenders.is_empty() && state.left == 0 {
            state.columns.values_mut().for_each(|column| column.lent = 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openings<const N: usize>() -> [Unsynced; N] {
        let state = Arc::<Mutex<State>>::default();
        std::array::from_fn(|_| Unsynced {
            state: state.clone(),
            seen: AtomicU32::new(0),
            lends: OnceLock::new(),
        })
    }

    /// A sync that meets the targets in these lives; whether it tells of a loss.
    fn sync(opening: &Unsynced, lives: [u32; 2]) -> bool {
        let begun = opening.begin_sync();
        opening.end_sync(&begun, lives.into_iter());
        opening.tell().is_some()
    }

    #[test]
    fn every_opening_is_told_once() {
        let [writer, other] = openings();
        writer.changed(0, 1);
        writer.changed(1, 4);
        assert!(!writer.is_clean());
        assert!(!sync(&other, [1, 4]) && writer.is_clean());
        writer.changed(1, 4);
        assert!(writer.found(0, 2).is_none(), "all of that column was synced");
        assert_eq!(writer.found(1, 5), Some(1));
        assert!(writer.found(0, 2).is_some(), "until it is told");
        assert!(sync(&writer, [2, 5]) && !sync(&writer, [2, 5]));
        assert!(sync(&other, [2, 5]) && !sync(&other, [2, 5]));
        assert!(writer.found(1, 5).is_none());
    }

    #[test]
    fn a_change_during_a_sync_is_not_taken_for_synced() {
        let [writer, other] = openings();
        writer.changed(0, 1);
        let begun = writer.begin_sync();
        other.changed(0, 1);
        writer.end_sync(&begun, [1, 1].into_iter());
        assert!(writer.tell().is_none() && !other.is_clean());
        assert!(sync(&other, [2, 1]));
    }

    #[test]
    fn answers_out_of_their_order_are_a_loss_all_the_same() {
        let [writer] = openings();
        writer.changed(0, 2);
        writer.changed(0, 1);
        assert!(sync(&writer, [2, 1]));
    }

    #[test]
    fn what_borrowers_may_have_changed_is_reckoned_with() {
        let [lender, other] = openings();
        lender.lend(None, [1, 1].into_iter());
        assert!(!sync(&lender, [1, 1]));
        assert!(sync(&other, [1, 2]) && sync(&lender, [1, 2]) && !sync(&lender, [1, 2]));
        // It may be lent until it is closed, and be changed up to then.
        drop(lender);
        assert!(!other.is_clean());
        assert!(!sync(&other, [1, 2]) && other.is_clean());
        assert!(!sync(&other, [5, 5]));
        // A borrower has it synced by the lender, who tells.
        let [borrower] = openings();
        borrower.changed(1, 1);
        let begun = borrower.begin_sync();
        borrower.changed(0, 1);
        borrower.synced_elsewhere(&begun);
        assert!(borrower.found(1, 2).is_none());
        assert_eq!(borrower.found(0, 2), Some(0));
    }

    /// Borrowers who say what they do: how many changes have ended, and how many are under way.
    #[derive(Debug, Default)]
    struct Seen {
        ended: AtomicU32,
        under_way: AtomicU32,
    }

    impl Borrowers for Seen {
        fn changes(&self) -> Option<u64> {
            let under_way = self.under_way.load(Ordering::Relaxed);
            (under_way == 0).then(|| self.ended.load(Ordering::Relaxed).into())
        }

        fn tell_all(&self) -> bool {
            true
        }
    }

    impl Seen {
        fn lent(opening: &Unsynced, lives: [u32; 2]) -> Arc<Seen> {
            let seen = Arc::new(Seen::default());
            opening.lend(Some(seen.clone()), lives.into_iter());
            seen
        }

        fn changes(&self) {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn borrowers_who_changed_nothing_have_lost_nothing() {
        let [lender, other, late] = openings();
        let seen = Seen::lent(&lender, [1, 1]);
        assert!(lender.is_clean() && !sync(&lender, [1, 2]), "nothing was changed at all");
        seen.changes();
        assert!(!other.is_clean() && !sync(&lender, [1, 2]) && lender.is_clean());
        assert!(!sync(&lender, [3, 2]) && !sync(&other, [3, 2]), "all of it was synced");
        seen.changes();
        assert!(sync(&lender, [3, 4]) && sync(&other, [3, 4]) && !sync(&lender, [3, 4]));
        // What is under way may be anything, and so may be what is never heard of again.
        seen.under_way.store(1, Ordering::Relaxed);
        assert!(sync(&lender, [4, 4]) && sync(&lender, [5, 4]));
        seen.under_way.store(0, Ordering::Relaxed);
        assert!(sync(&lender, [6, 4]) && !sync(&lender, [7, 4]));
        // Whoever is lent it later has lost nothing to what came before.
        assert!(sync(&late, [7, 4]), "of what came before he is told");
        let second = Seen::lent(&late, [8, 4]);
        second.changes();
        assert!(!sync(&late, [8, 4]));
    }

    #[test]
    fn what_borrowers_change_during_a_sync_is_not_taken_for_synced() {
        let [lender, other] = openings();
        let seen = Seen::lent(&lender, [1, 1]);
        let begun = lender.begin_sync();
        seen.changes();
        lender.end_sync(&begun, [1, 1].into_iter());
        assert!(lender.tell().is_none() && !lender.is_clean());
        assert!(sync(&lender, [2, 1]));
        // In a life that was over when it ended: told at once.
        let begun = lender.begin_sync();
        seen.changes();
        lender.end_sync(&begun, [3, 1].into_iter());
        assert!(lender.tell().is_some());
        // An opening that ends meanwhile leaves its changes behind.
        assert!(!sync(&lender, [3, 1]));
        let begun = other.begin_sync();
        seen.changes();
        drop(lender);
        other.end_sync(&begun, [3, 1].into_iter());
        assert!(other.tell().is_some() && !other.is_clean());
        assert!(sync(&other, [4, 1]) && !sync(&other, [5, 1]) && other.is_clean());
    }

    #[test]
    fn files_that_nobody_needs_to_know_of_are_forgotten() {
        let mut files = Files::default();
        for ino in 0..UNSYNCED_FILES_MAX as u64 {
            files.by_ino.entry(Ino(ino)).or_default();
        }
        let open = files.by_ino[&Ino(7)].clone();
        let column = Column { life: 1, ..Column::default() };
        lock(&files.by_ino[&Ino(9)]).columns.insert(0, column);
        files.sweep();
        assert_eq!(files.by_ino.len(), 2);
        drop(open);
        files.sweep();
        assert!(files.by_ino.contains_key(&Ino(9)) && files.by_ino.len() == 1);
        for ino in 0..UNSYNCED_FILES_MAX as u64 {
            let state = files.by_ino.entry(Ino(ino)).or_default();
            lock(state).columns.insert(0, column);
        }
        files.sweep();
        assert!(files.by_ino.is_empty());
    }
}
