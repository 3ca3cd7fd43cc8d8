//! Strategic merge for the built-in kinds served here: lists that have a merge key are merged by it.

use serde_json::{Map, Value};

/// What items of a list are told apart by; `""` for lists of plain values that are merged as sets.
fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "ownerReferences" => Some("uid"),
        "finalizers" => Some(""),
        "conditions" => Some("type"),
        "secrets" | "imagePullSecrets" | "variables" | "matchConditions" => Some("name"),
        _ => None,
    }
}

/// A `$patch` that says what nobody can do. Assumptions: the patch does not nest too deeply.
pub(super) fn unknown_directive(patch: &Value) -> Option<&Value> {
    match patch {
        Value::Object(members) => members.iter().find_map(|(name, value)| match name.as_str() {
            "$patch" => (!["replace", "merge", "delete"].contains(&value.as_str()?)).then_some(value),
            _ => unknown_directive(value),
        }),
        Value::Array(items) => items.iter().find_map(unknown_directive),
        _ => None,
    }
}

pub(super) fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() || patch.get("$patch").is_some_and(|directive| directive == "replace") {
        *object = Value::Object(Map::new());
    }
    let before = object.clone();
    let Some(members) = object.as_object_mut() else { return };
    for (name, value) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        if value.is_null() {
            members.shift_remove(name);
        } else if let (Some(items), Some(key)) = (value.as_array(), merge_key(name)) {
            merge_list(members.entry(name).or_insert_with(|| Value::Array(Vec::new())), items, key);
        } else if value.is_object() {
            let delete = value.get("$patch").is_some_and(|directive| directive == "delete");
            if delete {
                members.shift_remove(name);
            } else {
                merge(members.entry(name).or_insert(Value::Null), value);
            }
        } else {
            members.insert(name.clone(), value.clone());
        }
    }
    for (name, values) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/")
            && let Some(items) = members.get_mut(list).and_then(Value::as_array_mut)
        {
            items.retain(|item| !values.as_array().is_some_and(|gone| gone.contains(item)));
        }
    }
    let names: Vec<&str> = patch
        .keys()
        .map(|name| name.strip_prefix("$setElementOrder/").unwrap_or(name))
        .filter(|name| merge_key(name).is_some())
        .collect();
    for name in names {
        let wanted = patch.get(&format!("$setElementOrder/{name}")).or_else(|| patch.get(name));
        let before = before.get(name).and_then(Value::as_array);
        if let (Some(items), Some(wanted), Some(key)) = (
            members.get_mut(name).and_then(Value::as_array_mut),
            wanted.and_then(Value::as_array),
            merge_key(name),
        ) {
            *items = ordered(std::mem::take(items), wanted, before.map_or(&[], Vec::as_slice), key);
        }
    }
}

/// Items that the patch names stand as it has them; the others stay before one of those only if they stood so before.
fn ordered(items: Vec<Value>, wanted: &[Value], before: &[Value], key: &str) -> Vec<Value> {
    let same = |a: &Value, b: &Value| if key.is_empty() { a == b } else { a[key] == b[key] };
    let place = |list: &[Value], item: &Value| list.iter().position(|one| same(one, item));
    let (mut named, others): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|item| place(wanted, item).is_some());
    named.sort_by_key(|item| place(wanted, item));
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    let mut all = Vec::new();
    loop {
        let other_first = match (others.peek(), named.peek()) {
            (None, None) => return all,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(other), Some(named)) => match (place(before, other), place(before, named)) {
                (Some(other), Some(named)) => other < named,
                _ => false,
            },
        };
        all.extend(if other_first { others.next() } else { named.next() });
    }
}

fn merge_list(list: &mut Value, patch: &[Value], key: &str) {
    let Some(items) = list.as_array_mut() else {
        *list = Value::Array(patch.to_vec());
        return;
    };
    if patch.iter().any(|item| item["$patch"] == "replace") {
        items.clear();
    }
    for one in patch.iter().filter(|item| item["$patch"] != "replace") {
        let same = |item: &&mut Value| if key.is_empty() { **item == *one } else { item[key] == one[key] };
        if one["$patch"] == "delete" {
            items.retain(|item| item[key] != one[key]);
        } else if let Some(item) = items.iter_mut().find(same) {
            merge(item, one);
        } else {
            items.push(one.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_patch_names_comes_first_unless_it_stood_later_before() {
        let merged = |before: Value, patch: Value| {
            let mut object = json!({"finalizers": before});
            merge(&mut object, &patch);
            object["finalizers"].clone()
        };
        assert_eq!(merged(json!(["a", "b"]), json!({"finalizers": ["c"]})), json!(["c", "a", "b"]));
        assert_eq!(merged(json!(["a", "b"]), json!({"finalizers": ["b"]})), json!(["a", "b"]));
        assert_eq!(
            merged(
                json!(["a", "b"]),
                json!({"finalizers": ["c"], "$setElementOrder/finalizers": ["b", "c"]})
            ),
            json!(["a", "b", "c"])
        );
    }

    #[test]
    fn a_directive_nobody_knows_is_told() {
        assert_eq!(unknown_directive(&json!({"a": [{"$patch": "twist"}]})), Some(&json!("twist")));
        assert_eq!(unknown_directive(&json!({"$patch": "replace", "a": [{"$patch": "delete"}]})), None);
    }

    #[test]
    fn keyed_lists_are_merged_and_directives_are_obeyed_not_stored() {
        let mut object = json!({"metadata": {"finalizers": ["a", "b"], "ownerReferences": [{"uid": "1", "name": "x"}]},
            "data": {"k": "v", "gone": "x"}});
        merge(
            &mut object,
            &json!({
                "metadata": {"$setElementOrder/finalizers": ["b", "c"], "$deleteFromPrimitiveList/finalizers": ["a"],
                    "finalizers": ["c"], "ownerReferences": [{"uid": "1", "name": "y"}, {"uid": "2"}]},
                "data": {"gone": null, "new": "1"},
            }),
        );
        assert_eq!(
            object,
            json!({"metadata": {"finalizers": ["b", "c"],
            "ownerReferences": [{"uid": "1", "name": "y"}, {"uid": "2"}]}, "data": {"k": "v", "new": "1"}})
        );
    }
}
