//! Which descriptors other processes have, too.
//!
//! Children of fork have all, but those that executing closes only until they execute a program or end: see
//! [`children`](crate::children).

use super::{
    DESCRIPTIONS, DESCRIPTORS_MAX, HIGHEST, OURS, POOL, PRIVATE, UNKNOWN, WITH_CHILDREN, current,
    is_candidate, is_undecided, kind, state, turns,
};
use crate::real::kernel;
use crate::{bequest, children, fork};
use libc::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// In place of children: somebody who may have it for ever.
pub(super) const FOR_GOOD: u64 = 1 << children::COUNT_MAX;

/// The children that have a descriptor [`WITH_CHILDREN`], by bits.
pub(super) static AMONG: [AtomicU64; DESCRIPTORS_MAX] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX];

/// Who comes to have descriptors of this process.
#[derive(Clone, Copy)]
pub(crate) enum Sharers {
    /// A program that has those which executing does not close.
    Program,
    /// A child with this number, which has all.
    Child(u32),
    /// Somebody who has all, and may hand them on.
    Anybody,
}

/// From now on these have descriptors too. To be called inside.
pub(crate) fn share(sharers: Sharers) {
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        if is_unshared(fd) {
            match sharers {
                Sharers::Child(number) if is_closed_by_executing(fd) => share_with(1 << number, fd),
                Sharers::Program if is_closed_by_executing(fd) => {}
                _ => share_one(fd),
            }
        }
    }
}

fn is_closed_by_executing(fd: c_int) -> bool {
    let flags: c_int = kernel!(SYS_fcntl, fd, libc::F_GETFD);
    flags & libc::FD_CLOEXEC != 0
}

/// Who else has a descriptor that is not borrowed and in this state.
pub(super) fn who_has(fd: c_int, value: u8) -> u64 {
    match value {
        _ if value & PRIVATE != 0 => 0,
        _ if value & WITH_CHILDREN != 0 => AMONG[fd as usize].load(Ordering::Relaxed),
        _ => FOR_GOOD,
    }
}

/// Whether this is open on what may be a pool's file, which this process alone has open, and which the program that it
/// executes will have open. To be called inside.
pub(crate) fn is_left_by_executing(fd: c_int) -> bool {
    let value = state(fd).map_or(UNKNOWN, |state| state.load(Ordering::Acquire));
    let is_alone = match kind(value) {
        POOL => current(fd).is_some_and(|description| !description.is_shared()),
        _ => is_undecided(value) && is_candidate(fd) && !is_shared_by_a_name(fd),
    };
    is_alone && !is_closed_by_executing(fd)
}

/// Whether another process has one of the descriptors that were duplicated from one, this too.
fn is_shared_by_a_name(fd: c_int) -> bool {
    let is_shared =
        |fd: c_int| state(fd).is_none_or(|state| state.load(Ordering::Acquire) & PRIVATE == 0);
    let turns = turns();
    let alike = |turn: &Arc<Mutex<()>>| turns.get(&fd).is_some_and(|own| Arc::ptr_eq(own, turn));
    is_shared(fd) || turns.iter().any(|(other, turn)| alike(turn) && is_shared(*other))
}

/// Whether a child that this process is may have it from its parent: a file that may be a pool's.
pub(crate) fn is_inherited(fd: c_int) -> bool {
    let value = state(fd).map_or(UNKNOWN, |state| state.load(Ordering::Acquire));
    kind(value) == value && value != OURS && is_candidate(fd)
}

/// Whether it may be what this process has open, and no stranger.
fn is_unshared(fd: c_int) -> bool {
    let Some(state) = state(fd) else { return false };
    let value = state.load(Ordering::Acquire);
    kind(value) == POOL || is_undecided(value)
}

/// Whether there is a descriptor that a child of fork would have for now.
pub(crate) fn any_to_share() -> bool {
    let is_one = |fd| is_unshared(fd) && is_closed_by_executing(fd) && is_candidate(fd);
    (0..=HIGHEST.load(Ordering::Relaxed)).any(is_one)
}

/// From now on somebody has this descriptor, too. To be called inside.
pub(crate) fn share_one(fd: c_int) {
    share_with(FOR_GOOD, fd);
}

fn share_with(sharers: u64, fd: c_int) {
    bequest::revoke();
    let descriptions = DESCRIPTIONS.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(description) = descriptions.get(&fd) {
        description.shared.fetch_or(sharers, Ordering::Relaxed);
    } else if is_unshared(fd)
        && let Some(state) = state(fd)
    {
        // In this order: whoever finds the bit finds the children.
        let among = &AMONG[fd as usize];
        let with = if sharers == FOR_GOOD { 0 } else { WITH_CHILDREN };
        let all = if with == 0 { 0 } else { among.load(Ordering::Relaxed) | sharers };
        among.store(all, Ordering::Relaxed);
        let changed = |value: u8| is_undecided(value).then_some(kind(value) | with);
        let _ = state.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
    }
}

/// These children have executed a program or ended; what they have handed on others may have for ever. To be called
/// inside.
pub(crate) fn ended(children: u64, handed_on: bool) {
    let descriptions = DESCRIPTIONS.read().unwrap_or_else(PoisonError::into_inner);
    for description in descriptions.values() {
        if description.shared.load(Ordering::Relaxed) & children != 0 {
            if handed_on {
                description.shared.fetch_or(FOR_GOOD, Ordering::Relaxed);
            }
            // They may have changed how it is open.
            description.look_again();
            description.shared.fetch_and(!children, Ordering::Relaxed);
        }
    }
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        let Some((state, among)) = state(fd).zip(AMONG.get(fd as usize)) else { continue };
        let before = among.load(Ordering::Relaxed);
        if before & children == 0 {
            continue;
        }
        let left = if handed_on { 0 } else { before & !children };
        among.store(left, Ordering::Relaxed);
        let now = match (handed_on, left) {
            (true, _) => 0,
            (false, 0) => PRIVATE,
            (false, _) => WITH_CHILDREN,
        };
        let changed = |value: u8| (value & WITH_CHILDREN != 0).then_some(kind(value) | now);
        let _ = state.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
    }
}

/// The children that have this for now, if nobody has it for good.
fn children_of(fd: c_int) -> u64 {
    let value = state(fd).map_or(UNKNOWN, |state| state.load(Ordering::Acquire));
    let who = match kind(value) {
        POOL => super::known(fd).map_or(0, |known| known.shared.load(Ordering::Relaxed)),
        _ if value & WITH_CHILDREN != 0 => who_has(fd, value),
        _ => 0,
    };
    if who & FOR_GOOD == 0 { who } else { 0 }
}

/// Descriptors that children of `vfork` have handed on; and how many there were that are not yet told apart: until
/// then all pass for shared.
static GIVEN: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
pub(super) static DOUBTS: AtomicU32 = AtomicU32::new(0);

/// This process is the child of a `vfork`, and hands a descriptor on to the program that it executes. It has its
/// parent's memory, and may not wait for anything there.
pub(crate) fn given(fd: c_int) {
    if is_unshared(fd) {
        GIVEN[fd as usize / 64].fetch_or(1 << (fd % 64), Ordering::SeqCst);
        DOUBTS.fetch_add(1, Ordering::SeqCst);
    }
}

/// Once no more children are being made: only what they have handed on is shared. What only children had is not, once
/// these have ended. To be called inside.
#[inline]
pub(crate) fn end_doubts(fd: c_int) {
    if DOUBTS.load(Ordering::Relaxed) != 0 {
        tell_apart();
    }
    if children::any() {
        look_at_children(fd);
    }
}

#[cold]
fn look_at_children(fd: c_int) {
    let children = children_of(fd);
    if children != 0 {
        children::look_at(children);
    }
}

#[cold]
fn tell_apart() {
    let doubts = DOUBTS.load(Ordering::SeqCst);
    if fork::is_making() {
        return;
    }
    for (word, bits) in GIVEN.iter().enumerate() {
        let bits = bits.swap(0, Ordering::SeqCst);
        (0..64)
            .filter(|bit| bits & (1 << bit) != 0)
            .for_each(|bit| share_one(word as c_int * 64 + bit));
    }
    // There may be new ones by now.
    let _ = DOUBTS.compare_exchange(doubts, 0, Ordering::SeqCst, Ordering::SeqCst);
}

/// In a child: it has no children yet.
pub(super) fn abandon() {
    DOUBTS.store(0, Ordering::SeqCst);
    for among in AMONG.iter().take(HIGHEST.load(Ordering::Relaxed).max(0) as usize + 1) {
        if among.load(Ordering::Relaxed) != 0 {
            among.store(0, Ordering::Relaxed);
        }
    }
}
