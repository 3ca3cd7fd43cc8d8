//! The drill of `docs/backup.md`, "Total loss of a site": the machine is destroyed with everything on it, and an empty one takes its place.

use std::path::PathBuf;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{SOON, files_below};
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::{Parts, Platform};
use crate::suites::console::administrator;
use crate::suites::kubectl::contains_all;
use crate::suites::snapshots::{declare, sum, write};
use crate::wait;

/// The host on the empty machine.
const NEW_HOST: &str = "second";
const DISKS: [&str; 2] = ["drill-root", "drill-data"];

/// A guest that has written to a disk, with backups of both of its disks. Returns the checksum of what it wrote.
pub(super) fn backed_up(platform: &Platform, guest: &GuestImage) -> Result<String> {
    let kubectl = platform.kubectl();
    let url = platform.images().put("drill.qcow2", Content::File(guest.path.clone()));
    declare(platform, "Image", "drill", &json!({"source": {"url": url, "sha256": guest.sha256}}))?;
    declare(platform, "Disk", "drill-root", &json!({"size": "4Gi", "image": "drill"}))?;
    declare(platform, "Disk", "drill-data", &json!({"size": "1Gi"}))?;
    let disks = json!([{"name": "drill-root", "boot": true}, {"name": "drill-data"}]);
    declare(platform, "VM", "drill", &json!({"cpus": 1, "memory": "512Mi", "disks": disks}))?;
    let written = write(platform, &address(platform)?, "drill-data", 9)?;
    declare(platform, "VMSnapshot", "drill", &json!({"vm": "drill"}))?;
    let taken = kubectl.condition("vmsnap/drill", "Ready=True", None, SOON)?["status"]["disks"].clone();
    declare(
        platform,
        "BackupRepository",
        "drill",
        &json!({"folder": "nas", "passwordSecretName": "backup-password"}),
    )?;
    for part in taken.as_array().context("no disks")? {
        let (disk, snapshot) = (part["disk"].as_str().context("no disk")?, &part["snapshot"]);
        declare(platform, "Backup", disk, &json!({"repository": "drill", "snapshot": snapshot}))?;
    }
    for disk in DISKS {
        kubectl.condition(&format!("backup/{disk}"), "Ready=True", None, SOON)?;
    }
    Ok(written)
}

/// A verification reads the backup back; one block that is gone is named, and nothing is deleted.
pub(super) fn verified(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let verify = || administrator(platform).run(&["disk-backup", "verify", "drill-data"]);
    contains_all(&verify()?.success()?, &["its data is whole"])?;
    let backup = kubectl.object("backup", "drill-data")?;
    ensure!(backup["status"]["verifiedAt"].is_string(), "{:#}", backup["status"]);
    let volume = backup["status"]["volumeID"].as_str().context("no volume")?.to_owned();
    let folder = platform.host().backups().join("default/drill/disks").join(&volume).join("blocks");
    let blocks = files_below(&folder)?;
    // The blocks are 4 MiB, compressed; the list of them is small.
    let block = largest(&blocks)?;
    let aside = block.with_extension("aside");
    fs::rename(&block, &aside)?;
    let name = block.file_name().context("a name")?.to_string_lossy().into_owned();
    contains_all(&verify()?.failure()?, &["is damaged", &name, "it is missing"])?;
    let damaged = kubectl.condition("backup/drill-data", "Verified=False", Some("BackupLost"), SOON)?;
    ensure!(damaged["status"]["verification"]["damagedBlocks"] == 1, "{:#}", damaged["status"]);
    contains_all(&kubectl.ok(&["get", "bkp"])?, &["VERIFIED", "False"])?;
    ensure!(files_below(&folder)?.len() == blocks.len(), "nothing is deleted");
    fs::rename(&aside, &block)?;
    contains_all(&verify()?.success()?, &["its data is whole"])?;
    kubectl.condition("backup/drill-data", "Verified=True", None, SOON).map(drop)
}

fn largest(files: &[PathBuf]) -> Result<PathBuf> {
    let largest = files.iter().max_by_key(|file| fs::metadata(file).map_or(0, |metadata| metadata.len()));
    largest.cloned().context("there are no blocks")
}

/// The control plane is backed up, the machine destroyed, and the site restored on an empty machine.
pub(super) fn lost_and_restored(platform: &mut Platform, parts: &Parts, written: &str) -> Result<()> {
    let hosts: Value =
        serde_json::from_str(&platform.kubectl().ok(&["get", "hosts.berth.dev", "-o", "json"])?)?;
    let former = hosts["items"][0]["metadata"]["name"].as_str().context("no host")?.to_owned();
    let backup = platform.folder().join("drill.db").display().to_string();
    platform.host().on_state("backup", &[&backup, "--with-keys"])?.success()?;
    platform.replace_machine(parts, NEW_HOST)?;
    listed(platform)?;
    platform.host().on_state("restore", &[&backup])?.success()?;
    platform.start()?;
    let kubectl = platform.kubectl();
    kubectl.condition(&format!("host/{NEW_HOST}"), "Ready=True", None, SOON)?;
    // While the restored Lease of the former host is fresh, it seems to live.
    wait::until("the former host to be given up", SOON, || {
        let forget = administrator(platform).run(&["host", "forget", &former, "--lost"])?;
        forget.success().map(drop).inspect_err(|_| thread::sleep(Duration::from_secs(1)))
    })?;
    for kind in ["vmsnap", "dsnap", "vm", "disk"] {
        kubectl.ok(&["delete", kind, "--all", "--timeout=60s"])?;
    }
    let [root, data] = DISKS;
    let restored = administrator(platform).run(&["disk-backup", "restore-vm", root, data])?.success()?;
    contains_all(&restored, &["kind: VM", "kind: Disk", "backup: drill-data"])?;
    kubectl.apply(&restored)?;
    let vm = kubectl.condition("vm/drill", "Ready=True", None, SOON)?;
    ensure!(vm["status"]["binding"]["host"] == NEW_HOST, "{:#}", vm["status"]);
    let found = sum(platform, &address(platform)?, "drill-data")?;
    ensure!(found == written, "the guest has what it wrote before the loss");
    for kind in ["vm", "disk", "backups", "backuprepositories"] {
        kubectl.ok(&["delete", kind, "--all", "--timeout=60s"])?;
    }
    Ok(())
}

/// The repository is listed while no control plane runs.
fn listed(platform: &Platform) -> Result<()> {
    let password = platform.folder().join("password");
    fs::write(&password, "correct horse\n")?;
    let (folder, password) = (
        platform.host().backups().join("default/drill").display().to_string(),
        password.display().to_string(),
    );
    let list = ["disk-backup", "list", "--folder", &folder, "--password-file", &password];
    let printed = administrator(platform).run(&list)?.success()?;
    contains_all(&printed, &["EXISTING", "drill-root", "drill-data"])
}

fn address(platform: &Platform) -> Result<String> {
    let has_address = |vm: &Value| vm["status"]["privateAddress"].is_string();
    let vm = platform.kubectl().until("vm/drill", "to have an address", SOON, has_address)?;
    Ok(vm["status"]["privateAddress"].as_str().context("no address")?.to_owned())
}
