//! Disks that are changed: grown, limited, restored in place and moved.

use berth_host::{DeclaredRestore, SnapshotFacts};
use berth_qemu::block::IoLimits;
use berth_qemu::machine::{Backing, Format};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::*;
use crate::kinds::disk::status::status;
use crate::mirrors::SeenMirror;
use crate::pulls::{Pull, Wanted};

use super::{GIB, declared_restore, deleted, disk, due, reason, taken, volume};

#[test]
fn a_disk_whose_snapshot_is_begun_is_neither_grown_nor_deleted_before_that_is_finished() {
    let declared = disk(json!({"size": "2Gi"}), json!({"size": "1Gi"}));
    let begun = SnapshotFacts { volume: "v-1".into(), ..taken("default", GIB, false) };
    let observed = Observed { pending_snapshot: Some(begun), ..volume(GIB) };
    let snapshot =
        NewSnapshot { pool: "default".into(), id: "s-1".into(), volume: "v-1".into(), owner: None };
    for disk in [declared.clone(), deleted(declared)] {
        assert_eq!(plan(&disk, &observed).steps, [Step::TakeSnapshot(snapshot.clone())]);
        let with_others = Observed { pending_with_others: true, ..observed.clone() };
        assert_eq!(plan(&disk, &with_others).steps, [], "its DiskSnapshot takes it");
    }
}

#[test]
fn an_open_disk_is_grown_through_its_machine_and_a_closed_one_in_its_file() {
    let disk = disk(json!({"size": "2Gi"}), json!({"size": "1Gi"}));
    let offline = plan(&disk, &volume(GIB));
    assert!(matches!(&offline.steps[..], [Step::GrowOffline { bytes, .. }] if *bytes == 2 * GIB));
    let orphaned = plan(&disk, &Observed { has_orphan: true, ..volume(GIB) });
    assert_eq!((orphaned.steps.len(), orphaned.readiness.reason()), (0, Reason::Growing));
    let online = plan(&disk, &Observed { open_size: Some(GIB), ..volume(GIB) });
    assert!(matches!(&online.steps[..], [Step::GrowOnline { bytes, .. }] if *bytes == 2 * GIB));
    assert!(plan(&disk, &Observed { open_size: Some(2 * GIB), ..volume(GIB) }).steps.is_empty());
    let larger = plan(&disk, &volume(3 * GIB));
    assert_eq!((larger.steps.len(), larger.readiness.reason()), (0, Reason::Available));
}

#[test]
fn an_open_disk_that_is_to_grow_offline_waits_for_a_power_cycle_and_so_does_one_that_is_only_read() {
    let declared = |policy| disk(json!({"size": "2Gi", "expandPolicy": policy}), json!({"size": "1Gi"}));
    let open = Observed { open_size: Some(GIB), ..volume(GIB) };
    let waits = plan(&declared("Offline"), &open);
    assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, Reason::PowerCycleNeeded)));
    let read_only = plan(&declared("Online"), &Observed { is_read_only: true, ..open.clone() });
    assert_eq!((read_only.steps.len(), reason(&read_only)), (0, (false, Reason::PowerCycleNeeded)));
    let closed = plan(&declared("Offline"), &volume(GIB));
    assert!(matches!(&closed.steps[..], [Step::GrowOffline { bytes, .. }] if *bytes == 2 * GIB));
    assert!(matches!(&plan(&declared("Online"), &open).steps[..], [Step::GrowOnline { .. }]));
}

#[test]
fn a_disk_that_several_vms_write_to_grows_while_none_has_it_open() {
    let shared = |open_size| {
        let mut observed = Observed { open_size, ..volume(GIB) };
        observed.volume.iter_mut().for_each(|facts| facts.format = Format::Raw);
        observed
    };
    let declared = disk(json!({"size": "2Gi", "access": "ReadWriteMany"}), json!({"size": "1Gi"}));
    let waits = plan(&declared, &shared(Some(GIB)));
    assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, Reason::PowerCycleNeeded)));
    let closed = plan(&declared, &shared(None));
    assert!(matches!(&closed.steps[..], [Step::GrowOffline { bytes, .. }] if *bytes == 2 * GIB));
    let of_one = plan(&declared, &volume(GIB));
    assert_eq!(
        (of_one.steps.len(), reason(&of_one)),
        (0, (true, Reason::NotSupported)),
        "its file has one writer"
    );
}

#[test]
fn a_disk_is_restored_once_no_machine_has_it_open_and_with_its_declared_size() {
    let declared = |size| disk(json!({"size": size, "restore": {"snapshot": "a", "token": "1"}}), json!({}));
    let new = NewRestore {
        pool: "default".into(),
        volume: "v-1".into(),
        snapshot: "s-1".into(),
        declared: declared_restore(),
        size: 2 * GIB,
    };
    assert_eq!(plan(&declared("2Gi"), &due()).steps, [Step::RestoreSnapshot(new)]);
    let open = Observed { opener: Some("web".into()), ..due() };
    let waits = plan(&declared("1Gi"), &open);
    assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, Reason::PowerCycleNeeded)));
    assert!(waits.readiness.message().contains("stop VM web (power: Stopped)"), "{waits:?}");
    let grows = plan(&declared("2Gi"), &Observed { open_size: Some(GIB), ..open });
    assert!(matches!(&grows.steps[..], [Step::GrowOnline { .. }]), "it is used meanwhile: {grows:?}");
    assert_eq!(plan(&deleted(declared("1Gi")), &due()).steps.len(), 2, "it goes to the trash");
}

#[test]
fn a_disk_is_moved_once_no_machine_has_it_open_and_is_used_where_it_is_until_then() {
    let declared = disk(json!({"size": "1Gi", "pool": "slow"}), json!({"size": "1Gi", "pool": "default"}));
    let new = berth_host::NewMove { id: "v-1".into(), from: "default".into(), to: "slow".into() };
    let wanted = Wanted::Move("ns".into(), new);
    let due = |pull| Move::Due { to: "slow".into(), wanted: Box::new(wanted.clone()), pull };
    let see = |moving| Observed { moving, ..volume(GIB) };
    let starts = plan(&declared, &see(due(None)));
    assert_eq!(starts.steps, [Step::StartMove(wanted.clone())]);
    let mirror = SeenMirror { obstacle: Some("its guest does not run".into()), ..SeenMirror::default() };
    let open = plan(&declared, &Observed { opener: Some("web".into()), mirror, ..see(due(None)) });
    assert_eq!((open.steps.len(), reason(&open)), (0, (false, Reason::MoveWaits)));
    assert!(open.readiness.message().contains("VM web"), "{open:?}");
    let running = Pull::Running { done: 1, total: Some(2), rate: None, followed: true };
    let running = plan(&declared, &see(due(Some(running))));
    assert_eq!((running.steps.len(), reason(&running)), (0, (false, Reason::Moving)));
    assert!(running.readiness.message().contains("(50 %)"), "{running:?}");
    let refused = plan(&declared, &see(Move::Refused { text: "full".into(), again: None }));
    assert_eq!((refused.steps.len(), reason(&refused)), (0, (true, Reason::MoveRefused)));
    let stray = Observed { has_stray_move: true, ..volume(GIB) };
    assert_eq!(plan(&declared, &stray).steps, [Step::CancelMove("v-1".into())], "it was set back");
    let reported = status(&declared, &stray, &starts.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(reported.pool.as_ref().map(berth_api::ResourceName::as_str), Some("default"));
}

#[test]
fn a_disk_whose_restore_waits_or_is_refused_is_used_as_it_is_and_says_so() {
    let declared = disk(json!({"size": "1Gi", "restore": {"snapshot": "a"}}), json!({}));
    let see = |restore| Observed { restore, ..volume(GIB) };
    let waits = plan(&declared, &see(Restore::Waits("no".into())));
    assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, Reason::WaitingForSnapshot)));
    let refused = plan(&declared, &see(Restore::Refused("no".into())));
    assert_eq!((refused.steps.len(), reason(&refused)), (0, (true, Reason::RestoreRefused)));
    assert_eq!(reason(&plan(&declared, &see(Restore::Done))), (false, Reason::Available));
    let mut interrupted = due();
    interrupted.volume.as_mut().expect("set").restoring = true;
    let finish = Step::FinishRestore { pool: "default".into(), volume: "v-1".into() };
    assert_eq!(plan(&declared, &interrupted).steps, [finish]);
}

#[test]
fn the_last_restore_is_in_the_status_and_stays_there_with_the_file() {
    let declared = disk(json!({"size": "1Gi"}), json!({}));
    let mut observed = volume(GIB);
    let restored = |name: &str| berth_host::Restored {
        declared: DeclaredRestore { name: name.into(), ..DeclaredRestore::default() },
        snapshot: format!("s-{name}"),
        at: Timestamp::UNIX_EPOCH,
    };
    observed.volume.as_mut().expect("set").restores = vec![restored("a"), restored("b")];
    let ready = Readiness::Ready(Reason::Available, String::new());
    let reported =
        status(&declared, &observed, &ready, Timestamp::UNIX_EPOCH).restored_from.expect("reported");
    assert_eq!((reported.snapshot.as_str(), reported.snapshot_id.as_str()), ("b", "s-b"));
    assert_eq!(reported.restored_at, "1970-01-01T00:00:00Z");
}

#[test]
fn a_thick_disk_has_its_space_reserved_before_it_grows() {
    let declared = disk(json!({"size": "2Gi", "provisioning": "Thick"}), json!({"size": "1Gi"}));
    let [Step::Create(new)] = &plan(&disk(declared_spec(), json!({})), &Observed::default()).steps[..] else {
        panic!("it is created")
    };
    assert!(new.thick);
    let with = |reserved| {
        let mut seen = volume(GIB);
        seen.volume.as_mut().expect("set").reserved = reserved;
        seen
    };
    let reserve = || Step::Reserve { pool: "default".into(), volume: "v-1".into(), bytes: 2 * GIB };
    let grow = || Step::GrowOffline { pool: "default".into(), volume: "v-1".into(), bytes: 2 * GIB };
    assert_eq!(plan(&declared, &with(Some(GIB))).steps, [reserve(), grow()]);
    assert_eq!(plan(&declared, &with(Some(2 * GIB))).steps, [grow()]);
    let open = Observed { open_size: Some(GIB), ..with(None) };
    let online = Step::GrowOnline { volume: "v-1".into(), bytes: 2 * GIB };
    assert_eq!(plan(&declared, &open).steps, [reserve(), online]);
}

fn declared_spec() -> Value {
    json!({"size": "2Gi", "provisioning": "Thick"})
}

#[test]
fn ceilings_that_the_machine_does_not_have_are_set() {
    let declared = json!({"size": "1Gi", "limits": {"iops": 100, "burstIops": 200, "writeBandwidth": "1Mi"}});
    let limits = IoLimits {
        iops: 100,
        burst_iops: 200,
        burst_seconds: 60,
        write_bandwidth: 1 << 20,
        ..IoLimits::default()
    };
    let with = |open_limits| Observed { open_size: Some(GIB), open_limits, ..volume(GIB) };
    let set = |limits| vec![Step::SetLimits { volume: "v-1".into(), limits }];
    let limited = disk(declared, json!({"size": "1Gi"}));
    assert_eq!(plan(&limited, &with(Some(IoLimits::default()))).steps, set(limits));
    assert!(plan(&limited, &with(Some(limits))).steps.is_empty());
    assert!(plan(&limited, &volume(GIB)).steps.is_empty(), "no machine has it open");
    let free = disk(json!({"size": "1Gi"}), json!({"size": "1Gi"}));
    assert_eq!(plan(&free, &with(Some(limits))).steps, set(IoLimits::default()));
    let of_class = |limits| Observed { default_limits: limits, ..with(Some(IoLimits::default())) };
    assert_eq!(plan(&free, &of_class(limits)).steps, set(limits));
    let other = IoLimits { iops: 7, ..IoLimits::default() };
    assert_eq!(plan(&limited, &of_class(other)).steps, set(limits), "its own come first");
}

#[test]
fn a_machine_that_has_more_files_open_than_its_disk_is_based_on_closes_them_and_the_disk_stays_ready() {
    let disk = disk(json!({"size": "1Gi"}), json!({"size": "1Gi"}));
    let mut seen = volume(GIB);
    let base = |backing| Backing { file: "/f".into(), format: Format::Qcow2, backing };
    seen.volume.as_mut().expect("set").backing = Some(base(Some(Box::new(base(None)))));
    (seen.open_size, seen.files_below) = (Some(GIB), Some(3));
    let step = Step::ShortenChain { pool: "default".into(), volume: "v-1".into() };
    assert_eq!(plan(&disk, &seen).steps, [step]);
    assert_eq!(reason(&plan(&disk, &seen)), (false, Reason::Available));
    // A snapshot that is being taken: the machine is switched to its new file later.
    for files in [Some(2), Some(1), None] {
        seen.files_below = files;
        assert_eq!(plan(&disk, &seen).steps, []);
    }
}
