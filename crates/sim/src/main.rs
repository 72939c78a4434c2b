//! Plays many seeds, or one with its story.

use std::process::ExitCode;
use std::time::Instant;
use weir_sim::{Bug, Crowd, Kept, Mix, Plan, Report, run};

const USAGE: &str = "\
weir-sim: plays simulated histories of a pool and checks them

  --seeds N       how many seeds (default 1000)
  --first N       the first of them (default 0)
  --seed N        this one alone
  --clients N     clients (default: drawn from the seed)
  --fault-mix M   calm, gentle, rough or wreck (default: drawn from the seed)
  --bug B         plants a bug: lost-write, stale-size, served-twice, hole, torn-write or
                  same-edition; of kept pools: early-sync, named-unsynced or same-life
  --scenario S    histories (the default); kept: servers of kept pools that die and come back;
                  or crowd: very many clients at once
  --servers N     servers of the crowd (default 4; its clients: 10000)
  -v              tells the story
";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scenario {
    Histories,
    Kept,
    Crowd,
}

struct Options {
    seeds: u64,
    first: u64,
    scenario: Scenario,
    servers: usize,
    plan: Plan,
}

fn parse() -> Result<Options, String> {
    let plan = Plan { seed: 0, clients: 0, mix: None, bug: None, tells: false };
    let mut options =
        Options { seeds: 1000, first: 0, scenario: Scenario::Histories, servers: 4, plan };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        if flag == "-v" {
            options.plan.tells = true;
            continue;
        }
        if flag == "-h" || flag == "--help" {
            return Err(String::new());
        }
        let value = arguments.next().ok_or_else(|| format!("{flag}: its value is missing"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{flag} {value}: {error}"));
        let unknown = || format!("{flag} {value}: not known");
        match flag.as_str() {
            "--seeds" => options.seeds = number()?,
            "--first" => options.first = number()?,
            "--seed" => {
                options.first = number()?;
                options.seeds = 1;
            }
            "--servers" => options.servers = (number()? as usize).max(1),
            "--scenario" => match value.as_str() {
                "histories" => options.scenario = Scenario::Histories,
                "kept" => options.scenario = Scenario::Kept,
                "crowd" => options.scenario = Scenario::Crowd,
                _ => return Err(unknown()),
            },
            "--clients" => options.plan.clients = number()? as usize,
            "--fault-mix" => {
                let mix = Mix::ALL.iter().find(|mix| mix.name() == value);
                options.plan.mix = Some(*mix.ok_or_else(unknown)?);
            }
            "--bug" => {
                let bug = Bug::ALL.iter().find(|bug| bug.name() == value);
                options.plan.bug = Some(*bug.ok_or_else(unknown)?);
            }
            _ => return Err(format!("{flag}: no such option")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match parse() {
        Ok(options) => options,
        Err(error) => {
            eprint!("{error}{}{USAGE}", if error.is_empty() { "" } else { "\n" });
            return ExitCode::from(2);
        }
    };
    let started = Instant::now();
    if options.scenario == Scenario::Crowd {
        return crowd(&options);
    }
    let (mut ops, mut errors, mut virtual_us, mut events) = (0, 0, 0, 0);
    for seed in options.first..options.first + options.seeds {
        let plan = Plan { seed, ..options.plan.clone() };
        let report = play(&plan, options.scenario);
        ops += report.ops;
        errors += report.errors;
        virtual_us += report.virtual_us;
        events += report.events;
        if let Some(failure) = report.failure {
            tell(&plan, options.scenario, &failure);
            return ExitCode::FAILURE;
        }
        if plan.tells {
            report.story.iter().for_each(|line| println!("{line}"));
        }
    }
    let s = started.elapsed().as_secs_f64();
    println!(
        "{} seeds passed in {s:.1} s: {ops} operations ({errors} ended in errors), {events} events, \
         {:.0} s of simulated time",
        options.seeds,
        virtual_us as f64 / 1e6
    );
    ExitCode::SUCCESS
}

/// Very many clients at once.
fn crowd(options: &Options) -> ExitCode {
    let started = Instant::now();
    let clients = if options.plan.clients > 0 { options.plan.clients } else { 10_000 };
    let report = Crowd { seed: options.first, clients, servers: options.servers }.run();
    if let Some(failure) = report.failure {
        println!("crowd of {clients} clients, seed {}: {failure}", options.first);
        return ExitCode::FAILURE;
    }
    let s = report.virtual_us as f64 / 1e6;
    println!(
        "{clients} clients on {} servers: {} operations and {:.1} MiB in {s:.3} s of simulated time \
         ({:.0} operations/s, {:.1} MiB/s); played in {:.1} s, {} events",
        options.servers,
        report.ops,
        report.bytes as f64 / f64::from(1 << 20),
        report.ops as f64 / s,
        report.bytes as f64 / f64::from(1 << 20) / s,
        started.elapsed().as_secs_f64(),
        report.events
    );
    ExitCode::SUCCESS
}

fn play(plan: &Plan, scenario: Scenario) -> Report {
    let Plan { seed, bug, tells, .. } = *plan;
    match scenario {
        Scenario::Kept => Kept { seed, bug, tells }.run(),
        _ => run(plan),
    }
}

/// Plays the seed again with its story, and says how to do that.
fn tell(plan: &Plan, scenario: Scenario, failure: &str) {
    let told = play(&Plan { tells: true, ..plan.clone() }, scenario);
    let skip = if plan.tells { 0 } else { told.story.len().saturating_sub(40) };
    told.story.iter().skip(skip).for_each(|line| println!("{line}"));
    println!("seed {} failed: {failure}", plan.seed);
    if told.failure.as_deref() != Some(failure) {
        println!("played again it failed otherwise: {:?}", told.failure);
    }
    let mut command = format!("cargo run --release -p weir-sim -- --seed {} -v", plan.seed);
    if scenario == Scenario::Kept {
        command += " --scenario kept";
    }
    if plan.clients > 0 {
        command += &format!(" --clients {}", plan.clients);
    }
    if let Some(mix) = plan.mix {
        command += &format!(" --fault-mix {}", mix.name());
    }
    if let Some(bug) = plan.bug {
        command += &format!(" --bug {}", bug.name());
    }
    println!("replay: {command}");
}
