//! Serving a mount, and what was done through it.

use crate::failure::{Failure, Outcome, status};
use crate::namespace::Fresh;
use crate::pool::Access;
use std::path::Path;
use weir_core::auth::Role;
use weir_fuse::{MountOptions, Session, Statistics};

/// Serves the fresh mount at `directory` from the pool that has its own directory there.
pub(crate) fn serve(
    access: &Access,
    pool_directory: &Path,
    directory: &Path,
    fresh: Fresh,
    options: MountOptions,
) -> Outcome<Session> {
    let pool = access.connect(Role::Mount)?;
    let pool_directory = Some(pool_directory.to_owned());
    let options = MountOptions { pool_directory, allow_other: fresh.others, ..options };
    let session = weir_fuse::serve(pool, fresh.device, &options)
        .map_err(|error| Failure::from(error).with_status(status::UNAVAILABLE))?;
    // Until somebody asks, the kernel thinks that the directory is user 0's. In a user namespace
    // without such a user it lets nobody write there.
    directory.metadata().map_err(|error| {
        Failure::system("look at mount", directory.display(), error)
            .with_status(status::UNAVAILABLE)
    })?;
    Ok(session)
}

/// What was done through it so far.
pub(crate) fn statistics(session: &Session) -> Statistics {
    session.statistics()
}
