//! The difference of two states of an object, field by field.

use std::collections::BTreeSet;

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
    let by = ["name", "type"].into_iter().find(|by| named(old, by).is_some() && named(new, by).is_some());
    let Some(by) = by else {
        for at in 0..old.len().max(new.len()) {
            compare(&format!("{path}[{at}]"), old.get(at), new.get(at), found);
        }
        return;
    };
    let name = |value: &Value| value[by].as_str().unwrap_or_default().to_owned();
    let find = |list: &'_ [Value], wanted: &str| list.iter().position(|one| name(one) == wanted);
    let added = new.iter().filter(|one| find(old, &name(one)).is_none());
    for one in old.iter().chain(added) {
        let wanted = name(one);
        let (was, is) = (find(old, &wanted), find(new, &wanted));
        compare(&format!("{path}[{wanted}]"), was.map(|at| &old[at]), is.map(|at| &new[at]), found);
    }
}

/// Returns the names of a list's items, if each has a unique one.
fn named<'a>(list: &'a [Value], by: &str) -> Option<BTreeSet<&'a str>> {
    let names: Option<BTreeSet<&str>> = list.iter().map(|one| one.get(by)?.as_str()).collect();
    names.filter(|names| names.len() == list.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(old: &Value, new: &Value, secret: bool) -> Vec<String> {
        let text = |value: Option<Value>| value.map_or("-".to_owned(), |value| value.to_string());
        changes(old, new, secret)
            .into_iter()
            .map(|change| format!("{} {} > {}", change.path, text(change.from), text(change.to)))
            .collect()
    }

    #[test]
    fn fields_are_told_by_their_path_and_noise_is_not() {
        let old = json!({"metadata": {"resourceVersion": "1", "managedFields": [1], "labels": {"a.b/c": "x"}},
            "spec": {"cpus": 1, "gone": {"deep": true}, "same": [1, 2]}});
        let new = json!({"metadata": {"resourceVersion": "2", "managedFields": [2], "labels": {"a.b/c": "y"}},
            "spec": {"cpus": 2, "same": [1, 2], "made": {}}});
        let wanted = [
            ".metadata.labels[\"a.b/c\"] \"x\" > \"y\"",
            ".spec.cpus 1 > 2",
            ".spec.gone.deep true > -",
            ".spec.made - > {}",
        ];
        assert_eq!(reported(&old, &new, false), wanted);
        assert!(reported(&old, &old, false).is_empty());
    }

    #[test]
    fn lists_of_named_things_are_compared_by_name() {
        let old = json!({"conditions": [{"type": "Ready", "status": "False"}, {"type": "Old", "status": "True"}],
            "plain": [1, 2]});
        let new = json!({"conditions": [{"type": "New", "status": "True"}, {"type": "Ready", "status": "True"}],
            "plain": [2]});
        let wanted = [
            ".conditions[Ready].status \"False\" > \"True\"",
            ".conditions[Old].type \"Old\" > -",
            ".conditions[Old].status \"True\" > -",
            ".conditions[New].type - > \"New\"",
            ".conditions[New].status - > \"True\"",
            ".plain[0] 1 > 2",
            ".plain[1] 2 > -",
        ];
        assert_eq!(reported(&old, &new, false), wanted);
    }

    #[test]
    fn of_a_secret_nothing_is_shown_but_what_is_none() {
        let last = "kubectl.kubernetes.io/last-applied-configuration";
        let old = json!({"type": "Opaque", "data": {"a": "b2xk"}, "metadata": {"labels": {"l": "1"}, "annotations": {last: "old"}}});
        let new = json!({"type": "Opaque2", "data": {"a": "bmV3", "b": "bmV3"},
            "metadata": {"labels": {"l": "2"}, "annotations": {last: "new"}}, "typeface": "new"});
        let all = reported(&old, &new, true).join("\n");
        assert!(all.contains(".data.a \"(hidden)\" > \"(hidden)\""), "{all}");
        assert!(all.contains(".data.b - > \"(hidden)\""), "{all}");
        assert!(
            all.contains(".metadata.labels.l \"1\" > \"2\"")
                && all.contains(".type \"Opaque\" > \"Opaque2\"")
        );
        assert!(
            !all.contains("bmV3")
                && !all.contains("b2xk")
                && !all.contains("\"old\"")
                && !all.contains("\"new\"")
        );
    }
}
