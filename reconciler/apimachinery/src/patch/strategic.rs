//! Strategic merge for the built-in kinds served here: lists with a merge key are merged by it.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// Returns the merge key of a list; `""` for lists of scalars that are merged as sets.
fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "ownerReferences" => Some("uid"),
        "finalizers" => Some(""),
        "conditions" => Some("type"),
        "secrets" | "imagePullSecrets" | "variables" | "matchConditions" => Some("name"),
        _ => None,
    }
}

/// Returns an unsupported `$patch` directive. Assumptions: the patch does not nest too deeply.
pub fn unknown_directive(patch: &Value) -> Option<&Value> {
    match patch {
        Value::Object(members) => members.iter().find_map(|(name, value)| match name.as_str() {
            "$patch" => (!["replace", "merge", "delete"].contains(&value.as_str()?)).then_some(value),
            _ => unknown_directive(value),
        }),
        Value::Array(items) => items.iter().find_map(unknown_directive),
        _ => None,
    }
}

pub fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() || patch.get("$patch").is_some_and(|directive| directive == "replace") {
        *object = Value::Object(Map::new());
    }
    let Some(members) = object.as_object_mut() else { return };
    let names: Vec<&str> = patch
        .keys()
        .map(|name| name.strip_prefix("$setElementOrder/").unwrap_or(name))
        .filter(|name| merge_key(name).is_some())
        .collect();
    // Not of the whole object: at each level that would be one more of everything below.
    let before: Map<String, Value> =
        names.iter().filter_map(|name| Some(((*name).to_owned(), members.get(*name)?.clone()))).collect();
    let gone = |value: &Value| value.is_null() || is_deletion(value);
    super::merge::remove(members, patch, gone);
    for (name, value) in patch.iter().filter(|(name, value)| !name.starts_with('$') && !gone(value)) {
        if let (Some(items), Some(key)) = (value.as_array(), merge_key(name)) {
            merge_list(members.entry(name).or_insert_with(|| Value::Array(Vec::new())), items, key);
        } else if value.is_object() {
            merge(members.entry(name).or_insert(Value::Null), value);
        } else {
            members.insert(name.clone(), value.clone());
        }
    }
    for (name, values) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/")
            && let Some(items) = members.get_mut(list).and_then(Value::as_array_mut)
        {
            let gone: HashSet<&Value> = values.as_array().into_iter().flatten().collect();
            items.retain(|item| !gone.contains(item));
        }
    }
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

fn is_deletion(value: &Value) -> bool {
    value.get("$patch").is_some_and(|directive| directive == "delete")
}

/// Returns the merge key's value of a list item.
fn identity<'a>(item: &'a Value, key: &str) -> &'a Value {
    if key.is_empty() { item } else { &item[key] }
}

/// Sorts the items: those that the patch names are in the patch's order; another item precedes one of them
/// only if it did before.
fn ordered(items: Vec<Value>, wanted: &[Value], before: &[Value], key: &str) -> Vec<Value> {
    let (wanted, before) = (places(wanted, key), places(before, key));
    let place = |places: &HashMap<&Value, usize>, item: &Value| places.get(identity(item, key)).copied();
    let (mut named, others): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|item| place(&wanted, item).is_some());
    named.sort_by_key(|item| place(&wanted, item));
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    let mut all = Vec::new();
    loop {
        let other_first = match (others.peek(), named.peek()) {
            (None, None) => return all,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(other), Some(named)) => match (place(&before, other), place(&before, named)) {
                (Some(other), Some(named)) => other < named,
                _ => false,
            },
        };
        all.extend(if other_first { others.next() } else { named.next() });
    }
}

/// Returns the first index of each item of a list.
fn places<'a>(list: &'a [Value], key: &str) -> HashMap<&'a Value, usize> {
    // In reverse, so that the first of equal items is inserted last.
    list.iter().enumerate().rev().map(|(at, item)| (identity(item, key), at)).collect()
}

fn merge_list(list: &mut Value, patch: &[Value], key: &str) {
    let Some(items) = list.as_array_mut() else {
        *list = Value::Array(patch.to_vec());
        return;
    };
    if patch.iter().any(|item| item["$patch"] == "replace") {
        items.clear();
    }
    let mut items: Vec<Option<Value>> = items.drain(..).map(Some).collect();
    let mut places: HashMap<Value, Vec<usize>> = HashMap::new();
    for (at, item) in items.iter().flatten().enumerate() {
        places.entry(identity(item, key).clone()).or_default().push(at);
    }
    for one in patch.iter().filter(|item| item["$patch"] != "replace") {
        let same = identity(one, key);
        if is_deletion(one) && !key.is_empty() {
            places.remove(same).into_iter().flatten().for_each(|at| items[at] = None);
        } else if let Some(at) = places.get(same).and_then(|all| all.first()) {
            // The merge key's value stays unchanged.
            merge(items[*at].get_or_insert_default(), one);
        } else {
            places.insert(same.clone(), vec![items.len()]);
            items.push(Some(one.clone()));
        }
    }
    *list = items.into_iter().flatten().collect();
}

#[cfg(test)]
mod tests;
