//! Reading request bodies: bounded, JSON or YAML. What is wrong with a text is told as by kube-apiserver.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::Value;

use super::{json, protobuf, yaml};
use crate::error::{ApiError, Result};

/// Bytes a body may have, as in kube-apiserver.
const MAX_BODY: usize = 3 * 1024 * 1024;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Told to who sends something else.
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

async fn read(request: Request<Body>) -> Result<Bytes> {
    match Limited::new(request.into_body(), MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("Request entity too large: limit is {MAX_BODY}");
            Err(ApiError::new(http::StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message))
        }
        Err(error) => Err(ApiError::bad_request(format!("reading the request body: {error}"))),
    }
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

/// An object in the format the content type names.
pub(super) async fn object(request: Request<Body>) -> Result<Decoded> {
    match content_type(request.headers()).as_str() {
        "" | "application/json" | "*/*" => parse_json(&read(request).await?),
        "application/yaml" | "application/x-yaml" | "text/yaml" => parse_yaml(&read(request).await?),
        PROTOBUF => parse_protobuf(&read(request).await?).map(Decoded::from),
        _ => Err(ApiError::unsupported_media_type(ACCEPTED)),
    }
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
    decode_json(&text).map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))
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
    decode_json(text).map_err(|error| ApiError::bad_request(format!("the body is not valid JSON: {error}")))
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
