//! Equality of values.

use std::fmt::Write as _;

use serde_json::Value;

use super::message::quote;
use super::whole;

/// Returns the same text for equal values: keys sorted, numbers by value.
pub(crate) fn canonical(value: &Value) -> String {
    let mut text = String::new();
    push_canonical(value, &mut text);
    text
}

/// Appends the text that [`canonical`] returns.
pub(super) fn push_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> =
                map.iter().map(|(k, v)| format!("{}:{}", quote(k), canonical(v))).collect();
            members.sort();
            *text += &format!("{{{}}}", members.join(","));
        }
        Value::Array(items) => {
            *text += &format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(","));
        }
        Value::Number(n) if n.is_f64() => {
            *text += &n.as_f64().and_then(whole).unwrap_or_else(|| n.clone()).to_string();
        }
        // Writing into a String cannot fail.
        other => drop(write!(text, "{other}")),
    }
}

/// Whether two values are equal; `1` and `1.0` are.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            x == y || (x.as_f64() == y.as_f64() && (x.is_f64() || y.is_f64()))
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            // Nearly always both have the same order, which saves the search by name.
            let mut in_order = x.iter().zip(y);
            x.len() == y.len()
                && in_order.all(|((name, v), (other, w))| {
                    let w = if name == other { Some(w) } else { y.get(name) };
                    w.is_some_and(|w| equal(v, w))
                })
        }
        _ => a == b,
    }
}

/// Whether two objects have the same members, compared by `same`, except for those named.
pub fn equal_but(a: &Value, b: &Value, names: &[&str], same: impl Fn(&Value, &Value) -> bool) -> bool {
    let others = |object: &Value| {
        object
            .as_object()
            .map_or(0, |members| members.keys().filter(|k| !names.contains(&k.as_str())).count())
    };
    let mut members = a.as_object().into_iter().flatten().filter(|(name, _)| !names.contains(&name.as_str()));
    others(a) == others(b) && members.all(|(name, v)| b.get(name).is_some_and(|w| same(v, w)))
}
