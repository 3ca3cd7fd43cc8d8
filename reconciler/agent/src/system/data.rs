//! What a [`System`](super::System) takes and tells. Plain data: sizes are bytes, names are those on the host.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use berth_qemu::hypervisor::{Limits, ProcessIdentity};
use berth_qemu::machine::{Accelerator, Backing, DiskSpec, Format, NicSpec};
use ipnet::Ipv4Net;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where an image comes from and what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSource {
    /// `http://`, `https://` or `file:///`.
    pub url: String,
    /// 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// As declared; never guessed.
    pub format: Format,
}

/// A verified image in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    pub sha256: String,
    pub format: Format,
    /// The size of the smallest disk that can be made from it.
    pub virtual_size: u64,
    /// The size of the file.
    pub bytes: u64,
    pub path: PathBuf,
}

/// A volume to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVolume {
    pub pool: String,
    pub id: String,
    /// None: as large as the image. A blank volume needs one.
    pub size: Option<u64>,
    /// SHA-256 of the cached image it is an overlay on; None for a blank one.
    pub base: Option<String>,
    pub owner: VolumeOwner,
}

/// Whose a volume is, for people and for `berth undelete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeOwner {
    pub namespace: String,
    pub name: String,
    /// The Disk's uid; unknown of volumes made before it was noted.
    #[serde(default)]
    pub uid: Option<String>,
    /// The name of the Image it was made from.
    pub image: Option<String>,
}

/// A volume as it is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    pub pool: String,
    pub id: String,
    /// What the guest sees, read from the file itself.
    pub size: u64,
    /// SHA-256 of the image below it.
    pub base: Option<String>,
    pub owner: VolumeOwner,
    pub path: PathBuf,
    pub format: Format,
    /// The file below it, as a disk's description needs it.
    pub backing: Option<Backing>,
}

/// A volume that rests in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashedVolume {
    pub volume: VolumeFacts,
    pub deleted_at: Timestamp,
}

/// A private network on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// At most 15 characters, `bth-…`.
    pub bridge: String,
    pub cidr: Ipv4Net,
    /// The host's own address in it.
    pub gateway: Ipv4Addr,
    pub mtu: u16,
    /// Name servers guests are told. Empty: the gateway, which asks the host's.
    pub dns: Vec<Ipv4Addr>,
    /// Who gets which address. Nobody else gets any.
    pub leases: Vec<Lease>,
    /// The way to its part on other hosts; None while it is on this host only.
    pub tunnel: Option<Tunnel>,
}

/// How a private network reaches its part on other hosts: VXLAN, each packet for all sent to each of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tunnel {
    /// What tells this network from others, 1 to 16,777,215.
    pub vni: u32,
    /// This host's address, from which it sends.
    pub local: Ipv4Addr,
    /// The other hosts' addresses, in order. Nobody else is listened to.
    pub peers: Vec<Ipv4Addr>,
}

/// An address reserved for a MAC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Lease {
    /// Lower case.
    pub mac: String,
    pub address: Ipv4Addr,
    pub hostname: String,
}

/// An address a guest took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTaken {
    pub mac: String,
    pub address: Ipv4Addr,
    /// When it was taken or last renewed: a lease of an earlier boot says nothing about this one.
    pub taken_at: Timestamp,
}

/// A tap for one NIC of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConfig {
    /// At most 15 characters, `btt…`.
    pub name: String,
    pub bridge: String,
    pub mtu: u16,
}

/// Everything berth wants of the host's firewall. Order does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// One for each private network.
    pub nat: Vec<Nat>,
    pub forwards: Vec<Forward>,
}

/// A private network whose guests reach the world under the host's address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nat {
    pub bridge: String,
    pub cidr: Ipv4Net,
    /// The host's own address in it, the same on every host.
    pub gateway: Ipv4Addr,
    pub tunnel: Option<Tunnel>,
}

/// A public address that leads to a private one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forward {
    pub public: Ipv4Addr,
    pub private: Ipv4Addr,
    /// The interface on whose segment this host says that the address is here; the private one reaches what is behind
    /// that interface under it. None: it is on this host and nobody is told.
    pub announced_on: Option<String>,
}

/// Where a host can make public addresses known, and which it must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// The interface whose segment is told; the error is for people: why there is none, and what to do.
    pub interface: Result<String, String>,
    /// What the host itself has on interfaces that are not berth's.
    pub own: BTreeSet<Ipv4Addr>,
    /// The public addresses it has taken.
    pub public: BTreeSet<Ipv4Addr>,
}

/// Whether guests' packets get through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    pub ok: bool,
    /// What stands in the way and what to do, or that nothing does; for people.
    pub message: String,
}

/// The firmware a machine boots with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirmwareKind {
    Bios,
    Uefi,
}

/// A machine to start. Its files (sockets, seed, firmware variables) are the system's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    pub instance: String,
    /// What people call it.
    pub name: String,
    pub uuid: String,
    pub cpus: u16,
    pub memory_bytes: u64,
    pub accelerator: Accelerator,
    pub firmware: FirmwareKind,
    /// Versioned, as pinned at the first start.
    pub machine_type: String,
    pub cpu_model: String,
    pub disks: Vec<DiskSpec>,
    pub nics: Vec<NicSpec>,
    pub seed: Option<Seed>,
    pub limits: Limits,
}

/// Bootstrap data (NoCloud). May hold secrets: never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed {
    pub meta_data: String,
    pub user_data: String,
    pub network_config: String,
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seed").field("user_data_bytes", &self.user_data.len()).finish_non_exhaustive()
    }
}

/// A running QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    pub identity: ProcessIdentity,
    pub started_at: Timestamp,
}

/// What this host has of an instance.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceFacts {
    pub instance: String,
    /// None also when it cannot be read as JSON: what is damaged must not stop the others.
    pub journal: Option<Value>,
    pub process: Option<ProcessFacts>,
}

/// Something berth did not make.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stranger {
    pub kind: StrangerKind,
    /// A pid with its name, or a file's name.
    pub name: String,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StrangerKind {
    /// A QEMU process.
    Process,
    /// A file in a pool.
    Volume,
    /// A folder among the instances.
    Instance,
}

/// What the host has and can.
#[derive(Clone, Debug, PartialEq)]
pub struct HostFacts {
    pub cpus: u32,
    pub memory_bytes: u64,
    /// Of the file system the pools are on.
    pub storage_total_bytes: u64,
    pub storage_free_bytes: u64,
    /// The error is for people: what is missing and how to install it.
    pub qemu: Result<QemuFacts, String>,
    pub kvm: KvmFacts,
    /// What machines are started with.
    pub accelerator: Accelerator,
    /// The address other machines reach the host by: as told, or else where its default route leaves from.
    pub address: Option<Ipv4Addr>,
    /// The largest packet of the interface with that address.
    pub mtu: Option<u16>,
    /// Measured memory of a QEMU process above its guest's, with this accelerator.
    pub overhead_bytes: u64,
}

/// The installed QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuFacts {
    pub version: String,
    /// What to pin for new machines: a versioned machine type.
    pub machine_type: String,
    /// What to pin for new machines, for the host's accelerator.
    pub cpu_model: String,
    /// Whether UEFI firmware is installed.
    pub uefi: bool,
}

/// What was measured of `/dev/kvm`.
#[derive(Clone, Debug, PartialEq)]
pub struct KvmFacts {
    pub usable: bool,
    pub reason: String,
    /// Million guest instructions a second.
    pub mips: Option<f64>,
}
