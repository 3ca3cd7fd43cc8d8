//! Screen, sound, serial ports, vsock, and the order in which devices are booted.

use super::*;

fn with_screen(change: impl FnOnce(&mut Extras)) -> LaunchSpec {
    with(|s| {
        s.machine.graphics = Graphics::Vga;
        change(&mut s.machine.extras);
    })
}

#[test]
fn a_resolution_is_that_of_the_monitor_and_a_layout_that_of_the_viewers() {
    let base = with_screen(|_| {});
    let changed = with_screen(|extras| {
        extras.resolution = Some((1920, 1080));
        extras.keyboard_layout = Some("de-ch".to_owned());
    });
    insta::assert_snapshot!(added(&base, &changed), @r##"
    -device {"addr":"0x1","bus":"pcie.0","driver":"VGA","id":"vga0","xres":1920,"yres":1080}
    -k de-ch
    "##);
    assert_eq!(changed.validate(), Ok(()));
    for wrong in ["", "../de", "de ch"] {
        let refused = with_screen(|extras| extras.keyboard_layout = Some(wrong.to_owned())).validate();
        assert!(refused.is_err(), "{wrong}");
    }
    assert!(with_screen(|extras| extras.resolution = Some((4096, 4096))).validate().is_err());
}

#[test]
fn a_sound_card_plays_into_nothing_and_to_the_viewers_of_a_screen() {
    let with_sound = with(|s| s.machine.extras.sound = true);
    insta::assert_snapshot!(added(&spec(), &with_sound), @r##"
    -audiodev none,id=audio0
    -device {"addr":"0xd","bus":"pcie.0","driver":"ich9-intel-hda","id":"sound0"}
    -device {"audiodev":"audio0","bus":"sound0.0","driver":"hda-duplex","id":"sound-codec0"}
    "##);
    let shown = shown(&with_screen(|extras| extras.sound = true));
    assert!(shown.contains("vnc.sock,share=ignore,audiodev=audio0"), "{shown}");
}

#[test]
fn a_sound_card_leaves_its_place_only_to_more_than_eight_ports_for_network_cards() {
    let everything = |ports| {
        with(move |s| {
            s.machine.graphics = Graphics::Vga;
            s.machine.nic_ports = ports;
            s.machine.extras.sound = true;
            s.machine.extras.vsock_cid = Some(FIRST_CID);
        })
    };
    for (ports, place) in [(0, "0xd"), (USUAL_NIC_PORTS, "0xd"), (NIC_PORTS, "0xd.7")] {
        let shown = shown(&everything(ports));
        let card = format!(r#""addr":"{place}","bus":"pcie.0","driver":"ich9-intel-hda","id":"sound0"}}"#);
        assert!(shown.contains(&card), "{ports}: {shown}");
        let on_root = shown.lines().filter(|line| line.contains(r#""bus":"pcie.0""#));
        let mut places: Vec<&str> = on_root
            .filter_map(|line| line.split_once(r#""addr":""#)?.1.split('"').next())
            .map(|place| place.strip_suffix(".0").unwrap_or(place))
            .collect();
        let all = places.len();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), all, "a place is taken twice: {shown}");
    }
}

#[test]
fn a_vsock_device_has_its_context_id_and_the_descriptor_that_qemu_gets() {
    let with_cid = |cid| with(|s| s.machine.extras.vsock_cid = Some(cid));
    insta::assert_snapshot!(added(&spec(), &with_cid(70_000)), @r##"-device {"addr":"0xe","bus":"pcie.0","driver":"vhost-vsock-pci","guest-cid":70000,"id":"vsock0"}"##);
    let open = with(|s| {
        s.machine.extras.vsock_cid = Some(70_000);
        s.files.vsock_file = Some(9);
    });
    assert!(shown(&open).contains(r#""guest-cid":70000,"id":"vsock0","vhostfd":"9"}"#));
    assert_eq!(with_cid(FIRST_CID).validate(), Ok(()));
    for of_others in [0, 2, 3, FIRST_CID - 1, LAST_CID + 1, u32::MAX] {
        assert!(with_cid(of_others).validate().is_err(), "{of_others}");
    }
}

#[test]
fn a_bios_boots_from_the_network_by_the_rom_of_the_card_and_uefi_from_a_virtio_card_without() {
    let order = vec![BootSource::Network, BootSource::Disk];
    let with_nic = |model, order: Vec<BootSource>| {
        with(|s| {
            s.machine.nics = vec![NicSpec { model, ..nic() }];
            s.machine.extras.boot_order = order;
        })
    };
    let virtio = |order| with_nic(NicModel::Virtio, order);
    let changed = added(&virtio(Vec::new()), &virtio(order.clone()));
    assert!(
        changed.contains(r#""romfile":"efi-virtio.rom""#) && changed.contains(r#""bootindex":1,"#),
        "{changed}"
    );
    assert!(changed.contains(r#""id":"root""#) && changed.contains(r#""bootindex":15,"#), "{changed}");
    let by_uefi = |mut spec: LaunchSpec| {
        spec.machine.firmware = Firmware::Uefi;
        shown(&spec)
    };
    assert!(by_uefi(virtio(order.clone())).contains(r#""romfile":"""#), "it has a driver");
    assert!(by_uefi(with_nic(NicModel::E1000e, order.clone())).contains(r#""romfile":"efi-e1000e.rom""#));
    assert!(!shown(&virtio(Vec::new())).contains("efi-virtio"), "not unless it is to boot from there");
    let twice = [order, vec![BootSource::Disk]].concat();
    assert!(virtio(twice).validate().is_err());
}

#[test]
fn sources_have_indexes_in_their_order_and_what_is_not_listed_has_none() {
    use BootSource::{Cdrom, Disk, Network};
    let first = |order: &[BootSource]| {
        let spec = with(|s| s.machine.extras.boot_order = order.to_vec());
        [Disk, Cdrom, Network].map(|source| spec.machine.first_index(source))
    };
    assert_eq!(first(&[]), [Some(1), Some(2), None], "the disk, then the drives");
    assert_eq!(first(&[Disk, Cdrom]), first(&[]));
    assert_eq!(first(&[Network, Disk]), [Some(15), None, Some(1)]);
    assert_eq!(first(&[Cdrom, Network, Disk]), [Some(19), Some(1), Some(5)]);
}

#[test]
fn a_further_serial_port_has_a_socket_and_a_log_of_its_own() {
    let two = with(|s| s.machine.extras.further_serial_ports = 1);
    insta::assert_snapshot!(added(&spec(), &two), @r##"
    -chardev socket,id=serial1,path=/run/berth/i-7f2f6d5e/serial2.sock,server=on,wait=off,logfile=/run/berth/i-7f2f6d5e/serial2.log,logappend=on
    -device {"chardev":"serial1","driver":"isa-serial","id":"com2"}
    "##);
    assert!(with(|s| s.machine.extras.further_serial_ports = 4).validate().is_err());
    let paths = two.files.paths.with_logs_in(Path::new("/i/i-7f2f6d5e"));
    let (socket, log) = paths.serial_port(2);
    assert_eq!(
        (socket.as_path(), log.as_path()),
        (Path::new("/run/berth/i-7f2f6d5e/serial2.sock"), Path::new("/i/i-7f2f6d5e/serial2.log"))
    );
    assert_eq!(paths.clone().with_serial_port(2).serial_log, log);
    assert_eq!(paths.serial_port(1), (paths.serial_socket.clone(), paths.serial_log.clone()));
}
