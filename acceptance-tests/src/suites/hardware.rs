//! `examples/hardware` with the small guest: the cards, the chipset, the processor and the drive that it sees.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::console;
use super::kubectl::contains_all;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::{Project, unwrapped};
use crate::{wait, workspace};

const NAME: &str = "hardware";
const SOON: Duration = Duration::from_secs(60);
/// A boot without KVM.
const BOOT: Duration = Duration::from_secs(240);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage, medium: &GuestImage) {
    report.case(
        "examples/hardware: a guest sees the hardware of its VM, and a change waits for the next power cycle",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/hardware"))?;
            let url = platform.images().put("hardware.qcow2", Content::File(guest.path.clone()));
            let iso = platform.images().put("hardware.iso", Content::File(medium.path.clone()));
            let chipset = chipset(platform)?;
            let variables = json!({
                "image_url": url, "image_sha256": guest.sha256, "iso_url": iso, "iso_sha256": medium.sha256,
                "machine_type": chipset,
            });
            project.write("terraform.tfvars.json", &variables.to_string())?;
            project.init()?;
            let done = check(platform, &project, &chipset, medium.path.metadata()?.len())
                .and_then(|()| waits(platform, &project, &variables));
            project.destroy()?;
            done
        },
    );
}

/// Returns a machine type that the host's QEMU has, the last in the order of the names.
fn chipset(platform: &Platform) -> Result<String> {
    let hosts: Value = serde_json::from_str(&platform.kubectl().ok(&["get", "hosts", "-o", "json"])?)?;
    let types = hosts["items"][0]["status"]["machineTypes"].as_array().context("no machine types")?.clone();
    let of_q35 = |name: &Value| name.as_str().filter(|name| name.starts_with("pc-q35-")).map(str::to_owned);
    types.iter().rev().find_map(of_q35).with_context(|| format!("{types:?}"))
}

fn check(platform: &Platform, project: &Project, chipset: &str, medium: u64) -> Result<()> {
    project.apply()?;
    project.plan_is_empty()?;
    let address = project.output("address")?;
    let page = |path: &str| http::get_within(platform.namespace(), &address, path, BOOT);
    let text = page("/cgi-bin/uptime")?;
    ensure!(field(&text, "serial")? == "ACME-4711" && field(&text, "watchdogs")? == "1", "{text}");
    ensure!(field(&text, "sound_cards")? == "1" && field(&text, "cpus")? == "2", "{text}");
    ensure!(field(&text, "avx2")? == "0", "more than the level has: {text}");
    let cards = page("/cgi-bin/network")?;
    contains_all(&cards, &["card=0x1af4:0x1041", "card=0x8086:0x10d3"])?;
    let queues = format!("queues-{}", field(&cards, "mac")?);
    ensure!(field(&cards, &queues)? == "2", "not a queue for each CPU: {cards}");
    ensure!(field(&cards, "mtu")? == "1400", "{cards}");
    contains_all(&page("/cgi-bin/disks")?, &[&format!("name=sr0 size={medium}")])?;
    wait::until("the log of the second serial port", SOON, || {
        contains_all(&console::log_of_port(platform, NAME, "2")?, &["berth-guest-second-port"])
    })?;
    let line = fs::read_to_string(format!("/proc/{}/cmdline", platform.qemu()?))?;
    contains_all(&line, &["mem-merge=off", chipset])?;
    let status = platform.kubectl().object("vm", NAME)?["status"].clone();
    let places = status["hardware"]["interfacePlaces"].as_array().context("no places")?;
    let off = |name: &str| places.iter().any(|place| place["name"] == name && place["acceleration"] == "Off");
    ensure!(off("fast") && !off("legacy"), "{places:?}");
    let drive = json!({"name": "tools", "inserted": true, "trayOpen": false});
    ensure!(status["cdroms"] == json!([drive]), "{}", status["cdroms"]);
    Ok(())
}

/// Another watchdog, and a start from the medium, need a power cycle, which nothing here does.
fn waits(platform: &Platform, project: &Project, variables: &Value) -> Result<()> {
    let pid = platform.qemu()?;
    let mut changed = variables.clone();
    changed["watchdog"] = "PowerOff".into();
    changed["repair"] = true.into();
    project.write("terraform.tfvars.json", &changed.to_string())?;
    let plan = project.plan()?;
    ensure!(plan.changes() == ["berth_vm.controller: update"], "{:?}", plan.changes());
    contains_all(&unwrapped(&plan.text), &["Takes effect at the next power cycle"])?;
    project.apply()?;
    platform.kubectl().until(&format!("vm/{NAME}"), "to wait for a power cycle", SOON, |vm| {
        let pending = vm["status"]["pendingPowerCycle"].to_string();
        ["watchdog", "cdroms[tools]"].iter().all(|name| pending.contains(name))
    })?;
    ensure!(platform.qemu()? == pid, "the VM was restarted");
    Ok(())
}
