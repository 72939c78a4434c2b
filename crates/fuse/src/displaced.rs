//! Directories that were moved at another mount. The kernel has them at their old places, and moves them
//! itself once it finds them elsewhere; but not while it holds the locks of a renaming, which would then
//! fail (ESTALE). So it is made to forget the old place before it is told of the new one.

use crate::device::Device;
use crate::names::Place;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long the answer waits that tells the new place. Whoever waits for it may hold the lock of the old
/// place's directory: he fails then, lets go of it, and the kernel walks the path for him once more.
const FORGET_MAX: Duration = Duration::from_millis(10);
/// How long lookups wait then.
const SETTLE_MAX: Duration = Duration::from_millis(250);
/// Places that are being forgotten at a time; of others the kernel has to find out by itself.
const PLACES_MAX: usize = 16;

/// The places that the kernel is being made to forget.
#[derive(Debug, Default)]
pub(crate) struct Displaced {
    places: AtomicUsize,
    turn: Mutex<()>,
    fewer: Condvar,
}

impl Displaced {
    /// Has the kernel forget a place.
    pub(crate) fn forget(self: &Arc<Self>, device: &Arc<Device>, place: Place) {
        if self.places.fetch_add(1, Ordering::AcqRel) >= PLACES_MAX {
            self.places.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (this, device) = (self.clone(), device.clone());
        // By a thread of its own: it may have to wait for one that waits for an answer of ours.
        let forget = move || {
            // Fails where it is forgotten already.
            let _ = device.invalidate_name(place.0, &place.1);
            let _turn = this.turn.lock().unwrap_or_else(PoisonError::into_inner);
            this.places.fetch_sub(1, Ordering::AcqRel);
            this.fewer.notify_all();
        };
        if std::thread::Builder::new().name("weir-displaced".to_owned()).spawn(forget).is_err() {
            self.places.fetch_sub(1, Ordering::AcqRel);
        }
        self.wait(FORGET_MAX);
    }

    /// Before a lookup: waits, for a moment, until the kernel has forgotten what it is to forget.
    pub(crate) fn settle(&self) {
        self.wait(SETTLE_MAX);
    }

    fn wait(&self, at_most: Duration) {
        let is_busy = |_: &mut ()| self.places.load(Ordering::Acquire) > 0;
        if is_busy(&mut ()) {
            let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.fewer.wait_timeout_while(turn, at_most, is_busy));
        }
    }
}
