//! `weir bench metadata` by itself.

use clap::Parser;
use std::process::ExitCode;
use weir_bench::metadata::{self, Arguments};

/// Files made, looked at and removed a second, beside the bare ping-pong.
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    match metadata::run(&Command::parse().arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-metadata: {error}");
            ExitCode::FAILURE
        }
    }
}
