//! Field errors in the form of Kubernetes' `field.Error`, and the paths of fields.

use serde_json::Value;

use super::{ErrorKind, FieldError};

/// The maximum length of a bad value in a message: a hostile object must not be returned in full.
const MAX_SHOWN: usize = 1024;

pub fn field_error(kind: ErrorKind, field: &str, message: impl Into<String>) -> FieldError {
    FieldError { kind, field: field.to_owned(), message: message.into() }
}

pub fn required(field: &str, detail: &str) -> FieldError {
    bare(ErrorKind::Required, "Required value", field, detail)
}

pub fn forbidden(field: &str, detail: &str) -> FieldError {
    bare(ErrorKind::Forbidden, "Forbidden", field, detail)
}

pub fn internal(field: &str, detail: &str) -> FieldError {
    bare(ErrorKind::Internal, "Internal error", field, detail)
}

fn bare(kind: ErrorKind, prefix: &str, field: &str, detail: &str) -> FieldError {
    let message = if detail.is_empty() { prefix.to_owned() } else { format!("{prefix}: {detail}") };
    field_error(kind, field, message)
}

pub fn invalid(field: &str, value: &Value, detail: &str) -> FieldError {
    with_value(ErrorKind::Invalid, "Invalid value", field, value, detail)
}

pub fn duplicate(field: &str, value: &Value) -> FieldError {
    with_value(ErrorKind::Duplicate, "Duplicate value", field, value, "")
}

fn with_value(kind: ErrorKind, prefix: &str, field: &str, value: &Value, detail: &str) -> FieldError {
    let mut message = format!("{prefix}: {}", show(value));
    if !detail.is_empty() {
        message.push_str(": ");
        message.push_str(detail);
    }
    field_error(kind, field, message)
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
pub fn unsupported(field: &str, value: &Value, allowed: &[Value]) -> FieldError {
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

/// Builds a sentence of kube-openapi's validators: it begins with the field's name and location.
pub(crate) fn in_body(field: &str, rest: &str) -> String {
    format!("{field} in body {rest}")
}

/// Builds an error of a combinator. kube-openapi loses the field here, and Kubernetes then prints `<nil>`.
pub(crate) fn composite(text: String) -> FieldError {
    FieldError {
        kind: ErrorKind::Invalid,
        field: "<nil>".to_owned(),
        message: format!("Invalid value: \"\": {text}"),
    }
}

/// Returns a value as text, shortened if it is long.
fn show(value: &Value) -> String {
    match value {
        Value::String(text) => quote(text),
        other => shorten(&other.to_string()),
    }
}

/// Returns a bound of a schema as text: `2`, `1.5`.
pub(crate) fn number(value: f64) -> String {
    super::whole(value).map_or_else(|| value.to_string(), |whole| whole.to_string())
}

/// Returns a text in quotes, shortened if it is long.
pub fn quote(text: &str) -> String {
    Value::from(shorten(text)).to_string()
}

/// Returns the beginning of a long text.
fn shorten(text: &str) -> String {
    if text.len() <= MAX_SHOWN {
        return text.to_owned();
    }
    let mut end = MAX_SHOWN;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}

/// Returns `parent.child`, or just the child at the root.
pub fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

pub fn index(parent: &str, at: usize) -> String {
    format!("{parent}[{at}]")
}

/// Returns `parent[key]`.
pub fn key(parent: &str, name: &str) -> String {
    format!("{parent}[{name}]")
}
