//! Watch: the events of a collection from a given revision on, as frames of newline-delimited JSON.
//!
//! ```text
//! initial objects ─▶ initial-events-end bookmark ─▶ backlog ─▶ live events … ─▶ deadline, 410, another definition, or shutdown
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::meta::{field_error, forbidden};
use berth_apimachinery::schema::ErrorKind;
use berth_apimachinery::selector::Selector;
use berth_store::{Change, Entry, Event, ReadError, Subscription, frame, with_revision};
use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::list::parse_revision;
use super::{ApiError, Call, Result};
use crate::authenticate::Credential;
use crate::core::{Core, is_served_as_stored};
use crate::request::Target;
use crate::selection;
use crate::store_error::of_read;

/// The timeout of a watch without `timeoutSeconds`. Clients resume from their last revision.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(290);
/// The upper limit of `timeoutSeconds`; longer values are reduced to it.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// The bookmark interval of a watcher that requested bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(55);
/// The number of revisions by which a watcher may be behind without a bookmark if none of them is of its resource: a tenth of the history
/// that is kept by default, unless large objects or options shorten it. It could resume from its last event. A site at rest has thousands
/// of such watches.
const BEHIND: u64 = 20_000;
/// The approximate number of bytes of pending frames that are sent together: batching makes it cheaper for
/// client and server when a lagging watcher catches up.
const TOGETHER: usize = 32 << 10;
/// The number of events for which a watch that has caught up keeps space.
const KEPT: usize = 4;
/// A watcher that has just received an event waits this long, times the number of watchers of the same events,
/// for further events so that they are sent together: waking a thousand clients for every event costs the
/// clients and the server more than anything else.
const GATHER_EACH: Duration = Duration::from_micros(50);
/// The upper limit of that delay.
const GATHER_MOST: Duration = Duration::from_millis(50);
/// Shorter delays are skipped: this is the resolution of the timer.
const GATHER_LEAST: Duration = Duration::from_millis(1);
/// How often the server checks that the token of a watch is still valid: a watch ends within a minute of its token. Due together with a
/// bookmark, it wakes the watch once for both.
const AUTHENTICATE_EVERY: Duration = BOOKMARK_EVERY;
/// The annotation that marks the end of the initial objects.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// The representation of objects inside frames; Tables and metadata-only watchers use other shapes.
pub(crate) trait WatchFormat: Send + Sync {
    /// The object's JSON in this shape; `first` is true for the first frame of a stream.
    fn object(&self, text: Bytes, first: bool) -> Bytes;
    /// Whether objects are sent unchanged, so that watchers can share frames.
    fn is_plain(&self) -> bool;
}

/// A running watch; call `next` until it returns `None`.
pub(crate) struct WatchStream {
    core: Arc<Core>,
    target: Target,
    selector: Selector,
    format: Box<dyn WatchFormat>,
    subscription: Subscription,
    initial: VecDeque<Arc<Entry>>,
    backlog: VecDeque<Arc<Event>>,
    /// The revision of the bookmark that ends the initial events.
    initial_end: Option<u64>,
    /// When the next bookmark is due, if the watcher requested any.
    bookmark_at: Option<Instant>,
    /// The revision from which the watcher would resume.
    last_sent: u64,
    /// When the last event was sent.
    told_at: Option<Instant>,
    deadline: Instant,
    /// Cancelled when the server stops, and when another resource replaces this one or it is no longer served.
    ended: CancellationToken,
    /// The token that the watch was opened with, if any, and the time of its next check.
    credential: Option<(Credential, Instant)>,
    first: bool,
    done: bool,
}

impl std::fmt::Debug for WatchStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchStream").field("target", &self.target).finish_non_exhaustive()
    }
}

/// The starting point of a watch.
struct Start {
    after: Option<u64>,
    with_objects: bool,
    with_end: bool,
}

impl Call {
    /// The watch ends when the token it was opened with, if any, is no longer valid.
    pub(crate) async fn watch(
        &mut self,
        format: Box<dyn WatchFormat>,
        credential: Option<Credential>,
    ) -> Result<WatchStream> {
        let mut selector = self.selector()?;
        if !self.target.name.is_empty() {
            selector = selector.and_name(&self.target.name);
        }
        let start = self.watch_start()?;
        let resource = Arc::clone(&self.target.resource.storage);
        let namespace = Some(self.target.namespace.clone()).filter(|n| !n.is_empty());
        let first = |state: &berth_store::State| {
            let objects: VecDeque<_> = if start.with_objects {
                state
                    .list(&resource, namespace.as_deref(), None)
                    .filter(|e| selection::matches(&selector, e))
                    .cloned()
                    .collect()
            } else {
                VecDeque::new()
            };
            (objects, state.revision)
        };
        let subscribed = self
            .core
            .store
            .subscribe(&resource, selection::interest(&selector), start.after, first)
            .await
            .map_err(of_read)?;
        let ((initial, revision), mut subscription) = subscribed;
        let timeout = self.options.timeout_seconds.filter(|seconds| *seconds > 0);
        let timeout = timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs).min(MAX_TIMEOUT);
        let now = Instant::now();
        Ok(WatchStream {
            core: Arc::clone(&self.core),
            target: self.target.clone(),
            selector,
            format,
            backlog: std::mem::take(&mut subscription.backlog).into(),
            subscription,
            initial,
            initial_end: start.with_end.then_some(revision),
            bookmark_at: self.options.bookmarks.then(|| now + BOOKMARK_EVERY),
            last_sent: start.after.unwrap_or_default(),
            told_at: None,
            deadline: now + timeout,
            ended: self.target.resource.ended(),
            credential: credential.map(|credential| (credential, now + AUTHENTICATE_EVERY)),
            first: true,
            done: false,
        })
    }

    fn watch_start(&self) -> Result<Start> {
        let options = &self.options;
        let invalid = |error| {
            ApiError::invalid(
                super::Subject { group: "meta.k8s.io", kind: "ListOptions", name: "" },
                &[error],
            )
        };
        let from = parse_revision(&options.resource_version)?;
        match options.send_initial_events {
            Some(wanted) => {
                if options.resource_version_match != "NotOlderThan" {
                    let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                    return Err(invalid(forbidden("resourceVersionMatch", why)));
                }
                if wanted && !options.bookmarks {
                    let message = "Required value: sendInitialEvents requires allowWatchBookmarks";
                    return Err(invalid(field_error(ErrorKind::Required, "allowWatchBookmarks", message)));
                }
                super::list::check_not_future(&self.core.store, &options.resource_version)?;
                let after = if wanted { None } else { from.filter(|revision| *revision > 0) };
                Ok(Start { after, with_objects: wanted, with_end: wanted })
            }
            None if !options.resource_version_match.is_empty() => {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                Err(invalid(forbidden("resourceVersionMatch", why)))
            }
            // No revision, or 0: the current objects, then the events.
            None => {
                let after = from.filter(|revision| *revision > 0);
                Ok(Start { after, with_objects: after.is_none(), with_end: false })
            }
        }
    }
}

impl WatchStream {
    /// Returns the next lines, never empty; `None` ends the stream.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.check_revoked() {
                return None;
            }
            if let Some(frame) = self.ready() {
                return Some(self.with_more(frame));
            }
            if self.done {
                return None;
            }
            if self.target.resource.is_retired() {
                // All clients of the resource resume at once: from here if they can, not each from an old revision.
                return if self.subscription.has_rest() { None } else { self.last_word() };
            }
            if self.subscription.has_rest() {
                match self.subscription.read_rest().await {
                    Ok(events) => self.backlog.extend(events),
                    Err(error) => {
                        if matches!(error, ReadError::Database(_)) {
                            tracing::error!(%error, "the past of a watch cannot be read");
                        }
                        return self.cut_off();
                    }
                }
                continue;
            }
            // One timer: a control plane has thousands of idle watches.
            let wake = self.wake_at();
            tokio::select! {
                biased;
                event = self.subscription.events.recv() => match event {
                    Some(event) => {
                        self.backlog.push_back(event);
                        self.gather().await;
                    }
                    None => return self.cut_off(),
                },
                // That of a resource that is retired has a last word.
                () = self.ended.cancelled() => self.done = !self.target.resource.is_retired(),
                () = sleep_until(wake) => if let Some(frame) = self.on_time() {
                    return Some(frame);
                },
            }
        }
    }

    /// When the watch has something to do without an event.
    fn wake_at(&self) -> Instant {
        let check = self.credential.as_ref().map(|(_, at)| *at);
        check.into_iter().chain(self.bookmark_at).fold(self.deadline, Instant::min)
    }

    /// Does what is due by now; returns the frame to send, if any.
    fn on_time(&mut self) -> Option<Bytes> {
        if self.check_revoked() {
            return None;
        }
        let now = Instant::now();
        if now >= self.deadline {
            return self.last_word();
        }
        let due = self.bookmark_at.filter(|at| now >= *at)?;
        self.bookmark_at = Some(after(due, BOOKMARK_EVERY, now));
        if !self.needs_bookmark() {
            return None;
        }
        let revision = self.catch_up()?;
        // Events come first; while some are pending, the bookmark waits for the next time.
        self.backlog.is_empty().then(|| self.bookmark(revision, false))
    }

    /// Whether the watcher would read events of its resource again, or far back, if it resumed now. At its end every watch gets a bookmark.
    fn needs_bookmark(&self) -> bool {
        let state = self.core.store.state();
        let written = state.changed(&self.target.resource.storage) > self.last_sent;
        written || is_far_behind(self.last_sent, state.revision, state.compacted)
    }

    /// Whether the token is no longer valid. The client restarts the watch with its current token.
    fn check_revoked(&mut self) -> bool {
        let now = Instant::now();
        if let Some((credential, at)) = &mut self.credential
            && now >= *at
        {
            *at = after(*at, AUTHENTICATE_EVERY, now);
            self.done |= credential.identity(&self.core.tokens).is_none();
            return self.done;
        }
        false
    }

    /// Waits briefly for more events if the resource has many watchers and this watcher received an event
    /// only just now.
    async fn gather(&mut self) {
        let now = Instant::now();
        let last = self.told_at.replace(now);
        let Some(last) = last.filter(|last| now - *last < GATHER_MOST) else { return };
        let together = self
            .core
            .store
            .state()
            .watchers_beside(&self.target.resource.storage, &selection::interest(&self.selector));
        let until = last + gathering(together);
        if until > now {
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.core.stopping.cancelled() => {}
            }
            self.told_at = Some(Instant::now());
        }
    }

    /// Returns a frame together with the pending frames that can follow it.
    fn with_more(&mut self, first: Bytes) -> Bytes {
        let mut lines = BytesMut::new();
        let mut length = first.len();
        while length < TOGETHER {
            if self.backlog.is_empty()
                && !self.subscription.has_rest()
                && let Some(event) = self.subscription.events.try_recv()
            {
                self.backlog.push_back(event);
            }
            let Some(frame) = self.ready() else { break };
            if lines.is_empty() {
                lines.extend_from_slice(&first);
            }
            lines.extend_from_slice(&frame);
            length = lines.len();
        }
        if lines.is_empty() { first } else { lines.freeze() }
    }

    fn ready(&mut self) -> Option<Bytes> {
        if let Some(entry) = self.initial.pop_front() {
            if self.initial.is_empty() {
                // Of a long list that would be more than all the rest of the watch.
                self.initial = VecDeque::new();
            }
            return Some(self.frame("ADDED", &entry));
        }
        if let Some(revision) = self.initial_end.take() {
            return Some(self.bookmark(revision, true));
        }
        while let Some(event) = self.backlog.pop_front() {
            // Objects may be written in another form from here on. The client resumes after the last event that it received.
            if self.target.resource.is_retired() {
                self.done = true;
                return None;
            }
            if self.backlog.is_empty() {
                self.backlog.shrink_to(KEPT);
            }
            if let Some(frame) = self.event(&event) {
                self.last_sent = event.entry.revision;
                return Some(frame);
            }
        }
        None
    }

    /// Returns a final bookmark for a watcher that requested bookmarks and has not received the current
    /// revision. The client will resume from it; a watcher of few objects would otherwise request everything
    /// written since its last event.
    fn last_word(&mut self) -> Option<Bytes> {
        self.done = true;
        let revision = self.catch_up()?;
        let news = self.bookmark_at.is_some() && self.backlog.is_empty() && revision > self.last_sent;
        news.then(|| self.bookmark(revision, false))
    }

    /// Takes every event up to the current revision and returns that revision: a bookmark must not overtake
    /// an event. `None`: the store has dropped the watch, and with it events up to that revision.
    fn catch_up(&mut self) -> Option<u64> {
        let revision = self.core.store.state().revision;
        while let Some(event) = self.subscription.events.try_recv() {
            self.backlog.push_back(event);
        }
        (!self.subscription.events.has_ended()).then_some(revision)
    }

    /// Ends a watch that the store dropped because the watcher was too slow or the server is stopping, or whose past events are no
    /// longer kept.
    fn cut_off(&mut self) -> Option<Bytes> {
        self.done = true;
        if self.core.stopping.is_cancelled() {
            return None;
        }
        let status = ApiError::expired("too old resource version: the watch fell behind").status();
        Some(frame(
            "ERROR",
            &serde_json::to_vec(&status).expect("a JSON value always serializes into memory"),
        ))
    }

    /// Returns the frame for an event, if any: an object that leaves the selection is sent as deleted.
    fn event(&mut self, event: &Arc<Event>) -> Option<Bytes> {
        let (entry, previous) = (&event.entry, event.previous.as_ref());
        if !self.target.namespace.is_empty() && *entry.key.namespace != *self.target.namespace {
            return None;
        }
        let before = previous.is_some_and(|previous| selection::matches(&self.selector, previous));
        let now = event.change != Change::Deleted && selection::matches(&self.selector, entry);
        let change = match (before, now) {
            (false, false) => return None,
            (false, true) => Change::Added,
            (true, true) => Change::Modified,
            (true, false) => Change::Deleted,
        };
        if change == event.change && self.format.is_plain() && self.as_stored(entry) {
            self.first = false;
            return Some(event.frame.get_or_init(|| frame(change.name(), &entry.text.to_bytes())).clone());
        }
        if change == Change::Deleted && event.change != Change::Deleted {
            let left = previous.map(|previous| relabelled(previous, entry.revision))?;
            return Some(self.frame("DELETED", &left));
        }
        Some(self.frame(change.name(), entry))
    }

    fn as_stored(&self, entry: &Entry) -> bool {
        self.target.resource.group != crate::builtin::EVENTS
            && is_served_as_stored(entry, &self.target.resource, self.target.version)
    }

    fn frame(&mut self, change: &str, entry: &Entry) -> Bytes {
        let text = Core::text(entry, &self.target.resource, self.target.version);
        let first = std::mem::replace(&mut self.first, false);
        frame(change, &self.format.object(text, first))
    }

    fn bookmark(&mut self, revision: u64, initial_end: bool) -> Bytes {
        self.last_sent = revision;
        let resource = &self.target.resource;
        let mut object: Value = json!({
            "kind": resource.kind,
            "apiVersion": resource.api_version(self.target.version),
            "metadata": {"resourceVersion": revision.to_string(), "creationTimestamp": null},
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({INITIAL_END: "true"});
        }
        let text = serde_json::to_vec(&object).expect("a JSON value always serializes into memory");
        let first = std::mem::replace(&mut self.first, false);
        frame("BOOKMARK", &self.format.object(text.into(), first))
    }
}

/// Whether a watcher that resumed after the revision that it was sent last would read far back, or from before the kept history soon.
fn is_far_behind(last_sent: u64, revision: u64, compacted: u64) -> bool {
    let behind = revision.saturating_sub(last_sent);
    let is_old = compacted > 0 && behind > revision.saturating_sub(compacted) / 2;
    behind > BEHIND || is_old
}

/// The next time of a regular action that was due at a time: without drift, so that the check of a token and a bookmark wake the watch
/// together.
fn after(due: Instant, every: Duration, now: Instant) -> Instant {
    let next = due + every;
    if next > now { next } else { now + every }
}

/// The delay between the frames of a watcher when a resource has this many watchers.
fn gathering(watchers: usize) -> Duration {
    let gap = GATHER_EACH.saturating_mul(u32::try_from(watchers).unwrap_or(u32::MAX)).min(GATHER_MOST);
    if gap < GATHER_LEAST { Duration::ZERO } else { gap }
}

/// Returns the same state under the revision at which the object left a selection.
fn relabelled(entry: &Entry, revision: u64) -> Entry {
    let text = entry.text.to_bytes();
    Entry {
        key: entry.key.clone(),
        revision,
        written_ms: entry.written_ms,
        text: with_revision(&text, revision).unwrap_or(text).into(),
        facts: Arc::clone(&entry.facts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_is_not_left_behind_a_history_that_is_short() {
        assert!(!is_far_behind(100, 100 + BEHIND, 0));
        assert!(is_far_behind(100, 101 + BEHIND, 0));
        // Of 1,000 revisions that are kept, the watcher is in the older half, or before them.
        for (last_sent, expected) in [(50_000, false), (49_500, false), (49_499, true), (48_000, true)] {
            assert_eq!(is_far_behind(last_sent, 50_000, 49_000), expected, "{last_sent}");
        }
        assert!(!is_far_behind(50_000, 50_000, 50_000), "nothing was written since");
    }

    #[test]
    fn regular_actions_do_not_drift_and_missed_ones_are_left_out() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let late = at(30) + Duration::from_millis(2);
        assert_eq!(after(at(30), Duration::from_secs(30), late), at(60));
        assert_eq!(after(at(30), Duration::from_secs(30), at(60)), at(90));
        assert_eq!(after(at(30), Duration::from_secs(30), at(200)), at(230));
    }
}
