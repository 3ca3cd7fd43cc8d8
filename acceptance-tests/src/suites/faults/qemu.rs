//! QEMUs that die and that stand still, and a guest that does not shut down, on one VM: status, events, and what goes on. Before that,
//! the memory that its guest reports and gives back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::berth::{self, METRICS};
use crate::guests::GuestImage;
use crate::http;
use crate::image_server::Content;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::platform::{Parts, Platform};
use crate::report::{Report, note};
use crate::suites::kubectl::{contains_all, describes_failure};
use crate::wait;

const NAME: &str = "mortal";
const VM: &str = "vm/mortal";
const SOON: Duration = Duration::from_secs(60);
const VM_START: Duration = Duration::from_secs(90);
/// The time for a page of the guest.
const ANSWER: Duration = Duration::from_secs(5);
/// The guest's memory, and the part of it that is kept, in MiB: so much that the guest works with it.
const MEMORY: u64 = 128;
const KEPT: u64 = 112;
/// The grace period of a stop, in seconds.
const GRACE: u64 = 5;
/// Has the guest ignore the power button, and say so on a page.
const DEAF: &str = "#!/bin/sh\nkillall acpid\necho deaf\n";

/// Runs the cases on a host of its own.
pub fn run(report: &mut Report, parts: &Parts, guest: &GuestImage) -> Result<()> {
    let mut platform = report.step("berth up is ready on another host", || Platform::embedded(parts))?;
    let failed = report.count().failed;
    let outcome = cases(report, &platform, guest);
    if outcome.is_err() || report.count().failed > failed {
        note(&platform.keep_evidence());
    }
    outcome?;
    report.case("SIGTERM ends berth up there", || platform.stop());
    Ok(())
}

fn cases(report: &mut Report, platform: &Platform, guest: &GuestImage) -> Result<()> {
    let address = report.step("a guest runs, for which a part of its memory is kept", || {
        start(platform, guest).context("starting the guest")
    })?;
    report.case("a guest reports its memory, and gives some back to a host that is short of it", || {
        reported(platform)?;
        let ballooned = gives_back(platform);
        // It takes no VM, not even one again that has ended.
        reserve(platform, &Value::Null)?;
        ballooned
    });
    // In the next case the guest boots again, and configures its card.
    report.case("a tap that another program removes is made again, with a new card of the same QEMU", || {
        untapped(platform)
    });
    report.case("a QEMU that is killed is started again, and the second time after a delay", || {
        killed(platform)
    });
    report.case("a QEMU that is stopped by a signal is seen, and goes on as the same", || stopped(platform));
    // A reading is kept each minute, and most of the first one is over.
    report.case("berth top shows the use of the VM in the last hour", || {
        wait::until("the VM in the last hour", 2 * SOON, || {
            contains_all(&platform.host().on_state("top", &["--history"])?.success()?, &["LAST HOUR", NAME])
        })
    });
    report.case(
        "a guest that ignores the power button is powered off after its grace period, with an event",
        || deaf(platform, &address),
    );
    report.case("the VM can be deleted, and leaves no QEMU", || {
        platform.kubectl().ok(&["delete", VM, "--timeout=60s"])?;
        ensure!(berth::qemu_processes(platform.namespace())?.is_empty(), "QEMU still runs");
        Ok(())
    });
    Ok(())
}

/// Starts the VM. Returns its private address.
fn start(platform: &Platform, guest: &GuestImage) -> Result<String> {
    let url = platform.images().put("mortal.qcow2", Content::File(guest.path.clone()));
    let vm = manifests::vm(NAME, NAME, NAME);
    let vm = manifests::with(vm, "stop", json!({"mode": "Graceful", "gracePeriodSeconds": GRACE}));
    let vm = manifests::with(vm, "bootstrap", json!({"userData": DEAF}));
    let vm = manifests::with(vm, "memoryReservation", json!(format!("{KEPT}Mi")));
    platform.kubectl().apply(&manifests::all(&[
        manifests::image(NAME, &url, &guest.sha256),
        manifests::bios_class(NAME, &format!("{MEMORY}Mi")),
        manifests::disk(NAME, NAME, "64Mi"),
        vm,
    ]))?;
    let vm = platform.kubectl().condition(VM, "Ready=True", None, VM_START)?;
    let kept = &vm["status"]["hardware"]["memoryReservation"];
    ensure!(*kept == format!("{KEPT}Mi"), "{:#}", vm["status"]["hardware"]);
    Ok(vm["status"]["interfaces"][0]["address"].as_str().context("no address")?.to_owned())
}

/// Reads the VM in `berth top`.
fn use_of_vm(platform: &Platform) -> Result<Value> {
    let text = platform.host().on_state("top", &["-o", "json"])?.success()?;
    let hosts: Value = serde_json::from_str(&text)?;
    Ok(hosts[0]["vms"][0].clone())
}

fn reported(platform: &Platform) -> Result<()> {
    wait::until("the guest to report its memory", SOON, || {
        let vm = use_of_vm(platform)?;
        let number =
            |name: &str| vm["guestMemory"][name].as_u64().with_context(|| format!("no {name}: {vm:#}"));
        let (total, available) = (number("total")?, number("available")?);
        ensure!(total <= MEMORY << 20 && available < total && available > 0, "{vm:#}");
        Ok(())
    })?;
    contains_all(&platform.host().on_state("top", &[])?.success()?, &["USED", NAME])?;
    let metrics = http::get(platform.namespace(), METRICS, "/metrics", SOON)?;
    contains_all(&metrics, &["berth_vm_memory_used_bytes{namespace=\"default\",vm=\"mortal\"}"])
}

/// Sets the memory that the host reserves for itself.
fn reserve(platform: &Platform, reserved: &Value) -> Result<()> {
    let kubectl = platform.kubectl();
    let host = kubectl.ok(&["get", "hosts", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let patch = json!({"spec": {"reserved": reserved}}).to_string();
    kubectl.ok(&["patch", "host", host.trim(), "--type=merge", "-p", &patch]).map(drop)
}

/// A host that is to keep more memory than it has is short of it.
fn gives_back(platform: &Platform) -> Result<()> {
    reserve(platform, &json!({"memory": "16Ti"}))?;
    wait::until("the guest to give memory back", SOON, || {
        let vm = use_of_vm(platform)?;
        ensure!(vm["balloonedBytes"] == (MEMORY - KEPT) << 20, "{vm:#}");
        Ok(())
    })
}

fn signal(pid: i32, signal: Signal) -> Result<()> {
    kill(Pid::from_raw(pid), signal).with_context(|| format!("{signal} to QEMU, process {pid}"))
}

fn killed(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    for restarts in 1..=2 {
        let before = platform.qemu()?;
        signal(before, Signal::SIGKILL)?;
        if restarts == 2 {
            let looping = kubectl.condition(VM, "Ready=False", Some("CrashLoop"), SOON)?;
            ensure!(looping["status"]["state"] == "CrashLoop", "{:#}", looping["status"]);
            let message = condition_of(&looping, "Ready").context("no Ready")?["message"].to_string();
            contains_all(&message, &["2 times in a row", "started again at"])?;
            describes_failure(kubectl, &looping, "CrashLoop")?;
        }
        let again = |vm: &Value| {
            let ready = condition_of(vm, "Ready").is_some_and(|ready| ready["status"] == "True");
            ready && vm["status"]["restarts"] == restarts
        };
        let vm = kubectl.until(VM, "to be started again", VM_START, again)?;
        let end = &vm["status"]["lastEnd"];
        ensure!(end["orderly"] == false && end["outOfMemory"].is_null(), "{end:#}");
        ensure!(platform.qemu()? != before, "the same process");
    }
    // Events are sent beside the status.
    wait::until("the events", SOON, || {
        contains_all(&kubectl.ok(&["get", "events", "-o", "yaml"])?, &["Restarted", "CrashLoop"])
    })
}

fn stopped(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let pid = platform.qemu()?;
    signal(pid, Signal::SIGSTOP)?;
    let seen = kubectl.condition(VM, "Ready=False", Some("NotResponding"), VM_START);
    signal(pid, Signal::SIGCONT)?;
    let message = condition_of(&seen?, "Ready").context("no Ready")?["message"].to_string();
    contains_all(&message, &["is stopped by a signal", &format!("kill -CONT {pid}")])?;
    let vm = kubectl.condition(VM, "Ready=True", Some("Running"), SOON)?;
    ensure!(platform.qemu()? == pid && vm["status"]["restarts"] == 2, "{:#}", vm["status"]);
    Ok(())
}

fn untapped(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let vm = kubectl.object("vm", NAME)?;
    let instance = vm["status"]["instanceID"].as_str().context("no instance")?;
    let tap = format!("btt{}n0", instance.get(2..10).context("an identity that is too short")?);
    let pid = platform.qemu()?;
    platform.namespace().ip(&["link", "del", &tap])?;
    // The host looks at its links when a Network is made, and otherwise every five minutes.
    kubectl.apply(&manifests::all(&[manifests::network("look", "10.98.0.0/24")]))?;
    wait::until("another tap", VM_START, || platform.namespace().ip(&["link", "show", &tap]))?;
    kubectl.condition(VM, "Ready=True", Some("Running"), SOON)?;
    ensure!(platform.qemu()? == pid, "another process");
    kubectl.ok(&["delete", "network/look", "--timeout=60s"])?;
    wait::until("the event", SOON, || {
        contains_all(&kubectl.ok(&["get", "events", "-o", "yaml"])?, &["TapMissing"])
    })
}

fn deaf(platform: &Platform, address: &str) -> Result<()> {
    let kubectl = platform.kubectl();
    wait::until("the guest to ignore the power button", VM_START, || {
        contains_all(&http::get(platform.namespace(), address, "/user-data.out", ANSWER)?, &["deaf"])
    })?;
    let start = Instant::now();
    kubectl.ok(&[
        "patch",
        "vm",
        NAME,
        "--type=merge",
        "-p",
        &json!({"spec": {"power": "Stopped"}}).to_string(),
    ])?;
    kubectl.condition(VM, "Ready=True", Some("Stopped"), SOON)?;
    ensure!(start.elapsed() >= Duration::from_secs(GRACE), "it had no grace period: {:?}", start.elapsed());
    wait::until("the event", SOON, || {
        let events = kubectl.ok(&["get", "events", "-o", "yaml"])?;
        contains_all(&events, &["PoweredOff", "did not shut down within 5 s"])
    })
}
