//! What a run did: for people, and as JSON.

use super::job::Ended;
use crate::servers::Death;
use crate::size::{show, show_count, show_rate};
use serde::Serialize;
use std::fmt::Write;
use weir_core::wire::control::ServerStatus;
use weir_fuse::{FileStatistics, Statistics};

/// The report of a run; as JSON, what `--report` writes.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) command: Vec<String>,
    pub(super) pool: String,
    /// What `weir run` ends with.
    pub(super) exit_status: u8,
    pub(super) program: Program,
    pub(super) wall_s: f64,
    pub(super) mount: Mount,
    pub(super) files: Vec<FileUse>,
    pub(super) servers: Vec<ServerStatus>,
    pub(super) totals: Totals,
    pub(super) servers_lost: Vec<Death>,
    /// Files that ended with the pool.
    pub(super) vanished: Vanished,
    /// What might make the next run faster.
    pub(super) advice: Option<String>,
}

/// Reads and writes that were as short as this on average, in bytes, can be put together...
const SHORT: u64 = 32 << 10;
/// ... which is worth a word if there were so many of them,
const MANY: u64 = 10_000;
/// and the program waited for them for so long: seconds, and as a part of its time.
const LONG: (f64, f64) = (1.0, 0.1);

/// What the program did with one file. Times are sums over requests that the kernel made for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct FileUse {
    path: String,
    opens: u64,
    reads: u64,
    writes: u64,
    bytes_read: u64,
    bytes_written: u64,
    open_s: f64,
    read_s: f64,
    write_s: f64,
    close_s: f64,
    other_s: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Program {
    pub(super) exit_status: u8,
    pub(super) signal: Option<i32>,
    pub(super) cpu_user_s: f64,
    pub(super) cpu_system_s: f64,
    pub(super) left_running: usize,
}

/// Sums over all files, as the program saw them through the mount.
#[derive(Debug, Default, Serialize)]
pub(super) struct Mount {
    pub(super) opens: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) open_close_s: f64,
    pub(super) read_s: f64,
    pub(super) write_s: f64,
    /// Names, attributes, fsync and the rest.
    pub(super) other_s: f64,
    /// All of these: seconds that requests were under way, summed over requests.
    pub(super) io_s: f64,
    /// Bytes a second, open and close left out.
    pub(super) read_rate: f64,
    pub(super) write_rate: f64,
    /// The same of all bytes, open and close counted in.
    pub(super) rate_with_open_close: f64,
    /// Requests of the kernel by kind.
    pub(super) operations: std::collections::BTreeMap<String, weir_fuse::OperationStatistics>,
}

/// Sums over the servers' own counters.
#[derive(Debug, Default, Serialize)]
pub(super) struct Totals {
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) cpu_s: f64,
    pub(super) memory: u64,
    pub(super) memory_used: u64,
}

/// Files that end with the pool.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Vanished {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) biggest: Vec<(String, u64)>,
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl FileUse {
    fn new(path: &str, counted: &FileStatistics) -> FileUse {
        FileUse {
            path: path.to_owned(),
            opens: counted.opens,
            reads: counted.reads,
            writes: counted.writes,
            bytes_read: counted.bytes_read,
            bytes_written: counted.bytes_written,
            open_s: seconds(counted.open_ns),
            read_s: seconds(counted.read_ns),
            write_s: seconds(counted.write_ns),
            close_s: seconds(counted.close_ns),
            other_s: seconds(counted.other_ns),
        }
    }

    /// Those with most bytes first.
    fn list(counted: &Statistics) -> Vec<FileUse> {
        let mut files: Vec<FileUse> =
            counted.files.iter().map(|(path, counted)| FileUse::new(path, counted)).collect();
        if counted.others.opens > 0 {
            files.push(FileUse::new("(all others)", &counted.others));
        }
        let weight = |file: &FileUse| file.bytes_read + file.bytes_written;
        files.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.path.cmp(&b.path)));
        files
    }
}

impl Mount {
    fn of(counted: Statistics) -> Mount {
        let total = &counted.total;
        let io_ns: u64 = counted.operations.values().map(|operation| operation.ns).sum();
        let open_close_ns = total.open_ns + total.close_ns;
        let named_ns = open_close_ns + total.read_ns + total.write_ns;
        let rate = |bytes: u64, ns: u64| if ns > 0 { bytes as f64 / seconds(ns) } else { 0.0 };
        let bytes = total.bytes_read + total.bytes_written;
        Mount {
            opens: total.opens,
            reads: total.reads,
            writes: total.writes,
            bytes_read: total.bytes_read,
            bytes_written: total.bytes_written,
            open_close_s: seconds(open_close_ns),
            read_s: seconds(total.read_ns),
            write_s: seconds(total.write_ns),
            other_s: seconds(io_ns.saturating_sub(named_ns)),
            io_s: seconds(io_ns.max(named_ns)),
            read_rate: rate(total.bytes_read, total.read_ns),
            write_rate: rate(total.bytes_written, total.write_ns),
            rate_with_open_close: rate(bytes, named_ns),
            operations: counted.operations,
        }
    }
}

impl Report {
    pub(super) fn new(
        command: Vec<String>,
        pool: String,
        ended: Ended,
        servers: Vec<ServerStatus>,
        servers_lost: Vec<Death>,
    ) -> Report {
        let mut totals = Totals::default();
        for server in &servers {
            totals.bytes_read += server.bytes_read;
            totals.bytes_written += server.bytes_written;
            totals.cpu_s += (server.cpu_user_us + server.cpu_system_us) as f64 / 1e6;
            totals.memory += server.memory;
            totals.memory_used += server.memory_used;
        }
        Report {
            command,
            pool,
            exit_status: ended.exit_status,
            program: Program {
                exit_status: ended.exit_status,
                signal: ended.signal,
                cpu_user_s: ended.user_s,
                cpu_system_s: ended.system_s,
                left_running: ended.left_running,
            },
            wall_s: ended.wall_s,
            files: FileUse::list(&ended.mount),
            mount: Mount::of(ended.mount),
            servers,
            totals,
            servers_lost,
            vanished: Vanished::default(),
            advice: None,
        }
    }

    /// What to say to the user of a program that waited for many small reads and writes.
    pub(super) fn about_small_requests(&self) -> Option<String> {
        let mount = &self.mount;
        let calls = mount.reads + mount.writes;
        let mean = (mount.bytes_read + mount.bytes_written).checked_div(calls)?;
        let waited = mount.read_s + mount.write_s;
        let told = calls >= MANY && mean <= SHORT && waited >= LONG.0.max(LONG.1 * self.wall_s);
        told.then(|| {
            format!(
                "{calls} reads and writes of {} on average took {waited:.1} s; a buffer ('weir run \
                 --io-buffer 1M') may spare most of it, if processes that share files close them or \
                 use fsync or locks between writing and reading",
                show(mean)
            )
        })
    }

    /// For people: lines, each ended by a newline.
    pub(super) fn text(&self, files_max: usize) -> String {
        let mut text = String::new();
        let how = match self.program.signal {
            Some(signal) => format!("was ended by signal {signal}"),
            None => format!("ended with status {}", self.program.exit_status),
        };
        let name = self.command.first().map_or("", String::as_str);
        let line = &mut text;
        // Writing to a String does not fail.
        let _ = writeln!(line, "weir: {name} {how} after {:.2} s", self.wall_s);
        let _ = writeln!(
            line,
            "  processor  program {:.2} s user, {:.2} s system; servers {:.2} s",
            self.program.cpu_user_s, self.program.cpu_system_s, self.totals.cpu_s
        );
        let mount = &self.mount;
        let _ = writeln!(
            line,
            "  waiting    {:.2} s in requests (read {:.2}, write {:.2}, open and close {:.2}, other {:.2}); computing {:.2} s",
            mount.io_s,
            mount.read_s,
            mount.write_s,
            mount.open_close_s,
            mount.other_s,
            self.program.cpu_user_s
        );
        let _ = writeln!(
            line,
            "  mount      read {} at {}, wrote {} at {}; {} with open and close",
            show(mount.bytes_read),
            show_rate(mount.bytes_read, mount.read_s),
            show(mount.bytes_written),
            show_rate(mount.bytes_written, mount.write_s),
            show_rate(
                mount.bytes_read + mount.bytes_written,
                mount.read_s + mount.write_s + mount.open_close_s
            )
        );
        let _ = writeln!(
            line,
            "  servers    {} sent {}, stored {}; {} of {} in use",
            self.servers.len(),
            show(self.totals.bytes_read),
            show(self.totals.bytes_written),
            show(self.totals.memory_used),
            show(self.totals.memory)
        );
        let shown = self.files.len().min(files_max);
        if shown > 0 {
            let _ = writeln!(
                line,
                "  {:>10} {:>12} {:>10} {:>12} {:>6} {:>8}  file",
                "read", "rate", "written", "rate", "opens", "waited s"
            );
        }
        for file in &self.files[..shown] {
            let _ = writeln!(
                line,
                "  {:>10} {:>12} {:>10} {:>12} {:>6} {:>8.2}  {}",
                show(file.bytes_read),
                show_rate(file.bytes_read, file.read_s),
                show(file.bytes_written),
                show_rate(file.bytes_written, file.write_s),
                file.opens,
                file.open_s + file.close_s + file.read_s + file.write_s,
                file.path
            );
        }
        if self.files.len() > shown {
            let _ = writeln!(
                line,
                "  and {} more",
                show_count((self.files.len() - shown) as u64, "file")
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_sums_files_and_servers() {
        let file = |bytes_read| FileStatistics {
            opens: 1,
            bytes_read,
            read_ns: 500_000_000,
            open_ns: 500_000_000,
            ..FileStatistics::default()
        };
        let mut mount = Statistics::default();
        mount.files.insert("/small".into(), file(10));
        mount.files.insert("/large".into(), file(1000));
        mount.total =
            FileStatistics { read_ns: 1_000_000_000, open_ns: 1_000_000_000, ..file(1010) };
        let ended = Ended { exit_status: 3, wall_s: 2.0, mount, ..Ended::default() };
        let server = |bytes_read| ServerStatus {
            bytes_read,
            cpu_user_us: 500_000,
            ..ServerStatus::default()
        };
        let report = Report::new(
            vec!["job".into()],
            "p".into(),
            ended,
            vec![server(600), server(410)],
            Vec::new(),
        );
        assert_eq!(report.totals.bytes_read, 1010);
        assert_eq!(report.totals.cpu_s, 1.0);
        assert_eq!(report.files[0].path, "/large");
        assert_eq!(report.mount.read_rate, 1010.0);
        assert_eq!(report.mount.rate_with_open_close, 505.0);
        let text = report.text(1);
        assert!(text.contains("job ended with status 3 after 2.00 s"), "{text}");
        assert!(text.contains("and 1 file more"), "{text}");
        let json = serde_json::to_value(&report).expect("serialises");
        assert_eq!(json["servers"][1]["bytes_read"], 410);
        assert_eq!(json["exit_status"], 3);
    }

    #[test]
    fn many_small_requests_that_took_long_are_worth_a_word() {
        let advice = |reads: u64, bytes, seconds: u64| {
            let total = FileStatistics {
                reads: reads / 2,
                writes: reads / 2,
                bytes_read: bytes,
                read_ns: seconds * 500_000_000,
                write_ns: seconds * 500_000_000,
                ..FileStatistics::default()
            };
            let mount = Statistics { total, ..Statistics::default() };
            let ended = Ended { wall_s: 50.0, mount, ..Ended::default() };
            Report::new(Vec::new(), "p".into(), ended, Vec::new(), Vec::new())
                .about_small_requests()
        };
        let told = advice(200_000, 800 * 200_000, 6).expect("advice");
        assert!(told.contains("200000 reads and writes of 800 B on average took 6.0 s"), "{told}");
        assert_eq!(advice(0, 0, 6), None);
        assert_eq!(advice(200_000, 100_000 * 200_000, 6), None, "they are large");
        assert_eq!(advice(2000, 800 * 2000, 6), None, "they are few");
        assert_eq!(advice(200_000, 800 * 200_000, 4), None, "they took little of the time");
    }
}
