//! The description of a machine, as plain data, and the QEMU command line for it.
//!
//! [`MachineSpec`] is the machine as its guest sees it; [`MachineFiles`] are its files on the host. Both leave no choice to
//! the launcher: the caller decides once on every property that has to stay the same over a VM's life (machine type, CPU
//! model, PCI slots, MACs) and passes it in. Nothing here does I/O.

mod architecture;
mod boot;
mod command_line;
mod disk_key;
mod disks;
mod files;
mod hardware;
mod json;
mod nics;
mod rbd;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use architecture::{Architecture, UnknownArchitecture};
pub use boot::BootSource;
pub(crate) use command_line::{GUEST_AGENT_CHANNEL, TPM_CHANNEL, share_of_channel};
pub use command_line::{command_line, instance_of, name_of};
#[cfg(feature = "fake")]
pub(crate) use command_line::{seed_disk, share_channel};
pub(crate) use disk_key::key_id;
pub use disk_key::{DISK_KEY_LENGTH, DiskKey};
pub use disks::{Backing, Bus, Cache, CdromSpec, DiskSpec, ForeignFormat, Format, Medium, is_block_device};
pub use files::{
    Confinement, FwCfg, MachineFiles, MachinePaths, RunAs, SharedFolder, TpmFiles, UefiFiles, VirtiofsFiles,
    serial_log_name,
};
pub use hardware::{
    Accelerator, Firmware, Graphics, PciDeviceSpec, ShareSpec, Topology, UsbDeviceSpec, VgpuSpec, Watchdog,
};
pub(crate) use json::{
    BELOW, blockdevs, chain_blockdev, disk_device, medium_blockdev, nic_device, overlay_blockdev,
    reopened_blockdev, scsi_cdrom,
};
pub use nics::{NicModel, NicSpec, Tap};
pub use rbd::RbdImage;
#[cfg(test)]
pub(crate) use tests::example;
pub use validate::SpecError;

/// Id of the one virtio-scsi controller that all disks are attached to.
pub const SCSI_CONTROLLER: &str = "scsi0";
/// Id of the I/O thread that serves the controller, and the disks on other buses that have no thread of their own.
const DISK_THREAD: &str = "disks0";
/// Device id of the bootstrap volume.
pub const SEED_ID: &str = "seed";
/// Device id of the temporary disk, and its serial number.
pub const SCRATCH_ID: &str = "scratch";
/// The SCSI target of the temporary disk.
pub(crate) const SCRATCH_TARGET: u8 = SEED_TARGET - 1;
/// Device id of the volume with an answer file for Windows.
pub(crate) const SYSPREP_ID: &str = "sysprep";
/// Device id of the memory that is plugged in while the guest runs.
pub const MEMORY_DEVICE: &str = "memory0";
/// The bytes in which such memory is plugged in and out.
pub const MEMORY_BLOCK: u64 = 2 << 20;
/// Device id of the balloon.
pub(crate) const BALLOON: &str = "balloon0";
/// The SCSI target of the bootstrap volume: the last one, so that no disk ever needs it.
pub const SEED_TARGET: u8 = 255;
/// The maximum number of CD-ROM drives.
pub const MAX_CDROMS: u8 = 4;
/// The SCSI target of the first CD-ROM drive: the last drive has the last target from which UEFI firmware boots.
const FIRST_CDROM_TARGET: u8 = 28;
/// The PCI slot of the first NIC that is there from the start.
const SLOT_FIRST_NIC: u8 = 0x10;
/// The PCI slots of disks, with eight functions each. NICs have 0x10 to 0x1d, and the chipset 0x1f.
const DISK_SLOTS: [u8; 2] = [0x1e, 0xf];
/// The maximum number of disks with a PCI function of their own.
pub const MAX_VIRTIO_BLK: u8 = 16;
/// The number of ports of the SATA controller.
pub const MAX_SATA: u8 = 6;
/// The number of NICs with a reserved PCI slot.
pub const MAX_NICS: u8 = 14;
/// The maximum number of NUMA nodes of a guest.
pub const MAX_NUMA_NODES: u16 = 8;
/// Pairs of queues of a network card.
pub const MAX_QUEUES: u8 = 16;
/// The maximum number of PCI Express ports of a machine for network cards, which can be plugged in and out while it runs.
pub const NIC_PORTS: u8 = 10;
/// The number of these ports of a machine with few cards: each one more costs time at its start.
pub const USUAL_NIC_PORTS: u8 = 8;
/// The maximum number of PCI devices of the host in a machine.
pub const MAX_PCI_DEVICES: u8 = 8;
/// The maximum number of USB devices of the host in a machine.
pub const MAX_USB_DEVICES: u8 = 8;
/// The maximum number of vGPUs in a machine.
pub const MAX_VGPUS: u8 = 8;
/// The highest number of a USB bus: its device files have names of three digits.
pub const MAX_USB_BUS: u16 = 999;
/// The maximum number of shares of a machine.
pub const MAX_SHARES: u8 = 8;
/// The maximum length of the tag of a share, in bytes: virtio-fs has room for no more.
pub const MAX_SHARE_TAG: usize = 36;
/// The maximum number of options of a machine.
pub const MAX_OPTIONS: usize = 32;
/// The groups of these options.
const OPTION_GROUPS: [&str; 3] = ["machine.", "cpu.", "global."];
/// The beginning of the ids of these ports.
pub(crate) const PORT_PREFIX: &str = "nicport";
/// The maximum number of serial ports of a machine.
pub const MAX_SERIAL_PORTS: u8 = 4;
/// The first context id for vsock devices. Below it are those of the kernel, and those that other programs choose by counting from 3.
pub const FIRST_CID: u32 = 1 << 16;
/// The last context id for vsock devices.
pub const LAST_CID: u32 = (1 << 31) - 1;
/// The maximum length of a serial number in SCSI VPD page 0x80 as QEMU writes it.
pub const MAX_SERIAL: usize = 36;
/// `sun_path` holds 108 bytes including the final NUL.
const MAX_SOCKET_PATH: usize = 107;

/// The id of a port for network cards, and the name of its bus.
pub(crate) fn port_name(number: u8) -> String {
    format!("{PORT_PREFIX}{number}")
}

/// The id of the network back end of a card.
pub(crate) fn backend_of(nic: &str) -> String {
    format!("net-{nic}")
}

/// A PCI slot in QEMU's form.
fn slot(number: u8) -> String {
    format!("{number:#x}")
}

/// A complete machine: equal specs give equal command lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchSpec {
    pub machine: MachineSpec,
    pub files: MachineFiles,
    #[serde(default)]
    pub affinity: Affinity,
}

/// The part of its host that a machine uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// The CPUs of the host for all threads of the process but those of virtual CPUs in `vcpus`. Empty: any.
    pub emulator: Vec<u32>,
    /// The CPU of the host for each virtual CPU, in the order of their numbers. Empty: those of `emulator`.
    pub vcpus: Vec<u32>,
    /// The NUMA node of the host for each one of the guest, in the order of their numbers: the guest node's memory is taken from there as long
    /// as it has some. None, or missing: that of the thread that uses it first.
    #[serde(default)]
    pub memory_nodes: Vec<Option<u32>>,
}

impl Affinity {
    fn memory_node(&self, guest_node: u16) -> Option<u32> {
        self.memory_nodes.get(usize::from(guest_node)).copied().flatten()
    }
}

/// A machine as its guest sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// berth's own stable identifier, part of the command line so that the running process can be found again.
    pub instance: String,
    /// The name for people; shown by `ps` and in QEMU's own messages.
    pub name: String,
    /// SMBIOS UUID, in the usual text form.
    pub uuid: String,
    pub cpus: u16,
    /// The arrangement of the CPUs, with the places of those that can be plugged in while it runs.
    pub topology: Topology,
    /// The NUMA nodes that the guest sees, 1 to [`MAX_NUMA_NODES`]. CPUs and memory are divided evenly among them; with several neither can
    /// grow.
    #[serde(default = "one_node")]
    pub numa_nodes: u16,
    pub memory_bytes: u64,
    /// The memory up to which the guest can grow while it runs: above `memory_bytes` by a multiple of [`MEMORY_BLOCK`].
    /// None: not at all.
    #[serde(default)]
    pub max_memory_bytes: Option<u64>,
    /// The bytes of the huge pages that the guest's memory consists of, of which it is a multiple. None: ordinary pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_page_bytes: Option<u64>,
    pub accelerator: Accelerator,
    pub firmware: Firmware,
    /// A versioned machine type, e.g. `pc-q35-7.2`, never an alias such as `q35`. It determines the architecture.
    pub machine_type: String,
    /// QEMU's `-cpu` value, e.g. `host` or `qemu64,+ssse3`.
    pub cpu_model: String,
    pub disks: Vec<DiskSpec>,
    #[serde(default)]
    pub cdroms: Vec<CdromSpec>,
    pub nics: Vec<NicSpec>,
    /// The number of its ports for network cards, at most [`NIC_PORTS`]. Machines of older agents have none.
    #[serde(default)]
    pub nic_ports: u8,
    #[serde(default)]
    pub graphics: Graphics,
    /// PCI devices of the host, at most [`MAX_PCI_DEVICES`]. The position in the list determines the port.
    #[serde(default)]
    pub pci_devices: Vec<PciDeviceSpec>,
    /// USB devices of the host, at most [`MAX_USB_DEVICES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usb_devices: Vec<UsbDeviceSpec>,
    /// vGPUs of the host, at most [`MAX_VGPUS`]. The position in the list determines the port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vgpus: Vec<VgpuSpec>,
    /// Folders of the host that the guest mounts, at most [`MAX_SHARES`]. The position in the list determines the PCI function.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<ShareSpec>,
    #[serde(default)]
    pub extras: Extras,
    /// Whether it has a TPM 2.0, which the program of [`MachineFiles::tpm`] emulates.
    #[serde(default)]
    pub tpm: bool,
}

impl MachineSpec {
    /// The places for CPUs.
    pub(crate) fn places(&self) -> Topology {
        let further = u16::from(self.extras.place_for_second_cpu);
        Topology { sockets: self.topology.sockets.saturating_add(further), ..self.topology }
    }

    /// The numbers of its serial ports.
    pub(crate) fn serial_ports(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.extras.further_serial_ports.saturating_add(1)
    }
}

/// Properties that most machines do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extras {
    /// A Windows guest: the clock shows the host's local time, and with KVM the guest sees Hyper-V's interfaces, for which it has
    /// drivers.
    pub windows: bool,
    /// Whether it has no HPET: Windows would use that timer as its clock, and each read of it exits to the host. Apart from `windows`: a
    /// guest that was saved with one is loaded with one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_hpet: bool,
    /// Whether a machine with one CPU has a place for a second one, which nothing is plugged into. QEMU emulates the memory barriers and
    /// atomic instructions of a guest as such only in a machine that can have several CPUs (`mttcg_start_vcpu_thread`, `CF_PARALLEL`).
    /// Its virtio devices work in threads of their own: without barriers the guest misses that a device waits for its notification, and
    /// a disk or a network card stands still. A guest that was saved without the place is loaded without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub place_for_second_cpu: bool,
    /// The SMBIOS serial number. None: [`MachineSpec::instance`].
    pub serial_number: Option<String>,
    /// A watchdog timer. None: the machine has none.
    pub watchdog: Option<Watchdog>,
    /// Properties by name, at most [`MAX_OPTIONS`]: `machine.PROPERTY`, `cpu.FLAG` and `global.DEVICE.PROPERTY`. Names and values are
    /// letters, digits, `-`, `.` and `_`. The caller decides which properties are allowed.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The sources that the firmware tries, in this order, each at most once. Empty: the boot disk, then the CD-ROM drives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boot_order: Vec<BootSource>,
    /// Width and height of the screen that the guest starts with. None: the firmware and the guest choose them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<(u16, u16)>,
    /// The name of QEMU's keyboard layout for viewers that send characters. None: `en-us`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyboard_layout: Option<String>,
    /// Whether each disk on virtio-blk has an I/O thread of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thread_per_disk: bool,
    /// Whether it has a sound card.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sound: bool,
    /// The number of serial ports beside the first: at most [`MAX_SERIAL_PORTS`] together.
    #[serde(default)]
    pub further_serial_ports: u8,
    /// The context id of its vsock device, from [`FIRST_CID`] to [`LAST_CID`]. None: it has no such device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsock_cid: Option<u32>,
}

impl Extras {
    /// The options of a group, without its name.
    fn options_of(&self, group: &'static str) -> impl Iterator<Item = (&str, &str)> {
        self.options.iter().filter_map(move |(name, value)| {
            let property = name.strip_prefix(group)?.strip_prefix('.')?;
            Some((property, value.as_str()))
        })
    }
}

fn one_node() -> u16 {
    1
}
