//! What netpipe runs in processes of their own.

use super::wire;
use crate::process::{Child, announce, listen, wait_for_end};
use std::io::BufRead;
use std::path::{Path, PathBuf};
use weir_core::auth::Secret;
use weir_core::config::Timing;
use weir_core::error::{Code, Error, Result};
use weir_fuse::Yardstick;
use weir_net::{Transport, tcp};
use weir_server::{Server, ServerOptions};

/// For the names of a few files.
const METADATA_BYTES: u64 = 16 << 20;

fn trouble(error: std::io::Error) -> Error {
    Error::because(Code::ServerLost, error.to_string()).on("start", "server process")
}

/// A pool's server with memory of this size.
pub(super) fn pool(memory: u64, secret: &Secret) -> Result<Child> {
    Child::start(&format!("pool:{memory}"), &secret.to_text())
}

/// The bare wire's server with memory of this size.
pub(super) fn wire(memory: u64) -> Result<Child> {
    Child::start(&format!("wire:{memory}"), "")
}

/// A mount at a directory, which has a file of this size in its own memory.
pub(super) fn mount(memory: u64, directory: &Path) -> Result<Child> {
    Child::start(&format!("mount:{memory}"), &directory.to_string_lossy())
}

/// What this process is to be, if it was started by [`Child`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Pool { memory: u64 },
    Wire { memory: u64 },
    Mount { memory: u64 },
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Role, String> {
        let wrong = || format!("no such role: {text}");
        let (name, memory) = text.split_once(':').ok_or_else(wrong)?;
        let memory = memory.parse().map_err(|_| wrong())?;
        match name {
            "pool" => Ok(Role::Pool { memory }),
            "wire" => Ok(Role::Wire { memory }),
            "mount" => Ok(Role::Mount { memory }),
            _ => Err(wrong()),
        }
    }
}

/// Which half of the cores a process keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cores {
    /// The first, for the client.
    First,
    /// All others, for servers.
    Others,
}

/// Keeps this process to some of the cores that it may use, if they are more than one. Threads
/// that are made from now on are bound likewise.
pub(super) fn pin(cores: Cores) -> Result<()> {
    let failed = || {
        let cause = std::io::Error::last_os_error().to_string();
        Error::because(Code::Invalid, cause).on("use", "--pin")
    };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid and of this size.
    if unsafe { libc::sched_getaffinity(0, size, &raw mut set) } != 0 {
        return Err(failed());
    }
    // SAFETY: indices below the size of the set.
    let allowed =
        (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) });
    let allowed: Vec<usize> = allowed.collect();
    let [first, others @ ..] = &allowed[..] else { return Ok(()) };
    if others.is_empty() {
        return Ok(());
    }
    // SAFETY: as above.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let kept = if cores == Cores::First { std::slice::from_ref(first) } else { others };
    for &core in kept {
        // SAFETY: an index that the kernel gave.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    // SAFETY: `set` is valid and of this size.
    if unsafe { libc::sched_setaffinity(0, size, &raw const set) } != 0 {
        return Err(failed());
    }
    Ok(())
}

/// Serves until the tether is cut.
pub(super) fn play(role: Role, transport: Transport) -> Result<()> {
    match role {
        Role::Pool { memory } => {
            let line = hear()?;
            let server = Server::start(ServerOptions {
                listen: "127.0.0.1:0".to_owned(),
                transport,
                memory: vec![memory],
                disks: Vec::new(),
                disk_engine: weir_server::Engine::Auto,
                metadata_memory: METADATA_BYTES,
                metadata_dir: None,
                secret: Secret::parse(&line)?,
                threads: 0,
                timing: Timing::default(),
            })?;
            announce(server.address()).map_err(trouble)?;
            wait_for_end();
        }
        Role::Wire { memory } => {
            let listener = listen().map_err(trouble)?;
            announce(listener.local_addr().map_err(trouble)?).map_err(trouble)?;
            std::thread::spawn(move || {
                if let Err(error) = wire::serve(&listener, memory) {
                    eprintln!("wire: {error}");
                    std::process::exit(1);
                }
            });
            wait_for_end();
        }
        Role::Mount { memory } => {
            let directory = PathBuf::from(hear()?);
            let mount = Yardstick::mount(&directory, memory as usize).map_err(|error| {
                Error::because(Code::Invalid, error.to_string()).on("mount at", directory.display())
            })?;
            announce("mounted").map_err(trouble)?;
            wait_for_end();
            drop(mount);
        }
    }
    Ok(())
}

/// What whoever started this process says first.
fn hear() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(trouble)?;
    line.truncate(line.trim_end_matches('\n').len());
    Ok(line)
}

/// Serves the bare wire to benchmarks on other machines, until it is stopped.
pub(super) fn serve_wire(listen: &str, memory: u64) -> Result<()> {
    let failed = |error: std::io::Error| {
        Error::because(Code::Invalid, error.to_string()).on("listen on", listen)
    };
    let listener = tcp::listen(tcp::resolve(listen)?).map_err(failed)?;
    announce(listener.local_addr().map_err(failed)?).map_err(failed)?;
    wire::serve(&listener, memory).map_err(failed)
}
