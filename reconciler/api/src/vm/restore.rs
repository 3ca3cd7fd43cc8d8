//! The snapshots of a VM, and the restore of one.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ResourceName;

/// The greatest number of snapshots that the status of a VM lists.
pub const MOST_LISTED_SNAPSHOTS: usize = 64;

/// A restore of all disks of a VM that a snapshot of it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMRestore {
    /// Name of a VMSnapshot of this VM, in the same namespace. Disks that the snapshot does not have stay as they are.
    pub snapshot: ResourceName,
    /// Any text of 1 to 64 characters. Another text restores the same snapshot once more. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub token: Option<String>,
    /// Whether the guest goes on at the moment of the snapshot, if that has its memory. False: only the disks are restored, and the guest
    /// boots from them. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

impl VMRestore {
    /// Whether the memory of a snapshot that has it is to be loaded.
    pub fn wants_memory(&self) -> bool {
        self.memory.unwrap_or(true)
    }
}

/// A restore that was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMRestored {
    /// Name of the VMSnapshot.
    pub snapshot: ResourceName,
    /// The token that was declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub token: Option<String>,
    /// When its last disk was restored, RFC 3339.
    #[schemars(length(max = 40))]
    pub restored_at: String,
}

impl VMRestored {
    /// Whether it is the restore that is declared.
    pub fn is_of(&self, declared: &VMRestore) -> bool {
        (&self.snapshot, &self.token) == (&declared.snapshot, &declared.token)
    }
}

/// A snapshot of a VM that is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotOfVM {
    /// Name of the VMSnapshot.
    pub name: ResourceName,
    /// The moment whose data it has, RFC 3339.
    #[schemars(length(max = 40))]
    pub taken_at: String,
}
