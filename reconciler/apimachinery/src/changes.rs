//! The difference of two states of an object, field by field.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The maximum number of fields that one comparison lists; further ones are only counted.
const MAX_FIELDS: usize = 200;
/// Fields that carry no information about the change.
const NOISE: [&str; 2] = [".metadata.managedFields", ".metadata.resourceVersion"];
/// The only fields of a Secret that are shown with their values.
const OF_SECRETS: [&str; 5] =
    [".metadata.labels", ".metadata.finalizers", ".metadata.deletionTimestamp", ".type", ".immutable"];

/// A field that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldChange {
    /// `.spec.cpus`, `.status.conditions[Ready].status`.
    pub path: String,
    /// The old value; `None` if it was absent.
    pub from: Option<Value>,
    /// The new value; `None` if it is absent.
    pub to: Option<Value>,
}

/// Returns the differences of two objects, in the order of the older one's fields. Revision and field
/// ownership are omitted.
///
/// Guarantees: with `secret`, the result contains no confidential value of a Secret.
pub fn changes(old: &Value, new: &Value, secret: bool) -> Vec<FieldChange> {
    let mut found = Vec::new();
    compare("", Some(old), Some(new), &mut found);
    if secret {
        found.iter_mut().for_each(hide);
    }
    found
}

/// Returns the changes as they are sent: at most [`MAX_FIELDS`], and the number of further ones.
pub fn shown(mut changes: Vec<FieldChange>) -> Value {
    let more = changes.len().saturating_sub(MAX_FIELDS);
    changes.truncate(MAX_FIELDS);
    let fields: Vec<Value> = changes
        .into_iter()
        .map(|change| {
            let mut field = Map::new();
            field.insert("path".into(), change.path.into());
            field.extend(change.from.map(|from| ("from".to_owned(), from)));
            field.extend(change.to.map(|to| ("to".to_owned(), to)));
            Value::Object(field)
        })
        .collect();
    json!({"fields": fields, "moreFields": more})
}

fn hide(change: &mut FieldChange) {
    let open = |field: &str| {
        change.path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    if OF_SECRETS.iter().any(|field| open(field)) {
        return;
    }
    for value in [&mut change.from, &mut change.to].into_iter().flatten() {
        *value = "(hidden)".into();
    }
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<FieldChange>) {
    if old == new || NOISE.contains(&path) {
        return;
    }
    let empty = Map::new();
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => members(path, old, new, found),
        // An added or removed object is listed by its fields, unless it has none.
        (Some(Value::Object(old)), None) if !old.is_empty() => members(path, old, &empty, found),
        (None, Some(Value::Object(new))) if !new.is_empty() => members(path, &empty, new, found),
        (Some(Value::Array(old)), Some(Value::Array(new))) => elements(path, old, new, found),
        _ => found.push(FieldChange { path: path.to_owned(), from: old.cloned(), to: new.cloned() }),
    }
}

fn members(path: &str, old: &Map<String, Value>, new: &Map<String, Value>, found: &mut Vec<FieldChange>) {
    let added = new.keys().filter(|name| !old.contains_key(*name));
    for name in old.keys().chain(added) {
        compare(&member(path, name), old.get(name), new.get(name), found);
    }
}

/// Appends a name to a path; names with dots or slashes, as in labels, are quoted.
fn member(path: &str, name: &str) -> String {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if plain { format!("{path}.{name}") } else { format!("{path}[{name:?}]") }
}

/// Compares lists: by name if the items have names, otherwise by index.
fn elements(path: &str, old: &[Value], new: &[Value], found: &mut Vec<FieldChange>) {
    let named = |by: &'static str| Some((by, places(old, by)?, places(new, by)?));
    let Some((by, was, is)) = ["name", "type"].into_iter().find_map(named) else {
        for at in 0..old.len().max(new.len()) {
            compare(&format!("{path}[{at}]"), old.get(at), new.get(at), found);
        }
        return;
    };
    let name = |value: &Value| value[by].as_str().unwrap_or_default().to_owned();
    let added = new.iter().map(name).filter(|name| !was.contains_key(name.as_str()));
    for wanted in old.iter().map(name).chain(added) {
        let (was, is) = (was.get(wanted.as_str()), is.get(wanted.as_str()));
        compare(&format!("{path}[{wanted}]"), was.map(|at| &old[*at]), is.map(|at| &new[*at]), found);
    }
}

/// Returns the index of each item of a list by its name, if each has a unique one.
fn places<'a>(list: &'a [Value], by: &str) -> Option<BTreeMap<&'a str, usize>> {
    let places = list.iter().enumerate().map(|(at, one)| Some((one.get(by)?.as_str()?, at)));
    let places: BTreeMap<&str, usize> = places.collect::<Option<_>>()?;
    (places.len() == list.len()).then_some(places)
}

#[cfg(test)]
mod tests;
