//! `berth import ova`: an appliance with the small guest, as VMware packs one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::guests::GuestImage;
use crate::platform::{Parts, Platform};
use crate::process::{self, Finished};
use crate::report::Report;
use crate::scratch::Scratch;
use crate::suites::kubectl::contains_all;
use crate::terraform::Project;

const LIMIT: Duration = Duration::from_secs(120);
const BOOT: Duration = Duration::from_secs(180);
const DISK: &str = "box-disk1.vmdk";
const FILES: [&str; 3] = ["box.ovf", "box.mf", DISK];

pub(super) fn run(report: &mut Report, platform: &Platform, parts: &Parts, guest: &GuestImage) {
    report.case(
        "an OVA is verified, its disk uploaded and converted, and its guest boots; a changed OVA is refused",
        || imported(platform, &parts.binaries.berth, guest),
    );
}

fn imported(platform: &Platform, berth: &Path, guest: &GuestImage) -> Result<()> {
    let folder = Scratch::new()?;
    let ova = packed(folder.path(), guest)?;
    let project = platform.project()?;
    let output = import(berth, &ova, &project)?;
    contains_all(
        &output.stderr,
        &["a CD-ROM drive (CD-ROM 1)", "VmxNet3; in berth it is virtio", "its network (VM Network)"],
    )?;
    contains_all(&output.success()?, &["1 VMs", "uploads their 1 images"])?;
    let text = project.read("main.tf")?;
    contains_all(&text, &["file   = \"${path.module}/box-disk1.vmdk\"", "format = \"vmdk\""])?;
    project.init()?;
    project.run(&["fmt", "-check", "-diff", "-no-color"])?.success().context("terraform fmt changes it")?;
    project.apply()?;
    platform.kubectl().condition("vm/box", "GuestReady=True", None, BOOT)?;
    project.plan_is_empty()?;
    let again = import(berth, &ova, &project)?;
    ensure!(!again.status.success() && again.stderr.contains("main.tf exists"), "{}", again.stderr);
    project.destroy()?;
    // The manifest is that of the disk as it was.
    let disk = folder.path().join(DISK);
    let mut bytes = fs::read(&disk).context("the disk")?;
    let last = bytes.last_mut().context("the disk is empty")?;
    *last ^= 1;
    fs::write(&disk, bytes).context("changing the disk")?;
    tar(folder.path())?;
    let other = platform.project()?;
    let refused = import(berth, &ova, &other)?.failure()?;
    contains_all(&refused, &["its SHA-256 is another one than in the manifest"])?;
    let left = ["main.tf", DISK].into_iter().find(|name| other.folder().join(name).exists());
    ensure!(left.is_none(), "a refused import leaves {left:?}");
    Ok(())
}

fn import(berth: &Path, ova: &Path, project: &Project) -> Result<Finished> {
    let mut command = Command::new(berth);
    command.args(["import", "ova"]).arg(ova).arg("--out").arg(project.folder());
    process::run(&mut command, LIMIT)
}

/// Makes the appliance in the folder.
fn packed(folder: &Path, guest: &GuestImage) -> Result<PathBuf> {
    let mut info = Command::new("qemu-img");
    info.args(["info", "--output=json"]).arg(&guest.path);
    let info: Value = serde_json::from_str(&process::run(&mut info, LIMIT)?.success()?)?;
    let capacity = info["virtual-size"].as_u64().context("the image has no size")?;
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "qcow2", "-O", "vmdk", "-o", "subformat=streamOptimized"]);
    convert.arg(&guest.path).arg(folder.join(DISK));
    process::run(&mut convert, LIMIT)?.success()?;
    let size = fs::metadata(folder.join(DISK)).context("the disk")?.len();
    fs::write(folder.join("box.ovf"), descriptor(capacity, size)).context("the descriptor")?;
    // The form of BSD is that of a manifest.
    let mut sum = Command::new("sha256sum");
    sum.args(["--tag", "box.ovf", DISK]).current_dir(folder);
    fs::write(folder.join("box.mf"), process::run(&mut sum, LIMIT)?.success()?).context("the manifest")?;
    tar(folder)
}

fn tar(folder: &Path) -> Result<PathBuf> {
    let mut tar = Command::new("tar");
    tar.args(["--format=ustar", "-cf", "box.ova"]).args(FILES).current_dir(folder);
    process::run(&mut tar, LIMIT)?.success()?;
    Ok(folder.join("box.ova"))
}

fn descriptor(capacity: u64, size: u64) -> String {
    let item =
        |kind: u32, more: &str| format!("<Item>{more}<rasd:ResourceType>{kind}</rasd:ResourceType></Item>");
    let items = [
        item(3, "<rasd:InstanceID>1</rasd:InstanceID><rasd:VirtualQuantity>1</rasd:VirtualQuantity>"),
        item(
            4,
            "<rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits><rasd:VirtualQuantity>128</rasd:VirtualQuantity>",
        ),
        item(
            6,
            "<rasd:InstanceID>3</rasd:InstanceID><rasd:ResourceSubType>VirtualSCSI</rasd:ResourceSubType>",
        ),
        item(15, "<rasd:ElementName>CD-ROM 1</rasd:ElementName>"),
        item(17, "<rasd:HostResource>ovf:/disk/vmdisk1</rasd:HostResource><rasd:Parent>3</rasd:Parent>"),
        item(
            10,
            "<rasd:Connection>VM Network</rasd:Connection><rasd:ResourceSubType>VmxNet3</rasd:ResourceSubType>",
        ),
    ];
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<Envelope xmlns=\"http://schemas.dmtf.org/ovf/envelope/1\" xmlns:ovf=\"http://schemas.dmtf.org/ovf/envelope/1\"
  xmlns:rasd=\"http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData\">
  <References><File ovf:href=\"{DISK}\" ovf:id=\"file1\" ovf:size=\"{size}\"/></References>
  <DiskSection><Info>Disks</Info><Disk ovf:capacity=\"{capacity}\" ovf:capacityAllocationUnits=\"byte\"
    ovf:diskId=\"vmdisk1\" ovf:fileRef=\"file1\"
    ovf:format=\"http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized\"/></DiskSection>
  <VirtualSystem ovf:id=\"box\"><Info>A guest</Info><Name>box</Name><VirtualHardwareSection>{}</VirtualHardwareSection>
  </VirtualSystem>
</Envelope>
",
        items.concat()
    )
}
