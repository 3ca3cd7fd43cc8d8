//! Value validation, in the order and wording of Kubernetes.

use std::collections::HashMap;

use serde_json::Value;

use super::checks::{MAX_ERRORS, Walk, is_integer, type_fits};
use super::equality::canonical;
use super::message::{child, composite, duplicate, index, invalid, key, quote, wrong_type};
use super::node::{Checks, ListType, Node, Type};
use super::object_meta::object_meta;
use super::old_items::{OldItems, key_text, list_map_key};
use super::{FieldError, MAX_DEPTH, too_deep};

pub(super) fn validate_object(root: &Node, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    if too_deep(object) || old.is_some_and(too_deep) {
        return vec![invalid(
            "<nil>",
            &Value::Null,
            &format!("must not nest deeper than {MAX_DEPTH} levels"),
        )];
    }
    let mut walk = Walk { errors: Vec::new() };
    walk.node(root, object, old, "");
    if let Some(metadata) = object.get("metadata") {
        walk.node(&object_meta().root, metadata, old.and_then(|o| o.get("metadata")), "metadata");
    }
    walk.list_types(root, object, "");
    walk.errors
}

/// Validates the status alone, as if it were the whole object: messages about its fields omit the `status`
/// prefix.
pub(super) fn validate_status(root: &Node, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let (Some(node), Some(status)) = (root.properties.get("status"), object.get("status")) else {
        return Vec::new();
    };
    let mut walk = Walk { errors: Vec::new() };
    walk.node(node, status, old.and_then(|old| old.get("status")), "");
    for error in &mut walk.errors {
        let at_root = error.field.is_empty() || error.field == "<nil>";
        error.field = if at_root { "status".to_owned() } else { child("status", &error.field) };
    }
    walk.list_types(root, object, "");
    walk.errors
}

/// Validates a value by itself.
pub(super) fn validate_value(node: &Node, value: &Value, path: &str) -> Vec<FieldError> {
    let mut walk = Walk { errors: Vec::new() };
    walk.node(node, value, None, path);
    walk.errors
}

impl Walk {
    /// Checks `allOf`, `anyOf`, `oneOf` and `not`.
    fn combinators(&mut self, checks: &Checks, value: &Value, path: &str) {
        let shown = || quote(path);
        if !checks.any_of.is_empty() {
            let (valid, best) = best_of(&checks.any_of, value, path);
            if valid == 0 {
                self.push(composite(format!("{} must validate at least one schema (anyOf)", shown())));
                best.into_iter().for_each(|e| self.push(e));
            }
        }
        if !checks.one_of.is_empty() {
            let (valid, best) = best_of(&checks.one_of, value, path);
            if valid != 1 {
                let found = if valid == 0 {
                    "Found none valid".to_owned()
                } else {
                    format!("Found {valid} valid alternatives")
                };
                self.push(composite(format!(
                    "{} must validate one and only one schema (oneOf). {found}",
                    shown()
                )));
                if valid == 0 {
                    best.into_iter().for_each(|e| self.push(e));
                }
            }
        }
        let mut failed = false;
        for of in &checks.all_of {
            let errors = validate_value(of, value, path);
            failed |= !errors.is_empty();
            errors.into_iter().for_each(|e| self.push(e));
        }
        if failed {
            self.push(composite(format!("{} must validate all the schemas (allOf)", shown())));
        }
        if let Some(not) = &checks.not
            && validate_value(not, value, path).is_empty()
        {
            self.push(composite(format!("{} must not validate the schema (not)", shown())));
        }
    }

    /// Validates a value. An unchanged value is accepted even if the schema became stricter since it was
    /// stored.
    fn node(&mut self, node: &Node, value: &Value, old: Option<&Value>, path: &str) {
        if self.errors.len() >= MAX_ERRORS || old == Some(value) {
            return;
        }
        if value.is_null() {
            if !node.nullable && (node.ty.is_some() || node.int_or_string) {
                self.push(wrong_type(path, type_names(node), "null"));
                self.scalar(&node.checks, node.ty, value, path);
            }
            return;
        }
        self.own(node, value, path);
        self.children(node, value, old, path);
        if let Value::Object(map) = value {
            self.required(&node.checks, map, path);
        }
    }

    /// Checks this value except for its named children.
    fn own(&mut self, node: &Node, value: &Value, path: &str) {
        if !type_fits(node, value) {
            self.push(wrong_type(path, type_names(node), type_of(value)));
        }
        self.combinators(&node.checks, value, path);
        self.scalar(&node.checks, node.ty, value, path);
    }

    fn children(&mut self, node: &Node, value: &Value, old: Option<&Value>, path: &str) {
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    let old = old.and_then(|old| old.get(name));
                    if let Some(of) = node.member(name).filter(|_| old != Some(value)) {
                        self.node(of, value, old, &child(path, name));
                    }
                }
            }
            Value::Array(items) => {
                let Some(of) = &node.items else { return };
                let old = OldItems::new(node, old);
                for (at, item) in items.iter().enumerate() {
                    self.node(of, item, old.get(item), &index(path, at));
                }
            }
            _ => {}
        }
    }

    /// Checks the uniqueness of sets and of the keys of list-maps.
    fn list_types(&mut self, node: &Node, value: &Value, path: &str) {
        match value {
            _ if !node.has_keyed_lists => {}
            Value::Object(map) => {
                for (name, value) in map {
                    match node.member(name).filter(|of| of.has_keyed_lists) {
                        Some(of) if node.properties.contains_key(name) => {
                            self.list_types(of, value, &child(path, name));
                        }
                        Some(of) => self.list_types(of, value, &key(path, name)),
                        None => {}
                    }
                }
            }
            Value::Array(items) => {
                self.unique(node, items, path);
                if let Some(of) = &node.items {
                    items
                        .iter()
                        .enumerate()
                        .for_each(|(at, item)| self.list_types(of, item, &index(path, at)));
                }
            }
            _ => {}
        }
    }

    fn unique(&mut self, node: &Node, items: &[Value], path: &str) {
        let key: fn(&Node, &Value) -> String = match node.list_type {
            ListType::Atomic => return,
            ListType::Set => |_, item| canonical(item),
            ListType::Map => {
                if let Some(at) = items.iter().position(|i| !i.is_object() && !i.is_null()) {
                    let detail = "must be an object for an array of list-type map";
                    return self.push(invalid(&index(path, at), &items[at], detail));
                }
                key_text
            }
        };
        let mut seen: HashMap<String, usize> = HashMap::new();
        for (at, item) in items.iter().enumerate() {
            let times = seen.entry(key(node, item)).or_default();
            *times += 1;
            if *times == 2 {
                let found = if node.list_type == ListType::Map { &list_map_key(node, item) } else { item };
                self.push(duplicate(&index(path, at), found));
            }
        }
    }
}

/// Returns how many alternatives accept the value, and the errors of the closest one.
fn best_of(alternatives: &[Node], value: &Value, path: &str) -> (usize, Vec<FieldError>) {
    let mut valid = 0;
    let mut best: Option<Vec<FieldError>> = None;
    for of in alternatives {
        let found = validate_value(of, value, path);
        if found.is_empty() {
            valid += 1;
        } else if best.as_ref().is_none_or(|b| found.len() < b.len()) {
            best = Some(found);
        }
    }
    (valid, best.unwrap_or_default())
}

fn type_names(node: &Node) -> &'static str {
    if node.int_or_string { "integer,string" } else { node.ty.map_or("", Type::name) }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) if is_integer(value) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
