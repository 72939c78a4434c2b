//! Settings that are made once: flag over environment over file over default.
//!
//! A setting is an option of the command line under its own long name. What environment and file
//! say becomes the option's default before the command line is read: so each value goes through the
//! option's own parser, and does not clash with flags as a flag would.

use crate::args::Cli;
use crate::failure::{Failure, Outcome, plain};
use crate::state;
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use toml::{Spanned, Value};

/// Commands that have settings.
const COMMANDS: [&str; 5] = ["run", "up", "server", "mount", "cp"];
/// These use a pool that is there, and what it was made with goes before what the file says.
const USERS: [&str; 2] = ["mount", "cp"];
/// What a pool remembers of its making, of what its users may say too.
const REMEMBERED: &str = "connections";

/// The configuration file: every key there is. What each means, and how it is written, is at the
/// option of the same name.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    servers: Option<Spanned<Value>>,
    memory: Option<Spanned<Value>>,
    metadata_memory: Option<Spanned<Value>>,
    listen: Option<Spanned<Value>>,
    stripe_size: Option<Spanned<Value>>,
    stripe_count: Option<Spanned<Value>>,
    transport: Option<Spanned<Value>>,
    connections: Option<Spanned<Value>>,
    cache: Option<Spanned<Value>>,
    io_uring: Option<Spanned<Value>>,
    heartbeat: Option<Spanned<Value>>,
    silence: Option<Spanned<Value>>,
    reconnect: Option<Spanned<Value>>,
    lease: Option<Spanned<Value>>,
    renew: Option<Spanned<Value>>,
    capability: Option<Spanned<Value>>,
    busy: Option<Spanned<Value>>,
    busy_retry: Option<Spanned<Value>>,
    spin: Option<Spanned<Value>>,
}

impl File {
    /// Every key, and what it is set to.
    fn entries(self) -> [(&'static str, Option<Spanned<Value>>); 19] {
        [
            ("servers", self.servers),
            ("memory", self.memory),
            ("metadata-memory", self.metadata_memory),
            ("listen", self.listen),
            ("stripe-size", self.stripe_size),
            ("stripe-count", self.stripe_count),
            ("transport", self.transport),
            ("connections", self.connections),
            ("cache", self.cache),
            ("io-uring", self.io_uring),
            ("heartbeat", self.heartbeat),
            ("silence", self.silence),
            ("reconnect", self.reconnect),
            ("lease", self.lease),
            ("renew", self.renew),
            ("capability", self.capability),
            ("busy", self.busy),
            ("busy-retry", self.busy_retry),
            ("spin", self.spin),
        ]
    }
}

/// Every key there is.
pub(crate) fn keys() -> impl Iterator<Item = &'static str> {
    File::default().entries().into_iter().map(|(key, _)| key)
}

/// The environment's name of a key.
pub(crate) fn variable(key: &str) -> String {
    format!("WEIR_{}", key.to_ascii_uppercase().replace('-', "_"))
}

/// How the environment is asked.
type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// What was found: all of it is good.
pub(crate) struct Settings {
    /// The file in force.
    pub(crate) file: Option<PathBuf>,
    /// The keys that it sets.
    pub(crate) from_file: Vec<(&'static str, String)>,
    /// The keys that the environment sets.
    pub(crate) from_environment: Vec<(&'static str, String)>,
}

/// Why a command line was not read.
pub(crate) enum Refusal {
    /// It is wrong, or asks for help.
    CommandLine(clap::Error),
    /// The environment or the file is.
    Settings(Failure),
}

/// The definitions of the command line, with the names of settings in the help.
pub(crate) fn command() -> Command {
    with_settings(Cli::command(), |_, key, arg| {
        let named = |text: &dyn std::fmt::Display| format!("{text} [env: {}]", variable(key));
        let (help, long) = (arg.get_help().map(|text| named(&text)), arg.get_long_help());
        let long = long.map(|text| named(&text));
        let arg = match help {
            Some(help) => arg.help(help),
            None => arg,
        };
        match long {
            Some(long) => arg.long_help(long),
            None => arg,
        }
    })
}

/// Reads the command line, and what else counts for its command.
pub(crate) fn parse(arguments: &[OsString], environment: Environment<'_>) -> Result<Cli, Refusal> {
    let first = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    // A server that `run` or `up` started is told all; what is set where it runs is for others.
    let told = arguments.iter().any(|word| word == "--tether");
    let mut command = command();
    if COMMANDS.contains(&first) && !told {
        if let Err(error) = command.clone().try_get_matches_from(arguments)
            && !error.use_stderr()
        {
            // Help is to be had whatever the file says.
            return Err(Refusal::CommandLine(error));
        }
        let settings = Settings::find(environment).map_err(Refusal::Settings)?;
        command = settings.become_defaults(command);
    }
    command
        .try_get_matches_from(arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(Refusal::CommandLine)
}

impl Settings {
    /// Reads environment and file, and checks every value.
    pub(crate) fn find(environment: Environment<'_>) -> Outcome<Settings> {
        let stated = environment("WEIR_CONFIG").filter(|path| !path.is_empty());
        let path = match &stated {
            Some(path) => Some(PathBuf::from(path)),
            None => default_file(),
        };
        let text = match &path {
            Some(path) => read(path, stated.is_some())?,
            None => None,
        };
        let from_file = match (&path, &text) {
            (Some(path), Some(text)) => parse_file(path, text)?,
            _ => Vec::new(),
        };
        let mut from_environment = Vec::new();
        for key in keys() {
            let name = variable(key);
            let Some(value) = environment(&name).filter(|value| !value.is_empty()) else {
                continue;
            };
            let fail = |why: &str| {
                let value = value.to_string_lossy();
                Failure::usage(format!("read environment {name}: '{value}': {why}"))
            };
            let text = value.to_str().ok_or_else(|| fail("not text"))?;
            check(key, text).map_err(|why| fail(&why))?;
            from_environment.push((key, text.to_owned()));
        }
        Ok(Settings { file: path.filter(|_| text.is_some()), from_file, from_environment })
    }

    /// Sets the options' defaults.
    fn become_defaults(&self, command: Command) -> Command {
        let value = |found: &[(&str, String)], key: &str| {
            found.iter().find(|(known, _)| *known == key).map(|(_, value)| value.clone())
        };
        with_settings(command, |command, key, arg| {
            let of_pool = key == REMEMBERED && USERS.contains(&command);
            let from_file = || value(&self.from_file, key).filter(|_| !of_pool);
            match value(&self.from_environment, key).or_else(from_file) {
                Some(value) => arg.required(false).default_value(value),
                None => arg,
            }
        })
    }
}

/// Where the file is if nobody says so.
pub(crate) fn default_file() -> Option<PathBuf> {
    Some(state::home().ok()?.join("config.toml"))
}

/// The file's text; `None` if there is none and none was stated.
fn read(path: &Path, stated: bool) -> Outcome<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !stated => Ok(None),
        Err(error) => {
            let advice = match stated {
                true => "it is what WEIR_CONFIG says",
                false => "set WEIR_CONFIG=/dev/null to do without",
            };
            let path = path.display();
            Err(Failure::usage(format!("read configuration {path}: {}; {advice}", plain(error))))
        }
    }
}

fn parse_file(path: &Path, text: &str) -> Outcome<Vec<(&'static str, String)>> {
    let fail = |at: Option<usize>, why: &str| {
        let line = at.and_then(|at| text.get(..at)).map(|above| above.matches('\n').count() + 1);
        let line = line.map_or(String::new(), |line| format!(" line {line}"));
        Failure::usage(format!("read configuration {}{line}: {why}", path.display()))
    };
    let file: File = toml::from_str(text).map_err(|error| {
        let mut why = error.message().replacen("unknown field", "unknown key", 1);
        let what = error.span().and_then(|span| text.get(span)).unwrap_or_default().trim();
        if !what.is_empty() && what.len() < 40 && !what.contains('\n') && !why.contains(what) {
            why = format!("'{what}': {why}");
        }
        fail(error.span().map(|span| span.start), &why)
    })?;
    let mut found = Vec::new();
    for (key, entry) in file.entries() {
        let Some(entry) = entry else { continue };
        let fail = |why: &str| fail(Some(entry.span().start), &format!("{key}: {why}"));
        let value = match entry.get_ref() {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(yes) => yes.to_string(),
            other => {
                let kind = other.type_str();
                return Err(fail(&format!("a {kind}; write text, a whole number, true or false")));
            }
        };
        check(key, &value).map_err(|why| fail(&format!("'{value}': {why}")))?;
        found.push((key, value));
    }
    Ok(found)
}

/// Has the option of this name read a value.
fn check(key: &str, value: &str) -> Result<(), String> {
    let Some((_, arg)) = options(&Cli::command(), key).into_iter().next() else {
        return Err("no option has this name".into());
    };
    // By itself: other options, that it excludes, are no matter of the value.
    let alone = Arg::new("value")
        .value_parser(arg.get_value_parser().clone())
        .action(ArgAction::Set)
        .allow_hyphen_values(true);
    match Command::new("check")
        .arg(alone)
        .try_get_matches_from([OsStr::new("check"), value.as_ref()])
    {
        Ok(_) => Ok(()),
        Err(error) => Err(match std::error::Error::source(&error) {
            Some(cause) => cause.to_string(),
            // The possible values are in the second line.
            None => match error.get(clap::error::ContextKind::ValidValue) {
                Some(valid) => format!("write {valid}"),
                None => "no good value".into(),
            },
        }),
    }
}

/// The options that a key sets, with their commands.
pub(crate) fn options(command: &Command, key: &str) -> Vec<(String, Arg)> {
    let commands = COMMANDS.iter().filter_map(|name| command.find_subcommand(name));
    commands
        .filter_map(|command| {
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(key))?;
            Some((command.get_name().to_owned(), arg.clone()))
        })
        .collect()
}

/// Changes all options that are settings.
fn with_settings(command: Command, change: impl Fn(&str, &str, Arg) -> Arg) -> Command {
    command.mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        if !COMMANDS.contains(&&*name) {
            return command;
        }
        command.mut_args(|arg| match keys().find(|key| arg.get_long() == Some(key)) {
            Some(key) => change(&name, key, arg),
            None => arg,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    struct Scene {
        directory: tempfile::TempDir,
        variables: Vec<(&'static str, String)>,
    }

    impl Scene {
        fn new(file: &str, variables: &[(&'static str, &str)]) -> Scene {
            let directory = tempfile::tempdir().expect("tempdir");
            let path = directory.path().join("config.toml");
            std::fs::write(&path, file).expect("written");
            let mut known = vec![("WEIR_CONFIG", path.display().to_string())];
            known.extend(variables.iter().map(|(name, value)| (*name, (*value).to_owned())));
            Scene { directory, variables: known }
        }

        fn parse(&self, words: &[&str]) -> Result<args::Command, String> {
            let words: Vec<OsString> =
                ["weir"].iter().chain(words).map(|word| OsString::from(*word)).collect();
            let environment = |name: &str| {
                let found = self.variables.iter().rfind(|(known, _)| *known == name);
                found.map(|(_, value)| value.into())
            };
            match parse(&words, &environment) {
                Ok(cli) => Ok(cli.command),
                Err(Refusal::CommandLine(error)) => Err(error.to_string()),
                Err(Refusal::Settings(failure)) => {
                    let text = failure.text;
                    Err(text.replace(&self.directory.path().display().to_string(), ""))
                }
            }
        }

        fn up(&self, words: &[&str]) -> args::Up {
            match self.parse(&[&["up"], words].concat()) {
                Ok(args::Command::Up(up)) => *up,
                Ok(other) => panic!("{other:?}"),
                Err(said) => panic!("{said}"),
            }
        }

        fn said(&self) -> String {
            self.parse(&["up"]).expect_err("refused")
        }
    }

    #[test]
    fn every_key_is_an_option() {
        for key in keys() {
            assert!(!options(&Cli::command(), key).is_empty(), "{key}");
        }
    }

    #[test]
    fn flag_over_environment_over_file_over_default() {
        let file = "connections = 4\nstripe-size = '4M'\n";
        let connections = |scene: &Scene, words: &[&str]| scene.up(words).servers.wire.connections;
        assert_eq!(connections(&Scene::new("", &[]), &[]), None);
        assert_eq!(connections(&Scene::new(file, &[]), &[]), Some(4));
        let both = Scene::new(file, &[("WEIR_CONNECTIONS", "5")]);
        assert_eq!(connections(&both, &[]), Some(5));
        assert_eq!(connections(&both, &["--connections", "6"]), Some(6));
        assert_eq!(both.up(&[]).servers.stripe_size, 4 << 20);
        assert_eq!(Scene::new("", &[]).up(&[]).servers.stripe_size, 1 << 20);
        // Set to nothing is not set.
        assert_eq!(connections(&Scene::new(file, &[("WEIR_CONNECTIONS", "")]), &[]), Some(4));
    }

    #[test]
    fn a_required_option_may_be_set_and_a_switch_may_be_unset() {
        let scene = Scene::new("memory = '64M'\ncache = true\nlisten = '[::1]:0'\n", &[]);
        let server = scene.parse(&["server", "--secret", "-"]);
        let Ok(args::Command::Server(server)) = server else { panic!("{server:?}") };
        assert_eq!((server.memory, &*server.listen), (64 << 20, "[::1]:0"));
        for (words, cache) in [(&[][..], true), (&["--cache=false"], false), (&["--cache"], true)] {
            let run = scene.parse(&[&["run"], words, &["true"]].concat());
            let Ok(args::Command::Run(run)) = run else { panic!("{run:?}") };
            assert_eq!(run.kernel.cache, cache);
        }
    }

    #[test]
    fn settings_do_not_clash_with_flags() {
        let scene = Scene::new("listen = '10.0.0.7:0'\nmemory = '1G'\n", &[("WEIR_SERVERS", "3")]);
        scene.up(&["--hosts", "hosts", "--secret", "secret"]);
        assert!(scene.parse(&["up", "--hosts", "hosts", "--servers", "2"]).is_err());
    }

    #[test]
    fn what_a_pool_remembers_goes_before_the_file() {
        let connections = |scene: &Scene| match scene.parse(&["mount", "/mnt"]) {
            Ok(args::Command::Mount(mount)) => mount.wire.connections,
            other => panic!("{other:?}"),
        };
        assert_eq!(connections(&Scene::new("connections = 4", &[])), None);
        let said = Scene::new("connections = 4", &[("WEIR_CONNECTIONS", "5")]);
        assert_eq!(connections(&said), Some(5));
    }

    #[test]
    fn a_bad_file_names_line_and_key() {
        for (file, parts) in [
            ("servers = 2\nmemroy = '1G'", &["line 2", "unknown key `memroy`", "`memory`"][..]),
            ("\nmemory = 'lots'", &["line 2", "memory: 'lots'", "512M"]),
            ("servers = 0", &["line 1", "servers: '0'", "1"]),
            ("cache = 'perhaps'", &["line 1", "cache: 'perhaps'", "true", "false"]),
            ("silence = 8", &["silence: '8'", "500ms"]),
            ("[memory]\nsize = 1", &["line 1", "memory: a table"]),
            ("connections = 2\nconnections = 3", &["line 2", "connections"]),
            ("listen = ", &["line 1"]),
        ] {
            let said = Scene::new(file, &[]).said();
            assert!(said.starts_with("read configuration /config.toml"), "{said}");
            for part in parts {
                assert!(said.contains(part), "{file}: no '{part}' in: {said}");
            }
        }
    }

    #[test]
    fn a_bad_variable_is_named() {
        let said = Scene::new("memory = '1G'", &[("WEIR_MEMORY", "lots")]).said();
        assert!(said.starts_with("read environment WEIR_MEMORY: 'lots': not a size"), "{said}");
    }

    #[test]
    fn commands_without_settings_and_help_do_not_care() {
        let scene = Scene::new("nonsense", &[]);
        assert!(matches!(scene.parse(&["ls"]), Ok(args::Command::Ls(_))));
        let help = scene.parse(&["run", "--help"]).expect_err("help");
        assert!(help.contains("WEIR_STRIPE_SIZE]"), "{help}");
        // Servers that `run` starts are told everything.
        let words = ["server", "--tether", "--secret", "-", "--memory", "64M"];
        assert!(matches!(scene.parse(&words), Ok(args::Command::Server(_))));
    }

    #[test]
    fn a_stated_file_must_be_there_and_be_one() {
        for (path, cause) in [("/no/such", "no such file"), ("/", "is a directory")] {
            let said = Scene::new("", &[("WEIR_CONFIG", path)]).said();
            assert!(said.contains(path) && said.contains(cause), "{said}");
            assert!(said.contains("WEIR_CONFIG"), "{said}");
        }
        Scene::new("", &[("WEIR_CONFIG", "/dev/null")]).up(&[]);
    }
}
