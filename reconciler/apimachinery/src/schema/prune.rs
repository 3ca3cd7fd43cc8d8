//! Pruning: removes the fields that a schema does not declare.

use std::fmt;

use serde_json::Value;

use super::node::{Additional, Node};
use super::object_meta::object_meta;

const META: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// The maximum number of removed fields that are reported; more would only bury the first.
const MAX_REMOVED: usize = 1_000;
/// The maximum size in bytes of a reported path: each repeats the names of the fields that it leads through.
const MAX_PATH: usize = 1024;

pub(super) fn prune(root: &Node, object: &mut Value) -> Vec<String> {
    let mut walk = Walk { removed: Vec::new() };
    walk.map_members(root, object, true);
    if let Some(metadata) = object.get_mut("metadata") {
        walk.metadata(metadata);
    }
    for path in &mut walk.removed {
        path.remove(0);
    }
    walk.removed.sort();
    walk.removed
}

struct Walk {
    /// Paths from the value that is being walked: `.bar`, `[0].bar`. None is built unless something is removed.
    removed: Vec<String>,
}

impl Walk {
    fn report(&mut self, name: &str) {
        if self.removed.len() < MAX_REMOVED {
            self.removed.push(format!(".{}", start(name)));
        }
    }

    /// Nulls in metadata have no meaning; clients send `creationTimestamp: null` frequently.
    fn metadata(&mut self, metadata: &mut Value) {
        if let Some(map) = metadata.as_object_mut() {
            map.retain(|_, value| !value.is_null());
        }
        self.value(Some(&object_meta().root), metadata, format_args!(".metadata"));
    }

    /// Walks a value; `step` leads to it from the value around it.
    fn value(&mut self, node: Option<&Node>, value: &mut Value, step: fmt::Arguments<'_>) {
        let before = self.removed.len();
        match value {
            Value::Object(_) => self.map(node, value),
            Value::Array(items) => {
                let of = node.and_then(|n| n.items.as_deref());
                // A preserved list is walked only if its items have a schema of their own.
                if of.is_some() || !node.is_some_and(|n| n.preserve_unknown) {
                    for (at, item) in items.iter_mut().enumerate() {
                        self.value(of, item, format_args!("[{at}]"));
                    }
                }
            }
            _ => {}
        }
        if self.removed.len() == before {
            return;
        }
        let step = step.to_string();
        let step = start(&step);
        for path in &mut self.removed[before..] {
            path.insert_str(0, step);
            path.truncate(path.floor_char_boundary(MAX_PATH));
        }
    }

    fn map(&mut self, node: Option<&Node>, value: &mut Value) {
        match node {
            Some(node) => self.map_members(node, value, node.embedded),
            None => {
                if let Some(map) = value.as_object_mut() {
                    std::mem::take(map).keys().for_each(|name| self.report(name));
                }
            }
        }
    }

    fn map_members(&mut self, node: &Node, value: &mut Value, embedded: bool) {
        let Some(map) = value.as_object_mut() else { return };
        map.retain(|name, value| {
            if embedded && META.contains(&name.as_str()) {
                return true;
            }
            let of = match (node.properties.get(name), &node.additional) {
                (Some(of), _) => Some(of),
                (None, Additional::Schema(of)) => Some(&**of),
                // `additionalProperties: true` keeps the key and, as in Kubernetes, prunes the fields below
                // it.
                (None, Additional::Any) => None,
                (None, Additional::Absent) => {
                    if !node.preserve_unknown {
                        self.report(name);
                    }
                    return node.preserve_unknown;
                }
            };
            self.value(of, value, format_args!(".{name}"));
            true
        });
    }
}

/// Returns as much of a text as a path may have.
fn start(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_PATH)]
}
