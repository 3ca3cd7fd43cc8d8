//! Bytes that differ from the declaration, or that would make QEMU open other files.

use super::super::super::tests::SmallDisk;
use super::*;

/// Pulls these bytes from a server.
async fn pull(bytes: Vec<u8>, format: Format) -> (SystemError, Cache) {
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::new();
    let error =
        cache.images.pull(&source(server.url("/i"), &bytes, format), &Credentials::default(), &quiet()).await;
    (error.expect_err("refused"), cache)
}

fn refused(outcome: &(SystemError, Cache), variant: &str, detail: &str) {
    let (error, cache) = outcome;
    assert_eq!(error.variant(), variant, "{}", error.chain());
    assert!(error.chain().contains(detail), "{}", error.chain());
    assert_eq!(error.retry(), crate::Retry::WaitForChange);
    assert!(cache.files().is_empty(), "nothing of it stays: {:?}", cache.files());
}

/// Creates a qcow2 file with berth's own writer.
fn qcow2(size: u64, backing: bool) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (base, path) = (folder.path().join("base"), folder.path().join("a.qcow2"));
    if backing {
        qcow2::create(&base, size).expect("base");
        let backing = berth_qemu::machine::Backing { file: base, format: Format::Qcow2, backing: None };
        qcow2::create_overlay(&path, size, &backing).expect("overlay");
    } else {
        qcow2::create(&path, size).expect("made");
    }
    fs::read(path).expect("read")
}

#[tokio::test]
async fn a_well_formed_qcow2_is_taken_with_its_virtual_size() {
    let bytes = qcow2(10 << 30, false);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::new();
    let wanted = source(server.url("/i"), &bytes, Format::Qcow2);
    let facts = cache.images.pull(&wanted, &Credentials::default(), &quiet()).await.expect("an image");
    assert_eq!((facts.virtual_size, facts.format), (10 << 30, Format::Qcow2));
    let as_raw = ImageSource { format: Format::Raw, ..wanted };
    let error = cache
        .images
        .pull(&as_raw, &Credentials::default(), &quiet())
        .await
        .expect_err("it is in the cache, as qcow2");
    assert_eq!(error.variant(), "ImageRefused");
}

#[tokio::test]
async fn a_wrong_checksum_names_the_declared_one_alone_and_leaves_nothing() {
    let server = Server::start(|_| Reply::file(&raw(MIB)));
    let cache = Cache::new();
    let declared = source(server.url("/i"), b"something else", Format::Raw);
    let error =
        cache.images.pull(&declared, &Credentials::default(), &quiet()).await.expect_err("other bytes");
    assert_eq!(error.variant(), "ChecksumMismatch");
    let text = error.chain();
    assert!(text.contains(&declared.digest) && !text.contains(&sha256(&raw(MIB))), "{text}");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
    assert_eq!(server.requests().len(), 1, "the same bytes are not downloaded twice to be sure");
}

#[tokio::test]
async fn a_backing_file_is_refused() {
    refused(&pull(qcow2(1 << 30, true), Format::Qcow2).await, "ImageRefused", "second file");
}

#[tokio::test]
async fn an_external_data_file_is_refused() {
    let mut bytes = qcow2(1 << 30, false);
    // Bit 2 of the incompatible features, at byte 72.
    bytes[79] |= 4;
    refused(&pull(bytes, Format::Qcow2).await, "ImageRefused", "another file");
}

#[tokio::test]
async fn an_absurd_virtual_size_is_refused() {
    let mut bytes = qcow2(1 << 30, false);
    bytes[24..32].copy_from_slice(&(1_u64 << 60).to_be_bytes());
    refused(&pull(bytes, Format::Qcow2).await, "ImageTooLarge", "1152921504606846976");
}

#[tokio::test]
async fn formats_are_never_guessed() {
    refused(&pull(qcow2(1 << 30, false), Format::Raw).await, "ImageRefused", "declared as raw");
    refused(&pull(raw(MIB), Format::Qcow2).await, "ImageRefused", "declared as qcow2");
    let page = b"<!DOCTYPE html><title>Please log in</title>".to_vec();
    refused(&pull(page.clone(), Format::Raw).await, "ImageRefused", "web page");
    refused(&pull(page, Format::Qcow2).await, "ImageRefused", "web page");
    refused(&pull(b"no image".to_vec(), Format::Raw).await, "ImageRefused", "512");
    refused(&pull(Vec::new(), Format::Raw).await, "ImageRefused", "empty");
}

#[tokio::test]
async fn a_file_that_is_named_like_a_compressed_one_is_refused_with_that_advice() {
    let bytes = raw(MIB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::new();
    for (path, advice) in [("/d.qcow2.XZ", "the compression xz"), ("/d.qcow2", "")] {
        let wanted = source(server.url(path), &bytes, Format::Qcow2);
        let error = cache.images.pull(&wanted, &Credentials::default(), &quiet()).await.expect_err("refused");
        assert_eq!(error.variant(), "ImageRefused");
        let text = error.chain();
        assert_eq!(
            (text.contains("compression"), text.ends_with(advice)),
            (!advice.is_empty(), true),
            "{text}"
        );
    }
}

#[tokio::test]
async fn an_image_above_the_hosts_limit_is_not_downloaded() {
    let bytes = raw(3 * MIB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::with_limit(MIB as u64);
    let error = cache
        .images
        .pull(&source(server.url("/i"), &bytes, Format::Raw), &Credentials::default(), &quiet())
        .await
        .expect_err("too large");
    assert_eq!(error.variant(), "ImageTooLarge");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
}

#[tokio::test]
async fn redirects_are_followed_and_not_for_ever() {
    let bytes = raw(MIB);
    let body = bytes.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/i" => Reply::status(302).header("Location", "/real"),
        "/loop" => Reply::status(302).header("Location", "/loop"),
        _ => Reply::file(&body),
    });
    let cache = Cache::new();
    let error = cache
        .images
        .pull(&source(server.url("/loop"), &bytes, Format::Raw), &Credentials::default(), &quiet())
        .await
        .expect_err("a loop");
    assert!(error.chain().contains("redirect"), "{}", error.chain());
    assert!(server.requests().len() < 10);
    cache
        .images
        .pull(&source(server.url("/i"), &bytes, Format::Raw), &Credentials::default(), &quiet())
        .await
        .expect("redirected");
}

#[tokio::test]
async fn a_full_disk_is_called_so_and_freed_again() {
    let Some(disk) = SmallDisk::mount(2 * MIB) else { return };
    let bytes = raw(3 * MIB);
    for reported in [true, false] {
        let body = bytes.clone();
        // Whether the server sends the length in advance.
        let server = Server::start(move |_| Reply::file(&body).length_told(reported));
        let images = open(disk.path(), 1 << 30);
        let wanted = source(server.url("/i"), &bytes, Format::Raw);
        let error = images.pull(&wanted, &Credentials::default(), &quiet()).await.expect_err("full");
        assert_eq!(error.variant(), "NoSpace", "{}", error.chain());
        let left = files::names(&disk.path().join("images")).expect("list");
        assert!(left.is_empty(), "half an image must not keep the disk full: {left:?}");
    }
}
