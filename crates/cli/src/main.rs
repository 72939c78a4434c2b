//! `weir`: the command. Thin: what it does is in the client, the servers and the mount.

mod args;
mod channel;
mod config;
mod copy;
mod doctor;
mod failure;
mod fuse;
mod inspect;
mod keeper;
mod kept;
mod manual;
mod mount;
mod mpi;
mod namespace;
mod pages;
mod pool;
mod progress;
mod run;
mod servers;
mod size;
mod state;
mod sys;

use args::{Benchmark, Command};
use config::Refusal;
use failure::{Outcome, status, tell};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match config::parse(&arguments, &|name| std::env::var_os(name)) {
        Ok(cli) => cli,
        Err(Refusal::Settings(failure)) => {
            tell(&failure);
            return ExitCode::from(failure.status);
        }
        Err(Refusal::CommandLine(error)) if !error.use_stderr() => {
            // Help and version: what was asked for.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(Refusal::CommandLine(error)) => {
            use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand as NoCommand;
            if error.kind() == NoCommand {
                let _ = error.print();
                return ExitCode::from(status::USAGE);
            }
            let text = error.render().to_string();
            tell(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
            return ExitCode::from(status::USAGE);
        }
    };
    match dispatch(cli.command) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            tell(&failure);
            ExitCode::from(failure.status)
        }
    }
}

fn dispatch(command: Command) -> Outcome<u8> {
    match command {
        Command::Run(options) => run::run(&options),
        Command::Up(options) => keeper::up(&options),
        Command::Down(options) => keeper::down(&options),
        Command::Server(options) => servers::serve(&options),
        Command::Status(options) => inspect::status(&options),
        Command::Mount(options) => mount::mount(&options),
        Command::Umount(options) => mount::umount(&options),
        Command::Scrub(options) => kept::scrub(&options),
        Command::Ls(options) => inspect::ls(&options),
        Command::Cp(options) => copy::cp(&options),
        Command::Rm(options) => inspect::rm(&options),
        Command::Stat(options) => inspect::stat(&options),
        Command::Df(options) => inspect::df(&options),
        Command::Layout(options) => inspect::layout(&options),
        Command::Bench(options) => match options.command {
            Benchmark::Netpipe(arguments) => {
                weir_bench::netpipe::run(&arguments)?;
                Ok(0)
            }
            Benchmark::Metadata(arguments) => {
                weir_bench::metadata::run(&arguments)?;
                Ok(0)
            }
        },
        Command::Mpi(options) => mpi::mpi(&options),
        Command::Doctor(options) => doctor::doctor(&options),
        Command::Man(options) => manual::man(&options),
        Command::Pages(options) => pages::pages(&options),
        Command::Completions(options) => manual::completions(&options),
        Command::KeepRun(control) => run::job::keep(control.descriptor),
        Command::KeepPool(control) => keeper::keep_pool(control.descriptor),
        Command::KeepMount(control) => mount::keep_mount(control.descriptor),
    }
}
