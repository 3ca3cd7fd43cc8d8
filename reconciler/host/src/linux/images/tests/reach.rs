//! Requests that a tenant makes the host send: for files, addresses, another namespace's images, bytes that arrive one
//! by one.

use std::collections::BTreeSet;

use super::*;
use crate::ChecksumSource;

fn file(path: &Path) -> String {
    reqwest::Url::from_file_path(path).expect("absolute").to_string()
}

/// Returns a cache on a host that allows one directory, and that directory.
fn with_folder() -> (Cache, PathBuf) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let named = folder.path().join("images of ours");
    fs::create_dir(&named).expect("made");
    let rules = ImageRules { folders: vec![named.clone()], ..ImageRules::default() };
    let images = with_rules(&folder.path().join("state"), 1 << 30, rules);
    (Cache { folder, images }, named)
}

#[tokio::test]
async fn files_are_images_below_the_named_folders_only() {
    let (cache, named) = with_folder();
    let bytes = raw(MIB);
    let (inside, outside) = (named.join("my disk.img"), cache.folder.path().join("secret.img"));
    fs::create_dir(named.join("sub")).expect("made");
    for path in [&inside, &outside, &named.join("sub/other.img")] {
        fs::write(path, &bytes).expect("file");
    }
    std::os::unix::fs::symlink("my disk.img", named.join("latest.img")).expect("link");
    std::os::unix::fs::symlink(&outside, named.join("out.img")).expect("link");
    std::os::unix::fs::symlink("..", named.join("up")).expect("link");
    nix::unistd::mkfifo(&named.join("pipe"), nix::sys::stat::Mode::S_IRUSR).expect("pipe");
    let pull = async |url: &str| {
        cache.images.pull(&source(url, &bytes, Format::Raw), &Credentials::default(), &quiet()).await
    };
    let escape = |rest: &str| format!("{}/{rest}", file(&named));
    for refused in [
        file(&outside),
        escape("../secret.img"),
        escape("%2e%2e/secret.img"),
        escape("sub%2f..%2f..%2fsecret.img"),
        escape("out.img"),
        escape("up/secret.img"),
        file(&cache.folder.path().join("not there")),
        "file:///etc/passwd".to_owned(),
        "file:///proc/self/environ".to_owned(),
    ] {
        let error = pull(&refused).await.expect_err(&refused);
        assert_eq!(error.variant(), "ImageNotAllowed", "{refused}: {}", error.chain());
        assert!(error.chain().contains("--image-dir"), "{}", error.chain());
    }
    let missing = pull(&escape("none.img")).await.expect_err("no such file");
    assert_eq!(missing.variant(), "ImageNotFound");
    for odd in ["pipe", "sub"] {
        let pulled = tokio::time::timeout(Duration::from_secs(5), pull(&escape(odd))).await;
        let error = pulled.expect("opening it does not wait").expect_err(odd);
        assert!(error.chain().contains("not a regular file"), "{}", error.chain());
    }
    for allowed in [file(&inside), escape("latest.img"), escape("sub/other.img")] {
        let other =
            ImageSource { namespace: allowed.clone(), ..source(allowed.as_str(), &bytes, Format::Raw) };
        assert_eq!(
            cache.images.pull(&other, &Credentials::default(), &quiet()).await.expect(&allowed).bytes,
            MIB as u64
        );
    }
}

#[tokio::test]
async fn a_refused_address_says_the_same_whether_or_not_something_answers() {
    let server = Server::start(|_| Reply::status(404));
    let cache = tempfile::tempdir().expect("temporary folder");
    let images = with_rules(cache.path(), 1 << 30, ImageRules::default());
    let open = server.url("/x");
    let port = open.rsplit(':').next().and_then(|rest| rest.split('/').next()).expect("a port");
    let closed =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("free").port();
    let mut said = BTreeSet::new();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "169.254.169.254", "10.0.0.1"]
    {
        for port in [port, &closed.to_string()] {
            let url = format!("http://{host}:{port}/x");
            let error = images
                .pull(&source(url.as_str(), b"x", Format::Raw), &Credentials::default(), &quiet())
                .await
                .expect_err("refused");
            assert_eq!(error.variant(), "ImageNotAllowed", "{url}: {}", error.chain());
            said.insert(error.chain().replace(&url, "URL").replace("http://127.0.0.1", "URL"));
            let sums = ChecksumSource {
                namespace: "ns".to_owned(),
                url: url.clone(),
                shown: url.clone(),
                image_url: "http://a/b".to_owned(),
                secret: None,
                is_computed: false,
                architecture: None,
                limits: DownloadLimits::default(),
                token: None,
            };
            let error = images.resolve(&sums, &Credentials::default()).await.expect_err("refused");
            assert_eq!(error.variant(), "ImageNotAllowed", "{url}: {}", error.chain());
        }
    }
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(server.requests().len(), 0, "nothing was connected to");
}

#[tokio::test]
async fn a_redirect_leads_to_no_address_that_is_refused() {
    let inner = Server::start(|_| Reply::status(404));
    // One address is allowed, and it redirects to the others.
    let (target, named) = (inner.url("/x"), inner.url("/x").replace("127.0.0.1", "localhost"));
    let server = Server::at("127.0.0.2", move |request| {
        Reply::status(302).header("Location", if request.path == "/name" { &named } else { &target }.as_str())
    });
    let cache = tempfile::tempdir().expect("temporary folder");
    let allow = vec!["127.0.0.2/32".parse().expect("a range")];
    let images = with_rules(cache.path(), 1 << 30, ImageRules { allow, ..ImageRules::default() });
    for path in ["/address", "/name"] {
        let error = images
            .pull(&source(server.url(path), b"x", Format::Raw), &Credentials::default(), &quiet())
            .await
            .expect_err("refused");
        assert_eq!(error.variant(), "ImageNotAllowed", "{}", error.chain());
        assert!(!error.chain().contains("HTTP 404"), "{}", error.chain());
    }
    assert_eq!((server.requests().len(), inner.requests().len()), (2, 0));
}

#[tokio::test]
async fn each_namespace_proves_by_a_download_of_its_own_that_it_may_read_an_image() {
    let bytes = raw(MIB);
    let body = bytes.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/private" => Reply::file(&body),
        _ => Reply::status(404),
    });
    let cache = Cache::new();
    let owner = source(server.url("/private"), &bytes, Format::Raw);
    cache.images.pull(&owner, &Credentials::default(), &quiet()).await.expect("pulled");
    let files = cache.files();
    // This client knows the digest, but not the location of the image.
    let thief =
        ImageSource { namespace: "thief".to_owned(), ..source(server.url("/guess"), &bytes, Format::Raw) };
    assert_eq!(cache.images.image(&thief).await.expect("looked"), None);
    let error =
        cache.images.pull(&thief, &Credentials::default(), &quiet()).await.expect_err("nothing is there");
    assert_eq!(error.variant(), "ImageNotFound");
    assert_eq!(cache.images.image(&thief).await.expect("looked"), None);
    // This client can read the image.
    let friend = ImageSource { namespace: "friend".to_owned(), ..owner.clone() };
    let facts = cache.images.pull(&friend, &Credentials::default(), &quiet()).await.expect("pulled");
    assert_eq!(facts.readers, BTreeSet::from(["friend".to_owned(), "ns".to_owned()]));
    assert_eq!(cache.files(), files, "it is stored once");
    let requests = server.requests().len();
    let again = cache.restarted();
    assert!(again.image(&friend).await.expect("looked").is_some(), "the proof outlives the agent");
    again.pull(&friend, &Credentials::default(), &quiet()).await.expect("known");
    // Images that administrators declare for all need no proof.
    let shared = ImageSource { namespace: "all".to_owned(), shared: true, ..thief };
    assert!(again.image(&shared).await.expect("looked").is_some());
    assert_eq!(server.requests().len(), requests);
    again.forget_reader(&friend.digest, "friend").await.expect("forgotten");
    assert_eq!(again.image(&friend).await.expect("looked"), None);
    assert!(again.image(&owner).await.expect("looked").is_some());
    // The owner shares it.
    again.add_reader(&friend.digest, "friend").await.expect("added");
    assert!(cache.restarted().image(&friend).await.expect("looked").is_some());
    again.add_reader(&"0".repeat(64), "friend").await.expect("there is nothing to do");
}

#[tokio::test]
async fn a_source_that_sends_too_little_is_ended_and_taken_up_later() {
    let bytes = raw(2 * MIB);
    let body = bytes.clone();
    let server = Server::start(move |request| match request.number {
        1 => Reply::file(&body).pausing(Duration::from_secs(1)),
        _ => Reply::range(&body, request),
    });
    let folder = tempfile::tempdir().expect("temporary folder");
    let rules = ImageRules {
        allow: loopback(),
        least_rate: 100 << 20,
        rate_window: Duration::from_millis(1500),
        ..ImageRules::default()
    };
    let images = with_rules(folder.path(), 1 << 30, rules);
    let slow = source(server.url("/slow"), &bytes, Format::Raw);
    let error = images.pull(&slow, &Credentials::default(), &quiet()).await.expect_err("too slow");
    assert!(error.chain().contains("too slow"), "{}", error.chain());
    assert_eq!((error.variant().as_str(), error.retry()), ("Download", crate::Retry::Backoff));
    images.pull(&slow, &Credentials::default(), &quiet()).await.expect("the rest of it");
    assert!(
        server.requests().last().is_some_and(|request| request.range.is_some()),
        "{:?}",
        server.requests()
    );
}

#[tokio::test]
async fn what_nobody_asks_for_any_more_leaves_nothing_on_the_disk() {
    let bytes = raw(2 * MIB);
    let body = bytes.clone();
    let server = Server::start(move |_| Reply::file(&body).cut_after(MIB));
    let cache = Cache::new();
    let (kept, gone) =
        (source(server.url("/a"), &bytes, Format::Raw), source(server.url("/b"), &bytes, Format::Raw));
    for source in [&kept, &gone] {
        cache.images.pull(source, &Credentials::default(), &quiet()).await.expect_err("cut again and again");
    }
    cache.images.forget_downloads(&BTreeSet::from([kept])).await.expect("forgotten");
    assert_eq!(
        cache.files().iter().filter(|name| name.ends_with(".partial")).count(),
        1,
        "{:?}",
        cache.files()
    );
    cache.images.forget_downloads(&BTreeSet::new()).await.expect("forgotten");
    assert!(cache.files().is_empty(), "{:?}", cache.files());
}

#[tokio::test]
async fn a_file_of_checksums_is_read_and_bounded() {
    let digest = "a1".repeat(64);
    let line = format!("{digest}  debian.qcow2\n");
    let server = Server::start(move |request| match request.path.as_str() {
        "/SHA512SUMS?sig=canary" => Reply::file(line.as_bytes()),
        "/twice" => Reply::file(format!("{line}{}  debian.qcow2\n", "b2".repeat(64)).as_bytes()),
        "/endless" => Reply::file(&vec![b'a'; 2 * MIB]),
        _ => Reply::status(403),
    });
    let cache = Cache::new();
    let find = async |path: &str, image: &str| {
        let image_url = format!("https://images.example/{image}?sig=canary");
        let (url, shown) = (server.url(path), without_query(&server.url(path)));
        let (namespace, limits) = ("ns".to_owned(), DownloadLimits::default());
        let at = ChecksumSource {
            namespace,
            url,
            shown,
            image_url,
            secret: None,
            is_computed: false,
            architecture: None,
            limits,
            token: None,
        };
        cache.images.resolve(&at, &Credentials::default()).await.map(|resolved| resolved.digest)
    };
    assert_eq!(find("/SHA512SUMS?sig=canary", "debian.qcow2").await.expect("found"), digest);
    for (path, image, says) in [
        ("/SHA512SUMS?sig=canary", "other.qcow2", "other.qcow2"),
        ("/twice", "debian.qcow2", "several"),
        ("/endless", "debian.qcow2", "1 MiB"),
        ("/none", "debian.qcow2", "403"),
    ] {
        let error = find(path, image).await.expect_err(path);
        assert!(error.chain().contains(says) && !error.chain().contains("canary"), "{}", error.chain());
    }
}
