use std::collections::BTreeMap;

use berth_qemu::block::{IoLimits, ObservedCdrom};
use berth_qemu::machine::Bus;

use super::*;

fn disk(id: &str) -> ObservedDisk {
    ObservedDisk {
        id: id.to_owned(),
        node: Some(id.to_owned()),
        serial: id.replace('-', ""),
        file: Some(format!("/{id}.qcow2").into()),
        size: 1 << 30,
        read_only: false,
        is_encrypted: false,
        bus: Bus::VirtioScsi,
        target: Some(0),
        limits: IoLimits::default(),
        is_direct: false,
        files_below: 0,
        io_error: false,
    }
}

fn machine() -> MachineState {
    MachineState {
        run_state: RunState::Running,
        qemu_version: "7.2.0".into(),
        disks: vec![disk("v-root")],
        cdroms: Vec::new(),
        nics: Vec::new(),
        nic_ports: Vec::new(),
        links: BTreeMap::new(),
        cpus: Some(1),
        growth: None,
        has_tpm: None,
        lost_shares: None,
        ending: None,
        resumed_at: None,
        transfer: Transfer::Idle,
        saved_percent: None,
        save_failure: None,
        left_open: Default::default(),
        save_began: None,
        sleep: Default::default(),
        mirrors: Default::default(),
    }
}

#[test]
fn a_state_is_complete_only_once_qemu_has_completed_it() {
    let other = RunState::Other("finish-migrate".to_owned());
    let failed = Transfer::Failed("no space".to_owned());
    assert_eq!(has_saved(&RunState::PostMigrate, &Transfer::Completed), Ok(true));
    for state in [RunState::Paused, other.clone(), RunState::PostMigrate] {
        assert_eq!(has_saved(&state, &Transfer::Active), Ok(false), "{state:?}");
        assert_eq!(has_saved(&state, &failed), Err("no space".to_owned()), "{state:?}");
        assert_eq!(has_saved(&state, &Transfer::Idle), Err("the save was cancelled".to_owned()), "{state:?}");
    }
    for state in [RunState::Paused, other] {
        assert_eq!(has_saved(&state, &Transfer::Completed), Ok(false), "{state:?}");
    }
    assert!(has_saved(&RunState::Running, &Transfer::Idle).is_err(), "it was let go on");
}

#[test]
fn a_machine_whose_devices_were_changed_is_not_the_one_that_was_described() {
    let before = machine();
    let paused =
        MachineState { run_state: RunState::PostMigrate, transfer: Transfer::Completed, ..machine() };
    assert!(!has_changed(&before, &paused));
    let shorter = ObservedDisk { files_below: 1, file: None, ..disk("v-root") };
    assert!(!has_changed(&before, &MachineState { disks: vec![shorter], ..paused.clone() }), "the same data");
    let drive = ObservedCdrom { slot: 0, node: None, tray_open: false, locked: false };
    let grown = ObservedDisk { size: 2 << 30, ..disk("v-root") };
    for changed in [
        MachineState { disks: vec![disk("v-root"), disk("v-data")], ..paused.clone() },
        MachineState { disks: vec![grown], ..paused.clone() },
        MachineState { cdroms: vec![drive], ..paused.clone() },
        MachineState { cpus: Some(2), ..paused.clone() },
    ] {
        assert!(has_changed(&before, &changed), "{changed:?}");
    }
}
