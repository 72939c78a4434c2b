//! One run: a pool is made, used while things go wrong, audited, swept, and must be empty then.

use crate::client::SimRpc;
use crate::disk::{End, Faults, Speed};
use crate::names::Private;
use crate::net::Host;
use crate::planted::{Bug, Planted};
use crate::rng::Rng;
use crate::server::Equipment;
use crate::shared::CELLS;
use crate::sim::{Ended, Sim};
use crate::workload::{Mix, Model, Worker, at};
use crate::world::{Event, Fault, World, lock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use weir_core::config::Timing;
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{Fs, FsOptions, Rpc};
use weir_core::types::{Credentials, ServerIndex, TargetId};
use weir_core::wire::control::{
    ControlReply, ControlRequest, Formation, PoolMap, ServerEntry, TargetEntry,
};

/// What to run. The rest is drawn from the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// Clients; 0: drawn from the seed.
    pub clients: usize,
    /// Which faults there are; `None`: drawn from the seed.
    pub mix: Option<Mix>,
    /// A bug to be found.
    pub bug: Option<Bug>,
    /// Whether to keep the story.
    pub tells: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was not as it must be.
    pub failure: Option<String>,
    /// What happened, if that was asked for.
    pub story: Vec<String>,
    /// Simulated time: microseconds.
    pub virtual_us: u64,
    /// Operations of clients.
    pub ops: u64,
    /// Operations that ended in an error.
    pub errors: u64,
    /// Events of the simulation.
    pub events: u64,
    /// Bytes that crossed the network.
    pub bytes: u64,
}

/// Times short enough that leases and capabilities run out within a run.
fn timing() -> Timing {
    Timing {
        heartbeat_ms: 300,
        silence_ms_max: 1_500,
        reconnect_ms: 20,
        lease_ms: 5_000,
        renew_ms: 1_000,
        capability_ms: 20_000,
        busy_retry_ms: 2,
        busy_ms_max: 2_000,
        spin_us: 0,
    }
}

/// An operation makes several requests; each fails after silence, some are tried twice.
fn limit_us(mix: Mix, timing: &Timing) -> u64 {
    let requests = 6 * timing.silence_ms_max + timing.busy_ms_max;
    let stopped = if mix == Mix::Rough || mix == Mix::Wreck { 2 * timing.lease_ms } else { 0 };
    (requests + stopped) * 1000
}

/// Runs a seed.
pub fn run(plan: &Plan) -> Report {
    let sim = Arc::new(Mutex::new(None));
    let inside = sim.clone();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut history = History::new(plan);
        *lock(&inside) = Some((history.sim.world.clone(), history.model.clone()));
        history.play();
    }));
    let mut report = Report::default();
    if let Some((world, model)) = lock(&sim).take() {
        let mut world = lock(&world);
        if let Err(panic) = result {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            world.fail(|| format!("panic: {}", text.unwrap_or_default()));
        }
        let model = lock(&model);
        report.failure = world.failure.take();
        report.story = world.take_story();
        report.virtual_us = world.now_us;
        report.events = world.events();
        report.bytes = world.bytes_moved;
        report.ops = model.ops;
        report.errors = model.errors;
    } else if result.is_err() {
        report.failure = Some("panic before the pool was made".to_owned());
    }
    report
}

/// A pool in its world.
pub(crate) struct Pool {
    pub(crate) map: PoolMap,
    key: [u8; 32],
}

/// Makes a pool of servers that have just been started, as `weir_client::form` does.
pub(crate) async fn form(fs: &Fs<SimRpc>, key: [u8; 32], stripe_size: u64) -> Result<PoolMap> {
    let mut servers = Vec::new();
    let mut next = 0;
    for index in 0..fs.map().servers.len() {
        let server = ServerIndex(index as u16);
        let reply = fs.control(server, ControlRequest::Describe).await?;
        let ControlReply::Description(description) = reply else {
            return Err(Error::because(Code::Protocol, "no description"));
        };
        let targets = description.targets.into_iter().map(|(incarnation, memory)| {
            next += 1;
            TargetEntry { id: TargetId(next - 1), incarnation, memory }
        });
        let address = format!("server {index}");
        servers.push(ServerEntry { address, targets: targets.collect() });
    }
    let map = PoolMap { epoch: 1, stripe_size, servers, ..fs.map().clone() };
    for index in 0..map.servers.len() {
        join(fs, &map, key, index).await?;
    }
    Ok(map)
}

pub(crate) async fn join(
    fs: &Fs<SimRpc>,
    map: &PoolMap,
    key: [u8; 32],
    index: usize,
) -> Result<()> {
    let connection = fs
        .rpc()
        .connection_key(index)
        .ok_or_else(|| Error::because(Code::ServerLost, "no connection"))?;
    let server = ServerIndex(index as u16);
    let formation =
        Formation { map: map.clone(), index: server, capability_key: connection.seal(&key) };
    fs.control(server, ControlRequest::Form(Box::new(formation))).await.map(drop)
}

pub(crate) fn bare_map(servers: usize) -> PoolMap {
    PoolMap {
        epoch: 0,
        pool: [7; 16],
        name: "sim".to_owned(),
        owner_uid: 1000,
        owner_gid: 1000,
        servers: (0..servers)
            .map(|index| ServerEntry { address: format!("server {index}"), targets: Vec::new() })
            .collect(),
        metadata: vec![ServerIndex(0)],
        stripe_size: 65536,
        stripe_count: 0,
    }
}

pub(crate) fn owner() -> Credentials {
    Credentials { uid: 1000, gid: 1000, groups: Vec::new() }
}

/// Keeps a client's lease and frees what was unlinked, as `weir-client` does.
pub(crate) async fn housekeeping(fs: Fs<SimRpc>, renew_ms: u64) {
    let mut since_ms = 0;
    loop {
        fs.rpc().sleep(100).await;
        since_ms += 100;
        // Failures here are told by the requests that matter.
        if since_ms >= renew_ms {
            since_ms = 0;
            let _ = fs.keep_alive().await;
        } else if fs.has_garbage() {
            let _ = fs.collect_garbage().await;
        }
    }
}

/// Runs one task of a client to its end, and gives what it gave.
pub(crate) fn ask<T: Send + 'static>(
    sim: &mut Sim,
    client: usize,
    future: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let answer = Arc::new(Mutex::new(None));
    let inside = answer.clone();
    sim.spawn(client, true, async move {
        let value = future.await;
        *lock(&inside) = Some(value);
    });
    let until_us = lock(&sim.world).now_us + 300_000_000;
    sim.run(until_us);
    lock(&answer).take()
}

struct History {
    sim: Sim,
    model: Arc<Mutex<Model>>,
    pool: Option<Pool>,
    /// Clients of programs that borrow files, by place.
    beside: Vec<usize>,
    rng: Rng,
    mix: Mix,
    clients: usize,
    servers: usize,
    streams: usize,
    targets_per_server: usize,
    transfer_size: usize,
    rounds: u64,
    steps: u64,
}

impl History {
    fn new(plan: &Plan) -> History {
        let mut rng = Rng::new(plan.seed);
        let mix = plan.mix.unwrap_or(*rng.pick(Mix::ALL));
        let drawn = rng.between(2, 4) as usize;
        let clients = if plan.clients > 0 { plan.clients } else { drawn };
        let servers = rng.between(1, 4) as usize;
        let servers = if mix == Mix::Wreck { servers.max(2) } else { servers };
        let streams = rng.between(1, 2) as usize;
        let targets_per_server = rng.between(1, 2) as usize;
        let transfer_size = *rng.pick(&[8192, 16384, 65536]);
        let clocks_agree = rng.chance(50);
        let timing = timing();
        let planted = Planted::new(plan.bug);
        let mut world = World::new(rng.fork(), timing, planted, plan.tells);
        world.delay_us = rng.between(20, 2000);
        world.jitter_us = rng.between(1, 3000);
        let mut equipment = Equipment {
            targets: targets_per_server,
            memory: *rng.pick(&[1 << 19, 1 << 20, 4 << 20, 4 << 20]),
            metadata_memory: 8 << 20,
            store_us: *rng.pick(&[0, 50, 2000]),
            ..Equipment::default()
        };
        // Of a sequence of their own: with disks or without, the rest of a seed is the same.
        let mut disks = Rng::new(plan.seed ^ 0xd15c);
        if disks.chance(40) {
            equipment.memory = *disks.pick(&[1 << 20, 2 << 20]);
            equipment.disk = Some(Speed {
                latency_us: *disks.pick(&[20, 200, 8_000]),
                bytes_per_ms: *disks.pick(&[2_000, 50_000, 2_000_000]),
            });
            if disks.chance(30) {
                let end = disks.below(300);
                equipment.faults = Some(Faults {
                    failing: *disks.pick(&[0, 5, 50]),
                    stalling: *disks.pick(&[0, 5]),
                    ends: *disks.pick(&[None, Some((end, End::ReadOnly)), Some((end, End::Gone))]),
                });
                world.disks_fail = true;
            }
        }
        // The last host is the auditor's.
        for _ in 0..servers + clients + 1 {
            let offset_ns = match clocks_agree {
                true => 0,
                false => rng.below(2_000_000_000) as i64 - 1_000_000_000,
            };
            let bytes_per_ms = *rng.pick(&[2_000, 20_000, 1_000_000]);
            world.hosts.push(Host::new(bytes_per_ms, offset_ns));
        }
        for server in 0..servers {
            world.start_server(server, equipment.clone());
        }
        let mut model = Model::default();
        model.places.resize_with(clients, Private::default);
        model.cells.resize(CELLS as usize, Vec::new());
        let rounds = rng.between(2, 3);
        let steps = rng.between(15, 40);
        History {
            sim: Sim::new(world),
            model: Arc::new(Mutex::new(model)),
            pool: None,
            beside: Vec::new(),
            rng,
            mix,
            clients,
            servers,
            streams,
            targets_per_server,
            transfer_size,
            rounds,
            steps,
        }
    }

    fn timing(&self) -> Timing {
        lock(&self.sim.world).timing.clone()
    }

    fn failed(&self) -> bool {
        lock(&self.sim.world).failure.is_some()
    }

    fn fail(&self, what: &str) {
        lock(&self.sim.world).fail(|| what.to_owned());
    }

    /// A client of the pool on the host of a place.
    fn worker(&mut self, place: usize, client: usize) -> Worker {
        let map = self.pool.as_ref().map_or_else(|| bare_map(self.servers), |p| p.map.clone());
        let options = FsOptions { timing: self.timing(), transfer_size: self.transfer_size };
        let beside = self.beside.get(place).copied().unwrap_or(client);
        Worker {
            fs: Fs::new(self.sim.rpc(client), map.clone(), options.clone()),
            beside: Fs::new(self.sim.rpc(beside), map, options),
            world: self.sim.world.clone(),
            model: self.model.clone(),
            who: owner(),
            place,
            mix: self.mix,
            limit_us: limit_us(self.mix, &self.timing()),
            targets_per_server: self.targets_per_server,
            rng: self.rng.fork(),
        }
    }

    fn start(&mut self, place: usize) -> usize {
        lock(&self.sim.world).start_client(self.servers + place, self.streams)
    }

    fn play(&mut self) {
        // A client that makes the pool.
        let maker = self.start(self.clients);
        let fs = self.worker(self.clients, maker).fs;
        let key: [u8; 32] = self.rng.bytes();
        match ask(&mut self.sim, maker, async move { form(&fs, key, 65536).await }) {
            Some(Ok(map)) => self.pool = Some(Pool { map, key }),
            other => return self.fail(&format!("pool not made: {other:?}")),
        }
        let renew_ms = self.timing().renew_ms;
        let auditor = self.worker(self.clients, maker);
        self.sim.spawn(maker, false, housekeeping(auditor.fs.clone(), renew_ms));
        let made = {
            let (fs, who, clients) = (auditor.fs.clone(), auditor.who.clone(), self.clients);
            ask(&mut self.sim, maker, async move {
                for place in 0..clients {
                    fs.make_directory(&who, at(format!("p{place}")), 0o755).await?;
                }
                fs.make_directory(&who, at("shared"), 0o755).await
            })
        };
        if !matches!(made, Some(Ok(_))) {
            return self.fail(&format!("directories not made: {made:?}"));
        }
        for place in 0..self.clients {
            let client = self.start(place);
            lock(&self.sim.world).places.push(client);
            let beside = self.start(place);
            self.beside.push(beside);
            let Worker { fs, beside: other, .. } = self.worker(place, client);
            self.sim.spawn(client, false, housekeeping(fs, renew_ms));
            self.sim.spawn(beside, false, housekeeping(other, renew_ms));
        }
        lock(&self.sim.world).places.extend(&self.beside);
        for _ in 0..self.rounds {
            if !self.round() || !self.audit(&auditor, maker) {
                return;
            }
        }
        self.sweep(&auditor, maker);
    }

    /// Clients work while things go wrong. False: there is no more to be done.
    fn round(&mut self) -> bool {
        for place in 0..self.clients {
            let client = lock(&self.sim.world).places[place];
            let worker = self.worker(place, client);
            self.sim.spawn(client, true, worker.work(self.steps));
        }
        self.plan_faults();
        let until_us = lock(&self.sim.world).now_us + 600_000_000;
        match self.sim.run(until_us) {
            Ended::Done => true,
            Ended::Failed => false,
            Ended::TimeUp => {
                self.fail("clients hang: ten minutes have passed");
                false
            }
        }
    }

    fn plan_faults(&mut self) {
        let silence_us = self.timing().silence_ms_max * 1000;
        let lease_us = self.timing().lease_ms * 1000;
        let rng = &mut self.rng;
        let mut world = lock(&self.sim.world);
        let now_us = world.now_us;
        // About as long as the clients will be at it.
        let horizon_us = self.steps * 40_000;
        let mut plan = |at_us: u64, fault| world.at(now_us + at_us, Event::Fault(fault));
        if self.mix == Mix::Calm {
            return;
        }
        for _ in 0..rng.below(40) {
            plan(rng.below(horizon_us), Fault::Drop);
        }
        let rough = self.mix == Mix::Rough || self.mix == Mix::Wreck;
        for _ in 0..rng.below(4) {
            // Short of what anybody may notice, or far beyond.
            let long = rough && rng.chance(60);
            let us = if long {
                rng.between(silence_us / 2, 3 * silence_us)
            } else {
                rng.below(silence_us / 8)
            };
            let begin_us = rng.below(horizon_us);
            let server = rng.below(self.servers as u64) as usize;
            match rng.below(3) {
                0 => {
                    let all = self.servers + self.clients;
                    let islanders = (0..all).filter(|_| rng.chance(30)).collect();
                    plan(begin_us, Fault::Partition { islanders });
                    plan(begin_us + us, Fault::Heal);
                }
                1 => {
                    plan(begin_us, Fault::Stop { server });
                    plan(begin_us + us, Fault::Continue { server });
                }
                _ => {
                    let host = rng.below((self.servers + self.clients) as u64) as usize;
                    plan(begin_us, Fault::Slow { host, us: rng.below(20_000) });
                    plan(begin_us + 4 * us, Fault::Slow { host, us: 0 });
                }
            }
        }
        if rough {
            let place = rng.below(self.clients as u64) as usize;
            if rng.chance(50) {
                let power = rng.chance(50);
                plan(rng.below(horizon_us), Fault::CrashClient { place, power });
            }
            let place = rng.below(self.clients as u64) as usize;
            if rng.chance(40) {
                let begin_us = rng.below(horizon_us);
                plan(begin_us, Fault::StopClient { place });
                let us = rng.below(lease_us * 3 / 2);
                plan(begin_us + us, Fault::ContinueClient { place });
            }
        }
        if self.mix == Mix::Wreck && rng.chance(70) {
            // The metadata's server now and then: then the pool is lost.
            let first = u64::from(!rng.chance(15));
            let server = rng.between(first, self.servers as u64 - 1) as usize;
            let begin_us = rng.below(horizon_us);
            plan(begin_us, Fault::CrashServer { server, power: rng.chance(40) });
            if rng.chance(60) {
                plan(begin_us + rng.below(2 * silence_us), Fault::Restart { server });
                for again in 0..10 {
                    plan(begin_us + again * silence_us / 3, Fault::Drop);
                }
            }
        }
    }

    /// With the planted hole, a server that restarted passes for its former self.
    fn rejoin(&mut self, auditor: &Worker, maker: usize) {
        let holed = {
            let world = lock(&self.sim.world);
            world.planted.bug == Some(Bug::Hole) && world.deaths.iter().any(Option::is_some)
        };
        let Some(pool) = self.pool.as_ref().filter(|_| holed) else { return };
        for index in 0..self.servers {
            let (fs, map, key) = (auditor.fs.clone(), pool.map.clone(), pool.key);
            ask(&mut self.sim, maker, async move {
                fs.control(ServerIndex(index as u16), ControlRequest::Describe).await?;
                join(&fs, &map, key, index).await
            });
        }
    }

    /// False: there is no more to be done.
    fn audit(&mut self, auditor: &Worker, maker: usize) -> bool {
        lock(&self.sim.world).mend();
        // What is under way arrives, what is silent is given up.
        let silence_us = self.timing().silence_ms_max * 1000;
        let lease_us = self.timing().lease_ms * 1000;
        let rest_us = 3 * silence_us + if self.rng.chance(50) { 2 * lease_us } else { 0 };
        if self.sim.rest(rest_us) == Ended::Failed {
            return false;
        }
        self.rejoin(auditor, maker);
        if lock(&self.sim.world).deaths[0].is_some() {
            return self.pool_lost(auditor, maker);
        }
        self.revive();
        let audit = auditor.clone().audit();
        if ask(&mut self.sim, maker, audit).is_none() {
            self.fail("auditor hangs");
        }
        !self.failed()
    }

    /// Clients that died start anew.
    fn revive(&mut self) {
        let renew_ms = self.timing().renew_ms;
        for place in 0..self.clients {
            let dead = {
                let world = lock(&self.sim.world);
                !world.clients[world.places[place]].alive
            };
            if dead {
                let client = self.start(place);
                lock(&self.sim.world).places[place] = client;
                let fs = self.worker(place, client).fs;
                self.sim.spawn(client, false, housekeeping(fs, renew_ms));
            }
        }
    }

    /// With the metadata, the pool is gone: nobody is told otherwise, nobody waits for ever.
    fn pool_lost(&mut self, auditor: &Worker, maker: usize) -> bool {
        let (fs, who) = (auditor.fs.clone(), auditor.who.clone());
        match ask(&mut self.sim, maker, async move { fs.lookup(&who, at("p0"), true).await }) {
            Some(Err(_)) => {}
            other => self.fail(&format!("metadata that is lost answers: {other:?}")),
        }
        false
    }

    fn sweep(&mut self, auditor: &Worker, maker: usize) {
        if ask(&mut self.sim, maker, auditor.clone().sweep()).is_none() {
            self.fail("sweep hangs");
        }
        if self.failed() {
            return;
        }
        // A client whose opening or closing failed may have a handle that it does not know of: it
        // ends with the client.
        for place in 0..self.clients + self.beside.len() {
            lock(&self.sim.world).crash_client(place, false);
        }
        // Leases run out, orphans are collected, what others left is offered and freed.
        let timing = self.timing();
        let rest_us = (3 * timing.lease_ms + timing.capability_ms + 20_000) * 1000;
        if self.sim.rest(rest_us) == Ended::Failed {
            return;
        }
        let mut world = lock(&self.sim.world);
        for server in 0..self.servers {
            if world.deaths[server].is_some() {
                continue;
            }
            let now = world.now(server);
            let status = world.servers[server].service.status(now);
            let left = status.targets.iter().any(|target| match target.disk {
                0 => target.memory_used > 0,
                // Blocks that failed are never used again.
                _ if world.disks_fail => target.dirty > 0,
                // Records of chunks are kept for the next ones.
                _ => target.disk_used > 0 || target.dirty > 0,
            });
            if status.objects > 0 || left {
                world.fail(|| {
                    format!(
                        "server {server} leaks {} bytes in {} objects",
                        status.memory_used, status.objects
                    )
                });
            }
            let dead = world.deaths.iter().any(Option::is_some);
            if server == 0 && status.inodes > 1 && !dead {
                world.fail(|| format!("{} inodes are left", status.inodes - 1));
            }
        }
    }
}
