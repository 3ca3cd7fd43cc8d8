//! The guest's replies, reduced to the fields in use and to bounded sizes.

use std::net::IpAddr;

use serde_json::Value;

const MAX_TEXT: usize = 256;
const MAX_INTERFACES: usize = 64;
const MAX_ADDRESSES: usize = 32;
const MAX_FILESYSTEMS: usize = 256;
const MAX_DISKS: usize = 64;
const MAX_CPUS: usize = 512;
const MAX_BLOCKS: usize = 16_384;
/// The prefix that udev adds to the serial number of a QEMU disk.
const QEMU_DISK: &str = "0QEMU_QEMU_HARDDISK_";

/// The guest's operating system, as in its os-release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsInfo {
    pub id: String,
    pub name: String,
    pub pretty_name: String,
    pub version: String,
    /// The version without a name, for example `12`.
    pub version_id: String,
    pub kernel_release: String,
    pub machine: String,
}

/// A network interface inside the guest, loopback included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Lower case.
    pub mac: Option<String>,
    /// Addresses with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// A mounted file system in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    pub mountpoint: String,
    pub kind: String,
    /// The guest's name for the block device, e.g. `sda1`.
    pub device: String,
    /// None if the agent does not report it.
    pub total_bytes: Option<u64>,
    pub used_bytes: Option<u64>,
    pub disks: Vec<FilesystemDisk>,
}

/// A CPU or a block of memory that the guest's kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPart {
    /// The kernel's number of it.
    pub id: u64,
    pub online: bool,
    /// Whether it can be set online and offline.
    pub can_change: bool,
}

/// A disk below a mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesystemDisk {
    pub bus_type: String,
    pub bus: Option<u64>,
    pub target: Option<u64>,
    pub unit: Option<u64>,
    /// udev's `ID_SERIAL`: vendor and model precede the serial number of the disk.
    pub serial: Option<String>,
    pub dev: Option<String>,
}

/// Returns the mounts of the disk with this serial number at this SCSI target of its controller.
///
/// Matches by the serial number, or by the address if the guest reports no serial that identifies another QEMU disk.
/// The address only means *maybe*: for the question whether this disk may be unplugged, maybe counts as mounted.
pub fn mounts_of<'a>(filesystems: &'a [Filesystem], serial: &str, target: Option<u8>) -> Vec<&'a Filesystem> {
    let is_it = |disk: &FilesystemDisk| {
        let reported = disk.serial.as_deref().unwrap_or_default();
        let at_address =
            disk.bus_type == "scsi" && disk.target.is_some() && disk.target == target.map(u64::from);
        reported == serial
            || reported.ends_with(&format!("_{serial}"))
            || (at_address && !reported.starts_with(QEMU_DISK))
    };
    filesystems.iter().filter(|f| f.disks.iter().any(is_it)).collect()
}

pub(super) fn host_name(answer: &Value) -> Option<String> {
    text(answer, "host-name")
}

pub(super) fn cpus(answer: &Value) -> Option<Vec<GuestPart>> {
    parts(answer, "logical-id", MAX_CPUS)
}

pub(super) fn memory_blocks(answer: &Value) -> Option<Vec<GuestPart>> {
    parts(answer, "phys-index", MAX_BLOCKS)
}

fn parts(answer: &Value, id: &str, most: usize) -> Option<Vec<GuestPart>> {
    let one = |part: &Value| {
        Some(GuestPart {
            id: part.get(id)?.as_u64()?,
            online: part.get("online")?.as_bool()?,
            can_change: part.get("can-offline").and_then(Value::as_bool).unwrap_or(true),
        })
    };
    answer.as_array()?.iter().take(most).map(one).collect()
}

pub(super) fn os_info(answer: &Value) -> Option<OsInfo> {
    answer.is_object().then(|| OsInfo {
        id: text(answer, "id").unwrap_or_default(),
        name: text(answer, "name").unwrap_or_default(),
        pretty_name: text(answer, "pretty-name").unwrap_or_default(),
        version: text(answer, "version").unwrap_or_default(),
        version_id: text(answer, "version-id").unwrap_or_default(),
        kernel_release: text(answer, "kernel-release").unwrap_or_default(),
        machine: text(answer, "machine").unwrap_or_default(),
    })
}

pub(super) fn interfaces(answer: &Value) -> Option<Vec<Interface>> {
    let one = |value: &Value| {
        Some(Interface {
            name: text(value, "name")?,
            mac: text(value, "hardware-address").map(|m| m.to_ascii_lowercase()),
            addresses: items(value.get("ip-addresses")).take(MAX_ADDRESSES).filter_map(address).collect(),
        })
    };
    Some(answer.as_array()?.iter().take(MAX_INTERFACES).filter_map(one).collect())
}

fn address(value: &Value) -> Option<(IpAddr, u8)> {
    let address: IpAddr = value.get("ip-address")?.as_str()?.parse().ok()?;
    let prefix = u8::try_from(value.get("prefix")?.as_u64()?).ok()?;
    (prefix <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, prefix))
}

pub(super) fn filesystems(answer: &Value) -> Option<Vec<Filesystem>> {
    let one = |value: &Value| {
        Some(Filesystem {
            mountpoint: text(value, "mountpoint")?,
            kind: text(value, "type").unwrap_or_default(),
            device: text(value, "name").unwrap_or_default(),
            total_bytes: value.get("total-bytes").and_then(Value::as_u64),
            used_bytes: value.get("used-bytes").and_then(Value::as_u64),
            disks: items(value.get("disk")).take(MAX_DISKS).map(disk).collect(),
        })
    };
    Some(answer.as_array()?.iter().take(MAX_FILESYSTEMS).filter_map(one).collect())
}

fn disk(value: &Value) -> FilesystemDisk {
    let number = |name: &str| value.get(name).and_then(Value::as_u64);
    FilesystemDisk {
        bus_type: text(value, "bus-type").unwrap_or_default(),
        bus: number("bus"),
        target: number("target"),
        unit: number("unit"),
        serial: text(value, "serial"),
        dev: text(value, "dev"),
    }
}

fn items(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn text(value: &Value, name: &str) -> Option<String> {
    Some(clean(value.get(name)?.as_str()?))
}

/// Makes text safe for a terminal and for a status.
pub(super) fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}
