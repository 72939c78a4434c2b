//! A whole pool in one thread, from one seed: the shipped client session, file logic and services,
//! on a virtual network, clock and memory, with everything going wrong that can.
//!
//! Nothing of Weirpool is modelled again here but its drivers. Random histories of several clients
//! are compared with a plain model: a `Vec<u8>` for each file and a tree of names. [`run`] plays one
//! seed; the same seed plays the same history, to the last event.
#![warn(missing_docs)]

mod audit;
mod client;
mod crowd;
mod disk;
mod guarded;
mod kept;
#[cfg(test)]
mod locks;
mod model;
mod names;
mod net;
mod order;
mod planted;
mod rng;
mod run;
#[cfg(test)]
mod scenes;
mod server;
mod shared;
mod sim;
mod store;
mod workload;
mod world;

pub use crowd::{Crowd, CrowdReport};
pub use kept::Kept;
pub use planted::Bug;
pub use run::{Plan, Report, run};
pub use workload::Mix;
