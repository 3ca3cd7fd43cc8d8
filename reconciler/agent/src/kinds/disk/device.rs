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

/// Returns the plan for a disk that was a device before, of this host or of another one. None: it is new. What a device has now may be the data
/// of another disk, also where it has the same name: a disk never gets another one by itself.
pub(super) fn lost(disk: &Disk, volume: &str, device: &ResourceName) -> Option<Plan<Step>> {
    let status = disk.status.as_ref()?;
    let text = match (&status.former_host, &status.size) {
        (Some(host), _) => format!(
            "its data is on block device {device} of host {host}, and that of this host is another one: bring its VM back there, or replace the Disk"
        ),
        (None, Some(_)) => format!(
            "volume {volume} was block device {device} of this host, and the record of that is gone: another Disk may have had the device since. Replace the Disk, which changes nothing on the device"
        ),
        (None, None) => return None,
    };
    Some(Plan::without_steps(Readiness::Stalled(Reason::DiskLost, text)))
}

/// Has a device looked at again, which may grow or be used by the host at any time.
pub(super) fn looked_at_again(facts: &VolumeFacts, plan: Plan<Step>) -> Plan<Step> {
    if facts.is_device() { plan.requeue_after(LOOK_AT_DEVICE) } else { plan }
}

/// Returns the plan for a disk whose device no machine is to open. None: it is a file, or one can.
pub(super) fn unusable(disk: &Disk, facts: &VolumeFacts, declared: Option<u64>) -> Option<Plan<Step>> {
    let Some(device) = disk.block_device() else {
        return facts.is_device().then(|| undeclared(facts));
    };
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

/// Returns the plan for a disk that was made anew for the volume of another one, without what that declared.
fn undeclared(facts: &VolumeFacts) -> Plan<Step> {
    let text = format!(
        "volume {} is a block device of this host, and the Disk does not declare that: replace it by one with source.device, which changes nothing on the device",
        facts.id
    );
    Plan::without_steps(Readiness::Stalled(Reason::NotSupported, text))
}
