//! Libraries that are loaded into the program: the one that gives its reads and writes the straight
//! way to the servers, and the one that serves `weir:` names of its MPI-IO.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libweir_preload.so";
/// Front library of the MPI-IO driver; what fits the program's MPI it finds beside itself.
const MPI_LIBRARY: &str = "libweir_mpi.so";
const VARIABLE: &str = "LD_PRELOAD";

/// Where one is: beside this program, or in `lib` beside its directory.
pub(crate) fn find(program: &Path, name: &str) -> Option<PathBuf> {
    let here = program.parent()?;
    let above = here.parent().unwrap_or(here);
    [here.join(name), above.join("lib").join(name), above.join("lib/weir").join(name)]
        .into_iter()
        .find(|path| path.is_file())
}

/// What the dynamic linker is told: our libraries in front of what the user wants loaded.
fn value(libraries: &[PathBuf], others: Option<&OsStr>) -> OsString {
    let mut value = OsString::new();
    let ours = libraries.iter().map(|library| library.as_os_str());
    for library in ours.chain(others.filter(|others| !others.is_empty())) {
        if !value.is_empty() {
            value.push(":");
        }
        value.push(library);
    }
    value
}

fn find_named(name: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let library = find(&program, name)
        .ok_or_else(|| format!("{name} is not beside {}", program.display()))?;
    // The linker's own separators.
    match library.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        true => Err(format!("there is a blank or a colon in {}", library.display())),
        false => Ok(library),
    }
}

/// The preload library; why not, where there is none that the dynamic linker can load.
pub(crate) fn find_library() -> Result<PathBuf, String> {
    find_named(LIBRARY)
}

/// The front library of the MPI-IO driver.
pub(crate) fn find_mpi_library() -> Result<PathBuf, String> {
    find_named(MPI_LIBRARY)
}

/// The variable that has these loaded into the program; none where there are none.
pub(super) fn variable(libraries: &[PathBuf]) -> Option<(String, OsString)> {
    let others = std::env::var_os(VARIABLE);
    (!libraries.is_empty()).then(|| (VARIABLE.to_owned(), value(libraries, others.as_deref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_beside_the_program_and_in_lib() {
        let directory = tempfile::tempdir().expect("tempdir");
        let program = directory.path().join("bin/weir");
        assert_eq!(find(&program, LIBRARY), None);
        for place in ["lib/weir", "lib", "bin"] {
            let place = directory.path().join(place);
            std::fs::create_dir_all(&place).expect("made");
            std::fs::write(place.join(LIBRARY), "").expect("written");
            assert_eq!(find(&program, LIBRARY), Some(place.join(LIBRARY)));
        }
    }

    #[test]
    fn what_else_is_to_be_loaded_stays() {
        let libraries = [PathBuf::from("/l.so"), PathBuf::from("/m.so")];
        assert_eq!(value(&libraries[..1], None), "/l.so");
        assert_eq!(value(&libraries[..1], Some(OsStr::new(""))), "/l.so");
        assert_eq!(value(&libraries, Some(OsStr::new("a.so b.so"))), "/l.so:/m.so:a.so b.so");
    }
}
