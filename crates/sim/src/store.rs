//! The metadata store of scratch pools, answering late: what is atomic in memory by accident must
//! be so by the service's transactions.

use crate::rng::Rng;
use crate::world::{Sleepers, lock};
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use weir_core::service::meta::store::{Answer, Batch, Item, Outcome, Usage, Versioned};
use weir_core::service::meta::{MemoryStore, MetaStore};

pub(crate) struct SlowStore {
    inner: MemoryStore,
    /// Longest pause before an operation: microseconds; 0: none.
    pause_us_max: u64,
    rng: Mutex<Rng>,
    sleepers: Sleepers,
}

impl SlowStore {
    pub(crate) fn new(limit: u64, pause_us_max: u64, rng: Rng, sleepers: Sleepers) -> SlowStore {
        SlowStore { inner: MemoryStore::new(limit), pause_us_max, rng: Mutex::new(rng), sleepers }
    }

    /// Most operations are quick.
    fn pause(&self) -> Option<Pause<'_>> {
        let mut rng = lock(&self.rng);
        (self.pause_us_max > 0 && rng.chance(30)).then(|| Pause {
            sleepers: &self.sleepers,
            us: rng.between(1, self.pause_us_max),
            slept: false,
        })
    }
}

struct Pause<'a> {
    sleepers: &'a Sleepers,
    us: u64,
    slept: bool,
}

impl Future for Pause<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.slept, true) {
            return Poll::Ready(());
        }
        lock(self.sleepers).push((self.us, context.waker().clone()));
        Poll::Pending
    }
}

impl MetaStore for SlowStore {
    fn get<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Option<Versioned>> {
        match self.pause() {
            None => self.inner.get(key),
            Some(pause) => Answer::Later(Box::pin(async move {
                pause.await;
                self.inner.get(key).await
            })),
        }
    }

    fn range<'a>(&'a self, start: &'a [u8], end: &'a [u8], limit: usize) -> Answer<'a, Vec<Item>> {
        match self.pause() {
            None => self.inner.range(start, end, limit),
            Some(pause) => Answer::Later(Box::pin(async move {
                pause.await;
                self.inner.range(start, end, limit).await
            })),
        }
    }

    fn commit(&self, batch: Batch) -> Answer<'_, Outcome> {
        match self.pause() {
            None => self.inner.commit(batch),
            Some(pause) => Answer::Later(Box::pin(async move {
                pause.await;
                self.inner.commit(batch).await
            })),
        }
    }

    fn moment(&self) -> Option<u64> {
        self.inner.moment()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}
