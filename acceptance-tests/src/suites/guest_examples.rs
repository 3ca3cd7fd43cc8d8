//! The examples with the small guest on `berth up`: firmware, size, hardware, screens, access, disks, networks, snapshots and
//! images.

use anyhow::Result;

use super::{
    Kit, architecture, disks_of_a_vm, dual_stack, encryption, formatted_disks, guest_access, hardware,
    install, made_images, pools, probes, read_only_disk, read_write_disk, routes, screen, secure_boot,
    shared_folders, size, snapshot_schedule, snapshots, static_addresses, status, traffic, uploads,
    vault_keys, vm_group, vm_names,
};
use crate::platform::Platform;
use crate::report::Report;

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("guests"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let signed = report.step("the small guest with signed boot loaders is built", || kit.signed_guest())?;
    let installer = report.step("the installer is built", || kit.installer())?;
    let aarch64 = report.step("the small guest for ARM is built", || kit.aarch64_guest())?;
    let platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    secure_boot::run(report, &platform, &signed, &guest);
    screen::run(report, &platform, &guest);
    install::run(report, &platform, &installer);
    size::example(report, &platform, &guest);
    hardware::example(report, &platform, &guest, &installer);
    status::example(report, &platform, &guest);
    guest_access::example(report, &platform, &guest);
    probes::example(report, &platform, &guest);
    shared_folders::example(report, &platform, &guest);
    architecture::example(report, &platform, &aarch64);
    disks_of_a_vm::example(report, &platform, &guest);
    pools::example(report, &platform, &guest);
    read_only_disk::example(report, &platform, &guest);
    read_write_disk::example(report, &platform, &guest);
    formatted_disks::example(report, &platform, &guest);
    routes::example(report, &platform, &guest);
    static_addresses::example(report, &platform, &guest);
    traffic::example(report, &platform, &guest);
    vm_names::example(report, &platform, &guest);
    vm_group::example(report, &platform, &guest);
    dual_stack::example(report, &platform, &guest);
    dual_stack::autoconfiguration(report, &platform, &guest);
    dual_stack::public_prefix(report, &platform, &guest);
    snapshots::example(report, &platform, &guest);
    encryption::example(report, &platform, &guest);
    vault_keys::example(report, &platform, &guest);
    snapshot_schedule::example(report, &platform, &guest);
    made_images::example(report, &platform, &guest);
    uploads::example(report, &platform, &guest);
    uploads::push(report, &platform);
    Ok(())
}
