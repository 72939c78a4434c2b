//! What is being done, for who waits.

use std::io::{IsTerminal, Write};

/// Shows one line on a terminal, in place of the last one; an empty text takes it away.
pub(crate) fn progress(text: &str) {
    let mut output = std::io::stderr().lock();
    if output.is_terminal() {
        // Nobody waits for progress that cannot be shown.
        let _ = write!(output, "\r\x1b[K{text}").and_then(|()| output.flush());
    }
}
