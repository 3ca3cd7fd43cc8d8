//! `examples/size` with the small guest: CPUs and memory that are plugged into it while it runs, its share of the host, and sockets.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{berth, wait};

const VM: &str = "vm/size-growing";
const SOON: Duration = Duration::from_secs(60);
/// A boot without KVM.
const BOOT: Duration = Duration::from_secs(240);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/size: a running guest gets a CPU, memory and CPU time at once, and another one sees two sockets",
        || {
            let (project, variables) = platform.example("size", guest)?;
            let done = check(platform, &project, &variables);
            project.destroy()?;
            done
        },
    );
}

fn check(platform: &Platform, project: &Project, variables: &Value) -> Result<()> {
    project.apply()?;
    project.plan_is_empty()?;
    let (address, sockets) = (project.output("address")?, project.output("sockets_address")?);
    let page = |limit: Duration| http::get_within(platform.namespace(), &address, "/cgi-bin/uptime", limit);
    let first = page(BOOT)?;
    ensure!(field(&first, "cpus")? == "1", "{first}");
    let other = http::get_within(platform.namespace(), &sockets, "/cgi-bin/uptime", BOOT)?;
    ensure!(field(&other, "cpus")? == "2", "{other}");
    ensure!(has_two_sockets(platform)?, "no QEMU has two sockets of one core");
    let kubectl = platform.kubectl();
    let limit = |vm: &Value| vm["status"]["cpuTime"]["limit"].clone();
    kubectl.until(VM, "to have its limit", SOON, |vm| limit(vm) == "1.5")?;
    let hardware = kubectl.object("vm", "size-growing")?["status"]["hardware"].clone();
    ensure!(hardware["memoryReservation"] == "256Mi", "{hardware}");

    let mut larger = variables.clone();
    larger["cpus"] = 2.into();
    larger["memory"] = "768Mi".into();
    larger["cpu_limit"] = "2".into();
    project.write("terraform.tfvars.json", &larger.to_string())?;
    let plan = project.plan()?;
    ensure!(plan.changes() == ["berth_vm.growing: update"], "{:?}", plan.changes());
    ensure!(!plan.text.contains("power cycle"), "{}", plan.text);
    project.apply()?;
    let grown = kubectl.object("vm", "size-growing")?["status"].clone();
    ensure!(
        grown["hardware"]["memory"] == "768Mi" && grown["hardware"]["cpus"] == 2,
        "the apply has not waited: {grown}"
    );
    project.plan_is_empty()?;
    kubectl.until(VM, "to have the other limit", SOON, |vm| limit(vm) == "2")?;
    let had: u64 = field(&first, "memory_kib")?.parse()?;
    wait::until("the guest to use what was plugged in", SOON, || {
        let now = page(SOON)?;
        let memory: u64 = field(&now, "memory_kib")?.parse()?;
        ensure!(field(&now, "cpus")? == "2" && memory == had + (256 << 10), "{had} KiB before: {now}");
        ensure!(field(&now, "boot_id")? == field(&first, "boot_id")?, "another boot: {now}");
        Ok(())
    })
}

/// Whether the command line of one of the QEMU processes has two sockets.
fn has_two_sockets(platform: &Platform) -> Result<bool> {
    let mut lines = berth::qemu_processes(platform.namespace())?
        .into_iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok());
    Ok(lines.any(|line| line.contains("sockets=2,cores=1,threads=1")))
}
