//! Repeats requests that the control plane refuses as too many (HTTP 429), after the time that its `Retry-After` says.
//!
//! A refused request had no effect, so any request may be repeated. Without that wait each of thousands of hosts
//! would repeat its requests at once, which keeps the control plane busy with refusals.

use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use kube::client::{Body, retry::RetryPolicy};
use rand::RngExt;
use tower::retry::Policy;

/// How often a request is repeated before the refusal is returned.
const REPETITIONS: u32 = 10;
/// The longest wait that is taken from a `Retry-After`.
const LONGEST: Duration = Duration::from_secs(30);

/// The policy of one request.
#[derive(Clone)]
pub(crate) struct TooManyRequests {
    repeated: u32,
    /// Copies requests.
    copies: RetryPolicy,
}

impl TooManyRequests {
    pub(crate) fn new() -> Self {
        Self { repeated: 0, copies: RetryPolicy::default() }
    }
}

impl<B, E> Policy<Request<Body>, Response<B>, E> for TooManyRequests {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        _: &mut Request<Body>,
        result: &mut Result<Response<B>, E>,
    ) -> Option<tokio::time::Sleep> {
        let wait = result.as_ref().ok().and_then(wait)?;
        self.repeated += 1;
        // Up to twice the time: clients that were refused together do not come back together.
        let wait = wait.mul_f64(rand::rng().random_range(1.0..2.0));
        (self.repeated <= REPETITIONS).then(|| tokio::time::sleep(wait))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Policy::<_, Response<B>, tower::BoxError>::clone_request(&mut self.copies, request)
    }
}

/// Returns the wait that a response demands; None unless it is a refusal that names one.
fn wait<B>(response: &Response<B>) -> Option<Duration> {
    if response.status() != StatusCode::TOO_MANY_REQUESTS {
        return None;
    }
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::Instant;
    use tower::{ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};

    use super::*;

    /// Sends one request to a server that refuses the first ones; returns the status, the number of requests and how
    /// long it took.
    async fn send(refused: u32, code: u16, retry_after: Option<&str>) -> (u16, u32, Duration) {
        let requests = &AtomicU32::new(0);
        let server = service_fn(move |request: Request<Body>| {
            assert_eq!(request.uri(), "/x");
            let number = requests.fetch_add(1, Ordering::Relaxed);
            let mut response = Response::builder().status(if number < refused { code } else { 200 });
            if let Some(seconds) = retry_after {
                response = response.header(header::RETRY_AFTER, seconds);
            }
            std::future::ready(Ok::<_, Infallible>(response.body(()).expect("a response")))
        });
        let client = ServiceBuilder::new().layer(RetryLayer::new(TooManyRequests::new())).service(server);
        let request = Request::post("/x").body(Body::from(b"{}".to_vec())).expect("a request");
        let begun = Instant::now();
        let Ok(response) = client.oneshot(request).await;
        (response.status().as_u16(), requests.load(Ordering::Relaxed), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_request_is_repeated_after_the_time_that_the_server_says() {
        let (status, requests, took) = send(3, 429, Some("2")).await;
        assert_eq!((status, requests), (200, 4));
        assert!(took >= Duration::from_secs(6) && took < Duration::from_secs(13), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_refusal_is_returned_after_enough_repetitions() {
        let (status, requests, _) = send(u32::MAX, 429, Some("1")).await;
        assert_eq!((status, requests), (429, REPETITIONS + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn no_wait_is_longer_than_the_limit() {
        let (_, _, took) = send(1, 429, Some("86400")).await;
        assert!(took < LONGEST * 2 + Duration::from_secs(1), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn other_failures_are_returned_at_once() {
        for (code, retry_after) in [(503, Some("1")), (504, Some("1")), (429, None), (429, Some("soon"))] {
            assert_eq!(send(1, code, retry_after).await, (code, 1, Duration::ZERO), "{code} {retry_after:?}");
        }
    }
}
