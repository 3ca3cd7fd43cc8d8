//! Which disks move under their guests.

use berth_host::VolumeOwner;
use berth_qemu::machine::Format;

use super::*;

fn volume() -> VolumeFacts {
    VolumeFacts {
        problem: None,
        encryption: None,
        retained: false,
        pending_snapshot: None,
        restores: Vec::new(),
        restoring: false,
        reserved: None,
        pool: "default".into(),
        id: "v-1".into(),
        size: 1 << 30,
        base: Some("abc".into()),
        owner: VolumeOwner { namespace: "ns".into(), name: "d".into(), uid: None, image: None, source: None },
        path: "/pool/v-1.qcow2".into(),
        format: Format::Qcow2,
        cache: Default::default(),
        backing: Some(Backing { file: "/images/abc".into(), format: Format::Qcow2, backing: None }),
    }
}

fn open() -> OpenVolume {
    let disk = ObservedDisk {
        is_encrypted: false,
        id: "v-1".into(),
        node: Some("v-1".into()),
        serial: "v1".into(),
        file: Some("/pool/v-1.qcow2".into()),
        size: 1 << 30,
        read_only: false,
        bus: Default::default(),
        limits: Default::default(),
        target: Some(0),
        is_direct: true,
        files_below: 1,
        io_error: false,
    };
    OpenVolume { disk, changes: true, is_running: true, mirror: None }
}

#[test]
fn a_disk_with_one_file_above_its_image_moves_under_its_guest_and_others_do_not() {
    assert_eq!(obstacle(&volume(), &[open()]), None);
    let blank = VolumeFacts { base: None, backing: None, ..volume() };
    let mut on_blank = open();
    on_blank.disk.files_below = 0;
    assert_eq!(obstacle(&blank, &[on_blank.clone()]), None);
    let says = |volume: &VolumeFacts, open: &[OpenVolume], text: &str| {
        let why = obstacle(volume, open).unwrap_or_default();
        assert!(why.contains(text), "{why}");
    };
    says(&volume(), &[], "no machine");
    says(&volume(), &[open(), open()], "several VMs");
    says(&VolumeFacts { path: "/pool/v-1.2.qcow2".into(), ..volume() }, &[open()], "snapshots");
    says(&VolumeFacts { base: None, ..volume() }, &[open()], "snapshots");
    says(&VolumeFacts { format: Format::Raw, base: None, backing: None, ..volume() }, &[open()], "shares it");
    says(&volume(), &[OpenVolume { is_running: false, ..open() }], "does not run");
    says(&volume(), &[on_blank], "earlier version");
}
