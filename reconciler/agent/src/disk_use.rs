//! The space that the files of disks and of VMs take on this host, measured at intervals: a disk that grows costs few writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::storage_pool::{rounded_up, rounding_unit, space};
use berth_api::vm::{DiskAttachmentStatus, VMStorage};
use berth_api::{Quantity, VM};
use tokio::time::Instant;

use crate::index::{Tables, instance_of};
use crate::key::ObjectName;

/// Interval of the measurements.
const EVERY: Duration = Duration::from_secs(600);

/// The size that other files of a VM than its disks are rounded by: to 16 MiB.
const FILES_OF: u64 = 4 << 30;

/// Bytes by identity.
#[derive(Debug, Default)]
pub(crate) struct UsedBytes {
    pub(crate) volumes: BTreeMap<String, u64>,
    pub(crate) snapshots: BTreeMap<String, u64>,
    pub(crate) instances: BTreeMap<String, u64>,
}

/// The bytes that a VM takes beside its disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VmBytes {
    snapshots: u64,
    files: u64,
}

/// The last measurement.
#[derive(Debug, Default)]
pub(crate) struct DiskUse(Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    at: Option<Instant>,
    used: UsedBytes,
}

impl DiskUse {
    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_due(&self) -> bool {
        self.measured().at.is_none_or(|at| at.elapsed() >= EVERY)
    }

    pub(crate) fn record(&self, used: UsedBytes) {
        *self.measured() = Measured { at: Some(Instant::now()), used };
    }

    /// Returns the bytes that a volume took at the last measurement. None: there was none of it.
    pub(crate) fn of(&self, volume: &str) -> Option<u64> {
        self.measured().used.volumes.get(volume).copied()
    }

    /// Returns the bytes that a VM took beside its disks. None: its instance was not there at the last measurement.
    pub(crate) fn of_vm(&self, tables: &Tables, name: &ObjectName, vm: &VM) -> Option<VmBytes> {
        let measured = self.measured();
        let files = measured.used.instances.get(instance_of(vm)?).copied()?;
        let declared = vm.spec.disks.iter().map(|disk| disk.name.to_string());
        let attached = tables.attachments_of(name).map(|attachment| attachment.spec.disk.to_string());
        let disks: BTreeSet<String> = declared.chain(attached).collect();
        let snapshots = tables
            .disk_snapshots
            .in_namespace(&name.namespace)
            .filter(|(_, snapshot)| disks.contains(snapshot.spec.disk.as_str()))
            .filter_map(|(_, snapshot)| snapshot.status.as_ref()?.snapshot_id.as_ref())
            .filter_map(|id| measured.used.snapshots.get(id).copied())
            .fold(0, u64::saturating_add);
        Some(VmBytes { snapshots, files })
    }
}

/// Returns the space that a VM with these disks takes, as its status has it: rounded up, with what is reported.
pub(crate) fn storage(
    disks: &[DiskAttachmentStatus],
    bytes: VmBytes,
    reported: Option<&VMStorage>,
) -> VMStorage {
    let sum = |amount: fn(&DiskAttachmentStatus) -> Option<&String>| {
        disks.iter().filter_map(amount).map(|text| space(text)).fold(0, u64::saturating_add)
    };
    let provisioned = sum(|disk| disk.size.as_ref());
    let snapshots = reported.map(|storage| storage.snapshots.as_str());
    let files = reported.map(|storage| storage.files.as_str());
    VMStorage {
        provisioned: Quantity::from_bytes(provisioned).0,
        // The disks report rounded amounts.
        disks: Quantity::from_bytes(sum(|disk| disk.used.as_ref())).0,
        snapshots: amount(bytes.snapshots, provisioned.max(FILES_OF), snapshots),
        files: amount(bytes.files, FILES_OF, files),
    }
}

/// Returns the bytes that a disk of this size takes, as statuses have it: rounded up, with the amount that is reported.
pub(crate) fn amount(used: u64, size: u64, reported: Option<&str>) -> String {
    Quantity::from_bytes(rounded_up(used, rounding_unit(size), reported.map(space))).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn disks_are_measured_at_intervals_and_rounded() {
        let usage = DiskUse::default();
        assert!(usage.is_due() && usage.of("v-1").is_none());
        usage.record(UsedBytes { volumes: [("v-1".to_owned(), 5)].into(), ..UsedBytes::default() });
        assert!(!usage.is_due());
        assert_eq!(usage.of("v-1"), Some(5));
        tokio::time::advance(EVERY).await;
        assert!(usage.is_due());
        let of = |mib: u64, reported| amount(mib << 20, 100 << 30, reported);
        assert_eq!(of(5, None), "512Mi");
        assert_eq!(of(0, None), "0");
        assert_eq!(of(513, Some("512Mi")), "1Gi");
        assert_eq!(of(500, Some("1Gi")), "1Gi", "it may be about to take more again");
        assert_eq!(of(0, Some("1Gi")), "0");
        assert_eq!(of(0, Some("0")), "0");
    }

    #[test]
    fn the_space_of_a_vm_is_that_of_its_disks_its_snapshots_and_its_other_files() {
        let disk = |size: &str, used: &str| DiskAttachmentStatus {
            size: Some(size.to_owned()),
            used: Some(used.to_owned()),
            ..DiskAttachmentStatus::default()
        };
        let disks = [disk("4Gi", "304Mi"), disk("1Gi", "16Mi"), DiskAttachmentStatus::default()];
        let bytes = VmBytes { snapshots: 100 << 20, files: 17 << 20 };
        let found = storage(&disks, bytes, None);
        let texts = |found: &VMStorage| {
            [&found.provisioned, &found.disks, &found.snapshots, &found.files].map(String::clone)
        };
        assert_eq!(texts(&found), ["5Gi", "320Mi", "128Mi", "32Mi"]);
        let less = storage(&disks, VmBytes { snapshots: 90 << 20, files: 9 << 20 }, Some(&found));
        assert_eq!(less, found, "a small change writes nothing");
    }
}
