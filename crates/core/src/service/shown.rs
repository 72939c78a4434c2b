//! The capabilities that were shown on a connection.

use crate::auth::Capability;
use crate::config::CAPABILITIES_PER_CONNECTION_MAX;
use crate::types::Ino;
use std::collections::HashMap;

/// Knows at least those of the last [`CAPABILITIES_PER_CONNECTION_MAX`] inodes, and of at most twice as many: clients
/// believe the former. (To look for the one longest unused took 20 us of each file that was new here.)
#[derive(Default)]
pub(super) struct Shown {
    newer: HashMap<Ino, Capability>,
    older: HashMap<Ino, Capability>,
}

impl Shown {
    pub(super) fn keep(&mut self, capability: Capability) {
        let is_full = self.newer.len() >= CAPABILITIES_PER_CONNECTION_MAX;
        if is_full && !self.newer.contains_key(&capability.ino) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(capability.ino, capability);
    }

    /// The one that was shown last for an inode.
    pub(super) fn of(&self, ino: Ino) -> Option<&Capability> {
        self.newer.get(&ino).or_else(|| self.older.get(&ino))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{CapabilityKey, Rights};
    use crate::types::WallTime;

    #[test]
    fn the_last_ones_are_known_as_they_were_shown_last() {
        const MAX: u64 = CAPABILITIES_PER_CONNECTION_MAX as u64;
        let key = CapabilityKey::from_bytes([1; 32]);
        let mut shown = Shown::default();
        let show = |shown: &mut Shown, ino: u64, generation: u32| {
            shown.keep(key.capability(Ino(ino), Rights::STAT, generation, 1, WallTime(9)));
        };
        for ino in 0..5 * MAX / 2 {
            show(&mut shown, ino, 1);
            let oldest = ino.saturating_sub(MAX - 1);
            assert!(shown.of(Ino(oldest)).is_some() && shown.of(Ino(ino)).is_some(), "{ino}");
        }
        assert!(shown.of(Ino(0)).is_none(), "memory is bounded");
        // One of the older ones, renewed.
        show(&mut shown, 2 * MAX - 1, 2);
        assert_eq!(shown.of(Ino(2 * MAX - 1)).map(|found| found.generation), Some(2));
        // As often as one may like.
        (0..3 * MAX).for_each(|_| show(&mut shown, 2 * MAX - 1, 3));
        assert!(shown.of(Ino(2 * MAX - 2)).is_some());
    }
}
