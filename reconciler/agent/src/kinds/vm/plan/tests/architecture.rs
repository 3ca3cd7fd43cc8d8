//! The architecture of a VM's processors.

use berth_host::EmulatedFacts;
use berth_qemu::machine::MachineSpec;

use super::*;

/// A host of x86-64 that emulates aarch64.
fn emulating() -> HostFacts {
    let HostFacts { qemu, accelerator, .. } = host();
    let qemu = qemu.map(|qemu| QemuFacts {
        machine_type: "virt-7.2".into(),
        machine_types: vec!["virt-7.1".into(), "virt-7.2".into()],
        cpu_models: vec!["cortex-a72".into()],
        secure_boot: false,
        ..qemu
    });
    let emulated =
        EmulatedFacts { architecture: Architecture::Aarch64, qemu, accelerator, overhead_bytes: 90 << 20 };
    HostFacts { emulated: Some(emulated), accelerator: Accelerator::Kvm, ..host() }
}

fn vm_and_observed(spec: Value, host: HostFacts) -> (VM, Observed) {
    let vm = vm(spec);
    let profile = vm.spec.profile(None);
    let host = host.for_guests_of(crate::hardware::architecture_of(profile.architecture));
    (vm, Observed { host: Some(host), profile, ..ready_to_start() })
}

fn launched(vm: &VM, observed: &Observed) -> (Journal, MachineSpec) {
    let plan = plan(vm, observed);
    let Some(Step::WriteJournal(journal)) = plan.steps.first() else { panic!("{plan:?}") };
    let machine = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine.clone()),
        _ => None,
    });
    ((**journal).clone(), machine.expect("it is launched"))
}

#[test]
fn a_vm_of_another_architecture_is_emulated_beside_those_on_kvm() {
    let (arm, observed) = vm_and_observed(json!({"architecture": "aarch64"}), emulating());
    let (journal, machine) = launched(&arm, &observed);
    assert_eq!((machine.architecture(), machine.machine_type.as_str()), (Architecture::Aarch64, "virt-7.2"));
    assert!(matches!(machine.accelerator, Accelerator::Tcg { .. }));
    assert_eq!(journal.pins.map(|pins| pins.accelerator).as_deref(), Some("tcg"));
    let (own, observed) = vm_and_observed(json!({}), emulating());
    let (_, machine) = launched(&own, &observed);
    assert_eq!((machine.architecture(), machine.accelerator), (Architecture::X86_64, Accelerator::Kvm));
    let declared = json!({"architecture": "aarch64", "cpuModel": "cortex-a72", "machineType": "virt-7.1"});
    let (declared, observed) = vm_and_observed(declared, emulating());
    let (_, machine) = launched(&declared, &observed);
    assert_eq!((machine.cpu_model.as_str(), machine.machine_type.as_str()), ("cortex-a72", "virt-7.1"));
}

#[test]
fn a_host_that_emulates_nothing_starts_no_vm_of_another_architecture() {
    let (arm, observed) = vm_and_observed(json!({"architecture": "aarch64"}), host());
    let refused = plan(&arm, &observed);
    assert_eq!(stands(&refused), (true, Reason::NotSupported));
    insta::assert_snapshot!(refused.readiness.message(), @"this host runs no guests of aarch64: its administrator allows it with --emulate aarch64");
    let EmulatedFacts { architecture, accelerator, overhead_bytes, .. } =
        emulating().emulated.expect("it emulates");
    let emulated = EmulatedFacts { architecture, qemu: Err("no QEMU".into()), accelerator, overhead_bytes };
    let (arm, observed) =
        vm_and_observed(json!({"architecture": "aarch64"}), HostFacts { emulated: Some(emulated), ..host() });
    assert_eq!(stands(&plan(&arm, &observed)), (true, Reason::QemuMissing));
}

#[test]
fn a_vm_keeps_the_architecture_of_its_first_start() {
    let (own, observed) = vm_and_observed(json!({}), emulating());
    let (journal, _) = launched(&own, &observed);
    let (arm, mut observed) = vm_and_observed(json!({"architecture": "aarch64"}), emulating());
    observed.journal = Journal { run: None, ..journal };
    let refused = plan(&arm, &observed);
    assert_eq!(stands(&refused), (true, Reason::InvalidSpec));
    insta::assert_snapshot!(refused.readiness.message(), @"the VM was first started with architecture x86_64, which it keeps, and it is to have aarch64: give it a class of x86_64, or create another VM");
}

#[test]
fn parts_of_a_pc_are_refused_before_qemu_sees_them() {
    let (arm, observed) = vm_and_observed(json!({"architecture": "aarch64", "serialPorts": 2}), emulating());
    let refused = plan(&arm, &observed);
    assert_eq!(stands(&refused), (true, Reason::InvalidSpec));
    assert!(refused.readiness.message().contains("one serial port"), "{refused:?}");
}
