//! A snapshot of both disks of the guest while it runs, whose files are listed, a disk that is a clone of one of them, and a restore.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{ANSWER, DATA, Guest, LOOKS, POOL, ROOT, SOON, STAYS, VM, power, sum, sum_of, volume, write_on};
use crate::ceph::Ceph;
use crate::fleet::Fleet;
use crate::{manifests, wait};

const SNAPSHOT: &str = "in-ceph-before";
/// The parts of the first and the second disk that the VM lists.
const ROOT_PART: &str = "in-ceph-before-0";
const PART: &str = "in-ceph-before-1";
const COPY: &str = "in-ceph-copy";

pub(super) fn case(fleet: &Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let kubectl = fleet.kubectl();
    let before = write_on(fleet, STAYS, guest, 8)?;
    kubectl.apply(&manifests::vm_snapshot(SNAPSHOT, VM).to_string())?;
    kubectl.condition(&format!("vmsnapshot/{SNAPSHOT}"), "Ready=True", None, SOON)?;
    let (root, data) = (volume(fleet, ROOT)?, volume(fleet, DATA)?);
    let part = kubectl.object("disksnapshot", PART)?;
    let id = part["status"]["snapshotID"].as_str().context("the snapshot has no identity")?;
    ensure!(ceph.snapshots(&data)? == [id], "{:?}", ceph.snapshots(&data)?);
    ensure!(ceph.snapshots(&root)?.len() == 1, "{:?}", ceph.snapshots(&root)?);
    // The disk is a clone of the image, which has the file.
    let listed = fleet.administrator().run(&["snapshot", "ls", ROOT_PART])?.success()?;
    ensure!(listed.contains("vmlinuz"), "{listed}");
    let after = write_on(fleet, STAYS, guest, 9)?;
    ensure!(before != after && sum(fleet, STAYS, guest)? == after, "the guest does not write to its disk");

    copied(fleet, ceph, guest, (data.as_str(), id))?;
    ensure!(sum_of(fleet, STAYS, guest, COPY)? == before, "the copy has other data than the snapshot");
    restored(fleet)?;
    ensure!(sum(fleet, STAYS, guest)? == before, "the restored disk has other data than the snapshot");
    ensure!(sum_of(fleet, STAYS, guest, COPY)? == before, "the copy has changed with the restore");

    kubectl.delete(&format!("vmsnapshot/{SNAPSHOT}"))?;
    kubectl.while_hosts_look(SOON, |limit| {
        wait::until("the snapshot without a clone to be deleted", limit, || {
            ensure!(ceph.snapshots(&root)?.is_empty(), "{:?}", ceph.snapshots(&root)?);
            Ok(())
        })
    })?;
    ensure!(ceph.snapshots(&data)? == [id], "the snapshot below the copy: {:?}", ceph.snapshots(&data)?);
    kubectl.delete(&format!("hotswapdiskattachment/{COPY}"))?;
    kubectl.delete(&format!("disk/{COPY}"))?;
    kubectl.while_hosts_look(LOOKS, |limit| {
        wait::until("the other one to be deleted after its clone", limit, || {
            ensure!(ceph.snapshots(&data)?.is_empty(), "{:?}, {:?}", ceph.snapshots(&data)?, ceph.images()?);
            Ok(())
        })
    })?;
    guest.project.plan_is_empty()
}

/// A disk from the part is a clone of the snapshot, which the running guest gets.
fn copied(fleet: &Fleet, ceph: &Ceph, guest: &Guest, (data, id): (&str, &str)) -> Result<()> {
    let kubectl = fleet.kubectl();
    let copy = manifests::with(manifests::blank_disk(COPY, "128Mi"), "source", json!({"snapshot": PART}));
    let copy = manifests::with(copy, "pool", json!(POOL));
    // The guest has no agent that knows its mounts.
    let attachment = manifests::with(manifests::attachment(COPY, VM, COPY), "force", json!(true));
    kubectl.apply(&manifests::all(&[copy, attachment]))?;
    kubectl.condition(&format!("hotswapdiskattachment/{COPY}"), "Ready=True", None, SOON)?;
    let image = ceph.image(&volume(fleet, COPY)?)?;
    let parent = (image["parent"]["image"].as_str(), image["parent"]["snapshot"].as_str());
    ensure!(parent == (Some(data), Some(id)), "it is no clone of the snapshot: {image}");
    wait::until("the copy in the guest", SOON, || sum_of(fleet, STAYS, guest, COPY).map(drop))
}

/// The data of the snapshot comes back into the disk while the VM is off.
fn restored(fleet: &Fleet) -> Result<()> {
    let (kubectl, object) = (fleet.kubectl(), format!("disk/{DATA}"));
    power(fleet, "Stopped")?;
    for restore in [json!({"snapshot": PART}), json!(null)] {
        let patch = json!({"spec": {"restore": restore}}).to_string();
        kubectl.ok(&["patch", &object, "--type=merge", "-p", &patch])?;
        kubectl.until(&object, "to be restored", ANSWER, |disk| {
            disk["status"]["restoredFrom"]["snapshot"] == PART
        })?;
    }
    power(fleet, "Running")
}
