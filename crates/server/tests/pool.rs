//! Whole pools over loopback: real sockets, real threads, servers that stop and die.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_client::{ConnectOptions, FormOptions, Net, Pool, PoolAddress, Transport, form};
use weir_core::auth::{Role, Secret};
use weir_core::config::{SHARING_CONNECTIONS_MAX, Timing};
use weir_core::error::Code;
use weir_core::fs::{Borrowers, Fs, FsOptions};
use weir_core::layout::Extent;
use weir_core::session::Identity;
use weir_core::types::{ClientId, Credentials, Ino};
use weir_core::wire::control::ServerStatus;
use weir_core::wire::meta::{LayoutWish, OpenMode, Place};
use weir_server::{Server, ServerOptions};

fn timing() -> Timing {
    Timing { heartbeat_ms: 200, silence_ms_max: 1000, ..Timing::default() }
}

fn secret() -> Secret {
    Secret::from_bytes([7; 32])
}

fn me() -> Credentials {
    Credentials { uid: 0, gid: 0, groups: vec![] }
}

struct TestPool {
    servers: Vec<Server>,
    address: PoolAddress,
    options: ConnectOptions,
}

fn start(count: usize, memory: u64) -> TestPool {
    start_with(count, memory, None)
}

fn start_with(count: usize, memory: u64, metadata_dir: Option<&std::path::Path>) -> TestPool {
    let servers: Vec<Server> = (0..count)
        .map(|index| {
            Server::start(ServerOptions {
                listen: "127.0.0.1:0".to_owned(),
                transport: Transport::default(),
                memory: vec![memory],
                disks: Vec::new(),
                disk_engine: weir_server::Engine::Auto,
                metadata_memory: 16 << 20,
                metadata_dir: metadata_dir.filter(|_| index == 0).map(Into::into),
                secret: secret(),
                threads: 2,
                timing: timing(),
            })
            .expect("server starts")
        })
        .collect();
    let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    let options = ConnectOptions { timing: timing(), ..ConnectOptions::default() };
    let form_options = FormOptions {
        name: "test".to_owned(),
        owner_uid: 0,
        owner_gid: 0,
        stripe_size: 64 << 10,
        stripe_count: 0,
    };
    form(&addresses, &secret(), &form_options, &options).expect("pool forms");
    let address = PoolAddress { servers: addresses, secret: secret(), role: Role::Owner };
    TestPool { servers, address, options }
}

impl TestPool {
    fn connect(&self) -> Pool {
        Pool::connect(&self.address, &self.options).expect("pool answers")
    }
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

/// Making an empty file, and opening and closing one, costs the metadata service one request each:
/// the close goes with the next.
#[test]
fn a_close_without_writes_costs_no_request_of_its_own() {
    let test = start(2, 16 << 20);
    let (pool, other) = (test.connect(), test.connect());
    // Such as a call waits for, and others.
    let requests = || {
        let status = other.status().into_iter().map(|status| status.expect("answers"));
        status.fold((0, 0), |(awaited, unawaited), status: ServerStatus| {
            let by_itself = status.metadata_unawaited;
            (awaited + status.metadata_requests - by_itself, unawaited + by_itself)
        })
    };
    let before = requests();
    pool.run(async {
        for i in 0..100 {
            let place = Place::new(Ino::ROOT, format!("{i}"));
            let wish = LayoutWish::default();
            let (file, ..) =
                pool.fs().create(&me(), place, 0o600, true, OpenMode::WRITE, wish).await?;
            file.close().await?;
            let (file, found) = pool.fs().open(&me(), file.ino(), OpenMode::READ).await?;
            assert_eq!(found.size, 0);
            file.close().await?;
        }
        Ok::<_, weir_core::error::Error>(())
    })
    .expect("made and read");
    assert_eq!(requests().0 - before.0, 200, "requests for 100 files made and opened");

    // What nobody asks after ends by itself, and soon.
    let place = Place::new(Ino::ROOT, "99");
    other.run(other.fs().unlink(&me(), place)).expect("removed");
    let until = Instant::now() + Duration::from_secs(5);
    while other.run(other.fs().usage()).expect("usage").inodes > 100 {
        assert!(Instant::now() < until, "the handle does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(requests().1 > before.1, "nobody waited for its end");
}

/// The last close before a process exits has no request to go with.
#[test]
fn handles_end_with_a_process_that_leaves_its_pool_connected() {
    const SERVERS: &str = "WEIR_TEST_EXIT_SERVERS";
    let name = Place::new(Ino::ROOT, "left");
    if let Ok(servers) = std::env::var(SERVERS) {
        let servers = servers.split(',').map(str::to_owned).collect();
        let address = PoolAddress { servers, secret: secret(), role: Role::Owner };
        let pool = Pool::connect(&address, &ConnectOptions::default()).expect("pool answers");
        let wish = LayoutWish::default();
        let who = me();
        let create = pool.fs().create(&who, name, 0o600, true, OpenMode::WRITE, wish);
        let (file, ..) = pool.run(create).expect("made");
        pool.run(file.close()).expect("closed");
        std::process::exit(0);
    }
    let test = start(1, 16 << 20);
    let status = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "handles_end_with_a_process_that_leaves_its_pool_connected"])
        .env(SERVERS, test.address.servers.join(","))
        .status()
        .expect("it runs");
    assert!(status.success());
    let pool = test.connect();
    pool.run(pool.fs().unlink(&me(), name)).expect("removed");
    // Were it open still, it would stay until its client's lease lapses: for a minute.
    assert_eq!(pool.run(pool.fs().usage()).expect("usage").inodes, 1);
}

#[test]
fn what_one_client_writes_another_reads() {
    let test = start(4, 64 << 20);
    let (writer, reader) = (test.connect(), test.connect());
    for length in [0usize, 1, 4095, 65_537, 1 << 20, 5_000_001] {
        let name = format!("file-{length}");
        let bytes = pattern(length, 3);
        writer
            .run(async {
                let place = Place::new(Ino::ROOT, name.as_str());
                let open = OpenMode::READ_WRITE;
                let wish = LayoutWish::default();
                let (file, _, created) =
                    writer.fs().create(&me(), place, 0o644, true, open, wish).await?;
                assert!(created);
                file.write_at(&bytes, 0).await?;
                // The other client asks while the writer has it open: the size is true all the same.
                file.close().await
            })
            .expect("written");
        reader
            .run(async {
                let place = Place::new(Ino::ROOT, name.as_str());
                let found = reader.fs().lookup(&me(), place, true).await?;
                assert_eq!(found.size, length as u64);
                let (file, _) = reader.fs().open(&me(), found.ino, OpenMode::READ).await?;
                let mut back = vec![0xee; length + 100];
                assert_eq!(file.read_at(&mut back, 0).await?, length);
                assert!(back[..length] == bytes[..], "bytes of {length}");
                assert!(back[length..].iter().all(|&byte| byte == 0xee));
                assert_eq!(file.read_at(&mut back, length as u64 + 5).await?, 0);
                file.close().await
            })
            .expect("read");
    }
}

#[test]
fn metadata_may_be_kept_on_disk() {
    let directory = tempfile::tempdir().expect("directory");
    let test = start_with(2, 16 << 20, Some(directory.path()));
    let pool = test.connect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pool = pool.clone();
            scope.spawn(move || {
                for round in 0..25 {
                    pool.run(async {
                        let place = Place::new(Ino::ROOT, format!("{thread}-{round}"));
                        let open = OpenMode::READ_WRITE;
                        let wish = LayoutWish::default();
                        let (file, _, created) =
                            pool.fs().create(&me(), place, 0o644, true, open, wish).await?;
                        assert!(created);
                        file.write_at(b"42", 0).await?;
                        file.close().await
                    })
                    .expect("made");
                }
            });
        }
    });
    let listing = pool.run(pool.fs().list(&me(), Ino::ROOT, b"", 1000, true)).expect("listed");
    assert_eq!(listing.entries.len(), 100);
    assert!(listing.attributes.iter().all(|attributes| attributes.size == 2));
    assert!(directory.path().join("data.mdb").exists(), "no LMDB file was made");
}

#[test]
fn lists_are_one_request_to_each_target() {
    let test = start(3, 64 << 20);
    let pool = test.connect();
    pool.run(async {
        let place = Place::new(Ino::ROOT, "strided");
        let open = OpenMode::READ_WRITE;
        let (file, _, _) =
            pool.fs().create(&me(), place, 0o644, true, open, LayoutWish::default()).await?;
        let extents: Vec<Extent> =
            (0..3000).map(|i| Extent { offset: 17 + i * 1000, length: 256 }).collect();
        let bytes = pattern(3000 * 256, 5);
        let before: u64 = pool.fs().status().await.into_iter().map(|s| s.unwrap().writes).sum();
        file.write_list(&extents, &[std::io::IoSlice::new(&bytes)]).await?;
        let after: u64 = pool.fs().status().await.into_iter().map(|s| s.unwrap().writes).sum();
        assert_eq!(after - before, 3);
        let mut back = vec![1; bytes.len()];
        let mut memory = [std::io::IoSliceMut::new(&mut back)];
        assert_eq!(file.read_list(&extents, &mut memory).await?, bytes.len());
        assert!(back == bytes);
        let mut whole = vec![1; 3_000_000];
        let count = file.read_at(&mut whole, 0).await?;
        assert_eq!(count as u64, extents.last().unwrap().end());
        assert!(whole[..17].iter().all(|&byte| byte == 0));
        assert!(whole[17..273] == bytes[..256] && whole[273..1017].iter().all(|&b| b == 0));
        // A list over the end: memory of what lies behind it stays, that of holes becomes zeros.
        let end = extents.last().unwrap().end();
        let over: Vec<Extent> =
            [273, end - 200, end + 100_010].map(|offset| Extent { offset, length: 100_000 }).into();
        let mut back = vec![0xee; 300_000];
        let memory = &mut [std::io::IoSliceMut::new(&mut back)];
        let found = file.read_list(&over, memory).await?;
        assert_eq!(found, 100_200);
        let parts: Vec<&[u8]> = back.chunks(100_000).collect();
        assert!(parts[0] == &whole[273..100_273]);
        assert!(parts[1][..200] == bytes[bytes.len() - 200..]);
        assert!(parts[1][200..].iter().all(|&byte| byte == 0xee));
        assert!(parts[2].iter().all(|&byte| byte == 0xee));
        // A hole up to the end, which no object reaches.
        file.truncate(end + 1_000_000).await?;
        let mut back = vec![0xee; 300_000];
        assert_eq!(file.read_at(&mut back, end + 900_000).await?, 100_000);
        assert!(back[..100_000].iter().all(|&byte| byte == 0));
        assert!(back[100_000..].iter().all(|&byte| byte == 0xee));
        file.close().await
    })
    .expect("list");
}

#[test]
fn several_threads_share_a_pool() {
    let test = start(2, 64 << 20);
    let pool = test.connect();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let pool = pool.clone();
            scope.spawn(move || {
                for round in 0..20 {
                    let bytes = pattern(100_000 + thread as usize * 777, thread * 100 + round);
                    pool.run(async {
                        let name = format!("t{thread}-{round}");
                        let place = Place::new(Ino::ROOT, name.as_str());
                        let open = OpenMode::READ_WRITE;
                        let wish = LayoutWish::default();
                        let (file, _, _) =
                            pool.fs().create(&me(), place.clone(), 0o644, true, open, wish).await?;
                        file.write_at(&bytes, 12_345).await?;
                        let mut back = vec![0; bytes.len()];
                        assert_eq!(file.read_at(&mut back, 12_345).await?, bytes.len());
                        assert!(back == bytes);
                        file.close().await?;
                        pool.fs().unlink(&me(), place).await
                    })
                    .expect("round");
                }
            });
        }
    });
    let usage = pool.run(pool.fs().usage()).expect("usage");
    assert_eq!(usage.used, 0, "unlinked files hold no memory");
}

#[test]
fn a_full_pool_says_so_and_keeps_what_it_has() {
    let test = start(2, 16 << 20);
    let pool = test.connect();
    pool.run(async {
        let place = Place::new(Ino::ROOT, "big");
        let open = OpenMode::READ_WRITE;
        let (file, _, _) = pool
            .fs()
            .create(&me(), place.clone(), 0o644, true, open, LayoutWish::default())
            .await?;
        let block = pattern(1 << 20, 9);
        let mut stored = 0u64;
        let error = loop {
            match file.write_at(&block, stored << 20).await {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.code, Code::NoSpace, "{error}");
        assert!(stored >= 24, "{stored} MiB of 32");
        let mut back = vec![0; 1 << 20];
        for index in 0..stored {
            assert_eq!(file.read_at(&mut back, index << 20).await?, 1 << 20);
            assert!(back == block, "MiB {index}");
        }
        file.close().await?;
        pool.fs().unlink(&me(), place).await?;
        // The memory is there again at once, for the next write.
        let place = Place::new(Ino::ROOT, "next");
        let (file, _, _) =
            pool.fs().create(&me(), place, 0o644, true, open, LayoutWish::default()).await?;
        for index in 0..stored {
            file.write_at(&block, index << 20).await?;
        }
        file.close().await
    })
    .expect("full");
}

#[test]
fn a_dead_server_is_an_error_in_time() {
    let mut test = start(2, 16 << 20);
    let pool = test.connect();
    let file = pool
        .run(async {
            let place = Place::new(Ino::ROOT, "doomed");
            let open = OpenMode::READ_WRITE;
            let (file, _, _) =
                pool.fs().create(&me(), place, 0o644, true, open, LayoutWish::default()).await?;
            file.write_at(&pattern(1 << 20, 1), 0).await?;
            Ok::<_, weir_core::error::Error>(file)
        })
        .expect("created");
    drop(test.servers.remove(1));
    let begun = Instant::now();
    let mut back = vec![0; 1 << 20];
    let error = pool.run(file.read_at(&mut back, 0)).unwrap_err();
    assert_eq!(error.code, Code::ServerLost, "{error}");
    assert!(error.to_string().contains("server 1"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    // The part on the living server is still there, and later errors come quickly.
    let begun = Instant::now();
    assert_eq!(pool.run(file.read_at(&mut back[..65_536], 0)).unwrap(), 65_536);
    assert!(pool.run(file.write_at(&[1; 100_000], 0)).is_err());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn more_connections_than_may_share_memory() {
    let test = start(1, 16 << 20);
    let identity = |number: u64| Identity {
        client: ClientId(1_000 + number),
        stream: 0,
        role: Role::Owner,
        secret: secret().for_role(Role::Owner),
        server_name: String::new(),
    };
    let addresses = &test.address.servers;
    let map = test.connect().map().clone();
    // All at once, and all stay open while each is used again. The last ones are by TCP.
    let count = SHARING_CONNECTIONS_MAX + 100;
    let clients: Vec<_> = (0..count as u64)
        .map(|number| {
            let net =
                Net::new(&identity(number), addresses, 1, Transport::Auto, &timing()).expect("net");
            Fs::new(net, map.clone(), FsOptions::default())
        })
        .collect();
    for round in 0..2 {
        std::thread::scope(|scope| {
            for part in clients.chunks(125) {
                scope.spawn(move || {
                    for (index, fs) in part.iter().enumerate() {
                        let found = fs.rpc().run(fs.attributes(&me(), Ino::ROOT));
                        assert_eq!(found.expect("answered").ino, Ino::ROOT, "{round} {index}");
                    }
                });
            }
        });
    }
    let status = test.connect().status().remove(0).expect("status");
    assert!(status.connections >= count as u64, "{} connections", status.connections);
}

#[test]
fn a_server_in_its_place_is_not_taken_for_the_old_one() {
    let mut test = start(1, 16 << 20);
    let pool = test.connect();
    let open = OpenMode::READ_WRITE;
    let file = pool
        .run(async {
            let place = Place::new(Ino::ROOT, "old");
            let wish = LayoutWish::default();
            let (file, _, _) = pool.fs().create(&me(), place, 0o644, true, open, wish).await?;
            file.write_at(&pattern(100_000, 1), 0).await?;
            Ok::<_, weir_core::error::Error>(file)
        })
        .expect("created");
    let listen = test.servers[0].address().to_string();
    drop(test.servers.remove(0));
    let again = Server::start(ServerOptions {
        listen: listen.clone(),
        transport: Transport::default(),
        memory: vec![16 << 20],
        disks: Vec::new(),
        disk_engine: weir_server::Engine::Auto,
        metadata_memory: 16 << 20,
        metadata_dir: None,
        secret: secret(),
        threads: 1,
        timing: timing(),
    })
    .expect("starts again");
    let mut back = vec![0; 100_000];
    let begun = Instant::now();
    // Not yet part of a pool, then part of another: an error each time, never zeros.
    assert!(pool.run(file.read_at(&mut back, 0)).is_err());
    let form_options = FormOptions {
        name: "other".to_owned(),
        owner_uid: 0,
        owner_gid: 0,
        stripe_size: 64 << 10,
        stripe_count: 0,
    };
    form(&[listen], &secret(), &form_options, &test.options).expect("forms");
    let error = pool.run(file.read_at(&mut back, 0)).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(5), "{error}");
    assert!(back.iter().all(|&byte| byte == 0), "nothing was written into the buffer");
    drop(again);
}

#[test]
fn a_wrong_secret_gets_nothing() {
    let test = start(1, 16 << 20);
    let address = PoolAddress { secret: Secret::from_bytes([8; 32]), ..test.address.clone() };
    let Err(error) = Pool::connect(&address, &test.options) else {
        panic!("connected with a wrong secret")
    };
    assert_eq!(error.code, Code::Unauthenticated, "{error}");
}

#[test]
fn a_borrowed_file_is_read_and_written_and_its_lender_settles_no_wrong_size() {
    let pool = start(3, 8 << 20);
    let (lender, borrower) = (pool.connect(), pool.connect());
    let place = Place::new(Ino::ROOT, "lent");
    let who = me();
    let create =
        lender.fs().create(&who, place, 0o600, true, OpenMode::READ_WRITE, LayoutWish::default());
    let (file, _, _) = lender.run(create).expect("created");
    let bytes = pattern(1 << 20, 5);
    lender.run(file.write_at(&bytes[..1000], 0)).expect("written");

    let loan = lender.run(file.lend()).expect("lent");
    let borrowed = borrower.fs().borrow(loan);
    borrower.run(borrowed.write_at(&bytes[1000..], 1000)).expect("written");
    let mut read = vec![0; bytes.len()];
    assert_eq!(borrower.run(borrowed.read_at(&mut read, 0)), Ok(bytes.len()));
    assert_eq!(read, bytes);
    assert_eq!(lender.run(file.read_at(&mut read, 0)), Ok(bytes.len()));
    assert_eq!(read, bytes);

    // Each appends behind what the others have written.
    let other = borrower.fs().borrow(lender.run(file.lend()).expect("lent"));
    let mut end = 1 << 20;
    for _ in 0..4 {
        assert_eq!(borrower.run(borrowed.append(b"borrower's")), Ok(end));
        assert_eq!(lender.run(file.append(b"lender's")), Ok(end + 10));
        borrower.run(other.write_at(b"other's", end + 18)).expect("written");
        lender.run(file.write_at(b"more", end + 25)).expect("written");
        end += 29;
    }

    // What needs the handle is the lender's to do; a truncation is seen at once.
    assert_eq!(borrower.run(borrowed.truncate(0)).unwrap_err().code, Code::Invalid);
    lender.run(file.truncate(5000)).expect("truncated");
    assert_eq!(borrower.run(borrowed.size()), Ok(5000));
    borrower.run(borrowed.write_at(b"end", 6000)).expect("written");

    // Closing it is nothing; the lender's handle, which wrote less, must not say how long it is.
    borrower.run(borrowed.close()).expect("closed");
    lender.run(file.close()).expect("closed");
    let attributes = lender.run(lender.fs().attributes(&me(), file.ino())).expect("found");
    assert_eq!(attributes.size, 6003);
}

/// Borrowers who have ended so many changes.
#[derive(Debug)]
struct Told {
    changes: AtomicU64,
    all: bool,
}

impl Borrowers for Told {
    fn changes(&self) -> Option<u64> {
        Some(self.changes.load(Ordering::Relaxed))
    }

    fn tell_all(&self) -> bool {
        self.all
    }
}

#[test]
fn what_borrowers_have_written_is_told_when_the_lender_closes() {
    let pool = start(2, 8 << 20);
    let (lender, borrower) = (pool.connect(), pool.connect());
    let who = me();
    let bytes = pattern(100_000, 5);
    // How long the file is said to be after all that was written.
    let size = |name: &str, all: bool| {
        let place = Place::new(Ino::ROOT, name);
        let (mode, wish) = (OpenMode::READ_WRITE, LayoutWish::default());
        let create = lender.fs().create(&who, place, 0o600, true, mode, wish);
        let (file, _, _) = lender.run(create).expect("created");
        let told = Arc::new(Told { changes: AtomicU64::new(0), all });
        let loan = lender.run(file.lend_watched(told.clone())).expect("lent");
        let borrowed = borrower.fs().borrow(loan);
        borrower.run(borrowed.write_at(&bytes, 0)).expect("written");
        told.changes.fetch_add(1, Ordering::Relaxed);
        lender.run(file.close()).expect("closed");
        borrower.run(borrowed.write_at(b"late", 100_000)).expect("written");
        lender.run(lender.fs().attributes(&who, file.ino())).expect("found").size
    };
    assert_eq!(size("late", false), 100_004, "the lender has told what was not all");
    // A borrower who breaks his word shows that the targets were not asked once more.
    assert_eq!(size("all", true), 100_000, "the lender has told nothing");
}

#[test]
fn an_expired_loan_is_refused_until_it_is_extended() {
    let pool = start(2, 8 << 20);
    let (lender, borrower) = (pool.connect(), pool.connect());
    let place = Place::new(Ino::ROOT, "lent");
    let who = me();
    let create =
        lender.fs().create(&who, place, 0o600, true, OpenMode::READ_WRITE, LayoutWish::default());
    let (file, _, _) = lender.run(create).expect("created");
    let mut loan = lender.run(file.lend()).expect("lent");
    // As one that is too old, or forged, looks to a target.
    loan.capability.expires.0 -= 1;
    let borrowed = borrower.fs().borrow(loan);
    let refused = borrower.run(borrowed.write_at(b"x", 0)).unwrap_err();
    assert_eq!(refused.code, Code::NoCapability);
    borrowed.extend(lender.run(file.lend()).expect("lent"));
    borrower.run(borrowed.write_at(b"x", 0)).expect("written");
}

#[test]
fn what_a_borrower_stores_after_its_lender_has_closed_in_doubt_is_seen() {
    let pool = start(2, 8 << 20);
    let (lender, borrower) = (pool.connect(), pool.connect());
    let (who, place) = (me(), Place::new(Ino::ROOT, "lent"));
    let create =
        lender.fs().create(&who, place, 0o600, true, OpenMode::READ_WRITE, LayoutWish::default());
    let (file, _, _) = lender.run(create).expect("created");
    let borrowed = borrower.fs().borrow(lender.run(file.lend()).expect("lent"));
    borrower.run(borrowed.write_at(b"early", 0)).expect("written");
    assert!(!borrowed.in_doubt());

    file.doubt();
    lender.run(file.close()).expect("closed");
    let size = || {
        let found = lender.run(lender.fs().attributes(&who, file.ino())).expect("found");
        found.size
    };
    assert_eq!(size(), 5);
    // As a write that was under way when its program was killed.
    borrower.run(borrowed.write_at(b"late", 1000)).expect("written");
    assert_eq!(size(), 1004);
}
