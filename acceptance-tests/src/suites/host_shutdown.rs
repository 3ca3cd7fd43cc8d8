//! The end of guests before their host is shut down, by the command that systemd runs then: `berth service stop-guests`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::kubectl::contains_all;
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::{berth, manifests, wait};

const DATABASE: &str = "shutdown-database";
const WEB: &str = "shutdown-web";
const VMS: [&str; 2] = [DATABASE, WEB];
/// A guest boots on a machine that is busy emulating.
const BOOT: Duration = Duration::from_secs(180);
const POWERS_OFF: &str = "berth-guest-powering-off";

pub fn run(report: &mut Report, platform: &mut Platform, guest: &GuestImage) {
    report.case(
        "before a host is shut down its guests end cleanly in the reverse order of their starts, with and without its agent; berth stop, \
         pause, restart and start change the power of VMs",
        || {
            let before = berth::qemu_processes(platform.namespace())?.len();
            let ended = declare(platform, guest)
                .and_then(|()| with_agent(platform, before))
                .and_then(|()| without_agent(platform, before))
                .and_then(|()| commands(platform));
            for vm in VMS {
                platform.kubectl().delete(&format!("vm/{vm}"))?;
                platform.kubectl().delete(&format!("disk/{vm}"))?;
            }
            platform.kubectl().delete("image/shutdown")?;
            platform.kubectl().delete("vmclass/shutdown")?;
            ended
        },
    );
}

fn declare(platform: &Platform, guest: &GuestImage) -> Result<()> {
    let url = platform.images().put("shutdown.qcow2", Content::File(guest.path.clone()));
    let vm = |name: &str| {
        let vm = manifests::with(manifests::vm(name, "shutdown", name), "stop", json!({"mode": "Graceful"}));
        let order = if name == DATABASE { json!(1) } else { json!(2) };
        manifests::with(vm, "startOrder", order)
    };
    platform.kubectl().apply(&manifests::all(&[
        manifests::class("shutdown", 1, "512Mi"),
        manifests::image("shutdown", &url, &guest.sha256),
        manifests::disk(DATABASE, "shutdown", "1Gi"),
        manifests::disk(WEB, "shutdown", "1Gi"),
        vm(DATABASE),
        vm(WEB),
    ]))?;
    run_again(platform)
}

/// Waits until both guests have come up.
fn run_again(platform: &Platform) -> Result<()> {
    for vm in VMS {
        platform.kubectl().condition(&format!("vm/{vm}"), "GuestReady=True", None, BOOT)?;
    }
    Ok(())
}

/// How often the guest was shut down, by its console.
fn shutdowns(platform: &Platform, vm: &str) -> Result<usize> {
    Ok(platform.serial(vm)?.matches(POWERS_OFF).count())
}

fn with_agent(platform: &mut Platform, others: usize) -> Result<()> {
    let finished = platform.host().stop_guests()?;
    let output = finished.output();
    ensure!(finished.status.success(), "{output}");
    let off = |vm: &str| output.find(&format!("default/{vm} is off")).context(output.clone());
    ensure!(off(WEB)? < off(DATABASE)?, "not in the reverse order: {output}");
    ensure!(berth::qemu_processes(platform.namespace())?.len() <= others, "a QEMU still runs");
    for vm in VMS {
        ensure!(shutdowns(platform, vm)? == 1, "{vm} did not shut down by itself");
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
        ensure!(shutdowns(platform, vm)? >= 2, "{vm} did not shut down by itself");
    }
    run_again(platform)
}

/// The commands that change the power of VMs wait until it is so.
fn commands(platform: &Platform) -> Result<()> {
    let state = |vm: &str| -> Result<String> {
        let vm = platform.kubectl().object("vm", vm)?;
        Ok(vm["status"]["state"].as_str().unwrap_or_default().to_owned())
    };
    let berth = |verb: &str, vms: &[&str], expected: &str| -> Result<()> {
        platform.host().power(verb, vms)?.success()?;
        for vm in vms {
            ensure!(state(vm)? == expected, "{vm} is {} after berth {verb}", state(vm)?);
        }
        Ok(())
    };
    berth("pause", &[WEB], "Paused")?;
    berth("start", &[WEB], "Running")?;
    let started = |vm: &str| -> Result<serde_json::Value> {
        Ok(platform.kubectl().object("vm", vm)?["status"]["process"]["startedAt"].clone())
    };
    let boots = || -> Result<usize> { Ok(platform.serial(WEB)?.matches("berth-guest-started").count()) };
    platform.host().press("nmi", WEB)?.success()?;
    let booted = boots()?;
    platform.host().press("reset", WEB)?.success()?;
    wait::until("the guest to boot again", BOOT, || {
        ensure!(boots()? > booted, "{booted} boots");
        Ok(())
    })?;
    let before = started(WEB)?;
    berth("restart", &[WEB], "Running")?;
    ensure!(started(WEB)? != before, "the same process");
    berth("stop", &VMS, "Stopped")?;
    berth("start", &VMS, "Running")?;
    let missing = platform.host().power("stop", &["missing"])?.failure()?;
    contains_all(&missing, &["there is no VM missing in namespace default"])?;
    let refused =
        platform.host().power("pause", &[WEB]).and_then(|_| platform.host().power("restart", &[WEB]));
    contains_all(&refused?.failure()?, &["while power is Paused"])
}
