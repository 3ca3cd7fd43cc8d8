//! CustomResourceDefinitions: their defaults, their rules, and the [`Resource`] one defines.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::meta::names::{dns_label, dns_subdomain};
use crate::meta::{NameRule, field_error, invalid, required};
use crate::resource::{Origin, Resource, Schema, Version, version_rank};
use crate::schema::{ErrorKind, FieldError, StructuralSchema};
use crate::store::{Entry, FieldPath};
use crate::table::Columns;

/// In the order in which Kubernetes tells them of custom resources.
const VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// Keeps a CRD until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Fields one version may make selectable, as in Kubernetes.
const MAX_SELECTABLE: usize = 8;

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().unwrap_or_default()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// Fills in defaults and the status the server keeps.
pub(crate) fn prepare(crd: &mut Value, old: Option<&Value>, now: &str) {
    let spec = &mut crd["spec"];
    if !spec.is_object() {
        return;
    }
    let kind = text(&spec["names"], "kind").to_owned();
    if spec["names"].is_object() {
        if text(&spec["names"], "singular").is_empty() {
            spec["names"]["singular"] = kind.to_lowercase().into();
        }
        if text(&spec["names"], "listKind").is_empty() {
            spec["names"]["listKind"] = format!("{kind}List").into();
        }
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({"strategy": "None"});
    }
    let storage = spec["versions"].as_array().into_iter().flatten().find(|v| v["storage"] == true);
    let storage = storage.map(|version| text(version, "name").to_owned()).unwrap_or_default();
    let names = spec["names"].clone();
    let mut stored = old.map(|old| strings(&old["status"]["storedVersions"])).unwrap_or_default();
    if let Some(sent) = old.and(crd["status"]["storedVersions"].as_array()) {
        stored.retain(|version| sent.iter().any(|s| s == version.as_str()));
    }
    if !stored.contains(&storage) {
        stored.push(storage);
    }
    let mut conditions = old.map(|old| old["status"]["conditions"].clone()).filter(Value::is_array);
    let conditions = conditions.get_or_insert_with(|| json!([]));
    set_condition(conditions, "NamesAccepted", "NoConflicts", "no conflicts found", now);
    set_condition(
        conditions,
        "Established",
        "InitialNamesAccepted",
        "the initial names have been accepted",
        now,
    );
    if !crd["metadata"]["deletionTimestamp"].is_null() {
        set_condition(
            conditions,
            "Terminating",
            "InstanceDeletionPending",
            "CustomResource deletion is pending",
            now,
        );
    }
    crd["status"] = json!({"acceptedNames": names, "conditions": conditions, "storedVersions": stored});
}

fn set_condition(conditions: &mut Value, kind: &str, reason: &str, message: &str, now: &str) {
    let Some(conditions) = conditions.as_array_mut() else { return };
    if !conditions.iter().any(|condition| condition["type"] == kind) {
        conditions.push(json!({
            "lastTransitionTime": now, "message": message, "reason": reason, "status": "True", "type": kind,
        }));
    }
}

/// What makes a definition unfit to be served.
pub(crate) fn validate(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &crd["spec"];
    if !spec.is_object() {
        return vec![required("spec", "")];
    }
    let (group, names) = (text(spec, "group"), &spec["names"]);
    let plural = text(names, "plural");
    let expected = format!("{plural}.{group}");
    if text(&crd["metadata"], "name") != expected {
        let why = "must be spec.names.plural+\".\"+spec.group";
        errors.push(invalid("metadata.name", &crd["metadata"]["name"], why));
    }
    if !dns_subdomain(group).is_empty() || !group.contains('.') {
        errors.push(invalid("spec.group", &spec["group"], "should be a domain with at least one dot"));
    }
    for member in ["plural", "singular"] {
        if !dns_label(text(names, member)).is_empty() {
            errors.push(invalid(&format!("spec.names.{member}"), &names[member], "must be a DNS-1035 label"));
        }
    }
    for member in ["kind", "listKind"] {
        if !dns_label(&text(names, member).to_lowercase()).is_empty() {
            errors.push(invalid(
                &format!("spec.names.{member}"),
                &names[member],
                "may have mixed case, but should otherwise match a DNS label",
            ));
        }
    }
    if names["kind"] == names["listKind"] {
        errors.push(invalid(
            "spec.names.listKind",
            &names["listKind"],
            "kind and listKind may not be the same",
        ));
    }
    if !matches!(text(spec, "scope"), "Namespaced" | "Cluster") {
        errors.push(unsupported("spec.scope", &spec["scope"], "\"Cluster\", \"Namespaced\""));
    }
    if text(&spec["conversion"], "strategy") != "None" {
        errors.push(unsupported("spec.conversion.strategy", &spec["conversion"]["strategy"], "\"None\""));
    }
    versions(spec, &mut errors);
    for (at, stored) in strings(&crd["status"]["storedVersions"]).into_iter().enumerate() {
        let served =
            spec["versions"].as_array().is_some_and(|all| all.iter().any(|v| v["name"] == stored.as_str()));
        if !served {
            let field = format!("status.storedVersions[{at}]");
            errors.push(invalid(&field, &stored.into(), "missing from spec.versions"));
        }
    }
    if let Some(old) = old {
        unchanged(spec, &old["spec"], &mut errors);
    }
    errors
}

fn unsupported(field: &str, value: &Value, supported: &str) -> FieldError {
    let message = format!("Unsupported value: {value}: supported values: {supported}");
    field_error(ErrorKind::NotSupported, field, message)
}

fn unchanged(spec: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let same = |field: &str, new: &Value, old: &Value, errors: &mut Vec<FieldError>| {
        if new != old {
            errors.push(invalid(field, new, "field is immutable"));
        }
    };
    same("spec.group", &spec["group"], &old["group"], errors);
    same("spec.scope", &spec["scope"], &old["scope"], errors);
    same("spec.names.kind", &spec["names"]["kind"], &old["names"]["kind"], errors);
    same("spec.names.plural", &spec["names"]["plural"], &old["names"]["plural"], errors);
}

fn versions(spec: &Value, errors: &mut Vec<FieldError>) {
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if versions.is_empty() {
        errors.push(required("spec.versions", "must have at least one version"));
    }
    let mut seen = HashSet::new();
    for (at, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{at}]");
        let name = text(version, "name");
        if !dns_label(name).is_empty() {
            errors.push(invalid(&format!("{path}.name"), &version["name"], "must be a DNS-1035 label"));
        }
        if !seen.insert(name) {
            errors.push(invalid("spec.versions", &version["name"], "must contain unique version names"));
        }
        let schema = &version["schema"]["openAPIV3Schema"];
        if !schema.is_object() {
            errors.push(required(&format!("{path}.schema.openAPIV3Schema"), "schemas are required"));
        } else if let Err(found) =
            StructuralSchema::parse_at(&format!("{path}.schema.openAPIV3Schema"), schema)
        {
            errors.extend(found);
        }
        let selectable = version["selectableFields"].as_array().map_or(0, Vec::len);
        if selectable > MAX_SELECTABLE {
            let message = format!("Too many: {selectable}: must have at most {MAX_SELECTABLE} items");
            errors.push(field_error(ErrorKind::TooMany, &format!("{path}.selectableFields"), message));
        }
    }
    let stored = versions.iter().filter(|version| version["storage"] == true).count();
    if stored != 1 && !versions.is_empty() {
        let why = "must have exactly one version marked as storage version";
        errors.push(invalid("spec.versions", &format!("{stored} storage versions").into(), why));
    }
}

/// The resource a stored definition defines.
pub(crate) fn resource(entry: &Entry) -> Result<Resource, String> {
    let crd = entry.value();
    let (spec, names) = (&crd["spec"], &crd["spec"]["names"]);
    let group = text(spec, "group").to_owned();
    let mut raw: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
    raw.sort_by_key(|version| std::cmp::Reverse(version_rank(text(version, "name"))));
    let versions =
        raw.iter().map(|raw| version(raw, &group, text(names, "kind"))).collect::<Result<Vec<_>, _>>()?;
    let storage_version =
        raw.iter().position(|version| version["storage"] == true).ok_or("no storage version")?;
    let mut selectable: Vec<&str> = raw
        .iter()
        .flat_map(|version| version["selectableFields"].as_array().into_iter().flatten())
        .filter_map(|field| field["jsonPath"].as_str())
        .collect();
    selectable.sort_unstable();
    selectable.dedup();
    Ok(Resource {
        storage: format!("{group}/{}", text(names, "plural")).into(),
        plural: text(names, "plural").into(),
        singular: text(names, "singular").into(),
        kind: text(names, "kind").into(),
        list_kind: text(names, "listKind").into(),
        short_names: strings(&names["shortNames"]),
        categories: strings(&names["categories"]),
        namespaced: text(spec, "scope") == "Namespaced",
        name_rule: NameRule::Subdomain,
        versions,
        storage_version,
        fields: selectable.into_iter().map(FieldPath::parse).collect(),
        origin: Origin::Custom {
            crd: entry.key.clone(),
            revision: entry.revision,
            terminating: entry.facts.deleting,
        },
        counts_generation: true,
        needs_revision: true,
        verbs: VERBS,
        group,
    })
}

fn version(raw: &Value, group: &str, kind: &str) -> Result<Version, String> {
    let schema_json = raw["schema"]["openAPIV3Schema"].clone();
    let schema = StructuralSchema::parse(&schema_json)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let name = text(raw, "name").to_owned();
    let deprecation = (raw["deprecated"] == true).then(|| match raw["deprecationWarning"].as_str() {
        Some(warning) => warning.to_owned(),
        None => format!("{group}/{name} {kind} is deprecated"),
    });
    Ok(Version {
        served: raw["served"] == true,
        schema: Schema::Custom(Box::new(schema)),
        schema_json: Some(schema_json),
        has_status: raw["subresources"]["status"].is_object(),
        scale: Some(raw["subresources"]["scale"].clone()).filter(Value::is_object),
        columns: Columns::of_crd_version(raw),
        deprecation,
        name,
    })
}
