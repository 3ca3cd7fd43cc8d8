//! Validation of built-in objects: what this server or its clients could not work with.

use base64::Engine as _;
use berth_apimachinery::meta::names::{data_key, dns_subdomain, qualified_name};
use berth_apimachinery::meta::{NameRule, field_error, invalid, required};
use berth_apimachinery::schema::message::unsupported;
use berth_apimachinery::schema::{ErrorKind, FieldError};
use serde_json::{Value, json};

use super::{ADMISSION, APIEXTENSIONS, EVENTS, RBAC};
use crate::resource::Resource;

/// The maximum size of all values of a Secret or ConfigMap in bytes.
const MAX_DATA: usize = 1024 * 1024;
/// The number of errors from which no further ones are looked for: the response to a hostile object must not be larger than it.
const MAX_ERRORS: usize = 200;

/// Returns the errors of a built-in object.
pub(crate) fn validate(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces") => validate_namespace(object, &mut errors),
        ("", "secrets") => validate_secret(object, old, &mut errors),
        ("", "configmaps") => validate_config_map(object, old, &mut errors),
        ("", "events") => super::event::validate(object, false, &mut errors),
        (EVENTS, "events") => {
            let mut event = object.clone();
            crate::event::to_core_group(&mut event);
            super::event::validate(&event, true, &mut errors);
        }
        ("coordination.k8s.io", "leases") => validate_lease(object, &mut errors),
        (RBAC, "roles" | "clusterroles") => validate_rules(resource.namespaced, object, &mut errors),
        (RBAC, "rolebindings" | "clusterrolebindings") => {
            validate_binding(resource.namespaced, object, old, &mut errors);
        }
        (ADMISSION, "validatingadmissionpolicies") => errors = crate::admission::validate_policy(object),
        (ADMISSION, "validatingadmissionpolicybindings") => {
            errors = crate::admission::validate_binding(object)
        }
        (APIEXTENSIONS, _) => {
            errors = crate::crd::validate(object, old);
            if old.is_none() {
                errors.extend(defines_builtin(&object["spec"]));
            }
        }
        _ => {}
    }
    errors
}

/// Returns the error of a definition of a resource that is built in. Their objects would be the same ones, and the deletion of the
/// definition would delete them all.
fn defines_builtin(spec: &Value) -> Option<FieldError> {
    let (group, plural) = (spec["group"].as_str()?, spec["names"]["plural"].as_str()?);
    let why = format!("{plural}.{group} is a built-in resource of this server: choose another group");
    super::is_builtin(group, plural).then(|| invalid("spec.group", &group.into(), &why))
}

fn is_enough(errors: &[FieldError]) -> bool {
    errors.len() >= MAX_ERRORS
}

fn validate_namespace(object: &Value, errors: &mut Vec<FieldError>) {
    const FIELD: &str = "spec.finalizers";
    for finalizer in object["spec"]["finalizers"].as_array().into_iter().flatten() {
        if is_enough(errors) {
            return;
        }
        let name = finalizer.as_str().unwrap_or_default();
        let problems = qualified_name(name);
        errors.extend(problems.iter().map(|why| invalid(FIELD, finalizer, why)));
        let standard = [super::FINALIZER, "orphan", "foregroundDeletion"].contains(&name);
        if problems.is_empty() && !name.contains('/') && !standard {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(invalid(FIELD, finalizer, why));
        }
    }
}

fn immutable(object: &Value, old: Option<&Value>, members: &[&str], errors: &mut Vec<FieldError>) {
    let Some(old) = old.filter(|old| old["immutable"] == true) else { return };
    for member in members.iter().chain(&["immutable"]) {
        if object[*member] != old[*member] {
            let why = "field is immutable when `immutable` is set";
            errors.push(berth_apimachinery::meta::forbidden(member, why));
        }
    }
}

fn data_keys(object: &Value, member: &str, errors: &mut Vec<FieldError>) -> usize {
    if !object[member].is_null() && !object[member].is_object() {
        errors.push(invalid(member, &object[member], "must be a map"));
    }
    let mut total = 0;
    for (key, value) in object[member].as_object().into_iter().flatten() {
        if is_enough(errors) {
            break;
        }
        let field = format!("{member}[{key}]");
        errors.extend(data_key(key).iter().map(|why| invalid(&field, &key.as_str().into(), why)));
        match value.as_str() {
            Some(text) => total += text.len(),
            None => {
                errors.push(field_error(ErrorKind::TypeInvalid, &field, "Invalid value: must be a string"))
            }
        }
    }
    total
}

fn validate_secret(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let total = data_keys(object, "data", errors);
    for (key, value) in object["data"].as_object().into_iter().flatten() {
        let decoded = value.as_str().map(|text| base64::engine::general_purpose::STANDARD.decode(text));
        if matches!(decoded, Some(Err(_))) && !is_enough(errors) {
            errors.push(invalid(&format!("data[{key}]"), &"<secret>".into(), "must be base64"));
        }
    }
    too_much("data", total / 4 * 3, errors);
    if old.is_some_and(|old| old["type"] != object["type"]) {
        errors.push(invalid("type", &object["type"], "field is immutable"));
    }
    immutable(object, old, &["data"], errors);
}

fn validate_config_map(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let total = data_keys(object, "data", errors) + data_keys(object, "binaryData", errors);
    for (key, _) in object["data"].as_object().into_iter().flatten() {
        if object["binaryData"].get(key).is_some() && !is_enough(errors) {
            let why = "duplicate of key present in binaryData";
            errors.push(invalid(&format!("data[{key}]"), &key.as_str().into(), why));
        }
    }
    too_much("data", total, errors);
    immutable(object, old, &["data", "binaryData"], errors);
}

fn too_much(field: &str, total: usize, errors: &mut Vec<FieldError>) {
    if total > MAX_DATA {
        let message = format!("Too long: may not be more than {MAX_DATA} bytes");
        errors.push(field_error(ErrorKind::TooLong, field, message));
    }
}

fn validate_lease(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) {
        let why = "must be greater than 0";
        errors.push(invalid("spec.leaseDurationSeconds", &spec["leaseDurationSeconds"], why));
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|count| count < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(invalid("spec.leaseTransitions", &spec["leaseTransitions"], why));
    }
}

fn validate_rules(namespaced: bool, object: &Value, errors: &mut Vec<FieldError>) {
    if !object["rules"].is_null() && !object["rules"].is_array() {
        errors.push(invalid("rules", &object["rules"], "must be a list"));
    }
    for (at, rule) in object["rules"].as_array().into_iter().flatten().enumerate() {
        if is_enough(errors) {
            return;
        }
        if rule["verbs"].as_array().is_none_or(Vec::is_empty) {
            errors.push(required(&format!("rules[{at}].verbs"), "verbs must contain at least one value"));
        }
        let lacks = |member: &str| rule[member].as_array().is_none_or(Vec::is_empty);
        if !lacks("nonResourceURLs") {
            let (field, urls) = (format!("rules[{at}].nonResourceURLs"), &rule["nonResourceURLs"]);
            if namespaced {
                errors.push(invalid(&field, urls, "namespaced rules cannot apply to non-resource URLs"));
            }
            if ["apiGroups", "resources", "resourceNames"].into_iter().any(|member| !lacks(member)) {
                errors.push(invalid(
                    &field,
                    urls,
                    "rules cannot apply to both regular resources and non-resource URLs",
                ));
            }
            continue;
        }
        for (member, what) in [("apiGroups", "api group"), ("resources", "resource")] {
            if lacks(member) {
                let why = format!("resource rules must supply at least one {what}");
                errors.push(required(&format!("rules[{at}].{member}"), &why));
            }
        }
    }
}

fn one_of(field: &str, value: &Value, supported: &[&str], errors: &mut Vec<FieldError>) {
    if !supported.contains(&value.as_str().unwrap_or_default()) {
        errors.push(unsupported(field, value, &supported.iter().map(|one| json!(one)).collect::<Vec<_>>()));
    }
}

fn validate_binding(namespaced: bool, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    let role = &object["roleRef"];
    one_of("roleRef.apiGroup", &role["apiGroup"], &[RBAC], errors);
    one_of("roleRef.kind", &role["kind"], kinds, errors);
    match role["name"].as_str().unwrap_or_default() {
        "" => errors.push(required("roleRef.name", "")),
        name => {
            let problems = NameRule::PathSegment.problems(name);
            errors.extend(problems.iter().map(|why| invalid("roleRef.name", &role["name"], why)));
        }
    }
    for (at, subject) in object["subjects"].as_array().into_iter().flatten().enumerate() {
        if is_enough(errors) {
            break;
        }
        validate_subject(&format!("subjects[{at}]"), namespaced, subject, errors);
    }
    if old.is_some_and(|old| old["roleRef"] != object["roleRef"]) {
        errors.push(invalid("roleRef", role, "cannot change roleRef"));
    }
}

fn validate_subject(field: &str, namespaced: bool, subject: &Value, errors: &mut Vec<FieldError>) {
    let text = |member: &str| subject[member].as_str().unwrap_or_default();
    let name = text("name");
    if name.is_empty() {
        errors.push(required(&format!("{field}.name"), ""));
    }
    match text("kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                let problems = dns_subdomain(name);
                errors
                    .extend(problems.iter().map(|why| invalid(&format!("{field}.name"), &name.into(), why)));
            }
            if !text("apiGroup").is_empty() {
                one_of(&format!("{field}.apiGroup"), &subject["apiGroup"], &[""], errors);
            }
            if !namespaced && text("namespace").is_empty() {
                errors.push(required(&format!("{field}.namespace"), ""));
            }
        }
        "User" | "Group" => one_of(&format!("{field}.apiGroup"), &subject["apiGroup"], &[RBAC], errors),
        _ => one_of(&format!("{field}.kind"), &subject["kind"], &["ServiceAccount", "User", "Group"], errors),
    }
}

#[cfg(test)]
mod tests;
