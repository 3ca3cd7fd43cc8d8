//! `examples/vm-group` with the small guest: the second VM starts after the first, and the group is stopped as a whole.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::workspace;

const SOON: Duration = Duration::from_secs(120);
const VMS: [&str; 2] = ["vm-group-database", "vm-group-web"];

/// Runs the case.
pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/vm-group: the second VM is started after the first, and an apply of the power of the group above theirs stops both",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/vm-group"))?;
            let url = platform.images().put("group.qcow2", Content::File(guest.path.clone()));
            let image = json!({"image_url": url, "image_sha256": guest.sha256});
            declare(&project, &image, "Running")?;
            project.init()?;
            let applied = project.apply();
            let found = applied.and_then(|_| are_in_order(platform));
            let found = found.and_then(|()| are_stopped(platform, &project, &image));
            project.destroy()?;
            found
        },
    );
}

fn declare(project: &Project, image: &Value, power: &str) -> Result<()> {
    let mut variables = image.clone();
    variables["power"] = power.into();
    variables["disk_size"] = "64Mi".into();
    variables["memory"] = "256Mi".into();
    project.write("terraform.tfvars.json", &variables.to_string())
}

/// Both run; the start of the second one is the later.
fn are_in_order(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let mut started = Vec::new();
    for name in VMS {
        // The apply has waited for it, unless the group waited for a VM that it had not created yet.
        let vm = kubectl.condition(&format!("vm/{name}"), "Ready=True", None, SOON)?;
        let status = &vm["status"];
        ensure!(status["state"] == "Running", "{name}: {status:#}");
        started.push(status["process"]["startedAt"].as_str().context("a start")?.to_owned());
    }
    ensure!(started[0] < started[1], "{started:?}");
    let group = kubectl.condition("vmgroup/vm-group", "Ready=True", None, SOON)?["status"].clone();
    ensure!(
        group["running"] == 2 && group["members"].as_array().is_some_and(|all| all.len() == 2),
        "{group:#}"
    );
    let site = kubectl.condition("vmgroup/vm-group-site", "Ready=True", None, SOON)?["status"].clone();
    ensure!(site["members"][0]["name"] == "vm-group", "{site:#}");
    Ok(())
}

fn are_stopped(platform: &Platform, project: &Project, image: &Value) -> Result<()> {
    declare(project, image, "Stopped")?;
    project.apply()?;
    let kubectl = platform.kubectl();
    let group = kubectl.object("vmgroup", "vm-group")?["status"].clone();
    ensure!(group["running"] == 0 && group["stopped"] == 2, "{group:#}");
    for name in VMS {
        let vm = kubectl.object("vm", name)?;
        ensure!(vm["status"]["state"] == "Stopped", "{name}: {:#}", vm["status"]);
        ensure!(vm["spec"]["power"] == "Running", "nothing is written to the VM: {:#}", vm["spec"]);
    }
    project.plan_is_empty()
}
