//! Domains of any origin, and those of libvirt.

use berth_api::vm::{DiskBus, NicModel};
use berth_api::{Firmware, hardware::is_uuid};
use roxmltree::Node;

use super::{
    ImportError,
    guest::{GuestSystem, architecture_note},
    origin::Origin,
    rest::others,
    xml::{all, attribute, bytes, first, text},
};

/// A domain.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Its name there.
    pub name: String,
    /// The software that runs it.
    pub origin: Origin,
    /// Its virtual CPUs.
    pub cpus: u64,
    /// Its memory, in bytes.
    pub memory: u64,
    /// Its firmware.
    pub firmware: Firmware,
    /// Its UUID, which its guest sees.
    pub uuid: Option<String>,
    /// Its guest, as it is described.
    pub guest: GuestSystem,
    /// Whether it has a display.
    pub has_screen: bool,
    /// Its disks, in their order, without CD-ROMs and floppies.
    pub disks: Vec<Disk>,
    /// Its CD-ROM drives, in their order, without those with cloud-init data.
    pub cdroms: Vec<Cdrom>,
    /// Its network interfaces.
    pub interfaces: Vec<Interface>,
    /// Whether it runs, if that is known.
    pub is_running: Option<bool>,
    /// The parts that are not taken over.
    pub notes: Vec<String>,
}

/// A disk.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Its name in the domain: `vda`.
    pub target: String,
    /// Where its data is.
    pub source: DiskSource,
    /// `qcow2`, `raw` or another format of QEMU.
    pub format: String,
    /// Its place in the boot order.
    pub boot_order: Option<u32>,
    /// The controller that its guest sees in berth.
    pub bus: DiskBus,
}

/// A CD-ROM drive.
#[derive(Clone, Debug)]
pub struct Cdrom {
    /// Its name in the domain: `sda`.
    pub target: String,
    /// Where its medium is, if there is one in it.
    pub source: Option<DiskSource>,
    /// Whether the domain boots from the medium before it tries its disks.
    pub boot_first: bool,
}

/// Where the data of a disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskSource {
    /// A file, or a block device.
    Path(String),
    /// A volume of a pool: `virsh vol-path`.
    Volume {
        /// The pool.
        pool: String,
        /// The volume's name.
        volume: String,
    },
    /// Somewhere else: Ceph, iSCSI, NVMe.
    Elsewhere(String),
    /// A file of the machine that runs Terraform, which uploads it.
    Upload {
        /// Its path: absolute, or relative to the folder of the configuration.
        file: String,
        /// The compression that berth reads it with.
        compression: Option<&'static str>,
        /// The size of the disk, in bytes.
        capacity: u64,
    },
    /// Nowhere: it is a blank disk of this many bytes.
    Blank(u64),
}

/// A network interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its MAC address.
    pub mac: Option<String>,
    /// The network of libvirt that it is on.
    pub network: Option<String>,
    /// The model of its card.
    pub model: NicModel,
}

/// Devices that every VM of berth has too, or that a server does without.
const SILENT: [&str; 15] = [
    "disk",
    "interface",
    "emulator",
    "controller",
    "serial",
    "console",
    "channel",
    "input",
    "memballoon",
    "rng",
    "panic",
    "audio",
    "hub",
    "video",
    "graphics",
];
/// Elements of a domain that are read, or that do not change what its guest sees.
const KNOWN: [&str; 18] = [
    "name",
    "uuid",
    "metadata",
    "memory",
    "currentMemory",
    "vcpu",
    "vcpus",
    "os",
    "features",
    "cpu",
    "clock",
    "on_poweroff",
    "on_reboot",
    "on_crash",
    "pm",
    "devices",
    "resource",
    "seclabel",
];
/// Those of its firmware and its boot.
const OF_OS: [&str; 10] =
    ["type", "boot", "loader", "nvram", "firmware", "kernel", "initrd", "cmdline", "bootmenu", "bios"];
/// Those of its features.
const OF_FEATURES: [&str; 7] = ["acpi", "apic", "pae", "smm", "vmport", "hyperv", "gic"];
/// Those of a processor.
const OF_CPU: [&str; 3] = ["model", "topology", "numa"];
/// Those of a disk or a drive.
const OF_DISK: [&str; 11] = [
    "driver",
    "source",
    "target",
    "boot",
    "address",
    "alias",
    "backingStore",
    "shareable",
    "readonly",
    "iotune",
    "encryption",
];
/// Those of an interface.
const OF_INTERFACE: [&str; 10] =
    ["mac", "source", "model", "target", "address", "alias", "vlan", "bandwidth", "filterref", "virtualport"];
/// The ends of a guest, and the actions on them that berth has, too.
const ON_END: [(&str, &[&str]); 3] =
    [("on_poweroff", &["destroy"]), ("on_reboot", &["restart"]), ("on_crash", &["destroy", "restart"])];
/// The note on an interface of a network that only QEMU's own process has.
pub(super) const USER_NETWORK: &str = "it is a user network; in berth it is on the Network default";
/// Names of images that hold cloud-init data.
const SEEDS: [&str; 5] = ["cloud-init", "cloudinit", "cidata", "seed", "commoninit"];

/// The guest by the identifier that virt-manager and virt-install write.
fn guest(root: Node<'_, '_>) -> GuestSystem {
    let id = attribute(root, &["metadata", "libosinfo", "os"], "id");
    id.map(GuestSystem::of_libosinfo).unwrap_or_default()
}

pub(super) fn read(root: Node<'_, '_>) -> Result<Domain, ImportError> {
    let kind = root.attribute("type").unwrap_or_default();
    if !matches!(kind, "kvm" | "qemu") {
        return Err(ImportError::Type(kind.chars().take(40).collect()));
    }
    let name = text(root, &["name"]).ok_or(ImportError::Missing("name"))?.to_owned();
    let cpus =
        text(root, &["vcpu"]).and_then(|cpus| cpus.parse().ok()).ok_or(ImportError::Missing("vcpu"))?;
    let memory = bytes(root, &["memory"], "KiB").ok_or(ImportError::Missing("memory"))?;
    let mut domain = Domain {
        name,
        origin: Origin::Libvirt,
        cpus,
        memory,
        firmware: firmware(root),
        uuid: text(root, &["uuid"]).filter(|uuid| is_uuid(uuid)).map(str::to_owned),
        guest: guest(root),
        has_screen: first(root, &["devices", "graphics"]).is_some(),
        disks: Vec::new(),
        cdroms: Vec::new(),
        interfaces: Vec::new(),
        is_running: root.attribute("id").map(|_| true),
        notes: Vec::new(),
    };
    hardware(root, &mut domain.notes);
    for disk in all(root, &["devices", "disk"]) {
        match disk.attribute("device").unwrap_or("disk") {
            "disk" => add_disk(&mut domain, disk),
            "cdrom" => add_cdrom(&mut domain, disk),
            device => {
                let target = attribute(disk, &["target"], "dev").unwrap_or("it");
                domain
                    .notes
                    .push(format!("{target} is a {device}, and berth has disks and CD-ROM drives only"));
            }
        }
    }
    find_boot_medium(root, &mut domain);
    for interface in all(root, &["devices", "interface"]) {
        add_interface(&mut domain, interface);
    }
    devices(root, &mut domain.notes);
    Ok(domain)
}

fn firmware(root: Node<'_, '_>) -> Firmware {
    let features = all(root, &["os", "firmware", "feature"]);
    let has = |name, enabled| {
        features.iter().any(|f| f.attribute("name") == Some(name) && f.attribute("enabled") == Some(enabled))
    };
    // Without keys such firmware starts everything.
    let is_secure = (attribute(root, &["os", "loader"], "secure") == Some("yes")
        || has("secure-boot", "yes"))
        && !has("enrolled-keys", "no");
    let loader = first(root, &["os", "loader"]);
    let is_uefi = attribute(root, &["os"], "firmware") == Some("efi")
        || loader.is_some_and(|loader| {
            let path = loader.text().unwrap_or_default();
            loader.attribute("type") == Some("pflash")
                || ["OVMF", "AAVMF", "edk2"].iter().any(|name| path.contains(name))
        });
    match (is_uefi, is_secure) {
        (_, true) => Firmware::UEFISecureBoot,
        (true, false) => Firmware::UEFI,
        (false, false) => Firmware::BIOS,
    }
}

/// Notes on the processor, the memory, the firmware and settings beside them.
fn hardware(root: Node<'_, '_>, notes: &mut Vec<String>) {
    if let Some(current) = attribute(root, &["vcpu"], "current") {
        notes.push(format!("{current} of its CPUs are online; in berth all are"));
    }
    if bytes(root, &["currentMemory"], "KiB").is_some_and(|now| Some(now) < bytes(root, &["memory"], "KiB")) {
        notes.push("its memory is reduced by a balloon; in berth it has all of it: memory_reservation lets its host take some back".to_owned());
    }
    let arch = attribute(root, &["os", "type"], "arch").unwrap_or(std::env::consts::ARCH);
    notes.extend(architecture_note(arch));
    if let Some(model) = text(root, &["cpu", "model"]) {
        notes
            .push(format!("its CPU model is {model}; in berth the host chooses one unless cpu_model is set"));
    }
    for (part, note) in [
        ("topology", "it declares a CPU topology, which is not taken over: see cpu_topology"),
        ("numa", "it declares NUMA nodes, which are not taken over: see numa_nodes"),
    ] {
        if first(root, &["cpu", part]).is_some() {
            notes.push(note.to_owned());
        }
    }
    if let Some(offset) = attribute(root, &["clock"], "offset").filter(|offset| *offset != "utc") {
        notes.push(format!("its clock is {offset}; in berth it is UTC (Windows: set RealTimeIsUniversal)"));
    }
    if firmware(root) == Firmware::UEFISecureBoot {
        notes.push("its Secure Boot has Microsoft's keys in berth: a guest that is not signed with them needs firmware UEFI".to_owned());
    }
    if first(root, &["os", "nvram"]).is_some() {
        notes.push(
            "its UEFI variables are not taken over: the firmware boots the disk's default loader, \\EFI\\BOOT".to_owned(),
        );
    }
    if first(root, &["os", "kernel"]).is_some() {
        notes.push("it boots a kernel given by the host; in berth it boots from its disk".to_owned());
    }
    if let Some(device) =
        attribute(root, &["os", "boot"], "dev").filter(|device| !matches!(*device, "hd" | "cdrom"))
    {
        notes.push(format!("it boots from {device} first; in berth it boots from its disk"));
    }
    for (part, known, named) in [
        ("os", &OF_OS[..], "its os has"),
        ("features", &OF_FEATURES[..], "its features have"),
        ("cpu", &OF_CPU[..], "its cpu has"),
    ] {
        let names = first(root, &[part]).and_then(|node| others(node, known));
        notes.extend(names.map(|names| format!("{named} settings that are not taken over: {names}")));
    }
    for (end, usual) in ON_END {
        if let Some(action) = text(root, &[end]).filter(|action| !usual.contains(action)) {
            notes.push(format!("its {end} is {action}, which is not taken over: see restart_policy"));
        }
    }
    let names = others(root, &KNOWN);
    notes.extend(names.map(|names| format!("it has settings that are not taken over: {names}")));
}

fn add_disk(domain: &mut Domain, disk: Node<'_, '_>) {
    let target = attribute(disk, &["target"], "dev").unwrap_or("disk").to_owned();
    let source = source(disk);
    let note = |text: &str| format!("{target}: {text}");
    match attribute(disk, &["target"], "bus") {
        Some("virtio" | "scsi") | None => {}
        Some(bus) => domain.notes.push(note(&other_bus(bus))),
    }
    for (element, text) in [
        (
            "shareable",
            "several machines may share it; in berth this disk has one VM at a time: see access of berth_disk",
        ),
        ("readonly", "it is read-only; in berth it can be written unless read_only is set"),
        ("iotune", "it has I/O limits, which are not taken over: see limits of berth_disk"),
        ("encryption", "it is encrypted: decrypt it with qemu-img convert"),
    ] {
        if first(disk, &[element]).is_some() {
            domain.notes.push(note(text));
        }
    }
    domain.notes.extend(not_taken_over(&target, disk, &OF_DISK));
    let Some(source) = source else {
        domain.notes.push(note("it has no source, and is left out"));
        return;
    };
    let boot_order = boot_order(disk);
    let format = attribute(disk, &["driver"], "type").unwrap_or("raw").to_owned();
    domain.disks.push(Disk { target, source, format, boot_order, bus: DiskBus::default() });
}

fn add_cdrom(domain: &mut Domain, drive: Node<'_, '_>) {
    let target = attribute(drive, &["target"], "dev").unwrap_or("cdrom").to_owned();
    let source = source(drive);
    if let Some(note) = source.as_ref().and_then(|source| seed(&target, source)) {
        domain.notes.push(note);
        return;
    }
    domain.notes.extend(not_taken_over(&target, drive, &OF_DISK));
    domain.cdroms.push(Cdrom { target, source, boot_first: false });
}

/// The note on the settings of a device that are not taken over.
fn not_taken_over(device: &str, node: Node<'_, '_>, known: &[&str]) -> Option<String> {
    others(node, known).map(|names| format!("{device}: it has settings that are not taken over: {names}"))
}

/// The note on a medium that holds cloud-init data, by its name.
pub(super) fn seed(target: &str, source: &DiskSource) -> Option<String> {
    let place = place(source);
    let name = place.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    SEEDS.iter().any(|seed| name.contains(seed)).then(|| {
        format!(
            "{target} ({place}) looks like cloud-init data: put its user-data into bootstrap.user_data. In berth the guest \
             is another instance to cloud-init, which runs again at the first boot"
        )
    })
}

/// The note on a disk's bus.
pub(super) fn other_bus(bus: &str) -> String {
    format!(
        "its bus is {bus}; in berth it is virtio-scsi, for which the guest needs a driver before the move"
    )
}

/// The note on an interface in a network of the host.
pub(super) fn on_the_hosts_network(kind: &str, of: &str) -> String {
    format!(
        "it is connected to the host's network ({kind} {of}); in berth it is on the Network default behind NAT, and a \
         berth_public_ip leads to it, unless you put it on a Network of type Bridge"
    )
}

/// The note on the model of an interface's card.
pub(super) fn other_card(model: &str) -> String {
    format!(
        "its model is {model}, which berth does not have; in berth it is virtio, for which the guest needs a driver before the \
         move"
    )
}

fn boot_order(disk: Node<'_, '_>) -> Option<u32> {
    attribute(disk, &["boot"], "order").and_then(|order| order.parse().ok())
}

/// Finds the drive that the domain boots from before its disks: the one that comes before them in the order of devices, or else the
/// first with a medium if the firmware tries CD-ROMs first.
fn find_boot_medium(root: Node<'_, '_>, domain: &mut Domain) {
    let order_of = |target: &str| {
        let drives = all(root, &["devices", "disk"]);
        let drive = drives.into_iter().find(|one| attribute(*one, &["target"], "dev") == Some(target))?;
        boot_order(drive)
    };
    let first_disk = domain.disks.iter().filter_map(|disk| disk.boot_order).min().unwrap_or(u32::MAX);
    let ordered =
        domain.cdroms.iter().enumerate().filter_map(|(i, drive)| Some((order_of(&drive.target)?, i)));
    let tries_first = attribute(root, &["os", "boot"], "dev") == Some("cdrom");
    let first = match ordered.min() {
        Some((order, drive)) => Some(drive).filter(|_| order < first_disk),
        None if tries_first => domain.cdroms.iter().position(|drive| drive.source.is_some()),
        None => None,
    };
    if let Some(drive) = first.and_then(|drive| domain.cdroms.get_mut(drive)) {
        drive.boot_first = true;
    }
}

fn source(disk: Node<'_, '_>) -> Option<DiskSource> {
    let of = |name| attribute(disk, &["source"], name).map(str::to_owned);
    let kind = disk.attribute("type").unwrap_or("file");
    match kind {
        "file" => of("file").map(DiskSource::Path),
        "block" => of("dev").map(DiskSource::Path),
        "volume" => Some(DiskSource::Volume { pool: of("pool")?, volume: of("volume")? }),
        _ => {
            let protocol = of("protocol").unwrap_or_else(|| kind.to_owned());
            Some(DiskSource::Elsewhere(format!("{protocol}:{}", of("name").unwrap_or_default())))
        }
    }
}

/// The source in words.
pub(super) fn place(source: &DiskSource) -> String {
    match source {
        DiskSource::Path(path) => path.clone(),
        DiskSource::Volume { pool, volume } => format!("volume {volume} of pool {pool}"),
        DiskSource::Elsewhere(place) => place.clone(),
        DiskSource::Upload { file, .. } => file.clone(),
        DiskSource::Blank(_) => "a blank disk".to_owned(),
    }
}

fn add_interface(domain: &mut Domain, interface: Node<'_, '_>) {
    let mac = attribute(interface, &["mac"], "address").map(str::to_ascii_lowercase);
    let name = mac.clone().unwrap_or_else(|| "an interface".to_owned());
    let kind = interface.attribute("type").unwrap_or_default();
    let mut note = |text: String| domain.notes.push(format!("{name}: {text}"));
    let network =
        attribute(interface, &["source"], "network").filter(|_| kind == "network").map(str::to_owned);
    match kind {
        "network" => {}
        "user" => note(USER_NETWORK.to_owned()),
        "hostdev" => {
            note(
                "it is a network card of the host; in berth it is on the Network default, or offer the card with --pci-device and add it to pci_devices"
                    .to_owned(),
            )
        }
        kind => {
            let of = ["bridge", "dev"].into_iter().find_map(|name| attribute(interface, &["source"], name));
            note(on_the_hosts_network(kind, of.unwrap_or_default()));
        }
    }
    // virtio-transitional and virtio-non-transitional are virtio too.
    let model = attribute(interface, &["model"], "type").filter(|model| !model.starts_with("virtio"));
    let known = model.map_or(Some(NicModel::Virtio), NicModel::named);
    if let (Some(model), None) = (model, known) {
        note(other_card(model));
    }
    for element in ["vlan", "bandwidth", "filterref", "virtualport"] {
        if first(interface, &[element]).is_some() {
            note(format!("it has a {element}, which is not taken over"));
        }
    }
    domain.notes.extend(not_taken_over(&name, interface, &OF_INTERFACE));
    domain.interfaces.push(Interface { mac, network, model: known.unwrap_or_default() });
}

/// A note on a device of the host that the domain has: it cannot be moved before its host offers it.
fn host_device(device: Node<'_, '_>) -> String {
    let kind = device.attribute("type").unwrap_or_default();
    let of = |element: &str, name: &str| {
        let text = attribute(device, &["source", element], name).unwrap_or_default();
        text.trim_start_matches("0x").to_owned()
    };
    let (option, form, list) = match kind {
        "usb" => ("--usb-device", format!("{}:{}", of("vendor", "id"), of("product", "id")), "usb_devices"),
        "pci" => {
            let [domain, bus, slot] = ["domain", "bus", "slot"].map(|name| of("address", name));
            ("--pci-device", format!("{domain}:{bus}:{slot}"), "pci_devices")
        }
        "mdev" => {
            let note = "it has a vGPU of its host (mdev): offer those of its type there with --vgpu NAME=ADDRESS/TYPE, and add NAME to vgpus";
            return note.to_owned();
        }
        _ => return format!("it has a device of its host ({kind}), which berth does not have"),
    };
    // Untrusted, and incomplete without a vendor or an address.
    let is_complete = form
        .split(':')
        .all(|part| (2..=4).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let form = if is_complete { form } else { "DEVICE".to_owned() };
    format!(
        "it has a device of its host ({kind}): offer it there with {option} NAME={form}, and add NAME to {list}"
    )
}

/// Notes on devices that are not taken over.
fn devices(root: Node<'_, '_>, notes: &mut Vec<String>) {
    let mut displays = all(root, &["devices", "graphics"]).into_iter();
    if let Some(kind) = displays.find_map(|display| display.attribute("type").filter(|kind| *kind != "vnc")) {
        notes.push(format!("its display is {kind}; in berth it is VNC (berth vnc)"));
    }
    let serials = all(root, &["devices", "serial"]).len();
    if serials > 1 {
        notes.push(format!("it has {serials} serial ports; in berth it has one unless serial_ports is set"));
    }
    let Some(devices) = first(root, &["devices"]) else { return };
    for device in devices.children().filter(Node::is_element) {
        let name = device.tag_name().name();
        if SILENT.contains(&name) {
            continue;
        }
        let kind = ["type", "model"].into_iter().find_map(|of| device.attribute(of));
        let kind = kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
        if name == "filesystem" {
            let note = "it has a folder of its host: share it there with --share, and add it to shares";
            notes.push(note.to_owned());
            continue;
        }
        if name == "hostdev" {
            notes.push(host_device(device));
            continue;
        }
        notes.push(match name {
            "tpm" => "it has a TPM, whose memory is not taken over: tpm = true gives it a new one".to_owned(),
            "watchdog" => {
                format!("it has a watchdog{kind}: set watchdog, for which the guest sees an i6300esb")
            }
            "vsock" => {
                "it has a vsock device: set vsock, for which the host chooses another context id".to_owned()
            }
            "sound" => {
                format!("it has a sound card{kind}: set sound, for which the guest sees Intel HD Audio")
            }
            _ => format!("it has a {name}{kind} which berth does not have"),
        });
    }
}
