//! The report of a host: its capacity, pools, devices, shares, and the conditions with what is wrong.

use serde_json::json;

use berth_api::Host;
use berth_host::{
    BlockDeviceFacts, ForeignKind, ForeignObject, PciDeviceFacts, PoolFolderFacts, ShareFacts,
    UsbDeviceFacts, VgpuFacts, VolumeOwner,
};

use super::super::super::devices;
use super::super::super::observe::Usage;
use super::super::super::status::{status, without_amounts};
use super::super::*;
use crate::config::AgentConfig;

use super::{at, observed};

#[test]
fn guests_in_the_agents_unit_are_a_condition_with_their_names() {
    let with = |names: &[&str]| {
        let mut seen = observed();
        seen.in_agents_unit = names.iter().map(|name| ((*name).into(), "berth.service".into())).collect();
        let reported = status(&Host::new("h", Default::default()), &seen, &AgentConfig::new("h"), at(1));
        berth_api::condition::find(&reported.conditions, "GuestsOutliveAgent").cloned()
    };
    assert_eq!(with(&[]), None);
    let found = with(&["ns/a", "ns/b", "ns/c", "ns/d", "ns/e"]).expect("reported");
    assert_eq!((found.status.as_str(), found.reason.as_str()), ("False", "SharedUnit"));
    assert!(
        found.message.starts_with("VMs ns/a, ns/b, ns/c, ns/d and 1 more run in berth.service"),
        "{found:?}"
    );
}

#[test]
fn an_mtu_that_no_tunnel_fits_is_not_reported_and_a_huge_one_is_cut() {
    let mtu = |mtu: u16| {
        let mut seen = observed();
        seen.facts.mtu = Some(mtu);
        status(&Host::new("h", Default::default()), &seen, &AgentConfig::new("h"), at(1)).mtu
    };
    assert_eq!(
        [mtu(60), mtu(1279), mtu(1280), mtu(9000), mtu(65535)],
        [None, None, Some(1280), Some(9000), Some(9216)]
    );
}

#[test]
fn a_host_with_the_control_plane_has_both_roles() {
    let roles = |beside_control_plane: bool| {
        let config = AgentConfig { beside_control_plane, ..AgentConfig::new("h") };
        status(&Host::new("h", Default::default()), &observed(), &config, at(1)).roles
    };
    assert_eq!(roles(false), ["VMs"]);
    assert_eq!(roles(true), ["VMs", "ControlPlane"]);
}

#[test]
fn cpus_are_offered_more_than_once_and_memory_never() {
    let config = AgentConfig::new("h");
    let reported = status(&Host::new("h", Default::default()), &observed(), &config, at(1));
    let free = reported.free.expect("counted");
    assert_eq!((free.cpus, free.memory.as_str(), free.storage.as_str()), (4 * 4 - 3, "5468Mi", "50Gi"));
    assert_eq!(reported.allocatable.expect("counted").memory, "7680Mi");
    assert_eq!((reported.vms, reported.vm_overhead.as_deref()), (2, Some("82Mi")));
}

#[test]
fn huge_pages_are_reported_by_size_and_are_no_ordinary_memory() {
    let with = |free: u64| {
        let mut observed = observed();
        let pages = |page_bytes, total, free| berth_host::HugePagesFacts { page_bytes, total, free };
        observed.facts.huge_pages =
            vec![pages(64 << 10, 16, 16), pages(2 << 20, 1024, free), pages(1 << 30, 1, 1)];
        let host = Host::new("h1", berth_api::HostSpec::default());
        status(&host, &observed, &AgentConfig::new("h1"), at(0))
    };
    let reported = with(1000);
    let shown: Vec<_> = reported.huge_pages.iter().map(|p| (p.size.as_str(), p.total, p.free)).collect();
    assert_eq!(shown, [("2Mi", 1024, 1000), ("1Gi", 1, 1)], "no VM can have the others");
    let memory =
        |resources: &Option<berth_api::host::Resources>| resources.as_ref().map(|r| r.memory.clone());
    assert_eq!(memory(&reported.capacity).as_deref(), Some("8Gi"));
    // Without 2 GiB, 1 GiB, 1 MiB, and 512 MiB for the host itself.
    assert_eq!(memory(&reported.allocatable).as_deref(), Some("4607Mi"));
    assert_eq!(without_amounts(&reported, &with(10)), without_amounts(&reported, &reported));
}

#[test]
fn pools_are_reported_with_rounded_amounts_and_one_that_is_away_with_the_reason() {
    let host = Host::new("h1", berth_api::HostSpec::default());
    let report = |observed: &Observed| status(&host, observed, &AgentConfig::new("h1"), at(0));
    let folder = |problem: Option<&str>| PoolFolderFacts {
        pool: "fast".into(),
        path: "/mnt/fast".into(),
        total_bytes: if problem.is_some() { 0 } else { 1 << 40 },
        free_bytes: if problem.is_some() { 0 } else { 700 << 30 },
        problem: problem.map(str::to_owned),
    };
    let with = |problem| {
        let mut observed = Observed { promised: [("fast".to_owned(), 9 << 30)].into(), ..observed() };
        observed.facts.pool_folders = vec![folder(problem)];
        observed
    };
    let there = report(&with(None));
    let [default, fast] = there.pools.as_slice() else { panic!("{:?}", there.pools) };
    assert_eq!(
        (default.name.as_str(), default.folder.as_deref(), default.total.as_str(), default.free.as_str()),
        ("default", None, "100Gi", "50Gi"),
        "that of the state directory"
    );
    assert_eq!((fast.folder.as_deref(), fast.total.as_str()), (Some("/mnt/fast"), "1Ti"));
    assert_eq!((fast.free.as_str(), fast.promised.as_str()), ("700Gi", "12Gi"), "in units of 4 GiB");
    let mut fuller = with(None);
    fuller.facts.pool_folders[0].free_bytes -= 8 << 30;
    assert_eq!(without_amounts(&there, &report(&fuller)), there, "amounts alone are not urgent");
    let away = report(&with(Some("not mounted")));
    assert_eq!(away.pools[1].problem.as_deref(), Some("not mounted"));
    assert_ne!(without_amounts(&there, &away), there);
}

#[test]
fn dedicated_cpus_are_reported_and_are_none_of_those_that_vms_share() {
    let with = |cpus: &[u32], free: &[u32]| {
        let mut observed = observed();
        observed.facts.dedicated = berth_host::DedicatedFacts {
            cpus: cpus.iter().copied().collect(),
            free: free.iter().copied().collect(),
        };
        let host = Host::new("h1", berth_api::HostSpec::default());
        status(&host, &observed, &AgentConfig::new("h1"), at(0))
    };
    let reported = with(&[1, 2], &[2]);
    let cpus = reported.dedicated_cpus.clone().expect("declared");
    assert_eq!((cpus.cpus.as_str(), cpus.total, cpus.free), ("1-2", 2, 1));
    let count = |resources: &Option<berth_api::host::Resources>| resources.as_ref().map(|r| r.cpus);
    assert_eq!(
        (count(&reported.capacity), count(&reported.allocatable)),
        (Some(4), Some(8)),
        "four for each of the others"
    );
    assert_eq!(without_amounts(&reported, &with(&[1, 2], &[])), without_amounts(&reported, &reported));
    assert_eq!(with(&[], &[]).dedicated_cpus, None);
}

#[test]
fn reserved_cpus_and_memory_are_not_offered_and_too_much_is_a_condition() {
    let reported = |reserved: serde_json::Value| {
        let mut host = Host::new("h", Default::default());
        host.spec.reserved = serde_json::from_value(reserved).expect("it is valid");
        status(&host, &observed(), &AgentConfig::new("h"), at(1))
    };
    let offered = |reserved| {
        let status = reported(reserved);
        let text = |kind| berth_api::condition::find(&status.conditions, kind).map(|c| c.message.clone());
        let (all, free) = (status.allocatable.expect("counted"), status.free.expect("counted"));
        (all.cpus, all.memory, free.cpus, free.memory, text("ReservedFits"))
    };
    let fits = |cpus, memory: &str, free_cpus, free: &str| {
        (cpus, memory.to_owned(), free_cpus, free.to_owned(), None)
    };
    assert_eq!(offered(json!(null)), fits(16, "7680Mi", 13, "5468Mi"));
    assert_eq!(offered(json!({"cpus": 1})), fits(12, "7680Mi", 9, "5468Mi"));
    assert_eq!(
        offered(json!({"memory": "256Mi"})),
        fits(16, "7936Mi", 13, "5724Mi"),
        "less than the default"
    );
    assert_eq!(offered(json!({"cpus": 3, "memory": "7Gi"})), fits(4, "1Gi", 1, "0"), "VMs have more already");
    let (cpus, memory, _, free, text) = offered(json!({"memory": "8Gi"}));
    assert_eq!((cpus, memory.as_str(), free.as_str()), (16, "0", "0"));
    let text = text.expect("nothing is left");
    assert!(text.contains("8Gi of memory is reserved and the machine has 8Gi"), "{text}");
    let (cpus, _, free, _, text) = offered(json!({"cpus": 9}));
    assert_eq!((cpus, free), (0, 0));
    assert!(text.is_some_and(|text| text.contains("9 CPUs are reserved and the machine has 4")));
}

#[test]
fn why_it_emulates_is_said_and_a_second_look_writes_nothing() {
    let config = AgentConfig::new("h");
    let mut host = Host::new("h", Default::default());
    let reported = status(&host, &observed(), &config, at(1));
    let accelerated = berth_api::condition::find(&reported.conditions, "Accelerated").expect("said");
    assert_eq!(
        (accelerated.reason.as_str(), accelerated.message.as_str()),
        ("Emulated", "emulates every instruction")
    );
    assert_eq!(reported.kvm.as_ref().and_then(|kvm| kvm.mips), Some(1.23), "slow is not nothing");
    host.status = Some(reported.clone());
    let mut later = observed();
    later.facts.storage_free_bytes -= 4096;
    assert_eq!(status(&host, &later, &config, at(999)), reported);
}

#[test]
fn a_text_that_is_longer_than_the_api_takes_is_cut() {
    let detail = "ä".repeat(4000);
    let process =
        ForeignObject { kind: ForeignKind::Process, name: "42 theirs".into(), detail: detail.clone() };
    let mut observed = Observed { foreign: vec![process], ..observed() };
    observed.facts.kvm.reason = detail;
    observed.facts.qemu.as_mut().expect("it is installed").version = "9".repeat(4000);
    let reported = status(&Host::new("h", Default::default()), &observed, &AgentConfig::new("h"), at(1));
    let lengths = [
        reported.orphans[0].detail.len(),
        reported.kvm.expect("measured").reason.len(),
        reported.qemu_version.expect("installed").len(),
    ];
    assert_eq!(lengths, [512, 512, 64]);
}

#[test]
fn a_report_of_amounts_alone_waits_and_a_report_of_anything_else_does_not() {
    let config = AgentConfig::new("h");
    let report = |observed: &Observed| status(&Host::new("h", Default::default()), observed, &config, at(1));
    let stored = report(&observed());
    let after = |change: fn(&mut Observed)| {
        let mut now = observed();
        change(&mut now);
        let status = report(&now);
        assert_ne!(status, stored);
        without_amounts(&stored, &status) == stored
    };
    assert!(after(|now| now.usage = Usage { vms: 3, cpus: 4, memory: 3 << 30 }));
    assert!(after(|now| now.facts.storage_free_bytes = 1 << 30));
    assert!(!after(|now| now.facts.overhead_bytes *= 2), "the scheduler reads it");
    assert!(!after(|now| now.images.push("new".to_owned())));
    assert!(!after(|now| now.forwarding.ok = !now.forwarding.ok));
}

#[test]
fn shares_are_reported_with_what_stands_in_their_way() {
    let mut seen = observed();
    let share = |name: &str, read_only| ShareFacts { name: name.into(), read_only, problem: None };
    seen.facts.shares = vec![
        share("media", true),
        ShareFacts { problem: Some("x".repeat(600)), ..share("data", false) },
        share("work", false),
    ];
    let reported = status(&Host::new("h", Default::default()), &seen, &AgentConfig::new("h"), at(1));
    let shares: Vec<_> = reported.shares.iter().map(|s| (s.name.as_str(), s.read_only)).collect();
    assert_eq!(shares, [("media", true), ("data", false), ("work", false)]);
    assert_eq!(reported.shares[1].problem.as_ref().map(String::len), Some(512), "as long as the API accepts");
    let offered = reported.offered_shares();
    assert_eq!(offered, [("media".to_owned(), false), ("work".to_owned(), true)].into());
}

#[test]
fn block_devices_are_reported_with_the_disk_that_each_is_and_those_with_a_problem_count_for_none() {
    let mut seen = observed();
    let device = |name: &str| BlockDeviceFacts {
        name: name.into(),
        path: format!("/dev/vg0/{name}").into(),
        size: 2 << 40,
        ..BlockDeviceFacts::default()
    };
    let owner = VolumeOwner {
        namespace: "ns".to_owned(),
        name: "data".to_owned(),
        uid: None,
        image: None,
        source: None,
    };
    seen.facts.block_devices = vec![
        device("nvme"),
        BlockDeviceFacts { held_by: Some(owner), ..device("db") },
        BlockDeviceFacts { size: 0, problem: Some("x".repeat(600)), ..device("gone") },
    ];
    let reported = status(&Host::new("h", Default::default()), &seen, &AgentConfig::new("h"), at(1));
    let devices: Vec<_> = reported
        .block_devices
        .iter()
        .map(|of| (of.name.as_str(), of.size.as_deref(), of.disk.as_deref()))
        .collect();
    assert_eq!(
        devices,
        [("db", Some("2Ti"), Some("ns/data")), ("gone", None, None), ("nvme", Some("2Ti"), None)]
    );
    assert_eq!(reported.block_devices[1].problem.as_ref().map(String::len), Some(512));
    let usable = |name: &str| {
        let name = berth_api::DeviceName::new(berth_api::DeviceBus::Block, name);
        reported.offered_devices().get(&name).map(|of| of.usable)
    };
    assert_eq!((usable("db"), usable("gone"), usable("other")), (Some(1), Some(0), None));
}

#[test]
fn pci_devices_are_reported_by_name_with_what_is_free_and_what_stands_in_the_way() {
    let device = |name: &str, number: u32| PciDeviceFacts {
        name: name.into(),
        address: format!("0000:0{number}:00.0"),
        id: Some("10de:20b0".into()),
        functions: vec![format!("0000:0{number}:00.0")],
        groups: vec![number],
        ..PciDeviceFacts::default()
    };
    let mut seen = observed();
    seen.facts.pci_devices = vec![
        PciDeviceFacts { display: true, held_by: Some("i-1".into()), ..device("gpu", 1) },
        PciDeviceFacts { problem: Some("x".repeat(600)), ..device("gpu", 2) },
        device("gpu", 3),
        PciDeviceFacts { held_by: Some("i-2".into()), ..device("nic", 4) },
    ];
    seen.device_users = [("i-1".to_owned(), "ns/web".to_owned())].into();
    let offered = devices::offered(&seen);
    let counts: Vec<_> =
        offered.iter().map(|of| (of.name.as_str(), of.usable, of.free, of.display)).collect();
    assert_eq!(counts, [("gpu", 2, 1, true), ("nic", 1, 0, false)]);
    let gpu = &offered[0].devices;
    assert_eq!(gpu[0].vm.as_deref(), Some("ns/web"));
    assert_eq!(gpu[1].problem.as_ref().map(String::len), Some(512), "as long as the API accepts");
    assert_eq!(offered[1].devices[0].vm.as_deref(), Some("unknown"));
    // Another VM that has one is no reason to write at once; a device that cannot be given is.
    seen.facts.pci_devices[2].held_by = Some("i-3".into());
    assert_eq!(devices::without_use(&offered, &devices::offered(&seen)), offered);
    seen.facts.pci_devices[2].problem = Some("its group is shared".into());
    assert_ne!(devices::without_use(&offered, &devices::offered(&seen)), offered);
}

#[test]
fn usb_devices_are_reported_by_name_with_their_ports_and_products() {
    let device = |number: u16| UsbDeviceFacts {
        name: "key".into(),
        port: format!("1-{number}"),
        id: Some("0403:6001".into()),
        product: Some("Licence key".into()),
        bus: 1,
        number,
        ..UsbDeviceFacts::default()
    };
    let mut seen = observed();
    seen.facts.usb_devices = vec![
        UsbDeviceFacts { held_by: Some("i-1".into()), ..device(1) },
        UsbDeviceFacts { problem: Some("it is a hub".into()), ..device(2) },
        device(3),
    ];
    seen.device_users = [("i-1".to_owned(), "ns/web".to_owned())].into();
    let reported = status(&Host::new("h", Default::default()), &seen, &AgentConfig::new("h"), at(1));
    let [key] = &reported.usb_devices[..] else { panic!("{:?}", reported.usb_devices) };
    assert_eq!((key.name.as_str(), key.usable, key.free), ("key", 2, 1));
    assert_eq!(key.devices[0].vm.as_deref(), Some("ns/web"));
    assert_eq!(
        (key.devices[1].port.as_str(), key.devices[1].product.as_deref()),
        ("1-2", Some("Licence key"))
    );
    assert_eq!(key.devices[1].problem.as_deref(), Some("it is a hub"));
    let name = berth_api::DeviceName::new(berth_api::DeviceBus::Usb, "key");
    assert_eq!(reported.offered_devices().get(&name).map(|of| of.usable), Some(2));
    seen.facts.usb_devices[2].held_by = Some("i-3".into());
    assert_eq!(
        devices::without_use(&reported.usb_devices, &devices::offered_usb(&seen)),
        reported.usb_devices
    );
}

#[test]
fn vgpus_are_reported_by_name_with_the_numbers_and_the_vms_of_each_device() {
    let device = |name: &str, number: u32, usable: u32, held: &[&str]| VgpuFacts {
        name: name.into(),
        parent: format!("0000:{number}1:00.0"),
        mdev_type: "nvidia-558".into(),
        type_name: Some("NVIDIA A40-8Q".into()),
        display: true,
        usable,
        held_by: held.iter().map(|holder| (format!("uuid-of-{holder}"), (*holder).to_owned())).collect(),
        made: held.iter().map(|holder| format!("uuid-of-{holder}")).collect(),
        problem: None,
    };
    let mut seen = observed();
    seen.facts.vgpus = vec![
        device("a40-8q", 4, 3, &["i-1", "i-2"]),
        device("a40-8q", 6, 3, &[]),
        VgpuFacts { problem: Some("x".repeat(600)), ..device("a40-8q", 8, 3, &[]) },
        VgpuFacts { display: false, mdev_type: "t".repeat(100), ..device("other", 9, 1, &["i-1", "i-3"]) },
    ];
    seen.device_users = [("i-1".to_owned(), "ns/web".to_owned())].into();
    let reported = status(&Host::new("h", Default::default()), &seen, &AgentConfig::new("h"), at(1));
    let [a40, other] = &reported.vgpus[..] else { panic!("{:?}", reported.vgpus) };
    assert_eq!((a40.name.as_str(), a40.usable, a40.free, a40.display), ("a40-8q", 6, 4, true));
    assert_eq!(a40.devices[0].usable, 3);
    assert_eq!(a40.devices[0].vms, ["ns/web", "unknown"]);
    assert_eq!((a40.devices[2].usable, a40.devices[2].problem.as_ref().map(String::len)), (0, Some(512)));
    assert_eq!((other.usable, other.free, other.display), (1, 0, false), "never below zero");
    assert_eq!(other.devices[0].mdev_type.len(), 64, "as long as the API accepts");
    let name = berth_api::DeviceName::new(berth_api::DeviceBus::Mdev, "a40-8q");
    let offered = reported.offered_devices().get(&name).copied();
    assert_eq!(offered, Some(berth_api::OfferedDevices { usable: 6, display: true }));
    // Another VM that has one is no reason to write at once; one less that can be made is.
    seen.facts.vgpus[1] = device("a40-8q", 6, 3, &["i-4"]);
    assert_eq!(devices::without_use(&reported.vgpus, &devices::offered_vgpus(&seen)), reported.vgpus);
    seen.facts.vgpus[1] = device("a40-8q", 6, 2, &[]);
    assert_ne!(devices::without_use(&reported.vgpus, &devices::offered_vgpus(&seen)), reported.vgpus);
}
