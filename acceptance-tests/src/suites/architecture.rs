//! `examples/architecture` with the small guest for ARM: an emulated VM boots, answers and gets a disk while it runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::kubectl::contains_all;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::{Project, unwrapped};
use crate::wait;

const SOON: Duration = Duration::from_secs(60);
/// A boot with emulated processors.
const BOOT: Duration = Duration::from_secs(240);
/// The size of the disk that is added, as the guest sees it.
const ADDED: &str = "size=1073741824 ";
const ROOT: &str = "size = \"1Gi\" } },\n";

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/architecture: a VM of ARM is emulated beside those of the host, answers, and gets a disk while it runs",
        || {
            let (project, _) = platform.example("architecture", guest)?;
            let done = check(platform, &project);
            project.destroy()?;
            done
        },
    );
}

fn check(platform: &Platform, project: &Project) -> Result<()> {
    let kubectl = platform.kubectl();
    let hosts = kubectl.ok(&["get", "hosts", "-o", "jsonpath={.items[0].status.architectures}"])?;
    let hosts: Value = serde_json::from_str(&hosts)?;
    let arm = json!({"name": "aarch64", "accelerator": "tcg"});
    ensure!(hosts.as_array().is_some_and(|all| all.len() == 2 && all.contains(&arm)), "{hosts}");
    let (was, bios) =
        ("architecture = \"aarch64\"\n  cpus", "architecture = \"aarch64\"\n  firmware = \"BIOS\"\n  cpus");
    project.edit("main.tf", was, bios)?;
    let refused = unwrapped(&project.plan_refused()?);
    ensure!(refused.contains("machines of aarch64 have firmware UEFI only"), "{refused}");
    project.edit("main.tf", bios, was)?;
    project.apply()?;
    project.plan_is_empty()?;
    let address = project.output("address")?;
    let page = http::get_within(platform.namespace(), &address, "/", BOOT)?;
    contains_all(&page, &["hostname=arm-builder", "cloud-arm64", "firmware=uefi"])?;
    let vm = kubectl.object("vm", "arm-builder")?;
    let hardware = &vm["status"]["hardware"];
    let machine_type = hardware["machineType"].as_str().unwrap_or_default();
    ensure!(machine_type.starts_with("virt-") && hardware["accelerator"] == "tcg", "{hardware:#}");
    gets_a_disk(platform, project, &address)?;
    other_architecture(platform)
}

fn gets_a_disk(platform: &Platform, project: &Project, address: &str) -> Result<()> {
    let boot = || -> Result<String> {
        let page = http::get(platform.namespace(), address, "/cgi-bin/uptime", SOON)?;
        Ok(field(&page, "boot_id")?.to_owned())
    };
    let disks = || http::get(platform.namespace(), address, "/cgi-bin/disks", SOON);
    let count = |page: &str| page.matches(ADDED).count();
    let before = count(&disks()?);
    let booted = boot()?;
    project.edit(
        "main.tf",
        ROOT,
        &format!("{ROOT}    {{ name = \"arm-builder-data\", template = {{ size = \"1Gi\" }} }},\n"),
    )?;
    project.apply()?;
    wait::until("the guest to see the disk", SOON, || {
        let page = disks()?;
        ensure!(count(&page) == before + 1, "{page}");
        Ok(())
    })?;
    ensure!(boot()? == booted, "it was started again");
    project.plan_is_empty()
}

/// A VM of x86-64 is not placed with the image as its boot disk.
fn other_architecture(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let vm = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "not-arm"},
        "spec": {"cpus": 1, "memory": "256Mi", "disks": [{"name": "not-arm-root", "boot": true, "template": {"image": "debian-12-arm"}}]}});
    kubectl.apply(&vm.to_string())?;
    let refused = kubectl.condition("vm/not-arm", "Ready=False", Some("InvalidSpec"), SOON)?;
    contains_all(
        &refused["status"]["conditions"].to_string(),
        &["debian-12-arm is of architecture aarch64"],
    )?;
    let patch = r#"{"spec":{"architecture":"aarch64"}}"#;
    let fixed = kubectl.refused(&["patch", "vm", "not-arm", "--type=merge", "-p", patch])?;
    contains_all(&fixed, &["architecture cannot change"])?;
    kubectl.ok(&["delete", "vm", "not-arm", "--timeout=60s"])?;
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VMClass", "metadata": {"name": "arm-class"},
        "spec": {"cpus": 1, "architecture": "aarch64"}});
    kubectl.apply(&class.to_string())?;
    let patch = r#"{"spec":{"architecture":"x86_64"}}"#;
    let fixed = kubectl.refused(&["patch", "vmclass", "arm-class", "--type=merge", "-p", patch])?;
    contains_all(&fixed, &["architecture cannot change"])?;
    kubectl.ok(&["delete", "vmclass", "arm-class", "--timeout=60s"]).map(drop)
}
