//! Figures over turns.

use serde::Serialize;

/// A median over the turns, and between what they lay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let median = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
        Some(Spread { median, min, max })
    }
}
