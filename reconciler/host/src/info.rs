//! The resources and capabilities of the host, what on it is not berth's, and the record of its control plane.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use async_trait::async_trait;
use berth_qemu::hypervisor::ProcessIdentity;
use berth_qemu::machine::{Accelerator, Architecture};
use serde_json::Value;

use crate::{
    BackupFolderFacts, BlockDeviceFacts, DedicatedFacts, HostLinks, HostRange, HostUse, PciDeviceFacts,
    PoolFolderFacts, Result, ShareFacts, UsbDeviceFacts, VgpuFacts, WireguardFacts,
};

/// The facts of the host itself.
#[async_trait]
pub trait HostInfo: Send + Sync + fmt::Debug + 'static {
    async fn facts(&self) -> Result<HostFacts>;

    /// Returns the facts that the start of a machine depends on. Those of networks, folders for backups and folders of pools may be left
    /// out: to list all links of a host takes longer with each machine that runs there.
    async fn machine_facts(&self) -> Result<HostFacts> {
        self.facts().await
    }

    /// Measures the memory of a QEMU beyond its guest's, in bytes; `None` if it cannot be measured or the process has
    /// ended.
    async fn overhead(&self, process: &ProcessIdentity, guest_memory: u64) -> Result<Option<u64>>;

    /// Returns the unit of systemd that both this process and the caller are in: a stop of the unit can end both. None: they are apart,
    /// or the process has ended.
    async fn shared_unit(&self, _process: &ProcessIdentity) -> Result<Option<String>> {
        Ok(None)
    }

    /// Reads the use of the whole host.
    async fn host_use(&self) -> Result<HostUse>;

    /// Lists processes, volumes and instances on this host that berth did not create.
    async fn foreign(&self) -> Result<Vec<ForeignObject>>;

    /// Reads the agent's record of the control plane that this host last obeyed; `None` if there is none.
    async fn read_site(&self) -> Result<Option<Value>>;

    /// Writes the record of the control plane that this host obeys from now on; on disk when it returns.
    async fn write_site(&self, record: &Value) -> Result<()>;
}

/// An object on the host that berth did not create.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignObject {
    pub kind: ForeignKind,
    /// A pid with its name, or the name of a file.
    pub name: String,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForeignKind {
    /// A QEMU process.
    Process,
    /// A file in a pool.
    Volume,
    /// A directory among the instances.
    Instance,
}

/// The host's resources and capabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct HostFacts {
    pub cpus: u32,
    pub memory_bytes: u64,
    /// Of the file system that holds the pools without a folder of their own.
    pub storage_total_bytes: u64,
    pub storage_free_bytes: u64,
    /// The architecture of its processors.
    pub architecture: Architecture,
    /// Guests of another architecture, which its administrator allows. None: they are not allowed.
    pub emulated: Option<EmulatedFacts>,
    /// The error is for people: the missing part and how to install it.
    pub qemu: std::result::Result<QemuFacts, String>,
    pub kvm: KvmFacts,
    /// The accelerator for machines started from now on.
    pub accelerator: Accelerator,
    /// Whether its kernel can move the packets of network cards (vhost-net).
    pub vhost_net: bool,
    /// The address at which other machines reach the host: as configured, or else the source address of its default
    /// route.
    pub address: Option<Ipv4Addr>,
    /// The MTU of the interface with that address.
    pub mtu: Option<u16>,
    /// Ranges in use on this host outside berth: interfaces, routes except the default one, name servers.
    pub ranges: Vec<HostRange>,
    /// The IPv6 addresses of its interfaces that are not berth's, except for link-local ones, in order.
    pub ipv6_addresses: Vec<Ipv6Addr>,
    /// The bridges and interfaces of this host that are not berth's.
    pub links: HostLinks,
    /// WireGuard on this host. The error is for people: the missing part and how to install it.
    pub wireguard: std::result::Result<WireguardFacts, String>,
    /// The PCI devices that its administrator lets guests have.
    pub pci_devices: Vec<PciDeviceFacts>,
    /// The USB devices that its administrator lets guests have.
    pub usb_devices: Vec<UsbDeviceFacts>,
    /// The vGPUs that its administrator lets guests have.
    pub vgpus: Vec<VgpuFacts>,
    /// The block devices that its administrator offers as disks.
    pub block_devices: Vec<BlockDeviceFacts>,
    /// The folders that its administrator shares with guests.
    pub shares: Vec<ShareFacts>,
    /// The folders that its administrator offers for backups.
    pub backup_folders: Vec<BackupFolderFacts>,
    /// The pools with a folder of their own.
    pub pool_folders: Vec<PoolFolderFacts>,
    /// The huge pages of this host, by size. `memory_bytes` includes them.
    pub huge_pages: Vec<HugePagesFacts>,
    /// The CPUs that single machines may have for themselves. `cpus` includes them.
    pub dedicated: DedicatedFacts,
    /// Measured memory of a QEMU process beyond its guest's, with this accelerator.
    pub overhead_bytes: u64,
    /// Another one after each boot of the host.
    pub boot_id: String,
}

/// Guests of another architecture than the host's, whose processors QEMU emulates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulatedFacts {
    pub architecture: Architecture,
    /// As in [`HostFacts`].
    pub qemu: std::result::Result<QemuFacts, String>,
    pub accelerator: Accelerator,
    pub overhead_bytes: u64,
}

impl HostFacts {
    /// Returns why guests of this architecture may not run on the host, for people. None: they may.
    #[must_use]
    pub fn refusal(&self, architecture: Architecture) -> Option<String> {
        let is_emulated =
            self.emulated.as_ref().is_some_and(|emulated| emulated.architecture == architecture);
        let name = architecture.as_str();
        (architecture != self.architecture && !is_emulated).then(|| {
            format!("this host runs no guests of {name}: its administrator allows it with --emulate {name}")
        })
    }

    /// Returns the facts as they are for guests of this architecture.
    #[must_use]
    pub fn for_guests_of(self, architecture: Architecture) -> Self {
        if architecture == self.architecture {
            return self;
        }
        match self.emulated.clone().filter(|emulated| emulated.architecture == architecture) {
            Some(EmulatedFacts { qemu, accelerator, overhead_bytes, .. }) => {
                let overhead_bytes = overhead_bytes.max(self.overhead_bytes);
                Self { qemu, accelerator, overhead_bytes, ..self }
            }
            None => {
                let refusal = self.refusal(architecture).unwrap_or_default();
                Self { qemu: Err(refusal), ..self }
            }
        }
    }
}

/// The huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePagesFacts {
    /// The size of a page.
    pub page_bytes: u64,
    /// The number of pages that the host has reserved.
    pub total: u64,
    /// The number of pages that no process uses, or is promised.
    pub free: u64,
}

/// The installed QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuFacts {
    pub version: String,
    /// A versioned machine type, pinned for new machines.
    pub machine_type: String,
    /// The versioned machine types that it has.
    pub machine_types: Vec<String>,
    /// The CPU model with all that the host's accelerator offers.
    pub cpu_model: String,
    /// Whether UEFI firmware is installed.
    pub uefi: bool,
    /// Whether UEFI firmware with Secure Boot and its keys is installed.
    pub secure_boot: bool,
    /// The CPU models and levels that a guest here can have.
    pub cpu_models: Vec<String>,
    /// Whether disks have io_uring.
    pub io_uring: bool,
    /// Whether it has the ROMs (iPXE) by which BIOS, and UEFI from cards that are not virtio, boot from the network.
    pub boot_roms: bool,
    /// Whether it has a TPM device, and swtpm is installed, which emulates it.
    pub tpm: bool,
    /// Whether it has vsock devices, and this host's kernel the device file for them.
    pub vsock: bool,
}

/// The measured state of `/dev/kvm`.
#[derive(Clone, Debug, PartialEq)]
pub struct KvmFacts {
    pub usable: bool,
    pub reason: String,
    /// Million guest instructions per second.
    pub mips: Option<f64>,
}
