//! vGPUs of the host for a VM.

use berth_host::VgpuFacts;
use berth_qemu::machine::VgpuSpec;

use super::*;
use crate::journal::Held;

const INSTANCE: &str = "i-0123456789ab";

fn gpu(number: u32, usable: u32) -> VgpuFacts {
    VgpuFacts {
        name: "a40-8q".into(),
        parent: format!("0000:{number}1:00.0"),
        mdev_type: "nvidia-558".into(),
        usable,
        ..VgpuFacts::default()
    }
}

/// With records of these instances whose vGPUs do not exist.
fn recorded(mut facts: VgpuFacts, holders: &[(&str, &str)]) -> VgpuFacts {
    facts.held_by.extend(holders.iter().map(|(uuid, holder)| ((*uuid).to_owned(), (*holder).to_owned())));
    facts
}

/// With vGPUs of these instances.
fn held_by(facts: VgpuFacts, holders: &[(&str, &str)]) -> VgpuFacts {
    let mut facts = recorded(facts, holders);
    facts.made.extend(holders.iter().map(|(uuid, _)| (*uuid).to_owned()));
    facts
}

fn with(vgpus: Vec<VgpuFacts>) -> Observed {
    Observed { host: Some(HostFacts { vgpus, ..host() }), ..ready_to_start() }
}

fn wants(count: i64) -> VM {
    vm(json!({"vgpus": [{"name": "a40-8q", "count": count}]}))
}

/// Plans with the profile that the VM and its class declare.
fn planned(vm: &VM, observed: &Observed) -> Plan<Step> {
    plan(vm, &Observed { profile: vm.spec.profile(None), ..observed.clone() })
}

fn launched(plan: &Plan<Step>) -> Vec<VgpuSpec> {
    let request = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request),
        _ => None,
    });
    request.expect("it is launched").machine.vgpus.clone()
}

fn parents(plan: &Plan<Step>) -> Vec<String> {
    launched(plan).into_iter().map(|vgpu| vgpu.parent).collect()
}

fn held(vgpus: Vec<VgpuSpec>) -> Vec<Held<VgpuSpec>> {
    vgpus.into_iter().map(|device| Held { name: "a40-8q".into(), device }).collect()
}

#[test]
fn vgpus_are_recorded_before_they_are_made_and_made_before_the_launch() {
    let plan = planned(&wants(3), &with(vec![gpu(4, 2), gpu(6, 2)]));
    assert_eq!(
        names(&plan),
        ["WriteJournal", "EnsureNetworks", "MakeTap", "TakeDevices", "Launch", "Start", "WatchLeases"]
    );
    assert_eq!(
        parents(&plan),
        ["0000:41:00.0", "0000:41:00.0", "0000:61:00.0"],
        "the first devices are filled"
    );
    let Step::WriteJournal(journal) = &plan.steps[0] else { panic!("{plan:?}") };
    assert_eq!(journal.vgpus, held(launched(&plan)));
    let Step::TakeDevices(taken) = &plan.steps[3] else { panic!("{plan:?}") };
    assert_eq!(taken.vgpus, launched(&plan));
    let uuids: std::collections::BTreeSet<String> =
        launched(&plan).into_iter().map(|vgpu| vgpu.uuid).collect();
    assert_eq!(uuids.len(), 3, "{uuids:?}");
}

#[test]
fn a_start_that_was_interrupted_finds_the_vgpus_that_it_made() {
    let mut observed = with(vec![gpu(4, 1), gpu(6, 2)]);
    let first = launched(&planned(&wants(2), &observed));
    assert_eq!(first.iter().map(|vgpu| &*vgpu.parent).collect::<Vec<_>>(), ["0000:41:00.0", "0000:61:00.0"]);
    // The second one was made, and another device has become free meanwhile.
    observed.journal.vgpus = held(first.clone());
    let vgpus = vec![gpu(2, 4), gpu(4, 1), held_by(gpu(6, 2), &[(first[1].uuid.as_str(), INSTANCE)])];
    observed.host = Some(HostFacts { vgpus, ..host() });
    let changed = planned(&wants(2), &observed);
    assert_eq!(names(&changed), ["GiveBackDevices", "WriteJournal"], "the first one is on another device");
    observed.host = Some(HostFacts {
        vgpus: vec![
            gpu(2, 4),
            held_by(gpu(4, 1), &[(first[0].uuid.as_str(), INSTANCE)]),
            held_by(gpu(6, 2), &[(first[1].uuid.as_str(), INSTANCE)]),
        ],
        ..host()
    });
    assert_eq!(launched(&planned(&wants(2), &observed)), first);
}

#[test]
fn vgpus_of_other_vms_and_of_devices_with_a_problem_are_not_counted() {
    let full = held_by(gpu(4, 2), &[("u-1", "i-other"), ("u-2", "i-another")]);
    let broken = VgpuFacts { problem: Some("it has no type nvidia-558".into()), ..gpu(6, 2) };
    let missing = planned(&wants(2), &with(vec![full.clone(), broken, gpu(8, 1)]));
    assert_eq!(stands(&missing), (true, Reason::DeviceUnavailable));
    assert!(missing.requeue_after.is_some(), "the host is looked at again");
    insta::assert_snapshot!(missing.readiness.message(), @"the VM needs 2 vGPUs a40-8q and this host has 1 for it (0000:41:00.0: other VMs have all 2 of it; 0000:61:00.0: it has no type nvidia-558)");
    assert_eq!(parents(&planned(&wants(1), &with(vec![full, gpu(8, 1)]))), ["0000:81:00.0"]);
    let none = planned(&wants(1), &with(Vec::new()));
    insta::assert_snapshot!(none.readiness.message(), @"this host offers no vGPUs a40-8q: its administrator does with --vgpu");
}

#[test]
fn records_without_vgpus_keep_no_other_vm_from_starting() {
    let first = launched(&planned(&wants(1), &with(vec![gpu(4, 1)])));
    let own = (first[0].uuid.as_str(), INSTANCE);
    // After a boot of the host another program has made one of two: the VM that starts first has the other one.
    for records in [vec![own, ("u-1", "i-other")], vec![("u-1", "i-other"), ("u-2", "i-another")]] {
        let facts = with(vec![recorded(gpu(4, 1), &records)]);
        assert_eq!(launched(&planned(&wants(1), &facts)), first, "{records:?}");
    }
}

#[test]
fn of_two_vms_that_chose_the_same_vgpu_the_one_that_made_it_starts_and_the_other_chooses_anew() {
    let first = launched(&planned(&wants(1), &with(vec![gpu(4, 1)])));
    let own = (first[0].uuid.as_str(), INSTANCE);
    let other = ("u-1", "i-other");
    let won = with(vec![recorded(held_by(gpu(4, 1), &[own]), &[other])]);
    assert_eq!(launched(&planned(&wants(1), &won)), first);
    let lost = |more: Vec<VgpuFacts>| {
        let first = recorded(held_by(gpu(4, 1), &[other]), &[own]);
        planned(&wants(1), &with([vec![first], more].concat()))
    };
    let waits = lost(vec![]);
    assert_eq!(stands(&waits), (true, Reason::DeviceUnavailable));
    insta::assert_snapshot!(waits.readiness.message(), @"the VM needs 1 vGPUs a40-8q and this host has 0 for it (0000:41:00.0: other VMs have all 1 of it)");
    assert_eq!(parents(&lost(vec![gpu(6, 1)])), ["0000:61:00.0"]);
}

#[test]
fn a_device_of_which_nothing_can_be_made_is_named_with_the_possible_causes() {
    let plan = planned(&wants(1), &with(vec![recorded(gpu(4, 0), &[("u-1", "i-other")])]));
    assert_eq!(stands(&plan), (true, Reason::DeviceUnavailable));
    insta::assert_snapshot!(plan.readiness.message(), @"the VM needs 1 vGPUs a40-8q and this host has 0 for it (0000:41:00.0: its driver makes no more of this type now: other programs have them, or there are some of another type)");
}

#[test]
fn a_vgpu_of_a_display_controller_excludes_graphics() {
    let display = || with(vec![VgpuFacts { display: true, ..gpu(4, 1) }]);
    let screen = vm(json!({"vgpus": [{"name": "a40-8q"}], "graphics": "VGA"}));
    let refused = planned(&screen, &display());
    assert_eq!(stands(&refused), (true, Reason::NotSupported));
    insta::assert_snapshot!(refused.readiness.message(), @"vgpus: a40-8q (0000:41:00.0) is a display controller, and a VM with one has no graphics: set graphics to None, or take a40-8q out");
    assert_eq!(launched(&planned(&wants(1), &display())).len(), 1);
    assert_eq!(launched(&planned(&screen, &with(vec![gpu(4, 1)]))).len(), 1, "another device has no screen");
}

#[test]
fn vgpus_are_removed_when_the_vm_stays_off_or_declares_others() {
    let made = launched(&planned(&wants(1), &with(vec![gpu(4, 1)])));
    let mut observed = with(vec![held_by(gpu(4, 1), &[(made[0].uuid.as_str(), INSTANCE)])]);
    observed.journal.vgpus = held(made);
    let stopped = planned(&vm(json!({"power": "Stopped", "vgpus": [{"name": "a40-8q"}]})), &observed);
    assert!(names(&stopped).starts_with(&["GiveBackDevices", "WriteJournal"]), "{:?}", names(&stopped));
    let others = planned(&vm(json!({})), &observed);
    assert_eq!(names(&others), ["GiveBackDevices", "WriteJournal"]);
    let Step::WriteJournal(journal) = &others.steps[1] else { panic!("{others:?}") };
    assert!(journal.vgpus.is_empty());
    assert!(names(&planned(&wants(1), &observed)).contains(&"Launch"));
}

#[test]
fn a_running_machine_shows_its_vgpus_and_is_neither_changed_nor_suspended() {
    let mut running = present(RunState::Running);
    running.journal.vgpus = held(launched(&planned(&wants(1), &with(vec![gpu(4, 1)]))));
    running.journal.run.as_mut().expect("a run").profile =
        RunProfile::declared(&wants(1), &wants(1).spec.profile(None));
    let report = |vm: &VM| {
        let observed = Observed { profile: vm.spec.profile(None), ..running.clone() };
        let status = status(vm, &observed, &plan(vm, &observed).readiness, at(NOW));
        let has: Vec<_> =
            status.vgpus.into_iter().map(|vgpu| (vgpu.name, vgpu.address, vgpu.mdev_type)).collect();
        (has, status.pending_power_cycle)
    };
    let has = vec![("a40-8q".to_owned(), "0000:41:00.0".to_owned(), "nvidia-558".to_owned())];
    assert_eq!(report(&wants(1)), (has.clone(), vec![]));
    assert_eq!(report(&wants(2)), (has, vec!["vgpus".to_owned()]));
    let refused = planned(&vm(json!({"power": "Suspended"})), &running);
    assert_eq!(stands(&refused), (true, Reason::SuspendFailed));
    insta::assert_snapshot!(refused.readiness.message(), @"the guest runs on: it has vGPUs of its host until the next power cycle, and their state cannot be saved. Set power to Stopped");
}

#[test]
fn a_vm_without_vgpus_of_its_own_gets_those_of_its_class() {
    let class = serde_json::from_value(json!({"cpus": 1, "vgpus": [{"name": "a40-8q"}]})).expect("a class");
    let profile = vm(json!({})).spec.profile(Some(&class));
    let observed = Observed { profile, ..with(vec![gpu(4, 1)]) };
    assert_eq!(parents(&plan(&vm(json!({})), &observed)), ["0000:41:00.0"]);
}
