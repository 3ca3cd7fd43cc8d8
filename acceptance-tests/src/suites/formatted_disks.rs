//! `examples/formatted-disk` and `examples/scratch-disk` with the small guest: file systems that the host makes, once or at each start.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::kubectl::contains_all;
use super::lifecycle::page;
use crate::guests::GuestImage;
use crate::http::field;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{wait, workspace};

const SOON: Duration = Duration::from_secs(120);
/// A boot without KVM.
const BOOT: Duration = Duration::from_secs(240);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/formatted-disk: a guest mounts the disk by its label, and finds its data after a restart",
        || {
            let project = started(platform, guest, "formatted-disk", "data")?;
            let held = formatted(platform, &project);
            project.destroy()?;
            held
        },
    );
    report.case("examples/scratch-disk: a guest has an empty disk at each start, and its host no file of it afterwards", || {
        let project = started(platform, guest, "scratch-disk", "scratch")?;
        let held = scratch(platform, &project);
        project.destroy()?;
        held
    });
}

/// Applies an example, whose guest mounts the file system with this label and reports whether it was there before.
fn started(platform: &Platform, guest: &GuestImage, example: &str, label: &str) -> Result<Project> {
    let project = platform.project()?;
    project.copy_from(&workspace::root().join("examples").join(example))?;
    let url = platform.images().put(&format!("{example}.qcow2"), Content::File(guest.path.clone()));
    let script = include_str!("formatted_disks/guest.sh").replace("THE_LABEL", label);
    let variables = json!({"image_url": url, "image_sha256": guest.sha256, "user_data": script});
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.init()?;
    project.apply()?;
    project.plan_is_empty()?;
    Ok(project)
}

/// Returns what the guest found when it mounted the disk.
fn found(platform: &Platform, address: &str) -> Result<String> {
    wait::until("the guest to mount its disk", BOOT, || {
        let report = page(platform, address, "/user-data.out")?;
        field(&report, "done")?;
        Ok(report)
    })
}

/// Stops a VM and starts it again.
fn power_cycle(platform: &Platform, vm: &str) -> Result<()> {
    let kubectl = platform.kubectl();
    let set = |power: &str| {
        let patch = json!({"spec": {"power": power}}).to_string();
        kubectl.ok(&["patch", "vm", vm, "--type=merge", "-p", &patch]).map(drop)
    };
    set("Stopped")?;
    kubectl.until(&format!("vm/{vm}"), "to stop", SOON, |vm| vm["status"]["state"] == "Stopped")?;
    ensure!(!has_scratch_file(platform, vm)?, "the file of the scratch disk is left");
    set("Running")?;
    kubectl.until(&format!("vm/{vm}"), "to run", BOOT, |vm| vm["status"]["state"] == "Running")?;
    Ok(())
}

/// Whether the host has a file of the scratch disk of a VM.
fn has_scratch_file(platform: &Platform, vm: &str) -> Result<bool> {
    let object = platform.kubectl().object("vm", vm)?;
    let instance = object["status"]["instanceID"].as_str().context("an instance")?;
    Ok(platform.host().state().join("instances").join(instance).join("scratch.qcow2").exists())
}

fn formatted(platform: &Platform, project: &Project) -> Result<()> {
    let kubectl = platform.kubectl();
    let address = project.output("address")?;
    contains_all(&found(platform, &address)?, &["mounted=yes", "kept=no"])?;
    power_cycle(platform, "formatted")?;
    contains_all(&found(platform, &address)?, &["mounted=yes", "kept=yes"])?;
    let other = json!({"spec": {"filesystem": {"label": "other"}}}).to_string();
    let refused = kubectl.refused(&["patch", "disk", "formatted-data", "--type=merge", "-p", &other])?;
    contains_all(&refused, &["a disk is formatted once"])?;
    let of_image = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "metadata": {"name": "formatted-image"},
        "spec": {"image": "formatted-base", "filesystem": {"type": "ext4"}}});
    let refused = kubectl.apply_refused(&of_image.to_string())?;
    contains_all(&refused, &["is that of a blank disk"])
}

fn scratch(platform: &Platform, project: &Project) -> Result<()> {
    let kubectl = platform.kubectl();
    let address = project.output("address")?;
    contains_all(&found(platform, &address)?, &["mounted=yes", "kept=no"])?;
    let disks = page(platform, &address, "/cgi-bin/disks")?;
    ensure!(disks.contains("serial=scratch"), "{disks}");
    let vm = kubectl.object("vm", "scratch")?;
    ensure!(vm["status"]["hardware"]["scratchDisk"] == "1Gi", "{}", vm["status"]["hardware"]);
    let listed = vm["status"]["disks"].as_array().map(Vec::len);
    ensure!(listed == Some(1), "it is no Disk: {}", vm["status"]["disks"]);
    ensure!(has_scratch_file(platform, "scratch")?, "its file is among those of the VM");
    power_cycle(platform, "scratch")?;
    contains_all(&found(platform, &address)?, &["mounted=yes", "kept=no"])
}
