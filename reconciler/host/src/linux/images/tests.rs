//! Pulls from a small server that misbehaves on request.

mod computed;
mod copies;
mod credentials;
mod formats;
mod host_files;
mod hostile;
mod made;
mod reach;
mod registry;
mod server;
mod uploads;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_qemu::machine::Format;
use berth_qemu::qcow2;
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;
use crate::{DownloadLimits, Encoding};
use server::{Reply, Server};

const MIB: usize = 1 << 20;

/// A cache in its own directory.
struct Cache {
    folder: TempDir,
    images: Arc<LinuxImages>,
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

    /// Opens the cache again, as after a restart of the agent.
    fn restarted(&self) -> Arc<LinuxImages> {
        open(self.folder.path(), 1 << 30)
    }

    fn files(&self) -> Vec<String> {
        files::names(&self.folder.path().join("images")).expect("list")
    }
}

fn open(folder: &Path, max_bytes: u64) -> Arc<LinuxImages> {
    with_rules(folder, max_bytes, ImageRules { allow: loopback(), ..ImageRules::default() })
}

fn with_rules(folder: &Path, max_bytes: u64, rules: ImageRules) -> Arc<LinuxImages> {
    let unpacker = Unpacker { user: None, max_bytes };
    Arc::new(LinuxImages::open(Layout::new(folder), unpacker, rules).expect("a writable folder"))
}

/// The addresses of the test servers.
fn loopback() -> Vec<IpNet> {
    vec!["127.0.0.0/8".parse().expect("a range")]
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn without_query(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

fn source(url: impl Into<String>, bytes: &[u8], format: Format) -> ImageSource {
    let url = url.into();
    let (namespace, shown) = ("ns".to_owned(), without_query(&url));
    ImageSource {
        namespace,
        shared: false,
        url,
        shown,
        digest: sha256(bytes),
        format,
        encoding: Encoding::default(),
        secret: None,
        host: None,
        limits: DownloadLimits::default(),
    }
}

fn quiet() -> impl Fn(u64, Option<u64>) + Send + Sync {
    |_, _| {}
}

/// Returns a raw disk with all words different, so that a misplaced part is detected.
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
    let facts = cache.images.pull(&source, &Credentials::default(), &progress).await.expect("pulled");
    assert_eq!((facts.bytes, facts.virtual_size), (3 * MIB as u64, 3 * MIB as u64));
    assert!(furthest.load(Ordering::Relaxed) > 0, "progress was told");
    assert_eq!(fs::read(&facts.path).expect("in the cache"), bytes);
    let mode = fs::metadata(&facts.path).expect("metadata").permissions().mode();
    assert_eq!(mode & 0o777, 0o440, "nobody writes to it, and the world does not read it");
    assert_eq!(cache.images.pull(&source, &Credentials::default(), &quiet()).await.expect("cached"), facts);
    assert_eq!(server.requests().len(), 1);
    assert_eq!(cache.restarted().images().await.expect("list"), vec![facts]);
    cache.images.remove(&source.digest).await.expect("removed");
    cache.images.remove(&source.digest).await.expect("removed again");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
}

#[tokio::test]
async fn a_verified_download_is_kept_from_housekeeping_until_it_is_an_image() {
    let bytes = raw(MIB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::new();
    let source = source(server.url("/a.img"), &bytes, Format::Raw);
    let folder = cache.images.cache.folder();
    let (report, _seen) = watch::channel((0, None));
    let job = Job {
        source: &source,
        place: &Place::of(&folder, &source),
        stored: true,
        max_bytes: 1 << 30,
        rules: &cache.images.rules,
        report: &report,
    };
    let verified =
        download::run(&job, &Access::Url(cache.images.http.clone())).await.expect("the declared bytes");
    partial::forget(&folder, |_, _| true).expect("looked at");
    let facts = cache.images.cache.admit(&source, verified, None).expect("an image");
    assert_eq!(fs::read(&facts.path).expect("in the cache"), bytes);
    let names = cache.files();
    assert_eq!(names, [source.digest.clone(), format!("{}.json", source.digest)], "nothing else is left");
}

#[tokio::test]
async fn a_source_without_the_image_says_so() {
    let server = Server::start(|_| Reply::status(404));
    let cache = Cache::new();
    let error = cache
        .images
        .pull(&source(server.url("/none?token=secret"), b"x", Format::Raw), &Credentials::default(), &quiet())
        .await
        .expect_err("404");
    assert_eq!(error.variant(), "ImageNotFound");
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
        .pull(&source(server.url("/a.img"), &bytes, Format::Raw), &Credentials::default(), &quiet())
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
    let error = cache
        .images
        .pull(&source, &Credentials::default(), &quiet())
        .await
        .expect_err("the server went away");
    assert_eq!(error.variant(), "Download", "{}", error.chain());
    assert!(cache.images.image(&source).await.expect("read").is_none(), "half an image is none");
    cache.restarted().pull(&source, &Credentials::default(), &quiet()).await.expect("pulled");
    assert!(server.requests().last().expect("requests").range.is_some_and(|from| from > 0));
}

#[tokio::test]
async fn another_version_at_the_source_is_downloaded_from_the_start() {
    let (old, new) = (raw(2 * MIB), vec![7; 2 * MIB]);
    let (before, after) = (old.clone(), new.clone());
    // This server ignores If-Range, so the end of the new version is appended to the beginning of the old one.
    let server = Server::start(move |request| match request.number {
        1 => Reply::file(&before).cut_after(MIB),
        _ if request.range.is_some() => Reply::range(&after, request),
        _ => Reply::file(&after),
    });
    let cache = Cache::new();
    let facts = cache
        .images
        .pull(&source(server.url("/a.img"), &new, Format::Raw), &Credentials::default(), &quiet())
        .await;
    // Within one pull the mixture has the wrong checksum; the next pull starts from scratch.
    let facts = match facts {
        Ok(facts) => facts,
        Err(error) => {
            assert_eq!(error.variant(), "ChecksumMismatch");
            cache
                .images
                .pull(&source(server.url("/a.img"), &new, Format::Raw), &Credentials::default(), &quiet())
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
    let pulled = cache
        .images
        .pull(&source(server.url("/a.img"), &bytes, Format::Raw), &Credentials::default(), &quiet())
        .await;
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
        let reported = AtomicU64::new(0);
        let facts = cache
            .images
            .pull(&source, &Credentials::default(), &|_, _| {
                reported.fetch_add(1, Ordering::Relaxed);
            })
            .await;
        (facts.expect("pulled").bytes, reported.into_inner() > 0)
    });
    let all = futures::future::join_all(pulls).await;
    assert!(
        all.iter().all(|(bytes, reported)| *bytes == 4 * MIB as u64 && *reported),
        "each is told: {all:?}"
    );
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
    let none = Credentials::default();
    let mut first = Box::pin(cache.images.pull(&source, &none, &first));
    let second = cache.images.pull(&source, &none, &second);
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
async fn a_source_that_hangs_holds_up_no_other_source_of_the_same_digest() {
    let bytes = raw(MIB);
    let body = bytes.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/hangs" => Reply::file(&body).cut_after(1000).late_by(Duration::from_secs(30)),
        _ => Reply::file(&body),
    });
    let cache = Cache::new();
    let hangs = source(server.url("/hangs"), &bytes, Format::Raw);
    let images = Arc::clone(&cache.images);
    let hanging =
        tokio::spawn(async move { images.pull(&hangs, &Credentials::default(), &quiet()).await.map(drop) });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mirror = source(server.url("/mirror"), &bytes, Format::Raw);
    let pulled = tokio::time::timeout(
        Duration::from_secs(10),
        cache.images.pull(&mirror, &Credentials::default(), &quiet()),
    )
    .await;
    assert_eq!(pulled.expect("not held up").expect("pulled").bytes, MIB as u64);
    assert!(!hanging.is_finished());
    hanging.abort();
}

#[tokio::test]
async fn an_image_of_sha512_is_verified_by_it() {
    let bytes = raw(MIB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body));
    let cache = Cache::new();
    let digest: String = sha2::Sha512::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    let right = ImageSource { digest, ..source(server.url("/a"), &bytes, Format::Raw) };
    let facts = cache.images.pull(&right, &Credentials::default(), &quiet()).await.expect("pulled");
    assert_eq!((facts.digest.len(), fs::read(&facts.path).expect("in the cache")), (128, bytes));
    assert_eq!(cache.restarted().images().await.expect("list"), [facts]);
    let wrong = ImageSource { digest: "0".repeat(128), ..right };
    let error = cache.images.pull(&wrong, &Credentials::default(), &quiet()).await.expect_err("other bytes");
    assert_eq!(error.variant(), "ChecksumMismatch");
}
