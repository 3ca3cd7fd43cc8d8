//! Status of an attachment. Pure.

use berth_api::condition;
use berth_api::{
    AttachmentState, ConditionType, ConditionUpdate, HotswapDiskAttachment, HotswapDiskAttachmentStatus,
    Readiness, Reason,
};
use jiff::Timestamp;

use super::Observed;
use crate::plugging::device;

pub(super) fn status(
    attachment: &HotswapDiskAttachment,
    observed: &Observed,
    readiness: &Readiness,
    now: Timestamp,
) -> HotswapDiskAttachmentStatus {
    let mut status = attachment.status.clone().unwrap_or_default();
    let generation = attachment.metadata.generation.unwrap_or(0);
    let deleting = attachment.metadata.deletion_timestamp.is_some();
    status.observed_generation = generation;
    readiness.write(&mut status.conditions, generation, now);
    let plugged = observed.plugged();
    let reason = if plugged.is_some() { Reason::Attached } else { readiness.reason() };
    let reason = if reason == Reason::Attached && plugged.is_none() { Reason::Attaching } else { reason };
    let text = if plugged.is_some() { "" } else { readiness.message() };
    let conditions = &mut status.conditions;
    condition::set(
        conditions,
        ConditionUpdate::from_bool(ConditionType::Attached, plugged.is_some(), reason, text),
        generation,
        now,
    );
    status.serial = plugged.map(|d| d.serial.clone());
    status.device = plugged.map(|d| device(d, &observed.guest));
    status.state = Some(match (deleting, plugged.is_some(), readiness) {
        (true, true, _) => AttachmentState::Detaching,
        (true, false, _) => AttachmentState::Released,
        (false, true, _) => AttachmentState::Attached,
        (false, false, Readiness::Stalled(..)) => AttachmentState::Failed,
        (false, false, _) => AttachmentState::Requested,
    });
    status
}
