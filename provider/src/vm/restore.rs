//! The restore of a VM from a snapshot of it, and its snapshots.

use crate::{
    change::PlannedChange,
    field::{Effect, Field, Shape},
    form::Form,
    restore::{self, Restored},
};

pub(super) fn field() -> Field {
    let fields = vec![
        Field::spec("snapshot", Shape::Text(Form::Name)).required().effect(Effect::PowerCycle),
        Field::spec("token", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
        Field::spec("memory", Shape::Bool).effect(Effect::PowerCycle),
    ];
    Field::spec("restore", Shape::Object(fields)).text(
        "A snapshot of this VM whose data its disks are to have again, all of them or none, by its name: a reference to the resource of the \
         snapshot would be a circle, since that one refers to the VM. Disks that the snapshot does not have stay as they are. It is restored \
         once for each value, at the next power cycle of a running VM, and the apply does not wait for that: with `allow_reboot` it restarts \
         the VM. The data from before stays in the pool's trash for 24 hours (`berth undelete --as`). Removing it changes nothing.",
    )
}

pub(super) fn observed() -> [Field; 2] {
    let fields = vec![
        Field::observed("snapshot", "/status/restoredFrom/snapshot", "The name of the snapshot."),
        Field::observed("token", "/status/restoredFrom/token", "The token that was declared."),
        Field::observed(
            "restored_at",
            "/status/restoredFrom/restoredAt",
            "When its last disk was restored, RFC 3339.",
        ),
    ];
    let restored_from = Field {
        shape: Shape::Object(fields),
        ..Field::observed("restored_from", "/status/restoredFrom", "The last restore of its disks.")
    };
    let snapshots = Field::observed(
        "snapshots",
        "/status/snapshots",
        "When each of its snapshots was taken, RFC 3339, by the names of the snapshots: at most the last 64.",
    );
    [
        restored_from.follows(&["restore", "power", "restart_token"]),
        Field { shape: Shape::TextMap, ..snapshots },
    ]
}

/// Nothing waits for a power cycle if nothing is to be restored.
pub(super) fn refine(change: &mut PlannedChange<'_>) {
    if !restore::is_requested(change) {
        for change in change.changes.iter_mut().filter(|change| restore::is_part(&change.path)) {
            change.effect = Effect::Live;
        }
    }
    let announced = restore::announce(change, Restored::Vm);
    change.diagnostics.extend(announced);
}
