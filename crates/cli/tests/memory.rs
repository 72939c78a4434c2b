//! A server's memory never passes what was stated by more than 5 % and 64 MiB, whatever it is filled
//! with; and when it is full, it says so and everything stored can be read.

mod common;

use common::{Place, resident};
use weir_client::{ConnectOptions, Pool, PoolAddress};
use weir_core::error::{Code, Error};
use weir_core::types::{Credentials, Ino};
use weir_core::wire::meta::{LayoutWish, OpenMode, Place as Where};

const MEMORY: u64 = 128 << 20;
const METADATA_MEMORY: u64 = 48 << 20;

fn check(pid: i32, when: &str) {
    let limit = (MEMORY + METADATA_MEMORY) / 100 * 105 + (64 << 20);
    let resident = resident(pid);
    assert!(resident <= limit, "{when}: {resident} bytes resident, {limit} allowed");
}

async fn store(pool: &Pool, name: &str, bytes: &[u8], offset: u64) -> Result<(), Error> {
    let me = Credentials { uid: 0, gid: 0, groups: vec![] };
    let (place, open) = (Where::new(Ino::ROOT, name), OpenMode::READ_WRITE);
    let (file, _, _) =
        pool.fs().create(&me, place, 0o644, false, open, LayoutWish::default()).await?;
    let written = file.write_at(bytes, offset).await;
    file.close().await?;
    written
}

async fn load(pool: &Pool, name: &str, length: usize, offset: u64) -> Vec<u8> {
    let me = Credentials { uid: 0, gid: 0, groups: vec![] };
    let found = pool.fs().lookup(&me, Where::new(Ino::ROOT, name), true).await.expect("found");
    let (file, _) = pool.fs().open(&me, found.ino, OpenMode::READ).await.expect("opened");
    let mut bytes = vec![0; length];
    let count = file.read_at(&mut bytes, offset).await.expect("read");
    file.close().await.expect("closed");
    bytes.truncate(count);
    bytes
}

fn full(error: &Error) -> bool {
    matches!(error.code, Code::NoSpace | Code::NoMetadataSpace)
}

#[test]
fn memory_is_what_was_stated() {
    let place = Place::new();
    place.good(&["up", "m", "--servers", "1", "--memory", "128M", "--metadata-memory", "48M"]);
    let pid = place.servers()[0];
    let address = PoolAddress::load(&place.home().join("pools/m")).expect("pool files");
    let connect = || Pool::connect(&address, &ConnectOptions::default()).expect("connects");
    let pool = connect();

    // Small files, until names or bytes are used up.
    let mut small = 0;
    let error = loop {
        let name = format!("small-{small}");
        match pool.run(store(&pool, &name, name.as_bytes(), 0)) {
            Ok(()) => small += 1,
            Err(error) => break error,
        }
        if small % 10_000 == 0 {
            check(pid, "small files");
        }
    };
    assert!(full(&error), "{error}");
    assert!(small > 20_000, "only {small} small files");
    check(pid, "full of small files");
    for number in (0..small).step_by(997) {
        let name = format!("small-{number}");
        assert_eq!(pool.run(load(&pool, &name, 100, 0)), name.as_bytes());
    }

    // A large one in what is left, written in odd pieces, and overwritten.
    let piece = common::noise(300_007);
    let mut pieces = 0;
    loop {
        match pool.run(store(&pool, "small-0", &piece, pieces * 300_007)) {
            Ok(()) => pieces += 1,
            Err(error) => {
                assert!(full(&error), "{error}");
                break;
            }
        }
        check(pid, "a large file");
    }
    for index in (0..pieces).step_by(7) {
        pool.run(store(&pool, "small-0", &piece, index * 300_007)).expect("overwritten");
        assert!(pool.run(load(&pool, "small-0", piece.len(), index * 300_007)) == piece);
    }
    check(pid, "full and overwritten");

    // Many clients at once, each with its own connection.
    let crowd: Vec<Pool> = (0..200).map(|_| connect()).collect();
    for (number, pool) in crowd.iter().enumerate() {
        let name = format!("small-{}", number + 1);
        assert_eq!(pool.run(load(pool, &name, 100, 0)), name.as_bytes());
    }
    check(pid, "a crowd");
    drop(crowd);
    drop(pool);
    place.good(&["down", "m"]);
    place.nothing_left();
}
