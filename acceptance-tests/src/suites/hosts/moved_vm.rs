//! A VM that moves to another host while its host lives: by its placement at a restart, and back by `berth move` while it is stopped.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::lost_host::{HOST, device_of, file, public_address, volume_of};
use super::shared_pool::{self, POOL};
use super::{ANSWER, SOON, message, page};
use crate::fleet::{Fleet, host_in};
use crate::http::field;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::report::Report;

const NAME: &str = "mover";
/// The disk beside the boot disk.
const DATA: &str = "mover-data";

/// Runs the case in the pool that all hosts have in common, on a host without other guests; nothing of VMs is left behind.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    report.case(
        "a guest in that pool moves to another host at a restart, with its data and addresses, and back while it is stopped",
        || {
            let common = shared_pool::common(fleet);
            let held = moves_and_returns(fleet, &common);
            let kubectl = fleet.kubectl();
            let objects =
                [format!("vm/{NAME}"), format!("publicip/{NAME}"), format!("disk/{NAME}"), format!("disk/{DATA}")];
            held.and(objects.iter().try_for_each(|object| kubectl.delete(object)))
        },
    );
}

fn moves_and_returns(fleet: &Fleet, common: &Path) -> Result<()> {
    let kubectl = fleet.kubectl();
    let pooled = |disk: Value| manifests::with(disk, "pool", json!(POOL));
    kubectl.apply(&manifests::all(&[
        pooled(manifests::disk(NAME, "web", "64Mi")),
        pooled(manifests::blank_disk(DATA, "64Mi")),
        manifests::public_ip(NAME, "segment"),
        vm(json!({"host": HOST}), "Running", "1"),
    ]))?;
    let path = format!("vm/{NAME}");
    let before = kubectl.condition(&path, "Ready=True", None, ANSWER)?;
    ensure!(host_in(&before).as_deref() == Some(HOST), "{:#}", before["status"]["binding"]);
    let public = public_address(fleet, NAME)?;
    let device = device_of(fleet, &public, DATA)?;
    let wrote = page(fleet, &public, &format!("/cgi-bin/write?dev={device}&seed=7"))?;
    let sum = field(&wrote, "sha256")?.to_owned();
    let volumes = [volume_of(fleet, NAME)?, volume_of(fleet, DATA)?];

    let next = fleet.host_of("web-0")?;
    let placement = json!({"host": next, "movePolicy": "WhenStopped"});
    kubectl.apply(&vm(placement.clone(), "Running", "1").to_string())?;
    let waits = kubectl.condition(&path, "Movable=True", None, SOON)?;
    ensure!(
        host_in(&waits).as_deref() == Some(HOST),
        "it runs on until it is stopped: {:#}",
        waits["status"]
    );
    kubectl.apply(&vm(placement, "Running", "2").to_string())?;
    let after = kubectl.until(&path, "to run on the other host", ANSWER, |vm| {
        host_in(vm).as_deref() == Some(next.as_str())
            && condition_of(vm, "Ready").is_some_and(|ready| ready["status"] == "True")
    })?;
    let same = |vm: &Value| {
        let interface = &vm["status"]["interfaces"][0];
        [&interface["address"], &interface["macAddress"], &vm["status"]["instanceID"]].map(Value::clone)
    };
    ensure!(same(&after) == same(&before), "after: {:#}, before: {:#}", after["status"], before["status"]);
    ensure!(condition_of(&after, "Movable").is_none(), "it has moved: {:#}", after["status"]);
    are_on(common, &volumes, &next, HOST)?;
    ensure!(public_address(fleet, NAME)? == public, "it has another public address");
    let again = device_of(fleet, &public, DATA)?;
    let read = page(fleet, &public, &format!("/cgi-bin/sum?dev={again}"))?;
    ensure!(field(&read, "sha256")? == sum, "it reads other data than was written: {read}");
    let left = kubectl.object("host", HOST)?;
    ensure!(
        left["status"]["orphans"].as_array().is_none_or(Vec::is_empty),
        "{:#}",
        left["status"]["orphans"]
    );

    returns(fleet, common, &volumes, &next)
}

/// Stops the VM, and has it moved back by the command, which refuses what cannot be.
fn returns(fleet: &Fleet, common: &Path, volumes: &[String; 2], from: &str) -> Result<()> {
    let kubectl = fleet.kubectl();
    let path = format!("vm/{NAME}");
    kubectl.apply(&vm(json!({"host": from}), "Stopped", "2").to_string())?;
    kubectl.until(&path, "to be off", ANSWER, |vm| {
        vm["status"]["state"] == "Stopped" && vm["status"]["process"].is_null()
    })?;
    let administrator = fleet.administrator();
    let refused = administrator.run(&["move", NAME, "--to", HOST])?.failure()?;
    ensure!(refused.contains("placement.host"), "{refused}");
    let stays = kubectl.object("vm", NAME)?;
    ensure!(message(&stays, "Movable")?.contains("placement.host"), "{:#}", stays["status"]["conditions"]);
    administrator.run(&["move", NAME, "--cancel"])?.success()?;
    kubectl.apply(&vm(json!({}), "Stopped", "2").to_string())?;
    administrator.run(&["move", NAME, "--to", HOST])?.success()?;
    let back = kubectl.object("vm", NAME)?;
    ensure!(host_in(&back).as_deref() == Some(HOST), "{:#}", back["status"]["binding"]);
    for disk in [NAME, DATA] {
        kubectl.condition(&format!("disk/{disk}"), "Ready=True", None, SOON)?;
    }
    are_on(common, volumes, HOST, from)
}

/// Whether the files are in the folder of one host, and not in that of the other.
fn are_on(common: &Path, volumes: &[String; 2], host: &str, other: &str) -> Result<()> {
    for volume in volumes {
        ensure!(file(common, host, volume).exists(), "{volume} is not in the folder of {host}");
        ensure!(!file(common, other, volume).exists(), "{volume} is in the folder of {other} still");
    }
    Ok(())
}

fn vm(placement: Value, power: &str, token: &str) -> Value {
    let vm = manifests::with(manifests::vm(NAME, "web", NAME), "placement", placement);
    let vm = manifests::with(vm, "disks", json!([{"name": NAME, "boot": true}, {"name": DATA}]));
    let vm = manifests::with(vm, "power", json!(power));
    let vm = manifests::with(vm, "restartToken", json!(token));
    manifests::with(vm, "networkInterfaces", json!([{"name": "nic0", "publicIP": NAME}]))
}
