//! Pulls from a small server that misbehaves as it is told to.

mod hostile;
mod server;

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use berth_api::Reason;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;
use server::{Reply, Server};

const MIB: usize = 1 << 20;

/// A cache of its own.
struct Cache {
    folder: TempDir,
    images: Arc<Images>,
}

impl Cache {
    fn new() -> Self {
        Self::with_limit(1 << 30)
    }

    fn with_limit(max_bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let images = open(folder.path(), max_bytes);
        Self { folder, images }
    }

    /// What another run of the agent finds.
    fn restarted(&self) -> Arc<Images> {
        open(self.folder.path(), 1 << 30)
    }

    fn files(&self) -> Vec<String> {
        files::names(&self.folder.path().join("images")).expect("list")
    }
}

fn open(folder: &Path, max_bytes: u64) -> Arc<Images> {
    Arc::new(Images::open(Layout::new(folder), None, max_bytes).expect("a writable folder"))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn source(url: impl Into<String>, bytes: &[u8], format: Format) -> ImageSource {
    ImageSource { url: url.into(), sha256: sha256(bytes), format }
}

fn quiet() -> impl Fn(u64, Option<u64>) + Send + Sync {
    |_, _| {}
}

/// Bytes that are a raw disk, all different, so that a part out of place shows.
fn raw(len: usize) -> Vec<u8> {
    (0..len / 4)
        .flat_map(|i| u32::try_from(i).expect("small").wrapping_mul(2_654_435_761).to_be_bytes())
        .collect()
}

#[tokio::test]
async fn an_image_is_downloaded_once_and_verified() {
    let bytes = raw(3 * MIB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::new();
    let source = source(server.url("/a.img"), &bytes, Format::Raw);
    let furthest = AtomicU64::new(0);
    let progress = |seen, of| {
        assert_eq!(of, Some(3 * MIB as u64));
        furthest.fetch_max(seen, Ordering::Relaxed);
    };
    let facts = cache.images.pull(&source, &progress).await.expect("pulled");
    assert_eq!((facts.bytes, facts.virtual_size), (3 * MIB as u64, 3 * MIB as u64));
    assert!(furthest.load(Ordering::Relaxed) > 0, "progress was told");
    assert_eq!(fs::read(&facts.path).expect("in the cache"), bytes);
    let mode = fs::metadata(&facts.path).expect("metadata").permissions().mode();
    assert_eq!(mode & 0o777, 0o440, "nobody writes to it, and the world does not read it");
    assert_eq!(cache.images.pull(&source, &quiet()).await.expect("cached"), facts);
    assert_eq!(server.requests().len(), 1);
    assert_eq!(cache.restarted().images().await.expect("list"), vec![facts]);
    cache.images.remove(&source.sha256).await.expect("removed");
    cache.images.remove(&source.sha256).await.expect("removed again");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
}

#[tokio::test]
async fn a_source_without_the_image_says_so() {
    let server = Server::start(|_| Reply::status(404));
    let cache = Cache::new();
    let error = cache
        .images
        .pull(&source(server.url("/none?token=secret"), b"x", Format::Raw), &quiet())
        .await
        .expect_err("404");
    assert_eq!(error.reason(), Reason::ImageNotFound);
    assert!(error.chain().contains("404") && !error.chain().contains("secret"), "{}", error.chain());
    assert!(cache.images.images().await.expect("list").is_empty());
}

#[tokio::test]
async fn a_download_cut_in_the_middle_goes_on_where_it_ended() {
    let bytes = raw(3 * MIB);
    let body = bytes.clone();
    let server = Server::start(move |request| match request.number {
        1 => Reply::file(&body).cut_after(MIB),
        2 => Reply::range(&body, request).cut_after(MIB / 2),
        _ => Reply::range(&body, request),
    });
    let cache = Cache::new();
    let facts = cache
        .images
        .pull(&source(server.url("/a.img"), &bytes, Format::Raw), &quiet())
        .await
        .expect("pulled in parts");
    assert_eq!(fs::read(facts.path).expect("in the cache"), bytes);
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].range, None);
    assert!(requests[1].range.is_some_and(|from| from > 0 && from <= MIB as u64), "{:?}", requests[1]);
    assert!(requests[2].range > requests[1].range, "nothing is downloaded twice");
    assert_eq!(requests[1].if_range.as_deref(), Some("\"v1\""), "only if it is still the same file");
}

#[tokio::test]
async fn a_restarted_agent_goes_on_with_what_it_finds() {
    let bytes = raw(2 * MIB);
    let body = bytes.clone();
    let server = Server::start(move |request| match request.number {
        1 => Reply::file(&body).cut_after(MIB),
        2..=5 => Reply::status(503),
        _ => Reply::range(&body, request),
    });
    let cache = Cache::new();
    let source = source(server.url("/a.img"), &bytes, Format::Raw);
    let error = cache.images.pull(&source, &quiet()).await.expect_err("the server went away");
    assert_eq!((error.reason(), error.is_stalled()), (Reason::Retrying, false), "{}", error.chain());
    assert!(cache.images.image(&source.sha256).await.expect("read").is_none(), "half an image is none");
    cache.restarted().pull(&source, &quiet()).await.expect("pulled");
    assert!(server.requests().last().expect("requests").range.is_some_and(|from| from > 0));
}

#[tokio::test]
async fn another_version_at_the_source_is_downloaded_from_the_start() {
    let (old, new) = (raw(2 * MIB), vec![7; 2 * MIB]);
    let (before, after) = (old.clone(), new.clone());
    // This server does not know If-Range: it appends the new version's end to the old one's beginning.
    let server = Server::start(move |request| match request.number {
        1 => Reply::file(&before).cut_after(MIB),
        _ if request.range.is_some() => Reply::range(&after, request),
        _ => Reply::file(&after),
    });
    let cache = Cache::new();
    let facts = cache.images.pull(&source(server.url("/a.img"), &new, Format::Raw), &quiet()).await;
    // Within one pull the mixture is a wrong checksum; the next one starts afresh.
    let facts = match facts {
        Ok(facts) => facts,
        Err(error) => {
            assert_eq!(error.reason(), Reason::ChecksumMismatch);
            cache
                .images
                .pull(&source(server.url("/a.img"), &new, Format::Raw), &quiet())
                .await
                .expect("afresh")
        }
    };
    assert_eq!(fs::read(facts.path).expect("in the cache"), new);
}

#[tokio::test]
async fn a_server_that_cannot_resume_sends_it_all_again() {
    let bytes = raw(2 * MIB);
    let body = bytes.clone();
    let server = Server::start(move |request| match request.number {
        1 => Reply::file(&body).cut_after(MIB),
        _ => Reply::file(&body),
    });
    let cache = Cache::new();
    let pulled = cache.images.pull(&source(server.url("/a.img"), &bytes, Format::Raw), &quiet()).await;
    assert_eq!(fs::read(pulled.expect("pulled").path).expect("in the cache"), bytes);
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn callers_of_the_same_checksum_share_one_download() {
    let bytes = raw(4 * MIB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body).slowly());
    let cache = Cache::new();
    let source = source(server.url("/a.img"), &bytes, Format::Raw);
    let pulls = (0..8).map(|_| async {
        let told = AtomicU64::new(0);
        let facts = cache
            .images
            .pull(&source, &|_, _| {
                told.fetch_add(1, Ordering::Relaxed);
            })
            .await;
        (facts.expect("pulled").bytes, told.into_inner() > 0)
    });
    let all = futures::future::join_all(pulls).await;
    assert!(all.iter().all(|(bytes, told)| *bytes == 4 * MIB as u64 && *told), "each is told: {all:?}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_download_goes_on_when_the_caller_that_began_it_goes_away() {
    let bytes = raw(4 * MIB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body).slowly());
    let cache = Cache::new();
    let source = source(server.url("/a.img"), &bytes, Format::Raw);
    let (first, second) = (quiet(), quiet());
    let mut first = Box::pin(cache.images.pull(&source, &first));
    let second = cache.images.pull(&source, &second);
    let short = tokio::time::timeout(Duration::from_millis(30), &mut first).await;
    assert!(short.is_err(), "still under way");
    let mut second = Box::pin(second);
    let joined = tokio::time::timeout(Duration::from_millis(10), &mut second).await;
    assert!(joined.is_err(), "still under way");
    drop(first);
    second.await.expect("pulled");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_mirror_is_tried_when_another_callers_source_fails() {
    let bytes = raw(MIB);
    let body = bytes.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/gone" => Reply::status(404).late(),
        _ => Reply::file(&body),
    });
    let cache = Cache::new();
    let gone = source(server.url("/gone"), &bytes, Format::Raw);
    let mirror = source(server.url("/mirror"), &bytes, Format::Raw);
    let (first, second) = (quiet(), quiet());
    let later = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        cache.images.pull(&mirror, &second).await
    };
    let (a, b) = tokio::join!(cache.images.pull(&gone, &first), later);
    assert_eq!(a.expect_err("404").reason(), Reason::ImageNotFound);
    assert_eq!(b.expect("from the mirror").bytes, MIB as u64);
}

#[tokio::test]
async fn local_files_are_images_too() {
    let cache = Cache::new();
    let bytes = raw(MIB);
    let path = cache.folder.path().join("my disk.img");
    fs::write(&path, &bytes).expect("file");
    let url = reqwest::Url::from_file_path(&path).expect("absolute");
    let facts = cache.images.pull(&source(url.clone(), &bytes, Format::Raw), &quiet()).await.expect("copied");
    assert_eq!(fs::read(facts.path).expect("in the cache"), bytes);
    assert_eq!(fs::read(&path).expect("still there"), bytes);
    let missing = cache.images.pull(&source(format!("{url}x"), b"y", Format::Raw), &quiet()).await;
    assert_eq!(missing.expect_err("no such file").reason(), Reason::ImageNotFound);
    for odd in ["file:///dev/zero", "file:///etc", "file:///proc/self/mem"] {
        let error = cache.images.pull(&source(odd, b"z", Format::Raw), &quiet()).await.expect_err("no image");
        assert!(
            matches!(error, SystemError::Download { .. } | SystemError::ChecksumMismatch { .. }),
            "{error:?}"
        );
    }
}
