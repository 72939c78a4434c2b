//! `weir bench netpipe` by itself.

use clap::Parser;
use std::process::ExitCode;
use weir_bench::netpipe::{self, Arguments};

/// Transfer rates and latency of a pool beside those of the bare wire.
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    match netpipe::run(&Command::parse().arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-netpipe: {error}");
            ExitCode::FAILURE
        }
    }
}
