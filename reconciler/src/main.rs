//! The one binary, `berth`.

use std::process::ExitCode;

use berth::{cli::Cli, commands, failure, memory};
use clap::Parser;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    memory::give_back();
    let cli = Cli::parse();
    berth::log::start(&cli.log);
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => failure::report(&error, 1),
    }
}
