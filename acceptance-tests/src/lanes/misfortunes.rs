//! What goes wrong with a machine and is nobody's mistake: its disk fills up, its clock jumps.

pub mod clocks;
pub mod full_disk;

use anyhow::Result;

use super::Kit;
use crate::report::Report;

/// Runs the lane.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("misfortunes"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let library = report.step("a clock that can be set is there", || kit.settable_clock())?;
    full_disk::run(report, &parts, &guest)?;
    clocks::run(report, &parts, &guest, &library)
}
