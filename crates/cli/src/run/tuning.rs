//! What the user asks for certain files: `--io-buffer` for all, `--tune FILE` by path.

use crate::args;
use crate::failure::{Failure, Outcome, status};
use crate::size;
use std::path::Path;
use weir_fuse::Rule;

/// Largest buffer: bytes. There is one for each file that a process has open.
const IO_BUFFER_MAX: u64 = 1 << 30;

/// All rules: those of the file count where they differ from the option.
pub(super) fn rules(options: &args::Run) -> Outcome<Vec<Rule>> {
    let mut rules = Vec::new();
    if let Some(size) = options.io_buffer {
        let io_buffer =
            Some(io_buffer(size).map_err(|why| Failure::usage(format!("--io-buffer: {why}")))?);
        rules.push(Rule { pattern: "*".to_owned(), io_buffer, ..Rule::default() });
    }
    if let Some(file) = &options.tune {
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::system("read", file.display(), error).with_status(status::NO_INPUT)
        })?;
        rules.extend(parse(&text).map_err(|(line, why)| {
            Failure::usage(format!("--tune {}, line {line}: {why}", Path::display(file)))
        })?);
    }
    Ok(rules)
}

/// Whether any of them asks for a buffer.
pub(super) fn buffers(rules: &[Rule]) -> bool {
    rules.iter().any(|rule| rule.io_buffer.is_some_and(|size| size > 0))
}

fn io_buffer(size: u64) -> Result<u64, String> {
    match size {
        ..=IO_BUFFER_MAX => Ok(size),
        _ => Err(format!("{} is more than {}", size::show(size), size::show(IO_BUFFER_MAX))),
    }
}

/// Lines `PATTERN NAME=VALUE…`; `#` begins a comment. An error says in which line it is.
fn parse(text: &str) -> Result<Vec<Rule>, (usize, String)> {
    let mut rules = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(pattern) = words.next() else { continue };
        rules.push(rule(pattern, words).map_err(|why| (index + 1, why))?);
    }
    Ok(rules)
}

fn rule<'a>(pattern: &str, settings: impl Iterator<Item = &'a str>) -> Result<Rule, String> {
    glob::Pattern::new(pattern).map_err(|error| format!("pattern {pattern}: {error}"))?;
    let mut rule = Rule { pattern: pattern.to_owned(), ..Rule::default() };
    for setting in settings {
        let (name, value) =
            setting.split_once('=').ok_or_else(|| format!("'{setting}' is not NAME=VALUE"))?;
        let of = |why: String| format!("{name}: {why}");
        match name {
            "io-buffer" => {
                rule.io_buffer = Some(size::parse(value).and_then(io_buffer).map_err(of)?)
            }
            "stripe-size" => rule.stripe_size = Some(args::stripe_size(value).map_err(of)?),
            "stripe-count" => {
                rule.stripe_count =
                    Some(value.parse().map_err(|_| of(format!("'{value}' is no number")))?);
            }
            _ => return Err(format!("'{name}' is none of io-buffer, stripe-size, stripe-count")),
        }
    }
    if rule == (Rule { pattern: pattern.to_owned(), ..Rule::default() }) {
        return Err("nothing is asked for: io-buffer, stripe-size, stripe-count".to_owned());
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_lines() {
        let text = "# mine\n\n*.aoints io-buffer=4M stripe-size=64K # big\n/out/* stripe-count=2\n";
        let expected = [
            Rule {
                pattern: "*.aoints".into(),
                io_buffer: Some(4 << 20),
                stripe_size: Some(64 << 10),
                stripe_count: None,
            },
            Rule { pattern: "/out/*".into(), stripe_count: Some(2), ..Rule::default() },
        ];
        assert_eq!(parse(text), Ok(expected.to_vec()));
        assert!(buffers(&expected));
        assert!(!buffers(&expected[1..]));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line) in [
            ("\n*", 2),
            ("* io-buffer", 1),
            ("* io-buffer=much", 1),
            ("* io-buffer=2T", 1),
            ("* stripe-size=3", 1),
            ("* stripe-count=-1", 1),
            ("* colour=red", 1),
            ("[ io-buffer=1M", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().0, line, "{text}");
        }
    }
}
