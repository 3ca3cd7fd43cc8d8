//! Objects in a bucket of an S3-compatible store.

mod answers;
mod signature;
#[cfg(test)]
mod tests;

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use jiff::Timestamp;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Method, StatusCode, Url};

use super::{Objects, Visit};
use crate::error::{Error, Result};
use crate::location::{Resolver, S3Location};
use answers::Listing;
use signature::{Credentials, Request};

/// The maximum length of an answer that is no object: a listing of 1000 keys is shorter.
const MAX_ANSWER: usize = 4 << 20;
/// The maximum number of pages of a listing.
const MAX_PAGES: usize = 100_000;
const MAX_BACK_OFF: Duration = Duration::from_secs(10);

/// The limits of requests.
#[derive(Clone, Copy, Debug)]
struct Limits {
    connect: Duration,
    /// The time limit of a request and its answer without their bodies.
    request: Duration,
    /// The minimum rate of bodies, in bytes per second, which extends the time limit.
    rate: u32,
    attempts: u32,
    /// The back-off after the first attempt. It doubles with each.
    back_off: Duration,
}

const LIMITS: Limits = Limits {
    connect: Duration::from_secs(15),
    request: Duration::from_secs(30),
    rate: 64 << 10,
    attempts: 6,
    back_off: Duration::from_millis(500),
};

/// A bucket, or a part of it.
#[derive(Debug)]
pub(super) struct S3 {
    client: reqwest::Client,
    endpoint: Url,
    /// The value of the header `host`.
    host: String,
    bucket: String,
    /// With a slash at its end, or empty.
    prefix: String,
    credentials: Credentials,
    limits: Limits,
}

/// A call of the API.
#[derive(Debug)]
struct Call<'a> {
    /// For errors.
    action: &'static str,
    method: Method,
    /// The key, or empty for the bucket.
    key: &'a str,
    /// Encoded, in the order of the names.
    query: String,
    body: Bytes,
    is_new: bool,
    /// The maximum length of the body of the answer.
    limit: usize,
}

/// A complete answer.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    body: Vec<u8>,
}

/// Why there is no complete answer.
enum NoAnswer {
    /// An attempt later may succeed.
    Failed(String),
    TooLong,
}

impl S3 {
    pub(super) fn new(location: &S3Location) -> Result<Self> {
        Self::with_limits(location, LIMITS)
    }

    fn with_limits(location: &S3Location, limits: Limits) -> Result<Self> {
        let invalid = |detail: String| Error::Location { detail };
        let endpoint = Url::parse(&location.endpoint).map_err(|error| {
            invalid(format!("the endpoint {:?} is not a URL: {error}", location.endpoint))
        })?;
        let is_plain = endpoint.path() == "/"
            && endpoint.query().is_none()
            && endpoint.fragment().is_none()
            && endpoint.username().is_empty()
            && endpoint.password().is_none();
        let host = endpoint.host_str().filter(|_| matches!(endpoint.scheme(), "https" | "http") && is_plain);
        // The URL may have a password.
        let host = host.ok_or_else(|| {
            invalid("the endpoint must be https://HOST[:PORT] or http://HOST[:PORT]".to_owned())
        })?;
        let host = endpoint.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        check_bucket(&location.bucket)?;
        check_prefix(&location.prefix)?;
        let is_word =
            |text: &str| (1..=256).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_graphic());
        if !is_word(&location.region) || !is_word(&location.access_key_id) {
            return Err(invalid(
                "the region and the access key must be 1 to 256 visible ASCII characters".to_owned(),
            ));
        }
        let prefix = if location.prefix.is_empty() { String::new() } else { format!("{}/", location.prefix) };
        let credentials = Credentials {
            region: location.region.clone(),
            access_key_id: location.access_key_id.clone(),
            secret_access_key: location.secret_access_key.clone(),
        };
        let client = client(location, &endpoint, limits)?;
        Ok(Self { client, endpoint, host, bucket: location.bucket.clone(), prefix, credentials, limits })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns the address of a key, for messages.
    fn address(&self, key: &str) -> String {
        format!("{}{}/{key}", self.endpoint, self.bucket)
    }

    /// Makes a call until there is an answer that is not a passing failure. An answer other than a success or one of these is
    /// an error.
    async fn call(&self, call: Call<'_>, expected: &[u16]) -> Result<Answer> {
        let mut back_off = self.limits.back_off;
        let mut attempt = 1;
        loop {
            let failed = match self.attempt(&call).await {
                Ok(answer) if answer.status.is_success() || expected.contains(&answer.status.as_u16()) => {
                    return Ok(answer);
                }
                Ok(answer) => {
                    let (code, message) = answers::error(&answer.body);
                    let (place, status) = (self.address(call.key), answer.status.as_u16());
                    let error = Error::Refused { action: call.action, place, status, code, message };
                    if !error.is_transient() {
                        return Err(error);
                    }
                    error
                }
                Err(NoAnswer::TooLong) => {
                    let detail = format!("it has more than {} bytes", call.limit);
                    return Err(Error::Damaged { place: self.address(call.key), detail });
                }
                Err(NoAnswer::Failed(detail)) => {
                    let place = self.address(call.key);
                    Error::NoAnswer { action: call.action, place, attempts: attempt, detail }
                }
            };
            if attempt >= self.limits.attempts {
                return Err(failed);
            }
            tracing::debug!(error = %failed, attempt, "a request to the object store failed");
            tokio::time::sleep(back_off.mul_f64(rand::random_range(0.5..1.0))).await;
            back_off = (back_off * 2).min(MAX_BACK_OFF);
            attempt += 1;
        }
    }

    /// Sends a request once.
    async fn attempt(&self, call: &Call<'_>) -> Result<Answer, NoAnswer> {
        let path = signature::encode_path(&format!("/{}/{}", self.bucket, call.key));
        let path = if call.key.is_empty() { path.trim_end_matches('/') } else { &path };
        let mut url = self.endpoint.clone();
        url.set_path(path);
        url.set_query((!call.query.is_empty()).then_some(&call.query));
        let date = signature::date(Timestamp::now());
        let sha256 = signature::sha256(&call.body);
        let mut headers = vec![("host", self.host.as_str())];
        if call.is_new {
            headers.push(("if-none-match", "*"));
        }
        headers.extend([("x-amz-content-sha256", sha256.as_str()), ("x-amz-date", date.as_str())]);
        let method = call.method.as_str();
        let signed = Request { method, path, query: &call.query, headers: &headers, sha256: &sha256 };
        let authorization = self.credentials.sign(&signed, &date);
        let bodies = u32::try_from(call.body.len() + call.limit).unwrap_or(u32::MAX);
        let mut request = self
            .client
            .request(call.method.clone(), url)
            .timeout(self.limits.request + Duration::from_secs(u64::from(bodies / self.limits.rate)))
            .header("authorization", authorization)
            .body(call.body.clone());
        for (name, value) in headers.into_iter().skip(1) {
            request = request.header(name, value);
        }
        let response = request.send().await.map_err(|error| NoAnswer::Failed(chain(&error)))?;
        let status = response.status();
        // Explanations of failures are no objects.
        let limit = if status.is_success() { call.limit } else { MAX_ANSWER };
        let mut body = Vec::new();
        let mut stream = response.bytes_stream();
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.map_err(|error| NoAnswer::Failed(chain(&error)))?;
            if body.len() + bytes.len() > limit {
                return Err(NoAnswer::TooLong);
            }
            body.extend_from_slice(&bytes);
        }
        Ok(Answer { status, body })
    }

    /// Lists a page of keys that begin with a prefix.
    async fn page(&self, prefix: &str, is_flat: bool, token: Option<&str>, max: u32) -> Result<Listing> {
        let mut query = String::new();
        if let Some(token) = token {
            query += &format!("continuation-token={}&", signature::encode(token));
        }
        if is_flat {
            query += "delimiter=%2F&";
        }
        query += &format!("list-type=2&max-keys={max}&prefix={}", signature::encode(prefix));
        let (action, method) = ("list", Method::GET);
        let call =
            Call { action, method, key: "", query, body: Bytes::new(), is_new: false, limit: MAX_ANSWER };
        let answer = self.call(call, &[]).await?;
        let listing = answers::listing(&answer.body);
        let listing = listing.map_err(|detail| self.unexpected("list", "", detail))?;
        let names = listing.objects.iter().map(|(key, _)| key).chain(&listing.prefixes);
        if let Some(other) = names.into_iter().find(|name| !name.starts_with(prefix)) {
            return Err(self.unexpected("list", prefix, format!("the answer has the other key {other:?}")));
        }
        Ok(listing)
    }

    /// Lists all pages.
    async fn pages(
        &self,
        prefix: &str,
        is_flat: bool,
        see: &mut (dyn FnMut(Listing) -> Result<()> + Send),
    ) -> Result<()> {
        let mut token: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut listing = self.page(prefix, is_flat, token.as_deref(), 1000).await?;
            let next = listing.next.take();
            see(listing)?;
            if next.is_none() {
                return Ok(());
            }
            if next == token {
                return Err(self.unexpected("list", prefix, "the answer repeats a page".to_owned()));
            }
            token = next;
        }
        Err(Error::TooMany { place: self.address(prefix), what: "pages of objects", limit: MAX_PAGES })
    }

    fn unexpected(&self, action: &'static str, key: &str, detail: String) -> Error {
        Error::UnexpectedAnswer { action, place: self.address(key), detail }
    }

    async fn write(&self, name: &str, body: Bytes, is_new: bool) -> Result<StatusCode> {
        let key = self.key(name);
        let (action, method) = ("write", Method::PUT);
        let call = Call { action, method, key: &key, query: String::new(), body, is_new, limit: MAX_ANSWER };
        let expected: &[u16] = if is_new { &[412, 501] } else { &[] };
        Ok(self.call(call, expected).await?.status)
    }
}

#[async_trait]
impl Objects for S3 {
    fn place(&self, name: &str) -> String {
        self.address(&self.key(name))
    }

    async fn get(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>> {
        let key = self.key(name);
        let (action, method, query) = ("read", Method::GET, String::new());
        let call = Call { action, method, key: &key, query, body: Bytes::new(), is_new: false, limit };
        let answer = self.call(call, &[404]).await?;
        match answer.status.as_u16() {
            200 => Ok(Some(answer.body)),
            404 => self.absent("read", &key, &answer.body).map(|()| None),
            status => Err(self.unexpected("read", &key, format!("the server answered {status}"))),
        }
    }

    async fn put(&self, name: &str, body: Bytes) -> Result<()> {
        self.write(name, body, false).await.map(drop)
    }

    async fn create(&self, name: &str, body: Bytes) -> Result<bool> {
        match self.write(name, body.clone(), true).await?.as_u16() {
            412 => Ok(false),
            // The store does not have conditional writes.
            501 => self.write(name, body, false).await.map(|_| true),
            _ => Ok(true),
        }
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let key = self.key(name);
        let (action, method, query) = ("delete", Method::DELETE, String::new());
        let call =
            Call { action, method, key: &key, query, body: Bytes::new(), is_new: false, limit: MAX_ANSWER };
        let answer = self.call(call, &[404]).await?;
        match answer.status.as_u16() {
            404 => self.absent("delete", &key, &answer.body),
            _ => Ok(()),
        }
    }

    async fn list(&self, folder: &str, visit: Visit<'_>) -> Result<()> {
        let prefix = format!("{}/", self.key(folder));
        let mut see = |listing: Listing| {
            let mut objects = listing.objects.iter();
            objects.try_for_each(|(key, length)| visit(&key[prefix.len()..], *length))
        };
        self.pages(&prefix, false, &mut see).await
    }

    async fn folders(&self, folder: &str, limit: usize) -> Result<Vec<String>> {
        let prefix = format!("{}/", self.key(folder));
        let mut found = Vec::new();
        let mut see = |listing: Listing| {
            let names =
                listing.prefixes.iter().map(|name| name[prefix.len()..].trim_end_matches('/').to_owned());
            found.extend(names);
            match found.len() <= limit {
                true => Ok(()),
                false => Err(Error::TooMany { place: self.address(&prefix), what: "folders", limit }),
            }
        };
        self.pages(&prefix, true, &mut see).await?;
        Ok(found)
    }

    async fn first(&self) -> Result<Option<String>> {
        let listing = self.page(&self.prefix, false, None, 1).await?;
        Ok(listing.objects.into_iter().next().map(|(key, _)| key[self.prefix.len()..].to_owned()))
    }

    /// An interrupted write leaves nothing.
    async fn remove_partial(&self, _folder: &str) -> Result<()> {
        Ok(())
    }
}

impl S3 {
    /// Checks that an answer 404 is about the key.
    fn absent(&self, action: &'static str, key: &str, body: &[u8]) -> Result<()> {
        let (code, message) = answers::error(body);
        match code.as_str() {
            "NoSuchKey" => Ok(()),
            _ => Err(Error::Refused { action, place: self.address(key), status: 404, code, message }),
        }
    }
}

fn client(location: &S3Location, endpoint: &Url, limits: Limits) -> Result<reqwest::Client> {
    let invalid = |detail: &str| Error::Location { detail: detail.to_owned() };
    let ca = location.ca_certificates.as_deref().map_or(Ok(Vec::new()), |pem| {
        let found = Certificate::from_pem_bundle(pem.as_bytes()).ok().filter(|found| !found.is_empty());
        found.ok_or_else(|| invalid("the certificate authorities have no certificates in PEM"))
    })?;
    let builder = || {
        let builder = match &location.resolver {
            // A proxy would connect to addresses that the resolver does not see.
            Some(Resolver(resolver)) => {
                reqwest::Client::builder().no_proxy().dns_resolver(Arc::clone(resolver))
            }
            None => reqwest::Client::builder(),
        };
        builder
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(limits.connect)
            .pool_idle_timeout(Duration::from_secs(5))
            .referer(false)
            .no_proxy()
            // A signature is for one address.
            .redirect(Policy::none())
    };
    let client = builder().tls_certs_merge(ca).build();
    // http:// has to work on hosts without root certificates.
    let client = if endpoint.scheme() == "http" {
        client.or_else(|_| builder().tls_certs_only([]).build())
    } else {
        client
    };
    client.map_err(|error| {
        invalid(&format!("the TLS client of the endpoint cannot be made: {}", chain(&error)))
    })
}

/// As S3 requires: the name is a part of the path.
fn check_bucket(bucket: &str) -> Result<()> {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'.' | b'_');
    match (3..=63).contains(&bucket.len()) && bucket.bytes().all(allowed) && bucket != "..." {
        true => Ok(()),
        false => Err(Error::Location {
            detail: format!(
                "the bucket {bucket:?} must have 3 to 63 of the characters a-z, 0-9, '-', '.' and '_'"
            ),
        }),
    }
}

fn check_prefix(prefix: &str) -> Result<()> {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'/');
    let is_name = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_valid = prefix.len() <= 512 && prefix.bytes().all(allowed) && prefix.split('/').all(is_name);
    match prefix.is_empty() || is_valid {
        true => Ok(()),
        false => Err(Error::Location {
            detail: format!(
                "the prefix {prefix:?} must have at most 512 of the characters a-z, A-Z, 0-9, '-', '.', '_' and '/', \
                 and no empty part, '.' or '..'"
            ),
        }),
    }
}

/// Formats reqwest's errors with their causes but without the URL.
fn chain(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() {
        "no complete answer came in time".to_owned()
    } else if error.is_connect() {
        "cannot connect".to_owned()
    } else {
        "the transfer failed".to_owned()
    };
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
