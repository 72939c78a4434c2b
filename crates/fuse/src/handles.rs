//! Numbers for what the kernel has open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Things by number. The kernel's own limit on open files bounds it.
pub(crate) struct Handles<T> {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Handles<T> {
    pub(crate) fn new() -> Handles<T> {
        Handles { next: AtomicU64::new(1), open: RwLock::default() }
    }

    pub(crate) fn insert(&self, thing: T) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(number, Arc::new(thing));
        number
    }

    pub(crate) fn find(&self, number: u64) -> Option<Arc<T>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Does something with each.
    pub(crate) fn each(&self, work: impl Fn(&T)) {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().for_each(|thing| work(thing));
    }

    /// Whether one of them is so.
    pub(crate) fn any(&self, so: impl Fn(&T) -> bool) -> bool {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().any(|thing| so(thing))
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }

    /// Takes out all that is left.
    pub(crate) fn drain(&self) -> Vec<Arc<T>> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.drain().map(|(_, thing)| thing).collect()
    }
}
