//! A VM that is suspended and resumed.

use berth_qemu::block::ObservedCdrom;
use berth_qemu::machine::{Accelerator, Firmware, MachineSpec, ShareSpec, Topology};

use super::*;
use crate::host_shutdown::AtShutdown;
use crate::journal::{LoadedMemory, RunCdrom, Suspension, SuspensionPhase};
use crate::restores::{DueMemory, DueParts};
use crate::start_order::Held;

fn machine() -> MachineSpec {
    let Step::Launch(request) = plan(&vm(json!({})), &ready_to_start())
        .steps
        .into_iter()
        .find(|step| matches!(step, Step::Launch(_)))
        .expect("it starts")
    else {
        panic!("a launch")
    };
    assert_eq!((request.machine.cpus, request.machine.topology), (1, Topology::of_cores(1)));
    assert_eq!(
        (request.machine.accelerator, request.machine.firmware),
        (Accelerator::Tcg { tb_size_mib: 32 }, Firmware::Uefi)
    );
    request.machine
}

fn suspended_vm() -> VM {
    vm(json!({"power": "Suspended"}))
}

fn with(mut observed: Observed, phase: Option<SuspensionPhase>) -> Observed {
    let machine = machine();
    let mut journal = observed.journal.clone();
    journal.run.iter_mut().for_each(|run| run.machine = Some(Box::new(machine.clone())));
    let suspension =
        phase.map(|phase| Suspension { phase, since: at(NOW - 5), machine, cpus: 1, attempts: 0 });
    observed.state_kept = suspension.is_some();
    observed.journal = journal.with_suspension(suspension);
    observed.journal.slots = [("nic0".to_owned(), 0)].into();
    observed.journal.interfaces = vm(json!({})).status.expect("bound").interfaces;
    observed
}

fn running(state: RunState, phase: Option<SuspensionPhase>) -> Observed {
    with(present(state), phase)
}

fn off(phase: SuspensionPhase) -> Observed {
    let mut observed = ready_to_start();
    observed.journal_written = true;
    observed.journal.run = Some(Run { process: None, ..run() });
    with(observed, Some(phase))
}

#[test]
fn a_guest_is_resumed_only_where_its_architecture_may_run() {
    let mut observed = off(SuspensionPhase::Saved);
    let suspension = observed.journal.suspension.as_mut().expect("it is suspended");
    suspension.machine.machine_type = "virt-7.2".to_owned();
    let refused = plan(&vm(json!({})), &observed);
    assert_eq!(stands(&refused), (true, Reason::NotSupported));
    assert!(refused.steps.is_empty() && refused.readiness.message().contains("--emulate aarch64"));
}

#[test]
fn a_resumed_guest_has_the_files_that_a_snapshot_of_its_disks_has_left() {
    let mut observed = off(SuspensionPhase::Saved);
    let volume = observed.disks[0].volume.as_mut().expect("it has a file");
    volume.path = "/pool/v-1.1.qcow2".into();
    let (id, now) = (volume.id.clone(), volume.path.clone());
    let launch = plan(&vm(json!({})), &observed).steps.into_iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine),
        _ => None,
    });
    let machine = launch.expect("it is resumed");
    let disk = machine.disks.iter().find(|disk| disk.id == id).expect("it has the disk");
    assert_eq!(disk.file, now);
    let saved = &observed.journal.suspension.as_ref().expect("it is suspended").machine;
    assert_ne!(saved.disks[0].file, now, "the file of its start");
}

fn transfers(mut observed: Observed, transfer: Transfer) -> Observed {
    let machine = observed.machine.as_mut().expect("present");
    if let Transfer::Failed(why) = &transfer {
        machine.save_failure = Some((at(NOW - 1), why.clone()));
    }
    machine.transfer = transfer;
    observed
}

fn written(plan: &Plan<Step>) -> Journal {
    let journal = plan.steps.iter().find_map(|step| match step {
        Step::WriteJournal(journal) => Some(journal.as_ref().clone()),
        _ => None,
    });
    journal.expect("the journal is written")
}

#[test]
fn a_tpm_without_its_emulator_shares_encryption_and_a_medium_in_a_drive_hold_back_a_suspension_while_the_guest_runs_on()
 {
    let refused = |observed: &Observed| {
        let plan = plan(&suspended_vm(), observed);
        assert_eq!(plan.steps, []);
        match plan.readiness {
            Readiness::Stalled(Reason::SuspendFailed, text) => text,
            other => panic!("{other:?}"),
        }
    };
    let mut encrypted = running(RunState::Running, None);
    let machine = encrypted.machine.as_mut().expect("it runs");
    machine.disks.push(ObservedDisk { is_encrypted: true, ..plugged("v-secret") });
    assert!(refused(&encrypted).contains("encrypted disk"));
    let mut with_tpm = running(RunState::Running, None);
    let run = with_tpm.journal.run.as_mut().expect("it runs");
    run.machine.as_mut().expect("recorded").tpm = true;
    with_tpm.machine.as_mut().expect("it runs").has_tpm = Some(false);
    assert!(refused(&with_tpm).contains("the emulator of its TPM has ended"));
    with_tpm.machine.as_mut().expect("it runs").has_tpm = Some(true);
    let saved = written(&plan(&suspended_vm(), &with_tpm)).suspension.expect("recorded");
    assert!(saved.machine.tpm, "the TPM's memory is a part of the state");

    let mut with_share = running(RunState::Running, None);
    let run = with_share.journal.run.as_mut().expect("it runs");
    run.machine.as_mut().expect("recorded").shares =
        vec![ShareSpec { name: "data".into(), tag: "data".into(), read_only: false }];
    assert!(refused(&with_share).contains("it has shares until the next power cycle"));

    let mut with_medium = running(RunState::Running, None);
    let drive = |node: Option<&str>| ObservedCdrom {
        slot: 0,
        node: node.map(str::to_owned),
        tray_open: false,
        locked: false,
    };
    let machine = |observed: &mut Observed, node| {
        observed.machine.as_mut().expect("present").cdroms = vec![drive(node)]
    };
    machine(&mut with_medium, Some("medium0-aa"));
    assert!(refused(&with_medium).contains("CD-ROM"));
    // The way out that the message names works while the VM is declared Suspended.
    with_medium.journal.run.as_mut().expect("it runs").cdroms =
        vec![RunCdrom { name: "cd".to_owned(), boot_first: false }];
    assert_eq!(names(&plan(&suspended_vm(), &with_medium)), ["ChangeMedium"]);
    machine(&mut with_medium, None);
    assert_eq!(names(&plan(&suspended_vm(), &with_medium)), ["WriteJournal"], "an empty drive does not");
}

#[test]
fn the_machine_is_recorded_before_it_is_saved_and_the_file_is_durable_before_qemu_ends() {
    let first = plan(&suspended_vm(), &running(RunState::Running, None));
    assert_eq!(names(&first), ["WriteJournal"]);
    let recorded = written(&first).suspension.expect("recorded");
    assert_eq!(recorded.phase, SuspensionPhase::Saving);
    assert_eq!(
        recorded.machine.disks.iter().map(|d| d.id.as_str()).collect::<Vec<_>>(),
        ["v-root", "v-data"]
    );
    let saving = Some(SuspensionPhase::Saving);
    assert_eq!(names(&plan(&suspended_vm(), &running(RunState::Running, saving))), ["Save"]);
    let active = transfers(running(RunState::Paused, saving), Transfer::Active);
    assert_eq!(stands(&plan(&suspended_vm(), &active)), (false, Reason::Suspending));
    let done = transfers(running(RunState::PostMigrate, saving), Transfer::Completed);
    let mut plugged_meanwhile = done.clone();
    plugged_meanwhile.machine.as_mut().expect("present").disks.push(plugged("v-extra"));
    let again = plan(&suspended_vm(), &plugged_meanwhile);
    assert_eq!((names(&again), written(&again).suspension), (vec!["RemoveState", "WriteJournal"], None));
    let done = plan(&suspended_vm(), &done);
    assert_eq!(names(&done), ["SealState", "WriteJournal", "EndProcess"]);
    assert_eq!(written(&done).suspension.expect("kept").phase, SuspensionPhase::Saved);
    let ends = plan(&suspended_vm(), &running(RunState::PostMigrate, Some(SuspensionPhase::Saved)));
    assert_eq!(names(&ends), ["EndProcess"]);
}

#[test]
fn a_disk_that_was_plugged_in_is_saved_at_its_place_and_one_that_is_not_known_holds_it_back() {
    let mut observed = running(RunState::Running, None);
    let machine = observed.machine.as_mut().expect("present");
    machine.disks.push(ObservedDisk { target: Some(7), ..plugged("v-extra") });
    assert_eq!(stands(&plan(&suspended_vm(), &observed)), (true, Reason::SuspendFailed));
    observed.attached = vec![disk("extra", false).volume.expect("there")];
    let recorded = written(&plan(&suspended_vm(), &observed)).suspension.expect("recorded");
    let last = recorded.machine.disks.last().expect("disks");
    assert_eq!((last.id.as_str(), last.target), ("v-extra", Some(7)));
}

#[test]
fn a_failed_save_leaves_the_guest_running_and_is_tried_again_later() {
    let failed = Transfer::Failed("no space".to_owned());
    let saving = transfers(running(RunState::Paused, Some(SuspensionPhase::Saving)), failed.clone());
    let given_up = plan(&suspended_vm(), &saving);
    assert_eq!(names(&given_up), ["RemoveState", "WriteJournal"]);
    assert_eq!(written(&given_up).suspension, None);
    let mut paused = transfers(running(RunState::Paused, None), failed.clone());
    assert_eq!(names(&plan(&suspended_vm(), &paused)), ["Start"]);
    let runs = plan(&suspended_vm(), &transfers(running(RunState::Running, None), failed));
    assert_eq!(stands(&runs), (true, Reason::SuspendFailed));
    assert!(runs.readiness.message().contains("no space") && runs.requeue_after.is_some(), "{runs:?}");
    for again in [NOW + 60, NOW - 3600] {
        paused.now = at(again);
        assert_eq!(names(&plan(&suspended_vm(), &paused)), ["WriteJournal"], "it is tried again");
    }
}

#[test]
fn a_save_that_did_not_complete_is_cancelled_also_if_qemu_has_ended_it() {
    for (transfer, steps) in [
        (Transfer::Failed("no space".to_owned()), vec!["RemoveState", "WriteJournal"]),
        (Transfer::Idle, vec!["RemoveState", "WriteJournal"]),
        (Transfer::Active, vec!["CancelSave", "RemoveState", "WriteJournal"]),
    ] {
        let ended = transfers(running(RunState::PostMigrate, Some(SuspensionPhase::Saving)), transfer);
        let cancelled = plan(&suspended_vm(), &ended);
        assert_eq!(names(&cancelled), steps, "the file is incomplete");
        assert_eq!(written(&cancelled).suspension, None);
    }
    let failed = transfers(running(RunState::PostMigrate, None), Transfer::Failed("no space".to_owned()));
    assert_eq!(names(&plan(&suspended_vm(), &failed)), ["Start", "RemoveState"], "the guest goes on");
}

#[test]
fn a_vm_that_is_to_run_again_before_it_was_saved_runs_on() {
    let active = transfers(running(RunState::Paused, Some(SuspensionPhase::Saving)), Transfer::Active);
    let cancelled = plan(&vm(json!({})), &active);
    assert_eq!(names(&cancelled), ["CancelSave", "RemoveState", "WriteJournal"]);
    let saved = plan(&vm(json!({})), &running(RunState::PostMigrate, Some(SuspensionPhase::Saving)));
    assert_eq!(names(&saved), ["RemoveState", "WriteJournal"]);
    assert_eq!(names(&plan(&vm(json!({})), &running(RunState::PostMigrate, None))), ["Start", "RemoveState"]);
    let let_go = running(RunState::Running, Some(SuspensionPhase::Saved));
    assert_eq!(
        names(&plan(&suspended_vm(), &let_go)),
        ["RemoveState", "WriteJournal"],
        "the file is outdated"
    );
}

#[test]
fn a_suspended_vm_has_no_qemu_and_is_not_started_by_itself() {
    for power in ["Suspended", "Stopped"] {
        let observed = off(SuspensionPhase::Saved);
        let rests = plan(&vm(json!({"power": power})), &observed);
        assert_eq!(stands(&rests), (false, Reason::Suspended));
        let reported = status(&suspended_vm(), &observed, &rests.readiness, at(NOW));
        assert_eq!(reported.state, Some(VMState::Suspended));
    }
    let gated: VM = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "annotations": {"poweron.check.berth.dev/b": "copies"}},
        "spec": vm(json!({})).spec, "status": vm(json!({})).status,
    }))
    .expect("a VM");
    assert_eq!(stands(&plan(&gated, &off(SuspensionPhase::Saved))), (false, Reason::PowerOnHeld));
    let draining = Observed { draining: true, ..off(SuspensionPhase::Saved) };
    assert_eq!(stands(&plan(&vm(json!({})), &draining)), (false, Reason::HostDraining));
    let shut_down = Observed { at_shutdown: Some(AtShutdown::Stop), ..draining };
    let held = plan(&vm(json!({})), &shut_down);
    assert_eq!(stands(&held), (false, Reason::HostShuttingDown));
    assert!(held.readiness.message().ends_with("it is resumed when the host has booted"));
}

#[test]
fn a_resumed_guest_runs_only_after_its_file_is_gone() {
    let launched = plan(&vm(json!({"class": "large"})), &off(SuspensionPhase::Saved));
    assert_eq!(names(&launched), ["WriteJournal", "EnsureNetworks", "MakeTap", "Launch"]);
    let Some(Step::Launch(request)) = launched.steps.last() else { panic!("a launch") };
    assert!(request.from_saved_state && request.machine == machine(), "as it was saved");
    let resuming = Some(SuspensionPhase::Resuming);
    assert_eq!(names(&plan(&vm(json!({})), &running(RunState::InMigrate, resuming))), ["Load"]);
    let loaded = plan(&vm(json!({})), &running(RunState::Paused, resuming));
    assert_eq!(names(&loaded), ["RemoveState", "WriteJournal", "Start", "SetClock"]);
    assert_eq!(written(&loaded).suspension, None);
    let paused = plan(&vm(json!({"power": "Paused"})), &running(RunState::Paused, resuming));
    assert_eq!(names(&paused), ["RemoveState", "WriteJournal"]);
    let again = plan(&suspended_vm(), &running(RunState::Paused, resuming));
    assert_eq!(names(&again), ["EndProcess"], "it did not run: its file is still its state");
}

#[test]
fn a_state_that_was_used_or_is_incomplete_is_never_used_again() {
    let consumed = Observed { state_kept: false, ..off(SuspensionPhase::Resuming) };
    for observed in [consumed, off(SuspensionPhase::Saving)] {
        let lost = plan(&vm(json!({})), &observed);
        assert_eq!(names(&lost), ["RemoveState", "WriteJournal"]);
        let journal = written(&lost);
        let ended = journal.run.and_then(|run| run.ended).expect("it ended");
        assert!(journal.suspension.is_none() && !ended.orderly, "{ended:?}");
    }
}

#[test]
fn a_state_that_qemu_does_not_load_is_kept_for_a_person() {
    let mut observed = off(SuspensionPhase::Resuming);
    observed.last_words = Some("bad section".to_owned());
    observed.journal.suspension.as_mut().expect("set").attempts = 3;
    let stuck = plan(&vm(json!({})), &observed);
    assert_eq!(stands(&stuck), (true, Reason::ResumeFailed));
    assert!(stuck.readiness.message().contains("bad section"), "{stuck:?}");
    assert_eq!(status(&vm(json!({})), &observed, &stuck.readiness, at(NOW)).state, Some(VMState::Suspended));
    // Tried anew after it was declared suspended.
    let anew = plan(&suspended_vm(), &observed);
    assert_eq!(written(&anew).suspension.map(|s| (s.phase, s.attempts)), Some((SuspensionPhase::Saved, 0)));
    // Discarded by another token.
    let fresh = plan(&vm(json!({"restartToken": "2"})), &observed);
    assert_eq!(names(&fresh), ["WriteJournal", "RemoveState"]);
    let journal = written(&fresh);
    assert_eq!((journal.suspension, journal.run), (None, None));
    let gone = Observed { state_kept: false, ..off(SuspensionPhase::Saved) };
    assert_eq!(stands(&plan(&vm(json!({})), &gone)), (true, Reason::ResumeFailed));
    let full = Observed { free_memory: Some(1 << 20), ..off(SuspensionPhase::Saved) };
    assert_eq!(stands(&plan(&vm(json!({})), &full)), (false, Reason::Unschedulable));
}

#[test]
fn a_suspended_guest_waits_for_its_turn_after_a_boot_of_its_host() {
    let vm = vm(json!({}));
    let saved = || off(SuspensionPhase::Saved);
    let look_again = Duration::from_secs(1);
    let held = Observed { held: Some(Held { behind: 1, look_again }), ..saved() };
    let waits = plan(&vm, &held);
    assert_eq!((stands(&waits), waits.requeue_after), ((false, Reason::StartOrderHeld), Some(look_again)));
    assert_eq!(status(&vm, &held, &waits.readiness, at(NOW)).state, Some(VMState::Suspended));
    assert!(names(&plan(&vm, &saved())).contains(&"Launch"), "its turn has come");
}

#[test]
fn a_guest_whose_memory_does_not_fit_is_shut_down_before_its_host_is_drained() {
    let no_room = |observed: Observed| Observed { draining: true, no_room: true, ..observed };
    let begun = plan(&suspended_vm(), &no_room(running(RunState::Running, None)));
    let stop = written(&begun).stop.expect("its stop begins");
    assert_eq!((stop.why, begun.steps.len()), (StopReason::PowerOff, 1));
    let saving = plan(&suspended_vm(), &no_room(running(RunState::Running, Some(SuspensionPhase::Saving))));
    assert_eq!((names(&saving), written(&saving).suspension), (vec!["RemoveState", "WriteJournal"], None));
}

#[test]
fn a_vm_that_is_off_has_nothing_to_suspend_and_a_deleted_one_keeps_nothing() {
    assert_eq!(stands(&plan(&suspended_vm(), &ready_to_start())), (false, Reason::Stopped));
    let removed = plan(&deleted(suspended_vm()), &off(SuspensionPhase::Saved));
    assert_eq!(names(&removed), ["RemoveInstance"]);
    let resuming = running(RunState::InMigrate, Some(SuspensionPhase::Resuming));
    assert_eq!(names(&plan(&deleted(vm(json!({}))), &resuming)), ["EndProcess"]);
}

/// A VM that is off, whose disks were restored from a snapshot with memory.
fn restored() -> Observed {
    let memory = DueMemory {
        id: "s-1".into(),
        restore: LoadedMemory { snapshot: "before".into(), token: None },
        run: Run { enrolls: true, ..run() },
        machine: machine(),
    };
    let ready = ready_to_start();
    let journal = ready.journal.clone().with_slots(["nic0"].into_iter());
    Observed { memory: Some(Ok(Box::new(memory))), journal, journal_written: true, ..ready }
}

#[test]
fn a_restored_guest_goes_on_with_its_memory_as_one_that_was_suspended_and_once() {
    let vm = vm(json!({"restartToken": "2"}));
    let mut off = restored();
    off.journal.enrolled = Some(Default::default());
    let first = plan(&vm, &off);
    assert_eq!(names(&first), ["LayState", "WriteJournal"], "the state is there before it counts");
    let journal = written(&first);
    assert!(journal.is_suspended() && journal.loaded.is_some());
    let place = |name: &str| journal.disk_places.get(name).map(|place| place.number);
    assert_eq!((place("root"), place("data")), (Some(0), Some(1)), "those of the machine");
    let run = journal.run.as_ref().expect("that of the snapshot");
    assert_eq!((run.process.as_ref(), run.token.as_deref()), (None, Some("2")), "it is not discarded again");
    let enrolls = (journal.enrolled.as_ref(), run.enrolls);
    assert_eq!(enrolls, (None, false), "the state has the keys of its moment");
    let next = Observed { journal, state_kept: true, memory: None, ..restored() };
    let launched = plan(&vm, &next);
    let Some(Step::Launch(request)) = launched.steps.last() else { panic!("{launched:?}") };
    assert!(request.from_saved_state && request.machine == machine());
}

#[test]
fn a_guest_whose_memory_cannot_be_loaded_or_whose_disks_are_not_restored_yet_is_not_booted() {
    let refused = Observed { memory: Some(Err("no".into())), ..restored() };
    assert_eq!(stands(&plan(&vm(json!({})), &refused)), (true, Reason::RestoreRefused));
    let mut being_restored = restored();
    being_restored.disks[1].restores_first = true;
    assert_eq!(stands(&plan(&vm(json!({})), &being_restored)), (false, Reason::WaitingForDisk));
    let due = VmRestore::Due(DueParts { memory: true, ..DueParts::default() });
    let due = Observed { restore: due, memory: None, ..restored() };
    assert_eq!(stands(&plan(&vm(json!({})), &due)), (false, Reason::WaitingForDisk));
}

#[test]
fn a_guest_that_is_paused_for_a_snapshot_is_left_alone_whatever_is_declared() {
    for state in [RunState::Paused, RunState::PostMigrate] {
        for vm in [vm(json!({})), vm(json!({"power": "Stopped"})), suspended_vm(), deleted(vm(json!({})))] {
            let observed = Observed { is_saving: true, ..running(state.clone(), None) };
            let waits = plan(&vm, &observed);
            assert_eq!((names(&waits), stands(&waits)), (vec![], (false, Reason::Paused)));
            assert!(waits.requeue_after.is_some());
        }
    }
    let about_to_be = Observed { is_saving: true, ..running(RunState::Running, None) };
    let waits = plan(&vm(json!({"power": "Stopped"})), &about_to_be);
    assert!(waits.steps.is_empty() && waits.requeue_after.is_some(), "nothing is begun: {waits:?}");
    assert_ne!(waits.readiness.reason(), Reason::Paused, "it runs");
}

fn any_phase() -> impl Strategy<Value = Option<SuspensionPhase>> {
    use SuspensionPhase::{Resuming, Saved, Saving};
    prop::sample::select(vec![None, Some(Saving), Some(Saved), Some(Resuming)])
}

proptest! {
    /// Whatever is declared and whatever QEMU reports: no guest runs while a file holds its state.
    #[test]
    fn no_guest_is_let_run_while_its_state_is_kept(
        state in prop::sample::select(vec![RunState::InMigrate, RunState::PostMigrate, RunState::Paused, RunState::Running]),
        phase in any_phase(),
        power in prop::sample::select(vec!["Running", "Stopped", "Paused", "Suspended"]),
        is_present in any::<bool>(),
        is_deleted in any::<bool>(),
        draining in any::<bool>(),
        is_reachable in any::<bool>(),
    ) {
        let mut observed = match (is_present, phase) {
            (false, Some(phase)) => off(phase),
            _ => running(state, phase),
        };
        observed.draining = draining;
        if !is_reachable {
            observed.machine = None;
        }
        let object = vm(json!({"power": power}));
        let plan = plan(&if is_deleted { deleted(object) } else { object }, &observed);
        let steps = names(&plan);
        let removed = steps.iter().position(|step| *step == "RemoveState");
        let started = steps.iter().position(|step| *step == "Start");
        if observed.state_kept && phase != Some(SuspensionPhase::Saving) && let Some(started) = started {
            prop_assert!(removed.is_some_and(|removed| removed < started), "{steps:?}");
        }
        if let Some(Step::Launch(request)) = plan.steps.last() {
            prop_assert!(request.from_saved_state || !observed.journal.is_suspended(), "{steps:?}");
        }
    }
}
