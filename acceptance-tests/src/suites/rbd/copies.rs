//! Copies of the guest's disk into another pool while it runs: from Ceph to a file of its host, and from there to Ceph.

use anyhow::{Result, ensure};
use serde_json::json;

use super::{ANSWER, DATA, Guest, LOOKS, POOL, SOON, STAYS, VM, sum, sum_of, volume, write_on};
use crate::ceph::Ceph;
use crate::fleet::Fleet;
use crate::{manifests, wait};

const IN_A_FILE: &str = "in-ceph-to-file";
const IN_CEPH: &str = "in-ceph-from-file";

pub(super) fn case(fleet: &Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let kubectl = fleet.kubectl();
    let written = write_on(fleet, STAYS, guest, 17)?;
    for (copy, source, pool) in [(IN_A_FILE, DATA, "default"), (IN_CEPH, IN_A_FILE, POOL)] {
        copied(fleet, guest, (copy, source, pool))?;
        ensure!(sum_of(fleet, STAYS, guest, copy)? == written, "{copy} has other data than {source}");
    }
    let image = ceph.image(&volume(fleet, IN_CEPH)?)?;
    ensure!(image["parent"].is_null(), "the copy depends on another image: {image}");
    let later = write_on(fleet, STAYS, guest, 18)?;
    ensure!(later != written && sum(fleet, STAYS, guest)? == later, "the guest does not write to its disk");
    ensure!(sum_of(fleet, STAYS, guest, IN_A_FILE)? == written, "the copy has changed with its source");
    let data = volume(fleet, DATA)?;
    fleet.kubectl().while_hosts_look(LOOKS, |limit| {
        wait::until("the snapshot for the copy to be deleted from Ceph", limit, || {
            ensure!(ceph.snapshots(&data)?.is_empty(), "{:?}", ceph.snapshots(&data)?);
            Ok(())
        })
    })?;
    for copy in [IN_CEPH, IN_A_FILE] {
        kubectl.delete(&format!("hotswapdiskattachment/{copy}"))?;
        kubectl.delete(&format!("disk/{copy}"))?;
    }
    guest.project.plan_is_empty()
}

/// The running guest gets the copy.
fn copied(fleet: &Fleet, guest: &Guest, (name, source, pool): (&str, &str, &str)) -> Result<()> {
    let kubectl = fleet.kubectl();
    let copy = manifests::with(manifests::blank_disk(name, "128Mi"), "source", json!({"disk": source}));
    let copy = manifests::with(copy, "pool", json!(pool));
    // The guest has no agent that knows its mounts.
    let attachment = manifests::with(manifests::attachment(name, VM, name), "force", json!(true));
    kubectl.apply(&manifests::all(&[copy, attachment]))?;
    kubectl.condition(&format!("hotswapdiskattachment/{name}"), "Ready=True", None, ANSWER)?;
    wait::until("the copy in the guest", SOON, || sum_of(fleet, STAYS, guest, name).map(drop))
}
