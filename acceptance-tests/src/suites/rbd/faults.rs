//! An OSD that stands still under a guest that writes, and a disk with a copy of its image, which is deleted and comes back.

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::json;

use super::{
    ANSWER, DATA, Guest, LOOKS, LOST, POOL, ROOT, SOON, STAYS, VM, boot_of, device, line_of, page, problem,
    sum, sum_of, volume,
};
use crate::ceph::Ceph;
use crate::fleet::Fleet;
use crate::http::{self, field};
use crate::{manifests, wait};

const COPY: &str = "in-ceph-whole";
const IMAGE: &str = "in-ceph";

/// The only OSD does not answer: the pool is away, and the guest waits for its disk and goes on afterwards.
pub(super) fn osd_stands_still(fleet: &mut Fleet, ceph: &mut Ceph, guest: &Guest) -> Result<()> {
    let boot = boot_of(fleet, LOST, guest)?;
    let pids = fleet.member(LOST)?.qemu()?;
    let path = format!("/cgi-bin/write?dev={}&seed=13", device(fleet, LOST, guest)?);
    let (namespace, address) = (Arc::clone(fleet.member(LOST)?.namespace()), guest.address.clone());
    ceph.freeze_osd(true);
    let writer = thread::spawn(move || http::get(&namespace, &address, &path, ANSWER));
    let held = goes_away(fleet);
    let waits = !writer.is_finished();
    ceph.freeze_osd(false);
    let written = writer.join().map_err(|_| anyhow!("the writer panicked"))?;
    held?;
    ensure!(waits, "the guest wrote to a disk whose OSD stands still: {written:?}");
    let written = written.context("the write that waited")?;
    let kubectl = fleet.kubectl();
    kubectl.while_hosts_look(LOOKS, |limit| {
        kubectl.condition(&format!("disk/{DATA}"), "Ready=True", None, limit)
    })?;
    ensure!(sum(fleet, LOST, guest)? == field(&written, "sha256")?, "it reads other data than was written");
    ensure!(boot_of(fleet, LOST, guest)? == boot, "the guest rebooted");
    let now = fleet.member(LOST)?.qemu()?;
    ensure!(pids == now, "before {pids:?}, now {now:?}");
    Ok(())
}

fn goes_away(fleet: &mut Fleet) -> Result<()> {
    // An agent looks at its pools when it starts.
    fleet.member_mut(LOST)?.berth.crash()?;
    fleet.member_mut(LOST)?.berth.spawn_joined(None, &[])?;
    let kubectl = fleet.kubectl();
    kubectl.until(&format!("host/{LOST}"), "to miss the pool", LOOKS, |host| problem(host).is_some())?;
    kubectl.condition(&format!("disk/{DATA}"), "Ready=False", Some("PoolAway"), SOON)?;
    kubectl.until(&format!("storagepool/{POOL}"), "to be away", SOON, |pool| {
        pool["status"]["hostsAway"].as_u64().is_some_and(|hosts| hosts > 0)
    })?;
    let vm = kubectl.object("vm", VM)?;
    ensure!(vm["status"]["state"] == "Running", "{:#}", vm["status"]);
    Ok(())
}

/// A full clone has the data of its image and no parent in Ceph. Its deletion keeps it, as long as the pool keeps deleted disks.
pub(super) fn copied_whole(fleet: &Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let kubectl = fleet.kubectl();
    keep_deleted(fleet, 600)?;
    let copy = manifests::with(manifests::disk(COPY, IMAGE, "64Mi"), "cloneMode", json!("Full"));
    kubectl.apply(&manifests::with(copy, "pool", json!(POOL)).to_string())?;
    attach(fleet, guest)?;
    let image = volume(fleet, COPY)?;
    ensure!(ceph.image(&image)?["parent"].is_null(), "it is a clone: {}", ceph.image(&image)?);
    let parent = ceph.image(&volume(fleet, ROOT)?)?["parent"].clone();
    let (base, snapshot) = (parent["image"].as_str(), parent["snapshot"].as_str());
    let base = format!("{}@{}", base.context("no image below")?, snapshot.context("no snapshot below")?);
    ensure!(ceph.data(&image)?.starts_with(&ceph.data(&base)?), "it has other data than its image");

    let line = line_of(fleet, STAYS, &guest.address, COPY)?;
    let path = format!("/cgi-bin/write?dev={}&seed=14", field(&line, "name")?);
    let written = page(fleet, STAYS, &guest.address, &path)?;
    delete(fleet)?;
    let berth = &fleet.member(STAYS)?.berth;
    wait::until("undelete", SOON, || berth.undelete(COPY)?.success())?;
    attach(fleet, guest)?;
    ensure!(volume(fleet, COPY)? == image, "another volume came back");
    let read = sum_of(fleet, STAYS, guest, COPY)?;
    ensure!(read == field(&written, "sha256")?, "it came back with other data than was written");

    delete(fleet)?;
    keep_deleted(fleet, 0)?;
    guest.project.plan_is_empty()
}

fn keep_deleted(fleet: &Fleet, seconds: u32) -> Result<()> {
    let patch = json!({"spec": {"trashRetentionSeconds": seconds}}).to_string();
    fleet.kubectl().ok(&["patch", &format!("storagepool/{POOL}"), "--type=merge", "-p", &patch]).map(drop)
}

/// Gives the disk to the running guest.
fn attach(fleet: &Fleet, guest: &Guest) -> Result<()> {
    let kubectl = fleet.kubectl();
    // The guest has no agent that knows its mounts.
    let attachment = manifests::with(manifests::attachment(COPY, VM, COPY), "force", json!(true));
    kubectl.apply(&attachment.to_string())?;
    kubectl.condition(&format!("hotswapdiskattachment/{COPY}"), "Ready=True", None, ANSWER)?;
    wait::until("the disk in the guest", SOON, || sum_of(fleet, STAYS, guest, COPY).map(drop))
}

fn delete(fleet: &Fleet) -> Result<()> {
    fleet.kubectl().delete(&format!("hotswapdiskattachment/{COPY}"))?;
    fleet.kubectl().delete(&format!("disk/{COPY}"))
}
