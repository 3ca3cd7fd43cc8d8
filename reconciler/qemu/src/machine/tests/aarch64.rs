//! Machines of aarch64.

use super::*;

fn aarch64(change: impl FnOnce(&mut LaunchSpec)) -> LaunchSpec {
    with(|s| {
        s.machine.machine_type = "virt-7.2".to_owned();
        s.machine.cpu_model = "max".to_owned();
        s.machine.firmware = Firmware::Uefi;
        s.files.uefi = Some(UefiFiles {
            code: "/usr/share/AAVMF/AAVMF_CODE.fd".into(),
            vars: "/var/lib/berth/instances/i-7f2f6d5e/vars.fd".into(),
            smm: false,
        });
        change(s);
    })
}

#[test]
fn a_machine_of_aarch64_is_this_command_line() {
    let spec = aarch64(|_| {});
    assert_eq!(spec.validate(), Ok(()));
    insta::assert_snapshot!(shown(&spec), @r##"
    -name guest=web,debug-threads=on
    -uuid 7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c
    -smbios type=1,manufacturer=berth,product=VM,serial=i-7f2f6d5e
    -nodefaults
    -no-user-config
    -S
    -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
    -action shutdown=pause,reboot=reset,panic=pause
    -machine virt-7.2,usb=off,memory-backend=ram,graphics=off,gic-version=3,pflash0=firmware-code,pflash1=firmware-vars
    -accel tcg,thread=multi,tb-size=32
    -cpu max
    -smp cpus=2,sockets=1,cores=2,threads=1,maxcpus=2
    -m size=524288k
    -object {"id":"ram","qom-type":"memory-backend-ram","size":536870912}
    -rtc base=utc
    -boot menu=off,strict=on
    -object {"filename":"/dev/urandom","id":"entropy","qom-type":"rng-random"}
    -device {"addr":"0x4","bus":"pcie.0","driver":"virtio-rng-pci","id":"rng0","rng":"entropy"}
    -device {"addr":"0x5","bus":"pcie.0","deflate-on-oom":true,"driver":"virtio-balloon-pci","free-page-reporting":true,"id":"balloon0"}
    -device {"addr":"0x1f","bus":"pcie.0","driver":"pvpanic-pci","id":"pvpanic0"}
    -blockdev {"driver":"raw","file":{"auto-read-only":false,"driver":"file","filename":"/usr/share/AAVMF/AAVMF_CODE.fd","locking":"on","read-only":true},"node-name":"firmware-code","read-only":true}
    -blockdev {"driver":"raw","file":{"auto-read-only":false,"driver":"file","filename":"/var/lib/berth/instances/i-7f2f6d5e/vars.fd","locking":"on","read-only":false},"node-name":"firmware-vars","read-only":false}
    -chardev socket,id=qmp0,path=/run/berth/i-7f2f6d5e/qmp.sock,server=on,wait=off
    -mon chardev=qmp0,mode=control
    -chardev socket,id=qmp1,path=/run/berth/i-7f2f6d5e/rescue.sock,server=on,wait=off
    -mon chardev=qmp1,mode=control
    -chardev socket,id=serial0,path=/run/berth/i-7f2f6d5e/serial.sock,server=on,wait=off,logfile=/run/berth/i-7f2f6d5e/serial.log,logappend=on
    -serial chardev:serial0
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
fn with_kvm_the_processor_of_the_host_decides_the_interrupt_controller() {
    let with_kvm = aarch64(|s| {
        s.machine.accelerator = Accelerator::Kvm;
        s.machine.cpu_model = "host".to_owned();
    });
    insta::assert_snapshot!(added(&aarch64(|_| {}), &with_kvm), @r"
    -machine virt-7.2,usb=off,memory-backend=ram,graphics=off,gic-version=max,pflash0=firmware-code,pflash1=firmware-vars
    -accel kvm
    -cpu host
    ");
}

#[test]
fn a_screen_has_a_card_that_the_firmware_drives_and_a_keyboard() {
    let with_screen = aarch64(|s| s.machine.graphics = Graphics::Vga);
    assert_eq!(with_screen.validate(), Ok(()));
    let lines = added(&aarch64(|_| {}), &with_screen);
    for driver in ["virtio-gpu-pci", "qemu-xhci", "usb-tablet", "usb-kbd"] {
        assert!(lines.contains(&format!("\"driver\":\"{driver}\"")), "{driver}: {lines}");
    }
    assert!(!shown(&with_screen).contains("\"VGA\""));
}

#[test]
fn a_tpm_has_the_interface_that_the_machine_has() {
    let with_tpm = aarch64(|s| s.machine.tpm = true);
    assert!(shown(&with_tpm).contains(r#"{"driver":"tpm-tis-device","tpmdev":"tpm0"}"#));
}

#[test]
fn parts_of_a_pc_are_refused() {
    let refused = |change: &dyn Fn(&mut LaunchSpec)| {
        let spec = aarch64(|s| change(s));
        spec.machine.validate().expect_err("refused").to_string()
    };
    assert!(refused(&|s| s.machine.firmware = Firmware::Bios).contains("aarch64 has UEFI"));
    assert!(refused(&|s| s.machine.firmware = Firmware::UefiSecureBoot).contains("aarch64 has UEFI"));
    assert!(refused(&|s| s.machine.extras.windows = true).contains("x86_64 only"));
    assert!(refused(&|s| s.machine.extras.further_serial_ports = 1).contains("aarch64 has one"));
    assert!(refused(&|s| s.machine.topology = Topology::of_cores(4)).contains("plugs no CPUs in"));
    assert!(refused(&|s| s.machine.disks[0].bus = Bus::Sata).contains("no SATA controller"));
}
