//! The types of an object's fields, checked before any step relies on them. Values and structure are
//! validated later, when the object is complete.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::StructuralSchema;
use super::message::{child, index};
use super::node::{Node, Type};
use crate::time::Precision;

impl StructuralSchema {
    /// Checks that each field of `value`, which is at `path`, has the type that the schema declares. Null
    /// counts as absent, and unknown fields are skipped.
    ///
    /// # Errors
    /// The first field of another type: `spec.leaseDurationSeconds must be a whole number of 32 bits`.
    pub fn check_types(&self, path: &str, value: &Value) -> Result<(), String> {
        check(&self.root, "", path, value)
    }

    /// Rewrites all times in UTC and with the precision of their field.
    pub fn normalize_times(&self, object: &mut Value) {
        normalize(&self.root, "", object);
    }
}

fn check(node: &Node, name: &str, path: &str, value: &Value) -> Result<(), String> {
    let fits = match (node.ty, value) {
        (None, _) | (_, Value::Null) => true,
        (Some(Type::Object), Value::Object(members)) => {
            return members.iter().try_for_each(|(name, value)| match node.member(name) {
                Some(of) => check(of, name, &child(path, name), value),
                None => Ok(()),
            });
        }
        (Some(Type::Array), Value::Array(items)) => {
            let Some(of) = node.items.as_deref() else { return Ok(()) };
            return items
                .iter()
                .enumerate()
                .try_for_each(|(at, item)| check(of, name, &index(path, at), item));
        }
        (Some(Type::String), Value::String(text)) => match node.checks.format.as_deref() {
            Some("byte") => is_base64(text),
            Some("date-time") => Precision::of(name).parse(text).is_some(),
            _ => true,
        },
        (Some(Type::Integer), Value::Number(number)) => match node.checks.format.as_deref() {
            Some("int32") => number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            _ => number.is_i64(),
        },
        _ => super::checks::type_fits(node, value),
    };
    if fits { Ok(()) } else { Err(format!("{path} must be {}", expected(node, name))) }
}

fn expected(node: &Node, name: &str) -> &'static str {
    match (node.ty, node.checks.format.as_deref()) {
        (Some(Type::Object), _) => "an object",
        (Some(Type::Array), _) => "a list",
        (Some(Type::String), Some("byte")) => "text in base64",
        (Some(Type::String), Some("date-time")) => match Precision::of(name) {
            Precision::Seconds => "a time such as 2006-01-02T15:04:05Z",
            Precision::Micros => "a time such as 2006-01-02T15:04:05.000000Z",
        },
        (Some(Type::Integer), Some("int32")) => "a whole number of 32 bits",
        (Some(Type::Integer), _) => "a whole number of 64 bits",
        (Some(Type::Number), _) => "a number",
        (Some(Type::Boolean), _) => "true or false",
        (Some(Type::String) | None, _) => "a string",
    }
}

/// Whether a text is Base64; line breaks are skipped, as by Go's decoder.
fn is_base64(text: &str) -> bool {
    if text.contains(['\r', '\n']) {
        return STANDARD.decode(text.replace(['\r', '\n'], "")).is_ok();
    }
    STANDARD.decode(text).is_ok()
}

fn normalize(node: &Node, name: &str, value: &mut Value) {
    match value {
        Value::String(text) if node.checks.format.as_deref() == Some("date-time") => {
            let precision = Precision::of(name);
            if let Some(at) = precision.parse(text) {
                *text = precision.format(at);
            }
        }
        Value::Array(items) => {
            let Some(of) = node.items.as_deref() else { return };
            items.iter_mut().for_each(|item| normalize(of, name, item));
        }
        Value::Object(members) => {
            for (name, value) in members {
                if let Some(of) = node.properties.get(name) {
                    normalize(of, name, value);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
