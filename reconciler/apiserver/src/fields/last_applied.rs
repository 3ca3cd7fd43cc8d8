//! The way from kubectl's client-side apply to its server-side apply: the annotation that the first one left.

use serde_json::{Map, Value};

use super::compare::Comparison;
use super::typed::{Ty, field_set};
use super::update::apply_once;
use super::{ApplyError, ApplyOptions};
use crate::schema::{StructuralSchema, too_deep};

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Applies with force if every conflict is over a field that the annotation says kubectl applied itself, and
/// that is still as it applied it. `None`: the annotation does not settle it.
pub(super) fn take_over(
    live: &Value,
    applied: &Value,
    options: &ApplyOptions,
    schema: &StructuralSchema,
) -> Option<Result<Value, ApplyError>> {
    let text = live.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str()?;
    let last: Value = serde_json::from_str(text).ok()?;
    if too_deep(&last) || last.get("apiVersion")?.as_str()? != options.api_version {
        return None;
    }
    let ty = Ty::root(schema);
    let difference = Comparison::of(&last, live, ty);
    let allowed = field_set(&last, ty)
        .difference(&difference.modified)
        .difference(&difference.added)
        .difference(&difference.removed);
    let allowed: Vec<String> = allowed.paths().iter().map(|path| super::set::show(path)).collect();

    let Err(ApplyError::Conflicts(conflicts)) = apply_once(Some(live), applied, options, schema) else {
        return None;
    };
    let left: Vec<_> = conflicts.into_iter().filter(|c| !allowed.contains(&c.field)).collect();
    if !left.is_empty() {
        return Some(Err(ApplyError::Conflicts(left)));
    }
    let forced = ApplyOptions { force: true, ..options.clone() };
    Some(apply_once(Some(live), applied, &forced, schema))
}

/// Keeps the annotation current while kubectl applies on the server, so that a client-side apply later still
/// works: it holds what was applied.
pub(super) fn refresh(live: Option<&Value>, applied: &Value, object: &mut Value, manager: &str) {
    let has =
        |object: &Value| object.pointer("/metadata/annotations").is_some_and(|a| a.get(ANNOTATION).is_some());
    if manager != "kubectl" || !live.is_some_and(has) || !has(object) {
        return;
    }
    let mut last = super::update::without_managed_fields(applied);
    if let Some(annotations) = last.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.shift_remove(ANNOTATION);
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        set(annotations, crate::schema::message::go_json(&last) + "\n");
    }
}

fn set(annotations: &mut Map<String, Value>, text: String) {
    annotations.insert(ANNOTATION.to_owned(), Value::from(text));
}
