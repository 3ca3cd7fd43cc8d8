//! Plan for an attachment. Pure.

use std::time::Duration;

use berth_api::{ConditionType, HotswapDiskAttachment, Power, Readiness, Reason, VM, VMState, condition};
use kube::ResourceExt;

use super::{Observed, Step, uses};
use crate::converge::Plan;
use crate::index::{instance_of, volume_of};
use crate::kinds::disk::is_unencrypted;
use crate::machine::has_ended;
use crate::plugging::disk_spec;

/// Interval of retries while the guest does not release the disk.
const ASK_AGAIN: Duration = Duration::from_secs(2);

const LEFT: &str = "what an attempt to plug it in has left in the machine is being removed";

pub(super) fn plan(attachment: &HotswapDiskAttachment, observed: &Observed) -> Plan<Step> {
    if attachment.metadata.deletion_timestamp.is_some() {
        return detach(attachment, observed);
    }
    if observed.plugged().is_some() {
        return Plan::without_steps(Readiness::Ready(Reason::Attached, String::new()));
    }
    attach(attachment, observed)
}

fn attach(attachment: &HotswapDiskAttachment, observed: &Observed) -> Plan<Step> {
    let waits = |reason, text: String| Plan::without_steps(Readiness::Reconciling(reason, text));
    let (vm_name, disk_name) = (&attachment.spec.vm, &attachment.spec.disk);
    let Some(vm) = &observed.vm else {
        return waits(Reason::WaitingForVM, format!("VM {vm_name} is not on this host"));
    };
    let (Some(disk), Some(volume)) = (&observed.disk, &observed.volume) else {
        let why = observed.away.as_deref().map_or_else(
            || "has no file on this host (yet)".to_owned(),
            |away| format!("is out of reach: {away}"),
        );
        return waits(Reason::WaitingForDisk, format!("Disk {disk_name} {why}"));
    };
    let vm_uid = vm.uid().unwrap_or_default();
    match observed.user() {
        Some(user) if uses(user, &attachment.name_any(), &vm_uid) => {}
        Some(user) => {
            let how =
                user.attachment.as_ref().map_or_else(String::new, |a| format!(" through attachment {a}"));
            let text = format!("Disk {disk_name} is used by VM {}{how}", user.vm);
            return Plan::without_steps(Readiness::Stalled(Reason::DiskInUse, text));
        }
        None => {
            return waits(Reason::WaitingForDisk, format!("Disk {disk_name} is being given to VM {vm_name}"));
        }
    }
    if vm.metadata.deletion_timestamp.is_some() {
        return waits(Reason::WaitingForVM, format!("VM {vm_name} is being deleted"));
    }
    // The disks of a machine that is being saved do not change.
    let is_off = observed.machine.is_none() && !observed.unreachable;
    if vm.spec.power == Power::Suspended || (vm.spec.power == Power::Stopped && is_off) {
        // Everything declared is in place: the disk is reserved for the VM, which is stopped as declared.
        let text = format!("attached when VM {vm_name} runs");
        return Plan::without_steps(Readiness::Ready(Reason::Available, text));
    }
    let instance = instance_of(vm);
    let (Some(instance), Some(machine)) = (instance, &observed.machine) else {
        return waits(Reason::WaitingForVM, format!("VM {vm_name} does not run"));
    };
    if has_ended(&machine.run_state) {
        return waits(Reason::WaitingForVM, format!("VM {vm_name} does not run"));
    }
    let is_declared = vm.spec.disks.iter().any(|declared| declared.name == *disk_name);
    if (observed.restores_first || observed.moves_first) && observed.is_reserved && !is_declared {
        // The disk would be neither restored nor moved for as long as the machine runs.
        return remove_left(
            instance,
            volume.id.clone(),
            Readiness::Reconciling(Reason::Attaching, LEFT.to_owned()),
        );
    }
    if observed.restores_first {
        let text = format!("Disk {disk_name} is being restored from a DiskSnapshot");
        return waits(Reason::WaitingForDisk, text);
    }
    if observed.moves_first {
        let text = format!("Disk {disk_name} is being moved to another pool");
        return waits(Reason::WaitingForDisk, text);
    }
    if is_unencrypted(disk, volume) {
        let text = format!("the data of Disk {disk_name} is not encrypted, and encryption is declared");
        return waits(Reason::WaitingForDisk, text);
    }
    let serial = disk.status.as_ref().and_then(|s| s.serial.clone()).unwrap_or_default();
    let plug = Step::Plug { instance: instance.to_owned(), disk: disk_spec(volume, &serial, false, None) };
    Plan::steps(vec![plug], Readiness::Reconciling(Reason::Attaching, "being plugged in".into()))
}

fn detach(attachment: &HotswapDiskAttachment, observed: &Observed) -> Plan<Step> {
    let detaching = |text: &str| Readiness::Reconciling(Reason::Detaching, text.to_owned());
    if observed.unreachable && observed.vm.is_some() {
        return Plan::without_steps(detaching("the machine does not answer")).requeue_after(ASK_AGAIN);
    }
    let instance = observed.vm.as_deref().and_then(instance_of);
    let ended = observed.machine.as_ref().is_some_and(|machine| has_ended(&machine.run_state));
    if ended {
        return Plan::without_steps(detaching("the machine is ending")).requeue_after(ASK_AGAIN);
    }
    let is_to_be_suspended = observed
        .vm
        .as_ref()
        .is_some_and(|vm| vm.spec.power == Power::Suspended && !could_not_be_suspended(vm));
    if is_to_be_suspended && observed.plugged().is_some() {
        let text = "the VM is being suspended with this disk: it is released after the VM was resumed";
        return Plan::without_steps(detaching(text)).requeue_after(ASK_AGAIN);
    }
    if let (Some(plugged), Some(instance)) = (observed.plugged(), instance) {
        if let Some(why) = why_not_unplug(attachment, observed) {
            return Plan::without_steps(why).requeue_after(ASK_AGAIN);
        }
        let unplug = Step::Unplug { instance: instance.to_owned(), volume: plugged.id.clone() };
        return Plan::steps(vec![unplug], detaching("the guest was asked to let go"))
            .requeue_after(ASK_AGAIN);
    }
    let vm_uid = observed.vm.as_ref().and_then(|vm| vm.uid()).unwrap_or_default();
    let still_user = observed.user().is_some_and(|user| uses(user, &attachment.name_any(), &vm_uid));
    let is_declared = observed
        .vm
        .as_ref()
        .is_some_and(|vm| vm.spec.disks.iter().any(|declared| declared.name == attachment.spec.disk));
    // One that could not be plugged in. If the VM declares the disk itself, it may be plugging it in now.
    if still_user
        && observed.is_reserved
        && !is_declared
        && !is_to_be_suspended
        && let (Some(volume), Some(instance)) = (observed.disk.as_deref().and_then(volume_of), instance)
    {
        return remove_left(instance, volume.to_owned(), detaching(LEFT));
    }
    if still_user {
        let is_suspended = observed.vm.as_ref().and_then(|vm| vm.status.as_ref()).and_then(|s| s.state);
        let text = match is_suspended {
            Some(VMState::Suspended) => {
                "the VM is suspended with this disk: it is released after the VM was resumed"
            }
            _ => "the Disk is being given back",
        };
        return Plan::without_steps(detaching(text)).requeue_after(ASK_AGAIN);
    }
    Plan::steps(vec![Step::Release], detaching("released"))
}

/// Returns the plan to end the reservation of a disk that could not be plugged in.
fn remove_left(instance: &str, volume: String, readiness: Readiness) -> Plan<Step> {
    let unplug = Step::Unplug { instance: instance.to_owned(), volume };
    Plan::steps(vec![unplug], readiness).requeue_after(ASK_AGAIN)
}

/// Whether the guest of a VM that is to be suspended runs on: this disk may be the cause.
fn could_not_be_suspended(vm: &VM) -> bool {
    let conditions = vm.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = condition::find(conditions, ConditionType::Ready.as_str());
    ready.is_some_and(|ready| ready.reason == Reason::SuspendFailed.as_str())
}

/// Returns why the disk must stay in the running machine: unplugging a mounted disk loses unwritten data.
fn why_not_unplug(attachment: &HotswapDiskAttachment, observed: &Observed) -> Option<Readiness> {
    if attachment.spec.force {
        return None;
    }
    let vm = observed.vm.as_deref()?;
    match observed.mounts.as_deref() {
        Some([]) => None,
        Some(mounted) => {
            let at = mounted.join(", ");
            let text = format!("the guest has it mounted at {at}: unmount it there, or set force");
            Some(Readiness::Stalled(Reason::GuestBusy, text))
        }
        None if vm.metadata.deletion_timestamp.is_some() || vm.spec.power == Power::Stopped => {
            let text = format!("released when VM {} has stopped", vm.name_any());
            Some(Readiness::Reconciling(Reason::Detaching, text))
        }
        None => {
            let text = "no guest agent says what the guest has mounted of it: run qemu-guest-agent there, stop the VM, or set \
                        force if it is unmounted"
                .to_owned();
            Some(Readiness::Stalled(Reason::MountsUnknown, text))
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
