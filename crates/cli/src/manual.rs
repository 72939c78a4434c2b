//! Man pages and completions, from the definitions of the command line.

use crate::args;
use crate::config;
use crate::failure::{Failure, Outcome};

/// `weir man`.
pub(crate) fn man(options: &args::Man) -> Outcome<u8> {
    let directory = &options.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(config::command(), directory))
        .map_err(|error| Failure::system("write man pages", directory.display(), error))?;
    Ok(0)
}

/// `weir completions`.
pub(crate) fn completions(options: &args::Completions) -> Outcome<u8> {
    clap_complete::generate(options.shell, &mut config::command(), "weir", &mut std::io::stdout());
    Ok(0)
}
