//! `berth doctor`: gathers facts about this machine, judges them and prints the result.

use std::io::Write as _;

use anyhow::{Context, bail};
use berth_host::linux::doctor_facts;

use crate::{
    cli::{DoctorOptions, OutputForm},
    doctor::{Level, checks, json, text},
    printable::{printable, printable_json},
};

/// Prints the checks.
///
/// *Errors:* a check failed.
pub(super) async fn run(options: DoctorOptions) -> anyhow::Result<()> {
    let facts = doctor_facts(&options.state.state_dir).await;
    let checks = checks(&facts);
    let out = match options.output {
        OutputForm::Text => printable(&text(&checks)),
        OutputForm::Json => printable_json(&format!("{:#}\n", json(&checks))),
    };
    std::io::stdout().write_all(out.as_bytes()).context("printing")?;
    match checks.iter().filter(|check| check.level == Level::Failure).count() {
        0 => Ok(()),
        1 => bail!("one check failed"),
        failed => bail!("{failed} checks failed"),
    }
}
