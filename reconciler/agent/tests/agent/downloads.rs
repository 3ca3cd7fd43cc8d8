//! Downloads of images by clients with a ticket. On real sockets, and therefore in real time.

use std::time::Duration;

use berth_api::Image;
use berth_api::console::{DOWNLOAD_ACCOUNT, UPLOAD_ACCOUNT, copy_audience, download_audience, download_path};
use berth_api::image_download::{DownloadMessage, query};
use kube::ResourceExt;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::consoles::{SOON, Site};
use crate::copies::{content, uploaded};

fn audience(image: &Image) -> String {
    download_audience("ns", &image.name_any(), &image.uid().expect("a uid"))
}

async fn ticket(site: &Site, image: &Image) -> String {
    site.token("ns", DOWNLOAD_ACCOUNT, audience(image)).await
}

fn path(image: &Image, offset: usize) -> String {
    format!("{}?{}", download_path("ns", &image.name_any()), query(offset as u64))
}

/// Returns the size and the bytes that the host sends from this offset on.
async fn downloaded(site: &Site, image: &Image, offset: usize) -> (u64, Vec<u8>) {
    let (mut stream, head) = site.request(&path(image, offset), &ticket(site, image).await).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut sent = Vec::new();
    timeout(SOON, stream.read_to_end(&mut sent)).await.expect("in time").expect("a whole file");
    let end = sent.iter().position(|byte| *byte == b'\n').expect("a line");
    let DownloadMessage::Size(size) = serde_json::from_slice(&sent[..end]).expect("a message");
    (size, sent.split_off(end + 1))
}

#[tokio::test]
async fn a_client_with_a_ticket_downloads_a_file_from_any_offset() {
    let site = Site::start().await;
    let bytes = content(0);
    let image = uploaded(&site, "pushed", &bytes).await;
    let published = image.status.as_ref().and_then(|status| status.download.clone()).expect("published");
    assert_eq!(published.address, site.address());
    let whole = downloaded(&site, &image, 0).await;
    assert!(whole == (bytes.len() as u64, bytes.clone()), "{} bytes", whole.1.len());
    let rest = downloaded(&site, &image, 5).await;
    assert!(rest == (bytes.len() as u64, bytes[5..].to_vec()), "{} bytes", rest.1.len());
    assert_eq!(downloaded(&site, &image, bytes.len()).await, (bytes.len() as u64, Vec::new()));
    let no_offset = site.refused(&download_path("ns", "pushed"), &ticket(&site, &image).await).await;
    assert!(no_offset.starts_with("400 a download needs an offset"), "{no_offset}");
}

#[tokio::test]
async fn a_ticket_is_for_one_download_of_one_image() {
    let site = Site::start().await;
    let image = uploaded(&site, "pushed", &content(0)).await;
    let other = uploaded(&site, "other", &content(1)).await;
    let copy = copy_audience("ns", "pushed", &image.uid().expect("a uid"));
    for (token, is_for) in [
        (ticket(&site, &other).await, "another image"),
        (site.token("ns", DOWNLOAD_ACCOUNT, copy).await, "a copy"),
        (site.token("ns", UPLOAD_ACCOUNT, audience(&image)).await, "another right"),
        (site.token("default", DOWNLOAD_ACCOUNT, audience(&image)).await, "the right of another namespace"),
        (
            site.token("ns", DOWNLOAD_ACCOUNT, download_audience("ns", "pushed", "u-before")).await,
            "a former image of this name",
        ),
    ] {
        let answer = site.refused(&path(&image, 0), &token).await;
        assert!(answer.starts_with("403 the ticket is not valid"), "{is_for}: {answer}");
    }
    let once = ticket(&site, &image).await;
    let (_stream, head) = site.request(&path(&image, 0), &once).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let again = site.refused(&path(&image, 0), &once).await;
    assert!(again.starts_with("403 the ticket was used before"), "{again}");
    // Others download it from its URL.
    let debian = site.fixture.until::<Image>("debian", |_| true).await;
    let answer = site.refused(&path(&debian, 0), &ticket(&site, &debian).await).await;
    assert!(answer.starts_with("400 this image has a URL"), "{answer}");
}

/// Requests downloads until one is answered with this code.
async fn answered(site: &Site, image: &Image, code: &str) -> TlsStream<TcpStream> {
    for _ in 0..100 {
        let (stream, head) = site.request(&path(image, 0), &ticket(site, image).await).await;
        if head.starts_with(&format!("HTTP/1.1 {code} ")) {
            return stream;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never {code}")
}

#[tokio::test]
async fn a_download_ends_with_its_client_and_with_its_image() {
    let site = Site::start().await;
    // More than the buffers on the way take.
    let image = uploaded(&site, "large", &content(1).repeat(11)).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let (stream, head) = site.request(&path(&image, 0), &ticket(&site, &image).await).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        open.push(stream);
    }
    let answer = site.refused(&path(&image, 0), &ticket(&site, &image).await).await;
    assert!(answer.starts_with("429 2 downloads of this image are in progress"), "{answer}");
    // A client that is gone leaves its place to another.
    drop(open.pop());
    let mut next = answered(&site, &image, "101").await;
    site.fixture.delete::<Image>("large").await;
    // The host knows of no image to compare the ticket with.
    answered(&site, &image, "403").await;
    let mut sent = Vec::new();
    // The end is one of the connection, without an end of the file.
    let _ = timeout(SOON, next.read_to_end(&mut sent)).await.expect("in time");
    assert!(sent.len() < content(1).len() * 11, "{} bytes", sent.len());
}

#[tokio::test]
async fn one_namespace_does_not_take_every_download_of_a_host() {
    let site = Site::start().await;
    let mut open = Vec::new();
    for (name, seed) in [("a", 1), ("b", 2)] {
        let image = uploaded(&site, name, &content(seed).repeat(11)).await;
        for _ in 0..2 {
            open.push(answered(&site, &image, "101").await);
        }
    }
    let image = uploaded(&site, "c", &content(3)).await;
    let answer = site.refused(&path(&image, 0), &ticket(&site, &image).await).await;
    assert!(answer.starts_with("429 ") && answer.contains("4 of the images of its namespace"), "{answer}");
    drop(open.pop());
    answered(&site, &image, "101").await;
}
