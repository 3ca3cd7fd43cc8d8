//! Terraform and the small guest on `berth up`: the lifecycle, Terraform's rules, then invalid input.

use anyhow::Result;

use super::{Kit, defaults, host_shutdown, inputs, lifecycle, moves, quotas, restrictions, rules, verbs};
use crate::platform::Platform;
use crate::report::Report;

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("terraform"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let mut platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    lifecycle::run_cases(report, &mut platform, &guest)?;
    rules::run(report, &platform, &guest);
    verbs::run(report, &platform);
    moves::run(report, &platform);
    quotas::refusals(report, &platform);
    quotas::example(report, &platform);
    defaults::example(report, &platform, &guest);
    restrictions::refusals(report, &platform);
    host_shutdown::run(report, &mut platform, &guest);
    inputs::run(report, &mut platform, &guest)
}
