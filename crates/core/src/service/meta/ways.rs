//! Ways: names of directories that clients may believe for a moment.
//!
//! Each time that a path of ten names is walked, a mount's kernel asks for ten names. Where anybody may
//! walk through a directory, a client who asks so is told that he may believe for
//! [`WAY_BELIEVED_MS`] where the name of a directory in it leads. Whoever takes such a name away
//! (moves or removes the directory, or closes the one above it to somebody) is sent away as long as
//! another client may believe it, [`WAY_HELD_MS`], and nobody is told anew until he has had his turn.

use crate::config::{WAY_BELIEVED_MS, WAY_HELD_MS, WAYS_SHUT_MS};
use crate::error::{Code, Error, Result};
use crate::types::ClientId;
use std::sync::{Mutex, MutexGuard, PoisonError};

const _: () = assert!(WAY_BELIEVED_MS < WAY_HELD_MS && WAY_HELD_MS < WAYS_SHUT_MS);

#[derive(Debug, Default)]
struct State {
    /// Who was told last that he may believe, and when (monotonic milliseconds).
    newest: Option<(ClientId, u64)>,
    /// When anybody else was.
    others_ms: Option<u64>,
    /// Nobody is told before.
    shut_until_ms: u64,
    /// Changes that are just taking names away.
    taking: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ways {
    state: Mutex<State>,
}

/// A change that takes a name away, until it is done.
#[derive(Debug)]
pub(super) struct Taking<'a> {
    ways: &'a Ways,
}

impl Ways {
    /// Of a service that is started again clients may believe what its earlier life told them.
    pub(super) fn new(lived_before: bool, now_ms: u64) -> Ways {
        let others_ms = lived_before.then_some(now_ms);
        Ways { state: Mutex::new(State { others_ms, ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a client may believe a name that is looked up after this.
    pub(super) fn believe(&self, client: ClientId, now_ms: u64) -> bool {
        let mut state = self.state();
        if state.taking > 0 || now_ms < state.shut_until_ms {
            return false;
        }
        match state.newest {
            Some((newest, at_ms)) if newest == client => {
                state.newest = Some((client, at_ms.max(now_ms)));
            }
            newest => {
                state.others_ms = state.others_ms.max(newest.map(|(_, at_ms)| at_ms));
                state.newest = Some((client, now_ms));
            }
        }
        true
    }

    /// Begins a change that takes a name away from everybody `but` a client who knows of it himself.
    ///
    /// # Errors
    /// [`Code::Busy`] as long as one of them may believe it.
    pub(super) fn take(&self, but: Option<ClientId>, now_ms: u64) -> Result<Taking<'_>> {
        let mut state = self.state();
        let newest = state.newest.filter(|(client, _)| but != Some(*client));
        let told_ms = state.others_ms.max(newest.map(|(_, at_ms)| at_ms));
        let until_ms = told_ms.map_or(0, |told_ms| told_ms + WAY_HELD_MS);
        if now_ms < until_ms {
            state.shut_until_ms = state.shut_until_ms.max(now_ms + WAYS_SHUT_MS);
            let cause = format!("clients believe names for {} ms yet", until_ms - now_ms);
            return Err(Error::because(Code::Busy, cause));
        }
        state.taking += 1;
        Ok(Taking { ways: self })
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.ways.state().taking -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ClientId = ClientId(1);
    const OTHER: ClientId = ClientId(2);

    #[test]
    fn who_believed_himself_is_not_held_up_and_the_others_are_until_it_is_over() {
        let ways = Ways::default();
        assert!(ways.believe(ONE, 1_000));
        assert!(ways.take(Some(ONE), 1_000).is_ok());
        let error = ways.take(Some(OTHER), 1_000 + WAY_HELD_MS - 1).unwrap_err();
        assert_eq!(error.code, Code::Busy);
        assert!(ways.take(Some(OTHER), 1_000 + WAY_HELD_MS).is_ok());
        // Nobody's own knowledge counts.
        let ways = Ways::default();
        assert!(ways.believe(ONE, 1_000));
        assert!(ways.take(None, 1_001).is_err());
    }

    #[test]
    fn who_waits_has_his_turn_however_much_others_ask() {
        let ways = Ways::default();
        assert!(ways.believe(ONE, 1_000));
        let mut now_ms = 1_001;
        while ways.take(Some(OTHER), now_ms).is_err() {
            assert!(!ways.believe(ONE, now_ms), "at {now_ms}");
            now_ms += 5;
        }
        assert!(now_ms < 1_000 + WAY_HELD_MS + 5);
        assert!(ways.believe(ONE, now_ms + WAYS_SHUT_MS));
    }

    #[test]
    fn a_name_that_is_being_taken_is_not_believed() {
        let ways = Ways::default();
        let taking = ways.take(Some(ONE), 1_000).unwrap();
        assert!(!ways.believe(ONE, 1_000) && !ways.believe(OTHER, 5_000));
        drop(taking);
        assert!(ways.believe(OTHER, 5_000));
    }

    #[test]
    fn of_several_who_believe_none_is_forgotten() {
        let ways = Ways::default();
        assert!(ways.believe(ONE, 1_000) && ways.believe(OTHER, 1_100));
        assert!(ways.take(Some(ONE), 1_200).is_err() && ways.take(Some(OTHER), 1_200).is_err());
        // The first one's is over.
        let now_ms = 1_000 + WAY_HELD_MS;
        assert!(ways.take(Some(ONE), now_ms).is_err() && ways.take(Some(OTHER), now_ms).is_ok());
    }

    #[test]
    fn what_an_earlier_life_told_is_believed_after_a_start() {
        assert!(Ways::new(true, 1_000).take(Some(ONE), 1_001).is_err());
        assert!(Ways::new(true, 1_000).take(Some(ONE), 1_000 + WAY_HELD_MS).is_ok());
        assert!(Ways::new(false, 1_000).take(Some(ONE), 1_001).is_ok());
    }
}
