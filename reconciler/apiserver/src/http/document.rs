//! JSON and YAML with possibly duplicate fields: the last one counts, and the earlier ones are reported.

use std::fmt;

use berth_apimachinery::schema::{MAX_DEPTH, whole_numbers};
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Budget, DuplicateKeyPolicy, Options};

/// The maximum number of duplicates reported per text; more would only bury the first.
const MAX_TWICE: usize = 100;

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
    let options = Options {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        budget: Some(Budget { max_depth: MAX_DEPTH, ..Budget::default() }),
        with_snippet: false,
        ..Options::default()
    };
    let mut path = Path { text: String::new(), twice: Vec::new() };
    let read = serde_saphyr::with_deserializer_from_slice_with_options(text, options, |source| {
        Node(&mut path).deserialize(source)
    });
    let mut value = read.map_err(|error| error.to_string())?;
    whole_numbers(&mut value);
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
    fn the_last_of_a_name_counts_and_is_reported() {
        let read = json(br#"{"a": 1, "b": [{"c": 1}, {"c": 1, "c": {"d": 2.0}, "c": null}], "a": "x"}"#);
        let read = read.expect("it is JSON");
        assert_eq!(read.value, json!({"a": "x", "b": [{"c": 1}, {"c": null}]}));
        assert_eq!(read.twice, ["b[1].c", "b[1].c", "a"]);
    }

    #[test]
    fn anything_else_is_as_serde_json_reads_it() {
        for text in ["null", "[1, -1, 18446744073709551615, 1.5, 1e3, true, \"\\u00e4\"]", "{}", " \"x\" "] {
            assert_eq!(
                json(text.as_bytes()).expect("JSON").value,
                serde_json::from_str::<Value>(text).unwrap()
            );
        }
        for text in ["", "{", "[1,]", "1 2", "{\"a\"}"] {
            assert!(json(text.as_bytes()).is_err(), "{text}");
        }
    }

    fn yaml_value(text: &str) -> Value {
        yaml(text.as_bytes()).expect("it is YAML").value
    }

    #[test]
    fn yaml_is_read_as_the_json_it_stands_for() {
        let text = "a: 1\nb: [x, 'y', ~, true, 1.5, 2.0, 2001-01-01, \"5\"]\nc: {1: z}\nd: |\n  e\n  f\n";
        let wanted = json!({"a": 1, "b": ["x", "y", null, true, 1.5, 2, "2001-01-01", "5"], "c": {"1": "z"},
            "d": "e\nf\n"});
        assert_eq!(yaml_value(text), wanted);
        assert_eq!(yaml_value(""), Value::Null);
        assert_eq!(yaml(b"a: 1\nx:\n  b: 1\n  b: 2\n").expect("it is YAML").twice, ["x.b"]);
        assert!(yaml(b"a: [b").unwrap_err().contains("line"));
    }

    #[test]
    fn aliases_are_replaced_and_bounded() {
        let text = "base: &b {a: 1, b: 2}\nown: {<<: *b, b: 3}\nlist: [*b]";
        let base = json!({"a": 1, "b": 2});
        assert_eq!(yaml_value(text), json!({"base": base, "own": {"a": 1, "b": 3}, "list": [base]}));
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..8 {
            let row = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{row}]\n");
        }
        assert!(yaml(bomb.as_bytes()).is_err());
        assert!(yaml("[".repeat(100_000).as_bytes()).is_err());
    }
}
