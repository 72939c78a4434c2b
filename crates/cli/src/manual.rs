//! Man pages and completions, from the definitions of the command line.

use crate::args::{self, Cli};
use crate::failure::{Failure, Outcome};
use clap::CommandFactory;

/// `weir man`.
pub(crate) fn man(options: &args::Man) -> Outcome<u8> {
    let directory = &options.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .map_err(|error| Failure::system("write man pages", directory.display(), error))?;
    Ok(0)
}

/// `weir completions`.
pub(crate) fn completions(options: &args::Completions) -> Outcome<u8> {
    clap_complete::generate(options.shell, &mut Cli::command(), "weir", &mut std::io::stdout());
    Ok(0)
}
