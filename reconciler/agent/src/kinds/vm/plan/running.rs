//! Plan for a VM that runs as declared: its disks and network interfaces are plugged and unplugged to match the spec.

use std::time::Duration;

use berth_api::{Power, Readiness, Reason, VM};
use berth_qemu::block::{Mirror, ObservedDisk};
use berth_qemu::machine::{Bus, DiskSpec};
use berth_qemu::power::RunState;

use super::super::cpu_time;
use super::super::declared_disks::{DeclaredDisk, User};
use super::super::hooking;
use super::super::media;
use super::super::surplus;
use super::interfaces;
use super::memory;
use super::start::{left_of, too_large};
use super::{Observed, Step, obstacle, write_journal};
use crate::converge::Plan;
use crate::disk_places::DiskPlaces;
use crate::journal::Journal;
use crate::machine::MachineState;
use crate::networking::LOOK_AGAIN;
use crate::plugging::disk_spec;
use crate::probes::Outcome;

const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How often a QEMU that does not answer is looked at. Once there is a connection, its driver reports an answer.
const LOOK_AT_SILENT: Duration = Duration::from_secs(5);
/// How often a guest that was paused by an error of the host is resumed.
const RESUME_EVERY: Duration = Duration::from_secs(10);
/// How often a guest that has not been seen is looked for.
const SEEK_EVERY: Duration = Duration::from_secs(30);
/// How often a guest that does not release a disk is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);

const SWITCHED: &str = "the guest is paused for a moment: a disk of it has moved to another pool";

const WAKES: &str = "the guest has suspended itself to its memory, and is woken up";

const PAUSED: &str = "the guest is paused, and is resumed";

pub(super) fn plan(vm: &VM, observed: &Observed) -> Plan<Step> {
    let Some(machine) = &observed.machine else {
        let text = format!(
            "QEMU runs and its monitor does not answer: {}",
            observed.unreachable.as_deref().unwrap_or("")
        );
        return Plan::without_steps(Readiness::Reconciling(Reason::NotResponding, text))
            .requeue_after(LOOK_AT_SILENT);
    };
    let is_paused = vm.spec.power == Power::Paused;
    if let Some(step) = cpu_time::step(observed.cpu_time, observed.wanted_cpu_time) {
        let readiness = Readiness::Reconciling(Reason::Attaching, "its CPU time is being changed".to_owned());
        return Plan::steps(vec![step], readiness);
    }
    let mut links = interfaces::links(vm, observed, machine);
    if !links.is_empty()
        && matches!(machine.run_state, RunState::Prelaunch | RunState::Running | RunState::Paused)
    {
        if machine.run_state == RunState::Prelaunch && !is_paused {
            links.push(Step::Start);
        }
        let readiness = Readiness::Reconciling(Reason::Attaching, "links are being set".to_owned());
        return Plan::steps(links, readiness);
    }
    match &machine.run_state {
        RunState::Running if is_paused => {
            let readiness = Readiness::Reconciling(Reason::Paused, "the guest is being paused".into());
            Plan::steps(vec![Step::Pause], readiness)
        }
        RunState::Prelaunch | RunState::Paused if is_paused => disks(vm, observed, machine),
        RunState::Running => cpus(vm, observed, machine)
            .or_else(|| memory::request(vm, observed, machine))
            .unwrap_or_else(|| disks(vm, observed, machine)),
        RunState::Prelaunch => {
            Plan::steps(vec![Step::Start], Readiness::Reconciling(Reason::Starting, "being started".into()))
        }
        // The reconcile of the disk lets it go on.
        RunState::Paused if machine.mirrors.values().any(Mirror::is_switching) => {
            Plan::without_steps(Readiness::Reconciling(Reason::Moving, SWITCHED.into()))
                .requeue_after(TRY_AGAIN)
        }
        RunState::Paused => resume(observed, machine, Reason::Paused, PAUSED),
        // Also one that is to be paused: it runs for a moment.
        RunState::Suspended => wake(observed, machine),
        // A crash came while its memory was saved for a snapshot: the state is not of the guest that goes on.
        RunState::PostMigrate => {
            let mut plan = resume(observed, machine, Reason::Paused, PAUSED);
            if !plan.steps.is_empty() {
                plan.steps.push(Step::RemoveState);
            }
            plan
        }
        // It is paused, and its write is repeated when it is resumed.
        RunState::IoError if is_paused => {
            Plan::without_steps(Readiness::Reconciling(Reason::NoSpace, io_error(observed, machine)))
        }
        RunState::IoError => resume(observed, machine, Reason::NoSpace, &io_error(observed, machine)),
        other => {
            let text = format!("QEMU is in state {other:?}");
            Plan::without_steps(Readiness::Reconciling(Reason::Retrying, text)).requeue_after(TRY_AGAIN)
        }
    }
}

/// Describes the state of a guest that QEMU stopped because the host could not write a disk of it.
pub(in super::super) fn io_error(observed: &Observed, machine: &MachineState) -> String {
    let name = |disk: &ObservedDisk| match observed.reported_disks.get(&disk.id) {
        Some(reported) => format!("Disk {} in StoragePool {}", reported.name, reported.pool),
        // It is not declared any more, or not watched yet.
        None => format!("the disk with serial number {}", disk.serial),
    };
    let failed: Vec<String> = machine.disks.iter().filter(|disk| disk.io_error).map(name).collect();
    let failed = if failed.is_empty() { "a disk of it".to_owned() } else { failed.join(", ") };
    format!(
        "the guest is paused by an I/O error: the host has no space to write {failed}; free space there or add some, \
         and the guest repeats the write when it is resumed"
    )
}

/// Plugs in the CPUs that are declared and missing, as far as the machine was started with places for them.
fn cpus(vm: &VM, observed: &Observed, machine: &MachineState) -> Option<Plan<Step>> {
    let (size, has) = (observed.size.as_ref().ok()?, machine.cpus?);
    let most = observed.journal.run.as_ref()?.max_cpus?;
    if size.cpus <= has || size.cpus > most || too_large(vm, size, observed).is_some() {
        return None;
    }
    let readiness = Readiness::Reconciling(Reason::Attaching, "CPUs are being plugged in".to_owned());
    Some(Plan::steps(vec![Step::PlugCpus(size.cpus)], readiness))
}

/// Resumes at once the first time, then at intervals: the cause of the pause may recur.
pub(super) fn resume(observed: &Observed, machine: &MachineState, reason: Reason, text: &str) -> Plan<Step> {
    let due = machine.resumed_at.is_none_or(|at| left_of(RESUME_EVERY, at, observed.now).is_zero());
    let readiness = Readiness::Reconciling(reason, text.to_owned());
    let step = if machine.run_state == RunState::Suspended { Step::WakeUp } else { Step::Start };
    let plan = if due { Plan::steps(vec![step], readiness) } else { Plan::without_steps(readiness) };
    plan.requeue_after(RESUME_EVERY)
}

/// Wakes up a guest that has suspended itself to its memory.
pub(super) fn wake(observed: &Observed, machine: &MachineState) -> Plan<Step> {
    resume(observed, machine, Reason::Suspended, WAKES)
}

fn disks(vm: &VM, observed: &Observed, machine: &MachineState) -> Plan<Step> {
    let mut steps = Vec::new();
    let mut waiting = None;
    let mut places = observed.journal.disk_places.clone();
    for disk in observed.disks.iter().filter(|d| !d.boot) {
        let plugged = |id: &String| machine.disks.iter().any(|d| d.id == *id);
        // Disks on another bus are plugged in at the start.
        if disk.bus != Bus::VirtioScsi || disk.volume_id.as_ref().is_some_and(plugged) {
            continue;
        }
        match (&disk.volume, &disk.user) {
            (Some(volume), User::ThisVm) if !disk.moves_first => {
                let target = give_place(&mut places, disk, observed, machine);
                let spec = disk_spec(volume, &disk.serial, false, target);
                let spec = DiskSpec { read_only: disk.read_only, ..spec };
                steps.push(Step::Plug { disk: Box::new(spec) });
            }
            // It would not move for as long as the machine runs.
            (Some(volume), User::ThisVm) if disk.is_reserved || machine.left_open.contains(&volume.id) => {
                steps.push(Step::Unplug { volume: volume.id.clone() });
            }
            (_, User::Other(other)) => {
                let text = format!("Disk {} is used by VM {other}", disk.name);
                waiting.get_or_insert(Readiness::Stalled(Reason::DiskInUse, text));
            }
            _ => {
                let not_yet =
                    if disk.moves_first { "is being moved to another pool" } else { "is not ready yet" };
                let why = disk.problem.as_deref().unwrap_or(not_yet);
                let text = format!("Disk {}: {why}", disk.name);
                waiting.get_or_insert(Readiness::Reconciling(Reason::WaitingForDisk, text));
            }
        }
    }
    if places != observed.journal.disk_places {
        // First, so that it keeps its place also if the guest ends right after that.
        let updated = Journal { disk_places: places, ..observed.journal.clone() };
        let readiness = Readiness::Reconciling(Reason::Attaching, "disks are being plugged in".to_owned());
        return Plan::steps(vec![write_journal(updated)], readiness);
    }
    steps.extend(observed.left_volumes.iter().map(|volume| Step::CloseLeft { volume: volume.clone() }));
    let mut busy = false;
    for disk in surplus(machine, observed) {
        let why = match observed.mounts.get(&disk.id).map(Vec::as_slice) {
            Some([]) => {
                steps.push(Step::Unplug { volume: disk.id.clone() });
                continue;
            }
            Some(mounted) => {
                let at = mounted.join(", ");
                let text = format!("the guest has disk {} mounted at {at}: unmount it there", disk.serial);
                Readiness::Stalled(Reason::GuestBusy, text)
            }
            None => {
                let text = format!(
                    "no guest agent says what the guest has mounted of disk {}: run qemu-guest-agent there, or stop the VM",
                    disk.serial
                );
                Readiness::Stalled(Reason::MountsUnknown, text)
            }
        };
        busy = true;
        waiting.get_or_insert(why);
    }
    let interfaces = interfaces::changes(vm, observed);
    steps.extend(interfaces.join());
    let plugged = interfaces.plug(observed);
    let is_plugging = !plugged.is_empty();
    steps.extend(plugged);
    let before_media = steps.len();
    // Last: a guest that does not release a medium or a network card holds up no disk.
    let (changes, busy_with) = media::changes(observed, machine);
    steps.extend(changes);
    if !is_plugging {
        let unplugged = interfaces.unplug(observed);
        // After everything else: they may wait for long.
        let failing = if unplugged.is_empty() { interfaces.plug_failing(observed) } else { Vec::new() };
        let place = if busy_with.is_some() { before_media } else { steps.len() };
        steps.splice(place..place, unplugged);
        steps.extend(failing);
    }
    if !steps.is_empty() {
        let text = "disks or media are being plugged in or out".to_owned();
        let readiness = busy_with
            .or_else(|| interfaces.readiness(observed))
            .unwrap_or(Readiness::Reconciling(Reason::Attaching, text));
        return Plan::steps(steps, readiness).requeue_after(ASK_AGAIN);
    }
    let waiting = waiting.or(busy_with).or_else(|| interfaces.readiness(observed));
    let taking = memory::taking(observed);
    let taken_within = taking.as_ref().map(|(_, left)| *left);
    let readiness = waiting
        .or_else(|| tpm(machine))
        .or_else(|| shares(machine))
        .or_else(|| addresses(observed))
        .or_else(|| taking.map(|(readiness, _)| readiness))
        .or_else(|| probe(vm, observed));
    // It does not wait for the readiness probe, which may depend on it.
    if let Some(plan) = hooking::after_start(vm, observed)
        && (readiness.is_none() || !plan.steps.is_empty())
    {
        return seek_guest(vm, observed, plan);
    }
    let declared = if vm.spec.power == Power::Paused { Reason::Paused } else { Reason::Running };
    let readiness = readiness.unwrap_or_else(|| match vm.spec.power {
        Power::Suspended => {
            let text =
                "the guest is suspended once it does not shut down any more, as it was asked to".to_owned();
            Readiness::Reconciling(Reason::Suspending, text)
        }
        _ => Readiness::Ready(declared, String::new()),
    });
    let plan = seek_guest(vm, observed, Plan::without_steps(readiness));
    let plan = match taken_within {
        Some(left) => plan.requeue_after(left),
        None => plan,
    };
    // QEMU does not report the end of its TPM's emulator, or of a server of its shares, by itself.
    let has_helper = machine.has_tpm == Some(true) || machine.lost_shares.is_some();
    let plan = if has_helper { plan.requeue_after(SEEK_EVERY) } else { plan };
    let plan = if observed.conflicts.is_empty() { plan } else { plan.requeue_after(LOOK_AGAIN) };
    if busy { plan.requeue_after(ASK_AGAIN) } else { plan }
}

/// Records the place of a disk that is about to be plugged in, and forgets those of disks that were taken off. Returns its SCSI target,
/// unless QEMU is to choose one.
fn give_place(
    places: &mut DiskPlaces,
    disk: &DeclaredDisk,
    observed: &Observed,
    machine: &MachineState,
) -> Option<u8> {
    places.keep(|name| observed.disks.iter().any(|declared| declared.name == name));
    let taken = machine.disks.iter().filter(|has| has.bus == disk.bus).filter_map(|has| has.target).collect();
    let place = places.for_plug(&disk.name, disk.bus, &taken)?;
    places.record(&disk.name, place);
    Some(place.number)
}

fn tpm(machine: &MachineState) -> Option<Readiness> {
    let text = "the emulator of the VM's TPM (swtpm) has ended, and the guest's TPM does not answer: restart the VM (restartToken)";
    (machine.has_tpm == Some(false)).then(|| Readiness::Stalled(Reason::TPMFailed, text.to_owned()))
}

fn shares(machine: &MachineState) -> Option<Readiness> {
    let lost = machine.lost_shares.as_ref().filter(|lost| !lost.is_empty())?;
    let text = format!(
        "the server of the VM's share {} (virtiofsd) has ended, and the guest cannot reach the folder: restart the VM (restartToken)",
        lost.join(", ")
    );
    Some(Readiness::Stalled(Reason::ShareFailed, text))
}

fn addresses(observed: &Observed) -> Option<Readiness> {
    let missing = observed.public.iter().find(|public| !public.forwarded)?;
    Some(Readiness::Reconciling(Reason::WaitingForPublicIP, obstacle(missing, "does not lead here yet")))
}

/// Returns what the readiness probe says of a guest that runs, if it does not succeed.
fn probe(vm: &VM, observed: &Observed) -> Option<Readiness> {
    if vm.spec.readiness_probe.is_none() || vm.spec.power != Power::Running {
        return None;
    }
    let text = match &observed.probes.readiness {
        Some(Outcome::Success) => return None,
        Some(Outcome::Failure(cause)) => format!("the readiness probe fails: {cause}"),
        None => "the readiness probe has not succeeded yet".to_owned(),
    };
    Some(Readiness::Reconciling(Reason::ProbeFailed, text))
}

/// Looks again for a guest that has not been seen. Until then, the machine's driver reports a guest agent, and
/// [`crate::lease_watcher`] a lease taken soon after the start.
fn seek_guest(vm: &VM, observed: &Observed, plan: Plan<Step>) -> Plan<Step> {
    let seen = observed.guest.agent || observed.lease_taken;
    let is_paused = vm.spec.power == Power::Paused;
    if seen || is_paused || vm.spec.network_interfaces.is_empty() {
        plan
    } else {
        plan.requeue_after(SEEK_EVERY)
    }
}
