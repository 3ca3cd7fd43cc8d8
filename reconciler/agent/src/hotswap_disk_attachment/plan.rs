//! What to do about an attachment. Pure.

use std::time::Duration;

use berth_api::{HotswapDiskAttachment, Power, Readiness, Reason};
use kube::ResourceExt;

use super::{Observed, Step, disk_spec, uses};
use crate::converge::Plan;
use crate::index::instance_of;
use crate::machine::has_ended;

/// How often a guest that does not let go is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(2);

pub(super) fn plan(attachment: &HotswapDiskAttachment, observed: &Observed) -> Plan<Step> {
    if attachment.metadata.deletion_timestamp.is_some() {
        return detach(attachment, observed);
    }
    if observed.plugged().is_some() {
        return Plan::stands(Readiness::Ready(Reason::Attached, String::new()));
    }
    attach(attachment, observed)
}

fn attach(attachment: &HotswapDiskAttachment, observed: &Observed) -> Plan<Step> {
    let waits = |reason, text: String| Plan::stands(Readiness::Reconciling(reason, text));
    let (vm_name, disk_name) = (&attachment.spec.vm, &attachment.spec.disk);
    let Some(vm) = &observed.vm else {
        return waits(Reason::WaitingForVM, format!("VM {vm_name} is not on this host"));
    };
    let (Some(disk), Some(volume)) = (&observed.disk, &observed.volume) else {
        return waits(Reason::WaitingForDisk, format!("Disk {disk_name} has no file on this host (yet)"));
    };
    let vm_uid = vm.uid().unwrap_or_default();
    match observed.user() {
        Some(user) if uses(user, &attachment.name_any(), &vm_uid) => {}
        Some(user) => {
            let how =
                user.attachment.as_ref().map_or_else(String::new, |a| format!(" through attachment {a}"));
            let text = format!("Disk {disk_name} is used by VM {}{how}", user.vm);
            return Plan::stands(Readiness::Stalled(Reason::DiskInUse, text));
        }
        None => {
            return waits(Reason::WaitingForDisk, format!("Disk {disk_name} is being given to VM {vm_name}"));
        }
    }
    if vm.metadata.deletion_timestamp.is_some() {
        return waits(Reason::WaitingForVM, format!("VM {vm_name} is being deleted"));
    }
    if vm.spec.power == Power::Stopped && observed.look.is_none() && !observed.unreachable {
        // All that is declared is real: the disk is kept for the VM, which is off as declared.
        let text = format!("attached when VM {vm_name} runs");
        return Plan::stands(Readiness::Ready(Reason::Available, text));
    }
    let instance = instance_of(vm);
    let (Some(instance), Some(look)) = (instance, &observed.look) else {
        return waits(Reason::WaitingForVM, format!("VM {vm_name} does not run"));
    };
    if has_ended(&look.state) {
        return waits(Reason::WaitingForVM, format!("VM {vm_name} does not run"));
    }
    let serial = disk.status.as_ref().and_then(|s| s.serial.clone()).unwrap_or_default();
    let plug = Step::Plug {
        instance: instance.to_owned(),
        pool: volume.pool.clone(),
        disk: disk_spec(volume, &serial, false, None),
    };
    Plan::steps(vec![plug], Readiness::Reconciling(Reason::Attaching, "being plugged in".into()))
}

fn detach(attachment: &HotswapDiskAttachment, observed: &Observed) -> Plan<Step> {
    let detaching = |text: &str| Readiness::Reconciling(Reason::Detaching, text.to_owned());
    if observed.unreachable && observed.vm.is_some() {
        return Plan::stands(detaching("the machine does not answer")).look_again(ASK_AGAIN);
    }
    let instance = observed.vm.as_deref().and_then(instance_of);
    let ended = observed.look.as_ref().is_some_and(|look| has_ended(&look.state));
    if ended {
        return Plan::stands(detaching("the machine is ending")).look_again(ASK_AGAIN);
    }
    if let (Some(plugged), Some(instance)) = (observed.plugged(), instance) {
        let mounted = observed.mounts.as_deref().unwrap_or_default();
        if !mounted.is_empty() && !attachment.spec.force {
            let at = mounted.join(", ");
            let text = format!("the guest has it mounted at {at}: unmount it there, or set force");
            return Plan::stands(Readiness::Stalled(Reason::GuestBusy, text)).look_again(ASK_AGAIN);
        }
        let unplug = Step::Unplug { instance: instance.to_owned(), volume: plugged.id.clone() };
        return Plan::steps(vec![unplug], detaching("the guest was asked to let go")).look_again(ASK_AGAIN);
    }
    let vm_uid = observed.vm.as_ref().and_then(|vm| vm.uid()).unwrap_or_default();
    let still_user = observed.user().is_some_and(|user| uses(user, &attachment.name_any(), &vm_uid));
    if still_user {
        return Plan::stands(detaching("the Disk is being given back")).look_again(ASK_AGAIN);
    }
    Plan::steps(vec![Step::Release], detaching("released"))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
