//! `components.schemas`: the kinds and their shared types.

use std::collections::BTreeMap;

use berth_apimachinery::builtin::builtin_openapi;
use berth_apimachinery::schema::object_meta::object_meta_openapi;
use serde_json::{Map, Value, json};

use super::Served;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub(super) fn meta(name: &str) -> Value {
    reference(&format!("{META}.{name}"))
}

/// Returns the name of a model as Kubernetes builds it, with the group reversed: `dev.example.v1.Thing`.
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

/// Returns the models of the kind and of its list.
pub(super) fn of(served: &Served<'_>) -> Vec<(String, Value)> {
    let raw = served.custom_schema().or_else(|| builtin_openapi(served.group, served.kind).cloned());
    let raw = raw.unwrap_or_else(|| json!({"type": "object"}));
    let mut kind = with_head(raw, "ObjectMeta", "Standard object's metadata.");
    kind["x-kubernetes-group-version-kind"] = json!([served.gvk()]);
    if served.schema.is_some() {
        // Only built-in kinds have a default for it.
        if let Some(metadata) = kind["properties"]["metadata"].as_object_mut() {
            metadata.remove("default");
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
    let mut list = with_head(list, "ListMeta", "Standard list metadata.");
    list["x-kubernetes-group-version-kind"] =
        json!([{"group": served.group, "version": served.version, "kind": served.list_kind}]);
    vec![(name(served, served.kind), kind), (name(served, served.list_kind), list)]
}

/// Adds an explicit `anyOf` to int-or-string fields, for clients that do not know the extension.
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

fn with_head(mut schema: Value, metadata: &str, description: &str) -> Value {
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
    if let Some(Value::Object(own)) = schema.get_mut("properties").map(Value::take) {
        for (name, value) in own {
            head.entry(name).or_insert(value);
        }
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("properties".to_owned(), Value::Object(head));
    }
    schema
}

/// Returns the models that every document contains.
pub(super) fn shared() -> BTreeMap<String, Value> {
    let text = || json!({"type": "string"});
    let mut object_meta = object_meta_openapi();
    // Clients build strategic merge patches by these extensions, as for Kubernetes' own types.
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
    let patch = json!({
        "type": "object",
        "description": "Patch is provided to give a concrete name and type to the request's body.",
    });
    let named = [("ObjectMeta", object_meta), ("ListMeta", list_meta), ("Status", status), ("Patch", patch)];
    named.into_iter().map(|(n, v)| (format!("{META}.{n}"), v)).collect()
}
