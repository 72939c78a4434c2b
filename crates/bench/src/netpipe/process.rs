//! Servers in processes of their own: this program again, on a tether.

use super::wire;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{self, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use weir_core::auth::Secret;
use weir_core::config::Timing;
use weir_core::error::{Code, Error, Result};
use weir_server::{Server, ServerOptions};

/// How long a server may take to end by itself.
const END_LIMIT: Duration = Duration::from_secs(3);
/// For the names of a few files.
const METADATA_BYTES: u64 = 16 << 20;

/// A server process. It ends with this value, or with this process, however that ends: its
/// standard input closes.
pub(super) struct Child {
    process: process::Child,
    tether: Option<ChildStdin>,
    /// Where it listens.
    pub(super) address: String,
}

fn trouble(error: std::io::Error) -> Error {
    Error::because(Code::ServerLost, error.to_string()).on("start", "server process")
}

impl Child {
    /// A pool's server with memory of this size.
    pub(super) fn pool(memory: u64, secret: &Secret) -> Result<Child> {
        Child::start(&format!("pool:{memory}"), &format!("{}\n", secret.to_text()))
    }

    /// The bare wire's server with memory of this size.
    pub(super) fn wire(memory: u64) -> Result<Child> {
        Child::start(&format!("wire:{memory}"), "")
    }

    /// Starts this program again. The command line is the same, so that whatever program the
    /// benchmark is part of finds its way here, and a role follows.
    fn start(role: &str, says: &str) -> Result<Child> {
        let program = std::env::current_exe().map_err(trouble)?;
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let mut process = Command::new(program)
            .args(arguments)
            .arg("--role")
            .arg(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(trouble)?;
        let tether = process.stdin.take();
        let output = process.stdout.take();
        let mut child = Child { process, tether, address: String::new() };
        if let Some(tether) = &mut child.tether {
            tether.write_all(says.as_bytes()).map_err(trouble)?;
        }
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut child.address).map_err(trouble)?;
        }
        child.address.truncate(child.address.trim_end().len());
        if child.address.is_empty() {
            return Err(trouble(std::io::Error::other("it ended before it listened")));
        }
        Ok(child)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.tether = None;
        let until = Instant::now() + END_LIMIT;
        while Instant::now() < until {
            match self.process.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                _ => return,
            }
        }
        // A child of ours that does not end: its own handle, never a name.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What this process is to be, if it was started by [`Child`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Pool { memory: u64 },
    Wire { memory: u64 },
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
pub(super) fn play(role: Role) -> Result<()> {
    match role {
        Role::Pool { memory } => {
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line).map_err(trouble)?;
            let server = Server::start(ServerOptions {
                listen: "127.0.0.1:0".to_owned(),
                memory: vec![memory],
                metadata_memory: METADATA_BYTES,
                metadata_dir: None,
                secret: Secret::parse(&line)?,
                threads: 0,
                timing: Timing::default(),
            })?;
            wire::announce(server.address()).map_err(trouble)?;
            wait_for_end();
        }
        Role::Wire { memory } => {
            let listener = TcpListener::bind("127.0.0.1:0").map_err(trouble)?;
            wire::announce(listener.local_addr().map_err(trouble)?).map_err(trouble)?;
            std::thread::spawn(move || {
                if let Err(error) = wire::serve(&listener, memory) {
                    eprintln!("wire: {error}");
                    process::exit(1);
                }
            });
            wait_for_end();
        }
    }
    Ok(())
}

/// Serves the bare wire to benchmarks on other machines, until it is stopped.
pub(super) fn serve_wire(listen: &str, memory: u64) -> Result<()> {
    let failed = |error: std::io::Error| {
        Error::because(Code::Invalid, error.to_string()).on("listen on", listen)
    };
    let listener = TcpListener::bind(listen).map_err(failed)?;
    wire::announce(listener.local_addr().map_err(failed)?).map_err(failed)?;
    wire::serve(&listener, memory).map_err(failed)
}

fn wait_for_end() {
    let mut input = std::io::stdin().lock();
    let mut bytes = [0; 64];
    while matches!(input.read(&mut bytes), Ok(1..)) {}
}
