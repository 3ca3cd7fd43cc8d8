//! `examples/encryption` with the small guest: what guests write to encrypted disks is on the host in no readable form, also not in a
//! snapshot and in a copy. Another class protects the keys while the guests run. Without the key, a guest is not started.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::snapshots::{sum, write};
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{process, wait, workspace};

/// A guest boots.
const BOOT: Duration = Duration::from_secs(120);
/// The small guest fills its disks with this text and the seed.
const PATTERN: &str = "berth acceptance pattern";
const CLASSES: [&str; 2] = ["encryption-1", "encryption-2"];

pub fn example(report: &mut Report, platform: &mut Platform, guest: &GuestImage) {
    report.case(
        "examples/encryption: no file of the host has what guests write, and keys are protected by another class while they run",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/encryption"))?;
            let copy = project.read("copy.tf")?;
            project.write("copy.tf", "")?;
            for class in CLASSES {
                platform.kubectl().ok(&["create", "secret", "generic", class, &format!("--from-literal=key={}", key(class))])?;
            }
            let url = platform.images().put("encryption.qcow2", Content::File(guest.path.clone()));
            let image = json!({"image_url": url, "image_sha256": guest.sha256});
            project.write("terraform.tfvars.json", &image.to_string())?;
            // Deleted disks of other examples are in the trash, with the files that they are based on.
            let others = files(platform)?;
            project.init()?;
            project.apply()?;
            let held = encrypted(platform, &project, &copy, &image, &others);
            project.destroy()?;
            held
        },
    );
}

/// 32 bytes in base64, others for each class.
fn key(class: &str) -> String {
    let digit = if class == CLASSES[0] { "A" } else { "B" };
    format!("{}A=", digit.repeat(42))
}

fn encrypted(
    platform: &mut Platform,
    project: &Project,
    copy: &str,
    image: &Value,
    others: &BTreeSet<PathBuf>,
) -> Result<()> {
    project.plan_is_empty()?;
    let address = project.output("address")?;
    let before = write(platform, &address, "encryption-data", 7)?;
    let status = platform.kubectl().condition("disk/encryption-data", "EncryptionSynced=True", None, BOOT)?;
    let encryption = status["status"]["encryption"].clone();
    ensure!(
        encryption["keyClass"] == "default/encryption-1" && encryption["generation"] == 1,
        "{encryption}"
    );
    let vm = platform.kubectl().object("vm", "encryption")?["status"]["disks"].clone();
    ensure!(vm.as_array().is_some_and(|disks| disks.iter().all(|disk| disk["encrypted"] == true)), "{vm}");
    project.write("copy.tf", copy)?;
    project.apply()?;
    project.plan_is_empty()?;
    let after = write(platform, &address, "encryption-data", 8)?;
    let copied = project.output("copy_address")?;
    ensure!(sum(platform, &copied, "encryption-copy")? == before, "the copy has the data from before");
    write(platform, &copied, "encryption-copy", 9)?;
    must_be_unreadable(&(&files(platform)? - others))?;
    rekeyed(platform, project, image)?;
    ensure!(sum(platform, &address, "encryption-data")? == after, "its data is as it was");
    grown(platform, project)?;
    not_without_its_key(platform, &address, &after)
}

/// The files of disks and snapshots in the pool.
fn files(platform: &Platform) -> Result<BTreeSet<PathBuf>> {
    let pool = platform.host().state().join("pools/default");
    let mut found = BTreeSet::new();
    for folder in ["volumes", "snapshots"] {
        // It is made with its first file.
        let Ok(entries) = fs::read_dir(pool.join(folder)) else { continue };
        for file in entries {
            found.insert(file?.path());
        }
    }
    Ok(found)
}

/// Every file is without the pattern, and some are large enough to have it.
fn must_be_unreadable(files: &BTreeSet<PathBuf>) -> Result<()> {
    let mut read = 0;
    for path in files {
        read += fs::metadata(path)?.len();
    }
    ensure!(read > 24 << 20, "the three patterns are there, in {read} bytes");
    let mut search = Command::new("grep");
    search.args(["--files-with-matches", "--text", "--fixed-strings", "--regexp", PATTERN, "--"]).args(files);
    let found = process::run(search.env("LC_ALL", "C"), BOOT)?;
    // grep found nothing, and could read all.
    ensure!(found.code() == 1, "these have what the guest wrote: {}", found.output());
    Ok(())
}

/// The second class protects the keys, of the snapshot too, and no QEMU is started for that.
fn rekeyed(platform: &Platform, project: &Project, image: &Value) -> Result<()> {
    let kubectl = platform.kubectl();
    let of = |object: &str, field: &str| -> Result<Value> {
        let (kind, name) = object.split_once('/').unwrap_or_default();
        Ok(kubectl.object(kind, name)?["status"]["encryption"][field].clone())
    };
    let pid =
        || -> Result<Value> { Ok(kubectl.object("vm", "encryption")?["status"]["process"]["pid"].clone()) };
    let (key, process) = (of("disk/encryption-data", "diskKeyID")?, pid()?);
    let mut variables = image.clone();
    variables["key_class"] = CLASSES[1].into();
    project.write("terraform.tfvars.json", &variables.to_string())?;
    let plan = project.plan()?;
    ensure!(plan.actions("berth_disk.data") == "update", "{}", plan.text);
    project.apply()?;
    project.plan_is_empty()?;
    let is_second = |object: &Value| object["status"]["encryption"]["keyClass"] == "default/encryption-2";
    for object in
        ["disk/encryption-data", "disk/encryption-root", "disk/encryption-copy", "dsnap/encryption-data-1"]
    {
        kubectl.until(object, "to have the second class", BOOT, is_second)?;
    }
    ensure!(of("disk/encryption-data", "generation")? == 2, "it was protected twice");
    ensure!(of("disk/encryption-data", "diskKeyID")? == key, "the key of the disk is the same");
    ensure!(pid()? == process, "it is the same QEMU");
    let users = |class: &Value| class["status"]["usedBy"].as_array().is_none_or(Vec::is_empty);
    kubectl.until("keyclass/encryption-1", "to have no users", BOOT, users)?;
    kubectl.ok(&["delete", "secret", CLASSES[0]]).map(drop)
}

/// The disk grows while its guest runs.
fn grown(platform: &Platform, project: &Project) -> Result<()> {
    project.edit("main.tf", "size       = \"1Gi\"", "size       = \"2Gi\"")?;
    project.apply()?;
    let is_larger = |disk: &Value| disk["status"]["size"] == "2Gi";
    platform.kubectl().until("disk/encryption-data", "to grow", BOOT, is_larger).map(drop)
}

/// A stopped VM waits for the key of its disks, and is started once it is back, with the data of the grown disk.
fn not_without_its_key(platform: &mut Platform, address: &str, sum_of: &str) -> Result<()> {
    let kubectl = platform.kubectl().clone();
    let power = |power: &str| {
        let patch = json!({"spec": {"power": power}}).to_string();
        kubectl.ok(&["patch", "vm", "encryption", "--type=merge", "-p", &patch])
    };
    power("Stopped")?;
    kubectl.until("vm/encryption", "to be stopped", BOOT, |vm| vm["status"]["state"] == "Stopped")?;
    kubectl.ok(&["delete", "secret", CLASSES[1]])?;
    // A host reads the key of a class once a minute, and when its agent starts: that has keys in memory only.
    platform.stop()?;
    platform.start()?;
    for disk in ["disk/encryption-data", "disk/encryption-root"] {
        kubectl.condition(disk, "EncryptionSynced=False", Some("WaitingForSecret"), BOOT)?;
    }
    power("Running")?;
    let waits = kubectl.condition("vm/encryption", "Ready=False", Some("WaitingForDisk"), BOOT)?;
    ensure!(waits["status"]["process"]["pid"].is_null(), "{:#}", waits["status"]);
    kubectl.ok(&[
        "create",
        "secret",
        "generic",
        CLASSES[1],
        &format!("--from-literal=key={}", key(CLASSES[1])),
    ])?;
    let found = wait::until("the guest to be up again", BOOT, || sum(platform, address, "encryption-data"))?;
    ensure!(found == sum_of, "its data is as it was");
    Ok(())
}
