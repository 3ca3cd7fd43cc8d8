//! The shapes of objects in responses: unchanged, as a Table, or their metadata only.

use std::sync::Arc;

use berth_apimachinery::table::{Columns, IncludeObject, partial_object_metadata};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::negotiate::Wanted;
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

/// An object of which only the metadata is read.
#[derive(Deserialize)]
struct OnlyMetadata {
    #[serde(default)]
    metadata: Map<String, Value>,
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
            Wanted::Metadata => {
                // The rest is skipped: a definition, whose version every agent reads, is mostly its schema.
                let Ok(object) = serde_json::from_slice::<OnlyMetadata>(&text) else { return text };
                bytes_of(&partial_object_metadata(&json!({"metadata": object.metadata})))
            }
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
    pub(super) fn page(&self, objects: &[Value], page: &Page) -> Value {
        let mut metadata = json!({"resourceVersion": page.revision.to_string()});
        if let Some(token) = &page.continue_token {
            metadata["continue"] = token.as_str().into();
        }
        if let Some(remaining) = page.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        if self.wanted == Wanted::Table {
            let objects: Vec<&Value> = objects.iter().collect();
            return self.columns().table(&metadata, &objects, self.include, self.clock.now());
        }
        json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "items": objects.iter().map(partial_object_metadata).collect::<Vec<_>>(),
        })
    }
}

impl WatchFormat for Shape {
    fn object(&self, text: Bytes, first: bool) -> Bytes {
        self.object_of(text, first)
    }

    fn is_plain(&self) -> bool {
        self.wanted == Wanted::Plain
    }
}
