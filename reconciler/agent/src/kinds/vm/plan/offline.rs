//! Restarts of a guest by an agent that no control plane has answered. Pure.
//!
//! An agent with the objects of the control plane records in the journal how a guest is restarted ([`updated`]), before it takes any other
//! step that follows from a change of them. Its successor acts on that record ([`decide`]): it restarts a guest that ran and ended by itself,
//! as the recording agent would have done, and does nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::gates::power_on_gate;
use berth_api::{Power, RestartPolicy, VM};
use berth_qemu::hypervisor::CpuTime;
use berth_qemu::machine::{CdromSpec, DiskSpec, MachineSpec};
use berth_qemu::power::RunState;
use jiff::Timestamp;

use super::super::cpu_time;
use super::cards::{cards_down, nics};
use super::due::{back_off, is_restarted};
use super::start::disks_ready;
use super::{GONE, Observed, Step, asks_for_restart, deleting, ending, gone, pins};
use crate::converge::Plan;
use crate::journal::{Journal, PostStart, Run};
use crate::machine::{MachineState, has_ended};
use crate::offline_restart::{OfflineRestart, OfflineVolume};
use crate::restores::VmRestore;

/// Returns the journal with the restart that is declared now, if it has another one.
pub(super) fn updated(vm: &VM, observed: &Observed) -> Option<Journal> {
    let journal = &observed.journal;
    journal.run.as_ref().filter(|_| observed.journal_written)?;
    let declared = declared(vm, observed, journal).map(Box::new);
    (declared != journal.offline).then(|| Journal { offline: declared, ..journal.clone() })
}

/// Returns the plan of a start with the restart in the journal that it writes.
pub(super) fn recorded(vm: &VM, observed: &Observed, mut start: Plan<Step>) -> Plan<Step> {
    for step in &mut start.steps {
        if let Step::WriteJournal(journal) = step {
            journal.offline = declared(vm, observed, journal).map(Box::new);
        }
    }
    start
}

/// Returns the restart of a guest that ends by itself from here on. None: it needs the control plane.
fn declared(vm: &VM, observed: &Observed, journal: &Journal) -> Option<OfflineRestart> {
    let run = journal.run.as_ref().filter(|run| is_to_run_on(vm, observed, journal, run))?;
    let launched = run.machine.as_deref()?;
    let holder = observed.holder.clone()?;
    let volumes: Option<Vec<OfflineVolume>> = observed
        .disks
        .iter()
        .map(|disk| {
            let volume = disk.volume.as_ref()?;
            // The key and the ceilings of a disk are known from objects only.
            (volume.encryption.is_none() && !disk.has_limits).then(|| OfflineVolume {
                id: volume.id.clone(),
                pool: volume.pool.clone(),
                restored_at: volume.restores.last().map(|restored| restored.at),
            })
        })
        .collect();
    let places = pins::disk_places(observed, journal.disk_places.clone());
    let without_chain = |disk: DiskSpec| DiskSpec { backing: None, ..disk };
    let without_medium = |drive: &CdromSpec| CdromSpec { medium: None, ..drive.clone() };
    Some(OfflineRestart {
        holder,
        policy: vm.spec.restart_policy,
        machine: MachineSpec {
            disks: pins::disks(observed, &places).into_iter().map(without_chain).collect(),
            nics: nics(vm, observed, journal),
            cdroms: launched.cdroms.iter().map(without_medium).collect(),
            ..launched.clone()
        },
        volumes: volumes?,
        cpu: declared_cpu_time(observed),
        links_down: cards_down(vm, journal),
    })
}

fn declared_cpu_time(observed: &Observed) -> CpuTime {
    // The host is observed for a start only.
    match &observed.host {
        Some(host) => cpu_time::of(&observed.cpu_controls, host.cpus),
        None => observed.wanted_cpu_time,
    }
}

/// Whether a guest that ends by itself is restarted with what it has, as far as its policy allows.
fn is_to_run_on(vm: &VM, observed: &Observed, journal: &Journal, run: &Run) -> bool {
    let is_declared = vm.spec.power == Power::Running
        && vm.spec.restart_policy != RestartPolicy::Never
        && !deleting(vm)
        && power_on_gate(vm).is_none()
        && !asks_for_restart(vm, run);
    let is_undisturbed = journal.stop.is_none()
        && journal.suspension.is_none()
        && !journal.deleting
        && !observed.draining
        && !observed.turn.waits()
        && matches!(observed.restore, VmRestore::None | VmRestore::Done(_))
        && observed.memory.is_none();
    let has_no_medium = observed.cdroms.iter().all(|drive| drive.image.is_none());
    is_declared && is_undisturbed && has_no_medium && disks_ready(observed).is_ok()
}

/// Returns the restart that an agent may carry out for the instance with this journal. `contested`: the volumes to leave alone.
pub(in crate::kinds::vm) fn permitted<'a>(
    journal: &'a Journal,
    contested: &BTreeSet<String>,
    is_successor_of: impl Fn(&str) -> bool,
) -> Option<&'a OfflineRestart> {
    let restart = journal.offline.as_deref()?;
    let is_undisturbed = journal.stop.is_none() && journal.suspension.is_none() && !journal.deleting;
    let has_disks = restart.machine.disks.iter().all(|disk| !contested.contains(&disk.id));
    (is_undisturbed && has_disks && is_successor_of(&restart.holder)).then_some(restart)
}

/// Returns the volumes that more than one of the instances has, had or would have, and that one of them writes to: the record of one of
/// them is outdated. Several may read a volume, or write to a shared one.
pub(in crate::kinds::vm) fn contested<'a>(journals: impl Iterator<Item = &'a Journal>) -> BTreeSet<String> {
    let (mut seen, mut contested) = (BTreeMap::new(), BTreeSet::new());
    for journal in journals {
        let launched = journal.run.iter().filter_map(|run| run.machine.as_deref());
        let suspended = journal.suspension.iter().map(|suspension| &suspension.machine);
        let recorded = journal.offline.iter().map(|restart| &restart.machine);
        let machines = launched.chain(suspended).chain(recorded);
        let mut own: BTreeMap<&String, bool> = BTreeMap::new();
        for disk in machines.flat_map(|machine| &machine.disks) {
            *own.entry(&disk.id).or_default() |= !disk.read_only && !disk.shared;
        }
        for (volume, writes) in own {
            if seen.insert(volume, writes).is_some_and(|another_writes| another_writes || writes) {
                contested.insert(volume.clone());
            }
        }
    }
    contested
}

/// An instance, as far as its host shows it.
pub(in crate::kinds::vm) struct Seen<'a> {
    pub(in crate::kinds::vm) journal: &'a Journal,
    pub(in crate::kinds::vm) has_process: bool,
    /// None: it has no process, or QEMU's monitor does not answer.
    pub(in crate::kinds::vm) machine: Option<&'a MachineState>,
    /// Whether the bootstrap data of its last start is there.
    pub(in crate::kinds::vm) has_files: bool,
    /// Whether the kernel's OOM killer ended a process of the machine.
    pub(in crate::kinds::vm) oom_killed: bool,
    pub(in crate::kinds::vm) now: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::kinds::vm) enum Action {
    /// Nothing, for this time; None: until something changes.
    Wait(Option<Duration>),
    /// Records how the guest has ended.
    Record(Box<Journal>),
    /// Ends a QEMU whose guest has ended.
    EndProcess,
    Launch,
    /// Lets a machine run that was launched by [`Action::Launch`].
    Start,
}

/// Decides what is done about an instance without the control plane.
pub(in crate::kinds::vm) fn decide(restart: &OfflineRestart, seen: &Seen<'_>) -> Action {
    let Some(run) = &seen.journal.run else { return Action::Wait(None) };
    if seen.has_process {
        return match seen.machine {
            Some(machine) if has_ended(&machine.run_state) => match run.ended {
                Some(_) => Action::EndProcess,
                None => {
                    let ended = ending(Some(machine), seen.now);
                    Action::Record(Box::new(seen.journal.clone().with_ending(ended)))
                }
            },
            Some(machine) if run.keeps_bootstrap && machine.run_state == RunState::Prelaunch => Action::Start,
            _ => Action::Wait(None),
        };
    }
    if run.process.is_some() {
        return Action::Record(Box::new(gone(seen.journal, seen.now, GONE, seen.oom_killed)));
    }
    let is_due = match &run.ended {
        Some(ended) => is_restarted(restart.policy, ended),
        // A launch that failed is repeated; another one was not a restart.
        None => run.keeps_bootstrap,
    };
    if !is_due || !seen.has_files {
        return Action::Wait(None);
    }
    match back_off(seen.journal, seen.now) {
        Some(left) => Action::Wait(Some(left)),
        None => Action::Launch,
    }
}

/// Returns the journal of an instance that is launched with this machine.
pub(in crate::kinds::vm) fn launched(journal: &Journal, machine: MachineSpec) -> Journal {
    let Some(run) = &journal.run else { return journal.clone() };
    let is_restart = run.ended.is_some();
    let run = Run {
        cpus: machine.cpus.into(),
        memory_bytes: machine.memory_bytes,
        machine: Some(Box::new(machine)),
        process: None,
        started_at: None,
        booted_at: None,
        post_start: run.post_start.as_ref().map(|_| PostStart::Due),
        keeps_bootstrap: true,
        ended: None,
        ..run.clone()
    };
    Journal { run: Some(run), restarts: journal.restarts + i64::from(is_restart), ..journal.clone() }
}
