//! Validation of definitions: what the server could not serve, or would serve differently than declared.

use std::collections::HashSet;

use berth_apimachinery::meta::names::{dns_1035_label, dns_subdomain};
use berth_apimachinery::meta::{field_error, forbidden, invalid, required};
use berth_apimachinery::schema::message::unsupported;
use berth_apimachinery::schema::{ErrorKind, FieldError, NodeType, StructuralSchema};
use serde_json::Value;

use super::{strings, text};

/// The maximum number of selectable fields per version, as in Kubernetes.
const MAX_SELECTABLE: usize = 8;
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];

/// Returns the errors of a definition that is ready to be stored.
pub(crate) fn validate(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &crd["spec"];
    let (group, names) = (text(spec, "group"), &spec["names"]);
    if old.is_none() && text(&crd["metadata"], "name") != format!("{}.{group}", text(names, "plural")) {
        let why = "must be spec.names.plural+\".\"+spec.group";
        errors.push(invalid("metadata.name", &crd["metadata"]["name"], why));
    }
    check_group(group, &mut errors);
    one_of("spec.scope", text(spec, "scope"), &["Cluster", "Namespaced"], &mut errors);
    versions(spec, &mut errors);
    check_names(names, &mut errors);
    one_of(
        "spec.conversion.strategy",
        text(&spec["conversion"], "strategy"),
        &["None", "Webhook"],
        &mut errors,
    );
    if text(&spec["conversion"], "strategy") == "Webhook" {
        errors.push(forbidden("spec.conversion.strategy", "this server calls no webhooks"));
    }
    if spec["preserveUnknownFields"] == true {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(invalid("spec.preserveUnknownFields", &true.into(), why));
    }
    stored_versions(&crd["status"]["storedVersions"], spec, &mut errors);
    if let Some(old) = old {
        unchanged(spec, &old["spec"], &mut errors);
    }
    errors
}

fn check_group(group: &str, errors: &mut Vec<FieldError>) {
    if group.is_empty() {
        errors.push(required("spec.group", ""));
    } else if let wrong @ [_, ..] = dns_subdomain(group).as_slice() {
        errors.push(invalid("spec.group", &group.into(), &wrong.join(",")));
    } else if !group.contains('.') {
        errors.push(invalid("spec.group", &group.into(), "should be a domain with at least one dot"));
    }
}

fn one_of(field: &str, value: &str, supported: &[&str], errors: &mut Vec<FieldError>) {
    if value.is_empty() {
        errors.push(required(field, ""));
    } else if !supported.contains(&value) {
        let supported: Vec<Value> = supported.iter().map(|one| Value::from(*one)).collect();
        errors.push(unsupported(field, &value.into(), &supported));
    }
}

/// Checks a name, which may have `mixed` case.
fn check_label(field: &str, name: &str, mixed: bool, errors: &mut Vec<FieldError>) {
    let wrong = if mixed { dns_1035_label(&name.to_lowercase()) } else { dns_1035_label(name) };
    if wrong.is_empty() {
        return;
    }
    let otherwise = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
    errors.push(invalid(field, &name.into(), &format!("{otherwise}{}", wrong.join(","))));
}

fn check_names(names: &Value, errors: &mut Vec<FieldError>) {
    for (member, mixed) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        let (field, name) = (format!("spec.names.{member}"), text(names, member));
        if name.is_empty() {
            errors.push(required(&field, ""));
        } else {
            check_label(&field, name, mixed, errors);
        }
    }
    for member in ["shortNames", "categories"] {
        for (at, name) in strings(&names[member]).iter().enumerate() {
            check_label(&format!("spec.names.{member}[{at}]"), name, false, errors);
        }
    }
    let kind = text(names, "kind");
    if !kind.is_empty() && kind == text(names, "listKind") {
        errors.push(invalid("spec.names.listKind", &kind.into(), "kind and listKind may not be the same"));
    }
}

fn unchanged(spec: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    for member in ["/scope", "/names/kind", "/group", "/names/plural"] {
        let of = |spec: &Value| spec.pointer(member).cloned().unwrap_or_default();
        if of(spec) != of(old) {
            let field = format!("spec{}", member.replace('/', "."));
            errors.push(invalid(&field, &of(spec), "field is immutable"));
        }
    }
}

fn stored_versions(stored: &Value, spec: &Value, errors: &mut Vec<FieldError>) {
    const FIELD: &str = "status.storedVersions";
    let names = strings(stored);
    if names.is_empty() {
        errors.push(invalid(FIELD, stored, "must have at least one stored version"));
    }
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (at, name) in names.iter().enumerate() {
        if !versions.iter().any(|version| text(version, "name") == name) {
            let why = "objects may be stored in this version: it must remain in spec.versions";
            errors.push(invalid(&format!("{FIELD}[{at}]"), &name.as_str().into(), why));
        }
    }
}

fn versions(spec: &Value, errors: &mut Vec<FieldError>) {
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut seen = HashSet::new();
    for (at, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{at}]");
        let name = text(version, "name");
        check_label(&format!("{path}.name"), name, false, errors);
        if !seen.insert(name) {
            errors.push(invalid(&format!("{path}.name"), &name.into(), "must be unique"));
        }
        let (place, schema) =
            (format!("{path}.schema.openAPIV3Schema"), &version["schema"]["openAPIV3Schema"]);
        let parsed = if schema.is_object() {
            StructuralSchema::parse_at(&place, schema).map_err(|found| errors.extend(found)).ok()
        } else {
            errors.push(required(&place, ""));
            None
        };
        let columns = version["additionalPrinterColumns"].as_array().into_iter().flatten();
        for (at, column) in columns.enumerate() {
            check_column(column, &format!("{path}.additionalPrinterColumns[{at}]"), errors);
        }
        // The fields of a schema that is not structural are unknown.
        if let Some(schema) = parsed {
            selectable(&version["selectableFields"], &schema, &format!("{path}.selectableFields"), errors);
        }
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        errors.push(invalid("spec.versions", &spec["versions"], why));
    }
}

fn check_column(column: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if text(column, "name").is_empty() {
        errors.push(required(&format!("{path}.name"), ""));
    }
    one_of(&format!("{path}.type"), text(column, "type"), &COLUMN_TYPES, errors);
    let (field, at) = (format!("{path}.jsonPath"), text(column, "jsonPath"));
    if !at.starts_with('.') {
        errors.push(invalid(&field, &at.into(), "must be a simple json path starting with ."));
    }
}

fn selectable(fields: &Value, schema: &StructuralSchema, path: &str, errors: &mut Vec<FieldError>) {
    let fields = fields.as_array().map(Vec::as_slice).unwrap_or_default();
    for (at, field) in fields.iter().enumerate() {
        let (here, sent) = (format!("{path}[{at}].jsonPath"), text(field, "jsonPath"));
        let is_own = sent != ".metadata" && !sent.starts_with(".metadata.");
        if !matches!(schema.at_path(sent), Some(NodeType::String | NodeType::Boolean | NodeType::Integer))
            || !is_own
        {
            let why = "must point to a field of type string, boolean or integer, outside of metadata";
            errors.push(invalid(&here, &sent.into(), why));
        }
    }
    if fields.len() > MAX_SELECTABLE {
        let message = format!("Too many: {}: must have at most {MAX_SELECTABLE} items", fields.len());
        errors.push(field_error(ErrorKind::TooMany, path, message));
    }
}

#[cfg(test)]
mod tests;
