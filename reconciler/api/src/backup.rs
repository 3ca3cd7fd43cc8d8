//! Backup: the data of a DiskSnapshot in a BackupRepository.

pub mod declaration;

use k8s_openapi::jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Binding, Conditions, Consistency, DeletionPolicy, ResourceName, console::ConsoleAddress,
    disk_read::READ_UNTIL_ANNOTATION, former_uid,
};

/// On a Backup: any text of 1 to 64 characters has it verified. Another text does so once more; its removal ends a verification that it asked
/// for.
pub const VERIFY_ANNOTATION: &str = "berth.dev/verify";
/// The longest value of [`VERIFY_ANNOTATION`].
pub const MOST_VERIFY_TOKEN: usize = 64;

/// The data of a DiskSnapshot in a BackupRepository, encrypted. Only what has changed since the backup before is read and stored, and
/// each backup is whole by itself: any of them can be deleted. New Disks are made from it, by their `source`, on any host.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Backup",
    plural = "backups",
    singular = "backup",
    shortname = "bkp",
    namespaced,
    status = "BackupStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "The data of a DiskSnapshot in a BackupRepository.",
    selectable = ".status.binding.host",
    selectable = ".spec.repository",
    printcolumn(name = "Repository", type_ = "string", json_path = ".spec.repository"),
    printcolumn(name = "Snapshot", type_ = "string", json_path = ".spec.snapshot"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Progress", type_ = "integer", json_path = ".status.progress"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.size"),
    printcolumn(name = "Stored", type_ = "integer", json_path = ".status.storedBytes"),
    printcolumn(name = "Taken-At", type_ = "date", json_path = ".status.takenAt"),
    printcolumn(name = "Verified", type_ = "string", json_path = r#".status.conditions[?(@.type=="Verified")].status"#),
    printcolumn(name = "Verified-At", type_ = "date", json_path = ".status.verifiedAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Host", type_ = "string", priority = 1, json_path = ".status.binding.host"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.snapshot) != has(self.existing)").message("set either snapshot or existing"),
    validation = Rule::new("self.repository == oldSelf.repository").message("repository cannot change: create another Backup").field_path(".repository"),
    validation = Rule::new("(has(self.snapshot) ? self.snapshot : '') == (has(oldSelf.snapshot) ? oldSelf.snapshot : '')").message("snapshot cannot change: create another Backup").field_path(".snapshot"),
    validation = Rule::new("(has(self.existing) ? self.existing : '') == (has(oldSelf.existing) ? oldSelf.existing : '')").message("existing cannot change: create another Backup").field_path(".existing")
)]
pub struct BackupSpec {
    /// Name of the BackupRepository, in the same namespace. Cannot change.
    pub repository: ResourceName,
    /// Name of the DiskSnapshot, in the same namespace. Once the backup is complete, the DiskSnapshot may be deleted; the next backup
    /// of the disk then reads all of it, but stores only what is new. Set either this or `existing`. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<ResourceName>,
    /// A backup that is in the repository already, such as one of a site that is gone: `VOLUME/BACKUP`, the `volumeID` and the
    /// `backupID` of its status there. While another site makes backups of that disk in the repository, set `deletionPolicy` to
    /// `Retain`. Set either this or `snapshot`. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 161), regex(pattern = r"^[a-z0-9-]{1,80}/[a-z0-9-]{1,80}$"))]
    pub existing: Option<String>,
    /// The handling of the data when the Backup is deleted: `Delete` (default) deletes what no other backup needs; `Retain` keeps it in
    /// the repository, for `existing`. Applied live.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// The observed state of a Backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: it is complete in the repository. `Reconciling`, `Stalled`. `Verified`, once it was verified: `False` if data is damaged or
    /// missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The host that makes and deletes it: that of the snapshot. Written by the controllers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// berth's own identity of the disk, by which the repository keeps it. Decided at bind.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "volumeID")]
    #[schemars(length(max = 80))]
    pub volume_id: Option<String>,
    /// berth's own identity of this backup, by which the repository keeps it. Decided at bind.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "backupID")]
    #[schemars(length(max = 80))]
    pub backup_id: Option<String>,
    /// berth's own identity of the snapshot whose data it is. Decided at bind.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "snapshotID")]
    #[schemars(length(max = 253))]
    pub snapshot_id: Option<String>,
    /// Name of the StoragePool that has the snapshot. Decided at bind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<ResourceName>,
    /// The identity of the repository that it is in, which the controllers record in the status of the BackupRepository.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "repositoryID")]
    #[schemars(length(max = 80))]
    pub repository_id: Option<String>,
    /// The size of the disk, as a quantity. A Disk made from it has at least this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub size: Option<String>,
    /// The moment whose data it has, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub taken_at: Option<String>,
    /// `Crash`: the data as after a power failure. `FileSystem`: the guest agent had the file systems frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
    /// How much of it is done, in percent, in steps of 5. None before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub progress: Option<i64>,
    /// The number of bytes that were read from the disk: not those that had not changed, nor those that were never written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub read_bytes: Option<i64>,
    /// The number of bytes that it added to the repository, compressed and encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub stored_bytes: Option<i64>,
    /// The `backupID` of the backup whose unchanged data was not read again. None: all data was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    pub parent_backup: Option<String>,
    /// When it was complete, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub completed_at: Option<String>,
    /// When all its data was last found whole, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub verified_at: Option<String>,
    /// Its verification. None: it was never verified, and is not to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<BackupVerification>,
    /// The server that clients read files of the backup from (`berth disk-backup ls`), once it is complete. Absent while its host serves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<ConsoleAddress>,
}

/// The last verification of a Backup, and the one that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupVerification {
    /// The verification that is wanted or under way. None: none is. Written by the controllers; its host removes it with the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<RequestedVerification>,
    /// How much of it is read, in percent, in steps of 25. None before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub progress: Option<i64>,
    /// The value of the annotation `berth.dev/verify` that the last one was for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_VERIFY_TOKEN))]
    pub token: Option<String>,
    /// When the last one ended with a result, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub ended_at: Option<String>,
    /// The number of bytes of the disk that it read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub read_bytes: Option<i64>,
    /// The `backupID` of the backup whose blocks it did not read again, as they had been read for that one. None: all blocks were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    pub base: Option<String>,
    /// The number of blocks, and of lists of blocks, that it found damaged or missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub damaged_blocks: Option<i64>,
}

/// A verification that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestedVerification {
    /// Since when, RFC 3339.
    #[schemars(length(max = 40))]
    pub at: String,
    /// The value of the annotation `berth.dev/verify` that asks for it: all blocks are read. None: the BackupRepository does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_VERIFY_TOKEN))]
    pub token: Option<String>,
}

impl BackupVerification {
    /// Whether the last one found damage.
    pub fn found_damage(&self) -> bool {
        self.damaged_blocks.is_some_and(|damaged| damaged > 0)
    }

    /// Returns when the last one ended.
    pub fn ended(&self) -> Option<Timestamp> {
        self.ended_at.as_ref()?.parse().ok()
    }
}

impl Backup {
    /// Returns its verification, if there was or is to be one.
    pub fn verification(&self) -> Option<&BackupVerification> {
        self.status.as_ref()?.verification.as_ref()
    }

    /// Returns the verification that is wanted of it. None also while it is not complete, or is being deleted.
    pub fn requested_verification(&self) -> Option<&RequestedVerification> {
        let is_there = self.is_complete() && self.metadata.deletion_timestamp.is_none();
        self.verification().filter(|_| is_there)?.requested.as_ref()
    }

    /// Returns the text by which a person asks for a verification. One that is too long counts for none.
    pub fn verify_token(&self) -> Option<&str> {
        let token = self.metadata.annotations.as_ref()?.get(VERIFY_ANNOTATION)?;
        (1..=MOST_VERIFY_TOKEN).contains(&token.len()).then_some(token.as_str())
    }

    /// Returns the identities of the disk and of the backup in the repository, if they follow from the object: those of `existing`,
    /// or those that were decided at bind.
    pub fn identity(&self) -> Option<(String, String)> {
        if let Some(existing) = &self.spec.existing {
            return existing.split_once('/').map(|(disk, backup)| (disk.to_owned(), backup.to_owned()));
        }
        let status = self.status.as_ref()?;
        Some((status.volume_id.clone()?, status.backup_id.clone()?))
    }

    /// Returns the identity that a new backup of a snapshot has in the repository. It follows from the object, so that a lost status
    /// is found again.
    pub fn new_identity(&self) -> Option<String> {
        former_uid(self).or(self.metadata.uid.as_deref()).map(|uid| format!("b-{uid}"))
    }

    /// Returns until when its host may read the Secrets of its repository for a client, as it is declared.
    pub fn read_until(&self) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(READ_UNTIL_ANNOTATION).map(String::as_str)
    }

    /// Whether it was complete once.
    pub fn is_complete(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.completed_at.is_some())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_existing_backup_has_the_identity_that_is_declared_and_a_new_one_that_of_its_object() {
        let backup = |spec, annotations| -> Backup {
            serde_json::from_value(json!({
                "metadata": {"name": "b", "namespace": "ns", "uid": "u2", "annotations": annotations}, "spec": spec,
            }))
            .expect("a backup")
        };
        let existing = backup(json!({"repository": "r", "existing": "v-1/b-u0"}), json!({}));
        assert_eq!(existing.identity(), Some(("v-1".into(), "b-u0".into())));
        let mut new = backup(json!({"repository": "r", "snapshot": "s"}), json!({}));
        assert_eq!((new.identity(), new.new_identity().as_deref()), (None, Some("b-u2")));
        new.status = Some(BackupStatus {
            volume_id: Some("v-2".into()),
            backup_id: Some("b-u1".into()),
            ..Default::default()
        });
        assert_eq!(new.identity(), Some(("v-2".into(), "b-u1".into())));
        let former =
            backup(json!({"repository": "r", "snapshot": "s"}), json!({crate::FORMER_UID_ANNOTATION: "u1"}));
        assert_eq!(former.new_identity().as_deref(), Some("b-u1"));
    }
}
