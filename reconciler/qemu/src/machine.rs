//! The description of a machine, as plain data, and the QEMU command line for it.
//!
//! [`MachineSpec`] is the machine as its guest sees it; [`MachineFiles`] are its files on the host. Both leave no choice to
//! the launcher: the caller decides once on every property that has to stay the same over a VM's life (machine type, CPU
//! model, PCI slots, MACs) and passes it in. Nothing here does I/O.

mod boot;
mod command_line;
mod disk_key;
mod json;
mod rbd;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use boot::BootSource;
pub(crate) use command_line::{GUEST_AGENT_CHANNEL, TPM_CHANNEL, share_of_channel};
pub use command_line::{command_line, instance_of, name_of};
#[cfg(feature = "fake")]
pub(crate) use command_line::{seed_disk, share_channel};
pub(crate) use disk_key::key_id;
pub use disk_key::{DISK_KEY_LENGTH, DiskKey};
pub(crate) use json::{
    BELOW, blockdevs, chain_blockdev, disk_device, medium_blockdev, nic_device, overlay_blockdev,
    reopened_blockdev, scsi_cdrom,
};
pub use rbd::RbdImage;
#[cfg(test)]
pub(crate) use tests::example;
pub use validate::SpecError;

/// Id of the one virtio-scsi controller that all disks are attached to.
pub const SCSI_CONTROLLER: &str = "scsi0";
/// Id of the thread that serves the controller, beside QEMU's main loop.
const DISK_THREAD: &str = "disks0";
/// Device id of the bootstrap volume.
pub const SEED_ID: &str = "seed";
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
    /// A versioned machine type, e.g. `pc-q35-7.2`, never an alias such as `q35`.
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
    /// The numbers of its serial ports.
    pub(crate) fn serial_ports(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.extras.further_serial_ports.saturating_add(1)
    }
}

/// A PCI device of the host that the guest has for itself (VFIO).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PciDeviceSpec {
    /// The addresses of its functions on the host, 1 to 8, such as `0000:01:00.0`. In the guest they are the functions of one device.
    pub functions: Vec<String>,
    /// The numbers of their IOMMU groups.
    pub groups: Vec<u32>,
}

/// A USB device of the host that the guest has for itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UsbDeviceSpec {
    /// The port that it is in, bus and port as the kernel writes them: `1-2.3`.
    pub port: String,
    /// The number of its bus, at most [`MAX_USB_BUS`].
    pub bus: u16,
    /// Its number on that bus, 1 to 127. The kernel gives it another one whenever it is plugged in.
    pub number: u16,
}

impl UsbDeviceSpec {
    /// Its device file, through which a program controls it.
    pub fn node(&self) -> PathBuf {
        PathBuf::from(format!("/dev/bus/usb/{:03}/{:03}", self.bus, self.number))
    }
}

/// A vGPU: a mediated device of the host, that is a part of a PCI device, which the guest has for itself (VFIO).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VgpuSpec {
    /// The UUID of the mediated device, in the usual text form.
    pub uuid: String,
    /// The address of the PCI device that it is a part of, such as `0000:41:00.0`.
    pub parent: String,
    /// Its type, as the driver of that device names it, such as `nvidia-558`.
    pub mdev_type: String,
}

impl VgpuSpec {
    /// Its folder in sysfs, by which QEMU finds it.
    pub fn folder(&self) -> PathBuf {
        Path::new("/sys/bus/mdev/devices").join(&self.uuid)
    }
}

/// A folder of the host that the guest mounts (virtio-fs).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareSpec {
    /// The name under which the host shares it.
    pub name: String,
    /// The tag by which the guest mounts it; at most [`MAX_SHARE_TAG`] letters, digits, `-`, `.` and `_`; unique in the machine.
    pub tag: String,
    /// Whether the guest can only read it.
    pub read_only: bool,
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

/// What happens when the guest has not reset its watchdog timer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Watchdog {
    /// The guest is reset.
    Reset,
    /// The machine stops in the state [`RunState::Watchdog`](crate::power::RunState::Watchdog).
    Stop,
}

/// The graphics card that the guest sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Graphics {
    /// No card, and no screen. The firmware writes to the serial line.
    #[default]
    None,
    /// A VGA card with a VNC server at [`MachinePaths::vnc`], and a USB tablet: a pointer with absolute positions.
    Vga,
}

/// The arrangement of the CPUs that the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    pub sockets: u16,
    /// Of each socket.
    pub cores: u16,
    /// Of each core.
    pub threads: u16,
}

impl Topology {
    /// One socket with cores of one thread.
    #[must_use]
    pub const fn of_cores(cores: u16) -> Self {
        Self { sockets: 1, cores, threads: 1 }
    }

    pub(crate) fn cpus(self) -> u32 {
        let of_socket = u32::from(self.cores).saturating_mul(self.threads.into());
        u32::from(self.sockets).saturating_mul(of_socket)
    }

    /// Whether this many nodes of consecutive CPUs consist of whole sockets each, or of whole cores of one socket.
    fn divides_among(self, nodes: u16) -> bool {
        let Self { sockets, cores, .. } = self;
        if nodes == 0 || sockets == 0 {
            return false;
        }
        sockets.is_multiple_of(nodes)
            || nodes.is_multiple_of(sockets) && cores.is_multiple_of(nodes / sockets)
    }
}

/// The files of a machine on its host, and the user that opens them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFiles {
    pub paths: MachinePaths,
    /// Present exactly for firmware other than [`Firmware::Bios`].
    pub uefi: Option<UefiFiles>,
    /// A raw image with the bootstrap data (NoCloud), presented to the guest as a read-only disk.
    pub seed: Option<PathBuf>,
    /// Present exactly for a machine with [`MachineSpec::tpm`].
    #[serde(default)]
    pub tpm: Option<TpmFiles>,
    /// Present exactly for a machine with [`MachineSpec::shares`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtiofs: Option<VirtiofsFiles>,
    /// A raw image with an answer file for Windows, presented to the guest as a read-only, removable USB disk.
    #[serde(default)]
    pub sysprep: Option<PathBuf>,
    /// Files that the firmware configuration device passes to the guest (Ignition reads `opt/com.coreos/config`).
    pub fw_cfg: Vec<FwCfg>,
    /// The device files of VFIO: those of the IOMMU groups of its PCI devices and vGPUs. QEMU's user owns them while it runs.
    #[serde(default)]
    pub vfio_groups: Vec<PathBuf>,
    /// The device files of its USB devices. QEMU's user owns them while it runs.
    #[serde(default)]
    pub usb_nodes: Vec<PathBuf>,
    /// The user that QEMU runs as, and the files that it can open. None: the launcher's default user, unconfined.
    pub confinement: Option<Confinement>,
    /// Whether the machine waits for a saved state instead of booting: see [`crate::saved_state`].
    #[serde(default)]
    pub from_saved_state: bool,
    /// The keys of its encrypted disks, by the ids of the disks. They are never written to a file.
    #[serde(skip)]
    pub keys: BTreeMap<String, DiskKey>,
    /// The numbers of open descriptors in the QEMU process that it reads these keys from, by the ids of the disks.
    #[serde(default)]
    pub key_files: BTreeMap<String, i32>,
    /// The number of the open descriptor of `/dev/vhost-vsock` in the QEMU process, for a machine with a vsock device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsock_file: Option<i32>,
}

impl MachineFiles {
    /// Sockets and logs in `paths`, and no other file.
    pub fn new(paths: MachinePaths) -> Self {
        Self {
            paths,
            uefi: None,
            seed: None,
            tpm: None,
            virtiofs: None,
            sysprep: None,
            fw_cfg: Vec::new(),
            vfio_groups: Vec::new(),
            usb_nodes: Vec::new(),
            confinement: None,
            from_saved_state: false,
            keys: BTreeMap::new(),
            key_files: BTreeMap::new(),
            vsock_file: None,
        }
    }
}

/// The user QEMU runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
}

/// The user of one machine's QEMU, and the directories that it can access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Used by this machine only.
    pub user: RunAs,
    /// Directories in which it opens files that its user owns, at start and when a disk is plugged in later.
    pub folders: Vec<PathBuf>,
}

/// The component that executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Accelerator {
    Kvm,
    /// QEMU's own translator. Without a limit its translation cache takes up to 1 GiB per machine.
    Tcg {
        tb_size_mib: u32,
    },
}

/// The firmware that the machine starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Firmware {
    Bios,
    Uefi,
    /// UEFI that starts only what is signed with the keys in its variables, which come with the firmware.
    UefiSecureBoot,
    /// The same, with keys that were enrolled.
    UefiOwnKeys,
}

/// The files of UEFI firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UefiFiles {
    /// Shared and read-only.
    pub code: PathBuf,
    /// The machine's own variables, which it writes.
    pub vars: PathBuf,
    /// Whether the code needs system management mode. The variables are then writable in this mode only.
    #[serde(default)]
    pub smm: bool,
}

/// The emulator of a machine's TPM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TpmFiles {
    /// swtpm.
    pub program: PathBuf,
    /// The directory of the TPM's memory, used by this machine only. It outlives the machine's processes.
    pub state: PathBuf,
}

/// The servers of a machine's shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtiofsFiles {
    /// virtiofsd.
    pub program: PathBuf,
    /// The folders, in the order of [`MachineSpec::shares`].
    pub folders: Vec<SharedFolder>,
}

/// A folder that a guest reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedFolder {
    /// Absolute, without symbolic links, commas and backslashes.
    pub path: PathBuf,
    pub read_only: bool,
}

/// An image format. Declared by the creator of the file; never probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Format {
    Raw,
    Qcow2,
    /// qcow2 with encrypted data, which a key of the disk opens. Never the format of an image.
    EncryptedQcow2,
    /// ISO 9660: a medium of a CD-ROM drive. To QEMU it is raw.
    Iso,
}

impl Format {
    /// The name of QEMU's block driver.
    pub fn driver(self) -> &'static str {
        match self {
            Self::Raw | Self::Iso => "raw",
            Self::Qcow2 | Self::EncryptedQcow2 => "qcow2",
        }
    }

    /// Whether its header is that of qcow2, which may name a backing file.
    #[must_use]
    pub fn is_qcow2(self) -> bool {
        matches!(self, Self::Qcow2 | Self::EncryptedQcow2)
    }

    #[must_use]
    pub fn is_encrypted(self) -> bool {
        self == Self::EncryptedQcow2
    }

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::EncryptedQcow2 => "encrypted qcow2",
            Self::Iso => "iso",
        }
    }
}

/// The controller that a disk is attached to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Bus {
    /// The one that disks can be plugged into while the machine runs.
    #[default]
    VirtioScsi,
    /// A PCI function for each disk.
    VirtioBlk,
    /// The AHCI controller of the chipset, for guests without a virtio driver.
    Sata,
}

impl Bus {
    const ALL: [Self; 3] = [Self::VirtioScsi, Self::VirtioBlk, Self::Sata];

    /// The number of its places for disks of the start. On virtio-scsi they are those before the CD-ROM drives.
    #[must_use]
    pub fn places(self) -> u8 {
        match self {
            Self::VirtioScsi => FIRST_CDROM_TARGET,
            Self::VirtioBlk => MAX_VIRTIO_BLK,
            Self::Sata => MAX_SATA,
        }
    }

    /// The name of QEMU's device.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            Self::VirtioScsi => "scsi-hd",
            Self::VirtioBlk => "virtio-blk-pci",
            Self::Sata => "ide-hd",
        }
    }

    pub(crate) fn of_driver(driver: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bus| bus.driver() == driver)
    }

    /// The id or path of the device that has the block node of a disk.
    pub(crate) fn backend(self, id: &str) -> String {
        match self {
            Self::VirtioBlk => format!("/machine/peripheral/{id}/virtio-backend"),
            Self::VirtioScsi | Self::Sata => id.to_owned(),
        }
    }

    /// The prefix that udev gives the serial number in `/dev/disk/by-id`.
    #[must_use]
    pub fn by_id_prefix(self) -> &'static str {
        match self {
            Self::VirtioScsi => "scsi-0QEMU_QEMU_HARDDISK_",
            Self::VirtioBlk => "virtio-",
            Self::Sata => "ata-QEMU_HARDDISK_",
        }
    }
}

/// The format of an image that has to be converted before a machine can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ForeignFormat {
    /// VMware, one file (monolithic sparse or stream-optimized).
    Vmdk,
    /// VirtualBox.
    Vdi,
    /// Hyper-V.
    Vhdx,
    /// Hyper-V, Azure and Virtual PC.
    Vhd,
}

impl ForeignFormat {
    /// The name of QEMU's block driver.
    pub fn driver(self) -> &'static str {
        match self {
            Self::Vmdk => "vmdk",
            Self::Vdi => "vdi",
            Self::Vhdx => "vhdx",
            Self::Vhd => "vpc",
        }
    }

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vhd => "vhd",
            other => other.driver(),
        }
    }
}

/// A disk of a machine. The same description is used at boot and, on the virtio-scsi controller, for hot plug.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpec {
    /// The device id and the block node's name: letters, digits, `-`, `.`, `_`, first a letter, at most 31 characters.
    pub id: String,
    pub file: PathBuf,
    pub format: Format,
    /// The backing file of a qcow2 overlay. None means that there is none, regardless of the overlay's header.
    pub backing: Option<Backing>,
    /// The disk's serial number in the guest; at most [`MAX_SERIAL`] printable ASCII characters.
    pub serial: String,
    /// The world wide name in the guest, if any.
    pub wwn: Option<u64>,
    /// The boot disk (at most one).
    pub boot: bool,
    pub read_only: bool,
    /// SCSI target 0–254; None: QEMU takes the lowest free one. Firmware finds boot disks up to 31. On the other buses,
    /// the number of the disk on its bus.
    pub target: Option<u8>,
    pub cache: Cache,
    #[serde(default)]
    pub bus: Bus,
    /// Whether the file keeps the space of what the guest discards or overwrites with zeros.
    #[serde(default)]
    pub keeps_space: bool,
}

/// A CD-ROM drive on the virtio-scsi controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CdromSpec {
    /// 0 to 3, unique in the machine: it determines the ids and the SCSI target.
    pub slot: u8,
    /// The drive's serial number in the guest; at most [`MAX_SERIAL`] printable ASCII characters.
    pub serial: String,
    /// Whether the firmware tries it before the boot disk, and not after it. At most one.
    pub boot_first: bool,
    pub medium: Option<Medium>,
}

impl CdromSpec {
    /// The device's id.
    pub fn id(slot: u8) -> String {
        format!("cdrom{slot}")
    }
}

/// A medium: an ISO 9660 image, which is only read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Medium {
    /// Identifies the content: lower-case hexadecimal digits.
    pub digest: String,
    pub file: PathBuf,
}

impl Medium {
    /// The name of the block node of a medium with this content in this drive.
    pub fn node(slot: u8, digest: &str) -> String {
        let id = CdromSpec::id(slot);
        format!("{id}-{}", digest.get(..20).unwrap_or(digest))
    }
}

/// The read-only backing file of an overlay. Encrypted files in the chain of a disk have the key of the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backing {
    pub file: PathBuf,
    pub format: Format,
    /// The file that it is an overlay on itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<Box<Backing>>,
}

impl Backing {
    /// Returns the number of its files, with those below it.
    #[must_use]
    pub fn files(&self) -> u64 {
        1 + self.backing.as_deref().map_or(0, Self::files)
    }
}

/// How the host caches a disk's data. A guest's flush reaches the disk in every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cache {
    /// The host's page cache: all overlays on a base image share its pages in memory.
    #[default]
    Writeback,
    /// O_DIRECT with Linux AIO. Not supported by every file system (not by overlayfs and old tmpfs). A backing file stays in the page
    /// cache, which all overlays on it share.
    Direct,
    /// O_DIRECT with io_uring.
    DirectIoUring,
}

impl Cache {
    /// Whether the disk's own file bypasses the page cache.
    #[must_use]
    pub fn is_direct(self) -> bool {
        self != Self::Writeback
    }

    /// QEMU's asynchronous I/O.
    #[must_use]
    pub fn aio(self) -> &'static str {
        match self {
            Self::Writeback => "threads",
            Self::Direct => "native",
            Self::DirectIoUring => "io_uring",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicSpec {
    /// The device id: same rule as [`DiskSpec::id`].
    pub id: String,
    pub tap: Tap,
    /// `52:54:00:…`, lower case.
    pub mac: String,
    /// The MTU advertised to the guest.
    pub mtu: Option<u16>,
    /// 0–13, unique in the machine, fixed for the NIC's life: it determines the interface name in the guest.
    pub slot: u8,
    #[serde(default)]
    pub model: NicModel,
    /// The port of the machine that it is plugged into; unique in the machine. None: its place follows from `slot`, and it stays
    /// there while the machine runs.
    #[serde(default)]
    pub port: Option<u8>,
    /// Pairs of a receive and a transmit queue, 1–16; more than one of [`NicModel::Virtio`] only.
    #[serde(default = "one_queue")]
    pub queues: u8,
    /// Whether QEMU moves the packets of a [`NicModel::Virtio`] card also where the host's kernel could.
    #[serde(default)]
    pub no_vhost: bool,
}

fn one_queue() -> u8 {
    1
}

fn one_node() -> u16 {
    1
}

/// The network card that the guest sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NicModel {
    #[default]
    Virtio,
    /// Intel 82540EM, gigabit, on PCI.
    E1000,
    /// Intel 82574L, gigabit, on PCI Express.
    E1000e,
    /// Realtek RTL8139, 100 Mbit/s.
    Rtl8139,
}

impl NicModel {
    const ALL: [Self; 4] = [Self::Virtio, Self::E1000, Self::E1000e, Self::Rtl8139];

    /// Whether it is a PCI Express device, which has a place in a port.
    #[must_use]
    pub fn is_hot_pluggable(self) -> bool {
        matches!(self, Self::Virtio | Self::E1000e)
    }

    pub(crate) fn of_driver(driver: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.driver() == driver)
    }

    /// The file with the program by which BIOS and UEFI boot from the card (iPXE), which QEMU looks for in its own folders.
    pub(crate) fn boot_rom(self) -> &'static str {
        match self {
            Self::Virtio => "efi-virtio.rom",
            Self::E1000 => "efi-e1000.rom",
            Self::E1000e => "efi-e1000e.rom",
            Self::Rtl8139 => "efi-rtl8139.rom",
        }
    }

    /// The name of QEMU's device.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-net-pci",
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::Rtl8139 => "rtl8139",
        }
    }
}

/// A tap interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tap {
    /// Opened by the launcher and passed to QEMU, which may not open it itself.
    Name(String),
    /// The numbers of open descriptors in the QEMU process, one for each queue. With one of `/dev/vhost-net` for each, the host's
    /// kernel moves the packets, not QEMU.
    Open { taps: Vec<i32>, vhosts: Vec<i32> },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FwCfg {
    pub name: String,
    pub file: PathBuf,
}

/// The name of the log of a serial port. The first one has number 1.
#[must_use]
pub fn serial_log_name(number: u8) -> String {
    if number <= 1 { "serial.log".to_owned() } else { format!("serial{number}.log") }
}

/// The paths of a machine's sockets and logs. The directory belongs to this machine only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachinePaths {
    pub directory: PathBuf,
    /// The monitor for the machine's owner, which keeps it open.
    pub qmp: PathBuf,
    /// A second monitor for people and for rescue: a monitor serves one client at a time, a second one would only wait.
    pub rescue: PathBuf,
    pub guest_agent: PathBuf,
    pub serial_socket: PathBuf,
    /// The VNC server of a machine with [`Graphics::Vga`]. It requires no password: who can connect sees and types.
    pub vnc: PathBuf,
    /// The control socket of the TPM's emulator.
    pub tpm: PathBuf,
    pub serial_log: PathBuf,
    /// QEMU's own output.
    pub stderr_log: PathBuf,
}

impl MachinePaths {
    /// The default names in `directory`. They are short, because a unix socket path is limited to 107 bytes.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        Self {
            qmp: directory.join("qmp.sock"),
            rescue: directory.join("rescue.sock"),
            guest_agent: directory.join("qga.sock"),
            serial_socket: directory.join("serial.sock"),
            vnc: directory.join("vnc.sock"),
            tpm: directory.join("tpm.sock"),
            serial_log: directory.join("serial.log"),
            stderr_log: directory.join("qemu.log"),
            directory,
        }
    }

    /// The same with the logs in another directory, which QEMU's user does not own: QEMU can write to the logs but not
    /// replace them.
    pub fn with_logs_in(self, folder: &Path) -> Self {
        Self { serial_log: folder.join("serial.log"), stderr_log: folder.join("qemu.log"), ..self }
    }

    /// The socket and the log of a serial port. The first one has number 1.
    pub fn serial_port(&self, number: u8) -> (PathBuf, PathBuf) {
        if number <= 1 {
            return (self.serial_socket.clone(), self.serial_log.clone());
        }
        let socket = self.serial_socket.with_file_name(format!("serial{number}.sock"));
        (socket, self.serial_log.with_file_name(serial_log_name(number)))
    }

    /// The same with this serial port in the place of the first one.
    #[must_use]
    pub fn with_serial_port(self, number: u8) -> Self {
        let (serial_socket, serial_log) = self.serial_port(number);
        Self { serial_socket, serial_log, ..self }
    }

    /// The socket of the server of a share, by its position in the list.
    pub fn share(&self, number: usize) -> PathBuf {
        self.directory.join(format!("fs{number}.sock"))
    }

    fn sockets(&self) -> [&Path; 6] {
        [&self.qmp, &self.rescue, &self.guest_agent, &self.serial_socket, &self.vnc, &self.tpm]
    }
}
