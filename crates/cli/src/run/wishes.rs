//! What a run is asked to do.

use super::tuning;
use crate::args;
use crate::failure::{Failure, Outcome, status};
use crate::namespace;
use crate::pool::path_in_pool;
use crate::servers::Plan;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// All that can be checked before anything is started.
pub(super) struct Wishes {
    pub(super) plan: Plan,
    /// What files are to be treated like.
    pub(super) rules: Vec<weir_fuse::Rule>,
    /// Source and absolute destination in the pool.
    pub(super) stage_in: Vec<(PathBuf, PathBuf)>,
    /// Pattern in the pool, absolute; directory here.
    pub(super) stage_out: Vec<(glob::Pattern, Option<PathBuf>)>,
}

impl Wishes {
    pub(super) fn check(options: &args::Run) -> Outcome<Wishes> {
        check_program(&options.command[0])?;
        if let Some(directory) = &options.mount {
            namespace::check_mount_point(directory)?;
        }
        if options.no_mount && (options.no_preload || options.kernel.cache) {
            let other = if options.no_preload { "--no-preload" } else { "--cache" };
            return Err(Failure::usage(format!(
                "--no-mount {other}: the program would not see the pool at all"
            )));
        }
        if let Some(file) = &options.report {
            let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            if !parent.is_dir() {
                return Err(Failure::usage(format!(
                    "--report {}: there is no directory {}",
                    file.display(),
                    parent.display()
                )));
            }
        }
        if let Some(directory) = &options.keep_on_failure
            && directory.exists()
        {
            namespace::check_mount_point(directory).map_err(|failure| {
                Failure::usage(failure.text.replacen("mount", "--keep-on-failure", 1))
            })?;
        }
        let stage_in =
            options.stage_in.iter().map(|text| parse_stage_in(text)).collect::<Outcome<_>>()?;
        let stage_out =
            options.stage_out.iter().map(|text| parse_stage_out(text)).collect::<Outcome<_>>()?;
        let rules = tuning::rules(options)?;
        Ok(Wishes { plan: Plan::of(&options.servers)?, rules, stage_in, stage_out })
    }
}

/// `SOURCE[:DESTINATION]`, where a source that exists may have colons itself.
fn parse_stage_in(text: &str) -> Outcome<(PathBuf, PathBuf)> {
    let missing = |source: &str| {
        Failure::new(
            status::NO_INPUT,
            format!("stage in {source}: no such file or directory; nothing was started"),
        )
    };
    let exists = |path: &str| !path.is_empty() && Path::new(path).symlink_metadata().is_ok();
    let (source, destination) = if exists(text) {
        (text, None)
    } else {
        match text.rsplit_once(':') {
            Some((source, destination)) if exists(source) => (source, Some(destination)),
            Some((source, _)) => return Err(missing(source)),
            None => return Err(missing(text)),
        }
    };
    let path = PathBuf::from(source);
    let destination = match destination {
        Some(destination) => path_in_pool(&format!("weir:{destination}"))?,
        None => {
            let full = path.canonicalize().map_err(|_| missing(source))?;
            Path::new("/").join(full.file_name().unwrap_or_default())
        }
    };
    Ok((path, destination))
}

/// `GLOB[:DIRECTORY]`.
fn parse_stage_out(text: &str) -> Outcome<(glob::Pattern, Option<PathBuf>)> {
    let (pattern, directory) = match text.split_once(':') {
        Some((pattern, directory)) if !directory.is_empty() => {
            (pattern, Some(PathBuf::from(directory)))
        }
        Some((pattern, _)) => (pattern, None),
        None => (text, None),
    };
    let absolute = format!("/{}", pattern.trim_start_matches('/').trim_end_matches('/'));
    let pattern = glob::Pattern::new(&absolute).map_err(|error| {
        Failure::usage(format!("--stage-out {text}: {}", error.msg.to_lowercase()))
    })?;
    Ok((pattern, directory))
}

/// Finds the program as exec will.
fn check_program(program: &OsString) -> Outcome<()> {
    let name = program.to_string_lossy();
    let executable = |path: &Path| {
        nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
            && path
                .metadata()
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let path = Path::new(program);
    let mut candidates = Vec::new();
    if name.contains('/') {
        candidates.push(path.to_owned());
    } else {
        let paths = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        candidates.extend(std::env::split_paths(&paths).map(|directory| directory.join(path)));
    }
    if name.is_empty() || !candidates.iter().any(|candidate| candidate.exists()) {
        let place = if name.contains('/') { "no such file" } else { "not found in PATH" };
        return Err(Failure::new(
            status::NOT_FOUND,
            format!("start {name}: {place}; nothing was started"),
        ));
    }
    if !candidates.iter().any(|candidate| executable(candidate)) {
        return Err(Failure::new(
            status::NOT_EXECUTABLE,
            format!("start {name}: not an executable file; nothing was started"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_in_wants_what_is_there() {
        let directory = tempfile::tempdir().expect("tempdir");
        let file = directory.path().join("a:b");
        std::fs::write(&file, "x").expect("written");
        let file = file.to_str().expect("utf-8");
        assert_eq!(parse_stage_in(file).expect("there").1, Path::new("/a:b"));
        assert_eq!(parse_stage_in(&format!("{file}:/c/d")).expect("there").1, Path::new("/c/d"));
        let failure = parse_stage_in("/no/such:x").expect_err("not there");
        assert_eq!(failure.status, status::NO_INPUT);
        assert!(failure.text.contains("/no/such:"), "{}", failure.text);
    }

    #[test]
    fn stage_out_is_a_pattern_in_the_pool() {
        let (pattern, directory) = parse_stage_out("out/*:saved").expect("good");
        assert_eq!((pattern.as_str(), directory), ("/out/*", Some("saved".into())));
        assert!(parse_stage_out("a[").is_err());
    }

    #[test]
    fn programs_are_looked_up_as_exec_does() {
        assert!(check_program(&"sh".into()).is_ok());
        assert_eq!(check_program(&"no-such-program".into()).expect_err("none").status, 127);
        assert_eq!(check_program(&"/".into()).expect_err("directory").status, 126);
        assert_eq!(check_program(&"/no/such".into()).expect_err("none").status, 127);
    }
}
