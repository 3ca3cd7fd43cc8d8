//! `examples/read-write-disk` with the small guest: two guests that write to one disk.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::kubectl::contains_all;
use super::snapshots::{sum, write};
use crate::guests::GuestImage;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;

const SOON: Duration = Duration::from_secs(60);
const DISK: &str = "writers-common";

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case("examples/read-write-disk: each of two guests reads what the other one wrote", || {
        let (project, _) = platform.example("read-write-disk", guest)?;
        project.apply()?;
        let held = written(platform, &project);
        project.destroy()?;
        held
    });
}

fn written(platform: &Platform, project: &Project) -> Result<()> {
    let kubectl = platform.kubectl();
    project.plan_is_empty()?;
    let addresses = project.run(&["output", "-json", "-no-color", "addresses"])?.success()?;
    let addresses: Vec<String> = serde_json::from_str(&addresses).context("the addresses")?;
    let [first, second] = &addresses[..] else { anyhow::bail!("two guests: {addresses:?}") };
    let mut sums = Vec::new();
    for (writer, reader, seed) in [(first, second, 21), (second, first, 22)] {
        let wrote = write(platform, writer, DISK, seed)?;
        let read = sum(platform, reader, DISK)?;
        ensure!(wrote == read, "{writer} wrote {wrote}, {reader} read {read}");
        sums.push(wrote);
    }
    ensure!(sums[0] != sums[1], "{sums:?}");
    let both =
        |disk: &serde_json::Value| disk["status"]["usedBy"].as_array().is_some_and(|users| users.len() == 2);
    kubectl.until(&format!("disk/{DISK}"), "to list both", SOON, both)?;
    refused(platform)
}

/// No snapshot is taken of it, and it is made from nothing.
fn refused(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let snapshot = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "DiskSnapshot",
        "metadata": {"name": "writers-snapshot"}, "spec": {"disk": DISK}});
    kubectl.apply(&snapshot.to_string())?;
    let waits =
        kubectl.condition("disksnapshot/writers-snapshot", "Ready=False", Some("NotSupported"), SOON)?;
    contains_all(&waits["status"]["conditions"].to_string(), &["ReadWriteMany"])?;
    kubectl.ok(&["delete", "disksnapshot", "writers-snapshot", "--timeout=60s"])?;
    let filled = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "metadata": {"name": "writers-filled"},
        "spec": {"image": "writers-base", "access": "ReadWriteMany"}});
    let refused = kubectl.apply_refused(&filled.to_string())?;
    contains_all(&refused, &["is blank at first"])
}
