//! Quota: how much the objects of a namespace may use together.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{Conditions, Quantity};

/// How much the objects of a namespace may use together. Creations and changes that would use more are refused, except of classes in
/// `berth-shared`, which an administrator can let grow. Objects that exist are never touched, also when a limit is lowered. With several
/// Quotas in a namespace, all of them hold.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Quota",
    plural = "quotas",
    singular = "quota",
    shortname = "vmquota",
    namespaced,
    status = "QuotaStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "How much the objects of a namespace may use together.",
    printcolumn(name = "Disk-Size", type_ = "string", json_path = ".status.used.diskSize"),
    printcolumn(name = "Max-Disk-Size", type_ = "string", json_path = ".spec.hard.diskSize"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".status.used.memory"),
    printcolumn(name = "Max-Memory", type_ = "string", json_path = ".spec.hard.memory"),
    printcolumn(name = "CPUs", type_ = "integer", json_path = ".status.used.cpus"),
    printcolumn(name = "Max-CPUs", type_ = "integer", json_path = ".spec.hard.cpus"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Used-Storage", type_ = "string", priority = 1, json_path = ".status.used.usedStorage"),
    printcolumn(name = "Image-Storage", type_ = "string", priority = 1, json_path = ".status.used.imageStorage"),
    printcolumn(name = "Backup-Storage", type_ = "string", priority = 1, json_path = ".status.used.backupStorage"),
    printcolumn(name = "VMs", type_ = "integer", priority = 1, json_path = ".status.used.vms"),
    printcolumn(name = "Disks", type_ = "integer", priority = 1, json_path = ".status.used.disks"),
    printcolumn(name = "Snapshots", type_ = "integer", priority = 1, json_path = ".status.used.snapshots"),
    printcolumn(name = "Images", type_ = "integer", priority = 1, json_path = ".status.used.images"),
    printcolumn(name = "Backups", type_ = "integer", priority = 1, json_path = ".status.used.backups"),
    printcolumn(name = "Public-IPs", type_ = "integer", priority = 1, json_path = ".status.used.publicIps"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
pub struct QuotaSpec {
    /// The limits. One that is not set does not limit.
    pub hard: QuotaLimits,
}

/// The limits of a Quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.diskSize) || has(self.memory) || has(self.cpus) || has(self.vms) || has(self.disks) || has(self.snapshots) || has(self.images) || has(self.publicIps) || has(self.usedStorage) || has(self.imageStorage) || has(self.backupStorage) || has(self.backups)").message("hard must have at least one limit")
)]
pub struct QuotaLimits {
    /// The greatest sum of the sizes of all Disks and of the scratch disks of VMs, at their full size whatever their files take, for example
    /// `500Gi`. A DiskSnapshot counts with the full size of its Disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_size: Option<Quantity>,
    /// The space that files may take, as it is measured and reported: those of Disks, of the snapshots of VMs' disks with the memory that
    /// they keep, of deleted disks in the trash or retained, and the other files of VMs, such as the memory of suspended guests and logs; for example `200Gi`. Once they take as
    /// much, no Disk and no DiskSnapshot is created. What exists may go on to grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_storage: Option<Quantity>,
    /// The space that the files of Images may take, for example `50Gi`: each counts once, with the bytes of its file, however many hosts have a
    /// copy. An upload counts with its declared size from its creation, any other Image once its size is known. Once they take as much, no
    /// Image is created, and one that no host has got yet waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_storage: Option<Quantity>,
    /// The space that Backups may take in their repositories, for example `500Gi`: each counts, once it is complete, with the bytes that it
    /// added. Once they take as much, no Backup of a DiskSnapshot is created, and one that has not begun waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_storage: Option<Quantity>,
    /// The greatest sum of the memory of all VMs, running or not, for example `64Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// The greatest sum of the CPUs of all VMs, running or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MOST_COUNTED))]
    pub cpus: Option<i64>,
    /// The greatest number of VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MOST_COUNTED))]
    pub vms: Option<i64>,
    /// The greatest number of Disks, those of the templates of VMs included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MOST_COUNTED))]
    pub disks: Option<i64>,
    /// The greatest number of DiskSnapshots, those of VMSnapshots included: one for each disk of the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MOST_COUNTED))]
    pub snapshots: Option<i64>,
    /// The greatest number of Images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MOST_COUNTED))]
    pub images: Option<i64>,
    /// The greatest number of Backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MOST_COUNTED))]
    pub backups: Option<i64>,
    /// The greatest number of PublicIPs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MOST_COUNTED))]
    pub public_ips: Option<i64>,
}

/// The greatest limit of a number of objects or CPUs.
pub const MOST_COUNTED: i64 = 1_000_000;

/// The amounts that the objects of a namespace use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaUsage {
    /// The sum of the sizes of Disks, of the scratch disks of VMs, and of the Disks of DiskSnapshots.
    #[schemars(length(max = 32))]
    pub disk_size: String,
    /// The space that files were last reported to take. Absent without a limit of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub used_storage: Option<String>,
    /// The bytes of the files of Images. Absent without a limit of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub image_storage: Option<String>,
    /// The bytes that Backups have added to their repositories. Absent without a limit of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub backup_storage: Option<String>,
    /// The sum of the memory of VMs.
    #[schemars(length(max = 32))]
    pub memory: String,
    /// The sum of the CPUs of VMs.
    pub cpus: i64,
    /// The number of VMs.
    pub vms: i64,
    /// The number of Disks.
    pub disks: i64,
    /// The number of DiskSnapshots.
    pub snapshots: i64,
    /// The number of Images.
    pub images: i64,
    /// The number of Backups.
    #[serde(default)]
    pub backups: i64,
    /// The number of PublicIPs.
    pub public_ips: i64,
}

/// The observed state of a Quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: the amounts are counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The limits that are in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard: Option<QuotaLimits>,
    /// The amounts that the objects of the namespace use, those included that wait for room in the quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<QuotaUsage>,
}

/// Amounts to compare with the limits of a Quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaAmounts {
    /// Bytes.
    pub disk_size: u64,
    /// Bytes.
    pub used_storage: u64,
    /// Bytes.
    pub image_storage: u64,
    /// Bytes.
    pub backup_storage: u64,
    /// Bytes.
    pub memory: u64,
    pub cpus: i64,
    pub vms: i64,
    pub disks: i64,
    pub snapshots: i64,
    pub images: i64,
    pub backups: i64,
    pub public_ips: i64,
}

impl QuotaAmounts {
    /// Returns the sums.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            disk_size: self.disk_size.saturating_add(other.disk_size),
            used_storage: self.used_storage.saturating_add(other.used_storage),
            image_storage: self.image_storage.saturating_add(other.image_storage),
            backup_storage: self.backup_storage.saturating_add(other.backup_storage),
            memory: self.memory.saturating_add(other.memory),
            cpus: self.cpus.saturating_add(other.cpus),
            vms: self.vms.saturating_add(other.vms),
            disks: self.disks.saturating_add(other.disks),
            snapshots: self.snapshots.saturating_add(other.snapshots),
            images: self.images.saturating_add(other.images),
            backups: self.backups.saturating_add(other.backups),
            public_ips: self.public_ips.saturating_add(other.public_ips),
        }
    }

    /// Returns the amounts as the status of a Quota without limits of storage has them.
    #[must_use]
    pub fn usage(self) -> QuotaUsage {
        QuotaUsage {
            disk_size: Quantity::from_bytes(self.disk_size).0,
            used_storage: None,
            image_storage: None,
            backup_storage: None,
            memory: Quantity::from_bytes(self.memory).0,
            cpus: self.cpus,
            vms: self.vms,
            disks: self.disks,
            snapshots: self.snapshots,
            images: self.images,
            backups: self.backups,
            public_ips: self.public_ips,
        }
    }
}

impl QuotaLimits {
    /// Returns in words that files take as much space as the limit, if they do. It is known after the fact.
    #[must_use]
    pub fn storage_used_up(&self, used: QuotaAmounts) -> Option<String> {
        used_up("usedStorage", self.used_storage.as_ref(), used.used_storage)
    }

    /// Returns in words that Images take as much space as the limit, if they do.
    #[must_use]
    pub fn image_storage_used_up(&self, used: QuotaAmounts) -> Option<String> {
        used_up("imageStorage", self.image_storage.as_ref(), used.image_storage)
    }

    /// Returns in words that Backups take as much space as the limit, if they do.
    #[must_use]
    pub fn backup_storage_used_up(&self, used: QuotaAmounts) -> Option<String> {
        used_up("backupStorage", self.backup_storage.as_ref(), used.backup_storage)
    }

    /// Returns the first limit that the sum of both amounts is above, in words, if `more` has any of that amount. An amount
    /// that does not grow is never too much: a lowered limit touches nothing that exists.
    #[must_use]
    pub fn exceeded(&self, used: QuotaAmounts, more: QuotaAmounts) -> Option<String> {
        let sum = used.plus(more);
        let bytes = |limit: &Option<Quantity>| limit.as_ref().and_then(|limit| limit.bytes().ok());
        let sizes = [
            ("diskSize", bytes(&self.disk_size), used.disk_size, more.disk_size, sum.disk_size),
            (
                "imageStorage",
                bytes(&self.image_storage),
                used.image_storage,
                more.image_storage,
                sum.image_storage,
            ),
            ("memory", bytes(&self.memory), used.memory, more.memory, sum.memory),
        ];
        let size = sizes.into_iter().find_map(|(name, limit, used, more, sum)| {
            let limit = limit.filter(|limit| more > 0 && sum > *limit)?;
            let [used, more, limit] = [used, more, limit].map(Quantity::from_bytes);
            Some(format!("{name}: {used} used, {more} more needed, limit {limit}"))
        });
        let counts = [
            ("cpus", self.cpus, used.cpus, more.cpus, sum.cpus),
            ("vms", self.vms, used.vms, more.vms, sum.vms),
            ("disks", self.disks, used.disks, more.disks, sum.disks),
            ("snapshots", self.snapshots, used.snapshots, more.snapshots, sum.snapshots),
            ("images", self.images, used.images, more.images, sum.images),
            ("backups", self.backups, used.backups, more.backups, sum.backups),
            ("publicIps", self.public_ips, used.public_ips, more.public_ips, sum.public_ips),
        ];
        let is_file = more.disks > 0 || more.snapshots > 0;
        let storage = || {
            let files = self.storage_used_up(used).filter(|_| is_file);
            let images = || self.image_storage_used_up(used).filter(|_| more.images > 0);
            let backups = || self.backup_storage_used_up(used).filter(|_| more.backups > 0);
            files.or_else(images).or_else(backups)
        };
        size.or_else(storage).or_else(|| {
            counts.into_iter().find_map(|(name, limit, used, more, sum)| {
                let limit = limit.filter(|limit| more > 0 && sum > *limit)?;
                Some(format!("{name}: {used} used, {more} more needed, limit {limit}"))
            })
        })
    }
}

/// Returns in words that the bytes of a limit are used up, if they are.
fn used_up(name: &str, limit: Option<&Quantity>, used: u64) -> Option<String> {
    let limit = limit?.bytes().ok().filter(|limit| used >= *limit)?;
    let [used, limit] = [used, limit].map(Quantity::from_bytes);
    Some(format!("{name}: {used} used, limit {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> QuotaLimits {
        QuotaLimits { disk_size: Some(Quantity("10Gi".into())), vms: Some(2), ..QuotaLimits::default() }
    }

    #[test]
    fn an_amount_up_to_the_limit_fits_and_the_next_one_does_not() {
        let used = QuotaAmounts { disk_size: 8 << 30, vms: 1, ..QuotaAmounts::default() };
        let disk = |size: u64| QuotaAmounts { disk_size: size, disks: 1, ..QuotaAmounts::default() };
        assert_eq!(limits().exceeded(used, disk(2 << 30)), None);
        assert_eq!(
            limits().exceeded(used, disk(3 << 30)).as_deref(),
            Some("diskSize: 8Gi used, 3Gi more needed, limit 10Gi")
        );
        let vms = |vms| QuotaAmounts { vms, memory: 1 << 50, cpus: 9, ..QuotaAmounts::default() };
        assert_eq!(limits().exceeded(used, vms(1)), None, "memory and cpus have no limit");
        let text = limits().exceeded(used, vms(2));
        assert_eq!(text.as_deref(), Some("vms: 1 used, 2 more needed, limit 2"));
    }

    #[test]
    fn a_limit_that_is_already_exceeded_refuses_only_more_of_the_same() {
        let used = QuotaAmounts { disk_size: 20 << 30, vms: 1, ..QuotaAmounts::default() };
        let vm = QuotaAmounts { vms: 1, ..QuotaAmounts::default() };
        assert_eq!(limits().exceeded(used, vm), None);
        assert_eq!(limits().exceeded(used, QuotaAmounts::default()), None);
        let byte = QuotaAmounts { disk_size: 1, ..QuotaAmounts::default() };
        assert!(limits().exceeded(used, byte).is_some());
    }

    #[test]
    fn space_that_is_used_up_refuses_disks_and_snapshots_only() {
        let limits = QuotaLimits { used_storage: Some(Quantity("2Gi".into())), ..QuotaLimits::default() };
        let used = |used_storage| QuotaAmounts { used_storage, ..QuotaAmounts::default() };
        let disk = QuotaAmounts { disks: 1, disk_size: 1 << 40, ..QuotaAmounts::default() };
        let snapshot = QuotaAmounts { snapshots: 1, ..QuotaAmounts::default() };
        assert_eq!(limits.exceeded(used((2 << 30) - 1), disk), None, "it takes no space yet");
        for more in [disk, snapshot] {
            let text = limits.exceeded(used(2 << 30), more);
            assert_eq!(text.as_deref(), Some("usedStorage: 2Gi used, limit 2Gi"));
        }
        let vm = QuotaAmounts { vms: 1, ..QuotaAmounts::default() };
        assert_eq!(limits.exceeded(used(3 << 30), vm), None);
    }

    #[test]
    fn the_space_of_images_and_backups_refuses_only_these_and_an_upload_by_its_size() {
        let limits = QuotaLimits {
            image_storage: Some(Quantity("2Gi".into())),
            backup_storage: Some(Quantity("4Gi".into())),
            ..QuotaLimits::default()
        };
        let used =
            QuotaAmounts { image_storage: 1 << 30, backup_storage: 4 << 30, ..QuotaAmounts::default() };
        let image = |image_storage| QuotaAmounts { images: 1, image_storage, ..QuotaAmounts::default() };
        assert_eq!(limits.exceeded(used, image(0)), None, "its size is not known yet");
        assert_eq!(limits.exceeded(used, image(1 << 30)), None);
        let text = limits.exceeded(used, image(2 << 30));
        assert_eq!(text.as_deref(), Some("imageStorage: 1Gi used, 2Gi more needed, limit 2Gi"));
        let full = QuotaAmounts { image_storage: 2 << 30, ..used };
        let text = limits.exceeded(full, image(0));
        assert_eq!(text.as_deref(), Some("imageStorage: 2Gi used, limit 2Gi"));
        let backup = QuotaAmounts { backups: 1, ..QuotaAmounts::default() };
        let text = limits.exceeded(used, backup);
        assert_eq!(text.as_deref(), Some("backupStorage: 4Gi used, limit 4Gi"));
        let disk = QuotaAmounts { disks: 1, disk_size: 1 << 40, ..QuotaAmounts::default() };
        assert_eq!(limits.exceeded(full, disk), None);
    }

    #[test]
    fn the_largest_amounts_do_not_overflow() {
        let most = QuotaAmounts { disk_size: u64::MAX, cpus: i64::MAX, ..QuotaAmounts::default() };
        assert_eq!(most.plus(most), most);
        assert!(limits().exceeded(most, most).is_some());
        assert_eq!(QuotaAmounts::default().usage().disk_size, "0");
        assert_eq!(QuotaAmounts { memory: 3 << 30, ..QuotaAmounts::default() }.usage().memory, "3Gi");
    }
}
