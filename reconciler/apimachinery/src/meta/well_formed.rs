//! The fields that all objects have, checked and completed; later steps rely on their types.

use serde_json::{Map, Value};

use crate::schema::object_meta::object_meta;

/// Checks the types of `apiVersion`, `kind` and `metadata`. Nulls are replaced by the empty value: a null label
/// becomes empty.
///
/// # Errors
/// The first field of another type: `metadata.name must be a string`.
pub fn well_formed(object: &mut Value) -> Result<(), String> {
    let Some(members) = object.as_object_mut() else { return Err("it must be an object".to_owned()) };
    for name in ["apiVersion", "kind"] {
        if members.get(name).is_some_and(|value| !value.is_string() && !value.is_null()) {
            return Err(format!("{name} must be a string"));
        }
    }
    let Some(metadata) = members.get_mut("metadata") else { return Ok(()) };
    object_meta().check_types("metadata", metadata)?;
    for texts in ["labels", "annotations"] {
        if let Some(Value::Object(texts)) = metadata.get_mut(texts) {
            texts.values_mut().for_each(empty_if_null);
        }
    }
    for owner in metadata.get_mut("ownerReferences").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(owner) = owner.as_object_mut() else {
            return Err("metadata.ownerReferences must not contain null".to_owned());
        };
        complete(owner);
    }
    Ok(())
}

fn complete(owner: &mut Map<String, Value>) {
    for name in ["apiVersion", "kind", "name", "uid"] {
        empty_if_null(owner.entry(name).or_insert(Value::Null));
    }
}

fn empty_if_null(text: &mut Value) {
    if text.is_null() {
        *text = "".into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_of_another_type_is_named() {
        for (metadata, why) in [
            (json!([]), "metadata must be an object"),
            (json!({"name": 7}), "metadata.name must be a string"),
            (json!({"labels": ["a"]}), "metadata.labels must be an object"),
            (json!({"labels": {"a": 1}}), "metadata.labels.a must be a string"),
            (json!({"ownerReferences": {}}), "metadata.ownerReferences must be a list"),
            (json!({"ownerReferences": [{"uid": 1}]}), "metadata.ownerReferences[0].uid must be a string"),
            (
                json!({"creationTimestamp": "2026-01-01"}),
                "metadata.creationTimestamp must be a time such as 2006-01-02T15:04:05Z",
            ),
        ] {
            assert_eq!(well_formed(&mut json!({"metadata": metadata})).unwrap_err(), why);
        }
        assert_eq!(well_formed(&mut json!({"kind": 1})).unwrap_err(), "kind must be a string");
    }

    #[test]
    fn null_counts_as_absent() {
        let mut object =
            json!({"metadata": {"name": null, "labels": {"a": null}, "creationTimestamp": null}});
        well_formed(&mut object).expect("it is well formed");
        assert_eq!(object["metadata"]["labels"], json!({"a": ""}));
        assert!(well_formed(&mut json!({"metadata": null})).is_ok());
    }
}
