//! The disk of another system that a Disk was imported from.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The disk of another system that the data of a Disk comes from. All of it is as declared: nothing depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskImport {
    /// The system, such as `libvirt`, `Proxmox VE` or `QEMU`, at most 64 characters.
    #[schemars(length(min = 1, max = 64))]
    pub system: String,
    /// The name of the guest there, at most 256 characters. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub guest: Option<String>,
    /// The identity of the guest there, such as its UUID or its number, at most 64 characters. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub guest_identity: Option<String>,
    /// The name of the disk there, such as `vda`, at most 64 characters. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub disk: Option<String>,
}
