//! The disks and CD-ROM drives of a machine, and the images in them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Extras, FIRST_CDROM_TARGET, MAX_SATA, MAX_VIRTIO_BLK};

/// An image format. Declared by the creator of the file; never probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Format {
    Raw,
    Qcow2,
    /// qcow2 with encrypted data, which a key of the disk opens. Never the format of an image.
    EncryptedQcow2,
    /// A LUKS header and the encrypted data, which a key of the disk opens, in an image of Ceph. Never the format of an image.
    Luks,
    /// ISO 9660: a medium of a CD-ROM drive. To QEMU it is raw.
    Iso,
}

impl Format {
    /// The name of QEMU's block driver.
    pub fn driver(self) -> &'static str {
        match self {
            Self::Raw | Self::Iso => "raw",
            Self::Qcow2 | Self::EncryptedQcow2 => "qcow2",
            Self::Luks => "luks",
        }
    }

    /// Whether its header is that of qcow2, which may name a backing file.
    #[must_use]
    pub fn is_qcow2(self) -> bool {
        matches!(self, Self::Qcow2 | Self::EncryptedQcow2)
    }

    #[must_use]
    pub fn is_encrypted(self) -> bool {
        matches!(self, Self::EncryptedQcow2 | Self::Luks)
    }

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::EncryptedQcow2 => "encrypted qcow2",
            Self::Luks => "luks",
            Self::Iso => "iso",
        }
    }
}

/// Whether this path of a disk is that of a block device of the host, and not of a file.
#[must_use]
pub fn is_block_device(file: &Path) -> bool {
    // It has files.
    file.starts_with("/dev") && !file.starts_with("/dev/shm")
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
    /// The disk's serial number in the guest; at most [`MAX_SERIAL`](super::MAX_SERIAL) printable ASCII characters.
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
    /// Whether other machines of the host that have it so may write to the raw file too. Any other program is kept out by the lock of the
    /// file, as it always is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

impl DiskSpec {
    /// Returns the id of the I/O thread that it has for itself in a machine with these properties. Disks on the controller share one.
    pub(super) fn own_thread(&self, extras: &Extras) -> Option<String> {
        (extras.thread_per_disk && self.bus == Bus::VirtioBlk).then(|| format!("io-{}", self.id))
    }
}

/// A CD-ROM drive on the virtio-scsi controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CdromSpec {
    /// 0 to 3, unique in the machine: it determines the ids and the SCSI target.
    pub slot: u8,
    /// The drive's serial number in the guest; at most [`MAX_SERIAL`](super::MAX_SERIAL) printable ASCII characters.
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
