//! Encrypted disks in Ceph: the cluster has a LUKS header and nothing that a guest has written, the guest sees the declared size, and reads its
//! data after another class protects the key and after a restart. In the longer suite: a disk with the data of an image, a snapshot and a copy.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::backups::{attach, declare, read_by_guest};
use super::{ANSWER, Guest, LOOKS, POOL, SOON, STAYS, line_of, page, power, sum_of, volume};
use crate::ceph::Ceph;
use crate::fleet::Fleet;
use crate::http::field;
use crate::wait;

const DISK: &str = "in-ceph-encrypted";
const PLAIN: &str = "in-ceph-unencrypted";
const COPY: &str = "in-ceph-encrypted-copy";
const IMAGE: &str = "in-ceph";
const CLASSES: [&str; 2] = ["in-ceph-first", "in-ceph-second"];
const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;
const LARGER: u64 = 96 * MIB;
/// The beginning of a LUKS header.
const MAGIC: &[u8] = b"LUKS\xba\xbe";
/// The small guest fills the beginning of its disks with this text and the seed.
const PATTERN: &[u8] = b"berth acceptance pattern";

pub(super) fn case(fleet: &Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let (kubectl, object) = (fleet.kubectl(), format!("disk/{DISK}"));
    declare_classes(fleet)?;
    attach(fleet, DISK, &json!({"size": "64Mi", "pool": POOL, "encryption": {"keyClass": CLASSES[0]}}))?;
    read_by_guest(fleet, guest, DISK)?;
    must_have_size(fleet, guest, SIZE)?;
    let written = written(fleet, guest, 21)?;
    let image = volume(fleet, DISK)?;
    let header = header(ceph, &image, SIZE)?;
    must_be_unreadable(ceph, &image)?;

    // While the guest has it open.
    let patch = json!({"spec": {"encryption": {"keyClass": CLASSES[1]}, "size": "96Mi"}}).to_string();
    kubectl.ok(&["patch", &object, "--type=merge", "-p", &patch])?;
    kubectl.until(&object, "to have the second class", ANSWER, |disk| {
        let class = disk["status"]["encryption"]["keyClass"].as_str().unwrap_or_default();
        class.ends_with(CLASSES[1])
    })?;
    kubectl.delete(&format!("keyclass/{}", CLASSES[0]))?;
    wait::until("the guest to see the new size", SOON, || must_have_size(fleet, guest, LARGER))?;
    let grown = self::header(ceph, &image, LARGER)?;
    ensure!(grown == header, "a header of {header} bytes, after the growth of {grown}");
    for state in ["Stopped", "Running"] {
        power(fleet, state)?;
    }
    let read = wait::until("the disk in the guest", ANSWER, || sum_of(fleet, STAYS, guest, DISK))?;
    ensure!(read == written, "it reads other data than was written");
    must_have_size(fleet, guest, LARGER)?;
    must_be_unreadable(ceph, &image)?;

    remove(fleet, &[DISK])?;
    guest.project.plan_is_empty()
}

/// A disk with the data of an image is no clone of that, and a copy of its snapshot is one of the snapshot.
pub(super) fn of_an_image(fleet: &Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let kubectl = fleet.kubectl();
    declare_classes(fleet)?;
    let disk = json!({"image": IMAGE, "size": "64Mi", "pool": POOL});
    attach(fleet, PLAIN, &disk)?;
    let mut encrypted = disk;
    encrypted["encryption"] = json!({"keyClass": CLASSES[0]});
    attach(fleet, DISK, &encrypted)?;
    let content = read_by_guest(fleet, guest, PLAIN)?;
    ensure!(read_by_guest(fleet, guest, DISK)? == content, "it has other data than its image");
    let image = volume(fleet, DISK)?;
    ensure!(ceph.image(&image)?["parent"].is_null(), "it is a clone: {}", ceph.image(&image)?);
    let before = written(fleet, guest, 22)?;
    must_be_unreadable(ceph, &image)?;

    declare(fleet, "DiskSnapshot", DISK, &json!({"disk": DISK}))?;
    let snapshot = kubectl.condition(&format!("disksnapshot/{DISK}"), "Ready=True", None, SOON)?;
    ensure!(snapshot["status"]["size"] == "64Mi", "{:#}", snapshot["status"]);
    let after = written(fleet, guest, 23)?;
    let copy = json!({"source": {"snapshot": DISK}, "pool": POOL, "encryption": {"keyClass": CLASSES[1]}});
    attach(fleet, COPY, &copy)?;
    ensure!(read_by_guest(fleet, guest, COPY)? == before, "the copy has other data than the snapshot");
    ensure!(sum_of(fleet, STAYS, guest, DISK)? == after, "the disk has changed");
    let copied = ceph.image(&volume(fleet, COPY)?)?;
    ensure!(copied["parent"]["image"] == image.as_str(), "it is no clone of the snapshot: {copied}");

    remove(fleet, &[COPY])?;
    kubectl.delete(&format!("disksnapshot/{DISK}"))?;
    fleet.kubectl().while_hosts_look(LOOKS, |limit| {
        wait::until("the snapshot to be deleted after its clone", limit, || {
            ensure!(ceph.snapshots(&image)?.is_empty(), "{:?}", ceph.snapshots(&image)?);
            Ok(())
        })
    })?;
    remove(fleet, &[DISK, PLAIN])?;
    kubectl.delete(&format!("keyclass/{}", CLASSES[0]))?;
    guest.project.plan_is_empty()
}

/// Two classes, with a key each.
fn declare_classes(fleet: &Fleet) -> Result<()> {
    for (class, digit) in CLASSES.into_iter().zip(["A", "B"]) {
        // 32 bytes in base64.
        let key = format!("--from-literal=key={}A=", digit.repeat(42));
        fleet.kubectl().ok(&["create", "secret", "generic", class, &key])?;
        declare(fleet, "KeyClass", class, &json!({"secret": {"name": class}}))?;
    }
    Ok(())
}

/// Writes to the disk. Returns the checksum.
fn written(fleet: &Fleet, guest: &Guest, seed: u8) -> Result<String> {
    let line = line_of(fleet, STAYS, &guest.address, DISK)?;
    let path = format!("/cgi-bin/write?dev={}&seed={seed}", field(&line, "name")?);
    Ok(field(&page(fleet, STAYS, &guest.address, &path)?, "sha256")?.to_owned())
}

fn must_have_size(fleet: &Fleet, guest: &Guest, size: u64) -> Result<()> {
    let line = line_of(fleet, STAYS, &guest.address, DISK)?;
    ensure!(field(&line, "size")? == size.to_string(), "{line}");
    Ok(())
}

/// The size of the header, before the data of the guest.
fn header(ceph: &Ceph, image: &str, size: u64) -> Result<u64> {
    let found = ceph.image(image)?["size"].as_u64().context("the image has no size")?;
    let header = found.checked_sub(size).filter(|header| *header > 0);
    header.with_context(|| format!("the image has {found} bytes, and its disk {size}"))
}

/// The image begins with a LUKS header, and nothing of what the guest has written is in it.
fn must_be_unreadable(ceph: &Ceph, image: &str) -> Result<()> {
    let data = ceph.data(image)?;
    ensure!(data.starts_with(MAGIC), "it begins with {:02x?}", data.get(..16));
    // The guest writes to the beginning of its disk.
    let beginning = data.get(..24 << 20).context("it is too short")?;
    ensure!(
        !beginning.windows(PATTERN.len()).any(|part| part == PATTERN),
        "{image} has what the guest wrote"
    );
    Ok(())
}

fn remove(fleet: &Fleet, disks: &[&str]) -> Result<()> {
    let kubectl = fleet.kubectl();
    for disk in disks {
        kubectl.delete(&format!("hotswapdiskattachment/{disk}"))?;
        kubectl.delete(&format!("disk/{disk}"))?;
    }
    if disks.contains(&DISK) {
        kubectl.delete(&format!("keyclass/{}", CLASSES[1]))?;
        CLASSES.iter().try_for_each(|class| kubectl.delete(&format!("secret/{class}")))?;
    }
    Ok(())
}
