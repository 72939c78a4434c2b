//! Serving a mount, and what was done through it.

use crate::failure::{Outcome, status};
use crate::pool::Access;
use std::os::fd::OwnedFd;
use weir_core::auth::Role;
use weir_fuse::{MountOptions, Session, Statistics};

/// Serves the mount whose device this is, from a pool.
pub(crate) fn serve(access: &Access, device: OwnedFd, cache: bool) -> Outcome<Session> {
    let pool = access.connect(Role::Mount)?;
    let options = MountOptions { caching: cache, ..MountOptions::default() };
    weir_fuse::serve(pool, device, &options)
        .map_err(|error| crate::failure::Failure::from(error).with_status(status::UNAVAILABLE))
}

/// What was done through it so far.
pub(crate) fn statistics(session: &Session) -> Statistics {
    session.statistics()
}
