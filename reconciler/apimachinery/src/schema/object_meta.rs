//! The schema of the `metadata` of every object, including embedded objects.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::StructuralSchema;

/// Returns the schema of `metadata`.
pub fn object_meta() -> &'static StructuralSchema {
    static META: LazyLock<StructuralSchema> = LazyLock::new(|| constant(&object_meta_openapi()));
    &META
}

/// Parses a schema that is part of this program.
pub(crate) fn constant(raw: &Value) -> StructuralSchema {
    StructuralSchema::parse(raw).unwrap_or_else(|errors| {
        // The schemas are constants, all of which a test parses.
        unreachable!("built-in schema is not structural: {errors:?}")
    })
}

/// Returns the same schema as OpenAPI, with descriptions.
pub fn object_meta_openapi() -> Value {
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
                "description": "The steps required before the object is removed."},
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
                "description": "The owners of the fields.",
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
    fn the_schema_of_metadata_is_structural() {
        assert!(object_meta().root.properties.contains_key("labels"));
    }
}
