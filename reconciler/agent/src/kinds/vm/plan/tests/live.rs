//! A running guest that moves to another host: one host at a time lets it run.

use berth_api::vm::{MigrationPhase, VMMigration};

use super::super::super::leaving::Leaving;
use super::super::live;
use super::*;
use crate::journal::{Arrival, ArrivalPhase, Departure, DeparturePhase, Released};
use crate::live_moves::{DepartureState, FailedDeparture};

fn departure(phase: DeparturePhase) -> Departure {
    Departure {
        id: "m1-7".into(),
        migration: "m1".into(),
        to: "h2".into(),
        epoch: 1,
        phase,
        since: at(NOW - 5),
    }
}

/// A VM that is to move live to host h2.
fn moving_vm(spec: Value) -> VM {
    let mut vm = vm(spec);
    let migration = VMMigration {
        id: "m1".into(),
        to: "h2".into(),
        epoch: 1,
        phase: MigrationPhase::Requested,
        message: String::new(),
    };
    let status = vm.status.as_mut().expect("a status");
    status.migration = Some(Box::new(migration));
    status.move_epoch = Some(1);
    vm
}

/// A machine in this state whose guest is sent, in this phase.
fn leaving(state: RunState, phase: DeparturePhase, is_active: bool) -> Observed {
    let mut observed = present(state);
    observed.journal = observed.journal.with_departure(Some(departure(phase)));
    observed.departure = DepartureState { is_active, ..DepartureState::default() };
    observed
}

fn off(mut observed: Observed) -> Observed {
    observed.process = None;
    observed.machine = None;
    observed
}

/// A machine whose launch is recorded, so that it can be sent.
fn recorded() -> Observed {
    let planned = plan(&vm(json!({})), &ready_to_start());
    let launch = planned.steps.into_iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine),
        _ => None,
    });
    let mut observed = present(RunState::Running);
    if let Some(run) = observed.journal.run.as_mut() {
        run.machine = launch.map(Box::new);
    }
    if let Some(machine) = observed.machine.as_mut() {
        let launched = observed.journal.run.as_ref().and_then(|run| run.machine.as_ref());
        let cards: Vec<String> =
            launched.iter().flat_map(|machine| &machine.nics).map(|nic| nic.id.clone()).collect();
        machine.nics.retain(|nic| cards.contains(&nic.id));
    }
    observed
}

#[test]
fn a_guest_is_sent_once_that_is_recorded_and_only_while_nothing_else_is_declared() {
    let begun = live::begin(&moving_vm(json!({})), &recorded()).expect("it can be sent");
    assert_eq!(names(&begun), ["WriteJournal", "Depart"], "the record comes first");
    let Some(Step::Depart(leaving)) = begun.steps.last() else { panic!("it is sent") };
    let Leaving { departure, .. } = leaving.as_ref();
    assert_eq!((departure.to.as_str(), departure.phase), ("h2", DeparturePhase::Sending));
    for declared in
        [json!({"power": "Stopped"}), json!({"power": "Paused"}), json!({"restartToken": "again"})]
    {
        assert_eq!(live::begin(&moving_vm(declared.clone()), &recorded()), None, "{declared}");
    }
    assert_eq!(live::begin(&vm(json!({})), &recorded()), None, "it is not to move");
    let mut without = recorded();
    without.disks.truncate(1);
    assert_eq!(live::begin(&moving_vm(json!({})), &without), None, "a disk is to be taken out first");
    let why = live::refusal(&moving_vm(json!({})), &without).expect("it says so");
    assert!(why.contains("serial-v-data"), "{why}");
    let failed = FailedDeparture {
        why: "no room".into(),
        left: Duration::from_secs(9),
        count: 1,
        migration: "m1".into(),
    };
    let mut waits = recorded();
    waits.departure.failure = Some(failed);
    assert_eq!(live::begin(&moving_vm(json!({})), &waits), None, "an attempt has just failed");
    let mut over = recorded();
    over.departure.failure =
        waits.departure.failure.map(|failed| FailedDeparture { left: Duration::ZERO, count: 3, ..failed });
    assert_eq!(live::begin(&moving_vm(json!({})), &over), None, "the controllers choose again first");
    if let Some(failed) = over.departure.failure.as_mut() {
        failed.count = 2;
    }
    assert!(live::begin(&moving_vm(json!({})), &over).is_some(), "the next attempt is due");
}

#[test]
fn a_guest_is_sent_with_the_files_that_a_snapshot_of_its_disks_has_left() {
    let mut observed = recorded();
    let volume = observed.disks[0].volume.as_mut().expect("it has a file");
    volume.path = "/pool/v-1.1.qcow2".into();
    let (id, now) = (volume.id.clone(), volume.path.clone());
    let launched = observed.journal.run.as_ref().and_then(|run| run.machine.as_deref()).expect("recorded");
    let of_start = launched.disks.iter().find(|disk| disk.id == id).map(|disk| disk.file.clone());
    assert!(of_start.is_some_and(|file| file != now), "the file of its start is another one");
    let begun = live::begin(&moving_vm(json!({})), &observed).expect("it can be sent");
    let Some(Step::Depart(leaving)) = begun.steps.last() else { panic!("it is sent") };
    let disk = leaving.machine.disks.iter().find(|disk| disk.id == id).expect("it has the disk");
    assert_eq!(disk.file, now);
}

#[test]
fn nothing_but_the_task_decides_about_a_guest_that_is_being_sent() {
    let sending = leaving(RunState::Running, DeparturePhase::Sending, true);
    assert_eq!(names(&plan(&moving_vm(json!({})), &sending)), [""; 0]);
    for declared in
        [json!({"power": "Stopped"}), json!({"power": "Suspended"}), json!({"restartToken": "again"})]
    {
        assert_eq!(names(&plan(&moving_vm(declared), &sending)), ["CancelDeparture"]);
    }
    assert_eq!(names(&plan(&deleted(moving_vm(json!({}))), &sending)), ["CancelDeparture"]);
    let mut without = sending.clone();
    without.disks.truncate(1);
    assert_eq!(names(&plan(&moving_vm(json!({})), &without)), ["CancelDeparture"], "a disk is taken off");
    let mut ending = sending.clone();
    ending.departure.is_cancelled = true;
    assert_eq!(names(&plan(&moving_vm(json!({"power": "Stopped"})), &ending)), [""; 0], "asked once");
    let handing = leaving(RunState::PostMigrate, DeparturePhase::HandingOver, true);
    assert_eq!(names(&plan(&deleted(moving_vm(json!({}))), &handing)), [""; 0], "it may run there by now");
}

#[test]
fn after_a_restart_of_the_agent_a_guest_goes_on_only_if_the_other_host_was_not_asked_to_start_it() {
    let vm = moving_vm(json!({}));
    for state in [RunState::Running, RunState::Paused, RunState::PostMigrate] {
        let before = leaving(state.clone(), DeparturePhase::Sending, false);
        assert_eq!(names(&plan(&vm, &before)), ["AbandonDeparture"], "{state:?}");
        let after = leaving(state.clone(), DeparturePhase::HandingOver, false);
        assert_eq!(names(&plan(&vm, &after)), ["SettleDeparture"], "{state:?}");
    }
    let ended = off(leaving(RunState::Running, DeparturePhase::HandingOver, false));
    assert_eq!(names(&plan(&vm, &ended)), ["SettleDeparture"], "it is not started again before the answer");
}

#[test]
fn a_guest_that_runs_elsewhere_is_ended_here_and_then_given_up() {
    let vm = moving_vm(json!({}));
    let left = leaving(RunState::PostMigrate, DeparturePhase::HandedOver, false);
    assert_eq!(names(&plan(&vm, &left)), ["EndProcess"]);
    let ended = off(left);
    let plan_of = |observed: &Observed, vm: &VM| plan(vm, observed);
    let recorded = plan_of(&ended, &vm);
    let Some(Step::WriteJournal(journal)) = recorded.steps.first() else { panic!("{recorded:?}") };
    assert_eq!(journal.released.as_ref().map(|released| released.epoch), Some(1));
    assert!(journal.departure.is_some() && journal.run.is_none());
    let released = Observed { journal: (**journal).clone(), ..ended };
    let deleting = plan_of(&released, &deleted(vm.clone()));
    assert_eq!(names(&deleting), [""; 0], "the other host has the guest, and is to end it");
    let reported = status(&vm, &released, &plan_of(&released, &vm).readiness, at(NOW));
    let phase = reported.migration.map(|migration| migration.phase);
    assert_eq!((reported.released_epoch, phase), (Some(1), Some(MigrationPhase::HandedOver)), "in one write");
}

#[test]
fn a_guest_that_has_come_is_the_hosts_once_its_vm_is_bound_here() {
    let arrival = |phase| Arrival { id: "m1-7".into(), from: "h1".into(), phase, volumes: Vec::new() };
    let mut come = present(RunState::Running);
    come.journal = come.journal.with_arrival(Some(arrival(ArrivalPhase::Started)));
    let taken = plan(&vm(json!({})), &come);
    let Some(Step::WriteJournal(journal)) = taken.steps.first() else { panic!("{taken:?}") };
    assert!(journal.arrival.is_none());
    let mut coming = present(RunState::Paused);
    coming.journal = coming.journal.with_arrival(Some(arrival(ArrivalPhase::Receiving)));
    assert_eq!(names(&plan(&vm(json!({})), &coming)), [""; 0], "it is not let run");
}

#[test]
fn the_record_of_a_move_is_withdrawn_only_while_no_guest_is_sent() {
    let vm = moving_vm(json!({}));
    let mut stays = vm.clone();
    stays.status.as_mut().expect("a status").move_epoch = None;
    let idle = present(RunState::Running);
    assert!(live::is_withdrawn(&stays, &idle) && !live::is_withdrawn(&vm, &idle));
    for phase in [DeparturePhase::Sending, DeparturePhase::HandingOver, DeparturePhase::HandedOver] {
        assert!(!live::is_withdrawn(&stays, &leaving(RunState::Running, phase, false)), "{phase:?}");
    }
    let mut given_up = present(RunState::Running);
    let released = Released { epoch: 1, volumes: Default::default() };
    given_up.journal = given_up.journal.with_release(Some(released));
    assert!(!live::is_withdrawn(&stays, &given_up));
}
