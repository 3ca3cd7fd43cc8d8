//! What a machine is, as plain data, and the command line that makes QEMU be it.
//!
//! [`MachineSpec`] leaves no choice to the launcher: whatever has to stay the same over a VM's life (machine type,
//! CPU model, PCI slots, MACs) is decided by the caller once and handed in. Nothing here does I/O.

mod command_line;
mod json;
#[cfg(test)]
mod tests;
mod validate;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[cfg(feature = "fake")]
pub(crate) use command_line::{GUEST_AGENT_CHANNEL, seed_disk};
pub use command_line::{command_line, instance_of, name_of};
pub(crate) use json::{blockdev, scsi_disk};
#[cfg(test)]
pub(crate) use tests::example;
pub use validate::SpecError;

/// Id of the one virtio-scsi controller every disk hangs on.
pub const SCSI_CONTROLLER: &str = "scsi0";
/// Device id of the bootstrap volume.
pub const SEED_ID: &str = "seed";
/// The SCSI target of the bootstrap volume: the last one, so that no disk ever needs it.
pub const SEED_TARGET: u8 = 255;
/// How many NICs have a PCI slot reserved.
pub const MAX_NICS: u8 = 14;
/// SCSI VPD page 0x80 as QEMU writes it holds no more.
pub const MAX_SERIAL: usize = 36;
/// `sun_path` holds 108 bytes including the final NUL.
const MAX_SOCKET_PATH: usize = 107;

/// One machine, complete: equal specs give equal command lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// berth's own stable identity; found again in the command line of the running process.
    pub instance: String,
    /// What people call it; shown by `ps` and in QEMU's own messages.
    pub name: String,
    /// SMBIOS UUID, in the usual text form.
    pub uuid: String,
    pub cpus: u16,
    pub memory_bytes: u64,
    pub accelerator: Accelerator,
    pub firmware: Firmware,
    /// A versioned machine type, e.g. `pc-q35-7.2`, never an alias such as `q35`.
    pub machine_type: String,
    /// QEMU's `-cpu` value, e.g. `host` or `qemu64,+ssse3`.
    pub cpu_model: String,
    pub disks: Vec<DiskSpec>,
    pub nics: Vec<NicSpec>,
    /// A raw image with the bootstrap data (NoCloud), shown to the guest as a read-only disk.
    pub seed: Option<PathBuf>,
    /// Files the firmware configuration device offers to the guest (Ignition reads `opt/com.coreos/config`).
    pub fw_cfg: Vec<FwCfg>,
    pub paths: MachinePaths,
    /// A VNC server on this unix socket; without it the machine has no graphics at all.
    pub vnc_socket: Option<PathBuf>,
}

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Accelerator {
    Kvm,
    /// QEMU's own translator. Without a bound its translation cache takes up to 1 GiB per machine.
    Tcg {
        tb_size_mib: u32,
    },
}

/// What the machine runs first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Firmware {
    Bios,
    /// `code` is shared and read-only; `vars` belongs to this machine and is written by it.
    Uefi {
        code: PathBuf,
        vars: PathBuf,
    },
}

/// An image format. Named by whoever made the file; never probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    Raw,
    Qcow2,
}

impl Format {
    /// QEMU's block driver of this name.
    pub fn driver(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// A disk on the virtio-scsi controller, at boot or plugged in later: the same description does for both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpec {
    /// Becomes the device id, and the block node's name: letters, digits, `-`, `.`, `_`, first a letter, at most 31.
    pub id: String,
    pub file: PathBuf,
    pub format: Format,
    /// The file below a qcow2 overlay. None means that there is none, whatever the overlay's header says.
    pub backing: Option<Backing>,
    /// What the guest sees as the disk's serial number; at most [`MAX_SERIAL`] printable ASCII characters.
    pub serial: String,
    /// World wide name, if the guest shall see one.
    pub wwn: Option<u64>,
    /// The boot disk (at most one).
    pub boot: bool,
    pub read_only: bool,
    /// SCSI target 0–254; None lets QEMU take the lowest free one. Firmware finds boot disks up to 31.
    pub target: Option<u8>,
    pub cache: Cache,
}

/// The read-only file below an overlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backing {
    pub file: PathBuf,
    pub format: Format,
}

/// How the host keeps a disk's data on its way to the file. A guest's flush reaches the disk in every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cache {
    /// Through the host's page cache: base images are shared in memory by all overlays on them.
    #[default]
    Writeback,
    /// O_DIRECT with Linux AIO. Not every file system has it (overlayfs and old tmpfs do not).
    Direct,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicSpec {
    /// Becomes the device id: same rule as [`DiskSpec::id`].
    pub id: String,
    pub tap: Tap,
    /// `52:54:00:…`, lower case.
    pub mac: String,
    /// Told to the guest as the MTU to use.
    pub mtu: Option<u16>,
    /// 0–13, unique in the machine, fixed for the NIC's life: it decides the interface name in the guest.
    pub slot: u8,
}

/// A tap interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tap {
    /// Opened by the launcher and handed to QEMU, which itself may not.
    Name(String),
    /// An open descriptor of this number in the QEMU process.
    Fd(i32),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FwCfg {
    pub name: String,
    pub file: PathBuf,
}

/// Where a machine's sockets and logs are. The directory belongs to this one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachinePaths {
    pub directory: PathBuf,
    /// The monitor the owner of the machine keeps open.
    pub qmp: PathBuf,
    /// A second monitor for people and for rescue: a second client on one monitor only waits.
    pub rescue: PathBuf,
    pub guest_agent: PathBuf,
    pub serial_socket: PathBuf,
    pub serial_log: PathBuf,
    /// What QEMU itself says.
    pub stderr_log: PathBuf,
}

impl MachinePaths {
    /// The usual names below `directory`. Names are short: unix socket paths end at 107 bytes.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        Self {
            qmp: directory.join("qmp.sock"),
            rescue: directory.join("rescue.sock"),
            guest_agent: directory.join("qga.sock"),
            serial_socket: directory.join("serial.sock"),
            serial_log: directory.join("serial.log"),
            stderr_log: directory.join("qemu.log"),
            directory,
        }
    }

    fn sockets(&self) -> [&Path; 4] {
        [&self.qmp, &self.rescue, &self.guest_agent, &self.serial_socket]
    }
}
