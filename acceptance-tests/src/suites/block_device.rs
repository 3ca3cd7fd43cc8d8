//! `examples/block-device` with the small guest: a disk that is a loop device of the host.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kubectl::contains_all;
use super::snapshots::{sum, write};
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{wait, workspace};

const SOON: Duration = Duration::from_secs(60);
/// A host looks at its devices every minute.
const LOOKS: Duration = Duration::from_secs(150);
const SIZE: u64 = 64 << 20;
const DISK: &str = "device-data";
/// Opens a block device as a mount does.
const EXCLUSIVE: i32 = 0o200;

/// A loop device, which is given back.
struct Loop(PathBuf);

impl Loop {
    fn new(file: &Path) -> Result<Self> {
        File::create(file)?.set_len(SIZE)?;
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr).trim());
        Ok(Self(String::from_utf8(made.stdout)?.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

pub fn example(report: &mut Report, platform: &mut Platform, guest: &GuestImage) {
    let fact = "examples/block-device: a guest has a block device of its host, which stays as it is when the disk is destroyed; none that \
                the host uses itself";
    let file = platform.folder().join("block-device");
    let device = match Loop::new(&file) {
        Ok(device) => device,
        Err(error) => return report.skip(fact, &format!("this machine has no loop device: {error:#}")),
    };
    report.case(fact, || {
        platform.stop()?;
        platform.host_mut().offer_block_device("spare", &device.0);
        platform.start()?;
        let project = platform.project()?;
        project.copy_from(&workspace::root().join("examples/block-device"))?;
        let url = platform.images().put("block-device.qcow2", Content::File(guest.path.clone()));
        let variables = json!({"image_url": url, "image_sha256": guest.sha256});
        project.write("terraform.tfvars.json", &variables.to_string())?;
        project.init()?;
        let done = used(platform, &project);
        project.destroy()?;
        done?;
        given_up(platform, &file, &device.0)
    });
}

/// The block device as its host reports it.
fn offered(platform: &Platform) -> Result<Value> {
    let all = platform.kubectl().ok(&["get", "hosts", "-o", "jsonpath={.items[0].status.blockDevices}"])?;
    let all: Value = serde_json::from_str(&all).with_context(|| format!("no block devices: {all:?}"))?;
    Ok(all[0].clone())
}

fn used(platform: &Platform, project: &Project) -> Result<()> {
    let kubectl = platform.kubectl();
    project.apply()?;
    project.plan_is_empty()?;
    let disk = kubectl.object("disk", DISK)?;
    ensure!(disk["status"]["size"] == "64Mi", "{disk}");
    let address = project.output("address")?;
    let wrote = write(platform, &address, DISK, 41)?;
    let read = sum(platform, &address, DISK)?;
    ensure!(wrote == read, "it wrote {wrote}, and read {read}");
    wait::until("the host to report whose device it is", LOOKS, || {
        let device = offered(platform)?;
        ensure!(device["disk"] == format!("default/{DISK}") && device["size"] == "64Mi", "{device}");
        Ok(())
    })?;
    let snapshot = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "DiskSnapshot",
        "metadata": {"name": "device-snapshot"}, "spec": {"disk": DISK}});
    kubectl.apply(&snapshot.to_string())?;
    let waits =
        kubectl.condition("disksnapshot/device-snapshot", "Ready=False", Some("NotSupported"), SOON)?;
    contains_all(&waits["status"]["conditions"].to_string(), &["block device"])?;
    kubectl.ok(&["delete", "disksnapshot", "device-snapshot", "--timeout=60s"]).map(drop)
}

/// Its data is there, it is root's again, and it is not offered while the host uses it.
fn given_up(platform: &Platform, file: &Path, device: &Path) -> Result<()> {
    let data = fs::read(file)?;
    ensure!(data.iter().any(|byte| *byte != 0), "the data of the guest is gone");
    let owner = fs::metadata(device)?.uid();
    ensure!(owner == 0, "user {owner} owns {}", device.display());
    let exclusive = OpenOptions::new().read(true).custom_flags(EXCLUSIVE).open(device)?;
    wait::until("the host to report that it uses the device", LOOKS, || {
        let device = offered(platform)?;
        let problem = device["problem"].as_str().unwrap_or_default();
        ensure!(device["disk"].is_null() && problem.contains("the host uses"), "{device}");
        Ok(())
    })?;
    drop(exclusive);
    Ok(())
}
