//! How a command ends badly: what is said, and the exit status.

use std::fmt;
use std::time::{Duration, Instant};

/// Exit statuses of `weir` itself; `run` otherwise ends with its program's.
pub(crate) mod status {
    /// Something failed.
    pub(crate) const FAILED: u8 = 1;
    /// The command line makes no sense.
    pub(crate) const USAGE: u8 = 2;
    /// `run`: what is to be staged in is not there.
    pub(crate) const NO_INPUT: u8 = 66;
    /// Servers or mount are not to be had.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// A server was lost while the program ran: data may be gone.
    pub(crate) const POOL_LOST: u8 = 74;
    /// `run`: results could not be staged out.
    pub(crate) const NOT_SAVED: u8 = 75;
    /// `run`: the program is no executable.
    pub(crate) const NOT_EXECUTABLE: u8 = 126;
    /// `run`: the program was not found.
    pub(crate) const NOT_FOUND: u8 = 127;
    /// Plus the signal's number: ended by it.
    pub(crate) const SIGNALLED: u8 = 128;
}

/// A failure: an exit status and `operation object: cause; consequence`.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    pub(crate) text: String,
}

/// What most functions here return.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: u8, text: impl Into<String>) -> Failure {
        Failure { status, text: text.into() }
    }

    /// The usual kind: status 1.
    pub(crate) fn say(text: impl Into<String>) -> Failure {
        Failure::new(status::FAILED, text)
    }

    /// The command line makes no sense.
    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure::new(status::USAGE, text)
    }

    /// The system refused something.
    pub(crate) fn system(
        operation: &str,
        object: impl fmt::Display,
        cause: impl fmt::Display,
    ) -> Failure {
        Failure::say(format!("{operation} {object}: {}", plain(cause)))
    }

    pub(crate) fn with_status(mut self, status: u8) -> Failure {
        self.status = status;
        self
    }

    /// Adds what follows.
    pub(crate) fn so(mut self, consequence: impl fmt::Display) -> Failure {
        self.text = format!("{}; {consequence}", self.text);
        self
    }
}

/// The system's error texts without their capital and `(os error 2)`.
pub(crate) fn plain(cause: impl fmt::Display) -> String {
    let text = cause.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    // nix says `ENOENT: No such file or directory`.
    let text = match text.split_once(": ") {
        Some((name, rest))
            if name.starts_with('E')
                && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit()) =>
        {
            rest
        }
        _ => text,
    };
    let mut letters = text.chars();
    match letters.next() {
        Some(first) if !letters.as_str().starts_with(|c: char| c.is_uppercase()) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<weir_core::error::Error> for Failure {
    fn from(error: weir_core::error::Error) -> Failure {
        Failure::say(error.to_string())
    }
}

/// Says something on stderr, as `weir`.
pub(crate) fn tell(text: impl fmt::Display) {
    // A closed stderr must not end a run.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("weir: {text}\n").as_bytes());
}

/// For what goes on for long: when it is time to tell how far it is, again.
pub(crate) struct Pace(Instant);

impl Pace {
    /// Begins now: what takes no second needs no word.
    pub(crate) fn new() -> Pace {
        Pace(Instant::now())
    }

    /// Whether more than a second has passed since it was so the last time.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = self.0.elapsed() > Duration::from_secs(1);
        if due {
            self.0 = Instant::now();
        }
        due
    }
}

/// Prints to stdout; who closes it has read enough.
pub(crate) fn print(text: impl fmt::Display) -> Outcome<()> {
    match std::io::Write::write_all(&mut std::io::stdout(), text.to_string().as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::say(format!("print: {}", plain(error))))
        }
        _ => Ok(()),
    }
}
