//! What came out: tables for people, JSON for programs, and how far the aims are reached.

use super::measure::{Figure, Mode, Point, Verdict};
use crate::machine::Machine;
use crate::size;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use weir_core::error::{Code, Error, Result};

const MIB: f64 = (1 << 20) as f64;
const LARGE: u64 = 1 << 20;

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Settings {
    pub(super) file_size: u64,
    pub(super) servers: usize,
    pub(super) connections: usize,
    pub(super) transfer_size: u64,
    pub(super) window: u16,
    pub(super) cache_invalidate: bool,
    pub(super) direct: bool,
    pub(super) pinned: bool,
    pub(super) seconds: f64,
    pub(super) repeats: u16,
}

/// One aim, and what was reached: the worst of the sizes that it is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Aim {
    what: String,
    size: u64,
    value: f64,
    aim: f64,
    met: bool,
}

/// All that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    settings: Settings,
    targets: Vec<String>,
    points: Vec<Point>,
    /// Bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    iperf3: Option<f64>,
    verified: Verdict,
    aims: Vec<Aim>,
}

impl Point {
    fn figure(&self, target: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.target == target)
    }

    fn share(&self, target: &str) -> Option<f64> {
        Some(self.figure(target)?.share.as_ref()?.value.median)
    }
}

impl Report {
    pub(super) fn new(
        settings: Settings,
        targets: Vec<String>,
        points: Vec<Point>,
        iperf3: Option<f64>,
        verified: Verdict,
    ) -> Report {
        let mut report = Report {
            machine: Machine::look(),
            settings,
            targets,
            points,
            iperf3,
            verified,
            aims: Vec::new(),
        };
        report.aims = report.aims();
        report
    }

    fn of(&self, mode: Mode) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(move |point| point.mode == mode)
    }

    fn aims(&self) -> Vec<Aim> {
        let mut aims = Vec::new();
        // The worst of some values; `sign` says whether more is better.
        let mut add = |what: &str, aim: f64, sign: f64, values: Vec<(u64, f64)>| {
            let worst = values.into_iter().min_by(|a, b| (a.1 * sign).total_cmp(&(b.1 * sign)));
            if let Some((size, value)) = worst {
                let met = value * sign >= aim * sign;
                aims.push(Aim { what: what.to_owned(), size, value, aim, met });
            }
        };
        for (mode, name) in [(Mode::Write, "write"), (Mode::Read, "read")] {
            let shares = |wanted: &dyn Fn(u64) -> bool| {
                let points = self.of(mode).filter(|point| wanted(point.size));
                points.filter_map(|point| Some((point.size, point.share("pool")?))).collect()
            };
            let what = format!("{name}, share of the wire, >= 1 MiB");
            add(&what, 0.9, 1.0, shares(&|size| size >= LARGE));
            let what = format!("{name}, share of the wire, 64 KiB");
            add(&what, 0.75, 1.0, shares(&|size| size == 64 << 10));
        }
        let latency = self.of(Mode::Latency).filter(|point| point.size == 4096);
        let times = latency.filter_map(|point| Some((point.size, point.share("pool")?)));
        add("read latency, times the wire's, 4 KiB", 2.0, -1.0, times.collect());
        add("read against write, apart by, >= 1 MiB", 0.15, -1.0, self.asymmetries());
        for target in self.targets.iter().filter(|name| name.starts_with("posix:")) {
            for (mode, name) in [(Mode::Write, "write"), (Mode::Read, "read")] {
                let points = self.of(mode).filter(|point| point.size == LARGE);
                let shares = points.filter_map(|point| Some((point.size, point.share(target)?)));
                add(&format!("{name}, {target}, share of native"), 0.6, 1.0, shares.collect());
            }
        }
        if let Some(iperf3) = self.iperf3 {
            for (mode, name) in [(Mode::Write, "write"), (Mode::Read, "read")] {
                let wire = self.of(mode).filter(|point| point.size >= LARGE).filter_map(|point| {
                    Some((point.size, point.figure("tcp")?.value.median / iperf3))
                });
                // At large sizes: the best of them is meant.
                let best = wire.max_by(|a, b| a.1.total_cmp(&b.1));
                let what = format!("bare wire, {name}, share of iperf3");
                add(&what, 0.9, 1.0, best.into_iter().collect());
            }
        }
        aims
    }

    /// How far reading and writing are apart at each large size, or how much farther than on the
    /// wire, whichever is less.
    fn asymmetries(&self) -> Vec<(u64, f64)> {
        let large = self.of(Mode::Write).filter(|point| point.size >= LARGE);
        large
            .filter_map(|write| {
                let read = self.of(Mode::Read).find(|read| read.size == write.size)?;
                let ratio = |name: &str| {
                    Some(read.figure(name)?.value.median / write.figure(name)?.value.median)
                };
                Some((write.size, asymmetry(ratio("pool")?, ratio("tcp"))))
            })
            .collect()
    }

    /// Prints tables, or JSON to a file or standard output.
    pub(super) fn print(&self, json: Option<&Path>) -> Result<()> {
        let failed = |name: String| {
            move |error: std::io::Error| {
                Error::because(Code::Invalid, error.to_string()).on("write", name)
            }
        };
        let output = |text: String| {
            std::io::stdout().write_all(text.as_bytes()).map_err(failed("standard output".into()))
        };
        let Some(path) = json else {
            return output(self.text());
        };
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::because(Code::Internal, error.to_string()))?;
        text.push('\n');
        if path == Path::new("-") {
            return output(text);
        }
        std::fs::write(path, text).map_err(failed(path.display().to_string()))?;
        output(self.text())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = self.write_text(&mut text);
        text
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let settings = &self.settings;
        writeln!(
            out,
            "{} server(s), {} connection(s) to each, window {}, requests of {}, file of {}{}{}\n\
             {} cores, Linux {}, TCP {}, load {:.1}; median of {} turns (least..most)",
            settings.servers,
            settings.connections,
            settings.window,
            size::show(settings.transfer_size),
            size::show(settings.file_size),
            if settings.cache_invalidate { ", cache-invalidate" } else { "" },
            if settings.pinned { ", pinned" } else { "" },
            self.machine.cores,
            self.machine.kernel,
            self.machine.congestion_control,
            self.machine.load,
            settings.repeats,
        )?;
        for (mode, title) in [
            (Mode::Write, "write, MiB/s"),
            (Mode::Read, "read, MiB/s"),
            (Mode::Latency, "latency of reads, microseconds: median of turns (least..most) p99"),
        ] {
            if self.of(mode).next().is_some() {
                writeln!(out, "\n{title}")?;
                self.write_table(out, mode)?;
            }
        }
        if let Some(iperf3) = self.iperf3 {
            writeln!(out, "\niperf3, 1 connection: {:.0} MiB/s", iperf3 / MIB)?;
        }
        if !self.aims.is_empty() {
            writeln!(out, "\n{:<44} {:>7} {:>7}", "aim", "aim", "worst")?;
        }
        for aim in &self.aims {
            writeln!(
                out,
                "{:<44} {:>7.2} {:>7.2}  {} at {}",
                aim.what,
                aim.aim,
                aim.value,
                if aim.met { "met" } else { "missed" },
                size::show(aim.size)
            )?;
        }
        writeln!(
            out,
            "\n{:.1} GiB verified: no mismatch",
            self.verified.bytes as f64 / MIB / 1024.0
        )
    }

    fn write_table(&self, out: &mut String, mode: Mode) -> std::fmt::Result {
        write!(out, "{:>13}", "size")?;
        for name in &self.targets {
            write!(out, " {name:>28}")?;
            match name.as_str() {
                "tcp" => {}
                "pool" => write!(out, " {:>6}", "of tcp")?,
                _ => write!(out, " {:>7}", "of pool")?,
            }
        }
        writeln!(out)?;
        for point in self.of(mode) {
            write!(out, "{:>13}", size::show(point.size))?;
            for name in &self.targets {
                let figure = point.figure(name);
                let scale = if mode == Mode::Latency { 1e6 } else { 1.0 / MIB };
                let mut cell = figure.map_or("-".to_owned(), |figure| {
                    let value = figure.value;
                    let [median, min, max] =
                        [value.median, value.min, value.max].map(|value| digits(value * scale));
                    format!("{median} ({min}..{max})")
                });
                if let Some(p99) = figure.and_then(|figure| figure.p99) {
                    cell += &format!(" {}", digits(p99.median * scale));
                }
                write!(out, " {cell:>28}")?;
                let width = match name.as_str() {
                    "tcp" => continue,
                    "pool" => 6,
                    _ => 7,
                };
                let share = point.share(name).map_or("-".to_owned(), |share| format!("{share:.2}"));
                write!(out, " {share:>width$}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// How far reading and writing are apart, or how much farther than on the wire, whichever is less;
/// of each the rate of reads as a multiple of that of writes. Not so far as the wire's, and to the
/// same side, is no farther.
fn asymmetry(pool: f64, wire: Option<f64>) -> f64 {
    let apart = |ratio: f64| ratio.max(1.0 / ratio) - 1.0;
    let Some(wire) = wire else {
        return apart(pool);
    };
    let between = (pool >= wire && pool <= 1.0) || (pool <= wire && pool >= 1.0);
    if between { 0.0 } else { apart(pool).min(apart(pool / wire)) }
}

/// Three significant digits.
fn digits(value: f64) -> String {
    let decimals = (2 - value.abs().max(1e-9).log10().floor() as i32).clamp(0, 4) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::super::measure::Share;
    use super::*;
    use crate::spread::Spread;

    fn figure(target: &str, value: f64, share: Option<f64>) -> Figure {
        let spread = |value| Spread { median: value, min: value * 0.9, max: value * 1.1 };
        let share = share.map(|share| Share { of: "tcp".to_owned(), value: spread(share) });
        Figure { target: target.to_owned(), value: spread(value), p99: None, share }
    }

    fn report(write: f64, read: f64, latency: f64) -> Report {
        let point = |mode, size, pool: f64, tcp: f64| Point {
            mode,
            size,
            figures: vec![figure("pool", pool, Some(pool / tcp)), figure("tcp", tcp, None)],
        };
        let points = vec![
            point(Mode::Write, 1 << 20, write, 1e9),
            point(Mode::Write, 2 << 20, 0.99e9, 1e9),
            point(Mode::Read, 1 << 20, read, 1e9),
            point(Mode::Latency, 4096, latency, 10e-6),
        ];
        let settings = Settings {
            file_size: 1 << 30,
            servers: 1,
            connections: 1,
            transfer_size: 1 << 20,
            window: 1,
            cache_invalidate: false,
            direct: false,
            pinned: false,
            seconds: 0.1,
            repeats: 5,
        };
        let names = vec!["pool".to_owned(), "tcp".to_owned()];
        Report::new(settings, names, points, Some(1e9), Verdict { bytes: 1 << 30 })
    }

    fn met(report: &Report, what: &str) -> Option<bool> {
        report.aims.iter().find(|aim| aim.what.starts_with(what)).map(|aim| aim.met)
    }

    #[test]
    fn aims_are_judged_by_the_worst_size() {
        let good = report(0.95e9, 0.92e9, 19e-6);
        for what in ["write, share", "read, share", "read latency", "read against", "bare wire"] {
            assert_eq!(met(&good, what), Some(true), "{what}");
        }
        let bad = report(0.5e9, 0.92e9, 21e-6);
        assert_eq!(met(&bad, "write, share"), Some(false));
        assert_eq!(met(&bad, "read, share"), Some(true));
        assert_eq!(met(&bad, "read latency"), Some(false));
        assert_eq!(met(&bad, "read against"), Some(false));
    }

    #[test]
    fn the_text_shows_figures_shares_and_aims() {
        let text = report(0.95e9, 0.92e9, 19e-6).text();
        for part in
            ["906 (815..997)   0.95", "19.0 (17.1..20.9)   1.90", "met at 1 MiB", "no mismatch"]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn no_farther_apart_than_the_wire_is_not_apart() {
        for (pool, wire, expected) in [
            (1.25, None, 0.25),
            (0.8, None, 0.25),
            (0.8, Some(0.5), 0.0),
            (1.25, Some(2.0), 0.0),
            (0.5, Some(0.8), 0.6),
            (0.5, Some(2.0), 1.0),
            (1.25, Some(0.5), 0.25),
        ] {
            let apart = asymmetry(pool, wire);
            assert!((apart - expected).abs() < 1e-9, "{pool}, {wire:?}: {apart}");
        }
    }

    #[test]
    fn three_digits() {
        for (value, text) in
            [(1234.5, "1234"), (12.34, "12.3"), (0.0123, "0.0123"), (0.0, "0.0000")]
        {
            assert_eq!(digits(value), text);
        }
    }
}
