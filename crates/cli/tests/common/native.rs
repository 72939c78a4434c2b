//! A pool by its native API.

use super::Place;
use weir_client::{ConnectOptions, Pool, PoolAddress};
use weir_core::types::Credentials;

/// Connects to the pool of the name `k`.
pub(crate) fn connect(place: &Place) -> Pool {
    let directory = place.home().join("pools/k");
    let address = PoolAddress::load(&directory).expect("pool.json");
    Pool::connect(&address, &ConnectOptions::load(&directory).expect("options")).expect("connects")
}

/// Who runs the test.
pub(crate) fn me() -> Credentials {
    Credentials {
        uid: nix::unistd::Uid::effective().as_raw(),
        gid: nix::unistd::Gid::effective().as_raw(),
        groups: Vec::new(),
    }
}
