use std::sync::Arc;
use std::time::Duration;

use berth_api::{VM, VMState};
use berth_qemu::block::ObservedDisk;
use berth_qemu::hypervisor::ProcessIdentity;
use berth_qemu::machine::{Accelerator, Format};
use berth_qemu::power::RunState;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::admission::Admission;
use super::super::journal::{Ended, Journal, Run};
use super::super::observe::{DiskSeen, PublicSeen, User};
use super::super::seed::Bootstrap;
use super::super::status::status;
use super::*;
use crate::machine::{GuestFacts, Look};
use crate::system::{HostFacts, KvmFacts, ProcessFacts, QemuFacts, VolumeFacts, VolumeOwner};

const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("small")
}

fn vm(spec: Value) -> VM {
    let mut whole = json!({"class": "small", "disks": [{"name": "root", "boot": true}, {"name": "data"}]});
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        whole[key] = value;
    }
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "generation": 4},
        "spec": whole,
        "status": {"observedGeneration": 1, "instanceID": "i-0123456789ab", "binding": {"host": "h", "epoch": 1},
            "interfaces": [{"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:02", "address": "10.77.0.2"}]},
    }))
    .expect("a VM")
}

fn deleted(mut vm: VM) -> VM {
    vm.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(NOW)));
    vm
}

fn disk(name: &str, boot: bool) -> DiskSeen {
    let id = format!("v-{name}");
    let volume = VolumeFacts {
        pool: "default".into(),
        id: id.clone(),
        size: 1 << 30,
        base: None,
        owner: VolumeOwner { namespace: "ns".into(), name: name.into(), image: None },
        path: format!("/{id}.qcow2").into(),
        format: Format::Qcow2,
        backing: None,
    };
    DiskSeen {
        name: name.into(),
        boot,
        volume: Some(volume),
        volume_id: Some(id),
        serial: format!("serial-{name}"),
        user: User::ThisVm,
        problem: None,
        reported: true,
    }
}

fn host() -> HostFacts {
    let qemu = QemuFacts {
        version: "7.2.0".into(),
        machine_type: "pc-q35-7.2".into(),
        cpu_model: "max".into(),
        uefi: true,
    };
    HostFacts {
        cpus: 4,
        memory_bytes: 8 << 30,
        storage_total_bytes: 1 << 40,
        storage_free_bytes: 1 << 40,
        qemu: Ok(qemu),
        kvm: KvmFacts { usable: false, reason: String::new(), mips: None },
        accelerator: Accelerator::Tcg { tb_size_mib: 32 },
        address: None,
        mtu: None,
        overhead_bytes: 80 << 20,
    }
}

/// Everything is there and QEMU is not.
fn ready_to_start() -> Observed {
    let class = json!({"metadata": {"name": "small"}, "spec": {"cpus": 1, "memory": "512Mi"}});
    Observed {
        now: at(NOW),
        instance: "i-0123456789ab".into(),
        admission: Admission::Done,
        journal: Journal::new(&vm(json!({}))),
        journal_written: false,
        journal_problem: None,
        process: None,
        look: None,
        unreachable: None,
        guest: GuestFacts::default(),
        lease_taken: false,
        class: Some(Arc::new(serde_json::from_value(class).expect("a class"))),
        disks: vec![disk("root", true), disk("data", false)],
        attachments: Default::default(),
        mounts: Default::default(),
        missing_networks: Vec::new(),
        mtus: [("berth-shared/default".to_owned(), 1500)].into(),
        public: Vec::new(),
        bootstrap: Bootstrap::Inline,
        host: Some(host()),
        free_memory: Some(1 << 30),
        taps: Vec::new(),
        still_user: false,
        draining: false,
    }
}

fn identity() -> ProcessIdentity {
    ProcessIdentity { pid: 42, start_time: 1, boot_id: "b".into() }
}

fn run() -> Run {
    Run {
        class: "small".into(),
        cpus: 1,
        memory_bytes: 512 << 20,
        firmware: "UEFI".into(),
        boot_volume: "v-root".into(),
        interfaces: None,
        token: None,
        process: Some(identity()),
        started_at: Some(at(NOW - 100)),
        ended: None,
    }
}

#[test]
fn an_interface_that_changed_waits_for_the_next_start_and_is_named() {
    let started = vm(json!({"networkInterfaces": [{"name": "nic0"}]}));
    let steps = plan(&started, &ready_to_start()).steps;
    let journal = steps.iter().find_map(|step| match step {
        Step::Note(journal) if journal.run.is_some() => Some((**journal).clone()),
        _ => None,
    });
    let journal = journal.expect("a start is noted");
    let run = journal.run.clone().expect("just looked");
    assert_eq!(run.interfaces, Some(vec!["nic0/52:54:00:00:00:02".to_owned()]));
    assert!(unsynced_interfaces(&run, &started, &journal).is_empty());
    let mut more = vm(json!({"networkInterfaces": [{"name": "nic0"}, {"name": "nic1"}]}));
    let interfaces = &mut more.status.as_mut().expect("bound").interfaces;
    let second = berth_api::vm::InterfaceStatus {
        name: "nic1".into(),
        mac_address: "52:54:00:00:00:03".into(),
        ..interfaces[0].clone()
    };
    interfaces.push(second);
    assert_eq!(unsynced_interfaces(&run, &more, &journal), ["nic1"]);
    assert_eq!(unsynced_interfaces(&run, &vm(json!({"networkInterfaces": []})), &journal), ["nic0"]);
    let old = Run { interfaces: None, ..run };
    assert!(
        unsynced_interfaces(&old, &more, &journal).is_empty(),
        "what an older agent started is not known"
    );
}

fn plugged(id: &str) -> ObservedDisk {
    ObservedDisk {
        id: id.into(),
        node: Some(id.into()),
        serial: format!("serial-{id}"),
        file: None,
        size: 1 << 30,
        read_only: false,
        target: Some(0),
        io_error: false,
    }
}

/// QEMU is there, in this state, with both disks.
fn present(state: RunState) -> Observed {
    let look =
        Look { state, disks: vec![plugged("v-data"), plugged("v-root")], ending: None, resumed_at: None };
    Observed {
        journal: Journal { run: Some(run()), ..Journal::new(&vm(json!({}))) },
        journal_written: true,
        process: Some(ProcessFacts { identity: identity(), started_at: at(NOW - 100) }),
        look: Some(look),
        guest: GuestFacts { agent: true, ..GuestFacts::default() },
        host: None,
        ..ready_to_start()
    }
}

fn names(plan: &Plan<Step>) -> Vec<&'static str> {
    let name = |step: &Step| match step {
        Step::Note(_) => "Note",
        Step::EnsureNetworks => "EnsureNetworks",
        Step::MakeTap(_) => "MakeTap",
        Step::Launch(_) => "Launch",
        Step::Start => "Start",
        Step::Plug { .. } => "Plug",
        Step::Unplug { .. } => "Unplug",
        Step::PressPowerButton => "PressPowerButton",
        Step::AskGuestToShutDown => "AskGuestToShutDown",
        Step::EndProcess => "EndProcess",
        Step::RemoveTap(_) => "RemoveTap",
        Step::RemoveInstance => "RemoveInstance",
        Step::Release => "Release",
    };
    plan.steps.iter().map(name).collect()
}

fn stands(plan: &Plan<Step>) -> (bool, Reason) {
    assert_eq!(plan.steps, [], "{plan:?}");
    (matches!(plan.readiness, Readiness::Stalled(..)), plan.readiness.reason())
}

#[test]
fn a_start_notes_what_it_decides_makes_the_network_and_launches() {
    let plan = plan(&vm(json!({})), &ready_to_start());
    assert_eq!(names(&plan), ["Note", "EnsureNetworks", "MakeTap", "Launch"]);
    let (Step::Note(journal), Step::Launch(config)) = (&plan.steps[0], &plan.steps[3]) else {
        panic!("{plan:?}")
    };
    insta::assert_json_snapshot!(journal.pins, @r#"
    {
      "machineType": "pc-q35-7.2",
      "cpuModel": "max",
      "accelerator": "tcg",
      "uuid": "21a1d1ec-d5d8-864d-8e13-e65caf94d6ec"
    }
    "#);
    let disks: Vec<_> = config.disks.iter().map(|d| (d.id.as_str(), d.boot, d.target)).collect();
    assert_eq!(disks, [("v-root", true, Some(0)), ("v-data", false, Some(1))]);
    let nics: Vec<_> = config.nics.iter().map(|n| (n.id.as_str(), n.mac.as_str(), n.slot)).collect();
    assert_eq!(nics, [("nic0", "52:54:00:00:00:02", 0)]);
    assert_eq!((config.name.as_str(), config.memory_bytes), ("ns/web", 512 << 20));
}

#[test]
fn each_thing_that_is_missing_is_waited_for_under_its_own_name() {
    let plan_with = |change: fn(&mut Observed)| {
        let mut observed = ready_to_start();
        change(&mut observed);
        plan(&vm(json!({})), &observed)
    };
    assert_eq!(stands(&plan_with(|o| o.class = None)), (false, Reason::WaitingForClass));
    assert_eq!(
        stands(&plan_with(|o| o.missing_networks.push("a/b".into()))),
        (false, Reason::WaitingForNetwork)
    );
    assert_eq!(stands(&plan_with(|o| o.disks[1].volume = None)), (false, Reason::WaitingForDisk));
    assert_eq!(stands(&plan_with(|o| o.disks[1].user = User::Nobody)), (false, Reason::WaitingForDisk));
    assert_eq!(stands(&plan_with(|o| o.disks[0].user = User::Other("db".into()))), (true, Reason::DiskInUse));
    let public = |o: &mut Observed| {
        o.public.push(PublicSeen {
            interface: "nic0".into(),
            name: "p".into(),
            address: None,
            forwarded: false,
            refused: None,
        });
    };
    assert_eq!(stands(&plan_with(public)), (false, Reason::WaitingForPublicIP));
    let secret = plan_with(|o| o.bootstrap = Bootstrap::Missing("s".into()));
    assert_eq!(stands(&secret), (false, Reason::WaitingForBootstrap));
    assert!(secret.look_again.is_some(), "Secrets are not watched");
    let qemu = plan_with(|o| o.host.as_mut().expect("set").qemu = Err("not installed".into()));
    assert_eq!(stands(&qemu), (true, Reason::QemuMissing));
    assert!(qemu.look_again.is_some(), "nobody tells when it is installed");
    let memory = plan_with(|o| o.free_memory = Some(500 << 20));
    assert_eq!(stands(&memory), (false, Reason::Unschedulable));
    let uefi = plan_with(|o| o.host.as_mut().expect("set").qemu.as_mut().expect("set").uefi = false);
    assert_eq!(stands(&uefi), (true, Reason::NotSupported));
}

#[test]
fn hardware_that_was_pinned_stays_when_the_host_has_newer() {
    let mut observed = ready_to_start();
    let first = plan(&vm(json!({})), &observed);
    let Step::Note(journal) = &first.steps[0] else { panic!("{first:?}") };
    observed.journal = Journal { run: None, ..(**journal).clone() };
    let qemu = observed.host.as_mut().and_then(|h| h.qemu.as_mut().ok()).expect("set");
    qemu.machine_type = "pc-q35-10.0".into();
    let second = plan(&vm(json!({})), &observed);
    let Some(Step::Launch(config)) = second.steps.last() else { panic!("{second:?}") };
    assert_eq!(config.machine_type, "pc-q35-7.2");
}

#[test]
fn a_machine_launched_before_a_crash_is_noted_and_let_run() {
    let mut observed = present(RunState::Prelaunch);
    if let Some(run) = &mut observed.journal.run {
        run.process = None;
    }
    let first = plan(&vm(json!({})), &observed);
    let [Step::Note(journal)] = &first.steps[..] else { panic!("{first:?}") };
    assert!(journal.believes_running());
    observed.journal = (**journal).clone();
    assert_eq!(names(&plan(&vm(json!({})), &observed)), ["Start"]);
}

#[test]
fn what_runs_as_declared_is_left_alone() {
    let plan = plan(&vm(json!({})), &present(RunState::Running));
    assert_eq!((stands(&plan), plan.look_again), ((false, Reason::Running), None));
}

#[test]
fn a_disk_added_to_the_list_is_plugged_in_and_one_taken_off_it_is_pulled() {
    let mut observed = present(RunState::Running);
    observed.disks.push(disk("more", false));
    assert_eq!(names(&plan(&vm(json!({})), &observed)), ["Plug"]);
    let mut observed = present(RunState::Running);
    observed.disks.truncate(1);
    assert_eq!(names(&plan(&vm(json!({})), &observed)), ["Unplug"]);
    observed.mounts.insert("v-data".into(), vec!["/srv".into()]);
    assert_eq!(stands(&plan(&vm(json!({})), &observed)), (true, Reason::GuestBusy));
    observed.attachments.insert("v-data".into(), ("data".into(), "a".into()));
    assert_eq!(stands(&plan(&vm(json!({})), &observed)), (false, Reason::Running), "an attachment has it");
}

#[test]
fn another_boot_disk_waits_for_the_next_power_cycle() {
    let mut observed = present(RunState::Running);
    observed.disks[0] = disk("newroot", true);
    assert_eq!(stands(&plan(&vm(json!({})), &observed)), (false, Reason::Running));
    let readiness = Readiness::Ready(Reason::Running, String::new());
    let reported = status(&vm(json!({})), &observed, &readiness, at(NOW));
    let told = reported.disks[0].message.as_deref();
    assert_eq!(told, Some("becomes the boot disk at the next power cycle"));
}

#[test]
fn a_stop_is_noted_asked_for_three_times_and_then_forced() {
    let vm = vm(json!({"power": "Stopped", "stop": {"gracePeriodSeconds": 90}}));
    let mut observed = present(RunState::Running);
    let mut story = Vec::new();
    for second in 0..100 {
        observed.now = at(NOW + second);
        // As the agent does: until the plan has no step.
        for _ in 0..4 {
            let plan = plan(&vm, &observed);
            if plan.steps.is_empty() {
                break;
            }
            for step in &plan.steps {
                if let Step::Note(journal) = step {
                    observed.journal = (**journal).clone();
                }
            }
            story.extend(names(&plan).into_iter().filter(|n| *n != "Note").map(|name| (second, name)));
            if plan.steps.contains(&Step::EndProcess) {
                assert_eq!(
                    story,
                    [
                        (0, "PressPowerButton"),
                        (30, "AskGuestToShutDown"),
                        (60, "PressPowerButton"),
                        (90, "EndProcess")
                    ]
                );
                return;
            }
        }
    }
    panic!("it was never ended: {story:?}");
}

#[test]
fn a_guest_that_went_off_when_asked_is_stopped_and_not_crashed() {
    let stop = Stop { why: Why::PowerOff, since: at(NOW - 5), asked: 1, cancelled: false };
    let mut observed = present(RunState::Shutdown);
    observed.journal.stop = Some(stop);
    let vm = vm(json!({"power": "Stopped"}));
    assert_eq!(names(&plan(&vm, &observed)), ["EndProcess"]);
    observed.process = None;
    observed.look = None;
    let settled = plan(&vm, &observed);
    let [Step::Note(journal)] = &settled.steps[..] else { panic!("{settled:?}") };
    assert_eq!((&journal.run, &journal.stop, journal.restarts), (&None, &None, 0));
    observed.journal = (**journal).clone();
    observed.taps = vec!["btt01234567n0".into()];
    assert_eq!(names(&plan(&vm, &observed)), ["RemoveTap"]);
    observed.taps.clear();
    let stopped = plan(&vm, &observed);
    assert_eq!(stopped.readiness, Readiness::Ready(Reason::Stopped, String::new()));
}

fn ended(policy: &str, orderly: bool) -> Plan<Step> {
    let mut observed = ready_to_start();
    let ending = Ended { at: at(NOW), orderly, how: "it ended".into() };
    let run = Run { process: None, ended: Some(ending), ..run() };
    observed.journal = Journal { run: Some(run), failures: 1, ..observed.journal };
    plan(&vm(json!({"restartPolicy": policy})), &observed)
}

#[test]
fn the_restart_policy_decides_about_a_guest_that_ended_by_itself() {
    let starts = |policy: &str, orderly: bool| names(&ended(policy, orderly)).contains(&"Launch");
    assert_eq!([starts("Always", true), starts("Always", false)], [true, true]);
    assert_eq!([starts("OnFailure", true), starts("OnFailure", false)], [false, true]);
    assert_eq!([starts("Never", true), starts("Never", false)], [false, false]);
    assert_eq!(stands(&ended("Never", false)), (true, Reason::GuestEnded));
    let Step::Note(journal) = &ended("Always", false).steps[0] else { panic!("a start is noted first") };
    assert_eq!(journal.restarts, 1);
}

#[test]
fn a_loop_waits_and_says_until_when_without_counting_down() {
    let mut observed = ready_to_start();
    let ending = Ended { at: at(NOW), orderly: false, how: "it crashed".into() };
    let run = Run { process: None, ended: Some(ending), ..run() };
    observed.journal =
        Journal { run: Some(run), failures: 3, not_before: Some(at(NOW + 20)), ..observed.journal };
    let early = plan(&vm(json!({})), &observed);
    assert_eq!(
        (stands(&early), early.look_again),
        ((true, Reason::CrashLoop), Some(Duration::from_secs(20)))
    );
    observed.now = at(NOW + 15);
    let later = plan(&vm(json!({})), &observed);
    assert_eq!(later.readiness, early.readiness);
    let reported = status(&vm(json!({})), &observed, &later.readiness, at(NOW));
    assert_eq!(reported.state, Some(VMState::CrashLoop));
    let token = vm(json!({"restartToken": "now"}));
    assert!(names(&plan(&token, &observed)).contains(&"Launch"), "a person need not wait");
}

#[test]
fn why_a_guest_ended_is_told_from_what_qemu_says() {
    let ending = |state: RunState| {
        let plan = plan(&vm(json!({})), &present(state));
        assert_eq!(names(&plan), ["Note", "EndProcess"]);
        let Step::Note(journal) = plan.steps[0].clone() else { panic!("noted first") };
        journal.run.and_then(|run| run.ended).expect("noted").orderly
    };
    assert!(ending(RunState::Shutdown));
    assert!(!ending(RunState::GuestPanicked));
    assert!(!ending(RunState::InternalError));
}

#[test]
fn deletion_ends_with_nothing_left_and_the_disks_given_back() {
    let gone = deleted(vm(json!({})));
    let mut observed = present(RunState::Running);
    assert_eq!(names(&plan(&gone, &observed)), ["Note"]);
    observed.process = None;
    observed.look = None;
    observed.journal = Journal::new(&gone);
    observed.still_user = true;
    observed.taps = vec!["t".into()];
    assert_eq!(names(&plan(&gone, &observed)), ["RemoveTap", "RemoveInstance"]);
    observed.taps.clear();
    observed.journal_written = false;
    assert_eq!(stands(&plan(&gone, &observed)), (false, Reason::Deleting));
    observed.still_user = false;
    assert_eq!(names(&plan(&gone, &observed)), ["Release"]);
}

#[test]
fn a_machine_whose_journal_cannot_be_read_is_left_alone() {
    let journal_problem = Some("newer than this agent".to_owned());
    for object in [vm(json!({})), deleted(vm(json!({}))), vm(json!({"power": "Stopped"}))] {
        let observed = Observed { journal_problem: journal_problem.clone(), ..present(RunState::Shutdown) };
        assert_eq!(stands(&plan(&object, &observed)), (true, Reason::NotSupported));
    }
}

#[test]
fn a_void_binding_is_not_acted_on() {
    let mut observed = ready_to_start();
    observed.journal.epoch = 2;
    assert_eq!(stands(&plan(&vm(json!({})), &observed)), (false, Reason::Bound));
}

#[test]
fn what_is_reported_is_what_qemu_has_and_reporting_twice_changes_nothing() {
    let mut object = vm(json!({"power": "Stopped"}));
    let mut observed = present(RunState::Running);
    observed.look.as_mut().expect("set").disks.remove(0);
    let readiness = Readiness::Reconciling(Reason::Stopping, String::new());
    let reported = status(&object, &observed, &readiness, at(NOW));
    assert!(berth_api::condition::is_true(&reported.conditions, berth_api::ConditionType::Running));
    let attached: Vec<_> = reported.disks.iter().map(|d| (d.name.as_str(), d.attached)).collect();
    assert_eq!(attached, [("root", true), ("data", false)]);
    object.status = Some(reported.clone());
    assert_eq!(status(&object, &observed, &readiness, at(NOW + 99)), reported);
}

fn any_state() -> impl Strategy<Value = RunState> {
    prop::sample::select(vec![
        RunState::Prelaunch,
        RunState::Running,
        RunState::Paused,
        RunState::Shutdown,
        RunState::GuestPanicked,
        RunState::IoError,
        RunState::InternalError,
        RunState::Other("inmigrate".into()),
    ])
}

proptest! {
    /// Whatever the journal and QEMU say: nothing is launched beside a QEMU that is there, and what is to be off or
    /// gone is neither launched nor let run.
    #[test]
    fn no_plan_starts_a_second_machine_or_one_that_should_be_off(
        state in any_state(),
        present_now in any::<bool>(),
        reachable in any::<bool>(),
        off in any::<bool>(),
        gone in any::<bool>(),
        noted in any::<bool>(),
        ended in prop::option::of(any::<bool>()),
        stop in prop::option::of((0u8..4, any::<bool>())),
        later in 0i64..200,
    ) {
        let mut observed = if present_now { present(state) } else { ready_to_start() };
        observed.now = at(NOW + later);
        if !reachable {
            observed.look = None;
        }
        if noted {
            let ended = ended.map(|orderly| Ended { at: at(NOW), orderly, how: String::new() });
            observed.journal.run = Some(Run { ended, ..run() });
        }
        observed.journal.stop =
            stop.map(|(asked, cancelled)| Stop { why: Why::PowerOff, since: at(NOW), asked, cancelled });
        let mut object = vm(if off { json!({"power": "Stopped"}) } else { json!({}) });
        if gone {
            object = deleted(object);
        }
        let steps = names(&plan(&object, &observed));
        if present_now || off || gone {
            prop_assert!(!steps.contains(&"Launch"), "{steps:?}");
        }
        if off || gone {
            prop_assert!(!steps.contains(&"Start"), "{steps:?}");
        }
        if present_now {
            for step in ["RemoveInstance", "RemoveTap", "Release"] {
                prop_assert!(!steps.contains(&step), "{steps:?}");
            }
        }
        if let Some(launch) = steps.iter().position(|s| *s == "Launch") {
            prop_assert!(steps[..launch].contains(&"Note"));
        }
    }

    /// A plan that only notes something gets further with what it noted: no plan notes for ever.
    #[test]
    fn noting_comes_to_an_end(
        state in any_state(),
        off in any::<bool>(),
        gone in any::<bool>(),
        token in prop::option::of("[a-z]{0,3}"),
        stop in prop::option::of((0u8..4, any::<bool>())),
    ) {
        let mut observed = present(state);
        observed.journal.stop =
            stop.map(|(asked, cancelled)| Stop { why: Why::Restart, since: at(NOW), asked, cancelled });
        let mut object = vm(if off { json!({"power": "Stopped"}) } else { json!({}) });
        object.spec.restart_token = token;
        if gone {
            object = deleted(object);
        }
        let mut rounds = 0;
        loop {
            let plan = plan(&object, &observed);
            if plan.steps.is_empty() || !plan.steps.iter().all(|s| matches!(s, Step::Note(_))) {
                break;
            }
            for step in plan.steps {
                if let Step::Note(journal) = step {
                    observed.journal = *journal;
                }
            }
            rounds += 1;
            prop_assert!(rounds < 6, "{:?}", observed.journal);
        }
    }
}

#[test]
fn nothing_is_made_for_a_vm_before_the_control_plane_knows_that_it_was_let_in() {
    let (vm, now) = (vm(json!({})), at(NOW));
    let seen = |admission| Observed { admission, ..ready_to_start() };
    for admission in [Admission::Now, Admission::NotYet, Admission::Refused("it is full".into())] {
        assert_eq!(plan(&vm, &seen(admission.clone())).steps, [], "{admission:?}");
    }
    let let_in = seen(Admission::Now);
    let told = status(&vm, &let_in, &plan(&vm, &let_in).readiness, now);
    assert!(told.admitted_epoch == Some(1) && told.is_admitted());
    let refused = seen(Admission::Refused("it is full".into()));
    let told = status(&vm, &refused, &plan(&vm, &refused).readiness, now);
    assert!(!told.is_admitted());
    let refusal = told.refused().expect("it is refused");
    assert_eq!((refusal.host.as_str(), refusal.epoch, refusal.message.as_str()), ("h", 1, "it is full"));
    let scheduled = berth_api::condition::find(&told.conditions, "Scheduled").expect("it says so");
    assert_eq!((scheduled.status.as_str(), scheduled.reason.as_str()), ("False", "Refused"));
}
