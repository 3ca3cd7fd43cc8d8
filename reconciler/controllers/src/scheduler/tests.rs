use super::*;
use crate::cache::capacity::{HostNetworks, Usage};
use crate::cache::storage::{DiskDemand, PoolSpace};
use berth_api::host::HostNetwork;
use berth_api::{DeviceBus, DeviceName, HugePages, OfferedDevices, Reason, placement_group::HOSTNAME_LABEL};
use proptest::arbitrary::any;
use proptest::{prelude::prop, prop_assert, prop_assert_eq, proptest, strategy::Strategy as Generator};

const ZONE: &str = "topology.kubernetes.io/zone";

fn host(name: &str, memory: u64) -> Candidate {
    Candidate {
        name: name.into(),
        labels: [(HOSTNAME_LABEL.to_owned(), name.to_owned())].into(),
        ready: true,
        allocatable_cpus: 8,
        allocatable_memory: memory << 20,
        overhead: 10 << 20,
        ..Candidate::default()
    }
}

fn labelled(name: &str, memory: u64, key: &str, value: &str) -> Candidate {
    let mut host = host(name, memory);
    host.labels.insert(key.into(), value.into());
    host
}

fn request(memory: u64) -> Request {
    Request { cpus: 1, memory: memory << 20, ..Request::default() }
}

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

#[test]
fn a_host_that_is_reserved_for_namespaces_takes_vms_of_these_alone() {
    let of = |namespace: &str| Request { namespace: namespace.into(), ..request(100) };
    let reserved = || {
        let namespaces = std::sync::Arc::new(["team-a".to_owned(), "team-b".to_owned()].into());
        Candidate { namespaces, ..host("a", 9000) }
    };
    for namespace in ["team-a", "team-b"] {
        assert_eq!(chosen(&of(namespace), &[], &[reserved(), host("b", 1000)]), Ok("a"));
    }
    assert_eq!(chosen(&of("team-c"), &[], &[reserved(), host("b", 1000)]), Ok("b"));
    let text = now(&of("team-c"), &[], &[reserved(), host("b", 50)]);
    assert!(text.contains("1 reserved for other namespaces, 1 with too little free memory"), "{text}");
    assert!(!text.contains("team-a"), "the names of others are not for its users: {text}");
    let on_a = Request { host: Some("a".to_owned()), ..of("team-c") };
    assert_eq!(now(&on_a, &[], &[reserved()]), "host a is reserved for other namespaces");
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
        choose(request, &Members::new(), hosts.iter(), PlacementPolicy::Balance).map(str::to_owned)
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
        choose(&vsock, &Members::new(), hosts.iter(), PlacementPolicy::Balance).map(str::to_owned)
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

fn group(enforcement: Enforcement, topology_key: &str) -> Option<Group> {
    let topology_key = topology_key.to_owned();
    Some(Group {
        namespace: "default".into(),
        name: "web".into(),
        enforcement,
        topology_key,
        ..Group::default()
    })
}

fn members(hosts: &[&str]) -> Members {
    let mut members = Members::new();
    for host in hosts {
        *members.entry((*host).to_owned()).or_default() += 1;
    }
    members
}

fn chosen<'a>(wanted: &Request, with: &[&str], hosts: &'a [Candidate]) -> Result<&'a str, Unplaced> {
    choose(wanted, &members(with), hosts.iter(), PlacementPolicy::Balance)
}

fn now(wanted: &Request, with: &[&str], hosts: &[Candidate]) -> String {
    match chosen(wanted, with, hosts) {
        Err(Unplaced::Now(text)) => text,
        other => panic!("expected it to wait, got {other:?}"),
    }
}

fn never(wanted: &Request, with: &[&str], hosts: &[Candidate]) -> (Reason, String) {
    match chosen(wanted, with, hosts) {
        Err(Unplaced::Never(reason, text)) => (reason, text),
        other => panic!("expected that it never can, got {other:?}"),
    }
}

#[test]
fn the_host_with_the_largest_share_left_is_taken_or_with_packing_the_smallest() {
    let hosts = [host("a", 500), host("b", 900), host("c", 700)];
    assert_eq!(chosen(&request(100), &[], &hosts), Ok("b"));
    let packed = choose(&request(100), &Members::new(), hosts.iter(), PlacementPolicy::Pack);
    assert_eq!(packed, Ok("a"));
}

#[test]
fn reservations_fit_into_the_real_cpus_of_a_host_and_other_vms_beside_them() {
    let with = |name: &str, reserved: u32| {
        let mut host = host(name, 1000);
        (host.reservable, host.used.reserved) = (2000, reserved);
        host
    };
    let hosts = [with("a", 1500), with("b", 500)];
    let wanted = |reserved: u32| Request { reserved, ..request(100) };
    assert_eq!(chosen(&wanted(1500), &[], &hosts), Ok("b"));
    assert_eq!(chosen(&request(100), &[], &[with("a", 2000)]), Ok("a"));
    insta::assert_snapshot!(now(&wanted(1750), &[], &hosts), @"0 of 2 hosts can take it: 2 with too few CPUs that are not reserved (it needs 1 CPUs and 100 MiB)");
    let tied = Request { host: Some("a".into()), ..wanted(1000) };
    insta::assert_snapshot!(now(&tied, &[], &hosts), @"host a has 0.5 of 2 CPUs left that are not reserved and it reserves 1");
    let (reason, text) = never(&wanted(2001), &[], &hosts);
    assert_eq!(reason, Reason::NoHostLargeEnough);
    insta::assert_snapshot!(text, @"it reserves 2.001 CPUs and no host it may run on has that many: b has 2 that can be reserved");
}

#[test]
fn a_vm_with_a_cpu_model_is_placed_on_a_host_that_has_it() {
    let with = |name: &str, models: &[&str]| {
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        Candidate { cpu_models: std::sync::Arc::new(models), ..host(name, 1000) }
    };
    let hosts = [with("a", &["x86-64-v2"]), with("b", &["x86-64-v2", "x86-64-v3"])];
    let wanted = |model: &str| Request { cpu_model: Some(model.into()), ..request(100) };
    assert_eq!(chosen(&wanted("x86-64-v2"), &[], &hosts), Ok("a"));
    assert_eq!(chosen(&wanted("x86-64-v3"), &[], &hosts), Ok("b"));
    let (reason, text) = never(&wanted("x86-64-v4"), &[], &hosts);
    assert_eq!(reason, Reason::NotSupported);
    insta::assert_snapshot!(text, @"no host it may run on has the CPU model x86-64-v4: see status.cpuModels of the Hosts");
    let mut down = hosts;
    down[1].ready = false;
    insta::assert_snapshot!(now(&wanted("x86-64-v3"), &[], &down), @"0 of 2 hosts can take it: 1 not ready, 1 without the CPU model x86-64-v3 (it needs 1 CPUs and 100 MiB)");
}

#[test]
fn a_vm_with_a_machine_type_is_placed_where_qemu_has_it() {
    let with = |name: &str, types: &[&str]| {
        let types = types.iter().map(|name| (*name).to_owned()).collect();
        Candidate { machine_types: std::sync::Arc::new(types), ..host(name, 1000) }
    };
    let hosts = [with("a", &["pc-q35-7.2"]), with("b", &["pc-q35-7.2", "pc-q35-9.2"])];
    let wanted = |name: &str| Request { machine_type: Some(name.into()), ..request(100) };
    assert_eq!(chosen(&wanted("pc-q35-7.2"), &[], &hosts), Ok("a"));
    assert_eq!(chosen(&wanted("pc-q35-9.2"), &[], &hosts), Ok("b"));
    assert_eq!(chosen(&wanted("pc-q35-9.2"), &[], &[with("old", &[])]), Ok("old"), "its host checks it");
    let (reason, text) = never(&wanted("pc-q35-10.0"), &[], &hosts);
    assert_eq!(reason, Reason::NotSupported);
    insta::assert_snapshot!(text, @"no host it may run on has the machine type pc-q35-10.0: see status.machineTypes of the Hosts");
    let mut down = hosts;
    down[1].ready = false;
    let text = now(&wanted("pc-q35-9.2"), &[], &down);
    assert!(text.contains("1 without the machine type pc-q35-9.2"), "{text}");
}

#[test]
fn cpus_count_as_much_as_memory_where_they_are_scarcer() {
    let mut busy = host("a", 100_000);
    busy.used.cpus = 7;
    assert_eq!(chosen(&request(100), &[], &[busy, host("b", 300)]), Ok("b"));
}

#[test]
fn measured_overhead_counts_for_every_vm() {
    assert!(chosen(&request(100), &[], &[host("a", 109)]).is_err());
    assert_eq!(chosen(&request(100), &[], &[host("a", 110)]), Ok("a"));
    let mut used = host("a", 219);
    used.used = Usage { cpus: 1, memory: 100 << 20, vms: 1, ..Usage::default() };
    assert!(chosen(&request(100), &[], &[used.clone()]).is_err(), "two VMs, two overheads");
    used.allocatable_memory = 220 << 20;
    assert_eq!(chosen(&request(100), &[], &[used]), Ok("a"));
}

#[test]
fn every_reason_is_told_with_its_count() {
    let mut silent = host("s", 900);
    silent.ready = false;
    let mut cordoned = host("c", 900);
    cordoned.cordoned = true;
    let mut full = host("a", 900);
    full.used.memory = 500 << 20;
    let mut full_too = full.clone();
    full_too.name = "b".into();
    insta::assert_snapshot!(
        now(&request(800), &[], &[silent, cordoned, full, full_too]),
        @"0 of 4 hosts can take it: 1 not ready, 1 cordoned, 2 with too little free memory (it needs 1 CPUs and 800 MiB)"
    );
    insta::assert_snapshot!(now(&request(800), &[], &[]), @"there is no host yet");
}

#[test]
fn a_vm_of_whose_memory_a_part_is_kept_fits_beside_others_and_only_on_a_host_of_its_size() {
    let kept = Request { whole_memory: 400 << 20, ..request(100) };
    let mut hosts = [host("a", 500)];
    hosts[0].used = Usage { cpus: 1, memory: 300 << 20, vms: 1, ..Usage::default() };
    assert_eq!(chosen(&kept, &[], &hosts), Ok("a"));
    let larger = Request { whole_memory: 600 << 20, ..kept };
    insta::assert_snapshot!(never(&larger, &[], &hosts).1, @"it needs 1 CPUs and 600Mi of memory and no host it may run on is that large: the largest, a, offers 8 CPUs and 490Mi to one VM");
    // Its size has room, and the part that is kept for it has none.
    hosts[0].used.memory = 400 << 20;
    let waits = Request { whole_memory: 450 << 20, ..request(100) };
    insta::assert_snapshot!(now(&waits, &[], &hosts), @"0 of 1 hosts can take it: 1 with too little free memory (it needs 1 CPUs and 100 MiB)");
}

#[test]
fn a_vm_larger_than_any_host_is_told_so_with_the_largest() {
    let mut larger = host("b", 700);
    larger.used.memory = 700 << 20;
    let (reason, text) = never(&request(800), &[], &[host("a", 500), larger]);
    assert_eq!(reason, Reason::NoHostLargeEnough);
    insta::assert_snapshot!(text, @"it needs 1 CPUs and 800Mi of memory and no host it may run on is that large: the largest, b, offers 8 CPUs and 690Mi to one VM");
    let mut unknown = host("new", 0);
    unknown.allocatable_cpus = 0;
    assert!(
        now(&request(800), &[], &[host("a", 500), unknown]).contains("too little"),
        "a new host may be larger"
    );
}

#[test]
fn a_required_group_never_shares_a_host_and_a_preferred_one_only_when_it_must() {
    let hosts = [host("a", 900), host("b", 500)];
    let mut wanted = request(100);
    wanted.group = group(Enforcement::Required, HOSTNAME_LABEL);
    assert_eq!(chosen(&wanted, &["a"], &hosts), Ok("b"));
    let (reason, text) = never(&wanted, &["a", "b"], &hosts);
    assert_eq!(reason, Reason::GroupTooLarge);
    insta::assert_snapshot!(text, @"placement group web keeps its members apart: hosts have 2 different values of kubernetes.io/hostname and 2 other members are placed; add a host, or take a member out");
    wanted.group = group(Enforcement::Preferred, HOSTNAME_LABEL);
    assert_eq!(chosen(&wanted, &["a"], &hosts), Ok("b"));
    assert_eq!(chosen(&wanted, &["a", "b"], &hosts), Ok("a"));
}

#[test]
fn a_full_free_host_is_waited_for_and_makes_no_group_too_large() {
    let mut full = host("b", 900);
    full.used.memory = 890 << 20;
    let mut wanted = request(100);
    wanted.group = group(Enforcement::Required, HOSTNAME_LABEL);
    insta::assert_snapshot!(
        now(&wanted, &["a"], &[host("a", 900), full]),
        @"0 of 2 hosts can take it: 1 already with a member of placement group web, 1 with too little free memory (it needs 1 CPUs and 100 MiB)"
    );
}

#[test]
fn zones_are_kept_apart_whichever_host_of_them_a_member_is_on() {
    let hosts = [
        labelled("a1", 900, ZONE, "a"),
        labelled("a2", 900, ZONE, "a"),
        labelled("b1", 300, ZONE, "b"),
        host("x", 990),
    ];
    let mut wanted = request(100);
    wanted.group = group(Enforcement::Required, ZONE);
    assert_eq!(chosen(&wanted, &["a2"], &hosts), Ok("b1"), "not the unlabelled one, which is in no zone");
    assert_eq!(never(&wanted, &["a1", "b1"], &hosts).0, Reason::GroupTooLarge);
    wanted.group = group(Enforcement::Required, "nobody/has-it");
    assert!(never(&wanted, &[], &hosts).1.contains("no host has the label nobody/has-it"));
}

#[test]
fn a_packed_group_stays_together() {
    let hosts = [labelled("a1", 300, ZONE, "a"), labelled("b1", 900, ZONE, "b")];
    let mut wanted = request(100);
    for (enforcement, expected) in [(Enforcement::Required, None), (Enforcement::Preferred, Some("b1"))] {
        let rule = group(enforcement, ZONE).map(|g| Group { strategy: Strategy::Pack, ..g });
        wanted.group = rule;
        assert_eq!(chosen(&wanted, &["a1"], &hosts), Ok("a1"));
        let mut full = hosts.clone();
        full[0].used.cpus = 8;
        assert_eq!(chosen(&wanted, &["a1"], &full).ok(), expected, "{enforcement:?}");
    }
}

#[test]
fn preferred_labels_decide_between_hosts_that_fit_and_required_ones_rule_out() {
    let hosts = [labelled("a", 900, "disk", "hdd"), labelled("b", 300, "disk", "ssd")];
    let mut wanted = request(100);
    wanted.preferred = [("disk".to_owned(), "ssd".to_owned())].into();
    assert_eq!(chosen(&wanted, &[], &hosts), Ok("b"));
    wanted.preferred = [("disk".to_owned(), "nvme".to_owned())].into();
    assert_eq!(chosen(&wanted, &[], &hosts), Ok("a"));
    wanted.selector = [("disk".to_owned(), "ssd".to_owned())].into();
    assert_eq!(chosen(&wanted, &[], &hosts), Ok("b"));
    wanted.selector = [("disk".to_owned(), "nvme".to_owned())].into();
    insta::assert_snapshot!(never(&wanted, &[], &hosts).1, @"none of 2 hosts has the labels disk=nvme");
}

#[test]
fn a_vm_goes_where_its_disks_are_and_else_is_told_what_is_wrong_there() {
    let mut hosts = [host("a", 500), host("b", 900)];
    let mut wanted = request(100);
    wanted.disk_hosts = ["a".to_owned()].into();
    assert_eq!(chosen(&wanted, &[], &hosts), Ok("a"));
    hosts[0].used = Usage { cpus: 1, memory: 400 << 20, vms: 1, ..Usage::default() };
    insta::assert_snapshot!(now(&wanted, &[], &hosts), @"host a has 90Mi of 500Mi memory free and it needs 100Mi and 10Mi of overhead");
    hosts[0].cordoned = true;
    insta::assert_snapshot!(now(&wanted, &[], &hosts), @"host a is cordoned: it takes no new VMs");
    hosts[0].ready = false;
    insta::assert_snapshot!(now(&wanted, &[], &hosts), @"host a is not ready: its agent does not report");
    wanted.host = Some("b".into());
    insta::assert_snapshot!(never(&wanted, &[], &hosts).1, @"its disks are on host a and placement.host names b");
    wanted.host = Some("c".into());
    insta::assert_snapshot!(never(&wanted, &[], &hosts).1, @"there is no host c, which placement.host names");
    wanted = Request { disk_hosts: ["a".to_owned(), "b".to_owned()].into(), ..request(100) };
    insta::assert_snapshot!(never(&wanted, &[], &hosts).1, @"its disks are on different hosts (a, b): it can run on one only");
}

#[test]
fn a_host_that_just_refused_it_is_not_asked_again() {
    let hosts = [host("a", 500), host("b", 900)];
    let wanted = Request { refused_by: Some("b".into()), ..request(100) };
    assert_eq!(chosen(&wanted, &[], &hosts), Ok("a"));
}

/// A host: memory, zone, whether it can be used.
fn hosts() -> impl Generator<Value = Vec<Candidate>> {
    prop::collection::vec((100u64..1000, 0..3usize, 0..6usize), 1..7).prop_map(|hosts| {
        let one = |(i, (memory, zone, state)): (usize, (u64, usize, usize))| Candidate {
            ready: state != 0,
            cordoned: state == 1,
            ..labelled(&format!("h{i}"), memory, ZONE, ["a", "b", "c"][zone])
        };
        hosts.into_iter().enumerate().map(one).collect()
    })
}

proptest! {
    #[test]
    fn never_over_capacity_never_two_of_a_group_and_whatever_the_order(
        mut hosts in hosts(),
        preferences in prop::collection::vec((1i64..4, 1u64..400), 1..20),
        by_zone in any::<bool>(),
        pack in any::<bool>(),
        turn in 0..6usize,
    ) {
        let key = if by_zone { ZONE } else { HOSTNAME_LABEL };
        let policy = if pack { PlacementPolicy::Pack } else { PlacementPolicy::Balance };
        let mut members = Members::new();
        let mut taken = BTreeSet::new();
        for (cpus, memory) in preferences {
            let wanted = Request { cpus, memory: memory << 20, group: group(Enforcement::Required, key), ..Request::default() };
            let chosen = choose(&wanted, &members, hosts.iter(), policy).map(str::to_owned);
            let mut turned = hosts.clone();
            turned.rotate_left(turn % hosts.len());
            turned.reverse();
            prop_assert_eq!(&chosen, &choose(&wanted, &members, turned.iter(), policy).map(str::to_owned));
            let Ok(name) = chosen else { continue };
            let host = hosts.iter_mut().find(|h| h.name == name).expect("it was a candidate");
            prop_assert!(host.ready && !host.cordoned);
            prop_assert!(taken.insert(host.labels[key].clone()), "two members at one value");
            host.used.cpus += cpus;
            host.used.memory += memory << 20;
            host.used.vms += 1;
            prop_assert!(host.used.cpus <= host.allocatable_cpus);
            prop_assert!(host.used.memory + host.used.vms * host.overhead <= host.allocatable_memory);
            *members.entry(name).or_default() += 1;
        }
    }

    /// `Never` is correct: with all hosts up, empty and uncordoned, the VM still does not fit.
    #[test]
    fn never_means_never_with_these_hosts(hosts in hosts(), memory in 1u64..1200, with in prop::collection::vec(0..7usize, 0..4)) {
        let names: Vec<String> = with.into_iter().map(|i| format!("h{i}")).collect();
        let members = members(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let wanted = Request { group: group(Enforcement::Required, ZONE), ..request(memory) };
        if let Err(Unplaced::Never(..)) = choose(&wanted, &members, hosts.iter(), PlacementPolicy::Balance) {
            let best: Vec<Candidate> = hosts.into_iter().map(|h| Candidate { ready: true, cordoned: false, used: Usage::default(), ..h }).collect();
            prop_assert!(choose(&wanted, &members, best.iter(), PlacementPolicy::Balance).is_err());
        }
    }
}

#[test]
fn of_equal_hosts_the_one_that_has_the_image_is_chosen() {
    let has = Request { image_hosts: ["b".to_owned()].into(), ..request(100) };
    assert_eq!(chosen(&request(100), &[], &[host("a", 1000), host("b", 1000)]), Ok("a"));
    assert_eq!(chosen(&has, &[], &[host("a", 1000), host("b", 1000)]), Ok("b"));
    let large = Request { memory: 500 << 20, ..has };
    assert_eq!(chosen(&large, &[], &[host("a", 2000), host("b", 1000)]), Ok("a"), "the load counts first");
}
