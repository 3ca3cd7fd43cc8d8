#[path = "tests/changes.rs"]
mod changes;
#[path = "tests/creation.rs"]
mod creation;
#[path = "tests/devices.rs"]
mod devices;
#[path = "tests/mirrors.rs"]
mod mirrors;

use berth_api::{LeaveFacts, ObjectUse, UseKind};
use berth_host::{
    BackupId, DeclaredRestore, Encoding, ImageFacts, ImageSource, RepositoryPlace, SnapshotFacts, Taken,
};
use berth_qemu::machine::Format;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::credentials::Repository;
use crate::details::Details;
use crate::kinds::disk::backup::LocalBackup;
use crate::kinds::disk::source::new_owner;
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
        problem: None,
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
fn a_disk_without_a_status_gets_the_default_pool_again_that_has_its_file() {
    let report = |stored: Value| {
        let disk = disk(json!({"size": "100Gi"}), stored);
        let observed = Observed { default_pool: Some("fast".into()), ..volume(100 * GIB) };
        let readiness = plan(&disk, &observed).readiness;
        status(&disk, &observed, &readiness, Timestamp::UNIX_EPOCH).default_pool
    };
    assert_eq!(report(json!({})), Some("fast".into()));
    let kept = status(
        &disk(json!({"size": "100Gi"}), json!({"defaultPool": "fast"})),
        &volume(100 * GIB),
        &plan(&disk(json!({"size": "100Gi"}), json!({})), &volume(100 * GIB)).readiness,
        Timestamp::UNIX_EPOCH,
    );
    assert_eq!(kept.default_pool, Some("fast".into()));
}

#[test]
fn a_disk_reports_whether_it_outlives_its_host_and_keeps_that_while_its_pool_is_away() {
    let report = |disk: &Disk, observed: &Observed| {
        let readiness = plan(disk, observed).readiness;
        let status = status(disk, observed, &readiness, Timestamp::UNIX_EPOCH);
        (status.survives_host_loss, status.host_loss_reason)
    };
    let shared = LeaveFacts { is_in_shared_pool: true, ..LeaveFacts::default() };
    let with = |facts| Observed { leave_facts: Some(facts), ..volume(GIB) };
    let new = disk(json!({"size": "1Gi"}), json!({}));
    assert_eq!(report(&new, &with(shared)), (Some(true), None), "its size is reported with it");
    let (survives, why) = report(&new, &with(LeaveFacts::default()));
    assert_eq!(survives, Some(false));
    assert_eq!(why.as_deref(), Some("it is in no pool of type Shared or RBD"));
    let encrypted = disk(json!({"size": "1Gi", "encryption": {"keyClass": "k"}}), json!({}));
    let why = report(&encrypted, &with(shared)).1;
    assert_eq!(why.as_deref(), Some("it is encrypted, and its pool is not of type RBD"));
    let in_ceph = LeaveFacts { is_in_ceph: true, ..shared };
    assert_eq!(report(&encrypted, &with(in_ceph)), (Some(true), None));
    let (_, why) = report(&new, &with(LeaveFacts { has_snapshots: true, ..shared }));
    assert_eq!(why.as_deref(), Some("it has snapshots"));
    let known = disk(json!({"size": "1Gi"}), json!({"size": "1Gi", "survivesHostLoss": true}));
    let away = Observed { away: Some("not mounted".into()), ..Observed::default() };
    assert_eq!(report(&known, &away), (Some(true), None));
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
fn a_disk_whose_file_is_lost_is_not_made_anew_and_the_record_of_it_goes_with_the_disk() {
    let lost = || Observed { is_lost: true, ..Observed::default() };
    for stored in [json!({"size": "1Gi"}), json!({})] {
        let stays = plan(&disk(json!({"size": "1Gi"}), stored), &lost());
        assert_eq!((stays.steps.as_slice(), reason(&stays)), ([].as_slice(), (true, Reason::DiskLost)));
    }
    let gone = plan(&deleted(disk(json!({"size": "1Gi"}), json!({"size": "1Gi"}))), &lost());
    let trash = Step::Trash { pool: "default".into(), volume: "v-1".into() };
    assert_eq!(gone.steps, [trash, Step::Release]);
}

fn reason(plan: &Plan<Step>) -> (bool, Reason) {
    (matches!(plan.readiness, Readiness::Stalled(..)), plan.readiness.reason())
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
        shared: false,
        owner: new_owner(&disk),
    };
    let id = BackupId { disk: "v-0".into(), backup: "b-0".into() };
    let wanted = Wanted::Restore(repository, id, "v-1".into(), Details(Box::new(new)));
    let local = LocalBackup::Complete { wanted: Box::new(wanted), size: GIB, pull };
    (disk, Observed { backup: Some(local), ..Observed::default() })
}

fn declared_restore() -> DeclaredRestore {
    DeclaredRestore { name: "a".into(), token: Some("1".into()), vm_snapshot: None }
}

fn due() -> Observed {
    Observed { restore: Restore::Due { snapshot: "s-1".into(), declared: declared_restore() }, ..volume(GIB) }
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
            default_pool: None,
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
            json!({"size": "2Gi", "filesystem": {"type": "ext4"}}), json!({"image": "debian", "cloneMode": "Full"}),
            json!({"source": {"device": "nvme"}}),
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
                    Step::Create(_) | Step::UseDevice(_) | Step::StartRestore(_) | Step::StartFill(_) => prop_assert!(observed.volume.is_none() && !known),
                    Step::Restore { .. } => prop_assert!(observed.volume.is_none()),
                    Step::Take(_) => prop_assert!(observed.volume.is_none() && disk.status.as_ref().is_some_and(|s| s.former_host.is_some())),
                    Step::Fetch(_) => prop_assert!(observed.volume.is_none() && observed.fetch.is_some()),
                    Step::RestoreSnapshot(_) => prop_assert!(observed.opener.is_none() && observed.restore.is_due()),
                    Step::StartMove(_) => prop_assert!(observed.opener.is_none()),
                    Step::BeginMirror(_) => prop_assert!(observed.opener.is_some()),
                    Step::FinishMirror(_) => prop_assert!(observed.mirror.state.is_some()),
                    Step::FollowMove(_) | Step::CancelMove(_) | Step::CancelMirror { .. } | Step::Pull(_) | Step::FollowPull(_) | Step::FollowRestore(_) | Step::FollowFill(_) | Step::CancelRestore(_) | Step::TakeSnapshot(_) | Step::FinishRestore { .. } | Step::TakeOver { .. } | Step::Reserve { .. } | Step::Rewrap { .. } | Step::SetLimits { .. } | Step::ShortenChain { .. } | Step::Trash { .. } | Step::Retain { .. } | Step::Release => {}
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
