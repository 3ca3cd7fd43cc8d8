//! Values of a resource to and from the custom resource's JSON, by the field table.
//!
//! Pure: no client, no Terraform request.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json};
use tfplugin6::Value;

use crate::{
    field::{Field, Presence, Shape, Source},
    form::Form,
};

/// The declared fields that the control plane would have set, but that were configured: once declared, they must be declared
/// for ever, also when the configuration no longer sets them. Paths such as `address` or
/// `network_interfaces[nic0].mac_address`.
pub type PinnedFields = BTreeSet<String>;

/// Whether two values of a shape mean the same. An unknown value equals nothing.
#[must_use]
pub fn same(shape: &Shape, a: &Value, b: &Value) -> bool {
    if a.is_unknown() || b.is_unknown() {
        return false;
    }
    match shape {
        Shape::Text(form) => match (a.as_str(), b.as_str()) {
            (Some(a), Some(b)) => form.same(a, b),
            _ => a.is_null() && b.is_null(),
        },
        Shape::Integer | Shape::Bool | Shape::TextListMap => a == b,
        Shape::TextMap | Shape::Annotations => {
            let empty = BTreeMap::new();
            a.as_map().unwrap_or(&empty) == b.as_map().unwrap_or(&empty)
        }
        Shape::TextList(form) => {
            let (a, b) = (a.elements(), b.elements());
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(&Shape::Text(*form), a, b))
        }
        Shape::Object(fields) => fields.iter().all(|f| same(&f.shape, a.get(f.name), b.get(f.name))),
        Shape::Keyed(fields) => {
            let (a, b) = (a.elements(), b.elements());
            let each =
                |a: &Value, b: &Value| fields.iter().all(|f| same(&f.shape, a.get(f.name), b.get(f.name)));
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| each(a, b))
        }
    }
}

/// The `spec` to declare: the planned values, without those that only the control plane sets.
#[must_use]
pub fn to_spec(
    fields: &[Field],
    planned: &Value,
    config: &Value,
    pinned: &PinnedFields,
) -> Map<String, Json> {
    write_fields(fields, planned, config, pinned, "")
}

fn write_fields(
    fields: &[Field],
    planned: &Value,
    config: &Value,
    pinned: &PinnedFields,
    at: &str,
) -> Map<String, Json> {
    let mut object = Map::new();
    for field in fields {
        let Source::Spec(key) = &field.source else { continue };
        let (planned, config) = (planned.get(field.name), config.get(field.name));
        let path = join(at, field.name);
        let declared = match field.presence {
            Presence::Computed => false,
            Presence::Kept => !config.is_null() || pinned.contains(&path),
            _ => true,
        };
        // A single value is left out: the control plane knows what that stands for.
        let planned = if matches!(field.shape, Shape::Object(_)) { field.meant(planned) } else { planned };
        if declared && let Some(json) = write(&field.shape, planned, config, pinned, &path) {
            object.insert(key.clone().into_owned(), json);
        }
    }
    object
}

fn write(shape: &Shape, planned: &Value, config: &Value, pinned: &PinnedFields, at: &str) -> Option<Json> {
    match shape {
        Shape::Text(form) => planned.as_str().map(|text| Json::String(form.canonical(text))),
        Shape::Integer => planned.as_i64().map(Json::from),
        Shape::Bool => planned.as_bool().map(Json::Bool),
        Shape::TextMap | Shape::Annotations => {
            let entries = planned.as_map()?.iter();
            let entries =
                entries.filter_map(|(name, v)| Some((name.clone(), Json::from(v.as_str()?)))).collect();
            Some(Json::Object(entries))
        }
        Shape::TextList(form) => {
            let texts = planned.as_list()?.iter().filter_map(Value::as_str);
            Some(Json::Array(texts.map(|text| Json::String(form.canonical(text))).collect()))
        }
        Shape::TextListMap => None,
        Shape::Object(fields) => {
            planned.as_map()?;
            let object = write_fields(fields, planned, config, pinned, at);
            (!object.is_empty()).then_some(Json::Object(object))
        }
        Shape::Keyed(fields) => {
            let elements = planned.as_list()?.iter().enumerate().map(|(i, element)| {
                let at = format!("{at}[{}]", element.get("name").as_str().unwrap_or_default());
                Json::Object(write_fields(fields, element, config.index(i), pinned, &at))
            });
            Some(Json::Array(elements.collect()))
        }
    }
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// The values of the custom resource for each field that is not only Terraform's.
#[must_use]
pub fn from_object(fields: &[Field], object: &Json) -> BTreeMap<String, Value> {
    read_fields(fields, object.get("spec").unwrap_or(&Json::Null), object)
}

fn read_fields(fields: &[Field], parent: &Json, root: &Json) -> BTreeMap<String, Value> {
    let read_one = |field: &Field| {
        let json = match &field.source {
            Source::Spec(key) => parent.get(key.as_ref()),
            Source::Observed(pointer) => root.pointer(pointer),
            Source::Local => return None,
        };
        Some((field.name.to_owned(), read(&field.shape, json.unwrap_or(&Json::Null), root)))
    };
    fields.iter().filter_map(read_one).collect()
}

fn read(shape: &Shape, json: &Json, root: &Json) -> Value {
    match (shape, json) {
        (Shape::Text(_), Json::String(text)) => Value::from(text.clone()),
        (Shape::Text(_), Json::Number(number)) => Value::from(number.to_string()),
        (Shape::Integer, json) => Value::from(json.as_i64()),
        (Shape::Bool, Json::Bool(value)) => Value::from(*value),
        (Shape::TextMap | Shape::Annotations, Json::Object(entries)) => {
            Value::object(entries.iter().map(|(name, json)| (name.clone(), Value::from(json.as_str()))))
        }
        (Shape::TextList(_), Json::Array(elements)) => texts(elements),
        (Shape::TextListMap, Json::Object(entries)) => {
            let lists = entries.iter().filter_map(|(name, json)| Some((name.clone(), json.as_array()?)));
            Value::object(lists.map(|(name, elements)| (name, texts(elements))))
        }
        (Shape::Object(fields), Json::Object(_)) => {
            let entries = read_fields(fields, json, root);
            if entries.values().all(Value::is_null) { Value::Null } else { Value::Map(entries) }
        }
        (Shape::Keyed(fields), Json::Array(elements)) => {
            Value::List(elements.iter().map(|json| Value::Map(read_fields(fields, json, root))).collect())
        }
        _ => Value::Null,
    }
}

fn texts(elements: &[Json]) -> Value {
    Value::List(elements.iter().map(|json| Value::from(json.as_str())).collect())
}

/// The fields that are declared in the object although the control plane could have set them.
#[must_use]
pub fn pinned_fields(fields: &[Field], object: &Json) -> PinnedFields {
    let mut found = PinnedFields::new();
    find_pinned(fields, object.get("spec").unwrap_or(&Json::Null), "", &mut found);
    found
}

fn find_pinned(fields: &[Field], parent: &Json, at: &str, found: &mut PinnedFields) {
    for field in fields {
        let Source::Spec(key) = &field.source else { continue };
        let Some(json) = parent.get(key.as_ref()) else { continue };
        let path = join(at, field.name);
        match &field.shape {
            Shape::Keyed(fields) => {
                for element in json.as_array().into_iter().flatten() {
                    let name = element.get("name").and_then(Json::as_str).unwrap_or_default();
                    find_pinned(fields, element, &format!("{path}[{name}]"), found);
                }
            }
            Shape::Object(fields) => {
                find_pinned(fields, json, &path, found);
                if field.presence == Presence::Kept {
                    found.insert(path);
                }
            }
            _ if field.presence == Presence::Kept => {
                found.insert(path);
            }
            _ => {}
        }
    }
}

/// The state after a read: the observed values, in the spelling of the prior state where both mean the same.
#[must_use]
pub fn refresh(
    fields: &[Field],
    prior: &Value,
    observed: &BTreeMap<String, Value>,
) -> BTreeMap<String, Value> {
    let refreshed = fields.iter().map(|field| {
        let before = prior.get(field.name);
        let value = match (&field.source, observed.get(field.name)) {
            (Source::Local, _) => local_after_read(field, before),
            (_, Some(now)) if before.is_null() && is_implied(field, now) => Value::Null,
            (_, Some(now)) if before.is_null() && !prior.is_null() && is_nothing(field, now) => Value::Null,
            // The control plane does not have the object that it is in.
            (_, now) => refresh_one(&field.shape, before, now.unwrap_or(&Value::Null)),
        };
        (field.name.to_owned(), value)
    });
    refreshed.collect()
}

fn is_implied(field: &Field, value: &Value) -> bool {
    matches!(&field.presence, Presence::Implied(implied) if same(&field.shape, value, implied))
}

/// The list whose absence allows everything: without elements it allows nothing.
const MEANT_EMPTY: &str = "egress";

/// Whether the value of a field is a list without elements that means the same as none: one with a default has it instead of none.
#[must_use]
pub fn is_nothing(field: &Field, value: &Value) -> bool {
    let is_list = matches!(field.shape, Shape::Keyed(_)) && field.presence == Presence::Optional;
    let is_list = is_list && field.name != MEANT_EMPTY;
    is_list && value.as_list().is_some_and(<[Value]>::is_empty)
}

/// An imported resource has no local settings yet: it gets the defaults, so that the first plan is empty.
fn local_after_read(field: &Field, before: &Value) -> Value {
    match &field.presence {
        Presence::Default(value) if before.is_null() => value.clone(),
        _ => before.clone(),
    }
}

fn refresh_one(shape: &Shape, before: &Value, now: &Value) -> Value {
    match shape {
        // Terraform generates no configuration for an empty text.
        Shape::Text(_) if before.is_null() && now.as_str() == Some("") => Value::Null,
        Shape::Object(fields) => match (before, now) {
            (Value::Null, Value::Null) => Value::Null,
            (before, now) => {
                let empty = BTreeMap::new();
                let entries = refresh(fields, before, now.as_map().unwrap_or(&empty));
                let local_only =
                    |field: &Field| field.source == Source::Local || now.get(field.name).is_null();
                let has_local =
                    |field: &Field| field.source == Source::Local && !before.get(field.name).is_null();
                // One that is declared without anything in it is not in the control plane either.
                let stays = !before.is_null() && (is_empty(before) || fields.iter().any(has_local));
                // Null before and now: local settings alone do not create an object.
                let nothing = !stays && fields.iter().all(local_only);
                if nothing { Value::Null } else { Value::Map(entries) }
            }
        },
        Shape::Keyed(fields) => {
            let Some(now) = now.as_list() else { return keep_if_same(shape, before, now) };
            let empty = BTreeMap::new();
            let refreshed = in_order_of(before.elements(), now).map(|element| {
                let was = find_named(before.elements(), element).unwrap_or(&Value::Null);
                Value::Map(refresh(fields, was, element.as_map().unwrap_or(&empty)))
            });
            Value::List(refreshed.collect())
        }
        Shape::TextList(form) => match (before.as_list(), now.as_list()) {
            (Some(was), Some(is)) if was.len() == is.len() => {
                let text = Shape::Text(*form);
                Value::List(was.iter().zip(is).map(|(was, is)| keep_if_same(&text, was, is)).collect())
            }
            _ => keep_if_same(shape, before, now),
        },
        _ => keep_if_same(shape, before, now),
    }
}

/// Whether nothing is declared in an object.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::List(elements) => elements.is_empty(),
        Value::Map(entries) => entries.values().all(is_empty),
        _ => false,
    }
}

fn keep_if_same(shape: &Shape, before: &Value, now: &Value) -> Value {
    if same(shape, before, now) { before.clone() } else { now.clone() }
}

/// The elements of `now`: first those in `before`, in its order, then the others in theirs.
fn in_order_of<'a>(before: &'a [Value], now: &'a [Value]) -> impl Iterator<Item = &'a Value> {
    let known = before.iter().filter_map(|element| find_named(now, element));
    known.chain(now.iter().filter(|element| find_named(before, element).is_none()))
}

/// The element with the same name.
#[must_use]
pub fn find_named<'a>(elements: &'a [Value], like: &Value) -> Option<&'a Value> {
    let name = like.get("name").as_str()?;
    elements.iter().find(|element| element.get("name").as_str() == Some(name))
}

/// The state after an apply: the plan, with its unknown values filled in from the observed ones. Other observed values wait
/// for the next read: Terraform requires the values that were planned as known.
#[must_use]
pub fn fill(planned: Value, observed: &Value) -> Value {
    match planned {
        Value::Unknown(_) => observed.clone().unknown_as_null(),
        Value::List(elements) => {
            let filled = elements.into_iter().enumerate().map(|(i, element)| {
                let by_name = find_named(observed.elements(), &element).cloned();
                let now = by_name.unwrap_or_else(|| observed.index(i).clone());
                fill(element, &now)
            });
            Value::List(filled.collect())
        }
        Value::Map(entries) => Value::Map(
            entries
                .into_iter()
                .map(|(name, value)| {
                    let now = observed.get(&name);
                    let filled = fill(value, now);
                    (name, filled)
                })
                .collect(),
        ),
        known => known,
    }
}

/// Whether all values to declare are known.
#[must_use]
pub fn declared_is_known(fields: &[Field], planned: &Value, config: &Value) -> bool {
    fields.iter().all(|field| {
        let (value, configured) = (planned.get(field.name), config.get(field.name));
        match &field.shape {
            _ if field.presence == Presence::Computed || !matches!(field.source, Source::Spec(_)) => true,
            // Left to the control plane, unless it is configured.
            _ if field.presence == Presence::Kept => configured.is_wholly_known(),
            Shape::Object(fields) => !value.is_unknown() && declared_is_known(fields, value, configured),
            Shape::Keyed(fields) => {
                let mut elements = value.elements().iter().enumerate();
                !value.is_unknown()
                    && elements.all(|(i, element)| declared_is_known(fields, element, configured.index(i)))
            }
            _ => value.is_wholly_known(),
        }
    })
}

/// A text shape without a particular form.
pub const TEXT: Shape = Shape::Text(Form::Any);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields() -> Vec<Field> {
        let limits = Shape::Object(vec![Field::spec("iops", Shape::Integer)]);
        let placement = Shape::Object(vec![Field::spec("host", TEXT), Field::spec("limits", limits)]);
        let policy = Field::local("policy", TEXT, "A setting of the provider.").default("refuse");
        let bootstrap = Shape::Object(vec![Field::spec("hostname", TEXT), policy]);
        vec![Field::spec("placement", placement), Field::spec("bootstrap", bootstrap)]
    }

    fn refreshed(prior: &Value, spec: Json) -> Value {
        Value::Map(refresh(&fields(), prior, &from_object(&fields(), &json!({ "spec": spec }))))
    }

    fn object(name: &'static str, value: Value) -> Value {
        Value::object([(name, value)])
    }

    #[test]
    fn an_object_that_another_client_has_removed_is_not_in_the_state() {
        let limits = || object("iops", Value::from(100));
        let placement = Value::object([("host", Value::from("a")), ("limits", limits())]);
        let prior = object("placement", placement);
        assert_eq!(refreshed(&prior, json!({})).get("placement"), &Value::Null);
        let left = refreshed(&prior, json!({"placement": {"host": "a"}}));
        assert_eq!(left.get("placement").get("host").as_str(), Some("a"));
        assert_eq!(left.get("placement").get("limits"), &Value::Null);
        let bootstrap = Value::object([("hostname", Value::from("web")), ("policy", Value::from("ignore"))]);
        let left = refreshed(&object("bootstrap", bootstrap), json!({}));
        assert_eq!(left.get("bootstrap").get("hostname"), &Value::Null);
        assert_eq!(left.get("bootstrap").get("policy").as_str(), Some("ignore"), "it is only in the state");
    }

    #[test]
    fn an_object_that_declares_nothing_stays_in_the_state() {
        let placement = Value::object([("host", Value::Null), ("limits", Value::Null)]);
        let prior = object("placement", placement.clone());
        assert_eq!(refreshed(&prior, json!({})).get("placement"), &placement);
        assert_eq!(refreshed(&Value::Null, json!({})).get("placement"), &Value::Null, "an import");
    }

    #[test]
    fn an_empty_list_of_another_client_is_no_value_unless_the_list_has_a_default() {
        let elements = || Shape::Keyed(vec![Field::spec("name", TEXT).required()]);
        let one = Value::List(vec![object("name", Value::from("nic0"))]);
        let fields = [Field::spec("ports", elements()), Field::spec("interfaces", elements()).default(one)];
        let read = |prior: &Value| {
            let spec = json!({"spec": {"ports": [], "interfaces": []}});
            Value::Map(refresh(&fields, prior, &from_object(&fields, &spec)))
        };
        let left_out = read(&object("ports", Value::Null));
        assert_eq!(left_out.get("ports"), &Value::Null, "each plan would remove it, and no apply does");
        assert_eq!(left_out.get("interfaces"), &Value::List(Vec::new()), "it is not the default");
        let declared = read(&object("ports", Value::List(Vec::new())));
        assert_eq!(declared.get("ports"), &Value::List(Vec::new()), "as it is configured");
        assert_eq!(read(&Value::Null).get("ports"), &Value::List(Vec::new()), "an import");
    }

    #[test]
    fn a_kept_value_is_declared_once_it_is_configured() {
        let fields = [Field::spec("size", TEXT).presence(Presence::Kept), Field::spec("image", TEXT)];
        let planned = Value::object([("size", Value::UNKNOWN), ("image", Value::Null)]);
        assert!(declared_is_known(&fields, &planned, &object("size", Value::Null)), "it is decided later");
        assert!(!declared_is_known(&fields, &planned, &object("size", Value::UNKNOWN)));
        let list = [Field::spec("disks", Shape::Keyed(fields.to_vec()))];
        let of = |value: Value| object("disks", Value::List(vec![value]));
        let config = |size: Value| of(object("size", size));
        assert!(declared_is_known(&list, &of(planned.clone()), &config(Value::Null)));
        assert!(!declared_is_known(&list, &of(planned), &config(Value::UNKNOWN)));
    }
}
