//! Watching: the events of a collection from a revision on, as frames of newline-delimited JSON.
//!
//! ```text
//! initial objects ─▶ initial-events-end bookmark ─▶ backlog ─▶ live events … ─▶ deadline, 410, or shutdown
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use super::list::parse_revision;
use super::{ApiError, Call, Result};
use crate::core::{Core, is_served_as_stored};
use crate::meta::{field_error, forbidden};
use crate::request::Target;
use crate::schema::ErrorKind;
use crate::selector::Selector;
use crate::store::{Change, Entry, Event, Subscription, with_revision};

/// Without `timeoutSeconds`. Clients watch again from where they were.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(290);
/// Longer wishes are cut to this.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// How often a watcher who wants bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// What is at hand goes out together, up to about so many bytes: a watcher that lags catches up at less cost to both sides.
const TOGETHER: usize = 32 << 10;
/// Where many watch the same, a watcher that was just told something is told the next together with what follows within
/// this long for each who watches: to wake a thousand clients for every event costs them and the server more than all
/// else.
const GATHER_EACH: Duration = Duration::from_micros(50);
/// And never longer.
const GATHER_MOST: Duration = Duration::from_millis(50);
/// Nor at all if it would be shorter: that is as exact as timers are.
const GATHER_LEAST: Duration = Duration::from_millis(1);
/// Says that every object that existed has been sent.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// How objects are shown inside frames; Tables and metadata-only watchers get other shapes.
pub(crate) trait WatchFormat: Send + Sync {
    /// The object's JSON in this shape; `first` is true for the first frame of a stream.
    fn object(&self, text: Bytes, first: bool) -> Bytes;
    /// Whether objects are sent as they are, so that frames can be shared between watchers.
    fn is_plain(&self) -> bool;
}

/// One running watch; `next` until it answers `None`.
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
    bookmarks: Option<Interval>,
    /// The revision the watcher would come back with.
    told: u64,
    /// When it was last told of an event.
    told_at: Option<Instant>,
    deadline: Instant,
    first: bool,
    done: bool,
}

impl std::fmt::Debug for WatchStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchStream").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Where a watch starts.
struct Start {
    after: Option<u64>,
    with_objects: bool,
    with_end: bool,
}

impl Call {
    pub(crate) async fn watch(&mut self, format: Box<dyn WatchFormat>) -> Result<WatchStream> {
        let mut selector = self.selector()?;
        if !self.target.name.is_empty() {
            selector = selector.and_name(&self.target.name);
        }
        let start = self.watch_start()?;
        let resource = Arc::clone(&self.target.resource.storage);
        let namespace = Some(self.target.namespace.clone()).filter(|n| !n.is_empty());
        let first = |state: &crate::store::State| {
            let objects: VecDeque<_> = if start.with_objects {
                state
                    .list(&resource, namespace.as_deref(), None)
                    .filter(|e| selector.matches(e))
                    .cloned()
                    .collect()
            } else {
                VecDeque::new()
            };
            (objects, state.revision)
        };
        let subscribed =
            self.core.store.subscribe(&resource, selector.interest(), start.after, first).await?;
        let ((initial, revision), mut subscription) = subscribed;
        let timeout = self.options.timeout_seconds.filter(|seconds| *seconds > 0);
        let timeout = timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs).min(MAX_TIMEOUT);
        let now = Instant::now();
        let bookmarks = self.options.bookmarks.then(|| {
            let mut ticks = interval_at(now + BOOKMARK_EVERY, BOOKMARK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        Ok(WatchStream {
            core: Arc::clone(&self.core),
            target: self.target.clone(),
            selector,
            format,
            backlog: std::mem::take(&mut subscription.backlog).into(),
            subscription,
            initial,
            initial_end: start.with_end.then_some(revision),
            bookmarks,
            told: start.after.unwrap_or_default(),
            told_at: None,
            deadline: now + timeout,
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
            // No revision, or 0: what there is, then what happens.
            None => {
                let after = from.filter(|revision| *revision > 0);
                Ok(Start { after, with_objects: after.is_none(), with_end: false })
            }
        }
    }
}

impl WatchStream {
    /// The next lines. Never empty; `None` ends the stream.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.ready() {
                return Some(self.with_more(frame));
            }
            if self.done {
                return None;
            }
            let ticked = async {
                match &mut self.bookmarks {
                    Some(ticks) => ticks.tick().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                event = self.subscription.events.recv() => match event {
                    Some(event) => {
                        self.backlog.push_back(event);
                        self.gather().await;
                    }
                    None => return self.cut_off(),
                },
                () = self.core.stopping.cancelled() => self.done = true,
                () = sleep_until(self.deadline) => if let Some(frame) = self.last_word() {
                    return Some(frame);
                },
                _ = ticked => {
                    let revision = self.catch_up();
                    // Events come first; with some at hand the bookmark is left to the next tick.
                    if self.backlog.is_empty() {
                        return Some(self.bookmark(revision, false));
                    }
                }
            }
        }
    }

    /// Waits a moment for more where many watch the same and this watcher was told something only just now.
    async fn gather(&mut self) {
        let now = Instant::now();
        let last = self.told_at.replace(now);
        let Some(last) = last.filter(|last| now - *last < GATHER_MOST) else { return };
        let together =
            self.core.store.state().watchers_beside(&self.target.resource.storage, &self.selector.interest());
        let until = last + gathering(together);
        if until > now {
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.core.stopping.cancelled() => {}
            }
            self.told_at = Some(Instant::now());
        }
    }

    /// A frame and those that can follow it at once.
    fn with_more(&mut self, first: Bytes) -> Bytes {
        let mut lines = BytesMut::new();
        let mut length = first.len();
        while length < TOGETHER {
            if self.backlog.is_empty()
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
            return Some(self.frame("ADDED", &entry));
        }
        if let Some(revision) = self.initial_end.take() {
            return Some(self.bookmark(revision, true));
        }
        while let Some(event) = self.backlog.pop_front() {
            if let Some(frame) = self.event(&event) {
                self.told = event.entry.revision;
                return Some(frame);
            }
        }
        None
    }

    /// A watcher that takes bookmarks gets one more before its time is over, if it was not told the revision yet: it
    /// will come back, and whoever watches few objects would otherwise ask for all that was written since its last event.
    fn last_word(&mut self) -> Option<Bytes> {
        self.done = true;
        let revision = self.catch_up();
        let news = self.bookmarks.is_some() && self.backlog.is_empty() && revision > self.told;
        news.then(|| self.bookmark(revision, false))
    }

    /// Takes every event up to the current revision, which it answers with: a bookmark must not overtake one.
    fn catch_up(&mut self) -> u64 {
        let revision = self.core.store.state().revision;
        while let Some(event) = self.subscription.events.try_recv() {
            self.backlog.push_back(event);
        }
        revision
    }

    /// The store dropped this watcher: it was too slow, or the server is stopping.
    fn cut_off(&mut self) -> Option<Bytes> {
        self.done = true;
        if self.core.stopping.is_cancelled() {
            return None;
        }
        let status = ApiError::expired("too old resource version: the watch fell behind").status();
        Some(line("ERROR", &serde_json::to_vec(&status).expect("a JSON value always serializes into memory")))
    }

    /// What this watcher is told of an event: an object that leaves the selection is deleted to it.
    fn event(&mut self, event: &Arc<Event>) -> Option<Bytes> {
        let (entry, previous) = (&event.entry, event.previous.as_ref());
        if !self.target.namespace.is_empty() && *entry.key.namespace != *self.target.namespace {
            return None;
        }
        let before = previous.is_some_and(|previous| self.selector.matches(previous));
        let now = event.change != Change::Deleted && self.selector.matches(entry);
        let change = match (before, now) {
            (false, false) => return None,
            (false, true) => Change::Added,
            (true, true) => Change::Modified,
            (true, false) => Change::Deleted,
        };
        if change == event.change && self.format.is_plain() && self.as_stored(entry) {
            self.first = false;
            return Some(event.frame.get_or_init(|| line(name(change), &entry.bytes)).clone());
        }
        if change == Change::Deleted && event.change != Change::Deleted {
            let left = previous.map(|previous| relabelled(previous, entry.revision))?;
            return Some(self.frame("DELETED", &left));
        }
        Some(self.frame(name(change), entry))
    }

    fn as_stored(&self, entry: &Entry) -> bool {
        self.target.resource.group != crate::builtin::EVENTS
            && is_served_as_stored(entry, &self.target.resource, self.target.version)
    }

    fn frame(&mut self, change: &str, entry: &Entry) -> Bytes {
        let text = Core::text(entry, &self.target.resource, self.target.version);
        let first = std::mem::replace(&mut self.first, false);
        line(change, &self.format.object(text, first))
    }

    fn bookmark(&mut self, revision: u64, initial_end: bool) -> Bytes {
        self.told = revision;
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
        line("BOOKMARK", &self.format.object(text.into(), first))
    }
}

/// How far apart a watcher is told of events that so many watch.
fn gathering(watchers: usize) -> Duration {
    let gap = GATHER_EACH.saturating_mul(u32::try_from(watchers).unwrap_or(u32::MAX)).min(GATHER_MOST);
    if gap < GATHER_LEAST { Duration::ZERO } else { gap }
}

/// The same state under the revision at which it left a selection.
fn relabelled(entry: &Entry, revision: u64) -> Entry {
    Entry {
        key: entry.key.clone(),
        revision,
        written_ms: entry.written_ms,
        bytes: with_revision(&entry.bytes, revision).unwrap_or_else(|| entry.bytes.clone()),
        facts: Arc::clone(&entry.facts),
    }
}

fn name(change: Change) -> &'static str {
    match change {
        Change::Added => "ADDED",
        Change::Modified => "MODIFIED",
        Change::Deleted => "DELETED",
    }
}

fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(object.len() + 40);
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(b"\",\"object\":");
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    line.into()
}
