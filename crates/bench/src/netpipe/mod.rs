//! `weir bench netpipe`: transfer rates and latency over transfer sizes, after NetPIPE's
//! file-system modules. Every figure of a pool stands beside that of the bare wire, measured in
//! turns in the same run and in the same pattern; every byte is verified outside the timed parts.

mod iperf;
mod measure;
mod pattern;
mod process;
mod report;
mod stamp;
mod target;
mod wire;

use crate::memory::Region;
use crate::process::{Child, Reach};
use crate::progress::progress;
use crate::size;
use clap::{Args, ValueEnum};
use measure::{Mode, Subject, Verdict};
use report::{Report, Settings};
use std::path::PathBuf;
use target::{Calls, MountedFile, PoolFile, PosixFile, Target};
use weir_core::error::{Code, Error, Result};
use weir_core::layout::{Layout, Member};
use weir_core::types::{Incarnation, TargetId};

/// Latency is measured up to this size: bytes.
const LATENCY_SIZE_MAX: u64 = 64 << 10;
/// The file's size where nobody says otherwise, and memory allows it: bytes.
const FILE_SIZE_DEFAULT: u64 = 1 << 30;

/// What to measure, and how.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  weir bench netpipe                         a pool of one server here, beside the bare wire
  weir bench netpipe --quick --iperf3        fewer sizes; is the wire at its limit?
  weir bench netpipe --sizes 4K,1M --modes latency --seconds 1
  weir bench netpipe --pool DIR --posix /mnt/pool --direct
  weir bench netpipe --cache-invalidate --file-size 8G --json result.json")]
pub struct Arguments {
    /// Transfer sizes, as in 4K,64K,1M; without it powers of two, and 3 bytes less and more
    #[arg(long, value_delimiter = ',', value_parser = size::parse, value_name = "SIZE,...")]
    sizes: Vec<u64>,
    /// Largest transfer size
    #[arg(long, value_parser = size::parse, value_name = "SIZE", default_value = "64M")]
    max: u64,
    #[command(flatten)]
    reach: Reach,
    /// Fewer sizes: every fourth power of two, more around the usual ones, no odd ones
    #[arg(long)]
    quick: bool,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODE,...",
          default_values_t = [Mode::Write, Mode::Read, Mode::Latency])]
    modes: Vec<Mode>,
    /// Move on to the next 4 KiB-aligned place after each transfer
    #[arg(long)]
    cache_invalidate: bool,
    /// What to measure it on
    #[arg(long, value_enum, value_delimiter = ',', value_name = "TARGET,...",
          default_values_t = [On::Pool, On::Tcp])]
    targets: Vec<On>,
    /// Also measure a file in this directory, on a mount or a tmpfs; may be repeated
    #[arg(long, value_name = "DIR")]
    posix: Vec<PathBuf>,
    /// As --posix, but by bare system calls: past a preload library
    #[arg(long, value_name = "DIR")]
    bare: Vec<PathBuf>,
    /// Open the files of --posix and --bare with O_DIRECT
    #[arg(long)]
    direct: bool,
    /// Use a running pool: the directory with its pool.json and secret
    #[arg(long, value_name = "DIR")]
    pool: Option<PathBuf>,
    /// Use bare-wire servers that run (see --serve-wire), one for each of the pool's, in order
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,...")]
    wire: Vec<String>,
    /// Only serve the bare wire here, for a benchmark elsewhere, until stopped
    #[arg(long, value_name = "HOST:PORT")]
    serve_wire: Option<String>,
    /// Servers of the pool, and of the wire, that are started
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// Memory of each server that is started [default: enough for the file]
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    memory: Option<u64>,
    /// Connections to each server
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Size of the file [default: 1G, or an eighth of the memory available if that is less]
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    file_size: Option<u64>,
    /// Bytes of a large transfer that go into one request
    #[arg(long, value_parser = size::parse, value_name = "SIZE", default_value = "1M")]
    transfer_size: u64,
    /// Transfers under way at once (latency: always one)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    /// Seconds of measuring for each size, mode and target
    #[arg(long, default_value_t = 0.1)]
    seconds: f64,
    /// Turns into which these seconds are cut; figures are medians over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Keep the client to the first core and the servers started here to the others
    #[arg(long)]
    pin: bool,
    /// Compare the bare wire with iperf3, if it is installed
    #[arg(long)]
    iperf3: bool,
    /// Print JSON instead of tables, to a file or to standard output (-)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Spoil a byte of what was written: to see that it is found
    #[arg(long, hide = true)]
    spoil: Option<On>,
    /// What this process is to be
    #[arg(long, hide = true)]
    role: Option<process::Role>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum On {
    /// A pool, through the native API
    Pool,
    /// The bare wire, in the same pattern
    Tcp,
    /// A FUSE mount that keeps its file in its own memory: what the kernel allows one
    Mount,
}

impl On {
    fn name(self) -> &'static str {
        match self {
            On::Pool => "pool",
            On::Tcp => "tcp",
            On::Mount => "mount",
        }
    }
}

/// Measures, and prints the report. To start its servers it runs the program again that it is part
/// of, with the same command line and a role, so that program must come here with it too.
///
/// # Errors
/// What cannot be started or does not answer, and any byte that is not what was written.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(role) = arguments.role {
        if arguments.pin {
            process::pin(process::Cores::Others)?;
        }
        return process::play(role, arguments.reach.transport);
    }
    let file_size = arguments.file_size()?;
    if let Some(listen) = &arguments.serve_wire {
        return process::serve_wire(listen, arguments.memory.unwrap_or(file_size));
    }
    let sizes = pattern::sizes(&arguments.sizes, arguments.max, arguments.quick);
    arguments.check(&sizes, file_size)?;

    let iperf3 = if arguments.iperf3 { iperf::measure() } else { None };
    let (mut subjects, servers) = arguments.subjects(file_size)?;
    if arguments.pin {
        process::pin(process::Cores::First)?;
    }
    let batch_max = pattern::batch_bytes_max(&sizes, usize::from(arguments.window));
    let mut memory = Region::new(batch_max).map_err(|error| {
        Error::because(Code::NoSpace, error.to_string()).on("reserve", "buffers")
    })?;
    for subject in &mut subjects {
        progress(&format!("filling {} of {}", size::show(file_size), subject.name));
        subject.fill(memory.bytes())?;
    }
    let plan = measure::Plan {
        seconds: arguments.seconds / f64::from(arguments.repeats),
        repeats: usize::from(arguments.repeats),
        window: usize::from(arguments.window),
        cache_invalidate: arguments.cache_invalidate,
        spoil: arguments.spoil.map(On::name),
    };
    let mut points = Vec::new();
    for (index, &size) in sizes.iter().enumerate() {
        progress(&format!("{} ({} of {})", size::show(size), index + 1, sizes.len()));
        let modes = arguments.modes.iter().copied();
        let modes = modes.filter(|&mode| mode != Mode::Latency || size <= LATENCY_SIZE_MAX);
        for mode in modes {
            points.push(measure::point(&mut subjects, mode, size, &plan, memory.bytes())?);
        }
    }
    progress("");
    let settings = Settings {
        file_size,
        servers,
        connections: arguments.connections,
        transfer_size: arguments.transfer_size,
        window: arguments.window,
        cache_invalidate: arguments.cache_invalidate,
        direct: arguments.direct,
        pinned: arguments.pin,
        seconds: arguments.seconds,
        repeats: arguments.repeats,
    };
    let names = subjects.iter().map(|subject| subject.name.clone()).collect();
    let verified = subjects.iter().map(|subject| subject.verified).sum();
    let report = Report::new(settings, names, points, iperf3, Verdict { bytes: verified });
    // Ended before the report, so that nothing of ours is left when it can be seen.
    drop(subjects);
    report.print(arguments.json.as_deref())
}

fn wrong(object: &str, cause: String) -> Error {
    Error::because(Code::Invalid, cause).on("use", object)
}

impl Arguments {
    fn file_size(&self) -> Result<u64> {
        match self.file_size {
            Some(size) => Ok(size),
            None => {
                let eighth = memory_available()? / 8 / (1 << 20) * (1 << 20);
                Ok(eighth.clamp(1 << 20, FILE_SIZE_DEFAULT))
            }
        }
    }

    fn check(&self, sizes: &[u64], file_size: u64) -> Result<()> {
        let largest = sizes.last().copied().unwrap_or(1);
        let batch = pattern::batch_bytes_max(sizes, usize::from(self.window)) as u64;
        // In the cache-invalidate mode a transfer may take up to 4 KiB more of the file.
        let span = batch * 2 + 4096 * pattern::BATCH_OPERATIONS_MAX as u64;
        if file_size < span {
            let cause = format!(
                "{} is too small for transfers of up to {}, {} at once; {} is enough",
                size::show(file_size),
                size::show(largest),
                self.window,
                size::show(span.next_multiple_of(1 << 20)),
            );
            return Err(wrong("--file-size", cause));
        }
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(wrong("--seconds", format!("{} is not within an hour", self.seconds)));
        }
        if self.direct && self.posix.is_empty() && self.bare.is_empty() {
            return Err(wrong(
                "--direct",
                "there is no --posix or --bare to use it for".to_owned(),
            ));
        }
        if !(4096..=8 << 20).contains(&self.transfer_size) {
            return Err(wrong("--transfer-size", "it must be between 4K and 8M".to_owned()));
        }
        Ok(())
    }

    /// Starts what is to be measured; says how many servers there are.
    fn subjects(&self, file_size: u64) -> Result<(Vec<Subject>, usize)> {
        let mut number = [0; 4];
        getrandom::fill(&mut number)
            .map_err(|error| Error::because(Code::Internal, error.to_string()))?;
        let file = u32::from_le_bytes(number);
        let name = format!("netpipe-{file:08x}");
        let mut subjects = Vec::new();
        let mut add = |name: String, target: Box<dyn Target>| {
            let stamp = file.wrapping_add(subjects.len() as u32);
            subjects.push(Subject::new(name, target, stamp, file_size));
        };
        let mut servers = usize::from(self.servers);
        let mut layout = Layout::striped(
            weir_client::STRIPE_SIZE_DEFAULT,
            (0..u32::from(self.servers))
                .map(|i| Member { target: TargetId(i), incarnation: Incarnation(1) }),
        );
        let share = (file_size / servers as u64).next_multiple_of(1 << 20) + (1 << 20);
        if self.targets.contains(&On::Pool) {
            // A write needs fresh memory before it gives back the old.
            let memory = self.memory.unwrap_or(share + share / 8 + (256 << 20));
            let pool = PoolFile::make(self, memory, &name)?;
            servers = pool.server_count();
            layout = pool.layout();
            add("pool".to_owned(), Box::new(pool));
        }
        if self.targets.contains(&On::Tcp) {
            let columns = layout.stripe_count();
            let wire_share =
                (file_size / columns as u64 + layout.stripe_size).next_multiple_of(4096);
            let mut children = Vec::new();
            let mut addresses = self.wire.clone();
            if addresses.is_empty() {
                for _ in 0..columns {
                    let child = process::wire(wire_share)?;
                    addresses.push(child.address.clone());
                    children.push(child);
                }
            }
            if addresses.len() != columns {
                let cause = format!("{} named, {columns} needed", addresses.len());
                return Err(wrong("--wire", cause));
            }
            let transfer_size = self.transfer_size as usize;
            let wire = wire::Wire::connect(&addresses, self.connections, layout, transfer_size)?;
            add("tcp".to_owned(), Box::new(Tethered { wire, _servers: children }));
        }
        // Before files are opened: what is open when a process is started, that process could have, too, and a
        // preload library then asks at each call what the descriptor is.
        let mount = match self.targets.contains(&On::Mount) {
            true => Some(MountedFile::make(file_size, &format!("{name}-mount"))?),
            false => None,
        };
        let posix = self.posix.iter().map(|directory| ("posix", Calls::Library, directory));
        let bare = self.bare.iter().map(|directory| ("bare", Calls::Kernel, directory));
        for (index, (kind, calls, directory)) in posix.chain(bare).enumerate() {
            // A mount may show the very pool that is measured natively.
            let name = format!("{name}-{kind}{index}");
            let file = PosixFile::make(directory, &name, self.direct, calls)?;
            add(format!("{kind}:{}", directory.display()), Box::new(file));
        }
        if let Some(mount) = mount {
            add(On::Mount.name().to_owned(), Box::new(mount));
        }
        if subjects.is_empty() {
            return Err(wrong("--targets", "nothing to measure".to_owned()));
        }
        Ok((subjects, servers))
    }
}

/// The bare wire with the servers that were started for it.
struct Tethered {
    wire: wire::Wire,
    _servers: Vec<Child>,
}

impl Target for Tethered {
    fn write(&mut self, operations: &[weir_core::layout::Extent], memory: &[u8]) -> Result<()> {
        self.wire.write(operations, memory)
    }

    fn read(&mut self, operations: &[weir_core::layout::Extent], memory: &mut [u8]) -> Result<()> {
        self.wire.read(operations, memory)
    }
}

fn memory_available() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::because(Code::Invalid, error.to_string()).on("read", path))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.unwrap_or(0) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &str) -> std::result::Result<Arguments, clap::Error> {
        let words = std::iter::once("netpipe").chain(words.split_whitespace());
        Command::try_parse_from(words).map(|command| command.arguments)
    }

    #[test]
    fn arguments_parse() {
        let plain = parse("").expect("defaults");
        assert_eq!(plain.modes, [Mode::Write, Mode::Read, Mode::Latency]);
        assert_eq!(plain.targets, [On::Pool, On::Tcp]);
        assert_eq!((plain.max, plain.servers, plain.window), (64 << 20, 1, 1));
        let full = parse("--sizes 4K,1M --modes latency --targets tcp --posix /a --posix /b")
            .expect("lists");
        assert_eq!(full.sizes, [4096, 1 << 20]);
        assert_eq!((full.modes, full.targets.len(), full.posix.len()), (vec![Mode::Latency], 1, 2));
        // The role is appended to the command line of whoever starts a server.
        let child = parse("--quick --servers 4 --role pool:4096").expect("role");
        assert_eq!(child.role, Some(process::Role::Pool { memory: 4096 }));
        for bad in ["--sizes 4X", "--max 0", "--servers 0", "--window 0", "--role x:1", "extra"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let check = |words: &str| {
            parse(words).expect("parses").check(&[1, 1 << 20], 64 << 20).map_err(|e| e.to_string())
        };
        assert_eq!(check(""), Ok(()));
        for bad in
            ["--seconds 0", "--seconds NaN", "--direct", "--window 1000", "--transfer-size 1"]
        {
            let said = check(bad).expect_err(bad);
            assert!(said.starts_with("use --"), "{said}");
        }
    }
}
