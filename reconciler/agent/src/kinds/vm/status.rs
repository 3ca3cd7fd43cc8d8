//! Status of a VM: read back from QEMU, the guest and the journal. Pure.

mod interfaces;
mod operation;
mod reconfigured;

use std::collections::BTreeMap;

use berth_api::condition::{self, remove};
use berth_api::passthrough::{PciDeviceStatus, UsbDeviceStatus};
use berth_api::vgpus::{MAX_TYPE, VgpuStatus};
use berth_api::vm::{
    Acceleration, DedicatedCpus, DiskAttachmentStatus, DiskPlace, GuestEnd, GuestNumaNode, GuestStatus,
    Hardware, HostRefusal, InterfacePlace, ProcessStatus,
};
use berth_api::{
    ConditionType, ConditionUpdate, GuestOS, HugePages, Power, Quantity, Readiness, Reason, Size, VM,
    VMState, VMStatus,
};
use berth_qemu::machine::{Bus, PciDeviceSpec, VgpuSpec};
use berth_qemu::power::RunState;
use jiff::Timestamp;

use self::interfaces::{write_interfaces_synced, write_security_groups_synced};
use super::declared_disks::DeclaredDisk;
use super::media;
use super::plan::{IO_ERROR, interface_changes, too_large};
use super::{Observed, cpu_time, guest_users, process_facts, stop_snapshots};
use crate::admission::Admission;
use crate::converge::held_conditions;
use crate::disk_places;
use crate::disk_use;
use crate::hardware::{declared_bus, differences, memory_reservation, numa_nodes, topology};
use crate::journal::{Ended, Held, Journal, Run, SuspensionPhase};
use crate::machine::with_stored_use;
use crate::plugging::device;
use crate::restores::VmRestore;

/// The message about file systems that stay frozen.
const FROZEN: &str = "its file systems stay frozen after a snapshot, because its guest agent does not thaw them: programs in the guest wait \
                      when they write. The host asks the agent again every 30 seconds. Thaw them in the guest (fsfreeze --unfreeze \
                      MOUNTPOINT), or restart the VM with restartMode Hard";
/// The maximum length of the cause of an end, in bytes.
const MAX_CAUSE: usize = 1024;
/// The places that are listed, which are those of all devices that a VM can declare, and some that have just been taken off.
const MOST_DISK_PLACES: usize = 32;
const MOST_INTERFACE_PLACES: usize = 16;

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
    guest_users::write(&mut status, observed, generation, now);
    write_admission(&mut status, observed, readiness, generation, now);
    if observed.journal_written
        && let Some(released) = &observed.journal.released
    {
        status.released_epoch = Some(released.epoch);
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

fn write_public_addresses(status: &mut VMStatus, observed: &Observed) {
    for interface in &mut status.interfaces {
        let public = observed.public.iter().filter(|p| p.interface == interface.name && p.forwarded);
        let (ipv6, ipv4): (Vec<_>, Vec<_>) =
            public.filter_map(|p| p.address).partition(std::net::IpAddr::is_ipv6);
        interface.public_address = ipv4.first().map(ToString::to_string);
        interface.public_ipv6_address = ipv6.first().map(ToString::to_string);
    }
    status.public_address = status.interfaces.iter().find_map(|i| i.public_address.clone());
    status.public_ipv6_address = status.interfaces.iter().find_map(|i| i.public_ipv6_address.clone());
}

/// Says that the guest's file systems stay frozen, while they do.
fn write_guest_frozen(status: &mut VMStatus, observed: &Observed, generation: i64, now: Timestamp) {
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

/// Returns the event of file systems that stay frozen.
pub(super) fn frozen(stored: &VMStatus, status: &VMStatus) -> Option<(Reason, String)> {
    let kind = ConditionType::GuestFrozen;
    let is_new =
        condition::is_true(&status.conditions, kind) && !condition::is_true(&stored.conditions, kind);
    is_new.then(|| (Reason::GuestFrozen, FROZEN.to_owned()))
}

/// Says why the disks do not have the data of the declared restore, while they do not, or why the guest does not have its memory.
fn write_restore_synced(status: &mut VMStatus, observed: &Observed, generation: i64, now: Timestamp) {
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

/// The PCI devices of a VM that has a machine.
fn pci_devices(observed: &Observed) -> Vec<PciDeviceStatus> {
    let held = observed.journal.pci_devices.iter().filter(|_| observed.process.is_some());
    let device = |held: &Held<PciDeviceSpec>| PciDeviceStatus {
        name: held.name.clone(),
        address: held.device.functions.first().cloned().unwrap_or_default(),
    };
    held.map(device).collect()
}

/// The USB devices of a VM that has a machine.
fn usb_devices(observed: &Observed) -> Vec<UsbDeviceStatus> {
    let held = observed.journal.usb_devices.iter().filter(|_| observed.process.is_some());
    held.map(|held| UsbDeviceStatus { name: held.name.clone(), port: held.device.port.clone() }).collect()
}

/// The vGPUs of a VM that has a machine.
fn vgpus(observed: &Observed) -> Vec<VgpuStatus> {
    let held = observed.journal.vgpus.iter().filter(|_| observed.process.is_some());
    let vgpu = |held: &Held<VgpuSpec>| VgpuStatus {
        name: held.name.clone(),
        address: held.device.parent.clone(),
        mdev_type: condition::cut(&held.device.mdev_type, MAX_TYPE).to_owned(),
        uuid: held.device.uuid.clone(),
    };
    held.map(vgpu).collect()
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

fn write_admission(
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

fn runs(observed: &Observed) -> bool {
    observed.machine.as_ref().is_some_and(|machine| machine.run_state == RunState::Running)
}

fn write_running(
    status: &mut VMStatus,
    observed: &Observed,
    readiness: &Readiness,
    generation: i64,
    now: Timestamp,
) {
    let running = runs(observed);
    // Whatever was last tried: QEMU's own reason comes first.
    let (reason, text) = match observed.machine.as_ref().map(|machine| &machine.run_state) {
        Some(RunState::Running) => (Reason::Running, ""),
        Some(RunState::IoError) => (Reason::NoSpace, IO_ERROR),
        _ => (not_running(readiness), readiness.message()),
    };
    condition::set(
        &mut status.conditions,
        ConditionUpdate::from_bool(ConditionType::Running, running, reason, text),
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

fn write_guest_ready(status: &mut VMStatus, observed: &Observed, generation: i64, now: Timestamp) {
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

/// Whether nothing but memory differs, and the guest is requested to take it or to give it back.
fn is_left_to_the_guest(run: &Run, vm: &VM, size: &Size, observed: &Observed) -> bool {
    let has = observed.machine.as_ref().and_then(|machine| machine.growth);
    let requested = run.growth.zip(has).map(|(growth, has)| growth.base + has.requested);
    requested == Some(size.memory) && differences(run, vm, size, &observed.profile) == ["memory"]
}

fn write_class_synced(status: &mut VMStatus, vm: &VM, observed: &Observed, generation: i64, now: Timestamp) {
    let conditions = &mut status.conditions;
    let (Some(_), Some(run), Ok(size)) = (&observed.process, &observed.journal.run, &observed.size) else {
        // A VM that does not run takes its size when it starts.
        remove(conditions, ConditionType::ClassSynced);
        return;
    };
    let synced = differences(run, vm, size, &observed.profile).is_empty();
    let (reason, text) = if synced {
        (Reason::Synced, String::new())
    } else {
        let memory = Quantity::from_bytes(run.memory_bytes);
        let class = if run.class.is_empty() { String::new() } else { format!("class {}, ", run.class) };
        let has = format!("the VM runs with {class}{} CPUs and {memory}", run.cpus);
        match too_large(vm, size, observed) {
            None if is_left_to_the_guest(run, vm, size, observed) => {
                let wanted = Quantity::from_bytes(size.memory);
                let text = format!(
                    "{has} and is to have {wanted}: its guest plugs memory in and out, as far as it has a driver for virtio-mem"
                );
                (Reason::PowerCycleNeeded, text)
            }
            None => {
                let names = differences(run, vm, size, &observed.profile).join(", ");
                let text = format!("{has}: stop and start it for the change of {names} to take effect");
                (Reason::PowerCycleNeeded, text)
            }
            Some(why) => {
                (Reason::NoHostLargeEnough, format!("{has}; once stopped it cannot start here: {why}"))
            }
        }
    };
    condition::set(
        conditions,
        ConditionUpdate::from_bool(ConditionType::ClassSynced, synced, reason, &text),
        generation,
        now,
    );
}

/// Returns the names of what takes effect when the VM is next started.
fn pending_power_cycle(vm: &VM, observed: &Observed) -> Vec<String> {
    let (Some(_), Some(run), Ok(size)) = (&observed.process, &observed.journal.run, &observed.size) else {
        return Vec::new();
    };
    // Once off, the VM would not start again: a power cycle brings nothing.
    if too_large(vm, size, observed).is_some() {
        return Vec::new();
    }
    let mut pending: Vec<String> =
        differences(run, vm, size, &observed.profile).into_iter().map(str::to_owned).collect();
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

/// Returns the names of disks that the machine has otherwise than declared, and the serial numbers of those that are not declared
/// any more and stay until it is off.
fn disks_of_another_start(observed: &Observed) -> impl Iterator<Item = String> {
    let machine = observed.machine.as_ref();
    let disks = machine.map(|machine| machine.disks.as_slice()).unwrap_or_default();
    let differs = move |disk: &&DeclaredDisk| {
        machine.is_some()
            && match disks.iter().find(|d| Some(&d.id) == disk.volume_id.as_ref()) {
                Some(has) => has.bus != disk.bus || has.read_only != disk.read_only,
                None => disk.bus != Bus::VirtioScsi && !is_booted_later(disk, observed),
            }
    };
    let is_declared = |id: &str| observed.disks.iter().any(|d| d.volume_id.as_deref() == Some(id));
    let boot = observed.journal.run.as_ref().map(|run| run.boot_volume.as_str());
    let former = disks
        .iter()
        .filter(move |d| d.bus != Bus::VirtioScsi && !is_declared(&d.id) && Some(d.id.as_str()) != boot);
    let declared = observed.disks.iter().filter(differs).map(|disk| disk.name.clone());
    declared.chain(former.map(|disk| disk.serial.clone()))
}

/// Whether the machine runs and has booted from another disk than this boot disk.
fn is_booted_later(disk: &DeclaredDisk, observed: &Observed) -> bool {
    let booted = observed.journal.run.as_ref().filter(|run| run.process.is_some());
    disk.boot && booted.is_some_and(|run| Some(&run.boot_volume) != disk.volume_id.as_ref())
}

fn write_placement_synced(status: &mut VMStatus, observed: &Observed, generation: i64, now: Timestamp) {
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
            Reason::HostDraining | Reason::HostShuttingDown | Reason::PowerOnHeld | Reason::Moving,
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
    stored.state.filter(|state| is_same && matches!(state, VMState::Running | VMState::Paused))
}

pub(super) fn process(observed: &Observed) -> Option<ProcessStatus> {
    observed.process.as_ref().map(process_facts::status_of)
}

fn facts(vm: &VM, observed: &Observed) -> BTreeMap<String, String> {
    let Some(process) = &observed.process else { return BTreeMap::new() };
    let (machine, details) = (observed.machine.as_ref(), observed.details.as_ref());
    process_facts::report(vm, process, machine, details, &observed.journal)
}

/// Returns the CPUs of this host that the running machine has for itself.
fn dedicated_cpus(observed: &Observed) -> Option<DedicatedCpus> {
    let cpus = observed.process.as_ref()?.dedicated.as_ref()?;
    Some(DedicatedCpus {
        cpus: cpus.vcpus.iter().copied().map(i64::from).collect(),
        emulator_thread: cpus.emulator.map(i64::from),
        numa_node: cpus.numa_node.map(i64::from),
        guest_nodes: guest_nodes(cpus),
    })
}

/// Returns the NUMA nodes of a guest with several: each has the same number of CPUs.
fn guest_nodes(cpus: &berth_host::DedicatedCpus) -> Vec<GuestNumaNode> {
    let of_each = cpus.vcpus.len() / cpus.guest_nodes.len().max(1);
    let nodes = cpus.vcpus.chunks(of_each.max(1)).zip(&cpus.guest_nodes);
    let node = |(vcpus, node): (&[u32], &Option<u32>)| GuestNumaNode {
        cpus: vcpus.iter().copied().map(i64::from).collect(),
        numa_node: node.map(i64::from),
    };
    nodes.map(node).collect()
}

fn hardware(observed: &Observed) -> Option<Hardware> {
    let (run, pins) = (observed.journal.run.as_ref()?, observed.journal.pins.as_ref()?);
    let Run { class, cpus, memory_bytes, firmware, .. } = run;
    let reserved = observed.size.as_ref().ok().and_then(|size| memory_reservation(&observed.journal, size));
    Some(Hardware {
        class: Some(class.clone()).filter(|class| !class.is_empty()),
        cpus: *cpus,
        max_cpus: run.max_cpus,
        max_memory: run.growth.map(|growth| Quantity::from_bytes(growth.most).0),
        memory: Quantity::from_bytes(*memory_bytes).0,
        memory_reservation: reserved.map(|bytes| Quantity::from_bytes(bytes).0),
        dedicated_cpu_placement: run.dedicated_cpus.then_some(true),
        isolate_emulator_thread: run.isolate_emulator_thread.then_some(true),
        huge_pages: Some(run.huge_pages).filter(|pages| *pages != HugePages::None),
        firmware: firmware.clone(),
        tpm: Some(run.tpm),
        cpu_topology: Some(topology(run)),
        numa_nodes: Some(numa_nodes(run)).filter(|nodes| *nodes > 1),
        graphics: Some(run.graphics),
        // A guest that goes on with the memory of a snapshot has that of then.
        machine_type: run
            .machine
            .as_ref()
            .map_or(&pins.machine_type, |machine| &machine.machine_type)
            .clone(),
        cpu_model: run
            .profile
            .cpu_model
            .as_ref()
            .or(pins.cpu_level.as_ref())
            .unwrap_or(&pins.cpu_model)
            .clone(),
        accelerator: pins.accelerator.clone(),
        uuid: pins.uuid.clone(),
        guest_os: Some(run.profile.guest_os).filter(|os| *os != GuestOS::Linux),
        watchdog: run.profile.watchdog,
        serial_number: run.profile.serial_number.clone(),
        serial_ports: Some(1 + i64::from(run.profile.further_serial_ports)).filter(|ports| *ports > 1),
        vsock_cid: run.machine.as_ref().and_then(|machine| machine.extras.vsock_cid).map(i64::from),
        disk_places: disk_places(&observed.journal),
        interface_places: interface_places(&observed.journal),
    })
}

fn disk_places(journal: &Journal) -> Vec<DiskPlace> {
    let places = journal.disk_places.iter().take(MOST_DISK_PLACES);
    let place = |(name, place): (&str, disk_places::DiskPlace)| DiskPlace {
        name: name.to_owned(),
        bus: declared_bus(place.bus),
        number: i64::from(place.number),
    };
    places.map(place).collect()
}

fn interface_places(journal: &Journal) -> Vec<InterfacePlace> {
    let places = journal.slots.iter().take(MOST_INTERFACE_PLACES);
    let machine = journal.run.as_ref().and_then(|run| run.machine.as_ref());
    let cards = || machine.into_iter().flat_map(|machine| &machine.nics);
    let place = |(name, slot): (&String, &u8)| InterfacePlace {
        name: name.clone(),
        slot: i64::from(*slot),
        in_port: journal.port_of(name).is_some(),
        acceleration: cards().any(|nic| nic.slot == *slot && nic.no_vhost).then_some(Acceleration::Off),
    };
    places.map(place).collect()
}

/// Returns the disks of the spec, then those plugged by attachments.
fn disks(observed: &Observed) -> Vec<DiskAttachmentStatus> {
    let plugged = |volume: Option<&str>| {
        let machine = observed.machine.as_ref()?;
        machine.disks.iter().find(|d| Some(d.id.as_str()) == volume)
    };
    let is_encrypted = |volume: Option<&str>| {
        let disk = observed.disks.iter().find(|disk| disk.volume_id.as_deref() == volume);
        disk.and_then(|disk| disk.volume.as_ref()).is_some_and(|facts| facts.encryption.is_some())
    };
    let entry = |name: &str, attachment: Option<&str>, volume: Option<&str>, message: Option<String>| {
        let encrypted = is_encrypted(volume);
        let plugged = plugged(volume);
        let report =
            volume.and_then(|volume| observed.reported_disks.get(volume)).cloned().unwrap_or_default();
        DiskAttachmentStatus {
            name: name.to_owned(),
            attachment: attachment.map(str::to_owned),
            attached: plugged.is_some(),
            serial: plugged.map(|d| d.serial.clone()),
            origin: report.origin,
            size: report.size,
            used: report.used,
            device: plugged.map(|d| device(d, &observed.guest)),
            cache: plugged.map(|d| if d.is_direct { "none" } else { "writeback" }.to_owned()),
            encrypted: plugged.map_or(encrypted, |d| d.is_encrypted),
            message: message.filter(|_| plugged.is_none()),
        }
    };
    let mut all: Vec<DiskAttachmentStatus> = Vec::new();
    for disk in &observed.disks {
        let message = if is_booted_later(disk, observed) {
            Some("becomes the boot disk at the next power cycle".to_owned())
        } else {
            disk.problem.clone()
        };
        all.push(entry(&disk.name, None, disk.volume_id.as_deref(), message));
    }
    for (volume, (disk, attachment)) in &observed.attachments {
        let listed = all.iter().any(|entry| entry.name == *disk);
        if !listed && plugged(Some(volume)).is_some() {
            all.push(entry(disk, Some(attachment), Some(volume), None));
        }
    }
    all
}

/// Returns the event of a guest that was started again after it ended by itself.
pub(super) fn restarted(stored: &VMStatus, status: &VMStatus) -> Option<(Reason, String)> {
    let cause = status.last_end.as_ref().map_or("the guest ended", |end| end.message.as_str());
    let out_of_memory = status.last_end.as_ref().is_some_and(|end| end.out_of_memory);
    let reason = if out_of_memory { Reason::OutOfMemory } else { Reason::Restarted };
    let note = || format!("{cause}: started again (restart {})", status.restarts);
    (status.restarts > stored.restarts).then(|| (reason, note()))
}

/// Returns the event of a guest that was stopped, paused or suspended, or was started again. The first start has none, as each new VM
/// would take one more write; `status.process` has its time.
pub(super) fn transition(stored: &VMStatus, status: &VMStatus) -> Option<(Reason, String)> {
    let (before, now) = (stored.state?, status.state?);
    if before == now {
        return None;
    }
    // A guest that is paused otherwise, for a snapshot or by a full disk of its host, may come and go often.
    let is_ready = |status: &VMStatus| condition::is_true(&status.conditions, ConditionType::Ready);
    let did_run =
        matches!(before, VMState::Running | VMState::Paused | VMState::Stopping | VMState::Suspending);
    let runs_again = match before {
        VMState::Stopped | VMState::Suspended | VMState::CrashLoop => true,
        VMState::Paused => is_ready(stored),
        // A state on the way, which is not always written. The first start is that of the first generation.
        VMState::Starting | VMState::Stopping => status.observed_generation > 1,
        _ => false,
    };
    let ready = condition::find(&status.conditions, ConditionType::Ready.as_str());
    let note = |otherwise: &str| {
        let message = ready.map(|ready| ready.message.as_str()).filter(|message| !message.is_empty());
        message.unwrap_or(otherwise).to_owned()
    };
    match now {
        VMState::Running if runs_again => Some((Reason::Running, "the guest runs".to_owned())),
        VMState::Stopped if did_run => Some((Reason::Stopped, note("the guest is off"))),
        VMState::Paused if did_run && is_ready(status) => {
            Some((Reason::Paused, note("the guest's CPUs are stopped")))
        }
        VMState::Suspended if did_run => {
            Some((Reason::Suspended, note("the guest's memory is in a file of its host")))
        }
        _ => None,
    }
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
