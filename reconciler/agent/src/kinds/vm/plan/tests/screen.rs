//! Screen, sound and boot order.

use berth_qemu::machine::{BootSource, Extras};

use super::*;

fn desktop() -> VM {
    vm(
        json!({"graphics": "VGA", "resolution": "1920x1080", "keyboardLayout": "de", "sound": true, "serialPorts": 2, "bootOrder": ["Network", "Disk"]}),
    )
}

fn extras(plan: &Plan<Step>) -> Option<Extras> {
    plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine.extras.clone()),
        _ => None,
    })
}

#[test]
fn the_declared_screen_sound_and_boot_order_are_those_of_the_machine_and_a_change_waits() {
    let planned = plan(&desktop(), &ready_to_start());
    let wanted = Extras {
        boot_order: vec![BootSource::Network, BootSource::Disk],
        resolution: Some((1920, 1080)),
        keyboard_layout: Some("de".to_owned()),
        sound: true,
        further_serial_ports: 1,
        // One emulated CPU.
        place_for_second_cpu: true,
        ..Extras::default()
    };
    assert_eq!(extras(&planned), Some(wanted));
    let Some(Step::WriteJournal(journal)) = planned.steps.first() else { panic!("{planned:?}") };
    let mut running = Observed { journal: (**journal).clone(), ..present(RunState::Running) };
    running.journal.run.as_mut().expect("a run").process = Some(identity());
    let pending = |vm: &VM| status(vm, &running, &plan(vm, &running).readiness, at(NOW)).pending_power_cycle;
    assert!(pending(&desktop()).is_empty());
    let names = ["graphics", "resolution", "keyboardLayout", "sound", "serialPorts", "bootOrder"];
    assert_eq!(pending(&vm(json!({}))), names);
    let stored = Journal::parse(running.journal.to_value()).expect("just written");
    assert_eq!(stored, running.journal);
}

#[test]
fn a_host_without_ipxe_starts_no_vm_that_boots_from_the_network_by_it() {
    let mut observed = ready_to_start();
    observed.host.as_mut().and_then(|host| host.qemu.as_mut().ok()).expect("set").boot_roms = false;
    // UEFI has a driver for the virtio card.
    assert!(extras(&plan(&desktop(), &observed)).is_some());
    observed.size = size(json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"}));
    let refused = plan(&desktop(), &observed);
    assert_eq!(stands(&refused), (true, Reason::NotSupported));
    insta::assert_snapshot!(refused.readiness.message(), @"iPXE, by which network cards boot, is not installed on this host (Debian: apt install ipxe-qemu), and the VM or its class asks for it");
    assert!(extras(&plan(&vm(json!({})), &observed)).is_some(), "it boots its disk");
}
