//! The disks and CD-ROM drives of a guest.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::vm::DiskBus;

use super::blocks::{Data, Graph};
use super::options::short;
use super::{Argument, CommandLineError, Guest, Properties};
use crate::import::domain::{Cdrom, Disk, DiskSource, Domain, other_bus, place, seed};

/// The largest raw disk that may be cloud-init data: those are of less than 1 MiB.
const MAX_SEED: u64 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriveKind {
    Disk,
    Cdrom,
}

/// A disk or a drive in the guest.
struct Attached {
    kind: DriveKind,
    /// The start of its name: `vd`, `sd`, `hd`.
    prefix: &'static str,
    /// Its bus, if that is none of virtio's.
    bus: Option<&'static str>,
    /// Its name in Proxmox VE: `scsi0`.
    id: Option<String>,
    /// Its place among the drives of an interface.
    index: Option<u32>,
    data: Data,
    boot_order: Option<u32>,
    notes: Vec<String>,
}

/// Adds the disks and drives to the domain.
pub(super) fn add(guest: &Guest<'_>, domain: &mut Domain) -> Result<(), CommandLineError> {
    let graph = Graph::read(guest)?;
    let mut attached = interfaces(guest, &graph, &mut domain.notes)?;
    for (driver, device) in guest.devices()? {
        attached.extend(of_device(guest, &graph, (&driver, &device))?);
    }
    let mut names = Targets::default();
    let mut orders = BTreeMap::new();
    for one in attached {
        let target = names.of(&one);
        if one.kind == DriveKind::Cdrom {
            orders.insert(target.clone(), one.boot_order);
        }
        add_one(guest, domain, target, one)?;
    }
    find_boot_medium(guest, domain, &orders)
}

/// The drives of `-hda`, `-cdrom` and `-drive` with an interface, in the order of their places there.
fn interfaces(
    guest: &Guest<'_>,
    graph: &Graph,
    notes: &mut Vec<String>,
) -> Result<Vec<Attached>, CommandLineError> {
    let is_pc = matches!(guest.arch(), "x86_64" | "i386");
    let mut found: Vec<Attached> = Vec::new();
    let mut used = BTreeSet::new();
    for argument in &guest.arguments {
        let Some((interface, drive, index)) = legacy(argument)? else { continue };
        let interface = interface.as_deref().unwrap_or(if is_pc { "ide" } else { "virtio" });
        let (prefix, bus) = match interface {
            "ide" => ("hd", Some("ide")),
            "scsi" => ("sd", None),
            "virtio" => ("vd", None),
            "none" | "pflash" => continue,
            other => {
                notes.push(format!(
                    "it has a drive of type {}, and berth has disks and CD-ROM drives only",
                    short(other)
                ));
                continue;
            }
        };
        let is_cdrom = drive.get("media") == Some("cdrom");
        let index = index.or_else(|| (0..u32::MAX).find(|index| !used.contains(&(prefix, *index))));
        used.extend(index.map(|index| (prefix, index)));
        let mut one = Attached {
            kind: if is_cdrom { DriveKind::Cdrom } else { DriveKind::Disk },
            prefix,
            bus,
            id: None,
            index,
            data: graph.of_drive(&drive),
            boot_order: None,
            notes: Vec::new(),
        };
        remarks(&mut one, &drive, None);
        found.push(one);
    }
    // Without a boot order SeaBIOS tries the disks on IDE first too.
    found.sort_by_key(|one| (one.prefix, one.index));
    Ok(found)
}

/// The interface, the properties and the place of a drive.
type Legacy = (Option<String>, Properties, Option<u32>);

fn legacy(argument: &Argument) -> Result<Option<Legacy>, CommandLineError> {
    let of = |interface: &str, more: &str, index| -> Result<Option<Legacy>, CommandLineError> {
        // The name of such an option is a file, also with commas.
        let text = format!("file={},if={interface}{more}", argument.value.replace(',', ",,"));
        let drive = Properties::parse(&text, "").ok_or_else(|| argument.unreadable())?;
        Ok(Some((Some(interface.to_owned()), drive, Some(index))))
    };
    match argument.name.as_str() {
        "hda" => of("ide", "", 0),
        "hdb" => of("ide", "", 1),
        "hdc" => of("ide", "", 2),
        "hdd" => of("ide", "", 3),
        "cdrom" => of("ide", ",media=cdrom", 2),
        "fda" | "fdb" => of("floppy", "", 0),
        "sd" => of("sd", "", 0),
        "mtdblock" => of("mtd", "", 0),
        "drive" => {
            let drive = argument.properties("")?;
            let index = ["index", "unit"].into_iter().find_map(|name| drive.get(name)?.parse().ok());
            Ok(Some((drive.get("if").map(str::to_owned), drive, index)))
        }
        _ => Ok(None),
    }
}

/// The disk or drive that a device is, if it is one.
fn of_device(
    guest: &Guest<'_>,
    graph: &Graph,
    (driver, device): (&str, &Properties),
) -> Result<Option<Attached>, CommandLineError> {
    let backend = device.get("drive");
    let media = backend.and_then(|id| graph.drive(id)).and_then(|drive| drive.get("media"));
    let by_media = if media == Some("cdrom") { DriveKind::Cdrom } else { DriveKind::Disk };
    let on_ahci = device.get("bus").is_some_and(|bus| bus.contains("ahci") || bus.contains("sata"))
        || guest.machine.contains("q35");
    let ata = Some(if on_ahci { "sata" } else { "ide" });
    let (kind, prefix, bus) = match driver {
        _ if driver.starts_with("virtio-blk") => (DriveKind::Disk, "vd", None),
        "scsi-hd" | "scsi-block" | "scsi-generic" => (DriveKind::Disk, "sd", None),
        "scsi-disk" => (by_media, "sd", None),
        "scsi-cd" => (DriveKind::Cdrom, "sd", None),
        "ide-hd" => (DriveKind::Disk, "hd", ata),
        "ide-drive" => (by_media, "hd", ata),
        "ide-cd" => (DriveKind::Cdrom, "hd", ata),
        "nvme" | "nvme-ns" if backend.is_some() => (DriveKind::Disk, "nvme", Some("nvme")),
        "usb-storage" => (by_media, "sd", Some("usb")),
        _ => return Ok(None),
    };
    let unknown = |name: &str| Data {
        source: Some(DiskSource::Elsewhere(format!(
            "drive {}, which the command line does not have",
            short(name)
        ))),
        ..Data::default()
    };
    let data = backend.map(|name| graph.named(name).unwrap_or_else(|| unknown(name)));
    let mut one = Attached {
        kind,
        prefix,
        bus,
        id: device.get("id").filter(|_| guest.proxmox_id().is_some()).map(str::to_owned),
        index: None,
        data: data.unwrap_or_default(),
        boot_order: device.get("bootindex").and_then(|order| order.parse().ok()),
        notes: Vec::new(),
    };
    let drive = backend.and_then(|id| graph.drive(id));
    remarks(&mut one, drive.unwrap_or(&Properties::default()), Some(device));
    Ok(Some(one))
}

/// Notes on the settings of a disk.
fn remarks(one: &mut Attached, drive: &Properties, device: Option<&Properties>) {
    if one.kind == DriveKind::Cdrom {
        return;
    }
    let of_device = |name: &str| device.and_then(|device| device.get(name));
    if let Some(bus) = one.bus {
        one.notes.push(other_bus(bus));
    }
    if let Some(serial) = of_device("serial").or_else(|| drive.get("serial")) {
        one.notes.push(format!("its serial number is {}; in berth it has another", short(serial)));
    }
    if device.is_some_and(|device| device.is_on("share-rw")) {
        one.notes.push("several machines may share it; in berth a disk has one VM at a time".to_owned());
    }
    let is_snapshot = drive.is_on("snapshot");
    for (is_so, text) in [
        (one.data.is_read_only, "it is read-only; in berth it can be written unless read_only is set"),
        (one.data.is_limited, "it has I/O limits, which are not taken over"),
        (one.data.is_encrypted, "it is encrypted: decrypt it with qemu-img convert"),
        (one.data.is_part, "it is a part of its file, which begins within that: copy it by hand"),
        (
            is_snapshot,
            "the guest's writes to it are lost at its end (snapshot=on): the disk has none of them",
        ),
    ] {
        if is_so {
            one.notes.push(text.to_owned());
        }
    }
}

/// The names of disks and drives.
#[derive(Default)]
struct Targets {
    used: BTreeSet<String>,
    /// The number that is tried next, of each start of a name.
    next: BTreeMap<&'static str, u32>,
}

impl Targets {
    fn of(&mut self, one: &Attached) -> String {
        let numbered = |number: u32| match (one.prefix, u8::try_from(number)) {
            ("nvme", _) => format!("nvme{number}"),
            (prefix, Ok(letter @ 0..26)) => format!("{prefix}{}", char::from(b'a' + letter)),
            (prefix, _) => format!("{prefix}{number}"),
        };
        let by_index = one.index.filter(|_| one.prefix == "hd").map(numbered);
        let wanted = one.id.clone().or(by_index).filter(|name| !self.used.contains(name));
        let name = wanted.unwrap_or_else(|| {
            let next = self.next.entry(one.prefix).or_default();
            while self.used.contains(&numbered(*next)) {
                *next += 1;
            }
            numbered(*next)
        });
        self.used.insert(name.clone());
        name
    }
}

fn add_one(
    guest: &Guest<'_>,
    domain: &mut Domain,
    target: String,
    one: Attached,
) -> Result<(), CommandLineError> {
    let mut source = one.data.source;
    if let Some(DiskSource::Path(path)) = &mut source {
        *path = guest.absolute(path)?;
    }
    let found = match &source {
        Some(DiskSource::Path(path)) => (guest.find)(path),
        _ => None,
    };
    if let (Some(DiskSource::Path(path)), Some(found)) = (&mut source, &found) {
        path.clone_from(&found.path);
    }
    let is_small = found.as_ref().is_some_and(|found| found.size <= MAX_SEED);
    let is_raw = one.data.format.as_deref().is_none_or(|format| format == "raw");
    let seed = source.as_ref().and_then(|source| seed(&target, source));
    if let Some(note) = seed.filter(|_| one.kind == DriveKind::Cdrom || (is_raw && is_small)) {
        domain.notes.push(note);
        return Ok(());
    }
    if one.kind == DriveKind::Cdrom {
        domain.cdroms.push(Cdrom { target, source, boot_first: false });
        return Ok(());
    }
    domain.notes.extend(one.notes.iter().map(|note| format!("{target}: {note}")));
    let Some(source) = source else {
        domain.notes.push(format!("{target}: it has no source, and is left out"));
        return Ok(());
    };
    let format =
        one.data.format.or_else(|| found.map(|found| found.format.to_owned())).unwrap_or_else(|| {
            let format = if place(&source).ends_with(".qcow2") { "qcow2" } else { "raw" };
            domain.notes.push(format!(
                "{target}: its format is not declared, and its file was not read: it is taken for {format}"
            ));
            format.to_owned()
        });
    domain.disks.push(Disk { target, source, format, boot_order: one.boot_order, bus: DiskBus::default() });
    Ok(())
}

/// Finds the drive that the guest boots from before its disks: by the order of devices, or else by `-boot order=d`.
fn find_boot_medium(
    guest: &Guest<'_>,
    domain: &mut Domain,
    orders: &BTreeMap<String, Option<u32>>,
) -> Result<(), CommandLineError> {
    let order_of = |drive: &Cdrom| orders.get(&drive.target).copied().flatten();
    let first_disk = domain.disks.iter().filter_map(|disk| disk.boot_order).min();
    let ordered = domain.cdroms.iter().enumerate().filter_map(|(at, drive)| Some((order_of(drive)?, at)));
    let boots = guest.properties("boot", "order")?;
    let devices = boots.iter().rev().find_map(|boot| boot.get("order")).unwrap_or_default();
    let first = match ordered.min() {
        Some((order, drive)) => Some(drive).filter(|_| order < first_disk.unwrap_or(u32::MAX)),
        None if devices.starts_with('d') && first_disk.is_none() => {
            domain.cdroms.iter().position(|drive| drive.source.is_some())
        }
        None => None,
    };
    if let Some(drive) = first.and_then(|drive| domain.cdroms.get_mut(drive)) {
        drive.boot_first = true;
    }
    if devices.starts_with(['n', 'a']) {
        domain.notes.push("it boots from the network or a floppy first; in berth from its disk, unless boot_order begins with \"Network\"".to_owned());
    }
    Ok(())
}
