//! A snapshot of the guest with its memory, whose disks are in Ceph: after a restore it goes on at that moment.

use anyhow::{Result, ensure};
use serde_json::json;

use super::mixed::restored;
use super::{ANSWER, DATA, Guest, LOOKS, STAYS, VM, boot_of, sum, volume, write_on};
use crate::ceph::Ceph;
use crate::fleet::Fleet;
use crate::{manifests, wait};

const SNAPSHOT: &str = "in-ceph-running";

pub(super) fn case(fleet: &Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let kubectl = fleet.kubectl();
    let (boot, before) = (boot_of(fleet, STAYS, guest)?, write_on(fleet, STAYS, guest, 19)?);
    let snapshot = manifests::with(manifests::vm_snapshot(SNAPSHOT, VM), "memory", json!(true));
    kubectl.apply(&snapshot.to_string())?;
    kubectl.condition(&format!("vmsnapshot/{SNAPSHOT}"), "Ready=True", None, ANSWER)?;
    let data = volume(fleet, DATA)?;
    ensure!(ceph.snapshots(&data)?.len() == 1, "{:?}", ceph.snapshots(&data)?);
    wait::until("the guest to go on", ANSWER, || {
        ensure!(boot_of(fleet, STAYS, guest)? == boot, "it has booted");
        Ok(())
    })?;
    let after = write_on(fleet, STAYS, guest, 20)?;
    ensure!(after != before && sum(fleet, STAYS, guest)? == after, "it does not write to its disk");

    restored(fleet, SNAPSHOT)?;
    wait::until("the guest of that moment", ANSWER, || {
        ensure!(boot_of(fleet, STAYS, guest)? == boot, "it has booted");
        Ok(())
    })?;
    ensure!(sum(fleet, STAYS, guest)? == before, "it has other data than at that moment");
    let later = write_on(fleet, STAYS, guest, 21)?;
    ensure!(sum(fleet, STAYS, guest)? == later, "it does not write to its disk");
    kubectl.delete(&format!("vmsnapshot/{SNAPSHOT}"))?;
    fleet.kubectl().while_hosts_look(LOOKS, |limit| {
        wait::until("the snapshot to be deleted from Ceph", limit, || {
            ensure!(ceph.snapshots(&data)?.is_empty(), "{:?}", ceph.snapshots(&data)?);
            Ok(())
        })
    })?;
    guest.project.plan_is_empty()
}
