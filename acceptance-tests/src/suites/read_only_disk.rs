//! `examples/read-only-disk` with the small guest: two guests that read one disk at a time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::kubectl::contains_all;
use super::snapshots::sum;
use crate::guests::GuestImage;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;

const SOON: Duration = Duration::from_secs(60);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case("examples/read-only-disk: two guests read one disk, and none writes to it", || {
        let (project, _) = platform.example("read-only-disk", guest)?;
        project.apply()?;
        let held = read(platform, &project);
        project.destroy()?;
        held
    });
}

fn read(platform: &Platform, project: &Project) -> Result<()> {
    let kubectl = platform.kubectl();
    project.plan_is_empty()?;
    let addresses = project.run(&["output", "-json", "-no-color", "addresses"])?.success()?;
    let addresses: Vec<String> = serde_json::from_str(&addresses).context("the addresses")?;
    let sums: Vec<String> =
        addresses.iter().map(|guest| sum(platform, guest, "readers-tools")).collect::<Result<_>>()?;
    ensure!(sums.len() == 2 && sums[0] == sums[1] && sums[0].len() == 64, "{sums:?}");
    let both =
        |disk: &serde_json::Value| disk["status"]["usedBy"].as_array().is_some_and(|users| users.len() == 2);
    kubectl.until("disk/readers-tools", "to list both", SOON, both)?;
    // A third one that would write to it waits.
    let vm = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "writer"},
        "spec": {"cpus": 1, "memory": "256Mi", "disks": [{"name": "readers-tools", "boot": true}]}});
    kubectl.apply(&vm.to_string())?;
    let waits = kubectl.condition("vm/writer", "Ready=False", Some("WaitingForDisk"), SOON)?;
    contains_all(&waits["status"]["conditions"].to_string(), &["ReadOnlyMany", "readOnly"])?;
    kubectl.ok(&["delete", "vm", "writer", "--timeout=60s"])?;
    let blank = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "metadata": {"name": "blank"},
        "spec": {"size": "1Gi", "access": "ReadOnlyMany"}});
    let refused = kubectl.apply_refused(&blank.to_string())?;
    contains_all(&refused, &["set the image or the source of its data"])
}
