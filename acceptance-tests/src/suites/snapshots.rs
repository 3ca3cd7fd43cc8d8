//! `examples/snapshots` with the small guest: a snapshot of a running guest's disk has the data of its moment, and so has a copy in
//! another guest.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::kubectl::contains_all;
use super::lifecycle::{guest_disk, page, serial_of};
use crate::guests::GuestImage;
use crate::http::field;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{wait, workspace};

/// A guest boots.
const BOOT: Duration = Duration::from_secs(120);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/snapshots: a copy of a snapshot has the data from before, in a guest beside the first",
        || {
            let project = platform.project()?;
            let example = workspace::root().join("examples/snapshots");
            project.copy_from(&example)?;
            let snapshot = project.read("snapshot.tf")?;
            project.write("snapshot.tf", "")?;
            let url = platform.images().put("snapshots.qcow2", Content::File(guest.path.clone()));
            let variables = json!({"image_url": url, "image_sha256": guest.sha256});
            project.write("terraform.tfvars.json", &variables.to_string())?;
            project.init()?;
            project.apply()?;
            let held = copied(platform, &project, &snapshot);
            project.destroy()?;
            held
        },
    );
}

fn copied(platform: &Platform, project: &Project, snapshot: &str) -> Result<()> {
    let first = project.output("address")?;
    let before = write(platform, &first, "snapshots-data", 7)?;
    let pid = platform.kubectl().object("vm", "snapshots")?["status"]["process"]["pid"].clone();
    project.write("snapshot.tf", snapshot)?;
    project.apply()?;
    project.plan_is_empty()?;
    let taken = platform.kubectl().object("dsnap", "snapshots-data-1")?["status"].clone();
    ensure!(taken["size"] == "1Gi" && taken["takenAt"] == project.output("taken_at")?, "{taken}");
    ensure!(taken["consistency"] == "Crash", "the small guest has no agent: {taken}");
    // The guest goes on, on its new file.
    let after = write(platform, &first, "snapshots-data", 8)?;
    ensure!(before != after, "another pattern");
    let now = platform.kubectl().object("vm", "snapshots")?["status"]["process"]["pid"].clone();
    ensure!(now == pid, "it is the same QEMU: {pid} {now}");
    let copy = project.output("copy_address")?;
    ensure!(sum(platform, &copy, "snapshots-copy")? == before, "the copy has the data from before");
    // Each is written without the other.
    let own = write(platform, &copy, "snapshots-copy", 9)?;
    ensure!(sum(platform, &first, "snapshots-data")? == after, "the first disk is as it was");
    grown_and_started_again(platform, project, &first, &after)?;
    without_the_snapshot(platform, project, &copy, &own)
}

/// The disk grows in its new file, and its VM starts on all of them.
fn grown_and_started_again(platform: &Platform, project: &Project, first: &str, sum_of: &str) -> Result<()> {
    project.edit("main.tf", r#"size = "1Gi""#, r#"size = "2Gi""#)?;
    project.apply()?;
    let serial = serial_of(platform, "snapshots-data")?;
    wait::until("the new size", BOOT, || {
        let disk = guest_disk(platform, first, &serial)?;
        ensure!(disk.size == 2 << 30, "{disk:?}");
        Ok(())
    })?;
    let memory = "  memory = \"512Mi\"\n";
    project.edit(
        "main.tf",
        memory,
        &format!("{memory}  restart_token = \"again\"\n  stop = {{ mode = \"Hard\" }}\n"),
    )?;
    project.apply()?;
    let again = |vm: &serde_json::Value| vm["status"]["restartToken"] == "again";
    platform.kubectl().until("vm/snapshots", "to be restarted", BOOT, again)?;
    let found = wait::until("the guest to be up again", BOOT, || sum(platform, first, "snapshots-data"))?;
    ensure!(found == sum_of, "it has what was written after the snapshot");
    Ok(())
}

/// The snapshot is destroyed while both guests use disks that are based on it.
fn without_the_snapshot(platform: &Platform, project: &Project, copy: &str, sum_of: &str) -> Result<()> {
    let kubectl = platform.kubectl();
    kubectl.ok(&["delete", "dsnap", "snapshots-data-1"])?;
    ensure!(sum(platform, copy, "snapshots-copy")? == sum_of, "the copy is as it was");
    let refused = json!({"spec": {"source": {"snapshot": "other"}}}).to_string();
    let refused = kubectl.refused(&["patch", "disk", "snapshots-copy", "--type=merge", "-p", &refused])?;
    contains_all(&refused, &["source cannot change"])?;
    // It is missing now, and another one is taken.
    project.apply().map(drop)
}

/// Has the guest write a pattern to one of its disks; returns the checksum.
fn write(platform: &Platform, guest: &str, disk: &str, seed: u8) -> Result<String> {
    let serial = serial_of(platform, disk)?;
    let device = wait::until("the disk in the guest", BOOT, || guest_disk(platform, guest, &serial))?;
    let wrote = page(platform, guest, &format!("/cgi-bin/write?dev={}&seed={seed}", device.name))?;
    let sum = field(&wrote, "sha256").with_context(|| wrote.clone())?;
    Ok(sum.to_owned())
}

/// Returns the checksum of what a guest reads from one of its disks.
fn sum(platform: &Platform, guest: &str, disk: &str) -> Result<String> {
    let serial = serial_of(platform, disk)?;
    let device = wait::until("the disk in the guest", BOOT, || guest_disk(platform, guest, &serial))?;
    let read = page(platform, guest, &format!("/cgi-bin/sum?dev={}", device.name))?;
    Ok(field(&read, "sha256")?.to_owned())
}
