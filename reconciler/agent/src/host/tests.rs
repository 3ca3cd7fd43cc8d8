use berth_api::Host;
use berth_qemu::machine::{Accelerator, Format};
use jiff::Timestamp;

use super::super::observe::{LostInstance, Usage};
use super::super::status::status;
use super::*;
use crate::config::AgentConfig;
use crate::system::{
    Forwarding, HostFacts, KvmFacts, QemuFacts, Stranger, StrangerKind, TrashedVolume, VolumeFacts,
    VolumeOwner,
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("small")
}

fn volume(id: &str) -> VolumeFacts {
    VolumeFacts {
        pool: "default".into(),
        id: id.into(),
        size: 1 << 30,
        base: Some("base".into()),
        owner: VolumeOwner {
            namespace: "ns".into(),
            name: "d".into(),
            uid: None,
            image: Some("debian".into()),
        },
        path: "/v".into(),
        format: Format::Qcow2,
        backing: None,
    }
}

fn observed() -> Observed {
    let qemu = QemuFacts {
        version: "7.2.0".into(),
        machine_type: "pc-q35-7.2".into(),
        cpu_model: "max".into(),
        uefi: true,
    };
    Observed {
        now: at(10_000),
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
            overhead_bytes: 82 << 20,
        },
        forwarding: Forwarding { ok: true, message: String::new() },
        refused: Default::default(),
        strangers: Vec::new(),
        images: Vec::new(),
        images_in_use: Default::default(),
        trash: Vec::new(),
        retention: [("default".to_owned(), Duration::from_secs(3600))].into(),
        lost_volumes: Vec::new(),
        lost_instances: Vec::new(),
        usage: Usage { vms: 2, cpus: 3, memory: 2 << 30 },
        users: Vec::new(),
    }
}

fn lost(instance: &str, deleting: bool) -> LostInstance {
    LostInstance { instance: instance.into(), vm: Some("ns/web".into()), owner: None, pid: Some(7), deleting }
}

#[test]
fn only_an_instance_whose_deletion_was_begun_is_finished() {
    let observed = Observed { lost_instances: vec![lost("i-1", false), lost("i-2", true)], ..observed() };
    assert_eq!(plan(&observed), [Step::FinishInstance("i-2".into())]);
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
fn the_trash_is_emptied_once_something_in_it_is_past_its_time() {
    let trashed = |second| TrashedVolume { volume: volume("v"), deleted_at: at(second) };
    let young = Observed { trash: vec![trashed(7_000)], ..observed() };
    assert_eq!(plan(&young), []);
    let old = Observed { trash: vec![trashed(7_000), trashed(6_400), trashed(100)], ..observed() };
    let older_than = Duration::from_secs(3600);
    assert_eq!(plan(&old), [Step::PurgeTrash { pool: "default".into(), older_than }]);
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
fn what_no_object_owns_is_listed_with_what_it_was() {
    let stranger =
        Stranger { kind: StrangerKind::Process, name: "42 theirs".into(), detail: "not berth's".into() };
    let observed = Observed {
        strangers: vec![stranger],
        lost_volumes: vec![volume("v-9")],
        lost_instances: vec![lost("i-1", false)],
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
