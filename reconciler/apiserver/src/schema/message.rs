//! How Kubernetes words field errors: the body of `field.Error` and the sentences of kube-openapi's
//! validators.

use serde_json::Value;

use super::{ErrorKind, FieldError};

/// Powers of ten that Go prints without an exponent.
const SHORT_EXPONENTS: std::ops::Range<i32> = -4..6;

/// Longest rendering of a bad value in a message: a hostile object must not come back in full.
const MAX_SHOWN: usize = 1024;

pub(crate) fn required(field: &str, detail: &str) -> FieldError {
    bare(ErrorKind::Required, "Required value", field, detail)
}

pub(crate) fn forbidden(field: &str, detail: &str) -> FieldError {
    bare(ErrorKind::Forbidden, "Forbidden", field, detail)
}

pub(crate) fn internal(field: &str, detail: &str) -> FieldError {
    bare(ErrorKind::Internal, "Internal error", field, detail)
}

fn bare(kind: ErrorKind, prefix: &str, field: &str, detail: &str) -> FieldError {
    let message = if detail.is_empty() { prefix.to_owned() } else { format!("{prefix}: {detail}") };
    FieldError { kind, field: field.to_owned(), message }
}

pub(crate) fn invalid(field: &str, value: &Value, detail: &str) -> FieldError {
    with_value(ErrorKind::Invalid, "Invalid value", field, value, detail)
}

pub(crate) fn duplicate(field: &str, value: &Value) -> FieldError {
    with_value(ErrorKind::Duplicate, "Duplicate value", field, value, "")
}

fn with_value(kind: ErrorKind, prefix: &str, field: &str, value: &Value, detail: &str) -> FieldError {
    let mut message = format!("{prefix}: {}", show(value));
    if !detail.is_empty() {
        message.push_str(": ");
        message.push_str(detail);
    }
    FieldError { kind, field: field.to_owned(), message }
}

/// `spec.x in body must be of type integer: "string"`.
pub(crate) fn wrong_type(field: &str, expected: &str, got: &str) -> FieldError {
    FieldError {
        kind: ErrorKind::TypeInvalid,
        field: field.to_owned(),
        message: format!(
            "Invalid value: {}: {}",
            quote(got),
            in_body(field, &format!("must be of type {expected}: {}", quote(got)))
        ),
    }
}

/// `Unsupported value: "x": supported values: "a", "b"`.
pub(crate) fn unsupported(field: &str, value: &Value, allowed: &[Value]) -> FieldError {
    let shown: Vec<String> = allowed
        .iter()
        .map(|v| match v {
            Value::String(s) => quote(s),
            other => quote(&other.to_string()),
        })
        .collect();
    with_value(
        ErrorKind::NotSupported,
        "Unsupported value",
        field,
        value,
        &format!("supported values: {}", shown.join(", ")),
    )
}

pub(crate) fn too_long(field: &str, max: u64) -> FieldError {
    bare(ErrorKind::TooLong, "Too long", field, &format!("may not be more than {max} bytes"))
}

pub(crate) fn too_many(field: &str, actual: usize, max: u64, noun: &str) -> FieldError {
    let noun = if max == 1 { noun.strip_suffix('s').unwrap_or(noun) } else { noun };
    bare(ErrorKind::TooMany, "Too many", field, &format!("{actual}: must have at most {max} {noun}"))
}

/// kube-openapi's sentences begin with the field's name and place.
pub(crate) fn in_body(field: &str, rest: &str) -> String {
    format!("{field} in body {rest}")
}

/// An error of a combinator. kube-openapi loses the field here, and Kubernetes then prints `<nil>`.
pub(crate) fn composite(text: String) -> FieldError {
    FieldError {
        kind: ErrorKind::Invalid,
        field: "<nil>".to_owned(),
        message: format!("Invalid value: \"\": {text}"),
    }
}

pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        Value::Number(n) => number(n.as_f64().unwrap_or_default(), Some(n)),
        other => shorten(&other.to_string()),
    }
}

/// A number as Go prints it with `%v`: `2`, `1.5`, `1e+06`.
pub(crate) fn number(value: f64, exact: Option<&serde_json::Number>) -> String {
    if let Some(n) = exact.filter(|n| n.is_i64() || n.is_u64()) {
        return n.to_string();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if !SHORT_EXPONENTS.contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{value}"),
    }
}

/// A Go-quoted string.
pub(crate) fn quote(text: &str) -> String {
    let text = shorten(text);
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() && u32::from(c) < 0x80 => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// JSON as Go encodes it: members sorted, and what HTML would take for its own escaped.
pub(crate) fn go_json(value: &Value) -> String {
    escaped(&sorted(value))
}

fn escaped(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> =
                members.iter().map(|(name, value)| (name.clone(), sorted(value))).collect();
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(members.into_iter().collect())
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// The members of metadata, and of its parts, as Go's types have them.
const METADATA: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];
const MANAGER: &[&str] =
    &["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"];
const OWNER: &[&str] = &["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];

/// Like [`go_json`] of an object of a built-in kind that a patch made: what the patch did not touch of its metadata is as
/// Go's types have it.
pub(crate) fn go_json_patched(object: &Value, metadata_touched: bool) -> String {
    let mut object = sorted(object);
    if let Some(metadata) = object.get_mut("metadata") {
        for (member, order) in [("managedFields", MANAGER), ("ownerReferences", OWNER)] {
            let items = metadata.get_mut(member).and_then(Value::as_array_mut).into_iter().flatten();
            items.for_each(|item| in_order(item, order));
        }
        if !metadata_touched {
            in_order(metadata, METADATA);
        }
    }
    escaped(&object)
}

fn in_order(value: &mut Value, order: &[&str]) {
    let Some(members) = value.as_object_mut() else { return };
    let place = |name: &str| order.iter().position(|one| *one == name).unwrap_or(order.len());
    let mut all: Vec<_> = std::mem::take(members).into_iter().collect();
    all.sort_by_key(|(name, _)| place(name));
    members.extend(all);
}

/// A value as Go prints it with `%v`: `map[a:1 b:[x y]]`.
pub(crate) fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(_) => value.to_string(),
        Value::Number(n) => number(n.as_f64().unwrap_or_default(), Some(n)),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" ")),
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            let members = members.into_iter().map(|(name, value)| format!("{name}:{}", go_value(value)));
            format!("map[{}]", members.collect::<Vec<_>>().join(" "))
        }
    }
}

/// What Go's JSON library calls a value.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The Go type of a decoded JSON value.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The beginning of a long text.
pub(crate) fn shorten(text: &str) -> String {
    if text.len() <= MAX_SHOWN {
        return text.to_owned();
    }
    let mut end = MAX_SHOWN;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}

/// `parent.child`, or just the child at the root.
pub(crate) fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

pub(crate) fn index(parent: &str, at: usize) -> String {
    format!("{parent}[{at}]")
}

/// `parent[key]`.
pub(crate) fn key(parent: &str, name: &str) -> String {
    format!("{parent}[{name}]")
}
