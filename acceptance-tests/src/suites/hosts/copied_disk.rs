//! A VM with disks in a pool that each host has for itself: they are copied to its next host, and removed from the one that it has left.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::lost_host::{HOST, device_of, public_address, volume_of};
use super::{ANSWER, SILENCE, SOON, page};
use crate::fleet::{Fleet, host_in};
use crate::http::field;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::report::Report;
use crate::wait;

const NAME: &str = "carrier";
/// The disk beside the boot disk.
const DATA: &str = "carrier-data";

/// Runs the case on a host without other guests; nothing is left behind.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    report.case(
        "a guest whose disks are on its host alone moves to another host with its data, and back while it is stopped",
        || {
            let held = moves_and_returns(fleet);
            let kubectl = fleet.kubectl();
            let objects =
                [format!("vm/{NAME}"), format!("publicip/{NAME}"), format!("disk/{NAME}"), format!("disk/{DATA}")];
            held.and(objects.iter().try_for_each(|object| kubectl.delete(object)))
        },
    );
}

fn moves_and_returns(fleet: &Fleet) -> Result<()> {
    let kubectl = fleet.kubectl();
    kubectl.apply(&manifests::all(&[
        manifests::disk(NAME, "web", "64Mi"),
        manifests::blank_disk(DATA, "64Mi"),
        manifests::public_ip(NAME, "segment"),
        vm(json!({"host": HOST}), "Running", "1"),
    ]))?;
    let path = format!("vm/{NAME}");
    let before = kubectl.condition(&path, "Ready=True", None, ANSWER)?;
    ensure!(host_in(&before).as_deref() == Some(HOST), "{:#}", before["status"]["binding"]);
    let public = public_address(fleet, NAME)?;
    let device = device_of(fleet, &public, DATA)?;
    let wrote = page(fleet, &public, &format!("/cgi-bin/write?dev={device}&seed=11"))?;
    let sum = field(&wrote, "sha256")?.to_owned();
    let volumes = [volume_of(fleet, NAME)?, volume_of(fleet, DATA)?];

    let next = fleet.host_of("web-0")?;
    let placement = json!({"host": next, "movePolicy": "WhenStopped"});
    kubectl.apply(&vm(placement.clone(), "Running", "1").to_string())?;
    let waits = kubectl.condition(&path, "Movable=True", None, SOON)?;
    ensure!(host_in(&waits).as_deref() == Some(HOST), "it runs on: {:#}", waits["status"]);
    kubectl.apply(&vm(placement, "Running", "2").to_string())?;
    let after = kubectl.until(&path, "to run on the other host", ANSWER, |vm| {
        host_in(vm).as_deref() == Some(next.as_str())
            && condition_of(vm, "Ready").is_some_and(|ready| ready["status"] == "True")
    })?;
    let address = |vm: &Value| vm["status"]["interfaces"][0]["address"].clone();
    ensure!(
        address(&after) == address(&before),
        "after: {:#}, before: {:#}",
        after["status"],
        before["status"]
    );
    let again = device_of(fleet, &public, DATA)?;
    let read = page(fleet, &public, &format!("/cgi-bin/sum?dev={again}"))?;
    ensure!(field(&read, "sha256")? == sum, "it reads other data than was written: {read}");
    for disk in [NAME, DATA] {
        let disk = kubectl.object("disk", disk)?;
        ensure!(disk["status"]["formerHost"].is_null(), "its host has its data: {:#}", disk["status"]);
    }
    are_on(fleet, &volumes, &next, HOST)?;

    kubectl.apply(&vm(json!({}), "Stopped", "2").to_string())?;
    kubectl.until(&path, "to be off", ANSWER, |vm| {
        vm["status"]["state"] == "Stopped" && vm["status"]["process"].is_null()
    })?;
    fleet.administrator().run(&["move", NAME, "--to", HOST])?.success()?;
    for disk in [NAME, DATA] {
        kubectl.until(&format!("disk/{disk}"), "to be copied back", ANSWER, |disk| {
            host_in(disk).as_deref() == Some(HOST)
                && disk["status"]["formerHost"].is_null()
                && condition_of(disk, "Ready").is_some_and(|ready| ready["status"] == "True")
        })?;
    }
    are_on(fleet, &volumes, HOST, &next)
}

/// Waits until the files are in the folder of one host, and nothing of them in that of the other, which looks for what it has left once a
/// minute.
fn are_on(fleet: &Fleet, volumes: &[String; 2], host: &str, other: &str) -> Result<()> {
    let folder = |host: &str| -> Result<PathBuf> {
        Ok(fleet.member(host)?.berth.state().join("pools/default/volumes"))
    };
    let (here, there) = (folder(host)?, folder(other)?);
    for volume in volumes {
        ensure!(here.join(format!("{volume}.qcow2")).exists(), "{volume} is not on {host}");
    }
    wait::until(&format!("{other} to remove what {host} has copied"), SILENCE, || {
        for volume in volumes {
            for end in ["qcow2", "json"] {
                ensure!(
                    !there.join(format!("{volume}.{end}")).exists(),
                    "{volume}.{end} is on {other} still"
                );
            }
        }
        Ok(())
    })
}

fn vm(placement: Value, power: &str, token: &str) -> Value {
    let vm = manifests::with(manifests::vm(NAME, "web", NAME), "placement", placement);
    let vm = manifests::with(vm, "disks", json!([{"name": NAME, "boot": true}, {"name": DATA}]));
    let vm = manifests::with(vm, "power", json!(power));
    let vm = manifests::with(vm, "restartToken", json!(token));
    manifests::with(vm, "networkInterfaces", json!([{"name": "nic0", "publicIP": NAME}]))
}
