//! StoragePool: the folder of disk files.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser};

/// A place for the files of disks.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "StoragePool",
    plural = "storagepools",
    singular = "storagepool",
    status = "StoragePoolStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "A place for the files of disks.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type == oldSelf.type").message("type cannot change: create another StoragePool").field_path(".type"))]
pub struct StoragePoolSpec {
    /// `Local` (default): a folder of each host's own, under the agent's state directory. Cannot change.
    #[serde(default, rename = "type")]
    pub pool_type: StoragePoolType,
    /// The time for which the trash keeps the files of deleted disks, in seconds. Default 86400 (24 hours); 0 deletes them at once.
    #[serde(default = "default_retention")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub trash_retention_seconds: i64,
}

impl Default for StoragePoolSpec {
    fn default() -> Self {
        Self { pool_type: StoragePoolType::Local, trash_retention_seconds: default_retention() }
    }
}

fn default_retention() -> i64 {
    86_400
}

/// The kind of storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StoragePoolType {
    #[default]
    Local,
}

/// The observed state of a StoragePool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoragePoolStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// At most four of the Disks that name it. A deleted StoragePool stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}
