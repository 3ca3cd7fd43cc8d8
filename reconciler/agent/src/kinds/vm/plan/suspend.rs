//! Plan for a VM that is suspended or resumed: its state in a file, and no QEMU.
//!
//! The order of the steps is what makes a state be used at most once, at every crash: a state counts only once it is durable and
//! recorded ([`SuspensionPhase::Saved`]), and a guest runs on from it only once its file is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::SizeTaken;
use berth_api::gates::power_on_gate;
use berth_api::{HugePages, Power, Quantity, Readiness, Reason, SuspendMode, VM};
use berth_host::{LaunchRequest, TapConfig, VolumeFacts};
use berth_qemu::machine::{MachineSpec, Tap};
use berth_qemu::power::RunState;
use berth_qemu::saved_state::Transfer;

use super::super::media;
use super::super::vsock;
use super::due::deferred;
use super::interfaces::are_recorded;
use super::running;
use super::sleep;
use super::start::{disks_ready, enough_of_its_own, left_of, limits};
use super::stop::held_by_host;
use super::{Observed, Step, asks_for_restart, deleting, devices, vanished, write_journal};
use crate::converge::Plan;
use crate::disk_places::{DiskPlace, DiskPlaces};
use crate::group_turn::GroupTurn;
use crate::hardware::memory_reservation;
use crate::journal::{Journal, Run, Suspension, SuspensionPhase, epoch_of};
use crate::machine::MachineState;
use crate::networking::tap_of;
use crate::restores::{DueParts, VmRestore};
use crate::saved_machine::{as_it_is, on_present_files, size_at_most};

/// How often the progress of a save or a load is read if QEMU reports nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long after a save that failed the next one is tried. The guest runs meanwhile.
const SAVE_AGAIN: Duration = Duration::from_secs(60);
/// How often a missing dependency of a resume is looked for.
const ASK_HOST: Duration = Duration::from_secs(10);
/// How often QEMU may fail to load the state.
const ATTEMPTS: u32 = 3;

/// Whether the VM is to be suspended now. It does not hold back the administrator of a host without room for its memory: it is shut down.
fn is_wanted(vm: &VM, observed: &Observed) -> bool {
    vm.spec.power == Power::Suspended && !deleting(vm) && !observed.no_room
}

fn suspending() -> Readiness {
    Readiness::Reconciling(Reason::Suspending, "the guest's memory is being saved".to_owned())
}

fn resuming() -> Readiness {
    Readiness::Reconciling(Reason::Starting, "the guest's saved memory is being loaded".to_owned())
}

/// Plans for a machine that is being suspended or resumed, or is to be; None: neither.
pub(super) fn present(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    let suspension = observed.journal.suspension.as_ref();
    match suspension.map(|suspension| suspension.phase) {
        None if !is_wanted(vm, observed) || observed.journal.stop.is_some() => None,
        None if vm.spec.suspend_mode == SuspendMode::Memory => sleep::plan(vm, observed),
        None => begin(vm, observed),
        Some(SuspensionPhase::Saving) if is_wanted(vm, observed) => save(observed, suspension?),
        Some(SuspensionPhase::Saving) => Some(cancel(observed)),
        // It was let go on at QEMU's monitor: the file is outdated.
        Some(SuspensionPhase::Saved) if runs(observed) => Some(cancel(observed)),
        Some(SuspensionPhase::Saved) => Some(Plan::steps(vec![Step::EndProcess], suspending())),
        Some(SuspensionPhase::Resuming) => resume(vm, observed, suspension?),
    }
}

fn runs(observed: &Observed) -> bool {
    observed.machine.as_ref().is_some_and(|machine| machine.run_state == RunState::Running)
}

/// Records what is to be saved, of a guest that runs or is paused.
fn begin(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    let machine = observed.machine.as_ref()?;
    if machine.run_state == RunState::Suspended {
        // Its memory is saved once it is awake, also before its host is shut down: a stop would lose it.
        return Some(running::wake(observed, machine));
    }
    if !matches!(machine.run_state, RunState::Running | RunState::Paused) || !are_recorded(observed) {
        return None;
    }
    if let Some(bus) = observed.journal.device_bus() {
        if observed.draining {
            return None;
        }
        let text = format!(
            "the guest runs on: it has {} of its host until the next power cycle, and their state cannot be saved. Set power to Stopped",
            bus.noun(0)
        );
        return Some(Plan::without_steps(Readiness::Stalled(Reason::SuspendFailed, text)));
    }
    if let Some((began, why)) = &machine.save_failure {
        // It does not hold back the administrator of its host: it is shut down.
        if observed.draining {
            return None;
        }
        let left = left_of(SAVE_AGAIN, *began, observed.now);
        if !left.is_zero() {
            let text = format!("the guest runs on: QEMU could not save its memory: {why}");
            let readiness = Readiness::Stalled(Reason::SuspendFailed, text);
            let steps = if runs(observed) { Vec::new() } else { vec![Step::Start] };
            return Some(Plan::steps(steps, readiness).requeue_after(left));
        }
    }
    match as_it_is(&observed.journal, machine, &volumes(observed)) {
        Ok(saved) => {
            let suspension = Suspension {
                phase: SuspensionPhase::Saving,
                since: observed.now,
                machine: saved,
                cpus: machine.cpus.unwrap_or_else(|| observed.journal.run.as_ref().map_or(1, |run| run.cpus)),
                attempts: 0,
            };
            let updated = observed.journal.clone().with_suspension(Some(suspension));
            Some(Plan::steps(vec![write_journal(updated)], suspending()))
        }
        Err(_) if observed.draining => None,
        Err(why) => {
            let text = format!("VM {} cannot be suspended: {why}", kube::ResourceExt::name_any(vm));
            // A medium that is no longer declared is taken out of the guest that runs on.
            let (steps, _) = media::changes(observed, machine);
            Some(Plan::steps(steps, Readiness::Stalled(Reason::SuspendFailed, text)).requeue_after(ASK_HOST))
        }
    }
}

fn save(observed: &Observed, suspension: &Suspension) -> Option<Plan<Step>> {
    let machine = observed.machine.as_ref()?;
    let waits = || Plan::without_steps(suspending()).requeue_after(LOOK_AGAIN);
    Some(match (&machine.run_state, &machine.transfer) {
        // A disk was plugged in or out since the record, with which the state could not be loaded: it is saved once more.
        (RunState::PostMigrate, Transfer::Completed) if !has_recorded_disks(machine, suspension) => {
            cancel(observed)
        }
        (RunState::PostMigrate, Transfer::Completed) => {
            let saved = Suspension { phase: SuspensionPhase::Saved, ..suspension.clone() };
            let updated = observed.journal.clone().with_suspension(Some(saved));
            Plan::steps(vec![Step::SealState, write_journal(updated), Step::EndProcess], suspending())
        }
        // QEMU comes to this state also by a save that fails at its end: the file is incomplete.
        (RunState::PostMigrate, _) => cancel(observed),
        // The guest goes on; `begin` tries again later.
        _ if machine.save_failure.as_ref().is_some_and(|(began, _)| *began >= suspension.since) => {
            cancel(observed)
        }
        (_, Transfer::Active) => waits(),
        (RunState::Running | RunState::Paused, _) => {
            Plan::steps(vec![Step::Save { at_most: size_at_most(&suspension.machine) }], suspending())
                .requeue_after(LOOK_AGAIN)
        }
        _ => waits(),
    })
}

/// Whether the machine has the disks that are recorded of it.
fn has_recorded_disks(machine: &MachineState, suspension: &Suspension) -> bool {
    let has: BTreeSet<&str> = machine.disks.iter().map(|disk| disk.id.as_str()).collect();
    has == suspension.machine.disks.iter().map(|disk| disk.id.as_str()).collect()
}

/// Ends a save. The file is incomplete, or is not needed: the guest is resumed, or stopped, as declared.
fn cancel(observed: &Observed) -> Plan<Step> {
    let updated = observed.journal.clone().with_suspension(None);
    let text = "the suspension is cancelled".to_owned();
    let mut steps = Vec::new();
    if observed.machine.as_ref().is_some_and(|machine| machine.transfer == Transfer::Active) {
        steps.push(Step::CancelSave);
    }
    steps.extend([Step::RemoveState, write_journal(updated)]);
    Plan::steps(steps, Readiness::Reconciling(Reason::Starting, text))
}

/// Loads the state; then removes its file, and only then lets the guest run.
fn resume(vm: &VM, observed: &Observed, suspension: &Suspension) -> Option<Plan<Step>> {
    let is_given_up = observed.state_kept && (deleting(vm) || observed.draining || !is_to_run(vm));
    let machine = observed.machine.as_ref();
    if is_given_up && machine.is_none_or(|machine| machine.run_state != RunState::Running) {
        return Some(Plan::steps(vec![Step::EndProcess], suspending()));
    }
    let waits = || Plan::without_steps(resuming()).requeue_after(LOOK_AGAIN);
    Some(match (&machine?.run_state, &machine?.transfer) {
        (RunState::InMigrate, Transfer::Active | Transfer::Completed) => waits(),
        (RunState::InMigrate, _) if observed.state_kept => {
            Plan::steps(vec![Step::Load { cpus: suspension.cpus }], resuming()).requeue_after(LOOK_AGAIN)
        }
        // Without its file the state is neither there nor in QEMU.
        (RunState::InMigrate, _) => Plan::steps(vec![Step::EndProcess], resuming()),
        (RunState::Paused | RunState::Running, _) => {
            let updated = observed.journal.clone().with_suspension(None);
            let mut steps = vec![Step::RemoveState, write_journal(updated)];
            if vm.spec.power == Power::Running {
                steps.extend([Step::Start, Step::SetClock]);
            }
            Plan::steps(steps, resuming())
        }
        _ => waits(),
    })
}

fn is_to_run(vm: &VM) -> bool {
    matches!(vm.spec.power, Power::Running | Power::Paused)
}

/// Plans for a VM without a QEMU that is, or was, suspended.
pub(super) fn absent(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    let journal = &observed.journal;
    let suspension = journal.suspension.as_ref()?;
    let lost = |how: &str| {
        let updated = vanished(observed, how).with_suspension(None);
        let readiness = Readiness::Reconciling(Reason::Stopping, "ended".into());
        Plan::steps(vec![Step::RemoveState, write_journal(updated)], readiness)
    };
    if suspension.phase == SuspensionPhase::Saving {
        return Some(lost("QEMU was gone before the guest's memory was saved"));
    }
    if suspension.phase == SuspensionPhase::Resuming && !observed.state_kept {
        return Some(lost("QEMU was gone just after the guest's memory was loaded"));
    }
    if deleting(vm) {
        return None;
    }
    if journal.has_process() {
        let mut ended = journal.clone();
        ended.run.iter_mut().for_each(|run| run.process = None);
        if let Some(suspension) = ended.suspension.as_mut().filter(|s| s.phase == SuspensionPhase::Resuming) {
            suspension.attempts += 1;
        }
        return Some(Plan::steps(vec![write_journal(ended)], suspending()));
    }
    Some(match (vm.spec.power, observed.draining, power_on_gate(vm)) {
        (Power::Suspended, ..) => rest(observed, Readiness::Ready(Reason::Suspended, String::new())),
        (Power::Stopped, ..) => {
            let text =
                "its guest's memory is kept: set power to Running, which resumes it, and then to Stopped";
            rest(observed, Readiness::Ready(Reason::Suspended, text.to_owned()))
        }
        (_, true, _) => rest(observed, held_by_host(observed, "is resumed")),
        (_, _, Some((gate, reason))) => {
            let text = format!(
                "the annotation {gate} holds back the start ({reason}): it is resumed once that is removed"
            );
            rest(observed, Readiness::Reconciling(Reason::PowerOnHeld, text))
        }
        _ => match (&observed.turn, observed.held) {
            (GroupTurn::Waits(reason, text), _) => {
                rest(observed, Readiness::Reconciling(*reason, text.clone()))
            }
            (_, Some(held)) => rest(observed, deferred(held)).requeue_after(held.look_again),
            (GroupTurn::Free | GroupTurn::Stopped, None) => launch(vm, observed, suspension),
        },
    })
}

/// Plans for a VM whose disks were restored, and whose guest goes on with the memory of the same snapshot: from here on it is suspended
/// with a copy of that state.
pub(super) fn restored(vm: &VM, observed: &Observed) -> Option<Plan<Step>> {
    if let VmRestore::Due(DueParts { memory: true, .. }) = &observed.restore {
        let text = "its disks are being restored, before its guest goes on with its memory".to_owned();
        let waits = Readiness::Reconciling(Reason::WaitingForDisk, text);
        return Some(Plan::without_steps(waits).requeue_after(LOOK_AGAIN));
    }
    let memory = match observed.memory.as_ref()? {
        Ok(memory) => memory,
        Err(text) => {
            let refused = Readiness::Stalled(Reason::RestoreRefused, text.clone());
            return Some(Plan::without_steps(refused).requeue_after(ASK_HOST));
        }
    };
    if let Err(waits) = disks_ready(observed) {
        return Some(waits);
    }
    if observed.journal.has_devices() {
        return Some(Plan::steps(devices::given_back(&observed.journal), resuming()));
    }
    let run = Run {
        machine: Some(Box::new(memory.machine.clone())),
        token: vm.spec.restart_token.clone(),
        process: None,
        ended: None,
        enrolls: false,
        ..memory.run.clone()
    };
    let suspension = Suspension {
        phase: SuspensionPhase::Saved,
        since: observed.now,
        machine: memory.machine.clone(),
        cpus: memory.run.cpus,
        attempts: 0,
    };
    let updated = Journal {
        epoch: epoch_of(vm),
        uid: vm.metadata.uid.clone().unwrap_or_default(),
        interfaces: vm.status.as_ref().map(|status| status.interfaces.clone()).unwrap_or_default(),
        run: Some(run),
        loaded: Some(memory.restore.clone()),
        // The state has the firmware's variables of its moment, with the keys in them.
        enrolled: None,
        disk_places: places_in(observed, &memory.machine),
        ..observed.journal.clone()
    };
    let updated = updated.with_suspension(Some(suspension));
    Some(Plan::steps(vec![Step::LayState(memory.id.clone()), write_journal(updated)], resuming()))
}

/// Returns the places of the disks with those that they have in this machine.
fn places_in(observed: &Observed, machine: &MachineSpec) -> DiskPlaces {
    let mut places = observed.journal.disk_places.clone();
    for disk in &observed.disks {
        let has = machine.disks.iter().find(|has| Some(&has.id) == disk.volume_id.as_ref());
        if let Some((bus, number)) = has.and_then(|has| Some((has.bus, has.target?))) {
            places.record(&disk.name, DiskPlace { bus, number });
        }
    }
    places
}

/// A VM that stays suspended.
fn rest(observed: &Observed, readiness: Readiness) -> Plan<Step> {
    let mut steps: Vec<Step> = observed.taps.iter().cloned().map(Step::RemoveTap).collect();
    // Once it is to run again, it is tried anew.
    steps.extend(recorded_as_saved(&observed.journal).map(write_journal));
    Plan::steps(steps, readiness)
}

fn recorded_as_saved(journal: &Journal) -> Option<Journal> {
    let suspension = journal.suspension.as_ref()?;
    let saved = Suspension { phase: SuspensionPhase::Saved, attempts: 0, ..suspension.clone() };
    (saved != *suspension).then(|| journal.clone().with_suspension(Some(saved)))
}

/// Launches a QEMU that waits for the state, with the hardware that was saved whatever is declared now.
fn launch(vm: &VM, observed: &Observed, suspension: &Suspension) -> Plan<Step> {
    let journal = &observed.journal;
    if journal.run.as_ref().is_some_and(|run| asks_for_restart(vm, run)) {
        let text = "another restartToken: the saved memory is discarded, and the guest boots".to_owned();
        let steps = vec![write_journal(journal.clone().stopped()), Step::RemoveState];
        return Plan::steps(steps, Readiness::Reconciling(Reason::Starting, text));
    }
    let stalled = |text: &str| {
        let remedy = "Set power to Suspended and back to Running to try again, or change restartToken: its guest then boots, and \
                      what was only in its memory is lost";
        let text = format!("{text}; the VM stays suspended. {remedy}");
        Plan::without_steps(Readiness::Stalled(Reason::ResumeFailed, text))
    };
    if !observed.state_kept {
        return stalled("the file with the guest's memory is gone from its host");
    }
    let architecture = suspension.machine.architecture();
    if let Some(text) = observed.host.as_ref().and_then(|host| host.refusal(architecture)) {
        return Plan::without_steps(Readiness::Stalled(Reason::NotSupported, text)).requeue_after(ASK_HOST);
    }
    if suspension.attempts >= ATTEMPTS {
        let words = observed.last_words.as_deref().unwrap_or_default();
        return stalled(&format!("QEMU could not load the guest's memory ({words})"));
    }
    let waits =
        |reason, text| Plan::without_steps(Readiness::Reconciling(reason, text)).requeue_after(ASK_HOST);
    let pages = suspension.machine.huge_page_bytes.and_then(HugePages::of_bytes).unwrap_or_default();
    let saved = SizeTaken::of(suspension.cpus, suspension.machine.memory_bytes, pages);
    let reserved = observed.size.as_ref().ok().and_then(|size| memory_reservation(journal, size));
    let needed = journal.run.as_ref().map_or(saved, Run::taken).with_reservation(reserved);
    let memory = needed.memory;
    if let Some(free) = observed.free_memory.filter(|free| *free < memory) {
        let (needed, free) = (Quantity::from_bytes(memory), Quantity::from_bytes(free >> 20 << 20));
        let text = format!("the VM needs {needed} of memory to be resumed and this host has {free} left");
        return waits(Reason::Unschedulable, text);
    }
    let Some(host) = &observed.host else {
        return waits(Reason::Starting, "the host is being looked at".to_owned());
    };
    if let Err(waits) = enough_of_its_own(&needed, host) {
        return waits;
    }
    let taps = match taps(observed, &suspension.machine) {
        Ok(taps) => taps,
        Err(text) => return waits(Reason::WaitingForNetwork, text),
    };
    let Some(machine) = with_free_cid(observed, suspension) else {
        return waits(Reason::NotSupported, vsock::NO_DEVICE.to_owned());
    };
    let machine = on_present_files(&machine, &volumes(observed));
    let updated = resuming_with(journal, suspension, &machine);
    let most = suspension.machine.max_memory_bytes.unwrap_or(suspension.machine.memory_bytes);
    let request = LaunchRequest {
        machine,
        seed: None,
        keys: None,
        scratch: journal.run.as_ref().and_then(|run| run.profile.scratch()),
        limits: limits(most, observed, host),
        dedicated: journal.run.as_ref().and_then(Run::dedicated_request),
        from_saved_state: true,
    };
    let mut steps = vec![write_journal(updated)];
    if !taps.is_empty() {
        steps.push(Step::EnsureNetworks);
    }
    steps.extend(taps.into_iter().map(Step::MakeTap));
    steps.push(Step::Launch(Box::new(request)));
    Plan::steps(steps, resuming()).requeue_after(LOOK_AGAIN)
}

/// Returns the volumes of the disks that the VM lists, and of those that attachments plug.
fn volumes(observed: &Observed) -> Vec<&VolumeFacts> {
    let declared = observed.disks.iter().filter_map(|disk| disk.volume.as_ref());
    declared.chain(&observed.attached).collect()
}

/// Returns the saved machine with the context id that it can have now: its guest hears of another one by an event of the vsock device.
/// None: it has such a device, and this host has none.
fn with_free_cid(observed: &Observed, suspension: &Suspension) -> Option<MachineSpec> {
    let machine = suspension.machine.clone();
    match machine.extras.vsock_cid {
        None => Some(machine),
        Some(_) => observed.vsock_cid.map(|cid| vsock::with_cid(machine, cid)),
    }
}

/// Returns the journal of an instance whose saved state this machine is about to load.
fn resuming_with(journal: &Journal, suspension: &Suspension, machine: &MachineSpec) -> Journal {
    let mut updated = journal.clone();
    if let Some(launched) = updated.run.as_mut().and_then(|run| run.machine.as_mut()) {
        launched.extras.vsock_cid = machine.extras.vsock_cid;
    }
    let (phase, machine) = (SuspensionPhase::Resuming, machine.clone());
    updated.with_suspension(Some(Suspension { phase, machine, ..suspension.clone() }))
}

/// Returns the taps of the saved machine's network cards.
fn taps(observed: &Observed, machine: &MachineSpec) -> Result<Vec<TapConfig>, String> {
    let journal = &observed.journal;
    let tap = |name: &str, queues: u8| {
        let (interface, _) =
            journal.slots.iter().find(|(_, slot)| tap_of(&observed.instance, **slot) == name)?;
        let known = journal.interfaces.iter().find(|i| i.name == *interface)?;
        let mtu = observed.mtus.get(&known.network).copied().unwrap_or(1500);
        let bridge = observed.bridges.get(&known.network)?.clone();
        Some(TapConfig { name: name.to_owned(), bridge, mtu, multi_queue: queues > 1 })
    };
    let names = machine.nics.iter().filter_map(|nic| match &nic.tap {
        Tap::Name(name) => Some((name, nic.queues)),
        Tap::Open { .. } => None,
    });
    let missing = |name: &String| {
        format!(
            "the network of a network card that the suspended guest has is not there ({name}): declare its interface again"
        )
    };
    names.map(|(name, queues)| tap(name, queues).ok_or_else(|| missing(name))).collect()
}
