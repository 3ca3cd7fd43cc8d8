//! Host: a machine that runs VMs.

mod architectures;
mod left_over;
mod offers;

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{
    Architecture, Conditions, HugePages, ObjectUser, Quantity,
    backup_repository::HostBackupFolder,
    console::ConsoleAddress,
    hardware::CPU_LEVELS,
    passthrough::{HostBlockDevice, HostPciDevices, HostUsbDevices},
    shares::HostShare,
    storage_pool::HostPool,
    taken::HugeMemory,
    vgpus::HostVgpus,
    wireguard::HostWireguard,
};
pub use architectures::HostArchitecture;
pub use left_over::{HeldPublicIP, Orphan, OrphanOwner, RetainedVolume, TrashedSource, TrashedVolume};

/// A machine that runs VMs. Its agent creates it; an administrator sets `spec`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Host",
    plural = "hosts",
    singular = "host",
    status = "HostStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "A machine that runs VMs.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(name = "Accelerator", type_ = "string", json_path = ".status.accelerator"),
    printcolumn(name = "CPUs", type_ = "integer", json_path = ".status.capacity.cpus"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".status.capacity.memory"),
    printcolumn(name = "Free", type_ = "string", json_path = ".status.free.memory"),
    printcolumn(name = "Cordoned", type_ = "boolean", json_path = ".spec.cordoned", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        priority = 1,
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#
    ),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address", priority = 1),
    printcolumn(name = "Roles", type_ = "string", json_path = ".status.roles", priority = 1),
    printcolumn(name = "Namespaces", type_ = "string", json_path = ".spec.namespaces", priority = 1),
    printcolumn(name = "VMs", type_ = "integer", json_path = ".status.vms"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct HostSpec {
    /// Whether the host takes no new VMs. Default false.
    #[serde(default)]
    pub cordoned: bool,
    /// Whether the host is drained: it takes no new VMs, and its VMs are shut down and stay stopped with the reason
    /// `HostDraining`, whatever their declared power. Default false.
    #[serde(default)]
    pub draining: bool,
    /// Keeps CPUs and memory for the machine itself and its other programs: VMs are placed in the rest. A change counts for
    /// VMs that are placed or started afterwards. Of those that run, guests give back what they have above their `memoryReservation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Reserved>,
    /// The namespaces that the host is reserved for, at most 256: VMs of others are not placed on it. VMs that have the host keep it, and
    /// start again. Default: none, and VMs of all namespaces are placed on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(n, n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))").message("each of namespaces must be the name of a namespace"))]
    pub namespaces: Vec<String>,
    /// Declares the host lost for good with everything on it, so that nothing waits for it any more: deletions of its
    /// objects complete, its other objects are Stalled, and the Host is deleted with the last of them. Set it only when
    /// nothing can run there any more. Default false; cannot be unset.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self || !oldSelf").message("fenced cannot be taken back: remove the Host's objects, then let the host join again"))]
    pub fenced: bool,
    /// A recovery that an administrator opened after a restore: while it is open, the controllers return what the host's
    /// agent reports (`status.orphans`) to the objects it was made for, and the host takes no new VMs. The controllers
    /// close it once the host has reported everything it has and all of that is returned. `berth restore` opens it for
    /// every host in the backup, `berth host recover` for one or all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// Names of `status.orphans` to release: the host ends such a guest and moves such a file to the trash. Written by
    /// `berth host release`, which removes a name again once it is released.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 253)))]
    pub released_orphans: Vec<String>,
}

impl HostSpec {
    /// Whether VMs of this namespace may be placed on it.
    pub fn takes_namespace(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|name| name == namespace)
    }
}

/// The capacity that a host keeps for itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reserved {
    /// Real CPUs. VMs get the virtual CPUs of the others. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub cpus: Option<i64>,
    /// Memory, for example `2Gi`. Default `512Mi`, but at most half of the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// A recovery that is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// When it was opened. Objects made later cannot be what the host already has.
    #[schemars(with = "k8s_openapi::apimachinery::pkg::apis::meta::v1::Time")]
    pub since: Timestamp,
}

/// The smallest and the largest MTU that a host may report. An IPv6 link has at least 1,280.
pub const MTU: std::ops::RangeInclusive<i64> = 1280..=9216;
/// No binding has a higher epoch: each costs the scheduler a write.
pub const LAST_EPOCH: i64 = 1_000_000_000_000;
/// No host has more CPUs to offer.
pub const MOST_CPUS: i64 = 1_000_000;
/// No host has more memory to offer, in bytes: 1 PiB.
pub const MOST_MEMORY: u64 = 1 << 50;
/// No QEMU takes more above its guest's memory, in bytes: 64 GiB.
pub const MOST_OVERHEAD: u64 = 64 << 30;

/// The maximum length of a text for people in a host's report, in characters.
pub const MAX_DETAIL: usize = 512;

/// The state that a host's agent reports. It is trusted within these bounds only, and only about the host's own objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`, `Accelerated`, `Forwarding`; `PublicAddresses`, `NetworksConnected` and `NetworksServed`, only while they
    /// are `False`; `Orphans`, only while it is `True`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The agent's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
    /// `VMs`: it runs VMs. `ControlPlane`: the control plane that its agent reports to runs on it and is stored there (`berth up`).
    /// Empty in the report of an older agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 32)))]
    pub roles: Vec<String>,
    /// The address other hosts reach it at: networks' packets between hosts go from one such address to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15), regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$"))]
    pub address: Option<String>,
    /// The largest packet, in bytes, of the interface with that address; absent if it takes less than 1,280.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1280, max = 9216))]
    pub mtu: Option<i64>,
    /// The server that other hosts copy disks from, which move with their VMs. Absent if other hosts do not reach it, and in the report of an
    /// older agent: VMs with disks in `Local` pools do not move from or to such a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ConsoleAddress>,
    /// IPv4 ranges that the host itself uses: of its interfaces, its routes but the default one, its name servers and the
    /// control plane. No Network is given a range that overlaps one of them. At most 64 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 18)))]
    pub ranges: Vec<String>,
    /// IPv4 ranges of the network segments that the host's own interfaces are on: their first and last addresses, which are the network's and
    /// the broadcast address, are given to no PublicIP of an IPPool with the mode `l2`. At most 64 are listed. Empty in the report of an
    /// older agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 18)))]
    pub segments: Vec<String>,
    /// The IPv6 addresses of the host's own interfaces, except for link-local ones: no PublicIP is given one of them. At most 64 are
    /// listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "ipv6Addresses")]
    #[schemars(length(max = 64), inner(length(max = 39)))]
    pub ipv6_addresses: Vec<String>,
    /// The bridges and interfaces that the host has itself, which a Network of type `Bridge` can name, by name. At most 64 of each
    /// are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub networks: Vec<HostNetwork>,
    /// Whether the host's kernel has VLANs, which Networks with `bridge.vlan` need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlans: Option<bool>,
    /// `IPv4` and `IPv6`, as far as packets of that family between the ports of any bridge of the host pass its rules for routed packets
    /// (`net.bridge.bridge-nf-call-iptables`, `net.bridge.bridge-nf-call-ip6tables`). Ports of a PublicIP then do not reach a target on a
    /// bridge from all clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), inner(length(max = 4)))]
    pub filtered_bridges: Vec<String>,
    /// WireGuard on this host, which Networks with `encryption` need. Absent in the report of an older agent, on whose host no VM of such a
    /// Network is placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wireguard: Option<HostWireguard>,
    /// QEMU's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub qemu_version: Option<String>,
    /// The accelerator of VMs here: `kvm` or `tcg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub accelerator: Option<String>,
    /// The architectures that VMs here can have: that of its processors, and those that its administrator lets it emulate (`--emulate`).
    /// Empty in the report of an older agent: `x86_64`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub architectures: Vec<HostArchitecture>,
    /// The CPU models and levels that VMs here can have. At most 200 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 200), inner(length(max = 64)))]
    pub cpu_models: Vec<String>,
    /// The machine types that VMs here can have. At most 200 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 200), inner(length(max = 64)))]
    pub machine_types: Vec<String>,
    /// How QEMU reads and writes disks on file systems with direct I/O: `io_uring` or `native`.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "diskIO")]
    #[schemars(length(max = 16))]
    pub disk_io: Option<String>,
    /// Whether VMs with a TPM can run here: `swtpm` is installed. Absent in the report of an older agent: they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<bool>,
    /// Whether VMs with a vsock device can run here: its kernel has `/dev/vhost-vsock`. Absent in the report of an older agent: they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsock: Option<bool>,
    /// Whether encrypted Disks can be here. Absent in the report of an older agent, which would make their files without encryption: no
    /// encrypted Disk is bound to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_encryption: Option<bool>,
    /// Whether running VMs can move to this host and from it. Absent in the report of an older agent: they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_migration: Option<bool>,
    /// Whether its agent gives firmware variables and the memory of TPMs to the next host of a VM, and fetches them from the former one. Absent in
    /// the report of an older agent: they stay behind, and a VM with a TPM or Secure Boot moves neither to this host nor from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware_moves: Option<bool>,
    /// The PCI devices that its administrator lets VMs have (`--pci-device`), by name. At most 64 names are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub pci_devices: Vec<HostPciDevices>,
    /// The USB devices that its administrator lets VMs have (`--usb-device`), by name. At most 64 names are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub usb_devices: Vec<HostUsbDevices>,
    /// The vGPUs (mediated devices) that its administrator lets VMs have (`--vgpu`), by name. At most 64 names are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub vgpus: Vec<HostVgpus>,
    /// The block devices that its administrator offers as Disks (`--block-device`), by name. At most 64 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub block_devices: Vec<HostBlockDevice>,
    /// The folders that its administrator shares with VMs (`--share`), by name. At most 64 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub shares: Vec<HostShare>,
    /// The folders that its administrator offers for backups (`--backup-folder`), by name. At most 64 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub backup_folders: Vec<HostBackupFolder>,
    /// The StoragePools on this host, by name, with their space. At most 64 are listed. Empty in the report of an older agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub pools: Vec<HostPool>,
    /// The measurement of `/dev/kvm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmStatus>,
    /// The resources of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Resources>,
    /// The resources that VMs may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<Resources>,
    /// The resources that remain after the VMs bound here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<Resources>,
    /// The huge pages of the machine, by size. They are not part of the memory in `allocatable`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub huge_pages: Vec<HostHugePages>,
    /// The CPUs that single VMs may have for themselves; absent: none. They are not part of the CPUs in `allocatable`.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "dedicatedCPUs")]
    pub dedicated_cpus: Option<HostDedicatedCpus>,
    /// Memory that a VM counts for in addition to its guest memory, as a quantity: the largest overhead measured here
    /// lately, and before a measurement the known overhead of the accelerator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub vm_overhead: Option<String>,
    /// The number of VMs that are bound here.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub vms: i64,
    /// The checksum, SHA-256 or SHA-512, of each image in this host's cache. At most 1,000 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 128)))]
    pub images: Vec<String>,
    /// Public addresses of VMs here for which another machine on the segment answers: the host does not use them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub address_conflicts: Vec<AddressConflict>,
    /// The results of the health checks of public addresses that this host has. At most 2,048 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2048))]
    pub target_health: Vec<TargetHealth>,
    /// Files of deleted disks that `berth undelete` can bring back. At most 1,000 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub trash: Vec<TrashedVolume>,
    /// Guests and files here that no object owns. The host reports them and changes none until an administrator adopts or
    /// releases them; in a recovery they return to the objects they were made for. Files kept by `deletionPolicy: Retain` are
    /// not orphans: they are listed in a recovery only, and counted in `retained`. At most 1,000 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub orphans: Vec<Orphan>,
    /// The number of files of deleted disks with `deletionPolicy: Retain` here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub retained: Option<i64>,
    /// The files of deleted disks with `deletionPolicy: Retain` here, which `berth undelete` gives to Disks again. At most 1,000 are
    /// listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub retained_volumes: Vec<RetainedVolume>,
    /// Set once the agent has taken inventory of its guests and files. Until then, and while `orphans` does not list all of it, nothing is
    /// placed on this host; in a recovery nothing is placed anywhere that this host may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<Inventory>,
    /// At most four of the objects that are bound to it. A deleted Host stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

impl HostStatus {
    /// A family in `filtered_bridges`.
    pub const IPV4: &str = "IPv4";
    /// The other one.
    pub const IPV6: &str = "IPv6";

    /// Returns the size of the file of a deleted Disk of this namespace, in the trash or retained, which another Disk can get.
    pub fn deleted_volume(&self, namespace: &str, volume_id: &str) -> Option<&str> {
        let trashed = self.trash.iter().map(|file| (&file.namespace, &file.volume_id, &file.size));
        let retained =
            self.retained_volumes.iter().map(|file| (&file.namespace, &file.volume_id, &file.size));
        let found = trashed.chain(retained).find(|(of, id, _)| *of == namespace && *id == volume_id)?;
        Some(found.2.as_str())
    }

    /// The number of its CPUs for single VMs.
    pub fn dedicated_cpu_count(&self) -> i64 {
        self.dedicated_cpus.as_ref().map_or(0, |cpus| cpus.total.clamp(0, MOST_CPUS))
    }

    /// The levels of x86-64 that VMs here can have on the processors themselves. None with emulated ones, whose features are not those of the
    /// host.
    pub fn cpu_levels(&self) -> BTreeSet<&'static str> {
        let is_emulated =
            |of: &HostArchitecture| of.name == Architecture::X86_64.as_str() && of.accelerator != "kvm";
        let is_kvm =
            self.accelerator.as_deref() == Some("kvm") && !self.architectures.iter().any(is_emulated);
        let has = |level: &&str| is_kvm && self.cpu_models.iter().any(|model| model == level);
        CPU_LEVELS.into_iter().filter(has).collect()
    }

    /// The bytes of its huge pages by size.
    pub fn huge_memory(&self) -> HugeMemory {
        let mut memory = HugeMemory::default();
        for pages in &self.huge_pages {
            let size = HugePages::SIZES.into_iter().find(|size| size.as_str() == pages.size);
            let count = u64::try_from(pages.total).unwrap_or_default();
            let bytes = size.and_then(HugePages::bytes).unwrap_or_default();
            let bytes = count.saturating_mul(bytes).min(MOST_MEMORY);
            memory = memory.saturating_add(HugeMemory::of(size.unwrap_or_default(), bytes));
        }
        memory
    }

    /// The largest VM that the host can take while it runs no other: CPUs and bytes of guest memory. None before its first report.
    pub fn offered_to_one_vm(&self) -> Option<(i64, u64)> {
        let bytes = |text: &str| Quantity(text.to_owned()).bytes().unwrap_or_default();
        let allocatable = self.allocatable.as_ref().filter(|allocatable| allocatable.cpus > 0)?;
        let overhead = self.vm_overhead.as_deref().map_or(0, bytes).min(MOST_OVERHEAD);
        let memory = bytes(&allocatable.memory).min(MOST_MEMORY).saturating_sub(overhead);
        Some((allocatable.cpus.min(MOST_CPUS), memory))
    }
}

/// A public address that another machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressConflict {
    /// The address.
    #[schemars(length(max = 39))]
    pub address: String,
    /// The MAC address that answers for it.
    #[schemars(length(max = 17))]
    pub mac: String,
}

/// The result of a health check of a target of a public address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetHealth {
    /// The public address.
    #[schemars(length(max = 45))]
    pub address: String,
    /// The port of the public address.
    #[schemars(range(min = 0, max = 65_535))]
    pub port: i64,
    /// `tcp` or `udp`.
    #[schemars(length(max = 3))]
    pub protocol: String,
    /// The name of the VM.
    #[schemars(length(max = 63))]
    pub vm: String,
    /// The cause of the failure; empty if the check succeeds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub failure: String,
}

/// A network that a host has itself: a bridge, or an interface that berth can make a bridge over.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostNetwork {
    /// The name of the interface.
    #[schemars(length(max = 15))]
    pub name: String,
    /// `Bridge`; `Interface`: a card, bond or VLAN interface; `Port`: one that is part of a bond, so that the bond is to be named.
    #[schemars(length(max = 16))]
    pub kind: String,
    /// The largest packet, in bytes.
    #[schemars(range(min = 0, max = 65_536))]
    pub mtu: i64,
    /// Whether the interface is up. VMs are placed only where the bridge is; berth brings up an interface.
    pub up: bool,
    /// Of an interface that is up: whether it has a carrier. VMs are placed only where it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<bool>,
    /// Of an interface: how the host uses it, so that it cannot be the port of a bridge of berth's. VLANs of it can.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub in_use: String,
    /// Of an interface: the VLANs that the host itself has an interface for. At most 64 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub vlans: Vec<HostVLAN>,
}

impl HostNetwork {
    /// The kind of a bridge.
    pub const BRIDGE: &str = "Bridge";
    /// The kind of an interface that berth can make a bridge over.
    pub const INTERFACE: &str = "Interface";
    /// The kind of an interface that is part of a bond.
    pub const PORT: &str = "Port";
}

/// A VLAN that a host has an interface for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostVLAN {
    /// Its tag.
    #[schemars(range(min = 0, max = 4095))]
    pub id: i64,
    /// The name of the interface.
    #[schemars(length(max = 15))]
    pub name: String,
}

/// An agent's report that it has taken inventory of its guests and files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// Whether `orphans` lists everything that was made for an object.
    pub complete: bool,
}

/// The measurement of `/dev/kvm`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KvmStatus {
    /// Whether guests run on it fast enough.
    pub usable: bool,
    /// The reason, for people.
    #[schemars(length(max = 512))]
    pub reason: String,
    /// Million guest instructions a second, measured, with two decimal places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub mips: Option<f64>,
}

/// Amounts of the resources that VMs use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// CPUs. Allocatable and free ones count virtual CPUs, of which there may be more than real ones.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub cpus: i64,
    /// Memory, as a quantity.
    #[schemars(length(max = 32))]
    pub memory: String,
    /// Space for disks' files, as a quantity.
    #[schemars(length(max = 32))]
    pub storage: String,
}

/// The CPUs of a host for single VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostDedicatedCpus {
    /// Their numbers, for example `2-7,12`.
    #[schemars(length(max = 512))]
    pub cpus: String,
    /// How many they are.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub total: i64,
    /// How many of them no running VM has.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub free: i64,
}

/// The huge pages of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostHugePages {
    /// The size of a page: `2Mi` or `1Gi`.
    #[schemars(length(max = 8))]
    pub size: String,
    /// The number of pages that the machine has reserved. VMs may use all of them.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub total: i64,
    /// The number of pages that no process uses.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub free: i64,
}
