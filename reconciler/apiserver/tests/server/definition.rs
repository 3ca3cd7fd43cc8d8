//! The definition of the test kind.

use serde_json::{Value, json};

/// A CRD with a status subresource, a default, a rule, and a selectable field.
pub(crate) fn crd_json() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "boats.toys.example"},
        "spec": {
            "group": "toys.example",
            "scope": "Namespaced",
            "names": {"plural": "boats", "kind": "Boat", "shortNames": ["bt"], "categories": ["toys"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": ".spec.harbour"}],
                "additionalPrinterColumns": [
                    {"name": "Harbour", "type": "string", "jsonPath": ".spec.harbour"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
                "schema": {"openAPIV3Schema": schema()},
            }],
        },
    })
}

fn schema() -> Value {
    json!({
        "type": "object",
        "description": "A boat.",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["harbour"],
                "x-kubernetes-validations": [
                    {"rule": "self.oars <= 8", "message": "too many oars"}],
                "properties": {
                    "harbour": {"type": "string", "minLength": 1, "description": "Where it lies."},
                    "oars": {"type": "integer", "default": 2, "minimum": 0},
                    "tags": {"type": "object", "additionalProperties": {"type": "string"}},
                    "crew": {"type": "array", "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {"type": "object", "required": ["name"], "properties": {
                            "name": {"type": "string"}, "role": {"type": "string"}}}},
                },
            },
            "status": {
                "type": "object",
                "default": {"observedGeneration": -1},
                "properties": {
                    "observedGeneration": {"type": "integer"},
                    "oars": {"type": "integer"},
                    "conditions": {"type": "array", "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["type"],
                        "items": {"type": "object", "required": ["type", "status"], "properties": {
                            "type": {"type": "string"}, "status": {"type": "string"}}}},
                },
            },
        },
    })
}
