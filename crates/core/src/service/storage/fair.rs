//! Writers that are ahead of their disk, let on in turns.
//!
//! Their data is stored, only the answer waits. As the disk takes bytes, as many bytes of answers go
//! out, always to the client that has had least: each of the clients that wait gets the same share of
//! the disk, however many requests each has under way.
//!
//! A disk takes bytes in bursts: now and then nobody needs to wait for a moment, and whoever is quick
//! gets ahead, or a client that waits for its last answer misses what the others share out meanwhile.
//! So all that clients write is counted, and made up for later, up to [`LAG_BYTES`]; and whoever is
//! ahead of others begins to wait while there is still room for them ([`Turns::lead`]).

use crate::types::ClientId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Waker;

/// What a client may have had less than another, to be made up for: bytes. Who writes less than its
/// share never waits; who comes back after a while must not keep the others waiting for long.
const LAG_BYTES: u64 = 32 << 20;
/// The largest lead that counts: bytes.
pub(super) const LEAD_BYTES_MAX: u64 = 8 << 20;
/// Clients remembered that do not wait.
const REMEMBERED_MAX: usize = 1024;

/// Answers that wait.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By client, each in the order of its writes.
    waiting: BTreeMap<ClientId, VecDeque<u64>>,
    /// Clients that wait, the one that has had least in front.
    order: BTreeSet<(u64, ClientId)>,
    /// What clients have had: bytes, which only differences count of; and the same in its order.
    had: BTreeMap<ClientId, u64>,
    ranks: BTreeSet<(u64, ClientId)>,
    /// What the one that has had most has had: bytes.
    most: u64,
    answers: BTreeMap<u64, Answer>,
    next: u64,
    /// Bytes that may pass.
    credit: u64,
}

#[derive(Debug)]
struct Answer {
    client: ClientId,
    bytes: u64,
    waker: Option<Waker>,
}

impl Turns {
    /// A client's write needs no turn, or has had it.
    pub(super) fn count(&mut self, client: ClientId, bytes: u64) {
        let had = self.had(client);
        let waits = self.order.remove(&(had, client));
        let sum = had + bytes;
        self.most = self.most.max(sum);
        if self.had.len() >= REMEMBERED_MAX && !self.had.contains_key(&client) {
            let (waiting, least) = (&self.waiting, self.most.saturating_sub(LAG_BYTES));
            self.had.retain(|client, had| *had > least || waiting.contains_key(client));
            if self.had.len() >= REMEMBERED_MAX {
                self.had.retain(|client, _| waiting.contains_key(client));
            }
            self.ranks = self.had.iter().map(|(&client, &had)| (had, client)).collect();
        }
        self.remember(client, sum);
        if waits {
            self.order.insert((sum, client));
        }
    }

    /// What a client has had more than the one of those at work that has had least: bytes.
    pub(super) fn lead(&self, client: ClientId) -> u64 {
        let had = self.had(client);
        let floor = self.most.saturating_sub(LAG_BYTES);
        let least = self.ranks.range((floor + 1, ClientId(0))..).next();
        had.saturating_sub(least.map_or(had, |&(least, _)| least))
    }

    fn remember(&mut self, client: ClientId, had: u64) {
        if let Some(before) = self.had.insert(client, had) {
            self.ranks.remove(&(before, client));
        }
        self.ranks.insert((had, client));
    }

    fn had(&self, client: ClientId) -> u64 {
        let had = self.had.get(&client).copied().unwrap_or(0);
        match self.waiting.contains_key(&client) {
            true => had,
            // Only so much is made up for.
            false => had.max(self.most.saturating_sub(LAG_BYTES)),
        }
    }

    /// Another answer waits. Gives its number.
    pub(super) fn join(&mut self, client: ClientId, bytes: u64) -> u64 {
        self.next += 1;
        if !self.waiting.contains_key(&client) {
            let had = self.had(client);
            self.remember(client, had);
            self.order.insert((had, client));
        }
        self.waiting.entry(client).or_default().push_back(self.next);
        self.answers.insert(self.next, Answer { client, bytes, waker: None });
        self.next
    }

    /// Whether an answer may go; if not yet, the waker is called then.
    pub(super) fn passed(&mut self, number: u64, waker: &Waker) -> bool {
        match self.answers.get_mut(&number) {
            None => true,
            Some(answer) => {
                answer.waker = Some(waker.clone());
                false
            }
        }
    }

    /// Nobody waits for this answer any more.
    pub(super) fn leave(&mut self, number: u64) {
        let Some(answer) = self.answers.remove(&number) else { return };
        let client = answer.client;
        if let Some(queue) = self.waiting.get_mut(&client) {
            queue.retain(|&other| other != number);
            if queue.is_empty() {
                self.order.remove(&(self.had[&client], client));
                self.waiting.remove(&client);
            }
        }
    }

    /// Lets answers to so many bytes of writes go (all, for the largest number), and all of clients
    /// that are ahead of others by no more than there is `room`.
    pub(super) fn pass(&mut self, bytes: u64, room: Option<u64>, wakers: &mut Vec<Waker>) {
        self.credit = self.credit.saturating_add(bytes);
        while let Some(&(_, client)) = self.order.first() {
            let number = self.waiting[&client][0];
            let answer = &self.answers[&number];
            let bytes = answer.bytes;
            if room.is_none_or(|room| self.lead(client).min(LEAD_BYTES_MAX) > room) {
                if bytes > self.credit {
                    return;
                }
                self.credit -= bytes;
            }
            wakers.extend(answer.waker.clone());
            self.count(client, bytes);
            self.leave(number);
        }
        self.credit = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_client_with_many_requests_gets_no_more_than_one_with_few() {
        let mut turns = Turns::default();
        let counts: Vec<Arc<Count>> = (0..2).map(|_| Arc::default()).collect();
        for (client, requests) in [(0, 30), (1, 10)] {
            for _ in 0..requests {
                let number = turns.join(ClientId(client as u64), 100);
                assert!(!turns.passed(number, &Waker::from(counts[client].clone())));
            }
        }
        let mut wakers = Vec::new();
        for _ in 0..10 {
            turns.pass(100, None, &mut wakers);
        }
        wakers.drain(..).for_each(Waker::wake);
        assert_eq!(counts[0].0.load(Ordering::Relaxed), 5);
        assert_eq!(counts[1].0.load(Ordering::Relaxed), 5);
        turns.pass(u64::MAX, None, &mut wakers);
        assert_eq!((wakers.len(), turns.len()), (30, 0));
        assert!(turns.passed(1, Waker::noop()));
    }

    #[test]
    fn credit_adds_up_to_a_large_write_and_ends_with_the_queue() {
        let mut turns = Turns::default();
        let large = turns.join(ClientId(7), 1000);
        let mut wakers = Vec::new();
        (0..9).for_each(|_| turns.pass(100, None, &mut wakers));
        assert!(!turns.passed(large, Waker::noop()));
        turns.pass(100, None, &mut wakers);
        assert!(turns.passed(large, Waker::noop()));
        turns.pass(1 << 40, None, &mut wakers);
        let later = turns.join(ClientId(7), 1);
        assert!(!turns.passed(later, Waker::noop()));
        turns.leave(later);
        assert!(turns.is_empty());
    }

    /// Two of four clients were always back before the others when the disk took a burst of bytes, and
    /// got twice as much.
    #[test]
    fn who_missed_a_burst_gets_it_later() {
        let mut turns = Turns::default();
        let mut wakers = Vec::new();
        let mut sums = [0u64; 4];
        let mut waiting: Vec<(usize, u64)> = Vec::new();
        for round in 0..2000 {
            for client in 0..4 {
                // The last two come to every second burst only.
                let own = waiting.iter().filter(|(other, _)| *other == client).count();
                if own == 0 && (client < 2 || round % 2 == 0) {
                    let id = ClientId(client as u64);
                    (0..4).for_each(|_| waiting.push((client, turns.join(id, 100))));
                }
            }
            turns.pass(800, None, &mut wakers);
            waiting.retain(|&(client, number)| {
                let passed = turns.passed(number, Waker::noop());
                sums[client] += if passed { 100 } else { 0 };
                !passed
            });
        }
        let (least, most) = (sums.iter().min().unwrap(), sums.iter().max().unwrap());
        assert!(least * 20 > most * 19, "{sums:?}");
    }

    #[test]
    fn who_was_away_makes_up_for_little_and_many_are_forgotten() {
        let mut turns = Turns::default();
        turns.count(ClientId(1), 1 << 40);
        let (new, old) = (turns.join(ClientId(2), 1 << 20), turns.join(ClientId(1), 1 << 20));
        let mut wakers = Vec::new();
        turns.pass(1 << 20, None, &mut wakers);
        assert!(turns.passed(new, Waker::noop()) && !turns.passed(old, Waker::noop()));
        for client in 0..40 {
            turns.join(ClientId(2), 1 << 20);
            turns.pass(1 << 20, None, &mut wakers);
            if turns.passed(old, Waker::noop()) {
                assert!(client <= 32, "after {client}");
                break;
            }
        }
        assert!(turns.passed(old, Waker::noop()));
        (0..5000).for_each(|client| turns.count(ClientId(client), 1 << 20));
        assert!(turns.had.len() <= REMEMBERED_MAX, "{}", turns.had.len());
    }

    /// A disk that takes bytes in bursts let everybody on at once, and the quickest filled what was free.
    #[test]
    fn who_is_ahead_waits_while_there_is_room_for_others() {
        let mut turns = Turns::default();
        let mut wakers = Vec::new();
        turns.count(ClientId(1), 20 << 20);
        turns.count(ClientId(2), 16 << 20);
        assert_eq!((turns.lead(ClientId(1)), turns.lead(ClientId(2))), (4 << 20, 0));
        let (ahead, behind) = (turns.join(ClientId(1), 1 << 20), turns.join(ClientId(2), 1 << 20));
        turns.pass(0, Some(2 << 20), &mut wakers);
        assert!(turns.passed(behind, Waker::noop()) && !turns.passed(ahead, Waker::noop()));
        // What the disk takes lets it on all the same, and so does room enough.
        turns.pass(1 << 20, Some(0), &mut wakers);
        assert!(turns.passed(ahead, Waker::noop()));
        let far = turns.join(ClientId(1), 1 << 20);
        turns.count(ClientId(1), 1 << 30);
        turns.pass(0, Some(LEAD_BYTES_MAX), &mut wakers);
        assert!(turns.passed(far, Waker::noop()));
    }
}
