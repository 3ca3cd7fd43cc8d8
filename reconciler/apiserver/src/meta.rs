//! `metadata`: what clients may set, what the server sets, and the syntax of names, labels and annotations.

use serde_json::{Map, Value};

use crate::schema::{ErrorKind, FieldError};

/// Bytes all annotations of an object may have together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

pub(crate) fn field_error(kind: ErrorKind, field: &str, message: impl Into<String>) -> FieldError {
    FieldError { kind, field: field.into(), message: message.into() }
}

pub(crate) fn invalid(field: &str, value: &Value, why: &str) -> FieldError {
    field_error(ErrorKind::Invalid, field, format!("Invalid value: {value}: {why}"))
}

pub(crate) fn required(field: &str, why: &str) -> FieldError {
    let message = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
    field_error(ErrorKind::Required, field, message)
}

pub(crate) fn forbidden(field: &str, why: &str) -> FieldError {
    field_error(ErrorKind::Forbidden, field, format!("Forbidden: {why}"))
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
    end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

pub(crate) fn is_dns_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|b| inner(*b) || *b == b'-')
        && bytes.first().is_some_and(|b| inner(*b))
        && bytes.last().is_some_and(|b| inner(*b))
}

/// Unlike in DNS, the parts may be longer than 63: Kubernetes checks the whole only.
pub(crate) fn is_dns_subdomain(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.iter().all(|b| inner(*b) || *b == b'-')
            && bytes.first().is_some_and(|b| inner(*b))
            && bytes.last().is_some_and(|b| inner(*b))
    };
    name.len() <= 253 && name.split('.').all(part)
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}

/// A label or annotation key: an optional DNS prefix and a name.
pub(crate) fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name_part(name),
        None => is_name_part(key),
    }
}

pub(crate) fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_name_part(value)
}

/// How names of a kind must look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRule {
    Subdomain,
    Label,
    /// RBAC names: anything that is one path segment.
    PathSegment,
}

impl NameRule {
    fn problem(self, name: &str) -> Option<&'static str> {
        let too_long = name.len() > if self == Self::Label { 63 } else { 253 };
        match self {
            Self::Subdomain if is_dns_subdomain(name) => None,
            Self::Subdomain if too_long => Some("must be no more than 253 characters"),
            Self::Subdomain => Some(SUBDOMAIN),
            Self::Label if is_dns_label(name) => None,
            Self::Label if too_long => Some("must be no more than 63 characters"),
            Self::Label => Some(LABEL),
            Self::PathSegment if name == "." || name == ".." => Some("may not be '.' or '..'"),
            Self::PathSegment if name.contains(['/', '%']) => Some("may not contain '/' or '%'"),
            Self::PathSegment => None,
        }
    }
}

/// Checks `metadata` of an object that is to be stored; the server-set members are already in place.
pub(crate) fn validate(metadata: &Value, rule: NameRule, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = metadata["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        errors.push(required("metadata.name", "name or generateName is required"));
    } else if old.is_none()
        && let Some(why) = rule.problem(name)
    {
        errors.push(invalid("metadata.name", &metadata["name"], why));
    }
    labels(&metadata["labels"], &mut errors);
    annotations(&metadata["annotations"], &mut errors);
    owners(&metadata["ownerReferences"], &mut errors);
    finalizers(metadata, old, &mut errors);
    errors
}

/// Refuses metadata of the wrong JSON types, which everything after relies on.
pub(crate) fn well_formed(object: &Value) -> Result<(), String> {
    let Some(map) = object.as_object() else { return Err("the body is not a JSON object".into()) };
    for name in ["apiVersion", "kind"] {
        if map.get(name).is_some_and(|v| !v.is_string()) {
            return Err(format!("{name} is not a string"));
        }
    }
    let Some(metadata) = map.get("metadata").filter(|m| !m.is_null()) else { return Ok(()) };
    let Some(metadata) = metadata.as_object() else { return Err("metadata is not an object".into()) };
    for (name, value) in metadata.iter().filter(|(_, value)| !value.is_null()) {
        let fits = match name.as_str() {
            "name" | "generateName" | "namespace" | "uid" | "resourceVersion" | "selfLink" => {
                value.is_string()
            }
            "creationTimestamp" | "deletionTimestamp" => is_time(value),
            "generation" | "deletionGracePeriodSeconds" => value.is_i64(),
            "labels" | "annotations" => value.as_object().is_some_and(|m| m.values().all(Value::is_string)),
            "finalizers" => value.as_array().is_some_and(|a| a.iter().all(Value::is_string)),
            "ownerReferences" => value.as_array().is_some_and(|a| a.iter().all(is_owner)),
            "managedFields" => value.as_array().is_some_and(|a| a.iter().all(Value::is_object)),
            _ => true,
        };
        if !fits {
            return Err(format!("metadata.{name} has the wrong type or form"));
        }
    }
    Ok(())
}

fn is_time(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok())
}

fn is_owner(owner: &Value) -> bool {
    let text = |name: &str| owner.get(name).is_none_or(|v| v.is_null() || v.is_string());
    let flag = |name: &str| owner.get(name).is_none_or(|v| v.is_null() || v.is_boolean());
    owner.is_object()
        && ["apiVersion", "kind", "name", "uid"].into_iter().all(text)
        && ["controller", "blockOwnerDeletion"].into_iter().all(flag)
}

fn labels(labels: &Value, errors: &mut Vec<FieldError>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        if !is_qualified_name(key) {
            errors.push(invalid("metadata.labels", &key.as_str().into(), QUALIFIED));
        }
        if !value.as_str().is_some_and(is_label_value) {
            let long = value.as_str().is_some_and(|v| v.len() > 63);
            let why = if long { "must be no more than 63 bytes" } else { LABEL_VALUE };
            errors.push(invalid("metadata.labels", value, why));
        }
    }
}

fn annotations(annotations: &Value, errors: &mut Vec<FieldError>) {
    let mut total = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        if !is_qualified_name(&key.to_ascii_lowercase()) {
            errors.push(invalid("metadata.annotations", &key.as_str().into(), QUALIFIED));
        }
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > MAX_ANNOTATIONS {
        let message = format!("Too long: may not be more than {MAX_ANNOTATIONS} bytes");
        errors.push(field_error(ErrorKind::TooLong, "metadata.annotations", message));
    }
}

fn owners(owners: &Value, errors: &mut Vec<FieldError>) {
    let mut controllers = 0;
    for (at, owner) in owners.as_array().into_iter().flatten().enumerate() {
        for member in ["apiVersion", "kind", "name", "uid"] {
            if owner[member].as_str().is_none_or(str::is_empty) {
                let field = format!("metadata.ownerReferences[{at}].{member}");
                errors.push(field_error(
                    ErrorKind::Invalid,
                    &field,
                    format!("Invalid value: \"\": {member} must not be empty"),
                ));
            }
        }
        if owner["kind"] == "Event" && owner["apiVersion"] == "v1" {
            errors.push(invalid(
                "metadata.ownerReferences",
                owner,
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        controllers += usize::from(owner["controller"] == true);
    }
    if controllers > 1 {
        let why = "Only one reference can have Controller set to true";
        errors.push(invalid("metadata.ownerReferences", owners, why));
    }
}

fn finalizers(metadata: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let list = |m: &Value| -> Vec<String> {
        m["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|f| f.as_str().map(str::to_owned))
            .collect()
    };
    let now = list(metadata);
    for finalizer in &now {
        if !is_qualified_name(finalizer) {
            errors.push(invalid("metadata.finalizers", &finalizer.as_str().into(), QUALIFIED));
        }
    }
    let Some(old) = old.filter(|old| !old["deletionTimestamp"].is_null()) else { return };
    let before = list(old);
    if now.iter().any(|finalizer| !before.contains(finalizer)) {
        let why = "no new finalizers can be added if the object is being deleted";
        errors.push(forbidden("metadata.finalizers", why));
    }
}

/// The object's `metadata`, made if missing. Assumptions: `object` passed [`well_formed`].
pub(crate) fn of(object: &mut Value) -> &mut Map<String, Value> {
    let metadata = &mut object["metadata"];
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("made an object just above")
}

/// Copies what clients cannot change from the stored object.
pub(crate) fn keep_system_fields(object: &mut Value, live: &Value) {
    let metadata = of(object);
    let kept = [
        "name",
        "namespace",
        "generateName",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ];
    for name in kept {
        match live["metadata"].get(name) {
            Some(value) => metadata.insert(name.into(), value.clone()),
            None => metadata.shift_remove(name),
        };
    }
    metadata.shift_remove("resourceVersion");
}

/// Drops empty and null members, as Kubernetes' types do when they are encoded.
pub(crate) fn tidy(object: &mut Value) {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    of(object).retain(|_, value| !empty(value));
}

/// Whether anything but `metadata` and, if it is a subresource, `status` differs.
pub(crate) fn spec_changed(old: &Value, new: &Value, status_apart: bool) -> bool {
    let relevant = |name: &str| name != "metadata" && !(status_apart && name == "status");
    let of = |value: &'_ Value| -> Map<String, Value> {
        let members = value.as_object().into_iter().flatten();
        members.filter(|(name, _)| relevant(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
    };
    of(old) != of(new)
}

/// Whether two objects say the same, not counting when managers last wrote and the revision.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    let plain = |object: &Value| {
        let mut object = object.clone();
        let metadata = of(&mut object);
        metadata.shift_remove("resourceVersion");
        for entry in metadata.get_mut("managedFields").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(entry) = entry.as_object_mut() {
                entry.shift_remove("time");
            }
        }
        object
    };
    plain(a) == plain(b)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_dns_subdomains() {
        assert!(
            is_dns_subdomain("a") && is_dns_subdomain("web-1.example") && is_dns_subdomain(&"a".repeat(253))
        );
        for bad in ["", "A", "-a", "a-", "a..b", "a_b", "ä", ".a"] {
            assert!(!is_dns_subdomain(bad), "{bad}");
        }
        assert!(
            is_qualified_name("example.com/My_Name.x")
                && !is_qualified_name("a/b/c")
                && !is_qualified_name("/b")
        );
    }

    #[test]
    fn finalizers_cannot_be_added_to_what_is_being_deleted() {
        let old =
            json!({"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/a", "x/b"]});
        let fewer = json!({"name": "a", "finalizers": ["x/b"]});
        let more = json!({"name": "a", "finalizers": ["x/b", "x/c"]});
        assert!(validate(&fewer, NameRule::Subdomain, Some(&old)).is_empty());
        assert_eq!(validate(&more, NameRule::Subdomain, Some(&old))[0].field, "metadata.finalizers");
    }

    #[test]
    fn managers_writing_again_at_another_time_change_nothing() {
        let at = |time: &str| json!({"metadata": {"managedFields": [{"manager": "m", "time": time}]}});
        assert!(same(&at("2026-01-01T00:00:00Z"), &at("2026-01-02T00:00:00Z")));
    }
}
