//! Merge patches.

use serde_json::{Map, Value};

/// Applies a merge patch by RFC 7386. Assumptions: neither value nests too deeply.
pub fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Some(members) = object.as_object_mut() else { return };
    remove(members, patch, Value::is_null);
    for (name, value) in patch.iter().filter(|(_, value)| !value.is_null()) {
        merge(members.entry(name).or_insert(Value::Null), value);
    }
}

/// Removes the fields that a patch deletes, all at once: removing one at a time would shift those behind it.
pub fn remove(members: &mut Map<String, Value>, patch: &Map<String, Value>, gone: impl Fn(&Value) -> bool) {
    if patch.values().any(&gone) {
        members.retain(|name, _| !patch.get(name).is_some_and(&gone));
    }
}
