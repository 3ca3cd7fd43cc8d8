//! `berth_disk_snapshot`

use serde_json::Value as Json;
use tfplugin6::{Diagnostic, Value};

use crate::{
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    references::DISK,
    shared_with::check_shared_with,
};

/// A snapshot of a disk.
#[derive(Debug)]
pub struct DiskSnapshot;

impl ResourceKind for DiskSnapshot {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_disk_snapshot",
            kind: "DiskSnapshot",
            plural: "disksnapshots",
            description: "The data of a disk at one moment. It is taken when the resource is created and the disk has a file, in a few milliseconds, with its VM running or stopped; where the guest runs qemu-guest-agent, its file systems are frozen meanwhile. A `berth_disk` with `source = { snapshot = … }` is a copy of it, made without copying data.\n\nIt is kept until it is destroyed, also after its disk. Destroying it leaves the copies that were made from it as they are.",
            example: include_str!("../../examples/resources/berth_disk_snapshot/resource.tf"),
            shown: "status.size",
            timeouts: [600, 120, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("disk", Shape::Text(Form::Name)).required().effect(Effect::Replace).refers(DISK),
            Field::spec("shared_with", Shape::TextList(Form::Any)),
            Field::observed(
                "size",
                "/status/size",
                "The size of the disk when it was taken. A disk made from it has at least this size.",
            ),
            Field::observed("taken_at", "/status/takenAt", "The moment whose data it has, RFC 3339."),
            Field::observed(
                "consistency",
                "/status/consistency",
                "`Crash`: the data as after a power failure. `FileSystem`: the guest agent had the file systems frozen.",
            ),
            Field::observed("pool", "/status/pool", "The StoragePool that has its file."),
            Field::observed(
                "snapshot_id",
                "/status/snapshotID",
                "berth's own identity of the snapshot, and the name of its file.",
            ),
            Field::observed("host", "/status/binding/host", "The host that stores its file."),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        check_shared_with(config).into_iter().collect()
    }

    /// Another one would have the data of another moment.
    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/status/snapshotID").is_some()
    }
}
