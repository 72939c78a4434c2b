//! Stories that histories have told, played again by hand.

use crate::client::SimRpc;
use crate::disk::{End, Faults, Speed};
use crate::net::Host;
use crate::planted::Planted;
use crate::rng::Rng;
use crate::run::{ask, bare_map, form, housekeeping, owner};
use crate::server::Equipment;
use crate::sim::Sim;
use crate::workload::at;
use crate::world::{Fault, World, lock};
use weir_core::config::Timing;
use weir_core::error::Code;
use weir_core::fs::{File, Fs, FsOptions};
use weir_core::types::Ino;
use weir_core::wire::control::PoolMap;
use weir_core::wire::meta::{LayoutWish, OpenMode};

/// A pool of two servers, and clients in places 0 and 1.
struct Stage {
    sim: Sim,
    map: PoolMap,
    clients: [usize; 2],
    timing: Timing,
}

impl Stage {
    fn new() -> Stage {
        Stage::with(|_| ())
    }

    /// A stage whose servers are equipped in another way than plainly.
    fn with(change: impl FnOnce(&mut [Equipment; 2])) -> Stage {
        let timing = Timing {
            heartbeat_ms: 300,
            silence_ms_max: 1_500,
            lease_ms: 5_000,
            renew_ms: 1_000,
            capability_ms: 20_000,
            ..Timing::default()
        };
        let mut world = World::new(Rng::new(1), timing.clone(), Planted::default(), false);
        (0..4).for_each(|_| world.hosts.push(Host::new(1_000_000, 0)));
        let mut equipment = [Equipment::default(), Equipment::default()];
        change(&mut equipment);
        for (server, equipment) in equipment.into_iter().enumerate() {
            world.start_server(server, equipment);
        }
        let clients = [world.start_client(2, 1), world.start_client(3, 1)];
        world.places = clients.to_vec();
        let mut sim = Sim::new(world);
        let options = FsOptions { timing: timing.clone(), transfer_size: 1 << 20 };
        let fs = Fs::new(sim.rpc(clients[0]), bare_map(2), options);
        let map = ask(&mut sim, clients[0], async move { form(&fs, [7; 32], 4096).await });
        let map = map.expect("no hang").expect("a pool");
        let mut stage = Stage { sim, map, clients, timing };
        for (place, client) in clients.into_iter().enumerate() {
            let fs = stage.fs(place);
            stage.sim.spawn(client, false, housekeeping(fs, 1_000));
        }
        stage
    }

    fn fs(&self, place: usize) -> Fs<SimRpc> {
        let options = FsOptions { timing: self.timing.clone(), transfer_size: 1 << 20 };
        Fs::new(self.sim.rpc(self.clients[place]), self.map.clone(), options)
    }

    /// What a client's part of the story gives.
    fn play<T: Send + 'static>(
        &mut self,
        place: usize,
        part: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let gave = ask(&mut self.sim, self.clients[place], part);
        assert_eq!(lock(&self.sim.world).failure, None);
        gave.expect("nobody hangs")
    }

    /// The file, as each client has opened it.
    fn opened_by_both(&mut self) -> [File<SimRpc>; 2] {
        [0, 1].map(|place| {
            let fs = self.fs(place);
            self.play(place, async move { open(&fs).await })
        })
    }

    fn fault(&self, fault: &Fault) {
        lock(&self.sim.world).fault(fault);
    }

    fn rest(&mut self, ms: u64) {
        self.sim.rest(ms * 1000);
    }

    fn size(&mut self, place: usize, ino: Ino) -> u64 {
        let fs = self.fs(place);
        self.play(place, async move { fs.attributes(&owner(), ino).await.expect("a stat").size })
    }
}

async fn open(fs: &Fs<SimRpc>) -> File<SimRpc> {
    let wish = LayoutWish { stripe_size: Some(4096), stripe_count: Some(2) };
    let mode = OpenMode::READ_WRITE;
    let opened = fs.create(&owner(), at("file"), 0o644, false, mode, wish).await;
    opened.expect("an open file").0
}

/// The first opened, the second opened, the first truncated, the second wrote. The first one's
/// close, under the truncation's version, settled the file at the size that it was cut to.
#[test]
fn a_truncation_does_not_make_others_writes_known() {
    let mut stage = Stage::new();
    let [first, second] = stage.opened_by_both();
    let ino = first.ino();
    stage.play(0, async move {
        first.truncate(100).await.expect("a truncation");
        // In the meantime, as the other client sees it.
        second.write_at(&[1; 5000], 200).await.expect("a write");
        second.close().await.expect("a close");
        first.close().await.expect("a close");
    });
    assert_eq!(stage.size(0, ino), 5200);
    assert_eq!(stage.size(1, ino), 5200);
}

/// One client cut a file, the other wrote behind the cut and then cut further out, before the metadata
/// service had heard from the first that the targets had been told: what was written was cut off with it.
/// (Seed 989773 of the kept scene.)
#[test]
fn a_truncation_cuts_nothing_that_was_written_after_the_one_before() {
    let mut stage = Stage::new();
    let [first, second] = stage.opened_by_both();
    let bytes = stage.play(0, async move {
        first.truncate(100).await.expect("a truncation");
        // In the meantime, as the other client sees it.
        second.write_at(&[1; 20_000], 0).await.expect("a write");
        second.truncate(15_000).await.expect("a truncation");
        let mut bytes = vec![0; 20_000];
        let length = first.read_at(&mut bytes, 0).await.expect("a read");
        bytes.truncate(length);
        bytes
    });
    assert!(bytes == [1; 15_000], "{} bytes", bytes.iter().filter(|&&byte| byte == 1).count());
}

/// One column took its part of a write, the other's server was stopped. The close that followed
/// settled the file without what the stopped server had of it, and stored when it went on.
#[test]
fn a_failed_write_leaves_the_size_unsettled() {
    let mut stage = Stage::new();
    let fs = stage.fs(0);
    let file = stage.play(0, async move { open(&fs).await });
    let ino = file.ino();
    stage.fault(&Fault::Stop { server: 1 });
    stage.play(0, async move {
        assert!(file.write_at(&[1; 8192], 0).await.is_err());
        file.close().await.expect("a close");
    });
    stage.fault(&Fault::Continue { server: 1 });
    stage.rest(1_000);
    let fs = stage.fs(1);
    stage.play(1, async move {
        let (file, attributes) = fs.open(&owner(), ino, OpenMode::READ).await.expect("it opens");
        assert_eq!(attributes.size, file.size().await.expect("a size"));
        assert_ne!(attributes.size, 0, "server 0 has stored its part");
    });
}

/// A file of two columns, with a hole in the second, was to end in that hole. Its server was out of
/// reach, the first column was cut: the file looked shorter than it was and was to be. (Seed 102524.)
#[test]
fn a_truncation_that_fails_makes_no_file_too_short() {
    let mut stage = Stage::new();
    let fs = stage.fs(0);
    let file = stage.play(0, async move {
        let file = open(&fs).await;
        file.write_at(&[1; 4096], 8192).await.expect("a write");
        file
    });
    let far = file.layout().member(1).target.0 as usize;
    stage.fault(&Fault::Partition { islanders: vec![far] });
    let file = stage.play(0, async move {
        // From here on there is no connection.
        assert!(file.read_at(&mut [0], 4096).await.is_err());
        assert!(file.truncate(6000).await.is_err());
        // It learns of the new epoch.
        file.write_at(&[1; 100], 0).await.expect("a write");
        file
    });
    stage.fault(&Fault::Heal);
    stage.rest(1_000);
    let size = stage.play(0, async move { file.size().await.expect("a size") });
    assert!((6000..=12_288).contains(&size), "{size} bytes");
}

/// A client was stopped for longer than its lease; somebody settled the file; the client went on
/// and wrote by its capability, which targets honour. The size stayed what had been settled.
#[test]
fn a_lapsed_writer_may_still_write() {
    let mut stage = Stage::new();
    let fs = stage.fs(0);
    let file = stage.play(0, async move {
        let file = open(&fs).await;
        file.write_at(&[1; 100], 0).await.expect("a write");
        file
    });
    let ino = file.ino();
    stage.fault(&Fault::StopClient { place: 0 });
    stage.rest(8_000);
    assert_eq!(stage.size(1, ino), 100);
    stage.fault(&Fault::ContinueClient { place: 0 });
    stage.rest(500);
    stage.play(0, async move { file.write_at(&[2; 1000], 0).await.expect("a write") });
    assert_eq!(stage.size(1, ino), 1000);
}

/// Memory is full and the disk under it read-only: the writer is told, what is stored can be read, and
/// the next file is placed elsewhere.
#[test]
fn a_target_whose_disk_failed_gets_no_new_files() {
    let mut stage = Stage::with(|equipment| {
        for equipment in equipment.iter_mut() {
            equipment.disk = Some(Speed { latency_us: 100, bytes_per_ms: 100_000 });
        }
        let ends = Some((0, End::ReadOnly));
        equipment[1].faults = Some(Faults { failing: 0, stalling: 0, ends });
    });
    let fs = stage.fs(0);
    let targets = stage.play(0, async move {
        let file = open(&fs).await;
        let mut stored = 0;
        let error = loop {
            match file.write_at(&[stored as u8; 65536], stored * 65536).await {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
            assert!(stored < 1000, "four MiB of memory, and one disk that takes nothing");
        };
        assert_eq!(error.code, Code::Disk, "{error}");
        let mut bytes = vec![0; 65536];
        for at in 0..stored {
            file.read_at(&mut bytes, at * 65536).await.expect("a read of what was stored");
            assert!(bytes == [at as u8; 65536], "at {at}");
        }
        let columns = |file: &File<SimRpc>| {
            let layout = file.layout();
            (0..layout.stripe_count()).map(|at| layout.member(at).target.0).collect::<Vec<_>>()
        };
        let first = columns(&file);
        let wish = LayoutWish { stripe_size: Some(4096), stripe_count: Some(2) };
        let made = fs.create(&owner(), at("next"), 0o644, true, OpenMode::READ_WRITE, wish).await;
        let next = made.expect("another file").0;
        next.write_at(&[9; 100_000], 0).await.expect("there is room where it is");
        (first, columns(&next))
    });
    assert_eq!((targets.0.len(), targets.1.len()), (2, 1));
    let world = lock(&stage.sim.world);
    let status = world.servers[0].service.status(world.now(0));
    let left: Vec<u32> = targets.0.into_iter().filter(|id| !targets.1.contains(id)).collect();
    assert_eq!(status.unfit, left);
}
