//! Images that are made from disks and snapshots, and images that are uploaded.

use std::cell::RefCell;

use berth_api::{Disk, Image, ImageState};
use serde_json::json;

use crate::faults::Fault;
use crate::rig::{self, Rig, converges};
use crate::{all_is_deleted, web_is_declared, web_runs};

fn is_image_ready(image: &Image) -> bool {
    image.status.as_ref().is_some_and(|status| status.state == Some(ImageState::Ready))
}

async fn images_of_disk_and_snapshot_are_there(rig: &Rig) {
    rig.apply("Image", "golden", json!({"source": {"snapshot": "before"}})).await;
    rig.apply("Image", "current", json!({"source": {"disk": "web-root"}})).await;
    rig.apply("Disk", "copy", json!({"image": "golden"})).await;
    for image in ["golden", "current"] {
        rig.until(image, "is made", is_image_ready).await;
    }
}

#[test]
fn an_image_is_made_from_a_disk_and_from_a_snapshot_once() {
    converges(&[Fault::Error, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        rig.until("before", "is taken", rig::is_taken).await;
        rig.strike_from_here();
        images_of_disk_and_snapshot_are_there(rig).await;
        assert_eq!(rig.pid("web").await, pid, "its VM runs on");
        assert_eq!(rig.system.leftovers().images.len(), 3, "the image below the disk, and one of each");
    });
}

#[test]
fn an_image_with_another_token_is_made_anew_and_a_disk_of_its_former_content_keeps_that() {
    converges(&[Fault::Error, Fault::CrashAfter], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("Image", "current", json!({"source": {"disk": "web-root"}})).await;
        rig.until("current", "is made", is_image_ready).await;
        rig.apply("Disk", "copy", json!({"image": "current"})).await;
        let has_file = |disk: &Disk| disk.status.as_ref().is_some_and(|status| status.size.is_some());
        rig.until("copy", "has a file", has_file).await;
        rig.strike_from_here();
        rig.apply("Image", "current", json!({"source": {"disk": "web-root", "token": "2"}})).await;
        let is_anew = |image: &Image| {
            let token = image.status.as_ref().and_then(|status| status.token.as_deref());
            is_image_ready(image) && token == Some("2") && image.digest().is_some()
        };
        rig.until("current", "is made anew", is_anew).await;
        rig.must_settle().await;
        assert_eq!(
            rig.system.leftovers().images.len(),
            3,
            "the image below the disk, the former content and the new one"
        );
    });
}

#[test]
fn images_that_were_made_go_with_their_objects_and_their_disks() {
    converges(&[], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        images_of_disk_and_snapshot_are_there(rig).await;
        rig.must_settle().await;
        rig.delete("Disk", "copy").await;
        for (kind, name) in [("Image", "golden"), ("Image", "current"), ("DiskSnapshot", "before")] {
            rig.delete(kind, name).await;
            rig.until_gone(kind, name).await;
        }
        all_is_deleted(rig).await;
    });
}

#[test]
fn an_image_that_was_made_is_the_same_when_its_status_was_lost_or_it_was_created_anew() {
    converges(&[], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("DiskSnapshot", "before", json!({"disk": "web-root"})).await;
        images_of_disk_and_snapshot_are_there(rig).await;
        let images = || rig.system.leftovers().images;
        let before = images();
        rig.lose_every_status().await;
        rig.until("golden", "is known again", is_image_ready).await;
        rig.until("current", "is known again", is_image_ready).await;
        assert_eq!(images(), before);
        rig.must_settle().await;
    });
}

/// The bytes of an image for the fake host, and their SHA-256.
const PUSHED: (&[u8], &str) =
    (b"QFI\xfb", "aea9800e5252b7172c533c82ffd26e6a670c060332a5c9aec024e37951772b53");

/// Declares an image that is uploaded, and uploads it. The host has no server for uploads: real sockets let paused time jump.
async fn image_is_uploaded(rig: &Rig) {
    let (bytes, sha256) = PUSHED;
    rig.apply("Image", "pushed", json!({"source": {"upload": {"size": bytes.len()}, "sha256": sha256}}))
        .await;
    let uid = RefCell::default();
    let is_awaited = |image: &Image| {
        uid.replace(image.metadata.uid.clone().unwrap_or_default());
        let conditions = image.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        berth_api::condition::find(&conditions, "Ready")
            .is_some_and(|ready| ready.reason == "ImageNotAllowed")
    };
    rig.until("pushed", "is awaited", is_awaited).await;
    rig.system.put_upload(&uid.take(), bytes);
    // The agent that crashed after the last byte of an upload verifies it when it starts again.
    rig.restart().await;
    rig.until("pushed", "is verified", is_image_ready).await;
}

#[test]
fn an_uploaded_image_is_verified_after_any_crash() {
    converges(&[Fault::Error, Fault::CrashAfter], async |rig| {
        image_is_uploaded(rig).await;
        assert_eq!((rig.system.leftovers().images.len(), rig.system.uploads_now()), (1, 0));
    });
}

#[test]
fn a_disk_of_an_uploaded_image_is_bound_where_it_is_and_both_go() {
    converges(&[], async |rig| {
        image_is_uploaded(rig).await;
        rig.apply("Disk", "copy", json!({"image": "pushed"})).await;
        let is_made = |disk: &Disk| disk.status.as_ref().is_some_and(|status| status.binding.is_some());
        rig.until("copy", "is bound where the image is", is_made).await;
        assert_eq!(rig.system.leftovers().images, [PUSHED.1]);
        rig.delete("Disk", "copy").await;
        rig.until_gone("Disk", "copy").await;
        rig.delete("Image", "pushed").await;
        rig.until_gone("Image", "pushed").await;
    });
}

#[test]
fn an_uploaded_image_is_the_same_when_its_status_was_lost_or_it_was_created_anew() {
    converges(&[], async |rig| {
        image_is_uploaded(rig).await;
        rig.lose_every_status().await;
        rig.until("pushed", "is known again", is_image_ready).await;
        rig.make_everything_anew(true).await;
        rig.until("pushed", "is taken over", is_image_ready).await;
        assert_eq!(rig.system.leftovers().images, [PUSHED.1]);
        rig.must_settle().await;
    });
}
