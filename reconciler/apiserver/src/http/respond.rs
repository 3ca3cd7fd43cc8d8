//! Construction of responses.

use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use berth_apimachinery::error::{ApiError, Result};
use berth_store::Text;
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::negotiate::Wanted;
use super::shape::{Shape, bytes_of};
use super::unread::Assembled;
use super::watch_budget::WatchPermit;
use crate::core::Core;
use crate::discovery::Document;
use crate::resource::Resource;
use crate::verbs::{Answer, Call, Page, WatchStream};

/// Smaller responses are not compressed, as in kube-apiserver.
const COMPRESS_FROM: usize = 128 * 1024;
/// Limits of warnings: their number per response, and the bytes of one; clients limit the size of headers.
const MAX_WARNINGS: usize = 16;
const MAX_WARNING: usize = 512;

/// Marks a request that came over a socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct MayCompress;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

fn with_type(code: StatusCode, kind: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

fn warn(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings.iter().take(MAX_WARNINGS) {
        let plain: String =
            warning.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_WARNING).collect();
        let quoted = plain.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

pub(super) fn text(body: impl Into<Body>) -> Response<Body> {
    with_type(StatusCode::OK, HeaderValue::from_static("text/plain; charset=utf-8"), body.into())
}

pub(super) fn metrics(text: String) -> Response<Body> {
    with_type(StatusCode::OK, HeaderValue::from_static(crate::metrics::OPEN_METRICS), text.into())
}

pub(super) fn json(code: StatusCode, value: &Value) -> Response<Body> {
    with_type(code, JSON, Body::from(bytes_of(value)))
}

pub(super) fn failure(error: &ApiError, warnings: &[String]) -> Response<Body> {
    let mut response = json(error.code, &error.status());
    if let Some(seconds) = error.status()["details"]["retryAfterSeconds"].as_u64() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    warn(&mut response, warnings);
    response
}

pub(super) fn review(answer: &Value, warnings: &[String]) -> Response<Body> {
    let mut response = json(StatusCode::CREATED, answer);
    warn(&mut response, warnings);
    response
}

pub(super) fn answer(answer: &Answer, shape: &Shape, warnings: &[String]) -> Response<Body> {
    let body =
        if answer.is_object { shape.object_of(answer.body.clone(), true) } else { answer.body.clone() };
    let mut response = with_type(answer.code, JSON, Body::from(body));
    warn(&mut response, warnings);
    response
}

pub(super) fn stream(stream: WatchStream, permit: WatchPermit, warnings: &[String]) -> Response<Body> {
    let frames = stream::unfold((stream, permit), |(mut stream, permit)| async move {
        let frame = stream.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(frame), (stream, permit)))
    });
    let mut response = with_type(StatusCode::OK, JSON, Body::from_stream(frames));
    warn(&mut response, warnings);
    response
}

pub(super) fn page(call: &Call, shape: &Shape, page: &Page) -> Response<Body> {
    let (resource, version) = (&call.target.resource, call.target.version);
    let mut response = if shape.wanted == Wanted::Plain {
        let texts = page.entries.iter().map(|entry| Core::shared_text(entry, resource, version));
        let list = plain_list(resource, version, page, texts.collect());
        let mut response = with_type(StatusCode::OK, JSON, list);
        response.extensions_mut().insert(Assembled);
        response
    } else {
        with_type(StatusCode::OK, JSON, Body::from(shape.page(page)))
    };
    warn(&mut response, &call.warnings);
    response
}

/// Returns a list built from the stored texts of its items without parsing them.
fn plain_list(resource: &Resource, version: usize, page: &Page, texts: Vec<Text>) -> Body {
    let (kind, api_version) = (&resource.list_kind, resource.api_version(version));
    let mut metadata = serde_json::json!({"resourceVersion": page.revision.to_string()});
    // Lists of custom resources always have the field, those of built-in kinds only when there are more
    // pages.
    if resource.is_custom() || page.continue_token.is_some() {
        metadata["continue"] = page.continue_token.as_deref().unwrap_or_default().into();
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    let head = serde_json::json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}).to_string();
    let mut pending = BytesMut::from(head.trim_end_matches('}'));
    // The members are sorted, so that the head ends with the braces of metadata and of itself; the first is still needed.
    pending.extend_from_slice(b"},\"items\":[");
    let commas = texts.len().saturating_sub(1);
    let items = texts.iter().map(Text::size).sum::<usize>();
    let left = pending.len() + items + commas + END.len();
    Body::new(List { pending, texts: texts.into_iter(), begun: false, left })
}

const END: &[u8] = b"]}";
/// The number of bytes of a list that are assembled at once.
const PIECE: usize = 64 << 10;

/// A list that is assembled from stored texts as it is read: a client that reads slowly, or never, holds no
/// copy of it.
struct List {
    pending: BytesMut,
    texts: std::vec::IntoIter<Text>,
    begun: bool,
    left: usize,
}

impl http_body::Body for List {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        while self.pending.len() < PIECE && self.pending.len() < self.left {
            match self.texts.next() {
                Some(text) => {
                    if std::mem::replace(&mut self.begun, true) {
                        self.pending.extend_from_slice(b",");
                    }
                    text.pieces().for_each(|piece| self.pending.extend_from_slice(piece));
                }
                None => self.pending.extend_from_slice(END),
            }
        }
        let piece = self.pending.split().freeze();
        self.left -= piece.len();
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

/// Returns a document with an `ETag`, or 304 if the client has it.
pub(super) fn document(request: &Request<Body>, document: Document) -> Result<Response<Body>> {
    let Document { body, content_type, public } = document;
    let etag = format!("\"{}\"", hex(&Sha256::digest(&body)[..16]));
    let value = |text: &str| HeaderValue::from_str(text).map_err(ApiError::internal);
    let known =
        request.headers().get(header::IF_NONE_MATCH).is_some_and(|sent| sent.as_bytes() == etag.as_bytes());
    let (code, body) =
        if known { (StatusCode::NOT_MODIFIED, Body::empty()) } else { (StatusCode::OK, Body::from(body)) };
    let mut response = with_type(code, value(&content_type)?, body);
    let headers = response.headers_mut();
    headers.insert(header::ETAG, value(&etag)?);
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    if public {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    }
    Ok(response)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|q| matches!(q, "q=0" | "q=0.0"))
    })
}

/// Returns the response to HEAD: that to GET without the body. HTTP/1 would omit the body by itself, HTTP/2
/// sends what it is given.
pub(super) fn head_of(response: Response<Body>) -> Response<Body> {
    let size = http_body::Body::size_hint(response.body()).exact();
    let mut response = response.map(|_| Body::empty());
    if let Some(size) = size {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    response
}

/// Compresses a large response of known size; streams are left alone, because their frames must not wait.
pub(super) async fn compressed(response: Response<Body>) -> Response<Body> {
    let size = http_body::Body::size_hint(response.body()).exact();
    if size.is_none_or(|size| size < COMPRESS_FROM as u64) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    head.extensions.remove::<Assembled>();
    let Some(packed) = packed(body).await else { return Response::from_parts(head, Body::empty()) };
    head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    Response::from_parts(head, Body::from(packed))
}

/// Compresses a body while it is read, so that no plain copy of a long list exists; `None` if it cannot be read.
async fn packed(mut body: Body) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.ok()?.into_data() {
            encoder.write_all(&piece).ok()?;
        }
        // A list is always ready to be read on: other requests are answered in between.
        tokio::task::yield_now().await;
    }
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io::Read as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use flate2::read::GzDecoder;

    use super::*;

    /// A piece of a body that counts while it is held.
    struct Piece(Arc<AtomicUsize>);

    impl AsRef<[u8]> for Piece {
        fn as_ref(&self) -> &[u8] {
            b"piece "
        }
    }

    impl Drop for Piece {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn a_body_is_compressed_piece_by_piece() {
        let (held, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let of_stream = Arc::clone(&most);
        let pieces = stream::iter((0..9).map(move |_| {
            of_stream.fetch_max(held.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            Ok::<_, Infallible>(Bytes::from_owner(Piece(Arc::clone(&held))))
        }));
        let packed = packed(Body::from_stream(pieces)).await.expect("it is read to its end");
        let mut plain = String::new();
        GzDecoder::new(packed.as_slice()).read_to_string(&mut plain).expect("it is gzip");
        assert_eq!(plain, "piece ".repeat(9));
        assert_eq!(most.load(Ordering::Relaxed), 1, "no piece is kept while the next one is read");
    }
}
