//! `examples/backup` with the small guest: backups of a running guest's disk in a folder and in an S3 server, and disks that are made
//! from them; backups of both disks by a schedule; single files out of backups and a snapshot, from FAT, XFS, NTFS and a logical volume. Then
//! verifications, and the total loss of the site.

mod drill;
mod file_systems;

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Kit;
use super::console::administrator;
use super::kubectl::contains_all;
use super::snapshots::{declare, sum, write};
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::{NEIGHBOUR, Platform};
use crate::process::Daemon;
use crate::report::Report;
use crate::terraform::Project;
use crate::{wait, workspace};

/// A backup of 1 GiB, of which little is written, and a boot without KVM.
const SOON: Duration = Duration::from_secs(120);
/// A minute begins, the snapshot is taken, and its disks are backed up.
const NEXT_MINUTE: Duration = Duration::from_secs(150);
const S3_PORT: u16 = 7070;
const KEYS: [&str; 2] = ["berth-test", "berth-test-secret"];
const BUCKET: &str = "backups";

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("backup"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let s3_server = report.step("an S3 server is built from source", || kit.s3_server())?;
    let mut platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    example(report, &platform, &guest, &s3_server);
    let written = report.step("a guest writes to its disk, and both of its disks are backed up", || {
        drill::backed_up(&platform, &guest)
    })?;
    report.case("a backup is verified by reading it back, and a missing block is named", || {
        drill::verified(&platform)
    });
    report.case("after the total loss of the site, an empty machine has the VM with its data again", || {
        drill::lost_and_restored(&mut platform, &parts, &written)
    });
    Ok(())
}

fn example(report: &mut Report, platform: &Platform, guest: &GuestImage, s3_server: &Path) {
    report.case(
        "examples/backup: a disk made from a backup has its data, after the guest, its disk and its snapshots are gone",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/backup"))?;
            let url = platform.images().put("backup.qcow2", Content::File(guest.path.clone()));
            let variables = json!({"image_url": url, "image_sha256": guest.sha256, "schedule": "* * * * *"});
            project.write("terraform.tfvars.json", &variables.to_string())?;
            project.init()?;
            let s3 = S3::start(s3_server, platform)?;
            let done = backed_up(platform, &project);
            let other = done
                .and_then(|sums| in_s3(platform, &sums))
                .and_then(|()| by_a_schedule(platform))
                .and_then(|()| file_systems::read_back(platform));
            let delete = |kind| platform.kubectl().ok(&["delete", kind, "--all", "--timeout=60s"]);
            delete("snapsched")?;
            delete("backups").and(other)?;
            project.destroy()?;
            for kind in ["backuprepositories", "vmsnap", "dsnap"] {
                delete(kind)?;
            }
            nothing_is_left(&platform.host().backups(), &s3)
        },
    );
}

/// The checksums of what the guest wrote.
struct Sums {
    /// In the second backup.
    backed_up: String,
}

/// Two backups of the disk in a folder: the second one reads what has changed. The first one is deleted, and a disk made from the second.
fn backed_up(platform: &Platform, project: &Project) -> Result<Sums> {
    let kubectl = platform.kubectl();
    kubectl.ok(&[
        "create",
        "secret",
        "generic",
        "backup-password",
        "--from-literal=password=correct horse",
    ])?;
    let [restore, schedule] = [project.read("restore.tf")?, project.read("schedule.tf")?];
    project.write("restore.tf", "")?;
    project.write("schedule.tf", "")?;
    project.apply()?;
    project.plan_is_empty()?;
    let address = project.output("address")?;
    let first = kubectl.object("backup", "backup-data-1")?["status"].clone();
    ensure!(first["size"] == "1Gi" && first["completedAt"].is_string(), "{first:#}");
    ensure!(first["storedBytes"].as_i64().is_some_and(|bytes| bytes < 1 << 20), "an empty disk: {first:#}");
    let backed_up = write(platform, &address, "backup-data", 7)?;
    declare(platform, "DiskSnapshot", "backup-data-2", &json!({"disk": "backup-data"}))?;
    kubectl.condition("dsnap/backup-data-2", "Ready=True", None, SOON)?;
    let after = write(platform, &address, "backup-data", 8)?;
    ensure!(backed_up != after, "another pattern");
    declare(
        platform,
        "Backup",
        "backup-data-2",
        &json!({"repository": "backups", "snapshot": "backup-data-2"}),
    )?;
    let second = kubectl.condition("backup/backup-data-2", "Ready=True", None, SOON)?["status"].clone();
    ensure!(second["parentBackup"] == first["backupID"], "{second:#}");
    let read = second["readBytes"].as_i64().unwrap_or_default();
    ensure!((1..=64 << 20).contains(&read), "it reads what has changed: {second:#}");
    let listed = kubectl.ok(&["get", "brepo,bkp"])?;
    contains_all(&listed, &["backup-data-1", "backup-data-2", "nas", "True"])?;
    // Each is whole.
    project.edit("main.tf", "name       = \"backup-data-1\"", "name       = \"backup-data-3\"")?;
    project.write("restore.tf", &restore.replace("berth_backup.data.name", "\"backup-data-2\""))?;
    // Its first backups are made beside those in S3.
    project.write("schedule.tf", &schedule)?;
    project.apply()?;
    let restored = project.output("restored_address")?;
    let found = wait::until("the restored disk", SOON, || sum(platform, &restored, "backup-restored"))?;
    ensure!(found == backed_up, "it has the data of the backup");
    ensure!(sum(platform, &address, "backup-data")? == after, "the first disk is as it was");
    project.plan_is_empty()?;
    Ok(Sums { backed_up })
}

/// A backup in a real S3 server, which another site takes in by its identity. Another password does not open it.
fn in_s3(platform: &Platform, sums: &Sums) -> Result<()> {
    let kubectl = platform.kubectl();
    let [id, secret] = KEYS;
    kubectl.ok(&[
        "create",
        "secret",
        "generic",
        "s3-login",
        &format!("--from-literal=accessKeyID={id}"),
        &format!("--from-literal=secretAccessKey={secret}"),
    ])?;
    kubectl.ok(&[
        "create",
        "secret",
        "generic",
        "wrong-password",
        "--from-literal=password=battery staple",
    ])?;
    let repository = |password: &str| {
        json!({
            "s3": {"endpoint": format!("http://{NEIGHBOUR}:{S3_PORT}"), "bucket": BUCKET, "prefix": "berth/default"},
            "credentialsSecretName": "s3-login", "passwordSecretName": password,
        })
    };
    declare(platform, "BackupRepository", "s3", &repository("backup-password"))?;
    declare(
        platform,
        "Backup",
        "in-s3",
        &json!({"repository": "s3", "snapshot": "backup-data-2", "deletionPolicy": "Retain"}),
    )?;
    let made = kubectl.condition("backup/in-s3", "Ready=True", None, SOON)?["status"].clone();
    declare(platform, "BackupRepository", "wrong", &repository("wrong-password"))?;
    declare(platform, "Backup", "wrong", &json!({"repository": "wrong", "snapshot": "backup-data-2"}))?;
    kubectl.condition("backup/wrong", "Ready=False", Some("WrongPassword"), SOON)?;
    // The site forgets it, and takes it in again.
    let retain = json!({"spec": {"deletionPolicy": "Retain"}}).to_string();
    kubectl.ok(&["patch", "backup", "wrong", "--type=merge", "-p", &retain])?;
    kubectl.ok(&["delete", "backup", "in-s3", "wrong", "--timeout=60s"])?;
    let existing = format!(
        "{}/{}",
        made["volumeID"].as_str().unwrap_or_default(),
        made["backupID"].as_str().unwrap_or_default()
    );
    declare(platform, "Backup", "again", &json!({"repository": "s3", "existing": existing}))?;
    let again = kubectl.condition("backup/again", "Ready=True", None, SOON)?["status"].clone();
    ensure!(again["size"] == made["size"] && again["takenAt"] == made["takenAt"], "{again:#}");
    declare(platform, "Disk", "from-s3", &json!({"source": {"backup": "again"}}))?;
    declare(
        platform,
        "HotswapDiskAttachment",
        "from-s3",
        &json!({"vm": "backup-restored", "disk": "from-s3", "force": true}),
    )?;
    kubectl.condition("hda/from-s3", "Ready=True", None, SOON)?;
    let restored = kubectl.object("vm", "backup-restored")?["status"]["privateAddress"].clone();
    let found = wait::until("the disk from S3", SOON, || {
        sum(platform, restored.as_str().unwrap_or_default(), "from-s3")
    })?;
    ensure!(found == sums.backed_up, "it has the data of the backup");
    for object in ["hda/from-s3", "disk/from-s3"] {
        kubectl.ok(&["delete", object, "--timeout=60s"])?;
    }
    Ok(())
}

/// Both disks of the VM have been backed up since the schedule was declared.
fn by_a_schedule(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let both = |schedule: &Value| schedule["status"]["backups"].as_i64() >= Some(2);
    let schedule = kubectl.until("snapsched/backup", "to have backups", NEXT_MINUTE, both)?;
    ensure!(schedule["status"]["lastBackupTime"].is_string(), "{schedule:#}");
    let suspend = json!({"spec": {"suspend": true}}).to_string();
    kubectl.ok(&["patch", "snapsched", "backup", "--type=merge", "-p", &suspend])?;
    kubectl.condition("snapsched/backup", "Ready=True", Some("ScheduleSuspended"), SOON)?;
    for disk in ["backup-root", "backup-data"] {
        let selector = format!("berth.dev/snapshot-schedule=backup,berth.dev/disk={disk}");
        let listed: Value =
            serde_json::from_str(&kubectl.ok(&["get", "bkp", "-l", &selector, "-o", "json"])?)?;
        let backups = listed["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let complete = backups.iter().rfind(|backup| backup["status"]["completedAt"].is_string());
        ensure!(
            complete.is_some_and(|backup| backup["spec"]["repository"] == "backups"),
            "{disk}: {listed:#}"
        );
        if let Some(backup) = complete.filter(|_| disk == "backup-root") {
            single_files(platform, backup)?;
        }
    }
    Ok(())
}

/// Files of the boot partition, out of a backup and out of its snapshot. The other disk has no file system.
fn single_files(platform: &Platform, backup: &Value) -> Result<()> {
    let text = |value: &Value| value.as_str().map(str::to_owned).context("no name");
    let (name, snapshot) = (text(&backup["metadata"]["name"])?, text(&backup["spec"]["snapshot"])?);
    let folder = platform.folder().join("files");
    fs::create_dir_all(&folder)?;
    let berth = |arguments: &[&str]| administrator(platform).run(arguments);
    for (command, name) in [("disk-backup", &name), ("snapshot", &snapshot)] {
        let listed = berth(&[command, "ls", name])?;
        contains_all(&listed.stderr, &["partition 1: FAT"])?;
        contains_all(&listed.success()?, &["vmlinuz", "initramfs", "EFI"])?;
        let (file, all) = (folder.join(command), folder.join(format!("{command}-all")));
        let from = format!("{name}:/SYSLINUX.CFG");
        berth(&[command, "cp", &from, &file.display().to_string()])?.success()?;
        let menu = fs::read_to_string(&file)?;
        ensure!(menu.starts_with("DEFAULT guest\n") && menu.contains("rdinit=/init"), "{menu:?}");
        let again = berth(&[command, "cp", &from, &file.display().to_string()])?.failure()?;
        contains_all(&again, &["exists", "--force"])?;
        let from = format!("{name}:/EFI");
        berth(&[command, "cp", "-r", &from, &all.display().to_string()])?.success()?;
        let program = fs::read(all.join("BOOT/BOOTX64.EFI"))?;
        ensure!(program.starts_with(b"MZ") && program.len() > 1 << 20, "{} bytes", program.len());
        let missing = berth(&[command, "ls", name, "/none"])?.failure()?;
        contains_all(&missing, &["there is no /none"])?;
    }
    let unread = berth(&["snapshot", "ls", "backup-data-2"])?.failure()?;
    contains_all(&unread, &["nothing on the disk can be read", "berth snapshot download"])?;
    // The host may read the Secrets of the repository only meanwhile.
    let annotations = platform.kubectl().object("backup", &name)?["metadata"]["annotations"].clone();
    ensure!(annotations["berth.dev/read-until"].is_null(), "{annotations:#}");
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// An S3 server beside the host.
struct S3 {
    folder: PathBuf,
    _server: Daemon,
}

impl S3 {
    fn start(program: &Path, platform: &Platform) -> Result<Self> {
        let folder = platform.folder().join("s3");
        fs::create_dir_all(folder.join(BUCKET))?;
        let [id, secret] = KEYS;
        let mut command = platform.neighbour().command(program);
        command.args([
            "--access",
            id,
            "--secret",
            secret,
            "--port",
            &format!("{NEIGHBOUR}:{S3_PORT}"),
            "posix",
        ]);
        command.arg(&folder);
        let server = Daemon::spawn("versitygw", &mut command, &platform.folder().join("versitygw.log"))?;
        wait::until("the S3 server", SOON, || {
            platform.neighbour().inside(|| Ok(TcpStream::connect((NEIGHBOUR, S3_PORT)).map(drop)?))
        })?;
        Ok(Self { folder, _server: server })
    }
}

/// Blocks go with the last backup that has them. The description of a repository stays.
fn nothing_is_left(folder: &Path, s3: &S3) -> Result<()> {
    for place in [folder, &s3.folder] {
        wait::until("the blocks to be deleted", SOON, || {
            let files = files_below(place)?;
            let blocks: Vec<_> =
                files.iter().filter(|file| file.to_string_lossy().contains("/blocks/")).collect();
            ensure!(blocks.is_empty(), "{blocks:?}");
            ensure!(files.iter().any(|file| file.ends_with("repository.json")), "{files:?}");
            Ok(())
        })?;
    }
    Ok(())
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)?.flatten() {
        match entry.file_type()?.is_dir() {
            true => files.extend(files_below(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    Ok(files)
}
