//! A v3 document as Swagger 2.0: what has no equivalent there is left out.

use serde_json::{Map, Value, json};

pub(super) fn document(v3: &Value) -> Value {
    let definitions = members(&v3["components"]["schemas"]).map(|(name, s)| (name.clone(), schema(s)));
    let definitions: Map<String, Value> = definitions.collect();
    let paths: Map<String, Value> =
        members(&v3["paths"]).map(|(path, item)| (path.clone(), path_item(item))).collect();
    json!({"swagger": "2.0", "info": v3["info"], "paths": paths, "definitions": definitions})
}

/// What `kubectl` asks for before it validates on the client's side: a protobuf `openapi.v2.Document`. This one has no
/// definitions, so kubectl leaves the judgement of every kind to the server, which validates strictly itself.
pub(super) fn protobuf(title: &str) -> Vec<u8> {
    let text = |field: u8, value: &[u8]| {
        // One-byte lengths: everything in here is shorter than 128 bytes.
        let mut out = vec![field << 3 | 2, value.len() as u8];
        out.extend_from_slice(value);
        out
    };
    let info = [text(1, title.as_bytes()), text(2, b"v1")].concat();
    [text(1, b"2.0"), text(2, &info)].concat()
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Schemas are walked, not just searched: a property may be called `not`.
fn schema(v3: &Value) -> Value {
    let mut out = Map::new();
    let free = v3.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
    for (name, value) in members(v3) {
        let value = match name.as_str() {
            "oneOf" | "anyOf" | "not" | "nullable" | "$schema" | "id" => continue,
            "type" if free => continue,
            "allOf" => match only_reference(value) {
                Some(reference) => {
                    out.insert("$ref".to_owned(), reference);
                    continue;
                }
                None => continue,
            },
            "$ref" => {
                json!(value.as_str().unwrap_or_default().replace("#/components/schemas/", "#/definitions/"))
            }
            "properties" => {
                Value::Object(members(value).map(|(name, of)| (name.clone(), schema(of))).collect())
            }
            "items" => schema(value),
            "additionalProperties" if value.is_object() => schema(value),
            _ => value.clone(),
        };
        out.insert(name.clone(), value);
    }
    Value::Object(out)
}

/// v3 wraps a reference so that it may have siblings.
fn only_reference(all_of: &Value) -> Option<Value> {
    let [only] = all_of.as_array()?.as_slice() else { return None };
    schema(only).get("$ref").cloned()
}

fn path_item(v3: &Value) -> Value {
    let item = members(v3).map(|(name, value)| match name.as_str() {
        "parameters" => (name.clone(), parameters(value)),
        _ => (name.clone(), operation(value)),
    });
    Value::Object(item.collect())
}

fn parameters(v3: &Value) -> Value {
    let flat = |parameter: &Value| {
        let mut out = Map::new();
        for (name, value) in members(parameter) {
            match name.as_str() {
                "schema" => out.extend(members(value).map(|(n, v)| (n.clone(), v.clone()))),
                _ => {
                    out.insert(name.clone(), value.clone());
                }
            }
        }
        Value::Object(out)
    };
    v3.as_array().into_iter().flatten().map(flat).collect()
}

fn operation(v3: &Value) -> Value {
    let mut out = Map::new();
    for (name, value) in members(v3) {
        match name.as_str() {
            "parameters" => {
                let mut all = parameters(value);
                if let (Some(body), Some(all)) = (body(v3), all.as_array_mut()) {
                    all.push(body);
                }
                out.insert(name.clone(), all);
            }
            "requestBody" => {
                let types: Vec<&String> = members(&value["content"]).map(|(name, _)| name).collect();
                out.insert("consumes".to_owned(), json!(types));
            }
            "responses" => {
                out.insert(
                    name.clone(),
                    Value::Object(members(value).map(|(n, v)| (n.clone(), response(v))).collect()),
                );
                out.insert("produces".to_owned(), json!(["application/json", "application/yaml"]));
            }
            _ => {
                out.insert(name.clone(), value.clone());
            }
        }
    }
    Value::Object(out)
}

fn body(v3: &Value) -> Option<Value> {
    let (_, content) = members(v3.get("requestBody")?.get("content")?).next()?;
    Some(json!({"name": "body", "in": "body", "required": true, "schema": schema(&content["schema"])}))
}

fn response(v3: &Value) -> Value {
    let mut out = json!({"description": v3["description"]});
    if let Some(of) = v3.pointer("/content/application~1json/schema") {
        out["schema"] = schema(of);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protobuf_document_names_its_version_and_title() {
        assert_eq!(protobuf("berth"), b"\x0a\x032.0\x12\x0b\x0a\x05berth\x12\x02v1");
    }
}
