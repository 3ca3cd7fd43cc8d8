//! One watch on one object, until a verdict.

use std::{pin::pin, time::Duration};

use futures::TryStreamExt;
use http::Request;
use kube::core::WatchEvent;
use serde_json::Value as Json;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Address, Api, ApiError, Patience, chain};

/// How long the control plane may be away during a wait.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// What to do after a look at the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<R> {
    /// The wait is over.
    Over(R),
    /// Look again when it changes. Why.
    Wait(String),
}

/// A wait for one object.
#[derive(Debug)]
pub struct Waiting<'a> {
    /// The control plane.
    pub api: &'a Api,
    /// Which.
    pub at: &'a Address,
    /// The object as it was last seen.
    pub object: Json,
    /// Until when.
    pub patience: Patience,
}

/// How a wait ended.
#[derive(Debug)]
pub enum Ended<R> {
    /// With a verdict on this object.
    Over(R, Json),
    /// The object is gone.
    Gone,
    /// Out of time: the object as last seen, and why it was waited for.
    TimedOut(Json, String),
    /// Terraform was told to stop.
    Cancelled(Json),
    /// The control plane is away: the object as last seen.
    Unreachable(Json, String),
}

/// Waits for a verdict.
///
/// Expected flow: a look at the object as given, then a watch from its resourceVersion on, so that no change is missed
/// and nothing is polled. A watch that ends is followed by a look and the next watch.
pub async fn until<R>(mut waiting: Waiting<'_>, mut judge: impl FnMut(&Json) -> Verdict<R>) -> Ended<R> {
    let uid = text(&waiting.object, "/metadata/uid").to_owned();
    let mut why;
    let mut silent_since: Option<Instant> = None;
    let mut pause = Duration::from_millis(100);
    loop {
        match judge(&waiting.object) {
            Verdict::Over(verdict) => return Ended::Over(verdict, waiting.object),
            Verdict::Wait(reason) => why = reason,
        }
        let patience = waiting.patience.clone();
        let next = tokio::select! {
            () = patience.cancel.cancelled() => return Ended::Cancelled(waiting.object),
            () = sleep_until(patience.until) => return Ended::TimedOut(waiting.object, why),
            next = next_version(&waiting, &uid, &mut judge, &mut why) => next,
        };
        match next {
            Next::Object(object) => {
                waiting.object = object;
                silent_since = None;
                pause = Duration::from_millis(100);
            }
            Next::Gone => return Ended::Gone,
            Next::Silence(error) => {
                let since = *silent_since.get_or_insert_with(Instant::now);
                if since.elapsed() > LONGEST_SILENCE {
                    return Ended::Unreachable(waiting.object, error);
                }
                tokio::select! {
                    () = patience.cancel.cancelled() => return Ended::Cancelled(waiting.object),
                    () = sleep_until(patience.until) => return Ended::TimedOut(waiting.object, why),
                    () = sleep(pause) => {}
                }
                pause = (pause * 2).min(Duration::from_secs(2));
            }
        }
    }
}

/// The same, but with a while in which what heals by itself may do so: until it is over, the judge is told `false`.
pub async fn until_settled<R>(
    waiting: Waiting<'_>,
    grace: Duration,
    mut judge: impl FnMut(&Json, bool) -> Verdict<R>,
) -> Ended<R> {
    let (api, at, patience) = (waiting.api, waiting.at, waiting.patience.clone());
    let first = Patience { until: patience.until.min(Instant::now() + grace), ..patience.clone() };
    match until(Waiting { patience: first, ..waiting }, |object| judge(object, false)).await {
        Ended::TimedOut(object, _) => {
            until(Waiting { api, at, object, patience }, |object| judge(object, true)).await
        }
        ended => ended,
    }
}

enum Next {
    Object(Json),
    Gone,
    Silence(String),
}

/// Follows a watch for as long as it says nothing decisive, then the object as it is.
async fn next_version<R>(
    waiting: &Waiting<'_>,
    uid: &str,
    judge: &mut impl FnMut(&Json) -> Verdict<R>,
    why: &mut String,
) -> Next {
    let version = text(&waiting.object, "/metadata/resourceVersion");
    match follow(waiting, version, uid, judge, why).await {
        Ok(Some(next)) => return next,
        Ok(None) => {}
        Err(error @ ApiError::Unreachable(_)) => return Next::Silence(error.to_string()),
        // Too old to watch from, or no permission to watch: look instead, but never in a hurry.
        Err(_) => sleep(Duration::from_millis(500)).await,
    }
    let once = Patience { until: Instant::now(), cancel: waiting.patience.cancel.clone() };
    match waiting.api.get(waiting.at, &once).await {
        Ok(Some(object)) if text(&object, "/metadata/uid") == uid => Next::Object(object),
        Ok(_) => Next::Gone,
        Err(error) => Next::Silence(error.to_string()),
    }
}

/// None when the watch ended without a verdict.
async fn follow<R>(
    waiting: &Waiting<'_>,
    version: &str,
    uid: &str,
    judge: &mut impl FnMut(&Json) -> Verdict<R>,
    why: &mut String,
) -> Result<Option<Next>, ApiError> {
    let left = waiting.patience.until.saturating_duration_since(Instant::now()).as_secs();
    let at = waiting.at;
    let path = format!(
        "{}?watch=true&fieldSelector=metadata.name%3D{}&resourceVersion={version}&timeoutSeconds={}&allowWatchBookmarks=true",
        at.collection(),
        at.name,
        left.clamp(1, 290)
    );
    let request =
        Request::builder().uri(path).body(Vec::new()).map_err(|error| ApiError::Answer(error.to_string()))?;
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
                    Verdict::Over(_) => return Ok(Some(Next::Object(object))),
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
