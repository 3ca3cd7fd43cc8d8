//! FieldsV1: field sets as JSON.

use serde_json::{Map, Value};

use super::element::PathElement;
use super::set::FieldSet;

impl FieldSet {
    /// Returns the set as the value of `managedFields[].fieldsV1`.
    pub(crate) fn to_v1(&self) -> Value {
        Value::Object(self.contents(false))
    }

    fn contents(&self, is_member: bool) -> Map<String, Value> {
        let mut out = Map::new();
        if is_member && !self.is_empty() {
            out.insert(".".to_owned(), Value::Object(Map::new()));
        }
        let elements: std::collections::BTreeSet<&PathElement> =
            self.members.iter().chain(self.children.keys()).collect();
        for element in elements {
            let contents = match self.children.get(element) {
                Some(below) => below.contents(self.members.contains(element)),
                None => Map::new(),
            };
            out.insert(element.serialize(), Value::Object(contents));
        }
        out
    }

    /// # Errors
    /// The value is not valid FieldsV1.
    pub(crate) fn from_v1(value: &Value) -> Result<Self, String> {
        let map = value.as_object().ok_or("fieldsV1 must be an object")?;
        let mut out = Self::default();
        for (text, below) in map {
            if text == "." {
                continue;
            }
            let element = PathElement::parse(text).ok_or_else(|| format!("invalid path element {text:?}"))?;
            let contents = below.as_object().ok_or_else(|| format!("{text:?} must hold an object"))?;
            if contents.is_empty() || contents.contains_key(".") {
                out.members.insert(element.clone());
            }
            let below = Self::from_v1(below)?;
            if !below.is_empty() {
                out.children.insert(element, below);
            }
        }
        Ok(out)
    }
}
