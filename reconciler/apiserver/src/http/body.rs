//! Reading request bodies: bounded, JSON or YAML.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::Value;

use super::protobuf;
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
            Err(ApiError::too_large("the request body", MAX_BODY))
        }
        Err(error) => Err(ApiError::bad_request(format!("reading the request body: {error}"))),
    }
}

/// The media type without its parameters.
pub(super) fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// An object in the format the content type names.
pub(super) async fn object(request: Request<Body>) -> Result<Value> {
    match content_type(request.headers()).as_str() {
        "" | "application/json" | "*/*" => json(request).await,
        "application/yaml" | "application/x-yaml" | "text/yaml" => yaml(request).await,
        PROTOBUF => parse_protobuf(&read(request).await?),
        _ => Err(ApiError::unsupported_media_type(ACCEPTED)),
    }
}

/// Like [`object`]; an empty body is null.
pub(super) async fn optional_object(request: Request<Body>) -> Result<Value> {
    let kind = content_type(request.headers());
    let text = read(request).await?;
    match kind.as_str() {
        _ if text.is_empty() => Ok(Value::Null),
        "" | "application/json" => parse_json(&text),
        "application/yaml" => parse_yaml(&text),
        PROTOBUF => parse_protobuf(&text),
        _ => Err(ApiError::unsupported_media_type(ACCEPTED)),
    }
}

pub(super) async fn json(request: Request<Body>) -> Result<Value> {
    parse_json(&read(request).await?)
}

/// YAML, of which JSON is the common case.
pub(super) async fn yaml(request: Request<Body>) -> Result<Value> {
    parse_yaml(&read(request).await?)
}

fn parse_protobuf(text: &[u8]) -> Result<Value> {
    // A kind that is not read this way: the client is told what it may send instead.
    protobuf::decode(text).ok_or_else(|| ApiError::unsupported_media_type(ACCEPTED))
}

fn parse_json(text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text)
        .map_err(|error| ApiError::bad_request(format!("the body is not valid JSON: {error}")))
}

fn parse_yaml(text: &[u8]) -> Result<Value> {
    if text.first() == Some(&b'{')
        && let Ok(value) = serde_json::from_slice(text)
    {
        return Ok(value);
    }
    serde_saphyr::from_slice(text)
        .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))
}

/// Who a client is as a field manager if it does not say: the first word of its user agent.
pub(super) fn manager_of(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let name = agent.split('/').next().unwrap_or_default();
    let name: String = name.chars().filter(|c| !c.is_control()).take(128).collect();
    if name.is_empty() { "unknown".into() } else { name }
}
