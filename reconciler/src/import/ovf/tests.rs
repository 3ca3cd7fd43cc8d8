//! Descriptors in the form that VMware and VirtualBox give them, variants of them, and hostile ones.

use std::time::{Duration, Instant};

use berth_api::Firmware;
use berth_api::vm::{DiskBus, NicModel};

use super::*;
use crate::import::{Configuration, DiskFiles, ImageFile, configuration};

const VMWARE: &str = include_str!("tests/vmware.ovf");
const VIRTUALBOX: &str = include_str!("tests/virtualbox.ovf");

fn appliance(text: &str) -> Appliance {
    read(text).expect("it is a descriptor")
}

fn refusal(text: &str) -> String {
    read(text).expect_err("it is refused").to_string()
}

fn written(appliance: &Appliance) -> Configuration {
    let files = DiskFiles { image_dir: "", in_place: false };
    configuration(&appliance.domains, &[], files, &mut |_, _| Ok(ImageFile { sha256: "ab".repeat(32) }))
}

fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
}

/// Each disk as source, format and bus.
fn disks(domain: &Domain) -> Vec<String> {
    let disk = |disk: &Disk| {
        let source = match &disk.source {
            DiskSource::Upload { file, compression, capacity } => {
                format!("{file} {} {}Gi", compression.unwrap_or("plain"), capacity >> 30)
            }
            DiskSource::Blank(bytes) => format!("blank {}Gi", bytes >> 30),
            other => format!("{other:?}"),
        };
        format!("{} {source} {} {:?}", disk.target, disk.format, disk.bus)
    };
    domain.disks.iter().map(disk).collect()
}

/// A system with these items besides CPUs and memory.
fn small(items: &str) -> String {
    let disk = "<Disk ovf:capacity=\"1\" ovf:capacityAllocationUnits=\"byte * 2^30\" ovf:diskId=\"d1\" ovf:fileRef=\"f1\" \
                ovf:format=\"vmdk\"/>";
    with(&format!("<VirtualSystem ovf:id=\"a\">{}</VirtualSystem>", hardware(items)), disk)
}

fn hardware(items: &str) -> String {
    let cpus = item(3, "<VirtualQuantity>1</VirtualQuantity>");
    let memory = item(4, "<VirtualQuantity>512</VirtualQuantity>");
    format!("<VirtualHardwareSection>{cpus}{memory}{items}</VirtualHardwareSection>")
}

fn item(kind: u32, more: &str) -> String {
    format!("<Item><ResourceType>{kind}</ResourceType>{more}</Item>")
}

fn disk_item(id: &str) -> String {
    item(17, &format!("<HostResource>ovf:/disk/{id}</HostResource>"))
}

fn with(systems: &str, disks: &str) -> String {
    format!(
        "<Envelope xmlns:ovf=\"http://schemas.dmtf.org/ovf/envelope/2\"><References><File ovf:id=\"f1\" ovf:href=\"a.vmdk\"/>\
         </References><DiskSection>{disks}</DiskSection>{systems}</Envelope>"
    )
}

#[test]
fn an_appliance_of_vmware_keeps_its_size_disks_cards_and_firmware() {
    let found = appliance(VMWARE);
    let domain = &found.domains[0];
    assert_eq!((&*domain.name, domain.cpus, domain.memory), ("Probe Appliance", 4, 4 << 30));
    assert_eq!(domain.firmware, Firmware::UEFISecureBoot);
    assert_eq!(
        disks(domain),
        [
            "disk1 probe-appliance-disk1.vmdk plain 16Gi vmdk VirtioScsi",
            "disk2 probe-appliance-disk2.vmdk.gz gzip 40Gi vmdk VirtioScsi",
            "disk3 blank 100Gi qcow2 Sata",
        ]
    );
    let files: Vec<(String, Option<u64>)> =
        found.files.iter().map(|file| (file.names().last().unwrap_or_default(), file.size)).collect();
    let expected = [("Probe Appliance-disk1.vmdk", Some(68096)), ("Probe Appliance-disk2.vmdk.gz", None)];
    assert_eq!(files, expected.map(|(name, size)| (name.to_owned(), size)));
    let cards: Vec<NicModel> = domain.interfaces.iter().map(|interface| interface.model).collect();
    assert_eq!(cards, [NicModel::Virtio, NicModel::E1000e]);
    assert_parts(
        &domain.notes.join("\n"),
        &[
            "its images stay on the hosts that convert them",
            "OVF environment by com.vmware.guestInfo",
            "a reservation or a limit of CPUs",
            "a CPU topology",
            "licence agreement",
            "OVF properties (hostname, password)",
            "Secure Boot has Microsoft's keys",
            "disk1: its controller is VirtualSCSI; in berth it is virtio-scsi",
            "Network adapter 1: its model is VmxNet3; in berth it is virtio",
            "its network (VM Network) is one of the other hypervisor",
            "a CD-ROM drive (CD-ROM 1) with the medium ovf:/file/file3",
            "a floppy drive (Floppy 1)",
            "a USB controller (USB controller)",
        ],
    );
    assert_eq!(found.notes, ["of its configurations large, small, small is taken"]);
}

#[test]
fn an_appliance_of_virtualbox_keeps_its_bus_its_card_and_its_firmware() {
    let found = appliance(VIRTUALBOX);
    let domain = &found.domains[0];
    assert_eq!((&*domain.name, domain.cpus, domain.memory), ("box", 2, 1 << 30));
    assert_eq!(domain.firmware, Firmware::UEFI);
    assert_eq!(disks(domain), ["disk1 box-disk001.vmdk plain 10Gi vmdk Sata"]);
    assert_eq!(domain.interfaces[0].model, NicModel::E1000);
    let expected = [
        "its network (NAT) is one of the other hypervisor; its interfaces are on the Network default, unless you set network",
        "it has a USB controller (usb), which berth does not have",
        "it has a sound card (sound), which berth does not have",
        "it has a CD-ROM drive (cdrom1), which is not taken over: see cdroms of berth_vm",
    ];
    assert_eq!(domain.notes, expected);
    let bios = appliance(&VIRTUALBOX.replace("<Firmware type=\"EFI\"/>", ""));
    assert_eq!(bios.domains[0].firmware, Firmware::BIOS);
}

#[test]
fn the_configuration_has_uploads_sizes_and_buses() {
    let found = written(&appliance(VMWARE));
    let sha256 = "ab".repeat(32);
    assert_parts(
        &found.text,
        &[
            "# Written by berth import ova.\n",
            "# VM probe-appliance: the virtual system \"Probe Appliance\" of the appliance.\n",
            "# Disk disk1 of Probe Appliance. Terraform uploads this file.\n",
            &format!(
                "    file   = \"${{path.module}}/probe-appliance-disk1.vmdk\"\n    sha256 = \"{sha256}\"\n"
            ),
            "  os          = { distribution = \"Debian GNU/Linux 11 (64-bit)\" }\n  description = \"Probe by Example\"\n  version     = \"4.2\"\n",
            "  format = \"vmdk\"\n",
            "  compression = \"gzip\"\n",
            "resource \"berth_disk\" \"probe-appliance-disk1\" {\n  name          = \"probe-appliance-disk1\"\n  image         = berth_image.probe-appliance-disk1.name\n  size          = \"16Gi\"\n  imported_from = { system = \"OVF\", guest = \"Probe Appliance\", disk = \"disk1\" }\n}\n",
            "resource \"berth_disk\" \"probe-appliance-disk3\" {\n  name          = \"probe-appliance-disk3\"\n  size          = \"100Gi\"\n  imported_from = { system = \"OVF\", guest = \"Probe Appliance\", disk = \"disk3\" }\n}\n",
            "{ name = berth_disk.probe-appliance-disk1.name, boot = true },",
            "{ name = berth_disk.probe-appliance-disk3.name, bus = \"sata\" },",
            "firmware = \"UEFISecureBoot\"",
            "graphics           = \"VGA\"",
            "network_interfaces = [{}, { model = \"e1000e\" }]",
        ],
    );
    assert_eq!((found.vms, found.images, found.taken), (1, 2, 0));
    assert!(!found.text.contains("shutdown"), "{}", found.text);
}

#[test]
fn windows_has_a_bus_and_a_card_that_it_knows() {
    let windows = VMWARE.replace("debian11_64Guest", "windows2019srv_64Guest");
    let domain = appliance(&windows).domains.remove(0);
    assert!(domain.disks.iter().all(|disk| disk.bus == DiskBus::Sata), "{:?}", domain.disks);
    assert!(domain.interfaces.iter().all(|interface| interface.model == NicModel::E1000e));
    assert_parts(&domain.notes.join("\n"), &["its guest is Windows", "SATA, for which Windows has a driver"]);
}

#[test]
fn a_disk_without_a_controller_is_on_a_bus_that_its_guest_knows() {
    let linux = small(&disk_item("d1"));
    let windows = linux.replace(
        "<VirtualHardwareSection>",
        "<OperatingSystemSection><Description>Windows 11</Description></OperatingSystemSection><VirtualHardwareSection>",
    );
    for (text, bus, note) in [
        (linux, DiskBus::VirtioScsi, "disk1: its controller is not declared; in berth it is virtio-scsi"),
        (windows, DiskBus::Sata, "disk1: its controller is not declared; in berth it is SATA"),
    ] {
        let domain = appliance(&text).domains.remove(0);
        assert_eq!(domain.disks[0].bus, bus);
        assert_parts(&domain.notes.join("\n"), &[note]);
    }
}

/// The sizes of the disks, in GiB.
fn sizes(domain: &Domain) -> Vec<u64> {
    let size = |disk: &Disk| match disk.source {
        DiskSource::Upload { capacity, .. } => capacity >> 30,
        DiskSource::Blank(bytes) => bytes >> 30,
        _ => 0,
    };
    domain.disks.iter().map(size).collect()
}

#[test]
fn the_disks_of_a_controller_stay_together() {
    let controller = |kind, id: &str, more: &str| item(kind, &format!("<InstanceID>{id}</InstanceID>{more}"));
    let disk = |parent: &str, slot: u32, id: u32| {
        item(
            17,
            &format!(
                "<Parent>{parent}</Parent><AddressOnParent>{slot}</AddressOnParent><HostResource>/disk/d{id}</HostResource>"
            ),
        )
    };
    let disks: String = (1..=4)
        .map(|id| format!("<Disk ovf:capacity=\"{id}\" ovf:capacityAllocationUnits=\"byte * 2^30\" ovf:diskId=\"d{id}\"/>"))
        .collect();
    let nvme = "<Address>0</Address><ResourceSubType>vmware.nvme.controller</ResourceSubType>";
    for (a, b) in [
        (controller(20, "a", nvme), controller(20, "b", "<Address>0</Address>")),
        (controller(6, "a", ""), controller(6, "b", "")),
        (controller(6, "a", "<Address>0</Address>"), controller(6, "b", "<Address>1</Address>")),
    ] {
        let items = [a, b, disk("b", 0, 3), disk("b", 1, 4), disk("a", 1, 2), disk("a", 0, 1)].concat();
        let system = format!("<VirtualSystem ovf:id=\"a\">{}</VirtualSystem>", hardware(&items));
        assert_eq!(sizes(&appliance(&with(&system, &disks)).domains[0]), [1, 2, 3, 4], "{items}");
    }
}

#[test]
fn a_vmdk_has_a_size_of_whole_grains() {
    let text = small(&disk_item("d1"))
        .replace("\"1\" ovf:capacityAllocationUnits=\"byte * 2^30\"", "\"1073741313\"");
    let capacity = |text: &str| match appliance(text).domains[0].disks[0].source {
        DiskSource::Upload { capacity, .. } => capacity,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(capacity(&text), 1 << 30);
    assert_eq!(capacity(&text.replace("\"vmdk\"", "\"vhdx\"")), 1 << 30);
    let less = text.replace("1073741313", "1073741312");
    assert_eq!(capacity(&less), 1 << 30);
    assert_eq!(capacity(&less.replace("\"vmdk\"", "\"vhdx\"")), (1 << 30) - 512);
}

#[test]
fn a_file_is_taken_once_and_in_one_format() {
    let two = disk_item("d1") + &disk_item("d2");
    let system = format!("<VirtualSystem ovf:id=\"a\">{}</VirtualSystem>", hardware(&two));
    let disk = |id: &str, file: &str, format: &str| {
        format!(
            "<Disk ovf:capacity=\"1024\" ovf:diskId=\"{id}\" ovf:fileRef=\"{file}\" ovf:format=\"{format}\"/>"
        )
    };
    let formats = with(&system, &(disk("d1", "f1", "vmdk") + &disk("d2", "f1", "vhd")));
    assert!(refusal(&formats).contains("in the format vhd, and another disk has it in vmdk"));
    let names = with(&system, &(disk("d1", "f1", "vmdk") + &disk("d2", "f2", "vmdk")))
        .replace("</References>", "<File ovf:id=\"f2\" ovf:href=\"%61.vmdk\"/></References>");
    assert!(refusal(&names).contains("\"%61.vmdk\", which is twice in References"));
}

#[test]
fn a_disk_that_no_vm_gets_has_no_file() {
    let numbers = 1..=17;
    let items: String = numbers.clone().map(|id| disk_item(&format!("d{id}"))).collect();
    let disks: String = numbers
        .clone()
        .map(|id| {
            format!(
                "<Disk ovf:capacity=\"1024\" ovf:diskId=\"d{id}\" ovf:fileRef=\"f{id}\" ovf:format=\"vmdk\"/>"
            )
        })
        .collect();
    let files: String =
        numbers.skip(1).map(|id| format!("<File ovf:id=\"f{id}\" ovf:href=\"{id}.vmdk\"/>")).collect();
    let system = format!("<VirtualSystem ovf:id=\"a\">{}</VirtualSystem>", hardware(&items));
    let text = with(&system, &disks).replace("</References>", &format!("{files}</References>"));
    let found = appliance(&text);
    assert_eq!((found.files.len(), found.domains[0].disks.len()), (16, 16));
    assert_parts(&found.domains[0].notes.join("\n"), &["a VM of berth has at most 16 disks; it is left out"]);
}

#[test]
fn several_systems_are_several_vms_and_share_the_file_of_a_disk() {
    let system =
        |id: &str| format!("<VirtualSystem ovf:id=\"{id}\">{}</VirtualSystem>", hardware(&disk_item("d1")));
    let disk = "<Disk ovf:capacity=\"1048576\" ovf:diskId=\"d1\" ovf:fileRef=\"f1\" ovf:format=\"vmdk\"/>";
    let collection = format!(
        "<VirtualSystemCollection ovf:id=\"c\"><StartupSection/><vmw:PlacementSection xmlns:vmw=\"v\"/>{}{}</VirtualSystemCollection>",
        system("web"),
        system("db")
    );
    let found = appliance(&with(&collection, disk));
    assert_eq!(found.files.len(), 1);
    assert_parts(
        &found.notes.join("\n"),
        &["an order in which its systems start", "it has a PlacementSection"],
    );
    let written = written(&found);
    assert_eq!((written.vms, written.images), (2, 1));
    assert_parts(
        &written.text,
        &["resource \"berth_vm\" \"web\"", "resource \"berth_vm\" \"db\"", "is also that of VM web"],
    );
    let many: String = (0..=MAX_SYSTEMS).map(|number| system(&number.to_string())).collect();
    assert!(refusal(&with(&many, disk)).contains("65 virtual systems"));
}

#[test]
fn items_of_other_configurations_and_ranges_are_no_hardware() {
    let items = "<Item ovf:configuration=\"b\"><InstanceID>9</InstanceID><ResourceType>10</ResourceType></Item>\
                 <Item ovf:bound=\"max\"><ResourceType>10</ResourceType></Item>\
                 <EthernetPortItem><InstanceID>9</InstanceID><ResourceType>10</ResourceType></EthernetPortItem>\
                 <StorageItem><ResourceType>31</ResourceType><HostResource>/disk/d1</HostResource></StorageItem>";
    let found = appliance(&small(items));
    assert_eq!((found.domains[0].interfaces.len(), found.domains[0].disks.len()), (1, 1));
}

#[test]
fn a_seventh_disk_on_sata_and_notes_beyond_a_limit_are_named() {
    let controller = item(20, "<InstanceID>c</InstanceID>");
    let disk = item(17, "<Parent>c</Parent><HostResource>/disk/d1</HostResource>");
    let sound = item(35, "");
    let found = appliance(&small(&(controller + &disk.repeat(7) + &sound.repeat(100))));
    let domain = &found.domains[0];
    assert_eq!(domain.disks.iter().filter(|disk| disk.bus == DiskBus::Sata).count(), 6);
    let notes = domain.notes.join("\n");
    assert_parts(
        &notes,
        &["disk7: a VM of berth has at most 6 disks on SATA", "further parts are not taken over"],
    );
    assert_eq!(domain.notes.len(), MAX_NOTES + 1);
    assert!(refusal(&small(&sound.repeat(1_000))).contains("has 1002 devices"));
}

#[test]
fn what_cannot_be_had_is_refused_with_the_reason() {
    let one = small(&disk_item("d1"));
    assert!(read(&one).is_ok());
    for (from, to, expected) in [
        ("<Envelope", "<Envelop xmlns=\"x\"", "it is not XML"),
        ("ovf:/disk/d1", "ovf:/disk/d2", "\"d2\" is not in its DiskSection"),
        ("ovf:/disk/d1", "ovf:/file/f1", "a disk has ovf:/disk/ID"),
        ("ovf:fileRef=\"f1\"", "ovf:fileRef=\"f2\"", "\"f2\", which is not in References"),
        ("ovf:fileRef=\"f1\"", "ovf:fileRef=\"f1\" ovf:parentRef=\"d0\"", "without its snapshots"),
        ("ovf:capacity=\"1\"", "ovf:capacity=\"${size}\"", "has the capacity \"${size}\""),
        ("ovf:capacity=\"1\"", "ovf:capacity=\"0\"", "1 byte to 64 TiB"),
        ("ovf:capacity=\"1\"", "ovf:capacity=\"18446744073709551615\"", "1 byte to 64 TiB"),
        ("ovf:format=\"vmdk\"", "ovf:format=\"http://example.org/x\"", "those of VMDK"),
        ("ovf:href=\"a.vmdk\"", "ovf:href=\"../a.vmdk\"", "has a name, and no folder"),
        ("ovf:href=\"a.vmdk\"", "ovf:href=\"/etc/shadow\"", "has a name, and no folder"),
        ("ovf:href=\"a.vmdk\"", "ovf:href=\"https://example.org/a.vmdk\"", "download it"),
        ("ovf:href=\"a.vmdk\"", "ovf:href=\"a.vmdk\" ovf:chunkSize=\"1024\"", "in chunks"),
        ("ovf:href=\"a.vmdk\"", "ovf:href=\"a.vmdk\" ovf:compression=\"xz\"", "the compression \"xz\""),
        ("ovf:href=\"a.vmdk\"", "ovf:href=\"a.vmdk\" ovf:size=\"-1\"", "with the size"),
        ("</References>", "<File ovf:id=\"f1\"/></References>", "two files with the id \"f1\""),
        ("<ResourceType>3<", "<ResourceType>99<", "no number of CPUs"),
        ("<ResourceType>4<", "<ResourceType>99<", "no size of its memory"),
        (
            "<VirtualQuantity>512",
            "<AllocationUnits>furlong</AllocationUnits><VirtualQuantity>512",
            "a known unit",
        ),
        ("<VirtualSystem ", "<VirtualSysteme ", "it is not XML"),
    ] {
        let error = refusal(&one.replacen(from, to, 1));
        assert!(error.contains(expected), "{to}: {error}");
    }
    assert!(refusal("<domain/>").contains("describes a <domain>"));
    assert!(refusal("<Envelope/>").contains("no VirtualSystem"));
    assert!(refusal("<Envelope><Content/></Envelope>").contains("it is OVF 0.9: convert it"));
    assert!(refusal("<Envelope><VirtualSystem/></Envelope>").contains("no VirtualHardwareSection"));
}

#[test]
fn hostile_descriptors_are_refused_at_once() {
    let one = small(&disk_item("d1"));
    let bomb = format!("<!DOCTYPE e [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;&a;\">]>{one}");
    let outside = format!("<!DOCTYPE e [<!ENTITY a SYSTEM \"file:///etc/passwd\">]>{one}");
    let huge = one.clone() + &" ".repeat(MAX_XML);
    let deep = format!("<Envelope>{}", "<VirtualSystemCollection>".repeat(40_000));
    let attributes =
        format!("<Envelope {}/>", (0..90_000).map(|i| format!("a{i} = '' ")).collect::<String>());
    let opened: String = (0..4_000).map(|i| format!("<a xmlns:b{i}='u'>")).collect();
    let namespaces = format!("<Envelope>{opened}{}</Envelope>", "</a>".repeat(4_000));
    for document in [bomb, outside, huge, deep, attributes, namespaces, String::new(), "\0".to_owned()] {
        let started = Instant::now();
        let start: String = document.chars().take(60).collect();
        assert!(read(&document).is_err(), "{start}");
        assert!(started.elapsed() < Duration::from_secs(5), "{start}: {:?}", started.elapsed());
    }
}

#[test]
fn hostile_names_stay_literals_comments_and_labels() {
    let hostile = "a&#10;}&#10;resource &quot;x&quot; {&#10; ${file(&quot;/etc/shadow&quot;)}";
    let items = item(10, &format!("<Connection>{hostile}</Connection><ElementName>{hostile}</ElementName>"));
    let text =
        small(&(disk_item("d1") + &items + &item(99, &format!("<ElementName>{hostile}</ElementName>"))))
            .replace("<VirtualSystem ovf:id=\"a\">", &format!("<VirtualSystem><Name>{hostile}</Name>"))
            .replace("a.vmdk", "${path.root}&quot;.tf");
    let found = appliance(&text);
    assert_eq!(
        found.files[0].name, "path-root.vmdk",
        "Terraform reads no file of the appliance as configuration"
    );
    let written = written(&found);
    for line in written.text.lines() {
        let known = ["resource \"berth_", "terraform {", "provider \"berth\"", "#", "  ", "}"];
        assert!(line.is_empty() || known.iter().any(|start| line.starts_with(start)), "{line}");
        assert!(line.starts_with('#') || !line.contains("file("), "{line}");
    }
}
