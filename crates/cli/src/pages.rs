//! The generated pages: `docs/commands.md` and `docs/configuration.md`.

use crate::args;
use crate::config;
use crate::failure::{Failure, Outcome};
use clap::{Arg, Command};
use std::fmt::Write;

/// `weir pages`.
pub(crate) fn pages(options: &args::Pages) -> Outcome<u8> {
    let directory = &options.directory;
    for (name, text) in [("commands.md", commands()), ("configuration.md", configuration())] {
        let path = directory.join(name);
        std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| Failure::system("write", path.display(), error))?;
    }
    Ok(0)
}

const COMMANDS_HEAD: &str = "\
# Commands

Generated from the definitions of the command line; do not edit. `weir help COMMAND` says the same.
";

fn commands() -> String {
    let mut command = config::command();
    // So that commands know their full names.
    command.build();
    let mut page = COMMANDS_HEAD.to_owned();
    for command in command.get_subcommands_mut() {
        describe(command, &mut page);
    }
    page
}

fn describe(command: &mut Command, page: &mut String) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let usage = command.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(plain).unwrap_or_default();
    let _ = write!(page, "\n## {name}\n\n{about}\n\n```\n{}\n```\n\n", usage.trim());
    for arg in command.get_arguments() {
        if arg.is_hide_set() || ["help", "version"].contains(&arg.get_id().as_str()) {
            continue;
        }
        let _ = writeln!(page, "- `{}`: {}", signature(arg), meaning(arg));
    }
    if let Some(more) = command.get_after_long_help().or(command.get_after_help()) {
        let _ = write!(page, "\n```\n{}\n```\n", more.to_string().trim());
    }
    for command in command.get_subcommands_mut() {
        describe(command, page);
    }
}

/// `-q, --quiet`.
fn signature(arg: &Arg) -> String {
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(_)) => format!("-{short}, {arg}"),
        _ => arg.to_string(),
    }
}

fn meaning(arg: &Arg) -> String {
    let mut text = arg.get_long_help().or(arg.get_help()).map(plain).unwrap_or_default();
    if let Some(name) = arg.get_env() {
        let _ = write!(text, " [env: {}]", name.display());
    }
    if let Some(value) = stated_default(arg) {
        let _ = write!(text, " [default: {value}]");
    }
    let values = arg.get_possible_values();
    if arg.get_action().takes_values() && !arg.is_hide_possible_values_set() && !values.is_empty() {
        let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        let _ = write!(text, " [possible values: {}]", names.join(", "));
    }
    text
}

fn stated_default(arg: &Arg) -> Option<String> {
    if !arg.get_action().takes_values() || arg.is_hide_default_value_set() {
        return None;
    }
    let values: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    (!values.is_empty()).then(|| values.join(" "))
}

/// In one line, and nothing of it taken for a tag or a column.
fn plain(text: &clap::builder::StyledStr) -> String {
    let text = text.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('<', "\\<").replace('|', "\\|")
}

const CONFIGURATION_HEAD: &str = "\
# Configuration

Generated from the definitions of the command line; do not edit.

None is needed. What a site or a user wants otherwise for good is set in a file, or in the environment:
a flag goes before the environment, that before the file, and that before the default.

The file is the one that `WEIR_CONFIG` names, else `config.toml` in `$WEIR_HOME` or `~/.weir`;
`WEIR_CONFIG=/dev/null` is none. `weir doctor` says which one is in force. It is TOML, each key is the
long name of an option, and each value is written as on the command line, whole numbers, `true` and
`false` also without quotes:

```toml
servers = 4
memory = \"2G\"
stripe-size = \"4M\"
silence = \"20s\"
```

Keys that are not below are refused. Variables of the environment that are empty are not set.

| key | environment | used by | default | meaning |
| --- | --- | --- | --- | --- |
";

const CONFIGURATION_TAIL: &str = "
A pool remembers its connections and its times: `mount`, `cp` and all others use those that it was made
with, and a key of the file does not change them. `--connections` and `WEIR_CONNECTIONS` do.

Sizes are as in `64K`, `1.5G` or `4096`, all binary; times as in `500ms`, `8s`, `5m` or `1h`.

Not settings, but read too: `WEIR_POOL` (the pool that is meant), `WEIR_HOME` (where pools are kept) and
`WEIR_LOG` (what `weir server` logs).
";

fn configuration() -> String {
    let command = <args::Cli as clap::CommandFactory>::command();
    let mut page = CONFIGURATION_HEAD.to_owned();
    for key in config::keys() {
        let options = config::options(&command, key);
        let used_by: Vec<String> = options.iter().map(|(name, _)| format!("`{name}`")).collect();
        let Some((_, arg)) = options.first() else { continue };
        let help = arg.get_help().map(plain).unwrap_or_default();
        let (meaning, written) = match help.split_once(" [default: ") {
            Some((meaning, rest)) => (meaning, Some(rest.trim_end_matches(']').to_owned())),
            None => (&*help, None),
        };
        // `server` may have another one than `run`.
        let mut defaults: Vec<String> = options
            .iter()
            .filter_map(|(_, arg)| stated_default(arg))
            .map(|value| format!("`{value}`"))
            .collect();
        defaults.dedup();
        let default = match (written, defaults.is_empty()) {
            (Some(written), _) => written,
            (None, true) => String::new(),
            (None, false) => defaults.join(", "),
        };
        let _ = writeln!(
            page,
            "| `{key}` | `{}` | {} | {default} | {meaning} |",
            config::variable(key),
            used_by.join(" ")
        );
    }
    page + CONFIGURATION_TAIL
}
