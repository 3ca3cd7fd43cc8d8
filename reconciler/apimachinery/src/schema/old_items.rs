//! Matching of list items to their previous versions.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::equality::canonical;
use super::node::{ListType, Node};

/// The old items of a list, by key if it is a list-map: only items of list-maps can be identified.
pub(super) struct OldItems<'a> {
    node: &'a Node,
    by_key: HashMap<String, &'a Value>,
}

impl<'a> OldItems<'a> {
    pub(super) fn new(node: &'a Node, old: Option<&'a Value>) -> Self {
        let mut by_key = HashMap::new();
        let mut twice = HashSet::new();
        if node.list_type == ListType::Map {
            for item in old.and_then(Value::as_array).into_iter().flatten() {
                let key = canonical(&list_map_key(node, item));
                if by_key.insert(key.clone(), item).is_some() {
                    twice.insert(key);
                }
            }
        }
        by_key.retain(|key, _| !twice.contains(key));
        Self { node, by_key }
    }

    pub(super) fn get(&self, item: &Value) -> Option<&'a Value> {
        if self.by_key.is_empty() {
            return None;
        }
        self.by_key.get(&canonical(&list_map_key(self.node, item))).copied()
    }
}

pub(super) fn list_map_key(node: &Node, item: &Value) -> Value {
    let pairs = node.list_map_keys.iter().filter_map(|k| item.get(k).map(|v| (k.clone(), v.clone())));
    Value::Object(pairs.collect())
}
