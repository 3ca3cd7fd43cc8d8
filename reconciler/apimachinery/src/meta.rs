//! `metadata`: the fields that clients may set, and those that the server sets.

pub mod names;
mod validate;
mod well_formed;

use serde_json::{Map, Value};

pub use names::NameRule;
pub use validate::validate;
pub use well_formed::well_formed;

pub use crate::schema::message::{field_error, forbidden, invalid, required};

/// Returns the object's `metadata`, created if missing. Assumptions: `object` passed [`well_formed`].
pub fn of(object: &mut Value) -> &mut Map<String, Value> {
    let metadata = &mut object["metadata"];
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("made an object just above")
}

/// Copies the fields that clients cannot change from the stored object.
pub fn keep_system_fields(object: &mut Value, live: &Value) {
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

/// Drops empty and null fields, as Kubernetes' types do when they are encoded.
pub fn tidy(object: &mut Value) {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    of(object).retain(|_, value| !empty(value));
}

/// Whether any field but `metadata` and, if it is a subresource, `status` differs.
pub fn spec_changed(old: &Value, new: &Value, status_apart: bool) -> bool {
    let relevant = |name: &str| name != "metadata" && !(status_apart && name == "status");
    let of = |value: &'_ Value| -> Map<String, Value> {
        let members = value.as_object().into_iter().flatten();
        members.filter(|(name, _)| relevant(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
    };
    of(old) != of(new)
}

/// Whether two objects are equal except for the revision and the times of the managers.
pub fn same(a: &Value, b: &Value) -> bool {
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
