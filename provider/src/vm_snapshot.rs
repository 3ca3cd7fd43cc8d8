//! `berth_vm_snapshot`

use berth_api::vm_snapshot::LONGEST_VM_SNAPSHOT_NAME;
use serde_json::{Map, Value as Json};
use tfplugin6::{Diagnostic, Value};

use crate::{
    field::{Effect, Field, Shape},
    form::{Form, SUFFIX_LENGTH},
    kind::{KindInfo, ResourceKind},
    references::VM,
};

/// A snapshot of all disks of a VM.
#[derive(Debug)]
pub struct VmSnapshot;

impl ResourceKind for VmSnapshot {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_vm_snapshot",
            kind: "VMSnapshot",
            plural: "vmsnapshots",
            description: "The data of all disks of a VM at one moment: the disks that it declares and those that are attached to it, all of them or none. It is taken when the resource is created and all disks have files, in some milliseconds, with the VM running or stopped; where the guest runs qemu-guest-agent, its file systems are frozen meanwhile. With `memory` the guest's memory of that moment is saved too, and the guest is paused while it is written.\n\nEach disk's part is a snapshot of its own (`snapshots`), from which disks are made (`source`) and to which they are restored (`restore`), as with a `berth_disk_snapshot`. They are destroyed with this resource; copies that were made from them stay as they are.",
            example: include_str!("../../examples/resources/berth_vm_snapshot/resource.tf"),
            shown: "status.disks",
            timeouts: [600, 120, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        let snapshots = Field::observed(
            "snapshots",
            "/status/snapshots",
            "The name of the snapshot of each disk, by the name of the disk. The name is that of this resource with the place of the disk in the VM's `disks`, from 0: `before-upgrade-0`. Attached disks come after those, by the names of their attachments.",
        );
        vec![
            Field::spec("vm", Shape::Text(Form::Name)).required().effect(Effect::Replace).refers(VM),
            Field::spec("memory", Shape::Bool).implied(false).effect(Effect::Replace),
            Field { shape: Shape::TextMap, ..snapshots },
            Field::observed(
                "taken_at",
                "/status/takenAt",
                "The moment whose data it has, RFC 3339: the same for all disks.",
            ),
            Field::observed(
                "consistency",
                "/status/consistency",
                "`Crash`: the data as after a power failure. `FileSystem`: the guest agent had the file systems of all disks frozen. With the memory it is `Crash`: what the guest had not written is in its memory.",
            ),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let longest =
            [("name", LONGEST_VM_SNAPSHOT_NAME), ("name_prefix", LONGEST_VM_SNAPSHOT_NAME - SUFFIX_LENGTH)];
        let too_long = longest.into_iter().filter_map(|(attribute, most)| {
            let text = config.get(attribute).as_str().filter(|text| text.len() > most)?;
            let detail = format!(
                "{attribute}: {text:?} has more than {most} characters. The names of the snapshots of the disks are made of that of the \
                 VM's snapshot and have at most 63: use a shorter one."
            );
            Some(Diagnostic::error("Name too long", detail).at(attribute))
        });
        too_long.collect()
    }

    fn view(&self, object: &Json) -> Json {
        let mut view = object.clone();
        let disks = object.pointer("/status/disks").and_then(Json::as_array);
        let name = |disk: &Json| Some((disk["disk"].as_str()?.to_owned(), disk["snapshot"].clone()));
        let names: Option<Map<String, Json>> = disks.map(|disks| disks.iter().filter_map(name).collect());
        if let (Some(names), Some(status)) = (names, view.get_mut("status").and_then(Json::as_object_mut)) {
            status.insert("snapshots".to_owned(), names.into());
        }
        view
    }

    /// Another one would have the data of another moment.
    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/status/disks/0").is_some()
    }
}
