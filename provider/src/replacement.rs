//! Replacements of objects that others name.
//!
//! A replacement deletes first, and the deletion waits until nothing uses the object: no new one could be created under its
//! name.

use serde_json::Value as Json;
use tfplugin6::{AttributePath, CancellationToken};

use crate::{
    api::{Address, Api, RetryLimit},
    change::PlannedChange,
};

/// The time limit for reading the object, in seconds.
const READ_SECONDS: u64 = 2;

/// Refuses to replace an object by another one of the same name while others use it.
pub async fn refuse_in_use(
    api: &Api,
    change: &mut PlannedChange<'_>,
    plural: &str,
    attribute: &str,
    summary: &str,
) {
    let is_same = |name: &str| change.planned.get(name) == change.prior.get(name);
    let replaces = !change.is_create() && !change.replace.is_empty();
    let Some(name) =
        change.prior.get("name").as_str().filter(|_| replaces && is_same("name") && is_same("namespace"))
    else {
        return;
    };
    let namespace = change.prior.get("namespace").as_str().unwrap_or_default();
    let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
    let found = api.get(&Address::berth(plural, namespace, name), &retry_limit).await;
    let users = |object: &Json| object.pointer("/status/usedBy").and_then(Json::as_array).map_or(0, Vec::len);
    if matches!(found, Ok(Some(object)) if users(&object) > 0) {
        let detail = "It would be deleted first, and cannot be created again under this name while others use it. Give the new one \
                      another name.";
        change.refuse(summary, detail, AttributePath::root(attribute));
    }
}
