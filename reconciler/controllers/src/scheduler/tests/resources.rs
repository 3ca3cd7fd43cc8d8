//! Resources of a host beside its CPUs and memory: pools, TPM, huge pages, interfaces, devices, shares.

use super::super::*;
use crate::cache::capacity::{HostNetworks, Usage};
use crate::cache::storage::{DiskDemand, PoolSpace};
use berth_api::host::HostNetwork;
use berth_api::{DeviceBus, DeviceName, HugePages, OfferedDevices, Reason};

use super::{chosen, host, never, now, request};

#[test]
fn a_vm_with_an_encrypted_disk_waits_for_a_host_whose_agent_encrypts_disks() {
    let encrypted = Request { disk_encryption: true, ..request(100) };
    let upgraded = Candidate { disk_encryption: true, ..host("b", 1000) };
    assert_eq!(chosen(&encrypted, &[], &[host("a", 9000), upgraded]), Ok("b"));
    let text = now(&encrypted, &[], &[host("a", 9000)]);
    assert!(text.contains("1 with an older agent, which does not encrypt disks"), "{text}");
    let on_a = Request { disk_hosts: ["a".to_owned()].into(), ..encrypted };
    let text = now(&on_a, &[], &[host("a", 9000)]);
    assert!(text.contains("upgrade berth there"), "{text}");
    assert_eq!(chosen(&request(100), &[], &[host("a", 9000)]), Ok("a"));
}

/// A host with a pool on fast drives of 100 GiB, all of which is free, and so much promised.
fn with_pool(name: &str, promised: u64) -> Candidate {
    let space = PoolSpace {
        has_folder: true,
        is_away: false,
        is_shared: false,
        total: 100 << 30,
        free: 100 << 30,
        promised: promised << 30,
    };
    Candidate { storage: Some(std::sync::Arc::new([("fast", space)].into())), ..host(name, 9000) }
}

fn with_disks(gib: u64) -> Request {
    let demand = DiskDemand { size: gib << 30, unmade_thick: 0 };
    Request {
        disks: [("fast".to_owned(), NewDisks { demand, overcommit_percent: 200, shared: None })].into(),
        ..request(100)
    }
}

#[test]
fn a_vm_goes_to_a_host_with_room_for_its_new_disks_and_waits_with_the_numbers() {
    let (full, roomy) = (with_pool("a", 190), with_pool("b", 20));
    assert_eq!(chosen(&with_disks(50), &[], &[full.clone(), roomy.clone()]), Ok("b"));
    assert_eq!(chosen(&request(100), &[], &[full.clone(), roomy]), Ok("a"), "it has no new disks");
    let older = host("c", 9000);
    assert_eq!(chosen(&with_disks(50), &[], &[full.clone(), older]), Ok("c"), "it may have room");
    let Err(Unplaced::Now(text)) = chosen(&with_disks(50), &[], &[full.clone(), with_pool("b", 160)]) else {
        panic!("both are full")
    };
    assert!(text.contains("2 without room for its disks in the pools fast"), "{text}");
    let on_a = Request { host: Some("a".to_owned()), ..with_disks(50) };
    let Err(Unplaced::Now(text)) = chosen(&on_a, &[], &[full]) else { panic!("it is full") };
    assert!(text.starts_with("host a has promised 190Gi of 200Gi in pool fast"), "{text}");
}

#[test]
fn disks_that_no_host_may_promise_wait_for_a_person() {
    let Err(Unplaced::Never(reason, text)) = chosen(&with_disks(201), &[], &[with_pool("a", 0)]) else {
        panic!("they are too large")
    };
    assert_eq!(reason, Reason::NoHostLargeEnough);
    assert!(text.contains("in pool fast have 201Gi") && text.contains("a may promise 200Gi"), "{text}");
    let hosts = [with_pool("a", 0), Candidate { ready: false, ..host("b", 9000) }];
    let either = chosen(&with_disks(201), &[], &hosts);
    assert!(matches!(either, Err(Unplaced::Now(_))), "the other host may have room: {either:?}");
}

#[test]
fn a_vm_with_a_tpm_goes_to_a_host_that_can_emulate_one_and_waits_for_a_person_without_any() {
    let tpm = Request { tpm: true, ..request(100) };
    let able = |name: &str| Candidate { tpm: true, ..host(name, 1000) };
    let chosen = |request: &Request, hosts: &[Candidate]| {
        choose(request, &PlacedVms::default(), hosts.iter(), PlacementPolicy::Balance).map(str::to_owned)
    };
    assert_eq!(chosen(&tpm, &[host("a", 9000), able("b")]), Ok("b".to_owned()));
    assert_eq!(chosen(&request(100), &[host("a", 9000), able("b")]), Ok("a".to_owned()));
    let never = |request: &Request, hosts: &[Candidate]| match chosen(request, hosts) {
        Err(Unplaced::Never(Reason::NoHostWithTPM, text)) => Some(text),
        _ => None,
    };
    let text = never(&tpm, &[host("a", 9000)]).expect("no host has swtpm");
    assert!(text.contains("apt install swtpm"), "{text}");
    let on_a = Request { disk_hosts: ["a".to_owned()].into(), ..tpm.clone() };
    let text = never(&on_a, &[host("a", 9000), able("b")]).expect("its disk is on the other");
    assert!(text.starts_with("host a cannot"), "{text}");
    let silent = Candidate { allocatable_cpus: 0, ..host("c", 0) };
    assert_eq!(never(&tpm, &[host("a", 9000), silent]), None, "it may have swtpm");
    let full = Candidate { used: Usage { cpus: 8, ..Usage::default() }, ..able("b") };
    let Err(Unplaced::Now(text)) = chosen(&tpm, &[host("a", 9000), full]) else { panic!("it is full") };
    assert!(text.contains("1 without swtpm") && text.contains("1 with too few free CPUs"), "{text}");
}

#[test]
fn a_vm_with_a_vsock_device_goes_to_a_host_with_them_and_waits_for_a_person_without_any() {
    let vsock = Request { vsock: true, ..request(100) };
    let able = |name: &str| Candidate { vsock: true, ..host(name, 1000) };
    let chosen = |hosts: &[Candidate]| {
        choose(&vsock, &PlacedVms::default(), hosts.iter(), PlacementPolicy::Balance).map(str::to_owned)
    };
    assert_eq!(chosen(&[host("a", 9000), able("b")]), Ok("b".to_owned()));
    let Err(Unplaced::Never(Reason::NoHostWithVsock, text)) = chosen(&[host("a", 9000)]) else {
        panic!("no host has them")
    };
    assert!(text.contains("modprobe vhost_vsock"), "{text}");
    let silent = Candidate { allocatable_cpus: 0, ..host("c", 0) };
    let unknown = chosen(&[host("a", 9000), silent]);
    assert!(!matches!(unknown, Err(Unplaced::Never(Reason::NoHostWithVsock, _))), "it may have them");
    let full = Candidate { used: Usage { cpus: 8, ..Usage::default() }, ..able("b") };
    let Err(Unplaced::Now(text)) = chosen(&[host("a", 9000), full]) else { panic!("it is full") };
    assert!(text.contains("1 without vsock devices"), "{text}");
}

#[test]
fn a_vm_on_an_encrypted_network_goes_to_a_host_with_wireguard_and_waits_for_a_person_without_any() {
    let encrypted = Request { wireguard: true, ..request(100) };
    let able = Candidate { wireguard: true, ..host("b", 1000) };
    let chosen = |hosts: &[Candidate]| {
        choose(&encrypted, &PlacedVms::default(), hosts.iter(), PlacementPolicy::Balance).map(str::to_owned)
    };
    assert_eq!(chosen(&[host("a", 9000), able.clone()]), Ok("b".to_owned()));
    let Err(Unplaced::Never(Reason::NotSupported, text)) = chosen(&[host("a", 9000)]) else {
        panic!("no host has it")
    };
    assert!(text.contains("install wireguard-tools"), "{text}");
    let full = Candidate { used: Usage { cpus: 8, ..Usage::default() }, ..able };
    let Err(Unplaced::Now(text)) = chosen(&[host("a", 9000), full]) else { panic!("it is full") };
    assert!(text.contains("1 without WireGuard"), "{text}");
}

#[test]
fn a_vm_in_huge_pages_goes_to_a_host_with_as_many_free_ones_and_the_message_has_the_numbers() {
    let of = |pages: u64| HugeMemory::of(HugePages::TwoMebibytes, pages * (2 << 20));
    let huge = Request { huge_memory: of(64), ..request(0) };
    let with = |name: &str, pages, used| Candidate {
        huge_memory: of(pages),
        used: Usage { huge_memory: of(used), ..Usage::default() },
        ..host(name, 1000)
    };
    assert_eq!(chosen(&huge, &[], &[host("a", 9000), with("b", 100, 36)]), Ok("b"));
    let full = [host("a", 9000), with("b", 100, 37)];
    let text = now(&huge, &[], &full);
    insta::assert_snapshot!(text, @"0 of 2 hosts can take it: 2 with too few free huge pages (it needs 1 CPUs and 128 MiB in 64 huge pages of 2Mi)");
    let tied = Request { disk_hosts: ["b".to_owned()].into(), ..huge.clone() };
    insta::assert_snapshot!(now(&tied, &[], &full), @"host b has 63 of 100 huge pages of 2Mi free and it needs 64");
    let (reason, text) = never(&huge, &[], &[host("a", 9000), with("b", 63, 0)]);
    assert_eq!(reason, Reason::NoHostWithHugePages);
    insta::assert_snapshot!(text, @"it needs 64 huge pages of 2Mi and no host it may run on has that many: b has 63. Reserve them there, or lower its memory");
    let giant = Request { huge_memory: HugeMemory::of(HugePages::OneGibibyte, 1 << 30), ..request(0) };
    assert_eq!(never(&giant, &[], &[with("b", 9000, 0)]).0, Reason::NoHostWithHugePages, "of another size");
    let silent = Candidate { allocatable_cpus: 0, ..host("c", 0) };
    now(&huge, &[], &[host("a", 9000), silent]);
    assert_eq!(
        chosen(&huge, &[], &[Candidate { allocatable_memory: 10 << 20, ..with("b", 64, 0) }]),
        Ok("b"),
        "beside the overhead it takes no ordinary memory"
    );
}

#[test]
fn dedicated_cpus_are_a_resource_of_their_own() {
    let pinned = Request { cpus: 0, dedicated_cpus: 3, ..request(100) };
    let with = |name: &str, dedicated_cpus, used| Candidate {
        dedicated_cpus,
        used: Usage { cpus: 8, dedicated_cpus: used, ..Usage::default() },
        ..host(name, 1000)
    };
    assert_eq!(
        chosen(&pinned, &[], &[host("a", 9000), with("b", 6, 3)]),
        Ok("b"),
        "the CPUs that VMs share are full"
    );
    let full = [host("a", 9000), with("b", 6, 4)];
    insta::assert_snapshot!(now(&pinned, &[], &full), @"0 of 2 hosts can take it: 2 with too few free dedicated CPUs (it needs 3 dedicated CPUs and 100 MiB)");
    let tied = Request { disk_hosts: ["b".to_owned()].into(), ..pinned.clone() };
    insta::assert_snapshot!(now(&tied, &[], &full), @"host b has 2 of 6 dedicated CPUs free and it needs 3");
    let (reason, text) = never(&pinned, &[], &[host("a", 9000), with("b", 2, 0)]);
    assert_eq!(reason, Reason::NoHostWithDedicatedCPUs);
    insta::assert_snapshot!(text, @"it needs 3 dedicated CPUs and no host it may run on has that many: b has 2. Start the agent there with --dedicated-cpus and their numbers, or lower its cpus");
    let silent = Candidate { allocatable_cpus: 0, ..host("c", 0) };
    now(&pinned, &[], &[host("a", 9000), silent]);
}

/// A host with networks of this kind, whose kernel has no VLANs.
fn with_networks(name: &str, kind: &str, networks: &[&str]) -> Candidate {
    let network = |of: &&str| HostNetwork {
        name: (*of).to_owned(),
        kind: kind.to_owned(),
        up: true,
        ..HostNetwork::default()
    };
    let networks = HostNetworks { networks: networks.iter().map(network).collect(), vlans: false };
    Candidate { networks: std::sync::Arc::new(networks), ..host(name, 1000) }
}

#[test]
fn a_vm_on_an_interface_goes_to_a_host_that_has_it_and_the_message_says_what_each_host_lacks() {
    let on = |vlan: Option<i64>| {
        let interface = Some("eth1".to_owned());
        let bridge = BridgeSpec { interface, vlan, ..Default::default() };
        Request { bridges: [bridge].into(), ..request(100) }
    };
    let hosts = [host("a", 9000), with_networks("b", "Interface", &["eth1"])];
    assert_eq!(chosen(&on(None), &[], &hosts), Ok("b"));
    let (reason, text) = never(&on(Some(120)), &[], &hosts);
    assert_eq!(reason, Reason::NoHostWithBridge);
    insta::assert_snapshot!(text, @"no host that it may run on has VLAN 120 of interface eth1: host a has no interface eth1 that a bridge can be made over; host b has no VLANs in its kernel: run modprobe 8021q there (see status.networks of the Hosts, and the Networks that it names)");
    let many: Vec<Candidate> = ["a", "b", "c", "d", "e"].iter().map(|name| host(name, 9000)).collect();
    let (_, text) = never(&on(None), &[], &many);
    assert!(text.contains("host c has no interface") && text.contains("; 2 more ("), "{text}");
}

#[test]
fn a_vm_on_a_bridge_goes_to_a_host_that_has_it_and_the_message_names_the_bridge() {
    let vmbr0 = BridgeSpec { name: Some("vmbr0".to_owned()), ..Default::default() };
    let lan = Request { bridges: [vmbr0].into(), ..request(100) };
    let with = |name: &str, bridges: &[&str]| with_networks(name, "Bridge", bridges);
    let hosts = [host("a", 9000), with("b", &["vmbr0", "vmbr1"]), with("c", &["vmbr1"])];
    assert_eq!(chosen(&lan, &[], &hosts), Ok("b"));
    let (reason, text) = never(&lan, &[], &[host("a", 9000), with("c", &["vmbr1"])]);
    assert_eq!(reason, Reason::NoHostWithBridge);
    insta::assert_snapshot!(text, @"no host that it may run on has bridge vmbr0: host a has no bridge vmbr0 that is up; host c has no bridge vmbr0 that is up (see status.networks of the Hosts, and the Networks that it names)");
    let tied = Request { disk_hosts: ["a".to_owned()].into(), ..lan.clone() };
    let (_, text) = never(&tied, &[], &hosts);
    assert!(text.contains(": host a has no bridge vmbr0 that is up ("), "{text}");
    let full = Candidate { used: Usage { cpus: 8, ..Usage::default() }, ..with("b", &["vmbr0"]) };
    let text = now(&lan, &[], &[host("a", 9000), full]);
    assert!(text.contains("1 without bridge vmbr0") && text.contains("1 with too few free CPUs"), "{text}");
    let silent = Candidate { allocatable_cpus: 0, ..host("d", 0) };
    now(&lan, &[], &[host("a", 9000), silent]);
}

#[test]
fn a_vm_with_devices_goes_to_a_host_with_enough_free_ones_and_the_message_says_what_is_missing_where() {
    let gpu = || DeviceName::new(DeviceBus::Pci, "gpu");
    let with = |name: &str, gpus: i64, used: i64, display: bool| {
        let devices = [(gpu(), OfferedDevices { usable: gpus, display })];
        let used = Usage { devices: [(gpu(), used)].into(), ..Usage::default() };
        Candidate { devices: std::sync::Arc::new(devices.into()), used, ..host(name, 1000) }
    };
    let gpus = |count: i64| Request { devices: [(gpu(), count)].into(), ..request(100) };
    let hosts = [host("a", 9000), with("b", 2, 1, false), with("c", 2, 0, false)];
    assert_eq!(chosen(&gpus(2), &[], &hosts), Ok("c"));
    assert_eq!(chosen(&request(100), &[], &hosts), Ok("a"));
    let busy = [host("a", 9000), with("b", 2, 1, false), with("c", 2, 2, false)];
    insta::assert_snapshot!(now(&gpus(2), &[], &busy), @"0 of 3 hosts can take it: 1 that do not offer 2 PCI devices gpu, 2 without 2 PCI devices gpu free (it needs 1 CPUs and 100 MiB)");
    let tied = Request { host: Some("b".into()), ..gpus(2) };
    insta::assert_snapshot!(now(&tied, &[], &busy), @"host b has 1 of 2 PCI devices gpu free and it needs 2");
    let (reason, text) = never(&gpus(3), &[], &busy);
    assert_eq!(reason, Reason::NoHostWithDevice);
    insta::assert_snapshot!(text, @"no host that it may run on offers 3 PCI devices gpu to VMs: see status.pciDevices of the Hosts, and offer devices with --pci-device");
    let silent = Candidate { allocatable_cpus: 0, ..host("d", 0) };
    now(&gpus(3), &[], &[host("a", 9000), silent]);

    let key = DeviceName::new(DeviceBus::Usb, "gpu");
    let keys = Request { devices: [(key, 1)].into(), ..request(100) };
    let (_, text) = never(&keys, &[], &hosts);
    insta::assert_snapshot!(text, @"no host that it may run on offers 1 USB device gpu to VMs: see status.usbDevices of the Hosts, and offer devices with --usb-device");
    let both =
        Request { devices: [gpus(1).devices, keys.devices].into_iter().flatten().collect(), ..request(100) };
    let (_, text) = never(&both, &[], &hosts);
    insta::assert_snapshot!(text, @"no host that it may run on offers 1 PCI device gpu and 1 USB device gpu to VMs: see status.pciDevices and status.usbDevices of the Hosts, and offer devices with --pci-device and --usb-device");

    let screen = Request { graphics: true, ..gpus(1) };
    assert_eq!(chosen(&screen, &[], &[with("b", 2, 0, true), with("c", 2, 0, false)]), Ok("c"));
    let (reason, text) = never(&screen, &[], &[host("a", 9000), with("b", 2, 0, true)]);
    assert_eq!(reason, Reason::NotSupported);
    insta::assert_snapshot!(text, @"gpu is a display controller, and a VM with one has no graphics: set graphics to None, or take the device out");
}

#[test]
fn a_vm_with_vgpus_goes_to_a_host_with_enough_free_ones_and_its_message_names_their_option() {
    let a40 = || DeviceName::new(DeviceBus::Mdev, "a40-8q");
    let with = |name: &str, usable: i64, used: i64| {
        let devices = [(a40(), OfferedDevices { usable, display: true })];
        let used = Usage { devices: [(a40(), used)].into(), ..Usage::default() };
        Candidate { devices: std::sync::Arc::new(devices.into()), used, ..host(name, 1000) }
    };
    let vgpus = |count: i64| Request { devices: [(a40(), count)].into(), ..request(100) };
    let hosts = [host("a", 9000), with("b", 4, 3), with("c", 6, 4)];
    assert_eq!(chosen(&vgpus(2), &[], &hosts), Ok("c"));
    insta::assert_snapshot!(now(&vgpus(3), &[], &hosts), @"0 of 3 hosts can take it: 1 that do not offer 3 vGPUs a40-8q, 2 without 3 vGPUs a40-8q free (it needs 1 CPUs and 100 MiB)");
    let (reason, text) = never(&vgpus(7), &[], &hosts);
    assert_eq!(reason, Reason::NoHostWithDevice);
    insta::assert_snapshot!(text, @"no host that it may run on offers 7 vGPUs a40-8q to VMs: see status.vgpus of the Hosts, and offer devices with --vgpu");
    let screen = Request { graphics: true, ..vgpus(1) };
    let (reason, _) = never(&screen, &[], &hosts);
    assert_eq!(reason, Reason::NotSupported);
}

#[test]
fn a_vm_with_shares_goes_to_a_host_that_has_them_all_and_lets_it_write() {
    let with = |name: &str, shares: &[(&str, bool)]| {
        let shares = shares.iter().map(|(name, writable)| ((*name).to_owned(), *writable)).collect();
        Candidate { shares: std::sync::Arc::new(shares), ..host(name, 1000) }
    };
    let wants = |shares: &[(&str, bool)]| {
        let shares = shares.iter().map(|(name, writes)| ((*name).to_owned(), *writes)).collect();
        Request { shares, ..request(100) }
    };
    let hosts = [
        host("a", 9000),
        with("b", &[("media", false), ("data", false)]),
        with("c", &[("media", false), ("data", true)]),
    ];
    let both = wants(&[("media", false), ("data", true)]);
    assert_eq!(chosen(&both, &[], &hosts), Ok("c"));
    assert_eq!(chosen(&request(100), &[], &hosts), Ok("a"));
    let (reason, text) = never(&both, &[], &hosts[..2]);
    assert_eq!(reason, Reason::NoHostWithShare);
    insta::assert_snapshot!(text, @"no host that it may run on shares data for writing, media: host a shares no folder data, and no folder media; host b shares data read-only. See status.shares of the Hosts, and share folders with --share; a folder that is shared read-only needs read_only in the VM");
    let tied = Request { host: Some("b".into()), ..both.clone() };
    let (_, text) = never(&tied, &[], &hosts);
    assert!(text.contains("host b shares data read-only"), "{text}");
    let full = Candidate { used: Usage { cpus: 8, ..Usage::default() }, ..hosts[2].clone() };
    insta::assert_snapshot!(now(&both, &[], &[host("a", 9000), full]), @"0 of 2 hosts can take it: 1 that do not share data for writing, media, 1 with too few free CPUs (it needs 1 CPUs and 100 MiB)");
    let silent = Candidate { allocatable_cpus: 0, ..host("d", 0) };
    now(&both, &[], &[host("a", 9000), silent]);
}

#[test]
fn a_vm_with_a_disk_of_a_backup_goes_to_a_host_that_has_its_folder() {
    let nas = || BTreeSet::from(["nas".to_owned()]);
    let offers = Candidate { backup_folders: std::sync::Arc::new(nas()), ..host("b", 1000) };
    let restored = Request { backup_folders: nas(), ..request(100) };
    assert_eq!(chosen(&restored, &[], &[host("a", 9000), offers]), Ok("b"));
    let (reason, text) = never(&restored, &[], &[host("a", 9000)]);
    assert_eq!(reason, Reason::NoHostWithBackupFolder);
    assert!(text.contains("offers the folder for backups nas"), "{text}");
}
