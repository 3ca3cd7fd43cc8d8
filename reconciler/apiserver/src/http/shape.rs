//! The shapes of objects in responses: unchanged, as a Table, or their metadata only.

use std::fmt;
use std::sync::Arc;

use berth_apimachinery::table::{Columns, IncludeObject, partial_object_metadata};
use berth_store::Entry;
use bytes::Bytes;
use serde::Deserializer as _;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use super::negotiate::Wanted;
use crate::core::Core;
use crate::request::{Options, Sub, Target};
use crate::resource::Resource;
use crate::verbs::{Page, WatchFormat};
use berth_engine::Clock;

#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) wanted: Wanted,
    resource: Arc<Resource>,
    version: usize,
    include: IncludeObject,
    clock: Arc<dyn Clock>,
}

/// Reads the metadata of an object, and nothing after it.
struct MetadataReader<'a>(&'a mut Option<Map<String, Value>>);

impl<'de> Visitor<'de> for MetadataReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            if name == "metadata" {
                *self.0 = Some(members.next_value()?);
                // The only way to leave the rest unread.
                return Err(A::Error::custom("the rest is not read"));
            }
            members.next_value::<IgnoredAny>()?;
        }
        *self.0 = Some(Map::new());
        Ok(())
    }
}

pub(super) fn bytes_of(value: &Value) -> Bytes {
    serde_json::to_vec(value).expect("a JSON value always serializes into memory").into()
}

impl Shape {
    pub(super) fn new(wanted: Wanted, target: &Target, options: &Options, clock: &Arc<dyn Clock>) -> Self {
        // A TokenRequest is not an object of the resource; it has one shape.
        let wanted = if target.sub == Sub::Token { Wanted::Plain } else { wanted };
        let include = IncludeObject::parse(&options.include_object);
        let resource = Arc::clone(&target.resource);
        Self { wanted, resource, version: target.version, include, clock: Arc::clone(clock) }
    }

    /// Returns one object in this shape.
    pub(super) fn object_of(&self, text: Bytes, with_columns: bool) -> Bytes {
        if self.wanted == Wanted::Plain {
            return text;
        }
        match self.wanted {
            Wanted::Plain => text,
            Wanted::Metadata => metadata_of(&text).as_ref().map_or(text, bytes_of),
            Wanted::Table => {
                let Ok(object) = serde_json::from_slice::<Value>(&text) else { return text };
                let now = self.clock.now();
                bytes_of(&self.columns().event(&object, self.include, now, with_columns))
            }
        }
    }

    fn columns(&self) -> &Columns {
        &self.resource.versions[self.version].columns
    }

    /// Returns a page as a Table or a metadata list; plain lists are built from text elsewhere.
    pub(super) fn page(&self, page: &Page) -> Bytes {
        let mut metadata = json!({"resourceVersion": page.revision.to_string()});
        if let Some(token) = &page.continue_token {
            metadata["continue"] = token.as_str().into();
        }
        if let Some(remaining) = page.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        let (resource, version, entries) = (&self.resource, self.version, page.entries.iter());
        if self.wanted == Wanted::Table {
            let (columns, now) = (self.columns(), self.clock.now());
            let row =
                |entry: &Arc<Entry>| columns.row(&Core::view(entry, resource, version), self.include, now);
            return with_items(&columns.head(&metadata), "rows", entries.map(row));
        }
        let head = json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
        });
        with_items(
            &head,
            "items",
            entries.filter_map(|entry| metadata_of(&Core::text(entry, resource, version))),
        )
    }
}

/// Returns the `PartialObjectMetadata` of an object; `None` if the text is not an object. The text after the metadata is not read: a
/// definition, whose version every agent reads once a minute, is mostly its schema.
fn metadata_of(text: &[u8]) -> Option<Value> {
    let mut metadata = None;
    // An error after the metadata is that which ends the reading.
    let _ = serde_json::Deserializer::from_slice(text).deserialize_map(MetadataReader(&mut metadata));
    Some(partial_object_metadata(&json!({"metadata": metadata?})))
}

/// Returns the JSON of an object with one more member: a list, whose items are written one after the other. One item at a time is
/// held as a value, which takes about ten times as much memory as its text.
fn with_items(head: &Value, member: &str, items: impl Iterator<Item = Value>) -> Bytes {
    let mut text = head.to_string().into_bytes();
    // The closing brace.
    text.pop();
    text.extend_from_slice(format!(",\"{member}\":[").as_bytes());
    for (at, item) in items.enumerate() {
        if at > 0 {
            text.push(b',');
        }
        serde_json::to_writer(&mut text, &item).expect("a JSON value always serializes into memory");
    }
    text.extend_from_slice(b"]}");
    text.into()
}

impl WatchFormat for Shape {
    fn object(&self, text: Bytes, first: bool) -> Bytes {
        self.object_of(text, first)
    }

    fn is_plain(&self) -> bool {
        self.wanted == Wanted::Plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_written_item_by_item_is_the_same_json() {
        let head = json!({"kind": "L", "metadata": {"resourceVersion": "7"}});
        for items in [vec![], vec![json!({"a": "}]"})], vec![json!(1), json!([2]), json!(null)]] {
            let mut expected = head.clone();
            expected["rows"] = items.clone().into();
            let text = with_items(&head, "rows", items.into_iter());
            assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), expected);
        }
    }

    #[test]
    fn of_an_object_only_the_metadata_is_read() {
        let text =
            br#"{"kind": "K", "metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {"metadata": 1}}"#;
        let read = metadata_of(text).unwrap();
        assert_eq!(read["metadata"], json!({"name": "n", "labels": {"a": "b"}}));
        assert_eq!((&read["kind"], read.get("spec")), (&json!("PartialObjectMetadata"), None));
        assert_eq!(metadata_of(b"7"), None);
        assert_eq!(metadata_of(br#"{"metadata": {"name": "n""#), None);
        assert_eq!(metadata_of(br#"{"metadata": 7}"#), None);
        let sorted = br#"{"data": {"metadata": {}, "\n": 1}, "metadata": {"name": "m"}, "spec": never read"#;
        assert_eq!(metadata_of(sorted).unwrap()["metadata"]["name"], "m");
        assert_eq!(metadata_of(b"{}").unwrap()["kind"], "PartialObjectMetadata");
    }
}
