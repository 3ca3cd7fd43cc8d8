//! The examples with the small guest, in four suites, each with a site of its own: what a guest has and how it is reached, networks, disks,
//! and images. The same on `berth up` and on a real Kubernetes control plane.

use anyhow::Result;

use super::site::ControlPlane;
use super::{
    Kit, architecture, block_device, disks_of_a_vm, dual_stack, encryption, formatted_disks, guest_access,
    hardware, install, made_images, pools, probes, read_only_disk, read_write_disk, routes, screen,
    secure_boot, shared_folders, size, snapshot_schedule, snapshots, static_addresses, status, traffic,
    uploads, vault_keys, vm_group, vm_names,
};
use crate::guests::GuestImage;
use crate::platform::Platform;
use crate::report::Report;

/// Builds the programs and the guest, and starts a site for the suite of this name.
fn site(kit: &Kit, report: &mut Report, name: &str, on: ControlPlane) -> Result<(Platform, GuestImage)> {
    let parts = report.step("the programs are built", || kit.parts(&on.suite(name)))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let platform = on.platform(kit, report, &parts)?;
    Ok((platform, guest))
}

/// Firmware, size, hardware, screens, access, probes, shared folders, groups.
pub fn guests(kit: &Kit, report: &mut Report, on: ControlPlane) -> Result<()> {
    let signed = report.step("the small guest with signed boot loaders is built", || kit.signed_guest())?;
    let installer = report.step("the installer is built", || kit.installer())?;
    let aarch64 = report.step("the small guest for ARM is built", || kit.aarch64_guest())?;
    let (platform, guest) = site(kit, report, "guests", on)?;
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
    vm_group::example(report, &platform, &guest);
    Ok(())
}

/// Networks of one host: routes, addresses, limits, names, IPv6.
pub fn addresses(kit: &Kit, report: &mut Report, on: ControlPlane) -> Result<()> {
    let (platform, guest) = site(kit, report, "addresses", on)?;
    routes::example(report, &platform, &guest);
    static_addresses::example(report, &platform, &guest);
    traffic::example(report, &platform, &guest);
    vm_names::example(report, &platform, &guest);
    dual_stack::example(report, &platform, &guest);
    dual_stack::autoconfiguration(report, &platform, &guest);
    dual_stack::public_prefix(report, &platform, &guest);
    Ok(())
}

/// Disks and their pools, snapshots and encryption.
pub fn disks(kit: &Kit, report: &mut Report, on: ControlPlane) -> Result<()> {
    let openbao = report.step("OpenBao is fetched", || kit.openbao())?;
    let (mut platform, guest) = site(kit, report, "disks", on)?;
    disks_of_a_vm::example(report, &platform, &guest);
    pools::example(report, &platform, &guest);
    read_only_disk::example(report, &platform, &guest);
    read_write_disk::example(report, &platform, &guest);
    formatted_disks::example(report, &platform, &guest);
    snapshots::example(report, &platform, &guest);
    encryption::example(report, &mut platform, &guest);
    vault_keys::example(report, &mut platform, &guest, &openbao);
    snapshot_schedule::example(report, &platform, &guest);
    // Last: it starts the host with another option.
    block_device::example(report, &mut platform, &guest);
    Ok(())
}

/// Images from disks, snapshots and files.
pub fn images(kit: &Kit, report: &mut Report, on: ControlPlane) -> Result<()> {
    let (platform, guest) = site(kit, report, "images", on)?;
    made_images::example(report, &platform, &guest);
    uploads::example(report, &platform, &guest);
    uploads::push(report, &platform);
    Ok(())
}
