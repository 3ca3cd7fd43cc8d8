//! The terraform suite's cases with OpenTofu.

use anyhow::Result;

use super::{Kit, inputs, lifecycle, moves, rules, terraform_new, verbs};
use crate::platform::Platform;
use crate::report::Report;
use crate::tools;

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report
        .step("the programs are built, OpenTofu from source", || kit.parts_with("tofu", tools::opentofu))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let mut platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    lifecycle::run_cases(report, &mut platform, &guest)?;
    rules::run(report, &platform, &guest);
    verbs::run(report, &platform);
    moves::run(report, &platform);
    terraform_new::run_cases(report, &platform, &guest);
    inputs::through_terraform(report, &mut platform, &guest);
    Ok(())
}
