//! `terraform-provider-berth`: started by Terraform or OpenTofu.
//!
//! `terraform-provider-berth export DIR` writes the configuration of the objects that exist into DIR; `-debug` serves a
//! debugger.

use std::{path::Path, process::ExitCode};

use terraform_provider_berth::{ADDRESS, BerthProvider, export};
use tfplugin6::ServeOptions;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["export", directory] => exported(directory.as_ref()),
        arguments => {
            let debug = arguments.iter().any(|argument| matches!(*argument, "-debug" | "--debug"));
            tfplugin6::serve(BerthProvider::default, ServeOptions::new(ADDRESS).debug(debug))
        }
    }
}

fn exported(directory: &Path) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("starting the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let written =
        runtime.block_on(export::export()).and_then(|export| export.write(directory).map(|()| export));
    match written {
        Ok(export) => {
            for warning in &export.warnings {
                eprintln!("{}: {}", warning.summary, warning.detail);
            }
            eprintln!(
                "{} objects in {}. Run there: terraform init; terraform plan",
                export.objects,
                directory.display()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
