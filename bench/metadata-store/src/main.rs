//! Embedded stores for the names of a kept pool, compared: see docs/decisions/metadata-store.md.
//!
//! `cargo run --release -- [DIRECTORY [INODES]]`. Every commit is on the disk before the next begins.
//! Each store runs in a process of its own, so that memory can be told apart.

use heed::types::Bytes;
use std::path::Path;
use std::time::{Duration, Instant};
use weir_core::journal::Options;
use weir_core::service::meta::store::Batch;
use weir_core::service::meta::{JournaledStore, MetaStore};
use weir_server::meta::FileMedium;

type Puts = Vec<(Vec<u8>, Vec<u8>)>;
type Failure = Box<dyn std::error::Error>;

/// What one created file writes: its inode with a layout, its name, its directory's times.
fn create(number: u64) -> Puts {
    let ino = (number + 2).to_be_bytes();
    let directory = (number / 1000 + (1 << 40)).to_be_bytes();
    let name = format!("file-{number:09}");
    vec![
        ([b"i", &ino[..]].concat(), vec![number as u8; 74]),
        ([b"d", &directory[..], name.as_bytes()].concat(), [&ino[..], &[0]].concat()),
        ([b"t", &directory[..]].concat(), vec![number as u8; 18]),
    ]
}

trait Store: Sized {
    fn open(directory: &Path) -> Result<Self, Failure>;
    /// Carries out several commits and syncs once.
    fn group(&mut self, commits: &[Puts]) -> Result<(), Failure>;
    fn get(&self, key: &[u8]) -> Result<bool, Failure>;
    /// Counts all inodes, as the service does when it starts.
    fn count(&self) -> Result<u64, Failure>;
}

struct Lmdb(heed::Env, heed::Database<Bytes, Bytes>);

impl Store for Lmdb {
    fn open(directory: &Path) -> Result<Lmdb, Failure> {
        let mut options = heed::EnvOpenOptions::new();
        options.map_size(4 << 30).max_dbs(1);
        // SAFETY: the directory is this program's own.
        let env = unsafe { options.open(directory)? };
        let mut txn = env.write_txn()?;
        let entries = env.create_database(&mut txn, Some("entries"))?;
        txn.commit()?;
        Ok(Lmdb(env, entries))
    }

    fn group(&mut self, commits: &[Puts]) -> Result<(), Failure> {
        let mut txn = self.0.write_txn()?;
        for (key, value) in commits.iter().flatten() {
            self.1.put(&mut txn, key, value)?;
        }
        Ok(txn.commit()?)
    }

    fn get(&self, key: &[u8]) -> Result<bool, Failure> {
        let txn = self.0.read_txn()?;
        Ok(self.1.get(&txn, key)?.is_some())
    }

    fn count(&self) -> Result<u64, Failure> {
        let txn = self.0.read_txn()?;
        Ok(self.1.prefix_iter(&txn, b"i")?.count() as u64)
    }
}

const TABLE: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("entries");

struct Redb(redb::Database);

impl Store for Redb {
    fn open(directory: &Path) -> Result<Redb, Failure> {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(256 << 20);
        Ok(Redb(builder.create(directory.join("redb"))?))
    }

    fn group(&mut self, commits: &[Puts]) -> Result<(), Failure> {
        let txn = self.0.begin_write()?;
        {
            let mut table = txn.open_table(TABLE)?;
            for (key, value) in commits.iter().flatten() {
                table.insert(&key[..], &value[..])?;
            }
        }
        Ok(txn.commit()?)
    }

    fn get(&self, key: &[u8]) -> Result<bool, Failure> {
        use redb::ReadableDatabase;
        Ok(self.0.begin_read()?.open_table(TABLE)?.get(key)?.is_some())
    }

    fn count(&self) -> Result<u64, Failure> {
        use redb::ReadableDatabase;
        let table = self.0.begin_read()?.open_table(TABLE)?;
        Ok(table.range::<&[u8]>(&b"i"[..]..&b"j"[..])?.count() as u64)
    }
}

struct Fjall(fjall::Keyspace, fjall::PartitionHandle);

impl Store for Fjall {
    fn open(directory: &Path) -> Result<Fjall, Failure> {
        let keyspace = fjall::Config::new(directory).open()?;
        let entries = keyspace.open_partition("entries", Default::default())?;
        Ok(Fjall(keyspace, entries))
    }

    fn group(&mut self, commits: &[Puts]) -> Result<(), Failure> {
        for commit in commits {
            let mut batch = self.0.batch();
            for (key, value) in commit {
                batch.insert(&self.1, key, value);
            }
            batch.commit()?;
        }
        Ok(self.0.persist(fjall::PersistMode::SyncData)?)
    }

    fn get(&self, key: &[u8]) -> Result<bool, Failure> {
        Ok(self.1.get(key)?.is_some())
    }

    fn count(&self) -> Result<u64, Failure> {
        Ok(self.1.prefix(b"i").count() as u64)
    }
}

struct Journal {
    store: JournaledStore,
    writer: weir_core::journal::Writer<FileMedium>,
}

/// The futures of a store in memory are ready when they are first asked.
fn ready<T>(future: impl Future<Output = weir_core::error::Result<T>>) -> Result<T, Failure> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(result) => Ok(result?),
        std::task::Poll::Pending => Err("it waits".into()),
    }
}

impl Store for Journal {
    fn open(directory: &Path) -> Result<Journal, Failure> {
        let (path, options) = (directory.join("journal"), Options::new([7; 16]));
        let limit = 4 << 30;
        let (store, writer) = match path.exists() {
            true => {
                JournaledStore::open(FileMedium::open(&path)?, &options, limit, &mut |_, _| ())?
            }
            false => JournaledStore::create(FileMedium::create(&path)?, &options, limit)?,
        };
        Ok(Journal { store, writer })
    }

    fn group(&mut self, commits: &[Puts]) -> Result<(), Failure> {
        for puts in commits {
            ready(self.store.commit(Batch { puts: puts.clone(), ..Batch::default() }))?;
        }
        // Steps of checkpoints count in, as they do when it serves.
        self.writer.pump(self.store.sources())?;
        ready(self.store.sync())
    }

    fn get(&self, key: &[u8]) -> Result<bool, Failure> {
        Ok(ready(self.store.get(key))?.is_some())
    }

    fn count(&self) -> Result<u64, Failure> {
        Ok(ready(self.store.range(b"i", b"j", usize::MAX))?.len() as u64)
    }
}

/// Memory of this process that is not a file's: bytes.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn bytes_in(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => bytes_in(&entry.path()),
            _ => entry.metadata().map_or(0, |found| found.blocks() * 512),
        })
        .sum()
}

fn fill<S: Store>(name: &str, directory: &Path, inodes: u64) -> Result<(), Failure> {
    let mut store = S::open(directory)?;
    let mut number = 0;
    let mut rates = Vec::new();
    for group in [1, 16, 256] {
        let (start, first) = (Instant::now(), number);
        while start.elapsed() < Duration::from_secs(3) {
            let commits: Vec<Puts> = (number..number + group).map(create).collect();
            store.group(&commits)?;
            number += group;
        }
        rates.push((number - first) as f64 / start.elapsed().as_secs_f64());
    }
    let (start, first) = (Instant::now(), number);
    while number < inodes {
        let commits: Vec<Puts> = (number..number + 4096).map(create).collect();
        store.group(&commits)?;
        number += 4096;
    }
    let load = (number - first) as f64 / start.elapsed().as_secs_f64();
    print!("| {name} | {:.0} | {:.0} | {:.0} | {load:.0} |", rates[0], rates[1], rates[2]);
    Ok(())
}

fn come_back<S: Store>(directory: &Path) -> Result<(), Failure> {
    let size = bytes_in(directory) >> 20;
    let start = Instant::now();
    let store = S::open(directory)?;
    let opened = start.elapsed().as_secs_f64();
    let count = store.count()?;
    let counted = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let mut found = 0;
    for step in 0..200_000u64 {
        let key = create(step.wrapping_mul(7_919) % count).swap_remove(0).0;
        found += u64::from(store.get(&key)?);
    }
    assert_eq!(found, 200_000, "what was committed is there");
    let gets = 200_000.0 / start.elapsed().as_secs_f64();
    let memory = own_memory() >> 20;
    println!(" {count} | {opened:.2} | {counted:.2} | {memory} | {size} | {gets:.0} |");
    Ok(())
}

fn run<S: Store>(word: &str, name: &str, directory: &Path, inodes: u64) -> Result<(), Failure> {
    match word {
        "fill" => fill::<S>(name, directory, inodes),
        _ => come_back::<S>(directory),
    }
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let [_, word @ ("fill" | "come-back"), name, directory, inodes] = words[..] {
        let (directory, inodes) = (Path::new(directory), inodes.parse()?);
        return match name {
            "lmdb" => run::<Lmdb>(word, name, directory, inodes),
            "redb" => run::<Redb>(word, name, directory, inodes),
            "fjall" => run::<Fjall>(word, name, directory, inodes),
            _ => run::<Journal>(word, name, directory, inodes),
        };
    }
    let base = words.get(1).copied().unwrap_or(".");
    let inodes = words.get(2).copied().unwrap_or("1000000");
    println!(
        "| store | creates/s, each synced | 16 a sync | 256 a sync | 4096 a sync | inodes | s to open | s to open and count | own MiB | disk MiB | gets/s |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for name in ["lmdb", "redb", "fjall", "journal"] {
        let directory = tempfile::tempdir_in(base)?;
        for word in ["fill", "come-back"] {
            let mut command = std::process::Command::new(std::env::current_exe()?);
            command.args([word, name]).arg(directory.path()).arg(inodes);
            if !command.status()?.success() {
                return Err(format!("{word} {name} failed").into());
            }
        }
    }
    Ok(())
}
