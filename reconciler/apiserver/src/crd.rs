//! CustomResourceDefinitions: their defaults, their validation, and the [`Resource`] that a definition
//! defines.

mod validate;

use std::sync::atomic::{AtomicBool, AtomicU64};

use berth_apimachinery::meta::NameRule;
use berth_apimachinery::schema::StructuralSchema;
use berth_apimachinery::table::Columns;
use berth_store::{Entry, FieldPath};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::resource::{Origin, Resource, Retirement, Schema, Version, version_rank};

pub(crate) use validate::validate;

/// The verbs, in the order in which Kubernetes lists them for custom resources.
const VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// The finalizer that keeps a CRD until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().unwrap_or_default()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// Sets the defaults and the status that the server maintains.
pub(crate) fn prepare(crd: &mut Value, old: Option<&Value>, now: &str) {
    let spec = &mut crd["spec"];
    if !spec.is_object() {
        *spec = json!({});
    }
    let kind = text(&spec["names"], "kind").to_owned();
    if spec["names"].is_object() && !kind.is_empty() {
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
    let names = if spec["names"].is_object() { spec["names"].clone() } else { json!({}) };
    let mut stored = old.map(|old| strings(&old["status"]["storedVersions"])).unwrap_or_default();
    if let Some(sent) = old.and(crd["status"]["storedVersions"].as_array()) {
        stored.retain(|version| sent.iter().any(|s| s == version.as_str()));
    }
    if !storage.is_empty() && !stored.contains(&storage) {
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

/// Whether two states of a definition define the same resource.
pub(crate) fn defines_same(old: &Entry, new: &Entry) -> bool {
    old.revision == new.revision
        || (old.facts.uid == new.facts.uid && old.value()["spec"] == new.value()["spec"])
}

/// Builds the resource that a stored definition defines.
pub(crate) fn resource(entry: &Entry, stopping: &CancellationToken) -> Result<Resource, String> {
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
            current: AtomicU64::new(entry.revision),
            terminating: AtomicBool::new(entry.facts.deleting),
        },
        counts_generation: true,
        needs_revision: true,
        verbs: VERBS,
        retirement: Retirement::with(stopping),
        group,
    })
}

fn version(raw: &Value, group: &str, kind: &str) -> Result<Version, String> {
    let schema_json = &raw["schema"]["openAPIV3Schema"];
    let schema = StructuralSchema::stored(schema_json)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let name = text(raw, "name").to_owned();
    let deprecation = (raw["deprecated"] == true).then(|| match raw["deprecationWarning"].as_str() {
        Some(warning) => warning.to_owned(),
        None => format!("{group}/{name} {kind} is deprecated"),
    });
    Ok(Version {
        served: raw["served"] == true,
        schema: Schema::Custom(Box::new(schema)),
        schema_json: Some(schema_json.to_string().into_bytes().into()),
        has_status: raw["subresources"]["status"].is_object(),
        columns: Columns::of_crd_version(raw),
        deprecation,
        name,
    })
}
