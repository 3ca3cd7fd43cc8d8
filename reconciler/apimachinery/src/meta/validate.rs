//! Validation of the `metadata` of an object before it is stored.

use std::collections::HashSet;

use serde_json::Value;

use super::names::{NameRule, label_value, qualified_name};
use super::{field_error, forbidden, invalid, required};
use crate::schema::{ErrorKind, FieldError};

/// The maximum total size of all annotations of an object in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// The number of errors from which no further ones are looked for: the response to a hostile object must not be larger than it.
const MAX_ERRORS: usize = 200;
/// The finalizers that decide about dependents; only one of them may be set.
const PROPAGATION: [&str; 2] = ["orphan", "foregroundDeletion"];

/// Validates `metadata` of an object before it is stored; the fields set by the server are already present.
pub fn validate(metadata: &Value, rule: NameRule, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.is_none() {
        name(metadata, rule, &mut errors);
    }
    labels(&metadata["labels"], &mut errors);
    annotations(&metadata["annotations"], &mut errors);
    owners(&metadata["ownerReferences"], &mut errors);
    finalizers(metadata, old, &mut errors);
    errors
}

fn text<'a>(of: &'a Value, member: &str) -> &'a str {
    of[member].as_str().unwrap_or_default()
}

fn is_enough(errors: &[FieldError]) -> bool {
    errors.len() >= MAX_ERRORS
}

fn all_invalid(field: &str, value: &str, problems: &[String], errors: &mut Vec<FieldError>) {
    errors.extend(problems.iter().map(|why| invalid(field, &value.into(), why)));
}

fn name(metadata: &Value, rule: NameRule, errors: &mut Vec<FieldError>) {
    let prefix = text(metadata, "generateName");
    if !prefix.is_empty() {
        all_invalid("metadata.generateName", prefix, &rule.problems_of_prefix(prefix), errors);
    }
    match text(metadata, "name") {
        "" => errors.push(required("metadata.name", "name or generateName is required")),
        name => all_invalid("metadata.name", name, &rule.problems(name), errors),
    }
}

fn labels(labels: &Value, errors: &mut Vec<FieldError>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        if is_enough(errors) {
            return;
        }
        let value = value.as_str().unwrap_or_default();
        all_invalid("metadata.labels", key, &qualified_name(key), errors);
        all_invalid("metadata.labels", value, &label_value(value), errors);
    }
}

fn annotations(annotations: &Value, errors: &mut Vec<FieldError>) {
    let mut total = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        if !is_enough(errors) {
            // Unlike in labels, the prefix may contain capitals.
            all_invalid("metadata.annotations", key, &qualified_name(&key.to_ascii_lowercase()), errors);
        }
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > MAX_ANNOTATIONS {
        let message = format!("Too long: may not be more than {MAX_ANNOTATIONS} bytes");
        errors.push(field_error(ErrorKind::TooLong, "metadata.annotations", message));
    }
}

fn owners(owners: &Value, errors: &mut Vec<FieldError>) {
    const FIELD: &str = "metadata.ownerReferences";
    for owner in owners.as_array().into_iter().flatten() {
        if is_enough(errors) {
            return;
        }
        let api_version = text(owner, "apiVersion");
        let has_version = !api_version.ends_with('/') && matches!(api_version.split('/').count(), 1 | 2);
        if api_version.is_empty() || !has_version {
            let field = format!("{FIELD}.apiVersion");
            errors.push(invalid(&field, &api_version.into(), "version must not be empty"));
        }
        for member in ["kind", "name", "uid"] {
            if text(owner, member).is_empty() {
                errors.push(invalid(&format!("{FIELD}.{member}"), &"".into(), "must not be empty"));
            }
        }
        if owner["kind"] == "Event" && api_version == "v1" {
            errors.push(invalid(FIELD, &"Event".into(), "an Event cannot be an owner"));
        }
    }
    let controllers = owners.as_array().into_iter().flatten().filter(|owner| owner["controller"] == true);
    let names: Vec<&str> = controllers.map(|owner| text(owner, "name")).collect();
    if names.len() > 1 {
        let why = "only one reference can have controller set to true";
        errors.push(invalid(FIELD, &names.join(", ").into(), why));
    }
}

fn finalizers(metadata: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    const FIELD: &str = "metadata.finalizers";
    fn list(metadata: &Value) -> Vec<&str> {
        metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }
    let now = list(metadata);
    for finalizer in &now {
        if is_enough(errors) {
            break;
        }
        all_invalid(FIELD, finalizer, &qualified_name(finalizer), errors);
    }
    if PROPAGATION.iter().all(|one| now.contains(one)) {
        let why = format!("finalizer {} and {} cannot be both set", PROPAGATION[0], PROPAGATION[1]);
        errors.push(invalid(FIELD, &metadata["finalizers"], &why));
    }
    let Some(old) = old.filter(|old| !old["deletionTimestamp"].is_null()) else { return };
    let before: HashSet<&str> = list(old).into_iter().collect();
    let added: Vec<&str> = now.into_iter().filter(|finalizer| !before.contains(finalizer)).collect();
    if !added.is_empty() {
        let added = added.join(", ");
        let why = format!("no new finalizers can be added if the object is being deleted, found {added}");
        errors.push(forbidden(FIELD, &why));
    }
}

#[cfg(test)]
mod tests;
