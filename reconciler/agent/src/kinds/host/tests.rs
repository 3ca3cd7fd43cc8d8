#[path = "tests/reports.rs"]
mod reports;

use std::time::Duration;

use berth_api::Host;
use berth_host::{
    DeclaredSource, EmulatedFacts, ForeignKind, ForeignObject, Forwarding, HostFacts, HostRange, KvmFacts,
    PoolFolderFacts, QemuFacts, TrashedVolume, VolumeFacts, VolumeOwner,
};
use berth_qemu::machine::{Accelerator, Architecture, Format};
use jiff::Timestamp;

use super::super::observe::{OrphanInstance, Usage};
use super::super::status::status;
use super::*;
use crate::config::AgentConfig;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("small")
}

fn volume(id: &str) -> VolumeFacts {
    VolumeFacts {
        problem: None,
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
            block_devices: Vec::new(),
            cpus: 4,
            memory_bytes: 8 << 30,
            storage_total_bytes: 100 << 30,
            storage_free_bytes: (50 << 30) + 12345,
            architecture: Architecture::X86_64,
            emulated: None,
            qemu: Ok(qemu),
            kvm: KvmFacts { usable: false, reason: "emulates every instruction".into(), mips: Some(1.234) },
            accelerator: Accelerator::Tcg { tb_size_mib: 32 },
            vhost_net: false,
            address: None,
            mtu: None,
            ranges: Vec::new(),
            ipv6_addresses: Vec::new(),
            links: Default::default(),
            wireguard: Err("wg is not installed".into()),
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
        failing_servers: Vec::new(),
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
        copied_volumes: Vec::new(),
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
fn the_host_reports_the_segments_of_its_interfaces_apart_and_the_ranges_that_it_uses_together() {
    let mut observed = observed();
    let range = |text: &str, is_route| HostRange { range: text.parse().expect("a range"), is_route };
    observed.facts.ranges = vec![
        range("10.0.0.0/8", true),
        range("192.0.3.0/24", false),
        range("192.0.2.0/24", false),
        range("192.0.3.0/24", false),
        range("198.51.100.4/31", false),
        range("198.51.100.9/32", false),
    ];
    let reported = status(&Host::new("h", Default::default()), &observed, &AgentConfig::new("h"), at(0));
    assert_eq!(reported.segments, ["192.0.2.0/24", "192.0.3.0/24"]);
    assert_eq!(reported.ranges, ["10.0.0.0/8", "192.0.2.0/23", "198.51.100.4/31", "198.51.100.9/32"]);
}

#[test]
fn the_host_reports_the_families_whose_bridged_packets_its_firewall_sees() {
    let mut observed = observed();
    let reported = |observed: &Observed| {
        status(&Host::new("h", Default::default()), observed, &AgentConfig::new("h"), at(0))
    };
    assert!(reported(&observed).filtered_bridges.is_empty());
    observed.facts.links.filters_ipv6 = true;
    assert_eq!(reported(&observed).filtered_bridges, ["IPv6"]);
    observed.facts.links.filters_ipv4 = true;
    assert_eq!(reported(&observed).filtered_bridges, ["IPv4", "IPv6"]);
}

#[test]
fn the_host_reports_its_architecture_and_the_one_that_it_emulates() {
    let of = |observed: &Observed| {
        let status = status(&Host::new("h", Default::default()), observed, &AgentConfig::new("h"), at(0));
        let of = status.architectures.into_iter().map(|of| (of.name, of.accelerator, of.problem));
        (of.collect::<Vec<_>>(), status.machine_types, status.cpu_models)
    };
    let own = ("x86_64".to_owned(), "tcg".to_owned(), None);
    let mut observed = observed();
    let (_, types, models) = of(&observed);
    assert_eq!(of(&observed).0, std::slice::from_ref(&own));
    let mut qemu = observed.facts.qemu.clone().expect("installed");
    qemu.machine_types = vec!["virt-7.2".to_owned()];
    qemu.cpu_models = vec!["cortex-a72".to_owned()];
    let emulated = |qemu| EmulatedFacts {
        architecture: Architecture::Aarch64,
        qemu,
        accelerator: Accelerator::Tcg { tb_size_mib: 32 },
        overhead_bytes: 90 << 20,
    };
    observed.facts.emulated = Some(emulated(Ok(qemu)));
    let (architectures, with_types, with_models) = of(&observed);
    assert_eq!(architectures, [own.clone(), ("aarch64".to_owned(), "tcg".to_owned(), None)]);
    assert_eq!(with_types, [types, vec!["virt-7.2".to_owned()]].concat());
    assert_eq!(with_models, [models, vec!["cortex-a72".to_owned()]].concat());
    let mut without_firmware = observed.facts.qemu.clone().expect("installed");
    without_firmware.uefi = false;
    observed.facts.emulated = Some(emulated(Ok(without_firmware)));
    let problem = of(&observed).0.pop().and_then(|(.., problem)| problem);
    assert!(problem.is_some_and(|text| text.contains("apt install qemu-efi-aarch64")));
    observed.facts.emulated = Some(emulated(Err("not installed".to_owned())));
    let problem = Some("not installed".to_owned());
    assert_eq!(of(&observed).0, [own, ("aarch64".to_owned(), "tcg".to_owned(), problem)]);
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
