//! Pools that last: what is known of them while they are down.

use crate::args;
use crate::failure::{Failure, Outcome, Pace, print, status, tell};
use crate::pool::{Access, Store};
use crate::servers::Plan;
use crate::size;
use crate::state::{PoolDirectory, Standing};
use crate::sys::{self, Signals};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_client::Formed;
use weir_core::error::{Error, Result};
use weir_core::wire::control::ScrubReport;

/// `kept.json`, beside the pool's secret and for the same eyes only: it holds the key of
/// capabilities.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeptFile {
    /// Of this file.
    format: u32,
    /// With what its servers are started.
    pub(crate) plan: Plan,
    /// Who they are, and for which pool. None: it was never whole.
    pub(crate) formed: Formed,
}

/// Format 1 had no size: all data was in the journals.
const FORMAT: u32 = 2;
const NAME: &str = "kept.json";

#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// Where the servers of a kept pool keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Keeping {
    /// Each server has a directory of its own in it.
    pub(crate) directory: PathBuf,
    /// Room for data that each server takes: bytes.
    pub(crate) size: u64,
    /// Whether everything is there already.
    pub(crate) back: bool,
}

impl Keeping {
    /// Server `index`'s directory.
    pub(crate) fn of_server(&self, index: usize) -> PathBuf {
        self.directory.join(format!("server-{index}"))
    }
}

impl KeptFile {
    pub(crate) fn new(plan: Plan, formed: Formed) -> KeptFile {
        KeptFile { format: FORMAT, plan, formed }
    }

    /// Whether a pool's directory is a kept pool's.
    pub(crate) fn is_in(directory: &Path) -> bool {
        directory.join(NAME).exists()
    }

    pub(crate) fn read(directory: &PoolDirectory) -> Outcome<KeptFile> {
        let path = directory.path.join(NAME);
        let trouble = |error| Failure::system("read", path.display(), error);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Failure::system("read", path.display(), error))?;
        // First of all: another format need not parse.
        match serde_json::from_str::<Versioned>(&text).map_err(trouble)?.format {
            FORMAT => serde_json::from_str(&text).map_err(trouble),
            other => Err(Failure::say(format!(
                "read {}: format {other}, this program knows {FORMAT}; the pool comes up with the program that made it",
                path.display()
            ))),
        }
    }

    pub(crate) fn write(&self, directory: &PoolDirectory) -> Outcome<()> {
        let text =
            serde_json::to_vec(self).map_err(|error| Failure::system("write", NAME, error))?;
        directory.store(NAME, &text)?;
        // Without it nobody finds what the servers' disks hold.
        let synced =
            std::fs::File::open(directory.path.join(NAME)).and_then(|file| file.sync_all());
        let synced = synced
            .and_then(|()| std::fs::File::open(directory.path.join("secret"))?.sync_all())
            .and_then(|()| std::fs::File::open(&directory.path)?.sync_all());
        synced.map_err(|error| Failure::system("sync", directory.path.display(), error))
    }

    /// The directory of the kept pool of this name, if there is one and it is up.
    pub(crate) fn find_up(name: &str) -> Outcome<Option<PoolDirectory>> {
        let directory = PoolDirectory::of(name)?;
        let up = directory.read().is_ok_and(|file| file.standing() == Standing::Up);
        Ok((KeptFile::is_in(&directory.path) && up).then_some(directory))
    }

    /// The kept pool of this name, if there is one and it is down.
    ///
    /// # Errors
    /// If it is up already.
    pub(crate) fn find(name: &str) -> Outcome<Option<(PoolDirectory, KeptFile)>> {
        let directory = PoolDirectory::of(name)?;
        if !KeptFile::is_in(&directory.path) {
            return Ok(None);
        }
        match directory.read().map(|file| file.standing()) {
            Ok(Standing::Up) => Err(Failure::say(format!(
                "bring pool {name} back: it is up already; 'weir down {name}' ends it"
            ))),
            Ok(Standing::Forming) => {
                Err(Failure::say(format!("bring pool {name} back: another weir is doing it")))
            }
            _ => KeptFile::read(&directory).map(|file| Some((directory, file))),
        }
    }

    /// Removes what the servers of a kept pool have on this machine: nothing else.
    pub(crate) fn destroy(&self) -> Outcome<()> {
        let Some(keeping) = self.plan.keeping() else { return Ok(()) };
        for index in 0..self.formed.map.servers.len() {
            let directory = keeping.of_server(index);
            for name in ["target", "blocks", "data", "metadata"] {
                match std::fs::remove_file(directory.join(name)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        let path = directory.join(name);
                        return Err(Failure::new(
                            status::UNAVAILABLE,
                            format!("remove {}: {error}; the rest was left alone", path.display()),
                        ));
                    }
                    _ => {}
                }
            }
            let _ = std::fs::remove_dir(&directory);
        }
        Ok(())
    }
}

/// How often it is asked how far the servers are.
const SCRUB_PAUSE: Duration = Duration::from_millis(200);

/// `weir scrub` of a pool that is up.
fn scrub_up(options: &args::Scrub, directory: &PoolDirectory) -> Outcome<u8> {
    if options.rate == 0 {
        return Err(Failure::usage("--rate 0: nothing would ever be read"));
    }
    let store = Store::connect(&Access::new(&directory.read()?, &directory.secret()?))?;
    let _signals = Signals::catch(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let count = store.map().servers.len();
    let mut pace = Pace::new();
    let mut reports: Vec<Result<ScrubReport>> =
        (0..count).map(|index| store.scrub(index, options.rate)).collect();
    while reports.iter().flatten().any(|report| report.running) {
        if sys::interrupted().is_some() {
            return Err(Failure::say("scrub: interrupted; the servers go on with it"));
        }
        if pace.is_due() {
            let sum =
                |part: fn(&ScrubReport) -> u64| reports.iter().flatten().map(part).sum::<u64>();
            let share = 100 * sum(|it| it.done.min(it.all)) / sum(|it| it.all).max(1);
            tell(format_args!("verified {share} %"));
        }
        std::thread::sleep(SCRUB_PAUSE);
        for (index, report) in reports.iter_mut().enumerate() {
            if report.as_ref().is_ok_and(|report| report.running) {
                *report = store.scrub(index, 0);
            }
        }
    }
    let mut verdict = Verdict::new(options);
    for (index, report) in reports.into_iter().enumerate() {
        let failed = |error: Error| ScrubReport {
            errors: 1,
            bad: vec![error.to_string()],
            ..ScrubReport::default()
        };
        let report = report.unwrap_or_else(failed);
        let verified = verified(report.done, report.chunks, report.records);
        let json = serde_json::json!({
            "server": index, "records": report.records, "chunks": report.chunks, "bytes": report.done,
            "errors": report.bad, "error_count": report.errors,
        });
        verdict.server(index, &verified, report.errors, &report.bad, json)?;
    }
    verdict.end()
}

fn verified(bytes: u64, chunks: u64, records: u64) -> String {
    format!("{} in {chunks} chunks and {records} records", size::show(bytes))
}

/// What `weir scrub` tells of a pool's servers, one after the other.
struct Verdict<'a> {
    options: &'a args::Scrub,
    servers: Vec<serde_json::Value>,
    bad: bool,
}

impl Verdict<'_> {
    fn new(options: &args::Scrub) -> Verdict<'_> {
        Verdict { options, servers: Vec::new(), bad: false }
    }

    /// So much of a server's disk was verified, with so many errors, of which these have names.
    fn server(
        &mut self,
        index: usize,
        verified: &str,
        errors: u64,
        named: &[String],
        json: serde_json::Value,
    ) -> Outcome<()> {
        self.bad |= errors > 0;
        self.servers.push(json);
        if self.options.json {
            return Ok(());
        }
        print(format_args!("server {index}: {verified} verified, {errors} errors\n"))?;
        named.iter().try_for_each(|error| print(format_args!("  {error}\n")))
    }

    /// Gives the exit status.
    fn end(self) -> Outcome<u8> {
        if self.options.json {
            let json = serde_json::json!({ "name": self.options.name, "servers": self.servers });
            print(format_args!("{json:#}\n"))?;
        }
        Ok(u8::from(self.bad))
    }
}

/// `weir scrub`.
pub(crate) fn scrub(options: &args::Scrub) -> Outcome<u8> {
    let name = &options.name;
    if let Some(directory) = KeptFile::find_up(name)? {
        return scrub_up(options, &directory);
    }
    let Some((_, kept)) = KeptFile::find(name)? else {
        return Err(Failure::say(format!("scrub pool {name}: there is no kept pool of that name")));
    };
    let Some(keeping) = kept.plan.keeping() else { return Ok(0) };
    let mut verdict = Verdict::new(options);
    for index in 0..kept.formed.map.servers.len() {
        let directory = keeping.of_server(index);
        let mut pace = Pace::new();
        let progress = &mut |what: &str, done: u64, all: u64| {
            if pace.is_due() {
                let share = 100 * done / all.max(1);
                tell(format_args!("server {index}, {what}: {share} %"));
            }
        };
        let found = weir_server::scrub(&directory, index == 0, progress);
        let (found, errors) = match found {
            Ok(found) => {
                let texts = found.errors.iter();
                let texts = texts.map(|(path, error)| format!("{}: {error}", path.display()));
                let texts: Vec<String> = texts.collect();
                (found, texts)
            }
            Err(error) => (weir_server::Scrubbed::default(), vec![error.to_string()]),
        };
        let verified = verified(found.bytes, found.chunks, found.records);
        let json = serde_json::json!({
            "server": index, "directory": directory, "records": found.records, "chunks": found.chunks,
            "bytes": found.bytes, "errors": errors,
        });
        verdict.server(index, &verified, errors.len() as u64, &errors, json)?;
    }
    verdict.end()
}
