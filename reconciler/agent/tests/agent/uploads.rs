//! Uploads of images by clients with a ticket. On real sockets, and therefore in real time.

use std::time::Duration;

use berth_api::console::{UPLOAD_ACCOUNT, upload_audience, upload_path};
use berth_api::image_upload::UploadMessage;
use berth_api::{Image, ImageState};
use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::consoles::{SOON, Site};
use crate::fixture::{bound, reason_of};

type Stream = TlsStream<TcpStream>;

/// The bytes of a qcow2 image for the fake host, some MiB.
fn content() -> Vec<u8> {
    let mut bytes = b"QFI\xfb".to_vec();
    bytes.extend((0..3 << 20).map(|n: u32| n.to_le_bytes()[0]));
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Declares an image of these bytes, bound to the host.
async fn declare(site: &Site, name: &str, bytes: &[u8]) -> Image {
    let source = json!({"upload": {"size": bytes.len()}, "sha256": sha256(bytes)});
    site.fixture.make::<Image>(name, json!({"source": source}), Some(bound())).await
}

fn reason(image: &Image) -> String {
    image.status.as_ref().map(|status| reason_of(&status.conditions, "Ready")).unwrap_or_default()
}

async fn until(site: &Site, name: &str, wanted: &str) -> Image {
    site.fixture.until::<Image>(name, |image| reason(image) == wanted).await
}

async fn ticket(site: &Site, image: &Image) -> String {
    let audience = upload_audience("ns", &image.name_any(), &image.uid().expect("a uid"));
    site.token("ns", UPLOAD_ACCOUNT, audience).await
}

/// Opens an upload; returns the number of bytes that the host has.
async fn open(site: &Site, image: &Image) -> (Stream, u64) {
    let path = upload_path("ns", &image.name_any());
    let (mut stream, head) = site.request(&path, &ticket(site, image).await).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let UploadMessage::Offset(offset) = message(&mut stream).await else { panic!("no offset") };
    (stream, offset)
}

async fn message(stream: &mut Stream) -> UploadMessage {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        line.push(timeout(SOON, stream.read_u8()).await.expect("in time").expect("a message"));
    }
    serde_json::from_slice(&line).expect("a message")
}

/// Uploads these bytes as a whole.
async fn upload(site: &Site, image: &Image, bytes: &[u8]) -> UploadMessage {
    let (mut stream, offset) = open(site, image).await;
    let rest = &bytes[usize::try_from(offset).expect("small")..];
    // The host may close the connection: its message says why.
    let _ = stream.write_all(rest).await;
    let _ = stream.flush().await;
    message(&mut stream).await
}

async fn refused(site: &Site, image: &Image) -> String {
    site.refused(&upload_path("ns", &image.name_any()), &ticket(site, image).await).await
}

/// Waits until the host has some bytes of an upload.
async fn arrived(site: &Site, least: u64) -> u64 {
    for _ in 0..400 {
        let bytes = site.fixture.system.uploads_now();
        if bytes >= least {
            return bytes;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("never {least} bytes: {}", site.fixture.system.uploads_now())
}

#[tokio::test]
async fn an_upload_that_breaks_off_continues_after_a_crash_of_the_agent() {
    let mut site = Site::start().await;
    let bytes = content();
    let image = declare(&site, "pushed", &bytes).await;
    let waiting = until(&site, "pushed", "WaitingForUpload").await.status.expect("reported");
    assert_eq!(waiting.upload.map(|server| server.address), Some(site.address()));
    assert_eq!(waiting.conditions[0].message, "0 % uploaded");
    let (mut stream, offset) = open(&site, &image).await;
    assert_eq!(offset, 0);
    stream.write_all(&bytes[..2 << 20]).await.expect("sent");
    stream.flush().await.expect("sent");
    let before = arrived(&site, 2 << 20).await;
    let answer = refused(&site, &image).await;
    assert!(answer.starts_with("429 another upload of this image is in progress"), "{answer}");
    site.restart_agent().await;
    drop(stream);
    let published = |image: &Image| {
        let server = image.status.as_ref().and_then(|status| status.upload.as_ref());
        server.is_some_and(|server| server.address == site.address())
    };
    site.fixture.until::<Image>("pushed", published).await;
    let (mut stream, offset) = open(&site, &image).await;
    assert_eq!(offset, before);
    stream.write_all(&bytes[usize::try_from(offset).expect("small")..]).await.expect("sent");
    stream.flush().await.expect("sent");
    assert_eq!(message(&mut stream).await, UploadMessage::Received);
    let ready = until(&site, "pushed", "Verified").await.status.expect("reported");
    assert_eq!((ready.state, ready.upload.is_none()), (Some(ImageState::Ready), true));
    assert_eq!(ready.bytes, i64::try_from(bytes.len()).ok());
    assert_eq!(site.fixture.system.uploads_now(), 0);
    let (mut stream, offset) = open(&site, &image).await;
    assert_eq!((offset, message(&mut stream).await), (bytes.len() as u64, UploadMessage::Received));
}

#[tokio::test]
async fn wrong_bytes_are_refused_and_the_upload_can_be_repeated() {
    let site = Site::start().await;
    let bytes = content();
    let image = declare(&site, "pushed", &bytes).await;
    until(&site, "pushed", "WaitingForUpload").await;
    let mut wrong = bytes.clone();
    wrong[1 << 20] ^= 1;
    assert_eq!(upload(&site, &image, &wrong).await, UploadMessage::Received);
    let failed = until(&site, "pushed", "ChecksumMismatch").await.status.expect("reported");
    assert!(failed.upload.is_some(), "it can be repeated");
    assert_eq!(failed.state, Some(ImageState::Failed));
    assert_eq!(upload(&site, &image, &bytes).await, UploadMessage::Received);
    until(&site, "pushed", "Verified").await;

    let text = b"no qcow2 image at all".to_vec();
    let image = declare(&site, "text", &text).await;
    until(&site, "text", "WaitingForUpload").await;
    assert_eq!(upload(&site, &image, &text).await, UploadMessage::Received);
    until(&site, "text", "ImageInvalid").await;
    assert_eq!(site.fixture.system.uploads_now(), 0, "bytes that never become an image are not kept");
}

#[tokio::test]
async fn a_ticket_is_for_one_upload_of_one_image() {
    let site = Site::start().await;
    let image = declare(&site, "pushed", &content()).await;
    let other = declare(&site, "other", b"QFI\xfb other").await;
    until(&site, "pushed", "WaitingForUpload").await;
    until(&site, "other", "WaitingForUpload").await;
    let path = upload_path("ns", "pushed");
    let of_other = site.refused(&path, &ticket(&site, &other).await).await;
    assert!(of_other.starts_with("403 the ticket is not valid"), "{of_other}");
    let audience = upload_audience("ns", "pushed", &image.uid().expect("a uid"));
    let of_console = site.token("ns", "berth-console", audience.clone()).await;
    assert!(site.refused(&path, &of_console).await.starts_with("403 "));
    let of_former = site.token("ns", UPLOAD_ACCOUNT, upload_audience("ns", "pushed", "u-before")).await;
    assert!(site.refused(&path, &of_former).await.starts_with("403 "));
    let once = site.token("ns", UPLOAD_ACCOUNT, audience).await;
    let (stream, head) = site.request(&path, &once).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    drop(stream);
    let again = site.refused(&path, &once).await;
    assert!(again.starts_with("403 the ticket was used before"), "{again}");
    let unknown = upload_audience("ns", "none", "");
    let unknown = site.token("ns", UPLOAD_ACCOUNT, unknown).await;
    assert!(site.refused(&upload_path("ns", "none"), &unknown).await.starts_with("404 "));
    let debian = site.fixture.until::<Image>("debian", |_| true).await;
    let answer = refused(&site, &debian).await;
    assert!(answer.starts_with("400 the image has another source"), "{answer}");
}

#[tokio::test]
async fn an_upload_has_the_declared_size_and_fits_on_the_host() {
    let site = Site::start().await;
    let bytes = content();
    let space = |free: u64| site.fixture.system.change_facts(|facts| facts.storage_free_bytes = free);
    space(1 << 20);
    let image = declare(&site, "pushed", &bytes).await;
    let full = until(&site, "pushed", "NoSpace").await.status.expect("reported");
    assert!(full.conditions[0].message.contains("no space left"), "{full:?}");
    let answer = refused(&site, &image).await;
    assert!(answer.starts_with("507 no space left"), "{answer}");
    space(1 << 40);
    until(&site, "pushed", "WaitingForUpload").await;
    let (mut stream, _) = open(&site, &image).await;
    stream.write_all(&bytes[..1 << 20]).await.expect("sent");
    stream.flush().await.expect("sent");
    let before = arrived(&site, 1 << 20).await;
    // Full in the middle: what has arrived stays.
    space(before);
    let _ = stream.write_all(&bytes[1 << 20..]).await;
    let _ = stream.flush().await;
    let UploadMessage::Error(text) = message(&mut stream).await else { panic!("there is no space") };
    assert!(text.contains("no space left"), "{text}");
    assert_eq!(site.fixture.system.uploads_now(), before);
    space(1 << 40);
    until(&site, "pushed", "WaitingForUpload").await;
    let mut more = bytes.clone();
    more.extend_from_slice(b"beyond the declared size");
    assert_eq!(upload(&site, &image, &more).await, UploadMessage::Received);
    let ready = until(&site, "pushed", "Verified").await.status.expect("reported");
    assert_eq!(ready.bytes, i64::try_from(bytes.len()).ok());
}

#[tokio::test]
async fn a_file_that_is_lost_can_be_uploaded_again_and_goes_with_its_image() {
    let site = Site::start().await;
    let bytes = content();
    let image = declare(&site, "pushed", &bytes).await;
    until(&site, "pushed", "WaitingForUpload").await;
    upload(&site, &image, &bytes).await;
    until(&site, "pushed", "Verified").await;
    site.fixture.system.lose_image(&sha256(&bytes));
    // Anything has the image looked at again.
    site.fixture.change::<Image>("pushed", json!({"deletionProtection": false})).await;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let params = kube::api::PatchParams::default();
    let patch: kube::api::Patch<Value> = kube::api::Patch::Merge(label);
    site.fixture.api::<Image>().patch("pushed", &params, &patch).await.expect("changed");
    let lost = until(&site, "pushed", "ImageLost").await.status.expect("reported");
    assert_eq!(lost.state, Some(ImageState::Failed));
    upload(&site, &image, &bytes).await;
    until(&site, "pushed", "Verified").await;

    let half = declare(&site, "half", &[&bytes[..], b"2"].concat()).await;
    until(&site, "half", "WaitingForUpload").await;
    let (mut stream, _) = open(&site, &half).await;
    stream.write_all(&bytes[..1 << 20]).await.expect("sent");
    stream.flush().await.expect("sent");
    arrived(&site, 1 << 20).await;
    site.fixture.delete::<Image>("half").await;
    site.fixture.until_gone::<Image>("half").await;
    let _ = stream.write_all(&bytes[1 << 20..]).await;
    let _ = stream.flush().await;
    let UploadMessage::Error(text) = message(&mut stream).await else { panic!("it was deleted") };
    assert!(text.contains("the image was deleted"), "{text}");
    for _ in 0..400 {
        if site.fixture.system.uploads_now() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the bytes of a deleted image stay");
}
