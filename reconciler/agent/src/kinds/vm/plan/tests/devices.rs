//! PCI devices of the host for a VM.

use berth_host::PciDeviceFacts;
use berth_qemu::machine::PciDeviceSpec;

use super::*;
use crate::journal::HeldDevice;

fn gpu(number: u32) -> PciDeviceFacts {
    PciDeviceFacts {
        name: "gpu".into(),
        address: format!("0000:0{number}:00.0"),
        id: Some("10de:20b0".into()),
        functions: vec![format!("0000:0{number}:00.0")],
        groups: vec![number],
        ..PciDeviceFacts::default()
    }
}

fn held(number: u32) -> HeldDevice {
    let facts = gpu(number);
    HeldDevice {
        name: "gpu".into(),
        device: PciDeviceSpec { functions: facts.functions, groups: facts.groups },
    }
}

fn with(devices: Vec<PciDeviceFacts>) -> Observed {
    Observed { host: Some(HostFacts { pci_devices: devices, ..host() }), ..ready_to_start() }
}

fn wants(count: i64) -> VM {
    vm(json!({"pciDevices": [{"name": "gpu", "count": count}]}))
}

fn launched(plan: &Plan<Step>) -> Vec<Vec<String>> {
    let request = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request),
        _ => None,
    });
    let devices = &request.expect("it is launched").machine.pci_devices;
    devices.iter().map(|device| device.functions.clone()).collect()
}

fn recorded(plan: &Plan<Step>) -> Vec<Vec<HeldDevice>> {
    let journals = plan.steps.iter().filter_map(|step| match step {
        Step::WriteJournal(journal) => Some(journal.pci_devices.clone()),
        _ => None,
    });
    journals.collect()
}

#[test]
fn devices_are_recorded_before_they_are_taken_and_taken_before_the_launch() {
    let plan = plan(&wants(2), &with(vec![gpu(1), gpu(2), gpu(3)]));
    assert_eq!(
        names(&plan),
        ["WriteJournal", "EnsureNetworks", "MakeTap", "TakePciDevices", "Launch", "Start", "WatchLeases"]
    );
    assert_eq!(recorded(&plan), [vec![held(1), held(2)]]);
    assert_eq!(launched(&plan), [["0000:01:00.0"], ["0000:02:00.0"]]);
}

#[test]
fn a_device_that_the_vm_has_comes_before_a_free_one_and_those_of_others_never() {
    let mine = PciDeviceFacts { held_by: Some("i-0123456789ab".into()), ..gpu(3) };
    let others = PciDeviceFacts { held_by: Some("i-other".into()), ..gpu(1) };
    let mut observed = with(vec![others.clone(), gpu(2), mine]);
    observed.journal.pci_devices = vec![held(3)];
    assert_eq!(launched(&plan(&wants(1), &observed)), [["0000:03:00.0"]]);

    let broken = PciDeviceFacts { problem: Some("it is in no IOMMU group".into()), ..gpu(2) };
    let missing = plan(&wants(2), &with(vec![others, broken, gpu(4)]));
    assert_eq!(stands(&missing), (true, Reason::DeviceUnavailable));
    assert!(missing.requeue_after.is_some(), "the host is looked at again");
    insta::assert_snapshot!(missing.readiness.message(), @"the VM needs 2 PCI devices gpu and this host has 1 for it (0000:01:00.0: another VM has it; 0000:02:00.0: it is in no IOMMU group)");
    let none = plan(&wants(1), &with(Vec::new()));
    insta::assert_snapshot!(none.readiness.message(), @"this host offers no PCI devices gpu: its administrator does with --pci-device");
}

#[test]
fn a_display_controller_excludes_graphics() {
    let display = || with(vec![PciDeviceFacts { display: true, ..gpu(1) }]);
    let screen = vm(json!({"pciDevices": [{"name": "gpu"}], "graphics": "VGA"}));
    let refused = plan(&screen, &display());
    assert_eq!(stands(&refused), (true, Reason::NotSupported));
    insta::assert_snapshot!(refused.readiness.message(), @"pciDevices: gpu (0000:01:00.0) is a display controller, and a VM with one has no graphics: set graphics to None, or take gpu out");
    assert_eq!(launched(&plan(&wants(1), &display())).len(), 1);
    assert_eq!(launched(&plan(&screen, &with(vec![gpu(1)]))).len(), 1, "another device has no screen");
}

#[test]
fn devices_that_are_no_longer_declared_are_given_back_before_others_are_taken() {
    let mut observed = with(vec![gpu(1), gpu(2)]);
    observed.journal.pci_devices = vec![held(1)];
    let first = plan(&vm(json!({})), &observed);
    assert_eq!(names(&first), ["GiveBackPciDevices", "WriteJournal"]);
    assert_eq!(recorded(&first), [Vec::new()]);
    observed.journal.pci_devices.clear();
    assert!(!names(&plan(&vm(json!({})), &observed)).contains(&"GiveBackPciDevices"));
}

#[test]
fn a_vm_that_stays_off_gives_its_devices_back_and_one_that_is_restarted_keeps_them() {
    let ended = |orderly| {
        let mut observed = with(vec![PciDeviceFacts { held_by: Some("i-0123456789ab".into()), ..gpu(1) }]);
        let ended = Ended { at: at(NOW - 1), orderly, how: "ended".into() };
        observed.journal =
            Journal { run: Some(Run { process: None, ..run() }), ..observed.journal }.with_ending(ended);
        observed.journal.pci_devices = vec![held(1)];
        observed.journal_written = true;
        observed
    };
    let off = plan(&wants(1), &ended(true));
    assert_eq!(names(&off), ["GiveBackPciDevices", "WriteJournal"]);
    assert_eq!(off.readiness.reason(), Reason::GuestEnded);
    let restarted = plan(&wants(1), &ended(false));
    assert!(names(&restarted).contains(&"Launch") && !names(&restarted).contains(&"GiveBackPciDevices"));
    let stopped = plan(&vm(json!({"power": "Stopped", "pciDevices": [{"name": "gpu"}]})), &ended(false));
    assert_eq!(names(&stopped), ["GiveBackPciDevices", "WriteJournal", "WriteJournal"]);
    assert!(recorded(&stopped).iter().all(Vec::is_empty));
    assert_eq!(stopped.readiness.reason(), Reason::Stopped);
}

#[test]
fn another_list_waits_for_the_power_cycle_and_the_status_shows_what_the_machine_has() {
    let mut running = present(RunState::Running);
    running.journal.pci_devices = vec![held(1)];
    running.journal.run.as_mut().expect("a run").profile =
        RunProfile::declared(&wants(1), &Profile::default());
    let report = |vm: &VM, observed: &Observed| {
        let status = status(vm, observed, &plan(vm, observed).readiness, at(NOW));
        let has: Vec<_> = status.pci_devices.iter().map(|d| (d.name.clone(), d.address.clone())).collect();
        (has, status.pending_power_cycle)
    };
    let has = vec![("gpu".to_owned(), "0000:01:00.0".to_owned())];
    assert_eq!(report(&wants(1), &running), (has.clone(), vec![]));
    assert_eq!(report(&wants(2), &running), (has, vec!["pciDevices".to_owned()]));
    let off = Observed { process: None, machine: None, ..running };
    assert_eq!(report(&wants(1), &off).0, []);
}

#[test]
fn a_machine_that_still_has_devices_is_not_suspended() {
    let mut running = present(RunState::Running);
    running.journal.pci_devices = vec![held(1)];
    let refused = plan(&vm(json!({"power": "Suspended"})), &running);
    assert_eq!(stands(&refused), (true, Reason::SuspendFailed));
    insta::assert_snapshot!(refused.readiness.message(), @"the guest runs on: it has PCI devices of its host until the next power cycle, and their state cannot be saved. Set power to Stopped");
}
