//! DiskSnapshot: the data of a Disk at one moment.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Binding, Conditions, Disk, EncryptionStatus, ResourceName, console::ConsoleAddress, former_uid,
    sharing::is_shared,
};

/// The data of a Disk at one moment, on the host of the disk. Its VM runs on meanwhile. New Disks are made from it, by their
/// `source`. It is kept until it is deleted, also after its Disk.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "DiskSnapshot",
    plural = "disksnapshots",
    singular = "disksnapshot",
    shortname = "dsnap",
    namespaced,
    status = "DiskSnapshotStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "The data of a Disk at one moment.",
    selectable = ".status.binding.host",
    selectable = ".spec.disk",
    printcolumn(name = "Disk", type_ = "string", json_path = ".spec.disk"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.size"),
    printcolumn(name = "Consistency", type_ = "string", json_path = ".status.consistency"),
    printcolumn(name = "Taken-At", type_ = "date", json_path = ".status.takenAt"),
    printcolumn(name = "Host", type_ = "string", json_path = ".status.binding.host"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.disk == oldSelf.disk").message("disk cannot change: create another DiskSnapshot").field_path(".disk")
)]
pub struct DiskSnapshotSpec {
    /// Name of the Disk, in the same namespace. The snapshot is taken when the Disk has a file. Cannot change.
    pub disk: ResourceName,
    /// The namespaces in which Disks and Images can be made from this DiskSnapshot (`source.snapshot` with `source.snapshotNamespace`), at
    /// most 64; `*` is every namespace. Disks and Images that exist stay when a namespace is removed from the list. Default: none. Applied
    /// live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(n, n == '*' || n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))").message("each of sharedWith must be the name of a namespace, or *"))]
    pub shared_with: Vec<String>,
}

/// The state in which a snapshot has a guest's file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Consistency {
    /// As after a power failure: what the guest had not written to the disk yet is missing. File systems with a journal and
    /// databases recover from it.
    Crash,
    /// As after an unmount: the guest agent froze the file systems meanwhile.
    FileSystem,
}

/// The observed state of a DiskSnapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskSnapshotStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: it is taken. `Reconciling`, `Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The host of the disk, which has the snapshot. Written by the controllers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// berth's own identity of this snapshot; its file is named by it. Decided at bind.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "snapshotID")]
    pub snapshot_id: Option<String>,
    /// berth's own identity of the disk that it is taken of. Decided at bind.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "volumeID")]
    pub volume_id: Option<String>,
    /// Name of the StoragePool of the disk, which has the snapshot too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<ResourceName>,
    /// The size of the disk when it was taken, as a quantity. A Disk made from it has at least this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// The moment whose data it has, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub taken_at: Option<String>,
    /// `Crash`: the data as after a power failure. `FileSystem`: the guest agent had the file systems frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
    /// The encryption of its data, which is that of its disk. None: it is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Box<EncryptionStatus>>,
    /// True: the guest's memory of the same moment is saved with the VMSnapshot that it is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    /// The server that clients read files of the snapshot from (`berth snapshot ls`), once it is taken. Absent while its host serves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<ConsoleAddress>,
}

impl DiskSnapshot {
    /// Whether Disks and Images of this namespace may have its data.
    pub fn is_shared_with(&self, namespace: &str) -> bool {
        is_shared(&self.metadata, &self.spec.shared_with, namespace)
    }

    /// Whether it is of this Disk, also of one that had another name.
    pub fn is_of(&self, disk: &Disk) -> bool {
        let volume = disk.status.as_ref().and_then(|status| status.volume_id.as_ref());
        let of_volume = self.status.as_ref().and_then(|status| status.volume_id.as_ref());
        let is_of_name = self.metadata.namespace == disk.metadata.namespace
            && disk.metadata.name.as_deref() == Some(self.spec.disk.as_str());
        is_of_name || (of_volume.is_some() && of_volume == volume)
    }

    /// Returns berth's own identity of the snapshot. It follows from the object, so that a lost status is found again and no
    /// other moment takes the place of the first.
    pub fn identity(&self) -> Option<String> {
        let known = self.status.as_ref().and_then(|status| status.snapshot_id.clone());
        let uid = || Some(format!("s-{}", former_uid(self).or(self.metadata.uid.as_deref())?));
        known.or_else(uid)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_identity_is_that_of_the_object_it_was_before() {
        let mut object: DiskSnapshot = serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "ns", "uid": "u2", "annotations": {}}, "spec": {"disk": "d"},
        }))
        .expect("a snapshot");
        assert_eq!(object.identity().as_deref(), Some("s-u2"));
        object.metadata.annotations =
            Some([(crate::FORMER_UID_ANNOTATION.to_owned(), "u1".to_owned())].into());
        assert_eq!(object.identity().as_deref(), Some("s-u1"));
        object.status = Some(DiskSnapshotStatus { snapshot_id: Some("s-u0".into()), ..Default::default() });
        assert_eq!(object.identity().as_deref(), Some("s-u0"));
    }
}
