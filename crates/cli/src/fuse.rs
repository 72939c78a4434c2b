//! Serving a mount, and what was done through it.

use crate::failure::{Failure, Outcome};
use crate::pool::Access;
use crate::run::job::FileUse;
use std::os::fd::OwnedFd;

pub(crate) struct Session;

pub(crate) fn serve(_access: &Access, _device: OwnedFd, _cache: bool) -> Outcome<Session> {
    Err(Failure::say("serve mount: not in this build"))
}

impl Session {
    pub(crate) fn statistics(&self) -> Vec<FileUse> {
        Vec::new()
    }
    pub(crate) fn is_over(&self) -> bool {
        true
    }
}
