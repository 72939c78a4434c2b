//! Very many clients at once: that nothing breaks under them, and how a pool of a few servers fares.

use crate::client::SimRpc;
use crate::net::Host;
use crate::planted::Planted;
use crate::rng::Rng;
use crate::run::{ask, bare_map, form, owner};
use crate::server::Equipment;
use crate::sim::{Ended, Sim};
use crate::workload::at;
use crate::world::{World, lock};
use std::sync::{Arc, Mutex};
use weir_core::config::Timing;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{Fs, FsOptions};
use weir_core::types::Credentials;
use weir_core::wire::meta::{LayoutWish, OpenMode};

/// Client processes on one host.
const CLIENTS_PER_HOST: usize = 50;
/// A host's link, 10 Gb/s, and a server's, 100 Gb/s: bytes in a millisecond.
const HOST_BYTES_PER_MS: u64 = 1_250_000;
const SERVER_BYTES_PER_MS: u64 = 12_500_000;
/// What taking a segment in costs a server: microseconds. An assumption, not a measurement.
const TAKE_US: u64 = 3;
/// What each client writes, and reads back: bytes.
const FILE_BYTES: usize = 16 * 1024;

/// A crowd of clients.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// Decides everything.
    pub seed: u64,
    /// Clients, each a process with sessions of its own.
    pub clients: usize,
    /// Servers.
    pub servers: usize,
}

/// How it fared.
#[derive(Clone, Debug, Default)]
pub struct CrowdReport {
    /// What went wrong.
    pub failure: Option<String>,
    /// Simulated time from the first request to the last answer: microseconds.
    pub virtual_us: u64,
    /// Operations carried out.
    pub ops: u64,
    /// Bytes of files written and read.
    pub bytes: u64,
    /// Events of the simulation.
    pub events: u64,
}

impl Crowd {
    /// All clients start at once; each makes a file, writes it, reads it back and removes it.
    pub fn run(self) -> CrowdReport {
        let mut rng = Rng::new(self.seed);
        let timing = Timing::default();
        let mut world = World::new(rng.fork(), timing.clone(), Planted::default(), false);
        let hosts = self.clients.div_ceil(CLIENTS_PER_HOST);
        let server_host = || {
            let mut host = Host::new(SERVER_BYTES_PER_MS, 0);
            host.take_us = TAKE_US;
            host
        };
        (0..self.servers).for_each(|_| world.hosts.push(server_host()));
        (0..=hosts).for_each(|_| world.hosts.push(Host::new(HOST_BYTES_PER_MS, 0)));
        let memory = (2 * self.clients * 64 * 1024 / self.servers).max(16 << 20);
        let equipment = Equipment { memory, metadata_memory: 256 << 20, ..Equipment::default() };
        (0..self.servers).for_each(|server| world.start_server(server, equipment.clone()));
        let mut sim = Sim::new(world);
        let options = FsOptions { timing, transfer_size: 1 << 20 };
        let maker = lock(&sim.world).start_client(self.servers + hosts, 1);
        let fs = Fs::new(sim.rpc(maker), bare_map(self.servers), options.clone());
        let key: [u8; 32] = rng.bytes();
        let map = match ask(&mut sim, maker, async move { form(&fs, key, 65536).await }) {
            Some(Ok(map)) => map,
            other => {
                let failure = Some(format!("pool not made: {other:?}"));
                return CrowdReport { failure, ..CrowdReport::default() };
            }
        };
        let start_us = lock(&sim.world).now_us;
        let ops = Arc::new(Mutex::new(0));
        for number in 0..self.clients {
            let host = self.servers + number / CLIENTS_PER_HOST;
            let client = lock(&sim.world).start_client(host, 1);
            let fs = Fs::new(sim.rpc(client), map.clone(), options.clone());
            let (world, ops) = (sim.world.clone(), ops.clone());
            sim.spawn(client, true, async move {
                match visit(&fs, &owner(), number).await {
                    Ok(count) => *lock(&ops) += count,
                    Err(error) => {
                        lock(&world).fail(|| format!("client {number}: {:?}: {error}", error.code))
                    }
                }
            });
        }
        let ended = sim.run(start_us + 600_000_000);
        let mut world = lock(&sim.world);
        if ended == Ended::TimeUp {
            world.fail(|| "clients hang".to_owned());
        }
        CrowdReport {
            failure: world.failure.take(),
            virtual_us: world.now_us - start_us,
            ops: *lock(&ops),
            bytes: 2 * (self.clients * FILE_BYTES) as u64,
            events: world.events(),
        }
    }
}

/// What one client does; gives the number of its operations.
async fn visit(fs: &Fs<SimRpc>, who: &Credentials, number: usize) -> Result<u64> {
    let name = || at(format!("file-{number}"));
    let wish = LayoutWish { stripe_size: Some(8192), stripe_count: Some(2) };
    let (file, ..) = fs.create(who, name(), 0o644, true, OpenMode::READ_WRITE, wish).await?;
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|i| (i * 31 + number * 7) as u8).collect();
    file.write_at(&bytes, 0).await?;
    let mut back = vec![0; FILE_BYTES];
    let found = file.read_at(&mut back, 0).await?;
    file.close().await?;
    let size = fs.lookup(who, name(), false).await?.size;
    if back != bytes || found != FILE_BYTES || size != FILE_BYTES as u64 {
        return Err(Error::because(Code::Internal, "what was read is not what was written"));
    }
    fs.unlink(who, name()).await?;
    fs.collect_garbage().await?;
    Ok(6)
}
