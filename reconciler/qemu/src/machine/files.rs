//! The files of a machine on its host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::DiskKey;

/// The files of a machine on its host, and the user that opens them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFiles {
    pub paths: MachinePaths,
    /// Present exactly for firmware other than [`Firmware::Bios`](super::Firmware::Bios).
    pub uefi: Option<UefiFiles>,
    /// A raw image with the bootstrap data (NoCloud), presented to the guest as a read-only disk.
    pub seed: Option<PathBuf>,
    /// A qcow2 file for data of this run of the machine, which the guest writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<PathBuf>,
    /// Present exactly for a machine with [`MachineSpec::tpm`](super::MachineSpec::tpm).
    #[serde(default)]
    pub tpm: Option<TpmFiles>,
    /// Present exactly for a machine with [`MachineSpec::shares`](super::MachineSpec::shares).
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
            scratch: None,
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
    /// The folders, in the order of [`MachineSpec::shares`](super::MachineSpec::shares).
    pub folders: Vec<SharedFolder>,
}

/// A folder that a guest reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedFolder {
    /// Absolute, without symbolic links, commas and backslashes.
    pub path: PathBuf,
    pub read_only: bool,
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
    /// The VNC server of a machine with [`Graphics::Vga`](super::Graphics::Vga). It requires no password: who can connect sees and types.
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

    pub(super) fn sockets(&self) -> [&Path; 6] {
        [&self.qmp, &self.rescue, &self.guest_agent, &self.serial_socket, &self.vnc, &self.tpm]
    }
}
