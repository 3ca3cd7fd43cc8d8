//! Disks that are block devices of this host. Their data, size and file system are not berth's. Pure.

use std::time::Duration;

use berth_api::{Disk, Quantity, Readiness, Reason, ResourceName};
use berth_host::{NewDevice, VolumeFacts};

use super::Step;
use super::source::new_owner;
use crate::converge::Plan;

/// Interval at which it is seen whether the device can be used again.
const LOOK_FOR_DEVICE: Duration = Duration::from_secs(30);
/// Interval at which it is seen whether it has grown, or cannot be used any more.
const LOOK_AT_DEVICE: Duration = Duration::from_secs(60);

/// Returns the plan for a disk that is not recorded as the device yet.
pub(super) fn take(disk: &Disk, volume: &str, device: &ResourceName, size: Option<u64>) -> Plan<Step> {
    let new = NewDevice {
        pool: disk.target_pool().to_string(),
        id: volume.to_owned(),
        device: device.to_string(),
        size,
        owner: new_owner(disk),
    };
    let text = format!("block device {device} is being taken");
    Plan::steps(vec![Step::UseDevice(new)], Readiness::Reconciling(Reason::Provisioning, text))
}

/// Has a device looked at again, which may grow or be used by the host at any time.
pub(super) fn looked_at_again(facts: &VolumeFacts, plan: Plan<Step>) -> Plan<Step> {
    if facts.is_device() { plan.requeue_after(LOOK_AT_DEVICE) } else { plan }
}

/// Returns the plan for a disk whose device no machine is to open. None: it is a file, or one can.
pub(super) fn unusable(disk: &Disk, facts: &VolumeFacts, declared: Option<u64>) -> Option<Plan<Step>> {
    let device = disk.block_device()?;
    if let Some(problem) = &facts.problem {
        let text = format!("block device {device}: {problem}");
        let readiness = Readiness::Stalled(Reason::DeviceUnavailable, text);
        return Some(Plan::without_steps(readiness).requeue_after(LOOK_FOR_DEVICE));
    }
    let declared = declared.filter(|declared| *declared > facts.size)?;
    let text = format!(
        "size is {}, and block device {device} has {}: leave size out, or declare at most that",
        Quantity::from_bytes(declared),
        Quantity::from_bytes(facts.size)
    );
    let readiness = Readiness::Stalled(Reason::InvalidSpec, text);
    // It may grow on the host.
    Some(Plan::without_steps(readiness).requeue_after(LOOK_FOR_DEVICE))
}
