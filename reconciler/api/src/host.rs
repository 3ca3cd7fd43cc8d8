//! Host: a machine that runs VMs.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser, vm::InterfaceStatus};

/// A machine that runs VMs. Made by its agent; a person sets `spec` only.
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
    printcolumn(name = "Accelerator", type_ = "string", json_path = ".status.accelerator"),
    printcolumn(name = "CPUs", type_ = "integer", json_path = ".status.capacity.cpus"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".status.capacity.memory"),
    printcolumn(name = "Free", type_ = "string", json_path = ".status.free.memory"),
    printcolumn(name = "Cordoned", type_ = "boolean", json_path = ".spec.cordoned", priority = 1),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address", priority = 1),
    printcolumn(name = "VMs", type_ = "integer", json_path = ".status.vms"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct HostSpec {
    /// Whether the host takes no new VMs. Default false.
    #[serde(default)]
    pub cordoned: bool,
    /// Whether the host is being emptied: it takes no new VMs, and those it has are shut down and held stopped with
    /// the reason `HostDraining`, whatever their declared power. Default false.
    #[serde(default)]
    pub draining: bool,
    /// Says that the host is gone for good with everything on it, so that nobody waits for it any more: what is being
    /// deleted there ends, its other objects are Stalled, and the Host goes with the last of them. Set it only when
    /// nothing can run there any more. Default false; cannot be taken back.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self || !oldSelf").message("fenced cannot be taken back: remove the Host's objects, then let the host join again"))]
    pub fenced: bool,
}

/// What a host's agent says of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostStatus {
    /// The generation these conditions were computed from; -1 before anybody looked.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`, `Accelerated`, `Forwarding`; `PublicAddresses`, only while it is `False`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The agent's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The address other hosts reach it at: networks' packets between hosts go from one such address to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The largest packet, in bytes, of the interface with that address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<i64>,
    /// QEMU's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_version: Option<String>,
    /// What VMs run with here: `kvm` or `tcg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// What was measured of `/dev/kvm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmStatus>,
    /// What the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Resources>,
    /// What VMs may use of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<Resources>,
    /// What is left of it after the VMs bound here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<Resources>,
    /// Memory that a VM is counted with above its guest memory, as a quantity: the most that one was measured to take
    /// here lately, and before that what the accelerator is known to take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_overhead: Option<String>,
    /// How many VMs are bound here.
    #[serde(default)]
    pub vms: i64,
    /// SHA-256 of each image in this host's cache.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// Public addresses of VMs here that somebody else on the segment answers for: they are not taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub address_conflicts: Vec<AddressConflict>,
    /// Files of deleted disks that `berth undelete` can bring back. At most 1,000 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trash: Vec<TrashedVolume>,
    /// What runs or lies here that no object owns. Reported, never touched, but given back to the object it was made
    /// for when that has lost its status. At most 1,000 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<Orphan>,
    /// That the agent has looked at what it holds. Absent before: nothing is placed until every host that answers has
    /// looked, so that nothing is made again that runs or lies somewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<Inventory>,
    /// Some of what is bound to it: at most four, whoever else there is. While there is one, deleting the Host is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

/// A public address that another machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressConflict {
    /// The address.
    pub address: String,
    /// The MAC address of whoever answers for it.
    pub mac: String,
}

/// That an agent has looked at what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// Whether `orphans` names all of it that was made for an object.
    pub complete: bool,
}

/// What was measured of `/dev/kvm`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KvmStatus {
    /// Whether guests run on it fast enough.
    pub usable: bool,
    /// Why, for people.
    pub reason: String,
    /// Million guest instructions a second, measured, with two digits behind the point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mips: Option<f64>,
}

/// Amounts of what VMs need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// CPUs. Allocatable and free ones count virtual CPUs, which may be more than there are real ones.
    pub cpus: i64,
    /// Memory, as a quantity.
    pub memory: String,
    /// Space for disks' files, as a quantity.
    pub storage: String,
}

/// The file of a deleted disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrashedVolume {
    /// Its identity.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// The Disk's namespace.
    pub namespace: String,
    /// The Disk's name.
    pub name: String,
    /// Its size, as a quantity.
    pub size: String,
    /// The Image it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// When it was deleted, RFC 3339.
    pub deleted_at: String,
}

/// Something on a host that no object owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// `Process`, `Volume` or `Instance`.
    pub kind: String,
    /// A pid with its name, or a file's name.
    pub name: String,
    /// What it is, for people.
    pub detail: String,
    /// The object it was made for, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OrphanOwner>,
}

/// The object that something on a host was made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphanOwner {
    /// `VM` or `Disk`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid, if it is known: another object of the same name is not the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The epoch of the binding it was made under; 0 if that is not known.
    #[serde(default)]
    pub epoch: i64,
    /// A VM's network interfaces as it was started with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStatus>,
    /// The public addresses that led to it, and lead to it while it runs: they are given to nobody else.
    #[serde(default, rename = "publicIPs", skip_serializing_if = "Vec::is_empty")]
    pub public_ips: Vec<HeldPublicIP>,
}

/// A public address that leads to a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldPublicIP {
    /// The PublicIP, in the VM's namespace.
    pub name: String,
    /// The address.
    pub address: String,
}
