//! `examples/reading-status` with the small guest: data sources choose an image, and read the state of a VM and of what it uses.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::guests::GuestImage;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::wait;

const SOON: Duration = Duration::from_secs(60);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/reading-status: the newest image of a family, and the state of a VM, its disk, its pool and its host",
        || {
            let (project, _) = platform.example("reading-status", guest)?;
            let done = check(platform, &project);
            project.destroy()?;
            done
        },
    );
}

fn check(platform: &Platform, project: &Project) -> Result<()> {
    project.apply()?;
    // Free space and memory, for example, are other numbers in each plan: its outputs may change, and no resource.
    let changes = project.plan()?.changes();
    ensure!(changes.is_empty(), "{changes:?}");
    // Another apply reads again: the state of the disk may follow that of the VM.
    wait::until("the state in the outputs", SOON, || {
        project.apply()?;
        outputs(platform, project)
    })
}

fn outputs(platform: &Platform, project: &Project) -> Result<()> {
    let text = project.run(&["output", "-json"])?.success()?;
    let outputs: Value = serde_json::from_str(&text).context("the outputs are no JSON")?;
    let value = |name: &str| outputs[name]["value"].clone();
    let image = value("image");
    ensure!(image["name"] == "status-1-10" && image["version"] == "1.10", "{image}");
    ensure!(image["state"] == "Ready" && image["virtual_size"].is_string(), "{image}");

    let vm = value("vm");
    let waits = vm["waiting"].as_array().is_some_and(|names| !names.is_empty());
    ensure!(vm["state"] == "Running" && !waits, "{vm}");
    let ready = vm["conditions"]["Ready"].as_str().context("no condition Ready")?;
    ensure!(ready.starts_with("True: "), "{vm}");
    let status = platform.kubectl().object("vm", "status-web")?["status"].clone();
    ensure!(value("network")["address"] == status["privateAddress"], "{}", value("network"));

    let (disk, host) = (value("disk"), value("host"));
    ensure!(disk["pool"] == "default" && disk["state"] == "InUse", "{disk}");
    ensure!(disk["free"].is_string() && disk["host"] == host["name"], "{disk}");
    ensure!(host["name"] == status["binding"]["host"] && host["cpus"].as_i64() > Some(0), "{host}");
    ensure!(host["for_vms"].is_string() && host["free"].is_string(), "{host}");
    let site = value("site");
    ensure!(site["vms"] == json!(["status-web"]), "{site}");
    ensure!(site["hosts"].as_array().is_some_and(|hosts| hosts.contains(&host["name"])), "{site}");
    let lists = value("numbers");
    ensure!(lists["disks"].as_i64() >= Some(1) && lists["images"].as_i64() >= Some(2), "{lists}");
    let network = value("default_network");
    ensure!(network["cidr"].is_string() && network["free_public_addresses"].is_i64(), "{network}");
    Ok(())
}
