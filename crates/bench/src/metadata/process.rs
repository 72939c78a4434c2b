//! What runs in processes of their own: a server, whoever answers the ping-pong, a mount, and those
//! who work.

use super::echo::Echo;
use super::worker::{self, PoolNote};
use crate::process::{announce, wait_for_end};
use std::io::BufRead;
use weir_core::auth::{Role as PoolRole, Secret};
use weir_core::config::Timing;
use weir_core::error::{Code, Error, Result};
use weir_fuse::MountOptions;
use weir_net::Transport;
use weir_server::{Server, ServerOptions};

/// Of a pool that is made here: files are empty, names are many. Bytes.
const TARGET_BYTES: u64 = 64 << 20;
const METADATA_BYTES: u64 = 512 << 20;

/// What this process is to be, if another one of the benchmark has started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Role {
    /// A pool's server
    Server,
    /// Answers the ping-pong
    Echo,
    /// A mount of the pool
    Mount,
    /// One of those who work
    Worker,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Echo => "echo",
            Role::Mount => "mount",
            Role::Worker => "worker",
        }
    }
}

fn trouble(error: std::io::Error) -> Error {
    Error::because(Code::ServerLost, error.to_string()).on("start", "process")
}

/// Plays a role until the tether is cut.
pub(super) fn play(role: Role, transport: Transport) -> Result<()> {
    match role {
        Role::Worker => return worker::work(),
        Role::Echo => {
            let echo = Echo::listen().map_err(trouble)?;
            let (links, sockets) = echo.addresses().map_err(trouble)?;
            echo.serve().map_err(trouble)?;
            first_line()?;
            announce(format!("{links} {sockets}")).map_err(trouble)?;
            wait_for_end();
        }
        Role::Server => {
            let server = Server::start(ServerOptions {
                listen: "127.0.0.1:0".to_owned(),
                transport,
                memory: vec![TARGET_BYTES],
                disks: Vec::new(),
                disk_engine: weir_server::Engine::Auto,
                metadata_memory: METADATA_BYTES,
                metadata_dir: None,
                secret: Secret::parse(&first_line()?)?,
                threads: 0,
                timing: Timing::default(),
            })?;
            announce(server.address()).map_err(trouble)?;
            wait_for_end();
        }
        Role::Mount => mount()?,
    }
    Ok(())
}

fn first_line() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(trouble)?;
    Ok(line)
}

/// Mounts the pool in a directory of its own, which goes with it.
fn mount() -> Result<()> {
    let note: PoolNote = serde_json::from_str(&first_line()?)
        .map_err(|error| Error::because(Code::Protocol, error.to_string()))?;
    let mut number = [0; 8];
    getrandom::fill(&mut number)
        .map_err(|error| Error::because(Code::Internal, error.to_string()))?;
    let name = format!("weir-bench-{:016x}", u64::from_le_bytes(number));
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory).map_err(trouble)?;
    let served = (|| {
        let pool = note.connect(PoolRole::Mount)?;
        let session = weir_fuse::mount(pool, &directory, &MountOptions::default())?;
        announce(directory.display()).map_err(trouble)?;
        wait_for_end();
        // Workers may be letting go of it still; dropping the session detaches it in any case.
        match session.unmount() {
            Ok(()) => {
                // Before the rest, which may take longer than whoever started us waits.
                let _ = std::fs::remove_dir(&directory);
                session.join()
            }
            Err(_) => Ok(()),
        }
    })();
    let _ = std::fs::remove_dir(&directory);
    served
}
