//! The native client: a pool as a library.
//!
//! ```no_run
//! # fn main() -> weir_core::error::Result<()> {
//! use weir_client::{ConnectOptions, Pool, PoolAddress};
//! use weir_core::types::{Credentials, Ino};
//! use weir_core::wire::meta::{LayoutWish, OpenMode, Place};
//!
//! let address = PoolAddress::load(std::path::Path::new("/home/me/.weir/pools/mine"))?;
//! let pool = Pool::connect(&address, &ConnectOptions::default())?;
//! let me = Credentials { uid: 1000, gid: 1000, groups: vec![] };
//! pool.run(async {
//!     let place = Place::new(Ino::ROOT, "result");
//!     let open = OpenMode::READ_WRITE;
//!     let (file, _, _) =
//!         pool.fs().create(&me, place, 0o644, false, open, LayoutWish::default()).await?;
//!     file.write_at(b"42", 0).await?;
//!     file.close().await
//! })
//! # }
//! ```
#![warn(missing_docs)]

mod exit;
pub mod lending;
pub mod mounts;
mod net;
mod pool;

pub use net::{Net, bad_memory};
pub use pool::{
    ConnectOptions, FormOptions, Formed, Pool, PoolAddress, STRIPE_SIZE_DEFAULT, form, form_again,
    rejoin,
};
pub use weir_net::Transport;
pub use weir_net::reach;
pub use weir_net::shm::check as check_shared_memory;
