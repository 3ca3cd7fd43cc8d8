//! Hardware that is decided once and kept.

use berth_qemu::machine::MachineSpec;

use super::*;
use crate::journal::PinnedHardware;

/// The journal and the machine that this VM is launched with.
fn launched(vm: &VM, observed: &Observed) -> (Journal, MachineSpec) {
    let plan = plan(vm, observed);
    let Some(Step::WriteJournal(journal)) = plan.steps.first() else { panic!("{plan:?}") };
    let machine = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine.clone()),
        _ => None,
    });
    ((**journal).clone(), machine.expect("it is launched"))
}

fn qemu(observed: &mut Observed) -> &mut QemuFacts {
    observed.host.as_mut().and_then(|host| host.qemu.as_mut().ok()).expect("set")
}

/// A host with KVM whose processor has these levels.
fn on_kvm(levels: &[&str]) -> Observed {
    let mut observed = ready_to_start();
    observed.host.as_mut().expect("set").accelerator = Accelerator::Kvm;
    let qemu = qemu(&mut observed);
    qemu.cpu_model = "host".into();
    qemu.cpu_models = levels.iter().map(|level| (*level).to_owned()).collect();
    observed
}

fn with_baseline(level: &str) -> VM {
    let mut vm = vm(json!({}));
    vm.status.as_mut().expect("bound").cpu_baseline = Some(level.to_owned());
    vm
}

#[test]
fn with_kvm_the_cpu_model_is_the_level_that_is_common_to_the_hosts_and_is_kept() {
    let mut observed = on_kvm(&["x86-64-v2", "x86-64-v2-AES", "x86-64-v3"]);
    let vm = with_baseline("x86-64-v2");
    let (journal, machine) = launched(&vm, &observed);
    let pins = journal.pins.clone().expect("pinned");
    assert_eq!(pins.cpu_level.as_deref(), Some("x86-64-v2"));
    assert_eq!((&machine.cpu_model, machine.cpu_model.ends_with(",enforce")), (&pins.cpu_model, true));
    // Hosts that joined later, or left, change nothing.
    observed.journal = Journal { run: None, ..journal };
    let (journal, again) = launched(&with_baseline("x86-64-v3"), &observed);
    assert_eq!((journal.pins, again.cpu_model), (Some(pins), machine.cpu_model));
}

#[test]
fn the_scheduler_and_qemu_have_the_same_levels() {
    assert_eq!(berth_api::hardware::CPU_LEVELS, berth_qemu::cpu_models::LEVELS);
}

#[test]
fn a_host_alone_has_its_own_level_and_one_without_a_level_its_own_model() {
    let level = |vm: &VM, observed: &Observed| launched(vm, observed).0.pins.expect("pinned").cpu_level;
    let all = on_kvm(&["x86-64-v2", "x86-64-v3"]);
    assert_eq!(level(&vm(json!({})), &all).as_deref(), Some("x86-64-v3"));
    assert_eq!(level(&with_baseline("x86-64-v4"), &all).as_deref(), Some("x86-64-v3"), "it lacks that one");
    assert_eq!(level(&with_baseline("max,+vmx"), &all).as_deref(), Some("x86-64-v3"));
    let (journal, machine) = launched(&vm(json!({})), &on_kvm(&["Penryn"]));
    assert_eq!((machine.cpu_model.as_str(), journal.pins.expect("pinned").cpu_level), ("host", None));
    let (journal, machine) = launched(&with_baseline("x86-64-v2"), &ready_to_start());
    assert_eq!((machine.cpu_model.as_str(), journal.pins.expect("pinned").cpu_level), ("max", None), "TCG");
}

#[test]
fn a_vm_that_was_pinned_to_the_model_of_its_host_keeps_it() {
    let mut observed = on_kvm(&["x86-64-v2"]);
    let pinned = PinnedHardware {
        machine_type: "pc-q35-7.2".into(),
        cpu_model: "host".into(),
        cpu_level: None,
        accelerator: "kvm".into(),
        windows_without_hpet: false,
        uuid: String::new(),
    };
    observed.journal.pins = Some(pinned);
    assert_eq!(launched(&with_baseline("x86-64-v2"), &observed).1.cpu_model, "host");
}

#[test]
fn a_windows_vm_that_an_earlier_agent_started_keeps_its_hpet() {
    let windows = vm(json!({"guestOS": "Windows"}));
    let mut observed = Observed { profile: windows.spec.profile(None), ..ready_to_start() };
    let (journal, machine) = launched(&windows, &observed);
    assert!(machine.extras.without_hpet);
    let mut earlier = journal.to_value();
    earlier["pins"].as_object_mut().expect("pinned").remove("windowsWithoutHpet").expect("it is there");
    observed.journal = Journal { run: None, ..Journal::parse(earlier).expect("a journal") };
    assert!(!launched(&windows, &observed).1.extras.without_hpet);
}

#[test]
fn a_host_that_does_not_know_its_models_and_machine_types_leaves_the_check_to_qemu() {
    let mut observed = on_kvm(&["x86-64-v3"]);
    let (journal, _) = launched(&vm(json!({})), &observed);
    observed.journal = Journal { run: None, ..journal };
    qemu(&mut observed).cpu_models.clear();
    qemu(&mut observed).machine_types.clear();
    assert!(launched(&vm(json!({})), &observed).1.cpu_model.ends_with(",enforce"));
}

#[test]
fn a_vm_whose_files_were_lost_has_the_hardware_that_its_status_reports() {
    let mut vm = vm(json!({}));
    vm.status.as_mut().expect("bound").hardware = serde_json::from_value(json!({
        "cpus": 1, "memory": "512Mi", "firmware": "UEFI", "machineType": "pc-q35-7.1", "cpuModel": "x86-64-v2", "accelerator": "kvm",
        "uuid": "u", "diskPlaces": [{"name": "data", "bus": "virtio-scsi", "number": 5}, {"name": "root", "bus": "virtio-scsi", "number": 0}],
        "interfacePlaces": [{"name": "nic0", "slot": 3, "inPort": true}],
    }))
    .expect("hardware");
    let mut observed = on_kvm(&["x86-64-v2", "x86-64-v3"]);
    qemu(&mut observed).machine_types.push("pc-q35-7.1".into());
    let (journal, machine) = launched(&vm, &observed);
    assert_eq!(machine.machine_type, "pc-q35-7.1");
    assert_eq!(journal.pins.expect("pinned").cpu_level.as_deref(), Some("x86-64-v2"));
    let targets: Vec<_> = machine.disks.iter().map(|disk| (disk.id.as_str(), disk.target)).collect();
    assert_eq!(targets, [("v-root", Some(0)), ("v-data", Some(5))]);
    assert_eq!((machine.nics[0].slot, machine.nics[0].port), (3, Some(3)));
}

#[test]
fn only_an_emulated_machine_with_one_cpu_has_a_place_for_a_second_one() {
    let has_place = |observed: &Observed| launched(&vm(json!({})), observed).1.extras.place_for_second_cpu;
    assert!(has_place(&ready_to_start()));
    assert!(!has_place(&on_kvm(&["x86-64-v2"])));
    let two = Observed { size: size(json!({"cpus": 2, "memory": "512Mi"})), ..ready_to_start() };
    assert!(!has_place(&two));
    let room =
        Observed { size: size(json!({"cpus": 1, "maxCpus": 2, "memory": "512Mi"})), ..ready_to_start() };
    assert!(!has_place(&room));
}

#[test]
fn a_status_that_is_no_hardware_is_not_used() {
    let mut vm = vm(json!({}));
    vm.status.as_mut().expect("bound").hardware = serde_json::from_value(json!({
        "cpus": 1, "memory": "512Mi", "firmware": "UEFI", "machineType": "pc-q35-7.1,dump=x", "cpuModel": "max,+vmx", "accelerator": "tcg",
        "uuid": "u", "diskPlaces": [{"name": "data", "bus": "virtio-scsi", "number": 4000}],
        "interfacePlaces": [{"name": "nic0", "slot": -1}],
    }))
    .expect("hardware");
    let (_, machine) = launched(&vm, &ready_to_start());
    assert_eq!((machine.machine_type.as_str(), machine.cpu_model.as_str()), ("pc-q35-7.2", "max"));
    assert_eq!((machine.disks[1].target, machine.nics[0].slot), (Some(1), 0));
}

#[test]
fn a_declared_machine_type_is_that_of_the_next_start_and_is_kept_when_it_is_removed() {
    let mut observed = ready_to_start();
    qemu(&mut observed).machine_types.push("pc-q35-7.0".into());
    let declared = vm(json!({"machineType": "pc-q35-7.0"}));
    let (journal, machine) = launched(&declared, &observed);
    assert_eq!(machine.machine_type, "pc-q35-7.0");
    let pending = |vm: &VM, journal: &Journal| {
        let mut running = Observed { journal: journal.clone(), ..present(RunState::Running) };
        running.journal.run.as_mut().expect("a run").process = Some(identity());
        status(vm, &running, &plan(vm, &running).readiness, at(NOW)).pending_power_cycle
    };
    assert!(pending(&declared, &journal).is_empty());
    assert!(pending(&vm(json!({})), &journal).is_empty(), "it keeps the one that it has");
    assert_eq!(pending(&vm(json!({"machineType": "pc-q35-7.2"})), &journal), ["machineType"]);
    observed.journal = Journal { run: None, ..journal };
    assert_eq!(launched(&vm(json!({})), &observed).1.machine_type, "pc-q35-7.0");
}

#[test]
fn a_host_without_the_pinned_hardware_starts_nothing_and_says_what_to_do() {
    let declared = vm(json!({"machineType": "pc-q35-9.9"}));
    let refused = plan(&declared, &ready_to_start());
    assert_eq!(stands(&refused), (true, Reason::NotSupported));
    insta::assert_snapshot!(refused.readiness.message(), @"QEMU 7.2.0 of this host has no machine type pc-q35-9.9, which the VM declares or was started with first: install a QEMU that has it, or set machineType to one that it has, such as pc-q35-7.2");
    let mut observed = on_kvm(&["x86-64-v3"]);
    let (journal, _) = launched(&vm(json!({})), &observed);
    observed.journal = Journal { run: None, ..journal };
    qemu(&mut observed).cpu_models = vec!["x86-64-v2".into()];
    let refused = plan(&vm(json!({})), &observed);
    assert_eq!(stands(&refused), (true, Reason::NotSupported));
    insta::assert_snapshot!(refused.readiness.message(), @"this host's CPUs or its QEMU lack a feature of x86-64-v3, the CPU model that the VM has had since its first start: set cpuModel to one of status.cpuModels of the Host");
    let declared = vm(json!({"cpuModel": "x86-64-v2"}));
    let declared_here = Observed { profile: declared.spec.profile(None), ..observed };
    assert!(launched(&declared, &declared_here).1.cpu_model.starts_with("qemu64,+"));
}
