//! Images in a container registry.

use std::sync::OnceLock;

use serde_json::json;

use super::*;
use crate::{ChecksumSource, ResolvedImage};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A registry with one repository, `disks/debian`, that gives its content to those with a token.
struct Registry {
    server: Server,
    layer: Vec<u8>,
}

impl Registry {
    fn start(layers: usize) -> Self {
        Self::for_user(layers, None)
    }

    /// A registry that gives its token to this user (the value of the header).
    fn for_user(layers: usize, user: Option<&'static str>) -> Self {
        let layer = raw(MIB);
        let described = json!({"mediaType": LAYER, "digest": format!("sha256:{}", sha256(&layer))});
        let manifest = json!({"layers": vec![described; layers]}).to_string();
        let platform = |architecture: &str| json!({"architecture": architecture, "os": "linux"});
        let index = json!({"mediaType": INDEX, "manifests": [
            {"digest": format!("sha256:{}", "0".repeat(64)), "platform": platform("s390x")},
            {"digest": format!("sha256:{}", sha256(manifest.as_bytes())), "platform": platform("amd64")},
            {"digest": format!("sha256:{}", sha256(manifest.as_bytes())), "platform": platform("arm64")},
        ]})
        .to_string();
        let realm: Arc<OnceLock<String>> = Arc::default();
        let (own, bytes) = (Arc::clone(&realm), layer.clone());
        let server = Server::start(move |request| {
            let realm = own.get().expect("set before the first request");
            let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
            if path == "/token" {
                assert_eq!(query, "service=test&scope=repository%3Adisks%2Fdebian%3Apull");
                if request.authorization.as_deref() != user {
                    return Reply::status(401);
                }
                // As Docker Hub, which has both names.
                return Reply::file(br#"{"token": "t0ken", "access_token": "t0ken", "expires_in": 300}"#);
            }
            if request.authorization.as_deref() != Some("Bearer t0ken") {
                let challenge = format!("Bearer realm=\"{realm}\",service=\"test\"");
                return Reply::status(401).header("WWW-Authenticate", challenge);
            }
            let manifests = "/v2/disks/debian/manifests/";
            match path.strip_prefix(manifests) {
                Some("13") => Reply::file(index.as_bytes()),
                Some(digest) if *digest == format!("sha256:{}", sha256(manifest.as_bytes())) => {
                    Reply::file(manifest.as_bytes())
                }
                // A registry that returns other bytes than were asked for.
                Some(digest) if digest.starts_with("sha256:f") || digest.starts_with("sha512:") => {
                    Reply::file(manifest.as_bytes())
                }
                Some(_) => Reply::status(404),
                None if path.starts_with("/v2/disks/debian/blobs/sha256:") => Reply::range(&bytes, request),
                None => Reply::status(200),
            }
        });
        realm.set(server.url("/token")).expect("once");
        Self { server, layer }
    }

    fn url(&self, reference: &str) -> String {
        self.server.url(&format!("/disks/debian{reference}")).replacen("http://", "oci://", 1)
    }

    fn wanted(&self, reference: &str) -> ChecksumSource {
        wanted(self.url(reference))
    }
}

fn wanted(url: String) -> ChecksumSource {
    ChecksumSource {
        namespace: "ns".to_owned(),
        shown: url.clone(),
        image_url: url.clone(),
        url,
        secret: None,
        is_computed: false,
        architecture: None,
        limits: DownloadLimits::default(),
        token: None,
    }
}

/// The places of a registry that gives this answer to requests for a token, or for a manifest.
const ANSWERS: [&str; 2] = ["/token", "/v2/disks/debian/manifests/13"];

/// Looks up a tag in a registry that misbehaves in one of its answers. Returns the error, and the number of requests.
async fn misled(place: &'static str, answer: impl Fn() -> Reply + Send + Sync + 'static) -> (String, usize) {
    let server = Server::start(move |request| {
        let path = request.path.split('?').next().unwrap_or_default();
        match request.authorization.as_deref() {
            _ if path == place => answer(),
            _ if path == "/token" => Reply::file(br#"{"token": "t0ken"}"#),
            Some("Bearer t0ken") => Reply::status(404),
            // The tokens are at the registry itself.
            _ => {
                let host = request.host.as_deref().expect("each request names it");
                let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"test\"");
                Reply::status(401).header("WWW-Authenticate", challenge)
            }
        }
    });
    let wanted = wanted(server.url("/disks/debian:13").replacen("http://", "oci://", 1));
    let images = Cache::new().images;
    let client = images.client(&Credentials::default(), &wanted.url, &wanted.shown).expect("a client");
    let error = oci::resolve_within(&client, &wanted, Duration::from_secs(2)).await.expect_err("misled");
    assert!(matches!(error, SystemError::Download { .. }), "{error:?}");
    assert_eq!(error.retry(), crate::Retry::Backoff);
    (error.chain(), server.requests().len())
}

#[tokio::test]
async fn a_registry_that_redirects_in_a_circle_is_left_after_a_few_requests() {
    for place in ANSWERS {
        let (error, requests) = misled(place, move || Reply::status(307).header("Location", place)).await;
        assert!(error.contains("too many redirects"), "{error}");
        assert!(requests < 12, "{requests}");
    }
}

#[tokio::test]
async fn a_registry_that_stalls_or_ends_early_or_never_ends_is_an_error_that_says_so() {
    let body = br#"{"token": "t0ken", "layers": []}"#;
    let large: &'static [u8] = raw(5 * MIB).leak();
    for place in ANSWERS {
        let (error, _) = misled(place, move || Reply::file(body).late_by(Duration::from_secs(60))).await;
        assert!(error.contains("no answer within 2 seconds"), "{error}");
        let (error, _) = misled(place, move || Reply::file(body).cut_after(9)).await;
        assert!(error.contains("the transfer failed"), "{error}");
        let (error, _) = misled(place, move || Reply::file(large).length_told(false)).await;
        assert!(error.contains("the answer is larger than"), "{error}");
    }
}

#[tokio::test]
async fn a_layer_is_found_by_tag_and_downloaded_by_its_digest_with_a_token() {
    let registry = Registry::start(1);
    let cache = Cache::new();
    let resolved =
        cache.images.resolve(&registry.wanted(":13"), &Credentials::default()).await.expect("resolved");
    let digest = sha256(&registry.layer);
    assert_eq!(resolved, ResolvedImage { digest: digest.clone(), media_type: Some(LAYER.to_owned()) });
    // As an artifact that is the disk itself: containers are unpacked by a process of `berth`, which tests here have not.
    let source = ImageSource { digest, ..source(registry.url(":13"), &registry.layer, Format::Raw) };
    let facts = cache.images.pull(&source, &Credentials::default(), &quiet()).await.expect("pulled");
    assert_eq!(fs::read(&facts.path).expect("in the cache"), registry.layer);
    let blobs = registry.server.requests().into_iter().filter(|request| request.path.contains("/blobs/"));
    assert_eq!(blobs.count(), 1);
}

#[tokio::test]
async fn a_registry_gives_its_token_to_the_user_of_the_credentials() {
    let registry = Registry::for_user(1, Some("Basic bWU6c2VjcmV0"));
    let cache = Cache::new();
    let wanted = registry.wanted(":13");
    let error = cache.images.resolve(&wanted, &Credentials::default()).await.expect_err("nobody");
    assert!(error.chain().contains("gives no token"), "{}", error.chain());
    let basic = Some(("me".to_owned(), "secret".to_owned()));
    let user = Credentials { basic, ..Credentials::default() };
    cache.images.resolve(&wanted, &user).await.expect("resolved");
    let digest = sha256(&registry.layer);
    let source = ImageSource { digest, ..source(registry.url(":13"), &registry.layer, Format::Raw) };
    cache.images.pull(&source, &user, &quiet()).await.expect("pulled");
    let as_it_is = Credentials { token: Some("t0ken".to_owned()), ..Credentials::default() };
    cache.images.resolve(&wanted, &as_it_is).await.expect("resolved with a token that the registry takes");
}

#[tokio::test]
async fn an_image_of_several_layers_is_refused() {
    for layers in [0, 2] {
        let registry = Registry::start(layers);
        let error = Cache::new()
            .images
            .resolve(&registry.wanted(":13"), &Credentials::default())
            .await
            .expect_err("refused");
        assert!(matches!(error, SystemError::ImageRefused { .. }), "{error:?}");
        assert!(error.chain().contains(&format!("{layers} layers")), "{error}");
    }
}

#[tokio::test]
async fn a_registry_without_the_image_and_one_that_lies_about_a_digest_are_told_apart() {
    let registry = Registry::start(1);
    let images = Cache::new().images;
    let error =
        images.resolve(&registry.wanted(":12"), &Credentials::default()).await.expect_err("not there");
    assert!(matches!(error, SystemError::ImageNotFound { .. }), "{error:?}");
    for other in [format!("@sha256:{}", "f".repeat(64)), format!("@sha512:{}", "f".repeat(128))] {
        let error =
            images.resolve(&registry.wanted(&other), &Credentials::default()).await.expect_err("other bytes");
        assert!(matches!(error, SystemError::ChecksumMismatch { .. }), "{other}: {error:?}");
    }
}

#[tokio::test]
async fn a_registry_at_an_address_that_is_not_allowed_is_not_asked() {
    let registry = Registry::start(1);
    let folder = tempfile::tempdir().expect("temporary folder");
    let images = with_rules(folder.path(), 1 << 30, ImageRules::default());
    let error = images.resolve(&registry.wanted(":13"), &Credentials::default()).await.expect_err("refused");
    assert!(matches!(error, SystemError::ImageNotAllowed { .. }), "{error:?}");
    assert!(registry.server.requests().is_empty());
}
