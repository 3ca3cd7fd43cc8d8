//! Status of a VM: read back from QEMU, the guest and the journal. Pure.

mod conditions;
mod disks;
mod events;
pub(super) mod first_sign;
mod hardware;
mod interfaces;
mod operation;
mod reconfigured;

use std::collections::BTreeMap;

use berth_api::vm::{GuestEnd, GuestStatus, MigrationPhase, ProcessStatus};
use berth_api::{ConditionType, Power, Readiness, Reason, VM, VMState, VMStatus, condition};
use berth_qemu::power::RunState;
use jiff::Timestamp;

use self::conditions::{
    write_admission, write_class_synced, write_encryption_synced, write_guest_frozen, write_guest_ready,
    write_placement_synced, write_restore_synced, write_running,
};
use self::disks::{disks, disks_of_another_start, is_booted_later};
pub(super) use self::events::{frozen, restarted, transition, without_tap};
use self::hardware::{dedicated_cpus, hardware, pci_devices, usb_devices, vgpus};
use self::interfaces::{write_interfaces_synced, write_security_groups_synced};
use super::plan::{interface_changes, is_live_move_withdrawn, is_memory_changing, live_refusal, too_large};
use super::{Observed, cpu_time, guest_package, guest_users, media, process_facts, stop_snapshots};
use crate::converge::held_conditions;
use crate::disk_use;
use crate::hardware::differences;
use crate::journal::{DeparturePhase, Ended, SuspensionPhase, epoch_of};
use crate::machine::with_stored_use;
use crate::restores::VmRestore;

/// The maximum length of the cause of an end, in bytes.
const MAX_CAUSE: usize = 1024;

pub(super) fn status(vm: &VM, observed: &Observed, readiness: &Readiness, now: Timestamp) -> VMStatus {
    let mut status = vm.status.clone().unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or(0);
    status.observed_generation = generation;
    readiness.write(&mut status.conditions, generation, now);
    write_running(&mut status, observed, readiness, generation, now);
    write_guest_ready(&mut status, observed, generation, now);
    write_guest_frozen(&mut status, observed, generation, now);
    write_class_synced(&mut status, vm, observed, generation, now);
    write_interfaces_synced(&mut status, vm, observed, generation, now);
    write_placement_synced(&mut status, observed, generation, now);
    write_security_groups_synced(&mut status, observed, generation, now);
    write_restore_synced(&mut status, observed, generation, now);
    write_encryption_synced(&mut status, &observed.reported_disks, generation, now);
    guest_users::write(&mut status, observed, generation, now);
    guest_package::write(&mut status, vm, observed, generation, now);
    write_admission(&mut status, observed, readiness, generation, now);
    if observed.journal_written
        && let Some(released) = &observed.journal.released
    {
        status.released_epoch = Some(released.epoch);
    }
    write_migration(&mut status, vm, observed);
    if has_firmware(vm, observed) {
        status.former_host = None;
    }
    status.state = Some(state(vm, observed, readiness));
    status.pending_power_cycle = pending_power_cycle(vm, observed);
    status.hardware = hardware(observed).or(status.hardware.take());
    status.cpu_time = cpu_time::report(observed.cpu_time);
    status.pinned_class.clone_from(&observed.pinned_class);
    status.dedicated_cpus = dedicated_cpus(observed).map(Box::new);
    status.disks = disks(observed);
    if let Some(bytes) = observed.bytes {
        let storage = disk_use::storage(&status.disks, bytes, status.storage.as_deref());
        status.storage = Some(Box::new(storage));
    }
    status.cdroms = media::status(observed);
    status.pci_devices = pci_devices(observed);
    status.usb_devices = usb_devices(observed);
    status.vgpus = vgpus(observed);
    status.guest = guest(observed, status.guest.as_ref());
    status.process = process(observed);
    status.facts = facts(vm, observed);
    status.console.clone_from(&observed.console);
    status.host_address = observed.host_address.clone().or(status.host_address.take());
    status.restarts = observed.journal.restarts;
    status.last_end = observed.journal.last_end.as_ref().map(|ended| Box::new(last_end(ended)));
    if let Some(run) = &observed.journal.run
        && run.process.is_some()
    {
        status.restart_token.clone_from(&run.token);
    }
    if let VmRestore::Done(done) = &observed.restore {
        status.restored_from = Some(Box::new(done.clone()));
    }
    if let Some(seen) = &observed.observed_addresses {
        status.observed_addresses.clone_from(seen);
    }
    status.snapshots.clone_from(&observed.snapshots);
    status.stop_snapshot = stop_snapshots::requested(observed, status.stop_snapshot.take());
    release_interfaces(&mut status, vm, observed);
    let is_there = |name: &str| status.interfaces.iter().any(|interface| interface.name == name);
    let configs = observed.network_config.iter().filter(|config| is_there(&config.name)).cloned();
    status.network_config = configs.collect();
    write_public_addresses(&mut status, observed);
    status.operation = operation::current(vm, observed, readiness, now).map(Box::new);
    if vm.status.as_ref().is_some_and(|stored| reconfigured::is_reconfigured(stored, &status)) {
        status.last_reconfigured = Some(now.round(jiff::Unit::Second).unwrap_or(now));
    }
    status
}

/// Whether this host has the firmware state of the VM: durably, or its guest runs with it.
fn has_firmware(vm: &VM, observed: &Observed) -> bool {
    let journal = &observed.journal;
    let is_recorded = observed.journal_written && journal.firmware == Some(epoch_of(vm));
    // A process of an earlier stay has an older state than the former host.
    is_recorded || (observed.process.is_some() && journal.epoch == epoch_of(vm))
}

/// Reports, in the write of the release, that the guest runs on the other host, and before that why it does not.
fn write_migration(status: &mut VMStatus, vm: &VM, observed: &Observed) {
    let epoch = status.binding.as_ref().map(|binding| binding.epoch);
    if observed.journal_written && is_live_move_withdrawn(vm, observed) {
        status.migration = None;
    }
    let Some(migration) = status.migration.as_mut().filter(|migration| Some(migration.epoch) == epoch) else {
        return;
    };
    let departure = observed.journal.departure.as_deref();
    let is_over = departure.is_some_and(|departure| {
        departure.phase == DeparturePhase::HandedOver && Some(departure.epoch) == epoch
    });
    if is_over && observed.journal.released.is_some() {
        migration.phase = MigrationPhase::HandedOver;
    }
    let failure = observed.departure.failure.as_ref().map(|failed| failed.why.clone());
    let why = match departure {
        Some(_) => None,
        None => failure.or_else(|| live_refusal(vm, observed)),
    };
    migration.message = condition::cut(&why.unwrap_or_default(), MAX_CAUSE).to_owned();
}

fn write_public_addresses(status: &mut VMStatus, observed: &Observed) {
    for interface in &mut status.interfaces {
        let public = observed.public.iter().filter(|p| p.interface == interface.name && p.forwarded);
        let (prefixes, single): (Vec<_>, Vec<_>) =
            public.filter_map(|p| p.address).partition(|given| given.prefix.is_some());
        let (ipv6, ipv4): (Vec<_>, Vec<_>) =
            single.into_iter().map(|given| given.address).partition(std::net::IpAddr::is_ipv6);
        interface.public_address = ipv4.first().map(ToString::to_string);
        interface.public_ipv6_address = ipv6.first().map(ToString::to_string);
        interface.public_ipv6_prefix = prefixes.iter().find_map(|given| Some(given.prefix?.to_string()));
    }
    status.public_address = status.interfaces.iter().find_map(|i| i.public_address.clone());
    status.public_ipv6_address = status.interfaces.iter().find_map(|i| i.public_ipv6_address.clone());
}

/// Removes the interfaces that were unplugged from the running machine: their addresses are free.
fn release_interfaces(status: &mut VMStatus, vm: &VM, observed: &Observed) {
    let is_known = observed.journal.run.as_ref().is_some_and(|run| run.interfaces.is_some());
    if observed.machine.is_some() && is_known {
        let is_declared = |name: &str| vm.spec.network_interfaces.iter().any(|i| i.name.as_str() == name);
        status.interfaces.retain(|i| is_declared(&i.name) || observed.journal.slots.contains_key(&i.name));
    }
}

/// Returns the status with its progress as stored: on the way to a running guest nothing is read between the admission
/// (which the controllers and this host itself read back) and the guest that runs. Progress is also a guest that was seen
/// only by its lease: its agent, if it has one, usually answers within the same second.
pub(super) fn without_progress(stored: &VMStatus, status: &VMStatus) -> VMStatus {
    let conditions = held_conditions(&stored.conditions, &status.conditions);
    if conditions != stored.conditions {
        return without_lease(stored, status);
    }
    let is_plugged = |status: &VMStatus| status.disks.iter().any(|disk| disk.attached);
    let disks = if is_plugged(status) || is_plugged(stored) { &status.disks } else { &stored.disks };
    VMStatus {
        conditions,
        state: stored.state,
        disks: disks.clone(),
        cdroms: stored.cdroms.clone(),
        operation: stored.operation.clone(),
        last_reconfigured: stored.last_reconfigured,
        ..status.clone()
    }
}

/// Returns the status with the condition `GuestReady` as stored, if the guest was seen since, and not by its agent.
fn without_lease(stored: &VMStatus, status: &VMStatus) -> VMStatus {
    let guest_ready = ConditionType::GuestReady;
    let is_seen = |status: &VMStatus| condition::is_true(&status.conditions, guest_ready);
    let mut without = status.clone();
    if is_seen(status) && !is_seen(stored) && status.guest == stored.guest {
        let not_seen = condition::find(&stored.conditions, guest_ready.as_str());
        let conditions = without.conditions.iter_mut().filter(|c| c.type_ == guest_ready.as_str());
        conditions.zip(not_seen).for_each(|(seen, not_seen)| seen.clone_from(not_seen));
    }
    without
}

fn runs(observed: &Observed) -> bool {
    observed.machine.as_ref().is_some_and(|machine| machine.run_state == RunState::Running)
}

/// Returns the names of what takes effect when the VM is next started: not of what the running guest is about to get.
fn pending_power_cycle(vm: &VM, observed: &Observed) -> Vec<String> {
    let (Some(_), Some(run), Ok(size)) = (&observed.process, &observed.journal.run, &observed.size) else {
        return Vec::new();
    };
    // Once off, the VM would not start again: a power cycle brings nothing.
    if too_large(vm, size, observed).is_some() {
        return Vec::new();
    }
    let is_changing = is_memory_changing(vm, observed);
    let differing = differences(run, vm, size, &observed.profile);
    let mut pending: Vec<String> =
        differing.into_iter().filter(|name| !is_changing || *name != "memory").map(str::to_owned).collect();
    pending.extend(
        observed.disks.iter().filter(|d| is_booted_later(d, observed)).map(|d| format!("disks[{}]", d.name)),
    );
    pending.extend(disks_of_another_start(observed).map(|name| format!("disks[{name}]")));
    pending.extend(media::unsynced(run, &observed.cdroms).into_iter().map(|name| format!("cdroms[{name}]")));
    pending.extend(
        interface_changes(vm, observed)
            .power_cycle
            .into_iter()
            .map(|name| format!("networkInterfaces[{name}]")),
    );
    pending.extend(matches!(observed.restore, VmRestore::Due(_)).then(|| "restore".to_owned()));
    let moves = vm.status.as_ref().is_some_and(VMStatus::is_to_move);
    pending.extend(moves.then(|| "placement".to_owned()));
    pending
}

fn state(vm: &VM, observed: &Observed, readiness: &Readiness) -> VMState {
    if vm.metadata.deletion_timestamp.is_some() {
        return VMState::Terminating;
    }
    let phase = observed.journal.suspension.as_ref().map(|suspension| suspension.phase);
    if observed.process.is_some() {
        match phase {
            Some(SuspensionPhase::Saving | SuspensionPhase::Saved) => return VMState::Suspending,
            Some(SuspensionPhase::Resuming) => return VMState::Starting,
            None => {}
        }
        if observed.is_saving && !runs(observed) {
            return VMState::Paused;
        }
        if observed.journal.stop.as_ref().is_some_and(|stop| !stop.cancelled) {
            return VMState::Stopping;
        }
        return match observed.machine.as_ref().map(|machine| &machine.run_state) {
            Some(RunState::Running) => VMState::Running,
            Some(RunState::IoError | RunState::Paused) => VMState::Paused,
            Some(RunState::Suspended) => VMState::Suspended,
            Some(RunState::Prelaunch) if vm.spec.power == Power::Paused => VMState::Paused,
            Some(_) => VMState::Starting,
            // The monitor does not answer (yet).
            None => last_read(vm, observed).unwrap_or(VMState::Starting),
        };
    }
    if observed.journal.is_suspended() {
        let is_resumed = matches!(readiness, Readiness::Reconciling(Reason::Starting, _));
        return if is_resumed { VMState::Starting } else { VMState::Suspended };
    }
    match readiness {
        Readiness::Ready(..) => VMState::Stopped,
        Readiness::Stalled(Reason::CrashLoop, _) => VMState::CrashLoop,
        Readiness::Stalled(Reason::GuestEnded | Reason::OutOfMemory, _)
        | Readiness::Reconciling(
            Reason::HostDraining
            | Reason::HostShuttingDown
            | Reason::PowerOnHeld
            | Reason::Moving
            | Reason::WaitingForFormerHost,
            _,
        ) => VMState::Stopped,
        Readiness::Stalled(..) => VMState::Failed,
        Readiness::Reconciling(Reason::Refused, _) => VMState::Pending,
        _ if vm.spec.power == Power::Stopped => VMState::Stopping,
        Readiness::Reconciling(Reason::Starting | Reason::StartOrderHeld | Reason::WaitingForVM, _) => {
            VMState::Starting
        }
        _ => VMState::Creating,
    }
}

/// Returns the state that was last read from the monitor of the process that runs now.
fn last_read(vm: &VM, observed: &Observed) -> Option<VMState> {
    let stored = vm.status.as_ref()?;
    let is_same = stored.process.as_ref() == process(observed).as_ref();
    let is_read = |state: &VMState| matches!(state, VMState::Running | VMState::Paused | VMState::Suspended);
    stored.state.filter(|state| is_same && is_read(state))
}

pub(super) fn process(observed: &Observed) -> Option<ProcessStatus> {
    observed.process.as_ref().map(process_facts::status_of)
}

fn facts(vm: &VM, observed: &Observed) -> BTreeMap<String, String> {
    let Some(process) = &observed.process else { return BTreeMap::new() };
    let (machine, details) = (observed.machine.as_ref(), observed.details.as_ref());
    process_facts::report(vm, process, machine, details, &observed.journal)
}

fn last_end(ended: &Ended) -> GuestEnd {
    let time = ended.at.round(jiff::Unit::Second).unwrap_or(ended.at);
    GuestEnd {
        time,
        orderly: ended.orderly,
        out_of_memory: ended.out_of_memory,
        message: condition::cut(&ended.how, MAX_CAUSE).to_owned(),
    }
}

fn guest(observed: &Observed, stored: Option<&GuestStatus>) -> Option<GuestStatus> {
    if !runs(observed) {
        return None;
    }
    let facts = observed.guest.clone();
    let stored = stored.map(|stored| stored.filesystems.as_slice()).unwrap_or_default();
    Some(GuestStatus {
        agent: facts.agent,
        hostname: facts.hostname,
        os: facts.os,
        os_id: facts.os_id,
        os_version: facts.os_version,
        kernel: facts.kernel,
        addresses: facts.addresses,
        interfaces: facts.interfaces,
        filesystems: with_stored_use(&facts.filesystems, stored),
    })
}
