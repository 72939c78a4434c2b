//! What clients may believe for a moment, so that they need not ask again.
//!
//! **Ways.** Each time that a path of ten names is walked, a mount's kernel asks for ten names. Where
//! anybody may walk through a directory, a client who asks so is told that he may believe for
//! [`WAY_BELIEVED_MS`] where the name of a directory in it leads. Whoever takes such a name away
//! (moves or removes the directory, or closes the one above it to somebody) is sent away as long as
//! another client may believe it, [`WAY_HELD_MS`], and nobody is told anew until he has had his turn.
//!
//! **Calm.** Most pools are used by one mount, whose programs look at the same files again and again. As
//! long as nobody else changes anything, a client who asks often may believe all that he is told, for as
//! long as that: where other names lead, that there are none, and attributes. Whoever else then begins to
//! change something is sent away once, in the same way; from then on everybody asks, until all but one
//! have let things be for [`CALM_MS`].

use crate::config::{CALM_ASKED_MIN, CALM_MS, WAY_BELIEVED_MS, WAY_HELD_MS, WAYS_SHUT_MS};
use crate::error::{Code, Error, Result};
use crate::types::ClientId;
use std::sync::{Mutex, MutexGuard, PoisonError};

const _: () = assert!(WAY_BELIEVED_MS < WAY_HELD_MS && WAY_HELD_MS < WAYS_SHUT_MS);
const _: () = assert!(WAY_HELD_MS < CALM_MS);

/// In so long a client must ask [`CALM_ASKED_MIN`] times, and then does so often for as long after each:
/// milliseconds.
const OFTEN_MS: u64 = 1_000;

/// When clients last did something. Times are monotonic milliseconds.
#[derive(Debug, Default)]
struct Recent {
    /// Who did it last, and when.
    newest: Option<(ClientId, u64)>,
    /// When anybody else did.
    others_ms: Option<u64>,
}

impl Recent {
    fn note(&mut self, client: ClientId, now_ms: u64) {
        match self.newest {
            Some((newest, at_ms)) if newest == client => {
                self.newest = Some((client, at_ms.max(now_ms)));
            }
            newest => {
                self.others_ms = self.others_ms.max(newest.map(|(_, at_ms)| at_ms));
                self.newest = Some((client, now_ms));
            }
        }
    }

    /// Until when it is less than so long ago that somebody did it, `but` whom does not count.
    fn until_ms(&self, but: Option<ClientId>, within_ms: u64) -> u64 {
        let newest = self.newest.filter(|(client, _)| but != Some(*client));
        let at_ms = self.others_ms.max(newest.map(|(_, at_ms)| at_ms));
        at_ms.map_or(0, |at_ms| at_ms + within_ms)
    }
}

/// What somebody may believe, and who is just changing it.
#[derive(Debug, Default)]
struct Belief {
    /// Who was told that he may.
    told: Recent,
    /// Nobody is told before.
    shut_until_ms: u64,
    /// Changes under way.
    changes: u32,
}

impl Belief {
    /// Whether a client may believe what is looked up after this.
    fn tell(&mut self, client: ClientId, now_ms: u64) -> bool {
        let may = self.changes == 0 && now_ms >= self.shut_until_ms;
        if may {
            self.told.note(client, now_ms);
        }
        may
    }

    /// Refuses a change, and sees to it that its turn comes, as long as somebody `but` this one believes
    /// otherwise.
    fn admit(&mut self, but: Option<ClientId>, now_ms: u64) -> Result<()> {
        let until_ms = self.told.until_ms(but, WAY_HELD_MS);
        if now_ms < until_ms {
            self.shut_until_ms = self.shut_until_ms.max(now_ms + WAYS_SHUT_MS);
            let cause =
                format!("clients believe what they were told for {} ms yet", until_ms - now_ms);
            return Err(Error::because(Code::Busy, cause));
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct State {
    /// Names of directories.
    ways: Belief,
    /// Everything.
    calm: Belief,
    /// Who changed anything.
    changed: Recent,
    /// How often clients asked since then, and until when that counts as often.
    asked: u32,
    asked_since_ms: u64,
    often_until_ms: u64,
}

impl State {
    /// Counts a question that is worth so many. Says whether there are many.
    fn is_asked_often(&mut self, worth: u32, now_ms: u64) -> bool {
        if now_ms >= self.asked_since_ms + OFTEN_MS {
            (self.asked_since_ms, self.asked) = (now_ms, 0);
        }
        self.asked = self.asked.saturating_add(worth);
        if self.asked >= CALM_ASKED_MIN || now_ms < self.often_until_ms {
            self.often_until_ms = now_ms + OFTEN_MS;
        }
        now_ms < self.often_until_ms
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ways {
    state: Mutex<State>,
}

/// A change of something that is believed, until it is done.
#[derive(Debug)]
pub(super) struct Changing<'a> {
    ways: &'a Ways,
    belief: fn(&mut State) -> &mut Belief,
}

impl Ways {
    /// Of a service that is started again clients may believe what its earlier life told them.
    pub(super) fn new(lived_before: bool, now_ms: u64) -> Ways {
        let belief = || Belief {
            told: Recent { newest: None, others_ms: lived_before.then_some(now_ms) },
            ..Belief::default()
        };
        Ways { state: Mutex::new(State { ways: belief(), calm: belief(), ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a client may believe a directory's name that is looked up after this.
    pub(super) fn believe(&self, client: ClientId, now_ms: u64) -> bool {
        self.state().ways.tell(client, now_ms)
    }

    /// Whether a client may believe whatever he looks at after this, which spares him so many questions.
    pub(super) fn believe_all(&self, client: ClientId, worth: u32, now_ms: u64) -> bool {
        let state = &mut *self.state();
        state.is_asked_often(worth, now_ms)
            && now_ms >= state.changed.until_ms(Some(client), CALM_MS)
            && state.calm.tell(client, now_ms)
    }

    /// Begins a change by a client. Of his own he knows himself.
    ///
    /// # Errors
    /// [`Code::Busy`] as long as others may believe that nobody changes anything.
    pub(super) fn change(&self, client: ClientId, now_ms: u64) -> Result<Changing<'_>> {
        let state = &mut *self.state();
        // Also if he has to wait: so that he does once, not for each change.
        state.changed.note(client, now_ms);
        state.calm.admit(Some(client), now_ms)?;
        Ok(self.begun(state, |state| &mut state.calm))
    }

    /// Begins a change that takes a directory's name away from everybody `but` a client who knows of it
    /// himself.
    ///
    /// # Errors
    /// [`Code::Busy`] as long as one of them may believe it.
    pub(super) fn take(&self, but: ClientId, now_ms: u64) -> Result<Changing<'_>> {
        let state = &mut *self.state();
        state.ways.admit(Some(but), now_ms)?;
        Ok(self.begun(state, |state| &mut state.ways))
    }

    /// Begins a change that closes a directory to somebody, within a change of the client's. Kernels do
    /// not ask again who may walk where they believe a name, also the asker's own.
    ///
    /// # Errors
    /// [`Code::Busy`] as long as anybody may believe a name.
    pub(super) fn close(&self, now_ms: u64) -> Result<Changing<'_>> {
        let state = &mut *self.state();
        state.ways.admit(None, now_ms)?;
        state.calm.admit(None, now_ms)?;
        Ok(self.begun(state, |state| &mut state.ways))
    }

    fn begun(&self, state: &mut State, belief: fn(&mut State) -> &mut Belief) -> Changing<'_> {
        belief(state).changes += 1;
        Changing { ways: self, belief }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        (self.belief)(&mut self.ways.state()).changes -= 1;
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
        assert!(ways.take(ONE, 1_000).is_ok());
        let error = ways.take(OTHER, 1_000 + WAY_HELD_MS - 1).unwrap_err();
        assert_eq!(error.code, Code::Busy);
        assert!(ways.take(OTHER, 1_000 + WAY_HELD_MS).is_ok());
        // Nobody's own knowledge counts.
        let ways = Ways::default();
        assert!(ways.believe(ONE, 1_000));
        assert!(ways.close(1_001).is_err());
    }

    #[test]
    fn who_waits_has_his_turn_however_much_others_ask() {
        let ways = Ways::default();
        assert!(ways.believe(ONE, 1_000));
        let mut now_ms = 1_001;
        while ways.take(OTHER, now_ms).is_err() {
            assert!(!ways.believe(ONE, now_ms), "at {now_ms}");
            now_ms += 5;
        }
        assert!(now_ms < 1_000 + WAY_HELD_MS + 5);
        assert!(ways.believe(ONE, now_ms + WAYS_SHUT_MS));
    }

    #[test]
    fn a_name_that_is_being_taken_is_not_believed() {
        let ways = Ways::default();
        let taking = ways.take(ONE, 1_000).unwrap();
        assert!(!ways.believe(ONE, 1_000) && !ways.believe(OTHER, 5_000));
        drop(taking);
        assert!(ways.believe(OTHER, 5_000));
    }

    #[test]
    fn of_several_who_believe_none_is_forgotten() {
        let ways = Ways::default();
        assert!(ways.believe(ONE, 1_000) && ways.believe(OTHER, 1_100));
        assert!(ways.take(ONE, 1_200).is_err() && ways.take(OTHER, 1_200).is_err());
        // The first one's is over.
        let now_ms = 1_000 + WAY_HELD_MS;
        assert!(ways.take(ONE, now_ms).is_err() && ways.take(OTHER, now_ms).is_ok());
    }

    #[test]
    fn what_an_earlier_life_told_is_believed_after_a_start() {
        let ways = |lived_before| Ways::new(lived_before, 1_000);
        assert!(ways(true).take(ONE, 1_001).is_err() && ways(true).change(ONE, 1_001).is_err());
        let later_ms = 1_000 + WAY_HELD_MS;
        assert!(ways(true).take(ONE, later_ms).is_ok() && ways(true).change(ONE, later_ms).is_ok());
        assert!(ways(false).take(ONE, 1_001).is_ok() && ways(false).change(ONE, 1_001).is_ok());
    }

    /// Asks often enough; gives whether he may believe everything in the end.
    fn asks(ways: &Ways, client: ClientId, now_ms: u64) -> bool {
        (0..CALM_ASKED_MIN).map(|_| ways.believe_all(client, 1, now_ms)).last().unwrap()
    }

    #[test]
    fn who_asks_often_believes_what_he_alone_changes() {
        let ways = Ways::default();
        assert!(!(1..CALM_ASKED_MIN).any(|_| ways.believe_all(ONE, 1, 1_000)), "not asked often");
        assert!(asks(&ways, ONE, 1_000) && ways.believe_all(ONE, 1, 1_000 + OFTEN_MS - 1));
        let now_ms = 1_000 + 3 * OFTEN_MS;
        assert!(!ways.believe_all(ONE, 1, now_ms), "not asked any more");
        assert!(asks(&ways, ONE, now_ms));
        let change = ways.change(ONE, now_ms).unwrap();
        assert!(!ways.believe_all(ONE, 1, now_ms), "in the middle of a change");
        drop(change);
        assert!(ways.believe_all(ONE, 1, now_ms));
        // Nobody else's questions hold him up, though his changes hold them up.
        assert!(!ways.believe_all(OTHER, 1, now_ms));
        assert!(ways.change(ONE, now_ms + 1).is_ok());
    }

    #[test]
    fn others_wait_once_and_then_everybody_asks_until_they_are_quiet() {
        let ways = Ways::default();
        assert!(asks(&ways, ONE, 1_000));
        assert!(ways.change(OTHER, 1_001).is_err() && ways.change(ONE, 1_002).is_ok());
        let mut now_ms = 1_001;
        while ways.change(OTHER, now_ms).is_err() {
            assert!(!asks(&ways, ONE, now_ms), "somebody waits");
            now_ms += 10;
        }
        assert!(now_ms < 1_000 + WAY_HELD_MS + 10);
        // While both change things nobody waits for anybody.
        for now_ms in (now_ms..now_ms + 3 * CALM_MS).step_by(97) {
            assert!(!asks(&ways, ONE, now_ms) && !asks(&ways, OTHER, now_ms), "at {now_ms}");
            assert!(ways.change(ONE, now_ms).is_ok() && ways.change(OTHER, now_ms).is_ok());
        }
        // The other one has gone.
        let gone_ms = now_ms + 3 * CALM_MS;
        for now_ms in (gone_ms..gone_ms + CALM_MS).step_by(97) {
            assert!(ways.change(ONE, now_ms).is_ok());
        }
        assert!(asks(&ways, ONE, gone_ms + CALM_MS));
    }

    #[test]
    fn a_directory_is_closed_when_nobody_believes_any_name() {
        let ways = Ways::default();
        assert!(asks(&ways, ONE, 1_000));
        let _change = ways.change(ONE, 1_001).unwrap();
        let mut now_ms = 1_001;
        while ways.close(now_ms).is_err() {
            assert!(!asks(&ways, ONE, now_ms));
            now_ms += 5;
        }
        assert!((1_000 + WAY_HELD_MS..1_005 + WAY_HELD_MS).contains(&now_ms));
    }
}
