//! Values of foreign states, whose types are not known for certain.

use berth_api::{ResourceName, vm::NicModel};
use serde_json::Value as Json;
use tfplugin6::Value;

/// Whether an attribute has a value other than the empty one of its type.
pub(super) fn is_set(value: &Json) -> bool {
    match value {
        Json::Null => false,
        Json::Bool(value) => *value,
        Json::Number(number) => number.as_f64() != Some(0.0),
        Json::String(text) => !text.is_empty(),
        Json::Array(elements) => elements.iter().any(is_set),
        Json::Object(entries) => entries.values().any(is_set),
    }
}

/// The attributes of `object` that are set and not among `known`, each below `prefix`.
pub(super) fn others(object: &Json, prefix: &str, known: &[&str]) -> Vec<String> {
    let entries = object.as_object().into_iter().flatten();
    let others = entries.filter(|(name, value)| !known.contains(&name.as_str()) && is_set(value));
    others.map(|(name, _)| format!("{prefix}{name}")).collect()
}

/// A text that is not empty.
pub(super) fn text<'a>(object: &'a Json, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

/// A whole number.
pub(super) fn number(object: &Json, pointer: &str) -> Option<u64> {
    let value = object.pointer(pointer)?;
    let float =
        || value.as_f64().filter(|float| *float >= 0.0 && float.fract() == 0.0).map(|float| float as u64);
    value.as_u64().or_else(float)
}

/// A list of objects.
pub(super) fn list<'a>(object: &'a Json, pointer: &str) -> &'a [Json] {
    object.pointer(pointer).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// A text that can be the name of an object.
pub(super) fn name(text: &str) -> Option<String> {
    ResourceName::is_dns_label(text).then(|| text.to_owned())
}

/// The name of a disk for an image file: `web-root` for `/srv/web-root.qcow2`.
pub(super) fn disk_name(file: &str) -> Option<String> {
    let file = file.rsplit('/').next().unwrap_or_default();
    let suffixes = [".qcow2", ".img", ".raw"];
    name(suffixes.iter().find_map(|suffix| file.strip_suffix(suffix)).unwrap_or(file))
}

/// The bytes of an amount in a unit of libvirt.
pub(super) fn bytes(amount: u64, unit: &str) -> Option<u64> {
    let factor: u64 = match unit {
        "b" | "B" | "bytes" => 1,
        "KB" => 1_000,
        "k" | "K" | "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "M" | "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "G" | "GiB" => 1 << 30,
        "TB" => 1_000_000_000_000,
        "T" | "TiB" => 1 << 40,
        _ => return None,
    };
    amount.checked_mul(factor)
}

/// An attribute of a VM and its value.
pub(super) type Field = (&'static str, Value);

/// The attribute of a network card's model, unless it is the default. An error: berth does not have the model.
pub(super) fn model(state: &Json, pointer: &str) -> Result<Option<Field>, ()> {
    let model = text(state, pointer).map_or(Some(NicModel::default()), NicModel::named).ok_or(())?;
    Ok((model != NicModel::default()).then(|| ("model", Value::from(model.as_str()))))
}
