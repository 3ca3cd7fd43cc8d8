//! PCI and USB devices of the host for a VM.

use berth_host::{PciDeviceFacts, UsbDeviceFacts};
use berth_qemu::machine::{PciDeviceSpec, UsbDeviceSpec};

use super::*;
use crate::journal::Held;

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

fn held(number: u32) -> Held<PciDeviceSpec> {
    let facts = gpu(number);
    Held { name: "gpu".into(), device: PciDeviceSpec { functions: facts.functions, groups: facts.groups } }
}

fn with(devices: Vec<PciDeviceFacts>) -> Observed {
    Observed { host: Some(HostFacts { pci_devices: devices, ..host() }), ..ready_to_start() }
}

fn wants(count: i64) -> VM {
    vm(json!({"pciDevices": [{"name": "gpu", "count": count}]}))
}

/// Plans with the profile that the VM and its class declare.
fn planned(vm: &VM, observed: &Observed) -> Plan<Step> {
    plan(vm, &Observed { profile: vm.spec.profile(None), ..observed.clone() })
}

fn launched(plan: &Plan<Step>) -> Vec<Vec<String>> {
    let request = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request),
        _ => None,
    });
    let devices = &request.expect("it is launched").machine.pci_devices;
    devices.iter().map(|device| device.functions.clone()).collect()
}

fn recorded(plan: &Plan<Step>) -> Vec<Vec<Held<PciDeviceSpec>>> {
    let journals = plan.steps.iter().filter_map(|step| match step {
        Step::WriteJournal(journal) => Some(journal.pci_devices.clone()),
        _ => None,
    });
    journals.collect()
}

#[test]
fn devices_are_recorded_before_they_are_taken_and_taken_before_the_launch() {
    let plan = planned(&wants(2), &with(vec![gpu(1), gpu(2), gpu(3)]));
    assert_eq!(
        names(&plan),
        ["WriteJournal", "EnsureNetworks", "MakeTap", "TakeDevices", "Launch", "Start", "WatchLeases"]
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
    assert_eq!(launched(&planned(&wants(1), &observed)), [["0000:03:00.0"]]);

    let broken = PciDeviceFacts { problem: Some("it is in no IOMMU group".into()), ..gpu(2) };
    let missing = planned(&wants(2), &with(vec![others, broken, gpu(4)]));
    assert_eq!(stands(&missing), (true, Reason::DeviceUnavailable));
    assert!(missing.requeue_after.is_some(), "the host is looked at again");
    insta::assert_snapshot!(missing.readiness.message(), @"the VM needs 2 PCI devices gpu and this host has 1 for it (0000:01:00.0: another VM has it; 0000:02:00.0: it is in no IOMMU group)");
    let none = planned(&wants(1), &with(Vec::new()));
    insta::assert_snapshot!(none.readiness.message(), @"this host offers no PCI devices gpu: its administrator does with --pci-device");
}

#[test]
fn a_display_controller_excludes_graphics() {
    let display = || with(vec![PciDeviceFacts { display: true, ..gpu(1) }]);
    let screen = vm(json!({"pciDevices": [{"name": "gpu"}], "graphics": "VGA"}));
    let refused = planned(&screen, &display());
    assert_eq!(stands(&refused), (true, Reason::NotSupported));
    insta::assert_snapshot!(refused.readiness.message(), @"pciDevices: gpu (0000:01:00.0) is a display controller, and a VM with one has no graphics: set graphics to None, or take gpu out");
    assert_eq!(launched(&planned(&wants(1), &display())).len(), 1);
    assert_eq!(launched(&planned(&screen, &with(vec![gpu(1)]))).len(), 1, "another device has no screen");
}

#[test]
fn devices_that_are_no_longer_declared_are_given_back_before_others_are_taken() {
    let mut observed = with(vec![gpu(1), gpu(2)]);
    observed.journal.pci_devices = vec![held(1)];
    let first = planned(&vm(json!({})), &observed);
    assert_eq!(names(&first), ["GiveBackDevices", "WriteJournal"]);
    assert_eq!(recorded(&first), [Vec::new()]);
    observed.journal.pci_devices.clear();
    assert!(!names(&planned(&vm(json!({})), &observed)).contains(&"GiveBackDevices"));
}

#[test]
fn a_vm_that_stays_off_gives_its_devices_back_and_one_that_is_restarted_keeps_them() {
    let ended = |orderly| {
        let mut observed = with(vec![PciDeviceFacts { held_by: Some("i-0123456789ab".into()), ..gpu(1) }]);
        let ended = Ended { at: at(NOW - 1), orderly, how: "ended".into(), out_of_memory: false };
        observed.journal =
            Journal { run: Some(Run { process: None, ..run() }), ..observed.journal }.with_ending(ended);
        observed.journal.pci_devices = vec![held(1)];
        observed.journal_written = true;
        observed
    };
    let off = planned(&wants(1), &ended(true));
    assert_eq!(names(&off), ["GiveBackDevices", "WriteJournal"]);
    assert_eq!(off.readiness.reason(), Reason::GuestEnded);
    let restarted = planned(&wants(1), &ended(false));
    assert!(names(&restarted).contains(&"Launch") && !names(&restarted).contains(&"GiveBackDevices"));
    let stopped = planned(&vm(json!({"power": "Stopped", "pciDevices": [{"name": "gpu"}]})), &ended(false));
    assert_eq!(names(&stopped), ["GiveBackDevices", "WriteJournal", "WriteJournal"]);
    assert!(recorded(&stopped).iter().all(Vec::is_empty));
    assert_eq!(stopped.readiness.reason(), Reason::Stopped);
}

#[test]
fn another_list_waits_for_the_power_cycle_and_the_status_shows_what_the_machine_has() {
    let mut running = present(RunState::Running);
    running.journal.pci_devices = vec![held(1)];
    running.journal.run.as_mut().expect("a run").profile =
        RunProfile::declared(&wants(1), &wants(1).spec.profile(None));
    let report = |vm: &VM, observed: &Observed| {
        let observed = &Observed { profile: vm.spec.profile(None), ..observed.clone() };
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
    let refused = planned(&vm(json!({"power": "Suspended"})), &running);
    assert_eq!(stands(&refused), (true, Reason::SuspendFailed));
    insta::assert_snapshot!(refused.readiness.message(), @"the guest runs on: it has PCI devices of its host until the next power cycle, and their state cannot be saved. Set power to Stopped");
}

fn key(number: u16) -> UsbDeviceFacts {
    UsbDeviceFacts {
        name: "key".into(),
        port: format!("1-{number}"),
        id: Some("0403:6001".into()),
        bus: 1,
        number,
        ..UsbDeviceFacts::default()
    }
}

fn held_key(number: u16) -> Held<UsbDeviceSpec> {
    Held { name: "key".into(), device: UsbDeviceSpec { port: format!("1-{number}"), bus: 1, number } }
}

fn with_keys(usb_devices: Vec<UsbDeviceFacts>) -> Observed {
    Observed { host: Some(HostFacts { usb_devices, ..host() }), ..ready_to_start() }
}

fn wants_keys(count: i64) -> VM {
    vm(json!({"usbDevices": [{"name": "key", "count": count}]}))
}

fn launched_keys(plan: &Plan<Step>) -> Vec<u16> {
    let devices = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(&request.machine.usb_devices),
        _ => None,
    });
    devices.expect("it is launched").iter().map(|device| device.number).collect()
}

#[test]
fn usb_devices_are_recorded_taken_and_given_back_as_pci_devices_are() {
    let plan = planned(&wants_keys(2), &with_keys(vec![key(1), key(2), key(3)]));
    assert_eq!(
        names(&plan),
        ["WriteJournal", "EnsureNetworks", "MakeTap", "TakeDevices", "Launch", "Start", "WatchLeases"]
    );
    let Step::WriteJournal(journal) = &plan.steps[0] else { panic!("{plan:?}") };
    assert_eq!((&journal.usb_devices[..], journal.pci_devices.len()), (&[held_key(1), held_key(2)][..], 0));
    assert_eq!(launched_keys(&plan), [1, 2]);

    let mut stopped = with_keys(vec![key(1)]);
    stopped.journal.usb_devices = vec![held_key(1)];
    let plan = planned(&vm(json!({"power": "Stopped"})), &stopped);
    assert!(names(&plan).starts_with(&["GiveBackDevices", "WriteJournal"]), "{:?}", names(&plan));
    let screen = vm(json!({"usbDevices": [{"name": "key"}], "graphics": "VGA"}));
    assert_eq!(launched_keys(&planned(&screen, &with_keys(vec![key(1)]))), [1]);
}

#[test]
fn a_usb_device_that_is_unplugged_keeps_its_vm_off_and_one_that_was_plugged_in_again_is_taken_anew() {
    let others = UsbDeviceFacts { held_by: Some("i-other".into()), ..key(1) };
    let gone = UsbDeviceFacts { problem: Some("this host has no device in port 1-2".into()), ..key(2) };
    let missing = planned(&wants_keys(1), &with_keys(vec![others, gone]));
    assert_eq!(stands(&missing), (true, Reason::DeviceUnavailable));
    assert!(missing.requeue_after.is_some(), "the host is looked at again");
    insta::assert_snapshot!(missing.readiness.message(), @"the VM needs 1 USB devices key and this host has 0 for it (1-1: another VM has it; 1-2: this host has no device in port 1-2)");
    let none = planned(&wants_keys(1), &with_keys(Vec::new()));
    insta::assert_snapshot!(none.readiness.message(), @"this host offers no USB devices key: its administrator does with --usb-device");

    let again = UsbDeviceFacts { number: 9, held_by: Some("i-0123456789ab".into()), ..key(1) };
    let mut observed = with_keys(vec![again]);
    observed.journal.usb_devices = vec![held_key(1)];
    assert_eq!(names(&planned(&wants_keys(1), &observed)), ["GiveBackDevices", "WriteJournal"]);
    observed.journal.usb_devices.clear();
    assert_eq!(launched_keys(&planned(&wants_keys(1), &observed)), [9]);
}

#[test]
fn a_running_machine_shows_its_usb_devices_and_is_neither_changed_nor_suspended() {
    let mut running = present(RunState::Running);
    running.journal.usb_devices = vec![held_key(1)];
    let wants = wants_keys(1);
    running.journal.run.as_mut().expect("a run").profile =
        RunProfile::declared(&wants, &wants.spec.profile(None));
    let report = |vm: &VM| {
        let observed = Observed { profile: vm.spec.profile(None), ..running.clone() };
        let status = status(vm, &observed, &plan(vm, &observed).readiness, at(NOW));
        let ports: Vec<String> = status.usb_devices.iter().map(|device| device.port.clone()).collect();
        (ports, status.pending_power_cycle)
    };
    let has = vec!["1-1".to_owned()];
    assert_eq!(report(&wants), (has.clone(), vec![]));
    assert_eq!(report(&wants_keys(2)), (has, vec!["usbDevices".to_owned()]));
    let refused = planned(&vm(json!({"power": "Suspended"})), &running);
    assert_eq!(stands(&refused), (true, Reason::SuspendFailed));
    insta::assert_snapshot!(refused.readiness.message(), @"the guest runs on: it has USB devices of its host until the next power cycle, and their state cannot be saved. Set power to Stopped");
}

#[test]
fn a_vm_without_devices_of_its_own_gets_those_of_its_class() {
    let class = serde_json::from_value(json!({"cpus": 1, "pciDevices": [{"name": "gpu"}]})).expect("a class");
    let profile = vm(json!({})).spec.profile(Some(&class));
    let mut observed = Observed { profile: profile.clone(), ..with(vec![gpu(1)]) };
    assert_eq!(launched(&plan(&vm(json!({})), &observed)), [["0000:01:00.0"]]);
    // Its class gets devices while it runs.
    observed = Observed { profile, ..present(RunState::Running) };
    let status = status(&vm(json!({})), &observed, &plan(&vm(json!({})), &observed).readiness, at(NOW));
    assert_eq!(status.pending_power_cycle, ["pciDevices"]);
}
