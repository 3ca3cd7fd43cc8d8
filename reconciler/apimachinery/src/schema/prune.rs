//! Pruning: removes the fields that a schema does not declare.

use serde_json::Value;

use super::message::{child, index};
use super::node::{Additional, Node};
use super::object_meta::object_meta;

const META: [&str; 3] = ["apiVersion", "kind", "metadata"];

pub(super) fn prune(root: &Node, object: &mut Value) -> Vec<String> {
    let mut removed = Vec::new();
    let mut walk = Walk { removed: &mut removed };
    walk.map_members(root, object, "", true);
    if let Some(metadata) = object.get_mut("metadata") {
        walk.metadata(metadata);
    }
    removed.sort();
    removed
}

struct Walk<'a> {
    removed: &'a mut Vec<String>,
}

impl Walk<'_> {
    /// Nulls in metadata have no meaning; clients send `creationTimestamp: null` frequently.
    fn metadata(&mut self, metadata: &mut Value) {
        if let Some(map) = metadata.as_object_mut() {
            map.retain(|_, value| !value.is_null());
        }
        self.value(Some(&object_meta().root), metadata, "metadata");
    }

    fn value(&mut self, node: Option<&Node>, value: &mut Value, path: &str) {
        match value {
            Value::Object(_) => self.map(node, value, path),
            Value::Array(items) => {
                let of = node.and_then(|n| n.items.as_deref());
                // A preserved list is walked only if its items have a schema of their own.
                if of.is_none() && node.is_some_and(|n| n.preserve_unknown) {
                    return;
                }
                for (at, item) in items.iter_mut().enumerate() {
                    self.value(of, item, &index(path, at));
                }
            }
            _ => {}
        }
    }

    fn map(&mut self, node: Option<&Node>, value: &mut Value, path: &str) {
        match node {
            Some(node) => self.map_members(node, value, path, node.embedded),
            None => {
                if let Some(map) = value.as_object_mut() {
                    self.removed.extend(map.keys().map(|k| child(path, k)));
                    map.clear();
                }
            }
        }
    }

    fn map_members(&mut self, node: &Node, value: &mut Value, path: &str, embedded: bool) {
        let Some(map) = value.as_object_mut() else { return };
        map.retain(|name, value| {
            if embedded && META.contains(&name.as_str()) {
                return true;
            }
            let here = child(path, name);
            match (node.properties.get(name), &node.additional) {
                (Some(of), _) => self.value(Some(of), value, &here),
                (None, Additional::Schema(of)) => self.value(Some(of), value, &here),
                // `additionalProperties: true` keeps the key and, as in Kubernetes, prunes the fields below
                // it.
                (None, Additional::Any) => self.value(None, value, &here),
                (None, Additional::Absent) if node.preserve_unknown => {}
                (None, Additional::Absent) => {
                    self.removed.push(here);
                    return false;
                }
            }
            true
        });
    }
}
