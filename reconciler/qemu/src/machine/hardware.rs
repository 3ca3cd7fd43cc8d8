//! The hardware that a guest sees, other than disks and network cards.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

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
    /// The number of its bus, at most [`MAX_USB_BUS`](super::MAX_USB_BUS).
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
    /// The tag by which the guest mounts it; at most [`MAX_SHARE_TAG`](super::MAX_SHARE_TAG) letters, digits, `-`, `.` and `_`; unique in the machine.
    pub tag: String,
    /// Whether the guest can only read it.
    pub read_only: bool,
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
    /// A VGA card with a VNC server at [`MachinePaths::vnc`](super::MachinePaths::vnc), and a USB tablet: a pointer with absolute positions.
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

    /// The number of places for CPUs.
    #[must_use]
    pub fn cpus(self) -> u32 {
        let of_socket = u32::from(self.cores).saturating_mul(self.threads.into());
        u32::from(self.sockets).saturating_mul(of_socket)
    }

    /// Whether this many nodes of consecutive CPUs consist of whole sockets each, or of whole cores of one socket.
    pub(super) fn divides_among(self, nodes: u16) -> bool {
        let Self { sockets, cores, .. } = self;
        if nodes == 0 || sockets == 0 {
            return false;
        }
        sockets.is_multiple_of(nodes)
            || nodes.is_multiple_of(sockets) && cores.is_multiple_of(nodes / sockets)
    }
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
