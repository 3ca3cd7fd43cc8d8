//! Descriptions as virt-install, virt-manager and Terraform's provider make them, and hostile ones.

use super::*;

const DEBIAN: &str = include_str!("tests/debian.xml");
const FEDORA: &str = include_str!("tests/fedora.xml");
const WINDOWS: &str = include_str!("tests/windows.xml");
const TERRAFORM: &str = include_str!("tests/terraform.xml");
const BACKEND: &str = include_str!("tests/backend.xml");

fn domain(text: &str) -> Domain {
    match read(text).expect("it is libvirt's") {
        Described::Domain(domain) => *domain,
        Described::Network(network) => panic!("{network:?}"),
    }
}

const COPIES: DiskFiles<'_> = DiskFiles { image_dir: "/srv/images", in_place: false };

/// The configuration of these documents. Files in qcow2 are images.
fn import_of(documents: &[&str]) -> Configuration {
    import_with(documents, COPIES)
}

fn import_with(documents: &[&str], files: DiskFiles<'_>) -> Configuration {
    let (mut domains, mut networks) = (Vec::new(), Vec::new());
    for document in documents {
        match read(document).expect("it is libvirt's") {
            Described::Domain(domain) => domains.push(*domain),
            Described::Network(network) => networks.push(network),
        }
    }
    let mut read_disk = |path: &str, format: &str| match format {
        "qcow2" => Ok(ImageFile { sha256: "ab".repeat(32) }),
        "raw" if path == "/srv/iso/debian.iso" => Ok(ImageFile { sha256: "cd".repeat(32) }),
        "raw" if path.ends_with(".iso") => Err(Unread::Unreadable("too far away".to_owned())),
        _ if path.starts_with("/dev") => Err(Unread::Unreadable("permission denied".to_owned())),
        other => Err(Unread::Unfit(format!("its format is {other}"))),
    };
    configuration(&domains, &networks, files, &mut read_disk)
}

fn small(name: &str, devices: &str) -> String {
    format!(
        "<domain type='qemu'><name>{name}</name><memory>65536</memory><vcpu>1</vcpu><devices>{devices}</devices></domain>"
    )
}

fn disk(file: &str, target: &str) -> String {
    format!(
        "<disk type='file'><driver type='qcow2'/><source file='{file}'/><target dev='{target}' bus='virtio'/></disk>"
    )
}

fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
}

#[test]
fn a_running_debian_keeps_its_size_and_mac_and_its_checksum_is_left_for_later() {
    let import = import_of(&[DEBIAN]);
    assert_parts(
        &import.text,
        &[
            "resource \"berth_vm_class\" \"cpu2-2gi-bios\" {\n  name     = \"cpu2-2gi-bios\"\n  cpus     = 2\n  memory   = \"2Gi\"\n",
            "variable \"debian12-vda_sha256\" {",
            "#   virsh shutdown debian12\n",
            "#   qemu-img convert -f qcow2 -O qcow2 /var/lib/libvirt/images/debian12.qcow2 /srv/images/debian12-vda.qcow2\n",
            "sha256 = var.debian12-vda_sha256",
            "disks              = [{ name = berth_disk.debian12-vda.name, boot = true }]",
            "cdroms             = [{ name = \"sda\" }]",
            "network_interfaces = [{ mac_address = \"52:54:00:6b:3c:58\" }]",
            "  uuid               = \"5c4a2c1e-6d0c-4f77-9a3e-0f6b9c1d2e01\"\n  graphics           = \"VGA\"\n",
            "# - its display is spice; in berth it is VNC (berth vnc)\n",
        ],
    );
    let expected = [
        "debian12: its display is spice; in berth it is VNC (berth vnc)",
        "debian12: it has a sound card (ich9): set sound, for which the guest sees Intel HD Audio",
        "debian12: it has a redirdev (spicevmc) which berth does not have",
        "debian12: it has a watchdog (itco): set watchdog, for which the guest sees an i6300esb",
    ];
    assert_eq!(import.notes, expected);
    assert_eq!((import.vms, import.images), (1, 1));
}

#[test]
fn uefi_boot_order_and_a_networks_range_are_kept_and_secure_boot_is_named() {
    let import = import_of(&[FEDORA, BACKEND]);
    assert_parts(
        &import.text,
        &[
            "firmware = \"UEFISecureBoot\"",
            "# VM fedora-41: the domain \"Fedora_41\" of libvirt.\n",
            "  cidr = \"10.17.3.0/24\"\n",
            "virsh net-destroy backend",
            "#   cp --sparse=always '/var/lib/libvirt/images/data disk.qcow2' /srv/images/fedora-41-vdb.qcow2\n",
            "{ name = berth_disk.fedora-41-vdb.name },",
            "{ name = berth_disk.fedora-41-vda.name, boot = true },",
            "{ network = berth_network.backend.name, mac_address = \"52:54:00:00:41:01\" }",
            "{ mac_address = \"52:54:00:00:41:02\" }",
        ],
    );
    assert!(!import.text.contains("10.17.3.1\""), "the gateway's address is berth's own:\n{}", import.text);
    let notes = import.notes.join("\n");
    assert_parts(
        &notes,
        &[
            "Secure Boot",
            "UEFI variables",
            "it has a TPM, whose memory",
            "vda: its file was not read: permission denied",
            "bridge br0",
        ],
    );
}

#[test]
fn firmware_for_secure_boot_without_keys_is_plain_uefi() {
    let without = FEDORA.replace("enabled='yes' name='enrolled-keys'", "enabled='no' name='enrolled-keys'");
    let import = import_of(&[&without]);
    assert_parts(&import.text, &["firmware = \"UEFI\"\n"]);
}

#[test]
fn a_windows_guest_needs_drivers_and_its_devices_are_offered_first() {
    let folder = "<filesystem type='mount'><source dir='/srv'/><target dir='srv'/></filesystem>\
                  <vsock model='virtio'><cid auto='yes' address='3'/></vsock></devices>";
    let import = import_of(&[&WINDOWS.replace("</devices>", folder)]);
    assert_parts(
        &import.notes.join("\n"),
        &[
            "sda: its bus is sata",
            "it has a device of its host (pci): offer it there with --pci-device NAME=0000:01:00, and add NAME to pci_devices",
            "it has a folder of its host: share it there with --share",
            "it has a vsock device: set vsock",
            "its clock is localtime",
            "its CPU model is Skylake-Server",
            "a CPU topology",
            "4 of its CPUs are online",
            "sda: its file has to be converted: its format is vmdk",
            "sdb: its data is on rbd:pool/win-data",
            "sdc: its file was not read: too far away",
            "direct eno1",
        ],
    );
    assert_parts(
        &import.text,
        &[
            "model = \"e1000e\"",
            "qemu-img convert -f vmdk -O qcow2 /srv/vms/win2022.vmdk",
            "cpus     = 8",
            "[{ name = \"sdc\", image = berth_image.win2022-sdc.name, boot_first = true }]",
        ],
    );
}

#[test]
fn cdrom_drives_keep_their_media_and_the_boot_order() {
    let drive = |target: &str, more: &str| {
        format!(
            "<disk type='file' device='cdrom'><target dev='{target}' bus='sata'/><readonly/>{more}</disk>"
        )
    };
    let iso = |path: &str, order: &str| format!("<source file='{path}'/>{order}");
    let debian = iso("/srv/iso/debian.iso", "");
    let first = disk("/srv/a.qcow2", "vda").replace("</disk>", "<boot order='2'/></disk>")
        + &drive("sda", &iso("/srv/iso/debian.iso", "<boot order='1'/>"))
        + &drive("sdb", "")
        + &drive("sdc", &debian);
    let floppy = "<disk type='file' device='floppy'><source file='/srv/a.img'/><target dev='fda'/></disk>";
    let five: String = (0..5).map(|i| drive(&format!("hd{i}"), "")).collect();
    // A guest that runs changes its disk and not its medium.
    let runs = small("one", &first).replace("<domain ", "<domain id='7' ");
    let import = import_of(&[
        &runs,
        &small("two", &(disk("/srv/b.qcow2", "vda") + &drive("sda", &debian) + floppy)),
        &small("three", &(disk("/srv/c.qcow2", "vda") + &five)),
    ]);
    let image = format!(
        "resource \"berth_image\" \"one-sda\" {{\n  name = \"one-sda\"\n  source = {{\n    url    = \"file:///srv/images/one-sda.iso\"\n    sha256 = \"{}\"\n  }}\n  format = \"iso\"\n}}\n",
        "cd".repeat(32)
    );
    assert_parts(
        &import.text,
        &[
            "# Medium in sda of one: /srv/iso/debian.iso\n#   mkdir -p /srv/images\n#   cp --sparse=always /srv/iso/debian.iso /srv/images/one-sda.iso\n",
            &image,
            "{ name = \"sda\", image = berth_image.one-sda.name, boot_first = true }",
            "{ name = \"sdb\" }",
            "{ name = \"sdc\" }",
            "cdroms             = [{ name = \"sda\", image = berth_image.one-sda.name }]",
        ],
    );
    assert_eq!(import.text.matches("format = \"iso\"").count(), 1, "one image for all drives");
    assert_eq!(import.text.matches("{ name = \"hd").count(), 4);
    let expected = [
        "one: sdc: its medium is in another drive too; in berth this one is empty",
        "two: fda is a floppy, and berth has disks and CD-ROM drives only",
        "three: hd4: a VM of berth has at most 4 CD-ROM drives; it is left out",
    ];
    assert_eq!(import.notes, expected);
}

#[test]
fn a_domain_of_terraforms_provider_names_its_volume_and_its_cloud_init_data() {
    let import = import_of(&[TERRAFORM, BACKEND]);
    assert_parts(
        &import.text,
        &[
            "qemu-img convert -f qcow2 -O qcow2 \"$(virsh vol-path --pool default web-0.qcow2)\" /srv/images/web-0-vda.qcow2",
            "address     = \"10.17.3.10\"",
        ],
    );
    assert_parts(
        &import.notes.join("\n"),
        &["hdd (/var/lib/libvirt/images/commoninit.iso) looks like cloud-init data"],
    );
}

#[test]
fn a_usb_device_of_the_host_is_offered_by_its_vendor_and_product() {
    let hostdev = |source: &str| {
        let device = format!("<hostdev mode='subsystem' type='usb'><source>{source}</source></hostdev>");
        import_of(&[&small("web", &device)]).notes.join("\n")
    };
    let by_id = hostdev("<vendor id='0x0403'/><product id='0x6001'/>");
    let text = "it has a device of its host (usb): offer it there with --usb-device NAME=0403:6001, and add NAME to usb_devices";
    assert_parts(&by_id, &[text]);
    for source in ["<address bus='1' device='4'/>", "<vendor id='$(id)'/><product id='6001'/>"] {
        assert_parts(&hostdev(source), &["--usb-device NAME=DEVICE, and add NAME to usb_devices"]);
    }
}

#[test]
fn a_vgpu_of_the_host_is_offered_by_its_device_and_type() {
    let device = "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='c2177883-f1bb-47f0-914d-32a22e3a8804'/></source></hostdev>";
    let notes = import_of(&[&small("web", device)]).notes.join("\n");
    assert_parts(&notes, &["--vgpu NAME=ADDRESS/TYPE, and add NAME to vgpus"]);
}

#[test]
fn equal_sizes_share_a_class_shared_files_an_image_and_no_name_is_used_twice() {
    let devices = disk("/srv/base.qcow2", "vda");
    let import = import_of(&[
        &small("Web", &devices),
        &small("web", &(devices.clone() + &disk("/srv/base.qcow2", "vdb"))),
    ]);
    let count = |text: &str| import.text.matches(text).count();
    assert_eq!(
        [
            count("resource \"berth_vm_class\""),
            count("resource \"berth_image\""),
            count("resource \"berth_disk\"")
        ],
        [1, 1, 3]
    );
    assert_parts(&import.text, &["resource \"berth_vm\" \"web\"", "resource \"berth_vm\" \"web-2\""]);
    assert_parts(
        &import.notes.join("\n"),
        &[
            "web: vda: /srv/base.qcow2 is also that of VM Web",
            "web: vdb: /srv/base.qcow2 is also that of VM Web",
        ],
    );
}

#[test]
fn qcow2_files_of_one_disk_are_taken_over_in_place_and_others_become_images() {
    let raw = disk("/srv/raw.img", "vdb").replace("qcow2", "raw");
    let shared = disk("/srv/shared.qcow2", "vdc");
    let web = small("web", &format!("{}{raw}{shared}", disk("/srv/my web.qcow2", "vda")));
    let db = small("db", &shared);
    let import = import_with(&[&web, &db], DiskFiles { in_place: true, ..COPIES });
    assert_eq!((import.vms, import.taken, import.images), (2, 1, 2), "{}", import.text);
    assert_parts(
        &import.text,
        &[
            "source        = { file = \"/srv/my web.qcow2\" }",
            "imported_from = { system = \"libvirt\", guest = \"web\", disk = \"vda\" }",
            "#   berth up --disk-dir /srv (or berth host)",
            "#   virsh autostart --disable web",
            "#   virsh shutdown web",
            "/srv/images/web-vdb.qcow2",
            "/srv/images/web-vdc.qcow2",
        ],
    );
    assert!(!import.text.contains("file = \"/srv/shared"), "{}", import.text);
}

#[test]
fn a_domain_without_a_disk_is_left_out_with_a_reason() {
    let import = import_of(&[&small("pxe", "<interface type='user'/>")]);
    assert_eq!((import.vms, import.images), (0, 0));
    assert!(!import.text.contains("berth_vm_class"), "{}", import.text);
    assert_parts(&import.notes.join("\n"), &["pxe: it has no disk to boot from"]);
}

#[test]
fn a_power_state_that_is_known_is_kept() {
    let mut web = domain(&small("web", &disk("/srv/web.qcow2", "vda")));
    let mut write = |is_running| {
        web.is_running = is_running;
        configuration(std::slice::from_ref(&web), &[], COPIES, &mut |_, _| Err(Unread::Unasked)).text
    };
    let stopped = write(Some(false));
    assert!(
        stopped.contains("power              = \"Stopped\"") && !stopped.contains("virsh shutdown"),
        "{stopped}"
    );
    assert!(!write(Some(true)).contains("power"));
}

#[test]
fn hostile_names_stay_literals_and_comments() {
    let name = "a&#10;}&#10;resource &quot;x&quot; {&#10; ${file(&quot;/etc/shadow&quot;)}";
    let file = "/srv/$(reboot) &apos;;reboot;&#10;reboot #.qcow2";
    let import = import_of(&[&small(name, &disk(&file.replace('\'', "&apos;"), "v&quot;${x}"))]);
    for line in import.text.lines() {
        let is_known = ["resource \"berth_", "terraform {", "provider \"berth\"", "#", "  ", "}", ""];
        assert!(
            is_known.iter().any(|start| !start.is_empty() && line.starts_with(start)) || line.is_empty(),
            "{line}"
        );
        assert!(line.starts_with('#') || !line.contains("file("), "{line}");
    }
    assert_parts(
        &import.text,
        &["cp --sparse=always '/srv/$(reboot) '\\'';reboot; reboot #.qcow2' /srv/images/"],
    );
}

#[test]
fn hostile_documents_are_refused_at_once() {
    // Each would be a domain but for one thing.
    let domain = |head: &str, name: &str, more: &str| {
        format!(
            "{head}<domain type='kvm'><name>{name}</name><vcpu>1</vcpu><memory>65536</memory>{more}</domain>"
        )
    };
    assert!(read(&domain("", "a", "")).is_ok());
    let entities = "<!DOCTYPE d [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">]>";
    let bomb = domain(entities, "&b;", "");
    let outside = domain("<!DOCTYPE d [<!ENTITY a SYSTEM \"file:///etc/passwd\">]>", "x&a;", "");
    let deep = domain("", "a", &format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000)));
    let unclosed = "<a>".repeat(300_000);
    let in_a_text = format!("<domain><a x='>'>{}", "<b y='/>'>".repeat(90_000));
    let huge = domain("", "a", &" ".repeat(MAX_XML));
    let many = domain("", "a", &"<a/>".repeat(100_000));
    let attributes = format!("<domain {}/>", (0..90_000).map(|i| format!("a{i}='' ")).collect::<String>());
    let opened: String = (0..4_000).map(|i| format!("<a xmlns:b{i}='u'>")).collect();
    let namespaces = domain("", "a", &format!("{opened}{}", "</a>".repeat(4_000)));
    for document in [
        bomb.as_str(),
        &outside,
        &deep,
        &unclosed,
        &in_a_text,
        &huge,
        &many,
        &attributes,
        &namespaces,
        "",
        "<",
        "\0",
        "<a/><b/>",
    ] {
        let started = std::time::Instant::now();
        let start: String = document.chars().take(60).collect();
        assert!(read(document).is_err(), "{start}");
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "{start}: {:?}", started.elapsed());
    }
    for (document, expected) in [
        ("<pool/>", "it describes a <pool>"),
        ("<domain type='lxc'><name>a</name></domain>", "one of lxc"),
        ("<domain type='kvm'><name> </name></domain>", "no <name>"),
        ("<domain type='kvm'><name>a</name><vcpu>many</vcpu></domain>", "no <vcpu>"),
        (
            "<domain type='kvm'><name>a</name><vcpu>1</vcpu><memory unit='EiB'>1</memory></domain>",
            "no <memory>",
        ),
        ("<network/>", "no <name>"),
    ] {
        let error = read(document).expect_err("it is incomplete").to_string();
        assert!(error.contains(expected), "{document}: {error}");
    }
}

#[test]
fn sizes_that_berth_does_not_have_are_the_nearest_ones() {
    let many: String = (0..20).map(|i| disk(&format!("/srv/{i}.qcow2"), &format!("vd{i}"))).collect();
    let nics = "<interface type='user'><mac address='53:00:00:00:00:01'/></interface>".repeat(11);
    let document = small("big", &(many + &nics)).replace("<vcpu>1", "<vcpu>500").replace("65536", "64");
    let import = import_of(&[&document]);
    assert_parts(&import.text, &["cpus     = 128", "memory   = \"16Mi\""]);
    assert_eq!(import.text.matches("name = berth_disk.").count(), 16);
    let last = disk("/srv/19.qcow2", "vd19");
    let booting = last.replace("</disk>", "<boot order='1'/></disk>");
    let by_last = import_of(&[&document.replace(&last, &booting)]);
    assert_eq!(by_last.text.matches("name = berth_disk.").count(), 16, "with the one that it boots from");
    assert_parts(&by_last.text, &["{ name = berth_disk.big-vd19.name, boot = true }"]);
    assert!(!import.text.contains("mac_address"), "53:… is a multicast address");
    assert_parts(
        &import.notes.join("\n"),
        &["at most 16 disks", "at most 10 interfaces", "no MAC address", "500 CPUs"],
    );
}

#[test]
fn a_network_keeps_both_families_and_an_isolated_one_reaches_no_outside() {
    let network = |name: &str, more: &str| {
        format!("<network><name>{name}</name>{more}<ip address='10.9.0.1' prefix='24'/></network>")
    };
    let ipv6 = "<ip family='ipv6' address='fd00:60::1' prefix='64'/>";
    let of = |document: &str| import_of(&[&small("web", &disk("/srv/a.qcow2", "vda")), document]);
    let import = of(&network("closed", ipv6));
    assert_parts(
        &import.text,
        &["  cidr      = \"10.9.0.0/24\"\n  egress    = \"None\"\n  ipv6_cidr = \"fd00:60::/64\"\n}\n"],
    );
    assert!(import.notes.is_empty(), "{:?}", import.notes);
    let import = of(&network("open", &format!("<forward mode='nat'><nat ipv6='yes'/></forward>{ipv6}")));
    assert_parts(&import.text, &["  ipv6_egress = \"Masquerade\"\n"]);
    assert!(!import.text.contains("  egress"), "{}", import.text);
    let only = format!("<network><name>six</name><forward mode='nat'/>{ipv6}</network>");
    let import = of(&only);
    assert_parts(&import.text, &["  ipv6_cidr   = \"fd00:60::/64\"\n  ipv6_egress = \"Routed\"\n"]);
    assert!(!import.text.contains("  cidr"), "{}", import.text);
    let import = of(&network("default", ""));
    assert_parts(
        &import.notes.join("\n"),
        &["network default: it is isolated, and guests on the Network default"],
    );
}

#[test]
fn each_element_of_a_domain_that_is_not_taken_over_is_said() {
    let devices = disk("/srv/a.qcow2", "vda").replace("</disk>", "<serial>S1</serial></disk>")
        + "<interface type='user'><mac address='52:54:00:00:00:01'/><link state='down'/></interface>"
        + &"<serial type='pty'/>".repeat(2);
    let more = "<title>Web</title><cputune/><new-in-libvirt-12/><on_reboot>destroy</on_reboot>\
                <features><acpi/><kvm/></features><cpu><feature name='vmx'/></cpu><os><smbios mode='host'/></os><devices>";
    let import = import_of(&[&small("web", &devices).replace("<devices>", more)]);
    assert_parts(
        &import.notes.join("\n"),
        &[
            "web: it has settings that are not taken over: title, cputune, new-in-libvirt-12",
            "web: its on_reboot is destroy, which is not taken over: see restart_policy",
            "web: its features have settings that are not taken over: kvm",
            "web: its cpu has settings that are not taken over: feature",
            "web: its os has settings that are not taken over: smbios",
            "web: vda: it has settings that are not taken over: serial",
            "web: 52:54:00:00:00:01: it has settings that are not taken over: link",
            "web: it has 2 serial ports",
        ],
    );
}
