//! The metrics of `berth controllers` over HTTP.

use std::sync::Arc;

use berth_controllers::Metrics;
use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;

use crate::health::Answer;

/// The media type of the metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the answers to requests for metrics.
pub(crate) fn answers(metrics: Metrics) -> Arc<Answer> {
    Arc::new(move |method: &Method, path: &str| answer(&metrics, method, path))
}

fn answer(metrics: &Metrics, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let (status, media, text) = match (method, path) {
        (&Method::GET, "/metrics") => (StatusCode::OK, OPEN_METRICS, metrics.render()),
        (&Method::GET, _) => (StatusCode::NOT_FOUND, "text/plain", "/metrics\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".to_owned()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_all_that_is_answered() {
        let metrics = Metrics::default();
        assert_eq!(answer(&metrics, &Method::GET, "/metrics").status(), StatusCode::OK);
        assert_eq!(answer(&metrics, &Method::GET, "/").status(), StatusCode::NOT_FOUND);
        assert_eq!(answer(&metrics, &Method::POST, "/metrics").status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
