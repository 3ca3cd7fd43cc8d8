//! A host that is lost with a guest whose disks are in a shared pool: the guest goes on elsewhere, with these disks.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::HOST;
use super::firmware::{Sealed, digests, folder};
use super::shared_pool::POOL;
use super::{ANSWER, SOON, page};
use crate::fleet::{Fleet, host_in};
use crate::http::field;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::report::Report;
use crate::segment::CARD;
use crate::wait;

const NAME: &str = "moved";
/// The disk beside the boot disk.
const DATA: &str = "moved-data";
/// A VM with a TPM, which is off when its host is lost.
const SEALED: Sealed = Sealed { name: "moved-sealed", pool: Some(POOL) };
/// Another one, which may be on no other host, and is deleted after that.
const DROPPED: Sealed = Sealed { name: "dropped-sealed", pool: Some(POOL) };

/// Runs the case in the pool that all hosts have in common; nothing of VMs is left behind, and no pool.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    report.case(
        "a host with a guest in that pool is lost: the guest starts on another one, with its data and addresses, and a VM with a TPM keeps that; \
         one that is deleted then leaves no copy of its TPM",
        || {
            let common = fleet.common();
            let held = goes_on_elsewhere(fleet, &common);
            let kubectl = fleet.kubectl();
            let objects =
                [format!("vm/{NAME}"), format!("publicip/{NAME}"), format!("disk/{NAME}"), format!("disk/{DATA}")];
            let deleted = objects.iter().try_for_each(|object| kubectl.delete(object));
            let deleted = deleted.and(SEALED.delete(fleet)).and(DROPPED.delete(fleet));
            let deleted = deleted.and_then(|()| kubectl.delete(&format!("storagepool/{POOL}")));
            held.and(deleted)
        },
    );
}

fn goes_on_elsewhere(fleet: &mut Fleet, common: &Path) -> Result<()> {
    let kubectl = fleet.kubectl().clone();
    let pooled = |disk: Value| manifests::with(disk, "pool", json!(POOL));
    kubectl.apply(&manifests::all(&[
        pooled(manifests::disk(NAME, "web", "64Mi")),
        pooled(manifests::blank_disk(DATA, "64Mi")),
        manifests::public_ip(NAME, "segment"),
        vm_for(HOST),
    ]))?;
    let before = kubectl.condition(&format!("vm/{NAME}"), "Ready=True", None, ANSWER)?;
    ensure!(host_in(&before).as_deref() == Some(HOST), "{:#}", before["status"]["binding"]);
    let public = public_address(fleet, NAME)?;
    let device = device_of(fleet, &public, DATA)?;
    let wrote = page(fleet, &public, &format!("/cgi-bin/write?dev={device}&seed=5"))?;
    let sum = field(&wrote, "sha256")?.to_owned();
    let volumes = [volume_of(fleet, NAME)?, volume_of(fleet, DATA)?];
    for volume in &volumes {
        ensure!(file(common, HOST, volume).exists(), "{volume} is not in the folder of {HOST}");
    }
    for disk in [NAME, DATA] {
        let disk = kubectl.object("disk", disk)?;
        ensure!(disk["status"]["survivesHostLoss"] == true, "{:#}", disk["status"]);
    }

    let instance = SEALED.stops_on(fleet, HOST)?;
    let copy_of = |instance: &str| common.join(format!("firmware/{instance}.state"));
    let (copy, dropped) = (copy_of(&instance), copy_of(&DROPPED.stops_on(fleet, HOST)?));
    for copy in [&copy, &dropped] {
        ensure!(copy.exists(), "{} is not there after the stop", copy.display());
    }
    let sealed = digests(&folder(fleet, HOST, &instance)?)?;

    let next = fleet.host_of("web-0")?;
    kubectl.apply(&SEALED.vm(json!({"host": next}), "Stopped").to_string())?;
    // Placed already, it stays until its host is lost.
    kubectl.apply(&vm_for(&next).to_string())?;
    turn_off(fleet)?;
    fleet.administrator().run(&["host", "forget", HOST, "--lost"])?.success()?;
    let after = kubectl.until(&format!("vm/{NAME}"), "to run elsewhere", ANSWER, |vm| {
        host_in(vm).as_deref() == Some(next.as_str())
            && condition_of(vm, "Ready").is_some_and(|ready| ready["status"] == "True")
    })?;
    let [now, then] =
        [&after, &before].map(|vm| (&vm["status"]["interfaces"][0]["address"], &vm["status"]["instanceID"]));
    ensure!(now == then, "after: {:#}, before: {:#}", after["status"], before["status"]);
    for volume in &volumes {
        ensure!(file(common, &next, volume).exists(), "{volume} is not in the folder of {next}");
        ensure!(!file(common, HOST, volume).exists(), "{volume} is in the folder of {HOST} still");
    }
    ensure!(public_address(fleet, NAME)? == public, "it has another public address");
    let again = device_of(fleet, &public, DATA)?;
    let read = page(fleet, &public, &format!("/cgi-bin/sum?dev={again}"))?;
    ensure!(field(&read, "sha256")? == sum, "it reads other data than was written: {read}");
    SEALED.until_on(fleet, &next, "Stopped")?;
    let kept = digests(&folder(fleet, &next, &instance)?)?;
    ensure!(kept == sealed, "its firmware state is {kept:?} there, and was {sealed:?}");
    ensure!(dropped.exists(), "{} is not there any more, and its VM is", dropped.display());
    SEALED.delete(fleet)?;
    DROPPED.delete(fleet)?;
    for copy in [&copy, &dropped] {
        ensure!(!copy.exists(), "{} is there without its VM", copy.display());
    }
    wait::until("the lost host to be removed", SOON, || kubectl.refused(&["get", "host", HOST]).map(drop))
}

fn vm_for(host: &str) -> Value {
    let vm = manifests::with(manifests::vm(NAME, "web", NAME), "placement", json!({"host": host}));
    let vm = manifests::with(vm, "disks", json!([{"name": NAME, "boot": true}, {"name": DATA}]));
    manifests::with(vm, "networkInterfaces", json!([{"name": "nic0", "publicIP": NAME}]))
}

/// Turns the machine off: without its network, its agent and its guest end at once.
fn turn_off(fleet: &mut Fleet) -> Result<()> {
    let member = fleet.member_mut(HOST)?;
    // Its kernel would go on answering for the address of its guest.
    member.namespace().ip(&["link", "set", CARD, "down"])?;
    member.berth.crash()?;
    for pid in member.qemu()? {
        kill(Pid::from_raw(pid), Signal::SIGKILL).context("killing QEMU")?;
    }
    wait::until("no QEMU", SOON, || {
        ensure!(member.qemu()?.is_empty(), "it still runs one");
        Ok(())
    })
}

pub(super) fn public_address(fleet: &Fleet, name: &str) -> Result<String> {
    let address = fleet.kubectl().condition(&format!("publicip/{name}"), "Ready=True", None, SOON)?;
    Ok(address["status"]["address"].as_str().context("no address")?.to_owned())
}

/// The name by which the guest knows a disk.
pub(super) fn device_of(fleet: &Fleet, public: &str, disk: &str) -> Result<String> {
    let disk = fleet.kubectl().object("disk", disk)?;
    let serial = disk["status"]["serial"].as_str().context("the disk has no serial")?;
    let text = page(fleet, public, "/cgi-bin/disks")?;
    let line = text.lines().find(|line| field(line, "serial").is_ok_and(|found| found == serial));
    Ok(field(line.with_context(|| format!("no disk {serial} in {text}"))?, "name")?.to_owned())
}

pub(super) fn volume_of(fleet: &Fleet, disk: &str) -> Result<String> {
    let disk = fleet.kubectl().object("disk", disk)?;
    Ok(disk["status"]["volumeID"].as_str().context("it has no volume")?.to_owned())
}

pub(super) fn file(common: &Path, host: &str, volume: &str) -> PathBuf {
    common.join(format!("hosts/{host}/volumes/{volume}.qcow2"))
}
