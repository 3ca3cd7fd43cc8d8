//! Images in an OCI registry: `oci://REGISTRY/REPOSITORY[:TAG|@DIGEST]`, as in the OCI Distribution Specification.
//!
//! ```text
//!  index ──the architecture──▶ manifest ──its only layer──▶ digest, media type     (once, for status.checksum)
//!  digest ──────────────────────────────────────────────▶ blob                      (on each host)
//! ```
//!
//! The layer is a disk image, or a tar archive with one below `/disk`: the container disks of KubeVirt.

use std::net::IpAddr;
use std::time::Duration;

use berth_qemu::machine::Architecture;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use sha2::{Digest, Sha256, Sha512};

use super::super::layout::is_digest;
use super::Result;
use super::http::{self, Client, NOT_ALLOWED, NoAnswer, Request};
use crate::{ChecksumSource, ImageSource, ResolvedImage, SystemError};

/// The maximum size of a manifest, as registries limit it.
const MAX_MANIFEST: usize = 4 << 20;
const MAX_TOKEN: usize = 1 << 20;
/// The time limit for all requests until the digest is known.
const LIMIT: Duration = Duration::from_secs(60);
const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// The parts of an `oci://` URL.
#[derive(Debug, PartialEq, Eq)]
struct Reference {
    /// `https://REGISTRY/`, or `http://` on the loopback of the host.
    registry: Url,
    repository: String,
    /// A tag, or a digest with its algorithm.
    reference: String,
    /// User name and password. Never printed.
    user: Option<(String, String)>,
    /// A token that the registry takes as it is. Never printed.
    token: Option<String>,
}

/// Returns the URL of the registry of an `oci://` URL.
pub(super) fn registry(url: &str) -> Option<Url> {
    Some(Reference::parse(url).ok()?.registry)
}

impl Reference {
    fn parse(url: &str) -> std::result::Result<Self, &'static str> {
        let wrong = "oci://REGISTRY/REPOSITORY is needed, with :TAG or @sha256:… at its end";
        let rest = url.strip_prefix("oci://").ok_or(wrong)?;
        let (authority, path) = rest.split_once('/').ok_or(wrong)?;
        let (repository, reference) = match path.split_once('@') {
            // A tag before a digest is for people.
            Some((name, digest)) => (name.split_once(':').map_or(name, |(name, _)| name), digest),
            None => path.split_once(':').unwrap_or((path, "latest")),
        };
        let plain = |text: &str, more: &[u8]| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || more.contains(&b))
        };
        if !plain(repository, b"._-/") || repository.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(wrong);
        }
        if !plain(reference, b"._-:") || reference.contains(':') && digest_of(reference).is_none() {
            return Err(wrong);
        }
        let mut registry = Url::parse(&format!("https://{authority}/")).map_err(|_| wrong)?;
        let user = (!registry.username().is_empty()).then(|| {
            let decoded = |text: &str| percent_decoded(text);
            (decoded(registry.username()), decoded(registry.password().unwrap_or_default()))
        });
        // Neither can fail for a URL with a host.
        let _ = registry.set_username("");
        let _ = registry.set_password(None);
        let host = registry.host_str().ok_or(wrong)?.trim_matches(['[', ']']);
        if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
            registry = Url::parse(&registry.as_str().replacen("https", "http", 1)).map_err(|_| wrong)?;
        }
        if registry.host_str() == Some("docker.io") {
            let _ = registry.set_host(Some("registry-1.docker.io"));
        }
        Ok(Self {
            registry,
            repository: repository.to_owned(),
            reference: reference.to_owned(),
            user,
            token: None,
        })
    }

    fn url(&self, what: &str, reference: &str) -> Option<Url> {
        self.registry.join(&format!("v2/{}/{what}/{reference}", self.repository)).ok()
    }

    fn basic(&self) -> Option<HeaderValue> {
        let (name, password) = self.user.as_ref()?;
        let mut value = HeaderValue::from_str(&http::basic(name, password)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

fn percent_decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Returns the hexadecimal digits of a digest with its algorithm.
fn digest_of(text: &str) -> Option<&str> {
    let (algorithm, digits) = text.split_once(':')?;
    let length = match algorithm {
        "sha256" => 64,
        "sha512" => 128,
        _ => return None,
    };
    (digits.len() == length && is_digest(digits)).then_some(digits)
}

/// Returns the digest of these bytes, by the algorithm of another digest, in hexadecimal digits.
fn digest_like(other: &str, bytes: &[u8]) -> String {
    let digest = match other.len() {
        128 => Sha512::digest(bytes).to_vec(),
        _ => Sha256::digest(bytes).to_vec(),
    };
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    manifests: Vec<Described>,
    #[serde(default)]
    layers: Vec<Described>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Described {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Debug, Default, Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

/// The requests to one registry, and the URL for messages.
struct Registry<'a> {
    client: &'a Client,
    reference: Reference,
    shown: &'a str,
}

impl<'a> Registry<'a> {
    fn of(client: &'a Client, url: &str, shown: &'a str) -> Result<Self> {
        let mut reference = Reference::parse(url).map_err(|why| SystemError::Invalid {
            what: "image URL",
            value: shown.to_owned(),
            why,
        })?;
        if let Some(credentials) = client.credentials() {
            reference.user = credentials.basic.clone().or(reference.user);
            reference.token.clone_from(&credentials.token);
        }
        Ok(Self { client, reference, shown })
    }

    fn failed(&self, detail: impl Into<String>) -> SystemError {
        SystemError::Download { url: self.shown.to_owned(), detail: detail.into() }
    }

    fn no_answer(&self, why: NoAnswer) -> SystemError {
        match why {
            NoAnswer::NotAllowed => {
                SystemError::ImageNotAllowed { url: self.shown.to_owned(), why: NOT_ALLOWED }
            }
            NoAnswer::Never(detail) | NoAnswer::Failed(detail) => self.failed(detail),
        }
    }

    /// Returns what the registry wants to see with each request.
    async fn authorization(&self) -> Result<Option<HeaderValue>> {
        let ping = self.reference.registry.join("v2/").map_err(|error| self.failed(error.to_string()))?;
        let response = self.client.get(&ping, HeaderMap::new()).await.map_err(|why| self.no_answer(why))?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(self.reference.basic());
        }
        let challenge = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        match challenge.and_then(|text| text.split_once(' ')) {
            Some((scheme, fields)) if scheme.eq_ignore_ascii_case("bearer") => match &self.reference.token {
                Some(token) => self.bearer(token).map(Some),
                None => self.token(fields).await.map(Some),
            },
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("basic") => match self.reference.basic() {
                Some(basic) => Ok(Some(basic)),
                None => Err(self.failed("the registry wants a user name and a password")),
            },
            _ => Err(self.failed("the registry requires a kind of authentication that is not supported")),
        }
    }

    async fn token(&self, challenge: &str) -> Result<HeaderValue> {
        let mut url = realm(challenge, &self.reference.registry).map_err(|why| self.failed(why))?;
        if let Some(service) = field(challenge, "service") {
            url.query_pairs_mut().append_pair("service", service);
        }
        let scope = format!("repository:{}:pull", self.reference.repository);
        url.query_pairs_mut().append_pair("scope", &scope);
        let mut headers = HeaderMap::new();
        headers.extend(self.reference.basic().map(|basic| (AUTHORIZATION, basic)));
        let answer = self.client.small(&url, headers, MAX_TOKEN).await.map_err(|why| self.no_answer(why))?;
        if answer.status != StatusCode::OK {
            return Err(self.failed(format!("the registry gives no token: HTTP {}", answer.status)));
        }
        let token = token_in(&answer.body);
        self.bearer(&token.ok_or_else(|| self.failed("the registry's answer has no token in JSON"))?)
    }

    fn bearer(&self, token: &str) -> Result<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| self.failed("the registry's token is not usable"))?;
        value.set_sensitive(true);
        Ok(value)
    }

    async fn manifest(&self, reference: &str, authorization: Option<&HeaderValue>) -> Result<Manifest> {
        let url = self.reference.url("manifests", reference);
        let url = url.ok_or_else(|| self.failed("its name makes no URL"))?;
        let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(ACCEPTED))]);
        headers.extend(authorization.map(|value| (AUTHORIZATION, value.clone())));
        let answer =
            self.client.small(&url, headers, MAX_MANIFEST).await.map_err(|why| self.no_answer(why))?;
        match answer.status {
            StatusCode::OK => {}
            status @ (StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                // Registries do not tell a repository that is private from one that does not exist.
                let detail = format!("HTTP {status}: no such repository or tag, or it is private");
                return Err(SystemError::ImageNotFound { url: self.shown.to_owned(), detail });
            }
            status => return Err(self.failed(format!("HTTP {status}"))),
        }
        if let Some(declared) = digest_of(reference)
            && declared != digest_like(declared, &answer.body)
        {
            return Err(SystemError::ChecksumMismatch {
                url: self.shown.to_owned(),
                declared: declared.to_owned(),
            });
        }
        serde_json::from_slice(&answer.body).map_err(|_| self.failed("its manifest is not JSON of an image"))
    }

    fn refused(&self, detail: impl Into<String>) -> SystemError {
        SystemError::ImageRefused { url: self.shown.to_owned(), detail: detail.into() }
    }

    async fn resolve(&self, architecture: Architecture) -> Result<ResolvedImage> {
        let authorization = self.authorization().await?;
        let mut manifest = self.manifest(&self.reference.reference, authorization.as_ref()).await?;
        if !manifest.manifests.is_empty() {
            let chosen = of_architecture(&manifest.manifests, architecture)
                .ok_or_else(|| self.refused(format!("it has no image for {}", architecture.as_str())))?;
            if digest_of(&chosen.digest).is_none() {
                return Err(self.refused("its index has a digest that is not SHA-256 or SHA-512"));
            }
            manifest = self.manifest(&chosen.digest, authorization.as_ref()).await?;
        }
        let [layer] = manifest.layers.as_slice() else {
            let layers = manifest.layers.len();
            return Err(self.refused(format!(
                "it has {layers} layers: the image of a disk has one, which is the disk or contains /disk"
            )));
        };
        match digest_of(&layer.digest) {
            Some(digest) => Ok(ResolvedImage {
                digest: digest.to_owned(),
                media_type: Some(layer.media_type.clone()).filter(|text| !text.is_empty()),
            }),
            None => Err(self.refused("its layer has a digest that is not SHA-256 or SHA-512")),
        }
    }
}

/// Returns the image for an architecture; without platforms, the only one.
fn of_architecture(all: &[Described], architecture: Architecture) -> Option<&Described> {
    let name = match architecture {
        Architecture::X86_64 => "amd64",
        Architecture::Aarch64 => "arm64",
    };
    let fits = |described: &&Described| {
        described.platform.as_ref().is_some_and(|p| p.architecture == name && matches!(&*p.os, "" | "linux"))
    };
    match all {
        [only] if only.platform.is_none() => Some(only),
        _ => all.iter().find(fits),
    }
}

/// Returns the token in the answer of a registry. For clients of OAuth 2.0, some have it under another name, and some under both.
fn token_in(answer: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        token: Option<String>,
        access_token: Option<String>,
    }
    let answer: Answer = serde_json::from_slice(answer).ok()?;
    answer.token.or(answer.access_token)
}

/// Returns where a registry gives out its tokens. That is where user name and password are sent.
fn realm(challenge: &str, registry: &Url) -> std::result::Result<Url, &'static str> {
    let url = field(challenge, "realm").and_then(|realm| Url::parse(realm).ok());
    let url = url.ok_or("the registry names no address for its tokens")?;
    match url.scheme() == "https" || registry.scheme() == "http" {
        true => Ok(url),
        false => Err("the registry's tokens are at an address without HTTPS"),
    }
}

/// Returns a field of a challenge such as `realm="https://auth.example/token",service="registry"`.
fn field<'a>(challenge: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = challenge;
    loop {
        let (key, after) = rest.trim_start_matches([',', ' ']).split_once('=')?;
        // A value in quotation marks may have spaces and commas.
        let (value, others) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once([',', ' ']).unwrap_or((after, "")),
        };
        if key.trim().eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = others;
    }
}

/// Finds the layer of an image in a registry.
pub(super) async fn resolve(client: &Client, source: &ChecksumSource) -> Result<ResolvedImage> {
    resolve_within(client, source, LIMIT).await
}

pub(super) async fn resolve_within(
    client: &Client,
    source: &ChecksumSource,
    limit: Duration,
) -> Result<ResolvedImage> {
    let registry = Registry::of(client, &source.url, &source.shown)?;
    let architecture = source.architecture.unwrap_or_else(Architecture::of_host);
    tokio::time::timeout(limit, registry.resolve(architecture))
        .await
        .map_err(|_| registry.failed(format!("no answer within {} seconds", limit.as_secs())))?
}

/// Returns the request for the bytes of a layer.
pub(super) async fn blob(client: &Client, source: &ImageSource) -> Result<Request> {
    let registry = Registry::of(client, &source.url, &source.shown)?;
    let authorization = tokio::time::timeout(LIMIT, registry.authorization())
        .await
        .map_err(|_| registry.failed(format!("no answer within {} seconds", LIMIT.as_secs())))??;
    let algorithm = if source.digest.len() == 128 { "sha512" } else { "sha256" };
    let url = registry.reference.url("blobs", &format!("{algorithm}:{}", source.digest));
    let url = url.ok_or_else(|| registry.failed("its name makes no URL"))?;
    Ok(Request { url, authorization })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> (String, String, String) {
        let reference = Reference::parse(url).expect(url);
        (reference.registry.to_string(), reference.repository, reference.reference)
    }

    #[test]
    fn a_reference_has_registry_repository_and_tag_or_digest() {
        let owned = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        let digest = format!("sha256:{}", "ab".repeat(32));
        for (url, wanted) in [
            (
                "oci://quay.io/containerdisks/fedora:40",
                owned("https://quay.io/", "containerdisks/fedora", "40"),
            ),
            ("oci://docker.io/library/x", owned("https://registry-1.docker.io/", "library/x", "latest")),
            ("oci://127.0.0.1:5000/a", owned("http://127.0.0.1:5000/", "a", "latest")),
            ("oci://localhost/a:b", owned("http://localhost/", "a", "b")),
            (&format!("oci://r.example/a:b@{digest}"), owned("https://r.example/", "a", &digest)),
        ] {
            assert_eq!(parsed(url), wanted, "{url}");
        }
        for wrong in [
            "oci://r.example",
            "oci://r.example/",
            "oci:///a",
            "oci://r.example/a/../b",
            "oci://r.example/a@sha256:12",
            "oci://r.example/a b",
            "oci://r.example/a?x=y",
            "https://r.example/a",
        ] {
            assert!(Reference::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_user_is_sent_and_not_a_part_of_the_address() {
        let reference = Reference::parse("oci://me:se%40cret@r.example/a").expect("a reference");
        assert_eq!(reference.registry.as_str(), "https://r.example/");
        assert_eq!(reference.user, Some(("me".to_owned(), "se@cret".to_owned())));
        assert_eq!(reference.basic().expect("a header").to_str().expect("text"), "Basic bWU6c2VAY3JldA==");
    }

    #[test]
    fn the_fields_of_a_challenge_are_found() {
        let challenge = r#"realm="https://auth.example/token",service="registry.example",scope="x""#;
        assert_eq!(field(challenge, "realm"), Some("https://auth.example/token"));
        assert_eq!(field(challenge, "service"), Some("registry.example"));
        assert_eq!(field(challenge, "error"), None);
        let spaced = r#"service="Docker registry", scope="repository:a:pull,push",realm=https://b.example/x"#;
        assert_eq!(field(spaced, "service"), Some("Docker registry"));
        assert_eq!(field(spaced, "Realm"), Some("https://b.example/x"));
        for broken in ["", "realm", r#"realm="https://a"#, r#",,"#] {
            assert_eq!(field(broken, "realm"), None, "{broken}");
        }
    }

    #[test]
    fn bytes_are_compared_by_the_algorithm_of_the_declared_digest() {
        let (short, long) = (digest_like(&"0".repeat(64), b""), digest_like(&"0".repeat(128), b""));
        assert!(short.starts_with("e3b0c44298fc1c14") && short.len() == 64, "{short}");
        assert!(long.starts_with("cf83e1357eefb8bd") && long.len() == 128, "{long}");
    }

    #[test]
    fn a_token_is_found_under_either_name_and_under_both() {
        for answer in [
            r#"{"token": "t", "expires_in": 300}"#,
            r#"{"access_token": "t"}"#,
            r#"{"token": "t", "access_token": "t", "expires_in": 300, "issued_at": "2026-01-01T00:00:00Z"}"#,
        ] {
            assert_eq!(token_in(answer.as_bytes()).as_deref(), Some("t"), "{answer}");
        }
        for answer in ["{}", "[]", "t", ""] {
            assert_eq!(token_in(answer.as_bytes()), None, "{answer}");
        }
    }

    #[test]
    fn a_password_for_a_registry_with_https_goes_nowhere_without_it() {
        let registry = |url: &str| Url::parse(url).expect("a URL");
        let (secure, local) = (registry("https://r.example/"), registry("http://127.0.0.1:5000/"));
        assert!(realm(r#"realm="https://auth.example/token""#, &secure).is_ok());
        assert!(realm(r#"realm="http://auth.example/token""#, &secure).is_err());
        assert!(realm(r#"realm="http://127.0.0.1:5000/token""#, &local).is_ok());
        assert!(realm(r#"service="x""#, &secure).is_err());
    }

    #[test]
    fn an_index_is_searched_for_an_architecture() {
        let all = |text: &str| serde_json::from_str::<Manifest>(text).expect("an index").manifests;
        let none =
            all(r#"{"manifests": [{"digest": "a", "platform": {"architecture": "s390x", "os": "linux"}}]}"#);
        let of = |all| of_architecture(all, Architecture::X86_64).map(|found| found.digest.as_str());
        assert_eq!(of(&none), None);
        let only = all(r#"{"manifests": [{"digest": "a"}]}"#);
        assert_eq!(of(&only), Some("a"));
        let both =
            all(r#"{"manifests": [{"digest": "a", "platform": {"architecture": "amd64", "os": "linux"}},
                {"digest": "b", "platform": {"architecture": "arm64", "os": "linux"}}]}"#);
        assert_eq!(of(&both), Some("a"));
        let of_arm = of_architecture(&both, Architecture::Aarch64).map(|found| found.digest.as_str());
        assert_eq!(of_arm, Some("b"));
    }
}
