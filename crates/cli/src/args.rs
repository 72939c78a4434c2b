//! The command line: help, man pages and completions are all made from these definitions.

use crate::failure::{Failure, Outcome};
use crate::{size, state};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use weir_client::Transport;
use weir_core::config::Timing;
use weir_fuse::MountOptions;
use weir_server::DiskOptions;

/// Parallel scratch storage out of the memory of many machines
///
/// weir pools the memory of servers into one striped file store and shows it to unmodified programs
/// as a directory. `weir run` makes such a pool for the life of one command.
#[derive(Parser, Debug)]
#[command(name = "weir", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  weir run --memory 8G -- ./my_program args     a pool for the life of one command
  weir up scratch --servers 4 --memory 2G       a pool that stays
  weir cp -r ./input weir:/                     copy into it
  weir mount /mnt/scratch                       see it as a directory
  weir down scratch                             end it, and what it holds
  weir doctor                                   what this machine lacks

Pools are kept in ~/.weir/pools, or $WEIR_HOME/pools. What is wanted every time can be set in
~/.weir/config.toml, or $WEIR_CONFIG: memory = \"8G\".";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a program with a pool of its own, which ends with it
    Run(Box<Run>),
    /// Make a pool that stays
    Up(Box<Up>),
    /// End a pool, and what it holds
    Down(Down),
    /// Serve memory, in the foreground
    Server(Server),
    /// Show pools, their servers and what those did
    Status(Status),
    /// Show a pool as a directory
    Mount(Mount),
    /// Take such a directory away
    Umount(Umount),
    /// Read all that a kept pool holds, and verify every checksum
    Scrub(Scrub),
    /// List files in a pool
    Ls(Ls),
    /// Copy files into, out of and within pools, verified
    Cp(Cp),
    /// Remove files in a pool
    Rm(Rm),
    /// Show all about files in a pool
    Stat(Stat),
    /// Show how full a pool is
    Df(Df),
    /// Show or set how files are striped
    Layout(Layout),
    /// Measure a pool beside what the machine itself can do
    Bench(Bench),
    /// Make the MPI-IO driver fit this machine's MPIs, by their own compilers
    Mpi(Mpi),
    /// Say what this machine lacks, and what to do about it
    Doctor(Doctor),
    /// Write the man pages
    #[command(hide = true)]
    Man(Man),
    /// Write the pages docs/commands.md and docs/configuration.md
    #[command(hide = true)]
    Pages(Pages),
    /// Write completions for a shell
    #[command(hide = true)]
    Completions(Completions),
    /// Mount and run a program: a part of `run`
    #[command(hide = true)]
    KeepRun(Control),
    /// Hold a pool's servers: what `up` leaves
    #[command(hide = true)]
    KeepPool(Control),
    /// Serve a mount: what `mount` leaves
    #[command(hide = true)]
    KeepMount(Control),
}

/// Where a hidden command talks to the one that started it.
#[derive(Args, Debug)]
pub(crate) struct Control {
    pub(crate) descriptor: i32,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct Servers {
    /// Servers to start on this machine [default: one for each two cores, up to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), conflicts_with = "hosts")]
    pub(crate) servers: Option<u16>,

    /// Use servers on the hosts in FILE: in each line host[:port], and the address to listen at if
    /// that is another; # begins a comment
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) hosts: Option<PathBuf>,

    /// Start the servers on --hosts by ssh, or by COMMAND HOST; without this they run already
    #[arg(long, value_name = "COMMAND", num_args = 0..=1, require_equals = true, default_missing_value = "ssh", requires = "hosts")]
    pub(crate) ssh: Option<String>,

    /// This program on the hosts, for --ssh [default: the same path as here]
    #[arg(long, value_name = "PATH", requires = "ssh")]
    pub(crate) remote_weir: Option<String>,

    /// The secret of servers that run already on --hosts
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "hosts", conflicts_with = "ssh")]
    pub(crate) secret: Option<PathBuf>,

    /// Where servers on this machine listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", conflicts_with = "hosts")]
    pub(crate) listen: String,

    /// Memory of each server [default: half of what is available, shared among them]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "secret")]
    pub(crate) memory: Option<u64>,

    /// Memory for names and attributes on the server that holds them [default: 1/16 of its memory, 32 MiB to 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) metadata_memory: Option<u64>,

    /// A directory (or block device, all of which is overwritten) under each server's memory, for data
    /// that memory has no room for; several: as many targets in each server, which share its memory
    /// [default size: 90 % of what is free there, shared among the servers here]
    #[arg(long, value_name = "DIR[:SIZE]", value_parser = disk, conflicts_with = "secret")]
    pub(crate) disk: Vec<DiskOptions>,

    /// Bytes on one server before the next
    #[arg(long, value_name = "SIZE", value_parser = stripe_size, default_value = "1M")]
    pub(crate) stripe_size: u64,

    /// Targets that a file is spread over; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) stripe_count: u32,

    #[command(flatten)]
    pub(crate) wire: Wire,

    #[command(flatten)]
    pub(crate) times: Times,
}

/// Times of the protocol: those of [`Timing`].
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Times")]
pub(crate) struct Times {
    /// Silence of a server after which a client that waits asks for a sign of life
    #[arg(long, value_name = "TIME", value_parser = size::parse_ms, default_value = size::show_ms(Timing::default().heartbeat_ms), hide_short_help = true)]
    pub(crate) heartbeat: u64,

    /// Silence of a server after which it is lost, and requests to it fail
    #[arg(long, value_name = "TIME", value_parser = size::parse_ms, default_value = size::show_ms(Timing::default().silence_ms_max), hide_short_help = true)]
    pub(crate) silence: u64,

    /// Pause before a connection is tried again
    #[arg(long, value_name = "TIME", value_parser = size::parse_ms, default_value = size::show_ms(Timing::default().reconnect_ms), hide_short_help = true)]
    pub(crate) reconnect: u64,

    /// Silence of a client after which servers forget its open files and kept answers
    #[arg(long, value_name = "TIME", value_parser = size::parse_ms, default_value = size::show_ms(Timing::default().lease_ms), hide_short_help = true)]
    pub(crate) lease: u64,

    /// How often a client renews its lease
    #[arg(long, value_name = "TIME", value_parser = size::parse_ms, default_value = size::show_ms(Timing::default().renew_ms), hide_short_help = true)]
    pub(crate) renew: u64,

    /// How long a capability is good for
    #[arg(long, value_name = "TIME", value_parser = size::parse_ms, default_value = size::show_ms(Timing::default().capability_ms), hide_short_help = true)]
    pub(crate) capability: u64,

    /// How long a server may be too busy for a request before that is an error
    #[arg(long, value_name = "TIME", value_parser = size::parse_ms, default_value = size::show_ms(Timing::default().busy_ms_max), hide_short_help = true)]
    pub(crate) busy: u64,

    /// Pause before a request that a server was too busy for is made again
    #[arg(long, value_name = "TIME", value_parser = size::parse_ms, default_value = size::show_ms(Timing::default().busy_retry_ms), hide_short_help = true)]
    pub(crate) busy_retry: u64,

    /// How long one who waits looks again before it sleeps, while nobody else wants the processor; 0us: never
    #[arg(long, value_name = "TIME", value_parser = size::parse_us, default_value = size::show_us(Timing::default().spin_us), hide_short_help = true)]
    pub(crate) spin: u64,
}

impl Times {
    /// All of them, if they fit each other.
    pub(crate) fn timing(&self) -> Outcome<Timing> {
        for (long, longer, short, shorter) in [
            ("silence", self.silence, "heartbeat", self.heartbeat),
            ("lease", self.lease, "renew", self.renew),
        ] {
            // Where one sign of life is late, the next one must still be in time.
            if longer < shorter.saturating_mul(2) {
                return Err(Failure::usage(format!(
                    "--{long} {}: must be at least twice --{short}, {}",
                    size::show_ms(longer),
                    size::show_ms(shorter)
                )));
            }
        }
        Ok(Timing {
            heartbeat_ms: self.heartbeat,
            silence_ms_max: self.silence,
            reconnect_ms: self.reconnect,
            lease_ms: self.lease,
            renew_ms: self.renew,
            capability_ms: self.capability,
            busy_retry_ms: self.busy_retry,
            busy_ms_max: self.busy,
            spin_us: self.spin,
        })
    }

    /// The options that say this timing.
    pub(crate) fn options(timing: &Timing) -> Vec<String> {
        [
            ("heartbeat", size::show_ms(timing.heartbeat_ms)),
            ("silence", size::show_ms(timing.silence_ms_max)),
            ("reconnect", size::show_ms(timing.reconnect_ms)),
            ("lease", size::show_ms(timing.lease_ms)),
            ("renew", size::show_ms(timing.renew_ms)),
            ("capability", size::show_ms(timing.capability_ms)),
            ("busy", size::show_ms(timing.busy_ms_max)),
            ("busy-retry", size::show_ms(timing.busy_retry_ms)),
            ("spin", size::show_us(timing.spin_us)),
        ]
        .into_iter()
        .map(|(name, time)| format!("--{name}={time}"))
        .collect()
    }
}

#[derive(Args, Debug, Clone)]
pub(crate) struct Wire {
    /// How to reach servers: tcp, or auto, which is by shared memory those on the same machine, by TCP others
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) transport: Transport,

    /// Connections to each server [default: as many as the pool was made with, or else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) connections: Option<u16>,
}

/// What the kernel of a mount is to do.
#[derive(Args, Serialize, Deserialize, Debug, Clone, Copy)]
pub(crate) struct Kernel {
    /// Let the kernel cache what it reads
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set, hide_possible_values = true)]
    pub(crate) cache: bool,

    /// Have the kernel's requests come by io_uring where it has that (Linux 6.14 and up) and lets us, in place of
    /// /dev/fuse: small ones go faster
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set, hide_possible_values = true)]
    pub(crate) io_uring: bool,
}

impl From<Kernel> for MountOptions {
    fn from(Kernel { cache, io_uring }: Kernel) -> MountOptions {
        MountOptions { caching: cache, by_io_uring: io_uring, ..MountOptions::default() }
    }
}

/// Which pool.
#[derive(Args, Debug, Clone)]
pub(crate) struct Which {
    /// The pool: its name, or the path of its directory [default: the only one that is up]
    #[arg(long, value_name = "NAME", env = "WEIR_POOL")]
    pub(crate) pool: Option<String>,
}

#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) servers: Servers,

    /// The pool's name [default: run- and a number]
    #[arg(long, value_name = "NAME", value_parser = state::check_name)]
    pub(crate) name: Option<String>,

    /// Where the program sees the pool: an empty directory [default: a fresh one]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) mount: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) kernel: Kernel,

    /// Leave the preload library out: all reads and writes take the kernel's way
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set, hide_possible_values = true)]
    pub(crate) no_preload: bool,

    /// Leave the MPI-IO driver out: weir: names mean nothing to the program's MPI, and files under the
    /// mount are opened by its own ways
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set, hide_possible_values = true)]
    pub(crate) no_mpi: bool,

    /// Do without a mount: the program sees the pool by the preload library alone, which knows less
    /// (docs/posix.md). So it is by itself where nothing can be mounted
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set, hide_possible_values = true)]
    pub(crate) no_mount: bool,

    /// Put small sequential writes of the program together in a buffer of SIZE for each file, read
    /// ahead by up to as much, and keep as much of what is read to and fro; 0: none of it. Others see
    /// what was written after fsync, close or exit
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) io_buffer: Option<u64>,

    /// Tune files by their paths: lines of FILE are PATTERN io-buffer=SIZE stripe-size=SIZE
    /// stripe-count=N, of which the last one that matches counts; # begins a comment
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tune: Option<PathBuf>,

    /// Copy SOURCE into the pool first, under its own name or as DESTINATION
    #[arg(long, value_name = "SOURCE[:DESTINATION]", value_hint = ValueHint::AnyPath)]
    pub(crate) stage_in: Vec<String>,

    /// After success copy what matches GLOB in the pool to the same path here, or into DIRECTORY
    #[arg(long, value_name = "GLOB[:DIRECTORY]")]
    pub(crate) stage_out: Vec<String>,

    /// After a failure save all files in DIRECTORY [default: NAME-kept]
    #[arg(long, value_name = "DIRECTORY", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(crate) keep_on_failure: Option<PathBuf>,

    /// Write the report to FILE as JSON too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) report: Option<PathBuf>,

    /// Files that the report on the terminal lists
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) report_files: usize,

    /// Say nothing but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

const RUN_HELP: &str = "\
The program finds the directory in WEIR_MOUNT and the pool's name in WEIR_POOL.

Examples:
  weir run --servers 4 --memory 1G -- mpirun -n 2 ./solver input
  weir run --stage-in ./in --stage-out 'out/*' -- ./job.sh
  weir run --hosts hosts.txt --ssh --memory 16G -- ./job.sh
  weir run --keep-on-failure=./saved --report report.json -- ./job.sh

Exit status: the program's (128 + the signal that ended it); or
  2 usage    66 nothing to stage in    69 no servers or no mount to be had
  74 a server was lost though the program ended well    75 staging out failed
  126 program is no executable    127 program not found";

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  weir up scratch --servers 4 --memory 2G
  weir up scratch --hosts hosts.txt --ssh --memory 64G
  weir up scratch --hosts hosts.txt --secret secret    servers that the site started
  weir up results --memory 8G --kept /data/weir        a pool that lasts
  weir up results                                      brings it back after 'weir down results'")]
pub(crate) struct Up {
    /// The pool's name
    #[arg(default_value = "pool", value_parser = state::check_name)]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) servers: Servers,

    /// Make a pool that lasts: after fsync, files survive its servers and a power cut, and after
    /// 'weir down', 'weir up NAME' brings it back. Each server takes SIZE of room for data in DIR
    /// [default: four times its memory], and some percent more for what tells where it is
    #[arg(long, value_name = "DIR[:SIZE]", value_parser = disk, value_hint = ValueHint::DirPath, conflicts_with_all = ["secret", "disk"])]
    pub(crate) kept: Option<DiskOptions>,

    /// Mount it there, too
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) mount: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) kernel: Kernel,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir down scratch\n  weir down --destroy results    of a pool made with --kept: all it holds, too"
)]
pub(crate) struct Down {
    /// The pool's name [default: the only one that is up]
    pub(crate) name: Option<String>,

    /// Remove what a kept pool holds, for good
    #[arg(long, requires = "name")]
    pub(crate) destroy: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line of JSON when it is ready: {\"address\": \"10.0.0.7:4420\", \"pid\": 4711}

Examples:
  weir server --listen 10.0.0.7:4420 --memory 64G --secret ~/secret
  (umask 077; openssl rand -hex 32 >~/secret)    makes a secret")]
pub(crate) struct Server {
    /// Where to listen: host:port, port 0 for any
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:4420")]
    pub(crate) listen: String,

    /// Memory for file data
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) memory: u64,

    /// Memory for names and attributes, if this server gets to hold them [default: 1/16 of the memory, 32 MiB to 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) metadata_memory: Option<u64>,

    /// Keep names and attributes in this directory (LMDB) rather than in memory, for more of them than
    /// fit there; --metadata-memory then bounds what they may take on disk
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) metadata_dir: Option<PathBuf>,

    /// Keep file data in this directory, so that it survives the server: a part of 'weir up --kept'
    #[arg(long, value_name = "DIR[:SIZE]", value_parser = disk, value_hint = ValueHint::DirPath, hide = true, conflicts_with_all = ["metadata_dir", "disk"])]
    pub(crate) kept: Option<DiskOptions>,

    /// Keep the pool's names there, too
    #[arg(long, hide = true, requires = "kept")]
    pub(crate) names: bool,

    /// Come back to what is there
    #[arg(long, hide = true, requires = "kept")]
    pub(crate) back: bool,

    /// The pool's secret: 64 hexadecimal digits that only the user can read; - for a line on stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) secret: PathBuf,

    /// By what it can be reached: tcp, or auto, which is by shared memory from the same machine, too
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) transport: Transport,

    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) threads: usize,

    /// A directory (or block device, all of which is overwritten) under the memory, for data that
    /// memory has no room for; several: as many targets, which share the memory
    /// [default size: 90 % of what is free there]
    #[arg(long, value_name = "DIR[:SIZE]", value_parser = disk)]
    pub(crate) disk: Vec<DiskOptions>,

    /// What to log on stderr
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = LogLevel::Info, env = "WEIR_LOG")]
    pub(crate) log: LogLevel,

    #[command(flatten)]
    pub(crate) times: Times,

    /// End when stdin ends
    #[arg(long, hide = true)]
    pub(crate) tether: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir status\n  weir status scratch --json")]
pub(crate) struct Status {
    /// The pool's name [default: all pools]
    #[arg(env = "WEIR_POOL")]
    pub(crate) name: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir mount /mnt/scratch\n  weir mount --pool scratch --cache ~/scratch"
)]
pub(crate) struct Mount {
    /// An empty directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,

    #[command(flatten)]
    pub(crate) which: Which,

    #[command(flatten)]
    pub(crate) wire: Wire,

    #[command(flatten)]
    pub(crate) kernel: Kernel,

    /// Let other users in, as who they are (as root, or with user_allow_other in /etc/fuse.conf)
    #[arg(long)]
    pub(crate) allow_other: bool,

    /// Do not go to the background
    #[arg(long)]
    pub(crate) foreground: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  weir scrub results
  weir scrub results --rate 200M
  weir scrub results --json

A pool that is up is used meanwhile. Nothing is changed, but that a journal that has gone bad under a
pool that is up is written anew, if it can be. Exit status: 0 all is as it was written, 1 something is not")]
pub(crate) struct Scrub {
    /// The pool's name
    #[arg(value_parser = state::check_name)]
    pub(crate) name: String,

    /// Of a pool that is up: what each server reads in a second, at most
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "64M")]
    pub(crate) rate: u64,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  weir umount /mnt/scratch")]
pub(crate) struct Umount {
    /// The directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir ls\n  weir ls -l weir:/out")]
pub(crate) struct Ls {
    /// What to list: weir:/path or /path
    #[arg(default_value = "/", value_name = "PATH")]
    pub(crate) paths: Vec<String>,

    /// With mode, owner, size and time
    #[arg(short, long)]
    pub(crate) long: bool,

    /// And all below
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Paths in the pool are written weir:/path. A source that changes or ends early while it is copied is
an error, and its copy does not appear.

Examples:
  weir cp ./a weir:/b
  weir cp -r ./input weir:/
  weir cp -r --verify weir:/out ./results")]
pub(crate) struct Cp {
    /// What to copy, then whereto
    #[arg(required = true, num_args = 2.., value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<String>,

    /// Copy directories, with all in them
    #[arg(short, long)]
    pub(crate) recursive: bool,

    /// Read every copy back and compare it
    #[arg(long)]
    pub(crate) verify: bool,

    /// Files and pieces of files under way at once
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) jobs: u16,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) which: Which,

    #[command(flatten)]
    pub(crate) wire: Wire,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir rm /a /b\n  weir rm -r weir:/old")]
pub(crate) struct Rm {
    /// What to remove: weir:/path or /path
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<String>,

    /// Directories too, with all in them
    #[arg(short, long)]
    pub(crate) recursive: bool,

    /// What is not there is no error
    #[arg(short, long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  weir stat weir:/ckpt/0")]
pub(crate) struct Stat {
    /// What: weir:/path or /path
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  weir df --json")]
pub(crate) struct Df {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A directory's layout is that of files made in it later; a file's can be set while it is empty.

Examples:
  weir layout weir:/ckpt
  weir layout --stripe-size 4M --stripe-count 2 weir:/ckpt")]
pub(crate) struct Layout {
    /// What: weir:/path or /path
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<String>,

    /// Bytes on one target before the next
    #[arg(long, value_name = "SIZE", value_parser = stripe_size)]
    pub(crate) stripe_size: Option<u64>,

    /// Targets that a file is spread over; 0: all
    #[arg(long, value_name = "N")]
    pub(crate) stripe_count: Option<u32>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir bench netpipe --quick\n  weir bench metadata --mount")]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) command: Benchmark,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Benchmark {
    /// Transfer rates and latency by size, beside those of the bare wire
    Netpipe(Box<weir_bench::netpipe::Arguments>),

    /// Files made, looked at and removed a second, beside the bare ping-pong
    Metadata(Box<weir_bench::metadata::Arguments>),
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir mpi\n  weir mpi /opt/mpich/bin/mpicc")]
pub(crate) struct Mpi {
    /// The MPI's compiler [default: those of mpicc, mpicc.mpich, mpicc.openmpi, mpicc_abi on PATH]
    #[arg(value_name = "MPICC", value_hint = ValueHint::ExecutablePath)]
    pub(crate) compilers: Vec<PathBuf>,

    /// Where the libraries go [default: ~/.weir/mpi, or $WEIR_HOME/mpi]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "Exit status: 1 if something that weir needs is missing.")]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Where to write them
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Pages {
    /// Where to write them
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Completions {
    pub(crate) shell: clap_complete::Shell,
}

/// `DIR` or `DIR:SIZE`. A directory's own name may end like that: then write its size too.
fn disk(text: &str) -> Result<DiskOptions, String> {
    let (path, size) = match text.rsplit_once(':') {
        Some((path, size)) if size.starts_with(|c: char| c.is_ascii_digit()) => {
            (path, Some(size::parse(size)?))
        }
        _ => (text, None),
    };
    if path.is_empty() {
        return Err("which directory? write DIR or DIR:SIZE, as in /scratch:500G".into());
    }
    let least = weir_server::DISK_BYTES_MIN;
    if size.is_some_and(|size| size < least) {
        return Err(format!("a disk has at least {}", size::show(least)));
    }
    Ok(DiskOptions { path: path.into(), size })
}

pub(crate) fn stripe_size(text: &str) -> Result<u64, String> {
    use weir_core::layout::{STRIPE_SIZE_MAX, STRIPE_SIZE_MIN};
    let bytes = size::parse(text)?;
    if !(STRIPE_SIZE_MIN..=STRIPE_SIZE_MAX).contains(&bytes) || bytes % STRIPE_SIZE_MIN != 0 {
        return Err(format!(
            "a stripe size is a multiple of {} from {} to {}",
            size::show(STRIPE_SIZE_MIN),
            size::show(STRIPE_SIZE_MIN),
            size::show(STRIPE_SIZE_MAX)
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_for_people_has_an_example_or_more_to_say() {
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            assert!(command.get_after_help().is_some(), "{}", command.get_name());
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }

    #[test]
    fn times_default_to_those_of_the_protocol_and_must_fit() {
        let times = |more: &[&str]| {
            let words = [&["weir", "up"], more].concat();
            let Command::Up(up) = Cli::parse_from(words).command else { panic!("not up") };
            up.servers.times.timing()
        };
        assert_eq!(times(&[]).expect("fit"), Timing::default());
        let odd = Timing {
            heartbeat_ms: 1,
            silence_ms_max: 2,
            reconnect_ms: 3,
            renew_ms: 4,
            lease_ms: 9,
            capability_ms: 5,
            busy_ms_max: 6,
            busy_retry_ms: 7,
            spin_us: 8,
        };
        let words = Times::options(&odd);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(times(&words).expect("fit"), odd);
        let said = times(&["--silence", "1500ms"]).expect_err("too short").text;
        assert!(said.contains("--silence 1500ms") && said.contains("--heartbeat"), "{said}");
        assert!(times(&["--renew=1h"]).is_err());
    }

    #[test]
    fn a_program_keeps_its_options() {
        let cli = Cli::parse_from(["weir", "run", "--quiet", "ls", "-l", "--", "--memory"]);
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert!(run.quiet);
        assert_eq!(run.command, ["ls", "-l", "--", "--memory"]);
    }
}
