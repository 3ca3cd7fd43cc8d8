use berth_api::{ObjectUse, UseKind};
use berth_host::{
    BackupId, DeclaredRestore, Encoding, ImageFacts, ImageSource, RepositoryPlace, SnapshotFacts, Taken,
};
use berth_qemu::block::IoLimits;
use berth_qemu::machine::{Backing, Format};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::credentials::Repository;
use crate::details::Details;
use crate::kinds::disk::backup::LocalBackup;
use crate::kinds::disk::source::{LocalSource, new_owner};
use crate::kinds::disk::status::status;
use crate::pulls::{Pull, Wanted};

const GIB: u64 = 1 << 30;

fn disk(spec: Value, status: Value) -> Disk {
    let mut whole = json!({"observedGeneration": 1, "volumeID": "v-1", "serial": "v1", "binding": {"host": "h", "epoch": 1}});
    for (key, value) in status.as_object().cloned().unwrap_or_default() {
        whole[key] = value;
    }
    let object =
        json!({"metadata": {"name": "d", "namespace": "ns", "generation": 3}, "spec": spec, "status": whole});
    serde_json::from_value(object).expect("a Disk")
}

fn deleted(mut disk: Disk) -> Disk {
    disk.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    disk
}

fn volume(size: u64) -> Observed {
    let facts = VolumeFacts {
        encryption: None,
        retained: false,
        pending_snapshot: None,
        restores: Vec::new(),
        restoring: false,
        reserved: None,
        pool: "default".into(),
        id: "v-1".into(),
        size,
        base: None,
        owner: VolumeOwner { namespace: "ns".into(), name: "d".into(), uid: None, image: None, source: None },
        path: "/v-1.qcow2".into(),
        format: Format::Qcow2,
        cache: Default::default(),
        backing: None,
    };
    Observed { volume: Some(facts), ..Observed::default() }
}

fn user() -> ObjectUse {
    ObjectUse { use_kind: UseKind::Fixed, vm: "web".into(), vm_uid: "u".into(), attachment: None }
}

fn source() -> ImageSource {
    ImageSource {
        namespace: "ns".into(),
        shared: false,
        url: "http://x".into(),
        shown: "http://x".into(),
        digest: "ab".into(),
        format: Format::Qcow2,
        encoding: Encoding::default(),
        secret: None,
        host: None,
        limits: berth_host::DownloadLimits::default(),
    }
}

fn cached(virtual_size: u64) -> Observed {
    let facts = ImageFacts {
        digest: "ab".into(),
        format: Format::Qcow2,
        encoding: Encoding::default(),
        virtual_size,
        bytes: 1,
        path: "/ab".into(),
        readers: std::collections::BTreeSet::new(),
        made_for: std::collections::BTreeSet::new(),
    };
    Observed { image: Some(LocalImage::Cached(facts)), ..Observed::default() }
}

#[test]
fn a_disk_reports_the_space_that_it_takes_rounded_and_keeps_it_until_the_next_measurement() {
    let report = |disk: &Disk, used| {
        let observed = Observed { used, ..volume(100 * GIB) };
        let readiness = plan(disk, &observed).readiness;
        status(disk, &observed, &readiness, Timestamp::UNIX_EPOCH)
    };
    let new = disk(json!({"size": "100Gi"}), json!({}));
    assert_eq!(report(&new, None).used, None);
    let measured = report(&new, Some(3 * GIB + 1));
    assert_eq!(measured.used.as_deref(), Some("3584Mi"), "in units of 512 MiB");
    let known = disk(json!({"size": "100Gi"}), json!({"size": "100Gi", "used": "3584Mi"}));
    assert_eq!(report(&known, None).used.as_deref(), Some("3584Mi"), "an agent that starts has none yet");
}

#[test]
fn a_disk_of_a_pool_that_is_away_is_neither_lost_nor_made_nor_removed() {
    let away =
        || Observed { away: Some("storage pool fast is away: not mounted".into()), ..Observed::default() };
    let made = || disk(json!({"size": "1Gi", "pool": "fast"}), json!({"size": "1Gi", "state": "Available"}));
    for disk in [made(), deleted(made()), disk(json!({"size": "1Gi", "pool": "fast"}), json!({}))] {
        let plan = plan(&disk, &away());
        assert_eq!((plan.steps.as_slice(), reason(&plan)), ([].as_slice(), (true, Reason::PoolAway)));
        assert!(plan.requeue_after.is_some(), "nothing announces that the pool is back");
    }
    let disk = made();
    let readiness = plan(&disk, &away()).readiness;
    let status = status(&disk, &away(), &readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(status.size.as_deref(), Some("1Gi"), "so that it is known to exist");
}

#[test]
fn a_disk_of_a_lost_host_is_taken_from_its_folder_with_its_image_there_and_never_made_anew() {
    let left = |spec| disk(spec, json!({"size": "1Gi", "pool": "site", "formerHost": "h0"}));
    let blank = left(json!({"size": "1Gi", "pool": "site"}));
    let take = |base: Option<&str>| {
        let (pool, id) = ("site".to_owned(), "v-1".to_owned());
        Step::Take(NewTake { pool, id, from: "h0".into(), uid: None, base: base.map(str::to_owned) })
    };
    assert_eq!(plan(&blank, &Observed::default()).steps, [take(None)]);
    let waits = Observed { user_waits: true, ..Observed::default() };
    assert!(plan(&blank, &waits).steps.is_empty(), "its VM may yet go elsewhere");
    let of_image = left(json!({"size": "1Gi", "pool": "site", "image": "debian"}));
    assert_eq!(plan(&of_image, &cached(GIB)).steps, [take(Some("ab"))]);
    let anew = plan(&of_image, &cached(2 * GIB));
    assert_eq!(anew.steps, [take(Some("ab"))], "its file is not made of content that is larger by now");
    let report = |seen: &Observed| {
        let readiness = plan(&blank, seen).readiness;
        status(&blank, seen, &readiness, Timestamp::UNIX_EPOCH).former_host
    };
    assert_eq!(report(&Observed::default()).as_deref(), Some("h0"));
    assert_eq!(report(&volume(GIB)), None, "the file is here");
}

fn reason(plan: &Plan<Step>) -> (bool, Reason) {
    (matches!(plan.readiness, Readiness::Stalled(..)), plan.readiness.reason())
}

#[test]
fn a_blank_disk_is_made_at_once() {
    let plan = plan(&disk(json!({"size": "1Gi"}), json!({})), &Observed::default());
    insta::assert_debug_snapshot!(plan.steps, @r#"
    [
        Create(
            NewVolume {
                pool: "default",
                id: "v-1",
                size: Some(
                    1073741824,
                ),
                base: None,
                snapshot: None,
                file: None,
                thick: false,
                owner: VolumeOwner {
                    namespace: "ns",
                    name: "d",
                    uid: None,
                    image: None,
                    source: None,
                },
                encryption: None,
            },
        ),
    ]
    "#);
}

#[test]
fn a_disk_on_an_image_waits_for_it_has_it_downloaded_and_is_made_on_it() {
    let disk = disk(json!({"image": "debian"}), json!({}));
    let see = |image| Observed { image: Some(image), ..Observed::default() };
    let missing = plan(&disk, &see(LocalImage::Missing));
    assert_eq!((missing.steps.len(), reason(&missing)), (0, (false, Reason::WaitingForImage)));
    let absent = plan(&disk, &see(LocalImage::Absent(source())));
    assert_eq!((absent.steps, absent.readiness.reason()), (vec![Step::Pull(source())], Reason::Pulling));
    let pulling = Pull::Running { done: 1, total: None, rate: None, followed: true };
    assert!(plan(&disk, &see(LocalImage::Pulling(source(), pulling))).steps.is_empty());
    let made = plan(&disk, &cached(2 * GIB));
    let [Step::Create(new)] = &made.steps[..] else { panic!("{made:?}") };
    assert_eq!((new.size, new.base.as_deref()), (None, Some("ab")));
    let mut iso = cached(2 * GIB);
    let Some(LocalImage::Cached(facts)) = &mut iso.image else { panic!("it is cached") };
    facts.format = Format::Iso;
    assert_eq!(reason(&plan(&disk, &iso)), (true, Reason::InvalidSpec), "an iso is no disk");
}

fn taken(pool: &str, size: u64, is_taken: bool) -> SnapshotFacts {
    SnapshotFacts {
        encryption: None,
        pool: pool.into(),
        id: "s-1".into(),
        volume: "v-2".into(),
        size,
        owner: None,
        taken: is_taken.then_some(Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false }),
    }
}

#[test]
fn a_copy_waits_for_its_snapshot_and_is_made_on_it() {
    let copy = |spec: Value| {
        let mut whole = json!({"source": {"snapshot": "before"}});
        for (key, value) in spec.as_object().cloned().unwrap_or_default() {
            whole[key] = value;
        }
        disk(whole, json!({}))
    };
    let seen = |found| Observed { source: Some(LocalSource::Snapshot(found)), ..Observed::default() };
    for found in [None, Some(taken("default", GIB, false))] {
        let waits = plan(&copy(json!({})), &seen(found));
        assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, Reason::WaitingForSnapshot)));
    }
    let there = || seen(Some(taken("default", GIB, true)));
    let [Step::Create(new)] = &plan(&copy(json!({})), &there()).steps[..] else { panic!("it is made") };
    assert_eq!((new.size, new.base.as_deref(), new.snapshot.as_deref()), (None, None, Some("s-1")));
    let declared = new.owner.source.as_ref().and_then(|source| source.snapshot.as_deref());
    assert_eq!(declared, Some("before"), "berth undelete declares it again");
    let larger = plan(&copy(json!({"size": "2Gi"})), &there());
    assert!(matches!(&larger.steps[..], [Step::Create(new)] if new.size == Some(2 * GIB)), "{larger:?}");
    let smaller = plan(&copy(json!({"size": "1Mi"})), &there());
    assert_eq!((smaller.steps.len(), reason(&smaller)), (0, (true, Reason::DiskSmallerThanImage)));
    assert!(smaller.readiness.message().contains("DiskSnapshot before needs at least 1Gi"), "{smaller:?}");
    let elsewhere = plan(&copy(json!({})), &seen(Some(taken("fast", GIB, true))));
    assert_eq!((elsewhere.steps.len(), reason(&elsewhere)), (0, (true, Reason::InvalidSpec)));
}

#[test]
fn a_copy_of_a_disk_is_made_on_a_snapshot_that_is_taken_for_it() {
    let copy = disk(json!({"source": {"disk": "other"}}), json!({}));
    let seen = |volume: Option<VolumeFacts>, snapshot| Observed {
        source: Some(LocalSource::Disk { volume: volume.map(Box::new), snapshot }),
        ..Observed::default()
    };
    let waits = plan(&copy, &seen(None, None));
    assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, Reason::WaitingForDisk)));
    let other = || volume(GIB).volume.map(|facts| VolumeFacts { id: "v-2".into(), ..facts });
    let snapshot =
        NewSnapshot { pool: "default".into(), id: "c-v-1".into(), volume: "v-2".into(), owner: None };
    for begun in [None, Some(taken("default", GIB, false))] {
        assert_eq!(plan(&copy, &seen(other(), begun)).steps, [Step::TakeSnapshot(snapshot.clone())]);
    }
    for other in [None, other()] {
        let made = plan(&copy, &seen(other, Some(taken("default", GIB, true))));
        assert!(matches!(&made.steps[..], [Step::Create(new)] if new.snapshot.is_some()), "{made:?}");
    }
}

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
fn a_failed_download_says_so_on_the_disk_too() {
    let failed = Pull::Failed {
        readiness: Readiness::Stalled(Reason::ChecksumMismatch, "has another checksum".into()),
        again: None,
    };
    let see = Observed { image: Some(LocalImage::Pulling(source(), failed)), ..Observed::default() };
    let plan = plan(&disk(json!({"image": "debian"}), json!({})), &see);
    assert_eq!(reason(&plan), (true, Reason::ChecksumMismatch));
    assert_eq!(plan.readiness.message(), "Image debian: has another checksum");
}

#[test]
fn a_disk_smaller_than_its_image_waits_for_a_person() {
    let plan = plan(&disk(json!({"image": "debian", "size": "1Gi"}), json!({})), &cached(2 * GIB));
    assert_eq!((plan.steps.len(), reason(&plan)), (0, (true, Reason::DiskSmallerThanImage)));
}

#[test]
fn a_file_that_was_there_and_is_gone_is_never_made_anew() {
    for observed in [Observed::default(), cached(GIB)] {
        let plan = plan(&disk(json!({"image": "debian", "size": "4Gi"}), json!({"size": "4Gi"})), &observed);
        assert_eq!((plan.steps.len(), reason(&plan)), (0, (true, Reason::DiskLost)));
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

fn declared_restore() -> DeclaredRestore {
    DeclaredRestore { name: "a".into(), token: Some("1".into()), vm_snapshot: None }
}

fn due() -> Observed {
    Observed { restore: Restore::Due { snapshot: "s-1".into(), declared: declared_restore() }, ..volume(GIB) }
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
    let open = plan(&declared, &Observed { opener: Some("web".into()), ..see(due(None)) });
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
}

#[test]
fn a_deleted_disk_goes_to_the_trash_unless_it_is_used_or_retained() {
    let used = Observed { users: vec![user()], ..volume(GIB) };
    assert!(plan(&deleted(disk(json!({"size": "1Gi"}), json!({}))), &used).steps.is_empty());
    let open = Observed { open_size: Some(GIB), ..volume(GIB) };
    assert!(plan(&deleted(disk(json!({"size": "1Gi"}), json!({}))), &open).steps.is_empty());
    let gone = plan(&deleted(disk(json!({"size": "1Gi"}), json!({}))), &volume(GIB));
    let trash = Step::Trash { pool: "default".into(), volume: "v-1".into() };
    assert_eq!(gone.steps, [trash, Step::Release]);
    let spec = json!({"size": "1Gi", "deletionPolicy": "Retain"});
    let retain = Step::Retain { pool: "default".into(), volume: "v-1".into() };
    assert_eq!(plan(&deleted(disk(spec, json!({}))), &volume(GIB)).steps, [retain, Step::Release]);
}

#[test]
fn what_is_reported_is_what_the_file_is_not_what_was_declared() {
    let disk = disk(json!({"size": "8Gi"}), json!({"size": "1Gi"}));
    let observed = Observed { users: vec![user()], ..volume(2 * GIB) };
    let plan = plan(&disk, &observed);
    let reported = status(&disk, &observed, &plan.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!((reported.size.as_deref(), reported.observed_generation), (Some("2Gi"), 3));
    assert_eq!((reported.state, reported.used_by.len()), (Some(berth_api::DiskState::InUse), 1));
    let again =
        status(&Disk { status: Some(reported.clone()), ..disk }, &observed, &plan.readiness, Timestamp::MAX);
    assert_eq!(again, reported, "nothing is written twice");
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

/// A disk of a backup, whose restore is in this state.
fn restored(pull: Option<Pull>) -> (Disk, Observed) {
    let repository = Repository {
        namespace: "ns".into(),
        name: "r".into(),
        place: RepositoryPlace::Folder { name: "nas".into(), namespace: "ns".into(), repository: "r".into() },
        password_secret: "p".into(),
        credentials_secret: None,
        id: Details(None),
    };
    let disk = disk(json!({"source": {"backup": "b"}}), json!({}));
    let new = NewVolume {
        encryption: None,
        pool: "default".into(),
        id: "v-1".into(),
        size: Some(GIB),
        base: None,
        snapshot: None,
        file: None,
        thick: false,
        owner: new_owner(&disk),
    };
    let id = BackupId { disk: "v-0".into(), backup: "b-0".into() };
    let wanted = Wanted::Restore(repository, id, "v-1".into(), Details(Box::new(new)));
    let local = LocalBackup::Complete { wanted: Box::new(wanted), size: GIB, pull };
    (disk, Observed { backup: Some(local), ..Observed::default() })
}

#[test]
fn a_disk_of_a_backup_is_made_in_the_background_once_the_backup_is_complete() {
    let (object, mut observed) = restored(None);
    assert!(matches!(plan(&object, &observed).steps[..], [Step::StartRestore(Wanted::Restore(..))]));
    let (_, running) = restored(Some(Pull::Running { done: 1, total: Some(4), rate: None, followed: true }));
    let goes_on = plan(&object, &running);
    assert_eq!((goes_on.steps.len(), reason(&goes_on)), (0, (false, Reason::Restoring)));
    assert_eq!(goes_on.readiness.message(), "25 % of Backup b written");
    let readiness = Readiness::Stalled(Reason::BackupLost, "gone".into());
    let (_, failed) = restored(Some(Pull::Failed { readiness, again: None }));
    assert_eq!(reason(&plan(&object, &failed)), (true, Reason::BackupLost));
    let small = disk(json!({"size": "512Mi", "source": {"backup": "b"}}), json!({}));
    assert_eq!(reason(&plan(&small, &observed)), (true, Reason::DiskSmallerThanImage));
    observed.user_waits = true;
    assert_eq!(plan(&object, &observed).steps, [], "its VM is not admitted yet");
    observed.backup = Some(LocalBackup::Awaited("Backup b is not complete yet".into()));
    observed.user_waits = false;
    assert_eq!(reason(&plan(&object, &observed)), (false, Reason::WaitingForBackup));
}

#[test]
fn the_restore_of_a_deleted_disk_is_ended_before_the_disk_is_released() {
    let (object, observed) = restored(None);
    let observed = Observed { is_restoring: true, ..observed };
    assert_eq!(plan(&deleted(object), &observed).steps, [Step::CancelRestore("v-1".into())]);
}

fn any_observed() -> impl Strategy<Value = Observed> {
    let image = prop_oneof![
        Just(None),
        Just(Some(LocalImage::Missing)),
        Just(Some(LocalImage::Absent(source()))),
        (0u64..4).prop_map(|gib| cached(gib * GIB).image),
    ];
    (prop::option::of(0u64..4), prop::option::of(0u64..4), image, any::<[bool; 5]>()).prop_map(
        |(file, open, image, [in_trash, used, has_orphan, is_due, is_open])| Observed {
            user_waits: false,
            is_restoring: false,
            backup: None,
            source: None,
            pending_snapshot: None,
            pending_with_others: false,
            restore: if is_due { due().restore } else { Restore::Done },
            opener: is_open.then(|| "web".to_owned()),
            volume: file.and_then(|gib| volume(gib * GIB).volume),
            open_size: open.map(|gib| gib * GIB),
            open_limits: open.map(|_| Default::default()),
            files_below: open,
            is_read_only: false,
            image,
            in_trash,
            users: if used { vec![user()] } else { Vec::new() },
            has_orphan,
            ..Observed::default()
        },
    )
}

#[test]
fn a_volume_of_a_disk_that_had_another_uid_is_taken_over_and_one_of_another_disk_is_left_alone() {
    let mut object = disk(json!({"size": "1Gi"}), json!({"size": "1Gi"}));
    object.metadata.uid = Some("u2".into());
    let mut seen = volume(GIB);
    seen.volume.as_mut().expect("set").owner.uid = Some("u1".into());
    assert_eq!(reason(&plan(&object, &seen)), (true, Reason::NotSupported));
    assert_eq!(plan(&deleted(object.clone()), &seen).steps, [Step::Release], "its file stays");
    object.metadata.annotations =
        Some([(berth_api::FORMER_UID_ANNOTATION.to_owned(), "u1".to_owned())].into());
    let taken = plan(&object, &seen);
    let [Step::TakeOver { volume, owner, .. }] = &taken.steps[..] else { panic!("{taken:?}") };
    assert_eq!((volume.as_str(), owner.uid.as_deref()), ("v-1", Some("u2")));
    seen.volume.as_mut().expect("set").owner = owner.clone();
    assert_eq!(reason(&plan(&object, &seen)), (false, Reason::Available));
}

#[test]
fn a_retained_volume_of_its_namespace_is_given_to_the_disk_that_asks_for_it() {
    let mut object = disk(json!({"size": "1Gi"}), json!({}));
    object.metadata.uid = Some("u2".into());
    let mut seen = volume(GIB);
    let facts = seen.volume.as_mut().expect("set");
    (facts.retained, facts.owner.uid, facts.owner.name) = (true, Some("u1".into()), "former".into());
    assert_eq!(reason(&plan(&object, &seen)), (true, Reason::NotSupported), "it does not ask for it");
    let asks = |object: &mut Disk, file: &str| {
        object.metadata.annotations =
            Some([(berth_api::RESTORE_ANNOTATION.to_owned(), file.to_owned())].into());
    };
    asks(&mut object, "h/v-2");
    assert_eq!(reason(&plan(&object, &seen)), (true, Reason::NotSupported));
    asks(&mut object, "h/v-1");
    let given = plan(&object, &seen);
    let [Step::TakeOver { volume, owner, .. }] = &given.steps[..] else { panic!("{given:?}") };
    assert_eq!((volume.as_str(), owner), ("v-1", &new_owner(&object)));
    assert_eq!(plan(&deleted(object.clone()), &seen).steps, [Step::Release], "it did not get it");
    let facts = seen.volume.as_mut().expect("set");
    facts.owner.namespace = "other".into();
    assert_eq!(reason(&plan(&object, &seen)), (true, Reason::NotSupported), "of another namespace");
    let facts = seen.volume.as_mut().expect("set");
    (facts.owner, facts.retained) = (owner.clone(), false);
    assert_eq!(reason(&plan(&object, &seen)), (false, Reason::Available));
}

proptest! {
    /// P2: whatever was observed, the disk of an existing object keeps its file, and its size never shrinks.
    #[test]
    fn no_plan_removes_or_shrinks_the_volume_of_a_disk_that_lives(
        seen in prop::collection::vec(any_observed(), 1..12),
        spec in prop::sample::select(vec![
            json!({"size": "1Gi"}), json!({"size": "3Gi", "image": "debian"}), json!({"image": "debian"}),
            json!({"size": "2Gi", "deletionPolicy": "Retain"}), json!({"size": "lots"}),
        ]),
        known in any::<bool>(),
    ) {
        let disk = disk(spec, if known { json!({"size": "1Gi"}) } else { json!({}) });
        for observed in seen {
            for step in plan(&disk, &observed).steps {
                prop_assert!(!matches!(step, Step::Trash { .. } | Step::Retain { .. } | Step::Release), "{step:?}");
                let had = observed.open_size.or(observed.volume.as_ref().map(|v| v.size));
                match step {
                    Step::GrowOffline { bytes, .. } | Step::GrowOnline { bytes, .. } => {
                        let is_online = matches!(step, Step::GrowOnline { .. });
                        prop_assert!(is_online || !observed.has_orphan);
                        prop_assert!(had.is_some_and(|had| bytes > had));
                    }
                    Step::Create(_) | Step::StartRestore(_) => prop_assert!(observed.volume.is_none() && !known),
                    Step::Restore { .. } => prop_assert!(observed.volume.is_none()),
                    Step::Take(_) => prop_assert!(observed.volume.is_none() && disk.status.as_ref().is_some_and(|s| s.former_host.is_some())),
                    Step::RestoreSnapshot(_) => prop_assert!(observed.opener.is_none() && observed.restore.is_due()),
                    Step::StartMove(_) => prop_assert!(observed.opener.is_none()),
                    Step::FollowMove(_) | Step::CancelMove(_) | Step::Pull(_) | Step::FollowPull(_) | Step::FollowRestore(_) | Step::CancelRestore(_) | Step::TakeSnapshot(_) | Step::FinishRestore { .. } | Step::TakeOver { .. } | Step::Reserve { .. } | Step::Rewrap { .. } | Step::SetLimits { .. } | Step::ShortenChain { .. } | Step::Trash { .. } | Step::Retain { .. } | Step::Release => {}
                }
            }
        }
    }

    /// A deleted disk loses its file only when it has no user and no machine has it open.
    #[test]
    fn no_plan_removes_a_volume_that_is_in_use(observed in any_observed()) {
        let disk = deleted(disk(json!({"size": "1Gi"}), json!({"size": "1Gi"})));
        let removes = plan(&disk, &observed).steps.iter().any(|s| matches!(s, Step::Trash { .. } | Step::Release));
        if removes {
            prop_assert!(observed.users.is_empty() && observed.open_size.is_none());
        }
    }
}
