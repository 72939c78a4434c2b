//! Progress of what takes more than two seconds.

use crate::failure::tell;
use crate::size::show;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Shorter work shows nothing.
const QUIET: Duration = Duration::from_secs(2);
/// Without a terminal: a line so often.
const LINE: Duration = Duration::from_secs(10);

/// A bar on a terminal, lines elsewhere.
pub(crate) struct Progress {
    title: &'static str,
    total: u64,
    begun: Instant,
    next_line: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Of `total` bytes.
    pub(crate) fn new(title: &'static str, total: u64) -> Progress {
        let begun = Instant::now();
        Progress { title, total, begun, next_line: begun + QUIET, bar: None }
    }

    /// So many bytes are done.
    pub(crate) fn at(&mut self, done: u64) {
        if self.begun.elapsed() < QUIET {
            return;
        }
        if std::io::stderr().is_terminal() {
            let (title, total) = (self.title, self.total);
            let bar = self.bar.get_or_insert_with(|| {
                let style = ProgressStyle::with_template(
                    "{prefix} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
                );
                ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
                    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
                    .with_prefix(title)
                    .with_elapsed(QUIET)
            });
            bar.set_position(done);
        } else if Instant::now() >= self.next_line {
            self.next_line = Instant::now() + LINE;
            tell(format_args!("{}: {} of {}", self.title, show(done), show(self.total)));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
