//! The library that gives the program's reads and writes the straight way to the servers.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libweir_preload.so";
const VARIABLE: &str = "LD_PRELOAD";

/// Where it is: beside this program, or in `lib` beside its directory.
fn find(program: &Path) -> Option<PathBuf> {
    let here = program.parent()?;
    let above = here.parent().unwrap_or(here);
    [here.join(LIBRARY), above.join("lib").join(LIBRARY), above.join("lib/weir").join(LIBRARY)]
        .into_iter()
        .find(|path| path.is_file())
}

/// What the dynamic linker is told: our library in front of what the user wants loaded.
fn value(library: &Path, others: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    value
}

/// The library; why not, where there is none that the dynamic linker can load.
pub(crate) fn find_library() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let library =
        find(&program).ok_or_else(|| format!("{LIBRARY} is not beside {}", program.display()))?;
    // The linker's own separators.
    match library.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        true => Err(format!("there is a blank or a colon in {}", library.display())),
        false => Ok(library),
    }
}

/// The variable that has it loaded into the program; why not, where it cannot be.
pub(super) fn variable() -> Result<(String, OsString), String> {
    let library = find_library()?;
    Ok((VARIABLE.to_owned(), value(&library, std::env::var_os(VARIABLE).as_deref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_beside_the_program_and_in_lib() {
        let directory = tempfile::tempdir().expect("tempdir");
        let program = directory.path().join("bin/weir");
        assert_eq!(find(&program), None);
        for place in ["lib/weir", "lib", "bin"] {
            let place = directory.path().join(place);
            std::fs::create_dir_all(&place).expect("made");
            std::fs::write(place.join(LIBRARY), "").expect("written");
            assert_eq!(find(&program), Some(place.join(LIBRARY)));
        }
    }

    #[test]
    fn what_else_is_to_be_loaded_stays() {
        let library = Path::new("/l.so");
        assert_eq!(value(library, None), "/l.so");
        assert_eq!(value(library, Some(OsStr::new(""))), "/l.so");
        assert_eq!(value(library, Some(OsStr::new("a.so b.so"))), "/l.so:a.so b.so");
    }
}
