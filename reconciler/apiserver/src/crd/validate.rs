//! What makes a definition unfit to be served, in the words of kube-apiserver.
//!
//! What all versions have in common kube-apiserver moves out of them before it looks: their errors are at `spec.validation` and
//! the like, those of versions that differ at `spec.versions[1].schema`.

use std::collections::HashSet;

use serde_json::Value;

use super::{strings, text};
use crate::meta::names::{dns_1035_label, dns_subdomain};
use crate::meta::{field_error, forbidden, invalid, required};
use crate::schema::{ErrorKind, FieldError, NodeType, StructuralSchema};

/// Fields one version may make selectable, as in Kubernetes.
const MAX_SELECTABLE: usize = 8;
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 9] =
    ["binary", "byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

/// What is wrong with a definition that is ready to be stored.
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
        let supported: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
        let message = format!("Unsupported value: {value:?}: supported values: {}", supported.join(", "));
        errors.push(field_error(ErrorKind::NotSupported, field, message));
    }
}

/// A name that may have `mixed` case.
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
        let none = if stored.is_array() { &Value::Null } else { stored };
        errors.push(invalid(FIELD, none, "must have at least one stored version"));
        return;
    }
    let versions = || spec["versions"].as_array().into_iter().flatten();
    for version in versions().filter(|version| version["storage"] == true) {
        let name = text(version, "name");
        if !names.iter().any(|stored| stored == name) {
            errors.push(invalid(FIELD, stored, &format!("must have the storage version {name}")));
        }
    }
    for (at, name) in names.iter().enumerate() {
        if !versions().any(|version| text(version, "name") == name) {
            let why = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until \
                 a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.push(invalid(&format!("{FIELD}[{at}]"), &name.as_str().into(), &why));
        }
    }
}

fn versions(spec: &Value, errors: &mut Vec<FieldError>) {
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut seen = HashSet::new();
    let mut unique = true;
    for (at, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{at}]");
        let name = text(version, "name");
        unique &= seen.insert(name);
        check_label(&format!("{path}.name"), name, false, errors);
        if !version["schema"]["openAPIV3Schema"].is_object() {
            errors.push(required(&format!("{path}.schema.openAPIV3Schema"), ""));
        }
        deprecation(version, &path, errors);
    }
    let told = &spec["versions"];
    if !unique {
        errors.push(invalid("spec.versions", told, "must contain unique version names"));
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        errors.push(invalid("spec.versions", told, why));
    }
    each(versions, "schema", "spec.validation", &mut |_, schema, path| check_schema(schema, path, errors));
    each(versions, "subresources", "spec.subresources", &mut |_, sides, path| {
        subresources(sides, path, errors)
    });
    each(versions, "additionalPrinterColumns", "spec.additionalPrinterColumns", &mut |_, columns, path| {
        for (at, column) in columns.as_array().into_iter().flatten().enumerate() {
            check_column(column, &format!("{path}[{at}]"), errors);
        }
    });
    each(versions, "selectableFields", "spec.selectableFields", &mut |version, fields, path| {
        selectable(fields, &version["schema"]["openAPIV3Schema"], path, errors);
    });
}

/// Looks once at a member that all versions have alike, else at that of each version that has it.
fn each(versions: &[Value], member: &str, common: &str, look: &mut dyn FnMut(&Value, &Value, &str)) {
    let Some(first) = versions.first() else { return };
    if versions.iter().all(|version| version[member] == first[member]) {
        if !first[member].is_null() {
            look(first, &first[member], common);
        }
        return;
    }
    for (at, version) in versions.iter().enumerate().filter(|(_, version)| !version[member].is_null()) {
        look(version, &version[member], &format!("spec.versions[{at}].{member}"));
    }
}

fn deprecation(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let mut tell = |why: &str| {
        errors.push(invalid(&format!("{path}.deprecationWarning"), &warning.into(), why));
    };
    if version["deprecated"] != true {
        return tell("can only be set for deprecated versions");
    }
    if warning.len() > 256 {
        tell("must be <= 256 characters long");
    }
    if warning.is_empty() {
        tell("must not be an empty string");
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, letter)| letter.is_control()) {
        let why = "must only contain printable UTF-8 characters; non-printable character found at index";
        tell(&format!("{why} {at}"));
    }
}

fn check_schema(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let schema = &schema["openAPIV3Schema"];
    if schema.is_object()
        && let Err(found) = StructuralSchema::parse_at(&format!("{path}.openAPIV3Schema"), schema)
    {
        errors.extend(found);
    }
}

fn subresources(sides: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let scale = &sides["scale"];
    if !scale.is_object() {
        return;
    }
    for (member, below, needed, why) in [
        ("specReplicasPath", &[".spec."] as &[&str], true, "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], true, "should be a json path under .status"),
        (
            "labelSelectorPath",
            &[".spec.", ".status."],
            false,
            "should be a json path under either .spec or .status",
        ),
    ] {
        let (field, at) = (format!("{path}.scale.{member}"), text(scale, member));
        if at.is_empty() {
            if needed {
                errors.push(required(&field, ""));
            }
        } else if !simple_path(at, &field, errors) && !below.iter().any(|root| at.starts_with(root)) {
            errors.push(invalid(&field, &at.into(), why));
        }
    }
}

/// Whether the path is refused.
fn simple_path(path: &str, field: &str, errors: &mut Vec<FieldError>) -> bool {
    let refused = !path.starts_with('.');
    if refused {
        errors.push(invalid(field, &path.into(), "must be a simple json path starting with ."));
    }
    refused
}

fn check_column(column: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if text(column, "name").is_empty() {
        errors.push(required(&format!("{path}.name"), ""));
    }
    let (ty, format, at) = (text(column, "type"), text(column, "format"), text(column, "jsonPath"));
    let types = format!("must be one of {}", COLUMN_TYPES.join(","));
    if ty.is_empty() {
        errors.push(required(&format!("{path}.type"), &types));
    } else if !COLUMN_TYPES.contains(&ty) {
        errors.push(invalid(&format!("{path}.type"), &ty.into(), &types));
    }
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let why = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(invalid(&format!("{path}.format"), &format.into(), &why));
    }
    let field = format!("{path}.JSONPath");
    if at.is_empty() {
        errors.push(required(&field, ""));
    } else {
        simple_path(at, &field, errors);
    }
}

fn selectable(fields: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    // One that is not structural is told of already.
    let Ok(schema) = StructuralSchema::parse(schema) else { return };
    let mut seen = HashSet::new();
    for (at, field) in fields.as_array().into_iter().flatten().enumerate() {
        let (here, told) = (format!("{path}[{at}].jsonPath"), text(field, "jsonPath"));
        if told.is_empty() {
            errors.push(required(&here, ""));
            continue;
        }
        let found = match schema.at_path(told) {
            Ok(found) => found,
            Err(why) => {
                errors.push(invalid(&here, &told.into(), &format!("is an invalid path: {why}")));
                continue;
            }
        };
        if told.starts_with(".metadata.") || told == ".metadata" {
            errors.push(invalid(&here, &told.into(), "must not point to fields in metadata"));
        }
        if !matches!(found, Some(NodeType::String | NodeType::Boolean | NodeType::Integer)) {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats \
                       are allowed.";
            errors.push(invalid(&here, &told.into(), why));
        }
        if !seen.insert(told) {
            errors.push(field_error(ErrorKind::Duplicate, &here, format!("Duplicate value: {told:?}")));
        }
    }
    if seen.len() > MAX_SELECTABLE {
        let message = format!("Too many: {}: must have at most {MAX_SELECTABLE} items", seen.len());
        errors.push(field_error(ErrorKind::TooMany, path, message));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A good definition with these members of its one version.
    fn told(version: &Value) -> Vec<String> {
        let mut whole = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {"spec": {"type": "object", "properties":
                {"a": {"type": "string"}, "o": {"type": "object"}}}}}}});
        whole.as_object_mut().unwrap().extend(version.as_object().unwrap().clone());
        let crd = json!({"metadata": {"name": "carts.toys.example"}, "spec": {"group": "toys.example", "scope": "Cluster",
            "names": {"plural": "carts", "singular": "cart", "kind": "Cart", "listKind": "CartList"},
            "conversion": {"strategy": "None"}, "versions": [whole]}, "status": {"storedVersions": ["v1"]}});
        validate(&crd, None).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn members_of_a_version_are_told_of_where_kubernetes_keeps_them() {
        let none: [&str; 0] = [];
        for (version, wanted) in [
            (json!({}), &none as &[&str]),
            (json!({"selectableFields": [{"jsonPath": ".spec.a"}]}), &none),
            (
                json!({"selectableFields": [{"jsonPath": ".spec.b"}, {"jsonPath": ".spec.o"}]}),
                &[
                    "spec.selectableFields[0].jsonPath: Invalid value: \".spec.b\": is an invalid path: does not refer to a \
                     valid field",
                    "spec.selectableFields[1].jsonPath: Invalid value: \".spec.o\": must point to a field of type string, \
                     boolean or integer. Enum string fields and strings with formats are allowed.",
                ],
            ),
            (
                json!({"additionalPrinterColumns": [{"name": "A", "type": "thing", "jsonPath": "spec.a"}]}),
                &[
                    "spec.additionalPrinterColumns[0].type: Invalid value: \"thing\": must be one of \
                     boolean,date,integer,number,string",
                    "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"spec.a\": must be a simple json path \
                     starting with .",
                ],
            ),
            (
                json!({"subresources": {"scale": {"specReplicasPath": ".status.a"}}}),
                &[
                    "spec.subresources.scale.specReplicasPath: Invalid value: \".status.a\": should be a json path under \
                     .spec",
                    "spec.subresources.scale.statusReplicasPath: Required value",
                ],
            ),
            (json!({"schema": null}), &["spec.versions[0].schema.openAPIV3Schema: Required value"]),
            (
                json!({"deprecationWarning": "x"}),
                &[
                    "spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions",
                ],
            ),
        ] {
            assert_eq!(told(&version), wanted, "{version}");
        }
    }

    #[test]
    fn an_empty_definition_lacks_everything() {
        let crd = json!({"metadata": {"name": "x"}, "spec": {"conversion": {"strategy": "None"}},
            "status": {"storedVersions": []}});
        let errors = validate(&crd, None);
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "metadata.name",
                "spec.group",
                "spec.scope",
                "spec.versions",
                "spec.names.plural",
                "spec.names.singular",
                "spec.names.kind",
                "spec.names.listKind",
                "status.storedVersions"
            ]
        );
    }
}
