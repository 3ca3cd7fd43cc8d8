//! Writes the registry pages into a directory: `cargo run --example docs -- docs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(directory) = std::env::args().nth(1) else {
        eprintln!("cargo run --example docs -- DIRECTORY");
        return ExitCode::FAILURE;
    };
    match terraform_provider_berth::docs::write(directory.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("writing the pages into {directory}: {error}");
            ExitCode::FAILURE
        }
    }
}
