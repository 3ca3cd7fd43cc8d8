//! `examples/power` with the small guest: the end of guests before their host is shut down, by the command that systemd runs then
//! (`berth service stop-guests`), and the commands that change the power of VMs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::kubectl::contains_all;
use crate::guests::GuestImage;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::{Project, unwrapped};
use crate::{berth, wait};

const DATABASE: &str = "power-database";
const WEB: &str = "power-web";
const VMS: [&str; 2] = [DATABASE, WEB];
/// A guest boots on a machine that is busy emulating.
const BOOT: Duration = Duration::from_secs(180);
const POWERS_OFF: &str = "berth-guest-powering-off";
const STARTED: &str = "berth-guest-started";
const READY: &str = "berth-guest-ready";

pub fn run(report: &mut Report, platform: &mut Platform, guest: &GuestImage) {
    report.case(
        "examples/power: before a host is shut down its guests end cleanly in the reverse order of their starts, with and without its \
         agent; commands change the power of VMs; a suspended guest goes on where it was; gates hold back a start and a destroy",
        || {
            let before = berth::qemu_processes(platform.namespace())?.len();
            let (project, image) = platform.example("power", guest)?;
            project.apply()?;
            let ended = project
                .plan_is_empty()
                .and_then(|()| with_agent(platform, before))
                .and_then(|()| without_agent(platform, before))
                .and_then(|()| suspended(platform, &project, &image))
                .and_then(|()| commands(platform))
                .and_then(|()| gate(platform, &project, &image))
                .and_then(|()| restart(platform))
                // The guest boots meanwhile. One that does not hear its power button yet would hold up the destroy.
                .and_then(|()| held(&project, &image))
                .and_then(|()| run_again(platform));
            project.destroy()?;
            ended
        },
    );
}

/// Waits until both guests have come up.
fn run_again(platform: &Platform) -> Result<()> {
    for vm in VMS {
        platform.kubectl().condition(&format!("vm/{vm}"), "GuestReady=True", None, BOOT)?;
    }
    Ok(())
}

/// How often the guest has written this on its console.
fn count(platform: &Platform, vm: &str, text: &str) -> Result<usize> {
    Ok(platform.serial(vm)?.matches(text).count())
}

fn with_agent(platform: &mut Platform, others: usize) -> Result<()> {
    let finished = platform.host().stop_guests()?;
    let output = finished.output();
    ensure!(finished.status.success(), "{output}");
    let off = |vm: &str| output.find(&format!("default/{vm} is off")).context(output.clone());
    ensure!(off(WEB)? < off(DATABASE)?, "not in the reverse order: {output}");
    ensure!(berth::qemu_processes(platform.namespace())?.len() <= others, "a QEMU still runs");
    for vm in VMS {
        ensure!(count(platform, vm, POWERS_OFF)? == 1, "{vm} did not shut down by itself");
        let object = format!("vm/{vm}");
        platform.kubectl().condition(&object, "Ready=False", Some("HostShuttingDown"), BOOT)?;
    }
    // The host boots, and its agent starts.
    platform.stop()?;
    platform.start()?;
    run_again(platform)
}

fn without_agent(platform: &mut Platform, others: usize) -> Result<()> {
    platform.stop()?;
    let finished = platform.host().stop_guests()?;
    ensure!(finished.status.success(), "{}", finished.output());
    contains_all(&finished.output(), &["The agent of this machine does not answer"])?;
    ensure!(berth::qemu_processes(platform.namespace())?.len() <= others, "a QEMU still runs");
    platform.start()?;
    for vm in VMS {
        ensure!(count(platform, vm, POWERS_OFF)? >= 2, "{vm} did not shut down by itself");
        let started = || -> Result<()> {
            ensure!(count(platform, vm, STARTED)? >= 3, "{vm} has not booted again");
            Ok(())
        };
        wait::until("the guest to boot again", BOOT, started)?;
    }
    run_again(platform)
}

/// Runs `berth VERB`, which waits until the VMs are in this state.
fn command(platform: &Platform, verb: &str, vms: &[&str], expected: &str) -> Result<()> {
    platform.host().power(verb, vms)?.success()?;
    for vm in vms {
        let state = platform.kubectl().object("vm", vm)?["status"]["state"].clone();
        ensure!(state == expected, "{vm} is {state} after berth {verb}");
    }
    Ok(())
}

/// The commands that change the power of VMs wait until it is so. Leaves the one stopped, for the gate, and the other one running.
fn commands(platform: &Platform) -> Result<()> {
    command(platform, "pause", &[WEB], "Paused")?;
    let refused = platform.host().power("restart", &[WEB])?.failure()?;
    contains_all(&refused, &["while power is Paused"])?;
    command(platform, "start", &[WEB], "Running")?;
    platform.host().press("nmi", WEB)?.success()?;
    let before = [count(platform, WEB, STARTED)?, count(platform, WEB, READY)?];
    platform.host().press("reset", WEB)?.success()?;
    // With the mode Soft a guest is not powered off: it has to hear its power button.
    wait::until("the guest to boot again", BOOT, || {
        let now = [count(platform, WEB, STARTED)?, count(platform, WEB, READY)?];
        ensure!(now[0] > before[0] && now[1] > before[1], "{now:?}, and before {before:?}");
        Ok(())
    })?;
    command(platform, "stop", &VMS, "Stopped")?;
    command(platform, "start", &[DATABASE], "Running")?;
    let missing = platform.host().power("stop", &["missing"])?.failure()?;
    contains_all(&missing, &["there is no VM missing in namespace default"])
}

/// A restart is another process.
fn restart(platform: &Platform) -> Result<()> {
    let started = || -> Result<Value> {
        Ok(platform.kubectl().object("vm", WEB)?["status"]["process"]["startedAt"].clone())
    };
    let before = started()?;
    command(platform, "restart", &[WEB], "Running")?;
    ensure!(started()? != before, "the same process");
    Ok(())
}

/// The guest is suspended by the configuration, and goes on in another process without a boot.
fn suspended(platform: &Platform, project: &Project, image: &Value) -> Result<()> {
    let booted = count(platform, WEB, STARTED)?;
    let is = |power: &str| -> Result<()> {
        let mut variables = image.clone();
        variables["web_power"] = power.into();
        project.write("terraform.tfvars.json", &variables.to_string())?;
        project.apply()?;
        let state = platform.kubectl().object("vm", WEB)?["status"]["state"].clone();
        ensure!(state == power, "{WEB} is {state}, not {power}");
        project.plan_is_empty()
    };
    is("Suspended")?;
    is("Running")?;
    let boots = count(platform, WEB, STARTED)?;
    ensure!(boots <= booted, "the guest has booted: {booted} boots before, {boots} after");
    Ok(())
}

/// The stopped VM is not started while its annotation holds it, and is started once the configuration has it no longer.
fn gate(platform: &Platform, project: &Project, image: &Value) -> Result<()> {
    let mut variables = image.clone();
    variables["web_power"] = "Stopped".into();
    variables["web_held"] = "a restore".into();
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.apply()?;
    let kubectl = platform.kubectl();
    let running = r#"{"spec":{"power":"Running"}}"#;
    kubectl.ok(&["patch", "vm", WEB, "--type=merge", "-p", running])?;
    let held = kubectl.condition(&format!("vm/{WEB}"), "Ready=False", Some("PowerOnHeld"), BOOT)?;
    contains_all(&held["status"]["conditions"].to_string(), &["a restore"])?;
    project.write("terraform.tfvars.json", &image.to_string())?;
    project.apply()?;
    kubectl.until(&format!("vm/{WEB}"), "to run without the gate", BOOT, |vm| {
        vm["status"]["state"] == "Running"
    })?;
    run_again(platform)?;
    project.plan_is_empty()
}

/// The gate is an annotation in the configuration.
fn held(project: &Project, image: &Value) -> Result<()> {
    let mut variables = image.clone();
    variables["held"] = "an audit".into();
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.apply()?;
    let refused = project.destroy_refused();
    project.write("terraform.tfvars.json", &image.to_string())?;
    project.apply()?;
    contains_all(&unwrapped(&refused?), &["delete.check.berth.dev/example", "an audit"])
}
