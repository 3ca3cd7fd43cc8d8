use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::{ImageState, Reason};
use berth_host::{Compression, Encoding, ImageFacts, ResolvedImage, SnapshotFacts, Taken};
use berth_qemu::machine::{ForeignFormat, Format};
use serde_json::json;

use super::local::LocalImage;
use super::observe::Upload;
use super::plan::progress;
use super::*;
use crate::pulls::Pull;
use crate::recorder::EventType;

fn image() -> Image {
    serde_json::from_value(json!({
        "metadata": {"name": "debian", "namespace": "ns", "generation": 2},
        "spec": {"source": {"url": "http://x/d.qcow2", "sha256": "ab"}},
        "status": {"observedGeneration": -1, "binding": {"host": "h", "epoch": 1}},
    }))
    .expect("an image")
}

fn cached() -> Observed {
    let facts = ImageFacts {
        digest: "ab".into(),
        format: Format::Qcow2,
        encoding: Encoding::default(),
        virtual_size: 2 << 30,
        bytes: 700,
        path: "/images/ab".into(),
        readers: BTreeSet::from(["ns".into()]),
        made_for: BTreeSet::new(),
    };
    Observed { cached: Some(facts), ..Observed::default() }
}

fn report(observed: &Observed) -> ImageStatus {
    let plan = ImageReconciler::plan(&image(), observed);
    ImageReconciler::status(&image(), observed, &plan.readiness, Timestamp::UNIX_EPOCH)
}

#[test]
fn an_image_nobody_has_is_pulled_once() {
    let plan = ImageReconciler::plan(&image(), &Observed::default());
    assert_eq!(plan.steps, [Step::Pull(wanted_by(&image()).expect("it has a URL"))]);
    let running = Observed {
        pull: Some(Pull::Running { done: 0, total: None, rate: None, followed: true }),
        ..Observed::default()
    };
    assert_eq!(ImageReconciler::plan(&image(), &running).steps, []);
}

#[test]
fn a_verified_image_is_ready_with_its_sizes() {
    let status = report(&cached());
    assert_eq!(status.state, Some(ImageState::Ready));
    assert_eq!(status.virtual_size.as_deref(), Some("2Gi"));
    assert_eq!((status.bytes, status.observed_generation), (Some(700), 2));
    assert_eq!(status.conditions[0].reason, "Verified");
}

#[test]
fn a_wrong_checksum_stalls_and_is_not_tried_again_by_itself() {
    let readiness = Readiness::Stalled(Reason::ChecksumMismatch, "has another checksum".into());
    let observed = Observed { pull: Some(Pull::Failed { readiness, again: None }), ..Observed::default() };
    let plan = ImageReconciler::plan(&image(), &observed);
    assert_eq!((plan.steps.len(), plan.requeue_after), (0, None));
    assert_eq!(report(&observed).state, Some(ImageState::Failed));
}

#[test]
fn a_step_does_not_show_what_a_url_is_signed_with() {
    let mut signed = image();
    signed.spec.source.url = Some("https://me:canary-1@a.example/d?X-Signature=canary-2".into());
    let text = format!("{:?}", ImageReconciler::plan(&signed, &Observed::default()).steps);
    assert!(text.contains("a.example/d") && !text.contains("canary"), "{text}");
    signed.spec.source.sha256 = None;
    signed.spec.source.checksum_url = Some("https://a.example/SUMS?X-Signature=canary-3".into());
    let text = format!("{:?}", ImageReconciler::plan(&signed, &Observed::default()).steps);
    assert!(text.contains("a.example/SUMS") && !text.contains("canary"), "{text}");
}

#[test]
fn the_first_checksum_that_was_read_is_kept() {
    let mut image = image();
    image.spec.source.sha256 = None;
    image.spec.source.checksum_url = Some("https://a.example/SHA512SUMS".into());
    assert!(matches!(wanted_by(&image), Some(Wanted::Checksum(_))));
    let found = |digest: &str| Observed {
        pull: Some(Pull::Found(ResolvedImage { digest: digest.into(), media_type: None })),
        ..Observed::default()
    };
    let now = Timestamp::UNIX_EPOCH;
    let readiness = ImageReconciler::plan(&image, &found("cd")).readiness;
    let status = ImageReconciler::status(&image, &found("cd"), &readiness, now);
    assert_eq!((status.checksum.as_deref(), status.state), (Some("cd"), Some(ImageState::Pulling)));
    image.status = Some(status);
    let Some(Wanted::Image(source)) = wanted_by(&image) else { panic!("the checksum is known") };
    assert_eq!(source.digest, "cd");
    assert_eq!(
        ImageReconciler::status(&image, &found("ef"), &readiness, now).checksum.as_deref(),
        Some("cd")
    );
}

#[test]
fn an_image_that_trusts_its_first_bytes_has_their_checksum_computed_and_enforced() {
    let mut image = image();
    let spec = json!({"source": {"url": "https://x/d.qcow2?sig=canary", "trustOnFirstUse": true}});
    image.spec = serde_json::from_value(spec).expect("a spec");
    let Some(Wanted::Checksum(source)) = wanted_by(&image) else { panic!("there is none yet") };
    let bytes = source.computed_from().expect("it is computed");
    assert_eq!(
        (bytes.url.as_str(), bytes.shown.as_str()),
        ("https://x/d.qcow2?sig=canary", "https://x/d.qcow2?…")
    );
    image.status.get_or_insert_default().checksum = Some("cd".into());
    let Some(Wanted::Image(source)) = wanted_by(&image) else { panic!("the checksum is known") };
    assert_eq!(source.digest, "cd");
}

#[test]
fn progress_is_told_in_twentieths() {
    assert_eq!(progress(149, Some(1000), "downloaded"), "10 % downloaded");
    assert_eq!(progress(150, Some(1000), "downloaded"), "15 % downloaded");
    assert_eq!(progress(7, None, "downloaded"), "being downloaded");
    assert_eq!(progress(7, Some(0), "uploaded"), "being uploaded");
}

#[test]
fn a_running_download_has_a_rate() {
    let message = |rate| {
        let pull = Some(Pull::Running { done: 450, total: Some(1000), rate, followed: true });
        let plan = ImageReconciler::plan(&image(), &Observed { pull, ..Observed::default() });
        plan.readiness.message().to_owned()
    };
    assert_eq!(message(None), "45 % downloaded");
    assert_eq!(message(Some(12 << 20)), "45 % downloaded, 12 MiB/s");
    assert_eq!(message(Some(100 << 10)), "45 % downloaded, 100 KiB/s");
}

#[test]
fn the_end_of_a_download_and_its_failures_are_events() {
    let with_pull = |pull| report(&Observed { pull: Some(pull), ..Observed::default() });
    let running = with_pull(Pull::Running { done: 1, total: None, rate: None, followed: true });
    let readiness = Readiness::Reconciling(Reason::Retrying, "HTTP 503".into());
    let failed = with_pull(Pull::Failed { readiness, again: None });
    let event = |stored: &ImageStatus, status: &ImageStatus| ImageReconciler::event(Some(stored), status);
    assert_eq!(event(&running, &running), None);
    assert_eq!(event(&running, &failed), Some((EventType::Warning, Reason::Retrying, "HTTP 503".to_owned())));
    assert_eq!(event(&failed, &failed), None);
    let done = report(&cached());
    let note = "its file of 700 bytes was verified".to_owned();
    assert_eq!(event(&failed, &done), Some((EventType::Normal, Reason::Verified, note)));
    assert_eq!(event(&done, &done), None);
}

#[test]
fn a_compressed_image_of_a_foreign_format_is_qcow2_on_the_host() {
    let mut image = image();
    let spec = json!({"source": {"url": "http://x/d.vmdk.xz", "sha256": "ab"}, "format": "vmdk", "compression": "xz"});
    image.spec = serde_json::from_value(spec).expect("a spec");
    let Some(Wanted::Image(source)) = wanted_by(&image) else { panic!("the checksum is known") };
    let encoding = Encoding {
        compression: Some(Compression::Xz),
        foreign: Some(ForeignFormat::Vmdk),
        ..Encoding::default()
    };
    assert_eq!((source.format, source.encoding), (Format::Qcow2, encoding));
}

#[test]
fn each_disk_of_an_ova_has_a_file_of_its_own_by_the_same_checksum() {
    let ova = |number: Option<u8>| {
        let mut image = image();
        let spec = json!({"source": {"url": "http://x/a.ova", "sha256": "ab".repeat(32)}, "format": "ova", "ovaDisk": number});
        image.spec = serde_json::from_value(spec).expect("a spec");
        let Some(Wanted::Image(source)) = wanted_by(&image) else { panic!("the checksum is known") };
        assert_eq!(Some(source.stored_digest()), image.stored_digest(), "both sides name it alike");
        assert_eq!((source.format, source.encoding.foreign), (Format::Qcow2, Some(ForeignFormat::Vmdk)));
        assert_eq!(source.digest, "ab".repeat(32));
        (source.encoding.ova, source.stored_digest())
    };
    assert_eq!(ova(None), (Some(0), "ab".repeat(32)));
    assert_eq!(ova(Some(1)), (Some(1), format!("aa{}", "ab".repeat(31))));
    assert_eq!(ova(Some(2)), (Some(2), format!("a9{}", "ab".repeat(31))));
}

#[test]
fn the_layer_of_a_container_disk_is_unpacked_as_its_media_type_says() {
    let mut image = image();
    let spec = json!({"source": {"url": "oci://r.example/disks/debian:13"}});
    image.spec = serde_json::from_value(spec).expect("a spec");
    let Some(Wanted::Checksum(source)) = wanted_by(&image) else { panic!("the layer is not known") };
    assert_eq!(source.url, "oci://r.example/disks/debian:13");
    for (media_type, compression, archive) in [
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", Some(Compression::Gzip), true),
        ("application/vnd.oci.image.layer.v1.tar+gzip", Some(Compression::Gzip), true),
        ("application/vnd.oci.image.layer.v1.tar+zstd", Some(Compression::Zstd), true),
        ("application/vnd.oci.image.layer.v1.tar", None, true),
        ("application/vnd.example.disk+zstd", Some(Compression::Zstd), false),
        ("application/octet-stream", None, false),
    ] {
        let mut status = image.status.clone().expect("a status");
        (status.checksum, status.media_type) = (Some("cd".into()), Some(media_type.into()));
        image.status = Some(status);
        let Some(Wanted::Image(source)) = wanted_by(&image) else { panic!("the layer is known") };
        assert_eq!(source.encoding, Encoding { compression, archive, ..Encoding::default() }, "{media_type}");
    }
}

/// An image of a disk, bound and not made.
fn made_image() -> Image {
    serde_json::from_value(json!({
        "metadata": {"name": "golden", "namespace": "ns", "uid": "u", "generation": 1},
        "spec": {"source": {"disk": "web"}},
        "status": {"observedGeneration": -1, "binding": {"host": "h", "epoch": 1}, "snapshotID": "i-u", "volumeID": "v-1", "pool": "fast"},
    }))
    .expect("an image")
}

fn taken() -> SnapshotFacts {
    SnapshotFacts {
        encryption: None,
        pool: "fast".into(),
        id: "i-u".into(),
        volume: "v-1".into(),
        size: 1 << 30,
        owner: None,
        taken: Some(Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false }),
    }
}

fn seen(has_volume: bool, snapshot: Option<SnapshotFacts>) -> Observed {
    Observed { has_volume, snapshot, ..Observed::default() }
}

#[test]
fn an_image_of_a_disk_is_made_from_a_snapshot_of_it() {
    let image = made_image();
    let first = ImageReconciler::plan(&image, &seen(true, None));
    let [Step::TakeSnapshot(new)] = first.steps.as_slice() else { panic!("{first:?}") };
    assert_eq!((new.id.as_str(), new.volume.as_str(), new.owner.is_none()), ("i-u", "v-1", true));
    let then = ImageReconciler::plan(&image, &seen(false, Some(taken())));
    let [Step::Pull(Wanted::Made(new))] = then.steps.as_slice() else { panic!("{then:?}") };
    assert_eq!((new.uid.as_str(), new.pool.as_str(), new.shown.as_str()), ("u", "fast", "Disk web"));
    assert_eq!(
        (then.readiness.reason(), then.readiness.message()),
        (Reason::Provisioning, "being made from Disk web")
    );
    let status = ImageReconciler::status(&image, &seen(true, None), &first.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(status.state, Some(ImageState::Creating));
}

#[test]
fn the_content_of_another_token_is_other_work_and_the_former_one_is_not_reported_for_it() {
    let mut image = made_image();
    image.spec.source.token = Some("2".into());
    let waits = ImageReconciler::plan(&image, &cached());
    assert_eq!((waits.steps.len(), waits.readiness.reason()), (0, Reason::Pending));
    image.status.as_mut().expect("a status").token = Some("2".into());
    let Some(Wanted::Made(new)) = wanted_by(&image) else { panic!("it is to be made") };
    assert_eq!(new.uid, image.content_id("u"));
    assert_ne!(new.uid, "u");
    image.spec.source =
        serde_json::from_value(json!({"url": "oci://r.example/a", "token": "2"})).expect("a source");
    let Some(Wanted::Checksum(source)) = wanted_by(&image) else { panic!("the layer is not known") };
    assert_eq!(source.token.as_deref(), Some("2"), "what was read before does not count");
}

#[test]
fn a_copy_of_an_image_has_the_file_of_that_one_and_needs_it_no_more_then() {
    let mut copy = image();
    copy.spec.source = serde_json::from_value(json!({"image": "golden"})).expect("a source");
    assert!(wanted_by(&copy).is_none(), "its checksum is that of the other one, which is not known yet");
    copy.status.as_mut().expect("a status").checksum = Some("ab".into());
    let Some(Wanted::Image(own)) = wanted_by(&copy) else { panic!("it has a checksum") };
    assert_eq!((own.digest.as_str(), own.url.as_str()), ("ab", ""));
    let Some(Wanted::Image(source)) = wanted_by(&image()) else { panic!("it has a checksum") };
    let plan = |original| {
        ImageReconciler::plan(&copy, &Observed { original: Some(original), ..Observed::default() })
    };
    let absent = plan(LocalImage::Absent(source.clone()));
    assert_eq!(absent.steps, [Step::Pull(Wanted::Image(source))], "it went from the cache");
    let text = "Image golden is being downloaded";
    assert_eq!((absent.readiness.reason(), absent.readiness.message()), (Reason::Pulling, text));
    let gone = plan(LocalImage::Missing);
    assert_eq!((gone.steps.len(), gone.readiness.reason()), (0, Reason::ImageLost));
    let complete = ImageReconciler::plan(&copy, &cached());
    assert_eq!((complete.steps.len(), complete.readiness.reason()), (0, Reason::Verified));
}

#[test]
fn the_namespace_of_a_copy_becomes_a_reader_of_a_file_that_another_one_shares_with_it() {
    let mut copy = image();
    copy.metadata.namespace = Some("team".into());
    let source = json!({"image": "debian", "imageNamespace": "ns"});
    copy.spec.source = serde_json::from_value(source).expect("a source");
    copy.status.as_mut().expect("a status").checksum = Some("ab".into());
    let facts = cached().cached.expect("it is there");
    let original = Some(LocalImage::Cached(facts.clone()));
    let plan = ImageReconciler::plan(&copy, &Observed { original, ..Observed::default() });
    assert_eq!(plan.steps, [Step::AddReader { digest: "ab".into(), namespace: "team".into() }]);
    let absent = ImageReconciler::plan(
        &copy,
        &Observed { original: Some(LocalImage::Missing), ..Observed::default() },
    );
    assert_eq!((absent.steps.len(), absent.readiness.reason()), (0, Reason::ImageLost));

    let mut own = copy.clone();
    own.metadata.namespace = Some("ns".into());
    let original = Some(LocalImage::Cached(facts));
    let plan = ImageReconciler::plan(&own, &Observed { original, ..Observed::default() });
    assert_eq!(plan.steps, [], "it reads the file as an image of the same namespace");
}

#[test]
fn a_host_gives_a_copy_the_file_of_an_image_that_is_shared_and_has_the_same_checksum() {
    let mut copy = image();
    copy.metadata.namespace = Some("team".into());
    copy.spec.source =
        serde_json::from_value(json!({"image": "debian", "imageNamespace": "ns"})).expect("a source");
    copy.status.as_mut().expect("a status").checksum = Some("ab".into());
    let mut original = image();
    assert!(!observe::is_given_to(&original, &copy), "it is not shared");
    original.spec.shared_with = vec!["team".into()];
    assert!(observe::is_given_to(&original, &copy));
    original.spec.source.sha256 = Some("cd".into());
    assert!(!observe::is_given_to(&original, &copy), "it is another one of that name");
    let mut own = copy.clone();
    own.metadata.namespace = Some("ns".into());
    original.spec = image().spec;
    assert!(observe::is_given_to(&original, &own), "of the same namespace");
}

#[test]
fn a_host_makes_nothing_of_a_disk_that_another_namespace_does_not_share() {
    let mut image = made_image();
    image.metadata.namespace = Some("team".into());
    image.spec.source =
        serde_json::from_value(json!({"disk": "web", "diskNamespace": "ns"})).expect("a source");
    let mut disk: Disk = serde_json::from_value(
        json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": {"size": "1Gi"}}),
    )
    .expect("a disk");
    assert!(!observe::is_granted(&image, Some(&disk), None) && !observe::is_granted(&image, None, None));
    disk.spec.shared_with = vec!["team".into()];
    assert!(observe::is_granted(&image, Some(&disk), None));
    let refused = ImageReconciler::plan(&image, &Observed::default());
    assert_eq!((refused.steps.len(), refused.readiness.reason()), (0, Reason::DiskLost));
    assert!(refused.readiness.message().contains("shared no more"), "{refused:?}");
}

#[test]
fn no_image_is_made_of_an_encrypted_disk_and_no_snapshot_is_taken_for_it() {
    for observed in [seen(true, None), seen(false, Some(taken()))] {
        let refused = ImageReconciler::plan(&made_image(), &Observed { is_encrypted: true, ..observed });
        assert_eq!((refused.steps.len(), refused.readiness.reason()), (0, Reason::NotSupported));
        assert!(refused.readiness.message().contains("Disk web is encrypted"), "{refused:?}");
    }
}

#[test]
fn an_image_whose_disk_or_snapshot_went_before_it_was_made_says_so() {
    let gone = ImageReconciler::plan(&made_image(), &seen(false, None));
    assert!(
        gone.steps.is_empty() && gone.readiness.message().contains("Disk web was deleted before"),
        "{gone:?}"
    );
    assert_eq!(gone.readiness.reason(), Reason::DiskLost);
    let mut image = made_image();
    image.spec.source = serde_json::from_value(json!({"snapshot": "before"})).expect("a source");
    image.status.as_mut().expect("a status").volume_id = None;
    let gone = ImageReconciler::plan(&image, &seen(false, None));
    assert_eq!((gone.steps.len(), gone.readiness.reason()), (0, Reason::SnapshotLost));
    let lost = Observed { lost: Some(Reason::DiskLost), ..Observed::default() };
    let lost = ImageReconciler::plan(&made_image(), &lost).readiness;
    assert!(matches!(&lost, Readiness::Stalled(_, text) if text.contains("file of Disk web is gone")));
}

#[test]
fn an_image_that_was_made_is_never_made_again() {
    let mut image = made_image();
    image.status.as_mut().expect("a status").checksum = Some("ab".into());
    let lost = ImageReconciler::plan(&image, &seen(true, Some(taken())));
    assert!(
        matches!(lost.readiness, Readiness::Stalled(Reason::ImageLost, _)) && lost.steps.is_empty(),
        "{lost:?}"
    );
    let plan = ImageReconciler::plan(&image, &cached());
    assert_eq!((plan.steps.len(), plan.readiness.reason()), (0, Reason::Verified));
    let status =
        ImageReconciler::status(&image, &Observed::default(), &lost.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!((status.checksum.as_deref(), status.state), (Some("ab"), Some(ImageState::Failed)));
}

/// An image that is uploaded, of ten bytes.
fn pushed_image() -> Image {
    serde_json::from_value(json!({
        "metadata": {"name": "pushed", "namespace": "ns", "uid": "u", "generation": 1},
        "spec": {"source": {"upload": {"size": 10}, "sha256": "ab"}},
        "status": {"observedGeneration": -1, "binding": {"host": "h", "epoch": 1}},
    }))
    .expect("an image")
}

fn arrived(bytes: u64) -> Upload {
    let server =
        berth_api::vm::ConsoleAddress { address: "192.0.2.1:7444".into(), certificate_sha256: "ab".into() };
    Upload { bytes, obstacle: None, server: Some(server) }
}

fn with_upload(upload: Upload) -> Observed {
    Observed { upload: Some(upload), ..Observed::default() }
}

#[test]
fn an_upload_is_awaited_and_verified_once_it_is_whole() {
    let image = pushed_image();
    let half = with_upload(arrived(5));
    let plan = ImageReconciler::plan(&image, &half);
    assert_eq!((plan.steps.len(), plan.readiness.reason()), (0, Reason::WaitingForUpload));
    assert_eq!(plan.readiness.message(), "50 % uploaded");
    let status = ImageReconciler::status(&image, &half, &plan.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!((status.downloaded_bytes, status.state), (Some(5), Some(ImageState::Pending)));
    assert!(status.upload.is_some_and(|server| server.address == "192.0.2.1:7444"));
    let plan = ImageReconciler::plan(&image, &with_upload(arrived(10)));
    let [Step::Pull(Wanted::Image(source))] = plan.steps.as_slice() else { panic!("{plan:?}") };
    assert_eq!((source.upload(), source.digest.as_str()), (Some("u"), "ab"));
    let ready = ImageReconciler::plan(&image, &cached());
    assert_eq!((ready.steps.len(), ready.readiness.reason()), (0, Reason::Verified));
    let status = ImageReconciler::status(&image, &cached(), &ready.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!((status.state, status.upload), (Some(ImageState::Ready), None));
}

#[test]
fn an_upload_that_this_host_cannot_take_or_has_lost_says_so() {
    let mut image = pushed_image();
    let full = Readiness::Stalled(Reason::NoSpace, "no space left".into());
    let full = Upload { bytes: 0, obstacle: Some(full), server: None };
    let plan = ImageReconciler::plan(&image, &with_upload(full));
    assert!(plan.readiness.reason() == Reason::NoSpace && plan.requeue_after.is_some(), "{plan:?}");
    let none = ImageReconciler::plan(&image, &with_upload(Upload { server: None, ..arrived(0) }));
    assert!(matches!(none.readiness, Readiness::Stalled(Reason::ImageNotAllowed, _)), "{none:?}");
    let readiness = Readiness::Stalled(Reason::ChecksumMismatch, "has another checksum".into());
    let failed = Observed { pull: Some(Pull::Failed { readiness, again: None }), ..with_upload(arrived(0)) };
    let plan = ImageReconciler::plan(&image, &failed);
    assert_eq!((plan.steps.len(), plan.readiness.reason()), (0, Reason::ChecksumMismatch));
    image.status.as_mut().expect("a status").virtual_size = Some("1Gi".into());
    let lost = ImageReconciler::plan(&image, &with_upload(arrived(0)));
    assert!(matches!(lost.readiness, Readiness::Stalled(Reason::ImageLost, _)), "{lost:?}");
    let again = ImageReconciler::plan(&image, &with_upload(arrived(3)));
    assert_eq!(again.readiness.reason(), Reason::WaitingForUpload);
}

/// An image that is complete on host h, which serves it.
fn served(mut image: Image) -> Image {
    let status = image.status.get_or_insert_default();
    status.checksum = Some("ab".into());
    status.virtual_size = Some("1Gi".into());
    status.server = arrived(0).server;
    status.download = arrived(0).server;
    image
}

#[test]
fn another_host_copies_a_complete_image_from_its_host() {
    let Some(Wanted::Image(own)) = wanted_on("h", &served(made_image())) else { panic!("it is made") };
    assert_eq!((own.url.as_str(), own.host), ("", None), "it is here");
    let Some(Wanted::Image(copy)) = wanted_on("h2", &served(made_image())) else { panic!("it is made") };
    assert_eq!((copy.digest.as_str(), copy.url.as_str()), ("ab", "copy:u"));
    let host = copy.host.expect("it is served");
    assert_eq!((host.name.as_str(), host.address.as_str()), ("h", "192.0.2.1:7444"));
    assert!(host.audience.ends_with("/u") && host.path.ends_with("/file"), "{host:?}");
    assert_eq!(wanted_on("h2", &made_image()), None, "it is not made");
    let mut unserved = served(pushed_image());
    unserved.status.as_mut().expect("a status").server = None;
    let Some(Wanted::Image(copy)) = wanted_on("h2", &unserved) else { panic!("the checksum is declared") };
    assert_eq!((copy.url.as_str(), copy.host), ("copy:u", None), "a copy that is here is used");
    assert_eq!(wanted_on("h2", &image()), wanted_by(&image()), "no host serves it");
}

#[test]
fn another_host_copies_an_image_with_a_url_and_knows_where_to_download_it() {
    let mut image = served(image());
    image.metadata.uid = Some("u".into());
    let Some(Wanted::Image(copy)) = wanted_on("h2", &image) else { panic!("the checksum is declared") };
    assert_eq!(copy.host.as_ref().map(|host| host.name.as_str()), Some("h"));
    assert!(copy.url == "http://x/d.qcow2" && copy.is_downloadable(), "{copy:?}");
    let absent = LocalImage::Absent(copy);
    let plan = local::ready("debian", &absent, |fetch, _| fetch).expect_err("it is not here");
    assert_eq!(plan.readiness.message(), "Image debian is being copied from host h, or else downloaded");
    let Some(Wanted::Image(own)) = wanted_on("h", &image) else { panic!("the checksum is declared") };
    assert_eq!(own.host, None, "it is here");
    image.spec.compression = Some(ImageCompression::Xz);
    let Some(Wanted::Image(unpacked)) = wanted_on("h2", &image) else { panic!("the checksum is declared") };
    assert_eq!(unpacked.host, None, "its host has other bytes");
}

#[test]
fn a_host_waits_for_the_download_of_another_one_unless_that_fails() {
    let with_reason = |reason: &str| {
        let mut image = image();
        let ready = json!([{"type": "Ready", "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": "1970-01-01T00:00:00Z"}]);
        image.status.get_or_insert_default().conditions = serde_json::from_value(ready).expect("conditions");
        image
    };
    for begun in ["Pending", "Pulling"] {
        let (host, _) = local::downloader("h2", &with_reason(begun)).expect("it downloads");
        assert_eq!(host, "h", "{begun}");
        assert_eq!(local::downloader("h", &with_reason(begun)), None);
    }
    let waits = LocalImage::Elsewhere("h".into(), Duration::from_secs(9));
    let plan = local::ready("debian", &waits, |fetch, _| fetch).expect_err("it is not here");
    assert_eq!((plan.steps.len(), plan.readiness.reason()), (0, Reason::Pulling));
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(9)));
    assert_eq!(local::downloader("h2", &with_reason("Retrying")), None);
    assert_eq!(local::downloader("h2", &image()), None, "its host has reported nothing");
    let mut verified = with_reason("Pulling");
    verified.status.get_or_insert_default().virtual_size = Some("1Gi".into());
    assert_eq!(local::downloader("h2", &verified), None);
    let mut compressed = with_reason("Pulling");
    compressed.spec.compression = Some(ImageCompression::Gzip);
    assert_eq!(local::downloader("h2", &compressed), None, "it is not copied");
}

#[test]
fn a_verified_image_with_a_url_is_not_downloaded_again_for_its_own_sake() {
    let mut image = image();
    image.status.get_or_insert_default().virtual_size = Some("1Gi".into());
    for pull in [None, Some(Pull::Running { done: 1, total: None, rate: None, followed: false })] {
        let plan = ImageReconciler::plan(&image, &Observed { pull, ..Observed::default() });
        assert!(matches!(plan.readiness, Readiness::Ready(Reason::Verified, _)), "{plan:?}");
        assert_eq!(plan.steps, []);
    }
}

#[test]
fn the_server_of_an_image_is_reported_while_it_is_complete() {
    let server = arrived(0).server;
    let status = |observed: &Observed| {
        let plan = ImageReconciler::plan(&served(pushed_image()), observed);
        let image = served(pushed_image());
        let status = ImageReconciler::status(&image, observed, &plan.readiness, Timestamp::UNIX_EPOCH);
        (status.server, status.download)
    };
    let both = Observed { server: server.clone(), download: server.clone(), ..cached() };
    assert_eq!(status(&both), (server.clone(), server.clone()));
    let on_loopback = Observed { download: server.clone(), ..cached() };
    assert_eq!(status(&on_loopback), (None, server));
    assert_eq!(status(&with_upload(arrived(0))), (None, None), "its file is gone");
}

#[test]
fn an_object_that_waits_for_a_copy_names_the_host() {
    let Some(Wanted::Image(copy)) = wanted_on("h2", &served(made_image())) else { panic!("it is made") };
    let absent = LocalImage::Absent(copy);
    let plan = local::ready("golden", &absent, |fetch, _| fetch).expect_err("it is not here");
    assert_eq!(plan.readiness.message(), "Image golden is being copied from host h");
    assert_eq!(plan.steps, [local::Fetch::Pull]);
}

#[test]
fn an_object_whose_image_is_served_by_no_host_names_the_remedy() {
    let mut unserved = served(pushed_image());
    unserved.status.as_mut().expect("a status").server = None;
    let message = |image: &Image| {
        let Some(Wanted::Image(copy)) = wanted_on("h2", image) else { panic!("the checksum is declared") };
        let obstacle = local::obstacle("h2", image, &copy).expect("it is not served");
        let plan = local::ready("pushed", &obstacle, |fetch, _| fetch).expect_err("it is not here");
        assert_eq!(plan.readiness.reason(), Reason::WaitingForImage);
        plan.readiness.message().to_owned()
    };
    let text = message(&unserved);
    assert!(text.contains("on host h, which does not serve it") && text.contains("--no-console"), "{text}");
    unserved.spec.compression = Some(ImageCompression::Xz);
    assert!(message(&unserved).contains("is on host h only, and cannot be copied"));
}

#[test]
fn an_object_whose_image_is_lost_is_stalled_also_while_its_status_has_a_server() {
    for reason in ["ImageLost", "HostFenced"] {
        let mut image = served(made_image());
        let Some(Wanted::Image(copy)) = wanted_on("h2", &image) else { panic!("it is made") };
        assert_eq!(local::obstacle("h2", &image, &copy), None, "it is copied");
        let stalled = json!([{"type": "Stalled", "status": "True", "reason": reason, "message": "gone for good",
            "lastTransitionTime": "1970-01-01T00:00:00Z"}]);
        image.status.as_mut().expect("a status").conditions =
            serde_json::from_value(stalled).expect("conditions");
        let lost = local::obstacle("h2", &image, &copy).expect("it is lost");
        let plan = local::ready("golden", &lost, |fetch, _| fetch).expect_err("it is not here");
        let Readiness::Stalled(found, message) = &plan.readiness else { panic!("{plan:?}") };
        assert_eq!((found.as_str(), message.as_str()), (reason, "Image golden: on host h: gone for good"));
        assert!(plan.steps.is_empty() && plan.requeue_after.is_none());
    }
}
