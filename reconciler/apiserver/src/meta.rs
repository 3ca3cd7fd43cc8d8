//! `metadata`: what clients may set, and what the server sets.

mod decode;
pub(crate) mod names;
pub(crate) mod time;
mod validate;

use serde_json::{Map, Value};

pub(crate) use decode::well_formed;
pub(crate) use names::NameRule;
pub(crate) use validate::validate;

use crate::schema::{ErrorKind, FieldError};

pub(crate) fn field_error(kind: ErrorKind, field: &str, message: impl Into<String>) -> FieldError {
    FieldError { kind, field: field.into(), message: message.into() }
}

pub(crate) fn invalid(field: &str, value: &Value, why: &str) -> FieldError {
    field_error(ErrorKind::Invalid, field, format!("Invalid value: {value}: {why}"))
}

pub(crate) fn required(field: &str, why: &str) -> FieldError {
    let message = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
    field_error(ErrorKind::Required, field, message)
}

pub(crate) fn forbidden(field: &str, why: &str) -> FieldError {
    field_error(ErrorKind::Forbidden, field, format!("Forbidden: {why}"))
}

/// The object's `metadata`, made if missing. Assumptions: `object` passed [`well_formed`].
pub(crate) fn of(object: &mut Value) -> &mut Map<String, Value> {
    let metadata = &mut object["metadata"];
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("made an object just above")
}

/// Copies what clients cannot change from the stored object.
pub(crate) fn keep_system_fields(object: &mut Value, live: &Value) {
    let metadata = of(object);
    let kept = [
        "name",
        "namespace",
        "generateName",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ];
    for name in kept {
        match live["metadata"].get(name) {
            Some(value) => metadata.insert(name.into(), value.clone()),
            None => metadata.shift_remove(name),
        };
    }
    metadata.shift_remove("resourceVersion");
}

/// Drops empty and null members, as Kubernetes' types do when they are encoded.
pub(crate) fn tidy(object: &mut Value) {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    of(object).retain(|_, value| !empty(value));
}

/// Whether anything but `metadata` and, if it is a subresource, `status` differs.
pub(crate) fn spec_changed(old: &Value, new: &Value, status_apart: bool) -> bool {
    let relevant = |name: &str| name != "metadata" && !(status_apart && name == "status");
    let of = |value: &'_ Value| -> Map<String, Value> {
        let members = value.as_object().into_iter().flatten();
        members.filter(|(name, _)| relevant(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
    };
    of(old) != of(new)
}

/// Whether two objects say the same, not counting when managers last wrote and the revision.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    let plain = |object: &Value| {
        let mut object = object.clone();
        let metadata = of(&mut object);
        metadata.shift_remove("resourceVersion");
        for entry in metadata.get_mut("managedFields").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(entry) = entry.as_object_mut() {
                entry.shift_remove("time");
            }
        }
        object
    };
    plain(a) == plain(b)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn managers_writing_again_at_another_time_change_nothing() {
        let at = |time: &str| json!({"metadata": {"managedFields": [{"manager": "m", "time": time}]}});
        assert!(same(&at("2026-01-01T00:00:00Z"), &at("2026-01-02T00:00:00Z")));
    }
}
