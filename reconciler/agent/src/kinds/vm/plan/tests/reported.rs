//! The operation, the time of the last change and the facts about the process in the status of a VM.

use berth_api::vm::{VMOperation, VMOperationName};
use berth_host::ProcessDetails;

use super::super::super::declared_disks::DiskWork;
use super::*;
use crate::journal::{Stop, StopReason, Suspension, SuspensionPhase};
use crate::restores::DueParts;

fn operation_of(vm: &VM, observed: &Observed, at: Timestamp) -> Option<VMOperation> {
    let readiness = plan(vm, observed).readiness;
    status(vm, observed, &readiness, at).operation.map(|operation| *operation)
}

fn name(spec: Value, observed: &Observed) -> Option<VMOperationName> {
    operation_of(&vm(spec), observed, at(NOW)).map(|operation| operation.name)
}

/// An observation of a machine in this state whose launch is recorded, in this phase of a suspension.
fn suspending(state: RunState, phase: SuspensionPhase) -> Observed {
    let planned = plan(&vm(json!({})), &ready_to_start());
    let launch = planned.steps.into_iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine),
        _ => None,
    });
    let machine = launch.expect("it starts");
    let mut observed = present(state);
    let suspension = Suspension { phase, since: at(NOW - 5), machine, cpus: 1, attempts: 0 };
    observed.journal = observed.journal.with_suspension(Some(suspension));
    observed.state_kept = true;
    observed
}

fn waits_for(work: DiskWork) -> Observed {
    let mut observed = ready_to_start();
    let root = observed.disks.first_mut().expect("a disk");
    root.problem = Some("Pulling: Image debian is being downloaded".into());
    root.volume = None;
    root.work = Some(work);
    observed
}

#[test]
fn a_vm_has_an_operation_only_while_there_is_one() {
    assert_eq!(name(json!({}), &present(RunState::Running)), None);
    assert_eq!(name(json!({"power": "Paused"}), &present(RunState::Paused)), None);
    assert_eq!(name(json!({"power": "Paused"}), &present(RunState::Prelaunch)), None, "as declared");
    assert_eq!(name(json!({"power": "Stopped"}), &ready_to_start()), None);
    assert_eq!(name(json!({}), &ready_to_start()), Some(VMOperationName::Start));
    assert_eq!(name(json!({}), &present(RunState::Prelaunch)), Some(VMOperationName::Start));
    let restoring = Observed { restore: VmRestore::Due(DueParts::default()), ..ready_to_start() };
    assert_eq!(name(json!({"power": "Stopped"}), &restoring), Some(VMOperationName::Restore));
}

#[test]
fn a_save_has_the_time_of_its_record_and_its_progress_in_tenths() {
    let mut observed = suspending(RunState::Paused, SuspensionPhase::Saving);
    let machine = observed.machine.as_mut().expect("present");
    (machine.transfer, machine.saved_percent) = (Transfer::Active, Some(57));
    let found = operation_of(&vm(json!({"power": "Suspended"})), &observed, at(NOW + 10));
    let suspend = VMOperationName::Suspend;
    assert_eq!(found, Some(VMOperation { name: suspend, started_at: at(NOW - 5), percent: Some(50) }));
    let loading = suspending(RunState::InMigrate, SuspensionPhase::Resuming);
    assert_eq!(name(json!({}), &loading), Some(VMOperationName::Resume));
    let saving = Observed { is_saving: true, ..present(RunState::Paused) };
    assert_eq!(name(json!({}), &saving), Some(VMOperationName::Snapshot));
    let about_to = Observed { is_saving: true, ..present(RunState::Running) };
    assert_eq!(name(json!({}), &about_to), None, "it would cost a write of its own");
}

#[test]
fn a_stop_is_one_until_it_is_cancelled() {
    let stopping = |cancelled: bool| {
        let mut observed = present(RunState::Running);
        let (why, since) = (StopReason::PowerOff, at(NOW - 3));
        observed.journal.stop = Some(Stop { why, since, released: None, asked: 1, cancelled });
        observed
    };
    let found = operation_of(&vm(json!({"power": "Stopped"})), &stopping(false), at(NOW));
    let stop = VMOperationName::Stop;
    assert_eq!(found, Some(VMOperation { name: stop, started_at: at(NOW - 3), percent: None }));
    assert_eq!(name(json!({}), &stopping(true)), None);
}

#[test]
fn the_progress_of_a_download_costs_few_writes_and_alone_is_held_back() {
    let mut object = vm(json!({}));
    let work = |percent| DiskWork { operation: VMOperationName::Download, percent };
    let waiting = plan(&object, &waits_for(work(None)));
    assert_eq!(stands(&waiting), (false, Reason::WaitingForDisk));
    assert_eq!(waiting.requeue_after, Some(Duration::from_secs(10)));

    let report = |object: &VM, percent, at| {
        let observed = waits_for(work(percent));
        status(object, &observed, &plan(object, &observed).readiness, at)
    };
    let first = report(&object, Some(30), at(NOW));
    let download = VMOperationName::Download;
    let begun = VMOperation { name: download, started_at: at(NOW), percent: None };
    assert_eq!(first.operation.as_deref(), Some(&begun));
    object.status = Some(first.clone());
    assert_eq!(report(&object, Some(90), at(NOW + 9)), first, "a short one has no progress");
    assert_eq!(report(&object, Some(9), at(NOW + 60)), first, "a tenth is worth a write");
    let later = report(&object, Some(45), at(NOW + 60));
    assert_eq!(later.operation.as_deref(), Some(&VMOperation { percent: Some(40), ..begun }));
    assert_eq!(without_progress(&first, &later), first);

    let within = |second: i64| Timestamp::from_millisecond(second * 1000 + 700).expect("small");
    let mut object = vm(json!({}));
    let first = report(&object, None, within(NOW));
    object.status = Some(first.clone());
    let percent = |status: VMStatus| status.operation.and_then(|operation| operation.percent);
    assert_eq!(first.operation.as_deref().map(|operation| operation.started_at), Some(at(NOW)));
    assert_eq!(percent(report(&object, Some(20), within(NOW + 10))), Some(20), "when it is looked at next");
}

/// The VM with the status that it has with this observation.
fn reported(object: &VM, observed: &Observed, at: Timestamp) -> VM {
    let readiness = plan(object, observed).readiness;
    VM { status: Some(status(object, observed, &readiness, at)), ..object.clone() }
}

fn reconfigured_at(object: &VM) -> Option<Timestamp> {
    object.status.as_ref().and_then(|status| status.last_reconfigured)
}

#[test]
fn a_change_that_is_applied_has_a_time_and_a_start_as_before_has_none() {
    let running = |cpus: i64, vsock_cid: u32| {
        let mut observed = present(RunState::Running);
        let Step::WriteJournal(journal) = plan(&vm(json!({})), &ready_to_start())
            .steps
            .into_iter()
            .find(|step| matches!(step, Step::WriteJournal(_)))
            .expect("it starts")
        else {
            panic!("a journal")
        };
        observed.journal = *journal;
        let run = observed.journal.run.as_mut().expect("it starts");
        (run.cpus, run.process) = (cpus, Some(identity()));
        run.machine.as_mut().expect("recorded").extras.vsock_cid = Some(vsock_cid);
        observed
    };
    let first = reported(&vm(json!({})), &running(1, 65_536), at(NOW));
    assert!(first.status.as_ref().is_some_and(|status| status.hardware.is_some()));
    assert_eq!(reconfigured_at(&first), None, "its first start");
    let again = reported(&first, &running(1, 70_000), at(NOW + 10));
    assert_eq!(reconfigured_at(&again), None, "only the number that its host gives is another one");
    let grown = reported(&again, &running(2, 70_000), at(NOW + 20));
    assert_eq!(reconfigured_at(&grown), Some(at(NOW + 20)));
    let same = reported(&grown, &running(2, 70_000), at(NOW + 30));
    assert_eq!(reconfigured_at(&same), Some(at(NOW + 20)));

    let mut less = running(2, 70_000);
    less.machine.as_mut().expect("present").disks.retain(|disk| disk.id != "v-data");
    let unplugged = reported(&same, &less, at(NOW + 40));
    assert_eq!(reconfigured_at(&unplugged), Some(at(NOW + 40)));
    let silent = Observed { machine: None, ..running(2, 70_000) };
    let silent = reported(&unplugged, &silent, at(NOW + 50));
    assert_eq!(reconfigured_at(&silent), Some(at(NOW + 40)), "it does not answer: nothing is known");
    let limited = CpuTime { limit: Some(1500), ..CpuTime::default() };
    let limited = Observed { cpu_time: Some(limited), wanted_cpu_time: limited, ..less };
    let limited = reported(&unplugged, &limited, at(NOW + 60));
    assert_eq!(reconfigured_at(&limited), Some(at(NOW + 60)));
}

#[test]
fn the_facts_of_a_process_are_kept_while_it_runs_and_those_of_another_one_are_not() {
    let facts = |object: &VM| object.status.as_ref().map(|status| status.facts.clone()).unwrap_or_default();
    let details =
        ProcessDetails { cgroup: Some(format!("/berth/{}", "x".repeat(400))), vhost_net: Some(true) };
    let seen = Observed { details: Some(details), ..present(RunState::Running) };
    let first = reported(&vm(json!({})), &seen, at(NOW));
    assert_eq!(facts(&first).get("qemuVersion").map(String::as_str), Some("7.2.0"));
    assert_eq!(facts(&first).get("cgroup").map(String::len), Some(256));
    assert_eq!(facts(&first).get("vhostNet"), None, "no cards are recorded");
    let later = Observed { machine: None, ..present(RunState::Running) };
    assert_eq!(facts(&reported(&first, &later, at(NOW))), facts(&first), "they are not read again");
    let mut another = later;
    another.process.as_mut().expect("present").identity.pid = 43;
    assert!(facts(&reported(&first, &another, at(NOW))).is_empty());
    let off = Observed { process: None, machine: None, ..another };
    assert!(facts(&reported(&first, &off, at(NOW))).is_empty());
}
