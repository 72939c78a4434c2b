//! `weir doctor`: what this machine lacks, and what to do about it.

use crate::args;
use crate::config::{self, Settings};
use crate::failure::{Outcome, plain, print};
use crate::mpi;
use crate::run::{job, preload};
use crate::size::show;
use crate::state::PoolDirectory;
use crate::sys;
use serde::Serialize;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use weir_fuse::Requests;

/// Open files below which a busy server runs out.
const OPEN_FILES_MIN: u64 = 16 * 1024;
/// Memory below which a pool is not worth while: bytes.
const MEMORY_MIN: u64 = 512 << 20;
/// Locked memory that registering buffers for RDMA or io_uring takes: bytes.
const LOCKED_MIN: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// One thing that weir needs or likes.
#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do; empty if nothing.
    advice: String,
}

impl Finding {
    fn new(
        name: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        advice: &str,
    ) -> Finding {
        let advice = if verdict == Verdict::Ok { String::new() } else { advice.to_owned() };
        Finding { name, verdict, found: found.into(), advice }
    }
}

/// `weir doctor`.
pub(crate) fn doctor(options: &args::Doctor) -> Outcome<u8> {
    let mut findings = mounting();
    findings.extend([
        open_files(),
        locked_memory(),
        memory(),
        overcommit(),
        huge_pages(),
        loopback(),
        shared_memory(),
        preload_library(),
        mpi_io(),
        configuration(),
        pools(),
    ]);
    let failed = findings.iter().filter(|finding| finding.verdict == Verdict::Fail).count();
    let mut out = String::new();
    if options.json {
        let json = serde_json::json!({ "ok": failed == 0, "findings": findings });
        out = format!("{json:#}\n");
    } else {
        for finding in &findings {
            let word = match finding.verdict {
                Verdict::Ok => "ok  ",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            out += &format!("{word}  {:<20} {}\n", finding.name, finding.found);
            if !finding.advice.is_empty() {
                out += &format!("      {:<20} -> {}\n", "", finding.advice);
            }
        }
        out += match failed {
            0 => "nothing that weir needs is missing\n",
            _ => "weir cannot work here before what is marked FAIL is done\n",
        };
    }
    print(out)?;
    Ok(u8::from(failed > 0))
}

/// Half of the speed.
fn preload_library() -> Finding {
    match preload::find_library() {
        Ok(path) => Finding::new("preload library", Verdict::Ok, path.display().to_string(), ""),
        Err(cause) => Finding::new(
            "preload library",
            Verdict::Warn,
            cause,
            "put it beside weir; without it programs read and write at about half the rate",
        ),
    }
}

/// Which MPIs' programs find `weir:` names.
fn mpi_io() -> Finding {
    let name = "MPI-IO";
    if let Err(cause) = preload::find_mpi_library() {
        let advice = "make -C mpi in the source tree, or put it beside weir; without it programs of MPI use the mount, and no weir: names";
        return Finding::new(name, Verdict::Warn, cause, advice);
    }
    let (served, present) = (mpi::served(), mpi::present());
    let missing: Vec<_> = present.difference(&served).cloned().collect();
    let list = |names: Vec<String>| match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    };
    let mut found = format!("served: {}", list(served.into_iter().collect()));
    if missing.is_empty() {
        return Finding::new(name, Verdict::Ok, found, "");
    }
    found += &format!("; found and not served: {}", missing.join(", "));
    let advice =
        "weir mpi MPICC, with that MPI's compiler; without it weir: names are errors there";
    Finding::new(name, Verdict::Warn, found, advice)
}

/// Device, helper, namespaces: one way to mount is enough.
fn mounting() -> Vec<Finding> {
    let device = match std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Finding::new("/dev/fuse", Verdict::Ok, "opens", ""),
        Err(error) => {
            let advice = match error.kind() {
                std::io::ErrorKind::NotFound => {
                    "as root: modprobe fuse; in a container: start it with --device /dev/fuse"
                }
                _ => "as root: chmod 666 /dev/fuse",
            };
            Finding::new("/dev/fuse", Verdict::Warn, plain(error), advice)
        }
    };
    let private = match job::try_private_mount() {
        Ok(()) => {
            Finding::new("private mounts", Verdict::Ok, "mounted in a namespace of its own", "")
        }
        Err(failure) => {
            let cause = failure.text.split("; 'weir doctor'").next().unwrap_or_default().to_owned();
            Finding::new("private mounts", Verdict::Warn, cause, namespace_advice())
        }
    };
    let root = nix::unistd::Uid::effective().is_root();
    let helper = match which("fusermount3") {
        None => Finding::new(
            "fusermount3",
            Verdict::Warn,
            "not found",
            "as root: apt-get install fuse3",
        ),
        Some(path) => {
            let setuid =
                path.metadata().is_ok_and(|found| found.mode() & 0o4000 != 0 && found.uid() == 0);
            match root || setuid {
                true => Finding::new("fusermount3", Verdict::Ok, path.display().to_string(), ""),
                false => Finding::new(
                    "fusermount3",
                    Verdict::Warn,
                    format!("{} is not setuid root", path.display()),
                    "as root: chmod u+s it, or apt-get install --reinstall fuse3",
                ),
            }
        }
    };
    // The helper opens the device as the user that calls it.
    let works = device.verdict == Verdict::Ok
        && (private.verdict == Verdict::Ok || helper.verdict == Verdict::Ok);
    let summary = match works {
        true => Finding::new("weir run, weir mount", Verdict::Ok, "can mount", ""),
        // It knows less than a mount (docs/posix.md).
        false if preload::find_library().is_ok() => Finding::new(
            "weir run, weir mount",
            Verdict::Warn,
            "cannot mount: weir run does with the preload library alone",
            "one of the above must work for programs that need more, and for weir mount",
        ),
        false => Finding::new(
            "weir run, weir mount",
            Verdict::Fail,
            "cannot mount",
            "one of the above must work; weir cp, ls and the library do without",
        ),
    };
    let requests = match Requests::here() {
        Requests::ByIoUring => "by /dev/fuse, or with --io-uring by io_uring".to_owned(),
        Requests::ByDevice => "by /dev/fuse; this kernel has no other way".to_owned(),
        Requests::Forbidden(cause) => format!("by /dev/fuse; --io-uring changes nothing: {cause}"),
    };
    let requests = Finding::new("requests of a mount", Verdict::Ok, requests, "");
    vec![device, private, helper, requests, summary]
}

/// The knob that forbids user namespaces, if it can be told.
fn namespace_advice() -> &'static str {
    let value =
        |name: &str| std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default();
    if value("kernel/unprivileged_userns_clone").trim() == "0" {
        "as root: sysctl -w kernel.unprivileged_userns_clone=1"
    } else if value("user/max_user_namespaces").trim() == "0" {
        "as root: sysctl -w user.max_user_namespaces=10000"
    } else if value("kernel/apparmor_restrict_unprivileged_userns").trim() == "1" {
        "as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    } else {
        "in a container: start it with --device /dev/fuse --cap-add SYS_ADMIN; fusermount3 does too"
    }
}

fn which(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|directory| directory.join(name)).find(|path| path.is_file())
}

fn limit(resource: nix::sys::resource::Resource) -> u64 {
    nix::sys::resource::getrlimit(resource).map_or(0, |(_, hard)| hard)
}

fn count_text(value: u64) -> String {
    if value == u64::MAX { "unlimited".to_owned() } else { value.to_string() }
}

fn open_files() -> Finding {
    let hard = limit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    let verdict = if hard >= OPEN_FILES_MIN { Verdict::Ok } else { Verdict::Warn };
    let advice = "many clients need more: raise nofile in /etc/security/limits.conf, or LimitNOFILE of the service";
    Finding::new("open files", verdict, format!("up to {}", count_text(hard)), advice)
}

fn locked_memory() -> Finding {
    let hard = limit(nix::sys::resource::Resource::RLIMIT_MEMLOCK);
    let verdict = if hard >= LOCKED_MIN { Verdict::Ok } else { Verdict::Warn };
    let found =
        if hard == u64::MAX { "unlimited".to_owned() } else { format!("up to {}", show(hard)) };
    let advice =
        "TCP does without; InfiniBand would not: raise memlock in /etc/security/limits.conf";
    Finding::new("locked memory", verdict, found, advice)
}

fn memory() -> Finding {
    let available = sys::memory_available();
    let verdict = if available >= MEMORY_MIN { Verdict::Ok } else { Verdict::Warn };
    let advice = "little is left for a pool: end other programs, or raise the container's limit";
    Finding::new("memory", verdict, format!("{} available", show(available)), advice)
}

fn overcommit() -> Finding {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    match mode.trim() {
        "2" => Finding::new(
            "overcommit",
            Verdict::Warn,
            "memory is handed out strictly",
            "a pool's memory counts from the start, used or not; as root: sysctl -w vm.overcommit_memory=0",
        ),
        _ => Finding::new("overcommit", Verdict::Ok, "memory counts when it is used", ""),
    }
}

fn huge_pages() -> Finding {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let chosen = text.split(['[', ']']).nth(1).unwrap_or("none");
    let verdict = if matches!(chosen, "always" | "madvise") { Verdict::Ok } else { Verdict::Warn };
    let advice = "servers are somewhat slower; as root: echo madvise >/sys/kernel/mm/transparent_hugepage/enabled";
    Finding::new("huge pages", verdict, chosen, advice)
}

fn loopback() -> Finding {
    let attempt = || -> std::io::Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let mut client = std::net::TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        server.write_all(b"weir")?;
        let mut bytes = [0; 4];
        client.read_exact(&mut bytes)
    };
    match attempt() {
        Ok(()) => Finding::new("loopback network", Verdict::Ok, "works", ""),
        Err(error) => Finding::new(
            "loopback network",
            Verdict::Fail,
            plain(error),
            "as root: ip link set lo up",
        ),
    }
}

fn shared_memory() -> Finding {
    let (verdict, found) = match weir_client::check_shared_memory() {
        Ok(()) => (Verdict::Ok, "servers of this machine are reached by it".to_owned()),
        Err(error) => (Verdict::Warn, plain(error)),
    };
    let advice = "servers of this machine are reached by TCP, at a half of the speed; it takes memfd_create with seals";
    Finding::new("shared memory", verdict, found, advice)
}

/// Which file is in force, and what it and the environment set.
fn configuration() -> Finding {
    let name = "configuration";
    let settings = match Settings::find(&|name| std::env::var_os(name)) {
        Ok(settings) => settings,
        Err(failure) => {
            let advice = "mend it: until then no pool can be made";
            return Finding::new(name, Verdict::Fail, failure.text, advice);
        }
    };
    let mut found = match (&settings.file, config::default_file()) {
        (Some(file), _) => {
            let keys: Vec<&str> = settings.from_file.iter().map(|(key, _)| *key).collect();
            let keys = if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") };
            format!("{} sets {keys}", file.display())
        }
        (None, Some(file)) => format!("none; it would be {}", file.display()),
        (None, None) => "none".to_owned(),
    };
    let set = settings.from_environment.iter().map(|(key, _)| config::variable(key));
    let set: Vec<String> = set.collect();
    if !set.is_empty() {
        found += &format!("; the environment sets {}", set.join(", "));
    }
    Finding::new(name, Verdict::Ok, found, "")
}

fn pools() -> Finding {
    match PoolDirectory::check_home() {
        Ok(path) => Finding::new("pool directory", Verdict::Ok, path.display().to_string(), ""),
        Err(failure) => Finding::new(
            "pool directory",
            Verdict::Fail,
            failure.text,
            "set WEIR_HOME to a directory of yours",
        ),
    }
}
