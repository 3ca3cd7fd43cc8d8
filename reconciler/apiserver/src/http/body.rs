//! Reading request bodies: bounded, JSON or YAML. What is wrong with a text is told as by kube-apiserver.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::expected::{Expected, no_json};
use super::{json, protobuf, yaml};
use crate::error::{ApiError, Result};

/// Bytes a body may have, as in kube-apiserver.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// Values a body may have, however small each is: one that is only commas would take a hundred times its size in memory.
const MAX_VALUES: usize = 250_000;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Told to who sends something else.
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// A body that is at least so long, or does not say how long it is, is large.
const LARGE: usize = 64 << 10;
/// Large bodies that are received, and then answered, at once; further ones wait before their first byte is read.
const MAX_LARGE: usize = 32;
/// Bodies of any size that are received at once.
const MAX_RECEIVED: usize = 2_000;
/// How long a body may take to arrive, with the wait for its room.
const ARRIVAL: Duration = Duration::from_secs(45);

/// Room for bodies: what clients send, however slowly, is bounded together.
#[derive(Debug)]
pub(super) struct Room {
    received: Semaphore,
    large: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Self {
        Self { received: Semaphore::new(MAX_RECEIVED), large: Arc::new(Semaphore::new(MAX_LARGE)) }
    }
}

impl Room {
    /// The request once its whole body is there; a large one keeps its room for as long as the second part is held.
    pub(super) async fn receive(
        &self,
        request: Request<Body>,
    ) -> Result<(Request<Body>, Option<OwnedSemaphorePermit>)> {
        let length = request.body().size_hint().upper();
        if length == Some(0) {
            return Ok((request, None));
        }
        let received = async {
            let _place = self.received.acquire().await.map_err(ApiError::internal)?;
            if length.is_some_and(|length| length > MAX_BODY as u64) {
                discard(request.into_body()).await;
                return Err(too_large());
            }
            let small = length.is_some_and(|length| length < LARGE as u64);
            let room = match small {
                true => None,
                false => Some(Arc::clone(&self.large).acquire_owned().await.map_err(ApiError::internal)?),
            };
            let (head, body) = request.into_parts();
            let bytes = collect(body).await?;
            Ok((Request::from_parts(head, Body::from(bytes)), room))
        };
        let late = || {
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", "the request body did not arrive in time")
        };
        tokio::time::timeout(ARRIVAL, received).await.unwrap_or_else(|_| Err(late()))
    }

    /// Bodies that are being received.
    pub(super) fn taken(&self) -> usize {
        MAX_RECEIVED - self.received.available_permits()
    }
}

async fn read(request: Request<Body>) -> Result<Bytes> {
    let text = collect(request.into_body()).await?;
    let may_be_json = matches!(text.trim_ascii_start().first(), Some(b'{' | b'['));
    if may_be_json && has_too_many_values(&text) {
        return Err(ApiError::too_large("the number of values in the request body", MAX_VALUES));
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

/// Takes what a client is sending, as much as a body may have: one that is cut off while it sends never reads why.
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

/// Whether JSON has more values than are taken, told before anything is made of it. Of what is no JSON it may say anything.
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

/// The media type without its parameters.
pub(super) fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A body, and what it says twice as kube-apiserver words it: an error if the request wants strictness, else a warning.
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

/// An object in the format the content type names, which says that it is what is expected.
pub(super) async fn object(request: Request<Body>, expected: &Expected<'_>) -> Result<Decoded> {
    let kind = content_type(request.headers());
    let decode: fn(&Expected<'_>, &[u8]) -> Result<Decoded> = match kind.as_str() {
        "" | "application/json" | "*/*" => {
            |expected, text| decode_json(text).map_err(|error| expected.no_json(text, &error))
        }
        "application/yaml" | "application/x-yaml" | "text/yaml" => {
            |expected, text| decode_yaml(text).map_err(|error| expected.unrecognized(&error, text))
        }
        PROTOBUF => |_, text| parse_protobuf(text).map(Decoded::from),
        _ => return Err(ApiError::unsupported_media_type(ACCEPTED)),
    };
    let text = read(request).await?;
    let mut decoded = decode(expected, &text)?;
    expected.check(&decoded.value, &text)?;
    if decoded.value.is_null() {
        // Of what is built in nothing at all is an empty object.
        decoded.value = Value::Object(Map::new());
    }
    Ok(decoded)
}

/// Like [`object`]; an empty body is null.
pub(super) async fn optional_object(request: Request<Body>) -> Result<Value> {
    let kind = content_type(request.headers());
    let text = read(request).await?;
    match kind.as_str() {
        _ if text.is_empty() => Ok(Value::Null),
        "" | "application/json" => parse_json(&text).map(|decoded| decoded.value),
        "application/yaml" => parse_yaml(&text).map(|decoded| decoded.value),
        PROTOBUF => parse_protobuf(&text),
        _ => Err(ApiError::unsupported_media_type(ACCEPTED)),
    }
}

/// A JSON or merge patch.
pub(super) async fn patch(request: Request<Body>) -> Result<Decoded> {
    let text = read(request).await?;
    decode_json(&text)
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {}", no_json(&text, &error))))
}

/// What is applied: YAML, of which JSON is the common case.
pub(super) async fn applied(request: Request<Body>) -> Result<Decoded> {
    const CONVERTING: &str = "error converting YAML to JSON";
    let text = read(request).await?;
    let mut decoded = decode_yaml(&text)
        .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {CONVERTING}: {error}")))?;
    decoded.twice.iter_mut().for_each(|told| *told = format!("{CONVERTING}: {told}"));
    Ok(decoded)
}

fn parse_protobuf(text: &[u8]) -> Result<Value> {
    // A kind that is not read this way: the client is told what it may send instead.
    protobuf::decode(text).ok_or_else(|| ApiError::unsupported_media_type(ACCEPTED))
}

fn parse_json(text: &[u8]) -> Result<Decoded> {
    decode_json(text).map_err(|error| {
        let why = no_json(text, &error);
        ApiError::bad_request(format!("couldn't get version/kind; json parse error: {why}"))
    })
}

fn parse_yaml(text: &[u8]) -> Result<Decoded> {
    decode_yaml(text).map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))
}

fn decode_json(text: &[u8]) -> serde_json::Result<Decoded> {
    let json::Document { value, twice } = json::read(text)?;
    let twice = twice.iter().map(|path| format!("duplicate field \"{path}\"")).collect();
    Ok(Decoded { value, twice })
}

fn decode_yaml(text: &[u8]) -> Result<Decoded, String> {
    // YAML that is JSON need not be read as slowly; what stands twice is told by line.
    if text.first() == Some(&b'{')
        && let Ok(json::Document { mut value, twice }) = json::read(text)
        && twice.is_empty()
    {
        crate::schema::whole_numbers(&mut value);
        return Ok(value.into());
    }
    let text = std::str::from_utf8(text).map_err(|_| "yaml: invalid leading UTF-8 octet".to_owned())?;
    let yaml::Document { value, twice } = yaml::read(text)?;
    let lines: String = twice.iter().map(|line| format!("\n  {line}")).collect();
    let twice = if twice.is_empty() { Vec::new() } else { vec![format!("yaml: unmarshal errors:{lines}")] };
    Ok(Decoded { value, twice })
}

/// Who a client is as a field manager if it does not say: the first word of its user agent.
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
