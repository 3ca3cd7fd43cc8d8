//! Migration between kubectl's client-side and server-side apply: the annotation of client-side apply.

use serde_json::{Map, Value};

use super::managed::without_managed_fields;

pub(super) const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Keeps the annotation current while kubectl uses server-side apply, so that a later client-side apply still
/// works: it contains the applied configuration.
pub(super) fn refresh(live: Option<&Value>, applied: &Value, object: &mut Value, manager: &str) {
    let has =
        |object: &Value| object.pointer("/metadata/annotations").is_some_and(|a| a.get(ANNOTATION).is_some());
    if manager != "kubectl" || !live.is_some_and(has) || !has(object) {
        return;
    }
    let mut last = without_managed_fields(applied);
    if let Some(annotations) = last.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        set(annotations, format!("{last}\n"));
    }
}

fn set(annotations: &mut Map<String, Value>, text: String) {
    annotations.insert(ANNOTATION.to_owned(), Value::from(text));
}
