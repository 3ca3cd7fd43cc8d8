//! Network cards, shares, TPM, watchdog, and the PCI and USB devices and vGPUs of the host.

use super::*;

#[test]
fn a_card_that_an_earlier_version_recorded_is_read() {
    let mut recorded = serde_json::to_value(nic()).expect("JSON");
    let fields = recorded.as_object_mut().expect("an object");
    for later in ["model", "port", "queues", "no_vhost"] {
        assert!(fields.remove(later).is_some(), "{later}");
    }
    assert_eq!(serde_json::from_value::<NicSpec>(recorded).expect("a card"), nic());
}

#[test]
fn a_tpm_is_a_device_that_its_emulator_answers_for() {
    let emulator = || Some(TpmFiles { program: "/usr/bin/swtpm".into(), state: "/i/tpm".into() });
    let tpm = with(|s| {
        s.machine.tpm = true;
        s.files.tpm = emulator();
    });
    tpm.validate().expect("it is complete");
    insta::assert_snapshot!(added(&spec(), &tpm), @r##"
    -chardev socket,id=tpm0,path=/run/berth/i-7f2f6d5e/tpm.sock
    -tpmdev emulator,id=tpm0,chardev=tpm0
    -device {"driver":"tpm-crb","tpmdev":"tpm0"}
    "##);
    assert!(with(|s| s.machine.tpm = true).validate().is_err(), "without its emulator");
    assert!(with(|s| s.files.tpm = emulator()).validate().is_err(), "an emulator without a TPM");
}

#[test]
fn shares_are_devices_with_servers_and_share_the_guests_memory_with_them() {
    let changed = with(|s| {
        s.machine.max_memory_bytes = Some(2 << 30);
        s.machine.shares = vec![share("media", true), share("data", false)];
        s.files.virtiofs = Some(virtiofs(&[true, false]));
    });
    insta::assert_snapshot!(added(&spec(), &changed), @r##"
    -m size=524288k,maxmem=2097152k
    -object {"id":"ram","qom-type":"memory-backend-memfd","share":true,"size":536870912}
    -object {"id":"memory0-ram","qom-type":"memory-backend-memfd","reserve":false,"share":true,"size":1610612736}
    -device {"addr":"0x6","block-size":2097152,"bus":"pcie.0","driver":"virtio-mem-pci","id":"memory0","memdev":"memory0-ram","requested-size":0}
    -chardev socket,id=share-media,path=/run/berth/i-7f2f6d5e/fs0.sock
    -device {"addr":"0xb.0","bus":"pcie.0","chardev":"share-media","driver":"vhost-user-fs-pci","id":"fs0","multifunction":true,"queue-size":1024,"tag":"media"}
    -chardev socket,id=share-data,path=/run/berth/i-7f2f6d5e/fs1.sock
    -device {"addr":"0xb.1","bus":"pcie.0","chardev":"share-data","driver":"vhost-user-fs-pci","id":"fs1","multifunction":true,"queue-size":1024,"tag":"data"}
    "##);
    let huge = with(|s| {
        s.machine.huge_page_bytes = Some(2 << 20);
        s.machine.shares = vec![share("data", false)];
        s.files.virtiofs = Some(virtiofs(&[false]));
    });
    let lines = added(&spec(), &huge);
    assert!(lines.contains("\"hugetlb\":true") && lines.contains("\"share\":true"), "{lines}");
}

#[test]
fn shares_without_folders_or_with_others_and_equal_tags_are_refused() {
    let refused = |shares: Vec<ShareSpec>, files: Option<VirtiofsFiles>| {
        let changed = with(|s| {
            s.machine.shares = shares;
            s.files.virtiofs = files;
        });
        changed.validate().is_err()
    };
    let data = || share("data", false);
    assert!(!refused(vec![data()], Some(virtiofs(&[false]))));
    assert!(!refused(Vec::new(), None));
    assert!(refused(vec![data()], None));
    assert!(refused(Vec::new(), Some(virtiofs(&[]))));
    assert!(refused(vec![share("data", true)], Some(virtiofs(&[false]))), "it would be writable");
    assert!(refused(vec![data(), data()], Some(virtiofs(&[false, false]))));
    for tag in ["", "a,b", "a b", &"a".repeat(37)] {
        assert!(
            refused(vec![ShareSpec { tag: tag.to_owned(), ..data() }], Some(virtiofs(&[false]))),
            "{tag}"
        );
    }
    let many = (0..9).map(|n| share(&format!("s{n}"), false)).collect();
    assert!(refused(many, Some(virtiofs(&[false; 9]))));
}

fn share(name: &str, read_only: bool) -> ShareSpec {
    ShareSpec { name: name.to_owned(), tag: name.to_owned(), read_only }
}

fn virtiofs(read_only: &[bool]) -> VirtiofsFiles {
    let folder = |read_only: &bool| SharedFolder { path: "/srv".into(), read_only: *read_only };
    VirtiofsFiles {
        program: "/usr/libexec/virtiofsd".into(),
        folders: read_only.iter().map(folder).collect(),
    }
}

#[test]
fn another_network_card_has_the_same_slot_and_no_mtu_of_its_own() {
    for (model, driver) in
        [(NicModel::E1000, "e1000"), (NicModel::E1000e, "e1000e"), (NicModel::Rtl8139, "rtl8139")]
    {
        let changed = with(|s| s.machine.nics = vec![NicSpec { model, ..nic() }]);
        let device = format!(
            r#"-device {{"addr":"0x10","bus":"pcie.0","driver":"{driver}","id":"nic0","mac":"52:54:00:12:34:56","netdev":"net-nic0","romfile":""}}"#
        );
        assert_eq!(added(&with(|s| s.machine.nics = vec![nic()]), &changed).trim(), device);
    }
}

#[test]
fn ports_for_network_cards_beyond_eight_are_in_a_slot_of_their_own_and_change_no_other_port() {
    let ports = |count| with(move |s| s.machine.nic_ports = count);
    insta::assert_snapshot!(added(&ports(8), &ports(NIC_PORTS)), @r#"
    -device {"addr":"0xd.0","bus":"pcie.0","chassis":25,"driver":"pcie-root-port","id":"nicport8","io-reserve":0,"multifunction":true}
    -device {"addr":"0xd.1","bus":"pcie.0","chassis":26,"driver":"pcie-root-port","id":"nicport9","io-reserve":0,"multifunction":true}
    "#);
}

#[test]
fn a_watchdog_is_a_device_and_an_action() {
    let of = |watchdog| added(&spec(), &with(|s| s.machine.extras.watchdog = Some(watchdog)));
    insta::assert_snapshot!(of(Watchdog::Reset), @r##"
    -device {"addr":"0x8","bus":"pcie.0","driver":"i6300esb","id":"watchdog0"}
    -action shutdown=pause,reboot=reset,panic=pause,watchdog=reset
    "##);
    assert!(of(Watchdog::Stop).ends_with("watchdog=pause"));
}

#[test]
fn the_packets_of_a_card_with_vhost_are_moved_by_the_kernel() {
    let vhost = NicSpec { tap: Tap::Open { taps: vec![7], vhosts: vec![8] }, ..nic() };
    let netdev = added(&with(|s| s.machine.nics = vec![nic()]), &with(|s| s.machine.nics = vec![vhost]));
    assert_eq!(netdev, "-netdev tap,id=net-nic0,fds=7,vhost=on,vhostfds=8");
}

#[test]
fn a_card_with_several_queues_has_a_descriptor_and_two_vectors_for_each() {
    let tap = Tap::Open { taps: vec![7, 8], vhosts: vec![9, 10] };
    let several = NicSpec { tap, queues: 2, ..nic() };
    let changed = added(&with(|s| s.machine.nics = vec![nic()]), &with(|s| s.machine.nics = vec![several]));
    let netdev = "-netdev tap,id=net-nic0,fds=7:8,vhost=on,vhostfds=9:10";
    assert!(changed.starts_with(netdev), "{changed}");
    assert!(changed.contains(r#""mq":true"#) && changed.contains(r#""vectors":6"#), "{changed}");
}

#[test]
fn pci_devices_of_the_host_have_ports_of_their_own_and_functions_stay_together() {
    let gpu = PciDeviceSpec {
        functions: vec!["0000:01:00.0".to_owned(), "0000:01:00.1".to_owned()],
        groups: vec![1],
    };
    let nic = PciDeviceSpec { functions: vec!["0000:02:10.3".to_owned()], groups: vec![7] };
    let changed = with(|s| s.machine.pci_devices = vec![gpu.clone(), nic.clone()]);
    insta::assert_snapshot!(added(&spec(), &changed), @r#"
    -device {"addr":"0xa.0","bus":"pcie.0","chassis":9,"driver":"pcie-root-port","id":"hostport0","multifunction":true}
    -device {"addr":"0x0.0","bus":"hostport0","driver":"vfio-pci","host":"0000:01:00.0","id":"host0-0","multifunction":true}
    -device {"addr":"0x0.1","bus":"hostport0","driver":"vfio-pci","host":"0000:01:00.1","id":"host0-1","multifunction":true}
    -device {"addr":"0xa.1","bus":"pcie.0","chassis":10,"driver":"pcie-root-port","id":"hostport1","multifunction":true}
    -device {"addr":"0x0.0","bus":"hostport1","driver":"vfio-pci","host":"0000:02:10.3","id":"host1-0","multifunction":false}
    "#);
    assert_eq!(changed.validate(), Ok(()));
    for wrong in ["01:00.0", "0000:01:00", "0000:01:00.0,rombar=0", "../devices/x", ""] {
        let device = PciDeviceSpec { functions: vec![wrong.to_owned()], groups: vec![1] };
        assert!(with(|s| s.machine.pci_devices = vec![device]).validate().is_err(), "{wrong}");
    }
    let twice = with(|s| s.machine.pci_devices = vec![nic.clone(), nic.clone()]);
    assert!(matches!(twice.validate(), Err(SpecError::Twice { .. })));
    let many = (0..9).map(|n| PciDeviceSpec { functions: vec![format!("0000:0{n}:00.0")], groups: vec![n] });
    assert!(with(|s| s.machine.pci_devices = many.collect()).validate().is_err());
}

#[test]
fn usb_devices_of_the_host_are_named_by_their_device_files_and_have_ports_enough() {
    let key = UsbDeviceSpec { port: "1-2.3".to_owned(), bus: 1, number: 14 };
    let changed = with(|s| s.machine.usb_devices = vec![key.clone()]);
    insta::assert_snapshot!(added(&spec(), &changed), @r#"
    -device {"addr":"0x7","bus":"pcie.0","driver":"qemu-xhci","id":"usb0","p2":15,"p3":15}
    -device {"bus":"usb0.0","driver":"usb-host","hostdevice":"/dev/bus/usb/001/014","id":"hostusb0"}
    "#);
    assert_eq!(changed.validate(), Ok(()));
    let beside_others = shown(&with(|s| {
        s.machine.graphics = Graphics::Vga;
        s.files.sysprep = Some("/run/sysprep.img".into());
        s.machine.usb_devices = vec![key.clone()];
    }));
    assert_eq!(beside_others.matches("qemu-xhci").count(), 1, "one controller for all: {beside_others}");
    for (bus, number) in [(0, 1), (1, 0), (1, 128), (1000, 1)] {
        let device = UsbDeviceSpec { bus, number, ..key.clone() };
        let wrong = with(|s| s.machine.usb_devices = vec![device]);
        assert!(wrong.validate().is_err(), "bus {bus}, device {number}");
    }
    let twice = with(|s| s.machine.usb_devices = vec![key.clone(), key.clone()]);
    assert!(matches!(twice.validate(), Err(SpecError::Twice { .. })));
    let many = (1..=9).map(|number| UsbDeviceSpec { number, ..key.clone() }).collect();
    assert!(with(|s| s.machine.usb_devices = many).validate().is_err());
}

#[test]
fn vgpus_are_named_by_their_folders_in_sysfs_and_have_ports_of_their_own() {
    let vgpu = |uuid: &str| VgpuSpec {
        uuid: uuid.to_owned(),
        parent: "0000:41:00.0".to_owned(),
        mdev_type: "nvidia-558".to_owned(),
    };
    let first = vgpu("0f5b2c6e-8a4b-8d0e-9c1f-1a2b3c4d5e6f");
    let second = vgpu("7d1a9e40-35c2-8b6f-a0d4-6f5e4d3c2b1a");
    let gpu = PciDeviceSpec { functions: vec!["0000:01:00.0".to_owned()], groups: vec![1] };
    let beside_a_device = with(|s| s.machine.pci_devices = vec![gpu.clone()]);
    let changed = with(|s| {
        s.machine.pci_devices = vec![gpu];
        s.machine.vgpus = vec![first.clone(), second];
    });
    insta::assert_snapshot!(added(&beside_a_device, &changed), @r#"
    -device {"addr":"0xc.0","bus":"pcie.0","chassis":17,"driver":"pcie-root-port","id":"vgpuport0","io-reserve":0,"multifunction":true}
    -device {"addr":"0x0","bus":"vgpuport0","display":"off","driver":"vfio-pci","id":"vgpu0","sysfsdev":"/sys/bus/mdev/devices/0f5b2c6e-8a4b-8d0e-9c1f-1a2b3c4d5e6f"}
    -device {"addr":"0xc.1","bus":"pcie.0","chassis":18,"driver":"pcie-root-port","id":"vgpuport1","io-reserve":0,"multifunction":true}
    -device {"addr":"0x0","bus":"vgpuport1","display":"off","driver":"vfio-pci","id":"vgpu1","sysfsdev":"/sys/bus/mdev/devices/7d1a9e40-35c2-8b6f-a0d4-6f5e4d3c2b1a"}
    "#);
    assert_eq!(changed.validate(), Ok(()));
    for wrong in ["", "../devices/x", "0f5b2c6e", "0f5b2c6e-8a4b-8d0e-9c1f-1a2b3c4d5e6f,display=on"] {
        assert!(with(|s| s.machine.vgpus = vec![vgpu(wrong)]).validate().is_err(), "{wrong}");
    }
    let twice = with(|s| s.machine.vgpus = vec![first.clone(), first.clone()]);
    assert!(matches!(twice.validate(), Err(SpecError::Twice { .. })));
    let many = (0..9).map(|n| vgpu(&format!("0f5b2c6e-8a4b-8d0e-9c1f-00000000000{n}"))).collect();
    assert!(with(|s| s.machine.vgpus = many).validate().is_err());
}

#[test]
fn a_scratch_disk_is_a_scsi_disk_with_a_serial_number_of_its_own() {
    let scratch = with(|s| s.files.scratch = Some("/instances/i-1/scratch.qcow2".into()));
    let lines = added(&spec(), &scratch);
    for part in
        [r#""serial":"scratch""#, r#""filename":"/instances/i-1/scratch.qcow2""#, r#""driver":"qcow2""#]
    {
        assert!(lines.contains(part), "{part}: {lines}");
    }
    let taken = with(|s| s.machine.disks[0].target = Some(SCRATCH_TARGET));
    assert!(taken.machine.validate().is_err(), "its target is kept for it");
}
