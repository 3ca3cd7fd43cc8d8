//! vGPUs (mediated devices): the parts of devices of a host that VMs have.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::ResourceName;

/// The maximum number of vGPUs of a VM.
pub const MOST_VGPUS: i64 = 8;
/// The maximum length of a type in a status.
pub const MAX_TYPE: usize = 64;

/// vGPUs that a VM is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Vgpus {
    /// The name under which administrators offer vGPUs with `--vgpu` of their hosts, for example `a40-8q`. The key of the list.
    pub name: ResourceName,
    /// The number of vGPUs, 1 to 8. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 8))]
    pub count: i64,
}

fn one() -> i64 {
    1
}

/// A vGPU that a running VM has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VgpuStatus {
    /// The name under which its host offers it.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The address on the host of the PCI device that it is a part of: `0000:41:00.0`.
    #[schemars(length(max = 16))]
    pub address: String,
    /// Its type, as the driver of that device names it: `nvidia-558`.
    #[schemars(length(max = 64))]
    pub mdev_type: String,
    /// The UUID of the mediated device on the host, the name of its folder in `/sys/bus/mdev/devices`.
    #[schemars(length(max = 36))]
    pub uuid: String,
}

/// The vGPUs that a host offers under one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostVgpus {
    /// The name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The number of vGPUs of this name that VMs can have: those that they have, and those that can still be made.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub usable: i64,
    /// The number of these that no VM has.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub free: i64,
    /// Whether one of them is a display controller: a VM with it has no `graphics`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub display: bool,
    /// The devices that they are parts of, also those of which no VM can have one. At most 32 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub devices: Vec<HostVgpuParent>,
}

/// A PCI device of a host of which VMs have parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostVgpuParent {
    /// Its address: `0000:41:00.0`. With an address or an identifier to which no device corresponds, that.
    #[schemars(length(max = 16))]
    pub address: String,
    /// The type of the vGPUs, as the device's driver names it: `nvidia-558`. Of a device without that type, as it was given.
    #[schemars(length(max = 64))]
    pub mdev_type: String,
    /// The name of the type for people: `NVIDIA A40-8Q`. Absent if the driver gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub type_name: Option<String>,
    /// The number of vGPUs of this type that VMs can have of it.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub usable: i64,
    /// The VM of each vGPU that VMs have of it, as `namespace/name`; `unknown` for an instance without a journal. At most 32 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 512)))]
    pub vms: Vec<String>,
    /// Why no VM can have one, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub problem: Option<String>,
}
