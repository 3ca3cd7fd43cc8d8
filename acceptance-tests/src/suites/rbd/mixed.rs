//! A snapshot of the running guest with disks in Ceph and one in a file of its host, and a restore of all of them.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{ANSWER, DATA, Guest, LOOKS, SOON, STAYS, VM, page, power, sum, sum_of, volume, write_on};
use crate::ceph::Ceph;
use crate::fleet::Fleet;
use crate::http::field;
use crate::{manifests, wait};

const LOCAL: &str = "in-ceph-local";
const SNAPSHOT: &str = "in-ceph-both";
/// The disks that the VM lists, and the attached one.
const PARTS: usize = 3;

pub(super) fn case(fleet: &Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let kubectl = fleet.kubectl();
    // The guest has no agent that knows its mounts.
    let attachment = manifests::with(manifests::attachment(LOCAL, VM, LOCAL), "force", json!(true));
    kubectl.apply(&manifests::all(&[manifests::blank_disk(LOCAL, "64Mi"), attachment]))?;
    kubectl.condition(&format!("hotswapdiskattachment/{LOCAL}"), "Ready=True", None, SOON)?;
    wait::until("the disk in the guest", SOON, || sum_of(fleet, STAYS, guest, LOCAL).map(drop))?;
    let before = [write_on(fleet, STAYS, guest, 13)?, write_to_local(fleet, guest, 14)?];
    kubectl.apply(&manifests::vm_snapshot(SNAPSHOT, VM).to_string())?;
    kubectl.condition(&format!("vmsnapshot/{SNAPSHOT}"), "Ready=True", None, SOON)?;
    let moments = (0..PARTS).map(|place| moment(fleet, place)).collect::<Result<Vec<Value>>>()?;
    ensure!(moments.iter().all(|at| at.is_string() && *at == moments[0]), "{moments:?}");
    let data = volume(fleet, DATA)?;
    ensure!(ceph.snapshots(&data)?.len() == 1, "{:?}", ceph.snapshots(&data)?);
    let after = [write_on(fleet, STAYS, guest, 15)?, write_to_local(fleet, guest, 16)?];
    let now = || Ok::<_, anyhow::Error>([sum(fleet, STAYS, guest)?, sum_of(fleet, STAYS, guest, LOCAL)?]);
    ensure!(
        after[0] != before[0] && after[1] != before[1] && now()? == after,
        "it does not write to its disks"
    );

    restored(fleet, SNAPSHOT)?;
    ensure!(now()? == before, "the disks have other data than the snapshot");
    kubectl.delete(&format!("vmsnapshot/{SNAPSHOT}"))?;
    fleet.kubectl().while_hosts_look(LOOKS, |limit| {
        wait::until("the snapshot to be deleted from Ceph", limit, || {
            ensure!(ceph.snapshots(&data)?.is_empty(), "{:?}", ceph.snapshots(&data)?);
            Ok(())
        })
    })?;
    kubectl.delete(&format!("hotswapdiskattachment/{LOCAL}"))?;
    kubectl.delete(&format!("disk/{LOCAL}"))?;
    guest.project.plan_is_empty()
}

/// The moment of one of its parts.
fn moment(fleet: &Fleet, place: usize) -> Result<Value> {
    let part = fleet.kubectl().object("disksnapshot", &format!("{SNAPSHOT}-{place}"))?;
    Ok(part["status"]["takenAt"].clone())
}

/// All disks get the data of the snapshot again while the VM is off.
pub(super) fn restored(fleet: &Fleet, snapshot: &str) -> Result<()> {
    let (kubectl, object) = (fleet.kubectl(), format!("vm/{VM}"));
    let declare = |restore: Value| {
        let patch = json!({"spec": {"restore": restore}}).to_string();
        kubectl.ok(&["patch", &object, "--type=merge", "-p", &patch])
    };
    declare(json!({"snapshot": snapshot}))?;
    power(fleet, "Stopped")?;
    power(fleet, "Running")?;
    kubectl.until(&object, "to be restored", ANSWER, |vm| {
        vm["status"]["restoredFrom"]["snapshot"] == snapshot
    })?;
    declare(json!(null)).map(drop)
}

fn write_to_local(fleet: &Fleet, guest: &Guest, seed: u8) -> Result<String> {
    let line = super::line_of(fleet, STAYS, &guest.address, LOCAL)?;
    let path = format!("/cgi-bin/write?dev={}&seed={seed}", field(&line, "name")?);
    Ok(field(&page(fleet, STAYS, &guest.address, &path)?, "sha256")?.to_owned())
}
