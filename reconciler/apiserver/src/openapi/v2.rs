//! The least of Swagger 2.0 that clients still need; `kubectl` from version 1.27 on reads only v3.
//!
//! Terraform's provider for Kubernetes reads the models of ObjectMeta and of the built-in kinds
//! (`kubernetes_manifest`); those of custom resources it reads from their definitions. Argo CD requests the
//! document in protobuf and stops if there is none.

use serde_json::{Value, json};

/// Returns the models of a v3 document, without its paths.
pub(super) fn document(v3: &Value) -> Value {
    let mut definitions = v3["components"]["schemas"].clone();
    move_references(&mut definitions);
    json!({"swagger": "2.0", "info": v3["info"], "paths": {}, "definitions": definitions})
}

/// Returns a valid protobuf `openapi.v2.Document` without models: validation of every kind is left to the
/// server.
pub(super) fn protobuf(title: &str) -> Vec<u8> {
    let text = |field: u8, value: &[u8]| {
        // One-byte lengths: every field is shorter than 128 bytes.
        let mut out = vec![field << 3 | 2, value.len() as u8];
        out.extend_from_slice(value);
        out
    };
    let info = [text(1, title.as_bytes()), text(2, b"v1")].concat();
    [text(1, b"2.0"), text(2, &info)].concat()
}

/// Changes references to the place that models have in Swagger, where a reference has no `allOf` around it.
fn move_references(schema: &mut Value) {
    if let Some(wrapped) = schema.pointer("/allOf/0/$ref").cloned() {
        *schema = json!({"$ref": wrapped});
    }
    match schema {
        Value::Object(members) => members.values_mut().for_each(move_references),
        Value::Array(items) => items.iter_mut().for_each(move_references),
        Value::String(text) => {
            if let Some(name) = text.strip_prefix("#/components/schemas/") {
                *text = format!("#/definitions/{name}");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
