//! What can go wrong, and how it is told: `operation object: cause; consequence`.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $errno:literal, $text:literal;)*) => {
        /// The kind of a failure, as it crosses the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr(u16)]
        pub enum Code { $($(#[$doc])* $name = $number,)* }

        impl Code {
            /// Every code, for tests and documentation.
            pub const ALL: &[Code] = &[$(Code::$name),*];

            /// The code that a status word on the wire names; unknown words are `Internal`.
            pub fn from_wire(word: u16) -> Code {
                match word { $($number => Code::$name,)* _ => Code::Internal }
            }

            /// The one place that maps failures to `errno` (Linux numbers).
            pub fn errno(self) -> i32 {
                match self { $(Code::$name => $errno,)* }
            }

            /// What it means, in a few words.
            pub fn text(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }
        }
    };
}

codes! {
    /// EPERM.
    NotPermitted = 1, 1, "operation not permitted";
    /// ENOENT.
    NotFound = 2, 2, "no such file or directory";
    /// EIO: what was stored is not there any more.
    Lost = 3, 5, "data lost: its target restarted or is gone";
    /// EIO: the server does not answer.
    ServerLost = 4, 5, "server does not answer";
    /// EBADF.
    BadHandle = 5, 9, "handle is not open";
    /// EACCES.
    AccessDenied = 6, 13, "permission denied";
    /// EBUSY.
    InUse = 7, 16, "in use";
    /// EEXIST.
    Exists = 8, 17, "file exists";
    /// EXDEV.
    CrossPool = 9, 18, "not within one pool";
    /// ENOTDIR.
    NotDirectory = 10, 20, "not a directory";
    /// EISDIR.
    IsDirectory = 11, 21, "is a directory";
    /// EINVAL.
    Invalid = 12, 22, "invalid argument";
    /// EFBIG.
    TooLarge = 13, 27, "file too large";
    /// ENOSPC.
    NoSpace = 14, 28, "pool is full";
    /// EMLINK.
    TooManyLinks = 15, 31, "too many links";
    /// ENAMETOOLONG.
    NameTooLong = 16, 36, "name too long";
    /// ENOTEMPTY.
    NotEmpty = 17, 39, "directory not empty";
    /// ELOOP.
    Loop = 18, 40, "too many symbolic links";
    /// ENODATA.
    NoAttribute = 19, 61, "no such extended attribute";
    /// EOPNOTSUPP.
    Unsupported = 20, 95, "not supported";
    /// EPROTO: bytes that make no sense.
    Protocol = 21, 71, "protocol error";
    /// EPROTONOSUPPORT.
    Version = 22, 93, "protocol version not spoken here";
    /// EACCES: the secret was not proved.
    Unauthenticated = 23, 13, "secret not proved: wrong secret file or another pool's server";
    /// Internal to the protocol: capability missing, unknown or expired; shown again, then retried.
    NoCapability = 24, 13, "no valid capability";
    /// Internal to the protocol: epoch or layout generation is old; fetched again, then retried.
    Stale = 25, 116, "pool map or layout is out of date";
    /// Internal to the protocol: overloaded; asked again later.
    Busy = 26, 11, "server is busy";
    /// ESTALE: the client's lease lapsed and its session is gone.
    SessionLapsed = 27, 116, "session lapsed: this client was silent for longer than its lease";
    /// EIO: server is not part of a pool yet.
    NotFormed = 28, 5, "server is not part of a pool yet";
    /// EIO: a bug.
    Internal = 29, 5, "internal error";
    /// ETIMEDOUT.
    TimedOut = 30, 110, "timed out";
    /// EDQUOT is not used; metadata memory full is ENOSPC too.
    NoMetadataSpace = 31, 28, "metadata memory is full";
    /// ENXIO: no data or hole there.
    NoExtent = 32, 6, "no such offset";
    /// ERANGE.
    Range = 33, 34, "result does not fit";
    /// ECANCELED.
    Cancelled = 34, 125, "cancelled";
    /// EAGAIN.
    WouldBlock = 35, 11, "would block";
    /// E2BIG.
    TooMany = 36, 7, "too many at once";
    /// ENOLCK.
    NoLocks = 37, 37, "too many locks";
    /// EDEADLK.
    Deadlock = 38, 35, "waiting for this lock would never end";
    /// EIO: a target's disk failed, or gave other bytes than were written to it.
    Disk = 39, 5, "disk error";
    /// EIO: what was stored does not match its checksum, or makes no sense.
    Damaged = 40, 5, "stored bytes are damaged";
    /// EFAULT.
    BadAddress = 41, 14, "memory that is not there, or must not be used so";
}

/// A failure with its story. Its text reads `operation object: cause; consequence`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind.
    pub code: Code,
    /// What was tried, e.g. `write`; may be empty where the caller adds it.
    pub operation: String,
    /// On what, e.g. `/ckpt/0`; may be empty where the caller adds it.
    pub object: String,
    /// Why it failed; the code's text where nothing better is known.
    pub cause: String,
    /// What follows for the caller; may be empty.
    pub consequence: String,
}

impl Error {
    /// An error with nothing but its kind.
    pub fn new(code: Code) -> Error {
        Error::because(code, code.text())
    }

    /// An error with its cause in words.
    pub fn because(code: Code, cause: impl Into<String>) -> Error {
        Error {
            code,
            operation: String::new(),
            object: String::new(),
            cause: cause.into(),
            consequence: String::new(),
        }
    }

    /// Adds what was tried on what, where that is not yet said.
    pub fn on(mut self, operation: &str, object: impl fmt::Display) -> Error {
        if self.operation.is_empty() {
            self.operation = operation.to_owned();
            self.object = object.to_string();
        }
        self
    }

    /// Adds what follows for the caller, where that is not yet said.
    pub fn so(mut self, consequence: impl fmt::Display) -> Error {
        if self.consequence.is_empty() {
            self.consequence = consequence.to_string();
        }
        self
    }

    /// The `errno` of its kind.
    pub fn errno(&self) -> i32 {
        self.code.errno()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.operation.is_empty() {
            write!(f, "{}", self.operation)?;
            if !self.object.is_empty() {
                write!(f, " {}", self.object)?;
            }
            write!(f, ": ")?;
        }
        write!(f, "{}", self.cause)?;
        if !self.consequence.is_empty() {
            write!(f, "; {}", self.consequence)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<Code> for Error {
    fn from(code: Code) -> Error {
        Error::new(code)
    }
}

/// What most functions here return.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_words_round_trip() {
        for &code in Code::ALL {
            assert_eq!(Code::from_wire(code as u16), code);
            assert!(code.errno() > 0);
        }
        assert_eq!(Code::from_wire(60_000), Code::Internal);
    }

    #[test]
    fn text_names_operation_object_cause_and_consequence() {
        let error = Error::because(Code::ServerLost, "target 3 (10.0.0.7:4420) lost")
            .on("write", "/ckpt/0")
            .so("1 MiB not stored");
        assert_eq!(
            error.to_string(),
            "write /ckpt/0: target 3 (10.0.0.7:4420) lost; 1 MiB not stored"
        );
    }
}
