//! Requests to a Vault, and the meaning of its answers.

use std::net::IpAddr;
use std::time::Duration;

use futures::StreamExt as _;
use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::super::images::{LinuxImages, without_url};
use crate::{Result, SystemError, VaultAccess, VaultProblem};

/// The maximum length of an answer.
const MAX_ANSWER: usize = 64 << 10;
/// The maximum length of a server's own words in a message.
const MAX_WORDS: usize = 200;
const LOGIN: &str = "auth/approle/login";
/// The end of an error of the resolver, which knows the addresses of a name.
const NOT_ALLOWED: &str = "the address is not allowed";

/// A Vault to connect to.
pub(super) struct Server<'a> {
    access: &'a VaultAccess,
    client: Client,
    address: Url,
}

/// A call of the API.
struct Request<'a> {
    /// Below `/v1/`.
    path: &'a str,
    token: Option<&'a SecretString>,
    body: &'a Value,
}

impl<'a> Server<'a> {
    pub(super) fn new(images: &LinuxImages, access: &'a VaultAccess, connect: Duration) -> Result<Self> {
        let failed = |problem, detail: String| failed(access, problem, detail);
        let address = address(&access.address).map_err(|why| failed(VaultProblem::Unreachable, why))?;
        if !images.allows_url(&access.address) {
            let why = "its address is not public: this host's administrator allows it with --image-allow";
            return Err(failed(VaultProblem::Unreachable, why.to_owned()));
        }
        let ca = access.ca.as_deref().map_or(Some(Vec::new()), |pem| {
            Certificate::from_pem_bundle(pem.as_bytes()).ok().filter(|found| !found.is_empty())
        });
        let no_ca =
            || failed(VaultProblem::Denied, "the Secret of caSecret has no certificates in PEM".to_owned());
        let ca = ca.ok_or_else(no_ca)?;
        let builder = || {
            Client::builder()
                .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
                // A proxy would connect to addresses that the resolver does not see.
                .no_proxy()
                .dns_resolver(images.resolver())
                .connect_timeout(connect)
                .pool_max_idle_per_host(0)
                .referer(false)
                // The token is for one address.
                .redirect(Policy::none())
        };
        let client = builder().tls_certs_merge(ca).build();
        // http:// has to work on hosts without root certificates.
        let client = if address.scheme() == "http" {
            client.or_else(|_| builder().tls_certs_only([]).build())
        } else {
            client
        };
        let client = client.map_err(|error| {
            let why = format!("{}: are root certificates installed (ca-certificates)?", chain(&error));
            failed(VaultProblem::Unreachable, why)
        })?;
        Ok(Self { access, client, address })
    }

    pub(super) fn failed(&self, problem: VaultProblem, detail: String) -> SystemError {
        failed(self.access, problem, detail)
    }

    /// Calls the transit engine.
    pub(super) async fn post(&self, path: &str, token: &SecretString, body: &Value) -> Result<Value> {
        let request = Request { path, token: Some(token), body };
        let (status, answer) = self.send(&request).await?;
        if status.is_success() {
            return Ok(answer);
        }
        let words = words(&answer, &request);
        let VaultAccess { mount, key, .. } = self.access;
        let (problem, advice) = match status.as_u16() {
            400 if words.contains("key not found") || words.contains("no existing key") => {
                (VaultProblem::NoKey, format!("there is no key {key} at {mount}: create it"))
            }
            400 => (
                VaultProblem::Refused,
                format!(
                    "the key {key} at {mount} is not usable: it may be another one than before, or of a type that does not encrypt"
                ),
            ),
            401 | 403 => {
                let advice = format!(
                    "the token is refused: see that it is valid, that its policy permits update of {mount}/encrypt/{key} and \
                     {mount}/decrypt/{key}, and that the key exists"
                );
                (VaultProblem::Denied, advice)
            }
            404 => (
                VaultProblem::NoKey,
                format!("there is no transit engine at {mount}: enable it, and create the key {key}"),
            ),
            _ => (VaultProblem::Unreachable, passing(status, &words)),
        };
        Err(self.failed(problem, with_words(status, advice, &words)))
    }

    /// Logs in by AppRole.
    pub(super) async fn log_in(&self, body: &Value) -> Result<Value> {
        let request = Request { path: LOGIN, token: None, body };
        let (status, answer) = self.send(&request).await?;
        if status.is_success() {
            return Ok(answer);
        }
        let words = words(&answer, &request);
        let (problem, advice) = match status.as_u16() {
            400 | 401 | 403 => {
                (VaultProblem::Denied, "the AppRole is refused: see the role ID and the secret ID".to_owned())
            }
            404 => (VaultProblem::Denied, "AppRole is not enabled at auth/approle".to_owned()),
            _ => (VaultProblem::Unreachable, passing(status, &words)),
        };
        Err(self.failed(problem, with_words(status, advice, &words)))
    }

    /// Returns the status, and the answer if it is JSON.
    async fn send(&self, request: &Request<'_>) -> Result<(StatusCode, Value)> {
        let mut url = self.address.clone();
        url.set_path(&format!("/v1/{}", request.path));
        let mut post = self
            .client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            // Agents of a Vault require it.
            .header(HeaderName::from_static("x-vault-request"), "true")
            .body(request.body.to_string());
        if let Some(token) = request.token {
            let mut value = HeaderValue::from_str(token.expose_secret()).map_err(|_| {
                let detail = "the token has characters that are not allowed in one".to_owned();
                self.failed(VaultProblem::Denied, detail)
            })?;
            value.set_sensitive(true);
            post = post.header(HeaderName::from_static("x-vault-token"), value);
        }
        if let Some(namespace) = &self.access.namespace {
            post = post.header(HeaderName::from_static("x-vault-namespace"), namespace.as_str());
        }
        let unreachable = |detail: String| self.failed(VaultProblem::Unreachable, detail);
        let response = post.send().await.map_err(|error| unreachable(chain(&error)))?;
        let status = response.status();
        let (mut body, mut stream) = (Vec::new(), response.bytes_stream());
        while let Some(block) = stream.next().await {
            let block = block.map_err(|error| unreachable(chain(&error)))?;
            if body.len() + block.len() > MAX_ANSWER {
                return Err(unreachable(format!(
                    "its answer is larger than {} KiB: is it a Vault?",
                    MAX_ANSWER >> 10
                )));
            }
            body.extend_from_slice(&block);
        }
        match serde_json::from_slice(&body) {
            Ok(answer) => Ok((status, answer)),
            Err(_) if status.is_success() => {
                Err(unreachable("its answer is no JSON: is it a Vault?".to_owned()))
            }
            Err(_) => Ok((status, Value::Null)),
        }
    }
}

pub(super) fn failed(access: &VaultAccess, problem: VaultProblem, detail: impl Into<String>) -> SystemError {
    SystemError::Vault { vault: access.shown.clone(), problem, detail: detail.into() }
}

/// Returns the URL of a server.
///
/// *Errors*: for people, without the text, which may have a password.
fn address(text: &str) -> std::result::Result<Url, String> {
    let wrong = || "vault.address must be https://HOST[:PORT], without a path".to_owned();
    let url = Url::parse(text).map_err(|_| wrong())?;
    let is_plain = url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    let host = url.host_str().filter(|_| is_plain).ok_or_else(wrong)?;
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    match url.scheme() {
        "https" => Ok(url),
        "http" if literal.is_ok_and(|address| address.is_loopback()) => Ok(url),
        "http" => Err(
            "vault.address must begin with https://: the token and the keys would be readable on the network"
                .to_owned(),
        ),
        _ => Err(wrong()),
    }
}

/// What an answer means that may be another one later.
fn passing(status: StatusCode, words: &str) -> String {
    if status.is_redirection() {
        return "it redirects to another address, which is not followed: use the address of the active server, or of one that forwards \
                requests"
            .to_owned();
    }
    match words.contains("sealed") {
        true => "it is sealed: unseal it".to_owned(),
        false => "it answers with an error".to_owned(),
    }
}

fn with_words(status: StatusCode, advice: String, words: &str) -> String {
    match words.is_empty() {
        true => format!("{advice} (status {})", status.as_u16()),
        false => format!("{advice} (status {}: {words})", status.as_u16()),
    }
}

/// Returns the errors of an answer, if they have nothing of the request in them that is secret.
fn words(answer: &Value, request: &Request<'_>) -> String {
    let errors = answer["errors"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let text = errors.collect::<Vec<_>>().join("; ");
    let token = request.token.map(|token| token.expose_secret());
    let sent = request.body.as_object().into_iter().flatten().filter_map(|(_, value)| value.as_str());
    if sent.chain(token).any(|secret| text.contains(secret)) {
        return String::new();
    }
    let shown = text.chars().map(|c| if c.is_ascii_graphic() { c } else { ' ' });
    shown.take(MAX_WORDS).collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Formats reqwest's errors with their causes but without the URL.
fn chain(error: &reqwest::Error) -> String {
    let mut text = without_url(error);
    if text.ends_with(NOT_ALLOWED) {
        text.push_str(": this host's administrator allows it with --image-allow");
    }
    text
}
