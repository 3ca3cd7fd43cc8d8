//! Listing: one revision of a collection, whole or in pages.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_apimachinery::selector::Selector;
use berth_store::{Entry, ListPart, ReadError, Store};
use serde_json::json;

use super::{ApiError, Call, Result};
use crate::selection;
use crate::store_error::of_read;

/// The storage that both views of Events share.
const EVENT_STORAGE: &str = "/events";

/// The result of one list request.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) entries: Vec<Arc<Entry>>,
    pub(crate) revision: u64,
    pub(crate) continue_token: Option<String>,
    /// The number of objects after this page, known only without selectors.
    pub(crate) remaining: Option<usize>,
}

/// The start of a page: after this object, at this revision.
struct Continue {
    revision: u64,
    namespace: String,
    name: String,
    /// The number of objects in the pages before. Of a list without selectors it gives the number of objects that are left,
    /// which would otherwise be counted for each page.
    listed: usize,
}

impl Continue {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(json!([self.revision, self.namespace, self.name, self.listed]).to_string())
    }

    fn decode(token: &str) -> Option<Self> {
        let text = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (revision, namespace, name, listed) = serde_json::from_slice(&text).ok()?;
        Some(Self { revision, namespace, name, listed })
    }
}

/// Parses a revision; empty is `None`.
pub(super) fn parse_revision(text: &str) -> Result<Option<u64>> {
    if text.is_empty() {
        return Ok(None);
    }
    let refused = || format!("invalid resource version {}", berth_apimachinery::schema::quote(text));
    text.parse().map(Some).map_err(|_| ApiError::bad_request(refused()))
}

/// Checks that a revision is not in the future. A read "not older than" a revision never waits: all past
/// writes are visible.
pub(super) fn check_not_future(store: &Store, revision: &str) -> Result<()> {
    let current = store.state().revision;
    match parse_revision(revision)? {
        Some(requested) if requested > current => Err(of_read(ReadError::Future { requested, current })),
        _ => Ok(()),
    }
}

/// Returns a field selector with the names that the store uses: `events.k8s.io` uses another one for the object of an event, and both
/// are accepted.
fn field_selector<'a>(storage: &str, sent: &'a str) -> Cow<'a, str> {
    match storage {
        EVENT_STORAGE => sent.replace("regarding.", "involvedObject.").into(),
        _ => sent.into(),
    }
}

impl Call {
    pub(super) fn selector(&self) -> Result<Selector> {
        let resource = Arc::clone(&self.target.resource);
        let fields = field_selector(&resource.storage, &self.options.field_selector);
        Selector::parse(&self.options.label_selector, &fields, |field| {
            let known = resource.fields.iter().any(|path| &*path.name == field);
            if known { Ok(()) } else { Err(format!("field label not supported: {field}")) }
        })
    }

    pub(crate) async fn list(&self) -> Result<Page> {
        let selector = self.selector()?;
        let token = match self.options.continue_token.as_str() {
            "" => None,
            token => {
                let token = Continue::decode(token);
                Some(token.ok_or_else(|| {
                    ApiError::bad_request("invalid continue token: continue key is not valid")
                })?)
            }
        };
        let exact = match self.options.resource_version_match.as_str() {
            // As in the first Kubernetes with pagination: a page requested at a revision is of exactly that
            // revision.
            "" if self.options.limit > 0 && token.is_none() => {
                parse_revision(&self.options.resource_version)?.filter(|revision| *revision > 0)
            }
            "" | "NotOlderThan" => None,
            "Exact" => parse_revision(&self.options.resource_version)?,
            other => {
                let supported = "\"Exact\", \"NotOlderThan\", \"\"";
                return Err(self.options.refused(&[crate::request::unsupported_match(other, supported)]));
            }
        };
        self.check_list_revision(token.is_some())?;
        let wanted = token.as_ref().map(|token| token.revision).or(exact);
        if let Some(page) = self.present_page(wanted, token.as_ref(), &selector)? {
            return Ok(page);
        }
        self.past_page(wanted.unwrap_or_default(), token, &selector).await
    }

    /// Returns a page of the present state. None: objects have changed since the revision that is wanted.
    fn present_page(
        &self,
        wanted: Option<u64>,
        token: Option<&Continue>,
        selector: &Selector,
    ) -> Result<Option<Page>> {
        let resource = &self.target.resource.storage;
        // The revision is compared and the page made under one lock: no write comes in between.
        let state = self.core.store.state();
        if wanted.is_some_and(|revision| state.changed(resource) > revision) {
            return Ok(None);
        }
        if let Some(requested) = wanted.filter(|requested| *requested > state.revision) {
            return Err(of_read(ReadError::Future { requested, current: state.revision }));
        }
        let namespace = Some(self.target.namespace.as_str()).filter(|n| !n.is_empty());
        let after = token.map(|token| (token.namespace.as_str(), token.name.as_str()));
        let listed = token.map_or(0, |token| token.listed);
        let revision = wanted.unwrap_or(state.revision);
        let page = self.page(revision, listed, &mut state.list(resource, namespace, after), selector);
        let listed = listed.saturating_add(page.entries.len());
        let all = || state.count_in(resource, namespace);
        Ok(Some(page.with_remaining(selector, || all().saturating_sub(listed))))
    }

    /// Returns a page of the state at an earlier revision.
    async fn past_page(&self, revision: u64, token: Option<Continue>, selector: &Selector) -> Result<Page> {
        let listed = token.as_ref().map_or(0, |token| token.listed);
        let part = ListPart {
            namespace: self.target.namespace.clone(),
            after: token.map(|token| (token.namespace, token.name)),
            // One more than the page has: whether another page follows.
            limit: (self.options.limit > 0).then(|| self.options.limit.saturating_add(1)),
        };
        let selected = selector.clone();
        let is_selected = move |entry: &Entry| selection::matches(&selected, entry);
        let past = self.core.store.list_at(&self.target.resource.storage, revision, part, is_selected);
        let past = past.await.map_err(of_read)?;
        let mut in_pages = past.entries.iter();
        let page = self.page(revision, listed, &mut in_pages, selector);
        Ok(page.with_remaining(selector, || 1 + in_pages.count() + past.unread))
    }

    fn check_list_revision(&self, continues: bool) -> Result<()> {
        let (revision, matching) = (&self.options.resource_version, &self.options.resource_version_match);
        if continues && !revision.is_empty() && revision != "0" {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let mut wrong = Vec::new();
        let mut forbid =
            |why: &str| wrong.push(berth_apimachinery::meta::forbidden("resourceVersionMatch", why));
        if !matching.is_empty() && revision.is_empty() {
            forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !matching.is_empty() && continues {
            forbid("resourceVersionMatch is forbidden when continue is provided");
        }
        if matching == "Exact" && revision == "0" {
            forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
        if self.options.send_initial_events.is_some() {
            wrong.push(berth_apimachinery::meta::forbidden(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for list",
            ));
        }
        if !wrong.is_empty() {
            return Err(self.options.refused(&wrong));
        }
        check_not_future(&self.core.store, revision)
    }

    /// Returns the next page, and leaves in `candidates` those after the first object of the page that follows it.
    fn page<'a>(
        &self,
        revision: u64,
        listed: usize,
        candidates: &mut impl Iterator<Item = &'a Arc<Entry>>,
        selector: &Selector,
    ) -> Page {
        let limit = if self.options.limit == 0 { usize::MAX } else { self.options.limit };
        let mut rest = candidates.filter(|entry| selection::matches(selector, entry));
        let entries: Vec<_> = rest.by_ref().take(limit).cloned().collect();
        let next = if entries.len() == limit { rest.next() } else { None };
        let last = entries.last().filter(|_| next.is_some());
        let continue_token = last.map(|last| {
            let (namespace, name) = (last.key.namespace.to_string(), last.key.name.to_string());
            Continue { revision, namespace, name, listed: listed.saturating_add(entries.len()) }.encode()
        });
        Page { entries, revision, continue_token, remaining: None }
    }
}

impl Page {
    /// Adds the number of objects after this page, if there are any and all objects are listed.
    fn with_remaining(self, selector: &Selector, count: impl FnOnce() -> usize) -> Self {
        let remaining = (self.continue_token.is_some() && selector.is_empty()).then(count);
        Self { remaining, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_name_of_the_object_of_an_event_is_that_of_events_alone() {
        assert_eq!(field_selector(EVENT_STORAGE, "regarding.name=a"), "involvedObject.name=a");
        assert_eq!(field_selector("toys.example/boats", "spec.regarding.name=a"), "spec.regarding.name=a");
    }
}
