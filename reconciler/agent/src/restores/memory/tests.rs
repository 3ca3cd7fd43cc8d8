use berth_qemu::hypervisor::ProcessIdentity;
use berth_qemu::machine::{
    Bus, Cache, DiskSpec, Extras, Firmware, Format, Graphics, NicModel, NicSpec, Tap, Topology,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::hardware::uuid_of;

fn vm(spec: Value) -> VM {
    let mut whole = json!({"class": "small", "disks": [{"name": "root", "boot": true}]});
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        whole[key] = value;
    }
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1"},
        "spec": whole,
        "status": {"instanceID": "i-1", "interfaces":
            [{"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:02", "address": "10.77.0.2"}]},
    }))
    .expect("a VM")
}

fn size(cpus: i64) -> Result<Size, SizeError> {
    let class = serde_json::from_value(json!({"cpus": cpus, "memory": "512Mi"})).expect("a class");
    vm(json!({})).spec.size(Some(&class))
}

fn machine() -> MachineSpec {
    let nic = NicSpec {
        id: "nic0".into(),
        tap: Tap::Name("t0".into()),
        mac: "52:54:00:00:00:02".into(),
        mtu: None,
        slot: 0,
        model: NicModel::Virtio,
        port: None,
        queues: 1,
        no_vhost: false,
    };
    MachineSpec {
        instance: "i-1".into(),
        name: "ns/web".into(),
        uuid: uuid_of(&vm(json!({}))),
        cpus: 1,
        topology: Topology::of_cores(1),
        numa_nodes: 1,
        memory_bytes: 512 << 20,
        max_memory_bytes: None,
        huge_page_bytes: None,
        accelerator: Accelerator::Kvm,
        firmware: Firmware::Uefi,
        machine_type: "pc-q35-7.2".into(),
        cpu_model: "host".into(),
        disks: Vec::new(),
        cdroms: Vec::new(),
        nics: vec![nic],
        nic_ports: 0,
        graphics: Graphics::None,
        pci_devices: Vec::new(),
        vgpus: Vec::new(),
        usb_devices: Vec::new(),
        shares: Vec::new(),
        extras: Extras::default(),
        tpm: false,
    }
}

/// The memory of the VM of [`vm`], with the hardware that it declares.
fn saved() -> SavedMachine {
    let size = size(1).expect("a size");
    let run = json!({
        "class": "small", "cpus": 1, "memoryBytes": size.memory, "firmware": size.firmware.as_str(), "tpm": size.tpm,
        "topology": size.topology, "numaNodes": size.numa_nodes, "maxCpus": size.max_cpus, "bootVolume": "v-root",
    });
    let run: Run = serde_json::from_value(run).expect("a run");
    let process = ProcessIdentity { pid: 1, start_time: 1, boot_id: "b".into() };
    SavedMachine {
        version: 1,
        at: Timestamp::UNIX_EPOCH,
        process,
        run: Run { graphics: vm(json!({})).spec.graphics, ..run },
        machine: machine(),
        bootstrap: vec!["seed".to_owned()],
    }
}

fn journal() -> Journal {
    Journal::new(&vm(json!({}))).with_slots(["nic0"].into_iter())
}

fn why_not(vm: &VM, saved: &SavedMachine, cpus: i64) -> Option<String> {
    obstacle(vm, &journal(), saved, (&size(cpus), &Profile::default()))
}

#[test]
fn a_guest_goes_on_with_its_memory_only_if_its_vm_declares_the_hardware_that_it_had() {
    let same = vm(json!({}));
    assert_eq!(why_not(&same, &saved(), 1), None);
    let larger = why_not(&same, &saved(), 2).expect("another number of CPUs");
    assert!(larger.contains("another cpus"), "{larger}");
    let class = why_not(&vm(json!({"class": "large"})), &saved(), 1).expect("another class");
    assert!(class.contains("another class"), "{class}");
    let mut other = saved();
    other.machine.instance = "i-2".into();
    assert!(why_not(&same, &other, 1).expect("another VM").contains("another VM"));
}

#[test]
fn a_guest_goes_on_with_its_memory_only_with_the_network_cards_that_it_had() {
    let without = vm(json!({"networkInterfaces": []}));
    let removed = why_not(&without, &saved(), 1).expect("its interface was removed");
    assert!(removed.contains("network interfaces"), "{removed}");
    let mut other = saved();
    other.machine.nics[0].mac = "52:54:00:00:00:03".into();
    assert!(why_not(&vm(json!({})), &other, 1).is_some(), "another MAC address");
}

#[test]
fn a_guest_goes_on_with_its_memory_only_with_its_disks_as_they_were() {
    let mut machine = machine();
    machine.disks = vec![DiskSpec {
        id: "v-root".into(),
        file: "/root.qcow2".into(),
        format: Format::Qcow2,
        backing: None,
        serial: "vroot".into(),
        wwn: None,
        boot: true,
        read_only: false,
        target: Some(0),
        cache: Cache::default(),
        bus: Bus::VirtioScsi,
        keeps_space: false,
        shared: false,
    }];
    let declared = |disk: Value| {
        let disk: VMDisk = serde_json::from_value(disk).expect("a disk");
        other_disk(&[("v-root".to_owned(), disk)], &machine)
    };
    assert_eq!(declared(json!({"name": "root", "boot": true})), None);
    for (disk, name) in [
        (json!({"name": "root"}), "boot"),
        (json!({"name": "root", "boot": true, "bus": "virtio-blk"}), "bus"),
        (json!({"name": "root", "boot": true, "readOnly": true}), "readOnly"),
    ] {
        let why = declared(disk).expect("it differs");
        assert!(why.contains("disk root") && why.contains(name), "{why}");
    }
    let added: VMDisk = serde_json::from_value(json!({"name": "new", "boot": false})).expect("a disk");
    assert_eq!(other_disk(&[("v-new".to_owned(), added)], &machine), None, "it is plugged in later");
}

#[test]
fn a_guest_goes_on_with_its_memory_only_with_the_machine_type_that_it_had() {
    let of_type = |name: &str| why_not(&vm(json!({"machineType": name})), &saved(), 1);
    assert_eq!(of_type("pc-q35-7.2"), None);
    assert!(of_type("pc-q35-9.2").expect("another one").contains("another machineType"));
}

#[test]
fn a_guest_goes_on_with_its_memory_only_with_the_devices_for_bootstrap_data_that_it_had() {
    assert_eq!(other_bootstrap(&["seed".to_owned()], &saved()), None);
    assert!(other_bootstrap(&[], &saved()).is_some());
    assert!(other_bootstrap(&["ignition".to_owned(), "seed".to_owned()], &saved()).is_some());
}

#[test]
fn a_note_of_a_newer_agent_is_not_read() {
    assert_eq!(SavedMachine::parse(saved().to_value()), Some(saved()));
    let newer = SavedMachine { version: 2, ..saved() };
    assert_eq!(SavedMachine::parse(newer.to_value()), None);
    assert_eq!(SavedMachine::parse(json!("damaged")), None);
}
