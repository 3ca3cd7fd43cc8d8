//! The conditions of a VM, but those of its interfaces and its users.

use std::collections::BTreeMap;

use berth_api::condition::remove;
use berth_api::vm::HostRefusal;
use berth_api::{ConditionType, ConditionUpdate, Quantity, Readiness, Reason, Size, VM, VMStatus, condition};
use berth_qemu::power::RunState;
use jiff::Timestamp;

use super::super::Observed;
use super::super::declared_disks::ReportedDisk;
use super::super::plan::{io_error, is_memory_changing, too_large};
use super::runs;
use crate::admission::Admission;
use crate::hardware::differences;
use crate::journal::Run;
use crate::restores::VmRestore;

/// The message about file systems that stay frozen.
pub(super) const FROZEN: &str = "its file systems stay frozen after a snapshot, because its guest agent does not thaw them: programs in the guest wait \
                      when they write. The host asks the agent again every 30 seconds. Thaw them in the guest (fsfreeze --unfreeze \
                      MOUNTPOINT), or restart the VM with restartMode Hard";

/// Says that the guest's file systems stay frozen, while they do.
pub(super) fn write_guest_frozen(
    status: &mut VMStatus,
    observed: &Observed,
    generation: i64,
    now: Timestamp,
) {
    let kind = ConditionType::GuestFrozen;
    if !observed.guest.frozen {
        // A guest that does not answer, or has not answered a new agent yet, says nothing about it.
        if observed.guest.agent || observed.process.is_none() {
            remove(&mut status.conditions, kind);
        }
        return;
    }
    let update = ConditionUpdate::from_bool(kind, true, Reason::GuestFrozen, FROZEN);
    condition::set(&mut status.conditions, update, generation, now);
}

/// Says why the disks do not have the data of the declared restore, while they do not, or why the guest does not have its memory.
pub(super) fn write_restore_synced(
    status: &mut VMStatus,
    observed: &Observed,
    generation: i64,
    now: Timestamp,
) {
    let kind = ConditionType::RestoreSynced;
    let (reason, text) = match &observed.restore {
        VmRestore::None => return remove(&mut status.conditions, kind),
        VmRestore::Done(_) => match &observed.booted_restored {
            Some(text) => (Reason::RestoreRefused, text.clone()),
            None => return remove(&mut status.conditions, kind),
        },
        VmRestore::Waits(text) => (Reason::WaitingForSnapshot, text.clone()),
        VmRestore::Away(text) => (Reason::PoolAway, text.clone()),
        VmRestore::Refused(text) | VmRestore::Incomplete(text) => (Reason::RestoreRefused, text.clone()),
        VmRestore::Due(_) if observed.process.is_some() || observed.journal.suspension.is_some() => {
            let text = "its disks are restored once it is off: stop it (power: Stopped), or restart it";
            (Reason::PowerCycleNeeded, text.to_owned())
        }
        VmRestore::Due(parts) => {
            let names: Vec<&str> = parts.disks.keys().map(String::as_str).collect();
            (Reason::Provisioning, format!("being restored: Disks {}", names.join(", ")))
        }
    };
    let update = ConditionUpdate::from_bool(kind, false, reason, &text);
    condition::set(&mut status.conditions, update, generation, now);
}

/// Says which key of an encrypted disk is not in sync, while one is not: as its Disk reports it.
pub(super) fn write_encryption_synced(
    status: &mut VMStatus,
    disks: &BTreeMap<String, ReportedDisk>,
    generation: i64,
    now: Timestamp,
) {
    let kind = ConditionType::EncryptionSynced;
    let mut problems: Vec<&str> = disks.values().filter_map(|disk| disk.key_problem.as_deref()).collect();
    problems.sort_unstable();
    let text = match problems.as_slice() {
        [] => return remove(&mut status.conditions, kind),
        [only] => (*only).to_owned(),
        [first, others @ ..] => format!("{first} (and {} more)", others.len()),
    };
    let update = ConditionUpdate::from_bool(kind, false, Reason::WaitingForKey, &text);
    condition::set(&mut status.conditions, update, generation, now);
}

pub(super) fn write_admission(
    status: &mut VMStatus,
    observed: &Observed,
    readiness: &Readiness,
    generation: i64,
    now: Timestamp,
) {
    let Some(binding) = status.binding.clone() else { return };
    match &observed.admission {
        Admission::Recorded | Admission::Fits(_) | Admission::Unknown => {}
        Admission::Granted => {
            status.admitted_epoch = Some(binding.epoch);
            status.refusal = None;
        }
        Admission::Refused(why) => {
            let refusal =
                HostRefusal { host: binding.host, epoch: binding.epoch, message: why.clone(), time: None };
            status.refusal = Some(Box::new(refusal));
            let (reason, text) = (Reason::Refused, readiness.message());
            let scheduled = ConditionType::Scheduled;
            condition::set(
                &mut status.conditions,
                ConditionUpdate::from_bool(scheduled, false, reason, text),
                generation,
                now,
            );
        }
    }
}

pub(super) fn write_running(
    status: &mut VMStatus,
    observed: &Observed,
    readiness: &Readiness,
    generation: i64,
    now: Timestamp,
) {
    let running = runs(observed);
    // Whatever was last tried: QEMU's own reason comes first.
    let (reason, text) = match &observed.machine {
        Some(machine) if machine.run_state == RunState::Running => (Reason::Running, String::new()),
        Some(machine) if machine.run_state == RunState::IoError => {
            (Reason::NoSpace, io_error(observed, machine))
        }
        _ => (not_running(readiness), readiness.message().to_owned()),
    };
    condition::set(
        &mut status.conditions,
        ConditionUpdate::from_bool(ConditionType::Running, running, reason, &text),
        generation,
        now,
    );
}

/// Replaces the reason `Running`, which must not be that of `Running=False`.
fn not_running(readiness: &Readiness) -> Reason {
    match readiness.reason() {
        Reason::Running => Reason::Starting,
        reason => reason,
    }
}

pub(super) fn write_guest_ready(status: &mut VMStatus, observed: &Observed, generation: i64, now: Timestamp) {
    let (seen, reason, text) = match (runs(observed), observed.guest.agent, observed.lease_taken) {
        (true, true, _) => (true, Reason::GuestSeen, "the guest agent answers"),
        (true, false, true) => (true, Reason::GuestSeen, "the guest took its address by DHCP"),
        (true, false, false) => {
            (false, Reason::GuestNotSeen, "no guest agent answers and no address was taken yet")
        }
        (false, _, _) => (false, Reason::GuestNotSeen, "the VM does not run"),
    };
    condition::set(
        &mut status.conditions,
        ConditionUpdate::from_bool(ConditionType::GuestReady, seen, reason, text),
        generation,
        now,
    );
}

/// Whether nothing but memory differs, and the guest has not plugged in or out what was requested of it.
fn is_left_by_the_guest(run: &Run, size: &Size, names: &[&str], observed: &Observed) -> bool {
    let has = observed.machine.as_ref().and_then(|machine| machine.growth);
    let requested = run.growth.zip(has).map(|(growth, has)| growth.base.saturating_add(has.requested));
    requested == Some(size.memory) && names == ["memory"]
}

pub(super) fn write_class_synced(
    status: &mut VMStatus,
    vm: &VM,
    observed: &Observed,
    generation: i64,
    now: Timestamp,
) {
    let conditions = &mut status.conditions;
    let (Some(_), Some(run), Ok(size)) = (&observed.process, &observed.journal.run, &observed.size) else {
        // A VM that does not run takes its size when it starts.
        remove(conditions, ConditionType::ClassSynced);
        return;
    };
    let names = differences(run, vm, size, &observed.profile);
    let synced = names.is_empty();
    let (reason, text) =
        if synced { (Reason::Synced, String::new()) } else { not_synced(vm, run, size, &names, observed) };
    condition::set(
        conditions,
        ConditionUpdate::from_bool(ConditionType::ClassSynced, synced, reason, &text),
        generation,
        now,
    );
}

/// Returns why a VM runs with something else than is declared.
fn not_synced(vm: &VM, run: &Run, size: &Size, names: &[&str], observed: &Observed) -> (Reason, String) {
    let (memory, wanted) = (Quantity::from_bytes(run.memory_bytes), Quantity::from_bytes(size.memory));
    let class = if run.class.is_empty() { String::new() } else { format!("class {}, ", run.class) };
    let has = format!("the VM runs with {class}{} CPUs and {memory}", run.cpus);
    if let Some(why) = too_large(vm, size, observed) {
        return (Reason::NoHostLargeEnough, format!("{has}; once stopped it cannot start here: {why}"));
    }
    let is_changing = is_memory_changing(vm, observed);
    let waiting: Vec<&str> = names.iter().copied().filter(|name| !is_changing || *name != "memory").collect();
    if waiting.is_empty() {
        return (Reason::Attaching, format!("{has} and is to have {wanted}, which it gets while it runs"));
    }
    let text = if is_left_by_the_guest(run, size, &waiting, observed) {
        format!(
            "{has} and is to have {wanted}: its guest plugs no more memory in or out, for which it needs a driver for virtio-mem; stop and \
             start the VM for the change to take effect"
        )
    } else {
        format!("{has}: stop and start it for the change of {} to take effect", waiting.join(", "))
    };
    (Reason::PowerCycleNeeded, text)
}

pub(super) fn write_placement_synced(
    status: &mut VMStatus,
    observed: &Observed,
    generation: i64,
    now: Timestamp,
) {
    let kind = ConditionType::PlacementSynced;
    match &observed.misplaced {
        None => remove(&mut status.conditions, kind),
        Some(why) => {
            let reason = Reason::PlacedElsewhere;
            condition::set(
                &mut status.conditions,
                ConditionUpdate::from_bool(kind, false, reason, why),
                generation,
                now,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_says_which_key_of_its_disks_is_not_in_sync_only_while_one_is_not() {
        let disk = |problem: Option<&str>| ReportedDisk {
            key_problem: problem.map(str::to_owned),
            ..ReportedDisk::default()
        };
        let mut status = VMStatus::default();
        let mut report = |problems: &[Option<&str>]| {
            let disks = problems.iter().enumerate();
            let disks = disks.map(|(n, problem)| (format!("v-{n}"), disk(*problem))).collect();
            write_encryption_synced(&mut status, &disks, 1, Timestamp::UNIX_EPOCH);
            let found = condition::find(&status.conditions, ConditionType::EncryptionSynced.as_str())?;
            Some((found.status.clone(), found.reason.clone(), found.message.clone()))
        };
        assert_eq!(report(&[None, None]), None);
        let (held, reason, message) = report(&[Some("Disk data: WrongKey: no"), None]).expect("reported");
        assert_eq!((held.as_str(), reason.as_str()), ("False", "WaitingForKey"));
        assert_eq!(message, "Disk data: WrongKey: no");
        let several = report(&[Some("Disk root: WaitingForSecret: no"), Some("Disk data: WrongKey: no")]);
        assert_eq!(several.expect("reported").2, "Disk data: WrongKey: no (and 1 more)");
        assert_eq!(report(&[None]), None, "the key is back");
    }
}
