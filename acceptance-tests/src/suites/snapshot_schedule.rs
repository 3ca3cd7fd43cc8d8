//! `examples/snapshot-schedules` with the small guest: at the next minute, a running VM has a snapshot of all its disks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kubectl::contains_all;
use super::snapshots::{sum, write};
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{wait, workspace};

const SOON: Duration = Duration::from_secs(60);
/// A minute begins, the controllers see it within five seconds, and the host takes the snapshot.
const NEXT_MINUTE: Duration = Duration::from_secs(100);
const SELECTOR: &str = "berth.dev/snapshot-schedule=nightly";

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/snapshot-schedules: a snapshot of a running VM is taken when it is due, and stays without its schedule",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/snapshot-schedules"))?;
            let url = platform.images().put("scheduled.qcow2", Content::File(guest.path.clone()));
            let image = json!({"image_url": url, "image_sha256": guest.sha256});
            declare(&project, &image, "* * * * *", false)?;
            project.init()?;
            project.apply()?;
            let taken = takes(platform, &project, &image);
            project.destroy()?;
            let kept = taken.and_then(|name| platform.kubectl().object("vmsnap", &name));
            platform.kubectl().ok(&["delete", "vmsnap", "-l", SELECTOR, "--timeout=60s"])?;
            let kept = kept?;
            ensure!(kept["status"]["takenAt"].is_string(), "without its schedule and its VM: {kept:#}");
            Ok(())
        },
    );
}

fn declare(project: &Project, image: &Value, schedule: &str, suspend: bool) -> Result<()> {
    let mut variables = image.clone();
    variables["schedule"] = schedule.into();
    variables["suspend"] = suspend.into();
    project.write("terraform.tfvars.json", &variables.to_string())
}

/// Waits for the first snapshot, and suspends the schedule; returns the snapshot's name.
fn takes(platform: &Platform, project: &Project, image: &Value) -> Result<String> {
    let kubectl = platform.kubectl();
    declare(project, image, "0 24 * * *", false)?;
    contains_all(&project.plan_refused()?, &["schedule", "hour: \"24\""])?;
    let first = |schedule: &Value| schedule["status"]["lastSuccessfulTime"].is_string();
    let status =
        kubectl.until("snapsched/nightly", "to take a snapshot", NEXT_MINUTE, first)?["status"].clone();
    declare(project, image, "* * * * *", true)?;
    project.apply()?;
    project.plan_is_empty()?;
    kubectl.condition("snapsched/nightly", "Ready=True", Some("ScheduleSuspended"), SOON)?;
    ensure!(status["vms"] == 1 && status["lastScheduleTime"].is_string(), "{status:#}");
    let listed: Value = serde_json::from_str(&kubectl.ok(&["get", "vmsnap", "-l", SELECTOR, "-o", "json"])?)?;
    let snapshot = &listed["items"][0];
    let disks = snapshot["status"]["disks"].as_array().context("it has the disks")?;
    ensure!(disks.len() == 2 && snapshot["spec"]["vm"] == "scheduled", "{snapshot:#}");
    ensure!(snapshot["metadata"]["labels"]["team"] == "web", "it has no label of its VM: {snapshot:#}");
    let parts = kubectl.ok(&["get", "disksnapshots", "-l", "team=web", "-o", "name"])?;
    // Another minute can have begun meanwhile.
    ensure!(parts.lines().count() >= 2, "the parts with the label of the VM: {parts}");
    // The guest goes on.
    let address = kubectl.object("vm", "scheduled")?["status"]["privateAddress"].clone();
    let address = address.as_str().context("it has an address")?;
    let wrote = write(platform, address, "scheduled-data", 3)?;
    let read = wait::until("the guest to read", SOON, || sum(platform, address, "scheduled-data"))?;
    ensure!(wrote == read, "{wrote} {read}");
    contains_all(&kubectl.ok(&["get", "snapsched"])?, &["nightly", "* * * * *", "Europe/Stockholm", "true"])?;
    Ok(snapshot["metadata"]["name"].as_str().context("it has a name")?.to_owned())
}
