//! Writes the definitions of the kinds, as the types determine them, into the folder that the programs embed:
//! `cargo run --example definitions`.

use std::process::ExitCode;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/manifests/definitions");

fn main() -> ExitCode {
    match berth_api::manifests::derived::write(FOLDER.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("writing the definitions into {FOLDER}: {error}");
            ExitCode::FAILURE
        }
    }
}
