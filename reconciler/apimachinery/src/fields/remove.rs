//! Removal of fields and items from a value.

use serde_json::{Map, Value};

use super::element::PathElement;
use super::set::FieldSet;
use super::typed::{NodeKind, Ty, element};

/// Returns the value without the fields and items of the set. A map or list without remaining fields stays,
/// empty. (Upstream leaves null, which a schema then refuses or drops: applying `spec: {}` would alternate
/// between two results.)
pub(super) fn without(value: &Value, set: &FieldSet, ty: Ty<'_>) -> Value {
    match (ty.kind(value), value) {
        (NodeKind::Map, Value::Object(members)) => from_map(members, set, ty),
        (kind @ (NodeKind::Set | NodeKind::ListMap(..)), Value::Array(items)) => {
            from_list(kind, items, set, ty)
        }
        _ => value.clone(),
    }
}

fn from_map(members: &Map<String, Value>, set: &FieldSet, ty: Ty<'_>) -> Value {
    let mut out = Map::new();
    for (name, value) in members {
        let step = PathElement::field(name);
        if set.members.contains(&step) {
            continue;
        }
        let value = match set.children.get(&step) {
            Some(below) => without(value, below, ty.member(name)),
            None => value.clone(),
        };
        out.insert(name.clone(), value);
    }
    Value::Object(out)
}

fn from_list(kind: NodeKind<'_>, items: &[Value], set: &FieldSet, ty: Ty<'_>) -> Value {
    let mut out = Vec::with_capacity(items.len());
    for item in items {
        let Ok(step) = element(kind, item) else {
            out.push(item.clone());
            continue;
        };
        if set.members.contains(&step) {
            continue;
        }
        match set.children.get(&step) {
            Some(below) => out.push(without(item, below, ty.item())),
            None => out.push(item.clone()),
        }
    }
    Value::Array(out)
}
