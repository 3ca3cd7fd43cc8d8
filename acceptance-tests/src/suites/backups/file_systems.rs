//! Single files out of file systems that the small guest does not have: XFS, NTFS, and ext4 in a logical volume of LVM.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::SOON;
use crate::guests::GuestImage;
use crate::guests::disk_image::{self, Partition, PartitionKind};
use crate::image_server::Content;
use crate::platform::Platform;
use crate::suites::console::administrator;
use crate::suites::kubectl::contains_all;
use crate::suites::snapshots::declare;
use crate::{prerequisites, process};

/// The name of the objects.
const NAME: &str = "file-systems";
const MIB: u64 = 1 << 20;
/// The starts and the lengths of the partitions: XFS, NTFS, and a physical volume.
const PARTS: [(u64, u64); 3] = [(MIB, 64 * MIB), (65 * MIB, 16 * MIB), (81 * MIB, 24 * MIB)];
const DISK: u64 = 107 * MIB;
/// The size of an extent, and the number of extents in each of the two segments of the logical volume.
const EXTENT: u64 = 4 * MIB;
const HALF: u64 = 2;

/// Files are read byte for byte out of a backup of a disk with these file systems.
pub(super) fn read_back(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let folder = platform.folder().join(NAME);
    fs::create_dir_all(&folder)?;
    let content: Vec<u8> = (0..300_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let image = GuestImage::at(made(&folder, &content)?)?;
    let url = platform.images().put("file-systems.qcow2", Content::File(image.path.clone()));
    declare(platform, "Image", NAME, &json!({"source": {"url": url, "sha256": image.sha256}}))?;
    declare(platform, "Disk", NAME, &json!({"image": NAME}))?;
    let attachment = json!({"vm": "backup-restored", "disk": NAME, "force": true});
    declare(platform, "HotswapDiskAttachment", NAME, &attachment)?;
    kubectl.condition(&format!("hda/{NAME}"), "Ready=True", None, SOON)?;
    declare(platform, "DiskSnapshot", NAME, &json!({"disk": NAME}))?;
    kubectl.condition(&format!("dsnap/{NAME}"), "Ready=True", None, SOON)?;
    declare(platform, "Backup", NAME, &json!({"repository": "backups", "snapshot": NAME}))?;
    kubectl.condition(&format!("backup/{NAME}"), "Ready=True", None, SOON)?;
    let berth = |arguments: &[&str]| administrator(platform).run(arguments);
    let all = "partition 1 (XFS), partition 2 (NTFS), partition 3 (a physical volume of LVM), logical volume rhel/root (ext4)";
    for (option, value, parent, place) in [
        ("--partition", "1", "/etc", "partition 1: XFS"),
        ("--partition", "2", "/", "partition 2: NTFS"),
        ("--volume", "rhel/root", "/", "logical volume rhel/root: ext4"),
    ] {
        let listed = berth(&["disk-backup", "ls", NAME, parent, option, value])?;
        contains_all(&listed.stderr, &[place, all])?;
        contains_all(&listed.success()?, &["300000", "data.bin"])?;
        let to = folder.join(place.replace(['/', ':', ' '], "-"));
        let from = format!("{NAME}:{}/data.bin", parent.trim_end_matches('/'));
        berth(&["disk-backup", "cp", &from, &to.display().to_string(), option, value])?.success()?;
        ensure!(fs::read(&to)? == content, "{place}: other data");
    }
    let physical = berth(&["disk-backup", "ls", NAME, "--partition", "3"])?.failure()?;
    contains_all(&physical, &["is a physical volume of LVM", "logical volume rhel/root"])?;
    let missing = berth(&["disk-backup", "ls", NAME, "--volume", "rhel/swap"])?.failure()?;
    contains_all(&missing, &["the disk has no logical volume rhel/swap", all])?;
    for kind in ["hda", "backup", "dsnap", "disk", "image"] {
        kubectl.ok(&["delete", kind, NAME, "--timeout=60s"])?;
    }
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Makes the disk, as a compressed image.
fn made(folder: &Path, content: &[u8]) -> Result<PathBuf> {
    let at = |name: &str| folder.join(name);
    let disk = at("disk.raw");
    File::create(&disk)?.set_len(DISK)?;
    let partition = |(start, length)| Partition { kind: PartitionKind::Root, start, length };
    disk_image::write_gpt(&disk, &PARTS.map(partition))?;
    fs::create_dir_all(at("root"))?;
    let data = at("root/data.bin");
    fs::write(&data, content)?;
    make_xfs(folder, &data, &at("xfs"))?;
    make_ntfs(&data, &at("ntfs"))?;
    let [(xfs, _), (ntfs, _), (physical, length)] = PARTS;
    disk_image::place(&disk, xfs, &at("xfs"))?;
    disk_image::place(&disk, ntfs, &at("ntfs"))?;
    disk_image::make_ext4(&at("root"), "root", 2 * HALF * EXTENT, &at("ext4"))?;
    let file = File::options().write(true).open(&disk)?;
    write_physical_volume(&file, physical, length, &fs::read(at("ext4"))?)?;
    let image = at("disk.qcow2");
    disk_image::compress(&disk, &image)?;
    Ok(image)
}

fn program(name: &str) -> Result<Command> {
    Ok(Command::new(prerequisites::command(name).with_context(|| format!("there is no {name}"))?))
}

fn run(command: &mut Command) -> Result<()> {
    process::run(command, Duration::from_secs(60))?.success().map(drop)
}

fn make_xfs(folder: &Path, data: &Path, to: &Path) -> Result<()> {
    let list = folder.join("list");
    let data = data.display();
    fs::write(&list, format!("/\n0 0\nd--755 0 0\netc d--755 0 0\ndata.bin ---644 0 0 {data}\n$\n$\n"))?;
    File::create(to)?.set_len(PARTS[0].1)?;
    // A file system this small is one for tests.
    let mut make = program("mkfs.xfs")?;
    make.envs(["TEST_DIR", "TEST_DEV", "QA_CHECK_FS"].map(|name| (name, "1")));
    run(make.args(["-q", "-f", "-p"]).arg(list).arg(to))
}

fn make_ntfs(data: &Path, to: &Path) -> Result<()> {
    File::create(to)?.set_len(PARTS[1].1)?;
    run(program("mkntfs")?.args(["-F", "-q", "-Q"]).arg(to))?;
    run(program("ntfscp")?.args(["-f", "-q"]).arg(to).arg(data).arg("data.bin"))
}

/// Writes a physical volume as `vgcreate` and `lvcreate` do. The second half of the logical volume is before the first one.
fn write_physical_volume(disk: &File, start: u64, length: u64, data: &[u8]) -> Result<()> {
    const AREA: u64 = 4096;
    const SECTOR: usize = 512;
    let extents = start + MIB;
    let (first, second) = data.split_at(usize::try_from(HALF * EXTENT)?);
    disk.write_all_at(first, extents + HALF * EXTENT)?;
    disk.write_all_at(second, extents)?;

    let mut label = vec![0; SECTOR];
    let id = "sBDUy95pGksQRgJ4exLm37yYtwira0Ez";
    put(&mut label, 0, b"LABELONE");
    put(&mut label, 8, &1_u64.to_le_bytes());
    put(&mut label, 20, &32_u32.to_le_bytes());
    put(&mut label, 24, b"LVM2 001");
    put(&mut label, 32, id.as_bytes());
    // The size; the places of the data and of the metadata, each list with an end.
    for (at, number) in [(64, length), (72, MIB), (104, AREA), (112, MIB - AREA)] {
        put(&mut label, at, &number.to_le_bytes());
    }
    let sum = checksum(&label[20..]).to_le_bytes();
    put(&mut label, 16, &sum);
    disk.write_all_at(&label, start + SECTOR as u64)?;

    let text = format!("{}\0", volume_group());
    let mut head = vec![0; SECTOR];
    put(&mut head, 4, b" LVM2 x[5A%r0N*>");
    put(&mut head, 20, &1_u32.to_le_bytes());
    let place = SECTOR as u64;
    for (at, number) in [(24, AREA), (32, MIB - AREA), (40, place), (48, text.len() as u64)] {
        put(&mut head, at, &number.to_le_bytes());
    }
    put(&mut head, 56, &checksum(text.as_bytes()).to_le_bytes());
    let sum = checksum(&head[4..]).to_le_bytes();
    put(&mut head, 0, &sum);
    disk.write_all_at(&head, start + AREA)?;
    disk.write_all_at(text.as_bytes(), start + AREA + place)?;
    Ok(())
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// The text of a volume group, in the form of LVM 2.03.
fn volume_group() -> String {
    let sectors = EXTENT / 512;
    format!(
        r#"rhel {{
id = "nMZyFT-GPdP-PXlg-Km8c-CDhp-G0UG-v90anO"
seqno = 3
format = "lvm2"
status = ["RESIZEABLE", "READ", "WRITE"]
flags = []
extent_size = {sectors}

physical_volumes {{

pv0 {{
id = "sBDUy9-5pGk-sQRg-J4ex-Lm37-yYtw-ira0Ez"
device = "/dev/vda3"

pe_start = 2048
pe_count = 5
}}
}}

logical_volumes {{

root {{
id = "ZOs6yR-iMCF-ANe7-Bsdo-MaaY-1zLF-EMj6kQ"
status = ["READ", "WRITE", "VISIBLE"]
segment_count = 2

segment1 {{
start_extent = 0
extent_count = {HALF}

type = "striped"
stripe_count = 1	# linear

stripes = [
"pv0", {HALF}
]
}}
segment2 {{
start_extent = {HALF}
extent_count = {HALF}

type = "striped"
stripe_count = 1	# linear

stripes = [
"pv0", 0
]
}}
}}
}}
}}
# Generated by LVM2

contents = "Text Format Volume Group"
version = 1
"#
    )
}

/// CRC-32 with the start value of LVM, and without the inversion at its end.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xf597_a6cf, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 },
        )
    })
}
