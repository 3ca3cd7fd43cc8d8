//! Checks for values that QEMU would reject later with a worse message, and for collisions between parts of a machine.

use std::collections::HashSet;
use std::path::PathBuf;

use super::{
    Bus, CdromSpec, DiskSpec, Extras, FIRST_CDROM_TARGET, FIRST_CID, Firmware, Format, LAST_CID, LaunchSpec,
    MAX_CDROMS, MAX_NICS, MAX_NUMA_NODES, MAX_OPTIONS, MAX_PCI_DEVICES, MAX_QUEUES, MAX_SATA, MAX_SERIAL,
    MAX_SERIAL_PORTS, MAX_SHARE_TAG, MAX_SHARES, MAX_SOCKET_PATH, MAX_USB_BUS, MAX_USB_DEVICES, MAX_VGPUS,
    MAX_VIRTIO_BLK, MEMORY_BLOCK, MachineSpec, Medium, NIC_PORTS, NicModel, NicSpec, OPTION_GROUPS, RbdImage,
    SCRATCH_ID, SCRATCH_TARGET, SCSI_CONTROLLER, SEED_ID, SEED_TARGET, SYSPREP_ID, ShareSpec, VgpuSpec,
};

/// Why a spec is not a valid machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("{field} {value:?} is not usable: {why}")]
    Invalid { field: &'static str, value: String, why: &'static str },
    #[error("two {what} share {value:?}")]
    Twice { what: &'static str, value: String },
    #[error("more than one disk is marked to boot from")]
    TwoBootDisks,
}

impl LaunchSpec {
    /// Checks the machine, and that its files fit it.
    pub fn validate(&self) -> Result<(), SpecError> {
        self.machine.validate()?;
        let is_uefi = self.machine.firmware != Firmware::Bios;
        let fits = is_uefi == self.files.uefi.is_some();
        check(
            "firmware",
            &format!("{:?}", self.machine.firmware),
            fits,
            "its files are of another firmware",
        )?;
        let has_emulator = self.files.tpm.is_some();
        let fits = self.machine.tpm == has_emulator;
        check("tpm", &self.machine.tpm.to_string(), fits, "its files have an emulator exactly for a TPM")?;
        let (shares, virtiofs) = (&self.machine.shares, &self.files.virtiofs);
        let folders = virtiofs.iter().flat_map(|files| &files.folders);
        // Nothing declared read-only may be lent writable.
        let fits = virtiofs.is_some() != shares.is_empty()
            && folders.map(|f| f.read_only).eq(shares.iter().map(|s| s.read_only));
        check("shares", &shares.len().to_string(), fits, "its files have a folder for each, and no other")?;
        let serial = self.machine.serial_ports().map(|number| self.files.paths.serial_port(number).0);
        let serial: Vec<PathBuf> = serial.collect();
        for socket in self.files.paths.sockets().into_iter().chain(serial.iter().map(PathBuf::as_path)) {
            let text = socket.to_string_lossy();
            check(
                "socket path",
                &text,
                text.len() <= MAX_SOCKET_PATH,
                "longer than the 107 bytes a unix socket may have",
            )?;
        }
        Ok(())
    }
}

impl MachineSpec {
    /// Checks for everything that QEMU would reject later with a worse message, and for collisions between parts of the
    /// machine.
    pub fn validate(&self) -> Result<(), SpecError> {
        check(
            "instance",
            &self.instance,
            plain(&self.instance, 64),
            "letters, digits, '-', '.', '_', at most 64",
        )?;
        check("name", &self.name, printable(&self.name, 200), "1 to 200 printable ASCII characters")?;
        check("uuid", &self.uuid, is_uuid(&self.uuid), "not a UUID")?;
        check("cpus", &self.cpus.to_string(), (1..=288).contains(&self.cpus), "1 to 288")?;
        check(
            "topology",
            &format!("{:?}", self.topology),
            (u32::from(self.cpus)..=288).contains(&self.topology.cpus()),
            "sockets × cores × threads is at least the number of CPUs, and at most 288",
        )?;
        let memory = self.memory_bytes;
        check(
            "memory",
            &memory.to_string(),
            memory >= 1 << 20 && memory.is_multiple_of(1 << 12),
            "≥ 1 MiB, a multiple of 4 KiB",
        )?;
        if let Some(most) = self.max_memory_bytes {
            check(
                "maximum memory",
                &most.to_string(),
                most > memory && (most - memory).is_multiple_of(MEMORY_BLOCK),
                "above the memory by a multiple of 2 MiB",
            )?;
        }
        if let Some(page) = self.huge_page_bytes {
            let is_size = [2 << 20, 1 << 30].contains(&page);
            check("huge pages", &page.to_string(), is_size, "2 MiB or 1 GiB")?;
            let is_whole = memory.is_multiple_of(page);
            check("memory", &memory.to_string(), is_whole, "a multiple of the size of its huge pages")?;
            let grows = self.max_memory_bytes.is_some();
            check("maximum memory", "huge pages", !grows, "memory in huge pages cannot grow")?;
        }
        self.validate_architecture()?;
        self.validate_numa_nodes()?;
        let versioned = self.machine_type.rsplit('-').next().is_some_and(|v| v.contains('.'));
        check(
            "machine type",
            &self.machine_type,
            versioned && printable(&self.machine_type, 64),
            "needs a version, such as pc-q35-7.2",
        )?;
        check("cpu model", &self.cpu_model, printable(&self.cpu_model, 1024), "printable ASCII only")?;
        if let Some(serial) = &self.extras.serial_number {
            check("serial number", serial, plain(serial, 64), "letters, digits, '-', '.', '_', at most 64")?;
        }
        self.validate_disks()?;
        self.validate_cdroms()?;
        self.validate_nics()?;
        self.validate_pci_devices()?;
        self.validate_usb_devices()?;
        self.validate_vgpus()?;
        self.validate_shares()?;
        self.validate_console()?;
        self.validate_options()
    }

    /// The layout is the name of a file, and the order a list of sources.
    fn validate_console(&self) -> Result<(), SpecError> {
        let Extras { boot_order, resolution, keyboard_layout, further_serial_ports, vsock_cid, .. } =
            &self.extras;
        if let Some(cid) = vsock_cid {
            let is_ours = (FIRST_CID..=LAST_CID).contains(cid);
            check("vsock context id", &cid.to_string(), is_ours, "65536 to 2147483647")?;
        }
        let fits = *further_serial_ports < MAX_SERIAL_PORTS;
        check("serial ports", &further_serial_ports.to_string(), fits, "at most 3 beside the first")?;
        if let Some((width, height)) = resolution {
            let fits = (640..=2560).contains(width) && (480..=1600).contains(height);
            check("resolution", &format!("{width}x{height}"), fits, "640x480 to 2560x1600")?;
        }
        if let Some(layout) = keyboard_layout {
            let is_name = (2..=8).contains(&layout.len())
                && layout.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
            check("keyboard layout", layout, is_name, "2 to 8 lower-case letters and '-'")?;
        }
        let is_once = boot_order.iter().all(|source| boot_order.iter().filter(|o| *o == source).count() == 1);
        check("boot order", &format!("{boot_order:?}"), is_once, "lists a source twice")
    }

    fn validate_numa_nodes(&self) -> Result<(), SpecError> {
        const FIELD: &str = "NUMA nodes";
        let (nodes, text) = (self.numa_nodes, self.numa_nodes.to_string());
        check(FIELD, &text, (1..=MAX_NUMA_NODES).contains(&nodes), "1 to 8")?;
        if nodes == 1 {
            return Ok(());
        }
        let grows = self.max_memory_bytes.is_some() || self.topology.cpus() != u32::from(self.cpus);
        check(FIELD, &text, !grows, "neither CPUs nor memory of several nodes can grow")?;
        let is_whole = self.topology.divides_among(nodes);
        check(FIELD, &text, is_whole, "each consists of whole sockets, or of whole cores of one socket")?;
        let unit = self.huge_page_bytes.unwrap_or(1 << 12) * u64::from(nodes);
        let is_even = self.memory_bytes.is_multiple_of(unit);
        check(FIELD, &text, is_even, "the memory is divided evenly, in whole pages")
    }

    /// Names and values of options are part of a list in which a comma would begin another option.
    fn validate_options(&self) -> Result<(), SpecError> {
        let options = &self.extras.options;
        check("options", &options.len().to_string(), options.len() <= MAX_OPTIONS, "at most 32")?;
        for (name, value) in options {
            let property = OPTION_GROUPS.iter().find_map(|group| name.strip_prefix(group));
            let is_property = property.is_some_and(|property| plain(property, 64));
            check("option", name, is_property, "machine.PROPERTY, cpu.FLAG or global.DEVICE.PROPERTY")?;
            check("option value", value, plain(value, 32), "letters, digits, '-', '.', '_', at most 32")?;
        }
        Ok(())
    }

    fn validate_usb_devices(&self) -> Result<(), SpecError> {
        let count = self.usb_devices.len();
        check("usb devices", &count.to_string(), count <= usize::from(MAX_USB_DEVICES), "at most 8")?;
        let mut nodes = HashSet::new();
        for device in &self.usb_devices {
            let node = device.node().display().to_string();
            let is_number = (1..=MAX_USB_BUS).contains(&device.bus) && (1..=127).contains(&device.number);
            check("usb device", &node, is_number, "not the number of a bus and of a device on it")?;
            unique("usb devices", &node, nodes.insert(node.clone()))?;
        }
        Ok(())
    }

    fn validate_vgpus(&self) -> Result<(), SpecError> {
        let count = self.vgpus.len();
        check("vgpus", &count.to_string(), count <= usize::from(MAX_VGPUS), "at most 8")?;
        let mut uuids = HashSet::new();
        for VgpuSpec { uuid, .. } in &self.vgpus {
            check("vgpu", uuid, is_uuid(uuid), "not a UUID")?;
            unique("vgpus", uuid, uuids.insert(uuid))?;
        }
        Ok(())
    }

    fn validate_pci_devices(&self) -> Result<(), SpecError> {
        let count = self.pci_devices.len();
        check("pci devices", &count.to_string(), count <= usize::from(MAX_PCI_DEVICES), "at most 8")?;
        let mut addresses = HashSet::new();
        for device in &self.pci_devices {
            let functions = device.functions.len();
            check("pci functions", &functions.to_string(), (1..=8).contains(&functions), "1 to 8")?;
            for address in &device.functions {
                check(
                    "pci address",
                    address,
                    is_pci_address(address),
                    "not an address such as 0000:01:00.0",
                )?;
                unique("pci devices", address, addresses.insert(address))?;
            }
        }
        Ok(())
    }

    fn validate_shares(&self) -> Result<(), SpecError> {
        let count = self.shares.len();
        check("shares", &count.to_string(), count <= usize::from(MAX_SHARES), "at most 8")?;
        let mut tags = HashSet::new();
        for ShareSpec { tag, .. } in &self.shares {
            check("tag", tag, plain(tag, MAX_SHARE_TAG), "letters, digits, '-', '.', '_', at most 36")?;
            unique("shares", tag, tags.insert(tag))?;
        }
        Ok(())
    }

    fn validate_disks(&self) -> Result<(), SpecError> {
        let mut ids = HashSet::from([SEED_ID, SCRATCH_ID, SYSPREP_ID, SCSI_CONTROLLER]);
        let mut serials = HashSet::new();
        let mut targets = HashSet::new();
        for disk in &self.disks {
            disk.validate()?;
            unique("disks", &disk.id, ids.insert(&disk.id))?;
            unique("disks", &disk.serial, serials.insert(&disk.serial))?;
            if let Some(target) = disk.target {
                unique("disks", &target.to_string(), targets.insert((disk.bus, target)))?;
            }
        }
        if self.disks.iter().filter(|d| d.boot).count() > 1 {
            return Err(SpecError::TwoBootDisks);
        }
        Ok(())
    }

    fn validate_cdroms(&self) -> Result<(), SpecError> {
        let mut slots = HashSet::new();
        for CdromSpec { slot, serial, medium, .. } in &self.cdroms {
            check("cdrom slot", &slot.to_string(), *slot < MAX_CDROMS, "0 to 3")?;
            unique("cdroms", &slot.to_string(), slots.insert(slot))?;
            let printable = printable(serial, MAX_SERIAL) && !serial.contains(' ');
            check("serial", serial, printable, "1 to 36 printable ASCII characters without spaces")?;
            let target = Some(FIRST_CDROM_TARGET + slot);
            let is_taken = self.disks.iter().any(|disk| disk.bus == Bus::VirtioScsi && disk.target == target);
            check("target", &format!("{target:?}"), !is_taken, "of a disk and of a CD-ROM drive")?;
            let Some(Medium { digest, .. }) = medium else { continue };
            check("digest", digest, plain(digest, 128), "hexadecimal digits, at most 128")?;
        }
        if self.cdroms.iter().filter(|cdrom| cdrom.boot_first).count() > 1 {
            return Err(SpecError::Twice { what: "cdroms", value: "boot_first".to_owned() });
        }
        Ok(())
    }

    fn validate_nics(&self) -> Result<(), SpecError> {
        let mut ids = HashSet::new();
        let mut slots = HashSet::new();
        let mut macs = HashSet::new();
        let mut ports = HashSet::new();
        check("nic ports", &self.nic_ports.to_string(), self.nic_ports <= NIC_PORTS, "0 to 10")?;
        for nic in &self.nics {
            nic.validate()?;
            unique("nics", &nic.id, ids.insert(&nic.id) && !self.disks.iter().any(|d| d.id == nic.id))?;
            unique("nics", &nic.slot.to_string(), slots.insert(nic.slot))?;
            if let Some(port) = nic.port {
                check("nic port", &port.to_string(), port < self.nic_ports, "a port of the machine")?;
                unique("nics", &port.to_string(), ports.insert(port))?;
            }
            unique("nics", &nic.mac, macs.insert(&nic.mac))?;
        }
        Ok(())
    }
}

impl DiskSpec {
    /// Checks a single disk, at boot and when it is plugged in.
    pub fn validate(&self) -> Result<(), SpecError> {
        check(
            "disk id",
            &self.id,
            is_id(&self.id),
            "a letter, then letters, digits, '-', '.', '_', at most 31",
        )?;
        let serial = printable(&self.serial, MAX_SERIAL) && !self.serial.contains(' ');
        check("serial", &self.serial, serial, "1 to 36 printable ASCII characters without spaces")?;
        let target = self.target.is_none_or(|t| ![SEED_TARGET, SCRATCH_TARGET].contains(&t));
        check(
            "target",
            &format!("{:?}", self.target),
            target,
            "255 is the bootstrap volume's, 254 the scratch disk's",
        )?;
        let most = match self.bus {
            Bus::VirtioScsi => None,
            Bus::VirtioBlk => Some(MAX_VIRTIO_BLK),
            Bus::Sata => Some(MAX_SATA),
        };
        let has_place = most.is_none_or(|most| self.target.is_some_and(|target| target < most));
        check("target", &format!("{:?}", self.target), has_place, "0 to 15 on virtio-blk, 0 to 5 on SATA")?;
        let sata_read_only = self.bus == Bus::Sata && self.read_only;
        check("bus", "sata", !sata_read_only, "a SATA disk cannot be read-only")?;
        check("format", "iso", self.format != Format::Iso, "a medium of a CD-ROM drive is no disk")?;
        let on_backing = self.format.is_qcow2() || self.backing.is_none();
        check("format", self.format.driver(), on_backing, "only a qcow2 disk can have a backing file")?;
        let is_in_ceph = RbdImage::is_rbd(&self.file);
        let fits = match self.format {
            Format::Raw => true,
            Format::Luks => is_in_ceph,
            Format::Qcow2 | Format::EncryptedQcow2 | Format::Iso => !is_in_ceph,
        };
        check(
            "format",
            self.format.driver(),
            fits,
            "an image of Ceph is raw or luks, and a file is not luks",
        )?;
        let is_raw_file = self.format == Format::Raw && !is_in_ceph;
        check("format", self.format.driver(), is_raw_file || !self.shared, "machines share raw files only")
    }
}

impl NicSpec {
    /// Checks a single network card, at boot and when it is plugged in.
    pub fn validate(&self) -> Result<(), SpecError> {
        check(
            "nic id",
            &self.id,
            is_id(&self.id),
            "a letter, then letters, digits, '-', '.', '_', at most 31",
        )?;
        check("nic slot", &self.slot.to_string(), self.slot < MAX_NICS, "0 to 13")?;
        check("mac", &self.mac, is_mac(&self.mac), "not a unicast MAC address such as 52:54:00:12:34:56")?;
        let has_place = self.port.is_none() || self.model.is_hot_pluggable();
        check(
            "nic model",
            self.model.driver(),
            has_place,
            "no PCI Express device: it has no place in a port",
        )?;
        let most = if self.model == NicModel::Virtio { MAX_QUEUES } else { 1 };
        let fits = (1..=most).contains(&self.queues);
        check("nic queues", &self.queues.to_string(), fits, "1 to 16 with a virtio card, else 1")
    }
}

pub(super) fn check(field: &'static str, value: &str, ok: bool, why: &'static str) -> Result<(), SpecError> {
    if ok { Ok(()) } else { Err(SpecError::Invalid { field, value: value.to_owned(), why }) }
}

fn unique(what: &'static str, value: &str, new: bool) -> Result<(), SpecError> {
    if new { Ok(()) } else { Err(SpecError::Twice { what, value: value.to_owned() }) }
}

/// The limit comes from node names: QEMU truncates them at 31 characters.
fn is_id(id: &str) -> bool {
    plain(id, 31) && id.starts_with(|c: char| c.is_ascii_alphabetic())
}

fn plain(text: &str, max: usize) -> bool {
    !text.is_empty()
        && text.len() <= max
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

fn printable(text: &str, max: usize) -> bool {
    !text.is_empty() && text.len() <= max && text.bytes().all(|b| (0x20..0x7f).contains(&b))
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|g| g.len()).eq([8, 4, 4, 4, 12])
        && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

/// Domain, bus, slot and function in hexadecimal: `0000:01:00.0`.
fn is_pci_address(text: &str) -> bool {
    let digits =
        |text: &str, count: usize| text.len() == count && text.bytes().all(|b| b.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let [domain, bus, slot, function] = parts[..] else { return false };
    digits(domain, 4)
        && digits(bus, 2)
        && digits(slot, 2)
        && digits(function, 1)
        && text == format!("{domain}:{bus}:{slot}.{function}")
}

fn is_mac(text: &str) -> bool {
    let octets: Option<Vec<u8>> =
        text.split(':').map(|o| (o.len() == 2).then(|| u8::from_str_radix(o, 16).ok()).flatten()).collect();
    octets.is_some_and(|o| o.len() == 6 && o[0] & 1 == 0)
}
