//! Metadata stores that keep their data.
