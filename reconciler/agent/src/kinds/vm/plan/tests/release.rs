//! A VM that moves to another host, and is given up.

use std::collections::BTreeSet;

use super::*;
use crate::host_shutdown::AtShutdown;
use crate::journal::Released;

/// A VM of binding 1 that is to move, and is off.
fn moving(spec: Value, status: Value) -> (VM, Observed) {
    let mut vm = vm(spec);
    let known = vm.status.as_mut().expect("a status");
    known.admitted_epoch = Some(1);
    known.move_epoch = status["moveEpoch"].as_i64();
    known.released_epoch = status["releasedEpoch"].as_i64();
    let journal = Journal::new(&vm);
    (vm, Observed { journal, journal_written: true, ..ready_to_start() })
}

fn written(plan: &Plan<Step>) -> Option<Journal> {
    plan.steps.iter().rev().find_map(|step| match step {
        Step::WriteJournal(journal) => Some((**journal).clone()),
        _ => None,
    })
}

#[test]
fn it_is_given_up_once_it_is_off_and_never_started_under_that_binding() {
    for power in ["Stopped", "Running"] {
        let (mut vm, mut observed) = moving(json!({"power": power}), json!({"moveEpoch": 1}));
        observed.taps = vec!["bt0".into()];
        let first = plan(&vm, &observed);
        assert_eq!(names(&first), ["RemoveTap", "WriteJournal"], "{power}");
        assert_eq!(
            status(&vm, &observed, &first.readiness, at(NOW)).released_epoch,
            None,
            "not before it is written"
        );
        observed.journal = written(&first).expect("a journal");
        observed.taps.clear();
        let released = observed.journal.released.clone().expect("given up");
        assert_eq!(released, Released { epoch: 1, volumes: ["v-root", "v-data"].map(str::to_owned).into() });
        let second = plan(&vm, &observed);
        assert_eq!((names(&second), second.readiness.reason()), (Vec::new(), Reason::Moving));
        let reported = status(&vm, &observed, &second.readiness, at(NOW));
        assert_eq!((reported.released_epoch, reported.state), (Some(1), Some(VMState::Stopped)));
        // The request is withdrawn, or the VM is declared otherwise: it stays given up.
        vm.spec.power = Power::Running;
        vm.status.as_mut().expect("a status").move_epoch = None;
        assert_eq!(names(&plan(&vm, &observed)), [""; 0]);
    }
}

#[test]
fn its_firmware_state_is_copied_into_the_shared_pool_before_it_is_given_up() {
    let (vm, observed) = moving(json!({"power": "Stopped"}), json!({"moveEpoch": 1}));
    let observed = Observed { copies_firmware: true, ..observed };
    assert_eq!(names(&plan(&vm, &observed)), ["CopyFirmware", "WriteJournal"]);
}

#[test]
fn a_report_that_was_read_back_counts_without_a_journal() {
    let (vm, observed) = moving(json!({}), json!({"releasedEpoch": 1}));
    let observed = Observed { journal_written: false, ..observed };
    assert_eq!(names(&plan(&vm, &observed)), [""; 0]);
}

#[test]
fn what_is_not_to_move_or_not_off_as_declared_is_not_given_up() {
    let (vm, observed) = moving(json!({"power": "Stopped"}), json!({"moveEpoch": 2}));
    assert_eq!(written(&plan(&vm, &observed)), None, "another binding is to be left");
    let (vm, observed) = moving(json!({"power": "Stopped"}), json!({"moveEpoch": 1}));
    let shut_down = Observed { at_shutdown: Some(AtShutdown::Stop), draining: true, ..observed.clone() };
    assert_eq!(written(&plan(&vm, &shut_down)).and_then(|journal| journal.released), None);
    let running = plan(&vm, &Observed { journal: observed.journal.clone(), ..present(RunState::Running) });
    assert_eq!(written(&running).and_then(|journal| journal.released), None);
    // The next host could not take the file.
    let mut continues = observed.clone();
    continues.disks[0].volume.as_mut().expect("a file").path = "/v-root.1.qcow2".into();
    assert_eq!(written(&plan(&vm, &continues)).and_then(|journal| journal.released), None);
    // A guest that ended by itself is started where it is.
    let (vm, mut observed) = moving(json!({}), json!({"moveEpoch": 1}));
    let crashed = Ended { at: at(NOW - 1), orderly: false, how: "crash".into(), out_of_memory: false };
    observed.journal.run = Some(Run { process: None, ended: Some(crashed), ..run() });
    assert_eq!(written(&plan(&vm, &observed)).and_then(|journal| journal.released), None);
}

#[test]
fn a_vm_that_comes_back_has_a_greater_epoch_and_is_started() {
    let (mut vm, mut observed) = moving(json!({}), json!({"releasedEpoch": 1}));
    let volumes = BTreeSet::from(["v-root".to_owned()]);
    let released = Released { epoch: 1, volumes };
    observed.journal = observed.journal.with_release(Some(released));
    let known = vm.status.as_mut().expect("a status");
    known.binding.as_mut().expect("bound").epoch = 2;
    assert!(!known.is_admitted(), "it is admitted anew");
    known.admitted_epoch = Some(2);
    let back = plan(&vm, &observed);
    assert_eq!(names(&back), ["RemoveStale", "WriteJournal"], "nothing of an earlier stay is started on");
    let journal = written(&back).expect("a journal");
    assert_eq!((journal.released.is_none(), journal.epoch), (true, 2));
    observed.journal = journal;
    assert!(names(&plan(&vm, &observed)).contains(&"Launch"));
}

#[test]
fn a_running_vm_that_is_to_move_says_that_it_needs_a_power_cycle() {
    let (vm, _) = moving(json!({}), json!({"moveEpoch": 1}));
    let running = present(RunState::Running);
    let reported = status(&vm, &running, &plan(&vm, &running).readiness, at(NOW));
    assert!(
        reported.pending_power_cycle.contains(&"placement".to_owned()),
        "{:?}",
        reported.pending_power_cycle
    );
}
