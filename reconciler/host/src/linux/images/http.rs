//! Images from HTTP servers: the requests, and the credentials and addresses that they are made with.

use std::error::Error as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::StreamExt;
use reqwest::header::{
    AUTHORIZATION, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_RANGE, LAST_MODIFIED,
    LOCATION, RANGE,
};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Response, StatusCode, Url};

use super::super::files::blocking;
use super::Result;
use super::attempts::{self, Begun, STALL_TIMEOUT, Stop, Transport};
use super::job::Job;
use super::partial::{self, Partial};
use super::rules::{Guard, NotAllowed, Rules};
use crate::Credentials;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const MAX_REDIRECTS: usize = 5;

/// The same message for every refused address, whether or not a server answers there.
pub(super) const NOT_ALLOWED: &str = "images may not come from its address, unless the host's administrator allows the range with --image-allow";

/// The HTTP clients, created at the first download: hosts that only use local files need no root certificates.
#[derive(Clone, Debug)]
pub(super) struct Client {
    rules: Arc<Rules>,
    plain: Arc<OnceLock<reqwest::Client>>,
    secure: Arc<OnceLock<reqwest::Client>>,
    own: Option<Arc<Own>>,
}

/// The credentials of one source.
#[derive(Debug)]
struct Own {
    /// They are sent to the origin of this URL only.
    at: Url,
    /// Of `http://` and `https://` sources: registries say themselves what they want.
    authorization: Option<HeaderValue>,
    headers: HeaderMap,
    ca: Vec<Certificate>,
    credentials: Credentials,
}

/// The request for an image.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) url: Url,
    /// Sent to this host only, and not where it redirects to. Sensitive: never printed.
    pub(super) authorization: Option<HeaderValue>,
}

/// A response with a small body.
pub(super) struct SmallAnswer {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

/// Why there is no response.
pub(super) enum NoAnswer {
    NotAllowed,
    /// A redirect that cannot be followed, or no HTTP client.
    Never(String),
    Failed(String),
}

impl Client {
    pub(super) fn new(rules: Arc<Rules>) -> Self {
        Self { rules, plain: Arc::default(), secure: Arc::default(), own: None }
    }

    /// Returns the client for a server with credentials. `is_registry`: it says itself how it wants user or token.
    ///
    /// *Errors:* credentials that HTTP does not allow, for people.
    pub(super) fn with(
        &self,
        credentials: &Credentials,
        server: Url,
        is_registry: bool,
    ) -> std::result::Result<Self, String> {
        let own = Own::new(credentials, server, is_registry)?;
        let mut client = Self { own: Some(Arc::new(own)), ..self.clone() };
        if credentials.ca.is_some() {
            (client.plain, client.secure) = Default::default();
        }
        Ok(client)
    }

    /// The user name and password, or the token, for the registry.
    pub(super) fn credentials(&self) -> Option<&Credentials> {
        self.own.as_ref().map(|own| &own.credentials)
    }

    /// Sends a GET request. Connects only to allowed addresses, also after redirects, and sends credentials to the first host only.
    pub(super) async fn get(
        &self,
        url: &Url,
        mut headers: HeaderMap,
    ) -> std::result::Result<Response, NoAnswer> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.get_once(&url, headers.clone()).await?;
            let Some(location) = response.headers().get(LOCATION).filter(|_| is_redirect(response.status()))
            else {
                return Ok(response);
            };
            let never = || NoAnswer::Never("a redirect is not followed: it leads nowhere".to_owned());
            let mut next = location.to_str().ok().and_then(|text| url.join(text).ok()).ok_or_else(never)?;
            if next.origin() != url.origin() {
                headers.remove(AUTHORIZATION);
            } else if next.username().is_empty() && next.password().is_none() {
                // The user of a source's URL is that of the whole server. Neither can fail for a URL with a host.
                let _ = next.set_username(url.username());
                let _ = next.set_password(url.password());
            }
            url = next;
        }
        Err(NoAnswer::Never("a redirect is not followed: too many redirects".to_owned()))
    }

    async fn get_once(&self, url: &Url, mut headers: HeaderMap) -> std::result::Result<Response, NoAnswer> {
        if !self.rules.allows_url(url) {
            return Err(NoAnswer::NotAllowed);
        }
        if let Some(own) = self.own.as_ref().filter(|own| own.at.origin() == url.origin()) {
            headers.extend(own.headers.clone());
            if let Some(authorization) = &own.authorization {
                headers.entry(AUTHORIZATION).or_insert_with(|| authorization.clone());
            }
        }
        let client = self.of(url).map_err(|e| {
            NoAnswer::Never(format!(
                "{}: are root certificates installed (ca-certificates)?",
                without_url(&e)
            ))
        })?;
        let response = client.get(url.clone()).headers(headers).send().await.map_err(no_answer)?;
        match response.remote_addr() {
            Some(address) if !self.rules.allows(address.ip()) => Err(NoAnswer::NotAllowed),
            _ => Ok(response),
        }
    }

    /// Sends a GET request for a body of at most `max` bytes.
    pub(super) async fn small(
        &self,
        url: &Url,
        headers: HeaderMap,
        max: usize,
    ) -> std::result::Result<SmallAnswer, NoAnswer> {
        let response = self.get(url, headers).await?;
        let status = response.status();
        let (mut body, mut stream) = (Vec::new(), response.bytes_stream());
        while let Some(block) = stream.next().await {
            let block = block.map_err(|error| NoAnswer::Failed(without_url(&error)))?;
            if body.len() + block.len() > max {
                return Err(NoAnswer::Never(format!("the answer is larger than {} MiB", max >> 20)));
            }
            body.extend_from_slice(&block);
        }
        Ok(SmallAnswer { status, body })
    }

    fn of(&self, url: &Url) -> std::result::Result<&reqwest::Client, reqwest::Error> {
        if url.scheme() == "https" {
            return made(&self.secure, self.builder().build());
        }
        // http:// has to work on hosts without root certificates.
        made(&self.plain, self.builder().build().or_else(|_| self.builder().tls_certs_only([]).build()))
    }

    fn builder(&self) -> reqwest::ClientBuilder {
        let ca = self.own.iter().flat_map(|own| own.ca.iter().cloned());
        reqwest::Client::builder()
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
            .tls_certs_merge(ca)
            // A proxy would connect to addresses that are not checked here.
            .no_proxy()
            .dns_resolver(Arc::new(Guard(Arc::clone(&self.rules))))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(STALL_TIMEOUT)
            .pool_idle_timeout(Duration::from_secs(5))
            .referer(false)
            // Followed above, where the headers of each request are chosen.
            .redirect(Policy::none())
    }
}

impl Own {
    fn new(credentials: &Credentials, at: Url, is_registry: bool) -> std::result::Result<Self, String> {
        let sensitive = |text: &str| {
            let mut value = HeaderValue::from_str(text).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        let authorization = match (&credentials.token, &credentials.basic) {
            (Some(token), _) => Some(format!("Bearer {token}")),
            (None, Some((user, password))) => Some(basic(user, password)),
            (None, None) => None,
        };
        let authorization = authorization.filter(|_| !is_registry).map(|text| {
            sensitive(&text)
                .ok_or_else(|| "its credentials have characters that HTTP does not allow".to_owned())
        });
        let mut headers = HeaderMap::new();
        for (name, value) in &credentials.headers {
            let header = HeaderName::from_bytes(name.as_bytes()).ok().zip(sensitive(value));
            let (name, value) =
                header.ok_or_else(|| "the Secret has headers that HTTP does not allow".to_owned())?;
            headers.append(name, value);
        }
        let ca = credentials.ca.as_ref().map_or(Ok(Vec::new()), |pem| {
            let found = Certificate::from_pem_bundle(pem.as_bytes()).ok().filter(|found| !found.is_empty());
            found.ok_or_else(|| "ca.crt of the Secret has no certificates in PEM".to_owned())
        })?;
        let credentials = credentials.clone();
        Ok(Self { at, authorization: authorization.transpose()?, headers, ca, credentials })
    }
}

/// The value of the header for a user (RFC 7617).
pub(super) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64.encode(format!("{user}:{password}")))
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    )
}

fn no_answer(error: reqwest::Error) -> NoAnswer {
    let mut next = error.source();
    while let Some(cause) = next {
        if cause.is::<NotAllowed>() {
            return NoAnswer::NotAllowed;
        }
        next = cause.source();
    }
    match error.is_redirect() || error.is_builder() {
        true => NoAnswer::Never(without_url(&error)),
        false => NoAnswer::Failed(without_url(&error)),
    }
}

fn made(
    slot: &OnceLock<reqwest::Client>,
    built: std::result::Result<reqwest::Client, reqwest::Error>,
) -> std::result::Result<&reqwest::Client, reqwest::Error> {
    match slot.get() {
        Some(client) => Ok(client),
        None => built.map(|client| slot.get_or_init(|| client)),
    }
}

/// A source on a server.
struct Server<'a> {
    client: &'a Client,
    wanted: &'a Request,
}

#[async_trait]
impl Transport for Server<'_> {
    async fn begin(&self, job: &Job<'_>, partial: &mut Partial) -> std::result::Result<Begun, Stop> {
        let response = request(job, self.client, self.wanted, partial).await?;
        let Answer::Bytes { total } = begin(job, &response, partial)? else { return Ok(Begun::Complete) };
        if response.status() == StatusCode::OK {
            note(job, response.headers()).await?;
        }
        let blocks = response.bytes_stream().map(|block| block.map_err(|error| without_url(&error)));
        Ok(Begun::Stream { total, blocks: blocks.boxed() })
    }
}

/// Downloads the missing part of the file.
pub(super) async fn download(
    job: &Job<'_>,
    client: &Client,
    wanted: &Request,
    partial: Partial,
) -> Result<Partial> {
    attempts::download(job, &Server { client, wanted }, partial).await
}

async fn request(
    job: &Job<'_>,
    client: &Client,
    wanted: &Request,
    partial: &Partial,
) -> std::result::Result<Response, Stop> {
    let mut headers = HeaderMap::new();
    headers.extend(wanted.authorization.iter().map(|value| (AUTHORIZATION, value.clone())));
    if partial.len() > 0 {
        headers.insert(RANGE, value(&format!("bytes={}-", partial.len()))?);
        let origin = partial::Origin::read(job.place).filter(|_| job.stored);
        if let Some(validator) = origin.and_then(|o| o.validator) {
            headers.insert(IF_RANGE, value(&validator)?);
        }
    }
    client.get(&wanted.url, headers).await.map_err(|why| match why {
        NoAnswer::NotAllowed => Stop::Final(job.not_allowed(NOT_ALLOWED)),
        NoAnswer::Never(detail) => Stop::Final(job.failed(detail)),
        NoAnswer::Failed(detail) => Stop::Cut(detail),
    })
}

fn value(text: &str) -> std::result::Result<HeaderValue, Stop> {
    HeaderValue::from_str(text)
        .map_err(|_| Stop::Cut("the server's name for this version is not usable".to_owned()))
}

/// The head of a response.
enum Answer {
    /// The missing bytes follow. The size of the whole file, if the server reports it.
    Bytes { total: Option<u64> },
    /// No byte is missing.
    Complete,
}

fn begin(job: &Job<'_>, response: &Response, partial: &mut Partial) -> std::result::Result<Answer, Stop> {
    let status = response.status();
    let range = content_range(response.headers());
    let total = match status {
        StatusCode::OK => {
            partial.restart()?;
            response.content_length()
        }
        StatusCode::PARTIAL_CONTENT => match range {
            Some((Some(from), total)) if from == partial.len() && may_continue(job) => total,
            _ => {
                partial.restart()?;
                return Err(Stop::Cut("the server sent another part than asked for".to_owned()));
            }
        },
        StatusCode::RANGE_NOT_SATISFIABLE => {
            if matches!(range, Some((_, Some(total))) if total == partial.len() && may_continue(job)) {
                return Ok(Answer::Complete);
            }
            partial.restart()?;
            return Err(Stop::Cut("the server has fewer bytes than were downloaded before".to_owned()));
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            return Err(Stop::Final(job.not_found(format!("HTTP {status}"))));
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            return Err(Stop::Cut(format!("HTTP {status}")));
        }
        _ if status.is_server_error() => return Err(Stop::Cut(format!("HTTP {status}"))),
        _ => return Err(Stop::Final(job.failed(format!("HTTP {status}")))),
    };
    if let Some(total) = total {
        job.check_size(total, partial.len())?;
    }
    Ok(Answer::Bytes { total })
}

/// Whether further bytes are of the same version as those before: known by the server's validator where no checksum shows it.
fn may_continue(job: &Job<'_>) -> bool {
    let has_validator = || partial::Origin::read(job.place).is_some_and(|origin| origin.validator.is_some());
    !job.source.is_unknown() || has_validator()
}

/// Records the server's validator of this version, so that the download can be resumed.
async fn note(job: &Job<'_>, headers: &HeaderMap) -> Result<()> {
    if !job.stored {
        return Ok(());
    }
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let validator = text(ETAG).filter(|tag| tag.starts_with('"')).or_else(|| text(LAST_MODIFIED));
    let origin = partial::Origin { validator: validator.map(str::to_owned) };
    let place = job.place.clone();
    blocking(move || origin.write(&place)).await
}

/// `bytes 5-9/10` → (5, 10); `bytes */10` → (none, 10).
fn content_range(headers: &HeaderMap) -> Option<(Option<u64>, Option<u64>)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
    let (range, total) = text.split_once('/')?;
    let from = range.split_once('-').and_then(|(from, _)| from.parse().ok());
    Some((from, total.parse().ok()))
}

/// Formats reqwest's errors with their causes but without the URL, which may contain secrets.
pub(in super::super) fn without_url(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() {
        "nothing came in time".to_owned()
    } else if error.is_connect() {
        "cannot connect".to_owned()
    } else if error.is_redirect() {
        "a redirect is not followed".to_owned()
    } else {
        "the transfer failed".to_owned()
    };
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    if text.contains("invalid peer certificate") {
        text.push_str(
            "; if a private authority issued it, add the certificate of that authority as ca.crt to the Secret of the source",
        );
    }
    text
}
