//! JSON whose members may stand twice: the last one counts, as in Go, and each that came before is told.

use std::fmt;

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Told of one text; more would only bury the first.
const MAX_TWICE: usize = 100;

/// What a text says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Document {
    pub(super) value: Value,
    /// Paths of members that stand twice: `spec.disks[0].size`.
    pub(super) twice: Vec<String>,
}

/// Reads one value.
///
/// # Errors
/// What is no JSON, or has something after the value.
pub(super) fn read(text: &[u8]) -> serde_json::Result<Document> {
    let mut path = Path { text: String::new(), twice: Vec::new() };
    let mut source = serde_json::Deserializer::from_slice(text);
    let value = Node(&mut path).deserialize(&mut source)?;
    source.end()?;
    Ok(Document { value, twice: path.twice })
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
        self.text += &format!("[{at}]");
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
            if map.contains_key(&name) && self.0.twice.len() < MAX_TWICE {
                self.0.twice.push(self.0.text.clone());
            }
            let value = members.next_value_seed(Node(self.0))?;
            self.0.text.truncate(before);
            map.insert(name, value);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_of_a_name_counts_and_is_told() {
        let read = read(br#"{"a": 1, "b": [{"c": 1}, {"c": 1, "c": {"d": 2.0}, "c": null}], "a": "x"}"#);
        let read = read.expect("it is JSON");
        assert_eq!(read.value, json!({"a": "x", "b": [{"c": 1}, {"c": null}]}));
        assert_eq!(read.twice, ["b[1].c", "b[1].c", "a"]);
    }

    #[test]
    fn anything_else_is_as_serde_json_reads_it() {
        for text in ["null", "[1, -1, 18446744073709551615, 1.5, 1e3, true, \"\\u00e4\"]", "{}", " \"x\" "] {
            assert_eq!(
                read(text.as_bytes()).expect("JSON").value,
                serde_json::from_str::<Value>(text).unwrap()
            );
        }
        for text in ["", "{", "[1,]", "1 2", "{\"a\"}"] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
