//! Migration from kubectl's client-side apply: a server-side apply takes over the fields that it applied.

use std::collections::HashSet;

use serde_json::Value;

use super::compare::Comparison;
use super::last_applied::ANNOTATION;
use super::set::show;
use super::typed::{Ty, field_set};
use super::update::apply_once;
use super::{ApplyError, WriteOptions};
use crate::schema::{StructuralSchema, too_deep};

pub(super) fn apply(
    live: Option<&Value>,
    applied: &Value,
    options: &WriteOptions,
    schema: &StructuralSchema,
) -> Result<Value, ApplyError> {
    let first = apply_once(live, applied, options, schema);
    let (Err(ApplyError::Conflicts(_)), Some(live), "kubectl") = (&first, live, options.manager.as_str())
    else {
        return first;
    };
    // kubectl may migrate from client-side to server-side apply: fields that its own annotation last applied
    // are not in conflict.
    match take_over(live, applied, options, schema) {
        Some(result) => result,
        None => first,
    }
}

/// Applies with force if every conflict is about a field that kubectl applied itself according to the
/// annotation, and that is still unchanged. `None`: the annotation does not resolve the conflicts.
fn take_over(
    live: &Value,
    applied: &Value,
    options: &WriteOptions,
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
    let allowed: HashSet<String> = allowed.paths().iter().map(|path| show(path)).collect();

    let Err(ApplyError::Conflicts(conflicts)) = apply_once(Some(live), applied, options, schema) else {
        return None;
    };
    let left: Vec<_> = conflicts.into_iter().filter(|c| !allowed.contains(&c.field)).collect();
    if !left.is_empty() {
        return Some(Err(ApplyError::Conflicts(left)));
    }
    let forced = WriteOptions { force: true, ..options.clone() };
    Some(apply_once(Some(live), applied, &forced, schema))
}
