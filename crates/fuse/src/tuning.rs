//! What a user asked for certain files, by their paths.

use glob::Pattern;
use serde::{Deserialize, Serialize};
use weir_core::error::{Code, Error, Result};
use weir_core::wire::meta::LayoutWish;

/// A wish for files whose paths match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// A glob of paths in the pool, as `/out/*.dat`; `*` matches slashes too. One without a slash is
    /// of names.
    pub pattern: String,
    /// Bytes in which programs that are lent the file put small sequential writes together, and by
    /// which they read ahead; 0: neither.
    pub io_buffer: Option<u64>,
    /// Stripe size in bytes, if the file is made here.
    pub stripe_size: Option<u64>,
    /// Columns, if the file is made here; 0: all.
    pub stripe_count: Option<u32>,
}

/// Rules in order: of those that match and have something to say, the last one counts.
#[derive(Debug, Default)]
pub(crate) struct Tuning(Vec<(Pattern, Rule)>);

impl Tuning {
    pub(crate) fn new(rules: &[Rule]) -> Result<Tuning> {
        let compile = |rule: &Rule| {
            let pattern = Pattern::new(&rule.pattern).map_err(|error| {
                Error::because(Code::Invalid, error.to_string()).on("tune", &rule.pattern)
            })?;
            Ok((pattern, rule.clone()))
        };
        rules.iter().map(compile).collect::<Result<_>>().map(Tuning)
    }

    /// Whether there are none, so that nobody need find out a path.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn last<T>(&self, path: &str, setting: impl Fn(&Rule) -> Option<T>) -> Option<T> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let matches = |pattern: &Pattern| {
            pattern.matches(if pattern.as_str().contains('/') { path } else { name })
        };
        self.0
            .iter()
            .rev()
            .filter(|(pattern, _)| matches(pattern))
            .find_map(|(_, rule)| setting(rule))
    }

    pub(crate) fn io_buffer(&self, path: &str) -> u64 {
        self.last(path, |rule| rule.io_buffer).unwrap_or(0)
    }

    pub(crate) fn layout(&self, path: &str) -> LayoutWish {
        LayoutWish {
            stripe_size: self.last(path, |rule| rule.stripe_size),
            stripe_count: self.last(path, |rule| rule.stripe_count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_that_says_something_counts() {
        let rule = |pattern: &str, io_buffer, stripe_size| Rule {
            pattern: pattern.to_owned(),
            io_buffer,
            stripe_size,
            stripe_count: None,
        };
        let rules = [
            rule("*", Some(1), Some(4096)),
            rule("*.dat", Some(2), None),
            rule("/a/*", Some(3), None),
        ];
        let tuning = Tuning::new(&rules).expect("patterns");
        assert_eq!(tuning.io_buffer("/x"), 1);
        assert_eq!(tuning.io_buffer("/b/x.dat"), 2);
        assert_eq!(tuning.io_buffer("/a/b/x.dat"), 3);
        assert_eq!(tuning.layout("/a/b/x.dat").stripe_size, Some(4096));
        assert_eq!(tuning.layout("/a/b/x.dat").stripe_count, None);
        assert_eq!(Tuning::default().io_buffer("/x"), 0);
        assert!(Tuning::new(&[rule("[", None, None)]).is_err());
    }
}
