//! The images of disks: their checksums, and what is reported when one cannot be used.

use std::time::Duration;

use berth_api::{Disk, DiskSnapshot, Image, VM};
use berth_host::fake::FakeSource;
use berth_qemu::machine::Format;
use serde_json::json;

use crate::fixture::{Fixture, HOST, IMAGE_URL, ROOT, SHA256, bound, disk_bound, reason_of};

use super::{disk_reason, running_with_snapshot, size};

#[tokio::test(start_paused = true)]
async fn an_image_of_sha512_is_in_the_report_of_its_host() {
    let fixture = Fixture::start().await;
    let digest = "c".repeat(128);
    let url = "http://images.example/sha512.qcow2";
    let source = FakeSource {
        sha256: digest.clone(),
        format: Format::Qcow2,
        virtual_size: 1 << 30,
        bytes: 1,
        refused: None,
    };
    fixture.system.add_source(url, source);
    let spec = json!({"source": {"url": url, "sha512": digest}});
    fixture.make::<Image>("debian", spec, Some(bound())).await;
    fixture.make::<Disk>("root", json!({"image": "debian", "size": "4Gi"}), Some(disk_bound(ROOT))).await;
    fixture.until::<Disk>("root", |disk| disk_reason(disk) == "Available").await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(fixture.host().await.status.expect("reported").images, [digest]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_smaller_than_its_image_says_so() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture
        .make::<Disk>(
            "tiny",
            json!({"image": "debian", "size": "1Gi"}),
            Some(disk_bound("v-00000000000000b1")),
        )
        .await;
    fixture.until::<Disk>("tiny", |d| disk_reason(d) == "DiskSmallerThanImage").await;
    fixture.change::<Disk>("tiny", json!({"size": "3Gi"})).await;
    fixture.until::<Disk>("tiny", size("3Gi")).await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_checksum_stalls_the_image_and_is_downloaded_once() {
    let fixture = Fixture::start().await;
    let source = FakeSource {
        sha256: "bb".into(),
        format: Format::Qcow2,
        virtual_size: 1 << 30,
        bytes: 1 << 20,
        refused: None,
    };
    fixture.system.add_source(IMAGE_URL, source);
    let spec = json!({"source": {"url": IMAGE_URL, "sha256": SHA256}});
    fixture
        .make::<Image>(
            "debian",
            spec,
            Some(json!({"observedGeneration": 0, "binding": {"host": HOST, "epoch": 1}})),
        )
        .await;
    let reason = |wanted: &'static str| {
        move |i: &Image| i.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "Ready") == wanted)
    };
    fixture.until::<Image>("debian", reason("ChecksumMismatch")).await;
    fixture.assert_quiet().await;
    assert_eq!(fixture.system.pulls(), 1);
    // A mirror that has the right bytes.
    let source = FakeSource {
        sha256: SHA256.into(),
        format: Format::Qcow2,
        virtual_size: 1 << 30,
        bytes: 1 << 20,
        refused: None,
    };
    fixture.system.add_source("http://mirror.example/d", source);
    fixture.change::<Image>("debian", json!({"source": {"url": "http://mirror.example/d"}})).await;
    fixture.until::<Image>("debian", reason("Verified")).await;
}

#[tokio::test(start_paused = true)]
async fn a_checksum_is_read_from_a_file_once_and_kept() {
    const SUMS: &str = "http://images.example/SHA256SUMS";
    let fixture = Fixture::start().await;
    fixture.furnish_source();
    let spec = json!({"source": {"url": IMAGE_URL, "checksumUrl": SUMS}});
    let bound = json!({"observedGeneration": 0, "binding": {"host": HOST, "epoch": 1}});
    fixture.make::<Image>("debian", spec, Some(bound)).await;
    let reason = |wanted: &'static str| {
        move |i: &Image| i.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "Ready") == wanted)
    };
    fixture.until::<Image>("debian", reason("ImageNotFound")).await;
    fixture.system.add_checksum(SUMS, SHA256);
    let image = fixture.until::<Image>("debian", reason("Verified")).await;
    assert_eq!(image.digest(), Some(SHA256));
    // Another version is published: disks are still created from this one.
    fixture.system.add_checksum(SUMS, &"b".repeat(64));
    fixture.make::<Disk>("later", json!({"image": "debian"}), Some(disk_bound("v-00000000000000b1"))).await;
    let later = fixture.until::<Disk>("later", |d| !disk_reason(d).is_empty() && d.status.is_some()).await;
    assert_ne!(disk_reason(&later), "ChecksumMismatch");
    fixture.assert_quiet().await;
    let image = fixture.until::<Image>("debian", reason("Verified")).await;
    assert_eq!(image.status.and_then(|s| s.checksum).as_deref(), Some(SHA256));
    assert_eq!(fixture.system.pulls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_not_there_yet_is_tried_again() {
    let fixture = Fixture::start().await;
    let spec = json!({"source": {"url": IMAGE_URL, "sha256": SHA256}});
    fixture
        .make::<Image>(
            "debian",
            spec,
            Some(json!({"observedGeneration": 0, "binding": {"host": HOST, "epoch": 1}})),
        )
        .await;
    let reason = |wanted: &'static str| {
        move |i: &Image| i.status.as_ref().is_some_and(|s| reason_of(&s.conditions, "Ready") == wanted)
    };
    fixture.until::<Image>("debian", reason("ImageNotFound")).await;
    fixture.furnish_source();
    fixture.until::<Image>("debian", reason("Verified")).await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_only_a_snapshot_is_based_on_stays_and_is_no_failure_of_the_host() {
    let fixture = running_with_snapshot().await;
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    fixture.set_retention(60).await;
    fixture.delete::<Disk>("root").await;
    fixture.until_gone::<Disk>("root").await;
    fixture.delete::<Image>("debian").await;
    // After failures, a host looks again after minutes only.
    tokio::time::sleep(Duration::from_secs(1200)).await;
    let attempts = || fixture.system.calls().get("remove_image").copied().unwrap_or_default();
    let before = attempts();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(attempts() >= before + 8, "{before} {}", attempts());
    assert_eq!(fixture.system.leftovers().images, [SHA256]);
    fixture.delete::<DiskSnapshot>("before").await;
    fixture.until_gone::<DiskSnapshot>("before").await;
    tokio::time::sleep(Duration::from_secs(130)).await;
    assert!(fixture.system.leftovers().images.is_empty());
}
