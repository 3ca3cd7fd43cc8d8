//! Disks, CD-ROM drives and answer files.

use serde_json::json;

use super::*;

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
fn a_block_device_is_opened_by_the_driver_for_devices() {
    let disk = DiskSpec {
        file: "/dev/dm-3".into(),
        format: Format::Raw,
        backing: None,
        cache: Cache::DirectIoUring,
        ..root()
    };
    disk.validate().expect("it is fine");
    let nodes = blockdevs(&disk);
    let [node] = &nodes[..] else { panic!("{nodes:?}") };
    assert_eq!((&node["driver"], &node["file"]["driver"]), (&json!("raw"), &json!("host_device")));
    assert_eq!((&node["file"]["filename"], &node["file"]["locking"]), (&json!("/dev/dm-3"), &json!("on")));
    let of_file = blockdevs(&root());
    assert_eq!(of_file[1]["file"]["driver"], json!("file"));
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
fn a_disk_on_virtio_blk_has_a_thread_of_its_own_where_that_is_wanted() {
    let on = |bus, id: &str, target| DiskSpec {
        id: id.to_owned(),
        serial: id.to_owned(),
        boot: false,
        bus,
        target: Some(target),
        ..root()
    };
    let of = |thread_per_disk| {
        let disks = [on(Bus::VirtioBlk, "a", 0), on(Bus::VirtioBlk, "b", 1), on(Bus::VirtioScsi, "c", 3)];
        let all = added(
            &spec(),
            &with(|s| {
                s.machine.extras.thread_per_disk = thread_per_disk;
                s.machine.disks.extend(disks);
            }),
        );
        let lines = all.lines().filter(|line| line.contains("iothread"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let each = of(true).join("\n");
    for id in ["a", "b"] {
        let (object, device) =
            (format!(r#"{{"id":"io-{id}","qom-type":"iothread"}}"#), format!(r#""iothread":"io-{id}""#));
        let object = each.find(&object).unwrap_or_else(|| panic!("no thread: {each}"));
        assert!(each.find(&device).is_some_and(|device| device > object), "{each}");
    }
    assert_eq!(each.lines().count(), 4, "none for the disk on the controller: {each}");
    assert_eq!(of(false).len(), 2, "both are served by the thread of the controller");
    assert!(of(false).iter().all(|line| line.contains(r#""iothread":"disks0""#)));
}

#[test]
fn a_shared_raw_disk_lets_machines_write_that_share_it_and_no_other_program() {
    let disk = |format| DiskSpec {
        id: "data".to_owned(),
        format,
        backing: None,
        boot: false,
        shared: true,
        ..root()
    };
    let shared = added(&spec(), &with(|s| s.machine.disks.push(disk(Format::Raw))));
    assert!(shared.contains(r#""share-rw":true"#) && shared.contains(r#""locking":"on""#), "{shared}");
    assert!(shared.contains(r#""driver":"raw""#), "{shared}");
    assert!(disk(Format::Raw).validate().is_ok() && disk(Format::Qcow2).validate().is_err());
    let exclusive =
        added(&spec(), &with(|s| s.machine.disks.push(DiskSpec { shared: false, ..disk(Format::Raw) })));
    assert!(!exclusive.contains("share-rw"), "{exclusive}");
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
