//! Directories in which nobody else changes any name for a moment.
//!
//! Before the kernel makes something it looks the name up. When it may believe that there is none, nobody else in the
//! pool changes anything for that long, and all who use this mount may walk there: so what is made there may be
//! believed for as long, too. Programs that make a file under one name, link or rename it and remove that spare
//! questions.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Directories remembered: programs make things in few at a time.
const PLACES_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// Until when. The one that was noted last is the last.
    places: Mutex<Vec<(u64, Instant)>>,
}

impl Quiet {
    /// It was so for a directory, and stays so for this long.
    pub(crate) fn note(&self, directory: u64, stays: Duration) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|(other, _)| *other != directory);
        if places.len() >= PLACES_MAX {
            places.remove(0);
        }
        places.push((directory, Instant::now() + stays));
    }

    /// How long it stays so; zero: nobody knows.
    pub(crate) fn left(&self, directory: u64) -> Duration {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let found = places.iter().find(|(other, _)| *other == directory);
        found.map_or(Duration::ZERO, |(_, until)| until.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_until_their_time_is_over() {
        const LONG: Duration = Duration::from_secs(1000);
        let quiet = Quiet::default();
        assert_eq!(quiet.left(1), Duration::ZERO);
        quiet.note(1, LONG);
        assert!(quiet.left(1) > LONG / 2 && quiet.left(1) <= LONG);
        quiet.note(1, Duration::ZERO);
        assert_eq!(quiet.left(1), Duration::ZERO, "the last word counts");
        for directory in 0..100 {
            quiet.note(directory, LONG);
        }
        let known = (0..100).filter(|directory| !quiet.left(*directory).is_zero());
        assert!(known.eq(100 - PLACES_MAX as u64..100));
    }
}
