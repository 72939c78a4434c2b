//! Descriptors in somebody else's process.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

/// Takes a descriptor that was just made and gives it back, perhaps under another number.
pub type Mover = fn(OwnedFd) -> OwnedFd;

static MOVER: OnceLock<Mover> = OnceLock::new();

/// From now on descriptors of connections and pollers are shown to `mover` first. A library that
/// lives unseen in a program moves them out of the way of its small numbers, and remembers them.
/// The first call counts.
pub fn set_mover(mover: Mover) {
    let _ = MOVER.set(mover);
}

/// Shows a fresh descriptor to the mover, if there is one.
pub(crate) fn moved(descriptor: OwnedFd) -> OwnedFd {
    match MOVER.get() {
        Some(mover) => mover(descriptor),
        None => descriptor,
    }
}
