//! `cargo crash`: kills control planes during writes, for any number of rounds.

use std::process::ExitCode;
use std::time::Duration;

use acceptance_tests::bench::crash::{self, Findings, Size};
use acceptance_tests::report::{chain, note};
use acceptance_tests::workspace::{self, Binaries, Source};
use acceptance_tests::{namespace, prerequisites, undo};
use anyhow::Result;
use clap::Parser;

/// Kills `berth up` amid writes, starts it again, and compares: nothing acknowledged is lost, no event missed or delivered twice.
#[derive(Debug, Parser)]
#[command(name = "cargo crash")]
struct Arguments {
    /// Rounds of each control plane.
    #[arg(long, default_value_t = 1_000)]
    rounds: u32,
    /// Control planes at the same time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// It ends after so many minutes even if there are rounds left.
    #[arg(long, default_value_t = 24 * 60)]
    minutes: u64,
    /// Of the random moments. Default: another one each time.
    #[arg(long)]
    seed: Option<u64>,
    /// Kills debug builds.
    #[arg(long)]
    debug: bool,
    /// Kills the binaries in this folder and builds none.
    #[arg(long, value_name = "FOLDER", conflicts_with = "debug")]
    binaries: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    match undo::on_signals().map_err(Into::into).and_then(|()| run(&Arguments::parse())) {
        Ok(found) => {
            note(&found.to_string());
            ExitCode::SUCCESS
        }
        Err(error) => {
            note(&chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<Findings> {
    prerequisites::ensure_installed()?;
    namespace::sweep()?;
    let source = Source::new(arguments.binaries.as_deref(), !arguments.debug);
    let seed = arguments.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let limit = Duration::from_secs(arguments.minutes * 60);
    let size = Size { servers: arguments.servers, rounds: arguments.rounds, limit, seed };
    note(&format!("seed {seed}"));
    crash::run(size, &Binaries::get(&source)?.berth, &workspace::artifacts().join("crash"))
}
