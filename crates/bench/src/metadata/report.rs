//! What came out: tables for people, JSON for programs, and how far the aims are reached.

use crate::machine::Machine;
use crate::spread::Spread;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use weir_core::error::{Code, Error, Result};

/// Aim: creates and stats by the native API, as a share of the ping-pong.
const SHARE_AIM: f64 = 0.5;
/// Aim: seconds to list the directory, at most, for so many entries.
const LISTING_AIM: (f64, u32) = (1.0, 100_000);

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Settings {
    pub(super) files: u32,
    pub(super) repeats: u16,
    pub(super) listed: u32,
    pub(super) depth: u16,
    pub(super) servers: usize,
}

/// One operation.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    pub(super) target: String,
    pub(super) operation: String,
    /// So many a second, by all processes together.
    pub(super) rate: Spread,
    /// Ratio to the ping-pong over links, paired turn by turn.
    pub(super) share: Spread,
}

impl Figure {
    pub(super) fn new(target: &str, operation: &str) -> Figure {
        let none = Spread { median: 0.0, min: 0.0, max: 0.0 };
        let (target, operation) = (target.to_owned(), operation.to_owned());
        Figure { target, operation, rate: none, share: none }
    }
}

/// All operations by so many processes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) processes: usize,
    pub(super) figures: Vec<Figure>,
}

/// How long the large directory took to list.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Listing {
    pub(super) target: String,
    pub(super) what: String,
    pub(super) seconds: Spread,
}

/// One aim, and what was reached.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Aim {
    what: String,
    value: f64,
    aim: f64,
    met: bool,
}

/// All that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    settings: Settings,
    points: Vec<Point>,
    listings: Vec<Listing>,
    /// Names that were compared with what was made.
    verified: u64,
    aims: Vec<Aim>,
}

impl Report {
    pub(super) fn new(
        settings: Settings,
        points: Vec<Point>,
        listings: Vec<Listing>,
        verified: u64,
    ) -> Report {
        let machine = Machine::look();
        let mut report = Report { machine, settings, points, listings, verified, aims: Vec::new() };
        report.aims = report.aims();
        report
    }

    fn aims(&self) -> Vec<Aim> {
        let mut aims = Vec::new();
        for point in &self.points {
            for figure in &point.figures {
                if figure.target == "pool" && figure.operation != "unlink" {
                    let what = format!(
                        "{} natively, {}, share of the ping-pong by TCP",
                        figure.operation,
                        processes(point.processes)
                    );
                    let value = figure.share.median;
                    aims.push(Aim { what, value, aim: SHARE_AIM, met: value >= SHARE_AIM });
                }
            }
        }
        let aim = LISTING_AIM.0 * f64::from(self.settings.listed) / f64::from(LISTING_AIM.1);
        // To stat each entry through a mount is so many requests more.
        let listed = |listing: &&Listing| match listing.target.as_str() {
            "pool" => true,
            "mount" => listing.what == "names",
            _ => false,
        };
        for listing in self.listings.iter().filter(listed) {
            let what = format!("listing, {}, {}, seconds", listing.target, listing.what);
            let value = listing.seconds.median;
            aims.push(Aim { what, value, aim, met: value < aim });
        }
        aims
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
        let Settings { files, repeats, servers, depth, .. } = self.settings;
        writeln!(
            out,
            "{servers} server(s), {files} empty files in one directory, {depth} deep\n\
             {} cores, Linux {}, load {:.1}; median of {repeats} turns (least..most)",
            self.machine.cores, self.machine.kernel, self.machine.load,
        )?;
        for point in &self.points {
            let title = format!("{}, a second", processes(point.processes));
            writeln!(out, "\n{title:<24} {:>26} {:>12}", "", "of TCP links")?;
            for figure in &point.figures {
                let Spread { median, min, max } = figure.rate;
                let name = format!("{}, {}", figure.target, figure.operation);
                let cell = format!("{median:.0} ({min:.0}..{max:.0})");
                writeln!(out, "{name:<24} {cell:>26} {:>12.2}", figure.share.median)?;
            }
        }
        if !self.listings.is_empty() {
            let title = format!("listing {} entries", self.settings.listed);
            writeln!(out, "\n{title:<32} {:>22}", "seconds")?;
        }
        for listing in &self.listings {
            let Spread { median, min, max } = listing.seconds;
            let name = format!("{}, {}", listing.target, listing.what);
            let cell = format!("{median:.3} ({min:.3}..{max:.3})");
            writeln!(out, "{name:<32} {cell:>22}")?;
        }
        writeln!(out, "\n{:<52} {:>6} {:>8}", "aim", "aim", "reached")?;
        for aim in &self.aims {
            let met = if aim.met { "met" } else { "missed" };
            writeln!(out, "{:<52} {:>6.2} {:>8.2}  {met}", aim.what, aim.aim, aim.value)?;
        }
        writeln!(out, "\n{} names verified: no difference", self.verified)
    }
}

fn processes(count: usize) -> String {
    match count {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(create: f64, seconds: f64) -> Report {
        let spread = |median: f64| Spread { median, min: median * 0.9, max: median * 1.1 };
        let figure = |target: &str, operation: &str, share: f64| Figure {
            rate: spread(share * 10_000.0),
            share: spread(share),
            ..Figure::new(target, operation)
        };
        let figures = vec![
            figure("ping-pong", "links", 1.0),
            figure("pool", "create", create),
            figure("pool", "unlink", 0.1),
            figure("mount", "create", 0.1),
        ];
        let listing = |target: &str| Listing {
            target: target.to_owned(),
            what: "names".to_owned(),
            seconds: spread(seconds),
        };
        let settings =
            Settings { files: 10_000, repeats: 5, listed: 100_000, depth: 1, servers: 1 };
        let points = vec![Point { processes: 4, figures }];
        Report::new(settings, points, vec![listing("pool"), listing("local")], 7)
    }

    #[test]
    fn aims_are_about_creates_stats_and_listings_of_the_pool() {
        let met = |report: &Report| report.aims.iter().map(|aim| aim.met).collect::<Vec<_>>();
        assert_eq!(met(&report(0.5, 0.9)), [true, true]);
        assert_eq!(met(&report(0.49, 1.0)), [false, false]);
    }

    #[test]
    fn the_text_shows_rates_shares_and_aims() {
        let text = report(0.61, 0.25).text();
        for part in [
            "4 processes, a second",
            "6100 (5490..6710)         0.61",
            "0.250 (0.225..0.275)",
            "create natively, 4 processes, share of the ping-pong by TCP",
            "7 names verified",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
