//! Disks that are created: blank, of an image, a copy, a backup, or a file of a lost host.

use berth_qemu::machine::Format;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::*;
use crate::details::Details;
use crate::kinds::disk::backup::LocalBackup;
use crate::kinds::disk::fetch::{DiskCopy, is_earlier};
use crate::kinds::disk::source::LocalSource;
use crate::kinds::disk::status::status;
use crate::pulls::{Arriving, Pull, Wanted};

use super::{GIB, cached, deleted, disk, new_owner, reason, restored, source, taken, volume};

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
    let gone = plan(&deleted(blank.clone()), &Observed::default());
    assert!(gone.steps.is_empty(), "its file is in the folder of h0, which removes it: {gone:?}");
    let before = plan(&blank, &Observed { earlier_in: Some("fast".to_owned()), ..Observed::default() });
    assert!(
        before.steps.is_empty() && before.requeue_after.is_some(),
        "its VM removes that first: {before:?}"
    );
    let report = |seen: &Observed| {
        let readiness = plan(&blank, seen).readiness;
        status(&blank, seen, &readiness, Timestamp::UNIX_EPOCH).former_host
    };
    assert_eq!(report(&Observed::default()).as_deref(), Some("h0"));
    assert_eq!(report(&volume(GIB)), None, "the file is here");
}

#[test]
fn a_file_of_an_earlier_stay_in_another_pool_is_not_the_data_of_a_disk_that_comes_back() {
    let found = |pool: &str, declared: &str, former: Option<&str>| {
        let back =
            disk(json!({"size": "1Gi", "pool": declared}), json!({"pool": "site", "formerHost": former}));
        let volume = volume(GIB).volume.expect("a volume");
        is_earlier(&back, "h", &VolumeFacts { pool: pool.to_owned(), ..volume })
    };
    assert!(found("fast", "site", Some("h0")), "the disk went to the pool `site` on h0");
    assert!(!found("site", "site", Some("h0")), "it was taken, and is not reported yet");
    assert!(!found("fast", "fast", Some("h0")), "it was taken and moved on");
    assert!(!found("fast", "site", None), "it has moved before a crash");
}

/// The copy of a volume from host h0.
fn fetch(pull: Option<Pull>) -> DiskCopy {
    let arrival = berth_host::Arrival { vm: "u".to_owned(), epoch: 5 };
    let new = berth_host::NewFetch {
        pool: "default".to_owned(),
        id: "v-1".to_owned(),
        from: "h0".to_owned(),
        size: GIB,
        base: None,
        thick: false,
        owner: new_owner(&disk(json!({"size": "1Gi"}), json!({}))),
        arrival: arrival.clone(),
    };
    let arriving = Arriving {
        namespace: "ns".to_owned(),
        disk: "d".to_owned(),
        pool: "default".to_owned(),
        volume: "v-1".to_owned(),
        from: "h0".to_owned(),
        arrival,
    };
    let wanted = Wanted::Fetch(arriving, Details(Box::new(new)));
    DiskCopy { has_arrived: false, wanted: Some(Box::new(wanted)), pull }
}

#[test]
fn a_disk_that_another_host_has_is_copied_from_there_and_its_mark_stays_until_the_copy_is_whole() {
    let left = |spec| disk(spec, json!({"size": "1Gi", "formerHost": "h0"}));
    let blank = left(json!({"size": "1Gi"}));
    let see = |pull| Observed { fetch: Some(fetch(pull)), ..Observed::default() };
    let mark = |seen: &Observed| {
        let readiness = plan(&blank, seen).readiness;
        status(&blank, seen, &readiness, Timestamp::UNIX_EPOCH).former_host
    };
    let starts = plan(&blank, &see(None));
    let wanted = || fetch(None).wanted.map(|wanted| *wanted).expect("set");
    assert_eq!((starts.steps, starts.readiness.reason()), (vec![Step::Fetch(wanted())], Reason::Moving));
    let running = see(Some(Pull::Running { done: GIB / 2, total: Some(GIB), rate: None, followed: false }));
    let goes_on = plan(&blank, &running);
    assert_eq!(goes_on.steps, [Step::FollowMove(wanted())]);
    assert!(goes_on.readiness.message().contains("from host h0 (50 %)"), "{goes_on:?}");
    let no_route = Readiness::Reconciling(Reason::Retrying, "no route".to_owned());
    let again = Some(Duration::from_secs(4));
    let failed = see(Some(Pull::Failed { readiness: no_route, again }));
    let waits = plan(&blank, &failed);
    assert_eq!((waits.steps.len(), waits.readiness.reason()), (0, Reason::Retrying));
    assert!(waits.readiness.message().contains("no route. Its VM can move on"), "{waits:?}");
    for seen in [see(None), running, failed] {
        assert_eq!(mark(&seen).as_deref(), Some("h0"), "{seen:?}");
    }
    let unadmitted = Observed { user_waits: true, ..see(None) };
    assert!(plan(&blank, &unadmitted).steps.is_empty(), "its VM may yet go elsewhere");
    let of_image = plan(
        &left(json!({"size": "1Gi", "image": "debian"})),
        &Observed { fetch: see(None).fetch, ..cached(GIB) },
    );
    let [Step::Fetch(Wanted::Fetch(_, Details(new)))] = &of_image.steps[..] else { panic!("{of_image:?}") };
    assert_eq!(new.base.as_deref(), Some("ab"));
    // The agent that has copied it stops before it reports that.
    let arrived = Observed { fetch: Some(DiskCopy { has_arrived: true, ..fetch(None) }), ..volume(GIB) };
    assert!(plan(&blank, &arrived).steps.is_empty());
    assert_eq!(mark(&arrived), None, "this host has the data");
    let gone = plan(&deleted(blank.clone()), &see(None));
    assert!(gone.steps.is_empty(), "its data is on h0, which removes it: {gone:?}");
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
                shared: false,
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
}

#[test]
fn a_copy_in_another_pool_is_a_full_copy_in_the_background_and_waits_for_its_snapshot() {
    let copy = disk(json!({"source": {"snapshot": "before"}}), json!({}));
    let seen = |facts| Observed { source: Some(LocalSource::Snapshot(Some(facts))), ..Observed::default() };
    let elsewhere = || seen(taken("fast", GIB, true));
    let waits = plan(&copy, &seen(taken("fast", GIB, false)));
    assert_eq!((waits.steps.len(), reason(&waits)), (0, (false, Reason::WaitingForSnapshot)));
    let starts = plan(&copy, &elsewhere());
    let [Step::StartFill(Wanted::Fill(_, id, Details(work)))] = &starts.steps[..] else {
        panic!("{starts:?}")
    };
    let from = Fill::Snapshot { pool: "fast".into(), id: "s-1".into() };
    assert_eq!((id.as_str(), work.0.snapshot.as_deref(), &work.1), ("v-1", None, &from));
    let running = Some(Pull::Running { done: GIB / 2, total: Some(GIB), rate: None, followed: false });
    let follows = plan(&copy, &Observed { filling: running, ..elsewhere() });
    assert!(matches!(follows.steps[..], [Step::FollowFill(_)]), "{follows:?}");
    assert!(follows.readiness.message().contains("from the pool fast (50 %)"), "{follows:?}");
    let unadmitted = Observed { user_waits: true, ..elsewhere() };
    assert!(plan(&copy, &unadmitted).steps.is_empty(), "its VM may yet go elsewhere");
    let small =
        plan(&disk(json!({"source": {"snapshot": "before"}, "size": "1Mi"}), json!({})), &elsewhere());
    assert_eq!((small.steps.len(), reason(&small)), (0, (true, Reason::DiskSmallerThanImage)));
    let declared =
        disk(json!({"source": {"snapshot": "before"}, "encryption": {"keyClass": "k"}}), json!({}));
    let refused = plan(&declared, &elsewhere());
    assert_eq!((refused.steps.len(), reason(&refused)), (0, (true, Reason::NotSupported)));
    assert!(refused.readiness.message().contains("pool fast"), "{refused:?}");
    // Of a Disk, the snapshot is taken in the pool of that one.
    let of_disk = disk(json!({"source": {"disk": "other"}}), json!({}));
    let other = || {
        let facts = volume(GIB).volume.expect("set");
        Some(Box::new(VolumeFacts { id: "v-2".into(), pool: "fast".into(), ..facts }))
    };
    let see = |snapshot| Observed {
        source: Some(LocalSource::Disk { volume: other(), snapshot }),
        ..Observed::default()
    };
    let taking = plan(&of_disk, &see(None));
    assert!(matches!(&taking.steps[..], [Step::TakeSnapshot(new)] if new.pool == "fast"), "{taking:?}");
    let copied = plan(&of_disk, &see(Some(taken("fast", GIB, true))));
    assert!(matches!(copied.steps[..], [Step::StartFill(_)]), "{copied:?}");
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

#[test]
fn a_full_clone_and_a_formatted_disk_are_made_in_the_background_and_never_again() {
    let formatted =
        || disk(json!({"size": "1Gi", "filesystem": {"type": "ext4", "label": "data"}}), json!({}));
    let starts = plan(&formatted(), &Observed::default());
    let [Step::StartFill(wanted)] = &starts.steps[..] else { panic!("{starts:?}") };
    let Wanted::Fill(namespace, id, Details(work)) = wanted else { panic!("{wanted:?}") };
    assert_eq!((namespace.as_str(), id.as_str(), work.0.size), ("ns", "v-1", Some(GIB)));
    let label = Some("data".to_owned());
    let kind = berth_host::FilesystemKind::Ext4;
    assert_eq!(work.1, Fill::Filesystem(berth_host::NewFilesystem { kind, label }));
    let running = |followed| Some(Pull::Running { done: 0, total: None, rate: None, followed });
    let follows = plan(&formatted(), &Observed { filling: running(false), ..Observed::default() });
    assert!(matches!(follows.steps[..], [Step::FollowFill(_)]), "{follows:?}");
    let goes_on = plan(&formatted(), &Observed { filling: running(true), ..Observed::default() });
    assert_eq!((goes_on.steps.len(), reason(&goes_on)), (0, (false, Reason::Provisioning)));
    let readiness = Readiness::Stalled(Reason::NotSupported, "mkfs.ext4 is missing".into());
    let failed = Observed { filling: Some(Pull::Failed { readiness, again: None }), ..Observed::default() };
    assert_eq!(reason(&plan(&formatted(), &failed)), (true, Reason::NotSupported));
    let unadmitted = Observed { user_waits: true, ..Observed::default() };
    assert!(plan(&formatted(), &unadmitted).steps.is_empty(), "its VM may yet go elsewhere");
    let made = Observed { filling: running(true), ..volume(GIB) };
    assert!(plan(&formatted(), &made).steps.is_empty(), "its file is there");
    let lost = disk(json!({"size": "1Gi", "filesystem": {"type": "ext4"}}), json!({"size": "1Gi"}));
    assert_eq!(reason(&plan(&lost, &Observed::default())), (true, Reason::DiskLost), "it had a file");

    let full = || disk(json!({"image": "debian", "cloneMode": "Full"}), json!({}));
    let starts = plan(&full(), &cached(GIB));
    let [Step::StartFill(Wanted::Fill(_, _, Details(work)))] = &starts.steps[..] else {
        panic!("{starts:?}")
    };
    assert_eq!((work.0.base.as_deref(), &work.1), (Some("ab"), &Fill::Image));
    let in_ceph = Observed { is_in_ceph: true, ..cached(GIB) };
    let plain = plan(&disk(json!({"image": "debian"}), json!({})), &in_ceph);
    assert!(matches!(plain.steps[..], [Step::Create(_)]), "a clone in Ceph: {plain:?}");
    let encrypted = disk(json!({"image": "debian", "encryption": {}}), json!({}));
    let copied = plan(&encrypted, &in_ceph);
    let [Step::StartFill(Wanted::Fill(_, _, Details(work)))] = &copied.steps[..] else {
        panic!("{copied:?}")
    };
    assert_eq!((work.0.base.as_deref(), &work.1), (Some("ab"), &Fill::Image));
    let running = Some(Pull::Running { done: GIB / 2, total: Some(GIB), rate: None, followed: true });
    let half = plan(&encrypted, &Observed { filling: running, is_in_ceph: true, ..cached(GIB) });
    assert_eq!(half.readiness.message(), "its image is being copied (50 %)");
    let overlay = plan(&encrypted, &cached(GIB));
    assert!(matches!(overlay.steps[..], [Step::Create(_)]), "a file of its own above the image: {overlay:?}");
    let absent = Observed { image: Some(LocalImage::Absent(source())), ..Observed::default() };
    assert!(matches!(plan(&full(), &absent).steps[..], [Step::Pull(_)]), "the image comes first");
    let deleted = plan(&deleted(full()), &Observed { is_restoring: true, ..Observed::default() });
    assert_eq!(deleted.steps, [Step::CancelRestore("v-1".into())]);
}

#[test]
fn the_data_of_a_raw_file_is_copied_and_a_qcow2_file_becomes_the_disk() {
    let of_file = |source: Value| plan(&disk(json!({"source": source}), json!({})), &Observed::default());
    let starts = of_file(json!({"file": "/srv/a.img", "format": "raw"}));
    let [Step::StartFill(Wanted::Fill(_, _, Details(work)))] = &starts.steps[..] else {
        panic!("{starts:?}")
    };
    assert_eq!((&work.0.file, &work.1), (&None, &Fill::RawFile("/srv/a.img".into())));
    assert!(work.0.owner.source.as_ref().is_some_and(|source| source.raw), "for berth undelete");
    for source in [json!({"file": "/srv/a.qcow2"}), json!({"file": "/srv/a.qcow2", "format": "qcow2"})] {
        let taken = of_file(source);
        let [Step::Create(new)] = &taken.steps[..] else { panic!("{taken:?}") };
        assert_eq!(new.file.as_deref(), Some(std::path::Path::new("/srv/a.qcow2")));
    }
}

#[test]
fn a_disk_whose_file_is_based_on_nothing_goes_to_another_host_as_it_is() {
    let based_on = |spec: Value, seen: &Observed| {
        let left = disk(spec, json!({"size": "1Gi", "pool": "site", "formerHost": "h0"}));
        let taken = plan(&left, seen);
        let [Step::Take(new)] = &taken.steps[..] else { panic!("{taken:?}") };
        let copied = plan(&left, &Observed { fetch: Some(fetch(None)), ..seen.clone() });
        let [Step::Fetch(Wanted::Fetch(_, Details(copy)))] = &copied.steps[..] else { panic!("{copied:?}") };
        assert_eq!(new.base, copy.base);
        new.base.clone()
    };
    for spec in [
        json!({"size": "1Gi", "pool": "site", "image": "debian", "cloneMode": "Full"}),
        // Their size is that of their data.
        json!({"pool": "site", "source": {"backup": "b"}}),
        json!({"pool": "site", "source": {"file": "/srv/a.qcow2"}}),
    ] {
        assert_eq!(based_on(spec.clone(), &Observed::default()), None, "{spec}");
    }
    let linked = || json!({"pool": "site", "image": "debian"});
    assert_eq!(based_on(linked(), &cached(GIB)).as_deref(), Some("ab"));
    let in_ceph = Observed { is_in_ceph: true, ..Observed::default() };
    assert_eq!(based_on(linked(), &in_ceph), None, "it waits for no file of the image on its next host");
}
