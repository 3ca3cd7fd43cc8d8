mod screen;

use std::path::Path;

use proptest::prelude::*;

use super::*;

/// A machine without disks, for tests that never start it.
pub(crate) fn example(directory: &Path) -> LaunchSpec {
    with(|s| {
        s.machine.disks = Vec::new();
        s.files.paths = MachinePaths::in_directory(directory);
    })
}

fn spec() -> LaunchSpec {
    LaunchSpec {
        machine: MachineSpec {
            instance: "i-7f2f6d5e".to_owned(),
            name: "web".to_owned(),
            uuid: "7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c".to_owned(),
            cpus: 2,
            topology: Topology::of_cores(2),
            numa_nodes: 1,
            memory_bytes: 512 << 20,
            max_memory_bytes: None,
            huge_page_bytes: None,
            accelerator: Accelerator::Tcg { tb_size_mib: 32 },
            firmware: Firmware::Bios,
            machine_type: "pc-q35-7.2".to_owned(),
            cpu_model: "qemu64".to_owned(),
            disks: vec![root()],
            cdroms: vec![],
            nics: vec![],
            nic_ports: 0,
            pci_devices: Vec::new(),
            usb_devices: Vec::new(),
            vgpus: Vec::new(),
            shares: Vec::new(),
            graphics: Graphics::None,
            extras: Extras::default(),
            tpm: false,
        },
        files: MachineFiles::new(MachinePaths::in_directory("/run/berth/i-7f2f6d5e")),
        affinity: Default::default(),
    }
}

fn with(change: impl FnOnce(&mut LaunchSpec)) -> LaunchSpec {
    let mut spec = spec();
    change(&mut spec);
    spec
}

fn root() -> DiskSpec {
    DiskSpec {
        id: "root".to_owned(),
        file: "/pool/v-1.qcow2".into(),
        format: Format::Qcow2,
        backing: Some(Backing { file: "/pool/images/abc.raw".into(), format: Format::Raw, backing: None }),
        serial: "v-1".to_owned(),
        wwn: None,
        boot: true,
        read_only: false,
        target: Some(0),
        cache: Cache::Writeback,
        bus: Bus::VirtioScsi,
        keeps_space: false,
    }
}

fn nic() -> NicSpec {
    NicSpec {
        id: "nic0".to_owned(),
        tap: Tap::Name("tap0".to_owned()),
        mac: "52:54:00:12:34:56".to_owned(),
        mtu: Some(1450),
        slot: 0,
        model: NicModel::default(),
        port: None,
        queues: 1,
        no_vhost: false,
    }
}

#[test]
fn a_card_that_an_earlier_version_recorded_is_read() {
    let mut recorded = serde_json::to_value(nic()).expect("JSON");
    let fields = recorded.as_object_mut().expect("an object");
    for later in ["model", "port", "queues", "no_vhost"] {
        assert!(fields.remove(later).is_some(), "{later}");
    }
    assert_eq!(serde_json::from_value::<NicSpec>(recorded).expect("a card"), nic());
}

/// Prints one option with its value per line.
fn shown(spec: &LaunchSpec) -> String {
    let mut lines: Vec<String> = Vec::new();
    for argument in command_line(spec) {
        match (argument.starts_with('-'), lines.last_mut()) {
            (false, Some(line)) => {
                line.push(' ');
                line.push_str(&argument);
            }
            _ => lines.push(argument),
        }
    }
    lines.join("\n")
}

/// Returns the lines of `changed` that `base` does not have.
fn added(base: &LaunchSpec, changed: &LaunchSpec) -> String {
    let before = shown(base);
    let lines: Vec<String> =
        shown(changed).lines().filter(|l| !before.lines().any(|b| b == *l)).map(str::to_owned).collect();
    lines.join("\n")
}

#[test]
fn a_small_machine_is_this_command_line() {
    insta::assert_snapshot!(shown(&spec()), @r##"
    -name guest=web,debug-threads=on
    -uuid 7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c
    -smbios type=1,manufacturer=berth,product=VM,serial=i-7f2f6d5e
    -nodefaults
    -no-user-config
    -S
    -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
    -action shutdown=pause,reboot=reset,panic=pause
    -machine pc-q35-7.2,usb=off,memory-backend=ram,graphics=off
    -accel tcg,thread=multi,tb-size=32
    -cpu qemu64
    -smp cpus=2,sockets=1,cores=2,threads=1,maxcpus=2
    -m size=524288k
    -object {"id":"ram","qom-type":"memory-backend-ram","size":536870912}
    -rtc base=utc,driftfix=slew
    -boot menu=off,strict=on
    -object {"filename":"/dev/urandom","id":"entropy","qom-type":"rng-random"}
    -device {"addr":"0x4","bus":"pcie.0","driver":"virtio-rng-pci","id":"rng0","rng":"entropy"}
    -device {"addr":"0x5","bus":"pcie.0","deflate-on-oom":true,"driver":"virtio-balloon-pci","free-page-reporting":true,"id":"balloon0"}
    -device {"driver":"pvpanic","id":"pvpanic0"}
    -chardev socket,id=qmp0,path=/run/berth/i-7f2f6d5e/qmp.sock,server=on,wait=off
    -mon chardev=qmp0,mode=control
    -chardev socket,id=qmp1,path=/run/berth/i-7f2f6d5e/rescue.sock,server=on,wait=off
    -mon chardev=qmp1,mode=control
    -chardev socket,id=serial0,path=/run/berth/i-7f2f6d5e/serial.sock,server=on,wait=off,logfile=/run/berth/i-7f2f6d5e/serial.log,logappend=on
    -device {"chardev":"serial0","driver":"isa-serial","id":"com1"}
    -device {"addr":"0x3","bus":"pcie.0","driver":"virtio-serial-pci","id":"virtio-serial0"}
    -chardev socket,id=qga0,path=/run/berth/i-7f2f6d5e/qga.sock,server=on,wait=off
    -device {"bus":"virtio-serial0.0","chardev":"qga0","driver":"virtserialport","id":"qga-port0","name":"org.qemu.guest_agent.0"}
    -object {"id":"disks0","qom-type":"iothread"}
    -device {"addr":"0x2","bus":"pcie.0","driver":"virtio-scsi-pci","id":"scsi0","iothread":"disks0"}
    -blockdev {"driver":"raw","file":{"aio":"threads","auto-read-only":false,"cache":{"direct":false,"no-flush":false},"discard":"unmap","driver":"file","filename":"/pool/images/abc.raw","locking":"on","read-only":true},"node-name":"root.below-0","read-only":true}
    -blockdev {"backing":"root.below-0","cache":{"direct":false,"no-flush":false},"detect-zeroes":"unmap","discard":"unmap","driver":"qcow2","file":{"aio":"threads","auto-read-only":true,"cache":{"direct":false,"no-flush":false},"discard":"unmap","driver":"file","filename":"/pool/v-1.qcow2","locking":"on","read-only":false},"node-name":"root","read-only":false}
    -device {"bootindex":1,"bus":"scsi0.0","channel":0,"device_id":"v-1","drive":"root","driver":"scsi-hd","id":"root","lun":0,"rerror":"report","scsi-id":0,"serial":"v-1","werror":"enospc"}
    -display none
    "##);
}

#[test]
fn uefi_adds_two_flash_chips_of_which_one_is_written() {
    let uefi =
        UefiFiles { code: "/usr/share/OVMF/OVMF_CODE_4M.fd".into(), vars: "/run/vars.fd".into(), smm: false };
    insta::assert_snapshot!(added(&spec(), &with(|s| { s.machine.firmware = Firmware::Uefi;
        s.files.uefi = Some(uefi);  })), @r##"
    -machine pc-q35-7.2,usb=off,memory-backend=ram,graphics=off,pflash0=firmware-code,pflash1=firmware-vars
    -blockdev {"driver":"raw","file":{"auto-read-only":false,"driver":"file","filename":"/usr/share/OVMF/OVMF_CODE_4M.fd","locking":"on","read-only":true},"node-name":"firmware-code","read-only":true}
    -blockdev {"driver":"raw","file":{"auto-read-only":false,"driver":"file","filename":"/run/vars.fd","locking":"on","read-only":false},"node-name":"firmware-vars","read-only":false}
    "##);
}

#[test]
fn secure_boot_protects_the_variables_by_system_management_mode() {
    let with_uefi = |firmware, smm| {
        let uefi = UefiFiles { code: "/c".into(), vars: "/v".into(), smm };
        with(|s| {
            s.machine.firmware = firmware;
            s.files.uefi = Some(uefi);
        })
    };
    let secure = with_uefi(Firmware::UefiSecureBoot, true);
    insta::assert_snapshot!(added(&with_uefi(Firmware::Uefi, false), &secure), @r##"
    -machine pc-q35-7.2,usb=off,memory-backend=ram,graphics=off,pflash0=firmware-code,pflash1=firmware-vars,smm=on
    -global driver=cfi.pflash01,property=secure,value=on
    -global driver=ICH9-LPC,property=disable_s3,value=1
    "##);
}

fn cdrom(slot: u8, medium: Option<Medium>) -> CdromSpec {
    CdromSpec { slot, serial: format!("drive-{slot}"), boot_first: false, medium }
}

#[test]
fn cdroms_come_after_the_boot_disk_unless_one_is_to_come_first() {
    let medium = Medium { digest: "ab".repeat(32), file: "/i/images/ab".into() };
    let with_cdroms = with(|s| {
        s.machine.cdroms =
            vec![cdrom(0, Some(medium.clone())), CdromSpec { boot_first: true, ..cdrom(1, None) }];
    });
    with_cdroms.validate().expect("they are fine");
    insta::assert_snapshot!(added(&spec(), &with_cdroms), @r##"
    -blockdev {"driver":"raw","file":{"aio":"threads","auto-read-only":false,"cache":{"direct":false,"no-flush":false},"discard":"unmap","driver":"file","filename":"/i/images/ab","locking":"on","read-only":true},"node-name":"cdrom0-abababababababababab","read-only":true}
    -device {"bootindex":2,"bus":"scsi0.0","channel":0,"device_id":"drive-0","drive":"cdrom0-abababababababababab","driver":"scsi-cd","id":"cdrom0","lun":0,"scsi-id":28,"serial":"drive-0"}
    -device {"bootindex":0,"bus":"scsi0.0","channel":0,"device_id":"drive-1","driver":"scsi-cd","id":"cdrom1","lun":0,"scsi-id":29,"serial":"drive-1"}
    "##);
    let refused = |cdroms: Vec<CdromSpec>| with(|s| s.machine.cdroms = cdroms).validate().is_err();
    assert!(refused(vec![cdrom(4, None)]) && refused(vec![cdrom(0, None), cdrom(0, None)]));
    let first = |slot| CdromSpec { boot_first: true, ..cdrom(slot, None) };
    assert!(refused(vec![first(0), first(1)]), "one of them comes first");
    assert!(refused(vec![CdromSpec { serial: "a b".to_owned(), ..cdrom(0, None) }]));
    assert!(refused(vec![cdrom(0, Some(Medium { digest: "a,b".to_owned(), ..medium }))]));
    assert!(with(|s| s.machine.disks[0].format = Format::Iso).validate().is_err());
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
fn a_nic_a_seed_and_a_firmware_file_add_these() {
    let fw_cfg = vec![FwCfg { name: "opt/com.coreos/config".to_owned(), file: "/run/config.ign".into() }];
    let changed = with(|s| {
        s.machine.nics = vec![nic()];
        s.files.seed = Some("/run/seed.img".into());
        s.files.fw_cfg = fw_cfg;
    });
    insta::assert_snapshot!(added(&spec(), &changed), @r##"
    -blockdev {"cache":{"direct":false,"no-flush":false},"discard":"unmap","driver":"raw","file":{"aio":"threads","auto-read-only":false,"cache":{"direct":false,"no-flush":false},"discard":"unmap","driver":"file","filename":"/run/seed.img","locking":"on","read-only":true},"node-name":"seed","read-only":true}
    -device {"bus":"scsi0.0","channel":0,"device_id":"seed","drive":"seed","driver":"scsi-hd","id":"seed","lun":0,"rerror":"report","scsi-id":255,"serial":"seed","werror":"enospc"}
    -netdev tap,id=net-nic0,ifname=tap0,script=no,downscript=no,vhost=off
    -device {"addr":"0x10","bus":"pcie.0","driver":"virtio-net-pci","host_mtu":1450,"id":"nic0","mac":"52:54:00:12:34:56","netdev":"net-nic0","romfile":""}
    -fw_cfg name=opt/com.coreos/config,file=/run/config.ign
    "##);
}

#[test]
fn memory_to_grow_into_is_a_device_of_its_own() {
    let changed = with(|s| s.machine.max_memory_bytes = Some(2 << 30));
    insta::assert_snapshot!(added(&spec(), &changed), @r##"
    -m size=524288k,maxmem=2097152k
    -object {"id":"memory0-ram","qom-type":"memory-backend-ram","reserve":false,"size":1610612736}
    -device {"addr":"0x6","block-size":2097152,"bus":"pcie.0","driver":"virtio-mem-pci","id":"memory0","memdev":"memory0-ram","requested-size":0}
    "##);
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
fn guest_memory_in_huge_pages_is_allocated_at_the_start_and_none_of_it_is_given_back() {
    let changed = with(|s| s.machine.huge_page_bytes = Some(2 << 20));
    insta::assert_snapshot!(added(&spec(), &changed), @r##"
    -object {"hugetlb":true,"hugetlbsize":2097152,"id":"ram","prealloc":true,"prealloc-threads":2,"qom-type":"memory-backend-memfd","share":true,"size":536870912}
    -device {"addr":"0x5","bus":"pcie.0","deflate-on-oom":true,"driver":"virtio-balloon-pci","free-page-reporting":false,"id":"balloon0"}
    "##);
}

#[test]
fn guest_memory_of_a_machine_on_one_numa_node_is_preferably_from_there() {
    let near = with(|s| s.affinity.memory_nodes = vec![Some(1)]);
    insta::assert_snapshot!(added(&spec(), &near), @r##"-object {"host-nodes":[1],"id":"ram","policy":"preferred","qom-type":"memory-backend-ram","size":536870912}"##);
}

#[test]
fn a_guest_with_several_numa_nodes_has_consecutive_cpus_and_memory_of_its_own_in_each() {
    let two = |s: &mut LaunchSpec| {
        s.machine.cpus = 8;
        s.machine.topology = Topology { sockets: 2, cores: 2, threads: 2 };
        s.machine.numa_nodes = 2;
    };
    insta::assert_snapshot!(added(&spec(), &with(two)), @r##"
    -machine pc-q35-7.2,usb=off,graphics=off
    -smp cpus=8,sockets=2,cores=2,threads=2,maxcpus=8
    -object {"id":"ram0","qom-type":"memory-backend-ram","size":268435456}
    -numa node,nodeid=0,cpus=0-3,memdev=ram0
    -object {"id":"ram1","qom-type":"memory-backend-ram","size":268435456}
    -numa node,nodeid=1,cpus=4-7,memdev=ram1
    "##);
    let near = with(|s| {
        two(s);
        s.machine.huge_page_bytes = Some(2 << 20);
        s.affinity.memory_nodes = vec![None, Some(3)];
    });
    let near = added(&with(two), &near);
    let backends: Vec<&str> = near.lines().filter(|line| line.starts_with("-object")).collect();
    insta::assert_snapshot!(backends.join("\n"), @r##"
    -object {"hugetlb":true,"hugetlbsize":2097152,"id":"ram0","prealloc":true,"prealloc-threads":8,"qom-type":"memory-backend-memfd","share":true,"size":268435456}
    -object {"host-nodes":[3],"hugetlb":true,"hugetlbsize":2097152,"id":"ram1","policy":"preferred","prealloc":true,"prealloc-threads":8,"qom-type":"memory-backend-memfd","share":true,"size":268435456}
    "##);
}

#[test]
fn kvm_and_graphics_change_these() {
    let changed = with(|s| {
        s.machine.accelerator = Accelerator::Kvm;
        s.machine.graphics = Graphics::Vga;
    });
    insta::assert_snapshot!(added(&spec(), &changed), @r##"
    -machine pc-q35-7.2,usb=off,memory-backend=ram
    -accel kvm
    -device {"addr":"0x1","bus":"pcie.0","driver":"VGA","id":"vga0"}
    -device {"addr":"0x7","bus":"pcie.0","driver":"qemu-xhci","id":"usb0"}
    -device {"bus":"usb0.0","driver":"usb-tablet","id":"tablet0"}
    -vnc unix:/run/berth/i-7f2f6d5e/vnc.sock,share=ignore
    "##);
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
fn a_tap_by_descriptor_and_a_direct_raw_disk_with_wwn_read() {
    let nic = NicSpec { tap: Tap::Open { taps: vec![7], vhosts: Vec::new() }, mtu: None, slot: 3, ..nic() };
    let disk = DiskSpec {
        id: "data".to_owned(),
        format: Format::Raw,
        backing: None,
        serial: "v-2".to_owned(),
        boot: false,
        read_only: true,
        target: None,
        wwn: Some(0x5000_c500_1234_5678),
        cache: Cache::Direct,
        ..root()
    };
    let changed = with(|s| {
        s.machine.nics = vec![nic];
        s.machine.disks = vec![root(), disk];
    });
    insta::assert_snapshot!(added(&spec(), &changed), @r##"
    -blockdev {"cache":{"direct":true,"no-flush":false},"discard":"unmap","driver":"raw","file":{"aio":"native","auto-read-only":false,"cache":{"direct":true,"no-flush":false},"discard":"unmap","driver":"file","filename":"/pool/v-1.qcow2","locking":"on","read-only":true},"node-name":"data","read-only":true}
    -device {"bus":"scsi0.0","device_id":"v-2","drive":"data","driver":"scsi-hd","id":"data","rerror":"report","serial":"v-2","werror":"enospc","wwn":5764824127130326648}
    -netdev tap,id=net-nic0,fds=7,vhost=off
    -device {"addr":"0x13","bus":"pcie.0","driver":"virtio-net-pci","id":"nic0","mac":"52:54:00:12:34:56","netdev":"net-nic0","romfile":""}
    "##);
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
fn an_encrypted_disk_names_the_object_with_its_key_in_each_encrypted_file_and_no_argument_has_the_key() {
    let changed = with(|s| {
        let key = DiskKey::new([7; 32]);
        let below = Backing { file: "/s.qcow2".into(), format: Format::EncryptedQcow2, backing: None };
        s.machine.disks[0].format = Format::EncryptedQcow2;
        s.machine.disks[0].backing = Some(below);
        s.files.keys.insert("root".to_owned(), key);
        s.files.key_files.insert("root".to_owned(), 9);
    });
    let text = command_line(&changed).join("\n");
    let object = r#"{"file":"/proc/self/fd/9","id":"key-root","qom-type":"secret"}"#;
    assert!(
        text.find(object).is_some_and(|at| at < text.find(r#""node-name":"root""#).unwrap_or(0)),
        "{text}"
    );
    assert_eq!(text.matches(r#""encrypt":{"format":"luks","key-secret":"key-root"}"#).count(), 2, "{text}");
    assert!(!text.contains(&DiskKey::new([7; 32]).passphrase()));
    assert!(!serde_json::to_string(&changed).expect("JSON").contains("\"keys\""), "no file has the keys");
}

#[test]
fn disks_on_other_buses_have_a_function_or_a_port_and_a_thick_one_keeps_its_space() {
    let on = |bus, id: &str, target| DiskSpec {
        id: id.to_owned(),
        serial: id.to_owned(),
        boot: false,
        bus,
        target: Some(target),
        ..root()
    };
    let devices = |disks: Vec<DiskSpec>| {
        let all = added(&spec(), &with(|s| s.machine.disks.extend(disks)));
        all.lines().filter(|line| line.starts_with("-device")).collect::<Vec<_>>().join("\n")
    };
    let disks = vec![on(Bus::VirtioBlk, "a", 0), on(Bus::VirtioBlk, "b", 9), on(Bus::Sata, "c", 2)];
    insta::assert_snapshot!(devices(disks), @r##"
    -device {"addr":"0x1e.0x0","bus":"pcie.0","drive":"a","driver":"virtio-blk-pci","id":"a","iothread":"disks0","multifunction":true,"rerror":"report","serial":"a","werror":"enospc"}
    -device {"addr":"0xf.0x1","bus":"pcie.0","drive":"b","driver":"virtio-blk-pci","id":"b","iothread":"disks0","multifunction":true,"rerror":"report","serial":"b","werror":"enospc"}
    -device {"bus":"ide.2","drive":"c","driver":"ide-hd","id":"c","rerror":"report","serial":"c","werror":"enospc"}
    "##);
    let thick = added(&spec(), &with(|s| s.machine.disks[0].keeps_space = true));
    assert!(thick.contains(r#""discard":"ignore""#) && !thick.contains("detect-zeroes"), "{thick}");
}

#[test]
fn a_disk_needs_a_place_on_its_bus() {
    let is_valid = |disk: DiskSpec| disk.validate().is_ok();
    let on = |bus, target| DiskSpec { bus, target, ..root() };
    assert!(is_valid(on(Bus::VirtioBlk, Some(15))) && is_valid(on(Bus::Sata, Some(5))));
    for bad in [(Bus::VirtioBlk, Some(16)), (Bus::VirtioBlk, None), (Bus::Sata, Some(6)), (Bus::Sata, None)] {
        assert!(!is_valid(on(bad.0, bad.1)), "{bad:?}");
    }
    assert!(!is_valid(DiskSpec { read_only: true, ..on(Bus::Sata, Some(0)) }));
}

#[test]
fn an_overlay_is_read_and_written_directly_and_its_base_stays_in_the_page_cache() {
    let changed = with(|s| s.machine.disks[0].cache = Cache::DirectIoUring);
    insta::assert_snapshot!(added(&spec(), &changed), @r##"
    -blockdev {"backing":"root.below-0","cache":{"direct":true,"no-flush":false},"detect-zeroes":"unmap","discard":"unmap","driver":"qcow2","file":{"aio":"io_uring","auto-read-only":true,"cache":{"direct":true,"no-flush":false},"discard":"unmap","driver":"file","filename":"/pool/v-1.qcow2","locking":"on","read-only":false},"node-name":"root","read-only":false}
    "##);
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
fn a_windows_guest_has_local_time_and_on_kvm_the_interfaces_of_hyper_v() {
    let windows = |accelerator| {
        let base = with(|s| s.machine.accelerator = accelerator);
        let mut changed = base.clone();
        changed.machine.extras.windows = true;
        added(&base, &changed)
    };
    assert_eq!(windows(Accelerator::Tcg { tb_size_mib: 32 }), "-rtc base=localtime,driftfix=slew");
    insta::assert_snapshot!(windows(Accelerator::Kvm), @r##"
    -cpu qemu64,hv-relaxed,hv-vapic,hv-spinlocks=0x1fff,hv-vpindex,hv-runtime,hv-synic,hv-stimer,hv-reset,hv-time,hv-frequencies,hv-tlbflush,hv-ipi
    -rtc base=localtime,driftfix=slew
    "##);
}

#[test]
fn an_option_of_the_machine_comes_after_the_absence_of_the_hpet() {
    let without = with(|s| s.machine.extras.without_hpet = true);
    insta::assert_snapshot!(added(&spec(), &without), @"-machine pc-q35-7.2,usb=off,memory-backend=ram,graphics=off,hpet=off");
    let declared = with(|s| {
        s.machine.extras.without_hpet = true;
        s.machine.extras.options = [("machine.hpet".to_owned(), "on".to_owned())].into();
    });
    let machine = added(&spec(), &declared);
    assert!(machine.contains(",hpet=off,hpet=on"), "{machine}");
}

#[test]
fn extras_that_an_earlier_version_saved_have_the_hpet() {
    let saved = serde_json::json!({"windows": true, "serial_number": null, "watchdog": null});
    let saved: Extras = serde_json::from_value(saved).expect("extras");
    assert_eq!(saved, Extras { windows: true, ..Extras::default() });
    assert!(!shown(&with(|s| s.machine.extras = saved)).contains("hpet"));
}

#[test]
fn a_machine_with_a_serial_number_of_its_own_is_found_by_its_instance() {
    let changed = with(|s| s.machine.extras.serial_number = Some("ACME-0001".to_owned()));
    insta::assert_snapshot!(added(&spec(), &changed), @"-smbios type=1,manufacturer=berth,product=VM,serial=ACME-0001,sku=i-7f2f6d5e");
    assert_eq!(instance_of(&command_line(&changed)), Some("i-7f2f6d5e"));
    for wrong in ["", "a,sku=i-other", "a b", "é"] {
        let refused = with(|s| s.machine.extras.serial_number = Some(wrong.to_owned())).validate();
        assert!(refused.is_err_and(|e| e.to_string().starts_with("serial number")), "{wrong}");
    }
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
fn image_locking_is_on_for_every_file() {
    let uefi = UefiFiles { code: "/c".into(), vars: "/v".into(), smm: false };
    let all = shown(&with(|s| {
        s.machine.firmware = Firmware::Uefi;
        s.files.uefi = Some(uefi);
        s.files.seed = Some("/s".into());
    }));
    assert_eq!(all.matches(r#""driver":"file""#).count(), 5, "{all}");
    assert_eq!(all.matches(r#""locking":"on""#).count(), 5, "{all}");
}

#[test]
fn a_comma_in_a_path_or_name_cannot_become_an_option() {
    let spec = with(|s| {
        s.machine.name = "a,process=x".to_owned();
        s.files.paths = MachinePaths::in_directory("/run/a,server=off");
    });
    let all = shown(&spec);
    assert!(all.contains("-name guest=a,,process=x,debug-threads=on"), "{all}");
    assert!(all.contains("path=/run/a,,server=off/qmp.sock,server=on"), "{all}");
}

#[test]
fn a_process_is_known_by_its_command_line() {
    let ours = command_line(&spec());
    assert_eq!((instance_of(&ours), name_of(&ours)), (Some("i-7f2f6d5e"), Some("web".to_owned())));
    let foreign = ["qemu-system-x86_64", "-name", "other", "-smbios", "type=1,manufacturer=Acme,serial=i-1"]
        .map(str::to_owned);
    assert_eq!((instance_of(&foreign), name_of(&foreign)), (None, Some("other".to_owned())));
    assert_eq!(name_of(&["-name".to_owned()]), None);
    let comma = command_line(&with(|s| {
        s.machine.name = "a, b".to_owned();
    }));
    assert_eq!(name_of(&comma), Some("a, b".to_owned()));
}

#[test]
fn what_cannot_work_is_refused_with_its_field() {
    let refused = |change: &dyn Fn(&mut LaunchSpec)| {
        let mut spec = spec();
        change(&mut spec);
        spec.validate().expect_err("refused").to_string()
    };
    spec().validate().expect("the base is fine");
    assert!(refused(&|s| s.machine.instance = "a b".to_owned()).starts_with("instance"));
    assert!(refused(&|s| s.machine.uuid = "x".to_owned()).starts_with("uuid"));
    assert!(refused(&|s| s.machine.cpus = 0).starts_with("cpus"));
    assert!(refused(&|s| s.machine.topology.cores = 1).starts_with("topology"));
    assert!(refused(&|s| s.machine.topology.sockets = 200).starts_with("topology"));
    assert!(refused(&|s| s.machine.memory_bytes = 1).starts_with("memory"));
    for most in [512 << 20, 513 << 20] {
        assert!(refused(&|s| s.machine.max_memory_bytes = Some(most)).starts_with("maximum memory"));
    }
    assert!(refused(&|s| s.machine.huge_page_bytes = Some(4096)).starts_with("huge pages"));
    assert!(refused(&|s| s.machine.huge_page_bytes = Some(1 << 30)).contains("a multiple"));
    let growing = |s: &mut LaunchSpec| {
        s.machine.huge_page_bytes = Some(2 << 20);
        s.machine.max_memory_bytes = Some(1 << 30);
    };
    assert!(refused(&growing).contains("cannot grow"));
    for nodes in [0, 9] {
        assert!(refused(&|s| s.machine.numa_nodes = nodes).starts_with("NUMA nodes"), "{nodes}");
    }
    let nodes = |nodes, topology, change: &dyn Fn(&mut MachineSpec)| {
        refused(&|s| {
            (s.machine.cpus, s.machine.topology, s.machine.numa_nodes) = (4, topology, nodes);
            change(&mut s.machine);
        })
    };
    let cores = Topology::of_cores(4);
    assert!(nodes(3, cores, &|_| ()).contains("whole cores of one socket"));
    let threads = Topology { sockets: 1, cores: 2, threads: 2 };
    assert!(nodes(4, threads, &|_| ()).contains("whole cores of one socket"), "threads stay together");
    assert!(nodes(2, Topology::of_cores(6), &|_| ()).contains("can grow"));
    assert!(nodes(2, cores, &|machine| machine.max_memory_bytes = Some(1 << 30)).contains("can grow"));
    let page = |machine: &mut MachineSpec| {
        machine.huge_page_bytes = Some(1 << 30);
        machine.memory_bytes = 3 << 30;
    };
    assert!(nodes(2, cores, &page).contains("divided evenly"));
    assert!(refused(&|s| s.machine.machine_type = "q35".to_owned()).contains("needs a version"));
    assert!(refused(&|s| s.files.paths = MachinePaths::in_directory("/x".repeat(60))).contains("107"));
    assert!(refused(&|s| s.machine.firmware = Firmware::Uefi).starts_with("firmware"));
    assert!(refused(&|s| s.machine.disks[0].serial = "x".repeat(37)).starts_with("serial"));
    assert!(refused(&|s| s.machine.disks[0].id = "0".to_owned()).starts_with("disk id"));
    assert!(refused(&|s| s.machine.disks[0].target = Some(255)).starts_with("target"));
    assert!(refused(&|s| s.machine.disks[0].format = Format::Raw).contains("backing"));
    assert!(refused(&|s| s.machine.disks.push(root())).contains("two disks"));
    let second = DiskSpec { id: "second".to_owned(), serial: "v-2".to_owned(), target: None, ..root() };
    assert!(refused(&|s| s.machine.disks.push(second.clone())).contains("more than one"));
    let wrong_mac = NicSpec { mac: "53:54:00:12:34:56".to_owned(), ..nic() };
    assert!(refused(&|s| s.machine.nics = vec![wrong_mac.clone()]).contains("unicast"));
    assert!(
        refused(&|s| s.machine.nics = vec![nic(), NicSpec { id: "nic1".to_owned(), ..nic() }])
            .contains("two nics")
    );
    assert!(refused(&|s| s.machine.nics = vec![NicSpec { slot: 14, ..nic() }]).starts_with("nic slot"));
    for (queues, model) in [(0, NicModel::Virtio), (17, NicModel::Virtio), (2, NicModel::E1000e)] {
        let wrong = NicSpec { queues, model, ..nic() };
        assert!(refused(&|s| s.machine.nics = vec![wrong.clone()]).starts_with("nic queues"), "{queues}");
    }
}

proptest! {
    /// QEMU splits at single commas and then undoes the doubling, so every value arrives complete.
    #[test]
    fn an_escaped_value_arrives_whole(path in "[ -.0-~]{1,40}") {
        let spec = with(|s| {  s.files.paths = MachinePaths::in_directory(format!("/{path}")); });
        let args = command_line(&spec);
        let chardev = args.iter().find(|a| a.starts_with("socket,id=qmp0")).expect("the first monitor");
        let parts: Vec<String> = chardev.replace(",,", "\u{1}").split(',').map(|p| p.replace('\u{1}', ",")).collect();
        prop_assert_eq!(parts.len(), 5);
        prop_assert_eq!(&parts[2], &format!("path=/{path}/qmp.sock"));
    }
}

#[test]
fn an_answer_file_is_on_a_removable_usb_disk() {
    let changed = with(|s| s.files.sysprep = Some("/run/sysprep.img".into()));
    insta::assert_snapshot!(added(&spec(), &changed), @r##"
    -device {"addr":"0x7","bus":"pcie.0","driver":"qemu-xhci","id":"usb0"}
    -blockdev {"cache":{"direct":false,"no-flush":false},"discard":"unmap","driver":"raw","file":{"aio":"threads","auto-read-only":false,"cache":{"direct":false,"no-flush":false},"discard":"unmap","driver":"file","filename":"/run/sysprep.img","locking":"on","read-only":true},"node-name":"sysprep","read-only":true}
    -device {"bus":"usb0.0","drive":"sysprep","driver":"usb-storage","id":"sysprep","removable":true,"serial":"sysprep"}
    "##);
    let shown = shown(&with(|s| {
        s.machine.graphics = Graphics::Vga;
        s.files.sysprep = Some("/run/sysprep.img".into());
    }));
    assert_eq!(shown.matches("qemu-xhci").count(), 1, "one controller for both: {shown}");
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
fn options_are_properties_of_machine_cpu_and_devices_and_nothing_else() {
    let set = |options: &[(&str, &str)]| {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        with(|s| s.machine.extras.options = options)
    };
    let changed = set(&[("machine.hpet", "off"), ("cpu.vmx", "on"), ("global.virtio-net-pci.tx", "bh")]);
    insta::assert_snapshot!(added(&spec(), &changed), @r"
    -machine pc-q35-7.2,usb=off,memory-backend=ram,graphics=off,hpet=off
    -global driver=virtio-net-pci,property=tx,value=bh
    -cpu qemu64,vmx=on
    ");
    assert_eq!(changed.validate(), Ok(()));
    for (name, value) in [
        ("machine.hpet", "off,kernel=/etc/shadow"),
        ("machine.hpet", "off\n-monitor"),
        ("machine.hpet", ""),
        ("machine.hpet,kernel", "off"),
        ("drive.file", "x"),
        ("global", "x"),
        ("cpu.vmx", &"a".repeat(33)),
    ] {
        assert!(set(&[(name, value)]).validate().is_err(), "{name} {value}");
    }
    let many: Vec<String> = (0..33).map(|n| format!("cpu.flag{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "on")).collect();
    assert!(set(&many).validate().is_err());
}
