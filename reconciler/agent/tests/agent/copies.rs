//! Copies of images to other hosts: which host gets one. On real sockets, and therefore in real time.

use berth_api::console::{
    COPY_ACCOUNT, UPLOAD_ACCOUNT, copy_audience, copy_path, further_copy_audience, upload_audience,
};
use berth_api::image_copy::{CopyMessage, query};
use berth_api::manifests::access::account_name;
use berth_api::{Disk, Image, SYSTEM_NAMESPACE, VM};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::consoles::{SOON, Site};
use crate::fixture::{IMAGE_URL, SHA256, bound, reason_of};

/// The bytes of a qcow2 image for the fake host, some MiB.
pub(crate) fn content(seed: u8) -> Vec<u8> {
    let mut bytes = b"QFI\xfb".to_vec();
    bytes.extend((0..3 << 20).map(|n: u32| n.to_le_bytes()[0] ^ seed));
    bytes
}

/// An agent of h1 that has the image `pushed`, and accounts of hosts h2 and h3.
async fn site() -> (Site, Image) {
    let site = Site::start().await;
    let accounts: Api<ServiceAccount> = Api::namespaced(site.fixture.client.clone(), SYSTEM_NAMESPACE);
    for name in [account_name("h2"), account_name("h3"), COPY_ACCOUNT.to_owned()] {
        let mut account = ServiceAccount::default();
        account.metadata.name = Some(name);
        accounts.create(&PostParams::default(), &account).await.expect("created");
    }
    let image = uploaded(&site, "pushed", &content(0)).await;
    (site, image)
}

/// Declares an image of these bytes, which have arrived.
pub(crate) async fn uploaded(site: &Site, name: &str, bytes: &[u8]) -> Image {
    let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let source = json!({"upload": {"size": bytes.len()}, "sha256": sha256});
    let image = site.fixture.make::<Image>(name, json!({"source": source}), None).await;
    site.fixture.system.put_upload(&image.uid().expect("a uid"), bytes);
    let patch = Patch::Merge(json!({"status": bound()}));
    let images = site.fixture.api::<Image>();
    images.patch_status(name, &PatchParams::default(), &patch).await.expect("bound");
    let is_ready = |image: &Image| {
        image.status.as_ref().is_some_and(|status| reason_of(&status.conditions, "Ready") == "Verified")
    };
    site.fixture.until::<Image>(name, is_ready).await
}

/// Declares an object that names an image, bound to h2.
fn on_h2() -> Value {
    json!({"observedGeneration": 0, "binding": {"host": "h2", "epoch": 1}})
}

async fn ticket(site: &Site, account: &str, image: &Image) -> String {
    let audience = copy_audience("ns", &image.name_any(), &image.uid().expect("a uid"));
    site.token(SYSTEM_NAMESPACE, account, audience).await
}

/// Returns a ticket for a copy from a host that is not the image's own.
async fn further_ticket(site: &Site, from: &str, account: &str, image: &Image) -> String {
    let audience = copy_audience("ns", &image.name_any(), &image.uid().expect("a uid"));
    site.token(SYSTEM_NAMESPACE, account, further_copy_audience(&audience, from)).await
}

fn path(image: &Image, host: &str, offset: usize) -> String {
    format!("{}?{}", copy_path("ns", &image.name_any()), query(host, offset as u64))
}

/// Returns the size and the bytes that the host sends.
async fn copied(site: &Site, path: &str, ticket: &str) -> (u64, Vec<u8>) {
    let (mut stream, head) = site.request(path, ticket).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut sent = Vec::new();
    timeout(SOON, stream.read_to_end(&mut sent)).await.expect("in time").expect("a whole file");
    let end = sent.iter().position(|byte| *byte == b'\n').expect("a line");
    let CopyMessage::Size(size) = serde_json::from_slice(&sent[..end]).expect("a message");
    (size, sent.split_off(end + 1))
}

#[tokio::test]
async fn a_host_copies_the_image_of_a_disk_that_is_bound_to_it_until_the_disk_has_a_file() {
    let (site, image) = site().await;
    let published = image.status.as_ref().and_then(|status| status.server.clone()).expect("published");
    assert_eq!(published.address, site.address());
    let (h2, bytes) = (account_name("h2"), content(0));
    let answer = site.refused(&path(&image, "h2", 0), &ticket(&site, &h2, &image).await).await;
    assert!(answer.starts_with("403 host h2 needs no copy"), "{answer}");
    site.fixture.make::<Disk>("copy", json!({"image": "pushed"}), Some(on_h2())).await;
    let whole = copied(&site, &path(&image, "h2", 0), &ticket(&site, &h2, &image).await).await;
    assert!(whole == (bytes.len() as u64, bytes.clone()), "{} bytes", whole.1.len());
    let rest = copied(&site, &path(&image, "h2", 5), &ticket(&site, &h2, &image).await).await;
    assert!(rest.1 == bytes[5..], "{} bytes", rest.1.len());
    let beyond = copied(&site, &path(&image, "h2", bytes.len() + 1), &ticket(&site, &h2, &image).await).await;
    assert_eq!(beyond, (bytes.len() as u64, Vec::new()));
    // A host without an account of its own.
    let whole = copied(&site, &path(&image, "h2", 0), &ticket(&site, COPY_ACCOUNT, &image).await).await;
    assert_eq!(whole.1.len(), bytes.len());

    let made = Patch::Merge(json!({"status": {"size": "1Gi"}}));
    let disks = site.fixture.api::<Disk>();
    disks.patch_status("copy", &PatchParams::default(), &made).await.expect("reported");
    let answer = site.refused(&path(&image, "h2", 0), &ticket(&site, &h2, &image).await).await;
    assert!(answer.starts_with("403 host h2 needs no copy"), "{answer}");
    let drive = json!({"class": "small", "disks": [{"name": "copy", "boot": true}],
        "cdroms": [{"name": "a", "image": "pushed"}]});
    site.fixture.make::<VM>("with-a-drive", drive, Some(on_h2())).await;
    let medium = copied(&site, &path(&image, "h2", 0), &ticket(&site, &h2, &image).await).await;
    assert_eq!(medium.1.len(), bytes.len());
}

#[tokio::test]
async fn a_ticket_is_for_one_copy_of_one_image_to_one_host_that_needs_it() {
    let (site, image) = site().await;
    let other = uploaded(&site, "other", &content(1)).await;
    site.fixture.make::<Disk>("copy", json!({"image": "pushed"}), Some(on_h2())).await;
    let (h2, h3) = (account_name("h2"), account_name("h3"));
    let of_h2 = path(&image, "h2", 0);
    let upload = upload_audience("ns", "pushed", &image.uid().expect("a uid"));
    let former = copy_audience("ns", "pushed", "u-before");
    for (token, is_for) in [
        (ticket(&site, &h2, &other).await, "another image"),
        (ticket(&site, &h3, &image).await, "another host"),
        (site.token(SYSTEM_NAMESPACE, &h2, upload).await, "an upload"),
        (site.token(SYSTEM_NAMESPACE, &h2, former).await, "a former image of this name"),
        (
            site.token("ns", UPLOAD_ACCOUNT, copy_audience("ns", "pushed", &image.uid().expect("a uid")))
                .await,
            "an account of a tenant",
        ),
    ] {
        let answer = site.refused(&of_h2, &token).await;
        assert!(answer.starts_with("403 the ticket is not valid"), "{is_for}: {answer}");
    }
    let answer = site.refused(&path(&image, "h3", 0), &ticket(&site, &h3, &image).await).await;
    assert!(answer.starts_with("403 host h3 needs no copy"), "{answer}");
    let answer = site.refused(&path(&other, "h2", 0), &ticket(&site, &h2, &other).await).await;
    assert!(answer.starts_with("403 host h2 needs no copy"), "{answer}");
    let once = ticket(&site, &h2, &image).await;
    copied(&site, &of_h2, &once).await;
    assert!(site.refused(&of_h2, &once).await.starts_with("403 the ticket was used before"));
    for wrong in ["", "?host=h2", "?offset=0", "?host=../h2&offset=0", "?host=h2&offset=x"] {
        let path = format!("{}{wrong}", copy_path("ns", "pushed"));
        let answer = site.refused(&path, &ticket(&site, &h2, &image).await).await;
        assert!(answer.starts_with("400 "), "{wrong}: {answer}");
    }
    // Its file is not the one that its checksum is of.
    let spec = json!({"source": {"url": IMAGE_URL, "sha256": SHA256}, "compression": "xz"});
    site.fixture.make::<Image>("unpacked", spec, Some(bound())).await;
    site.fixture.make::<Disk>("downloaded", json!({"image": "unpacked"}), Some(on_h2())).await;
    let is_seen = |image: &Image| image.status.as_ref().is_some_and(|status| !status.conditions.is_empty());
    let unpacked = site.fixture.until::<Image>("unpacked", is_seen).await;
    let answer = site.refused(&path(&unpacked, "h2", 0), &ticket(&site, &h2, &unpacked).await).await;
    assert!(answer.starts_with("404 the image is not on this host"), "{answer}");
}

#[tokio::test]
async fn a_host_that_has_a_verified_image_with_a_url_serves_it_too() {
    let (site, _) = site().await;
    let spec = || json!({"source": {"url": IMAGE_URL, "sha256": SHA256}});
    let on_h2 = |size: Option<&str>| {
        let mut status = on_h2();
        status["virtualSize"] = json!(size);
        Some(status)
    };
    let verified = site.fixture.make::<Image>("verified", spec(), on_h2(Some("1Gi"))).await;
    let unverified = site.fixture.make::<Image>("unverified", spec(), on_h2(None)).await;
    for name in ["verified", "unverified"] {
        let disk = json!({"observedGeneration": 0, "binding": {"host": "h3", "epoch": 1}});
        site.fixture.make::<Disk>(name, json!({"image": name}), Some(disk)).await;
    }
    let h3 = account_name("h3");
    // This host has the file for the disk of its VM. After this image it has seen those that were declared before.
    uploaded(&site, "later", &content(2)).await;
    let of_h3 = path(&verified, "h3", 0);
    copied(&site, &of_h3, &further_ticket(&site, "h1", &h3, &verified).await).await;
    for (token, is_for) in [
        (ticket(&site, &h3, &verified).await, "the image's own host, or one that passes it on"),
        (further_ticket(&site, "h4", &h3, &verified).await, "another host that has the file"),
    ] {
        let answer = site.refused(&of_h3, &token).await;
        assert!(answer.starts_with("403 the ticket is not valid"), "{is_for}: {answer}");
    }
    let of_unverified = further_ticket(&site, "h1", &h3, &unverified).await;
    let answer = site.refused(&path(&unverified, "h3", 0), &of_unverified).await;
    assert!(answer.starts_with("404 the image is not on this host"), "{answer}");
    let of_h2 = further_ticket(&site, "h1", &account_name("h2"), &verified).await;
    let answer = site.refused(&path(&verified, "h2", 0), &of_h2).await;
    assert!(answer.starts_with("403 host h2 needs no copy"), "{answer}");
}

#[tokio::test]
async fn a_host_copies_a_few_images_at_a_time() {
    let (site, _) = site().await;
    // More than the buffers on the way take.
    let image = uploaded(&site, "large", &content(1).repeat(11)).await;
    site.fixture.make::<Disk>("copy", json!({"image": "large"}), Some(on_h2())).await;
    let h2 = account_name("h2");
    let mut open = Vec::new();
    for _ in 0..4 {
        let (stream, head) = site.request(&path(&image, "h2", 0), &ticket(&site, &h2, &image).await).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        open.push(stream);
    }
    let answer = site.refused(&path(&image, "h2", 0), &ticket(&site, &h2, &image).await).await;
    assert!(answer.starts_with("429 host h2 copies 4 images"), "{answer}");
}
