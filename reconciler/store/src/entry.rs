//! One revision of an object: its JSON as it is sent, and the data that selectors and garbage collection use.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::key::Key;
use crate::text::Text;

/// A path to a value by which objects can be selected, e.g. `.status.binding.host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath {
    /// The path as a field selector contains it: `status.binding.host`.
    pub name: Arc<str>,
    segments: Vec<Box<str>>,
}

impl FieldPath {
    /// Parses a path, both `.spec.a` (a CRD's `jsonPath`) and `spec.a`.
    pub fn parse(path: &str) -> Self {
        let name = path.trim_start_matches('.');
        Self { name: name.into(), segments: name.split('.').map(Into::into).collect() }
    }

    /// Returns the value as a selector compares it: strings, numbers and booleans as text, absent as empty.
    pub fn read(&self, object: &Value) -> String {
        let mut at = object;
        for segment in &self.segments {
            match at.get(&**segment) {
                Some(next) => at = next,
                None => return String::new(),
            }
        }
        match at {
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) => at.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
        }
    }
}

/// The indexed data of an object, available without parsing its JSON.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub uid: Arc<str>,
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Values of the resource's selectable fields.
    pub fields: Box<[(Arc<str>, Box<str>)]>,
    /// uids of owners.
    pub owners: Box<[Box<str>]>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

impl Facts {
    pub fn of(object: &Value, fields: &[FieldPath]) -> Self {
        let metadata = &object["metadata"];
        let labels = metadata["labels"].as_object().map(|labels| {
            labels.iter().filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into()))).collect()
        });
        let owners = metadata["ownerReferences"]
            .as_array()
            .map(|owners| owners.iter().filter_map(|owner| owner["uid"].as_str()).map(Into::into).collect());
        Self {
            uid: metadata["uid"].as_str().unwrap_or_default().into(),
            labels: labels.unwrap_or_default(),
            fields: fields.iter().map(|f| (Arc::clone(&f.name), f.read(object).into())).collect(),
            owners: owners.unwrap_or_default(),
            deleting: metadata.get("deletionTimestamp").is_some_and(|at| !at.is_null()),
        }
    }

    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(k, _)| &**k == name).map(|(_, v)| &**v)
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(k, _)| &**k == name).map(|(_, v)| &**v)
    }
}

/// One revision of an object. Guarantees: `text` is JSON with `revision` as its `metadata.resourceVersion`.
pub struct Entry {
    pub key: Key,
    pub revision: u64,
    /// The time of the write in milliseconds since 1970.
    pub written_ms: i64,
    pub text: Text,
    pub facts: Arc<Facts>,
}

/// Omits the content, which may be secret.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key, self.revision)
    }
}

impl Entry {
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.text.to_bytes())
            .expect("only JSON this server wrote or checked on load is stored")
    }
}

/// The position of the revision: canonical text starts
/// `{"apiVersion":…,"kind":…,"metadata":{"resourceVersion":"`, and the two strings before it contain no
/// unescaped quote.
const REVISION_SLOT: &[u8] = b"\"metadata\":{\"resourceVersion\":\"";

/// An object as it is written to disk, with an empty revision.
#[derive(Clone)]
pub struct Encoded {
    pub text: Vec<u8>,
    pub facts: Arc<Facts>,
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.text.len())
    }
}

impl Encoded {
    /// Encodes an object. Assumptions: `object` is a JSON object with string `apiVersion` and `kind` and an
    /// object `metadata`.
    pub fn of(object: &Value, fields: &[FieldPath]) -> Self {
        Self { text: canonical(object), facts: Arc::new(Facts::of(object, fields)) }
    }
}

fn canonical(object: &Value) -> Vec<u8> {
    let empty = Map::new();
    let object_map = object.as_object().unwrap_or(&empty);
    let mut text = Vec::with_capacity(1024);
    text.push(b'{');
    for name in ["apiVersion", "kind"] {
        let value = object_map.get(name).and_then(Value::as_str).unwrap_or_default();
        push_member(&mut text, name, &Value::String(value.to_owned()));
        text.push(b',');
    }
    text.extend_from_slice(REVISION_SLOT);
    text.push(b'"');
    if let Some(metadata) = object_map.get("metadata").and_then(Value::as_object) {
        for (name, value) in metadata.iter().filter(|(name, _)| *name != "resourceVersion") {
            text.push(b',');
            push_member(&mut text, name, value);
        }
    }
    text.push(b'}');
    for (name, value) in object_map {
        if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            text.push(b',');
            push_member(&mut text, name, value);
        }
    }
    text.push(b'}');
    text
}

fn push_member(text: &mut Vec<u8>, name: &str, value: &Value) {
    serde_json::to_writer(&mut *text, name).expect("a string always serializes into memory");
    text.push(b':');
    serde_json::to_writer(&mut *text, value).expect("a JSON value always serializes into memory");
}

/// Inserts `revision` into canonical text; `None` if the text is not canonical.
pub fn with_revision(text: &[u8], revision: u64) -> Option<Bytes> {
    let slot = text.windows(REVISION_SLOT.len()).position(|at| at == REVISION_SLOT)? + REVISION_SLOT.len();
    let end = slot + text[slot..].iter().position(|b| *b == b'"')?;
    let revision = revision.to_string();
    // Sized exactly: the text is kept for as long as the object.
    let mut out = Vec::with_capacity(slot + revision.len() + text.len() - end);
    out.extend_from_slice(&text[..slot]);
    out.extend_from_slice(revision.as_bytes());
    out.extend_from_slice(&text[end..]);
    Some(out.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_revision_lands_in_metadata_whatever_the_object_holds() {
        let object = json!({
            "involvedObject": {"metadata": {"resourceVersion": ""}},
            "metadata": {"name": "a", "resourceVersion": "9"},
            "kind": "K\"metadata\":{\"resourceVersion\":\"", "apiVersion": "v1",
        });
        let text = Encoded::of(&object, &[]).text;
        let read: Value = serde_json::from_slice(&with_revision(&text, 42).unwrap()).unwrap();
        assert_eq!(read["metadata"]["resourceVersion"], "42");
        assert_eq!(read["involvedObject"]["metadata"]["resourceVersion"], "");
        assert_eq!(read["kind"], object["kind"]);
    }

    #[test]
    fn a_revision_is_replaced_not_added() {
        let text =
            Encoded::of(&json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": "a"}}), &[]).text;
        let once = with_revision(&text, 7).unwrap();
        let twice: Value = serde_json::from_slice(&with_revision(&once, 12).unwrap()).unwrap();
        assert_eq!(twice["metadata"], json!({"resourceVersion": "12", "name": "a"}));
    }

    #[test]
    fn selectable_fields_read_as_text() {
        let object = json!({"spec": {"n": 3, "b": true, "s": "x", "o": {}}});
        let read = |path| FieldPath::parse(path).read(&object);
        assert_eq!(
            [read(".spec.n"), read("spec.b"), read(".spec.s"), read(".spec.o"), read(".nope.x")],
            ["3", "true", "x", "", ""]
        );
    }
}
