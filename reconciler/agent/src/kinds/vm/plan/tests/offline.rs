//! Restarts of a guest by an agent that no control plane has answered.

use berth_qemu::machine::{Bus, MachineSpec};

use super::super::offline::{Action, Seen, contested, decide, launched, permitted, updated};
use super::*;
use crate::disk_places::DiskPlace;
use crate::kinds::image::local::LocalImage;
use crate::kinds::vm::cdroms::DeclaredCdrom;
use crate::offline_restart::OfflineRestart;

fn machine() -> MachineSpec {
    let steps = plan(&vm(json!({})), &ready_to_start()).steps;
    let launched = steps.into_iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine),
        _ => None,
    });
    launched.expect("it starts")
}

/// A running VM, whose agent holds the Lease as `h1`.
fn running() -> Observed {
    let mut observed = present(RunState::Running);
    observed.journal.run.as_mut().expect("it runs").machine = Some(Box::new(machine()));
    observed.journal.slots = [("nic0".to_owned(), 0)].into();
    observed.holder = Some("h1".to_owned());
    observed
}

fn recorded(vm: &VM) -> Journal {
    updated(vm, &running()).expect("there was no record")
}

fn restart(vm: &VM) -> OfflineRestart {
    *recorded(vm).offline.expect("recorded")
}

/// Returns the journal of a machine that is being stopped.
fn stopping(journal: &Journal) -> Journal {
    let stop = Stop { why: StopReason::Restart, since: at(NOW), released: None, asked: 0, cancelled: false };
    Journal { stop: Some(stop), ..journal.clone() }
}

/// Returns the journal of a guest that ended this way.
fn ended(orderly: bool) -> Journal {
    let ending = Ended { at: at(NOW), orderly, how: "it ended".into(), out_of_memory: false };
    let mut journal = recorded(&vm(json!({}))).with_ending(ending);
    journal.run.as_mut().expect("it ran").process = None;
    journal
}

/// An instance without a process, with the files of its last start.
fn without_process(journal: &Journal) -> Seen<'_> {
    let (machine, now) = (None, at(NOW));
    Seen { journal, has_process: false, machine, has_files: true, oom_killed: false, now }
}

/// The decision about an instance without a process.
fn decided(policy: &str, journal: &Journal) -> Action {
    let restart = restart(&vm(json!({"restartPolicy": policy})));
    decide(&restart, &without_process(journal))
}

/// The decision about an instance with a QEMU in this state.
fn decided_in(state: RunState, journal: &Journal) -> Action {
    let machine = present(state).machine;
    let seen = Seen { has_process: true, machine: machine.as_ref(), ..without_process(journal) };
    decide(&restart(&vm(json!({}))), &seen)
}

#[test]
fn the_restart_of_a_guest_is_recorded_once_before_anything_else_is_done() {
    let vm = vm(json!({}));
    assert_eq!(names(&plan(&vm, &running())), ["WriteJournal"]);
    let journal = recorded(&vm);
    let restart = journal.offline.as_deref().expect("recorded");
    assert_eq!((restart.holder.as_str(), restart.policy), ("h1", berth_api::RestartPolicy::OnFailure));
    let volumes: Vec<&str> = restart.volumes.iter().map(|volume| volume.id.as_str()).collect();
    assert_eq!(volumes, ["v-root", "v-data"]);
    assert_eq!((restart.machine.disks.len(), restart.machine.nics.len()), (2, 1));
    let read = Journal::parse(journal.to_value()).expect("just written");
    assert_eq!(updated(&vm, &Observed { journal: read, ..running() }), None);
}

#[test]
fn a_guest_that_is_restarted_has_its_disks_at_their_places() {
    let mut observed = running();
    observed.journal.disk_places.record("data", DiskPlace { bus: Bus::VirtioScsi, number: 5 });
    let restart = updated(&vm(json!({})), &observed).and_then(|journal| journal.offline).expect("recorded");
    let targets: Vec<_> = restart.machine.disks.iter().map(|disk| (disk.id.as_str(), disk.target)).collect();
    assert_eq!(targets, [("v-root", Some(0)), ("v-data", Some(5))]);
}

/// Whether the record of a running VM is removed once it is declared like this, or after this change of the observation.
fn is_removed(declared: &VM, change: impl FnOnce(&mut Observed)) -> bool {
    let mut observed = Observed { journal: recorded(&vm(json!({}))), ..running() };
    change(&mut observed);
    updated(declared, &observed).is_some_and(|journal| journal.offline.is_none())
}

#[test]
fn a_start_records_the_restart_with_which_its_guest_runs() {
    let vm = vm(json!({"networkInterfaces": [{"name": "nic0", "link": "Down"}]}));
    let starting = Observed { holder: Some("h1".to_owned()), ..ready_to_start() };
    let started = plan(&vm, &starting).steps.into_iter().find_map(|step| match step {
        Step::WriteJournal(journal) => Some(*journal),
        _ => None,
    });
    let started = started.expect("it is written first");
    assert_eq!(
        started.offline.as_ref().map(|restart| restart.links_down.clone()),
        Some(vec!["nic0".to_owned()])
    );
    let process = ProcessFacts { identity: identity(), started_at: at(NOW), dedicated: None };
    assert_eq!(updated(&vm, &Observed { journal: started.with_process(&process), ..running() }), None);
    let off = Observed { holder: None, ..starting };
    let unrecorded = plan(&vm, &off).steps.into_iter().any(|step| match step {
        Step::WriteJournal(journal) => journal.offline.is_some(),
        _ => false,
    });
    assert!(!unrecorded, "without a Lease nothing is recorded");
}

#[test]
fn no_restart_is_recorded_that_needs_the_control_plane() {
    for spec in [
        json!({"power": "Stopped"}),
        json!({"power": "Paused"}),
        json!({"power": "Suspended"}),
        json!({"restartPolicy": "Never"}),
        json!({"restartToken": "another"}),
    ] {
        assert!(is_removed(&vm(spec.clone()), |_| {}), "{spec}");
    }
    let as_declared = vm(json!({}));
    assert!(is_removed(&deleted(as_declared.clone()), |_| {}));
    let mut gated = as_declared.clone();
    gated.metadata.annotations =
        Some([("poweron.check.berth.dev/backup".to_owned(), "it is copied".to_owned())].into());
    assert!(is_removed(&gated, |_| {}));
    let changes: [fn(&mut Observed); 7] = [
        |observed| observed.draining = true,
        |observed| observed.turn = GroupTurn::Waits(Reason::WaitingForGroup, String::new()),
        |observed| observed.disks[1].has_limits = true,
        |observed| observed.disks[1].user = User::Other("db".into()),
        |observed| observed.restore = VmRestore::Waits("it is not taken".into()),
        |observed| observed.journal = stopping(&observed.journal),
        |observed| {
            let image = Some(("iso".to_owned(), LocalImage::Missing));
            observed.cdroms = vec![DeclaredCdrom {
                name: "installer".into(),
                boot_first: false,
                guest_can_eject: true,
                image,
            }];
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert!(is_removed(&as_declared, change), "{number}");
    }
    let stopped = recorded(&as_declared).stopped();
    assert_eq!(stopped.offline, None, "what was stopped is not started");
}

#[test]
fn a_guest_that_ended_is_restarted_as_its_policy_allows() {
    assert_eq!(
        [true, false].map(|orderly| decided("Always", &ended(orderly))),
        [Action::Launch, Action::Launch]
    );
    assert_eq!(
        [true, false].map(|orderly| decided("OnFailure", &ended(orderly))),
        [Action::Wait(None), Action::Launch]
    );
    let again = Journal { not_before: Some(at(NOW + 20)), ..ended(false) };
    assert_eq!(decided("Always", &again), Action::Wait(Some(Duration::from_secs(20))));
    let restart = restart(&vm(json!({})));
    let journal = ended(false);
    let without_files = Seen { has_files: false, ..without_process(&journal) };
    assert_eq!(decide(&restart, &without_files), Action::Wait(None), "its data is not there");
}

#[test]
fn how_a_guest_ended_is_recorded_first() {
    let running = recorded(&vm(json!({})));
    let Action::Record(journal) = decided("OnFailure", &running) else { panic!("QEMU is gone") };
    let run = journal.run.clone().expect("it ran");
    assert_eq!((run.process.is_none(), run.ended.map(|ended| ended.orderly)), (true, Some(false)));
    assert_eq!(decided("OnFailure", &journal), Action::Launch);
    let Action::Record(journal) = decided_in(RunState::Shutdown, &running) else { panic!("it ended") };
    assert_eq!(decided_in(RunState::Shutdown, &journal), Action::EndProcess);
    let killed = Seen { oom_killed: true, ..without_process(&running) };
    let Action::Record(journal) = decide(&restart(&vm(json!({}))), &killed) else { panic!("QEMU is gone") };
    let ended = journal.run.as_ref().and_then(|run| run.ended.as_ref()).expect("recorded");
    assert!(ended.out_of_memory && ended.how.contains("for lack of memory"), "{ended:?}");
}

#[test]
fn a_guest_that_runs_is_left_alone_and_one_that_was_stopped_stays_off() {
    let running = recorded(&vm(json!({})));
    for state in [RunState::Running, RunState::Paused, RunState::IoError, RunState::Prelaunch] {
        assert_eq!(decided_in(state, &running), Action::Wait(None));
    }
    assert_eq!(decided("Always", &running.clone().stopped()), Action::Wait(None));
    let mut begun = running;
    begun.run.as_mut().expect("it runs").process = None;
    assert_eq!(decided("Always", &begun), Action::Wait(None), "a first launch that was interrupted");
}

#[test]
fn a_restart_counts_once_and_is_repeated_until_the_guest_runs() {
    let journal = launched(&ended(false), machine());
    assert_eq!(journal.restarts, 1);
    assert_eq!(decided("OnFailure", &journal), Action::Launch, "the launch failed");
    assert_eq!(launched(&journal, machine()).restarts, 1);
    let process = ProcessFacts { identity: identity(), started_at: at(NOW), dedicated: None };
    let journal = journal.with_process(&process);
    assert_eq!(decided_in(RunState::Prelaunch, &journal), Action::Start);
    assert_eq!(decided_in(RunState::Running, &journal), Action::Wait(None));
}

#[test]
fn only_the_successor_of_the_agent_that_recorded_a_restart_carries_it_out() {
    let journal = ended(false);
    let none = Default::default();
    assert!(permitted(&journal, &none, |holder| holder == "h1").is_some());
    assert!(permitted(&journal, &none, |_| false).is_none(), "it may run, or has run in another boot");
    assert!(permitted(&stopping(&journal), &none, |_| true).is_none());
    let deleted = Journal { deleting: true, ..journal.clone() };
    assert!(permitted(&deleted, &none, |_| true).is_none());
    assert!(permitted(&Journal { offline: None, ..journal }, &none, |_| true).is_none());
}

#[test]
fn a_guest_whose_disk_another_instance_has_stays_off() {
    let journal = ended(false);
    assert!(contested([&journal].into_iter()).is_empty(), "its own run and record have the same disks");
    let mut other = Journal { offline: None, ..ended(false) };
    let machine = other.run.as_mut().and_then(|run| run.machine.as_mut()).expect("it was launched");
    machine.disks.retain(|disk| disk.id == "v-data");
    let contested = contested([&journal, &other].into_iter());
    assert_eq!(contested, ["v-data".to_owned()].into());
    assert!(permitted(&journal, &contested, |_| true).is_none());
}

#[test]
fn a_disk_that_all_instances_only_read_keeps_no_guest_off() {
    let mut journal = ended(false);
    let launched = journal.run.as_mut().and_then(|run| run.machine.as_deref_mut());
    let recorded = journal.offline.as_deref_mut().map(|restart| &mut restart.machine);
    for machine in launched.into_iter().chain(recorded) {
        machine.disks.iter_mut().for_each(|disk| disk.read_only = true);
    }
    assert!(contested([&journal, &journal].into_iter()).is_empty());
}
