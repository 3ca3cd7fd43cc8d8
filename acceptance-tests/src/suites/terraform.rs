//! Terraform and the small guest on `berth up`: the lifecycle, Terraform's rules, then invalid input.

use anyhow::Result;

use super::{
    Kit, disks_of_a_vm, dual_stack, guest_access, inputs, install, lifecycle, made_images, moves, probes,
    routes, rules, screen, secure_boot, shared_folders, snapshot_schedule, snapshots, uploads, verbs,
};
use crate::platform::Platform;
use crate::report::Report;

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("terraform"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let signed = report.step("the small guest with signed boot loaders is built", || kit.signed_guest())?;
    let installer = report.step("the installer is built", || kit.installer())?;
    let mut platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    lifecycle::run_cases(report, &mut platform, &guest)?;
    rules::run(report, &platform, &guest);
    secure_boot::run(report, &platform, &signed, &guest);
    screen::run(report, &platform, &guest);
    install::run(report, &platform, &installer);
    guest_access::example(report, &platform, &guest);
    probes::example(report, &platform, &guest);
    disks_of_a_vm::example(report, &platform, &guest);
    shared_folders::example(report, &platform, &guest);
    routes::example(report, &platform, &guest);
    dual_stack::example(report, &platform, &guest);
    snapshots::example(report, &platform, &guest);
    snapshot_schedule::example(report, &platform, &guest);
    made_images::example(report, &platform, &guest);
    uploads::example(report, &platform, &guest);
    uploads::push(report, &platform);
    verbs::run(report, &platform);
    moves::run(report, &platform);
    inputs::run(report, &mut platform, &guest)
}
