//! Directories that were moved at another mount. The kernel has them at their old places, and moves them
//! itself once it finds them elsewhere; but not while it holds the locks of a renaming, which would then
//! fail (ESTALE). So it is made to forget the old place before it is told of the new one.

use crate::device::Device;
use crate::names::Place;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Displaced {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the kernel forget a place.
    pub(crate) fn forget(self: &Arc<Self>, device: &Arc<Device>, place: Place) {
        let mut count = self.count();
        if *count >= PLACES_MAX {
            return;
        }
        let (this, device) = (self.clone(), device.clone());
        // By a thread of its own: it may have to wait for one that waits for an answer of ours.
        let forget = move || {
            // Fails where it is forgotten already.
            let _ = device.invalidate_name(place.0, &place.1);
            *this.count() -= 1;
            this.fewer.notify_all();
        };
        if std::thread::Builder::new().name("weir-displaced".to_owned()).spawn(forget).is_ok() {
            *count += 1;
            self.wait(count, FORGET_MAX);
        }
    }

    /// Before a lookup: waits, for a moment, until the kernel has forgotten what it is to forget.
    pub(crate) fn settle(&self) {
        self.wait(self.count(), SETTLE_MAX);
    }

    fn wait(&self, count: MutexGuard<'_, usize>, at_most: Duration) {
        drop(self.fewer.wait_timeout_while(count, at_most, |count| *count > 0));
    }
}
