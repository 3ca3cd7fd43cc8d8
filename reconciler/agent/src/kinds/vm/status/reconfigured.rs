//! Whether a change was applied to a VM since its stored status. Pure.

use std::collections::BTreeSet;

use berth_api::vm::Hardware;
use berth_api::{VMState, VMStatus};

/// Whether the VM has other hardware than it had, or its running machine was changed.
pub(super) fn is_reconfigured(stored: &VMStatus, status: &VMStatus) -> bool {
    // Before its first start it has none.
    let (Some(before), Some(now)) = (&stored.hardware, &status.hardware) else { return false };
    let is_changed_live = || {
        stored.cpu_time != status.cpu_time
            || disks(stored) != disks(status)
            // The status does not name the media: another one in a drive is no difference.
            || inserted(stored).ne(inserted(status))
    };
    declared(before) != declared(now) || (is_same_run(stored, status) && is_changed_live())
}

/// Returns the hardware without the number that its host gives it at each start.
fn declared(hardware: &Hardware) -> Hardware {
    Hardware { vsock_cid: None, ..hardware.clone() }
}

/// Whether both are of one process, read from a monitor that answers: one that does not leaves disks and drives out.
fn is_same_run(stored: &VMStatus, status: &VMStatus) -> bool {
    let is_read = |status: &VMStatus| {
        let is_up = matches!(status.state, Some(VMState::Running | VMState::Paused));
        is_up && (!disks(status).is_empty() || !status.cdroms.is_empty())
    };
    status.process.is_some() && stored.process == status.process && is_read(stored) && is_read(status)
}

/// Returns the attached disks that the VM declares. Those of attachments are plugged in anew after each start.
fn disks(status: &VMStatus) -> BTreeSet<&str> {
    let declared = status.disks.iter().filter(|disk| disk.attached && disk.attachment.is_none());
    declared.map(|disk| disk.name.as_str()).collect()
}

fn inserted(status: &VMStatus) -> impl Iterator<Item = (&str, bool)> {
    status.cdroms.iter().map(|drive| (drive.name.as_str(), drive.inserted))
}
