//! Whether what several clients did to the same names, and what came of it, can have happened in any
//! order at all.

use std::collections::BTreeSet;

/// How an operation on names ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    NotFound,
    Exists,
}

/// How a name is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Replace,
    NoReplace,
    Exchange,
}

/// What somebody did with a shared name, and what came of it.
#[derive(Clone, Debug)]
pub(crate) enum NameOp {
    /// Exclusive creation: the new file's number, or that it exists.
    Create(usize, Option<u64>),
    Unlink(usize, Answer),
    Move(usize, usize, How, Answer),
    /// Another name for this file.
    Link(u64, usize, Answer),
    /// What was there.
    Lookup(usize, Option<u64>),
    /// How many names this file has.
    Count(u64, u32),
}

/// One operation on shared names.
#[derive(Clone, Debug)]
pub(crate) struct NameEvent {
    pub(crate) begin_us: u64,
    /// None: its outcome is not known; it may take effect at any time, or never.
    pub(crate) end_us: Option<u64>,
    pub(crate) op: NameOp,
}

/// Shared names.
pub(crate) const NAMES: usize = 4;

/// Stands for the file made by an operation that nobody knows to have made one.
fn something(event: usize) -> u64 {
    u64::MAX - event as u64
}

fn is_something(ino: u64) -> bool {
    ino > u64::MAX - EVENTS_MAX as u64
}

/// A history fits into a set of 128 bits.
const EVENTS_MAX: usize = 128;

type Names = [Option<u64>; NAMES];

/// Whether the operations can be put in an order in which each, taken at one moment between its
/// beginning and its end, has the outcome that it had.
pub(crate) fn linearizable(history: &[NameEvent]) -> bool {
    assert!(history.len() <= EVENTS_MAX, "a history of {} operations", history.len());
    search(history, 0, [None; NAMES], &mut BTreeSet::new())
}

fn search(
    history: &[NameEvent],
    done: u128,
    names: Names,
    seen: &mut BTreeSet<(u128, Names)>,
) -> bool {
    let open = |i: &usize| done & (1 << i) == 0;
    let Some(first_end) = (0..history.len()).filter(open).filter_map(|i| history[i].end_us).min()
    else {
        return true;
    };
    if !seen.insert((done, names)) {
        return false;
    }
    for i in (0..history.len()).filter(open) {
        // What began after another one had ended comes after it.
        if history[i].begin_us > first_end {
            continue;
        }
        if let Some(next) = step(i, &history[i], names)
            && search(history, done | 1 << i, next, seen)
        {
            return true;
        }
    }
    false
}

/// The names after an operation, if it can have had its outcome.
fn step(number: usize, event: &NameEvent, mut names: Names) -> Option<Names> {
    let known = event.end_us.is_some();
    match event.op {
        NameOp::Create(name, made) => match (names[name], made) {
            (None, Some(ino)) => names[name] = Some(ino),
            (None, None) if !known => names[name] = Some(something(number)),
            (Some(_), None) => {}
            _ => return None,
        },
        NameOp::Unlink(name, answer) => {
            let would = if names[name].is_some() { Answer::Done } else { Answer::NotFound };
            names[name] = None;
            return (!known || answer == would).then_some(names);
        }
        NameOp::Move(from, to, how, answer) => {
            let (source, target) = (names[from], names[to]);
            let would = match (source, target) {
                (None, _) => Answer::NotFound,
                (_, None) if how == How::Exchange => Answer::NotFound,
                (_, Some(_)) if how == How::NoReplace => Answer::Exists,
                // Two names of one file: both stay.
                _ if source == target => Answer::Done,
                _ => {
                    names[to] = source;
                    names[from] = if how == How::Exchange { target } else { None };
                    Answer::Done
                }
            };
            return (!known || answer == would).then_some(names);
        }
        NameOp::Link(ino, to, answer) => {
            let there = names.contains(&Some(ino));
            let fits = match (there, names[to]) {
                (true, None) => answer == Answer::Done,
                (true, Some(_)) => answer == Answer::Exists,
                // A file without names may be there still: somebody has it open.
                (false, Some(_)) => answer != Answer::Done,
                (false, None) => answer == Answer::NotFound,
            };
            if there && names[to].is_none() {
                names[to] = Some(ino);
            }
            return (!known || fits).then_some(names);
        }
        NameOp::Lookup(name, found) => match (names[name], found) {
            // Now it is told what that something is.
            (Some(unknown), Some(ino)) if is_something(unknown) && !names.contains(&found) => {
                for name in &mut names {
                    if *name == Some(unknown) {
                        *name = Some(ino);
                    }
                }
            }
            (is, found) if is == found => {}
            _ => return None,
        },
        NameOp::Count(ino, count) => {
            let is = names.iter().filter(|&&name| name == Some(ino)).count();
            return (!known || is == count as usize).then_some(names);
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(begin_us: u64, end_us: u64, op: NameOp) -> NameEvent {
        NameEvent { begin_us, end_us: Some(end_us), op }
    }

    #[test]
    fn histories_that_cannot_be_are_refused() {
        let create = event(0, 10, NameOp::Create(0, Some(7)));
        let second = event(5, 15, NameOp::Create(0, Some(8)));
        assert!(linearizable(&[create.clone(), event(11, 12, NameOp::Lookup(0, Some(7)))]));
        assert!(!linearizable(&[create.clone(), event(11, 12, NameOp::Lookup(0, None))]));
        assert!(!linearizable(&[create.clone(), second.clone()]));
        let unlink = event(5, 15, NameOp::Unlink(0, Answer::Done));
        assert!(linearizable(&[create.clone(), second, unlink.clone()]));
        let rename = event(20, 30, NameOp::Move(0, 1, How::Replace, Answer::Done));
        assert!(linearizable(&[create.clone(), rename.clone()]));
        assert!(!linearizable(&[create.clone(), unlink.clone(), rename.clone()]));
        assert!(!linearizable(&[create.clone(), rename.clone(), rename.clone()]));
        let unknown = NameEvent { end_us: None, ..unlink };
        assert!(linearizable(&[create.clone(), unknown.clone()]));
        assert!(linearizable(&[create, unknown, event(20, 21, NameOp::Lookup(0, None))]));
    }

    #[test]
    fn links_exchanges_and_what_must_not_be_replaced() {
        let after = |names: Names, op: NameOp| step(0, &event(0, 1, op), names);
        let both = [Some(7), Some(8), None, None];
        let swap = |answer| NameOp::Move(0, 1, How::Exchange, answer);
        assert_eq!(after(both, swap(Answer::Done)), Some([Some(8), Some(7), None, None]));
        assert_eq!(after(both, swap(Answer::NotFound)), None);
        assert_eq!(after([Some(7), None, None, None], swap(Answer::Done)), None);
        let keep = |answer| NameOp::Move(0, 1, How::NoReplace, answer);
        assert_eq!(after(both, keep(Answer::Exists)), Some(both));
        assert_eq!(after(both, keep(Answer::Done)), None);
        let twice = [Some(7), None, Some(7), None];
        assert_eq!(
            after([Some(7), None, None, None], NameOp::Link(7, 2, Answer::Done)),
            Some(twice)
        );
        assert_eq!(after(both, NameOp::Link(9, 2, Answer::Done)), None);
        assert_eq!(after(both, NameOp::Link(9, 2, Answer::NotFound)), Some(both));
        assert_eq!(after(twice, NameOp::Count(7, 2)), Some(twice));
        assert_eq!(after(twice, NameOp::Count(7, 1)), None);
        let one = NameOp::Move(0, 2, How::Replace, Answer::Done);
        assert_eq!(after(twice, one), Some(twice), "two names of one file");
        // What an unknown creation made is told by the first who looks.
        let unknown = [Some(something(3)), Some(something(3)), Some(something(4)), None];
        let found = after(unknown, NameOp::Lookup(1, Some(9)));
        assert_eq!(found, Some([Some(9), Some(9), Some(something(4)), None]));
        assert_eq!(found.and_then(|names| after(names, NameOp::Lookup(0, Some(7)))), None);
    }
}
