//! Processes of a benchmark: this program again, on a tether.

use clap::Args;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use weir_core::error::{Code, Error, Result};
use weir_net::{Transport, tcp};

/// A listener at a free port of this machine alone, set up as a pool's server's is.
pub(crate) fn listen() -> io::Result<TcpListener> {
    tcp::listen(([127, 0, 0, 1], 0).into())
}

/// How a benchmark's clients reach its servers.
#[derive(Args, Clone, Debug)]
pub(crate) struct Reach {
    /// How the servers are reached: tcp, or auto, which is by shared memory those on this machine
    #[arg(
        long,
        value_name = "NAME",
        default_value = "auto",
        env = "WEIR_TRANSPORT",
        hide_env_values = true
    )]
    pub(crate) transport: Transport,
}

/// How long a process may take to end by itself.
const END_LIMIT: Duration = Duration::from_secs(3);

/// A process that was started. It ends with this value, or with this process, however that ends:
/// its standard input closes.
pub(crate) struct Child {
    process: process::Child,
    tether: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Its first line: where it listens, as a rule.
    pub(crate) address: String,
}

fn trouble(error: io::Error) -> Error {
    Error::because(Code::ServerLost, error.to_string()).on("start", "process")
}

impl Child {
    /// Starts this program again and waits for its first line. The command line is the same, so
    /// that whatever program the benchmark is part of finds its way here, and a role follows;
    /// `says` is the first line of its standard input.
    pub(crate) fn start(role: &str, says: &str) -> Result<Child> {
        let program = std::env::current_exe().map_err(trouble)?;
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let mut process = Command::new(program)
            .args(arguments)
            .arg("--role")
            .arg(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What a terminal or timeout(1) tells the group is for us alone: they then end in order.
            .process_group(0)
            .spawn()
            .map_err(trouble)?;
        let tether = process.stdin.take();
        let Some(output) = process.stdout.take() else {
            return Err(trouble(io::Error::other("no pipe to it")));
        };
        let output = BufReader::new(output);
        let mut child = Child { process, tether, output, address: String::new() };
        child.say(says)?;
        child.address = child.hear()?;
        Ok(child)
    }

    /// Writes a line to it.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        match &mut self.tether {
            Some(tether) => tether.write_all(format!("{line}\n").as_bytes()).map_err(trouble),
            None => Err(trouble(io::Error::from(io::ErrorKind::BrokenPipe))),
        }
    }

    /// Waits for a line from it.
    pub(crate) fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(trouble)?;
        line.truncate(line.trim_end().len());
        if line.is_empty() {
            return Err(trouble(io::Error::other("it ended before it answered")));
        }
        Ok(line)
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

/// Says something, where a listener is as a rule, on standard output, for who started this process.
pub(crate) fn announce(text: impl std::fmt::Display) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{text}")?;
    output.flush()
}

/// Waits until the tether is cut.
pub(crate) fn wait_for_end() {
    let mut input = io::stdin().lock();
    let mut bytes = [0; 64];
    while matches!(input.read(&mut bytes), Ok(1..)) {}
}
