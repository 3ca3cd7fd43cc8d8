//! A VM with UEFI and a TPM whose boot disk is in Ceph: another host starts it with the copy there once its own is lost.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{LOST, POOL, STAYS};
use crate::ceph::Ceph;
use crate::fleet::Fleet;
use crate::suites::hosts::firmware::{Sealed, digests, folder};

/// It is off when its host is lost.
const SEALED: Sealed = Sealed { name: "in-ceph-sealed", pool: Some(POOL) };

/// The state of the VM on the host that is lost.
pub(super) struct State {
    instance: String,
    digests: [String; 2],
}

pub(super) fn copied(fleet: &Fleet, ceph: &Ceph) -> Result<()> {
    let instance = SEALED.stops_on(fleet, LOST)?;
    let copies = copies(ceph, &instance)?;
    ensure!(!copies.is_empty(), "there is none after the stop");
    Ok(())
}

/// Declares that the VM may go to this host. It stays on its own until that is lost.
pub(super) fn may_go_to(fleet: &Fleet, host: &str) -> Result<State> {
    let kubectl = fleet.kubectl();
    let vm = kubectl.object("vm", SEALED.name)?;
    let instance = vm["status"]["instanceID"].as_str().context("it has no instance")?.to_owned();
    let digests = digests(&folder(fleet, LOST, &instance)?)?;
    kubectl.apply(&SEALED.vm(json!({"host": host}), "Stopped").to_string())?;
    Ok(State { instance, digests })
}

/// The other host has the state, and a copy under its own binding, which is removed with the VM.
pub(super) fn must_be_kept(
    fleet: &Fleet,
    ceph: &Ceph,
    State { instance, digests: before }: &State,
) -> Result<()> {
    SEALED.until_on(fleet, STAYS, "Stopped")?;
    let kept = digests(&folder(fleet, STAYS, instance)?)?;
    ensure!(kept == *before, "its firmware state is {kept:?} there, and was {before:?}");
    let epoch = fleet.kubectl().object("vm", SEALED.name)?["status"]["binding"]["epoch"].to_string();
    let copies_now = copies(ceph, instance)?;
    let is_own = |image: &String| image.split('.').nth(2) == Some(epoch.as_str());
    ensure!(copies_now.iter().any(is_own), "{copies_now:?} has none of epoch {epoch}");
    delete(fleet)?;
    let left = copies(ceph, instance)?;
    ensure!(left.is_empty(), "{left:?} are there without their VM");
    Ok(())
}

pub(super) fn delete(fleet: &Fleet) -> Result<()> {
    SEALED.delete(fleet)
}

/// The images with copies of the firmware state of an instance: the epoch is the third part of a name.
fn copies(ceph: &Ceph, instance: &str) -> Result<Vec<String>> {
    let prefix = format!("berth-firmware-{instance}.");
    Ok(ceph.images()?.into_iter().filter(|image| image.starts_with(&prefix)).collect())
}
