mod aarch64;
mod devices;
mod disks;
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
        shared: false,
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
    -global driver=ICH9-LPC,property=disable_s3,value=0
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
    let mut chosen = secure;
    chosen.machine.extras.options = [("global.ICH9-LPC.disable_s3".to_owned(), "0".to_owned())].into();
    let line = shown(&chosen);
    let last = line.lines().rfind(|option| option.contains("disable_s3"));
    assert!(last.is_some_and(|option| option.ends_with("value=1")), "{line}");
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
fn an_emulated_machine_with_one_cpu_has_a_place_for_a_second_one() {
    let alone = |place: bool| {
        with(|s| {
            s.machine.cpus = 1;
            s.machine.topology = Topology { sockets: 1, cores: 1, threads: 1 };
            s.machine.extras.place_for_second_cpu = place;
        })
    };
    insta::assert_snapshot!(added(&alone(false), &alone(true)), @"-smp cpus=1,sockets=2,cores=1,threads=1,maxcpus=2");
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
