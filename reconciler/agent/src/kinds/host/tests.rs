use serde_json::json;
use std::time::Duration;

use berth_api::Host;
use berth_host::{
    DeclaredSource, ForeignKind, ForeignObject, Forwarding, HostFacts, KvmFacts, PciDeviceFacts,
    PoolFolderFacts, QemuFacts, ShareFacts, TrashedVolume, UsbDeviceFacts, VgpuFacts, VolumeFacts,
    VolumeOwner,
};
use berth_qemu::machine::{Accelerator, Format};
use jiff::Timestamp;

use super::super::devices;
use super::super::observe::{OrphanInstance, Usage};
use super::super::status::{status, without_amounts};
use super::*;
use crate::config::AgentConfig;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("small")
}

fn volume(id: &str) -> VolumeFacts {
    VolumeFacts {
        encryption: None,
        pool: "default".into(),
        id: id.into(),
        size: 1 << 30,
        base: Some("base".into()),
        owner: VolumeOwner {
            namespace: "ns".into(),
            name: "d".into(),
            uid: None,
            image: Some("debian".into()),
            source: None,
        },
        path: "/v".into(),
        format: Format::Qcow2,
        cache: Default::default(),
        backing: None,
        retained: false,
        pending_snapshot: None,
        restores: Vec::new(),
        restoring: false,
        reserved: None,
    }
}

fn observed() -> Observed {
    let qemu = QemuFacts {
        version: "7.2.0".into(),
        machine_type: "pc-q35-7.2".into(),
        machine_types: vec!["pc-q35-7.2".to_owned()],
        cpu_model: "max".into(),
        uefi: true,
        secure_boot: true,
        cpu_models: vec!["Westmere".to_owned(), "x86-64-v2".to_owned()],
        boot_roms: true,
        io_uring: true,
        tpm: true,
        vsock: true,
    };
    Observed {
        generation: None,
        facts: HostFacts {
            cpus: 4,
            memory_bytes: 8 << 30,
            storage_total_bytes: 100 << 30,
            storage_free_bytes: (50 << 30) + 12345,
            qemu: Ok(qemu),
            kvm: KvmFacts { usable: false, reason: "emulates every instruction".into(), mips: Some(1.234) },
            accelerator: Accelerator::Tcg { tb_size_mib: 32 },
            address: None,
            mtu: None,
            ranges: Vec::new(),
            ipv6_addresses: Vec::new(),
            links: Default::default(),
            pci_devices: Vec::new(),
            usb_devices: Vec::new(),
            vgpus: Vec::new(),
            shares: Vec::new(),
            backup_folders: Vec::new(),
            pool_folders: Vec::new(),
            huge_pages: Vec::new(),
            dedicated: Default::default(),
            overhead_bytes: 82 << 20,
            boot_id: "b".into(),
        },
        overhead: None,
        forwarding: Forwarding { ok: true, message: String::new() },
        refused: Default::default(),
        in_agents_unit: Default::default(),
        disconnected: Vec::new(),
        health: Default::default(),
        used: Default::default(),
        foreign: Vec::new(),
        images: Vec::new(),
        images_in_use: Default::default(),
        excess: None,
        changed_images: Vec::new(),
        former_readers: Vec::new(),
        trash: Vec::new(),
        retention: [("default".to_owned(), Duration::from_secs(3600))].into(),
        pools: ["default".to_owned()].into(),
        shared_pools: Default::default(),
        promised: Default::default(),
        orphan_volumes: Vec::new(),
        retained: Vec::new(),
        orphan_instances: Vec::new(),
        left_instances: Vec::new(),
        device_users: Default::default(),
        released: Default::default(),
        open_volumes: Default::default(),
        has_chains: false,
        lost_memory: Vec::new(),
        usage: Usage { vms: 2, cpus: 3, memory: 2 << 30 },
        users: Vec::new(),
    }
}

fn lost(instance: &str, deleting: bool) -> OrphanInstance {
    OrphanInstance {
        instance: instance.into(),
        vm: Some("ns/web".into()),
        owner: None,
        pid: Some(7),
        deleting,
        restarts_offline: false,
    }
}

#[test]
fn only_an_instance_whose_deletion_was_begun_is_finished() {
    let left_instances = vec!["i-4".to_owned()];
    let orphan_instances = vec![lost("i-1", false), lost("i-2", true)];
    let observed = Observed { orphan_instances, left_instances, ..observed() };
    assert_eq!(plan(&observed), ["i-2", "i-4"].map(|name| Step::FinishInstance(name.into())));
}

#[test]
fn the_guest_of_an_instance_without_a_vm_is_not_restarted_without_the_control_plane() {
    let recorded =
        |instance: &str, deleting| OrphanInstance { restarts_offline: true, ..lost(instance, deleting) };
    let orphan_instances = vec![lost("i-1", false), recorded("i-2", false), recorded("i-3", true)];
    let observed = Observed { orphan_instances, ..observed() };
    assert_eq!(plan(&observed), [Step::FinishInstance("i-3".into()), Step::ForgetRestart("i-2".into())]);
}

#[test]
fn the_memory_of_a_snapshot_that_is_gone_is_removed() {
    let observed = Observed { lost_memory: vec!["s-1".into()], ..observed() };
    assert_eq!(plan(&observed), [Step::RemoveMemory("s-1".into())]);
}

#[test]
fn an_image_goes_when_nothing_stands_on_it() {
    let observed = Observed {
        images: vec!["a".into(), "b".into()],
        images_in_use: ["a".to_owned()].into(),
        ..observed()
    };
    assert_eq!(plan(&observed), [Step::RemoveImage("b".into())]);
}

#[test]
fn unused_images_go_while_the_disk_is_short_of_room() {
    let excess = super::super::cache::Excess { unused: vec![("a".to_owned(), 7)], needed: 5 };
    let observed = Observed { excess: Some(excess.clone()), ..observed() };
    assert_eq!(plan(&observed), [Step::ShrinkCache(excess)]);
}

#[test]
fn a_namespace_that_declares_an_image_no_more_is_no_reader_of_it() {
    let former = |digest: &str| (digest.to_owned(), "former".to_owned());
    let observed = Observed {
        images: vec!["a".into(), "b".into()],
        images_in_use: ["a".to_owned()].into(),
        former_readers: vec![former("a"), former("b")],
        ..observed()
    };
    let forget = Step::ForgetReader { digest: "a".into(), namespace: "former".into() };
    assert_eq!(plan(&observed), [Step::RemoveImage("b".into()), forget]);
}

#[test]
fn the_trash_is_emptied_once_something_in_it_is_past_its_time() {
    let trashed = |second| TrashedVolume {
        volume: volume("v"),
        // Only `rested` counts, not the wall-clock time.
        deleted_at: at(0),
        rested: Duration::from_secs(second),
    };
    let young = Observed { trash: vec![trashed(3_000)], ..observed() };
    assert_eq!(plan(&young), []);
    let old = Observed { trash: vec![trashed(3_000), trashed(3_600), trashed(9_900)], ..observed() };
    let older_than = Duration::from_secs(3600);
    assert_eq!(plan(&old), [Step::PurgeTrash { pool: "default".into(), older_than }]);
}

#[test]
fn the_trash_is_reported_with_what_a_disk_made_of_it_has_to_declare() {
    let source = DeclaredSource { snapshot: Some("before".into()), ..DeclaredSource::default() };
    let mut copy = volume("v");
    copy.owner = VolumeOwner { image: None, source: Some(source), ..copy.owner };
    let trash = vec![TrashedVolume { volume: copy, deleted_at: at(0), rested: Duration::ZERO }];
    let used = [("v".to_owned(), 512 << 20)].into();
    let reported = status(
        &Host::new("h", Default::default()),
        &Observed { trash, used, ..observed() },
        &AgentConfig::new("h"),
        at(1),
    );
    let source = reported.trash[0].source.clone().expect("its source");
    assert_eq!(reported.trash[0].used.as_deref(), Some("512Mi"));
    assert_eq!((source.snapshot.as_deref(), source.disk, source.file), (Some("before"), None, None));
}

#[test]
fn a_thousand_and_one_kept_files_are_counted_and_leave_the_inventory_complete() {
    let retained =
        (0..1001).map(|n| VolumeFacts { retained: true, ..volume(&format!("v-{n:04}")) }).collect();
    let kept = Observed { retained, ..observed() };
    let host = Host::new("h", Default::default());
    let reported = status(&host, &kept, &AgentConfig::new("h"), at(1));
    assert_eq!((reported.retained, reported.orphans.len()), (Some(1001), 0));
    assert_eq!(reported.retained_volumes.len(), 1000);
    let first = &reported.retained_volumes[0];
    assert_eq!((first.volume_id.as_str(), first.size.as_str()), ("v-0000", "1Gi"));
    assert_eq!(reported.deleted_volume("ns", "v-0999"), Some("1Gi"));
    assert_eq!(reported.deleted_volume("other", "v-0999"), None);
    assert!(reported.inventory.is_some_and(|inventory| inventory.complete));
    let lost = (0..1001).map(|n| volume(&format!("v-{n}"))).collect();
    let lost = Observed { orphan_volumes: lost, orphan_instances: vec![lost_vm()], ..observed() };
    let reported = status(&host, &lost, &AgentConfig::new("h"), at(1));
    assert!(
        reported.inventory.is_some_and(|inventory| !inventory.complete),
        "what has an owner and is left out counts"
    );
    assert_eq!(
        reported.orphans.first().map(|o| o.kind.as_str()),
        Some("Instance"),
        "what runs is never left out"
    );
}

#[test]
fn kept_files_in_a_recovery_leave_room_for_what_was_lost_and_keep_no_inventory_open() {
    let kept = (0..1001).map(|n| VolumeFacts { retained: true, ..volume(&format!("v-{n:04}")) });
    let mut seen = Observed { orphan_instances: vec![lost_vm()], ..observed() };
    seen.orphan_volumes = kept.chain([volume("v-lost")]).collect();
    let reported = |seen: &Observed| {
        let status = status(&Host::new("h", Default::default()), seen, &AgentConfig::new("h"), at(1));
        let names: Vec<String> = status.orphans.into_iter().map(|o| o.name).collect();
        (status.inventory.expect("it is looked at").complete, names)
    };
    let (complete, names) = reported(&seen);
    assert!(complete, "more kept files than are listed");
    assert_eq!(names.len(), 1000);
    assert!(names.contains(&"i-1".to_owned()) && names.contains(&"v-lost".to_owned()), "{names:?}");
    seen.orphan_volumes.extend((0..1000).map(|n| volume(&format!("v-lost{n}"))));
    assert!(!reported(&seen).0, "not all that was lost is listed");
}

fn lost_vm() -> OrphanInstance {
    OrphanInstance { owner: Some(Default::default()), ..lost("i-1", false) }
}

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
fn no_image_is_removed_while_a_pool_is_away_and_a_recovery_waits_for_it() {
    let mut observed = Observed { images: vec!["a".into()], ..observed() };
    assert_eq!(plan(&observed), [Step::RemoveImage("a".into())]);
    let problem = Some("not mounted".to_owned());
    observed.facts.pool_folders =
        vec![PoolFolderFacts { pool: "fast".into(), problem, ..PoolFolderFacts::default() }];
    assert_eq!(plan(&observed), []);
    let mut host = Host::new("h1", berth_api::HostSpec::default());
    let is_complete = |host: &Host| {
        let status = status(host, &observed, &AgentConfig::new("h1"), at(0));
        status.inventory.is_some_and(|inventory| inventory.complete)
    };
    assert!(is_complete(&host), "it takes VMs with disks in other pools");
    host.spec.recovery = Some(berth_api::host::Recovery { since: at(0) });
    assert!(!is_complete(&host));
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
fn what_no_object_owns_is_listed_with_what_it_was() {
    let process =
        ForeignObject { kind: ForeignKind::Process, name: "42 theirs".into(), detail: "not berth's".into() };
    let observed = Observed {
        foreign: vec![process],
        orphan_volumes: vec![volume("v-9")],
        orphan_instances: vec![lost("i-1", false)],
        ..observed()
    };
    let reported = status(&Host::new("h", Default::default()), &observed, &AgentConfig::new("h"), at(1));
    let lines: Vec<String> =
        reported.orphans.iter().map(|o| format!("{} {}: {}", o.kind, o.name, o.detail)).collect();
    insta::assert_debug_snapshot!(lines, @r#"
    [
        "Instance i-1: no VM bound to this host has it; it was VM ns/web and runs as pid 7",
        "Process 42 theirs: not berth's",
        "Volume v-9: no Disk has it; it was made for Disk ns/d",
    ]
    "#);
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
