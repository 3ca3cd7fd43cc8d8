//! `berth_hotswap_disk_attachment`

use berth_api::Reason;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value as Json;
use tfplugin6::Value;

use crate::{
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{Facts, Kind},
    readiness::{self, Condition, Outcome, Readiness},
};

/// Joins a disk to a running VM.
#[derive(Debug)]
pub struct HotswapDiskAttachment;

impl Kind for HotswapDiskAttachment {
    fn facts(&self) -> Facts {
        Facts {
            type_name: "berth_hotswap_disk_attachment",
            kind: "HotswapDiskAttachment",
            plural: "hotswapdiskattachments",
            description: "Joins a disk to a VM while it runs; destroying it detaches the disk. A disk with a filesystem that the guest still has mounted is not detached: unmount it, or set `force`.",
            example: r#"resource "berth_hotswap_disk_attachment" "data" {
  vm   = berth_vm.web.name
  disk = berth_disk.data.name
}
"#,
            timeouts: [300, 300, 300],
        }
    }

    fn definition(&self) -> CustomResourceDefinition {
        berth_api::HotswapDiskAttachment::crd()
    }

    fn name_field(&self) -> Field {
        let mut field = Field::observed(
            "name",
            "/metadata/name",
            "Name of the object. Default: `<vm>-<disk>`. Cannot change.",
        );
        field.shape = Shape::Text(Form::DottedName);
        field.presence(Presence::Kept).effect(Effect::Replace)
    }

    fn default_name(&self, config: &Value) -> Value {
        match (config.get("vm").as_str(), config.get("disk").as_str()) {
            (Some(vm), Some(disk)) => Value::from(format!("{vm}-{disk}")),
            _ => Value::UNKNOWN,
        }
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("vm", Shape::Text(Form::Name)).required().effect(Effect::Replace),
            Field::spec("disk", Shape::Text(Form::Name)).required().effect(Effect::Replace),
            Field::spec("force", Shape::Bool).default(false),
            Field::local(
                "wait_for",
                Shape::Text(Form::Any),
                "What an apply waits for: `attached` (default), or `none`: the disk is attached when the VM next runs.",
            )
            .one_of(&["none", "attached"])
            .default("attached"),
            Field::observed("serial", "/status/serial", "The serial number the guest finds the disk by."),
            Field::observed(
                "device",
                "/status/device",
                "The device in the guest, when the guest agent told, else the stable path by serial.",
            ),
            Field::observed(
                "state",
                "/status/state",
                "One word for what it is doing: `Requested`, `Attached`, `Detaching`, `Released` or `Failed`.",
            ),
        ]
    }

    fn outcome(&self, object: &Json, wishes: &Value) -> Outcome {
        if wishes.get("wait_for").as_str() == Some("none") {
            return Outcome::Done;
        }
        Readiness::of(object).outcome()
    }

    fn held_by_guest(&self, object: &Json) -> Option<Condition> {
        readiness::condition(object, "Ready").filter(|ready| ready.reason == Reason::GuestBusy.as_str())
    }

    fn has_lived(&self, object: &Json) -> bool {
        readiness::is_true(object, "Attached")
    }
}
