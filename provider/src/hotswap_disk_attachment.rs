//! `berth_hotswap_disk_attachment`

use berth_api::Reason;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Value};

use crate::{
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::{self, Condition, Outcome, Readiness},
    references::{DISK, Named, VM},
};

/// An attachment of a disk to a running VM.
#[derive(Debug)]
pub struct HotswapDiskAttachment;

impl ResourceKind for HotswapDiskAttachment {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_hotswap_disk_attachment",
            kind: "HotswapDiskAttachment",
            plural: "hotswapdiskattachments",
            description: "Attaches a disk to a VM while it runs; destroying the attachment detaches the disk. A disk that the guest still has mounted is not detached: unmount it, or set `force`. Without qemu-guest-agent in the guest, mounts are unknown and the disk is detached only when the VM is off, or with `force`: set it before you destroy the disk together with its running VM.",
            example: include_str!("../../examples/resources/berth_hotswap_disk_attachment/resource.tf"),
            shown: "device",
            timeouts: [300, 300, 300],
        }
    }

    fn finalizer(&self) -> Option<&'static str> {
        Some(berth_api::HOST_FINALIZER)
    }

    fn name_field(&self) -> Field {
        let mut field = Field::observed(
            "name",
            "/metadata/name",
            "Name of the object. Default: `<vm>-<disk>`, unless `name_prefix` is set. Cannot change.",
        );
        field.shape = Shape::Text(Form::DottedName);
        field.presence(Presence::Kept).effect(Effect::Replace)
    }

    fn needs_name(&self) -> bool {
        false
    }

    fn default_name(&self, config: &Value) -> Value {
        match (config.get("vm").as_str(), config.get("disk").as_str()) {
            (Some(vm), Some(disk)) => Value::from(format!("{vm}-{disk}")),
            _ => Value::UNKNOWN,
        }
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("vm", Shape::Text(Form::Name)).required().effect(Effect::Replace).refers(VM),
            Field::spec("disk", Shape::Text(Form::Name)).required().effect(Effect::Replace).refers(DISK),
            Field::spec("force", Shape::Bool).default(false),
            Field::local(
                "wait_for",
                Shape::Text(Form::Any),
                "The state that an apply waits for: `attached` (default), or `none`, with which the disk is attached when the VM next runs.",
            )
            .one_of(&["none", "attached"])
            .default("attached"),
            Field::observed("serial", "/status/serial", "The serial number of the disk in the guest."),
            Field::observed(
                "device",
                "/status/device",
                "The device in the guest, as reported by the guest agent, or else the stable path by serial.",
            ),
            Field::observed(
                "state",
                "/status/state",
                "The state of the attachment: `Requested`, `Attached`, `Detaching`, `Released` or `Failed`.",
            ),
        ]
    }

    fn holds(&self, planned: &Value) -> Vec<Named> {
        let name = planned.get("disk").as_str().map(str::to_owned);
        let held = name.map(|name| Named { path: AttributePath::root("disk"), reference: DISK, name });
        held.into_iter().collect()
    }

    fn outcome(&self, object: &Json, planned: &Value) -> Outcome {
        if planned.get("wait_for").as_str() == Some("none") {
            return Outcome::Done;
        }
        Readiness::of(object).outcome()
    }

    fn blocked_by_guest(&self, object: &Json) -> Option<Condition> {
        let held = [Reason::GuestBusy.as_str(), Reason::MountsUnknown.as_str()];
        readiness::condition(object, "Ready").filter(|ready| held.contains(&ready.reason.as_str()))
    }

    fn is_worth_keeping(&self, object: &Json) -> bool {
        readiness::is_true(object, "Attached")
    }
}
