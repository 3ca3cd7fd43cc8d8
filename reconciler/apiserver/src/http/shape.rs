//! The shapes objects are answered in: as they are, as a Table, or their metadata only.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::negotiate::Wanted;
use crate::request::{Options, Sub, Target};
use crate::resource::Resource;
use crate::verbs::{Page, WatchFormat};

#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) wanted: Wanted,
    resource: Arc<Resource>,
    version: usize,
    include_object: String,
}

pub(super) fn bytes_of(value: &Value) -> Bytes {
    serde_json::to_vec(value).expect("a JSON value always serializes into memory").into()
}

impl Shape {
    pub(super) fn new(wanted: Wanted, target: &Target, options: &Options) -> Self {
        // A Scale is not an object of the resource; it has one shape.
        let wanted = if target.sub == Sub::Scale { Wanted::Plain } else { wanted };
        Self {
            wanted,
            resource: Arc::clone(&target.resource),
            version: target.version,
            include_object: options.include_object.clone(),
        }
    }

    /// One object in this shape.
    pub(super) fn object_of(&self, text: Bytes, with_columns: bool) -> Bytes {
        if self.wanted == Wanted::Plain {
            return text;
        }
        let Ok(object) = serde_json::from_slice::<Value>(&text) else { return text };
        match self.wanted {
            Wanted::Plain => text,
            Wanted::Metadata => bytes_of(&metadata_only(&object)),
            Wanted::Table => {
                let revision = object["metadata"]["resourceVersion"].clone();
                let metadata = json!({"resourceVersion": revision});
                bytes_of(&self.table(std::slice::from_ref(&object), metadata, with_columns))
            }
        }
    }

    /// A page as a Table or a metadata list; plain lists are made of text, elsewhere.
    pub(super) fn page(&self, objects: &[Value], page: &Page) -> Value {
        let mut metadata = json!({"resourceVersion": page.revision.to_string()});
        if let Some(token) = &page.continue_token {
            metadata["continue"] = token.as_str().into();
        }
        if let Some(remaining) = page.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        if self.wanted == Wanted::Table {
            return self.table(objects, metadata, true);
        }
        json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "items": objects.iter().map(metadata_only).collect::<Vec<_>>(),
        })
    }

    fn table(&self, objects: &[Value], metadata: Value, with_columns: bool) -> Value {
        let _ = (&self.resource, self.version, &self.include_object, with_columns, objects);
        json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
    }
}

fn metadata_only(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

impl WatchFormat for Shape {
    fn object(&self, text: Bytes, first: bool) -> Bytes {
        self.object_of(text, first)
    }

    fn is_plain(&self) -> bool {
        self.wanted == Wanted::Plain
    }
}
