//! VMSnapshot: the data of all disks of a VM at one moment.

use kube::{CustomResource, KubeSchema, ResourceExt};
use serde::{Deserialize, Serialize};

use crate::{Conditions, Consistency, DiskSnapshot, ResourceName};

/// On a DiskSnapshot that is a part of a VMSnapshot: the name of the VMSnapshot.
pub const VM_SNAPSHOT_LABEL: &str = "berth.dev/vm-snapshot";
/// On a DiskSnapshot that is a part of a VMSnapshot: the number of its parts. All of them are taken at one moment.
pub const VM_SNAPSHOT_PARTS_ANNOTATION: &str = "berth.dev/vm-snapshot-parts";
/// On a DiskSnapshot that is a part of a VMSnapshot with the guest's memory: `true`.
pub const VM_SNAPSHOT_MEMORY_ANNOTATION: &str = "berth.dev/vm-snapshot-memory";
/// The greatest number of disks of a VMSnapshot.
pub const MOST_SNAPSHOT_DISKS: usize = 64;
/// The greatest length of the name of a VMSnapshot: the names of its DiskSnapshots are three characters longer.
pub const LONGEST_VM_SNAPSHOT_NAME: usize = 60;

/// The data of all disks of a VM at one moment, and with `memory` the guest's memory of that moment. The VM runs on; with `memory` its guest
/// is paused while that is written. Each disk's part is a DiskSnapshot `NAME-0`, `NAME-1`, … of its own, which goes with the VMSnapshot: Disks
/// are made from it and restored from it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "VMSnapshot",
    plural = "vmsnapshots",
    singular = "vmsnapshot",
    shortname = "vmsnap",
    namespaced,
    status = "VMSnapshotStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "The data of all disks of a VM at one moment.",
    selectable = ".spec.vm",
    printcolumn(name = "VM", type_ = "string", json_path = ".spec.vm"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Consistency", type_ = "string", json_path = ".status.consistency"),
    printcolumn(name = "Taken-At", type_ = "date", json_path = ".status.takenAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,58}[a-z0-9])?$')").message("metadata.name must be a DNS label of at most 60 characters: lower-case letters, digits and '-'. The names of its DiskSnapshots are three characters longer")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.vm == oldSelf.vm").message("vm cannot change: create another VMSnapshot").field_path(".vm"),
    validation = Rule::new("(has(self.memory) && self.memory) == (has(oldSelf.memory) && oldSelf.memory)").message("memory cannot change: create another VMSnapshot").field_path(".memory")
)]
pub struct VMSnapshotSpec {
    /// Name of the VM, in the same namespace. The snapshot is taken when all its disks have files. Cannot change.
    pub vm: ResourceName,
    /// Whether the guest's memory and devices are saved with the disks, of the same moment: a restore then continues the guest there. The
    /// guest is paused while they are written to a file of its host. The VM has to run. Default false. Cannot change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
}

/// The observed state of a VMSnapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMSnapshotStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: the snapshots of all disks are taken. `Reconciling`, `Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The disks that it has the data of: those that the VM declares, in their order, then those of its HotswapDiskAttachments, by the names
    /// of these. Decided once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["disk".into()]))]
    #[schemars(length(max = MOST_SNAPSHOT_DISKS))]
    pub disks: Vec<SnapshotOfDisk>,
    /// The moment whose data it has, RFC 3339: the same for all disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub taken_at: Option<String>,
    /// `Crash`: the data as after a power failure. `FileSystem`: the guest agent had the file systems of all disks frozen. With the
    /// memory it is `Crash`: what the guest had not written is in its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
}

/// A disk of a VMSnapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotOfDisk {
    /// Name of the Disk.
    pub disk: ResourceName,
    /// Name of the DiskSnapshot with its data.
    pub snapshot: ResourceName,
}

/// The VMSnapshot that a DiskSnapshot is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartOf<'a> {
    /// The name of the VMSnapshot.
    pub name: &'a str,
    /// The number of its parts.
    pub parts: usize,
    /// Whether the guest's memory is saved with them.
    pub memory: bool,
}

impl VMSnapshot {
    /// Returns the name of the DiskSnapshot of the disk at this place in the list.
    pub fn part_name(&self, place: usize) -> ResourceName {
        ResourceName(format!("{}-{place}", self.name_any()))
    }
}

impl DiskSnapshot {
    /// Returns the VMSnapshot that it is a part of.
    pub fn part_of(&self) -> Option<PartOf<'_>> {
        let name = self.labels().get(VM_SNAPSHOT_LABEL)?;
        let parts = self.annotations().get(VM_SNAPSHOT_PARTS_ANNOTATION)?.parse().ok()?;
        let memory =
            self.annotations().get(VM_SNAPSHOT_MEMORY_ANNOTATION).is_some_and(|value| value == "true");
        (1..=MOST_SNAPSHOT_DISKS).contains(&parts).then_some(PartOf { name, parts, memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DiskSnapshotSpec;

    #[test]
    fn the_longest_name_leaves_room_for_those_of_its_parts() {
        let longest = VMSnapshot::new(&"a".repeat(LONGEST_VM_SNAPSHOT_NAME), VMSnapshotSpec::default());
        let last = longest.part_name(MOST_SNAPSHOT_DISKS - 1);
        assert!(ResourceName::is_dns_label(last.as_str()), "{last}");
    }

    #[test]
    fn a_part_names_its_vm_snapshot_and_the_number_of_parts() {
        let part = |label: Option<&str>, parts: &str| {
            let mut part = DiskSnapshot::new("s-0", DiskSnapshotSpec::default());
            part.metadata.labels = label.map(|name| [(VM_SNAPSHOT_LABEL.to_owned(), name.to_owned())].into());
            part.metadata.annotations =
                Some([(VM_SNAPSHOT_PARTS_ANNOTATION.to_owned(), parts.to_owned())].into());
            part
        };
        assert_eq!(part(Some("s"), "2").part_of(), Some(PartOf { name: "s", parts: 2, memory: false }));
        let mut with_memory = part(Some("s"), "2");
        let annotations = with_memory.metadata.annotations.as_mut().expect("set");
        annotations.insert(VM_SNAPSHOT_MEMORY_ANNOTATION.to_owned(), "true".to_owned());
        assert_eq!(with_memory.part_of(), Some(PartOf { name: "s", parts: 2, memory: true }));
        for other in [part(None, "2"), part(Some("s"), "0"), part(Some("s"), "65"), part(Some("s"), "two")] {
            assert_eq!(other.part_of(), None);
        }
    }
}
