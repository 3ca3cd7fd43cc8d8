//! Value validations under `allOf`, `anyOf`, `oneOf` and `not`.

use serde_json::Value;

use super::FieldError;
use super::message::{child, index, wrong_type};
use super::node::{Node, Type};
use super::validate::{Walk, type_fits};

/// What a nested validation has against a value.
pub(super) fn errors(node: &Node, value: &Value, path: &str) -> Vec<FieldError> {
    let mut walk = Walk { errors: Vec::new() };
    visit(&mut walk, node, value, path);
    walk.errors
}

/// How many alternatives accept the value, and the complaints of the one that came closest.
pub(super) fn best_of(alternatives: &[Node], value: &Value, path: &str) -> (usize, Vec<FieldError>) {
    let mut valid = 0;
    let mut best: Option<Vec<FieldError>> = None;
    for of in alternatives {
        let found = errors(of, value, path);
        if found.is_empty() {
            valid += 1;
        } else if best.as_ref().is_none_or(|b| found.len() < b.len()) {
            best = Some(found);
        }
    }
    (valid, best.unwrap_or_default())
}

fn visit(walk: &mut Walk, node: &Node, value: &Value, path: &str) {
    if value.is_null() {
        return;
    }
    if !type_fits(node, value) {
        let got = if value.is_string() { "string" } else { "integer" };
        walk.errors.push(wrong_type(path, node.ty.map_or("", Type::name), got));
    }
    walk.combinators(&node.checks, value, path);
    walk.scalar(&node.checks, node.ty, value, path);
    match value {
        Value::Object(map) => {
            for (name, of) in &node.properties {
                if let Some(value) = map.get(name) {
                    visit(walk, of, value, &child(path, name));
                }
            }
            walk.required(&node.checks, map, path);
        }
        Value::Array(items) => {
            if let Some(of) = &node.items {
                items.iter().enumerate().for_each(|(at, item)| visit(walk, of, item, &index(path, at)));
            }
        }
        _ => {}
    }
}
