//! Metadata of the wrong JSON types, refused in the words of Go's JSON library; everything after relies on the right ones.

use serde_json::{Map, Value};

use super::time::Layout;
use crate::schema::message::json_type;

/// Whether the members that all objects have can be read. What may stand for nothing becomes nothing: a label that is null is
/// empty. `whole`: what the object is called where its metadata is read with it, not by itself as that of custom resources.
///
/// # Errors
/// `json: cannot unmarshal number into Go struct field ObjectMeta.name of type string`.
pub(crate) fn well_formed(object: &mut Value, whole: Option<&str>) -> Result<(), String> {
    let Some(map) = object.as_object_mut() else {
        return Err(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            json_type(object)
        ));
    };
    for name in ["apiVersion", "kind"] {
        if let Some(value) = map.get(name).filter(|value| !value.is_string() && !value.is_null()) {
            return Err(misfit(
                value,
                &format!("struct field {}.{name}", whole.unwrap_or("Unknown")),
                "string",
            ));
        }
    }
    let Some(metadata) = map.get_mut("metadata").filter(|metadata| !metadata.is_null()) else {
        return Ok(());
    };
    let Some(members) = metadata.as_object_mut() else {
        let place = whole.map_or_else(|| "value".to_owned(), |kind| format!("struct field {kind}.metadata"));
        return Err(misfit(metadata, &place, "v1.ObjectMeta"));
    };
    let prefix = if whole.is_some() { "metadata." } else { "" };
    members.iter_mut().try_for_each(|(name, value)| member(name, value, prefix))
}

fn member(name: &str, value: &mut Value, prefix: &str) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    let place = format!("struct field ObjectMeta.{prefix}{name}");
    let wrong = |value: &Value, ty: &str| Err(misfit(value, &place, ty));
    match name {
        "name" | "generateName" | "namespace" | "resourceVersion" | "selfLink" if !value.is_string() => {
            wrong(value, "string")
        }
        "uid" if !value.is_string() => wrong(value, "types.UID"),
        "generation" | "deletionGracePeriodSeconds" if !value.is_i64() => wrong(value, "int64"),
        "creationTimestamp" | "deletionTimestamp" => Layout::Seconds.read(value).map(|_| ()),
        "labels" | "annotations" => match value {
            Value::Object(members) => texts(members).or_else(|other| wrong(&other, "string")),
            other => wrong(other, "map[string]string"),
        },
        "finalizers" => match value {
            Value::Array(items) => match items.iter().find(|item| !item.is_string()) {
                Some(item) => wrong(item, "string"),
                None => Ok(()),
            },
            other => wrong(other, "[]string"),
        },
        "ownerReferences" => match value {
            Value::Array(items) => items.iter_mut().try_for_each(|owner| reference(owner, &place)),
            other => wrong(other, "[]v1.OwnerReference"),
        },
        "managedFields" => match value {
            Value::Array(items) => match items.iter().find(|item| !item.is_object()) {
                Some(item) => wrong(item, "v1.ManagedFieldsEntry"),
                None => Ok(()),
            },
            other => wrong(other, "[]v1.ManagedFieldsEntry"),
        },
        _ => Ok(()),
    }
}

/// Nulls are empty texts; anything else that is no text is returned.
fn texts(members: &mut Map<String, Value>) -> Result<(), Value> {
    for value in members.values_mut() {
        match value {
            Value::Null => *value = "".into(),
            Value::String(_) => {}
            other => return Err(other.clone()),
        }
    }
    Ok(())
}

/// What it does not say is empty.
fn reference(owner: &mut Value, place: &str) -> Result<(), String> {
    let Some(members) = owner.as_object_mut() else {
        return Err(misfit(owner, place, "v1.OwnerReference"));
    };
    let of = place.replace("ObjectMeta.", "OwnerReference.");
    for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
        let (fits, ty) = match name.as_str() {
            "apiVersion" | "kind" | "name" => (value.is_string(), "string"),
            "uid" => (value.is_string(), "types.UID"),
            "controller" | "blockOwnerDeletion" => (value.is_boolean(), "bool"),
            _ => (true, ""),
        };
        if !fits {
            return Err(misfit(value, &format!("{of}.{name}"), ty));
        }
    }
    for name in ["apiVersion", "kind", "name", "uid"] {
        let text = members.entry(name).or_insert(Value::Null);
        if text.is_null() {
            *text = "".into();
        }
    }
    Ok(())
}

pub(super) fn misfit(value: &Value, place: &str, ty: &str) -> String {
    format!("json: cannot unmarshal {} into Go {place} of type {ty}", json_type(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_of_wrong_types_are_told_as_go_does() {
        for (metadata, why) in [
            (json!([]), "json: cannot unmarshal array into Go value of type v1.ObjectMeta"),
            (
                json!({"name": 7}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.name of type string",
            ),
            (
                json!({"labels": ["a"]}),
                "json: cannot unmarshal array into Go struct field ObjectMeta.labels of type map[string]string",
            ),
            (
                json!({"labels": {"a": 1}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string",
            ),
            (
                json!({"ownerReferences": {}}),
                "json: cannot unmarshal object into Go struct field ObjectMeta.ownerReferences of type []v1.OwnerReference",
            ),
            (
                json!({"creationTimestamp": "yesterday"}),
                "parsing time \"yesterday\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"yesterday\" as \"2006\"",
            ),
            (
                json!({"creationTimestamp": "2026-01-01"}),
                "parsing time \"2026-01-01\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"\" as \"T\"",
            ),
        ] {
            assert_eq!(well_formed(&mut json!({"metadata": metadata}), None).unwrap_err(), why);
        }
        let mut object = json!({"metadata": {"name": 7}});
        assert_eq!(
            well_formed(&mut object, Some("ConfigMap")).unwrap_err(),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string"
        );
    }

    #[test]
    fn nulls_are_nothing() {
        let mut object =
            json!({"metadata": {"name": null, "labels": {"a": null}, "creationTimestamp": null}});
        well_formed(&mut object, None).expect("it is well formed");
        assert_eq!(object["metadata"]["labels"], json!({"a": ""}));
        assert!(well_formed(&mut json!({"metadata": null}), None).is_ok());
    }
}
