//! Backups of the disk of the running guest, of which the later ones read what has changed; a disk in Ceph from one of them, although the agent
//! is killed meanwhile; an image of the disk, from which a disk in the default pool is made; and a disk with a file system.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{ANSWER, DATA, Guest, LOOKS, POOL, SOON, STAYS, VM, sum_of, volume, write_on};
use crate::ceph::Ceph;
use crate::fleet::Fleet;
use crate::{manifests, wait};

/// The BackupRepository and its Secret.
const REPOSITORY: &str = "in-ceph";
const BACKUPS: [&str; 3] = ["in-ceph-1", "in-ceph-2", "in-ceph-3"];
const RESTORED: &str = "in-ceph-restored";
/// An Image, and a disk from it.
const MADE: &str = "in-ceph-made";
/// A disk with a file system.
const FORMATTED: &str = "in-ceph-formatted";
/// How much the guest writes at a time.
const WRITTEN: u64 = 8 << 20;

pub(super) fn case(fleet: &mut Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let kubectl = fleet.kubectl().clone();
    let password = ["create", "secret", "generic", REPOSITORY, "--from-literal=password=correct horse"];
    kubectl.ok(&password)?;
    declare(
        fleet,
        "BackupRepository",
        REPOSITORY,
        &json!({"folder": "nas", "passwordSecretName": REPOSITORY}),
    )?;

    write_on(fleet, STAYS, guest, 13)?;
    let first = backed_up(fleet, BACKUPS[0])?;
    ensure!(first["parentBackup"].is_null(), "{first:#}");
    let written = write_on(fleet, STAYS, guest, 14)?;
    let second = backed_up(fleet, BACKUPS[1])?;
    ensure!(second["parentBackup"] == first["backupID"], "{second:#}");
    let read = second["readBytes"].as_u64().unwrap_or_default();
    ensure!((WRITTEN..=WRITTEN * 6 / 5).contains(&read), "{read} bytes were read, {WRITTEN} written");
    let third = backed_up(fleet, BACKUPS[2])?;
    ensure!(
        third["parentBackup"] == second["backupID"] && third["readBytes"] == 0,
        "nothing was written: {third:#}"
    );

    let after = write_on(fleet, STAYS, guest, 15)?;
    let restored = json!({"source": {"backup": BACKUPS[1]}, "pool": POOL});
    attach(fleet, RESTORED, &restored)?;
    // A restore that has begun begins anew.
    fleet.member_mut(STAYS)?.berth.crash()?;
    fleet.start_again(STAYS)?;
    ensure!(read_by_guest(fleet, guest, RESTORED)? == written, "it has not the data of the backup");
    let image = ceph.image(&volume(fleet, RESTORED)?)?;
    ensure!(image["size"] == 128 << 20 && image["parent"].is_null(), "{image}");

    declare(fleet, "Image", MADE, &json!({"source": {"disk": DATA}}))?;
    let made = kubectl.condition(&format!("image/{MADE}"), "Ready=True", None, ANSWER)?;
    ensure!(made["status"]["virtualSize"] == "128Mi", "{:#}", made["status"]);
    attach(fleet, MADE, &json!({"image": MADE, "size": "128Mi"}))?;
    ensure!(read_by_guest(fleet, guest, MADE)? == after, "it has other data than the disk");
    ensure!(super::sum(fleet, STAYS, guest)? == after, "the disk has changed");
    attach(
        fleet,
        FORMATTED,
        &json!({"size": "32Mi", "pool": POOL, "filesystem": {"type": "ext4", "label": "data"}}),
    )?;
    kubectl.condition(&format!("hotswapdiskattachment/{FORMATTED}"), "Ready=True", None, ANSWER)?;
    let data = volume(fleet, DATA)?;
    let left = ceph.snapshots(&data)?;
    ensure!(left.len() == BACKUPS.len() && left.iter().all(|id| id.starts_with("s-")), "{left:?}");

    removed(fleet, ceph, &data)?;
    guest.project.plan_is_empty()
}

pub(super) fn declare(fleet: &Fleet, kind: &str, name: &str, spec: &Value) -> Result<()> {
    let object =
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    fleet.kubectl().apply(&object.to_string()).map(drop)
}

/// Takes a snapshot of the disk, and backs it up. Returns the status of the backup.
fn backed_up(fleet: &Fleet, name: &str) -> Result<Value> {
    let kubectl = fleet.kubectl();
    declare(fleet, "DiskSnapshot", name, &json!({"disk": DATA}))?;
    kubectl.condition(&format!("disksnapshot/{name}"), "Ready=True", None, SOON)?;
    declare(fleet, "Backup", name, &json!({"repository": REPOSITORY, "snapshot": name}))?;
    let backup = kubectl.condition(&format!("backup/{name}"), "Ready=True", None, ANSWER)?;
    Ok(backup["status"].clone())
}

/// Declares a disk for the running guest.
pub(super) fn attach(fleet: &Fleet, name: &str, disk: &Value) -> Result<()> {
    declare(fleet, "Disk", name, disk)?;
    // The guest has no agent that knows its mounts.
    let attachment = manifests::with(manifests::attachment(name, VM, name), "force", json!(true));
    fleet.kubectl().apply(&attachment.to_string()).map(drop)
}

/// Returns the checksum of what the guest reads from such a disk.
pub(super) fn read_by_guest(fleet: &Fleet, guest: &Guest, name: &str) -> Result<String> {
    fleet.kubectl().condition(&format!("hotswapdiskattachment/{name}"), "Ready=True", None, ANSWER)?;
    wait::until("the disk in the guest", SOON, || sum_of(fleet, STAYS, guest, name))
}

/// Deletes all of it, also the snapshots in Ceph, and the data in the repository.
fn removed(fleet: &Fleet, ceph: &Ceph, data: &str) -> Result<()> {
    let kubectl = fleet.kubectl();
    for name in [RESTORED, MADE, FORMATTED] {
        kubectl.delete(&format!("hotswapdiskattachment/{name}"))?;
        kubectl.delete(&format!("disk/{name}"))?;
    }
    kubectl.delete(&format!("image/{MADE}"))?;
    for name in BACKUPS {
        kubectl.delete(&format!("backup/{name}"))?;
        kubectl.delete(&format!("disksnapshot/{name}"))?;
    }
    kubectl.delete(&format!("backuprepository/{REPOSITORY}"))?;
    kubectl.delete(&format!("secret/{REPOSITORY}"))?;
    kubectl.while_hosts_look(LOOKS, |limit| {
        wait::until("the snapshots to be deleted in Ceph", limit, || {
            let left = ceph.snapshots(data).context("listing snapshots")?;
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
    })
}
