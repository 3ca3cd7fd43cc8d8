//! `/history`: the revisions still in the log. Not part of the Kubernetes API.
//!
//! ```text
//! GET /history/apis/GROUP/VERSION/namespaces/NS/PLURAL/NAME   the object's kept revisions, newest first; needs `get`
//! GET /history?at=TIME                                        the revision that was the last one then
//! ```

use std::ops::ControlFlow;

use berth_apimachinery::changes::{changes, shown};
use berth_apimachinery::error::{ApiError, Result, Subject};
use berth_store::Revision;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::core::Core;
use crate::request::{Query, Target};
use crate::store_error::of_read;

/// The maximum number of revisions in one response.
const MAX_REVISIONS: usize = 500;
const DEFAULT_REVISIONS: usize = 50;
/// The maximum number of bytes of objects read for one response.
const MAX_BYTES: usize = 32 << 20;

/// Returns the number of revisions that a request asks for.
pub(crate) fn limit(query: &Query) -> Result<usize> {
    let Some(text) = query.first("limit") else { return Ok(DEFAULT_REVISIONS) };
    let limit = text.parse::<usize>().ok().filter(|limit| (1..=MAX_REVISIONS).contains(limit));
    limit.ok_or_else(|| ApiError::bad_request(format!("limit {text:?}: a number from 1 to {MAX_REVISIONS}")))
}

/// Returns the revision that was current at a time (RFC 3339).
pub(crate) async fn at(core: &Core, time: &str) -> Result<Value> {
    let at: Timestamp = time
        .parse()
        .map_err(|error| ApiError::bad_request(format!("at {time:?}: {error}; 2026-01-02T03:04:05Z")))?;
    if at > core.clock.now() {
        return Err(ApiError::bad_request(format!("at {time:?} is in the future")));
    }
    let revision = core.store.revision_at(at.as_millisecond()).await.map_err(of_read)?;
    Ok(json!({"kind": "HistoryRevision", "revision": revision.to_string()}))
}

/// Returns the kept revisions of an object and the changes of each, newest first.
pub(crate) async fn of_object(core: &Core, target: &Target, limit: usize) -> Result<Value> {
    let key = target.resource.key(&target.namespace, &target.name);
    let secret = key.resource == core.secrets;
    let collected =
        core.store.revisions(key, Telling::new(secret, limit), Telling::next).await.map_err(of_read)?;
    if collected.newer.is_none() {
        let (group, kind) = (&target.resource.group, &target.resource.plural);
        return Err(ApiError::not_found(Subject { group, kind, name: &target.name }));
    }
    Ok(collected.finish())
}

/// Builds the item of each revision once the one before it is known.
struct Telling {
    secret: bool,
    limit: usize,
    bytes: usize,
    newer: Option<(Revision, Value)>,
    items: Vec<Value>,
    truncated: bool,
}

impl Telling {
    fn new(secret: bool, limit: usize) -> Self {
        Self { secret, limit, bytes: 0, newer: None, items: Vec::new(), truncated: false }
    }

    /// Finishes the list: there is no older revision.
    fn finish(mut self) -> Value {
        if let Some((last, _)) = self.newer.take().filter(|_| !self.truncated) {
            let change = if last.previous == 0 { "created" } else { "unknown" };
            self.items.push(item(&last, change, None));
        }
        json!({"kind": "History", "items": self.items, "truncated": self.truncated})
    }

    fn next(&mut self, one: Revision) -> ControlFlow<()> {
        self.bytes += one.entry.text.size();
        let value = one.entry.value();
        if let Some((newer, after)) = self.newer.take() {
            let follows = newer.previous == one.entry.revision;
            self.items.push(match (newer.deleted, follows, one.deleted) {
                (true, _, _) => item(&newer, "deleted", None),
                (false, true, true) => item(&newer, "created", None),
                (false, true, false) => {
                    item(&newer, "changed", Some(shown(changes(&value, &after, self.secret))))
                }
                // The revisions in between were compacted.
                (false, false, _) => item(&newer, "unknown", None),
            });
        }
        self.newer = Some((one, value));
        if self.items.len() >= self.limit || self.bytes > MAX_BYTES {
            self.truncated = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

fn item(one: &Revision, change: &str, fields: Option<Value>) -> Value {
    let time = Timestamp::from_millisecond(one.entry.written_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    let mut item = json!({
        "revision": one.entry.revision.to_string(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string(),
        "user": one.user, "manager": one.manager, "verb": one.verb, "change": change,
    });
    if let (Some(item), Some(Value::Object(fields))) = (item.as_object_mut(), fields) {
        item.extend(fields);
    }
    item
}
