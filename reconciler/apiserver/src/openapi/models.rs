//! `components.schemas`: the kinds and what they share.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Served;
use crate::fields::builtin::{builtin_openapi, object_meta_openapi};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub(super) fn meta(name: &str) -> Value {
    reference(&format!("{META}.{name}"))
}

/// `dev.example.v1.Thing`, as Kubernetes names models: the group reversed.
pub(super) fn name(served: &Served<'_>, kind: &str) -> String {
    match (served.is_builtin(), served.group) {
        (true, "") => format!("io.k8s.api.core.{}.{kind}", served.version),
        (true, group) => {
            let short = group.split('.').next().unwrap_or(group);
            format!("io.k8s.api.{short}.{}.{kind}", served.version)
        }
        (false, group) => {
            let reversed: Vec<&str> = group.rsplit('.').collect();
            format!("{}.{}.{kind}", reversed.join("."), served.version)
        }
    }
}

/// The kind and its list.
pub(super) fn of(served: &Served<'_>) -> Vec<(String, Value)> {
    let empty = json!({"type": "object"});
    let raw = served.schema.or_else(|| builtin_openapi(served.group, served.kind)).unwrap_or(&empty);
    let mut kind = with_head(raw, "ObjectMeta", "Standard object's metadata.");
    kind["x-kubernetes-group-version-kind"] = json!([served.gvk()]);
    if served.schema.is_some() {
        // Only what is built in has a default for it.
        if let Some(metadata) = kind["properties"]["metadata"].as_object_mut() {
            metadata.shift_remove("default");
        }
        spell_out(&mut kind);
    }
    if !served.selectable.is_empty() {
        let fields = served.selectable.iter().map(|path| json!({"fieldPath": path}));
        kind["x-kubernetes-selectable-fields"] = fields.collect();
    }
    let mut items = json!({"type": "array", "description": format!("List of {}.", served.plural)});
    items["items"] = reference(&name(served, served.kind));
    let list = json!({
        "type": "object",
        "description": format!("{} is a list of {}", served.list_kind, served.kind),
        "required": ["items"],
        "properties": {"items": items},
    });
    let mut list = with_head(&list, "ListMeta", "Standard list metadata.");
    list["x-kubernetes-group-version-kind"] =
        json!([{"group": served.group, "version": served.version, "kind": served.list_kind}]);
    vec![(name(served, served.kind), kind), (name(served, served.list_kind), list)]
}

/// Says of what may be a number or a text that it may, for clients that do not know the extension.
fn spell_out(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            let either = members.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
            if either && !members.contains_key("anyOf") && !members.contains_key("allOf") {
                members.insert("anyOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
            }
            members.values_mut().for_each(spell_out);
        }
        Value::Array(items) => items.iter_mut().for_each(spell_out),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn with_head(raw: &Value, metadata: &str, description: &str) -> Value {
    let mut schema = raw.clone();
    let mut head = Map::new();
    head.insert(
        "apiVersion".to_owned(),
        json!({
            "type": "string",
            "description": "APIVersion defines the versioned schema of this representation of an object.",
        }),
    );
    head.insert(
        "kind".to_owned(),
        json!({
            "type": "string",
            "description": "Kind is a string value representing the REST resource this object represents.",
        }),
    );
    head.insert(
        "metadata".to_owned(),
        json!({"description": description, "allOf": [meta(metadata)], "default": {}}),
    );
    if let Some(own) = schema.get("properties").and_then(Value::as_object) {
        for (name, value) in own {
            if !head.contains_key(name) {
                head.insert(name.clone(), value.clone());
            }
        }
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("properties".to_owned(), Value::Object(head));
    }
    schema
}

/// What every document has.
pub(super) fn shared() -> BTreeMap<String, Value> {
    let text = || json!({"type": "string"});
    let mut object_meta = object_meta_openapi();
    // Strategic merge patches made by clients follow these, as for Kubernetes' own types.
    object_meta["properties"]["finalizers"]["x-kubernetes-patch-strategy"] = json!("merge");
    object_meta["properties"]["ownerReferences"]["x-kubernetes-patch-strategy"] = json!("merge");
    object_meta["properties"]["ownerReferences"]["x-kubernetes-patch-merge-key"] = json!("uid");
    let list_meta = json!({
        "type": "object",
        "description": "ListMeta describes metadata that lists have.",
        "properties": {
            "resourceVersion": text(), "continue": text(), "selfLink": text(),
            "remainingItemCount": {"type": "integer", "format": "int64"},
        },
    });
    let status = json!({
        "type": "object",
        "description": "Status is a return value for calls that don't return other objects.",
        "properties": {
            "apiVersion": text(), "kind": text(), "status": text(), "message": text(), "reason": text(),
            "code": {"type": "integer", "format": "int32"},
            "details": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "metadata": {"allOf": [meta("ListMeta")], "default": {}},
        },
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Status"}],
    });
    let delete_options = json!({
        "type": "object",
        "description": "DeleteOptions may be provided when deleting an object.",
        "properties": {
            "apiVersion": text(), "kind": text(), "propagationPolicy": text(),
            "gracePeriodSeconds": {"type": "integer", "format": "int64"},
            "orphanDependents": {"type": "boolean"},
            "dryRun": {"type": "array", "items": text()},
            "preconditions": {"type": "object", "properties": {"uid": text(), "resourceVersion": text()}},
        },
    });
    let patch = json!({
        "type": "object",
        "description": "Patch is provided to give a concrete name and type to the request's body.",
    });
    let scale = json!({
        "type": "object",
        "description": "Scale represents a scaling request for a resource.",
        "properties": {
            "apiVersion": text(), "kind": text(),
            "metadata": {"allOf": [meta("ObjectMeta")], "default": {}},
            "spec": {"type": "object", "properties": {"replicas": {"type": "integer", "format": "int32"}}},
            "status": {
                "type": "object",
                "properties": {"replicas": {"type": "integer", "format": "int32"}, "selector": text()},
            },
        },
        "x-kubernetes-group-version-kind": [{"group": "autoscaling", "version": "v1", "kind": "Scale"}],
    });
    let named = [
        ("ObjectMeta", object_meta),
        ("ListMeta", list_meta),
        ("Status", status),
        ("DeleteOptions", delete_options),
        ("Patch", patch),
    ];
    let mut out: BTreeMap<String, Value> =
        named.into_iter().map(|(n, v)| (format!("{META}.{n}"), v)).collect();
    out.insert(SCALE.to_owned(), scale);
    out
}

pub(super) const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
