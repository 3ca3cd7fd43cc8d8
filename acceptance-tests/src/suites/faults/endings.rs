//! A guest that ends by itself, in each way that a guest can: what is seen of it, and what follows.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::berth;
use crate::guests::GuestImage;
use crate::http;
use crate::image_server::Content;
use crate::kubectl::{Kubectl, condition_of};
use crate::manifests;
use crate::platform::{Parts, Platform};
use crate::process;
use crate::report::{Report, note};
use crate::suites::kubectl::contains_all;
use crate::wait;

const NAME: &str = "ending";
const VM: &str = "vm/ending";
const SOON: Duration = Duration::from_secs(60);
const VM_START: Duration = Duration::from_secs(120);
/// The time for a page of the guest.
const ANSWER: Duration = Duration::from_secs(5);
/// The time in which the guest ends that ends while the agent is away.
const AWAY: Duration = Duration::from_secs(15);
const PAGES: &str = include_str!("endings.sh");

/// Runs the cases on a host of its own.
pub fn run(report: &mut Report, parts: &Parts, guest: &GuestImage) -> Result<()> {
    let mut platform = report.step("berth up is ready on a further host", || Platform::embedded(parts))?;
    let failed = report.count().failed;
    let outcome = cases(report, parts, &mut platform, guest);
    if outcome.is_err() || report.count().failed > failed {
        note(&platform.keep_evidence());
    }
    outcome?;
    report.case("SIGTERM ends the berth up of that guest", || platform.stop());
    Ok(())
}

fn cases(report: &mut Report, parts: &Parts, platform: &mut Platform, guest: &GuestImage) -> Result<()> {
    let address = report.step("a guest with a watchdog runs", || start(platform, guest))?;
    report.case("a guest that reboots goes on in the same QEMU, which counts as no restart", || {
        reboots(platform, &address)
    });
    report.case("a guest whose kernel panics is started again", || {
        fails(platform, &address, "panic", "the guest's kernel panicked", 1)
    });
    report.case("a guest that does not reset its watchdog timer is started again", || {
        fails(platform, &address, "watchdog", "the guest did not reset its watchdog timer", 2)
    });
    report.case("a state directory that was copied or moved below a running guest is refused", || {
        refused_elsewhere(platform)
    });
    report.case("a guest that switches itself off stays off", || {
        end(platform, &address, "poweroff")?;
        stays_off(platform)
    });
    report.case("the same while no agent runs", || {
        let kubectl = platform.kubectl();
        // Another token starts what has ended by itself.
        let patch = json!({"spec": {"restartToken": "again"}}).to_string();
        kubectl.ok(&["patch", "vm", NAME, "--type=merge", "-p", &patch])?;
        kubectl.condition(VM, "Ready=True", Some("Running"), VM_START)?;
        ends_alone(platform, &address, "poweroff")?;
        platform.start()?;
        stays_off(platform)
    });
    report.case("a guest that reboots while no agent runs goes on in the same QEMU", || {
        starts_afresh(platform)?;
        reboots_alone(platform, &address)
    });
    report.case("a guest whose kernel panics while no agent runs is started again", || {
        fails_alone(platform, &address, "panic", "the guest's kernel panicked")
    });
    report.case("a guest that misses its watchdog while no agent runs is started again", || {
        fails_alone(platform, &address, "watchdog", "the guest did not reset its watchdog timer")
    });
    report.case("that VM can be deleted, and leaves no QEMU", || {
        platform.kubectl().ok(&["delete", VM, "--timeout=60s"])?;
        ensure!(berth::qemu_processes(platform.namespace())?.is_empty(), "QEMU still runs");
        Ok(())
    });
    report.case("a state directory that was moved while no guest ran is used where it is", || {
        used_elsewhere(platform, parts)
    });
    Ok(())
}

/// Starts berth on a copy of its state directory, and on the directory at another path, while its guest runs.
fn refused_elsewhere(platform: &mut Platform) -> Result<()> {
    let pid = platform.qemu()?;
    let state = platform.host().state().to_owned();
    let (copy, moved) = (state.with_file_name("copy"), state.with_file_name("moved"));
    platform.stop()?;
    let mut cp = platform.namespace().command("cp");
    process::run(cp.arg("-a").arg(&state).arg(&copy), SOON)?.success()?;
    let of_copy = start_refused(platform, &copy);
    fs::rename(&state, &moved)?;
    let of_moved = start_refused(platform, &moved);
    fs::rename(&moved, &state)?;
    platform.host_mut().set_state(&state);
    fs::remove_dir_all(&copy)?;
    platform.start()?;
    for refused in [of_copy?, of_moved?] {
        contains_all(
            &refused,
            &["is not the one at", "they still run", &pid.to_string(), "Move that one back"],
        )?;
    }
    platform.kubectl().condition(VM, "Ready=True", Some("Running"), SOON)?;
    ensure!(platform.qemu()? == pid, "another process");
    Ok(())
}

/// Returns the output of a berth that must not start on this state directory.
fn start_refused(platform: &mut Platform, state: &Path) -> Result<String> {
    platform.host_mut().set_state(state);
    process::run(&mut platform.host().up_command(), SOON)?.failure()
}

/// Starts berth on its state directory at another path, and at its own again.
fn used_elsewhere(platform: &mut Platform, parts: &Parts) -> Result<()> {
    let state = platform.host().state().to_owned();
    let moved = state.with_file_name("moved");
    platform.stop()?;
    fs::rename(&state, &moved)?;
    platform.host_mut().set_state(&moved);
    let home = platform.folder().join("home");
    let kubeconfig = platform.host().kubeconfig();
    let kubectl = Kubectl::new(&parts.kubectl, &kubeconfig, &home, platform.namespace());
    platform.host_mut().start(&kubectl)?;
    kubectl.condition(&format!("disk/{NAME}"), "Ready=True", None, SOON)?;
    platform.stop()?;
    fs::rename(&moved, &state)?;
    platform.host_mut().set_state(&state);
    platform.start()
}

/// Starts the VM. Returns its private address.
fn start(platform: &Platform, guest: &GuestImage) -> Result<String> {
    let url = platform.images().put("ending.qcow2", Content::File(guest.path.clone()));
    let vm = manifests::vm(NAME, NAME, NAME);
    let vm = manifests::with(vm, "restartPolicy", json!("OnFailure"));
    let vm = manifests::with(vm, "watchdog", json!("PowerOff"));
    let vm = manifests::with(vm, "stop", json!({"mode": "Hard"}));
    let vm = manifests::with(vm, "bootstrap", json!({"userData": PAGES}));
    platform.kubectl().apply(&manifests::all(&[
        manifests::image(NAME, &url, &guest.sha256),
        manifests::bios_class(NAME, "128Mi"),
        manifests::disk(NAME, NAME, "64Mi"),
        vm,
    ]))?;
    let vm = platform.kubectl().condition(VM, "Ready=True", None, VM_START)?;
    Ok(vm["status"]["interfaces"][0]["address"].as_str().context("no address")?.to_owned())
}

/// Has the guest end in this way, as soon as it has the page for it.
fn end(platform: &Platform, address: &str, way: &str) -> Result<()> {
    wait::until("the guest's page", VM_START, || {
        contains_all(&http::get(platform.namespace(), address, "/user-data.out", ANSWER)?, &["endings"])
    })?;
    let answer = http::get(platform.namespace(), address, &format!("/cgi-bin/end?{way}"), ANSWER)?;
    contains_all(&answer, &[way])
}

fn boot_id(platform: &Platform, address: &str) -> Result<String> {
    let page = http::get(platform.namespace(), address, "/cgi-bin/uptime", ANSWER)?;
    let id = page.lines().find_map(|line| line.strip_prefix("boot_id="));
    id.map(str::to_owned).context("no boot_id")
}

fn reboots(platform: &Platform, address: &str) -> Result<()> {
    wait::until("the guest", VM_START, || boot_id(platform, address).map(drop))?;
    let (before, pid) = (boot_id(platform, address)?, platform.qemu()?);
    end(platform, address, "reboot")?;
    wait::until("another boot of the guest", VM_START, || {
        ensure!(boot_id(platform, address)? != before, "it has not rebooted yet");
        Ok(())
    })?;
    let vm = platform.kubectl().condition(VM, "Ready=True", Some("Running"), SOON)?;
    let status = &vm["status"];
    ensure!(platform.qemu()? == pid, "another process");
    ensure!(status["restarts"].as_u64().unwrap_or(0) == 0 && status["lastEnd"].is_null(), "{status:#}");
    Ok(())
}

/// The guest fails in this way, and is started again for the `restarts`th time.
fn fails(platform: &Platform, address: &str, way: &str, how: &str, restarts: u64) -> Result<()> {
    let before = platform.qemu()?;
    end(platform, address, way)?;
    started_again(platform, before, how, restarts)
}

/// Waits until the guest that ended in this way in the QEMU `before` is started again for the `restarts`th time.
fn started_again(platform: &Platform, before: i32, how: &str, restarts: u64) -> Result<()> {
    let again = |vm: &Value| {
        let ready = condition_of(vm, "Ready").is_some_and(|ready| ready["status"] == "True");
        ready && vm["status"]["restarts"] == restarts
    };
    let vm = platform.kubectl().until(VM, "to be started again", VM_START, again)?;
    let last = &vm["status"]["lastEnd"];
    ensure!(last["orderly"] == false, "{last:#}");
    contains_all(&last.to_string(), &[how])?;
    ensure!(platform.qemu()? != before, "the same process");
    // Events are sent beside the status.
    wait::until("the event", SOON, || {
        contains_all(&platform.kubectl().ok(&["get", "events", "-o", "json"])?, &[how])
    })
}

/// Starts the VM that is off, without a delay for its former ends.
fn starts_afresh(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    for (power, limit) in [("Stopped", SOON), ("Running", VM_START)] {
        let patch = json!({"spec": {"power": power}}).to_string();
        kubectl.ok(&["patch", "vm", NAME, "--type=merge", "-p", &patch])?;
        // It is ready and off before the patch too.
        kubectl.until(VM, power, limit, |vm| {
            let is_ready = |ready: &Value| ready["status"] == "True" && ready["reason"] == power;
            let is_observed = vm["status"]["observedGeneration"] == vm["metadata"]["generation"];
            is_observed && condition_of(vm, "Ready").is_some_and(is_ready)
        })?;
    }
    Ok(())
}

/// Kills the agent, and has the guest end in this way before it is started again.
fn ends_alone(platform: &mut Platform, address: &str, way: &str) -> Result<()> {
    end(platform, address, &format!("later-{way}"))?;
    platform.crash()?;
    thread::sleep(AWAY);
    Ok(())
}

fn reboots_alone(platform: &mut Platform, address: &str) -> Result<()> {
    wait::until("the guest", VM_START, || boot_id(platform, address).map(drop))?;
    let (before, pid) = (boot_id(platform, address)?, platform.qemu()?);
    let ends = |platform: &Platform| -> Result<[Value; 2]> {
        let status = platform.kubectl().object("vm", NAME)?["status"].clone();
        Ok([status["restarts"].clone(), status["lastEnd"].clone()])
    };
    let ends_before = ends(platform)?;
    ends_alone(platform, address, "reboot")?;
    platform.start()?;
    wait::until("another boot of the guest", VM_START, || {
        ensure!(boot_id(platform, address)? != before, "it has not rebooted yet");
        Ok(())
    })?;
    platform.kubectl().condition(VM, "Ready=True", Some("Running"), SOON)?;
    ensure!(platform.qemu()? == pid, "another process");
    ensure!(ends(platform)? == ends_before, "it counts as an end: {:?}", ends(platform)?);
    Ok(())
}

/// QEMU keeps how the guest ended until an agent reads it.
fn fails_alone(platform: &mut Platform, address: &str, way: &str, how: &str) -> Result<()> {
    let restarts = platform.kubectl().object("vm", NAME)?["status"]["restarts"].as_u64().unwrap_or(0);
    let before = platform.qemu()?;
    ends_alone(platform, address, way)?;
    let goes_on = boot_id(platform, address).is_ok();
    let after = platform.qemu();
    platform.start()?;
    ensure!(!goes_on, "the guest has not ended");
    ensure!(after? == before, "another process");
    started_again(platform, before, how, restarts + 1)
}

fn stays_off(platform: &Platform) -> Result<()> {
    let vm = platform.kubectl().until(VM, "to be off", SOON, |vm| vm["status"]["state"] == "Stopped")?;
    let last = &vm["status"]["lastEnd"];
    ensure!(last["orderly"] == true, "{:#}", vm["status"]);
    ensure!(berth::qemu_processes(platform.namespace())?.is_empty(), "QEMU still runs");
    Ok(())
}
