//! `berth up` of this version, then of the next one, then of this one again, on one state directory.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::witness::watch;
use super::{ANSWER, SOON, Versions, definitions_are_of, host_is_current, host_is_of};
use crate::access::Access;
use crate::berth;
use crate::footprint::Footprint;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::manifests;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::suites::lifecycle::{guest_disk, page, serial_of};
use crate::wait;

/// The VM that this version starts, the one that the next version starts, and the name of their shared objects.
const FIRST: &str = "first";
const SECOND: &str = "second";
const SHARED: &str = "shared";
/// The disk that is attached and detached.
const EXTRA: &str = "extra";

/// A running VM, with the values that identify the run.
#[derive(Debug, PartialEq, Eq)]
struct Running {
    name: &'static str,
    public: String,
    boot: String,
    pid: i64,
    /// `status.process`, which includes its start time.
    process: Value,
    instance: Value,
}

/// Runs the cases.
pub fn run(report: &mut Report, versions: &Versions) -> Result<()> {
    let failed = report.count().failed;
    let mut platform =
        report.step("berth up of this version is ready", || Platform::embedded(&versions.parts))?;
    let before = report.step("the empty host is looked at", || platform.footprint())?;
    let outcome = cases(report, &mut platform, versions, &before);
    if outcome.is_err() || report.count().failed > failed {
        note(&platform.keep_evidence());
    }
    outcome?;
    report.case("SIGTERM ends berth up", || platform.stop());
    Ok(())
}

fn cases(
    report: &mut Report,
    platform: &mut Platform,
    versions: &Versions,
    before: &Footprint,
) -> Result<()> {
    let (this, next) = (versions.this.as_str(), versions.next.version.as_str());
    let host = platform.kubectl().ok(&["get", "hosts", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let first = report.step("a guest with two disks and a public address runs, and answers", || {
        must_run(platform, &host, this)?;
        shared(platform, versions)?;
        start(platform, FIRST)
    })?;
    report.step(
        "SIGTERM, then the next version: its definitions, the same process, boot and answers",
        || {
            watched(platform, &[&first], |platform| {
                platform.stop()?;
                ensure!(berth::qemu_processes(platform.namespace())?.len() == 1, "QEMU went with its agent");
                replace(platform, &versions.next.berth)?;
                must_run(platform, &host, next)?;
                goes_on(platform, &first)
            })
        },
    )?;
    report.case("the next version plugs a disk into the guest and takes it out", || {
        plugs(platform, &first)?;
        goes_on(platform, &first)
    });
    let second = report.step("the next version starts a second guest", || start(platform, SECOND))?;
    let both = [&first, &second];
    report.step(
        "kill -9, then this version again: its definitions, the same processes, boots and answers",
        || {
            watched(platform, &both, |platform| {
                platform.crash()?;
                ensure!(berth::qemu_processes(platform.namespace())?.len() == 2, "QEMU went with its agent");
                replace(platform, &versions.parts.binaries.berth)?;
                must_run(platform, &host, this)?;
                both.iter().try_for_each(|vm| goes_on(platform, vm))
            })
        },
    )?;
    report.case("this version plugs a disk into the guest of the next one and takes it out", || {
        plugs(platform, &second)?;
        both.iter().try_for_each(|vm| goes_on(platform, vm))
    });
    report.case("it deletes what either version made, and leaves nothing", || {
        let kubectl = platform.kubectl();
        kubectl.ok(&["delete", "vm", FIRST, SECOND, "--timeout=85s"])?;
        kubectl.ok(&["delete", "publicips,disks,images", "--all", "--timeout=60s"])?;
        kubectl.delete(&format!("vmclass/{SHARED}"))?;
        ensure!(berth::qemu_processes(platform.namespace())?.is_empty(), "a QEMU is left");
        platform.nothing_beyond(before, SOON)
    });
    Ok(())
}

/// Creates the objects that both VMs use.
fn shared(platform: &Platform, versions: &Versions) -> Result<()> {
    let url = platform.images().put("guest.qcow2", Content::File(versions.guest.path.clone()));
    let objects = manifests::all(&[
        manifests::bios_class(SHARED, "128Mi"),
        manifests::image(SHARED, &url, &versions.guest.sha256),
        manifests::blank_disk(EXTRA, "16Mi"),
    ]);
    platform.kubectl().apply(&objects).map(drop)
}

/// Starts a VM with a boot disk, a data disk and a public address, and waits until it responds there.
fn start(platform: &Platform, name: &'static str) -> Result<Running> {
    let kubectl = platform.kubectl();
    let data = format!("{name}-data");
    let mut vm = manifests::vm(name, SHARED, name);
    for (field, value) in [
        ("disks", json!([{"name": name, "boot": true}, {"name": data}])),
        ("networkInterfaces", json!([{"name": "nic0", "publicIP": name}])),
    ] {
        vm = manifests::with(vm, field, value);
    }
    kubectl.apply(&manifests::all(&[
        manifests::disk(name, SHARED, "64Mi"),
        manifests::blank_disk(&data, "16Mi"),
        manifests::public_ip(name, "default"),
        vm,
    ]))?;
    let vm = kubectl.condition(&format!("vm/{name}"), "Ready=True", None, ANSWER)?;
    let public = vm["status"]["publicAddress"].as_str().context("no public address")?.to_owned();
    let text = http::get_within(platform.neighbour(), &public, "/cgi-bin/uptime", ANSWER)?;
    let boot = field(&text, "boot_id")?.to_owned();
    let process = vm["status"]["process"].clone();
    let pid = process["pid"].as_i64().context("no pid")?;
    Ok(Running { name, public, boot, pid, process, instance: vm["status"]["instanceID"].clone() })
}

/// Checks that process, boot and instance of a VM are unchanged, and that the VM is as declared.
fn goes_on(platform: &Platform, vm: &Running) -> Result<()> {
    let object = platform.kubectl().condition(&format!("vm/{}", vm.name), "Ready=True", None, SOON)?;
    let status = &object["status"];
    ensure!(status["observedGeneration"] == object["metadata"]["generation"], "{status:#}");
    ensure!(status["process"] == vm.process, "{:#}, before {:#}", status["process"], vm.process);
    ensure!(status["instanceID"] == vm.instance, "{}, before {}", status["instanceID"], vm.instance);
    // A starting agent probes QEMU's capabilities with a short-lived QEMU of its own.
    let there = berth::qemu_processes(platform.namespace())?;
    ensure!(there.iter().any(|pid| i64::from(*pid) == vm.pid), "{} is not among {there:?}", vm.pid);
    let text = http::get(platform.neighbour(), &vm.public, "/cgi-bin/uptime", SOON)?;
    ensure!(field(&text, "boot_id")? == vm.boot, "the guest rebooted: {text}");
    Ok(())
}

/// Checks that host, agent and CRDs have this version.
fn must_run(platform: &Platform, host: &str, version: &str) -> Result<()> {
    host_is_of(platform.kubectl(), host, version)?;
    definitions_are_of(platform.kubectl(), version)?;
    host_is_current(platform.kubectl(), host)
}

/// Starts another build on the same state.
fn replace(platform: &mut Platform, program: &Path) -> Result<()> {
    platform.host_mut().set_program(program);
    platform.start()
}

/// Runs `during` while all of these guests are polled for their page.
fn watched(
    platform: &mut Platform,
    vms: &[&Running],
    during: impl FnOnce(&mut Platform) -> Result<()>,
) -> Result<()> {
    let access = Access::read(&platform.host().kubeconfig(), platform.namespace())?;
    let neighbour = std::sync::Arc::clone(platform.neighbour());
    let guests: Vec<_> = vms.iter().map(|vm| (&neighbour, vm.public.as_str())).collect();
    watch(&guests, access, || during(platform))
}

/// Attaches the extra disk to a guest, which writes to it and reads it back, and detaches it.
fn plugs(platform: &Platform, vm: &Running) -> Result<()> {
    let kubectl = platform.kubectl();
    let attachment = format!("{}-{EXTRA}", vm.name);
    // The guest has no agent that reports whether the disk is mounted.
    let object = manifests::with(manifests::attachment(&attachment, vm.name, EXTRA), "force", json!(true));
    kubectl.apply(&object.to_string())?;
    kubectl.condition(&format!("hotswapdiskattachment/{attachment}"), "Ready=True", None, SOON)?;
    let serial = serial_of(platform, EXTRA)?;
    let disk = wait::until("the disk in the guest", SOON, || guest_disk(platform, &vm.public, &serial))?;
    let wrote = page(platform, &vm.public, &format!("/cgi-bin/write?dev={}&seed={}", disk.name, vm.name))?;
    let read = page(platform, &vm.public, &format!("/cgi-bin/sum?dev={}", disk.name))?;
    ensure!(field(&read, "sha256")? == field(&wrote, "sha256")?, "{read} {wrote}");
    kubectl.delete(&format!("hotswapdiskattachment/{attachment}"))?;
    wait::until("the disk to be gone", SOON, || match guest_disk(platform, &vm.public, &serial) {
        Ok(disk) => bail!("{disk:?} is still there"),
        Err(_) => page(platform, &vm.public, "/").map(drop),
    })
}
