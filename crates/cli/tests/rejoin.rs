//! Kept pools of which one server dies alone, and comes back while everybody else goes on.

mod common;

use common::native::{connect, me};
use common::{LIMIT, Place, noise, signal};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_client::Pool;
use weir_core::error::Code;
use weir_core::fs::File;
use weir_core::types::Ino;
use weir_core::wire::meta::{LayoutWish, OpenMode, Place as At};

type PoolFile = File<weir_client::Net>;

/// Rounds of killing; `WEIR_KEPT_ROUNDS` asks for more.
const ROUNDS: usize = 4;

fn up(place: &Place, more: &[&str]) {
    let directory = format!("{}:160M", place.path("disk").display());
    let words = ["up", "k", "--servers", "3", "--memory", "32M", "--stripe-size", "64K", "--kept"];
    let mut words = words.to_vec();
    words.push(&directory);
    words.extend(more);
    place.good(&words);
}

/// As [`up`]; gives where it is mounted.
fn up_mounted(place: &Place) -> PathBuf {
    let mount = place.path("mnt");
    std::fs::create_dir(&mount).expect("made");
    up(place, &["--mount", mount.to_str().expect("utf-8")]);
    mount
}

fn open(pool: &Pool, name: &str) -> PoolFile {
    let place = At::new(Ino::ROOT, name.as_bytes());
    let wish = LayoutWish::default();
    let who = me();
    let create = pool.fs().create(&who, place, 0o600, false, OpenMode::READ_WRITE, wish);
    pool.run(create).expect("opens").0
}

fn server(place: &Place, index: usize) -> Option<i32> {
    let mark = format!("/server-{index}:");
    let processes = place.processes().into_iter();
    let mut servers = processes.filter(|(_, line)| line.contains(" server --tether"));
    servers.find(|(_, line)| line.contains(&mark)).map(|(pid, _)| pid)
}

fn kill(place: &Place, index: usize) {
    let pid = server(place, index).expect("it runs");
    signal(pid, libc::SIGKILL);
}

/// Waits until the keeper has brought a server back so many times.
fn wait_back(place: &Place, index: usize, times: usize) {
    let log = place.home().join("pools/k/keeper.log");
    let said = format!("server {index} is back");
    let until = Instant::now() + LIMIT;
    loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.matches(&said).count() >= times {
            return;
        }
        assert!(Instant::now() < until, "server {index} does not come back: {text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_was_not_synced_is_told_once_and_all_else_goes_on() {
    let place = Place::new();
    up(&place, &[]);
    let pool = connect(&place);
    let (old, new) = (noise(1 << 20), noise((1 << 20) + 1)[1..].to_vec());
    let synced = open(&pool, "synced");
    let torn = open(&pool, "torn");
    let read_only = pool.run(pool.fs().open(&me(), torn.ino(), OpenMode::READ)).expect("opens").0;
    let second = open(&pool, "torn");
    for file in [&synced, &torn] {
        pool.run(file.write_at(&old, 0)).expect("written");
        pool.run(file.sync()).expect("synced");
    }
    pool.run(torn.write_at(&new, 0)).expect("written");
    kill(&place, 1);
    // Whoever has lost nothing notices nothing, but that it takes a moment.
    let mut bytes = vec![0; old.len()];
    pool.run(synced.read_at(&mut bytes, 0)).expect("read again");
    assert!(bytes == old);
    pool.run(synced.write_at(&new[..300_000], 0)).expect("written");
    pool.run(synced.sync()).expect("nothing is lost");
    // The writer does not read what is older than what he wrote.
    let error = pool.run(torn.read_at(&mut bytes, 0)).expect_err("part of it is gone");
    assert_eq!(error.code, Code::Lost, "{error}");
    let cause = "server 1 came back without what was not synced";
    assert!(error.to_string().contains(cause), "{error}");
    for (writer, who) in [(&torn, "the writer"), (&second, "who has it open, too")] {
        let error = pool.run(writer.sync()).expect_err(who);
        assert_eq!((error.code, &error.cause[..]), (Code::Lost, cause), "{who}");
        pool.run(writer.sync()).expect("told once");
    }
    // Stripes of the others are new, those of the one that died are what was synced, or new.
    pool.run(torn.read_at(&mut bytes, 0)).expect("reads");
    let first = usize::try_from(torn.layout().member(0).target.0).expect("small");
    for (index, stripe) in bytes.chunks(64 << 10).enumerate() {
        let range = index * (64 << 10)..index * (64 << 10) + stripe.len();
        let whose = (first + index) % 3;
        let is_old = whose == 1 && *stripe == old[range.clone()];
        assert!(is_old || *stripe == new[range], "stripe {index} of server {whose}");
    }
    pool.run(torn.write_at(&new, 0)).expect("written");
    pool.run(torn.sync()).expect("synced");
    pool.run(read_only.read_at(&mut bytes, 0)).expect("reads");
    assert!(bytes == new);
    // A file that was closed and not synced does not look longer than it is.
    let short = open(&pool, "short");
    pool.run(short.write_at(&old, 0)).expect("written");
    pool.run(short.close()).expect("closed");
    kill(&place, 2);
    wait_back(&place, 2, 1);
    let found = pool.run(pool.fs().attributes(&me(), short.ino())).expect("found");
    let short = pool.run(pool.fs().open(&me(), short.ino(), OpenMode::READ)).expect("opens").0;
    let length = pool.run(short.read_at(&mut bytes, 0)).expect("read");
    assert_eq!(found.size, length as u64);
    drop(pool);
    place.good(&["down", "k"]);
    place.good(&["up", "k"]);
    place.good(&["cp", "weir:/torn", "torn"]);
    assert!(std::fs::read(place.path("torn")).expect("read") == new);
    place.good(&["down", "--destroy", "k"]);
    place.nothing_left();
}

const RECORD: usize = 40_000;
const RECORDS: usize = 12;

/// What is known of a file: of each record the version that was synced, and the last begun.
type Known = [(u32, u32); RECORDS];

/// Every four bytes of a record say its version.
fn record(version: u32) -> Vec<u8> {
    version.to_le_bytes().iter().copied().cycle().take(RECORD).collect()
}

/// Looks at what is left of the records, which counts from now on.
fn look(known: &mut Known, bytes: &[u8]) {
    for (index, ((synced, written), bytes)) in
        known.iter_mut().zip(bytes.chunks(RECORD)).enumerate()
    {
        let versions =
            || bytes.chunks_exact(4).map(|it| u32::from_le_bytes(it.try_into().expect("4")));
        for version in versions() {
            let fits = (*synced..=*written).contains(&version);
            assert!(fits, "record {index}: {version}, synced {synced}, written {written}");
        }
        (*synced, *written) = (versions().min().unwrap_or(0), versions().max().unwrap_or(0));
    }
}

/// How the writer below gets at his file.
trait Access {
    /// None: something is lost.
    fn write(&mut self, index: usize, bytes: &[u8]) -> Option<()>;
    fn read(&mut self, bytes: &mut [u8]) -> Option<()>;
    fn sync(&mut self) -> Option<()>;
}

struct Native(Pool, PoolFile);

fn lost(result: weir_core::error::Result<()>) -> Option<()> {
    match result {
        Ok(()) => Some(()),
        Err(error) if error.code == Code::Lost => None,
        Err(error) => panic!("{error}"),
    }
}

impl Access for Native {
    fn write(&mut self, index: usize, bytes: &[u8]) -> Option<()> {
        lost(self.0.run(self.1.write_at(bytes, (index * RECORD) as u64)))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        lost(self.0.run(self.1.read_at(bytes, 0)).map(drop))
    }

    fn sync(&mut self) -> Option<()> {
        lost(self.0.run(self.1.sync()))
    }
}

struct Mounted(std::fs::File);

fn eio(result: std::io::Result<()>) -> Option<()> {
    match result {
        Ok(()) => Some(()),
        Err(error) if error.raw_os_error() == Some(libc::EIO) => None,
        Err(error) => panic!("{error}"),
    }
}

impl Access for Mounted {
    fn write(&mut self, index: usize, bytes: &[u8]) -> Option<()> {
        self.0.seek(std::io::SeekFrom::Start((index * RECORD) as u64)).expect("seeks");
        eio(self.0.write_all(bytes))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        self.0.seek(std::io::SeekFrom::Start(0)).expect("seeks");
        eio(self.0.read_exact(bytes))
    }

    fn sync(&mut self) -> Option<()> {
        eio(self.0.sync_all())
    }
}

/// Writes, reads and syncs a file until told to stop; gives how often something was lost.
fn work(mut file: impl Access, stop: &AtomicBool) -> (Known, usize) {
    let mut known = [(1, 1); RECORDS];
    (0..RECORDS).for_each(|index| file.write(index, &record(1)).expect("nothing has died yet"));
    file.sync().expect("nor now");
    let mut live = record(1).repeat(RECORDS);
    let mut bytes = live.clone();
    let (mut version, mut losses) = (1, 0);
    while !stop.load(Ordering::Relaxed) {
        version += 1;
        let index = version as usize * 7 % RECORDS;
        known[index].1 = version;
        // Once it is written it is to be read, or it is told that it cannot be.
        live[index * RECORD..(index + 1) * RECORD].copy_from_slice(&record(version));
        let mut step = file.write(index, &record(version));
        if version % 3 == 0 {
            step = step.and_then(|()| file.read(&mut bytes));
            assert!(step.is_none() || bytes == live, "what is read is not what was written");
        }
        if version % 5 == 0 && step.is_some() {
            step = file.sync();
            if step.is_some() {
                known.iter_mut().for_each(|slot| slot.0 = slot.1);
                continue;
            }
            losses += 1;
        } else if step.is_some() {
            continue;
        } else {
            losses += 1;
            assert!(file.sync().is_none(), "a loss was found, and a sync does not tell it");
        }
        // Told: what is there now is safe, by that very sync.
        file.read(&mut bytes).expect("it has been told");
        look(&mut known, &bytes);
        live.copy_from_slice(&bytes);
    }
    (known, losses)
}

#[test]
fn servers_killed_one_at_a_time_under_verifying_writers_lose_nothing_that_was_synced() {
    let place = Place::new();
    let mount = up_mounted(&place);
    // Three times what memory holds: not all is in memory when a server comes back.
    let ballast = noise(192 << 20);
    place.write("ballast", &ballast);
    place.good(&["cp", "ballast", "weir:/"]);
    let rounds = std::env::var("WEIR_KEPT_ROUNDS").ok().and_then(|it| it.parse().ok());
    let stop = AtomicBool::new(false);
    let results = std::thread::scope(|scope| {
        let native = scope.spawn(|| {
            let pool = connect(&place);
            let file = open(&pool, "native");
            work(Native(pool, file), &stop)
        });
        let mounted = scope.spawn(|| {
            let mut options = std::fs::File::options();
            let path = mount.join("mounted");
            let file = options.read(true).write(true).create(true).truncate(true).open(path);
            work(Mounted(file.expect("opens")), &stop)
        });
        let mut times = [0; 3];
        for round in 0..rounds.unwrap_or(ROUNDS) {
            std::thread::sleep(Duration::from_millis(300 + round as u64 * 217 % 400));
            let index = 1 + round % 2;
            if native.is_finished() || mounted.is_finished() {
                break;
            }
            kill(&place, index);
            times[index] += 1;
            if round > 2 {
                // The keeper has had enough of it: somebody must ask.
                let until = Instant::now() + LIMIT;
                while server(&place, index).is_some() {
                    assert!(Instant::now() < until);
                }
                std::thread::sleep(Duration::from_millis(100));
                let said = place.good(&["up", "k"]);
                assert!(said.contains(&format!("server {index} is back")), "{said}");
            }
            wait_back(&place, index, times[index]);
        }
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        [native.join().expect("native"), mounted.join().expect("mounted")]
    });
    let losses: usize = results.iter().map(|(_, losses)| losses).sum();
    assert!(losses > 0, "nothing was ever lost: there was nothing to be found");
    place.good(&["cp", "weir:/ballast", "again"]);
    assert!(std::fs::read(place.path("again")).expect("read") == ballast);
    // And all of it outlives the whole pool.
    place.good(&["down", "k"]);
    place.good(&["up", "k"]);
    for (name, (mut known, _)) in ["native", "mounted"].into_iter().zip(results) {
        place.good(&["cp", &format!("weir:/{name}"), name]);
        look(&mut known, &std::fs::read(place.path(name)).expect("read"));
    }
    place.good(&["down", "--destroy", "k"]);
    place.nothing_left();
}

/// A program that has a file of the pool open, with the preload library: the mount lends it.
struct Borrower(Child);

impl Borrower {
    fn start(place: &Place, path: &Path) -> Borrower {
        let test = std::env::current_exe().expect("this test has a path");
        let library = test.with_file_name("libweir_preload.so");
        assert!(library.exists(), "{} was not built", library.display());
        const PROGRAM: &str = "
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for word in sys.stdin:
    try:
        if word == 'write\\n':
            # So much that it is worth a connection.
            for _ in range(20):
                os.pwrite(descriptor, os.urandom(300_000), 0)
        else:
            os.fsync(descriptor)
        print(0, flush=True)
    except OSError as error:
        print(error.errno, flush=True)
";
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).arg(path).env("LD_PRELOAD", library);
        command.env("WEIR_HOME", place.home()).stdin(Stdio::piped()).stdout(Stdio::piped());
        Borrower(command.spawn().expect("python3 starts"))
    }

    /// Has it do something; gives the error number, or 0.
    fn does(&mut self, word: &str) -> i32 {
        let input = self.0.stdin.as_mut().expect("a pipe");
        writeln!(input, "{word}").expect("it listens");
        let mut line = String::new();
        let mut output = BufReader::with_capacity(1, self.0.stdout.as_mut().expect("a pipe"));
        output.read_line(&mut line).expect("it answers");
        line.trim().parse().expect("a number")
    }

    fn has_connections(&self) -> bool {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).expect("it runs");
        let mut links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.any(|link| link.to_string_lossy().starts_with("socket:"))
    }
}

impl Drop for Borrower {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_that_was_lent_a_file_is_told_of_what_it_wrote_and_did_not_sync_alone() {
    let place = Place::new();
    let mount = up_mounted(&place);
    let mut program = Borrower::start(&place, &mount.join("lent"));
    let mut idle = Borrower::start(&place, &mount.join("lent"));
    assert_eq!((program.does("write"), program.does("sync")), (0, 0));
    assert_eq!((idle.does("write"), idle.does("sync")), (0, 0));
    assert!(program.has_connections() && idle.has_connections(), "nothing was lent");
    kill(&place, 1);
    wait_back(&place, 1, 1);
    assert_eq!(program.does("sync"), 0, "all of it had been synced");
    assert_eq!(program.does("write"), 0);
    kill(&place, 1);
    wait_back(&place, 1, 2);
    assert_eq!(program.does("sync"), libc::EIO, "it was not synced");
    assert_eq!(program.does("sync"), 0, "told once");
    assert_eq!(idle.does("sync"), libc::EIO, "each opening is told");
    // Nor is it told of what others wrote before it began.
    assert_eq!((program.does("write"), program.does("sync")), (0, 0));
    drop(program);
    drop(idle);
    place.good(&["down", "--destroy", "k"]);
    place.nothing_left();
}

#[test]
fn a_pool_whose_names_died_comes_back_as_a_whole() {
    let place = Place::new();
    up(&place, &[]);
    place.write("file", noise(300_000));
    place.good(&["cp", "file", "weir:/"]);
    place.bad(&["up", "k"], 1, &["up already"]);
    kill(&place, 0);
    let until = Instant::now() + LIMIT;
    while server(&place, 0).is_some() {
        assert!(Instant::now() < until);
    }
    place.bad(&["up", "k"], 1, &["server 0, which has its names, is gone"]);
    place.good(&["down", "k"]);
    place.good(&["up", "k"]);
    place.good(&["cp", "weir:/file", "again"]);
    assert!(std::fs::read(place.path("again")).expect("read") == noise(300_000));
    place.good(&["down", "--destroy", "k"]);
    place.nothing_left();
}
