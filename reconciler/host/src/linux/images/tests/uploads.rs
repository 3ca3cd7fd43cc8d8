//! Bytes that clients upload, verified as those of a download.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::upload_url;

fn upload(uid: &str, bytes: &[u8], format: Format) -> ImageSource {
    source(upload_url(uid), bytes, format)
}

async fn append(images: &LinuxImages, source: &ImageSource, offset: usize, bytes: &[u8]) -> Result<()> {
    images.append_upload(source, offset as u64, bytes.to_vec()).await
}

async fn pull(images: &Arc<LinuxImages>, source: &ImageSource) -> Result<ImageFacts> {
    images.pull(source, &Credentials::default(), &quiet()).await
}

#[tokio::test]
async fn an_upload_continues_after_a_restart_and_becomes_an_image_with_holes_for_zeros() {
    let cache = Cache::new();
    let mut bytes = raw(MIB);
    bytes.extend(vec![0; 4 * MIB]);
    bytes.extend(raw(MIB));
    let source = upload("u-1", &bytes, Format::Raw);
    let size = bytes.len() as u64;
    assert_eq!(cache.images.uploaded(&source, size).await.expect("looked at"), 0);
    append(&cache.images, &source, 0, &bytes[..3 * MIB]).await.expect("stored");
    let images = cache.restarted();
    assert_eq!(images.uploaded(&source, size).await.expect("looked at"), 3 * MIB as u64);
    for wrong in [0, 2 * MIB, 4 * MIB] {
        let refused = append(&images, &source, wrong, b"x").await.expect_err("out of step");
        assert_eq!(refused.variant(), "Upload", "{refused:?}");
    }
    append(&images, &source, 3 * MIB, &bytes[3 * MIB..]).await.expect("stored");
    // As the housekeeping does while its Image exists.
    images.forget_downloads(&BTreeSet::from([source.clone()])).await.expect("kept");
    let facts = pull(&images, &source).await.expect("verified");
    assert_eq!((facts.virtual_size, facts.made_for.len()), (size, 1));
    assert!(fs::read(&facts.path).expect("there") == bytes);
    let stored = fs::metadata(&facts.path).expect("there").blocks() * 512;
    assert!(stored < 4 * MIB as u64, "{stored} bytes on the disk");
    assert_eq!(cache.files().len(), 2, "{:?}", cache.files());
    assert!(images.image(&source).await.expect("looked at").is_some());
}

#[tokio::test]
async fn an_upload_with_other_bytes_is_not_kept_and_can_be_repeated() {
    let cache = Cache::new();
    let bytes = raw(MIB);
    let source = upload("u-1", &bytes, Format::Raw);
    let mut wrong = bytes.clone();
    wrong[5] ^= 1;
    append(&cache.images, &source, 0, &wrong).await.expect("stored");
    let error = pull(&cache.images, &source).await.expect_err("other bytes");
    assert_eq!(error.variant(), "ChecksumMismatch");
    assert_eq!(cache.files(), Vec::<String>::new());
    append(&cache.images, &source, 0, &bytes).await.expect("stored");
    pull(&cache.images, &source).await.expect("verified");
    // The same bytes again, for another Image.
    let twin = upload("u-2", &bytes, Format::Raw);
    append(&cache.images, &twin, 0, &bytes).await.expect("stored");
    let facts = pull(&cache.images, &twin).await.expect("verified");
    assert_eq!(facts.made_for, BTreeSet::from(["u-1".to_owned()]), "its namespace has the image already");
    let text = b"no image".repeat(100);
    let text = upload("u-3", &text, Format::Qcow2);
    append(&cache.images, &text, 0, &b"no image".repeat(100)).await.expect("stored");
    assert_eq!(pull(&cache.images, &text).await.expect_err("no image").variant(), "ImageRefused");
}

#[tokio::test]
async fn an_upload_is_limited_and_goes_with_its_image() {
    let cache = Cache::with_limit(MIB as u64);
    let bytes = raw(MIB / 2);
    let source = upload("u-1", &bytes, Format::Raw);
    let large = cache.images.uploaded(&source, MIB as u64 + 1).await.expect_err("too large");
    assert_eq!(large.variant(), "ImageTooLarge");
    let full = cache.restarted().uploaded(&source, 1 << 30).await;
    let free = files::space(cache.folder.path()).expect("a file system").free;
    assert_eq!(full.is_ok(), free > (1 << 30) + (8 << 20));
    append(&cache.images, &source, 0, &bytes[..1000]).await.expect("stored");
    cache.images.forget_downloads(&BTreeSet::new()).await.expect("removed");
    let gone = append(&cache.images, &source, 1000, &bytes[1000..]).await.expect_err("it was removed");
    assert!(gone.chain().contains("its first bytes are gone"), "{}", gone.chain());
    assert_eq!(cache.files(), Vec::<String>::new());
}
