//! A watch on one object until a verdict.

use std::{pin::pin, time::Duration};

use futures::TryStreamExt;
use http::Request;
use kube::core::WatchEvent;
use serde_json::Value as Json;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Address, Api, ApiError, RetryLimit, chain};

/// The longest time of a watch, in seconds.
const WATCH_SECONDS: u64 = 60;
/// The time beside that in which a watch begins and ends. On a connection whose other end is gone it does not end.
const LATE: Duration = Duration::from_secs(20);
/// The longest outage of the control plane that a wait tolerates.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// The result of judging the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<R> {
    /// The wait is over.
    Done(R),
    /// Continue until the object changes, with the reason.
    Wait(String),
}

/// A wait for one object.
#[derive(Debug)]
pub struct ObjectWait<'a> {
    /// The client of the control plane.
    pub api: &'a Api,
    /// The address of the object.
    pub at: &'a Address,
    /// The object as last seen.
    pub object: Json,
    /// The limits of the wait.
    pub retry_limit: RetryLimit,
}

/// The end of a wait.
#[derive(Debug)]
pub enum WaitEnd<R> {
    /// A verdict, with the object judged.
    Done(R, Json),
    /// The object is gone.
    Gone,
    /// The time ran out: the object as last seen, and the reason for the wait.
    TimedOut(Json, String),
    /// Terraform cancelled the operation.
    Cancelled(Json),
    /// The control plane is away: the object as last seen, and the error.
    Unreachable(Json, String),
}

/// Waits for a verdict.
///
/// Expected flow: judge the given object, then watch from its resourceVersion on, so that no change is missed and nothing is
/// polled. When a watch ends, read the object and start the next watch.
pub async fn wait_until<R>(
    mut waiting: ObjectWait<'_>,
    mut judge: impl FnMut(&Json) -> Verdict<R>,
) -> WaitEnd<R> {
    let uid = text(&waiting.object, "/metadata/uid").to_owned();
    let mut why;
    let mut silent_since: Option<Instant> = None;
    let mut pause = Duration::from_millis(100);
    loop {
        match judge(&waiting.object) {
            Verdict::Done(verdict) => return WaitEnd::Done(verdict, waiting.object),
            Verdict::Wait(reason) => why = reason,
        }
        let retry_limit = waiting.retry_limit.clone();
        let next = tokio::select! {
            () = retry_limit.cancel.cancelled() => return WaitEnd::Cancelled(waiting.object),
            () = sleep_until(retry_limit.until) => return WaitEnd::TimedOut(waiting.object, why),
            next = next_version(&waiting, &uid, &mut judge, &mut why) => next,
        };
        match next {
            Next::Object(object) => {
                waiting.object = object;
                silent_since = None;
                pause = Duration::from_millis(100);
            }
            Next::Gone => return WaitEnd::Gone,
            Next::Unreachable(error) => {
                let since = *silent_since.get_or_insert_with(Instant::now);
                if since.elapsed() > LONGEST_SILENCE {
                    return WaitEnd::Unreachable(waiting.object, error);
                }
                tokio::select! {
                    () = retry_limit.cancel.cancelled() => return WaitEnd::Cancelled(waiting.object),
                    () = sleep_until(retry_limit.until) => return WaitEnd::TimedOut(waiting.object, why),
                    () = sleep(pause) => {}
                }
                pause = (pause * 2).min(Duration::from_secs(2));
            }
        }
    }
}

/// Like `until`, with a grace period in which transient obstacles may resolve: until it is over, `judge` receives `false`.
pub async fn wait_until_settled<R>(
    waiting: ObjectWait<'_>,
    grace: Duration,
    mut judge: impl FnMut(&Json, bool) -> Verdict<R>,
) -> WaitEnd<R> {
    let (api, at, retry_limit) = (waiting.api, waiting.at, waiting.retry_limit.clone());
    let first = RetryLimit { until: retry_limit.until.min(Instant::now() + grace), ..retry_limit.clone() };
    match wait_until(ObjectWait { retry_limit: first, ..waiting }, |object| judge(object, false)).await {
        WaitEnd::TimedOut(object, _) => {
            wait_until(ObjectWait { api, at, object, retry_limit }, |object| judge(object, true)).await
        }
        ended => ended,
    }
}

enum Next {
    Object(Json),
    Gone,
    Unreachable(String),
}

/// Follows a watch until it ends or gives a verdict, then reads the object.
async fn next_version<R>(
    waiting: &ObjectWait<'_>,
    uid: &str,
    judge: &mut impl FnMut(&Json) -> Verdict<R>,
    why: &mut String,
) -> Next {
    let version = text(&waiting.object, "/metadata/resourceVersion");
    let limit = Duration::from_secs(WATCH_SECONDS) + LATE;
    match timeout(limit, follow(waiting, version, uid, judge, why)).await {
        Ok(Ok(Some(next))) => return next,
        Ok(Ok(None)) | Err(_) => {}
        Ok(Err(error @ ApiError::Unreachable(_))) => return Next::Unreachable(error.to_string()),
        // The version is too old to watch from, or watching is not permitted: read the object instead, but not in a tight
        // loop.
        Ok(Err(_)) => sleep(Duration::from_millis(500)).await,
    }
    let once = RetryLimit { until: Instant::now(), cancel: waiting.retry_limit.cancel.clone() };
    match waiting.api.get(waiting.at, &once).await {
        Ok(Some(object)) if text(&object, "/metadata/uid") == uid => Next::Object(object),
        Ok(_) => Next::Gone,
        Err(error) => Next::Unreachable(error.to_string()),
    }
}

/// None when the watch ended without a verdict.
async fn follow<R>(
    waiting: &ObjectWait<'_>,
    version: &str,
    uid: &str,
    judge: &mut impl FnMut(&Json) -> Verdict<R>,
    why: &mut String,
) -> Result<Option<Next>, ApiError> {
    let left = waiting.retry_limit.until.saturating_duration_since(Instant::now()).as_secs();
    let at = waiting.at;
    let path = format!(
        "{}?watch=true&fieldSelector=metadata.name%3D{}&resourceVersion={version}&timeoutSeconds={}&allowWatchBookmarks=true",
        at.collection(),
        at.name,
        left.clamp(1, WATCH_SECONDS)
    );
    let request = Request::builder()
        .uri(path)
        .body(Vec::new())
        .map_err(|error| ApiError::InvalidRequest(error.to_string()))?;
    let opening = timeout(Duration::from_secs(10), waiting.api.client.request_events::<Json>(request));
    let events =
        opening.await.map_err(|_| ApiError::Unreachable("the watch did not begin in 10 seconds".into()))?;
    let mut events = pin!(events.map_err(refused_or_silent)?);
    loop {
        let event = events.try_next().await.map_err(refused_or_silent)?;
        match event {
            None => return Ok(None),
            Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                if text(&object, "/metadata/uid") != uid {
                    return Ok(Some(Next::Gone));
                }
                match judge(&object) {
                    Verdict::Done(_) => return Ok(Some(Next::Object(object))),
                    Verdict::Wait(reason) => *why = reason,
                }
            }
            Some(WatchEvent::Deleted(object)) if text(&object, "/metadata/uid") == uid => {
                return Ok(Some(Next::Gone));
            }
            Some(WatchEvent::Deleted(_) | WatchEvent::Bookmark(_)) => {}
            Some(WatchEvent::Error(status)) => return Err(ApiError::Refused(status)),
        }
    }
}

fn refused_or_silent(error: kube::Error) -> ApiError {
    match error {
        kube::Error::Api(status) => ApiError::Refused(status),
        error => ApiError::Unreachable(chain(&error)),
    }
}

fn text<'a>(object: &'a Json, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Json::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, task::Poll};

    use futures::{StreamExt as _, stream};
    use http::Response;
    use http_body_util::{BodyStream, StreamBody};
    use kube::{Client, client::Body};
    use serde_json::json;
    use tfplugin6::CancellationToken;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_goes_on_if_the_other_end_of_its_watch_is_gone() {
        let vm = |version: &str, state: &str| json!({"metadata": {"uid": "u", "resourceVersion": version}, "status": {"state": state}});
        let now = vm("2", "Running").to_string();
        // A watch begins, and says nothing more.
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let text = if is_watch { String::new() } else { now.clone() };
            async move {
                let content = BodyStream::new(Body::from(text.into_bytes()));
                let rest = stream::poll_fn(move |_| if is_watch { Poll::Pending } else { Poll::Ready(None) });
                Ok::<_, Infallible>(Response::new(StreamBody::new(content.chain(rest))))
            }
        });
        let api = Api::new(Client::new(service, "default"));
        let at = Address::berth("vms", "default", "web");
        let retry_limit = RetryLimit::seconds(600, &CancellationToken::new());
        let wait = ObjectWait { api: &api, at: &at, object: vm("1", "Starting"), retry_limit };
        let ended = wait_until(wait, |object| match text(object, "/status/state") {
            "Running" => Verdict::Done(()),
            state => Verdict::Wait(state.to_owned()),
        });
        let ended = ended.await;
        assert!(matches!(ended, WaitEnd::Done((), _)), "{ended:?}");
    }
}
