//! `berth doctor`: gathers facts about this machine, judges them and prints the result.

use std::io::Write as _;

use anyhow::{Context, bail};
use berth_host::linux::doctor_facts;

use crate::{
    cli::{DoctorOptions, OutputForm},
    doctor::{Level, checks, json, text},
};

/// Prints the checks.
///
/// *Errors:* a check failed.
pub(super) async fn run(options: DoctorOptions) -> anyhow::Result<()> {
    let facts = doctor_facts(&options.state.state_dir).await;
    let checks = checks(&facts);
    let out = match options.output {
        OutputForm::Text => text(&checks),
        OutputForm::Json => format!("{:#}\n", json(&checks)),
    };
    std::io::stdout().write_all(out.as_bytes()).context("printing")?;
    match checks.iter().filter(|check| check.level == Level::Failure).count() {
        0 => Ok(()),
        1 => bail!("one check failed"),
        failed => bail!("{failed} checks failed"),
    }
}
