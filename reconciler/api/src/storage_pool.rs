//! StoragePool: the folder of disk files, or the pool of Ceph with their images.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser, Quantity};

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
    printcolumn(name = "Total", type_ = "string", json_path = ".status.total"),
    printcolumn(name = "Free", type_ = "string", json_path = ".status.free"),
    printcolumn(name = "Promised", type_ = "string", json_path = ".status.promised"),
    printcolumn(name = "Hosts", type_ = "integer", json_path = ".status.hosts"),
    printcolumn(name = "Away", type_ = "integer", json_path = ".status.hostsAway"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type == oldSelf.type").message("type cannot change: create another StoragePool").field_path(".type"))]
pub struct StoragePoolSpec {
    /// `Local` (default): a folder of each host's own, which its administrator names (`--pool-folder`), or one in the agent's state
    /// directory. `Shared`: one folder that several hosts mount, such as an export of NFS, which the administrator of each names
    /// (`--pool-folder`). `RBD`: a pool of Ceph, which the administrator of each host names (`--rbd-pool`); each disk is an image in it.
    /// Cannot change.
    #[serde(default, rename = "type")]
    pub pool_type: StoragePoolType,
    /// The time for which the trash keeps the files of deleted disks, in seconds. Default 86400 (24 hours); 0 deletes them at once.
    #[serde(default = "default_retention")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub trash_retention_seconds: i64,
    /// How much disks may be promised on each host, in percent of the size of the file system: a VM with new disks is placed only where
    /// the sizes of all disks together stay within it. Thin disks take the space of the data in them only. Default 1000, ten times; 100
    /// promises nothing that is not there. A change touches no disk that exists.
    #[serde(default = "default_overcommit")]
    #[schemars(range(min = 100, max = 100_000))]
    pub overcommit_percent: i64,
    /// The namespaces whose default pool it is, at most 256: there, Disks without a pool, or with the pool `default`, are in this one from
    /// the moment when they get a host. Disks that have a host stay in their pool. A namespace has one default pool: its new Disks wait
    /// while several StoragePools name it. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(n, n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))").message("each of defaultForNamespaces must be the name of a namespace"))]
    pub default_for_namespaces: Vec<String>,
}

impl StoragePoolSpec {
    /// Whether it is the default pool of this namespace.
    pub fn is_default_for(&self, namespace: &str) -> bool {
        self.default_for_namespaces.iter().any(|name| name == namespace)
    }
}

impl Default for StoragePoolSpec {
    fn default() -> Self {
        Self {
            pool_type: StoragePoolType::Local,
            trash_retention_seconds: default_retention(),
            overcommit_percent: default_overcommit(),
            default_for_namespaces: Vec::new(),
        }
    }
}

fn default_retention() -> i64 {
    86_400
}

fn default_overcommit() -> i64 {
    1000
}

/// The kind of storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StoragePoolType {
    #[default]
    Local,
    Shared,
    #[serde(rename = "RBD")]
    Rbd,
}

impl StoragePoolType {
    /// Whether several hosts have the same place, so that a disk can go from a host that is lost to another one.
    pub fn is_shared(self) -> bool {
        match self {
            Self::Local => false,
            Self::Shared | Self::Rbd => true,
        }
    }
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
    /// The number of hosts where it can be used. Those with older agents do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub hosts: Option<i64>,
    /// The number of hosts where it is away: see `status.pools` of the Hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub hosts_away: Option<i64>,
    /// The folder of a `Shared` pool, or the pool of Ceph of one of type `RBD`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedFolder>,
    /// The size of its file systems on these hosts together, as a quantity; that of a `Shared` pool, or of one of type `RBD`, counts once. Pools without a folder of their own share one on each host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub total: Option<String>,
    /// The free space of these file systems together, as a quantity, rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub free: Option<String>,
    /// The sizes of the disks in it together, as a quantity, rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub promised: Option<String>,
    /// At most four of the Disks, DiskSnapshots and Backups that use it. A deleted StoragePool stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

/// The folder of a `Shared` pool, or the pool of Ceph, which its hosts know by a marker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedFolder {
    /// The identity in the marker (`berth-pool.json`; in Ceph the image `berth-pool`).
    #[schemars(length(max = 64))]
    pub id: String,
    /// The host that writes the marker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub first_host: Option<String>,
    /// Whether a host has the place with its marker. From then on none writes it: a folder without it is not mounted.
    #[serde(default)]
    pub initialized: bool,
}

/// The maximum number of pools that a host lists, and the maximum length of the path of a folder.
pub const MOST_HOST_POOLS: usize = 64;
pub const MAX_FOLDER: usize = 1024;

/// A StoragePool as it is on one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPool {
    /// The name of the StoragePool.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Its folder, or its pool of Ceph (`rbd:vms`), if the host's administrator names one (`--pool-folder`, `--rbd-pool`). The pools without one share the file system of the state
    /// directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub folder: Option<String>,
    /// The identity of a `Shared` pool, or of one of type `RBD`, as this host knows it. Hosts with older agents have none, and no disks of such a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub shared_id: Option<String>,
    /// The size of its file system, as a quantity.
    #[schemars(length(max = 32))]
    pub total: String,
    /// The free space of its file system, as a quantity, rounded down.
    #[schemars(length(max = 32))]
    pub free: String,
    /// The sizes of the disks in it together, as a quantity, rounded up.
    #[schemars(length(max = 32))]
    pub promised: String,
    /// Why the pool is away: its disks cannot be used, and none is made. Nothing is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub problem: Option<String>,
}

/// No pool has more space, in bytes: 1 EiB.
const MOST_SPACE: u64 = 1 << 60;
const MIB: u64 = 1 << 20;

/// Returns the unit that amounts of file systems of this size are rounded to in statuses, in bytes: between 1/256 and 1/128 of it, so that
/// small changes write nothing.
pub fn rounding_unit(total: u64) -> u64 {
    (total.min(MOST_SPACE) / 256).next_power_of_two().max(MIB)
}

/// Rounds free space down. The amount that is reported stays until there is less, or two units more: space that goes up and down a little
/// writes nothing.
pub fn rounded_down(free: u64, unit: u64, reported: Option<u64>) -> u64 {
    let stays = |reported: &u64| *reported <= free && free - *reported < 2 * unit;
    reported.filter(stays).unwrap_or(free / unit * unit)
}

/// Rounds used or promised space up. The amount that is reported stays until there is more, or two units less.
pub fn rounded_up(used: u64, unit: u64, reported: Option<u64>) -> u64 {
    let stays = |reported: &u64| *reported >= used && *reported - used < 2 * unit;
    reported.filter(stays).unwrap_or_else(|| used.checked_next_multiple_of(unit).unwrap_or(used))
}

/// Reads an amount of a status, which may be zero. A host's report is trusted within bounds only.
pub fn space(text: &str) -> u64 {
    Quantity(text.to_owned()).bytes().unwrap_or_default().min(MOST_SPACE)
}

impl HostPool {
    pub fn total_bytes(&self) -> u64 {
        space(&self.total)
    }

    pub fn free_bytes(&self) -> u64 {
        space(&self.free)
    }

    pub fn promised_bytes(&self) -> u64 {
        space(&self.promised)
    }

    /// Whether disks in it can be used.
    pub fn is_there(&self) -> bool {
        self.problem.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded_to_a_part_of_the_whole_and_an_absurd_report_is_bounded() {
        assert_eq!(rounding_unit(0), MIB);
        assert_eq!(rounding_unit(200 << 20), MIB);
        assert_eq!(rounding_unit(100 << 30), 512 << 20);
        assert_eq!(rounding_unit(1 << 40), 4 << 30);
        assert_eq!(rounding_unit(u64::MAX), 1 << 52);
        let pool = HostPool {
            total: "2000Pi".into(),
            free: "0".into(),
            promised: "x".into(),
            ..HostPool::default()
        };
        assert_eq!((pool.total_bytes(), pool.free_bytes(), pool.promised_bytes()), (1 << 60, 0, 0));
    }

    #[test]
    fn space_that_goes_up_and_down_a_little_is_reported_once() {
        let free = |free, reported| rounded_down(free, 10, reported);
        assert_eq!((free(39, None), free(31, Some(30)), free(31, Some(20))), (30, 30, 20));
        assert_eq!(free(29, Some(30)), 20, "never more than there is");
        assert_eq!((free(40, Some(20)), free(0, Some(5))), (40, 0));
        let used = |used, reported| rounded_up(used, 10, reported);
        assert_eq!((used(31, None), used(31, Some(40)), used(31, Some(50))), (40, 40, 50));
        assert_eq!(used(41, Some(40)), 50, "never less than there is");
        assert_eq!((used(30, Some(50)), used(0, Some(50)), used(u64::MAX, None)), (30, 0, u64::MAX));
    }
}
