//! The MPI-IO driver: which MPIs are served, and `weir mpi`, which makes back ends for others.

use crate::args;
use crate::failure::{Failure, Outcome, print};
use crate::run::preload;
use crate::state;
use std::collections::BTreeSet;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names relative to the repository, and what is in them.
const SOURCES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/mpi_sources.rs"));
/// Compilers looked for.
const COMPILERS: [&str; 4] = ["mpicc", "mpicc.mpich", "mpicc.openmpi", "mpicc_abi"];
/// What back ends are called before and behind the soname.
const NAME: (&str, &str) = ("libweir_mpi-", ".so");

/// Whether a library's file name is a soname of an MPI's C interface, as the front library knows
/// them.
fn is_soname(name: &str) -> bool {
    ["libmpi.so.", "libmpich.so.", "libmpi_abi.so.", "libmpi_cray.so.", "libmpi_gnu.so."]
        .iter()
        .filter_map(|known| name.strip_prefix(known))
        .any(|version| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()))
}

fn names_in(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// The user's own directory for back ends.
fn own_directory() -> Outcome<PathBuf> {
    Ok(state::home()?.join("mpi"))
}

/// Sonames of the MPIs for which there are back ends.
pub(crate) fn served() -> BTreeSet<String> {
    let beside = preload::find_mpi_library().ok();
    let beside = beside.as_deref().and_then(Path::parent).map(Path::to_owned);
    let directories = beside.into_iter().chain(own_directory().ok());
    let names = directories.flat_map(|directory| names_in(&directory));
    names
        .filter_map(|name| {
            let name = name.strip_prefix(NAME.0)?.strip_suffix(NAME.1)?;
            is_soname(name).then(|| name.to_owned())
        })
        .collect()
}

/// Sonames of the MPIs that the dynamic linker knows, and of those beside compilers on the path.
pub(crate) fn present() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for program in ["ldconfig", "/sbin/ldconfig"] {
        if let Ok(output) = Command::new(program).arg("-p").output() {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let names = text.lines().filter_map(|line| line.split_whitespace().next());
            found.extend(names.filter(|name| is_soname(name)).map(str::to_owned));
            break;
        }
    }
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let searched = std::env::split_paths(&path).collect::<Vec<_>>();
    let beside = compilers().into_iter().filter_map(|compiler| {
        let above = compiler.canonicalize().ok()?.parent()?.parent()?.to_owned();
        Some(above.join("lib"))
    });
    for directory in searched.into_iter().chain(beside) {
        found.extend(names_in(&directory).filter(|name| is_soname(name)));
    }
    found
}

/// The compilers of MPIs on the path, each once.
fn compilers() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut known = BTreeSet::new();
    std::env::split_paths(&path)
        .flat_map(|directory| COMPILERS.map(|name| directory.join(name)))
        .filter(|compiler| compiler.is_file())
        .filter(|compiler| {
            known.insert(compiler.canonicalize().unwrap_or_else(|_| compiler.clone()))
        })
        .collect()
}

/// `weir mpi`.
pub(crate) fn mpi(options: &args::Mpi) -> Outcome<u8> {
    let compilers = match options.compilers.is_empty() {
        true => compilers(),
        false => options.compilers.clone(),
    };
    if compilers.is_empty() {
        return Err(Failure::say(format!(
            "compile back ends: none of {} is on PATH; name the compiler of your MPI",
            COMPILERS.join(", ")
        )));
    }
    let directory = match &options.directory {
        Some(directory) => directory.clone(),
        None => own_directory()?,
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&directory)
        .map_err(|error| Failure::system("make directory", directory.display(), error))?;
    let program =
        std::env::current_exe().map_err(|error| Failure::system("find", "this program", error))?;
    let libweir = preload::find(&program, "libweir.so")
        .ok_or_else(|| Failure::say("compile back ends: libweir.so is not beside weir"))?;
    let work = Sources::unpack()?;
    for compiler in &compilers {
        let mut build = Command::new("sh");
        build.arg(work.path.join("mpi/build-back")).arg(compiler);
        build.env("OUT", &directory).env("LIBWEIR", libweir.parent().unwrap_or(&libweir));
        let output = build.output().map_err(|error| Failure::system("start", "sh", error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::say(format!(
                "compile back end with {}: {}",
                compiler.display(),
                said.trim()
            )));
        }
        print(String::from_utf8_lossy(&output.stdout).into_owned())?;
    }
    Ok(0)
}

/// The driver's sources in a directory of their own, which ends with this.
struct Sources {
    path: PathBuf,
}

impl Sources {
    fn unpack() -> Outcome<Sources> {
        let name = format!("weir-mpi-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let failed = |error| Failure::system("write", path.display(), error);
        // Not one that somebody else has put there.
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let sources = Sources { path: path.clone() };
        for (name, bytes) in SOURCES {
            let file = path.join(name);
            let above = file.parent().unwrap_or(&path);
            std::fs::create_dir_all(above)
                .and_then(|()| std::fs::write(&file, bytes))
                .map_err(failed)?;
        }
        Ok(sources)
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_c_interface_of_an_mpi_counts() {
        for name in ["libmpi.so.40", "libmpich.so.12", "libmpi_abi.so.1", "libmpi.so.12"] {
            assert!(is_soname(name), "{name}");
        }
        for name in ["libmpi.so", "libmpi_mpifh.so.40", "libmpi.so.40.30.4", "libmpichcxx.so.12"] {
            assert!(!is_soname(name), "{name}");
        }
    }

    #[test]
    fn the_sources_are_there() {
        for name in ["include/weir.h", "mpi/build-back", "mpi/calls.h", "mpi/back/open.c"] {
            assert!(SOURCES.iter().any(|(known, _)| *known == name), "{name}");
        }
    }
}
