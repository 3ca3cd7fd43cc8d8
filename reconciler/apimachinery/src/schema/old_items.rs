//! Matching of list items to their previous versions.

use std::collections::HashMap;

use serde_json::Value;

use super::equality::push_canonical;
use super::node::{ListType, Node};

/// The old items of a list, by key if it is a list-map: only items of list-maps can be identified.
pub(super) struct OldItems<'a> {
    node: &'a Node,
    /// `None`: several items have the key.
    by_key: HashMap<String, Option<&'a Value>>,
}

impl<'a> OldItems<'a> {
    pub(super) fn new(node: &'a Node, old: Option<&'a Value>) -> Self {
        let mut by_key = HashMap::new();
        if node.list_type == ListType::Map {
            for item in old.and_then(Value::as_array).into_iter().flatten() {
                by_key.entry(key_text(node, item)).and_modify(|found| *found = None).or_insert(Some(item));
            }
        }
        Self { node, by_key }
    }

    pub(super) fn get(&self, item: &Value) -> Option<&'a Value> {
        if self.by_key.is_empty() {
            return None;
        }
        self.by_key.get(&key_text(self.node, item)).copied().flatten()
    }
}

/// Returns the same text for items of a list-map with the same key.
pub(super) fn key_text(node: &Node, item: &Value) -> String {
    let mut text = String::new();
    for name in &node.list_map_keys {
        if let Some(value) = item.get(name) {
            push_canonical(value, &mut text);
        }
        text.push(',');
    }
    text
}

pub(super) fn list_map_key(node: &Node, item: &Value) -> Value {
    let pairs = node.list_map_keys.iter().filter_map(|k| item.get(k).map(|v| (k.clone(), v.clone())));
    Value::Object(pairs.collect())
}
