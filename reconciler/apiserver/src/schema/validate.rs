//! Value validation, in the order and the words of Kubernetes.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::message::{
    child, composite, duplicate, in_body, index, invalid, key, number, quote, required, too_long, too_many,
    unsupported, wrong_type,
};
use super::node::{Checks, ListType, Node, Type};
use super::{ErrorKind, FieldError, MAX_DEPTH, formats, too_deep, validate_nested};
use crate::fields::builtin::object_meta;

/// Errors reported for one object; a hostile object must not make its answer larger than itself.
const MAX_ERRORS: usize = 200;

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

/// The status alone, which is told of as if it were the whole: its fields have no `status` before them in sentences.
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

/// A value that is part of no object yet.
pub(super) fn validate_value(node: &Node, value: &Value) -> Vec<FieldError> {
    let mut walk = Walk { errors: Vec::new() };
    walk.node(node, value, None, "");
    walk.errors
}

pub(super) struct Walk {
    pub(super) errors: Vec<FieldError>,
}

impl Walk {
    fn push(&mut self, error: FieldError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    /// An unchanged value is let through even if the schema has become stricter since it was stored.
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

    /// Everything about this value that does not look into named children.
    fn own(&mut self, node: &Node, value: &Value, path: &str) {
        if !type_fits(node, value) {
            self.push(wrong_type(path, type_names(node), type_of(value)));
        }
        self.combinators(&node.checks, value, path);
        self.scalar(&node.checks, node.ty, value, path);
    }

    /// The checks that need neither type nor structure; nested value validations use them as well.
    pub(super) fn scalar(&mut self, checks: &Checks, ty: Option<Type>, value: &Value, path: &str) {
        match value {
            Value::String(text) => self.text(checks, ty, text, value, path),
            Value::Number(_) => self.number(checks, ty, value, path),
            Value::Array(items) => self.items(checks, items, path),
            Value::Object(map) => self.members(checks, map, value, path),
            Value::Bool(_) | Value::Null => {}
        }
        if let Some(allowed) = &checks.allowed
            && !allowed.iter().any(|a| equal(a, value))
        {
            self.push(unsupported(path, value, allowed));
        }
    }

    fn text(&mut self, checks: &Checks, ty: Option<Type>, text: &str, value: &Value, path: &str) {
        let length = text.chars().count() as u64;
        if let Some(max) = checks.max_length.filter(|max| length > *max) {
            self.push(too_long(path, max));
        }
        if let Some(min) = checks.min_length.filter(|min| length < *min) {
            self.push(invalid(path, value, &in_body(path, &format!("should be at least {min} chars long"))));
        }
        if let Some(pattern) = checks.pattern.as_ref().filter(|p| !p.is_match(text)) {
            self.push(invalid(path, value, &in_body(path, &format!("should match '{}'", pattern.as_str()))));
        }
        if let Some(format) = checks.format.as_deref().filter(|_| matches!(ty, None | Some(Type::String)))
            && !formats::matches(format, text)
        {
            let detail = in_body(path, &format!("must be of type {format}: {}", quote(text)));
            self.push(FieldError { kind: ErrorKind::TypeInvalid, ..invalid(path, value, &detail) });
        }
    }

    fn number(&mut self, checks: &Checks, ty: Option<Type>, value: &Value, path: &str) {
        let Some(n) = value.as_f64() else { return };
        let show = |bound: f64| number(bound, None);
        if ty == Some(Type::Integer)
            && checks.format.as_deref() == Some("int32")
            && i32::try_from(n as i64).is_err()
        {
            self.push(invalid(path, value, "Checked value must be integer with format int32 in body"));
        }
        if let Some(of) = checks.multiple_of.filter(|of| *of > 0.0 && !is_multiple(n, *of)) {
            self.push(invalid(path, value, &in_body(path, &format!("should be a multiple of {}", show(of)))));
        }
        if let Some(max) = checks.maximum
            && (n > max || (checks.exclusive_maximum && n >= max))
        {
            let or_equal = if checks.exclusive_maximum { "" } else { " or equal to" };
            self.push(invalid(
                path,
                value,
                &in_body(path, &format!("should be less than{or_equal} {}", show(max))),
            ));
        }
        if let Some(min) = checks.minimum
            && (n < min || (checks.exclusive_minimum && n <= min))
        {
            let or_equal = if checks.exclusive_minimum { "" } else { " or equal to" };
            self.push(invalid(
                path,
                value,
                &in_body(path, &format!("should be greater than{or_equal} {}", show(min))),
            ));
        }
    }

    fn items(&mut self, checks: &Checks, items: &[Value], path: &str) {
        if let Some(min) = checks.min_items.filter(|min| (items.len() as u64) < *min) {
            let detail = in_body(path, &format!("should have at least {min} items"));
            self.push(invalid(path, &Value::from(items.len()), &detail));
        }
        if let Some(max) = checks.max_items.filter(|max| items.len() as u64 > *max) {
            self.push(too_many(path, items.len(), max, "items"));
        }
    }

    fn members(&mut self, checks: &Checks, map: &Map<String, Value>, value: &Value, path: &str) {
        if let Some(min) = checks.min_properties.filter(|min| (map.len() as u64) < *min) {
            let detail = in_body(path, &format!("should have at least {min} properties"));
            self.push(invalid(path, value, &detail));
        }
        if let Some(max) = checks.max_properties.filter(|max| map.len() as u64 > *max) {
            self.push(too_many(path, map.len(), max, "items"));
        }
    }

    pub(super) fn required(&mut self, checks: &Checks, map: &Map<String, Value>, path: &str) {
        for name in checks.required.iter().filter(|name| !map.contains_key(*name)) {
            self.push(required(&child(path, name), ""));
        }
    }

    pub(super) fn combinators(&mut self, checks: &Checks, value: &Value, path: &str) {
        let shown = quote(path);
        if !checks.any_of.is_empty() {
            let (valid, best) = validate_nested::best_of(&checks.any_of, value, path);
            if valid == 0 {
                self.push(composite(format!("{shown} must validate at least one schema (anyOf)")));
                best.into_iter().for_each(|e| self.push(e));
            }
        }
        if !checks.one_of.is_empty() {
            let (valid, best) = validate_nested::best_of(&checks.one_of, value, path);
            if valid != 1 {
                let found = if valid == 0 {
                    "Found none valid".to_owned()
                } else {
                    format!("Found {valid} valid alternatives")
                };
                self.push(composite(format!(
                    "{shown} must validate one and only one schema (oneOf). {found}"
                )));
                if valid == 0 {
                    best.into_iter().for_each(|e| self.push(e));
                }
            }
        }
        let mut failed = false;
        for of in &checks.all_of {
            let errors = validate_nested::errors(of, value, path);
            failed |= !errors.is_empty();
            errors.into_iter().for_each(|e| self.push(e));
        }
        if failed {
            self.push(composite(format!("{shown} must validate all the schemas (allOf)")));
        }
        if let Some(not) = &checks.not
            && validate_nested::errors(not, value, path).is_empty()
        {
            self.push(composite(format!("{shown} must not validate the schema (not)")));
        }
    }

    fn children(&mut self, node: &Node, value: &Value, old: Option<&Value>, path: &str) {
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    if let Some(of) = node.member(name) {
                        self.node(of, value, old.and_then(|o| o.get(name)), &child(path, name));
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

    /// Uniqueness of sets and of the keys of list-maps.
    fn list_types(&mut self, node: &Node, value: &Value, path: &str) {
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    if let Some(of) = node.properties.get(name) {
                        self.list_types(of, value, &child(path, name));
                    } else if let Some(of) = node.additional_schema() {
                        self.list_types(of, value, &key(path, name));
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
        let keys: Vec<Value> = match node.list_type {
            ListType::Atomic => return,
            ListType::Set => items.to_vec(),
            ListType::Map => {
                if let Some(at) = items.iter().position(|i| !i.is_object() && !i.is_null()) {
                    let detail = "must be an object for an array of list-type map";
                    return self.push(invalid(&index(path, at), &items[at], detail));
                }
                items.iter().map(|item| list_map_key(node, item)).collect()
            }
        };
        let mut seen: HashMap<String, usize> = HashMap::new();
        for (at, found) in keys.iter().enumerate() {
            let times = seen.entry(canonical(found)).or_default();
            *times += 1;
            if *times == 2 {
                self.push(duplicate(&index(path, at), found));
            }
        }
    }
}

/// The old items of a list, by key if it is a list-map: only those can be told to be the same item.
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

fn list_map_key(node: &Node, item: &Value) -> Value {
    let pairs = node.list_map_keys.iter().filter_map(|k| item.get(k).map(|v| (k.clone(), v.clone())));
    Value::Object(pairs.collect())
}

/// One text for equal values: members sorted, numbers by value.
pub(crate) fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> =
                map.iter().map(|(k, v)| format!("{}:{}", quote(k), canonical(v))).collect();
            members.sort();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        Value::Number(n) => number(n.as_f64().unwrap_or_default(), Some(n)),
        other => other.to_string(),
    }
}

/// Equality that does not tell `1` from `1.0`.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            x == y || (x.as_f64() == y.as_f64() && (x.is_f64() || y.is_f64()))
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, v)| y.get(k).is_some_and(|w| equal(v, w)))
        }
        _ => a == b,
    }
}

fn is_multiple(n: f64, of: f64) -> bool {
    let times = n / of;
    (times - times.round()).abs() < 1e-9
}

pub(super) fn type_fits(node: &Node, value: &Value) -> bool {
    if node.int_or_string {
        return value.is_string() || is_integer(value);
    }
    match node.ty {
        None => true,
        Some(Type::Object) => value.is_object(),
        Some(Type::Array) => value.is_array(),
        Some(Type::String) => value.is_string(),
        Some(Type::Boolean) => value.is_boolean(),
        Some(Type::Number) => value.is_number(),
        Some(Type::Integer) => is_integer(value),
    }
}

/// Beyond this a float has no digits for ones.
const MAX_WHOLE: f64 = 9_007_199_254_740_991.0;

fn is_integer(value: &Value) -> bool {
    let whole = |n: f64| n.fract() == 0.0 && n.abs() <= MAX_WHOLE;
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(whole)
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
