//! `terraform-provider-berth`: started by Terraform or OpenTofu.
//!
//! `terraform-provider-berth docs DIR` writes the registry pages into DIR; `-debug` serves a debugger.

use std::process::ExitCode;

use terraform_provider_berth::{ADDRESS, BerthProvider, docs};
use tfplugin6::ServeOptions;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["docs", directory] => match docs::write(directory.as_ref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("writing the pages into {directory}: {error}");
                ExitCode::FAILURE
            }
        },
        arguments => {
            let debug = arguments.iter().any(|argument| matches!(*argument, "-debug" | "--debug"));
            tfplugin6::serve(BerthProvider::default, ServeOptions::new(ADDRESS).debug(debug))
        }
    }
}
