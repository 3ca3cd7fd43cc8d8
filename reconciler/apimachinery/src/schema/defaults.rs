//! Defaulting, and Kubernetes' treatment of nulls before it.

use serde_json::Value;

use super::node::Node;

pub(super) fn default_object(root: &Node, object: &mut Value) {
    drop_nulls(root, object);
    fill_object(root, object);
}

pub(super) fn fill_object(root: &Node, object: &mut Value) {
    if root.has_defaults {
        fill(root, object);
    }
}

/// Drops nulls where the schema neither allows null nor has a default; they count as absent.
fn drop_nulls(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|name, value| match node.member(name) {
            Some(of) if value.is_null() => of.nullable || of.default.is_some(),
            Some(of) => {
                drop_nulls(of, value);
                true
            }
            None => true,
        }),
        Value::Array(items) => {
            if let Some(of) = &node.items {
                items.iter_mut().for_each(|item| drop_nulls(of, item));
            }
        }
        _ => {}
    }
}

fn fill(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, of) in &node.properties {
                let Some(default) = &of.default else { continue };
                if map.get(name).is_none_or(|v| v.is_null() && !of.nullable) {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in map.iter_mut() {
                let Some(of) = node.member(name).filter(|of| of.has_defaults) else { continue };
                fill_item(of, value);
            }
        }
        Value::Array(items) => {
            if let Some(of) = node.items.as_deref().filter(|of| of.has_defaults) {
                items.iter_mut().for_each(|item| fill_item(of, item));
            }
        }
        _ => {}
    }
}

fn fill_item(node: &Node, value: &mut Value) {
    if value.is_null()
        && !node.nullable
        && let Some(default) = &node.default
    {
        *value = default.clone();
    }
    fill(node, value);
}
