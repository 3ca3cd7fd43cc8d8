//! JSON and YAML with possibly duplicate fields: the last one counts, and the earlier ones are reported.

use std::fmt::{self, Write as _};

use berth_apimachinery::schema::{MAX_DEPTH, whole_numbers};
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

/// The maximum number of duplicates reported per text; more would only bury the first.
const MAX_TWICE: usize = 100;
/// The maximum size in bytes of a reported path: each repeats the names of the fields that it leads through.
const MAX_PATH: usize = 1024;

/// A parsed text.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Document {
    pub(super) value: Value,
    /// Paths of duplicate fields: `spec.disks[0].size`.
    pub(super) twice: Vec<String>,
}

/// Reads one JSON value.
///
/// # Errors
/// The text is not JSON, or continues after the value.
pub(super) fn json(text: &[u8]) -> serde_json::Result<Document> {
    let mut path = Path { text: String::new(), twice: Vec::new() };
    let mut source = serde_json::Deserializer::from_slice(text);
    let value = Node(&mut path).deserialize(&mut source)?;
    source.end()?;
    Ok(Document { value, twice: path.twice })
}

/// Reads one YAML document; without one the value is null.
///
/// # Errors
/// The text is not YAML, or too large once its aliases are replaced.
pub(super) fn yaml(text: &[u8]) -> Result<Document, String> {
    let read = berth_yaml::read(text, MAX_DEPTH).map_err(|error| error.to_string())?;
    let berth_yaml::Document { mut value, twice } = read;
    whole_numbers(&mut value);
    Ok(Document { value, twice })
}

struct Path {
    text: String,
    twice: Vec<String>,
}

impl Path {
    fn member(&mut self, name: &str) -> usize {
        let before = self.text.len();
        if before > 0 {
            self.text.push('.');
        }
        self.text.push_str(name);
        before
    }

    fn item(&mut self, at: usize) -> usize {
        let before = self.text.len();
        // Writing into a String cannot fail.
        let _ = write!(self.text, "[{at}]");
        before
    }
}

struct Node<'a>(&'a mut Path);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let before = self.0.item(list.len());
            let item = items.next_element_seed(Node(self.0))?;
            self.0.text.truncate(before);
            match item {
                Some(item) => list.push(item),
                None => return Ok(list.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let before = self.0.member(&name);
            let member = map.entry(name);
            if matches!(member, Entry::Occupied(_)) && self.0.twice.len() < MAX_TWICE {
                let path = &self.0.text[..self.0.text.floor_char_boundary(MAX_PATH)];
                self.0.twice.push(path.to_owned());
            }
            let value = members.next_value_seed(Node(self.0))?;
            self.0.text.truncate(before);
            match member {
                Entry::Vacant(member) => {
                    member.insert(value);
                }
                Entry::Occupied(mut member) => {
                    member.insert(value);
                }
            }
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests;
