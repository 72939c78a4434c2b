//! Writers that are ahead of their disk, let on in turns.
//!
//! Their data is stored, only the answer waits. As the disk takes bytes, as many bytes of answers go
//! out, one client after the other: each of the clients that wait gets the same share of the disk,
//! however many requests each has under way.

use crate::types::ClientId;
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

/// Answers that wait.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By client, each in the order of its writes.
    waiting: BTreeMap<ClientId, VecDeque<u64>>,
    /// Clients that wait, the next one in front, and bytes that it has let pass of its turn.
    order: VecDeque<ClientId>,
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
    /// Another answer waits. Gives its number.
    pub(super) fn join(&mut self, client: ClientId, bytes: u64) -> u64 {
        self.next += 1;
        let queue = self.waiting.entry(client).or_default();
        if queue.is_empty() {
            self.order.push_back(client);
        }
        queue.push_back(self.next);
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
        if let Some(queue) = self.waiting.get_mut(&answer.client) {
            queue.retain(|&other| other != number);
            if queue.is_empty() {
                self.waiting.remove(&answer.client);
                self.order.retain(|&client| client != answer.client);
            }
        }
    }

    /// Lets answers to so many bytes of writes go (all, for the largest number).
    pub(super) fn pass(&mut self, bytes: u64, wakers: &mut Vec<Waker>) {
        self.credit = self.credit.saturating_add(bytes);
        while let Some(&client) = self.order.front() {
            let number = self.waiting[&client][0];
            let answer = &self.answers[&number];
            if answer.bytes > self.credit {
                return;
            }
            self.credit -= answer.bytes;
            wakers.extend(answer.waker.clone());
            self.leave(number);
            // `leave` has taken the client out of the order if this was its last.
            if self.order.front() == Some(&client) {
                self.order.rotate_left(1);
            }
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
            turns.pass(100, &mut wakers);
        }
        wakers.drain(..).for_each(Waker::wake);
        assert_eq!(counts[0].0.load(Ordering::Relaxed), 5);
        assert_eq!(counts[1].0.load(Ordering::Relaxed), 5);
        turns.pass(u64::MAX, &mut wakers);
        assert_eq!((wakers.len(), turns.len()), (30, 0));
        assert!(turns.passed(1, Waker::noop()));
    }

    #[test]
    fn credit_adds_up_to_a_large_write_and_ends_with_the_queue() {
        let mut turns = Turns::default();
        let large = turns.join(ClientId(7), 1000);
        let mut wakers = Vec::new();
        (0..9).for_each(|_| turns.pass(100, &mut wakers));
        assert!(!turns.passed(large, Waker::noop()));
        turns.pass(100, &mut wakers);
        assert!(turns.passed(large, Waker::noop()));
        turns.pass(1 << 40, &mut wakers);
        let later = turns.join(ClientId(7), 1);
        assert!(!turns.passed(later, Waker::noop()));
        turns.leave(later);
        assert!(turns.is_empty());
    }
}
