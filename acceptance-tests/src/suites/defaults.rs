//! `examples/defaults` with the small guest: a new VM has the network and the placement of the provider, and keeps them.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::workspace;

const ZONE: &str = "topology.kubernetes.io/zone";

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/defaults: a new VM has the network and the host selector of the provider, and other ones change nothing",
        || {
            let kubectl = platform.kubectl();
            let host = kubectl.ok(&["get", "hosts", "-o", "jsonpath={.items[0].metadata.name}"])?;
            kubectl.ok(&["label", "host", &host, &format!("{ZONE}=a")])?;
            let done = lives(platform, guest, &host);
            kubectl.ok(&["label", "host", &host, &format!("{ZONE}-")])?;
            done
        },
    );
}

fn lives(platform: &Platform, guest: &GuestImage, host: &str) -> Result<()> {
    let project = platform.project()?;
    project.copy_from(&workspace::root().join("examples/defaults"))?;
    let url = platform.images().put("defaults.qcow2", Content::File(guest.path.clone()));
    let mut variables = json!({"image_url": url, "image_sha256": guest.sha256});
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.init()?;
    let held = keeps_its_own(platform, &project, &mut variables, host);
    project.destroy()?;
    held
}

fn keeps_its_own(platform: &Platform, project: &Project, variables: &mut Value, host: &str) -> Result<()> {
    project.apply()?;
    let vm = platform.kubectl().object("vm", "defaults")?;
    ensure!(vm["spec"]["placement"] == json!({"hostSelector": {ZONE: "a"}}), "{vm:#}");
    ensure!(vm["status"]["binding"]["host"] == host.trim(), "{vm:#}");
    ensure!(vm["spec"]["networkInterfaces"][0]["network"] == "defaults", "{vm:#}");
    ensure!(project.output("address")?.starts_with("10.95.0."), "{vm:#}");
    project.plan_is_empty()?;

    variables["zone"] = "b".into();
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.edit("main.tf", r#"network       = "defaults""#, r#"network       = "default""#)?;
    project.plan_is_empty()?;
    imported(project)
}

fn imported(project: &Project) -> Result<()> {
    project.run(&["state", "rm", "berth_vm.web"])?.success()?;
    project.run(&["import", "-input=false", "-no-color", "berth_vm.web", "default/defaults"])?.success()?;
    project.plan_is_empty()
}
