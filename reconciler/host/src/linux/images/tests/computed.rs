//! Images whose checksum is computed from the bytes that their URL has first.

use super::*;

fn unknown(url: &str) -> ChecksumSource {
    ChecksumSource {
        namespace: "ns".to_owned(),
        url: url.to_owned(),
        shown: without_query(url),
        image_url: url.to_owned(),
        secret: None,
        is_computed: true,
        architecture: None,
        limits: DownloadLimits::default(),
        token: None,
    }
}

async fn computed(images: &LinuxImages, url: &str) -> Result<String> {
    images.compute(&unknown(url), &Credentials::default(), &quiet()).await
}

#[tokio::test]
async fn the_bytes_that_a_checksum_is_computed_of_are_downloaded_once() {
    let bytes = raw(3 * MIB);
    let body = bytes.clone();
    let server = Server::start(move |request| Reply::range(&body, request));
    let cache = Cache::new();
    let url = server.url("/a.img?sig=canary");
    let digest = computed(&cache.images, &url).await.expect("computed");
    assert_eq!(digest, sha256(&bytes));
    // Housekeeping between the computation and the download.
    let kept = BTreeSet::from([source(url.as_str(), &bytes, Format::Raw)]);
    cache.images.forget_downloads(&kept).await.expect("kept");
    let facts = cache
        .images
        .pull(&source(url.as_str(), &bytes, Format::Raw), &Credentials::default(), &quiet())
        .await
        .expect("an image");
    assert_eq!(fs::read(&facts.path).expect("in the cache"), bytes);
    let ranges: Vec<Option<u64>> = server.requests().into_iter().map(|request| request.range).collect();
    assert_eq!(ranges, [None, Some(3 * MIB as u64)], "nothing was missing");
    assert_eq!(cache.files().len(), 2, "{:?}", cache.files());
}

#[tokio::test]
async fn other_bytes_than_the_first_ones_are_refused() {
    let (first, other) = (raw(MIB), vec![7; MIB]);
    let (before, after) = (first.clone(), other.clone());
    // The second version has another validator, and no range of it is asked for.
    let server = Server::start(move |request| match request.number {
        1 => Reply::file(&before),
        _ => Reply::file(&after),
    });
    let cache = Cache::new();
    let url = server.url("/a.img");
    let digest = computed(&cache.images, &url).await.expect("computed");
    cache.images.forget_downloads(&BTreeSet::new()).await.expect("forgotten");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
    let pinned = ImageSource { digest, ..source(url.as_str(), &other, Format::Raw) };
    let error = cache.images.pull(&pinned, &Credentials::default(), &quiet()).await.expect_err("other bytes");
    assert_eq!(error.variant(), "ChecksumMismatch", "{}", error.chain());
}

#[tokio::test]
async fn bytes_of_an_interrupted_computation_are_not_mixed_with_others() {
    let bytes = raw(2 * MIB);
    let body = bytes.clone();
    // Without a validator, a range may be of another version.
    let server = Server::start(move |request| match request.number {
        1 => Reply::unnamed(&body).cut_after(MIB),
        _ => Reply::range(&body, request),
    });
    let cache = Cache::new();
    let digest = computed(&cache.images, &server.url("/a.img")).await.expect("computed");
    assert_eq!(digest, sha256(&bytes));
    let ranges: Vec<bool> = server.requests().into_iter().map(|request| request.range.is_some()).collect();
    assert_eq!(ranges, [false, true, false], "the range was not taken");
}

#[tokio::test]
async fn a_checksum_that_cannot_be_computed_leaves_nothing_behind() {
    let server = Server::start(|_| Reply::status(404));
    let cache = Cache::with_limit(10);
    let error = computed(&cache.images, &server.url("/a.img")).await.expect_err("not there");
    assert_eq!(error.variant(), "ImageNotFound", "{}", error.chain());
    let server = Server::start(|_| Reply::file(&[7; 11]));
    let error = computed(&cache.images, &server.url("/a.img")).await.expect_err("too large");
    assert_eq!(error.variant(), "ImageTooLarge", "{}", error.chain());
    assert!(cache.files().is_empty(), "{:?}", cache.files());
}
