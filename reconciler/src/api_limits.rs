//! Limits of a client's requests to the control plane: their rate, and the time until an answer.
//!
//! The rate is that of a token bucket: `burst` requests at once, and `per_second` in the long run; those beyond it wait. A watch is one
//! request for hours and is neither counted nor limited in time. Neither counted are requests about Leases: a host that is busy with
//! other requests would look silent.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::Request;
use kube::client::Body;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// The interval between pings on an idle connection, unless an option says otherwise.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long a command waits for an answer. A Kubernetes control plane itself gives up after a minute.
const COMMAND_ANSWER: Duration = Duration::from_secs(120);
/// The part of a path that is about Leases.
const LEASES: &str = "/coordination.k8s.io/";

/// The limits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiLimits {
    /// The rate of requests. None: any rate.
    pub rate: Option<Rate>,
    /// How long a request may wait for the begin of its answer. None: as long as it takes.
    pub timeout: Option<Duration>,
    /// The interval between pings on an idle connection.
    pub ping_every: Duration,
}

/// A rate of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many there are in each second of a long time.
    pub per_second: u32,
    /// How many there may be at once, after a time without any.
    pub burst: u32,
}

impl ApiLimits {
    /// No limits.
    pub const NONE: Self = Self { rate: None, timeout: None, ping_every: PING_EVERY };

    /// For commands, which make few requests, and would wait for ever for a control plane that hangs.
    pub const COMMAND: Self = Self { timeout: Some(COMMAND_ANSWER), ..Self::NONE };

    /// Returns the layer that enforces them for all requests of one client.
    pub(crate) fn layer(&self) -> LimitLayer {
        LimitLayer { bucket: self.rate.map(|rate| Arc::new(Bucket::new(rate))), timeout: self.timeout }
    }
}

/// The time limit passed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the control plane did not answer within {} seconds", .0.as_secs())]
struct NoAnswer(Duration);

/// Adds the limits to a client.
#[derive(Clone, Debug)]
pub(crate) struct LimitLayer {
    bucket: Option<Arc<Bucket>>,
    timeout: Option<Duration>,
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limits: self.clone() }
    }
}

/// A client with limits. Its copies share one rate.
#[derive(Clone, Debug)]
pub(crate) struct Limited<S> {
    inner: S,
    limits: LimitLayer,
}

impl<S> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_limited = !is_watch(&request);
        let is_counted = is_limited && !request.uri().path().contains(LEASES);
        let place = self.limits.bucket.as_ref().filter(|_| is_counted).and_then(Bucket::take);
        let limit = self.limits.timeout.filter(|_| is_limited);
        // A client sends nothing before its future is polled.
        let answer = self.inner.call(request);
        async move {
            if let Some(place) = place {
                place.wait().await;
            }
            match limit {
                None => answer.await,
                Some(limit) => {
                    tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| Err(NoAnswer(limit).into()))
                }
            }
        }
        .boxed()
    }
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|part| matches!(part, "watch=true" | "watch=1"))
}

/// A token bucket, as the moment at which the next request is due.
#[derive(Debug)]
struct Bucket {
    /// The time between two requests.
    every: Duration,
    /// The time without requests that counts: that of the burst.
    saved: Duration,
    next: Mutex<Instant>,
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        let every = Duration::from_secs(1) / rate.per_second.max(1);
        let saved = every * rate.burst.saturating_sub(1);
        let now = Instant::now();
        Self { every, saved, next: Mutex::new(now.checked_sub(saved).unwrap_or(now)) }
    }

    /// Takes the place of one request; returns it if the request has to wait for it.
    fn take(self: &Arc<Self>) -> Option<Place> {
        let now = Instant::now();
        let earliest = now.checked_sub(self.saved).unwrap_or(now);
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let due = earliest.max(*next);
        *next = due + self.every;
        (due > now).then(|| Place { bucket: Arc::clone(self), due })
    }
}

/// The place of a request that waits. One whose caller gives up before is given back.
#[derive(Debug)]
struct Place {
    bucket: Arc<Bucket>,
    due: Instant,
}

impl Place {
    async fn wait(self) {
        tokio::time::sleep_until(self.due).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if Instant::now() < self.due {
            let mut next = self.bucket.next.lock().unwrap_or_else(PoisonError::into_inner);
            *next = next.checked_sub(self.bucket.every).unwrap_or(*next);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use tower::{ServiceExt, service_fn};

    use super::*;

    const LIMITS: ApiLimits = ApiLimits {
        rate: Some(Rate { per_second: 10, burst: 3 }),
        timeout: Some(Duration::from_secs(5)),
        ping_every: PING_EVERY,
    };

    /// Sends these requests at once to a server that takes a time for each answer; returns when each was answered, in milliseconds.
    async fn answered(limits: ApiLimits, takes: Duration, paths: &[&str]) -> Vec<Result<u128, String>> {
        let begun = Instant::now();
        let server = service_fn(move |_: Request<Body>| async move {
            tokio::time::sleep(takes).await;
            Ok::<_, BoxError>(Response::new(()))
        });
        let client = limits.layer().layer(server);
        let answers = paths.iter().map(|path| {
            let request = Request::get(*path).body(Body::from(Vec::new())).expect("a request");
            let answer = client.clone().oneshot(request);
            async move {
                let answer = answer.await.map_err(|error| error.to_string());
                answer.map(|_| begun.elapsed().as_millis())
            }
        });
        futures::future::join_all(answers).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_whose_caller_gives_up_is_given_back() {
        let bucket = Arc::new(Bucket::new(Rate { per_second: 1, burst: 1 }));
        assert!(bucket.take().is_none(), "the burst");
        for _ in 0..100 {
            drop(bucket.take().expect("it waits"));
        }
        let place = bucket.take().expect("it waits");
        assert!(place.due <= Instant::now() + Duration::from_secs(1), "{:?}", place.due);
        place.wait().await;
        assert!(
            bucket.take().expect("one a second").due > Instant::now(),
            "a place that was used is not given back"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_answered_at_once_and_the_rest_at_the_rate() {
        let times = answered(LIMITS, Duration::ZERO, &["/x"; 6]).await;
        let times: Vec<u128> = times.into_iter().map(|time| time.expect("an answer")).collect();
        for (time, least) in times.iter().zip([0, 0, 0, 100, 200, 300]) {
            assert!((least..least + 20).contains(time), "{times:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watches_and_leases_are_not_counted() {
        let watch = "/apis/berth.dev/v1alpha1/vms?resourceVersion=7&watch=true";
        let lease = "/apis/coordination.k8s.io/v1/namespaces/berth-system/leases/h1";
        let paths = ["/x", "/x", "/x", "/x", watch, lease, watch, lease];
        let times = answered(LIMITS, Duration::ZERO, &paths).await;
        let times: Vec<u128> = times.into_iter().map(|time| time.expect("an answer")).collect();
        assert!(times[3] >= 100 && times[4..].iter().all(|time| *time < 20), "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_fails_and_a_watch_waits() {
        let slow = Duration::from_secs(60);
        let answers = answered(LIMITS, slow, &["/x", "/x?watch=1"]).await;
        let text = "the control plane did not answer within 5 seconds";
        assert_eq!(answers[0], Err(text.to_owned()));
        assert!(answers[1].as_ref().is_ok_and(|time| *time >= 60_000), "{answers:?}");
        let without = answered(ApiLimits::NONE, slow, &["/x"; 40]).await;
        assert!(without.iter().all(|time| time.as_ref().is_ok_and(|time| *time < 60_020)), "{without:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_does_not_wait_for_ever() {
        let answers = answered(ApiLimits::COMMAND, Duration::from_secs(3600), &["/x"]).await;
        assert!(answers[0].is_err(), "{answers:?}");
        let answers = answered(ApiLimits::COMMAND, Duration::from_secs(65), &["/x"]).await;
        assert!(answers[0].is_ok(), "{answers:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_comes_back_after_a_time_without_requests() {
        let bucket = Arc::new(Bucket::new(Rate { per_second: 10, burst: 3 }));
        let take = || (0..5).map(|_| bucket.take()).collect::<Vec<_>>();
        let immediate = |places: &[Option<Place>]| places.iter().filter(|place| place.is_none()).count();
        let first = take();
        assert_eq!(immediate(&first), 3);
        // Two places are taken by those that wait.
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(immediate(&take()), 3 - 1);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(immediate(&take()), 3);
    }
}
