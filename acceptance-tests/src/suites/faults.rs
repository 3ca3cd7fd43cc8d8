//! Faults of a machine that no user causes: a full disk, a QEMU that dies or stands still, a firewall of another program, a DHCP server that
//! dies. In suites of their own, clocks that jump, and the ways in which a guest ends by itself.

pub mod clocks;
pub mod endings;
pub mod full_disk;
pub mod networks;
pub mod qemu;

use anyhow::Result;

use super::Kit;
use crate::platform::Parts;
use crate::report::Report;

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("faults"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let within = |folder: &str| Parts { logs: parts.logs.join(folder), ..parts.clone() };
    full_disk::run(report, &within("full-disk"), &guest)?;
    qemu::run(report, &within("qemu"), &guest)?;
    networks::run(report, &within("networks"), &guest)
}

/// Hosts with clocks that jump.
pub fn clocks(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("clocks"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let library = report.step("a clock that can be set is there", || kit.settable_clock())?;
    clocks::run(report, &parts, &guest, &library)
}

/// The ways in which a guest ends by itself, and state directories that are copied or moved below a guest.
pub fn endings(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("endings"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    endings::run(report, &parts, &guest)
}
