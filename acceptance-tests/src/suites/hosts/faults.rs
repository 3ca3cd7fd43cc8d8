//! An agent that is killed, a host that hangs, and a guest that crashes while the control plane is away.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

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
    if fleet.is_embedded() {
        without_control_plane(report, fleet, group);
    }
}

fn without_control_plane(report: &mut Report, fleet: &mut Fleet, group: &Group) {
    report.case(
        "without the control plane a guest whose QEMU is killed boots again, and its status follows",
        || crashes_alone(fleet, group, |_| Ok(())),
    );
    report.case("so does one whose agent was killed and started again without the control plane", || {
        crashes_alone(fleet, group, |fleet| {
            fleet.member_mut("h2")?.berth.crash()?;
            fleet.member_mut("h2")?.berth.spawn_joined(None, &[])
        })
    });
}

/// Kills the QEMU of the VM on h2 while there is no control plane, after `prepare`. The VM's user data is in a Secret, which cannot be
/// read meanwhile.
fn crashes_alone(
    fleet: &mut Fleet,
    group: &Group,
    prepare: impl FnOnce(&mut Fleet) -> Result<()>,
) -> Result<()> {
    let vm = vm_on(fleet, "h2")?;
    let before = fleet.kubectl().object("vm", &vm)?["status"].clone();
    let instance = before["instanceID"].as_str().context("no instanceID")?.to_owned();
    let address = &group.public[&vm];
    let boot = boot_of(fleet, address)?;
    let [pid] = fleet.member("h2")?.qemu()?[..] else { bail!("h2 does not run one QEMU") };
    let seed = fleet.member("h2")?.berth.state().join("instances").join(instance).join("seed.img");
    let written = fs::metadata(&seed)?.modified()?;
    fleet.member_mut("h1")?.berth.crash()?;
    let again = prepare(fleet).and_then(|()| {
        kill(Pid::from_raw(pid), Signal::SIGKILL).context("killing QEMU")?;
        boots_again(fleet, address, &boot)
    });
    // The cases after this one need it, also if the guest did not boot.
    fleet.member_mut("h1")?.berth.spawn_up()?;
    for name in ["h1", "h2"] {
        fleet.host_is_ready(name)?;
    }
    again?;
    ensure!(
        fs::metadata(&seed)?.modified()? == written,
        "its bootstrap data was written anew, without its Secret"
    );
    let restarts = before["restarts"].as_i64().unwrap_or_default() + 1;
    let after = fleet.kubectl().until(&format!("vm/{vm}"), "to be restarted", SOON, |vm| {
        vm["status"]["restarts"] == restarts && vm["status"]["state"] == "Running"
    })?;
    ensure!(after["status"]["process"] != before["process"], "{:#}", after["status"]["process"]);
    let text = page(fleet, address, "/")?;
    ensure!(field(&text, "hostname")? == vm, "{text}");
    group.project.plan_is_empty()
}

/// Waits until the guest at this address has booted after this boot.
fn boots_again(fleet: &Fleet, address: &str, before: &str) -> Result<()> {
    wait::until("the guest to have booted again", ANSWER, || {
        let boot = boot_of(fleet, address)?;
        ensure!(boot != before, "it is still in the boot {boot}");
        Ok(())
    })
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
