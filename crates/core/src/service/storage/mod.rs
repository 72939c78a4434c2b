//! Storage targets.
