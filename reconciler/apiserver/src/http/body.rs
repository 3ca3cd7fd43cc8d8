//! Reading of request bodies: bounded, JSON or YAML.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use berth_apimachinery::error::{ApiError, Result};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::document::{self, Document};
use super::protobuf;
use super::shares::{Caller, Permits, Shares};

/// The maximum size of a body in bytes, as in kube-apiserver.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// The maximum number of values in a body, regardless of their size: a body of only commas would take a
/// hundred times its size in memory.
const MAX_VALUES: usize = 250_000;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The supported types, listed in the response to any other type.
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// The size in bytes from which a body counts as large; one without a declared length is large too.
const LARGE: usize = 64 << 10;
/// The number of large bodies that are received and then processed at once; further ones wait before their
/// first byte is read.
const MAX_LARGE: usize = 24;
/// The number of bodies of any size that are received at once.
const MAX_RECEIVED: usize = 1_600;
/// The same limits for administrators and for the process itself, which have a pool of their own.
const MAX_LARGE_PRIVILEGED: usize = 8;
const MAX_RECEIVED_PRIVILEGED: usize = 400;
/// How long a body may take to arrive, including the wait for capacity.
const ARRIVAL: Duration = Duration::from_secs(45);

/// The capacity for request bodies: however slowly clients send, the total is bounded and divided among them.
#[derive(Debug)]
pub(super) struct BodyBudget {
    received: Pool,
    large: Pool,
    privileged_received: Pool,
    privileged_large: Pool,
}

impl Default for BodyBudget {
    fn default() -> Self {
        Self {
            received: Pool::of(MAX_RECEIVED),
            large: Pool::of(MAX_LARGE),
            privileged_received: Pool::of(MAX_RECEIVED_PRIVILEGED),
            privileged_large: Pool::of(MAX_LARGE_PRIVILEGED),
        }
    }
}

#[derive(Debug)]
struct Pool {
    size: usize,
    all: Arc<Semaphore>,
    shares: Shares,
}

/// A permit held while a body is received, and for a large body until its request is answered.
#[derive(Debug)]
pub(super) struct BodyPermit {
    _own: Permits,
    _all: OwnedSemaphorePermit,
}

impl Pool {
    fn of(size: usize) -> Self {
        Self { size, all: Arc::new(Semaphore::new(size)), shares: Shares::of(size) }
    }

    async fn take(&self, caller: &Caller) -> Result<BodyPermit> {
        // The caller's own share first: requests beyond it must not block others in the common queue.
        let _own = self.shares.take(caller).await.map_err(ApiError::internal)?;
        let _all = Arc::clone(&self.all).acquire_owned().await.map_err(ApiError::internal)?;
        Ok(BodyPermit { _own, _all })
    }

    fn taken(&self) -> usize {
        self.size - self.all.available_permits()
    }
}

impl BodyBudget {
    /// Returns the request once its whole body has arrived; a large body keeps its permit for as long as the
    /// second element is held.
    pub(super) async fn receive(
        &self,
        request: Request<Body>,
        caller: &Caller,
    ) -> Result<(Request<Body>, Option<BodyPermit>)> {
        let length = request.body().size_hint().upper();
        if length == Some(0) {
            return Ok((request, None));
        }
        let (received, large) = match caller.is_privileged {
            true => (&self.privileged_received, &self.privileged_large),
            false => (&self.received, &self.large),
        };
        let received = async {
            let _permit = received.take(caller).await?;
            if length.is_some_and(|length| length > MAX_BODY as u64) {
                discard(request.into_body()).await;
                return Err(too_large());
            }
            let small = length.is_some_and(|length| length < LARGE as u64);
            let large_permit = if small { None } else { Some(large.take(caller).await?) };
            let (head, body) = request.into_parts();
            let bytes = collect(body).await?;
            Ok((Request::from_parts(head, Body::from(bytes)), large_permit))
        };
        let late = || {
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", "the request body did not arrive in time")
        };
        tokio::time::timeout(ARRIVAL, received).await.unwrap_or_else(|_| Err(late()))
    }

    /// The number of bodies being received.
    pub(super) fn taken(&self) -> usize {
        self.received.taken() + self.privileged_received.taken()
    }
}

async fn read(request: Request<Body>) -> Result<Bytes> {
    let text = collect(request.into_body()).await?;
    let may_be_json = matches!(text.trim_ascii_start().first(), Some(b'{' | b'['));
    if may_be_json && has_too_many_values(&text) {
        return Err(too_many_values());
    }
    Ok(text)
}

async fn collect(body: Body) -> Result<Bytes> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => Err(ApiError::bad_request(format!("reading the request body: {error}"))),
    }
}

/// Reads and drops what a client still sends, up to the size limit: a client that is cut off while it sends
/// never reads the error.
async fn discard(mut body: Body) {
    let mut thrown = 0;
    while thrown < MAX_BODY
        && let Some(Ok(frame)) = body.frame().await
    {
        thrown += frame.data_ref().map_or(0, Bytes::len);
    }
}

fn too_large() -> ApiError {
    let message = format!("Request entity too large: limit is {MAX_BODY}");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
}

/// Whether JSON contains too many values, checked before it is parsed. For text that is not JSON the result
/// is arbitrary.
fn has_too_many_values(text: &[u8]) -> bool {
    let (mut values, mut in_string, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values > MAX_VALUES
}

/// Returns the media type without its parameters.
pub(super) fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A body, and its duplicate fields: an error if the request is strict, otherwise a warning.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    pub(super) value: Value,
    pub(super) twice: Vec<String>,
}

impl From<Value> for Decoded {
    fn from(value: Value) -> Self {
        Self { value, twice: Vec::new() }
    }
}

impl From<Document> for Decoded {
    fn from(document: Document) -> Self {
        let twice = document.twice.iter().map(|path| format!("duplicate field \"{path}\"")).collect();
        Self { value: document.value, twice }
    }
}

/// Reads an object in the format of the content type. An empty document is an empty object.
pub(super) async fn object(request: Request<Body>) -> Result<Decoded> {
    let kind = content_type(request.headers());
    let text = read(request).await?;
    let mut body = match kind.as_str() {
        "" | "application/json" | "*/*" => decoded(decode_json(&text))?,
        "application/yaml" | "application/x-yaml" | "text/yaml" => decoded(decode_yaml(&text))?,
        PROTOBUF => parse_protobuf(&text)?.into(),
        _ => return Err(ApiError::unsupported_media_type(ACCEPTED)),
    };
    if body.value.is_null() {
        body.value = Value::Object(Map::new());
    }
    Ok(body)
}

/// Like [`object`]; an empty body is null.
pub(super) async fn optional_object(request: Request<Body>) -> Result<Value> {
    let kind = content_type(request.headers());
    let text = read(request).await?;
    match kind.as_str() {
        _ if text.is_empty() => Ok(Value::Null),
        "" | "application/json" => decoded(decode_json(&text)).map(|decoded| decoded.value),
        "application/yaml" => decoded(decode_yaml(&text)).map(|decoded| decoded.value),
        PROTOBUF => parse_protobuf(&text),
        _ => Err(ApiError::unsupported_media_type(ACCEPTED)),
    }
}

/// Reads a JSON or merge patch.
pub(super) async fn patch(request: Request<Body>) -> Result<Decoded> {
    decoded(decode_json(&read(request).await?))
}

/// Reads an applied configuration: YAML, of which JSON is the common case.
pub(super) async fn applied(request: Request<Body>) -> Result<Decoded> {
    decoded(decode_yaml(&read(request).await?))
}

fn decoded(body: Result<Decoded, String>) -> Result<Decoded> {
    body.map_err(|why| ApiError::bad_request(format!("the body cannot be read: {why}")))
}

fn parse_protobuf(text: &[u8]) -> Result<Value> {
    protobuf::decode(text, MAX_VALUES).map_err(|why| match why {
        // The response lists the supported types.
        protobuf::Undecoded::Unknown => ApiError::unsupported_media_type(ACCEPTED),
        protobuf::Undecoded::TooManyValues => too_many_values(),
    })
}

fn too_many_values() -> ApiError {
    ApiError::too_large("the number of values in the request body", MAX_VALUES)
}

fn decode_json(text: &[u8]) -> Result<Decoded, String> {
    document::json(text).map(Decoded::from).map_err(|error| error.to_string())
}

fn decode_yaml(text: &[u8]) -> Result<Decoded, String> {
    // YAML that is JSON takes the faster parser.
    if text.first() == Some(&b'{')
        && let Ok(mut document) = document::json(text)
    {
        berth_apimachinery::schema::whole_numbers(&mut document.value);
        return Ok(document.into());
    }
    document::yaml(text).map(Decoded::from)
}

/// Returns the default field manager of a client: the first word of its user agent.
pub(super) fn manager_of(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let name = agent.split('/').next().unwrap_or_default();
    let name: String = name.chars().filter(|c| !c.is_control()).take(128).collect();
    if name.is_empty() { "unknown".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_text_are_no_values() {
        let text = format!(r#"{{"a":"{}","b":[1,2]}}"#, ",[{\\\"".repeat(MAX_VALUES));
        assert!(!has_too_many_values(text.as_bytes()));
        assert!(serde_json::from_str::<Value>(&text).is_ok());
        assert!(has_too_many_values(format!("[{}0]", "0,".repeat(MAX_VALUES)).as_bytes()));
    }
}
