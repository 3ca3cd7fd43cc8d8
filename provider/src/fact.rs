//! Attributes that a data source shows without a field table: they are derived from the schema of the custom resource.
//!
//! Pure. Absent lists and maps are empty, because custom resources leave out empty ones; everything else that is absent is null.

use serde_json::Value as Json;
use tfplugin6::{Attribute, Number, Type, Value, schema::Nesting};

/// One attribute.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact {
    /// The name in HCL.
    pub name: String,
    /// The key in the custom resource.
    pub key: String,
    /// The kind of its values.
    pub shape: FactShape,
    text: String,
}

/// The kind of values of a [`Fact`].
#[derive(Debug, Clone, PartialEq)]
pub enum FactShape {
    /// A text. Values of other types are written as JSON.
    Text,
    /// A number.
    Number,
    /// True or false.
    Bool,
    /// A list of texts.
    Texts,
    /// A map of texts.
    TextMap,
    /// An object.
    Object(Vec<Fact>),
    /// A list of objects.
    Objects(Vec<Fact>),
    /// A list of objects of which each has another value for this key: a map in HCL.
    Keyed(String, Vec<Fact>),
}

/// The attributes for the properties of an object's schema, without the properties listed.
#[must_use]
pub fn facts(schema: &Json, without: &[&str]) -> Vec<Fact> {
    let properties = schema.get("properties").and_then(Json::as_object).into_iter().flatten();
    properties
        .filter(|(key, _)| !without.contains(&key.as_str()))
        .map(|(key, of)| Fact::new(key, of))
        .collect()
}

impl Fact {
    fn new(key: &str, schema: &Json) -> Self {
        let text = schema.get("description").and_then(Json::as_str).unwrap_or_default();
        Self {
            name: snake(key),
            key: key.to_owned(),
            shape: FactShape::of(schema),
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }

    /// The attribute in the Terraform schema.
    #[must_use]
    pub fn attribute(&self) -> Attribute {
        let nested = |nesting, facts: &[Self]| {
            Attribute::nested(&self.name, nesting, facts.iter().map(Self::attribute).collect())
        };
        let attribute = match &self.shape {
            FactShape::Text => Attribute::string(&self.name),
            FactShape::Number => Attribute::number(&self.name),
            FactShape::Bool => Attribute::bool(&self.name),
            FactShape::Texts => Attribute::new(&self.name, Type::list(Type::String)),
            FactShape::TextMap => Attribute::new(&self.name, Type::map(Type::String)),
            FactShape::Object(facts) => nested(Nesting::Single, facts),
            FactShape::Objects(facts) => nested(Nesting::List, facts),
            FactShape::Keyed(_, facts) => nested(Nesting::Map, facts),
        };
        attribute.computed().description(self.text.clone())
    }

    /// The value in the object that has the key.
    #[must_use]
    pub fn read(&self, parent: &Json) -> Value {
        self.shape.read(parent.get(&self.key).unwrap_or(&Json::Null))
    }
}

impl FactShape {
    fn of(schema: &Json) -> Self {
        let kind = |schema: &Json| schema.get("type").and_then(Json::as_str).unwrap_or_default().to_owned();
        let is_object = |schema: &Json| schema.get("properties").is_some_and(Json::is_object);
        match kind(schema).as_str() {
            "integer" | "number" => Self::Number,
            "boolean" => Self::Bool,
            "object" if is_object(schema) => Self::Object(facts(schema, &[])),
            "object" if schema.get("additionalProperties").is_some_and(|of| kind(of) == "string") => {
                Self::TextMap
            }
            "array" => match (schema.get("items"), map_key(schema)) {
                (Some(items), Some(key)) if is_object(items) => Self::Keyed(key, facts(items, &[])),
                (Some(items), None) if is_object(items) => Self::Objects(facts(items, &[])),
                (Some(items), _) if kind(items) == "string" => Self::Texts,
                _ => Self::Text,
            },
            _ => Self::Text,
        }
    }

    fn read(&self, json: &Json) -> Value {
        let elements = || json.as_array().into_iter().flatten();
        match self {
            Self::Text => match json {
                Json::Null => Value::Null,
                Json::String(text) => Value::from(text.as_str()),
                other => Value::from(other.to_string()),
            },
            Self::Number => {
                let number = json.as_number().and_then(|number| number.to_string().parse::<Number>().ok());
                Value::from(number)
            }
            Self::Bool => Value::from(json.as_bool()),
            Self::Texts => Value::List(elements().map(|text| Value::from(text.as_str())).collect()),
            Self::TextMap => {
                let entries = json.as_object().into_iter().flatten();
                Value::object(entries.map(|(name, text)| (name.clone(), Value::from(text.as_str()))))
            }
            Self::Object(_) if json.is_null() => Value::Null,
            Self::Object(facts) => read_all(facts, json),
            Self::Objects(facts) => Value::List(elements().map(|element| read_all(facts, element)).collect()),
            Self::Keyed(key, facts) => {
                let keyed = |element: &Json| {
                    let key = element.get(key).and_then(Json::as_str)?;
                    Some((key.to_owned(), read_all(facts, element)))
                };
                Value::object(elements().filter_map(keyed))
            }
        }
    }
}

/// The values of these attributes in an object.
#[must_use]
pub fn read_all(facts: &[Fact], object: &Json) -> Value {
    Value::object(facts.iter().map(|fact| (fact.name.clone(), fact.read(object))))
}

/// The only key of a list that is a map.
fn map_key(schema: &Json) -> Option<String> {
    let is_map = schema.get("x-kubernetes-list-type").and_then(Json::as_str) == Some("map");
    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Json::as_array).filter(|_| is_map)?;
    match keys.as_slice() {
        [Json::String(key)] => Some(key.clone()),
        _ => None,
    }
}

/// `volumeID` becomes `volume_id`, `publicIPs` becomes `public_ips`, `publicIPv6` becomes `public_ipv6`.
#[must_use]
pub fn snake(key: &str) -> String {
    let letters: Vec<char> = key.chars().collect();
    let is_lower = |i: usize| letters.get(i).is_some_and(char::is_ascii_lowercase);
    let is_upper = |i: usize| letters.get(i).is_some_and(char::is_ascii_uppercase);
    // The plural of an abbreviation: its `s` starts no word.
    let is_plural = |i: usize| letters.get(i) == Some(&'s') && !is_lower(i + 1);
    // The version of an abbreviation: its `v` starts no word either.
    let is_digit = |i: usize| letters.get(i).is_some_and(char::is_ascii_digit);
    let is_version = |i: usize| letters.get(i) == Some(&'v') && is_digit(i + 1);
    let mut snake = String::new();
    for (i, letter) in letters.iter().enumerate() {
        let begins_last = is_lower(i + 1) && !is_plural(i + 1) && !is_version(i + 1);
        let starts_word = is_upper(i) && i > 0 && (!is_upper(i - 1) || begins_last);
        if starts_word {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_become_names_as_people_write_them() {
        let cases = [
            ("volumeID", "volume_id"),
            ("publicIPs", "public_ips"),
            ("publicIP", "public_ip"),
            ("publicIPv6", "public_ipv6"),
            ("publicIPv6Address", "public_ipv6_address"),
            ("ipv6Address", "ipv6_address"),
            ("vmUid", "vm_uid"),
            ("qemuVersion", "qemu_version"),
            ("sha256", "sha256"),
            ("dns", "dns"),
            ("lastTransitionTime", "last_transition_time"),
            ("httpURLPath", "http_url_path"),
        ];
        for (key, name) in cases {
            assert_eq!(snake(key), name);
        }
    }

    #[test]
    fn a_schema_determines_the_attributes_and_their_values() {
        let schema = json!({"type": "object", "properties": {
            "address": {"type": "string", "description": "An\n address."},
            "mips": {"type": "number"},
            "hidden": {"type": "string"},
            "hosts": {"type": "array", "items": {"type": "string"}},
            "capacity": {"type": "object", "properties": {"cpus": {"type": "integer"}}},
            "members": {"type": "array", "items": {"type": "object", "properties": {"vm": {"type": "string"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "disks": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "attached": {"type": "boolean"}}}},
            "other": {"x-kubernetes-preserve-unknown-fields": true},
        }});
        let facts = facts(&schema, &["hidden"]);
        let object = json!({"address": "10.0.0.1", "mips": 1.25, "hidden": "x", "capacity": {"cpus": 4},
            "members": [{"vm": "a"}], "disks": [{"name": "root", "attached": true}], "other": {"a": [1]}});
        let value = read_all(&facts, &object);
        assert_eq!(value.get("address").as_str(), Some("10.0.0.1"));
        assert_eq!(value.get("mips").as_number().map(ToString::to_string).as_deref(), Some("1.25"));
        assert_eq!(value.get("capacity").get("cpus").as_i64(), Some(4));
        assert_eq!(value.get("members").index(0).get("vm").as_str(), Some("a"));
        assert_eq!(value.get("disks").get("root").get("attached").as_bool(), Some(true));
        assert_eq!(value.get("other").as_str(), Some(r#"{"a":[1]}"#));
        assert_eq!(value.get("hosts"), &Value::List(Vec::new()));
        assert_eq!(value.get("labels"), &Value::Map(std::collections::BTreeMap::new()));
        assert!(value.get("hidden").is_null());
        let empty = read_all(&facts, &Json::Null);
        assert!(empty.get("capacity").is_null() && empty.get("disks").as_map().is_some());
        let texts: Vec<String> = facts.iter().map(|fact| fact.attribute().description).collect();
        assert!(texts.contains(&"An address.".to_owned()), "{texts:?}");
    }
}
