//! Metadata of the wrong JSON types, refused in the words of Go's JSON library; everything after relies on the right ones.

use serde_json::{Map, Value};

use crate::schema::message::json_type;
use crate::schema::quote;

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
        "creationTimestamp" | "deletionTimestamp" => time(value, SECONDS),
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
            Value::Array(items) => items.iter().try_for_each(|owner| reference(owner, &place)),
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

fn reference(owner: &Value, place: &str) -> Result<(), String> {
    let Some(members) = owner.as_object() else { return Err(misfit(owner, place, "v1.OwnerReference")) };
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
    Ok(())
}

/// Go's layouts of `metav1.Time` and of `MicroTime`, whose six digits must be there.
pub(crate) const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
pub(crate) const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Whether a value is a time of a layout.
///
/// # Errors
/// `parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"`.
pub(crate) fn time(value: &Value, layout: &str) -> Result<(), String> {
    let Some(text) = value.as_str() else {
        return Err(misfit(value, "value", "string"));
    };
    if text.parse::<jiff::Timestamp>().is_ok() && (layout != MICROS || has_micros(text)) {
        return Ok(());
    }
    Err(unparsable_time(text, layout))
}

fn has_micros(text: &str) -> bool {
    let digits = |part: &str| part.bytes().take_while(u8::is_ascii_digit).count();
    text.split_once('.').is_some_and(|(_, fraction)| digits(fraction) == 6)
}

/// Go's complaint about a time that does not follow its layout: where the two part.
fn unparsable_time(text: &str, layout: &str) -> String {
    let fraction = if layout == MICROS { Some((".000000", 7)) } else { None };
    let (rest, part) = [
        ("2006", 4),
        ("-", 1),
        ("01", 2),
        ("-", 1),
        ("02", 2),
        ("T", 1),
        ("15", 2),
        (":", 1),
        ("04", 2),
        (":", 1),
        ("05", 2),
    ]
    .into_iter()
    .chain(fraction)
    .chain([("Z07:00", 6)])
    .scan(text, |rest, (part, length)| {
        let here = *rest;
        let digits = part.bytes().all(|b| b.is_ascii_digit());
        let fits = here.get(..length.min(here.len())).is_some_and(|found| {
            found.len() == length
                && if digits { found.bytes().all(|b| b.is_ascii_digit()) } else { found == part }
        });
        if fits {
            *rest = &here[length..];
        }
        Some((here, part, fits))
    })
    .find(|(_, _, fits)| !fits)
    .map_or((text, layout), |(rest, part, _)| (rest, part));
    let (text, rest) = (quote(text), quote(rest));
    format!("parsing time {text} as {layout:?}: cannot parse {rest} as {part:?}")
}

fn misfit(value: &Value, place: &str, ty: &str) -> String {
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
