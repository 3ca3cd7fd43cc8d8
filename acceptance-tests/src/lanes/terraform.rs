//! Terraform and the small guest on `berth up`: the story, Terraform's rules, then bad input.

use anyhow::Result;

use super::{Kit, inputs, rules, story};
use crate::platform::Platform;
use crate::report::Report;

/// Runs the lane.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("terraform"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let mut platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    story::tell(report, &mut platform, &guest)?;
    rules::run(report, &platform, &guest);
    inputs::run(report, &mut platform, &guest)
}
