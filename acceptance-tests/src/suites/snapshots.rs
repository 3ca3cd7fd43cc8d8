//! `examples/snapshots` with the small guest: a snapshot of a running guest's disk has the data of its moment, and so has a copy in
//! another guest. All disks of the guest are restored in place from a snapshot of one moment, and with its memory the guest goes on there.
//! The files of destroyed snapshots are merged.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::console::administrator;
use super::kubectl::contains_all;
use super::lifecycle::{guest_disk, page, serial_of};
use crate::guests::GuestImage;
use crate::http::field;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::{Project, unwrapped};
use crate::{wait, workspace};

/// A guest boots.
const BOOT: Duration = Duration::from_secs(120);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/snapshots: a copy of a snapshot has the data from before, in a guest beside the first",
        || {
            let project = platform.project()?;
            let example = workspace::root().join("examples/snapshots");
            project.copy_from(&example)?;
            let later =
                ["snapshot.tf", "vm-snapshot.tf", "vm-copy.tf"].map(|name| (name, project.read(name)));
            for (name, _) in &later {
                project.write(name, "")?;
            }
            let url = platform.images().put("snapshots.qcow2", Content::File(guest.path.clone()));
            let image = json!({"image_url": url, "image_sha256": guest.sha256});
            project.write("terraform.tfvars.json", &image.to_string())?;
            project.init()?;
            project.apply()?;
            let held = copied(platform, &project, later, &image);
            project.destroy()?;
            held
        },
    );
}

fn copied(
    platform: &Platform,
    project: &Project,
    later: [(&str, Result<String>); 3],
    image: &Value,
) -> Result<()> {
    let first = project.output("address")?;
    let before = write(platform, &first, "snapshots-data", 7)?;
    let log = write(platform, &first, "snapshots-log", 17)?;
    let pid = platform.kubectl().object("vm", "snapshots")?["status"]["process"]["pid"].clone();
    // The guests of both copies boot together.
    for (name, text) in later {
        project.write(name, &text?)?;
    }
    project.apply()?;
    project.plan_is_empty()?;
    are_of_one_moment(platform, project)?;
    let taken = platform.kubectl().object("dsnap", "snapshots-data-1")?["status"].clone();
    ensure!(taken["size"] == "1Gi" && taken["takenAt"] == project.output("taken_at")?, "{taken}");
    ensure!(taken["consistency"] == "Crash", "the small guest has no agent: {taken}");
    // The guest goes on, on its new file.
    let after = write(platform, &first, "snapshots-data", 8)?;
    ensure!(before != after, "another pattern");
    write(platform, &first, "snapshots-log", 18)?;
    let now = platform.kubectl().object("vm", "snapshots")?["status"]["process"]["pid"].clone();
    ensure!(now == pid, "it is the same QEMU: {pid} {now}");
    let copy = project.output("copy_address")?;
    ensure!(sum(platform, &copy, "snapshots-copy")? == before, "the copy has the data from before");
    runs_beside_the_first(platform, project, [&first, &before])?;
    // The next apply takes it away.
    project.write("vm-copy.tf", "")?;
    // Each is written without the other.
    let own = write(platform, &copy, "snapshots-copy", 9)?;
    ensure!(sum(platform, &first, "snapshots-data")? == after, "the first disk is as it was");
    grown_and_started_again(platform, project, &first, &after)?;
    let moment = snapshot_with_memory(platform, &first)?;
    restored(platform, project, &first, image, [&before, &moment.later])?;
    ensure!(sum(platform, &first, "snapshots-log")? == log, "the other disk has the data of that moment too");
    merged(platform, &first)?;
    goes_on_with_its_memory(platform, project, &first, image, &moment)?;
    without_the_snapshot(platform, project, &copy, &own)
}

/// The VM of the snapshot runs beside the first one: with its UUID and the data of that moment, and with an instance of its own.
fn runs_beside_the_first(platform: &Platform, project: &Project, [first, data]: [&str; 2]) -> Result<()> {
    let copy = project.output("vm_copy_address")?;
    ensure!(sum(platform, &copy, "snapshots-vm-copy-data")? == data, "it has the data of that moment");
    let uuid = |guest: &str| -> Result<String> {
        Ok(field(&page(platform, guest, "/cgi-bin/uptime")?, "uuid")?.to_ascii_lowercase())
    };
    ensure!(uuid(first)? == uuid(&copy)?, "{} and {}", uuid(first)?, uuid(&copy)?);
    let status =
        |name: &str| -> Result<Value> { Ok(platform.kubectl().object("vm", name)?["status"].clone()) };
    let (first, copy) = (status("snapshots")?, status("snapshots-vm-copy")?);
    ensure!(first["instanceID"] != copy["instanceID"], "{copy:#}");
    let origins = |status: &Value| -> Vec<Value> {
        status["disks"].as_array().into_iter().flatten().map(|disk| disk["origin"].clone()).collect()
    };
    ensure!(origins(&first) == ["Image", "Blank", "Blank"], "{first:#}");
    ensure!(origins(&copy) == ["Snapshot", "Snapshot", "Snapshot"], "{copy:#}");
    Ok(())
}

/// The snapshot of the VM has all its disks, at one moment.
fn are_of_one_moment(platform: &Platform, project: &Project) -> Result<()> {
    let kubectl = platform.kubectl();
    let whole = kubectl.object("vmsnap", "snapshots-all")?["status"].clone();
    ensure!(whole["consistency"] == "Crash", "the small guest has no agent: {whole}");
    for (place, disk) in ["snapshots-root", "snapshots-data", "snapshots-log"].into_iter().enumerate() {
        let name = format!("snapshots-all-{place}");
        ensure!(whole["disks"][place] == json!({"disk": disk, "snapshot": name}), "{whole}");
        let part = kubectl.object("dsnap", &name)?;
        ensure!(part["status"]["takenAt"] == whole["takenAt"] && whole["takenAt"].is_string(), "{part:#}");
    }
    let listed = kubectl.ok(&["get", "vmsnap", "--field-selector=spec.vm=snapshots"])?;
    contains_all(&listed, &["snapshots-all", "snapshots", "True"])?;
    let names = project.attributes("berth_vm_snapshot.server")?["snapshots"].clone();
    ensure!(names["snapshots-data"] == "snapshots-all-1", "{names}");
    let other = json!({"spec": {"vm": "other"}}).to_string();
    let refused = kubectl.refused(&["patch", "vmsnap", "snapshots-all", "--type=merge", "-p", &other])?;
    contains_all(&refused, &["vm cannot change"])
}

/// The disk grows in its new file, and its VM starts on all of them.
fn grown_and_started_again(platform: &Platform, project: &Project, first: &str, sum_of: &str) -> Result<()> {
    project.edit("main.tf", r#"size = "1Gi""#, r#"size = "2Gi""#)?;
    project.apply()?;
    let serial = serial_of(platform, "snapshots-data")?;
    wait::until("the new size", BOOT, || {
        let disk = guest_disk(platform, first, &serial)?;
        ensure!(disk.size == 2 << 30, "{disk:?}");
        Ok(())
    })?;
    let memory = "  memory = \"512Mi\"\n";
    project.edit(
        "main.tf",
        memory,
        &format!("{memory}  restart_token = \"again\"\n  stop = {{ mode = \"Hard\" }}\n"),
    )?;
    project.apply()?;
    let again = |vm: &Value| vm["status"]["restartToken"] == "again";
    platform.kubectl().until("vm/snapshots", "to be restarted", BOOT, again)?;
    let found = wait::until("the guest to be up again", BOOT, || sum(platform, first, "snapshots-data"))?;
    ensure!(found == sum_of, "it has what was written after the snapshot");
    Ok(())
}

/// The disks get the data of the VM's snapshot back when the VM is restarted, and nothing else of it changes. `sums` are those of the
/// first data disk, in the snapshot and after it.
fn restored(
    platform: &Platform,
    project: &Project,
    first: &str,
    image: &Value,
    sums: [&str; 2],
) -> Result<()> {
    let kubectl = platform.kubectl();
    let declare = |allow_reboot: bool| {
        let mut variables = image.clone();
        variables["restore"] = "snapshots-all".into();
        variables["allow_reboot"] = allow_reboot.into();
        project.write("terraform.tfvars.json", &variables.to_string())
    };
    let same = || -> Result<Vec<Value>> {
        let (vm, disk) = (kubectl.object("vm", "snapshots")?, kubectl.object("disk", "snapshots-data")?);
        let (vm_status, disk_status) = (&vm["status"], &disk["status"]);
        let parts = [&vm_status["hardware"]["uuid"], &vm_status["privateAddress"], &disk_status["serial"]];
        Ok(parts.into_iter().chain([&vm["metadata"]["uid"], &disk["metadata"]["uid"]]).cloned().collect())
    };
    let identity = same()?;
    declare(false)?;
    let planned = unwrapped(&project.plan()?.text);
    contains_all(&planned, &["The data of the VM will be replaced", "allow_reboot = true"])?;
    project.apply()?;
    let waiting =
        kubectl.condition("vm/snapshots", "RestoreSynced=False", Some("PowerCycleNeeded"), BOOT)?["status"]
            .clone();
    ensure!(
        waiting["restoredFrom"].is_null() && waiting["snapshots"][0]["name"] == "snapshots-all",
        "{waiting:#}"
    );
    ensure!(sum(platform, first, "snapshots-data")? == sums[1], "the guest has its data");
    declare(true)?;
    let planned = unwrapped(&project.plan()?.text);
    contains_all(&planned, &["The VM will be restarted", "restore"])?;
    project.apply()?;
    let is_restored = |vm: &Value| vm["status"]["restoredFrom"]["snapshot"] == "snapshots-all";
    kubectl.until("vm/snapshots", "to be restored", BOOT, is_restored)?;
    let disk = kubectl.object("disk", "snapshots-data")?["status"]["restoredFrom"].clone();
    ensure!(disk["snapshot"] == "snapshots-all-1", "{disk:#}");
    let found = wait::until("the guest to be up again", BOOT, || sum(platform, first, "snapshots-data"))?;
    ensure!(found == sums[0], "it has the data of the snapshot");
    ensure!(same()? == identity, "{identity:?}, and now {:?}", same()?);
    let serial = serial_of(platform, "snapshots-data")?;
    let disk = guest_disk(platform, first, &serial)?;
    ensure!(disk.size == 2 << 30, "the snapshot was taken of a smaller disk: {disk:?}");
    project.plan_is_empty()?;
    // The data from before.
    let undelete = ["undelete", "snapshots-data", "--as", "snapshots-before"];
    let undelete = || administrator(platform).run(&undelete)?.success();
    wait::until("undelete", BOOT, undelete)?;
    let former = kubectl.condition("disk/snapshots-before", "Ready=True", None, BOOT)?;
    ensure!(former["status"]["size"] == "2Gi", "{former:#}");
    kubectl.ok(&["delete", "disk", "snapshots-before", "--timeout=60s"]).map(drop)
}

/// The moment of a snapshot with memory.
struct Moment {
    boot: String,
    /// The checksum of the data disk then, and after what was written later.
    data: String,
    later: String,
}

/// Takes a snapshot with memory, after which the guest goes on.
fn snapshot_with_memory(platform: &Platform, guest: &str) -> Result<Moment> {
    let kubectl = platform.kubectl();
    let process = || -> Result<Value> { Ok(kubectl.object("vm", "snapshots")?["status"]["process"].clone()) };
    ensure!(memory_files(platform)? == 2, "the snapshot of the example has a state and a note");
    let (boot, qemu) = (boot_of(platform, guest)?, process()?);
    let data = write(platform, guest, "snapshots-data", 41)?;
    declare(platform, "VMSnapshot", "snapshots-memory", &json!({"vm": "snapshots", "memory": true}))?;
    let taken = kubectl.condition("vmsnap/snapshots-memory", "Ready=True", None, BOOT)?["status"].clone();
    ensure!(taken["consistency"] == "Crash" && memory_files(platform)? == 4, "{taken:#}");
    wait::until("the guest to go on", BOOT, || {
        ensure!(boot_of(platform, guest)? == boot, "it has booted");
        Ok(())
    })?;
    ensure!(process()? == qemu, "it is the same QEMU");
    let later = write(platform, guest, "snapshots-data", 42)?;
    Ok(Moment { boot, data, later })
}

/// The guest, which has booted again, goes on at the moment of the snapshot with memory: in the boot and with the data of that moment.
fn goes_on_with_its_memory(
    platform: &Platform,
    project: &Project,
    guest: &str,
    image: &Value,
    moment: &Moment,
) -> Result<()> {
    let kubectl = platform.kubectl();
    ensure!(boot_of(platform, guest)? != moment.boot, "it has not booted since");
    let mut variables = image.clone();
    variables["restore"] = "snapshots-memory".into();
    variables["allow_reboot"] = true.into();
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.apply()?;
    let is_restored = |vm: &Value| vm["status"]["restoredFrom"]["snapshot"] == "snapshots-memory";
    kubectl.until("vm/snapshots", "to be restored", BOOT, is_restored)?;
    wait::until("the guest of that moment", BOOT, || {
        ensure!(boot_of(platform, guest)? == moment.boot, "another boot");
        Ok(())
    })?;
    ensure!(sum(platform, guest, "snapshots-data")? == moment.data, "it has the data of that moment");
    kubectl.ok(&["delete", "vmsnap", "snapshots-memory"])?;
    wait::until("the memory to be deleted with its snapshot", BOOT, || {
        let files = memory_files(platform)?;
        ensure!(files == 2, "{files} files");
        Ok(())
    })
}

fn boot_of(platform: &Platform, guest: &str) -> Result<String> {
    Ok(field(&page(platform, guest, "/cgi-bin/uptime")?, "boot_id")?.to_owned())
}

/// The number of files of kept memory.
fn memory_files(platform: &Platform) -> Result<usize> {
    Ok(std::fs::read_dir(platform.host().state().join("memory"))?.count())
}

/// Of snapshots that were taken and destroyed no file is left, nor is one open in the QEMU of the guest, and all data is as it was.
fn merged(platform: &Platform, guest: &str) -> Result<()> {
    let kubectl = platform.kubectl();
    let pid =
        || -> Result<Value> { Ok(kubectl.object("vm", "snapshots")?["status"]["process"]["pid"].clone()) };
    let qemu = pid()?;
    let pool = platform.host().state().join("pools/default");
    let files = || -> Result<[usize; 2]> {
        let open = open_files(&qemu, &pool)?;
        ensure!(!open.iter().any(|file| file.ends_with("(deleted)")), "open: {open:?}");
        Ok([std::fs::read_dir(pool.join("snapshots"))?.count() / 2, open.len()])
    };
    let before = files()?;
    let mut written = String::new();
    let name = |number: u8| format!("snapshots-merged-{number}");
    for number in 1..=4 {
        declare(platform, "DiskSnapshot", &name(number), &json!({"disk": "snapshots-log"}))?;
        kubectl.condition(&format!("dsnap/{}", name(number)), "Ready=True", None, BOOT)?;
        written = write(platform, guest, "snapshots-log", 20 + number)?;
    }
    for number in 1..=3 {
        kubectl.ok(&["delete", "dsnap", &name(number)])?;
    }
    wait::until("the files of three snapshots to be merged", BOOT, || {
        let now = files()?;
        ensure!(now == before.map(|count| count + 1), "{before:?}, and now {now:?}");
        Ok(())
    })?;
    ensure!(pid()? == qemu, "it is the same QEMU");
    ensure!(sum(platform, guest, "snapshots-log")? == written, "the guest reads what it has written");
    kubectl.ok(&["delete", "dsnap", &name(4)]).map(drop)
}

pub fn declare(platform: &Platform, kind: &str, name: &str, spec: &Value) -> Result<()> {
    let object =
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    platform.kubectl().apply(&object.to_string()).map(drop)
}

/// Returns the files of a pool that a process has open.
fn open_files(pid: &Value, pool: &Path) -> Result<Vec<String>> {
    let mut open = Vec::new();
    for descriptor in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        // One may be closed meanwhile.
        let Ok(file) = std::fs::read_link(descriptor?.path()) else { continue };
        if file.starts_with(pool) {
            open.push(file.display().to_string());
        }
    }
    Ok(open)
}

/// The snapshot is destroyed while both guests use disks that are based on it.
fn without_the_snapshot(platform: &Platform, project: &Project, copy: &str, sum_of: &str) -> Result<()> {
    let kubectl = platform.kubectl();
    kubectl.ok(&["delete", "dsnap", "snapshots-data-1"])?;
    ensure!(sum(platform, copy, "snapshots-copy")? == sum_of, "the copy is as it was");
    let refused = json!({"spec": {"source": {"snapshot": "other"}}}).to_string();
    let refused = kubectl.refused(&["patch", "disk", "snapshots-copy", "--type=merge", "-p", &refused])?;
    contains_all(&refused, &["source cannot change"])?;
    // It is missing now, and another one is taken.
    project.apply().map(drop)
}

/// Has the guest write a pattern to one of its disks; returns the checksum.
pub fn write(platform: &Platform, guest: &str, disk: &str, seed: u8) -> Result<String> {
    let serial = serial_of(platform, disk)?;
    let device = wait::until("the disk in the guest", BOOT, || guest_disk(platform, guest, &serial))?;
    let wrote = page(platform, guest, &format!("/cgi-bin/write?dev={}&seed={seed}", device.name))?;
    let sum = field(&wrote, "sha256").with_context(|| wrote.clone())?;
    Ok(sum.to_owned())
}

/// Returns the checksum of what a guest reads from one of its disks.
pub fn sum(platform: &Platform, guest: &str, disk: &str) -> Result<String> {
    let serial = serial_of(platform, disk)?;
    let device = wait::until("the disk in the guest", BOOT, || guest_disk(platform, guest, &serial))?;
    let read = page(platform, guest, &format!("/cgi-bin/sum?dev={}", device.name))?;
    Ok(field(&read, "sha256")?.to_owned())
}
