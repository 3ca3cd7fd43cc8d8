//! Checks of a single value: bounds, patterns and formats.

use serde_json::{Map, Value};

use super::equality::equal;
use super::message::{child, in_body, invalid, number, quote, required, too_long, too_many, unsupported};
use super::node::{Checks, Node, Type};
use super::{ErrorKind, FieldError, formats};

/// The maximum number of errors reported for one object; the response to a hostile object must not be larger
/// than the object.
pub(super) const MAX_ERRORS: usize = 200;

pub(super) struct Walk {
    pub(super) errors: Vec<FieldError>,
}

impl Walk {
    pub(super) fn push(&mut self, error: FieldError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    /// Runs the checks that need neither type nor structure.
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
        if ty == Some(Type::Integer)
            && checks.format.as_deref() == Some("int32")
            && i32::try_from(n as i64).is_err()
        {
            self.push(invalid(path, value, "Checked value must be integer with format int32 in body"));
        }
        if let Some(of) = checks.multiple_of.filter(|of| *of > 0.0 && !is_multiple(n, *of)) {
            self.push(invalid(
                path,
                value,
                &in_body(path, &format!("should be a multiple of {}", number(of))),
            ));
        }
        if let Some(max) = checks.maximum
            && (n > max || (checks.exclusive_maximum && n >= max))
        {
            let or_equal = if checks.exclusive_maximum { "" } else { " or equal to" };
            self.push(invalid(
                path,
                value,
                &in_body(path, &format!("should be less than{or_equal} {}", number(max))),
            ));
        }
        if let Some(min) = checks.minimum
            && (n < min || (checks.exclusive_minimum && n <= min))
        {
            let or_equal = if checks.exclusive_minimum { "" } else { " or equal to" };
            self.push(invalid(
                path,
                value,
                &in_body(path, &format!("should be greater than{or_equal} {}", number(min))),
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

/// Floats beyond this cannot represent every integer.
const MAX_WHOLE: f64 = 9_007_199_254_740_991.0;

pub(super) fn is_integer(value: &Value) -> bool {
    let whole = |n: f64| n.fract() == 0.0 && n.abs() <= MAX_WHOLE;
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(whole)
}
