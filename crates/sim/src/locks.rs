//! Locks while connections break, processes stop for a while, and some die: two never hold one that
//! excludes, and nobody waits for ever.

use crate::client::SimRpc;
use crate::net::Host;
use crate::planted::Planted;
use crate::rng::Rng;
use crate::run::{ask, bare_map, form, housekeeping, owner};
use crate::server::Equipment;
use crate::sim::{Ended, Sim};
use crate::workload::at;
use crate::world::{Event, Fault, World, lock};
use std::sync::{Arc, Mutex};
use weir_core::config::Timing;
use weir_core::error::Code;
use weir_core::fs::{File, Fs, FsOptions, Rpc};
use weir_core::wire::control::PoolMap;
use weir_core::wire::meta::{LOCK_END_MAX, LayoutWish, Lock, LockKind, OpenMode};

const CLIENTS: usize = 4;
/// How often each of them takes a lock.
const TURNS: u64 = 12;
const FAULTS: u64 = 25;

/// Who holds what, for each of the two kinds: places, and whether they share it.
type Board = Arc<Mutex<[Vec<(usize, bool)>; 2]>>;

struct Player {
    place: usize,
    fs: Fs<SimRpc>,
    file: File<SimRpc>,
    board: Board,
    rng: Rng,
    tickets: u64,
}

impl Player {
    async fn pause(&self, ms: u64) {
        self.fs.rpc().sleep(ms).await;
    }

    /// Takes the lock, however long it takes.
    async fn take(&mut self, wish: Lock) {
        loop {
            self.tickets += 1;
            let ticket = self.tickets;
            match self.file.take_lock(wish, Some(ticket)).await {
                Ok(true) => return,
                Ok(false) => {
                    if self.wait(ticket).await {
                        return;
                    }
                }
                Err(_) => {
                    // Whether it is held is open: not any more after this.
                    while self.fs.cancel_lock(ticket).await.is_err() {
                        self.pause(100).await;
                    }
                    self.release(wish).await;
                }
            }
        }
    }

    /// Whether it got the lock; sometimes it gives up before.
    async fn wait(&mut self, ticket: u64) -> bool {
        loop {
            if self.rng.chance(10) {
                let held = loop {
                    match self.fs.cancel_lock(ticket).await {
                        Ok(held) => break held,
                        Err(_) => self.pause(100).await,
                    }
                };
                return held;
            }
            let Ok(ended) = self.fs.await_locks(&[ticket], &[]).await else {
                self.pause(100).await;
                continue;
            };
            if let Some(ended) = ended.iter().find(|ended| ended.ticket == ticket) {
                let held = ended.failure.is_none();
                assert!(held || ended.failure == Some(Code::Deadlock), "{:?}", ended.failure);
                // It need not be confirmed at once.
                if self.rng.chance(50) {
                    let _ = self.fs.await_locks(&[], &[ticket]).await;
                }
                return held;
            }
        }
    }

    async fn release(&self, wish: Lock) {
        while self.fs.unlock(wish).await.is_err() {
            self.pause(100).await;
        }
    }

    async fn play(mut self) {
        for _ in 0..TURNS {
            let exclusive = self.rng.chance(60);
            let kind = *self.rng.pick(&[LockKind::Range, LockKind::Whole]);
            let (ino, owner) = (self.file.ino(), self.place as u64);
            let end = LOCK_END_MAX;
            let wish = Lock { ino, kind, owner, pid: 1, start: 0, end, exclusive };
            self.take(wish).await;
            let shares = !exclusive;
            {
                let mut board = lock(&self.board);
                let others = &mut board[kind as usize];
                let alone = others.iter().all(|(_, shared)| *shared && shares);
                assert!(alone, "{} beside {others:?}", self.place);
                others.push((self.place, shares));
            }
            let hold_ms = self.rng.below(200);
            self.pause(hold_ms).await;
            lock(&self.board)[kind as usize].retain(|(place, _)| *place != self.place);
            self.release(wish).await;
            let rest_ms = self.rng.below(100);
            self.pause(rest_ms).await;
        }
    }
}

fn options(timing: &Timing) -> FsOptions {
    FsOptions { timing: timing.clone(), transfer_size: 1 << 20 }
}

fn player(sim: &mut Sim, map: &PoolMap, timing: &Timing, client: usize, rng: Rng) -> Player {
    let fs = Fs::new(sim.rpc(client), map.clone(), options(timing));
    let opens = fs.clone();
    let open = async move {
        let (mode, wish) = (OpenMode::READ_WRITE, LayoutWish::default());
        opens.create(&owner(), at("file"), 0o644, false, mode, wish).await
    };
    let (file, ..) = ask(sim, client, open).expect("no hang").expect("an open file");
    Player { place: client, fs, file, board: Board::default(), rng, tickets: 0 }
}

fn history(seed: u64) {
    let mut rng = Rng::new(seed);
    let timing = Timing {
        heartbeat_ms: 300,
        silence_ms_max: 1_500,
        lease_ms: 6_000,
        renew_ms: 500,
        capability_ms: 20_000,
        ..Timing::default()
    };
    let mut world = World::new(rng.fork(), timing.clone(), Planted::default(), false);
    (0..=CLIENTS).for_each(|_| world.hosts.push(Host::new(1_000_000, 0)));
    let store_us = if rng.chance(50) { 2_000 } else { 0 };
    world.start_server(0, Equipment { store_us, ..Equipment::default() });
    let streams = rng.between(1, 2) as usize;
    let clients: Vec<usize> = (1..=CLIENTS).map(|host| world.start_client(host, streams)).collect();
    world.places = clients.clone();
    let mut sim = Sim::new(world);
    let fs = Fs::new(sim.rpc(clients[0]), bare_map(1), options(&timing));
    let map = ask(&mut sim, clients[0], async move { form(&fs, [7; 32], 4096).await });
    let map = map.expect("no hang").expect("a pool");
    let board = Board::default();
    let mut players = Vec::new();
    for &client in &clients {
        let player = player(&mut sim, &map, &timing, client, rng.fork());
        sim.spawn(client, false, housekeeping(player.fs.clone(), timing.renew_ms));
        players.push(Player { board: board.clone(), ..player });
    }
    for player in players {
        let client = player.place;
        sim.spawn(client, true, player.play());
    }
    // One thing at a time, and none so long that a lease ends, but for that of who dies.
    let mut dead = None;
    for _ in 0..FAULTS {
        let place = rng.below(CLIENTS as u64) as usize;
        let alive = dead != Some(place);
        let (fault, mended) = match rng.below(10) {
            0..=4 => (Fault::Drop, None),
            5 => (Fault::Partition { islanders: vec![1 + place] }, Some(Fault::Heal)),
            6 => (Fault::Stop { server: 0 }, Some(Fault::Continue { server: 0 })),
            7 if alive => (Fault::StopClient { place }, Some(Fault::ContinueClient { place })),
            8 if dead.is_none() => {
                dead = Some(place);
                lock(&board).iter_mut().for_each(|held| held.retain(|(p, _)| *p != clients[place]));
                (Fault::CrashClient { place, power: rng.chance(50) }, None)
            }
            _ => (Fault::Drop, None),
        };
        {
            let mut world = lock(&sim.world);
            let now_us = world.now_us;
            world.fault(&fault);
            if let Some(mended) = mended {
                world.at(now_us + rng.between(1_000, 2_500_000), Event::Fault(mended));
            }
        }
        assert_ne!(sim.rest(rng.between(100_000, 600_000)), Ended::Failed);
        if fault != Fault::Drop {
            sim.rest(2_500_000);
        }
    }
    let until_us = lock(&sim.world).now_us + 120_000_000;
    let ended = sim.run(until_us);
    assert_eq!(lock(&sim.world).failure, None, "seed {seed}");
    assert_eq!(ended, Ended::Done, "seed {seed}: somebody waits for ever");
}

#[test]
fn two_never_hold_what_excludes_and_nobody_waits_for_ever() {
    for seed in 0..40 {
        println!("seed {seed}");
        history(seed);
    }
}
