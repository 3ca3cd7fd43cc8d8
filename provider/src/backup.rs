//! `berth_backup`

use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    references::{BACKUP_REPOSITORY, DISK_SNAPSHOT},
};

/// The maximum length of each part of `existing`.
const MOST_IDENTITY: usize = 80;

/// The data of a snapshot in a repository.
#[derive(Debug)]
pub struct Backup;

impl ResourceKind for Backup {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_backup",
            kind: "Backup",
            plural: "backups",
            description: "The data of a `berth_disk_snapshot` in a `berth_backup_repository`, compressed and encrypted. It is made while the VM runs. Of a disk that has a backup in the repository already, only what has changed is read and stored; each backup is whole by itself, and any of them can be destroyed. A `berth_disk` with `source = { backup = … }` is made from it, on any host.\n\nAn apply waits until the backup is complete: `timeouts.create` is one hour by default, and after it the backup goes on. Afterwards its snapshot may be destroyed; the next backup of the disk then reads all of it, and stores only what is new.\n\nWith `existing` the resource stands for a backup that is in the repository already, such as one of a site that is gone.",
            example: include_str!("../../examples/resources/berth_backup/resource.tf"),
            shown: "status.size",
            timeouts: [3600, 120, 600],
        }
    }

    fn fields(&self) -> Vec<Field> {
        let number =
            |name, pointer, text| Field { shape: Shape::Integer, ..Field::observed(name, pointer, text) };
        vec![
            Field::spec("repository", Shape::Text(Form::Name))
                .required()
                .effect(Effect::Replace)
                .refers(BACKUP_REPOSITORY),
            Field::spec("snapshot", Shape::Text(Form::Name)).effect(Effect::Replace).refers(DISK_SNAPSHOT),
            Field::spec("existing", Shape::Text(Form::Any)).effect(Effect::Replace),
            Field::spec("deletion_policy", Shape::Text(Form::Any)).default("Delete"),
            Field::observed(
                "volume_id",
                "/status/volumeID",
                "berth's own identity of the disk, by which the repository keeps it: the first part of `existing` on another site.",
            ),
            Field::observed(
                "backup_id",
                "/status/backupID",
                "berth's own identity of the backup, by which the repository keeps it: the second part of `existing` on another site.",
            ),
            Field::observed(
                "size",
                "/status/size",
                "The size of the disk. A disk made from the backup has at least this size.",
            ),
            Field::observed("taken_at", "/status/takenAt", "The moment whose data it has, RFC 3339."),
            Field::observed(
                "consistency",
                "/status/consistency",
                "`Crash`: the data as after a power failure. `FileSystem`: the guest agent had the file systems frozen.",
            ),
            number(
                "read_bytes",
                "/status/readBytes",
                "The number of bytes that were read from the disk: not those that had not changed, nor those that were never written. Null \
                 with `existing`.",
            ),
            number(
                "stored_bytes",
                "/status/storedBytes",
                "The number of bytes that it added to the repository, compressed and encrypted. Null with `existing`.",
            ),
            Field::observed("completed_at", "/status/completedAt", "When it was complete, RFC 3339."),
            Field::observed(
                "verified_at",
                "/status/verifiedAt",
                "When all its data was last read back and found whole, RFC 3339. Null before; see `verification` of a \
                 `berth_backup_repository`.",
            ),
            number(
                "damaged_blocks",
                "/status/verification/damagedBlocks",
                "The number of blocks that its last verification found damaged or missing: 0 is a backup that is whole. Null before.",
            ),
            Field::observed(
                "host",
                "/status/binding/host",
                "The host that makes and deletes it: that of the snapshot, or another one once that is gone.",
            ),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let (snapshot, existing) = (config.get("snapshot"), config.get("existing"));
        if let Some(text) = existing.as_str()
            && !is_existing(text)
        {
            let at = AttributePath::root("existing");
            let detail = format!(
                "{at}: {text:?} is not the identity of a backup: write volume_id and backup_id of the other site's backup, joined by \
                 \"/\"."
            );
            return vec![Diagnostic::error("Invalid existing", detail).at(at)];
        }
        if snapshot.is_unknown() || existing.is_unknown() || snapshot.is_null() != existing.is_null() {
            return Vec::new();
        }
        let at = AttributePath::root("snapshot");
        let summary = if snapshot.is_null() { "A backup of nothing" } else { "Both snapshot and existing" };
        let detail = format!(
            "{at}: set either `snapshot`, the name of a berth_disk_snapshot, or `existing`, a backup that is in the repository already."
        );
        vec![Diagnostic::error(summary, detail).at(at)]
    }

    /// Another one would have the data of another moment, or be read from the beginning.
    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/status/completedAt").is_some()
    }
}

/// Whether a text has the identities of a disk and of a backup.
fn is_existing(text: &str) -> bool {
    let is_identity = |part: &str| {
        (1..=MOST_IDENTITY).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    text.split_once('/').is_some_and(|(disk, backup)| is_identity(disk) && is_identity(backup))
}
