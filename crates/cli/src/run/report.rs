//! What a run did: for people, and as JSON.

use super::job::{Ended, FileUse};
use crate::servers::Death;
use crate::size::{show, show_rate};
use serde::Serialize;
use std::fmt::Write;
use weir_core::wire::control::ServerStatus;

/// The report of a run. `docs` of its fields are in the manual page of `weir run`.
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
    /// All of these: seconds that requests were under way, summed over requests.
    pub(super) io_s: f64,
    pub(super) read_rate: f64,
    pub(super) write_rate: f64,
    /// Bytes read and written by seconds in all requests, open and close included.
    pub(super) rate_with_open_close: f64,
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

impl Mount {
    fn of(files: &[FileUse]) -> Mount {
        let mut sum = Mount::default();
        for file in files {
            sum.opens += file.opens;
            sum.reads += file.reads;
            sum.writes += file.writes;
            sum.bytes_read += file.bytes_read;
            sum.bytes_written += file.bytes_written;
            sum.open_close_s += file.open_s + file.close_s;
            sum.read_s += file.read_s;
            sum.write_s += file.write_s;
        }
        sum.io_s = sum.open_close_s + sum.read_s + sum.write_s;
        let rate =
            |bytes: u64, seconds: f64| if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 };
        sum.read_rate = rate(sum.bytes_read, sum.read_s);
        sum.write_rate = rate(sum.bytes_written, sum.write_s);
        sum.rate_with_open_close = rate(sum.bytes_read + sum.bytes_written, sum.io_s);
        sum
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
        let mut files = ended.files;
        let weight = |file: &FileUse| file.bytes_read + file.bytes_written;
        files.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.path.cmp(&b.path)));
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
            mount: Mount::of(&files),
            files,
            servers,
            totals,
            servers_lost,
            vanished: Vanished::default(),
        }
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
            "  waiting    {:.2} s in requests (read {:.2}, write {:.2}, open and close {:.2}); computing {:.2} s",
            mount.io_s, mount.read_s, mount.write_s, mount.open_close_s, self.program.cpu_user_s
        );
        let _ = writeln!(
            line,
            "  mount      read {} at {}, wrote {} at {}; {} with open and close",
            show(mount.bytes_read),
            show_rate(mount.bytes_read, mount.read_s),
            show(mount.bytes_written),
            show_rate(mount.bytes_written, mount.write_s),
            show_rate(mount.bytes_read + mount.bytes_written, mount.io_s)
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
            let _ = writeln!(line, "  and {} files more", self.files.len() - shown);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, bytes_read: u64, read_s: f64) -> FileUse {
        FileUse {
            path: path.into(),
            opens: 1,
            reads: 1,
            bytes_read,
            read_s,
            open_s: 0.5,
            ..FileUse::default()
        }
    }

    #[test]
    fn a_report_sums_files_and_servers() {
        let ended = Ended {
            exit_status: 3,
            wall_s: 2.0,
            files: vec![file("/small", 10, 0.5), file("/large", 1000, 0.5)],
            ..Ended::default()
        };
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
        assert!(text.contains("and 1 files more"), "{text}");
        let json = serde_json::to_value(&report).expect("serialises");
        assert_eq!(json["servers"][1]["bytes_read"], 410);
        assert_eq!(json["exit_status"], 3);
    }
}
