//! Small hand-written schemas of the built-in kinds and of every object's metadata: enough for ownership of
//! their lists and maps, for validation of their types and for `kubectl explain`.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::schema::StructuralSchema;

mod kinds;

/// The schema of `metadata`.
pub(crate) fn object_meta() -> &'static StructuralSchema {
    static META: LazyLock<StructuralSchema> = LazyLock::new(|| compiled(&object_meta_openapi()));
    &META
}

/// The schema of a built-in kind, if it is one this server serves.
pub(crate) fn builtin_schema(group: &str, kind: &str) -> Option<&'static StructuralSchema> {
    static SCHEMAS: LazyLock<Vec<(Name, StructuralSchema)>> =
        LazyLock::new(|| RAW.iter().map(|(name, raw)| (*name, compiled(raw))).collect());
    SCHEMAS.iter().find(|(name, _)| *name == (group, kind)).map(|(_, schema)| schema)
}

/// The same as OpenAPI, with descriptions; `metadata` is left to the caller.
pub(crate) fn builtin_openapi(group: &str, kind: &str) -> Option<&'static Value> {
    RAW.iter().find(|(name, _)| *name == (group, kind)).map(|(_, raw)| raw)
}

/// Group and kind.
type Name = (&'static str, &'static str);

static RAW: LazyLock<Vec<(Name, Value)>> = LazyLock::new(kinds::all);

fn compiled(raw: &Value) -> StructuralSchema {
    StructuralSchema::parse(raw).unwrap_or_else(|errors| {
        // Constants, all of which a test parses.
        unreachable!("built-in schema is not structural: {errors:?}")
    })
}

pub(crate) fn object_meta_openapi() -> Value {
    let time = json!({"type": "string", "format": "date-time"});
    json!({
        "type": "object",
        "description": "Standard object metadata.",
        "properties": {
            "name": {"type": "string", "description": "Name, unique within a namespace."},
            "generateName": {"type": "string", "description": "Prefix from which the server makes a name."},
            "namespace": {"type": "string", "description": "Namespace the object is in."},
            "selfLink": {"type": "string"},
            "uid": {"type": "string", "description": "Unique in time and space, set by the server."},
            "resourceVersion": {"type": "string", "description": "Changes with every write."},
            "generation": {"type": "integer", "format": "int64", "description": "Changes with the desired state."},
            "creationTimestamp": time,
            "deletionTimestamp": time,
            "deletionGracePeriodSeconds": {"type": "integer", "format": "int64"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"},
                "description": "Keys and values to select by."},
            "annotations": {"type": "object", "additionalProperties": {"type": "string"},
                "description": "Keys and values for tools."},
            "finalizers": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set",
                "description": "What must be done before the object goes."},
            "ownerReferences": {
                "type": "array",
                "description": "Objects this one goes with.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["uid"],
                "items": {
                    "type": "object",
                    "x-kubernetes-map-type": "atomic",
                    "required": ["apiVersion", "kind", "name", "uid"],
                    "properties": {
                        "apiVersion": {"type": "string"},
                        "kind": {"type": "string"},
                        "name": {"type": "string"},
                        "uid": {"type": "string"},
                        "controller": {"type": "boolean"},
                        "blockOwnerDeletion": {"type": "boolean"}
                    }
                }
            },
            "managedFields": {
                "type": "array",
                "description": "Who owns which field.",
                "items": {
                    "type": "object",
                    "properties": {
                        "manager": {"type": "string"},
                        "operation": {"type": "string"},
                        "apiVersion": {"type": "string"},
                        "time": time,
                        "fieldsType": {"type": "string"},
                        "fieldsV1": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                        "subresource": {"type": "string"}
                    }
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_schema_is_structural() {
        assert!(object_meta().root.properties.contains_key("labels"));
        for (group, kind) in RAW.iter().map(|(name, _)| name) {
            assert!(builtin_schema(group, kind).is_some(), "{group}/{kind}");
        }
        assert!(builtin_schema("", "Secret").is_some());
        assert!(builtin_schema("", "Nothing").is_none());
    }
}
