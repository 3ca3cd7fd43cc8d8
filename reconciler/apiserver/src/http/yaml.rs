//! YAML as kube-apiserver reads it: YAML 1.1 with the scalars of go-yaml, turned into JSON.
//!
//! `yes` and `on` are true, `0x10` and `010` are numbers, dates are texts, and keys become texts. A key that stands twice is
//! told and the last one counts: whether that is an error is for the caller.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::{Map, Number, Value};

use crate::schema::whole;

/// Nodes one document may have, those that aliases repeat included.
const MAX_NODES: usize = 1_000_000;

/// What a document says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Document {
    pub(super) value: Value,
    /// `line 7: key "a" already set in map`.
    pub(super) twice: Vec<String>,
}

/// Reads the first document; none at all is null.
///
/// # Errors
/// In go-yaml's words: `yaml: line 3: did not find expected key`.
pub(super) fn read(text: &str) -> Result<Document, String> {
    let mut reader =
        Reader { events: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0, twice: Vec::new() };
    let value = loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            Event::StreamEnd | Event::DocumentEnd => break Value::Null,
            first => break reader.node(first, span, 0)?,
        }
    };
    Ok(Document { value, twice: reader.twice })
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, (Value, usize)>,
    nodes: usize,
    twice: Vec<String>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), String> {
        match self.events.next_event() {
            Some(event) => event.map_err(|error| problem(&error)),
            None => Ok((Event::StreamEnd, Span::empty(saphyr_parser::Marker::default()))),
        }
    }

    fn count(&mut self, nodes: usize) -> Result<(), String> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES { Err("yaml: document contains excessive aliasing".into()) } else { Ok(()) }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Value, String> {
        self.count(1)?;
        if depth > crate::schema::MAX_DEPTH {
            return Err("yaml: exceeded max depth".into());
        }
        let before = self.nodes;
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => (anchor, scalar(&text, style, tag.as_ref())?),
            Event::SequenceStart(anchor, _) => (anchor, self.sequence(depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.mapping(depth)?),
            Event::Alias(anchor) => {
                let (value, nodes) =
                    self.anchors.get(&anchor).cloned().ok_or("yaml: unknown anchor referenced")?;
                self.count(nodes)?;
                return Ok(value);
            }
            other => return Err(format!("yaml: line {}: unexpected {other:?}", span.start.line())),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, (value.clone(), self.nodes - before));
        }
        Ok(value)
    }

    fn sequence(&mut self, depth: usize) -> Result<Value, String> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items.into()),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, String> {
        let mut members = Map::new();
        let mut merged = Map::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let merges = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let name = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?;
            let line = span.start.line();
            let value = self.node(event, span, depth + 1)?;
            if merges {
                merge(&mut merged, value)?;
                continue;
            }
            let (name, shown) = key(&name)?;
            if members.insert(name, value).is_some() {
                self.twice.push(format!("line {line}: key {shown} already set in map"));
            }
        }
        for (name, value) in merged {
            members.entry(name).or_insert(value);
        }
        Ok(members.into())
    }
}

fn merge(into: &mut Map<String, Value>, from: Value) -> Result<(), String> {
    match from {
        Value::Object(members) => {
            for (name, value) in members {
                into.entry(name).or_insert(value);
            }
            Ok(())
        }
        Value::Array(all) => all.into_iter().try_for_each(|one| merge(into, one)),
        _ => Err("yaml: map merge requires map or sequence of maps as the value".into()),
    }
}

/// A key as the text it becomes, and as Go shows it.
fn key(value: &Value) -> Result<(String, String), String> {
    match value {
        Value::String(text) => Ok((text.clone(), crate::schema::quote(text))),
        Value::Bool(_) | Value::Number(_) => Ok((value.to_string(), value.to_string())),
        Value::Null => Err("unsupported map key of type: %!s(<nil>), key: interface {}(nil)".to_owned()),
        Value::Array(_) | Value::Object(_) => Err(format!("yaml: invalid map key: {value}")),
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Cow<'_, Tag>>) -> Result<Value, String> {
    let tag = tag.filter(|tag| tag.is_yaml_core_schema()).map(|tag| tag.suffix.as_str());
    if tag == Some("str") || tag == Some("binary") || (tag.is_none() && style != ScalarStyle::Plain) {
        return Ok(text.into());
    }
    let value = resolve(text)?;
    let fits = match tag {
        None | Some("timestamp") => true,
        Some("bool") => value.is_boolean(),
        Some("int") => value.is_i64() || value.is_u64(),
        Some("float") => value.is_number(),
        Some("null") => value.is_null(),
        Some(_) => true,
    };
    if fits {
        Ok(value)
    } else {
        Err(format!("yaml: cannot decode `{text}` as a !!{}", tag.unwrap_or_default()))
    }
}

/// What a plain scalar is.
fn resolve(text: &str) -> Result<Value, String> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Ok(true.into());
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Ok(false.into());
        }
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Err(unsupported("+Inf")),
        "-.inf" | "-.Inf" | "-.INF" => return Err(unsupported("-Inf")),
        ".nan" | ".NaN" | ".NAN" => return Err(unsupported("NaN")),
        _ => {}
    }
    let numeric = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    if !numeric || is_date(text) {
        return Ok(text.into());
    }
    let number = integer(&text.replace('_', "")).or_else(|| float(text));
    Ok(number.map_or_else(|| text.into(), Value::Number))
}

fn unsupported(value: &str) -> String {
    format!("json: unsupported value: {value}")
}

/// `2001-01-01` and what begins so stay texts.
fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() > 4 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-'
}

/// With the prefixes of Go: `0x`, `0o`, `0b`, and `0` for octal.
fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (lower.as_str(), 10),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    if negative {
        return i64::from_str_radix(&format!("-{digits}"), radix).ok().map(Number::from);
    }
    u64::from_str_radix(digits, radix).ok().map(Number::from)
}

/// Whole ones are integers: they pass through JSON, where Go writes them so.
fn float(text: &str) -> Option<Number> {
    let plain = if text.starts_with('.') { text.to_owned() } else { text.replace('_', "") };
    let shaped = plain.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    let value = plain.parse::<f64>().ok().filter(|value| shaped && value.is_finite())?;
    whole(value).or_else(|| Number::from_f64(value))
}

/// The parser's complaint as go-yaml has it: without what was being parsed, and the line, which it counts from zero unless the
/// scanner stopped there.
fn problem(error: &ScanError) -> String {
    let (context, info) = match error.info().split_once(", ") {
        Some((context, problem)) if context.starts_with("while ") => (context, problem),
        _ => ("", error.info()),
    };
    let info = match info {
        "expected ',' or ']'" => "did not find expected ',' or ']'",
        other => other,
    };
    let parsing = context.starts_with("while parsing") || info.starts_with("did not find expected <");
    let line = error.marker().line() - usize::from(parsing);
    if line > 0 { format!("yaml: line {line}: {info}") } else { format!("yaml: {info}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(text: &str) -> Value {
        read(text).expect("it is YAML").value
    }

    #[test]
    fn scalars_are_what_go_yaml_takes_them_for() {
        let text = "[y, 'y', No, on, ~, , 0x10, 010, 0o17, 1_000, -5, +5, 1e3, 1.5, .5, 2001-01-01, 12:30, 1a, 08, -, x]";
        let wanted = json!([
            true,
            "y",
            false,
            true,
            null,
            null,
            16,
            8,
            15,
            1000,
            -5,
            5,
            1000,
            1.5,
            0.5,
            "2001-01-01",
            "12:30",
            "1a",
            8,
            "-",
            "x"
        ]);
        assert_eq!(value(&text.replace(" , ", " null, ").replace(" -, ", " '-', ")), wanted);
    }

    #[test]
    fn what_json_cannot_say_is_refused() {
        assert_eq!(read("a: .inf").unwrap_err(), "json: unsupported value: +Inf");
        assert!(read("~: a").is_err() && read("[a]: b").is_err() && read("a: *b").is_err());
    }

    #[test]
    fn keys_are_texts_and_one_that_stands_twice_is_told() {
        let read = read("1: a\nyes: b\nx: 1\nx:\n  2\n").expect("it is YAML");
        assert_eq!(read.value, json!({"1": "a", "true": "b", "x": 2}));
        assert_eq!(read.twice, ["line 5: key \"x\" already set in map"]);
    }

    #[test]
    fn aliases_and_merges_are_filled_in_and_bounded() {
        let text = "base: &b {a: 1, b: 2}\nown: {<<: *b, b: 3}\nlist: [*b]";
        assert_eq!(
            value(text),
            json!({"base": {"a": 1, "b": 2}, "own": {"a": 1, "b": 3}, "list": [{"a": 1, "b": 2}]})
        );
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..8 {
            let row = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{row}]\n");
        }
        assert_eq!(read(&bomb).unwrap_err(), "yaml: document contains excessive aliasing");
    }

    #[test]
    fn complaints_are_libyamls() {
        assert_eq!(read("a: [b").unwrap_err(), "yaml: line 1: did not find expected ',' or ']'");
        assert_eq!(value(""), Value::Null);
        assert_eq!(value("a: b\n---\nc: d\n"), json!({"a": "b"}));
    }
}
