//! An agent that is killed, and a host that hangs.

use anyhow::{Context, Result, ensure};

use super::spread::{Group, vm_on};
use super::{ANSWER, SILENCE, SOON, page};
use crate::fleet::Fleet;
use crate::http::field;
use crate::report::Report;
use crate::wait;

/// Runs the cases; the fleet is intact after each.
pub fn run(report: &mut Report, fleet: &mut Fleet, group: &Group) {
    report.case("kill -9 of one host's agent: its guest goes on, and the next agent adopts it", || {
        let vm = vm_on(fleet, "h2")?;
        let boot = boot_of(fleet, &group.public[&vm])?;
        let pids = fleet.member("h2")?.qemu()?;
        let output = fleet.kubectl().object("vm", &vm)?["status"]["process"].clone();
        fleet.member_mut("h2")?.berth.crash()?;
        ensure!(fleet.member("h2")?.qemu()? == pids, "QEMU went with its agent");
        ensure!(boot_of(fleet, &group.public[&vm])? == boot, "the guest rebooted");
        // With the credentials from its join: no new token.
        fleet.member_mut("h2")?.berth.spawn_joined(None, &[])?;
        fleet.host_is_ready("h2")?;
        let object = fleet.kubectl().condition(&format!("vm/{vm}"), "Ready=True", None, SOON)?;
        // A starting agent probes QEMU's capabilities with a short-lived QEMU of its own.
        wait::until("h2 to run that QEMU and no other", SOON, || {
            let now = fleet.member("h2")?.qemu()?;
            ensure!(now == pids, "now {now:?}, before {pids:?}");
            Ok(())
        })?;
        ensure!(
            object["status"]["process"] == output,
            "{:#}, before {output:#}",
            object["status"]["process"]
        );
        ensure!(boot_of(fleet, &group.public[&vm])? == boot, "the guest rebooted");
        group.project.plan_is_empty()
    });
    report.case(
        "a host that hangs is called silent, its VM's state unknown, and nothing starts elsewhere",
        || {
            let vm = vm_on(fleet, "h3")?;
            let boot = boot_of(fleet, &group.public[&vm])?;
            let running = others(fleet)?;
            fleet.member("h3")?.berth.machine().freeze()?;
            let seen = silent(fleet, &vm);
            let elsewhere = others(fleet);
            fleet.member("h3")?.berth.machine().resume()?;
            seen?;
            let elsewhere = elsewhere?;
            ensure!(elsewhere == running, "before {running:?}, after {elsewhere:?}");
            fleet.host_is_ready("h3")?;
            fleet.kubectl().condition(&format!("vm/{vm}"), "Ready=True", None, ANSWER)?;
            ensure!(fleet.host_of(&vm)? == "h3", "it moved to {}", fleet.host_of(&vm)?);
            ensure!(boot_of(fleet, &group.public[&vm])? == boot, "the guest rebooted");
            group.project.plan_is_empty()
        },
    );
}

fn silent(fleet: &Fleet, vm: &str) -> Result<()> {
    let kubectl = fleet.kubectl();
    let host = kubectl.condition("host/h3", "Ready=Unknown", Some("HostSilent"), SILENCE)?;
    ensure!(host["metadata"]["name"] == "h3");
    let object = kubectl.until(&format!("vm/{vm}"), "to be of unknown state", SILENCE, |vm| {
        vm["status"]["state"] == "Unknown"
    })?;
    ensure!(crate::fleet::host_in(&object).as_deref() == Some("h3"), "{:#}", object["status"]["binding"]);
    Ok(())
}

/// The QEMU processes of all hosts but h3.
fn others(fleet: &Fleet) -> Result<Vec<(String, Vec<i32>)>> {
    let members = fleet.members().iter().filter(|member| member.name != "h3");
    members.map(|member| Ok((member.name.clone(), member.qemu()?))).collect()
}

fn boot_of(fleet: &Fleet, address: &str) -> Result<String> {
    let text = page(fleet, address, "/cgi-bin/uptime")?;
    Ok(field(&text, "boot_id").context("no boot_id")?.to_owned())
}
