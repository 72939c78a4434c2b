//! Takes the MPI-IO driver's sources into the command: `weir mpi` compiles them for the user's MPI.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Files of these directories, without those below.
const DIRECTORIES: [&str; 3] = ["mpi", "mpi/front", "mpi/back"];

fn wanted(path: &Path) -> bool {
    let end = path.extension().and_then(|end| end.to_str());
    path.is_file() && (matches!(end, Some("c" | "h")) || path.ends_with("build-back"))
}

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec!["include/weir.h".to_owned()];
    for directory in DIRECTORIES {
        println!("cargo:rerun-if-changed={}", root.join(directory).display());
        let entries = std::fs::read_dir(root.join(directory)).expect("the driver's sources");
        let paths = entries.map(|entry| entry.expect("entry can be read").path());
        let names = paths.filter(|path| wanted(path)).map(|path| {
            let name = path.file_name().expect("has a name").to_str().expect("is text").to_owned();
            format!("{directory}/{name}")
        });
        files.extend(names);
    }
    files.sort();
    let mut text = String::from("&[\n");
    for name in &files {
        let path = root.join(name);
        println!("cargo:rerun-if-changed={}", path.display());
        writeln!(text, "    ({name:?}, include_bytes!({path:?})),").expect("into memory");
    }
    text += "]\n";
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says"));
    std::fs::write(out.join("mpi_sources.rs"), text).expect("written");
}
