//! Command lines as people, scripts and Proxmox VE write them, and hostile ones.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::import::{Configuration, DiskFiles, DiskSource, ImageFile, Unread, configuration};

const PROXMOX_8: &str = include_str!("tests/proxmox-8.txt");
const PROXMOX_9: &str = include_str!("tests/proxmox-9.txt");

/// Files whose names end so have that format; no others are there.
fn find(path: &str) -> Option<FoundFile> {
    let format = ["qcow2", "raw", "vmdk"].into_iter().find(|format| path.ends_with(&format!(".{format}")))?;
    Some(FoundFile { path: path.replace("/link/", "/real/"), format, size: 1 << 10 })
}

fn line(argv: Vec<String>) -> CommandLine {
    CommandLine { argv, folder: Some(PathBuf::from("/home/ada")), name: "guest".to_owned(), pid: Some(41) }
}

/// The guest of a line, which runs in `/home/ada`.
fn guest(text: &str) -> Domain {
    let mut lines = split(text).expect("it has a command line");
    assert_eq!(lines.len(), 1);
    read(&line(lines.remove(0)), &find).expect("it can be imported")
}

fn refusal(text: &str) -> String {
    let read = |lines: Vec<Vec<String>>| read(&line(lines.concat()), &find);
    split(text).and_then(read).expect_err("it cannot be imported").to_string()
}

/// Each disk as target, path, format and boot order.
fn disks(domain: &Domain) -> Vec<String> {
    let disk = |disk: &crate::import::Disk| {
        let place = match &disk.source {
            DiskSource::Path(path) => path.clone(),
            other => format!("{other:?}"),
        };
        let order = disk.boot_order.map(|order| format!(" {order}")).unwrap_or_default();
        format!("{} {place} {}{order}", disk.target, disk.format)
    };
    domain.disks.iter().map(disk).collect()
}

/// Each card as MAC address and model.
fn cards(domain: &Domain) -> Vec<String> {
    let card = |card: &crate::import::Interface| {
        format!("{} {}", card.mac.as_deref().unwrap_or("none"), card.model.as_str())
    };
    domain.interfaces.iter().map(card).collect()
}

fn written(domains: &[Domain], in_place: bool) -> Configuration {
    let files = DiskFiles { image_dir: "/srv/images", in_place };
    let mut read_disk = |_: &str, format: &str| match format {
        "qcow2" => Ok(ImageFile { sha256: "ab".repeat(32) }),
        other => Err(Unread::Unfit(format!("its format is {other}"))),
    };
    configuration(domains, &[], files, &mut read_disk)
}

fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
}

#[test]
fn a_line_by_hand_has_qemus_defaults() {
    let domain = guest(
        "qemu-system-x86_64 -enable-kvm -m 2G -smp 2 -hda disk.qcow2 -cdrom /srv/iso/debian.iso -boot d &",
    );
    assert_eq!((&*domain.name, domain.cpus, domain.memory), ("guest", 2, 2 << 30));
    assert_eq!(domain.firmware, berth_api::Firmware::BIOS);
    assert!(domain.has_screen && domain.is_running == Some(true));
    assert_eq!(disks(&domain), ["hda /home/ada/disk.qcow2 qcow2"]);
    assert_eq!((domain.cdroms.len(), domain.cdroms[0].boot_first), (1, true));
    assert_eq!(cards(&domain), ["52:54:00:12:34:56 e1000"]);
    assert_eq!(
        domain.notes,
        [
            "hda: its bus is ide; in berth it is virtio-scsi, for which the guest needs a driver before the move",
            "52:54:00:12:34:56: QEMU chose this MAC address, which other guests can have too",
            "52:54:00:12:34:56: it is a user network; in berth it is on the Network default",
        ]
    );
}

#[test]
fn a_script_with_nodes_keeps_sizes_disks_and_cards() {
    let domain = guest(
        r#"#!/bin/sh
        exec taskset -c 2,3 /usr/bin/qemu-system-x86_64 -name guest=app,process=app -machine q35,accel=kvm -cpu Skylake-Server,+vmx \
          -smp cpus=4,sockets=1,cores=2,threads=2 -m size=3G,slots=2,maxmem=8G -uuid 5C4A2C1E-6d0c-4f77-9a3e-0f6b9c1d2e01 \
          -global driver=cfi.pflash01,property=secure,value=on \
          -drive if=pflash,format=raw,unit=0,file=/usr/share/OVMF/OVMF_CODE_4M.ms.fd,readonly=on \
          -drive if=pflash,format=raw,unit=1,file=vars.fd \
          -device virtio-scsi-pci,id=scsi0 -object iothread,id=io1 \
          -blockdev driver=file,node-name=file0,filename=/srv/vms/link/root.qcow2,cache.direct=on \
          -blockdev driver=qcow2,node-name=root,file=file0 \
          -device scsi-hd,drive=root,bus=scsi0.0,bootindex=1,serial=R1 \
          -blockdev '{"driver":"throttle","node-name":"data","throttle-group":"g","file":{"driver":"raw","file":{"driver":"file","filename":"data,1.raw"}}}' \
          -object throttle-group,id=g,x-iops-total=100 \
          -device virtio-blk-pci,drive=data,share-rw=on \
          -blockdev driver=nbd,node-name=far,server.type=inet,server.host=192.0.2.7,server.port=10809,export=x \
          -device virtio-blk-pci,drive=far \
          -device ide-cd,bus=ide.0 \
          -netdev bridge,id=n0,br=br1 -device virtio-net-pci,netdev=n0,mac=52:54:00:AA:00:01 \
          -netdev user,id=n1,hostfwd=tcp::2222-:22 -device rtl8139,netdev=n1 \
          -netdev vhost-user,id=n2,chardev=vu,queues=2 -device virtio-net-pci,netdev=n2,mq=on,mac=52:54:00:12:34:56 \
          -device vfio-pci,host=0000:01:00.0 -device i6300esb -device vhost-vsock-pci,guest-cid=3 -tpmdev emulator,id=t,chardev=c -device tpm-crb,tpmdev=t \
          -fsdev local,id=f,path=/srv,security_model=none -device virtio-9p-pci,fsdev=f,mount_tag=x \
          -vnc :1 -display none -monitor unix:mon.sock,server,nowait -rtc base=localtime -fw_cfg name=opt/x,string=y 2>>log"#,
    );
    assert_eq!((&*domain.name, domain.cpus, domain.memory), ("app", 4, 3 << 30));
    assert_eq!(domain.firmware, berth_api::Firmware::UEFISecureBoot);
    assert_eq!(domain.uuid.as_deref(), Some("5C4A2C1E-6d0c-4f77-9a3e-0f6b9c1d2e01"));
    let monitor = Some("/home/ada/mon.sock".to_owned());
    assert_eq!(domain.origin, Origin::Process { pid: Some(41), monitor });
    assert!(domain.has_screen);
    assert_eq!(
        disks(&domain),
        [
            "sda /srv/vms/real/root.qcow2 qcow2 1",
            "vda /home/ada/data,1.raw raw",
            "vdb Elsewhere(\"nbd:192.0.2.7/x\") raw",
        ]
    );
    assert_eq!((domain.cdroms.len(), &domain.cdroms[0].source), (1, &None));
    assert_eq!(
        cards(&domain),
        ["52:54:00:aa:00:01 virtio", "52:54:00:12:34:56 rtl8139", "52:54:00:12:34:56 virtio"]
    );
    assert_parts(
        &domain.notes.join("\n"),
        &[
            "memory can be added while it runs",
            "CPU topology (2 threads)",
            "its CPU model is Skylake-Server",
            "its clock is localtime",
            "its Secure Boot has Microsoft's keys",
            "UEFI variables are not taken over",
            "sda: its serial number is R1",
            "vda: it has I/O limits",
            "vda: several machines may share it",
            "(bridge br1)",
            "the forwarding tcp::2222-:22",
            "(vhost-user vu)",
            "it has several queues",
            "the device 0000:01:00.0 of its host",
            "set watchdog",
            "set tpm",
            "set vsock",
            "add it to shares",
            "not taken over: -fw_cfg",
        ],
    );
    assert!(!domain.notes.iter().any(|note| note.contains("virtio-scsi-pci") || note.contains("display")));
}

#[test]
fn a_vm_of_proxmox_keeps_the_names_of_its_disks_and_its_steps_are_of_qm() {
    let domain = guest(PROXMOX_8);
    assert_eq!((&*domain.name, domain.cpus, domain.memory), ("web", 4, 4 << 30));
    assert_eq!(domain.firmware, berth_api::Firmware::UEFI);
    assert_eq!(domain.uuid.as_deref(), Some("6f0c8d6e-0a5b-4a52-9d4b-1f2e3d4c5b6a"));
    assert_eq!(domain.origin, Origin::Proxmox(100));
    assert_eq!(disks(&domain), ["scsi0 /var/lib/vz/images/100/vm-100-disk-0.qcow2 qcow2 100"]);
    let drive = &domain.cdroms[0];
    assert_eq!((&*drive.target, drive.boot_first), ("ide2", false), "its disk is tried first");
    assert_eq!(cards(&domain), ["bc:24:11:0a:0b:0c virtio"]);
    assert_eq!(domain.notes.len(), 4, "{:?}", domain.notes);
    assert_parts(
        &domain.notes.join("\n"),
        &["its CPU model is qemu64", "UEFI variables", "set firmware UEFISecureBoot", "(tap tap100i0)"],
    );
    let mut stopped = domain;
    stopped.is_running = None;
    let configuration = written(&[stopped], true);
    assert_parts(
        &configuration.text,
        &[
            "# Written by berth import qemu.\n",
            "#   berth up --disk-dir /var/lib/vz/images/100 (or berth host)",
            "#   qm set 100 --onboot 0\n",
            "#   qm shutdown 100\n",
            "source        = { file = \"/var/lib/vz/images/100/vm-100-disk-0.qcow2\" }",
            "imported_from = { system = \"Proxmox VE\", guest = \"web\", guest_identity = \"100\", disk = \"scsi0\" }",
            "firmware = \"UEFI\"",
            "disks              = [{ name = berth_disk.web-scsi0.name, boot = true }]",
            "network_interfaces = [{ mac_address = \"bc:24:11:0a:0b:0c\" }]",
        ],
    );
    assert!(!configuration.text.contains("virsh"), "{}", configuration.text);
}

#[test]
fn a_file_of_several_vms_of_proxmox_9_has_their_nodes_and_limits() {
    let lines = split(PROXMOX_9).expect("it has command lines");
    let domains: Vec<Domain> =
        lines.into_iter().map(|argv| read(&line(argv), &find).expect("it can be imported")).collect();
    let [db, seeded] = domains.as_slice() else { panic!("{domains:?}") };
    assert_eq!((&*db.name, db.cpus, db.has_screen), ("db", 2, false));
    assert_eq!(db.firmware, berth_api::Firmware::UEFI);
    assert_eq!(
        disks(db),
        [
            "scsi0 /var/lib/vz/images/101/vm-101-disk-0.qcow2 qcow2 100",
            "scsi1 Elsewhere(\"rbd:vms/vm-101-disk-2\") raw",
        ]
    );
    let notes = db.notes.join("\n");
    assert_parts(&notes, &["scsi1: it has I/O limits", "CPU topology (2 sockets)"]);
    assert!(!notes.contains("scsi0: it has I/O limits"), "{notes}");
    assert_eq!(disks(seeded), ["virtio0 /var/lib/vz/images/102/vm-102-disk-0.raw raw 100"]);
    assert!(seeded.cdroms.is_empty() && seeded.interfaces.is_empty());
    assert_parts(&seeded.notes.join("\n"), &["vm-102-cloudinit.qcow2) looks like cloud-init data"]);
}

#[test]
fn the_arguments_of_a_process_are_read_as_they_are() {
    let argv = "qemu-system-x86_64\0-name\0a 'b' \"c\" $HOME\0-nodefaults\0-drive\0file=my disk,,1.img,if=virtio,format=qcow2\0";
    let domain = guest(argv);
    assert_eq!(domain.name, "a 'b' \"c\" $HOME");
    assert_eq!(disks(&domain), ["vda /home/ada/my disk,1.img qcow2"]);
    assert!(domain.interfaces.is_empty() && !domain.has_screen);
}

#[test]
fn drives_have_names_formats_and_sources_of_many_kinds() {
    let domain = guest(
        "kvm -nodefaults -drive file=b.qcow2,index=1,if=ide -drive file=a.vmdk,if=ide -drive file=./x//c,if=virtio \
         -drive file=file:d.raw,if=none,id=d,snapshot=on -device ide-hd,drive=d,bus=ahci0.0 \
         -drive file=rbd:vms/e,if=virtio -drive 'file=json:{\"driver\":\"qcow2\",,\"file\":{\"driver\":\"file\",,\"filename\":\"/f\"}},if=scsi' \
         -drive driver=qcow2,file.driver=file,file.filename=/g,if=virtio,readonly=on,iops=100 \
         -drive file=/dev/fdset/1,if=virtio,format=raw -drive file=/seed.raw,if=virtio,format=raw -device scsi-hd,drive=none \
         -device virtio-blk-pci -fda floppy.img -drive file=h.qcow2,if=none,id=h -device nvme,drive=h,serial=1",
    );
    assert_eq!(
        disks(&domain),
        [
            "hda /home/ada/a.vmdk vmdk",
            "hdb /home/ada/b.qcow2 qcow2",
            "sda /f qcow2",
            "vda /home/ada/x/c raw",
            "vdb Elsewhere(\"rbd:vms/e\") raw",
            "vdc /g qcow2",
            "vdd Elsewhere(\"/dev/fdset/1, a file that another program has opened\") raw",
            "hdc /home/ada/d.raw raw",
            "sdb Elsewhere(\"drive none, which the command line does not have\") raw",
            "nvme0 /home/ada/h.qcow2 qcow2",
        ]
    );
    assert_parts(
        &domain.notes.join("\n"),
        &[
            "vda: its format is not declared",
            "vdc: it is read-only",
            "vdc: it has I/O limits",
            "vde (/seed.raw) looks like cloud-init data",
            "hdc: its bus is sata",
            "hdc: the guest's writes to it are lost",
            "vdf: it has no source",
            "drive of type floppy",
            "nvme0: its bus is nvme",
        ],
    );
}

#[test]
fn cards_of_every_option_have_the_addresses_that_qemu_gives_them() {
    let domain = guest(
        "kvm -M q35 -nic bridge,br=br0,model=virtio-net-pci,mac=52-54-00-AA-00-02 -nic user -net nic,macaddr=52:54:00:12:34:57 \
         -net tap,ifname=tap3 -device igb -nic none",
    );
    assert_eq!(
        cards(&domain),
        [
            "52:54:00:aa:00:02 virtio",
            "52:54:00:12:34:56 e1000e",
            "52:54:00:12:34:57 e1000e",
            "52:54:00:12:34:58 virtio",
        ]
    );
    assert_parts(
        &domain.notes.join("\n"),
        &["(bridge br0)", "(tap tap3)", "its model is igb", "connected to nothing"],
    );
    assert!(guest("kvm -nic none -hda a.raw").interfaces.is_empty());
    assert!(guest("kvm -net none -hda a.raw").interfaces.is_empty());
    let mut twins = [guest("kvm -name a"), guest("kvm -name b")];
    make_macs_unique(&mut twins);
    assert_eq!(cards(&twins[0]), ["52:54:00:12:34:56 e1000"]);
    assert_eq!(cards(&twins[1]), ["none e1000"]);
    assert_parts(&twins[1].notes.join("\n"), &["52:54:00:12:34:56: a has this MAC address too"]);
}

#[test]
fn sizes_and_screens_are_those_of_qemu() {
    let memory = "kvm -m 1G,slots=4,maxmem=4G -object memory-backend-ram,id=dimm0,size=512M -device pc-dimm,memdev=dimm0";
    assert_eq!(guest(memory).memory, (1 << 30) + (512 << 20));
    assert_eq!((guest("kvm").memory, guest("kvm").cpus), (128 << 20, 1));
    assert_eq!(guest("kvm -smp sockets=2,cores=3").cpus, 6);
    for (text, has_screen) in [
        ("kvm", true),
        ("kvm -nographic", false),
        ("kvm -display none", false),
        ("kvm -display none -vnc :0", true),
        ("kvm -vga none -vnc :0", false),
        ("kvm -nodefaults -vnc :0", false),
        ("kvm -nodefaults -device virtio-vga -spice port=1", true),
    ] {
        assert_eq!(guest(text).has_screen, has_screen, "{text}");
    }
}

#[test]
fn a_vgpu_is_named_with_the_list_that_it_belongs_to() {
    let vgpu = "kvm -device vfio-pci,sysfsdev=/sys/bus/mdev/devices/c2177883-f1bb-47f0-914d-32a22e3a8804";
    assert_parts(&guest(vgpu).notes.join("\n"), &["not taken over: see vgpus"]);
}

#[test]
fn states_that_end_with_the_process_are_named() {
    let domain =
        guest("kvm -snapshot -loadvm s -kernel vmlinuz -append 'console=ttyS0 -x' -boot n -hda a.qcow2");
    assert_parts(
        &domain.notes.join("\n"),
        &["(-snapshot)", "(-loadvm)", "boots a kernel", "from the network"],
    );
    assert_parts(&refusal("kvm -hda a.qcow2 -incoming defer"), &["-incoming"]);
}

#[test]
fn lines_that_cannot_be_read_are_refused_with_the_reason() {
    for (text, expected) in [
        ("", "no command line of QEMU"),
        ("ls -l", "no command line of QEMU"),
        ("\0\0", "no command line of QEMU"),
        ("kvm -m", "its last option \"-m\" has no value"),
        ("kvm -m lots", "-m \"lots\" cannot be read"),
        ("kvm -smp 0", "-smp \"0\" cannot be read"),
        ("kvm -device '{\"driver\":'", "-device \"{\\\"driver\\\":\" cannot be read"),
        ("kvm -name 'a", "not closed"),
        ("kvm -hda $DISK", "\"$DISK\""),
    ] {
        assert_parts(&refusal(text), &[expected]);
    }
    let mut relative = line(["kvm", "-hda", "a.raw"].map(str::to_owned).to_vec());
    relative.folder = None;
    let error = read(&relative, &find).expect_err("there is no folder").to_string();
    assert_parts(&error, &["\"a.raw\" is relative"]);
}

#[test]
fn hostile_lines_are_read_or_refused_at_once() {
    let many = |part: &str, count: usize| format!("kvm {}", part.repeat(count));
    let nodes: String =
        (0..900).map(|i| format!("-blockdev driver=raw,node-name=n{i},file=n{} ", (i + 1) % 900)).collect();
    for text in [
        many("-device scsi-hd,drive=x ", 4_900),
        many("-device e1000 ", 990),
        many("-device virtio-blk-pci,drive=n0 ", 900) + &nodes,
        many("x ", 9_000),
        format!("kvm -device {}", ",".repeat(900_000)),
        format!("kvm -drive {}", "a=b,".repeat(200_000)),
        format!("kvm -blockdev '{}'", "{\"file\":".repeat(100_000)),
        format!("kvm -name {}", "x".repeat(900_000)),
        format!("kvm -hda {}", "x".repeat(900_000)),
        format!("kvm -hda '{}", "x".repeat(2_000_000)),
        "\0".repeat(900_000),
        format!("kvm\0{}", "-\0".repeat(400_000)),
    ] {
        let started = Instant::now();
        let read = split(&text).and_then(|lines| read(&line(lines.concat()), &find));
        let taken = started.elapsed();
        assert!(taken < Duration::from_secs(5), "{}: {taken:?}", short(&text));
        if let Ok(domain) = read {
            assert!(domain.notes.len() <= MAX_NOTES + 1 && domain.name.len() <= MAX_NAME);
        }
    }
}

#[test]
fn hostile_names_stay_literals_and_comments() {
    let name = "a\n}\nresource \"x\" {\n ${file(\"/etc/shadow\")}";
    let path = "/srv/$(reboot) ';reboot;\nreboot #.qcow2".replace(',', ",,");
    let drive = format!("file={path},if=virtio");
    let argv = ["kvm", "-name", name, "-drive", drive.as_str(), "-device", "virtio-net,mac=\"}\n"];
    let domain = read(&line(argv.map(str::to_owned).to_vec()), &find).expect("it can be imported");
    for in_place in [false, true] {
        let text = written(std::slice::from_ref(&domain), in_place).text;
        for line in text.lines() {
            let is_known =
                ["resource \"berth_", "variable \"", "terraform {", "provider \"berth\"", "#", "  ", "}"];
            assert!(line.is_empty() || is_known.iter().any(|start| line.starts_with(start)), "{line}");
            assert!(line.starts_with('#') || !line.contains("file("), "{line}");
        }
    }
}

proptest! {
    #[test]
    fn no_text_and_no_arguments_end_in_a_panic(
        text in "(kvm|qemu-system-x86_64) [-a-z0-9,=.:{}\"'\\\\ $/\n]{0,200}",
        options in proptest::collection::vec(
            (
                "-?-(smp|m|drive|blockdev|device|netdev|nic|net|machine|smbios|name|boot|object|rtc|global|hda|display|cdrom)",
                "(file|driver|if|size|node-name|id|type|bus|cpus|\\{\"driver\":)?[=:,.]?[a-z0-9A-Z,=.:{}\"é\n-]{0,40}",
            ),
            0..20,
        ),
    ) {
        let mut argv = vec!["kvm".to_owned()];
        argv.extend(options.into_iter().flat_map(|(option, value)| [option, value]));
        let mut lines = vec![argv];
        lines.extend(split(&text).unwrap_or_default());
        for argv in lines {
            if let Ok(domain) = read(&line(argv), &find) {
                let _ = written(&[domain], true);
            }
        }
    }
}
